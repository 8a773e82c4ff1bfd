"""Lab 05, The forward kernel: the wrong answers that are known."""

from checks.core.exercise import Mistake
from checks.labs.forward_cases import (
    NOT_THERE,
    told,
)

NO_PIXEL = "A pixel outside the level does not exist: the mask says so, and its weight is 0."


CORNER: list[Mistake] = [
    Mistake(
        "when x0 is reused for x1", {"xi": "xi = x0"}, "Which column does the right corner have? Which one is yours?"
    ),
    Mistake("when y0 is reused for y1", {"yj": "yj = y0"}, "Which row does the lower corner have? Which one is yours?"),
    Mistake(
        "when x0 and y0 are rounded towards zero",
        {
            "x0": "x0 = tl.where(x < 0, -tl.floor(-x), tl.floor(x))",
            "y0": "y0 = tl.where(y < 0, -tl.floor(-y), tl.floor(y))",
        },
        "Which pixel lies to the left of x = -0.3?",
    ),
    Mistake(
        "when the nearer pixel weighs less",
        {"weight": "weight = tl.where(mask, (1 - fx if i else fx) * (1 - fy if j else fy), 0.0)"},
        "A point just right of pixel 3 has a small fx. Which of the pixels 3 and 4 should weigh nearly 1?",
    ),
    Mistake(
        "when the weights along x and y are swapped",
        {"weight": "weight = tl.where(mask, (fy if i else 1 - fy) * (fx if j else 1 - fx), 0.0)"},
        "fx tells left from right, fy upper from lower.",
    ),
    Mistake(
        "when H is taken for W in the pixel's number",
        {"offset": "offset = tl.where(mask, yj, 0.0).to(tl.int32) * H + tl.where(mask, xi, 0.0).to(tl.int32)"},
        "How many pixels does a row have?",
    ),
    Mistake(
        "when pixels are counted column by column",
        {"offset": "offset = tl.where(mask, xi, 0.0).to(tl.int32) * H + tl.where(mask, yj, 0.0).to(tl.int32)"},
        "Row by row: the whole first row comes before the second.",
    ),
    Mistake(
        "when the weight is not set to zero where the pixel does not exist",
        {"weight": "weight = (fx if i else 1 - fx) * (fy if j else 1 - fy)"},
        "What is the weight of a point whose x is not a number, and what is that times the 0 a masked load gives?",
    ),
    Mistake(
        "when the nearest pixel is read in place of one outside",
        {
            "mask": "mask = x == x",
            "offset": "offset = tl.minimum(tl.maximum(yj, 0.0), H - 1).to(tl.int32) * W + tl.minimum(tl.maximum(xi, 0.0), W - 1).to(tl.int32)",
        },
        NO_PIXEL,
    ),
    Mistake(
        "when a point is dropped as soon as one of its four pixels does not exist",
        {"mask": "mask = (x0 >= 0) & (x0 < W - 1) & (y0 >= 0) & (y0 < H - 1)"},
        "The other three still count. Test each corner by itself.",
    ),
    Mistake(
        "when pixels past the left edge count as existing",
        {"mask": "mask = (xi < W) & (yj >= 0) & (yj < H)"},
        f"{NO_PIXEL} What is the number of the pixel before the first of a row?",
    ),
    Mistake(
        "when pixels past the right edge count as existing",
        {"mask": "mask = (xi >= 0) & (yj >= 0) & (yj < H)"},
        f"{NO_PIXEL} The pixel after the last of a row is the first of the next.",
    ),
    Mistake(
        "when pixels above the top edge count as existing",
        {"mask": "mask = (xi >= 0) & (xi < W) & (yj < H)"},
        f"{NO_PIXEL} Your mask knows three edges.",
    ),
    Mistake(
        "when pixels below the bottom edge count as existing",
        {"mask": "mask = (xi >= 0) & (xi < W) & (yj >= 0)"},
        f"{NO_PIXEL} Your mask knows three edges.",
    ),
    Mistake(
        "when one column and one row too many count as existing",
        {"mask": "mask = (xi >= 0) & (xi <= W) & (yj >= 0) & (yj <= H)"},
        "The last column has number W - 1, the last row H - 1.",
    ),
    Mistake(
        "when the last column and the last row are taken to be outside",
        {"mask": "mask = (xi >= 0) & (xi < W - 1) & (yj >= 0) & (yj < H - 1)"},
        "The last column has number W - 1, the last row H - 1, and both exist.",
    ),
    Mistake(
        "when H and W are swapped in the mask",
        {"mask": "mask = (xi >= 0) & (xi < H) & (yj >= 0) & (yj < W)"},
        "Columns stay below the width, rows below the height.",
    ),
    Mistake(
        "when a coordinate becomes an integer before it is tested",
        {
            "xi": "xi = x0.to(tl.int32) + i",
            "yj": "yj = y0.to(tl.int32) + j",
            "offset": "offset = tl.where(mask, yj, 0) * W + tl.where(mask, xi, 0)",
        },
        "On a GPU a NaN cast to an integer is 0, and pixel 0 exists. Test the float.",
    ),
    Mistake(
        "when the pixel's number is computed in float32",
        {"offset": "offset = tl.where(mask, yj * W + xi, 0.0).to(tl.int32)"},
        "float32 counts whole numbers up to 16,777,216 one by one. How many pixels has a level of 5000 by 5003?",
    ),
    Mistake(
        "when column 0 and row 0 are taken to be outside",
        {"mask": "mask = (xi > 0) & (xi < W) & (yj > 0) & (yj < H)"},
        "The first column and the first row have number 0, and both exist.",
    ),
    Mistake(
        "when i and j are swapped",
        {
            "xi": "xi = x0 + j",
            "yj": "yj = y0 + i",
            "weight": "weight = tl.where(mask, (fx if j else 1 - fx) * (fy if i else 1 - fy), 0.0)",
        },
        "i tells left from right, j upper from lower.",
    ),
    Mistake(
        "when the offset is not made an integer",
        {"offset": "offset = tl.where(mask, yj, 0.0) * W + tl.where(mask, xi, 0.0)"},
        "Which dtype do the row and the column have, and which does the docstring ask for?",
    ),
    Mistake(
        "when the mask is a number",
        {"result": "return offset, weight, mask.to(tl.float32)"},
        "A comparison gives what a mask has to be. What was done to it afterwards?",
    ),
    Mistake(
        "when half a pixel is subtracted once more",
        {"x0": "x0 = tl.floor(x - 0.5)", "y0": "y0 = tl.floor(y - 0.5)"},
        "x and y are pixel coordinates already.",
    ),
    Mistake(
        "when coordinates are cut off towards zero, and weights are one minus the distance",
        {
            "x0": "x0 = x.to(tl.int32)",
            "y0": "y0 = y.to(tl.int32)",
            "weight": "weight = tl.where(mask, (1 - tl.abs(x - xi)) * (1 - tl.abs(y - yj)), 0.0)",
            "offset": "offset = tl.where(mask, yj, 0) * W + tl.where(mask, xi, 0)",
        },
        "`.to(tl.int32)` cuts off what is behind the point: -0.5 becomes 0. Which pixel is to the left of -0.5?",
    ),
    Mistake(
        "when a coordinate that is not a number is taken for 0",
        {
            "x0": """
                x = tl.where(x == x, x, 0.0)
                @
            """,
            "y0": """
                y = tl.where(y == y, y, 0.0)
                @
            """,
        },
        "Pixel 0 exists, and nobody asked for it. What should such a point add?",
    ),
    Mistake(
        "when the weights along x and y are added",
        {"weight": "weight = tl.where(mask, (fx if i else 1 - fx) + (fy if j else 1 - fy), 0.0)"},
        "The four weights of a point add up to 1. What do yours add up to?",
    ),
    Mistake(
        "when the weight is multiplied by the mask",
        {"weight": "weight = (fx if i else 1 - fx) * (fy if j else 1 - fy) * mask.to(tl.float32)"},
        "A number that is none times 0 is none. What does tl.where do with it?",
    ),
    Mistake(
        "when the weight, one minus the distance, is kept where the pixel does not exist",
        {"weight": "weight = (1 - tl.abs(x - xi)) * (1 - tl.abs(y - yj))"},
        "What is the weight of a point whose x is not a number, and what is that times the 0 a masked load gives?",
    ),
]


MSDA_FWD_KERNEL: list[Mistake] = [
    Mistake(
        "when a corner reads one channel at a time",
        {
            "pixel": "pass",
            "v": "pass",
            "acc_2": """
                for d in range(D):
                    pixel = level_ptr + offset * (M * D) + d
                    v = tl.load(pixel, mask=mask_q & inside, other=0.0).to(tl.float32)
                    acc += tl.where(offs_d[None, :] == d, (a * weight * v)[:, None], 0.0)
            """,
        },
        "A sector holds 8 channels in float32. If a load takes one channel of a pixel, what happens to the other 7? Which "
        "axis of the tile should lie along memory?",
        only="traffic",
    ),
    Mistake(
        "when every head of a pixel is read for one",
        {
            "v": "pass",
            "acc_2": """
                for other in range(M):
                    pixel = level_ptr + (offset * M + other - m)[:, None] * D + offs_d[None, :]
                    v = tl.load(pixel, mask=(mask_q & inside)[:, None] & mask_d[None, :], other=0.0)
                    acc += tl.where(other == m, (a * weight)[:, None] * v.to(tl.float32), 0.0)
            """,
        },
        "The heads of a pixel lie together, but this program needs one of them.",
        only="traffic",
    ),
    Mistake(
        "when a pixel is read where none is needed, and thrown away",
        {
            "corner.offset": "offset = tl.minimum(tl.maximum(tl.where(yj == yj, yj, 0.0), 0.0), H - 1).to(tl.int32) * W + tl.minimum(tl.maximum(tl.where(xi == xi, xi, 0.0), 0.0), W - 1).to(tl.int32)",
            "corner.result": "return offset, weight, xi == xi",
        },
        "Its weight is zero, so the result is right, and its bytes have been fetched all the same. Which mask stops a load?",
        only="traffic",
    ),
    Mistake(
        "when one query after the other is read by the whole program",
        {
            "v": "pass",
            "acc_2": """
                for n in range(BLOCK_Q):
                    mine = tl.arange(0, BLOCK_Q) == n
                    first = tl.sum(tl.where(mine & inside & mask_q, offset, 0), axis=0)
                    exists = tl.sum((mine & inside & mask_q).to(tl.int32), axis=0) > 0
                    v = tl.load(level_ptr + first * (M * D) + offs_d, mask=mask_d & exists, other=0.0)
                    acc += tl.where(mine[:, None], (a * weight)[:, None] * v.to(tl.float32)[None, :], 0.0)
            """,
        },
        "32 channels are one warp's worth of lanes. What do the other three warps of the program load meanwhile?",
        only="traffic",
    ),
    Mistake(
        "when value is masked by query only",
        {
            "v": "v = tl.load(pixel, mask=mask_q[:, None], other=0.0)",
            "corner.weight": "weight = (fx if i else 1 - fx) * (fy if j else 1 - fy)",
            "corner.offset": "offset = (tl.where(y == y, yj, 0.0).to(tl.int32) * W + tl.where(x == x, xi, 0.0).to(tl.int32))",
        },
        "A query that exists can still look at a pixel that does not, and a tile has lanes past channel D.",
    ),
    Mistake(
        "when the level's start is computed from the shapes",
        {
            "each_l": """
                start = 0
                for l in range(L):
                    H = tl.load(shapes_ptr + 2 * l).to(tl.int32)
                    W = tl.load(shapes_ptr + 2 * l + 1).to(tl.int32)
                    level_ptr = value_ptr + ((b * S + start) * M + m) * D
                    start += H * W
                    for k in range(K):
                        point = (row * L + l) * K + k
                        a = tl.load(attn_ptr + point, mask=mask_q, other=0.0).to(tl.float32)
                        x = tl.load(loc_ptr + 2 * point, mask=mask_q, other=0.0).to(tl.float32) * W - 0.5
                        y = tl.load(loc_ptr + 2 * point + 1, mask=mask_q, other=0.0).to(tl.float32) * H - 0.5
                        for j in tl.static_range(2):
                            for i in tl.static_range(2):
                                offset, weight, inside = corner(x, y, i, j, H, W)
                                pixel = level_ptr + offset[:, None] * (M * D) + offs_d[None, :]
                                v = tl.load(pixel, mask=(mask_q & inside)[:, None] & mask_d[None, :], other=0.0)
                                acc += (a * weight)[:, None] * v.to(tl.float32)
            """
        },
        "Levels need not lie one after another: where they begin is given.",
    ),
    Mistake(
        "when the weights along x and y are swapped",
        {"corner.weight": "weight = tl.where(mask, (fy if i else 1 - fy) * (fx if j else 1 - fx), 0.0)"},
        "fx tells left from right, fy upper from lower.",
    ),
    Mistake(
        "when every point replaces the sum so far",
        {"acc_2": "acc = acc * (i + j > 0) + (a * weight)[:, None] * v.to(tl.float32)"},
        "The corners of one point are added up. So are the points.",
    ),
    Mistake(
        "when levels and points are swapped in memory",
        {"point": "point = (row * K + k) * L + l"},
        "loc is (B, Q, M, L, K, 2): which of L and K is the inner axis?",
    ),
    Mistake(
        "when the load of x has no mask", {"x": "x = tl.load(loc_ptr + 2 * point).to(tl.float32) * W - 0.5"}, NOT_THERE
    ),
    Mistake(
        "when the load of y has no mask",
        {"y": "y = tl.load(loc_ptr + 2 * point + 1).to(tl.float32) * H - 0.5"},
        NOT_THERE,
    ),
    *told(
        value_dtype={
            "acc": "acc = tl.zeros([BLOCK_Q, BLOCK_D], value_ptr.dtype.element_ty)",
            "acc_2": "acc = (acc.to(tl.float32) + (a * weight)[:, None] * v.to(tl.float32)).to(acc.dtype)",
        },
        untested_weight={"corner.weight": "weight = (fx if i else 1 - fx) * (fy if j else 1 - fy)"},
        x0_for_x1={"corner.xi": "xi = x0"},
        y0_for_y1={"corner.yj": "yj = y0"},
        start_twice={"level_ptr": "level_ptr = value_ptr + ((b * S + 2 * tl.load(starts_ptr + l)) * M + m) * D"},
        no_start={"level_ptr": "level_ptr = value_ptr + ((b * S) * M + m) * D"},
        half_coordinates={
            "x": "x = (tl.load(loc_ptr + 2 * point, mask=mask_q, other=0.0) * W - 0.5).to(tl.float32)",
            "y": "y = (tl.load(loc_ptr + 2 * point + 1, mask=mask_q, other=0.0) * H - 0.5).to(tl.float32)",
        },
        rounded_coordinates={
            "x": "x = (tl.load(loc_ptr + 2 * point, mask=mask_q, other=0.0).to(tl.float32) * W - 0.5).to(tl.float16).to(tl.float32)",
            "y": "y = (tl.load(loc_ptr + 2 * point + 1, mask=mask_q, other=0.0).to(tl.float32) * H - 0.5).to(tl.float16).to(tl.float32)",
        },
        y_x={
            "x": "x = tl.load(loc_ptr + 2 * point + 1, mask=mask_q, other=0.0).to(tl.float32) * W - 0.5",
            "y": "y = tl.load(loc_ptr + 2 * point, mask=mask_q, other=0.0).to(tl.float32) * H - 0.5",
        },
        w_h={
            "H": "H = tl.load(shapes_ptr + 2 * l + 1 - 1 + 1).to(tl.int32)",
            "W": "W = tl.load(shapes_ptr + 2 * l).to(tl.int32)",
        },
        w_for_both={"y": "y = tl.load(loc_ptr + 2 * point + 1, mask=mask_q, other=0.0).to(tl.float32) * W - 0.5"},
        no_half_pixel={
            "x": "x = tl.load(loc_ptr + 2 * point, mask=mask_q, other=0.0).to(tl.float32) * W",
            "y": "y = tl.load(loc_ptr + 2 * point + 1, mask=mask_q, other=0.0).to(tl.float32) * H",
        },
        centre_to_centre={
            "x": "x = tl.load(loc_ptr + 2 * point, mask=mask_q, other=0.0).to(tl.float32) * (W - 1)",
            "y": "y = tl.load(loc_ptr + 2 * point + 1, mask=mask_q, other=0.0).to(tl.float32) * (H - 1)",
        },
        truncated={
            "corner.x0": "x0 = tl.where(x < 0, -tl.floor(-x), tl.floor(x))",
            "corner.y0": "y0 = tl.where(y < 0, -tl.floor(-y), tl.floor(y))",
        },
        far_near={"corner.weight": "weight = tl.where(mask, (1 - fx if i else fx) * (1 - fy if j else fy), 0.0)"},
        h_pitch={
            "corner.offset": "offset = tl.where(mask, yj, 0.0).to(tl.int32) * H + tl.where(mask, xi, 0.0).to(tl.int32)"
        },
        nearest={
            "corner.mask": "mask = x == x",
            "corner.offset": "offset = tl.minimum(tl.maximum(yj, 0.0), H - 1).to(tl.int32) * W + tl.minimum(tl.maximum(xi, 0.0), W - 1).to(tl.int32)",
        },
        nan_is_0={
            "x": """
                @
                x = tl.where(x == x, x, 0.0)
            """,
            "y": """
                @
                y = tl.where(y == y, y, 0.0)
            """,
        },
        whole_point={"corner.mask": "mask = (x0 >= 0) & (x0 < W - 1) & (y0 >= 0) & (y0 < H - 1)"},
        early_integer={
            "corner.xi": "xi = x0.to(tl.int32) + i",
            "corner.yj": "yj = y0.to(tl.int32) + j",
            "corner.offset": "offset = tl.where(mask, yj, 0) * W + tl.where(mask, xi, 0)",
        },
        no_attention={"acc_2": "acc += weight[:, None] * v.to(tl.float32)"},
        last_corner={"acc_2": "acc = (a * weight)[:, None] * v.to(tl.float32)"},
        mean={
            "store": "tl.store(out_ptr + row[:, None] * D + offs_d[None, :], (acc / (L * K)).to(out_ptr.dtype.element_ty), mask=mask_out)"
        },
        heads_first={"row": "row = (b * M + m) * Q + offs_q"},
        first_head={"level_ptr": "level_ptr = value_ptr + ((b * S + tl.load(starts_ptr + l)) * M) * D"},
        first_item={"level_ptr": "level_ptr = value_ptr + ((tl.load(starts_ptr + l)) * M + m) * D"},
        rows_of_item_0={"row": "row = offs_q.to(tl.int64) * M + m"},
        head_first_id={"m": "m = tl.program_id(1) // M", "b": "b = (tl.program_id(1) % M).to(tl.int64)"},
        heads_apart={
            "level_ptr": "level_ptr = value_ptr + (b * S * M + m * S + tl.load(starts_ptr + l)) * D",
            "pixel": "pixel = level_ptr + offset[:, None] * D + offs_d[None, :]",
        },
        pixel_pitch_d={"pixel": "pixel = level_ptr + offset[:, None] * D + offs_d[None, :]"},
        block_d={
            "level_ptr": "level_ptr = value_ptr + ((b * S + tl.load(starts_ptr + l)) * M + m) * BLOCK_D",
            "pixel": "pixel = level_ptr + offset[:, None] * (M * BLOCK_D) + offs_d[None, :]",
            "store": "tl.store(out_ptr + row[:, None] * BLOCK_D + offs_d[None, :], acc.to(out_ptr.dtype.element_ty), mask=mask_out)",
        },
        no_block_q={"offs_q": "offs_q = tl.program_id(0) + tl.arange(0, BLOCK_Q)"},
        full_blocks={"mask_q": "mask_q = offs_q < Q // BLOCK_Q * BLOCK_Q"},
        no_attention_mask={"a": "a = tl.load(attn_ptr + point).to(tl.float32)"},
        no_channel_mask={"v": "v = tl.load(pixel, mask=(mask_q & inside)[:, None], other=0.0)"},
        no_other={"v": "v = tl.load(pixel, mask=(mask_q & inside)[:, None] & mask_d[None, :])"},
        no_store_mask={
            "store": "tl.store(out_ptr + row[:, None] * D + offs_d[None, :], acc.to(out_ptr.dtype.element_ty))"
        },
        store_any_query={
            "store": "tl.store(out_ptr + row[:, None] * D + offs_d[None, :], acc.to(out_ptr.dtype.element_ty), mask=mask_d[None, :])"
        },
        store_any_channel={
            "store": "tl.store(out_ptr + row[:, None] * D + offs_d[None, :], acc.to(out_ptr.dtype.element_ty), mask=mask_q[:, None])"
        },
        narrow_batch={"b": "b = (tl.program_id(1) // M)"},
    ),
    # After the sum in value's dtype, which looks the same in 16 bits and wastes nothing.
    Mistake(
        "when the sum is kept in memory",
        {
            "acc": "here = out_ptr + row[:, None] * D + offs_d[None, :]",
            "each_l": "",
            "store": """
                tl.store(here, tl.zeros([BLOCK_Q, BLOCK_D], tl.float32), mask=mask_out)
                for l in range(L):
                    H = tl.load(shapes_ptr + 2 * l).to(tl.int32)
                    W = tl.load(shapes_ptr + 2 * l + 1).to(tl.int32)
                    level_ptr = value_ptr + ((b * S + tl.load(starts_ptr + l)) * M + m) * D
                    for k in range(K):
                        point = (row * L + l) * K + k
                        a = tl.load(attn_ptr + point, mask=mask_q, other=0.0).to(tl.float32)
                        x = tl.load(loc_ptr + 2 * point, mask=mask_q, other=0.0).to(tl.float32) * W - 0.5
                        y = tl.load(loc_ptr + 2 * point + 1, mask=mask_q, other=0.0).to(tl.float32) * H - 0.5
                        for j in tl.static_range(2):
                            for i in tl.static_range(2):
                                offset, weight, inside = corner(x, y, i, j, H, W)
                                pixel = level_ptr + offset[:, None] * (M * D) + offs_d[None, :]
                                v = tl.load(pixel, mask=(mask_q & inside)[:, None] & mask_d[None, :], other=0.0)
                                tl.store(here, tl.load(here, mask=mask_out, other=0.0) + (a * weight)[:, None] * v.to(tl.float32), mask=mask_out)
                mask_out = mask_q[:, None] & mask_d[None, :]
                pass
            """,
        },
        "A sum that every corner loads and stores again crosses the chip each time. Registers are free.",
    ),
    Mistake(
        "when the largest share is kept in place of the sum",
        {"acc_2": "acc = tl.maximum(acc, (a * weight)[:, None] * v.to(tl.float32))"},
        "A weighted sum: what becomes of all shares but the largest?",
    ),
    Mistake(
        "when the sum is kept in float16",
        {
            "acc": "acc = tl.zeros([BLOCK_Q, BLOCK_D], tl.float16)",
            "acc_2": "acc += ((a * weight)[:, None] * v.to(tl.float32)).to(tl.float16)",
        },
        "Each addition in float16 rounds. Which dtype should the accumulator have?",
    ),
    Mistake(
        "when the products with value are taken in value's dtype",
        {"acc_2": "acc += ((a * weight)[:, None].to(v.dtype) * v).to(tl.float32)"},
        "A product of two 16-bit numbers is rounded to 16 bits again. Where does the cast belong?",
    ),
    Mistake(
        "when every level is taken to begin after as many levels of its own size",
        {"level_ptr": "level_ptr = value_ptr + ((b * S + l * H * W) * M + m) * D"},
        "Levels have sizes of their own, and where they begin is given.",
    ),
    Mistake(
        "when every level has the size of the first",
        {"H": "H = tl.load(shapes_ptr + 0 * l).to(tl.int32)", "W": "W = tl.load(shapes_ptr + 0 * l + 1).to(tl.int32)"},
        "spatial_shapes has a row for each level.",
    ),
    Mistake(
        "when the mean over the levels is taken",
        {
            "store": "tl.store(out_ptr + row[:, None] * D + offs_d[None, :], (acc / L).to(out_ptr.dtype.element_ty), mask=mask_out)"
        },
        "The weights weigh already. Nothing is divided.",
    ),
    Mistake(
        "when locations and weights of batch item 0 are used for all",
        {"point": "point = ((offs_q * M + m) * L + l) * K + k"},
        "A batch item has Q queries. How many lie before this program's?",
    ),
    Mistake(
        "when a softmax is taken of the weights",
        {
            "a": """
                a = tl.exp(tl.load(attn_ptr + point, mask=mask_q, other=0.0).to(tl.float32))
                total += a
            """,
            "acc": """
                @
                total = tl.zeros([BLOCK_Q], tl.float32)
            """,
            "store": "tl.store(out_ptr + row[:, None] * D + offs_d[None, :], (acc / total[:, None]).to(out_ptr.dtype.element_ty), mask=mask_out)",
        },
        "The weights come in as they are: whoever calls has made them.",
    ),
]


def _launched(*contiguous: str) -> str:
    """The launch, with only these tensors made contiguous."""
    names = ("value", "spatial_shapes", "level_start_index", "sampling_locations", "attention_weights")
    given = ", ".join(f"{name}.contiguous()" if name in contiguous else name for name in names)
    sizes = "out, Q, S, M=M, D=D, L=L, K=K, BLOCK_Q=BLOCK_Q, BLOCK_D=BLOCK_D, num_warps=4"
    return f"msda_fwd_kernel[(triton.cdiv(Q, BLOCK_Q), B * M)]({given}, {sizes})"


MSDA_FORWARD: list[Mistake] = [
    Mistake(
        "when the last queries, which fill no block, are left out",
        {
            "launch": """
                msda_fwd_kernel[(Q // BLOCK_Q, B * M)](
                    value.contiguous(),
                    spatial_shapes.contiguous(),
                    level_start_index.contiguous(),
                    sampling_locations.contiguous(),
                    attention_weights.contiguous(),
                    out,
                    Q,
                    S,
                    M=M,
                    D=D,
                    L=L,
                    K=K,
                    BLOCK_Q=BLOCK_Q,
                    BLOCK_D=BLOCK_D,
                    num_warps=4,
                )
            """
        },
        "How many blocks of 16 do 33 queries need?",
    ),
    Mistake(
        "when only the first block of queries is launched",
        {
            "launch": """
                msda_fwd_kernel[(1, B * M)](
                    value.contiguous(),
                    spatial_shapes.contiguous(),
                    level_start_index.contiguous(),
                    sampling_locations.contiguous(),
                    attention_weights.contiguous(),
                    out,
                    Q,
                    S,
                    M=M,
                    D=D,
                    L=L,
                    K=K,
                    BLOCK_Q=BLOCK_Q,
                    BLOCK_D=BLOCK_D,
                    num_warps=4,
                )
            """
        },
        "The kernel does BLOCK_Q queries. How many programs does it take?",
    ),
    Mistake(
        "when the axes of the grid are swapped",
        {
            "launch": """
                msda_fwd_kernel[(B * M, triton.cdiv(Q, BLOCK_Q))](
                    value.contiguous(),
                    spatial_shapes.contiguous(),
                    level_start_index.contiguous(),
                    sampling_locations.contiguous(),
                    attention_weights.contiguous(),
                    out,
                    Q,
                    S,
                    M=M,
                    D=D,
                    L=L,
                    K=K,
                    BLOCK_Q=BLOCK_Q,
                    BLOCK_D=BLOCK_D,
                    num_warps=4,
                )
            """
        },
        "Program (i, j): i counts blocks of queries, j batch items and heads.",
    ),
    Mistake(
        "when there are programs for the batch items, but not for their heads",
        {
            "launch": """
                msda_fwd_kernel[(triton.cdiv(Q, BLOCK_Q), B)](
                    value.contiguous(),
                    spatial_shapes.contiguous(),
                    level_start_index.contiguous(),
                    sampling_locations.contiguous(),
                    attention_weights.contiguous(),
                    out,
                    Q,
                    S,
                    M=M,
                    D=D,
                    L=L,
                    K=K,
                    BLOCK_Q=BLOCK_Q,
                    BLOCK_D=BLOCK_D,
                    num_warps=4,
                )
            """
        },
        "One program does one head. How many are there?",
    ),
    Mistake(
        "when there are programs for the heads of the first batch item only",
        {
            "launch": """
                msda_fwd_kernel[(triton.cdiv(Q, BLOCK_Q), M)](
                    value.contiguous(),
                    spatial_shapes.contiguous(),
                    level_start_index.contiguous(),
                    sampling_locations.contiguous(),
                    attention_weights.contiguous(),
                    out,
                    Q,
                    S,
                    M=M,
                    D=D,
                    L=L,
                    K=K,
                    BLOCK_Q=BLOCK_Q,
                    BLOCK_D=BLOCK_D,
                    num_warps=4,
                )
            """
        },
        "How many batch items are there?",
    ),
    Mistake(
        "when BLOCK_D is D",
        {"BLOCK_Q": "BLOCK_Q, BLOCK_D = 16, D"},
        "`tl.arange` needs a power of two.",
    ),
    Mistake(
        "when BLOCK_D is a power of two below D",
        {"BLOCK_Q": "BLOCK_Q, BLOCK_D = 16, max(1, triton.next_power_of_2(D + 1) // 2)"},
        "All channels must fit: the next power of two, not the one before.",
    ),
    Mistake(
        "when the result is float32 whatever came in",
        {"out": "out = torch.empty(B, Q, M * D, dtype=torch.float32, device=value.device)"},
        "The result has value's dtype. The kernel rounds to what out is.",
    ),
    Mistake(
        "when the heads are not folded into the channels",
        {"out": "out = value.new_empty(B, Q, M, D)"},
        "The result has three axes: the heads' channels follow one another in the last.",
    ),
    Mistake(
        "when value's strides are forgotten",
        {
            "launch": """
                msda_fwd_kernel[(triton.cdiv(Q, BLOCK_Q), B * M)](
                    value,
                    spatial_shapes.contiguous(),
                    level_start_index.contiguous(),
                    sampling_locations.contiguous(),
                    attention_weights.contiguous(),
                    out,
                    Q,
                    S,
                    M=M,
                    D=D,
                    L=L,
                    K=K,
                    BLOCK_Q=BLOCK_Q,
                    BLOCK_D=BLOCK_D,
                    num_warps=4,
                )
            """
        },
        "The kernel sees an address. What does a transposed view look like from there?",
    ),
    Mistake(
        "when the locations' strides are forgotten",
        {
            "launch": """
                msda_fwd_kernel[(triton.cdiv(Q, BLOCK_Q), B * M)](
                    value.contiguous(),
                    spatial_shapes.contiguous(),
                    level_start_index.contiguous(),
                    sampling_locations,
                    attention_weights.contiguous(),
                    out,
                    Q,
                    S,
                    M=M,
                    D=D,
                    L=L,
                    K=K,
                    BLOCK_Q=BLOCK_Q,
                    BLOCK_D=BLOCK_D,
                    num_warps=4,
                )
            """
        },
        "The kernel sees an address. What does a view look like from there?",
    ),
    Mistake(
        "when the weights' strides are forgotten",
        {
            "launch": """
                msda_fwd_kernel[(triton.cdiv(Q, BLOCK_Q), B * M)](
                    value.contiguous(),
                    spatial_shapes.contiguous(),
                    level_start_index.contiguous(),
                    sampling_locations.contiguous(),
                    attention_weights,
                    out,
                    Q,
                    S,
                    M=M,
                    D=D,
                    L=L,
                    K=K,
                    BLOCK_Q=BLOCK_Q,
                    BLOCK_D=BLOCK_D,
                    num_warps=4,
                )
            """
        },
        "The kernel sees an address. What does a view look like from there?",
    ),
    Mistake(
        "when the strides of the table of shapes are forgotten",
        {
            "launch": """
                msda_fwd_kernel[(triton.cdiv(Q, BLOCK_Q), B * M)](
                    value.contiguous(),
                    spatial_shapes,
                    level_start_index.contiguous(),
                    sampling_locations.contiguous(),
                    attention_weights.contiguous(),
                    out,
                    Q,
                    S,
                    M=M,
                    D=D,
                    L=L,
                    K=K,
                    BLOCK_Q=BLOCK_Q,
                    BLOCK_D=BLOCK_D,
                    num_warps=4,
                )
            """
        },
        "Five tensors go in. Each may be a view.",
    ),
    Mistake(
        "when the strides of the table of starts are forgotten",
        {
            "launch": """
                msda_fwd_kernel[(triton.cdiv(Q, BLOCK_Q), B * M)](
                    value.contiguous(),
                    spatial_shapes.contiguous(),
                    level_start_index,
                    sampling_locations.contiguous(),
                    attention_weights.contiguous(),
                    out,
                    Q,
                    S,
                    M=M,
                    D=D,
                    L=L,
                    K=K,
                    BLOCK_Q=BLOCK_Q,
                    BLOCK_D=BLOCK_D,
                    num_warps=4,
                )
            """
        },
        "Five tensors go in. Each may be a view.",
    ),
    Mistake(
        "when S is computed from the shapes",
        {
            "Q": """
                @
                S = int(spatial_shapes.prod(1).sum())
            """
        },
        "value may hold pixels that belong to no level. How far is it to the next batch item?",
    ),
    Mistake(
        "when the levels' starts are computed from the shapes",
        {
            "launch": """
                msda_fwd_kernel[(triton.cdiv(Q, BLOCK_Q), B * M)](
                    value.contiguous(),
                    spatial_shapes.contiguous(),
                    torch.cat([spatial_shapes.new_zeros(1), spatial_shapes.prod(1).cumsum(0)[:-1]]),
                    sampling_locations.contiguous(),
                    attention_weights.contiguous(),
                    out,
                    Q,
                    S,
                    M=M,
                    D=D,
                    L=L,
                    K=K,
                    BLOCK_Q=BLOCK_Q,
                    BLOCK_D=BLOCK_D,
                    num_warps=4,
                )
            """
        },
        "Levels need not lie one after another: level_start_index says where they begin.",
    ),
    Mistake(
        "when L and K are swapped",
        {
            "launch": """
                msda_fwd_kernel[(triton.cdiv(Q, BLOCK_Q), B * M)](
                    value.contiguous(),
                    spatial_shapes.contiguous(),
                    level_start_index.contiguous(),
                    sampling_locations.contiguous(),
                    attention_weights.contiguous(),
                    out,
                    Q,
                    S,
                    M=M,
                    D=D,
                    L=K,
                    K=L,
                    BLOCK_Q=BLOCK_Q,
                    BLOCK_D=BLOCK_D,
                    num_warps=4,
                )
            """
        },
        "sampling_locations is (B, Q, M, L, K, 2).",
    ),
    Mistake(
        "when M and D are swapped",
        {
            "launch": """
                msda_fwd_kernel[(triton.cdiv(Q, BLOCK_Q), B * M)](
                    value.contiguous(),
                    spatial_shapes.contiguous(),
                    level_start_index.contiguous(),
                    sampling_locations.contiguous(),
                    attention_weights.contiguous(),
                    out,
                    Q,
                    S,
                    M=D,
                    D=M,
                    L=L,
                    K=K,
                    BLOCK_Q=BLOCK_Q,
                    BLOCK_D=BLOCK_D,
                    num_warps=4,
                )
            """
        },
        "value is (B, S, M, D).",
    ),
    Mistake(
        "when BLOCK_D is 32, whatever D is",
        {"BLOCK_Q": "BLOCK_Q, BLOCK_D = 16, 32"},
        "All channels must fit. What does your kernel do with channel 32 of 33?",
    ),
    Mistake(
        "when nobody's strides are looked at",
        {"launch": _launched()},
        "The kernel sees addresses. What does a view look like from there?",
    ),
    Mistake(
        "when only value's strides are looked at",
        {"launch": _launched("value")},
        "The caller's other tensors may be views as well, and the kernel sees addresses.",
    ),
]


MSDA_FWD_LOGITS_KERNEL: list[Mistake] = [
    Mistake(
        "when the largest logit is not subtracted",
        {"higher": "higher = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)"},
        "exp(100) is more than float32 holds. Softmax does not change when the same number is taken from all.",
    ),
    Mistake(
        "when the result is not divided by the sum",
        {"store": "tl.store(out_ptr + row[:, None] * D + offs_d[None, :], acc, mask=mask_out)"},
        "The weights of a query add up to one.",
    ),
    Mistake(
        "when the sum so far is not corrected for a higher peak",
        {"total": "total = total + a"},
        "What was added before was measured against a lower peak.",
    ),
    Mistake(
        "when the result so far is not corrected for a higher peak",
        {"acc": "acc = acc"},
        "The sum is corrected. What was added to the result has the same flaw.",
    ),
    Mistake(
        "when each level has a softmax of its own",
        {
            "H": """
                done = acc
                acc = tl.zeros_like(acc)
                peak = tl.full([BLOCK_Q, BLOCK_D], float('-inf'), tl.float32)
                total = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)
                @
            """,
            "each_k": """
                @
                acc = done + acc / total
            """,
            "store": "tl.store(out_ptr + row[:, None] * D + offs_d[None, :], acc, mask=mask_out)",
        },
        "The points of all levels compete with each other.",
    ),
    Mistake(
        "when logits are used as weights",
        {
            "acc": "acc = acc",
            "acc_2": "acc += (logit * weight)[:, None] * v",
            "store": "tl.store(out_ptr + row[:, None] * D + offs_d[None, :], acc, mask=mask_out)",
        },
        "Softmax first: exp, and divided by the sum.",
    ),
    Mistake(
        "when powers of two are taken in place of exp",
        {"shrink": "shrink = tl.exp2(peak - higher)", "a": "a = tl.exp2(logit[:, None] - higher)"},
        "exp2 is faster, but its logits must be multiplied by log2(e) first.",
    ),
    Mistake(
        "when the largest logit of all queries is subtracted",
        {"higher": "higher = tl.maximum(peak, tl.max(logit, axis=0))"},
        "Each query has a softmax of its own. What is left of exp where another query's logits are 200 larger?",
    ),
    Mistake(
        "when each level is divided by a sum of its own, at the end",
        {
            "H": """
                total = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)
                @
            """
        },
        "The points of all levels compete with each other: one sum for all.",
    ),
]

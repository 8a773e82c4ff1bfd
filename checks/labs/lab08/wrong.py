"""Lab 08, Concurrent writes: the wrong answers that are known."""

import torch

from checks.core.exercise import Mistake
from msda_core import reference

ONE_SPEAKS = "The total is known to every lane that shares a place. How many of them should add it?"


# --- deterministic_sum ----------------------------------------------------------------------------------------------


def _in_units(index, weight, size, *, bits=40, shared=False, fixed=None):
    """The right answer, and by its options the wrong ones."""
    largest = torch.zeros(size, dtype=torch.float64).scatter_reduce(0, index, weight.double().abs(), "amax")
    if shared:
        largest = largest.amax().expand(size)
    unit = torch.where(largest > 0, largest / torch.frexp(largest).mantissa, 1.0) * 2.0**-bits
    if fixed is not None:
        unit = torch.full_like(unit, fixed)
    whole = (weight.double() / unit[index]).round().long()
    return (torch.zeros(size, dtype=torch.int64).index_add(0, index, whole).double() * unit).float()


def _replaced(index, weight, size):
    out = torch.zeros(size)
    for place, what in zip(index.tolist(), weight.tolist()):
        out[place] = what
    return out


def _averaged(index, weight, size):
    return _in_units(index, weight, size) / torch.bincount(index, minlength=size).clamp(min=1)


DETERMINISTIC_SUM = [
    Mistake(
        "when float32 numbers are added in the order in which they come",
        lambda index, weight, size: torch.zeros(size).index_add(0, index, weight),
        "Each addition rounds, so the sum depends on who comes first. Of which numbers does it not depend on that?",
    ),
    Mistake(
        "when float64 only makes the differences rarer",
        lambda index, weight, size: torch.zeros(size, dtype=torch.float64).index_add(0, index, weight.double()).float(),
        "More bits round later, and round all the same: where large weights cancel, the order shows. What kind of addition "
        "never rounds?",
    ),
    Mistake(
        "when all places share one unit, and an outlier makes it coarse",
        lambda index, weight, size: _in_units(index, weight, size, shared=True),
        "The unit fits the largest weight of all. What is it to a place whose own weights are a million times smaller?",
    ),
    Mistake(
        "when the unit is 2^-32 whatever the weights are, and a sum passes 2^63",
        lambda index, weight, size: _in_units(index, weight, size, fixed=2.0**-32),
        "How many units is a weight of a million? And five thousand of them?",
    ),
    Mistake(
        "when the unit leaves no room for the sum of many",
        lambda index, weight, size: _in_units(index, weight, size, bits=62),
        "One weight just fits. How many bits more does the sum of thousands need?",
    ),
    Mistake(
        "when a place keeps the last of its weights",
        _replaced,
        "A place that comes twice gets both.",
    ),
    Mistake(
        "when a place gets the mean of its weights",
        _averaged,
        "A sum is asked for. Who divides by how many there are?",
    ),
    Mistake(
        "when the weights are sorted, and then added in float32",
        lambda index, weight, size: (lambda order: torch.zeros(size).index_add(0, index[order], weight[order]))(
            weight.sort().indices
        ),
        "The same bits every time, and far from the sum: thousands of roundings may all go the same way. How many bits does "
        "a sum of N numbers need?",
    ),
    Mistake(
        "when the unit is 2^-24 whatever the weights are",
        lambda index, weight, size: _in_units(index, weight, size, fixed=2.0**-24),
        "What is left of a weight of a millionth, and how many units is one of 1e12?",
    ),
]


BWD_MISTAKES = [
    Mistake(
        "when the additions are ordered, as they are unless one says otherwise",
        {"atomic_add": "tl.atomic_add(grad_value_ptr + offs, share, mask=mask)"},
        "Nobody reads grad_value before the kernel has ended. How much of an order do the additions need? Look for `sem`.",
    ),
    Mistake(
        "when each gradient is stored by an instruction of its own",
        {
            "store": """
                for p in range(L * K):
                    tl.store(grad_attn_ptr + point, grad_a.to(grad_attn_ptr.dtype.element_ty), mask=offs_p == p)
            """,
            "store_2": """
                for p in range(L * K):
                    tl.store(grad_loc_ptr + 2 * point, (a * W * grad_x).to(grad_loc_ptr.dtype.element_ty), mask=offs_p == p)
            """,
            "store_3": """
                for p in range(L * K):
                    tl.store(grad_loc_ptr + 2 * point + 1, (a * H * grad_y).to(grad_loc_ptr.dtype.element_ty), mask=offs_p == p)
            """,
        },
        "The points of a row lie side by side in memory. Compute a block of them, then store the block.",
    ),
    Mistake(
        "when the shares are stored instead of added",
        {"atomic_add": "tl.store(grad_value_ptr + offs, share, mask=mask)"},
        "Another point may have put its share into the same pixel. What must happen to it?",
    ),
    Mistake(
        "when grad_value is read, added to and written back",
        {
            "atomic_add": """
                old = tl.load(grad_value_ptr + offs, mask=mask, other=0.0).to(tl.float32)
                tl.store(grad_value_ptr + offs, (old + share).to(grad_value_ptr.dtype.element_ty), mask=mask)
            """
        },
        "It is the racy histogram again: between the read and the write, another point's share is lost.",
    ),
    Mistake(
        "when grad_attn is added to as well, where a store would do",
        {
            "store": 'tl.atomic_add(grad_attn_ptr + point, grad_a.to(grad_attn_ptr.dtype.element_ty), mask=mask_p, sem="relaxed")'
        },
        "How many programs have something to say about one element of grad_attn? And what is in it before they speak?",
    ),
    Mistake(
        "when grad_loc is added to as well, where a store would do",
        {
            "store_2": 'tl.atomic_add(grad_loc_ptr + 2 * point, (a * W * grad_x).to(grad_loc_ptr.dtype.element_ty), mask=mask_p, sem="relaxed")',
            "store_3": 'tl.atomic_add(grad_loc_ptr + 2 * point + 1, (a * H * grad_y).to(grad_loc_ptr.dtype.element_ty), mask=mask_p, sem="relaxed")',
        },
        "How many programs have something to say about one element of grad_loc? And what is in it before they speak?",
    ),
    Mistake(
        "when shares are added without a mask",
        {"atomic_add": 'tl.atomic_add(grad_value_ptr + offs, share, sem="relaxed")'},
        "A pixel outside does not exist, and a lane past D is the next head's channel.",
    ),
    Mistake(
        "when value is read without a mask",
        {"v": "v = tl.load(value_ptr + offs).to(tl.float32)"},
        "A pixel outside does not exist.",
    ),
    Mistake(
        "when points left and right of the image are not masked",
        {"inside": "inside = mask_p & (yj >= 0) & (yj < H)"},
        "Left of the first pixel of a row lies, in memory, the last pixel of the row above.",
    ),
    Mistake(
        "when points above and below the image are not masked",
        {"inside": "inside = mask_p & (xi >= 0) & (xi < W)"},
        "Above the first row lies, in memory, another level, or another image, or nothing at all.",
    ),
    Mistake(
        "when points that are partly outside are left out",
        {"inside": "inside = mask_p & (x >= 0) & (x < W - 1) & (y >= 0) & (y < H - 1)"},
        "Ask it of each of the four pixels, not of the point.",
    ),
    Mistake(
        "when the gradients of points outside are not written",
        {
            "store": "tl.store(grad_attn_ptr + point, grad_a.to(grad_attn_ptr.dtype.element_ty), mask=mask_p & near)",
            "store_2": "tl.store(grad_loc_ptr + 2 * point, (a * W * grad_x).to(grad_loc_ptr.dtype.element_ty), mask=mask_p & near)",
            "store_3": "tl.store(grad_loc_ptr + 2 * point + 1, (a * H * grad_y).to(grad_loc_ptr.dtype.element_ty), mask=mask_p & near)",
        },
        "Their gradients are zero, and a zero has to be written too: nobody has cleared the memory.",
    ),
    Mistake(
        "when x and y of grad_loc are swapped",
        {
            "store_2": "tl.store(grad_loc_ptr + 2 * point + 1, (a * W * grad_x).to(grad_loc_ptr.dtype.element_ty), mask=mask_p)",
            "store_3": "tl.store(grad_loc_ptr + 2 * point, (a * H * grad_y).to(grad_loc_ptr.dtype.element_ty), mask=mask_p)",
        },
        "The last axis of the locations is (x, y), and so is that of their gradients.",
    ),
    Mistake(
        "when the slopes along x and y change places, but not the sizes",
        {
            "store_2": "tl.store(grad_loc_ptr + 2 * point, (a * W * grad_y).to(grad_loc_ptr.dtype.element_ty), mask=mask_p)",
            "store_3": "tl.store(grad_loc_ptr + 2 * point + 1, (a * H * grad_x).to(grad_loc_ptr.dtype.element_ty), mask=mask_p)",
        },
        "W pixels lie along x, and so does the slope that W belongs to.",
    ),
    Mistake(
        "when the size of the level is left out of grad_loc",
        {
            "store_2": "tl.store(grad_loc_ptr + 2 * point, (a * grad_x).to(grad_loc_ptr.dtype.element_ty), mask=mask_p)",
            "store_3": "tl.store(grad_loc_ptr + 2 * point + 1, (a * grad_y).to(grad_loc_ptr.dtype.element_ty), mask=mask_p)",
        },
        "The slope is per pixel. How many pixels does a location move when it moves by one?",
    ),
    Mistake(
        "when H and W are swapped in grad_loc",
        {
            "store_2": "tl.store(grad_loc_ptr + 2 * point, (a * H * grad_x).to(grad_loc_ptr.dtype.element_ty), mask=mask_p)",
            "store_3": "tl.store(grad_loc_ptr + 2 * point + 1, (a * W * grad_y).to(grad_loc_ptr.dtype.element_ty), mask=mask_p)",
        },
        "A step of x crosses the width.",
    ),
    Mistake(
        "when grad_loc leaves out the attention weight",
        {
            "store_2": "tl.store(grad_loc_ptr + 2 * point, (W * grad_x).to(grad_loc_ptr.dtype.element_ty), mask=mask_p)",
            "store_3": "tl.store(grad_loc_ptr + 2 * point + 1, (H * grad_y).to(grad_loc_ptr.dtype.element_ty), mask=mask_p)",
        },
        "A point that hardly counts can hardly change the result by moving.",
    ),
    Mistake(
        "when the attention weight is part of grad_attn",
        {"grad_a": "grad_a += a * wx * wy * dot"},
        "The result is weight times sample. Its slope in the weight is what is left when the weight is taken away.",
    ),
    Mistake(
        "when grad_value leaves out the attention weight",
        {"share": "share = ((wx * wy)[:, None] * g[None, :]).to(grad_value_ptr.dtype.element_ty)"},
        "A pixel's share is how much it counted in the result: two factors, the corner's and the point's.",
    ),
    Mistake(
        "when grad_value leaves out the corner's weight",
        {"share": "share = ((a + 0 * wx)[:, None] * g[None, :]).to(grad_value_ptr.dtype.element_ty)"},
        "The four pixels do not get the same: nearer ones counted for more.",
    ),
    Mistake(
        "when the slope adds the two sides instead of subtracting one",
        {"grad_x": "grad_x += wy * dot", "grad_y": "grad_y += wx * dot"},
        "When the point moves right, the right pixels weigh more and the left ones less.",
    ),
    Mistake(
        "when the slope along x adds the two sides instead of subtracting one",
        {"grad_x": "grad_x += wy * dot"},
        "When the point moves right, the right pixels weigh more and the left ones less.",
    ),
    Mistake(
        "when the slope along y adds the two sides instead of subtracting one",
        {"grad_y": "grad_y += wx * dot"},
        "When the point moves down, the lower pixels weigh more and the upper ones less.",
    ),
    Mistake(
        "when all four pixels are taken from the left column",
        {"xi": "xi = x0"},
        "Two of the four lie at x0, the other two one further right.",
    ),
    Mistake(
        "when grad_value is weighed along x only",
        {"share": "share = ((a * wx)[:, None] * g[None, :]).to(grad_value_ptr.dtype.element_ty)"},
        "A corner's weight has two factors.",
    ),
    Mistake(
        "when grad_out is left out of the dot product",
        {"dot": "dot = tl.sum(v, axis=1)"},
        "How the loss depends on the sample is what grad_out says, channel by channel.",
    ),
    Mistake(
        "when the slope has the wrong sign",
        {"grad_x": "grad_x += (-wy if i else wy) * dot", "grad_y": "grad_y += (-wx if j else wx) * dot"},
        "When the point moves right, the right pixels weigh more.",
    ),
    Mistake(
        "when the slope along x is weighed along x, not along y",
        {"grad_x": "grad_x += (wx if i else -wx) * dot", "grad_y": "grad_y += (wy if j else -wy) * dot"},
        "Hold y and move x: which of the two factors of a corner's weight changes, and which stays?",
    ),
    Mistake(
        "when a point on a pixel takes the slope to its left",
        {"x0": "x0 = tl.ceil(x).to(tl.int32) - 1", "y0": "y0 = tl.ceil(y).to(tl.int32) - 1"},
        "Both are slopes. Everybody's kernels round down, and so take the one to the right.",
    ),
    Mistake(
        "when coordinates are cut off instead of rounded down",
        {"x0": "x0 = x.to(tl.int32)", "y0": "y0 = y.to(tl.int32)"},
        "What is -0.3, rounded down?",
    ),
    Mistake(
        "when a location that is not a number gets a gradient that is none either",
        {"x_2": "", "y_2": ""},
        "Zero times something that is not a number is not a number. Move such a point away before you compute with it.",
    ),
    Mistake(
        "when the half pixel is forgotten",
        {"x": "x = x * W", "y": "y = y * H"},
        "Location 0 is the edge of the first pixel, not its centre.",
    ),
    Mistake(
        "when H and W are swapped",
        {
            "H": "H = tl.load(shapes_ptr + 2 * (offs_p // K) + 1, mask=mask_p, other=0).to(tl.int32)",
            "W": "W = tl.load(shapes_ptr + 2 * (offs_p // K), mask=mask_p, other=0).to(tl.int32)",
        },
        "A row of the shapes is (H, W).",
    ),
    Mistake(
        "when every level begins at pixel 0",
        {"pixel": "pixel = b * S + yj * W + xi"},
        "Level 1 has pixels of its own. The starts say where.",
    ),
    Mistake(
        "when the level is taken from the wrong part of the point's number",
        {
            "H": "H = tl.load(shapes_ptr + 2 * (offs_p % L), mask=mask_p, other=0).to(tl.int32)",
            "W": "W = tl.load(shapes_ptr + 2 * (offs_p % L) + 1, mask=mask_p, other=0).to(tl.int32)",
            "start": "start = tl.load(starts_ptr + offs_p % L, mask=mask_p, other=0)",
        },
        "The points of a row are K of level 0, then K of level 1. Which level is point number 4, if K is 3?",
    ),
    Mistake(
        "when all heads share the first one's pixels",
        {"offs": "offs = (pixel * M)[:, None] * D + offs_d[None, :]"},
        "A pixel holds M heads, one after another.",
    ),
    Mistake(
        "when all images share the first one's pixels",
        {"pixel": "pixel = start + yj * W + xi"},
        "Image b begins b * S pixels after the first.",
    ),
    Mistake(
        "when the image is found as if every image had one query",
        {"b": "b = row // M"},
        "Row number (b * Q + q) * M + m. How many rows does one image have?",
    ),
    Mistake(
        "when the image is found as if a pixel had one head",
        {"b": "b = row // Q"},
        "Row number (b * Q + q) * M + m. How many rows does one image have?",
    ),
    Mistake(
        "when the head is what is left of the row by division, not by remainder",
        {"m": "m = row // M"},
        "Row number (b * Q + q) * M + m: the heads are what changes fastest.",
    ),
    Mistake(
        "when the rows of grad_out lie BLOCK_D apart",
        {"g": "g = tl.load(grad_out_ptr + row * BLOCK_D + offs_d, mask=mask_d, other=0.0).to(tl.float32)"},
        "In memory a row has D channels, not as many as the block that holds them.",
    ),
    Mistake(
        "when the rows of points lie BLOCK_P apart",
        {"point": "point = row * BLOCK_P + offs_p"},
        "In memory a row has L * K points, not as many as the block that holds them.",
    ),
    Mistake(
        "when every row reads the first query's grad_out",
        {"g": "g = tl.load(grad_out_ptr + m * D + offs_d, mask=mask_d, other=0.0).to(tl.float32)"},
        "`grad_out` has one row of D channels for each row, and they are counted alike.",
    ),
    Mistake(
        "when the pixels of a head are taken to lie side by side",
        {"offs": "offs = (m * S + pixel)[:, None] * D + offs_d[None, :]"},
        "value is (B, S, M, D): a pixel holds M heads, one after another.",
    ),
    Mistake(
        "when grad_attn leaves out the corner's weight",
        {"grad_a": "grad_a += dot"},
        "What the weight multiplies is the sample: four pixels, each by its own weight.",
    ),
    Mistake(
        "when grad_value has the attention weight twice",
        {"share": "share = ((a * a * wx * wy)[:, None] * g[None, :]).to(grad_value_ptr.dtype.element_ty)"},
        "Once is enough: does the g you multiply by hold it already?",
    ),
    Mistake(
        "when grad_loc is scaled by size - 1",
        {
            "store_2": "tl.store(grad_loc_ptr + 2 * point, (a * (W - 1) * grad_x).to(grad_loc_ptr.dtype.element_ty), mask=mask_p)",
            "store_3": "tl.store(grad_loc_ptr + 2 * point + 1, (a * (H - 1) * grad_y).to(grad_loc_ptr.dtype.element_ty), mask=mask_p)",
        },
        "The coordinate is location times W, minus a half. What is its slope?",
    ),
    Mistake(
        "when grad_loc is twice as large",
        {
            "store_2": "tl.store(grad_loc_ptr + 2 * point, (2 * a * W * grad_x).to(grad_loc_ptr.dtype.element_ty), mask=mask_p)",
            "store_3": "tl.store(grad_loc_ptr + 2 * point + 1, (2 * a * H * grad_y).to(grad_loc_ptr.dtype.element_ty), mask=mask_p)",
        },
        "Locations run from 0 to 1, not from -1 to 1.",
    ),
    Mistake(
        "when points less than half a pixel inside, or half a pixel outside, are left out",
        {"near": "near = (x >= 0) & (x < W) & (y >= 0) & (y < H)"},
        "At x = -0.3 the pixel at 0 still counts for 0.7. From where on is there none at all?",
    ),
    Mistake(
        "when a point exactly a pixel before the first has no slope",
        {"near": "near = (x > -1) & (x < W) & (y > -1) & (y < H)"},
        "At x = -1 pixel 0 weighs nothing yet. A little to the right it does. So what is the slope to the right?",
    ),
    Mistake(
        "when locations that are no number are moved away, but infinite ones are not",
        {"near": "near = (x == x) & (y == y)"},
        "Infinity minus its own floor is not a number either, and what is beyond 2^31 has no int32. Let through only what "
        "lies near the image.",
    ),
    Mistake(
        "when the nearest pixel is taken for the one to the left and above",
        {"x0": "x0 = tl.floor(x + 0.5).to(tl.int32)", "y0": "y0 = tl.floor(y + 0.5).to(tl.int32)"},
        "The cell of x = 2.7 begins at 2.",
    ),
    Mistake(
        "when elements are counted in 32 bits",
        {"row": "row = tl.program_id(0)"},
        "A program id is an int32, and so are its multiples. How many elements lie before image b?",
    ),
    Mistake(
        "when lanes past D are not masked",
        {"mask": "mask = inside[:, None] & (offs_d >= 0)[None, :]"},
        "BLOCK_D is the next power of two after D. Whose channels are the lanes in between?",
    ),
    Mistake(
        "when lanes past the last point are stored",
        {
            "store": "tl.store(grad_attn_ptr + point, grad_a.to(grad_attn_ptr.dtype.element_ty))",
            "store_2": "tl.store(grad_loc_ptr + 2 * point, (a * W * grad_x).to(grad_loc_ptr.dtype.element_ty))",
            "store_3": "tl.store(grad_loc_ptr + 2 * point + 1, (a * H * grad_y).to(grad_loc_ptr.dtype.element_ty))",
        },
        "BLOCK_P is the next power of two after L * K. Whose points are the lanes in between?",
    ),
    Mistake(
        "when sixteen-bit numbers are multiplied as they are",
        {
            "g": "g = tl.load(grad_out_ptr + row * D + offs_d, mask=mask_d, other=0.0)",
            "v": "v = tl.load(value_ptr + offs, mask=mask, other=0.0)",
        },
        "The product of two sixteen-bit numbers has more digits than sixteen bits hold. Cast what you load.",
    ),
    Mistake(
        "when the products with value are taken in value's dtype",
        {
            "v": "v = tl.load(value_ptr + offs, mask=mask, other=0.0)",
            "dot": "dot = tl.sum((v * g.to(v.dtype)[None, :]).to(tl.float32), axis=1)",
        },
        "A product that is rounded to sixteen bits stays rounded, whatever it is cast to afterwards. Cast what you load.",
    ),
    Mistake(
        "when the derivative of a softmax is taken of grad_attn as well",
        {"store": "grad_a = a * (grad_a - tl.sum(a * grad_a, axis=0))\n@"},
        "The weights come as they are. Who made them with a softmax differentiates it, and that is not this kernel.",
    ),
    Mistake(
        "when the slope down takes its sign from left and right",
        {"grad_y": "grad_y += (wx if i else -wx) * dot"},
        "Along y the lower pixels count with plus and the upper ones with minus. Which of i and j says lower?",
    ),
    Mistake(
        "when every level is taken to begin after as many levels of its own size",
        {"start": "start = H * W * (offs_p // K)"},
        "The levels before have sizes of their own, and there may be gaps. starts_ptr says where each one begins.",
    ),
    Mistake(
        "when the points of a level are taken to be L",
        {
            "H": "H = tl.load(shapes_ptr + 2 * (offs_p // L), mask=mask_p, other=0).to(tl.int32)",
            "W": "W = tl.load(shapes_ptr + 2 * (offs_p // L) + 1, mask=mask_p, other=0).to(tl.int32)",
            "start": "start = tl.load(starts_ptr + offs_p // L, mask=mask_p, other=0)",
        },
        "A level has K points: how many come before point 0 of level 1?",
    ),
]


ALIKE = "The gradient of a tensor has that tensor's shape and dtype."
POWER = "A block's length is a power of two. There is a function that finds the next one."


HISTOGRAM_KERNEL: list[Mistake] = [
    Mistake(
        "when every lane reads its count, adds one and writes it back",
        {
            "histogram_kernel": """
                offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
                mask = offs < N
                index = tl.load(index_ptr + offs, mask=mask, other=0)
                count = tl.load(hist_ptr + index, mask=mask, other=0)
                tl.store(hist_ptr + index, count + 1, mask=mask)
            """
        },
        "Between the read and the write somebody else may have read the same count. What is there that reads, adds "
        "and writes in one step?",
    ),
    Mistake(
        "when a block counts its own indices, but reads and writes the counts in two steps",
        {
            "atomic_add": """
                same = (index[:, None] == index[None, :]) & mask[None, :]
                count = tl.load(hist_ptr + index, mask=mask, other=0) + tl.sum(same.to(tl.int32), axis=1)
                tl.store(hist_ptr + index, count, mask=mask)
            """
        },
        "Inside a block nothing is lost any more. Another program reads and writes the same counts at the same time.",
    ),
    Mistake(
        "when a block counts its own indices, then reads the counts and exchanges them for the new ones",
        {
            "atomic_add": """
                same = (index[:, None] == index[None, :]) & mask[None, :]
                count = tl.load(hist_ptr + index, mask=mask, other=0) + tl.sum(same.to(tl.int32), axis=1)
                tl.atomic_xchg(hist_ptr + index, count, mask=mask)
            """
        },
        "The exchange is one step, but the read before it is another. Which atomic reads, adds and writes at once?",
    ),
    Mistake(
        "when what was read is added on top of what is there",
        {
            "atomic_add": """
                count = tl.load(hist_ptr + index, mask=mask, other=0)
                tl.atomic_add(hist_ptr + index, count + 1, mask=mask)
            """
        },
        "The atomic reads for itself. It wants to know only how much to add.",
    ),
    Mistake(
        "when index 0 is taken for a lane without an index",
        {"atomic_add": 'tl.atomic_add(hist_ptr + index, 1, mask=mask & (index > 0), sem="relaxed")'},
        "0 is an index like the others. Which lanes have none, the mask knows.",
    ),
    Mistake(
        "when one is stored instead of added",
        {"atomic_add": "tl.store(hist_ptr + index, 1, mask=mask)"},
        "What was counted before is gone. Which operation leaves it there and adds to it?",
    ),
    Mistake(
        "when lanes past N are counted too",
        {"atomic_add": 'tl.atomic_add(hist_ptr + index, 1, sem="relaxed")'},
        "A lane without an index still holds one, the `other` of its load. Does it take part in the addition?",
    ),
    Mistake(
        "when the load of the indices has no mask",
        {"index": "index = tl.load(index_ptr + offs)"},
        "The last program has lanes for indices that do not exist.",
    ),
    Mistake(
        "when the mask lets one lane too many through",
        {"mask": "mask = offs <= N"},
        "The last index has number N - 1.",
    ),
    Mistake(
        "when every program counts the first block",
        {"offs": "offs = 0 * BLOCK + tl.arange(0, BLOCK)"},
        "All programs run the same code. What differs between them?",
    ),
    Mistake(
        "when the program id is not multiplied by BLOCK",
        {"offs": "offs = tl.program_id(0) + tl.arange(0, BLOCK)"},
        "Program 1 begins where program 0 ends.",
    ),
    Mistake(
        "when the last block, which is not full, is left out",
        {"mask": "mask = offs < N // BLOCK * BLOCK"},
        "The indices after the last full block count as well.",
    ),
    Mistake(
        "when the index itself is added",
        {"atomic_add": 'tl.atomic_add(hist_ptr + index, index, mask=mask, sem="relaxed")'},
        "Where to add is the index. How much to add is one.",
    ),
    Mistake(
        "when the lane's own number is counted instead of its index",
        {"atomic_add": 'tl.atomic_add(hist_ptr + offs % 5, 1, mask=mask, sem="relaxed")'},
        "The place to add to is what was loaded.",
    ),
    Mistake(
        "when two are added for each index",
        {"atomic_add": 'tl.atomic_add(hist_ptr + index, 2, mask=mask, sem="relaxed")'},
        "An index that occurs once counts once.",
    ),
    Mistake(
        "when one is exchanged for the count",
        {"atomic_add": "tl.atomic_xchg(hist_ptr + index, 1, mask=mask)"},
        "What was counted before is gone. Which atomic leaves it there and adds to it?",
    ),
    Mistake(
        "when the counts begin at zero",
        {
            "atomic_add": """
                tl.store(hist_ptr + index, 0, mask=mask)
                @
            """
        },
        "hist holds counts already, and other programs may have added to them.",
    ),
]


MERGE_THEN_ADD_KERNEL: list[Mistake] = [
    Mistake(
        "when every lane adds its own weight",
        {"atomic_add": "tl.atomic_add(out_ptr + index, weight, mask=mask)"},
        "The result is right, and lanes that share a place queue up there. Add them up before they leave the program.",
    ),
    Mistake(
        "when the merged total is read, added to and written back",
        {
            "atomic_add": """
                mask = mask & (first == lane)
                total += tl.load(out_ptr + index, mask=mask, other=0.0)
                tl.store(out_ptr + index, total, mask=mask)
            """
        },
        "Inside the block nobody meets any more. Other programs still do.",
    ),
    Mistake(
        "when the merged total is added to what was read, and exchanged for it",
        {
            "atomic_add": """
                mask = mask & (first == lane)
                total += tl.load(out_ptr + index, mask=mask, other=0.0)
                tl.atomic_xchg(out_ptr + index, total, mask=mask)
            """
        },
        "The exchange is one step, but the read before it is another. Which atomic reads, adds and writes at once?",
    ),
    Mistake(
        "when each row of the square sums its own lane's weight, not those of the others",
        {"total": "total = tl.sum(tl.where(same, weight[:, None], 0.0), axis=1)"},
        "Row n of the square is lane n, and its columns are all lanes. Along which axis must the weights lie, and "
        "along which are they summed?",
    ),
    Mistake(
        "when only the group of the first lane adds",
        {"atomic_add": 'tl.atomic_add(out_ptr + index, total, mask=mask & (first == 0), sem="relaxed")'},
        "In each group the first of that group speaks: lane n, if n is the first in its own row.",
    ),
    Mistake(
        "when the lanes past N speak for a group of their own",
        {"atomic_add": 'tl.atomic_add(out_ptr + index, total, mask=first == lane, sem="relaxed")'},
        "They hold no pair, so they add nothing, however they are grouped.",
    ),
    Mistake(
        "when only what is above zero is added",
        {"atomic_add": 'tl.atomic_add(out_ptr + index, total, mask=(first == lane) & (total > 0), sem="relaxed")'},
        "A weight may be below zero. Which lanes have a pair, the mask knows.",
    ),
    Mistake(
        "when the merged total is stored",
        {"atomic_add": "tl.store(out_ptr + index, total, mask=mask & (first == lane))"},
        "Other programs, and whoever came before, have put something there already.",
    ),
    Mistake(
        "when every lane adds the total",
        {"atomic_add": 'tl.atomic_add(out_ptr + index, total, mask=mask, sem="relaxed")'},
        ONE_SPEAKS,
    ),
    Mistake(
        "when one lane of each place adds, but only its own weight",
        {"atomic_add": 'tl.atomic_add(out_ptr + index, weight, mask=mask & (first == lane), sem="relaxed")'},
        "One lane speaks for all that share its place. What does it have to say?",
    ),
    Mistake(
        "when only neighbouring lanes are merged",
        {
            "same": """
                near = (lane[:, None] // 2) == (lane[None, :] // 2)
                same = (index[:, None] == index[None, :]) & near
            """
        },
        "The indices are not sorted: lanes that share a place may be far apart.",
    ),
    Mistake(
        "when lanes are counted instead of their weights added",
        {"total": "total = tl.sum(tl.where(same, 1.0, 0.0), axis=1)"},
        "Each lane brings a weight.",
    ),
    Mistake(
        "when lanes past N add as well",
        {
            "index": "index = tl.load(index_ptr + offs, mask=mask, other=0)",
            "weight": "weight = tl.load(weight_ptr + offs, mask=mask, other=1.0)",
            "atomic_add": 'tl.atomic_add(out_ptr + index, total, mask=(first == lane), sem="relaxed")',
        },
        "A lane without a pair still holds the `other` of its loads. Give it a weight and an index that do no harm, "
        "and leave it out of the addition.",
    ),
    Mistake(
        "when lanes past N read their index",
        {"index": "index = tl.load(index_ptr + offs)"},
        "The last program has lanes for pairs that do not exist.",
    ),
    Mistake(
        "when the whole block is added at the first lane's place",
        {"same": "same = index[:, None] >= -9 + 0 * index[None, :]"},
        "A lane belongs to those that hold the same index. Compare every lane with every other.",
    ),
    Mistake(
        "when the program id is not multiplied by BLOCK",
        {"offs": "offs = tl.program_id(0) + lane"},
        "Program 1 begins where program 0 ends.",
    ),
    Mistake(
        "when lanes meet their neighbours only",
        {"same": "same = (index[:, None] == index[None, :]) & (tl.abs(lane[:, None] - lane[None, :]) < 2)"},
        "Lanes that share a place may stand anywhere in the block.",
    ),
    Mistake(
        "when a lane is compared with itself and those after it only",
        {"same": "same = (index[:, None] == index[None, :]) & (lane[:, None] <= lane[None, :])"},
        "Who is the first of a group, a lane can only say if it has looked at those before it.",
    ),
    Mistake(
        "when the mean of the weights is added",
        {
            "total": """
                @
                total = total / tl.sum(same.to(tl.float32), axis=1)
            """
        },
        "A place gets the sum of its weights.",
    ),
]


MSDA_BWD_KERNEL: list[Mistake] = BWD_MISTAKES


MSDA_BACKWARD: list[Mistake] = [
    Mistake(
        "when grad_value begins with whatever is in memory",
        {"grad_value": "grad_value = value.new_empty(value.shape)"},
        "Your kernel adds to it. What must be in there before the first addition?",
    ),
    Mistake(
        "when no kernel is launched",
        lambda grad_out, *inputs: reference.msda_gradients(*(t.contiguous() for t in inputs), grad_out),
        "You have the kernel: prepare its arguments and launch it.",
    ),
    Mistake(
        "when grad_out is passed with its strides",
        {
            "launch": """
                msda_bwd_kernel[(B * Q * M,)](
                    grad_out,
                    value.contiguous(),
                    spatial_shapes.contiguous(),
                    level_start_index.contiguous(),
                    sampling_locations.contiguous(),
                    attention_weights.contiguous(),
                    grad_value,
                    grad_loc,
                    grad_attn,
                    Q,
                    S,
                    M=M,
                    D=D,
                    L=L,
                    K=K,
                    BLOCK_P=triton.next_power_of_2(L * K),
                    BLOCK_D=triton.next_power_of_2(D),
                    num_warps=2,
                )
            """
        },
        "The kernel gets an address and no strides: it takes for granted that the elements lie one after another.",
    ),
    Mistake(
        "when value is passed with its strides",
        {
            "launch": """
                msda_bwd_kernel[(B * Q * M,)](
                    grad_out.contiguous(),
                    value,
                    spatial_shapes.contiguous(),
                    level_start_index.contiguous(),
                    sampling_locations.contiguous(),
                    attention_weights.contiguous(),
                    grad_value,
                    grad_loc,
                    grad_attn,
                    Q,
                    S,
                    M=M,
                    D=D,
                    L=L,
                    K=K,
                    BLOCK_P=triton.next_power_of_2(L * K),
                    BLOCK_D=triton.next_power_of_2(D),
                    num_warps=2,
                )
            """
        },
        "The kernel gets an address and no strides: it takes for granted that the elements lie one after another.",
    ),
    Mistake(
        "when the gradients have value's strides",
        {"grad_value": "grad_value = torch.zeros_like(value)"},
        "`zeros_like` copies the strides too, and the kernel writes as if there were none.",
    ),
    Mistake(
        "when locations and weights are passed with their strides",
        {
            "launch": """
                msda_bwd_kernel[(B * Q * M,)](
                    grad_out.contiguous(),
                    value.contiguous(),
                    spatial_shapes.contiguous(),
                    level_start_index.contiguous(),
                    sampling_locations,
                    attention_weights,
                    grad_value,
                    grad_loc,
                    grad_attn,
                    Q,
                    S,
                    M=M,
                    D=D,
                    L=L,
                    K=K,
                    BLOCK_P=triton.next_power_of_2(L * K),
                    BLOCK_D=triton.next_power_of_2(D),
                    num_warps=2,
                )
            """
        },
        "The kernel gets an address and no strides: it takes for granted that the elements lie one after another.",
    ),
    Mistake(
        "when the programs of all but the first image are missing",
        {
            "launch": """
                msda_bwd_kernel[(Q * M,)](
                    grad_out.contiguous(),
                    value.contiguous(),
                    spatial_shapes.contiguous(),
                    level_start_index.contiguous(),
                    sampling_locations.contiguous(),
                    attention_weights.contiguous(),
                    grad_value,
                    grad_loc,
                    grad_attn,
                    Q,
                    S,
                    M=M,
                    D=D,
                    L=L,
                    K=K,
                    BLOCK_P=triton.next_power_of_2(L * K),
                    BLOCK_D=triton.next_power_of_2(D),
                    num_warps=2,
                )
            """
        },
        "One program owns one row. How many rows are there, over all images?",
    ),
    Mistake(
        "when the programs of all but the first head are missing",
        {
            "launch": """
                msda_bwd_kernel[(B * Q,)](
                    grad_out.contiguous(),
                    value.contiguous(),
                    spatial_shapes.contiguous(),
                    level_start_index.contiguous(),
                    sampling_locations.contiguous(),
                    attention_weights.contiguous(),
                    grad_value,
                    grad_loc,
                    grad_attn,
                    Q,
                    S,
                    M=M,
                    D=D,
                    L=L,
                    K=K,
                    BLOCK_P=triton.next_power_of_2(L * K),
                    BLOCK_D=triton.next_power_of_2(D),
                    num_warps=2,
                )
            """
        },
        "One program owns one row: one query of one head of one image.",
    ),
    Mistake(
        "when BLOCK_P holds the points of one level only",
        {
            "launch": """
                msda_bwd_kernel[(B * Q * M,)](
                    grad_out.contiguous(),
                    value.contiguous(),
                    spatial_shapes.contiguous(),
                    level_start_index.contiguous(),
                    sampling_locations.contiguous(),
                    attention_weights.contiguous(),
                    grad_value,
                    grad_loc,
                    grad_attn,
                    Q,
                    S,
                    M=M,
                    D=D,
                    L=L,
                    K=K,
                    BLOCK_P=triton.next_power_of_2(K),
                    BLOCK_D=triton.next_power_of_2(D),
                    num_warps=2,
                )
            """
        },
        "A row has points on every level.",
    ),
    Mistake(
        "when BLOCK_P is no power of two",
        {
            "launch": """
                msda_bwd_kernel[(B * Q * M,)](
                    grad_out.contiguous(),
                    value.contiguous(),
                    spatial_shapes.contiguous(),
                    level_start_index.contiguous(),
                    sampling_locations.contiguous(),
                    attention_weights.contiguous(),
                    grad_value,
                    grad_loc,
                    grad_attn,
                    Q,
                    S,
                    M=M,
                    D=D,
                    L=L,
                    K=K,
                    BLOCK_P=L * K,
                    BLOCK_D=triton.next_power_of_2(D),
                    num_warps=2,
                )
            """
        },
        POWER,
    ),
    Mistake(
        "when BLOCK_D is no power of two",
        {
            "launch": """
                msda_bwd_kernel[(B * Q * M,)](
                    grad_out.contiguous(),
                    value.contiguous(),
                    spatial_shapes.contiguous(),
                    level_start_index.contiguous(),
                    sampling_locations.contiguous(),
                    attention_weights.contiguous(),
                    grad_value,
                    grad_loc,
                    grad_attn,
                    Q,
                    S,
                    M=M,
                    D=D,
                    L=L,
                    K=K,
                    BLOCK_P=triton.next_power_of_2(L * K),
                    BLOCK_D=D,
                    num_warps=2,
                )
            """
        },
        POWER,
    ),
    Mistake(
        "with blocks of a size that some model has",
        {
            "launch": """
                msda_bwd_kernel[(B * Q * M,)](
                    grad_out.contiguous(),
                    value.contiguous(),
                    spatial_shapes.contiguous(),
                    level_start_index.contiguous(),
                    sampling_locations.contiguous(),
                    attention_weights.contiguous(),
                    grad_value,
                    grad_loc,
                    grad_attn,
                    Q,
                    S,
                    M=M,
                    D=D,
                    L=L,
                    K=K,
                    BLOCK_P=16,
                    BLOCK_D=64,
                    num_warps=2,
                )
            """
        },
        "A block must hold all points of a row, and all channels: the next power of two of what this call has.",
    ),
    Mistake(
        "with BLOCK_P of a size that some model has",
        {
            "launch": """
                msda_bwd_kernel[(B * Q * M,)](
                    grad_out.contiguous(),
                    value.contiguous(),
                    spatial_shapes.contiguous(),
                    level_start_index.contiguous(),
                    sampling_locations.contiguous(),
                    attention_weights.contiguous(),
                    grad_value,
                    grad_loc,
                    grad_attn,
                    Q,
                    S,
                    M=M,
                    D=D,
                    L=L,
                    K=K,
                    BLOCK_P=16,
                    BLOCK_D=triton.next_power_of_2(D),
                    num_warps=2,
                )
            """
        },
        "A block must hold all points of a row: the next power of two of what this call has.",
    ),
    Mistake(
        "with BLOCK_D of a size that some model has",
        {
            "launch": """
                msda_bwd_kernel[(B * Q * M,)](
                    grad_out.contiguous(),
                    value.contiguous(),
                    spatial_shapes.contiguous(),
                    level_start_index.contiguous(),
                    sampling_locations.contiguous(),
                    attention_weights.contiguous(),
                    grad_value,
                    grad_loc,
                    grad_attn,
                    Q,
                    S,
                    M=M,
                    D=D,
                    L=L,
                    K=K,
                    BLOCK_P=triton.next_power_of_2(L * K),
                    BLOCK_D=64,
                    num_warps=2,
                )
            """
        },
        "A block must hold all channels: the next power of two of what this call has.",
    ),
    Mistake(
        "when L and K are swapped",
        {
            "launch": """
                msda_bwd_kernel[(B * Q * M,)](
                    grad_out.contiguous(),
                    value.contiguous(),
                    spatial_shapes.contiguous(),
                    level_start_index.contiguous(),
                    sampling_locations.contiguous(),
                    attention_weights.contiguous(),
                    grad_value,
                    grad_loc,
                    grad_attn,
                    Q,
                    S,
                    M=M,
                    D=D,
                    L=K,
                    K=L,
                    BLOCK_P=triton.next_power_of_2(L * K),
                    BLOCK_D=triton.next_power_of_2(D),
                    num_warps=2,
                )
            """
        },
        "The locations are (B, Q, M, L, K, 2): levels first, then the points on each.",
    ),
    Mistake(
        "when the grid has three axes",
        {
            "launch": """
                msda_bwd_kernel[(B, Q, M)](
                    grad_out.contiguous(),
                    value.contiguous(),
                    spatial_shapes.contiguous(),
                    level_start_index.contiguous(),
                    sampling_locations.contiguous(),
                    attention_weights.contiguous(),
                    grad_value,
                    grad_loc,
                    grad_attn,
                    Q,
                    S,
                    M=M,
                    D=D,
                    L=L,
                    K=K,
                    BLOCK_P=triton.next_power_of_2(L * K),
                    BLOCK_D=triton.next_power_of_2(D),
                    num_warps=2,
                )
            """
        },
        "Your kernel finds its row in `tl.program_id(0)`. How far does that count with this grid?",
    ),
    Mistake(
        "when the shapes are passed with their strides",
        {
            "launch": """
                msda_bwd_kernel[(B * Q * M,)](
                    grad_out.contiguous(),
                    value.contiguous(),
                    spatial_shapes,
                    level_start_index.contiguous(),
                    sampling_locations.contiguous(),
                    attention_weights.contiguous(),
                    grad_value,
                    grad_loc,
                    grad_attn,
                    Q,
                    S,
                    M=M,
                    D=D,
                    L=L,
                    K=K,
                    BLOCK_P=triton.next_power_of_2(L * K),
                    BLOCK_D=triton.next_power_of_2(D),
                    num_warps=2,
                )
            """
        },
        "Small tensors have strides too, and the kernel gets an address only.",
    ),
    Mistake(
        "when the starts are passed with their strides",
        {
            "launch": """
                msda_bwd_kernel[(B * Q * M,)](
                    grad_out.contiguous(),
                    value.contiguous(),
                    spatial_shapes.contiguous(),
                    level_start_index,
                    sampling_locations.contiguous(),
                    attention_weights.contiguous(),
                    grad_value,
                    grad_loc,
                    grad_attn,
                    Q,
                    S,
                    M=M,
                    D=D,
                    L=L,
                    K=K,
                    BLOCK_P=triton.next_power_of_2(L * K),
                    BLOCK_D=triton.next_power_of_2(D),
                    num_warps=2,
                )
            """
        },
        "Small tensors have strides too, and the kernel gets an address only.",
    ),
    Mistake(
        "when the buffers of grad_loc and grad_attn are handed over in each other's place",
        {
            "launch": """
                msda_bwd_kernel[(B * Q * M,)](
                    grad_out.contiguous(),
                    value.contiguous(),
                    spatial_shapes.contiguous(),
                    level_start_index.contiguous(),
                    sampling_locations.contiguous(),
                    attention_weights.contiguous(),
                    grad_value,
                    grad_attn,
                    grad_loc,
                    Q,
                    S,
                    M=M,
                    D=D,
                    L=L,
                    K=K,
                    BLOCK_P=triton.next_power_of_2(L * K),
                    BLOCK_D=triton.next_power_of_2(D),
                    num_warps=2,
                )
            """
        },
        "The kernel's order is grad_value, grad_loc, grad_attn.",
    ),
    Mistake(
        "when the gradients come back in the opposite order",
        {"result": "return grad_attn, grad_loc, grad_value"},
        "The gradients come back in the order of the arguments: value, locations, weights.",
    ),
    Mistake(
        "when nothing comes back if there is no query",
        {
            "grad_attn": """
                @
                if Q == 0:
                    return None
            """
        },
        "The caller wants three gradients all the same: nothing was added to the first, and the others have no "
        "elements.",
    ),
    Mistake(
        "when Q and S are swapped",
        {
            "launch": """
                msda_bwd_kernel[(B * Q * M,)](
                    grad_out.contiguous(),
                    value.contiguous(),
                    spatial_shapes.contiguous(),
                    level_start_index.contiguous(),
                    sampling_locations.contiguous(),
                    attention_weights.contiguous(),
                    grad_value,
                    grad_loc,
                    grad_attn,
                    S,
                    Q,
                    M=M,
                    D=D,
                    L=L,
                    K=K,
                    BLOCK_P=triton.next_power_of_2(L * K),
                    BLOCK_D=triton.next_power_of_2(D),
                    num_warps=2,
                )
            """
        },
        "The kernel asks for the queries first, then for the pixels.",
    ),
    Mistake(
        "when locations and weights come back in the wrong order",
        {"result": "return grad_value, grad_attn, grad_loc"},
        "The gradients come back in the order of the arguments.",
    ),
    Mistake(
        "when the gradient of locations has value's dtype",
        {"grad_loc": "grad_loc = value.new_empty(sampling_locations.shape)"},
        ALIKE,
    ),
    Mistake(
        "when the gradient of weights has value's dtype",
        {"grad_attn": "grad_attn = value.new_empty(attention_weights.shape)"},
        ALIKE,
    ),
    Mistake(
        "when grad_value is always float32",
        {"grad_value": "grad_value = value.new_zeros(value.shape, dtype=torch.float32)"},
        "Summing in float32 may be a good idea, and lab 9 asks when. The result has value's dtype all the same.",
    ),
    Mistake(
        "when the gradient of value comes last",
        {"result": "return grad_loc, grad_attn, grad_value"},
        "In the order of the arguments: value, locations, weights.",
    ),
]


MSDA_BWD_MERGED_KERNEL: list[Mistake] = [
    Mistake(
        "when nothing is merged",
        {
            "msda_bwd_merged_kernel": """
                row = tl.program_id(0).to(tl.int64)
                b = row // (Q * M)
                m = row % M
                offs_p = tl.arange(0, BLOCK_P)
                offs_d = tl.arange(0, BLOCK_D)
                mask_p = offs_p < L * K
                mask_d = offs_d < D
                point = row * (L * K) + offs_p
                a = tl.load(attn_ptr + point, mask=mask_p, other=0.0).to(tl.float32)
                x = tl.load(loc_ptr + 2 * point, mask=mask_p, other=0.0).to(tl.float32)
                y = tl.load(loc_ptr + 2 * point + 1, mask=mask_p, other=0.0).to(tl.float32)
                H = tl.load(shapes_ptr + 2 * (offs_p // K), mask=mask_p, other=0).to(tl.int32)
                W = tl.load(shapes_ptr + 2 * (offs_p // K) + 1, mask=mask_p, other=0).to(tl.int32)
                start = tl.load(starts_ptr + offs_p // K, mask=mask_p, other=0)
                g = tl.load(grad_out_ptr + row * D + offs_d, mask=mask_d, other=0.0).to(tl.float32)
                x = x * W - 0.5
                y = y * H - 0.5
                near = (x >= -1) & (x < W) & (y >= -1) & (y < H)
                x = tl.where(near, x, -2.0)
                y = tl.where(near, y, -2.0)
                x0 = tl.floor(x).to(tl.int32)
                y0 = tl.floor(y).to(tl.int32)
                fx = x - x0
                fy = y - y0
                grad_a = tl.zeros([BLOCK_P], tl.float32)
                grad_x = tl.zeros([BLOCK_P], tl.float32)
                grad_y = tl.zeros([BLOCK_P], tl.float32)
                for j in tl.static_range(2):
                    for i in tl.static_range(2):
                        xi = x0 + i
                        yj = y0 + j
                        wx = fx if i else 1 - fx
                        wy = fy if j else 1 - fy
                        inside = mask_p & (xi >= 0) & (xi < W) & (yj >= 0) & (yj < H)
                        mask = inside[:, None] & mask_d[None, :]
                        pixel = b * S + start + yj * W + xi
                        offs = (pixel * M + m)[:, None] * D + offs_d[None, :]
                        v = tl.load(value_ptr + offs, mask=mask, other=0.0).to(tl.float32)
                        dot = tl.sum(v * g[None, :], axis=1)
                        grad_a += wx * wy * dot
                        grad_x += (wy if i else -wy) * dot
                        grad_y += (wx if j else -wx) * dot
                        share = ((a * wx * wy)[:, None] * g[None, :]).to(grad_value_ptr.dtype.element_ty)
                        tl.atomic_add(grad_value_ptr + offs, share, mask=mask, sem="relaxed")
                tl.store(grad_attn_ptr + point, grad_a.to(grad_attn_ptr.dtype.element_ty), mask=mask_p)
                tl.store(grad_loc_ptr + 2 * point, (a * W * grad_x).to(grad_loc_ptr.dtype.element_ty), mask=mask_p)
                tl.store(grad_loc_ptr + 2 * point + 1, (a * H * grad_y).to(grad_loc_ptr.dtype.element_ty), mask=mask_p)
            """
        },
        "All points of a row have the same grad_out. So what is there to add up before it is multiplied?",
    ),
    Mistake(
        "when every point of a group adds the group's sum",
        {"mask": "mask = inside[:, None] & mask_d[None, :]"},
        "One of them speaks for all.",
    ),
    Mistake(
        "when one point of each group speaks only for itself",
        {"merged": "merged = tl.sum(tl.where(same, weight[:, None] / tl.sum(same, axis=1)[:, None], 0.0), axis=1)"},
        "One of them speaks for all: with the sum of their weights.",
    ),
    Mistake(
        "when points of different levels are merged",
        {"same": "same = (x0[:, None] == x0[None, :]) & (y0[:, None] == y0[None, :])"},
        "Two levels have a pixel (2, 1) each.",
    ),
    Mistake(
        "when points that share a column are merged",
        {"same": "same = (start[:, None] == start[None, :]) & (x0[:, None] == x0[None, :])"},
        "A pixel has a column and a row.",
    ),
    Mistake(
        "when points that share a row are merged",
        {"same": "same = (start[:, None] == start[None, :]) & (y0[:, None] == y0[None, :])"},
        "A pixel has a column and a row.",
    ),
]

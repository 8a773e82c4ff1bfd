"""Lab 05, The forward kernel: its exercises, and the mistakes they are there to find.

A mistake is told as an edit of the solution. `corner` is read by a small kernel of ours, the kernel is launched as the
solution's launcher launches it, and the launcher is called.
"""

import re
import traceback

import torch
from torch import Tensor

from checks.core import compare
from checks.core.exercise import Draw, Failed, Mistake, NotRun, Property, exercise
from checks.labs.forward_cases import (
    BLOCK_Q,
    NOT_THERE,
    SHAPES,
    bfloat16,
    each_batch_item_and_head,
    every_point_of_every_level,
    far_batch,
    float16,
    float32_locations,
    launch,
    levels_with_gaps,
    msda_call,
    on_the_edges,
    one_channel,
    one_point_on_one_level,
    outside_and_not_a_number,
    ragged_queries,
    sixteen_bits,
    thirty_three_channels,
    told,
)
from checks.kernel.launches import TARGET, edited
from checks.kernel.budget import within_budget
from msda_core import reference
from msda_core.device import tl, triton
from msda_core.figures import tiles as forward
from solutions import lab05 as solution

LIMIT = 20.0  # seconds one call may take: a loop without an end, not a slow interpreter
BUDGET = 1.25  # times the sectors of the shipped kernel; the solution's plain loop over points needs 1.13
NAN, INF = float("nan"), float("inf")


# --- corner ---------------------------------------------------------------------------------------------------------


@triton.jit
def read_corners(x_ptr, y_ptr, size_ptr, offset_ptr, weight_ptr, CORNER: tl.constexpr, N: tl.constexpr):
    """Calls an answer for each of the four corners of N points."""
    n = tl.arange(0, N)
    x = tl.load(x_ptr + n)
    y = tl.load(y_ptr + n)
    H = tl.load(size_ptr)
    W = tl.load(size_ptr + 1)
    for j in tl.static_range(2):
        for i in tl.static_range(2):
            offset, weight, mask = CORNER(x, y, i, j, H, W)
            tl.static_assert(offset.dtype.is_int(), "the offset is no integer: nothing else can be added to a pointer")
            tl.static_assert(mask.dtype == tl.int1, "the mask is no comparison: tl.load takes nothing else for a mask")
            tl.store(offset_ptr + (2 * j + i) * N + n, tl.where(mask, offset, -1))
            tl.store(weight_ptr + (2 * j + i) * N + n, weight)


def _corners(corner, x: Tensor, y: Tensor, H: int, W: int) -> tuple[Tensor, Tensor]:
    """(offset, weight) of the four corners, each (2, 2, N) by j, i and point; offset is -1 where the mask says no."""
    N = x.numel()
    offset = torch.empty(2, 2, N, dtype=torch.int32, device=x.device)
    weight = torch.empty(2, 2, N, device=x.device)
    size = torch.tensor([H, W], dtype=torch.int32, device=x.device)
    try:
        read_corners[(1,)](x, y, size, offset, weight, CORNER=corner, N=N, num_warps=1)
    except Exception as error:
        said = re.search("the (offset|mask) is no .*", str(error))
        if said:
            raise Failed(said[0], (said[1],)) from None
        within = [frame.name for frame in traceback.extract_tb((error.__cause__ or error).__traceback__)]
        if re.search("unpack|is not iterable", str(error)) and "corner" not in within:
            raise Failed("it returns something else than three blocks: offset, weight, mask") from None
        raise
    return offset, weight


def _true_corners(x: Tensor, y: Tensor, H: int, W: int) -> tuple[Tensor, Tensor]:
    low, shift = torch.stack([y, x]).floor(), torch.tensor([0.0, 1.0], device=x.device)
    fraction = torch.stack([y, x]) - low
    yj, xi = low[0] + shift[:, None, None], low[1] + shift[None, :, None]  # (2, 1, N) and (1, 2, N)
    exists = (yj >= 0) & (yj < H) & (xi >= 0) & (xi < W)
    by_y = torch.stack([1 - fraction[0], fraction[0]])[:, None]
    by_x = torch.stack([1 - fraction[1], fraction[1]])[None]
    numbers = torch.where(exists, yj.double() * W + xi.double(), -1.0)
    return numbers.to(torch.int32), torch.where(exists, by_y * by_x, 0.0).to(x.dtype)


def _points(pixels: list[tuple[float, float]], H: int, W: int):
    x, y = torch.tensor([[float(a), float(b)] for a, b in pixels]).T.contiguous()
    return x, y, H, W


def inside_the_level(draw: Draw):
    """inside the level, the four pixels around each point, each by its weight"""
    H, W = 5, 9
    return _points([(draw.number(0.1, W - 1.1), draw.number(0.1, H - 1.1)) for _ in range(16)], H, W)


def on_the_pixels(draw: Draw):
    """on a pixel, that pixel weighs 1, and on the last row or column there is no next one"""
    H, W = 3, 5
    pixels = [(x, y) for y in range(H) for x in range(W)] + [(W - 1, H - 1)]
    return _points([pixels[n] for n in draw.permutation(16).tolist()], H, W)


def across_each_edge(draw: Draw):
    """across an edge of the level some pixels exist and some do not: those weigh nothing"""
    H, W = 4, 7
    t = lambda: draw.number(0.2, 0.8)  # noqa: E731
    low = lambda: -draw.number(0.2, 0.8)  # noqa: E731
    across = [(low(), y + t()) for y in range(3)] + [(W - 1 + t(), y + t()) for y in range(3)]
    across += [(x + t(), low()) for x in (0, 3, 5)] + [(x + t(), H - 1 + t()) for x in (0, 3, 5)]
    across += [(low(), low()), (W - 1 + t(), low()), (low(), H - 1 + t()), (W - 1 + t(), H - 1 + t())]
    return _points(across, H, W)


def far_outside(draw: Draw):
    """a point that touches no pixel, however far away, has four corners that do not exist"""
    H, W = 6, 4
    far = [(draw.number(-9, -2), 1.5), (1.5, draw.number(8, 20)), (W + 0.5, 2.25), (2.25, -1.5), (-1.0, -1.0)]
    far += [(3e9, 1.5), (1.5, -3e9), (1e30, 1e30), (-1e20, 2.5), (2.5, 5e18), (W, 1.5), (1.5, H)]
    return _points(far + [(1.25, 1.75)] * 4, H, W)


def not_a_number(draw: Draw):
    """a coordinate that is infinite or not a number reads no pixel and weighs nothing"""
    H, W = 5, 3
    odd = [(NAN, 1.5), (1.5, NAN), (NAN, NAN), (INF, 1.5), (1.5, INF), (-INF, 1.5), (1.5, -INF), (INF, NAN)]
    good = [(draw.number(0, W - 1.1), draw.number(0, H - 1.1)) for _ in range(8)]
    return _points([p for pair in zip(odd, good) for p in pair], H, W)


def more_pixels_than_float32_counts(draw: Draw):
    """the number of a pixel is exact on a level of 25 million"""
    H, W = 5000, 5003
    return _points([(draw.integer(0, W - 2) + 0.5, H - 2 - draw.integer(0, 40) + 0.25) for _ in range(16)], H, W)


def _wrong_corner(*changes: tuple[str, str]):
    return edited(solution.corner, *changes)


MASK = "(xi >= 0) & (xi < W) & (yj >= 0) & (yj < H)"
WEIGHT = "(fx if i else 1 - fx) * (fy if j else 1 - fy)"
OFFSET = "tl.where(mask, yj, 0.0).to(tl.int32) * W + tl.where(mask, xi, 0.0).to(tl.int32)"
NO_PIXEL = "A pixel outside the level does not exist: the mask says so, and its weight is 0."

UNTESTED = _wrong_corner(  # no test at all; a NaN is kept away from the address, or nothing else would be seen
    (f"tl.where(mask, {WEIGHT}, 0.0)", WEIGHT),
    (OFFSET, "(tl.where(y == y, yj, 0.0).to(tl.int32) * W + tl.where(x == x, xi, 0.0).to(tl.int32))"),
)
X0_FOR_X1 = _wrong_corner(("xi = x0 + i", "xi = x0"))
Y0_FOR_Y1 = _wrong_corner(("yj = y0 + j", "yj = y0"))
UNTESTED_WEIGHT = _wrong_corner((f"tl.where(mask, {WEIGHT}, 0.0)", WEIGHT))
TRUNCATED = _wrong_corner(
    ("tl.floor(x)", "tl.where(x < 0, -tl.floor(-x), tl.floor(x))"),
    ("tl.floor(y)", "tl.where(y < 0, -tl.floor(-y), tl.floor(y))"),
)
CLAMPED = _wrong_corner(
    (f"mask = {MASK}", "mask = x == x"),
    (
        OFFSET,
        "tl.minimum(tl.maximum(yj, 0.0), H - 1).to(tl.int32) * W + tl.minimum(tl.maximum(xi, 0.0), W - 1).to(tl.int32)",
    ),
)
WHOLE_POINT = _wrong_corner((MASK, "(x0 >= 0) & (x0 < W - 1) & (y0 >= 0) & (y0 < H - 1)"))
EARLY_INTEGER = _wrong_corner(
    ("xi = x0 + i", "xi = x0.to(tl.int32) + i"),
    ("yj = y0 + j", "yj = y0.to(tl.int32) + j"),
    (", 0.0).to(tl.int32)", ", 0)"),
)
H_FOR_W = _wrong_corner((".to(tl.int32) * W", ".to(tl.int32) * H"))
FX_FY = _wrong_corner((WEIGHT, "(fy if i else 1 - fy) * (fx if j else 1 - fx)"))
FAR_NEAR = _wrong_corner((WEIGHT, "(1 - fx if i else fx) * (1 - fy if j else fy)"))

exercise(
    "05.corner",
    reference=_true_corners,
    cases=[
        inside_the_level,
        on_the_pixels,
        across_each_edge,
        far_outside,
        not_a_number,
        more_pixels_than_float32_counts,
    ],
    invoke=_corners,
    guarded=True,
    limit=LIMIT,
    axes=["corner j", "corner i", "point"],
    parts=["the offset", "the weight"],
    mistakes=[
        Mistake("when x0 is reused for x1", X0_FOR_X1, "Which column does the right corner have? Which one is yours?"),
        Mistake("when y0 is reused for y1", Y0_FOR_Y1, "Which row does the lower corner have? Which one is yours?"),
        Mistake("when x0 and y0 are rounded towards zero", TRUNCATED, "Which pixel lies to the left of x = -0.3?"),
        Mistake(
            "when the nearer pixel weighs less",
            FAR_NEAR,
            "A point just right of pixel 3 has a small fx. Which of the pixels 3 and 4 should weigh nearly 1?",
        ),
        Mistake("when the weights along x and y are swapped", FX_FY, "fx tells left from right, fy upper from lower."),
        Mistake("when H is taken for W in the pixel's number", H_FOR_W, "How many pixels does a row have?"),
        Mistake(
            "when pixels are counted column by column",
            _wrong_corner((OFFSET, "tl.where(mask, xi, 0.0).to(tl.int32) * H + tl.where(mask, yj, 0.0).to(tl.int32)")),
            "Row by row: the whole first row comes before the second.",
        ),
        Mistake(
            "when the weight is not set to zero where the pixel does not exist",
            UNTESTED_WEIGHT,
            "What is the weight of a point whose x is not a number, and what is that times the 0 a masked load gives?",
        ),
        Mistake(
            "when the nearest pixel is read in place of one outside",
            CLAMPED,
            NO_PIXEL,
        ),
        Mistake(
            "when a point is dropped as soon as one of its four pixels does not exist",
            WHOLE_POINT,
            "The other three still count. Test each corner by itself.",
        ),
        Mistake(
            "when pixels past the left edge count as existing",
            _wrong_corner((MASK, MASK.replace("(xi >= 0) & ", ""))),
            f"{NO_PIXEL} What is the number of the pixel before the first of a row?",
        ),
        Mistake(
            "when pixels past the right edge count as existing",
            _wrong_corner((MASK, MASK.replace("(xi < W) & ", ""))),
            f"{NO_PIXEL} The pixel after the last of a row is the first of the next.",
        ),
        Mistake(
            "when pixels above the top edge count as existing",
            _wrong_corner((MASK, MASK.replace("(yj >= 0) & ", ""))),
            f"{NO_PIXEL} Your mask knows three edges.",
        ),
        Mistake(
            "when pixels below the bottom edge count as existing",
            _wrong_corner((MASK, MASK.replace(" & (yj < H)", ""))),
            f"{NO_PIXEL} Your mask knows three edges.",
        ),
        Mistake(
            "when one column and one row too many count as existing",
            _wrong_corner((MASK, MASK.replace("xi < W", "xi <= W").replace("yj < H", "yj <= H"))),
            "The last column has number W - 1, the last row H - 1.",
        ),
        Mistake(
            "when the last column and the last row are taken to be outside",
            _wrong_corner((MASK, MASK.replace("xi < W", "xi < W - 1").replace("yj < H", "yj < H - 1"))),
            "The last column has number W - 1, the last row H - 1, and both exist.",
        ),
        Mistake(
            "when H and W are swapped in the mask",
            _wrong_corner((MASK, MASK.replace("xi < W", "xi < H").replace("yj < H", "yj < W"))),
            "Columns stay below the width, rows below the height.",
        ),
        Mistake(
            "when a coordinate becomes an integer before it is tested",
            EARLY_INTEGER,
            "On a GPU a NaN cast to an integer is 0, and pixel 0 exists. Test the float.",
        ),
        Mistake(
            "when the pixel's number is computed in float32",
            _wrong_corner((OFFSET, "tl.where(mask, yj * W + xi, 0.0).to(tl.int32)")),
            "float32 counts whole numbers up to 16,777,216 one by one. How many pixels has a level of 5000 by 5003?",
        ),
        Mistake(
            "when column 0 and row 0 are taken to be outside",
            _wrong_corner((MASK, MASK.replace(">= 0", "> 0"))),
            "The first column and the first row have number 0, and both exist.",
        ),
        Mistake(
            "when i and j are swapped",
            _wrong_corner(
                ("xi = x0 + i", "xi = x0 + j"),
                ("yj = y0 + j", "yj = y0 + i"),
                (WEIGHT, "(fx if j else 1 - fx) * (fy if i else 1 - fy)"),
            ),
            "i tells left from right, j upper from lower.",
        ),
        Mistake(
            "when the offset is not made an integer",
            _wrong_corner((OFFSET, "tl.where(mask, yj, 0.0) * W + tl.where(mask, xi, 0.0)")),
            "Which dtype do the row and the column have, and which does the docstring ask for?",
        ),
        Mistake(
            "when the mask is a number",
            _wrong_corner(("return offset, weight, mask", "return offset, weight, mask.to(tl.float32)")),
            "A comparison gives what a mask has to be. What was done to it afterwards?",
        ),
        Mistake(
            "when half a pixel is subtracted once more",
            _wrong_corner(("tl.floor(x)", "tl.floor(x - 0.5)"), ("tl.floor(y)", "tl.floor(y - 0.5)")),
            "x and y are pixel coordinates already.",
        ),
    ],
    hints=[
        "x is 3.2 and y is -0.4, on a level of 4 columns. Which four pixels lie around the point, and which of them exist?",
        "`i` and `j` are known when the kernel is compiled: `fx if i else 1 - fx` costs nothing. Decide whether the pixel "
        "exists while the coordinates are still floats: a NaN compares false with everything.",
        "Floor, fractions, `x0 + i`, `y0 + j`; a mask of four comparisons; `tl.where(mask, …, 0)` for the weight, and for row "
        "and column before they become integers; row times width plus column.",
    ],
)


# --- msda_fwd_kernel ------------------------------------------------------------------------------------------------


def _sixteen_bit_code(kernel, draw: Draw):
    """The compiler's word on the kernel for 16-bit tensors, where types that the interpreter lets pass do not fit."""
    from msda_core.machine.counts.calls import trace_calls
    from msda_core.machine.compile.lower import lower_launch

    args = msda_call(draw, [(2, 3)], Q=1, dtype=torch.float16)
    (trace,) = trace_calls(lambda: launch(kernel, *args))
    lower_launch(trace.launch, TARGET)


def _prepare_traffic():
    """The call, what is right for it, and what the shipped kernel requests for it."""
    args = forward.example_call()
    return args, reference.exact(*args), forward.shipped_report(TARGET)


def _traffic(kernel, draw: Draw, prepared) -> str:
    """Sectors requested on the example call, once its result is right."""
    from msda_core import machine
    from msda_core.machine.counts.calls import trace_calls
    from msda_core.machine.compile.lower import lower_launch

    args, truth, theirs = prepared
    out = []
    (trace,) = trace_calls(lambda: out.append(launch(kernel, *args, block_q=16, num_warps=4)))
    if compare.difference(out[0], truth, truth.float()):
        raise NotRun("counted once the result is right.")
    return within_budget(machine.count(trace, lower_launch(trace.launch, TARGET)), theirs, BUDGET, "msda_core's")


def _wrong(*changes: tuple[str, str], **names):
    return edited(solution.msda_fwd_kernel, *changes, **names)


LOAD = "tl.load(pixel, mask=(mask_q & inside)[:, None] & mask_d[None, :], other=0.0)"
STORE = "acc.to(out_ptr.dtype.element_ty), mask=mask_out)"
A_LOAD = "tl.load(attn_ptr + point, mask=mask_q, other=0.0)"
X_LOAD = "tl.load(loc_ptr + 2 * point, mask=mask_q, other=0.0)"
Y_LOAD = "tl.load(loc_ptr + 2 * point + 1, mask=mask_q, other=0.0)"
LEVEL = "level_ptr = value_ptr + ((b * S + tl.load(starts_ptr + l)) * M + m) * D"
ADD = "acc += (a * weight)[:, None] * v.to(tl.float32)"
IN_A_LOOP = [
    (f"v = {LOAD}", "pass"),
    (
        ADD,
        """for d in range(D):
                        pixel = level_ptr + offset * (M * D) + d
                        v = tl.load(pixel, mask=mask_q & inside, other=0.0).to(tl.float32)
                        acc += tl.where(offs_d[None, :] == d, (a * weight * v)[:, None], 0.0)""",
    ),
    ("pixel = level_ptr + offset[:, None] * (M * D) + offs_d[None, :]\n", "pass\n"),
]
THROUGH_MEMORY = [
    (
        "acc = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)",
        "here = out_ptr + row[:, None] * D + offs_d[None, :]\n"
        "    mask_out = mask_q[:, None] & mask_d[None, :]\n"
        "    tl.store(here, tl.zeros([BLOCK_Q, BLOCK_D], tl.float32), mask=mask_out)",
    ),
    (
        ADD,
        "tl.store(here, tl.load(here, mask=mask_out, other=0.0) + (a * weight)[:, None] * v.to(tl.float32), mask=mask_out)",
    ),
    ("tl.store(out_ptr + row[:, None] * D + offs_d[None, :], " + STORE, "pass"),
]
EVERY_HEAD = [
    (f"v = {LOAD}", "pass"),
    (
        ADD,
        """for other in range(M):
                        pixel = level_ptr + (offset * M + other - m)[:, None] * D + offs_d[None, :]
                        v = tl.load(pixel, mask=(mask_q & inside)[:, None] & mask_d[None, :], other=0.0)
                        acc += tl.where(other == m, (a * weight)[:, None] * v.to(tl.float32), 0.0)""",
    ),
]
ONE_BY_ONE = [
    (f"v = {LOAD}", "pass"),
    (
        ADD,
        """for n in range(BLOCK_Q):
                        mine = tl.arange(0, BLOCK_Q) == n
                        first = tl.sum(tl.where(mine & inside & mask_q, offset, 0), axis=0)
                        exists = tl.sum((mine & inside & mask_q).to(tl.int32), axis=0) > 0
                        v = tl.load(level_ptr + first * (M * D) + offs_d, mask=mask_d & exists, other=0.0)
                        acc += tl.where(mine[:, None], (a * weight)[:, None] * v.to(tl.float32)[None, :], 0.0)""",
    ),
]
READ_AND_DROP = edited(
    solution.corner,
    (
        OFFSET,
        "tl.minimum(tl.maximum(tl.where(yj == yj, yj, 0.0), 0.0), H - 1).to(tl.int32) * W"
        " + tl.minimum(tl.maximum(tl.where(xi == xi, xi, 0.0), 0.0), W - 1).to(tl.int32)",
    ),
    ("return offset, weight, mask", "return offset, weight, xi == xi"),
)

exercise(
    "05.msda_fwd_kernel",
    reference=reference.msda,
    cases=[
        one_point_on_one_level,
        every_point_of_every_level,
        each_batch_item_and_head,
        ragged_queries,
        thirty_three_channels,
        one_channel,
        on_the_edges,
        outside_and_not_a_number,
        levels_with_gaps,
        float16,
        bfloat16,
        float32_locations,
    ],
    properties=[
        Property("compiles_for_16_bits", "a GPU's compiler accepts it for 16-bit tensors too", _sixteen_bit_code),
        Property("far_batch", "a batch item may begin more than 2^31 elements after the first", far_batch),
        Property(
            "traffic",
            f"it requests at most {BUDGET:g} times the sectors that msda_core's own kernel requests",
            _traffic,
            _prepare_traffic,
        ),
    ],
    invoke=launch,
    picture=lambda args, yours, truth: forward.error_map(yours, truth, args[0].shape[2]),
    guarded=True,
    limit=LIMIT,
    axes=["batch item", "query", "channel"],
    mistakes=[
        Mistake(
            "when a corner reads one channel at a time",
            _wrong(*IN_A_LOOP),
            "A sector holds 8 channels in float32. If a load takes one channel of a pixel, what happens to the other 7? Which "
            "axis of the tile should lie along memory?",
            only="traffic",
        ),
        Mistake(
            "when every head of a pixel is read for one",
            _wrong(*EVERY_HEAD),
            "The heads of a pixel lie together, but this program needs one of them.",
            only="traffic",
        ),
        Mistake(
            "when a pixel is read where none is needed, and thrown away",
            _wrong(corner=READ_AND_DROP),
            "Its weight is zero, so the result is right, and its bytes have been fetched all the same. Which mask stops a load?",
            only="traffic",
        ),
        Mistake(
            "when one query after the other is read by the whole program",
            _wrong(*ONE_BY_ONE),
            "32 channels are one warp's worth of lanes. What do the other three warps of the program load meanwhile?",
            only="traffic",
        ),
        Mistake(
            "when value is masked by query only",
            _wrong((LOAD, "tl.load(pixel, mask=mask_q[:, None], other=0.0)"), corner=UNTESTED),
            "A query that exists can still look at a pixel that does not, and a tile has lanes past channel D.",
        ),
        Mistake(
            "when the level's start is computed from the shapes",
            _wrong(
                ("for l in range(L):\n", "start = 0\n    for l in range(L):\n"),
                (LEVEL, LEVEL.replace("tl.load(starts_ptr + l)", "start") + "\n        start += H * W"),
            ),
            "Levels need not lie one after another: where they begin is given.",
        ),
        Mistake(
            "when the weights along x and y are swapped",
            _wrong(corner=FX_FY),
            "fx tells left from right, fy upper from lower.",
        ),
        Mistake(
            "when every point replaces the sum so far",
            _wrong((ADD, "acc = acc * (i + j > 0) + (a * weight)[:, None] * v.to(tl.float32)")),
            "The corners of one point are added up. So are the points.",
        ),
        Mistake(
            "when levels and points are swapped in memory",
            _wrong(("(row * L + l) * K + k", "(row * K + k) * L + l")),
            "loc is (B, Q, M, L, K, 2): which of L and K is the inner axis?",
        ),
        Mistake("when the load of x has no mask", _wrong((X_LOAD, "tl.load(loc_ptr + 2 * point)")), NOT_THERE),
        Mistake("when the load of y has no mask", _wrong((Y_LOAD, "tl.load(loc_ptr + 2 * point + 1)")), NOT_THERE),
        *told(
            value_dtype=_wrong(
                (
                    "tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)",
                    "tl.zeros([BLOCK_Q, BLOCK_D], value_ptr.dtype.element_ty)",
                ),
                (ADD, "acc = (acc.to(tl.float32) + (a * weight)[:, None] * v.to(tl.float32)).to(acc.dtype)"),
            ),
            untested_weight=_wrong(corner=UNTESTED_WEIGHT),
            x0_for_x1=_wrong(corner=X0_FOR_X1),
            y0_for_y1=_wrong(corner=Y0_FOR_Y1),
            start_twice=_wrong((LEVEL, LEVEL.replace("tl.load(starts_ptr + l)", "2 * tl.load(starts_ptr + l)"))),
            no_start=_wrong((LEVEL, LEVEL.replace(" + tl.load(starts_ptr + l)", ""))),
            half_coordinates=_wrong(
                (X_LOAD + ".to(tl.float32) * W - 0.5", f"({X_LOAD} * W - 0.5).to(tl.float32)"),
                (Y_LOAD + ".to(tl.float32) * H - 0.5", f"({Y_LOAD} * H - 0.5).to(tl.float32)"),
            ),
            rounded_coordinates=_wrong(
                (
                    f"{X_LOAD}.to(tl.float32) * W - 0.5",
                    f"({X_LOAD}.to(tl.float32) * W - 0.5).to(tl.float16).to(tl.float32)",
                ),
                (
                    f"{Y_LOAD}.to(tl.float32) * H - 0.5",
                    f"({Y_LOAD}.to(tl.float32) * H - 0.5).to(tl.float16).to(tl.float32)",
                ),
            ),
            y_x=_wrong((X_LOAD, "tl.load(loc_ptr + 2 * ?)"), (Y_LOAD, X_LOAD), ("tl.load(loc_ptr + 2 * ?)", Y_LOAD)),
            w_h=_wrong(
                ("H = tl.load(shapes_ptr + 2 * l)", "H = tl.load(shapes_ptr + 2 * l + 1 - 1 + 1)"),
                ("W = tl.load(shapes_ptr + 2 * l + 1)", "W = tl.load(shapes_ptr + 2 * l)"),
            ),
            w_for_both=_wrong((" * H - 0.5", " * W - 0.5")),
            no_half_pixel=_wrong((" * W - 0.5", " * W"), (" * H - 0.5", " * H")),
            centre_to_centre=_wrong((" * W - 0.5", " * (W - 1)"), (" * H - 0.5", " * (H - 1)")),
            truncated=_wrong(corner=TRUNCATED),
            far_near=_wrong(corner=FAR_NEAR),
            h_pitch=_wrong(corner=H_FOR_W),
            nearest=_wrong(corner=CLAMPED),
            nan_is_0=_wrong(
                (" * W - 0.5", " * W - 0.5\n            x = tl.where(x == x, x, 0.0)"),
                (" * H - 0.5", " * H - 0.5\n            y = tl.where(y == y, y, 0.0)"),
            ),
            whole_point=_wrong(corner=WHOLE_POINT),
            early_integer=_wrong(corner=EARLY_INTEGER),
            no_attention=_wrong((ADD, ADD.replace("(a * weight)", "weight"))),
            last_corner=_wrong((ADD, ADD.replace("+=", "="))),
            mean=_wrong((STORE, STORE.replace("acc.to", "(acc / (L * K)).to"))),
            heads_first=_wrong(("row = (b * Q + offs_q) * M + m", "row = (b * M + m) * Q + offs_q")),
            first_head=_wrong((LEVEL, LEVEL.replace(" * M + m) * D", " * M) * D"))),
            first_item=_wrong((LEVEL, LEVEL.replace("b * S + ", ""))),
            rows_of_item_0=_wrong(("(b * Q + offs_q)", "offs_q.to(tl.int64)")),
            head_first_id=_wrong(
                ("m = tl.program_id(1) % M", "m = tl.program_id(1) // M"),
                ("(tl.program_id(1) // M)", "(tl.program_id(1) % M)"),
            ),
            heads_apart=_wrong(
                (LEVEL, "level_ptr = value_ptr + (b * S * M + m * S + tl.load(starts_ptr + l)) * D"),
                ("offset[:, None] * (M * D)", "offset[:, None] * D"),
            ),
            pixel_pitch_d=_wrong(("offset[:, None] * (M * D)", "offset[:, None] * D")),
            block_d=_wrong(
                ("(M * D)", "(M * BLOCK_D)"),
                ("* M + m) * D", "* M + m) * BLOCK_D"),
                ("row[:, None] * D", "row[:, None] * BLOCK_D"),
            ),
            no_block_q=_wrong(("tl.program_id(0) * BLOCK_Q", "tl.program_id(0)")),
            full_blocks=_wrong(("offs_q < Q", "offs_q < Q // BLOCK_Q * BLOCK_Q")),
            no_attention_mask=_wrong((A_LOAD, "tl.load(attn_ptr + point)")),
            no_channel_mask=_wrong((LOAD, LOAD.replace(" & mask_d[None, :]", ""))),
            no_other=_wrong((LOAD, LOAD.replace(", other=0.0", ""))),
            no_store_mask=_wrong((STORE, STORE.replace(", mask=mask_out", ""))),
            store_any_query=_wrong((STORE, STORE.replace("mask_out", "mask_d[None, :]"))),
            store_any_channel=_wrong((STORE, STORE.replace("mask_out", "mask_q[:, None]"))),
            narrow_batch=_wrong((".to(tl.int64)", "")),
        ),
        # After the sum in value's dtype, which looks the same in 16 bits and wastes nothing.
        Mistake(
            "when the sum is kept in memory",
            _wrong(*THROUGH_MEMORY),
            "A sum that every corner loads and stores again crosses the chip each time. Registers are free.",
        ),
    ],
    hints=[
        "One program has 16 queries of one head. How many numbers does it produce, and which of the five sizes B, Q, M, L, K "
        "does it loop over?",
        "Keep a tile (BLOCK_Q, BLOCK_D) of float32 sums. Loop over levels, then points; per point load one weight and one "
        "(x, y) for each query, and let `corner` say where the four pixels are. A row of the tile is a query, and along it "
        "lie the channels, as they do in memory.",
        "`row = (b * Q + offs_q) * M + m` numbers your queries in loc, attn and out; point `(row * L + l) * K + k`. The level "
        "begins at pixel `b * S + start`, a pixel is `M * D` elements, the head's channels begin at `m * D`. "
        "`tl.static_range(2)` for i and j; masks of query, pixel and channel together; one store at the end.",
    ],
)


# --- msda_forward ---------------------------------------------------------------------------------------------------


def a_whole_call(draw: Draw):
    """the whole operator: batch, heads, levels and points"""
    return msda_call(draw, SHAPES[:2], B=2, Q=7, M=3, K=2)


def any_number_of_queries(draw: Draw):
    """any number of queries, whatever your block"""
    return msda_call(draw, [(3, 5)], Q=33 + draw.integer(0, 30), D=3)


def any_number_of_channels(draw: Draw):
    """any number of channels, here 33"""
    return msda_call(draw, [(3, 4), (2, 2)], Q=5, M=2, K=1, D=33)


def a_single_channel(draw: Draw):
    """or one"""
    return msda_call(draw, [(3, 4)], Q=5, M=2, D=1)


def levels_anywhere(draw: Draw):
    """value may hold pixels that belong to no level: S and the starts are not what the shapes add up to"""
    value, shapes, _, loc, attn = msda_call(draw, SHAPES, B=2, Q=5)
    starts = torch.tensor([11 + draw.integer(0, 4), 66 + draw.integer(0, 3), draw.integer(0, 4)], dtype=torch.int32)
    return draw.normal(2, 90, 1, 3), shapes.int(), starts, loc, attn


def value_with_strides(draw: Draw):
    """value may be a transposed view: its heads then lie far apart"""
    value, *rest = msda_call(draw, [(3, 5)], B=2, Q=5, M=2)
    return value.transpose(1, 2).contiguous().transpose(1, 2), *rest


def parameters_with_strides(draw: Draw):
    """locations and weights may be views with strides of their own, and so may the two tables"""
    value, shapes, starts, loc, attn = msda_call(draw, SHAPES[:2], Q=5, M=2, K=3)
    loc = loc.transpose(1, 2).contiguous().transpose(1, 2)
    attn = torch.stack([attn, attn + 1], -1)[..., 0]
    return value, shapes.T.contiguous().T, torch.stack([starts, starts + 3], -1)[..., 0], loc, attn


def float16_call(draw: Draw):
    """`float16` in, `float16` out"""
    return sixteen_bits(draw, torch.float16)


def bfloat16_call(draw: Draw):
    """`bfloat16` in, `bfloat16` out, with float32 locations and weights"""
    return sixteen_bits(draw, torch.bfloat16, torch.float32)


def no_queries(draw: Draw):
    """without queries the result is there, and empty"""
    return msda_call(draw, [(3, 5)], B=2, Q=0, M=2)


def no_batch(draw: Draw):
    """without batch items too"""
    return msda_call(draw, [(3, 5)], B=0, Q=3, M=2)


def _score(answer) -> str:
    """Sectors requested on the example call, beside the shipped kernel's: no end to it."""
    from msda_core.machine.counts.calls import profile_calls

    args = forward.example_call()
    mine = sum(report.sectors for report in profile_calls(lambda: answer(*args)))
    theirs = forward.shipped_report(TARGET).sectors
    return f"{mine:,} sectors requested, {mine / theirs:.2f} times msda_core's {theirs:,}."


def _wrong_launcher(*changes: tuple[str, str], **names):
    return edited(solution.msda_forward, *changes, **names)


GRID = "(triton.cdiv(Q, BLOCK_Q), B * M)"

exercise(
    "05.msda_forward",
    reference=reference.msda,
    cases=[
        a_whole_call,
        any_number_of_queries,
        any_number_of_channels,
        a_single_channel,
        levels_anywhere,
        value_with_strides,
        parameters_with_strides,
        float16_call,
        bfloat16_call,
        no_queries,
        no_batch,
    ],
    picture=lambda args, yours, truth: forward.error_map(yours, truth, args[0].shape[2]),
    guarded=True,
    limit=LIMIT,
    axes=["batch item", "query", "channel"],
    score=_score,
    mistakes=[
        Mistake(
            "when the last queries, which fill no block, are left out",
            _wrong_launcher(("triton.cdiv(Q, BLOCK_Q)", "Q // BLOCK_Q")),
            "How many blocks of 16 do 33 queries need?",
        ),
        Mistake(
            "when only the first block of queries is launched",
            _wrong_launcher((GRID, "(1, B * M)")),
            "The kernel does BLOCK_Q queries. How many programs does it take?",
        ),
        Mistake(
            "when the axes of the grid are swapped",
            _wrong_launcher((GRID, "(B * M, triton.cdiv(Q, BLOCK_Q))")),
            "Program (i, j): i counts blocks of queries, j batch items and heads.",
        ),
        Mistake(
            "when there are programs for the batch items, but not for their heads",
            _wrong_launcher((GRID, "(triton.cdiv(Q, BLOCK_Q), B)")),
            "One program does one head. How many are there?",
        ),
        Mistake(
            "when there are programs for the heads of the first batch item only",
            _wrong_launcher((GRID, "(triton.cdiv(Q, BLOCK_Q), M)")),
            "How many batch items are there?",
        ),
        Mistake(
            "when BLOCK_D is D",
            _wrong_launcher(("triton.next_power_of_2(D)", "D")),
            "`tl.arange` needs a power of two.",
        ),
        Mistake(
            "when BLOCK_D is a power of two below D",
            _wrong_launcher(("triton.next_power_of_2(D)", "max(1, triton.next_power_of_2(D + 1) // 2)")),
            "All channels must fit: the next power of two, not the one before.",
        ),
        Mistake(
            "when the result is float32 whatever came in",
            _wrong_launcher(
                ("value.new_empty(B, Q, M * D)", "torch.empty(B, Q, M * D, dtype=torch.float32, device=value.device)")
            ),
            "The result has value's dtype. The kernel rounds to what out is.",
        ),
        Mistake(
            "when the heads are not folded into the channels",
            _wrong_launcher(("value.new_empty(B, Q, M * D)", "value.new_empty(B, Q, M, D)")),
            "The result has three axes: the heads' channels follow one another in the last.",
        ),
        Mistake(
            "when value's strides are forgotten",
            _wrong_launcher(("value.contiguous()", "value")),
            "The kernel sees an address. What does a transposed view look like from there?",
        ),
        Mistake(
            "when the locations' strides are forgotten",
            _wrong_launcher(("sampling_locations.contiguous()", "sampling_locations")),
            "The kernel sees an address. What does a view look like from there?",
        ),
        Mistake(
            "when the weights' strides are forgotten",
            _wrong_launcher(("attention_weights.contiguous()", "attention_weights")),
            "The kernel sees an address. What does a view look like from there?",
        ),
        Mistake(
            "when the strides of the table of shapes are forgotten",
            _wrong_launcher(("spatial_shapes.contiguous()", "spatial_shapes")),
            "Five tensors go in. Each may be a view.",
        ),
        Mistake(
            "when the strides of the table of starts are forgotten",
            _wrong_launcher(("level_start_index.contiguous()", "level_start_index")),
            "Five tensors go in. Each may be a view.",
        ),
        Mistake(
            "when S is computed from the shapes",
            _wrong_launcher(("out = value", "S = int(spatial_shapes.prod(1).sum())\n    out = value")),
            "value may hold pixels that belong to no level. How far is it to the next batch item?",
        ),
        Mistake(
            "when the levels' starts are computed from the shapes",
            _wrong_launcher(
                (
                    "level_start_index.contiguous()",
                    "torch.cat([spatial_shapes.new_zeros(1), spatial_shapes.prod(1).cumsum(0)[:-1]])",
                )
            ),
            "Levels need not lie one after another: level_start_index says where they begin.",
        ),
        Mistake(
            "when L and K are swapped",
            _wrong_launcher(("L=L,", "L=K,"), ("K=K,", "K=L,")),
            "sampling_locations is (B, Q, M, L, K, 2).",
        ),
        Mistake(
            "when M and D are swapped",
            _wrong_launcher(("M=M,", "M=D,"), ("D=D,", "D=M,")),
            "value is (B, S, M, D).",
        ),
    ],
    hints=[
        "The kernel has fourteen arguments. Which of them does the caller give you, which follow from shapes, and which two "
        "are yours to choose?",
        "Make an empty result in value's dtype and on value's device, return it at once if it has no elements, and launch one "
        "program for each block of queries, and for each batch item and head. The kernel takes memory as it lies, so every "
        "tensor must lie as it says.",
        "`value.new_empty(…)`, `triton.cdiv(Q, BLOCK_Q)`, `triton.next_power_of_2(D)`, `.contiguous()` on everything that goes "
        "in, `with torch.cuda.device_of(value):` around the launch, which else goes to the current GPU.",
    ],
)


# --- stretch: msda_fwd_logits_kernel ---------------------------------------------------------------------------------


def _from_logits(value, shapes, starts, loc, logits) -> Tensor:
    return reference.msda(value, shapes, starts, loc, logits.flatten(-2).softmax(-1).reshape(logits.shape))


def _logits(draw: Draw, shapes, least: float, most: float, **sizes):
    *rest, attn = msda_call(draw, shapes, **sizes)
    return *rest, draw.uniform(*attn.shape, low=least, high=most)


def one_level_of_logits(draw: Draw):
    """the weights of a query's points add up to one"""
    return _logits(draw, [(4, 6)], -2, 2, M=2, K=4)


def all_levels_share_one_softmax(draw: Draw):
    """one softmax over the points of all levels together"""
    return _logits(draw, SHAPES, -2, 2, M=2, K=3)


def large_logits(draw: Draw):
    """exp does not overflow, however large the logits are, nor do all of them vanish"""
    *rest, logits = _logits(draw, SHAPES[:2], 90, 100, K=4)
    logits[:, 1::2] -= 230
    return *rest, logits


def ragged_logits(draw: Draw):
    """Q need not be a multiple of BLOCK_Q, nor D a power of two"""
    return _logits(draw, SHAPES[:2], -3, 3, Q=BLOCK_Q + draw.integer(1, 5), D=5, low=-0.1, high=1.1)


def _logits_score(kernel) -> str:
    from msda_core.machine.counts.calls import profile_calls

    *rest, weights = forward.example_call()
    args = (*rest, weights.log())
    requested = lambda *call: sum(  # noqa: E731
        r.sectors for r in profile_calls(lambda: launch(*call, block_q=16, num_warps=4))
    )
    mine, plain = requested(kernel, *args), requested(solution.msda_fwd_kernel, *rest, weights)
    saved = 2 * weights.numel() * weights.element_size()
    return (
        f"{mine:,} sectors requested, {mine / plain:.2f} times our kernel's that is given its weights ({plain:,}): what is "
        f"read again lies in L1. Saved is the weights' way to memory and back, {saved:,} bytes here, and a launch."
    )


def _wrong_logits(*changes: tuple[str, str], **names):
    return edited(solution.msda_fwd_logits_kernel, *changes, **names)


exercise(
    "05.msda_fwd_logits_kernel",
    reference=_from_logits,
    cases=[one_level_of_logits, all_levels_share_one_softmax, large_logits, ragged_logits],
    invoke=launch,
    picture=lambda args, yours, truth: forward.error_map(yours, truth, args[0].shape[2]),
    guarded=True,
    limit=LIMIT,
    axes=["batch item", "query", "channel"],
    stretch=True,
    score=_logits_score,
    mistakes=[
        Mistake(
            "when the largest logit is not subtracted",
            _wrong_logits(
                ("higher = tl.maximum(peak, logit[:, None])", "higher = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)")
            ),
            "exp(100) is more than float32 holds. Softmax does not change when the same number is taken from all.",
        ),
        Mistake(
            "when the result is not divided by the sum",
            _wrong_logits(("acc / total", "acc")),
            "The weights of a query add up to one.",
        ),
        Mistake(
            "when the sum so far is not corrected for a higher peak",
            _wrong_logits(("total = total * shrink + a", "total = total + a")),
            "What was added before was measured against a lower peak.",
        ),
        Mistake(
            "when the result so far is not corrected for a higher peak",
            _wrong_logits(("acc = acc * shrink", "acc = acc")),
            "The sum is corrected. What was added to the result has the same flaw.",
        ),
        Mistake(
            "when each level has a softmax of its own",
            _wrong_logits(
                (
                    "        H = tl.load(shapes_ptr + 2 * l)",
                    "        done = acc\n        acc = tl.zeros_like(acc)\n"
                    "        peak = tl.full([BLOCK_Q, BLOCK_D], float('-inf'), tl.float32)\n"
                    "        total = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)\n        H = tl.load(shapes_ptr + 2 * l)",
                ),
                ("    mask_out = ", "        acc = done + acc / total\n    mask_out = "),
                ("acc / total, mask=mask_out", "acc, mask=mask_out"),
            ),
            "The points of all levels compete with each other.",
        ),
        Mistake(
            "when logits are used as weights",
            _wrong_logits(
                ("a * weight[:, None]", "(logit * weight)[:, None]"),
                ("acc / total", "acc"),
                ("acc = acc * shrink", "acc = acc"),
            ),
            "Softmax first: exp, and divided by the sum.",
        ),
        Mistake(
            "when powers of two are taken in place of exp",
            _wrong_logits(("tl.exp(", "tl.exp2(")),
            "exp2 is faster, but its logits must be multiplied by log2(e) first.",
        ),
    ],
    hints=[
        "Softmax needs the sum over all points before the first weight is known. Must the first weight be known before its "
        "sample is added?",
        "Divide at the end. Keep the highest logit so far, and the sum of exp(logit - highest). When a higher one comes, what "
        "was added so far is too large by a known factor.",
        "`higher = tl.maximum(peak, logit)`, `shrink = tl.exp(peak - higher)`: multiply both the sum and the tile by it, add "
        "`tl.exp(logit - higher)`, and store the tile divided by the sum.",
    ],
)

"""Lab 05, The forward kernel: the inputs that tell right from wrong, and the properties that must hold."""

import re
import traceback

import torch
from torch import Tensor

from checks.core import compare
from checks.core.exercise import Draw, Failed, NotRun
from checks.kernel.budget import within_budget
from checks.kernel.launches import TARGET
from checks.labs.forward_cases import (
    BLOCK_Q,
    SHAPES,
    launch,
    msda_call,
    sixteen_bits,
)
from msda_core import reference
from msda_core.device import tl, triton
from msda_core.figures import tiles as forward
from solutions import lab05 as solution

LIMIT = 20.0  # seconds one call may take: a loop without an end, not a slow interpreter
BUDGET = 1.25  # times the sectors of the shipped kernel; the solution's plain loop over points needs 1.13
NAN, INF = float("nan"), float("inf")


# --- corner ---------------------------------------------------------------------------------------------------------


@triton.jit
def read_corners(x_ptr, y_ptr, size_ptr, mask_ptr, offset_ptr, weight_ptr, CORNER: tl.constexpr, N: tl.constexpr):
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
            tl.store(mask_ptr + (2 * j + i) * N + n, mask.to(tl.int32))
            tl.store(offset_ptr + (2 * j + i) * N + n, tl.where(mask, offset, 0))
            tl.store(weight_ptr + (2 * j + i) * N + n, weight)


def _corners(corner, x: Tensor, y: Tensor, H: int, W: int) -> tuple[Tensor, Tensor, Tensor]:
    """(mask, offset, weight) of the four corners, each (2, 2, N) by j, i and point; offset is 0 where the mask says no."""
    N = x.numel()
    mask = torch.empty(2, 2, N, dtype=torch.int32, device=x.device)
    offset = torch.empty(2, 2, N, dtype=torch.int32, device=x.device)
    weight = torch.empty(2, 2, N, device=x.device)
    size = torch.tensor([H, W], dtype=torch.int32, device=x.device)
    try:
        read_corners[(1,)](x, y, size, mask, offset, weight, CORNER=corner, N=N, num_warps=1)
    except Exception as error:
        said = re.search("the (offset|mask) is no .*", str(error))
        if said:
            raise Failed(said[0], (said[1],)) from None
        within = [frame.name for frame in traceback.extract_tb((error.__cause__ or error).__traceback__)]
        if re.search("unpack|is not iterable", str(error)) and "corner" not in within:
            raise Failed("it returns something else than three blocks: offset, weight, mask") from None
        raise
    return mask != 0, offset, weight


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


# --- msda_fwd_kernel ------------------------------------------------------------------------------------------------


def _sixteen_bit_code(kernel, draw: Draw):
    """The compiler's word on the kernel for 16-bit tensors, where types that the interpreter lets pass do not fit."""
    from msda_core.machine.compile.lower import lower_launch
    from msda_core.machine.counts.calls import trace_calls

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
    from msda_core.machine.compile.lower import lower_launch
    from msda_core.machine.counts.calls import trace_calls

    args, truth, theirs = prepared
    out = []
    (trace,) = trace_calls(lambda: out.append(launch(kernel, *args, block_q=16, num_warps=4)))
    if compare.difference(out[0], truth, truth.float()):
        raise NotRun("counted once the result is right.")
    return within_budget(machine.count(trace, lower_launch(trace.launch, TARGET)), theirs, BUDGET, "msda_core's")


# --- msda_forward ---------------------------------------------------------------------------------------------------


def a_whole_call(draw: Draw):
    """the whole operator: heads, levels and points"""
    return msda_call(draw, SHAPES[:2], Q=7, M=3, K=4)


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


def _logits(draw: Draw, shapes, least: float, most: float, **sizes):
    *rest, attn = msda_call(draw, shapes, **sizes)
    return *rest, draw.uniform(*attn.shape, low=least, high=most)


def one_level_of_logits(draw: Draw):
    """the weights of a query's points add up to one"""
    return _logits(draw, [(4, 6)], -2, 2, B=2, Q=5, K=4)


def all_levels_share_one_softmax(draw: Draw):
    """one softmax over the points of all levels together"""
    return _logits(draw, SHAPES, -2, 2, M=2, D=4, K=4)


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

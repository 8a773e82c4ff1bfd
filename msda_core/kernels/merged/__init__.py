"""Encoder scale: neighbouring queries merge their contributions before they become reductions.

In the encoder of Deformable DETR every pixel of the pyramid is a query, and samples around itself. So neighbours read the
same pixels, and add to the same pixels, 64 times each on average; the plain kernels go to memory for every one of these.
The merged path takes a spatial tile of queries at a time:

    merged_forward    `forward`     tiles of 8 × 4 queries, two heads at a time: pixels are found in L1
    merged_backward   `window`      grad_value of tiles on coarser levels: summed in a window, added once
                      `remainder`   grad_value of single points that missed their window
                      `points`      grad_locations and grad_attention of all points; grad_value of all that is not merged

`packed` holds the arithmetic on pairs of 16-bit numbers that they are made of, `plan` the work lists. Whatever the input,
the result is that of the plain kernels, up to rounding: merging is a matter of speed, decided tile by tile on the device
(`window`), so that locations that are all over the place cost a look at a sample and then what the plain kernel costs.

What is left for the host is whether a call is of this kind at all: `suits`; and, for one that nobody asked to merge, `worthwhile`
and what the last call like it was seen to be (`choice`). `LOG.md` one folder up has what was predicted and measured.
"""

import functools

import torch
from torch import Tensor

from msda_core.device import INTERPRETED, capability, load_triton
from msda_core.kernels.backward import accumulator_dtype
from msda_core.kernels.config import MAX_BATCH, offset_type
from msda_core.kernels.launch import Plan, launch
from msda_core.kernels.merged import choice
from msda_core.kernels.merged.plan import SPAN, TILE, ready, work_lists
from msda_core.kernels.merged.points import points_16_kernel, points_32_kernel
from msda_core.kernels.merged.remainder import remainder_kernel
from msda_core.kernels.merged.tile import forward_tile_kernel
from msda_core.kernels.merged.window import merge_window_kernel

triton = load_triton()
tl = triton.language

__all__ = ["choice", "merged_backward", "merged_forward", "suits", "worthwhile"]

#: Rows (queries × heads × batch items) from which on a call is worth three launches.
ENOUGH = 2**17

#: Queries of a tile that `points` works on at a time, a warp each. The interpreter pays by the operation: all of them.
AT_ONCE = TILE[0] * TILE[1] if INTERPRETED else 4

#: Points of a level that the forward works on at a time. All four is 1 to 6 % faster, unless ptxas then moves every load of the
#: kernel to its beginning, as 12.9 in Triton 3.9 does: 250 registers instead of 44. 3.6 and 3.7 have 12.8, and the same machine code.
UNROLL = 4 if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 8) else 2

D, K = 32, 4  # what the kernels' layouts are made for: the models named above, and their descendants
_16_BITS = (torch.float16, torch.bfloat16)
_FLOATS = (torch.float32, *_16_BITS)


def suits(
    value: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    levels: tuple[tuple[int, int], ...] | None,
    deterministic: bool = False,
) -> bool:
    """Can the merged kernels do this call? Reads sizes and dtypes, no data, and waits for nothing.

    Args:
        levels: (H, W) of each, where the host knows them; None where only the device does.

    Returns:
        True if every pixel is a query (Q = sum of H·W), K = 4, D = 32, there are at most 8 levels, and heads in pairs in 16
        bits; no deterministic sum is asked for; the GPU has tensor cores of SM 8.0 or newer; 32-bit offsets suffice; and the
        work lists are there, or no CUDA graph is being captured.
    """
    B, S, M, channels = value.shape
    _, Q, _, L, points, _ = sampling_locations.shape
    return (
        channels == D
        and points == K
        and levels is not None
        and not deterministic
        and 0 < B <= MAX_BATCH
        and 0 < L <= 8
        and M > 0
        and (M % 2 == 0 or value.dtype == torch.float32)
        and value.dtype in _FLOATS
        and sampling_locations.dtype in _FLOATS
        and attention_weights.dtype in _FLOATS
        and Q == sum(H * W for H, W in levels)
        and offset_type(S, B * Q, M, D, L, K) == tl.int32
        and _capability(value.device) >= 80
        and ready(levels, value.device)
    )


def _capability(device: torch.device) -> int:
    return capability(device)  # below 80 none of these kernels runs: not on an AMD GPU, where it is 0


def worthwhile(value: Tensor, sampling_locations: Tensor) -> bool:
    """Is a call that suits large enough to gain, and its GPU one where that was measured? What is merged unasked; see LOG.md.

    Where the points lie decides, too: `choice`. Elsewhere than on SM 9.0 the kernels compile and are right, and nobody has timed them.
    """
    large = value.shape[0] * sampling_locations.shape[1] * value.shape[2] >= ENOUGH
    return large and value.dtype in _FLOATS and _capability(value.device) == 90


# ------------------------------------------------------------------------------------------------------------- forward


@functools.lru_cache(maxsize=1024)
def _forward_plan(B: int, Q: int, S: int, M: int, L: int, itemsize: int, tiles: int) -> Plan:
    BLOCK_M = 2 if itemsize == 2 else 1  # heads whose rows fill a line of 128 bytes
    constants = (Q, S, M, L, K, *TILE, BLOCK_M, UNROLL, not INTERPRETED)
    return Plan((tiles, M // BLOCK_M, B), constants, num_warps=8 if itemsize == 2 else 4)


def merged_forward(
    value: Tensor, shapes: Tensor, starts: Tensor, levels: tuple[tuple[int, int], ...],
    sampling_locations: Tensor, attention_weights: Tensor,
    reference: Tensor | None = None, lse: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The forward, for a call that `suits`.

    Args:
        levels: what `shapes` holds, on the host; the rest as in `msda_forward`.
        reference: (B, Q, L, 2) float32, contiguous: `sampling_locations` are then offsets in pixels from these points,
            `attention_weights` logits, and lse, (B, Q, M) float32, their `raw.row_sums`.

    Returns:
        (B, Q, M*D), in value's dtype.
    """
    B, S, M, _ = value.shape
    Q, L = sampling_locations.shape[1], len(levels)
    lists = work_lists(levels, value.device)
    out = value.new_empty(B, Q, M * D)
    launch(
        forward_tile_kernel,
        _forward_plan(B, Q, S, M, L, value.element_size(), len(lists.tiles)),
        (_aligned(value), shapes.contiguous(), starts.contiguous(), _aligned(sampling_locations),
         attention_weights.contiguous(), out, lists.tiles, reference, lse),
    )  # fmt: skip
    return out


# ------------------------------------------------------------------------------------------------------------ backward


@functools.lru_cache(maxsize=1024)
def _backward_plans(
    B: int,
    Q: int,
    S: int,
    M: int,
    L: int,
    dtype: torch.dtype,
    accumulator: torch.dtype,
    counts: tuple[int, int, int],
    capability: int,
) -> tuple[Plan, Plan, Plan]:
    """Grids, constants and warps of `window`, `remainder` and `points`, as measured (LOG.md)."""
    merges, spans, tiles = counts
    wide = accumulator == torch.float32
    # float16 sums of a window that overflow: leave it to the plain additions, which may not
    window = (Q, S, merges, M, D, L, 2 if wide else 1, 16, 8, torch.finfo(accumulator).max, not INTERPRETED)
    # Three programs a multiprocessor, where tensor cores take operands from shared memory; elsewhere it would spill.
    limit = {"maxnreg": 168} if not wide and 90 <= capability < 110 else {}
    stages = 2 if wide and capability == 90 else 1  # 5 % there; on 10.0 it spills
    plans = (
        Plan((merges * M, B, 1), window, num_warps=4, num_stages=stages, **limit),
        Plan((spans * M, B, 1), (Q, S, M, D, L, SPAN, 32), num_warps=4),
    )
    if dtype == torch.float32:
        return *plans, Plan((tiles, M, B), (Q, S, merges, M, L, *TILE, AT_ONCE, 4), num_warps=4, maxnreg=64)
    points = (Q, S, merges, M, L, *TILE, AT_ONCE, 4, not INTERPRETED)
    return *plans, Plan((tiles, M // 2, B), points, num_warps=4, maxnreg=128)


def merged_backward(
    value: Tensor, shapes: Tensor, starts: Tensor, levels: tuple[tuple[int, int], ...],
    sampling_locations: Tensor, attention_weights: Tensor, grad_out: Tensor,
    fp32_grad_accum: bool | None = None,
    reference: Tensor | None = None, lse: Tensor | None = None, locations_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The backward, for a call that `suits`: three launches, none of which waits for the host.

    Args:
        levels: what `shapes` holds, on the host; grad_out: (B, Q, M*D), in value's dtype; the rest as in `msda_backward`.
        reference, lse: as `merged_forward` took them; the gradients are then those of offsets and logits. L ≤ 4.
        locations_dtype: of the gradient of locations or offsets; None for theirs.

    Returns:
        (grad_value, grad_sampling_locations, grad_attention_weights), shaped and typed like the inputs.
    """
    B, S, M, _ = value.shape
    Q, L = sampling_locations.shape[1], len(levels)
    device = value.device
    lists = work_lists(levels, device)
    merges, spans = len(lists.merges), len(lists.spans)
    value, loc, attn, grad_out = map(_aligned, (value, sampling_locations, attention_weights, grad_out))
    shapes, starts = shapes.contiguous(), starts.contiguous()
    accumulator = accumulator_dtype(value.dtype, device, D, fp32_grad_accum)
    window, remainder, points = _backward_plans(
        B, Q, S, M, L, value.dtype, accumulator, (merges, spans, len(lists.tiles)), _capability(device)
    )
    grad_value = torch.zeros(value.shape, dtype=accumulator, device=device)
    grad_loc, grad_attn = torch.empty_like(loc, dtype=locations_dtype), torch.empty_like(attn)
    merged = torch.empty(B * M * merges, dtype=torch.int32, device=device)
    if merges:
        flags = torch.empty((B, L, M, Q), dtype=torch.int8, device=device)
        missed = torch.empty(B * M * spans * 4 * SPAN, dtype=torch.int16, device=device)
        tensors = (shapes, starts, loc, attn, grad_out, grad_value, flags)
        launch(merge_window_kernel, window, (*tensors, merged, lists.merges, reference, lse))
        launch(remainder_kernel, remainder, (*tensors, missed, lists.spans, reference, lse))
    tensors = (value, shapes, starts, loc, attn, grad_out, grad_value, grad_loc, grad_attn)
    launch(
        points_32_kernel if value.dtype == torch.float32 else points_16_kernel,
        points,
        (*tensors, merged, lists.tiles, lists.slots, reference, lse),
    )
    return grad_value.to(value.dtype), grad_loc, grad_attn


def _aligned(tensor: Tensor) -> Tensor:
    """Contiguous, and at a multiple of 16 bytes: the kernels read locations and rows as packed pairs."""
    tensor = tensor.contiguous()
    return tensor.clone() if tensor.data_ptr() % 16 else tensor

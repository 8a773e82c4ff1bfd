"""Does a level table fit its value? A check on the device, for which nobody waits."""

import functools

import torch
from torch import Tensor

from msda_core.device import load_triton
from msda_core.kernels.launch import Plan, launch

triton = load_triton()
tl = triton.language

__all__ = ["fit", "fit_kernel"]


@triton.jit
def fit_kernel(
    shapes_ptr, starts_ptr, shapes_out_ptr, starts_out_ptr, report_ptr,
    S,
    L: tl.constexpr, BLOCK_L: tl.constexpr,
):  # fmt: skip
    """One program: copy the table if every level lies inside S, else one of no height; and report S + 1.

    A point finds no pixel on a level of no height, so that kernels that read the copy read nothing else either.
    """
    level = tl.arange(0, BLOCK_L)
    mask = level < L
    H = tl.load(shapes_ptr + 2 * level, mask=mask, other=1).to(tl.int64)
    W = tl.load(shapes_ptr + 2 * level + 1, mask=mask, other=1).to(tl.int64)
    start = tl.load(starts_ptr + level, mask=mask, other=0).to(tl.int64)
    fits = (H > 0) & (H <= S) & (W > 0) & (W <= S) & (start >= 0) & (start + H * W <= S)
    all_fit = tl.min((fits | (level >= L)).to(tl.int32), 0)
    tl.store(shapes_out_ptr + 2 * level, (H * all_fit).to(tl.int32), mask=mask)
    tl.store(shapes_out_ptr + 2 * level + 1, (W * all_fit).to(tl.int32), mask=mask)
    tl.store(starts_out_ptr + level, (start * all_fit).to(tl.int32), mask=mask)
    if report_ptr is not None:
        tl.store(report_ptr, tl.cast(S, tl.int64) + 1, mask=all_fit == 0)


@functools.lru_cache(maxsize=1024)
def _plan(S: int, L: int) -> Plan:
    return Plan((1, 1, 1), (S, L, triton.next_power_of_2(L)), num_warps=1)


def fit(shapes: Tensor, starts: Tensor, S: int, report: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """A copy of a level table that no kernel can read past value with.

    Args:
        shapes: (L, 2); starts: (L,); int32 or int64, on one device.
        S: pixels of value.
        report: (1,) int64, on that device or in pinned memory: set to S + 1 if a level does not lie inside S.

    Returns:
        shapes and starts, int32; zeros if a level does not lie inside S.
    """
    L = len(shapes)
    shapes_out = torch.empty(L, 2, dtype=torch.int32, device=shapes.device)
    starts_out = torch.empty(L, dtype=torch.int32, device=shapes.device)
    launch(fit_kernel, _plan(S, L), (shapes.contiguous(), starts.contiguous(), shapes_out, starts_out, report))
    return shapes_out, starts_out

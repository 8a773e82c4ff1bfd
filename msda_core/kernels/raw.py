"""What a module's linear layers give, read where it is used: reference points, offsets in pixels, logits.

    location  = reference + offset / (W, H)            attention = softmax over all points of a row

Written out between two kernels, locations and weights cost their bytes twice: 90 MB at encoder scale. A kernel that reads
the layers' own output needs a reference point for each query and level, the same for all heads, and one number a row, the
logarithm of its sum of exponentials: a weight is then exp(logit - lse).
"""

import functools

import torch
from torch import Tensor

from msda_core.device import load_triton
from msda_core.kernels.launch import Plan, launch

triton = load_triton()
tl = triton.language

__all__ = ["log_sum", "log_sum_kernel", "placed", "row_sums", "softmaxed"]


@triton.jit
def log_sum(logits_ptr, offs_row, mask, P: tl.constexpr):
    """The logarithm of the sum of exponentials of each row's P logits, [rows]; NaN for a row that is masked off."""
    p = tl.arange(0, triton.next_power_of_2(P))[None, :]
    mask = mask[:, None] & (p < P)
    logits = tl.load(logits_ptr + offs_row[:, None] * P + p, mask=mask, other=-float("inf")).to(tl.float32)
    top = tl.max(logits, 1)
    return top + tl.log(tl.sum(tl.exp(logits - top[:, None]), 1))


@triton.jit
def softmaxed(logits, lse_ptr, offs_row, mask):
    """Weights of points whose rows' `log_sum` lies at offs_row; 1 where mask is off."""
    return tl.where(mask, tl.exp(logits - tl.load(lse_ptr + offs_row, mask=mask, other=0.0)), 1.0)


@triton.jit
def placed(x, y, ref_ptr, offs, W, H, mask):
    """Locations in [0, 1] of offsets in pixels, from reference points (x, y) at element 2·offs."""
    ref_x = tl.load(ref_ptr + 2 * offs, mask=mask, other=0.0)
    ref_y = tl.load(ref_ptr + 2 * offs + 1, mask=mask, other=0.0)
    return ref_x + x * (1.0 / W), ref_y + y * (1.0 / H)


@triton.jit
def log_sum_kernel(logits_ptr, lse_ptr, N, P: tl.constexpr, ROWS: tl.constexpr):
    """One program: `log_sum` of ROWS rows of N; lse_ptr is written."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    mask = row < N
    tl.store(lse_ptr + row, log_sum(logits_ptr, row.to(tl.int64), mask, P), mask=mask)


@functools.lru_cache(maxsize=1024)
def _plan(N: int, P: int) -> Plan:
    ROWS = max(1, 4096 // triton.next_power_of_2(P))
    return Plan((triton.cdiv(N, ROWS), 1, 1), (N, P, ROWS), num_warps=4)


def row_sums(logits: Tensor) -> Tensor:
    """`log_sum` of each row's points, one launch: (B, Q, M, L, K) → (B, Q, M), float32."""
    lse = torch.empty(logits.shape[:3], dtype=torch.float32, device=logits.device)
    plan = _plan(lse.numel(), logits.shape[3] * logits.shape[4])
    launch(log_sum_kernel, plan, (logits.contiguous(), lse))
    return lse

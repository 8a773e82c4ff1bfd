"""One known kernel: if this does not add two vectors, Triton does not work here."""

import torch
from torch import Tensor

from msda_core.device import tl, triton


@triton.jit
def _add_kernel(x_ptr, y_ptr, out_ptr, N, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < N
    total = tl.load(x_ptr + offs, mask=mask) + tl.load(y_ptr + offs, mask=mask)
    tl.store(out_ptr + offs, total, mask=mask)


def add(x: Tensor, y: Tensor) -> Tensor:
    """x + y for two vectors (N,), by a Triton kernel."""
    out = torch.full_like(x, float("nan"))
    _add_kernel[(triton.cdiv(x.numel(), 32),)](x, y, out, x.numel(), BLOCK=32)
    return out

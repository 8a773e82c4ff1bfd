"""Plain or merged? What the locations of the last call of a kind say, for which nobody waits.

Merging gains where neighbours' points stay together, and also where most of them leave the image; it loses between the two,
from some six pixels on (LOG.md). Both are told by one number, `far`: the share of points that lie inside the image and more than
`FAR` pixels of their level from their query's own pixel. A kernel of one program counts it on a sample, and writes it into the
host's memory; the host reads what is there when a call of the same sizes comes. Until then calls are merged: modules start with
offsets of a few pixels. It takes 5 µs, so one call in `EVERY` is looked at. Only float32 asks: sums of 16-bit gradients that are not
merged are made in float32, and slower at every spread.

    spread, pixels   0.5   2     4     6     8     16    32    initial   uniform
    far              0     0.01  0.23  0.41  0.47  0.43  0.28  0         0.90
"""

import functools

import torch
from torch import Tensor

from msda_core.device import load_triton
from msda_core.kernels.launch import Plan, launch

triton = load_triton()
tl = triton.language

__all__ = ["BACKWARD", "EVERY", "FORWARD", "far", "far_kernel", "look", "matters"]

FAR = tl.constexpr(6.0)  # pixels
ROWS = tl.constexpr(256)  # of the sample, (query, head) pairs
#: `far` above which the plain kernels are faster, as measured on SM 9.0 (LOG.md): between 16 pixels and 8; above all but uniform.
BACKWARD, FORWARD = 0.44, 0.7


@triton.jit
def far_kernel(
    shapes_ptr, loc_ptr, far_ptr,
    B, Q,
    M: tl.constexpr, L: tl.constexpr, K: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
    """One program: far_ptr, a float32, is set to `far`, of ROWS rows spread over all queries, heads and batch items."""
    n = tl.arange(0, ROWS)
    q = (n.to(tl.int64) * Q // ROWS).to(tl.int32)
    b = n % B
    own_W = tl.full([ROWS], 1, tl.int32)
    own_H = tl.full([ROWS], 1, tl.int32)
    pixel = q
    first = 0
    for level in tl.static_range(L):
        H = tl.load(shapes_ptr + 2 * level).to(tl.int32)
        W = tl.load(shapes_ptr + 2 * level + 1).to(tl.int32)
        here = (q >= first) & (q < first + H * W)
        own_W = tl.where(here, W, own_W)
        own_H = tl.where(here, H, own_H)
        pixel = tl.where(here, q - first, pixel)
        first += H * W
    own_x = (pixel % own_W + 0.5) / own_W
    own_y = (pixel // own_W + 0.5) / own_H

    p = tl.arange(0, BLOCK_P)[None, :]
    level = tl.minimum(p // K, L - 1)
    H = tl.load(shapes_ptr + 2 * level).to(tl.int32)
    W = tl.load(shapes_ptr + 2 * level + 1).to(tl.int32)
    mask = (n >= 0)[:, None] & (p < L * K)
    offs = 2 * ((((b * Q + q) * M + n % M) * (L * K))[:, None] + p)
    x = tl.load(loc_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(loc_ptr + offs + 1, mask=mask, other=0.0).to(tl.float32)
    dx = (x - own_x[:, None]) * W
    dy = (y - own_y[:, None]) * H
    away = mask & (x > 0) & (x < 1) & (y > 0) & (y < 1) & (dx * dx + dy * dy > FAR * FAR)
    tl.store(far_ptr, tl.sum(tl.sum(away.to(tl.float32), 1), 0) / (ROWS * L * K))


#: Calls of a kind for each that is looked at.
EVERY = 16
#: Kinds of calls → where their `far` is written: how many are kept, and those seen so far.
KEPT = 1024
_slots: dict[tuple, int] = {}
_calls: dict[int, int] = {}


@functools.lru_cache
def _page() -> tuple[Tensor, Tensor]:
    """`KEPT` numbers in the host's memory, for GPUs to write; and the same to read. Zero: nothing was far, or nobody looked."""
    page = torch.zeros(KEPT, 4, pin_memory=torch.cuda.is_available())  # 16 bytes each, as `launch` likes its pointers
    return page, page.numpy()


def _slot(sampling_locations: Tensor, levels: tuple[tuple[int, int], ...]) -> int | None:
    key = (levels, *sampling_locations.shape[:3], sampling_locations.device)
    slot = _slots.get(key)
    if slot is None and len(_slots) < KEPT:
        slot = _slots[key] = len(_slots)
    return slot


def matters(value: Tensor) -> bool:
    """Can the plain kernels be faster, wherever the points lie?"""
    return value.dtype == torch.float32


def far(sampling_locations: Tensor, levels: tuple[tuple[int, int], ...]) -> float:
    """`far` as the last `look` at a call of these sizes found it; 0.0 where there was none, or it is still under way."""
    slot = _slot(sampling_locations, levels)
    return 0.0 if slot is None else float(_page()[1][slot, 0])


@functools.lru_cache(maxsize=1024)
def _plan(B: int, Q: int, M: int, L: int, K: int) -> Plan:
    return Plan((1, 1, 1), (B, Q, M, L, K, triton.next_power_of_2(L * K)), num_warps=4)


def look(shapes: Tensor, sampling_locations: Tensor, levels: tuple[tuple[int, int], ...]) -> None:
    """Count `far` of this call, for those after it: one small launch, in one of `EVERY` calls of a kind.

    Strided locations are not looked at, and nothing is while a CUDA graph is captured.

    Args:
        sampling_locations: (B, Q, M, L, K, 2), a query for each pixel of `levels`, which `shapes` holds on the device.
    """
    slot = _slot(sampling_locations, levels)
    if slot is None or not sampling_locations.is_contiguous():
        return
    _calls[slot] = _calls.get(slot, 0) + 1
    if _calls[slot] % EVERY != 1 or (sampling_locations.is_cuda and torch.cuda.is_current_stream_capturing()):
        return
    B, Q, M, L, K, _ = sampling_locations.shape
    launch(far_kernel, _plan(B, Q, M, L, K), (shapes.contiguous(), sampling_locations, _page()[0][slot]))

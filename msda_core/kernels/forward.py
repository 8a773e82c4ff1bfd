"""Multi-scale deformable attention, forward: one kernel, and its launcher.

    out[b, q, m, :] = sum over (l, k) of attention[b, q, m, l, k] * bilinear(value_l[b, :, m, :], x*W_l - 0.5, y*H_l - 0.5)

One program owns BLOCK_Q queries and BLOCK_M neighbouring heads of one batch item. All their points form one tile
(row, point, channel), a row being a (query, head) pair: the parameters of a row are contiguous over its points, so
they are read coalesced and once, and the four corners of every point are in flight together.

Bytes it should move: locations, weights and output once; of value each touched sector once, if the caches hold it.
"""

import functools
from typing import NamedTuple

from torch import Tensor

from msda_core.device import load_triton

triton = load_triton()
tl = triton.language

__all__ = ["Launch", "corners", "launch_config", "msda_forward", "msda_fwd_kernel", "offset_type"]


@triton.jit
def corners(x, y, W, H):
    """Where a pixel coordinate lies between its four pixels, and which of those four exist.

    A point that touches no pixel, NaN and infinity included, comes back as (0, 0) with no corner allowed.

    Returns:
        x0, y0: the upper left pixel; fx, fy: how far past it, in [0, 1); left, right, top, bottom: is that side inside?
    """
    inside = (x > -1) & (x < W) & (y > -1) & (y < H)  # NaN compares false
    x = tl.where(inside, x, 0.0)
    y = tl.where(inside, y, 0.0)
    x0 = tl.floor(x)
    y0 = tl.floor(y)
    left = inside & (x0 >= 0)
    right = inside & (x0 < W - 1)
    return x0.to(tl.int32), y0.to(tl.int32), x - x0, y - y0, left, right, y0 >= 0, y0 < H - 1


@triton.jit
def msda_fwd_kernel(
    value_ptr, shapes_ptr, starts_ptr, loc_ptr, attn_ptr, out_ptr,
    Q, S,
    M: tl.constexpr, D: tl.constexpr, L: tl.constexpr, K: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_D: tl.constexpr,
    OFFSET: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_Q queries and BLOCK_M heads of one batch item; points and channels in blocks."""
    BLOCKS_M: tl.constexpr = (M + BLOCK_M - 1) // BLOCK_M
    blocks_q = tl.cdiv(Q, BLOCK_Q)
    pid = tl.program_id(0)
    pid_q = pid % blocks_q
    pid_m = pid // blocks_q % BLOCKS_M
    b = (pid // blocks_q // BLOCKS_M).to(tl.int64)  # only whole batch items can lie 2^31 elements apart

    rows = tl.arange(0, BLOCK_Q * BLOCK_M)
    q = pid_q * BLOCK_Q + rows // BLOCK_M
    m = pid_m * BLOCK_M + rows % BLOCK_M
    mask_row = (q < Q) & (m < M)
    offs_row = q.to(OFFSET) * M + m
    offs_p = tl.arange(0, BLOCK_P)
    offs_d = tl.arange(0, BLOCK_D)

    value_ptr += b * S * (M * D)
    loc_ptr += b * Q * (M * L * K * 2)
    attn_ptr += b * Q * (M * L * K)
    out_ptr += b * Q * (M * D)

    for d0 in range(0, D, BLOCK_D):
        d = d0 + offs_d
        acc = tl.zeros([BLOCK_Q * BLOCK_M, BLOCK_D], tl.float32)
        for p0 in range(0, L * K, BLOCK_P):
            p = p0 + offs_p
            mask_p = mask_row[:, None] & (p < L * K)[None, :]
            offs_point = offs_row[:, None] * (L * K) + p[None, :]
            a = tl.load(attn_ptr + offs_point, mask=mask_p, other=0.0).to(tl.float32)
            x = tl.load(loc_ptr + 2 * offs_point, mask=mask_p, other=0.0).to(tl.float32)
            y = tl.load(loc_ptr + 2 * offs_point + 1, mask=mask_p, other=0.0).to(tl.float32)

            level = tl.minimum(p // K, L - 1)
            H = tl.load(shapes_ptr + 2 * level).to(tl.int32)[None, :]
            W = tl.load(shapes_ptr + 2 * level + 1).to(tl.int32)[None, :]
            start = tl.load(starts_ptr + level).to(tl.int32)[None, :]
            x0, y0, fx, fy, left, right, top, bottom = corners(x * W - 0.5, y * H - 0.5, W, H)

            pixel = (start + y0 * W + x0).to(OFFSET)
            corner = (value_ptr + (pixel * M + m[:, None]) * D)[:, :, None] + d[None, None, :]
            below = (W.to(OFFSET) * (M * D))[:, :, None]
            mask_d = mask_p[:, :, None] & (d < D)[None, None, :]
            v = tl.load(corner, mask=mask_d & (left & top)[:, :, None], other=0.0).to(tl.float32)
            sample = v * (a * (1 - fx) * (1 - fy))[:, :, None]
            v = tl.load(corner + M * D, mask=mask_d & (right & top)[:, :, None], other=0.0).to(tl.float32)
            sample += v * (a * fx * (1 - fy))[:, :, None]
            v = tl.load(corner + below, mask=mask_d & (left & bottom)[:, :, None], other=0.0).to(tl.float32)
            sample += v * (a * (1 - fx) * fy)[:, :, None]
            v = tl.load(corner + below + M * D, mask=mask_d & (right & bottom)[:, :, None], other=0.0).to(tl.float32)
            sample += v * (a * fx * fy)[:, :, None]
            acc += tl.sum(sample, axis=1)

        mask_out = mask_row[:, None] & (d < D)[None, :]
        tl.store(out_ptr + offs_row[:, None] * D + d[None, :], acc.to(out_ptr.dtype.element_ty), mask=mask_out)


class Launch(NamedTuple):
    """How a call is cut into programs: everything a kernel is specialised on besides the sizes M, D, L, K."""

    BLOCK_Q: int
    BLOCK_M: int
    BLOCK_P: int
    BLOCK_D: int
    num_warps: int

    def programs(self, B: int, Q: int, M: int) -> int:
        """Size of the grid.

        Raises:
            ValueError: more programs than a launch can have.
        """
        count = B * -(-Q // self.BLOCK_Q) * -(-M // self.BLOCK_M)
        if count >= 2**31:
            raise ValueError(
                f"a launch holds at most 2^31 - 1 programs, expected fewer, got {count} for B = {B}, Q = {Q}, M = {M}. "
                "Is the batch meant to be split?"
            )
        return count


@functools.lru_cache(maxsize=1024)
def launch_config(M: int, D: int, L: int, K: int, itemsize: int) -> Launch:
    """The forward launch for these sizes and this many bytes per element of value."""
    BLOCK_D = min(triton.next_power_of_2(D), 128)
    BLOCK_P = min(triton.next_power_of_2(L * K), 64, 4096 // BLOCK_D)
    tile = BLOCK_P * BLOCK_D
    BLOCK_Q = max(1, 1024 // tile)
    return Launch(BLOCK_Q, 1, BLOCK_P, BLOCK_D, num_warps=min(max(1, BLOCK_Q * tile // 1024), 4))


def offset_type(S: int, Q: int, M: int, D: int, L: int, K: int):
    """The narrowest integer that can number the elements of one batch item: `tl.int32`, or `tl.int64` past 2^31."""
    return tl.int32 if max(S * M * D, Q * M * D, 2 * Q * M * L * K) < 2**31 else tl.int64


def msda_forward(
    value: Tensor, shapes: Tensor, starts: Tensor, sampling_locations: Tensor, attention_weights: Tensor,
    launch: Launch | None = None,
) -> Tensor:  # fmt: skip
    """Launch `msda_fwd_kernel`.

    Args:
        value: (B, S, M, D), any of float32, float16, bfloat16.
        shapes: (L, 2), (H, W) of each level; starts: (L,); int32 or int64, on value's device.
        sampling_locations: (B, Q, M, L, K, 2); attention_weights: (B, Q, M, L, K); float dtypes of their own.
        launch: how to cut the call; None for the measured choice.

    Returns:
        (B, Q, M*D), in value's dtype. Nothing here reads a table, so nothing waits for the device.
    """
    B, S, M, D = value.shape
    _, Q, _, L, K, _ = sampling_locations.shape
    if attention_weights.numel() == 0 or D == 0:
        return value.new_zeros(B, Q, M * D)
    out = value.new_empty(B, Q, M * D)
    launch = launch or launch_config(M, D, L, K, value.element_size())
    msda_fwd_kernel[(launch.programs(B, Q, M),)](
        value.contiguous(), shapes.contiguous(), starts.contiguous(),
        sampling_locations.contiguous(), attention_weights.contiguous(), out,
        Q, S, M, D, L, K,
        launch.BLOCK_Q, launch.BLOCK_M, launch.BLOCK_P, launch.BLOCK_D, offset_type(S, Q, M, D, L, K),
        num_warps=launch.num_warps,
    )  # fmt: skip
    return out

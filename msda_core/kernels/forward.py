"""Multi-scale deformable attention, forward: one kernel, and its launcher.

    out[b, q, m, :] = sum over l, k of attention[b, q, m, l, k] * bilinear(value_l[b, :, m, :], x*W_l - 0.5, y*H_l - 0.5)

One program owns BLOCK_Q queries and BLOCK_M neighbouring heads of one batch item: a tile (row, point, channel), where a
row is a (query, head) pair. With few queries, all points of a row are in the tile, their parameters are read coalesced,
and the corners of every point are in flight together. With many, the rows fill the warp and the program loops over the
points: nothing is summed across lanes, and neighbouring rows find each other's pixels in L1.

Bytes it should move: locations, weights and output once; of value each touched sector once, if the caches hold it.
"""

import functools

import torch
from torch import Tensor

from msda_core.device import load_triton
from msda_core.kernels.config import MAX_BATCH, LaunchConfig, offset_type
from msda_core.kernels.launch import Plan, launch

triton = load_triton()
tl = triton.language

__all__ = ["corners", "forward_config", "msda_forward", "msda_fwd_kernel"]


@triton.jit
def corners(x, y, W, H):
    """The four pixels around a point, in pixel coordinates, and which of them exist.

    Returns:
        x0, y0: the upper left pixel; fx, fy: how far past it, in [0, 1); left, right, top, bottom: is that side inside?
    """
    x = tl.where(x > -2, x, -2.0)  # far outside is as good as just outside, and fits an int;
    y = tl.where(y > -2, y, -2.0)  # a NaN compares false, so it ends up there too
    x = tl.where(x < W + 1, x, W + 1.0)
    y = tl.where(y < H + 1, y, H + 1.0)
    x_floor = tl.floor(x)
    y_floor = tl.floor(y)
    x0 = x_floor.to(tl.int32)
    y0 = y_floor.to(tl.int32)
    left = (x0 >= 0) & (x0 < W)
    right = (x0 >= -1) & (x0 < W - 1)
    top = (y0 >= 0) & (y0 < H)
    bottom = (y0 >= -1) & (y0 < H - 1)
    return x0, y0, x - x_floor, y - y_floor, left, right, top, bottom


@triton.jit
def msda_fwd_kernel(
    value_ptr, shapes_ptr, starts_ptr, loc_ptr, attn_ptr, out_ptr,
    Q, S,
    M: tl.constexpr, D: tl.constexpr, L: tl.constexpr, K: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_D: tl.constexpr,
    UNROLL: tl.constexpr, EVICT: tl.constexpr, OFFSET: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_Q queries and BLOCK_M heads of one batch item; points and channels in blocks."""
    b = tl.program_id(2).to(tl.int64)  # only whole batch items can lie 2^31 elements apart
    rows = tl.arange(0, BLOCK_Q * BLOCK_M)
    q = tl.program_id(0) * BLOCK_Q + rows // BLOCK_M
    m = tl.program_id(1) * BLOCK_M + rows % BLOCK_M
    mask_row = (q < Q) & (m < M)
    offs_row = q.to(OFFSET) * M + m
    value_ptr += b * S * (M * D)
    loc_ptr += b * Q * (M * L * K * 2)
    attn_ptr += b * Q * (M * L * K)
    out_ptr += b * Q * (M * D)

    for d0 in range(0, D, BLOCK_D):
        offs_d = d0 + tl.arange(0, BLOCK_D)
        mask_d = offs_d < D
        acc = tl.zeros([BLOCK_Q * BLOCK_M, BLOCK_D], tl.float32)
        for p0 in tl.range(0, L * K, BLOCK_P, loop_unroll_factor=UNROLL):
            offs_p = p0 + tl.arange(0, BLOCK_P)
            mask_p = mask_row[:, None] & (offs_p < L * K)[None, :]
            offs_rp = offs_row[:, None] * (L * K) + offs_p[None, :]
            a = tl.load(attn_ptr + offs_rp, mask=mask_p, other=0.0).to(tl.float32)
            x = tl.load(loc_ptr + 2 * offs_rp, mask=mask_p, other=0.0).to(tl.float32)
            y = tl.load(loc_ptr + 2 * offs_rp + 1, mask=mask_p, other=0.0).to(tl.float32)
            level = tl.minimum(offs_p // K, L - 1)
            H = tl.load(shapes_ptr + 2 * level).to(tl.int32)[None, :]
            W = tl.load(shapes_ptr + 2 * level + 1).to(tl.int32)[None, :]
            start = tl.load(starts_ptr + level).to(tl.int32)[None, :]

            x0, y0, fx, fy, left, right, top, bottom = corners(x * W - 0.5, y * H - 0.5, W, H)
            pixel = start + y0 * W + x0
            offs_00 = ((pixel.to(OFFSET) * M + m[:, None]) * D)[:, :, None] + offs_d[None, None, :]
            # Not offs_00 plus a row: W would be loaded a second time, in the layout of the whole tile.
            offs_10 = (((pixel + W).to(OFFSET) * M + m[:, None]) * D)[:, :, None] + offs_d[None, None, :]
            mask_00 = (mask_p & left & top)[:, :, None] & mask_d[None, None, :]
            mask_01 = (mask_p & right & top)[:, :, None] & mask_d[None, None, :]
            mask_10 = (mask_p & left & bottom)[:, :, None] & mask_d[None, None, :]
            mask_11 = (mask_p & right & bottom)[:, :, None] & mask_d[None, None, :]

            v = tl.load(value_ptr + offs_00, mask=mask_00, other=0.0, eviction_policy=EVICT).to(tl.float32)
            sample = v * (a * (1 - fx) * (1 - fy))[:, :, None]
            v = tl.load(value_ptr + offs_00 + M * D, mask=mask_01, other=0.0, eviction_policy=EVICT).to(tl.float32)
            sample += v * (a * fx * (1 - fy))[:, :, None]
            v = tl.load(value_ptr + offs_10, mask=mask_10, other=0.0, eviction_policy=EVICT).to(tl.float32)
            sample += v * (a * (1 - fx) * fy)[:, :, None]
            v = tl.load(value_ptr + offs_10 + M * D, mask=mask_11, other=0.0, eviction_policy=EVICT).to(tl.float32)
            sample += v * (a * fx * fy)[:, :, None]
            acc += tl.sum(sample, axis=1)

        mask_out = mask_row[:, None] & mask_d[None, :]
        tl.store(out_ptr + offs_row[:, None] * D + offs_d[None, :], acc.to(out_ptr.dtype.element_ty), mask=mask_out)


def forward_config(B: int, Q: int, M: int, D: int, L: int, K: int, itemsize: int) -> LaunchConfig:
    """The measured launch config of a forward call, `itemsize` bytes per element of value; see LOG.md."""
    BLOCK_D = min(triton.next_power_of_2(D), 128)
    lanes = max(1, BLOCK_D * itemsize // 16)  # of a row, 16 bytes each
    if lanes <= 16 and B * Q * M * lanes >= 2**19:  # rows enough to fill every warp with them: loop over the points
        BLOCK_M = 2 if itemsize == 2 and M % 2 == 0 else 1  # two heads' rows fill a line: they never meet in a bank
        BLOCK_Q = max(1, 32 // lanes // BLOCK_M)
        return LaunchConfig(BLOCK_Q, BLOCK_M, 1, BLOCK_D, num_warps=1, UNROLL=2 if itemsize == 2 else 4)
    BLOCK_P = min(triton.next_power_of_2(L * K), max(1, 2048 // BLOCK_D))
    BLOCK_M = 2 if itemsize == 2 and M % 2 == 0 and BLOCK_P * BLOCK_D <= 512 else 1
    num_warps = min(max(1, BLOCK_M * BLOCK_P * BLOCK_D // 1024), 4)
    evict = "evict_first" if itemsize > 2 else ""  # 1 % in float32, minus 1 to 2 % in 16 bits
    config = LaunchConfig(1, BLOCK_M, BLOCK_P, BLOCK_D, num_warps, EVICT=evict)
    if D % 2:  # every element is a load of its own: 8 a lane instead of 32
        eight = max(1, 256 * num_warps // (BLOCK_M * BLOCK_D))
        config = config._replace(BLOCK_P=min(BLOCK_P, eight), maxnreg=128)
    return config


@functools.lru_cache(maxsize=4096)
def _plan(B: int, Q: int, S: int, M: int, D: int, L: int, K: int, itemsize: int, config: LaunchConfig | None) -> Plan:
    config = config or forward_config(B, Q, M, D, L, K, itemsize)
    blocks = (config.BLOCK_Q, config.BLOCK_M, config.BLOCK_P, config.BLOCK_D)
    constants = (Q, S, M, D, L, K, *blocks, config.UNROLL, config.EVICT, offset_type(S, Q, M, D, L, K))
    return Plan(config.grid(B, Q, M), constants, **config.options)


def msda_forward(
    value: Tensor, shapes: Tensor, starts: Tensor, sampling_locations: Tensor, attention_weights: Tensor,
    config: LaunchConfig | None = None,
) -> Tensor:  # fmt: skip
    """Launch `msda_fwd_kernel`. Nothing here reads a tensor, so nothing waits for the device.

    Args:
        value: (B, S, M, D), any of float32, float16, bfloat16.
        shapes: (L, 2), (H, W) of each level; starts: (L,); int32 or int64, on value's device.
        sampling_locations: (B, Q, M, L, K, 2); attention_weights: (B, Q, M, L, K); each in a float dtype of its own.
        config: how the call is divided into programs; None for the measured config.

    Returns:
        (B, Q, M*D), in value's dtype.
    """
    B, S, M, D = value.shape
    _, Q, _, L, K, _ = sampling_locations.shape
    if B == 0 or Q == 0 or M == 0 or D == 0 or K == 0:
        return value.new_zeros(B, Q, M * D)
    if B > MAX_BATCH:
        parts = zip(*(t.split(MAX_BATCH) for t in (value, sampling_locations, attention_weights)))
        return torch.cat([msda_forward(v, shapes, starts, loc, attn, config) for v, loc, attn in parts])
    out = value.new_empty(B, Q, M * D)
    launch(
        msda_fwd_kernel,
        _plan(B, Q, S, M, D, L, K, value.element_size(), config),
        (value.contiguous(), shapes.contiguous(), starts.contiguous(), sampling_locations.contiguous(),
         attention_weights.contiguous(), out),
    )  # fmt: skip
    return out

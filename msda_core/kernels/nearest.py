"""Attention at the nearest pixel instead of between four: the "discrete" method of RT-DETRv2, forward and backward.

    pixel = (clip(trunc(x*W + 0.5), 0, W - 1), clip(trunc(y*H + 0.5), 0, H - 1))
    out[b, q, m, :] = sum over l, k of attention[b, q, m, l, k] * value_l[b, pixel, m, :]

A place outside the image is its nearest edge; one that is no number, or infinite, contributes nothing. The output does not
move with the locations. One program owns the tile of the bilinear kernels, and of every four loads and reductions one.

Bytes it should move: locations, weights and output once; one pixel of value a point.

Source: RT-DETRv2 (Lv et al., 2024), section 3, and `multi_scale_deformable_attention_v2` of its released code, which samples
at x*W + 0.5, half a pixel past the pixel that holds x.
"""

import functools

import torch
from torch import Tensor

from msda_core.device import load_triton
from msda_core.kernels.backward import accumulate, accumulator_dtype, backward_config, units_per_one
from msda_core.kernels.config import MAX_BATCH, offset_type
from msda_core.kernels.forward import forward_config
from msda_core.kernels.launch import Plan, launch

triton = load_triton()
tl = triton.language

__all__ = ["nearest_backward", "nearest_bwd_kernel", "nearest_forward", "nearest_fwd_kernel"]


@triton.jit
def nearest_pixel(loc_ptr, shapes_ptr, starts_ptr, offs_rp, offs_p, mask_p, L, K):
    """The number of each point's pixel in S, and which points are a place at all."""
    x = tl.load(loc_ptr + 2 * offs_rp, mask=mask_p, other=0.0).to(tl.float32)
    y = tl.load(loc_ptr + 2 * offs_rp + 1, mask=mask_p, other=0.0).to(tl.float32)
    level = tl.minimum(offs_p // K, L - 1)
    H = tl.load(shapes_ptr + 2 * level).to(tl.int32)[None, :]
    W = tl.load(shapes_ptr + 2 * level + 1).to(tl.int32)[None, :]
    start = tl.load(starts_ptr + level).to(tl.int32)[None, :]
    place = (tl.abs(x) < float("inf")) & (tl.abs(y) < float("inf")) & (W > 0)  # a NaN compares false
    column = tl.minimum(tl.maximum(x * W + 0.5, 0.0), W - 1.0).to(tl.int32)
    row = tl.minimum(tl.maximum(y * H + 0.5, 0.0), H - 1.0).to(tl.int32)
    return start + row * W + column, mask_p & place


@triton.jit
def nearest_fwd_kernel(
    value_ptr, shapes_ptr, starts_ptr, loc_ptr, attn_ptr, out_ptr,
    Q, S,
    M: tl.constexpr, D: tl.constexpr, L: tl.constexpr, K: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_D: tl.constexpr,
    OFFSET: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_Q queries and BLOCK_M heads of one batch item; points and channels in blocks."""
    b = tl.program_id(2).to(tl.int64)
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
        for p0 in range(0, L * K, BLOCK_P):
            offs_p = p0 + tl.arange(0, BLOCK_P)
            mask_p = mask_row[:, None] & (offs_p < L * K)[None, :]
            offs_rp = offs_row[:, None] * (L * K) + offs_p[None, :]
            a = tl.load(attn_ptr + offs_rp, mask=mask_p, other=0.0).to(tl.float32)
            pixel, mask_p = nearest_pixel(loc_ptr, shapes_ptr, starts_ptr, offs_rp, offs_p, mask_p, L, K)
            offs_v = ((pixel.to(OFFSET) * M + m[:, None]) * D)[:, :, None] + offs_d[None, None, :]
            v = tl.load(value_ptr + offs_v, mask=mask_p[:, :, None] & mask_d[None, None, :], other=0.0).to(tl.float32)
            acc += tl.sum(v * tl.where(mask_p, a, 0.0)[:, :, None], axis=1)
        mask_out = mask_row[:, None] & mask_d[None, :]
        tl.store(out_ptr + offs_row[:, None] * D + offs_d[None, :], acc.to(out_ptr.dtype.element_ty), mask=mask_out)


@functools.lru_cache(maxsize=4096)
def _forward_plan(B: int, Q: int, S: int, M: int, D: int, L: int, K: int, itemsize: int) -> Plan:
    config = forward_config(B, Q, M, D, L, K, itemsize)
    blocks = (config.BLOCK_Q, config.BLOCK_M, config.BLOCK_P, config.BLOCK_D)
    return Plan(config.grid(B, Q, M), (Q, S, M, D, L, K, *blocks, offset_type(S, Q, M, D, L, K)), **config.options)


def nearest_forward(
    value: Tensor, shapes: Tensor, starts: Tensor, sampling_locations: Tensor, attention_weights: Tensor
) -> Tensor:  # fmt: skip
    """Launch `nearest_fwd_kernel`. Arguments and result as in `msda_forward`."""
    B, S, M, D = value.shape
    _, Q, _, L, K, _ = sampling_locations.shape
    if B == 0 or Q == 0 or M == 0 or D == 0 or K == 0:
        return value.new_zeros(B, Q, M * D)
    if B > MAX_BATCH:
        parts = zip(*(t.split(MAX_BATCH) for t in (value, sampling_locations, attention_weights)))
        return torch.cat([nearest_forward(v, shapes, starts, loc, attn) for v, loc, attn in parts])
    out = value.new_empty(B, Q, M * D)
    tensors = (value, shapes, starts, sampling_locations, attention_weights)
    plan = _forward_plan(B, Q, S, M, D, L, K, value.element_size())
    launch(nearest_fwd_kernel, plan, (*(t.contiguous() for t in tensors), out))
    return out


@triton.jit
def nearest_bwd_kernel(
    value_ptr, shapes_ptr, starts_ptr, loc_ptr, attn_ptr, grad_out_ptr,
    grad_value_ptr, grad_attn_ptr, unit_ptr,
    Q, S,
    M: tl.constexpr, D: tl.constexpr, L: tl.constexpr, K: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_D: tl.constexpr,
    OFFSET: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_Q queries and BLOCK_M heads of one batch item; grad_value and unit_ptr as in `msda_bwd_kernel`."""
    b = tl.program_id(2).to(tl.int64)
    rows = tl.arange(0, BLOCK_Q * BLOCK_M)
    q = tl.program_id(0) * BLOCK_Q + rows // BLOCK_M
    m = tl.program_id(1) * BLOCK_M + rows % BLOCK_M
    mask_row = (q < Q) & (m < M)
    offs_row = q.to(OFFSET) * M + m
    value_ptr += b * S * (M * D)
    grad_value_ptr += b * S * (M * D)
    loc_ptr += b * Q * (M * L * K * 2)
    attn_ptr += b * Q * (M * L * K)
    grad_attn_ptr += b * Q * (M * L * K)
    grad_out_ptr += b * Q * (M * D)
    for p0 in range(0, L * K, BLOCK_P):
        offs_p = p0 + tl.arange(0, BLOCK_P)
        mask_rp = mask_row[:, None] & (offs_p < L * K)[None, :]
        offs_rp = offs_row[:, None] * (L * K) + offs_p[None, :]
        a = tl.load(attn_ptr + offs_rp, mask=mask_rp, other=0.0).to(tl.float32)
        pixel, mask_p = nearest_pixel(loc_ptr, shapes_ptr, starts_ptr, offs_rp, offs_p, mask_rp, L, K)
        dot = tl.zeros([BLOCK_Q * BLOCK_M, BLOCK_P], tl.float32)
        for d0 in range(0, D, BLOCK_D):
            offs_d = d0 + tl.arange(0, BLOCK_D)
            mask_d = offs_d < D
            mask_g = mask_row[:, None] & mask_d[None, :]
            g = tl.load(grad_out_ptr + offs_row[:, None] * D + offs_d[None, :], mask=mask_g, other=0.0)
            g = g.to(tl.float32)[:, None, :]
            unit = 1.0
            if grad_value_ptr.dtype.element_ty == tl.int64:
                unit = tl.load(unit_ptr + (b * M + m)[:, None] * D + offs_d[None, :], mask=mask_g, other=1.0)
                unit = unit[:, None, :]
            offs_v = ((pixel.to(OFFSET) * M + m[:, None]) * D)[:, :, None] + offs_d[None, None, :]
            mask_v = mask_p[:, :, None] & mask_d[None, None, :]
            v = tl.load(value_ptr + offs_v, mask=mask_v, other=0.0).to(tl.float32)
            accumulate(grad_value_ptr + offs_v, g * a[:, :, None], mask_v, unit)
            dot += tl.sum(v * g, axis=2)
        dot = tl.where(mask_p, dot, 0.0)  # 0 * inf, where there is no place but an infinite g
        tl.store(grad_attn_ptr + offs_rp, dot.to(grad_attn_ptr.dtype.element_ty), mask=mask_rp)


@functools.lru_cache(maxsize=4096)
def _backward_plan(B: int, Q: int, S: int, M: int, D: int, L: int, K: int, itemsize: int) -> Plan:
    config = backward_config(B, Q, M, D, L, K, itemsize)
    blocks = (config.BLOCK_Q, config.BLOCK_M, config.BLOCK_P, config.BLOCK_D)
    return Plan(config.grid(B, Q, M), (Q, S, M, D, L, K, *blocks, offset_type(S, Q, M, D, L, K)), **config.options)


def nearest_backward(
    value: Tensor, shapes: Tensor, starts: Tensor, sampling_locations: Tensor, attention_weights: Tensor,
    grad_out: Tensor,
    fp32_grad_accum: bool | None = None, deterministic: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Launch `nearest_bwd_kernel`. Arguments as in `msda_backward`.

    Returns:
        (grad_value, grad_attention_weights), shaped and typed like the inputs; the gradient of the locations is zero.
    """
    B, S, M, D = value.shape
    _, Q, _, L, K, _ = sampling_locations.shape
    if B == 0 or Q == 0 or M == 0 or D == 0 or K == 0:
        return value.new_zeros(value.shape), attention_weights.new_zeros(attention_weights.shape)
    if B > MAX_BATCH:
        parts = zip(*(t.split(MAX_BATCH) for t in (value, sampling_locations, attention_weights, grad_out)))
        grads = [
            nearest_backward(v, shapes, starts, loc, attn, g, fp32_grad_accum, deterministic)
            for v, loc, attn, g in parts
        ]
        return tuple(torch.cat(column) for column in zip(*grads))
    accumulator = accumulator_dtype(value.dtype, value.device, D, fp32_grad_accum, Q * L * K / S if S else 0)
    unit = None
    if deterministic:
        accumulator, unit = torch.int64, units_per_one(grad_out, attention_weights)
    grad_value = torch.zeros(value.shape, dtype=accumulator, device=value.device)
    grad_attn = attention_weights.new_empty(attention_weights.shape)
    tensors = (value, shapes, starts, sampling_locations, attention_weights, grad_out)
    plan = _backward_plan(B, Q, S, M, D, L, K, value.element_size())
    launch(nearest_bwd_kernel, plan, (*(t.contiguous() for t in tensors), grad_value, grad_attn, unit))
    if deterministic:
        grad_value = grad_value.double().div_(unit[:, None])
    return grad_value.to(value.dtype), grad_attn

"""Multi-scale deformable attention, second derivatives: how the output moves, and how the gradients move.

Along a direction (d_value, d_location, d_attention), with the bilinear weights w_ij of a point's four corners,

    d_out    = sum over points and corners of  attention * w_ij * d_v_ij + u_ij * v_ij
    u_ij     = d_attention * w_ij + attention * (d_x * W * dw_ij/dx + d_y * H * dw_ij/dy)

is the output's derivative: forward mode, and what the backward's backward has to give grad_out. Its own gradients,

    grad_value_ij  += u_ij * g                                                   a scatter, as in the backward
    grad_attention  = bilinear(g . d_v) + d_x * W * dx(g . v) + d_y * H * dy(g . v)
    grad_location_x = W * (attention * dx(g . d_v) + d_attention * dx(g . v) + attention * d_y * H * dxdy(g . v))

are the rest of the backward's backward, and, since a second derivative is symmetric, how the three gradients move along
the direction. Programs own the tiles of `forward` and `backward`, half as many points at a time.

Bytes they should move: those of `forward` or `backward`, twice the corners, and the direction.
"""

import functools

import torch
from torch import Tensor

from msda_core.device import load_triton
from msda_core.kernels.backward import accumulate, backward_config, units_per_one
from msda_core.kernels.config import MAX_BATCH, LaunchConfig, offset_type
from msda_core.kernels.forward import corners, forward_config
from msda_core.kernels.launch import Plan, launch

triton = load_triton()
tl = triton.language

__all__ = ["msda_jvp", "msda_jvp_kernel", "msda_second", "msda_second_kernel"]


@triton.jit
def read_points(loc_ptr, attn_ptr, d_loc_ptr, d_attn_ptr, shapes_ptr, starts_ptr, offs_rp, offs_p, mask_p, L, K):
    """Locations, weights and their directions, and the level of each point, W, H and start: float32, and int32 for the last."""
    a = tl.load(attn_ptr + offs_rp, mask=mask_p, other=0.0).to(tl.float32)
    x = tl.load(loc_ptr + 2 * offs_rp, mask=mask_p, other=0.0).to(tl.float32)
    y = tl.load(loc_ptr + 2 * offs_rp + 1, mask=mask_p, other=0.0).to(tl.float32)
    d_a = tl.load(d_attn_ptr + offs_rp, mask=mask_p, other=0.0).to(tl.float32)
    d_x = tl.load(d_loc_ptr + 2 * offs_rp, mask=mask_p, other=0.0).to(tl.float32)
    d_y = tl.load(d_loc_ptr + 2 * offs_rp + 1, mask=mask_p, other=0.0).to(tl.float32)
    level = tl.minimum(offs_p // K, L - 1)
    H = tl.load(shapes_ptr + 2 * level).to(tl.int32)[None, :]
    W = tl.load(shapes_ptr + 2 * level + 1).to(tl.int32)[None, :]
    start = tl.load(starts_ptr + level).to(tl.int32)[None, :]
    return a, x, y, d_a, d_x * W, d_y * H, W, H, start


@triton.jit
def moved_weights(a, d_a, step_x, step_y, fx, fy):
    """u_00, u_01, u_10, u_11 of the module's docstring; steps in pixels."""
    step_x *= a
    step_y *= a
    u_00 = d_a * (1 - fx) * (1 - fy) - step_x * (1 - fy) - step_y * (1 - fx)
    u_01 = d_a * fx * (1 - fy) + step_x * (1 - fy) - step_y * fx
    u_10 = d_a * (1 - fx) * fy - step_x * fy + step_y * (1 - fx)
    u_11 = d_a * fx * fy + step_x * fy + step_y * fx
    return u_00, u_01, u_10, u_11


@triton.jit
def slope_x(dot_00, dot_01, dot_10, dot_11, fy):
    return (dot_01 - dot_00) * (1 - fy) + (dot_11 - dot_10) * fy


@triton.jit
def slope_y(dot_00, dot_01, dot_10, dot_11, fx):
    return (dot_10 - dot_00) * (1 - fx) + (dot_11 - dot_01) * fx


@triton.jit
def msda_jvp_kernel(
    value_ptr, shapes_ptr, starts_ptr, loc_ptr, attn_ptr, d_value_ptr, d_loc_ptr, d_attn_ptr, d_out_ptr,
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
    d_value_ptr += b * S * (M * D)
    loc_ptr += b * Q * (M * L * K * 2)
    d_loc_ptr += b * Q * (M * L * K * 2)
    attn_ptr += b * Q * (M * L * K)
    d_attn_ptr += b * Q * (M * L * K)
    d_out_ptr += b * Q * (M * D)

    for d0 in range(0, D, BLOCK_D):
        offs_d = d0 + tl.arange(0, BLOCK_D)
        mask_d = offs_d < D
        acc = tl.zeros([BLOCK_Q * BLOCK_M, BLOCK_D], tl.float32)
        for p0 in range(0, L * K, BLOCK_P):
            offs_p = p0 + tl.arange(0, BLOCK_P)
            mask_p = mask_row[:, None] & (offs_p < L * K)[None, :]
            offs_rp = offs_row[:, None] * (L * K) + offs_p[None, :]
            a, x, y, d_a, step_x, step_y, W, H, start = read_points(
                loc_ptr, attn_ptr, d_loc_ptr, d_attn_ptr, shapes_ptr, starts_ptr, offs_rp, offs_p, mask_p, L, K
            )
            x0, y0, fx, fy, left, right, top, bottom = corners(x * W - 0.5, y * H - 0.5, W, H)
            u_00, u_01, u_10, u_11 = moved_weights(a, d_a, step_x, step_y, fx, fy)
            offs_00 = (((start + y0 * W + x0).to(OFFSET) * M + m[:, None]) * D)[:, :, None] + offs_d[None, None, :]
            offs_10 = offs_00 + (W.to(OFFSET) * (M * D))[:, :, None]
            mask_00 = (mask_p & left & top)[:, :, None] & mask_d[None, None, :]
            mask_01 = (mask_p & right & top)[:, :, None] & mask_d[None, None, :]
            mask_10 = (mask_p & left & bottom)[:, :, None] & mask_d[None, None, :]
            mask_11 = (mask_p & right & bottom)[:, :, None] & mask_d[None, None, :]

            moved = tl.load(value_ptr + offs_00, mask=mask_00, other=0.0).to(tl.float32) * u_00[:, :, None]
            moved += tl.load(value_ptr + offs_00 + M * D, mask=mask_01, other=0.0).to(tl.float32) * u_01[:, :, None]
            moved += tl.load(value_ptr + offs_10, mask=mask_10, other=0.0).to(tl.float32) * u_10[:, :, None]
            moved += tl.load(value_ptr + offs_10 + M * D, mask=mask_11, other=0.0).to(tl.float32) * u_11[:, :, None]
            d_v = tl.load(d_value_ptr + offs_00, mask=mask_00, other=0.0).to(tl.float32)
            moved += d_v * (a * (1 - fx) * (1 - fy))[:, :, None]
            d_v = tl.load(d_value_ptr + offs_00 + M * D, mask=mask_01, other=0.0).to(tl.float32)
            moved += d_v * (a * fx * (1 - fy))[:, :, None]
            d_v = tl.load(d_value_ptr + offs_10, mask=mask_10, other=0.0).to(tl.float32)
            moved += d_v * (a * (1 - fx) * fy)[:, :, None]
            d_v = tl.load(d_value_ptr + offs_10 + M * D, mask=mask_11, other=0.0).to(tl.float32)
            moved += d_v * (a * fx * fy)[:, :, None]
            acc += tl.sum(moved, axis=1)

        mask_out = mask_row[:, None] & mask_d[None, :]
        tl.store(d_out_ptr + offs_row[:, None] * D + offs_d[None, :], acc.to(d_out_ptr.dtype.element_ty), mask=mask_out)


@functools.lru_cache(maxsize=4096)
def _jvp_plan(B: int, Q: int, S: int, M: int, D: int, L: int, K: int, itemsize: int) -> Plan:
    config = _half_the_points(forward_config(B, Q, M, D, L, K, itemsize))
    constants = (Q, S, M, D, L, K, *_blocks(config), offset_type(S, Q, M, D, L, K))
    return Plan(config.grid(B, Q, M), constants, **config.options)


def msda_jvp(
    value: Tensor, shapes: Tensor, starts: Tensor, sampling_locations: Tensor, attention_weights: Tensor,
    d_value: Tensor | None, d_locations: Tensor | None, d_weights: Tensor | None,
) -> Tensor:  # fmt: skip
    """Launch `msda_jvp_kernel`: how the output moves along a direction.

    Args:
        value … attention_weights: as in `msda_forward`; d_…: shaped like value, sampling_locations and
            attention_weights, or None for what rests.

    Returns:
        (B, Q, M*D), in value's dtype.
    """
    B, S, M, D = value.shape
    _, Q, _, L, K, _ = sampling_locations.shape
    inputs = (value, sampling_locations, attention_weights)
    directions = _directions(inputs, (d_value, d_locations, d_weights))
    if B == 0 or Q == 0 or M == 0 or D == 0 or K == 0:
        return value.new_zeros(B, Q, M * D)
    if B > MAX_BATCH:
        parts = zip(*(t.split(MAX_BATCH) for t in (*inputs, *directions)))
        return torch.cat([msda_jvp(part[0], shapes, starts, *part[1:]) for part in parts])
    d_out = value.new_empty(B, Q, M * D)
    launch(
        msda_jvp_kernel,
        _jvp_plan(B, Q, S, M, D, L, K, value.element_size()),
        (*_contiguous(value, shapes, starts, sampling_locations, attention_weights, *directions), d_out),
    )
    return d_out


@triton.jit
def msda_second_kernel(
    value_ptr, shapes_ptr, starts_ptr, loc_ptr, attn_ptr, grad_out_ptr, d_value_ptr, d_loc_ptr, d_attn_ptr,
    grad_value_ptr, grad_loc_ptr, grad_attn_ptr, unit_ptr,
    Q, S,
    M: tl.constexpr, D: tl.constexpr, L: tl.constexpr, K: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_D: tl.constexpr,
    OFFSET: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_Q queries and BLOCK_M heads of one batch item; points and channels in blocks.

    grad_value must be zero on entry; it and unit_ptr are as in `msda_bwd_kernel`.
    """
    b = tl.program_id(2).to(tl.int64)
    rows = tl.arange(0, BLOCK_Q * BLOCK_M)
    q = tl.program_id(0) * BLOCK_Q + rows // BLOCK_M
    m = tl.program_id(1) * BLOCK_M + rows % BLOCK_M
    mask_row = (q < Q) & (m < M)
    offs_row = q.to(OFFSET) * M + m
    value_ptr += b * S * (M * D)
    d_value_ptr += b * S * (M * D)
    grad_value_ptr += b * S * (M * D)
    loc_ptr += b * Q * (M * L * K * 2)
    d_loc_ptr += b * Q * (M * L * K * 2)
    grad_loc_ptr += b * Q * (M * L * K * 2)
    attn_ptr += b * Q * (M * L * K)
    d_attn_ptr += b * Q * (M * L * K)
    grad_attn_ptr += b * Q * (M * L * K)
    grad_out_ptr += b * Q * (M * D)

    for p0 in range(0, L * K, BLOCK_P):
        offs_p = p0 + tl.arange(0, BLOCK_P)
        mask_p = mask_row[:, None] & (offs_p < L * K)[None, :]
        offs_rp = offs_row[:, None] * (L * K) + offs_p[None, :]
        a, x, y, d_a, step_x, step_y, W, H, start = read_points(
            loc_ptr, attn_ptr, d_loc_ptr, d_attn_ptr, shapes_ptr, starts_ptr, offs_rp, offs_p, mask_p, L, K
        )
        x0, y0, fx, fy, left, right, top, bottom = corners(x * W - 0.5, y * H - 0.5, W, H)
        u_00, u_01, u_10, u_11 = moved_weights(a, d_a, step_x, step_y, fx, fy)
        offs_pixel = ((start + y0 * W + x0).to(OFFSET) * M + m[:, None]) * D
        v_00 = tl.zeros([BLOCK_Q * BLOCK_M, BLOCK_P], tl.float32)  # dot products with g, of value …
        v_01 = tl.zeros([BLOCK_Q * BLOCK_M, BLOCK_P], tl.float32)
        v_10 = tl.zeros([BLOCK_Q * BLOCK_M, BLOCK_P], tl.float32)
        v_11 = tl.zeros([BLOCK_Q * BLOCK_M, BLOCK_P], tl.float32)
        d_00 = tl.zeros([BLOCK_Q * BLOCK_M, BLOCK_P], tl.float32)  # … and of its direction
        d_01 = tl.zeros([BLOCK_Q * BLOCK_M, BLOCK_P], tl.float32)
        d_10 = tl.zeros([BLOCK_Q * BLOCK_M, BLOCK_P], tl.float32)
        d_11 = tl.zeros([BLOCK_Q * BLOCK_M, BLOCK_P], tl.float32)
        for d0 in range(0, D, BLOCK_D):
            offs_d = d0 + tl.arange(0, BLOCK_D)
            mask_d = offs_d < D
            mask_g = mask_row[:, None] & mask_d[None, :]
            g = tl.load(grad_out_ptr + offs_row[:, None] * D + offs_d[None, :], mask=mask_g, other=0.0)
            g = g.to(tl.float32)[:, None, :]
            unit = 1.0
            if grad_value_ptr.dtype.element_ty == tl.int64:
                offs_u = (b * M + m)[:, None] * D + offs_d[None, :]
                unit = tl.load(unit_ptr + offs_u, mask=mask_g, other=1.0)[:, None, :]
            offs_00 = offs_pixel[:, :, None] + offs_d[None, None, :]
            offs_01 = offs_00 + M * D
            offs_10 = offs_00 + (W.to(OFFSET) * (M * D))[:, :, None]
            offs_11 = offs_10 + M * D
            mask_00 = (mask_p & left & top)[:, :, None] & mask_d[None, None, :]
            mask_01 = (mask_p & right & top)[:, :, None] & mask_d[None, None, :]
            mask_10 = (mask_p & left & bottom)[:, :, None] & mask_d[None, None, :]
            mask_11 = (mask_p & right & bottom)[:, :, None] & mask_d[None, None, :]
            v_00 += tl.sum(tl.load(value_ptr + offs_00, mask=mask_00, other=0.0).to(tl.float32) * g, axis=2)
            v_01 += tl.sum(tl.load(value_ptr + offs_01, mask=mask_01, other=0.0).to(tl.float32) * g, axis=2)
            v_10 += tl.sum(tl.load(value_ptr + offs_10, mask=mask_10, other=0.0).to(tl.float32) * g, axis=2)
            v_11 += tl.sum(tl.load(value_ptr + offs_11, mask=mask_11, other=0.0).to(tl.float32) * g, axis=2)
            d_00 += tl.sum(tl.load(d_value_ptr + offs_00, mask=mask_00, other=0.0).to(tl.float32) * g, axis=2)
            d_01 += tl.sum(tl.load(d_value_ptr + offs_01, mask=mask_01, other=0.0).to(tl.float32) * g, axis=2)
            d_10 += tl.sum(tl.load(d_value_ptr + offs_10, mask=mask_10, other=0.0).to(tl.float32) * g, axis=2)
            d_11 += tl.sum(tl.load(d_value_ptr + offs_11, mask=mask_11, other=0.0).to(tl.float32) * g, axis=2)
            accumulate(grad_value_ptr + offs_00, g * u_00[:, :, None], mask_00, unit)
            accumulate(grad_value_ptr + offs_01, g * u_01[:, :, None], mask_01, unit)
            accumulate(grad_value_ptr + offs_10, g * u_10[:, :, None], mask_10, unit)
            accumulate(grad_value_ptr + offs_11, g * u_11[:, :, None], mask_11, unit)

        slope_vx = slope_x(v_00, v_01, v_10, v_11, fy)
        slope_vy = slope_y(v_00, v_01, v_10, v_11, fx)
        mixed = a * (v_00 - v_01 - v_10 + v_11)
        upper = d_00 + (d_01 - d_00) * fx
        lower = d_10 + (d_11 - d_10) * fx
        grad_a = upper + (lower - upper) * fy + step_x * slope_vx + step_y * slope_vy
        grad_x = W * (a * slope_x(d_00, d_01, d_10, d_11, fy) + d_a * slope_vx + mixed * step_y)
        grad_y = H * (a * slope_y(d_00, d_01, d_10, d_11, fx) + d_a * slope_vy + mixed * step_x)
        tl.store(grad_attn_ptr + offs_rp, grad_a.to(grad_attn_ptr.dtype.element_ty), mask=mask_p)
        tl.store(grad_loc_ptr + 2 * offs_rp, grad_x.to(grad_loc_ptr.dtype.element_ty), mask=mask_p)
        tl.store(grad_loc_ptr + 2 * offs_rp + 1, grad_y.to(grad_loc_ptr.dtype.element_ty), mask=mask_p)


@functools.lru_cache(maxsize=4096)
def _second_plan(B: int, Q: int, S: int, M: int, D: int, L: int, K: int, itemsize: int) -> Plan:
    config = _half_the_points(backward_config(B, Q, M, D, L, K, itemsize))
    constants = (Q, S, M, D, L, K, *_blocks(config), offset_type(S, Q, M, D, L, K))
    return Plan(config.grid(B, Q, M), constants, **config.options)


def msda_second(
    value: Tensor, shapes: Tensor, starts: Tensor, sampling_locations: Tensor, attention_weights: Tensor,
    grad_out: Tensor,
    d_value: Tensor | None, d_locations: Tensor | None, d_weights: Tensor | None,
    deterministic: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Launch `msda_second_kernel`: how the three gradients of `msda_backward` move along a direction.

    Args:
        value … grad_out: as in `msda_backward`; d_…: as in `msda_jvp`; deterministic: as in `msda_backward`. What moves
            grad_value is summed in float32, whatever its dtype.

    Returns:
        Three tensors, shaped and typed like value, sampling_locations and attention_weights.
    """
    B, S, M, D = value.shape
    _, Q, _, L, K, _ = sampling_locations.shape
    inputs = (value, sampling_locations, attention_weights)
    directions = _directions(inputs, (d_value, d_locations, d_weights))
    if B == 0 or Q == 0 or M == 0 or D == 0 or K == 0:
        return tuple(t.new_zeros(t.shape) for t in inputs)
    if B > MAX_BATCH:
        parts = zip(*(t.split(MAX_BATCH) for t in (*inputs, grad_out, *directions)))
        moved = [msda_second(part[0], shapes, starts, *part[1:], deterministic) for part in parts]
        return tuple(torch.cat(column) for column in zip(*moved))
    accumulator, unit = torch.float32, None
    if deterministic:
        step = (directions[1].double().abs() * shapes.flip(-1)[:, None]).sum(-1)
        largest = directions[2].double().abs() + attention_weights.double().abs() * step
        accumulator, unit = torch.int64, units_per_one(grad_out, largest)
    grad_value = torch.zeros(value.shape, dtype=accumulator, device=value.device)
    grad_loc, grad_attn = (t.new_empty(t.shape) for t in inputs[1:])
    launch(
        msda_second_kernel,
        _second_plan(B, Q, S, M, D, L, K, value.element_size()),
        (*_contiguous(value, shapes, starts, sampling_locations, attention_weights, grad_out, *directions),
         grad_value, grad_loc, grad_attn, unit),
    )  # fmt: skip
    if deterministic:
        grad_value = grad_value.double().div_(unit[:, None])
    return grad_value.to(value.dtype), grad_loc, grad_attn


def _half_the_points(config: LaunchConfig) -> LaunchConfig:
    """Half the points at a time, by half the warps: twice as much is loaded of each, and a lane adds as widely as before."""
    half = max(1, config.BLOCK_P // 2)
    return config._replace(BLOCK_P=half, num_warps=max(1, config.num_warps * half // config.BLOCK_P), maxnreg=None)


def _blocks(config: LaunchConfig) -> tuple[int, int, int, int]:
    return config.BLOCK_Q, config.BLOCK_M, config.BLOCK_P, config.BLOCK_D


def _directions(inputs: tuple[Tensor, ...], directions: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
    """Directions in the dtypes of what moves; zeros for what rests."""
    return tuple(t.new_zeros(t.shape) if d is None else d.to(t.dtype) for t, d in zip(inputs, directions))


def _contiguous(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(t.contiguous() for t in tensors)

"""Multi-scale deformable attention, backward: one kernel for all three gradients, and its launcher.

With g = grad_out[b, q, m, :] and s_ij = g . v_ij its dot products with the four corners of a point,

    grad_attention  = bilinear(s)                          the sample that the forward weighed, dotted with g
    grad_location_x = attention * W * d bilinear(s) / dx   likewise y, with H
    grad_value_ij  += attention * weight_ij * g            a scatter: any number of points may share a pixel

One program owns the same tile as in the forward. Gradients of locations and weights belong to one row each, so they
are plain stores, contiguous over the points. Only grad_value needs atomics. They are relaxed: nothing is read back
before the kernel ends, and the ordered default would not vectorise.

Bytes it should move: what the forward reads, once more; grad_out; three gradients; and the corners again, as reductions.
"""

import functools
import math

import torch
from torch import Tensor

from msda_core.device import INTERPRETED, load_triton
from msda_core.kernels.forward import Launch, corners, offset_type

triton = load_triton()
tl = triton.language

__all__ = ["accumulator_dtype", "launch_config", "msda_backward", "msda_bwd_kernel"]


@triton.jit
def accumulate(ptr, x, mask, unit):
    """Add x at ptr, in the accumulator's own format; one of integers counts in units, and so adds in any order."""
    if ptr.dtype.element_ty == tl.int64:
        tl.atomic_add(ptr, (x * unit).to(tl.int64), mask=mask, sem="relaxed")
    else:
        tl.atomic_add(ptr, x.to(ptr.dtype.element_ty), mask=mask, sem="relaxed")


@triton.jit
def msda_bwd_kernel(
    value_ptr, shapes_ptr, starts_ptr, loc_ptr, attn_ptr, grad_out_ptr,
    grad_value_ptr, grad_loc_ptr, grad_attn_ptr, unit_ptr,
    Q, S,
    M: tl.constexpr, D: tl.constexpr, L: tl.constexpr, K: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_D: tl.constexpr,
    OFFSET: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_Q queries and BLOCK_M heads of one batch item; points and channels in blocks.

    grad_value_ptr must be zero on entry. unit_ptr is read only where grad_value is int64: how many units make 1.0.
    """
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
    grad_value_ptr += b * S * (M * D)
    loc_ptr += b * Q * (M * L * K * 2)
    grad_loc_ptr += b * Q * (M * L * K * 2)
    attn_ptr += b * Q * (M * L * K)
    grad_attn_ptr += b * Q * (M * L * K)
    grad_out_ptr += b * Q * (M * D)
    unit = 1.0
    if grad_value_ptr.dtype.element_ty == tl.int64:
        unit = tl.load(unit_ptr)

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
        corner = ((pixel * M + m[:, None]) * D)[:, :, None]
        below = (W.to(OFFSET) * (M * D))[:, :, None]
        dot00 = tl.zeros([BLOCK_Q * BLOCK_M, BLOCK_P], tl.float32)
        dot01 = tl.zeros([BLOCK_Q * BLOCK_M, BLOCK_P], tl.float32)
        dot10 = tl.zeros([BLOCK_Q * BLOCK_M, BLOCK_P], tl.float32)
        dot11 = tl.zeros([BLOCK_Q * BLOCK_M, BLOCK_P], tl.float32)
        for d0 in range(0, D, BLOCK_D):
            d = d0 + offs_d
            mask_g = mask_row[:, None] & (d < D)[None, :]
            g = tl.load(grad_out_ptr + offs_row[:, None] * D + d[None, :], mask=mask_g, other=0.0).to(tl.float32)
            g = g[:, None, :]

            mask_d = mask_p[:, :, None] & (d < D)[None, None, :]
            mask00 = mask_d & (left & top)[:, :, None]
            mask01 = mask_d & (right & top)[:, :, None]
            mask10 = mask_d & (left & bottom)[:, :, None]
            mask11 = mask_d & (right & bottom)[:, :, None]
            offs00 = corner + d[None, None, :]
            offs01 = offs00 + M * D
            offs10 = offs00 + below
            offs11 = offs10 + M * D

            v00 = tl.load(value_ptr + offs00, mask=mask00, other=0.0).to(tl.float32)
            v01 = tl.load(value_ptr + offs01, mask=mask01, other=0.0).to(tl.float32)
            v10 = tl.load(value_ptr + offs10, mask=mask10, other=0.0).to(tl.float32)
            v11 = tl.load(value_ptr + offs11, mask=mask11, other=0.0).to(tl.float32)
            dot00 += tl.sum(v00 * g, axis=2)
            dot01 += tl.sum(v01 * g, axis=2)
            dot10 += tl.sum(v10 * g, axis=2)
            dot11 += tl.sum(v11 * g, axis=2)

            accumulate(grad_value_ptr + offs00, g * (a * (1 - fx) * (1 - fy))[:, :, None], mask00, unit)
            accumulate(grad_value_ptr + offs01, g * (a * fx * (1 - fy))[:, :, None], mask01, unit)
            accumulate(grad_value_ptr + offs10, g * (a * (1 - fx) * fy)[:, :, None], mask10, unit)
            accumulate(grad_value_ptr + offs11, g * (a * fx * fy)[:, :, None], mask11, unit)

        upper = dot00 + (dot01 - dot00) * fx
        lower = dot10 + (dot11 - dot10) * fx
        grad_a = upper + (lower - upper) * fy
        grad_x = a * W * ((dot01 - dot00) * (1 - fy) + (dot11 - dot10) * fy)
        grad_y = a * H * (lower - upper)
        tl.store(grad_attn_ptr + offs_point, grad_a.to(grad_attn_ptr.dtype.element_ty), mask=mask_p)
        tl.store(grad_loc_ptr + 2 * offs_point, grad_x.to(grad_loc_ptr.dtype.element_ty), mask=mask_p)
        tl.store(grad_loc_ptr + 2 * offs_point + 1, grad_y.to(grad_loc_ptr.dtype.element_ty), mask=mask_p)


@functools.lru_cache(maxsize=1024)
def launch_config(M: int, D: int, L: int, K: int, itemsize: int) -> Launch:
    """The backward launch for these sizes and this many bytes per element of value."""
    BLOCK_D = min(triton.next_power_of_2(D), 128)
    BLOCK_P = min(triton.next_power_of_2(L * K), 64, 2048 // BLOCK_D)
    tile = BLOCK_P * BLOCK_D
    BLOCK_Q = max(1, 512 // tile)
    return Launch(BLOCK_Q, 1, BLOCK_P, BLOCK_D, num_warps=min(max(1, BLOCK_Q * tile // 256), 8))


def accumulator_dtype(dtype: torch.dtype, device: torch.device, fp32_grad_accum: bool | None = None) -> torch.dtype:
    """In what grad_value is summed: its own dtype where the hardware reduces in it, else float32.

    Below SM 9.0 a bfloat16 reduction compiles to a compare-and-swap loop, about ten times slower than a float32
    scratch and one cast. Triton's interpreter cannot add bfloat16 at all. `fp32_grad_accum` overrides the choice.
    """
    if fp32_grad_accum is None:
        fp32_grad_accum = dtype == torch.bfloat16 and (INTERPRETED or not _adds_bfloat16(device))
    return torch.float32 if fp32_grad_accum else dtype


@functools.lru_cache
def _adds_bfloat16(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (9, 0)


def msda_backward(
    value: Tensor, shapes: Tensor, starts: Tensor, sampling_locations: Tensor, attention_weights: Tensor,
    grad_out: Tensor,
    fp32_grad_accum: bool | None = None, deterministic: bool = False,
    launch: Launch | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Launch `msda_bwd_kernel`.

    Args:
        value … attention_weights, launch: as in `msda_forward`; grad_out: (B, Q, M*D).
        fp32_grad_accum: sum grad_value in float32 and round once; None decides by the GPU, see `accumulator_dtype`.
        deterministic: sum grad_value in 64-bit integers, which add to the same bits in any order. The unit is a
            power of two chosen from the largest possible contribution, so the sum is at least as fine as a float32
            one; an infinity or a NaN in grad_out makes all of grad_value NaN.

    Returns:
        (grad_value, grad_sampling_locations, grad_attention_weights), shaped and typed like the inputs.
    """
    B, S, M, D = value.shape
    _, Q, _, L, K, _ = sampling_locations.shape
    value, sampling_locations, attention_weights = (
        value.contiguous(), sampling_locations.contiguous(), attention_weights.contiguous()
    )  # fmt: skip
    if attention_weights.numel() == 0 or D == 0:
        return torch.zeros_like(value), torch.zeros_like(sampling_locations), torch.zeros_like(attention_weights)

    if deterministic:
        unit = _units_per_one(grad_out, attention_weights, Q * K)
        grad_value = torch.zeros(value.shape, dtype=torch.int64, device=value.device)
    else:
        unit = None
        accumulator = accumulator_dtype(value.dtype, value.device, fp32_grad_accum)
        grad_value = torch.zeros(value.shape, dtype=accumulator, device=value.device)
    grad_loc = torch.empty_like(sampling_locations)
    grad_attn = torch.empty_like(attention_weights)
    launch = launch or launch_config(M, D, L, K, value.element_size())
    msda_bwd_kernel[(launch.programs(B, Q, M),)](
        value, shapes.contiguous(), starts.contiguous(), sampling_locations, attention_weights, grad_out.contiguous(),
        grad_value, grad_loc, grad_attn, unit,
        Q, S, M, D, L, K,
        launch.BLOCK_Q, launch.BLOCK_M, launch.BLOCK_P, launch.BLOCK_D, offset_type(S, Q, M, D, L, K),
        num_warps=launch.num_warps,
    )  # fmt: skip
    if deterministic:
        grad_value = grad_value.double().div_(unit)
    return grad_value.to(value.dtype), grad_loc, grad_attn


def _units_per_one(grad_out: Tensor, attention_weights: Tensor, points: int) -> Tensor:
    """The largest power of two, as a float32 (1,), for which `points` contributions to one pixel cannot overflow.

    One contribution is at most max|grad_out| * max|attention|. Nothing here waits for the device.
    """
    largest = grad_out.abs().amax().double() * attention_weights.abs().amax().double()
    exponent = 62 - math.ceil(math.log2(points)) - torch.frexp(largest).exponent
    unit = torch.ldexp(torch.ones_like(largest), exponent.clamp(-126, 126))
    return torch.where(largest.isfinite(), unit, math.nan).float().reshape(1)

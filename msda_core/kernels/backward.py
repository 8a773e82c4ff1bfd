"""Multi-scale deformable attention, backward: one kernel for all three gradients, and its launcher.

With g = grad_out[b, q, m, :] and s_ij = g . v_ij its dot products with the four corners of a point,

    grad_attention  = bilinear(s)                          the sample that the forward weighed, dotted with g
    grad_location_x = attention * W * d bilinear(s) / dx   likewise y, with H
    grad_value_ij  += attention * weight_ij * g            a scatter: any number of points may share a pixel

One program owns the same tile as in the forward. Gradients of locations and weights belong to one row each, so they
are plain stores, contiguous over the points. Only grad_value needs atomics. They are relaxed: nothing is read back
before the kernel ends, and the ordered default would bring fences (and, under Triton 3.6, would not vectorise).

Bytes it should move: what the forward reads, once more; grad_out; three gradients; and the corners again, as
reductions.
"""

import functools
import math

import torch
from torch import Tensor

from msda_core.device import INTERPRETED, capability, load_triton
from msda_core.kernels.config import MAX_BATCH, LaunchConfig, offset_type
from msda_core.kernels.forward import corners
from msda_core.kernels.launch import Plan, launch

triton = load_triton()
tl = triton.language

__all__ = ["accumulator_dtype", "backward_config", "msda_backward", "msda_bwd_kernel", "units_per_one"]


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
    EVICT: tl.constexpr, OFFSET: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_Q queries and BLOCK_M heads of one batch item; points and channels in blocks.

    grad_value must be zero on entry. unit_ptr, (B, M, D), is read only where it is int64: how many units make 1.0.
    """
    b = tl.program_id(2).to(tl.int64)  # only whole batch items can lie 2^31 elements apart
    rows = tl.arange(0, BLOCK_Q * BLOCK_M)
    q = tl.program_id(0) * BLOCK_Q + rows // BLOCK_M
    m = tl.program_id(1) * BLOCK_M + rows % BLOCK_M
    mask_row = (q < Q) & (m < M)
    offs_row = q.to(OFFSET) * M + m
    value_ptr += b * S * (M * D)
    grad_value_ptr += b * S * (M * D)
    loc_ptr += b * Q * (M * L * K * 2)
    grad_loc_ptr += b * Q * (M * L * K * 2)
    attn_ptr += b * Q * (M * L * K)
    grad_attn_ptr += b * Q * (M * L * K)
    grad_out_ptr += b * Q * (M * D)

    for p0 in range(0, L * K, BLOCK_P):
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
        offs_pixel = ((start + y0 * W + x0).to(OFFSET) * M + m[:, None]) * D
        dot_00 = tl.zeros([BLOCK_Q * BLOCK_M, BLOCK_P], tl.float32)
        dot_01 = tl.zeros([BLOCK_Q * BLOCK_M, BLOCK_P], tl.float32)
        dot_10 = tl.zeros([BLOCK_Q * BLOCK_M, BLOCK_P], tl.float32)
        dot_11 = tl.zeros([BLOCK_Q * BLOCK_M, BLOCK_P], tl.float32)
        for d0 in range(0, D, BLOCK_D):
            offs_d = d0 + tl.arange(0, BLOCK_D)
            mask_d = offs_d < D
            offs_g = offs_row[:, None] * D + offs_d[None, :]
            mask_g = mask_row[:, None] & mask_d[None, :]
            g = tl.load(grad_out_ptr + offs_g, mask=mask_g, other=0.0).to(tl.float32)[:, None, :]
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
            v_00 = tl.load(value_ptr + offs_00, mask=mask_00, other=0.0, eviction_policy=EVICT).to(tl.float32)
            v_01 = tl.load(value_ptr + offs_01, mask=mask_01, other=0.0, eviction_policy=EVICT).to(tl.float32)
            v_10 = tl.load(value_ptr + offs_10, mask=mask_10, other=0.0, eviction_policy=EVICT).to(tl.float32)
            v_11 = tl.load(value_ptr + offs_11, mask=mask_11, other=0.0, eviction_policy=EVICT).to(tl.float32)

            # The reductions wait for nothing, so they go out while the loads are on their way.
            accumulate(grad_value_ptr + offs_00, g * (a * (1 - fx) * (1 - fy))[:, :, None], mask_00, unit)
            accumulate(grad_value_ptr + offs_01, g * (a * fx * (1 - fy))[:, :, None], mask_01, unit)
            accumulate(grad_value_ptr + offs_10, g * (a * (1 - fx) * fy)[:, :, None], mask_10, unit)
            accumulate(grad_value_ptr + offs_11, g * (a * fx * fy)[:, :, None], mask_11, unit)

            dot_00 += tl.sum(v_00 * g, axis=2)
            dot_01 += tl.sum(v_01 * g, axis=2)
            dot_10 += tl.sum(v_10 * g, axis=2)
            dot_11 += tl.sum(v_11 * g, axis=2)

        upper = dot_00 + (dot_01 - dot_00) * fx
        lower = dot_10 + (dot_11 - dot_10) * fx
        grad_a = upper + (lower - upper) * fy
        grad_x = a * W * ((dot_01 - dot_00) * (1 - fy) + (dot_11 - dot_10) * fy)
        grad_y = a * H * (lower - upper)
        tl.store(grad_attn_ptr + offs_rp, grad_a.to(grad_attn_ptr.dtype.element_ty), mask=mask_p)
        tl.store(grad_loc_ptr + 2 * offs_rp, grad_x.to(grad_loc_ptr.dtype.element_ty), mask=mask_p)
        tl.store(grad_loc_ptr + 2 * offs_rp + 1, grad_y.to(grad_loc_ptr.dtype.element_ty), mask=mask_p)


def backward_config(B: int, Q: int, M: int, D: int, L: int, K: int, itemsize: int, loops: bool = False) -> LaunchConfig:
    """The measured launch config of a backward call, `itemsize` bytes per element of value; see LOG.md.

    loops: each addition is a loop of compare-and-swap, because somebody overruled `accumulator_dtype`.
    """
    BLOCK_D = min(triton.next_power_of_2(D), 128)
    if B * Q * M >= 2**17:  # pixels are hit again and again: keep them, and keep the programs small
        BLOCK_P = min(triton.next_power_of_2(L * K), max(1, 256 // BLOCK_D))
        config = LaunchConfig(1, 1, BLOCK_P, BLOCK_D, num_warps=1)
    else:  # a pixel is read once or twice and then in the way of grad_value, which the L2 should hold instead
        BLOCK_P = min(triton.next_power_of_2(L * K), max(1, 1024 // BLOCK_D))
        BLOCK_M = 2 if itemsize == 2 and M % 2 == 0 and BLOCK_P * BLOCK_D <= 512 else 1  # at most 8 elements a lane
        num_warps = min(max(1, BLOCK_M * BLOCK_P * BLOCK_D * itemsize // 512), 4)  # 16 bytes a lane and reduction
        config = LaunchConfig(1, BLOCK_M, BLOCK_P, BLOCK_D, num_warps, EVICT="evict_first")
    if D % 2 or loops:  # every element is an addition of its own: two a lane instead of eight
        two = max(1, 64 * config.num_warps // (config.BLOCK_M * BLOCK_D))
        return config._replace(BLOCK_P=min(config.BLOCK_P, two), maxnreg=128)
    # Few points: more queries, or a lane would have less than 16 bytes to add at once; one half alone is a loop.
    return config._replace(BLOCK_Q=max(1, 512 // (config.BLOCK_M * config.BLOCK_P * BLOCK_D * itemsize)))


@functools.lru_cache(maxsize=4096)
def _plan(
    B: int, Q: int, S: int, M: int, D: int, L: int, K: int, itemsize: int, loops: bool, config: LaunchConfig | None
) -> Plan:  # fmt: skip
    config = config or backward_config(B, Q, M, D, L, K, itemsize, loops)
    blocks = (config.BLOCK_Q, config.BLOCK_M, config.BLOCK_P, config.BLOCK_D)
    constants = (Q, S, M, D, L, K, *blocks, config.EVICT, offset_type(S, Q, M, D, L, K))
    return Plan(config.grid(B, Q, M), constants, **config.options)


#: Contributions to a pixel, on average, up to which 16-bit sums are made in 16 bits: more cost more than two of the
#: roundings at the end that nobody avoids. LOG.md, "Sums in 16 bits".
ENOUGH_FOR_16_BITS = 8


def accumulator_dtype(
    dtype: torch.dtype,
    device: torch.device,
    D: int,
    fp32_grad_accum: bool | None = None,
    contributions: float = 0.0,
) -> torch.dtype:
    """In what grad_value is summed: its own dtype where the hardware reduces in it and few numbers meet, else float32.

    Memory adds 16-bit numbers in pairs or wider, and bfloat16 only from SM 9.0 on. Any other 16-bit addition, as of the
    odd channel out, is a compare-and-swap loop, ten to several hundred times slower than a float32 scratch and one
    cast. Triton's interpreter cannot add bfloat16 at all. And every addition in 16 bits is a rounding. `fp32_grad_accum`
    overrides the choice.

    Args:
        contributions: to a pixel, on average.
    """
    if fp32_grad_accum is None:
        fp32_grad_accum = not _adds(dtype, device, D) or contributions > ENOUGH_FOR_16_BITS
    return torch.float32 if fp32_grad_accum else dtype


def _adds(dtype: torch.dtype, device: torch.device, D: int) -> bool:
    if dtype.itemsize > 2:
        return True
    return D % 2 == 0 and (dtype == torch.float16 or _adds_bfloat16(device))


def _adds_bfloat16(device: torch.device) -> bool:
    return not INTERPRETED and capability(device) >= 90


def msda_backward(
    value: Tensor, shapes: Tensor, starts: Tensor, sampling_locations: Tensor, attention_weights: Tensor,
    grad_out: Tensor,
    fp32_grad_accum: bool | None = None, deterministic: bool = False,
    config: LaunchConfig | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Launch `msda_bwd_kernel`. Nothing here reads a tensor, so nothing waits for the device.

    Args:
        value … attention_weights, config: as in `msda_forward`; grad_out: (B, Q, M*D).
        fp32_grad_accum: sum grad_value in float32 and round once; None decides, see `accumulator_dtype`.
        deterministic: sum grad_value in 64-bit integers, which add to the same bits in any order. Each batch item, head
            and channel has a unit of its own, a power of two: `units_per_one` says how fine. An infinity or a NaN in
            grad_out makes all of grad_value NaN in its batch item, head and channel, and nowhere else.

    Returns:
        (grad_value, grad_sampling_locations, grad_attention_weights), shaped and typed like the inputs.
    """
    B, S, M, D = value.shape
    _, Q, _, L, K, _ = sampling_locations.shape
    if B == 0 or Q == 0 or M == 0 or D == 0 or K == 0:
        return tuple(t.new_zeros(t.shape) for t in (value, sampling_locations, attention_weights))
    if B > MAX_BATCH:
        parts = zip(*(t.split(MAX_BATCH) for t in (value, sampling_locations, attention_weights, grad_out)))
        grads = [
            msda_backward(v, shapes, starts, loc, attn, g, fp32_grad_accum, deterministic, config)
            for v, loc, attn, g in parts
        ]
        return tuple(torch.cat(column) for column in zip(*grads))

    accumulator = accumulator_dtype(value.dtype, value.device, D, fp32_grad_accum, 4 * Q * L * K / S if S else 0)
    unit = None
    if deterministic:
        accumulator, unit = torch.int64, units_per_one(grad_out, attention_weights)
    grad_value = torch.zeros(value.shape, dtype=accumulator, device=value.device)
    grad_loc = sampling_locations.new_empty(sampling_locations.shape)
    grad_attn = attention_weights.new_empty(attention_weights.shape)
    loops = not _adds(accumulator, value.device, D)
    launch(
        msda_bwd_kernel,
        _plan(B, Q, S, M, D, L, K, value.element_size(), loops, config),
        (value.contiguous(), shapes.contiguous(), starts.contiguous(), sampling_locations.contiguous(),
         attention_weights.contiguous(), grad_out.contiguous(), grad_value, grad_loc, grad_attn, unit),
    )  # fmt: skip
    if deterministic:
        grad_value = grad_value.double().div_(unit[:, None])
    return grad_value.to(value.dtype), grad_loc, grad_attn


def units_per_one(grad_out: Tensor, weights: Tensor) -> Tensor:
    """How many units of an int64 sum make 1.0: for each batch item, head and channel the largest power of two that fits.

    No pixel's sum can overflow. With c the largest contribution to the channel, and N = Q*L*K points, the unit is at most
    c * N / 2^60: 41 bits below c at encoder scale (N = 355,568). A contribution below it is lost, and one outlier among
    the gradients makes it coarser for its own channel of its own head alone.

    Args:
        grad_out: (B, Q, M*D); weights: (B, Q, M, L, K), each at least as large as what it is multiplied by.

    Returns:
        (B, M, D), float32; NaN where grad_out or a weight is not finite. Nothing here waits for the device.
    """
    B, Q, M, L, K = weights.shape
    largest = weights.abs().flatten(3).amax(3).double()  # (B, Q, M)
    largest = (grad_out.unflatten(2, (M, -1)).abs().double() * largest[..., None]).amax(1)  # (B, M, D)
    exponent = 62 - math.ceil(math.log2(Q * L * K)) - torch.frexp(largest).exponent
    unit = torch.ldexp(torch.ones_like(largest), exponent.clamp(-126, 126))
    return torch.where(largest.isfinite(), unit, math.nan).float()

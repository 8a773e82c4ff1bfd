"""The operator from what a module's linear layers give: reference points, offsets, logits → output, and back.

    location  = reference + offset / (W, H)            or, from a box, center + offset / K * size / 2
    attention = softmax of a row's logits

One program owns BLOCK_Q queries and BLOCK_M neighbouring heads, all points of a row at once, so that the softmax and its
gradient stay inside the tile; beyond that it is `forward` and `backward`. At encoder scale the merged kernels do the same
(`merged`). What they read is `raw`'s.

Bytes it should move: offsets, logits and output once, instead of offsets, logits, locations twice, weights twice, output.
"""

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from msda_core.device import load_triton
from msda_core.kernels import merged
from msda_core.kernels.backward import accumulate, accumulator_dtype, backward_config
from msda_core.kernels.config import MAX_BATCH, offset_type
from msda_core.kernels.forward import corners, forward_config
from msda_core.kernels.launch import Plan, launch
from msda_core.kernels.raw import log_sum, row_sums

triton = load_triton()
tl = triton.language

__all__ = ["Raw", "fused_backward", "fused_bwd_kernel", "fused_forward", "fused_fwd_kernel", "helps", "suits"]


class Raw(NamedTuple):
    """A call: value (B, S, M, D), shapes (L, 2), starts (L,), reference (B, Q, L, 2 or 4), offsets (B, Q, M, L, K, 2), logits (B, Q, M, L, K)."""

    value: Tensor
    shapes: Tensor
    starts: Tensor
    reference: Tensor
    offsets: Tensor
    logits: Tensor

    @property
    def sizes(self) -> tuple[int, int, int, int, int, int, int]:
        """B, Q, S, M, D, L, K."""
        B, S, M, D = self.value.shape
        _, Q, _, L, K, _ = self.offsets.shape
        return B, Q, S, M, D, L, K


@triton.jit
def read_points(
    shapes_ptr, starts_ptr, ref_ptr, off_ptr, offs_row, q, mask_row,
    L: tl.constexpr, K: tl.constexpr, COORDS: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
    """All points of each row, in pixel coordinates.

    Returns:
        x, y, [rows, BLOCK_P]; step_x, step_y: pixels that one unit of offset moves a point; W, H, start of its level.
    """
    p = tl.arange(0, BLOCK_P)
    mask = mask_row[:, None] & (p < L * K)[None, :]
    level = tl.minimum(p // K, L - 1)
    H = tl.load(shapes_ptr + 2 * level).to(tl.int32)[None, :]
    W = tl.load(shapes_ptr + 2 * level + 1).to(tl.int32)[None, :]
    start = tl.load(starts_ptr + level).to(tl.int32)[None, :]
    offs = 2 * (offs_row[:, None] * (L * K) + p[None, :])
    x = tl.load(off_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(off_ptr + offs + 1, mask=mask, other=0.0).to(tl.float32)
    ref_ptr += (q[:, None] * L + level[None, :]) * COORDS
    step_x = 1.0
    step_y = 1.0
    if COORDS == 4:
        step_x = tl.load(ref_ptr + 2, mask=mask, other=0.0) * W * (0.5 / K)
        step_y = tl.load(ref_ptr + 3, mask=mask, other=0.0) * H * (0.5 / K)
    x = tl.load(ref_ptr, mask=mask, other=0.0) * W - 0.5 + x * step_x
    y = tl.load(ref_ptr + 1, mask=mask, other=0.0) * H - 0.5 + y * step_y
    return x, y, step_x, step_y, W, H, start


@triton.jit
def fused_fwd_kernel(
    value_ptr, shapes_ptr, starts_ptr, ref_ptr, off_ptr, logit_ptr, out_ptr, lse_ptr,
    Q, S,
    M: tl.constexpr, D: tl.constexpr, L: tl.constexpr, K: tl.constexpr, COORDS: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_D: tl.constexpr,
    EVICT: tl.constexpr, OFFSET: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_Q queries and BLOCK_M heads of one batch item, all points, all channels. lse_ptr: (B, Q, M), written."""
    b = tl.program_id(2).to(tl.int64)
    rows = tl.arange(0, BLOCK_Q * BLOCK_M)
    q = tl.program_id(0) * BLOCK_Q + rows // BLOCK_M
    m = tl.program_id(1) * BLOCK_M + rows % BLOCK_M
    mask_row = (q < Q) & (m < M)
    offs_row = q.to(OFFSET) * M + m
    value_ptr += b * S * (M * D)
    ref_ptr += b * Q * (L * COORDS)
    off_ptr += b * Q * (M * L * K * 2)
    logit_ptr += b * Q * (M * L * K)

    p = tl.arange(0, BLOCK_P)
    mask_p = mask_row[:, None] & (p < L * K)[None, :]
    lse = log_sum(logit_ptr, offs_row, mask_row, L * K)
    tl.store(lse_ptr + b * Q * M + offs_row, lse, mask=mask_row)
    logit = tl.load(logit_ptr + offs_row[:, None] * (L * K) + p[None, :], mask=mask_p, other=0.0).to(tl.float32)
    a = tl.exp(logit - lse[:, None])
    x, y, _, _, W, H, start = read_points(
        shapes_ptr, starts_ptr, ref_ptr, off_ptr, offs_row, q.to(OFFSET), mask_row, L, K, COORDS, BLOCK_P
    )
    x0, y0, fx, fy, left, right, top, bottom = corners(x, y, W, H)

    d = tl.arange(0, BLOCK_D)
    mask_d = d < D
    pixel = start + y0 * W + x0
    offs_00 = ((pixel.to(OFFSET) * M + m[:, None]) * D)[:, :, None] + d[None, None, :]
    offs_10 = (((pixel + W).to(OFFSET) * M + m[:, None]) * D)[:, :, None] + d[None, None, :]
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
    if BLOCK_P > L * K:  # a point that is none has a weight, and it may be infinite
        sample = tl.where(mask_p[:, :, None], sample, 0.0)
    out = tl.sum(sample, axis=1).to(out_ptr.dtype.element_ty)
    offs_out = (b * Q * M + offs_row)[:, None] * D + d[None, :]
    tl.store(out_ptr + offs_out, out, mask=mask_row[:, None] & mask_d[None, :])


@triton.jit
def fused_bwd_kernel(
    value_ptr, shapes_ptr, starts_ptr, ref_ptr, off_ptr, logit_ptr, lse_ptr, grad_out_ptr,
    grad_value_ptr, grad_off_ptr, grad_logit_ptr,
    Q, S,
    M: tl.constexpr, D: tl.constexpr, L: tl.constexpr, K: tl.constexpr, COORDS: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_D: tl.constexpr,
    EVICT: tl.constexpr, OFFSET: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_Q queries and BLOCK_M heads of one batch item, all points, all channels.

    grad_value must be zero on entry.
    """
    b = tl.program_id(2).to(tl.int64)
    rows = tl.arange(0, BLOCK_Q * BLOCK_M)
    q = tl.program_id(0) * BLOCK_Q + rows // BLOCK_M
    m = tl.program_id(1) * BLOCK_M + rows % BLOCK_M
    mask_row = (q < Q) & (m < M)
    offs_row = q.to(OFFSET) * M + m
    value_ptr += b * S * (M * D)
    grad_value_ptr += b * S * (M * D)
    ref_ptr += b * Q * (L * COORDS)
    off_ptr += b * Q * (M * L * K * 2)
    grad_off_ptr += b * Q * (M * L * K * 2)
    logit_ptr += b * Q * (M * L * K)
    grad_logit_ptr += b * Q * (M * L * K)

    p = tl.arange(0, BLOCK_P)
    mask_p = mask_row[:, None] & (p < L * K)[None, :]
    offs_rp = offs_row[:, None] * (L * K) + p[None, :]
    lse = tl.load(lse_ptr + b * Q * M + offs_row, mask=mask_row, other=0.0)
    a = tl.exp(tl.load(logit_ptr + offs_rp, mask=mask_p, other=0.0).to(tl.float32) - lse[:, None])
    x, y, step_x, step_y, W, H, start = read_points(
        shapes_ptr, starts_ptr, ref_ptr, off_ptr, offs_row, q.to(OFFSET), mask_row, L, K, COORDS, BLOCK_P
    )
    x0, y0, fx, fy, left, right, top, bottom = corners(x, y, W, H)

    d = tl.arange(0, BLOCK_D)
    mask_d = d < D
    offs_g = (b * Q * M + offs_row)[:, None] * D + d[None, :]
    g = tl.load(grad_out_ptr + offs_g, mask=mask_row[:, None] & mask_d[None, :], other=0.0).to(tl.float32)[:, None, :]
    offs_00 = (((start + y0 * W + x0).to(OFFSET) * M + m[:, None]) * D)[:, :, None] + d[None, None, :]
    offs_10 = offs_00 + (W.to(OFFSET) * (M * D))[:, :, None]
    mask_00 = (mask_p & left & top)[:, :, None] & mask_d[None, None, :]
    mask_01 = (mask_p & right & top)[:, :, None] & mask_d[None, None, :]
    mask_10 = (mask_p & left & bottom)[:, :, None] & mask_d[None, None, :]
    mask_11 = (mask_p & right & bottom)[:, :, None] & mask_d[None, None, :]
    v_00 = tl.load(value_ptr + offs_00, mask=mask_00, other=0.0, eviction_policy=EVICT).to(tl.float32)
    v_01 = tl.load(value_ptr + offs_00 + M * D, mask=mask_01, other=0.0, eviction_policy=EVICT).to(tl.float32)
    v_10 = tl.load(value_ptr + offs_10, mask=mask_10, other=0.0, eviction_policy=EVICT).to(tl.float32)
    v_11 = tl.load(value_ptr + offs_10 + M * D, mask=mask_11, other=0.0, eviction_policy=EVICT).to(tl.float32)
    accumulate(grad_value_ptr + offs_00, g * (a * (1 - fx) * (1 - fy))[:, :, None], mask_00, 1.0)
    accumulate(grad_value_ptr + offs_00 + M * D, g * (a * fx * (1 - fy))[:, :, None], mask_01, 1.0)
    accumulate(grad_value_ptr + offs_10, g * (a * (1 - fx) * fy)[:, :, None], mask_10, 1.0)
    accumulate(grad_value_ptr + offs_10 + M * D, g * (a * fx * fy)[:, :, None], mask_11, 1.0)
    dot_00 = tl.sum(v_00 * g, axis=2)
    dot_01 = tl.sum(v_01 * g, axis=2)
    dot_10 = tl.sum(v_10 * g, axis=2)
    dot_11 = tl.sum(v_11 * g, axis=2)

    upper = dot_00 + (dot_01 - dot_00) * fx
    lower = dot_10 + (dot_11 - dot_10) * fx
    grad_a = upper + (lower - upper) * fy
    grad_x = a * step_x * ((dot_01 - dot_00) * (1 - fy) + (dot_11 - dot_10) * fy)
    grad_y = a * step_y * (lower - upper)
    mean = tl.sum(tl.where(mask_p, a * grad_a, 0.0), axis=1)
    grad_logit = a * (grad_a - mean[:, None])
    tl.store(grad_logit_ptr + offs_rp, grad_logit.to(grad_logit_ptr.dtype.element_ty), mask=mask_p)
    tl.store(grad_off_ptr + 2 * offs_rp, grad_x.to(grad_off_ptr.dtype.element_ty), mask=mask_p)
    tl.store(grad_off_ptr + 2 * offs_rp + 1, grad_y.to(grad_off_ptr.dtype.element_ty), mask=mask_p)


# ----------------------------------------------------------------------------------------------------------- launching

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def suits(call: Raw) -> bool:
    """Can the fused kernels do this call? Reads sizes and dtypes: a row of at most 4,096 numbers, an even D, no empty axis."""
    B, Q, S, M, D, L, K = call.sizes
    return (
        min(B, Q, S, M, D, L, K) > 0
        and B <= MAX_BATCH
        and D % 2 == 0
        and triton.next_power_of_2(L * K) * triton.next_power_of_2(D) <= 4096
        and call.value.dtype in _FLOATS
        and call.offsets.dtype in _FLOATS
        and call.logits.dtype in _FLOATS
        and call.reference.dtype == torch.float32
    )


def helps(call: Raw) -> bool:
    """Does the plain fused kernel pay? Where `forward_config` takes all points of a row at once, up to decoder scale; see LOG.md."""
    B, Q, _, M, D, L, K = call.sizes
    return forward_config(B, Q, M, D, L, K, call.value.element_size()).BLOCK_P == triton.next_power_of_2(L * K)


@functools.lru_cache(maxsize=4096)
def _plan(backward: bool, B: int, Q: int, S: int, M: int, D: int, L: int, K: int, coords: int, itemsize: int) -> Plan:
    config = (backward_config if backward else forward_config)(B, Q, M, D, L, K, itemsize)
    BLOCK_P, BLOCK_D = triton.next_power_of_2(L * K), triton.next_power_of_2(D)
    BLOCK_M = config.BLOCK_M if config.BLOCK_P == BLOCK_P else 1
    BLOCK_Q = config.BLOCK_Q if config.BLOCK_P == BLOCK_P else 1
    elements = BLOCK_Q * BLOCK_M * BLOCK_P * BLOCK_D
    num_warps = config.num_warps if config.BLOCK_P == BLOCK_P else max(1, min(4, elements // 512))
    grid = config._replace(BLOCK_Q=BLOCK_Q, BLOCK_M=BLOCK_M).grid(B, Q, M)
    blocks = (BLOCK_Q, BLOCK_M, BLOCK_P, BLOCK_D)
    return Plan(grid, (Q, S, M, D, L, K, coords, *blocks, config.EVICT, offset_type(S, Q, M, D, L, K)), num_warps)


def fused_forward(call: Raw, levels: tuple[tuple[int, int], ...] | None = None) -> tuple[Tensor, Tensor]:
    """The forward of a call that `suits`: one launch, or two where it merges.

    Args:
        levels: (H, W) of each, for the merged kernels (`merged.suits`); None for the plain ones.

    Returns:
        out (B, Q, M*D), in value's dtype; lse (B, Q, M) float32, what the backward wants to know.
    """
    B, Q, S, M, D, L, K = call.sizes
    if levels is not None:
        value, shapes, starts, reference, offsets, logits = call
        lse = row_sums(logits)
        return merged.merged_forward(value, shapes, starts, levels, offsets, logits, reference.contiguous(), lse), lse
    lse = torch.empty(B, Q, M, dtype=torch.float32, device=call.value.device)
    out = call.value.new_empty(B, Q, M * D)
    plan = _plan(False, B, Q, S, M, D, L, K, call.reference.shape[-1], call.value.element_size())
    launch(fused_fwd_kernel, plan, (*(t.contiguous() for t in call), out, lse))
    return out, lse


def fused_backward(
    call: Raw, lse: Tensor, grad_out: Tensor,
    levels: tuple[tuple[int, int], ...] | None = None, fp32_grad_accum: bool | None = None,
    offsets_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The backward of a call that `suits`. Nothing here waits for the device.

    Args:
        lse, levels: as `fused_forward` gave and took them; grad_out: (B, Q, M*D); fp32_grad_accum: as in `msda_backward`.
        offsets_dtype: of grad_offsets; None for that of the offsets.

    Returns:
        (grad_value, grad_offsets, grad_logits), shaped and typed like the inputs.
    """
    B, Q, S, M, D, L, K = call.sizes
    value, shapes, starts, reference, offsets, logits = call
    if levels is not None:
        return merged.merged_backward(
            value, shapes, starts, levels, offsets, logits, grad_out, fp32_grad_accum,
            reference.contiguous(), lse, offsets_dtype,
        )  # fmt: skip
    accumulator = accumulator_dtype(value.dtype, value.device, D, fp32_grad_accum, 4 * Q * L * K / S)
    grad_value = torch.zeros(value.shape, dtype=accumulator, device=value.device)
    grad_offsets = offsets.new_empty(offsets.shape, dtype=offsets_dtype or offsets.dtype)
    grad_logits = logits.new_empty(logits.shape)
    plan = _plan(True, B, Q, S, M, D, L, K, reference.shape[-1], value.element_size())
    inputs = (*(t.contiguous() for t in call), lse, grad_out.contiguous())
    launch(fused_bwd_kernel, plan, (*inputs, grad_value, grad_offsets, grad_logits))
    return grad_value.to(value.dtype), grad_offsets, grad_logits

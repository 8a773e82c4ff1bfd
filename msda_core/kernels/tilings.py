"""Three other tilings of the forward, raced in lab 6 against `forward.msda_fwd_kernel`. All give the same result.

    element   one lane per output element, as in the classic CUDA im2col kernel: every lane of a row reads that row's
              locations and weights again, and a value at a time
    point     one lane per sampling point: parameters are read once and coalesced, but a point's channels lie in a
              line that only this lane walks along, and what it finds must be added with atomics
    query     one program per block of queries of one (batch, head): rows of channels are read wide, parameters once

Bytes they should move are the same for all: see `forward`. What they request is not, and that is the race.
"""

import torch
from torch import Tensor

from msda_core.device import load_triton
from msda_core.kernels.forward import corners

triton = load_triton()
tl = triton.language

__all__ = ["element_forward", "msda_fwd_element_kernel", "msda_fwd_point_kernel", "msda_fwd_query_kernel"]
__all__ += ["point_forward", "query_forward"]


@triton.jit
def msda_fwd_element_kernel(
    value_ptr, shapes_ptr, starts_ptr, loc_ptr, attn_ptr, out_ptr,
    N, Q, S,
    M: tl.constexpr, D: tl.constexpr, L: tl.constexpr, K: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK elements of out, counted through (B, Q, M, D); N of them in all."""
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < N
    d = offs % D
    row = offs // D  # (b, q, m)
    m = row % M
    b = row // M // Q
    acc = tl.zeros([BLOCK], tl.float32)
    for l in range(L):
        H = tl.load(shapes_ptr + 2 * l).to(tl.int32)
        W = tl.load(shapes_ptr + 2 * l + 1).to(tl.int32)
        start = tl.load(starts_ptr + l).to(tl.int32)
        for k in range(K):
            offs_rp = row * (L * K) + l * K + k
            a = tl.load(attn_ptr + offs_rp, mask=mask, other=0.0).to(tl.float32)
            x = tl.load(loc_ptr + 2 * offs_rp, mask=mask, other=0.0).to(tl.float32)
            y = tl.load(loc_ptr + 2 * offs_rp + 1, mask=mask, other=0.0).to(tl.float32)
            x0, y0, fx, fy, left, right, top, bottom = corners(x * W - 0.5, y * H - 0.5, W, H)

            corner_ptr = value_ptr + ((b * S + start + y0 * W + x0) * M + m) * D + d
            v_00 = tl.load(corner_ptr, mask=mask & left & top, other=0.0).to(tl.float32)
            v_01 = tl.load(corner_ptr + M * D, mask=mask & right & top, other=0.0).to(tl.float32)
            v_10 = tl.load(corner_ptr + W * M * D, mask=mask & left & bottom, other=0.0).to(tl.float32)
            v_11 = tl.load(corner_ptr + W * M * D + M * D, mask=mask & right & bottom, other=0.0).to(tl.float32)
            upper = v_00 * (1 - fx) + v_01 * fx
            lower = v_10 * (1 - fx) + v_11 * fx
            acc += a * (upper * (1 - fy) + lower * fy)
    tl.store(out_ptr + offs, acc.to(out_ptr.dtype.element_ty), mask=mask)


def element_forward(
    value: Tensor, shapes: Tensor, starts: Tensor, sampling_locations: Tensor, attention_weights: Tensor,
    BLOCK: int = 256, num_warps: int = 8,
) -> Tensor:  # fmt: skip
    """Launch `msda_fwd_element_kernel`. Arguments and result as in `forward.msda_forward`, contiguous; no empty axis."""
    B, S, M, D = value.shape
    _, Q, _, L, K, _ = sampling_locations.shape
    out = value.new_empty(B, Q, M * D)
    N = out.numel()
    msda_fwd_element_kernel[(triton.cdiv(N, BLOCK),)](
        value, shapes, starts, sampling_locations, attention_weights, out, N, Q, S, M, D, L, K, BLOCK,
        num_warps=num_warps,
    )  # fmt: skip
    return out


@triton.jit
def msda_fwd_point_kernel(
    value_ptr, shapes_ptr, starts_ptr, loc_ptr, attn_ptr, out_ptr,
    N, Q, S,
    M: tl.constexpr, D: tl.constexpr, L: tl.constexpr, K: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK points, counted through (B, Q, M, L, K); N of them in all. out is float32 and zero on entry."""
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < N
    level = offs // K % L
    row = offs // K // L  # (b, q, m)
    m = row % M
    b = row // M // Q
    a = tl.load(attn_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    x = tl.load(loc_ptr + 2 * offs, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(loc_ptr + 2 * offs + 1, mask=mask, other=0.0).to(tl.float32)
    H = tl.load(shapes_ptr + 2 * level).to(tl.int32)
    W = tl.load(shapes_ptr + 2 * level + 1).to(tl.int32)
    start = tl.load(starts_ptr + level).to(tl.int32)
    x0, y0, fx, fy, left, right, top, bottom = corners(x * W - 0.5, y * H - 0.5, W, H)

    corner_ptr = value_ptr + ((b * S + start + y0 * W + x0) * M + m) * D
    for d in range(D):
        v_00 = tl.load(corner_ptr + d, mask=mask & left & top, other=0.0).to(tl.float32)
        v_01 = tl.load(corner_ptr + d + M * D, mask=mask & right & top, other=0.0).to(tl.float32)
        v_10 = tl.load(corner_ptr + d + W * M * D, mask=mask & left & bottom, other=0.0).to(tl.float32)
        v_11 = tl.load(corner_ptr + d + W * M * D + M * D, mask=mask & right & bottom, other=0.0).to(tl.float32)
        upper = v_00 * (1 - fx) + v_01 * fx
        lower = v_10 * (1 - fx) + v_11 * fx
        tl.atomic_add(out_ptr + row * D + d, a * (upper * (1 - fy) + lower * fy), mask=mask, sem="relaxed")


def point_forward(
    value: Tensor, shapes: Tensor, starts: Tensor, sampling_locations: Tensor, attention_weights: Tensor,
    BLOCK: int = 128, num_warps: int = 4,
) -> Tensor:  # fmt: skip
    """Launch `msda_fwd_point_kernel`. Arguments and result as in `forward.msda_forward`, contiguous; no empty axis."""
    B, S, M, D = value.shape
    _, Q, _, L, K, _ = sampling_locations.shape
    out = torch.zeros(B, Q, M * D, device=value.device)
    N = attention_weights.numel()
    msda_fwd_point_kernel[(triton.cdiv(N, BLOCK),)](
        value, shapes, starts, sampling_locations, attention_weights, out, N, Q, S, M, D, L, K, BLOCK,
        num_warps=num_warps,
    )  # fmt: skip
    return out.to(value.dtype)


@triton.jit
def msda_fwd_query_kernel(
    value_ptr, shapes_ptr, starts_ptr, loc_ptr, attn_ptr, out_ptr,
    Q, S,
    M: tl.constexpr, D: tl.constexpr, L: tl.constexpr, K: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_Q queries of one (batch, head), every channel; one point of each query at a time."""
    b = (tl.program_id(1) // M).to(tl.int64)
    m = tl.program_id(1) % M
    offs_q = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    offs_d = tl.arange(0, BLOCK_D)
    mask_q = offs_q < Q
    mask_d = (offs_d < D)[None, :]
    row = (b * Q + offs_q) * M + m
    acc = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)
    for l in range(L):
        H = tl.load(shapes_ptr + 2 * l).to(tl.int32)
        W = tl.load(shapes_ptr + 2 * l + 1).to(tl.int32)
        start = tl.load(starts_ptr + l).to(tl.int32)
        for k in range(K):
            offs_rp = row * (L * K) + l * K + k
            a = tl.load(attn_ptr + offs_rp, mask=mask_q, other=0.0).to(tl.float32)[:, None]
            x = tl.load(loc_ptr + 2 * offs_rp, mask=mask_q, other=0.0).to(tl.float32)[:, None]
            y = tl.load(loc_ptr + 2 * offs_rp + 1, mask=mask_q, other=0.0).to(tl.float32)[:, None]
            x0, y0, fx, fy, left, right, top, bottom = corners(x * W - 0.5, y * H - 0.5, W, H)

            mask = mask_q[:, None] & mask_d
            corner_ptr = value_ptr + ((b * S + start + y0 * W + x0) * M + m) * D + offs_d[None, :]
            v_00 = tl.load(corner_ptr, mask=mask & left & top, other=0.0).to(tl.float32)
            v_01 = tl.load(corner_ptr + M * D, mask=mask & right & top, other=0.0).to(tl.float32)
            v_10 = tl.load(corner_ptr + W * M * D, mask=mask & left & bottom, other=0.0).to(tl.float32)
            v_11 = tl.load(corner_ptr + W * M * D + M * D, mask=mask & right & bottom, other=0.0).to(tl.float32)
            upper = v_00 * (1 - fx) + v_01 * fx
            lower = v_10 * (1 - fx) + v_11 * fx
            acc += a * (upper * (1 - fy) + lower * fy)
    tl.store(
        out_ptr + row[:, None] * D + offs_d[None, :],
        acc.to(out_ptr.dtype.element_ty),
        mask=mask_q[:, None] & mask_d,
    )


def query_forward(
    value: Tensor, shapes: Tensor, starts: Tensor, sampling_locations: Tensor, attention_weights: Tensor,
    BLOCK_Q: int = 16, num_warps: int = 4,
) -> Tensor:  # fmt: skip
    """Launch `msda_fwd_query_kernel`. Arguments and result as in `forward.msda_forward`, contiguous; no empty axis."""
    B, S, M, D = value.shape
    _, Q, _, L, K, _ = sampling_locations.shape
    out = value.new_empty(B, Q, M * D)
    msda_fwd_query_kernel[(triton.cdiv(Q, BLOCK_Q), B * M)](
        value, shapes, starts, sampling_locations, attention_weights, out, Q, S, M, D, L, K,
        BLOCK_Q, triton.next_power_of_2(D),
        num_warps=num_warps,
    )  # fmt: skip
    return out

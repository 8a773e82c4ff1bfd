"""Lab 05, The forward kernel: one way to answer it."""

import torch

from msda_core.device import tl, triton


@triton.jit
def corner(x, y, i: tl.constexpr, j: tl.constexpr, H, W):
    """One of the four pixels around each of a block of points, on a level of H rows and W columns.

    Args:
        x, y: (BLOCK_Q,), float32: pixel coordinates, anywhere; also infinite, or not a number.
        i, j: which of the four: i = 0 left, 1 right; j = 0 upper, 1 lower.

    Returns:
        offset: (BLOCK_Q,), int32: the pixel's number on the level, row by row; whatever where the pixel does not exist.
        weight: (BLOCK_Q,), float32: how much the pixel weighs; 0 where it does not exist.
        mask: (BLOCK_Q,): whether the pixel exists.
    """
    x0 = tl.floor(x)  # @x0
    y0 = tl.floor(y)  # @y0
    fx = x - x0
    fy = y - y0
    xi = x0 + i  # @xi
    yj = y0 + j  # @yj
    mask = (
        (xi >= 0) & (xi < W) & (yj >= 0) & (yj < H)
    )  # on floats: a NaN compares false, and never becomes an integer  # @mask
    weight = tl.where(mask, (fx if i else 1 - fx) * (fy if j else 1 - fy), 0.0)  # @weight
    offset = tl.where(mask, yj, 0.0).to(tl.int32) * W + tl.where(mask, xi, 0.0).to(tl.int32)  # @offset
    return offset, weight, mask  # @result


@triton.jit
def msda_fwd_kernel(
    value_ptr,
    shapes_ptr,
    starts_ptr,
    loc_ptr,
    attn_ptr,
    out_ptr,
    Q,
    S,
    M: tl.constexpr,
    D: tl.constexpr,
    L: tl.constexpr,
    K: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """out[b, q, m] = the sum over levels and points of attn * (value of head m at loc). Computed in float32.

    Program (i, j) owns the i-th block of BLOCK_Q queries, of head j % M of batch item j // M, every channel.

    Args:
        value_ptr: (B, S, M, D), float32, float16 or bfloat16; more than 2^31 elements if B is large.
        shapes_ptr: (L, 2), the (H, W) of each level; starts_ptr: (L,), each level's first pixel among the S; both int32
            or both int64.
        loc_ptr: (B, Q, M, L, K, 2), each point's (x, y), from 0 at one edge of a level to 1 at the other.
        attn_ptr: (B, Q, M, L, K).
        out_ptr: (B, Q, M, D). Everything is contiguous; loc, attn and out may be float32 or 16-bit, each for itself.
        BLOCK_D: a power of two, at least D.
    """
    offs_q = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)  # @offs_q
    m = tl.program_id(1) % M  # @m
    b = (tl.program_id(1) // M).to(tl.int64)  # @b
    offs_d = tl.arange(0, BLOCK_D)
    mask_q = offs_q < Q  # @mask_q
    mask_d = offs_d < D
    row = (b * Q + offs_q) * M + m  # @row
    acc = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)  # @acc
    for l in range(L):  # @each_l
        H = tl.load(shapes_ptr + 2 * l).to(tl.int32)  # @H
        W = tl.load(shapes_ptr + 2 * l + 1).to(tl.int32)  # @W
        level_ptr = value_ptr + ((b * S + tl.load(starts_ptr + l)) * M + m) * D  # @level_ptr
        for k in range(K):
            point = (row * L + l) * K + k  # @point
            a = tl.load(attn_ptr + point, mask=mask_q, other=0.0).to(tl.float32)  # @a
            x = tl.load(loc_ptr + 2 * point, mask=mask_q, other=0.0).to(tl.float32) * W - 0.5  # @x
            y = tl.load(loc_ptr + 2 * point + 1, mask=mask_q, other=0.0).to(tl.float32) * H - 0.5  # @y
            for j in tl.static_range(2):
                for i in tl.static_range(2):
                    offset, weight, inside = corner(x, y, i, j, H, W)
                    pixel = level_ptr + offset[:, None] * (M * D) + offs_d[None, :]  # @pixel
                    v = tl.load(pixel, mask=(mask_q & inside)[:, None] & mask_d[None, :], other=0.0)  # @v
                    acc += (a * weight)[:, None] * v.to(tl.float32)  # @acc_2
    mask_out = mask_q[:, None] & mask_d[None, :]
    tl.store(out_ptr + row[:, None] * D + offs_d[None, :], acc.to(out_ptr.dtype.element_ty), mask=mask_out)  # @store


def msda_forward(
    value: torch.Tensor,
    spatial_shapes: torch.Tensor,
    level_start_index: torch.Tensor,
    sampling_locations: torch.Tensor,
    attention_weights: torch.Tensor,
) -> torch.Tensor:
    """Multi-scale deformable attention by your own kernel, on the device where value is.

    Args:
        value: (B, S, M, D), float32, float16 or bfloat16, with any strides.
        spatial_shapes: (L, 2), the (H, W) of each level; level_start_index: (L,); int32 or int64.
        sampling_locations: (B, Q, M, L, K, 2); attention_weights: (B, Q, M, L, K); in value's dtype or float32.

    Returns:
        (B, Q, M * D), in value's dtype. Q or B may be 0.
    """
    B, S, M, D = value.shape
    _, Q, _, L, K, _ = sampling_locations.shape  # @Q
    out = value.new_empty(B, Q, M * D)  # @out
    if out.numel() == 0:
        return out
    BLOCK_Q, BLOCK_D = 16, triton.next_power_of_2(D)  # @BLOCK_Q
    with torch.cuda.device_of(value):  # Triton launches on the current device; a CPU tensor changes nothing
        msda_fwd_kernel[(triton.cdiv(Q, BLOCK_Q), B * M)](  # @launch
            value.contiguous(),
            spatial_shapes.contiguous(),
            level_start_index.contiguous(),
            sampling_locations.contiguous(),
            attention_weights.contiguous(),
            out,
            Q,
            S,
            M=M,
            D=D,
            L=L,
            K=K,
            BLOCK_Q=BLOCK_Q,
            BLOCK_D=BLOCK_D,
            num_warps=4,
        )
    return out


@triton.jit
def msda_fwd_logits_kernel(
    value_ptr,
    shapes_ptr,
    starts_ptr,
    loc_ptr,
    logits_ptr,
    out_ptr,
    Q,
    S,
    M: tl.constexpr,
    D: tl.constexpr,
    L: tl.constexpr,
    K: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """`msda_fwd_kernel` that makes the attention weights itself: softmax over the L * K logits of each query and head.

    Programs and arguments are those of `msda_fwd_kernel`; everything is float32.

    Args:
        logits_ptr: (B, Q, M, L, K), of any size: exp must not overflow.
    """
    offs_q = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    m = tl.program_id(1) % M
    b = (tl.program_id(1) // M).to(tl.int64)
    offs_d = tl.arange(0, BLOCK_D)
    mask_q = offs_q < Q
    mask_d = offs_d < D
    row = (b * Q + offs_q) * M + m
    # Peak and sum are kept for every channel, 32 times the same: so each lane has its own, and reads where its tile lies.
    peak = tl.full([BLOCK_Q, BLOCK_D], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)
    acc = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)
    for l in range(L):
        H = tl.load(shapes_ptr + 2 * l).to(tl.int32)  # @H
        W = tl.load(shapes_ptr + 2 * l + 1).to(tl.int32)
        level_ptr = value_ptr + ((b * S + tl.load(starts_ptr + l)) * M + m) * D
        for k in range(K):  # @each_k
            point = (row * L + l) * K + k
            logit = tl.load(logits_ptr + point, mask=mask_q, other=0.0)
            higher = tl.maximum(peak, logit[:, None])  # @higher
            shrink = tl.exp(peak - higher)  # what was added so far was measured against a lower peak  # @shrink
            a = tl.exp(logit[:, None] - higher)  # @a
            total = total * shrink + a  # @total
            acc = acc * shrink  # @acc
            peak = higher
            x = tl.load(loc_ptr + 2 * point, mask=mask_q, other=0.0) * W - 0.5
            y = tl.load(loc_ptr + 2 * point + 1, mask=mask_q, other=0.0) * H - 0.5
            for j in tl.static_range(2):
                for i in tl.static_range(2):
                    offset, weight, inside = corner(x, y, i, j, H, W)
                    pixel = level_ptr + offset[:, None] * (M * D) + offs_d[None, :]
                    v = tl.load(pixel, mask=(mask_q & inside)[:, None] & mask_d[None, :], other=0.0)
                    acc += a * weight[:, None] * v  # @acc_2
    mask_out = mask_q[:, None] & mask_d[None, :]
    tl.store(out_ptr + row[:, None] * D + offs_d[None, :], acc / total, mask=mask_out)  # @store

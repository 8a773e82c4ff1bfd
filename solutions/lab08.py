"""Lab 08, Concurrent writes: one way to answer it."""

import torch

from msda_core.device import tl, triton


@triton.jit
def racy_histogram(index_ptr, hist_ptr, N, BLOCK: tl.constexpr):
    """hist[index[n]] += 1 for n below N, or so it says: read, add one, write back. One program: BLOCK indices.

    Args:
        index_ptr: (N,), int32; hist_ptr: int32.
    """
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < N
    index = tl.load(index_ptr + offs, mask=mask, other=0)
    count = tl.load(hist_ptr + index, mask=mask, other=0)
    tl.store(hist_ptr + index, count + 1, mask=mask)


@triton.jit
def histogram_kernel(index_ptr, hist_ptr, N, BLOCK: tl.constexpr):
    """hist[index[n]] += 1 for n below N, in whatever order programs run. One program: BLOCK indices.

    Args:
        index_ptr: (N,), int32.
        hist_ptr: int32; holds counts already, to which these are added.
    """
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # @offs
    mask = offs < N  # @mask
    index = tl.load(index_ptr + offs, mask=mask, other=0)  # @index
    tl.atomic_add(hist_ptr + index, 1, mask=mask, sem="relaxed")  # @atomic_add


@triton.jit
def merge_then_add_kernel(index_ptr, weight_ptr, out_ptr, N, BLOCK: tl.constexpr):
    """out[index[n]] += weight[n] for n below N. One program: BLOCK pairs, each place added to once.

    Args:
        index_ptr: (N,), int32, 0 or more. weight_ptr: (N,), float32.
        out_ptr: float32; holds sums already, to which these are added.
    """
    lane = tl.arange(0, BLOCK)
    offs = tl.program_id(0) * BLOCK + lane  # @offs
    mask = offs < N
    index = tl.load(index_ptr + offs, mask=mask, other=-1)  # @index
    weight = tl.load(weight_ptr + offs, mask=mask, other=0.0)  # @weight
    same = index[:, None] == index[None, :]  # @same
    total = tl.sum(tl.where(same, weight[None, :], 0.0), axis=1)  # @total
    first = tl.min(tl.where(same, lane[None, :], BLOCK), axis=1)
    tl.atomic_add(out_ptr + index, total, mask=mask & (first == lane), sem="relaxed")  # @atomic_add


def deterministic_sum(index: torch.Tensor, weight: torch.Tensor, size: int) -> torch.Tensor:
    """out[index[n]] += weight[n] into zeros: the same bits in whatever order the pairs come.

    Args:
        index: (N,), int64, from 0 to size - 1, in any order; a place may come often, or never.
        weight: (N,), float32, finite, of any size and sign. N is below 2^20, and may be 0.
        size: how many places there are.

    Returns:
        (size,), float32: each within 2^-20 of its exact sum, relative to the largest weight of that place times their number.
    """
    largest = torch.zeros(size, dtype=torch.float64).scatter_reduce(0, index, weight.double().abs(), "amax")
    mantissa, _ = torch.frexp(largest)
    unit = torch.where(largest > 0, largest / mantissa, 1.0) * 2.0**-40  # a power of two for each place
    whole = (weight.double() / unit[index]).round().long()
    return (torch.zeros(size, dtype=torch.int64).index_add(0, index, whole).double() * unit).float()


@triton.jit
def msda_bwd_kernel(
    grad_out_ptr,
    value_ptr,
    shapes_ptr,
    starts_ptr,
    loc_ptr,
    attn_ptr,
    grad_value_ptr,
    grad_loc_ptr,
    grad_attn_ptr,
    Q,
    S,
    M: tl.constexpr,
    D: tl.constexpr,
    L: tl.constexpr,
    K: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """All three gradients of multi-scale deformable attention. Computed in float32.

    Program r owns row r = (b * Q + q) * M + m: one query of one head of one image, all its
    points and channels. Everything is contiguous, and float32, float16 or bfloat16, each for itself.

    Args:
        grad_out_ptr: (B, Q, M, D). value_ptr: (B, S, M, D); beyond 2^31 elements if B is large.
        shapes_ptr: (L, 2), the (H, W) of each level. starts_ptr: (L,), each level's first pixel
            among the S. Both int32, or both int64.
        loc_ptr: (B, Q, M, L, K, 2), each point's (x, y), from 0 at one edge of a level to 1 at
            the other; also infinite, or not a number. attn_ptr: (B, Q, M, L, K).
        grad_value_ptr: like value, all zero.
        grad_loc_ptr, grad_attn_ptr: like loc and attn, uninitialised.
        BLOCK_P, BLOCK_D: powers of two, at least L * K and D.
    """
    row = tl.program_id(0).to(tl.int64)  # @row
    b = row // (Q * M)  # @b
    m = row % M  # @m
    offs_p = tl.arange(0, BLOCK_P)
    offs_d = tl.arange(0, BLOCK_D)
    mask_p = offs_p < L * K
    mask_d = offs_d < D
    point = row * (L * K) + offs_p  # @point
    a = tl.load(attn_ptr + point, mask=mask_p, other=0.0).to(tl.float32)
    x = tl.load(loc_ptr + 2 * point, mask=mask_p, other=0.0).to(tl.float32)
    y = tl.load(loc_ptr + 2 * point + 1, mask=mask_p, other=0.0).to(tl.float32)
    H = tl.load(shapes_ptr + 2 * (offs_p // K), mask=mask_p, other=0).to(tl.int32)  # @H
    W = tl.load(shapes_ptr + 2 * (offs_p // K) + 1, mask=mask_p, other=0).to(tl.int32)  # @W
    start = tl.load(starts_ptr + offs_p // K, mask=mask_p, other=0)  # @start
    g = tl.load(grad_out_ptr + row * D + offs_d, mask=mask_d, other=0.0).to(tl.float32)  # @g

    x = x * W - 0.5  # @x
    y = y * H - 0.5  # @y
    near = (x >= -1) & (x < W) & (y >= -1) & (y < H)  # false for NaN; only these points have a pixel  # @near
    x = tl.where(near, x, -2.0)  # @x_2
    y = tl.where(near, y, -2.0)  # @y_2
    x0 = tl.floor(x).to(tl.int32)  # @x0
    y0 = tl.floor(y).to(tl.int32)  # @y0
    fx = x - x0
    fy = y - y0
    grad_a = tl.zeros([BLOCK_P], tl.float32)
    grad_x = tl.zeros([BLOCK_P], tl.float32)
    grad_y = tl.zeros([BLOCK_P], tl.float32)
    for j in tl.static_range(2):
        for i in tl.static_range(2):
            xi = x0 + i  # @xi
            yj = y0 + j
            wx = fx if i else 1 - fx
            wy = fy if j else 1 - fy
            inside = mask_p & (xi >= 0) & (xi < W) & (yj >= 0) & (yj < H)  # @inside
            mask = inside[:, None] & mask_d[None, :]  # @mask
            pixel = b * S + start + yj * W + xi  # @pixel
            offs = (pixel * M + m)[:, None] * D + offs_d[None, :]  # @offs
            v = tl.load(value_ptr + offs, mask=mask, other=0.0).to(tl.float32)  # @v
            dot = tl.sum(v * g[None, :], axis=1)  # @dot
            grad_a += wx * wy * dot  # @grad_a
            grad_x += (wy if i else -wy) * dot  # @grad_x
            grad_y += (wx if j else -wx) * dot  # @grad_y
            share = ((a * wx * wy)[:, None] * g[None, :]).to(grad_value_ptr.dtype.element_ty)  # @share
            tl.atomic_add(grad_value_ptr + offs, share, mask=mask, sem="relaxed")  # @atomic_add
    tl.store(grad_attn_ptr + point, grad_a.to(grad_attn_ptr.dtype.element_ty), mask=mask_p)  # @store
    tl.store(grad_loc_ptr + 2 * point, (a * W * grad_x).to(grad_loc_ptr.dtype.element_ty), mask=mask_p)  # @store_2
    tl.store(grad_loc_ptr + 2 * point + 1, (a * H * grad_y).to(grad_loc_ptr.dtype.element_ty), mask=mask_p)  # @store_3


def msda_backward(
    grad_out: torch.Tensor,
    value: torch.Tensor,
    spatial_shapes: torch.Tensor,
    level_start_index: torch.Tensor,
    sampling_locations: torch.Tensor,
    attention_weights: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The three gradients by your own kernel, on the device where value is.

    Args:
        grad_out: (B, Q, M * D), value: (B, S, M, D): float32, float16 or bfloat16, any strides.
        spatial_shapes: (L, 2), the (H, W) of each level; level_start_index: (L,); int32 or int64.
        sampling_locations: (B, Q, M, L, K, 2); attention_weights: (B, Q, M, L, K); in value's
            dtype or float32.

    Returns:
        The gradients of value, sampling_locations and attention_weights: contiguous, each with
        the shape and dtype of what it is the gradient of. Q or B may be 0.
    """
    B, S, M, D = value.shape
    _, Q, _, L, K, _ = sampling_locations.shape
    grad_value = value.new_zeros(value.shape)  # @grad_value
    grad_loc = sampling_locations.new_empty(sampling_locations.shape)  # @grad_loc
    grad_attn = attention_weights.new_empty(attention_weights.shape)  # @grad_attn
    with torch.cuda.device_of(value):  # Triton launches on the current device
        msda_bwd_kernel[(B * Q * M,)](  # @launch
            grad_out.contiguous(),
            value.contiguous(),
            spatial_shapes.contiguous(),
            level_start_index.contiguous(),
            sampling_locations.contiguous(),
            attention_weights.contiguous(),
            grad_value,
            grad_loc,
            grad_attn,
            Q,
            S,
            M=M,
            D=D,
            L=L,
            K=K,
            BLOCK_P=triton.next_power_of_2(L * K),
            BLOCK_D=triton.next_power_of_2(D),
            num_warps=2,
        )
    return grad_value, grad_loc, grad_attn  # @result


@triton.jit
def msda_bwd_merged_kernel(
    grad_out_ptr,
    value_ptr,
    shapes_ptr,
    starts_ptr,
    loc_ptr,
    attn_ptr,
    grad_value_ptr,
    grad_loc_ptr,
    grad_attn_ptr,
    Q,
    S,
    M: tl.constexpr,
    D: tl.constexpr,
    L: tl.constexpr,
    K: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """All three gradients, as in `msda_bwd_kernel`; points of a row that share pixels meet first.

    Program r owns row r = (b * Q + q) * M + m: one query of one head of one image, all its
    points and channels. Everything is contiguous, and float32, float16 or bfloat16, each for itself.

    Args:
        grad_out_ptr: (B, Q, M, D). value_ptr: (B, S, M, D); beyond 2^31 elements if B is large.
        shapes_ptr: (L, 2), the (H, W) of each level. starts_ptr: (L,), each level's first pixel
            among the S. Both int32, or both int64.
        loc_ptr: (B, Q, M, L, K, 2), each point's (x, y), from 0 at one edge of a level to 1 at
            the other; also infinite, or not a number. attn_ptr: (B, Q, M, L, K).
        grad_value_ptr: like value, all zero.
        grad_loc_ptr, grad_attn_ptr: like loc and attn, uninitialised.
        BLOCK_P, BLOCK_D: powers of two, at least L * K and D.
    """
    row = tl.program_id(0).to(tl.int64)
    b = row // (Q * M)
    m = row % M
    offs_p = tl.arange(0, BLOCK_P)
    offs_d = tl.arange(0, BLOCK_D)
    mask_p = offs_p < L * K
    mask_d = offs_d < D
    point = row * (L * K) + offs_p
    a = tl.load(attn_ptr + point, mask=mask_p, other=0.0).to(tl.float32)
    x = tl.load(loc_ptr + 2 * point, mask=mask_p, other=0.0).to(tl.float32)
    y = tl.load(loc_ptr + 2 * point + 1, mask=mask_p, other=0.0).to(tl.float32)
    H = tl.load(shapes_ptr + 2 * (offs_p // K), mask=mask_p, other=0).to(tl.int32)
    W = tl.load(shapes_ptr + 2 * (offs_p // K) + 1, mask=mask_p, other=0).to(tl.int32)
    start = tl.load(starts_ptr + offs_p // K, mask=mask_p, other=0)
    g = tl.load(grad_out_ptr + row * D + offs_d, mask=mask_d, other=0.0).to(tl.float32)

    x = x * W - 0.5
    y = y * H - 0.5
    near = (x >= -1) & (x < W) & (y >= -1) & (y < H)  # false for NaN; only these points have a pixel
    x = tl.where(near, x, -2.0)
    y = tl.where(near, y, -2.0)
    x0 = tl.floor(x).to(tl.int32)
    y0 = tl.floor(y).to(tl.int32)
    fx = x - x0
    fy = y - y0
    same = (start[:, None] == start[None, :]) & (x0[:, None] == x0[None, :]) & (y0[:, None] == y0[None, :])  # @same
    first = offs_p == tl.min(tl.where(same, offs_p[None, :], BLOCK_P), axis=1)
    grad_a = tl.zeros([BLOCK_P], tl.float32)
    grad_x = tl.zeros([BLOCK_P], tl.float32)
    grad_y = tl.zeros([BLOCK_P], tl.float32)
    for j in tl.static_range(2):
        for i in tl.static_range(2):
            xi = x0 + i
            yj = y0 + j
            wx = fx if i else 1 - fx
            wy = fy if j else 1 - fy
            inside = mask_p & (xi >= 0) & (xi < W) & (yj >= 0) & (yj < H)
            mask = inside[:, None] & mask_d[None, :]
            pixel = b * S + start + yj * W + xi
            offs = (pixel * M + m)[:, None] * D + offs_d[None, :]
            v = tl.load(value_ptr + offs, mask=mask, other=0.0).to(tl.float32)
            dot = tl.sum(v * g[None, :], axis=1)
            grad_a += wx * wy * dot
            grad_x += (wy if i else -wy) * dot
            grad_y += (wx if j else -wx) * dot
            weight = a * wx * wy
            merged = tl.sum(tl.where(same, weight[None, :], 0.0), axis=1)  # @merged
            share = (merged[:, None] * g[None, :]).to(grad_value_ptr.dtype.element_ty)
            mask = (inside & first)[:, None] & mask_d[None, :]  # @mask
            tl.atomic_add(grad_value_ptr + offs, share, mask=mask, sem="relaxed")
    tl.store(grad_attn_ptr + point, grad_a.to(grad_attn_ptr.dtype.element_ty), mask=mask_p)
    tl.store(grad_loc_ptr + 2 * point, (a * W * grad_x).to(grad_loc_ptr.dtype.element_ty), mask=mask_p)
    tl.store(grad_loc_ptr + 2 * point + 1, (a * H * grad_y).to(grad_loc_ptr.dtype.element_ty), mask=mask_p)

"""Lab 04, Hello, Triton: one way to answer it."""

import torch

from msda_core.device import tl, triton


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, N, BLOCK: tl.constexpr):
    """out[i] = x[i] + y[i] for i below N. One program: BLOCK neighbouring elements.

    Args:
        x_ptr, y_ptr, out_ptr: (N,), float32.
    """
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # @offs
    mask = offs < N  # @mask
    x = tl.load(x_ptr + offs, mask=mask)  # @x
    y = tl.load(y_ptr + offs, mask=mask)  # @y
    tl.store(out_ptr + offs, x + y, mask=mask)  # @store


def add(x: torch.Tensor, y: torch.Tensor, BLOCK: int = 32) -> torch.Tensor:
    """x + y for two vectors (N,)."""
    N = x.numel()
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(N, BLOCK),)](x, y, out, N, BLOCK=BLOCK)
    return out


@triton.jit
def copy2d_kernel(
    x_ptr, out_ptr, H, W, stride_xh, stride_xw, stride_oh, stride_ow, BLOCK_H: tl.constexpr, BLOCK_W: tl.constexpr
):
    """out[h, w] = x[h, w] for h below H and w below W. One program: a tile (BLOCK_H, BLOCK_W).

    Program (i, j) owns the i-th tile downwards and the j-th to the right.

    Args:
        x_ptr, out_ptr: (H, W), float32.
        stride_xh, stride_xw: elements from one row of x to the next, and from one column to the next.
        stride_oh, stride_ow: the same for out.
    """
    offs_h = tl.program_id(0) * BLOCK_H + tl.arange(0, BLOCK_H)  # @offs_h
    offs_w = tl.program_id(1) * BLOCK_W + tl.arange(0, BLOCK_W)  # @offs_w
    mask = (offs_h < H)[:, None] & (offs_w < W)[None, :]  # @mask
    offs_x = offs_h[:, None] * stride_xh + offs_w[None, :] * stride_xw  # @offs_x
    offs_out = offs_h[:, None] * stride_oh + offs_w[None, :] * stride_ow  # @offs_out
    tile = tl.load(x_ptr + offs_x, mask=mask)  # @tile
    tl.store(out_ptr + offs_out, tile, mask=mask)  # @store


def copy2d(x: torch.Tensor, out: torch.Tensor, BLOCK_H: int = 4, BLOCK_W: int = 8) -> torch.Tensor:
    """Copy x into out: both (H, W), with any strides."""
    H, W = x.shape
    grid = (triton.cdiv(H, BLOCK_H), triton.cdiv(W, BLOCK_W))
    copy2d_kernel[grid](x, out, H, W, *x.stride(), *out.stride(), BLOCK_H=BLOCK_H, BLOCK_W=BLOCK_W)
    return out


@triton.jit
def gather_rows_kernel(table_ptr, index_ptr, out_ptr, N, D, stride_row, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):
    """out[n, d] = table[index[n], d] for n below N and d below D. One program: BLOCK_N rows.

    Args:
        table_ptr: (R, D); rows are stride_row elements apart: the last may begin past 2^31.
        index_ptr: (N,), int32, each from 0 to R - 1.
        out_ptr: (N, D), its rows one after another.
        BLOCK_D: a power of two, at least D.
    """
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)  # @offs_n
    offs_d = tl.arange(0, BLOCK_D)  # @offs_d
    mask_n = offs_n < N  # @mask_n
    mask = mask_n[:, None] & (offs_d < D)[None, :]  # @mask
    row = tl.load(index_ptr + offs_n, mask=mask_n, other=0).to(tl.int64)  # @row
    values = tl.load(table_ptr + row[:, None] * stride_row + offs_d[None, :], mask=mask)  # @values
    tl.store(out_ptr + offs_n[:, None] * D + offs_d[None, :], values, mask=mask)  # @store


def gather_rows(table: torch.Tensor, index: torch.Tensor, BLOCK_N: int = 4) -> torch.Tensor:
    """table[index] for a table (R, D) and an index (N,) of int32: (N, D)."""
    N, D = index.numel(), table.shape[1]
    out = table.new_empty(N, D)
    grid, BLOCK_D = (triton.cdiv(N, BLOCK_N),), triton.next_power_of_2(D)
    gather_rows_kernel[grid](table, index, out, N, D, table.stride(0), BLOCK_N=BLOCK_N, BLOCK_D=BLOCK_D)
    return out


@triton.jit
def bilinear_kernel(image_ptr, loc_ptr, out_ptr, Q, H, W, D, BLOCK_Q: tl.constexpr, BLOCK_D: tl.constexpr):
    """out[q] = the image read at location q; zero outside. One program: BLOCK_Q points.

    Args:
        image_ptr: (H, W, D), float32, contiguous.
        loc_ptr: (Q, 2), float32, contiguous: (x, y), from 0 at one edge to 1 at the other.
        out_ptr: (Q, D), float32, contiguous.
        BLOCK_D: a power of two, at least D.
    """
    offs_q = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)  # @offs_q
    offs_d = tl.arange(0, BLOCK_D)
    mask_q = offs_q < Q  # @mask_q
    mask_d = offs_d < D
    x = tl.load(loc_ptr + 2 * offs_q, mask=mask_q, other=0.0) * W - 0.5  # @x
    y = tl.load(loc_ptr + 2 * offs_q + 1, mask=mask_q, other=0.0) * H - 0.5  # @y
    x0 = tl.floor(x).to(tl.int32)  # @x0
    y0 = tl.floor(y).to(tl.int32)  # @y0
    fx = x - x0
    fy = y - y0
    acc = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)  # @acc
    for j in tl.static_range(2):
        for i in tl.static_range(2):
            xi = x0 + i  # @xi
            yj = y0 + j  # @yj
            weight = (fx if i else 1 - fx) * (fy if j else 1 - fy)  # @weight
            inside = mask_q & (xi >= 0) & (xi < W) & (yj >= 0) & (yj < H)  # @inside
            pixel = image_ptr + (yj * W + xi)[:, None] * D + offs_d[None, :]  # @pixel
            acc += weight[:, None] * tl.load(pixel, mask=inside[:, None] & mask_d[None, :], other=0.0)  # @acc_2
    tl.store(out_ptr + offs_q[:, None] * D + offs_d[None, :], acc, mask=mask_q[:, None] & mask_d[None, :])  # @store


def bilinear(image: torch.Tensor, locations: torch.Tensor, BLOCK_Q: int = 16) -> torch.Tensor:
    """An image (H, W, D) read at locations (Q, 2): (Q, D)."""
    H, W, D = image.shape
    Q = locations.shape[0]
    out = image.new_empty(Q, D)
    grid, BLOCK_D = (triton.cdiv(Q, BLOCK_Q),), triton.next_power_of_2(D)
    bilinear_kernel[grid](image, locations, out, Q, H, W, D, BLOCK_Q=BLOCK_Q, BLOCK_D=BLOCK_D)
    return out


@triton.jit
def row_sum_kernel(x_ptr, out_ptr, N, stride_row, BLOCK: tl.constexpr):
    """out[r] = x[r, 0] + … + x[r, N - 1], in float32. One program: a row, block by block.

    Args:
        x_ptr: (R, N), float32 or float16; its rows are stride_row elements apart: the last may begin past 2^31.
        out_ptr: (R,), float32.
    """
    row = tl.program_id(0).to(tl.int64)  # @row
    acc = tl.zeros([BLOCK], tl.float32)  # @acc
    for start in range(0, N, BLOCK):  # @each_start
        offs = start + tl.arange(0, BLOCK)  # @offs
        x = tl.load(x_ptr + row * stride_row + offs, mask=offs < N, other=0.0)  # @x
        acc += x.to(tl.float32)  # @acc_2
    tl.store(out_ptr + row, tl.sum(acc, axis=0))  # @store


def row_sum(x: torch.Tensor, BLOCK: int = 16) -> torch.Tensor:
    """The sum of each row of x (R, N): (R,), float32."""
    R, N = x.shape
    out = torch.empty(R, device=x.device)
    row_sum_kernel[(R,)](x, out, N, x.stride(0), BLOCK=BLOCK)
    return out


@triton.jit
def softmax_kernel(x_ptr, out_ptr, N, stride_row, BLOCK: tl.constexpr):
    """out[r, n] = exp(x[r, n]) / sum over n of exp(x[r, n]). One program: a row, block by block.

    exp must not overflow, whatever x holds.

    Args:
        x_ptr, out_ptr: (R, N), float32; rows are stride_row elements apart: the last may begin past 2^31.
    """
    row = tl.program_id(0).to(tl.int64)  # @row
    x_ptr += row * stride_row  # @x_ptr
    out_ptr += row * stride_row  # @out_ptr
    offs = tl.arange(0, BLOCK)  # @offs
    top = tl.full([BLOCK], float("-inf"), tl.float32)  # @top
    for start in range(0, N, BLOCK):  # @each_start
        top = tl.maximum(top, tl.load(x_ptr + start + offs, mask=start + offs < N, other=float("-inf")))  # @top_2
    peak = tl.max(top, axis=0)  # @peak
    total = tl.zeros([BLOCK], tl.float32)  # @total
    for start in range(0, N, BLOCK):  # @each_start_2
        total += tl.exp(tl.load(x_ptr + start + offs, mask=start + offs < N, other=float("-inf")) - peak)  # @total_2
    norm = tl.sum(total, axis=0)  # @norm
    for start in range(0, N, BLOCK):  # @each_start_3
        x = tl.load(x_ptr + start + offs, mask=start + offs < N)  # @x
        tl.store(out_ptr + start + offs, tl.exp(x - peak) / norm, mask=start + offs < N)  # @store


def softmax(x: torch.Tensor, BLOCK: int = 16) -> torch.Tensor:
    """The softmax of each row of x (R, N), contiguous."""
    R, N = x.shape
    out = torch.empty_like(x)
    softmax_kernel[(R,)](x, out, N, x.stride(0), BLOCK=BLOCK)
    return out

"""The forward where neighbours meet: the plain forward's arithmetic on a tile of neighbouring queries.

One program owns a `TILE` of 8 × 4 neighbouring queries, whose pixels are mostly the same and meet in L1, and in 16 bits two
neighbouring heads, whose 64-byte rows fill a line of L1 together. Points come one after another, in registers: nothing is
summed across lanes.

Bytes it should move: locations, weights and output once; of value each touched sector once, if the caches hold it.
"""

from msda_core.device import load_triton
from msda_core.kernels.merged.left_over import corners_unsigned
from msda_core.kernels.merged.plan import read_tile

triton = load_triton()
tl = triton.language

__all__ = ["forward_tile_kernel"]


@triton.jit
def forward_tile_kernel(
    value_ptr, shapes_ptr, starts_ptr, loc_ptr, attn_ptr, out_ptr, tiles_ptr,
    Q, S,
    M: tl.constexpr, D: tl.constexpr, L: tl.constexpr, K: tl.constexpr,
    TILE_X: tl.constexpr, TILE_Y: tl.constexpr, BLOCK_M: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """One program: a row of `Lists.tiles` for BLOCK_M neighbouring heads of one batch item."""
    m = tl.program_id(0) % (M // BLOCK_M) * BLOCK_M
    b = tl.program_id(1)
    query_start, query_W, query_H, tile_x, tile_y = read_tile(tiles_ptr, tl.program_id(0) // (M // BLOCK_M))
    value_ptr += b.to(tl.int64) * S * (M * D) + m * D

    n = tl.arange(0, TILE_X * TILE_Y)
    head = tl.arange(0, BLOCK_M)[:, None]
    offs_d = tl.arange(0, D)[None, None, :]
    x = tile_x + n % TILE_X
    y = tile_y + n // TILE_X
    mask = ((x < query_W) & (y < query_H))[None, :] & (head >= 0)  # [BLOCK_M, queries]
    offs_row = ((b * Q + query_start + y * query_W + x) * M)[None, :] + m + head
    acc = tl.zeros([BLOCK_M, TILE_X * TILE_Y, D], tl.float32)
    for level in tl.static_range(L):
        H = tl.load(shapes_ptr + 2 * level).to(tl.int32)
        W = tl.load(shapes_ptr + 2 * level + 1).to(tl.int32)
        start = tl.load(starts_ptr + level).to(tl.int32)
        for k in tl.range(0, K, loop_unroll_factor=UNROLL):
            offs = offs_row * (L * K) + level * K + k
            a = tl.load(attn_ptr + offs, mask=mask, other=0.0).to(tl.float32)
            px = tl.load(loc_ptr + 2 * offs, mask=mask, other=0.0).to(tl.float32)
            py = tl.load(loc_ptr + 2 * offs + 1, mask=mask, other=0.0).to(tl.float32)
            x0, y0, fx, fy, left, right, top, bottom = corners_unsigned(px * W - 0.5, py * H - 0.5, W, H)
            top = top & mask
            bottom = bottom & mask
            offs_00 = (((start + y0 * W + x0) * M + head) * D)[:, :, None] + offs_d
            offs_10 = offs_00 + W * (M * D)
            upper = a * (1 - fy)
            lower = a * fy
            v = tl.load(value_ptr + offs_00, mask=(left & top)[:, :, None], other=0.0).to(tl.float32)
            acc += v * (upper * (1 - fx))[:, :, None]
            v = tl.load(value_ptr + offs_00 + M * D, mask=(right & top)[:, :, None], other=0.0).to(tl.float32)
            acc += v * (upper * fx)[:, :, None]
            v = tl.load(value_ptr + offs_10, mask=(left & bottom)[:, :, None], other=0.0).to(tl.float32)
            acc += v * (lower * (1 - fx))[:, :, None]
            v = tl.load(value_ptr + offs_10 + M * D, mask=(right & bottom)[:, :, None], other=0.0).to(tl.float32)
            acc += v * (lower * fx)[:, :, None]
    tl.store(out_ptr + (offs_row * D)[:, :, None] + offs_d, acc.to(out_ptr.dtype.element_ty), mask=mask[:, :, None])

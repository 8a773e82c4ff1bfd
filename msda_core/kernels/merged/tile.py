"""The forward where neighbours meet: the plain forward's arithmetic on a tile of neighbouring queries.

One program owns a `TILE` of 8 × 4 neighbouring queries, whose pixels are mostly the same and meet in L1. Points come one
after another, in registers: nothing is summed across lanes. In 16 bits

- a row is 64 bytes, half a line of L1, and all rows of a head start in the same half: two of them collide in L1's banks. A
  program owns two neighbouring heads, interleaved so that the rows of one load phase belong to both;
- rows are read and written in packed pairs of channels, even and odd ones summed apart (`packed.numbers` says why).

A float32 row is a whole line, and one head will do.

Given reference points, it takes offsets and logits as a module's linear layers gave them (`raw`).

Bytes it should move: locations, weights and output once; of value each touched sector once, if the caches hold it.
"""

from msda_core.device import load_triton
from msda_core.kernels.merged.packed import load_pair, numbers, pack
from msda_core.kernels.merged.plan import read_tile, tile_row
from msda_core.kernels.merged.remainder import corners_unsigned

triton = load_triton()
tl = triton.language

__all__ = ["forward_tile_kernel"]


@triton.jit
def add_row(acc, ptr, mask, weight, T: tl.constexpr, PTX: tl.constexpr):
    """Add weight × row to accumulators [rows, pairs of a row]: one in float32, in 16 bits one of even and one of odd channels."""
    pairs = tl.load(ptr, mask=mask[:, None], other=0)
    weight = weight[:, None]
    if T == tl.float32:
        return (acc[0] + weight * pairs,)
    else:
        even, odd = numbers(pairs, T, PTX)
        return acc[0] + weight * even, acc[1] + weight * odd


@triton.jit
def forward_tile_kernel(
    value_ptr, shapes_ptr, starts_ptr, loc_ptr, attn_ptr, out_ptr, tiles_ptr, ref_ptr, lse_ptr,
    Q, S,
    M: tl.constexpr, L: tl.constexpr, K: tl.constexpr,
    TILE_X: tl.constexpr, TILE_Y: tl.constexpr, BLOCK_M: tl.constexpr, UNROLL: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """One program: a row of `Lists.tiles` for BLOCK_M neighbouring heads of one batch item, D = 32.

    Args:
        value_ptr, loc_ptr, out_ptr: 16-byte aligned, read and written in packed pairs and (x, y) pairs; BLOCK_M: 2 in 16 bits, 1 in float32;
        UNROLL: points of a level at a time; ref_ptr: None, or (B, Q, L, 2) float32, 8-byte aligned: loc_ptr then holds offsets in pixels,
        attn_ptr logits, and lse_ptr, (B, Q, M) float32, their rows' `raw.log_sum`.
    """
    T: tl.constexpr = value_ptr.dtype.element_ty
    ROW: tl.constexpr = 32 if T == tl.float32 else 16  # pairs
    N: tl.constexpr = TILE_X * TILE_Y
    m = tl.program_id(1) * BLOCK_M  # heads after tiles: one part of value is read at a time, and stays in L2
    b = tl.program_id(2)
    query_start, query_W, query_H, tile_x, tile_y = read_tile(tiles_ptr, tl.program_id(0))
    pair: tl.constexpr = tl.float32 if T == tl.float32 else tl.int32
    pairs_ptr = value_ptr.to(tl.pointer_type(pair)) + (b.to(tl.int64) * S * M + m) * ROW

    # One axis for queries and heads: of two, Triton 3.6 and 3.9 put different ones on neighbouring lanes.
    n = tl.arange(0, N * BLOCK_M)
    head = n % BLOCK_M
    j = tl.arange(0, ROW)[None, :]
    row, mask = tile_row(n // BLOCK_M, tile_x, tile_y, query_W, query_H, b * Q + query_start, m, M, TILE_X)
    offs_row = row + head
    acc = (tl.zeros([N * BLOCK_M, ROW], tl.float32),)
    if T != tl.float32:
        acc = acc + (tl.zeros([N * BLOCK_M, ROW], tl.float32),)
    lse = 0.0
    if ref_ptr is not None:
        lse = tl.load(lse_ptr + offs_row)
    for level in tl.static_range(L):
        H = tl.load(shapes_ptr + 2 * level).to(tl.int32)
        W = tl.load(shapes_ptr + 2 * level + 1).to(tl.int32)
        start = tl.load(starts_ptr + level).to(tl.int32)
        ref_x = -0.5
        ref_y = -0.5
        if ref_ptr is not None:
            ref_x, ref_y = load_pair(ref_ptr, (row // M) * L + level)
            ref_x = ref_x * W - 0.5
            ref_y = ref_y * H - 0.5
        for k in tl.range(0, K, loop_unroll_factor=UNROLL):
            offs = offs_row * (L * K) + level * K + k
            a = tl.load(attn_ptr + offs).to(tl.float32)
            px, py = load_pair(loc_ptr, offs)
            if ref_ptr is None:
                px *= W
                py *= H
            else:
                a = tl.exp(a - lse)
            x0, y0, fx, fy, left, right, top, bottom = corners_unsigned(px + ref_x, py + ref_y, W, H)
            # Pointers, not offsets: from a pixel to its right neighbour is then a part of the load instruction.
            ptr_00 = pairs_ptr + (((start + y0 * W + x0) * M + head) * ROW)[:, None] + j
            ptr_10 = ptr_00 + W * (M * ROW)
            upper = a * (1 - fy)
            lower = a * fy
            acc = add_row(acc, ptr_00, left & top, upper * (1 - fx), T, PTX)
            acc = add_row(acc, ptr_00 + M * ROW, right & top, upper * fx, T, PTX)
            acc = add_row(acc, ptr_10, left & bottom, lower * (1 - fx), T, PTX)
            acc = add_row(acc, ptr_10 + M * ROW, right & bottom, lower * fx, T, PTX)
    out_ptr = out_ptr.to(tl.pointer_type(pair)) + (offs_row * ROW)[:, None] + j
    if T == tl.float32:
        tl.store(out_ptr, acc[0], mask=mask[:, None])
    else:
        tl.store(out_ptr, pack(acc[0], acc[1], T, PTX), mask=mask[:, None])

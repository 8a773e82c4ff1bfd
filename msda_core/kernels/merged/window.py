"""grad_value where neighbours meet: a tile of queries adds up in a window of pixels, and the window is added once.

Of a tile of queries, the points on a coarser level fall on few pixels: 16 × 16 queries of a level twice as fine stand on
8 × 8 pixels, and those are hit by 1,024 points with four corners each. Adding all of them with atomics is what the plain
backward waits for. Here one program owns a tile of queries of one (batch item, head) and one target level, and computes

    window[p, :] = sum over q of A[q, p] * grad_out[q, :]        p: the 12 × 16 pixels of a window
    A[q, p]      = sum over k of attention[q, k] * row_k[p] * column_k[p]

where row_k and column_k are the bilinear weights of point k in y and x, zero but for two pixels each. A is dense, mostly
zeros, and costs nothing to look up: the sum is a matrix product, A^T @ grad_out, on tensor cores. Then every pixel of the
window is one reduction, instead of one for each corner of each point.

- One thread owns a query: all 192 weights of its points are in its own registers, two columns in a pair, so A is built
  without a single exchange between threads, by compares: a weight is put where the pixel's number equals the point's.
- 128 queries at a time (a *chunk*), whose locations were loaded while the chunk before was multiplied.
- The window lies at the mean of a sample of the tile's points, so that it follows a head that has learnt to look left.
- A point that is not wholly inside the window is not dropped. It is flagged, one bit each, and `remainder` adds it.
- The choice: where more than half of that sample misses the window, the tile is not merged, and where a sum is not finite
  (a NaN in grad_out times a weight of zero would spread over the window), neither. Then `points` adds, plainly. Either way
  the program says so in merged[slot].
- A float32 accumulator wants better weights than 16 bits: there, and only there, A is the sum of two 16-bit terms, and so is
  a float32 grad_out. Of the four products of terms, that of the two rests is left out.

Bytes it should move: locations, weights and grad_out once for each target level; grad_value once a window.
"""

from msda_core.device import load_triton
from msda_core.kernels.merged.packed import pack, split, sum_of_products, weighted_rows
from msda_core.kernels.merged.remainder import cell

triton = load_triton()
tl = triton.language

__all__ = ["merge_window_kernel"]

COLUMNS = tl.constexpr(16)  # of a window
GROUPS = tl.constexpr(3)  # of four rows, each an accumulator of 64 pixels
ROWS = tl.constexpr(12)
NOWHERE = tl.constexpr(-99)  # a row that no window has
SAMPLE_X = tl.constexpr(8)  # of the sample's 8 × 4 queries
FAR = tl.constexpr(48)  # pixels; for the mean, what lies further away counts as this far


# ------------------------------------------------------------------------------------------------- loading four points


@triton.jit
def four(t):
    """[N, 4] → its columns, a tuple of four [N]."""
    N: tl.constexpr = t.shape[0]
    even, odd = tl.split(tl.reshape(t, [N, 2, 2]))
    t0, t2 = tl.split(even)
    t1, t3 = tl.split(odd)
    return t0, t1, t2, t3


@triton.jit
def load_row(ptr, offs, mask, WIDTH: tl.constexpr):
    """[N, WIDTH], neighbours in memory: one load a lane, as long as they are no more than 16 bytes."""
    return tl.load(ptr + offs[:, None] + tl.arange(0, WIDTH)[None, :], mask=mask[:, None], other=0.0)


@triton.jit
def load_locations(ptr, offs, mask):
    """Four locations of each query, as they lie: one block of 16 bytes a lane, in float32 two."""
    if ptr.dtype.element_ty == tl.float32:
        return load_row(ptr, offs, mask, 4), load_row(ptr, offs + 4, mask, 4)
    else:
        return (load_row(ptr, offs, mask, 8),)


@triton.jit
def load_queries(loc_ptr, ref_ptr, lse_ptr, row, level, mask, M: tl.constexpr, L: tl.constexpr):
    """Four locations of each query on a level; given ref_ptr, four offsets, the reference point and the row's `raw.log_sum`."""
    loc = load_locations(loc_ptr, (row * L + level) * 8, mask)
    if ref_ptr is not None:
        offs = 2 * ((row // M) * L + level)
        ref_x = tl.load(ref_ptr + offs, mask=mask, other=0.0)
        ref_y = tl.load(ref_ptr + offs + 1, mask=mask, other=0.0)
        loc = loc + (ref_x, ref_y, tl.load(lse_ptr + row, mask=mask, other=0.0))
    return loc


@triton.jit
def xs_and_ys(loc):
    """What `load_locations` returns → a tuple of four x and one of four y, [N] float32."""
    N: tl.constexpr = loc[0].shape[0]
    if len(loc) % 3 == 2:
        x0, y0, x1, y1 = four(loc[0])
        x2, y2, x3, y3 = four(loc[1])
        return (x0, x1, x2, x3), (y0, y1, y2, y3)
    else:
        x, y = tl.split(tl.reshape(loc[0].to(tl.float32), [N, 4, 2]))
        return four(x), four(y)


@triton.jit
def locations(queries, W, H):
    """What `load_queries` returns → a tuple of four x and one of four y in [0, 1], [N] float32."""
    xs, ys = xs_and_ys(queries)
    if len(queries) > 2:
        ref_x = queries[len(queries) - 3]
        ref_y = queries[len(queries) - 2]
        moved_x = ()
        moved_y = ()
        for k in tl.static_range(4):
            moved_x = moved_x + (ref_x + xs[k] * (1.0 / W),)
            moved_y = moved_y + (ref_y + ys[k] * (1.0 / H),)
        return moved_x, moved_y
    else:
        return xs, ys


@triton.jit
def weights(attn, queries):
    """Four weights of each query, [N] float32, of its weights or logits [N, 4] and what `load_queries` returns."""
    if len(queries) > 2:
        attn = tl.exp(attn.to(tl.float32) - queries[len(queries) - 1][:, None])
    return four(attn.to(tl.float32))


# ------------------------------------------------------------------------------------------------ where the window lies


@triton.jit
def displacement(x, y, W, H, centre_x, centre_y):
    """How far a point's upper left pixel is from (centre_x, centre_y), both coordinates in one packed pair.

    Each is moved by FAR to be no negative number, so 2^16 / (2 FAR) = 682 such pairs add up before a half overflows.
    """
    dx = tl.minimum(tl.maximum(tl.floor(x * W - 0.5) - centre_x, -FAR), FAR).to(tl.int32) + FAR
    dy = tl.minimum(tl.maximum(tl.floor(y * H - 0.5) - centre_y, -FAR), FAR).to(tl.int32) + FAR
    return dx + (dy << 16)


@triton.jit
def in_window(column, row):
    """Are all four pixels of a point in the window whose upper left one is at (column, row) of it?"""
    return (column >= 0) & (column < COLUMNS - 1) & (row >= 0) & (row < ROWS - 1)


@triton.jit
def place_window(xs, ys, W, H, centre_x, centre_y):
    """The window around a sample of points, and whether half of them lie in it.

    Args:
        xs, ys: four [N] each, N ≤ 128; centre_x, centre_y: a pixel near them, int32.

    Returns:
        Pixel coordinates of the window's first column and row, at most one outside the image; worth: 1 or 0.
    """
    N: tl.constexpr = xs[0].shape[0]
    tl.static_assert(4 * N * 2 * FAR < 65536)
    at = ()
    total = tl.zeros([N], tl.int32)
    for k in tl.static_range(4):
        at = at + (displacement(xs[k], ys[k], W, H, centre_x, centre_y),)
        total += at[k]
    total = tl.sum(total, 0)
    mean_x = tl.floor((total & 0xFFFF).to(tl.float32) * (1.0 / (4 * N)) - (FAR - 0.5)).to(tl.int32)
    mean_y = tl.floor((total >> 16).to(tl.float32) * (1.0 / (4 * N)) - (FAR - 0.5)).to(tl.int32)
    window_x = tl.maximum(tl.minimum(centre_x + mean_x - (COLUMNS - 1) // 2, W - (COLUMNS - 1)), -1)
    window_y = tl.maximum(tl.minimum(centre_y + mean_y - (ROWS - 1) // 2, H - (ROWS - 1)), -1)

    votes = tl.full([N], -2, tl.int32)  # of the four points of a query, those inside minus those outside, halved
    for k in tl.static_range(4):
        column = (at[k] & 0xFFFF) - FAR + centre_x - window_x
        row = (at[k] >> 16) - FAR + centre_y - window_y
        votes += in_window(column, row).to(tl.int32)
    worth = (tl.sum(votes, 0) >= 0).to(tl.int32)
    return window_x, window_y, worth


@triton.jit
def place(x, y, W, H, window_x, window_y):
    """A point in the window.

    Returns:
        column, row: of its upper left pixel, counted from the window's corner, [0, COLUMNS - 2] and [0, ROWS - 2], or row
        NOWHERE for a point that adds nothing here; fx, fy: how far past that pixel, [0, 1); missed: it touches the image,
        but not only the window.
    """
    x0, y0, fx, fy = cell(x * W - 0.5, y * H - 0.5)
    alive = (x0 >= -1) & (x0 < W) & (y0 >= -1) & (y0 < H)
    column = x0 - window_x
    row = y0 - window_y
    inside = in_window(column, row)
    return column, tl.where(alive & inside, row, NOWHERE), fx, fy, alive & (inside == 0)


# --------------------------------------------------------------------------------------------------- weights in a window


@triton.jit
def put(first, w0, w1, index):
    """[n, N] weights: w0 where index is the query's `first`, w1 at the next index, zero elsewhere."""
    here = first[None, :] == index[:, None]
    after = first[None, :] == index[:, None] - 1
    return tl.where(here, w0[None, :], tl.where(after, w1[None, :], 0))


@triton.jit
def row_pairs(row, fy, a, index, T: tl.constexpr, PTX: tl.constexpr):
    """attention × weights of 4 rows, [4, 1, N]: the same number in both halves of a pair."""
    lower = a * fy
    upper = a - lower
    return put(row, pack(upper, upper, T, PTX), pack(lower, lower, T, PTX), index)[:, None, :]


@triton.jit
def column_pairs(column, fx, T: tl.constexpr, PTX: tl.constexpr):
    """Weights of the window's 16 columns, [1, 8, N] packed pairs: 1 - fx at `column`, fx beside it, in one pair or in two."""
    pair = pack(1 - fx, fx, T, PTX)
    odd = column % 2 == 1
    first = tl.where(odd, pair << 16, pair)
    second = tl.where(odd, (pair >> 16) & 0xFFFF, 0)
    return put(column >> 1, first, second, tl.arange(0, 8))[None, :, :]


@triton.jit
def weights_16(columns_of, rows_of, fxs, fys, attn, index, T: tl.constexpr, PTX: tl.constexpr):
    """A for four rows of the window in T: its even and its odd columns, each [4, 8, N].

    Args:
        columns_of, rows_of, fxs, fys, attn: four [N] each, as `place` returns them; index: [4], the numbers of the rows.
    """
    rows = ()
    columns = ()
    for k in tl.static_range(4):
        rows = rows + (row_pairs(rows_of[k], fys[k], attn[k], index, T, PTX),)
        columns = columns + (column_pairs(columns_of[k], fxs[k], T, PTX),)
    return sum_of_products(rows, columns, T, PTX)


@triton.jit
def put_even(column, fx, pair):
    """Weights of the even columns, [1, 8, N]: 1 - fx at an even `column`, fx after an odd one."""
    odd = column % 2 == 1
    return put(column >> 1, tl.where(odd, 0.0, 1 - fx), tl.where(odd, fx, 0.0), pair)[None, :, :]


@triton.jit
def put_odd(column, fx, pair):
    """Weights of the odd columns, [1, 8, N]: 1 - fx at an odd `column`, fx after an even one, in the same pair."""
    weight = tl.where(column % 2 == 1, 1 - fx, fx)
    return tl.where((column >> 1)[None, :] == pair[:, None], weight[None, :], 0.0)[None, :, :]


@triton.jit
def weights_32(columns_of, rows_of, fxs, fys, attn, index):
    """As `weights_16`, in float32, which has no pairs: even and odd columns are computed apart."""
    pair = tl.arange(0, 8)
    rows = ()
    for k in tl.static_range(4):
        lower = attn[k] * fys[k]
        rows = rows + (put(rows_of[k], attn[k] - lower, lower, index)[:, None, :],)
    even = rows[0] * put_even(columns_of[0], fxs[0], pair)
    odd = rows[0] * put_odd(columns_of[0], fxs[0], pair)
    for k in tl.static_range(1, 4):
        even += rows[k] * put_even(columns_of[k], fxs[k], pair)
        odd += rows[k] * put_odd(columns_of[k], fxs[k], pair)
    return even, odd


@triton.jit
def by_query(even, odd):
    """[4 rows, 8, N] twice → [N, 64 pixels]. Only names of registers change: one thread holds all 64."""
    N: tl.constexpr = even.shape[2]
    return tl.reshape(tl.permute(tl.join(even, odd), [2, 0, 1, 3]), [N, 64])


# ------------------------------------------------------------------------------------------------------------ the kernel


@triton.jit
def add_chunk(
    acc, queries, attn, grad_out_ptr, flags_ptr, offs_row, offs_flag, mask, W, H, window_x, window_y,
    D: tl.constexpr, TERMS: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """Add one chunk of queries to the accumulators, a tuple of GROUPS [64, D], and flag what misses the window."""
    T: tl.constexpr = tl.bfloat16 if grad_out_ptr.dtype.element_ty == tl.float32 else grad_out_ptr.dtype.element_ty
    g = tl.load(grad_out_ptr + offs_row[:, None] * D + tl.arange(0, D)[None, :], mask=mask[:, None], other=0.0)
    xs, ys = locations(queries, W, H)
    attn = weights(attn, queries)
    columns = ()
    rows = ()
    fxs = ()
    fys = ()
    flags = tl.zeros([mask.shape[0]], tl.int32)
    for k in tl.static_range(4):
        column, row, fx, fy, missed = place(xs[k], ys[k], W, H, window_x, window_y)
        columns = columns + (column,)
        rows = rows + (row,)
        fxs = fxs + (fx,)
        fys = fys + (fy,)
        flags |= missed.to(tl.int32) << k
    tl.store(flags_ptr + offs_flag, flags.to(tl.int8), mask=mask)
    g_lead = g.to(T)
    g_rest = (g.to(tl.float32) - g_lead.to(tl.float32)).to(T)  # of a float32 grad_out
    out = ()
    for group in tl.static_range(GROUPS):
        index = tl.arange(0, 4) + 4 * group
        if TERMS == 1:
            even, odd = weights_16(columns, rows, fxs, fys, attn, index, T, PTX)
            total = weighted_rows(by_query(even, odd), g_lead, acc[group], PTX)
        else:
            even, odd = weights_32(columns, rows, fxs, fys, attn, index)
            even, odd, even_rest, odd_rest = split(even, odd, T, PTX)
            lead = by_query(even, odd)
            total = acc[group]
            if g.dtype == tl.float32:
                total = weighted_rows(lead, g_rest, total, PTX)
            total = weighted_rows(lead, g_lead, total, PTX)
            total = weighted_rows(by_query(even_rest, odd_rest), g_lead, total, PTX)
        out = out + (total,)
    return out


@triton.jit
def merge_window_kernel(
    shapes_ptr, starts_ptr, loc_ptr, attn_ptr, grad_out_ptr, grad_value_ptr, flags_ptr, merged_ptr, merges_ptr, ref_ptr, lse_ptr,
    Q, S, SLOTS,
    M: tl.constexpr, D: tl.constexpr, L: tl.constexpr,
    TERMS: tl.constexpr, CHUNK_X: tl.constexpr, CHUNK_Y: tl.constexpr, LARGEST: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """One program: a row of `Lists.merges` for one (batch item, head), K = 4 points.

    Args:
        grad_value_ptr: (B, S, M, D), added to; flags_ptr: (B, L, M, Q) int8, written for every query of the tile: bit k says
            that point k is spilled; merged_ptr: (B, M, SLOTS) int32, written: 1 where the rest was merged.
        ref_ptr, lse_ptr: None, or as `forward_tile_kernel` has them.
        TERMS: 16-bit terms of a weight, 1 or 2; CHUNK_X, CHUNK_Y: queries of a chunk; LARGEST: of grad_value's format.
    """
    N: tl.constexpr = CHUNK_X * CHUNK_Y
    tl.static_assert(ROWS == 4 * GROUPS)
    m = tl.program_id(0) % M  # neighbouring heads' locations share lines: let them run together
    b = tl.program_id(1)
    merges_ptr += (tl.program_id(0) // M) * 9
    query_start = tl.load(merges_ptr)
    query_W = tl.load(merges_ptr + 1)
    query_H = tl.load(merges_ptr + 2)
    tile_x = tl.load(merges_ptr + 3)
    tile_y = tl.load(merges_ptr + 4)
    level = tl.load(merges_ptr + 5)
    tile_W = tl.load(merges_ptr + 6)
    tile_H = tl.load(merges_ptr + 7)
    slot = tl.load(merges_ptr + 8)
    H = tl.load(shapes_ptr + 2 * level).to(tl.int32)
    W = tl.load(shapes_ptr + 2 * level + 1).to(tl.int32)
    start = tl.load(starts_ptr + level).to(tl.int32)
    grad_value_ptr += b.to(tl.int64) * S * (M * D) + m * D
    flags_ptr += ((b * L + level) * M + m) * Q

    # A sample of the tile's queries, spread over all of it. 32, so that every warp sums up for itself and none waits for another.
    sample = tl.arange(0, 32)
    x = tile_x + (2 * (sample % SAMPLE_X) + 1) * tl.minimum(tile_W, query_W - tile_x) // (2 * SAMPLE_X)
    y = tile_y + (2 * (sample // SAMPLE_X) + 1) * tl.minimum(tile_H, query_H - tile_y) // (64 // SAMPLE_X)
    row = (b * Q + query_start + y * query_W + x) * M + m
    xs, ys = locations(load_queries(loc_ptr, ref_ptr, lse_ptr, row, level, sample >= 0, M, L), W, H)
    centre_x = (tile_x + tile_W // 2) * W // query_W
    centre_y = (tile_y + tile_H // 2) * H // query_H
    window_x, window_y, worth = place_window(xs, ys, W, H, centre_x, centre_y)

    # Chunk by chunk; no chunk at all, where it is not worth it.
    chunk_x = tl.arange(0, N) % CHUNK_X
    chunk_y = tl.arange(0, N) // CHUNK_X
    chunks_x = tl.minimum(tile_W // CHUNK_X, tl.cdiv(query_W - tile_x, CHUNK_X))
    chunks_y = tl.minimum(tile_H // CHUNK_Y, tl.cdiv(query_H - tile_y, CHUNK_Y))
    end = tile_y + chunks_y * CHUNK_Y
    x = tile_x + chunk_x
    y = tile_y + chunk_y
    mask = (x < query_W) & (y < query_H)
    q = query_start + y * query_W + x
    row = (b * Q + q) * M + m
    queries = load_queries(loc_ptr, ref_ptr, lse_ptr, row, level, mask, M, L)
    attn = load_row(attn_ptr, (row * L + level) * 4, mask, 4)
    acc = ()
    for _group in tl.static_range(GROUPS):
        acc = acc + (tl.zeros([64, D], tl.float32),)
    at_x = 0
    at_y = 0
    for _chunk in tl.range(chunks_x * chunks_y * worth):
        at_x += 1
        wrap = at_x == chunks_x
        at_y = tl.where(wrap, at_y + 1, at_y)
        at_x = tl.where(wrap, 0, at_x)
        x = tile_x + at_x * CHUNK_X + chunk_x
        y = tile_y + at_y * CHUNK_Y + chunk_y
        next_mask = (x < query_W) & (y < query_H) & (y < end)
        next_q = query_start + y * query_W + x
        next_row = (b * Q + next_q) * M + m
        next_queries = load_queries(loc_ptr, ref_ptr, lse_ptr, next_row, level, next_mask, M, L)
        next_attn = load_row(attn_ptr, (next_row * L + level) * 4, next_mask, 4)
        row = (b * Q + q) * M + m
        acc = add_chunk(
            acc, queries, attn, grad_out_ptr, flags_ptr, row, q, mask, W, H, window_x, window_y, D, TERMS, PTX
        )  # fmt: skip
        queries = next_queries
        attn = next_attn
        mask = next_mask
        q = next_q

    # A NaN or an infinity anywhere in the tile has reached every sum that it was multiplied into, also by a weight of zero.
    finite = tl.abs(acc[0]) <= LARGEST
    for group in tl.static_range(1, GROUPS):
        finite = finite & (tl.abs(acc[group]) <= LARGEST)
    done = worth * (tl.sum(finite.to(tl.int32)) == 64 * D).to(tl.int32)
    tl.store(merged_ptr + (b * M + m) * SLOTS + slot, done)

    # No branch around the additions: inside one, Triton 3.6 leaves float32 sums where the tensor cores put them, and adds each
    # element by itself. A window that is not done has no rows.
    pixel = tl.arange(0, 64)
    column = window_x + pixel % COLUMNS
    for group in tl.static_range(GROUPS):
        line = window_y + 4 * group + pixel // COLUMNS
        mask_pixel = (column >= 0) & (column < W) & (line >= 0) & (line < H * done)
        offs_pixel = (start + line * W + column) * (M * D)
        offs_out = offs_pixel[:, None] + tl.arange(0, D)[None, :]
        total = acc[group].to(grad_value_ptr.dtype.element_ty)
        tl.atomic_add(grad_value_ptr + offs_out, total, mask=mask_pixel[:, None], sem="relaxed")
    if done == 0:  # `points` adds all of this tile, so nothing of it is spilled
        for n in tl.range(chunks_x * chunks_y):
            x = tile_x + n % chunks_x * CHUNK_X + chunk_x
            y = tile_y + n // chunks_x * CHUNK_Y + chunk_y
            q = query_start + y * query_W + x
            tl.store(flags_ptr + q, tl.zeros([N], tl.int8), mask=(x < query_W) & (y < query_H))

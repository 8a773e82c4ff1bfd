"""grad_locations and grad_attention of every point, and grad_value of the points that nobody merges.

As in the plain backward, a point's gradients come from the dot products of its four pixels with grad_out. What is different:

- A program owns a `TILE` of neighbouring queries, 8 × 4, so that their pixels meet in L1.
- In 16 bits a row of 32 channels is 64 bytes, half a line of L1, and all rows of a head start in the same half: two of them
  collide in L1's banks. A program owns two neighbouring heads, interleaved so that the rows of one load phase belong to
  both, and fill the line. A float32 row is a whole line, and one head will do.
- In 16 bits the dot products run on tensor cores, on the registers as they were loaded (`packed.dots`).
- It waits for the way into L2. So a query's parameters come in one load for all levels, and gradients of several levels leave
  in one store; and in 16 bits the loads of several levels are under way before the first is used.
- Given reference points, it takes offsets and logits, and its gradients are those of offsets and logits: a weight's gradient less
  the mean of its row, which the lanes of a row have between them.
- What no window has taken is added here, plainly, since pixels, weights and grad_out are at hand: the queries' own level,
  finer ones, and tiles that were not worth merging (`merged`, written by `window`).

Bytes it should move: what the plain backward does, without the reductions that were merged.
"""

from msda_core.device import load_triton
from msda_core.kernels.merged.packed import dots, load_pair, pack, prefetch
from msda_core.kernels.merged.plan import read_tile, tile_row
from msda_core.kernels.merged.remainder import add_corners, corners_unsigned
from msda_core.kernels.raw import placed, softmaxed

triton = load_triton()
tl = triton.language

__all__ = ["points_16_kernel", "points_32_kernel"]


@triton.constexpr_function
def levels_together(first, together, L):
    """How many of the levels from `first` on are worked on together."""
    return min(together, L - first)


@triton.jit
def level_table(shapes_ptr, starts_ptr, FIRST: tl.constexpr, COUNT: tl.constexpr):
    """W, H and start of COUNT levels from FIRST on: three tuples, loaded once for all queries of a program."""
    Ws = ()
    Hs = ()
    starts = ()
    for u in tl.static_range(COUNT):
        Ws = Ws + (tl.load(shapes_ptr + 2 * (FIRST + u) + 1).to(tl.int32),)
        Hs = Hs + (tl.load(shapes_ptr + 2 * (FIRST + u)).to(tl.int32),)
        starts = starts + (tl.load(starts_ptr + FIRST + u).to(tl.int32),)
    return Ws, Hs, starts


@triton.jit
def left_to_add(merged_ptr, slots_ptr, SLOTS, FIRST: tl.constexpr, COUNT: tl.constexpr, HEADS: tl.constexpr):
    """Bit HEADS·u + h: level FIRST + u of head h is not merged, and its points are to be added here."""
    bits = 0
    for u in tl.static_range(COUNT):
        slot = tl.load(slots_ptr + FIRST + u)
        for h in tl.static_range(HEADS):
            merged = tl.load(merged_ptr + h * SLOTS + slot, mask=slot >= 0, other=0)
            bits |= (1 - merged) << (HEADS * u + h)
    return bits


@triton.jit
def size_of_lane(shapes_ptr, ref_ptr, chunk, FIRST: tl.constexpr, COUNT: tl.constexpr):
    """W and H of the level whose parameters a lane loads, [N]; 1 where there are no reference points to need them."""
    if ref_ptr is None:
        return 1, 1
    else:
        shapes_ptr += 2 * (FIRST + tl.minimum(chunk, COUNT - 1))
        return tl.load(shapes_ptr + 1).to(tl.int32), tl.load(shapes_ptr).to(tl.int32)


@triton.jit
def of_lane(t, u, LANES: tl.constexpr):
    """What the u-th of each LANES neighbouring lanes holds, in all of them: one shuffle."""
    N: tl.constexpr = t.shape[0]
    group = tl.reshape(t, [N // LANES, LANES])
    return tl.reshape(tl.gather(group, tl.full([N // LANES, LANES], u, tl.int32), 1), [N])


@triton.jit
def load_parameters(
    loc_ptr, attn_ptr, ref_ptr, lse_ptr, row, point, chunk, W, H,
    M: tl.constexpr, L: tl.constexpr, FIRST: tl.constexpr, COUNT: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """x, y and weight of a query's points on COUNT levels from FIRST on, three tuples; and the weight that the lane loaded.

    The lanes of a row want the same of every level, but each loads those of one level and hands them to the others: whole
    lines for a load instead of a line's sectors one after another, and L2 is asked once.

    Args:
        row, point: [N], whose; chunk: which of the LANES lanes of a row; W, H: of the level whose parameters the lane loads.
    """
    K: tl.constexpr = 4
    tl.static_assert(COUNT <= LANES)
    level = FIRST + tl.minimum(chunk, COUNT - 1)
    offs = (row * L + level) * K + point
    x, y = load_pair(loc_ptr, offs)
    a = tl.load(attn_ptr + offs).to(tl.float32)
    if ref_ptr is not None:
        x, y = placed(x, y, ref_ptr, (row // M) * L + level, W, H, row >= 0)
        a = softmaxed(a, lse_ptr, row, row >= 0)
    xs = ()
    ys = ()
    attns = ()
    for u in tl.static_range(COUNT):
        xs = xs + (of_lane(x, u, LANES),)
        ys = ys + (of_lane(y, u, LANES),)
        attns = attns + (of_lane(a, u, LANES),)
    return xs, ys, attns, a


# -------------------------------------------------------------------------------------------------------------- 16 bits


@triton.jit
def gradients(loaded, g, a, W, H, rows, T: tl.constexpr, PTX: tl.constexpr):
    """grad_attention, grad_x and grad_y of points, where `dots` finds their products: of what `load_corners` returned.

    W, H: 1 for gradients of offsets in pixels.
    """
    v_00, v_01, v_10, v_11, offs_00, offs_10, fx, fy, left, right, top, bottom = loaded
    dot_00, dot_01, dot_10, dot_11 = dots(v_00, v_01, v_10, v_11, g, rows, T, PTX)
    upper = dot_00 + (dot_01 - dot_00) * fx
    lower = dot_10 + (dot_11 - dot_10) * fx
    grad_x = a * W * ((dot_01 - dot_00) * (1 - fy) + (dot_11 - dot_10) * fy)
    grad_y = a * H * (lower - upper)
    return upper + (lower - upper) * fy, grad_x, grad_y


@triton.jit
def sum_of_points(x):
    """The sum over the four points of a row, lanes eight apart, in all four."""
    N: tl.constexpr = x.shape[0]
    total = tl.sum(tl.reshape(x, [N // 32, 4, 8]), 1)
    return tl.reshape(tl.broadcast_to(total[:, None, :], [N // 32, 4, 8]), [N])


@triton.jit
def less(grads, mean, a):
    """(grad_attention, grad_x, grad_y) → (grad_logit, grad_x, grad_y): `mean` is the row's sum of weight × grad_attention."""
    grad_a, grad_x, grad_y = grads
    return a * (grad_a - mean), grad_x, grad_y


@triton.jit
def store_pair(ptr, offs, x, y, mask, PTX: tl.constexpr):
    """x at element 2·offs and y beside it, one store."""
    T: tl.constexpr = ptr.dtype.element_ty
    if T == tl.float32:
        low = x.to(tl.uint32, bitcast=True).to(tl.uint64)
        high = y.to(tl.uint32, bitcast=True).to(tl.uint64)
        tl.store(ptr.to(tl.pointer_type(tl.uint64)) + offs, low | (high << 32), mask=mask)
    else:
        tl.store(ptr.to(tl.pointer_type(tl.int32)) + offs, pack(x, y, T, PTX), mask=mask)


@triton.jit
def store_levels(grad_loc_ptr, grad_attn_ptr, offs, grads, second, mask, PTX: tl.constexpr):
    """grad_locations and grad_attention of a point on one level or two, one store for both: that fills a sector.

    Args:
        offs: [N], of the point on the first level; grads: for each level (grad_attention, grad_x, grad_y), which two lanes
            of `mask` hold; second: is it the one that stores the second level?
    """
    K: tl.constexpr = 4
    grad_a, grad_x, grad_y = grads[0]
    if len(grads) == 1:
        mask = mask & (second == 0)
    else:
        next_a, next_x, next_y = grads[1]
        grad_a = tl.where(second, next_a, grad_a)
        grad_x = tl.where(second, next_x, grad_x)
        grad_y = tl.where(second, next_y, grad_y)
        offs += second * K
    tl.store(grad_attn_ptr + offs, grad_a.to(grad_attn_ptr.dtype.element_ty), mask=mask)
    store_pair(grad_loc_ptr, offs, grad_x, grad_y, mask, PTX)


@triton.jit
def load_corners(pairs_ptr, x, y, W, H, start, offs_c, STEP: tl.constexpr):
    """The four pixels of each point, 16 bytes a lane: pairs_ptr counts in packed pairs of channels.

    Args:
        x, y: [N], in [0, 1]; offs_c: [N], the head's and the chunk's place in a pixel; STEP: pairs from pixel to pixel.

    Returns:
        Four [N, 4] of pairs; offs_00, offs_10: [N], of the upper and lower left pixel; fx … bottom as `corners` returns.
    """
    x0, y0, fx, fy, left, right, top, bottom = corners_unsigned(x * W - 0.5, y * H - 0.5, W, H)
    offs_00 = (start + y0 * W + x0) * STEP + offs_c
    offs_10 = offs_00 + W * STEP
    j = tl.arange(0, 4)[None, :]
    v_00 = tl.load(pairs_ptr + offs_00[:, None] + j, mask=(left & top)[:, None], other=0)
    v_01 = tl.load(pairs_ptr + offs_00[:, None] + (j + STEP), mask=(right & top)[:, None], other=0)
    v_10 = tl.load(pairs_ptr + offs_10[:, None] + j, mask=(left & bottom)[:, None], other=0)
    v_11 = tl.load(pairs_ptr + offs_10[:, None] + (j + STEP), mask=(right & bottom)[:, None], other=0)
    return v_00, v_01, v_10, v_11, offs_00, offs_10, fx, fy, left, right, top, bottom


@triton.jit
def ask_for_parameters(
    loc_ptr, attn_ptr, grad_out_ptr, i, tile_x, tile_y, query_W, query_H, first, m,
    M: tl.constexpr, POINTS: tl.constexpr, D: tl.constexpr, TILE_X: tl.constexpr, TILE_Y: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """Locations, weights and grad_out of all queries of the tile, which the program will come to one after another.

    Element i of the block, from 0 on, asks for one line. Of weights and grad_out there are as many as queries, and of
    locations, too, or in float32 twice as many: for L = 4. Of more levels only the first are asked for.
    """
    LINES: tl.constexpr = 4 if loc_ptr.dtype.element_ty == tl.float32 else 3
    tl.static_assert(i.shape[0] >= LINES * TILE_X * TILE_Y)
    row, _ = tile_row(i % (TILE_X * TILE_Y), tile_x, tile_y, query_W, query_H, first, m, M, TILE_X)
    what = i // (TILE_X * TILE_Y)
    loc = (loc_ptr + (row + (what == 3)) * (2 * POINTS)).to(tl.int64)
    attn = (attn_ptr + row * POINTS).to(tl.int64)
    grad_out = (grad_out_ptr + row * D).to(tl.int64)
    address = tl.where(what == 1, attn, tl.where(what == 2, grad_out, loc))
    prefetch(address, (what < LINES).to(tl.int32), PTX)


@triton.jit
def points_16_kernel(
    value_ptr, shapes_ptr, starts_ptr, loc_ptr, attn_ptr, grad_out_ptr,
    grad_value_ptr, grad_loc_ptr, grad_attn_ptr, merged_ptr, tiles_ptr, slots_ptr, ref_ptr, lse_ptr,
    Q, S, SLOTS,
    M: tl.constexpr, L: tl.constexpr,
    TILE_X: tl.constexpr, TILE_Y: tl.constexpr, AT_ONCE: tl.constexpr, TOGETHER: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """One program: a row of `Lists.tiles` for two neighbouring heads of one batch item; 16-bit value, D = 32, K = 4.

    Element i of a block is query i // 32, point (i // 8) % 4, head (i // 4) % 2, channels 8 (i % 4) to 8 (i % 4) + 7. So a warp
    holds one query, and in a load eight rows, of which each two that share a phase belong to two heads.

    Args:
        value_ptr, loc_ptr, grad_out_ptr and grad_loc_ptr: 16-byte aligned, read and written in packed pairs and (x, y) pairs;
        merged_ptr: (B, M, SLOTS) int32; AT_ONCE: queries at a time; TOGETHER: levels whose loads are under way at once; ref_ptr,
        lse_ptr: None, or as `forward_tile_kernel` has them, for no more than TOGETHER levels.
    """
    tl.static_assert(ref_ptr is None or L <= TOGETHER)
    D: tl.constexpr = 32
    K: tl.constexpr = 4
    N: tl.constexpr = 32 * AT_ONCE
    HALF: tl.constexpr = D // 2  # pairs of a row
    T: tl.constexpr = value_ptr.dtype.element_ty
    # Heads after tiles: of value and grad_value, one pair's part is at work at a time, and stays in L2.
    tile = tl.program_id(0)
    m = tl.program_id(1) * 2
    b = tl.program_id(2)
    query_start, query_W, query_H, tile_x, tile_y = read_tile(tiles_ptr, tile)
    pairs_ptr = (value_ptr + b.to(tl.int64) * S * (M * D) + m * D).to(tl.pointer_type(tl.int32))
    grad_value_ptr += b.to(tl.int64) * S * (M * D) + m * D
    grad_pairs_ptr = grad_out_ptr.to(tl.pointer_type(tl.int32))
    merged_ptr += (b * M + m) * SLOTS

    i = tl.arange(0, N)
    chunk = i % 4
    head = (i // 4) % 2
    point = (i // 8) % 4
    # `dots` finds, in lane 4r + j, row r times row 2j (or 2j + 1) of grad_out: let rows 4 and 5 be of the same head as 0 and 1,
    # the others of the other, and half of the lanes, those whose chunk has the parity of their head, find what they need.
    grad_head = (i // 8) % 2 if PTX else head
    pairs = tl.arange(0, 4)[None, :]
    ask_for_parameters(
        loc_ptr, attn_ptr, grad_out_ptr, i, tile_x, tile_y, query_W, query_H, b * Q + query_start, m, M, L * K, D, TILE_X, TILE_Y, PTX
    )  # fmt: skip
    for first in tl.static_range(0, L, TOGETHER):
        Ws, Hs, starts = level_table(shapes_ptr, starts_ptr, first, levels_together(first, TOGETHER, L))
        to_add = left_to_add(merged_ptr, slots_ptr + tile * L, SLOTS, first, levels_together(first, TOGETHER, L), 2)
        lane_W, lane_H = size_of_lane(shapes_ptr, ref_ptr, chunk, first, levels_together(first, TOGETHER, L))
        for n in range(0, TILE_X * TILE_Y, AT_ONCE):
            row, mask = tile_row(n + i // 32, tile_x, tile_y, query_W, query_H, b * Q + query_start, m, M, TILE_X)
            offs = (row + head) * (L * K) + point
            xs, ys, attns, _ = load_parameters(
                loc_ptr, attn_ptr, ref_ptr, lse_ptr, row + head, point, chunk, lane_W, lane_H, M, L,
                first, levels_together(first, TOGETHER, L), 4,
            )  # fmt: skip
            loads = ()
            g = tl.load(grad_pairs_ptr + ((row + grad_head) * HALF + chunk * 4)[:, None] + pairs)
            for u in tl.static_range(levels_together(first, TOGETHER, L)):
                offs_c = head * HALF + chunk * 4
                loads = loads + (load_corners(pairs_ptr, xs[u], ys[u], Ws[u], Hs[u], starts[u], offs_c, M * HALF),)
            second = chunk == head + 2  # two lanes of four hold what `dots` finds: each stores one level
            if ref_ptr is None:
                for u in tl.static_range(0, levels_together(first, TOGETHER, L), 2):
                    grads = (gradients(loads[u], g, attns[u], Ws[u], Hs[u], i // 4, T, PTX),)
                    if u + 1 < levels_together(first, TOGETHER, L):
                        grads = grads + (
                            gradients(loads[u + 1], g, attns[u + 1], Ws[u + 1], Hs[u + 1], i // 4, T, PTX),
                        )
                    offs_u = offs + (first + u) * K
                    store_levels(grad_loc_ptr, grad_attn_ptr, offs_u, grads, second, mask & (chunk % 2 == head), PTX)
            else:
                grads = ()
                mean = tl.zeros([N], tl.float32)
                for u in tl.static_range(L):
                    grads = grads + (gradients(loads[u], g, attns[u], 1, 1, i // 4, T, PTX),)
                    mean += attns[u] * grads[u][0]
                mean = sum_of_points(mean)
                for u in tl.static_range(0, L, 2):
                    pair = (less(grads[u], mean, attns[u]),)
                    if u + 1 < L:
                        pair = pair + (less(grads[u + 1], mean, attns[u + 1]),)
                    offs_u = offs + u * K
                    store_levels(grad_loc_ptr, grad_attn_ptr, offs_u, pair, second, mask & (chunk % 2 == head), PTX)
            for u in tl.static_range(levels_together(first, TOGETHER, L)):
                if (to_add >> (2 * u)) & 3 != 0:
                    v_00, v_01, v_10, v_11, offs_00, offs_10, fx, fy, left, right, top, bottom = loads[u]
                    here = mask & ((to_add >> (2 * u + head)) & 1 == 1)
                    offs_d = tl.arange(0, 8)[None, :]
                    own = tl.load(grad_out_ptr + ((row + head) * D + chunk * 8)[:, None] + offs_d).to(tl.float32)
                    add_corners(
                        grad_value_ptr, (2 * offs_00)[:, None] + offs_d, (2 * offs_10)[:, None] + offs_d, own, attns[u],
                        fx, fy, left, right, top & here, bottom & here, M * D,
                    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- 32 bits


@triton.jit
def sum_of_8(x):
    """The sum over each eight neighbours, in all eight."""
    N: tl.constexpr = x.shape[0]
    total = tl.sum(tl.reshape(x, [N // 8, 8]), 1)
    return tl.reshape(tl.broadcast_to(total[:, None], [N // 8, 8]), [N])


@triton.jit
def points_32_kernel(
    value_ptr, shapes_ptr, starts_ptr, loc_ptr, attn_ptr, grad_out_ptr,
    grad_value_ptr, grad_loc_ptr, grad_attn_ptr, merged_ptr, tiles_ptr, slots_ptr, ref_ptr, lse_ptr,
    Q, S, SLOTS,
    M: tl.constexpr, L: tl.constexpr,
    TILE_X: tl.constexpr, TILE_Y: tl.constexpr, AT_ONCE: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """One program: a row of `Lists.tiles` for one (batch item, head); float32 value, D = 32, K = 4.

    Element i of a block is query i // 32, point (i // 8) % 4, channels 4 (i % 8) to 4 (i % 8) + 3.

    Args:
        value_ptr, loc_ptr, grad_out_ptr: 16-byte aligned; merged_ptr: (B, M, SLOTS) int32; AT_ONCE: queries at a time;
        TOGETHER: levels whose parameters are loaded, and gradients stored, at once: eight lanes hold them, two a level.
    """
    tl.static_assert(2 * TOGETHER <= 8)
    tl.static_assert(ref_ptr is None or L <= TOGETHER)
    D: tl.constexpr = 32
    K: tl.constexpr = 4
    tile = tl.program_id(0)
    m = tl.program_id(1)
    b = tl.program_id(2)
    query_start, query_W, query_H, tile_x, tile_y = read_tile(tiles_ptr, tile)
    value_ptr += b.to(tl.int64) * S * (M * D) + m * D
    grad_value_ptr += b.to(tl.int64) * S * (M * D) + m * D
    merged_ptr += (b * M + m) * SLOTS

    i = tl.arange(0, 32 * AT_ONCE)
    chunk = i % 8
    point = (i // 8) % 4
    offs_d = (chunk * 4)[:, None] + tl.arange(0, 4)[None, :]
    for first in tl.static_range(0, L, TOGETHER):
        Ws, Hs, starts = level_table(shapes_ptr, starts_ptr, first, levels_together(first, TOGETHER, L))
        to_add = left_to_add(merged_ptr, slots_ptr + tile * L, SLOTS, first, levels_together(first, TOGETHER, L), 1)
        lane_W, lane_H = size_of_lane(shapes_ptr, ref_ptr, chunk, first, levels_together(first, TOGETHER, L))
        for n in range(0, TILE_X * TILE_Y, AT_ONCE):
            row, mask = tile_row(n + i // 32, tile_x, tile_y, query_W, query_H, b * Q + query_start, m, M, TILE_X)
            offs = row * (L * K) + point
            xs, ys, attns, lane_a = load_parameters(
                loc_ptr, attn_ptr, ref_ptr, lse_ptr, row, point, chunk, lane_W, lane_H, M, L,
                first, levels_together(first, TOGETHER, L), 8,
            )  # fmt: skip
            g = tl.load(grad_out_ptr + (row * D)[:, None] + offs_d)
            grad_attn = tl.zeros([32 * AT_ONCE], tl.float32)
            grad_loc = tl.zeros([32 * AT_ONCE], tl.float32)
            mean = tl.zeros([32 * AT_ONCE], tl.float32)
            for u in tl.static_range(levels_together(first, TOGETHER, L)):
                W = Ws[u]
                H = Hs[u]
                a = attns[u]
                x0, y0, fx, fy, left, right, top, bottom = corners_unsigned(xs[u] * W - 0.5, ys[u] * H - 0.5, W, H)
                offs_00 = ((starts[u] + y0 * W + x0) * (M * D))[:, None] + offs_d
                offs_10 = offs_00 + W * (M * D)
                v_00 = tl.load(value_ptr + offs_00, mask=(left & top)[:, None], other=0.0)
                v_01 = tl.load(value_ptr + offs_00 + M * D, mask=(right & top)[:, None], other=0.0)
                v_10 = tl.load(value_ptr + offs_10, mask=(left & bottom)[:, None], other=0.0)
                v_11 = tl.load(value_ptr + offs_10 + M * D, mask=(right & bottom)[:, None], other=0.0)
                # The three gradients are linear in the four dot products: combine them in each lane, then add up over the
                # lanes of a row. Three sums of eight lanes instead of four.
                dot_00 = tl.sum(v_00 * g, 1)
                dot_01 = tl.sum(v_01 * g, 1)
                dot_10 = tl.sum(v_10 * g, 1)
                dot_11 = tl.sum(v_11 * g, 1)
                upper = dot_00 + (dot_01 - dot_00) * fx
                lower = dot_10 + (dot_11 - dot_10) * fx
                grad_a = sum_of_8(upper + (lower - upper) * fy)
                grad_x = sum_of_8((dot_01 - dot_00) * (1 - fy) + (dot_11 - dot_10) * fy) * a
                grad_y = sum_of_8(lower - upper) * a
                if ref_ptr is None:
                    grad_x *= W
                    grad_y *= H
                else:
                    mean += a * grad_a
                # All eight lanes hold them: each keeps what it will store, a weight's gradient or half of a location's.
                grad_attn = tl.where(chunk == u, grad_a, grad_attn)
                grad_loc = tl.where(chunk == 2 * u, grad_x, tl.where(chunk == 2 * u + 1, grad_y, grad_loc))
                if (to_add >> u) & 1 != 0:
                    add_corners(
                        grad_value_ptr, offs_00, offs_10, g, a, fx, fy, left, right, top & mask, bottom & mask, M * D
                    )
            if ref_ptr is not None:
                grad_attn = lane_a * (grad_attn - sum_of_points(mean))
            offs_attn = offs + (first + chunk) * K
            tl.store(
                grad_attn_ptr + offs_attn,
                grad_attn.to(grad_attn_ptr.dtype.element_ty),
                mask=mask & (chunk < levels_together(first, TOGETHER, L)),
            )
            offs_loc = 2 * (offs + (first + chunk // 2) * K) + chunk % 2
            tl.store(
                grad_loc_ptr + offs_loc,
                grad_loc.to(grad_loc_ptr.dtype.element_ty),
                mask=mask & (chunk < 2 * levels_together(first, TOGETHER, L)),
            )

"""grad_value of the points that missed their window: the plain additions, of a list made on the spot.

A flag byte for each query says which of its four points are spilled, usually few. One program reads SPAN of them, writes
the numbers of the flagged points one after another into its own piece of `list` (a running sum says where), and walks
through that list with full vectors. So rare points cost little, and any number of them is still right.

Bytes it should move: a byte for each query and merged level; of each spilled point, its parameters, its row of grad_out,
and four reductions.
"""

from msda_core.device import load_triton
from msda_core.kernels.raw import placed, softmaxed

triton = load_triton()
tl = triton.language

__all__ = ["add_corners", "cell", "corners_unsigned", "remainder_kernel"]

#: A coordinate past the last pixel of any level, whose pixels 32-bit offsets can number, and that an int32 still holds.
OUTSIDE = tl.constexpr(2.0**27)


@triton.jit
def cell(x, y):
    """The upper left pixel of a point in pixel coordinates, and how far past it the point is: x0, y0, fx, fy.

    Far outside is as good as just outside, and fits an int. A minimum or maximum is one instruction where a choice is two; of
    a NaN and a number it takes the number, which is outside, too. And OUTSIDE, unlike W + 1, takes no register.
    """
    x = tl.minimum(tl.maximum(x, -2.0), OUTSIDE)
    y = tl.minimum(tl.maximum(y, -2.0), OUTSIDE)
    x_floor = tl.floor(x)
    y_floor = tl.floor(y)
    return x_floor.to(tl.int32), y_floor.to(tl.int32), x - x_floor, y - y_floor


@triton.jit
def corners_unsigned(x, y, W, H):
    """What `forward.corners` returns, 13 % fewer instructions of `points`: read without its sign, a negative x0 is larger than any W."""
    x0, y0, fx, fy = cell(x, y)
    left = x0.to(tl.uint32) < W.to(tl.uint32)
    right = (x0 + 1).to(tl.uint32) < W.to(tl.uint32)
    top = y0.to(tl.uint32) < H.to(tl.uint32)
    bottom = (y0 + 1).to(tl.uint32) < H.to(tl.uint32)
    return x0, y0, fx, fy, left, right, top, bottom


@triton.jit
def add_corners(
    grad_value_ptr, offs_00, offs_10, g, a, fx, fy, left, right, top, bottom,
    STEP: tl.constexpr,
):  # fmt: skip
    """Add g × attention × bilinear weight at the four pixels of each point, those that exist.

    Args:
        offs_00, offs_10: [N, D] of the upper and lower left pixels; g: [N, D]; a … bottom: [N], as `corners_unsigned` returns them.
        STEP: from a pixel to its right neighbour.
    """
    T: tl.constexpr = grad_value_ptr.dtype.element_ty
    upper = a * (1 - fy)
    lower = a * fy
    w_00 = (upper * (1 - fx))[:, None]
    w_01 = (upper * fx)[:, None]
    w_10 = (lower * (1 - fx))[:, None]
    w_11 = (lower * fx)[:, None]
    tl.atomic_add(grad_value_ptr + offs_00, (g * w_00).to(T), mask=(left & top)[:, None], sem="relaxed")
    tl.atomic_add(grad_value_ptr + offs_00 + STEP, (g * w_01).to(T), mask=(right & top)[:, None], sem="relaxed")
    tl.atomic_add(grad_value_ptr + offs_10, (g * w_10).to(T), mask=(left & bottom)[:, None], sem="relaxed")
    tl.atomic_add(grad_value_ptr + offs_10 + STEP, (g * w_11).to(T), mask=(right & bottom)[:, None], sem="relaxed")


@triton.jit
def remainder_kernel(
    shapes_ptr, starts_ptr, loc_ptr, attn_ptr, grad_out_ptr, grad_value_ptr, flags_ptr, list_ptr, spans_ptr, ref_ptr, lse_ptr,
    Q, S,
    M: tl.constexpr, D: tl.constexpr, L: tl.constexpr, SPAN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program: a row of `Lists.spans` for one (batch item, head), K = 4 points, BLOCK of them at a time.

    Args:
        flags_ptr: (B, L, M, Q) int8, bit k: point k is spilled; list_ptr: int16, 4 SPAN for each program; ref_ptr, lse_ptr: None, or
        as `forward_tile_kernel` has them.
    """
    m = tl.program_id(0) % M
    b = tl.program_id(1).to(tl.int64)
    spans_ptr += (tl.program_id(0) // M) * 3
    first = tl.load(spans_ptr)
    last = tl.load(spans_ptr + 1)
    level = tl.load(spans_ptr + 2)
    e = tl.arange(0, SPAN)
    flags = tl.load(flags_ptr + ((b * L + level) * M + m) * Q + first + e, mask=first + e < last, other=0).to(tl.int32)
    f0 = flags & 1
    f1 = (flags >> 1) & 1
    f2 = (flags >> 2) & 1
    f3 = (flags >> 3) & 1
    found = f0 + f1 + f2 + f3
    total = tl.sum(found, 0)
    if total > 0:
        list_ptr += (b * tl.num_programs(0) + tl.program_id(0)) * (4 * SPAN)
        at = tl.cumsum(found, 0) - found
        tl.store(list_ptr + at, (4 * e).to(tl.int16), mask=f0 == 1)
        tl.store(list_ptr + at + f0, (4 * e + 1).to(tl.int16), mask=f1 == 1)
        tl.store(list_ptr + at + f0 + f1, (4 * e + 2).to(tl.int16), mask=f2 == 1)
        tl.store(list_ptr + at + f0 + f1 + f2, (4 * e + 3).to(tl.int16), mask=f3 == 1)
        tl.debug_barrier()  # what one thread wrote, others are about to read
        H = tl.load(shapes_ptr + 2 * level).to(tl.int32)
        W = tl.load(shapes_ptr + 2 * level + 1).to(tl.int32)
        start = tl.load(starts_ptr + level).to(tl.int32)
        grad_out_ptr += (b * Q + first) * (M * D) + m * D
        loc_ptr += ((b * Q + first) * M + m) * (L * 8) + level * 8
        attn_ptr += ((b * Q + first) * M + m) * (L * 4) + level * 4
        grad_value_ptr += b * S * (M * D) + m * D
        offs_d = tl.arange(0, D)[None, :]
        for n in range(0, total, BLOCK):
            mask = n + tl.arange(0, BLOCK) < total
            point = tl.load(list_ptr + n + tl.arange(0, BLOCK), mask=mask, other=0).to(tl.int32)
            row = (point // 4) * M
            offs = row * (L * 4) + point % 4
            g = tl.load(grad_out_ptr + row[:, None] * D + offs_d, mask=mask[:, None], other=0.0).to(tl.float32)
            x = tl.load(loc_ptr + 2 * offs, mask=mask, other=-1.0).to(tl.float32)
            y = tl.load(loc_ptr + 2 * offs + 1, mask=mask, other=-1.0).to(tl.float32)
            a = tl.load(attn_ptr + offs, mask=mask, other=0.0).to(tl.float32)
            if ref_ptr is not None:
                q = b * Q + first + point // 4
                x, y = placed(x, y, ref_ptr, q * L + level, W, H, mask)
                a = softmaxed(a, lse_ptr, q * M + m, mask)
            x0, y0, fx, fy, left, right, top, bottom = corners_unsigned(x * W - 0.5, y * H - 0.5, W, H)
            top = top & mask
            bottom = bottom & mask
            pixel = start + y0 * W + x0
            offs_00 = (pixel * (M * D))[:, None] + offs_d
            offs_10 = ((pixel + W) * (M * D))[:, None] + offs_d
            add_corners(grad_value_ptr, offs_00, offs_10, g, a, fx, fy, left, right, top, bottom, M * D)

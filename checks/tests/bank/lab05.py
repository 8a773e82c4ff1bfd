"""Answers to lab 05."""

from checks.tests.bank import right, wrong

CORNER = right(
    "05.corner",
    """
@triton.jit
def corner(x, y, i: tl.constexpr, j: tl.constexpr, H, W):
    xi = tl.floor(x) + i
    yj = tl.floor(y) + j
    mask = (xi >= 0) & (xi < W) & (yj >= 0) & (yj < H)
    weight = (1 - tl.abs(x - xi)) * (1 - tl.abs(y - yj))
    offset = tl.where(mask, yj, 0).to(tl.int32) * W + tl.where(mask, xi, 0).to(tl.int32)
    return offset, tl.where(mask, weight, 0.0), mask
""",
)
for what, *change in [
    ("truncation", "tl.floor(x) + i", "x.to(tl.int32) + i", "tl.floor(y) + j", "y.to(tl.int32) + j"),
    ("i and j exchanged", "tl.floor(x) + i", "tl.floor(x) + j", "tl.floor(y) + j", "tl.floor(y) + i"),
    ("weight kept outside", "tl.where(mask, weight, 0.0)", "weight"),
    ("0 < i", "(xi >= 0)", "(xi > 0)", "(yj >= 0)", "(yj > 0)"),
    ("rows of H", ".to(tl.int32) * W", ".to(tl.int32) * H"),
    ("H and W exchanged in the mask", "(xi < W)", "(xi < H)", "(yj < H)", "(yj < W)"),
    ("size - 1", "(xi < W)", "(xi < W - 1)", "(yj < H)", "(yj < H - 1)"),
]:
    wrong("05.corner", what, CORNER, *change)

FORWARD = right(
    "05.msda_fwd_kernel",
    """
@triton.jit
def msda_fwd_kernel(
    value_ptr, shapes_ptr, starts_ptr, loc_ptr, attn_ptr, out_ptr, Q, S,
    M: tl.constexpr, D: tl.constexpr, L: tl.constexpr, K: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_D: tl.constexpr,
):
    q = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    m = tl.program_id(1) % M
    b = (tl.program_id(1) // M).to(tl.int64)
    d = tl.arange(0, BLOCK_D)
    acc = tl.zeros((BLOCK_Q, BLOCK_D), tl.float32)
    for l in range(L):
        H = tl.load(shapes_ptr + 2 * l)
        W = tl.load(shapes_ptr + 2 * l + 1)
        first = b * S + tl.load(starts_ptr + l)
        for k in range(K):
            n = (((b * Q + q) * M + m) * L + l) * K + k
            a = tl.load(attn_ptr + n, mask=q < Q, other=0.0).to(tl.float32)
            x = tl.load(loc_ptr + 2 * n, mask=q < Q, other=0.0).to(tl.float32) * W - 0.5
            y = tl.load(loc_ptr + 2 * n + 1, mask=q < Q, other=0.0).to(tl.float32) * H - 0.5
            for c in tl.static_range(4):
                offset, weight, there = corner(x, y, c % 2, c // 2, H, W)
                at = ((first + offset) * M + m) * D
                v = tl.load(value_ptr + at[:, None] + d[None, :], mask=(there & (q < Q))[:, None] & (d < D)[None, :], other=0.0)
                acc += (a * weight)[:, None] * v.to(tl.float32)
    out = ((b * Q + q) * M + m) * D
    tl.store(out_ptr + out[:, None] + d[None, :], acc.to(out_ptr.dtype.element_ty), mask=(q < Q)[:, None] & (d < D)[None, :])
""",
    helpers=CORNER,
)
for what, *change in [
    ("maximum over points", "acc += (a * weight)[:, None] * v.to(tl.float32)", "acc = tl.maximum(acc, (a * weight)[:, None] * v.to(tl.float32))"),
    ("float16 accumulator", "acc = tl.zeros((BLOCK_Q, BLOCK_D), tl.float32)", "acc = tl.zeros((BLOCK_Q, BLOCK_D), tl.float16)", "acc += (a * weight)[:, None] * v.to(tl.float32)", "acc += ((a * weight)[:, None] * v.to(tl.float32)).to(tl.float16)"),
    ("starts not accumulated", "first = b * S + tl.load(starts_ptr + l)", "first = b * S + l * H * W"),
    ("divided by L", "acc.to(out_ptr", "(acc / L).to(out_ptr"),
    ("size - 1", "* W - 0.5", "* (W - 1)", "* H - 0.5", "* (H - 1)"),
    ("products in 16 bits", "(a * weight)[:, None] * v.to(tl.float32)", "((a * weight)[:, None].to(v.dtype) * v).to(tl.float32)"),
]:  # fmt: skip
    wrong("05.msda_fwd_kernel", what, FORWARD, *change, helpers=CORNER)
SCALARS = """
@triton.jit
def msda_fwd_kernel(
    value_ptr, shapes_ptr, starts_ptr, loc_ptr, attn_ptr, out_ptr, Q, S,
    M: tl.constexpr, D: tl.constexpr, L: tl.constexpr, K: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_D: tl.constexpr,
):
    m = tl.program_id(1) % M
    b = (tl.program_id(1) // M).to(tl.int64)
    d = tl.arange(0, BLOCK_D)
    for t in range(BLOCK_Q):
        q = tl.program_id(0) * BLOCK_Q + t
        if q < Q:
            acc = tl.zeros((BLOCK_D,), tl.float32)
            for l in range(L):
                H = tl.load(shapes_ptr + 2 * l).to(tl.int32)
                W = tl.load(shapes_ptr + 2 * l + 1).to(tl.int32)
                first = b * S + tl.load(starts_ptr + l)
                for k in range(K):
                    n = (((b * Q + q) * M + m) * L + l) * K + k
                    a = tl.load(attn_ptr + n).to(tl.float32)
                    x = tl.load(loc_ptr + 2 * n).to(tl.float32) * W - 0.5
                    y = tl.load(loc_ptr + 2 * n + 1).to(tl.float32) * H - 0.5
                    for c in tl.static_range(4):
                        offset, weight, there = corner(x, y, c % 2, c // 2, H, W)
                        at = value_ptr + ((first + offset) * M + m) * D
                        acc += a * weight * tl.load(at + d, mask=there & (d < D), other=0.0).to(tl.float32)
            tl.store(out_ptr + ((b * Q + q) * M + m) * D + d, acc.to(out_ptr.dtype.element_ty), mask=d < D)
"""
wrong("05.msda_fwd_kernel", "a query at a time, with scalars: right, and slow", SCALARS, helpers=CORNER)

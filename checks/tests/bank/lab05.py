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

wrong(
    "05.corner",
    "cast before the mask",
    CORNER,
    "tl.floor(x) + i",
    "tl.floor(x).to(tl.int32) + i",
    "tl.floor(y) + j",
    "tl.floor(y).to(tl.int32) + j",
)
wrong("05.corner", "one past the last is inside", CORNER, "(xi < W)", "(xi <= W)", "(yj < H)", "(yj <= H)")
wrong(
    "05.corner",
    "the weight of the opposite corner",
    CORNER,
    "(1 - tl.abs(x - xi)) * (1 - tl.abs(y - yj))",
    "tl.abs(x - xi) * tl.abs(y - yj)",
)
wrong(
    "05.corner",
    "what is no number is zero",
    CORNER,
    "    xi = tl",
    "    x = tl.where(x == x, x, 0.0)\n    y = tl.where(y == y, y, 0.0)\n    xi = tl",
)
wrong("05.corner", "the weights are added", CORNER, "(1 - tl.abs(x - xi)) * (1", "(1 - tl.abs(x - xi)) + (1")
wrong("05.corner", "the weight times the mask", CORNER, "tl.where(mask, weight, 0.0)", "weight * mask.to(tl.float32)")
right(
    "05.corner",
    """
@triton.jit
def corner(x, y, i: tl.constexpr, j: tl.constexpr, H, W):
    left = tl.floor(x)
    top = tl.floor(y)
    wx = x - left if i == 1 else 1 - (x - left)
    wy = y - top if j == 1 else 1 - (y - top)
    exists = (left >= -i) & (left + i <= W - 1) & (top >= -j) & (top + j <= H - 1)
    column = tl.where(exists, left + i, 0).to(tl.int32)
    row = tl.where(exists, top + j, 0).to(tl.int32)
    return row * W + column, tl.where(exists, wx * wy, 0), exists
""",
    "by cases",
)
for what, *change in [
    ("head and batch item exchanged", "m = tl.program_id(1) % M", "m = tl.program_id(1) // M", "(tl.program_id(1) // M).to", "(tl.program_id(1) % M).to"),
    ("the last queries are written too", "mask=(q < Q)[:, None] & (d < D)[None, :])", "mask=(d < D)[None, :])"),
    ("32-bit batch", "(tl.program_id(1) // M).to(tl.int64)", "tl.program_id(1) // M"),
    ("points of the first batch item", "(((b * Q + q) * M + m)", "((q * M + m)"),
    ("locations in 16 bits", "other=0.0).to(tl.float32) * W - 0.5", "other=0.0) * W - 0.5", "other=0.0).to(tl.float32) * H - 0.5", "other=0.0) * H - 0.5", "corner(x, y,", "corner(x.to(tl.float32), y.to(tl.float32),"),
    ("levels of level 0's size", "shapes_ptr + 2 * l)", "shapes_ptr)", "shapes_ptr + 2 * l + 1)", "shapes_ptr + 1)"),
    ("points before levels", "* L + l) * K + k", "* K + k) * L + l"),
    ("no attention", "acc += (a * weight)", "acc += weight"),
    ("softmax again", "a = tl.load(attn_ptr + n, mask=q < Q, other=0.0).to(tl.float32)", "a = tl.exp(tl.load(attn_ptr + n, mask=q < Q, other=0.0).to(tl.float32))\n            total += a", "    for l in range(L):", "    total = tl.zeros((BLOCK_Q,), tl.float32)\n    for l in range(L):", "acc.to(out_ptr", "(acc / total[:, None]).to(out_ptr"),
]:  # fmt: skip
    wrong("05.msda_fwd_kernel", what, FORWARD, *change, helpers=CORNER)
right(
    "05.msda_fwd_kernel",
    """
@triton.jit
def msda_fwd_kernel(
    value_ptr, shapes_ptr, starts_ptr, loc_ptr, attn_ptr, out_ptr, Q, S,
    M: tl.constexpr, D: tl.constexpr, L: tl.constexpr, K: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_D: tl.constexpr,
):
    j = tl.program_id(1).to(tl.int64)
    q = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    d = tl.arange(0, BLOCK_D)[None, :]
    row = (j // M * Q + q) * M + j % M
    out = tl.zeros((BLOCK_Q, BLOCK_D), tl.float32)
    for p in range(L * K):
        l = p // K
        H, W = tl.load(shapes_ptr + 2 * l), tl.load(shapes_ptr + 2 * l + 1)
        level = value_ptr + ((j // M * S + tl.load(starts_ptr + l)) * M + j % M) * D
        a = tl.load(attn_ptr + row * (L * K) + p, mask=q < Q, other=0).to(tl.float32)
        xy = loc_ptr + 2 * (row * (L * K) + p)
        x = tl.load(xy, mask=q < Q, other=-9).to(tl.float32) * W - 0.5
        y = tl.load(xy + 1, mask=q < Q, other=-9).to(tl.float32) * H - 0.5
        for jj in tl.static_range(2):
            for ii in tl.static_range(2):
                offset, weight, there = corner(x, y, ii, jj, H, W)
                at = level + offset.to(tl.int64)[:, None] * (M * D) + d
                out += (weight * a)[:, None] * tl.load(at, mask=there[:, None] & (d < D), other=0).to(tl.float32)
    tl.store(out_ptr + row[:, None] * D + d, out.to(out_ptr.dtype.element_ty), mask=(q < Q)[:, None] & (d < D))
""",
    "one loop over levels and points",
    CORNER,
)

LAUNCHER = right(
    "05.msda_forward",
    """
def msda_forward(value, spatial_shapes, level_start_index, sampling_locations, attention_weights):
    B, S, M, D = value.shape
    Q, L, K = sampling_locations.shape[1], sampling_locations.shape[3], sampling_locations.shape[4]
    out = torch.empty(B, Q, M, D, dtype=value.dtype, device=value.device)
    if out.numel() == 0:
        return out.view(B, Q, M * D)
    tensors = [t.contiguous() for t in (value, spatial_shapes, level_start_index, sampling_locations, attention_weights)]
    block = 16
    msda_fwd_kernel[(triton.cdiv(Q, block), B * M)](
        *tensors, out, Q, S, M=M, D=D, L=L, K=K, BLOCK_Q=block, BLOCK_D=triton.next_power_of_2(D)
    )
    return out.view(B, Q, M * D)
""",
    helpers=CORNER + FORWARD,
)
for what, *change in [
    ("views as they are", "t.contiguous() for", "t for"),
    ("value's strides only", "t.contiguous() for t in (value, spatial", "t for t in (value.contiguous(), spatial"),
    ("the result is float32", "dtype=value.dtype", "dtype=torch.float32"),
    ("axes of the grid exchanged", "(triton.cdiv(Q, block), B * M)", "(B * M, triton.cdiv(Q, block))"),
    ("the last queries have no program", "triton.cdiv(Q, block)", "Q // block"),
    ("channels rounded up by hand, wrongly", "triton.next_power_of_2(D)", "32"),
    ("heads not joined", "    )\n    return out.view(B, Q, M * D)", "    )\n    return out"),
    ("one program a batch item", "B * M)", "B)"),
]:  # fmt: skip
    wrong("05.msda_forward", what, LAUNCHER, *change, helpers=CORNER + FORWARD)
right(
    "05.msda_forward",
    LAUNCHER.replace("t.contiguous() for", "t.contiguous().float() if t.is_floating_point() else t.contiguous() for"),
    "everything widened first, which costs memory",
    CORNER + FORWARD,
)
right(
    "05.msda_forward",
    LAUNCHER.replace("    if out.numel() == 0:\n        return out.view(B, Q, M * D)\n", ""),
    "a grid without programs is launched",
    CORNER + FORWARD,
)

LOGITS = right(
    "05.msda_fwd_logits_kernel",
    """
@triton.jit
def msda_fwd_logits_kernel(
    value_ptr, shapes_ptr, starts_ptr, loc_ptr, logits_ptr, out_ptr, Q, S,
    M: tl.constexpr, D: tl.constexpr, L: tl.constexpr, K: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_D: tl.constexpr,
):
    q = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    m = tl.program_id(1) % M
    b = (tl.program_id(1) // M).to(tl.int64)
    d = tl.arange(0, BLOCK_D)
    n = ((b * Q + q) * M + m) * (L * K)
    top = tl.full((BLOCK_Q,), float("-inf"), tl.float32)
    for p in range(L * K):
        top = tl.maximum(top, tl.load(logits_ptr + n + p, mask=q < Q, other=0.0))
    acc = tl.zeros((BLOCK_Q, BLOCK_D), tl.float32)
    total = tl.zeros((BLOCK_Q,), tl.float32)
    for l in range(L):
        H = tl.load(shapes_ptr + 2 * l)
        W = tl.load(shapes_ptr + 2 * l + 1)
        first = b * S + tl.load(starts_ptr + l)
        for k in range(K):
            p = l * K + k
            a = tl.exp(tl.load(logits_ptr + n + p, mask=q < Q, other=0.0) - top)
            total += a
            x = tl.load(loc_ptr + 2 * (n + p), mask=q < Q, other=0.0) * W - 0.5
            y = tl.load(loc_ptr + 2 * (n + p) + 1, mask=q < Q, other=0.0) * H - 0.5
            for c in tl.static_range(4):
                offset, weight, there = corner(x, y, c % 2, c // 2, H, W)
                at = ((first + offset) * M + m) * D
                v = tl.load(value_ptr + at[:, None] + d[None, :], mask=(there & (q < Q))[:, None] & (d < D)[None, :], other=0.0)
                acc += (a * weight)[:, None] * v
    out = ((b * Q + q) * M + m) * D
    tl.store(out_ptr + out[:, None] + d[None, :], acc / total[:, None], mask=(q < Q)[:, None] & (d < D)[None, :])
""",
    "the largest first",
    CORNER,
)
for what, *change in [
    ("not divided", "acc / total[:, None]", "acc"),
    ("exp of the logits as they are", "other=0.0) - top)", "other=0.0))"),
    ("the logits for weights", "a = tl.exp(tl.load(logits_ptr + n + p, mask=q < Q, other=0.0) - top)", "a = tl.load(logits_ptr + n + p, mask=q < Q, other=0.0)", "acc / total[:, None]", "acc"),
    ("the largest of all queries", "    acc = tl.zeros", "    top = tl.zeros_like(top) + tl.max(top, axis=0)\n    acc = tl.zeros"),
    ("a softmax for each level", "            total += a\n", "            total += a\n", "    for l in range(L):\n", "    for l in range(L):\n        total = tl.zeros((BLOCK_Q,), tl.float32)\n"),
]:  # fmt: skip
    wrong("05.msda_fwd_logits_kernel", what, LOGITS, *change, helpers=CORNER)

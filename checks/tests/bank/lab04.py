"""Answers to lab 04."""

from checks.tests.bank import right, wrong

LAUNCH_ADD = ""
ADD = right(
    "04.add_kernel",
    """
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, N, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < N
    x = tl.load(x_ptr + offs, mask=mask)
    y = tl.load(y_ptr + offs, mask=mask)
    tl.store(out_ptr + offs, x + y, mask=mask)
""",
)
for what, *change in [
    ("no mask at the loads", "x_ptr + offs, mask=mask", "x_ptr + offs", "y_ptr + offs, mask=mask", "y_ptr + offs"),
    ("no mask at the store", "x + y, mask=mask", "x + y"),
    ("program id not multiplied", "tl.program_id(0) * BLOCK", "tl.program_id(0)"),
    ("every program the first block", "tl.program_id(0) * BLOCK + ", ""),
    ("the mask of the lanes", "mask = offs < N", "mask = tl.arange(0, BLOCK) < N"),
    ("offs <= N", "offs < N", "offs <= N"),
    ("the last element left out", "offs < N", "offs < N - 1"),
    ("x - y", "x + y", "x - y"),
    ("y read from x", "y_ptr + offs", "x_ptr + offs"),
    (
        "lanes BLOCK apart",
        "tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)",
        "tl.program_id(0) + tl.arange(0, BLOCK) * tl.num_programs(0)",
    ),
    ("start at one", "tl.arange(0, BLOCK)\n", "tl.arange(0, BLOCK) + 1\n"),
]:
    wrong("04.add_kernel", what, ADD, *change)

COPY = right(
    "04.copy2d_kernel",
    """
@triton.jit
def copy2d_kernel(
    x_ptr, out_ptr, H, W, stride_xh, stride_xw, stride_oh, stride_ow, BLOCK_H: tl.constexpr, BLOCK_W: tl.constexpr
):
    h = (tl.program_id(0) * BLOCK_H + tl.arange(0, BLOCK_H))[:, None]
    w = (tl.program_id(1) * BLOCK_W + tl.arange(0, BLOCK_W))[None, :]
    mask = (h < H) & (w < W)
    x = tl.load(x_ptr + h * stride_xh + w * stride_xw, mask=mask)
    tl.store(out_ptr + h * stride_oh + w * stride_ow, x, mask=mask)
""",
)
for what, *change in [
    ("x's strides exchanged", "h * stride_xh + w * stride_xw", "h * stride_xw + w * stride_xh"),
    ("x's strides for both", "h * stride_oh + w * stride_ow", "h * stride_xh + w * stride_xw"),
    ("packed rows", "h * stride_xh + w * stride_xw", "h * W + w"),
    ("columns not masked", "(h < H) & (w < W)", "(h < H) & (w < W + BLOCK_W)"),
    ("rows not masked", "(h < H) & (w < W)", "(w < W) & (h >= 0)"),
    (
        "axes of the grid exchanged",
        "program_id(0) * BLOCK_H",
        "program_id(1) * BLOCK_H",
        "program_id(1) * BLOCK_W",
        "program_id(0) * BLOCK_W",
    ),
    ("joined with and", "(h < H) & (w < W)", "(h < H) and (w < W)"),
    ("H and W exchanged", "(h < H) & (w < W)", "(h < W) & (w < H)"),
]:
    wrong("04.copy2d_kernel", what, COPY, *change)

GATHER = right(
    "04.gather_rows_kernel",
    """
@triton.jit
def gather_rows_kernel(table_ptr, index_ptr, out_ptr, N, D, stride_row, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    d = tl.arange(0, BLOCK_D)
    row = tl.load(index_ptr + n, mask=n < N, other=0).to(tl.int64)
    mask = (n < N)[:, None] & (d < D)[None, :]
    x = tl.load(table_ptr + row[:, None] * stride_row + d[None, :], mask=mask)
    tl.store(out_ptr + n[:, None] * D + d[None, :], x, mask=mask)
""",
)
for what, *change in [
    ("32-bit offsets", ".to(tl.int64)", ""),
    ("through uint32", ".to(tl.int64)", ".to(tl.uint32)"),
    ("stride D", "* stride_row", "* D"),
    ("channels not masked", " & (d < D)[None, :]", ""),
    ("index not masked", "index_ptr + n, mask=n < N, other=0", "index_ptr + n"),
    ("rows not masked", "(n < N)[:, None] & (d < D)[None, :]", "(d < D)[None, :] & (n >= 0)[:, None]"),
    ("no index", "row[:, None] * stride_row", "n[:, None].to(tl.int64) * stride_row"),
    ("out's rows stride_row apart", "n[:, None] * D", "n[:, None] * stride_row"),
    ("program id not multiplied", "tl.program_id(0) * BLOCK_N", "tl.program_id(0)"),
]:
    wrong("04.gather_rows_kernel", what, GATHER, *change)

BILINEAR = right(
    "04.bilinear_kernel",
    """
@triton.jit
def bilinear_kernel(image_ptr, loc_ptr, out_ptr, Q, H, W, D, BLOCK_Q: tl.constexpr, BLOCK_D: tl.constexpr):
    q = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    d = tl.arange(0, BLOCK_D)
    x = tl.load(loc_ptr + 2 * q, mask=q < Q, other=0.0) * W - 0.5
    y = tl.load(loc_ptr + 2 * q + 1, mask=q < Q, other=0.0) * H - 0.5
    x0 = tl.floor(x)
    y0 = tl.floor(y)
    acc = tl.zeros((BLOCK_Q, BLOCK_D), dtype=tl.float32)
    for j in tl.static_range(2):
        for i in tl.static_range(2):
            xi = x0.to(tl.int32) + i
            yj = y0.to(tl.int32) + j
            weight = (1 - tl.abs(x - xi)) * (1 - tl.abs(y - yj))
            mask = (q < Q) & (xi >= 0) & (xi < W) & (yj >= 0) & (yj < H)
            at = image_ptr + ((yj * W + xi) * D)[:, None] + d[None, :]
            pixel = tl.load(at, mask=mask[:, None] & (d < D)[None, :], other=0.0)
            acc += weight[:, None] * pixel
    tl.store(out_ptr + q[:, None] * D + d[None, :], acc, mask=(q < Q)[:, None] & (d < D)[None, :])
""",
)
right(
    "04.bilinear_kernel",
    """
@triton.jit
def bilinear_kernel(image_ptr, loc_ptr, out_ptr, Q, H, W, D, BLOCK_Q: tl.constexpr, BLOCK_D: tl.constexpr):
    q = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    d = tl.arange(0, BLOCK_D)
    c = tl.arange(0, 4)[None, :]
    x = (tl.load(loc_ptr + 2 * q, mask=q < Q, other=0.0) * W - 0.5)[:, None]
    y = (tl.load(loc_ptr + 2 * q + 1, mask=q < Q, other=0.0) * H - 0.5)[:, None]
    xi = tl.floor(x) + c % 2
    yj = tl.floor(y) + c // 2
    weight = (1 - tl.abs(x - xi)) * (1 - tl.abs(y - yj))
    mask = (q < Q)[:, None] & (xi >= 0) & (xi < W) & (yj >= 0) & (yj < H)
    at = (yj * W + xi).to(tl.int32) * D
    pixel = tl.load(image_ptr + at[:, :, None] + d[None, None, :], mask=mask[:, :, None] & (d < D)[None, None, :], other=0.0)
    acc = tl.sum(weight[:, :, None] * pixel, axis=1)
    tl.store(out_ptr + q[:, None] * D + d[None, :], acc, mask=(q < Q)[:, None] & (d < D)[None, :])
""",
    "the four corners as an axis of the tile",
)
for what, *change in [
    (
        "truncation",
        "x0 = tl.floor(x)\n    y0 = tl.floor(y)",
        "x0 = x.to(tl.int32).to(tl.float32)\n    y0 = y.to(tl.int32).to(tl.float32)",
    ),
    ("no half pixel", " * W - 0.5", " * W", " * H - 0.5", " * H"),
    (
        "x and y exchanged",
        "loc_ptr + 2 * q, ",
        "loc_ptr + 2 * q + 0 + 1, ",
        "loc_ptr + 2 * q + 1, ",
        "loc_ptr + 2 * q, ",
    ),
    ("no lower bound", " & (xi >= 0)", "", " & (yj >= 0)", ""),
    ("0 < i", "(xi >= 0)", "(xi > 0)", "(yj >= 0)", "(yj > 0)"),
    ("rows of H", "yj * W + xi", "yj * H + xi"),
    ("channels not masked at the store", "acc, mask=(q < Q)[:, None] & (d < D)[None, :]", "acc, mask=(q < Q)[:, None]"),
    ("weights of x only", "(1 - tl.abs(x - xi)) * (1 - tl.abs(y - yj))", "(1 - tl.abs(x - xi))"),
    ("the last corner only", "acc += weight", "acc = weight"),
    ("size - 1", " * W - 0.5", " * (W - 1)", " * H - 0.5", " * (H - 1)"),
]:
    wrong("04.bilinear_kernel", what, BILINEAR, *change)

SUM = right(
    "04.row_sum_kernel",
    """
@triton.jit
def row_sum_kernel(x_ptr, out_ptr, N, stride_row, BLOCK: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    acc = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, N, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        acc += tl.load(x_ptr + r * stride_row + offs, mask=offs < N, other=0.0).to(tl.float32)
    tl.store(out_ptr + r, tl.sum(acc, axis=0))
""",
)
for what, *change in [
    ("the mask of the lanes", "mask=offs < N", "mask=tl.arange(0, BLOCK) < N"),
    ("no mask", ", mask=offs < N, other=0.0", ""),
    ("the first block only", "range(0, N, BLOCK)", "range(0, BLOCK, BLOCK)"),
    ("rows N apart", "r * stride_row", "r * N"),
    ("the last block only", "acc += tl.load", "acc = tl.load"),
    ("32-bit row offset", "tl.program_id(0).to(tl.int64)", "tl.program_id(0)"),
    ("other is one", "other=0.0", "other=1.0"),
    ("the last block dropped", "range(0, N, BLOCK)", "range(0, N - BLOCK + 1, BLOCK)"),
    (
        "float16 accumulator",
        "dtype=tl.float32)\n    for",
        "dtype=tl.float16)\n    for",
        ".to(tl.float32)",
        ".to(tl.float16)",
    ),
    ("the mean", "tl.sum(acc, axis=0)", "tl.sum(acc, axis=0) / N"),
    ("every program row 0", "r * stride_row", "0 * stride_row"),
]:
    wrong("04.row_sum_kernel", what, SUM, *change)

SOFTMAX = right(
    "04.softmax_kernel",
    """
@triton.jit
def softmax_kernel(x_ptr, out_ptr, N, stride_row, BLOCK: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    most = tl.full((BLOCK,), float("-inf"), tl.float32)
    for start in range(0, N, BLOCK):
        offs = start + lanes
        most = tl.maximum(most, tl.load(x_ptr + r * stride_row + offs, mask=offs < N, other=float("-inf")))
    top = tl.max(most, axis=0)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, N, BLOCK):
        offs = start + lanes
        total += tl.exp(tl.load(x_ptr + r * stride_row + offs, mask=offs < N, other=float("-inf")) - top)
    sum = tl.sum(total, axis=0)
    for start in range(0, N, BLOCK):
        offs = start + lanes
        x = tl.load(x_ptr + r * stride_row + offs, mask=offs < N, other=float("-inf"))
        tl.store(out_ptr + r * stride_row + offs, tl.exp(x - top) / sum, mask=offs < N)
""",
)
for what, *change in [
    ("no maximum taken off", "top = tl.max(most, axis=0)", "top = tl.max(most, axis=0) * 0"),
    (
        "other is zero in the sum",
        'total += tl.exp(tl.load(x_ptr + r * stride_row + offs, mask=offs < N, other=float("-inf")) - top)',
        "total += tl.exp(tl.load(x_ptr + r * stride_row + offs, mask=offs < N, other=0.0) - top)",
    ),
    ("each lane its own sum", "tl.exp(x - top) / sum", "tl.exp(x - top) / total"),
    (
        "the maximum of the last block",
        'most = tl.maximum(most, tl.load(x_ptr + r * stride_row + offs, mask=offs < N, other=float("-inf")))',
        'most = tl.load(x_ptr + r * stride_row + offs, mask=offs < N, other=float("-inf"))',
    ),
    ("not divided", " / sum", ""),
    ("2 to the power", "tl.exp(", "tl.exp2("),
    ("store not masked", "tl.exp(x - top) / sum, mask=offs < N", "tl.exp(x - top) / sum"),
]:
    wrong("04.softmax_kernel", what, SOFTMAX, *change)
wrong(
    "04.softmax_kernel",
    "online, lane by lane: NaN where a lane saw nothing",
    """
@triton.jit
def softmax_kernel(x_ptr, out_ptr, N, stride_row, BLOCK: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    most = tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, N, BLOCK):
        offs = start + lanes
        x = tl.load(x_ptr + r * stride_row + offs, mask=offs < N, other=float("-inf"))
        now = tl.maximum(most, x)
        total = total * tl.exp(most - now) + tl.exp(x - now)
        most = now
    top = tl.max(most, axis=0)
    sum = tl.sum(total * tl.exp(most - top), axis=0)
    for start in range(0, N, BLOCK):
        offs = start + lanes
        x = tl.load(x_ptr + r * stride_row + offs, mask=offs < N, other=float("-inf"))
        tl.store(out_ptr + r * stride_row + offs, tl.exp(x - top) / sum, mask=offs < N)
""",
)

right(
    "04.add_kernel",
    """
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, N, BLOCK: tl.constexpr):
    pid = tl.program_id(axis=0)
    block_start = pid * BLOCK
    offsets = block_start + tl.arange(0, BLOCK)
    here = offsets < N
    output = tl.load(x_ptr + offsets, here, 0.0)
    output += tl.load(y_ptr + offsets, here, 0.0)
    tl.store(out_ptr + offsets, output, here)
""",
    "masks without their names",
)
wrong("04.add_kernel", "only what fits into one block", ADD, "offs < N", "offs < BLOCK")
wrong("04.copy2d_kernel", "out is packed", COPY, "h * stride_oh + w * stride_ow", "h * W + w")
wrong(
    "04.copy2d_kernel",
    "block sizes exchanged",
    COPY,
    "program_id(0) * BLOCK_H",
    "program_id(0) * BLOCK_W",
    "program_id(1) * BLOCK_W",
    "program_id(1) * BLOCK_H",
)
wrong(
    "04.gather_rows_kernel",
    "cast after the product",
    GATHER,
    "other=0).to(tl.int64)",
    "other=0)",
    "row[:, None] * stride_row",
    "(row[:, None] * stride_row).to(tl.int64)",
)
wrong(
    "04.gather_rows_kernel",
    "row -1 for lanes past the end",
    GATHER,
    "other=0)",
    "other=-1)",
    "mask = (n < N)[:, None] & (d < D)[None, :]",
    "mask = (d < D)[None, :] & (n >= 0)[:, None]",
    "x, mask=mask",
    "x, mask=mask & (n < N)[:, None]",
)
right(
    "04.gather_rows_kernel",
    GATHER.replace(".to(tl.int64)", "").replace("row[:, None] * stride_row", "row[:, None] * stride_row.to(tl.int64)"),
    "the stride is widened",
)
wrong(
    "04.bilinear_kernel",
    "rounded, not down",
    BILINEAR,
    "tl.floor(x)",
    "tl.floor(x + 0.5)",
    "tl.floor(y)",
    "tl.floor(y + 0.5)",
)
wrong(
    "04.bilinear_kernel",
    "the border goes on",
    BILINEAR,
    "            mask = (q < Q) & (xi >= 0) & (xi < W) & (yj >= 0) & (yj < H)",
    "            mask = q < Q\n            xi = tl.minimum(tl.maximum(xi, 0), W - 1)\n            yj = tl.minimum(tl.maximum(yj, 0), H - 1)",
)
wrong(
    "04.bilinear_kernel",
    "the weight of the other corner",
    BILINEAR,
    "(1 - tl.abs(x - xi)) * (1 - tl.abs(y - yj))",
    "tl.abs(x - xi) * tl.abs(y - yj)",
)
wrong(
    "04.bilinear_kernel",
    "points beyond the edges left out",
    BILINEAR,
    "mask = (q < Q) &",
    "mask = (q < Q) & (x >= 0) & (x <= W - 1) & (y >= 0) & (y <= H - 1) &",
)
right(
    "04.row_sum_kernel",
    """
@triton.jit
def row_sum_kernel(x_ptr, out_ptr, N, stride_row, BLOCK: tl.constexpr):
    r = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    at = x_ptr + r.to(tl.int64) * stride_row + lanes
    total = 0.0
    for start in range(0, N, BLOCK):
        total += tl.sum(tl.load(at, mask=lanes < N - start, other=0).to(tl.float32), axis=0)
        at += BLOCK
    tl.store(out_ptr + r, total)
""",
    "one sum, and addresses that walk",
)
wrong(
    "04.row_sum_kernel",
    "the sum of each block is written over the last",
    SUM,
    "acc += tl.load",
    "acc = tl.load",
    "    tl.store(out_ptr",
    "        tl.store(out_ptr",
)
wrong("04.row_sum_kernel", "blocks begin at one", SUM, "range(0, N, BLOCK)", "range(1, N, BLOCK)")
wrong("04.softmax_kernel", "32-bit row offset", SOFTMAX, "tl.program_id(0).to(tl.int64)", "tl.program_id(0)")
wrong(
    "04.softmax_kernel",
    "the maximum begins at zero",
    SOFTMAX,
    'tl.full((BLOCK,), float("-inf"), tl.float32)',
    "tl.zeros((BLOCK,), tl.float32)",
)
wrong(
    "04.softmax_kernel", "the smallest taken off", SOFTMAX, "top = tl.max(most, axis=0)", "top = -tl.max(-most, axis=0)"
)
right(
    "04.softmax_kernel",
    """
@triton.jit
def softmax_kernel(x_ptr, out_ptr, N, stride_row, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * stride_row
    lanes = tl.arange(0, BLOCK)
    most = float("-inf")
    total = 0.0
    for start in range(0, N, BLOCK):
        offs = start + lanes
        x = tl.load(x_ptr + row + offs, mask=offs < N, other=float("-inf"))
        now = tl.maximum(most, tl.max(x, axis=0))
        safe = tl.where(now == float("-inf"), 0.0, now)
        total = total * tl.exp(most - safe) + tl.sum(tl.exp(x - safe), axis=0)
        most = now
    for start in range(0, N, BLOCK):
        offs = start + lanes
        x = tl.load(x_ptr + row + offs, mask=offs < N, other=float("-inf"))
        tl.store(out_ptr + row + offs, tl.exp(x - most) / total, mask=offs < N)
""",
    "two walks, one number each",
)

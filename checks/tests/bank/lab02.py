"""Answers to lab 02."""

from checks.tests.bank import right, wrong

STRIDES = right(
    "02.contiguous_strides",
    """
def contiguous_strides(shape):
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))
""",
)
right(
    "02.contiguous_strides",
    "def contiguous_strides(shape):\n    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))\n",
    "products of the rest",
)
for what, *change in [
    ("column-major", "reversed(shape)", "shape", "tuple(reversed(strides))", "tuple(strides)"),
    (
        "own size counted",
        "        strides.append(step)\n        step *= size",
        "        step *= size\n        strides.append(step)",
    ),
    (
        "prefix products",
        "reversed(shape)",
        "shape",
        "        strides.append(step)\n        step *= size",
        "        step *= size\n        strides.append(step)",
    ),
    ("not turned back", "tuple(reversed(strides))", "tuple(strides)"),
    ("sums for products", "step *= size", "step += size"),
    ("bytes", "step = [], 1", "step = [], 4"),
    ("the size of the next axis only", "step *= size", "step = size"),
]:
    wrong("02.contiguous_strides", what, STRIDES, *change)

right("02.contiguous_strides", STRIDES.replace("tuple(reversed(strides))", "strides[::-1]"), "a list")

OFFSET = right(
    "02.flat_offset", "def flat_offset(index, strides):\n    return sum(i * s for i, s in zip(index, strides))\n"
)
right(
    "02.flat_offset",
    "def flat_offset(index, strides):\n    total = 0\n    for axis in range(len(index)):\n        total += strides[axis] * index[axis]\n    return total\n",
    "a loop",
)
for what, *change in [
    ("strides not used", "i * s for", "i for"),
    ("absolute value", "i * s for", "i * abs(s) for"),
    ("index from one", "i * s for", "(i - 1) * s for"),
    ("strides turned round", "zip(index, strides)", "zip(index, reversed(strides))"),
    ("the last axis forgotten", "zip(index, strides)", "zip(index[:-1], strides)"),
    (
        "never negative",
        "sum(i * s for i, s in zip(index, strides))",
        "max(0, sum(i * s for i, s in zip(index, strides)))",
    ),
]:
    wrong("02.flat_offset", what, OFFSET, *change)

CORNERS = right(
    "02.corner_offsets",
    """
def corner_offsets(level_start, W, x0, y0, row_stride):
    first = (level_start + y0 * W + x0) * row_stride
    return first, first + row_stride, first + W * row_stride, first + (W + 1) * row_stride
""",
)
for what, *change in [
    ("start not multiplied", "(level_start + y0 * W + x0) * row_stride", "level_start + (y0 * W + x0) * row_stride"),
    ("start forgotten", "level_start + y0", "y0"),
    ("x is the row", "y0 * W + x0", "x0 * W + y0"),
    ("the next pixel one element on", "first + row_stride,", "first + 1,"),
    ("the next row one table row on", "first + W * row_stride", "first + row_stride"),
    ("row_stride taken for the image's row", "y0 * W + x0) * row_stride", "x0) * row_stride + y0 * row_stride"),
    ("clamped at zero", "    first =", "    x0, y0 = max(x0, 0), max(y0, 0)\n    first ="),
    (
        "second and third exchanged",
        "first + row_stride, first + W * row_stride",
        "first + W * row_stride, first + row_stride",
    ),
    ("no stride", "+ x0) * row_stride", "+ x0)"),
]:
    wrong("02.corner_offsets", what, CORNERS, *change)

FLAT = right(
    "02.msda_flat",
    """
def msda_flat(memory, shape, strides, spatial_shapes, level_start_index, sampling_locations, attention_weights):
    B, S, M, D = shape
    sb, ss, sm, sd = strides
    _, Q, _, L, K, _ = sampling_locations.shape
    out = torch.zeros(B, Q, M, D, dtype=memory.dtype)
    for b in range(B):
        for q in range(Q):
            for m in range(M):
                for l in range(L):
                    H, W = spatial_shapes[l].tolist()
                    start = int(level_start_index[l])
                    for k in range(K):
                        x, y = sampling_locations[b, q, m, l, k].tolist()
                        x, y = x * W - 0.5, y * H - 0.5
                        x0, y0 = math.floor(x), math.floor(y)
                        for j in range(2):
                            for i in range(2):
                                px, py = x0 + i, y0 + j
                                w = (1 - abs(x - px)) * (1 - abs(y - py))
                                if 0 <= px < W and 0 <= py < H:
                                    base = b * sb + (start + py * W + px) * ss + m * sm
                                    at = base + torch.arange(D) * sd
                                    out[b, q, m] += attention_weights[b, q, m, l, k] * w * memory[at]
    return out.reshape(B, Q, M * D)
""",
)
for what, *change in [
    (
        "starts recomputed",
        "start = int(level_start_index[l])",
        "start = sum(int(h * w) for h, w in spatial_shapes[:l].tolist())",
    ),
    ("start forgotten", "start = int(level_start_index[l])", "start = 0"),
    ("channels next to each other", "torch.arange(D) * sd", "torch.arange(D)"),
    ("strides of images and heads exchanged", "sb, ss, sm, sd = strides", "sm, ss, sb, sd = strides"),
    ("contiguous strides", "sb, ss, sm, sd = strides", "sb, ss, sm, sd = S * M * D, M * D, D, 1"),
    ("heads forgotten", " + m * sm", ""),
    ("images forgotten", "b * sb + ", ""),
    ("H for W", "py * W + px", "py * H + px"),
    ("start after the pixel stride", "(start + py * W + px) * ss", "start + (py * W + px) * ss"),
    ("always float32", "dtype=memory.dtype", "dtype=torch.float32"),
    ("no half pixel", "x * W - 0.5, y * H - 0.5", "x * W, y * H"),
    (
        "NaN that was read made zero, no bounds",
        "                                if 0 <= px < W and 0 <= py < H:\n",
        "                                if True:\n",
        "memory[at]",
        "memory[at.clamp(0, len(memory) - 1)].nan_to_num(0)",
    ),
    ("no lower bound", "0 <= px < W and 0 <= py < H", "px < W and py < H"),
    ("x and y exchanged", "x, y = sampling", "y, x = sampling"),
    ("attention forgotten", "attention_weights[b, q, m, l, k] * w", "w"),
    ("cut off towards zero", "math.floor(x), math.floor(y)", "int(x), int(y)"),
    ("divided by L", "* w * memory[at]", "* w * memory[at] / L"),
]:
    wrong("02.msda_flat", what, FLAT, *change)

OVER = right(
    "02.first_overflow",
    """
def first_overflow(B, S, M, D):
    per = S * M * D
    return B * per - 1 <= 2**31 - 1, 2**31 // per + 1
""",
)
for what, *change in [
    ("the number of elements for the largest index", "B * per - 1 <= 2**31 - 1", "B * per <= 2**31 - 1"),
    ("2**32", "2**31", "2**32"),
    ("the last that fits", "2**31 // per + 1", "2**31 // per"),
    ("rounded up", "2**31 // per + 1", "-(-(2**31) // per)"),
    ("turned round", "<= 2**31 - 1", "> 2**31 - 1"),
    ("a float division", "2**31 // per + 1", "2**31 / per + 1"),
    ("bytes", "per = S * M * D", "per = 4 * S * M * D"),
    ("heads forgotten", "per = S * M * D", "per = S * D"),
]:
    wrong("02.first_overflow", what, OVER, *change)

GATHER = right(
    "02.msda_gather",
    """
def msda_gather(memory, shape, strides, spatial_shapes, level_start_index, sampling_locations, attention_weights):
    B, S, M, D = shape
    sb, ss, sm, sd = strides
    _, Q, _, L, K, _ = sampling_locations.shape
    H, W = spatial_shapes[:, 0].view(L, 1, 1), spatial_shapes[:, 1].view(L, 1, 1)
    x = (sampling_locations[..., 0] * W[..., 0] - 0.5)[..., None]
    y = (sampling_locations[..., 1] * H[..., 0] - 0.5)[..., None]
    px = x.floor() + torch.tensor([0.0, 1.0, 0.0, 1.0], dtype=x.dtype)
    py = y.floor() + torch.tensor([0.0, 0.0, 1.0, 1.0], dtype=y.dtype)
    weight = (1 - (x - px).abs()) * (1 - (y - py).abs()) * attention_weights[..., None]
    inside = (px >= 0) & (px < W) & (py >= 0) & (py < H)
    pixel = level_start_index.view(L, 1, 1) + py.long() * W + px.long()
    b, m = torch.arange(B).view(B, 1, 1, 1, 1, 1), torch.arange(M).view(1, 1, M, 1, 1, 1)
    at = b * sb + m * sm + pixel * ss
    at = torch.where(inside, at, 0)[..., None] + torch.arange(D) * sd
    read = torch.where(inside[..., None], memory[at], 0)
    return (read * weight[..., None]).sum((3, 4, 5)).reshape(B, Q, M * D).to(memory.dtype)
""",
)
for what, *change in [
    ("NaN times zero", "torch.where(inside[..., None], memory[at], 0)", "memory[at] * inside[..., None]"),
    ("always float32", ".to(memory.dtype)", ".float()"),
    ("heads forgotten", " + m * sm", ""),
    ("starts forgotten", "level_start_index.view(L, 1, 1) + ", ""),
    ("mean over points", ".sum((3, 4, 5))", ".mean((3, 4, 5))"),
    ("H for W", "py.long() * W", "py.long() * H"),
    ("attention forgotten", " * attention_weights[..., None]", ""),
    ("heads and queries transposed", ".sum((3, 4, 5)).reshape", ".sum((3, 4, 5)).transpose(1, 2).reshape"),
    (
        "clamped to the border",
        "inside = (px >= 0) & (px < W) & (py >= 0) & (py < H)",
        "px, py = px.clamp(min=0).minimum(W - 1), py.clamp(min=0).minimum(H - 1)\n    inside = torch.ones_like(px, dtype=torch.bool)",
    ),
    ("no channel stride", "torch.arange(D) * sd", "torch.arange(D)"),
]:
    wrong("02.msda_gather", what, GATHER, *change)

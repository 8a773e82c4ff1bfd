"""Answers to lab 01."""

from checks.tests.bank import right, wrong

TO = right("01.to_pixels", "def to_pixels(location, size):\n    return location * size - 0.5\n")
right("01.to_pixels", "def to_pixels(location, size):\n    return (2 * location * size - 1) / 2\n", "(2 l s - 1) / 2")
right(
    "01.to_pixels",
    "def to_pixels(location, size):\n    half = 0.5 / size\n    return (location - half) * size\n",
    "half a pixel first",
)
for what, new in [
    ("no half pixel", "location * size"),
    ("half pixel added", "location * size + 0.5"),
    ("size - 1", "location * (size - 1)"),
    ("size - 1 and the half pixel", "location * (size - 1) - 0.5"),
    ("kept from below only", "max(location * size - 0.5, 0)"),
    ("kept from above only", "min(location * size - 0.5, size - 1)"),
    ("rounded", "round(location * size - 0.5)"),
    ("a whole pixel taken off", "location * size - 1"),
    ("divided by the size", "location / size - 0.5"),
    ("from -1 to 1 as grid_sample counts", "((location + 1) * size - 1) / 2"),
    ("cut off towards zero", "int(location * size - 0.5)"),
]:
    wrong("01.to_pixels", what, TO, "location * size - 0.5", new)

CORNERS = right(
    "01.corner_weights",
    """
def corner_weights(x, y):
    x0, y0 = math.floor(x), math.floor(y)
    fx, fy = x - x0, y - y0
    return (x0, y0), ((1 - fx) * (1 - fy), fx * (1 - fy), (1 - fx) * fy, fx * fy)
""",
)
right(
    "01.corner_weights",
    """
def corner_weights(x, y):
    x0, y0 = int(x // 1), int(y // 1)
    weights = [(1 - abs(x - i)) * (1 - abs(y - j)) for j in (y0, y0 + 1) for i in (x0, x0 + 1)]
    return (x0, y0), tuple(weights)
""",
    "distances",
)
for what, *change in [
    ("cut off towards zero", "math.floor(x), math.floor(y)", "int(x), int(y)"),
    ("rounded", "math.floor(x), math.floor(y)", "round(x), round(y)"),
    ("rounded up", "math.floor(x), math.floor(y)", "math.ceil(x), math.ceil(y)"),
    ("second and third weight exchanged", "fx * (1 - fy), (1 - fx) * fy", "(1 - fx) * fy, fx * (1 - fy)"),
    ("the fractions of x and y exchanged", "fx, fy = x - x0, y - y0", "fy, fx = x - x0, y - y0"),
    ("each weight at the opposite corner", "x - x0, y - y0", "1 - (x - x0), 1 - (y - y0)"),
    ("(y0, x0)", "return (x0, y0)", "return (y0, x0)"),
    ("the product of the last two forgotten", "fx * fy)", "fx + fy)"),
    ("y0 from x", "math.floor(y)", "math.floor(x)"),
    ("clamped at zero", "math.floor(x), math.floor(y)", "max(math.floor(x), 0), max(math.floor(y), 0)"),
]:
    wrong("01.corner_weights", what, CORNERS, *change)

SAMPLE = right(
    "01.bilinear_sample",
    """
def bilinear_sample(image, x, y):
    H, W, D = image.shape
    (x0, y0), weights = corner_weights(x, y)
    out = torch.zeros(D, dtype=image.dtype)
    for (i, j), w in zip([(x0, y0), (x0 + 1, y0), (x0, y0 + 1), (x0 + 1, y0 + 1)], weights):
        if 0 <= i < W and 0 <= j < H:
            out = out + w * image[j, i]
    return out
""",
    helpers=CORNERS,
)
right(
    "01.bilinear_sample",
    """
def bilinear_sample(image, x, y):
    H, W, D = image.shape
    rows = (1 - (torch.arange(H, dtype=image.dtype) - y).abs()).clamp(min=0)
    columns = (1 - (torch.arange(W, dtype=image.dtype) - x).abs()).clamp(min=0)
    return (rows[:, None, None] * columns[None, :, None] * image).sum((0, 1))
""",
    "hats over the whole image",
)
right(
    "01.bilinear_sample",
    """
def bilinear_sample(image, x, y):
    H, W, D = image.shape
    if x <= -1 or x >= W or y <= -1 or y >= H:
        return image.new_zeros(D)
    padded = torch.nn.functional.pad(image, (0, 0, 1, 1, 1, 1))
    (x0, y0), w = corner_weights(x, y)
    block = padded[y0 + 1 : y0 + 3, x0 + 1 : x0 + 3].reshape(4, D)
    return (torch.tensor(w, dtype=image.dtype)[:, None] * block).sum(0)
""",
    "a frame of zeros",
    helpers=CORNERS,
)
for what, *change in [
    ("x is the row", "image[j, i]", "image[i, j]", "i < W and 0 <= j < H", "i < H and 0 <= j < W"),
    ("no lower bound", "0 <= i < W and 0 <= j < H", "i < W and j < H"),
    (
        "border clamped",
        "        if 0 <= i < W and 0 <= j < H:\n            out = out + w * image[j, i]",
        "        i, j = min(max(i, 0), W - 1), min(max(j, 0), H - 1)\n        out = out + w * image[j, i]",
    ),
    (
        "zero beyond half a pixel",
        "    out = torch",
        "    if not (-0.5 <= x <= W - 0.5 and -0.5 <= y <= H - 0.5):\n        return image.new_zeros(D)\n    out = torch",
    ),
    (
        "a point with a corner outside is dropped",
        "    out = torch",
        "    if x0 < 0 or y0 < 0 or x0 + 1 >= W or y0 + 1 >= H:\n        return image.new_zeros(D)\n    out = torch",
    ),
    ("0 < i", "0 <= i < W and 0 <= j < H", "0 < i < W and 0 < j < H"),
    ("last row and column left out", "0 <= i < W and 0 <= j < H", "0 <= i < W - 1 and 0 <= j < H - 1"),
    ("H and W exchanged in the bounds", "i < W and 0 <= j < H", "i < H and 0 <= j < W"),
    ("one bound for both", "0 <= i < W and 0 <= j < H", "0 <= i < W and 0 <= j < W"),
    ("always float32", "dtype=image.dtype", "dtype=torch.float32", "return out", "return out.float()"),
    ("the last corner only", "out = out + w", "out = w"),
    ("weights forgotten", "w * image[j, i]", "image[j, i]"),
    (
        "weights divided by those inside",
        "    return out",
        "    inside = sum(w for (i, j), w in zip([(x0, y0), (x0 + 1, y0), (x0, y0 + 1), (x0 + 1, y0 + 1)], weights) if 0 <= i < W and 0 <= j < H)\n    return out / inside if inside else out",
    ),
    ("mean over the four", "    return out", "    return out / 4"),
]:
    wrong("01.bilinear_sample", what, SAMPLE, *change, helpers=CORNERS)

HELPERS = TO + CORNERS + SAMPLE
LOOPS = right(
    "01.msda_loops",
    """
def msda_loops(value, spatial_shapes, sampling_locations, attention_weights):
    B, S, M, D = value.shape
    _, Q, _, L, K, _ = sampling_locations.shape
    out = torch.zeros(B, Q, M, D, dtype=value.dtype)
    for b in range(B):
        for q in range(Q):
            for m in range(M):
                start = 0
                for l in range(L):
                    H, W = spatial_shapes[l].tolist()
                    image = value[b, start : start + H * W, m].reshape(H, W, D)
                    for k in range(K):
                        x, y = sampling_locations[b, q, m, l, k].tolist()
                        sample = bilinear_sample(image, to_pixels(x, W), to_pixels(y, H))
                        out[b, q, m] += attention_weights[b, q, m, l, k] * sample
                    start += H * W
    return out.reshape(B, Q, M * D)
""",
    helpers=HELPERS,
)
right(
    "01.msda_loops",
    LOOPS.replace("start = 0\n", "sizes = [int(h * w) for h, w in spatial_shapes.tolist()]\n")
    .replace("value[b, start : start + H * W, m]", "value[b, sum(sizes[:l]) : sum(sizes[: l + 1]), m]")
    .replace("                    start += H * W\n", ""),
    "sums of sizes",
    helpers=HELPERS,
)
for what, *change in [
    ("starts not accumulated", "start += H * W", "start = H * W"),
    ("start forgotten", "start += H * W", "pass"),
    ("H and W exchanged", "H, W = spatial", "W, H = spatial"),
    ("x and y exchanged", "x, y = sampling", "y, x = sampling"),
    ("attention forgotten", "attention_weights[b, q, m, l, k] * sample", "sample"),
    ("mean over points", "attention_weights[b, q, m, l, k] * sample", "sample / (L * K)"),
    ("divided by L", "* sample", "* sample / L"),
    (
        "a softmax more",
        "    out = torch",
        "    attention_weights = attention_weights.flatten(3).softmax(-1).view_as(attention_weights)\n    out = torch",
    ),
    ("heads and channels transposed", "out.reshape(B, Q, M * D)", "out.transpose(2, 3).reshape(B, Q, M * D)"),
    ("head 0 for all", "start + H * W, m]", "start + H * W, 0]"),
    ("assigned, not added", "out[b, q, m] += ", "out[b, q, m] = "),
    ("image 0 for all", "value[b, start", "value[0, start"),
    ("always float32", "dtype=value.dtype", "dtype=torch.float32"),
    ("size - 1 for the pixels", "to_pixels(x, W), to_pixels(y, H)", "x * (W - 1), y * (H - 1)"),
    ("nearest pixel", "to_pixels(x, W), to_pixels(y, H)", "round(to_pixels(x, W)), round(to_pixels(y, H))"),
    ("the last point left out", "range(K)", "range(K - 1)"),
    ("query 0 for all", "sampling_locations[b, q,", "sampling_locations[b, 0,"),
    (
        "the largest over points, not the sum",
        "out[b, q, m] += attention_weights[b, q, m, l, k] * sample",
        "out[b, q, m] = torch.maximum(out[b, q, m], attention_weights[b, q, m, l, k] * sample)",
    ),
]:
    wrong("01.msda_loops", what, LOOPS, *change, helpers=HELPERS)

LIKE = right(
    "01.sample_like_torch",
    """
def sample_like_torch(image, u, v, align_corners, padding_mode):
    def place(t, size):
        x = (t + 1) / 2 * (size - 1) if align_corners else to_pixels((t + 1) / 2, size)
        if padding_mode == "reflection":
            low, span = (0.0, size - 1.0) if align_corners else (-0.5, float(size))
            x = abs(x - low) % (2 * span)
            x = low + min(x, 2 * span - x)
        if padding_mode != "zeros":
            x = min(max(x, 0.0), size - 1.0)
        return x

    H, W, _ = image.shape
    return bilinear_sample(image, place(u, W), place(v, H))
""",
    helpers=HELPERS,
)
for what, *change in [
    (
        "mirrors once",
        "            x = abs(x - low) % (2 * span)\n            x = low + min(x, 2 * span - x)\n",
        "            x = low + abs(x - low)\n            x = 2 * (low + span) - x if x > low + span else x\n",
    ),
    ("align_corners ignored", "if align_corners else to_pixels", "if False else to_pixels"),
    ("align_corners turned round", "if align_corners else to_pixels", "if not align_corners else to_pixels"),
    ("u and v exchanged", "place(u, W), place(v, H)", "place(v, W), place(u, H)"),
    ("no clamp after the mirror", 'if padding_mode != "zeros"', 'if padding_mode == "border"'),
    ("mirror always at the centres", "if align_corners else (-0.5, float(size))", "if True else (-0.5, float(size))"),
    ("no half pixel", "to_pixels((t + 1) / 2, size)", "(t + 1) / 2 * size"),
]:
    wrong("01.sample_like_torch", what, LIKE, *change, helpers=HELPERS)

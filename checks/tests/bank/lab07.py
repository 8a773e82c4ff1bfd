"""Answers to lab 07."""

from checks.tests.bank import right, wrong

NUMERIC = right(
    "07.numeric_gradient",
    """
def numeric_gradient(fn, x, eps):
    grad = torch.empty(x.shape, dtype=x.dtype)
    for n in range(x.numel()):
        index = tuple(int(i) for i in torch.unravel_index(torch.tensor(n), x.shape))
        up, down = x.clone(), x.clone()
        up[index] += eps
        down[index] -= eps
        grad[index] = (fn(up) - fn(down)) / (2 * eps)
    return grad
""",
)
right(
    "07.numeric_gradient",
    """
def numeric_gradient(fn, x, eps):
    found = []
    for n in range(x.numel()):
        step = torch.zeros(x.numel(), dtype=x.dtype)
        step[n] = eps
        step = step.reshape(x.shape)
        found.append((fn(x + step) - fn(x - step)) / (2 * eps))
    return torch.stack(found).reshape(x.shape).to(x.dtype)
""",
    "a step at a time",
)
for what, *change in [
    ("one-sided", "        down[index] -= eps\n", "", "(2 * eps)", "eps"),
    ("not divided by two", "(2 * eps)", "eps"),
    ("backwards", "fn(up) - fn(down)", "fn(down) - fn(up)"),
    (
        "x itself is stepped there and back",
        "up, down = x.clone(), x.clone()",
        "up, down = x, x.clone()",
        "        grad[index] = (fn(up) - fn(down)) / (2 * eps)",
        "        grad[index] = (fn(up) - fn(down)) / (2 * eps)\n        up[index] -= eps",
    ),
    ("all elements at once", "up[index] += eps", "up += eps", "down[index] -= eps", "down -= eps"),
    ("float32 whatever x is", "dtype=x.dtype", "dtype=torch.float32"),
    (
        "steps pile up",
        "    for n in",
        "    up, down = x.clone(), x.clone()\n    for n in",
        "        up, down = x.clone(), x.clone()\n",
        "",
    ),
    ("eps fixed", "        up[index]", "        eps = 1e-3\n        up[index]"),
]:
    wrong("07.numeric_gradient", what, NUMERIC, *change)

EPS = right("07.choose_eps", "def choose_eps(dtype):\n    return torch.finfo(dtype).eps ** (1 / 3)\n")
for what, *change in [
    ("the square root", "(1 / 3)", "(1 / 2)"),
    ("eps itself", " ** (1 / 3)", ""),
    ("always 1e-3", "torch.finfo(dtype).eps ** (1 / 3)", "1e-3"),
    ("1e-6", "torch.finfo(dtype).eps ** (1 / 3)", "1e-6"),
    ("the fourth root of four", "(1 / 3)", "(1 / 8)"),
    ("the smallest number", "torch.finfo(dtype).eps ** (1 / 3)", "torch.finfo(dtype).tiny ** (1 / 3)"),
]:
    wrong("07.choose_eps", what, EPS, *change)

GRADS = """
def all_three(value, spatial_shapes, sampling_locations, attention_weights, grad_out):
    B, S, M, D = value.shape
    _, Q, _, L, K, _ = sampling_locations.shape
    grad = grad_out.reshape(B, Q, M, D)
    g_value = torch.zeros_like(value)
    g_loc = torch.zeros_like(sampling_locations)
    g_attn = torch.zeros_like(attention_weights)
    start = 0
    for l, (H, W) in enumerate(spatial_shapes.tolist()):
        for b in range(B):
            for q in range(Q):
                for m in range(M):
                    for k in range(K):
                        x, y = sampling_locations[b, q, m, l, k].tolist()
                        x, y = x * W - 0.5, y * H - 0.5
                        x0, y0 = math.floor(x), math.floor(y)
                        fx, fy = x - x0, y - y0
                        a = attention_weights[b, q, m, l, k]
                        for i, j in ((0, 0), (1, 0), (0, 1), (1, 1)):
                            if 0 <= x0 + i < W and 0 <= y0 + j < H:
                                wx, wy = (fx if i else 1 - fx), (fy if j else 1 - fy)
                                sx, sy = (1 if i else -1), (1 if j else -1)
                                row = start + (y0 + j) * W + x0 + i
                                dot = (grad[b, q, m] * value[b, row, m]).sum()
                                g_attn[b, q, m, l, k] += wx * wy * dot
                                g_loc[b, q, m, l, k, 0] += a * sx * wy * dot * W
                                g_loc[b, q, m, l, k, 1] += a * sy * wx * dot * H
                                g_value[b, row, m] += a * wx * wy * grad[b, q, m]
        start += H * W
    return g_value, g_loc, g_attn
"""
SHARED = [
    ("starts not accumulated", "start += H * W", "start = H * W"),
    ("x and y exchanged", "x, y = sampling", "y, x = sampling"),
    ("truncation", "math.floor(x), math.floor(y)", "int(x), int(y)"),
    ("no half pixel", "x * W - 0.5, y * H - 0.5", "x * W, y * H"),
    ("0 < i", "0 <= x0 + i < W and 0 <= y0 + j < H", "0 < x0 + i < W and 0 < y0 + j < H"),
]
OWN = {
    "grad_attention": (
        2,
        [
            ("attention is still in it", "+= wx * wy * dot", "+= a * wx * wy * dot"),
            ("corners without weights", "+= wx * wy * dot", "+= dot"),
            ("the last corner only", "g_attn[b, q, m, l, k] +=", "g_attn[b, q, m, l, k] ="),
            ("the mean over channels", "value[b, row, m]).sum()", "value[b, row, m]).mean()"),
            (
                "the softmax's Jacobian too",
                "    return g_value",
                "    p = attention_weights.flatten(3)\n    t = g_attn.flatten(3)\n    g_attn = (p * (t - (p * t).sum(-1, keepdim=True))).view_as(g_attn)\n    return g_value",
            ),
            ("grad_out left out", "grad[b, q, m] * value", "value"),
        ],
    ),
    "grad_locations": (
        1,
        [
            ("the sizes left out", "dot * W", "dot", "dot * H", "dot"),
            ("W and H exchanged", "dot * W", "dot * h", "dot * H", "dot * W", "dot * h", "dot * H"),
            ("attention left out", "a * sx", "sx", "a * sy", "sy"),
            ("the sign of one corner", "sx, sy = (1 if i else -1)", "sx, sy = (1 if i and not j else -1)"),
            ("all signs turned round", "(1 if i else -1), (1 if j else -1)", "(-1 if i else 1), (-1 if j else 1)"),
            ("corners mixed in dy", "a * sy * wx", "a * sy * wy"),
            ("dx and dy exchanged", "l, k, 0]", "l, k, 2]", "l, k, 1]", "l, k, 0]", "l, k, 2]", "l, k, 1]"),
            ("size - 1", "dot * W", "dot * (W - 1)", "dot * H", "dot * (H - 1)"),
        ],
    ),
    "grad_value": (
        0,
        [
            ("attention left out", "a * wx * wy * grad", "wx * wy * grad"),
            ("assigned, not added", "g_value[b, row, m] +=", "g_value[b, row, m] ="),
            ("weights left out", "a * wx * wy * grad", "a * grad"),
            ("image 0 for all", "g_value[b, row", "g_value[0, row"),
            ("head 0 for all", "g_value[b, row, m]", "g_value[b, row, 0]"),
            ("the opposite corner's weight", "+= a * wx * wy * grad", "+= a * (1 - wx) * (1 - wy) * grad"),
            ("grad_out read as (M, Q)", "grad_out.reshape(B, Q, M, D)", "grad_out.reshape(B, M, Q, D).transpose(1, 2)"),
        ],
    ),
}
ARGS = "value, spatial_shapes, sampling_locations, attention_weights, grad_out"
for name, (which, own) in OWN.items():
    source = GRADS + f"\n\ndef {name}({ARGS}):\n    return all_three({ARGS})[{which}]\n"
    right(f"07.{name}", source)
    for what, *change in SHARED + own:
        wrong(f"07.{name}", what, source, *change)

source = GRADS + f"\n\ndef all_gradients({ARGS}):\n    return all_three({ARGS})\n"
right("07.all_gradients", source.replace("for l, (H, W)", "for l, (H, W)"), "loops, correct but slow")
wrong("07.all_gradients", "in another order", source, "return g_value, g_loc, g_attn", "return g_loc, g_value, g_attn")
wrong("07.all_gradients", "the sizes left out", source, "dot * W", "dot", "dot * H", "dot")
wrong("07.all_gradients", "attention in grad_attention", source, "+= wx * wy * dot", "+= a * wx * wy * dot")

KINK = right(
    "07.near_kink",
    """
def near_kink(locations, shapes, tol):
    size = shapes.flip(-1).to(locations.dtype)[:, None, :]
    pixels = locations * size - 0.5
    nearest = pixels.round()
    near = ((pixels - nearest).abs() <= tol) & (nearest >= -1) & (nearest <= size)
    return near.any(-1)
""",
)
for what, *change in [
    ("both x and y must be near", ".any(-1)", ".all(-1)"),
    ("H and W exchanged", "shapes.flip(-1)", "shapes"),
    ("no half pixel", " - 0.5", ""),
    ("in locations, not pixels", "(pixels - nearest).abs() <= tol", "(pixels - nearest).abs() / size <= tol"),
    ("far outside counts", " & (nearest >= -1) & (nearest <= size)", ""),
    ("inside only", "(nearest >= -1) & (nearest <= size)", "(nearest >= 0) & (nearest <= size - 1)"),
    ("below only", "nearest = pixels.round()", "nearest = pixels.floor()"),
    ("turned round", "return near.any(-1)", "return ~near.any(-1)"),
]:
    wrong("07.near_kink", what, KINK, *change)

right(
    "07.numeric_gradient",
    """
def numeric_gradient(fn, x, eps):
    grad = torch.zeros_like(x)
    for index in __import__("itertools").product(*map(range, x.shape)):
        there, back = x.clone(), x.clone()
        there[index] = there[index] + eps
        back[index] = back[index] - eps
        grad[index] = (fn(there).item() - fn(back).item()) / (2 * eps)
    return grad
""",
    "numbers by item()",
)
wrong(
    "07.numeric_gradient",
    "a flat view, which a transposed one has not",
    """
def numeric_gradient(fn, x, eps):
    x = x.clone()
    flat = x.view(-1)
    grad = torch.zeros(x.shape, dtype=x.dtype)
    for n in range(x.numel()):
        old = flat[n].item()
        flat[n] = old + eps
        up = fn(x)
        flat[n] = old - eps
        down = fn(x)
        flat[n] = old
        grad.view(-1)[n] = (up - down) / (2 * eps)
    return grad
""",
)
wrong("07.numeric_gradient", "the shape forgotten", NUMERIC, "return grad", "return grad.flatten()")
right(
    "07.choose_eps",
    "def choose_eps(dtype):\n    return torch.finfo(dtype).resolution ** (1 / 3)\n",
    "from the resolution",
)
wrong(
    "07.choose_eps",
    "a table, wrong for bfloat16",
    EPS,
    "return torch.finfo(dtype).eps ** (1 / 3)",
    "return {torch.float64: 1e-5, torch.float32: 5e-3, torch.float16: 0.1, torch.bfloat16: 0.01}[dtype]",
)
for name, what, *change in [
    ("grad_attention", "divided by the number of points", "    return g_value", "    g_attn = g_attn / (L * K)\n    return g_value"),
    ("grad_attention", "the border goes on", "if 0 <= x0 + i < W and 0 <= y0 + j < H:", "if True:", "row = start + (y0 + j) * W + x0 + i", "row = start + min(max(y0 + j, 0), H - 1) * W + min(max(x0 + i, 0), W - 1)"),
    ("grad_attention", "every head reads head 0", "value[b, row, m]).sum()", "value[b, row, 0]).sum()"),
    ("grad_locations", "the slope to the left", "math.floor(x), math.floor(y)", "math.ceil(x) - 1, math.ceil(y) - 1"),
    ("grad_locations", "divided by the sizes", "dot * W", "dot / W", "dot * H", "dot / H"),
    ("grad_locations", "the same for both axes", "g_loc[b, q, m, l, k, 1] += a * sy * wx * dot * H", "g_loc[b, q, m, l, k, 1] += a * sx * wy * dot * W"),
    ("grad_locations", "weights of x and y exchanged", "a * sx * wy", "a * sx * wx", "a * sy * wx", "a * sy * wy"),
    ("grad_value", "all levels in the first", "row = start + (y0", "row = (y0"),
    ("grad_value", "columns of H", "(y0 + j) * W", "(y0 + j) * H"),
    ("grad_value", "divided by the heads", "a * wx * wy * grad[b, q, m]", "a * wx * wy * grad[b, q, m] / M"),
]:  # fmt: skip
    text = GRADS + f"\n\ndef {name}({ARGS}):\n    return all_three({ARGS})[{OWN[name][0]}]\n"
    wrong(f"07.{name}", what, text, *change)
TENSORS = right(
    "07.all_gradients",
    """
def all_gradients(value, spatial_shapes, sampling_locations, attention_weights, grad_out):
    B, S, M, D = value.shape
    _, Q, _, L, K, _ = sampling_locations.shape
    sizes = spatial_shapes.flip(-1)[:, None, :]
    areas = spatial_shapes.prod(-1)
    start = (areas.cumsum(0) - areas)[:, None]
    W, H = sizes[..., 0], sizes[..., 1]
    pixel = sampling_locations * sizes - 0.5
    low = pixel.floor()
    frac = pixel - low
    grad = grad_out.reshape(B, Q, M, 1, 1, D)
    b = torch.arange(B)[:, None, None, None, None]
    m = torch.arange(M)[None, None, :, None, None]
    g_attn = torch.zeros_like(attention_weights)
    g_x, g_y = torch.zeros_like(attention_weights), torch.zeros_like(attention_weights)
    g_value = torch.zeros(B * S * M, D, dtype=value.dtype)
    for i in (0, 1):
        for j in (0, 1):
            x, y = low[..., 0] + i, low[..., 1] + j
            there = (x >= 0) & (x < W) & (y >= 0) & (y < H)
            row = torch.where(there, start + y * W + x, 0).long()
            wx = frac[..., 0] if i else 1 - frac[..., 0]
            wy = frac[..., 1] if j else 1 - frac[..., 1]
            dot = torch.where(there, (value[b, row, m] * grad).sum(-1), 0)
            g_attn += wx * wy * dot
            g_x += (2 * i - 1) * wy * dot
            g_y += (2 * j - 1) * wx * dot
            share = torch.where(there, attention_weights * wx * wy, 0)[..., None] * grad
            at = ((b * S + row) * M + m).expand(there.shape)
            g_value.index_add_(0, at.flatten(), share.reshape(-1, D))
    g_loc = torch.stack((g_x * W, g_y * H), -1) * attention_weights[..., None]
    return g_value.view(B, S, M, D), g_loc, g_attn
""",
    "tensors",
)
for what, *change in [
    ("the last point of a pixel wins", "g_value.index_add_(0, at.flatten(), share.reshape(-1, D))", "g_value[at.flatten()] += share.reshape(-1, D)"),
    ("levels begin where they end", "(areas.cumsum(0) - areas)", "(areas.cumsum(0).clamp(max=S - int(areas[-1])))"),
    ("the attention of locations forgotten", " * attention_weights[..., None]\n", "\n"),
    ("corners outside weigh", "share = torch.where(there, attention_weights * wx * wy, 0)", "share = (attention_weights * wx * wy)"),
]:  # fmt: skip
    wrong("07.all_gradients", what, TENSORS, *change)
wrong(
    "07.near_kink",
    "points just outside the first kink",
    KINK,
    "(nearest >= -1) & (nearest <= size)",
    "(pixels >= -1) & (pixels <= size)",
)
right(
    "07.near_kink",
    """
def near_kink(locations, shapes, tol):
    H, W = shapes[:, 0], shapes[:, 1]
    size = torch.stack((W, H), dim=-1).view(1, 1, 1, -1, 1, 2)
    p = locations * size - 0.5
    gap = torch.minimum(p - p.floor(), p.ceil() - p)
    near = (gap <= tol) & (p >= -1 - tol) & (p <= size + tol)
    return near[..., 0] | near[..., 1]
""",
    "the smaller gap",
)

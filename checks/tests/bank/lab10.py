"""Answers to lab 10."""

from checks.tests.bank import right, wrong

HELPERS = "from checks.answers.carry import lab05, lab08, lab09\n"
FUNCTION = right(
    "10.MSDAFunction",
    """
from torch.autograd.function import once_differentiable


class MSDAFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, spatial_shapes, level_start_index, sampling_locations, attention_weights):
        kept = (value, spatial_shapes, level_start_index, sampling_locations, attention_weights)
        ctx.save_for_backward(*kept)
        return lab05.msda_forward(*kept)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out):
        gv, gl, ga = lab08.msda_backward(grad_out, *ctx.saved_tensors)
        return gv, None, None, gl, ga
""",
    helpers=HELPERS,
)
ASKING = "lab09.msda_backward_switched(grad_out, *ctx.saved_tensors, capability_of(grad_out))"
right(
    "10.MSDAFunction",
    FUNCTION.replace("lab08.msda_backward(grad_out, *ctx.saved_tensors)", ASKING),
    "lab 9's launcher, told by the tensor's GPU",
    HELPERS + "def capability_of(t):\n    return torch.cuda.get_device_capability(t.device) if t.is_cuda else (9, 0)\n",
)
for what, *change in [
    (
        "a fixed capability",
        "lab08.msda_backward(grad_out, *ctx.saved_tensors)",
        "lab09.msda_backward_switched(grad_out, *ctx.saved_tensors, (8, 0))",
    ),
    (
        "a capability that is a constant of the notebook",
        "lab08.msda_backward(grad_out, *ctx.saved_tensors)",
        "lab09.msda_backward_switched(grad_out, *ctx.saved_tensors, GPU)",
    ),
    ("three gradients", "return gv, None, None, gl, ga", "return gv, gl, ga"),
    ("differentiable twice", "    @once_differentiable\n", ""),
    ("kept as attributes", "ctx.save_for_backward(*kept)", "ctx.kept = kept", "*ctx.saved_tensors", "*ctx.kept"),
    ("grad_out forgotten", "lab08.msda_backward(grad_out,", "lab08.msda_backward(torch.ones_like(grad_out),"),
]:
    wrong("10.MSDAFunction", what, FUNCTION, *change, helpers=HELPERS + "GPU = (9, 0)\n")

DOOR = right(
    "10.check_inputs",
    """
def check_inputs(value, spatial_shapes, level_start_index, sampling_locations, attention_weights):
    def must(name, ok, what, got):
        if not ok:
            raise ValueError(f"{name} must be {what}, got {got}.")

    five = dict(value=value, spatial_shapes=spatial_shapes, level_start_index=level_start_index,
                sampling_locations=sampling_locations, attention_weights=attention_weights)
    for name, t in five.items():
        must(name, isinstance(t, torch.Tensor), "a tensor", type(t).__name__)
    for name, t in five.items():
        must(name, t.device == value.device, f"on {value.device}", t.device)
    whole, floats = (torch.int32, torch.int64), (torch.float32, torch.float16, torch.bfloat16)
    must("value", value.dtype in floats, "float32, float16 or bfloat16", value.dtype)
    for name in ("spatial_shapes", "level_start_index"):
        must(name, five[name].dtype in whole, "int32 or int64", five[name].dtype)
    for name in ("sampling_locations", "attention_weights"):
        must(name, five[name].dtype in (value.dtype, torch.float32), "of value's dtype or float32", five[name].dtype)
    shape = {name: tuple(t.shape) for name, t in five.items()}
    must("value", value.dim() == 4, "(B, S, M, D)", shape["value"])
    B, S, M, D = value.shape
    s = shape["sampling_locations"]
    must("sampling_locations", len(s) == 6 and s[-1] == 2 and s[0] == B and s[2] == M, "(B, Q, M, L, K, 2)", s)
    L = s[3]
    must("sampling_locations", L > 0, "of one level or more", s)
    must("attention_weights", shape["attention_weights"] == s[:-1], s[:-1], shape["attention_weights"])
    must("spatial_shapes", shape["spatial_shapes"] == (L, 2), (L, 2), shape["spatial_shapes"])
    must("level_start_index", shape["level_start_index"] == (L,), (L,), shape["level_start_index"])
    for (h, w), start in zip(spatial_shapes.tolist(), level_start_index.tolist()):
        must("spatial_shapes", h > 0 and w > 0, "positive", (h, w))
        must("level_start_index", start >= 0, "0 or more", start)
        must("level_start_index", start + h * w <= S, f"such that {(h, w)} pixels fit into {S}", start)
""",
)
for what, *change in [
    (
        "one message, without the number",
        'f"such that {(h, w)} pixels fit into {S}", start)',
        '"within value", "too much")',
    ),
    ("devices not looked at", "t.device == value.device", "True"),
    ("levels may be empty", "h > 0 and w > 0", "True"),
    ("levels must fill value", "start + h * w <= S", "start + h * w <= S and level_start_index[0] == 0"),
    ("float64 passes", "torch.float16, torch.bfloat16)", "torch.float16, torch.bfloat16, torch.float64)"),
    ("no query is refused", "L > 0,", "L > 0 and s[1] > 0,"),
]:
    wrong("10.check_inputs", what, DOOR, *change)
for what, *change in [
    ("a TypeError", "raise ValueError(", "raise TypeError("),
    ("the message begins otherwise", 'f"{name} must be {what}, got {got}."', 'f"Bad input: {name} must be {what}, got {got}."'),
    ("heads not compared", " and s[2] == M", ""),
    ("locations of any dtype", "five[name].dtype in (value.dtype, torch.float32)", "five[name].dtype.is_floating_point"),
    ("levels must follow each other", "        must(\"level_start_index\", start >= 0", "        must(\"level_start_index\", start == seen, \"the sum of those before\", start)\n        seen += h * w\n        must(\"level_start_index\", start >= 0", "    for (h, w), start in", "    seen = 0\n    for (h, w), start in"),
    ("what it is left out", ", got {got}.", "."),
]:  # fmt: skip
    wrong("10.check_inputs", what, DOOR, *change)
for what, *change in [
    ("gradients turned round", "return gv, None, None, gl, ga", "return gv, None, None, ga, gl"),
    ("autograd on the way there", "return lab05.msda_forward(*kept)", "return lab05.msda_forward(*[t.detach().clone() for t in kept]) * 1.001"),
]:  # fmt: skip
    wrong("10.MSDAFunction", what, FUNCTION, *change, helpers=HELPERS)

right(
    "10.MSDAFunction",
    FUNCTION.replace("return gv, None, None, gl, ga", "return gv, torch.zeros(()), torch.zeros(()), gl, ga"),
    "zeros where nobody asks for a gradient: autograd drops them",
    HELPERS,
)

LAYER = right(
    "10.MyMSDeformAttn",
    """
class MyMSDeformAttn(torch.nn.Module):
    def __init__(self, d_model=256, n_levels=4, n_heads=8, n_points=4):
        super().__init__()
        self.M, self.L, self.K = n_heads, n_levels, n_points
        self.sampling_offsets = torch.nn.Linear(d_model, n_heads * n_levels * n_points * 2)
        self.attention_weights = torch.nn.Linear(d_model, n_heads * n_levels * n_points)
        self.value_proj = torch.nn.Linear(d_model, d_model)
        self.output_proj = torch.nn.Linear(d_model, d_model)
        for layer in (self.sampling_offsets, self.attention_weights):
            torch.nn.init.zeros_(layer.weight)
            torch.nn.init.zeros_(layer.bias)
        angle = torch.arange(n_heads) * (2 * math.pi / n_heads)
        way = torch.stack((angle.cos(), angle.sin()), -1)
        way = way / way.abs().max(-1, keepdim=True).values
        steps = torch.arange(1, n_points + 1)
        bias = way[:, None, None, :] * steps[None, None, :, None].expand(1, n_levels, n_points, 1)
        with torch.no_grad():
            self.sampling_offsets.bias.copy_(bias.flatten())

    def forward(self, query, reference_points, input_flatten, input_spatial_shapes, input_level_start_index, input_padding_mask=None):
        B, Q, C = query.shape
        S = input_flatten.shape[1]
        value = self.value_proj(input_flatten)
        if input_padding_mask is not None:
            value = value.masked_fill(input_padding_mask[..., None], 0.0)
        value = value.view(B, S, self.M, C // self.M)
        offsets = self.sampling_offsets(query).view(B, Q, self.M, self.L, self.K, 2)
        weights = self.attention_weights(query).view(B, Q, self.M, self.L * self.K).softmax(-1).view(B, Q, self.M, self.L, self.K)
        if reference_points.shape[-1] == 2:
            sizes = input_spatial_shapes.flip(-1)
            locations = reference_points[:, :, None, :, None, :] + offsets / sizes[None, None, None, :, None, :]
        else:
            boxes = reference_points[:, :, None, :, None, :]
            locations = boxes[..., :2] + offsets / self.K * boxes[..., 2:] * 0.5
        call = (value, input_spatial_shapes, input_level_start_index, locations, weights)
        check_inputs(*call)
        return self.output_proj(MSDAFunction.apply(*call))
""",
    helpers=HELPERS + DOOR + FUNCTION,
)
for what, *change in [
    ("a softmax for each level", "self.L * self.K).softmax(-1).view(B, Q, self.M, self.L, self.K)", "self.L, self.K).softmax(-1)"),
    ("divided by (H, W)", "input_spatial_shapes.flip(-1)", "input_spatial_shapes"),
    ("masked before the projection", "value = self.value_proj(input_flatten)\n", "value = input_flatten\n", "value = value.masked_fill(input_padding_mask[..., None], 0.0)\n        value = value.view", "value = value.masked_fill(input_padding_mask[..., None], 0.0)\n        value = self.value_proj(value).view"),
    ("the mask turned round", "input_padding_mask[..., None], 0.0", "~input_padding_mask[..., None], 0.0"),
    ("whole boxes", " * 0.5\n", "\n"),
    ("directions of length one", "way / way.abs().max(-1, keepdim=True).values", "way / way.norm(dim=-1, keepdim=True)"),
    ("all points one step away", "torch.arange(1, n_points + 1)", "torch.ones(n_points)"),
    ("no front door", "        check_inputs(*call)\n", ""),
    ("softmax across queries", ".softmax(-1)", ".softmax(1)"),
    ("offsets as they are", " / sizes[None, None, None, :, None, :]", ""),
    ("the mask forgotten", "if input_padding_mask is not None:", "if False:"),
    ("no output projection", "return self.output_proj(MSDAFunction.apply(*call))", "return MSDAFunction.apply(*call)"),
]:  # fmt: skip
    wrong("10.MyMSDeformAttn", what, LAYER, *change, helpers=HELPERS + DOOR + FUNCTION)

REGISTER = right(
    "10.register",
    """
def register(name):
    T = torch.Tensor

    @torch.library.custom_op(name, mutates_args=())
    def forward(value: T, shapes: T, starts: T, locations: T, weights: T) -> T:
        return lab05.msda_forward(value, shapes, starts, locations, weights)

    @forward.register_fake
    def _(value, shapes, starts, locations, weights):
        B, S, M, D = value.shape
        return value.new_empty(B, locations.shape[1], M * D)

    @torch.library.custom_op(f"{name}_backward", mutates_args=())
    def backward(grad: T, value: T, shapes: T, starts: T, locations: T, weights: T) -> tuple[T, T, T]:
        return lab08.msda_backward(grad, value, shapes, starts, locations, weights)

    @backward.register_fake
    def _(grad, value, shapes, starts, locations, weights):
        return value.new_empty(value.shape), locations.new_empty(locations.shape), weights.new_empty(weights.shape)

    def keep(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    def back(ctx, grad):
        gv, gl, ga = backward(grad, *ctx.saved_tensors)
        return gv, None, None, gl, ga

    forward.register_autograd(back, setup_context=keep)
    return forward
""",
    helpers=HELPERS,
)
for what, *change in [
    ("strides of a view promised", "return value.new_empty(value.shape), ", "return torch.empty_like(value), "),
    ("no gradients", "    forward.register_autograd(back, setup_context=keep)\n", ""),
    ("heads not joined in the fake one", "locations.shape[1], M * D)", "locations.shape[1], M, D)"),
    ("no fake backward", "    @backward.register_fake\n", "    # \n"),
    ("the launcher called, not the operator", "gv, gl, ga = backward(grad,", "gv, gl, ga = lab08.msda_backward(grad,"),
    ("the fake one is float32", "value.new_empty(B, locations.shape[1], M * D)", "value.new_empty(B, locations.shape[1], M * D, dtype=torch.float32)"),
    ("grad_loc and grad_attn exchanged", "return gv, None, None, gl, ga", "return gv, None, None, ga, gl"),
]:  # fmt: skip
    wrong("10.register", what, REGISTER, *change, helpers=HELPERS)

right(
    "10.register",
    REGISTER.replace("    return forward\n", "    return lambda *call: forward(*call)\n"),
    "called by another name",
    HELPERS,
)

TILES = right(
    "10.tile_queries",
    """
def tile_queries(H, W, size):
    h = 1 << (size.bit_length() - 1) // 2
    w = size // h
    order = []
    for top in range(0, H, h):
        for left in range(0, W, w):
            for y in range(top, min(top + h, H)):
                order += [y * W + x for x in range(left, min(left + w, W))]
    return torch.tensor(order, dtype=torch.int64)
""",
    "tiles",
)
for what, *change in [
    ("row by row", "    return torch.tensor(order, dtype=torch.int64)", "    return torch.arange(H * W)"),
    ("what hangs over is left out", "range(0, H, h)", "range(0, H - h + 1, h)"),
    ("numbers of H", "y * W + x", "y * H + x"),
    ("where each query goes", "return torch.tensor(order, dtype=torch.int64)", "return torch.tensor(order, dtype=torch.int64).argsort()"),
    ("float32", "dtype=torch.int64", "dtype=torch.float32"),
    ("column by column", "    return torch.tensor(order, dtype=torch.int64)", "    return torch.arange(H * W).reshape(H, W).T.flatten()"),
]:  # fmt: skip
    wrong("10.tile_queries", what, TILES, *change)

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

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

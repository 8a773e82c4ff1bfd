"""Lab 10, Ship it: what is right."""

import torch
from torch import Tensor

from checks.core.exercise import Failed
from msda_core import nn, reference


def _reference_check(*args) -> None:
    return None


class _Given(torch.autograd.Function):
    """A number whose gradient is the given one, strides and all. (Handing it to `torch.autograd.grad` imports SymPy.)"""

    @staticmethod
    def forward(ctx, out, grad_out):
        ctx.grad_out = grad_out
        return out.new_zeros(())

    @staticmethod
    def backward(ctx, _):
        return ctx.grad_out, None


def _grads(out: Tensor, leaves: list[Tensor], grad_out: Tensor) -> list[Tensor]:
    """Gradients, zero where autograd finds no way from a leaf to the output."""
    grads = torch.autograd.grad(_Given.apply(out, grad_out), leaves, allow_unused=True)
    return [torch.zeros_like(leaf) if grad is None else grad for grad, leaf in zip(grads, leaves)]


def _truth(grad_out, value, shapes, starts, locations, attention):
    out = reference.msda(value, shapes, starts, locations, attention)
    return (out, *reference.msda_gradients(value, shapes, starts, locations, attention, grad_out))


# --- MyMSDeformAttn -------------------------------------------------------------------------------------------------

PARAMETERS = [
    f"{layer}.{kind}"
    for layer in ("sampling_offsets", "attention_weights", "value_proj", "output_proj")
    for kind in ("weight", "bias")
]


def _loaded(kind: type, sizes: tuple, parameters: list[Tensor]) -> torch.nn.Module:
    module = kind(*sizes).to(parameters[0].dtype)
    expected = dict(zip(PARAMETERS, parameters))
    mine = {name: tuple(p.shape) for name, p in module.state_dict().items()}
    theirs = {name: tuple(p.shape) for name, p in expected.items()}
    if mine != theirs:
        names = sorted(set(mine.items()) ^ set(theirs.items()))
        raise Failed(
            f"the parameters must be named and shaped as in Deformable DETR; these differ: {names}.",
            key=("state", tuple(names)),
        )
    module.load_state_dict(expected)
    return module.to(parameters[0].device)


def _layer(kind: type, sizes: tuple, parameters: list[Tensor], query, points, pixels, shapes, starts, mask, grad_out):
    """The layer's output, and the gradients of its inputs and parameters, with given parameters."""
    module = _loaded(kind, sizes, parameters)
    leaves = [t.detach().clone().requires_grad_() for t in (query, pixels)]
    out = module(leaves[0], points, leaves[1], shapes, starts, mask)
    grads = _grads(out, [*leaves, *module.parameters()], grad_out)
    return out.detach(), *grads[:2], torch.cat([g.flatten() for g in grads[2:]])


def _their_layer(*args):
    return _layer(nn.MSDeformAttn, *args)

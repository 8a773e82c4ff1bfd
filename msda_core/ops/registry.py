"""The operator in PyTorch's registry, `msda_core::…`: fake kernels, derivatives, vmap.

    forward, backward             the operator and its three gradients
    jvp, second                   how the output, and how the gradients, move along a direction
    nearest, nearest_backward     at the nearest pixel (method="discrete"), and its two gradients

That registration is what `torch.compile`, `torch.export`, `torch.func`, fake tensors and tensor subclasses see. Derivatives are
written once, as the `autograd.Function`s below: second ones follow from `jvp` and `second`, since a second derivative is
symmetric; third ones are refused.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from msda_core import reference
from msda_core.ops import eager, tables

__all__ = ["NAMESPACE", "Attention", "Gradients", "Nearest", "backward", "forward", "nearest"]

#: The package's name: a copy of the package under another name (`integrations.hub`) registers operators of its own.
NAMESPACE = __name__.partition(".")[0]
_library = torch.library.Library(NAMESPACE, "DEF")
_ARGS = "Tensor value, Tensor spatial_shapes, Tensor? level_start_index, Tensor sampling_locations, "
_ARGS += "Tensor attention_weights"
_DIRECTION = "Tensor d_value, Tensor d_locations, Tensor d_weights"
_SUMS = "bool? fp32_grad_accum=None, bool? deterministic=None"
_OPTIONS = f"{_SUMS}, bool? merged=None"
for _signature in (
    f"forward({_ARGS}, {_OPTIONS}) -> Tensor",
    f"backward({_ARGS}, Tensor grad_out, {_OPTIONS}) -> (Tensor, Tensor, Tensor)",
    f"jvp({_ARGS}, {_DIRECTION}) -> Tensor",
    f"second({_ARGS}, Tensor grad_out, {_DIRECTION}, bool? deterministic=None) -> (Tensor, Tensor, Tensor)",
    f"nearest({_ARGS}, {_SUMS}) -> Tensor",
    f"nearest_backward({_ARGS}, Tensor grad_out, {_SUMS}) -> (Tensor, Tensor)",
):
    _library.define(_signature, tags=(torch.Tag.pt2_compliant_tag,))
_ops = getattr(torch.ops, NAMESPACE)
#: The operators that others call by name.
forward, backward, nearest = _ops.forward, _ops.backward, _ops.nearest

# ------------------------------------------------------------------------------------------------------ implementations


def _forward_impl(
    value, spatial_shapes, level_start_index, sampling_locations, attention_weights,
    fp32_grad_accum=None, deterministic=None, merged=None,
):  # fmt: skip
    args = (value, spatial_shapes, level_start_index, sampling_locations, attention_weights)
    if eager.on_reference(value, sampling_locations, attention_weights):
        return reference.msda(*args)
    shapes, starts = tables.on_device(spatial_shapes, level_start_index, value)
    return eager.forward(value, shapes, starts, sampling_locations, attention_weights, merged)


def _backward_impl(
    value, spatial_shapes, level_start_index, sampling_locations, attention_weights, grad_out,
    fp32_grad_accum=None, deterministic=None, merged=None,
):  # fmt: skip
    if eager.on_reference(value, sampling_locations, attention_weights):
        eager.refuse_deterministic_double(value, deterministic)
        return reference.msda_gradients(
            value, spatial_shapes, level_start_index, sampling_locations, attention_weights, grad_out
        )
    shapes, starts = tables.on_device(spatial_shapes, level_start_index, value)
    args = (value, shapes, starts, sampling_locations, attention_weights, grad_out)
    return eager.backward(*args, fp32_grad_accum, deterministic, merged)


def _jvp_impl(value, spatial_shapes, level_start_index, sampling_locations, attention_weights, *direction):
    if eager.on_reference(value, sampling_locations, attention_weights):
        args = (value, spatial_shapes, level_start_index, sampling_locations, attention_weights)
        return reference.msda_jvp(*args, *direction)
    shapes, starts = tables.on_device(spatial_shapes, level_start_index, value)
    return eager.kernels().jvp(value, shapes, starts, sampling_locations, attention_weights, *direction)


def _second_impl(
    value, spatial_shapes, level_start_index, sampling_locations, attention_weights, grad_out,
    d_value, d_locations, d_weights, deterministic=None,
):  # fmt: skip
    direction = (d_value, d_locations, d_weights)
    if eager.on_reference(value, sampling_locations, attention_weights):
        eager.refuse_deterministic_double(value, deterministic)
        args = (value, spatial_shapes, level_start_index, sampling_locations, attention_weights, grad_out)
        return reference.msda_second(*args, *direction)
    shapes, starts = tables.on_device(spatial_shapes, level_start_index, value)
    args = (value, shapes, starts, sampling_locations, attention_weights, grad_out)
    return eager.kernels().second(*args, *direction, eager.is_deterministic(deterministic))


def _nearest_impl(
    value, spatial_shapes, level_start_index, sampling_locations, attention_weights,
    fp32_grad_accum=None, deterministic=None,
):  # fmt: skip
    if eager.on_reference(value, sampling_locations, attention_weights):
        args = (value, spatial_shapes, level_start_index, sampling_locations, attention_weights)
        return reference.nearest(*args)
    shapes, starts = tables.on_device(spatial_shapes, level_start_index, value)
    return eager.kernels().nearest(value, shapes, starts, sampling_locations, attention_weights)


def _nearest_backward_impl(
    value, spatial_shapes, level_start_index, sampling_locations, attention_weights, grad_out,
    fp32_grad_accum=None, deterministic=None,
):  # fmt: skip
    if eager.on_reference(value, sampling_locations, attention_weights):
        eager.refuse_deterministic_double(value, deterministic)
        args = (value, spatial_shapes, level_start_index, sampling_locations, attention_weights, grad_out)
        return reference.nearest_gradients(*args)
    shapes, starts = tables.on_device(spatial_shapes, level_start_index, value)
    args = (value, shapes, starts, sampling_locations, attention_weights, grad_out)
    return eager.kernels().nearest_backward(*args, fp32_grad_accum, eager.is_deterministic(deterministic))


def _fake_out(value, spatial_shapes, level_start_index, sampling_locations, attention_weights, *rest):
    B, _, M, D = value.shape
    return value.new_empty(B, sampling_locations.shape[1], M * D)


def _fake_gradients(value, spatial_shapes, level_start_index, sampling_locations, attention_weights, *rest):
    return tuple(t.new_empty(t.shape) for t in (value, sampling_locations, attention_weights))


def _fake_nearest_gradients(value, spatial_shapes, level_start_index, sampling_locations, attention_weights, *rest):
    return value.new_empty(value.shape), attention_weights.new_empty(attention_weights.shape)


# ------------------------------------------------------------------------------------------------------ derivatives


def _zeros_for(tensors: Sequence[Tensor], direction: Sequence[Tensor | None]) -> list[Tensor]:
    """A direction without gaps: zeros for what rests."""
    return [torch.zeros_like(t) if d is None else d for t, d in zip(tensors, direction)]


class _Function(torch.autograd.Function):
    """A registered operator whose first five arguments are the call's; all tensors are kept for the derivatives.

    EXTRA: how many tensors follow the five; the rest are options.
    """

    generate_vmap_rule = True
    EXTRA = 0

    @classmethod
    def keep(cls, ctx: Any, inputs: tuple, output: Any) -> None:
        kept = inputs[: 5 + cls.EXTRA]
        ctx.save_for_backward(*kept)
        ctx.save_for_forward(*kept)
        ctx.options = inputs[5 + cls.EXTRA :]


class Attention(_Function):
    """`msda_core::forward`. Arguments: the call's five, fp32_grad_accum, deterministic, merged."""

    @staticmethod
    def forward(*args):
        return _ops.forward(*args)

    @staticmethod
    def setup_context(ctx, inputs, output):
        Attention.keep(ctx, inputs, output)

    @staticmethod
    def backward(ctx, grad_out):
        grad_value, grad_loc, grad_attn = Gradients.apply(*ctx.saved_tensors, grad_out, *ctx.options)
        return grad_value, None, None, grad_loc, grad_attn, None, None, None

    @staticmethod
    def jvp(ctx, d_value, _shapes, _starts, d_loc, d_attn, *_options):
        value, shapes, starts, loc, attn = ctx.saved_tensors
        direction = _zeros_for((value, loc, attn), (d_value, d_loc, d_attn))
        return Moved.apply(value, shapes, starts, loc, attn, *direction, ctx.options[1])


eager.backward_with_derivatives = Attention.backward


class Gradients(_Function):
    """`msda_core::backward`. Arguments: the call's five, grad_out, fp32_grad_accum, deterministic, merged."""

    EXTRA = 1

    @staticmethod
    def forward(*args):
        return _ops.backward(*args)

    @staticmethod
    def setup_context(ctx, inputs, output):
        Gradients.keep(ctx, inputs, output)

    @staticmethod
    def backward(ctx, *direction):
        *call, grad_out = ctx.saved_tensors
        direction = _zeros_for((call[0], call[3], call[4]), direction)
        grad_grad_out = Moved.apply(*call, *direction, ctx.options[1])
        grad_value, grad_loc, grad_attn = Second.apply(*call, grad_out, *direction, ctx.options[1])
        return grad_value, None, None, grad_loc, grad_attn, grad_grad_out, None, None, None

    @staticmethod
    def jvp(ctx, d_value, _shapes, _starts, d_loc, d_attn, d_grad_out, *_options):
        *call, grad_out = ctx.saved_tensors
        direction = _zeros_for((call[0], call[3], call[4]), (d_value, d_loc, d_attn))
        moved = Second.apply(*call, grad_out, *direction, ctx.options[1])
        if d_grad_out is None:
            return moved
        return tuple(a + b for a, b in zip(moved, Gradients.apply(*call, d_grad_out, *ctx.options)))


class Moved(_Function):
    """`msda_core::jvp`. Arguments: the call's five, the direction's three, deterministic."""

    EXTRA = 3

    @staticmethod
    def forward(*args):
        return _ops.jvp(*args[:8])

    @staticmethod
    def setup_context(ctx, inputs, output):
        Moved.keep(ctx, inputs, output)

    @staticmethod
    def backward(ctx, grad_out):
        call, direction = ctx.saved_tensors[:5], ctx.saved_tensors[5:]
        grad_value, grad_loc, grad_attn = Second.apply(*call, grad_out, *direction, *ctx.options)
        along = Gradients.apply(*call, grad_out, None, *ctx.options, None)  # linear in the direction
        return grad_value, None, None, grad_loc, grad_attn, *along, None


class Second(_Function):
    """`msda_core::second`. Arguments: the call's five, grad_out, the direction's three, deterministic."""

    EXTRA = 4

    @staticmethod
    def forward(*args):
        return _ops.second(*args)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *grads):
        raise RuntimeError(
            "multi_scale_deformable_attention is differentiable twice, expected a first or second derivative, got a "
            "third one. Is create_graph=True meant on the second backward?"
        )


class Nearest(_Function):
    """`msda_core::nearest`. Arguments: the call's five, fp32_grad_accum, deterministic. Differentiable as often as you like."""

    @staticmethod
    def forward(*args):
        return _ops.nearest(*args)

    @staticmethod
    def setup_context(ctx, inputs, output):
        Nearest.keep(ctx, inputs, output)

    @staticmethod
    def backward(ctx, grad_out):
        grad_value, grad_attn = NearestGradients.apply(*ctx.saved_tensors, grad_out, *ctx.options)
        return grad_value, None, None, None, grad_attn, None, None

    @staticmethod
    def jvp(ctx, d_value, _shapes, _starts, _d_loc, d_attn, *_options):
        value, shapes, starts, loc, attn = ctx.saved_tensors
        d_value, d_attn = _zeros_for((value, attn), (d_value, d_attn))
        moved = Nearest.apply(d_value, shapes, starts, loc, attn, *ctx.options)
        return moved + Nearest.apply(value, shapes, starts, loc, d_attn, *ctx.options)


class NearestGradients(_Function):
    """`msda_core::nearest_backward`. Arguments: the call's five, grad_out, fp32_grad_accum, deterministic."""

    EXTRA = 1

    @staticmethod
    def forward(*args):
        return _ops.nearest_backward(*args)

    @staticmethod
    def setup_context(ctx, inputs, output):
        NearestGradients.keep(ctx, inputs, output)

    @staticmethod
    def backward(ctx, d_value, d_attn):
        value, shapes, starts, loc, attn, grad_out = ctx.saved_tensors
        d_value, d_attn = _zeros_for((value, attn), (d_value, d_attn))
        grad_value, _ = NearestGradients.apply(value, shapes, starts, loc, d_attn, grad_out, *ctx.options)
        _, grad_attn = NearestGradients.apply(d_value, shapes, starts, loc, attn, grad_out, *ctx.options)
        grad_grad_out = Nearest.apply(d_value, shapes, starts, loc, attn, *ctx.options)
        grad_grad_out = grad_grad_out + Nearest.apply(value, shapes, starts, loc, d_attn, *ctx.options)
        return grad_value, None, None, None, grad_attn, grad_grad_out, None, None

    @staticmethod
    def jvp(ctx, d_value, _shapes, _starts, _d_loc, d_attn, d_grad_out, *_options):
        value, shapes, starts, loc, attn, grad_out = ctx.saved_tensors
        d_value, d_attn, d_grad_out = _zeros_for((value, attn, grad_out), (d_value, d_attn, d_grad_out))
        grad_value, _ = NearestGradients.apply(value, shapes, starts, loc, d_attn, grad_out, *ctx.options)
        _, grad_attn = NearestGradients.apply(d_value, shapes, starts, loc, attn, grad_out, *ctx.options)
        along = NearestGradients.apply(value, shapes, starts, loc, attn, d_grad_out, *ctx.options)
        return grad_value + along[0], grad_attn + along[1]


# ------------------------------------------------------------------------------------------------------------- vmap


def _fold(info, in_dims, tensors: Sequence[Tensor]) -> list[Tensor]:
    """vmap's axis becomes part of the batch: (B, …) with an axis of N anywhere → (N*B, …)."""
    folded = []
    for tensor, dim in zip(tensors, in_dims):
        tensor = tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        folded.append(tensor.flatten(0, 1))
    return folded


def _refuse_mapped_tables(in_dims) -> None:
    if in_dims[1] is not None or in_dims[2] is not None:
        raise ValueError(
            "vmap must leave spatial_shapes and level_start_index as they are (in_dims None), got a mapped level "
            "table. Is there one pyramid per example?"
        )


def _vmap_rule(name: str, extra: int):
    """The vmap of an operator whose five arguments are followed by `extra` tensors with a batch, and by options."""

    def rule(info, in_dims, value, shapes, starts, loc, attn, *rest):
        _refuse_mapped_tables(in_dims)
        mapped = (in_dims[0], *in_dims[3 : 5 + extra])
        value, *others = _fold(info, mapped, (value, loc, attn, *rest[:extra]))
        result = getattr(_ops, name)(value, shapes, starts, *others, *rest[extra:])
        if isinstance(result, Tensor):
            return result.unflatten(0, (info.batch_size, -1)), 0
        return tuple(part.unflatten(0, (info.batch_size, -1)) for part in result), (0,) * len(result)

    return rule


for _name, _impl, _fake, _derivative in (
    ("forward", _forward_impl, _fake_out, Attention),
    ("backward", _backward_impl, _fake_gradients, Gradients),
    ("jvp", _jvp_impl, _fake_out, Moved),
    ("second", _second_impl, _fake_gradients, Second),
    ("nearest", _nearest_impl, _fake_out, Nearest),
    ("nearest_backward", _nearest_backward_impl, _fake_nearest_gradients, NearestGradients),
):
    # Every device: those without kernels of their own (MPS, XPU) run the reference.
    _library.impl(_name, _impl, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{_name}", _fake, lib=_library)
    if hasattr(torch.library, "register_vmap"):  # from torch 2.5 on
        torch.library.register_vmap(f"{NAMESPACE}::{_name}", _vmap_rule(_name, _derivative.EXTRA), lib=_library)


def _jvp_backward(ctx, grad_out):
    return Moved.backward(ctx, grad_out)[:8]


def _jvp_setup_context(ctx, inputs, output):
    Moved.setup_context(ctx, (*inputs, None), output)


for _name, _backward, _setup in (
    ("forward", Attention.backward, Attention.setup_context),
    ("backward", Gradients.backward, Gradients.setup_context),
    ("jvp", _jvp_backward, _jvp_setup_context),
    ("second", Second.backward, Second.setup_context),
    ("nearest", Nearest.backward, Nearest.setup_context),
    ("nearest_backward", NearestGradients.backward, NearestGradients.setup_context),
):
    torch.library.register_autograd(f"{NAMESPACE}::{_name}", _backward, setup_context=_setup, lib=_library)

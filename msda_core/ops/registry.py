"""The operator in PyTorch's registry: `msda_core::forward` and `msda_core::backward`, with fake kernels, derivatives and vmap.

That registration is what `torch.compile`, `torch.export`, `torch.func`, fake tensors and tensor subclasses see.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from msda_core import reference
from msda_core.ops import eager, tables

__all__ = ["transformed"]

_library = torch.library.Library("msda_core", "DEF")
_ARGS = "Tensor value, Tensor spatial_shapes, Tensor? level_start_index, Tensor sampling_locations, "
_ARGS += "Tensor attention_weights"
_OPTIONS = "bool? fp32_grad_accum=None, bool? deterministic=None, bool? merged=None"
_library.define(f"forward({_ARGS}, {_OPTIONS}) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
_library.define(
    f"backward({_ARGS}, Tensor grad_out, {_OPTIONS}) -> (Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)


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


# Every device: those without kernels of their own (MPS, XPU) run the reference.
_library.impl("forward", _forward_impl, "CompositeExplicitAutograd")
_library.impl("backward", _backward_impl, "CompositeExplicitAutograd")


@torch.library.register_fake("msda_core::forward", lib=_library)
def _(value, spatial_shapes, level_start_index, sampling_locations, attention_weights, *options):
    B, _, M, D = value.shape
    return value.new_empty(B, sampling_locations.shape[1], M * D)


@torch.library.register_fake("msda_core::backward", lib=_library)
def _(value, spatial_shapes, level_start_index, sampling_locations, attention_weights, grad_out, *options):
    return tuple(t.new_empty(t.shape) for t in (value, sampling_locations, attention_weights))


def _setup_context(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:5])
    ctx.options = inputs[5:]


def _backward_formula(ctx, grad_out):
    grad_value, grad_loc, grad_attn = torch.ops.msda_core.backward(*ctx.saved_tensors, grad_out, *ctx.options)
    return grad_value, None, None, grad_loc, grad_attn, None, None, None


def _twice(ctx, *grads):
    raise RuntimeError(
        "multi_scale_deformable_attention is differentiable once, expected a first derivative, got a second one. "
        "Is create_graph=True meant? The CPU's reference path in eager mode allows what grid_sample allows."
    )


class _Transformed(torch.autograd.Function):
    """The registered operator under `torch.func`, which wants a Function with a setup_context all the way down."""

    generate_vmap_rule = True
    setup_context = staticmethod(_setup_context)

    @staticmethod
    def forward(*args):
        return torch.ops.msda_core.forward(*args)

    @staticmethod
    def backward(ctx, grad_out):
        grad_value, grad_loc, grad_attn = _TransformedBackward.apply(*ctx.saved_tensors, grad_out, *ctx.options)
        return grad_value, None, None, grad_loc, grad_attn, None, None, None


class _TransformedBackward(torch.autograd.Function):
    generate_vmap_rule = True
    backward = staticmethod(_twice)

    @staticmethod
    def forward(*args):
        return torch.ops.msda_core.backward(*args)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass


#: The registered operator inside `torch.func` transforms. Arguments as `eager.attend`.
transformed = _Transformed.apply

torch.library.register_autograd("msda_core::forward", _backward_formula, setup_context=_setup_context, lib=_library)
torch.library.register_autograd("msda_core::backward", _twice, lib=_library)


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


def _vmap_forward(info, in_dims, value, shapes, starts, sampling_locations, attention_weights, *options):
    _refuse_mapped_tables(in_dims)
    value, loc, attn = _fold(info, (in_dims[0], in_dims[3], in_dims[4]), (value, sampling_locations, attention_weights))
    out = torch.ops.msda_core.forward(value, shapes, starts, loc, attn, *options)
    return out.unflatten(0, (info.batch_size, -1)), 0


def _vmap_backward(info, in_dims, value, shapes, starts, sampling_locations, attention_weights, grad_out, *options):
    _refuse_mapped_tables(in_dims)
    value, loc, attn, grad_out = _fold(
        info,
        (in_dims[0], in_dims[3], in_dims[4], in_dims[5]),
        (value, sampling_locations, attention_weights, grad_out),
    )
    grads = torch.ops.msda_core.backward(value, shapes, starts, loc, attn, grad_out, *options)
    return tuple(grad.unflatten(0, (info.batch_size, -1)) for grad in grads), (0, 0, 0)


if hasattr(torch.library, "register_vmap"):  # from torch 2.5 on
    torch.library.register_vmap("msda_core::forward", _vmap_forward, lib=_library)
    torch.library.register_vmap("msda_core::backward", _vmap_backward, lib=_library)

"""`deformable_attention`: the operator from what a module's linear layers give, fused where that helps.

Locations and weights are then never written. Everywhere else, float64, the CPU, transforms, `torch.compile` (which fuses by itself),
deterministic sums, it is `composed`: softmax, reference plus offset, the operator.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from msda_core.ops import eager, tables
from msda_core.ops.api import multi_scale_deformable_attention
from msda_core.shapes import Levels, Starts

__all__ = ["at_least_float32", "composed", "deformable_attention", "located", "somewhere", "width_height"]


def deformable_attention(
    value: Tensor,
    spatial_shapes: Levels,
    level_start_index: Starts,
    reference_points: Tensor,
    sampling_offsets: Tensor,
    attention_logits: Tensor,
    *,
    fp32_grad_accum: bool | None = None,
    deterministic: bool | None = None,
) -> Tensor:
    """Sum bilinear samples around reference points, weighed by a softmax over all points of a query and head.

    Args:
        value, spatial_shapes, level_start_index, fp32_grad_accum, deterministic: as `multi_scale_deformable_attention`.
        reference_points: (B, Q, L, 2), points (x, y) in [0, 1], or (B, Q, L, 4), boxes (x, y, w, h). One with a NaN or an infinity
            sees nothing.
        sampling_offsets: (B, Q, M, L, K, 2), in pixels of the level from a point; from a box's center, K steps are half a box.
        attention_logits: (B, Q, M, L, K).

    Returns:
        (B, Q, M*D), in value's dtype; differentiable in all four tensors, as often as `multi_scale_deformable_attention`.

    Raises:
        ValueError: as `multi_scale_deformable_attention`, or reference_points do not fit the offsets.

    Source: Deformable DETR (Zhu et al., 2021), section 4.1 and its released module.
    """
    expected = (*sampling_offsets.shape[:2], sampling_offsets.shape[-3])
    if reference_points.dim() != 4 or tuple(reference_points.shape[:3]) != expected:
        raise ValueError(
            f"reference_points must be (B, Q, L, 2 or 4) with (B, Q, L) = {expected}, "
            f"got {tuple(reference_points.shape)}. Is the level axis missing?"
        )
    if reference_points.shape[-1] not in (2, 4):
        raise ValueError(
            f"reference_points must end in 2 (x, y) or 4 (x, y, w, h), got {reference_points.shape[-1]}. "
            "Do they carry a score?"
        )
    args = (value, spatial_shapes, level_start_index, reference_points, sampling_offsets, attention_logits)
    if _may_fuse(value, reference_points, sampling_offsets, attention_logits, deterministic):
        tables.check_once(value, spatial_shapes, level_start_index, sampling_offsets, attention_logits)
        shapes, starts = tables.on_device(spatial_shapes, level_start_index, value)
        call = _kernels().Raw(
            value, shapes, starts, at_least_float32(reference_points), sampling_offsets, attention_logits
        )
        helps, levels = _way(call)
        if helps:
            return _Fused.apply(*call, levels, fp32_grad_accum)
    return composed(*args, fp32_grad_accum=fp32_grad_accum, deterministic=deterministic)


def composed(
    value: Tensor, spatial_shapes: Levels, level_start_index: Starts,
    reference_points: Tensor, sampling_offsets: Tensor, attention_logits: Tensor,
    fp32_grad_accum: bool | None = None, deterministic: bool | None = None,
) -> Tensor:  # fmt: skip
    """`deformable_attention`, piece by piece."""
    weights = attention_logits.flatten(3).softmax(-1).unflatten(-1, attention_logits.shape[3:])
    locations = located(reference_points, at_least_float32(sampling_offsets), spatial_shapes)
    return multi_scale_deformable_attention(
        value, spatial_shapes, level_start_index, locations, weights,
        fp32_grad_accum=fp32_grad_accum, deterministic=deterministic,
    )  # fmt: skip


def located(reference_points: Tensor, offsets: Tensor, spatial_shapes: Levels) -> Tensor:
    """Sampling locations (B, Q, M, L, K, 2) from offsets likewise and reference points (B, Q, L, 2 or 4).

    Two dims: a point (x, y); offsets are pixels of their level. Four: a box (x, y, w, h); K steps of offset are
    half a box.
    """
    reference = somewhere(at_least_float32(reference_points))[:, :, None, :, None]
    if reference_points.shape[-1] == 2:
        return reference + offsets / width_height(spatial_shapes, offsets)[:, None]
    return reference[..., :2] + offsets / offsets.shape[-2] * reference[..., 2:] * 0.5


def at_least_float32(tensor: Tensor) -> Tensor:
    """Float32, or float64 as it is."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def somewhere(reference: Tensor) -> Tensor:
    """Reference points (…, 2 or 4); one with a NaN or an infinity, as a fully padded level makes them, goes far outside.

    There nothing is sampled, as it should be, and no gradient is 0 * inf.
    """
    finite = reference.isfinite().all(-1, keepdim=True)
    return torch.where(finite, reference, 0.0) - 1e4 * (~finite & _is_center(reference))


def _is_center(reference: Tensor) -> Tensor:
    return torch.arange(reference.shape[-1], device=reference.device) < 2


def width_height(spatial_shapes: Levels, like: Tensor) -> Tensor:
    """(L, 2), (W, H) of each level, to divide pixel offsets (…, L, K, 2) by once a K axis is put in."""
    if not isinstance(spatial_shapes, Tensor):
        spatial_shapes = torch.tensor([list(level) for level in spatial_shapes], device=like.device)
    return spatial_shapes.to(device=like.device, dtype=like.dtype).flip(-1)


# -------------------------------------------------------------------------------------------------------------- fused


def _kernels() -> Any:
    from msda_core.kernels import fused

    return fused


def _may_fuse(value: Tensor, reference: Tensor, offsets: Tensor, logits: Tensor, deterministic: bool | None) -> bool:
    return (
        not torch.compiler.is_compiling()
        and eager.is_plain(value, offsets, logits)
        and eager.is_plain(value, reference, logits)
        and not eager.on_reference(value, offsets, logits)
        and reference.dtype is not torch.float64
        and not (reference.requires_grad and reference.shape[-1] == 4)
        and forward_ad._current_level < 0
        and not eager.is_deterministic(deterministic)
    )


def _way(call: Any) -> tuple[bool, tuple[tuple[int, int], ...] | None]:
    """Is a call fused, and on which levels do the merged kernels run it?"""
    value, shapes, starts, reference, offsets, logits = call
    if not _kernels().suits(call):
        return False, None
    levels = eager.levels_to_merge(value, shapes, starts, offsets, logits, eager.merging_wish())
    if levels:
        return reference.shape[-1] == 2 and len(levels) <= 4, levels
    return _kernels().helps(call), None


class _Fused(torch.autograd.Function):
    """Arguments: value, shapes, starts, reference, offsets, logits, levels, fp32_grad_accum."""

    @staticmethod
    def forward(ctx, value, shapes, starts, reference, offsets, logits, levels, fp32_grad_accum):
        call = _kernels().Raw(value, shapes, starts, reference, offsets, logits)
        out, lse = _kernels().fused_forward(call, levels)
        ctx.save_for_backward(*call, lse)
        ctx.options = levels, fp32_grad_accum
        return out

    @staticmethod
    def backward(ctx, grad_out):
        *tensors, lse = ctx.saved_tensors
        levels, fp32_grad_accum = ctx.options
        call = _kernels().Raw(*tensors)
        if torch.is_grad_enabled():  # create_graph=True: gradients with derivatives of their own
            wanted = [n for n, needed in enumerate(ctx.needs_input_grad) if needed]
            out = composed(*call, fp32_grad_accum=fp32_grad_accum)
            grads = dict(zip(wanted, torch.autograd.grad(out, [call[n] for n in wanted], grad_out, create_graph=True)))
            return tuple(grads.get(n) for n in range(8))
        about_reference = ctx.needs_input_grad[3]
        grad_value, grad_offsets, grad_logits = _kernels().fused_backward(
            call, lse, grad_out, levels, fp32_grad_accum, torch.float32 if about_reference else None
        )
        grad_reference = None
        if about_reference:  # a step of one pixel is one of 1 / (W, H) for the point
            grad_reference = grad_offsets.sum((2, 4)) * width_height(call.shapes, grad_offsets)
        return grad_value, None, None, grad_reference, grad_offsets.to(call.offsets.dtype), grad_logits, None, None

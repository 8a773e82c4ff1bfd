"""`multi_scale_deformable_attention`: one function for every device, dtype and mode of PyTorch.

CUDA tensors run the Triton kernels, CPU tensors and float64 the vectorised reference. Plain eager calls take the fast path
(`eager`), everything else goes through PyTorch's dispatcher (`registry`).
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad

from msda_core import reference
from msda_core.ops import eager, registry, tables
from msda_core.shapes import Levels, Starts, check_dims

__all__ = ["multi_scale_deformable_attention"]


def multi_scale_deformable_attention(
    value: Tensor,
    spatial_shapes: Levels,
    level_start_index: Starts,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    im2col_step: int | None = None,
    *,
    points_per_level: Sequence[int] | None = None,
    method: str = "default",
    fp32_grad_accum: bool | None = None,
    deterministic: bool | None = None,
) -> Tensor:
    """Sum bilinear samples of a feature pyramid, each weighed by an attention weight.

    A drop-in for mmcv's `MultiScaleDeformableAttnFunction.apply`, in its argument order.

    Args:
        value: (B, S, M, D): float64, float32, float16 or bfloat16.
        spatial_shapes: (L, 2), (H, W) of each level; a list, or int32 or int64 on the CPU or on value's device.
        level_start_index: (L,), first pixel of each level in S, likewise; None for levels that lie one after another.
        sampling_locations: (B, Q, M, L, K, 2), (x, y) in [0, 1]. Outside, NaN and infinity contribute zero. May be
            float32 beside a 16-bit value: bfloat16 cannot tell a third of a pixel at W = 167.
        attention_weights: (B, Q, M, L, K), any of the float dtypes.
        im2col_step: ignored; the CUDA operator of Deformable DETR cut the batch by it.
        points_per_level: K of each level where they differ, as in D-FINE ([3, 6, 3]); locations are then (B, Q, M, P, 2) and
            weights (B, Q, M, P), the points level by level, P their sum.
        method: "default" samples between four pixels; "discrete", of RT-DETRv2, takes the pixel (trunc(x*W + 0.5),
            trunc(y*H + 0.5)), outside the image the nearest one of its edge, and has no gradient in the locations.
        fp32_grad_accum: sum the gradient of a 16-bit value in float32, then round once. None: where the GPU cannot add the
            dtype natively (bfloat16 below SM 9.0; either, if D is odd), and where more than 8 contributions meet in a
            pixel on average (4*Q*L*K > 8*S), but for encoders that merge, which sum most of them in float32 anyway. Queries
            that crowd on few pixels are not seen: `kernels/LOG.md` has what that costs.
        deterministic: a backward that gives the same bits every time, at about twice the memory of a float32 one.
            Sums are integers, for each batch item, head and channel in a unit of its own: at most 2^-60 of its largest
            contribution times Q*L*K. What is below the unit is lost, and an infinity or a NaN spoils its own channel alone.
            None: as `torch.use_deterministic_algorithms` says when it runs.

    Returns:
        (B, Q, M*D), in value's dtype. Arithmetic and sums are float32 (float64 for float64). Differentiable twice, in
        reverse and in forward mode (`torch.func.hessian`), as often as you like with method="discrete"; once inside
        `torch.compile`. One derivative more is a RuntimeError.

    Raises:
        ValueError: names what was expected, what came, and the likely cause. A level table on the GPU is read by the host where
            its address is new, which waits; another tensor there later is checked on the device, without waiting: a level that
            does not lie inside value then contributes zero, and the next call raises. A CUDA graph does as much at each
            replay, silently, for a table that was not seen before the capture; one that was must not change between replays.

    Source: Deformable DETR (Zhu et al., 2021), Eq. 3.
    """
    if method not in ("default", "discrete"):
        raise ValueError(f"method must be 'default' or 'discrete', got {method!r}. Is it grid_sample's mode?")
    args = (value, spatial_shapes, level_start_index, sampling_locations, attention_weights)
    points = None if points_per_level is None else tuple(points_per_level)
    compiling = torch.compiler.is_compiling()
    if compiling:
        check_dims(*args, points)
    else:
        tables.check_once(*args, points)
    if points is not None:  # a ragged call: one level for each point, and one point for each level
        sampling_locations, attention_weights = sampling_locations.unsqueeze(4), attention_weights.unsqueeze(4)
    sums = (fp32_grad_accum, deterministic)

    if not compiling and eager.is_plain(value, sampling_locations, attention_weights) and value.device.type != "meta":
        inputs = (sampling_locations, attention_weights)
        if eager.on_reference(value, *inputs):
            eager.refuse_deterministic_double(value, deterministic)
            levels, first = tables.on_host(spatial_shapes, level_start_index, value.shape[1], points)
            if method == "discrete":
                return reference.nearest(value, levels, first, *inputs)
            return reference.msda_checked(value, levels, first, *inputs)
        shapes, starts = tables.on_device(spatial_shapes, level_start_index, value, points)
        if method == "discrete":
            return registry.Nearest.apply(value, shapes, starts, *inputs, *sums)
        if forward_ad._current_level >= 0:
            return registry.Attention.apply(value, shapes, starts, *inputs, *sums, eager.merging_wish())
        tracked = value.requires_grad or sampling_locations.requires_grad or attention_weights.requires_grad
        if tracked and torch.is_grad_enabled():
            return eager.attend(value, shapes, starts, *inputs, *sums, eager.merging_wish())
        return eager.forward(value, shapes, starts, *inputs)

    tables_in_graph = tables.traceable(spatial_shapes, level_start_index, value, points)
    traced = (value, *tables_in_graph, sampling_locations, attention_weights, *sums)
    transformed = not compiling and torch._C._are_functorch_transforms_active()
    if method == "discrete":
        return registry.Nearest.apply(*traced) if transformed else registry.nearest(*traced)
    if compiling:
        return registry.forward(*traced)
    return (registry.Attention.apply if transformed else registry.forward)(*traced, eager.merging_wish())

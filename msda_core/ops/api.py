"""`multi_scale_deformable_attention`: one function for every device, dtype and mode of PyTorch.

CUDA tensors run the Triton kernels, CPU tensors and float64 the vectorised reference. Plain eager calls take the fast path
(`eager`), everything else goes through PyTorch's dispatcher (`registry`).
"""

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
        fp32_grad_accum: sum the gradient of a 16-bit value in float32, then round once. None: only where the GPU
            cannot add the dtype natively (bfloat16 below SM 9.0; either, if D is odd).
        deterministic: a backward that gives the same bits every time, at about twice the memory of a float32 one.
            None: as `torch.use_deterministic_algorithms` says when it runs.

    Returns:
        (B, Q, M*D), in value's dtype. Arithmetic and sums are float32 (float64 for float64). Differentiable once; on
        the CPU as often as `grid_sample` is.

    Raises:
        ValueError: names what was expected, what came, and the likely cause. The values of a level table on the GPU are
            read once per table (address and version), not on every call, and never while a CUDA graph is captured.

    Source: Deformable DETR (Zhu et al., 2021), Eq. 3.
    """
    args = (value, spatial_shapes, level_start_index, sampling_locations, attention_weights)
    if torch.compiler.is_compiling():
        check_dims(*args)
        shapes, starts = tables.traceable(spatial_shapes, level_start_index, value)
        return torch.ops.msda_core.forward(
            value, shapes, starts, sampling_locations, attention_weights, fp32_grad_accum, deterministic
        )

    tables.check_once(*args)
    if eager.is_plain(value, sampling_locations, attention_weights) and value.device.type != "meta":
        if eager.on_reference(value, sampling_locations, attention_weights):
            eager.refuse_deterministic_double(value, deterministic)
            levels, first = tables.on_host(spatial_shapes, level_start_index, value.shape[1])
            return reference.msda_checked(value, levels, first, sampling_locations, attention_weights)
        shapes, starts = tables.on_device(spatial_shapes, level_start_index, value)
        tracked = value.requires_grad or sampling_locations.requires_grad or attention_weights.requires_grad
        if (tracked and torch.is_grad_enabled()) or forward_ad._current_level >= 0:
            return eager.attend(
                value, shapes, starts, sampling_locations, attention_weights,
                fp32_grad_accum, deterministic, eager.merging_wish(),
            )  # fmt: skip
        return eager.forward(value, shapes, starts, sampling_locations, attention_weights)

    shapes, starts = tables.traceable(spatial_shapes, level_start_index, value)
    operator = registry.transformed if torch._C._are_functorch_transforms_active() else torch.ops.msda_core.forward
    return operator(
        value, shapes, starts, sampling_locations, attention_weights,
        fp32_grad_accum, deterministic, eager.merging_wish(),
    )  # fmt: skip

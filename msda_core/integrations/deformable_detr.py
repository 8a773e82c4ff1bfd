"""Deformable DETR's names, and its compiled extension without compiling it.

Trees that descend from Deformable DETR (DINO, Mask2Former, detrex, Grounding DINO, …) build a CUDA extension named
`MultiScaleDeformableAttention`; mmcv has the same two functions in `mmcv._ext`. After `install()`, their own Python runs on
`msda_core`:

    from msda_core.integrations import deformable_detr
    deformable_detr.install()                     # before the tree's own imports
    from models.ops.modules import MSDeformAttn   # theirs, unchanged

Or take the names from here: `MSDeformAttn`, `MSDeformAttnFunction`, `ms_deform_attn_core_pytorch`. Masks are as in the original:
True where a pixel is padding.
"""

import sys
import types

from torch import Tensor

from msda_core.nn import MSDeformAttn
from msda_core.ops import multi_scale_deformable_attention, registry
from msda_core.shapes import Levels, Starts

__all__ = [
    "MSDeformAttn",
    "MSDeformAttnFunction",
    "install",
    "ms_deform_attn_backward",
    "ms_deform_attn_core_pytorch",
    "ms_deform_attn_forward",
]


class MSDeformAttnFunction:
    """Deformable DETR's autograd function, of which only `apply` is used."""

    @staticmethod
    def apply(
        value: Tensor,
        value_spatial_shapes: Levels,
        value_level_start_index: Starts,
        sampling_locations: Tensor,
        attention_weights: Tensor,
        im2col_step: int | None = None,
    ) -> Tensor:
        """`multi_scale_deformable_attention` in Deformable DETR's and mmcv's keyword names: (B, Q, M*D)."""
        return multi_scale_deformable_attention(
            value, value_spatial_shapes, value_level_start_index, sampling_locations, attention_weights, im2col_step
        )


def ms_deform_attn_core_pytorch(
    value: Tensor, value_spatial_shapes: Levels, sampling_locations: Tensor, attention_weights: Tensor
) -> Tensor:
    """The operator in the signature of Deformable DETR's check, whose levels lie one after another: (B, Q, M*D)."""
    return multi_scale_deformable_attention(value, value_spatial_shapes, None, sampling_locations, attention_weights)


def ms_deform_attn_forward(
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    sampling_loc: Tensor,
    attn_weight: Tensor,
    im2col_step: int = 64,
) -> Tensor:
    """The extension's forward, below autograd: (B, Q, M*D)."""
    return registry.forward(value, spatial_shapes, level_start_index, sampling_loc, attn_weight)


def ms_deform_attn_backward(
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    sampling_loc: Tensor,
    attn_weight: Tensor,
    grad_output: Tensor,
    *outputs: Tensor | int,
    im2col_step: int = 64,
) -> list[Tensor] | None:
    """The extension's backward.

    Args:
        outputs: as Deformable DETR calls it, im2col_step; as mmcv does, the three gradients to fill and im2col_step.

    Returns:
        The gradients of value, sampling_loc and attn_weight; None where they were to be filled.
    """
    args = (value, spatial_shapes, level_start_index, sampling_loc, attn_weight, grad_output)
    grads = registry.backward(*args)
    fill = [tensor for tensor in outputs if isinstance(tensor, Tensor)]
    if not fill:
        return list(grads)
    for tensor, grad in zip(fill, grads):
        tensor.copy_(grad)
    return None


def install(name: str = "MultiScaleDeformableAttention") -> None:
    """Put the extension's two functions where a tree imports them from.

    Args:
        name: the extension's name: "MultiScaleDeformableAttention" in Deformable DETR's descendants, "mmcv._ext" in mmcv,
            whose other operators then stay missing.

    Raises:
        ValueError: an extension of that name has been imported already.
    """
    before = sys.modules.get(name)
    if before is not None and not hasattr(before, "_msda_core"):
        raise ValueError(
            f"the extension must not be loaded yet, expected no module named {name}, got {before}. "
            "Was it built after all, or is the install too late?"
        )
    module = types.ModuleType(name, "msda_core's operator under the names of the compiled extension.")
    vars(module).update(
        ms_deform_attn_forward=ms_deform_attn_forward, ms_deform_attn_backward=ms_deform_attn_backward, _msda_core=True
    )
    sys.modules[name] = module

"""mmcv's and detrex's names: the function, its check, and the module with their arguments.

    from msda_core.integrations.mmcv import MultiScaleDeformableAttention, MultiScaleDeformableAttnFunction

Where mmcv is installed and only its extension does not build, `deformable_detr.install("mmcv._ext")` keeps mmcv's own Python.
"""

from typing import Any

import torch
from torch import Tensor, nn

from msda_core.integrations.deformable_detr import MSDeformAttnFunction, ms_deform_attn_core_pytorch
from msda_core.nn import MSDeformAttn
from msda_core.shapes import Levels, Starts

__all__ = [
    "MultiScaleDeformableAttention",
    "MultiScaleDeformableAttnFunction",
    "multi_scale_deformable_attn_pytorch",
]

MultiScaleDeformableAttnFunction = MSDeformAttnFunction
multi_scale_deformable_attn_pytorch = ms_deform_attn_core_pytorch


class MultiScaleDeformableAttention(MSDeformAttn):
    """The attention layer of mmcv and detrex: `MSDeformAttn` with a residual, dropout, and the query first by default.

    State dict as in mmcv, detrex and Deformable DETR: sampling_offsets, attention_weights, value_proj, output_proj.

    Args:
        embed_dims: channels C (detrex: embed_dim); num_heads: M; num_levels: L; num_points: K.
        im2col_step: ignored (detrex: img2col_step); dropout: of the result, before the residual.
        batch_first: whether tensors are (B, Q, C), and not (Q, B, C).
        norm_cfg, init_cfg: ignored; value_proj_ratio: only 1.0.
    """

    def __init__(
        self,
        embed_dims: int = 256,
        num_heads: int = 8,
        num_levels: int = 4,
        num_points: int = 4,
        im2col_step: int = 64,
        dropout: float = 0.1,
        batch_first: bool = False,
        norm_cfg: Any = None,
        init_cfg: Any = None,
        value_proj_ratio: float = 1.0,
        *,
        embed_dim: int | None = None,
        img2col_step: int | None = None,
    ) -> None:
        if value_proj_ratio != 1.0:
            raise ValueError(f"value_proj_ratio must be 1.0, got {value_proj_ratio}. Is it a config of another layer?")
        super().__init__(embed_dim or embed_dims, num_levels, num_heads, num_points)
        self.batch_first = batch_first
        self.dropout = nn.Dropout(dropout)

    def forward(  # type: ignore[override]
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        identity: Tensor | None = None,
        query_pos: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        reference_points: Tensor | None = None,
        spatial_shapes: Levels | None = None,
        level_start_index: Starts = None,
        **ignored: Any,
    ) -> Tensor:
        """
        Args:
            query: (Q, B, C), or (B, Q, C) if batch_first; query_pos: likewise, added to it; identity: likewise, what the
                result is added to, None for query as it came.
            key: ignored; value: (S, B, C), or (B, S, C) if batch_first; None for query.
            key_padding_mask: bool (B, S), True where a pixel is padding and must not be seen.
            reference_points: (B, Q, L, 2 or 4); spatial_shapes: (L, 2); level_start_index: (L,), or None.

        Returns:
            like query.
        """
        if reference_points is None or spatial_shapes is None:
            missing = "reference_points" if reference_points is None else "spatial_shapes"
            raise ValueError(f"{missing} must be given, got None. Is it a call of plain attention?")
        value = query if value is None else value
        identity = query if identity is None else identity
        query = query if query_pos is None else query + query_pos
        if not self.batch_first:
            query, value = query.transpose(0, 1), value.transpose(0, 1)
        mask = None if key_padding_mask is None else key_padding_mask.to(torch.bool)
        out = super().forward(query, reference_points, value, spatial_shapes, level_start_index, mask)
        return self.dropout(out if self.batch_first else out.transpose(0, 1)) + identity

"""The modules people use, on `msda_core.ops`: Deformable DETR's attention, and BEVFormer's three.

Every module computes sampling locations in float32 at least, also where its parameters are 16-bit: a float16 location
misses by up to 0.04 pixels at W = 167, a bfloat16 one by a third of a pixel.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from msda_core.ops import Levels, Starts, deformable_attention, multi_scale_deformable_attention
from msda_core.ops.raw import at_least_float32, somewhere, width_height

__all__ = ["MSDeformAttn", "MSDeformAttn3D", "SpatialCrossAttention", "TemporalSelfAttention"]


class _Linear(nn.Linear):
    """A linear layer that knows how it starts: whoever resets a model's modules, in any order, gets the same beginning."""

    def __init__(self, inputs: int, outputs: int, start: Callable[[nn.Linear], None]):
        super().__init__(inputs, outputs)
        self._start = start

    def reset_parameters(self) -> None:
        """As the layer around it wants it; while it is made, as `torch.nn.Linear` does."""
        if "_start" in vars(self):
            with torch.no_grad():
                self._start(self)
        else:
            super().reset_parameters()


def _zero(layer: nn.Linear) -> None:
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)


def _xavier(layer: nn.Linear) -> None:
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)


def _ring(layer: nn.Linear, heads: int, levels: int, points: int) -> None:
    """Head m looks in direction 2*pi*m/M, point k at k+1 pixels' distance, whatever the query."""
    angle = torch.arange(heads) * (2 * math.pi / heads)
    ring = torch.stack([angle.cos(), angle.sin()], -1)
    ring = ring / ring.abs().amax(-1, keepdim=True)  # onto a square: diagonal heads reach the corners
    bias = ring[:, None, None] * torch.arange(1, points + 1)[:, None]  # (M, 1, K, 2)
    layer.bias.copy_(bias.expand(heads, levels, points, 2).flatten())
    nn.init.zeros_(layer.weight)


class _DeformableAttention(nn.Module):
    """What the layers share: projections, their initialisation, offsets and weights predicted from the query.

    `queue` values are attended at once, each with offsets and weights of its own, predicted from `queue` queries.
    fp32_grad_accum and deterministic, of every layer here, say how the gradient of value is summed, as in
    `multi_scale_deformable_attention`; they are attributes, too, and may be changed at any time.
    """

    def __init__(
        self, d_model: int, n_levels: int, n_heads: int, n_points: int, queue: int = 1, output_proj: bool = True,
        *, fp32_grad_accum: bool | None = None, deterministic: bool | None = None,
    ):  # fmt: skip
        super().__init__()
        self.fp32_grad_accum, self.deterministic = fp32_grad_accum, deterministic
        if d_model % n_heads:
            raise ValueError(
                f"d_model must be divisible by n_heads, got d_model = {d_model} and n_heads = {n_heads}. "
                "Are the two arguments swapped?"
            )
        self.d_model, self.n_levels, self.n_heads, self.n_points, self.queue = (
            d_model, n_levels, n_heads, n_points, queue
        )  # fmt: skip
        points = queue * n_heads * n_levels * n_points
        ring = functools.partial(_ring, heads=n_heads, levels=queue * n_levels, points=n_points)
        self.sampling_offsets = _Linear(queue * d_model, 2 * points, ring)
        self.attention_weights = _Linear(queue * d_model, points, _zero)
        self.value_proj = _Linear(d_model, d_model, _xavier)
        self.output_proj: Any = _Linear(d_model, d_model, _xavier) if output_proj else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """At first, head m looks in direction 2*pi*m/M, point k at k+1 pixels' distance, and all weigh the same."""
        for layer in (self.sampling_offsets, self.attention_weights, self.value_proj, self.output_proj):
            if layer is not None:
                layer.reset_parameters()

    def attend(
        self, value: Tensor, spatial_shapes: Levels, level_start_index: Starts,
        reference_points: Tensor, offsets: Tensor, logits: Tensor,
    ) -> Tensor:  # fmt: skip
        """The operator around reference points, with the layer's switches: (B, Q, M*D)."""
        return deformable_attention(
            value, spatial_shapes, level_start_index, reference_points, offsets, logits,
            fp32_grad_accum=self.fp32_grad_accum, deterministic=self.deterministic,
        )  # fmt: skip

    def project_value(self, value: Tensor, padding_mask: Tensor | None) -> Tensor:
        """(B, S, C) → (B, S, M, D), padding zeroed."""
        if value.dim() != 3 or value.shape[-1] != self.d_model:
            raise ValueError(
                f"value must be (B, S, {self.d_model}), got {tuple(value.shape)}. Is it channels-first, or (S, B, C)?"
            )
        value_proj = self.value_proj(value)
        if padding_mask is not None:
            if padding_mask.shape != value.shape[:2] or padding_mask.dtype != torch.bool:
                raise ValueError(
                    f"padding_mask must be bool (B, S) = {tuple(value.shape[:2])}, True where padded, "
                    f"got {padding_mask.dtype} {tuple(padding_mask.shape)}. Is it one mask per level?"
                )
            value_proj = value_proj.masked_fill(padding_mask[..., None], 0)
        return value_proj.unflatten(-1, (self.n_heads, -1))

    def predict(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """What the linear layers give: offsets in pixels (B, Q, M, queue, L, K, 2), and logits (B, Q, M, queue, L, K)."""
        sizes = (self.n_heads, self.queue, self.n_levels, self.n_points)
        offsets = self.sampling_offsets(query).unflatten(-1, (*sizes, 2))
        return offsets, self.attention_weights(query).unflatten(-1, sizes)


class MSDeformAttn(_DeformableAttention):
    """Deformable DETR's multi-scale deformable attention.

    State dict: sampling_offsets, attention_weights, value_proj, output_proj, shaped as in Deformable DETR.

    Args:
        d_model: channels C; n_levels: L; n_heads: M; n_points: K, per level and head.

    Source: Deformable DETR (Zhu et al., 2021), section 4.1 and its released module.
    """

    def __init__(self, d_model: int = 256, n_levels: int = 4, n_heads: int = 8, n_points: int = 4, **sums: Any):
        super().__init__(d_model, n_levels, n_heads, n_points, **sums)

    def forward(
        self,
        query: Tensor,
        reference_points: Tensor,
        input_flatten: Tensor,
        input_spatial_shapes: Levels,
        input_level_start_index: Starts = None,
        input_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """
        Args:
            query: (B, Q, C).
            reference_points: (B, Q, L, 2), points (x, y) in [0, 1], or (B, Q, L, 4), boxes (x, y, w, h).
            input_flatten: (B, S, C), the levels' pixels one level after another.
            input_spatial_shapes: (L, 2), (H, W) of each level.
            input_level_start_index: (L,), or None.
            input_padding_mask: bool (B, S), True where a pixel is padding and must not be seen.

        Returns:
            (B, Q, C).
        """
        value = self.project_value(input_flatten, input_padding_mask)
        offsets, logits = (t.squeeze(3) for t in self.predict(query))
        out = self.attend(value, input_spatial_shapes, input_level_start_index, reference_points, offsets, logits)
        return self.output_proj(out)


class MSDeformAttn3D(_DeformableAttention):
    """Deformable attention for a query that is a pillar: Z anchors, and point p starts from anchor p % Z.

    State dict: sampling_offsets, attention_weights, value_proj, as in BEVFormer and Simple-BEV, where the projection
    of the output belongs to the layer around it; `output_proj=True` adds one here.

    Args:
        d_model: channels C; n_levels: L; n_heads: M; n_points: K, per level and head, a multiple of Z.

    Source: BEVFormer (Li et al., 2022), section 3.3 and its released MSDeformableAttention3D.
    """

    def __init__(
        self, d_model: int = 256, n_levels: int = 4, n_heads: int = 8, n_points: int = 8, output_proj: bool = False,
        **sums: Any,
    ):  # fmt: skip
        super().__init__(d_model, n_levels, n_heads, n_points, output_proj=output_proj, **sums)

    def forward(
        self,
        query: Tensor,
        reference_points: Tensor,
        input_flatten: Tensor,
        input_spatial_shapes: Levels,
        input_level_start_index: Starts = None,
        input_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """As `MSDeformAttn.forward`, but reference_points are (B, Q, Z, 2): a pillar's anchors (x, y) in the image."""
        if reference_points.dim() != 4 or reference_points.shape[-1] != 2:
            raise ValueError(
                f"reference_points must be (B, Q, Z, 2), got {tuple(reference_points.shape)}. "
                "Are they still in 3-D, before the camera?"
            )
        Z = reference_points.shape[2]
        if Z == 0 or self.n_points % Z:
            raise ValueError(
                f"n_points must be a multiple of the Z anchors of reference_points, got n_points = {self.n_points} "
                f"and Z = {Z}. Is the axis of levels where the anchors should be?"
            )
        value = self.project_value(input_flatten, input_padding_mask)
        offsets, logits = (t.squeeze(3) for t in self.predict(query))
        offsets = at_least_float32(offsets)
        # point p starts from anchor p % Z
        anchors = somewhere(at_least_float32(reference_points)).repeat(1, 1, self.n_points // Z, 1)
        out = multi_scale_deformable_attention(
            value, input_spatial_shapes, input_level_start_index,
            anchors[:, :, None, None] + offsets / width_height(input_spatial_shapes, offsets)[:, None],
            logits.flatten(3).softmax(-1).unflatten(-1, logits.shape[3:]),
            fp32_grad_accum=self.fp32_grad_accum, deterministic=self.deterministic,
        )  # fmt: skip
        return out if self.output_proj is None else self.output_proj(out)


class SpatialCrossAttention(nn.Module):
    """BEVFormer's spatial cross-attention: a pillar looks into every camera that sees it, and takes the mean.

    State dict: deformable_attention.*, output_proj.*, as in BEVFormer.

    Source: BEVFormer (Li et al., 2022), Eq. 3. One difference from its released code: which queries a camera sees is
    asked of every batch item, not of the first one only.
    """

    def __init__(
        self, d_model: int = 256, n_levels: int = 4, n_heads: int = 8, n_points: int = 8, dropout: float = 0.1,
        **sums: Any,
    ):  # fmt: skip
        super().__init__()
        self.deformable_attention = MSDeformAttn3D(d_model, n_levels, n_heads, n_points, **sums)
        self.output_proj = _Linear(d_model, d_model, _xavier)
        self.dropout = nn.Dropout(dropout)
        self.output_proj.reset_parameters()

    def reset_parameters(self) -> None:
        """The attention as it starts, and the projection of the output."""
        self.deformable_attention.reset_parameters()
        self.output_proj.reset_parameters()

    def forward(
        self,
        query: Tensor,
        reference_points_cam: Tensor,
        bev_mask: Tensor,
        value: Tensor,
        spatial_shapes: Levels,
        level_start_index: Starts = None,
        query_pos: Tensor | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        """
        Args:
            query: (B, Q, C), one per pillar of the bird's-eye view; query_pos: likewise, added to it.
            reference_points_cam: (B, N, Q, Z, 2), the pillars' anchors in each of N cameras, (x, y) in [0, 1].
            bev_mask: bool (B, N, Q, Z), whether a camera sees an anchor.
            value: (B, N, S, C), the cameras' pyramids, flattened.
            spatial_shapes, level_start_index: of one camera's pyramid.
            residual: (B, Q, C), what the result is added to; None for query as it came.

        Returns:
            (B, Q, C). Reads the largest number of pillars any camera sees, so it waits for the GPU once; compiled or
            exported it takes every pillar for every camera.
        """
        B, N, Q, Z = bev_mask.shape
        if reference_points_cam.shape != (B, N, Q, Z, 2):
            raise ValueError(
                f"reference_points_cam must be (B, N, Q, Z, 2) = {(B, N, Q, Z, 2)} as bev_mask is, "
                f"got {tuple(reference_points_cam.shape)}. Is the camera axis first?"
            )
        residual = query if residual is None else residual
        query = query if query_pos is None else query + query_pos
        C = query.shape[-1]

        # Only the pillars a camera sees: moved to the front, cut where no camera sees one any more.
        seen = bev_mask.any(-1)  # (B, N, Q)
        most = Q  # a graph has one size, whatever the cameras see
        if not torch.compiler.is_compiling():
            most = int(seen.sum(-1).max()) if seen.numel() else 0
        index = seen.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)[..., :most]  # (B, N, most)
        is_seen = seen.gather(-1, index)
        queries = query[:, None].expand(B, N, Q, C).gather(2, index[..., None].expand(B, N, most, C))
        anchors = reference_points_cam.gather(2, index[..., None, None].expand(B, N, most, Z, 2))
        out = self.deformable_attention(
            queries.flatten(0, 1), anchors.flatten(0, 1), value.flatten(0, 1), spatial_shapes, level_start_index
        ).unflatten(0, (B, N))
        out = out.masked_fill(~is_seen[..., None], 0)

        # One camera after the other: within one, every pillar comes once, so the sum repeats bitwise.
        slots = out.new_zeros(B, Q, C)
        for camera in range(N):
            slots = slots.scatter_add(1, index[:, camera, :, None].expand(B, most, C), out[:, camera])
        slots = slots / seen.sum(1).clamp_min(1)[..., None]
        return self.dropout(self.output_proj(slots.to(query.dtype))) + residual


class TemporalSelfAttention(_DeformableAttention):
    """BEVFormer's temporal self-attention: the bird's-eye view looks into its own past and into itself.

    State dict: sampling_offsets, attention_weights, value_proj, output_proj, as in BEVFormer.

    Source: BEVFormer (Li et al., 2022), Eq. 5. One difference from its released code: the past that predicts the
    offsets is that of the same batch item, also where B > 1.
    """

    def __init__(
        self, d_model: int = 256, n_levels: int = 1, n_heads: int = 8, n_points: int = 4, dropout: float = 0.1,
        **sums: Any,
    ):  # fmt: skip
        super().__init__(d_model, n_levels, n_heads, n_points, queue=2, **sums)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        query: Tensor,
        previous: Tensor | None,
        reference_points: Tensor,
        spatial_shapes: Levels,
        level_start_index: Starts = None,
        query_pos: Tensor | None = None,
        padding_mask: Tensor | None = None,
    ) -> Tensor:
        """
        Args:
            query: (B, Q, C), the present; query_pos: likewise, added where offsets and weights are predicted.
            previous: (B, Q, C), the past, aligned to the present; None for the first frame, whose past is itself.
            reference_points: (B, 2, Q, L, 2 or 4), for the past and for the present.
            spatial_shapes: (L, 2) of the bird's-eye view, L = 1 as a rule; level_start_index: (L,), or None.
            padding_mask: bool (B, 2, Q), True where a cell must not be seen.

        Returns:
            (B, Q, C), the mean over past and present, projected, plus query.
        """
        B, Q, C = query.shape
        if reference_points.dim() != 5 or tuple(reference_points.shape[:4]) != (B, 2, Q, self.n_levels):
            raise ValueError(
                f"reference_points must be (B, 2, Q, L, 2 or 4) with (B, 2, Q, L) = {(B, 2, Q, self.n_levels)}, "
                f"got {tuple(reference_points.shape)}. Is past and present folded into the batch?"
            )
        previous = query if previous is None else previous
        if previous.shape != query.shape:
            raise ValueError(
                f"previous must be {tuple(query.shape)} as query is, got {tuple(previous.shape)}. "
                "Was the bird's-eye view resized?"
            )
        value = torch.stack([previous, query], 1).flatten(0, 1)  # (2B, Q, C)
        value = self.project_value(value, None if padding_mask is None else padding_mask.flatten(0, 1))
        present = query if query_pos is None else query + query_pos
        predicted = self.predict(torch.cat([previous, present], -1))
        offsets, logits = (t.movedim(3, 1).flatten(0, 1) for t in predicted)  # (2B, Q, M, L, K, …)
        out = self.attend(value, spatial_shapes, level_start_index, reference_points.flatten(0, 1), offsets, logits)
        out = out.unflatten(0, (B, 2)).mean(1)
        return self.dropout(self.output_proj(out)) + query

"""The operator: `multi_scale_deformable_attention`, and the switches of how it runs."""

from msda_core.ops.api import Levels, Starts, interpreted, merging, multi_scale_deformable_attention

__all__ = ["Levels", "Starts", "interpreted", "merging", "multi_scale_deformable_attention"]

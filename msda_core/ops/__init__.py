"""The operator: `multi_scale_deformable_attention`, and the switches of how it runs."""

from msda_core.ops.api import multi_scale_deformable_attention
from msda_core.ops.eager import interpreted, merging
from msda_core.shapes import Levels, Starts

__all__ = ["Levels", "Starts", "interpreted", "merging", "multi_scale_deformable_attention"]

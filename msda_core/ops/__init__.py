"""The operator: `multi_scale_deformable_attention`; `deformable_attention`, from a module's raw output; and the switches of how they run."""

from msda_core.ops.api import multi_scale_deformable_attention
from msda_core.ops.eager import interpreted, merging
from msda_core.ops.raw import deformable_attention
from msda_core.shapes import Levels, Starts

__all__ = ["Levels", "Starts", "deformable_attention", "interpreted", "merging", "multi_scale_deformable_attention"]

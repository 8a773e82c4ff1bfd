"""Lab 01, Reading between pixels: what is right."""

from math import floor

import torch
from torch.nn.functional import grid_sample

from msda_core import reference

# --- corner_weights -------------------------------------------------------------------------------------------------


def _corners(x, y, *, down=floor, order=(0, 1, 2, 3), swap=False, flip=False):
    """The right answer, and by its options the wrong ones."""
    x0, y0 = down(x), down(y)
    fx, fy = x - x0, y - y0
    if swap:
        fx, fy = fy, fx
    if flip:
        fx, fy = 1 - fx, 1 - fy
    weights = ((1 - fx) * (1 - fy), fx * (1 - fy), (1 - fx) * fy, fx * fy)
    return (x0, y0), tuple(weights[i] for i in order)


def _msda(value, spatial_shapes, sampling_locations, attention_weights):
    return reference.msda(value, spatial_shapes, None, sampling_locations, attention_weights)


# --- stretch: sample_like_torch -------------------------------------------------------------------------------------


def _grid_sample(image, u, v, align_corners, padding_mode):
    grid = torch.tensor([[[[u, v]]]], dtype=image.dtype)
    stacked = image.permute(2, 0, 1)[None]
    return grid_sample(stacked, grid, padding_mode=padding_mode, align_corners=align_corners).flatten()

"""Lab 01, Reading between pixels: its exercises."""

import torch

from checks.core.exercise import exercise
from checks.labs.lab01 import wrong
from checks.labs.lab01.cases import (
    NO_GRID_SAMPLE,
    _convention,
    _points_per_second,
    at_a_pixel,
    between_edges,
    between_four,
    beyond_edges,
    double_precision,
    far_outside,
    half_outside,
    left_edge,
    left_of_the_image,
    nearer_to_the_right,
    nearly_a_pixel_outside,
    on_a_pixel,
    one_level,
    past_the_last,
    right_edge,
    several_heads,
    three_levels,
    two_images,
    weights_that_do_not_sum_to_one,
    whole_numbers,
)
from checks.labs.lab01.truth import _corners, _grid_sample, _msda
from msda_core import reference

exercise(
    "01.to_pixels",
    reference=lambda location, size: location * size - 0.5,
    cases=[left_edge, right_edge, between_edges, beyond_edges],
    mistakes=wrong.TO_PIXELS,
    hints=[
        "An image is 4 pixels wide. Its left edge is location 0 and its right edge is location 1. Where, in locations, "
        "is the centre of the first pixel?",
        "Stretch [0, 1] to the width of the image; then say what coordinate the left edge has, if the centre of the first "
        "pixel has coordinate 0.",
        "One multiplication, one subtraction. Test it by hand on size 4: the four centres are at 0.125, 0.375, 0.625, 0.875.",
    ],
)


exercise(
    "01.corner_weights",
    reference=_corners,
    cases=[on_a_pixel, nearer_to_the_right, left_of_the_image],
    parts=["x0", "y0", "weight of (x0, y0)", "weight of (x0+1, y0)", "weight of (x0, y0+1)", "weight of (x0+1, y0+1)"],
    mistakes=wrong.CORNER_WEIGHTS,
    hints=[
        "Between pixels 2 and 3, at x = 2.8: how much should pixel 3 count in one dimension, and how much pixel 2?",
        "Do it once along x and once along y. Four pixels are all the pairs; a pair's weight is the product.",
        "Round both coordinates down (down, also below zero); keep the fractions fx and fy; the weights are the areas of "
        "the four rectangles that the point cuts the unit square into, each pixel getting the rectangle opposite to it.",
    ],
)


exercise(
    "01.bilinear_sample",
    reference=reference.bilinear_sample,
    cases=[at_a_pixel, between_four, half_outside, nearly_a_pixel_outside, past_the_last, far_outside, whole_numbers],
    axes=["channel"],
    forbid=NO_GRID_SAMPLE,
    mistakes=wrong.BILINEAR_SAMPLE,
    hints=[
        "You have the upper left pixel and four weights. Which four entries of `image` do they belong to, and which of "
        "them may not exist?",
        "Start from zeros. Go over the four corners; add weight times pixel for those that lie inside. The ones outside "
        "add nothing, because they are zero.",
        "`image` is (H, W, D): the pixel in column i and row j is `image[j, i]`. Inside means 0 ≤ i < W and 0 ≤ j < H.",
    ],
)


exercise(
    "01.msda_loops",
    reference=_msda,
    cases=[
        one_level,
        three_levels,
        several_heads,
        two_images,
        weights_that_do_not_sum_to_one,
        double_precision,
    ],
    axes=["image", "query", "channel"],
    forbid=NO_GRID_SAMPLE,
    mistakes=wrong.MSDA_LOOPS,
    hints=[
        "How many samples go into one number of the output? Name the axes they run over, and those that only choose which "
        "output is being written.",
        "Loop over image, head, level, query and point. Cut the level's pixels out of `value` and give them the shape of an "
        "image; the rest is your `to_pixels` and `bilinear_sample`.",
        "Per level: `value[b, start : start + H * W, m].reshape(H, W, D)`, with `start` growing by H*W from level to level. "
        "Add weight times sample into an output of zeros shaped (B, Q, M, D), and fold M and D together at the end.",
    ],
)


exercise(
    "01.sample_like_torch",
    reference=_grid_sample,
    cases=[
        # Zero padding and the mirror show what they do just outside, where something of the border is left.
        _convention(False, "zeros", "the border fades", near=True),
        _convention(False, "border", "the nearest pixel"),
        _convention(False, "reflection", "a mirror at the edge", near=True),
        _convention(False, "reflection", "a mirror at the edge"),
        _convention(False, "reflection", "mirrors at both edges, to and fro", far=True),
        _convention(True, "zeros", "the border fades", near=True),
        _convention(True, "border", "the nearest pixel, in the image's dtype", dtype=torch.float64),
        _convention(True, "reflection", "a mirror at the centre of the last pixel"),
    ],
    axes=["channel"],
    forbid=NO_GRID_SAMPLE,
    stretch=True,
    score=_points_per_second,
    mistakes=wrong.SAMPLE_LIKE_TORCH,
    hints=[
        "Six conventions, one reader. What has to happen to a coordinate before `bilinear_sample` sees it?",
        "First place -1…1 on the pixels (two ways), then move what is outside (three ways).",
        "A mirror at low and at low + span repeats every 2·span: fold the distance from low with %, then take the nearer way. "
        "After reflecting, clamp to the centres as border does.",
    ],
)

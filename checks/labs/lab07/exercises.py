"""Lab 07, The other direction: its exercises."""

import torch

from checks.core.exercise import Property, exercise
from checks.labs.lab07 import steps, wrong  # noqa: F401  (the steps declare themselves)
from checks.labs.lab07.cases import (
    CARRIES,
    NO_GRID_SAMPLE,
    _close_to_the_best,
    _lends_x,
    _points_per_second,
    a_cubic,
    across_a_kink,
    across_the_border,
    at_the_borders,
    beyond_the_borders,
    both_sides,
    clear_of_them,
    crowded,
    each_in_turn,
    either_axis,
    far_outside,
    in_float32,
    in_float64,
    in_pixels,
    neighbouring_cells,
    not_in_order,
    on_pixel_centres,
    one_number,
    one_pixel_outside,
    one_point,
    same_shape,
    several_heads,
    several_levels,
    several_points,
    the_same_cell,
    two_images,
)
from checks.labs.lab07.truth import _all_truths, _near, _quotient, _truth

exercise(
    "07.numeric_gradient",
    reference=lambda fn, x, eps: _quotient(fn, x, eps),
    cases=[one_number, in_float32, across_a_kink, a_cubic, same_shape, not_in_order, each_in_turn],
    properties=[Property("lends_x", "x is the caller's: it is never changed, not even for a moment", _lends_x)],
    autograd=False,
    mistakes=wrong.NUMERIC_GRADIENT,
    hints=[
        "You may call fn as often as you like, at any x. What two calls tell you how it changes with one element, without "
        "favouring a side?",
        "For each element: a copy of x with this element moved up by eps, another with it moved down. The difference of the "
        "two values, over the distance between them, goes into the gradient at this element's place.",
        "`ahead = x.clone(); ahead[index] += eps`, and so on. `product(*map(range, x.shape))` gives every index of a "
        "tensor of any shape.",
    ],
)


exercise(
    "07.choose_eps",
    reference=lambda dtype: torch.finfo(dtype).eps ** (1 / 3),
    cases=[],
    autograd=False,
    properties=[
        Property(
            "close_to_the_best",
            "in every dtype, central differences with this step come close to the best they can do",
            _close_to_the_best,
        )
    ],
    mistakes=wrong.CHOOSE_EPS,
    hints=[
        "Two errors pull in opposite directions. Which one shrinks with a smaller step, and which one grows?",
        "The values of f are rounded, each by about e = `torch.finfo(dtype).eps`; divided by eps that becomes e / eps. The "
        "curve's own bend adds about eps². The sum is smallest about where the two are equal.",
        "e / eps = eps²: solve for eps.",
    ],
)


exercise(
    "07.grad_attention",
    reference=_truth(2),
    cases=[
        one_point,
        several_points,
        in_float64,
        far_outside,
        several_heads,
        two_images,
        across_the_border,
        several_levels,
    ],
    axes=["image", "query", "head", "level", "point"],
    autograd=False,
    forbid=NO_GRID_SAMPLE,
    carries=CARRIES,
    mistakes=wrong.GRAD_ATTENTION,
    hints=[
        "If the weight of one point grows by a little, by how much does each channel of the output grow? And the loss?",
        "The sample at the point, as in the forward pass, is a vector of D channels. `grad_out` holds D numbers for this "
        "query and head. Your first step above says what to do with the two.",
        "`g = grad_out[b, q].reshape(M, D)[m]`; cut the level's image out of `value` as in lab 01, sample it at the point, "
        "and store `(g * sample).sum()`.",
    ],
)


exercise(
    "07.grad_locations",
    reference=_truth(1),
    cases=[
        one_point,
        several_points,
        in_float64,
        far_outside,
        several_heads,
        two_images,
        on_pixel_centres,
        one_pixel_outside,
        across_the_border,
        several_levels,
    ],
    axes=["image", "query", "head", "level", "point", "coordinate"],
    autograd=False,
    forbid=NO_GRID_SAMPLE,
    carries=CARRIES,
    mistakes=wrong.GRAD_LOCATIONS,
    hints=[
        "Your third step gives the slope of one channel's sample. What does the loss make of D such slopes?",
        "Read the four pixels (zero where there is none). Right minus left, between the rows; lower minus upper, between the "
        "columns. Each times `g`, summed over the channels; then the attention weight, and the size factor of its own "
        "axis.",
        "With a small helper `pixel(i, j)` that returns `image[j, i]` or zeros: `along_x = (1 - fy) * (pixel(x0 + 1, y0) - "
        "pixel(x0, y0)) + …`. `floor` picks the right cell by itself, also on a whole number.",
    ],
)


exercise(
    "07.near_kink",
    reference=lambda locations, shapes, tol: _near(locations, shapes, tol),
    cases=[clear_of_them, in_pixels, beyond_the_borders, at_the_borders, either_axis, both_sides],
    axes=["image", "query", "head", "level", "point"],
    autograd=False,
    mistakes=wrong.NEAR_KINK,
    hints=[
        "In pixels, where are the kinks? Count them for an image 3 pixels wide: there are five.",
        "How far is a number from the nearest whole number? That nearest one tells you also whether there is a kink: from "
        "one before the first pixel to one past the last.",
        "`x = locations * sizes - 0.5` with sizes shaped so that each level gets its own (W, H); `nearest = x.round()`; "
        "compare the distance with tol; `.any(-1)` joins x and y.",
    ],
)


exercise(
    "07.grad_value",
    reference=_truth(0),
    cases=[
        one_point,
        in_float64,
        the_same_cell,
        neighbouring_cells,
        far_outside,
        across_the_border,
        several_heads,
        two_images,
        several_levels,
        several_points,
    ],
    axes=["image", "pixel", "head", "channel"],
    autograd=False,
    forbid=NO_GRID_SAMPLE,
    carries=CARRIES,
    mistakes=wrong.GRAD_VALUE,
    hints=[
        "In the forward pass a point reads four pixels. Which four does it write to here, and how much to each?",
        "Start from zeros shaped like `value`. Go over the points; each *adds* corner weight × attention weight × g to its "
        "corners that lie inside. Who else was there does not matter.",
        "The pixel in column i and row j of a level is row `start + j * W + i` of `value`: "
        "`grad[b, start + j * W + i, m] += weight * attention * g`.",
    ],
)


exercise(
    "07.all_gradients",
    reference=_all_truths,
    cases=[
        one_point,
        in_float64,
        far_outside,
        on_pixel_centres,
        one_pixel_outside,
        several_levels,
        neighbouring_cells,
        crowded,
        the_same_cell,
    ],
    parts=["grad_value", "grad_locations", "grad_attention"],
    autograd=False,
    forbid=NO_GRID_SAMPLE,
    carries=CARRIES,
    stretch=True,
    score=_points_per_second,
    mistakes=wrong.ALL_GRADIENTS,
    hints=[
        "Your three functions walk over the same points and read the same pixels. What can be kept from one to the next?",
        "Work on all points of a level at once: tensors (B, Q, M, K) of x0, y0, fx, fy. Then loop over the four corners only, "
        "clamp the pixel index so that it can be read, and multiply by whether it was inside.",
        "One product per corner, `(pixel * g).sum(-1)`, serves both grad_attention (times the corner's weight) and "
        "grad_locations (times the weight's slope). grad_value is one `index_add_` per corner.",
    ],
)

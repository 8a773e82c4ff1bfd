"""Lab 02, Tensors are pointers: its exercises."""

from math import prod

from checks.core.exercise import Property, exercise
from checks.labs.lab02 import wrong
from checks.labs.lab02.cases import (
    FLAT_CASES,
    NO_GRID_SAMPLE,
    _no_loop,
    _samples_per_second,
    _whole_numbers,
    a_detector,
    a_later_level,
    an_axis_of_one,
    backwards,
    before_the_first,
    beyond_32_bits,
    every_other_column,
    exactly_full,
    expanded,
    far_into_memory,
    off_the_left_edge,
    one_axis,
    one_image_too_large,
    past_twice_the_range,
    rows_and_columns,
    six_axes,
    the_first_level,
    the_last_that_fits,
    the_value_tensor,
    transposed,
    without_gaps,
)
from checks.labs.lab02.truth import _corner_offsets, _dot, _flat_reference, _overflow

exercise(
    "02.contiguous_strides",
    reference=lambda shape: tuple(prod(shape[axis + 1 :]) for axis in range(len(shape))),
    cases=[one_axis, rows_and_columns, the_value_tensor, an_axis_of_one, six_axes],
    forbid={"stride": "it does what you are here to write."},
    parts=[f"the stride of axis {axis}" for axis in range(6)],
    properties=[_whole_numbers(the_value_tensor)],
    mistakes=wrong.CONTIGUOUS_STRIDES,
    hints=[
        "A (2, 3) tensor lies in memory as row 0, then row 1. How many elements are there from [0, 0] to [1, 0]? And from "
        "[0, 0] to [0, 1]?",
        "To get to the next index along an axis, you step over everything that the axes to its right hold.",
        "The stride of an axis is the product of the sizes to its right. Nothing is to the right of the last one, and the "
        "product of nothing is 1.",
    ],
)


exercise(
    "02.flat_offset",
    reference=_dot,
    cases=[without_gaps, transposed, every_other_column, expanded, backwards, before_the_first, beyond_32_bits],
    properties=[_whole_numbers(without_gaps)],
    mistakes=wrong.FLAT_OFFSET,
    hints=[
        "You stand on element [0, 0]. To get to [2, 3], how many steps do you take along each axis, and how long is one?",
        "Every axis contributes on its own: steps times length of a step. The contributions add up.",
        "A sum of products of two lists, taken in pairs. Nothing has to be known about the shape.",
    ],
)


exercise(
    "02.corner_offsets",
    reference=_corner_offsets,
    cases=[the_first_level, a_later_level, off_the_left_edge, far_into_memory],
    properties=[_whole_numbers(a_later_level)],
    parts=["(x0, y0)", "(x0+1, y0)", "(x0, y0+1)", "(x0+1, y0+1)"],
    mistakes=wrong.CORNER_OFFSETS,
    hints=[
        "How many pixels of the table lie before pixel (x0, y0) of the level? Count the levels before, the image rows "
        "above, and the pixels to the left.",
        "First the row of the table, in pixels; then elements, by one multiplication. The other three corners are a fixed "
        "distance away, whatever x0 and y0 are.",
        "Table row: level_start, plus y0 image rows of W pixels, plus x0. To the right is one table row more, below are W.",
    ],
)


exercise(
    "02.msda_flat",
    reference=_flat_reference,
    cases=FLAT_CASES,
    axes=["image", "query", "channel"],
    forbid={
        **NO_GRID_SAMPLE,
        "as_strided": "it makes a tensor of the memory again; compute the offsets yourself.",
    },
    carries=("01.to_pixels", "01.corner_weights"),
    mistakes=wrong.MSDA_FLAT,
    hints=[
        "Your `msda_loops` cut an image out of `value` and indexed it with [j, i]. Which part of the offset did the cut do, "
        "and which the index?",
        "An offset has two parts: where image b and head m begin (`flat_offset`), and where the pixel is within them "
        "(`corner_offsets`). They add up. The channels follow from there, one stride apart.",
        "Five loops. Per point: `lab01.to_pixels` twice, `lab01.corner_weights`, `corner_offsets` with the level's start and "
        "the pixel stride. Per corner: inside? Then add attention × weight × `memory[first : first + D * step : step]`.",
    ],
)


exercise(
    "02.first_overflow",
    reference=_overflow,
    cases=[a_detector, the_last_that_fits, past_twice_the_range, exactly_full, one_image_too_large],
    properties=[_whole_numbers(a_detector)],
    parts=["whether it fits", "the first batch size that does not fit"],
    mistakes=wrong.FIRST_OVERFLOW,
    hints=[
        "How many elements does the tensor have, and what is the index of the last one?",
        "An image more is S*M*D elements more. How many whole images fit into the numbers 0 to 2**31 - 1?",
        "From 0 to 2**31 - 1 there are 2**31 numbers. Divide by the size of an image, rounding down: so many images fit, and "
        "one more does not.",
    ],
)


exercise(
    "02.msda_gather",
    reference=_flat_reference,
    cases=FLAT_CASES,
    axes=["image", "query", "channel"],
    forbid={
        **NO_GRID_SAMPLE,
        "as_strided": "it makes a tensor of the memory again; compute the offsets yourself.",
    },
    carries=("01.to_pixels", "01.corner_weights"),
    limit=10.0,
    stretch=True,
    score=_samples_per_second,
    properties=[Property("no_loop", "more images, queries, heads or points take no more calls of PyTorch", _no_loop)],
    mistakes=wrong.MSDA_GATHER,
    hints=[
        "In `msda_flat` every loop gave one part of the offset. Which of these parts change with b, with m, with l, and with "
        "the corner?",
        "A tensor of offsets shaped (B, Q, M, L, K, 4, D) is the sum of small tensors that broadcast: `torch.arange(B)` times "
        "its stride, and so on. `memory[offsets]` reads them all.",
        "A corner outside still needs an offset that can be read: take 0, and replace what was read by zero with "
        "`torch.where` (multiplying is not enough, memory may hold NaN). Then weigh, and sum over levels, points and corners.",
    ],
)

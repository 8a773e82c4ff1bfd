"""Lab 08, Concurrent writes: its exercises."""

from checks.core.exercise import Property, exercise
from checks.labs.lab08 import wrong
from checks.labs.lab08.cases import (
    BWD_CASES,
    COALESCED,
    FAR,
    GRADIENTS,
    LIMIT,
    NO_RACE,
    OWN_SCALE,
    RELAXED,
    REPEATS,
    SAFE,
    _backward,
    _fewer,
    _histogram,
    _histogram_is_safe,
    _launches,
    _merge_is_safe,
    _merged,
    _scatter,
    _score,
    a_sum_of_one_place,
    all_at_one_place,
    as_models_call_it,
    different_places,
    equal_weights,
    grad_out_of_a_sum,
    large_weights,
    many_channels,
    many_points,
    neighbours_on_two_levels,
    no_pairs,
    no_query,
    one_of_each,
    places_that_come_again,
    places_that_never_come,
    ragged_block,
    ragged_pairs,
    several_blocks,
    several_blocks_of_pairs,
    sixteen_bits,
    sixteen_bits_everywhere,
    some_places_again,
    the_same_index_again,
    value_with_strides,
    weights_below_zero,
)
from checks.labs.lab08.truth import _counted, _gradients, _scattered, _summed

exercise(
    "08.histogram_kernel",
    reference=_counted,
    cases=[one_of_each, the_same_index_again, several_blocks, ragged_block],
    properties=[Property("no_race", NO_RACE, _histogram_is_safe)],
    invoke=_histogram,
    guarded=True,
    limit=LIMIT,
    axes=["bin"],
    mistakes=wrong.HISTOGRAM_KERNEL,
    hints=[
        "Two lanes hold the same index. Both read 4, both add one, both write 5. What should it be, and which step would "
        "have to be undivided?",
        "Load the indices as any block. Then leave reading, adding and writing to the memory system: one operation, for "
        "every lane that has an index.",
        "`tl.atomic_add(addresses, what, mask=…)` with a block of addresses: `hist_ptr` plus the indices. The mask of the "
        "load is also the mask of the addition.",
    ],
)


exercise(
    "08.merge_then_add_kernel",
    reference=_scattered,
    cases=[
        different_places,
        all_at_one_place,
        some_places_again,
        several_blocks_of_pairs,
        ragged_pairs,
        weights_below_zero,
    ],
    properties=[
        Property("merged", "a program adds to each place once, however many of its lanes meet there", _merged),
        Property("no_race", NO_RACE, _merge_is_safe),
    ],
    invoke=_scatter,
    guarded=True,
    limit=LIMIT,
    axes=["place"],
    mistakes=wrong.MERGE_THEN_ADD_KERNEL,
    hints=[
        "Five lanes of your block share a place. Which of them should add there, how does it know that it is the one, and "
        "how does it know the sum of all five?",
        "Compare every lane with every other: a square of true and false. Each row of it tells a lane who shares its "
        "place, so a sum along the row is the total, and the first true in the row is the one that speaks.",
        "`index[:, None] == index[None, :]` is the square. `tl.sum(tl.where(square, weight[None, :], 0.0), axis=1)` is "
        "each lane's total, `tl.min(tl.where(square, lane[None, :], BLOCK), axis=1)` the first of its group. Mask the "
        "addition with `first == lane`.",
    ],
)


exercise(
    "08.deterministic_sum",
    reference=_summed,
    cases=[a_sum_of_one_place, places_that_come_again, places_that_never_come, no_pairs, large_weights, equal_weights],
    properties=[REPEATS, OWN_SCALE],
    axes=["place"],
    mistakes=wrong.DETERMINISTIC_SUM,
    hints=[
        "Floating-point sums depend on the order because each addition rounds. Which numbers does a computer add without "
        "rounding, and what could a weight be a multiple of?",
        "Two ways. Turn each weight into a whole number of some unit, and add whole numbers. Or sort: if pairs are put in an "
        "order that depends on their values alone, whoever came first does not matter.",
        '`scatter_reduce(0, index, weight.abs(), "amax")` is the largest weight of each place, in any order. Take a power of two '
        "some 40 bits below it as that place's unit (a number over its `torch.frexp` mantissa is a power of two): int64 then "
        "has room for a million weights. Divide in float64, round, `index_add`, multiply.",
    ],
)


exercise(
    "08.msda_bwd_kernel",
    reference=_gradients,
    cases=BWD_CASES,
    properties=[FAR, SAFE, RELAXED, COALESCED],
    invoke=_backward,
    guarded=True,
    limit=LIMIT,
    axes=GRADIENTS,
    parts=tuple(GRADIENTS),
    mistakes=wrong.MSDA_BWD_KERNEL,
    hints=[
        "Of the three gradients, which elements does one program own alone, and which may any program add to? Write down "
        "each gradient as a sum over the four pixels of a point (lab 7 has them).",
        "All three need the same four numbers: the dot product of grad_out with each of the four pixels. Go over the four "
        "corners once; add to a block of grad_attn, of the slope along x and of the slope along y, and scatter the share "
        "of grad_value on the way.",
        "A block of points (BLOCK_P,) with its level's H, W and start loaded per point; a tile (BLOCK_P, BLOCK_D) per "
        "corner: `offs[:, None] * D + offs_d[None, :]`, one mask for the load of value and the addition to grad_value. "
        "`tl.sum(v * g[None, :], axis=1)` is the dot product. Along x a corner's weight changes by plus or minus the y "
        'factor. `tl.atomic_add(…, mask=mask, sem="relaxed")`; everything else is stored once, at the end.',
    ],
)


exercise(
    "08.msda_backward",
    reference=_gradients,
    cases=[
        as_models_call_it,
        grad_out_of_a_sum,
        value_with_strides,
        no_query,
        many_points,
        many_channels,
        sixteen_bits,
        sixteen_bits_everywhere,
    ],
    properties=[Property("launches", "a kernel does the work", _launches)],
    guarded=True,
    launches=True,
    limit=LIMIT,
    axes=GRADIENTS,
    parts=tuple(GRADIENTS),
    mistakes=wrong.MSDA_BACKWARD,
    hints=[
        "Which of the three outputs does your kernel add to, and which does it only write? What does each have to hold "
        "before the launch?",
        "Read the sizes off the shapes. Make three outputs like the three inputs they belong to, launch one program a row, "
        "and hand the kernel contiguous inputs.",
        "`value.new_zeros(value.shape)`, `new_empty` for the other two; the grid is `(B * Q * M,)`; `.contiguous()` on "
        "every input; `triton.next_power_of_2` for both blocks. On a machine with several GPUs, Triton launches on the "
        "current one: `with torch.cuda.device_of(value):`.",
    ],
)


exercise(
    "08.msda_bwd_merged_kernel",
    reference=_gradients,
    cases=[*BWD_CASES, neighbours_on_two_levels],
    properties=[
        SAFE,
        Property("fewer", "points of a row that meet in a pixel are merged before the atomics", _fewer),
    ],
    invoke=_backward,
    guarded=True,
    limit=LIMIT,
    axes=GRADIENTS,
    parts=tuple(GRADIENTS),
    stretch=True,
    score=_score,
    mistakes=wrong.MSDA_BWD_MERGED_KERNEL,
    hints=[
        "What does a point add to a pixel? Of its factors, which are the same for all points of a row?",
        "grad_out is the same for the whole row. So points that share a pixel differ in one number each, and one number each "
        "is what has to be merged: a square of points, as in `merge_then_add_kernel`, without any channels.",
        "Points whose upper left pixel is the same share all four. That is one square for the whole kernel. Neighbours that "
        "share only two pixels or one are worth a second look.",
    ],
)

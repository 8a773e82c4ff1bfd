"""Lab 09, The precision switch: its exercises."""

from checks.core.exercise import Property, exercise
from checks.labs.lab08.cases import GRADIENTS
from checks.labs.lab09 import wrong
from checks.labs.lab09.cases import (
    LIMIT,
    _asks,
    _chooses,
    _close,
    _crossed_answers,
    _narrow,
    _score,
    _wanted,
    a_few_terms,
    a_pile_in_float32,
    a_pile_left_to_the_listing,
    bfloat_on_a_large_level,
    bfloat_on_ada,
    bfloat_on_ampere,
    bfloat_on_blackwell,
    bfloat_on_hopper,
    eight_bits,
    every_kind,
    grad_out_expanded,
    half_on_a_large_level,
    half_on_ampere,
    half_on_hopper,
    in_bfloat,
    in_both_spellings,
    in_double,
    in_eight_bits,
    in_float32,
    in_half,
    in_loops,
    in_pairs,
    in_single,
    in_vectors,
    levels_and_gaps,
    no_query,
    on_a_small_level,
    one_number_each,
    one_term,
    out_of_line,
    single_on_a_huge_level,
    single_precision,
    told_to_stay_narrow,
)
from checks.labs.lab09.truth import _accumulator, _classified, _gradients, _moved, _stagnation

exercise(
    "09.stagnation_point",
    reference=_stagnation,
    cases=[in_half, in_bfloat, in_single, in_double, in_eight_bits],
    mistakes=wrong.STAGNATION_POINT,
    hints=[
        "What is 2048 + 1 in float16? And 2047 + 1?",
        "Round n + 1 to dtype and see whether n comes out. One by one that takes too long in float32. But the distance "
        "between neighbours changes only at powers of two.",
        "Start at n = 1. While `torch.tensor(n + 1, dtype=torch.float64).to(dtype)` is something other than n, double n.",
    ],
)


exercise(
    "09.classify_atomics",
    reference=_classified,
    cases=[one_number_each, in_pairs, in_vectors, in_loops, out_of_line, in_both_spellings, every_kind],
    guarded=True,
    limit=LIMIT,
    axes=["instruction"],
    parts=["reductions", "returning", "loops"],
    carries=["08.msda_bwd_kernel"],
    mistakes=wrong.CLASSIFY_ATOMICS,
    hints=[
        "Open the listing of bfloat16 on SM 8.9 and look for `atom`. What happens to the value it brings back, and where "
        "does the branch below it lead?",
        "Walk over every `red.` and `atom.` in the text. The words between the dots hold everything: global or shared, "
        "`cas` or not, and at the end how many numbers of how many bits. Between them and the bracket stand the registers "
        "of the old value, if any: does anything below name them? For a `cas`, look further for the next `bra`.",
        '`re.finditer(r"\\b(red|atom)\\.([\\w.:]+)\\s+([^\\[]*)", ptx)` finds them, `found[2].split(".")` gives the words, '
        '`re.findall(r"%\\w+", found[3])` the registers. The last word has the bits (`f16x2` is twice 16), the one before may be '
        "`v4` or `v8`. A label stands at the start of its line and ends in a colon; search for it in `ptx[: found.start()]`.",
    ],
)


exercise(
    "09.accumulator_dtype",
    reference=_accumulator,
    cases=[
        single_precision,
        half_on_ampere,
        half_on_hopper,
        bfloat_on_ampere,
        bfloat_on_ada,
        bfloat_on_hopper,
        bfloat_on_blackwell,
    ],
    properties=[
        Property("asks", "it goes by the listing, whatever kernel lab 8 has", _asks, prepare=_crossed_answers),
    ],
    guarded=True,
    limit=LIMIT,
    carries=["08.msda_bwd_kernel"],
    mistakes=wrong.ACCUMULATOR_DTYPE,
    hints=[
        "You have twelve listings, and a function that reads them. In which of them does one addition take more than one "
        "instruction?",
        "Compile your kernel for that dtype and that GPU, classify its atomics, and look at the three lists.",
        "`compile_backward(lab08.msda_bwd_kernel, dtype, capability).ptx` is the listing. If its third list is not empty, "
        "dtype is a bad place to sum in.",
    ],
)


exercise(
    "09.msda_backward_switched",
    reference=_gradients,
    cases=[
        in_float32,
        levels_and_gaps,
        a_pile_in_float32,
        a_pile_left_to_the_listing,
        told_to_stay_narrow,
        grad_out_expanded,
        no_query,
    ],
    properties=[
        Property("chooses", "it sums where it should, and nothing else is made wider", _chooses, prepare=_wanted),
    ],
    guarded=True,
    launches=True,
    limit=LIMIT,
    axes=GRADIENTS,
    parts=tuple(GRADIENTS),
    carries=["08.msda_bwd_kernel"],
    mistakes=wrong.MSDA_BACKWARD_SWITCHED,
    hints=[
        "Your kernel takes a pointer for each tensor, each with a dtype of its own. Which of them has to change, and who "
        "turns the result back?",
        "It is lab 8's launcher with two changes: the buffer that the kernel adds to has the dtype you choose, and what is "
        "returned is that buffer in value's dtype.",
        "Three ways to a dtype: `fp32_grad_accum` is None, true, or false. Then zeros of `value.shape` in it, the launch of "
        "`lab08.msda_bwd_kernel` as in lab 8, and `.to(value.dtype)` on the way out, which copies nothing if it is that "
        "dtype already.",
    ],
)


exercise(
    "09.location_error",
    reference=_moved,
    cases=[half_on_a_large_level, bfloat_on_a_large_level, on_a_small_level, single_on_a_huge_level, eight_bits],
    parts=["the mean", "the largest"],
    mistakes=wrong.LOCATION_ERROR,
    hints=[
        "What does a location become when it is stored, and in which dtype can you still see the difference?",
        "Take the locations in float64, send them through dtype and back, and compare. The difference is a share of the "
        "level's width.",
        "`x.to(dtype).double() - x`, without its sign, times W; then `.mean()` and `.max()`, as Python numbers.",
    ],
)


exercise(
    "09.narrow_sum",
    reference=lambda numbers: numbers.sum(),
    cases=[one_term, a_few_terms],
    properties=[Property("close", "nine hundred terms are off by a few units in the last place at most", _close)],
    invoke=_narrow,
    stretch=True,
    score=_score,
    mistakes=wrong.NARROW_SUM,
    hints=[
        "In which of the nine hundred additions is most lost, and how large are the two numbers it adds?",
        "Two ways: let numbers of like size meet (add neighbours, then their sums, and so on), or find out what each "
        "addition rounded away and keep it in a second number.",
        "For the second: after `wider = total + term`, `wider - total` is what arrived of term. What did not arrive is a "
        "narrow number too. Give it to the next term.",
    ],
)

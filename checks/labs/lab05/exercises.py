"""Lab 05, The forward kernel: its exercises."""

from checks.core.exercise import Property, exercise
from checks.labs.forward_cases import (
    bfloat16,
    each_batch_item_and_head,
    every_point_of_every_level,
    far_batch,
    float16,
    float32_locations,
    launch,
    levels_with_gaps,
    on_the_edges,
    one_channel,
    one_point_on_one_level,
    outside_and_not_a_number,
    ragged_queries,
    thirty_three_channels,
)
from checks.labs.lab05 import wrong
from checks.labs.lab05.cases import (
    BUDGET,
    LIMIT,
    _corners,
    _logits_score,
    _prepare_traffic,
    _score,
    _sixteen_bit_code,
    _traffic,
    a_single_channel,
    a_whole_call,
    across_each_edge,
    all_levels_share_one_softmax,
    any_number_of_channels,
    any_number_of_queries,
    bfloat16_call,
    far_outside,
    float16_call,
    inside_the_level,
    large_logits,
    levels_anywhere,
    more_pixels_than_float32_counts,
    no_batch,
    no_queries,
    not_a_number,
    on_the_pixels,
    one_level_of_logits,
    parameters_with_strides,
    ragged_logits,
    value_with_strides,
)
from checks.labs.lab05.truth import _from_logits, _true_corners
from msda_core import reference
from msda_core.figures import tiles as forward

exercise(
    "05.corner",
    reference=_true_corners,
    cases=[
        inside_the_level,
        on_the_pixels,
        across_each_edge,
        far_outside,
        not_a_number,
        more_pixels_than_float32_counts,
    ],
    invoke=_corners,
    guarded=True,
    limit=LIMIT,
    axes=["corner j", "corner i", "point"],
    parts=["the mask", "the offset", "the weight"],
    mistakes=wrong.CORNER,
    hints=[
        "x is 3.2 and y is -0.4, on a level of 4 columns. Which four pixels lie around the point, and which of them exist?",
        "`i` and `j` are known when the kernel is compiled: `fx if i else 1 - fx` costs nothing. Decide whether the pixel "
        "exists while the coordinates are still floats: a NaN compares false with everything.",
        "Floor, fractions, `x0 + i`, `y0 + j`; a mask of four comparisons; `tl.where(mask, …, 0)` for the weight, and for row "
        "and column before they become integers; row times width plus column.",
    ],
)


exercise(
    "05.msda_fwd_kernel",
    reference=reference.msda,
    cases=[
        one_point_on_one_level,
        every_point_of_every_level,
        each_batch_item_and_head,
        ragged_queries,
        thirty_three_channels,
        one_channel,
        on_the_edges,
        outside_and_not_a_number,
        levels_with_gaps,
        float16,
        bfloat16,
        float32_locations,
    ],
    properties=[
        Property("compiles_for_16_bits", "a GPU's compiler accepts it for 16-bit tensors too", _sixteen_bit_code),
        Property("far_batch", "a batch item may begin more than 2^31 elements after the first", far_batch),
        Property(
            "traffic",
            f"it requests at most {BUDGET:g} times the sectors that msda_core's own kernel requests",
            _traffic,
            _prepare_traffic,
        ),
    ],
    invoke=launch,
    picture=lambda args, yours, truth: forward.error_map(yours, truth, args[0].shape[2]),
    guarded=True,
    limit=LIMIT,
    axes=["batch item", "query", "channel"],
    mistakes=wrong.MSDA_FWD_KERNEL,
    hints=[
        "One program has 16 queries of one head. How many numbers does it produce, and which of the five sizes B, Q, M, L, K "
        "does it loop over?",
        "Keep a tile (BLOCK_Q, BLOCK_D) of float32 sums. Loop over levels, then points; per point load one weight and one "
        "(x, y) for each query, and let `corner` say where the four pixels are. A row of the tile is a query, and along it "
        "lie the channels, as they do in memory.",
        "`row = (b * Q + offs_q) * M + m` numbers your queries in loc, attn and out; point `(row * L + l) * K + k`. The level "
        "begins at pixel `b * S + start`, a pixel is `M * D` elements, the head's channels begin at `m * D`. "
        "`tl.static_range(2)` for i and j; masks of query, pixel and channel together; one store at the end.",
    ],
)


exercise(
    "05.msda_forward",
    reference=reference.msda,
    cases=[
        a_whole_call,
        any_number_of_queries,
        any_number_of_channels,
        a_single_channel,
        levels_anywhere,
        value_with_strides,
        parameters_with_strides,
        float16_call,
        bfloat16_call,
        no_queries,
        no_batch,
    ],
    picture=lambda args, yours, truth: forward.error_map(yours, truth, args[0].shape[2]),
    guarded=True,
    launches=True,
    limit=LIMIT,
    axes=["batch item", "query", "channel"],
    score=_score,
    mistakes=wrong.MSDA_FORWARD,
    hints=[
        "The kernel has fourteen arguments. Which of them does the caller give you, which follow from shapes, and which two "
        "are yours to choose?",
        "Make an empty result in value's dtype and on value's device, return it at once if it has no elements, and launch one "
        "program for each block of queries, and for each batch item and head. The kernel takes memory as it lies, so every "
        "tensor must lie as it says.",
        "`value.new_empty(…)`, `triton.cdiv(Q, BLOCK_Q)`, `triton.next_power_of_2(D)`, `.contiguous()` on everything that goes "
        "in, `with torch.cuda.device_of(value):` around the launch, which else goes to the current GPU.",
    ],
)


exercise(
    "05.msda_fwd_logits_kernel",
    reference=_from_logits,
    cases=[one_level_of_logits, all_levels_share_one_softmax, large_logits, ragged_logits],
    invoke=launch,
    picture=lambda args, yours, truth: forward.error_map(yours, truth, args[0].shape[2]),
    guarded=True,
    limit=LIMIT,
    axes=["batch item", "query", "channel"],
    stretch=True,
    score=_logits_score,
    mistakes=wrong.MSDA_FWD_LOGITS_KERNEL,
    hints=[
        "Softmax needs the sum over all points before the first weight is known. Must the first weight be known before its "
        "sample is added?",
        "Divide at the end. Keep the highest logit so far, and the sum of exp(logit - highest). When a higher one comes, what "
        "was added so far is too large by a known factor.",
        "`higher = tl.maximum(peak, logit)`, `shrink = tl.exp(peak - higher)`: multiply both the sum and the tile by it, add "
        "`tl.exp(logit - higher)`, and store the tile divided by the sum.",
    ],
)

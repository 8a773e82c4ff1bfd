"""Lab 03, The machine: its exercises."""

from checks.core.exercise import Property, exercise
from checks.labs.lab03 import wrong
from checks.labs.lab03.cases import (
    _below_the_clock,
    _better_than_rows,
    _decoder,
    _each_once,
    _far_outside,
    _score,
    a_cache_of_none,
    a_favourite,
    a_few_lanes,
    across_a_border,
    across_a_border_beside_another,
    again_and_again,
    all_new,
    beginning_in_the_middle,
    every_byte_used,
    exactly_full,
    gathered_rows,
    hardly_touched,
    large_and_small,
    longer_than_a_sector,
    mixed,
    mostly_outside,
    much_arithmetic,
    neighbours,
    nobody,
    off_by_some_bytes,
    one_element_for_all,
    one_in_eight,
    one_too_many,
    one_weight_for_all,
    per_block,
    per_block_ragged,
    per_output_element,
    per_output_element_ragged,
    per_point,
    per_point_ragged,
    read_many_times,
    read_often,
    read_once,
    rows_across_a_border,
    rows_that_share_sectors,
    several_heads,
    shuffled_lanes,
    the_heads_of_one_pixel,
    the_same_sectors_again,
    two_images,
    with_a_silent_request,
    with_a_stride,
)
from checks.labs.lab03.truth import _efficiency, _lru, _plain, _reference_requests, _roofline, _sectors, _traffic_bounds

exercise(
    "03.sectors",
    reference=_sectors,
    cases=[
        neighbours,
        beginning_in_the_middle,
        with_a_stride,
        gathered_rows,
        one_element_for_all,
        shuffled_lanes,
        a_few_lanes,
        across_a_border,
        across_a_border_beside_another,
        longer_than_a_sector,
        nobody,
    ],
    mistakes=wrong.SECTORS,
    hints=[
        "Memory is cut into sectors at multiples of 32. In which sector is byte 70? And the four bytes from 70 on?",
        "Collect the sectors of all lanes in something that keeps each only once; then count.",
        "A lane's first byte is `address`, its last `address + itemsize - 1`. Both have a sector, by whole division; an "
        "element also touches every sector between the two.",
    ],
)


exercise(
    "03.efficiency",
    reference=_efficiency,
    cases=[
        every_byte_used,
        one_in_eight,
        the_same_sectors_again,
        large_and_small,
        one_weight_for_all,
        off_by_some_bytes,
        with_a_silent_request,
    ],
    mistakes=wrong.EFFICIENCY,
    hints=[
        "A warp reads one float32 out of every sector. How many bytes are useful, and how many come?",
        "Two sums over the requests, one of useful bytes and one of delivered bytes; a single division at the end.",
        "Useful bytes of a request: its distinct addresses times `itemsize`. Delivered: 32 times what your `sectors` says.",
    ],
)


exercise(
    "03.lru_hits",
    reference=_lru,
    cases=[all_new, again_and_again, one_too_many, exactly_full, a_favourite, mixed, a_cache_of_none],
    mistakes=wrong.LRU_HITS,
    hints=[
        "The cache holds three sectors: 5, 8, 2, used in this order. Now 5 is read again, and then a new one, 9. Which goes?",
        "Keep the sectors in order of their last use. A read moves its sector to the end, whether it was there or not.",
        "A plain list will do: if the sector is in it, count a hit and take it out; then append it; and if there are more "
        "than `capacity`, drop the first.",
    ],
)


exercise(
    "03.tiling_addresses",
    reference=_reference_requests,
    invoke=_plain,
    cases=[
        per_output_element,
        per_output_element_ragged,
        per_point,
        per_point_ragged,
        per_block,
        per_block_ragged,
        *map(_far_outside, ("output", "point", "block")),
    ],
    axes=["request", "lane"],
    mistakes=wrong.TILING_ADDRESSES,
    hints=[
        "Take the first warp of each tiling. What does lane 5 own: a channel, a point, or a piece of a row? What does it "
        "load first?",
        "List the work items of a tiling in order, cut the list into groups of 32, and translate a group into requests. "
        "The three tilings differ in what an item is and in the loops around it; two small helpers (parameters of some "
        "points, values of some lanes) serve all of them.",
        "Point (q, m, p) has number `i = (q * M + m) * P + p`: its weight is number i of the weights, its x number 2i of the "
        "locations. Its row of pixel s begins `(s * M + m) * D` numbers into value. Drop lanes whose s is -1, and requests "
        "that are empty.",
    ],
)


exercise(
    "03.traffic_bounds",
    reference=_traffic_bounds,
    cases=[
        hardly_touched,
        read_many_times,
        two_images,
        several_heads,
        rows_across_a_border,
        rows_that_share_sectors,
        the_heads_of_one_pixel,
        mostly_outside,
    ],
    parts=["compulsory", "requested"],
    mistakes=wrong.TRAFFIC_BOUNDS,
    hints=[
        "Two queries read the same pixel of the same head. How much has to come from DRAM, and how much does the machine "
        "hand to the lanes?",
        "Turn every corner that exists into the first and the last sector of its row. The requested bytes need only the "
        "number of sectors of each row; the compulsory ones need the distinct sectors.",
        "Row of pixel s, head m, image b: `(b * S + s) * M + m`, times D * itemsize bytes. With `torch.arange` shaped to "
        "broadcast over corners this is one expression. `torch.unique` keeps each sector once.",
    ],
)


exercise(
    "03.roofline",
    reference=_roofline,
    cases=[read_once, read_often, much_arithmetic],
    properties=[
        Property(
            "below_the_clock", "the floor of a call that was timed lies below its time", _below_the_clock, _decoder
        )
    ],
    parts=["microseconds", "bound"],
    mistakes=wrong.ROOFLINE,
    hints=[
        "How long does DRAM need for its bytes, if everything else took no time? And L1? And the arithmetic?",
        "Three times; all three go on at once. Which decides?",
        "Each time is an amount over a rate. Keep them in a dictionary under the names of the bounds; `max` takes a key.",
    ],
)


exercise(
    "03.order_queries",
    reference=lambda centres: list(range(len(centres))),
    cases=[],
    properties=[
        Property("each_once", "every query is in the order, once", _each_once),
        Property("better_than_rows", "clearly more reads hit than row by row or from left to right", _better_than_rows),
    ],
    stretch=True,
    score=_score,
    mistakes=wrong.ORDER_QUERIES,
    hints=[
        "Two queries share pixels when they are near each other, in x and in y. What does row by row get wrong?",
        "Cut the image into tiles and finish one tile before the next begins. How large may a tile be for this cache?",
        "Sort the numbers of the queries by a key that is equal or close for close centres: the tile they lie in, or the "
        "bits of x and y in turns, which makes tiles of every size at once.",
    ],
)

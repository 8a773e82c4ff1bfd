"""Lab 04, Hello, Triton: its exercises."""

from checks.core.exercise import Property, exercise
from checks.labs.lab04 import wrong
from checks.labs.lab04.cases import (
    ADD_BLOCK,
    LIMIT,
    ROWS_N,
    SUM_BLOCK,
    TILE_H,
    TILE_W,
    _add,
    _bilinear,
    _copy2d,
    _far_rows,
    _far_shares,
    _far_sums,
    _gather,
    _index,
    _own_share,
    _reads,
    _row_sum,
    _softmax,
    _two_blocks_of_points,
    across_the_border,
    between_pixels,
    block_of_another_size,
    blocks_of_another_size,
    downwards_output,
    each_its_own,
    every_other_column,
    gap_after_each_row,
    large_numbers,
    last_block_ragged,
    less_than_a_block_to_normalise,
    long_float16_row,
    minus_infinity_in_a_row,
    odd_length,
    one_block_a_row,
    one_block_to_normalise,
    one_full_block,
    outside,
    part_of_a_matrix,
    pixel_centres,
    points_in_another_block,
    ragged_columns,
    ragged_index,
    ragged_points_and_channels,
    ragged_rows,
    ragged_width,
    rows_apart,
    rows_with_gaps,
    several_blocks_a_row,
    several_blocks_to_normalise,
    short_blocks_a_row,
    short_blocks_to_normalise,
    short_row,
    shorter_than_a_block,
    table_with_gaps,
    tile_of_another_size,
    transposed_input,
    very_negative_numbers,
    very_negative_whole_blocks,
    whole_blocks,
    whole_tiles,
)
from checks.labs.lab04.truth import _copied, _sampled, _sums

FAR_SHARES = "a row may begin more than 2^31 elements after the first, in x and in out"
FAR_ROWS = "a row may lie more than 2^32 elements from the first: 32 bits cannot count so far"

exercise(
    "04.add_kernel",
    reference=lambda x, y, block=0: x + y,
    cases=[one_full_block, each_its_own, last_block_ragged, shorter_than_a_block, block_of_another_size],
    properties=[
        _own_share(
            _add,
            lambda draw: (draw.normal(3 * ADD_BLOCK), draw.normal(3 * ADD_BLOCK)),
            "Which elements are program 1's?",
        )
    ],
    invoke=_add,
    guarded=True,
    limit=LIMIT,
    axes=["element"],
    mistakes=wrong.ADD_KERNEL,
    hints=[
        "You are program number 3, and BLOCK is 32. Which elements are yours? What if there are only 100?",
        "Make a block of element numbers: where your block begins, plus 0, 1, 2, … BLOCK - 1. Pointer plus numbers is a "
        "block of addresses. A block of true and false says which of them exist.",
        "`tl.program_id(0)` is who you are, `tl.arange(0, BLOCK)` are the lanes. `tl.load(addresses, mask=…)`, twice; add; "
        "`tl.store(addresses, values, mask=…)`.",
    ],
)


exercise(
    "04.copy2d_kernel",
    reference=_copied,
    cases=[
        whole_tiles,
        ragged_rows,
        ragged_columns,
        transposed_input,
        every_other_column,
        gap_after_each_row,
        downwards_output,
        part_of_a_matrix,
        tile_of_another_size,
    ],
    properties=[
        _own_share(
            _copy2d,
            lambda draw: (draw.normal(2 * TILE_H, 2 * TILE_W), 0, False),
            "Which rows and which columns are the tile of program (1, 0)?",
        )
    ],
    invoke=_copy2d,
    guarded=True,
    limit=LIMIT,
    axes=["row", "column"],
    mistakes=wrong.COPY2D_KERNEL,
    hints=[
        "Where in memory is the element in row h and column w, if one row down is stride_h elements away and one column "
        "to the right stride_w?",
        "Make row numbers and column numbers as you made element numbers, each from its own program id. Stand one up as a "
        "column and lay the other down as a row: their sum is a whole tile.",
        "`offs[:, None]` has shape (BLOCK_H, 1), `offs[None, :]` (1, BLOCK_W). Masks combine with `&`. Load with the "
        "offsets of x, store with those of out, both under the same mask.",
    ],
)


exercise(
    "04.gather_rows_kernel",
    reference=lambda table, index, block=0: table[index.long()],
    cases=[whole_blocks, ragged_index, ragged_width, table_with_gaps, blocks_of_another_size],
    properties=[
        _own_share(
            _gather, lambda draw: (draw.normal(9, 8), _index(draw, 2 * ROWS_N, 9)), "Which rows of out are program 1's?"
        ),
        Property("far_rows", FAR_ROWS, _far_rows),
    ],
    invoke=_gather,
    guarded=True,
    limit=LIMIT,
    axes=["row", "column"],
    mistakes=wrong.GATHER_ROWS_KERNEL,
    hints=[
        "A program loads numbers and uses them as addresses. What must be known before the table can be read, and how large "
        "can an address become?",
        "First a block of indices, under its mask. Then a tile: rows of the table by the indices you just read, columns by "
        "`tl.arange(0, BLOCK_D)`. BLOCK_D can be more than D.",
        "`row = tl.load(index_ptr + …, mask=…, other=0)`, widened with `.to(tl.int64)` before it meets a stride. The rest is "
        "`copy2d_kernel` with `row[:, None]` in place of the row number.",
    ],
)


exercise(
    "04.bilinear_kernel",
    reference=_sampled,
    cases=[
        pixel_centres,
        between_pixels,
        across_the_border,
        outside,
        ragged_points_and_channels,
        points_in_another_block,
    ],
    properties=[_own_share(_bilinear, _two_blocks_of_points, "Which points are program 1's?", at_once=4)],
    invoke=_bilinear,
    guarded=True,
    limit=LIMIT,
    axes=["point", "channel"],
    mistakes=wrong.BILINEAR_KERNEL,
    hints=[
        "This is `bilinear_sample` from lab 1 for many points at once. Which of its numbers are one per point, and which "
        "one per point and channel?",
        "Per point, so along BLOCK_Q: x, y, the upper left pixel, the weights, and whether a corner exists. Per point and "
        "channel, so a tile (BLOCK_Q, BLOCK_D): what is loaded, and the sum.",
        "Turn `if 0 <= i < W and 0 <= j < H` into a mask, and `other=0.0` does the rest. `tl.floor(x).to(tl.int32)`; four "
        "masked loads at `image_ptr + (row * W + column)[:, None] * D + channel[None, :]`; `weight[:, None]` scales a tile.",
    ],
)


exercise(
    "04.row_sum_kernel",
    reference=_sums,
    cases=[
        one_block_a_row,
        several_blocks_a_row,
        odd_length,
        short_row,
        rows_with_gaps,
        long_float16_row,
        short_blocks_a_row,
    ],
    properties=[
        _own_share(_row_sum, lambda draw: (draw.normal(2, SUM_BLOCK), SUM_BLOCK // 2), "Which row is program 1's?"),
        Property("far_rows", FAR_ROWS, _far_sums),
    ],
    invoke=_row_sum,
    guarded=True,
    limit=LIMIT,
    axes=["row"],
    mistakes=wrong.ROW_SUM_KERNEL,
    hints=[
        "A block has 16 lanes and a row 37 elements. How many turns does a loop need, and which lanes have nothing to add in "
        "the last?",
        "Each lane keeps a sum of its own while the block walks along the row. At the end the lanes are added to each other. "
        "A lane without an element adds the number that changes nothing.",
        "The row's number, widened with `.to(tl.int64)` before it meets the stride. `acc = tl.zeros([BLOCK], tl.float32)`, "
        "`for start in range(0, N, BLOCK)`, a masked load with `other=0.0`, `.to(tl.float32)`, and at the end "
        "`tl.sum(acc, axis=0)`: one number, one store.",
    ],
)


exercise(
    "04.softmax_kernel",
    reference=lambda x, block=0: x.softmax(1),
    cases=[
        one_block_to_normalise,
        several_blocks_to_normalise,
        large_numbers,
        very_negative_numbers,
        very_negative_whole_blocks,
        less_than_a_block_to_normalise,
        minus_infinity_in_a_row,
        rows_apart,
        short_blocks_to_normalise,
    ],
    properties=[
        _own_share(_softmax, lambda draw: (draw.normal(2, SUM_BLOCK), SUM_BLOCK // 2), "Which row is program 1's?"),
        Property("far_rows", FAR_SHARES, _far_shares),
    ],
    invoke=_softmax,
    guarded=True,
    limit=LIMIT,
    axes=["row", "element"],
    stretch=True,
    score=_reads,
    mistakes=wrong.SOFTMAX_KERNEL,
    hints=[
        "What has to be known of the whole row before the first number of the result can be written?",
        "Largest number, then the sum of exp(x - largest), then the results: three walks along the row. Two of them can "
        "become one, if the sum so far is corrected whenever a larger number turns up.",
        "Lanes past the end hold -inf: no maximum changes, and exp makes them zero. For two walks keep a running maximum and "
        "a running sum, and scale the sum by exp(old maximum - new maximum).",
    ],
)

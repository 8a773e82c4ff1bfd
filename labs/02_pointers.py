import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium", app_title="02 · Tensors are pointers")

with app.setup:
    from math import cos, prod, radians, sin

    import marimo as mo
    import torch

    import checks
    from checks.answers.carry import lab01
    from msda_core.figures import memory, sampling


@app.cell(hide_code=True)
def _():
    checks.header(
        "02",
        able=[
            "say where in memory any element of any tensor lies, and what a view, a transpose and a slice change about it",
            "write the operator on nothing but a line of numbers, as a kernel sees it",
            "say at which batch size 32-bit offsets run out, and what happens then",
        ],
        minutes=45,
        gpu="a GPU changes nothing in this lab",
    )
    return


@app.cell(hide_code=True)
def _():
    lab01_file = checks.watch("01")
    return (lab01_file,)


@app.cell(hide_code=True)
def _(lab01_file):
    lab01_file
    mo.vstack(
        [
            mo.md(
                "This lab builds on what you wrote in lab 01: your answers may call `lab01.to_pixels` and "
                "`lab01.corner_weights`. They are read from your notebook, and read again whenever you save it."
            ),
            checks.underneath("01.to_pixels", "01.corner_weights"),
        ]
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## What a kernel gets

    You wrote `value[b, start : start + H * W, m].reshape(H, W, D)`, and PyTorch found the numbers. A GPU kernel has no
    such brackets. It gets a **pointer**: the address of the first number. Shape, levels, heads, all of it is arithmetic
    that you do on that address.
    """)
    return


@app.cell(hide_code=True)
def _():
    guess_transpose = checks.predict(
        "`a` is a matrix of 20,000 × 20,000 numbers. How many of them does `a.T` move?",
        ["400,000,000", "399,980,000: all but the diagonal", "none"],
    )
    guess_transpose
    return (guess_transpose,)


@app.cell(hide_code=True)
def _(guess_transpose):
    checks.reveal(
        guess_transpose,
        right="none",
        because={
            "400,000,000": "That would be a copy, which is what `a.T.contiguous()` makes.",
            "399,980,000: all but the diagonal": "That would be a transpose in place. `a` itself still looks as it did, so nothing can have moved.",
            "none": "A tensor is a pointer, a shape and a list of strides. `a.T` is the same pointer with two strides exchanged.",
        },
    )
    return


@app.cell(hide_code=True)
def _():
    chosen_view = mo.ui.dropdown(list(memory.VIEWS), value="a", label="what to look at")
    chosen_view
    return (chosen_view,)


@app.cell(hide_code=True)
def _(chosen_view):
    memory.views(chosen_view.value)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 1 · Strides

    A **stride** says how many elements further the next index along an axis lies. Look at `a` above, then at `a.T`,
    then at `a.T.contiguous()`: which strides belong to a tensor that fills memory row by row, without gaps?
    """)
    return


@app.function
def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The distance to the next index along each axis, for a tensor that fills memory row by row.

    Args:
        shape: the size of each axis.

    Returns:
        One stride an axis, in elements. Neighbours along the last axis are neighbours in memory.
    """
    raise NotImplementedError("02.contiguous_strides")


@app.cell(hide_code=True)
def _():
    checks.grade("02.contiguous_strides", lambda: contiguous_strides)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("02.contiguous_strides")
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 2 · From an index to an address

    With the strides, every element has an address, whatever was done to the tensor. This one function is all that
    square brackets are. It asks nothing of the strides: `expand` above has a stride of 0, and in NumPy `a[::-1]` has a
    negative one.
    """)
    return


@app.function
def flat_offset(index: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Where in memory an element lies, counted in elements from the one at index (0, 0, ...).

    Args:
        index: where the element is along each axis.
        strides: elements from one index to the next along each axis; may be 0 or negative.

    Returns:
        The offset; negative where the element lies before the one at index (0, 0, ...).
    """
    raise NotImplementedError("02.flat_offset")


@app.cell(hide_code=True)
def _():
    checks.grade("02.flat_offset", lambda: flat_offset)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("02.flat_offset")
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 3 · Four corners on a line

    Around a point lie four pixels, and in the image they touch.
    """)
    return


@app.cell(hide_code=True)
def _():
    guess_corners = checks.predict(
        "`value` is (B, S, M, D) with M = 8 heads of D = 32 channels, on a level 100 pixels wide. In head 0, how many "
        "elements lie between a pixel and the one **below** it?",
        ["1", "100", "3,200", "25,600"],
    )
    guess_corners
    return (guess_corners,)


@app.cell(hide_code=True)
def _(guess_corners):
    checks.reveal(
        guess_corners,
        right="25,600",
        because={
            "1": "In memory, one element further is the next channel of the same pixel.",
            "100": "It is 100 *pixels* further. A pixel holds all channels of all heads.",
            "3,200": "100 pixels of 32 channels would be 3,200, if each head had its own memory. Here the other heads' channels lie in between.",
            "25,600": "One row of the image is 100 pixels, and a pixel is 8 × 32 elements.",
        },
    )
    return


@app.cell(hide_code=True)
def _():
    strip_level = mo.ui.dropdown({"level 0": 0, "level 1": 1}, value="level 0", label="level")
    strip_b = mo.ui.slider(0, 1, value=0, label="b", show_value=True)
    strip_m = mo.ui.slider(0, 1, value=1, label="m", show_value=True)
    mo.hstack([strip_level, strip_b, strip_m], justify="start")
    return strip_b, strip_level, strip_m


@app.cell(hide_code=True)
def _(strip_level):
    strip_levels = [(4, 6), (2, 3)]
    _H, _W = strip_levels[strip_level.value]
    strip_y = mo.ui.slider(-1, _H - 1, value=1, label="y", show_value=True)
    strip_x = mo.ui.slider(-1, _W - 1, value=_W // 2 - 1, label="x", show_value=True)
    mo.hstack([strip_y, strip_x], justify="start")
    return strip_levels, strip_x, strip_y


@app.cell(hide_code=True)
def _(strip_b, strip_level, strip_levels, strip_m, strip_x, strip_y):
    strip_picture, _offsets = memory.memory_strip(
        strip_levels, 2, 2, 4, strip_b.value, strip_m.value, strip_level.value, strip_x.value, strip_y.value
    )
    mo.md(
        f"Move one slider at a time. From the first corner to the others it is **{_offsets[1] - _offsets[0]}**, "
        f"**{_offsets[2] - _offsets[0]}** and **{_offsets[3] - _offsets[0]}** elements. Which sliders change these "
        "three numbers, and which only move all four corners together? Then go off the left edge: the offset of a "
        "pixel that does not exist is still the address of *something*.\n\nWhat you see is a **table**: a row for each "
        "pixel, and in it all channels of all heads, here 2 × 4 elements. The exercise calls it so."
    )
    return (strip_picture,)


@app.cell(hide_code=True)
def _(strip_picture):
    strip_picture
    return


@app.function
def corner_offsets(level_start: int, W: int, x0: int, y0: int, row_stride: int) -> tuple[int, int, int, int]:
    """Where the four pixels around a point lie in `value`, for the first image, head and channel.

    `value` is a table with one row a pixel. The level's pixels begin at row `level_start`, those
    of its top image row first.

    Args:
        level_start: the table's row that holds the level's pixel (0, 0).
        W: the level's width in pixels.
        x0, y0: the upper left of the four pixels; may lie outside the image.
        row_stride: elements from one row of the table to the next.

    Returns:
        The offsets of (x0, y0), (x0 + 1, y0), (x0, y0 + 1), (x0 + 1, y0 + 1), in elements. The same
        arithmetic holds outside the image; whether a pixel may be read is for the caller to decide.
    """
    raise NotImplementedError("02.corner_offsets")


@app.cell(hide_code=True)
def _():
    checks.grade("02.corner_offsets", lambda: corner_offsets)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("02.corner_offsets")
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### The same numbers, laid out otherwise

    Nothing forces `value` to lie in memory as (B, S, M, D). The numbers are the same in every layout. The distances are
    not, and memory is not delivered by the element: the smallest piece a GPU fetches is a **sector** of 32 bytes.
    """)
    return


@app.cell(hide_code=True)
def _():
    layout = mo.ui.dropdown(list(memory.LAYOUTS), value=list(memory.LAYOUTS)[0], label="in memory")
    layout_width = mo.ui.slider(20, 200, step=20, value=100, label="width", show_value=True)
    layout_channels = mo.ui.slider(4, 64, step=4, value=32, label="D", show_value=True)
    layout_itemsize = mo.ui.dropdown({"float32": 4, "float16": 2}, value="float32", label="dtype")
    mo.hstack([layout, layout_width, layout_channels, layout_itemsize], justify="start", wrap=True)
    return layout, layout_channels, layout_itemsize, layout_width


@app.cell(hide_code=True)
def _(layout, layout_channels, layout_itemsize, layout_width):
    _D, _bytes = layout_channels.value, layout_itemsize.value
    _picture, _distances = memory.corner_distances(
        layout.value, layout_width.value * 3 // 4, layout_width.value, 8, _D, _bytes
    )
    _useful, _fetched = 4 * _D * _bytes, 32 * _distances["sectors"]
    mo.vstack(
        [
            _picture,
            mo.md(
                f"One sample of one head needs four corners of {_D} channels, **{_useful:,} bytes**. In this layout it "
                f"fetches {_distances['sectors']} sectors, **{_fetched:,} bytes**: {_useful / _fetched:.0%} of what is "
                "delivered is used. The next lab builds a machine that counts this for any kernel."
            ),
        ]
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 4 · The operator on a line of numbers

    Now the whole operator, as a kernel will do it: no `value[b, s, m, d]`, only `memory[offset]`. What your loops from
    lab 01 took for granted comes in from outside: the strides of `value`, since it may be a view of something else,
    and the start of each level, since levels need not lie one after another.

    Between the levels, and around them, memory holds other people's numbers. Here those are NaN, so that reading one
    shows. You have the parts: `flat_offset`, `corner_offsets`, and from lab 01 `to_pixels` and `corner_weights`.
    """)
    return


@app.function
def msda_flat(
    memory: torch.Tensor,
    shape: tuple[int, int, int, int],
    strides: tuple[int, int, int, int],
    spatial_shapes: torch.Tensor,
    level_start_index: torch.Tensor,
    sampling_locations: torch.Tensor,
    attention_weights: torch.Tensor,
) -> torch.Tensor:
    """Multi-scale deformable attention, read from memory by offsets computed by hand.

    Args:
        memory: (N,). Elements that belong to no pixel of any level hold NaN.
        shape: B, S, M, D of `value`.
        strides: elements from one image, pixel, head and channel of `value` to the next.
        spatial_shapes: (L, 2), the (H, W) of each level.
        level_start_index: (L,), where in S each level begins; in any order, with or without gaps.
        sampling_locations: (B, Q, M, L, K, 2), each point's (x, y): 0 and 1 are a level's edges; also outside.
        attention_weights: (B, Q, M, L, K), each point's weight.

    Returns:
        (B, Q, M * D), in memory's dtype.
    """
    raise NotImplementedError("02.msda_flat")


@app.cell(hide_code=True)
def _(lab01_file):
    lab01_file
    checks.grade("02.msda_flat", lambda: msda_flat)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("02.msda_flat")
    return


@app.cell(hide_code=True)
def _():
    turn = mo.ui.slider(-90, 90, step=5, value=30, label="turn (degrees)", show_value=True)
    zoom = mo.ui.slider(0.5, 2.0, step=0.1, value=1.0, label="zoom", show_value=True)
    mo.hstack([turn, zoom], justify="start")
    return turn, zoom


@app.cell(hide_code=True)
def _(lab01_file, turn, zoom):
    lab01_file
    _function, _whose = checks.stand_in("02.msda_flat", lambda: msda_flat)
    _photo = sampling.pyramid(levels=1, width=32)[0]
    _H, _W, _ = _photo.shape
    _y, _x = torch.meshgrid(torch.arange(_H) + 0.5 - _H / 2, torch.arange(_W) + 0.5 - _W / 2, indexing="ij")
    _c, _s = cos(radians(turn.value)) / zoom.value, sin(radians(turn.value)) / zoom.value
    _places = torch.stack([(_c * _x + _s * _y) / _W, (_c * _y - _s * _x) / _H], -1) + 0.5
    _drawn = _function(
        _photo.flatten(),
        (1, _H * _W, 1, 3),
        (_H * _W * 3, 3, 3, 1),
        torch.tensor([[_H, _W]]),
        torch.tensor([0]),
        _places.reshape(1, _H * _W, 1, 1, 1, 2),
        torch.ones(1, _H * _W, 1, 1, 1),
    )
    _said = f"A photograph of {_W} by {_H} pixels, and the same one turned by {turn.value} degrees at zoom {zoom.value}."
    mo.vstack(
        [
            mo.md(
                f"Every pixel on the right is a query with one point: {_whose} read {_H * _W:,} samples from "
                f"{_photo.numel():,} numbers in a row. Outside the photograph it reads zero, which is black."
            ),
            memory.side_by_side([_photo, _drawn.reshape(_H, _W, 3)], ["in memory", "as sampled"], _said),
        ]
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 5 · When the numbers run out

    GPUs count in 32 bits by preference: a 64-bit addition is two instructions, a multiplication several, and every
    number takes two registers. So offsets in kernels are 32-bit until somebody thinks about it.
    """)
    return


@app.cell(hide_code=True)
def _():
    guess_wrap = checks.predict(
        "On a GPU, two 32-bit integers of 2,000,000,000 are added. What is the result?",
        ["an error", "2,147,483,647, the largest there is", "-294,967,296"],
    )
    guess_wrap
    return (guess_wrap,)


@app.cell(hide_code=True)
def _(guess_wrap):
    _two_billion = torch.tensor(2_000_000_000, dtype=torch.int32)
    checks.reveal(
        guess_wrap,
        right="-294,967,296",
        because={
            "an error": "Nobody checks. The addition costs one instruction, and a check would cost more than the sum.",
            "2,147,483,647, the largest there is": "Some signal processors stop at the end of the range. GPUs and CPUs do not.",
            "-294,967,296": f"Past the end the count starts again at the other end. PyTorch's int32 says so too: {(_two_billion + _two_billion).item():,}.",
        },
    )
    return


@app.cell(hide_code=True)
def _():
    batch = mo.ui.slider(1, 1_600, step=1, value=300, label="batch size", show_value=True, full_width=True)
    batch
    return (batch,)


@app.cell(hide_code=True)
def _(batch, guess_wrap):
    _levels = [(100, 167), (50, 84), (25, 42), (13, 21)]
    _S = sum(_H * _W for _H, _W in _levels)
    _image = _S * 8 * 32
    mo.vstack(
        [
            mo.md(
                f"A detector on an 800 × 1333 photograph has S = {_S:,} pixels on four levels; with 8 heads of 32 channels, one "
                f"image of `value` is {_image:,} numbers."
            ),
            mo.callout(mo.md("What a batch of them does to an index shows here once you have chosen above."), kind="neutral")
            if guess_wrap.value is None
            else memory.index_in_32_bits(batch.value, _image)[0],
        ]
    )
    return


@app.function
def first_overflow(B: int, S: int, M: int, D: int) -> tuple[bool, int]:
    """Whether an int32 can hold every element index of a contiguous (B, S, M, D) tensor.

    Args:
        B, S, M, D: the tensor's shape, all at least 1.

    Returns:
        Whether the largest element index is an int32, so at most 2**31 - 1; and the smallest batch
        size for which it is not, with the same S, M and D.
    """
    raise NotImplementedError("02.first_overflow")


@app.cell(hide_code=True)
def _():
    checks.grade("02.first_overflow", lambda: first_overflow)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("02.first_overflow")
    return


@app.cell(hide_code=True)
def _():
    _function, _whose = checks.stand_in("02.first_overflow", lambda: first_overflow)
    _inputs = {"a photograph of 800 × 1333": (1, 800, 1333), "one of 1600 × 2666": (1, 1600, 2666), "six cameras of 900 × 1600": (6, 900, 1600)}
    _rows = []
    for _what, (_views, _high, _wide) in _inputs.items():
        _S = _views * sum(-(-_high // _step) * -(-_wide // _step) for _step in (8, 16, 32, 64))
        _rows.append(f"| {_what} | {_S:,} | {_function(1, _S, 8, 32)[1]:,} |")
    mo.md(
        f"What {_whose} says, for M = 8 and D = 32:\n\n| input | S | first batch size that overflows |\n|:---|---:|---:|\n"
        + "\n".join(_rows)
        + "\n\nFor one image at a time the end is far away. Count every camera and every past frame as an image, and it is "
        "not. A relative of this operator has been there, with another number: in SparseDrive (pull request 133) it was the "
        "*count of threads to launch* that passed 2³¹ - 1, at a batch of some sixteen, and CUDA refused the launch with an "
        "error. An *offset* that wraps gets no error from anybody, as long as it lies inside some other tensor."
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## What it means

    A kernel is this: offsets, a decision for each whether it may be read, and arithmetic. You now have the offsets, and
    you have seen why the decision cannot be left out. What you have not seen is the price. Two layouts of the same
    numbers, and one of them fetches several times the bytes: the next lab counts them.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Stretch · All offsets at once

    `msda_flat` computes one offset, reads, and goes on to the next. A GPU computes a *block* of offsets, then reads
    them all. Write the operator that way in PyTorch: no loop, one tensor of offsets, one indexing of `memory`. The
    score is how many samples a second you read, and the way there is the way you will think from lab 4 on.
    """)
    return


@app.function
def msda_gather(
    memory: torch.Tensor,
    shape: tuple[int, int, int, int],
    strides: tuple[int, int, int, int],
    spatial_shapes: torch.Tensor,
    level_start_index: torch.Tensor,
    sampling_locations: torch.Tensor,
    attention_weights: torch.Tensor,
) -> torch.Tensor:
    """`msda_flat` without a loop: all offsets in one tensor, all reads in one indexing.

    Args:
        memory: (N,). Elements that belong to no pixel of any level hold NaN.
        shape: B, S, M, D of `value`.
        strides: elements from one image, pixel, head and channel of `value` to the next.
        spatial_shapes: (L, 2), the (H, W) of each level.
        level_start_index: (L,), where in S each level begins; in any order, with or without gaps.
        sampling_locations: (B, Q, M, L, K, 2), each point's (x, y): 0 and 1 are a level's edges; also outside.
        attention_weights: (B, Q, M, L, K), each point's weight.

    Returns:
        (B, Q, M * D), in memory's dtype.
    """
    raise NotImplementedError("02.msda_gather")


@app.cell(hide_code=True)
def _(lab01_file):
    lab01_file
    checks.grade("02.msda_gather", lambda: msda_gather)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("02.msda_gather")
    return


@app.cell(hide_code=True)
def _(lab01_file):
    lab01_file
    checks.closing("02", lambda: (contiguous_strides, flat_offset, corner_offsets, msda_flat, first_overflow, msda_gather))
    return


if __name__ == "__main__":
    app.run()

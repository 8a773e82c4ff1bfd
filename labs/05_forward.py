import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium", app_title="05 · The forward kernel")

with app.setup:
    import marimo as mo
    import torch

    import checks
    from msda_core import device
    from msda_core.device import tl, triton
    from msda_core.figures import tiles as forward, sampling


@app.cell(hide_code=True)
def _():
    checks.header(
        "05",
        able=[
            "write the forward kernel of deformable attention from its signature alone",
            "launch it for any batch, any number of queries and channels, in 16 and in 32 bits",
            "read a map of errors, and see which line of a kernel asks for more than it uses",
        ],
        minutes=60,
        gpu="with a GPU, everything that is right on the CPU is run on the GPU as well",
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## What does one program own?

    You have the operator in loops, its addresses, its sectors, and kernels that gather. Now they become one kernel:

    $$\text{out}_{bqm} = \sum_{l} \sum_{k} A_{bqmlk} \; v_{blm}\big(p_{bqmlk}\big)$$

    Nothing is summed over $b$, $q$ or $m$, so these can be dealt out to programs. Here a program owns a **block of
    queries** of one head of one batch item. Its queries look at different places, and its pixels lie all over the pyramid.
    """)
    return


@app.cell(hide_code=True)
def _():
    block_of_queries = mo.ui.dropdown({"2": 2, "4": 4, "8": 8}, value="4", label="BLOCK_Q")
    reach_of_points = mo.ui.slider(0.5, 6.0, step=0.5, value=2.0, label="reach of the points (pixels)", show_value=True)
    mo.hstack([block_of_queries, reach_of_points], justify="start")
    return block_of_queries, reach_of_points


@app.cell(hide_code=True)
def _(block_of_queries):
    program_number = mo.ui.slider(0, 24 // block_of_queries.value - 1, value=1, label="program", show_value=True)
    program_number
    return (program_number,)


@app.cell(hide_code=True)
def _(block_of_queries, program_number, reach_of_points):
    _images = sampling.pyramid(levels=3, width=48)
    _sizes = torch.tensor([[image.shape[1], image.shape[0]] for image in _images])
    _generator = torch.Generator().manual_seed(1)
    _places = torch.rand(24, 1, 1, 2, generator=_generator)
    _offsets = torch.randn(24, 3, 4, 2, generator=_generator) * reach_of_points.value
    _picture, _reads, _different = forward.tile_over_pyramid(
        _images, _places + _offsets / _sizes[:, None], program_number.value, block_of_queries.value
    )
    mo.vstack(
        [
            _picture,
            mo.md(
                f"This program reads **{_reads}** pixels, **{_different}** different ones. A pixel is D numbers in a row: "
                "that is what a warp's lanes should lie along."
            ),
        ]
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    So the program's result is a **tile**: BLOCK_Q queries by BLOCK_D channels, a sum in each cell, kept in registers until
    the end. The sizes of a tile are powers of two. Queries and channels are not.
    """)
    return


@app.cell(hide_code=True)
def _():
    tile_queries = mo.ui.slider(1, 40, value=21, label="Q", show_value=True)
    tile_channels = mo.ui.slider(1, 64, value=33, label="D", show_value=True)
    tile_block = mo.ui.dropdown({"4": 4, "8": 8, "16": 16}, value="8", label="BLOCK_Q")
    mo.hstack([tile_queries, tile_channels, tile_block], justify="start")
    return tile_block, tile_channels, tile_queries


@app.cell(hide_code=True)
def _(tile_block, tile_channels, tile_queries):
    _programs = -(-tile_queries.value // tile_block.value)
    _picture, _share = forward.tile_of_program(tile_queries.value, tile_channels.value, tile_block.value, _programs - 1)
    mo.vstack(
        [
            _picture,
            mo.md(
                f"This is the {f'last of {_programs} programs' if _programs > 1 else 'only program'}. **{_share:.0%}** of its "
                "cells are real; the hatched ones have to read and write nothing."
            ),
        ]
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 1 · One corner of a whole block

    Four pixels lie around a point, so the same thing is done four times, with `i` and `j` 0 or 1. A kernel may call a
    helper that is also under `@triton.jit`; the compiler copies it in. This one says, for one corner of a block of points,
    which pixel it is, what it weighs, and whether it exists. New here is `tl.where(m, a, b)`: a in the lanes where m is
    true, b in the others, whatever a is there.

    Locations come from a network, and networks go wrong. One day a location is not a number.
    """)
    return


@app.cell(hide_code=True)
def _():
    guess_nan = checks.predict(
        "x is not a number, so its corners' loads are masked off and give 0. What does weight times 0 add to the sum?",
        ["0", "not a number", "nothing, the program stops"],
    )
    guess_nan
    return (guess_nan,)


@app.cell(hide_code=True)
def _(guess_nan):
    checks.reveal(
        guess_nan,
        right="not a number",
        because={
            "0": "So it is with numbers. But the weight comes from x, so it is no number either, and NaN times 0 is NaN.",
            "not a number": "The weight comes from x, so it is NaN, and NaN times 0 is NaN: one bad point spoils all channels of its query. The weight has to be tested too.",
            "nothing, the program stops": "Floating point never stops. The NaN goes on into the sum, and from there into everything that is computed from it.",
        },
    )
    return


@app.function
@triton.jit
def corner(x, y, i: tl.constexpr, j: tl.constexpr, H, W):
    """One of the four pixels around each of a block of points, on a level of H rows and W columns.

    Args:
        x, y: (BLOCK_Q,), float32: pixel coordinates, anywhere; also infinite, or not a number.
        i, j: which of the four: i = 0 left, 1 right; j = 0 upper, 1 lower.

    Returns:
        offset: (BLOCK_Q,), int32: the pixel's number on the level, row by row; whatever where the pixel does not exist.
        weight: (BLOCK_Q,), float32: how much the pixel weighs; 0 where it does not exist.
        mask: (BLOCK_Q,): whether the pixel exists.
    """
    tl.static_assert(False, "05.corner")


@app.cell(hide_code=True)
def _():
    checks.grade("05.corner", lambda: corner)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("05.corner")
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 2 · The kernel

    Only the signature is given. The tensors lie in memory as in lab 2, without gaps:

    | | shape | element (b, …) begins at |
    |:---|:---|:---|
    | `value_ptr` | (B, S, M, D) | `((b * S + pixel) * M + m) * D` |
    | `loc_ptr` | (B, Q, M, L, K, 2) | work it out: which axes come before (x, y)? |
    | `attn_ptr` | (B, Q, M, L, K) | half of that |
    | `out_ptr` | (B, Q, M, D) | `((b * Q + q) * M + m) * D` |

    They may hold 16-bit numbers, of which there are two kinds: **float16** has 11 bits of precision and ends at 65,504,
    **bfloat16** has 8 and the range of float32. Loading one gives a block of its own dtype, and `+`, `-` and `*` of two such
    blocks, or of one and a number, round to it again. (`/` gives float32, and so does a bfloat16 block times a block of integers:
    do not rely on such rules.) Say `.to(tl.float32)` as soon as it is loaded.
    """)
    return


@app.cell(hide_code=True)
def _():
    guess_half = checks.predict(
        "A level is 160 pixels wide, and a location is read and turned into a pixel coordinate in float16. How far off can the point end up?",
        ["less than a hundredth of a pixel", "about a tenth of a pixel", "several pixels"],
    )
    guess_half
    return (guess_half,)


@app.cell(hide_code=True)
def _(guess_half):
    checks.reveal(
        guess_half,
        right="about a tenth of a pixel",
        because={
            "less than a hundredth of a pixel": "float16 holds 11 bits. Pixel numbers from 128 on take 8 of them, and the 3 that are left divide a pixel into eighths.",
            "about a tenth of a pixel": "From 128 on, float16 numbers are an eighth apart. Half a step of rounding, twice, and the weights of all four corners are off by a tenth.",
            "several pixels": "So bad it is not, in float16. bfloat16 has three bits less, and there it is more than a pixel.",
        },
    )
    return


@app.cell(hide_code=True)
def _():
    level_width = mo.ui.slider(8, 256, step=8, value=160, label="width of the level", show_value=True)
    level_width
    return (level_width,)


@app.cell(hide_code=True)
def _(guess_half, level_width):
    _picture, _worst = forward.wasted_coordinates(level_width.value)
    (
        mo.md("*How far points move shows here after your prediction.*")
        if guess_half.value is None
        else mo.vstack(
            [
                _picture,
                mo.md(
                    f"At width {level_width.value} a point moves by up to **{_worst['float16 throughout']:.3f}** pixels in float16 and "
                    f"**{_worst['bfloat16 throughout']:.3f}** in bfloat16. Stored in float16 but computed in float32, "
                    f"{_worst['float16 locations, float32 arithmetic']:.3f}. So: cast first, then compute."
                ),
            ]
        )
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    When your kernel is wrong, the verdict draws **where**: rows are queries, columns are channels. Learn to read such a map
    before you need one. What is broken in each of these four kernels?
    """)
    return


@app.cell(hide_code=True)
def _():
    broken_kernel = mo.ui.dropdown(list(forward.SYMPTOMS), value="A", label="kernel")
    broken_kernel
    return (broken_kernel,)


@app.cell(hide_code=True)
def _(broken_kernel):
    mo.vstack(
        [
            forward.symptom(broken_kernel.value),
            mo.accordion({"What is broken?": mo.md(forward.SYMPTOMS[broken_kernel.value])}),
        ]
    )
    return


@app.function
@triton.jit
def msda_fwd_kernel(
    value_ptr,
    shapes_ptr,
    starts_ptr,
    loc_ptr,
    attn_ptr,
    out_ptr,
    Q,
    S,
    M: tl.constexpr,
    D: tl.constexpr,
    L: tl.constexpr,
    K: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """out[b, q, m] = the sum over levels and points of attn * (value of head m at loc). Computed in float32.

    Program (i, j) owns the i-th block of BLOCK_Q queries, of head j % M of batch item j // M, every channel.

    Args:
        value_ptr: (B, S, M, D), float32, float16 or bfloat16; more than 2^31 elements if B is large.
        shapes_ptr: (L, 2), the (H, W) of each level; starts_ptr: (L,), each level's first pixel among the S; both int32
            or both int64.
        loc_ptr: (B, Q, M, L, K, 2), each point's (x, y), from 0 at one edge of a level to 1 at the other.
        attn_ptr: (B, Q, M, L, K).
        out_ptr: (B, Q, M, D). Everything is contiguous; loc, attn and out may be float32 or 16-bit, each for itself.
        BLOCK_D: a power of two, at least D.
    """
    tl.static_assert(False, "05.msda_fwd_kernel")


@app.cell(hide_code=True)
def _():
    checks.grade("05.msda_fwd_kernel", lambda: msda_fwd_kernel)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("05.msda_fwd_kernel")
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 3 · The launcher

    A kernel sees addresses and numbers. Somebody has to make the result, choose the blocks, count the programs and see to it
    that memory lies as the kernel says. This function is what the rest of the course calls: labs 6 to 10 run **your**
    kernel through it.
    """)
    return


@app.function
def msda_forward(
    value: torch.Tensor,
    spatial_shapes: torch.Tensor,
    level_start_index: torch.Tensor,
    sampling_locations: torch.Tensor,
    attention_weights: torch.Tensor,
) -> torch.Tensor:
    """Multi-scale deformable attention by your own kernel, on the device where value is.

    Args:
        value: (B, S, M, D), float32, float16 or bfloat16, with any strides.
        spatial_shapes: (L, 2), the (H, W) of each level; level_start_index: (L,); int32 or int64.
        sampling_locations: (B, Q, M, L, K, 2); attention_weights: (B, Q, M, L, K); in value's dtype or float32.

    Returns:
        (B, Q, M * D), in value's dtype. Q or B may be 0.
    """
    raise NotImplementedError("05.msda_forward")


@app.cell(hide_code=True)
def _():
    checks.grade("05.msda_forward", lambda: msda_forward)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("05.msda_forward")
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 4 · Right, and wasteful?

    Two kernels can give the same numbers and ask memory for very different amounts. Each request of a warp asks L1 for
    sectors of 32 bytes, used or not; what L1 does not have goes on to L2. Your kernel reads three kinds of things: pixels,
    locations and weights.
    """)
    return


@app.cell(hide_code=True)
def _():
    guess_waste = checks.predict(
        "A program loops over points. At each, it loads the x of every query of its block, in float32. Of the 32 bytes of each sector, how many does that load use?",
        ["4", "16", "32"],
    )
    guess_waste
    return (guess_waste,)


@app.cell(hide_code=True)
def _(guess_waste):
    checks.reveal(
        guess_waste,
        right="4",
        because={
            "4": "The next query's x lies M * L * K points further on, so each lane has a sector of its own and takes one number from it.",
            "16": "The sector does hold the x of four points. But they are the same query's next points, and this load wants another query's.",
            "32": "That would be so if the x of neighbouring queries were neighbours. Between them lie all heads, levels and points of a query.",
        },
    )
    return


@app.cell(hide_code=True)
def _():
    line_block = mo.ui.dropdown({"8": 8, "16": 16}, value="16", label="BLOCK_Q")
    line_warps = mo.ui.dropdown({"1": 1, "2": 2, "4": 4}, value="4", label="warps")
    line_tensor = mo.ui.dropdown({"value": 0, "locations": 3, "weights": 4, "result": 5}, value="locations", label="look at")
    mo.hstack([line_block, line_warps, line_tensor], justify="start")
    return line_block, line_tensor, line_warps


@app.cell(hide_code=True)
def _(guess_waste, line_block, line_warps):
    if device.NO_TRITON or guess_waste.value is None:
        line_report, _shown = None, mo.md("*What each line asks for and uses shows here after your prediction.*")
    else:
        _kernel, _whose = checks.stand_in("05.msda_fwd_kernel", lambda: msda_fwd_kernel)
        line_report = forward.profile_kernel(_kernel, line_block.value, line_warps.value)
        _shown = mo.vstack([mo.md(f"Line by line, {_whose}:"), forward.traffic_by_line(line_report)])
    _shown
    return (line_report,)


@app.cell(hide_code=True)
def _(line_report, line_tensor):
    (
        mo.md("*And here, the lanes of one request.*")
        if line_report is None
        else forward.request_of_tensor(line_report, line_tensor.value)
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    Your launcher has a score: the sectors it asks L1 for in one small call, counted by the machine of lab 3. Here it is among
    others, on this machine only. It is not a time: a sector that L1 holds costs little, and what else costs time is the first
    question of lab 6.
    """)
    return


@app.cell(hide_code=True)
def _():
    checks.when_passed("05.msda_forward", lambda: msda_forward, lambda yours: forward.contenders(yours)[0])
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## What it means

    You wrote the operator's forward kernel, and it is right in every dtype, at every edge, with every pyramid. Its pixels come
    in whole sectors; the sectors of which it uses little are those of locations and weights. How one program is cut, and what it
    holds at once, is the subject of the next lab, and so is the question whether fewer sectors are also less time.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Stretch · Softmax on the way

    In a model the attention weights come from a softmax over the points of a query's head, which writes them to memory only
    for your kernel to read them again. Take the **logits** instead, the numbers that go into a softmax. The score is how many
    sectors you ask for.
    """)
    return


@app.function
@triton.jit
def msda_fwd_logits_kernel(
    value_ptr,
    shapes_ptr,
    starts_ptr,
    loc_ptr,
    logits_ptr,
    out_ptr,
    Q,
    S,
    M: tl.constexpr,
    D: tl.constexpr,
    L: tl.constexpr,
    K: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """`msda_fwd_kernel` that makes the attention weights itself: softmax over the L * K logits of each query and head.

    Programs and arguments are those of `msda_fwd_kernel`; everything is float32.

    Args:
        logits_ptr: (B, Q, M, L, K), of any size: exp must not overflow.
    """
    tl.static_assert(False, "05.msda_fwd_logits_kernel")


@app.cell(hide_code=True)
def _():
    checks.grade("05.msda_fwd_logits_kernel", lambda: msda_fwd_logits_kernel)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("05.msda_fwd_logits_kernel")
    return


@app.cell(hide_code=True)
def _():
    checks.closing("05", lambda: (corner, msda_fwd_kernel, msda_forward, msda_fwd_logits_kernel))
    return


if __name__ == "__main__":
    app.run()

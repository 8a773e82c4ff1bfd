import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium", app_title="04 · Hello, Triton")

with app.setup:
    import marimo as mo
    import torch

    import checks
    from msda_core import device, machine
    from msda_core.device import tl, triton
    from msda_core.figures import programs, sampling


@app.cell(hide_code=True)
def _():
    checks.header(
        "04",
        able=[
            "write a Triton kernel: programs, lanes, pointers, masks, constants",
            "say what a missing mask does, and read what the guard has to say about it",
            "follow a line of your own down to the instructions of a GPU",
        ],
        minutes=60,
        gpu="with a GPU, each kernel that is right on the CPU is run on the GPU as well",
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## One function, many programs

    You have counted what a GPU does with memory. Now you write what it runs. A **kernel** is a function that is run many
    times at once, and each run is a **program**. Programs do not talk to each other. They run the same lines, on the same
    arguments; only one thing differs, the answer to "who am I?", `tl.program_id(0)`.

    Inside a program, no loop runs over elements. `tl.arange(0, BLOCK)` is a whole block of numbers, and each line works on
    all its **lanes** together. Loops there are, over other things: over the four corners of a point, or from block to block
    along a row that is longer than one. How the lanes are spread over warps and threads is the compiler's business.

    | you write | it means |
    |:---|:---|
    | `x_ptr` | the address of the tensor's first element; nothing about its size or shape |
    | `x_ptr + offs` | a block of addresses, counted in elements |
    | `tl.load(addresses, mask=m, other=0.0)` | reads where m is true; elsewhere the lane holds `other`. Without `other` it holds anything |
    | `tl.store(addresses, values, mask=m)` | writes where m is true |
    | `BLOCK: tl.constexpr` | known when the kernel is compiled: sizes of blocks must be, and are powers of two |
    | `a < b`, `m & n`, `~m` | lane by lane, true or false; comparisons in parentheses, as in `(a < b) & (c < d)`. Python's `and` and `if` ask one question of a whole block, and a block has no one answer |
    | `a // b`, `a % b` | whole numbers divided, lane by lane |
    | `rows[:, None]`, `columns[None, :]` | a block as a column, (n, 1), or as a row, (1, n): together they make a tile |
    | `tl.zeros([BLOCK], tl.float32)` | a block of zeros, to add to; `[BLOCK_Q, BLOCK_D]` is a tile of them |
    | `tl.floor(x)`, `.to(tl.int32)` | rounds down, and still is a float; makes it a whole number, which addresses are |
    | `.to(tl.int64)` | the same with 64 bits: before a product that may pass 2³¹, as a row of a large tensor times its length |

    Which lane of which program touches which element? Step through the programs.
    """)
    return


@app.cell(hide_code=True)
def _():
    vector_length = mo.ui.slider(6, 40, value=27, label="N", show_value=True)
    vector_block = mo.ui.dropdown({"4": 4, "8": 8, "16": 16}, value="8", label="BLOCK")
    mo.hstack([vector_length, vector_block], justify="start")
    return vector_block, vector_length


@app.cell(hide_code=True)
def _(vector_block, vector_length):
    vector_program = mo.ui.slider(0, -(-vector_length.value // vector_block.value) - 1, value=0, label="program", show_value=True)
    vector_program
    return (vector_program,)


@app.cell(hide_code=True)
def _(vector_block, vector_length, vector_program):
    _picture, _idle = programs.lanes_over_vector(vector_length.value, vector_block.value, vector_program.value)
    mo.vstack(
        [
            _picture,
            mo.md(
                f"Of the {vector_block.value} lanes of program {vector_program.value}, **{vector_block.value - _idle}** have an "
                f"element and **{_idle}** have none."
            ),
        ]
    )
    return


@app.cell(hide_code=True)
def _():
    guess_programs = checks.predict(
        "A vector has 100 elements, and BLOCK is 32. How many programs are needed, and how many lanes of the last have nothing to do?",
        ["3 programs, no lane idle", "4 programs, 28 lanes idle", "4 programs, 4 lanes idle"],
    )
    guess_programs
    return (guess_programs,)


@app.cell(hide_code=True)
def _(guess_programs):
    checks.reveal(
        guess_programs,
        right="4 programs, 28 lanes idle",
        because={
            "3 programs, no lane idle": "Three blocks are 96 elements, and the last four would never be added. Rounding down loses the end of the vector.",
            "4 programs, 28 lanes idle": "Four blocks are 128 lanes, 28 more than there are elements. Those lanes exist all the same, and have to be told not to touch memory.",
            "4 programs, 4 lanes idle": "Four elements are left for the last program, and they keep four lanes busy. The other 28 are idle.",
        },
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 1 · A first kernel

    The idle lanes compute addresses like all others, past the end of the tensor. On a GPU a read there gives garbage or
    ends your session, and a write destroys what somebody else keeps there, without a word. A **mask** turns these lanes
    off.

    Here your kernels run under a **guard**, which looks at every address before it is used. Forget a mask on purpose and
    see what it says.
    """)
    return


@app.function
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, N, BLOCK: tl.constexpr):
    """out[i] = x[i] + y[i] for i below N. One program: BLOCK neighbouring elements.

    Args:
        x_ptr, y_ptr, out_ptr: (N,), float32.
    """
    tl.static_assert(False, "04.add_kernel")


@app.cell(hide_code=True)
def _():
    checks.grade("04.add_kernel", lambda: add_kernel)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("04.add_kernel")
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    A kernel is launched over a **grid**: as many programs as are needed, in square brackets before the arguments. This is
    done by a plain function beside the kernel, its **launcher**. The verdict above launches your kernel in the same way.
    `triton.cdiv(N, BLOCK)` divides and rounds up. One more setting stands among the arguments, `num_warps=4` if you say
    nothing: how many warps of 32 threads work on a program together. (CUDA calls such a group a **thread block**. `BLOCK` is
    something else: how many elements there are to share out among them.)
    """)
    return


@app.function
def add(x: torch.Tensor, y: torch.Tensor, BLOCK: int = 32) -> torch.Tensor:
    """x + y for two vectors (N,)."""
    N = x.numel()
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(N, BLOCK),)](x, y, out, N, BLOCK=BLOCK)
    return out


@app.cell(hide_code=True)
def _():
    touched_program = mo.ui.slider(0, 2, value=2, label="program", show_value=True)
    touched_program
    return (touched_program,)


@app.cell(hide_code=True)
def _(touched_program):
    def _draw(kernel):
        _x = torch.arange(20.0)
        _trace = machine.trace(kernel, (3,), _x, _x.flip(0), torch.zeros(20), 20, BLOCK=8)
        return mo.vstack(
            [
                mo.md("**What your kernel touched**, access by access, on 20 elements in blocks of 8:"),
                programs.touched(_trace, touched_program.value, 20),
            ]
        )


    checks.when_passed("04.add_kernel", lambda: add_kernel, _draw)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 2 · Tiles

    A matrix is cut into **tiles**, and the grid gets two axes. A row of column numbers and a column of row numbers add up
    to a whole tile of offsets: `rows[:, None] * stride_h + columns[None, :] * stride_w`. You know strides from lab 2: with
    them, one kernel serves tensors that lie in memory in any way.

    A grid has up to three axes. Axis 0 takes more than two billion programs; axes 1 and 2 take **65,535** each, on every
    Nvidia GPU, and a launch with more fails. So what can be many goes on axis 0.

    Look at how a tile hangs over the edges, and at where its elements lie in memory.
    """)
    return


@app.cell(hide_code=True)
def _():
    tile_down = mo.ui.slider(0, 1, value=1, label="program_id(0)", show_value=True)
    tile_right = mo.ui.slider(0, 1, value=1, label="program_id(1)", show_value=True)
    tile_layout = mo.ui.dropdown(
        {"row by row": (13, 1), "a gap after each row": (16, 1), "column by column": (1, 7)}, value="row by row", label="in memory"
    )
    mo.hstack([tile_layout, tile_down, tile_right], justify="start")
    return tile_down, tile_layout, tile_right


@app.cell(hide_code=True)
def _(tile_down, tile_layout, tile_right):
    _picture, _lanes, _runs = programs.lanes_over_matrix(
        7, 13, tile_layout.value, (4, 8), (tile_down.value, tile_right.value)
    )
    mo.vstack(
        [
            _picture,
            mo.md(
                f"**{_lanes}** of 32 lanes have an element. In memory these lie in **{_runs}** separate stretches. What would a lane "
                "read that hangs over the right edge: nothing, or something?"
            ),
        ]
    )
    return


@app.function
@triton.jit
def copy2d_kernel(
    x_ptr, out_ptr, H, W, stride_xh, stride_xw, stride_oh, stride_ow, BLOCK_H: tl.constexpr, BLOCK_W: tl.constexpr
):
    """out[h, w] = x[h, w] for h below H and w below W. One program: a tile (BLOCK_H, BLOCK_W).

    Program (i, j) owns the i-th tile downwards and the j-th to the right.

    Args:
        x_ptr, out_ptr: (H, W), float32.
        stride_xh, stride_xw: elements from one row of x to the next, and from one column to the next.
        stride_oh, stride_ow: the same for out.
    """
    tl.static_assert(False, "04.copy2d_kernel")


@app.cell(hide_code=True)
def _():
    checks.grade("04.copy2d_kernel", lambda: copy2d_kernel)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("04.copy2d_kernel")
    return


@app.function
def copy2d(x: torch.Tensor, out: torch.Tensor, BLOCK_H: int = 4, BLOCK_W: int = 8) -> torch.Tensor:
    """Copy x into out: both (H, W), with any strides."""
    H, W = x.shape
    grid = (triton.cdiv(H, BLOCK_H), triton.cdiv(W, BLOCK_W))
    copy2d_kernel[grid](x, out, H, W, *x.stride(), *out.stride(), BLOCK_H=BLOCK_H, BLOCK_W=BLOCK_W)
    return out


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 3 · Addresses that come from memory

    So far a program could work out its addresses from its number. Deformable attention cannot: *where* it reads is itself
    read from memory. The smallest kernel of that kind copies rows of a table, in an order that a second tensor holds.
    """)
    return


@app.cell(hide_code=True)
def _():
    gather_program = mo.ui.slider(0, 2, value=1, label="program (BLOCK_N = 3)", show_value=True)
    gather_program
    return (gather_program,)


@app.cell(hide_code=True)
def _(gather_program):
    programs.gathered_rows([5, 0, 2, 5, 1, 3, 3], rows=6, block=3, program=gather_program.value)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    Two things to look out for. Indices are often int32, and an int32 times an int32 is an int32 in a kernel, wrapped round
    without a word where it does not fit. And lanes that were masked off when the index was read hold no index: what they
    hold depends on `other`, and without `other` on nothing you can rely on.
    """)
    return


@app.function
@triton.jit
def gather_rows_kernel(table_ptr, index_ptr, out_ptr, N, D, stride_row, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):
    """out[n, d] = table[index[n], d] for n below N and d below D. One program: BLOCK_N rows.

    Args:
        table_ptr: (R, D); rows are stride_row elements apart: the last may begin past 2^31.
        index_ptr: (N,), int32, each from 0 to R - 1.
        out_ptr: (N, D), its rows one after another.
        BLOCK_D: a power of two, at least D.
    """
    tl.static_assert(False, "04.gather_rows_kernel")


@app.cell(hide_code=True)
def _():
    checks.grade("04.gather_rows_kernel", lambda: gather_rows_kernel)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("04.gather_rows_kernel")
    return


@app.function
def gather_rows(table: torch.Tensor, index: torch.Tensor, BLOCK_N: int = 4) -> torch.Tensor:
    """table[index] for a table (R, D) and an index (N,) of int32: (N, D)."""
    N, D = index.numel(), table.shape[1]
    out = table.new_empty(N, D)
    grid, BLOCK_D = (triton.cdiv(N, BLOCK_N),), triton.next_power_of_2(D)
    gather_rows_kernel[grid](table, index, out, N, D, table.stride(0), BLOCK_N=BLOCK_N, BLOCK_D=BLOCK_D)
    return out


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 4 · Your bilinear sample, in parallel

    Now lab 1 again, many points at once: one level, one head, every query a single point. The loop over corners stays. The
    `if` becomes a mask: lanes of one program cannot take different branches, but each can be told what to count as zero.

    A program owns BLOCK_Q points and all their channels, a tile (BLOCK_Q, BLOCK_D). Some numbers are per point, others per
    point and channel: `weight[:, None]` stretches the first to the second.

    Two kinds of loops: `for i in range(n)` is a loop on the GPU, and n may be known only when the kernel runs.
    `for corner in tl.static_range(4)` is written out four times by the compiler, and `corner` is a constant in each copy: good
    for a few turns that should differ, as `if corner % 2 == 1:`, and costly in code for many.
    """)
    return


@app.function
@triton.jit
def bilinear_kernel(image_ptr, loc_ptr, out_ptr, Q, H, W, D, BLOCK_Q: tl.constexpr, BLOCK_D: tl.constexpr):
    """out[q] = the image read at location q; zero outside. One program: BLOCK_Q points.

    Args:
        image_ptr: (H, W, D), float32, contiguous.
        loc_ptr: (Q, 2), float32, contiguous: (x, y), from 0 at one edge to 1 at the other.
        out_ptr: (Q, D), float32, contiguous.
        BLOCK_D: a power of two, at least D.
    """
    tl.static_assert(False, "04.bilinear_kernel")


@app.cell(hide_code=True)
def _():
    checks.grade("04.bilinear_kernel", lambda: bilinear_kernel)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("04.bilinear_kernel")
    return


@app.function
def bilinear(image: torch.Tensor, locations: torch.Tensor, BLOCK_Q: int = 16) -> torch.Tensor:
    """An image (H, W, D) read at locations (Q, 2): (Q, D)."""
    H, W, D = image.shape
    Q = locations.shape[0]
    out = image.new_empty(Q, D)
    grid, BLOCK_D = (triton.cdiv(Q, BLOCK_Q),), triton.next_power_of_2(D)
    bilinear_kernel[grid](image, locations, out, Q, H, W, D, BLOCK_Q=BLOCK_Q, BLOCK_D=BLOCK_D)
    return out


@app.cell(hide_code=True)
def _():
    photo_zoom = mo.ui.slider(0.6, 4.0, step=0.2, value=1.4, label="zoom", show_value=True)
    photo_angle = mo.ui.slider(-90, 90, step=5, value=20, label="angle", show_value=True)
    mo.hstack([photo_zoom, photo_angle], justify="start")
    return photo_angle, photo_zoom


@app.cell(hide_code=True)
def _(photo_angle, photo_zoom):
    def _draw(kernel):
        _image = sampling.pyramid(1, 40)[0].contiguous()
        _locations = programs.turned(24, photo_zoom.value, photo_angle.value)
        _samples = bilinear(_image.to(device.ACTIVE), _locations.to(device.ACTIVE), BLOCK_Q=64).cpu()
        return mo.vstack(
            [
                mo.md(f"**Your kernel at work**: {len(_locations)} points, {-(-len(_locations) // 64)} programs. Zoom out until you see the zeros."),
                programs.side_by_side(_image, _locations, _samples),
            ]
        )


    checks.when_passed("04.bilinear_kernel", lambda: bilinear_kernel, _draw)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 5 · Longer than a block

    A block has a size that is fixed when the kernel is compiled; a row can have any length. So a program walks along its
    row, block by block (`for start in range(0, N, BLOCK)`), and each lane keeps a sum of its own. At the end `tl.sum(x, axis=0)`
    adds the lanes. `tl.max(x, axis=0)` finds the largest of them; of a tile, `axis=1` makes a block with one number a row.
    """)
    return


@app.cell(hide_code=True)
def _():
    walk_turn = mo.ui.slider(0, 2, value=0, label="turn of the loop", show_value=True)
    walk_turn
    return (walk_turn,)


@app.cell(hide_code=True)
def _(walk_turn):
    _row = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8]
    _picture, _sum = programs.row_walk(_row, 8, walk_turn.value)
    mo.vstack(
        [
            _picture,
            mo.md(f"The lanes together hold **{_sum:g}** of {sum(_row)}. Lanes past the end add zero, because `other` says so."),
        ]
    )
    return


@app.function
@triton.jit
def row_sum_kernel(x_ptr, out_ptr, N, stride_row, BLOCK: tl.constexpr):
    """out[r] = x[r, 0] + … + x[r, N - 1], in float32. One program: a row, block by block.

    Args:
        x_ptr: (R, N), float32 or float16; its rows are stride_row elements apart: the last may begin past 2^31.
        out_ptr: (R,), float32.
    """
    tl.static_assert(False, "04.row_sum_kernel")


@app.cell(hide_code=True)
def _():
    checks.grade("04.row_sum_kernel", lambda: row_sum_kernel)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("04.row_sum_kernel")
    return


@app.function
def row_sum(x: torch.Tensor, BLOCK: int = 16) -> torch.Tensor:
    """The sum of each row of x (R, N): (R,), float32."""
    R, N = x.shape
    out = torch.empty(R, device=x.device)
    row_sum_kernel[(R,)](x, out, N, x.stride(0), BLOCK=BLOCK)
    return out


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## From your line to the machine's

    `@triton.jit` does not run your function, it reads it. On its first launch with new types and constants the kernel is
    **compiled**: Python's syntax tree becomes Triton's own representation, there the lanes get their places (a *layout*:
    which thread of which warp holds which elements), then comes PTX, and at last SASS, the instructions of one particular GPU.
    PTX is the assembly language of a *virtual* GPU: one language, but a listing names its target, and newer targets have
    instructions that older ones lack. The target is a **compute capability**: 9.0, written SM 9.0 or sm_90, is Hopper, the
    generation of H100 and H200; 8.0 is Ampere (A100), 8.9 Ada (RTX 40), 10.0 Blackwell (B200). All but running it needs no
    GPU, so you can look at it here.

    This is also why your verdicts have a line "a GPU's compiler accepts it": the interpreter, which runs your kernel on the
    CPU, lets you use all of Python. The compiler does not.
    """)
    return


@app.cell(hide_code=True)
def _():
    guess_loads = checks.predict(
        "A program of 4 warps adds blocks of 1024 float32. On an H200 a thread reads at most 16 bytes at once. How many load instructions does one thread need for its share of x?",
        ["8", "2", "1"],
    )
    guess_loads
    return (guess_loads,)


@app.cell(hide_code=True)
def _(guess_loads):
    checks.reveal(
        guess_loads,
        right="2",
        because={
            "8": "1024 elements over 128 threads are 8 elements each, that is right. But neighbours in memory travel together, four float32 in one instruction.",
            "2": "1024 elements over 128 threads are 8 each, 32 bytes: two instructions of 16 bytes.",
            "1": "8 elements of 4 bytes are 32 bytes a thread, and one instruction moves at most 16 here. (From SM 10.0 on there are loads of 32 bytes.)",
        },
    )
    return


@app.cell(hide_code=True)
def _():
    ptx_block = mo.ui.dropdown(["32", "128", "256", "512", "1024", "2048"], value="1024", label="BLOCK")
    ptx_length = mo.ui.dropdown({"65536": 65536, "65533": 65533}, value="65536", label="N")
    mo.hstack([ptx_block, ptx_length], justify="start")
    return ptx_block, ptx_length


@app.cell(hide_code=True)
def _(ptx_block, ptx_length):
    def _draw(kernel):
        _lowered = {
            _block: machine.lower(kernel, "*fp32", "*fp32", "*fp32", ptx_length.value, BLOCK=_block)
            for _block in (32, 128, 256, 512, 1024, 2048)
        }
        _counts, _widths = zip(*map(programs.load_instructions, _lowered.values()))
        _chosen = _lowered[int(ptx_block.value)]
        return mo.vstack(
            [
                mo.md(f"**Your kernel, compiled for SM {_chosen.target // 10}.{_chosen.target % 10}**, with {_chosen.num_warps} warps a program:"),
                programs.load_widths(list(_lowered), _counts, _widths, int(ptx_block.value)),
                mo.md(
                    f"One thread uses {_chosen.registers} **registers**, its own storage for numbers of 32 bits. There are 65,536 "
                    "in a multiprocessor and at most 255 for a thread: the more each uses, the fewer threads fit. The stages of "
                    "this kernel, from top to bottom:"
                ),
                mo.accordion(
                    {_stage: mo.md(f"```text\n{_text}\n```") for _stage, _text in programs.listings(_chosen).items()},
                    multiple=True,
                ),
            ]
        )


    checks.when_passed("04.add_kernel", lambda: add_kernel, _draw)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    Set N to 65,533. Nothing in your kernel changes, and the wide loads are gone: the mask may now end in the middle of four
    elements, so each has to be asked about by itself. Triton compiles a second version of a kernel for numbers that are
    divisible by 16, because it makes this difference. Why a block of 32 is a waste of threads, you can see as well: 128 of
    them are there.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## What it means

    You can write kernels, and you know what stands between them and memory: a mask for each way out, a type wide enough for
    each address, `other` for each lane that reads nothing. The next lab has no more steps: five loops of deformable
    attention become one kernel, and only the signature is given.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Stretch · Softmax, and how often memory is read

    Attention weights come out of a softmax: exp of each number, divided by the sum of all of them. A row can be longer than a
    block, so the program walks along it: once for the largest number, once for the sum, once to write. The score is how often
    each element is read from memory. Three walks are straightforward; fewer are possible.

    What you need: `tl.exp(x)`, lane by lane; `tl.maximum(a, b)`, the larger of the two in each lane, and `tl.max(x, axis=0)`,
    the largest of a block; `tl.full([BLOCK], float("-inf"), tl.float32)`, a block of one number, to begin a maximum with. A lane
    past the end should not win the maximum: `other=float("-inf")` sees to that, and its exp is 0.
    """)
    return


@app.function
@triton.jit
def softmax_kernel(x_ptr, out_ptr, N, stride_row, BLOCK: tl.constexpr):
    """out[r, n] = exp(x[r, n]) / sum over n of exp(x[r, n]). One program: a row, block by block.

    exp must not overflow, whatever x holds.

    Args:
        x_ptr, out_ptr: (R, N), float32; rows are stride_row elements apart: the last may begin past 2^31.
    """
    tl.static_assert(False, "04.softmax_kernel")


@app.cell(hide_code=True)
def _():
    checks.grade("04.softmax_kernel", lambda: softmax_kernel)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("04.softmax_kernel")
    return


@app.function
def softmax(x: torch.Tensor, BLOCK: int = 16) -> torch.Tensor:
    """The softmax of each row of x (R, N), contiguous."""
    R, N = x.shape
    out = torch.empty_like(x)
    softmax_kernel[(R,)](x, out, N, x.stride(0), BLOCK=BLOCK)
    return out


@app.cell(hide_code=True)
def _():
    checks.closing("04", lambda: (add_kernel, copy2d_kernel, gather_rows_kernel, bilinear_kernel, row_sum_kernel, softmax_kernel))
    return


if __name__ == "__main__":
    app.run()

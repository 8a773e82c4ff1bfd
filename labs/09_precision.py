import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium", app_title="09 · The precision switch")

with app.setup:
    import inspect
    import linecache
    import re

    import marimo as mo
    import torch

    import checks
    from checks.answers.carry import lab08
    from checks.kernel.launches import edited
    from msda_core import device, machine, reference
    from msda_core.device import tl, triton
    from msda_core.figures import concurrency, precision


@app.cell(hide_code=True)
def _():
    checks.header(
        "09",
        able=[
            "say when a sum in sixteen bits stops growing, and measure it",
            "read off a listing how a GPU adds: one instruction, an answer waited for, or a loop",
            "choose the dtype of a sum by that evidence, and write a backward pass that switches",
        ],
        minutes=50,
        gpu="with a GPU, the switched backward pass is run on the GPU as well",
    )
    return


@app.cell(hide_code=True)
def _():
    lab08_file = checks.watch("08")
    return (lab08_file,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Half the bytes

    Models train in sixteen bits because half the bytes move in half the time, and because tensor cores multiply matrices of
    sixteen bits many times faster than other units multiply float32 (an H200's data sheet: 989 against 67 TFLOPS). Your kernel
    of lab 8 takes float16 and bfloat16, and it computes in float32. But one thing happens in memory, where no float32 helps:
    the additions to `grad_value`. There the sum itself has sixteen bits, and so it does after each single addition.

    Is that fast? Is it right? The answers pull in different directions. Below is one such addition: the sum so far, one more
    share of the gradient, and the number of the dtype in which it ends.
    """)
    return


@app.cell(hide_code=True)
def _():
    sum_so_far = mo.ui.slider(steps=[1, 4, 16, 40, 64, 100, 128, 160, 200, 250], value=100, label="the sum so far", show_value=True)
    one_share = mo.ui.slider(0.1, 3.0, step=0.1, value=0.7, label="one more share", show_value=True)
    mo.hstack([sum_so_far, one_share], justify="start")
    return one_share, sum_so_far


@app.cell(hide_code=True)
def _(one_share, sum_so_far):
    _picture, _before, _after = precision.one_addition(sum_so_far.value, one_share.value, torch.bfloat16)
    mo.vstack([_picture, mo.md(f"A share of {one_share.value:g} made the sum larger by **{_after - _before:g}**.")])
    return


@app.cell(hide_code=True)
def _():
    guess_sum = checks.predict(
        "A pixel of a small level gets 4,096 shares of exactly 1, one addition after the other, in bfloat16. What does it hold at the end?",
        ["4096", "about 4096, off by a few", "256"],
    )
    guess_sum
    return (guess_sum,)


@app.cell(hide_code=True)
def _(guess_sum):
    checks.reveal(
        guess_sum,
        right="256",
        because={
            "4096": "bfloat16 does have 4096. The question is whether the sum gets there in steps of one.",
            "about 4096, off by a few": "If the roundings went up and down by turns, it would be so. But from some point on they all go the same way.",
            "256": "Near 256, the numbers of bfloat16 lie two apart. 256 + 1 lies exactly halfway between 256 and 258. Such a tie goes to the one whose last bit is 0: back to 256, every time.",
        },
    )
    return


@app.cell(hide_code=True)
def _():
    what_is_added = mo.ui.dropdown(["ones", "between 0 and 1", "of either sign"], value="ones", label="numbers that are added")
    how_many = mo.ui.slider(0, 12, value=10, label="additions, as a power of two", show_value=True)
    mo.hstack([what_is_added, how_many], justify="start")
    return how_many, what_is_added


@app.cell(hide_code=True)
def _(guess_sum, how_many, what_is_added):
    def _draw():
        _picture, _errors = precision.sums_by_collisions(what_is_added.value, 2**how_many.value)
        _told = ", ".join(f"{_error:.1e} in {_name}" for _name, _error in _errors.items())
        return mo.vstack([_picture, mo.md(f"**{2**how_many.value} {'addition' if how_many.value == 0 else 'additions'}**, measured here: relative to the sum, the error is {_told}.")])


    mo.md("*The errors show here after your prediction.*") if guess_sum.value is None else _draw()
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    Ones are the worst case, and shares that have a sign in common are on their way there. Numbers of either sign do not save a
    narrow sum. Each rounding is small beside what was added, but so is the sum itself, since most of it cancels: after 1,024
    additions in bfloat16 it is off by some per cent of itself. How many of a pixel's shares have one sign depends on the model and
    on the loss. In lab 8 you saw how many additions meet at a pixel of a small level.

    ## 1 · Where a sum stops

    The last point at which counting still works is a property of the dtype. Measure it, so that it comes out right for any.
    """)
    return


@app.function
def stagnation_point(dtype: torch.dtype) -> int:
    """The first of the sums 0, 1, 2, … that adding one more does not change in dtype.

    Args:
        dtype: any binary floating-point dtype; of an eight-bit one torch knows conversions only.
    """
    raise NotImplementedError("09.stagnation_point")


@app.cell(hide_code=True)
def _():
    checks.grade("09.stagnation_point", lambda: stagnation_point)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("09.stagnation_point")
    return


@app.cell(hide_code=True)
def _():
    def _draw(measure):
        _dtypes = (torch.float8_e4m3fn, torch.bfloat16, torch.float16, torch.float32, torch.float64)
        _rows = "\n".join(f"| {str(_d).removeprefix('torch.')} | {measure(_d):,} |" for _d in _dtypes)
        return mo.md(f"**By your function**, counting stops at\n\n| dtype | sum |\n|:--|--:|\n{_rows}")


    checks.when_passed("09.stagnation_point", lambda: stagnation_point, _draw)
    return


@app.cell(hide_code=True)
def _(lab08_file):
    lab08_file
    checks.underneath("08.msda_bwd_kernel")
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 2 · What your additions become

    So a sum in float32 is the careful choice. It costs: a buffer twice as large, cleared before and cast after. Whether that
    is worth its price depends on the other side: how does a GPU add sixteen bits in memory? Nobody has to tell you. You have a
    kernel and a compiler for every GPU.
    """)
    return


@app.function
def compile_backward(kernel, dtype: torch.dtype, capability: tuple[int, int], aligned: bool = True):
    """Compile a backward kernel for a GPU that need not be there: 8 heads, 32 channels, 4 levels, 4 points.

    Args:
        kernel: `msda_bwd_kernel` of lab 8.
        dtype: of everything but the shapes: float32, float16 or bfloat16.
        capability: (8, 9) is SM 8.9.
        aligned: False moves every tensor by one element.

    Returns:
        A `machine.Lowering`; its `ptx` is the listing.
    """
    pointer = {torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16"}[dtype]
    if not aligned:
        pointer += f":{dtype.itemsize}"
    pointers = (pointer, pointer, "*i32", "*i32", *[pointer] * 5)
    constants = dict(M=8, D=32, L=4, K=4, BLOCK_P=16, BLOCK_D=32, num_warps=2)
    return machine.lower(kernel, *pointers, "i32", "i32", target=capability, **constants)


@app.cell(hide_code=True)
def _():
    guess_listing = checks.predict(
        "Your kernel in bfloat16, compiled for Ada (SM 8.9), whose tensor cores multiply bfloat16. What does one addition to grad_value become?",
        ["one instruction for eight numbers", "one instruction for each number", "a loop for each number"],
    )
    guess_listing
    return (guess_listing,)


@app.cell(hide_code=True)
def _(guess_listing):
    checks.reveal(
        guess_listing,
        right="a loop for each number",
        because={
            "one instruction for eight numbers": "There is a GPU on which it is so. Find it below.",
            "one instruction for each number": "So it would be if the memory system of this GPU could add bfloat16. Tensor cores and memory are two different units.",
            "a loop for each number": "Read 32 bits, put the sum into half of them, swap if nobody was in between, else try again.",
        },
    )
    return


@app.cell(hide_code=True)
def _():
    listed_dtype = mo.ui.dropdown(
        {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}, value="bfloat16", label="dtype"
    )
    listed_gpu = mo.ui.dropdown(
        {"Ampere (SM 8.0)": (8, 0), "Ada (SM 8.9)": (8, 9), "Hopper (SM 9.0)": (9, 0), "Blackwell (SM 10.0)": (10, 0)},
        value="Ada (SM 8.9)",
        label="GPU",
    )
    mo.hstack([listed_dtype, listed_gpu], justify="start")
    return listed_dtype, listed_gpu


@app.cell(hide_code=True)
def _(guess_listing, lab08_file, listed_dtype, listed_gpu):
    def _draw():
        _kernel = lab08.msda_bwd_kernel
        _lowering = compile_backward(_kernel, listed_dtype.value, listed_gpu.value)
        _line = next(one.line for one in _lowering.instructions if one.kind == "atomic")
        _source = linecache.getlines(_kernel.fn.__code__.co_filename)
        _title = f"msda_bwd_kernel in {listed_dtype.selected_key} for {listed_gpu.selected_key}"
        return mo.vstack(
            [
                precision.listing(_source, 1, {_line: _lowering.ptx_of(_line)}, _title),
                mo.accordion({"The whole listing": mo.lazy(lambda: mo.md(f"```text\n{_lowering.ptx}\n```"))}),
            ]
        )


    lab08_file
    (
        mo.md(device.NO_TRITON)
        if device.NO_TRITON
        else mo.md("*The listing shows here after your prediction.*")
        if guess_listing.value is None
        else _draw()
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    Three kinds, then.

    - A **reduction** is sent off and forgotten. PTX has the word `red` for it, but some versions of Triton write `atom` all the same:
      `atom.global.gpu.relaxed.add.f32 %r79, [ %rd57 + 0 ], %r80;`. What stands before the bracket, one register or several in
      braces, receives the old value. If it is relaxed and nothing below reads that value, the assembler makes the same machine
      code of both.
    - A **returning atomic** is an `atom` whose old value somebody reads, and has to wait for; so has whoever asks for an order
      (`acq_rel`).
    - A **loop** is made of `atom.cas`, compare and swap, and of a branch that leads back to where it began.

    PTX is not the last word: the machine code (SASS) is. It has one surprise. Memory adds numbers of sixteen bits in pairs or
    wider, so a `red` or `atom` of a *lone* `f16` or `bf16` has a name in PTX and no instruction behind it: the assembler writes a
    loop. PTX can show that an addition is a loop; that it is none, only the machine code proves. With 32 channels, as here, the
    additions come in pairs or wider, and both agree. With 71, the last channel would come alone, and cost this project's
    backward 1,383 µs in place of the 312 that it takes with a float32 sum (`msda_core/kernels/LOG.md`, item 15).

    Write a reader of PTX, so that you can look at twelve listings at once. The word `global` or `shared` says which memory. How much
    an instruction moves stands at its end: `b32` is 32 bits, `f16x2` two halves in one register, `v8.bf16` eight numbers. (`noftz`
    says that the smallest numbers are not flushed to zero: read past it.) A label looks like `$L__BB0_2:` at the start of a line,
    perhaps with a comment behind it, a branch like `@%p149 bra $L__BB0_2;`.
    """)
    return


@app.function
def classify_atomics(ptx: str) -> tuple[list[int], list[int], list[int]]:
    """Sort the atomics on global memory by kind, and say how many bytes each of them moves.

    Returns:
        (reductions, returning, loops): the bytes of every instruction, in the order of the text.
        A reduction is a `red`, or an `atom` into registers that nothing below it names, neither a
        `cas` nor in order (`acq_rel`). A loop is an `atom` that compares and swaps (`cas`), if the
        next branch after it leads back to a label before the `cas`; its bytes are those of one swap.
        Any other `atom` is a returning atomic.
    """
    raise NotImplementedError("09.classify_atomics")


@app.cell(hide_code=True)
def _(lab08_file):
    lab08_file
    checks.grade("09.classify_atomics", lambda: classify_atomics)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("09.classify_atomics")
    return


@app.cell(hide_code=True)
def _(lab08_file):
    def _draw(classify):
        _dtypes = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
        _gpus = {"SM 8.0": (8, 0), "SM 8.9": (8, 9), "SM 9.0": (9, 0), "SM 10.0": (10, 0)}
        _pairs = [(_name, _gpu) for _name in _dtypes for _gpu in _gpus]
        _rows = {_name: [] for _name in _dtypes}
        for _name, _gpu in mo.status.progress_bar(_pairs, title="Compiling your kernel", remove_on_exit=True):
            _ptx = compile_backward(lab08.msda_bwd_kernel, _dtypes[_name], _gpus[_gpu]).ptx
            _rows[_name].append(classify(_ptx))
        return mo.vstack(
            [
                mo.md("**Your kernel by your reader**, twelve listings, compiled just now. What one thread does for one row:"),
                precision.evidence(_rows, list(_gpus)),
            ]
        )


    lab08_file
    checks.when_passed("09.classify_atomics", lambda: classify_atomics, _draw)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## What else a listing says

    The instruction hangs on two more things that are easy to lose. In lab 8 you wrote `sem="relaxed"`; and every tensor of
    PyTorch's own begins at a multiple of 16 bytes, as long as nobody takes a slice of it. Below is your kernel, for the dtype
    and the GPU chosen above: as it is, without the word, and with tensors that begin one element later.
    """)
    return


@app.cell(hide_code=True)
def _(guess_listing, lab08_file, listed_dtype, listed_gpu):
    def _draw():
        _kernel, _dtype, _gpu = lab08.msda_bwd_kernel, listed_dtype.value, listed_gpu.value
        _kinds = {"as you wrote it": (_kernel, True), "tensors one element off": (_kernel, False)}
        try:
            _kinds["in the default order"] = (edited(_kernel, ("relaxed", "acq_rel")), True)
        except ValueError:
            pass  # the word is not in the kernel's own text
        _rows = []
        for _name, (_one, _aligned) in mo.status.progress_bar(list(_kinds.items()), title="Compiling and assembling", remove_on_exit=True):
            _lowering = compile_backward(_one, _dtype, _gpu, _aligned)
            _atomics = [one.mnemonic for one in _lowering.instructions if one.kind == "atomic"]
            _sass = _lowering.sass
            _machine = re.search(r"\b(?:RED|ATOM)[\w.]*", _sass)[0]
            _rows.append(
                f"| {_name} | `{_atomics[0]}` | `{_machine}` | {len(_atomics)} | {_sass.count('MEMBAR')} | {_sass.count('CCTL.IVALL')} | {_lowering.registers} |"
            )
        return mo.md(
            f"{listed_dtype.selected_key} on {listed_gpu.selected_key}:\n\n"
            "| your kernel | PTX | machine code | times | waits for earlier writes | empties L1 | registers |\n|:--|:--|:--|--:|--:|--:|--:|\n"
            + "\n".join(_rows)
            + "\n\nThe waits (`MEMBAR`) and the emptied cache (`CCTL.IVALL`) are counted in the machine code (SASS). It is the last word: "
            "memory adds numbers of sixteen bits in pairs or wider, so where PTX adds one alone, the assembler writes the loop (`CAS`) after "
            "all. And in the default order an `atom` stays an `ATOM`, though nobody reads what it brings back: the order itself has to wait."
        )


    lab08_file
    (
        mo.md(device.NO_TRITON)
        if device.NO_TRITON
        else mo.md("*The comparison shows here after your prediction above.*")
        if guess_listing.value is None
        else _draw()
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 3 · The switch

    Now decide. Twelve listings are on the table, and your function can make more: ask the compiler for any dtype and any GPU
    it knows, and read what comes back. A list of GPUs that somebody typed into a file is out of date when the next one
    comes out, or when the kernel is written in another way. So the verdict also puts another kernel in the place of
    `lab08.msda_bwd_kernel`, and expects you to read that one.
    """)
    return


@app.function
def accumulator_dtype(dtype: torch.dtype, capability: tuple[int, int]) -> torch.dtype:
    """In which dtype your kernel of lab 8 should sum grad_value on a GPU, going by its own listing.

    Not wider than need be: dtype itself where every addition is a single instruction, and
    float32 where it is not.

    Args:
        dtype: of value: float32, float16 or bfloat16.
        capability: (8, 9) is SM 8.9.
    """
    raise NotImplementedError("09.accumulator_dtype")


@app.cell(hide_code=True)
def _(lab08_file):
    lab08_file
    checks.grade("09.accumulator_dtype", lambda: accumulator_dtype)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("09.accumulator_dtype")
    return


@app.cell(hide_code=True)
def _(lab08_file):
    def _draw(choose):
        _gpus = {(8, 0): "A100", (8, 6): "RTX 30", (8, 9): "RTX 40, L40S", (9, 0): "H100, H200", (10, 0): "B200", (12, 0): "RTX 50"}
        _asked = [(_gpu, _d) for _gpu in _gpus for _d in (torch.float16, torch.bfloat16)]
        _says = {}
        for _gpu, _d in mo.status.progress_bar(_asked, title="Asking the compiler", remove_on_exit=True):
            _says[_gpu, _d] = str(choose(_d, _gpu)).removeprefix("torch.")
        _rows = "\n".join(
            f"| SM {_gpu[0]}.{_gpu[1]} | {_name} | {_says[_gpu, torch.float16]} | {_says[_gpu, torch.bfloat16]} |" for _gpu, _name in _gpus.items()
        )
        return mo.md(f"**Your switch**, also for GPUs that no verdict asked about:\n\n| | such as | float16 | bfloat16 |\n|:--|:--|:--|:--|\n{_rows}")


    lab08_file
    checks.when_passed("09.accumulator_dtype", lambda: accumulator_dtype, _draw)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 4 · A backward pass that switches

    Your kernel already adds to whatever `grad_value_ptr` points to. So the switch belongs into the launcher: choose the dtype of the
    buffer, launch, and round once at the end. The caller may overrule you either way, because only the caller knows how many
    additions meet, and how exact they must be.
    """)
    return


@app.cell(hide_code=True)
def _(lab08_file):
    lab08_file
    (
        mo.accordion({"Your launcher of lab 8, to begin from": mo.md(f"```python\n{inspect.getsource(lab08.msda_backward)}\n```")})
        if lab08.judge("msda_backward").theirs
        else mo.md("*Your launcher of lab 8 shows here, to begin from, once it passes.*")
    )
    return


@app.function
def msda_backward_switched(
    grad_out: torch.Tensor,
    value: torch.Tensor,
    spatial_shapes: torch.Tensor,
    level_start_index: torch.Tensor,
    sampling_locations: torch.Tensor,
    attention_weights: torch.Tensor,
    capability: tuple[int, int],
    fp32_grad_accum: bool | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Lab 8's `msda_backward`, with grad_value summed in the dtype that suits the GPU.

    Args:
        grad_out, …, attention_weights: as in lab 8.
        capability: of the GPU, as (8, 9).
        fp32_grad_accum: True: sum in float32; False: sum in value's dtype; None: as
            `accumulator_dtype` says.

    Returns:
        The three gradients, each contiguous, with the shape and dtype of what it is the gradient
        of. A sum in float32 is rounded once, at the end. Nothing else is made wider.
    """
    raise NotImplementedError("09.msda_backward_switched")


@app.cell(hide_code=True)
def _(lab08_file):
    lab08_file
    checks.grade("09.msda_backward_switched", lambda: msda_backward_switched)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("09.msda_backward_switched")
    return


@app.cell(hide_code=True)
def _():
    crowd = mo.ui.slider(4, 24, step=4, value=12, label="queries", show_value=True)
    spread = mo.ui.slider(0.5, 4.0, step=0.5, value=1.0, label="their points reach (pixels)", show_value=True)
    mo.hstack([crowd, spread], justify="start")
    return crowd, spread


@app.cell(hide_code=True)
def _(crowd, lab08_file, spread):
    def _draw(backward):
        _draws, _H, _W, _n = torch.Generator().manual_seed(0), 5, 8, crowd.value
        _offsets = spread.value * torch.randn(1, _n, 1, 1, 4, 2, generator=_draws) / torch.tensor([_W, _H])
        _grad_out = (1 + 0.2 * torch.randn(1, _n, 8, generator=_draws)).bfloat16()
        _value = torch.randn(1, _H * _W, 1, 8, generator=_draws).bfloat16()
        _locations, _weights = (0.5 + _offsets).bfloat16(), torch.full((1, _n, 1, 1, 4), 0.25).bfloat16()
        _shapes, _starts = torch.tensor([[_H, _W]]), torch.tensor([0])
        _inputs = [one.to(device.ACTIVE) for one in (_grad_out, _value, _shapes, _starts, _locations, _weights)]
        _sums = {
            _name: backward(*_inputs, (9, 0), _wide)[0].cpu()[0, :, 0].reshape(_H, _W, 8)
            for _name, _wide in (("bfloat16", False), ("float32, rounded once", True))
        }
        _truth = reference.exact_gradients(_value, _shapes, _starts, _locations, _weights, _grad_out)[0][0, :, 0].reshape(_H, _W, 8)
        _counts = concurrency.collisions(_locations[0, :, 0].float(), [(_H, _W)])[0]
        return precision.two_sums(_truth, _sums, _counts)


    lab08_file
    checks.when_passed("09.msda_backward_switched", lambda: msda_backward_switched, _draw)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 5 · The other thing sixteen bits cost

    A sum is not the only thing that suffers. `sampling_locations` go through the same cast, and they are not numbers that
    average out: they say *where* to read.
    """)
    return


@app.cell(hide_code=True)
def _():
    guess_places = checks.predict(
        "float16 and bfloat16 both have sixteen bits. In which of them is a location moved further when it is stored?",
        ["float16", "bfloat16", "the same in both"],
    )
    guess_places
    return (guess_places,)


@app.cell(hide_code=True)
def _(guess_places):
    checks.reveal(
        guess_places,
        right="bfloat16",
        because={
            "float16": "float16 cannot hold numbers above 65,504, but a location is about 1 at most. What counts here is the distance between neighbours.",
            "bfloat16": "It spends three bits more on range, which a number between 0 and 1 has no use for, and has three less for the place.",
            "the same in both": "The bits are as many, but they are spent on different things: range in one, places in the other.",
        },
    )
    return


@app.cell(hide_code=True)
def _():
    place_dtype = mo.ui.dropdown({"float16": torch.float16, "bfloat16": torch.bfloat16}, value="bfloat16", label="stored in")
    level_width = mo.ui.slider(8, 336, step=1, value=167, label="width of the level", show_value=True)
    where_on_it = mo.ui.slider(0.0, 1.0, step=0.01, value=0.8, label="where on it", show_value=True)
    mo.hstack([place_dtype, level_width, where_on_it], justify="start", wrap=True)
    return level_width, place_dtype, where_on_it


@app.cell(hide_code=True)
def _(guess_places, level_width, place_dtype, where_on_it):
    def _draw():
        _later = " *bfloat16 is drawn after your prediction.*" if guess_places.value is None else ""
        _dtype = torch.float16 if guess_places.value is None else place_dtype.value
        _picture, _places = precision.places(_dtype, level_width.value, where_on_it.value)
        return mo.vstack([_picture, mo.md(f"**{_places}** {'place' if _places == 1 else 'places'} in the pixel right of the middle. Move towards location 0: why do they get denser?{_later}")])


    _draw()
    return


@app.function
def location_error(dtype: torch.dtype, W: int) -> tuple[float, float]:
    """How far a location is moved by being stored in dtype, in pixels of a level that is W wide.

    Over the 10,001 locations `torch.linspace(0, 1, 10_001, dtype=torch.float64)`, which stand
    for the true ones. Whatever is computed afterwards is computed exactly.

    Args:
        dtype: float32, float16, bfloat16, or another floating-point dtype.
        W: pixels.

    Returns:
        The mean distance, and the largest.
    """
    raise NotImplementedError("09.location_error")


@app.cell(hide_code=True)
def _():
    checks.grade("09.location_error", lambda: location_error)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("09.location_error")
    return


@app.cell(hide_code=True)
def _(level_width):
    def _draw(error):
        _picture, _errors = precision.moved_points(error, level_width.value)
        _rows = "\n".join(f"| {_name} | {_mean:.2g} | {_most:.2g} |" for _name, (_mean, _most) in _errors.items())
        return mo.vstack(
            [
                _picture,
                mo.md(
                    f"**A level {level_width.value} pixels wide**, by your function where something is only stored:\n\n"
                    f"| | mean (pixels) | largest (pixels) |\n|:--|--:|--:|\n{_rows}"
                ),
            ]
        )


    checks.when_passed("09.location_error", lambda: location_error, _draw)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    This is why the operator takes float32 locations with a sixteen-bit `value`, and why your kernel turns coordinates into
    float32 before it multiplies them by the width. The dotted lines are what happens to one that does not.

    ## What it means

    - A narrow sum stops growing where one share is less than half the distance to the next number, or half and the tie goes back.
      More additions do not help.
    - Whether a GPU adds a dtype in one instruction is written in the listing of your own kernel, at your own sizes: in PTX what
      cannot be one, in the machine code what is. Ask it, not a list of names.
    - Order and alignment are part of the instruction too: lose one, and the same line of source becomes another program.
    - Each number has its own needs: sums need bits, locations need them most, and `value` hardly any.

    You have both directions and the switch. The next lab makes them an operator that a model can use.

    ## Stretch · Exact with narrow numbers only

    There is a way to sum well in sixteen bits with nothing but sixteen bits. The terms you are given round every sum and
    difference; plain numbers are not to be had. The score is how far off you are, and how many operations a term you spend.
    """)
    return


@app.function
def narrow_sum(terms: list):
    """The sum of numbers that every operation rounds to sixteen bits, as exact as you can.

    Args:
        terms: one or more narrow numbers. They know `+`, `-` and `<` among themselves; a sum or
            difference is a narrow number again.

    Returns:
        A narrow number.
    """
    raise NotImplementedError("09.narrow_sum")


@app.cell(hide_code=True)
def _():
    checks.grade("09.narrow_sum", lambda: narrow_sum)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("09.narrow_sum")
    return


@app.cell(hide_code=True)
def _():
    checks.closing("09", lambda: (stagnation_point, classify_atomics, accumulator_dtype, msda_backward_switched, location_error, narrow_sum))
    return


if __name__ == "__main__":
    app.run()

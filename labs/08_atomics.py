import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium", app_title="08 · Concurrent writes")

with app.setup:
    import marimo as mo
    import torch

    import checks
    from msda_core import device, machine
    from msda_core.device import tl, triton
    from msda_core.figures import concurrency, sampling


@app.cell(hide_code=True)
def _():
    checks.header(
        "08",
        able=[
            "say how an update gets lost, inside a program and between programs, and show one",
            "use atomics where many write, plain stores where one does, and no more order than is needed",
            "write the whole backward pass as one kernel: three gradients, one scatter",
            "make a sum that has the same bits in any order, and say what it costs",
        ],
        minutes=70,
        gpu="with a GPU, each kernel that is right on the CPU is run on the GPU as well",
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Two writers, one number

    In the forward pass every program writes its own results. In the backward pass of lab 7 one gradient was different:
    any number of points may lie on a pixel, so any number of programs want to add to the same place of `grad_value`.

    Counting is the smallest problem of that kind. Here is a kernel that counts how often each index occurs. Every line of
    it is right, and it does not work.
    """)
    return


@app.function
@triton.jit
def racy_histogram(index_ptr, hist_ptr, N, BLOCK: tl.constexpr):
    """hist[index[n]] += 1 for n below N, or so it says: read, add one, write back."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < N
    index = tl.load(index_ptr + offs, mask=mask, other=0)
    count = tl.load(hist_ptr + index, mask=mask, other=0)
    tl.store(hist_ptr + index, count + 1, mask=mask)


@app.cell(hide_code=True)
def _():
    guess_block = checks.predict(
        "One program of 8 lanes. All 8 lanes hold index 3, and hist[3] is 0. What is it after the kernel?",
        ["8", "1", "anything from 1 to 8"],
    )
    guess_block
    return (guess_block,)


@app.cell(hide_code=True)
def _(guess_block):
    checks.reveal(
        guess_block,
        right="1",
        because={
            "8": "It would be, if the lanes took turns. These eight fit in one warp, whose lanes go through the kernel together.",
            "1": "All eight lanes, in one warp, read before any of them writes. Each reads 0, adds one, and writes 1: eight times the same 1.",
            "anything from 1 to 8": "Between programs it will be like that, and on a GPU between the warps of one large block, too. Eight lanes are in one warp, where every read is done before the first write.",
        },
    )
    return


@app.cell(hide_code=True)
def _():
    different_indices = mo.ui.slider(1, 8, value=4, label="different indices", show_value=True)
    different_indices
    return (different_indices,)


@app.cell(hide_code=True)
def _(different_indices, guess_block):
    def _draw():
        _index = (torch.tensor([3, 1, 6, 0, 4, 2, 7, 5]) % different_indices.value).int()
        _hist = torch.tensor([2, 0, 1, 5, 0, 3, 1, 0], dtype=torch.int32)
        _truth = (_hist + torch.bincount(_index, minlength=8)).tolist()
        _run = machine.interleave(racy_histogram, (1,), (_index, _hist.clone(), 8), BLOCK=8)
        _picture, _lost = concurrency.lanes_of_a_block(_run, _hist.tolist(), _truth)
        return mo.vstack([_picture, mo.md(f"**{_lost}** of 8 updates {'is' if _lost == 1 else 'are'} lost. How many different indices does it take until none is?")])


    (
        mo.md(device.NO_TRITON)
        if device.NO_TRITON
        else mo.md("*What each lane reads and writes shows here after your prediction.*")
        if guess_block.value is None
        else _draw()
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Between programs, order decides

    One lane a program, then, and no block to lose anything in? Below, each program counts the same index. They run as
    threads that hand over at every access to memory, in an order that a number decides: the same number, the same order.
    On a GPU nobody chooses the number.

    Look for an order in which most is lost; and, with two or three programs, for one in which nothing is.
    """)
    return


@app.cell(hide_code=True)
def _():
    order = mo.ui.slider(0, 40, value=3, label="order", show_value=True)
    racing_programs = mo.ui.slider(2, 8, value=5, label="programs", show_value=True)
    mo.hstack([order, racing_programs], justify="start")
    return order, racing_programs


@app.function
def count_together(kernel, programs: int, order: int):
    """Programs of one lane each that all count index 2, interleaved: what happened, and the count."""
    index = torch.full((programs,), 2, dtype=torch.int32)
    hist = torch.zeros(4, dtype=torch.int32)
    run = machine.interleave(kernel, (programs,), (index, hist, programs), seed=order, BLOCK=1)
    return run, hist[2].item()


@app.cell(hide_code=True)
def _(order, racing_programs):
    def _draw():
        _run, _count = count_together(racy_histogram, racing_programs.value, order.value)
        _counts = [count_together(racy_histogram, racing_programs.value, seed)[1] for seed in range(41)]
        _right = _counts.count(racing_programs.value)
        return mo.vstack(
            [
                concurrency.timeline(_run, "hist_ptr", 2),
                mo.md(
                    f"{racing_programs.value} programs counted **{_count}**. Of the 41 orders, **{_right}** {'counts' if _right == 1 else 'count'} right; the smallest "
                    f"count is {min(_counts)}, in order {_counts.index(min(_counts))}. A write is *lost* when a program that had "
                    "read before it writes after it."
                ),
            ]
        )


    mo.md(device.NO_TRITON) if device.NO_TRITON else _draw()
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    A kernel like this may pass every test you have and be wrong in production. So the verdicts of this lab do not wait for a
    bad order: they look for a **race**, two accesses to one element by two programs that nothing orders, of which at least one
    writes, and which are not both atomic. (An atomic writes. A plain load beside somebody's `atomic_add` is a race, too.) And
    they let the programs take turns at every access, as above.

    ## 1 · Read, add, write: one step

    The cure is an **atomic**: the memory system reads, adds and writes, and lets nobody in between. It works the same for
    lanes of one block and for programs. Triton's is `tl.atomic_add`, called as a store is.
    """)
    return


@app.function
@triton.jit
def histogram_kernel(index_ptr, hist_ptr, N, BLOCK: tl.constexpr):
    """hist[index[n]] += 1 for n below N, in whatever order programs run. One program: BLOCK indices.

    Args:
        index_ptr: (N,), int32.
        hist_ptr: int32; holds counts already, to which these are added.
    """
    tl.static_assert(False, "08.histogram_kernel")


@app.cell(hide_code=True)
def _():
    checks.grade("08.histogram_kernel", lambda: histogram_kernel)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("08.histogram_kernel")
    return


@app.cell(hide_code=True)
def _(order, racing_programs):
    def _draw(kernel):
        _run, _count = count_together(kernel, racing_programs.value, order.value)
        return mo.vstack(
            [
                mo.md("**Your kernel**, in the order and with the programs chosen above:"),
                concurrency.timeline(_run, "hist_ptr", 2),
            ]
        )


    checks.when_passed("08.histogram_kernel", lambda: histogram_kernel, _draw)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 2 · Where everybody wants to add

    Atomics to one address take turns. Whether that hurts depends on how many meet there, and that is where a feature
    pyramid is unkind. Each query has as many points on a small level as on a large one.
    """)
    return


@app.cell(hide_code=True)
def _():
    guess_level = checks.predict(
        "Each level has half the width and half the height of the one before, and as many points. How many more points add "
        "to a pixel of the next level?",
        ["as many", "twice as many", "four times as many"],
    )
    guess_level
    return (guess_level,)


@app.cell(hide_code=True)
def _(guess_level):
    checks.reveal(
        guess_level,
        right="four times as many",
        because={
            "as many": "The points are as many, but they share a quarter of the pixels.",
            "twice as many": "Half the width and half the height leave a quarter of the pixels, not half.",
            "four times as many": "The same points, on a quarter of the pixels. Three levels up it is 64 times.",
        },
    )
    return


@app.cell(hide_code=True)
def _():
    query_grid = mo.ui.slider(4, 32, step=4, value=16, label="queries along each side", show_value=True)
    point_reach = mo.ui.slider(0.0, 4.0, step=0.25, value=1.0, label="points reach (pixels)", show_value=True)
    mo.hstack([query_grid, point_reach], justify="start")
    return point_reach, query_grid


@app.cell(hide_code=True)
def _(guess_level, point_reach, query_grid):
    def _draw():
        _images = sampling.pyramid()
        _shapes = [tuple(image.shape[:2]) for image in _images]
        _generator, _n = torch.Generator().manual_seed(0), query_grid.value
        _centre = torch.cartesian_prod((torch.arange(_n) + 0.5) / _n, (torch.arange(_n) + 0.5) / _n)[:, None, None]
        _offset = point_reach.value * (2 * torch.rand(_n * _n, 4, 4, 2, generator=_generator) - 1)
        _locations = _centre + _offset / torch.tensor([[w, h] for h, w in _shapes])[:, None]
        _own = [concurrency.collisions(_locations[q : q + 1], _shapes) for q in range(0, _n * _n, _n * _n // 16)]
        _adds = sum(int(count.sum()) for counts in _own for count in counts)
        _pixels = sum(int((count > 0).sum()) for counts in _own for count in counts)
        return mo.vstack(
            [
                concurrency.contention_map(_images, concurrency.collisions(_locations, _shapes)),
                mo.md(
                    f"{_n * _n} queries of one head, 4 points a level. A single query adds **{_adds / len(_own):.0f}** times, to "
                    f"**{_pixels / len(_own):.0f}** different pixels: its own points meet each other already."
                ),
            ]
        )


    mo.md("*The map shows here after your prediction.*") if guess_level.value is None else _draw()
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    Lanes of one program that meet need not queue up in memory. They can find each other first: compare every lane with
    every other, and one lane of each group adds for all. Choose how many places the lanes share.
    """)
    return


@app.cell(hide_code=True)
def _():
    shared_places = mo.ui.slider(1, 8, value=4, label="different places", show_value=True)
    shared_places
    return (shared_places,)


@app.cell(hide_code=True)
def _(shared_places):
    _picture, _adds = concurrency.merging_square([n % shared_places.value for n in (4, 1, 6, 7, 2, 5, 3, 0)])
    mo.vstack([_picture, mo.md(f"8 lanes, **{_adds}** {'addition' if _adds == 1 else 'additions'}.")])
    return


@app.function
@triton.jit
def merge_then_add_kernel(index_ptr, weight_ptr, out_ptr, N, BLOCK: tl.constexpr):
    """out[index[n]] += weight[n] for n below N. One program: BLOCK pairs, each place added to once.

    Args:
        index_ptr: (N,), int32, 0 or more. weight_ptr: (N,), float32.
        out_ptr: float32; holds sums already, to which these are added.
    """
    tl.static_assert(False, "08.merge_then_add_kernel")


@app.cell(hide_code=True)
def _():
    checks.grade("08.merge_then_add_kernel", lambda: merge_then_add_kernel)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("08.merge_then_add_kernel")
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Right, but not repeatable

    No update is lost now. But the order is still nobody's choice, and sums of floating-point numbers depend on it: each
    addition rounds. Same kernel, same numbers, another result in the last digits. How bad it is depends on the dtype you add
    in.
    """)
    return


@app.cell(hide_code=True)
def _():
    sum_dtype = mo.ui.dropdown(
        {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}, value="float32", label="added in"
    )
    sum_terms = mo.ui.slider(2, 256, value=64, label="numbers", show_value=True)
    mo.hstack([sum_dtype, sum_terms], justify="start")
    return sum_dtype, sum_terms


@app.cell(hide_code=True)
def _(sum_dtype, sum_terms):
    _terms = 0.1 + torch.rand(sum_terms.value, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    _picture, _different, _worst = concurrency.sum_in_any_order(_terms, sum_dtype.value)
    mo.vstack(
        [
            _picture,
            mo.md(
                f"**{_different}** different {'sum' if _different == 1 else 'sums'}, up to {_worst:.1e} from the exact one. "
                "The next lab is about the choice of that dtype."
            ),
        ]
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 3 · The same bits, in any order

    Sometimes that is not good enough: a test that compares bits, a training that must be repeated exactly. PyTorch has a
    switch for it, `torch.use_deterministic_algorithms(True)`, and an operator that adds by float atomics has to raise an
    error there, or have another way. The other way exists. Write it down in PyTorch first, as the sum of pairs (place,
    weight): whatever the order in which the pairs come, the result has the same bits.
    """)
    return


@app.cell(hide_code=True)
def _():
    guess_bits = checks.predict(
        "Float32 weights, added up in float64 and rounded to float32 once at the end. Does the order of additions still show?",
        ["never: float64 has bits enough", "it can, where large weights cancel", "always"],
    )
    guess_bits
    return (guess_bits,)


@app.cell(hide_code=True)
def _(guess_bits):
    checks.reveal(
        guess_bits,
        right="it can, where large weights cancel",
        because={
            "never: float64 has bits enough": "It has 53. Add 1e20, 1 and -1e20: whether the 1 survives depends on who comes when.",
            "it can, where large weights cancel": "1e20 + 1 - 1e20 is 0, and 1e20 - 1e20 + 1 is 1. Rarer is not never: a bug that shows once in a thousand runs is the worse one.",
            "always": "Mostly the one rounding at the end hides it. That makes it hard to notice, not right.",
        },
    )
    return


@app.function
def deterministic_sum(index: torch.Tensor, weight: torch.Tensor, size: int) -> torch.Tensor:
    """out[index[n]] += weight[n] into zeros: the same bits in whatever order the pairs come.

    Args:
        index: (N,), int64, from 0 to size - 1, in any order; a place may come often, or never.
        weight: (N,), float32, finite, of any size and sign. N is below 2^20, and may be 0.
        size: how many places there are.

    Returns:
        (size,), float32: each within 2^-20 of its exact sum, relative to the largest weight of that place times their number.
    """
    raise NotImplementedError("08.deterministic_sum")


@app.cell(hide_code=True)
def _():
    checks.grade("08.deterministic_sum", lambda: deterministic_sum)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("08.deterministic_sum")
    return


@app.cell(hide_code=True)
def _():
    def _draw(summed):
        _draws = torch.Generator().manual_seed(3)
        _index, _weight = torch.zeros(500, dtype=torch.int64), torch.randn(500, generator=_draws)
        _orders = [torch.randperm(500, generator=_draws) for _ in range(60)]
        _ways = {
            "float32, as they come": lambda i, w: torch.zeros(1).index_add(0, i, w),
            "yours": lambda i, w: summed(i, w, 1),
        }
        _rows = []
        for _name, _way in _ways.items():
            _sums = [_way(_index[_order], _weight[_order]).item() for _order in _orders]
            _off = max(abs(_sum - _weight.double().sum().item()) for _sum in _sums)
            _rows.append(f"| {_name} | {len(set(_sums))} | {_off:.1e} |")
        return mo.md(
            "500 numbers in 60 orders:\n\n| added | different sums | largest error |\n|:--|--:|--:|\n"
            + "\n".join(_rows)
            + "\n\nA kernel does the same with `tl.atomic_add` on int64, which is one instruction everywhere. What it costs is a "
            "gradient of twice the bytes, and knowing the unit before the first addition: `msda_core` does it under "
            "`deterministic=True`."
        )


    checks.when_passed("08.deterministic_sum", lambda: deterministic_sum, _draw)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## How much order do you need?

    An atomic can do a second thing: say in which order *other* writes become visible. One that **releases** publishes what its
    program wrote before it; one that **acquires** sees all that was published by the one whose value it reads. A lock needs
    both. A **relaxed** atomic promises neither. For a sum that is enough, as long as nobody reads it before the kernel has ended.
    Here is one block that is added to memory; the keyword is `sem`.
    """)
    return


@app.function
@triton.jit
def add_block(x_ptr, out_ptr, BLOCK: tl.constexpr, SEM: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.atomic_add(out_ptr + offs, tl.load(x_ptr + offs), sem=SEM)


@app.cell(hide_code=True)
def _():
    guess_order = checks.predict(
        "If you write no `sem`, what does `tl.atomic_add` promise?",
        ["nothing but the sum (relaxed)", "that all earlier writes are visible first (acquire and release)"],
    )
    guess_order
    return (guess_order,)


@app.cell(hide_code=True)
def _(guess_order):
    checks.reveal(
        guess_order,
        right="that all earlier writes are visible first (acquire and release)",
        because={
            "nothing but the sum (relaxed)": "That would be the cheap default. Triton chose the one with which a lock is right.",
            "that all earlier writes are visible first (acquire and release)": "It is the safe default: right for locks, and more than a sum needs. Below is what it adds.",
        },
    )
    return


@app.cell(hide_code=True)
def _():
    atomic_dtype = mo.ui.dropdown({"float32": "*fp32", "float16": "*fp16", "bfloat16": "*bf16"}, value="float32", label="dtype")
    atomic_target = mo.ui.dropdown(
        {"Ampere (SM 8.0)": "sm_80", "Ada (SM 8.9)": "sm_89", "Hopper (SM 9.0)": "sm_90", "Blackwell (SM 10.0)": "sm_100"},
        value="Hopper (SM 9.0)",
        label="GPU",
    )
    mo.hstack([atomic_dtype, atomic_target], justify="start")
    return atomic_dtype, atomic_target


@app.cell(hide_code=True)
def _(atomic_dtype, atomic_target, guess_order):
    def _draw():
        _rows = []
        for _sem in ("acq_rel", "relaxed"):
            _lowering = machine.lower(
                add_block, atomic_dtype.value, atomic_dtype.value, BLOCK=512, SEM=_sem, target=atomic_target.value, num_warps=2
            )
            _atomics = [one.mnemonic for one in _lowering.instructions if one.kind == "atomic"]
            _names = ", ".join(f"`{name}`" for name in dict.fromkeys(_atomics))
            _waits, _drops = _lowering.sass.count("MEMBAR"), _lowering.sass.count("CCTL.IVALL")
            _rows.append(f"| `{_sem}` | {_names} | {len(_atomics)} | {_waits} | {_drops} |")
        return mo.md(
            "512 numbers added by 64 threads, 8 a thread. What your own compiler makes of it (a GPU's generation is its compute "
            "capability, 9.0 for Hopper, as in lab 4):\n\n"
            "| `sem` | PTX | instructions a thread | waits for earlier writes | empties L1 |\n|:--|:--|--:|--:|--:|\n"
            + "\n".join(_rows)
            + "\n\n`red` brings no old value back; an `atom` does. A *relaxed* `atom` whose old value nothing reads becomes a `red` in the machine code, too; one with an order does not. "
            "`v4` or `v8` is that many numbers at once. `cas` is a loop that tries until nobody was in between. The waits (`MEMBAR`) and the emptied cache (`CCTL.IVALL`) are counted in the machine "
            "code."
        )


    (
        mo.md(device.NO_TRITON)
        if device.NO_TRITON
        else mo.md("*The instructions show here after your prediction.*")
        if guess_order.value is None
        else _draw()
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## 4 · The whole backward pass

    Lab 7's three gradients, with $g$ the gradient of one row of the output, $v_{ij}$ the four pixels of a point,
    $w_{ij} = w^x_i \, w^y_j$ their weights, $a$ the attention weight, and $s_{ij} = g \cdot v_{ij}$:

    $$\frac{\partial}{\partial a} = \sum_{ij} w_{ij}\, s_{ij}
    \qquad \frac{\partial}{\partial x} = a W \sum_{ij} \pm\, w^y_j\, s_{ij}
    \qquad \frac{\partial}{\partial v_{ij}} \mathrel{+}= a\, w_{ij}\, g$$

    The sign is plus for the right pixels and minus for the left; along y it is plus below, with $H$ and $w^x_i$.

    | gradient of | who writes an element | so |
    |:--|:--|:--|
    | attention, locations | one program | a plain store, as wide as the points lie side by side |
    | value | any program whose points touch the pixel | an atomic, under the mask of the load |

    One program owns one row: one query of one head of one image, with all its points in one block. All you get is
    the signature.
    """)
    return


@app.function
@triton.jit
def msda_bwd_kernel(
    grad_out_ptr,
    value_ptr,
    shapes_ptr,
    starts_ptr,
    loc_ptr,
    attn_ptr,
    grad_value_ptr,
    grad_loc_ptr,
    grad_attn_ptr,
    Q,
    S,
    M: tl.constexpr,
    D: tl.constexpr,
    L: tl.constexpr,
    K: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """All three gradients of multi-scale deformable attention. Computed in float32.

    Program r owns row r = (b * Q + q) * M + m: one query of one head of one image, all its
    points and channels. Everything is contiguous, and float32, float16 or bfloat16, each for itself.

    Args:
        grad_out_ptr: (B, Q, M, D). value_ptr: (B, S, M, D); beyond 2^31 elements if B is large.
        shapes_ptr: (L, 2), the (H, W) of each level. starts_ptr: (L,), each level's first pixel
            among the S. Both int32, or both int64.
        loc_ptr: (B, Q, M, L, K, 2), each point's (x, y), from 0 at one edge of a level to 1 at
            the other; also infinite, or not a number. attn_ptr: (B, Q, M, L, K).
        grad_value_ptr: like value, all zero.
        grad_loc_ptr, grad_attn_ptr: like loc and attn, uninitialised.
        BLOCK_P, BLOCK_D: powers of two, at least L * K and D.
    """
    tl.static_assert(False, "08.msda_bwd_kernel")


@app.cell(hide_code=True)
def _():
    checks.grade("08.msda_bwd_kernel", lambda: msda_bwd_kernel)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("08.msda_bwd_kernel")
    return


@app.cell(hide_code=True)
def _():
    def _draw(kernel):
        _draws = torch.Generator().manual_seed(0)
        _shapes, _starts = torch.tensor([[6, 11], [3, 6], [2, 3]]), torch.tensor([0, 66, 84])
        _grad_out, _value = torch.randn(1, 2, 32, generator=_draws), torch.randn(1, 90, 1, 32, generator=_draws)
        _locations, _weights = torch.rand(1, 2, 1, 3, 4, 2, generator=_draws), torch.rand(1, 2, 1, 3, 4, generator=_draws)
        _gradients = torch.zeros_like(_value), torch.empty_like(_locations), torch.empty_like(_weights)
        _inputs = (_grad_out, _value, _shapes, _starts, _locations, _weights, *_gradients)
        _report = machine.profile(
            kernel, (2,), *_inputs, 2, 90, M=1, D=32, L=3, K=4, BLOCK_P=16, BLOCK_D=32, num_warps=2, target="sm_90"
        )
        return mo.vstack(
            [
                mo.md(
                    f"**Your kernel on a Hopper GPU**, two rows of 12 points and 32 channels. Of {_report.sectors} sectors, "
                    f"{_report.atomics.sectors} are additions and {_report.stores.sectors} are stores; at most "
                    f"{_report.contention.updates} additions meet at one number."
                ),
                mo.plain_text(str(_report)),
            ]
        )


    checks.when_passed("08.msda_bwd_kernel", lambda: msda_bwd_kernel, _draw)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 5 · Its launcher

    What is left is ordinary Python, and easy to get wrong. What must be in a buffer before the first addition? `grad_out` is
    not always contiguous: the gradient of a sum is one number, expanded. And a batch may have no query at all.
    """)
    return


@app.function
def msda_backward(
    grad_out: torch.Tensor,
    value: torch.Tensor,
    spatial_shapes: torch.Tensor,
    level_start_index: torch.Tensor,
    sampling_locations: torch.Tensor,
    attention_weights: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The three gradients by your own kernel, on the device where value is.

    Args:
        grad_out: (B, Q, M * D), value: (B, S, M, D): float32, float16 or bfloat16, any strides.
        spatial_shapes: (L, 2), the (H, W) of each level; level_start_index: (L,); int32 or int64.
        sampling_locations: (B, Q, M, L, K, 2); attention_weights: (B, Q, M, L, K); in value's
            dtype or float32.

    Returns:
        The gradients of value, sampling_locations and attention_weights: contiguous, each with
        the shape and dtype of what it is the gradient of. Q or B may be 0.
    """
    raise NotImplementedError("08.msda_backward")


@app.cell(hide_code=True)
def _():
    checks.grade("08.msda_backward", lambda: msda_backward)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("08.msda_backward")
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## What it means

    - A race is not bad luck: it is two accesses to one place that nothing orders, one of them a write, and not both atomic. It
      can be found without ever going wrong. Reading a sum while others still add to it is one.
    - An element with one writer wants a store. An element with many wants an atomic, relaxed, and as few of them as
      merging leaves.
    - Atomics make a sum complete, not repeatable. Whole numbers, or a fixed order, make it that.

    You now have both directions of the operator. In the next lab, your kernel's own instructions decide in which dtype
    `grad_value` should be summed.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Stretch · Meet before you add

    All points of a row share `grad_out`. So points that share a pixel differ in one number each, and merging them costs no
    channel anything. Write the backward kernel so that they meet before the atomics. The score is how many additions of a
    pixel a row needs, on points as a trained model puts them; it has a floor, and it is hard to reach.
    """)
    return


@app.function
@triton.jit
def msda_bwd_merged_kernel(
    grad_out_ptr,
    value_ptr,
    shapes_ptr,
    starts_ptr,
    loc_ptr,
    attn_ptr,
    grad_value_ptr,
    grad_loc_ptr,
    grad_attn_ptr,
    Q,
    S,
    M: tl.constexpr,
    D: tl.constexpr,
    L: tl.constexpr,
    K: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """All three gradients, as in `msda_bwd_kernel`; points of a row that share pixels meet first.

    Program r owns row r = (b * Q + q) * M + m: one query of one head of one image, all its
    points and channels. Everything is contiguous, and float32, float16 or bfloat16, each for itself.

    Args:
        grad_out_ptr: (B, Q, M, D). value_ptr: (B, S, M, D); beyond 2^31 elements if B is large.
        shapes_ptr: (L, 2), the (H, W) of each level. starts_ptr: (L,), each level's first pixel
            among the S. Both int32, or both int64.
        loc_ptr: (B, Q, M, L, K, 2), each point's (x, y), from 0 at one edge of a level to 1 at
            the other; also infinite, or not a number. attn_ptr: (B, Q, M, L, K).
        grad_value_ptr: like value, all zero.
        grad_loc_ptr, grad_attn_ptr: like loc and attn, uninitialised.
        BLOCK_P, BLOCK_D: powers of two, at least L * K and D.
    """
    tl.static_assert(False, "08.msda_bwd_merged_kernel")


@app.cell(hide_code=True)
def _():
    checks.grade("08.msda_bwd_merged_kernel", lambda: msda_bwd_merged_kernel)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("08.msda_bwd_merged_kernel")
    return


@app.cell(hide_code=True)
def _():
    checks.closing("08", lambda: (histogram_kernel, merge_then_add_kernel, deterministic_sum, msda_bwd_kernel, msda_backward, msda_bwd_merged_kernel))
    return


if __name__ == "__main__":
    app.run()

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium", app_title="06 · Make it fast")

with app.setup:
    from statistics import median

    import marimo as mo
    import torch

    import checks
    from checks.answers.carry import lab05
    from msda_core import device
    from msda_core.device import tl, triton
    from msda_core.figures import speed


@app.cell(hide_code=True)
def _():
    checks.header(
        "06",
        able=[
            "say on paper what a way of cutting a kernel will cost, before you run it",
            "write the forward kernel so that what it fetches it uses, in few and wide requests",
            "time a launch without being fooled by dispatch, clocks, caches or bad luck",
        ],
        minutes=60,
        gpu="with a GPU, the race is run on it as well",
    )
    return


@app.cell(hide_code=True)
def _():
    lab05_file = checks.watch("05")
    return (lab05_file,)


@app.cell(hide_code=True)
def _(lab05_file):
    lab05_file
    checks.underneath("05.msda_forward")
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Who owns what?

    The same sums can be dealt out to lanes in different ways. The classic CUDA kernel gives each lane **one number of the
    result**. One could give each lane **one point**. Yours from lab 5 gives a program **a block of queries**. All add
    up the same products and need the same bytes. What they *ask for*, and what they compute again, is another matter.
    """)
    return


@app.cell(hide_code=True)
def _():
    guess_tiling = checks.predict(
        "Which of the three asks for most sectors?",
        ["one lane per number", "one lane per point", "one program per block of queries"],
    )
    guess_tiling
    return (guess_tiling,)


@app.cell(hide_code=True)
def _(guess_tiling):
    checks.reveal(
        guess_tiling,
        right="one lane per point",
        because={
            "one lane per number": "It issues most requests for locations and weights, since every channel of a row asks for the same ones again. But neighbouring lanes want neighbouring channels, so its rows come in whole sectors.",
            "one lane per point": "Each lane walks along a row of its own, one channel at a time: every request touches up to 32 sectors and uses one number of each. And its sums meet in memory, by atomics.",
            "one program per block of queries": "Its rows are read whole. Only locations and weights are wasted: a point at a time, each query's in another sector.",
        },
    )
    return


@app.cell(hide_code=True)
def _():
    tilings_dtype = mo.ui.dropdown(["float32", "float16"], value="float16", label="dtype")
    tilings_shown = mo.ui.multiselect(["element", "point", "query"], value=["element", "point", "query"], label="tilings")
    mo.hstack([tilings_dtype, tilings_shown], justify="start")
    return tilings_dtype, tilings_shown


@app.cell(hide_code=True)
def _(guess_tiling, lab05_file, tilings_dtype, tilings_shown):
    lab05_file
    if device.NO_TRITON or guess_tiling.value is None:
        _shown = mo.md(f"*{device.NO_TRITON or 'What each asks for shows here after your prediction.'}*")
    else:
        _picture = speed.requested(
            tilings_dtype.value, tilings_shown.value, {"lab 5's launcher, yours or ours": lab05.msda_forward}
        )
        _share = speed.parameters_share("query", tilings_dtype.value)
        _shown = mo.vstack(
            [
                _picture,
                mo.md(
                    f"Rows of value come in whole sectors, in both dtypes. A location is two numbers and a weight one, and they "
                    f"cost a sector each all the same: with a block of queries, **{_share:.0%}** of what is asked for in "
                    f"{tilings_dtype.value} is parameters. Take `point` out to see it."
                ),
            ]
        )
    _shown
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Occupancy is a proxy

    A multiprocessor hides the wait for memory by switching to another warp. So more warps are better? How many fit is
    called occupancy, and registers limit it: a multiprocessor has 65,536 of them for up to 64 warps of 32 lanes.
    """)
    return


@app.cell(hide_code=True)
def _():
    guess_occupancy = checks.predict(
        "An encoder's call, with programs enough to fill every multiprocessor. The compiler is told to use at most 64 registers a lane, so that more warps fit. What happens to the time?",
        ["it gets shorter", "nothing", "it gets longer"],
    )
    guess_occupancy
    return (guess_occupancy,)


@app.cell(hide_code=True)
def _(guess_occupancy):
    checks.reveal(
        guess_occupancy,
        right="it gets longer",
        because={
            "it gets shorter": "More warps fit, yes. But what no longer fits into registers is spilled to memory, and each warp has fewer loads in flight.",
            "nothing": "The kernel waits for memory, so one might think so. But it now also waits for its own spilled registers.",
            "it gets longer": "What no longer fits into registers is spilled, and a lane with fewer registers has fewer loads in flight. What hides latency is bytes in flight; warps are only one way to have them.",
        },
    )
    return


@app.cell(hide_code=True)
def _():
    occupancy_dtype = mo.ui.dropdown(["float32", "float16"], value="float16", label="dtype")
    occupancy_dtype
    return (occupancy_dtype,)


@app.cell(hide_code=True)
def _(guess_occupancy, occupancy_dtype):
    _picture, _factor = speed.cuts_under_registers(occupancy_dtype.value)
    (
        mo.md("*What an H200 said shows here after your prediction.*")
        if guess_occupancy.value is None
        else mo.vstack(
            [
                _picture,
                mo.md(
                    f"Recorded on one H200 (`msda_core/bench/data/bench_h200_sweeps.json`): more warps fit, and it is **{_factor:.1f} times "
                    "slower** in the median, because the limit was met by spilling. Make each program smaller, and registers "
                    "fall without spilling: then more warps do help (`msda_core/kernels/LOG.md`, step 1). So occupancy is no "
                    "goal in itself. Tune for few, wide requests, enough of them in flight, and measure."
                ),
            ]
        )
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 1 · The fast kernel

    In lab 5 a program looped over points, one of each query at a time. A query's points lie **side by side** in memory:
    its locations are one run of `L * K * 2` numbers, its weights one of `L * K`. So give the tile a third axis: queries,
    points, channels. Then one load fetches what one sector holds, and more rows are under way at once.

    | | lab 5 | now |
    |:---|:---|:---|
    | tile | (BLOCK_Q, BLOCK_D) | (BLOCK_Q, BLOCK_P, BLOCK_D) |
    | loop over | levels, points | blocks of points |
    | a lane's level | the loop's | a number of its own |
    | sum over points | as the loop goes | `tl.sum` along the middle axis |

    `tl.split` takes a block whose last axis has length 2 apart, (x, y) for example.
    """)
    return


@app.function
@triton.jit
def msda_fwd_fast_kernel(
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
    BLOCK_P: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Lab 5's `msda_fwd_kernel`, with BLOCK_P of a query's L * K points at a time.

    Program (i, j) owns the i-th block of BLOCK_Q queries, of head j % M of batch item j // M, every channel. Arguments are
    those of lab 5; everything is contiguous and computed in float32.

    Args:
        BLOCK_P: a power of two; more than L * K, or less, or no divisor of it.
        BLOCK_D: a power of two, at least D.
    """
    tl.static_assert(False, "06.msda_fwd_fast_kernel")


@app.cell(hide_code=True)
def _():
    checks.grade("06.msda_fwd_fast_kernel", lambda: msda_fwd_fast_kernel)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("06.msda_fwd_fast_kernel")
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 2 · How to cut it

    The kernel can be cut in many ways. Before you write a rule, look at some: first think what should change, then move.
    """)
    return


@app.cell(hide_code=True)
def _():
    cut_queries = mo.ui.dropdown({"1": 1, "2": 2, "4": 4, "8": 8}, value="4", label="BLOCK_Q")
    cut_points = mo.ui.dropdown({"1": 1, "2": 2, "4": 4, "8": 8}, value="8", label="BLOCK_P (of 8 points)")
    cut_warps = mo.ui.dropdown({"1": 1, "2": 2, "4": 4}, value="1", label="warps")
    mo.hstack([cut_queries, cut_points, cut_warps], justify="start")
    return cut_points, cut_queries, cut_warps


@app.cell(hide_code=True)
def _(cut_points, cut_queries, cut_warps):
    if device.NO_TRITON:
        _shown = mo.md(f"*{device.NO_TRITON}*")
    else:
        _kernel, _whose = checks.stand_in("06.msda_fwd_fast_kernel", lambda: msda_fwd_fast_kernel)
        _report = speed.cut_report(_kernel, cut_queries.value, cut_points.value, cut_warps.value)
        _numbers = cut_queries.value * cut_points.value * 32 / (32 * cut_warps.value)
        _shown = mo.vstack(
            [
                speed.cut_picture(_report, _whose),
                mo.md(
                    f"{_numbers:g} numbers of each corner a lane, {2 * _numbers:g} bytes in float16. A lane can load 16 bytes at "
                    "once: below that, requests get narrow, or several lanes load the same."
                ),
            ]
        )
    _shown
    return


@app.function
def launch_config(Q: int, M: int, D: int, L: int, K: int, dtype: torch.dtype) -> dict[str, int]:
    """How to cut a call for `msda_fwd_fast_kernel` on a GPU like the H200: 132 multiprocessors, 32 lanes in a warp.

    Args:
        Q, M, D, L, K: sizes of one batch item; dtype: of value.

    Returns:
        {"BLOCK_Q": …, "BLOCK_P": …, "BLOCK_D": …, "num_warps": …}: powers of two, no lane without a query, a point or a
        channel where it can be avoided.
    """
    raise NotImplementedError("06.launch_config")


@app.cell(hide_code=True)
def _():
    checks.grade("06.launch_config", lambda: launch_config)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("06.launch_config")
    return


@app.cell(hide_code=True)
def _():
    after_dtype = mo.ui.dropdown(["float32", "float16"], value="float16", label="dtype")
    after_dtype
    return (after_dtype,)


@app.cell(hide_code=True)
def _(after_dtype, lab05_file):
    lab05_file
    checks.when_passed(
        "06.msda_fwd_fast_kernel",
        lambda: msda_fwd_fast_kernel,
        lambda yours: speed.requested(
            after_dtype.value,
            ("shipped",),
            {
                "lab 5's launcher, yours or ours": lab05.msda_forward,
                "your kernel of lab 6": speed.launcher(
                    yours, speed.many_queries(checks.stand_in("06.launch_config", lambda: launch_config)[0])
                ),
            },
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Why benchmarks lie

    A launch returns before the kernel has begun. The host then goes on, and if you ask *its* clock how long things took, it
    tells you about itself. Here is a device to practise on. It is simulated, so it gives the same times on every machine,
    and it obeys these rules, in microseconds:

    | | |
    |:---|:---|
    | queue | a launch costs the host its **dispatch** and returns; the device takes launches in order |
    | compile | the first launch of a kernel costs the host far more |
    | speed | at rest the device is slow; some milliseconds of work bring it up to full speed |
    | L2 | data are warm if the same kernel ran last; `clock.flush()` runs a kernel that empties L2, in 62 µs |
    | trouble | now and then something comes in between, and a launch takes much longer |
    | events | `clock.record()` queues a mark, and costs the host 1; its `.time` is known once somebody has waited |
    | waiting | `clock.synchronize()` waits for all that is queued, and costs some more; `clock.now()` is the host's time |
    | graph | `clock.graph(fn, copies)` records launches, and calling it replays all of them for a dispatch of 8 |
    """)
    return


@app.cell(hide_code=True)
def _():
    guess_timing = checks.predict(
        "A kernel takes 5 µs, and launching it costs the host 30. You launch it 100 times in a loop, wait once, and divide. What do you get?",
        ["about 5", "about 30", "about 35"],
    )
    guess_timing
    return (guess_timing,)


@app.cell(hide_code=True)
def _(guess_timing):
    checks.reveal(
        guess_timing,
        right="about 30",
        because={
            "about 5": "That is what you want. But the device is done long before the next launch arrives, and then it waits for the host.",
            "about 30": "The device is done long before the next launch arrives. You have timed the host, and a kernel twice as fast would give the same.",
            "about 35": "One after the other they would take that long. But the host already prepares the next launch while the kernel runs.",
        },
    )
    return


@app.cell(hide_code=True)
def _():
    time_way = mo.ui.dropdown(list(speed.WAYS), value="a loop, nobody waits", label="way")
    time_kernel = mo.ui.slider(5, 100, step=5, value=60, label="kernel (µs)", show_value=True)
    time_dispatch = mo.ui.slider(5, 60, step=5, value=30, label="dispatch (µs)", show_value=True)
    time_fresh = mo.ui.checkbox(label="first call compiles")
    mo.vstack([time_way, mo.hstack([time_kernel, time_dispatch, time_fresh], justify="start")])
    return time_dispatch, time_fresh, time_kernel, time_way


@app.cell(hide_code=True)
def _(time_dispatch, time_fresh, time_kernel, time_way):
    _picture, _got = speed.timeline(time_way.value, time_kernel.value, time_dispatch.value, time_fresh.value)
    mo.vstack(
        [
            _picture,
            mo.md(
                f"Reported: **{_got:.1f} µs** for a kernel of {time_kernel.value}. Is there a way here that is right for a kernel "
                "shorter than its dispatch?"
            ),
        ]
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 3 · An honest stopwatch

    Write one that none of this fools. It is graded on what it reports, on devices with one trap each, and then on one with
    all of them.
    """)
    return


@app.function
def device_time(fn, clock) -> tuple[float, float]:
    """What one launch takes on the device, at full speed and undisturbed, whatever the host does meanwhile.

    Args:
        fn: launches one kernel.
        clock: a `msda_core.machine.model.clock.Clock`; you may use now, synchronize, record, flush and graph.

    Returns:
        (warm, cold): microseconds with the kernel's data in L2, and with L2 full of something else.
    """
    raise NotImplementedError("06.device_time")


@app.cell(hide_code=True)
def _():
    checks.grade("06.device_time", lambda: device_time)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("06.device_time")
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## The race

    Now all of them, on a decoder's call: two images, 300 queries, the pyramid of an 800 × 1333 image. **Predict on paper,
    then measure.** The prediction counts sectors and divides by what L2 delivers; it knows nothing of latency, and says so.
    """)
    return


@app.cell(hide_code=True)
def _():
    race_dtype = mo.ui.dropdown(["float32", "float16"], value="float16", label="dtype")
    race_start = mo.ui.run_button(label="Start the race (up to half a minute)")
    mo.hstack([race_dtype, race_start], justify="start")
    return race_dtype, race_start


@app.cell(hide_code=True)
def _(lab05_file, race_dtype, race_start):
    lab05_file
    if device.NO_TRITON or not race_start.value:
        _shown = mo.md(f"*{device.NO_TRITON or 'The race shows here once you start it.'}*")
    else:
        _kernel, _whose = checks.stand_in("06.msda_fwd_fast_kernel", lambda: msda_fwd_fast_kernel)
        _config, _ = checks.stand_in("06.launch_config", lambda: launch_config)
        _picture, _origin = speed.race_picture(
            race_dtype.value, {"lab 5": lab05.msda_forward, "lab 6": speed.launcher(_kernel, _config)}
        )
        _shown = mo.vstack([mo.md(f"{_origin} The prediction of lab 6 is of {_whose}."), _picture])
    _shown
    return


@app.cell(hide_code=True)
def _():
    mo.md(f"""
    ## What it means

    Few and wide requests were the larger part of it, and paper was enough to find that. What paper does not know, latency
    above all, only a clock can say, and only one that is not fooled: the same kernel is *{speed.shipped_times("float16")["device"]:.1f}*
    µs warm on an H200 and *{speed.shipped_times("float16")["cold"]:.1f}* cold ({speed.source()}), and whoever times it in a loop
    gets the dispatch of their own laptop.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Stretch · Your own model

    Turn counts into time. An H200 was timed on ten launches, warm and cold; the paper GPU counted them. How close does a
    formula of yours come? The score is its median error.
    """)
    return


@app.function
def predict_time(
    load_sectors: int, store_sectors: int, reduction_sectors: int, busiest_line: int, dram_bytes: int, warm: bool
) -> float:
    """How long a launch takes on an H200, from what the paper GPU counts.

    The H200: 132 multiprocessors at 1.98 GHz, each takes 32 bytes a clock from L2, which holds 60 MB; 4.8 TB/s of DRAM.
    A launch that does nothing takes about 1 µs.

    Args:
        load_sectors, store_sectors: requested, 32 bytes each; they all go through L2.
        reduction_sectors: of atomics; busiest_line: how many of them fall on the busiest line of 128 bytes, in turn.
        dram_bytes: of sectors touched at all, each once; warm: whether these are in L2 already.

    Returns:
        Microseconds.
    """
    raise NotImplementedError("06.predict_time")


@app.cell(hide_code=True)
def _():
    checks.grade("06.predict_time", lambda: predict_time)
    return


@app.cell(hide_code=True)
def _():
    shown_launches = mo.ui.dropdown(["warm", "cold"], value="warm", label="L2")
    shown_launches
    return (shown_launches,)


@app.cell(hide_code=True)
def _(shown_launches):
    _predict, _whose = checks.stand_in("06.predict_time", lambda: predict_time)
    speed.predictions(
        [
            (_name, _predict(*_counts), _time)
            for _name, _counts, _time in speed.recorded()
            if _name.endswith(shown_launches.value)
        ],
        _whose,
    )
    return


@app.cell(hide_code=True)
def _():
    checks.hints("06.predict_time")
    return


@app.cell(hide_code=True)
def _():
    checks.closing("06", lambda: (msda_fwd_fast_kernel, launch_config, device_time, predict_time))
    return


if __name__ == "__main__":
    app.run()

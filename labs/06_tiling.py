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
    from msda_core.figures import sectors as traffic, speed


@app.cell(hide_code=True)
def _():
    checks.header(
        "06",
        able=[
            "say on paper what a way of cutting a kernel will ask for, and which of its costs decides",
            "write the forward kernel so that what it asks for it uses, in few and wide requests",
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
def _():
    mo.md("""
    ## Who owns what?

    The same sums can be dealt out to lanes in different ways. The classic CUDA kernel gives each lane **one number of the
    result**. One could give each lane **one point**; then several lanes add to one number of the result, and need additions
    that do not get in each other's way (**atomics**, lab 8). Yours from lab 5 gives a program **a block of queries**. All add
    up the same products and need the same bytes. What they *ask for*, and what they compute again, is another matter. In lab 3
    you wrote down the requests of three such ways; here they are once more, on 32 rows of 32 channels.
    """)
    return


@app.cell(hide_code=True)
def _():
    requests_issued = mo.ui.slider(0, 32, value=2, label="requests issued", show_value=True)
    requests_issued
    return (requests_issued,)


@app.cell(hide_code=True)
def _(requests_issued):
    traffic.warp_reads(requests_issued.value)
    return


@app.cell(hide_code=True)
def _(lab05_file):
    lab05_file
    checks.underneath("05.msda_forward")
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
            "one lane per number": "It issues most requests: a warp has the 32 channels of one query and head, and asks once for every single number, weight, x and y. But its lanes share a sector where they read the same, and lie side by side in a row: few sectors a request.",
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
                    f"Asked of L1, that is; how much of it goes on to L2 is another question. Rows of value come in whole "
                    "sectors, in both dtypes. A location is two numbers and a weight one, and they cost a sector each all the "
                    f"same: with a block of queries, **{_share:.0%}** of what is asked for in {tilings_dtype.value} is parameters. "
                    "Take `point` out to see it."
                ),
            ]
        )
    _shown
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Where does the time go?

    All but `point` ask for about as many sectors. So are they about as fast? These kernels, and the one that this project
    ships (`shipped`, of the kind you are about to write), ran on an H200 under Nsight Compute, at full size: the call of a
    decoder, with a few hundred queries, and that of an encoder, where every pixel of the pyramid is a query.
    """)
    return


@app.cell(hide_code=True)
def _():
    guess_time = checks.predict(
        "In the encoder's call, in float16, `query` and `shipped` ask L1 for the same 29 million sectors, and `query` reads fewer from L2. Which of them is faster?",
        ["`query`: it needs less from L2", "`shipped`", "they are equal: they ask for the same"],
    )
    guess_time
    return (guess_time,)


@app.cell(hide_code=True)
def _(guess_time):
    _profile = {row["kernel"]: row for row in speed.profiled("encoder", "float16")}
    _times = f"{_profile['query']['us']:g} and {_profile['shipped']['us']:g} µs"
    _code = f"{_profile['query']['instructions'] / 1e6:g} and {_profile['shipped']['instructions'] / 1e6:g} million"
    checks.reveal(
        guess_time,
        right="`shipped`",
        because={
            "`query`: it needs less from L2": f"So it does, and takes longer: {_times}. L2 is busy a fifth of the time. It is not what anybody waits for.",
            "`shipped`": f"{_times}. It has wider loads, so {_code} instructions of warps do the same. The issue slots are nearly full in both.",
            "they are equal: they ask for the same": f"{_times}. Sectors are not all that costs time: {_code} instructions of warps are issued.",
        },
    )
    return


@app.cell(hide_code=True)
def _():
    profiled_call = mo.ui.dropdown(list(speed.PROFILED), value="encoder, float16", label="call")
    profiled_call
    return (profiled_call,)


@app.cell(hide_code=True)
def _(guess_time, profiled_call):
    (
        mo.md("*What an H200 counted shows here after your prediction.*")
        if guess_time.value is None
        else speed.where_the_time_goes(*speed.PROFILED[profiled_call.value])
    )
    return


@app.cell(hide_code=True)
def _(guess_time):
    (
        mo.md("*What it means shows here after your prediction.*")
        if guess_time.value is None
        else mo.md(f"""
    Look at all three calls, and hold each panel against the first. Three things decide, one after another:

    1. **Sectors, where lanes do not lie side by side.** `point` asks for ten times as many as anybody else, most of them go
       on to L2, and it takes ten times as long, with the issue slots idle.
    2. **Instructions, where enough warps are there.** In the encoder's call, time is the number of instructions of warps,
       and almost nothing else: {speed.rates("encoder", "float16")} of them are issued in a microsecond. Requests are the part
       of them that memory has to answer, and a wide load is one where narrow ones are four.
    3. **Waiting, where they are not.** In the decoder's call issue slots are busy {speed.busy("decoder", "float16")} of the
       time. There are too few programs to hide every wait, so it counts how many bytes each has under way.

    Sectors alone would have ranked `query` and `shipped` as equals, and what goes through L2 would have ranked them the wrong
    way round.
    """)
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Occupancy is a proxy

    A multiprocessor hides the wait for memory by switching to another warp. So more warps are better? How many fit, of those
    that could, is called **occupancy**, and registers limit it: an H200's multiprocessor has 65,536 of them for up to 64 warps
    of 32 lanes (48 warps on many other GPUs). With 64 registers a lane, 32 warps fit; with 128, 16.
    """)
    return


@app.cell(hide_code=True)
def _():
    guess_occupancy = checks.predict(
        "A kernel that holds many points at once needs more than 80 registers a lane. The compiler is told to make do with 64, so that more warps fit. An encoder's call has programs enough for all of them. What happens to the time?",
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
            "it gets shorter": "More warps fit, yes. But what no longer fits into registers is **spilled** to memory, and each warp has fewer loads under way. Here that cost more. (It need not: see below.)",
            "nothing": "So it would be for a kernel that needs no more than 64 anyway. This one needs more, and now waits for what it spilled.",
            "it gets longer": "What no longer fits into registers is **spilled** to memory, and a lane with fewer registers has fewer loads under way. What hides the wait is bytes under way; warps are only one way to have them.",
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
                    f"Recorded on one H200 (`msda_core/bench/data/bench_h200_sweeps.json`), five launch configs of an early kernel: it is "
                    f"**{_factor:.1f} times slower** with 64 registers in the median, because the limit was met by spilling. "
                    "Other kernels say otherwise (`msda_core/kernels/LOG.md`). The shipped one needs 64 registers by itself, with "
                    "fewer points in a program, and was the fastest of all. And one of the merged kernels took 229 µs without "
                    "a limit, **208** with one of 128, and 273 with one of 64. So occupancy is no goal in itself, and no enemy "
                    "either. Look whether a limit spills, and measure."
                ),
            ]
        )
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 1 · The fast kernel

    In lab 5 a program looped over points, one of each query at a time. The points of a query's head lie **side by side** in
    memory: its locations are one run of `L * K * 2` numbers, its weights one of `L * K`. So give the tile a third axis:
    queries, points, channels. Then one load asks for all that a sector holds, fewer instructions do the same work, and more
    rows are under way at once.

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
    ## 2 · The launch config

    The same kernel can be launched in many ways. Before you write a rule, look at some: first think what should change, then move.
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
        {"BLOCK_Q": …, "BLOCK_P": …, "BLOCK_D": …, "num_warps": …}: powers of two. What counts, the first before the next:
        every channel has a lane, and no block is larger than the power of two that holds all there is; a program's
        numbers fit into its registers; every lane has 16 bytes of each corner to load; and there are four warps for each
        multiprocessor, where there are queries enough.
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
    then measure.** The prediction counts sectors and divides them by a rate at which an H200 copied a tensor that lay in L2. It
    knows neither L1's hits nor instructions nor waiting, and says so: see where it is wrong.
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

    Lanes that lie side by side come first: without that, sectors decide everything. After that, few and wide requests mean few
    instructions, and paper is enough to count those. What paper does not know, who waits for what above all, only a clock can
    say, and only one that is not fooled: the same kernel is *{speed.shipped_times("float16")["device"]:.1f}*
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

    Beware of your own success. A plain formula of the paper GPU (`estimate_counts`) has four constants, which were chosen on four
    launches: an empty kernel, and the copy, the float32 backward and the histogram of these ten. Its error there is 2 % at
    most. On the seven warm launches that chose nothing it is 20 % in the median and 68 % at worst, and the same formula is
    off by 10 to 74 % on cold ones. An error counts only on launches that had no say in it.
    """)
    return


@app.function
def predict_time(
    load_sectors: int, store_sectors: int, reduction_sectors: int, busiest_line: int, dram_bytes: int, warm: bool
) -> float:
    """How long a launch takes on an H200, from what the paper GPU counts.

    The H200: 132 multiprocessors at 1.98 GHz; a copy that stays in L2, which holds 60 MB, moves 32 bytes a clock and
    multiprocessor; 4.8 TB/s of DRAM. A launch that does nothing takes about 1 µs.

    Args:
        load_sectors, store_sectors: asked of L1, 32 bytes each; how many go on to L2 is not counted.
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

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium", app_title="03 · The machine")

with app.setup:
    from collections import OrderedDict

    import marimo as mo
    import torch

    import checks
    from msda_core import device
    from msda_core.figures import sectors as traffic


@app.cell(hide_code=True)
def _():
    checks.header(
        "03",
        able=[
            "say what a warp's load costs, and find the loads of a kernel that waste it",
            "count the traffic of three ways to share out the same work, without running any of them",
            "state the shortest time a call can take, and which of the machine's parts sets it",
            "check your own counter against the counters of a real GPU",
        ],
        minutes=60,
        gpu="a GPU changes nothing in this lab",
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## What is slow about a pixel?

    In lab 02 every number got an address. A GPU runs a function in many **threads** at a time. It consists of
    **multiprocessors**; one of an H200's 132 holds up to 2,048 threads, so that 270,000 are under way, and it can compute with
    128 float32 numbers in each clock, so that 17,000 of these threads compute while the others wait. What for? This operator
    does two operations for each number it reads: it multiplies by a weight, and adds. So how fast it is depends on how fast
    numbers arrive.

    Numbers lie in **DRAM**, the large memory of the data sheets, and pass through two caches on their way. One is shared by
    all multiprocessors (**L2**); the other (**L1**) is small, and each multiprocessor has its own. Here is what some GPUs can
    do in a second.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md(
        "| | multiprocessors | DRAM | L2 | all L1 caches | float32 operations | operations in the time of one byte from DRAM |\n"
        "|---|---|---|---|---|---|---|\n"
        + "\n".join(
            f"| {g.name} | {g.sms} | {g.dram / 1e12:.1f} TB | holds {g.l2 / 2**20:.0f} MB | {g.l1 / 1e12:.0f} TB "
            f"| {g.flops / 1e12:.0f} T | **{g.flops / g.dram:.0f}** |"
            for g in traffic.GPUS.values()
        )
        + "\n\nA float32 number is 4 bytes and is used for 2 operations: half an operation a byte. Each of these GPUs could "
        "do many times more than that. The operator is **bound by bytes**, and this lab counts them.\n\n"
        "Data sheet values; L1 at 128 bytes a clock and multiprocessor."
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 1 · Thirty-two threads, one request

    Threads do not load on their own. Thirty-two of them, a **warp**, execute each instruction together; each thread is a
    **lane**. A load instruction of a warp is one **request**, with up to 32 addresses. Memory answers in **sectors** of 32
    bytes, at multiples of 32; four sectors are a **line** of 128 bytes. Whatever a sector is fetched for, all of it comes.
    Lanes that read neighbouring addresses share sectors: their load is **coalesced**.
    """)
    return


@app.cell(hide_code=True)
def _():
    guess_column = checks.predict(
        "A warp reads 32 float32 numbers down a column; from row to row it is 128 bytes. It wants 128 bytes. How many come?",
        ["128 bytes", "1,024 bytes", "4,096 bytes"],
    )
    guess_column
    return (guess_column,)


@app.cell(hide_code=True)
def _(guess_column):
    checks.reveal(
        guess_column,
        right="1,024 bytes",
        because={
            "128 bytes": "That is what is used. But no two of the 32 numbers share a sector.",
            "1,024 bytes": "32 sectors of 32 bytes, and of each only 4 bytes are used. Set the stride below to 32 elements.",
            "4,096 bytes": "Those are 32 whole lines. Of a line only the sectors that somebody needs are fetched.",
        },
    )
    return


@app.cell(hide_code=True)
def _():
    warp_stride = mo.ui.slider(0, 32, value=1, label="stride (elements)", show_value=True)
    warp_offset = mo.ui.slider(0, 28, step=4, value=0, label="first byte", show_value=True)
    element_bytes = mo.ui.dropdown({"2": 2, "4": 4, "8": 8}, value="4", label="bytes of an element")
    mo.hstack([warp_stride, warp_offset, element_bytes], justify="start")
    return element_bytes, warp_offset, warp_stride


@app.cell(hide_code=True)
def _(element_bytes, warp_offset, warp_stride):
    traffic.warp_map(warp_stride.value, warp_offset.value, element_bytes.value)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    Blue is read, yellow is fetched. Now count it. Lanes that are masked off are simply not in the list. An element may be long:
    later a lane will ask for 16 bytes at once.
    """)
    return


@app.function
def sectors(addresses: list[int], itemsize: int) -> int:
    """How many sectors of 32 bytes one request of a warp fetches.

    Args:
        addresses: where each lane's element begins, in bytes. Lanes that are masked off are not
            in the list; it may be empty.
        itemsize: bytes of one element. It may lie across a border between sectors.

    Returns:
        The number of distinct sectors with at least one byte of at least one element.
    """
    raise NotImplementedError("03.sectors")


@app.cell(hide_code=True)
def _():
    checks.grade("03.sectors", lambda: sectors)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("03.sectors")
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 2 · What was paid, what was used

    One number sums up how well a kernel's requests fit the machine: useful bytes over delivered bytes. It is a sum over
    requests, because every request is answered on its own: what an earlier one fetched does not make the next one smaller. (It
    may make it *faster*. That is the cache's business, in a moment.)
    """)
    return


@app.function
def efficiency(requests: list[tuple[list[int], int]]) -> float:
    """Useful bytes over delivered bytes of a series of requests.

    Args:
        requests: (addresses, itemsize) of each request, as `sectors` takes them; one may have no
            addresses, but not all of them.

    Returns:
        Useful over delivered, both summed over the series. Useful: the bytes that lanes asked for;
        an element that several lanes of one request read counts once. Delivered: 32 bytes for
        every sector of every request.
    """
    raise NotImplementedError("03.efficiency")


@app.cell(hide_code=True)
def _():
    checks.grade("03.efficiency", lambda: efficiency)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("03.efficiency")
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 3 · Waiting, all at once

    A sector from DRAM takes several hundred nanoseconds; in that time a multiprocessor could have issued some
    thousands of instructions. GPUs do not try to shorten the wait, they fill it: while one warp waits, others issue theirs
    (**latency hiding**). What arrives per
    second is what is **under way**, divided by how long each of it takes.
    """)
    return


@app.cell(hide_code=True)
def _():
    waiting_warps = mo.ui.slider(1, 64, value=16, label="warps waiting on one multiprocessor", show_value=True)
    wait = mo.ui.slider(300, 1000, step=50, value=600, label="wait (ns)", show_value=True)
    mo.hstack([waiting_warps, wait], justify="start")
    return wait, waiting_warps


@app.cell(hide_code=True)
def _(wait, waiting_warps):
    _gpu = traffic.GPUS["H200"]
    _picture, _shares = traffic.hidden_latency(waiting_warps.value, wait.value, _gpu)
    _needed = _gpu.dram * wait.value * 1e-9 / _gpu.sms
    _said = [f"{_share:.{_share < 0.1:d}%}" for _share in _shares]
    mo.vstack(
        [
            _picture,
            mo.md(
                f"To keep DRAM busy, each multiprocessor needs **{_needed / 1024:.0f} KB** under way. With 4 bytes a lane a "
                f"request has 128 bytes, with 16 bytes a lane 512: the same warps reach {_said[0]} and "
                f"{_said[1]} of the bandwidth. So wide loads help even where they fetch the same sectors. (A warp can "
                "also have several requests under way, if it does not need the first before it issues the second.)"
            ),
        ]
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 4 · Asked for again

    Each multiprocessor has an L1 cache, and all of them share the L2. When a new sector comes and there is no room, another
    one has to go. Which? By what rule a GPU's caches decide, no vendor says. The usual **model** keeps what was used most
    recently (least recently used goes first, **LRU**), and so does yours here: the sector whose **last use** is longest ago
    makes room.
    """)
    return


@app.cell(hide_code=True)
def _():
    guess_cache = checks.predict(
        "A loop reads sectors 1 to 9, again and again. The cache has room for 8. How many reads of the second round hit?",
        ["8 of 9", "about half", "none"],
    )
    guess_cache
    return (guess_cache,)


@app.cell(hide_code=True)
def _(guess_cache):
    checks.reveal(
        guess_cache,
        right="none",
        because={
            "8 of 9": "One sector is too many, but not always the same one: each newcomer throws out the next to be needed.",
            "about half": "It is worse. Each newcomer throws out exactly the sector that will be needed next.",
            "none": "When 9 comes, 1 goes; when 1 comes back, 2 goes, which is needed next. Below, go *round and round* with room for 4 of 5.",
        },
    )
    return


@app.cell(hide_code=True)
def _():
    reading = mo.ui.dropdown(
        {
            "some favourites": (5, 8, 2, 5, 9, 5, 8, 2, 7, 5, 9, 5, 8, 2, 7, 5, 9, 8),
            "round and round": (1, 2, 3, 4, 5) * 4,
            "back and forth": (1, 2, 3, 4, 5, 5, 4, 3, 2, 1) * 2,
        },
        value="some favourites",
        label="reads",
    )
    room = mo.ui.slider(1, 6, value=3, label="room for", show_value=True)
    mo.hstack([reading, room], justify="start")
    return reading, room


@app.cell(hide_code=True)
def _(reading, room):
    traffic.cache_strip(reading.value, room.value)
    return


@app.function
def lru_hits(sector_stream: list[int], capacity: int) -> int:
    """How many reads a cache answers that keeps the sectors which were used most recently.

    Args:
        sector_stream: the sectors in the order in which they are read.
        capacity: how many sectors the cache holds, 0 or more; it begins empty.

    Returns:
        The number of reads that find their sector in the cache. When a new sector does not fit,
        the one whose last use is longest ago makes room.
    """
    raise NotImplementedError("03.lru_hits")


@app.cell(hide_code=True)
def _():
    checks.grade("03.lru_hits", lambda: lru_hits)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("03.lru_hits")
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 5 · Three ways to share out the same work

    Now the operator itself. Each of Q queries has M heads, each head P points (K on each level, all levels together), each
    point four corners, and each corner is a row of D channels. Who reads what? Three answers that people have given:

    - **output**: one thread per output element. The classic CUDA kernel of this operator.
    - **point**: one thread per sampling point, which walks through the channels.
    - **block**: one program, a warp here, per block of queries of a head. Each lane reads 16 bytes of a row.

    All three read the same rows. Predict, then issue the requests one after another, and watch which sectors come more than once.
    """)
    return


@app.cell(hide_code=True)
def _():
    guess_tiling = checks.predict(
        "32 rows of 32 float32 channels have 128 sectors. Which of the three asks for far more than 128?",
        ["output", "point", "block", "none of them"],
    )
    guess_tiling
    return (guess_tiling,)


@app.cell(hide_code=True)
def _(guess_tiling):
    checks.reveal(
        guess_tiling,
        right="point",
        because={
            "output": "Its 32 lanes read 32 channels of one row: four whole sectors, each once.",
            "point": "Its lanes stand in 32 different rows, so each request touches 32 sectors for 4 bytes each. The next "
            "channel asks for the same sectors again.",
            "block": "Eight lanes share a row and four rows share a request: 16 whole sectors, each once.",
            "none of them": "A request is answered on its own. Look at what the second request of each one asks for.",
        },
    )
    return


@app.cell(hide_code=True)
def _():
    issued = mo.ui.slider(0, 32, value=3, label="requests issued", show_value=True)
    issued
    return (issued,)


@app.cell(hide_code=True)
def _(guess_tiling, issued):
    (
        mo.md("*The requests show here after your prediction.*")
        if guess_tiling.value is None
        else traffic.warp_reads(issued.value)
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    Write down what each of them asks for, weights and locations included. This is the longest exercise of the lab; the three
    tilings have a lot in common.
    """)
    return


@app.function
def tiling_addresses(
    tiling: str,
    corners: torch.Tensor,
    D: int,
    itemsize: int,
    value_ptr: int,
    loc_ptr: int,
    attn_ptr: int,
    block: int = 2,
) -> list[tuple[list[int], int]]:
    """The loads of one forward call, warp after warp, for one of three ways to share out the work.

    Work items are numbered in the order given here; 32 consecutive ones go to a warp, one a lane.

    "output": an item is (query, head, channel). For each point: the lanes' weights, x and y, three
        requests; then its four corners, one request each, every lane its own channel.
    "point": an item is (query, head, point). First the weights, x and y; then, for each corner and
        each channel, one request.
    "block": a warp owns `block` queries of one head; blocks outside, heads inside. Its points
        (query, point), 32 at a time, load their weights, x and y. Then, for each corner, the pieces
        of 16 bytes (query, point, piece), 32 at a time.

    Args:
        tiling: "output", "point" or "block".
        corners: (Q, M, P, 4) int64, the pixel of each corner; -1 outside the image: nothing is read.
        D: channels per head; D * itemsize is a multiple of 16.
        itemsize: bytes of one number.
        value_ptr: byte address of value, (S, M, D).
        loc_ptr: byte address of the locations, (Q, M, P, 2), (x, y) in the last axis.
        attn_ptr: byte address of the weights, (Q, M, P).
        block: queries of one program of "block"; the last one may have fewer.

    Returns:
        The requests in order, each (byte addresses of the lanes that read, bytes a lane reads).
        A request without lanes is never issued.
    """
    raise NotImplementedError("03.tiling_addresses")


@app.cell(hide_code=True)
def _():
    checks.grade("03.tiling_addresses", lambda: tiling_addresses)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("03.tiling_addresses")
    return


@app.cell(hide_code=True)
def _():
    call_queries = mo.ui.slider(2, 24, step=2, value=12, label="queries", show_value=True)
    cache_kilobytes = mo.ui.slider(steps=[1, 2, 4, 8, 16, 32, 64, 128, 256], value=16, label="cache (KB)", show_value=True)
    mo.hstack([call_queries, cache_kilobytes], justify="start")
    return cache_kilobytes, call_queries


@app.cell(hide_code=True)
def _(call_queries):
    _tile, _whose_tiles = checks.stand_in("03.tiling_addresses", lambda: tiling_addresses)
    _count, _whose_count = checks.stand_in("03.sectors", lambda: sectors)
    _call = traffic.DECODER._replace(B=1, Q=call_queries.value, M=4)
    _corners = traffic.corner_pixels(_call.locations()[0], _call.shapes)
    _pointers = (1 << 20, 1 << 28, 1 << 29)
    tiled = {}
    for _name in ("output", "point", "block"):
        _requests = _tile(_name, _corners, _call.D, 4, *_pointers)
        _stream = [s for a, n in _requests for s in sorted({b // 32 for at in a for b in range(at, at + n, 4)})]
        tiled[_name] = (len(_requests), sum(_count(*one) for one in _requests), _stream)
    mo.md(
        f"{call_queries.value} queries of {_call.M} heads, {len(_call.shapes) * _call.K} points each, as "
        + ", ".join(f"*{name}*: {r:,} requests, {s:,} sectors" for name, (r, s, _) in tiled.items())
        + f". Written down by {_whose_tiles}, counted by {_whose_count}."
    )
    return (tiled,)


@app.cell(hide_code=True)
def _(cache_kilobytes, tiled):
    _hits, _whose_hits = checks.stand_in("03.lru_hits", lambda: lru_hits)
    _room = cache_kilobytes.value * 32
    _counts = {name: (r, s, len(stream) - _hits(stream, _room)) for name, (r, s, stream) in tiled.items()}
    _touched = len(set(tiled["output"][2]))
    mo.vstack(
        [
            traffic.tiling_traffic(_counts, _touched, cache_kilobytes.value * 1024),
            mo.md(
                f"The cache is {_whose_hits}, a model. Without it, *point* asks for "
                f"**{_counts['point'][1] / _counts['block'][1]:.1f}** times the sectors of *block*; a large enough cache hides "
                f"the difference from DRAM, but not from L1, which has to answer all of them. *block* needs "
                f"**{_counts['output'][0] / _counts['block'][0]:.1f}** times fewer requests than *output*, and "
                f"{1 - _counts['block'][1] / _counts['output'][1]:.0%} fewer sectors: in *output* 32 lanes read one and the "
                "same weight, x and y, and a sector comes for each."
            ),
        ]
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 6 · The least, and the most

    Between two numbers lies everything a cache can do. **Compulsory**: each sector that is touched at all comes from DRAM once.
    **Requested**: each corner's row comes again each time somebody asks. A list of all requests of a real call would be long;
    the corners alone are enough.
    """)
    return


@app.function
def traffic_bounds(corners: torch.Tensor, S: int, D: int, itemsize: int) -> tuple[int, int]:
    """The bytes that a forward call must move at least, and the bytes that it asks for.

    Args:
        corners: (B, Q, M, P, 4) int64, the pixel of each corner, from 0 to S - 1; -1 where
            nothing is read.
        S: pixels of one image. value is (B, S, M, D) and begins on the border of a sector.
        D: channels per head.
        itemsize: bytes of one number.

    Returns:
        (compulsory, requested). Compulsory: each sector of value that some corner touches, once.
        Requested: each sector of each corner's row of D channels, every time it is read. On top of
        either come, once, the bytes of all weights, locations (x and y) and outputs.
    """
    raise NotImplementedError("03.traffic_bounds")


@app.cell(hide_code=True)
def _():
    checks.grade("03.traffic_bounds", lambda: traffic_bounds)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("03.traffic_bounds")
    return


@app.cell(hide_code=True)
def _():
    _bounds, _whose_bounds = checks.stand_in("03.traffic_bounds", lambda: traffic_bounds)
    _call, _image = traffic.DECODER, traffic.DECODER._replace(B=1)
    _corners = traffic.corner_pixels(_image.locations(), _call.shapes)
    # The images of a batch share no byte, so one of them is enough to count.
    decoder_bytes = {n: tuple(_call.B * b for b in _bounds(_corners, _call.S, _call.D, n)) for n in (4, 2)}
    _value = _call.B * _call.S * _call.M * _call.D
    mo.md(
        "In a detector, the **encoder** improves the pyramid, with every pixel a query; then the **decoder** looks for objects "
        "in it, with a few hundred queries, one for each candidate.\n\n"
        f"A decoder's call: batch {_call.B}, {_call.Q} queries, {_call.M} heads of {_call.D} channels, "
        f"{_call.K} points on each of {len(_call.shapes)} levels, on an 800 × 1333 image, points anywhere. Counted by "
        f"{_whose_bounds}:\n\n| | value as a whole | compulsory | requested |\n|---|---|---|---|\n"
        + "\n".join(
            f"| float{8 * n} | {_value * n / 1e6:.0f} MB | **{once / 1e6:.1f} MB** | **{often / 1e6:.1f} MB** |"
            for n, (once, often) in decoder_bytes.items()
        )
        + "\n\nMost of value is read by nobody; a byte that has to come is asked for "
        f"{decoder_bytes[4][1] / decoder_bytes[4][0]:.1f} times on average."
    )
    return (decoder_bytes,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 7 · The shortest time

    Loading from DRAM, answering from L1 and computing all go on at the same time. A call can be no faster than the slowest of
    the three would be on its own. That is a **roofline**, here of a first, **cold** call, whose numbers all come from DRAM.
    """)
    return


@app.cell(hide_code=True)
def _(decoder_bytes):
    _gpu = traffic.GPUS["H200"]
    _requested = decoder_bytes[4][1]
    _best = min(times[4] for times in traffic.DECODER_TIMES.values())
    guess_ideal = checks.predict(
        f"The float32 call asks for {_requested / 1e6:.0f} MB. At {_gpu.dram / 1e12:.1f} TB a second that takes "
        f"{1e6 * _requested / _gpu.dram:.1f} µs. On an H200 it was measured at {_best} µs. What is wrong?",
        ["the measurement", "the data sheet", "the division"],
    )
    guess_ideal
    return (guess_ideal,)


@app.cell(hide_code=True)
def _(guess_ideal):
    checks.reveal(
        guess_ideal,
        right="the division",
        because={
            "the measurement": "Three implementations were timed the same way, and two of them are faster than that.",
            "the data sheet": "Its bandwidth is, if anything, a little more than one ever sees.",
            "the division": "Requested bytes are divided by the bandwidth of DRAM, as if nothing were ever read twice. Only "
            "the compulsory bytes have to come from there; the others are answered by caches, which are faster.",
        },
    )
    return


@app.function
def roofline(bytes: tuple[int, int], flops: int, gpu) -> tuple[float, str]:
    """The shortest time a call can take on a GPU, and what keeps it from being shorter.

    Args:
        bytes: (compulsory, requested), as `traffic_bounds` returns them.
        flops: multiplications and additions, each counted as one.
        gpu: has `gpu.dram` and `gpu.l1`, bytes a second from DRAM and from all L1 caches together,
            and `gpu.flops`, operations a second.

    Returns:
        (microseconds, bound). DRAM, L1 and arithmetic work at the same time, and the slowest of
        the three decides; bound names it: "DRAM", "L1" or "arithmetic".
    """
    raise NotImplementedError("03.roofline")


@app.cell(hide_code=True)
def _():
    checks.grade("03.roofline", lambda: roofline)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("03.roofline")
    return


@app.cell(hide_code=True)
def _():
    which_gpu = mo.ui.dropdown(list(traffic.GPUS), value="H200", label="GPU")
    which_gpu
    return (which_gpu,)


@app.cell(hide_code=True)
def _(decoder_bytes, which_gpu):
    _timed = which_gpu.value == "H200"
    _fastest = {n: min(times[n] for times in traffic.DECODER_TIMES.values()) for n in decoder_bytes}
    traffic.roofline_plot(
        traffic.GPUS[which_gpu.value],
        {f"float{8 * n}": (b, traffic.DECODER.flops, _fastest[n] if _timed else None) for n, b in decoder_bytes.items()},
    )
    return


@app.cell(hide_code=True)
def _(decoder_bytes, which_gpu):
    _roof, _whose_roof = checks.stand_in("03.roofline", lambda: roofline)
    _gpu, _flops = traffic.GPUS[which_gpu.value], traffic.DECODER.flops
    _cold = {n: _roof(b, _flops, _gpu) for n, b in decoder_bytes.items()}
    _warm = {n: _roof(b, _flops, _gpu._replace(dram=_gpu.l2_copy)) for n, b in decoder_bytes.items() if _gpu.l2_copy}
    _said = (
        f"By {_whose_roof}, a **cold** call of the decoder on this GPU takes at least **{_cold[4][0]:.1f} µs** in float32 "
        f"({_cold[4][1]} decides) and **{_cold[2][0]:.1f} µs** in float16 ({_cold[2][1]})."
    )
    if _warm:
        _rows = "".join(
            f"| {name} | {times[4]} µs | {times[4] / _warm[4][0]:.1f} | {times[2]} µs | {times[2] / _warm[2][0]:.1f} |\n"
            for name, times in traffic.DECODER_TIMES.items()
        )
        _said += (
            "\n\nMeasured on an H200: the time of the kernel alone, median of many launches (replayed from a "
            "recording, a CUDA graph, so that no Python runs in between). These were timed again and again on the same "
            f"inputs, and {decoder_bytes[4][0] / 1e6:.0f} MB fit into an L2 of {_gpu.l2 / 2**20:.0f} MB, so they are **warm** "
            "times: L2 delivered what DRAM would have to, and a cold floor says nothing about them. How fast is L2? No data "
            f"sheet says. A copy that stays in it moves {_gpu.l2_copy / 1e12:.1f} TB a second on an H200. With that in DRAM's place, "
            f"the same function gives **{_warm[4][0]:.1f} µs** and **{_warm[2][0]:.1f} µs**:\n\n"
            f"| | float32 | × warm | float16 | × warm |\n|---|---|---|---|---|\n{_rows}\n"
            "Two or three times what the bytes alone would take, for the best of them. What else takes time is the question of "
            "lab 06: instructions, and waiting with too few warps to hide it."
        )
    else:
        _said += "\n\nNothing was measured on this GPU: this is a floor, not a time."
    mo.md(_said)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 8 · The real one

    You counted on paper. Now a GPU counts. Below are kernels, written in Triton as yours will be in the next lab, that ran on
    an H200 under **Nsight Compute**, NVIDIA's profiler, which reads the counters that are built into the chip. Two of them share out the work as your `tiling_addresses`
    does. Same inputs, same sizes; did you foresee what the hardware counted?
    """)
    return


@app.cell(hide_code=True)
def _():
    if device.NO_TRITON:
        _shown = mo.md(f"{device.NO_TRITON} This last section needs it.")
    else:
        from msda_core.bench import probes as _probes

        _tile, _whose_tiles = checks.stand_in("03.tiling_addresses", lambda: tiling_addresses)
        _count, _whose_count = checks.stand_in("03.sectors", lambda: sectors)
        _read_on, _records = traffic.measured()
        _inputs = _probes.msda_inputs(torch.float32, 16)
        _corners = traffic.corner_pixels(_inputs["loc"][0], _probes.PYRAMID)
        (_Q, _M, _P), _D = _corners.shape[:3], _inputs["value"].shape[-1]
        _rows = []
        for _name, _case, _threads in (
            ("output", "msda_element_f32", _Q * _M * _D),
            ("point", "msda_point_f32", _Q * _M * _P),
        ):
            _requests = _tile(_name, _corners, _D, 4, 1 << 20, 1 << 28, 1 << 29)
            _mine = (len(_requests), sum(_count(*one) for one in _requests))
            _chip = [_records[_case]["counters"][f"load_{what}"] for what in ("requests", "sectors")]
            _more = [(chip - mine) / (_threads // 32) for chip, mine in zip(_chip, _mine)]
            _rows.append(
                f"| {_name} | {_mine[0]:,} | **{_chip[0]:,}** | {_more[0]:g} | {_mine[1]:,} | **{_chip[1]:,}** | {_more[1]:g} |"
            )
        _shown = mo.md(
            "| | requests, you | requests, H200 | more, a warp | sectors, you | sectors, H200 | more, a warp |\n"
            "|---|---|---|---|---|---|---|\n" + "\n".join(_rows) + f"\n\nYou: {_whose_tiles} and {_whose_count}. The "
            f"chip: {_read_on['gpu']}, driver {_read_on['driver']}, Triton {_read_on['triton']}, Nsight Compute "
            f"{_read_on['ncu']}.\n\nThe differences are whole numbers a warp, and they are loads that your list leaves "
            "out: every warp also reads the tables of the levels, the height, width and first pixel of each. In *output* a "
            f"warp goes through {len(_probes.PYRAMID)} levels and reads three numbers for each. In *point* each lane knows "
            "its level, so three requests do; heights and widths, 8 bytes each and alternating, lie in two sectors, the "
            "first pixels in one. Everything else you foresaw, to the last sector."
        )
    _shown
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    Your list was written for a kernel you imagined. The counter itself works for any kernel: the **paper GPU** (`msda_core.machine`)
    runs a kernel in Triton's interpreter, compiles it for the GPU with the real compiler, and so knows which lane of which warp
    reads which address, in which instruction. Each of these requests goes to your `sectors`.
    """)
    return


@app.cell(hide_code=True)
def _():
    recorded = mo.ui.dropdown(
        {
            "this operator, 8 heads of 32 channels, float16": "msda_forward_f16",
            "this operator, one thread per output element, float32": "msda_element_f32",
            "this operator, one thread per point, float32": "msda_point_f32",
            "gathered rows, float16": "gather_rows_f16",
            "every third element": "stride_3",
            "a copy that begins in the middle of a sector": "copy_f32_misaligned",
            "a copy of a length that is no multiple of four": "copy_f32_ragged",
        },
        value="this operator, 8 heads of 32 channels, float16",
        label="kernel",
    )
    recorded
    return (recorded,)


@app.cell(hide_code=True)
def _(recorded):
    if device.NO_TRITON:
        _shown = mo.md(f"{device.NO_TRITON} This picture needs it.")
    else:
        _count, _whose_count = checks.stand_in("03.sectors", lambda: sectors)
        _read_on, _records = traffic.measured()
        _record, _pairs = _records[recorded.value], {}
        with mo.status.spinner(title="Running the kernel on the paper GPU", remove_on_exit=True):
            for _kind in ("load", "store"):
                _requests = traffic.issued(recorded.value, _kind)
                _mine = {"requests": len(_requests), "sectors": sum(_count(*one) for one in _requests)}
                for _what, _number in _mine.items():
                    _pairs[f"{_kind} {_what}"] = (_record["counters"][f"{_kind}_{_what}"], _number)
        _hits, _whose_hits = checks.stand_in("03.lru_hits", lambda: lru_hits)
        _stream = [s for a, n in traffic.issued(recorded.value) for s in sorted({b // 32 for at in a for b in (at, at + n - 1)})]
        _model, _chip = _hits(_stream, 256 * 32), _record["counters"]["l1_hit_sectors"]
        _shown = mo.vstack(
            [
                traffic.agreement(_pairs, _whose_count, f"{_record['kernel']} on an {_read_on['gpu']}"),
                mo.md(
                    f"And the cache? Through {_whose_hits} with room for 256 KB, **{_model:,}** of {len(_stream):,} sectors hit; in "
                    f"the H200's L1 it was **{_chip:,}**. Requests and sectors can be counted exactly; a cache is a model. This one "
                    "lets all programs share one L1 and take turns, where the chip deals them out to 132, and it knows no "
                    "sector that is already *under way*: whoever asks for such a one has missed, too."
                ),
            ]
        )
    _shown
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    And live: a kernel that copies every n-th element, compiled here and now for an H200 by the Triton on this machine. This is the
    slider from the beginning, with a real compiler behind it. Change the cell; any kernel will do.
    """)
    return


@app.cell(hide_code=True)
def _():
    real_stride = mo.ui.slider(1, 16, value=3, label="stride (elements)", show_value=True)
    real_stride
    return (real_stride,)


@app.cell
def _(real_stride):
    if device.NO_TRITON:
        profiled, _shown = None, mo.md(device.NO_TRITON)
    else:
        from msda_core import machine as _machine
        from msda_core.bench.probes import probe_stride as _kernel

        _x, _y = torch.randn(16 * 1024), torch.empty(1024)
        profiled = _machine.profile(_kernel, (4,), _x, _y, real_stride.value, BLOCK=256, num_warps=2)
        _shown = mo.plain_text(str(profiled))
    _shown
    return (profiled,)


@app.cell(hide_code=True)
def _(profiled, real_stride):
    _alone = len({4 * real_stride.value * lane // 32 for lane in range(32)})
    _each = profiled.loads.sectors / profiled.loads.requests if profiled else _alone
    _why = (
        "With stride 1 a lane loads its four neighbouring elements at once: 16 bytes, a quarter of the requests."
        if real_stride.value == 1
        else "The compiler gives each lane four neighbouring elements of the *output*, so that it can store 16 bytes at once. "
        "Each of a lane's four loads then stands four strides from its neighbour's. Nobody wrote that: you only see it when "
        "you count."
    )
    mo.md(
        f"At this stride the picture at the top shows {_alone} sectors a request"
        + (f"; this kernel has **{_each:g}**. {_why}" if profiled else ".")
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## What it means

    You can now say of a kernel, before it runs, how many requests it issues, how many sectors they ask L1 for, and how long it
    takes at least. Three things help this operator: lanes that share sectors, wide loads, which are fewer instructions, and
    points near one another while the cache still remembers. Which of them decides when is lab 06's subject. In the next lab you
    write the kernels yourself, and these counters grade them.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Stretch · In what order?

    A multiprocessor computes queries one after another, and its L1 is small. Which query follows which is yours to choose.
    Queries that come as they are given hardly ever find their neighbours' pixels in the cache. The score is the share of
    reads that hit, with room for 192 rows; the best imaginable is what an endless cache would reach.
    """)
    return


@app.function
def order_queries(centres: list[tuple[float, float]]) -> list[int]:
    """An order of the queries in which a small cache hits often.

    Args:
        centres: each query's own (x, y), from 0 to 1; its points lie around it.

    Returns:
        The numbers of the queries, each once, in the order in which they should be computed.
    """
    raise NotImplementedError("03.order_queries")


@app.cell(hide_code=True)
def _():
    checks.grade("03.order_queries", lambda: order_queries)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("03.order_queries")
    return


@app.cell(hide_code=True)
def _():
    checks.closing("03", lambda: (sectors, efficiency, lru_hits, tiling_addresses, traffic_bounds, roofline, order_queries))
    return


if __name__ == "__main__":
    app.run()

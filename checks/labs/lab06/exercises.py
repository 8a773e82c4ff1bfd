"""Lab 06, Make it fast: its exercises, and the mistakes they are there to find.

A kernel's or a launch's mistake is told as an edit of the solution; a timer's is a timer with one thing done wrong.
"""

import math
from functools import cache
from statistics import fmean, median

import torch

from checks.core import compare
from checks.labs import forward_cases
from checks.core.exercise import Draw, Failed, Mistake, NotRun, Property, exercise
from checks.labs.forward_cases import NOT_THERE, SHAPES, far_batch, launch, msda_call, told
from checks.kernel.launches import TARGET, edited
from checks.kernel.budget import within_budget
from msda_core import reference
from msda_core.figures import tiles as forward, speed
from msda_core.machine.model.clock import FLUSH, Clock, NotYet
from solutions import lab05
from solutions import lab06 as solution

LIMIT = 20.0  # seconds one call may take: a loop without an end, not a slow interpreter
CUT = dict(block_q=4, BLOCK_P=8)
FEWER_SECTORS, FEWER_REQUESTS = (
    1.35,
    2.0,
)  # times less than lab 5's loop over points asks for; the solution 1.46 and 2.8


# --- msda_fwd_fast_kernel -------------------------------------------------------------------------------------------


def _launch(kernel, *args, **options):
    return launch(kernel, *args, **{**CUT, **options})


def thirteen_points_on_three_levels(draw: Draw):
    """any number of points, here 13 on each of 3 levels, though BLOCK_P is 8"""
    return msda_call(draw, SHAPES, Q=4, K=13)


def _sixteen_bit_call():
    return tuple(t.half() if t.is_floating_point() else t for t in forward.example_call())


@cache
def _standards():
    """What is right for the small call, and what lab 5's loop and the solution request for it."""
    from msda_core.machine.counts.calls import profile_calls

    args = _sixteen_bit_call()
    (slow,) = profile_calls(lambda: launch(lab05.msda_fwd_kernel, *args, block_q=16, num_warps=4))
    (fast,) = profile_calls(lambda: _launch(solution.msda_fwd_fast_kernel, *args, num_warps=1))
    return reference.exact(*args), slow, fast


def _prepare_traffic():
    """The call, what is right for it, and what lab 5's loop and the solution request for it."""
    return _sixteen_bit_call(), *_standards()


def _traffic(kernel, draw: Draw, prepared) -> str:
    """Sectors and requests on a small float16 call, once its result is right."""
    from msda_core import machine
    from msda_core.machine.counts.calls import trace_calls
    from msda_core.machine.compile.lower import lower_launch

    args, truth, slow, fast = prepared
    out = []
    (trace,) = trace_calls(lambda: out.append(_launch(kernel, *args, num_warps=1)))
    if compare.difference(out[0], truth, truth.half()):
        raise NotRun("counted once the result is right.")
    report = machine.count(trace, lower_launch(trace.launch, TARGET))
    return f"{_fewer_sectors(report, slow, fast)} {_fewer_requests(report, slow, fast)}"


def _fewer_sectors(report, slow, fast) -> str:
    within_budget(report, fast, slow.sectors / FEWER_SECTORS / fast.sectors, "the solution")
    return f"{report.sectors:,} sectors, lab 5's loop {slow.sectors:,}."


def _requests(report) -> int:
    return report.loads.requests + report.stores.requests + report.atomics.requests


def _fewer_requests(report, slow, fast) -> str:
    """Few requests for the same sectors: each lane of each request carries much."""
    from checks.core.call import quote

    mine, allowed = _requests(report), math.floor(_requests(slow) / FEWER_REQUESTS)
    if mine <= allowed:
        return f"{mine:,} requests, lab 5's loop {_requests(slow):,}."
    owner = {event.site: event.tensor for event in report.trace.events}
    worst = max(report.sites, key=lambda site: site.requests)
    frame = worst.site.frames[-1]
    where = quote(frame.filename, frame.lineno)
    wide = worst.sectors / max(1, worst.requests)

    def draw():
        from msda_core.machine.counts.calls import worst_request

        request = worst_request(report, worst)
        return request and forward.lanes_and_sectors(request, f"{where.replace('`', '')}: one request")

    raise Failed(
        f"right, but in small pieces: {mine:,} requests, by the solution {_requests(fast):,}, and up to {allowed:,} "
        f"pass. Most are at {where}: {worst.requests:,}, of {wide:.1f} sectors each. A request of 32 lanes, 16 bytes a lane, "
        "fetches 16.",
        key=("narrow", owner.get(worst.site), round(math.log2(mine / _requests(fast)))),
        picture=draw,
    )


def _far(kernel, draw: Draw) -> str:
    return far_batch(kernel, draw, BLOCK_P=8)


def _score(kernel) -> str:
    from msda_core.machine.counts.calls import profile_calls

    args = _sixteen_bit_call()
    (report,) = profile_calls(lambda: _launch(kernel, *args, num_warps=1))
    least = (report.unique_bytes + report.written_bytes) // 32
    return (
        f"{report.sectors:,} sectors in {_requests(report):,} requests; each sector once would be {least:,}. "
        f"The solution asks for 1,548 in 176."
    )


def _wrong(*changes: tuple[str, str], **names):
    return edited(solution.msda_fwd_fast_kernel, *changes, **names)


A_LOAD = "tl.load(attn_ptr + point, mask=mask_p, other=0.0)"
XY_LOAD = "tl.load(loc_ptr + pair, mask=mask_p[:, :, None], other=0.0)"
V_LOAD = "tl.load(v_ptr, mask=inside[:, :, None] & mask_d[None, None, :], other=0.0)"
ADD = "acc += tl.sum(weight[:, :, None] * v.to(tl.float32), axis=1)"
INSIDE = "mask_p & (xi >= 0) & (xi < W) & (yj >= 0) & (yj < H)"
WEIGHT = "tl.where(inside, a * (1 - tl.abs(x - xi)) * (1 - tl.abs(y - yj)), 0.0)"
MASK_P = "mask_p = mask_q[:, None] & (p < L * K)[None, :]"
SPLIT = f"x, y = tl.split({XY_LOAD}.to(tl.float32))"
POINT = "point = row[:, None] * (L * K) + p[None, :]"
STORE = "acc.to(out_ptr.dtype.element_ty), mask=mask_out)"
#: One point of every query at a time, as in lab 5: the same arithmetic on a tile whose axis of points has length 1.
POINT_BY_POINT = [
    ("range(0, L * K, BLOCK_P)", "range(0, L * K)"),
    ("p = p0 + tl.arange(0, BLOCK_P)", "p = p0 + tl.arange(0, 1)"),
]

exercise(
    "06.msda_fwd_fast_kernel",
    reference=reference.msda,
    cases=[
        forward_cases.one_point_on_one_level,
        forward_cases.every_point_of_every_level,
        thirteen_points_on_three_levels,
        forward_cases.each_batch_item_and_head,
        forward_cases.ragged_queries,
        forward_cases.thirty_three_channels,
        forward_cases.on_the_edges,
        forward_cases.outside_and_not_a_number,
        forward_cases.levels_with_gaps,
        forward_cases.float16,
        forward_cases.bfloat16,
        forward_cases.float32_locations,
    ],
    properties=[
        Property("far_batch", "a batch item may begin more than 2^31 elements after the first", _far),
        Property(
            "traffic",
            f"in float16 it asks for {FEWER_SECTORS:g} times fewer sectors than lab 5's loop over points, in "
            f"{FEWER_REQUESTS:g} times fewer requests",
            _traffic,
            _prepare_traffic,
        ),
    ],
    invoke=_launch,
    picture=lambda args, yours, truth: forward.error_map(yours, truth, args[0].shape[2]),
    guarded=True,
    limit=LIMIT,
    axes=["batch item", "query", "channel"],
    score=_score,
    mistakes=[
        Mistake(
            "when only the first BLOCK_P points are taken",
            _wrong(("range(0, L * K, BLOCK_P)", "range(0, BLOCK_P, BLOCK_P)")),
            "There can be more points than BLOCK_P. What comes after the first block?",
        ),
        Mistake(
            "when the points that fill no block are left out",
            _wrong((MASK_P, MASK_P.replace("(p < L * K)", "(p < L * K // BLOCK_P * BLOCK_P)"))),
            "12 points are one block of 8 and half of another.",
        ),
        Mistake(
            "when lanes past the last point are not masked",
            _wrong((MASK_P, "mask_p = mask_q[:, None] & (p == p)[None, :]")),
            "After a query's last point come the first points of its next head. Who asked for those?",
        ),
        Mistake(
            "when the level of a lane past the last point is looked up",
            _wrong(("tl.minimum(p // K, L - 1)", "p // K")),
            "Lane 13 of 12 points has level 3 of 3, in a table of three. The load of the table needs a mask, or a level "
            "that exists.",
        ),
        Mistake(
            "when each block of points replaces the sum so far",
            _wrong(
                ("        for j in tl.static_range(2):", "        acc = acc * 0\n        for j in tl.static_range(2):")
            ),
            "A second block of points adds to what the first one found.",
        ),
        Mistake(
            "when levels and points are swapped",
            _wrong(("tl.minimum(p // K, L - 1)", "p % L")),
            "Points are counted through (L, K): of which axis is the next point, mostly?",
        ),
        Mistake(
            "when every block of points begins at level 0",
            _wrong(("level = tl.minimum(p // K, L - 1)", "level = tl.minimum((p - p0) // K, L - 1)")),
            "Does your level come from the lane's number, or from the point's?",
        ),
        Mistake(
            "when all points are looked up on the level of the block's first",
            _wrong(("tl.minimum(p // K, L - 1)", "tl.minimum((p0 + p * 0) // K, L - 1)")),
            "A block of 8 points covers several levels, each with an H, a W and a start of its own.",
        ),
        Mistake(
            "when all of x is taken to lie before all of y",
            _wrong(("2 * point[:, :, None] + tl.arange(0, 2)", "point[:, :, None] + L * K * tl.arange(0, 2)")),
            "The last axis of loc has length 2. Which two numbers are neighbours?",
        ),
        Mistake("when the load of the locations has no mask", _wrong((XY_LOAD, "tl.load(loc_ptr + pair)")), NOT_THERE),
        Mistake(
            "when value is masked by point, but not by pixel",
            _wrong((V_LOAD, V_LOAD.replace("inside[", "mask_p["))),
            "A point that exists can still look at a pixel that does not.",
            only="traffic",
        ),
        Mistake(
            "when the parameters are loaded one point at a time",
            _wrong(*POINT_BY_POINT),
            "That is lab 5's loop. A query's points lie side by side: loaded one by one, each load fetches the sector of its "
            "neighbours again. How many points does one sector hold?",
            only="traffic",
        ),
        Mistake(
            "when every number of a query's parameters is a load of its own",
            _wrong(
                (
                    f"a = {A_LOAD}",
                    "a = tl.zeros([BLOCK_Q, BLOCK_P], tl.float32)\n        for n in range(BLOCK_P):\n"
                    "            one = tl.load(attn_ptr + row * (L * K) + p0 + n, mask=mask_q & (p0 + n < L * K), other=0.0)\n"
                    "            a += tl.where((p == p0 + n)[None, :], one.to(tl.float32)[:, None], 0.0)\n        a = a",
                ),
                (
                    SPLIT,
                    "x = tl.zeros([BLOCK_Q, BLOCK_P], tl.float32)\n        y = tl.zeros([BLOCK_Q, BLOCK_P], tl.float32)\n"
                    "        for n in range(BLOCK_P):\n"
                    "            here = loc_ptr + 2 * (row * (L * K) + p0 + n)\n            there = mask_q & (p0 + n < L * K)\n"
                    "            x += tl.where((p == p0 + n)[None, :], tl.load(here, mask=there, other=0.0)"
                    ".to(tl.float32)[:, None], 0.0)\n"
                    "            y += tl.where((p == p0 + n)[None, :], tl.load(here + 1, mask=there, other=0.0)"
                    ".to(tl.float32)[:, None], 0.0)",
                ),
                ("        pair = 2 * point[:, :, None] + tl.arange(0, 2)[None, None, :]\n", ""),
            ),
            "A load of a block (BLOCK_Q, BLOCK_P), whose last axis lies along memory, needs no loop.",
            only="traffic",
        ),
        Mistake(
            "when the parameters are loaded again for each corner",
            _wrong(
                (
                    "xi = tl.floor(x) + i",
                    f"a = {A_LOAD[:-1]}, volatile=True).to(tl.float32)\n                xi = tl.floor(x) + i",
                ),
                (
                    "yj = tl.floor(y) + j",
                    f"x, y = tl.split({XY_LOAD[:-1]}, volatile=True).to(tl.float32))\n                x = x * W - 0.5\n"
                    "                y = y * H - 0.5\n                yj = tl.floor(y) + j",
                ),
            ),
            "Locations and weights do not depend on the corner. Load them once, before the corners.",
            only="traffic",
        ),
        Mistake(
            "when a row of channels is read in pieces",
            _wrong(
                (
                    ADD,
                    "acc += tl.sum(weight[:, :, None] * v, axis=1)",
                ),
                (
                    f"v = {V_LOAD}",
                    "v = tl.zeros([BLOCK_Q, BLOCK_P, BLOCK_D], tl.float32)\n                for d in range(0, D, 4):\n"
                    "                    piece = inside[:, :, None] & mask_d[None, None, :] & (offs_d // 4 * 4 == d)[None, None, :]\n"
                    "                    v += tl.load(v_ptr, mask=piece, other=0.0).to(tl.float32)",
                ),
            ),
            "A piece of 4 numbers of 2 bytes is a quarter of a sector, and the other three are fetched with it, each time. Why cut a row?",
            only="traffic",
        ),
        Mistake(
            "when each lane reads a single channel",
            _wrong(
                (
                    "offs_d = tl.arange(0, BLOCK_D)",
                    "offs_d = (tl.arange(0, BLOCK_D) + tl.program_id(1)) % BLOCK_D",
                )
            ),
            "The rows you read lie in one piece, but the compiler cannot see it: its lanes take one number each. Are your "
            "channel numbers a plain `tl.arange`?",
            only="traffic",
        ),
        Mistake(
            "when rows are read for all heads",
            _wrong(
                (
                    f"v = {V_LOAD}",
                    "v = tl.zeros([BLOCK_Q, BLOCK_P, BLOCK_D], tl.float32)\n                for other in range(M):\n"
                    "                    u = tl.load(v_ptr + (other - m) * D, mask=inside[:, :, None] & mask_d[None, None, :], other=0.0)\n"
                    "                    v += tl.where(other == m, u.to(tl.float32), 0.0)",
                ),
            ),
            "The heads of a pixel lie together, but this program needs one of them.",
            only="traffic",
        ),
        *told(
            value_dtype=_wrong(
                (
                    "tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)",
                    "tl.zeros([BLOCK_Q, BLOCK_D], value_ptr.dtype.element_ty)",
                ),
                (
                    ADD,
                    "acc = (acc.to(tl.float32) + tl.sum(weight[:, :, None] * v.to(tl.float32), axis=1)).to(acc.dtype)",
                ),
            ),
            untested_weight=_wrong((WEIGHT, "a * (1 - tl.abs(x - xi)) * (1 - tl.abs(y - yj))")),
            x0_for_x1=_wrong(("tl.floor(x) + i", "tl.floor(x)")),
            y0_for_y1=_wrong(("tl.floor(y) + j", "tl.floor(y)")),
            start_twice=_wrong(("pixel = start + ", "pixel = 2 * start + ")),
            no_start=_wrong(("pixel = start + ", "pixel = ")),
            half_coordinates=_wrong(
                (SPLIT, f"x, y = tl.split({XY_LOAD})"),
                ("x * W - 0.5", "(x * W - 0.5).to(tl.float32)"),
                ("y * H - 0.5", "(y * H - 0.5).to(tl.float32)"),
            ),
            rounded_coordinates=_wrong(
                ("x * W - 0.5", "(x * W - 0.5).to(tl.float16).to(tl.float32)"),
                ("y * H - 0.5", "(y * H - 0.5).to(tl.float16).to(tl.float32)"),
            ),
            y_x=_wrong(("x, y = tl.split", "y, x = tl.split")),
            w_h=_wrong(
                ("H = tl.load(shapes_ptr + 2 * level)", "H = tl.load(shapes_ptr + 2 * level + 1 - 1 + 1)"),
                ("W = tl.load(shapes_ptr + 2 * level + 1)", "W = tl.load(shapes_ptr + 2 * level)"),
            ),
            w_for_both=_wrong(("y * H - 0.5", "y * W - 0.5")),
            no_half_pixel=_wrong(("x * W - 0.5", "x * W"), ("y * H - 0.5", "y * H")),
            centre_to_centre=_wrong(("x * W - 0.5", "x * (W - 1)"), ("y * H - 0.5", "y * (H - 1)")),
            truncated=_wrong(
                ("tl.floor(x)", "tl.where(x < 0, -tl.floor(-x), tl.floor(x))"),
                ("tl.floor(y)", "tl.where(y < 0, -tl.floor(-y), tl.floor(y))"),
            ),
            far_near=_wrong((WEIGHT, "tl.where(inside, a * tl.abs(x - xi) * tl.abs(y - yj), 0.0)")),
            h_pitch=_wrong((".to(tl.int32) * W + ", ".to(tl.int32) * H + ")),
            nearest=_wrong(
                ("x * W - 0.5", "tl.minimum(tl.maximum(x * W - 0.5, 0.0), W - 1.0)"),
                ("y * H - 0.5", "tl.minimum(tl.maximum(y * H - 0.5, 0.0), H - 1.0)"),
            ),
            nan_is_0=_wrong(
                ("x = x * W - 0.5", "x = tl.where(x == x, x * W - 0.5, 0.0)"),
                ("y = y * H - 0.5", "y = tl.where(y == y, y * H - 0.5, 0.0)"),
            ),
            whole_point=_wrong(
                (
                    INSIDE,
                    "mask_p & (tl.floor(x) >= 0) & (tl.floor(x) < W - 1) & (tl.floor(y) >= 0) & (tl.floor(y) < H - 1)",
                )
            ),
            early_integer=_wrong(
                ("xi = tl.floor(x) + i", "xi = tl.floor(x).to(tl.int32) + i"),
                ("yj = tl.floor(y) + j", "yj = tl.floor(y).to(tl.int32) + j"),
                (", 0.0).to(tl.int32)", ", 0)"),
            ),
            no_attention=_wrong((WEIGHT, WEIGHT.replace("a * (1", "(1", 1))),
            last_corner=_wrong((ADD, ADD.replace("+=", "="))),
            mean=_wrong((STORE, STORE.replace("acc.to", "(acc / (L * K)).to"))),
            heads_first=_wrong(("row = (b * Q + q) * M + m", "row = (b * M + m) * Q + q")),
            first_head=_wrong(("(b * S * M + m) * D", "(b * S * M) * D")),
            first_item=_wrong(("(b * S * M + m) * D", "m.to(tl.int64) * D")),
            rows_of_item_0=_wrong(("(b * Q + q)", "q.to(tl.int64)")),
            head_first_id=_wrong(
                ("m = tl.program_id(1) % M", "m = tl.program_id(1) // M"),
                ("(tl.program_id(1) // M)", "(tl.program_id(1) % M)"),
            ),
            heads_apart=_wrong(
                ("(b * S * M + m) * D", "(b * S * M + m * S) * D"),
                ("pixel[:, :, None] * (M * D)", "pixel[:, :, None] * D"),
            ),
            pixel_pitch_d=_wrong(("pixel[:, :, None] * (M * D)", "pixel[:, :, None] * D")),
            block_d=_wrong(
                ("(M * D)", "(M * BLOCK_D)"), ("* M + m) * D", "* M + m) * BLOCK_D"), ("] * D +", "] * BLOCK_D +")
            ),
            no_block_q=_wrong(("tl.program_id(0) * BLOCK_Q", "tl.program_id(0)")),
            full_blocks=_wrong(("q < Q", "q < Q // BLOCK_Q * BLOCK_Q")),
            no_attention_mask=_wrong((A_LOAD, "tl.load(attn_ptr + point)")),
            no_channel_mask=_wrong((V_LOAD, V_LOAD.replace(" & mask_d[None, None, :]", ""))),
            no_other=_wrong((V_LOAD, V_LOAD.replace(", other=0.0", ""))),
            no_store_mask=_wrong((STORE, STORE.replace(", mask=mask_out", ""))),
            store_any_query=_wrong((STORE, STORE.replace("mask_out", "mask_d[None, :]"))),
            store_any_channel=_wrong((STORE, STORE.replace("mask_out", "mask_q[:, None]"))),
            narrow_batch=_wrong((".to(tl.int64)", "")),
        ),
    ],
    hints=[
        "Look at lab 5's table of bytes: which line uses 2 or 4 of the 32 bytes it fetches, and who uses the others, when?",
        "A query's points lie side by side in memory: 16 weights of 2 bytes are one sector. Make the points an axis of the "
        "tile, (BLOCK_Q, BLOCK_P), and load weights and locations with it; the channels become the third axis. The level then "
        "is a number of each lane, and its H, W and start are looked up.",
        "`p = p0 + tl.arange(0, BLOCK_P)`, `level = p // K` (lanes past the last point need one that exists); load (x, y) as "
        "(BLOCK_Q, BLOCK_P, 2) and `tl.split` it; per corner a weight (BLOCK_Q, BLOCK_P), a row of pixels "
        "(BLOCK_Q, BLOCK_P, BLOCK_D), and `tl.sum(…, axis=1)`.",
    ],
)


# --- launch_config --------------------------------------------------------------------------------------------------

HALF, SINGLE = torch.float16, torch.float32
COPY = edited(solution.msda_fwd_fast_kernel)  # to be launched by a check, inside an answer's call
FIELDS = ("BLOCK_Q", "BLOCK_P", "BLOCK_D", "num_warps")
#: Q, M, D, L, K, dtype of calls from a single query to an encoder.
CALLS = [
    (300, 8, 32, 4, 4, SINGLE),
    (300, 8, 32, 4, 4, HALF),
    (22223, 8, 32, 4, 4, HALF),
    (900, 8, 32, 1, 4, torch.bfloat16),
    (1, 1, 1, 1, 1, SINGLE),
    (77, 3, 33, 3, 13, HALF),
    (40000, 8, 64, 4, 8, SINGLE),
    (100, 4, 300, 5, 2, SINGLE),
]


def _asked(launch_config, *call) -> dict[str, int]:
    """An answer for one call, if it is one at all."""
    got = launch_config(*call)
    said = f"for {_named(call)}"
    if not isinstance(got, dict) or sorted(got) != sorted(FIELDS):
        raise Failed(
            f"{said} your function returned {compare.describe(got) if not isinstance(got, dict) else got}, expected a dict "
            f"with {', '.join(FIELDS)}.",
            ("no dict",),
        )
    for name, number in got.items():
        if isinstance(number, bool) or not isinstance(number, int) or number < 1 or number & (number - 1):
            raise Failed(f"{said} {name} is {number!r}, expected an int, a power of two.", ("power", name))
    return got


def _named(call) -> str:
    return (
        ", ".join(f"{name} = {value}" for name, value in zip(("Q", "M", "D", "L", "K"), call))
        + f" in {str(call[5])[6:]}"
    )


def _power(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _no_idle_lanes(launch_config, draw: Draw) -> str:
    extra = (
        draw.integer(1, 2000),
        draw.integer(1, 9),
        draw.integer(1, 150),
        draw.integer(1, 5),
        draw.integer(1, 9),
        HALF,
    )
    for call in [*CALLS, extra]:
        Q, M, D, L, K, dtype = call
        got = _asked(launch_config, *call)
        said = f"for {_named(call)}"
        if got["BLOCK_D"] < D:
            raise Failed(f"{said} BLOCK_D is {got['BLOCK_D']}: not every channel has a lane.", ("too small", "BLOCK_D"))
        for name, needed in (("BLOCK_D", _power(D)), ("BLOCK_P", _power(L * K)), ("BLOCK_Q", _power(Q))):
            if got[name] > needed:
                raise Failed(f"{said} {name} is {got[name]}, and {needed} holds all there are.", ("too large", name))
        if got["num_warps"] > 32:
            raise Failed(
                f"{said} num_warps is {got['num_warps']}: a program holds 32 at most.", ("too large", "num_warps")
            )
    return f"{len(CALLS) + 1} calls, from a single query to an encoder."


def _wide(launch_config, draw: Draw) -> str:
    for call in [c for c in CALLS if c[0] * c[1] * c[3] * c[4] >= 2000]:
        got = _asked(launch_config, *call)
        tile = got["BLOCK_Q"] * got["BLOCK_P"] * got["BLOCK_D"]
        lanes = 32 * got["num_warps"]
        if tile * call[5].itemsize < 16 * lanes:
            raise Failed(
                f"for {_named(call)} a tile has {tile:,} numbers of {call[5].itemsize} bytes for {lanes} lanes: "
                f"{tile * call[5].itemsize / lanes:.3g} bytes each, and a lane can load 16 at once.",
                ("narrow", call[3] * call[4] < 8, got["BLOCK_P"] == 1),
            )
    return "every lane has 16 bytes of each corner to load."


def _fills(launch_config, draw: Draw) -> str:
    for call in ((300, 8, 32, 4, 4, HALF), (100, 8, 32, 4, 4, HALF), (900, 8, 32, 1, 4, SINGLE)):
        got = _asked(launch_config, *call)
        programs = -(-call[0] // got["BLOCK_Q"]) * call[1]
        if programs * got["num_warps"] < 4 * 132:
            raise Failed(
                f"for {_named(call)} there are {programs} programs of {got['num_warps']} warps, on 132 multiprocessors: "
                f"{programs * got['num_warps'] / 132:.1f} warps each, to hide the wait for memory. Four pass.",
                ("idle", call[0]),
            )
    return "300 queries, or 100, keep every multiprocessor at work."


def _prepare_registers():
    from msda_core import machine

    def lowered(Q, M, D, L, K, dtype, got):
        """The solution's kernel as it would be compiled for that cut."""
        value = torch.zeros(1, 64, M, D, dtype=dtype)
        shapes, starts = torch.ones(L, 2, dtype=torch.int64), torch.zeros(L, dtype=torch.int64)
        loc, attn = torch.zeros(1, 1, M, L, K, 2, dtype=dtype), torch.zeros(1, 1, M, L, K, dtype=dtype)
        args = (value, shapes, starts, loc, attn, torch.zeros(1, 1, M * D, dtype=dtype), 1, 64)
        sizes = dict(M=M, D=D, L=L, K=K, **{name: got[name] for name in FIELDS[:3]})
        return machine.lower(COPY, *args, num_warps=got["num_warps"], target=TARGET, **sizes)

    return lowered


def _fits_in_registers(launch_config, draw: Draw, lowered) -> str:
    notes = []
    for call in ((300, 8, 256, 4, 16, SINGLE),):
        got = _asked(launch_config, *call)
        tile = got["BLOCK_Q"] * got["BLOCK_P"] * got["BLOCK_D"]
        each = tile / (32 * got["num_warps"])
        spills = f"{each:.0f} numbers of each corner for each lane"
        if each > 128:  # the compiler would take minutes to say so
            raise Failed(
                f"for {_named(call)} there are {spills}. A lane has 255 registers for everything.", ("spills",)
            )
        code = lowered(*call, got)
        if code.spills:
            raise Failed(
                f"for {_named(call)} there are {spills}, and {code.spills} bytes of them spill from registers to memory.",
                ("spills",),
            )
        notes.append(f"{code.registers} registers a lane, and none spilled.")
    return " ".join(notes)


def _prepare_config_traffic():
    from msda_core.machine.counts.calls import profile_calls

    args, truth, slow, fast = _prepare_traffic()
    launched = lambda got: profile_calls(  # noqa: E731
        lambda: launch(COPY, *args, block_q=got["BLOCK_Q"], BLOCK_P=got["BLOCK_P"], num_warps=got["num_warps"])
    )[0]
    return slow, fast, launched


def _config_traffic(launch_config, draw: Draw, prepared) -> str:
    slow, fast, launched = prepared
    got = _asked(launch_config, 3000, 8, 32, 2, 4, HALF)
    report = launched(got)
    for what, count, least, factor in (
        ("sectors", report.sectors, slow.sectors, FEWER_SECTORS),
        ("requests", _requests(report), _requests(slow), FEWER_REQUESTS),
    ):
        if count > least / factor:
            raise Failed(
                f"cut as {got}, the solution's kernel asks for {count:,} {what}, lab 5's loop for {least:,}, and "
                f"{math.floor(least / factor):,} pass.",
                ("wasteful", what),
            )
    return f"{report.sectors:,} sectors in {_requests(report):,} requests; lab 5's loop {slow.sectors:,} in {_requests(slow):,}."


def _wrong_config(*changes: tuple[str, str]):
    return edited(solution.launch_config, *changes)


TILE_P = "min(triton.next_power_of_2(L * K), max(1, tile // BLOCK_D))"
TILE_Q = "min(triton.next_power_of_2(Q), max(1, tile // (BLOCK_D * BLOCK_P)))"
WARPS = "min(max(1, BLOCK_D // tile), 16)"
FEW = "BLOCK_Q > 1 and triton.cdiv(Q, BLOCK_Q) * M < 4 * 132"

exercise(
    "06.launch_config",
    reference=solution.launch_config,
    cases=[],
    properties=[
        Property("no_idle_lanes", "blocks hold what there is, and no more than the next power of two", _no_idle_lanes),
        Property("wide_rows", "with many queries, each lane has 16 bytes to load at a time", _wide),
        Property("fills_the_gpu", "with few queries, there are still warps for every multiprocessor", _fills),
        Property("registers", "256 channels and 64 points fit: nothing spills", _fits_in_registers, _prepare_registers),
        Property(
            "traffic",
            f"cut your way, the solution's kernel asks for {FEWER_SECTORS:g} times fewer sectors than lab 5's loop, in "
            f"{FEWER_REQUESTS:g} times fewer requests",
            _config_traffic,
            _prepare_config_traffic,
        ),
    ],
    guarded=True,
    limit=LIMIT,
    mistakes=[
        Mistake(
            "when all points are taken at once, however many channels there are",
            _wrong_config((TILE_P, "triton.next_power_of_2(L * K)")),
            "64 points of 256 channels are 16,384 numbers for each corner. How many registers has a warp?",
        ),
        Mistake(
            "when every program has four warps",
            _wrong_config((WARPS, "4")),
            "A tile is shared out among all lanes of a program. How many bytes of each corner does a lane of four warps get?",
        ),
        Mistake(
            "when BLOCK_D is D",
            _wrong_config(("triton.next_power_of_2(D)", "D")),
            "`tl.arange` needs a power of two. What about 33 channels?",
        ),
        Mistake(
            "when BLOCK_P is L * K",
            _wrong_config((TILE_P, "L * K")),
            "`tl.arange` needs a power of two. What about 13 points on 3 levels?",
        ),
        Mistake(
            "when BLOCK_D is cut off at the size of the tile",
            _wrong_config(("triton.next_power_of_2(D)", "min(triton.next_power_of_2(D), 256)")),
            "The kernel has no loop over channels: all of them need a lane.",
        ),
        Mistake(
            "when BLOCK_P is 16, however many points there are",
            _wrong_config((TILE_P, "16")),
            "With 4 points, what do the other 12 lanes do?",
        ),
        Mistake(
            "when one point is taken at a time",
            _wrong_config((TILE_P, "1")),
            "That is lab 5's loop. What did its loads of locations and weights use of each sector?",
        ),
        Mistake(
            "when a program has one query, however few points",
            _wrong_config((TILE_Q, "1")),
            "4 points of 32 channels are 128 numbers. Is that enough for 32 lanes that can load 16 bytes each?",
        ),
        Mistake(
            "when BLOCK_Q is 16, however few queries there are",
            _wrong_config((TILE_Q, "16"), (FEW, "False")),
            "How many programs does a decoder of 100 queries and 8 heads have then, on 132 multiprocessors?",
        ),
        Mistake(
            "when few queries are packed as tightly as many",
            _wrong_config((FEW, "False")),
            "100 queries, two to a program, 8 heads: how many programs are there for 132 multiprocessors?",
        ),
        Mistake(
            "when the same number of elements is taken in 16 bits as in 32, for twice the lanes",
            _wrong_config(("4 * 32 * 16 // dtype.itemsize", "4 * 32"), (WARPS, "1")),
            "A lane loads 16 bytes at once. How many numbers is that in float16?",
        ),
    ],
    hints=[
        "A warp's load moves 32 times 16 bytes. How many numbers of value is that in float16, and in float32?",
        "Decide how many numbers one warp should hold of each corner, a few such loads. Give the channels their lanes first, "
        "then points as long as there is room, then queries. And if there are so few queries that multiprocessors go without "
        "work, take fewer to a program.",
        "`tile = 4 * 32 * 16 // dtype.itemsize`; `triton.next_power_of_2` for each axis, with `min(…)` against what is left of "
        "the tile; halve BLOCK_Q while `cdiv(Q, BLOCK_Q) * M` is below four times 132; more than one warp only if the channels "
        "alone fill more than a tile.",
    ],
)


# --- device_time ----------------------------------------------------------------------------------------------------

OFF = 0.03  # relative error that passes
DEVICES = 30  # on which a single launch, one of a graph of twenty, is held up 97 times of 100


def _steady(draw: Draw, **changes) -> Clock:
    """A device without idle speed and without trouble, so that one thing can go wrong at a time."""
    return Clock(draw.integer(0, 9999), **{"idle_speed": 1.0, "trouble": 0.0, **changes})


def _time(answer, clock: Clock, title: str, **kernel) -> str:
    """Let an answer time one kernel, and say what its figures are the figures of."""
    fn = clock.kernel(**kernel)
    try:
        got = answer(fn, clock)
    except NotYet as error:
        raise Failed(f"{error}", ("not yet",)) from None
    pair = got if isinstance(got, (tuple, list)) else ()
    if len(pair) != 2 or not all(isinstance(t, (int, float)) and not isinstance(t, bool) for t in pair):
        raise Failed(f"your function returned {compare.describe(got)}, expected (warm, cold).", ("no pair",))
    truth = {"warm": kernel["warm"], "cold": kernel.get("cold", kernel["warm"])}
    wrong = []
    for name, yours in zip(truth, pair):
        if not abs(yours / truth[name] - 1) <= OFF:
            wrong.append((name, yours, *_symptom(name, yours, truth, clock, kernel)))
    if not wrong:
        return f"{title}: warm {pair[0]:.4g} and cold {pair[1]:.4g} µs, and it takes {truth['warm']:.4g} and {truth['cold']:.4g}."
    shared = wrong[0][3] if len({why for *_, why in wrong}) == 1 else ""
    said = "; ".join(
        f"{name} is {yours:.4g} µs, and {truth[name]:.4g} is right{why if why != shared else ''}"
        for name, yours, _, why in wrong
    )
    flushed = any(span.what == "flush" for span in clock.spans)
    name, _, symptom, _ = wrong[0]  # who gets warm wrong may do anything about cold, and it is the same mistake
    more = flushed if name == "cold" else symptom == "other" and len(wrong)
    raise Failed(f"{title}: your {said}{shared}.", (name, symptom, more))


def _symptom(name: str, yours: float, truth: dict, clock: Clock, kernel: dict) -> tuple[str, str]:
    """What a wrong figure is the figure of: a word, and the end of a sentence."""
    right, other = truth[name], truth["cold" if name == "warm" else "warm"]
    dispatch = kernel.get("dispatch", 20.0)
    near = lambda t, off=0.06: abs(yours / t - 1) <= off  # noqa: E731
    if not math.isfinite(yours) or yours <= 0:
        return "nothing", ""
    if near(1000 * right) or near(right / 1000):
        return "unit", ". Microseconds are asked for"
    if near(right / 1e6):
        return "seconds", ". Microseconds are asked for"
    if kernel.get("compile") and yours - right > kernel["compile"] / 2000:
        return "compile", f". The first launch compiles, which takes {kernel['compile']:,.0f}, spread over your calls"
    if other != right and near(other):
        return "other", f". {other:.4g} is the {'cold' if name == 'warm' else 'warm'} time"
    if near(right + FLUSH, 0.03) or near(right + FLUSH + dispatch, 0.03):
        return "flush", f". A flush takes {FLUSH:g}"
    if any(near(dispatch + extra, 0.12) for extra in (0, 1, 2)):
        return "dispatch", f". What a launch costs the host is {dispatch:.4g}"
    held_up = f"{clock.trouble:.1%} of the launches are held up, and pull a mean with them"
    also = f"; and {held_up}" if clock.trouble else ""
    if near(right + dispatch, 0.12) or near(right + dispatch + clock.sync, 0.12):
        return (
            "both",
            f". A launch costs the host {dispatch:.4g}, and a wait {clock.sync:.4g}"
            + (also or ": you counted one after the other"),
        )
    if any(near(n * right, 0.02) for n in (5, 10, 16, 20, 25, 32, 50, 64, 100, 128, 200, 500, 1000)):
        return "many", ". That is the time of several launches"
    if clock.idle_speed < 1 and right < yours <= 1.1 * right / clock.idle_speed:
        return "slow", f". Coming from rest, the device runs at {clock.idle_speed:.0%} of its speed{also}"
    if clock.trouble and right < yours:
        return "skewed", f". {held_up}"
    return ("more" if yours > right else "less"), ""


def _long(answer, draw: Draw) -> str:
    warm = draw.number(180, 260)
    return _time(answer, _steady(draw), "a long kernel", warm=warm, dispatch=draw.number(28, 40))


def _short(answer, draw: Draw) -> str:
    return _time(answer, _steady(draw), "a short kernel", warm=draw.number(3, 7), dispatch=draw.number(28, 40))


def _compiled(answer, draw: Draw) -> str:
    warm = draw.number(150, 250)
    return _time(answer, _steady(draw), "a fresh kernel", warm=warm, dispatch=10.0, compile=draw.number(4e5, 9e5))


def _from_rest(answer, draw: Draw) -> str:
    clock = _steady(draw, idle_speed=draw.number(0.3, 0.5), ramp=draw.number(3000, 6000))
    return _time(answer, clock, "on a device at rest", warm=draw.number(4, 8), dispatch=10.0)


def _held_up(answer, draw: Draw) -> str:
    for _ in range(DEVICES):  # one figure can be lucky on one device, hardly on all
        clock = _steady(draw, trouble=0.005, delay=draw.number(1500, 2500))
        note = _time(answer, clock, "with other work in between", warm=draw.number(20, 30), dispatch=10.0)
    return note


def _both_temperatures(answer, draw: Draw) -> str:
    warm = draw.number(22, 30)
    return _time(answer, _steady(draw), "warm and cold", warm=warm, cold=warm * draw.number(1.6, 2.2), dispatch=8.0)


def _all_at_once(answer, draw: Draw) -> str:
    warm = draw.number(4, 9)
    cold = warm * draw.number(1.6, 2.4)
    clock = Clock(draw.integer(0, 9999))
    return _time(answer, clock, "all at once", warm=warm, cold=cold, dispatch=draw.number(18, 35), compile=3e5)


def _on_silicon(answer, draw: Draw) -> str:
    """The same on a GPU, for the solution's kernel on a decoder's call, against `msda_core.bench`'s clock."""
    from msda_core.bench import operator as bench, contest as race

    if race.no_gpu():
        raise NotRun(f"{race.no_gpu()}. Nothing was graded.")
    args = bench.make_inputs("decoder", HALF, bench.pyramid(800, 1333), "cuda", B=2)[:5]
    B, S, M, D = args[0].shape
    _, Q, _, L, K, _ = args[3].shape
    got = dict(BLOCK_Q=2, BLOCK_P=16, BLOCK_D=32, num_warps=1)
    out = args[0].new_empty(B, Q, M * D)
    clock = race.Silicon()
    fn = clock.launching(lambda: COPY[(-(-Q // 2), B * M)](*args, out, Q, S, M=M, D=D, L=L, K=K, **got))
    fn()
    truth = []
    for copies, before in ((20, lambda: None), (1, clock.flush)):
        many = clock.graph(fn, copies)
        for _ in range(200):
            many()
        pairs = []
        for _ in range(51):
            before()
            pairs.append((clock.record(), many(), clock.record()))
        clock.synchronize()
        truth.append(median(end.time - start.time for start, _, end in pairs) / copies)
    mine = answer(fn, clock)
    if not all(abs(yours / right - 1) <= 0.2 for yours, right in zip(mine, truth)):
        raise Failed(
            f"on this GPU your times are {mine[0]:.4g} and {mine[1]:.4g} µs, and ours {truth[0]:.4g} and {truth[1]:.4g}.",
            ("silicon", *(round(2 * math.log2(yours / right)) for yours, right in zip(mine, truth))),
        )
    return f"yours {mine[0]:.4g} and {mine[1]:.4g} µs, ours {truth[0]:.4g} and {truth[1]:.4g}."


def timer(
    *, compiled=True, graph=True, wait="end", average=median, copies=20, divide=True, warm_up=20_000.0, flush="each",
    clocked="event", cold=True, swap=False, repeats=101,
):  # fmt: skip
    """A `device_time`, right unless told otherwise.

    Args:
        compiled: launch once before anything is timed; graph: many launches in one, else one by one.
        wait: synchronize at the "end", after "each" launch, or "never"; clocked: by "event", or by the "host".
        average: of the repeats; copies: launches in a graph; divide: by them; warm_up: microseconds of it.
        flush: before "each" launch, "once", "never", "inside" what is timed, or "both" for the warm time as well.
        cold: time it at all; swap: return cold first.
    """

    def device_time(fn, clock):
        if compiled:
            fn()
        many = clock.graph(fn, copies) if graph else fn
        begin = clock.now()
        while clock.now() - begin < warm_up:
            many()

        def sample(launch, before, inside):
            if clocked == "host":
                if wait == "each":
                    times = []
                    for _ in range(repeats):
                        before()
                        if flush != "never" and before is clock.flush:
                            clock.synchronize()
                        start = clock.now()
                        launch()
                        clock.synchronize()
                        times.append(clock.now() - start)
                    return average(times)
                clock.synchronize()
                start = clock.now()
                for _ in range(repeats):
                    before()
                    launch()
                if wait == "end":
                    clock.synchronize()
                return (clock.now() - start) / repeats
            pairs = []
            for _ in range(repeats):
                before()
                start = clock.record()
                inside()
                launch()
                pairs.append((start, clock.record()))
                if wait == "each":
                    clock.synchronize()
            if wait == "end":
                clock.synchronize()
            return average([end.time - start.time for start, end in pairs])

        nothing = lambda: None  # noqa: E731
        if flush == "both":
            warm = sample(fn, clock.flush, nothing)
        else:
            warm = sample(many, nothing, nothing) / (copies if graph and divide else 1)
        if not cold:
            return warm, warm
        if flush == "once":
            clock.flush()
        before = clock.flush if flush in ("each", "both") else nothing
        late = sample(fn, before, clock.flush if flush == "inside" else nothing)
        return (late, warm) if swap else (warm, late)

    return device_time


def _fresh_mean(fn, clock):
    """The first call counted: the mean of a hundred calls, from the very first."""
    start = clock.now()
    for _ in range(100):
        fn()
    clock.synchronize()
    warm = (clock.now() - start) / 100
    return warm, warm


exercise(
    "06.device_time",
    reference=solution.device_time,
    cases=[],
    properties=[
        Property("long_kernel", "a launch returns at once: the kernel's end is waited for", _long),
        Property("short_kernel", "a kernel can be shorter than what the host pays to launch it", _short),
        Property("first_call", "the first call compiles, and is not counted", _compiled),
        Property("from_rest", "a device at rest is slow, and is brought up to speed first", _from_rest),
        Property("held_up", "a launch that something else held up does not count", _held_up),
        Property("warm_and_cold", "warm and cold are two figures", _both_temperatures),
        Property("all_at_once", "on a device with all of these", _all_at_once),
        Property("on_silicon", "and on a real GPU", _on_silicon),
    ],
    limit=LIMIT,
    mistakes=[
        Mistake(
            "when one time is given twice",
            timer(cold=False),
            "Two figures are asked for. What must happen before a launch, so that it finds nothing of its own in L2?",
        ),
        Mistake(
            "when a single launch is timed",
            timer(repeats=1),
            "Now and then a launch is held up. With one figure, how would you know that it was not yours?",
        ),
        Mistake(
            "when dispatch is mistaken for the kernel",
            lambda fn, clock: (timer(graph=False, clocked="host")(fn, clock)[0],) * 2,
            "Your loop launches one by one. If a launch costs the host 30 and the kernel 5, how long do 100 take? How can many "
            "launches cost the host no more than one?",
        ),
        Mistake(
            "when nobody synchronizes",
            lambda fn, clock: (timer(graph=False, clocked="host", wait="never", warm_up=200)(fn, clock)[0],) * 2,
            "A launch puts the kernel in a queue and returns. When is it done, and how would the host know?",
        ),
        Mistake(
            "when each launch is waited for inside the loop",
            lambda fn, clock: (timer(graph=False, clocked="host", wait="each")(fn, clock)[0],) * 2,
            "If the host waits for each launch, the device waits for the host. Whose time is it from one launch to the next?",
        ),
        Mistake(
            "when the first call is counted",
            _fresh_mean,
            "What does the first launch of a kernel do that no other does?",
        ),
        Mistake(
            "when the mean of a skewed sample is taken",
            timer(average=fmean),
            "One launch in two hundred takes a hundred times as long. What does that do to the mean, and what to the median?",
        ),
        Mistake(
            "when the worst of the sample is taken",
            timer(average=max),
            "The longest time says what disturbed you, not what the kernel takes.",
        ),
        Mistake(
            "when two events stand around a launch on an idle device",
            lambda fn, clock: (timer(graph=False, wait="each")(fn, clock)[0],) * 2,
            "The first event happens at once if the device has nothing to do. What is the device waiting for until the kernel "
            "comes?",
        ),
        Mistake(
            "when the device is not brought up to speed",
            timer(warm_up=0.0, repeats=21),
            "An idle device saves power. How much work does it take until it runs at full speed?",
        ),
        Mistake(
            "when the time of all launches of a graph is taken for one",
            timer(divide=False),
            "How many launches lie between your two events?",
        ),
        Mistake(
            "when L2 is never emptied",
            timer(flush="never"),
            "The launch before yours left its data in L2. What does `flush` do?",
        ),
        Mistake(
            "when L2 is emptied once for many launches",
            timer(flush="once"),
            "The first launch finds L2 full of something else. What does the second find?",
        ),
        Mistake(
            "when the flush is timed with the kernel",
            timer(flush="inside"),
            "A flush is work of the device, like the kernel. On which side of the first event should it be?",
        ),
        Mistake(
            "when L2 is emptied for both times",
            timer(flush="both"),
            "Warm means: its data are in L2. Who put them there?",
        ),
        Mistake("when cold comes first", timer(swap=True), "The result is (warm, cold)."),
        Mistake(
            "when seconds are returned",
            lambda fn, clock: tuple(t / 1e6 for t in timer()(fn, clock)),
            "The clock counts microseconds, and so should you.",
        ),
        Mistake(
            "when milliseconds are returned",
            lambda fn, clock: tuple(t / 1000 for t in timer()(fn, clock)),
            "The clock counts microseconds, and so should you.",
        ),
        Mistake(
            "when an event's time is read before anybody waited for it",
            timer(wait="never"),
            "Recording an event takes no time on the host. When does the host know what the device has done?",
        ),
    ],
    hints=[
        "There are two clocks, the host's and the device's. Which of your lines run on which, and what does the host know of "
        "the device before it has waited?",
        "Let the device mark its own time: `record` before and after, and read the events once, after one `synchronize` at the "
        "very end. See to it that the device never runs dry between two events: a graph of many launches costs the host as "
        "much as one, and a flush takes longer than a launch. Launch once first, keep the device busy for a while, take the "
        "median.",
        "`fn()`; `many = clock.graph(fn, 20)`; `many()` until some 20 ms of `clock.now()` have passed; then a hundred times "
        "`start = clock.record()`, `many()`, `end = clock.record()`; then a hundred times `clock.flush()` and the same with "
        "`fn()`; one `clock.synchronize()`; medians of `end.time - start.time`, the first divided by 20.",
    ],
)


# --- stretch: predict_time ------------------------------------------------------------------------------------------

MEDIAN, WORST = 0.35, 4.0  # a median error and a factor that pass; the solution's are 0.08 and 3.2


def _errors(answer) -> list[tuple[str, float, float]]:
    """(name, predicted, measured) of every recorded launch."""
    rows = []
    for name, counts, time in speed.recorded():
        got = answer(*counts)
        if isinstance(got, bool) or not isinstance(got, (int, float)) or not math.isfinite(got):
            raise Failed(
                f"for {name} your function returned {compare.describe(got)}, expected a number.", ("no number",)
            )
        rows.append((name, float(got), time))
    return rows


def _median_error(rows) -> float:
    return median(abs(mine / time - 1) for _, mine, time in rows)


def _on_record(answer, draw: Draw) -> str:
    rows = _errors(answer)
    off = _median_error(rows)
    name, mine, time = max(rows, key=lambda row: abs(math.log(max(row[1], 1e-9) / row[2])))
    far = max(mine, 1e-9) / time
    if not (1 / WORST <= far <= WORST and off <= MEDIAN):
        raise Failed(
            f"the median error is {off:.0%}, and {MEDIAN:.0%} pass; the worst is {name}: {mine:.3g} µs predicted, {time:.3g} "
            f"measured, and a factor of {WORST:g} passes.",
            ("off", *(round(2 * math.log2(max(row[1], 1e-9) / row[2])) for row in rows)),
        )
    return f"median error {off:.0%}; the worst is {name}: {mine:.3g} µs predicted, {time:.3g} measured."


COUNTS = ("load_sectors", "store_sectors", "reduction_sectors", "busiest_line", "dram_bytes")


def _more_takes_longer(answer, draw: Draw) -> str:
    for _ in range(20):
        counts = [draw.integer(0, 2**n) for n in (24, 22, 22, 16, 27)]
        warm = bool(draw.integer(0, 1))
        before, shorter = answer(*counts, warm), []
        for n, what in enumerate(COUNTS):
            more = list(counts)
            more[n] = 40 * more[n] + 2**28
            after = answer(*more, warm)
            if not after > before:
                shorter.append((what, counts[n], more[n], after))
        if shorter:
            what, less, more, after = shorter[0]
            raise Failed(
                f"with {what} = {more:,} in place of {less:,} your prediction goes from {before:.4g} to {after:.4g} µs. Far "
                "more of anything takes longer.",
                ("not more", *(what for what, *_ in shorter)),
            )
    return "more of anything takes longer."


def _prediction_score(answer) -> str:
    from msda_core.machine.model.roofline import TYPICAL

    off = _median_error(_errors(answer))
    return f"a median error of {off:.1%}; the paper GPU's own estimate is off by {TYPICAL:.0%}, warm launches only."


def _wrong_prediction(*changes: tuple[str, str]):
    return edited(solution.predict_time, *changes)


exercise(
    "06.predict_time",
    reference=solution.predict_time,
    cases=[],
    properties=[
        Property("more_takes_longer", "far more of anything takes longer", _more_takes_longer),
        Property("on_record", f"on launches an H200 was timed on, half are off by {MEDIAN:.0%} at most", _on_record),
    ],
    stretch=True,
    score=_prediction_score,
    mistakes=[
        Mistake(
            "when sectors are counted as bytes",
            _wrong_prediction(("(load_sectors + store_sectors) * 32", "(load_sectors + store_sectors)")),
            "A sector is 32 bytes.",
        ),
        Mistake(
            "when everything requested comes from DRAM",
            lambda loads, stores, reds, line, dram, warm: (
                1.2 + (32 * (loads + stores + reds) + dram) / 4.8e6 + line / 280
            ),
            "Sectors are requested from L2. How much of that goes on to DRAM is another count.",
        ),
        Mistake(
            "when a launch costs nothing",
            _wrong_prediction(("1.2 + ", ""), ("3.0 + ", "")),
            "What does a launch take that does nothing?",
        ),
        Mistake(
            "when stores are forgotten",
            lambda loads, stores, reds, line, dram, warm: solution.predict_time(loads, 0, reds, line, dram, warm),
            "What is written goes through L2 as well.",
        ),
        Mistake(
            "when atomics are forgotten",
            lambda loads, stores, reds, line, dram, warm: solution.predict_time(loads, stores, 0, line, dram, warm),
            "Reductions are combined in L2, a sector at a time. How many does it combine in a clock?",
        ),
        Mistake(
            "when the busiest line is forgotten",
            lambda loads, stores, reds, line, dram, warm: solution.predict_time(loads, stores, reds, 0, dram, warm),
            "Reductions to one line are done one after the other.",
        ),
        Mistake(
            "when a cold launch is taken for a warm one",
            lambda loads, stores, reds, line, dram, warm: solution.predict_time(loads, stores, reds, line, dram, True),
            "What is not in L2 has to come from DRAM.",
        ),
        Mistake(
            "when the prediction is the same, whatever was counted",
            lambda loads, stores, reds, line, dram, warm: 10.0,
            "A launch has a floor. On top of it comes what each resource has to do: which counts say how much?",
        ),
        Mistake(
            "when bytes from DRAM are all that counts",
            lambda loads, stores, reds, line, dram, warm: 1.2 + dram / 4.8e6,
            "A launch whose data are in L2 asks DRAM for nothing, and still takes longer the more it asks of L2.",
        ),
        Mistake(
            "when seconds are returned",
            lambda *counts: solution.predict_time(*counts) / 1e6,
            "Microseconds, please.",
        ),
    ],
    hints=[
        "Which of the counts are asked of L2, which of DRAM, and which have to wait for each other?",
        "Each resource has a speed: divide, and see which one takes longest. A launch has a floor, and cold data a trip more. "
        "Plot what is left: what do the launches that you miss have in common?",
        "A floor of about a microsecond, plus the longest of: requested bytes at 132 times 32 bytes a clock; sectors of "
        "reductions at some 50 a clock; the busiest line at several clocks each. Plus, unless all is in L2, a few microseconds "
        "and `dram_bytes` at 4.8 TB/s.",
    ],
)

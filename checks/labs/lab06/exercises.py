"""Lab 06, Make it fast: its exercises."""

from checks.core.exercise import Property, exercise
from checks.labs import forward_cases
from checks.labs.lab06 import wrong
from checks.labs.lab06.cases import (
    FEWER_REQUESTS,
    FEWER_SECTORS,
    LIMIT,
    MEDIAN,
    _all_at_once,
    _both_temperatures,
    _compiled,
    _config_traffic,
    _far,
    _fills,
    _fits_in_registers,
    _from_rest,
    _held_up,
    _launch,
    _long,
    _more_takes_longer,
    _no_idle_lanes,
    _on_record,
    _on_silicon,
    _prediction_score,
    _prepare_config_traffic,
    _prepare_registers,
    _prepare_traffic,
    _score,
    _short,
    _traffic,
    _wide,
    thirteen_points_on_three_levels,
)
from msda_core import reference
from msda_core.figures import tiles as forward
from solutions import lab06 as solution

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
    mistakes=wrong.MSDA_FWD_FAST_KERNEL,
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
    mistakes=wrong.LAUNCH_CONFIG,
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
    mistakes=wrong.DEVICE_TIME,
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
    mistakes=wrong.PREDICT_TIME,
    hints=[
        "Which of the counts are asked of L2, which of DRAM, and which have to wait for each other?",
        "Each resource has a speed: divide, and see which one takes longest. A launch has a floor, and cold data a trip more. "
        "Plot what is left: what do the launches that you miss have in common?",
        "A floor of about a microsecond, plus the longest of: requested bytes at 132 times 32 bytes a clock; sectors of "
        "reductions at some 50 a clock; the busiest line at several clocks each. Plus, unless all is in L2, a few microseconds "
        "and `dram_bytes` at 4.8 TB/s.",
    ],
)

"""Figures about speed (lab 06): what tilings ask for, how a cut changes it, how a benchmark lies, and the race."""

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, NullFormatter

from msda_core.bench.contest import launcher, many_queries
from msda_core.figures.picture import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, Picture, new_figure
from msda_core.figures.tiles import example_call
from msda_core.machine.model.clock import Clock

__all__ = [
    "TILINGS",
    "WAYS",
    "cut_picture",
    "cut_report",
    "cuts_under_registers",
    "launcher",
    "many_queries",
    "parameters_share",
    "predictions",
    "race_picture",
    "recorded",
    "requested",
    "shipped_times",
    "source",
    "timed",
    "timeline",
]

SECTOR = 32
DTYPES = {"float32": torch.float32, "float16": torch.float16}


# --- what is requested ----------------------------------------------------------------------------------------------


def _forward(name: str) -> Callable:
    from msda_core.kernels import forward, tilings

    return {
        "element": tilings.element_forward,
        "point": tilings.point_forward,
        "query": tilings.query_forward,
        "shipped": forward.msda_forward,
    }[name]


#: A tiling of `msda_core.kernels` → what one lane or program of it owns.
TILINGS = {
    "element": "a lane owns one number of the result",
    "point": "a lane owns one point, and adds with atomics",
    "query": "a program owns a block of queries, and loops over points",
    "shipped": "a program owns one or two queries, and all their points",
}


def typed_call(dtype: str) -> tuple:
    """`forward.example_call` in a dtype."""
    return tuple(t.to(DTYPES[dtype]) if t.is_floating_point() else t for t in example_call())


@cache
def _tiling_counts(name: str, dtype: str) -> tuple[dict[str, int], int]:
    return counted(lambda: _forward(name)(*typed_call(dtype)))


def counted(run: Callable[[], Any]) -> tuple[dict[str, int], int]:
    """Sectors that run() requests of value, of parameters (locations, weights and tables) and of the result; requests."""
    from msda_core.machine.counts.calls import profile_calls

    sectors, requests = {"value": 0, "parameters": 0, "result": 0}, 0
    for report in profile_calls(run):
        owner = {event.site: event.tensor for event in report.trace.events}
        tensors = list(report.trace.tensors)
        for site in report.sites:
            where = tensors.index(owner[site.site]) if site.site in owner else 1
            sectors["value" if where == 0 else "result" if where == len(tensors) - 1 else "parameters"] += site.sectors
            requests += site.requests
    return sectors, requests


def parameters_share(name: str, dtype: str) -> float:
    """How much of what a tiling requests is locations, weights and tables."""
    sectors, _ = _tiling_counts(name, dtype)
    return sectors["parameters"] / sum(sectors.values())


def requested(dtype: str, tilings: Sequence[str], yours: dict[str, Callable] | None = None) -> Picture:
    """Sectors and requests of several tilings for the same small call.

    Args:
        dtype: "float32" or "float16".
        tilings: keys of `TILINGS`.
        yours: further launchers, with the operator's arguments, by the name to show.
    """
    rows = [(f"{name}: {TILINGS[name]}", *_tiling_counts(name, dtype)) for name in tilings]
    for name, forward in (yours or {}).items():
        rows.append((name, *counted(lambda forward=forward: forward(*typed_call(dtype)))))
    figure, axes = new_figure(10, 1.5 + 0.5 * len(rows))
    most = max(sum(sectors.values()) for _, sectors, _ in rows)
    for n, (_, sectors, requests) in enumerate(rows):
        left = 0
        for (part, count), colour, hatch in zip(sectors.items(), (BLUE, ORANGE, GREY), ("", "//", "..")):
            axes.barh(n, count, left=left, color=colour, hatch=hatch, edgecolor="white", label=part if n == 0 else None)
            left += count
        axes.text(left + most * 0.01, n, f"{left:,} in {requests:,} requests", va="center", fontsize=9)
    axes.set_yticks(range(len(rows)), [name for name, *_ in rows], fontsize=9)
    axes.set(xlabel=f"sectors requested, {dtype}", xlim=(0, most * 1.35))
    axes.invert_yaxis()
    figure.legend(loc="outside upper right", ncols=3, frameon=False)
    said = "; ".join(
        f"{name}: " + ", ".join(f"{c:,} of {p}" for p, c in sectors.items()) + f", in {requests:,} requests"
        for name, sectors, requests in rows
    )
    return Picture(figure, f"Sectors requested for one small call in {dtype}. {said}.")


# --- how a cut changes it -------------------------------------------------------------------------------------------


@cache
def cut_report(kernel: Any, BLOCK_Q: int, BLOCK_P: int, num_warps: int, dtype: str = "float16") -> Any:
    """The counters of a kernel with the signature of `msda_fwd_fast_kernel` for one small call: a `machine.Report`."""
    from msda_core import machine

    args = typed_call(dtype)
    B, S, M, D = args[0].shape
    _, Q, _, L, K, _ = args[3].shape
    sizes = dict(M=M, D=D, L=L, K=K, BLOCK_Q=BLOCK_Q, BLOCK_P=BLOCK_P, BLOCK_D=D)
    out = args[0].new_empty(B, Q, M * D)
    return machine.profile(kernel, (-(-Q // BLOCK_Q), B * M), *args, out, Q, S, num_warps=num_warps, **sizes)


def cut_picture(report: Any, whose: str) -> Picture:
    """Requests, sectors, registers and occupancy of one cut, each as a share of the most it could be or should be."""
    from msda_core import machine

    held = machine.occupancy(report.lowering, "H200")
    requests = report.loads.requests + report.stores.requests
    least = (report.unique_bytes + report.written_bytes) // SECTOR
    rows = [
        ("sectors", report.sectors / 2600, f"{report.sectors:,} (each once: {least:,})"),
        ("requests", requests / 800, f"{requests:,}"),
        ("registers a lane", report.lowering.registers / 255, f"{report.lowering.registers} of 255"),
        ("occupancy", held.fraction, f"{held.warps} of 64 warps, limited by {held.limit}"),
    ]
    figure, axes = new_figure(9, 2.5)
    for n, (_, share, text) in enumerate(rows):
        axes.barh(n, min(1.0, share), color=BLUE if n < 2 else GREEN, hatch="" if n < 2 else "//", edgecolor="white")
        axes.text(min(1.0, share) + 0.01, n, text, va="center", fontsize=9)
    axes.set_yticks(range(len(rows)), [name for name, *_ in rows])
    axes.set(xlim=(0, 1.45), xticks=[], title=f"{whose}, cut this way".replace("`", ""))
    axes.invert_yaxis()
    return Picture(figure, f"{whose}: " + "; ".join(f"{name} {text}" for name, _, text in rows) + ".")


@cache
def _sweeps() -> dict[str, Any]:
    path = Path(__file__).parents[1] / "bench" / "data" / "bench_h200_sweeps.json"
    return json.loads(path.read_text(encoding="utf-8"))


def cuts_under_registers(dtype: str) -> tuple[Picture, float]:
    """The shipped forward kernel at encoder scale, as an H200 ran it with its registers limited: more warps fit, and it is slower.

    Encoder scale, since a decoder's call has too few programs to fill a multiprocessor, whatever fits.

    Args:
        dtype: "float32" or "float16".

    Returns:
        The picture, and how many times slower the tightest limit is, median over the cuts.
    """
    short = {"float32": "fp32", "float16": "fp16"}[dtype]
    times = _sweeps()["runs"][0]["results"][f"encoder.{short}"]
    cuts = [(8, 1, 16, 4), (8, 1, 4, 1), (8, 2, 4, 2), (32, 1, 4, 4), (16, 2, 4, 4)]
    limits = {"None": "the compiler's choice", "80": "80 registers", "64": "64 registers"}
    figure, axes = new_figure(9, 3.4)
    slower = []
    for n, (limit, colour, hatch) in enumerate(zip(limits, (BLUE, ORANGE, RED), ("", "//", "xx"))):
        values = [times[f"F {cut} {{'ORDER': 0, 'EVICT': 0}} {limit}"] for cut in cuts]
        where = np.arange(len(cuts)) + (n - 1) * 0.27
        bars = axes.bar(where, values, 0.25, color=colour, hatch=hatch, edgecolor="white", label=limits[limit])
        axes.bar_label(bars, fmt="%.0f", fontsize=8)
        if limit == "64":
            slower = [v / times[f"F {cut} {{'ORDER': 0, 'EVICT': 0}} None"] for v, cut in zip(values, cuts)]
    axes.set_xticks(
        range(len(cuts)),
        [f"{q} queries × {m} head{'s' * (m > 1)}\n× {p} points, {w} warp{'s' * (w > 1)}" for q, m, p, w in cuts],
        fontsize=8,
    )
    axes.set(ylabel="µs", title=f"encoder forward, {dtype}, H200")
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    factor = float(np.median(slower))
    return (
        Picture(
            figure,
            f"Recorded on an H200: times of an encoder's forward in {dtype} for {len(cuts)} cuts. Limited to 64 registers, so "
            f"that 32 warps fit on a multiprocessor, each is slower than with the compiler's choice, {factor:.1f} times in the "
            "median.",
        ),
        factor,
    )


# --- how a benchmark lies -------------------------------------------------------------------------------------------


def _loop_without_waiting(fn, clock, n):
    start = clock.now()
    for _ in range(n):
        fn()
    return (clock.now() - start) / n


def _loop(fn, clock, n):
    start = clock.now()
    for _ in range(n):
        fn()
    clock.synchronize()
    return (clock.now() - start) / n


def _wait_each(fn, clock, n):
    times = []
    for _ in range(n):
        start = clock.now()
        fn()
        clock.synchronize()
        times.append(clock.now() - start)
    return sum(times) / n


def _events(fn, clock, n):
    pairs = []
    for _ in range(n):
        start = clock.record()
        fn()
        pairs.append((start, clock.record()))
        clock.synchronize()
    return float(np.median([end.time - start.time for start, end in pairs]))


#: A way to time a launch → what runs.
WAYS = {
    "a loop, nobody waits": _loop_without_waiting,
    "a loop, then one wait": _loop,
    "a wait after each launch": _wait_each,
    "two events around each launch": _events,
}


def timeline(way: str, kernel: float, dispatch: float, fresh: bool = False, launches: int = 4) -> tuple[Picture, float]:
    """What host and device do while a launch is timed in one of `WAYS`, on the simulated device at full speed.

    Args:
        way: a key of `WAYS`.
        kernel: microseconds on the device; dispatch: on the host; fresh: whether the first launch compiles.
        launches: how many are timed.

    Returns:
        The picture, and the time that is reported, in microseconds.
    """
    clock = Clock(idle_speed=1.0, trouble=0.0, sync=6.0)
    fn = clock.kernel(warm=kernel, dispatch=dispatch, compile=120.0 if fresh else 0.0)
    got = WAYS[way](fn, clock, launches)
    figure, axes = new_figure(10, 2.9)
    looks = {
        "dispatch": (ORANGE, "//"),
        "wait": ("#d9dee5", ""),
        "record": (PURPLE, ""),
        "compile": (RED, "xx"),
        "kernel": (BLUE, ""),
    }
    seen: dict[str, Any] = {}
    for span in clock.spans:
        row = 1 if span.who == "host" else 0
        if span.what == "event":
            axes.plot([span.start, span.start], [-0.42, 0.42], color="black", linewidth=1.6)
            seen["event"] = Line2D([], [], color="black", linewidth=1.6, label="event")
            continue
        colour, hatch = looks[span.what]
        axes.broken_barh(
            [(span.start, span.end - span.start)], (row - 0.35, 0.7), facecolor=colour, hatch=hatch, edgecolor="white"
        )
        seen[span.what] = Patch(facecolor=colour, hatch=hatch, edgecolor="white", label=span.what)
    end = max(span.end for span in clock.spans)
    axes.set(yticks=[0, 1], yticklabels=["device", "host"], ylim=(-0.6, 1.6), xlim=(0, end * 1.02), xlabel="µs")
    figure.legend(handles=list(seen.values()), loc="outside lower center", ncols=len(seen), frameon=False, fontsize=8)
    right = abs(got / kernel - 1) <= 0.03
    axes.set_title(
        f"{way}: {got:.1f} µs reported, {kernel:g} is right {'✓' if right else '✗'}", loc="left", fontsize=10
    )
    return (
        Picture(
            figure,
            f"Host and device while {launches} launches of {kernel:g} µs are timed by {way}; a dispatch costs the host "
            f"{dispatch:g} µs. Reported: {got:.1f} µs, which is {'right' if right else 'wrong'}.",
        ),
        got,
    )


# --- predicted and recorded -----------------------------------------------------------------------------------------


@cache
def _recorded() -> dict[str, Any]:
    return json.loads((Path(__file__).parents[1] / "bench" / "data" / "counters_h200.json").read_text(encoding="utf-8"))


def timed() -> list[dict[str, Any]]:
    """Launches that an H200 was timed on, each with what the paper GPU counts for it under "model"."""
    return _recorded()["timed"]


def plain_name(case: str) -> str:
    """A recorded case in words: "msda forward f32"."""
    return case.removeprefix("time_").replace("_", " ")


def recorded() -> list[tuple[str, tuple, float]]:
    """Launches that an H200 was timed on: name, the arguments of `predict_time`, microseconds."""
    rows = []
    for one in timed():
        model = one["model"]
        counts = (
            model["load_sectors"],
            model["store_sectors"],
            model["red_sectors"] + model["atom_sectors"],
            model["line"],
            model["dram_bytes"] + model["written_bytes"],
        )
        for warm in (True, False):
            time = one["warm_us" if warm else "cold_us"]
            rows.append((f"{plain_name(one['case'])}, {'warm' if warm else 'cold'}", (*counts, warm), time))
    return rows


def source() -> str:
    """What the recorded figures were measured on."""
    machine = _recorded()["machine"]
    return f"{machine['gpu']}, driver {machine['driver']}, torch {machine['torch']}, Triton {machine['triton']}"


def predictions(rows: Sequence[tuple[str, float, float]], whose: str) -> Picture:
    """Predicted beside measured, a row a launch.

    Args:
        rows: (name, predicted, measured), microseconds.
        whose: predictions.
    """
    figure, axes = new_figure(9, 1.2 + 0.3 * len(rows))
    for n, (_, mine, time) in enumerate(rows):
        axes.plot([mine, time], [n, n], color=GREY, linewidth=1.2, zorder=1)
        axes.text(max(mine, time) * 1.1, n, f"{mine / time - 1:+z.0%}", va="center", fontsize=8)
    axes.scatter(
        [m for _, m, _ in rows],
        range(len(rows)),
        marker="o",
        color=ORANGE,
        label=f"predicted, {whose}".replace("`", ""),
        zorder=2,
    )
    axes.scatter([t for *_, t in rows], range(len(rows)), marker="D", color=BLUE, label="measured on an H200", zorder=2)
    axes.set_yticks(range(len(rows)), [name for name, *_ in rows], fontsize=8)
    _log_axis(axes, "µs, log scale", [time for _, *both in rows for time in both])
    axes.invert_yaxis()
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    off = float(np.median([abs(m / t - 1) for _, m, t in rows]))
    said = "; ".join(f"{name}: {m:.3g} and {t:.3g} µs" for name, m, t in rows)
    return Picture(
        figure, f"Predicted and measured times of {len(rows)} launches, off by {off:.0%} in the median. {said}."
    )


#: Clocks of `msda_core.bench`, in the order in which they tend to grow → what each is.
CLOCKS = {
    "device": "CUDA graph, warm",
    "kernels": "profiler, warm",
    "cold": "one replay, L2 flushed",
    "eager": "launches back to back, dispatch included",
}


def race_picture(dtype: str, yours: dict[str, Callable]) -> tuple[Picture, str]:
    """The contest of `msda_core.bench.contest`: predicted for all, measured where there is a GPU, recorded figures where there is none.

    Args:
        dtype: "float32" or "float16".
        yours: further contenders, launchers of the operator's signature.

    Returns:
        The picture, and where its figures come from, in a sentence.
    """
    from msda_core.bench import contest as race

    table = {**race.contenders(), **yours}
    here = not race.no_gpu()
    if here:
        measured = race.measure(table, dtype)
        origin = f"Measured just now on {torch.cuda.get_device_name()}; predicted for an H200."
    else:
        found = race.recorded()
        measured = found["rows"][dtype] if found else {"msda_core": shipped_times(dtype)}
        origin = (
            f"Not run here: {race.no_gpu()}. Predictions are the paper GPU's, a model; the other bars were recorded on "
            f"another machine ({source()}), and none of them is yours."
        )
    names = list(dict.fromkeys([*table, *measured]))
    predicted = {name: race.predict(forward, dtype) for name, forward in table.items() if name != "mmcv"}
    return _race_bars(names, predicted, measured, dtype, "measured" if here else "recorded"), origin


def shipped_times(dtype: str) -> dict[str, float]:
    """What the shipped forward takes on an H200, for the race's call: {"device", "cold"}, microseconds."""
    from msda_core.bench import contest as race

    found = race.recorded()
    if found:
        return found["rows"][dtype]["msda_core"]
    short = {"float32": "f32", "float16": "f16"}[dtype]
    (found,) = [one for one in timed() if one["case"] == f"time_msda_forward_{short}"]
    return {"device": found["warm_us"], "cold": found["cold_us"]}


def _race_bars(names: Sequence[str], predicted: dict, measured: dict, dtype: str, word: str) -> Picture:
    figure, axes = new_figure(10, 1.3 + 0.66 * len(names))
    looks = {
        "predicted": ("white", "//"),
        "device": (BLUE, ""),
        "kernels": (GREEN, ".."),
        "cold": (PURPLE, "--"),
        "eager": (ORANGE, "xx"),
    }
    shown, said, longest = set(), [], []
    for n, name in enumerate(names):
        bars = {"predicted": predicted.get(name)} | {clock: measured.get(name, {}).get(clock) for clock in CLOCKS}
        bars = {clock: time for clock, time in bars.items() if time is not None and time == time}
        for k, (clock, time) in enumerate(bars.items()):
            colour, hatch = looks[clock]
            label = "predicted, a model" if clock == "predicted" else f"{word}: {CLOCKS[clock]}"
            y = n + (k - (len(bars) - 1) / 2) * 0.16
            axes.barh(y, time, 0.15, color=colour, hatch=hatch, edgecolor=GREY, label=None if label in shown else label)
            axes.text(time * 1.03, y, f"{time:.1f}", va="center", fontsize=7)
            shown.add(label)
        longest += bars.values()
        said.append(f"{name}: " + ", ".join(f"{clock} {time:.1f}" for clock, time in bars.items()))
    axes.set_yticks(range(len(names)), [name.replace("`", "") for name in names], fontsize=9)
    _log_axis(axes, f"µs, log scale; decoder, {dtype}", longest)
    axes.invert_yaxis()
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=8)
    return Picture(figure, f"Times of the forward in {dtype}, in µs, {word} and predicted. {'; '.join(said)}.")


def _log_axis(axes: Any, label: str, values: Sequence[float]) -> None:
    """A logarithmic axis with plain numbers, from a whole power of two to the next."""
    low, high = (2.0 ** round_(np.log2(extreme(values))) for round_, extreme in ((np.floor, min), (np.ceil, max)))
    axes.set(xscale="log", xlabel=label, xlim=(low, high * 1.3))
    axes.set_xticks(2.0 ** np.arange(np.log2(low), np.log2(high) + 1))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())

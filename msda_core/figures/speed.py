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
from msda_core.inputs import example_call
from msda_core.machine.model.clock import Clock

__all__ = [
    "PROFILED",
    "TILINGS",
    "WAYS",
    "busy",
    "cut_picture",
    "cut_report",
    "cuts_under_registers",
    "launcher",
    "many_queries",
    "parameters_share",
    "predictions",
    "profiled",
    "race_picture",
    "rates",
    "recorded",
    "requested",
    "shipped_times",
    "source",
    "timed",
    "timeline",
    "where_the_time_goes",
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
    """`inputs.example_call` in a dtype."""
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
    """Sectors that several tilings ask L1 for, and in how many requests, in the same small call.

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
    axes.set(xlabel=f"sectors asked of L1, {dtype}", xlim=(0, most * 1.35))
    axes.invert_yaxis()
    figure.legend(loc="outside upper right", ncols=3, frameon=False)
    said = "; ".join(
        f"{name}: " + ", ".join(f"{c:,} of {p}" for p, c in sectors.items()) + f", in {requests:,} requests"
        for name, sectors, requests in rows
    )
    return Picture(figure, f"Sectors asked of L1 in one small call in {dtype}. {said}.")


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
    """Sectors, requests, registers and resident warps of one cut, each on an axis of its own."""
    from msda_core import machine

    held = machine.occupancy(report.lowering, "H200")
    requests = report.loads.requests + report.stores.requests
    least = (report.unique_bytes + report.written_bytes) // SECTOR
    rows = [
        ("sectors asked of L1", report.sectors, 2600, least, f"each once: {least:,}"),
        ("requests", requests, 800, None, ""),
        ("registers a lane", report.lowering.registers, 255, 255, "at most 255"),
        ("warps that fit", held.warps, 64, 64, f"at most 64; limited by {held.limit}"),
    ]
    figure, panels = new_figure(10, 3.4, nrows=2, ncols=2)
    for axes, (name, value, end, mark, text), hatch in zip(panels.flat, rows, ("", "", "//", "//")):
        end = max(end, value * 1.25)
        axes.barh(0, value, height=0.5, color=GREEN if hatch else BLUE, hatch=hatch, edgecolor="white")
        axes.set(xlim=(0, end * 1.04), ylim=(-0.5, 0.75), yticks=[])
        axes.text(min(value + end * 0.02, end * 0.85), 0, f"{value:,}", va="center", fontsize=11, fontweight="bold")
        if mark is not None:
            axes.axvline(mark, color=RED, linestyle=":", linewidth=1.6)
            right = mark > end / 2
            axes.text(
                mark,
                0.68,
                f"{text} " if right else f" {text}",
                ha="right" if right else "left",
                va="top",
                color=RED,
                fontsize=8,
            )
        axes.set_title(name, fontsize=10, loc="left")
    figure.suptitle(f"{whose}, cut this way".replace("`", ""), fontsize=11)
    said = "; ".join(f"{name} {value:,}" + (f" ({text})" if text else "") for name, value, _, _, text in rows)
    return Picture(figure, f"{whose}: {said}.")


# --- where the time goes --------------------------------------------------------------------------------------------

#: What the lab offers → preset and dtype of `profile_h200.json`.
PROFILED = {
    "encoder, float16": ("encoder", "float16"),
    "decoder, float16": ("decoder", "float16"),
    "decoder, float32": ("decoder", "float32"),
}


@cache
def _profile() -> dict[str, Any]:
    path = Path(__file__).parents[1] / "bench" / "data" / "profile_h200.json"
    return json.loads(path.read_text(encoding="utf-8"))


def profiled(preset: str, dtype: str) -> list[dict[str, Any]]:
    """What Nsight Compute read of the forward kernels at full scale: a row a kernel, its columns as the file explains them."""
    return [row for row in _profile()["rows"] if (row["preset"], row["dtype"]) == (preset, dtype)]


def rates(preset: str, dtype: str) -> str:
    """Instructions of warps that the kernels of a call issue in a microsecond, the least and the most of them, in words."""
    found = sorted(row["instructions"] / row["us"] for row in profiled(preset, dtype))
    return f"{found[0] / 1e3:,.0f} to {found[-1] / 1e3:,.0f} thousand"


def busy(preset: str, dtype: str) -> str:
    """The share of the time in which issue slots are busy, the least and the most of a call's kernels but `point`, in words."""
    found = sorted(row["issue_busy"] for row in profiled(preset, dtype) if row["kernel"] != "point")
    return f"{found[0]:.0%} to {found[-1]:.0%}"


def where_the_time_goes(preset: str, dtype: str) -> Picture:
    """Time and counters of forward kernels that an H200 ran at full scale, a panel a quantity, a bar a kernel."""
    rows, environment = profiled(preset, dtype), _profile()["environment"]
    share = "{:.0%}".format
    count = lambda n: f"{n / 1e6:,.3g} M" if n >= 1e6 else f"{n / 1e3:,.0f} k"  # noqa: E731
    panels = [
        ("time", "us", lambda n: f"{n:g} µs", None),
        ("requests (loads of warps)", "load_requests", count, None),
        ("instructions of warps", "instructions", count, None),
        ("issue slots busy", "issue_busy", share, 1),
        ("sectors asked of L1", "load_sectors", count, None),
        ("of them found in L1", "l1_hits", share, 1),
        ("sectors read from L2", "l2_sectors", count, None),
        ("warps resident", "warps", share, 1),
    ]
    figure, axes = new_figure(11, 1.7 + 0.55 * len(rows), nrows=2, ncols=4)
    names = [row["kernel"] for row in rows]
    looks = {"element": (ORANGE, "//"), "point": (PURPLE, "xx"), "query": (GREEN, ".."), "shipped": (BLUE, "")}
    for n, (axis, (title, column, word, most)) in enumerate(zip(axes.flat, panels)):
        values = [row[column] for row in rows]
        for at, (name, value) in enumerate(zip(names, values)):
            colour, hatch = looks[name]
            axis.barh(at, value, color=colour, hatch=hatch, edgecolor="white")
            axis.text(value, at, f" {word(value)}", va="center", fontsize=8)
        axis.set(xlim=(0, (most or max(values)) * 1.5), xticks=[])
        axis.set_yticks(range(len(names)), names if n % 4 == 0 else [""] * len(names), fontsize=9)
        axis.tick_params(length=0)
        axis.invert_yaxis()
        axis.set_title(title, fontsize=9, loc="left", fontweight="bold" if n == 0 else "normal")
    figure.suptitle(f"{preset}'s forward, {dtype}: {environment['gpu']}, {environment['tool']}, L2 warm", fontsize=10)
    said = "; ".join(
        f"{row['kernel']}: " + ", ".join(f"{title} {word(row[column])}" for title, column, word, _ in panels)
        for row in rows
    )
    return Picture(
        figure, f"Forward kernels of a {preset}'s call in {dtype}, profiled on an {environment['gpu']}. {said}."
    )


@cache
def _sweeps() -> dict[str, Any]:
    path = Path(__file__).parents[1] / "bench" / "data" / "bench_h200_sweeps.json"
    return json.loads(path.read_text(encoding="utf-8"))


def cuts_under_registers(dtype: str) -> tuple[Picture, float]:
    """An early forward kernel at encoder scale, as an H200 ran it with its registers limited: more warps fit, and it is slower.

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

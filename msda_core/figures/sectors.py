"""Figures about warps, sectors, caches and time (lab 03), and the call they are about."""

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from torch import Tensor

from msda_core.figures.picture import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, Picture, new_figure
from msda_core.machine.model.roofline import GPUS as CARDS

__all__ = [
    "DECODER",
    "DECODER_TIMES",
    "GPUS",
    "Call",
    "Gpu",
    "agreement",
    "cache_strip",
    "corner_pixels",
    "hidden_latency",
    "issued",
    "measured",
    "replayed",
    "roofline_plot",
    "tiling_traffic",
    "warp_map",
    "warp_reads",
]

SECTOR = 32


class Gpu(NamedTuple):
    """What a roofline of this operator needs to know about a GPU.

    Attributes:
        name: as in `msda_core.machine.GPUS`; sms: its multiprocessors, each with an L1 of its own.
        dram: bytes a second from DRAM; l1: bytes a second from all L1 caches together;
        flops: float32 multiplications and additions a second; l2: bytes of L2;
        l2_copy: bytes a second of a copy that stays in L2, loads and stores together, 0 where nobody measured it.
    """

    name: str
    sms: int
    dram: float
    l1: float
    flops: float
    l2: int
    l2_copy: float = 0.0


#: The machine's data sheet constants. L1 hands out 128 bytes a clock and multiprocessor on all of these.
GPUS: dict[str, Gpu] = {
    name: Gpu(
        name,
        card.sms,
        card.dram,
        card.sms * 128 * card.clock * 1e9,
        card.flops["fp32"],
        card.l2,
        card.l2_bandwidth if name == "H200" else 0.0,
    )
    for name, card in CARDS.items()
    if name in ("H200", "H100", "A100", "RTX 4090")
}


class Call(NamedTuple):
    """The sizes of one forward call."""

    B: int
    Q: int
    M: int
    D: int
    K: int
    shapes: tuple[tuple[int, int], ...]

    @property
    def S(self) -> int:
        """Pixels of all levels together."""
        return sum(h * w for h, w in self.shapes)

    @property
    def points(self) -> int:
        """How often the call reads between pixels, all batch items, queries, heads, levels together."""
        return self.B * self.Q * self.M * len(self.shapes) * self.K

    @property
    def flops(self) -> int:
        """Four corners a point and channel: a multiplication and an addition each."""
        return self.points * self.D * 8

    def locations(self, seed: int = 0, low: float = 0.0, high: float = 1.0) -> Tensor:
        """(B, Q, M, L, K, 2), uniform."""
        shape = (self.B, self.Q, self.M, len(self.shapes), self.K, 2)
        return low + (high - low) * torch.rand(shape, generator=torch.Generator().manual_seed(seed))


#: A detection decoder's call on an 800 x 1333 image: four levels, 300 queries, batch 4.
DECODER = Call(B=4, Q=300, M=8, D=32, K=4, shapes=((100, 167), (50, 84), (25, 42), (13, 21)))

#: Device time of that call in µs, by implementation and bytes of one number: median of CUDA-graph replays on one H200
#: (driver 580.159, torch 2.11, Triton 3.6), locations uniform in [0, 1], inputs warm in L2.
DECODER_TIMES: dict[str, dict[int, float]] = {
    "mmcv, one thread per output element (CUDA)": {4: 24.7, 2: 33.5},
    "msda-triton (roulbac)": {4: 10.2, 2: 8.8},
    "blocks of queries (Triton, this project's first)": {4: 10.5, 2: 7.1},
}


def corner_pixels(locations: Tensor, shapes: Sequence[tuple[int, int]]) -> Tensor:
    """The four pixels around each sampling point, counted over all levels.

    Args:
        locations: (..., L, K, 2), (x, y) from 0 to 1.
        shapes: (H, W) of each of the L levels, which lie one after another.

    Returns:
        (..., L * K, 4) int64: upper left, upper right, lower left, lower right; -1 outside the image.
    """
    start, levels = 0, []
    for level, (H, W) in enumerate(shapes):
        x = (locations[..., level, :, 0] * W - 0.5).floor().long()
        y = (locations[..., level, :, 1] * H - 0.5).floor().long()
        i, j = torch.stack([x, x + 1, x, x + 1], -1), torch.stack([y, y, y + 1, y + 1], -1)
        inside = (i >= 0) & (i < W) & (j >= 0) & (j < H)
        levels.append(torch.where(inside, start + j * W + i, -1))
        start += H * W
    return torch.cat(levels, -2)


def warp_map(stride: int, offset: int, itemsize: int, lanes: int = 32) -> Picture:
    """What one request of a warp reads and what it fetches, drawn on memory: rows of lines, 128 bytes each, four sectors a line.

    Args:
        stride: elements from lane to lane.
        offset: bytes from the border of a line to the first lane's element.
        itemsize: bytes of one element.
        lanes: how many take part.
    """
    addresses = [offset + stride * itemsize * lane for lane in range(lanes)]
    fetched = sorted({s for a in addresses for s in range(a // SECTOR, (a + itemsize - 1) // SECTOR + 1)})
    useful, delivered = len(set(addresses)) * itemsize, SECTOR * len(fetched)
    lines = addresses[-1] // 128 + 1
    across = 1 if lines <= 4 else 2 if lines <= 8 else 4 if lines <= 16 else 8  # lines side by side
    down = max(2, -(-lines // across))
    figure, (axes, bar) = new_figure(10, 1.7 + 0.32 * down, ncols=2, width_ratios=(9, 1))
    place = lambda byte: (byte // 128 % across * 136 + byte % 128, byte // 128 // across)  # noqa: E731
    for sector in range(4 * across * down):
        x, y = place(sector * SECTOR)
        came = sector in fetched
        axes.add_patch(
            Rectangle(
                (x + 0.6, y + 0.1),
                SECTOR - 1.2,
                0.8,
                facecolor="#fbe3bd" if came else "white",
                edgecolor=ORANGE if came else "#dfe5ec",
                linewidth=1.4 if came else 0.8,
            )  # fmt: skip
        )
    for lane, a in enumerate(addresses):
        x, y = place(a)
        width = min(itemsize, 128 - a % 128)
        axes.add_patch(Rectangle((x + 0.25, y + 0.2), width - 0.5, 0.6, facecolor=BLUE, edgecolor="none"))
        if width < itemsize:  # an element across the border of a line goes on in the next
            x2, y2 = place(a + width)
            axes.add_patch(
                Rectangle((x2 + 0.25, y2 + 0.2), itemsize - width - 0.5, 0.6, facecolor=BLUE, edgecolor="none")
            )
        if across == 1 and itemsize >= 4:
            axes.text(
                x + width / 2, y + 0.52, lane if stride else "all", ha="center", va="center", fontsize=6, color="white"
            )
    axes.set(
        xlim=(-1, 136 * across - 7),
        ylim=(down, 0),
        xticks=[136 * n + 32 * s for n in range(across) for s in range(4 if across < 4 else 1)],
        xlabel="byte of the line"
        if across == 1
        else f"{across} lines of 128 bytes side by side; a box is a sector of 32",
        title=f"{lanes} lanes, {stride * itemsize} bytes apart: {len(fetched)} sector{'s' * (len(fetched) > 1)}",
    )
    axes.set_xticklabels([32 * s for n in range(across) for s in range(4)] if across < 4 else [0] * across, fontsize=8)
    axes.set_yticks([n + 0.5 for n in range(down)], [f"{128 * across * n:,}" for n in range(down)], fontsize=8)
    axes.set_ylabel("first byte of the row")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    bar.bar([0], [delivered], color="#fbe3bd", edgecolor=ORANGE)
    bar.bar([0], [useful], color=BLUE)
    bar.set(xticks=[], ylim=(0, max(32 * 34, delivered)), yticks=[], title=f"{100 * useful / delivered:.3g}%\nuseful")
    bar.spines["left"].set_visible(False)
    bar.set_xlabel(f"{useful} of\n{delivered} bytes")
    return Picture(
        figure,
        f"{lanes} lanes read {itemsize} bytes each, {stride * itemsize} bytes apart, from byte {offset} on. They touch "
        f"{len(fetched)} sectors: {delivered} bytes come, {useful} of them are used, {100 * useful / delivered:.3g}%.",
    )


def warp_reads(step: int, itemsize: int = 4, D: int = 32) -> Picture:
    """The requests with which each tiling reads the same 32 rows of value, up to one of them.

    Args:
        step: how many requests each tiling has issued; one that is done earlier waits.
        itemsize, D: of value; a row has D * itemsize bytes and begins on the border of a sector.

    """
    per_row = 16 // itemsize  # channels of one lane's piece
    lanes_a_row = D // per_row
    plans = {
        "output": [[(row, d * itemsize, itemsize) for d in range(D)] for row in range(32)],
        "point": [[(row, d * itemsize, itemsize) for row in range(32)] for d in range(D)],
        "block": [
            [(row, piece * 16, 16) for row in range(first, first + 32 // lanes_a_row) for piece in range(lanes_a_row)]
            for first in range(0, 32, 32 // lanes_a_row)
        ],
    }
    titles = {
        "output": "one thread per output element",
        "point": "one thread per point",
        "block": "one program per block",
    }
    figure, panels = new_figure(10, 4.4, ncols=3)
    counts = {}
    for (name, plan), axes in zip(plans.items(), panels):
        issued = plan[:step]
        times: dict[tuple[int, int], int] = {}
        total = 0
        for request in issued:
            touched = {(row, byte // SECTOR) for row, byte, _ in request}
            total += len(touched)
            for sector in touched:
                times[sector] = times.get(sector, 0) + 1
        for (row, sector), n in times.items():
            axes.add_patch(Rectangle((sector * SECTOR + 0.8, row + 0.06), SECTOR - 1.6, 0.88, facecolor="#fbe3bd"))
            if n > 1:  # beside the lanes of the latest request, not under them
                left = issued[-1][0][1] % SECTOR >= SECTOR // 2
                place, side = (3, "left") if left else (SECTOR - 3, "right")
                axes.text(sector * SECTOR + place, row + 0.54, f"×{n}", ha=side, va="center", fontsize=6, color=RED)
        for row, byte, width in issued[-1] if issued else []:
            axes.add_patch(Rectangle((byte + 0.25, row + 0.12), width - 0.5, 0.76, facecolor=BLUE))
        counts[name] = (len(issued), total)
        axes.set(
            xlim=(0, D * itemsize),
            ylim=(32, 0),
            xticks=range(0, D * itemsize + 1, SECTOR),
            yticks=range(0, 33, 8),
            xlabel="byte in the row",
            title=f"{titles[name]}\n{len(issued)} of {len(plan)} requests, {total:,} sectors",
        )
        axes.grid(axis="x", color="#dfe5ec")
        axes.set_axisbelow(True)
    panels[0].set_ylabel("row (one corner of one point)")
    said = "; ".join(f"{titles[name]}: {r} requests, {s} sectors" for name, (r, s) in counts.items())
    return Picture(
        figure,
        f"32 rows of {D * itemsize} bytes, read by one warp in three ways. Blue: the latest request's lanes; yellow: what "
        f"was fetched so far, with the number of times where it is more than one. {said}.",
    )


def cache_strip(stream: Sequence[int], capacity: int) -> Picture:
    """A cache at work: what is read, what the cache holds afterwards, and which reads hit.

    Args:
        stream: sectors in the order they are read; at most some thirty.
        capacity: sectors that the cache holds.
    """
    held: list[int] = []
    hits = 0
    deepest = len(set(stream))
    figure, axes = new_figure(10, 0.75 + 0.34 * (deepest + 2))
    for step, sector in enumerate(stream):
        hit = sector in held
        hits += hit
        if hit:
            held.remove(sector)
        held.insert(0, sector)
        gone = held.pop() if len(held) > capacity else None
        box = dict(facecolor="#cfe8dc" if hit else "white", edgecolor=GREEN if hit else GREY, linewidth=1.5)
        axes.add_patch(Rectangle((step + 0.06, 0.06), 0.88, 0.88, **box))
        axes.text(step + 0.5, 0.5, sector, ha="center", va="center", fontweight="bold")
        axes.text(
            step + 0.5,
            -0.42,
            "hit" if hit else "miss",
            ha="center",
            va="center",
            fontsize=8,
            color=GREEN if hit else GREY,
        )
        for place, kept in enumerate(held):
            axes.add_patch(Rectangle((step + 0.06, place + 1.36), 0.88, 0.88, facecolor="#e4edf6", edgecolor="white"))
            axes.text(step + 0.5, place + 1.8, kept, ha="center", va="center", fontsize=9)
        if gone is not None:
            axes.text(step + 0.5, capacity + 1.8, gone, ha="center", va="center", fontsize=9)
            axes.plot([step + 0.3, step + 0.7], [capacity + 2.15, capacity + 1.45], color=RED, linewidth=1, alpha=0.8)
    axes.set(xlim=(0, len(stream)), ylim=(deepest + 2.4, -0.9), xticks=[])
    last = min(capacity, deepest) + 0.8
    marks = {0.5: "read", 1.8: "latest", last: "oldest"} if capacity > 1 else {0.5: "read", 1.8: "held"}
    axes.set_yticks(list(marks), list(marks.values()))
    axes.tick_params(length=0)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.set_title(f"room for {capacity}: {hits} of {len(stream)} reads hit; crossed out: the sector that made room")
    return Picture(
        figure,
        f"Sectors {', '.join(map(str, stream))} read one after another through a cache of {capacity}: {hits} of "
        f"{len(stream)} reads hit.",
    )


def hidden_latency(
    warps: int, latency: float, gpu: Gpu, sizes: Sequence[int] = (128, 512)
) -> tuple[Picture, list[float]]:
    """How much bandwidth a number of waiting warps can use: bytes in flight over the time each of them takes.

    Args:
        warps: on one multiprocessor, each with one request under way.
        latency: from request to arrival, in nanoseconds.
        gpu: whose multiprocessors and DRAM.
        sizes: bytes of one request, a line each.

    Returns:
        The picture, and for each size the share of DRAM's bandwidth that is used.
    """
    figure, axes = new_figure(8, 3.5)
    counts = range(1, 65)
    shares = []
    white = dict(boxstyle="round,pad=0.1", facecolor="white", edgecolor="none", alpha=0.85)
    for index, (size, colour, style) in enumerate(zip(sizes, (RED, BLUE, GREEN), ("--", "-", "-."))):
        rate = lambda n, size=size: min(gpu.dram, gpu.sms * float(n) * size / (latency * 1e-9))  # noqa: E731
        shares.append(rate(warps) / gpu.dram)
        axes.plot(counts, [rate(n) / 1e12 for n in counts], style, color=colour, label=f"{size} bytes a request")
        axes.plot([warps], [rate(warps) / 1e12], "o", color=colour, markersize=8)
        beside = (9, -4) if index == 0 else (-4, 9)  # below the lowest line, above the others
        axes.annotate(
            f"{shares[-1]:.{shares[-1] < 0.1:d}%}", (warps, rate(warps) / 1e12), beside, textcoords="offset points", color=colour, bbox=white,
            ha="left" if index == 0 or warps < 4 else "right",
        )  # fmt: skip
    axes.axhline(gpu.dram / 1e12, color=GREY, linestyle=":")
    axes.text(1, gpu.dram / 1e12 * 1.02, "DRAM can do no more", ha="left", va="bottom", color=GREY)
    axes.set(
        xlim=(0, 66),
        ylim=(0, gpu.dram / 1e12 * 1.15),
        xlabel="warps of one multiprocessor with a request under way",
        ylabel="TB a second",
        title=f"{gpu.name}, {latency:.0f} ns from request to arrival",
    )
    figure.legend(loc="outside lower center", ncols=len(sizes), frameon=False)
    said = ", ".join(f"{share:.{share < 0.1:d}%} with {size} bytes a request" for size, share in zip(sizes, shares))
    return Picture(
        figure,
        f"Bandwidth against warps in flight on the {gpu.name}: it rises in a line and ends at {gpu.dram / 1e12:.1f} TB a "
        f"second. With {warps} warps and {latency:.0f} ns: {said}.",
    ), shares


def tiling_traffic(counts: Mapping[str, tuple[int, int, int]], unique: int, capacity: int) -> Picture:
    """Three tilings side by side, without a cache and with one.

    Args:
        counts: tiling → (requests, sectors, sectors that miss the cache).
        unique: sectors that are touched at all.
        capacity: bytes of the cache.
    """
    figure, panels = new_figure(10, 3.3, ncols=3)
    names = list(counts)
    said = []
    titles = ("requests", "sectors, no cache", f"sectors that miss {capacity / 1024:.0f} KB")
    for index, (axes, title) in enumerate(zip(panels, titles)):
        values = [counts[name][index] for name in names]
        bars = axes.barh(range(3), values, color=(ORANGE, PURPLE, BLUE), edgecolor="white")
        for bar, hatch, value in zip(bars, ("//", "xx", ""), values):
            bar.set_hatch(hatch)
            axes.text(value, bar.get_y() + bar.get_height() / 2, f" {value:,}", va="center")
        axes.set(title=title, xlim=(0, max(max(values), unique if index else 0) * 1.35), xticks=[])
        axes.set_yticks(range(3), names if index == 0 else ["", "", ""])
        axes.tick_params(length=0)
        axes.invert_yaxis()
        if index:
            axes.axvline(unique, color=GREY, linestyle=":")
        said.append(f"{title}: " + ", ".join(f"{name} {value:,}" for name, value in zip(names, values)))
    panels[2].text(unique, 2.75, "touched at all", color=GREY, ha="center", fontsize=8)
    return Picture(figure, "; ".join(said) + f"; {unique:,} sectors are touched at all.")


def roofline_plot(gpu: Gpu, calls: Mapping[str, tuple[tuple[int, int], int, float | None]]) -> Picture:
    """The roofs of a GPU, and where calls stand under them.

    Args:
        gpu: whose.
        calls: label → ((compulsory, requested) bytes, operations, measured microseconds or None). A time is a warm one.
    """
    figure, axes = new_figure(9, 5.0)
    intensity = np.logspace(-1, 3, 200)
    low, high = gpu.dram / 1e12 * 0.05, gpu.flops / 1e12 * 2  # below the lower roof there is room for its name
    slope = np.degrees(np.arctan2(3.6 / np.log10(high / low), 7.9 / 4))  # of the roofs, on axes of 7.9 by 3.6 inches
    roofs = [(gpu.dram, BLUE, "-", "DRAM"), (gpu.l1, GREEN, "--", "all L1")]
    if gpu.l2_copy:
        roofs.insert(1, (gpu.l2_copy, PURPLE, "-.", "L2, as a copy has it,"))
    for rate, colour, style, name in roofs:
        roof = np.minimum(intensity * rate, gpu.flops) / 1e12
        axes.loglog(intensity, roof, style, color=colour, linewidth=2)
        axes.annotate(
            f"{name} {rate / 1e12:.1f} TB/s", (0.11, 0.11 * rate / 1e12), (8, 0), textcoords="offset points",
            color=colour, rotation=slope, rotation_mode="anchor", va="top", fontsize=9,
        )  # fmt: skip
    axes.text(950, gpu.flops / 1e12 * 1.1, f"arithmetic, {gpu.flops / 1e12:.0f} TFLOP/s", ha="right", color=GREY)
    said, handles, measured_any = [], [], False
    for (label, (bytes, flops, measured)), marker in zip(calls.items(), ("o", "s", "^", "D")):
        once, often = flops / bytes[0], flops / bytes[1]
        top = min(once * gpu.dram, often * gpu.l1, gpu.flops) / 1e12
        for at, rate, colour in ((once, gpu.dram, BLUE), (once, gpu.l2_copy, PURPLE), (often, gpu.l1, GREEN)):
            if rate:
                axes.plot([at], [at * rate / 1e12], marker, color=colour, markersize=8, markeredgecolor="black")
        handles.append(
            Line2D([], [], marker=marker, linestyle="none", color="white", markeredgecolor="black", label=label)
        )
        words = (
            f"{label}: {once:.1f} operations a byte that has to come once, {often:.1f} a byte from L1, at most {top:.1f} "
            "TFLOP/s from DRAM"
        )
        if measured:
            reached = flops / measured / 1e6
            measured_any = True
            axes.plot([once], [reached], marker, color=RED, markersize=9, markeredgecolor="black")
            axes.annotate(
                f"{measured:g} µs", (once, reached), (8, -9 if marker == "o" else -3), textcoords="offset points",
                color=RED, fontsize=9,
            )  # fmt: skip
            words += f", measured {reached:.1f} with a warm L2"
        said.append(words)
    names = {BLUE: "at DRAM's roof, cold", PURPLE: "at L2's, warm", GREEN: "at L1's", RED: "measured, warm"}
    shown = [BLUE] + [PURPLE] * bool(gpu.l2_copy) + [GREEN] + [RED] * measured_any
    handles += [
        Line2D([], [], marker="h", linestyle="none", color=colour, markersize=8, label=names[colour])
        for colour in shown
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(6, len(handles)), frameon=False, fontsize=8)
    axes.set(
        xlim=(0.1, 1000),
        ylim=(low, high),
        xlabel="operations a byte",
        ylabel="TFLOP a second",
        title=gpu.name,
    )
    return Picture(figure, f"The roofline of the {gpu.name}, both axes logarithmic. " + ". ".join(said) + ".")


def agreement(counters: Mapping[str, tuple[int, int]], whose: str, title: str) -> Picture:
    """Counters as the hardware read them, each beside the learner's.

    Args:
        counters: name → (hardware's, the learner's).
        whose: who counted the second, "your `sectors`".
        title: what was counted.
    """
    figure, axes = new_figure(9, 3.2)
    names, whose = list(counters), whose.replace("`", "")
    most = max(max(pair) for pair in counters.values())
    for row, (hardware, mine) in enumerate(counters.values()):
        axes.barh(row - 0.2, hardware, 0.36, color=GREY, label="Nsight Compute" if row == 0 else None)
        axes.barh(row + 0.2, mine, 0.36, color=BLUE, hatch="//", edgecolor="white", label=whose if row == 0 else None)
        axes.text(hardware + most * 0.01, row - 0.2, f"{hardware:,}", va="center", fontsize=9)
        axes.text(
            mine + most * 0.01, row + 0.2, f"{mine:,}  {'✓ equal' if mine == hardware else '✗ not equal'}",
            va="center", fontsize=9, color=GREEN if mine == hardware else RED,
        )  # fmt: skip
    axes.set(yticks=range(len(names)), yticklabels=names, xlim=(0, most * 1.3), title=title, xticks=[])
    axes.tick_params(length=0)
    axes.invert_yaxis()
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    said = "; ".join(f"{name}: {hardware:,} and {mine:,}" for name, (hardware, mine) in counters.items())
    equal = sum(hardware == mine for hardware, mine in counters.values())
    return Picture(
        figure, f"{title}, Nsight Compute beside {whose}. {said}. {equal} of {len(counters)} counters are equal."
    )


@functools.cache
def measured() -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """What Nsight Compute read on a real GPU: the machine's data file.

    Returns:
        What it was read on (gpu, driver, triton, ncu, command), and case → record with its `counters`.
    """
    data = json.loads((Path(__file__).parents[1] / "bench" / "data" / "counters_h200.json").read_text(encoding="utf-8"))
    return data["machine"], {record["case"]: record for record in data["records"]}


@functools.cache
def replayed(case: str):
    """The machine's report on a recorded launch, counted through the layouts it was measured with. Needs Triton."""
    from msda_core.bench import calibrate

    return calibrate.replay(measured()[1][case])


def issued(case: str, kind: str = "load") -> list[tuple[list[int], int]]:
    """The requests of a recorded launch, (addresses, bytes a lane) each: what a learner's own counter counts.

    Args:
        case: one of `measured()`.
        kind: "load" or "store".
    """
    from msda_core import machine

    report = replayed(case)
    return [(r.addresses, r.width) for r in machine.issued(report.trace, report.lowering, kind)]

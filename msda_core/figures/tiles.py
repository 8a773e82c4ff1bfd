"""Figures about the forward kernel (lab 05), and the call on which its traffic is counted."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from matplotlib.patches import Rectangle
from torch import Tensor

from msda_core.figures.picture import BLUE, GREY, ORANGE, RED, Picture, new_figure
from msda_core.inputs import example_call

__all__ = [
    "SYMPTOMS",
    "contenders",
    "error_map",
    "lanes_and_sectors",
    "profile_kernel",
    "request_of_tensor",
    "shipped_report",
    "symptom",
    "tile_of_program",
    "tile_over_pyramid",
    "traffic_by_line",
    "wasted_coordinates",
]

SECTOR, LINE = 32, 128
MARKS = "osD^v<>ph*X8P"  # one for each query of a block, and again


@cache
def shipped_report(target: str = "sm_90") -> Any:
    """What `msda_core`'s own forward kernel requests on `example_call`: a `machine.Report`."""
    from msda_core.kernels.forward import msda_forward
    from msda_core.machine.counts.calls import profile_calls

    return profile_calls(lambda: msda_forward(*example_call()), target)[0]


def tile_over_pyramid(
    images: Sequence[Tensor], locations: Tensor, program: int, BLOCK_Q: int
) -> tuple[Picture, int, int]:
    """Where the points of one program lie: the queries of its block, on every level.

    Args:
        images: L images (H, W, 3).
        locations: (Q, L, K, 2), one head's, from 0 to 1.
        program: which block of queries; BLOCK_Q: queries in a block.

    Returns:
        The picture, how many pixels the program reads (four a point, those outside not counted), and how many different
        ones those are.
    """
    Q, L, K, _ = locations.shape
    first, last = program * BLOCK_Q, min((program + 1) * BLOCK_Q, Q)
    figure, axes = new_figure(10, 3.9, ncols=L)
    reads, different = 0, 0
    for level, (image, ax) in enumerate(zip(images, axes)):
        H, W, _ = image.shape
        ax.imshow(image.numpy(), interpolation="nearest")
        pixels = set()
        for q in range(first, last):
            x, y = locations[q, level, :, 0] * W - 0.5, locations[q, level, :, 1] * H - 0.5
            mark = MARKS[(q - first) % len(MARKS)]
            ax.plot(x.numpy(), y.numpy(), mark, color=ORANGE, markeredgecolor="black", markersize=6, linestyle="none")
            for i in (0, 1):
                for j in (0, 1):
                    for px, py in zip((x.floor() + i).int().tolist(), (y.floor() + j).int().tolist()):
                        if 0 <= px < W and 0 <= py < H:
                            reads += 1
                            pixels.add((px, py))
        different += len(pixels)
        for px, py in pixels:
            ax.add_patch(Rectangle((px - 0.5, py - 0.5), 1, 1, facecolor="none", edgecolor="white", linewidth=0.9))
        ax.set(title=f"level {level}: {H} × {W}", xticks=[], yticks=[], xlim=(-0.5, W - 0.5), ylim=(H - 0.5, -0.5))
    figure.supxlabel(
        f"program {program} of {-(-Q // BLOCK_Q)}: queries {first} to {last - 1}, one marker shape each; "
        "white squares: pixels it reads",
        fontsize=9,
    )
    return (
        Picture(
            figure,
            f"Program {program} owns queries {first} to {last - 1}. Their {(last - first) * L * K} points are drawn on {L} "
            f"levels of a photograph, with the pixels around them: {reads} reads of {different} different pixels.",
        ),
        reads,
        different,
    )


def tile_of_program(Q: int, D: int, BLOCK_Q: int, program: int) -> tuple[Picture, float]:
    """The accumulator of one program, a cell a (query, channel), and which of its cells have no query or no channel.

    Returns:
        The picture, and the share of cells that have both.
    """
    BLOCK_D = 1 << (D - 1).bit_length()
    queries = max(0, min(BLOCK_Q, Q - program * BLOCK_Q))
    figure, axes = new_figure(9, 3.4)
    real = np.zeros((BLOCK_Q, BLOCK_D))
    real[:queries, :D] = 1
    axes.pcolormesh(
        np.arange(BLOCK_D + 1), np.arange(BLOCK_Q + 1), real, cmap="Blues", vmin=-0.4, vmax=1.6, edgecolors="white"
    )
    style = dict(facecolor="none", edgecolor=RED, linewidth=0)
    if queries < BLOCK_Q:
        axes.add_patch(Rectangle((0, queries), BLOCK_D, BLOCK_Q - queries, hatch="//", **style))
    if D < BLOCK_D:
        axes.add_patch(Rectangle((D, 0), BLOCK_D - D, BLOCK_Q, hatch="\\\\", **style))
    first = program * BLOCK_Q
    down, along = max(1, BLOCK_Q // 8), max(1, BLOCK_D // 8)
    axes.set(
        xlabel="channel (lanes of BLOCK_D)",
        ylabel="query (lanes of BLOCK_Q)",
        xticks=np.arange(0, BLOCK_D, along) + 0.5,
        xticklabels=[str(d) for d in range(0, BLOCK_D, along)],
        yticks=np.arange(0, BLOCK_Q, down) + 0.5,
        yticklabels=[str(first + q) for q in range(0, BLOCK_Q, down)],
        xlim=(0, BLOCK_D),
        ylim=(BLOCK_Q, 0),
        title=f"program {program}: {queries} of {BLOCK_Q} queries, {D} of {BLOCK_D} channels",
    )
    share = queries * D / (BLOCK_Q * BLOCK_D)
    return (
        Picture(
            figure,
            f"A tile of {BLOCK_Q} queries by {BLOCK_D} channels. {queries} of the queries and {D} of the channels exist; "
            f"the rest, {1 - share:.0%} of the tile, is hatched: its lanes must read and write nothing.",
        ),
        share,
    )


def error_map(yours: Any, truth: Tensor, heads: int) -> Picture | None:
    """Where a result is wrong: the error by query and channel, of the batch item that is most wrong.

    Args:
        yours: what the answer returned; truth: (B, Q, M*D), float64.
        heads: M, to draw the borders between heads.

    Returns:
        The picture; None where the two cannot be compared.
    """
    if not isinstance(yours, Tensor) or yours.shape != truth.shape or truth.dim() != 3 or truth.numel() == 0:
        return None
    error = (yours.detach().double().cpu() - truth.detach().cpu()).abs()
    error = torch.where(yours.detach().cpu().double() == truth.detach().cpu(), 0.0, error)
    missing = error.isnan()
    finite = torch.nan_to_num(error, nan=0.0, posinf=0.0)
    b = int((finite + 1e30 * missing).flatten(1).sum(1).argmax())
    Q, columns = error.shape[1:]
    D = columns // heads
    top = finite[b].max().item() or 1.0
    tall = min(4.2, 1.6 + 0.16 * Q)
    figure, axes = new_figure(9, tall)
    shown = axes.pcolormesh(
        np.arange(columns + 1), np.arange(Q + 1), finite[b].numpy(), cmap="cividis", vmin=0, vmax=top, shading="flat"
    )
    for q, d in missing[b].nonzero().tolist():
        axes.add_patch(Rectangle((d, q), 1, 1, facecolor="white", hatch="xxx", edgecolor=RED, linewidth=0))
    for m in range(1, heads):
        axes.axvline(m * D, color="white", linewidth=1.6)
    figure.colorbar(shown, ax=axes, label="error", aspect=12)
    axes.set(
        ylim=(Q, 0),
        xlabel="channel" + (f" ({heads} heads of {D}; a white line between heads)" if heads > 1 else ""),
        ylabel="query",
        title=f"where it is wrong: batch item {b}" + ("; crossed out: not a number" if missing[b].any() else ""),
    )
    down, along = max(1, Q // 6), max(1, columns // 8)
    axes.set_xticks(np.arange(0, columns, along) + 0.5, [str(d) for d in range(0, columns, along)])
    axes.set_yticks(np.arange(0, Q, down) + 0.5, [str(q) for q in range(0, Q, down)])
    rows = int((finite[b] + missing[b]).gt(1e-3 * top).any(1).sum())
    return Picture(
        figure,
        f"A map of the error of batch item {b} by query and channel: {rows} of {Q} queries are wrong, by {top:.3g} at most"
        + (f"; {int(missing[b].sum())} values are not numbers." if missing[b].any() else "."),
    )


def lanes_and_sectors(request: Any, title: str) -> Picture:
    """What one instruction of one warp asks L1 for: lanes above, the sectors they touch below.

    Args:
        request: a `machine.counts.calls.Lanes`.
        title: what is looked at, such as a line of a kernel.
    """
    addresses, width = np.asarray(request.addresses), request.width
    active = np.flatnonzero(addresses >= 0)
    touched = sorted({s for a in addresses[active].tolist() for s in range(a // SECTOR, (a + width - 1) // SECTOR + 1)})
    place = {s: n for n, s in enumerate(touched)}
    # Sectors are drawn side by side, with a gap where they are not neighbours in memory.
    left, at = {}, 0.0
    for n, s in enumerate(touched):
        at += 0.0 if n == 0 else 1.06 if s == touched[n - 1] + 1 else 1.45
        left[s] = at
    wide = at + 1
    figure, axes = new_figure(10, 3.1)
    for s in touched:
        axes.add_patch(Rectangle((left[s], 0), 1, 0.6, facecolor="#fbe3bd", edgecolor=ORANGE, linewidth=1))
    step = wide / len(addresses)
    for lane, a in enumerate(addresses.tolist()):
        x = (lane + 0.5) * step
        on = a >= 0
        axes.add_patch(
            Rectangle(
                (lane * step + 0.06 * step, 2.0),
                0.88 * step,
                0.5,
                facecolor=BLUE if on else "white",
                edgecolor=BLUE if on else GREY,
                linestyle="-" if on else ":",
            )  # fmt: skip
        )
        axes.text(x, 2.25, str(lane), ha="center", va="center", fontsize=7, color="white" if on else GREY)
        if on:
            s = a // SECTOR
            start = left[s] + a % SECTOR / SECTOR
            axes.add_patch(
                Rectangle((start, 0), min(width / SECTOR, 1 - a % SECTOR / SECTOR), 0.6, facecolor=BLUE, linewidth=0)
            )
            axes.plot([x, start + min(width, SECTOR) / SECTOR / 2], [2.0, 0.6], color=BLUE, linewidth=0.7, alpha=0.7)
    fetched = SECTOR * len(place)
    axes.text(0, 2.62, "lanes of one warp", fontsize=9, va="bottom")
    axes.text(0, -0.1, "sectors of 32 bytes asked of L1, dark where used", fontsize=9, va="top")
    axes.set(xlim=(-0.02 * wide, wide * 1.02), ylim=(-0.45, 3.0), xticks=[], yticks=[])
    axes.set_axis_off()
    axes.set_title(f"{title}\n{request.useful} of {fetched} bytes used", fontsize=10, loc="left")
    return Picture(
        figure,
        f"{title}: {len(active)} of {len(addresses)} lanes ask for {width} bytes each and touch {len(place)} sectors. "
        f"{fetched} bytes are asked of L1 and {request.useful} of them used, {request.useful / max(1, fetched):.0%}.",
    )


def traffic_by_line(report: Any) -> Picture:
    """Bytes of the sectors that each line of a kernel asks L1 for, and how many of them it uses.

    Args:
        report: a `machine.Report`.
    """
    lines = [line for line in report.by_line.values() if line.sectors]
    first = report.trace.launch.fn.__code__.co_firstlineno if hasattr(report.trace.launch, "fn") else 1
    figure, axes = new_figure(10, 1.3 + 0.42 * len(lines))
    where = np.arange(len(lines))
    fetched = [line.sectors * SECTOR / 1024 for line in lines]
    useful = [min(line.bytes, line.sectors * SECTOR) / 1024 for line in lines]
    axes.barh(where, fetched, color="#fbe3bd", edgecolor=ORANGE, hatch="//", label="asked of L1, in whole sectors")
    axes.barh(where, useful, color=BLUE, height=0.5, label="used")
    names = []
    for n, line in enumerate(lines):
        text = line.text.strip()
        names.append(f"{line.lineno - first + 1}: {text[:46] + ('…' if len(text) > 46 else '')}")
        share = min(1.0, line.efficiency)
        axes.text(fetched[n], n, f" {fetched[n]:,.1f} KiB, {share:.0%} used", va="center", fontsize=9)
    axes.set(xlabel="KiB", xlim=(0, max(fetched) * 1.3))
    axes.set_yticks(where, names, fontsize=8, family="monospace")
    axes.invert_yaxis()
    figure.legend(loc="outside upper right", ncols=2, frameon=False)
    text = "; ".join(f"{name} asks for {f:.1f} KiB, uses {u:.1f}" for name, f, u in zip(names, fetched, useful))
    return Picture(figure, f"Bytes that each line asks L1 for, in whole sectors, and bytes it uses. {text}.")


def contenders(forward: Callable) -> tuple[Picture, list[tuple[str, int]]]:
    """Sectors requested for `example_call`: the learner's launcher among the shipped kernel's two ways and the floor.

    Args:
        forward: the learner's `msda_forward`.

    Returns:
        The picture, and (name, sectors) from the fewest.
    """
    from msda_core.kernels.config import LaunchConfig
    from msda_core.kernels.forward import msda_forward
    from msda_core.machine.counts.calls import profile_calls

    args = example_call()
    looping = LaunchConfig(16, 1, 1, 32, num_warps=4, UNROLL=1)
    mine = sum(report.sectors for report in profile_calls(lambda: forward(*args)))
    shipped = shipped_report()
    rows = [
        ("yours", mine),
        ("msda_core, all points in one tile (shipped here)", shipped.sectors),
        (
            "msda_core, points in a loop (shipped for large calls)",
            profile_calls(lambda: msda_forward(*args, config=looping))[0].sectors,
        ),
        ("each sector once: nobody can ask for less", (shipped.unique_bytes + shipped.written_bytes) // SECTOR),
    ]
    rows.sort(key=lambda row: row[1])
    figure, axes = new_figure(10, 2.6)
    for n, (name, sectors) in enumerate(rows):
        own = name == "yours"
        axes.barh(n, sectors, color=ORANGE if own else "#c9d3df", edgecolor="black" if own else GREY)
        axes.text(sectors, n, f" {sectors:,}", va="center", weight="bold" if own else "normal")
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.set(xlabel="sectors asked of L1", xlim=(0, max(s for _, s in rows) * 1.12))
    axes.invert_yaxis()
    return Picture(figure, "Sectors asked of L1: " + "; ".join(f"{name}, {s:,}" for name, s in rows) + "."), rows


def wasted_coordinates(W: int) -> tuple[Picture, dict[str, float]]:
    """How far a point moves on a level of width W if its coordinate is computed in 16 bits.

    Args:
        W: pixels.

    Returns:
        The picture, and the largest distance in pixels by way of computing.
    """
    exact = torch.linspace(0.02, 0.98, 257, dtype=torch.float64)
    ways = {
        "float16 throughout": exact.half() * W - 0.5,
        "bfloat16 throughout": exact.bfloat16() * W - 0.5,
        "float16 locations, float32 arithmetic": exact.half().float() * W - 0.5,
    }
    figure, axes = new_figure(8.5, 3.4)
    worst = {}
    for (name, pixels), colour, line in zip(ways.items(), (ORANGE, RED, BLUE), ("-", ":", "--")):
        moved = (pixels.double() - (exact * W - 0.5)).abs()
        worst[name] = moved.max().item()
        axes.plot(exact.numpy(), moved.numpy(), color=colour, linestyle=line, label=f"{name}: {worst[name]:.3f}")
    axes.set(xlabel="location", ylabel="pixels off", yscale="symlog", ylim=(0, None))
    axes.set_yscale("symlog", linthresh=0.01)
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=8, title="largest distance in pixels")
    text = "; ".join(f"{name} up to {w:.3f}" for name, w in worst.items())
    return Picture(figure, f"Distance in pixels by which a point moves on a level {W} wide: {text}."), worst


def profile_kernel(kernel: Any, BLOCK_Q: int, num_warps: int) -> Any:
    """The counters of a kernel with the signature of `msda_fwd_kernel` on `example_call`: a `machine.Report`."""
    from msda_core import machine

    value, shapes, starts, locations, weights = example_call()
    B, S, M, D = value.shape
    _, Q, _, L, K, _ = locations.shape
    sizes = dict(M=M, D=D, L=L, K=K, BLOCK_Q=BLOCK_Q, BLOCK_D=D)
    out = value.new_empty(B, Q, M * D)
    grid = (-(-Q // BLOCK_Q), B * M)
    arguments = (value, shapes, starts, locations, weights, out, Q, S)
    return machine.profile(kernel, grid, *arguments, num_warps=num_warps, **sizes)


def request_of_tensor(report: Any, position: int) -> Picture:
    """One request of the line that asks for most of one tensor of a kernel, the request that wastes most.

    Args:
        report: a `machine.Report`; position: which of its tensors, in the order of the kernel's arguments.
    """
    from msda_core.machine.counts.calls import worst_request

    name = list(report.trace.tensors)[position]
    owner = {event.site: event.tensor for event in report.trace.events}
    sites = [site for site in report.sites if owner.get(site.site) == name and site.sectors]
    site = max(sites, key=lambda site: site.sectors)
    return lanes_and_sectors(worst_request(report, site), f"{name}: {site.text.strip()}")


#: A letter → what is broken, and how one sees it.
SYMPTOMS = {
    "A": "Only the last rows are wrong, and they hold no numbers: nobody wrote them. The last block of queries, which is not "
    "full, was never launched, or its mask is too strict.",
    "B": "One head is right, the others are wrong everywhere: a head's offset is missing somewhere.",
    "C": "Single queries are wrong, in all their channels, and most are right: something about their points. These have "
    "one at the edge of a level, where a corner does not exist.",
    "D": "Everything is wrong: something that every point goes through. Here x and y are swapped.",
}


def symptom(letter: str) -> Picture:
    """The error map of a broken kernel; `SYMPTOMS` says what is broken.

    Args:
        letter: "A" to "D".
    """
    from msda_core.reference import exact

    value, shapes, starts, locations, weights = example_call()
    locations = locations.clamp(0.1, 0.9)
    for q, edge in ((2, 0.004), (7, 0.996), (11, 0.002)):
        locations[0, q, :, 0, 1, 0] = edge
    truth = exact(value, shapes, starts, locations, weights)
    yours = truth.clone()
    if letter == "A":
        yours[:, 12:] = float("nan")
    elif letter == "B":
        yours = exact(value[:, :, :1].expand_as(value), shapes, starts, locations, weights)
    elif letter == "C":
        inner = locations.clone()
        pixels = torch.tensor([34.0, 20.0])
        inner[:, :, :, 0] = ((inner[:, :, :, 0] * pixels).clamp(min=0.5, max=None) / pixels).clamp(max=1 - 0.5 / 34)
        yours = exact(value, shapes, starts, inner, weights)
    elif letter == "D":
        yours = exact(value, shapes, starts, locations.flip(-1), weights)
    else:
        raise ValueError(f"letter must be one of {', '.join(SYMPTOMS)}, got {letter!r}.")
    return error_map(yours, truth, heads=value.shape[2])

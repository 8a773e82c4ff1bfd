"""Figures about programs, lanes and what they touch (lab 04)."""

import re
from collections.abc import Sequence

import torch
from matplotlib.patches import Rectangle
from torch import Tensor

from msda_core.figures.picture import BLUE, GREEN, GREY, ORANGE, RED, Picture, new_figure

__all__ = [
    "gathered_rows",
    "lanes_over_matrix",
    "lanes_over_vector",
    "listings",
    "load_instructions",
    "load_widths",
    "row_walk",
    "side_by_side",
    "touched",
    "turned",
]

TINTS = ("#dfe9f5", "#f6e7cf")  # neighbouring programs' cells; their numbers say the same


def lanes_over_vector(N: int, BLOCK: int, program: int) -> tuple[Picture, int]:
    """Which elements of a vector one program touches, lane by lane, and which of its lanes have no element.

    Args:
        N: elements; BLOCK: lanes of a program; program: the one that is looked at.

    Returns:
        The picture, and how many lanes of this program have no element.
    """
    programs = -(-N // BLOCK)
    cells = programs * BLOCK
    figure, axes = new_figure(10, 2.5)
    for i in range(cells):
        owner, lane = divmod(i, BLOCK)
        mine, exists = owner == program, i < N
        axes.add_patch(
            Rectangle(
                (i, 0),
                1,
                1,
                facecolor=ORANGE if mine and exists else TINTS[owner % 2] if exists else "white",
                edgecolor=RED if mine and not exists else GREY,
                linestyle="-" if exists else ":",
                hatch="xx" if mine and not exists else None,
                linewidth=1,
            )  # fmt: skip
        )
        if cells <= 48:
            axes.text(i + 0.5, -0.28, str(i), ha="center", va="center", fontsize=7, color=GREY if exists else RED)
        if mine and (BLOCK <= 16 or lane % 4 == 0):
            axes.text(i + 0.5, 1.3, str(lane), ha="center", va="center", fontsize=8)
    for owner in range(programs):
        first, last = owner * BLOCK, min((owner + 1) * BLOCK, N)
        axes.text((first + last) / 2, 0.5, f"{owner}", ha="center", va="center", fontsize=11, weight="bold")
    axes.text(-0.3, 1.3, "lane", ha="right", va="center", fontsize=9)
    axes.text(-0.3, 0.5, "program", ha="right", va="center", fontsize=9)
    axes.text(-0.3, -0.28, "element", ha="right", va="center", fontsize=9, color=GREY)
    axes.plot([N, N], [-0.5, 1.65], color=RED, linewidth=2)
    axes.text(N, 1.85, f"N = {N}", color=RED, ha="center", va="center")
    axes.set(xlim=(-0.12 * cells, cells + 0.3), ylim=(-0.6, 2.1), xticks=[], yticks=[])
    axes.set_axis_off()
    idle = max(0, (program + 1) * BLOCK - max(N, program * BLOCK))
    where = f"elements {program * BLOCK} to {min((program + 1) * BLOCK, N) - 1}"
    text = (
        f"A vector of {N} elements cut into blocks of {BLOCK}: {programs} programs. Program {program} owns {where}; "
        f"{idle} of its {BLOCK} lanes lie past the end of the vector and are drawn crossed out."
    )
    return Picture(figure, text), idle


def touched(trace, program: int, size: int) -> Picture:
    """What one program of a traced kernel did to memory, one row for each access in its source, in order.

    Args:
        trace: from `machine.trace`, of a kernel over vectors. program: which. size: elements of the vectors.
    """
    events = [event for event in trace.events if event.program[0] == program]
    figure, axes = new_figure(10, 0.7 + 0.75 * len(events))
    sentences = []
    for row, event in enumerate(events):
        elements = set(trace.element(event)[event.mask].tolist())
        for i in range(size):
            mine = i in elements
            axes.add_patch(
                Rectangle((i, row), 1, 0.55, facecolor=ORANGE if mine else TINTS[0], edgecolor=GREY, linewidth=0.6)
            )
            if mine:
                axes.plot(i + 0.5, row + 0.275, "." if event.kind == "load" else "v", color="black", markersize=4)
        idle = int((~event.mask).sum())
        off = f", {idle} lanes masked off" if idle else ""
        text = event.site.text if len(event.site.text) <= 70 else event.site.text[:69] + "…"
        axes.text(0, row - 0.08, f"{text}   → {event.tensor}{off}", fontsize=8, va="bottom", family="monospace")
        span = f"{min(elements)} to {max(elements)}" if elements else "none"
        sentences.append(f"{event.kind} of {event.tensor}: elements {span}{off}")
    axes.set(xlim=(-0.3, size + 0.3), ylim=(len(events), -0.6))
    axes.set_axis_off()
    return Picture(figure, f"What program {program} of {trace.programs} touched. {'; '.join(sentences)}.")


def lanes_over_matrix(
    H: int, W: int, strides: tuple[int, int], block: tuple[int, int], program: tuple[int, int]
) -> tuple[Picture, int, int]:
    """One program's tile over a matrix, each element with its offset in memory, and the tile in memory's own order.

    Args:
        H, W: rows and columns. strides: elements to the next row, and to the next column.
        block: rows and columns of a tile. program: which tile, downwards and to the right.

    Returns:
        The picture, how many lanes exist, and how many stretches of neighbouring elements they make in memory.
    """
    rows, columns = -(-H // block[0]) * block[0], -(-W // block[1]) * block[1]
    top, left = program[0] * block[0], program[1] * block[1]
    figure, (axes, strip) = new_figure(10, 4.6, nrows=2, height_ratios=(5, 1))
    touched = []
    for h in range(rows):
        for w in range(columns):
            mine, exists = top <= h < top + block[0] and left <= w < left + block[1], h < H and w < W
            if not mine and not exists:
                continue
            offset = h * strides[0] + w * strides[1]
            tile = h // block[0] + w // block[1]
            axes.add_patch(
                Rectangle(
                    (w, h),
                    1,
                    1,
                    facecolor="white" if not exists else ORANGE if mine else TINTS[tile % 2],
                    edgecolor=GREY if exists else RED,
                    hatch=None if exists else "xx",
                    linestyle="-" if exists else ":",
                )  # fmt: skip
            )
            if exists:
                weight = "bold" if mine else "normal"
                axes.text(w + 0.5, h + 0.5, str(offset), ha="center", va="center", fontsize=8, weight=weight)
                touched += [offset] if mine else []
    axes.add_patch(Rectangle((0, 0), W, H, fill=False, edgecolor="black", linewidth=2))
    axes.set(xlim=(-0.2, columns + 0.2), ylim=(rows + 0.2, -0.2), xticks=[], yticks=[], aspect="equal")
    axes.set_title(f"program {program}: each number is the element's offset in memory", fontsize=10)
    axes.set_axis_off()
    length = (H - 1) * strides[0] + (W - 1) * strides[1] + 1
    real = {h * strides[0] + w * strides[1] for h in range(H) for w in range(W)}
    touched = sorted(touched)
    for offset in range(length):
        colour = ORANGE if offset in touched else TINTS[0] if offset in real else "white"
        strip.add_patch(Rectangle((offset, 0), 1, 1, facecolor=colour, edgecolor=GREY, linewidth=0.4))
    runs = sum(1 for k, offset in enumerate(touched) if k == 0 or touched[k - 1] != offset - 1)
    strip.set(xlim=(-1, length + 1), ylim=(-0.1, 1.1), yticks=[], xlabel="the same memory, from offset 0 on")
    strip.spines[["left", "bottom"]].set_visible(False)
    lanes = block[0] * block[1]
    text = (
        f"A matrix of {H} by {W} elements with strides {strides}. Program {program} owns a tile of {block[0]} by {block[1]} "
        f"lanes; {len(touched)} of {lanes} have an element, the others hang over an edge and are crossed out. In memory the "
        f"elements make {runs} separate stretches."
    )
    return Picture(figure, text), len(touched), runs


def gathered_rows(index: Sequence[int], rows: int, block: int, program: int) -> Picture:
    """Which rows of a table go where: lines from the table's rows to those of out, one program's drawn strongly.

    Args:
        index: for each row of out, a row of the table. rows: of the table.
        block: rows of out that one program owns; program: which.
    """
    N = len(index)
    figure, axes = new_figure(7.5, 3.6)
    mine = range(program * block, min((program + 1) * block, N))
    used = {index[n] for n in mine}
    table_y, out_y = [(r + 0.5) / rows for r in range(rows)], [(n + 0.5) / N for n in range(N)]
    for r in range(rows):
        colour = ORANGE if r in used else TINTS[0]
        axes.add_patch(Rectangle((0, r / rows), 1, 0.92 / rows, facecolor=colour, edgecolor=GREY))
        axes.text(0.5, table_y[r], f"row {r}", ha="center", va="center", fontsize=8)
    for n in range(N):
        strong = n in mine
        axes.add_patch(Rectangle((3, n / N), 1, 0.92 / N, facecolor=ORANGE if strong else TINTS[0], edgecolor=GREY))
        axes.text(3.5, out_y[n], f"index[{n}] = {index[n]}", ha="center", va="center", fontsize=8)
        axes.annotate(
            "", (2.97, out_y[n]), (1.03, table_y[index[n]]),
            arrowprops={"arrowstyle": "->", "color": RED if strong else GREY, "lw": 2 if strong else 0.6,
                        "linestyle": "-" if strong else ":"},
        )  # fmt: skip
    axes.text(0.5, -0.04, "table", ha="center", weight="bold")
    axes.text(3.5, -0.04, "out", ha="center", weight="bold")
    axes.set(xlim=(-0.1, 4.1), ylim=(1.02, -0.1))
    axes.set_axis_off()
    moves = ", ".join(f"row {index[n]} to row {n}" for n in mine)
    return Picture(figure, f"A table of {rows} rows and an output of {N}. Program {program} copies {moves}.")


def row_walk(row: Sequence[float], BLOCK: int, turn: int) -> tuple[Picture, float]:
    """A block on its walk along a row: what it reads in one turn, and the sums its lanes hold after it.

    Args:
        row: the numbers. BLOCK: lanes. turn: the last turn that was made, from 0.

    Returns:
        The picture, and the sum over the lanes so far.
    """
    N, turns = len(row), -(-len(row) // BLOCK)
    sums = [sum(row[i] for i in range(lane, min((turn + 1) * BLOCK, N), BLOCK)) for lane in range(BLOCK)]
    figure, (axes, bars) = new_figure(10, 3.8, nrows=2, height_ratios=(1, 1.6))
    for i in range(turns * BLOCK):
        mine, exists = i // BLOCK == turn, i < N
        axes.add_patch(
            Rectangle(
                (i, 0),
                1,
                1,
                facecolor="white" if not exists else ORANGE if mine else TINTS[i // BLOCK % 2],
                edgecolor=GREY if exists else RED,
                hatch="xx" if mine and not exists else None,
                linestyle="-" if exists else ":",
            )  # fmt: skip
        )
        if exists:
            axes.text(i + 0.5, 0.5, f"{row[i]:g}", ha="center", va="center", fontsize=8)
        elif mine:
            axes.text(i + 0.5, -0.4, "0", ha="center", va="center", fontsize=8, color=RED)
    axes.set(xlim=(-0.3, turns * BLOCK + 0.3), ylim=(-0.7, 1.1))
    axes.set_title(f"turn {turn}: elements {turn * BLOCK} to {min((turn + 1) * BLOCK, N) - 1}", fontsize=10)
    axes.set_axis_off()
    bars.bar(range(BLOCK), sums, color=BLUE, edgecolor="white")
    for lane, value in enumerate(sums):
        bars.text(lane, value, f"{value:g}", ha="center", va="bottom", fontsize=8)
    bars.set(xticks=range(BLOCK), xlabel="lane", ylabel="sum so far", ylim=(0, max(sums) * 1.25 + 1))
    idle = max(0, (turn + 1) * BLOCK - N)
    text = (
        f"A row of {N} numbers and a block of {BLOCK} lanes after turn {turn}. The lanes hold "
        f"{', '.join(f'{value:g}' for value in sums)}; {idle} lanes had no element in this turn and added zero."
    )
    return Picture(figure, text), sum(sums)


def load_widths(blocks: Sequence[int], counts: Sequence[int], widths: Sequence[int], chosen: int) -> Picture:
    """How many load instructions one thread needs for its share of a block, and how many bytes each of them moves.

    Args:
        blocks: block sizes. counts: instructions for one `tl.load`; widths: bytes of each. chosen: the block looked at.
    """
    figure, axes = new_figure(10, 2.7)
    colours = {4: GREY, 8: GREEN, 16: BLUE}
    hatches = {4: "..", 8: "//", 16: None}
    bars = axes.bar(
        range(len(blocks)), counts, color=[colours.get(w, ORANGE) for w in widths], edgecolor="white", linewidth=1
    )
    for bar, block, count, width in zip(bars, blocks, counts, widths):
        bar.set_hatch(hatches.get(width))
        if block == chosen:
            bar.set(edgecolor="black", linewidth=2.5)
        axes.annotate(
            f"{count} × {width} B", (bar.get_x() + bar.get_width() / 2, count), (0, 3), textcoords="offset points",
            ha="center", va="bottom", fontsize=9,
        )  # fmt: skip
    axes.set(
        xticks=range(len(blocks)), xticklabels=[f"{b}{' ◂' if b == chosen else ''}" for b in blocks], xlabel="BLOCK",
        ylabel="load instructions a thread", ylim=(0, max(counts) * 1.2),
    )  # fmt: skip
    text = ", ".join(f"BLOCK {b}: {c} of {w} bytes" for b, c, w in zip(blocks, counts, widths))
    return Picture(figure, f"Load instructions of one thread for one block. {text}. Chosen: {chosen}.")


def load_instructions(lowering) -> tuple[int, int]:
    """What one `tl.load` of a lowered kernel costs a thread: instructions, and bytes of each (the average over its loads).

    Args:
        lowering: from `machine.lower`.
    """
    written = sum(operation.kind == "load" for operation in lowering.operations) or 1
    loads = [one for one in lowering.instructions if one.kind == "load"]
    moved = sum(one.bytes for one in loads)
    return -(-len(loads) // written), moved // (len(loads) or 1)


def listings(lowering) -> dict[str, str]:
    """The stages of a lowered kernel below Python, each without what is not for human eyes.

    Args:
        lowering: from `machine.lower`.

    Returns:
        Stage → text: "TTGIR" with its layouts, the accesses to global memory in "PTX", and "SASS" up to its end.
    """
    body = []
    for line in lowering.ttgir.splitlines():
        line = re.sub(r"\s*loc\(.*\)| \{tt\.divisibility[^}]*\}", "", line)
        if line.strip() and not line.startswith("#loc"):
            body.append(line)
    sass = []
    for line in lowering.sass.splitlines():
        instruction = re.match(r"\s*/\*[0-9a-f]+\*/\s+(.*?;)", line)
        if instruction:
            sass.append(instruction[1])
            if instruction[1].startswith("EXIT"):
                break
    return {
        "TTGIR: each block with its layout": "\n".join(body),
        "PTX: what touches global memory": "\n".join(one.text for one in lowering.instructions),
        f"SASS: all of it, for SM {lowering.target // 10}.{lowering.target % 10}": "\n".join(sass),
    }


def turned(size: int, zoom: float, angle: float, centre: tuple[float, float] = (0.47, 0.35)) -> Tensor:
    """Locations of a square of points over an image, zoomed and turned: (size * size, 2), (x, y).

    Args:
        size: points along a side. zoom: 1 spans the image. angle: degrees. centre: (x, y) of the square's middle.
    """
    steps = (torch.arange(size) + 0.5) / size - 0.5
    y, x = torch.meshgrid(steps, steps, indexing="ij")
    turn = torch.deg2rad(torch.tensor(float(angle)))
    across, down = x * turn.cos() - y * turn.sin(), x * turn.sin() + y * turn.cos()
    return torch.stack([across / zoom + centre[0], down / zoom + centre[1]], -1).reshape(-1, 2)


def side_by_side(image: Tensor, locations: Tensor, samples: Tensor) -> Picture:
    """An image with the points that are read from it, and what was read, as a picture of its own.

    Args:
        image: (H, W, 3), from 0 to 1. locations: (n * n, 2), (x, y). samples: (n * n, 3).
    """
    H, W, _ = image.shape
    size = round(len(samples) ** 0.5)
    figure, (left, right) = new_figure(9, 4, ncols=2)
    left.imshow(image.numpy(), interpolation="nearest")
    x, y = (locations * torch.tensor([W, H]) - 0.5).T.numpy()
    left.scatter(x, y, s=4, color=ORANGE, edgecolor="black", linewidth=0.2)
    left.set(title=f"{H} × {W} pixels, {len(locations)} points", xticks=[], yticks=[])
    left.spines[["left", "bottom"]].set_visible(False)
    left.set(xlim=(-0.35 * W, 1.35 * W), ylim=(1.25 * H, -0.25 * H))
    right.imshow(samples.reshape(size, size, 3).clamp(0, 1).numpy(), interpolation="nearest")
    right.set(title="what your kernel read", xticks=[], yticks=[])
    outside = ((locations < 0) | (locations > 1)).any(-1).sum().item()
    return Picture(
        figure,
        f"A photograph of {H} by {W} pixels with a turned square of {size} by {size} points, and the picture that the "
        f"kernel read at these points; the {outside} points outside the photograph are black.",
    )

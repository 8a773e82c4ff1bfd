"""Figures about memory as one line of numbers (lab 02)."""

from collections.abc import Sequence

import torch
from matplotlib.patches import ConnectionPatch, Rectangle
from torch import Tensor

from msda_core.figures.picture import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, YELLOW, Picture, new_figure
from msda_core.shapes import level_starts

__all__ = ["LAYOUTS", "VIEWS", "corner_distances", "index_in_32_bits", "memory_strip", "side_by_side", "views"]

CORNER_COLOURS = (BLUE, ORANGE, GREEN, PURPLE)
CORNER_HATCHES = ("//", "\\\\", "..", "xx")
CORNER_STEPS = ((0, 0), (1, 0), (0, 1), (1, 1))

#: What one can do to a (3, 4) tensor without moving a number, and the one thing that moves them.
VIEWS = {
    "a": lambda a: a,
    "a.T": lambda a: a.T,
    "a[:, ::2]": lambda a: a[:, ::2],
    "a[1:, 1:]": lambda a: a[1:, 1:],
    "a.view(6, 2)": lambda a: a.view(6, 2),
    "a[:, :1].expand(3, 4)": lambda a: a[:, :1].expand(3, 4),
    "a.T.contiguous()": lambda a: a.T.contiguous(),
}

#: How `value` may lie in memory: name → the order of its axes, the slowest first.
LAYOUTS = {
    "(B, S, M, D): the operator's own": "BSMD",
    "(B, M, S, D): heads apart": "BMSD",
    "(B, M, D, S): as a convolution leaves it": "BMDS",
}


def views(name: str) -> Picture:
    """A (3, 4) tensor under one of `VIEWS`: its elements with their offsets, and the memory they are read from.

    Args:
        name: a key of `VIEWS`.
    """
    a = torch.arange(12).reshape(3, 4)
    view = VIEWS[name](a)
    rows, columns = view.shape
    (row_stride, column_stride), start = view.stride(), view.storage_offset()
    moved = view.untyped_storage().data_ptr() != a.untyped_storage().data_ptr()
    stored = torch.empty(0, dtype=view.dtype).set_(view.untyped_storage()).tolist()
    offsets = [[start + i * row_stride + j * column_stride for j in range(columns)] for i in range(rows)]
    visits: dict[int, list[int]] = {}
    for step, offset in enumerate(offset for row in offsets for offset in row):
        visits.setdefault(offset, []).append(step)

    figure, (grid, strip) = new_figure(9.5, 4.6, nrows=2, height_ratios=(2.4, 1))
    for i in range(rows):
        for j in range(columns):
            shade = BLUE if i % 2 == 0 else ORANGE
            grid.add_patch(Rectangle((j, i), 0.94, 0.94, facecolor=shade, alpha=0.35, edgecolor="black"))
            grid.text(j + 0.47, i + 0.36, str(int(view[i, j])), ha="center", va="center", fontsize=12, weight="bold")
            grid.text(j + 0.47, i + 0.74, f"at {offsets[i][j]}", ha="center", va="center", fontsize=8)
    grid.set(xlim=(-0.1, max(columns, 5)), ylim=(rows, -0.1), xticks=[], yticks=[])
    grid.set_aspect("equal", anchor="W")
    facts = [
        f"shape    {tuple(view.shape)}",
        f"strides  {view.stride()}",
        f"start    {start}",
        "",
        "new memory: every number was copied" if moved else "the same memory: no number has moved",
    ]
    beside = figure.text(0.55, 0.93, "\n".join(facts), va="top", family="monospace", fontsize=11)
    beside.set_in_layout(False)  # the grid's width differs, and nothing else is to move with it
    grid.set_title(name, loc="left", family="monospace")
    grid.axis("off")

    for offset, value in enumerate(stored):
        steps = visits.get(offset, [])
        row = steps[0] // columns if steps else None
        face, alpha = ("white", 1.0) if row is None else (BLUE if row % 2 == 0 else ORANGE, 0.35)
        strip.add_patch(Rectangle((offset, 0), 0.96, 1, facecolor=face, alpha=alpha, edgecolor="black"))
        strip.text(offset + 0.48, 0.5, str(value), ha="center", va="center", fontsize=12, weight="bold")
        strip.text(offset + 0.48, -0.32, str(offset), ha="center", va="center", fontsize=8, color=GREY)
        if steps:
            order = "×4" if len(steps) > 1 else f"{steps[0] + 1}."
            strip.text(offset + 0.48, 1.3, order, ha="center", va="center", fontsize=9)
    strip.text(-0.2, 1.3, "read", ha="right", va="center", fontsize=9)
    strip.text(-0.2, 0.5, "memory", ha="right", va="center", fontsize=9)
    strip.text(-0.2, -0.32, "offset", ha="right", va="center", fontsize=8, color=GREY)
    strip.set(xlim=(-1.2, 12.1), ylim=(-0.7, 1.7))
    strip.axis("off")
    order = ", ".join(str(offset) for row in offsets for offset in row)
    return Picture(
        figure,
        f"{name} has shape {tuple(view.shape)}, strides {view.stride()} and starts at {start}. Read row by row it visits the "
        f"offsets {order}. {'Its numbers were copied to new memory.' if moved else 'It shares the memory of a.'}",
    )


def memory_strip(
    levels: Sequence[tuple[int, int]], B: int, M: int, D: int, b: int, m: int, level: int, x0: int, y0: int
) -> tuple[Picture, list[int]]:
    """The four pixels around a point, in their level and in memory: a contiguous (B, S, M, D) `value` as one line.

    Args:
        levels: (H, W) of each level; they lie one after another.
        B, M, D: images, heads, channels a head.
        b, m, level: which image, head and level is read.
        x0, y0: the upper left of the four pixels; may lie outside.

    Returns:
        The picture, and the offset of each corner's first channel (also of those outside), in elements.
    """
    starts, S = level_starts(levels), sum(h * w for h, w in levels)
    (H, W), total = levels[level], B * S * M * D
    corners = [(x0 + dx, y0 + dy) for dx, dy in CORNER_STEPS]
    inside = [0 <= x < W and 0 <= y < H for x, y in corners]
    rows = [b * S + starts[level] + y * W + x for x, y in corners]
    offsets = [(row * M + m) * D for row in rows]

    figure, (grid, line, zoom) = new_figure(10, 5.6, nrows=3, height_ratios=(2.4, 1.2, 1.5))
    grid.add_patch(Rectangle((0, 0), W, H, facecolor="#eef1f5", edgecolor="black"))
    for y in range(H):
        for x in range(W):
            grid.add_patch(Rectangle((x, y), 1, 1, fill=False, edgecolor=GREY, linewidth=0.6))
            grid.text(
                x + 0.5, y + 0.5, str(starts[level] + y * W + x), ha="center", va="center", fontsize=8, color=GREY
            )
    for (x, y), colour, hatch, there in zip(corners, CORNER_COLOURS, CORNER_HATCHES, inside):
        style = dict(facecolor=colour, hatch=hatch, alpha=0.6) if there else dict(fill=False, linestyle="--")
        grid.add_patch(Rectangle((x, y), 1, 1, edgecolor=colour if not there else "black", linewidth=2, **style))
        if there:
            number = str(starts[level] + y * W + x)
            box = dict(boxstyle="round,pad=0.15", facecolor="white", edgecolor="none")
            grid.text(x + 0.5, y + 0.5, number, ha="center", va="center", fontsize=8, weight="bold", bbox=box)
    grid.set(xlim=(-1.2, max(W, 6) + 1.2), ylim=(H + 1.2, -1.2), xticks=[], yticks=[])
    grid.set_aspect("equal", anchor="W")
    listed = [
        f"({x:>2}, {y:>2})   offset {offset:>4}"
        + ("" if there else "   not a pixel of this level" if 0 <= offset < total else "   outside all of value")
        for (x, y), offset, there in zip(corners, offsets, inside)
    ]
    heading = f"(x, y)     image {b}, head {m}, channel 0"
    grid.text(
        1.05, 0.75, "\n".join([heading, *listed]), transform=grid.transAxes, va="top", family="monospace", fontsize=10,
        linespacing=1.6,
    )  # fmt: skip
    grid.set_title(f"level {level} of image {b}: {H} × {W} pixels, numbered as in S", loc="left")
    grid.axis("off")

    # All of memory, as one line: images, levels inside them, and the four lit pieces.
    for image in range(B):
        line.text((image + 0.5) * S * M * D, 2.02, f"image {image}", ha="center", va="bottom", fontsize=9)
        for l, (h, w) in enumerate(levels):
            left, width = (image * S + starts[l]) * M * D, h * w * M * D
            line.add_patch(
                Rectangle((left, 0), width, 1, facecolor="#dfe5ec" if l % 2 == 0 else "white", edgecolor="black")
            )
            line.text(left + width / 2, 1.12, f"level {l}", ha="center", va="bottom", fontsize=8, color=GREY)
    for offset, colour, there in zip(offsets, CORNER_COLOURS, inside):
        if there:
            line.add_patch(Rectangle((offset, 0), max(D, total / 400), 1, facecolor=colour, edgecolor=colour))
        elif 0 <= offset < total:
            line.add_patch(Rectangle((offset, 0), max(D, total / 400), 1, fill=False, linestyle="--"))
    line.set(xlim=(-total * 0.01, total * 1.01), ylim=(-0.6, 3.0), yticks=[])
    line.set_title(f"all of memory: one line of {total} elements", loc="left", fontsize=10)
    for side in ("left", "top", "right", "bottom"):
        line.spines[side].set_visible(False)
    line.tick_params(labelsize=8)

    # The image rows that the corners lie in, element by element.
    first = max(min(rows), 0)
    last = min(max(max(rows), first + 1), B * S - 1)
    low, high = first * M * D, (last + 1) * M * D
    for row in range(first, last + 1):
        for head in range(M):
            left = (row * M + head) * D
            zoom.add_patch(
                Rectangle((left, 0), D, 1, facecolor="#eef1f5" if head % 2 else "white", edgecolor=GREY, linewidth=0.5)
            )
            for d in range(1, D):
                zoom.plot([left + d] * 2, [0, 1], color=GREY, linewidth=0.25)
        zoom.plot([row * M * D] * 2, [-0.12, 1.12], color="black", linewidth=1)
        if last - first <= 16:
            name = f"pixel {row % S}" + ("" if row // S == b else f"\nof image {row // S}")
            zoom.text((row + 0.5) * M * D, -0.2, name, ha="center", va="top", fontsize=7, color=GREY)
    zoom.plot([high] * 2, [-0.12, 1.12], color="black", linewidth=1)
    for (x, y), offset, colour, hatch, there in zip(corners, offsets, CORNER_COLOURS, CORNER_HATCHES, inside):
        if not 0 <= offset < total:
            continue
        style = dict(facecolor=colour, hatch=hatch, alpha=0.7) if there else dict(fill=False, linestyle="--")
        zoom.add_patch(Rectangle((offset, 0), D, 1, edgecolor="black", linewidth=1.3, **style))
        name = f"({x}, {y})" if there else f"({x}, {y})\nlands here"
        zoom.text(offset + D / 2, 1.2, name, ha="center", va="bottom", fontsize=8)
    zoom.set(xlim=(low - 1, high + 1), ylim=(-1.1, 2.2), yticks=[])
    zoom.set_xlabel(f"closer: elements; each box is one head of one pixel, D = {D} elements wide", fontsize=9)
    for side in ("left", "top", "right", "bottom"):
        zoom.spines[side].set_visible(False)
    zoom.tick_params(labelsize=8)
    for edge_line, edge_zoom in ((low, 0), (high, 1)):
        figure.add_artist(
            ConnectionPatch((edge_line, 0), (edge_zoom, 0.8), "data", "axes fraction", axesA=line, axesB=zoom,
                            color=GREY, linewidth=0.7, linestyle=":")
        )  # fmt: skip
    told = "; ".join(
        f"({x}, {y}) at {offset}" if there else f"({x}, {y}) is outside, though its offset {offset} is a number"
        for (x, y), offset, there in zip(corners, offsets, inside)
    )
    return (
        Picture(
            figure,
            f"Level {level} of image {b}, {H} by {W} pixels, and below it all of memory as one line of {total} elements. "
            f"Head {m} of the four pixels: {told}.",
        ),
        offsets,
    )


def _strides(layout: str, sizes: dict[str, int]) -> dict[str, int]:
    strides, step = {}, 1
    for axis in reversed(layout):
        strides[axis] = step
        step *= sizes[axis]
    return strides


def corner_distances(layout: str, H: int, W: int, M: int, D: int, itemsize: int) -> tuple[Picture, dict[str, int]]:
    """How far apart in memory the neighbours of a sample lie, and how many 32-byte sectors it touches, layout by layout.

    Args:
        layout: a key of `LAYOUTS`.
        H, W: of a single level, so that S = H*W.
        M, D: heads, channels a head.
        itemsize: bytes of one element.

    Returns:
        The picture, and the distances in bytes under the names "channel", "right", "below" and "head", with the number of
        sectors under "sectors".
    """
    sizes = {"B": 2, "S": H * W, "M": M, "D": D}
    strides = _strides(LAYOUTS[layout], sizes)
    distances = {
        "channel": strides["D"] * itemsize,
        "right": strides["S"] * itemsize,
        "below": strides["S"] * W * itemsize,
        "head": strides["M"] * itemsize,
    }
    touched = {}
    for name, order in LAYOUTS.items():
        s = _strides(order, sizes)
        pixels = [(H // 2 + dy) * W + W // 2 + dx for dx, dy in CORNER_STEPS]
        touched[name] = len({(pixel * s["S"] + d * s["D"]) * itemsize // 32 for pixel in pixels for d in range(D)})

    figure, (left, right) = new_figure(10, 3.6, ncols=2, width_ratios=(1.25, 1))
    names = ["the next channel", "the pixel to the right", "the pixel below", "the same in the next head"]
    colours, hatches = (GREY, BLUE, GREEN, YELLOW), ("", "//", "..", "\\\\")
    bars = left.barh(range(4), distances.values(), color=colours, edgecolor="black", linewidth=0.6, left=0)
    for bar, hatch, distance in zip(bars, hatches, distances.values()):
        bar.set_hatch(hatch)
        box = dict(boxstyle="round,pad=0.15", facecolor="white", edgecolor="none")
        middle = bar.get_y() + bar.get_height() / 2
        left.text(distance * 1.2, middle, f"{distance:,} B", va="center", fontsize=9, bbox=box)
    left.set_xscale("log", base=2)
    left.axvline(32, color=RED, linestyle="--", linewidth=1)
    left.text(34, -0.75, "one sector: 32 B", color=RED, fontsize=8, va="center")
    left.set(
        yticks=range(4), yticklabels=names, xlim=(1, max(distances.values()) * 16), ylim=(3.6, -1.0),
        xlabel="bytes from a channel of a pixel to …",
    )  # fmt: skip
    short = [name.split(":")[0] for name in LAYOUTS]
    bars = right.barh(range(len(short)), touched.values(), color="#dfe5ec", edgecolor="black", linewidth=0.6)
    for bar, name, count in zip(bars, LAYOUTS, touched.values()):
        chosen = name == layout
        if chosen:
            bar.set(facecolor=ORANGE, hatch="//")
        mark = "  ← this one" if chosen else ""
        right.text(count, bar.get_y() + bar.get_height() / 2, f" {count}{mark}", va="center", fontsize=9)
    right.set(
        yticks=range(len(short)), yticklabels=short, xlim=(0, max(touched.values()) * 1.45),
        xlabel="32-byte sectors that one sample touches",
    )  # fmt: skip
    right.invert_yaxis()
    text = ", ".join(f"{n} {d:,} bytes" for n, d in zip(names, distances.values()))
    sectors = ", ".join(f"{n}: {c}" for n, c in zip(short, touched.values()))
    return (
        Picture(
            figure,
            f"In the layout {layout}, distances from one channel of a pixel: {text}. Sectors that one sample touches in each "
            f"layout: {sectors}.",
        ),
        distances | {"sectors": touched[layout]},
    )


def index_in_32_bits(B: int, image: int) -> tuple[Picture, int]:
    """What a 32-bit integer holds when it should hold the index of a batch's last element.

    Args:
        B: the batch size.
        image: elements of one image, S*M*D.

    Returns:
        The picture, and the number that the int32 holds.
    """
    wrap = lambda index: (index + 2**31) % 2**32 - 2**31  # noqa: E731
    index = B * image - 1
    held = wrap(index)
    top = max(1_600, 1.1 * B) * image
    figure, axes = new_figure(9, 3.8)
    axes.axhspan(-(2**31), 0, color=RED, alpha=0.08)
    axes.text(0.01 * top / image, -(2**31) * 0.9, "negative: before the tensor", color=RED, fontsize=9)
    start, first_piece = 0, True
    while start < top:
        end = min((start + 2**31) // 2**32 * 2**32 + 2**31 - 1, int(top))
        axes.plot(
            [start / image, end / image], [wrap(start), wrap(end)], color=BLUE, linewidth=2,
            label="what an int32 holds" if first_piece else None,
        )  # fmt: skip
        start, first_piece = end + 1, False
    reach = min(top, 2**31 * 1.55)
    axes.plot([0, reach / image], [0, reach], color=GREY, linestyle=":", linewidth=1.5, label="the true index")
    axes.axhline(2**31 - 1, color=GREY, linewidth=0.8)
    axes.text(top / image, 2**31 * 1.03, "2³¹ − 1", ha="right", va="bottom", color=GREY, fontsize=9)
    axes.plot([B], [held], "o", color=RED if held != index else GREEN, markersize=10, markeredgecolor="black")
    where = "right" if B > 0.7 * top / image else "left"
    axes.annotate(
        f"B = {B}: {held:,}" + ("" if held == index else "  wrong"), (B, held), xytext=(-12 if where == "right" else 12, 8),
        textcoords="offset points", ha=where, fontsize=10, weight="bold",
        bbox=dict(boxstyle="round,pad=0.2", facecolor="white", edgecolor="none", alpha=0.85),
    )  # fmt: skip
    axes.set(
        xlabel="batch size B",
        ylabel="index of the last element",
        xlim=(0, top / image),
        ylim=(-(2**31) * 1.1, 2**31 * 1.7),
    )
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    verdict = "which is right" if held == index else f"though the true index is {index:,}"
    return (
        Picture(
            figure,
            "A saw: what an int32 holds as the index of the last element grows with the batch. It climbs to 2**31 - 1, falls "
            f"to -2**31 and climbs again. At a batch of {B} it holds {held:,}, {verdict}.",
        ),
        held,
    )


def side_by_side(images: Sequence[Tensor], titles: Sequence[str], description: str) -> Picture:
    """Images beside each other.

    Args:
        images: (H, W, 3) each, values from 0 to 1.
        titles: one an image.
        description: what there is to see.
    """
    figure, axes = new_figure(3.2 * len(images), 3.4, ncols=len(images))
    for image, title, ax in zip(images, titles, axes):
        ax.imshow(image.clamp(0, 1).numpy(), interpolation="nearest")
        ax.set(title=title, xticks=[], yticks=[])
    return Picture(figure, description)

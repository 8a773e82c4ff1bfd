"""Figures about reading between pixels (lab 01)."""

import math
from collections.abc import Sequence

import torch
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from msda_core.figures.picture import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, Picture, new_figure, photograph
from msda_core.reference import bilinear_sample

__all__ = [
    "attention_cost",
    "border_fade",
    "corner_areas",
    "eye_patch",
    "points_over_pyramid",
    "pyramid",
    "ring",
]

CORNER_COLOURS = (BLUE, ORANGE, GREEN, PURPLE)
CORNER_HATCHES = ("//", "\\\\", "..", "xx")
DOT = 1400  # square points of a dot whose weight is 1


def eye_patch(size: int = 6) -> Tensor:
    """A small square patch of the photograph, around an eye: (size, size, 3)."""
    crop = photograph()[150:246, 190:286].permute(2, 0, 1)
    return adaptive_avg_pool2d(crop, size).permute(1, 2, 0)


def corner_areas(image: Tensor, x: float, y: float) -> Picture:
    """A point in a patch, the cell between its four pixels, enlarged, and each pixel's weight as the rectangle opposite to it.

    Args:
        image: (H, W, 3), values from 0 to 1.
        x, y: pixel coordinates.
    """
    H, W, _ = image.shape
    figure, (left, cell, right) = new_figure(10.5, 3.9, ncols=3, width_ratios=(0.8, 1.35, 0.95))
    x0, y0 = int(torch.tensor(x).floor()), int(torch.tensor(y).floor())
    fx, fy = x - x0, y - y0
    corners = ((x0, y0), (x0 + 1, y0), (x0, y0 + 1), (x0 + 1, y0 + 1))
    weights = ((1 - fx) * (1 - fy), fx * (1 - fy), (1 - fx) * fy, fx * fy)
    inside = [0 <= i < W and 0 <= j < H for i, j in corners]

    left.imshow(image.numpy(), extent=(-0.5, W - 0.5, H - 0.5, -0.5), interpolation="nearest")
    left.add_patch(Rectangle((x0, y0), 1, 1, facecolor="none", edgecolor="black", linewidth=3.5))
    left.add_patch(Rectangle((x0, y0), 1, 1, facecolor="none", edgecolor="white", linewidth=1.5))
    left.plot(x, y, "+", color="white", markersize=13, markeredgewidth=4)
    left.plot(x, y, "+", color="black", markersize=11, markeredgewidth=1.5)
    left.set(xlim=(-1.6, W + 1.6), ylim=(H + 1.6, -1.6), xlabel="x", ylabel="y", title=f"the point ({x:.2f}, {y:.2f})")

    # The rectangle between the point and the opposite corner has exactly the corner's weight as its area.
    areas = ((x, y, 1 - fx, 1 - fy), (x0, y, fx, 1 - fy), (x, y0, 1 - fx, fy), (x0, y0, fx, fy))
    white = dict(boxstyle="round,pad=0.15", facecolor="white", edgecolor="none")
    for (ax, ay, wide, high), colour, hatch, weight, name in zip(
        areas, CORNER_COLOURS, CORNER_HATCHES, weights, "abcd"
    ):
        cell.add_patch(Rectangle((ax, ay), wide, high, facecolor=colour, alpha=0.75, hatch=hatch, edgecolor="white"))
        if wide > 0.16 and high > 0.1:
            text = f"{name} {weight:.2f}" if wide > 0.26 else name
            cell.text(ax + wide / 2, ay + high / 2, text, ha="center", va="center", fontsize=10, bbox=white)
    for (i, j), colour, there, name in zip(corners, CORNER_COLOURS, inside, "abcd"):
        face = image[j, i].tolist() if there else "white"
        at = (i - 0.27 if i == x0 else i, j - 0.27 if j == y0 else j)  # outside the cell, which it would hide
        cell.add_patch(
            Rectangle(at, 0.27, 0.27, facecolor=face, edgecolor=colour, linewidth=3, hatch="" if there else "xx")
        )
        cell.text(
            i - 0.3 if i == x0 else i + 0.3, at[1] + 0.13, f"{name} ({i}, {j})" + ("" if there else "\noutside"),
            ha="right" if i == x0 else "left", va="center", fontsize=9,
        )  # fmt: skip
    cell.plot(x, y, "+", color="white", markersize=18, markeredgewidth=5, zorder=4)
    cell.plot(x, y, "+", color="black", markersize=16, markeredgewidth=2, zorder=5)
    cell.set(xlim=(x0 - 0.85, x0 + 1.85), ylim=(y0 + 1.32, y0 - 0.32), xticks=[], yticks=[], aspect="equal")
    cell.spines[:].set_visible(False)
    cell.set_title("its cell: a's share lies opposite to a")

    names = [
        f"{name}: ({i}, {j})" + ("" if there else "\nis zero") for name, (i, j), there in zip("abcd", corners, inside)
    ]
    bars = right.barh(range(4), weights, color=CORNER_COLOURS, edgecolor="white")
    for bar, hatch, weight in zip(bars, CORNER_HATCHES, weights):
        bar.set_hatch(hatch)
        right.text(weight + 0.02, bar.get_y() + bar.get_height() / 2, f"{weight:.3f}", va="center")
    sample = bilinear_sample(image, x, y)
    right.set(yticks=range(4), yticklabels=names, xlim=(0, 1.25), ylim=(4.4, -0.6), xticks=[0, 0.5, 1])
    right.set_title("weights = areas; sum: 1")
    right.add_patch(Rectangle((0.75, 3.65), 0.4, 0.62, facecolor=sample.clamp(0, 1).tolist(), edgecolor="black"))
    right.text(0.7, 3.96, "the sample", ha="right", va="center")
    text = ", ".join(f"pixel ({i}, {j}){'' if there else ' (outside, zero)'} {weight:.3f}"
                     for (i, j), there, weight in zip(corners, inside, weights))  # fmt: skip
    return Picture(
        figure,
        f"The point ({x:.2f}, {y:.2f}) over a patch of {W} by {H} pixels, and the square between the centres of its four "
        f"pixels, cut by the point into four rectangles. Weights: {text}.",
    )


def border_fade(row: Sequence[float], x: float) -> Picture:
    """The sample along one row of pixels as a function of x, fading to zero half a pixel past each end, and one point on it.

    Args:
        row: the values of the row's pixels.
        x: where the marker stands, in pixels.
    """
    image = torch.tensor(row, dtype=torch.float64)[None, :, None]
    W = image.shape[1]
    xs = torch.linspace(-2, W + 1, 400, dtype=torch.float64)
    curve = [bilinear_sample(image, t.item(), 0.0).item() for t in xs]
    here = bilinear_sample(image, x, 0.0).item()
    figure, axes = new_figure(7.5, 3.2)
    axes.bar(range(W), row, width=1.0, color="#dfe5ec", edgecolor=GREY, label="pixels")
    axes.plot(xs, curve, color=BLUE, linewidth=2, label="the sample at x")
    axes.plot([x], [here], "o", color=RED, markersize=9, clip_on=False, label=f"x = {x:.2f}: {here:.3f}")
    axes.axvspan(-2, -0.5, color=GREY, alpha=0.12)
    axes.axvspan(W - 0.5, W + 1, color=GREY, alpha=0.12)
    axes.text(-1.9, max(row) * 1.04, "outside", color=GREY)
    axes.text(W + 0.95, max(row) * 1.04, "outside", color=GREY, ha="right")
    axes.set(xlabel="x in pixels", ylabel="value", xlim=(-2, W + 1), ylim=(0, max(row) * 1.15))
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    return Picture(
        figure, f"One row of {W} pixels and the sample along it: a broken line that is zero from one pixel outside on. "
        f"At x = {x:.2f} it is {here:.3f}.",
    )  # fmt: skip


def pyramid(levels: int = 4, width: int = 64) -> list[Tensor]:
    """The photograph at several sizes, each half as wide as the one before: (H, W, 3) each."""
    photo = photograph().permute(2, 0, 1)
    height = round(width * photo.shape[1] / photo.shape[2])
    sizes = [(max(1, height >> l), max(1, width >> l)) for l in range(levels)]
    return [adaptive_avg_pool2d(photo, size).permute(1, 2, 0) for size in sizes]


def points_over_pyramid(
    images: Sequence[Tensor], reference: tuple[float, float], locations: Tensor, weights: Tensor
) -> Picture:
    """One query's points over every level of a pyramid.

    Args:
        images: L images (H, W, 3).
        reference: the query's own (x, y), from 0 to 1.
        locations: (L, K, 2), (x, y) from 0 to 1.
        weights: (L, K), the attention weights; drawn as the area of a dot.
    """
    figure, axes = new_figure(10, 3.6, ncols=len(images))
    for level, (image, ax) in enumerate(zip(images, axes)):
        H, W, _ = image.shape
        ax.imshow(image.numpy(), interpolation="nearest")
        x, y = locations[level, :, 0] * W - 0.5, locations[level, :, 1] * H - 0.5
        ax.scatter(x, y, s=DOT * weights[level], facecolor=ORANGE, edgecolor="black", alpha=0.85, linewidth=1)
        ax.plot(reference[0] * W - 0.5, reference[1] * H - 0.5, "+", color="white", markersize=15, markeredgewidth=3)
        ax.plot(reference[0] * W - 0.5, reference[1] * H - 0.5, "+", color=RED, markersize=13, markeredgewidth=1.8)
        ax.set(title=f"level {level}: {H} × {W}", xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
    L, K = weights.shape
    least, most = weights.min().item(), weights.max().item()
    sizes = [
        Line2D([], [], marker="o", linestyle="none", color=ORANGE, markeredgecolor="black", markersize=(DOT * w) ** 0.5,
               label=f"weight {w:.2f}")
        for w in (most, (least + most) / 2, least)
    ]  # fmt: skip
    cross = Line2D([], [], marker="+", linestyle="none", color=RED, markersize=12, markeredgewidth=1.8)
    cross.set_label("the query's own place")
    figure.legend(handles=[cross, *sizes], loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return Picture(
        figure,
        f"One query at ({reference[0]:.2f}, {reference[1]:.2f}) and its {K} points on each of {L} levels of a photograph. "
        f"The same distance in pixels reaches further on a coarser level. A dot's area is its weight, {least:.2f} to {most:.2f}.",
    )


def ring(heads: int, points: int) -> Picture:
    """Where a new layer's points are, in pixels from the query's own place."""
    figure, ax = new_figure(5.2, 4.6)
    colours = (BLUE, ORANGE, GREEN, PURPLE, GREY)
    for head in range(heads):
        angle = 2 * math.pi * head / heads
        x, y = math.cos(angle), math.sin(angle)
        scale = max(abs(x), abs(y))
        steps = range(1, points + 1)
        xs, ys = [x / scale * k for k in steps], [y / scale * k for k in steps]
        ax.plot([0, *xs], [0, *ys], color=colours[head % 5], lw=1, marker="o", markersize=6, markevery=list(steps))
        ax.annotate(str(head), (xs[-1], ys[-1]), xytext=(6, 3), textcoords="offset points")
    ax.plot(0, 0, "+", color="black", markersize=14)
    reach = points + 1
    ax.set(xlim=(-reach, reach), ylim=(reach, -reach), xlabel="x (pixels)", ylabel="y (pixels)", aspect="equal")
    ax.set_title("a new layer: head m looks in direction 2πm / M", fontsize=10)
    return Picture(
        figure,
        f"{heads} heads with {points} points each around the query's place. Head 0 looks to the right; the heads' directions "
        f"divide the circle evenly, and the farthest points lie on a square {points} pixels from the centre.",
    )


def attention_cost(width: int, levels: int, points: int) -> tuple[Picture, int, int]:
    """How many pixel reads one head needs for a whole image: every pixel by every pixel, or K points a level.

    Args:
        width: of the finest level, in pixels; the image is square.
        levels, points: L and K.

    Returns:
        The picture, the reads of dense attention, and those of deformable attention (four pixels a point).
    """
    widths = torch.arange(8, 257, 8)
    pixels = lambda w: sum(max(1, int(w) >> l) ** 2 for l in range(levels))  # noqa: E731
    dense = [pixels(w) ** 2 for w in widths]
    sparse = [pixels(w) * levels * points * 4 for w in widths]
    S = pixels(width)
    figure, axes = new_figure(7.5, 3.4)
    axes.loglog(widths, dense, color=RED, linewidth=2, linestyle="--")
    axes.loglog(widths, sparse, color=BLUE, linewidth=2)
    axes.text(widths[-1], dense[-1], "dense ", color=RED, ha="right", va="bottom")
    axes.text(widths[-1], sparse[-1] * 0.12, "deformable ", color=BLUE, ha="right", va="top")
    here = (S * S, S * levels * points * 4)
    axes.plot([width, width], here, color=GREY, linestyle=":")
    axes.plot([width, width], here, "o", color="black")
    axes.set(xlabel="width of the finest level (pixels)", ylabel="pixel reads a head")
    return (
        Picture(
            figure,
            f"Pixel reads against image width, both axes logarithmic. At width {width}: dense {here[0]:,}, deformable {here[1]:,}.",
        ),
        *here,
    )

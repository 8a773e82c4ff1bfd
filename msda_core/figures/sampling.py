"""Figures about reading between pixels (lab 01)."""

from collections.abc import Sequence

import torch
from matplotlib.patches import Rectangle
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from msda_core.figures.picture import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, Picture, new_figure, photograph
from msda_core.reference import bilinear_sample

__all__ = ["attention_cost", "border_fade", "corner_areas", "eye_patch", "points_over_pyramid", "pyramid"]

CORNER_COLOURS = (BLUE, ORANGE, GREEN, PURPLE)
CORNER_HATCHES = ("//", "\\\\", "..", "xx")


def eye_patch(size: int = 6) -> Tensor:
    """A small square patch of the photograph, around an eye: (size, size, 3)."""
    crop = photograph()[150:246, 190:286].permute(2, 0, 1)
    return adaptive_avg_pool2d(crop, size).permute(1, 2, 0)


def corner_areas(image: Tensor, x: float, y: float) -> Picture:
    """A point in a patch, its four pixels, and each pixel's weight drawn as the rectangle opposite to it.

    Args:
        image: (H, W, 3), values from 0 to 1.
        x, y: pixel coordinates.
    """
    H, W, _ = image.shape
    figure, (left, right) = new_figure(9, 4.2, ncols=2, width_ratios=(1.25, 1))
    left.imshow(image.numpy(), extent=(-0.5, W - 0.5, H - 0.5, -0.5), interpolation="nearest")
    x0, y0 = int(torch.tensor(x).floor()), int(torch.tensor(y).floor())
    fx, fy = x - x0, y - y0
    corners = ((x0, y0), (x0 + 1, y0), (x0, y0 + 1), (x0 + 1, y0 + 1))
    weights = ((1 - fx) * (1 - fy), fx * (1 - fy), (1 - fx) * fy, fx * fy)
    # The rectangle between the point and the opposite corner has exactly the corner's weight as its area.
    areas = ((x, y, 1 - fx, 1 - fy), (x0, y, fx, 1 - fy), (x, y0, 1 - fx, fy), (x0, y0, fx, fy))
    for (i, j), colour, hatch, area in zip(corners, CORNER_COLOURS, CORNER_HATCHES, areas):
        left.add_patch(
            Rectangle(area[:2], area[2], area[3], facecolor=colour, alpha=0.45, hatch=hatch, edgecolor="white")
        )
        left.plot(i, j, "o", color=colour, markersize=11, markeredgecolor="white", markeredgewidth=1.5)
    left.plot(x, y, "+", color="white", markersize=16, markeredgewidth=3)
    left.plot(x, y, "+", color="black", markersize=14, markeredgewidth=1.5)
    left.set(
        xlim=(-1.6, W + 1.6),
        ylim=(H + 1.6, -1.6),
        xlabel="x (column)",
        ylabel="y (row)",
        title=f"the point ({x:.2f}, {y:.2f})",
    )
    names = [f"pixel ({i}, {j})" + ("" if 0 <= i < W and 0 <= j < H else "\noutside: zero") for i, j in corners]
    bars = right.barh(range(4), weights, color=CORNER_COLOURS, edgecolor="white")
    for bar, hatch, weight in zip(bars, CORNER_HATCHES, weights):
        bar.set_hatch(hatch)
        right.text(weight + 0.02, bar.get_y() + bar.get_height() / 2, f"{weight:.3f}", va="center")
    sample = bilinear_sample(image, x, y)
    right.set(yticks=range(4), yticklabels=names, xlim=(0, 1.2), title="weights = areas; they sum to 1")
    right.invert_yaxis()
    right.add_patch(
        Rectangle(
            (0.78, 0.02), 0.2, 0.16, transform=right.transAxes, facecolor=sample.clamp(0, 1).tolist(), edgecolor="black"
        )
    )
    right.text(0.76, 0.1, "the sample", transform=right.transAxes, ha="right", va="center")
    text = ", ".join(f"{name.splitlines()[0]} {weight:.3f}" for name, weight in zip(names, weights))
    return Picture(figure, f"The point ({x:.2f}, {y:.2f}) over a patch of {W} by {H} pixels. Weights: {text}.")


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
        weights: (L, K), the attention weights; drawn as the size of a dot.
    """
    figure, axes = new_figure(10, 3.6, ncols=len(images))
    for level, (image, ax) in enumerate(zip(images, axes)):
        H, W, _ = image.shape
        ax.imshow(image.numpy(), interpolation="nearest")
        x, y = locations[level, :, 0] * W - 0.5, locations[level, :, 1] * H - 0.5
        ax.scatter(x, y, s=40 + 900 * weights[level], facecolor=ORANGE, edgecolor="black", alpha=0.85, linewidth=1)
        ax.plot(reference[0] * W - 0.5, reference[1] * H - 0.5, "+", color="white", markersize=15, markeredgewidth=3)
        ax.plot(reference[0] * W - 0.5, reference[1] * H - 0.5, "+", color=RED, markersize=13, markeredgewidth=1.8)
        ax.set(title=f"level {level}: {H} × {W}", xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
    figure.supxlabel("cross: the query's own place; dots: the points it reads, larger where the weight is", fontsize=9)
    L, K = weights.shape
    return Picture(
        figure,
        f"One query at ({reference[0]:.2f}, {reference[1]:.2f}) and its {K} points on each of {L} levels of a photograph. "
        "The same distance in pixels reaches further on a coarser level. Larger dots weigh more.",
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

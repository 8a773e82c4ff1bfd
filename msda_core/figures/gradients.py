"""Figures about gradients (lab 07)."""

from collections.abc import Mapping, Sequence
from math import floor, isfinite

import torch
from matplotlib.patches import Rectangle
from torch import Tensor

from msda_core.differences import central_error
from msda_core.figures.picture import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, Picture, new_figure
from msda_core.reference import bilinear_sample, msda

__all__ = [
    "FUNCTIONS",
    "error_over_eps",
    "gradient_scatter",
    "shared_pixels",
    "slope_and_kinks",
    "sweep",
    "weight_slopes",
]

#: The patch that most figures of lab 07 read: 3 rows of 6 pixels.
PATCH = torch.tensor(
    [[0.1, 0.9, 0.3, 0.8, 0.2, 0.6], [0.3, 0.7, 0.1, 1.0, 0.4, 0.9], [0.9, 0.2, 0.6, 0.3, 0.8, 0.1]],
    dtype=torch.float64,
)


def _read(image: Tensor, x: float, y: float) -> float:
    return bilinear_sample(image[..., None], x, y).item()


def _slope(image: Tensor, x: float, y: float) -> float:
    """The slope along x in the cell between floor(x) and floor(x) + 1."""
    return _read(image, floor(x) + 1, y) - _read(image, floor(x), y)


def slope_and_kinks(x: float, y: float, eps: float, image: Tensor = PATCH) -> Picture:
    """The sample along a row as a function of x, with its slope below; a point, its tangent, and a central difference.

    Args:
        x, y: the point, in pixels.
        eps: the step of the central difference, in pixels.
        image: (H, W).
    """
    W = image.shape[1]
    kinks = range(-1, W + 1)
    left, right = -3.0, W + 2.0  # a slider's end and the longest step
    corners = [left, *kinks, right]
    here, slope = _read(image, x, y), _slope(image, x, y)
    ahead, behind = _read(image, x + eps, y), _read(image, x - eps, y)
    quotient = (ahead - behind) / (2 * eps)
    crossed = [k for k in kinks if x - eps < k < x + eps]
    figure, (top, bottom) = new_figure(8.5, 5, nrows=2, sharex=True, height_ratios=(1.5, 1))
    top.plot(corners, [_read(image, c, y) for c in corners], color=BLUE, linewidth=2, label="the sample")
    top.plot(kinks, [_read(image, k, y) for k in kinks], "D", color=BLUE, markersize=5, label="kinks: whole numbers")
    reach = 0.8
    top.plot([x - reach, x + reach], [here - reach * slope, here + reach * slope], color=RED, linestyle="--",
             label=f"the derivative: {slope:+.3f}")  # fmt: skip
    top.plot([x - eps, x + eps], [behind, ahead], "s-", color=GREEN, markersize=6, linewidth=1.5,
             label=f"central difference: {quotient:+.3f}")  # fmt: skip
    top.plot([x], [here], "o", color=RED, markersize=9)
    top.set(ylabel="sample", ylim=(-0.15, 1.15))
    for a, b in zip(corners, corners[1:]):
        bottom.plot([a, b], [_slope(image, (a + b) / 2, y)] * 2, color=BLUE, linewidth=2)
        bottom.plot([a], [_slope(image, (a + b) / 2, y)], "o", color=BLUE, markersize=4)
    bottom.plot([x], [slope], "o", color=RED, markersize=9)
    bottom.plot([x], [quotient], "s", color=GREEN, markersize=8, markerfacecolor="none", markeredgewidth=2)
    bottom.axhline(0, color=GREY, linewidth=0.8)
    bottom.set(
        xlabel="x in pixels", ylabel="slope per pixel", xlim=(left, right), ylim=(-1.2, 1.2), xticks=range(-2, W + 2)
    )
    for axes in (top, bottom):
        axes.axvspan(x - eps, x + eps, color=GREEN, alpha=0.12)
        for kink in kinks:
            axes.axvline(kink, color=GREY, linewidth=0.6, linestyle=":")
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    over = f"The difference steps over the kinks at {crossed}" if crossed else "The difference stays within one cell"
    return Picture(
        figure,
        f"The sample along the row y = {y:.2f} of {W} pixels, straight between whole numbers, with a kink at each of them, "
        f"and below it its slope, in steps. At x = {x:.3f} the derivative is {slope:.3f} and the central difference with "
        f"eps = {eps:.3g} is {quotient:.3f}. {over}.",
    )


def weight_slopes(x: float, y: float, axis: str) -> Picture:
    """A point in its cell, and how fast each of the four weights changes as it moves along an axis.

    Args:
        x, y: where in the cell, from 0 to 1.
        axis: "x" or "y".
    """
    names = ("(x0, y0)", "(x0+1, y0)", "(x0, y0+1)", "(x0+1, y0+1)")
    places = ((0, 0), (1, 0), (0, 1), (1, 1))
    weights = [(x if i else 1 - x) * (y if j else 1 - y) for i, j in places]
    slopes = [
        (1 if i else -1) * (y if j else 1 - y) if axis == "x" else (1 if j else -1) * (x if i else 1 - x)
        for i, j in places
    ]
    figure, (left, right) = new_figure(9, 3.7, ncols=2, width_ratios=(1, 1.3))
    left.add_patch(Rectangle((0, 0), 1, 1, facecolor="#eef1f5", edgecolor=GREY))
    slopes = [slope + 0.0 for slope in slopes]  # no minus zero
    shades = [ORANGE if slope > 0 else BLUE if slope < 0 else GREY for slope in slopes]
    for (i, j), weight, slope, shade in zip(places, weights, slopes, shades):
        left.plot(i, j, "s", color=shade, markersize=8 + 30 * weight, alpha=0.85)
        word = "gains" if slope > 0 else "loses" if slope < 0 else "keeps"
        left.text(i, j + (0.32 if j else -0.32), word, ha="center", va="center")
    dx, dy = (0.22, 0) if axis == "x" else (0, 0.22)
    left.annotate("", (x + dx, y + dy), (x, y), arrowprops={"arrowstyle": "->", "linewidth": 2})
    left.plot(x, y, "+", color="black", markersize=14, markeredgewidth=2)
    left.set(xlim=(-0.5, 1.5), ylim=(1.5, -0.5), xticks=[0, 1], yticks=[0, 1], xticklabels=["x0", "x0+1"],
             yticklabels=["y0", "y0+1"], title="squares: the weights", aspect="equal")  # fmt: skip
    bars = right.barh(range(4), slopes, color=shades, edgecolor="white")
    for bar, slope in zip(bars, slopes):
        bar.set_hatch("//" if slope > 0 else "..")
        right.text(slope + (0.04 if slope >= 0 else -0.04), bar.get_y() + 0.4, f"{slope:+.2f}" if slope else "0",
                   va="center", ha="left" if slope >= 0 else "right")  # fmt: skip
    right.axvline(0, color="black", linewidth=0.8)
    right.set(
        yticks=range(4), yticklabels=names, xlim=(-1.4, 1.4), title=f"slope of each weight along {axis}; they sum to 0"
    )
    right.invert_yaxis()
    told = ", ".join(f"{name} {slope:+.2f}" if slope else f"{name} not at all" for name, slope in zip(names, slopes))
    return Picture(
        figure, f"The point ({x:.2f}, {y:.2f}) of a cell. As it moves along {axis}, the weights change by: {told}."
    )


def _broken(distance: float):
    """A sample between the pixels 3, 4 and 5 of a row, with its slope, and where to look: `distance` before the kink at 4."""
    return (
        lambda x: torch.where(x < 4, 0.3 + 0.5 * (x - 3), 0.8 - 0.4 * (x - 4)),
        lambda x: torch.where(x < 4, 0.5, -0.4).to(x),
        (4 - 1.02 * distance, 4 - 0.98 * distance),
    )


#: What the error curves can be drawn for: name → (function, slope, points), given the distance to the nearest kink.
FUNCTIONS = {
    "exp(x), a smooth function": lambda distance: (torch.exp, torch.exp, (-0.5, 0.5)),
    "a sample, as a function of x": _broken,
}
DTYPES = {"float64": torch.float64, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def sweep(name: str, dtype: str, distance: float = 0.25) -> tuple[list[float], list[float]]:
    """The error of central differences over a range of steps.

    Args:
        name: a key of `FUNCTIONS`.
        dtype: a key of `DTYPES`, what the differences are computed in.
        distance: pixels to the nearest kink, where the function has one.

    Returns:
        The steps, six a decade, and the error at each, relative to the slope.
    """
    function, slope, (low, high) = FUNCTIONS[name](distance)
    points = torch.linspace(low, high, 101, dtype=torch.float64).to(DTYPES[dtype])
    steps = [10 ** (-n / 6) for n in range(0, 73)]
    return steps, [central_error(function, slope, points, eps) for eps in steps]


STYLES = (("-", BLUE), ("--", RED), ("-.", GREEN), (":", PURPLE))


def error_over_eps(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]], marks: Mapping[str, float], what: str = ""
) -> Picture:
    """The error of central differences over the step, both logarithmic.

    Args:
        curves: dtype → (steps, errors).
        marks: dtype → a chosen step, drawn as a dot on its curve; may be empty.
        what: of which function, for the title.
    """
    figure, axes = new_figure(8, 4)
    told = []
    for (name, (steps, errors)), (style, colour) in zip(curves.items(), STYLES):
        drawn = [(s, max(e, 1e-17)) for s, e in zip(steps, errors) if isfinite(e)]
        axes.loglog(*zip(*drawn), linestyle=style, color=colour, linewidth=2, label=name)
        best_error, best = min((e, s) for s, e in zip(steps, errors))
        told.append(f"{name}: smallest error {best_error:.1g} at eps = {best:.1g}")
        if name in marks:
            nearest = min(drawn, key=lambda point: abs(torch.tensor(point[0] / marks[name]).log().item()))
            axes.plot(marks[name], nearest[1], "o", color=colour, markersize=10, markeredgecolor="black")
            told[-1] += f", at the chosen {marks[name]:.1g} about {nearest[1]:.1g}"
    axes.set(
        xlabel="eps", ylabel="relative error of the slope", title=what, xscale="log", yscale="log", ylim=(1e-17, 100)
    )
    axes.axhline(1, color=GREY, linewidth=0.8, linestyle=":")
    axes.text(axes.get_xlim()[0] * 2, 5, "at the dotted line, all of it is error", color="#4a5560")
    if curves:
        axes.legend(frameon=False, loc="lower left", title="● the chosen step" if marks else None)
    return Picture(
        figure, f"Error of central differences over the step, both axes logarithmic. {what}. {'; '.join(told)}."
    )


def shared_pixels(first: tuple[float, float], second: tuple[float, float], shape: tuple[int, int] = (4, 6)) -> Picture:
    """What two points write to the pixels' gradient, added up, and with the last one winning.

    Args:
        first, second: (x, y) in pixels; each point brings an attention weight and a g of 1.
        shape: (H, W) of the level.
    """
    H, W = shape
    added, overwritten = torch.zeros(H, W), torch.zeros(H, W)
    for x, y in (first, second):
        for j in (floor(y), floor(y) + 1):
            for i in (floor(x), floor(x) + 1):
                if 0 <= i < W and 0 <= j < H:
                    amount = (1 - abs(x - i)) * (1 - abs(y - j))
                    added[j, i] += amount
                    overwritten[j, i] = amount
    lost = (added - overwritten).abs() > 1e-6
    figure, panels = new_figure(10, 3.4, ncols=2)
    for axes, grid, title in zip(panels, (added, overwritten), ("added up", "the last one wins")):
        axes.imshow(grid.numpy(), cmap="Greys", vmin=0, vmax=2)
        for j in range(H):
            for i in range(W):
                if added[j, i] > 0:
                    text = f"{grid[j, i]:.2f}" + ("\nlost" if lost[j, i] and grid is overwritten else "")
                    shade = "white" if grid[j, i] > 1 else "black"
                    axes.text(i - 0.44, j - 0.42, text, ha="left", va="top", color=shade, fontsize=8.5, zorder=4)
                if lost[j, i]:
                    axes.add_patch(Rectangle((i - 0.5, j - 0.5), 1, 1, fill=False, edgecolor=RED, linewidth=2))
        axes.add_patch(Rectangle((-0.5, -0.5), W, H, fill=False, edgecolor=GREY, linewidth=1))
        for (x, y), colour, marker in ((first, BLUE, "o"), (second, ORANGE, "^")):
            axes.plot(x, y, marker, color=colour, markersize=11, markeredgecolor="white", markeredgewidth=1.5)
        axes.set(
            title=f"{title}: sum {grid.sum():.2f}",
            xlim=(-1.5, W + 0.5),
            ylim=(H + 0.5, -1.5),
            xticks=range(W),
            yticks=range(H),
        )
    return Picture(
        figure,
        f"Gradient of {W} by {H} pixels after two points, a disc at ({first[0]:.2f}, {first[1]:.2f}) and a triangle at "
        f"({second[0]:.2f}, {second[1]:.2f}), wrote to four pixels each. They share {int(lost.sum())} pixels, framed. Added "
        f"up the sum is {added.sum():.2f}; with the last one winning it is {overwritten.sum():.2f}.",
    )


def gradient_scatter(analytic: Tensor, numeric: Tensor, near: Tensor, title: str = "") -> Picture:
    """A gradient written by hand against the one found by trying, element by element.

    Args:
        analytic, numeric: the same shape.
        near: bool, the same shape: elements whose difference may step over a kink.
        title: what they are gradients of.
    """
    analytic, numeric, near = analytic.double().flatten(), numeric.double().flatten(), near.flatten()
    scale = analytic.abs().max().clamp_min(1e-30)
    error = ((numeric - analytic).abs() / scale).clamp_min(1e-17)
    figure, (left, right) = new_figure(9.5, 4, ncols=2)
    low = min(analytic.min(), numeric.min()).item()
    high = max(analytic.max(), numeric.max()).item()
    left.plot([low, high], [low, high], color=GREY, linewidth=0.8)
    right.set(yscale="log", ylim=(2e-18, 10), xlabel="element (at the bottom: no difference at all)",
              ylabel="difference, relative to the largest")  # fmt: skip
    groups = ((~near, BLUE, "o", "clear of kinks"), (near, RED, "x", "near a kink"))
    told = []
    for pick, colour, marker, label in groups:
        if pick.any():
            left.plot(analytic[pick], numeric[pick], marker, color=colour, markersize=6, alpha=0.8, label=label)
            right.plot(pick.nonzero().flatten(), error[pick], marker, color=colour, markersize=6, alpha=0.8)
            told.append(f"{int(pick.sum())} {label}, largest difference {error[pick].max():.1g}")
    left.set(xlabel="by hand", ylabel="central difference", title=title)
    left.legend(frameon=False)
    return Picture(figure, f"{title}: gradients by hand against central differences. {'; '.join(told)}.")


def sides(kink: int, y: float, image: Tensor = PATCH) -> tuple[float, float]:
    """The slopes along x to the left and to the right of a whole number."""
    return _slope(image, kink - 1, y), _slope(image, kink, y)


def bench(hand, numeric, near, *, what: str, dtype: torch.dtype, eps: float, on_centres: bool) -> tuple[Picture, str]:
    """A gradient written by hand against central differences, on a call with two levels.

    Args:
        hand: (value, spatial_shapes, sampling_locations, attention_weights, grad_out) → the gradient of `what`.
        numeric: (fn, x, eps) → gradient.
        near: (locations, shapes, tol in pixels) → bool (B, Q, M, L, K).
        what: "value", "sampling_locations" or "attention_weights".
        dtype: of everything.
        eps: the step, in units of `what`.
        on_centres: whether every fourth point lies on a pixel's centre.

    Returns:
        The picture, and a sentence about the largest difference.
    """
    dice = torch.Generator().manual_seed(7)
    shapes = torch.tensor([(4, 8), (2, 4)])
    B, Q, M, D, L, K = 1, 3, 1, 2, 2, 4
    value = torch.randn(B, 40, M, D, generator=dice, dtype=torch.float64)
    sizes = shapes.flip(-1)[:, None, :]
    # Coordinates inside the image, a tenth of a pixel or more from a whole number.
    cells = (torch.rand(B, Q, M, L, K, 2, generator=dice, dtype=torch.float64) * (sizes - 1)).floor()
    at = cells + 0.1 + 0.8 * torch.rand(cells.shape, generator=dice, dtype=torch.float64)
    if on_centres:
        at[..., 0, :] = cells[..., 0, :]
    inputs = {
        "value": value,
        "sampling_locations": (at + 0.5) / sizes,
        "attention_weights": torch.rand(B, Q, M, L, K, generator=dice, dtype=torch.float64),
    }
    grad_out = torch.randn(B, Q, M * D, generator=dice, dtype=torch.float64).to(dtype)
    inputs = {name: tensor.to(dtype) for name, tensor in inputs.items()}

    def loss(x: Tensor) -> Tensor:
        call = {**inputs, what: x}
        return (
            msda(call["value"], shapes, None, call["sampling_locations"], call["attention_weights"]) * grad_out
        ).sum()

    by_hand = hand(inputs["value"], shapes, inputs["sampling_locations"], inputs["attention_weights"], grad_out)
    found = numeric(loss, inputs[what], eps)
    close = torch.zeros_like(found, dtype=torch.bool)
    if what == "sampling_locations":
        for level, (h, w) in enumerate(shapes.tolist()):
            mine = near(inputs[what][:, :, :, level : level + 1], shapes[level : level + 1], eps * max(h, w))
            close[:, :, :, level] = mine[:, :, :, 0, :, None]
    picture = gradient_scatter(by_hand, found, close, f"{what}, eps = {eps:.1g}")
    error = (found - by_hand).abs().double() / by_hand.abs().max()
    clear = error[~close].max().item() if (~close).any() else None
    said = (
        "Every point is near a kink."
        if clear is None
        else f"Clear of kinks, the two differ by at most {clear:.1g} of the largest gradient."
    )
    if close.any():
        said += f" Near one, by up to {error[close].max().item():.1g} of it."
    return picture, said

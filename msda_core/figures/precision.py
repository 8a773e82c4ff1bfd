"""Figures about sixteen bits: sums that stop, listings, and points that move (lab 09)."""

from collections.abc import Mapping, Sequence
from functools import cache

import torch
from matplotlib.colors import LogNorm
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from msda_core.figures.picture import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, Picture, new_figure

__all__ = [
    "evidence",
    "listing",
    "moved_points",
    "one_addition",
    "places",
    "sum_errors",
    "sums_by_collisions",
    "two_sums",
]

MARKS = {"float32": ("o", BLUE), "float16": ("s", GREEN), "bfloat16": ("^", ORANGE)}


@cache
def sum_errors(kind: str, most: int = 4096) -> tuple[list[int], dict[str, list[float]]]:
    """Relative errors of sums that are made one addition after another, each rounded, as atomics at one address are.

    Args:
        kind: "ones", "between 0 and 1", or "of either sign": what is added. The median of 16 draws.
        most: additions.

    Returns:
        The numbers of additions at which the errors were taken, and dtype → errors, relative to the true sum.
    """
    generator = torch.Generator().manual_seed(9)
    draws = 1 if kind == "ones" else 16
    terms = torch.rand(most, draws, generator=generator, dtype=torch.float64)
    terms = torch.ones_like(terms) if kind == "ones" else terms if kind == "between 0 and 1" else 2 * terms - 1
    stops = [2**p for p in range(most.bit_length())]
    errors: dict[str, list[float]] = {}
    for name in MARKS:
        dtype = getattr(torch, name)
        rounded = terms.to(dtype)  # what is added is narrow in any case; only the sum is in question
        truth = rounded.double().cumsum(0)
        total, errors[name] = torch.zeros(draws, dtype=dtype), []
        for n, term in enumerate(rounded, start=1):
            total = total + term
            if n in stops:
                errors[name].append(((total.double() - truth[n - 1]) / truth[n - 1]).abs().median().item())
    return stops, errors


def sums_by_collisions(kind: str, collisions: int) -> tuple[Picture, dict[str, float]]:
    """Error against the number of additions that meet at one number, for each accumulator.

    Returns:
        The picture, and dtype → the error at `collisions` (a power of two).
    """
    stops, errors = sum_errors(kind)
    figure, axes = new_figure(8, 3.8)
    floor = 1e-9
    for name, (marker, colour) in MARKS.items():
        axes.plot(stops, [max(e, floor) for e in errors[name]], marker=marker, color=colour, label=f"summed in {name}")
    axes.axvline(collisions, color=GREY, linestyle="--", linewidth=1)
    axes.set(
        xscale="log", yscale="log", xlabel="additions that meet at one number", ylabel="error, relative to the true sum"
    )
    axes.set_xscale("log", base=2)
    axes.set_ylim(floor / 2, 2)
    axes.set_yticks([floor, 1e-6, 1e-3, 1], ["none", "$10^{-6}$", "$10^{-3}$", "1"])
    axes.legend(frameon=False, fontsize=9, loc="upper left")
    at = {name: values[stops.index(collisions)] for name, values in errors.items()}
    told = "; ".join(f"{name} {value:.1e}" for name, value in at.items())
    return Picture(
        figure,
        f"Error of a sum of numbers ({kind}) against how many are added, for three accumulators. At {collisions} "
        f"additions: {told}.",
    ), at


def one_addition(total: float, share: float, dtype: torch.dtype) -> tuple[Picture, float, float]:
    """A sum, a share, and the number of the dtype in which the addition ends.

    Returns:
        The picture, the sum as the dtype holds it, and the sum after the addition.
    """
    before = torch.tensor(total, dtype=torch.float64).to(dtype).double().item()
    exact = before + share
    after = torch.tensor(exact, dtype=torch.float64).to(dtype).double().item()
    low, high = before - 1.5, before + max(4.5, 1.5 * share)
    there = torch.linspace(low, high, 40_001, dtype=torch.float64).to(dtype).double().unique()
    there = there[(there >= low) & (there <= high)]
    figure, axes = new_figure(9, 1.9)
    few = len(there) <= 60
    if few:
        axes.vlines(there.numpy(), 0.1, 0.45, color=PURPLE, linewidth=1.4)
    else:
        axes.add_patch(Rectangle((low, 0.1), high - low, 0.35, facecolor=PURPLE, alpha=0.5))
    axes.annotate("", (exact, 0.8), (before, 0.8), arrowprops={"arrowstyle": "->", "color": BLUE, "linewidth": 1.8})
    axes.text((before + exact) / 2, 0.95, f"+ {share:g}", ha="center", va="center", color=BLUE, fontsize=10)
    axes.annotate("", (after, 0.48), (exact, 0.78), arrowprops={"arrowstyle": "->", "color": RED, "linewidth": 1.8})
    axes.text(before, 0.66, f"{before:g} ", ha="right", va="center", fontsize=9)
    axes.plot([after], [0.275], "D", color=RED, markersize=8)
    axes.text(after, -0.08, f"{after:g}", ha="center", va="center", color=RED, fontsize=9, weight="bold")
    axes.set(xlim=(low, high), ylim=(-0.2, 1.1), yticks=[], xticks=[])
    axes.spines[["left", "bottom"]].set_visible(False)
    name = str(dtype).removeprefix("torch.")
    axes.set_title(
        f"{name}: lines are the numbers it has" if few else f"{name} has more numbers here than can be drawn",
        loc="left", fontsize=10,
    )  # fmt: skip
    return Picture(figure, f"In {name}, {before:g} plus {share:g} is rounded to {after:g}."), before, after


def listing(
    source: Sequence[str], first: int, marked: Mapping[int, Sequence[str]], title: str, rows: int = 17
) -> Picture:
    """Lines of a kernel, and beside one of them the instructions that came from it.

    Args:
        source: lines of the kernel; first: the number of the first of them.
        marked: line number → its PTX. The first of these lines is shown with its neighbours.
        title: says for which dtype and GPU.
        rows: how many lines of PTX are shown.
    """
    line = min(marked)
    start = max(first, line - 5)
    shown = [(n, source[n - first]) for n in range(start, line + 1)]
    margin = min((len(text) - len(text.lstrip()) for _, text in shown if text.strip()), default=0)
    every = list(marked[line])
    at = next((k for k, text in enumerate(every) if "red." in text or "atom." in text), 0)
    skipped = max(0, at - rows + 5)
    ptx = every[skipped:]
    height = 0.24 * max(len(shown), min(len(ptx), rows) + 1) + 0.9
    figure, axes = new_figure(11, height)
    mono = {"family": "monospace", "fontsize": 7.6, "va": "center"}
    for r, (n, text) in enumerate(shown):
        own = n == line
        if own:
            axes.add_patch(Rectangle((0, r - 0.5), 0.47, 1, facecolor="#fbe9c8", edgecolor=ORANGE))
            axes.plot([0.47, 0.52], [r, 0], color=ORANGE, linewidth=1.5)
        cut = text[margin:].rstrip()
        cut = cut if len(cut) <= 76 else f"{cut[:75]}…"
        axes.text(0.005, r, f"{'▶' if own else ' '}{cut}", **mono)
    for r, text in enumerate(ptx[:rows]):
        what = any(word in text for word in ("red.", "atom."))
        cut = " ".join(text.split())
        cut = cut if len(cut) <= 74 else cut[:73] + "…"
        axes.text(0.525, r, cut, weight="bold" if what else "normal", color=RED if what else "black", **mono)
    left = max(0, len(ptx) - rows)
    elsewhere = [f"{n} {where}" for n, where in ((skipped, "before"), (left, "after")) if n]
    if elsewhere:
        told = f"from the same line, not shown: {' and '.join(elsewhere)}"
        axes.text(0.525, min(len(ptx), rows), told, color=GREY, **mono)
    axes.set(xlim=(0, 1), ylim=(max(len(shown), min(len(ptx), rows + 1)), -0.8))
    axes.axis("off")
    axes.set_title(title, loc="left", fontsize=10)
    atomics = [text for text in every if "red." in text or "atom." in text]
    return Picture(
        figure,
        f"{title}. The source line `{source[line - first].strip()}` became {len(every)} instructions, of which {len(atomics)} "
        f"are atomics; the first: {atomics[0] if atomics else 'none'}.",
    )


def evidence(rows: Mapping[str, Sequence[tuple[list[int], list[int], list[int]]]], columns: Sequence[str]) -> Picture:
    """What each listing was classified as: a table of dtypes and GPUs.

    Args:
        rows: dtype → for each column (reductions, returning, loops), each a list of bytes.
        columns: names of the GPUs.
    """
    figure, axes = new_figure(10, 0.9 + 0.62 * len(rows))
    told = []
    for r, (name, cells) in enumerate(rows.items()):
        axes.text(-0.08, r + 0.47, name, ha="right", va="center", fontsize=10)
        for c, kinds in enumerate(cells):
            parts = [
                f"{len(sizes)} {word if len(sizes) == 1 else word + 's'} of {_span(sizes)} B"
                for word, sizes in zip(("reduction", "returning atomic", "loop"), kinds)
                if sizes
            ]
            text = "\n".join(parts) or "none"
            look = ("#fbe3d6", RED) if kinds[2] else ("#fff3d6", ORANGE) if kinds[1] else ("#e3f2ec", GREEN)
            axes.add_patch(Rectangle((c, r), 0.95, 0.9, facecolor=look[0], edgecolor=look[1], linewidth=1.2))
            axes.text(c + 0.475, r + 0.45, f"{'↻ ' if kinds[2] else ''}{text}", ha="center", va="center", fontsize=9)
            told.append(f"{name} on {columns[c]}: {', '.join(parts) or 'none'}")
    for c, name in enumerate(columns):
        axes.text(c + 0.475, -0.15, name, ha="center", va="bottom", fontsize=9)
    axes.set(xlim=(-0.8, len(columns)), ylim=(len(rows), -0.55))
    axes.axis("off")
    return Picture(figure, "The atomics of one thread in each listing. " + "; ".join(told) + ".")


def _span(sizes: Sequence[int]) -> str:
    return str(sizes[0]) if len(set(sizes)) == 1 else f"{min(sizes)} to {max(sizes)}"


def two_sums(truth: Tensor, sums: Mapping[str, Tensor], counts: Tensor) -> Picture:
    """The error of each pixel's gradient under each way of summing, and how many additions each pixel got.

    Args:
        truth: (H, W, D), float64; sums: name → (H, W, D); counts: (H, W).
    """
    errors = {n: (s.double() - truth).abs().amax(-1) / truth.abs().max() for n, s in sums.items()}
    figure, axes = new_figure(10, 2.5, ncols=1 + len(errors))
    top = max(error.max().item() for error in errors.values()) or 1e-6
    image = axes[0].imshow(counts.numpy(), cmap="Blues")
    axes[0].set_title("additions a pixel got", fontsize=10)
    figure.colorbar(image, ax=axes[0], shrink=0.7, ticks=MaxNLocator(5, integer=True))
    for one, (name, error) in zip(axes[1:], errors.items()):
        image = one.imshow(error.clamp_min(top / 1e3).numpy(), cmap="magma_r", norm=LogNorm(top / 1e3, top))
        one.set_title(f"summed in {name}\nerror at most {error.max().item():.1e}", fontsize=10)
        bar = figure.colorbar(image, ax=one, shrink=0.7)
    bar.set_label("of the largest gradient", fontsize=8)
    for one in axes:
        one.set(xticks=[], yticks=[])
    told = "; ".join(f"summed in {name} it is off by up to {error.max().item():.1e}" for name, error in errors.items())
    return Picture(
        figure,
        f"A level of {truth.shape[0]} by {truth.shape[1]} pixels, of which one got {int(counts.max())} additions. Relative to "
        f"the largest gradient, {told}.",
    )


def places(dtype: torch.dtype, W: int, at: float, pixels: int = 4) -> tuple[Picture, int]:
    """All the places along a row of pixels that a location stored in dtype can mean.

    Args:
        dtype: float16 or bfloat16; W: width of the level; at: where to look, 0 to 1; pixels: how many are shown.

    Returns:
        The picture, and how many places there are in the middle one of the pixels.
    """
    first = min(max(round(at * W) - pixels // 2, 0), max(W - pixels, 0))
    there = torch.arange(2**15, dtype=torch.int16).view(dtype).double() * W  # every number from 0 on that dtype has
    there = there[(there >= first) & (there <= first + pixels)]
    figure, axes = new_figure(9, 1.9)
    for k in range(pixels):
        axes.add_patch(Rectangle((first + k, 0), 1, 1, facecolor="#eef2f7" if k % 2 else "#dde5ef", edgecolor=GREY))
        axes.text(first + k + 0.5, 0.12, f"pixel {first + k}", ha="center", va="center", fontsize=9)
    axes.vlines(there.numpy(), 0.3, 0.9, color=PURPLE, linewidth=1.2 if len(there) < 60 else 0.6)
    middle = int(((there >= first + pixels // 2) & (there < first + pixels // 2 + 1)).sum())
    axes.set(xlim=(first - 0.02, first + pixels + 0.02), ylim=(0, 1), yticks=[], xticks=[])
    axes.spines[["left", "bottom"]].set_visible(False)
    name = str(dtype).removeprefix("torch.")
    axes.set_title(f"{name}, a level {W} pixels wide: every place that a location can mean", loc="left", fontsize=10)
    return Picture(
        figure,
        f"Pixels {first} to {first + pixels - 1} of a level {W} wide, with a line at each place that a location in {name} can "
        f"mean: {len(there)} places, {middle} in pixel {first + pixels // 2}.",
    ), middle


def moved_points(error, W: int) -> tuple[Picture, dict[str, tuple[float, float]]]:
    """The largest error of a location against the width of a level: stored in sixteen bits, and computed in them as well.

    Args:
        error: error(dtype, W) → (mean, largest), in pixels: a `location_error`. W: the width to mark.

    Returns:
        The picture, and name → (mean, largest) at W.
    """
    widths = [13, 21, 42, 84, 167, 334, 667, 1333]  # no powers of two: those multiply without rounding
    x = torch.linspace(0, 1, 10_001, dtype=torch.float64)

    def computed(dtype, width):
        lost = ((x.to(dtype) * width - 0.5).double() - (x * width - 0.5)).abs()
        return lost.mean().item(), lost.max().item()

    figure, axes = new_figure(8, 2.7)
    at = {}
    for name in ("bfloat16", "float16", "float32"):
        dtype, (marker, colour) = getattr(torch, name), MARKS[name]
        ways = {f"{name}, stored": (error, "-")}
        if name != "float32":
            ways[f"{name}, stored and computed"] = (computed, ":")
        for label, (way, style) in ways.items():
            axes.plot(widths, [way(dtype, w)[1] for w in widths], style, marker=marker, color=colour, label=label)
            at[label] = way(dtype, W)
    axes.axhline(0.5, color=GREY, linewidth=1)
    axes.text(widths[0], 0.56, "half a pixel", color=GREY, fontsize=8)
    axes.axvline(W, color=GREY, linestyle="--", linewidth=1)
    axes.set(xscale="log", yscale="log", xlabel="width of the level (pixels)", ylabel="largest error (pixels)")
    axes.set_xticks(widths, [str(w) for w in widths], minor=False)
    axes.minorticks_off()
    figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    told = "; ".join(f"{name} {mean:.2g} on average and {most:.2g} at most" for name, (mean, most) in at.items())
    return Picture(figure, f"How far a location is moved, against the width of the level. At {W} pixels: {told}."), at

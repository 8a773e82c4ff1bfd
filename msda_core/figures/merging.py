"""Figures about merging neighbours at encoder scale: when it pays, as timed on a device, and why, as counted."""

import json
from functools import cache
from pathlib import Path

import torch
from matplotlib.ticker import FuncFormatter, NullLocator

from msda_core.figures.picture import BLUE, GREEN, GREY, ORANGE, RED, Picture, new_figure
from msda_core.inputs import encoder_locations

__all__ = ["COMMAND", "DATA", "crossing", "crossings_of", "shares", "shares_of", "shares_picture"]

#: Where the timed spreads are kept, and the command that writes them.
DATA = Path(__file__).parents[1] / "bench" / "data" / "bench_h200_spreads.json"
COMMAND = (
    "python -m msda_core.bench --preset encoder --only plain merged --quick "
    "--spread 0.5 1 2 4 8 16 32 initial uniform --json msda_core/bench/data/bench_h200_spreads.json"
)
WAYS = {"fwd": "forward", "bwd": "backward"}


# ------------------------------------------------------------------------------------------------------------- timed


def crossing(path: Path | str | None = None, dtype: str = "fp16") -> Picture:
    """Time of the plain and the merged kernels against the spread of the offsets, and where they cross.

    Args:
        path: what `python -m msda_core.bench --preset encoder --spread … --json PATH` wrote; None for `DATA`.
        dtype: "fp32", "fp16" or "bf16".

    Returns:
        Forward and backward side by side; or, where nothing was timed yet, a picture that says so.
    """
    path = Path(path or DATA)
    if not path.exists():
        return _not_timed(f"{path.name} does not exist")
    report = json.loads(path.read_text(encoding="utf-8"))
    rows = [r for r in report["rows"] if r["preset"] == "encoder" and r["dtype"] == dtype]
    times = {name: {r["spread"]: r for r in rows if r["operator"] == name} for name in ("plain", "merged")}
    spreads = [s for s in times["plain"] if s in times["merged"]]
    pixels = sorted(s for s in spreads if not isinstance(s, str))
    if len(pixels) < 2:
        return _not_timed(f"{path.name} holds fewer than two spreads of plain and merged in {dtype}")
    gpu = report["environment"].get("gpu", "a machine without a GPU")
    figure, axes = new_figure(10, 3.8, ncols=2)
    said = []
    for axis, (way, word) in zip(axes, WAYS.items()):
        for name, colour, marker in (("plain", ORANGE, "s"), ("merged", BLUE, "o")):
            values = [times[name][s][f"{way}_kernels"] for s in pixels]
            axis.plot(pixels, values, color=colour, marker=marker, label=name)
            for n, special in enumerate(s for s in ("initial", "uniform") if s in spreads):
                axis.plot(pixels[-1] * 2 ** (n + 1), times[name][special][f"{way}_kernels"], marker, color=colour)
        ratios = [times["plain"][s][f"{way}_kernels"] / times["merged"][s][f"{way}_kernels"] for s in pixels]
        where = crossings_of(pixels, ratios)
        axis.set_ylim(0, 1.05 * axis.get_ylim()[1])
        for n, at in enumerate(where):
            axis.axvline(at, color=GREY, linestyle="--", linewidth=1)
            axis.text(at, axis.get_ylim()[1] * (1 - 0.08 * n), f" cross at {at:.1f}", color=GREY, va="top", fontsize=9)
        ticks = {s: f"{s:g}" for s in pixels}
        ticks |= {pixels[-1] * 2 ** (n + 1): s for n, s in enumerate(s for s in ("initial", "uniform") if s in spreads)}
        axis.set(xscale="log", title=f"{word}, {dtype}", xlabel="spread of the offsets, pixels", ylabel="µs of kernels")
        axis.set_xticks(list(ticks), list(ticks.values()), fontsize=8)
        axis.xaxis.set_minor_locator(NullLocator())
        best = max(range(len(pixels)), key=ratios.__getitem__)
        cross = f"they cross at {_listed(where)} pixels" if where else "they do not cross"
        cells = "; ".join(f"{s:g}: {r:.2f}" for s, r in zip(pixels, ratios))
        cells += "".join(
            f"; {s}: {times['plain'][s][f'{way}_kernels'] / times['merged'][s][f'{way}_kernels']:.2f}"
            for s in ("initial", "uniform") if s in spreads
        )  # fmt: skip
        said.append(
            f"{word}: the merged path is up to {ratios[best]:.2f} times as fast, at {pixels[best]:g} pixels, and {cross} "
            f"(plain over merged, by spread: {cells})"
        )
    axes[0].legend(frameon=False)
    figure.suptitle(f"encoder, timed on {gpu}", fontsize=10)
    return Picture(figure, f"Encoder in {dtype}, timed on {gpu}, against the spread of the offsets. {'. '.join(said)}.")


def crossings_of(spreads: list[float], ratios: list[float]) -> list[float]:
    """The spreads at which plain over merged passes 1, either way, interpolated on a logarithmic axis."""
    found = []
    for n in range(1, len(spreads)):
        before, after = ratios[n - 1], ratios[n]
        if (before >= 1) != (after >= 1):
            part = (before - 1) / (before - after)
            found.append(spreads[n - 1] * (spreads[n] / spreads[n - 1]) ** part)
    return found


def _listed(numbers: list[float]) -> str:
    """ "7.3, 14.5 and 20.1"."""
    words = [f"{number:.1f}" for number in numbers]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _not_timed(reason: str) -> Picture:
    text = f"Not run: merging has not been timed on a device ({reason}). On a machine with a GPU:"
    figure, axis = new_figure(10, 1.4)
    axis.axis("off")
    axis.text(0, 0.75, text, fontsize=10, va="center")
    for n, line in enumerate(COMMAND.split(" --spread ")):
        axis.text(0.02, 0.42 - 0.3 * n, line if n == 0 else f"    --spread {line}", fontsize=9, family="monospace")
    return Picture(figure, f"{text} {COMMAND}")


# ------------------------------------------------------------------------------------------------------------ counted


@cache
def shares(
    levels: tuple[tuple[int, int], ...], spread: float | str, seed: int = 0
) -> tuple[dict[str, float], tuple[int, ...]]:
    """What becomes of the points of one head, by the rule of `kernels.merged.window`, counted without a device.

    Args:
        levels: (H, W) of each; spread: as for `inputs.encoder_locations`.

    Returns:
        The share of each fate, "merged", "remainder" and "plain", of the points that touch a merged level; and for each slot
        of the work lists, 1 if that tile is merged.
    """
    queries = sum(h * w for h, w in levels)
    shape = (1, queries, 1, len(levels), 4, 2)
    loc = encoder_locations(shape, list(levels), spread, "cpu", torch.Generator().manual_seed(seed))[0, :, 0]
    return shares_of(loc, levels)


def shares_of(loc: torch.Tensor, levels: tuple[tuple[int, int], ...]) -> tuple[dict[str, float], tuple[int, ...]]:
    """`shares` of given locations (Q, L, 4, 2) of one batch item and head."""
    from msda_core.kernels.merged.plan import work_lists  # which needs Triton, as the timed figure does not

    merges = work_lists(levels, torch.device("cpu")).merges.tolist()
    counts, status = {"merged": 0, "remainder": 0, "plain": 0}, [0] * len(merges)
    sample = torch.arange(32)
    for first, W, H, x, y, target, width, height, slot in merges:
        h, w = levels[target]
        pixel = (loc[:, target] * torch.tensor([w, h]) - 0.5).floor()
        at_x = x + (2 * (sample % 8) + 1) * min(width, W - x) // 16
        at_y = y + (2 * (sample // 8) + 1) * min(height, H - y) // 8
        some = pixel[first + at_y * W + at_x]
        centre = torch.tensor([(x + width // 2) * w // W, (y + height // 2) * h // H])
        mean = ((some - centre).clamp(-48, 48).sum((0, 1)) / (4 * len(sample)) + 0.5).floor()
        corner = torch.maximum(
            torch.minimum(centre + mean - torch.tensor([7, 5]), torch.tensor([w - 15, h - 11])), -torch.ones(2)
        )
        inside = _inside(some, corner)
        status[slot] = int(2 * inside.sum() >= inside.numel())
        rows = first + torch.arange(y, min(y + height, H))[:, None] * W + torch.arange(x, min(x + width, W))
        points = pixel[rows].flatten(0, 2)
        points = points[((points >= -1) & (points < torch.tensor([w, h]))).all(-1)]
        fits = int(_inside(points, corner).sum())
        if status[slot]:
            counts["merged"] += fits
            counts["remainder"] += len(points) - fits
        else:
            counts["plain"] += len(points)
    total = max(1, sum(counts.values()))
    return {fate: count / total for fate, count in counts.items()}, tuple(status)


def _inside(pixels: torch.Tensor, corner: torch.Tensor) -> torch.Tensor:
    at = pixels - corner
    return ((at >= 0) & (at < torch.tensor([15, 11]))).all(-1)


def shares_picture(
    levels: tuple[tuple[int, int], ...] = ((100, 167), (50, 84), (25, 42), (13, 21)),
    spreads: tuple[float | str, ...] = (0.5, 1.0, 2.0, 4.0, 6.0, 8.0, 16.0, "initial", "uniform"),
) -> Picture:
    """What becomes of the points on merged levels, by the spread of the offsets: why the crossing is where it is."""
    rows = {spread: shares(levels, spread)[0] for spread in spreads}
    figure, axis = new_figure(9, 3.4)
    bottom = [0.0] * len(rows)
    fates = (("merged", BLUE, ""), ("remainder", RED, "//"), ("plain", GREEN, ".."))
    for fate, colour, hatch in fates:
        heights = [found[fate] for found in rows.values()]
        axis.bar(range(len(rows)), heights, bottom=bottom, color=colour, hatch=hatch, edgecolor="white", label=fate)
        bottom = [b + h for b, h in zip(bottom, heights)]
    axis.set_xticks(range(len(rows)), [s if isinstance(s, str) else f"{s:g}" for s in spreads])
    axis.set(xlabel="spread of the offsets, pixels", ylabel="share of the points", ylim=(0, 1))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:.0%}"))
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    said = "; ".join(
        f"{_words(spread)}: " + ", ".join(f"{found[fate]:.0%} {fate}" for fate, _, _ in fates)
        for spread, found in rows.items()
    )
    return Picture(figure, f"Counted, not timed: what becomes of the points on merged levels, by spread. {said}.")


def _words(spread: float | str) -> str:
    return spread if isinstance(spread, str) else f"{spread:g} pixel{'' if spread == 1 else 's'}"

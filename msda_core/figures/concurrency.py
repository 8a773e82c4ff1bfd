"""Figures about many writers and one memory (lab 08)."""

from collections.abc import Sequence

import torch
from matplotlib.colors import LogNorm
from matplotlib.patches import Rectangle
from torch import Tensor

from msda_core.figures.picture import BLUE, GREEN, GREY, ORANGE, RED, Picture, new_figure

__all__ = ["collisions", "contention_map", "lanes_of_a_block", "merging_square", "sum_in_any_order", "timeline"]


def lanes_of_a_block(run, before: Sequence[int], truth: Sequence[int]) -> tuple[Picture, int]:
    """One program that reads, adds one and writes back: what each lane reads and writes, and what memory holds then.

    Args:
        run: `machine.interleave` of one program; its last load and its last store are those of the counts.
        before: the counts before the launch; truth: what they should be after it.

    Returns:
        The picture, and how many updates were lost.
    """
    load = [step for step in run.timeline if step.kind == "load"][-1]
    store = [step for step in run.timeline if step.kind == "store"][-1]
    after = list(before)
    for element, value in zip(store.elements, store.values):
        after[element] = value
    lanes, bins = len(load.elements), len(after)
    figure, (top, bottom) = new_figure(9, 4.2, nrows=2, height_ratios=(1.2, 1))
    _table(top, ["holds index", "reads", "writes"], [load.elements, load.values, store.values], "lane", range(lanes))
    rows = [before, after, truth]
    wrong = [(1, k) for k in range(bins) if after[k] != truth[k]]
    _table(bottom, ["before", "after", "should be"], rows, "hist", range(bins), marked=wrong)
    lost = sum(truth) - sum(after)
    figure.suptitle(f"{lanes} lanes count; {lost} of their updates {'is' if lost == 1 else 'are'} lost", fontsize=11)
    marks = ", ".join(f"hist[{k}] is {after[k]} and should be {truth[k]}" for _, k in wrong) or "every count is right"
    return Picture(
        figure,
        f"One program of {lanes} lanes with indices {list(load.elements)}. All read, then all write: lanes with the same "
        f"index read the same count and write the same count. {marks}.",
    ), lost


def _table(axes, names, rows, unit, numbers, marked=()):
    for r, (name, row) in enumerate(zip(names, rows)):
        axes.text(-0.25, r + 0.5, name, ha="right", va="center", fontsize=9)
        for k, value in enumerate(row):
            bad = (r, k) in marked
            axes.add_patch(
                Rectangle(
                    (k, r), 0.94, 0.88, facecolor="#fbe3d6" if bad else "#eef2f7", edgecolor=RED if bad else GREY,
                    linewidth=2 if bad else 0.8,
                )
            )  # fmt: skip
            axes.text(k + 0.47, r + 0.44, f"✗ {value}" if bad else f"{value}", ha="center", va="center", fontsize=9)
    for k, number in enumerate(numbers):
        axes.text(k + 0.47, -0.3, f"{unit} {number}" if len(numbers) <= 8 else f"{number}", ha="center", fontsize=8)
    axes.set(xlim=(-2.2, max(len(numbers), 8)), ylim=(len(rows), -0.7))
    axes.axis("off")


def timeline(run, tensor: str, element: int, before: int = 0) -> Picture:
    """Who read and who wrote one element, step by step, and what it held after each step.

    Args:
        run: from `machine.interleave`; tensor, element: where to look.
        before: what the element held at first.
    """
    steps = run.of(tensor, element)
    programs = sorted({step.program[0] for step in steps})
    row = {program: r for r, program in enumerate(programs)}
    gone = {run.timeline[one.lost] for one in run.lost if (one.tensor, one.element) == (tensor, element)}
    figure, axes = new_figure(10, 1.7 + 0.42 * len(programs))
    memory, held, waiting = len(programs) + 0.25, before, {}
    for now, step in enumerate(steps):
        r, at = row[step.program[0]], step.elements.index(element)
        value, lost = step.values[at], step in gone
        if step.kind == "load":
            waiting[r] = now
            _mark(axes, now, r, f"{value}", "o", BLUE, False)
        elif step.kind == "store":
            if r in waiting:
                axes.plot([waiting.pop(r), now], [r, r], color=RED if lost else GREY, linewidth=1.5, zorder=1)
            held = value
            _mark(axes, now, r, f"{value}", "s", RED if lost else ORANGE, True)
            if lost:
                axes.text(now, r - 0.43, "lost", color=RED, ha="center", va="center", fontsize=8, weight="bold")
        else:
            held = value + step.operands[at]
            _mark(axes, now, r, f"{value}→{held}", "D", GREEN, True)
        axes.text(now, memory, f"{held}", ha="center", va="center", fontsize=9, weight="bold")
    axes.set(
        yticks=[*range(len(programs)), memory],
        yticklabels=[*(f"program {p}" for p in programs), f"{tensor.removesuffix('_ptr')}[{element}]"],
        xticks=[],
        xlabel="one step after another →",
        xlim=(-0.7, max(len(steps), 10) - 0.3),
        ylim=(memory + 0.5, -0.8),
    )
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.tick_params(length=0)
    kinds = [("load", "o", BLUE, "reads"), ("store", "s", ORANGE, "writes"), ("atomic", "D", GREEN, "adds in one step")]
    for kind, marker, colour, name in kinds:
        if any(step.kind == kind for step in steps):
            axes.plot([], [], marker, markerfacecolor="white" if kind == "load" else colour, color=colour, label=name)
    figure.legend(loc="outside upper right", ncols=3, frameon=False, fontsize=9)
    count = len(gone)
    axes.set_title(f"order {run.seed}: {len(programs)} programs, the count is {held}", loc="left", fontsize=10)
    story = "; ".join(
        f"program {s.program[0]} {({'load': 'reads', 'store': 'writes', 'atomic': 'adds to'})[s.kind]} "
        f"{s.values[s.elements.index(element)]}{' (lost)' if s in gone else ''}"
        for s in steps
    )
    return Picture(
        figure, f"{len(programs)} programs at one element, {count} writes lost, {held} in the end. In order: {story}."
    )


def _mark(axes, x, y, text, marker, colour, filled):
    axes.plot(
        [x], [y], marker, markersize=24 if marker == "D" else 18, color=colour,
        markerfacecolor=colour if filled else "white", markeredgewidth=1.8, zorder=2,
    )  # fmt: skip
    axes.text(x, y, text, ha="center", va="center", fontsize=8 if "→" in text else 9, color="black", zorder=3)


def collisions(locations: Tensor, shapes: Sequence[tuple[int, int]]) -> list[Tensor]:
    """How many points of all queries have each pixel among their four.

    Args:
        locations: (Q, L, K, 2), (x, y) from 0 to 1; shapes: (H, W) of each level.

    Returns:
        L tensors (H, W), int64.
    """
    counts = []
    for level, (H, W) in enumerate(shapes):
        x0, y0 = ((locations[:, level] * torch.tensor([W, H]) - 0.5).floor().long()).unbind(-1)
        count = torch.zeros(H, W, dtype=torch.int64)
        for i in (0, 1):
            for j in (0, 1):
                x, y = x0 + i, y0 + j
                inside = (x >= 0) & (x < W) & (y >= 0) & (y < H)
                count += torch.bincount((y * W + x)[inside], minlength=H * W).reshape(H, W)
        counts.append(count)
    return counts


def contention_map(images: Sequence[Tensor], counts: Sequence[Tensor]) -> Picture:
    """How many points add to each pixel in the backward pass, level by level.

    Args:
        images: the pyramid, (H, W, 3) each, drawn above; counts: from `collisions`.
    """
    figure, axes = new_figure(10, 5.4, nrows=2, ncols=len(images))
    top = max(2, max(int(count.max()) for count in counts))
    for level, (image, count) in enumerate(zip(images, counts)):
        H, W = count.shape
        axes[0, level].imshow(image.numpy(), interpolation="nearest")
        axes[0, level].set_title(f"level {level}: {H} × {W}", fontsize=10)
        heat = axes[1, level].imshow(count.clamp_min(0.8).numpy(), cmap="viridis", norm=LogNorm(0.8, top))
        if H * W <= 100:
            for j in range(H):
                for i in range(W):
                    shade = "black" if count[j, i] > top**0.6 else "white"
                    axes[1, level].text(i, j, f"{count[j, i]}", ha="center", va="center", fontsize=7, color=shade)
        axes[1, level].set_xlabel(f"{count.double().mean():.1f} a pixel,\nat most {count.max()}", fontsize=9)
        for ax in axes[:, level]:
            ax.set(xticks=[], yticks=[])
    ticks = [n * 10**e for e in range(5) for n in (1, 2, 5) if n * 10**e <= top]
    # beside both rows, so that each map stands under its image
    bar = figure.colorbar(
        heat, ax=axes, label="points that add here", shrink=0.42, anchor=(0, 0.12), ticks=ticks, format="%d"
    )
    bar.minorticks_off()
    text = "; ".join(
        f"level {level}: {count.double().mean():.1f} on average, at most {count.max()}"
        for level, count in enumerate(counts)
    )
    return Picture(figure, f"Points that add to each pixel of a pyramid, per level. {text}. The coarser, the more.")


def merging_square(index: Sequence[int]) -> tuple[Picture, int]:
    """Every lane of a block compared with every other: who shares a place, and which lane speaks for all of them.

    Args:
        index: the place that each lane holds.

    Returns:
        The picture, and how many lanes add.
    """
    n = len(index)
    figure, axes = new_figure(9, 3.8)
    leaders = [list(index).index(place) for place in index]
    for i in range(n):
        for j in range(n):
            same, first = index[i] == index[j], leaders[i] == j
            colour = ORANGE if same and first else BLUE if same else "#eef2f7"
            axes.add_patch(Rectangle((j, i), 0.92, 0.92, facecolor=colour, edgecolor="white"))
            if same:
                axes.text(j + 0.46, i + 0.48, "first" if first else "=", ha="center", va="center", fontsize=8, color="black" if first else "white")  # fmt: skip
        speaks = leaders[i] == i
        axes.text(n + 0.3, i + 0.48, "adds the row's total" if speaks else "is silent", va="center", fontsize=9,
                  color="black" if speaks else GREY, weight="bold" if speaks else "normal")  # fmt: skip
    labels = [f"lane {i} holds {place}" for i, place in enumerate(index)]
    axes.set(
        xlim=(0, n + 3.2),
        ylim=(n, 0),
        yticks=[i + 0.46 for i in range(n)],
        yticklabels=labels,
        xticks=[i + 0.46 for i in range(n)],
        xticklabels=index,
    )
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.spines[["left", "bottom"]].set_visible(False)
    adds = len(set(index))
    return Picture(
        figure,
        f"A square of {n} lanes by {n} lanes that holds {list(index)}. Each row marks the lanes that hold the same place "
        f"and the first of them; {adds} lanes are the first of their own row, and add.",
    ), adds


def sum_in_any_order(terms: Tensor, dtype: torch.dtype, orders: int = 400) -> tuple[Picture, int, float]:
    """The same numbers added up one by one in many orders: how far each sum is from the exact one.

    Args:
        terms: (n,), float64; rounded to dtype first, so that only the additions differ.
        dtype: in which they are added.
        orders: how many orders are tried.

    Returns:
        The picture, how many different sums there are, and the largest error relative to the exact sum.
    """
    rounded = terms.to(dtype)
    exact = rounded.double().sum().item()
    generator = torch.Generator().manual_seed(0)
    order = torch.rand(orders, len(terms), generator=generator).argsort(1)
    total = torch.zeros(orders, dtype=dtype)
    for column in rounded[order].T:
        total = total + column
    errors = (total.double() - exact) / exact
    values, times = torch.unique(errors, return_counts=True)
    figure, axes = new_figure(7.5, 3.2)
    spread = max(float(errors.abs().max()), 1e-12) * 1.15
    width = spread / 60
    axes.bar(values.numpy(), times.numpy(), width=width, color=ORANGE, edgecolor=GREY, label=f"{orders} orders")
    axes.axvline(0, color=BLUE, linestyle="--", label="the exact sum")
    name = str(dtype).removeprefix("torch.")
    axes.set(
        xlim=(-spread, spread), xlabel="error, relative to the exact sum", ylabel="orders",
        title=f"{len(terms)} numbers added in {name}: {len(values)} different sum{'s' * (len(values) > 1)}",
    )  # fmt: skip
    axes.ticklabel_format(axis="x", scilimits=(-2, 2))
    figure.legend(loc="outside upper right", frameon=False, fontsize=9)
    worst = float(errors.abs().max())
    return (
        Picture(
            figure,
            f"{len(terms)} numbers added in {orders} random orders in {name}: {len(values)} different sums, at most "
            f"{worst:.1e} from the exact one, relative to it.",
        ),
        len(values),
        worst,
    )

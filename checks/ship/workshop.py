"""What lab 10 shows around its exercises: errors with and without a front door, the suite, the export, models, a training.

Everything that runs the learner's operator asks first whether it passes its checks; until then there is a sentence.
"""

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.patches import Rectangle

from checks.answers import export
from checks.core.exercise import NotRun
from checks.core.grade import latest
from checks.labs.lab10.cases import LEVELS, additions
from checks.ship import acceptance
from checks.ship import models as wild
from msda_core import device
from msda_core.bench import operator as bench
from msda_core.figures import detector
from msda_core.figures.picture import BLUE, GREY, ORANGE, Picture, new_figure

__all__ = [
    "BAD_CALLS",
    "Trained",
    "accept_in_notebook",
    "before_and_after",
    "compiled_in_notebook",
    "export_in_notebook",
    "groups_of_rows",
    "in_the_wild",
    "open_ground",
    "pillars",
    "race_in_notebook",
    "train_in_notebook",
    "what_is_said",
]

#: What a caller did → (argument, what became of it).
BAD_CALLS: dict[str, tuple[int, Callable[[Any], Any]]] = {
    "locations have no axis of (x, y)": (3, lambda t: t[..., 0]),
    "weights still have levels and points on one axis": (4, lambda t: t.flatten(3)),
    "value still has its heads in the channels": (0, lambda t: t.flatten(2)),
    "a level has one row too many": (1, lambda t: t + torch.tensor([[0, 0], [1, 0]])),
    "the level table is a list": (1, lambda t: t.tolist()),
    "one head is missing": (3, lambda t: t[:, :, :1]),
}


_NAMES = itertools.count()


def _good_call() -> list[torch.Tensor]:
    shapes = torch.tensor([[4, 6], [2, 3]])
    torch.manual_seed(0)
    return [
        torch.randn(2, 30, 2, 8),
        shapes,
        torch.tensor([0, 24]),
        torch.rand(2, 5, 2, 2, 3, 2),
        torch.rand(2, 5, 2, 2, 3),
    ]


def what_is_said(problem: str, check_inputs: Callable) -> str:
    """What PyTorch says of a bad call when nobody looks first, and what the learner's front door says."""
    at, spoil = BAD_CALLS[problem]
    args = _good_call()
    args[at] = spoil(args[at])
    try:
        _trusting(*args)
        bare = "nothing: it returns numbers."
    except Exception as error:
        bare = f"`{type(error).__name__}: {str(error).splitlines()[0]}`"
    try:
        check_inputs(*args)
        yours = "nothing: the call is let through."
    except NotImplementedError:
        yours = "nothing yet. Write it below."
    except Exception as error:
        yours = f"`{type(error).__name__}: {error}`"
    return f"**Without a front door:** {bare}\n\n**Yours:** {yours}"


def _trusting(value, spatial_shapes, level_start_index, sampling_locations, attention_weights) -> None:
    """What a launcher does before its kernel starts: it reads the sizes off the shapes."""
    B, S, M, D = value.shape
    _, Q, _, L, K, _ = sampling_locations.shape
    value.contiguous(), spatial_shapes.contiguous(), attention_weights.contiguous()


def compiled_in_notebook(register: Callable) -> str:
    """What PyTorch's own checks, `torch.compile(fullgraph=True)` and autocast say of the learner's registered operator."""
    report = latest("10.register", lambda: register)
    if report.state != "pass":
        return "This compiles your own `register`, as soon as it passes its checks."
    operator = register(f"course_compiled_{next(_NAMES)}::msda")
    value, *rest = _good_call()
    leaves = [value.requires_grad_(), *rest[:2], rest[2].requires_grad_(), rest[3].requires_grad_()]
    rows = [
        (f"`opcheck`, {name}", said)
        for name, said in torch.library.opcheck(operator, leaves, raise_exception=False).items()
    ]

    def step(*args):
        return operator(*args).square().sum()

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    eager, traced = (torch.autograd.grad(fn(*leaves), [leaves[0], leaves[3], leaves[4]]) for fn in (step, compiled))
    off = max((a - b).abs().max().item() for a, b in zip(eager, traced))
    rows.append(("`torch.compile(fullgraph=True)`, gradients beside eager ones", f"largest difference {off:.1e}"))
    with torch.autocast(device.ACTIVE.type, dtype=torch.bfloat16):
        layer = torch.nn.Linear(value.shape[-1], value.shape[-1])
        half = operator(layer(value.detach()), *(one.detach() for one in leaves[1:]))
    rows.append(("under autocast, value from a linear layer", f"{half.dtype}".removeprefix("torch.")))
    return "| | |\n|:--|:--|\n" + "\n".join(f"| {what} | {said} |" for what, said in rows)


# ------------------------------------------------------------------------------------------------- suite and export


def accept_in_notebook() -> acceptance.Certificate:
    """The acceptance suite under a progress bar that names the test that is running."""
    import marimo as mo

    if not mo.running_in_notebook():
        return acceptance.accept()
    with mo.status.progress_bar(total=30, title="The acceptance suite", remove_on_exit=True) as bar:
        return acceptance.accept(progress=lambda title, done, total: bar.update(increment=1, subtitle=title))


def export_in_notebook(folder: str, certificate: acceptance.Certificate | None) -> str:
    """Write the package into a folder beside the labs, and say what to do with it."""
    if certificate is None:
        return "There is no certificate: run the suite first."
    target = Path(folder).expanduser()
    if not folder.strip():
        return "Into which folder?"
    try:
        acceptance.export_package(target, certificate)
    except (export.NotYours, OSError) as why:
        return f"Not exported: {why}"
    files = sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file())
    listing = "\n".join(files)
    return (
        f"Written to `{target.resolve()}`:\n\n```\n{listing}\n```\n\nIn an environment of its own:\n\n"
        f"```\npip install '{target}[test]'\npytest --pyargs my_msda\n```"
    )


def _attend(check_inputs: Callable, function: type) -> tuple[wild.Operator | None, str]:
    """The learner's operator once both pass, else why not."""
    for name, answer in (("check_inputs", check_inputs), ("MSDAFunction", function)):
        report = latest(f"10.{name}", answer)
        if report.state != "pass":
            why = report.worst.message if report.state == "not_run" else "does not pass its checks yet"
            return None, f"This runs your own operator: `{name}` {why}."

    def attend(*args):
        check_inputs(*args)
        return function.apply(*args)

    return attend, ""


def _whose() -> str:
    """Whose kernels run underneath, in a sentence."""
    from checks.answers.carry import carried

    judged = {
        f"{lab}.{name}": carried(lab).judge(name).theirs
        for lab, name in (("05", "msda_forward"), ("08", "msda_backward"))
    }
    ours = [name for name, theirs in judged.items() if not theirs]
    return "" if not ours else f" *Ours stands in for {' and '.join(f'`{name}`' for name in ours)}.*"


def in_the_wild(model: str, check_inputs: Callable, function: type):
    """A model with its stock operator and with the learner's: a sentence with both differences."""
    import marimo as mo

    attend, why = _attend(check_inputs, function)
    if attend is None:
        return mo.callout(mo.md(why), kind="neutral")
    with mo.status.spinner(title=f"{model}, stock and yours"):
        try:
            result = wild.compare_model(model, attend) if model in wild.MODELS else wild.bev_layer(attend)[0]
        except NotRun as reason:
            return mo.callout(mo.md(f"– **Not run.** {model} {reason}"), kind="neutral")
    glyph = "✓" if result.equal else "✗"
    return mo.callout(mo.md(f"{glyph} {result.sentence}{_whose()}"), kind="success" if result.equal else "danger")


def pillars(Z: int) -> Picture:
    """Anchors of eight pillars in a camera image, and where one BEV layer looks from them."""
    from msda_core.ops import multi_scale_deformable_attention

    _, anchors, places = wild.bev_layer(multi_scale_deformable_attention, Z)
    figure, ax = new_figure(7.5, 3.8)
    points = places[:, :, 0].reshape(-1, 2).numpy()
    ax.scatter(points[:, 0], points[:, 1], s=14, color=ORANGE, marker="x", label="points read on level 0")
    for number, pillar in enumerate(anchors.numpy()):
        ax.plot(
            pillar[:, 0],
            pillar[:, 1],
            color=BLUE,
            marker="o",
            ms=6,
            lw=1,
            label="anchors of a pillar" if not number else None,
        )
    ax.set(xlim=(-0.15, 1.15), ylim=(1.1, -0.25), xlabel="x", ylabel="y")
    ax.add_patch(Rectangle((0, 0), 1, 1, fill=False, color=GREY))
    ax.legend(frameon=False, loc="upper right", ncols=2)
    outside = int(((points < 0) | (points > 1)).any(1).sum())
    return Picture(
        figure,
        f"A camera image with the {Z} anchors of each of 8 pillars, near ones taller than far ones, and the {len(points)} "
        f"points that a layer reads around them on its first level; {outside} of them fall outside and read zeros.",
    )


# ---------------------------------------------------------------------------------------------------------- training


@dataclass(frozen=True)
class Trained:
    """What a training left behind, or a message why there was none."""

    message: Any
    losses: list[float] | None = None
    seconds: float = 0.0
    detector: Any = None


def train_in_notebook(layer: type, seconds: float) -> Trained:
    """Train the detector on the learner's layer, under a progress bar with the loss."""
    import marimo as mo

    report = latest("10.MyMSDeformAttn", layer)
    if report.state != "pass":
        return Trained(mo.md("This trains your own `MyMSDeformAttn`, as soon as it passes its checks."))
    steps = 1000 if device.ACTIVE.type == "cuda" else 300
    last = None
    kernels = "kernels on the GPU" if device.ACTIVE.type == "cuda" else "kernels in Triton's interpreter"
    with mo.status.progress_bar(total=steps, title="Training", remove_on_exit=True) as bar:
        for last in detector.train(_new(layer), steps=steps, seconds=seconds):
            recent = last.losses[-20:]
            bar.update(increment=1, subtitle=f"loss {sum(recent) / len(recent):.2f}, {last.seconds:.0f} s")
    n = min(20, len(last.losses) // 2 or 1)
    first, end = sum(last.losses[:n]) / n, sum(last.losses[-n:]) / n
    before, after = _mean_overlap(_new(layer)), _mean_overlap(last.detector)
    message = (
        f"**{len(last.losses)} steps in {last.seconds:.0f} s**, each on a scene it had never seen, by your {kernels}.{_whose()} "
        f"The loss went from {first:.2f} to {end:.2f}; on {TESTED} scenes kept apart, boxes overlap the truth by "
        f"{after:.2f}, {before:.2f} before."
    )
    return Trained(message, last.losses, last.seconds, last.detector)


TESTED = 12


def _new(layer: type) -> detector.TinyDetector:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return detector.TinyDetector(layer).to(device.ACTIVE)


def _mean_overlap(model: detector.TinyDetector) -> float:
    with torch.no_grad():
        scenes = [detector.scene(seed) for seed in range(TESTED)]
        return (
            sum(detector.overlap(model(s.image.to(device.ACTIVE)).cpu(), s.boxes).mean().item() for s in scenes)
            / TESTED
        )


def before_and_after(seed: int, trained: Trained | None) -> Picture:
    """A scene the training has not seen: where the points look, and the boxes, before and after."""
    from msda_core import nn

    scene = detector.scene(seed)
    layer = nn.MSDeformAttn if trained is None or trained.detector is None else type(trained.detector.attention)
    rows = []
    for title, model in (("before training", _new(layer)), ("after", trained and trained.detector)):
        if model is None:
            continue
        with torch.no_grad():
            found = model(scene.image.to(device.ACTIVE)).cpu()
        rows.append((title, scene, found, model.locations.cpu()))
    return detector.shapes_and_points(rows)


# -------------------------------------------------------------------------------------------------------------- race


def race_in_notebook(check_inputs: Callable, function: type):
    """A table of device times, or the reason why there is none."""
    import marimo as mo

    attend, why = _attend(check_inputs, function)
    if attend is None:
        return mo.callout(mo.md(why), kind="neutral")
    try:
        laps = wild.race(function.apply)  # the front door reads the level table, and so waits for the GPU: not timed
    except NotRun as reason:
        return mo.callout(mo.md(f"– **Not run**: {reason}"), kind="neutral")
    calls = list(dict.fromkeys(lap.call for lap in laps if lap.call))
    names = list(dict.fromkeys(lap.name for lap in laps))
    times = {(lap.name, lap.call): lap.microseconds for lap in laps}
    notes = "\n\n".join(f"{lap.name}: {lap.note}" for lap in laps if lap.note)
    head = f"| device time, µs | {' | '.join(calls)} |\n|---|{'---|' * len(calls)}\n"
    cell = lambda t: "not run" if t is None else f"{t:.1f}"  # noqa: E731
    rows = "\n".join(f"| {n} | {' | '.join(cell(times.get((n, c))) for c in calls)} |" for n in names)
    return mo.md(
        f"{head}{rows}\n\n{device.describe()}; grad_value's zero-fill is counted, the front door is not.{_whose()} {notes}"
    )


# ------------------------------------------------------------------------------------------------------- open ground

#: What `python -m msda_core.bench` wrote on an H200.
RECORDED = Path(bench.__file__).parent / "data"


def backward_times(file: str, preset: str, dtype: str) -> dict[str, float]:
    """Recorded µs of the backward's kernels on an H200, zero-fill not counted: ours by name, and the fastest "public" one."""
    rows = json.loads((RECORDED / file).read_text(encoding="utf-8"))["rows"]
    times = {r["operator"]: r["bwd_kernels"] for r in rows if (r["preset"], r["dtype"]) == (preset, dtype)}
    ours = {name: time for name, time in times.items() if name in bench.OURS}
    return ours | {"public": min(time for name, time in times.items() if name not in bench.OURS)}


def open_ground() -> str:
    """Three things the learner's operator does not do, each with a measured figure to beat."""
    e16, e32 = (backward_times("bench_h200_encoder.json", "encoder", dtype) for dtype in ("fp16", "fp32"))
    d16, d32 = (backward_times("bench_h200.json", "decoder", dtype) for dtype in ("fp16", "fp32"))
    return f"""
**Neighbours merged before the atomics.** In an encoder every pixel is a query, and neighbours look at the same pixels: on
average each is added to 64 times. A program that owns a tile of queries can collect a window of the gradient first and add
each of its pixels once. To beat: {e16["merged"]:.0f} µs in float16, {e32["merged"]:.0f} in float32, where the same sum without
merging takes {e16["plain"]:.0f} and {e32["plain"]:.0f}, and the best public kernel {e16["public"]:.0f} and {e32["public"]:.0f}
(an H200, encoder backward). `msda_core/kernels/merged` does it.

**The same bits every time.** Atomics add in any order, so two runs differ in the last digits. Sort the contributions by
pixel, or add whole numbers: fixed point has no order. `msda_core` does the latter under `deterministic=True`, with twice
the memory of a float32 gradient. To beat: {e32["plain"]:.0f} µs, which the one in any order takes.

**Ragged points.** Every query has K points on every level here, useful or not. With a list of points for each query, a
kernel would skip those whose weight is next to nothing, and a small object could have more than a wall. To beat, with
sixteen points for everybody: {d16["msda_core"]:.1f} µs in float16 and {d32["msda_core"]:.1f} in float32, the best public one
{d16["public"]:.1f} and {d32["public"]:.1f} (decoder backward).
"""


def groups_of_rows(size: int) -> Picture:
    """Which queries of a level meet in a program when pixels are taken row by row, and what merging then saves."""
    H, W = LEVELS[0]
    order = torch.arange(H * W)
    merged, plain = additions(order, size)
    group = (order // size).reshape(H, W)
    figure, ax = new_figure(7.5, 4.2)
    ax.imshow((group % 2).numpy(), cmap="Greys", vmin=-0.3, vmax=2.5, interpolation="nearest")
    chosen = int(group.max()) // 2
    y, x = (group == chosen).nonzero().unbind(1)
    ax.scatter(x.numpy(), y.numpy(), s=12, color=BLUE, marker="s", label="one program's queries")
    ax.set(
        xlabel="x", ylabel="y", title=f"runs of {size} queries, row by row: {plain / merged:.2f} times fewer additions"
    )
    ax.legend(loc="upper right", framealpha=1)
    return Picture(
        figure,
        f"A level of {H} by {W} pixels, cut into runs of {size} queries row by row; one run is marked: a strip of a row or two. "
        f"Merging inside runs leaves {merged} of {plain} additions, {plain / merged:.2f} times fewer.",
    )

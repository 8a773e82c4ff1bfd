"""A detector small enough to be trained in a notebook, and its pictures (lab 10).

Each scene is a grid of cells, each cell holds one shape, and each cell has one query that has to put a box around it. The
box is predicted from what the query's points bring back, and from nothing else: to find the shape, the points must go there.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from torch import Tensor, nn

from msda_core.figures.picture import BLUE, GREEN, ORANGE, Picture, new_figure

__all__ = ["SIDE", "Progress", "Scene", "TinyDetector", "loss_curve", "overlap", "scene", "shapes_and_points", "train"]

CELLS = 2  # a side
SIDE = 24  # pixels a side
CHANNELS = 16
POINTS = 4
HEADS = 2
KINDS = ("disc", "square", "diamond")


class Scene(NamedTuple):
    """An image and what is in it.

    Attributes:
        image: (SIDE, SIDE), values from 0 to 1.
        boxes: (CELLS * CELLS, 4), (x, y, w, h) of the shape in each cell, in fractions of the image.
    """

    image: Tensor
    boxes: Tensor


def scene(seed: int) -> Scene:
    """A disc, a square or a diamond in each cell, of any size and brightness, on a noisy ground."""
    generator = torch.Generator().manual_seed(seed)
    dice = torch.rand(CELLS * CELLS, 5, generator=generator)
    image = 0.15 * torch.rand(SIDE, SIDE, generator=generator)
    y, x = torch.meshgrid(torch.arange(SIDE) + 0.5, torch.arange(SIDE) + 0.5, indexing="ij")
    cell, boxes = SIDE / CELLS, []
    for number, (a, b, c, d, e) in enumerate(dice.tolist()):
        radius = 1.5 + 1.5 * c
        centre_x = cell * (number % CELLS) + radius + a * (cell - 2 * radius)
        centre_y = cell * (number // CELLS) + radius + b * (cell - 2 * radius)
        across, down = (x - centre_x).abs(), (y - centre_y).abs()
        inside = {
            "disc": across**2 + down**2 <= radius**2,
            "square": torch.maximum(across, down) <= radius,
            "diamond": across + down <= 1.2 * radius,
        }[KINDS[int(d * len(KINDS))]]
        image = torch.where(inside, 0.6 + 0.4 * e, image)
        boxes.append([centre_x / SIDE, centre_y / SIDE, 2 * radius / SIDE, 2 * radius / SIDE])
    return Scene(image, torch.tensor(boxes))


class TinyDetector(nn.Module):
    """A convolution that sees a cell, one layer of deformable attention, and a head that draws boxes.

    Args:
        layer: made as layer(d_model, n_levels, n_heads, n_points), called as Deformable DETR's attention.
    """

    def __init__(self, layer: Callable[..., nn.Module]):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, CHANNELS, 5, stride=2, padding=2), nn.ReLU(),
            nn.Conv2d(CHANNELS, CHANNELS, 5, stride=1, padding=2), nn.ReLU(),
        )  # fmt: skip
        self.place = nn.Conv2d(2, CHANNELS, 1)
        cell = SIDE // CELLS // 2
        self.ask = nn.Conv2d(CHANNELS, CHANNELS, cell, stride=cell)
        self.attention = layer(CHANNELS, 1, HEADS, POINTS)
        self.box = nn.Linear(CHANNELS, 4)
        self.locations: Tensor | None = None  # (Q, M, K, 2), where the last call looked
        self.attention.sampling_offsets.register_forward_hook(self._see)

    def forward(self, image: Tensor) -> Tensor:
        """(SIDE, SIDE) → (Q, 4), a box (x, y, w, h) for each cell, in fractions of the image."""
        seen = self.stem(2 * image[None, None] - 0.5)
        side = seen.shape[-1]
        ramp = ((torch.arange(side, device=image.device) + 0.5) / side * 2 - 1).expand(side, side)
        pixels = seen + self.place(torch.stack([ramp, ramp.T])[None])
        query = self.ask(seen).flatten(2).transpose(1, 2)
        self._reference = _centres().to(image.device)
        out = self.attention(
            query,
            self._reference[None, :, None],
            pixels.flatten(2).transpose(1, 2).contiguous(),
            torch.tensor([[side, side]], device=image.device),
            torch.tensor([0], device=image.device),
        )
        change = self.box(out[0])
        self._side = side
        return torch.cat([self._reference + 0.25 * change[:, :2], 0.2 * (0.5 * change[:, 2:]).exp()], -1)

    def _see(self, module, args, offsets) -> None:
        """Where the points go: the offsets are in pixels of the one level."""
        places = offsets.detach().reshape(CELLS * CELLS, HEADS, POINTS, 2) / (SIDE // 2)
        self.locations = _centres().to(offsets.device)[:, None, None] + places


def _centres() -> Tensor:
    middle = (torch.arange(CELLS) + 0.5) / CELLS
    y, x = torch.meshgrid(middle, middle, indexing="ij")
    return torch.stack([x, y], -1).reshape(-1, 2)


def overlap(one: Tensor, other: Tensor) -> Tensor:
    """Intersection over union of boxes (N, 4), pair by pair: (N,)."""
    low = torch.maximum(one[:, :2] - one[:, 2:] / 2, other[:, :2] - other[:, 2:] / 2)
    high = torch.minimum(one[:, :2] + one[:, 2:] / 2, other[:, :2] + other[:, 2:] / 2)
    common = (high - low).clamp(min=0).prod(-1)
    return common / (one[:, 2:].prod(-1) + other[:, 2:].prod(-1) - common)


@dataclass
class Progress:
    """How a training goes.

    Attributes:
        losses: one a step; seconds: since it began; detector: as it is now.
    """

    losses: list[float] = field(default_factory=list)
    seconds: float = 0.0
    detector: TinyDetector | None = None


def train(detector: TinyDetector, *, steps: int, seconds: float, rate: float = 4e-3) -> Iterator[Progress]:
    """Train on a fresh scene a step, until steps or seconds run out; yields after each step."""
    device = next(detector.parameters()).device
    optimizer = torch.optim.Adam(detector.parameters(), lr=rate)
    progress, started = Progress(detector=detector), time.perf_counter()
    for step in range(steps):
        image, boxes = (t.to(device) for t in scene(1000 + step))
        found = detector(image)
        loss = (found - boxes).abs().sum(-1).mean() + (1 - overlap(found, boxes)).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(detector.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = rate * (1 - 0.9 * max(step / steps, progress.seconds / seconds))
        optimizer.step()
        progress.losses.append(loss.item())
        progress.seconds = time.perf_counter() - started
        yield progress
        if progress.seconds > seconds:
            return


def shapes_and_points(rows: list[tuple[str, Scene, Tensor, Tensor]]) -> Picture:
    """Scenes side by side with their boxes, the boxes found, and where the points looked.

    Args:
        rows: (title, scene, boxes found (Q, 4), locations (Q, M, K, 2)), one for each panel.
    """
    figure, axes = new_figure(4.0 * len(rows), 5.2, ncols=len(rows), squeeze=False)
    said = []
    for ax, (title, (image, boxes), found, locations) in zip(axes[0], rows):
        ax.imshow(image.numpy(), cmap="gray", vmin=0, vmax=1, extent=(0, 1, 1, 0), interpolation="nearest")
        for box, colour, style in ((boxes, GREEN, "-"), (found, ORANGE, "--")):
            for x, y, w, h in box.tolist():
                ax.add_patch(
                    Rectangle((x - w / 2, y - h / 2), w, h, fill=False, edgecolor=colour, linestyle=style, lw=2)
                )
        for head, (marker, colour) in zip(range(locations.shape[1]), (("o", BLUE), ("^", "#CC79A7"))):
            points = locations[:, head].reshape(-1, 2).numpy()
            ax.scatter(
                points[:, 0], points[:, 1], marker=marker, s=38, color=colour, edgecolors="white", linewidths=0.8
            )
        x, y, w, h = boxes[:, None, None].unbind(-1)
        hit = ((locations[..., 0] - x).abs() <= w / 2) & ((locations[..., 1] - y).abs() <= h / 2)
        common = overlap(found, boxes).mean().item()
        said.append(
            f"{title}: {int(hit.sum())} of {hit.numel()} points in their shape's box, mean overlap {common:.2f}"
        )
        ax.set(xlim=(0, 1), ylim=(1, 0), xticks=[], yticks=[])
        ax.set_title(f"{title}\n{int(hit.sum())} of {hit.numel()} points in the box, overlap {common:.2f}", fontsize=10)
        ax.set_aspect("equal")
    keys = [
        Line2D([], [], color=GREEN, lw=2, label="true box"),
        Line2D([], [], color=ORANGE, lw=2, linestyle="--", label="box found"),
        Line2D([], [], color=BLUE, marker="o", lw=0, label="points of head 0"),
        Line2D([], [], color="#CC79A7", marker="^", lw=0, label="of head 1"),
    ]
    figure.legend(handles=keys, loc="outside lower center", ncols=2 * len(rows), frameon=False, fontsize=9)
    return Picture(
        figure,
        "Scenes with true boxes (solid), boxes found (dashed) and sampling points (circles: head 0, triangles: head 1). "
        + "; ".join(said) + ".",
    )  # fmt: skip


def loss_curve(losses: list[float], seconds: float) -> Picture:
    """The loss of every step, and its mean over the last twenty."""
    steps = torch.tensor(losses)
    mean = torch.stack([steps[max(0, i - 19) : i + 1].mean() for i in range(len(steps))])
    figure, ax = new_figure(7.5, 2.8)
    ax.plot(steps.numpy(), color="#c3cad3", lw=1, label="one step")
    ax.plot(mean.numpy(), color=BLUE, lw=2, label="mean of twenty")
    ax.set(xlabel="step", ylabel="loss", ylim=(0, None))
    ax.legend(frameon=False)
    first, last = mean[min(19, len(mean) - 1)].item(), mean[-1].item()
    return Picture(
        figure,
        f"The loss over {len(losses)} steps in {seconds:.0f} s: the mean of twenty goes from {first:.2f} to {last:.2f}.",
    )

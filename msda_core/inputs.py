"""The one maker of calls of the operator: what tests, figures, benchmarks and checks run it on."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from msda_core.shapes import level_starts

__all__ = ["Call", "encoder_locations", "example_call", "make_call", "pyramid"]


class Call(NamedTuple):
    """The operator's five tensors, and a gradient for its output."""

    value: Tensor
    shapes: Tensor
    starts: Tensor
    loc: Tensor
    attn: Tensor
    grad_out: Tensor

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The five arguments of `multi_scale_deformable_attention`."""
        return self.value, self.shapes, self.starts, self.loc, self.attn


def make_call(
    levels: Sequence[tuple[int, int]] = ((4, 6), (3, 2)),
    *,
    B: int = 1,
    Q: int | None = 3,
    M: int = 2,
    D: int = 8,
    K: int = 2,
    dtype: torch.dtype = torch.float32,
    loc_dtype: torch.dtype | None = None,
    margin: float = 0.2,
    spread: float | str | None = None,
    normalised: bool = True,
    gap: int = 0,
    table: torch.dtype = torch.int64,
    device: torch.device | str = "cpu",
    draw_on: torch.device | str = "cpu",
    seed: int = 0,
) -> Call:
    """A random call, the same for the same arguments.

    Args:
        levels: (H, W) of each.
        Q: queries; None for one at each pixel of the pyramid, as in an encoder.
        loc_dtype: of locations and attention weights; None for dtype.
        margin: locations are uniform in [-margin, 1 + margin].
        spread: locations around each query's own pixel instead, see `encoder_locations`; needs Q = None.
        normalised: whether the attention weights of a query and head sum to 1; else each is uniform in [0, 1).
        gap: pixels of NaN before each level, which nobody may read.
        table: integer type of shapes and starts.
        device: where the tensors are; draw_on: where they are drawn, since each device draws other numbers.
    """
    generator = torch.Generator(draw_on).manual_seed(seed)
    draw: dict[str, Any] = dict(device=draw_on, generator=generator)
    L, pixels = len(levels), sum(h * w for h, w in levels)
    if Q is None:
        Q = pixels
    value = torch.randn(B, pixels, M, D, **draw)
    if spread is None:
        loc = torch.rand(B, Q, M, L, K, 2, **draw) * (1 + 2 * margin) - margin
    else:
        loc = encoder_locations((B, Q, M, L, K, 2), levels, spread, draw_on, generator)
    attn = torch.rand(B, Q, M, L * K, **draw)
    attn = (attn.softmax(-1) if normalised else attn).view(B, Q, M, L, K)
    grad_out = torch.randn(B, Q, M * D, **draw)
    starts = level_starts(levels)
    if gap:
        packed, value = value, torch.full((B, pixels + gap * L, M, D), torch.nan, device=draw_on)
        for level, (h, w) in enumerate(levels):
            first, starts[level] = starts[level], starts[level] + gap * (level + 1)
            value[:, starts[level] : starts[level] + h * w] = packed[:, first : first + h * w]
    return Call(
        value.to(device, dtype), torch.tensor(levels, dtype=table, device=device),
        torch.tensor(starts, dtype=table, device=device), loc.to(device, loc_dtype or dtype),
        attn.to(device, loc_dtype or dtype), grad_out.to(device, dtype),
    )  # fmt: skip


def example_call(M: int = 2) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """A call small enough for the interpreter, with a decoder's proportions: the arguments of `msda_forward`.

    16 queries, M heads of 32 channels, levels of 20 x 34 and 10 x 17, 4 points on each; float32. Of the locations,
    uniform in [-0.1, 1.1], three in ten lie outside.
    """
    return make_call(((20, 34), (10, 17)), Q=16, M=M, D=32, K=4, margin=0.1, seed=5).inputs


def pyramid(height: int, width: int) -> list[tuple[int, int]]:
    """Feature maps of an image at strides 8 to 64, rounded up: 800x1333 → 100x167, 50x84, 25x42, 13x21."""
    return [(-(-height // stride), -(-width // stride)) for stride in (8, 16, 32, 64)]


def encoder_locations(
    shape: Sequence[int],
    levels: Sequence[tuple[int, int]],
    spread: float | str,
    device: torch.device | str,
    generator: torch.Generator,
) -> Tensor:
    """Where the pixels of a pyramid look: (B, Q, M, L, K, 2), float32.

    Args:
        shape: (B, Q, M, L, K, 2), with one query for each pixel of `levels`.
        spread: of a Gaussian around each query's own pixel centre, in pixels of every level; "initial" for the offsets that
            Deformable DETR starts from, point k going k + 1 pixels into a direction of the head's own; "uniform" in [0, 1].
        device, generator: where and how they are drawn.
    """
    _, _, M, _, K, _ = shape
    if spread == "uniform":
        return torch.rand(*shape, device=device, generator=generator)
    sizes = torch.tensor(levels, device=device).flip(-1)[:, None]  # (W, H) of each level
    centres = torch.cat([
        torch.stack([
            ((torch.arange(w, device=device) + 0.5) / w).expand(h, w),
            ((torch.arange(h, device=device) + 0.5) / h)[:, None].expand(h, w),
        ], -1).view(-1, 2)
        for h, w in levels
    ])  # fmt: skip
    if spread == "initial":
        angle = torch.arange(M, device=device) * (2 * math.pi / M)
        direction = torch.stack([angle.cos(), angle.sin()], -1)
        direction = direction / direction.abs().amax(-1, keepdim=True)
        offsets = direction[:, None, None] * torch.arange(1, K + 1, device=device)[:, None]
        offsets = (offsets / sizes).expand(*shape)
    else:
        offsets = float(spread) * torch.randn(*shape, device=device, generator=generator) / sizes
    return centres[None, :, None, None, None] + offsets

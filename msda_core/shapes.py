"""The tensor contract: axes, level bookkeeping, validation and its messages.

Axes, as in the papers: B batch, Q queries, M heads, L levels, K points per level, D channels per head,
S pixels over all levels.

    value               (B, S, M, D)
    spatial_shapes      (L, 2)            (H, W) of each level
    level_start_index   (L,)              first pixel of each level in S
    sampling_locations  (B, Q, M, L, K, 2)  (x, y) in [0, 1]
    attention_weights   (B, Q, M, L, K)
    output              (B, Q, M * D)
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["Dims", "Levels", "Starts", "check_dims", "check_levels", "level_starts", "levels_of", "starts_of"]

if TYPE_CHECKING:
    import numpy as np

    _Array = Tensor | np.ndarray
else:
    _Array = Tensor  # and arrays, which need no numpy here

#: (L, 2), (H, W) of each level: a tensor or an array of whole numbers, or a sequence of rows, each of which may be one.
Levels = _Array | Sequence[Any]
#: (L,), first pixel of each level: likewise; None for levels that lie one after another.
Starts = _Array | Sequence[Any] | None

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTS = (torch.int32, torch.int64)


class Dims(NamedTuple):
    """The sizes of one call."""

    B: int
    S: int
    M: int
    D: int
    Q: int
    L: int
    K: int


def levels_of(spatial_shapes: Levels) -> list[tuple[int, int]]:
    """The level table as a list of (H, W). Reads the values, so a CUDA tensor costs a synchronisation.

    Raises:
        ValueError: the table is not (L, 2) whole numbers, or a height or width is not positive.
    """
    if isinstance(spatial_shapes, Tensor):
        if spatial_shapes.dtype not in INTS:
            raise ValueError(
                f"spatial_shapes must hold int32 or int64, got {_name(spatial_shapes.dtype)}. "
                "Are these sizes in pixels, or normalised ones?"
            )
    rows = [tuple(row) if isinstance(row, Sequence) else (row,) for row in map(_plain, _plain(spatial_shapes))]
    if not rows or any(len(row) != 2 for row in rows):
        raise ValueError(f"spatial_shapes must be (L, 2) rows of (H, W), got {rows}. Is a level missing its width?")
    levels = [(_whole("spatial_shapes", h), _whole("spatial_shapes", w)) for h, w in rows]
    for level, (h, w) in enumerate(levels):
        if h < 1 or w < 1:
            raise ValueError(f"spatial_shapes must be positive, got (H, W) = {(h, w)} at level {level}. Is it padding?")
    return levels


def starts_of(level_start_index: Starts) -> list[int] | None:
    """The level starts as a list, or None. Reads the values, so a CUDA tensor costs a synchronisation.

    Raises:
        ValueError: an entry is not a whole number.
    """
    if level_start_index is None:
        return None
    return [_whole("level_start_index", start) for start in _plain(level_start_index)]


def _plain(table: Any) -> Any:
    """A tensor or an array as nested lists of numbers; anything else as it came."""
    return table.tolist() if hasattr(table, "tolist") else table


def _whole(name: str, number: Any) -> int:
    whole = int(number)
    if whole != number:
        raise ValueError(f"{name} must hold whole numbers, got {number}. Was it normalised?")
    return whole


def level_starts(levels: Sequence[tuple[int, int]]) -> list[int]:
    """First pixel of each level when the levels lie one after another: [0, H0*W0, H0*W0 + H1*W1, …]."""
    starts, total = [], 0
    for h, w in levels:
        starts.append(total)
        total += h * w
    return starts


def check_levels(levels: Sequence[tuple[int, int]], starts: Sequence[int] | None, S: int) -> list[int]:
    """Check a level table against the number of pixels, and return the level starts.

    Packed levels must fill S exactly. Starts that leave gaps are allowed as long as every level lies inside S.

    Raises:
        ValueError: the levels do not fill S, or one of them reaches past it.
    """
    packed = level_starts(levels)
    starts = packed if starts is None else [int(s) for s in starts]
    if len(starts) != len(levels):
        raise ValueError(
            f"level_start_index must have one entry per level, expected {len(levels)}, got {len(starts)}. "
            "Was it computed for another pyramid?"
        )
    total = sum(h * w for h, w in levels)
    if starts == packed and total != S:
        raise ValueError(
            f"value must hold S = {total} pixels, the sum of H*W over {list(levels)}, got S = {S}. "
            "Is a level missing from value, or is spatial_shapes (W, H)?"
        )
    for level, ((h, w), start) in enumerate(zip(levels, starts)):
        if start < 0 or start + h * w > S:
            raise ValueError(
                f"level {level} of size {(h, w)} must lie inside the S = {S} pixels of value, "
                f"got level_start_index {start}, so it ends at {start + h * w}. Is the start of another pyramid?"
            )
    return starts


def check_dims(
    value: Tensor,
    spatial_shapes: Levels,
    level_start_index: Starts,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    points_per_level: Sequence[int] | None = None,
) -> Dims:
    """Check everything about a call that can be read without looking at data: ranks, sizes, dtypes, devices.

    Args:
        points_per_level: K of each level, for locations (B, Q, M, P, 2) and weights (B, Q, M, P) with P their sum.

    Returns:
        The sizes of the call; of a ragged one K is P, the points of all levels.

    Raises:
        ValueError: says what was expected, what came, and the likely cause.
    """
    named = dict(value=value, sampling_locations=sampling_locations, attention_weights=attention_weights)
    for name, tensor in named.items():
        if not isinstance(tensor, Tensor):
            raise ValueError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}. Is it still a numpy array?")

    if value.dim() != 4:
        hint = " Are the heads still folded into the channels?" if value.dim() == 3 else " Is it flattened over levels?"
        raise ValueError(f"value must be (B, S, M, D), got {tuple(value.shape)}.{hint}")
    B, S, M, D = value.shape

    loc_shape = tuple(sampling_locations.shape)
    if points_per_level is None:
        layout, points = "(B, Q, M, L, K", "Are levels and points still one axis?"
        hint = {
            5: "Is the (x, y) axis missing" + (", or points_per_level?" if loc_shape[-1] == 2 else "?"),
            6: "Are these boxes instead of points (x, y)?",
        }.get(len(loc_shape), "Is an axis folded into another?")
    else:
        layout, points = (
            "(B, Q, M, sum(points_per_level)",
            "Are levels and points two axes, as without points_per_level?",
        )
        hint = {6: points, 5: "Are these boxes instead of points (x, y)?"}.get(len(loc_shape), "Is an axis missing?")
    if len(loc_shape) != layout.count(",") + 2 or loc_shape[-1] != 2:
        raise ValueError(f"sampling_locations must be {layout}, 2), got {loc_shape}. {hint}")
    Q, K = loc_shape[1], loc_shape[-2]
    L = loc_shape[3] if points_per_level is None else _check_points(points_per_level, K)
    if loc_shape[0] != B:
        raise ValueError(
            f"sampling_locations must have batch {B} as value has, got {loc_shape[0]} in {loc_shape}. "
            "Is the query axis first (sequence-first layout)?"
        )
    if loc_shape[2] != M:
        raise ValueError(
            f"sampling_locations must have {M} heads as value has, got {loc_shape[2]} in {loc_shape}. "
            "Are heads and levels transposed?"
        )

    weight_shape = tuple(attention_weights.shape)
    if weight_shape != loc_shape[:-1]:
        hint = "Are two axes transposed?" if len(weight_shape) == len(loc_shape) - 1 else points
        raise ValueError(f"attention_weights must be {layout}) = {loc_shape[:-1]}, got {weight_shape}. {hint}")

    rows = len(spatial_shapes)
    if isinstance(spatial_shapes, Tensor) and (spatial_shapes.dim() != 2 or spatial_shapes.shape[1] != 2):
        raise ValueError(
            f"spatial_shapes must be (L, 2), got {tuple(spatial_shapes.shape)}. Is it one level short of a list?"
        )
    if rows != L:
        raise ValueError(
            f"spatial_shapes must have one row per level, expected {L}, got {rows}. "
            f"Does {'sampling_locations hold' if points_per_level is None else 'points_per_level have'} another number of levels?"
        )
    if level_start_index is not None and len(level_start_index) != L:
        raise ValueError(
            f"level_start_index must have one entry per level, expected {L}, got {len(level_start_index)}. "
            "Was it computed for another pyramid?"
        )
    for name, table in (("spatial_shapes", spatial_shapes), ("level_start_index", level_start_index)):
        if isinstance(table, Tensor) and table.dtype not in INTS:
            raise ValueError(f"{name} must hold int32 or int64, got {_name(table.dtype)}. Was it normalised?")

    for name, tensor in named.items():
        if tensor.dtype not in FLOATS:
            raise ValueError(
                f"{name} must be float64, float32, float16 or bfloat16, got {_name(tensor.dtype)}. "
                "Is it an image still in integers?"
            )
        if tensor.device != value.device:
            raise ValueError(
                f"{name} must be on {value.device} as value is, got {tensor.device}. Was only part of the call moved?"
            )
    return Dims(B, S, M, D, Q, L, K)


def _check_points(points_per_level: Sequence[int], points: int) -> int:
    """The number of levels of a ragged call with so many points in all."""
    if any(count < 1 or count != int(count) for count in points_per_level):
        raise ValueError(
            f"points_per_level must hold a positive number for each level, got {list(points_per_level)}. "
            "Is there a level that nobody samples? Leave it out, and give level_start_index."
        )
    if sum(points_per_level) != points:
        raise ValueError(
            f"sampling_locations must hold {sum(points_per_level)} points, the sum of {list(points_per_level)}, got {points}. "
            "Is points_per_level of another layer?"
        )
    return len(points_per_level)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

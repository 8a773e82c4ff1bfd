"""What is checked before a call runs: its dimensions once for each kind of call, its level table once for each table."""

import functools
from typing import Any

import torch
from torch import Tensor

from msda_core.shapes import Levels, Starts, check_dims, check_levels, levels_of, starts_of

__all__ = ["check_once", "known_levels", "on_device", "on_host", "traceable"]

_checked: dict[tuple, None] = {}
#: Level tables on a device → (H, W) of each level. One that is read again after its memory was reused may be out of date:
#: it decides how queries are grouped, and nothing else.
_known: dict[tuple, tuple[tuple[int, int], ...]] = {}


def check_once(
    value: Tensor,
    spatial_shapes: Levels,
    level_start_index: Starts,
    sampling_locations: Tensor,
    attention_weights: Tensor,
) -> None:
    """`check_dims`, once for every combination of shapes, dtypes and devices; and where the level table is.

    Raises:
        ValueError: as `check_dims`; the table is on another device than the CPU or value's.
    """
    call: tuple | None
    try:
        call = (
            value.shape, sampling_locations.shape, attention_weights.shape,
            value.dtype, sampling_locations.dtype, attention_weights.dtype,
            value.device, sampling_locations.device, attention_weights.device,
            _about(spatial_shapes), _about(level_start_index),
        )  # fmt: skip
        if call in _checked:
            return
    except (AttributeError, TypeError):  # not tensors; a symbolic size
        call = None
    check_dims(value, spatial_shapes, level_start_index, sampling_locations, attention_weights)
    for name, table in (("spatial_shapes", spatial_shapes), ("level_start_index", level_start_index)):
        if isinstance(table, Tensor) and table.device.type not in ("cpu", "meta") and table.device != value.device:
            raise ValueError(
                f"{name} must be on the CPU or on {value.device} as value is, got {table.device}. "
                "Was only part of the call moved?"
            )
    if call is not None:
        _remember(_checked, call)


def _about(table: Any) -> Any:
    if isinstance(table, Tensor):
        return table.shape, table.dtype, table.device
    return None if table is None else len(table)


def _remember(seen: dict, key: tuple, value: Any = None) -> None:
    if len(seen) >= 4096:
        seen.clear()
        _packed.cache_clear()  # its tables are to be known again
    seen[key] = value


# --------------------------------------------------------------------------------------------------- level tables


def on_host(spatial_shapes: Levels, level_start_index: Starts, S: int) -> tuple[list[tuple[int, int]], list[int]]:
    """The level table as lists, checked against S. Reads the values, so a table on a GPU costs a synchronisation.

    Raises:
        ValueError: as `levels_of`, `starts_of` and `check_levels`.
    """
    levels = levels_of(spatial_shapes)
    return levels, check_levels(levels, starts_of(level_start_index), S)


def on_device(spatial_shapes: Levels, level_start_index: Starts, value: Tensor) -> tuple[Tensor, Tensor]:
    """The level table as two integer tensors on value's device, checked against S.

    Raises:
        ValueError: as `on_host`. A table on the GPU is read the first time it is seen, and not while a graph is captured.
    """
    if isinstance(spatial_shapes, Tensor) and spatial_shapes.device.type == "cuda":
        if level_start_index is None:
            pixels = spatial_shapes.prod(1)
            level_start_index = pixels.cumsum(0) - pixels
        elif not isinstance(level_start_index, Tensor) or level_start_index.device.type == "cpu":
            level_start_index = _tensor(tuple(starts_of(level_start_index) or ()), value.device)
        _check_device_table(spatial_shapes, level_start_index, value.shape[1])
        return spatial_shapes, level_start_index
    starts = None if level_start_index is None else tuple(starts_of(level_start_index) or ())
    rows = spatial_shapes.tolist() if isinstance(spatial_shapes, Tensor) else spatial_shapes
    try:
        rows = tuple(map(tuple, rows))
        plain = type(sum(map(sum, rows))) is int
    except TypeError:
        plain = False
    # Only numbers can be looked up: a tensor is found by its address, and may hold something else by then.
    return _packed(rows if plain else tuple(levels_of(rows)), starts, value.shape[1], value.device)


def _check_device_table(shapes: Tensor, starts: Tensor, S: int) -> None:
    """Read a table that lives on the GPU, which waits for the GPU, the first time it is seen."""
    key = _key(shapes, starts, S)
    if key not in _known and not torch.cuda.is_current_stream_capturing():
        levels, _ = on_host(shapes, starts, S)
        _remember(_known, key, tuple(levels))


def known_levels(shapes: Tensor, starts: Tensor, S: int) -> tuple[tuple[int, int], ...] | None:
    """What a table that `on_device` returned holds, without a look at it; None where it was never read."""
    return _known.get(_key(shapes, starts, S))


def _key(shapes: Tensor, starts: Tensor, S: int) -> tuple:
    return shapes.data_ptr(), _version(shapes), starts.data_ptr(), _version(starts), S, len(shapes)


def _version(tensor: Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


@functools.lru_cache(maxsize=1024)
def _packed(rows: tuple, starts: tuple | None, S: int, device: torch.device) -> tuple[Tensor, Tensor]:
    levels, checked = on_host(rows, starts, S)
    tables = _tensor(tuple(levels), device), _tensor(tuple(checked), device)
    _remember(_known, _key(*tables, S), tuple(levels))
    return tables


@functools.lru_cache(maxsize=1024)
def _tensor(table: tuple, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # it is kept, and may be saved for a backward later
        return torch.tensor(table, dtype=torch.int32, device=device)


def traceable(spatial_shapes: Levels, level_start_index: Starts, value: Tensor) -> tuple[Tensor, Tensor | None]:
    """The level table as tensors a graph can hold. A tensor's values are read when the graph runs, not now."""
    starts: Any = level_start_index
    if not isinstance(starts, Tensor):
        starts = starts_of(starts)
    if not isinstance(spatial_shapes, Tensor):
        levels = levels_of(spatial_shapes)
        if not isinstance(starts, Tensor):
            starts = check_levels(levels, starts, value.shape[1])
        spatial_shapes = torch.tensor([list(level) for level in levels])
    if starts is not None and not isinstance(starts, Tensor):
        starts = torch.tensor(list(starts))
    return spatial_shapes, starts

"""What is checked before a call runs: its dimensions once for each kind of call, its level table once for each table."""

import functools
import weakref
from typing import Any, NamedTuple

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
    points: tuple[int, ...] | None = None,
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
            _about(spatial_shapes), _about(level_start_index), points,
        )  # fmt: skip
        if call in _checked:
            return
    except (AttributeError, TypeError):  # not tensors; a symbolic size
        call = None
    check_dims(value, spatial_shapes, level_start_index, sampling_locations, attention_weights, points)
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


def on_host(
    spatial_shapes: Levels, level_start_index: Starts, S: int, points: tuple[int, ...] | None = None
) -> tuple[list[tuple[int, int]], list[int]]:
    """The level table as lists, checked against S. Reads the values, so a table on a GPU costs a synchronisation.

    Args:
        points: of a ragged call, K of each level. The table then has a row for each point.

    Raises:
        ValueError: as `levels_of`, `starts_of` and `check_levels`.
    """
    levels = levels_of(spatial_shapes)
    starts = check_levels(levels, starts_of(level_start_index), S)
    if points is None:
        return levels, starts
    return [levels[l] for l in _level_of(points)], [starts[l] for l in _level_of(points)]


@functools.lru_cache(maxsize=1024)
def _level_of(points: tuple[int, ...]) -> tuple[int, ...]:
    """The level of each point: (3, 1) → (0, 0, 0, 1)."""
    return tuple(level for level, count in enumerate(points) for _ in range(count))


def on_device(
    spatial_shapes: Levels, level_start_index: Starts, value: Tensor, points: tuple[int, ...] | None = None
) -> tuple[Tensor, Tensor]:
    """The level table as two integer tensors on value's device, checked against S; `points` as in `on_host`.

    A table that lives on the GPU is read by the host, which waits for the GPU, where nobody has seen its address and version
    before. Seen again as the same tensor it is taken as it is. Another tensor at a known address is what a model leaves behind
    that makes its table anew in every step: that one is checked on the device (`kernels.fit`), without waiting. A level that
    reaches outside value then contributes nothing, and the next call says so.

    Raises:
        ValueError: as `on_host`; or, of an earlier call, the device found a table that does not fit.
    """
    S = value.shape[1]
    if isinstance(spatial_shapes, Tensor) and spatial_shapes.device.type == "cuda":
        return _resident(spatial_shapes, level_start_index, S, points)
    starts = None if level_start_index is None else tuple(starts_of(level_start_index) or ())
    rows: Any = spatial_shapes.tolist() if isinstance(spatial_shapes, Tensor) else spatial_shapes
    try:
        rows = tuple(map(tuple, rows))
        plain = type(sum(map(sum, rows))) is int
    except TypeError:
        plain = False
    # Only numbers can be looked up: a tensor is found by its address, and may hold something else by then.
    return _packed(rows if plain else tuple(levels_of(rows)), starts, S, value.device, points)


@functools.lru_cache(maxsize=1024)
def _packed(
    rows: tuple, starts: tuple | None, S: int, device: torch.device, points: tuple[int, ...] | None
) -> tuple[Tensor, Tensor]:
    levels, checked = on_host(rows, starts, S, points)
    tables = _tensor(tuple(levels), device), _tensor(tuple(checked), device)
    _remember(_known, _key(*tables, S), tuple(levels))
    return tables


@functools.lru_cache(maxsize=1024)
def _tensor(table: tuple, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # it is kept, and may be saved for a backward later
        return torch.tensor(table, dtype=torch.int32, device=device)


def known_levels(shapes: Tensor, starts: Tensor, S: int) -> tuple[tuple[int, int], ...] | None:
    """What a table that `on_device` returned holds, without a look at it; None where it was never read."""
    return _known.get(_key(shapes, starts, S))


def _key(shapes: Tensor, starts: Tensor, S: int) -> tuple:
    return shapes.data_ptr(), _version(shapes), starts.data_ptr(), _version(starts), S, len(shapes)


def _version(tensor: Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


# ------------------------------------------------------------------------------------------------- tables on the GPU


class _Seen(NamedTuple):
    """A table that was checked, by its two tensors and their versions; and what the kernels read for it.

    None stands for the given tensor itself: nothing here keeps it, or its memory, from going.
    """

    shapes: weakref.ref
    starts: weakref.ref | None
    versions: tuple[int, int]
    made: tuple[Any, Any]


_seen: dict[tuple, _Seen] = {}


def _resident(
    shapes: Tensor, level_start_index: Starts, S: int, points: tuple[int, ...] | None
) -> tuple[Tensor, Tensor]:
    _raise_what_was_found()
    given: Any = level_start_index if isinstance(level_start_index, Tensor) else None
    listed = None if given is not None or level_start_index is None else tuple(starts_of(level_start_index) or ())
    versions = _version(shapes), 0 if given is None else _version(given)
    key = id(shapes), id(given), listed, S, points
    seen = _seen.get(key)
    if (
        seen is not None
        and seen.shapes() is shapes
        and (seen.starts() if seen.starts is not None else None) is given
        and seen.versions == versions
    ):
        made, first = seen.made
        return shapes if made is None else made, given if first is None and given is not None else first

    starts = given
    if listed is not None or (given is not None and given.device.type == "cpu"):
        starts = _tensor(listed if listed is not None else tuple(starts_of(given) or ()), shapes.device)
    tables = _checked_on_the_way(shapes, starts, S)
    if points is not None:
        index = _tensor(_level_of(points), shapes.device)
        tables = tables[0][index], tables[1][index]
    if min(versions) >= 0 and not torch.cuda.is_current_stream_capturing():
        # An inference tensor may change without a new version, and what a graph computes is nothing until it is replayed.
        kept = None if tables[0] is shapes else tables[0], None if tables[1] is given else tables[1]
        refs = weakref.ref(shapes), None if given is None else weakref.ref(given)
        _remember(_seen, key, _Seen(*refs, versions, kept))
    return tables


def _checked_on_the_way(shapes: Tensor, starts: Any, S: int) -> tuple[Tensor, Tensor]:
    """The table itself where the host reads it now, else what the device makes of it."""
    pixels = shapes.prod(1) if starts is None else None
    starts = pixels.cumsum(0) - pixels if pixels is not None else starts
    key = _key(shapes, starts, S)
    if key not in _known and not torch.cuda.is_current_stream_capturing():
        levels, _ = on_host(shapes, starts, S)
        _remember(_known, key, tuple(levels))
        return shapes, starts
    from msda_core.kernels.fit import fit

    report = None if torch.cuda.is_current_stream_capturing() else _report()[0]
    fitting = fit(shapes, starts, S, report)
    if key in _known:
        _remember(_known, _key(*fitting, S), _known[key])
    return fitting


@functools.lru_cache
def _report() -> tuple[Tensor, Any]:
    """One number in the host's memory, 0 or one more than S, as a tensor for the GPU to write and an array to read."""
    report = torch.zeros(1, dtype=torch.int64, pin_memory=torch.cuda.is_available())
    return report, report.numpy()


def _raise_what_was_found() -> None:
    _, found = _report()
    if found[0] == 0:
        return
    S, found[0] = int(found[0]) - 1, 0
    _seen.clear()
    raise ValueError(
        f"a level of an earlier call must lie inside the S = {S} pixels of its value, got spatial_shapes or "
        "level_start_index on the GPU that reach past them; its points contributed zero. Was the table changed, or made "
        "anew, for another pyramid?"
    )


def traceable(
    spatial_shapes: Levels, level_start_index: Starts, value: Tensor, points: tuple[int, ...] | None = None
) -> tuple[Tensor, Tensor | None]:
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
    if points is None:
        return spatial_shapes, starts
    if starts is None:
        pixels = spatial_shapes.prod(1)
        starts = pixels.cumsum(0) - pixels
    index = torch.tensor(_level_of.__wrapped__(points), device=spatial_shapes.device)
    return spatial_shapes[index], starts[index.to(starts.device)]

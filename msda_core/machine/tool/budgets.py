"""Limits of what a kernel may cost, for continuous integration and tests.

{"add_kernel": {"load_sectors": 600, "registers": 64}}
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msda_core.machine import errors
from msda_core.machine.tool.data import record_of
from msda_core.machine.tool.session import session

__all__ = ["LIMITS", "OverBudget", "breaches", "budget", "read"]

_NESTED = {
    f"{kind}_{what}": (f"{kind}s", what)
    for kind in ("load", "store", "atomic")
    for what in ("requests", "sectors", "bytes", "efficiency")
}
_PLAIN = (
    "registers",
    "spills",
    "shared",
    "requests",
    "sectors",
    "unique_bytes",
    "written_bytes",
    "dram_bytes",
    "efficiency",
)
#: What can be limited. An efficiency must not fall below its limit; nothing else may rise above it.
LIMITS = (*_NESTED, *_PLAIN)


class OverBudget(AssertionError):
    """A kernel costs more than its budget; says what, how much, and where."""


def read(path: str | Path) -> dict[str, dict[str, float]]:
    """Budgets from a file.

    Raises:
        LaunchError: no such file, no JSON, an unknown limit.
    """
    try:
        data = json.loads(Path(path).read_text())
    except OSError as error:
        raise errors.LaunchError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise errors.LaunchError(f"{path} is not JSON: {error}.") from None
    return checked(data)


def checked(data: Any) -> dict[str, dict[str, float]]:
    """Budgets, if they are well formed.

    Raises:
        LaunchError: a limit that does not exist, or is no number.
    """
    example = '{"kernel_name": {"load_sectors": 600}}'
    if not isinstance(data, dict) or not all(isinstance(limits, dict) for limits in data.values()):
        raise errors.LaunchError(f"A budget must map kernels to limits, as in {example}.")
    for kernel, limits in data.items():
        for name, value in limits.items():
            if name not in LIMITS:
                raise errors.LaunchError(f"The budget of {kernel} limits {name!r}. Known: {', '.join(LIMITS)}.")
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise errors.LaunchError(f"The budget of {kernel} must give a number for {name}, got {value!r}.")
    return data


def breaches(budgets: dict[str, dict[str, float]], records: list[dict[str, Any]]) -> list[str]:
    """A sentence for each limit that is not kept. Of an autotuned kernel, the config predicted to be the best counts."""
    found = []
    for kernel, limits in budgets.items():
        mine = [r for r in records if r["kernel"] == kernel and r["best"]]
        if not mine:
            others = ", ".join(sorted({r["kernel"] for r in records})) or "none"
            found.append(f"{kernel} has a budget and was never launched (launched: {others}).")
        for record in mine:
            which = f"{kernel}, launch {record['launch']}"
            for name, limit in limits.items():
                value = _value(record, name)
                if value is None:
                    found.append(f"{which}: {name} is not known. {record['refused']}")
                elif (value < limit) if name.endswith("efficiency") else (value > limit):
                    side = "below" if name.endswith("efficiency") else "above"
                    found.append(f"{which}: {name} is {value:,}, {side} its budget of {limit:,}.{_where(record, name)}")
    return found


def _value(record: dict[str, Any], name: str) -> float | None:
    if name in _NESTED:
        group, what = _NESTED[name]
        return record.get(group, {}).get(what)
    return record.get(name)


def _where(record: dict[str, Any], name: str) -> str:
    """The line that costs most of it."""
    kind, _, what = name.rpartition("_")
    lines = [v for v in record.get("by_line", {}).values() if kind in ("", *v["kinds"]) and what in v]
    if what not in ("requests", "sectors", "bytes") or not lines:
        return ""
    top = max(lines, key=lambda v: v[what])
    return f" Most of it is line {top['line']}: `{top['text']}`."


@contextlib.contextmanager
def budget(limits: dict[str, dict[str, float]] | str | Path, target="sm_90", **options: Any) -> Iterator[session]:
    """Profile what launches inside, and fail if a kernel costs more than it may.

        with machine.budget({"add_kernel": {"load_sectors": 600, "registers": 64}}):
            add(x, y)

    Args:
        limits: kernel -> limit -> number, or a file of that; see `LIMITS`.
        target: compute capability; **options: as in `session`.

    Raises:
        OverBudget: one sentence for each breach.
    """
    budgets = checked(limits) if isinstance(limits, dict) else read(limits)
    with session(target, **options) as profiled:
        yield profiled
    found = breaches(budgets, [record_of(p) for p in profiled.launches])
    if found:
        raise OverBudget("\n".join(found))

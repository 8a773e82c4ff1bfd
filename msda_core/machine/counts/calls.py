"""Counters of a function that launches kernels, and the lanes of a single request.

`profile` counts one launch whose grid and constants the caller writes down. A launcher chooses those itself:

    reports = profile_calls(lambda: msda_forward(value, shapes, starts, locations, weights))
    reports[0].sectors
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from msda_core.machine.compile.lower import lower_launch
from msda_core.machine.counts.correlation import executed, match
from msda_core.machine.counts.traffic import SECTOR, Report, SiteTraffic, _requests, count
from msda_core.machine.run.guard import guard
from msda_core.machine.run.trace import Trace

__all__ = ["Lanes", "profile_calls", "trace_calls", "worst_request"]


def trace_calls(run: Callable[[], Any], **checks) -> list[Trace]:
    """Every kernel that run() launches on host tensors, recorded, in order.

    Args:
        run: launches kernels on host tensors.
        **checks: what `guard` looks at besides bounds: `uninitialised`, `contiguous`, `undefined`; all on by default.

    Raises:
        MachineError: as in `guard`.
    """
    traces: list[Trace] = []
    with guard(recorded=traces.append, **checks):
        run()
    return traces


def profile_calls(run: Callable[[], Any], target="sm_90", **checks) -> list[Report]:
    """What a profiler would count for every kernel that run() launches, in order.

    Args:
        run: launches kernels on host tensors.
        target: compute capability to lower for, as in `profile`.
        **checks: as in `trace_calls`.

    Raises:
        MachineError: whatever is wrong with a kernel, in the emulation or in the compiler.
    """
    return [count(trace, lower_launch(trace.launch, target)) for trace in trace_calls(run, **checks)]


class Lanes(NamedTuple):
    """The lanes of one request: one instruction of one warp.

    Attributes:
        addresses: (32,) bytes, counted from the first of the tensor's memory that the request touches, rounded down to
            a sector; -1 for a lane that is masked off.
        width: bytes each lane moves; sectors: how many the request costs; tensor: the argument's name.
    """

    addresses: np.ndarray
    width: int
    sectors: int
    tensor: str | None

    @property
    def useful(self) -> int:
        """Distinct bytes that the lanes ask for."""
        starts = np.unique(self.addresses[self.addresses >= 0])
        return int(np.minimum(np.diff(starts, append=starts[-1:] + self.width), self.width).sum())


def worst_request(report: Report, site: SiteTraffic, most: int | None = None) -> Lanes | None:
    """The request of one operation that uses least of what it fetches, with most lanes. None if there was none.

    Args:
        report: of `profile` or `profile_calls`.
        site: one of its `sites`.
        most: look at so many of its executions only.
    """
    assert site.site is not None
    matched = match(report.trace.sites, report.lowering.bound)
    ops = [b for b in matched.get(site.site, ()) if b.run]
    events = [e for e in report.trace.events if e.site is site.site]
    worst, least = None, (2.0, 0)
    for bound, own in executed(events, ops) if ops and events else ():
        itemsize = own[0].itemsize
        width = max(itemsize, min(bound.width, (bound.op.layout.registers if bound.op.layout else 1) * itemsize))
        addresses, active = _requests(bound, own[:most], report.num_warps)
        for lanes, on in zip(addresses, active):
            first = lanes[on].min() // SECTOR * SECTOR
            ends = np.concatenate([lanes[on] // SECTOR, (lanes[on] + width - 1) // SECTOR])
            where = np.full(32, -1, np.int64)
            where[: len(lanes)] = np.where(on, lanes - first, -1)
            request = Lanes(where, width, len(np.unique(ends)), own[0].tensor)
            share = (request.useful / (request.sectors * SECTOR), -int(on.sum()))
            if share < least:
                worst, least = request, share
    return worst

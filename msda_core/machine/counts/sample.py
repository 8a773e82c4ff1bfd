"""From the counts of some programs to those of all."""

import math
from collections import defaultdict

import numpy as np

from msda_core.machine.counts.traffic import SECTOR, Report
from msda_core.machine.run.trace import Trace

__all__ = ["extrapolated"]


def extrapolated(report: Report) -> Report:
    """The report of a sample, scaled to the whole grid, with its error; a report of all programs as it is.

    Requests, sectors and bytes grow with the programs. Distinct sectors do not, since programs share them: Chao's
    estimate of unseen species, from those that one and those that two of the programs touched.

    Source: Chao (1987), Estimating the population size for capture-recapture data with unequal catchability.
    """
    trace = report.trace
    if trace.sample is None:
        return report
    ratio = trace.programs / trace.recorded
    sectors = _sectors(trace)
    touched = {kind: _per_program(trace, sectors, kind) for kind in ("load", "store", "atomic")}
    growth = {kind: _growth(list(sets.values()), ratio, trace, kind) for kind, sets in touched.items()}
    for kind, total in zip(growth, (report.loads, report.stores, report.atomics)):
        _scale(total, ratio, growth[kind])
    for site in report.sites:
        _scale(site, ratio, growth[site.kind])
        _scale(site.loop_loads, ratio, growth[site.kind])
        site.executions = round(site.executions * ratio)
    read = growth["load"] if report.loads.sectors else growth["atomic"]
    report.unique_bytes = round(report.unique_bytes * read)
    report.dram_bytes = round(report.dram_bytes * read)
    report.written_bytes = round(
        report.written_bytes * (growth["store"] if report.stores.sectors else growth["atomic"])
    )
    meet = report.contention
    meet.updates, meet.programs, meet.line = (round(n * ratio) for n in (meet.updates, meet.programs, meet.line))
    meet.mean *= ratio / growth["atomic"]
    report.sampled, report.error = trace.recorded, _error(trace, sectors)
    return report


def _scale(traffic, ratio: float, growth: float) -> None:
    for name in ("requests", "sectors", "bytes"):
        setattr(traffic, name, round(getattr(traffic, name) * ratio))
    traffic.unique_sectors = round(traffic.unique_sectors * growth)


def _sectors(trace: Trace) -> list[np.ndarray]:
    """The distinct sectors of each event. Events of one pattern, mask and alignment differ by a distance only."""
    known: dict[tuple, np.ndarray] = {}
    found = []
    for event in trace.events:
        base, rest = divmod(event.first, SECTOR)
        key = (id(event.pattern), id(event.mask), rest)
        if key not in known:
            known[key] = np.unique((event.pattern[event.mask] + np.int64(rest)) // SECTOR)
        found.append(known[key] + base)
    return found


def _per_program(trace: Trace, sectors: list[np.ndarray], kind: str) -> dict[tuple, np.ndarray]:
    """The distinct sectors that each recorded program touches."""
    parts: dict[tuple, list[np.ndarray]] = defaultdict(list)
    for event, own in zip(trace.events, sectors):
        if event.kind == kind:
            parts[event.program].append(own)
    return {program: np.unique(np.concatenate(own)) for program, own in parts.items()}


def _growth(sets: list[np.ndarray], ratio: float, trace: Trace, kind: str) -> float:
    """How many times the distinct sectors of the sample all programs would touch."""
    if not sets:
        return 1.0
    seen, times = np.unique(np.concatenate(sets), return_counts=True)
    if not seen.size:
        return 1.0
    once, twice = int((times == 1).sum()), int((times == 2).sum())
    most = seen.size * ratio
    if twice:
        most = min(most, seen.size + once * once / (2 * twice))
    names = {e.tensor for e in trace.events if e.kind == kind}
    known = [trace.tensors[n] for n in names if n is not None]
    if len(known) == len(names):
        room = sum(one.size * one.itemsize for one in known) / SECTOR
        most = min(most, max(room, seen.size))
    return most / seen.size


def _error(trace: Trace, sectors: list[np.ndarray]) -> float:
    """Half-width of the 95 % confidence interval of the sectors per program, relative to their mean."""
    own: dict[tuple, int] = dict.fromkeys(trace.sample or (), 0)
    for event, touched in zip(trace.events, sectors):
        own[event.program] += len(touched)
    values = np.array(list(own.values()), float)
    if len(values) < 2 or not values.mean():
        return math.inf
    left = 1 - len(values) / trace.programs  # a sample of a finite population
    return float(1.96 * values.std(ddof=1) / math.sqrt(len(values)) * math.sqrt(left) / values.mean())

"""From the counts of some programs to those of all."""

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from msda_core.machine.counts.traffic import SECTOR, Report, Traffic, distinct, sectors_of
from msda_core.machine.run.trace import Event, Site, TensorInfo, Trace

__all__ = ["extrapolated"]

#: Programs below which a sample's spread says little of its error.
FEW = 8


def extrapolated(report: Report) -> Report:
    """The report of a sample, scaled to the whole grid, with its error; a report of all programs as it is.

    Requests, sectors and bytes grow with the programs. Distinct sectors do not, since programs share them: see `_unseen`.
    """
    trace = report.trace
    if trace.sample is None:
        return report
    ratio = trace.programs / trace.recorded
    sectors = sectors_of(trace.events)
    growth = {kind: _growth(trace, sectors, kind) for kind in ("load", "store", "atomic")}
    read = _together(report.loads, growth["load"], report.atomics, growth["atomic"])
    written = _together(report.stores, growth["store"], report.atomics, growth["atomic"])
    report.unique_bytes, report.dram_bytes = round(report.unique_bytes * read), round(report.dram_bytes * read)
    report.written_bytes = round(report.written_bytes * written)
    ratios = _ratios(trace, sectors)
    asked = max(1, report.loads.sectors)
    for site in report.sites:
        times = ratios.get(site.site, ratio) if site.site is not None else ratio
        _scale(site, times, growth[site.kind])
        _scale(site.loop_loads, times, growth[site.kind])
        site.executions = round(site.executions * times)
        site.wavefronts = round(site.wavefronts * times)
    for kind, total in zip(growth, (report.loads, report.stores, report.atomics)):
        own = [s for s in report.sites if s.kind == kind]
        extra = [s.loop_loads for s in report.sites] if kind == "load" else []
        for name in ("requests", "sectors", "bytes"):
            setattr(total, name, sum(getattr(one, name) for one in (*own, *extra)))
        total.unique_sectors = round(total.unique_sectors * growth[kind])
    report.l2_loads = round(report.l2_loads * report.loads.sectors / asked)
    meet = report.contention
    meet.updates, meet.programs, meet.line = (round(n * ratio) for n in (meet.updates, meet.programs, meet.line))
    meet.mean *= ratio / growth["atomic"]
    report.sampled, report.error = trace.recorded, _error(trace, sectors)
    return report


def _ratios(trace: Trace, sectors: Sequence[np.ndarray]) -> dict[Site, float]:
    """How many times the counts of each place all programs have: each program stands for those that lie next to it.

    So what grows or shrinks over the grid, as causal attention does, comes out right though the sample is not quite even.
    """
    sample = trace.sample or ()
    places = {program: int(np.ravel_multi_index(program, trace.grid)) for program in sample}
    order = sorted(sample, key=lambda program: places[program])
    at = np.array([places[program] for program in order], float) + 0.5
    cells = np.diff(np.concatenate([[0.0], (at[1:] + at[:-1]) / 2, [float(trace.programs)]]))
    weight = dict(zip(order, cells))
    plain: dict[Site, float] = defaultdict(float)
    weighted: dict[Site, float] = defaultdict(float)
    for event, own in zip(trace.events, sectors):
        plain[event.site] += len(own)
        weighted[event.site] += len(own) * weight[event.program]
    return {site: weighted[site] / count for site, count in plain.items() if count}


def _together(one: Traffic, grows: float, other: Traffic, too: float) -> float:
    """How many times the distinct sectors of two kinds together grow."""
    both = one.unique_sectors + other.unique_sectors
    return (one.unique_sectors * grows + other.unique_sectors * too) / both if both else 1.0


def _scale(traffic, ratio: float, growth: float) -> None:
    for name in ("requests", "sectors", "bytes"):
        setattr(traffic, name, round(getattr(traffic, name) * ratio))
    traffic.unique_sectors = round(traffic.unique_sectors * growth)


def _growth(trace: Trace, sectors: Sequence[np.ndarray], kind: str) -> float:
    """How many times the distinct sectors of the sample all programs would touch."""
    tensors: dict[str | None, list[tuple[Event, np.ndarray]]] = defaultdict(list)
    for event, own in zip(trace.events, sectors):
        if event.kind == kind:
            tensors[event.tensor].append((event, own))
    seen = expected = 0.0
    for name, touched in tensors.items():
        programs: dict[tuple, list[np.ndarray]] = defaultdict(list)
        for event, own in touched:
            programs[event.program].append(own)
        sets = [distinct(np.concatenate(own)) for own in programs.values()]
        every = np.sort(np.concatenate(sets))
        ends = np.flatnonzero(np.concatenate([every[1:] != every[:-1], [True]])) if every.size else np.zeros(0, int)
        known, times = every[ends], np.diff(ends, prepend=-1)
        room = math.inf if name is None else max(float(known.size), _room(trace.tensors[name]))
        seen += known.size
        expected += known.size + _unseen(times, sets, room, trace.programs)
    return expected / seen if seen else 1.0


def _room(tensor: TensorInfo) -> float:
    """How many sectors a tensor has."""
    span = 1 + sum((n - 1) * abs(s) for n, s in zip(tensor.shape, tensor.strides))
    return min(-(-span * tensor.itemsize // SECTOR), math.prod(tensor.shape))


def _unseen(times: np.ndarray, sets: Sequence[np.ndarray], room: float, programs: int) -> float:
    """How many more sectors of a tensor the programs outside the sample touch.

    Programs that meet less than they would by chance share the work among them: theirs are new until the tensor ends.
    For others, Chao's estimate of unseen species, from the sectors that one and those that two of the programs touched;
    at most what is left of the tensor, and all of that where the sample cannot tell the two apart.

    Source: Chao (1987), Estimating the population size for capture-recapture data with unequal catchability; for a number
    of programs: Colwell et al. (2012), Models and estimators linking individual-based and sample-based rarefaction,
    extrapolation and comparison of assemblages.

    Args:
        times: how many programs of the sample touched each sector that was touched; sets: the sectors of each program.
        room: sectors of the tensor; programs: of the launch.
    """
    sample, asked, seen = len(sets), int(times.sum()), len(times)
    rest, left = programs - sample, room - seen
    once, twice = int((times == 1).sum()), int((times == 2).sum())
    new = once * rest / sample
    if not once or left <= 0:
        return 0.0
    by_chance = asked - room * (1 - (1 - asked / sample / room) ** sample) if math.isfinite(room) else 0.0
    if not twice or asked - seen < by_chance / 3:
        return min(new, left)
    hidden = (sample - 1) / sample * once * once / (2 * twice)
    # Equal chances give 2/3 here; sectors that some programs like better give more, and hide more than Chao's estimate.
    hidden *= max(1.0, 1.5 * once * int((times == 3).sum()) / twice**2)
    meeting = sample * (1 - once / seen)  # programs that touched what others touched, about
    if hidden * (1 + 3 / math.sqrt(max(meeting, 1.0))) >= left:
        hidden = left
    return min(new, hidden * (1 - (1 - once / (sample * hidden + once)) ** rest))


def _error(trace: Trace, sectors: Sequence[np.ndarray]) -> float:
    """Half-width of the 95 % confidence interval of the sectors per program, relative to their mean.

    From the differences of neighbours: the sample lies evenly over the grid, so what changes slowly across it is no error.
    """
    own: dict[tuple, int] = dict.fromkeys(sorted(trace.sample or ()), 0)
    for event, touched in zip(trace.events, sectors):
        own[event.program] += len(touched)
    values = np.array(list(own.values()), float)
    if len(values) < 2 or not values.mean():
        return math.inf
    left = 1 - len(values) / trace.programs  # a sample of a finite population
    deviation = math.sqrt(float(np.square(np.diff(values)).sum()) / (2 * (len(values) - 1)))
    error = float(1.96 * deviation / math.sqrt(len(values)) * math.sqrt(left) / values.mean())
    # Of a few, all may be alike by chance: then as much as one more that does nothing would change.
    return error if len(values) >= FEW else max(error, 1 / (len(values) + 1))

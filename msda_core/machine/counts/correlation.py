"""Source correlation: which operations of the compiled kernel each access of the source became.

Lines decide first, columns next, the order of execution last.
"""

import itertools
import math

import numpy as np

from msda_core.machine.compile.binding import Bound
from msda_core.machine.compile.ttgir import MemoryOp
from msda_core.machine.errors import Unsupported
from msda_core.machine.run.trace import Event, Site

__all__ = ["executed", "match"]

MAX_WAYS = 500  # of dealing iterations to copies


def _families(bound: list[Bound]) -> list[list[Bound]]:
    """Operations with the same call chain (an unrolled loop gives several), in order of the text."""
    families: dict[tuple, list[Bound]] = {}
    for b in bound:
        families.setdefault((b.op.kind, b.op.name, b.op.op, b.op.places), []).append(b)
    return list(families.values())


#: The interpreter's and the compiler's names for one atomic.
_OPS = {"fadd": "add", "xchg": "exch"}


def _covers(site: Site, op: MemoryOp) -> bool:
    """Whether an operation can have come from this place: same kind, same depth of calls, lines that fit."""
    kind = "load" if op.kind == "async" else op.kind
    if kind != site.kind or _OPS.get(op.op, op.op) != _OPS.get(site.op, site.op) or len(op.places) != len(site.frames):
        return False
    return all(f.lineno <= p.line <= f.end_lineno for p, f in zip(op.places, site.frames))


def match(sites: list[Site], bound: list[Bound]) -> dict[Site, list[Bound]]:
    """The operations each place of the trace became; none where the compiler removed it.

    Lines decide first, columns next (their origin is 0 or 1, by version), and the order of execution last.
    """
    families = _families(bound)
    matched: dict[Site, list[int]] = {}
    taken: set[int] = set()
    for origin in (1, 0):
        trial: dict[Site, list[int]] = {}
        for site in sites:
            columns = tuple(f.column + origin for f in site.frames)
            hits = [
                i
                for i, family in enumerate(families)
                if i not in taken
                and _covers(site, family[0].op)
                and tuple(p.column for p in family[0].op.places) == columns
            ]
            if hits:
                trial[site] = hits
        if len(trial) > len(matched):
            matched, used = trial, {i for hits in trial.values() for i in hits}
    if matched:
        taken = used
    result = {site: [b for i in hits for b in families[i]] for site, hits in matched.items()}
    open_sites = [s for s in sites if s not in result]
    open_families = [i for i in range(len(families)) if i not in taken]
    for site in open_sites:
        rivals = [s for s in open_sites if s not in result and _lines(s) == _lines(site) and s.kind == site.kind]
        hits = [i for i in open_families if i not in taken and _covers(site, families[i][0].op)]
        if hits:
            # With fewer families than rivals the later duplicates were merged into the first.
            result[site] = families[hits[0]]
            taken.add(hits[0])
            if len(rivals) == 1:
                for extra in hits[1:]:
                    if families[extra][0].same == families[hits[0]][0].same:
                        result[site] = result[site] + families[extra]
                        taken.add(extra)
    return result


def _lines(site: Site) -> tuple:
    return tuple(f.lineno for f in site.frames)


def executed(events: list[Event], ops: list[Bound]) -> list[tuple[Bound, list[Event]]]:
    """Events of one place, split by the operation that executed them.

    An unrolled loop gives copies, in the order of its iterations: each executes the events of its own. Copies of
    different layouts of one iteration each do all of the work: the compiler prefers loading twice to moving data
    between layouts. Repetitions of a hoisted load are dropped.

    Raises:
        Unsupported: copies that differ, and nothing tells which of them belongs to which iteration.
    """
    by_turn = _deal_by_turn(events, ops)
    if by_turn is not None:
        return by_turn
    programs: dict[tuple, list[Event]] = {}
    for event in events:
        programs.setdefault(event.program, []).append(event)
    result = []
    for copies in _layouts(ops):
        hoisted = all(b.op.depth == 0 for b in copies)
        if len({b.same for b in copies}) > 1:
            site = events[0].site
            raise Unsupported(
                f"line {site.lineno}: `{site.text}` became {len(copies)} operations that differ, and nothing tells which "
                f"of them executes which iteration. Write the iterations out to have them counted."
            )
        kept: list[Event] = []
        for own in programs.values():
            kept += _distinct(own) if hoisted and len(own) > len(copies) else own
        result.append((copies[0], kept))
    return result


def _layouts(ops: list[Bound]) -> list[list[Bound]]:
    """Copies of one layout each."""
    layouts: dict[tuple, list[Bound]] = {}
    for b in ops:
        layouts.setdefault((b.op.encoding, b.op.shape), []).append(b)
    return list(layouts.values())


def _deal_by_turn(events: list[Event], ops: list[Bound]) -> list[tuple[Bound, list[Event]]] | None:
    """Each copy with the events of its iteration of the unrolled loops around it; None if they do not come out even.

    Iterations that load the same under the same conditions may share one copy, and those that no program ran have
    copies of their own. A vector's addresses must follow one another: where they do not, the copy is another one's.
    """
    turns: dict[tuple, list[Event]] = {}
    for event in events:
        turns.setdefault(event.turn, []).append(event)
    if not turns:  # no program came here
        return [(ops[0], [])]
    if len(ops) == 1 or len(turns) == 1 and not next(iter(turns)):
        return None
    total = {math.prod(n for _, n in turn) for turn in turns}
    whole = {_number(turn): own for turn, own in turns.items()} if len(total) == 1 else {}
    run = dict(enumerate(turns[turn] for turn in sorted(turns)))
    merged: dict[tuple, list[Event]] = {}
    for turn in sorted(turns):
        content = tuple((e.program, e.addresses.tobytes(), e.mask.tobytes()) for e in turns[turn])
        merged.setdefault(content, turns[turn])
    shared = dict(enumerate(merged.values()))
    for iterations, count in ((run, len(run)), (whole, max(total)), (shared, len(shared))):
        if not iterations:
            continue
        if len(ops) == count:
            groups = [ops]
        elif all(len(group) == count for group in _layouts(ops)):
            groups = _layouts(ops)
        else:
            continue
        dealt = [(group[i], own) for group in groups for i, own in iterations.items()]
        if all(_fits(bound, own) for bound, own in dealt):
            return dealt
    return _only_way(whole, max(total), ops) if len(ops) > len(run) else None


def _only_way(turns: dict[int, list[Event]], total: int, ops: list[Bound]) -> list[tuple[Bound, list[Event]]] | None:
    """Iterations dealt to more copies than they are: in order, where all ways that fit come to the same.

    Before a copy there are at most as many copies as iterations before its own, and after it as well: a constant
    condition takes iterations away, and conditions that held in no program leave copies without any.
    """
    numbers = sorted(turns)
    if not numbers or math.comb(len(ops), len(numbers)) > MAX_WAYS:
        return None
    ways = []
    for places in itertools.combinations(range(len(ops)), len(numbers)):
        inside = all(p <= n and len(ops) - p <= total - n for p, n in zip(places, numbers))
        if inside and all(_fits(ops[p], turns[n]) for p, n in zip(places, numbers)):
            ways.append([(ops[p], turns[n]) for p, n in zip(places, numbers)])
    alike = len({tuple(bound.same for bound, _ in way) for way in ways}) == 1
    return ways[0] if alike else None


def _number(turn: tuple[tuple[int, int], ...]) -> int:
    """Which iteration of nested loops it is, counted from the first of the outermost."""
    number = 0
    for i, n in turn:
        number = number * n + i
    return number


def _fits(bound: Bound, events: list[Event]) -> bool:
    """Whether the instruction's vectors can hold these addresses: one after another from an aligned one."""
    layout = bound.op.layout
    vector = min(bound.width // events[0].itemsize, layout.registers) if layout else 1
    if layout is None or vector <= 1:
        return True
    groups = layout.elements.reshape(-1, vector)
    for event in events:
        if event.addresses.size != layout.elements.max() + 1:
            return False
        active = event.mask.reshape(-1)[groups].all(1)
        addresses = event.addresses.reshape(-1)[groups[active]]
        first = addresses[:, :1]
        if ((addresses - first) != np.arange(vector) * event.itemsize).any() or (
            first % (vector * event.itemsize)
        ).any():
            return False
    return True


def _distinct(events: list[Event]) -> list[Event]:
    """Events whose addresses and mask differ, the first of each."""
    kept: dict[tuple, Event] = {}
    for event in events:
        kept.setdefault((event.addresses.tobytes(), event.mask.tobytes()), event)
    return list(kept.values())

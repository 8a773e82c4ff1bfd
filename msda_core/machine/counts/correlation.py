"""Source correlation: which operations of the compiled kernel each access of the source became.

Lines decide first, columns next, the order of execution last.
"""

from collections import defaultdict

from msda_core.machine.compile.binding import Bound
from msda_core.machine.compile.ttgir import MemoryOp
from msda_core.machine.run.trace import Event, Site

__all__ = ["executed", "match"]


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
    matched: dict[Site, list[Bound]] = {}
    taken: set[int] = set()
    for origin in (1, 0):
        trial = {}
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

    An unrolled loop gives copies of one layout, which take turns. Copies of different layouts each do all of the work:
    the compiler prefers loading twice to moving data between layouts. Repetitions of a hoisted load are dropped.
    """
    programs: dict[tuple, list[Event]] = {}
    for event in events:
        programs.setdefault(event.program, []).append(event)
    layouts: dict[tuple, list[Bound]] = {}
    for b in ops:
        layouts.setdefault((b.op.encoding, b.op.shape), []).append(b)
    result = []
    for copies in layouts.values():
        hoisted = all(b.op.depth == 0 for b in copies)
        uniform = len({b.same for b in copies}) == 1
        turns: dict[int, list[Event]] = defaultdict(list)
        for own in programs.values():
            own = _distinct(own) if hoisted and len(own) > len(copies) else own
            for i, event in enumerate(own):
                turns[0 if uniform else i % len(copies)].append(event)
        result += [(copies[i], turn) for i, turn in sorted(turns.items())]
    return result


def _distinct(events: list[Event]) -> list[Event]:
    """Events whose addresses and mask differ, the first of each."""
    kept: dict[tuple, Event] = {}
    for event in events:
        kept.setdefault((event.addresses.tobytes(), event.mask.tobytes()), event)
    return list(kept.values())

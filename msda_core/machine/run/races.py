"""Data races: accesses that nothing orders, found by vector clocks over the atomics of a trace.

Two accesses race if they overlap in a byte, one of them writes (an atomic does), they are not both atomic on the same
bytes at a scope that holds both programs, and no chain of a release and an acquire orders them (PTX ISA, "Memory
Consistency Model"). What one trace shows is one order of the programs: chains are those of the values it read.

- An atomic releases what its program did before it if its semantics is "release" or "acq_rel", and acquires what was
  released into its address if it is "acquire" or "acq_rel" *and the program looks at what it returns*: an atomic that
  nobody reads becomes a reduction, which acquires nothing. Scope "cta" reaches no other program.
- A volatile load and a relaxed atomic are strong: they race with no atomic, but order nothing either.
- An atomic stands for its whole program: what other warps did before it counts as ordered, as a compiled atomic of one
  element waits for them at a barrier. That of a block does not, and a race that only this would excuse is missed.
- Between the warps of one program a barrier orders: `tl.debug_barrier`, or one that the compiler put between the two
  instructions. The layouts of the compiled kernel say which warp touches which byte.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from msda_core.machine import errors
from msda_core.machine.compile.binding import Bound
from msda_core.machine.compile.lower import Lowering, lower_launch
from msda_core.machine.counts.correlation import executed, match
from msda_core.machine.run.trace import Event, Site, Trace

__all__ = ["Race", "races"]

SHELF = 40  # log2 of the address range of one storage, as in `emulate`
MAX_PAIRS = 1000  # programs of a place that are compared with those of another, at most
MAX_PROGRAMS = 64  # whose warps are compared with one another


@dataclass(frozen=True)
class Race:
    """Two accesses to one byte, at least one of them a write, with nothing that orders them.

    Attributes:
        store, other: the two places in the source; `store` writes, and may be an atomic; `other` may be the same place.
        programs: one program of each; equal where lanes or warps of one program meet.
        tensor, element: where, for one example; count: how many elements these two places fight over.
        warps: two warps of one program, where they are what is not ordered.
        benign: both store the same value wherever they meet.
        places: of lanes and warps, for `witness`: which accesses of the program they are, and the lanes of the store
            that may come late.
    """

    store: Site
    other: Site
    programs: tuple[tuple[int, int, int], tuple[int, int, int]]
    tensor: str | None
    element: int | None
    count: int
    warps: tuple[int, int] | None = None
    benign: bool = False
    places: tuple[int, int, tuple[int, ...]] | None = field(default=None, compare=False, repr=False)

    @property
    def within(self) -> bool:
        """Two lanes of one program store to one element: which of them wins is not defined either."""
        return self.programs[0] == self.programs[1] and self.warps is None

    def __str__(self) -> str:
        p, q = self.programs
        where = f"{self.tensor}[{self.element}]"
        more = f" ({self.count} elements in all)" if self.count > 1 else ""
        same = " Both store the same value." if self.benign else ""
        verb = {"store": "stores to", "atomic": "updates"}[self.store.kind]
        start = f"line {self.store.lineno}: `{self.store.text}` {verb} {where}"
        if self.within:
            return f"{start} from two lanes of program {p}{more}: one of the two is lost.{same}"
        does = {"load": "loads", "store": "stores too", "atomic": "updates"}[self.other.kind]
        who, whom = f"program {p}", f"program {q}"
        if self.warps is not None:
            who, whom = f"warp {self.warps[0]} of program {p}", f"warp {self.warps[1]}"
        return (
            f"{start} in {who}, which {whom} {does} in line {self.other.lineno}: `{self.other.text}`{more}. "
            f"Nothing orders the two.{same}"
        )


def races(trace: Trace, target="sm_90") -> list[Race]:
    """Conflicts between accesses that nothing orders, between programs, between warps and between lanes of one store.

    Args:
        target: compute capability whose layouts say which warp touches what; None leaves the warps of a program out.

    Returns:
        one entry per pair of places in the source, with an example and a count.
    """
    written = {int(a) for e in trace.events if e.kind != "load" for a in np.unique(e.addresses[e.mask] >> SHELF)}
    events = [e for e in trace.events if _shelf(e) in written]
    if not events:
        return []
    found = _Found(trace)
    _lanes(trace, events, found)
    _programs(trace, events, found)
    if target is not None:
        _warps(trace, events, found, target)
    return found.races()


def _shelf(event: Event) -> int:
    """The storage that an event touches; -1 if none of its lanes is active."""
    active = event.addresses[event.mask]
    return int(active[0] >> SHELF) if active.size else -1


@dataclass
class _Entry:
    programs: tuple
    address: int
    tensor: str | None
    elements: set[int] = field(default_factory=set)
    warps: tuple[int, int] | None = None
    places: tuple | None = None
    benign: bool = True


class _Found:
    """Races as they are found, one entry for each pair of places."""

    def __init__(self, trace: Trace):
        self.trace = trace
        self.entries: dict[tuple, _Entry] = {}

    def add(self, key: tuple, programs: tuple, tensor: str | None, addresses, benign: bool, warps=None, places=None):
        info = self.trace.tensors.get(tensor or "")
        entry = self.entries.setdefault(key, _Entry(programs, int(addresses[0]), tensor, warps=warps, places=places))
        size = info.itemsize if info else 1
        entry.elements.update(int(a) // size for a in addresses)
        entry.benign &= benign

    def races(self) -> list[Race]:
        result = []
        for (store, other, _), entry in self.entries.items():
            info = self.trace.tensors.get(entry.tensor or "")
            element = (entry.address - info.base) // info.itemsize if info else None
            where = (entry.tensor, element, len(entry.elements))
            result.append(Race(store, other, entry.programs, *where, entry.warps, entry.benign, entry.places))
        return result


# --- Lanes of one store -----------------------------------------------------------------------------------------------


def _values(event: Event) -> np.ndarray:
    """What a plain store wrote, as one integer per lane of its tile."""
    assert event.value is not None
    raw = np.ascontiguousarray(np.broadcast_to(event.value, event.mask.shape))
    kind = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[raw.dtype.itemsize]
    return raw.view(kind).reshape(event.mask.shape).astype(np.uint64)


def _lanes(trace: Trace, events: list[Event], found: _Found):
    for event in (e for e in events if e.kind == "store"):
        lanes = np.flatnonzero(event.mask)
        addresses = event.addresses.reshape(-1)[lanes]
        order = np.argsort(addresses, kind="stable")
        where = addresses[order]
        again = np.flatnonzero(where[1:] == where[:-1])
        if again.size:
            value = _values(event).reshape(-1)[lanes[order]]
            benign = bool((value[again] == value[again + 1]).all())
            key = (event.site, event.site, "lanes")
            number = _number(trace, event)
            places = (number, number, tuple(lanes[order[again]].tolist()))
            found.add(key, (event.program, event.program), event.tensor, where[again], benign, None, places)


def _number(trace: Trace, event: Event) -> int:
    """How many accesses of its program come before an event."""
    return next(n for n, e in enumerate(e for e in trace.events if e.program == event.program) if e is event)


# --- Programs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Class:
    """What decides whether two accesses of different programs may overlap."""

    site: Site
    tensor: str | None
    size: int
    sem: str
    scope: str

    @property
    def writes(self) -> bool:
        return self.site.kind != "load"

    def peaceful(self, other: "_Class") -> bool:
        """Both atomic on the same bytes, at scopes that hold both programs."""
        strong = self.sem and other.sem and self.size == other.size
        return bool(strong) and "cta" not in (self.scope, other.scope)


class _Clocks:
    """Vector clocks of the programs, moved by the atomics of a trace."""

    def __init__(self, events: list[Event], programs: dict[tuple, int]):
        acquires = [e for e in events if self._acquires(e)]
        spots = [np.unique(e.addresses[e.mask]) for e in acquires]
        self.spots = np.unique(np.concatenate(spots)) if spots else np.zeros(0, np.int64)
        self.clock: dict[int, np.ndarray] = {}
        self.epoch = [1] * len(programs)
        self.released: dict[int, np.ndarray] = {}
        self.size = len(programs)

    @staticmethod
    def _acquires(event: Event) -> bool:
        read = event.kind == "load" or event.kind == "atomic" and event.outcome.read
        return read and event.sem in ("acquire", "acq_rel") and event.scope != "cta"

    def now(self, p: int) -> np.ndarray:
        """Of every program, the last epoch that program p has heard of."""
        if p not in self.clock:
            self.clock[p] = np.zeros(self.size, np.int32)
        return self.clock[p]

    def _here(self, event: Event) -> list[int]:
        """The addresses of an event that somebody acquires from."""
        if not self.spots.size or event.kind == "load" and not event.sem:
            return []
        active = np.unique(event.addresses[event.mask])
        return active[np.isin(active, self.spots)].tolist()

    def acquire(self, event: Event, p: int):
        """Before an event: what was released into its address is known to program p from here on."""
        if self._acquires(event):
            heads = [self.released[a] for a in self._here(event) if a in self.released]
            if heads:
                self.clock[p] = np.maximum.reduce([self.now(p), *heads])

    def release(self, event: Event, p: int):
        """After an event: whoever acquires from its address will know what program p has done."""
        if event.kind == "load" or event.op == "cas" and not event.outcome.wrote:
            return
        here = self._here(event)
        if event.kind == "store":  # it ends the chain of what was released before
            for a in here:
                self.released.pop(a, None)
        if here and event.sem in ("release", "acq_rel") and event.scope != "cta":
            mine = self.now(p).copy()
            mine[p] = self.epoch[p]
            for a in here:
                self.released[a] = np.maximum(self.released[a], mine) if a in self.released else mine
            self.epoch[p] += 1


def _programs(trace: Trace, events: list[Event], found: _Found):
    programs = {p: i for i, p in enumerate(dict.fromkeys(e.program for e in trace.events))}
    names = list(programs)
    clocks = _Clocks(trace.events, programs)
    segments: dict[tuple, int] = {}  # (program, epoch, what it has heard of)
    heard: list[np.ndarray] = []
    classes: dict[_Class, int] = {}
    grain = _grains(events)
    wanted = {id(e) for e in events}
    parts = []
    for event in trace.events:
        p = programs[event.program]
        clocks.acquire(event, p)
        if id(event) in wanted:
            now = clocks.now(p)
            segment = segments.setdefault((p, clocks.epoch[p], id(now)), len(heard))
            if segment == len(heard):
                heard.append(now)
            kind = _Class(event.site, event.tensor, event.itemsize, event.sem, event.scope)
            number = classes.setdefault(kind, len(classes))
            where, value = _grained(event, grain[_shelf(event)])
            columns = [where, np.full(where.size, segment), np.full(where.size, number), value]
            parts.append(np.stack(columns, 1))
        clocks.release(event, p)
    if len(programs) < 2:
        return
    table = np.unique(np.concatenate(parts), axis=0)  # (byte, segment, class, value), sorted
    owner = np.array([p for p, _, _ in segments])
    epoch = np.array([e for _, e, _ in segments])
    kinds = list(classes)
    writes = np.array([k.writes for k in kinds])[table[:, 2]]
    starts = np.flatnonzero(np.r_[True, table[1:, 0] != table[:-1, 0]])
    ends = np.r_[starts[1:], len(table)]
    who = owner[table[:, 1]]
    several = np.maximum.reduceat(who, starts) != np.minimum.reduceat(who, starts)
    contested = several & np.logical_or.reduceat(writes, starts)
    alike: dict[bytes, list] = {}
    for g in np.flatnonzero(contested):
        rows = table[starts[g] : ends[g]]
        alike.setdefault(rows[:, 1:].tobytes(), [rows, []])[1].append(int(rows[0, 0]))
    for rows, addresses in alike.values():
        by_class = {int(c): rows[rows[:, 2] == c] for c in np.unique(rows[:, 2])}
        for a, first in by_class.items():
            for b, second in by_class.items():
                one, two = kinds[a], kinds[b]
                if not one.writes or one.peaceful(two) or (two.writes and (b < a)):
                    continue
                pair = _unordered(first[:MAX_PAIRS, 1], second[:MAX_PAIRS, 1], owner, epoch, heard)
                if pair is None:
                    continue
                stores = one.site.kind == two.site.kind == "store" and one.size == two.size
                benign = stores and len(np.unique(np.concatenate([first[:, 3], second[:, 3]]))) == 1
                who = (names[owner[pair[0]]], names[owner[pair[1]]])
                found.add((one.site, two.site, "programs"), who, one.tensor, addresses, benign)


def _grains(events: list[Event]) -> dict[int, int]:
    """Bytes that accesses of each storage share or do not share as a whole: a power of two."""
    grain: dict[int, int] = {}
    for event in events:
        active = event.addresses[event.mask]
        size = int(np.bitwise_or.reduce(active)) | event.itemsize
        shelf = _shelf(event)
        grain[shelf] = min(grain.get(shelf, 8), size & -size)
    return grain


def _grained(event: Event, grain: int) -> tuple[np.ndarray, np.ndarray]:
    """The grains that an event touches, and what a plain store wrote to each."""
    active = event.addresses[event.mask]
    offsets = np.arange(0, event.itemsize, grain)
    where = (active[:, None] + offsets).reshape(-1)
    if event.kind != "store" or event.value is None:
        return np.unique(where), np.zeros(len(np.unique(where)), np.int64)
    value = _values(event)[event.mask]
    bits = np.uint64((1 << (8 * grain)) - 1) if grain < 8 else np.uint64(2**64 - 1)
    pieces = (value[:, None] >> (offsets * 8).astype(np.uint64)) & bits
    where, first = np.unique(where, return_index=True)
    return where, pieces.reshape(-1)[first].view(np.int64)


def _unordered(first, second, owner, epoch, heard) -> tuple[int, int] | None:
    """A segment of each, of different programs, neither of which has heard of the other."""
    first, second = np.unique(first), np.unique(second)
    p, q = owner[first], owner[second]
    apart = p[:, None] != q[None, :]
    before = np.stack([heard[s][p] for s in second], 1) >= epoch[first][:, None]
    after = np.stack([heard[s][q] for s in first], 0) >= epoch[second][None, :]
    racing = apart & ~before & ~after
    if not racing.any():
        return None
    i, j = np.unravel_index(int(np.argmax(racing)), racing.shape)
    return int(first[i]), int(second[j])


# --- Warps of one program ---------------------------------------------------------------------------------------------


def _warps(trace: Trace, events: list[Event], found: _Found, target):
    """Conflicts between two accesses of one program that different warps make, with no barrier between them."""
    own: dict[tuple, list[Event]] = {}
    for event in events:
        own.setdefault(event.program, []).append(event)
    suspects = {}
    for program, mine in own.items():
        pairs = list(_meetings(mine))
        if pairs:
            suspects[program] = pairs
        if len(suspects) == MAX_PROGRAMS:
            break
    if not suspects:
        return
    try:
        lowering = lower_launch(trace.launch, target)
        if lowering.num_warps == 1:
            return
        code = _Code(lowering)
        matched = match(trace.sites, lowering.bound)
        held: dict[int, Bound] = {}
        for site in {e.site for pairs in suspects.values() for a, b, _, _ in pairs for e in (a, b)}:
            ops = [b for b in matched.get(site, ()) if b.run]
            for bound, done in executed([e for e in own_events(own, suspects, site)], ops) if ops else ():
                for event in done:
                    held.setdefault(id(event), bound)
    except (errors.CompileError, errors.Unsupported, errors.LaunchError):
        return  # what does not compile has no warps
    for program, pairs in suspects.items():
        turn: dict[Site, int] = {}
        number = {}
        for event in own[program]:
            number[id(event)] = turn[event.site] = turn.get(event.site, -1) + 1
        for first, second, i, j in pairs:
            a, b = held.get(id(first)), held.get(id(second))
            if a is None or b is None or code.barrier(a, b, number[id(first)] == number[id(second)]):
                continue
            one, two = _holders(a, first, lowering.num_warps), _holders(b, second, lowering.num_warps)
            apart = (one[:, i] | two[:, j]).sum(0) > 1
            if not apart.any():
                continue
            at = int(np.argmax(apart))
            w = int(np.argmax(one[:, i[at]]))
            v = next(v for v in np.flatnonzero(two[:, j[at]]) if v != w or two[:, j[at]].sum() == 1)
            if v == w:
                w = next(int(x) for x in np.flatnonzero(one[:, i[at]]) if x != v)
            store, other, warps = (first, second, (w, int(v))) if first.kind != "load" else (second, first, (int(v), w))
            where = first.addresses.reshape(-1)[i[apart]] if store is first else second.addresses.reshape(-1)[j[apart]]
            benign = False
            if first.kind == second.kind == "store":
                benign = bool((_values(first).reshape(-1)[i] == _values(second).reshape(-1)[j]).all())
            places = None
            if first.kind == "store":  # its warp is late, and reads nothing of that itself
                late = one[warps[0], i] & ~two[warps[0], j] & apart
                places = (_number(trace, first), _number(trace, second), tuple(np.unique(i[late]).tolist()))
            key = (store.site, other.site, "warps")
            found.add(key, (program, program), store.tensor, where, benign, warps, places)


def own_events(own: dict, suspects: dict, site: Site) -> Iterator[Event]:
    """Events of one place, of the programs that are looked at."""
    for program in suspects:
        yield from (e for e in own[program] if e.site is site)


def _meetings(events: list[Event]) -> Iterator[tuple[Event, Event, np.ndarray, np.ndarray]]:
    """Pairs of a program's accesses that meet in a byte, one of them a write, no `debug_barrier` between, with the lanes."""
    if len({e.site for e in events if e.kind != "load"}) == 0 or len(events) < 2:
        return
    grain = _grains(events)
    parts = []
    for n, event in enumerate(events):
        lanes = np.flatnonzero(event.mask.reshape(-1))
        offsets = np.arange(0, event.itemsize, grain[_shelf(event)])
        where = (event.addresses.reshape(-1)[lanes][:, None] + offsets).reshape(-1)
        parts.append(np.stack([where, np.full(where.size, n), np.repeat(lanes, offsets.size)], 1))
    table = np.concatenate(parts)
    table = table[np.lexsort((table[:, 2], table[:, 1], table[:, 0]))]
    pairs: dict[tuple[int, int], list] = {}
    for step in (1, 2, 3):  # an access and the ones after it, at the same byte
        met = table[step:, 0] == table[:-step, 0]
        early, late = table[:-step][met], table[step:][met]
        other = early[:, 1] != late[:, 1]
        early, late = early[other], late[other]
        keys = early[:, 1] * len(events) + late[:, 1]
        for key in np.unique(keys):
            here = keys == key
            i, j = divmod(int(key), len(events))
            one, two = events[i], events[j]
            if one.phase != two.phase or not {"store", "atomic"} & {one.kind, two.kind} or one.sem and two.sem:
                continue
            pairs.setdefault((i, j), []).append((early[here, 2], late[here, 2]))
    for (i, j), both in pairs.items():
        yield events[i], events[j], np.concatenate([a for a, _ in both]), np.concatenate([b for _, b in both])


def _holders(bound: Bound, event: Event, num_warps: int) -> np.ndarray:
    """(warps, elements of the tile): which warps execute the access of an element."""
    size = event.mask.size
    layout = bound.op.layout
    if layout is None:
        held = np.zeros((num_warps, size), bool)
        held[slice(None) if event.kind == "load" else 0] = True
        return held
    held = np.zeros((len(layout.elements), size), bool)
    for warp, elements in enumerate(layout.elements):
        if event.kind == "load":
            held[warp, elements.reshape(-1)] = True
        elif layout.warps[warp]:
            held[warp, elements[layout.lanes].reshape(-1)] = True
    return held


class _Code:
    """Where the PTX waits at barriers, and where it loops."""

    BARRIER = re.compile(r"\b(?:bar\.sync|bar\.red|barrier\.(?:cta\.)?(?:sync|red|cluster))")

    def __init__(self, lowering: Lowering):
        self.barriers: list[int] = []
        self.loops: list[tuple[int, int]] = []
        self.at: dict[str, list[int]] = {}
        labels: dict[str, int] = {}
        for n, raw in enumerate(lowering.ptx.splitlines()):
            text = raw.strip()
            label = re.match(r"(\$\w+):", text)
            jump = re.search(r"\bbra(?:\.uni)?\s+(\$\w+)", text)
            if label:
                labels[label[1]] = n
            elif jump and jump[1] in labels:
                self.loops.append((labels[jump[1]], n))
            elif self.BARRIER.search(text):
                self.barriers.append(n)
            else:
                self.at.setdefault(text, []).append(n)

    def place(self, text: str) -> tuple[int, int]:
        """First and last line of an instruction."""
        lines = self.at.get(text, [0])
        return lines[0], lines[-1]

    def barrier(self, first: Bound, second: Bound, same_iteration: bool) -> bool:
        """Whether a barrier stands between one operation and the next, on the way that leads from it to the other."""
        start, end = self.place(first.run[-1].text)[1], self.place(second.run[0].text)[0]
        if start < end and any(start < b < end for b in self.barriers):
            return True
        around = [(a, z) for a, z in self.loops if a <= min(start, end) and max(start, end) <= z]
        if not around or (start < end and same_iteration):
            return start > end and any(end < b < start for b in self.barriers)
        a, z = min(around, key=lambda loop: loop[1] - loop[0])
        return any(a <= b < end or start < b <= z for b in self.barriers)

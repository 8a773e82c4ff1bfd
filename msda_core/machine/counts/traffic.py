"""Requests and sectors, as Nsight Compute counts them: a trace seen through the layouts of a lowering.

The trace knows every address, the lowering knows which thread of which warp holds which element and how wide its
instructions are. One instruction of one warp is a request, and costs the distinct 32-byte sectors its active lanes
touch. The finer rules, each confirmed by hardware counters (`data/`):

- a request whose lanes are all masked off does not count;
- a load is issued by every warp that holds a copy, a scalar load by every warp of the program;
- a store or an atomic is issued by one holder only, a scalar one by one thread;
- the width of an access is its instruction's, not its layout's: a ragged mask or a misaligned pointer narrows it;
- a reduction counts a sector as often as its most-hit address in the request;
- a second load of the same address under the same predicate is merged; a load that is wanted in two layouts may be
  issued in both;
- copies to shared memory that a pipelined loop makes (cp.async) count as loads; Nsight has them under `ldgsts`;
- a 16-bit float atomic that is not part of a vector has no instruction: it is a load and a compare-and-swap loop on the
  32-bit word, with as many rounds as lanes that meet in one word.

Profiling costs little more than interpreting: 64 programs of an MSDA forward took 0.71 s in Triton's interpreter alone
and 0.83 s traced, lowered (warm) and counted, on two cores of a server CPU; a warm lowering 4 ms.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from msda_core.machine.compile.binding import Bound
from msda_core.machine.compile.lower import Lowering
from msda_core.machine.counts.correlation import executed, match
from msda_core.machine.errors import Unsupported
from msda_core.machine.run.trace import Event, Site, Trace

__all__ = ["LineTraffic", "Report", "Request", "SiteTraffic", "Traffic", "count", "distinct", "issued", "sectors_of"]

SECTOR = 32
LINE = 128
_NONE = np.iinfo(np.int64).max


@dataclass
class Traffic:
    """What one kind of access costs.

    Attributes:
        requests: instructions times warps with an active lane; sectors: 32-byte sectors they touch.
        bytes: what the programs asked for, each unmasked element once per program.
        unique_sectors: distinct sectors over the whole launch.
    """

    requests: int = 0
    sectors: int = 0
    bytes: int = 0
    unique_sectors: int = 0

    @property
    def efficiency(self) -> float:
        """Useful over delivered bytes; can pass 1 where lanes share what they read. 1 if nothing was moved."""
        return self.bytes / (self.sectors * SECTOR) if self.sectors else 1.0


@dataclass
class SiteTraffic(Traffic):
    """Traffic of one operation in the source.

    Attributes:
        kind, lineno, text: where; site: the trace's.
        instruction: the PTX instruction, "" where the compiler removed the access.
        width: bytes that one thread moves with it.
        returning: an atomic whose old value somebody uses, or an exchange: there is no reduction of that kind.
        loop: an atomic that became a loop of compare-and-swap. Retries against other warps are not counted.
        loop_loads: what such loops load before they swap; part of the report's loads, not of this site.
        executions: how often programs ran it.
        wavefronts: passes through L1, a line of 128 bytes each: the distinct lines of each request.
        worst: atomics: lanes of one request that meet at one address, at most.
    """

    kind: str = ""
    lineno: int = 0
    text: str = ""
    site: Site | None = None
    instruction: str = ""
    width: int = 0
    returning: bool = False
    loop: bool = False
    loop_loads: Traffic = field(default_factory=Traffic)
    executions: int = 0
    wavefronts: int = 0
    worst: int = 0


@dataclass
class LineTraffic(Traffic):
    """Traffic of one source line."""

    lineno: int = 0
    text: str = ""
    sites: list[SiteTraffic] = field(default_factory=list)


@dataclass(eq=False)
class Report:
    """The counters of one launch.

    Attributes:
        kernel, grid, target, num_warps: what was launched, and for which GPU (compute capability).
        loads, stores, atomics: see `Traffic`.
        unique_bytes: compulsory traffic: each sector that is loaded or combined once, in bytes.
        written_bytes: each sector that is stored or combined, once, in bytes.
        dram_bytes: what a cold H200 reads for that from DRAM: pairs of sectors, so 64 bytes at a time. Not in it: the
            kernel's own code and arguments, 3 to 12 kB.
        sites: traffic of each operation, in order of first use.
        eliminated: operations of the source that the compiler removed, merged or hoisted.
        l2_loads: sectors of loads that L1 passes on to L2, if it keeps what one program has read and no other's; cp.async
            passes it by.
        contention: `Contention` of the atomics.
        lowering, trace: what the counts were made from.
        sampled: how many programs ran, where the counts are extrapolated from a sample; None where all did.
        error: relative half-width of the counts' 95 % confidence interval; 0 where all programs ran.
    """

    kernel: str
    grid: tuple[int, int, int]
    target: int
    num_warps: int
    loads: Traffic
    stores: Traffic
    atomics: Traffic
    unique_bytes: int
    written_bytes: int
    dram_bytes: int
    sites: list[SiteTraffic]
    eliminated: list[Site]
    contention: "Contention"
    lowering: Lowering
    trace: Trace
    l2_loads: int = 0
    sampled: int | None = None
    error: float = 0.0

    @property
    def programs(self) -> int:
        """How many programs ran."""
        return self.trace.programs

    @property
    def requests(self) -> int:
        """Requests of all kinds: one for each instruction of each warp."""
        return self.loads.requests + self.stores.requests + self.atomics.requests

    @property
    def sectors(self) -> int:
        """Sectors of 32 bytes that all requests asked for."""
        return self.loads.sectors + self.stores.sectors + self.atomics.sectors

    @property
    def requested_bytes(self) -> int:
        """What goes through the caches: every sector of every request, in bytes."""
        return self.sectors * SECTOR

    @property
    def efficiency(self) -> float:
        """Useful bytes over delivered bytes, all kinds together."""
        return (self.loads.bytes + self.stores.bytes + self.atomics.bytes) / max(1, self.requested_bytes)

    @property
    def by_line(self) -> dict[int, LineTraffic]:
        """Traffic per source line, in order of the lines; an access in a helper counts for the helper's line."""
        lines: dict[int, LineTraffic] = {}
        for site in sorted(self.sites, key=lambda s: s.lineno):
            line = lines.setdefault(site.lineno, LineTraffic(lineno=site.lineno, text=site.text))
            line.sites.append(site)
            for name in ("requests", "sectors", "bytes", "unique_sectors"):
                setattr(line, name, getattr(line, name) + getattr(site, name))
        return lines

    def l2_misses(self, capacity: int, line: int = SECTOR) -> int:
        """Sectors that an L2 of this capacity would fetch from DRAM, if it kept the most recently used ones.

        Programs run one after another here and all at once on a GPU, so this is a model, not a count.

        Args:
            capacity: bytes.
        """
        return lru_misses(self._sector_stream(), capacity // line)

    def _sector_stream(self) -> np.ndarray:
        streams = []
        for event in self.trace.events:
            if event.kind != "store":
                streams.append(np.unique(event.addresses[event.mask] // SECTOR))
        return np.concatenate(streams) if streams else np.zeros(0, np.int64)

    def __str__(self) -> str:
        """A table: line, instruction, requests, sectors, efficiency."""
        rows = [
            f"{self.kernel}: {self.programs} programs of {self.num_warps} warps, sm_{self.target}, "
            f"Triton {self.lowering.triton}",
            f"{'line':>5} {'requests':>9} {'sectors':>9} {'useful':>7}  instruction",
        ]
        for site in self.sites:
            rows.append(
                f"{site.lineno:>5} {site.requests:>9,} {site.sectors:>9,} {site.efficiency:>7.0%}  "
                f"{site.instruction or 'removed by the compiler'}"
            )
        for name in ("loads", "stores", "atomics"):
            t = getattr(self, name)
            rows.append(f"{name:>7}: {t.requests:,} requests, {t.sectors:,} sectors, {t.efficiency:.0%} useful")
        rows.append(f"unique: {self.unique_bytes:,} bytes")
        if self.sampled is not None:
            rows.append(
                f"extrapolated from {self.sampled:,} of {self.programs:,} programs, to within {self.error:.1%} (95 %)"
            )
        return "\n".join(rows)


@dataclass
class Contention:
    """How atomics meet.

    Attributes:
        lanes: most lanes of one request at one address.
        updates: most updates of one address over the launch; mean: updates per touched address.
        programs: most programs that update one 128-byte line; line: most sectors of reductions on one such line, which
            L2 works off one after another.
    """

    lanes: int = 0
    updates: int = 0
    mean: float = 0.0
    programs: int = 0
    line: int = 0


# --- Counting ---------------------------------------------------------------------------------------------------------


def _requests(bound: Bound, events: list[Event], num_warps: int) -> tuple[np.ndarray, np.ndarray]:
    """Addresses and activity of every request of these events, (requests, 32); only those with an active lane."""
    op, kind = bound.op, events[0].kind
    addresses = np.stack([e.addresses.reshape(-1) for e in events])
    mask = np.stack([e.mask.reshape(-1) for e in events])
    if op.layout is None:  # scalar: every warp loads it, one thread stores it
        repeat = num_warps if kind == "load" else 1
        addresses = np.repeat(addresses[:, :1], repeat, 0)
        mask = np.repeat(mask[:, :1], repeat, 0)
        keep = mask[:, 0]
        return addresses[keep], mask[keep]
    layout, itemsize = op.layout, events[0].itemsize
    vector = 1 if bound.loop else max(1, min(bound.width // itemsize, layout.registers))
    first = layout.elements[:, :, ::vector]  # the vector's first element stands for its address
    lanes = np.ones(first.shape, bool)
    if kind != "load":
        lanes &= layout.lanes[None, :, None] & layout.warps[:, None, None]
    if vector > 1:
        groups = layout.elements.reshape(*layout.elements.shape[:2], -1, vector)
        active = mask[:, groups].any(-1)
    else:
        active = mask[:, first]
    active &= lanes
    instructions = bound.fresh(first.shape[2])
    active, first = active[..., instructions], first[..., instructions]
    # (events, warps, lanes, instructions) -> (events * warps * instructions, lanes)
    where = addresses[:, first].transpose(0, 1, 3, 2).reshape(-1, first.shape[1])
    active = active.transpose(0, 1, 3, 2).reshape(-1, first.shape[1])
    keep = np.asarray(active.any(1))
    return where[keep], active[keep]


def distinct_sectors(addresses: np.ndarray, active: np.ndarray, size: int = SECTOR) -> int:
    """Sum over requests of the distinct sectors (or pieces of `size`) their active lanes touch; (requests, lanes) both."""
    if not addresses.size:
        return 0
    sectors = np.where(active, addresses // size, _NONE)
    sectors.sort(axis=1)
    fresh = np.ones(sectors.shape, bool)
    fresh[:, 1:] = sectors[:, 1:] != sectors[:, :-1]
    return int((fresh & (sectors != _NONE)).sum())


def reduction_sectors(addresses: np.ndarray, active: np.ndarray) -> tuple[np.ndarray, int]:
    """Sectors of reductions: each counts as often as its most-hit address in the request.

    Returns:
        (the sectors, one entry for each time one counts; most lanes of one request at one address)
    """
    if not addresses.size:
        return np.zeros(0, np.int64), 0
    where, turn = _meetings(addresses, active)
    used = where != _NONE
    # The ranks seen in a sector are 0 .. (its most-hit address) - 1, so count distinct (sector, rank).
    width = addresses.shape[1]
    key = np.where(used, (where // SECTOR) * width + turn, _NONE)
    key.sort(axis=1)
    fresh = np.ones(key.shape, bool)
    fresh[:, 1:] = key[:, 1:] != key[:, :-1]
    return key[fresh & (key != _NONE)] // width, int(turn[used].max()) + 1


def _meetings(addresses: np.ndarray, active: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sorted addresses of each request (`_NONE` where inactive), and each lane's rank among those at its address."""
    lanes = np.arange(addresses.shape[1])
    where = np.where(active, addresses, _NONE)
    where.sort(axis=1)
    start = np.ones(where.shape, bool)
    start[:, 1:] = where[:, 1:] != where[:, :-1]
    return where, lanes - np.maximum.accumulate(np.where(start, lanes, 0), axis=1)


def loop_rounds(words: np.ndarray, active: np.ndarray) -> int:
    """Compare-and-swap instructions: each round one lane wins each word, until none is left."""
    if not words.size:
        return 0
    where, turn = _meetings(words, active)
    return int((np.where(where != _NONE, turn, -1).max(axis=1) + 1).sum())


def loop_sectors(words: np.ndarray, active: np.ndarray) -> tuple[int, int]:
    """Sectors of a compare-and-swap loop: in each round a sector counts as often as its most-wanted word.

    Returns:
        (sectors, most lanes of one request in one word)
    """
    if not words.size:
        return 0, 0
    where, turn = _meetings(words, active)
    used = where != _NONE
    key = np.where(used, (where // SECTOR) * words.shape[1] + turn, _NONE)
    key.sort(axis=1)
    fresh = np.ones(key.shape, bool)
    fresh[:, 1:] = key[:, 1:] != key[:, :-1]
    fresh &= key != _NONE
    # Ranks 0 .. m-1 of a sector stand for m + (m-1) + ... + 1 sectors over the rounds.
    return int((key[fresh] % words.shape[1] + 1).sum()), int(turn[used].max()) + 1


def distinct(values: np.ndarray) -> np.ndarray:
    """Each value once, in order. (`np.unique` hashes whole numbers, which takes four times as long.)"""
    values = np.sort(values, axis=None)
    fresh = np.ones(values.shape, bool)
    fresh[1:] = values[1:] != values[:-1]
    return values[fresh]


def sectors_of(events: Sequence[Event]) -> list[np.ndarray]:
    """The distinct sectors of each event. Events of one pattern, mask and alignment differ by a distance only."""
    known: dict[tuple, np.ndarray] = {}
    found = []
    for event in events:
        base, rest = divmod(event.first, SECTOR)
        key = (id(event.pattern), id(event.mask), rest)
        if key not in known:
            known[key] = distinct((event.pattern[event.mask] + np.int64(rest)) // SECTOR)
        found.append(known[key] + base)
    return found


def _unique(events: Iterable[Event]) -> np.ndarray:
    """The distinct sectors of all."""
    once = {(id(e.pattern), id(e.mask), e.first): e for e in events}
    parts = sectors_of(list(once.values()))
    return distinct(np.concatenate(parts)) if parts else np.zeros(0, np.int64)


def count(trace: Trace, lowering: Lowering) -> Report:
    """Count a trace through a lowering of the same kernel.

    Raises:
        Unsupported: an access goes through a layout or an engine that is not modelled.
    """
    if re.search(r'"ttg.num-ctas" = (?!1 )', lowering.ttgir) or lowering.options.get("num_ctas", 1) > 1:
        raise Unsupported("Programs that span several blocks (num_ctas > 1) are not modelled.")
    matched = match(trace.sites, lowering.bound)
    by_site: dict[Site, list[Event]] = {s: [] for s in trace.sites}
    for event in trace.events:
        by_site[event.site].append(event)
    totals = {"load": Traffic(), "store": Traffic(), "atomic": Traffic()}
    counted: dict[str, list[Event]] = {k: [] for k in totals}
    sites, eliminated, lines, passed = [], [], [], 0
    cached: list[Event] = []
    for site, events in by_site.items():
        row = SiteTraffic(kind=site.kind, lineno=site.lineno, text=site.text, site=site, executions=len(events))
        sites.append(row)
        ops = [b for b in matched.get(site, ()) if b.run]
        if not ops:
            eliminated.append(site)
            continue
        row.instruction, row.width = ops[0].instruction.mnemonic, ops[0].width
        row.returning = site.kind == "atomic" and any(b.op.used or b.op.op in ("exch", "cas") for b in ops)
        once: dict[int, Event] = {}  # copies in other layouts ask for the same bytes again
        for bound, own in executed(events, ops):
            once.update((id(event), event) for event in own)
            if site.kind != "atomic":  # one that repeats costs the same each time
                for event, times in _repeated(own):
                    addresses, active = _requests(bound, [event], lowering.num_warps)
                    row.requests += times * len(addresses)
                    row.sectors += times * distinct_sectors(addresses, active)
                    row.wavefronts += times * distinct_sectors(addresses, active, LINE)
                continue
            for shaped in _by_shape(own):
                addresses, active = _requests(bound, shaped, lowering.num_warps)
                row.requests += len(addresses)
                row.wavefronts += distinct_sectors(addresses, active, LINE)
                if bound.loop:
                    words = addresses & ~3
                    row.loop = True
                    row.loop_loads.requests += len(addresses)
                    row.loop_loads.sectors += distinct_sectors(words, active)
                    row.requests += loop_rounds(words, active) - len(addresses)
                    asked, worst = loop_sectors(words, active)
                    row.sectors += asked
                    row.worst = max(row.worst, worst)
                else:
                    sectors, worst = reduction_sectors(addresses, active)
                    row.sectors += len(sectors)
                    lines.append(sectors // (LINE // SECTOR))
                    row.worst = max(row.worst, worst)
        kept = list(once.values())
        if site.kind == "load" and all(b.op.kind == "async" for b in ops):
            passed += row.sectors
        elif site.kind == "load":
            cached.extend(kept)
        row.bytes = sum(e.bytes for e in kept)
        row.unique_sectors = len(_unique(kept))
        counted[site.kind].extend(kept)
        total = totals[site.kind]
        for name in ("requests", "sectors", "bytes"):
            setattr(total, name, getattr(total, name) + getattr(row, name))
        totals["load"].requests += row.loop_loads.requests
        totals["load"].sectors += row.loop_loads.sectors
    unique = {kind: _unique(events) for kind, events in counted.items()}
    for kind, sectors in unique.items():
        totals[kind].unique_sectors = len(sectors)
    read = distinct(np.concatenate([unique["load"], unique["atomic"]]))
    return Report(
        kernel=trace.kernel,
        grid=trace.grid,
        target=lowering.target,
        num_warps=lowering.num_warps,
        loads=totals["load"],
        stores=totals["store"],
        atomics=totals["atomic"],
        unique_bytes=SECTOR * len(read),
        written_bytes=SECTOR * len(distinct(np.concatenate([unique["store"], unique["atomic"]]))),
        dram_bytes=64 * len(distinct(read // 2)),
        sites=sites,
        eliminated=eliminated,
        contention=_contention(counted["atomic"], max((s.worst for s in sites), default=0), lines),
        lowering=lowering,
        trace=trace,
        l2_loads=passed + _read_once(cached),
    )


def _read_once(events: list[Event]) -> int:
    """The distinct sectors of each program, in all."""
    programs: dict[tuple, dict[tuple, Event]] = {}
    for event in events:
        programs.setdefault(event.program, {})[id(event.pattern), id(event.mask), event.first] = event
    total = 0
    for own in programs.values():
        parts = sectors_of(list(own.values()))
        total += len(distinct(np.concatenate(parts))) if len(parts) > 1 else len(parts[0])
    return total


class Request(NamedTuple):
    """One instruction of one warp: where each active lane's access begins, and how many bytes a lane moves."""

    site: Site
    addresses: list[int]
    width: int


def issued(trace: Trace, lowering: Lowering, kind: str = "load") -> Iterator[Request]:
    """Every request that `count` counts, one by one, place after place: for whoever wants to count for themselves.

    Args:
        kind: "load", "store" or "atomic".
    """
    matched = match(trace.sites, lowering.bound)
    for site in (s for s in trace.sites if s.kind == kind):
        ops = [b for b in matched.get(site, ()) if b.run]
        for bound, own in executed([e for e in trace.events if e.site is site], ops) if ops else ():
            for shaped in _by_shape(own):
                itemsize = shaped[0].itemsize
                registers = bound.op.layout.registers if bound.op.layout else 1
                width = itemsize * max(1, min(bound.width // itemsize, registers))
                for addresses, active in zip(*_requests(bound, shaped, lowering.num_warps)):
                    yield Request(site, addresses[active].tolist(), width)


def _repeated(events: list[Event]) -> list[tuple[Event, int]]:
    """Events of which each is alone with its pattern, mask and place within a sector, and how many are like it."""
    found: dict[tuple, list[Event]] = {}
    for event in events:
        found.setdefault((id(event.pattern), id(event.mask), event.itemsize, event.first % SECTOR), []).append(event)
    return [(alike[0], len(alike)) for alike in found.values()]


#: Elements that are looked at in one step: 8 MB of addresses.
_STEP = 1 << 20


def _by_shape(events: list[Event]) -> list[list[Event]]:
    """Events of one shape and element size each, in portions that fit in memory."""
    shapes: dict[tuple, list[Event]] = {}
    for event in events:
        shapes.setdefault((event.pattern.shape, event.itemsize), []).append(event)
    portions = []
    for alike in shapes.values():
        size = max(1, _STEP // max(1, alike[0].pattern.size))
        portions += [alike[i : i + size] for i in range(0, len(alike), size)]
    return portions


def _contention(events: list[Event], lanes: int, lines: list[np.ndarray]) -> Contention:
    if not events:
        return Contention()
    addresses = np.concatenate([e.addresses[e.mask] for e in events])
    if not addresses.size:
        return Contention()
    _, updates = np.unique(addresses, return_counts=True)
    programs = {p: i for i, p in enumerate(dict.fromkeys(e.program for e in events))}
    pairs = [np.unique(e.addresses[e.mask] // LINE) for e in events]
    owner = np.concatenate([np.full(len(p), programs[e.program]) for p, e in zip(pairs, events)])
    meetings = np.unique(np.stack([np.concatenate(pairs), owner], 1), axis=0)[:, 0]
    return Contention(
        lanes=lanes,
        updates=int(updates.max()),
        mean=float(updates.mean()),
        programs=int(np.unique(meetings, return_counts=True)[1].max()),
        line=int(np.unique(np.concatenate(lines), return_counts=True)[1].max()) if lines else 0,
    )


def lru_misses(stream: np.ndarray, capacity: int) -> int:
    """Misses of a fully associative cache of `capacity` entries that replaces the least recently used."""
    from collections import OrderedDict

    cache: OrderedDict[int, None] = OrderedDict()
    misses = 0
    for key in stream.tolist():
        if key in cache:
            cache.move_to_end(key)
            continue
        misses += 1
        cache[key] = None
        if len(cache) > capacity:
            cache.popitem(last=False)
    return misses

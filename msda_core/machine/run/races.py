"""Races: which accesses of different programs conflict, and an order of the programs in which that goes wrong."""

import random
import threading
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from msda_core.machine import errors
from msda_core.machine.launch import bind
from msda_core.machine.run.emulate import Access, Emulation
from msda_core.machine.run.numbers import bits_to_float32
from msda_core.machine.run.trace import Site, Trace

__all__ = ["Interleaving", "LostUpdate", "Race", "Step", "interleave", "races"]

MAX_PROGRAMS = 1024  # each is a thread


@dataclass(frozen=True)
class Race:
    """Two accesses to one element, at least one of them a plain store, with nothing that orders them.

    Attributes:
        store, other: the two places in the source; `other` may be the same store.
        programs: one program of each; equal where two lanes of one store meet inside a program.
        tensor, element: where, for one example; count: how many elements these two places fight over.
    """

    store: Site
    other: Site
    programs: tuple[tuple[int, int, int], tuple[int, int, int]]
    tensor: str | None
    element: int | None
    count: int

    @property
    def within(self) -> bool:
        """Two lanes of one program store to one element: which of them wins is not defined either."""
        return self.programs[0] == self.programs[1]

    def __str__(self) -> str:
        p, q = self.programs
        where = f"{self.tensor}[{self.element}]"
        more = f" ({self.count} elements in all)" if self.count > 1 else ""
        if self.within:
            return (
                f"line {self.store.lineno}: `{self.store.text}` stores to {where} from two lanes of program {p}{more}: "
                "one of the two is lost."
            )
        verb = {"load": "loads", "store": "stores too", "atomic": "updates"}[self.other.kind]
        return (
            f"line {self.store.lineno}: `{self.store.text}` stores to {where} in program {p}, which program {q} {verb} "
            f"in line {self.other.lineno}: `{self.other.text}`{more}. Nothing orders the two."
        )


def races(trace: Trace) -> list[Race]:
    """Conflicts between accesses that nothing orders: two programs at one element, one of them by a plain store.

    Atomics among themselves do not race. Two lanes of one store at one element are reported as well (`Race.within`).

    Returns:
        one entry per pair of places in the source, with an example and a count.
    """
    order = {p: i for i, p in enumerate(dict.fromkeys(e.program for e in trace.events))}
    programs = list(order)
    sites = {s: i for i, s in enumerate(trace.sites)}
    parts, found = [], {}
    names = {}
    for event in trace.events:
        active = event.addresses[event.mask]
        touched, times = np.unique(active, return_counts=True)
        names[sites[event.site]] = event.tensor
        if event.kind == "store" and (times > 1).any():
            key = (event.site, event.site, True)
            address = int(touched[np.argmax(times > 1)])
            _add(found, key, (event.program, event.program), event.tensor, address, int((times > 1).sum()))
        parts.append(
            np.stack(
                [touched, np.full(touched.size, order[event.program]), np.full(touched.size, sites[event.site])], 1
            )
        )
    if not parts:
        return []
    table = np.unique(np.concatenate(parts), axis=0)  # (address, program, site), sorted
    stores = np.array([s.kind == "store" for s in trace.sites])[table[:, 2]]
    starts = np.flatnonzero(np.r_[True, table[1:, 0] != table[:-1, 0]])
    group = np.repeat(np.arange(starts.size), np.diff(np.r_[starts, len(table)]))
    written = np.zeros(starts.size, bool)
    np.logical_or.at(written, group, stores)
    many = np.maximum.reduceat(table[:, 1], starts) != np.minimum.reduceat(table[:, 1], starts)
    ends = np.r_[starts[1:], len(table)]
    for g in np.flatnonzero(written & many):
        rows = table[starts[g] : ends[g]]
        pairs = set()
        for address, p, s in rows.tolist():
            if trace.sites[s].kind != "store":
                continue
            for _, q, o in rows.tolist():
                other = trace.sites[o]
                if q == p or (other.kind == "store" and o < s):
                    continue
                if (s, o) not in pairs:
                    pairs.add((s, o))
                    key = (trace.sites[s], other, False)
                    _add(found, key, (programs[p], programs[q]), names[s], int(address), 1)
    result = []
    for (store, other, _), (who, tensor, address, count) in found.items():
        info = trace.tensors.get(tensor)
        element = (address - info.base) // info.itemsize if info else None
        result.append(Race(store, other, who, tensor, element, count))
    return result


def _add(found, key, who, tensor, address, count):
    before = found.get(key)
    found[key] = (who, tensor, address, count) if before is None else (*before[:3], before[3] + count)


# --- Interleaving ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """One access, in the order in which it happened.

    Attributes:
        program: (x, y, z); kind: "load", "store" or "atomic"; op: "add", "cas", ... for atomics.
        lineno, line: in the source.
        tensor: name of the argument; elements: offsets of the active lanes.
        values: what was loaded, stored, or (atomic) what was there before; operands: what an atomic combined.
    """

    program: tuple[int, int, int]
    kind: str
    op: str
    lineno: int
    line: str
    tensor: str | None
    elements: tuple[int, ...]
    values: tuple
    operands: tuple = ()

    def __str__(self) -> str:
        shown = ", ".join(f"[{e}] = {v}" for e, v in list(zip(self.elements, self.values))[:4])
        more = ", …" if len(self.elements) > 4 else ""
        return f"program {self.program[0]:>3}  line {self.lineno:>3}  {self.kind:6} {self.tensor}{shown}{more}"


@dataclass(frozen=True)
class LostUpdate:
    """A store that nobody will ever see: another program had read the old value, and now writes over it.

    Attributes:
        tensor, element: where.
        winner, loser: the programs; the loser's store is gone.
        read, lost, overwrite: indices into the timeline: winner reads, loser stores, winner stores.
    """

    tensor: str
    element: int
    winner: tuple[int, int, int]
    loser: tuple[int, int, int]
    read: int
    lost: int
    overwrite: int


@dataclass
class Interleaving:
    """Programs as interleaved threads, in one order among many.

    Attributes:
        timeline: every access, in order.
        lost: the updates that were lost.
        seed, programs: what decided the order, and how many there were.
    """

    kernel: str
    seed: int
    programs: int
    timeline: list[Step] = field(default_factory=list)
    lost: list[LostUpdate] = field(default_factory=list)

    def of(self, tensor: str, element: int) -> list[Step]:
        """The history of one element."""
        return [s for s in self.timeline if s.tensor == tensor and element in s.elements]

    def __str__(self) -> str:
        return "\n".join(map(str, self.timeline))


def interleave(kernel, grid, args=(), seed: int = 0, **kwargs) -> Interleaving:
    """Run the programs of a launch as threads that hand over at every memory access, in an order the seed decides.

    The same seed gives the same order on every machine; tensors are written to. Each access is one step, as if a
    whole block of lanes moved together: a real GPU has more ways to go wrong, and none fewer.

    Args:
        kernel, grid: as in `kernel[grid](...)`; at most 1024 programs.
        args: the kernel's positional arguments.
        **kwargs: further arguments, constants and launch options.

    Raises:
        KernelError: as in `guard`. LaunchError: too many programs.
    """
    emulation = Emulation(bind(kernel, grid, tuple(args), kwargs))
    launch = emulation.launch
    if launch.programs > MAX_PROGRAMS:
        raise errors.LaunchError(
            f"{launch.programs} programs are too many to interleave: expected at most {MAX_PROGRAMS}. Use a smaller input."
        )
    result = Interleaving(launch.name, seed, launch.programs)
    emulation.after = lambda access, value: result.timeline.append(_step(access, value))
    _Threads(emulation, random.Random(seed)).run()
    result.lost = _lost(result.timeline)
    return result


class _Threads:
    """One thread per program; exactly one of them runs at any time."""

    def __init__(self, emulation: Emulation, choice: random.Random):
        self.emulation = emulation
        self.choice = choice
        self.turn: tuple[int, int, int] | None = None
        self.alive: list[tuple[int, int, int]] = []
        self.changed = threading.Condition()
        self.local = threading.local()
        self.error: BaseException | None = None

    def run(self):
        nx, ny, nz = self.emulation.launch.grid
        self.alive = [(x, y, z) for x in range(nx) for y in range(ny) for z in range(nz)]
        if not self.alive:
            return
        with self.emulation.prepared() as (function, arguments):
            self.emulation.handover = self._handover
            threads = [
                threading.Thread(target=self._body, args=(p, function, arguments), daemon=True) for p in self.alive
            ]
            for thread in threads:
                thread.start()
            with self.changed:
                self._next()
            for thread in threads:
                thread.join()
            if self.error is not None:
                raise self.error

    def _next(self):
        """Give the turn to somebody; call with the lock held."""
        self.turn = self.choice.choice(self.alive) if self.alive else None
        self.changed.notify_all()

    def _wait(self):
        self.changed.wait_for(lambda: self.turn == self.local.program or self.error is not None)
        if self.error is not None:
            raise _Stop
        self.emulation._builder.set_grid_idx(*self.local.program)

    def _handover(self):
        with self.changed:
            self._next()
            self._wait()

    def _body(self, program, function, arguments):
        self.local.program = program
        try:
            with np.errstate(all="ignore"):
                with self.changed:
                    self._wait()
                try:
                    self.emulation._program(function, arguments)
                except _Stop:
                    raise
                except Exception as error:
                    self.emulation.fail(error)
        except _Stop:
            pass
        except BaseException as error:
            self.error = self.error or error
        finally:
            with self.changed:
                self.alive.remove(program)
                self._next()


class _Stop(BaseException):
    """Another program failed."""


def _step(access: Access, value) -> Step:
    mask = access.mask.reshape(-1)
    argument = access.argument
    addresses = access.addresses.reshape(-1)[mask]
    elements = tuple(argument.element(a) for a in addresses) if argument else ()
    frame = access.frames[-1]
    return Step(
        program=access.program,
        kind=access.kind,
        op=access.op,
        lineno=frame.lineno,
        line=frame.text,
        tensor=argument.name if argument else None,
        elements=elements,
        values=_numbers(access, value, mask),
        operands=_numbers(access, access.value, mask) if access.kind == "atomic" else (),
    )


def _numbers(access: Access, value, mask) -> tuple:
    if value is None:
        return ()
    data = np.broadcast_to(value, access.addresses.shape).reshape(-1)[mask]
    if str(access.dtype) == "bf16":
        data = bits_to_float32(data)
    return tuple(data.tolist())


def _lost(timeline: list[Step]) -> list[LostUpdate]:
    """Stores between a program's load of an element and its own store to it."""
    read: dict[tuple, int] = {}  # (program, tensor, element) -> last load
    stores: dict[tuple, list[tuple[int, tuple]]] = defaultdict(list)  # (tensor, element) -> stores so far
    lost = []
    for now, step in enumerate(timeline):
        for element in dict.fromkeys(step.elements):
            place = (step.tensor, element)
            mine = (step.program, *place)
            if step.kind == "load":
                read[mine] = now
            elif step.kind == "store":
                since = read.pop(mine, None)
                if since is not None:
                    lost += [
                        LostUpdate(*place, step.program, other, since, then, now)
                        for then, other in stores[place]
                        if then > since and other != step.program
                    ]
                stores[place].append((now, step.program))
    return lost

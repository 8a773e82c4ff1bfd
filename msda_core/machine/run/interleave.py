"""Programs as interleaved threads: an order among many, chosen by a seed or by hand, and what goes wrong in it."""

import itertools
import random
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from msda_core.machine import errors
from msda_core.machine.launch import bind, is_descriptor, tensors_of
from msda_core.machine.run.emulate import Access, Emulation
from msda_core.machine.run.numbers import bits_to_float32
from msda_core.machine.run.races import Race
from msda_core.machine.run.trace import Trace

__all__ = ["Interleaving", "LostUpdate", "Step", "interleave", "witness"]

MAX_PROGRAMS = 1024  # each is a thread


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

    tensor: str | None
    element: int
    winner: tuple[int, int, int]
    loser: tuple[int, int, int]
    read: int
    lost: int
    overwrite: int

    @property
    def marks(self) -> tuple[tuple[int, str], ...]:
        """Steps of the timeline, and what each of them is."""
        return (self.read, "reads"), (self.lost, "is lost"), (self.overwrite, "writes over it")


@dataclass
class Interleaving:
    """Programs as interleaved threads, in one order among many.

    Attributes:
        timeline: every access, in order.
        lost: the updates that were lost.
        seed, programs: what decided the order (None: a schedule made by hand), and how many there were.
        difference: of a `witness`, what comes out otherwise than one after the other; late: index of the store that
            arrives late, in the timeline.
    """

    kernel: str
    seed: int | None
    programs: int
    timeline: list[Step] = field(default_factory=list)
    lost: list[LostUpdate] = field(default_factory=list)
    difference: str = ""
    late: int | None = None

    def of(self, tensor: str, element: int) -> list[Step]:
        """The history of one element."""
        return [s for s in self.timeline if s.tensor == tensor and element in s.elements]

    def draw(self, tensor: str | None = None, element: int | None = None, width: int = 34) -> str:
        """The timeline as text: a column for each program, time going down; what a lost update is made of is marked.

        Args:
            tensor, element: only accesses that touch it.
            width: characters of a column.
        """
        marks = {i: word for lost in self.lost for i, word in lost.marks}
        if self.late is not None:
            marks[self.late] = "arrives late"
        shown = [
            (i, s)
            for i, s in enumerate(self.timeline)
            if (tensor is None or s.tensor == tensor) and (element is None or element in s.elements)
        ]
        columns = list(dict.fromkeys(s.program for _, s in shown))
        rows = ["".join(f"program {p}".ljust(width) for p in columns).rstrip()]
        for i, step in shown:
            pick = step.elements.index(element) if element is not None else 0
            value = f"[{step.elements[pick]}] {step.values[pick]}" if step.elements and step.values else ""
            word = f" <- {marks[i]}" if i in marks else ""
            cell = f"{step.lineno}: {step.op or step.kind} {step.tensor}{value}{word}"
            rows.append(" " * width * columns.index(step.program) + cell)
        return "\n".join([*rows, self.difference] if self.difference else rows)

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
    _Threads(emulation, random.Random(seed).choice).run()
    result.lost = _lost(result.timeline)
    return result


class _Threads:
    """One thread per program; exactly one of them runs at any time."""

    def __init__(self, emulation: Emulation, choice: Callable[[list[tuple]], tuple]):
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
        self.turn = self.choice(self.alive) if self.alive else None
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


# --- The schedule in which a race is seen -----------------------------------------------------------------------------

MAX_LATE = 4  # stores of a program that are tried as late ones, and accesses of the other that come before them
PATIENCE = 2000  # accesses after which a program of a schedule that only spins hands over


class _Script:
    """Programs in an order made by hand: some accesses of one, then of the next; the last entries run to their ends."""

    def __init__(self, stages: list[tuple[tuple[int, int, int], int]]):
        self.stages = list(stages)
        self.spent = 0

    def __call__(self, alive: list[tuple]) -> tuple:
        while self.stages:
            program, accesses = self.stages[0]
            if program in alive and self.spent <= accesses:
                self.spent += 1
                return program
            self.stages.pop(0)
            self.spent = 0
        self.spent += 1
        return alive[self.spent % len(alive)]


def witness(trace: Trace, race: Race) -> Interleaving | None:
    """Run the launch again in an order in which the race is seen: an update is lost, or something else comes out.

    Between programs, one of the two stops before or after each of its accesses to the bytes in question, and the other
    runs to its end. Where that shows nothing, and between warps or lanes of a program, what one of them stores arrives
    late, as nothing orders it. Tensors of the launch are left alone: copies of what they held before are used.

    Args:
        trace: of `trace`; race: one of its `races`.

    Returns:
        the schedule, with `lost` or `difference`; None if none was found: the race is benign, the value is never
        used, or a load comes before what would have to be stored early.

    Raises:
        LaunchError: the tensors were too large to be kept (`Recorder.KEPT`).
    """
    if trace.before is None:
        raise errors.LaunchError(f"The tensors of {trace.kernel} are too large to be kept. Use a smaller launch.")
    programs = list(dict.fromkeys(e.program for e in trace.events))
    usual = _Run(trace, race, [(p, PATIENCE) for p in programs])
    first, second = race.programs
    if first == second:
        if race.places is None:
            return None
        early, then, lanes = race.places
        late = _Late(first, early, second, then, lanes)
        return _Run(trace, race, [(p, PATIENCE) for p in programs], late).result(usual)
    others = [(p, PATIENCE) for p in programs if p not in race.programs]
    for order in (race.programs, race.programs[::-1]):
        for stop in _stops(trace, race, order[0]):
            pair = [(order[0], stop), (order[1], PATIENCE), (order[0], PATIENCE)]
            for stages in ([*pair, *others], [*others, *pair]) if others else (pair,):
                found = _Run(trace, race, stages).result(usual)
                if found is not None:
                    return found
    if race.store.kind == "store":
        theirs = {p: [n - 1 for n in _stops(trace, race, p) if n][:MAX_LATE] for p in race.programs}
        for early, then in itertools.product(theirs[first], theirs[second]):
            late = _Late(first, early, second, then, None)
            found = _Run(trace, race, [(p, PATIENCE) for p in programs], late).result(usual)
            if found is not None:
                return found
    return None


@dataclass(frozen=True)
class _Late:
    """A store that arrives late: access number `early` of one program, after access number `then` of another.

    `lanes` of it, or all.
    """

    storing: tuple[int, int, int]
    early: int
    seeing: tuple[int, int, int]
    then: int
    lanes: tuple[int, ...] | None


def _stops(trace: Trace, race: Race, program: tuple) -> list[int]:
    """After how many accesses a program may stop: around each of those in question, the likely ones first."""
    own = [e for e in trace.events if e.program == program]
    assert race.tensor is not None
    assert race.element is not None
    info = trace.tensors[race.tensor]
    address = info.base + race.element * info.itemsize
    touching = [
        n
        for n, e in enumerate(own)
        if e.mask.any() and (np.abs(e.addresses[e.mask] - address) < max(e.itemsize, info.itemsize)).any()
    ]
    return list(dict.fromkeys([n + 1 for n in touching[:32]] + touching[:32]))


class _Run:
    """One schedule of the launch, on copies of what its tensors held before."""

    def __init__(self, trace: Trace, race: Race, stages, late: _Late | None = None):
        self.trace, self.race = trace, race
        copies = {key: storage.clone() for key, storage in (trace.before or {}).items()}
        self.launch = replace(trace.launch, values={k: _again(v, copies) for k, v in trace.launch.values.items()})
        self.timeline: list[Step] = []
        emulation = Emulation(self.launch)
        emulation.after = self._after
        self._done: dict[tuple, int] = defaultdict(int)
        self._late = late
        self._held: Callable[[], None] | None = None
        self._arrival: int | None = None
        if late is not None:
            emulation.store = self._store
        _Threads(emulation, _Script(stages)).run()

    def _after(self, access: Access, value):
        self.timeline.append(_step(access, value))
        number = self._done[access.program]
        self._done[access.program] += 1
        late = self._late
        if late is None:
            return
        if (access.program, number) == (late.storing, late.early):
            self._arrival = len(self.timeline) - 1
        if self._held is not None and (access.program, number) == (late.seeing, late.then):
            self._held()
            self._held = None

    def _store(self, access: Access, write: Callable[[np.ndarray], None]):
        late = self._late
        assert late is not None
        if (access.program, self._done[access.program]) != (late.storing, late.early):
            return write(access.mask)
        held = np.zeros(access.mask.size, bool)
        held[slice(None) if late.lanes is None else list(late.lanes)] = True
        held = held.reshape(access.mask.shape) & access.mask
        write(access.mask & ~held)
        self._held = lambda: write(held)

    def result(self, usual: "_Run") -> Interleaving | None:
        """This schedule, if it comes to something else than the usual one."""
        lost = [x for x in _lost(self.timeline) if x.tensor == self.race.tensor]
        difference = self._difference(usual)
        if not lost and not difference:
            return None
        programs = len({s.program for s in self.timeline})
        return Interleaving(self.launch.name, None, programs, self.timeline, lost, difference, self._arrival)

    def _difference(self, usual: "_Run") -> str:
        mine, others = (dict(tensors_of(run.launch.values)) for run in (self, usual))
        for name, tensor in mine.items():
            a, b = tensor.double().reshape(-1), others[name].double().reshape(-1)
            apart = (a - b).abs() > 1e-4 * (1 + b.abs())
            if apart.any():
                i = int(apart.int().argmax())
                return f"{name}[{i}] ends as {a[i].item():g}; one after the other it is {b[i].item():g}"
        if self.race.other.kind == "load":
            for own, other in zip(self._loads(), usual._loads()):
                if own.values != other.values:
                    return f"line {own.lineno} of program {own.program} loads another value than one after the other"
        return ""

    def _loads(self) -> list[Step]:
        lineno, program = self.race.other.lineno, self.race.programs[1]
        return [s for s in self.timeline if s.kind == "load" and s.lineno == lineno and s.program == program]


def _again(value, copies: dict):
    """An argument of a launch over copies of its storages."""
    if isinstance(value, torch.Tensor):
        view = (value.storage_offset(), value.size(), value.stride())
        return torch.empty(0, dtype=value.dtype).set_(copies[value.untyped_storage()._cdata], *view)
    if isinstance(value, (tuple, list)):
        items = [_again(v, copies) for v in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(getattr(value, "base", None), torch.Tensor):
        if is_descriptor(value):
            return replace(value, base=_again(value.base, copies))
        return type(value)(_again(value.base, copies), value.dtype)
    return value

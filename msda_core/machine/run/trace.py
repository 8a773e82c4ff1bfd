"""Every memory access of a launch, recorded: place in the source, program, addresses, mask, element size."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from msda_core.machine.errors import Frame
from msda_core.machine.launch import Launch, bind, tensors_of
from msda_core.machine.run.emulate import Access, Emulation, Outcome

__all__ = ["Event", "Site", "Trace", "trace"]


@dataclass(frozen=True)
class Site:
    """One memory operation in the source.

    Attributes:
        kind: "load", "store" or "atomic"; op: "add", "cas", ... for atomics.
        frames: call chain inside the kernel, outermost first; a helper's access has one frame per call.
    """

    kind: str
    op: str
    frames: tuple[Frame, ...]

    @property
    def lineno(self) -> int:
        """The line, in the innermost function."""
        return self.frames[-1].lineno if self.frames else 0

    @property
    def text(self) -> str:
        """That line's source."""
        return self.frames[-1].text if self.frames else ""

    @property
    def order(self) -> tuple:
        """Sorts sites as they stand in the source, call by call."""
        return tuple((f.lineno, f.column) for f in self.frames)


@dataclass(eq=False)
class Event:
    """One execution of a memory operation by one program.

    Attributes:
        site: where.
        program: (x, y, z).
        first: address of the tile's first element; pattern: distances of all from it, shared by equal events.
        mask: bool, same shape; shared as well.
        itemsize: bytes of one element.
        tensor: name of the argument, None where lanes belong to several.
        turn, phase, sem, scope, outcome: as in `Access`.
        value: what a plain store wrote, raw; None for the others.
    """

    site: Site
    program: tuple[int, int, int]
    first: int
    pattern: np.ndarray
    mask: np.ndarray
    itemsize: int
    tensor: str | None
    turn: tuple[tuple[int, int], ...] = ()
    phase: int = 0
    sem: str = ""
    scope: str = ""
    outcome: Outcome = field(default_factory=Outcome)
    value: np.ndarray | None = None

    @property
    def addresses(self) -> np.ndarray:
        """Addresses (int64, in the tile's shape): each storage begins on a 512-byte boundary, whatever the host did.

        Masked lanes are meaningless.
        """
        return self.pattern + np.int64(self.first)

    @property
    def kind(self) -> str:
        """What is done: "load", "store" or "atomic"."""
        return self.site.kind

    @property
    def op(self) -> str:
        """Which atomic, "add"; empty for loads and stores."""
        return self.site.op

    @property
    def lineno(self) -> int:
        """The kernel's line that did it."""
        return self.site.lineno

    @property
    def bytes(self) -> int:
        """Bytes the program asked for, masked lanes not counted."""
        return int(self.mask.sum()) * self.itemsize


@dataclass(eq=False)
class TensorInfo:
    """A pointer argument as the trace sees it; `base` is the canonical address of its first element."""

    name: str
    base: int
    itemsize: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    size: int


@dataclass(eq=False)
class Trace:
    """The accesses of one launch, in the order in which they happened.

    Attributes:
        kernel: its name; grid: (x, y, z); launch: what was launched, unwrapped.
        events: one `Event` per access and program; sites: each distinct operation, in order of first use.
        tensors: the pointer arguments, by name.
        loops: (file, line) of a loop -> [how often it was entered, iterations in all].
        sample: the programs that were recorded; None for all of them.
        before: what the storages of its tensors held before, by their identity; None if nobody kept it.
    """

    kernel: str
    grid: tuple[int, int, int]
    launch: Launch
    events: list[Event] = field(default_factory=list)
    sites: list[Site] = field(default_factory=list)
    tensors: dict[str, TensorInfo] = field(default_factory=dict)
    loops: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    sample: tuple[tuple[int, int, int], ...] | None = None
    before: dict[int, torch.UntypedStorage] | None = None

    @property
    def programs(self) -> int:
        """Programs in the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def recorded(self) -> int:
        """Programs whose accesses are in `events`."""
        return self.programs if self.sample is None else len(self.sample)

    def where(self, kind: str | None = None, lineno: int | None = None) -> Iterator[Event]:
        """Events of one kind, of one line, or both."""
        for event in self.events:
            if (kind is None or event.kind == kind) and (lineno is None or event.lineno == lineno):
                yield event

    def element(self, event: Event) -> np.ndarray:
        """Element offsets of an event, from its tensor's first (int64, tile shape); masked lanes are meaningless."""
        assert event.tensor is not None, "lanes of several tensors have no offset in one"
        info = self.tensors[event.tensor]
        return (event.addresses - info.base) // info.itemsize


class Recorder:
    """An observer that turns accesses into the events of a trace.

    Args:
        values: keep what plain stores write, which `races` looks at and counting does not.
    """

    KEPT = 1 << 26  # bytes of tensors that are copied before the launch, for `witness`

    def __init__(self, emulation: Emulation, values: bool = True):
        self.values = values
        launch = emulation.launch
        self.emulation = emulation
        before = self._before(launch) if values else None
        self.trace = Trace(launch.name, launch.grid, launch, loops=emulation.loops, before=before)
        self.size = 0  # bytes of addresses and masks that are kept
        self._sites: dict[tuple, Site] = {}
        self._tiles: dict[bytes, np.ndarray] = {}

    @classmethod
    def _before(cls, launch: Launch) -> dict[int, torch.UntypedStorage] | None:
        storages = {s._cdata: s for s in (t.untyped_storage() for _, t in tensors_of(launch.values))}
        if sum(s.nbytes() for s in storages.values()) > cls.KEPT:
            return None
        with _disable_current_modes():  # a copy writes nothing that a guard watches
            return {key: s.cpu().clone() for key, s in storages.items()}

    def __call__(self, access: Access):
        key = (access.kind, access.op, access.frames)
        site = self._sites.get(key)
        if site is None:
            site = self._sites[key] = Site(*key)
            self.trace.sites.append(site)
        addresses = self.emulation.canonical(access)
        first = int(addresses.flat[0]) if addresses.size else 0
        self.trace.events.append(
            Event(
                site,
                access.program,
                first,
                self._shared(addresses - first),
                self._shared(access.mask),
                access.itemsize,
                access.argument.name if access.argument else None,
                access.turn,
                access.phase,
                access.sem,
                access.scope,
                access.outcome,
                access.value if self.values and access.kind == "store" else None,
            )
        )

    @property
    def patterns(self) -> int:
        """How many different tiles of addresses and masks there were so far."""
        return len(self._tiles)

    def restart(self) -> None:
        """Forget what was recorded."""
        self.trace.events.clear()
        self.trace.loops.clear()
        self.size = 0

    def _shared(self, tile: np.ndarray) -> np.ndarray:
        """One array for all equal ones: programs ask for the same pattern at different places, over and over."""
        key = (
            hashlib.blake2b(np.ascontiguousarray(tile).data, digest_size=16).digest()
            + repr((tile.shape, tile.dtype)).encode()
        )
        if key not in self._tiles:
            narrow = (
                np.int32 if tile.dtype == np.int64 and (not tile.size or np.abs(tile).max() < 2**31) else tile.dtype
            )
            self._tiles[key] = tile = tile.astype(narrow)
            self.size += tile.nbytes
        return self._tiles[key]

    def finish(self) -> Trace:
        """The trace, complete with what the launch was given."""
        for a in self.emulation.arguments:
            self.trace.tensors[a.name] = TensorInfo(
                a.name,
                a.canonical,
                a.itemsize,
                tuple(a.tensor.shape),
                tuple(a.tensor.stride()),
                str(a.tensor.dtype).removeprefix("torch."),
                a.size,
            )
        return self.trace


def trace(kernel, grid, *args, **kwargs) -> Trace:
    """Run a kernel on the host and record its memory accesses.

    Args:
        kernel, grid: as in `kernel[grid](...)`.
        *args, **kwargs: the kernel's arguments, constants and launch options. Tensors are written to, as by a launch.

    Raises:
        MachineError: as in `guard`; every access is checked before it happens.
    """
    emulation = Emulation(bind(kernel, grid, args, kwargs))
    recorder = emulation.observer = Recorder(emulation)
    emulation.run()
    return recorder.finish()

"""Profiling whatever launches: each launch of a stretch of code, with every config of an autotuned kernel.

with machine.session(target="sm_80") as session:
    my_wrapper(x, y)
session.launches[0].report.loads.sectors
"""

import time
import types
from dataclasses import dataclass, replace
from typing import Any

import torch

from msda_core.machine import errors
from msda_core.machine.compile.lower import Lowering, lower_launch, parse_target
from msda_core.machine.counts.sample import extrapolated
from msda_core.machine.counts.traffic import Report, count
from msda_core.machine.launch import Launch, bind, configurations
from msda_core.machine.model.timing import estimate
from msda_core.machine.run import active
from msda_core.machine.run.emulate import Emulation
from msda_core.machine.run.guard import check_contiguous, guard
from msda_core.machine.run.sample import record
from msda_core.machine.run.trace import Trace
from msda_core.machine.tool.pretend import gpu_of

__all__ = ["Profiled", "session"]


@dataclass(eq=False)
class Profiled:
    """One launch under one config.

    Attributes:
        number: of the launch, from 1; configs of one autotuned launch share it.
        kernel: its name; launch: what was launched.
        config: constants and options; autotuned: whether it is one of several; best: the one predicted to be fastest.
        report: the counts; None where `refused` says, in one sentence, why there are none.
        lowering: the compiled kernel, if it compiles.
        seconds: what the model estimates; None without counts.
        took: seconds of processor time that the profiling took.
    """

    number: int
    kernel: str
    launch: Launch
    config: dict[str, Any]
    autotuned: bool = False
    best: bool = True
    report: Report | None = None
    lowering: Lowering | None = None
    refused: str = ""
    seconds: float | None = None
    took: float = 0.0


class session(guard):
    """Profile every Triton kernel launched inside, in this thread; `everywhere` for all threads.

    Args:
        target: compute capability to compile for, as in `profile`.
        kernel: only kernels of this name are counted; the others run.
        launch: only this launch is counted (from 1; of `kernel` if that is given).
        every, seconds, complete: which programs run, as in `record`; seconds = None runs all.
        sanitize: check for uninitialised reads, strided views and undefined lanes too, as `guard` does by default.
            Bounds are always checked.

    Attributes:
        launches: a `Profiled` for each launch and config, in order.
        seen: launches by kernel, counted or not.
    """

    def __init__(
        self,
        target="sm_90",
        *,
        kernel: str | None = None,
        launch: int | None = None,
        every: int | None = None,
        seconds: float | None = 4.0,
        complete: bool = False,
        sanitize: bool = False,
    ):
        super().__init__(uninitialised=sanitize, contiguous=sanitize, undefined=sanitize)
        self.capability = parse_target(target)
        self.wanted, self.only = kernel, launch
        self.every, self.seconds, self.complete = every, seconds, complete
        self.launches: list[Profiled] = []
        self.seen: dict[str, int] = {}
        self.number = 0

    def everywhere(self) -> "session":
        """Watch the launches of all threads, as `protect` does, until `__exit__`."""
        active.everywhere.append(self)
        return self

    def __exit__(self, *exc):
        super().__exit__(*exc)
        if self in active.everywhere:
            active.everywhere.remove(self)

    def estimated(self) -> float:
        """Seconds that the launches so far are estimated to take, each under its best config."""
        return sum(p.seconds or 0.0 for p in self.launches if p.best)

    def _run(self, kernel, args, kwargs):
        with torch._C.DisableTorchFunction():
            return self._profile(kernel, args, kwargs)

    def _profile(self, kernel, args, kwargs):
        kwargs = dict(kwargs)
        grid, warmup = kwargs.pop("grid", None), kwargs.pop("warmup", False)
        configs = configurations(kernel, args, kwargs)
        if warmup:
            return _Compiled(self, kernel, args, kwargs)
        first = bind(kernel, grid, args, kwargs, config=configs[0] if configs else None)
        self.seen[first.name] = self.seen.get(first.name, 0) + 1
        if self.contiguous:
            check_contiguous(first)
        counted = self.wanted in (None, first.name)
        self.number += counted
        if not counted or self.only not in (None, self.number):
            if first.programs:
                self._emulation(first).run()
            return None
        launches = [first, *(bind(kernel, grid, args, kwargs, config=c) for c in configs[1:])]
        entries = [
            Profiled(self.number, first.name, bound, settings(bound), autotuned=len(launches) > 1) for bound in launches
        ]
        self.launches += entries
        traces: dict[tuple, Trace] = {}
        for entry in entries:
            self._count(entry, traces, scratch=len(entries) > 1)
        if len(entries) > 1:
            best = min(entries, key=lambda e: (e.seconds is None, e.seconds or 0.0))
            for entry in entries:
                entry.best = entry is best
            if best.launch.programs:
                record(
                    self._emulation(best.launch), self.every, self.seconds, self.complete, self._observers(), keep=False
                )
        for outer in active.everywhere:
            if isinstance(outer, session) and outer is not self:
                outer.adopt(first.name, entries)
        return _Compiled(self, kernel, args, {k: v for k, v in kwargs.items() if k != "grid"})

    def adopt(self, kernel: str, entries: list[Profiled]) -> None:
        """Take over a launch that a session inside this one has profiled."""
        self.seen[kernel] = self.seen.get(kernel, 0) + 1
        if self.wanted in (None, kernel):
            self.number += 1
            if self.only in (None, self.number):
                self.launches += [replace(entry, number=self.number) for entry in entries]

    def _emulation(self, launch: Launch, scratch: bool = False) -> Emulation:
        emulation = Emulation(launch, target=self.capability, scratch=scratch)
        emulation.poison, emulation.narrow_arithmetic = self.undefined, True
        if self._watch is not None:
            emulation.observer = self._watch.see
        return emulation

    def _observers(self) -> list:
        return [self._watch.see] if self._watch is not None else []

    def _count(self, entry: Profiled, traces: dict[tuple, Trace], scratch: bool) -> None:
        """Fill in one entry. What cannot be run raises; what cannot be compiled or counted is noted."""
        start = time.thread_time()
        try:
            refuse_options(entry.launch)
            entry.launch.prepare()
            entry.lowering = lower_launch(entry.launch, self.capability)
            entry.lowering.check_cache_modifiers()
        except (errors.CompileError, errors.Unsupported, errors.NoCompiler) as error:
            entry.refused = str(error)
        if not entry.launch.programs:
            entry.refused = entry.refused or "The grid is empty: nothing ran."
            return
        constants = {n: v for n, v in entry.launch.values.items() if n in entry.launch.constants}
        key = (repr(sorted(constants.items(), key=lambda item: item[0])), entry.launch.grid)
        if key not in traces:
            if scratch and entry.refused:
                return
            emulation = self._emulation(entry.launch, scratch)
            try:
                traces[key] = record(emulation, self.every, self.seconds, self.complete, self._observers())
            except errors.MachineError as error:
                entry.refused = entry.refused or str(error)
                if not scratch:
                    raise
                return
        if entry.refused:
            return
        try:
            trace = traces[key]
            assert entry.lowering is not None
            entry.report = extrapolated(count(trace, entry.lowering))
            entry.seconds = estimate(entry.report, gpu_of(self.capability)).seconds
        except errors.MachineError as error:
            entry.refused = str(error)
        entry.took = time.thread_time() - start


def refuse_options(launch: Launch) -> None:
    """Refuse, by name, what is not modelled and can be seen before anything runs.

    Raises:
        Unsupported: names it.
    """
    ctas = launch.options.get("num_ctas") or 1
    if ctas > 1:
        raise errors.Unsupported(
            f"{launch.name} runs with num_ctas={ctas}: programs of several blocks are not modelled."
        )


def settings(launch: Launch) -> dict[str, Any]:
    """The constants and options of a launch, as plain values: what an autotuner would vary."""
    named = {n: launch.values[n] for n in launch.constants if n in launch.values}
    options = {"num_warps": 4, **{k: v for k, v in launch.options.items() if v is not None}}
    return {k: _plain(v) for k, v in {**named, **options}.items()}


def _plain(value: Any) -> Any:
    value = getattr(value, "value", value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


class _Compiled:
    """What `kernel.warmup(…)` and a launch give: registers, shared memory, and a launch over a grid."""

    def __init__(self, owner: session, kernel, args, kwargs):
        self._owner, self._kernel, self._kwargs = owner, kernel, kwargs
        self._args = args

    def _lowered(self) -> Lowering:
        from msda_core.machine.compile.lower import lower

        found = self.__dict__.get("_lowering")
        if found is None:
            args = [stand_in(a) for a in self._args]
            options = {k: stand_in(v) for k, v in self._kwargs.items()}
            found = self._lowering = lower(self._kernel, *args, target=self._owner.capability, **options)
        return found

    def _init_handles(self) -> None:
        """Triton loads the machine code here."""

    @property
    def n_regs(self) -> int:
        """Registers of one thread."""
        return self._lowered().registers

    @property
    def n_spills(self) -> int:
        """Spilled words of one thread."""
        return self._lowered().spills // 4

    @property
    def asm(self) -> dict[str, str]:
        """The texts of the compilation."""
        lowered = self._lowered()
        return {"ttgir": lowered.ttgir, "ptx": lowered.ptx, "sass": lowered.sass}

    @property
    def metadata(self) -> types.SimpleNamespace:
        """Shared memory and warps."""
        lowered = self._lowered()
        return types.SimpleNamespace(
            shared=lowered.shared, num_warps=lowered.num_warps, name=lowered.kernel, num_ctas=1, num_stages=3
        )

    def __getitem__(self, grid):
        options = {k: v for k, v in self._kwargs.items() if k.startswith(("num_", "maxn"))}
        return lambda *args, **kwargs: self._owner._run(self._kernel, args, {**options, **kwargs, "grid": grid})


def stand_in(value: Any) -> Any:
    """An argument of a warm-up: a dtype stands for an aligned pointer to it."""
    return torch.empty(16, dtype=value) if isinstance(value, torch.dtype) else value

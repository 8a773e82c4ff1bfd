"""Recording as many programs of a launch as a time and a memory allow, and all of them where they fit."""

import itertools
import time
from collections.abc import Iterator

import numpy as np

from msda_core.machine.errors import Unsupported
from msda_core.machine.run.emulate import Access, Emulation
from msda_core.machine.run.trace import Recorder, Trace

__all__ = ["MEMORY", "record"]

#: Bytes of addresses that are kept at most.
MEMORY = 96 << 20
#: Programs that a sample has at least, and at most: more of them narrow nothing.
LEAST, MOST = 8, 512
#: A sample of programs that are alike ends with so many of them, or after half its time.
ALIKE = 64
#: A program that takes so many times the time of a whole launch is stopped.
PATIENCE = 6
_GOLDEN = (5**0.5 - 1) / 2


def record(
    emulation: Emulation,
    every: int | None = None,
    seconds: float | None = None,
    complete: bool = False,
    observers=(),
    keep: bool = True,
) -> Trace:
    """Run a launch and record it, all programs or a sample of them.

    Programs run in their order. Where the first ones show that all would take longer than `seconds`, a sample of them runs
    instead, spread evenly over the grid, and the launch's tensors hold only what these wrote, unless `complete`. It ends
    early where one program is like the other: no new pattern of addresses, and as many bytes to within 1 %.

    Args:
        every: record each so-manyth program.
        seconds: of processor time for the emulation, about; None for no limit.
        complete: run the others as well, unrecorded.
        observers: called with each access, before it is recorded.
        keep: record at all; without it the launch only runs.

    Raises:
        MachineError: as in `guard`.
        Unsupported: one program alone takes longer than anybody waits for.
    """
    recorder = Recorder(emulation, values=False)
    programs = emulation.launch.programs
    limit = None if seconds is None else time.thread_time() + PATIENCE * seconds
    taken: list[int] = []
    patterns: list[int] = []  # that had been met when each of them began
    recording = True

    def see(access: Access) -> None:
        for observer in observers:
            observer(access)
        if recording:
            if keep:
                recorder(access)
            if limit is not None and seconds is not None and time.thread_time() > limit and not complete:
                raise Unsupported(
                    f"{emulation.launch.name} is too large: after {PATIENCE * seconds:.0f} s it was still in program "
                    f"{access.program}, number {len(taken)} of {programs:,}. Profile a smaller input."
                )

    def take(index: int) -> int:
        taken.append(index)
        patterns.append(recorder.patterns)
        return index

    def enough(spent: float) -> bool:
        """Whether the sample may end, after `spent` seconds."""
        if recorder.size > MEMORY:
            return True
        if seconds is None or len(taken) < 2:
            return False
        if len(taken) < LEAST:
            return spent > 1.5 * seconds  # long programs: what the few of them leave open, the error says
        alike = len(taken) & (len(taken) - 1) == 0 and (spent > seconds / 2 or len(taken) >= ALIKE)
        return spent > seconds or (
            alike and not complete and patterns[len(taken) // 2] == recorder.patterns and _even(recorder.trace)
        )

    def order() -> Iterator[int]:
        nonlocal recording
        start = time.thread_time()
        if every is not None:
            yield from map(take, range(0, programs, every))
            return
        fit, spent = None, 0.0
        for done in range(programs):
            before, spent = spent, time.thread_time() - start
            # The first program may have had something to load: it alone counts only where it took most of the time.
            if seconds is not None and (done > 1 and spent > 0.1 * seconds or done and spent > seconds / 2):
                if spent + (spent - before) * (programs - done) > seconds:
                    fit = min(MOST, max(LEAST, int(seconds / max(spent - before, 1e-9))))
            if recorder.size > MEMORY:
                fit = fit or done
            if fit is not None:
                break
            yield take(done)
        if fit is None:
            return
        recorder.restart()
        taken.clear()
        patterns.clear()
        sample = list(itertools.islice(_spread(programs), fit))
        wanted = set(sample)
        for index in range(programs) if complete else sample:
            ended = enough(time.thread_time() - start)
            recording = index in wanted and not ended
            if recording:
                yield take(index)
            elif complete:
                yield index
            elif ended:
                return

    emulation.observer = see
    emulation.run(order=order())
    trace = recorder.finish()
    if len(taken) < programs:
        axes = (np.unravel_index(t, emulation.launch.grid) for t in taken)
        trace.sample = tuple((int(x), int(y), int(z)) for x, y, z in axes)
    return trace


def _spread(programs: int) -> Iterator[int]:
    """All programs, so that the first few, however many, lie evenly over the grid: steps of the golden ratio."""
    seen: set[int] = set()
    place = 0.5
    while len(seen) < programs:
        index = int(place * programs)
        place = (place + _GOLDEN) % 1
        if index not in seen:
            seen.add(index)
            yield index


def _even(trace: Trace) -> bool:
    """Whether the programs ask for as many bytes each, to within 1 % of the mean (95 %)."""
    asked: dict[tuple, int] = {}
    known: dict[int, int] = {}
    for event in trace.events:
        if id(event.mask) not in known:
            known[id(event.mask)] = event.bytes
        asked[event.program] = asked.get(event.program, 0) + known[id(event.mask)]
    values = np.array(list(asked.values()), float)
    return len(values) > 1 and 1.96 * values.std(ddof=1) / len(values) ** 0.5 <= 0.01 * values.mean()

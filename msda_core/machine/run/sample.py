"""Recording as many programs of a launch as a time and a memory allow, and all of them where they fit."""

import random
import time
from collections.abc import Iterator, Sequence

import numpy as np

from msda_core.machine.errors import Unsupported
from msda_core.machine.run.emulate import Access, Emulation
from msda_core.machine.run.trace import Recorder, Trace

__all__ = ["MEMORY", "record"]

#: Bytes of addresses that are kept at most.
MEMORY = 160 << 20
#: Programs that a sample has at most: more of them narrow nothing.
MOST = 2048
#: A program that takes so many times the time of a whole launch is stopped.
PATIENCE = 6


def record(
    emulation: Emulation,
    every: int | None = None,
    seconds: float | None = None,
    complete: bool = False,
    observers=(),
    keep: bool = True,
) -> Trace:
    """Run a launch and record it, all programs or a sample of them.

    Programs run in their order. Where the first ones show that all would take longer than `seconds`, a random sample of
    them runs instead, and the launch's tensors hold only what these wrote, unless `complete`.

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

    def order() -> Iterator[int]:
        nonlocal recording
        start = time.thread_time()
        chosen: Sequence[int] = range(0, programs, every or 1)
        for done in range(programs if every is None else 0):
            spent = time.thread_time() - start
            slow = seconds is not None and done >= 3 and spent > 0.1 * seconds and spent / done * programs > seconds
            if slow or recorder.size > MEMORY:
                fit = min(MOST, max(8, int((seconds or spent) * done / max(spent, 1e-9))))
                chosen = sorted(random.Random(0).sample(range(programs), min(programs, fit)))
                recorder.trace.events.clear()
                recorder.trace.loops.clear()
                recorder.size = 0
                taken.clear()
                break
            taken.append(done)
            yield done
        else:
            chosen = chosen if every else range(0)
        recording = True
        wanted = set(chosen)
        for index in range(programs) if complete and wanted else chosen:
            late = seconds is not None and len(taken) >= 8 and time.thread_time() - start > 2 * seconds
            recording = index in wanted and not (recorder.size > MEMORY or late and not every)
            if recording:
                taken.append(index)
            if recording or complete:
                yield index

    emulation.observer = see
    emulation.run(order=order())
    trace = recorder.finish()
    if len(taken) < programs:
        axes = (np.unravel_index(t, emulation.launch.grid) for t in taken)
        trace.sample = tuple((int(x), int(y), int(z)) for x, y, z in axes)
    return trace

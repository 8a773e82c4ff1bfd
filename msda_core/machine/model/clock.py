"""A simulated asynchronous device, to learn timing on: no GPU, no waiting, the same figures every time.

All times are in microseconds, on one time axis that the host and the device share. The rules:

    queue     A launch costs the host its `dispatch` and returns. The device takes launches in order, each when the one
              before it has ended and its own dispatch is over. A host with `DEPTH` launches in flight waits.
    compile   The first launch of a kernel costs the host its `compile` as well.
    speed     An idle device slows down to `idle_speed` over `cool` of idling, a busy one comes up to full speed over
              `ramp` of work. What a kernel takes is given at full speed.
    L2        A kernel finds its data in L2 if it was also the last one to run, and takes `warm`, else `cold`. `flush`
              runs a kernel of `FLUSH` that leaves nobody's data there.
    trouble   With probability `trouble`, something else comes in between and a launch takes `delay` longer.
    events    `record` queues a mark; once the device has passed it, it knows when. `synchronize` waits for everything
              queued, and costs `sync` on top. Reading `now` is free.
    graph     `graph(fn, copies)` records what `copies` calls of fn launch, and runs nothing. A replay costs the host
              `REPLAY` in all, however many launches it holds.
"""

import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["DEPTH", "FLUSH", "REPLAY", "Clock", "Mark", "NotYet", "Span"]

#: Launches that wait in the queue before the host has to; as on NVIDIA's driver.
DEPTH = 1024
#: Host time of a graph replay, and of recording an event; device time of a flush: 256 MiB written at 4.3 TB/s.
REPLAY, RECORD, FLUSH = 8.0, 1.0, 62.0


class NotYet(RuntimeError):
    """An event's time was read before the device had passed it, as far as the host knows."""


class Span(NamedTuple):
    """Something that took time, for drawing: who ("host" or "device"), what, from when to when."""

    who: str
    what: str
    start: float
    end: float


@dataclass(frozen=True)
class _Kernel:
    name: str
    warm: float
    cold: float
    dispatch: float


class Mark:
    """An event in the queue, as CUDA has them."""

    def __init__(self, clock: "Clock", when: float):
        self._clock, self._when = clock, when

    @property
    def time(self) -> float:
        """When the device passed the mark.

        Raises:
            NotYet: nobody has waited for it.
        """
        if self._when > self._clock.now():
            raise NotYet("the device has not passed this event yet. Is a synchronize missing before its time is read?")
        return self._when


class Clock:
    """A host and its device.

    Args:
        seed: of the trouble.
        sync, idle_speed, ramp, cool, trouble, delay: see the module's rules; idle_speed is a share of full speed,
            trouble a probability, the others are microseconds. idle_speed = 1 and trouble = 0 switch the two off.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        sync: float = 10.0,
        idle_speed: float = 0.4,
        ramp: float = 3000.0,
        cool: float = 500.0,
        trouble: float = 0.004,
        delay: float = 400.0,
    ):
        if not 0 < idle_speed <= 1 or not 0 <= trouble < 1 or min(sync, ramp, cool, delay) < 0:
            raise ValueError(
                f"idle_speed must lie in (0, 1], trouble in [0, 1), and times must not be negative, got idle_speed = "
                f"{idle_speed}, trouble = {trouble}, sync = {sync}, ramp = {ramp}, cool = {cool}, delay = {delay}."
            )
        self.sync, self.idle_speed, self.ramp, self.cool = sync, idle_speed, ramp, cool
        self.trouble, self.delay = trouble, delay
        self.spans: list[Span] = []
        self._dice = random.Random(seed)
        self._host = 0.0
        self._free = 0.0  # when the device has done everything queued
        self._speed = idle_speed
        self._resident: _Kernel | None = None  # whose data L2 holds
        self._flight: deque[float] = deque()  # ends of launches the host has not seen end
        self._recording: list[_Kernel] | None = None

    def kernel(
        self,
        name: str = "kernel",
        *,
        warm: float,
        cold: float | None = None,
        dispatch: float = 20.0,
        compile: float = 0.0,
    ) -> Callable[[], None]:
        """A function that launches one kernel.

        Args:
            warm: device time at full speed, its data in L2; cold: with its data in DRAM, `warm` if not given.
            dispatch: host time of a launch; compile: host time of the first one, on top.
        """
        made = _Kernel(name, warm, warm if cold is None else cold, dispatch)
        fresh = [compile]

        def launch() -> None:
            if fresh[0]:
                self._work("compile", fresh.pop())
                fresh.append(0.0)
            if self._recording is not None:
                self._recording.append(made)
                return
            self._work("dispatch", made.dispatch)
            self._enqueue(made)

        return launch

    def now(self) -> float:
        """Time on the host's clock. The device may be far behind."""
        return self._host

    def synchronize(self) -> None:
        """Wait until the device has done everything that was queued.

        Raises:
            RuntimeError: inside `graph`.
        """
        self._not_recording("synchronize")
        start = self._host
        self._host = max(self._host, self._free) + self.sync
        self._flight.clear()
        self.spans.append(Span("host", "wait", start, self._host))

    def record(self) -> Mark:
        """Queue an event: it happens when everything queued before it has ended.

        Raises:
            RuntimeError: inside `graph`.
        """
        self._not_recording("record")
        self._work("record", RECORD)
        event = Mark(self, max(self._host, self._free))
        self.spans.append(Span("device", "event", event._when, event._when))
        return event

    def flush(self) -> None:
        """Launch a kernel that fills L2 with data nobody needs."""
        flushing = _Kernel("flush", FLUSH, FLUSH, 5.0)
        if self._recording is not None:
            self._recording.append(flushing)
            return
        self._work("dispatch", flushing.dispatch)
        self._enqueue(flushing)

    def graph(self, fn: Callable[[], None], copies: int = 1) -> Callable[[], None]:
        """Record what `copies` calls of fn launch, as one thing to launch. Nothing runs until it is called.

        Raises:
            ValueError: fn launches nothing.
            RuntimeError: fn synchronizes, records an event or makes a graph.
        """
        self._not_recording("graph")
        recorded: list = []
        self._recording = recorded
        try:
            for _ in range(copies):
                fn()
        finally:
            self._recording = None
        if not recorded:
            raise ValueError(f"a graph must hold a launch, but {copies} calls of fn launched nothing.")

        def replay() -> None:
            self._not_recording("replay a graph")
            self._work("dispatch", REPLAY)
            for kernel in recorded:
                self._enqueue(kernel)

        return replay

    def _not_recording(self, what: str) -> None:
        if self._recording is not None:
            raise RuntimeError(f"cannot {what} while a graph is being recorded: a graph holds launches only.")

    def _work(self, what: str, time: float) -> None:
        if time:
            self.spans.append(Span("host", what, self._host, self._host + time))
        self._host += time

    def _enqueue(self, kernel: _Kernel) -> None:
        while self._flight and self._flight[0] <= self._host:
            self._flight.popleft()
        if len(self._flight) >= DEPTH:
            self._work("queue is full", self._flight.popleft() - self._host)
        start = max(self._host, self._free)
        if self.cool:
            self._speed -= (1 - self.idle_speed) * (start - self._free) / self.cool
        self._speed = max(self.idle_speed, self._speed)
        time = self._run(kernel.warm if self._resident is kernel else kernel.cold)
        if self._dice.random() < self.trouble:
            time += self.delay * self._dice.uniform(0.5, 1.5)
        self._resident = kernel
        self._free = start + time
        self._flight.append(self._free)
        self.spans.append(Span("device", kernel.name, start, self._free))

    def _run(self, work: float) -> float:
        """How long the device takes for what takes `work` at full speed; it speeds up evenly on the way."""
        if self._speed >= 1 or not self.ramp:
            self._speed = 1.0
            return work
        gain = (1 - self.idle_speed) / self.ramp
        climb = (1 - self._speed) / gain
        done = climb * (1 + self._speed) / 2
        if done < work:
            self._speed = 1.0
            return climb + work - done
        time = (math.sqrt(self._speed**2 + 2 * gain * work) - self._speed) / gain
        self._speed += gain * time
        return time

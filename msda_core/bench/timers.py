"""Timers of work on a CUDA GPU: device time by events and graphs, kernel time by the profiler, and what the host pays."""

import math
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["Silicon", "clock", "events", "graph", "host", "kernels", "queued"]


def events(run: Callable[[], object], before: Callable[[], object], repeats: int) -> float:
    """µs of one run by CUDA events, median; `before` runs ahead of each and is not counted."""
    times = []
    for _ in range(repeats):
        before()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return statistics.median(times)


def queued(run: Callable[[], object], repeats: int = 20) -> float:
    """µs of one eager run by CUDA events around work queued behind a long kernel, which hides the host's time; median."""
    for _ in range(3):
        run()
    return events(run, lambda: torch.cuda._sleep(2_000_000), repeats)


def graph(run: Callable[[], object], copies: int, stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
    """`copies` runs, captured on a stream that has seen one."""
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured, stream=stream):
        for _ in range(copies):
            run()
    return captured


def kernels(run: Callable[[], object], calls: int = 5) -> float:
    """µs of kernels in one call, by the profiler. Memory sets, copies and fills are not counted."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        for _ in range(calls):
            run()
        torch.cuda.synchronize()
    total = 0.0
    for event in trace.key_averages():
        if not any(word in event.key for word in ("Memset", "Memcpy", "FillFunctor", "fill_")):
            total += event.self_device_time_total
    return total / calls


def host(run: Callable[[], object], calls: int) -> tuple[float, float]:
    """µs per eager call: (enqueue only, back to back until the device is done). Medians of nine rounds."""
    enqueue, done = [], []
    for _ in range(9):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            run()
        enqueue.append((time.perf_counter() - begin) / calls * 1e6)
        torch.cuda.synchronize()
        done.append((time.perf_counter() - begin) / calls * 1e6)
    return statistics.median(enqueue), statistics.median(done)


def clock(
    run: Callable[[], object], stream: torch.cuda.Stream, flush: Tensor, prefix: str, quick: bool
) -> dict[str, float]:
    """One row by every clock, in µs: `{prefix}_kernels`, `_host`, `_eager`, `_device` and `_cold` (`python -m msda_core.bench`).

    Args:
        flush: a tensor larger than L2, written before each cold run. Fewer repeats if quick.
    """
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
        begin = time.perf_counter()
        run()
        torch.cuda.synchronize()
        slow = time.perf_counter() - begin > 2e-3
        copies, repeats = (2, 3) if slow else (20, 7 if quick else 15)
        row = {f"{prefix}_kernels": kernels(run), f"{prefix}_device": math.nan, f"{prefix}_cold": math.nan}
        row[f"{prefix}_host"], row[f"{prefix}_eager"] = host(run, 5 if slow else 50)
        try:
            single, several = graph(run, 1, stream), graph(run, copies, stream)
        except RuntimeError as error:  # waits for the device, or allocates outside the pool: no graph, no figure
            print(f"  no CUDA graph: {str(error).splitlines()[0][:150]}")
            return row
        several.replay()
        row[f"{prefix}_device"] = events(several.replay, lambda: None, repeats) / copies
        row[f"{prefix}_cold"] = events(single.replay, flush.zero_, repeats)
    return row


class Silicon:
    """A CUDA GPU with the interface of `machine.clock.Clock`: what times a simulated launch times a real one."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()
        self._stream.wait_stream(torch.cuda.current_stream())
        self._rubbish = torch.empty(2**26, dtype=torch.float32, device="cuda")
        self._begin = torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(self._stream):
            self._begin.record()
        torch.cuda.synchronize()

    def launching(self, launch: Callable[[], object]) -> Callable[[], object]:
        """launch, on this clock's stream, after what is under way now: its inputs may be."""
        self._stream.wait_stream(torch.cuda.current_stream())

        def fn() -> None:
            with torch.cuda.stream(self._stream):
                launch()

        return fn

    def now(self) -> float:
        """The host's clock in µs."""
        return time.perf_counter() * 1e6

    def synchronize(self) -> None:
        """Wait until the GPU has done all it was given."""
        torch.cuda.synchronize()

    def record(self) -> "_SiliconEvent":
        """An event at this place in the queue."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        return _SiliconEvent(self._begin, event)

    def flush(self) -> None:
        """Overwrite a buffer larger than L2, so that what follows finds it cold."""
        with torch.cuda.stream(self._stream):
            self._rubbish.zero_()

    def graph(self, fn: Callable[[], object], copies: int = 1) -> Callable[[], object]:
        """Capture `copies` calls of fn in a CUDA graph; returns what replays it."""
        captured = graph(fn, copies, self._stream)

        def replay() -> None:
            with torch.cuda.stream(self._stream):
                captured.replay()

        return replay


class _SiliconEvent:
    """A place in the queue; its time in µs, once the device has passed it."""

    def __init__(self, begin: torch.cuda.Event, event: torch.cuda.Event) -> None:
        self._begin, self._event = begin, event

    @property
    def time(self) -> float:
        if not self._event.query():
            from msda_core.machine.model.clock import NotYet

            raise NotYet("the device has not passed this event yet. Is a synchronize missing before its time is read?")
        return 1e3 * self._begin.elapsed_time(self._event)

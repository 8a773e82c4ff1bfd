"""python -m checks class DIR --csv OUT: a folder of submissions, each graded in processes of its own.

What it is asked is looked at before the first submission is opened, each submission is written down as it is done, and a
run that was cut off is gone on with by --resume.
"""

import argparse
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from pathlib import Path

from checks.catalogue import LABS, lab_number
from checks.classroom.limits import Limits

__all__ = ["arguments", "run"]


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `class` to its parser."""
    limits = Limits()
    add = parser.add_argument
    add("folder", type=Path, metavar="DIR", help="one folder, zip or tar file for each learner, or single notebooks")
    add("--csv", type=Path, required=True, metavar="OUT", help="where the rows go; the log goes beside it")
    add("--labs", nargs="+", metavar="LAB", help="lab numbers; all labs if not given")
    add("--resume", action="store_true", help="go on with a CSV that is there: grade what has no rows yet")
    add("--report", type=Path, metavar="PAGE", help="write a page about the class, HTML")
    add("--feedback", type=Path, metavar="FOLDER", help="write a text for each learner, to hand back")
    add("--sandbox", choices=("auto", "bwrap", "none"), default="auto", help="bubblewrap where it works (auto)")
    add(
        "--executor",
        nargs="+",
        default=["process"],
        metavar="WHERE",
        help="process: on this machine; dask ADDRESS: on the workers of this scheduler (group: dask)",
    )
    add("--dask", metavar="ADDRESS", help="short for --executor dask ADDRESS")
    add("--workers", type=int, metavar="N", help="how many submissions at a time; as many as processors if not given")
    add(
        "--seconds",
        type=float,
        default=limits.seconds,
        help="processor time for each lab, and how long it may do nothing",
    )
    add("--memory-mb", type=int, default=limits.memory_mb, help="for all of a submission's processes")
    add("--output-mb", type=int, default=limits.output_mb, help="what a submission may write, in all")
    add("--processes", type=int, default=limits.processes, help="how many a submission may have at a time")


def run(options: argparse.Namespace) -> int:
    """Grade a class. Returns the exit status: 0 when all is graded and written, 130 when interrupted."""
    limits = Limits(options.seconds, options.memory_mb, options.output_mb, options.processes)
    if options.workers is not None and options.workers < 1:
        raise ValueError(f"--workers must be at least 1, got {options.workers}.")
    address = _address(options)
    if os.name != "posix":
        raise ValueError("grading a class needs Linux, macOS or WSL: its processes are forked.")
    from checks.classroom.submissions import find_submissions

    own = [options.csv, Path(f"{options.csv}.log.jsonl"), options.report, options.feedback]
    submissions = find_submissions(options.folder, [path for path in own if path is not None])
    labs = _labs(options.labs)
    for path in (options.report, options.feedback):
        if path is not None and not path.absolute().parent.is_dir():
            raise ValueError(f"there is no folder {path.absolute().parent} for {path.name}.")
    if options.report is not None and options.report.is_dir():
        raise ValueError(f"{options.report} is a folder. Name a file for the page.")
    if options.feedback is not None and options.feedback.exists() and not options.feedback.is_dir():
        raise ValueError(f"{options.feedback} is a file. Name a folder for the texts.")

    from checks.classroom import sandbox
    from checks.classroom.results import Ledger, expected_of

    kind = sandbox.choose(options.sandbox) if address is None else options.sandbox
    note = (
        sandbox.protection(kind, options.sandbox)
        if address is None
        else f"Sandbox: {kind}, as each worker of {address} has it."
    )
    expected = expected_of(labs)
    with _scheduler(address) as (executor, workers):
        ledger = Ledger(options.csv, expected, options.resume)
        try:
            print(note, file=sys.stderr)
            left = [one for one in submissions if one.name not in ledger.done]
            if options.resume:
                print(f"{len(submissions) - len(left)} of {len(submissions)} are graded already.", file=sys.stderr)
            status = _grade(left, labs, limits, options, ledger, executor, workers or options.workers)
        finally:
            ledger.close()
    _present(options, ledger, [one.name for one in submissions], note)
    return status


def _labs(words: Sequence[str] | None) -> list[str]:
    return list(dict.fromkeys([lab_number(word) for word in words] if words else LABS))


def _address(options: argparse.Namespace) -> str | None:
    """The scheduler to use; None for this machine."""
    words = options.executor
    if options.dask and words != ["process"]:
        raise ValueError("--dask ADDRESS is short for --executor dask ADDRESS: give one of them.")
    if options.dask:
        words = ["dask", options.dask]
    if words == ["process"]:
        return None
    if words[0] != "dask" or len(words) != 2:
        raise ValueError(f"--executor is `process` or `dask ADDRESS`, got {' '.join(words)!r}.")
    return words[1]


@contextlib.contextmanager
def _scheduler(address: str | None) -> Iterator[tuple[Executor | None, int | None]]:
    """A Dask cluster as an executor, and how many submissions it takes at a time; (None, None) for this machine."""
    if address is None:
        yield None, None
        return
    try:
        from distributed import Client
    except ImportError:
        raise ValueError(
            "--executor dask needs the dask group: `uv sync --group dask`, or `pip install --group dask`."
        ) from None
    try:
        client = Client(address, timeout=10, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise ValueError(f"no Dask scheduler answers at {address}: {type(error).__name__}.") from None
    try:
        threads = sum(client.nthreads().values())
        if not threads:
            raise ValueError(f"the Dask scheduler at {address} has no workers.")
        yield client.get_executor(pure=False, retries=2), threads
    finally:
        client.close(timeout=2)


def _grade(submissions, labs, limits, options, ledger, executor, workers) -> int:
    """Grade and write down, one after the other; stop at a signal, with what is done kept."""
    from checks.classroom.workers import Stopped, grade_class, stop

    before = {}
    for number in (signal.SIGTERM, signal.SIGHUP) if threading.current_thread() is threading.main_thread() else ():
        before[number] = signal.signal(number, _interrupt)
    bar = _Bar(len(submissions))
    stream = grade_class(submissions, labs, executor=executor, limits=limits, wish=options.sandbox, workers=workers)
    status = 0
    try:
        for graded in stream:
            ledger.add(graded)
            bar.step()
    except (KeyboardInterrupt, Stopped):
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        stop()
        bar.end()
        print(f"Stopped. {len(ledger.done)} submissions are in {ledger.path}; --resume goes on.", file=sys.stderr)
        status = 130
    except OSError as error:
        stop()
        raise ValueError(
            f"{ledger.path} cannot be written: {error.strerror or error}. {len(ledger.done)} submissions are in it; --resume goes on."
        ) from None
    finally:
        stream.close()
        bar.end()
        for number, handler in before.items():
            signal.signal(number, handler)
    return status


def _interrupt(number, frame):
    raise KeyboardInterrupt


def _present(options: argparse.Namespace, ledger, names: Sequence[str], note: str) -> None:
    from checks.answers.notebook import write_whole
    from checks.classroom.feedback import write_feedback
    from checks.classroom.report import page, summary

    rows = {name: ledger.rows[name] for name in names if name in ledger.rows}
    if options.report is not None:
        write_whole(options.report, page(rows, ledger.entries, [note]))
    if options.feedback is not None:
        write_feedback(options.feedback, rows, ledger.entries)
    print(summary([row for those in rows.values() for row in those]))


class _Bar:
    """One line on standard error: how many are done, how fast, and how long the rest will take."""

    def __init__(self, total: int):
        self._total, self._done, self._started, self._shown = total, 0, time.monotonic(), False

    def step(self) -> None:
        self._done += 1
        elapsed = time.monotonic() - self._started
        left = elapsed / self._done * (self._total - self._done)
        per_minute = 60 * self._done / max(elapsed, 1e-9)
        line = f"{self._done} of {self._total} graded · {per_minute:.3g} a minute · {_duration(left)} left"
        end = "" if sys.stderr.isatty() else "\n"
        if sys.stderr.isatty() or self._done in (1, self._total) or self._done % max(1, self._total // 20) == 0:
            print(f"\r{line:<70}{end}" if not end else line, end=end, file=sys.stderr, flush=True)
            self._shown = not end

    def end(self) -> None:
        if self._shown:
            print(file=sys.stderr)
            self._shown = False


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return (
        f"{seconds:.0f} s"
        if seconds < 90
        else f"{minutes} min"
        if minutes < 90
        else f"{minutes // 60} h {minutes % 60} min"
    )

"""Many submissions at a time: on this machine's processors, or on the workers of a cluster that is there.

Each process that grades (this one, or a worker of a Dask cluster) keeps a few nurseries (`checks.classroom.nursery`), each
with torch imported, and lends one to each submission. A nursery or a worker that dies costs its submission a second try.
"""

import atexit
import base64
import contextlib
import json
import math
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, replace
from typing import Any

from checks.catalogue import LABS
from checks.classroom import likeness, sandbox
from checks.classroom.limits import Limits, processors
from checks.classroom.results import Graded, expected_of, lost, rows_of_lab, ungraded
from checks.classroom.submissions import Submission, Work, open_submission
from checks.classroom.wire import receive, send

__all__ = ["Stopped", "grade_class", "grade_submission", "stop"]

TRIES = 2
SILENCE = 120  # seconds without a sign of life from a nursery, which gives one every five
NURSERY = ("-m", "checks.classroom.nursery")
START_SECONDS = 600  # for a nursery to import torch, on a machine that is busy


class Stopped(Exception):
    """The run is being ended; nothing more is graded."""


class _Died(Exception):
    """A nursery went away."""


class _Nursery:
    """One worker's process, and the socket to it."""

    def __init__(self, labs: Sequence[str], limits: Limits, kind: str):
        self._home = tempfile.mkdtemp(prefix="nursery-") if kind == "none" else "/tmp"
        ours, theirs = socket.socketpair()
        settings = json.dumps({"labs": list(labs), "loaded": not sandbox.sees_gpu()})
        words = [sys.executable, *NURSERY, str(theirs.fileno()), settings]
        with theirs:
            self._errors = tempfile.TemporaryFile()
            self._process = subprocess.Popen(
                [*sandbox.command(kind, limits), *words],
                cwd=self._home,
                env=sandbox.environment(self._home),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                start_new_session=True,
            )
        self._channel = ours
        with _LOCK:
            _ALIVE.add(self)
        if _STOP.is_set():  # between the look before and now
            self.close()
            raise Stopped
        ours.settimeout(START_SECONDS)
        try:
            self.hello = receive(ours)
        except (OSError, ValueError):
            self.hello = None
        if self.hello is None:
            said = self.said()
            self.close()
            raise _Died(f"a worker does not start: {said}")

    def said(self) -> str:
        """The last line that the process wrote about itself."""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def ask(self, request: dict[str, Any], seconds: float) -> Iterator[dict[str, Any]]:
        """Send one submission; its labs' answers, one after the other."""
        self._channel.settimeout(SILENCE)
        deadline = time.monotonic() + seconds
        try:
            send(self._channel, request)
            left = len(request["labs"])
            while left:
                answer = receive(self._channel)
                if answer is None:
                    raise _Died(f"its process ended: {self.said()}")
                if time.monotonic() > deadline:
                    raise _Died("it takes far too long")
                if "alive" not in answer:
                    left -= 1
                    yield answer
        except (OSError, ValueError):
            raise _Died(f"its process has not been heard of for {SILENCE} s") from None

    def close(self) -> None:
        """End the process and everything below it: it ends its children when its socket closes."""
        with _LOCK:
            _ALIVE.discard(self)
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)
        self._channel.close()
        try:
            self._process.wait(2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()
        if self._home != "/tmp":
            subprocess.run(["rm", "-rf", "--", self._home], capture_output=True)


_LOCK = threading.Lock()
_ALIVE: set[_Nursery] = set()
_IDLE: dict[tuple, queue.LifoQueue] = {}
_STOP = threading.Event()


def stop() -> None:
    """End all nurseries of this process, and with them what they grade. What waits for one gets `Stopped`."""
    _STOP.set()
    with _LOCK:
        alive = list(_ALIVE)
    threads = [threading.Thread(target=one.close, daemon=True) for one in alive]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(3)
    _IDLE.clear()


atexit.register(stop)


def grade_submission(
    work: Work, labs: Sequence[str], limits: Limits | None = None, wish: str = "auto", patience: float = 1.0
) -> Graded:
    """Grade one submission. Never raises because of what it holds.

    Args:
        work: from `open_submission`.
        labs: lab numbers, "01".
        limits: what it may use.
        wish: "auto", "bwrap" or "none", for the machine that this runs on.
        patience: by what times are multiplied, MSDA_PATIENCE of whoever asks.

    Raises:
        Stopped: the run is being ended.
        ValueError: the sandbox cannot be had.
        RuntimeError: no worker lived long enough; the message says why.
    """
    graded = ungraded(work)
    if graded is not None:
        return graded
    limits, kind, expected = limits or Limits(), sandbox.choose(wish), expected_of(labs)
    files = {f"{LABS[lab].notebook}.py": data for lab, data in work.notebooks.items()} | work.beside
    there = [lab for lab in labs if lab in work.notebooks]
    seconds = limits.seconds * max(patience, 0.001)
    request = {
        "labs": there,
        "files": {name: base64.b64encode(data).decode() for name, data in files.items()},
        "limits": asdict(replace(limits, seconds=seconds)),
    }
    answers: dict[str, dict[str, Any]] = {}
    failures = []
    while set(answers) != set(there):
        open_labs = [lab for lab in there if lab not in answers]
        try:
            with _lent(labs, limits, kind) as nursery:
                for answer in nursery.ask({**request, "labs": open_labs}, 25 * seconds + 300):
                    answers[answer["lab"]] = answer
                    if answer["spoiled"]:
                        raise _Died("what a submission left could not be removed")
        except _Died as error:
            if set(answers) != set(there) and not (answers and answers.get(open_labs[0])):
                failures.append(str(error))
            if len(failures) >= TRIES:
                raise RuntimeError(
                    f"{failures[-1]}. That was so {TRIES} times, so it may be the submission's doing"
                ) from None
    rows, log = [], {"sandbox": kind, "host": socket.gethostname(), "labs": {}}
    for lab in labs:
        these, log["labs"][lab] = rows_of_lab(work, lab, expected[lab], answers.get(lab))
        doubts = likeness.doubts(lab, work) if lab in there else []
        for one in these:
            one["flag"] = "; ".join(filter(None, [one["flag"], *doubts]))
        rows += these
    return Graded(work.name, rows, log)


@contextlib.contextmanager
def _lent(labs: Sequence[str], limits: Limits, kind: str) -> Iterator[_Nursery]:
    """A nursery for one submission: an idle one, or a new one. One that died is not given back."""
    key = (tuple(labs), kind, limits.output_mb)
    idle = _IDLE.setdefault(key, queue.LifoQueue())
    if _STOP.is_set():
        raise Stopped
    try:
        nursery = idle.get_nowait()
    except queue.Empty:
        nursery = _Nursery(labs, limits, kind)
    try:
        yield nursery
    except BaseException:
        nursery.close()
        if _STOP.is_set():
            raise Stopped from None
        raise
    idle.put(nursery)


def patience() -> float:
    """MSDA_PATIENCE of this process."""
    try:
        factor = float(os.environ.get("MSDA_PATIENCE", "1"))
    except ValueError:
        return 1.0
    return factor if math.isfinite(factor) and factor > 0 else 1.0


def grade_class(
    submissions: Sequence[Submission],
    labs: Sequence[str],
    *,
    executor: Executor | None = None,
    limits: Limits | None = None,
    wish: str = "auto",
    workers: int | None = None,
) -> Iterator[Graded]:
    """Grade many submissions, and give each as soon as it is done.

    Args:
        submissions: from `find_submissions`; each is opened shortly before it is graded.
        labs: lab numbers, "01".
        executor: any `concurrent.futures.Executor`, also that of a cluster; threads if not given (each grades in a process).
        limits: what each may use.
        wish: the sandbox: "auto", "bwrap" or "none".
        workers: how many at a time; of this machine's own, as many as it has processors.
    """
    limits, own, workers = limits or Limits(), executor is None, workers or processors()
    _STOP.clear()
    executor = executor or ThreadPoolExecutor(workers, thread_name_prefix="grading")
    waiting: dict[Future, str] = {}
    left = iter(submissions)
    try:
        while True:
            while len(waiting) < 2 * workers and (submission := next(left, None)) is not None:
                work = open_submission(submission, limits)
                early = ungraded(work)
                if early is not None:
                    yield early
                    continue
                waiting[executor.submit(grade_submission, work, list(labs), limits, wish, patience())] = submission.name
            if not waiting:
                return
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                yield _outcome(future, waiting.pop(future))
    finally:
        for future in waiting:
            future.cancel()
        if own:
            stop()
            executor.shutdown(wait=False, cancel_futures=True)


def _outcome(future: Future, name: str) -> Graded:
    try:
        return future.result()
    except (Stopped, CancelledError):
        raise Stopped from None
    except Exception as error:  # the worker, not the submission, is broken; its neighbours go on
        kind = "" if type(error) is RuntimeError else f"{type(error).__name__}: "
        return lost(name, f"was not graded, because its worker failed: {kind}{error}.")

"""python -m checks class DIR --csv OUT: a folder of submissions, each graded in a process of its own.

A submission is a folder or a zip file that holds notebooks under their usual names, at any depth. It is packed into
memory, unpacked into a temporary folder, and graded there: the original is only ever read. The process that grades it
has limits on time, memory, and what it may write, and belongs to a process group that is killed as a whole. So a broken
or hostile submission costs its own row and nothing else.

What the limits protect against: endless loops, memory and output floods, zip bombs, paths that lead out of the folder,
crashes of the interpreter, processes left behind, and by accident overwriting a neighbour's work. What they do not:
code that is out to harm. A submission runs as the user who grades it: it can read what that user can read, use the network, and,
since it shares its process with the grader, forge its own marks. Grade strangers inside a container or a virtual machine.
"""

import argparse
import csv
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from checks.catalogue import LABS
from checks.core.exercise import lab_exercises

__all__ = ["Limits", "Submission", "find_submissions", "grade_class", "grade_submission", "main", "summary"]

FIELDS = ("submission", "lab", "exercise", "status", "mistake", "message", "seconds")


@dataclass(frozen=True)
class Limits:
    """What one submission may use.

    Attributes:
        seconds: wall clock for each of its labs.
        memory_mb: address space of its process; torch alone maps several gigabytes.
        output_mb: largest file it may write, its own output included.
        unpacked_mb, files: how large the submission itself may be.
    """

    seconds: float = 120.0
    memory_mb: int = 16_000
    output_mb: int = 16
    unpacked_mb: int = 64
    files: int = 2_000


@dataclass(frozen=True)
class Submission:
    """One learner's work, as a zip in memory: it can travel to a worker that shares no disk."""

    name: str
    data: bytes = field(repr=False, default=b"")
    problem: str = ""


def find_submissions(folder: Path, limits: Limits | None = None) -> list[Submission]:
    """Every folder and zip file directly inside a folder, by name; anything else is left alone.

    Raises:
        ValueError: the folder is not there, or holds no submission.
    """
    limits = limits or Limits()
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}.")
    found = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or not (path.is_dir() or path.suffix.lower() == ".zip"):
            continue
        try:
            data = _packed(path, limits) if path.is_dir() else path.read_bytes()
            found.append(Submission(path.name, data))
        except (OSError, ValueError) as error:
            found.append(Submission(path.name, problem=str(error)))
    if not found:
        raise ValueError(f"{folder} holds no submission: put one folder or one zip file in it for each learner.")
    return found


def _packed(folder: Path, limits: Limits) -> bytes:
    buffer, count, size = io.BytesIO(), 0, 0
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*.py")):
            if not path.is_file() or path.is_symlink():
                continue
            count, size = count + 1, size + path.stat().st_size
            if count > limits.files or size > limits.unpacked_mb * 1_000_000:
                raise ValueError(f"it holds more than {limits.files} files or {limits.unpacked_mb} MB.")
            archive.write(path, path.relative_to(folder))
    return buffer.getvalue()


def _unpack(data: bytes, target: Path, limits: Limits) -> None:
    """Unpack the Python files of a zip, refusing what a learner's zip never holds."""
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
        entries = [entry for entry in archive.infolist() if not entry.is_dir()]
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise ValueError(f"it is no zip file: {error}.") from None
    if len(entries) > limits.files:
        raise ValueError(f"it holds {len(entries)} files, more than {limits.files}.")
    left = limits.unpacked_mb * 1_000_000
    for entry in entries:
        if not entry.filename.endswith(".py"):
            continue
        path = (target / entry.filename).resolve()
        if not path.is_relative_to(target.resolve()):
            raise ValueError(f"it holds a path that leads out of its folder: {entry.filename!r}.")
        try:
            with archive.open(entry) as source:
                text = source.read(left + 1)  # what is there, not what the entry says is there
        except (zipfile.BadZipFile, OSError, RuntimeError, NotImplementedError, EOFError) as error:
            raise ValueError(f"{entry.filename!r} cannot be unpacked: {error}.") from None
        left -= len(text)
        if left < 0:
            raise ValueError(f"it unpacks to more than {limits.unpacked_mb} MB.")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)


def grade_submission(submission: Submission, labs: Sequence[str], limits: Limits | None = None) -> list[dict]:
    """Grade one submission. Never raises because of what it holds.

    Args:
        submission: from `find_submissions`.
        labs: lab numbers, "01".
        limits: what it may use.

    Returns:
        One row (see FIELDS) for each exercise of each lab; a lab that is not handed in gives "todo" rows.
    """
    limits = limits or Limits()
    if submission.problem:
        return _rows_of_all(submission.name, labs, "crash", submission.problem)
    with tempfile.TemporaryDirectory(prefix="submission-") as folder:
        home = Path(folder)
        work = home / "work"
        work.mkdir()
        try:
            _unpack(submission.data, work, limits)
        except ValueError as error:
            return _rows_of_all(submission.name, labs, "crash", str(error))
        rows = []
        for lab in labs:
            notebooks = sorted(work.rglob(f"{LABS[lab][0]}.py"), key=lambda path: (len(path.parts), path))
            if not notebooks:
                rows += _rows_of_all(submission.name, [lab], "todo", f"{LABS[lab][0]}.py is not there.")
            else:
                rows += _grade_file(submission.name, lab, notebooks[0], home, limits)
        return rows


def _grade_file(name: str, lab: str, path: Path, home: Path, limits: Limits) -> list[dict]:
    output = home / f"{lab}.json"
    environment = {
        **{key: os.environ[key] for key in ("PATH", "LANG", "LD_LIBRARY_PATH", "PYTHONPATH") if key in os.environ},
        "HOME": str(home),
        "TMPDIR": str(home),
        "TRITON_CACHE_DIR": str(home / "triton"),
        "MSDA_LABS": str(path.parent),  # carry-over reads the submission's own earlier labs
        "MSDA_DEVICE": os.environ.get("MSDA_DEVICE", ""),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "checks", str(int(lab)), "--json", "--file", str(path)]
    if os.name == "posix":
        command = [sys.executable, "-ISc", RESTRICTED, json.dumps(_resources(limits)), *command]
    with output.open("wb") as stdout:
        process = subprocess.Popen(
            command,
            cwd=home,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            status = process.wait(limits.seconds)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            _kill_group(process)
    if status is None:
        return _rows_of_all(name, [lab], "crash", f"it was stopped after {limits.seconds:g} s.")
    try:
        text = output.read_bytes().decode()
        (graded,) = json.loads(text)["labs"]
        return [
            {
                "submission": name,
                "lab": lab,
                "exercise": one["name"],
                "status": one["status"],
                "mistake": one["mistake"] or "",
                "message": next(
                    (c["message"] for c in one["checks"] if c["status"] == one["status"] and c["message"]), ""
                ),
                "seconds": one["seconds"],
            }
            for one in graded["exercises"]
        ]
    except (ValueError, KeyError, TypeError):
        how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
        return _rows_of_all(
            name, [lab], "crash", f"its process {how} without a result: out of memory, or it left by itself."
        )


#: A program that sets limits and becomes another program. Not `preexec_fn`: that copies this process, whose threads may hold
#: locks and whose memory may be too large to copy.
RESTRICTED = """
import json, os, resource, sys
for what, amount in json.loads(sys.argv[1]).items():
    resource.setrlimit(getattr(resource, what), (amount, amount))
os.execv(sys.argv[2], sys.argv[2:])
"""


def _resources(limits: Limits) -> dict[str, int]:
    megabyte = 1_000_000
    return {
        "RLIMIT_AS": limits.memory_mb * megabyte,
        "RLIMIT_FSIZE": limits.output_mb * megabyte,
        "RLIMIT_CPU": int(2 * limits.seconds) + 1,
        "RLIMIT_CORE": 0,
    }


def _kill_group(process: subprocess.Popen) -> None:
    """End the submission's process and whatever it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL) if os.name == "posix" else process.kill()
    except (ProcessLookupError, PermissionError):
        pass
    process.wait()


def _rows_of_all(name: str, labs: Iterable[str], status: str, message: str) -> list[dict]:
    return [
        dict(zip(FIELDS, (name, lab, exercise.function, status, "", message, 0.0)))
        for lab in labs
        for exercise in lab_exercises(lab)
    ]


def grade_class(
    submissions: Sequence[Submission],
    labs: Sequence[str],
    *,
    executor: Executor | None = None,
    limits: Limits | None = None,
    progress=None,
) -> list[dict]:
    """Grade many submissions.

    Args:
        submissions: from `find_submissions`.
        labs: lab numbers, "01".
        executor: any `concurrent.futures.Executor`, also that of a cluster; threads as many as there are cores if not
            given (each submission runs in a process of its own either way).
        limits: what each may use.
        progress: called with (done, total) after each.

    Returns:
        Rows (see FIELDS), in the order of the submissions. A worker that dies costs its submission's rows.
    """
    own = executor is None
    executor = executor or ThreadPoolExecutor(os.cpu_count() or 1)
    try:
        futures = {executor.submit(grade_submission, s, list(labs), limits): s for s in submissions}
        rows = {}
        for done, future in enumerate(as_completed(futures), start=1):
            submission = futures[future]
            try:
                rows[id(submission)] = future.result()
            except Exception as error:  # the worker, not the submission, is broken; its neighbours go on
                message = f"its worker failed: {type(error).__name__}: {error}"
                rows[id(submission)] = _rows_of_all(submission.name, labs, "crash", message)
            if progress:
                progress(done, len(submissions))
        return [row for submission in submissions for row in rows[id(submission)]]
    finally:
        if own:
            executor.shutdown()


def summary(rows: Sequence[dict]) -> str:
    """Per exercise: how many passed, and the mistakes that the class makes most."""
    lines, by_exercise = [], {}
    for row in rows:
        by_exercise.setdefault((row["lab"], row["exercise"]), []).append(row)
    for (lab, exercise), those in by_exercise.items():
        states = Counter(row["status"] for row in those)
        shares = ", ".join(f"{states[s]} {s}" for s in ("pass", "fail", "crash", "todo", "not_run") if states[s])
        lines.append(f"{lab}.{exercise}: {shares}")
        for mistake, count in Counter(row["mistake"] for row in those if row["mistake"]).most_common(3):
            lines.append(f"    {count} × {mistake}")
    learners = len({row["submission"] for row in rows})
    lines.append(f"{learners} submissions graded")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m checks class",
        description="Grade a folder of submissions, each in a limited process of its own.",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="one folder or zip file for each learner")
    parser.add_argument("--csv", type=Path, required=True, metavar="OUT", help="where the rows go; must not exist yet")
    parser.add_argument("--labs", nargs="+", metavar="LAB", help="lab numbers; all labs if not given")
    parser.add_argument("--seconds", type=float, default=Limits.seconds, help="wall clock for each lab")
    parser.add_argument("--memory-mb", type=int, default=Limits.memory_mb)
    parser.add_argument("--dask", metavar="ADDRESS", help="grade on the workers of this dask scheduler (extra: dask)")
    options = parser.parse_args(arguments)
    labs = [word.zfill(2) for word in options.labs] if options.labs else [lab for lab in LABS if lab_exercises(lab)]
    unknown = [lab for lab in labs if lab not in LABS]
    if unknown:
        raise ValueError(f"there is no lab {unknown[0]!r}. Labs are 1 to {len(LABS)}.")
    if options.csv.exists():
        raise ValueError(f"{options.csv} exists already. Name a file that does not, or move that one away.")
    limits = Limits(seconds=options.seconds, memory_mb=options.memory_mb)
    submissions = find_submissions(options.folder, limits)
    show = lambda done, total: print(f"\r{done} of {total} graded", end="", file=sys.stderr, flush=True)  # noqa: E731
    if options.dask:
        try:
            from dask.distributed import Client
        except ImportError:
            raise ValueError("--dask needs the dask group: `uv sync --group dask`, or `pip install --group dask`.") from None
        with Client(options.dask) as client:
            rows = grade_class(submissions, labs, executor=client.get_executor(), limits=limits, progress=show)
    else:
        rows = grade_class(submissions, labs, limits=limits, progress=show)
    print(file=sys.stderr)
    with options.csv.open("x", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(rows)
    print(summary(rows))
    return 0

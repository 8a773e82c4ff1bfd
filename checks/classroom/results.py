"""Rows, and the files that they go to as each submission is done: what was graded is never lost.

Two files grow side by side. The CSV has a row for each exercise. The log beside it has one JSON object for each submission:
why it crashed, what it wrote to its standard output, how long it took, and the verdicts that feedback is made from. A
submission's rows are written at once and forced to the disk; a run that was cut off is gone on with by `--resume`.
"""

import contextlib
import csv
import io
import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checks.catalogue import LABS
from checks.classroom.audit import DOUBT, KEY
from checks.classroom.submissions import Work, not_found

__all__ = ["FIELDS", "Graded", "Ledger", "lost", "printable", "rows_of_lab", "ungraded"]

FIELDS = ("submission", "lab", "exercise", "status", "mistake", "message", "seconds", "flag")
STATES = ("pass", "fail", "crash", "todo", "not_run")
TEXT_LIMIT = 2_000


@dataclass
class Graded:
    """One submission, graded: its rows, and its entry in the log."""

    name: str
    rows: list[dict[str, Any]]
    log: dict[str, Any] = field(default_factory=dict)


def printable(text: Any, limit: int = TEXT_LIMIT) -> str:
    """Text from outside as one line that can be written anywhere: no lone surrogates, no control characters, not endless."""
    return _safe(" ".join(str(text).split()), limit)


def _safe(line: str, limit: int = TEXT_LIMIT) -> str:
    safe = line.encode("utf-8", "backslashreplace").decode()
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in safe)
    return safe if len(safe) <= limit else safe[: limit - 1] + "…"


def row(name: str, lab: str, exercise: str, status: str, message: str, **more: Any) -> dict[str, Any]:
    """One row, with what is not given left empty."""
    values = {"mistake": "", "seconds": 0.0, "flag": "", **more}
    return {"submission": name, "lab": lab, "exercise": exercise, "status": status, "message": message, **values}


def ungraded(work: Work) -> Graded | None:
    """The one row of what cannot be graded at all, or is empty; None for everything else."""
    if work.problem:
        return lost(work.name, work.problem)
    if work.empty:
        return Graded(work.name, [row(work.name, "", "", "todo", "handed in nothing: it is empty.")], {"empty": True})
    return None


def lost(name: str, problem: str) -> Graded:
    """The one row of a submission of which nothing was graded, with the reason; it completes "it …"."""
    problem = printable(problem)
    return Graded(name, [row(name, "", "", "crash", problem)], {"problem": problem})


def rows_of_lab(work: Work, lab: str, exercises: Sequence[str], answer: dict[str, Any] | None) -> tuple[list, dict]:
    """A lab's rows and its part of the log.

    Args:
        work: the submission.
        lab: "01".
        exercises: names of the lab's exercises; there is a row for each, whatever came back.
        answer: what the worker said; None where the lab was not handed in.
    """
    flags = [printable(note) for note in (*work.notes.get("", ()), *work.notes.get(lab, ()))]
    if answer is None:
        said, told = not_found(work, lab), "; ".join(flags)
        return [row(work.name, lab, one, "todo", said, flag=told) for one in exercises], {"found": False}
    if answer["left"]:
        flags.append(f"left {answer['left']} process{'es' * (answer['left'] > 1)} behind, ended with it")
    if answer["forged"]:
        flags.append("wrote to the channel of results, which only the grader may")
    taken, doubts = _notes(answer["noted"])
    flags += [f"it {text}" for text in (*taken, *doubts)]
    log = {key: answer[key] for key in ("status", "stopped", "forged", "left", "seconds", "cpu")}
    log["output"] = answer["output"]
    found = {} if answer["result"] is None else _checked(answer["result"], exercises)
    if not found:
        message = _why(answer)
        log["crash"] = message
        return [row(work.name, lab, one, "crash", message, flag="; ".join(flags)) for one in exercises], log
    rows = []
    log["verdicts"] = {}
    for exercise in exercises:
        one = found[exercise]
        message = next((m for status, m in one["checks"] if status == one["status"] and m), "")
        if taken and one["status"] == "pass":
            message = f"its code {taken[0]}, which answers are compared with: nothing that passed counts."
            one |= {"status": "fail", "words": f"FAIL     {lab}.{exercise} · {message}"}
        rows.append(
            row(
                work.name,
                lab,
                exercise,
                one["status"],
                message,
                mistake=one["mistake"],
                seconds=one["seconds"],
                flag="; ".join(flags),
            )
        )
        log["verdicts"][exercise] = {"words": one["words"], "code": one["code"], "mistake": one["mistake"]}
    return rows, log


def _notes(text: str) -> tuple[list[str], list[str]]:
    """What was noticed while it was graded: of the key, and what a marker should look at."""
    found: dict[str, list[str]] = {KEY: [], DOUBT: []}
    for line in text.splitlines():
        try:
            kind, words = json.loads(line)
            found[kind].append(printable(words, 200))
        except (ValueError, KeyError, TypeError, RecursionError):
            found[DOUBT].append("wrote to the channel of what is noticed, which only the grader may")
    return tuple(list(dict.fromkeys(those)) for those in (found[KEY], found[DOUBT]))


def _why(answer: dict[str, Any]) -> str:
    """What became of a process that brought no result."""
    if answer["stopped"]:
        return answer["stopped"]
    if answer["forged"]:
        return "what came back was not the grader's: nothing of it counts."
    status = answer["status"]
    how = f"was ended by signal {-status}" if status < 0 else f"left with status {status}"
    last = next((line for line in reversed(answer["output"].splitlines()) if line.strip()), "")
    said = f" Its last words: {printable(last, 200)}" if last else ""
    return f"its process {how} before it was graded.{said}"


def _checked(text: str, exercises: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Exercise → what the child reported, every type looked at; {} if it is no report on these exercises."""
    try:
        graded = json.loads(text)["exercises"]
        found = {}
        for one in graded:
            seconds, mistake = one["seconds"], one["mistake"]
            good = (
                one["name"] in exercises
                and isinstance(one["status"], str)
                and one["status"] in STATES
                and type(seconds) in (int, float)
                and math.isfinite(seconds)
                and seconds >= 0
                and (mistake is None or isinstance(mistake, str))
                and isinstance(one["words"], str)
                and isinstance(one.get("code", ""), str)
                and all(isinstance(c["status"], str) and isinstance(c["message"], str) for c in one["checks"])
            )
            if not good:
                return {}
            found[one["name"]] = {
                "status": one["status"],
                "seconds": round(float(seconds), 4),
                "mistake": printable(mistake or ""),
                "checks": [(c["status"], printable(c["message"])) for c in one["checks"]],
                "words": "\n".join(_safe(line) for line in one["words"].split("\n")),
                "code": one.get("code", "").encode("utf-8", "backslashreplace").decode(),
            }
        return found if len(graded) == len(exercises) and set(found) == set(exercises) else {}
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}


class Ledger:
    """The CSV and the log of one run.

    Args:
        path: the CSV; the log is beside it, with `.log.jsonl` added to its name.
        expected: lab → its exercises, to tell a submission whose rows are all there.
        resume: go on with files that are there.

    Raises:
        ValueError: the files cannot be made, exist without `resume`, are another run's, or are being written.
    """

    def __init__(self, path: Path, expected: dict[str, list[str]], resume: bool = False):
        self.path, self.log_path = path, Path(f"{path}.log.jsonl")
        self._expected = [(lab, one) for lab, those in expected.items() for one in those]
        self.entries: dict[str, dict[str, Any]] = {}
        self.rows: dict[str, list[dict[str, Any]]] = {}
        if path.is_dir():
            raise ValueError(f"{path} is a folder. Name a file for the rows.")
        if not resume:
            for one in (path, self.log_path):
                if one.exists():
                    raise ValueError(f"{one} exists already. Name another file, or go on with it by --resume.")
        try:
            self._csv, self._log = (open(one, "a+b", buffering=0) for one in (path, self.log_path))
        except OSError as error:
            raise ValueError(f"{path} cannot be written: {error.strerror}.") from None
        self._lock()
        if resume:
            self._mend()
        if not os.fstat(self._csv.fileno()).st_size:
            self._append(self._csv, _line(FIELDS))

    @property
    def done(self) -> set[str]:
        """The submissions whose rows are all there."""
        return set(self.rows)

    def add(self, graded: Graded) -> None:
        """Write a submission down. Raises OSError where the disk is full; then nothing of it is left in the files."""
        entry = {"submission": graded.name, "rows": len(graded.rows), **graded.log}
        self._append(self._log, json.dumps(entry).encode() + b"\n")
        self._append(self._csv, b"".join(_line([_cell(one[key]) for key in FIELDS]) for one in graded.rows))
        self.entries[graded.name], self.rows[graded.name] = entry, graded.rows

    def close(self) -> None:
        """Let go of the files."""
        self._csv.close()
        self._log.close()

    def _append(self, file: Any, data: bytes) -> None:
        end = os.fstat(file.fileno()).st_size
        try:
            sent = 0
            while sent < len(data):
                sent += file.write(data[sent:])
            os.fsync(file.fileno())
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(file.fileno(), end)
            raise

    def _lock(self) -> None:
        try:
            import fcntl

            fcntl.flock(self._csv, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:
            pass  # Windows
        except OSError:
            raise ValueError(f"another run writes to {self.path} at this moment.") from None

    def _mend(self) -> None:
        """Keep whole submissions of a run that was cut off, and drop the rest."""
        from checks.answers.notebook import write_whole

        self._csv.seek(0)
        data = self._csv.read()
        text = data[: data.rfind(b"\n") + 1].decode("utf-8", "replace")
        lines = list(csv.reader(io.StringIO(text, newline="")))
        if data and (tuple(lines[0]) != FIELDS if lines else not _line(FIELDS).startswith(data)):
            raise ValueError(f"{self.path} has other columns than this course's rows: it cannot be gone on with.")
        for line in lines[1:]:
            if len(line) == len(FIELDS):
                one = {key: _uncell(cell) for key, cell in zip(FIELDS, line)}
                with contextlib.suppress(ValueError):
                    one["seconds"] = float(one["seconds"])
                    self.rows.setdefault(one["submission"], []).append(one)
        self.rows = {name: rows for name, rows in self.rows.items() if self._whole(rows)}
        self._log.seek(0)
        for line in self._log.read().split(b"\n"):
            with contextlib.suppress(ValueError, KeyError, TypeError):
                entry = json.loads(line)
                if entry["submission"] in self.rows:
                    self.entries[entry["submission"]] = entry
        self.rows = {name: rows for name, rows in self.rows.items() if name in self.entries}
        kept = [
            _line(FIELDS),
            *(_line([_cell(one[key]) for key in FIELDS]) for rows in self.rows.values() for one in rows),
        ]
        entries = [json.dumps(self.entries[name]).encode() + b"\n" for name in self.rows]
        for name, path, parts in (("_csv", self.path, kept), ("_log", self.log_path, entries)):
            if b"".join(parts) != path.read_bytes():
                getattr(self, name).close()
                path.write_bytes(b"") if not path.exists() else None
                write_whole(path, b"".join(parts).decode())
                setattr(self, name, open(path, "a+b", buffering=0))
        self._lock()

    def _whole(self, rows: Iterable[dict[str, Any]]) -> bool:
        there = [(one["lab"], one["exercise"]) for one in rows]
        return there == [("", "")] or there == self._expected


def _line(cells: Iterable[Any]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode("utf-8", "backslashreplace")


def _cell(value: Any) -> Any:
    """A cell that a spreadsheet takes for text: one that begins like a formula gets an apostrophe."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "'") else value


def _uncell(text: str) -> str:
    return text[1:] if text[:1] == "'" else text


def expected_of(labs: Sequence[str]) -> dict[str, list[str]]:
    """Lab → its exercises, in their order."""
    return {lab: list(LABS[lab].exercises) for lab in labs}

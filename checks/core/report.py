"""One result as data, as a table in the terminal, and as JSON; `panel` draws it in a notebook."""

import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from checks.catalogue import LABS
from checks.core.exercise import Exercise, Mistake
from checks.core.panel import STATES, draw
from msda_core import device

__all__ = ["STATES", "Check", "Report", "as_json", "as_text", "count"]


@dataclass(frozen=True)
class Check:
    """One property, and whether it holds.

    Attributes:
        name: an identifier.
        title: what must hold, in the learner's words.
        status: one of STATES.
        message: what is wrong, or a note.
        seed: replays the draw that failed.
        fatal: nothing after it was tried.
        picture: draws what went wrong, when a notebook asks.
    """

    name: str
    title: str
    status: str
    message: str = ""
    seed: int | None = None
    fatal: bool = False
    picture: Callable[[], Any] | None = field(default=None, compare=False, repr=False)


@dataclass
class Report:
    """What the grader found out about one answer.

    Attributes:
        state: one of STATES.
        checks: each property, and whether it holds.
        mistake: the known mistake that agrees with the answer in all that ran: its cause.
        lead, where: one that explains only part of it, and the beginning of the sentence that says which.
        differs: how and where the answer differs from the truth, in words.
        printed, score, advice: what it printed, its figure, and what to mend first.
        seconds: how long grading took.
    """

    exercise: Exercise
    state: str
    checks: list[Check]
    mistake: Mistake | None = None
    lead: Mistake | None = None
    where: str = ""
    differs: str = ""
    printed: str = ""
    score: str | None = None
    advice: str = ""
    seconds: float = 0.0
    source: str = field(default="", repr=False)

    @property
    def name(self) -> str:
        """The exercise, "01.to_pixels"."""
        return self.exercise.name

    @property
    def worst(self) -> Check:
        """The check to show first."""
        return next((c for c in self.checks if c.status == self.state), self.checks[0])

    def json(self) -> dict[str, Any]:
        """This exercise's part of `as_json`."""
        return {
            "name": self.exercise.function,
            "status": self.state,
            "seconds": round(self.seconds, 4),
            "mistake": self.mistake.name if self.mistake else None,
            "checks": [{"name": c.name, "status": c.status, "message": c.message} for c in self.checks],
        }

    def text(self) -> str:
        """The lines of this exercise in the terminal's table."""
        head = f"  {STATES[self.state][1]:<8} {self.name}"
        if self.state == "pass":
            lines = [f"{head}  ({self.seconds:.2f} s)" + (f"  Score: {self.score}" if self.score else "")]
        else:
            untouched = self.state == "todo" and self.worst.name != "defined"
            title = "" if untouched else f" · {self.worst.name}: {self.worst.message}"
            lines = [head + title]
        if self.mistake:
            lines += _indent(f"Your answer is what you get {self.mistake.name}. {self.mistake.hint}")
        if self.differs:
            lines += _indent(self.differs)
        if self.lead:
            lines += _indent(self.looks_like)
        if self.advice:
            lines += _indent(self.advice)
        if self.state in ("fail", "crash"):
            replay = f" Replay with --seed {self.worst.seed}." if self.worst.seed is not None else ""
            lines += _indent(f"Must hold: {self.worst.title}.{replay}")
        for check in self.checks:
            if check.status == "not_run" and check is not self.worst:
                lines.append(f"  NOT RUN  {self.name} · {check.name}: {check.message}")
        if self.printed and self.state in ("fail", "crash"):
            lines += _indent("It printed: " + self.printed.strip())
        return "\n".join(lines)

    @property
    def looks_like(self) -> str:
        return f"{self.where} {self.lead.name}. {self.lead.hint}" if self.lead else ""

    def _repr_html_(self) -> str:
        return draw(self)


def _indent(text: str) -> list[str]:
    return textwrap.wrap(text, 100, initial_indent=" " * 11, subsequent_indent=" " * 11)


def count(reports: Iterable[Report]) -> dict[str, int]:
    """How many exercises are in each state, and under "not_run" also single checks that could not run."""
    totals = dict.fromkeys(STATES, 0)
    for report in reports:
        totals[report.state] += 1
        if report.state != "not_run":
            totals["not_run"] += sum(check.status == "not_run" for check in report.checks)
    return totals


def as_text(labs: dict[str, list[Report]]) -> str:
    """The terminal's table; the last line counts everything, what was not run included."""
    lines = []
    for lab, reports in labs.items():
        needed = [report for report in reports if not report.exercise.stretch]
        share = f"{sum(report.state == 'pass' for report in needed)} of {len(needed)}"
        lines.append(f"{lab} · {LABS[lab].title} · {share}   [{device.describe()}]")
        lines += [report.text() for report in reports] or ["  no exercises yet"]
        lines.append("")
    totals = count(report for reports in labs.values() for report in reports)
    lines.append(
        f"{totals['pass']} passed, {totals['fail']} failed, {totals['crash']} crashed, "
        f"{totals['todo']} to do, {totals['not_run']} not run"
    )
    return "\n".join(lines)


def as_json(labs: dict[str, list[Report]]) -> dict[str, Any]:
    """What `python -m checks --json` prints, version 1: the device, and each lab with its exercises as `Report.json`."""
    return {
        "version": 1,
        "device": device.describe(),
        "labs": [{"lab": lab, "exercises": [r.json() for r in reports]} for lab, reports in labs.items()],
    }

"""One result, three faces: a panel in the notebook, a table in the terminal, and JSON."""

import html
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from checks.catalogue import LABS
from checks.core.exercise import Exercise, Mistake
from msda_core import device

__all__ = ["STATES", "Check", "Report", "as_json", "as_text", "count"]

#: State → (glyph, word, colour variable). The glyph and the word carry the state; the colour only repeats it.
STATES = {
    "pass": ("✓", "PASS", "#1a7f4b", "#5fd39a"),
    "fail": ("✗", "FAIL", "#b3261e", "#ff8a80"),
    "crash": ("!", "CRASH", "#8a5a00", "#ffc65c"),
    "todo": ("○", "TODO", "#5b6472", "#a8b1bf"),
    "not_run": ("–", "NOT RUN", "#5b6472", "#a8b1bf"),
}

#: So many checks are listed whole when something is wrong; of more, the worst, and the others behind a click.
LISTED = 8


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
            lines += _indent(self._looks_like())
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

    def _looks_like(self) -> str:
        return f"{self.where} {self.lead.name}. {self.lead.hint}" if self.lead else ""

    def _repr_html_(self) -> str:
        glyph, word, light, dark = STATES[self.state]
        ran = sum(c.status in ("pass", "fail", "crash") for c in self.checks)
        good = sum(c.status == "pass" for c in self.checks)
        summary = {
            "todo": "Write your answer in the cell above: the verdict follows as you run it.",
            "pass": f"{good} of {ran} checks hold.",
            "not_run": "Nothing was graded.",
        }.get(self.state, f"{good} of {ran} checks hold." + (" The rest was not tried." if self.worst.fatal else ""))
        if self.score:
            summary += f" Score: {self.score}"
        label = f"{self.name}: {word.lower()}. {summary}"
        if self.state in ("fail", "crash"):
            label += f" {self.worst.title}: {self.worst.message}"
        if self.mistake:
            label += f" Your answer is what you get {self.mistake.name}."
        body, rest = [], ""
        wrong = self.state in ("fail", "crash")
        if self.state != "todo":
            # A notebook cuts a tall output: of many checks the one to look at comes first, with what is known about it.
            first = [self.worst] if wrong and len(self.checks) > LISTED else self.checks
            listing = _rows(first)
            told = len(self.checks) <= LISTED and any(check.message for check in self.checks)
            if self.state == "pass" and not told and all(check.status != "not_run" for check in self.checks):
                listing = f'<details><summary style="cursor:pointer">What was checked</summary>{listing}</details>'
            elif len(first) < len(self.checks):
                others = [check for check in self.checks if check is not self.worst]
                rest = (
                    '<details style="margin-top:.5em"><summary style="cursor:pointer">'
                    f"The other {len(others)} checks</summary>{_rows(others)}</details>"
                )
            body.append(listing)
        if self.advice:
            body.append(f'<p class="advice" style="margin:.6em 0 0;font-weight:600">{_escape(self.advice)}</p>')
        if self.mistake:
            body.append(
                '<p class="mistake" style="margin:.6em 0 0;padding:.5em .8em;border-left:3px solid currentColor">'
                f"Your answer is what you get <strong>{_escape(self.mistake.name)}</strong>. {_escape(self.mistake.hint)}</p>"
            )
        for text, kind in ((self.differs, "differs"), (self._looks_like(), "lead")):
            if text:
                body.append(f'<p class="{kind}" style="margin:.6em 0 0">{_escape(text)}</p>')
        picture = self.worst.picture() if wrong and self.worst.picture else None
        if picture is not None:
            body.append(f'<div style="margin-top:.6em">{picture._repr_html_()}</div>')
        body.append(rest)
        if self.state in ("fail", "crash") and self.worst.seed is not None:
            replay = f'checks.grade("{self.name}", {self.exercise.function}, seed={self.worst.seed})'
            body.append(
                '<details style="margin-top:.5em"><summary style="cursor:pointer">Look at this case again</summary>'
                f"In a cell of your own: <code>{_escape(replay)}</code></details>"
            )
        if self.printed and self.state in ("fail", "crash"):
            body.append(
                '<details style="margin-top:.5em"><summary style="cursor:pointer">What your code printed</summary>'
                f'<pre style="max-height:12em;overflow:auto">{_escape(self.printed)}</pre></details>'
            )
        seconds = (
            f'<span style="opacity:.7;font-weight:400">{self.seconds:.2f} s</span>' if self.state != "todo" else ""
        )
        return (
            f'<section data-check="{self.name}" data-state="{self.state}" role="status" aria-live="polite" '
            f'aria-label="{_escape(label)}" style="--verdict:light-dark({light},{dark});border:1px solid var(--verdict);'
            'border-left-width:6px;border-radius:6px;padding:.6em .9em;font-size:.95rem;line-height:1.45">'
            f'<div style="font-weight:600"><span style="color:var(--verdict)"><span aria-hidden="true">{glyph}</span> {word}</span>'
            f" &nbsp;<code>{self.name}</code> &nbsp;{seconds}</div>"
            f"<div>{_escape(summary)}</div>{''.join(body)}</section>"
        )


def _rows(checks: Iterable[Check]) -> str:
    rows, last = "", ""
    for check in checks:
        rows += _row(check, "The same." if check.message == last else check.message)
        last = check.message
    return f'<ul style="list-style:none;margin:.4em 0 0;padding:0">{rows}</ul>'


def _row(check: Check, said: str) -> str:
    glyph, word, light, dark = STATES[check.status]
    message = f"<br><span>{_escape(_sentence(said))}</span>" if check.message else ""
    return (
        f'<li style="margin:.3em 0;padding-left:1.6em;text-indent:-1.6em"><span style="color:light-dark({light},{dark});'
        f'font-weight:700;display:inline-block;width:1.6em;text-indent:0" role="img" aria-label="{word.lower()}">{glyph}</span>'
        f'<span style="text-indent:0">{_escape(_sentence(check.title))}{message}</span></li>'
    )


def _escape(text: str) -> str:
    """HTML-safe, with `code` in code elements."""
    parts = html.escape(text, quote=True).split("`")
    return "".join(part if i % 2 == 0 else f"<code>{part}</code>" for i, part in enumerate(parts))


def _sentence(text: str) -> str:
    """A capital letter at the start, unless the word is code, as `x` or a name with an underscore is."""
    return text if not text or text[0] == "`" or "_" in text.split(" ")[0] else text[0].upper() + text[1:]


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

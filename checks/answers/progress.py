"""Where the learner stands in the course: computed from their code, not from a flag.

A verdict is remembered under the text of the answer it is about, in `.progress.json` beside the notebooks. Looking it up
reads the notebook as it is on disk: an answer that has changed since, or was never graded, counts as not passed until it
is graded again. Deleting the file loses nothing that `python -m checks` does not bring back.
"""

import ast
import contextlib
import hashlib
import html
import inspect
import json
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from checks.answers.notebook import function_text, notebook_path, read, write_whole
from checks.catalogue import LABS
from checks.core.report import Report

__all__ = ["Standing", "record", "standing", "strip"]


@dataclass(frozen=True)
class Standing:
    """One lab: how many of its exercises (stretch not counted) pass as they are on disk, and how many there are."""

    lab: str
    passed: int
    needed: int

    @property
    def word(self) -> str:
        """How far it is: "done", "begun" or "open"."""
        return "done" if self.needed and self.passed == self.needed else "begun" if self.passed else "open"


def record(reports: Sequence[Report], answers: Sequence[Any]) -> None:
    """Remember verdicts under the texts of the answers they are about. Never raises: progress is a convenience."""
    if not reports:
        return
    path = _file(reports[0].exercise.lab)
    known = _load(path)
    for report, answer in zip(reports, answers):
        with contextlib.suppress(OSError, TypeError, SyntaxError, ValueError):
            known[report.name] = {"answer": _digest(inspect.getsource(inspect.unwrap(answer))), "state": report.state}
    with contextlib.suppress(OSError):
        write_whole(path, json.dumps(known, indent=1, sort_keys=True))  # two labs may be open


def standing(lab: str) -> Standing:
    """How far a lab is, from its notebook and the verdicts remembered about exactly this text."""
    names = LABS[lab].needed
    known, passed = _load(_file(lab)), 0
    try:
        text = read(notebook_path(lab))
    except (OSError, UnicodeDecodeError, SyntaxError):
        text = ""
    for name in names:
        source, verdict = function_text(text, name), known.get(f"{lab}.{name}")
        with contextlib.suppress(SyntaxError, TypeError, KeyError, ValueError):
            passed += verdict["state"] == "pass" and _digest(source) == verdict["answer"]
    return Standing(lab, passed, len(names))


def strip(here: str = "") -> str:
    """The whole course in one line of HTML: a word and a number for each lab, the present one marked."""
    cells = []
    for lab in LABS:
        one = standing(lab)
        if not one.needed:
            continue
        glyph = {"done": "●", "begun": "◐", "open": "○"}[one.word]
        label = f"lab {lab}, {LABS[lab].title}: {one.passed} of {one.needed} exercises passed"
        current = ' aria-current="true"' if lab == here else ""
        edge = "2px solid currentColor" if lab == here else "2px solid transparent"
        cells.append(
            f'<li data-lab="{lab}" data-standing="{one.word}"{current} title="{html.escape(label)}" '
            f'aria-label="{html.escape(label)}" style="padding:.1em .45em;border-bottom:{edge}">'
            f'<span aria-hidden="true">{lab} {glyph} {one.passed}/{one.needed}</span></li>'
        )
    return (
        '<ol aria-label="Where you stand in the course" style="list-style:none;display:flex;flex-wrap:wrap;gap:.2em;'
        f'margin:.6em 0;padding:0;font-size:.9rem">{"".join(cells)}</ol>'
    )


def _file(lab: str):
    return notebook_path(lab).parent / ".progress.json"


def _load(path) -> dict[str, Any]:
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        return known if isinstance(known, dict) else {}
    except (OSError, ValueError):
        return {}


def _digest(source: str) -> str:
    """A digest of a function's code, the same from the notebook's file and from the running cell."""
    (node,) = ast.parse(textwrap.dedent(source)).body
    if not isinstance(node, ast.Assign):  # a lambda with a name
        node.decorator_list = [d for d in node.decorator_list if not ast.unparse(d).startswith("app.")]
    return hashlib.sha256(ast.unparse(node).encode()).hexdigest()[:20]

"""What every lab shows besides verdicts: its header, predictions, hints, the solution on request, and the way out."""

import html
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import marimo as mo

from checks.answers import progress
from checks.answers.carry import solution_module
from checks.answers.notebook import answer_source, notebook_path
from checks.catalogue import LABS
from checks.core.exercise import find, lab_exercises
from checks.core.grade import latest
from checks.core.report import STATES
from checks.show.glossary import GLOSSARY, anchor, words_of
from msda_core import device

__all__ = ["closing", "header", "hints", "predict", "reveal", "stand_in", "when_passed"]

#: Whether this is the reading edition (`python -m checks render`), in which nothing can be clicked that computes.
_READING = bool(os.environ.get("MSDA_READING"))


def header(lab: str, *, able: Sequence[str], minutes: int, gpu: str):
    """The first thing a learner reads: what they will be able to do, how long it takes, what a GPU changes.

    Args:
        lab: "01".
        able: endings of "After this lab you can …".
        minutes: for someone new to GPUs.
        gpu: a sentence.
    """
    items = "\n".join(f"- {item}" for item in able)
    text = mo.md(
        f"# {lab} · {LABS[lab].title}\n\nAfter this lab you can\n\n{items}\n\n"
        f"**{minutes} minutes** · {gpu} · running on: {device.describe()}"
    )
    if not any(exercise.guarded for exercise in lab_exercises(lab)):
        return text
    if device.NO_TRITON:
        return mo.vstack(
            [text, mo.callout(mo.md(f"{device.NO_TRITON} You can read on; nothing is graded."), kind="warn")]
        )
    from msda_core import machine

    machine.warm()
    if device.INTERPRETED:
        machine.protect()  # a kernel launched from any cell is stopped before it can hurt the notebook
    return text


def predict(question: str, choices: Sequence[str]):
    """Ask before showing. Give the result to `reveal` in the next cell."""
    return mo.ui.radio(options=list(choices), label=f"**Predict.** {question}")


def reveal(prediction: Any, right: str, because: Mapping[str, str]):
    """The answer to a prediction, with the explanation for the choice that was made; before a choice, an invitation.

    Args:
        prediction: what `predict` returned.
        right: the right choice.
        because: choice → what it shows about the one who made it; every choice has one.
    """
    missing = set(prediction.options) - set(because)
    if missing or right not in because:
        raise ValueError(f"every choice needs an explanation, missing {sorted(missing) or [right]}.")
    if prediction.value is None and _READING:
        return mo.accordion({"The answer": mo.md(f"**{right}**: {because[right]}")})
    if prediction.value is None:
        return mo.callout(mo.md("Choose above; then the answer shows here."), kind="neutral")
    if prediction.value == right:
        return mo.callout(mo.md(f"✓ **As you predicted.** {because[right]}"), kind="success")
    return mo.callout(mo.md(f"✗ **Not so.** {because[prediction.value]}\n\n**{right}**: {because[right]}"), kind="warn")


def hints(name: str):
    """Three hints and the solution of an exercise, each behind a click of its own."""
    exercise = find(name)
    steps = {
        f"Hint {i}: {kind}": mo.md(text)
        for i, (kind, text) in enumerate(zip(("a question", "an idea", "a sketch"), exercise.hints), start=1)
    }
    steps["Show me the solution"] = mo.lazy(lambda: _solution(exercise))
    return mo.accordion(steps)


def _solution(exercise):
    source = answer_source(exercise.function, solution_module(exercise.lab))
    return mo.md(f"```python\n{source}```")


def stand_in(name: str, answer: Callable[[], Any]) -> tuple[Any, str]:
    """The learner's function if it passes its checks, else the solution's: for figures that are drawn with an answer.

    Args:
        name: the exercise, "03.sectors".
        answer: as for `grade`, `lambda: sectors`.

    Returns:
        The function, and whose it is in a few words: "your `sectors`".
    """
    exercise = find(name)
    if latest(name, answer).state == "pass":
        return answer(), f"your `{exercise.function}`"
    return getattr(solution_module(exercise.lab), exercise.function), f"the solution's `{exercise.function}`"


def when_passed(name: str, answer: Callable[[], Any], draw: Callable[[Any], Any]):
    """draw(answer) once it passes its checks, and until then a sentence: for what only the learner's own code can show.

    Args:
        name: the exercise, "04.add_kernel".
        answer: as for `grade`, `lambda: add_kernel`.
        draw: takes the learner's function and returns what to show.
    """
    exercise = find(name)
    if exercise.guarded and device.NO_TRITON:
        return mo.callout(mo.md(device.NO_TRITON), kind="neutral")
    if latest(name, answer).state != "pass":
        return mo.callout(
            mo.md(f"This shows your own `{exercise.function}`, as soon as it passes its checks."), kind="neutral"
        )
    return draw(answer())


def words(lab: str):
    """The course's terms that a lab uses, each with its definition behind a click."""
    text = notebook_path(lab).read_text(encoding="utf-8") if notebook_path(lab).exists() else ""
    items = "".join(
        f'<dt style="font-weight:600"><a href="glossary.html#{anchor(term)}">{html.escape(term)}</a></dt>'
        f'<dd style="margin:0 0 .4em 1.2em">{html.escape(GLOSSARY[term])}</dd>'
        for term in words_of(text)
    )
    if not _READING:  # only there is a glossary page to lead to
        items = re.sub(r"</?a[^>]*>", "", items)
    return mo.Html(
        f'<details data-words="{lab}"><summary style="cursor:pointer">Words of this lab</summary><dl>{items}</dl></details>'
    )


def closing(lab: str, answers: Callable[[], Sequence[Any]]):
    """What was passed, and the door to the next lab.

    Args:
        lab: "01".
        answers: returns the answers in the order of the exercises, as `lambda: (to_pixels, corner_weights)`.
    """
    exercises = lab_exercises(lab)
    try:
        given = list(answers())
    except NameError as error:
        return mo.callout(mo.md(f"One answer is not there: {error}. Its verdict above says what to do."), kind="warn")
    reports = [latest(exercise.name, answer) for exercise, answer in zip(exercises, given, strict=True)]
    rows = "".join(
        f"<li>{STATES[r.state][0]} {STATES[r.state][1]} <code>{r.exercise.function}</code>"
        f"{' (stretch)' if r.exercise.stretch else ''}</li>"
        for r in reports
    )
    progress.record(reports, given)
    needed = [r for r in reports if not r.exercise.stretch]
    passed = sum(r.state == "pass" for r in needed)
    following = next(iter(list(LABS)[list(LABS).index(lab) + 1 :]), None)
    door = (
        f"<p>Next: <strong>{following} · {html.escape(LABS[following].title)}</strong>. "
        f"<code>uv run marimo edit labs/{LABS[following].notebook}.py</code></p>"
        if following
        else "<p>That was the last lab.</p>"
    )
    done = "All of it. " if passed == len(needed) else ""
    return mo.Html(
        f'<section data-closing="{lab}" data-passed="{passed}" data-of="{len(needed)}" aria-label="What you passed in this lab">'
        f"<p><strong>{done}{passed} of {len(needed)} exercises passed in lab {lab}.</strong></p>"
        f'<ul style="list-style:none;padding:0">{rows}</ul>{progress.strip(lab)}{words(lab).text}{door}</section>'
    )

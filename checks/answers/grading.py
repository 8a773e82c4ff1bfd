"""A whole lab at once: every exercise of a notebook, a file, or the solutions, graded in order."""

from collections.abc import Callable
from pathlib import Path

from checks.answers import progress
from checks.answers.carry import Found, load_answers, solution_module
from checks.core.exercise import lab_exercises
from checks.core.grade import grade
from checks.core.report import Check, Report

__all__ = ["grade_lab"]


def grade_lab(
    lab: str,
    file: Path | None = None,
    solutions: bool = False,
    seed: int | None = None,
    loaded: Callable[[], None] | None = None,
) -> list[Report]:
    """Grade every exercise of a lab, from its notebook, from a file, or from the solutions.

    `loaded` is called when the file has run, before anything is graded.
    """
    if solutions:
        module = solution_module(lab, f"graded_lab{lab}")
        answers = {e.function: Found(getattr(module, e.function)) for e in lab_exercises(lab)}
    else:
        answers = load_answers(lab, file)
    if loaded is not None:
        loaded()
    reports = []
    for exercise in lab_exercises(lab):
        found = answers[exercise.function]
        if found.reason:
            check = Check("defined", "the function is there", found.state, found.reason)
            reports.append(Report(exercise, found.state, [check]))
        else:
            reports.append(grade(exercise.name, found.function, seed=seed))
    if not solutions and file is None:
        progress.record(reports, [answers[exercise.function].function for exercise in lab_exercises(lab)])
    return reports

"""The grader: meets a learner's function, runs it where it can do no harm, and says what it would like to know.

A notebook uses the names below; `python -m checks` is the same grader in a terminal.
"""

from checks.answers.carry import carried, underneath, watch
from checks.core.grade import grade

__all__ = [
    "carried",
    "closing",
    "grade",
    "header",
    "hints",
    "predict",
    "reveal",
    "stand_in",
    "underneath",
    "watch",
    "when_passed",
]


def __getattr__(name: str):
    """The parts that draw in a notebook need marimo; grading in a terminal does not."""
    if name in ("closing", "header", "hints", "predict", "reveal", "stand_in", "when_passed"):
        from checks.show import lesson

        return getattr(lesson, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

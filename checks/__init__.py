"""The grader: meets a learner's function, runs it where it can do no harm, and says what it would like to know.

A notebook uses the names below; `python -m checks` is the same grader in a terminal. Each name is loaded when it is first
used: listing the course needs no torch, and grading in a terminal no marimo.
"""

import importlib

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

_HOMES = {
    "checks.answers.carry": ("carried", "underneath", "watch"),
    "checks.core.grade": ("grade",),
    "checks.show.lesson": ("closing", "header", "hints", "predict", "reveal", "stand_in", "when_passed"),
}


def __getattr__(name: str):
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)

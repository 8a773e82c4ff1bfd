"""python -m checks: see `checks.cli`."""

import sys

from checks.cli import main

__all__ = ["main"]


def __getattr__(name: str):
    if name == "grade_lab":  # imports torch, for which --help does not wait
        from checks.answers.grading import grade_lab

        return grade_lab
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if __name__ == "__main__":
    sys.exit(main())

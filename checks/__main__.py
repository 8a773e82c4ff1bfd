"""python -m checks: grade labs in a terminal.

    python -m checks                     every lab
    python -m checks 1 2 --json          two labs, as JSON
    python -m checks 1 --file mine.py    a notebook, or a module with the same names, somewhere else
    python -m checks 1 --solutions       the solutions instead of the notebook
    python -m checks 1 --timing          how long a verdict takes: median of several runs, on the solutions
    python -m checks doctor              is this installation sound?
    python -m checks reset 1 [to_pixels] put a stub back; your file is copied first
    python -m checks class DIR --csv OUT grade a folder of submissions, each in a limited process
    python -m checks render OUT          the reading edition: every lab as a static page [--solved]

Exit status: 0 if nothing asked for is failed, crashed or to do; 1 if something is; 2 if the question was wrong.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

from checks.answers import notebook, progress
from checks.answers.carry import Found, load_answers, solution_module
from checks.catalogue import LABS
from checks.classroom import run as classroom
from checks.core.exercise import lab_exercises
from checks.core.grade import grade
from checks.core.report import Check, Report, as_json, as_text

TIMING_RUNS = 5


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    commands = {"doctor": _doctor, "reset": _reset, "class": classroom.main, "render": _render}
    try:
        if arguments and arguments[0] in commands:
            return commands[arguments[0]](arguments[1:])
        return _grade(arguments)
    except ValueError as error:
        print(f"checks: {error}", file=sys.stderr)
        return 2


def _grade(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m checks", description="Grade labs. Other commands: doctor, reset, class, render."
    )
    parser.add_argument("labs", nargs="*", metavar="LAB", help="lab numbers; all of them if none is given")
    parser.add_argument("--json", action="store_true", help="print JSON, version 1")
    parser.add_argument("--file", type=Path, help="grade this file instead of the lab's notebook")
    parser.add_argument("--solutions", action="store_true", help="grade the solutions")
    parser.add_argument("--seed", type=int, help="replay the draws of this seed")
    parser.add_argument("--timing", action="store_true", help="measure how long a verdict takes")
    options = parser.parse_args(arguments)
    labs = [_lab(word) for word in options.labs] or [lab for lab in LABS if lab_exercises(lab)]
    if options.file is not None and len(labs) != 1:
        raise ValueError(f"--file needs exactly one lab, as in `python -m checks 1 --file {options.file}`.")
    if options.file is not None and not options.file.exists():
        raise ValueError(f"there is no file {options.file}.")
    if options.timing:
        return _timing(labs)
    reports = {lab: grade_lab(lab, options.file, options.solutions, options.seed) for lab in labs}
    print(json.dumps(as_json(reports), indent=2) if options.json else as_text(reports))
    return int(
        any(r.state in ("fail", "crash", "todo") and not r.exercise.stretch for rs in reports.values() for r in rs)
    )


def grade_lab(lab: str, file: Path | None = None, solutions: bool = False, seed: int | None = None) -> list[Report]:
    """Grade every exercise of a lab, from its notebook, from a file, or from the solutions."""
    if solutions:
        module = solution_module(lab, f"graded_lab{lab}")
        answers = {e.function: Found(getattr(module, e.function)) for e in lab_exercises(lab)}
    else:
        answers = load_answers(lab, file)
    reports = []
    for exercise in lab_exercises(lab):
        found = answers[exercise.function]
        if found.reason:
            state = "todo" if "has no function" in found.reason else "crash"
            check = Check("defined", "the function is there", state, found.reason)
            reports.append(Report(exercise, state, [check]))
        else:
            reports.append(grade(exercise.name, found.function, seed=seed))
    if not solutions and file is None:
        progress.record(reports, [answers[exercise.function].function for exercise in lab_exercises(lab)])
    return reports


def _lab(word: str) -> str:
    lab = word.zfill(2)
    if lab not in LABS:
        raise ValueError(
            f"there is no lab {word!r}. Labs are 1 to {len(LABS)}; other commands are doctor, reset, class and render."
        )
    return lab


def _timing(labs: list[str]) -> int:
    """Median seconds to a verdict, per exercise and over all: answered rightly, and with a few of the known mistakes."""
    rows = []
    for lab in labs:
        module = solution_module(lab, f"graded_lab{lab}")
        for exercise in lab_exercises(lab):
            right = [grade(exercise.name, getattr(module, exercise.function)).seconds for _ in range(TIMING_RUNS)]
            some = exercise.mistakes[:: max(1, len(exercise.mistakes) // TIMING_RUNS)][:TIMING_RUNS]
            wrong = [grade(exercise.name, mistake).seconds for mistake in some]
            rows.append((exercise.name, statistics.median(right), statistics.median(wrong) if wrong else None))
    print(f"{'exercise':<32}{'right':>9}{'wrong':>9}   (median of {TIMING_RUNS} runs, seconds)")
    for name, right, wrong in rows:
        print(f"{name:<32}{right:>9.3f}{wrong if wrong is not None else float('nan'):>9.3f}")
    middle = statistics.median(row[1] for row in rows)
    slowest = max(rows, key=lambda row: max(row[1], row[2] or 0))
    print(f"{'median':<32}{middle:>9.3f}   slowest: {slowest[0]}")
    return 0


def _doctor(arguments: list[str]) -> int:
    argparse.ArgumentParser(prog="python -m checks doctor", description="Is this installation sound?").parse_args(
        arguments
    )
    from checks.kernel.doctor import examine

    return examine()


def _render(arguments: list[str]) -> int:
    from checks.show.reading import main as render  # draws with marimo, which grading in a terminal does not need

    return render(arguments)


def _reset(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m checks reset", description="Put stubs back; keeps a copy of your file."
    )
    parser.add_argument("lab", metavar="LAB")
    parser.add_argument("exercise", nargs="?", metavar="EXERCISE", help="one function; all of the lab if not given")
    parser.add_argument("--file", type=Path, help="another file than the lab's notebook")
    options = parser.parse_args(arguments)
    lab = _lab(options.lab)
    path = options.file or notebook.notebook_path(lab)
    if not path.exists():
        raise ValueError(f"there is no file {path}.")
    only = options.exercise.split(".")[-1] if options.exercise else None
    text = path.read_text(encoding="utf-8")
    fresh = notebook.reset(text, lab, solution_module(lab), only)
    if fresh == text:
        print(f"{path.name} already has its stubs; nothing was changed.")
        return 0
    copy = notebook.backup(path)
    path.write_text(fresh, encoding="utf-8")
    print(f"{path.name}: {only or 'every exercise'} is back at its stub. Your file as it was: {copy}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

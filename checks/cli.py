"""The command line: one parser for every command, and one sentence with exit status 2 for every wrong question.

Commands import what they need when they are called: `--help` waits for neither torch nor Triton.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from checks.catalogue import LABS, lab_number

__all__ = ["main"]

TIMING_RUNS = 5
DESCRIPTION = """Grade labs in a terminal.

  python -m checks                     every lab
  python -m checks 1 2 --json          two labs, as JSON
  python -m checks 1 --file mine.py    a notebook, or a module with the same names, somewhere else
  python -m checks 1 --solutions       the solutions instead of the notebook
  python -m checks 1 --timing          how long a verdict takes: median of several runs, on the solutions
  python -m checks doctor              is this installation sound?
  python -m checks reset 1 [to_pixels] put a stub back; your file is copied first
  python -m checks class DIR --csv OUT grade a folder of submissions, each in a limited process
  python -m checks render OUT          the reading edition: every lab as a static page

Each command has its own --help. Exit status: 0 if nothing asked for is failed, crashed or to do; 1 if something is;
2 if the question was wrong; 130 if it was interrupted."""


class _Parser(argparse.ArgumentParser):
    """Raises ValueError where argparse would print its usage and leave."""

    def error(self, message: str):
        raise ValueError(f"{message[:1].lower()}{message[1:]}. `{self.prog} --help` lists the options.")


def parser() -> argparse.ArgumentParser:
    """The parser of all commands; `grade` is the one that needs no name."""
    top = _Parser(prog="python -m checks", description=DESCRIPTION, formatter_class=argparse.RawTextHelpFormatter)
    commands = top.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    add = lambda name, run, text: _added(commands, name, run, text)  # noqa: E731

    grade = add("grade", _grade, "Grade labs; the command that needs no name.")
    grade.add_argument("labs", nargs="*", metavar="LAB", help="lab numbers; all of them if none is given")
    grade.add_argument("--json", action="store_true", help="print JSON, version 1, and nothing else")
    grade.add_argument("--seed", type=_seed, help="replay the draws of this seed")
    what = grade.add_mutually_exclusive_group()
    what.add_argument("--file", type=Path, help="grade this file instead of the lab's notebook")
    what.add_argument("--solutions", action="store_true", help="grade the solutions")
    what.add_argument("--timing", action="store_true", help="measure how long a verdict takes")

    add("doctor", _doctor, "Is this installation sound?")

    reset = add("reset", _reset, "Put stubs back; keeps a copy of your file.")
    reset.add_argument("lab", metavar="LAB")
    reset.add_argument("exercise", nargs="?", metavar="EXERCISE", help="one function; all of the lab if not given")
    reset.add_argument("--file", type=Path, help="another file than the lab's notebook")

    from checks.classroom import command

    command.arguments(add("class", command.run, "Grade a folder of submissions, each in a limited process of its own."))

    render = add("render", _render, "Render the labs as static pages.")
    render.add_argument("out", type=Path, metavar="OUT", help="a folder for the pages")
    render.add_argument("--solved", action="store_true", help="with the solutions in their cells")
    render.add_argument("--labs", nargs="+", metavar="LAB", help="lab numbers; all labs if not given")
    return top


def _added(commands, name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
    made = commands.add_parser(name, description=text, help=text)
    made.set_defaults(run=run)
    return made


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line asks. Returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        top = parser()
        commands = ("grade", "doctor", "reset", "class", "render")
        if not arguments or arguments[0] not in (*commands, "-h", "--help"):
            arguments = ["grade", *arguments]
        options = top.parse_args(arguments)
        _somewhere_to_write()
        return options.run(options)
    except ValueError as error:
        print(f"checks: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"checks: {where}{error.strerror or error}.", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("checks: interrupted.", file=sys.stderr)
        return 130
    except SystemExit as end:  # --help
        return end.code if isinstance(end.code, int) else 0


def _lab(word: str) -> str:
    """The number of a lab; where a command may have been meant, the message names them."""
    try:
        return lab_number(word)
    except ValueError:
        labs = f"Labs are 1 to {len(LABS)}; other commands are doctor, reset, class and render."
        raise ValueError(f"there is no lab {word!r}. {labs}") from None


def _seed(text: str) -> int:
    try:
        seed = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"a seed is a whole number, got {text!r}") from None
    if not 0 <= seed < 1 << 63:
        raise argparse.ArgumentTypeError(f"a seed is between 0 and 2**63 - 1, got {text}")
    return seed


def _device() -> None:
    """Fail in one sentence where kernels are to run on a GPU that is not there."""
    from msda_core import device  # raises ValueError about MSDA_DEVICE

    if device.ACTIVE.type == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise ValueError(
                f"TRITON_INTERPRET={os.environ.get('TRITON_INTERPRET')} asks for a GPU, but torch finds no CUDA GPU. "
                "Leave it unset to run kernels in the interpreter."
            )


def _somewhere_to_write() -> None:
    """Give Triton another place for its cache where the home cannot be written to."""
    home = Path(os.path.expanduser("~"))
    cache = home / ".triton"
    if "TRITON_CACHE_DIR" not in os.environ and not os.access(cache if cache.exists() else home, os.W_OK):
        os.environ["TRITON_CACHE_DIR"] = os.path.join(
            tempfile.gettempdir(), f"triton-{os.getuid() if os.name == 'posix' else 0}"
        )


@contextlib.contextmanager
def _silence(wanted: bool) -> Iterator[Callable[[str], None]]:
    """Send to standard error whatever is printed in a block, also by other languages and processes.

    Gives a function that prints to standard output all the same.
    """
    say = lambda text: print(text, flush=True)  # noqa: E731
    if not wanted:
        yield say
        return
    stdout = sys.stdout
    try:
        real = stdout.fileno() == 1
    except (OSError, ValueError, AttributeError):
        real = False  # a test's
    stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr

    def say_alone(text: str) -> None:
        if not real:
            print(text, file=stdout, flush=True)
            return
        data = f"{text}\n".encode()
        while data:
            data = data[os.write(kept, data) :]

    try:
        yield say_alone
    finally:
        sys.stdout = stdout
        if not real:
            os.dup2(kept, 1)  # as the program's own, it stays quiet until the process ends: threads may print late
        os.close(kept)


def _grade(options: argparse.Namespace) -> int:
    labs = [_lab(word) for word in options.labs]
    if options.timing and (options.json or options.seed is not None):
        raise ValueError("--timing goes with neither --json nor --seed: it prints its own table.")
    if options.file is not None:
        if len(labs) != 1:
            raise ValueError(f"--file needs exactly one lab, as in `python -m checks 1 --file {options.file}`.")
        _is_file(options.file)
    _device()
    with _silence(options.json) as say:
        from checks.answers.grading import grade_lab
        from checks.core.report import as_json, as_text

        labs = labs or list(LABS)
        if options.timing:
            return _timing(labs)
        reports = {lab: grade_lab(lab, options.file, options.solutions, options.seed) for lab in labs}
        say(json.dumps(as_json(reports), indent=2) if options.json else as_text(reports))
    return int(
        any(r.state in ("fail", "crash", "todo") and not r.exercise.stretch for rs in reports.values() for r in rs)
    )


def _is_file(path: Path) -> None:
    if path.is_dir():
        raise ValueError(f"{path} is a folder. Name the notebook in it.")
    if not path.exists():
        raise ValueError(f"there is no file {path}.")


def _timing(labs: list[str]) -> int:
    """Median seconds to a verdict, per exercise and over all: answered rightly, and with a few of the known mistakes."""
    from checks.answers.carry import solution_module
    from checks.core.exercise import lab_exercises
    from checks.core.grade import grade

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


def _doctor(options: argparse.Namespace) -> int:
    _device()
    from checks.kernel.doctor import examine

    return examine()


def _reset(options: argparse.Namespace) -> int:
    from checks.answers import notebook
    from checks.answers.carry import solution_module

    lab = _lab(options.lab)
    path = options.file or notebook.notebook_path(lab)
    _is_file(path)
    only = options.exercise.split(".")[-1] if options.exercise else None
    try:
        text = notebook.read(path)
    except (UnicodeDecodeError, SyntaxError):
        raise ValueError(f"{path} cannot be read: it is no text in UTF-8.") from None
    fresh = notebook.reset(text, lab, solution_module(lab), only)
    if fresh == text:
        print(f"{path.name} already has its stubs; nothing was changed.")
        return 0
    copy = notebook.backup(path)
    notebook.write_whole(path, fresh)
    print(f"{path.name}: {only or 'every exercise'} is back at its stub. Your file as it was: {copy}")
    return 0


def _render(options: argparse.Namespace) -> int:
    from checks.answers import notebook
    from checks.core.exercise import lab_exercises
    from checks.show import reading  # draws with marimo, which grading in a terminal does not need

    if options.out.exists() and not options.out.is_dir():
        raise ValueError(f"{options.out} is a file. Name a folder for the pages.")
    there = [lab for lab in LABS if lab_exercises(lab) and notebook.notebook_path(lab).exists()]
    labs = [word.zfill(2) for word in options.labs] if options.labs else there
    unknown = [lab for lab in labs if lab not in there]
    if unknown:
        raise ValueError(f"there is no lab {unknown[0]!r}. Labs are {', '.join(there)}.")
    written = reading.render(options.out, labs, options.solved)
    print(f"{len(written)} pages in {options.out}; begin with {written[-2].name}.")
    return 0

"""The process that grades one lab of one submission: limits itself, grades, and writes one message.

Forked from a worker that has imported everything, so it begins with a copy of that memory, and nothing that it does reaches
the worker or the next submission. Its standard output is no channel of results: an answer may print what it likes.
"""

import ast
import contextlib
import ctypes
import faulthandler
import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from checks.classroom import audit
from checks.core import intact

__all__ = ["run"]

TEXT_LIMIT = 4_000  # characters of an answer that are kept, as an example of a mistake


def run(
    lab: str, home: Path, file: Path, results: int, noted: int, output: int, nonce: str, limits: dict[str, Any]
) -> None:
    """Become the process of a submission, grade, report, and end. Does not return.

    Args:
        lab: "01".
        home: a folder of its own.
        file: the notebook.
        results, noted, output: pipes for the result, for what is noticed (`checks.classroom.audit`), and for what it prints.
        nonce: what a result begins with, to be told from a forged one.
        limits: `checks.classroom.limits.Limits` as a dict, and "user_processes".
    """
    status = 70
    try:
        _confine(home, file, (results, noted), output, limits)
        faulthandler.enable()
        note = audit.install(noted)
        graded = _graded(lab, file)
        for name in intact.changed():
            note(audit.DOUBT, f"replaced {name}, which was put back")
        message = json.dumps({"exercises": graded})
        with os.fdopen(results, "wb") as channel:
            channel.write(f"{nonce}\n{message}\n".encode())
        status = 0
    except BaseException as error:
        with contextlib.suppress(BaseException):
            import traceback

            traceback.print_exception(error, file=sys.__stderr__)
            sys.__stderr__.flush()
    finally:
        os._exit(status)


def _confine(home: Path, file: Path, kept: tuple[int, ...], output: int, limits: dict[str, Any]) -> None:
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for one in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else range(3, 256):
        if int(one) > 2 and int(one) not in kept:
            with contextlib.suppress(OSError):
                os.close(int(one))
    for one in kept:
        os.set_inheritable(one, False)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE, which the worker switched off for itself
    os.environ.update(
        HOME=str(home),
        TMPDIR=str(home),
        TRITON_CACHE_DIR=str(home / "triton"),
        MPLCONFIGDIR=str(home / "matplotlib"),
        MSDA_LABS=str(file.parent),  # carry-over reads the submission's own earlier labs
    )
    tempfile.tempdir = None
    os.chdir(home)
    import resource

    megabyte = 1_000_000
    wanted = {
        resource.RLIMIT_AS: limits["memory_mb"] * megabyte,
        resource.RLIMIT_FSIZE: limits["output_mb"] * megabyte,
        resource.RLIMIT_CPU: int(limits["seconds"]) + 1,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NPROC: limits["user_processes"],
    }
    for what, amount in wanted.items():
        hard = resource.getrlimit(what)[1]
        amount = amount if hard == resource.RLIM_INFINITY else min(amount, hard)
        resource.setrlimit(what, (amount, amount))


def _graded(lab: str, file: Path) -> list[dict[str, Any]]:
    from checks.answers.grading import grade_lab
    from checks.answers.notebook import function_text, read

    text, graded, before = "", [], intact.Snapshot(wide=True)
    with contextlib.suppress(OSError, ValueError, SyntaxError):
        text = read(file)
    reports = grade_lab(lab, file, loaded=before.restore)
    before.restore()
    for report in reports:
        one = report.json()
        one["words"] = report.text()
        with contextlib.suppress(Exception):
            tree = ast.parse(function_text(text, report.exercise.function))
            one["code"] = _anonymous(tree)[:TEXT_LIMIT]
        graded.append(one)
    return graded


def _anonymous(tree: ast.Module) -> str:
    """A function's code without what tells whose it is, and without what is given: comments, docstrings, decorators."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            node.decorator_list = [one for one in node.decorator_list if not ast.unparse(one).startswith("app.")]
            if ast.get_docstring(node) is not None:
                node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)

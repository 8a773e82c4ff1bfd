"""Code that carries itself forward: finds the learner's function in an earlier notebook, and judges whether to use it.

In a later lab, `from checks.answers.carry import lab01` gives an object whose functions are the learner's own, read from their
notebook as it is on disk now. A function that does not pass its lab's checks, or cannot be read, is stood in for by the
solution; `underneath` says which, and why. Nothing is copied, and an edit takes effect without a restart.
"""

import ast
import contextlib
import importlib.util
import linecache
import re
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

from checks.answers.cells import complete, defined_twice
from checks.answers.notebook import notebook_path, read
from checks.catalogue import LABS, lab_number
from checks.core import watch as watching
from checks.core.call import call
from checks.core.exercise import Exercise, find, lab_exercises, provide
from checks.core.grade import grade
from checks.core.panel import code_html

__all__ = ["Carried", "Found", "carried", "load_answers", "replaced", "solution_module", "underneath", "watch"]

IMPORT_LIMIT = 20.0  # seconds; a notebook's functions load in a few milliseconds, its imports may take longer


@dataclass(frozen=True)
class Found:
    """One function of a notebook: the object, or the reason why there is none, and what state that makes of it."""

    function: Any = None
    reason: str = ""
    state: str = "crash"


def load_answers(lab: str, path: Path | None = None) -> dict[str, Found]:
    """Read a lab's exercises out of a notebook, or out of a plain module such as a solution.

    The setup cell and the functions at the top level run; of other cells, the statements that these functions need.

    Args:
        lab: "01".
        path: the file; the lab's own notebook if not given.

    Returns:
        Exercise function name → `Found`. Never raises because of what the file holds.
    """
    path = notebook_path(lab) if path is None else path
    names = [exercise.function for exercise in lab_exercises(lab)]
    nothing = lambda reason: dict.fromkeys(names, Found(reason=f"{path.name} {reason}"))  # noqa: E731
    try:
        text = read(path)
        tree = ast.parse(text, str(path))
        code = compile(text, str(path), "exec")
    except FileNotFoundError:
        return dict.fromkeys(names, Found(reason=f"there is no file {path.name}."))
    except OSError as error:
        return nothing(f"cannot be read: {error.strerror}.")
    except UnicodeDecodeError:
        return nothing("cannot be read: it is no text in UTF-8.")
    except SyntaxError as error:
        line = (error.text or "").strip()[:200]
        where = f"at line {error.lineno}: `{line}`" if error.lineno else f"({error.msg})"
        where += "" if line.isascii() else f" ({error.msg})"  # a space or a quotation mark that only looks like one
        return nothing(f"has a syntax error {where}.")
    except (ValueError, RecursionError, MemoryError) as error:  # a zero byte, or ten thousand brackets
        return nothing(f"cannot be read as Python: {error or type(error).__name__}.")
    lines = text.splitlines(keepends=True)
    linecache.cache[str(path)] = (len(text), None, lines, str(path))  # as it was decoded here, for messages and inspect
    module = ModuleType(f"learner_lab{lab}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # inspect and dataclasses look a function's module up here
    _see_beside(path)
    outcome = call(lambda: exec(code, vars(module)), (), answer=_at_top_of(path), limit=IMPORT_LIMIT)
    trouble = ""
    if outcome.timeout:
        trouble = f"{path.name} does not finish loading within {IMPORT_LIMIT:g} s."
    elif outcome.error is not None:
        trouble = f"{path.name} raises {type(outcome.error).__name__} when it loads: {_said(outcome.error)}."
    errors = {}
    if not outcome.timeout:
        completed = lambda: complete(tree, vars(module), names, str(path))  # noqa: E731
        cells = call(completed, (), answer=_at_top_of(path), limit=IMPORT_LIMIT)
        errors = cells.value or {}
        if cells.timeout:
            trouble = f"what the functions of {path.name} use does not finish loading within {IMPORT_LIMIT:g} s."
        outcome.reached = outcome.reached or cells.reached
    if outcome.reached:
        reason = f"{path.name} calls {outcome.reached} when it loads, which answers are compared with."
        return dict.fromkeys(names, Found(reason=reason, state="fail"))
    return {name: _find(vars(module), name, text, tree, path, errors, trouble) for name in names}


#: Modules that notebooks imported from beside themselves: the next notebook may have another one of the same name.
_BESIDE: set[str] = set()


def _see_beside(path: Path) -> None:
    """Let a notebook import modules that lie beside it, as it can where it is open."""
    for name in _BESIDE:
        sys.modules.pop(name, None)
    _BESIDE.clear()
    for folder in [one for one in sys.path if isinstance(one, _Beside)]:
        sys.path.remove(folder)
    folder = path.resolve().parent
    if str(folder) in sys.path:
        return
    sys.path.insert(0, _Beside(folder))
    sys.path_importer_cache.pop(str(folder), None)  # a file written a moment ago is seen
    here = {one.stem for one in folder.glob("*.py")} | {one.parent.name for one in folder.glob("*/__init__.py")}
    _BESIDE.update(name for name in here if name not in sys.modules)


class _Beside(str):
    """An entry of `sys.path` that a notebook brought, to be told from the others."""


def _said(error: BaseException) -> str:
    """What an exception says, also if it cannot."""
    try:
        return str(error)
    except BaseException as another:
        return f"(its message raised {type(another).__name__})"


def _find(
    namespace: dict[str, Any],
    name: str,
    text: str,
    tree: ast.Module,
    path: Path,
    errors: dict[str, BaseException],
    trouble: str,
) -> Found:
    if defined_twice(tree, name):
        return Found(
            reason=f"two cells of {path.name} define `{name}`, so a notebook runs neither. Delete one of them."
        )
    if name in errors:
        why = f"{type(errors[name]).__name__}: {_said(errors[name])}"
        return Found(reason=f"`{name}` in {path.name} uses names of other cells, and they cannot be had: {why}.")
    if callable(namespace.get(name)) or hasattr(namespace.get(name), "fn"):
        return Found(namespace[name])
    if trouble:
        return Found(reason=trouble)
    if name in namespace:
        return Found(reason=f"`{name}` in {path.name} is no function.")
    if "app._unparsable_cell" in text and re.search(rf"(def|class) {name}\b", text):
        return Found(reason=f"the cell of `{name}` in {path.name} has a syntax error.")
    if re.search(rf"(def|class) {name}\b", text):
        return Found(
            reason=f"`{name}` in {path.name} is defined inside other code. Keep the function at the left margin of its cell."
        )
    return Found(reason=f"{path.name} has no function `{name}`. Was it renamed or deleted?", state="todo")


def _at_top_of(path: Path) -> Any:
    """Stands for a file in `call`, which finds the learner's lines by the file they are in."""
    return SimpleNamespace(__code__=compile("None", str(path), "eval"))


def solution_module(lab: str, name: str | None = None) -> ModuleType:
    """The solutions of a lab. With a name, a second copy under it, which is not watched as a reference.

    A copy calls copies: where it imports the solutions of an earlier lab, it gets a copy of those too.
    """
    if name is None:
        return importlib.import_module(f"solutions.lab{lab}")
    spec = importlib.util.find_spec(f"solutions.lab{lab}")
    module = importlib.util.module_from_spec(importlib.util.spec_from_file_location(name, spec.origin))
    sys.modules[name] = module
    module.__spec__.loader.exec_module(module)
    for attribute, value in list(vars(module).items()):
        if isinstance(value, ModuleType) and value.__name__.startswith("solutions.lab"):
            earlier = value.__name__.removeprefix("solutions.lab")
            setattr(module, attribute, solution_module(earlier, f"{name}_on_lab{earlier}"))
    return module


@dataclass(frozen=True)
class _Judged:
    function: Any
    theirs: bool
    reason: str


class Carried:
    """The functions of an earlier lab: the learner's where they pass, the solution's elsewhere."""

    def __init__(self, lab: str, path: Path | None = None):
        self._lab, self._path = lab, path
        self._stamp: Any = None
        self._found: dict[str, Found] = {}
        self._judged: dict[str, _Judged] = {}
        self._stand_in: ModuleType | None = None

    def __repr__(self) -> str:
        return f"<the functions of lab {self._lab}>"

    @watching.door
    def __getattr__(self, function: str) -> Callable:
        if function.startswith("_"):
            raise AttributeError(function)
        return self.judge(function).function

    @watching.door
    def judge(self, function: str) -> _Judged:
        """Which function is used, whose it is, and why. Reads the notebook again if it changed."""
        find(f"{self._lab}.{function}")
        if threading.current_thread().name == "learner":
            # Inside an answer's call nothing is graded; `grade` has judged what the exercise says it carries.
            return self._judged.get(function) or _Judged(self._solution(function), False, "not judged yet")
        path = self._path or notebook_path(self._lab)
        try:
            status = path.stat()
            stamp = (str(path), status.st_mtime_ns, status.st_size)
        except OSError:
            stamp = (str(path), None)
        if stamp != self._stamp:
            self._stamp, self._judged = stamp, {}
            self._found = load_answers(self._lab, path)
        if function not in self._judged:
            self._judged[function] = self._decide(function)
        return self._judged[function]

    def _decide(self, function: str) -> _Judged:
        found = self._found.get(function, Found(reason=f"lab {self._lab} has no exercise `{function}`."))
        if found.function is None:
            return _Judged(self._solution(function), False, found.reason)
        name = f"{self._lab}.{function}"
        report = grade(name, found.function, diagnose=False, progress=False)
        if report.state == "pass":
            return _Judged(found.function, True, f"passes its {len(report.checks)} checks")
        reasons = {
            "todo": "it is not written yet.",
            "not_run": f"it could not be checked here: {report.worst.message}",
        }
        return _Judged(
            self._solution(function), False, reasons.get(report.state, f"yours does not pass: {report.worst.message}")
        )

    def _solution(self, function: str) -> Callable:
        if self._stand_in is None:
            self._stand_in = solution_module(self._lab, f"standing_in_lab{self._lab}")
        return getattr(self._stand_in, function)


_CARRIED: dict[str, Carried] = {}


def _judge_what_it_carries(exercise: Exercise) -> None:
    """Inside an answer's call nothing is graded: what an exercise may call is judged before."""
    for earlier in exercise.carries:
        lab, function = earlier.split(".")
        carried(lab).judge(function)


provide(carried=_judge_what_it_carries)


@watching.door
def carried(lab: str) -> Carried:
    """The functions of an earlier lab; the same object every time."""
    lab = lab_number(lab)
    return _CARRIED.setdefault(lab, Carried(lab))


@contextlib.contextmanager
def replaced(name: str, by: Any, answer: Any = None) -> Iterator[None]:
    """For the length of a block, an answer finds another function of an earlier lab than the one that it carries.

    Args:
        name: the exercise, "08.msda_bwd_kernel".
        by: what is found in its place.
        answer: also where this function calls a module of solutions, as solutions do.
    """
    lab, function = name.split(".")
    modules = {id(m): m for m in getattr(answer, "__globals__", {}).values() if isinstance(m, ModuleType)}
    with contextlib.ExitStack() as stack:
        stack.enter_context(watching.lent(by))
        stack.enter_context(mock.patch.dict(carried(lab)._judged, {function: _Judged(by, False, "for a moment")}))
        for module in modules.values():
            if re.search(rf"(^solutions\.|_on_)lab{lab}$", module.__name__):
                stack.enter_context(mock.patch.object(module, function, by))
        yield


@watching.door
def __getattr__(name: str) -> Carried:
    """`from checks.answers.carry import lab01`."""
    if name.startswith("lab") and name[3:] in LABS:
        return carried(name[3:])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def watch(lab: str):
    """A reactive handle on an earlier notebook: cells that mention it run again when the file is saved."""
    import marimo

    return marimo.watch.file(notebook_path(lab))


class _Underneath:
    def __init__(self, rows: list[tuple[str, _Judged]]):
        self._rows = rows

    def _repr_html_(self) -> str:
        items = []
        for name, judged in self._rows:
            lab, function = name.split(".")
            whose = (
                f"yours, from lab {lab}: it {judged.reason}."
                if judged.theirs
                else f"ours stands in. {judged.reason[:1].upper()}{judged.reason[1:]}"
            )
            glyph = "✓" if judged.theirs else "↺"
            text = code_html(whose)
            items.append(
                f'<li data-carried="{name}" data-whose="{"learner" if judged.theirs else "reference"}">'
                f'<span aria-hidden="true">{glyph}</span> <code>{function}</code>: {text}</li>'
            )
        return (
            '<section aria-label="Code from earlier labs that runs underneath" style="border:1px solid light-dark(#cdd3db,#4a5260);'
            'border-radius:6px;padding:.5em .9em;font-size:.95rem"><strong>Running underneath</strong>'
            f'<ul style="list-style:none;margin:.3em 0 0;padding:0">{"".join(items)}</ul></section>'
        )


def underneath(*names: str) -> _Underneath:
    """Says whose earlier code runs in this lab, and why. Names are exercises, "01.to_pixels"."""
    return _Underneath([(name, carried(name.split(".")[0]).judge(name.split(".")[1])) for name in names])

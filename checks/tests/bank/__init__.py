"""Answers to every exercise, right and wrong, written from the text of the labs alone.

A file a lab, `lab01.py` and so on. A right answer is code; a wrong one is code of its own, or a right one in which
something is different. They are built when they are asked for.
"""

import ast
import importlib
import linecache
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from checks.answers.notebook import LABS_DIR
from checks.catalogue import LABS
from checks.core.exercise import find
from msda_core.device import tl, triton

__all__ = ["Answer", "answers", "right", "wrong"]


@dataclass(frozen=True)
class Answer:
    """One answer: the exercise, its code, and what is wrong with it ("" if nothing is).

    Attributes:
        helpers: code of the same learner's that it calls.
    """

    exercise: str
    source: str
    wrong: str = ""
    helpers: str = ""
    note: str = ""

    @property
    def id(self) -> str:
        """What a test calls it."""
        return f"{self.exercise}: {self.wrong or 'right' + (', ' if self.note else '') + self.note}"

    def build(self) -> Any:
        """The function, kernel or class, as it would stand in a notebook."""
        filename = f"<bank {self.id}>"
        text = f"{self.helpers}\n\n{self.source}"
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
        scope = {"torch": torch, "tl": tl, "triton": triton, "__name__": "notebook"}
        exec("import math", scope)
        exec(compile(text, filename, "exec"), scope)
        return scope[find(self.exercise).function]


IMPORTS = ("import re", "from checks.answers.carry import lab05, lab08", "from msda_core import machine")
_BANK: list[Answer] = []


def right(exercise: str, source: str, note: str = "", helpers: str = "") -> str:
    """Put a right answer into the bank; its code is returned, for wrong ones to differ from."""
    _BANK.append(Answer(exercise, source.strip("\n") + "\n", "", helpers, note))
    return source


def wrong(exercise: str, what: str, source: str, *changes: str, helpers: str = "") -> None:
    """Put a wrong answer into the bank.

    Args:
        exercise: its name.
        what: what is wrong with it.
        source: its code, in which old, new, old, new … of `changes` are replaced first.
        changes: pairs of texts.
        helpers: code that it calls.

    Raises:
        ValueError: an old text does not occur.
    """
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        if old not in source:
            raise ValueError(f"{exercise}, {what}: {old!r} does not occur.")
        source = source.replace(old, new)
    _BANK.append(Answer(exercise, source.strip("\n") + "\n", what, helpers))


def given(lab: str, name: str) -> str:
    """The text of a function that a lab's notebook brings, with the imports that answers to it lean on."""
    path = LABS_DIR / f"{LABS[lab].notebook}.py"
    text = path.read_text(encoding="utf-8")
    node = next(one for one in ast.parse(text).body if isinstance(one, ast.FunctionDef) and one.name == name)
    lines = text.splitlines()[node.lineno - 1 : node.end_lineno]
    return "\n".join([*IMPORTS, *lines]) + "\n"


def answers() -> Iterator[Answer]:
    """All of them, lab by lab."""
    for lab in LABS:
        try:
            importlib.import_module(f"checks.tests.bank.lab{lab}")
        except ModuleNotFoundError as error:
            if error.name != f"checks.tests.bank.lab{lab}":
                raise
    yield from _BANK

"""What a marker should look at: code that reaches where an answer has no business, and submissions that are the same.

Nothing here is a verdict. A doubt stands in the row's `flag`; two people may have written the same three lines.
"""

import ast
import contextlib
import functools
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from checks.answers.notebook import LABS_DIR, answer_source, decode
from checks.catalogue import LABS
from checks.classroom.submissions import Work

__all__ = ["alike", "digest", "doubts"]

#: Names with which an answer leaves its own business → what it reaches.
REACHES = {
    "solution_module": "the solutions",
    "solutions": "the solutions",
    "reference": "the reference",
    "find": "the exercise's own declaration",
    "lab_exercises": "the exercise's own declaration",
    "get_objects": "the collector's list of all objects",
    "get_referrers": "the collector's list of all objects",
    "get_referents": "the collector's list of all objects",
    "_getframe": "the frames of its caller",
    "currentframe": "the frames of its caller",
    "f_back": "the frames of its caller",
    "settrace": "the frames of its caller",
    "setprofile": "the frames of its caller",
    "modules": "the modules that are loaded",
    "_exit": "the end of the grader's process",
    "environ": "the environment",
    "ctypes": "memory, past Python",
    "__torch_function__": "a tensor's arithmetic",
    "__eq__": "comparison",
}
#: A function so small may be the same in two heads. Nodes of its tree.
SMALL = 40


def doubts(lab: str, work: Work) -> list[str]:
    """What a notebook or a module beside it reaches that the course's own notebook does not, in words."""
    found: set[str] = set()
    for data in (work.notebooks[lab], *work.beside.values()):
        with contextlib.suppress(Exception):  # what is no Python is the grader's to say
            found |= _reached(decode(data))
    return [f"its code mentions {one}: look at it" for one in sorted(found - _usual(lab))]


@functools.cache
def _usual(lab: str) -> frozenset[str]:
    with contextlib.suppress(OSError, SyntaxError):
        return frozenset(_reached((LABS_DIR / f"{LABS[lab].notebook}.py").read_text(encoding="utf-8")))
    return frozenset()


def _reached(text: str) -> set[str]:
    tree = ast.parse(text)
    imported, found = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            imported |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
            words = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            found |= {word for one in words for word in one.split(".")} & set(REACHES)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in REACHES:
            found.add(node.attr)
        if isinstance(node, ast.Name) and node.id in REACHES and node.id not in ("find", "reference", "modules"):
            found.add(node.id)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "find":
            found.add("find")
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name in REACHES:
            found.add(node.name)
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("setattr", "patch") and node.args:
            found |= {f"{ast.unparse(node)[:60]}"} if _root(node.args[0]) in imported else set()
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _root(node) in imported:
            found.add(f"{ast.unparse(node)} =")
    return {f"`{one}` ({REACHES[one]})" if one in REACHES else f"`{one}` (a library, changed)" for one in found}


def _root(node: ast.AST) -> str:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def digest(code: str) -> str:
    """A digest of a function's code that renaming its variables does not change; "" for one too small to tell."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    names: dict[str, str] = {}
    bound = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    bound |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    for node in ast.walk(tree):
        for attribute in ("id", "arg"):
            name = getattr(node, attribute, None)
            if name in bound:
                setattr(node, attribute, names.setdefault(name, f"v{len(names)}"))
        if hasattr(node, "annotation"):
            node.annotation = None
        if hasattr(node, "returns"):
            node.returns = None
    if sum(1 for _ in ast.walk(tree)) < SMALL:
        return ""
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:20]


@functools.cache
def _solution(lab: str, exercise: str) -> str:
    from checks.answers.carry import solution_module
    from checks.classroom.child import _anonymous

    try:
        return digest(_anonymous(ast.parse(answer_source(exercise, solution_module(lab)))))
    except ValueError:  # no such exercise: a log of an older course
        return ""


def alike(entries: Mapping[str, Mapping[str, Any]]) -> list[tuple[list[str], list[str]]]:
    """Submissions whose larger answers are the same but for names.

    Args:
        entries: submission → its entry in the log.

    Returns:
        (names, exercises) for each group that shares at least two exercises, and all that both of them answered; the
        course's own solution stands among the names where it is one of them.
    """
    marks: dict[str, dict[str, str]] = defaultdict(dict)
    for name, entry in entries.items():
        for lab, part in entry.get("labs", {}).items():
            for exercise, verdict in part.get("verdicts", {}).items():
                if "NotImplementedError" not in verdict["code"] and "static_assert(False" not in verdict["code"]:
                    mark = digest(verdict["code"])
                    if mark:
                        marks[name][f"{lab}.{exercise}"] = mark
    groups: dict[tuple, list[str]] = defaultdict(list)
    for name, those in marks.items():
        if len(those) >= 2:
            groups[tuple(sorted(those.items()))].append(name)
    result = []
    for those, names in groups.items():
        if all(_solution(*exercise.split(".")) == mark for exercise, mark in those):
            names = [*names, "the course's solution"]
        if len(names) > 1:
            result.append((names, [exercise for exercise, _ in those]))
    return result


def most(words: Iterable[str], count: int) -> list[tuple[str, int]]:
    """The most frequent, with how often; the first seen first among equals."""
    totals: dict[str, int] = {}
    for word in words:
        totals[word] = totals.get(word, 0) + 1
    return sorted(totals.items(), key=lambda one: -one[1])[:count]

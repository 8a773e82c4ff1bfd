"""Wrong answers told as a difference: tagged places of a right one, and what stands there instead.

A place is a statement with a comment `# @name` at the end of its first or last line; names are unique within a function
(or class) of the module. A change maps places to text:

    {"mask": "mask = x == x"}              the statement tagged `mask`, in the function that is asked for
    {"corner.mask": "mask = x == x"}       the same in another function of the module
    {"start": "@\\nstart += H * W"}         a line `@` stands for the statement as it is
    {"rows": "for row in range(N):"}       of a loop or a branch: its head alone, where the text ends in a colon
    {"add_kernel": "..."}                  a function's own name: all of its body after the docstring

Nothing is built before it is asked for, and what is tagged may be edited freely: a change replaces it whole.
"""

import ast
import importlib.util
import itertools
import linecache
import re
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

__all__ = ["changed", "places", "text_of", "untagged", "variant"]

_TAG = re.compile(r"\s*# @(\w+)\s*$")
_serial = itertools.count()


@dataclass(frozen=True)
class Place:
    """A tagged statement: its first and last line, and the last line of its head, counted from 1."""

    first: int
    last: int
    head: int


def untagged(text: str) -> str:
    """Python text without its tags, as a learner sees it."""
    return "".join(_TAG.sub("", line) + "\n" if _TAG.search(line) else line for line in text.splitlines(keepends=True))


@cache
def places(text: str) -> Mapping[str, Place]:
    """Every place of a module's text: "function.name", and "function" for a function's body.

    Raises:
        ValueError: a tag belongs to no statement, or stands twice in one function.
    """
    found: dict[str, Place] = {}
    tags = {n: match[1] for n, line in enumerate(text.splitlines(), 1) if (match := _TAG.search(line))}
    for top in ast.parse(text).body:
        if not isinstance(top, (ast.FunctionDef, ast.ClassDef)):
            continue
        if isinstance(top, ast.FunctionDef):
            body = top.body[1 if ast.get_docstring(top) is not None else 0 :]
            if body:
                found[top.name] = Place(body[0].lineno, top.end_lineno or 0, top.end_lineno or 0)
        for node in ast.walk(top):
            if not isinstance(node, ast.stmt) or node is top:
                continue
            place = _place(node)
            for line in {place.first, place.head}:
                name = tags.get(line)
                if name is None or (line != place.first and _starts_later(node, line)):
                    continue
                if f"{top.name}.{name}" in found and found[f"{top.name}.{name}"] != place:
                    raise ValueError(f"the tag @{name} stands twice in {top.name}.")
                found[f"{top.name}.{name}"] = place
    lost = set(tags.values()) - {key.partition(".")[2] for key in found}
    if lost:
        raise ValueError(f"no statement begins or ends at the tag {', '.join(sorted('@' + name for name in lost))}.")
    return MappingProxyType(found)


def _place(node: ast.stmt) -> Place:
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
    inner = getattr(node, "body", None)
    head = inner[0].lineno - 1 if isinstance(inner, list) and inner else node.end_lineno or 0
    return Place(first, node.end_lineno or 0, max(first, head))


def _starts_later(node: ast.stmt, line: int) -> bool:
    """Whether a statement inside this one begins at the line: then the tag is that one's."""
    return any(isinstance(inner, ast.stmt) and inner is not node and inner.lineno == line for inner in ast.walk(node))


def changed(text: str, changes: Mapping[str, str], function: str) -> str:
    """A module's text with other text at some of its places.

    Args:
        text: the module.
        changes: place → text; a place without a dot is one of `function`, or a function of the module.
        function: where a place is looked for first.

    Raises:
        KeyError: there is no such place; the message lists those there are.
        ValueError: two changes overlap.
    """
    known, lines = places(text), text.splitlines()
    spans = []
    for key, new in changes.items():
        name = next((name for name in (f"{function}.{key}", key) if name in known), None)
        if name is None:
            raise KeyError(f"there is no place {key!r} in {function}; there are {', '.join(known)}.")
        place, new = known[name], textwrap.dedent(new).strip("\n")
        last = place.head if new.rstrip().endswith(":") else place.last
        line = lines[place.first - 1]
        indent = line[: len(line) - len(line.lstrip())]
        own = textwrap.dedent("\n".join([*lines[place.first - 1 : place.last]]))
        new = "\n".join(own if line.strip() == "@" else line for line in new.split("\n"))
        new = textwrap.indent(new if new.strip() else "pass", indent)
        spans.append((place.first, last, new))
    spans.sort()
    if any(one[1] >= other[0] for one, other in itertools.pairwise(spans)):
        raise ValueError(f"changes overlap: {', '.join(changes)}.")
    for first, last, new in reversed(spans):
        lines[first - 1 : last] = new.split("\n")
    return "\n".join(lines) + "\n"


@cache
def text_of(module: str) -> str:
    """The text of a module, found by its name without importing it."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"there is no module {module!r}.", name=module)
    return Path(spec.origin).read_text(encoding="utf-8")


def variant(module: str, function: str, changes: Mapping[str, str]) -> Any:
    """A function as it would be if its module had other text at some of its places.

    Args:
        module: "solutions.lab05".
        function: the function, kernel or class to return.
        changes: as for `changed`.

    Returns:
        The function, out of a module of its own; tracebacks, Triton and `inspect` can read its source.
    """
    text = changed(text_of(module), changes, function)
    name = f"changed_{next(_serial)}_{module.rpartition('.')[2]}"
    made = ModuleType(name)
    made.__file__ = f"<{function}, wrong, {name}>"
    linecache.cache[made.__file__] = (len(text), None, text.splitlines(keepends=True), made.__file__)
    sys.modules[name] = made
    try:
        exec(compile(text, made.__file__, "exec", dont_inherit=True), vars(made))
    finally:
        del sys.modules[name]
    return getattr(made, function)

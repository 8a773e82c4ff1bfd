"""The grader stays as it was before an answer ran: what a call replaces of it is put back before anything is judged.

An answer runs in the grader's own process, so it can write `compare.difference = …`, `builtins.abs = …`, or another
reference into an exercise. A `Snapshot` taken before the call holds what our modules, their classes, the exercises and
Python's modules that these use were made of: functions with their code, modules, and public constants. What is private and no function
is state, which a call may change.
"""

import contextlib
import operator
import sys
import types
from collections.abc import Iterator
from typing import Any

__all__ = ["Snapshot", "changed"]

OURS = ("checks", "msda_core", "solutions")
NO_JUDGES = ("bench", "classroom", "figures", "integrations", "ship", "show")  # rooms in which nothing is judged
PLUGGED = (
    "msda_core.device.is_guarded",
)  # what a module of ours puts in place when it is first imported, maybe by a call
CONSTANTS = (bool, int, float, str, tuple, frozenset)
MEMBERS = (types.FunctionType, classmethod, staticmethod, property)
#: What was put back since the process began, by name: for whoever grades strangers.
_CHANGED: dict[str, None] = {}


def changed() -> list[str]:
    """Names of what answers replaced and had to be put back, in the order of their discovery."""
    return list(_CHANGED)


def _held(owner: Any) -> dict[str, Any]:
    """What an owner holds now, copied in one step: another thread may be at work on it."""
    return vars(owner).copy()


def _ours(name: str | None) -> bool:
    package, *rooms = (name or "").split(".")
    return package in OURS and "tests" not in rooms and not (rooms and rooms[0] in NO_JUDGES)


def _owners(wide: bool) -> Iterator[tuple[str, Any]]:
    """What holds parts of the grader: our modules, with their classes, and those of Python's that the core uses by name.

    Where it is wide: all of Python's, with their classes.
    """
    modules = {name: one for name, one in list(sys.modules.items()) if isinstance(one, types.ModuleType)}
    ours = {name: one for name, one in modules.items() if _ours(name)}
    used = {
        value.__name__ for one in ours.values() for value in _held(one).values() if isinstance(value, types.ModuleType)
    }
    pythons = set(modules) if wide else used | {"builtins"}
    for name, module in modules.items():
        python = name in pythons and name.partition(".")[0] in sys.stdlib_module_names
        if not python and name not in ours:
            continue
        yield name, module
        if not python or wide:
            for one in _held(module).values():
                if isinstance(one, type) and one.__module__ == name:
                    yield f"{name}.{one.__qualname__}", one


def _is_kept(where: str, owner: Any, name: str, value: Any) -> bool:
    if f"{where}.{name}" in PLUGGED:
        return False
    if isinstance(owner, type):
        return isinstance(value, MEMBERS)
    if callable(value) or isinstance(value, types.ModuleType):
        return True
    return not name.startswith("_") and isinstance(value, CONSTANTS)


class Snapshot:
    """The grader at this moment.

    Args:
        wide: with all of Python's own library, which takes too long for every call.
    """

    _known: tuple[int, list[tuple[str, Any]]] = (0, [])

    def __init__(self, wide: bool = False) -> None:
        from checks.core import exercise

        if Snapshot._known[0] != len(sys.modules):
            Snapshot._known = (len(sys.modules), list(_owners(False)))
        self._tables = [
            (exercise, name, table, table.copy())
            for name in ("_REGISTRY", "_PARTS")
            for table in [getattr(exercise, name)]
        ]
        self._fields = [(made, _held(made)) for made in exercise._REGISTRY.values()]
        self._owners = [(name, owner, _held(owner)) for name, owner in (_owners(True) if wide else Snapshot._known[1])]
        self._code = {
            id(value): (value, value.__code__, value.__defaults__)
            for name, _, values in self._owners
            if name.startswith("checks.core")  # of the key, `watch` puts the code back
            for value in values.values()
            if type(value) is types.FunctionType
        }

    def restore(self) -> None:
        """Put back what has changed since, and note its name."""
        for where, owner, before in self._owners:
            now = _held(owner)
            if len(now) == len(before) and all(map(operator.is_, list(now.values()), before.values())):
                continue
            for name, value in before.items():
                if now.get(name) is not value and _is_kept(where, owner, name, value):
                    with contextlib.suppress(AttributeError, TypeError):
                        setattr(owner, name, value)
                    _CHANGED[f"{where}.{name}"] = None
        for function, code, defaults in self._code.values():
            if function.__code__ is not code or function.__defaults__ is not defaults:
                function.__code__, function.__defaults__ = code, defaults
                _CHANGED[f"{function.__module__}.{function.__qualname__}"] = None
        for home, name, table, before in self._tables:
            if getattr(home, name) is not table or any(table.get(key) is not value for key, value in before.items()):
                setattr(home, name, table)
                table.update(before)
                _CHANGED[f"{home.__name__}.{name}"] = None
        for made, fields in self._fields:
            for field, value in fields.items():
                if vars(made).get(field) is not value:
                    object.__setattr__(made, field, value)
                    _CHANGED[f"the exercise {made.name}"] = None

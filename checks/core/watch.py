"""Watching a learner's call: whether the answer reached what it is compared with.

The key is whatever lies in `solutions`, in `msda_core` but its machine, figures and device, and in `checks` but its core;
tests aside. While a call is watched, every function of the key begins by looking at who called it: from itself outward,
the first frame that belongs to the learner means that the answer reached it. A frame of a door (see `door`) met before
that allows the call, and where there is no frame of the learner at all, the grader itself called. So the grader uses its
truths freely while an answer runs, and an answer cannot, whatever it calls them through.
"""

import contextlib
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import sys
import sysconfig
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

__all__ = [
    "IMPORT",
    "LEARNER",
    "Noted",
    "Reached",
    "check_launch",
    "door",
    "home_of",
    "idle",
    "is_key",
    "key_of",
    "lent",
    "watching",
    "whose",
]

F = TypeVar("F", bound=Callable)

ROOT = Path(__file__).resolve().parents[2]
OURS = ("checks", "msda_core", "solutions")
#: Rooms that an answer may call: they hold no truth, and what they call of the key is noticed there.
OPEN = {"checks": ("catalogue", "core"), "msda_core": ("device", "figures", "machine")}


class Noted(BaseException):
    """Raised in the learner's thread, and written down: an answer that swallows it is found out all the same."""

    notes: list[str]

    @classmethod
    def noted(cls, text: str) -> "Noted":
        cls.notes.append(text)
        return cls(text)


class Reached(Noted):
    """The answer called the reference that it is compared with."""

    notes = []


# ---------------------------------------------------------------------------------------------------- what the key is


def is_key(module: str | None) -> bool:
    """Whether a module of this name belongs to the key."""
    package, *rooms = (module or "").split(".")
    if package not in OURS or "tests" in rooms or "conftest" in rooms:
        return False
    return package == "solutions" or (bool(rooms) and rooms[0] not in OPEN[package])


def home_of(function: types.FunctionType) -> str:
    """The module whose names a function sees; for a wrapper made in `checks.core`, the module of what it wraps."""
    home = function.__globals__.get("__name__") or ""
    return function.__module__ or home if home.startswith("checks.core.") else home


def key_of(answer: Any) -> str:
    """The name of the object of the key that an answer is, or is a thin cover of; "" for one of the learner's own.

    Covers are partials, bound methods, caches, subclasses, and decorators of kernels; a kernel is also searched for other
    kernels that it calls.
    """
    seen: set[int] = set()
    while id(answer) not in seen:
        seen.add(id(answer))
        if isinstance(answer, types.FunctionType):
            return f"{home_of(answer)}.{answer.__name__}" if is_key(home_of(answer)) else ""
        if isinstance(answer, type):
            kin = next((one for one in answer.__mro__ if is_key(one.__module__)), None)
            return f"{kin.__module__}.{kin.__qualname__}" if kin else ""
        if _is_kernel(answer):
            return _kernel_of_the_key(answer)
        if is_key(type(answer).__module__):
            return f"{type(answer).__module__}.{type(answer).__qualname__}"
        for cover in ("func", "__func__", "__wrapped__", "fn"):
            inner = inspect.getattr_static(answer, cover, None)
            if inner is not None:
                answer = getattr(answer, cover)
                break
    return ""


def _is_kernel(thing: Any) -> bool:
    return isinstance(getattr(thing, "fn", None), types.FunctionType) and type(thing).__module__.startswith("triton.")


def _kernel_of_the_key(kernel: Any, seen: set[int] | None = None) -> str:
    """The kernel of the key that a kernel is or calls: what a kernel may call stands in its text, by name."""
    function, seen = kernel.fn, set() if seen is None else seen
    if id(function) in seen:
        return ""
    seen.add(id(function))
    if is_key(home_of(function)):
        return f"{home_of(function)}.{function.__name__}"
    names = function.__code__.co_names
    for name in names:
        value = function.__globals__.get(name)
        inside = [vars(value).get(other) for other in names] if isinstance(value, types.ModuleType) else [value]
        for one in inside:
            found = _kernel_of_the_key(one, seen) if _is_kernel(one) else ""
            if found:
                return found
    return ""


# ---------------------------------------------------------------------------------------------------- whose a frame is

#: torch calls these itself while an answer computes, where the grader counts what it calls.
FOR_TORCH = ("__torch_function__", "__torch_dispatch__")
_DOORS: set[int] = set()
_KEPT: list[types.CodeType] = []  # the code of doors: an id is used again when its owner is gone
LEARNER, LIBRARY, IMPORT = "learner", "library", "import"


def door(thing: F) -> F:
    """Mark a function of ours, or the methods of a class, as what an answer may call and may use the key: a decorator.

    Raises `Reached` where the learner opens a door.
    """
    _refuse(sys._getframe(1), "door")
    functions = vars(thing).values() if isinstance(thing, type) else [inspect.unwrap(thing)]
    for function in functions:
        if isinstance(function, types.FunctionType):
            _DOORS.add(id(function.__code__))
            _KEPT.append(function.__code__)
    return thing


_LENT: set[int] = set()  # ids of functions, or of kernels' functions


@contextlib.contextmanager
def lent(thing: Any) -> Iterator[None]:
    """For the length of a block an answer may call this function or kernel of the key: the grader gave it to the answer."""
    _refuse(sys._getframe(1), "lent")
    own = {id(getattr(thing, "fn", thing))} - _LENT
    _LENT.update(own)
    try:
        yield
    finally:
        _LENT.difference_update(own)


def _refuse(frame: types.FrameType | None, name: str) -> None:
    if threading.get_ident() in _WATCHED and _called_by_the_learner(frame):
        raise Reached.noted(f"{__name__}.{name}")


def _called_by_the_learner(frame: types.FrameType | None) -> bool:
    while frame is not None:
        if id(frame.f_code) in _DOORS:
            return False
        owner = whose(frame)
        if owner is not LIBRARY:
            return owner is LEARNER  # what runs as a module is imported calls for itself
        frame = frame.f_back
    return threading.get_ident() in _STARTED


def whose(frame: types.FrameType) -> str:
    """Whose code a frame runs: `LEARNER`, `LIBRARY` (ours, Python's and of installed packages) or `IMPORT`."""
    filename = frame.f_code.co_filename
    if not filename.startswith("<") or filename.startswith("<frozen "):
        return _whose_file(filename)
    # Code without a file, such as what `dataclass` writes: whose module it runs in, unless that is the learner's too.
    name = frame.f_globals.get("__name__")
    module = sys.modules.get(name) if name and name != "__main__" else None
    if module is None or vars(module) is not frame.f_globals or not getattr(module, "__file__", None):
        return LEARNER
    return _whose_file(module.__file__)


@functools.cache
def _whose_file(filename: str) -> str:
    if filename.startswith("<frozen importlib"):
        return IMPORT
    path = Path(filename)
    if any(path.is_relative_to(ROOT / package) for package in OURS):
        return LEARNER if "tests" in path.relative_to(ROOT).parts else LIBRARY
    library = filename.startswith("<frozen ") or {"site-packages", "dist-packages"} & set(path.parts)
    return LIBRARY if library or any(path.is_relative_to(folder) for folder in _standard_library()) else LEARNER


@functools.cache
def _standard_library() -> set[Path]:
    folders = {Path(sysconfig.get_paths()[name]) for name in ("stdlib", "platstdlib")}
    return folders | {folder.resolve() for folder in folders}


# ---------------------------------------------------------------------------------------------------------- the traps


class _Trap:
    """Stands before one function of the key: the code that runs in its place while a call is watched."""

    def __init__(self, function: types.FunctionType):
        self.function, self.code = function, function.__code__
        self.name = f"{home_of(function)}.{function.__name__}"
        self.trap = _sprung.__code__.replace(
            co_name=function.__code__.co_name,
            co_freevars=function.__code__.co_freevars,
            co_consts=tuple(self if const == "the trap" else const for const in _sprung.__code__.co_consts),
        )

    def __call__(self, args: tuple, kwargs: dict) -> Any:
        watched = threading.get_ident() in _WATCHED and id(self.function) not in _LENT
        if watched and _called_by_the_learner(sys._getframe(1)):
            raise Reached.noted(self.name)
        # Made for this call alone: whoever looks through all objects finds no function of the key without its trap.
        there = self.function
        original = types.FunctionType(
            self.code, there.__globals__, there.__name__, there.__defaults__, there.__closure__
        )
        original.__kwdefaults__ = there.__kwdefaults__
        return original(*args, **kwargs)


def _sprung(*args, **kwargs):
    trap = "the trap"
    return trap(args, kwargs)


_WATCHED: set[int] = set()  # threads in which an answer runs, or that one left running
_STARTED: set[int] = set()  # those of them that an answer started
_TRAPS: dict[int, _Trap] = {}  # id of a function of the key → its trap, which holds the function
_SET: list[_Trap] = []  # the traps that stand now
_searched: tuple[int, int] = (0, 0)
_depth = 0
_hooks = contextlib.ExitStack()
_lock = threading.RLock()


def _find_functions() -> None:
    """Bring `_TRAPS` up to date (they are only ever added): functions, methods and closures that the modules of the key, and exercises, hold."""
    global _searched
    from checks.core import exercise

    names = [name for name in list(sys.modules) if is_key(name)]
    if _searched == (len(names), len(exercise._REGISTRY)):
        return
    _searched = (len(names), len(exercise._REGISTRY))
    seen: set[int] = set()
    for name in names:
        _search(vars(sys.modules[name]), seen)
    _search(exercise._REGISTRY, seen)


def _search(thing: Any, seen: set[int]) -> None:
    """Trap every function of the key inside a thing, however deep."""
    waiting = [thing]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, (str, bytes, int, float, types.ModuleType)):
            continue
        seen.add(id(one))
        if isinstance(one, types.FunctionType):
            allowed = id(one.__code__) in _DOORS or one.__name__ in FOR_TORCH
            if id(one) not in _TRAPS and is_key(home_of(one)) and not allowed:
                _TRAPS[id(one)] = _Trap(one)
            for cell in one.__closure__ or ():
                with contextlib.suppress(ValueError):  # empty
                    waiting.append(cell.cell_contents)
            waiting.append(getattr(one, "__wrapped__", None))
        elif isinstance(one, (dict, types.MappingProxyType)):
            waiting.extend(one.copy().values())
        elif isinstance(one, (list, tuple, set, frozenset)):
            waiting.extend(one)
        elif isinstance(one, type):
            if is_key(one.__module__):
                waiting.append(vars(one))
        elif isinstance(one, (classmethod, staticmethod)):
            waiting.append(one.__func__)
        elif isinstance(one, property):
            waiting.extend((one.fget, one.fset, one.fdel))
        elif isinstance(one, (functools.partial, functools.partialmethod, functools.cached_property)):
            waiting.append(one.func)
        elif type(one).__name__ == "_lru_cache_wrapper":
            waiting.append(one.__wrapped__)
        elif type(one).__module__.split(".")[0] in OURS and not isinstance(one, BaseException):
            waiting.append(getattr(one, "__dict__", None))


def _set_traps() -> None:
    _find_functions()
    for trap in list(_TRAPS.values())[len(_SET) :]:
        trap.function.__code__ = trap.trap
        _SET.append(trap)


def _lift_traps() -> None:
    for trap in _SET:
        trap.function.__code__ = trap.code
    _SET.clear()


class _Importing(importlib.abc.MetaPathFinder):
    """While a call is watched, a module of the key that is imported, or imported again, gets its traps as well."""

    def find_spec(self, name, path=None, target=None):
        spec = importlib.machinery.PathFinder.find_spec(name, path, target) if is_key(name) else None
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module):
            global _searched
            run(module)
            with _lock:
                if _depth:
                    _searched = (0, 0)
                    _set_traps()

        spec.loader.exec_module = exec_module
        return spec


def idle() -> bool:
    """Whether no call is watched at this moment."""
    return not _depth


@contextlib.contextmanager
def watching() -> Iterator[set[int]]:
    """Watch the threads whose ids the block adds to the set that it is given."""
    global _depth
    with _lock:
        _depth += 1
        if _depth == 1:
            _set_traps()
            for hook in (_imports, _launches, _threads):
                _hooks.enter_context(hook())
    try:
        yield _WATCHED
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0:
                _lift_traps()
                _hooks.close()
                _WATCHED.intersection_update(_STARTED)  # threads that an answer, or its file, left running


@contextlib.contextmanager
def _imports():
    finder = _Importing()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


@contextlib.contextmanager
def _threads():
    """A thread that the answer starts is watched like its own."""
    original = threading.Thread.start

    def start(thread):
        if threading.get_ident() in _WATCHED and _called_by_the_learner(sys._getframe(1)):
            run = thread.run

            def watched():
                _WATCHED.add(threading.get_ident())
                _STARTED.add(threading.get_ident())
                try:
                    with contextlib.suppress(Noted):
                        run()
                finally:  # its id may be another's next
                    _STARTED.discard(threading.get_ident())
                    _WATCHED.discard(threading.get_ident())

            thread.run = watched
        original(thread)

    threading.Thread.start = start
    try:
        yield
    finally:
        threading.Thread.start = original


# -------------------------------------------------------------------------------------------------------------- kernels


def check_launch(kernel: Any, frame: types.FrameType | None = None) -> None:
    """Called before a kernel runs: raises `Reached` if the answer launches one of the key, or one that calls such."""
    if threading.get_ident() not in _WATCHED:
        return
    while not _is_kernel(kernel) and hasattr(kernel, "fn"):  # under @triton.autotune and its like
        kernel = kernel.fn
    name = _kernel_of_the_key(kernel) if _is_kernel(kernel) and id(kernel.fn) not in _LENT else ""
    if name and _called_by_the_learner(frame or sys._getframe(1)):
        raise Reached.noted(name)


@contextlib.contextmanager
def _launches():
    """Launches outside the machine's guard, as on a GPU; inside, the guard tells `check_launch`."""
    jit = sys.modules.get("triton.runtime.jit")
    if jit is None:
        yield
        return
    original = jit.KernelInterface.__getitem__

    def getitem(kernel, grid):
        check_launch(kernel, sys._getframe(1))
        return original(kernel, grid)

    jit.KernelInterface.__getitem__ = getitem
    try:
        yield
    finally:
        jit.KernelInterface.__getitem__ = original

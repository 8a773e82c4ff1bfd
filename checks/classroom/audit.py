"""What a submission does beside answering, noticed as it happens: Python's audit events, which nothing in Python can unhook.

An event counts where the submission's own code asked for it, itself or through the standard library. What is noticed goes
at once into a pipe that only the worker reads, so it cannot be taken back. There are two kinds: a `KEY` event leaves no
answer of the submission worth anything (the course's solutions were read, run under another name or taken apart); a
`DOUBT` is for the marker to look at.
"""

import functools
import json
import os
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from checks.core import watch

__all__ = ["DOUBT", "KEY", "install"]

KEY, DOUBT = "key", "doubt"
MOST = 20  # notes that are written; one is enough to look
#: Events that an answer has no use for → what is said of them.
DOUBTS = {
    "sys._getframe": "looked at the frames of its caller",
    "sys._current_frames": "looked at the frames of other threads",
    "gc.get_objects": "went through all objects of the process",
    "gc.get_referrers": "went through the objects of the process",
    "gc.get_referents": "went through the objects of the process",
    "sys.settrace": "traced the grader",
    "sys.setprofile": "traced the grader",
    "sys.addaudithook": "listens to the grader's events",
    "ctypes.dlopen": "reached past Python, with ctypes",
    "ctypes.string_at": "reached past Python, with ctypes",
    "subprocess.Popen": "started another program",
    "os.system": "started another program",
    "os.exec": "started another program",
    "os.posix_spawn": "started another program",
    "os.fork": "started another process",
    "os.kill": "sent a signal to a process",
    "socket.connect": "used the network",
    "open": "looked into /proc",
}
#: Events of these count through installed packages too; what packages do of their own accord with the others is usual.
FAR = ("open", "exec", "subprocess", "os", "socket")
EVENTS = {*DOUBTS, "exec", "object.__getattr__", "function.__new__"}


def install(pipe: int) -> Callable[[str, str], None]:
    """Begin to notice; there is no way back. Returns note(kind, text), for what others find out.

    Args:
        pipe: a file descriptor; a line of JSON, [kind, text], is written to it for each note.
    """
    noticed: set[str] = set()
    within: set[int] = set()
    ident, getframe, write, dumps = threading.get_ident, sys._getframe, os.write, json.dumps

    @watch.door
    def note(kind: str, text: str) -> None:
        if text not in noticed and len(noticed) < MOST:
            noticed.add(text)
            write(pipe, f"{dumps([kind, text])}\n".encode())

    @watch.door  # it runs below whoever does what it notices
    def hook(event: str, args: tuple) -> None:
        if event not in EVENTS or ident() in within:
            return
        within.add(ident())
        try:
            found = _noticed(event, args, getframe(1))
            if found is not None:
                note(*found)
        finally:
            within.discard(ident())

    sys.addaudithook(hook)
    return note


@watch.door
def _noticed(event: str, args: tuple, frame: types.FrameType | None) -> tuple[str, str] | None:
    """The kind and the words of an event; None for one that is no business of ours."""
    key = ""
    if event == "object.__getattr__":
        thing, name = args
        if name not in ("__code__", "__closure__") or type(thing) is not types.FunctionType:
            return None
        home = watch.home_of(thing)
        if not watch.is_key(home):
            return None
        key = f"took {home}.{thing.__name__} apart"
    elif event == "open":
        name = os.fsdecode(args[0]) if isinstance(args[0], (str, bytes)) else ""
        path = _key_file(name)
        if path:
            key = f"read {path}"
        elif not name.startswith("/proc/"):
            return None
    elif event == "function.__new__":
        path = _key_file(args[0].co_filename)
        if not path:
            return None
        key = f"made a function of {path} anew"
    elif event == "exec":
        code = args[0]
        path = _key_file(code.co_filename) if type(code) is types.CodeType and code.co_name == "<module>" else ""
        if not path:
            return None
        key = f"ran a copy of {path}"
    asked, module = _asked(frame, event.split(".")[0] in FAR)
    if event == "open" and module is not None or event == "exec" and getattr(module, "__name__", "") == _name(path):
        asked = False  # it is imported under its own name
    return ((KEY, key) if key else (DOUBT, DOUBTS[event])) if asked else None


@watch.door
def _asked(frame: types.FrameType | None, far: bool) -> tuple[bool, Any]:
    """Whether the submission asked for what happens, and the module that is being imported meanwhile, if one is.

    The first frame decides that is not the standard library's, nor, where `far`, of an installed package. marimo decides
    always: it looks at frames and their files when a notebook loads.
    """
    module = None
    while frame is not None:
        whose = watch.whose(frame)
        if whose is watch.LEARNER:
            return True, module
        if whose is watch.IMPORT:
            module = frame.f_locals.get("module", module) or module or "a module"
        elif (package := _package(frame.f_code.co_filename)) in (*watch.OURS, "marimo") or package and not far:
            return False, module
        frame = frame.f_back
    return False, module


@watch.door
@functools.cache
def _package(filename: str) -> str:
    """The package of ours, or the installed one, that a file belongs to; "" for the standard library's."""
    path = Path(filename)
    if path.is_relative_to(watch.ROOT) and (ours := path.relative_to(watch.ROOT).parts[0]) in watch.OURS:
        return ours
    parts = path.parts
    at = next((i for i, part in enumerate(parts) if part in ("site-packages", "dist-packages")), None)
    return "" if at is None else parts[at + 1]


@watch.door
@functools.cache
def _key_file(name: str) -> str:
    """The path below the checkout of a file of the key, compiled or not; "" for any other."""
    path = Path(os.path.abspath(name))
    if not path.is_relative_to(watch.ROOT):
        return ""
    path = path.relative_to(watch.ROOT)
    if path.parent.name == "__pycache__":
        path = path.parent.parent / f"{path.name.split('.')[0]}.py"
    return str(path) if path.suffix == ".py" and watch.is_key(_name(str(path))) else ""


@watch.door
def _name(path: str) -> str:
    """The module of a file, "solutions/lab01.py"."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

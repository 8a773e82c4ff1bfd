"""Which guard watches the calling thread. Every launcher asks before each launch, so this loads and does next to nothing."""

import threading
from typing import Any

__all__ = ["current", "guarded"]


class _Stacks(threading.local):
    """The guards of one thread, innermost last."""

    stack: list[Any] | tuple = ()


stacks = _Stacks()
everywhere: list[Any] = []  # the guard of `protect`, which watches every thread


def current() -> Any | None:
    """The guard that watches the calling thread; None without one."""
    stack = stacks.stack
    return stack[-1] if stack else (everywhere[-1] if everywhere else None)


def guarded() -> bool:
    """Whether a guard watches the launches of the calling thread: a launcher with a short cut must not take it then."""
    return current() is not None

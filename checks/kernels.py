"""The kernel side of the grader: launches under the guard, the compiler's word on them, and wrong kernels to compare with.

The interpreter runs what the compiler refuses, and a GPU does not say what the guard says. So a kernel is run under the
guard on the CPU, compiled for a GPU that need not be there, and, where there is one, run on it as well.
"""

import __future__

import contextlib
import inspect
import itertools
import linecache
import re
import textwrap
import threading
import types
from typing import Any

import torch
from torch import Tensor

from checks.call import quote
from msda_core import device

__all__ = ["Compilation", "edited", "finding", "guarded", "on_device"]

COMPILE_LIMIT = 30.0  # seconds until a compiler that says nothing counts as none
TARGET = "sm_90"

#: What the compiler says of itself where it should speak of the kernel → what it means.
PLAINLY = {
    r"'\w+' object has no attribute 'func'": "a loop runs over range(…), tl.range(…) or tl.static_range(…), nothing else",
}

_serial = itertools.count()


def guarded(launches: list | None = None) -> contextlib.AbstractContextManager:
    """The machine's guard; appends every launch to `launches` before it runs."""
    from msda_core import machine

    return machine.guard(launched=None if launches is None else launches.append)


def finding(error: BaseException | None) -> tuple[str, str] | None:
    """What the guard or the compiler found, as a state and a sentence that begins with the learner's line.

    Args:
        error: what the answer raised.

    Returns:
        ("fail", "line 8 of add_kernel: `…` reads element 100 of x_ptr, …"), "crash" where nothing could be launched, or
        None: an exception of the answer's own.
    """
    if device.NO_TRITON:
        return None
    from triton.compiler.errors import CompilationError

    from msda_core import machine

    while error is not None and not isinstance(error, (machine.MachineError, CompilationError)):
        error = error.__cause__
    if error is None or isinstance(error, machine.KernelFailed):
        return None
    if isinstance(error, (machine.CompileError, CompilationError)):
        return "fail", _refusal(error)
    if not isinstance(error, machine.KernelError):
        return "crash", str(error)
    if not error.lineno:
        return "fail", str(error)
    text = str(error).removeprefix(f"line {error.lineno}: `{error.line}` ")
    return "fail", f"{quote(error.filename, error.lineno)} {text}"


def _refusal(error: BaseException) -> str:
    """What the compiler refuses, and why: from the machine's compiler, or from the one that feeds a GPU."""
    said = "runs in the interpreter, but a GPU's compiler refuses it"
    if hasattr(error, "reason"):
        where = quote(error.filename, error.lineno) if error.lineno else f"{error.kernel}:"
        return f"{where} {said}: {_plainly(error.reason)}"
    while type(error.__cause__) is type(error):  # a chain of calls, the innermost last
        error = error.__cause__
    lines, number = (error.src or "").splitlines(), getattr(error.node, "lineno", 0)
    where = f"`{lines[number - 1].strip()}`" if 0 < number <= len(lines) else "this kernel"
    return f"{where} {said}: {_plainly(str(error.error_message or error.__cause__ or error))}"


def _plainly(reason: str) -> str:
    return next((plain for pattern, plain in PLAINLY.items() if re.search(pattern, reason)), reason)


def on_device(thing: Any) -> Any:
    """The same arguments on the device that kernels run on, with their strides."""
    if isinstance(thing, Tensor):
        storage = thing.detach().untyped_storage().to(device=device.ACTIVE)
        moved = torch.empty(0, dtype=thing.dtype, device=device.ACTIVE)
        return moved.set_(storage, thing.storage_offset(), thing.size(), thing.stride())
    if type(thing) in (list, tuple):
        return type(thing)(on_device(item) for item in thing)
    return thing


class Compilation:
    """Compiles launches in the background, while the interpreter goes on with the next check.

    Args:
        launches: as `guarded` collected them; each kernel is compiled once.
    """

    def __init__(self, launches: list):
        kernels = {id(launch.kernel): launch for launch in launches}
        self._launches = list(kernels.values())
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._compile, daemon=True, name="compiling")
        self._thread.start()

    def _compile(self):
        from msda_core.machine.lower import lower_launch

        try:
            for launch in self._launches:
                lower_launch(launch, TARGET)
        except Exception as error:  # whatever it is, the learner's notebook goes on
            self._error = error

    def result(self) -> BaseException | None:
        """What was raised, once it is done; None where everything compiles.

        Raises:
            TimeoutError: it does not end.
        """
        self._thread.join(COMPILE_LIMIT)
        if self._thread.is_alive():
            raise TimeoutError(f"the compiler gave no answer within {COMPILE_LIMIT:g} s.")
        return self._error


def edited(kernel: Any, *changes: tuple[str, str], **names: Any) -> Any:
    """A wrong kernel, told as what is different from a right one; a launcher as well.

    Args:
        kernel: the right one, a function, under `@triton.jit` or not.
        changes: (old, new) in its text; every occurrence of old is replaced.
        names: what it shall find under a name, in place of what it finds now: `corner=…` for a wrong helper.

    Returns:
        A kernel of the same name. Its source is registered, so that Triton and tracebacks can read it.

    Raises:
        ValueError: old does not occur: the right kernel has changed and the mistake has not.
    """
    function = getattr(kernel, "fn", kernel)
    text = textwrap.dedent("".join(inspect.getsourcelines(function)[0]))
    for old, new in changes:
        if old not in text:
            raise ValueError(f"{function.__name__} does not contain {old!r}, so it cannot be edited.")
        text = text.replace(old, new)
    filename = f"<{function.__name__}, wrong, {next(_serial)}>"
    lines = text.splitlines(keepends=True)
    linecache.cache[filename] = (len(text), None, lines, filename)
    scope = {**function.__globals__, **names, "__name__": __name__}
    exec(compile(text, filename, "exec", flags=_future(function.__code__), dont_inherit=True), scope)
    return scope[function.__name__]


def _future(code: types.CodeType) -> int:
    return code.co_flags & __future__.annotations.compiler_flag

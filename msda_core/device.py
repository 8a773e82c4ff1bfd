"""Interpreter or GPU: decided once, when it is first asked for, and before Triton is imported.

Triton reads `TRITON_INTERPRET` when it is first imported. So whoever wants Triton imports it through here: `from
msda_core.device import triton, tl`. Importing this module changes nothing in the process, and importing Triton through it
leaves the environment as it was: child processes decide for themselves. A program that wants both otherwise calls `settle`.

`MSDA_DEVICE=cpu` forces the interpreter on a machine with a GPU; `MSDA_DEVICE=cuda` insists on the GPU.
"""

import contextlib
import functools
import importlib.util
import os
import platform
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

__all__ = ["ACTIVE", "INTERPRETED", "NO_TRITON", "describe", "is_guarded", "load_triton", "settle"]

#: The device on which the labs and the checks run.
ACTIVE: torch.device
#: Whether Triton kernels run in the interpreter.
INTERPRETED: bool


@functools.cache
def _choose() -> tuple[torch.device, bool]:
    wish = os.environ.get("MSDA_DEVICE", "").strip().lower()
    if wish not in ("", "cpu", "cuda"):
        raise ValueError(f"MSDA_DEVICE must be 'cpu' or 'cuda', got {wish!r}.")
    if wish == "cuda" and not torch.cuda.is_available():
        raise ValueError("MSDA_DEVICE=cuda, but torch finds no CUDA GPU. Is this torch a CPU build?")
    if wish:
        interpreted = wish == "cpu"
    elif "TRITON_INTERPRET" in os.environ:
        interpreted = os.environ["TRITON_INTERPRET"].lower() in ("1", "true", "on", "yes")
    else:
        interpreted = not torch.cuda.is_available()
    return torch.device("cpu" if interpreted else "cuda"), interpreted


def _no_triton() -> str | None:
    if importlib.util.find_spec("triton") is not None:
        return None
    system = platform.system()
    way = {
        "Darwin": "use a Linux container or a hosted Linux notebook",
        "Windows": "use WSL, or `pip install triton-windows`",
    }.get(system, "`pip install triton`")
    return f"Triton is not installed on this {system} machine: {way}. Labs 1 to 3 and 7 need no Triton."


#: None where Triton is installed, else one sentence that says what to do.
NO_TRITON = _no_triton()


def is_rocm() -> bool:
    """Whether torch calls an AMD GPU "cuda": kernels compile for it, inline PTX does not."""
    return torch.version.hip is not None


@functools.cache
def capability(device: torch.device) -> int:
    """10 * major + minor of an NVIDIA GPU; 0 for one of AMD, which may say (9, 0) of itself; 90 in the interpreter."""
    if _choose()[1]:
        return 90
    if is_rocm():
        return 0
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def _unguarded() -> bool:
    return False


#: Whether a guard watches the launches of the calling thread: a launcher with a short cut must not take it then.
#: `machine.run.guard` puts its own answer here, so that no kernel has to know the machine.
is_guarded: Callable[[], bool] = _unguarded


def load_triton() -> Any:
    """Import Triton in the chosen mode, and mend it once.

    marimo, doctest and pytest all look through `__wrapped__` to find the source of a decorated function. Triton's
    kernel objects keep theirs in `fn`; without the alias marimo drops a cell that holds a kernel.

    Of a NaN and a number, a GPU's minimum, maximum and clamp take the number; the interpreter does so from Triton 3.9 on.
    A GPU rounds a float32 to the nearest bfloat16; the interpreter cuts it off.

    Where somebody has imported Triton before, to compile, and kernels are to be interpreted, its own functions become
    interpreted ones.

    Returns:
        The module `triton`.

    Raises:
        ModuleNotFoundError: Triton is not installed; the message says what to do.
    """
    if NO_TRITON:
        raise ModuleNotFoundError(NO_TRITON, name="triton")
    if "triton" in sys.modules and getattr(sys.modules["triton"], "_msda_core", False):
        return sys.modules["triton"]
    import numpy as np  # a package of its own, as Triton's interpreter is the only one to need it

    interpreted = sys.modules[__name__].INTERPRETED
    with _environment("TRITON_INTERPRET", "1" if interpreted else "0"):
        import triton
        import triton.language
        from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder
        from triton.runtime.jit import JITFunction

    if triton.knobs.runtime.interpret != interpreted:
        vars(triton.knobs.runtime)["interpret"] = interpreted  # setattr would write the environment
    if interpreted:
        _interpret_library(JITFunction, InterpretedFunction)
    for kind in (InterpretedFunction, JITFunction):
        if not hasattr(kind, "__wrapped__"):
            kind.__wrapped__ = property(lambda self: self.fn)
    InterpreterBuilder.create_minnumf = lambda self, x, y: self.binary_op(x, y, np.fmin)
    InterpreterBuilder.create_maxnumf = lambda self, x, y: self.binary_op(x, y, np.fmax)
    InterpreterBuilder.create_clampf = _clamp
    InterpreterBuilder.cast_impl = _rounding(InterpreterBuilder.cast_impl)
    triton._msda_core = True
    return triton


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _interpret_library(jitted: Any, interpreted: Any) -> None:
    """Replace the functions that Triton's library has written in Triton (`tl.sum`), if it was imported to compile."""
    made: dict[int, Any] = {}
    for name, module in list(sys.modules.items()):
        if name.startswith("triton.language"):
            for attribute, function in list(vars(module).items()):
                if isinstance(function, jitted):
                    made.setdefault(id(function), interpreted(function.fn))
                    setattr(module, attribute, made[id(function)])


def settle() -> None:
    """Write the choice into the environment: a plain `import triton` and child processes then follow it.

    For programs, as the grader is one. A library leaves the environment of its process alone.
    """
    if "triton" not in sys.modules:
        os.environ["TRITON_INTERPRET"] = "1" if sys.modules[__name__].INTERPRETED else "0"
        os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # a * b + c in one step; unset, Triton 3.9 warns


def _rounding(stock: Callable) -> Callable:
    """The interpreter's casts, but from float32 to the nearest bfloat16."""

    def cast_impl(builder: Any, source: Any, target: Any) -> Any:
        import numpy as np
        from triton.language import bfloat16, float32
        from triton.runtime.interpreter import TensorHandle

        if source.dtype.scalar != float32 or target.scalar != bfloat16:
            return stock(builder, source, target)
        data = np.ascontiguousarray(source.data)
        bits = torch.from_numpy(data).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
        return TensorHandle(bits, bfloat16)

    return cast_impl


def _clamp(builder: Any, x: Any, low: Any, high: Any, propagate_nan: Any) -> Any:
    import numpy as np
    from triton.language import PropagateNan

    if propagate_nan == PropagateNan.ALL:
        return builder.ternary_op(x, low, high, np.clip)
    return builder.binary_op(builder.binary_op(x, low, np.fmax), high, np.fmin)


class _Absent:
    """Stands for `triton` and `tl` where Triton is not installed: kernels can be defined and looked at, not launched.

    So a notebook about kernels opens everywhere, with its text and its figures, and says in one sentence what is missing.
    """

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, name: str) -> "_Absent":
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent(f"{self._name}.{name}")

    def __call__(self, *args, **kwargs):
        if self._name.rpartition(".")[2] in ("jit", "autotune", "heuristics", "Config"):
            return args[0] if args and isinstance(args[0], _AbsentKernel) else _absent_decorator(args)
        raise ModuleNotFoundError(NO_TRITON, name="triton")


def _absent_decorator(args):
    return _AbsentKernel(args[0]) if args and callable(args[0]) else lambda kernel: _absent_decorator((kernel,))


class _AbsentKernel:
    """A kernel that cannot run here; its function is in `fn`, as in Triton's own."""

    def __init__(self, fn):
        self.fn = fn.fn if isinstance(fn, _AbsentKernel) else fn
        self.__wrapped__, self.__name__, self.__doc__ = self.fn, self.fn.__name__, self.fn.__doc__
        self.__module__, self.__qualname__ = self.fn.__module__, self.fn.__qualname__

    def __getitem__(self, grid):
        raise ModuleNotFoundError(NO_TRITON, name="triton")

    __call__ = __getitem__


def __getattr__(name: str) -> Any:
    """`ACTIVE` and `INTERPRETED`, chosen on first use, so that importing this module does not look for a GPU; `triton` and `tl`,
    imported on first use, so that a lab without kernels does not wait for Triton.

    Without Triton the last two are stand-ins that raise `NO_TRITON` once something is launched.
    """
    if name in ("ACTIVE", "INTERPRETED"):
        return _choose()[name == "INTERPRETED"]
    if name in ("triton", "tl") and NO_TRITON:
        return _Absent(name)
    if name == "triton":
        return load_triton()
    if name == "tl":
        return load_triton().language
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def describe() -> str:
    """One line for reports: the device kernels run on, and how."""
    if _choose()[0].type == "cuda":
        major, minor = torch.cuda.get_device_capability()
        return f"{torch.cuda.get_device_name()} (SM {major}.{minor})"
    return "CPU (no Triton)" if NO_TRITON else "CPU (Triton interpreter)"

"""Kernels that cannot hurt the process: every launch is checked, access by access, before it touches memory.

    with machine.guard():
        add_kernel[(8,)](x, y, out, n, BLOCK=128)

Inside, `kernel[grid](...)` runs in the emulation of `emulate`, also where Triton would compile it for a GPU. Wrong
kernels raise: `OutOfBounds`, `UninitialisedRead`, `BFloat16Arithmetic`, `PythonGlobal`, `Recursion`, `KernelFailed`,
or `LaunchError` for what is wrong with the launch itself. `protect()` guards everything from here on.
"""

import contextlib
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from msda_core import device
from msda_core.device import load_triton
from msda_core.machine import errors
from msda_core.machine.launch import Launch, bind, tensors_of
from msda_core.machine.run import active, inductor
from msda_core.machine.run.emulate import Access, Emulation
from msda_core.machine.run.trace import Recorder

__all__ = ["check_contiguous", "guard", "protect"]


_patched: list[tuple[type, str, object]] = []
_patch_lock = threading.Lock()

device.is_guarded = active.guarded  # launchers ask it, and need not know the machine


def _patch():
    """Route launches through the guard of the calling thread, if it has one. Done once; harmless without a guard."""
    with _patch_lock:
        if _patched:
            return
        load_triton()
        from triton.runtime.autotuner import Autotuner
        from triton.runtime.interpreter import InterpretedFunction
        from triton.runtime.jit import JITFunction

        def route(kind, name, guarded):
            stock = getattr(kind, name)

            def method(self, *args, **kwargs):
                keeper = active.current()
                return stock(self, *args, **kwargs) if keeper is None else guarded(keeper, self, args, kwargs)

            method.__name__, method.__doc__ = name, stock.__doc__
            _patched.append((kind, name, stock))
            setattr(kind, name, method)

        for kind in (InterpretedFunction, JITFunction, Autotuner):
            route(kind, "run", lambda keeper, kernel, args, kwargs: keeper._run(kernel, args, kwargs))
        for kind in (InterpretedFunction, JITFunction):
            route(kind, "__call__", lambda keeper, kernel, args, kwargs: bind(kernel, None, args, kwargs))
        inductor.follow(active.current)


class guard(contextlib.AbstractContextManager):
    """Check every Triton kernel launched inside, access by access, before it touches memory.

    Args:
        uninitialised: also report reads of memory that `torch.empty` and its kin made inside the guard and that
            nothing has written since.
        contiguous: also refuse a non-contiguous tensor none of whose strides the kernel is given. The kernel would read
            it in the order of its storage, on a GPU too.
        undefined: fill the lanes that a masked load without `other` leaves undefined with NaN (the largest integer).
            The interpreter, and mostly a GPU, would give zero, which no one promises.
        observer: called with every `emulate.Access`, after the checks.
        launched: called with every `Launch`, before it runs.
        recorded: called with the `Trace` of every launch, after it ran.

    Raises, from the launch: a `MachineError`; its `lineno` and `line` are the learner's.
    """

    def __init__(
        self,
        uninitialised: bool = True,
        contiguous: bool = True,
        undefined: bool = True,
        observer=None,
        launched=None,
        recorded=None,
    ):
        self.contiguous = contiguous
        self.undefined = undefined
        self.observer = observer
        self.launched = launched
        self.recorded = recorded
        self._watch = _Allocations() if uninitialised else None

    def __enter__(self):
        _patch()
        active.stacks.stack = [*active.stacks.stack, self]
        if self._watch is not None:
            self._watch.__enter__()
        return self

    def __exit__(self, *exc):
        if self._watch is not None:
            self._watch.__exit__(*exc)
        active.stacks.stack = [other for other in active.stacks.stack if other is not self]

    def _run(self, kernel, args, kwargs):
        kwargs = dict(kwargs)
        grid, warmup = kwargs.pop("grid", None), kwargs.pop("warmup", False)
        launch = bind(kernel, grid, args, kwargs)
        if warmup:
            return None
        if self.contiguous:
            check_contiguous(launch)
        if self.launched is not None:
            self.launched(launch)
        if not launch.programs:
            return None
        emulation = Emulation(launch, None)
        emulation.poison = self.undefined
        observers = [self._watch.see] if self._watch is not None else []
        observers += [self.observer] if self.observer is not None else []
        recorder = Recorder(emulation) if self.recorded is not None else None
        observers += [recorder] if recorder is not None else []
        emulation.observer = lambda access: [see(access) for see in observers]
        emulation.run()
        if recorder is not None:
            self.recorded(recorder.finish())
        return None


def protect(**options):
    """Guard every launch of this process, in every thread, from now on. Arguments as in `guard`.

    Returns:
        a function that ends it.
    """
    _patch()
    active.everywhere[:] = [guard(**{"uninitialised": False, **options})]
    return active.everywhere.clear


def check_contiguous(launch: Launch):
    """Refuse a strided view whose strides the kernel does not know.

    Raises:
        LaunchError: a tensor is not contiguous and none of its strides is among the launch's whole numbers.
    """
    numbers = {int(v) for v in _numbers(launch.values.values())}
    for name, tensor in tensors_of(launch.values):
        if tensor.is_contiguous() or tensor.numel() < 2:
            continue
        strides = {s for s, n in zip(tensor.stride(), tensor.shape) if n > 1 and s != 1}
        if strides and not strides & numbers:
            raise errors.LaunchError(
                f"{name} of {launch.name} is not contiguous: shape {tuple(tensor.shape)}, strides {tensor.stride()}. "
                "A kernel gets only the address of the first element and would read the rest in storage order. "
                "Pass its .contiguous(), or the strides as arguments."
            )


def _numbers(values):
    for value in values:
        if isinstance(value, (tuple, list)):
            yield from _numbers(value)
        elif hasattr(value, "block_shape"):
            yield from value.strides
        elif isinstance(value, int):
            yield value


def without_dynamo(function: Callable) -> Callable:
    """Spare the first call of a mode the import of `torch._dynamo`, of 5 s: torch wraps every `__torch_dispatch__` in it.

    Where dynamo is there already it is switched off inside the mode, as torch means to.
    """

    def called(*args: Any, **kwargs: Any) -> Any:
        disable = getattr(sys.modules.get("torch._dynamo"), "disable", None)
        if disable is None:
            return function(*args, **kwargs)
        setattr(function, "__dynamo_disable", disable(function, wrapping=False))  # noqa: B010
        return getattr(function, "__dynamo_disable")(*args, **kwargs)  # noqa: B009

    setattr(function, "__dynamo_disable", called)  # noqa: B010
    return function


class _Allocations(TorchDispatchMode):
    """Which bytes of which storages have been allocated and never written."""

    def __init__(self):
        super().__init__()
        self._undefined: dict[int, tuple] = {}  # address of a storage -> (weak reference, bool per byte)

    @without_dynamo
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = func._schema.name
        if name in (
            "aten::empty",
            "aten::empty_strided",
            "aten::empty_like",
            "aten::new_empty",
            "aten::empty_permuted",
        ):
            self._forget(out)
            self._remember(out)
        elif name != "aten::new_empty_strided":
            for value in self._written(func._schema, args, kwargs):
                self._forget(value)
            for result, value in zip(func._schema.returns, out if isinstance(out, (tuple, list)) else (out,)):
                if result.alias_info is None:
                    self._forget(value)
        return out

    @staticmethod
    def _written(schema, args, kwargs):
        for i, argument in enumerate(schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[i] if i < len(args) else kwargs.get(argument.name)
                yield from value if isinstance(value, (tuple, list)) else (value,)

    def _remember(self, tensor):
        from torch.multiprocessing.reductions import StorageWeakRef

        storage = tensor.untyped_storage()
        if storage.nbytes():
            self._undefined[storage.data_ptr()] = (StorageWeakRef(storage), np.ones(storage.nbytes(), bool))

    def _forget(self, tensor):
        if isinstance(tensor, torch.Tensor) and self._undefined and tensor.layout == torch.strided:
            with contextlib.suppress(RuntimeError, NotImplementedError):  # tensors without storage
                self._undefined.pop(tensor.untyped_storage().data_ptr(), None)

    def see(self, access: Access):
        """Raise if the access reads bytes that were never written; note what it writes."""
        argument = access.argument
        if argument is None or not self._undefined:
            return
        entry = self._undefined.get(argument.tensor.untyped_storage().data_ptr())
        if entry is None or entry[0].expired():
            return
        undefined = entry[1]
        offsets = (access.addresses[access.mask] - np.uint64(argument.first)).astype(np.int64)
        if access.kind != "store":
            bad = undefined[offsets]
            if bad.any():
                offset = int(offsets[np.argmax(bad)]) - (argument.virtual - argument.first)
                element, lanes = offset // access.itemsize, int(bad.sum())
                verb = "reads" if access.kind == "load" else "adds to" if access.op.endswith("add") else "updates"
                raise errors.UninitialisedRead(
                    f"{verb} element {element} of {argument.name}, which was allocated by torch.empty and never "
                    f"written ({lanes} lanes in program {access.program}). Is a torch.zeros meant, or a store missing?",
                    access.frames,
                    access.program,
                    tensor=argument.name,
                    offset=element,
                    size=argument.size,
                    lanes=lanes,
                    kind=access.kind,
                )
        if access.kind != "load":
            for byte in range(access.itemsize):
                undefined[offsets + byte] = False

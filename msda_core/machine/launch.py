"""A launch, before it runs: the kernel unwrapped, its arguments bound and checked as the real launcher would."""

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from msda_core.device import load_triton
from msda_core.machine import errors

__all__ = [
    "Launch",
    "bind",
    "check_devices",
    "configurations",
    "constant_names",
    "is_descriptor",
    "tensors_of",
    "unwrap",
]


@dataclass(eq=False)
class Launch:
    """A kernel, unwrapped, with its arguments, constants, launch options and grid."""

    kernel: Any
    fn: types.FunctionType
    name: str
    values: dict[str, Any]  # parameter -> what the caller passed
    constants: tuple[str, ...]  # names of the constexpr parameters
    options: dict[str, Any]  # num_warps and friends
    grid: tuple[int, int, int]
    pre_hooks: list[Callable] = field(default_factory=list)

    @property
    def programs(self) -> int:
        """How many programs the grid has."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    def prepare(self) -> None:
        """What a config does to the arguments before its launch: its blocks in their descriptors, zeros in its outputs."""
        for hook in self.pre_hooks:
            hook(self.values)


def configurations(kernel, args: Sequence, kwargs: Mapping[str, Any]) -> list:
    """The configs of an autotuned kernel that survive its pruning for these arguments; empty for any other kernel."""
    load_triton()
    from triton.runtime.autotuner import Autotuner

    while kernel is not None and not isinstance(kernel, Autotuner):
        kernel = getattr(kernel, "fn", None)
    if kernel is None:
        return []
    kernel.nargs = dict(zip(kernel.arg_names, args))
    try:
        return list(kernel.prune_configs(dict(kwargs)) if len(kernel.configs) > 1 else kernel.configs)
    finally:
        kernel.nargs = None


def unwrap(kernel, args: Sequence, kwargs: Mapping[str, Any], config=None):
    """Strip `triton.autotune` and `triton.heuristics`, adding the constants and options they would add.

    An autotuned kernel runs with `config`, or else with the first of its configs that survive pruning: nothing is
    timed here.

    Returns:
        (kernel, kwargs, pre-run hooks)
    """
    load_triton()
    from triton.runtime.autotuner import Autotuner, Heuristics
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    kwargs, hooks = dict(kwargs), []
    while not isinstance(kernel, (JITFunction, InterpretedFunction)):
        if isinstance(kernel, Autotuner):
            if config is None:
                config = configurations(kernel, args, kwargs)[0]
            chosen = config.all_kwargs()
            clash = sorted(set(chosen) & set(kwargs) - {"num_warps", "num_stages", "num_ctas", "maxnreg"})
            if clash:
                raise errors.LaunchError(
                    f"{kernel.base_fn.__name__} is autotuned over {', '.join(clash)}: leave them out of the launch."
                )
            kwargs = {**chosen, **kwargs}
            if config.pre_hook is not None:
                hooks.append(lambda values, hook=config.pre_hook: hook(values))
        elif isinstance(kernel, Heuristics):
            for name, rule in kernel.values.items():
                kwargs[name] = rule({**dict(zip(kernel.arg_names, args)), **kwargs})
        elif isinstance(getattr(kernel, "fn", None), (JITFunction, InterpretedFunction, Autotuner, Heuristics)):
            pass
        else:
            what = getattr(kernel, "__name__", None) or type(kernel).__name__
            raise errors.LaunchError(
                f"Expected a Triton kernel, got {what} ({type(kernel).__name__}). Is `@triton.jit` missing above it?"
            )
        kernel = kernel.fn
    if getattr(kernel, "is_gluon", lambda: False)():
        raise errors.Unsupported(f"{kernel.__name__} is a Gluon kernel: it cannot be interpreted.")
    return kernel, kwargs, hooks


def _launch_options() -> frozenset[str]:
    from triton.backends.nvidia.compiler import CUDAOptions

    return frozenset(CUDAOptions.__dataclass_fields__) | {"debug", "instrumentation_mode"}


def constant_names(fn: types.FunctionType) -> tuple[str, ...]:
    """Names of the parameters annotated `tl.constexpr`."""
    from triton.runtime.jit import _normalize_ty

    notes = inspect.get_annotations(fn)
    return tuple(n for n in inspect.signature(fn).parameters if n in notes and _normalize_ty(notes[n]) == "constexpr")


def bind(kernel, grid, args: Sequence, kwargs: Mapping[str, Any], config=None) -> Launch:
    """Check a launch as the real launcher would, and more strictly than the interpreter does.

    Args:
        kernel: any object that `kernel[grid](...)` works on.
        grid: tuple of 1 to 3 whole numbers, or a function from the bound arguments to one; None if there is none.
        config: of `configurations`, for an autotuned kernel; the first of them by default.

    Raises:
        LaunchError: no kernel, no grid, a bad grid, missing or unknown arguments.
        Unsupported: a Gluon kernel.
    """
    kernel, kwargs, hooks = unwrap(kernel, args, kwargs, config)
    fn = kernel.fn
    if grid is None:
        raise errors.LaunchError(
            f"{fn.__name__} was called like a function. Launch it over a grid: {fn.__name__}[grid](...)."
        )
    signature = inspect.signature(fn)
    known = _launch_options()
    options = {k: v for k, v in kwargs.items() if k in known and k not in signature.parameters}
    unknown = [k for k in kwargs if k not in signature.parameters and k not in known]
    if unknown:
        raise errors.LaunchError(
            f"{fn.__name__} has no parameter {', '.join(unknown)}; it takes {', '.join(signature.parameters)}."
        )
    try:
        bound = signature.bind(*args, **{k: v for k, v in kwargs.items() if k in signature.parameters})
    except TypeError as error:
        raise errors.LaunchError(f"{fn.__name__}{signature}: {error}.") from None
    bound.apply_defaults()
    values = dict(bound.arguments)
    if callable(grid):
        grid = grid(values)
    try:
        grid = tuple(int(n) for n in grid)
    except TypeError:
        raise errors.LaunchError(
            f"The grid of {fn.__name__} must be a tuple of 1 to 3 whole numbers, got {grid!r}. Is a comma missing?"
        ) from None
    if not 1 <= len(grid) <= 3 or min(grid) < 0:
        raise errors.LaunchError(
            f"The grid of {fn.__name__} must be 1 to 3 whole numbers that are not negative, got {grid}."
        )
    if getattr(kernel, "pre_run_hooks", None):
        hooks = [*hooks, *(lambda values, hook=h: hook(**values) for h in kernel.pre_run_hooks)]
    return Launch(kernel, fn, fn.__name__, values, constant_names(fn), options, grid + (1,) * (3 - len(grid)), hooks)


def check_devices(launch: Launch):
    """Refuse tensors on different devices, or with no memory at all.

    Raises:
        LaunchError: says which tensor is where.
    """
    devices: dict[str, str] = {}
    for name, tensor in tensors_of(launch.values):
        devices.setdefault(str(tensor.device), name)
    if len(devices) > 1:
        where = ", ".join(f"{name} on {device}" for device, name in devices.items())
        raise errors.LaunchError(f"The tensors of {launch.name} are on different devices: {where}.")
    if any(device.startswith("meta") for device in devices):
        raise errors.LaunchError(f"The tensors of {launch.name} are on the meta device: they have no memory to read.")


def tensors_of(values: Mapping[str, Any]):
    """(name, tensor) of every tensor among the arguments, inside tuples and descriptors too."""

    def walk(name, value):
        if isinstance(value, (tuple, list)):
            for i, item in enumerate(value):
                yield from walk(f"{name}[{i}]", item)
        elif is_descriptor(value):
            yield from walk(name, value.base)
        elif isinstance(value, torch.Tensor):
            yield name, value
        elif isinstance(getattr(value, "base", None), torch.Tensor):  # triton.reinterpret
            yield name, value.base

    for name, value in values.items():
        yield from walk(name, value)


def is_descriptor(value) -> bool:
    """Whether an argument is a tensor descriptor (TMA), which is refused."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    return isinstance(value, TensorDescriptor)

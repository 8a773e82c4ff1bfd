"""Kernels that Inductor wrote: their launchers compile and tune for themselves, and never come to Triton's.

`follow` routes them like any other launch, as an autotuned kernel with Inductor's own configs. Inductor is not imported
for that; it is met when somebody else imports it.
"""

import functools
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["follow"]

_HEURISTICS, _HELPERS = "torch._inductor.runtime.triton_heuristics", "torch._inductor.runtime.triton_helpers"


def follow(current: Callable[[], Any]) -> None:
    """Give the launches of `CachingAutotuner` to whatever guard `current` names; they run as they are where it is None."""
    _once_imported(_HEURISTICS, functools.partial(_route, current))
    _once_imported(_HELPERS, functools.partial(_keep_driver, current))


def _route(current: Callable[[], Any], module: Any) -> None:
    kind = module.CachingAutotuner
    run, precompile = kind.run, kind.precompile

    def guarded_run(self, *args, **kwargs):
        keeper = current()
        if keeper is None:
            return run(self, *args, **kwargs)
        kwargs.pop("stream", None)
        kwargs.pop("benchmark_run", None)
        tuned, grid = _as_triton_has_it(module, self, args)
        return keeper._run(tuned, args[: len(_parameters(self))], {**kwargs, "grid": grid, "warmup": False})

    def guarded_precompile(self, *args, **kwargs):
        return None if current() is not None else precompile(self, *args, **kwargs)

    kind.run, kind.precompile = guarded_run, guarded_precompile


def _keep_driver(current: Callable[[], Any], module: Any) -> None:
    stock = module.set_driver_to_gpu
    module.set_driver_to_gpu = lambda: None if current() is not None else stock()


def _parameters(tuned: Any) -> list[str]:
    """The parameters that a caller passes: all but the constants."""
    signature = tuned.triton_meta["signature"]
    given = {name for config in tuned.configs for name in config.kwargs}
    return [name for name, kind in signature.items() if kind != "constexpr" and name not in given]


def _as_triton_has_it(module: Any, tuned: Any, args: tuple) -> tuple[Any, Callable]:
    """(Triton's own autotuner over the same kernel and configs, its grid)."""
    from triton.runtime.autotuner import Autotuner

    names = [*_parameters(tuned), *tuned.inductor_meta.get("extra_launcher_args", ())]
    known = dict(zip(names, args))

    def grid(values: dict[str, Any]) -> tuple[int, ...]:
        config = {name: values[name] for one in tuned.configs for name in one.kwargs if name in values}
        return module.GridExpr.from_meta(tuned.inductor_meta, config).eval_slow(known)

    kernel = tuned.fn
    return Autotuner(kernel, kernel.arg_names, list(tuned.configs), [], None, None), grid


class _Finder(importlib.abc.MetaPathFinder):
    """Tells what follows a module's import."""

    def __init__(self, name: str, then: Callable[[Any], None]):
        self.name, self.then = name, then

    def find_spec(self, name, path=None, target=None):
        """The module's own spec, with its loader wrapped."""
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            self.then(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _once_imported(name: str, then: Callable[[Any], None]) -> None:
    if name in sys.modules:
        then(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Finder(name, then))

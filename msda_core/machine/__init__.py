"""The paper GPU: what a profiler would say about a Triton kernel, without the GPU.

    from msda_core import machine

    with machine.guard():                                   # a wrong kernel raises, with its line; nothing is touched
        add_kernel[(8,)](x, y, out, n, BLOCK=128)

    report = machine.profile(add_kernel, (8,), x, y, out, n, BLOCK=128, num_warps=4, target="sm_90")
    report.loads.requests, report.loads.sectors             # as Nsight Compute counts them
    report.by_line[17].sectors                              # the same, for one line of the source
    report.unique_bytes, report.efficiency                  # compulsory bytes; useful over delivered
    print(report)                                           # a table

    lowering = machine.lower(add_kernel, "*fp16", "*fp16", "*fp16", 4096, BLOCK=128, target="sm_80")
    lowering.loads, lowering.ptx_of(17), lowering.registers, lowering.sass

    trace = machine.trace(add_kernel, (8,), x, y, out, n, BLOCK=128)
    machine.races(trace)                                    # what nothing orders
    machine.interleave(histogram, (64,), (x, bins, n), seed=1, BLOCK=1).lost
    machine.estimate(report, "RTX 4090")                    # a model, and says so

`run` runs a kernel in Triton's interpreter; `compile` compiles it in a child process; `counts` puts the two together, by
source correlation; `model` says what the counts cost. Nothing of it is loaded before it is used.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "compile.lower": ("TARGETS", "Lowering", "lower", "warm"),
    "counts.calls": ("Lanes", "profile_calls", "trace_calls", "worst_request"),
    "counts.profile": ("profile",),
    "counts.traffic": ("Report", "Request", "Traffic", "count", "issued"),
    "errors": (
        "BFloat16Arithmetic",
        "CompileError",
        "KernelError",
        "KernelFailed",
        "LaunchError",
        "MachineError",
        "NoCompiler",
        "OutOfBounds",
        "PythonGlobal",
        "Recursion",
        "UninitialisedRead",
        "Unsupported",
    ),
    "model.roofline": ("GPU", "GPUS", "Occupancy", "Roofline", "occupancy", "roofline"),
    "model.timing": ("Estimate", "estimate"),
    "run.active": ("guarded",),
    "run.guard": ("guard", "protect"),
    "run.interleave": ("Interleaving", "LostUpdate", "Step", "interleave", "witness"),
    "run.races": ("Race", "races"),
    "tool.budgets": ("OverBudget", "budget"),
    "tool.session": ("Profiled", "session"),
    "run.trace": ("Event", "Site", "Trace", "trace"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    """A public name, from the module that defines it."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    return value


def __dir__() -> list[str]:
    """Every public name, loaded or not."""
    return sorted({*globals(), *__all__})

"""The paper GPU: what a profiler would say about a Triton kernel, without the GPU."""

from msda_core.machine.errors import (
    BFloat16Arithmetic,
    CompileError,
    KernelError,
    KernelFailed,
    LaunchError,
    MachineError,
    NoCompiler,
    OutOfBounds,
    PythonGlobal,
    Recursion,
    UninitialisedRead,
    Unsupported,
)
from msda_core.machine.guard import guard, protect
from msda_core.machine.lower import TARGETS, Lowering, lower, warm
from msda_core.machine.trace import Event, Site, Trace, trace
from msda_core.machine.traffic import Report, Request, Traffic, count, issued, profile

__all__ = [
    "BFloat16Arithmetic",
    "CompileError",
    "Event",
    "KernelError",
    "KernelFailed",
    "LaunchError",
    "Lowering",
    "MachineError",
    "NoCompiler",
    "OutOfBounds",
    "PythonGlobal",
    "Recursion",
    "Report",
    "Request",
    "Site",
    "TARGETS",
    "Trace",
    "Traffic",
    "UninitialisedRead",
    "Unsupported",
    "count",
    "guard",
    "issued",
    "lower",
    "profile",
    "protect",
    "trace",
    "warm",
]

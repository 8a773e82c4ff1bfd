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
from msda_core.machine.trace import Event, Site, Trace, trace

__all__ = [
    "BFloat16Arithmetic",
    "CompileError",
    "Event",
    "KernelError",
    "KernelFailed",
    "LaunchError",
    "MachineError",
    "NoCompiler",
    "OutOfBounds",
    "PythonGlobal",
    "Recursion",
    "Site",
    "Trace",
    "UninitialisedRead",
    "Unsupported",
    "guard",
    "protect",
    "trace",
]

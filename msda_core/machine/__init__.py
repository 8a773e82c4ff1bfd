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
from msda_core.machine.guard import guard, guarded, protect
from msda_core.machine.lower import TARGETS, Lowering, lower, warm
from msda_core.machine.race import Interleaving, LostUpdate, Race, Step, interleave, races
from msda_core.machine.roofline import GPU, GPUS, Estimate, Occupancy, Roofline, estimate, occupancy, roofline
from msda_core.machine.trace import Event, Site, Trace, trace
from msda_core.machine.traffic import Report, Request, Traffic, count, issued, profile

__all__ = [
    "BFloat16Arithmetic",
    "CompileError",
    "Estimate",
    "Event",
    "GPU",
    "GPUS",
    "Interleaving",
    "KernelError",
    "KernelFailed",
    "LaunchError",
    "LostUpdate",
    "Lowering",
    "MachineError",
    "NoCompiler",
    "Occupancy",
    "OutOfBounds",
    "PythonGlobal",
    "Race",
    "Recursion",
    "Report",
    "Request",
    "Roofline",
    "Site",
    "Step",
    "TARGETS",
    "Trace",
    "Traffic",
    "UninitialisedRead",
    "Unsupported",
    "count",
    "estimate",
    "guard",
    "guarded",
    "interleave",
    "issued",
    "lower",
    "occupancy",
    "profile",
    "protect",
    "races",
    "roofline",
    "trace",
    "warm",
]

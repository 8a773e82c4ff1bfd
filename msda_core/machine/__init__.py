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

`guard` and `trace` run a kernel (`emulate`); `lower` compiles it in a child process (`worker`); `count` puts the two
together (`pairing`, `layout`, `ptx`, `traffic`). `calibrate` measured the model against an H200: `data/`.
"""

from msda_core.machine.compile.lower import TARGETS, Lowering, lower, warm
from msda_core.machine.counts.traffic import Report, Request, Traffic, count, issued, profile
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
from msda_core.machine.model.roofline import GPU, GPUS, Estimate, Occupancy, Roofline, estimate, occupancy, roofline
from msda_core.machine.run.guard import guard, guarded, protect
from msda_core.machine.run.races import Interleaving, LostUpdate, Race, Step, interleave, races
from msda_core.machine.run.trace import Event, Site, Trace, trace

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

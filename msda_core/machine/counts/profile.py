"""One launch, run, compiled and counted."""

from msda_core.machine.compile.lower import lower_launch
from msda_core.machine.counts.sample import extrapolated
from msda_core.machine.counts.traffic import Report, count
from msda_core.machine.launch import bind
from msda_core.machine.run.emulate import Emulation
from msda_core.machine.run.sample import record

__all__ = ["profile"]


def profile(
    kernel,
    grid,
    *args,
    num_warps: int | None = None,
    target="sm_90",
    every: int | None = None,
    seconds: float | None = None,
    **kwargs,
) -> Report:
    """Run a kernel on the host, lower it for a GPU, and count what that GPU's profiler would count.

    Args:
        kernel, grid, *args: as in `kernel[grid](*args)`. Tensors are written to, as by a launch.
        num_warps: warps of one program; 4 unless an autotuned configuration says otherwise.
        target: compute capability to lower for: "sm_80", "sm_89", "sm_90", "sm_100", "sm_120", ...
        every: run and count only each so-manyth program, and extrapolate.
        seconds: run a random sample of the programs where all of them would take longer; see `Report.sampled`.
        **kwargs: further arguments, constants and launch options.

    Raises:
        MachineError: whatever is wrong with the kernel, in the emulation or in the compiler.
    """
    if num_warps is not None:
        kwargs["num_warps"] = num_warps
    launch = bind(kernel, grid, args, kwargs)
    launch.prepare()
    lowering = lower_launch(launch, target)
    lowering.check_cache_modifiers()
    emulation = Emulation(launch, target=lowering.target)
    return extrapolated(count(record(emulation, every, seconds), lowering))

"""A launch that costs the host a third of Triton's own."""

import threading
from typing import Any

import torch
from torch import Tensor

from msda_core import device
from msda_core.device import INTERPRETED, load_triton

triton = load_triton()

__all__ = ["Plan", "launch"]


class Plan:
    """A call's grid, what follows its tensors in the kernel's signature, and Triton's options. Equal only to itself."""

    __slots__ = ("constants", "grid", "options")

    def __init__(self, grid: tuple[int, int, int], constants: tuple, num_warps: int, **options: int) -> None:
        self.grid, self.constants, self.options = grid, constants, {"num_warps": num_warps, **options}


_compiled: dict[tuple, tuple] = {}
_interpreter = threading.RLock()  # Triton's interpreter runs one kernel at a time


def launch(kernel: Any, plan: Plan, tensors: tuple[Tensor | None, ...]) -> None:
    """`kernel[grid](*tensors, *constants, **options)` on the tensors' own device, and its current stream.

    Triton inspects every argument of every launch, 17 µs of host time for these kernels on the machine of `LOG.md`.
    All of what it looks for is in the plan, the dtypes and the alignment, so calls that agree in those reuse the
    compiled kernel (7 µs). A pointer that is not 16-byte aligned takes Triton's way, as does a profiler's hook, and every
    launch on an AMD GPU.
    """
    if INTERPRETED:
        import numpy as np

        with (
            _interpreter,
            np.errstate(over="ignore", invalid="ignore"),
        ):  # a float16 past 65504 is infinite, without a word
            kernel[plan.grid](*tensors, *plan.constants, **plan.options)
        return
    if device.is_guarded() or device.is_rocm():
        options = {name: value for name, value in plan.options.items() if name != "maxnreg" or not device.is_rocm()}
        kernel[plan.grid](*tensors, *plan.constants, **options)
        return
    where = next(tensor.device for tensor in tensors if tensor is not None)
    if where.index != torch._C._cuda_getDevice():
        with torch.cuda.device(where):
            return launch(kernel, plan, tensors)
    pointers, dtypes, misaligned = [], [], 0
    for tensor in tensors:
        pointer = None if tensor is None else tensor.data_ptr()
        pointers.append(pointer)
        dtypes.append(None if tensor is None else tensor.dtype)
        misaligned |= (pointer or 0) & 15
    key = (plan, where.index, *dtypes)
    compiled = _compiled.get(key)
    if compiled is None or misaligned or _hooked():
        binary = kernel[plan.grid](*tensors, *plan.constants, **plan.options)
        if not misaligned:
            if len(_compiled) >= 4096:
                _compiled.clear()
            _compiled[key] = binary.run, binary.function, binary.packed_metadata
        return
    run, function, metadata = compiled
    stream = torch._C._cuda_getCurrentRawStream(where.index)
    run(*plan.grid, stream, function, metadata, None, None, None, *pointers, *plan.constants)


def _hooked() -> bool:
    hook = triton.knobs.runtime.launch_enter_hook
    return bool(getattr(hook, "calls", hook))

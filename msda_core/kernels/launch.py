"""How a call is cut into programs, and a launch that costs the host a third of Triton's own."""

from typing import NamedTuple

import torch
from torch import Tensor

from msda_core.device import INTERPRETED, load_triton
from msda_core.machine.run.active import guarded

triton = load_triton()
tl = triton.language

__all__ = ["MAX_BATCH", "Launch", "Plan", "launch", "offset_type"]

#: Batch items are the third axis of the grid, which CUDA limits to this many.
MAX_BATCH = 65535


class Launch(NamedTuple):
    """What a kernel is specialised on besides the sizes M, D, L, K.

    BLOCK_Q queries times BLOCK_M neighbouring heads are the rows of a program's tile, BLOCK_P points and BLOCK_D
    channels its other two axes. Where a row has more points than BLOCK_P, the program loops, UNROLL steps at a time.
    EVICT is the cache policy of the loads of value: "" or "evict_first". Without `maxnreg`, a limit of registers a
    thread, the assembler sets itself one, and spills a little where it would fit one more program.
    """

    BLOCK_Q: int
    BLOCK_M: int
    BLOCK_P: int
    BLOCK_D: int
    num_warps: int
    UNROLL: int = 1
    EVICT: str = ""
    maxnreg: int | None = None

    @property
    def options(self) -> dict[str, int]:
        """Triton's options of the launch."""
        limit = {} if self.maxnreg is None else {"maxnreg": self.maxnreg}
        return {"num_warps": self.num_warps, **limit}

    def grid(self, B: int, Q: int, M: int) -> tuple[int, int, int]:
        """Programs along (queries, heads, batch).

        Raises:
            ValueError: more programs along an axis than a launch can have.
        """
        grid = (-(-Q // self.BLOCK_Q), -(-M // self.BLOCK_M), B)
        if grid[0] >= 2**31 or grid[1] > 65535 or grid[2] > MAX_BATCH:
            raise ValueError(
                f"a launch holds at most (2^31 - 1, 65535, {MAX_BATCH}) programs along (queries, heads, batch), "
                f"got {grid} for Q = {Q}, M = {M}, B = {B}. Are the heads folded into the wrong axis?"
            )
        return grid


def offset_type(S: int, Q: int, M: int, D: int, L: int, K: int):
    """The narrowest integer that numbers the elements of one batch item: `tl.int32`, or `tl.int64` past 2^31."""
    return tl.int32 if max(S * M * D, Q * M * D, 2 * Q * M * L * K) < 2**31 else tl.int64


class Plan:
    """A call's grid, what follows its tensors in the kernel's signature, and Triton's options. Equal only to itself."""

    __slots__ = ("constants", "grid", "options")

    def __init__(self, grid: tuple[int, int, int], constants: tuple, num_warps: int, **options: int):
        self.grid, self.constants, self.options = grid, constants, {"num_warps": num_warps, **options}


_compiled: dict[tuple, tuple] = {}


def launch(kernel, plan: Plan, tensors: tuple[Tensor | None, ...]) -> None:
    """`kernel[grid](*tensors, *constants, **options)` on the tensors' own device, and its current stream.

    Triton inspects every argument of every launch, 17 µs of host time for these kernels on the machine of `LOG.md`.
    All of what it looks for is in the plan, the dtypes and the alignment, so calls that agree in those reuse the
    compiled kernel (7 µs). A pointer that is not 16-byte aligned takes Triton's way, as does a profiler's hook.
    """
    device = tensors[0].device
    if INTERPRETED or guarded():
        kernel[plan.grid](*tensors, *plan.constants, **plan.options)
        return
    if device.index != torch._C._cuda_getDevice():
        with torch.cuda.device(device):
            return launch(kernel, plan, tensors)
    pointers, dtypes, misaligned = [], [], 0
    for tensor in tensors:
        pointer = None if tensor is None else tensor.data_ptr()
        pointers.append(pointer)
        dtypes.append(None if tensor is None else tensor.dtype)
        misaligned |= (pointer or 0) & 15
    key = (plan, device.index, *dtypes)
    compiled = _compiled.get(key)
    if compiled is None or misaligned or _hooked():
        binary = kernel[plan.grid](*tensors, *plan.constants, **plan.options)
        if not misaligned:
            if len(_compiled) >= 4096:
                _compiled.clear()
            _compiled[key] = binary.run, binary.function, binary.packed_metadata
        return
    run, function, metadata = compiled
    stream = torch._C._cuda_getCurrentRawStream(device.index)
    run(*plan.grid, stream, function, metadata, None, None, None, *pointers, *plan.constants)


def _hooked() -> bool:
    hook = triton.knobs.runtime.launch_enter_hook
    return bool(getattr(hook, "calls", hook))

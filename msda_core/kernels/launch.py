"""How a call is cut into programs, and a launch that costs the host a third of Triton's own."""

from typing import NamedTuple

import torch
from torch import Tensor

from msda_core.device import INTERPRETED, load_triton
from msda_core.machine.guard import guarded

triton = load_triton()
tl = triton.language

__all__ = ["MAX_BATCH", "Launch", "launch", "offset_type"]

#: Batch items are the third axis of the grid, which CUDA limits to this many.
MAX_BATCH = 65535


class Launch(NamedTuple):
    """What a kernel is specialised on besides the sizes M, D, L, K.

    BLOCK_Q queries times BLOCK_M neighbouring heads are the rows of a program's tile, BLOCK_P points and BLOCK_D
    channels its other two axes. Where a row has more points than BLOCK_P, the program loops, UNROLL steps at a time.
    EVICT is the cache policy of the loads of value: "" or "evict_first".
    """

    BLOCK_Q: int
    BLOCK_M: int
    BLOCK_P: int
    BLOCK_D: int
    num_warps: int
    UNROLL: int = 1
    EVICT: str = ""

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


_compiled: dict[tuple, tuple] = {}


def launch(kernel, grid: tuple[int, int, int], tensors: tuple[Tensor | None, ...], constants: tuple, num_warps: int):
    """`kernel[grid](*tensors, *constants, num_warps=num_warps)` on the tensors' own device, and current stream.

    Triton inspects every argument of every launch, 17 µs of host time for these kernels on the machine of `LOG.md`.
    All of what it looks for is in the dtypes, the alignment and the constants, so calls that agree in those reuse the
    compiled kernel (7 µs). A pointer that is not 16-byte aligned takes Triton's way, as does a profiler's hook.
    """
    device = tensors[0].device
    if INTERPRETED or guarded():
        kernel[grid](*tensors, *constants, num_warps=num_warps)
        return
    if device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            return launch(kernel, grid, tensors, constants, num_warps)
    key = (kernel, num_warps, device, constants, *[None if t is None else t.dtype for t in tensors])
    pointers = [None if t is None else t.data_ptr() for t in tensors]
    compiled = _compiled.get(key)
    if compiled is None or any(p is not None and p % 16 for p in pointers) or _hooked():
        binary = kernel[grid](*tensors, *constants, num_warps=num_warps)
        if not any(p is not None and p % 16 for p in pointers):
            if len(_compiled) > 4096:
                _compiled.clear()
            _compiled[key] = binary.run, binary.function, binary.packed_metadata
        return
    run, function, metadata = compiled
    stream = torch._C._cuda_getCurrentRawStream(device.index)
    run(*grid, stream, function, metadata, None, None, None, *pointers, *constants)


def _hooked() -> bool:
    hook = triton.knobs.runtime.launch_enter_hook
    return bool(getattr(hook, "calls", hook))

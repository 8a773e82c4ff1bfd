"""How a call is divided into programs: what a kernel is specialised on besides its sizes."""

from typing import Any, NamedTuple

from msda_core.device import load_triton

triton = load_triton()
tl = triton.language

__all__ = ["MAX_BATCH", "LaunchConfig", "offset_type"]

#: Batch items are the third axis of the grid, which CUDA limits to this many.
MAX_BATCH = 65535


class LaunchConfig(NamedTuple):
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


def offset_type(S: int, Q: int, M: int, D: int, L: int, K: int) -> Any:
    """The narrowest integer that numbers the elements of one batch item: `tl.int32`, or `tl.int64` past 2^31."""
    return tl.int32 if max(S * M * D, Q * M * D, 2 * Q * M * L * K) < 2**31 else tl.int64

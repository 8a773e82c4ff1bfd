"""Which operation of the TTGIR became which instructions of the PTX.

Source positions hold the two together, and every compiler pass blurs them a little: lines and columns decide first,
byte counts and order last.
"""

from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np

from msda_core.machine.compile.ptx import Instruction
from msda_core.machine.compile.ttgir import MemoryOp

__all__ = ["Bound", "bind_instructions"]


@dataclass(eq=False)
class Bound:
    """An operation of the TTGIR with its PTX instructions, in the order of its registers; none if the PTX lost it."""

    op: MemoryOp
    run: list[Instruction]

    @property
    def instruction(self) -> Instruction:
        """The first of its instructions; the others are alike."""
        return self.run[0]

    @property
    def width(self) -> int:
        """Bytes each thread moves in one instruction."""
        return self.run[0].bytes

    @property
    def loop(self) -> bool:
        """An atomic without an instruction of its own, in the PTX or in the machine code."""
        parts = self.instruction.mnemonic.split(".")
        alone = parts[-1] in ("f16", "bf16") and not any(p in ("v2", "v4", "v8") for p in parts)
        return self.op.kind == "atomic" and self.op.op != "cas" and (alone or "cas" in parts)

    @property
    def same(self) -> tuple:
        """What two loads of one address must share for the assembler to merge them."""
        return self.op.encoding, self.op.shape, self.width

    def fresh(self, count: int) -> np.ndarray:
        """Which of its `count` instructions the assembler keeps: one that loads the same address again is merged."""
        keep = np.ones(count, bool)
        if self.op.kind == "load" and len(self.run) == count:
            seen: set[tuple] = set()
            for j, i in enumerate(self.run):
                keep[j] = i.repeats not in seen
                seen.add(i.repeats)
        return keep


def bind_instructions(ops: list[MemoryOp], accesses: list[Instruction]) -> list[Bound]:
    """Pair the operations of the TTGIR with PTX instructions.

    By line and column where the bytes then add up for every operation of a kind. Triton 3.9 writes the line of a
    neighbour above some instructions; then by order, if the bytes add up that way.
    """
    runs: list[list[Instruction]] = [[] for _ in ops]
    for kind in {op.kind for op in ops}:
        mine = [i for i, op in enumerate(ops) if op.kind == kind]
        pool = [i for i in accesses if i.kind == kind]
        some = [ops[i] for i in mine]
        if kind == "load":  # the loads of compare-and-swap loops are not the kernel's
            pool = [i for i in pool if "relaxed" not in i.mnemonic]
        if kind == "atomic" and all(op.op != "cas" for op in some):  # a loop moves one element a turn
            narrow = min(op.itemsize for op in some)
            pool = [replace(i, bytes=narrow) if ".cas" in i.mnemonic else i for i in pool]
        placed, complete = _by_place(some, pool)
        found = placed if complete else _deal(some, pool) or placed
        for i, run in zip(mine, found):
            runs[i] = run
    return [Bound(op, run) for op, run in zip(ops, runs)]


def _per_thread(op: MemoryOp) -> int:
    """Bytes one thread moves in an operation."""
    return (op.layout.registers if op.layout else 1) * op.itemsize


def _deal(ops: list[MemoryOp], pool: list[Instruction]) -> list[list[Instruction]] | None:
    """Deal instructions out in order, to each operation as many as it needs; None if that does not come out even."""
    found, cursor = [], 0
    for op in ops:
        need, first = _per_thread(op), cursor
        while need > 0 and cursor < len(pool) and pool[cursor].bytes == pool[first].bytes:
            need -= pool[cursor].bytes
            cursor += 1
        if need or cursor == first:
            return None
        found.append(pool[first:cursor])
    return found if cursor == len(pool) else None


def _by_place(ops: list[MemoryOp], pool: list[Instruction]) -> tuple[list[list[Instruction]], bool]:
    """Instructions by line and column; what has none of its own takes from what nobody claimed.

    Returns:
        (the instructions of each operation, whether the bytes add up everywhere)
    """
    found: list[list[Instruction]] = [[] for _ in ops]
    groups: dict[tuple, list[int]] = defaultdict(list)
    for index, op in enumerate(ops):
        groups[(op.places[-1].line, op.places[-1].column) if op.places else ()].append(index)
    claimed: set[int] = set()
    complete = True
    late = []
    for place, members in groups.items():
        here = [i for i in pool if (i.line, i.column) == place]
        if not here:
            late.extend(members)
            continue
        claimed.update(map(id, here))
        dealt = _deal([ops[m] for m in members], here)
        if dealt is None:
            moved, needed = sum(i.bytes for i in here), sum(_per_thread(ops[m]) for m in members)
            uniform = len({i.bytes for i in here}) == 1
            complete &= uniform and moved % needed == 0  # a multiple: LLVM unrolled the loop
            dealt = [here[:1]] * len(members)
        for index, run in zip(members, dealt):
            found[index] = run
    for index in sorted(late):
        need = _per_thread(ops[index])
        spare = [i for i in pool if id(i) not in claimed and i.bytes <= need]
        for i in spare:
            if need <= 0 or i.bytes != spare[0].bytes:
                break
            claimed.add(id(i))
            need -= i.bytes
            found[index].append(i)
        if not spare:
            place = ops[index].places
            found[index] = [i for i in pool if place and i.line == place[-1].line][:1]
    return found, complete and not late and len(claimed) == len(pool)

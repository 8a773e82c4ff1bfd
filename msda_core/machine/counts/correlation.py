"""Which access of the source became which operation of the TTGIR, and which instructions of the PTX.

The three tell the same story in three notations, held together by source positions, which every compiler pass blurs a
little. Lines decide first, columns next, byte counts and order last.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from msda_core.machine.compile.ptx import Instruction
from msda_core.machine.compile.ttgir import MemoryOp

if TYPE_CHECKING:
    from msda_core.machine.compile.lower import Lowering
    from msda_core.machine.run.trace import Event, Site

__all__ = ["Bound", "bind_instructions", "executed", "match"]


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


def bind_instructions(lowering: Lowering) -> list[Bound]:
    """Pair the operations of the TTGIR with PTX instructions.

    By line and column where the bytes then add up for every operation of a kind. Triton 3.9 writes the line of a
    neighbour above some instructions; then by order, if the bytes add up that way.
    """
    ops = lowering.operations
    runs: list[list[Instruction]] = [[] for _ in ops]
    for kind in {op.kind for op in ops}:
        mine = [i for i, op in enumerate(ops) if op.kind == kind]
        pool = [i for i in lowering.instructions if i.kind == kind]
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


def _families(bound: list[Bound]) -> list[list[Bound]]:
    """Operations with the same call chain (an unrolled loop gives several), in order of the text."""
    families: dict[tuple, list[Bound]] = {}
    for b in bound:
        families.setdefault((b.op.kind, b.op.name, b.op.op, b.op.places), []).append(b)
    return list(families.values())


#: The interpreter's and the compiler's names for one atomic.
_OPS = {"fadd": "add", "xchg": "exch"}


def _covers(site: Site, op: MemoryOp) -> bool:
    """Whether an operation can have come from this place: same kind, same depth of calls, lines that fit."""
    kind = "load" if op.kind == "async" else op.kind
    if kind != site.kind or _OPS.get(op.op, op.op) != _OPS.get(site.op, site.op) or len(op.places) != len(site.frames):
        return False
    return all(f.lineno <= p.line <= f.end_lineno for p, f in zip(op.places, site.frames))


def match(sites: list[Site], bound: list[Bound]) -> dict[Site, list[Bound]]:
    """The operations each place of the trace became; none where the compiler removed it.

    Lines decide first, columns next (their origin is 0 or 1, by version), and the order of execution last.
    """
    families = _families(bound)
    matched: dict[Site, list[Bound]] = {}
    taken: set[int] = set()
    for origin in (1, 0):
        trial = {}
        for site in sites:
            columns = tuple(f.column + origin for f in site.frames)
            hits = [
                i
                for i, family in enumerate(families)
                if i not in taken
                and _covers(site, family[0].op)
                and tuple(p.column for p in family[0].op.places) == columns
            ]
            if hits:
                trial[site] = hits
        if len(trial) > len(matched):
            matched, used = trial, {i for hits in trial.values() for i in hits}
    if matched:
        taken = used
    result = {site: [b for i in hits for b in families[i]] for site, hits in matched.items()}
    open_sites = [s for s in sites if s not in result]
    open_families = [i for i in range(len(families)) if i not in taken]
    for site in open_sites:
        rivals = [s for s in open_sites if s not in result and _lines(s) == _lines(site) and s.kind == site.kind]
        hits = [i for i in open_families if i not in taken and _covers(site, families[i][0].op)]
        if hits:
            # With fewer families than rivals the later duplicates were merged into the first.
            result[site] = families[hits[0]]
            taken.add(hits[0])
            if len(rivals) == 1:
                for extra in hits[1:]:
                    if families[extra][0].same == families[hits[0]][0].same:
                        result[site] = result[site] + families[extra]
                        taken.add(extra)
    return result


def _lines(site: Site) -> tuple:
    return tuple(f.lineno for f in site.frames)


def executed(events: list[Event], ops: list[Bound]) -> list[tuple[Bound, list[Event]]]:
    """Events of one place, split by the operation that executed them.

    An unrolled loop gives copies of one layout, which take turns. Copies of different layouts each do all of the work:
    the compiler prefers loading twice to moving data between layouts. Repetitions of a hoisted load are dropped.
    """
    programs: dict[tuple, list[Event]] = {}
    for event in events:
        programs.setdefault(event.program, []).append(event)
    layouts: dict[tuple, list[Bound]] = {}
    for b in ops:
        layouts.setdefault((b.op.encoding, b.op.shape), []).append(b)
    result = []
    for copies in layouts.values():
        hoisted = all(b.op.depth == 0 for b in copies)
        uniform = len({b.same for b in copies}) == 1
        turns: dict[int, list[Event]] = defaultdict(list)
        for own in programs.values():
            own = _distinct(own) if hoisted and len(own) > len(copies) else own
            for i, event in enumerate(own):
                turns[0 if uniform else i % len(copies)].append(event)
        result += [(copies[i], turn) for i, turn in sorted(turns.items())]
    return result


def _distinct(events: list[Event]) -> list[Event]:
    """Events whose addresses and mask differ, the first of each."""
    kept: dict[tuple, Event] = {}
    for event in events:
        kept.setdefault((event.addresses.tobytes(), event.mask.tobytes()), event)
    return list(kept.values())

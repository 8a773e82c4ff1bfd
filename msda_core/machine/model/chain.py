"""How long one warp takes alone: its machine code issued in order, each instruction when what it reads is there.

Fixed latencies are those of Hopper, to within a few clocks; what a trip to memory takes is left open: a warp waits
`rounds` such trips one after another, and `clocks` for everything else.

Source: Luo et al. (2024), Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via Microbenchmarking.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["waits"]

_LATENCY = {
    "MUFU": 20, "F2F": 14, "F2I": 14, "I2F": 14, "FRND": 14, "SHFL": 24, "LDS": 30, "LDSM": 33, "S2R": 20, "S2UR": 20,
    "LDC": 30, "REDUX": 30, "HMMA": 33, "IMMA": 33, "QMMA": 33, "R2UR": 12, "DADD": 16, "DMUL": 16, "DFMA": 16, "DSETP": 16,
    "ATOMS": 60, "VOTE": 12, "VOTEU": 12, "POPC": 14,
}  # fmt: skip
_TENSOR = ("HGMMA", "QGMMA", "IGMMA")
_SILENT = ("STG", "STS", "STSM", "STL", "RED", "REDG", "BRA", "EXIT", "BAR", "BSYNC", "WARPSYNC", "MEMBAR", "ERRBAR", "CCTL",
           "LDGSTS", "LDGDEPBAR", "DEPBAR", "WARPGROUP", "NOP", "UTMALDG", "SYNCS", "FENCE", "DEPBAR")  # fmt: skip
_BARRIER = 24
#: Turns of a loop that are followed; the last of them, over which a pipeline of two or three stages repeats, stand for the rest.
_TURNS, _LAST = 9, 6


@dataclass
class _Warp:
    """Where a warp is: its clock, when registers are ready, when the groups of its copies and its products end."""

    clock: float = 0.0
    ready: dict[str, float] = field(default_factory=dict)
    copies: list[float] = field(default_factory=list)
    open: float = 0.0
    products: float = 0.0

    def skip(self, time: float) -> None:
        """So much time passes in which everything happens as before."""
        self.clock += time
        self.ready = {name: when + time for name, when in self.ready.items()}
        self.copies = [when + time for when in self.copies]
        self.open += time if self.open else 0.0
        self.products += time


def waits(code: Sequence[Any], loops: Sequence[tuple[int, int]], trips: Sequence[float]) -> tuple[float, float]:
    """(rounds, clocks) of one warp.

    Args:
        code, loops: of `instructions.parse`; trips: how often each loop runs, in all.
    """
    steps = [_Step(i) for i in code]
    one, two = (_time(steps, loops, trips, latency) for latency in (400.0, 800.0))
    rounds = max(0.0, (two - one) / 400.0)
    return rounds, max(0.0, one - 400.0 * rounds)


def _time(steps: list["_Step"], loops: Sequence[tuple[int, int]], trips: Sequence[float], memory: float) -> float:
    warp = _Warp()
    _run(warp, steps, loops, trips, memory, -1)
    return warp.clock


def _run(warp: _Warp, steps: list["_Step"], loops, trips, memory: float, around: int) -> None:
    """Issue these instructions; those of a loop inside again and again, as often as `_TURNS` says."""
    at = 0
    while at < len(steps):
        inner = [n for n in steps[at].loops if n > around]
        if not inner:
            steps[at].issue(warp, memory)
            at += 1
            continue
        loop = inner[0]
        body = [s for s in steps[at:] if loop in s.loops]
        at += len(body)
        turns = max(0.0, trips[loop] / max(1.0, trips[around] if around >= 0 else 1.0))
        taken, ends = 0, [warp.clock]
        for _ in range(_TURNS):
            if turns - taken < 1:
                break
            _run(warp, body, loops, trips, memory, loop)
            taken += 1
            ends.append(warp.clock)
        if turns > taken and taken:
            last = min(taken, _LAST)
            warp.skip((turns - taken) * (ends[-1] - ends[-1 - last]) / last)
        elif turns > taken:  # less than one turn, on average over the warps
            before = warp.clock
            _run(warp, body, loops, trips, memory, loop)
            warp.clock = before + (warp.clock - before) * turns


class _Step:
    """An instruction as the simulation needs it."""

    def __init__(self, instruction: Any):
        text = instruction.text
        self.loops = instruction.loops
        guard = re.match(r"@!?(U?P\w+)\s+", text)
        self.never = text.startswith("@!PT") or text.startswith("@!UPT")
        body = text[guard.end() :] if guard else text
        self.name, _, rest = body.partition(" ")
        self.base = self.name.split(".")[0]
        operands = [o.strip() for o in rest.split(",")]
        self.writes: list[str] = []
        reads = operands
        if self.base not in _SILENT and self.base not in _TENSOR and operands and operands[0]:
            count = 1
            while count < len(operands) and re.fullmatch(r"U?P\w", operands[count - 1]) and (
                re.fullmatch(r"U?P\w|U?R\w+", operands[count]) and (count == 1)
            ):  # fmt: skip
                count += 1
            if count == 1 and len(operands) > 2 and re.fullmatch(r"U?P\d", operands[1]):
                count = 2  # a carry
            for operand in operands[:count]:
                self.writes += _registers(operand, self._width())
            reads = operands[count:]
        self.reads = [r for o in reads for r in _registers(o, 2 if ".64" in o else 1)]
        if guard and not self.never:
            self.reads.append(guard[1])
        if self.base in ("STG", "STS") and operands:
            wide = 4 if "128" in self.name else 2 if "64" in self.name else 1
            self.reads += _registers(operands[-1], wide)
        if self.base == "HMMA" and len(operands) > 3:
            self.reads += _registers(operands[1], 4) + _registers(operands[3], 4)
        shape = re.search(r"64x(\d+)x", self.name)
        self.product = int(shape[1]) / 2 if shape and self.base in _TENSOR else 0.0
        number = re.search(r"0x([0-9a-f]+)", operands[-1]) if self.base in ("DEPBAR", "WARPGROUP") else None
        self.number = int(number[1], 16) if number else 0

    def _width(self) -> int:
        if self.base in ("HMMA", "QMMA", "IMMA"):
            return 4
        if "128" in self.name or self.base == "LDSM" and self.name.endswith(".4"):
            return 4
        if ".64" in self.name or "WIDE" in self.name or self.base == "CS2R" and ".32" not in self.name:
            return 2
        return 2 if self.base == "LDSM" and self.name.endswith(".2") or self.base in ("DADD", "DMUL", "DFMA") else 1

    def issue(self, warp: _Warp, memory: float) -> None:
        """The warp's state after this instruction."""
        if self.never:
            warp.clock += 1
            return
        start = max([warp.clock, *(warp.ready.get(r, 0.0) for r in self.reads)])
        base = self.base
        if base == "DEPBAR":
            waited = warp.copies[: len(warp.copies) - self.number]
            start = max([start, *waited])
            warp.copies = warp.copies[len(waited) :]
        elif base == "WARPGROUP" and "DEPBAR" in self.name:
            start = max(start, warp.products)
        elif base == "BAR":
            start += _BARRIER
        elif base == "LDGSTS":
            warp.open = start + memory
        elif base == "LDGDEPBAR":
            warp.copies.append(warp.open or start)
            warp.open = 0.0
        elif self.product:
            warp.products = max(warp.products, start + 40) + self.product
        latency = memory if base in ("LDG", "ATOMG", "ATOM", "LD") else _LATENCY.get(base, 10 if base[0] == "U" else 5)
        for register in self.writes:
            warp.ready[register] = start + latency
        warp.clock = start + 1


def _registers(operand: str, wide: int) -> list[str]:
    """The registers that an operand names, each alone."""
    found = []
    for kind, number in re.findall(r"\b(U?R|U?P)(\d+)\b", operand):
        count = wide if kind in ("R", "UR") else 1
        found += [f"{kind}{int(number) + i}" for i in range(count)]
    return found

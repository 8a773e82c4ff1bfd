"""Warp instructions of a launch: its machine code times how often each loop runs.

The machine code says which instructions stand in which loop, the trace says how often memory was asked for there. A loop
that asks for memory runs as often as that takes; one that does not, as often as the loops of the source, divided by the
step of its counter (the compiler unrolls). Every way around a branch is taken: an upper bound where warps skip code.
"""

import re
from dataclasses import dataclass, field

from msda_core.machine.model.chain import waits

__all__ = ["Mix", "count_instructions", "parse"]

_LINE = re.compile(r'//## File "(.*)", line (\d+)')
_CODE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;")
_MEMORY = {"LDG": "load", "LDGSTS": "load", "STG": "store", "RED": "atomic", "REDG": "atomic", "ATOMG": "atomic",
           "ATOM": "atomic"}  # fmt: skip
_ALU = ("LOP3", "SHF", "ISETP", "FSETP", "IADD3", "SEL", "FSEL", "FMNMX", "IMNMX", "VIMNMX", "PRMT", "LEA", "PLOP3",
        "VIADD", "MOV", "IABS", "DSETP", "HSETP2", "HMNMX2", "VIADDMNMX")  # fmt: skip
#: What `mma` reaches of the tensor cores' peak on Hopper. Source: Luo et al. (2024), see `chain`.
MMA = 0.63


@dataclass
class Mix:
    """Warp instructions of one warp, by the unit that executes them.

    Attributes:
        all: every one; alu: integers, comparisons, selection; special: exponentials, roots, conversions.
        shared: accesses to shared memory, in passes of 128 bytes; tensor: clocks of the tensor cores of a partition.
        rounds: how often the warp waits for memory, one after another; chain: clocks that it takes alone beside that; mapped: whether every loop was understood.
    """

    all: float = 0.0
    alu: float = 0.0
    special: float = 0.0
    shared: float = 0.0
    tensor: float = 0.0
    rounds: float = 0.0
    chain: float = 0.0
    mapped: bool = True


@dataclass
class _Instruction:
    at: int
    name: str
    text: str
    line: int
    loops: list[int] = field(default_factory=list)


def parse(sass: str) -> tuple[list[_Instruction], list[tuple[int, int]]]:
    """The instructions up to the final endless loop, and the loops as (first, last) address, inner ones last."""
    code: list[_Instruction] = []
    labels: dict[str, int] = {}
    waiting: list[str] = []
    line = 0
    for raw in sass.splitlines():
        place = _LINE.search(raw)
        if place:
            line = int(place[2]) if "inlined" not in raw else line
            continue
        label = re.match(r"(\.L_x_\d+):", raw.strip())
        if label:
            waiting.append(label[1])
            continue
        found = _CODE.search(raw)
        if found:
            at = int(found[1], 16)
            for name in waiting:
                labels[name] = at
            waiting = []
            text = found[2]
            name = re.sub(r"^@!?U?P\w+\s+", "", text).split()[0]
            code.append(_Instruction(at, name, text, line))
    loops = []
    for i in code:
        target = re.search(r"\((\.L_x_\d+)\)", i.text)
        if i.name.startswith("BRA") and target and target[1] in labels and labels[target[1]] < i.at:
            loops.append((labels[target[1]], i.at))
    end = max((i.at for i in code if i.name == "EXIT"), default=1 << 60)
    last = max([end, *(b for _, b in loops)])
    code = [i for i in code if i.at <= last and i.name != "NOP"]
    loops = sorted(set(loops), key=lambda loop: loop[0] - loop[1])
    for i in code:
        i.loops = [n for n, (a, b) in enumerate(loops) if a <= i.at <= b]
    return code, loops


def count_instructions(sass: str, asked: dict[tuple[str, int], float], iterations: list[float]) -> Mix:
    """Instructions of one warp, on average.

    Args:
        sass: machine code with lines (`nvdisasm -g`).
        asked: (kind, line) -> requests of one warp; iterations: of each loop of the source, in one program.
    """
    code, loops = parse(sass)
    trips = [0.0] * len(loops)
    known = [False] * len(loops)
    groups: dict[tuple[str, int], list[_Instruction]] = {}
    lines = {line for _, line in asked}
    placed = all(i.line in lines for i in code if i.name.split(".")[0] in _MEMORY and i.loops)
    for i in code:
        kind = _MEMORY.get(i.name.split(".")[0])
        if kind:
            groups.setdefault((kind, i.line if placed else 0), []).append(i)
    total = {(k, n): sum(v for (j, m), v in asked.items() if j == k and (m == n or not placed)) for k, n in groups}
    for n in range(len(loops)):
        best = 0.0
        for place, members in groups.items():
            inside = [i for i in members if i.loops and i.loops[-1] == n]
            if inside:
                outside = sum(1 for i in members if not i.loops)
                share = len(inside) / sum(1 for i in members if i.loops)
                best = max(best, (total[place] - outside) * share / len(inside))
        if best > 0:
            trips[n], known[n] = best, True
    spare = sorted(iterations, reverse=True)
    mapped = True
    for n, (a, b) in enumerate(loops):
        if known[n]:
            continue
        inner = [m for m, (c, d) in enumerate(loops) if a <= c and d <= b and m != n and known[m]]
        step = _step([i for i in code if a <= i.at <= b])
        if inner:
            trips[n] = 1.0
        elif spare:
            trips[n] = spare[0] / step
        else:
            trips[n], mapped = 1.0, False
    mix = Mix(mapped=mapped)
    mix.rounds, mix.chain = waits(code, loops, trips)
    for i in code:
        times = trips[i.loops[-1]] if i.loops else 1.0
        base = i.name.split(".")[0]
        mix.all += times
        if base in _ALU:
            mix.alu += times
        elif base in ("MUFU", "F2F", "F2I", "I2F", "FRND"):
            mix.special += times
        elif base in ("LDS", "STS", "LDSM", "STSM", "ATOMS"):
            wide = 4 if "128" in i.name or base == "LDSM" and ".4" in i.name else 2 if "64" in i.name else 1
            mix.shared += times * wide
        elif base in ("HGMMA", "QGMMA", "IGMMA"):
            shape = re.search(r"64x(\d+)x(\d+)", i.name)
            mix.tensor += times * (int(shape[1]) / 2 if shape else 32)
        elif base in ("HMMA", "QMMA", "IMMA"):
            mix.tensor += times * (4 if "16816" in i.name or "TF32" in i.name else 2) / MMA
    return mix


def _step(body: list[_Instruction]) -> float:
    """By how much a loop's counter moves in one turn: the compiler's unrolling; 1 if that cannot be seen."""
    jump = body[-1].text
    predicate = re.match(r"@!?(U?P\w+)", jump)
    if not predicate:
        return 1.0
    for test in reversed(body):
        if "ISETP" in test.name and re.search(rf"\b{predicate[1]}\b", test.text.split(",")[0]):
            registers = set(re.findall(r"\bU?R\d+\b", test.text))
            for i in reversed(body):
                add = re.match(r"(?:@\S+ )?(?:U?IADD3|VIADD|IMAD\.IADD)\S* (U?R\d+),.*?(-?0x[0-9a-f]+)", i.text)
                if add and add[1] in registers and add[1] in i.text.split(",", 1)[1]:
                    return float(abs(int(add[2], 16))) or 1.0
    return 1.0

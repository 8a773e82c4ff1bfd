"""Reading PTX: which instructions touch global memory, how wide they are, and the source line each came from."""

import re
from dataclasses import dataclass

__all__ = ["Instruction", "condense", "instructions"]

_BITS = {"f16x2": 32, "bf16x2": 32, "e4m3x2": 16, "e5m2x2": 16, "pred": 1}
_ACCESS = re.compile(r"^(?:@!?%?\w+\s+)?((?:ld|ldu|st|red|atom|cp)\.[\w.:]+)\s+(.*)")


@dataclass(frozen=True)
class Instruction:
    """One PTX instruction on global memory.

    Attributes:
        mnemonic: "ld.global.v4.b32"; kind: "load", "store", "atomic" or "async" (a copy to shared memory).
        bytes: what one thread moves.
        file, line, column: innermost place in the source, as `.loc` gives it; inlined: (line, column) of the call.
        text: the whole instruction.
    """

    mnemonic: str
    kind: str
    bytes: int
    file: int
    line: int
    column: int
    inlined: tuple[int, int] | None
    text: str

    @property
    def repeats(self) -> tuple[str, str, str]:
        """What two loads share if the second reads the same again: predicate, mnemonic, address."""
        predicate = self.text.split()[0] if self.text.startswith("@") else ""
        return predicate, self.mnemonic, self.text[self.text.rfind("[") :]


def width(mnemonic: str) -> int:
    """Bytes one thread moves with this instruction.

    >>> width("ld.global.v4.b32"), width("red.global.gpu.relaxed.add.noftz.v8.bf16"), width("st.global.b8")
    (16, 16, 1)
    """
    parts = mnemonic.split(".")
    count = next((int(p[1:]) for p in parts if re.fullmatch(r"v\d+", p)), 1)
    for part in reversed(parts):
        if part in _BITS:
            return count * _BITS[part] // 8
        match = re.fullmatch(r"(?:b|u|s|f|bf)(\d+)", part)
        if match:
            return count * int(match[1]) // 8
    return 0


def instructions(ptx: str) -> list[Instruction]:
    """Every instruction on global memory, in order of the text."""
    found = []
    file = line = column = 0
    inlined = None
    for raw in ptx.splitlines():
        text = raw.strip()
        if text.startswith(".loc"):
            numbers = text.split()
            file, line, column = int(numbers[1]), int(numbers[2]), int(numbers[3].rstrip(","))
            call = re.search(r"inlined_at\s+\d+\s+(\d+)\s+(\d+)", text)
            inlined = (int(call[1]), int(call[2])) if call else None
            continue
        match = _ACCESS.match(text)
        if match is None:
            continue
        parts = match[1].split(".")
        if parts[0] == "cp":
            if "async" in parts and "global" in parts and "bulk" not in parts:
                size = re.findall(r",\s*(?:0x)?(\w+)", match[2].split("]")[-1])
                found.append(
                    Instruction(match[1], "async", int(size[0], 16) if size else 16, file, line, column, inlined, text)
                )
            continue
        if "global" not in parts:
            continue
        kind = {"ld": "load", "ldu": "load", "st": "store"}.get(parts[0], "atomic")
        found.append(Instruction(match[1], kind, width(match[1]), file, line, column, inlined, text))
    return found


def condense(ptx: str) -> str:
    """Only what `instructions` reads: accesses to global memory, and the `.loc` before each."""
    kept, loc = [], ""
    for raw in ptx.splitlines():
        text = raw.strip()
        if text.startswith(".loc"):
            loc = " ".join(text.split("//")[0].split())
        elif _ACCESS.match(text) and (text.startswith("cp") or ".global" in text):
            if loc:
                kept.append(loc)
                loc = ""
            kept.append(text)
    return "\n".join(kept) + "\n"

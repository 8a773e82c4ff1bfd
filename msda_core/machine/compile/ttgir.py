"""Reading TTGIR: every access to global memory, with the layout that says which thread holds which element.

All layouts become one thing, a linear layout over bits: (register, lane, warp) map to an element by xor of one basis
vector per set bit. Blocked and slice layouts are translated with the rules of Triton's own LinearLayoutConversions:
a basis that leaves the tensor becomes zero (the element is held more than once), and missing ones are appended to the
registers.
"""

import functools
import re
from dataclasses import dataclass

import numpy as np

from msda_core.machine.errors import Unsupported

__all__ = ["Layout", "MemoryOp", "Place", "condense", "memory_ops", "parse_layout"]

_SIZES = {
    "i1": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "f16": 2, "bf16": 2, "f32": 4, "f64": 8,
    "f8E4M3FN": 1, "f8E5M2": 1, "f8E4M3FNUZ": 1, "f8E5M2FNUZ": 1, "f8E4M3B11FNUZ": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Place:
    """A position in the source, as the compiler wrote it down; the column's origin differs between Triton versions."""

    file: str
    line: int
    column: int


@dataclass(frozen=True)
class Layout:
    """Which element each (register, lane, warp) holds.

    Attributes:
        shape: of the tile.
        elements: (warps, lanes, registers) flat element index, row-major, without registers that repeat another.
        lanes, warps: bool, True where a lane (warp) is the one that stores what several hold.
    """

    shape: tuple[int, ...]
    elements: np.ndarray
    lanes: np.ndarray
    warps: np.ndarray

    @property
    def registers(self) -> int:
        """How many elements each thread holds."""
        return self.elements.shape[2]


@dataclass(frozen=True)
class MemoryOp:
    """One operation on global memory in the TTGIR.

    Attributes:
        kind: "load", "store", "atomic" or "async"; name: "tt.atomic_rmw"; op: "fadd", "cas", ... for atomics.
        places: call chain in the source, outermost first.
        shape: of the tile, () for a scalar; itemsize: bytes of an element; encoding: the layout's text, "" if scalar.
        depth: how many loops it is in.
        layout: see `Layout`; None for a scalar.
        used: whether anything reads the result.
    """

    kind: str
    name: str
    op: str
    places: tuple[Place, ...]
    shape: tuple[int, ...]
    itemsize: int
    encoding: str
    depth: int
    layout: Layout | None
    used: bool


# --- Layouts ----------------------------------------------------------------------------------------------------------


def parse_layout(encoding: str, aliases: dict[str, str], shape: tuple[int, ...]) -> Layout:
    """A layout from its text in the TTGIR.

    Args:
        encoding: "#blocked", or spelled out: "#ttg.slice<{dim = 1, parent = #blocked}>".
        aliases: name to definition, from the head of the module.
        shape: of the tile; powers of two.

    Raises:
        Unsupported: a layout of another family (tensor cores, shared memory).
    """
    register, lane, warp = _bases(encoding.strip(), aliases, shape)
    strides = np.cumprod([1, *reversed(shape)])[:-1][::-1].astype(np.int64)
    flat = [[int(np.dot(b, strides)) for b in bases] for bases in (register, lane, warp)]
    free = _free(flat)
    registers = _span([b for b, f in zip(flat[0], free[0]) if not f])
    lanes, warps = _span(flat[1]), _span(flat[2])
    elements = warps[:, None, None] ^ lanes[None, :, None] ^ registers[None, None, :]
    return Layout(shape, elements, _owners(free[1]), _owners(free[2]))


def _span(bases: list[int]) -> np.ndarray:
    """The value of every bit pattern: xor of the bases of its set bits."""
    out = np.zeros(1, np.int64)
    for b in bases:
        out = np.concatenate([out, out ^ b])
    return out


def _owners(free: list[bool]) -> np.ndarray:
    """True for the indices whose free bits are all zero."""
    mask = sum(1 << i for i, f in enumerate(free) if f)
    return (np.arange(1 << len(free)) & mask) == 0


def _free(groups: list[list[int]]) -> list[list[bool]]:
    """Which bits add nothing, going through registers, then lanes, then warps (Gaussian elimination over GF(2))."""
    pivots: dict[int, int] = {}
    out = []
    for bases in groups:
        flags = []
        for value in bases:
            while value and value.bit_length() in pivots:
                value ^= pivots[value.bit_length()]
            if value:
                pivots[value.bit_length()] = value
            flags.append(value == 0)
        out.append(flags)
    return out


def _bases(encoding: str, aliases: dict[str, str], shape: tuple[int, ...]):
    """Basis vectors of registers, lanes and warps."""
    text = aliases.get(encoding, encoding)
    if text.startswith("#ttg.blocked"):
        fields = {k: _ints(v) for k, v in re.findall(r"(\w+) = \[([\d, ]*)\]", text)}
        return _blocked(
            fields["sizePerThread"], fields["threadsPerWarp"], fields["warpsPerCTA"], fields["order"], shape
        )
    if text.startswith(("#ttg.linear", "#ttg.generic_linear")):
        groups = {}
        for name in ("register", "lane", "warp"):
            inner = re.search(name + r" = \[((?:\[[\d, ]*\](?:, )?)*)\]", text)
            groups[name] = [np.array(_ints(v)) for v in re.findall(r"\[([\d, ]*)\]", inner[1])] if inner else []
        return groups["register"], groups["lane"], groups["warp"]
    if text.startswith("#ttg.slice"):
        inner = re.match(r"#ttg\.slice<\{dim = (\d+), parent = (.*)\}>$", text)
        assert inner is not None
        dim = int(inner[1])
        parent = _bases(inner[2].strip(), aliases, (*shape[:dim], 1, *shape[dim:]))
        register, lane, warp = ([np.delete(b, dim) for b in bases] for bases in parent)
        return [b for b in register if b.any()], lane, warp
    if text.startswith("#ttg.nvidia_mma"):
        fields = {k: _ints(v) for k, v in re.findall(r"(\w+) = \[([\d, ]*)\]", text)}
        version = re.search(r"versionMajor = (\d)", text)
        if version and version[1] in "23" and len(fields.get("instrShape", ())) == len(shape) + (version[1] == "3"):
            return _products(int(version[1]), fields["instrShape"], fields["warpsPerCTA"], shape)
    raise Unsupported(f"The layout {text[:80]} of a global access is not modelled.")


def _ints(text: str) -> list[int]:
    return [int(v) for v in text.split(",") if v.strip()]


def _blocked(size, threads, warps, order, shape):
    rank = len(shape)
    place = [1] * rank
    groups = []
    for counts in (size, threads, warps):
        bases = []
        for d in order:
            for _ in range(counts[d].bit_length() - 1):
                base = np.zeros(rank, np.int64)
                if place[d] < shape[d]:
                    base[d] = place[d]
                place[d] *= 2
                bases.append(base)
        groups.append(bases)
    for d in order:
        while place[d] < shape[d]:
            base = np.zeros(rank, np.int64)
            base[d] = place[d]
            groups[0].append(base)
            place[d] *= 2
    return groups


def _products(version: int, instruction: list[int], warps: list[int], shape: tuple[int, ...]):
    """What tensor cores leave in registers: rows of eight, four lanes a row, two elements a lane; `mma` and `wgmma`."""
    rank = len(shape)
    rows, columns = rank - 2, rank - 1
    tile = instruction[:2] if version == 3 else instruction[-2:]
    place = [1] * rank
    register: list[np.ndarray] = []
    lane: list[np.ndarray] = []
    warp: list[np.ndarray] = []

    def grow(bases: list[np.ndarray], axis: int, count: int) -> None:
        for _ in range(count.bit_length() - 1):
            base = np.zeros(rank, np.int64)
            if place[axis] < shape[axis]:
                base[axis] = place[axis]
            place[axis] *= 2
            bases.append(base)

    grow(register, columns, 2)
    grow(lane, columns, 4)
    grow(lane, rows, 8)
    grow(register, rows, tile[0] // 8)
    grow(register, columns, max(1, tile[1] // 8))
    for axis in range(rank) if version == 3 else reversed(range(rank)):
        grow(warp, axis, warps[axis])
    for axis in reversed(range(rank)):
        grow(register, axis, max(1, shape[axis] // place[axis]))
    return register, lane, warp


# --- Operations -------------------------------------------------------------------------------------------------------

_KINDS = {
    "tt.load": "load",
    "tt.store": "store",
    "tt.atomic_rmw": "atomic",
    "tt.atomic_cas": "atomic",
    "ttg.async_copy_global_to_local": "async",
}
_ACCESS = re.compile(r"(?:^|= )(tt\.load|tt\.store|tt\.atomic_rmw|tt\.atomic_cas|ttg\.async_copy_global_to_local)\b")
_REFUSED = re.compile(
    r"\b(tt\.descriptor_\w+|tt\.experimental_descriptor_\w+|ttng\.async_tma\w*|ttng\.tma_\w+|tt\.atomic_(?:load|store|poll))"
)


def memory_ops(ttgir: str) -> list[MemoryOp]:
    """Every access to global memory, in the order of the text.

    Raises:
        Unsupported: warps that run different code; an access through a tensor descriptor: the copy engine moves it, and
            it is not counted by requests.
    """
    aliases = dict(re.findall(r"^(#\w+) = (#tt\w*\..*)$", ttgir, re.M))
    places = _Places(ttgir)
    layout = functools.cache(lambda encoding, shape: parse_layout(encoding, aliases, shape))
    found: list[MemoryOp] = []
    regions: list = []
    for raw in ttgir.splitlines():
        text = raw.strip()
        if text.startswith("}") and regions:
            regions.pop()
        if text.split(" loc(")[0].rstrip().endswith("{"):
            regions.append("loop" if re.search(r"\bscf\.(for|while)\b", text) else "other")
        if text.startswith("ttg.warp_specialize"):
            raise Unsupported("Warp specialisation, in which warps of one program run different code, is not modelled.")
        refused = _REFUSED.search(text)
        if refused:
            raise Unsupported(
                f"{refused[1]} moves a tile through the copy engine, whose traffic is not counted in requests of warps. "
                "Use pointers and masks to have it counted."
            )
        match = _ACCESS.search(text)
        if match is None:
            continue
        op = "cas" if match[1] == "tt.atomic_cas" else ""
        if match[1] == "tt.atomic_rmw":
            op = _found(r"tt\.atomic_rmw (\w+)", text)
        shape, element, encoding = _pointer_type(text)
        found.append(
            MemoryOp(
                _KINDS[match[1]],
                match[1],
                op,
                places.of(text),
                shape,
                8 if element.startswith("!tt.ptr") else _SIZES[element],
                encoding,
                regions.count("loop"),
                layout(encoding, shape) if shape else None,
                _used(text, ttgir),
            )
        )
    return found


def _used(text: str, ttgir: str) -> bool:
    """Whether the value that an operation defines is mentioned anywhere else."""
    name = re.match(r"(%[\w$.-]+) = ", text)
    return name is not None and len(re.findall(re.escape(name[1]) + r"(?![\w$.-])", ttgir)) > 1


def condense(ttgir: str) -> str:
    """Only what `memory_ops` reads: layouts, accesses, regions, and the locations they refer to, without folders."""
    definitions = dict(re.findall(r"^(#loc\d*) = (loc\(.*\))$", ttgir, re.M))
    kept, wanted = [], []
    for raw in ttgir.splitlines():
        text = raw.strip()
        head = text.split(" loc(")[0].rstrip()
        access = _ACCESS.search(text) or _REFUSED.search(text)
        if re.match(r"#\w+ = #tt", text) or access or text.startswith("}") or head.endswith("{"):
            loc = re.search(r"loc\((#loc\d*)\)$", text)
            if access and loc:
                wanted.append(loc[1])
            elif not access and not text.startswith("#"):
                text = (
                    re.sub(r"^[^#]*\b(scf\.\w+)\b.*", r"\1", head.removesuffix("{"))
                    if not text.startswith("}")
                    else "}"
                )
                text = text if text == "}" else (text if text.startswith("scf") else "region") + " {"
            kept.append(text)
            if access and _used(text, ttgir):
                kept.append("use " + text.split(" = ")[0])
    seen: set[str] = set()
    while wanted:
        name = wanted.pop()
        if name not in seen and name in definitions:
            seen.add(name)
            kept.append(f"{name} = {definitions[name]}")
            wanted += re.findall(r"#loc\d*", definitions[name])
    return re.sub(r'"[^"\n]*/([^"/\n]+)":', r'"\1":', "\n".join(kept)) + "\n"


def _found(pattern: str, text: str) -> str:
    """The group of a pattern that the text is known to hold."""
    match = re.search(pattern, text)
    assert match is not None, f"no {pattern} in {text}"
    return match[1]


def _pointer_type(text: str) -> tuple[tuple[int, ...], str, str]:
    """Shape, element type and encoding of the pointers of an operation."""
    tensor = re.search(r"tensor<((?:\d+x)+)!tt\.ptr<([^,>]+(?:<[^>]*>)?)[^>]*>, ", text)
    if tensor is None:
        return (), _found(r"!tt\.ptr<([^,>]+)", text), ""
    depth, start = 1, tensor.end()
    for end in range(start, len(text)):
        depth += {"<": 1, ">": -1}.get(text[end], 0)
        if depth == 0:
            break
    return tuple(int(v) for v in tensor[1].split("x") if v), tensor[2], text[start:end]


class _Places:
    """Resolves `loc(...)`: names, call sites and fused locations become a call chain, outermost first."""

    def __init__(self, ttgir: str):
        self.definitions = dict(re.findall(r"^(#loc\d*) = loc\((.*)\)$", ttgir, re.M))

    def of(self, text: str) -> tuple[Place, ...]:
        match = re.search(r"loc\((.*)\)$", text)
        return self.resolve(match[1]) if match else ()

    def resolve(self, text: str) -> tuple[Place, ...]:
        text = text.strip()
        if text.startswith("#loc"):
            return self.resolve(self.definitions.get(text, "unknown"))
        plain = re.match(r'"((?:[^"\\]|\\.)*)":(\d+):(\d+)', text)
        if plain:
            return (Place(plain[1], int(plain[2]), int(plain[3])),)
        call = re.match(r"callsite\((.*)\)$", text)
        if call:
            inner, outer = _split(call[1], " at ")
            return (*self.resolve(outer), *self.resolve(inner))
        named = re.match(r'"(?:[^"\\]|\\.)*"\((.*)\)$', text)
        if named:
            return self.resolve(named[1])
        fused = re.match(r"fused(?:<.*>)?\[(.*)\]$", text)
        if fused:
            for part in _split_all(fused[1]):
                chain = self.resolve(part)
                if chain:
                    return chain
        return ()


def _split(text: str, separator: str) -> tuple[str, str]:
    depth = 0
    for i, c in enumerate(text):
        depth += {"(": 1, ")": -1}.get(c, 0)
        if depth == 0 and text.startswith(separator, i):
            return text[:i], text[i + len(separator) :]
    return text, ""


def _split_all(text: str) -> list[str]:
    parts = []
    while text:
        head, text = _split(text, ", ")
        parts.append(head)
    return parts

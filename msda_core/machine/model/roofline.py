"""What a launch's bytes cost on a GPU: rooflines and time estimates from datasheet constants.

Every number from here is a model's. What it leaves out: the order in which a GPU runs its programs, instructions that
are not memory accesses, latency that too few warps cannot hide. `ERROR` says how far off it was where it was measured.
"""

import math
from dataclasses import dataclass

from msda_core.machine import errors

__all__ = ["GPU", "GPUS", "Bounds", "Occupancy", "Roofline", "estimate_counts", "occupancy", "roofline"]

SECTOR = 32


@dataclass(frozen=True)
class GPU:
    """Constants of one GPU, from its vendor's datasheet unless said otherwise.

    Attributes:
        capability: as a number, 90 for SM 9.0; sms: streaming multiprocessors; clock: boost, in GHz.
        dram: bandwidth in bytes per second; l2: capacity in bytes.
        flops: peak per second by dtype; "fp16" and "bf16" are the dense tensor-core rate with float32 sums.
        warps, blocks, registers, shared: what one multiprocessor holds (bytes for shared).
    """

    name: str
    capability: int
    sms: int
    clock: float
    dram: float
    l2: int
    flops: dict[str, float]
    warps: int = 64
    blocks: int = 32
    registers: int = 65536
    shared: int = 228 * 1024

    @property
    def l2_bandwidth(self) -> float:
        """Bytes per second between L2 and the multiprocessors: `L2_BYTES_PER_CLOCK` each. Measured on an H200 only."""
        return self.sms * self.clock * 1e9 * L2_BYTES_PER_CLOCK

    @property
    def reductions(self) -> float:
        """Sectors of reductions per second that L2 can combine: `RED_SECTORS_PER_CLOCK`, measured on an H200 only."""
        return self.clock * 1e9 * RED_SECTORS_PER_CLOCK

    @property
    def ridge(self) -> float:
        """FLOPs per byte (float32) above which arithmetic, not DRAM, limits."""
        return self.flops["fp32"] / self.dram


# Four constants that no datasheet gives, from launches timed on an H200 (`data/h200.json`).
#: Bytes per clock and multiprocessor through L2: a copy of 16 MB that stays there.
L2_BYTES_PER_CLOCK = 32.0
#: Sectors of reductions that L2 combines per clock: the f32 backward of a decoder call.
RED_SECTORS_PER_CLOCK = 48.0
#: Clocks that one sector of reductions keeps its 128-byte line: a histogram of 4096 bins.
CLOCKS_PER_MEETING = 7.1
#: Seconds that no launch gets below: an empty kernel (0.7 µs) and one trip to memory.
FLOOR = 1.2e-6

_MB = 1024 * 1024


def _flops(fp32: float, tensor: float) -> dict[str, float]:
    return {"fp32": fp32 * 1e12, "fp16": tensor * 1e12, "bf16": tensor * 1e12}


GPUS: dict[str, GPU] = {
    g.name: g
    for g in (
        GPU("H200", 90, 132, 1.98, 4.8e12, 60 * _MB, _flops(67, 989)),
        GPU("H100", 90, 132, 1.98, 3.35e12, 50 * _MB, _flops(67, 989)),
        GPU("A100", 80, 108, 1.41, 2.039e12, 40 * _MB, _flops(19.5, 312), shared=164 * 1024),
        GPU("B200", 100, 148, 1.965, 7.7e12, 126 * _MB, _flops(75, 2250)),
        GPU("L4", 89, 58, 2.04, 0.300e12, 48 * _MB, _flops(30.3, 121), 48, 24, shared=100 * 1024),
        GPU("L40S", 89, 142, 2.52, 0.864e12, 96 * _MB, _flops(91.6, 362), 48, 24, shared=100 * 1024),
        GPU("RTX 5090", 120, 170, 2.41, 1.792e12, 96 * _MB, _flops(104.8, 209.5), 48, 24, shared=100 * 1024),
        GPU("RTX 4090", 89, 128, 2.52, 1.008e12, 72 * _MB, _flops(82.6, 165), 48, 24, shared=100 * 1024),
        GPU("RTX 3090", 86, 82, 1.695, 0.936e12, 6 * _MB, _flops(35.6, 71), 48, 16, shared=100 * 1024),
        GPU("T4", 75, 40, 1.59, 0.320e12, 4 * _MB, _flops(8.1, 65), 32, 16, shared=64 * 1024),
    )
}


def find_gpu(gpu) -> GPU:
    """A GPU by its name, exact or in part ("4090").

    Raises:
        LaunchError: no such GPU, or several.
    """
    if isinstance(gpu, GPU):
        return gpu
    if gpu in GPUS:
        return GPUS[gpu]
    wanted = str(gpu).lower().replace("nvidia", "").replace("geforce", "").strip()
    hits = [g for name, g in GPUS.items() if wanted and wanted in name.lower()]
    if len(hits) != 1:
        raise errors.LaunchError(f"No GPU is called {gpu!r}. Known: {', '.join(GPUS)}.")
    return hits[0]


@dataclass(frozen=True)
class Roofline:
    """Where a piece of work lies under a GPU's roof.

    Attributes:
        intensity: FLOPs per byte; ridge: where memory and arithmetic take equally long.
        seconds: the longer of the two; flops: what it attains per second; bound: "memory" or "arithmetic".
    """

    gpu: str
    intensity: float
    ridge: float
    seconds: float
    flops: float
    bound: str


def roofline(bytes: float, flops: float, gpu="H200", dtype: str = "fp32") -> Roofline:
    """The least time a GPU could need for so many bytes of DRAM and so much arithmetic, each at its peak.

    Args:
        bytes: moved to or from DRAM; flops: floating-point operations.
        gpu: a `GPU` or the name of one in `GPUS`; dtype: "fp32", "fp16" or "bf16", see `GPU.flops`.
    """
    gpu = find_gpu(gpu)
    if dtype not in gpu.flops:
        raise errors.LaunchError(f"dtype must be one of {', '.join(gpu.flops)}, got {dtype!r}.")
    if bytes < 0 or flops < 0:
        raise errors.LaunchError(f"bytes and flops must not be negative, got {bytes} and {flops}.")
    peak = gpu.flops[dtype]
    memory, arithmetic = bytes / gpu.dram, flops / peak
    seconds = max(memory, arithmetic)
    return Roofline(
        gpu.name,
        flops / bytes if bytes else math.inf,
        peak / gpu.dram,
        seconds,
        flops / seconds if seconds else 0.0,
        "memory" if memory >= arithmetic else "arithmetic",
    )


@dataclass(frozen=True)
class Bounds:
    """A model's guess at the time of one launch, and the bounds it comes from. All in seconds.

    Attributes:
        dram: compulsory bytes at DRAM bandwidth (0 if warm and it fits in L2); l2: requested bytes at L2 bandwidth.
        reductions: sectors of atomics at the rate L2 combines them; contention: those of the busiest line, in turn.
        floor: what no launch gets below.
        seconds: floor plus the longest of the four; bound: which one that is, or "launch".
        label: says that this is a model, and how far off it was where measured.
    """

    gpu: str
    dram: float
    l2: float
    reductions: float
    contention: float
    floor: float
    warm: bool
    label: str

    @property
    def seconds(self) -> float:
        """Predicted device time in seconds: the slowest resource, after what every launch costs."""
        return self.floor + max(self.dram, self.l2, self.reductions, self.contention)

    @property
    def bound(self) -> str:
        """The slowest resource: "DRAM", "L2", "reductions", "contention"; "launch" where none outweighs the launch itself."""
        parts = {"DRAM": self.dram, "L2": self.l2, "reductions": self.reductions, "contention": self.contention}
        name = max(parts, key=lambda part: parts[part])
        return name if parts[name] > self.floor else "launch"

    def __str__(self) -> str:
        return (
            f"{self.gpu}: about {self.seconds * 1e6:.1f} µs ({self.bound}; DRAM {self.dram * 1e6:.1f}, "
            f"L2 {self.l2 * 1e6:.1f}, reductions {max(self.reductions, self.contention) * 1e6:.1f}). {self.label}"
        )


def estimate_counts(gpu: GPU, compulsory: int, sectors: int, reductions: int, line: int, warm: bool) -> Bounds:
    """A formula of memory alone, from bytes of DRAM, sectors of loads and stores, of atomics, of the busiest line.

    `timing.estimate` has instructions and latency as well.
    """
    dram = 0.0 if warm and compulsory <= gpu.l2 else compulsory / gpu.dram
    measured = f"on an H200 with a warm L2 it was off by {TYPICAL:.0%} in the median and {ERROR:.0%} at most ({MEASURED} launches)"
    elsewhere = "" if gpu.name == "H200" else " Never measured on this GPU;"
    label = f"A model, not a measurement.{elsewhere} {measured[0].upper() if not elsewhere else 'o'}{measured[1:]}."
    return Bounds(
        gpu.name,
        dram,
        sectors * SECTOR / gpu.l2_bandwidth,
        reductions / gpu.reductions,
        line * CLOCKS_PER_MEETING / (gpu.clock * 1e9),
        FLOOR,
        warm,
        label,
    )


#: Median and worst relative error of `estimate_counts(warm=True)` on the timed launches of `data/h200.json`, and their number.
#: The worst is random rows from a 64 MB table, where the H200 waits for address translation, which is not modelled.
TYPICAL, ERROR, MEASURED = 0.07, 0.68, 10


@dataclass(frozen=True)
class Occupancy:
    """How many warps of a kernel one multiprocessor can hold.

    Attributes:
        blocks: programs at a time; warps: of them; limit: "registers", "shared memory", "warps" or "programs".
        fraction: warps over what the multiprocessor could hold.
    """

    blocks: int
    warps: int
    limit: str
    fraction: float


#: Partitions of a multiprocessor: each has a quarter of its registers, and warps of its own.
PARTITIONS = 4


def occupancy(lowering, gpu=None) -> Occupancy:
    """Resident programs per multiprocessor, from registers and shared memory of the machine code.

    Args:
        lowering: a `lower.Lowering`.
        gpu: a `GPU` or the name of one; by default the first of `GPUS` with the lowering's capability.

    Source: CUDA's cuda_occupancy.h, which allots registers warp by warp in each of four partitions.
    """
    if gpu is None:
        gpu = next((g for g in GPUS.values() if g.capability == lowering.target), None)
        if gpu is None:
            raise errors.LaunchError(f"No GPU of capability {lowering.target} is known. Name one of {', '.join(GPUS)}.")
    gpu = find_gpu(gpu)
    per_warp = -(-lowering.registers * 32 // 256) * 256  # registers come in units of 256 to a warp,
    held = gpu.registers // PARTITIONS // per_warp * PARTITIONS if per_warp else gpu.warps  # and stay in one partition
    limits = {  # of several that agree the first is named; shared memory limits only a kernel that has some
        "registers": held // lowering.num_warps,
        "warps": gpu.warps // lowering.num_warps,
        "programs": gpu.blocks,
        "shared memory": gpu.shared // (-(-lowering.shared // 128) * 128 + 1024) if lowering.shared else gpu.blocks,
    }
    limit = min(limits, key=lambda part: limits[part])
    blocks = limits[limit]
    return Occupancy(blocks, blocks * lowering.num_warps, limit, blocks * lowering.num_warps / gpu.warps)

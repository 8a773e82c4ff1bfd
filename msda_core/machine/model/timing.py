"""How long a launch takes: what each unit of a GPU has to do, how fast it does it, and how long warps wait.

Thirteen constants that no datasheet gives were fitted to launches timed on an H200, with a cold L2 and with data that a
launch before it left there, both at once: the two states differ in the bytes of DRAM, in the length of a trip to memory
and in the floor, and in nothing else. The form comes from how the hardware works; how strongly the constants are drawn
towards the datasheet's was chosen by leaving out one kernel after another of those that are fitted. Errors are of
launches that had no say: `data/times_h200.json` says which kernels were held out, and those of `data/times_h200_unseen.json`
were written and timed after the form of the model before this one, and only compared.
"""

import math
from dataclasses import dataclass, replace

from msda_core.machine.model.instructions import Mix, count_instructions
from msda_core.machine.model.roofline import GPU, PARTITIONS, SECTOR, find_gpu, occupancy

__all__ = ["COLD", "WARM", "Estimate", "Fit", "Work", "estimate", "of_work", "units", "work_of"]

NOT_MODELLED = "hits in L1 across programs, address translation of rows far apart, bank conflicts, waiting at locks, the copy engine"


@dataclass(frozen=True)
class Fit:
    """Constants, and how far off they were on the launches that had no say in them.

    Attributes:
        issue, alu, l1, l2, tensor, dram: of a unit's time by its peak, what it takes in practice.
        reductions, line: the same, of sectors of reductions in all, and of those on the busiest line.
        near, far: clocks of a trip to L2, and to DRAM; step: of what a warp takes beside trips, by `chain`'s reckoning.
        start: clocks of a program's start; blend: how little the units overlap (a power mean).
        floor: clocks that no launch gets below: warm an empty kernel's, which was timed.
        error, worst: relative, median and maximum; right, pairs: rivals at least 10 % apart, and how many it ranks right;
            launches: how many were held out.
    """

    issue: float
    alu: float
    l1: float
    l2: float
    reductions: float
    line: float
    tensor: float
    dram: float
    near: float
    far: float
    step: float
    start: float
    blend: float
    floor: float
    error: float = 0.0
    worst: float = 0.0
    right: int = 0
    pairs: int = 0
    launches: int = 0


COLD = Fit(
    issue=1.121,
    alu=1.118,
    l1=1.401,
    l2=1.159,
    reductions=1.344,
    line=0.800,
    tensor=1.158,
    dram=1.050,
    near=316,
    far=717,
    step=1.105,
    start=55.2,
    blend=2.367,
    floor=2829,
    error=0.163,
    worst=0.511,
    right=69,
    pairs=70,
    launches=79,
)
WARM = replace(COLD, floor=1340, error=0.166, worst=0.584, right=69, pairs=72, launches=79)


@dataclass(frozen=True)
class Work:
    """What a launch asks of a GPU.

    Attributes:
        programs, warps: programs of the launch, warps of one; resident: programs that one multiprocessor holds.
        mix: instructions of one warp; wavefronts: passes through L1's data path.
        sectors: of loads that L1 passes on, and of stores; partial: those of the stores that are not filled.
        reductions, line: sectors of atomics, and those on the busiest line.
        read, written: distinct bytes.
    """

    programs: int
    warps: int
    resident: int
    mix: Mix
    wavefronts: float
    sectors: float
    partial: float
    reductions: float
    line: float
    read: float
    written: float


def work_of(report, gpu: GPU, sass: str | None = None, resident: int | None = None) -> Work:
    """The work of a counted launch.

    Args:
        report: a `traffic.Report`.
        sass, resident: machine code, and programs that one multiprocessor holds, if not those of the report's lowering.
    """
    trace, warps = report.trace, report.num_warps * max(1, report.programs)
    asked: dict[tuple[str, int], float] = {}
    for site in report.sites:
        key = (site.kind, site.lineno)
        asked[key] = asked.get(key, 0.0) + site.requests / warps
    recorded = max(1, getattr(trace, "recorded", report.programs))
    iterations = [turns / recorded for _, turns in trace.loops.values()]
    stores = [s for s in report.sites if s.kind == "store"]
    return Work(
        report.programs,
        report.num_warps,
        resident or max(1, occupancy(report.lowering, gpu).blocks),
        count_instructions(sass if sass is not None else report.lowering.sass, asked, iterations),
        sum(s.wavefronts for s in report.sites),
        report.l2_loads + report.stores.sectors,
        sum(max(0.0, s.sectors - s.bytes / SECTOR) for s in stores),
        report.atomics.sectors,
        report.contention.line,
        report.unique_bytes,
        report.written_bytes,
    )


def units(work: Work, gpu: GPU, fit: Fit, warm: bool) -> dict[str, float]:
    """Clocks that each unit of the busiest multiprocessor needs, and that warps wait."""
    mix, each = work.mix, work.programs / gpu.sms
    most = each if each > MANY else max(1, math.ceil(each - 1e-9))  # programs of the busiest multiprocessor
    share, warps = most / max(1, work.programs), work.warps * most
    footprint = work.read + work.written
    fits = footprint <= 5 / 6 * gpu.l2
    # Half of what is written stays in L2 when the launch ends. Warm, only what did not fit is read again.
    moved = work.read + work.written / 2 if not warm else 0.0 if fits else footprint
    trip = fit.near if warm and fits else fit.far
    waves = max(1.0, most / work.resident)
    return {
        "issue slots": mix.all * warps / PARTITIONS * fit.issue,
        "integer units": mix.alu * warps * 2 / PARTITIONS * fit.alu,
        "special functions": mix.special * warps * 8 / PARTITIONS,
        "L1": (work.wavefronts * share + mix.shared * warps) * fit.l1,
        "L2": work.sectors * share * SECTOR / 64 * fit.l2,
        # L2 reads what it holds of a sector before it writes a part of it, as for a reduction.
        "reductions": (work.reductions + work.partial) / 48 * fit.reductions,
        "contention": work.line * 7.1 * fit.line,
        "tensor cores": mix.tensor * warps / PARTITIONS * fit.tensor,
        "DRAM": moved / gpu.dram * gpu.clock * 1e9 * fit.dram,
        "latency": waves * (mix.rounds * trip + mix.chain * fit.step) + each * fit.start,
    }


#: From so many programs a multiprocessor on it does not matter that all have a whole number of them.
MANY = 12


@dataclass(frozen=True)
class Estimate:
    """A model's guess at the time of one launch, and what it is made of. All in seconds.

    Attributes:
        parts: of each unit ("issue slots", "L1", "L2", "DRAM", "latency", ...), the time if it were alone.
        floor: what no launch gets below; blend: how little the units overlap.
        warm: whether its data are in L2 already; instructions: of all warps.
        label: says that this is a model, how far off it was where measured, and what is not modelled.
    """

    gpu: str
    parts: dict[str, float]
    floor: float
    blend: float
    warm: bool
    instructions: int
    label: str

    @property
    def seconds(self) -> float:
        """Predicted device time in seconds."""
        return self.floor + sum(t**self.blend for t in self.parts.values()) ** (1 / self.blend)

    @property
    def bound(self) -> str:
        """The slowest part; "launch" where none outweighs the launch itself."""
        name = max(self.parts, key=lambda part: self.parts[part])
        return name if self.parts[name] > self.floor else "launch"

    def __str__(self) -> str:
        first = sorted(self.parts.items(), key=lambda part: -part[1])[:3]
        shown = ", ".join(f"{name} {time * 1e6:.1f}" for name, time in first)
        state = "warm" if self.warm else "cold"
        return f"{self.gpu}, {state}: about {self.seconds * 1e6:.1f} µs ({self.bound}; {shown}). {self.label}"


def estimate(report, gpu="H200", warm: bool = False) -> Estimate:
    """How long a launch might take on a GPU, from what was counted.

    Args:
        report: a `traffic.Report`, of `profile`.
        gpu: a `GPU` or the name of one in `GPUS`.
        warm: whether its data are in L2 already, as in a benchmark that repeats; what does not fit is read anyway.
    """
    gpu = find_gpu(gpu)
    return of_work(work_of(report, gpu), gpu, warm)


def of_work(work: Work, gpu: GPU, warm: bool, fit: Fit | None = None) -> Estimate:
    """`estimate` from the counted work."""
    fit = fit or (WARM if warm else COLD)
    clock = gpu.clock * 1e9
    parts = {name: clocks / clock for name, clocks in units(work, gpu, fit, warm).items()}
    where = "On an H200" if gpu.name == "H200" else "Never measured on this GPU; on an H200"
    unread = "" if work.mix.mapped else " A loop of the machine code was not understood, and counted once."
    label = (
        f"A model, not a measurement. {where}, with a {'warm' if warm else 'cold'} L2, it was off by {fit.error:.0%} in the "
        f"median and {fit.worst:.0%} at most, on {fit.launches} launches that had no say in its constants, and ranked "
        f"{fit.right} of {fit.pairs} pairs of rivals right. Not modelled: {NOT_MODELLED}.{unread}"
    )
    total = int(work.mix.all * work.warps * work.programs)
    return Estimate(gpu.name, parts, fit.floor / clock, fit.blend, warm, total, label)

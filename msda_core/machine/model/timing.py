"""How long a launch takes: what each unit of a GPU has to do, how fast it does it, and how long warps wait.

Thirteen constants that no datasheet gives were fitted to launches timed on an H200, once for a cold L2 and once for data
that a launch before it left there. Half of the kernels were held out: `COLD.error` and `WARM.error` are of those alone,
`data/times_h200.json` says which they are. (Four forms of the formula were tried, and all of them seen on those kernels.) A latency of its own for
data that fit in L2 was tried on the fitting half alone, and left out: the summed log error of its 37 warm launches fell from
7.5 to 7.2 only, and with L2 slower than DRAM (689 against 401 clocks), which is no cause but a fit.
"""

from dataclasses import dataclass

from msda_core.machine.model.instructions import Mix, count_instructions
from msda_core.machine.model.roofline import GPU, SECTOR, find_gpu, occupancy

__all__ = ["COLD", "WARM", "Estimate", "Fit", "Work", "estimate", "of_work", "units", "work_of"]

NOT_MODELLED = "hits in L1, address translation of rows far apart, bank conflicts, waiting at locks, the copy engine"


@dataclass(frozen=True)
class Fit:
    """Constants, and how far off they were on the launches that had no say in them.

    Attributes:
        issue, alu, l1, l2, tensor, dram: of a unit's time by its peak, what it takes in practice.
        reductions, line: the same, of sectors of reductions in all, and of those on the busiest line.
        memory, step, start: clocks of a trip to memory, of an instruction after the one before it, of a program's start.
        floor: clocks that no launch gets below; blend: how little the units overlap (a power mean).
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
    memory: float
    step: float
    start: float
    floor: float
    blend: float
    error: float = 0.0
    worst: float = 0.0
    right: int = 0
    pairs: int = 0
    launches: int = 0


COLD = Fit(
    issue=1.1,
    alu=1.59,
    l1=1.68,
    l2=0.521,
    reductions=1.52,
    line=0.803,
    tensor=1.03,
    dram=1.34,
    memory=1340,
    step=4.46,
    start=53.7,
    floor=4990,
    blend=4.83,
    error=0.170,
    worst=1.699,
    right=46,
    pairs=49,
    launches=39,
)
WARM = Fit(
    issue=0.994,
    alu=1.32,
    l1=1.6,
    l2=0.75,
    reductions=1.22,
    line=0.802,
    tensor=1.03,
    dram=1.05,
    memory=728,
    step=3.31,
    start=55.9,
    floor=3920,
    blend=3.27,
    error=0.279,
    worst=1.234,
    right=47,
    pairs=49,
    launches=39,
)


@dataclass(frozen=True)
class Work:
    """What a launch asks of a GPU.

    Attributes:
        programs, warps: programs of the launch, warps of one; resident: programs that one multiprocessor holds.
        mix: instructions of one warp; requests, sectors: of loads and stores; wavefronts: passes through L1's data path.
        reductions, line: sectors of atomics, and those on the busiest line.
        read, written: distinct bytes.
    """

    programs: int
    warps: int
    resident: int
    mix: Mix
    wavefronts: float
    sectors: float
    reductions: float
    line: float
    read: float
    written: float


def work_of(report, gpu: GPU) -> Work:
    """The work of a counted launch. `report` is a `traffic.Report`."""
    trace, warps = report.trace, report.num_warps * max(1, report.programs)
    asked: dict[tuple[str, int], float] = {}
    for site in report.sites:
        key = (site.kind, site.lineno)
        asked[key] = asked.get(key, 0.0) + site.requests / warps
    recorded = max(1, getattr(trace, "recorded", report.programs))
    iterations = [turns / recorded for _, turns in trace.loops.values()]
    return Work(
        report.programs,
        report.num_warps,
        max(1, occupancy(report.lowering, gpu).blocks),
        count_instructions(report.lowering.sass, asked, iterations),
        sum(max(s.requests, s.sectors / 4) for s in report.sites),
        report.loads.sectors + report.stores.sectors,
        report.atomics.sectors,
        report.contention.line,
        report.unique_bytes,
        report.written_bytes,
    )


def units(work: Work, gpu: GPU, fit: Fit, warm: bool) -> dict[str, float]:
    """Clocks that each unit needs, and that warps wait."""
    mix, sms = work.mix, gpu.sms * min(1.0, work.programs / gpu.sms) or 1.0
    warps = work.warps * work.programs
    partitions = 4 * sms
    footprint = work.read + work.written
    # Half of what is written stays in L2 when the launch ends. Warm, only what did not fit is read again.
    cold = work.read + work.written / 2
    moved = footprint if warm and footprint > 5 / 6 * gpu.l2 else 0.0 if warm else cold
    waves = max(1.0, work.programs / (gpu.sms * work.resident))
    return {
        "issue slots": mix.all * warps / partitions * fit.issue,
        "integer units": mix.alu * warps * 2 / partitions * fit.alu,
        "special functions": mix.special * warps * 8 / partitions,
        "L1": (work.wavefronts / sms + mix.shared * warps / sms) * fit.l1,
        "L2": work.sectors * SECTOR / sms / 64 * fit.l2,
        "reductions": work.reductions / 48 * fit.reductions,
        "contention": work.line * 7.1 * fit.line,
        "tensor cores": mix.tensor * warps / partitions * fit.tensor,
        "DRAM": moved / gpu.dram * gpu.clock * 1e9 * fit.dram,
        "latency": waves * (mix.rounds * fit.memory + mix.all * fit.step) + work.programs / gpu.sms * fit.start,
    }


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

"""From what `calibrate` measured to what the repository keeps, and the constants of `timing`.

    python -m msda_core.bench.calibrate --suite workloads --out raw.json      # on a GPU with Nsight Compute
    python -m msda_core.bench.timings raw.json                                # anywhere; many minutes
    python -m msda_core.bench.timings --fit                                   # from times_h200.json

Counters go into a data file without their machine code. Timed launches are counted as the tool counts them, on a sample of
their programs, and only their work is kept; instructions are of the machine code that ran.

`fit` finds the constants of `timing` by coordinate search, cold and warm launches together, with a pull towards datasheet
rates and known latencies. Its strength was chosen by leaving out one kernel after another of those that are fitted
(medians, warm and cold): 0.01: 22 and 16 %, 0.03: 19 and 17 %, 0.1: 17 and 18 %.
"""

import argparse
import base64
import dataclasses
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msda_core.bench import calibrate, unseen, workloads
from msda_core.device import load_triton
from msda_core.machine.compile.lower import Lowering
from msda_core.machine.counts.sample import extrapolated
from msda_core.machine.counts.traffic import count
from msda_core.machine.model.roofline import GPUS, occupancy
from msda_core.machine.model.timing import WARM, Fit, Mix, Work, of_work, work_of
from msda_core.machine.run.emulate import Emulation
from msda_core.machine.run.sample import record as sample

TIMES = calibrate.DATA / "times_h200.json"
UNSEEN = calibrate.DATA / "times_h200_unseen.json"
GPU = GPUS["H200"]


def disassemble(cubin: str) -> str:
    """Machine code with its lines, from a cubin in base64."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(base64.b64decode(cubin))
        file.flush()
        tool = load_triton().knobs.nvidia.nvdisasm.path
        return subprocess.run([tool, "-c", "-g", file.name], capture_output=True, text=True, check=True).stdout


def timed_work(record: dict[str, Any], seconds: float = 1.5) -> dict[str, Any]:
    """A timed launch as the repository keeps it: its times and its work."""
    case = next(c for c in (*workloads.TIMED, *unseen.TIMED) if c.name == record["case"])
    launch = calibrate.restore_launch(record, case.inputs())
    report = extrapolated(count(sample(Emulation(launch), None, seconds), Lowering.from_json(record["lowering"])))
    shape = {"registers": record["registers"], "shared": record["lowering"]["shared"]}
    held = type("Held", (), {**shape, "num_warps": report.num_warps})
    work = work_of(report, GPU, disassemble(record["cubin"]), max(1, occupancy(held, GPU).blocks))
    counters = record["counters"]
    return {
        "case": case.name,
        "cold_us": counters["duration_ns"] / 1e3,
        "warm_us": record["warm_us"],
        "instructions": counters["instructions"],
        "limits": {k: counters[f"limit_{k}"] for k in ("registers", "shared", "warps", "blocks")},
        **shape,
        "work": dataclasses.asdict(work),
    }


def timed(data: dict[str, Any]) -> Iterator[tuple[dict[str, Any], Work, bool]]:
    """(record, its work, whether it is held out) of a file of times."""
    for record in data["timed"]:
        work = record["work"]
        out = workloads.family(record["case"]) in data["held_out"]
        yield record, Work(**{**work, "mix": Mix(**work["mix"])}), out


#: Towards what the constants are drawn: datasheet rates, and latencies as microbenchmarks find them.
DRAWN = {
    "issue": 1.0, "alu": 1.0, "l1": 1.0, "l2": 1.0, "reductions": 1.2, "line": 0.8, "tensor": 1.1, "dram": 1.1, "near": 300.0,
    "far": 700.0, "step": 1.0, "start": 50.0, "blend": 4.0, "floor": 2500.0,
}  # fmt: skip
PULL = 0.1


def fit(data: dict[str, Any], rounds: int = 60) -> Fit:
    """Constants that make the launches that are not held out least wrong: one at a time, in ever smaller steps.

    Returns:
        the cold ones; the warm ones are the same but for `WARM.floor`, the time of an empty kernel.
    """
    launches = [(work, record["cold_us"], record["warm_us"]) for record, work, out in timed(data) if not out]

    def off(work: Work, warm: bool, trial: Fit, time: float) -> float:
        return abs(math.log(1e6 * of_work(work, GPU, warm, trial).seconds / time))

    def loss(values: dict[str, float]) -> float:
        cold = Fit(**values)
        warm = dataclasses.replace(cold, floor=WARM.floor)
        total = sum(off(w, False, cold, c) + off(w, True, warm, h) for w, c, h in launches)
        return total / 2 / len(launches) + PULL * sum(math.log(v / DRAWN[k]) ** 2 for k, v in values.items())

    values = dict(DRAWN)
    best, step = loss(values), 0.3
    for _ in range(rounds):
        before = best
        for name in values:
            for factor in (1 + step, 1 / (1 + step)):
                trial = {**values, name: values[name] * factor}
                if (now := loss(trial)) < best:
                    best, values = now, trial
        if best > before - 1e-5:
            step /= 2
    return Fit(**values)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m msda_core.bench.timings", description=__doc__.split("\n")[0])
    parser.add_argument("raw", nargs="?", type=Path, help="what calibrate wrote; its counters and times are kept")
    parser.add_argument("--fit", action="store_true", help="print constants for what is kept")
    a = parser.parse_args(argv)
    if a.raw:
        raw = json.loads(a.raw.read_text())
        families = sorted({workloads.family(r["case"]) for r in raw["timed"]})
        new = any(r["case"] == c.name for r in raw["timed"] for c in unseen.TIMED)
        if not new:
            kept = [{k: v for k, v in r.items() if k != "cubin"} for r in raw["records"]]
            calibrate.save(calibrate.DATA / "counters_h200_workloads.json", {**raw, "records": kept, "timed": []})
        times = {"machine": raw["machine"], "held_out": families if new else families[1::2], "records": []}
        calibrate.save(UNSEEN if new else TIMES, {**times, "timed": [timed_work(r) for r in raw["timed"]]})
    if a.fit:
        print(fit(json.loads(TIMES.read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main())

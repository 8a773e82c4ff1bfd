"""From what `calibrate --suite workloads` measured to what the repository keeps, and the constants of `timing`.

    python -m msda_core.bench.calibrate --suite workloads --out raw.json      # on a GPU with Nsight Compute
    python -m msda_core.bench.timings raw.json                                # anywhere; many minutes
    python -m msda_core.bench.timings --fit                                   # from times_h200.json

Counters go into a data file without their machine code. Timed launches are counted on a sample of their programs, and
only their work is kept: instructions from the machine code that ran, traffic scaled from the sample, and distinct bytes
scaled and cut off at the size of each tensor, or counted from the indices where rows are looked up.

The constants of `timing` come from Powell's search (scipy), with a pull towards datasheet rates; `fit`, without one, finds
others that are as good on the launches it sees.
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

import numpy as np

from msda_core.bench import calibrate, probes, workloads
from msda_core.device import load_triton
from msda_core.machine.compile.lower import Lowering
from msda_core.machine.counts.traffic import count
from msda_core.machine.launch import Launch
from msda_core.machine.model.instructions import count_instructions
from msda_core.machine.model.roofline import GPUS, occupancy
from msda_core.machine.model.timing import COLD, WARM, Fit, Mix, Work, of_work

TIMES = calibrate.DATA / "times_h200.json"
GPU = GPUS["H200"]
CONSTANTS = [f.name for f in dataclasses.fields(Fit)][:13]


def disassemble(cubin: str) -> str:
    """Machine code with its lines, from a cubin in base64."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(base64.b64decode(cubin))
        file.flush()
        tool = load_triton().knobs.nvidia.nvdisasm.path
        return subprocess.run([tool, "-c", "-g", file.name], capture_output=True, text=True, check=True).stdout


def distinct(launch: Launch, trace, scale: float) -> tuple[float, float]:
    """(read, written) bytes, each sector once: of the sample, scaled, at most the tensor."""
    found: dict[tuple[bool, str], list[np.ndarray]] = {}
    for event in trace.events:
        if event.tensor is not None:
            sectors = np.unique(event.addresses[event.mask] // 32)
            for write in {event.kind != "load", event.kind == "store"}:
                found.setdefault((write, event.tensor), []).append(sectors)
    total = {True: 0.0, False: 0.0}
    for (write, tensor), parts in found.items():
        info = trace.tensors[tensor]
        size = -(-info.size * info.itemsize // 32)
        total[write] += 32 * min(scale * len(np.unique(np.concatenate(parts))), size)
    return total[False], total[True]


def looked_up(name: str, inputs: probes.Tensors) -> float | None:
    """Distinct bytes that a case reads where indices decide; None for the others."""
    if name.startswith("msda"):
        return 32 * probes.msda_touched(inputs) + inputs["loc"].nbytes + inputs["attn"].nbytes
    if name.startswith("embedding"):
        table = inputs["table"]
        return inputs["index"].nbytes + inputs["index"].unique().numel() * table[0].nbytes
    return None


def timed_work(record: dict[str, Any], sample: int) -> dict[str, Any]:
    """A timed launch as the repository keeps it: its times and its work."""
    case = next(c for c in workloads.TIMED if c.name == record["case"])
    inputs = case.inputs()
    launch = calibrate.restore_launch(record, inputs)
    every = max(1, launch.programs // sample) | 1  # odd, so that it meets every residue of a power of two
    trace = calibrate.trace_launch(launch, every)
    report = count(trace, Lowering.from_json(record["lowering"]))
    seen = len(range(0, launch.programs, every))
    scale, warps = launch.programs / seen, seen * report.num_warps
    asked: dict[tuple[str, int], float] = {}
    for site in report.sites:
        key = (site.kind, site.lineno)
        asked[key] = asked.get(key, 0.0) + site.requests / warps
    iterations = [turns / seen for _, turns in trace.loops.values()]
    read, written = distinct(launch, trace, scale)
    shape = {"registers": record["registers"], "shared": record["lowering"]["shared"]}
    held = type("Held", (), {**shape, "num_warps": report.num_warps})
    work = Work(
        launch.programs,
        report.num_warps,
        max(1, occupancy(held, GPU).blocks),
        count_instructions(disassemble(record["cubin"]), asked, iterations),
        scale * sum(max(s.requests, s.sectors / 4) for s in report.sites),
        scale * (report.loads.sectors + report.stores.sectors),
        scale * report.atomics.sectors,
        scale * report.contention.line,
        looked_up(case.name, inputs) or read,
        written,
    )
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


def fit(data: dict[str, Any], warm: bool, rounds: int = 40) -> Fit:
    """Constants that make the launches that are not held out least wrong: one at a time, in ever smaller steps."""
    key = "warm_us" if warm else "cold_us"
    launches = [(work, record[key]) for record, work, out in timed(data) if not out]
    start = WARM if warm else COLD

    def loss(values: list[float]) -> float:
        trial = Fit(*values)
        off = [abs(math.log(1e6 * of_work(w, GPU, warm, trial).seconds / t)) for w, t in launches]
        return sum(off) / len(off)

    values = [getattr(start, name) for name in CONSTANTS]
    best, step = loss(values), 0.2
    for _ in range(rounds):
        before = best
        for i in range(len(values)):
            for factor in (1 + step, 1 / (1 + step)):
                trial = [v * factor if j == i else v for j, v in enumerate(values)]
                if (now := loss(trial)) < best:
                    best, values = now, trial
        if best > before - 1e-4:
            step /= 2
    return Fit(*values)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m msda_core.bench.timings", description=__doc__.split("\n")[0])
    parser.add_argument("raw", nargs="?", type=Path, help="what calibrate wrote; its counters and times are kept")
    parser.add_argument("--sample", type=int, default=20, help="programs of a timed launch that are interpreted")
    parser.add_argument("--fit", action="store_true", help="print constants for what is kept")
    a = parser.parse_args(argv)
    if a.raw:
        raw = json.loads(a.raw.read_text())
        kept = [{k: v for k, v in r.items() if k != "cubin"} for r in raw["records"]]
        calibrate.save(calibrate.DATA / "counters_h200_workloads.json", {**raw, "records": kept, "timed": []})
        families = sorted({workloads.family(r["case"]) for r in raw["timed"]})
        times = {"machine": raw["machine"], "held_out": families[1::2], "records": []}
        calibrate.save(TIMES, {**times, "timed": [timed_work(r, a.sample) for r in raw["timed"]]})
    if a.fit:
        data = json.loads(TIMES.read_text())
        for name, warm in (("cold", False), ("warm", True)):
            print(name, fit(data, warm))
    return 0


if __name__ == "__main__":
    sys.exit(main())

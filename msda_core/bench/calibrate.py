"""Hardware's counters for every probe and kernel, beside what the model says.

On a machine with a GPU and Nsight Compute:

    python -m msda_core.bench.calibrate --out msda_core/bench/data/counters_h200.json

measures each case of `probes` once, cold, and writes counters, the launch (source and all), and what the compiler of
that machine made of it. Anywhere:

    python -m msda_core.bench.calibrate --check

counts the recorded launches again through the recorded lowering and prints model against hardware. A record carries
the kernel's source as it was measured, so later edits of a kernel do not disturb its evidence.

On one H200 (driver 580.159.04, Triton 3.6.0, Nsight Compute 2025.3.1), 60 launches, 45 of probes and 15 of the operator:

    loads       requests and sectors exact in 58; 3 % and 1 % too many in one (dead code that only the assembler sees),
                33 % too many in one (repeated loads of an unrolled loop, which the assembler merges)
    stores      requests and sectors exact in all
    reductions  requests and sectors exact in all; compare-and-swap loops 1.5 % short of sectors, requests exact
    DRAM reads  compulsory bytes plus 68 to 466 sectors of code: within 3.5 % where there are more than 10,000 sectors

Of 68 further launches (`workloads`; 34 kernels under Triton 3.6 and 3.9 each) all counters are exact: cp.async, masked or
not, fp8, wgmma. A tile that the copy engine moves is refused. `data/times_h200.json` has 76 timed launches,
`data/times_h200_unseen.json` 40 more (suite `unseen`), and what `timing` makes of them.
"""

import argparse
import base64
import csv
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from msda_core.device import load_triton
from msda_core.machine.compile import worker
from msda_core.machine.compile.lower import Lowering, _Shipment, lower_launch
from msda_core.machine.compile.ptx import condense as condense_ptx
from msda_core.machine.compile.ttgir import condense as condense_ttgir
from msda_core.machine.counts.traffic import Report, count
from msda_core.machine.errors import Unsupported
from msda_core.machine.launch import Launch, bind
from msda_core.machine.run.emulate import Emulation
from msda_core.machine.run.trace import Recorder, Trace

__all__ = ["COUNTERS", "compare", "records", "replay"]

DATA = Path(__file__).with_name("data")
ROOT = Path(__file__).resolve().parents[2]
#: ours -> Nsight Compute's
COUNTERS = {
    "load_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "load_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "store_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "store_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "red_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_red.sum",
    "red_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_red.sum",
    "atom_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_atom.sum",
    "atom_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_atom.sum",
    "dram_read_sectors": "dram__sectors_read.sum",
}
#: Interesting, but not promised by the model; left out where this GPU does not have them.
EXTRA = {
    "dram_write_sectors": "dram__sectors_write.sum",
    "l2_sectors": "lts__t_sectors_srcunit_tex.sum",
    "l1_hit_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld_lookup_hit.sum",
}
NCU = ["ncu", "--csv", "--clock-control", "none", "--cache-control", "all", "--print-units", "base"]
NAMES = "regex:^(probe_|msda_|user_)"
#: What a launch's time follows, beside `COUNTERS`: read for the launches that are timed.
TIMING = {
    "duration_ns": "gpu__time_duration.sum",
    "cycles": "sm__cycles_elapsed.max",
    "instructions": "smsp__inst_executed.sum",
    "issue_active": "smsp__issue_active.sum",
    "wavefronts": "l1tex__data_pipe_lsu_wavefronts.sum",
    "shared_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    "tensor_instructions": "sm__inst_executed_pipe_tensor.sum",
    "xu_instructions": "sm__inst_executed_pipe_xu.sum",
    "alu_instructions": "sm__inst_executed_pipe_alu.sum",
    "fma_instructions": "sm__inst_executed_pipe_fma.sum",
    "ldgsts": "smsp__inst_executed_op_ldgsts.sum",
    "warps_active": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "registers": "launch__registers_per_thread",
    "limit_registers": "launch__occupancy_limit_registers",
    "limit_shared": "launch__occupancy_limit_shared_mem",
    "limit_warps": "launch__occupancy_limit_warps",
    "limit_blocks": "launch__occupancy_limit_blocks",
}


# --- A launch as data --------------------------------------------------------------------------------------------------


def describe_launch(case: str, inputs: dict[str, torch.Tensor], launch: Launch) -> dict[str, Any]:
    """A launch as JSON: the kernel's source, its arguments (inputs by name, others by content or shape), its grid."""
    shipment = _Shipment(launch)
    arguments = {}
    for name, value in launch.values.items():
        arguments[name] = _describe(shipment, inputs, value)
    functions = [{**f, "file": f"{case}/{_relative(f['file'])}"} for f in shipment.functions]
    return {
        "functions": functions,
        "arguments": arguments,
        "grid": list(launch.grid),
        "options": {k: v for k, v in launch.options.items() if k in ("num_warps", "num_stages", "num_ctas")},
    }


def _relative(file: str) -> str:
    path = Path(file).resolve()
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name


def _describe(shipment, inputs, value):
    if not isinstance(value, torch.Tensor):
        return {"value": shipment.encode(value)}
    layout = {
        "shape": list(value.shape),
        "stride": list(value.stride()),
        "offset": value.storage_offset(),
        "dtype": str(value.dtype).removeprefix("torch."),
    }
    for name, tensor in inputs.items():
        if tensor.untyped_storage().data_ptr() == value.untyped_storage().data_ptr() and tensor.dtype == value.dtype:
            return {"input": name, **layout}
    if value.numel() <= 64 and not value.dtype.is_floating_point:
        return {"content": value.cpu().tolist(), **layout}
    elements = value.untyped_storage().nbytes() // value.element_size()
    return {"zeros": elements, **layout}


def restore_launch(record: dict[str, Any], inputs: dict[str, torch.Tensor]) -> Launch:
    """The launch of a record, on the host: its kernel rebuilt from the recorded source, its inputs made anew."""
    load_triton()
    builder = worker.Builder({"functions": record["functions"]})
    kernel = builder.function(0)
    values = {}
    for name, a in record["arguments"].items():
        if "value" in a:
            values[name] = builder.value(a["value"])
        elif "input" in a:
            values[name] = inputs[a["input"]].clone().as_strided(a["shape"], a["stride"], a["offset"])
        else:
            dtype = getattr(torch, a["dtype"])
            if "content" in a:
                values[name] = torch.tensor(a["content"], dtype=dtype).reshape(a["shape"])
            else:
                values[name] = torch.zeros(a["zeros"], dtype=dtype).as_strided(a["shape"], a["stride"], a["offset"])
    return bind(kernel, tuple(record["grid"]), (), {**values, **record["options"]})


def trace_launch(launch: Launch, every: int = 1) -> Trace:
    """Interpret a launch, every program or every n-th, and note what it does to memory."""
    emulation = Emulation(launch)
    recorder = emulation.observer = Recorder(emulation)
    emulation.run(every)
    return recorder.finish()


def replay(record: dict[str, Any]) -> Report:
    """Count a recorded launch through its recorded lowering."""
    inputs = _cases()[record["case"]].inputs()
    return count(trace_launch(restore_launch(record, inputs)), Lowering.from_json(record["lowering"]))


def suites() -> dict[str, tuple[list, list]]:
    """name -> (launches whose counters are compared, launches that are timed)."""
    from msda_core.bench import probes, unseen, workloads

    return {
        "probes": (probes.CASES, probes.TIMED),
        "workloads": (workloads.SMALL, workloads.TIMED),
        "unseen": ([], unseen.TIMED),
    }


def _cases():
    return {c.name: c for small, timed in suites().values() for c in (*small, *timed)}


# --- Model against hardware --------------------------------------------------------------------------------------------


def model_counters(report: Report) -> dict[str, int]:
    """The model's value for each of `COUNTERS`; reductions and returning atomics apart, as the profiler has them."""
    out = {
        "load_requests": report.loads.requests,
        "load_sectors": report.loads.sectors,
        "store_requests": report.stores.requests,
        "store_sectors": report.stores.sectors,
        "dram_read_sectors": report.dram_bytes // 32,
    }
    for name, sites in (
        ("red", [s for s in report.sites if s.kind == "atomic" and not (s.returning or s.loop)]),
        ("atom", [s for s in report.sites if s.kind == "atomic" and (s.returning or s.loop)]),
    ):
        out[f"{name}_requests"] = sum(s.requests for s in sites)
        out[f"{name}_sectors"] = sum(s.sectors for s in sites)
    return out


def compare(record: dict[str, Any], report: Report) -> dict[str, tuple[int, int]]:
    """counter -> (hardware, model), for the counters the record has."""
    model = model_counters(report)
    return {k: (record["counters"][k], model[k]) for k in COUNTERS if k in record["counters"]}


def records(path: Path | None = None) -> Iterator[dict[str, Any]]:
    """The measured launches of one data file, or of all."""
    for file in [path] if path else sorted(DATA.glob("counters_*.json")):
        yield from json.loads(file.read_text())["records"]


def check(path: Path | None) -> int:
    """Print model against hardware; exit status 1 if a request count or a sector count is off."""
    worst: dict[str, tuple[float, str]] = {}
    bad = 0
    print(f"{'case':30} {'counter':18} {'hardware':>9} {'model':>9}")
    for record in records(path):
        for name, (hardware, model) in compare(record, replay(record)).items():
            error = abs(model - hardware) / max(1, hardware)
            worst[name] = max(worst.get(name, (0.0, "")), (error, record["case"]))
            wrong = error > (0.0 if name.endswith("requests") else 0.01) and not name.startswith("dram")
            bad += wrong
            if hardware or model:
                print(f"{record['case']:30} {name:18} {hardware:>9,} {model:>9,} {'  <-- off' if wrong else ''}")
    print("\nworst relative error")
    for name, (error, case) in worst.items():
        print(f"{name:18} {error:8.3%}  {case}")
    return int(bad > 0)


# --- On the device -----------------------------------------------------------------------------------------------------


def capture(case, device: str):
    """Run a case and keep its one launch.

    Returns:
        (inputs on the device, the launch, the compiled kernel or None)
    """
    load_triton()
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    inputs = {k: v.to(device) for k, v in case.inputs().items()}
    seen = []

    def route(kind):
        stock = kind.run

        def run(self, *args, grid, warmup, **kwargs):
            launch = bind(self, grid, args, kwargs)
            compiled = None if device == "cpu" else stock(self, *args, grid=grid, warmup=warmup, **kwargs)
            seen.append((launch, compiled))
            return compiled

        kind.run = run
        return kind, stock

    patched = [route(InterpretedFunction), route(JITFunction)]
    try:
        case.run(inputs)
    finally:
        for kind, stock in patched:
            kind.run = stock
    if len(seen) != 1:
        raise RuntimeError(f"{case.name} launched {len(seen)} kernels, expected 1.")
    if device != "cpu":
        torch.cuda.synchronize()
    return (inputs, *seen[0])


def launched(device: str, only: str = "", cases=None) -> list[dict[str, Any]]:
    """Run every case once; each as a record without counters. A case that fails is reported and left out."""
    out = []
    for case in cases if cases is not None else suites()["probes"][0]:
        if not re.search(only, case.name):
            continue
        try:
            out.append(record_of(case, *capture(case, device)))
        except Exception as error:
            print(f"{case.name}: {type(error).__name__}: {error}", file=sys.stderr)
            traceback.print_exc()
    return out


def record_of(case, inputs, launch: Launch, compiled) -> dict[str, Any]:
    """A launch with what it was compiled to, by this GPU's own launch or, without one, by `lower`."""
    record = {
        "case": case.name,
        "why": case.why,
        "kernel": launch.name,
        **describe_launch(case.name, inputs, launch),
    }
    if compiled is None:
        lowering = lower_launch(launch, "sm_90")
    else:
        capability = torch.cuda.get_device_capability()
        lowering = Lowering(
            launch.name,
            capability[0] * 10 + capability[1],
            compiled.metadata.num_warps,
            load_triton().__version__,
            compiled.asm["ttgir"],
            compiled.asm["ptx"],
            compiled.metadata.shared,
        )
        record["registers"], record["spills"] = compiled.n_regs, compiled.n_spills
        record["cubin"] = base64.b64encode(compiled.asm["cubin"]).decode()
    data = lowering.to_json()
    record["lowering"] = {**data, "ttgir": condense_ttgir(data["ttgir"]), "ptx": condense_ptx(data["ptx"])}
    return record


def parse_ncu(text: str) -> list[tuple[str, dict[str, float]]]:
    """(kernel, metric -> value) of each profiled launch, in order, from Nsight Compute's CSV."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        raise RuntimeError("Nsight Compute wrote no table:\n" + text[-2000:])
    launches: dict[str, tuple[str, dict[str, float]]] = {}
    for row in csv.DictReader(io.StringIO("\n".join(lines[start:]))):
        _, values = launches.setdefault(row["ID"], (row["Kernel Name"], {}))
        values[row["Metric Name"]] = float(row["Metric Value"].replace(",", ""))
    return list(launches.values())


def measure(out: Path, only: str = "", suite: str = "probes"):
    """Everything on the device: counters under Nsight Compute, then times without it. Saved after each step."""
    wanted = {**COUNTERS, **EXTRA, **(TIMING if suite != "probes" else {})}
    found, command = profiled(out, suite, "small", only, wanted) if suites()[suite][0] else ([], NCU)
    shown = " ".join([*command, "python -m msda_core.bench.calibrate --launch"])
    data = {"machine": describe_machine(shown), "launch_us": None, "records": found, "timed": []}
    save(out, data)
    if only:
        return
    data["timed"], data["launch_us"] = measure_times(suites()[suite][1])
    save(out, data)
    if suite != "probes":
        cold = {r["case"]: r for r in profiled(out, suite, "timed", only, wanted)[0]}
        for record in data["timed"]:
            record["counters"] = cold.get(record["case"], {}).get("counters", {})
        save(out, data)


def profiled(out: Path, suite: str, part: str, only: str, wanted: dict[str, str]):
    """The records of a suite's launches, each with what Nsight Compute counted; and the command."""
    with tempfile.TemporaryDirectory() as folder:
        listing, log = Path(folder) / "launched.json", Path(folder) / "ncu.csv"
        for metrics in (wanted, {**COUNTERS, **EXTRA}, COUNTERS):
            command = [*NCU, "-k", NAMES, "--metrics", ",".join(metrics.values()), "--log-file", str(log)]
            child = [sys.executable, "-m", "msda_core.bench.calibrate", "--launch", str(listing), "--only", only]
            child += ["--suite", suite, "--part", part]
            done = subprocess.run([*command, *child], capture_output=True, text=True)
            print(done.stderr[-3000:], file=sys.stderr)
            text = log.read_text() if log.exists() else ""
            if done.returncode == 0 and '"ID"' in text:
                break
            print(done.stdout[-1500:], done.stderr[-1500:], text[-1500:], sep="\n", file=sys.stderr)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.with_name(f"{out.stem}_{part}.csv").write_text(text)  # the profiler's own table, should ours misread it
        out.with_name(f"{out.stem}_{part}.json").write_text(listing.read_text())
        found = json.loads(listing.read_text())
    table = parse_ncu(text)
    if len(table) != len(found):
        raise RuntimeError(f"{len(found)} launches, but {len(table)} were profiled.")
    for record, (kernel, values) in zip(found, table):
        if kernel.split("(")[0] != record["kernel"]:
            raise RuntimeError(f"Launch {record['case']} is {record['kernel']}, but {kernel} was profiled.")
        record["counters"] = {k: int(values[m]) for k, m in metrics.items() if m in values}
    return found, [a for a in command if a not in (str(log), "--log-file")]


def measure_times(cases) -> tuple[list[dict[str, Any]], float]:
    """Device times of the bigger launches, warm (replayed from a graph) and with a cold L2, in microseconds.

    Returns:
        (records with `warm_us` and `cold_us`, the time of an empty kernel)
    """
    from triton.testing import do_bench, do_bench_cudagraph

    from msda_core.bench.probes import probe_nothing

    out = []
    for case in cases:
        try:
            inputs, launch, compiled = capture(case, "cuda")
        except Exception as error:
            print(f"{case.name}: {type(error).__name__}: {error}", file=sys.stderr)
            continue

        def again(launch=launch):
            launch.kernel[launch.grid](**launch.values, **launch.options)

        record = record_of(case, inputs, launch, compiled)
        with torch.cuda.stream(torch.cuda.Stream()):
            record["warm_us"] = 1e3 * do_bench_cudagraph(again, rep=30, return_mode="median")
        record["cold_us"] = 1e3 * do_bench(again, warmup=10, rep=50, return_mode="median")
        out.append(record)
        print(f"{case.name:28} warm {record['warm_us']:8.1f} us   cold {record['cold_us']:8.1f} us")
        del inputs, launch, again
    x = torch.zeros(1, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        floor = 1e3 * do_bench_cudagraph(lambda: probe_nothing[(1,)](x), rep=30, return_mode="median")
    return out, floor


def describe_machine(command: str) -> dict[str, Any]:
    """What measured counters depend on: GPU, driver, versions, and the command."""
    version = subprocess.run(["ncu", "--version"], capture_output=True, text=True).stdout
    return {
        "gpu": torch.cuda.get_device_name(),
        "capability": list(torch.cuda.get_device_capability()),
        "driver": _query("driver_version"),
        "torch": torch.__version__,
        "triton": load_triton().__version__,
        "ncu": (re.findall(r"Version ([\d.]+)", version) or [""])[0],
        "command": command,
    }


def save(out: Path, data: dict[str, Any]):
    """JSON with one record a line, so that a difference can be read."""
    parts = []
    for key, value in data.items():
        if key in ("records", "timed"):
            rows = ",\n".join(json.dumps(r, separators=(",", ":")) for r in value)
            parts.append(f'"{key}": [\n{rows}\n]')
        else:
            parts.append(f'"{key}": {json.dumps(value, indent=1)}')
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("{\n" + ",\n".join(parts) + "\n}\n")
    print(f"{out}: {len(data['records'])} launches on {data['machine']['gpu']}")


def _query(field: str) -> str:
    done = subprocess.run(
        ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"], capture_output=True, text=True
    )
    return done.stdout.strip().splitlines()[0] if done.stdout.strip() else ""


def count_timed(path: Path, sample: int = 512):
    """Replace the launches behind the measured times by what the model counts for them.

    The operator's launches are sampled: at least `sample` programs run, and their counts are scaled. Locations are
    uniform, so that is close; the unique sectors are counted exactly, from the locations.
    """
    from msda_core.bench.probes import msda_touched

    data = json.loads(path.read_text())
    for i, record in enumerate(data["timed"]):
        if "lowering" not in record:
            continue
        inputs = _cases()[record["case"]].inputs()
        launch = restore_launch(record, inputs)
        operator = record["kernel"].startswith("msda")
        every = max(1, launch.programs // sample) if operator else 1
        report = count(trace_launch(launch, every), Lowering.from_json(record["lowering"]))
        model = {k: v * every for k, v in model_counters(report).items()}
        if operator:
            value = 32 * msda_touched(inputs)
            others = sum(t.numel() * t.element_size() for k, t in inputs.items() if k in ("loc", "attn", "grad"))
            backward = "backward" in record["case"]
            read = value * (1 + backward) + others - (0 if backward else inputs["grad"].nbytes)
            written = value + others - inputs["grad"].nbytes if backward else inputs["grad"].nbytes
            model.update(dram_read_sectors=read // 32)
        else:
            read, written = report.dram_bytes, report.written_bytes
        model.update(dram_bytes=read, written_bytes=written, line=report.contention.line, every=every)
        keep = ("case", "why", "kernel", "registers", "spills", "warm_us", "cold_us")
        data["timed"][i] = {**{k: record[k] for k in keep}, "shared": record["lowering"]["shared"], "model": model}
        print(record["case"], model)
    save(path, data)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m msda_core.bench.calibrate", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="measure, and write this data file (needs a GPU and ncu)")
    parser.add_argument("--check", nargs="?", const="", help="compare the model with one data file, or with all")
    parser.add_argument("--launch", type=Path, help="run every case once and describe the launches in this file")
    parser.add_argument("--only", default="", help="a regular expression: measure only the cases it is found in")
    parser.add_argument("--suite", default="probes", choices=list(suites()), help="which launches")
    parser.add_argument("--part", default="small", choices=("small", "timed"), help="with --launch: which of them")
    parser.add_argument("--count-timed", type=Path, help="count the timed launches of a data file (minutes), in place")
    parser.add_argument("--dry-run", action="store_true", help="as --launch on the CPU, then count each launch twice")
    a = parser.parse_args(argv)
    if a.launch:
        os.makedirs(a.launch.parent, exist_ok=True)
        cases = suites()[a.suite][a.part == "timed"]
        a.launch.write_text(json.dumps(launched("cuda", a.only, cases)))
    elif a.dry_run:
        return dry_run(a.only, a.suite)
    elif a.count_timed:
        count_timed(a.count_timed)
    elif a.out:
        measure(a.out, a.only, a.suite)
    else:
        return check(Path(a.check) if a.check else None)
    return 0


def dry_run(only: str = "", suite: str = "probes") -> int:
    """Describe every launch, then check that its description counts the same as the launch itself."""
    bad = 0
    for record in json.loads(json.dumps(launched("cpu", only, suites()[suite][0]))):
        case = _cases()[record["case"]]
        inputs, launch, _ = capture(case, "cpu")
        try:
            direct = count(trace_launch(launch), lower_launch(launch, "sm_90"))
        except Unsupported as refused:
            print(f"{record['case']:28} refused: {refused}")
            continue
        again = replay(record)
        a, b = model_counters(direct), model_counters(again)
        size = len(json.dumps(record))
        flags = f"  {len(direct.eliminated)} eliminated" if direct.eliminated else ""
        print(
            f"{record['case']:28} {'same' if a == b else 'DIFFERENT'} {size:>7} B {flags} "
            + " ".join(f"{k}={v}" for k, v in a.items() if v)
        )
        if a != b:
            bad += 1
            print("   ", b)
    return bad


if __name__ == "__main__":
    sys.exit(main())

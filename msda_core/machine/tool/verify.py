"""Our counts beside the hardware's: on a machine with a GPU and Nsight Compute, one command runs both.

Source of the metrics' names: Nsight Compute's documentation, "Metrics Structure", L1TEX.
"""

import csv
import io
import json
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from msda_core.machine import errors

__all__ = ["METRICS", "compared", "hardware", "parse", "table"]

#: Nsight Compute's metrics -> where ours of the same meaning are. Reductions are `red` where nobody reads the old value.
METRICS = {
    **{
        f"l1tex__t_{what}_pipe_lsu_mem_global_op_{op}.sum": (kind, what)
        for kind, ops in (("loads", ("ld",)), ("stores", ("st",)), ("atomics", ("red", "atom")))
        for op in ops
        for what in ("requests", "sectors")
    },
    "launch__registers_per_thread": ("registers", ""),
    "gpu__time_duration.sum": ("", ""),
}

#: What a launch of fewer registers a thread shows on an H200: seen for 12 and 14. nvcc's manual says that the ABI has a
#: minimum ("--maxrregcount"), and not which; nothing else is known to say it.
REGISTERS_AT_LEAST = 16


def hardware(command: list[str], kernels: list[str]) -> list[dict[str, Any]]:
    """Counters of each launch of these kernels, as Nsight Compute reads them.

    Args:
        command: what to run, without the interpreter.

    Raises:
        LaunchError: no `ncu`, or it may not read the counters.
    """
    tool = shutil.which("ncu") or shutil.which("ncu", path="/usr/local/cuda/bin")
    if tool is None:
        raise errors.LaunchError(
            "verify needs Nsight Compute: `ncu` is neither on the PATH nor in /usr/local/cuda/bin."
        )
    names = "regex:^(" + "|".join(sorted(set(kernels))) + ")$"
    done = subprocess.run(
        [tool, "--clock-control", "none", "--cache-control", "all", "--csv", "--page", "raw",
         "--print-units", "base", "-k", names, "--metrics", ",".join(METRICS), sys.executable, *command],
        capture_output=True, text=True,
    )  # fmt: skip
    if "ERR_NVGPUCTRPERM" in done.stdout + done.stderr:
        raise errors.LaunchError("The counters of this GPU are locked (ERR_NVGPUCTRPERM): ask its administrator.")
    found = parse(done.stdout)
    if not found:
        raise errors.LaunchError(f"ncu reported no launch of {names}: {(done.stderr or done.stdout).strip()[-300:]}")
    return found


def parse(text: str) -> list[dict[str, Any]]:
    """The launches in the CSV that `ncu --csv --page raw` prints, with whatever a script printed before it."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return []
    found = []
    for row in csv.DictReader(io.StringIO("\n".join(lines[start:]))):
        if (row.get("ID") or "").isdigit():
            numbers = {name: row[name].replace(",", "") for name in METRICS if row.get(name)}
            found.append({"kernel": row["Kernel Name"].split("(")[0]} | {n: float(v) for n, v in numbers.items()})
    return found


def compared(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each of our launches: each count with the hardware's; launches of one kernel pair in order.

    A launch without a counterpart has no `counts`, and `why` says why not.
    """
    rows: list[dict[str, Any]] = []
    taken: dict[str, int] = {}
    for record in ours:
        mine = [r for r in theirs if r["kernel"] == record["kernel"]]
        at = taken.get(record["kernel"], 0)
        if not record["best"]:
            continue
        taken[record["kernel"]] = at + 1
        why = _incomparable(record) or ("" if at < len(mine) else "the GPU launched it less often")
        if why:
            rows.append({"launch": record["launch"], "kernel": record["kernel"], "counts": {}, "why": why})
            continue
        totals: dict[str, list[float]] = {}
        for metric, (group, what) in METRICS.items():
            if group and metric in mine[at]:
                value = record[group][what] if what else max(record[group], REGISTERS_AT_LEAST)
                pair = totals.setdefault(f"{group} {what}".strip(), [value, 0.0])
                pair[1] += mine[at][metric]
        rows.append({"launch": record["launch"], "kernel": record["kernel"], "counts": totals, "hardware": mine[at]})
    return rows


def _incomparable(record: dict[str, Any]) -> str:
    """Why a launch of ours has no counterpart on the hardware; "" if it should have one."""
    if record["autotuned"]:
        return "autotuned, and on a GPU its launches are the tuner's trials too"
    return record["refused"] or ""


def table(rows: list[dict[str, Any]]) -> str:
    """Rows as text: a count that differs is shown with both values; the last line says how many are equal."""
    lines = []
    for row in rows:
        if not row["counts"]:
            lines.append(f"{row['kernel']}, launch {row['launch']}: not compared: {row['why']}")
            continue
        off = [f"{n} {a:,.0f} here, {b:,.0f} on the GPU" for n, (a, b) in row["counts"].items() if a != b]
        same = len(row["counts"]) - len(off)
        lines.append(f"{row['kernel']}, launch {row['launch']}: {same} of {len(row['counts'])} counts equal")
        lines += [f"    {text}" for text in off]
    pairs = [pair for row in rows for pair in row["counts"].values()]
    launches = sum(bool(row["counts"]) for row in rows)
    lines.append(f"In all: {sum(a == b for a, b in pairs)} of {len(pairs)} counts equal, in {launches} launches.")
    return "\n".join(lines)


def document(target: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What can be sent to us: counts, versions, the GPU; no source and no path."""
    import torch
    import triton

    return {
        "version": 1,
        "target": target,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "",
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "launches": rows,
    }


def verify(command: list[str], target: str, output: str) -> str:
    """Profile a script here, then under `ncu`; write both to a file, and give the table.

    Raises:
        LaunchError: there is nothing to compare with.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.json"
        subprocess.run(
            [sys.executable, "-m", "msda_core.machine", "run", "--quiet", "--all", "--target", target, "--json",
             str(path), *command]
        )  # fmt: skip
        if not path.is_file():
            raise errors.LaunchError("The script could not be profiled.")
        ours = json.loads(path.read_text())["launches"]
    wanted = [r["kernel"] for r in ours if not _incomparable(r)]
    rows = compared(ours, hardware(command, wanted) if wanted else [])
    Path(output).write_text(json.dumps(document(target, rows), indent=1))
    return table(rows)

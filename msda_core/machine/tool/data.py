"""Profiles as plain data: what `--json` writes, budgets read and `diff` compares."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msda_core.machine import errors
from msda_core.machine.counts.calls import worst_request
from msda_core.machine.counts.traffic import Report, SiteTraffic, Traffic
from msda_core.machine.model.roofline import occupancy
from msda_core.machine.model.timing import estimate
from msda_core.machine.tool.pretend import gpu_of
from msda_core.machine.tool.session import Profiled

__all__ = ["VERSION", "document", "load", "record_of"]

VERSION = 1


def document(target: int, launches: Iterable[Profiled], note: str = "") -> dict[str, Any]:
    """Everything about a session; `note` says what went wrong, if anything did."""
    return {"version": VERSION, "target": f"sm_{target}", "note": note, "launches": [record_of(p) for p in launches]}


def load(path: str | Path) -> dict[str, Any]:
    """A document from a file.

    Raises:
        LaunchError: the file is not there, is no JSON, or of another version.
    """
    try:
        data = json.loads(Path(path).read_text())
    except OSError as error:
        raise errors.LaunchError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise errors.LaunchError(f"{path} is not JSON: {error}.") from None
    if not isinstance(data, dict) or data.get("version") != VERSION or "launches" not in data:
        raise errors.LaunchError(f"{path} is no profile of version {VERSION}. Was it written by `run --json`?")
    return data


def record_of(entry: Profiled) -> dict[str, Any]:
    """One launch under one config, as plain data."""
    launch = entry.launch
    found: dict[str, Any] = {
        "launch": entry.number,
        "kernel": entry.kernel,
        "file": launch.fn.__code__.co_filename,
        "line": launch.fn.__code__.co_firstlineno,
        "grid": list(launch.grid),
        "config": entry.config,
        "autotuned": entry.autotuned,
        "best": entry.best,
        "refused": entry.refused or None,
    }
    if entry.lowering is not None:
        try:
            found |= {
                "registers": entry.lowering.registers,
                "spills": entry.lowering.spills,
                "shared": entry.lowering.shared,
                "occupancy": _occupancy(entry),
                "triton": entry.lowering.triton,
            }
        except errors.CompileError as error:
            found["refused"] = found["refused"] or str(error)
    report = entry.report
    if report is None or found["refused"]:
        return found
    meet = report.contention
    found |= {
        "loads": _traffic(report.loads),
        "stores": _traffic(report.stores),
        "atomics": _traffic(report.atomics),
        "requests": report.requests,
        "sectors": report.sectors,
        "unique_bytes": report.unique_bytes,
        "written_bytes": report.written_bytes,
        "dram_bytes": report.dram_bytes,
        "efficiency": round(report.efficiency, 4),
        "contention": {
            "lanes": meet.lanes,
            "updates": meet.updates,
            "mean": round(meet.mean, 2),
            "programs": meet.programs,
            "line": meet.line,
        },
        "sampled": report.sampled,
        "error": round(report.error, 5),
        "estimate": _estimate(entry),
        "by_line": _by_line(report, found["file"]),
        "worst": _worst(report),
    }
    return found


def _traffic(traffic: Traffic) -> dict[str, Any]:
    return {
        "requests": traffic.requests,
        "sectors": traffic.sectors,
        "bytes": traffic.bytes,
        "unique_sectors": traffic.unique_sectors,
        "efficiency": round(traffic.efficiency, 4),
    }


def _occupancy(entry: Profiled) -> dict[str, Any]:
    assert entry.lowering is not None
    held = occupancy(entry.lowering, gpu_of(entry.lowering.target))
    return {"programs": held.blocks, "warps": held.warps, "fraction": round(held.fraction, 4), "limit": held.limit}


def _estimate(entry: Profiled) -> dict[str, Any]:
    assert entry.lowering is not None and entry.report is not None
    guess = estimate(entry.report, gpu_of(entry.lowering.target))
    return {"gpu": guess.gpu, "seconds": guess.seconds, "bound": guess.bound, "label": guess.label}


def _by_line(report: Report, kernel_file: str) -> dict[str, dict[str, Any]]:
    """By line of the source; a line of another file than the kernel's is named with its file."""
    lines: dict[str, dict[str, Any]] = {}
    for site in sorted(report.sites, key=lambda s: s.lineno):
        frame = site.site.frames[-1] if site.site and site.site.frames else None
        name = frame.filename if frame else kernel_file
        key = str(site.lineno) if name == kernel_file else f"{Path(name).name}:{site.lineno}"
        line = lines.setdefault(
            key,
            {
                "file": name, "line": site.lineno, "text": site.text, "kinds": [], "requests": 0, "sectors": 0, "bytes": 0,
                "unique_sectors": 0, "instructions": [], "width": 0,
            },
        )  # fmt: skip
        for field in ("requests", "sectors", "bytes", "unique_sectors"):
            line[field] += getattr(site, field)
        if site.kind not in line["kinds"]:
            line["kinds"].append(site.kind)
        if site.instruction and site.instruction not in line["instructions"]:
            line["instructions"].append(site.instruction)
        line["width"] = max(line["width"], site.width)
    for line in lines.values():
        line["efficiency"] = round(line["bytes"] / (32 * line["sectors"]), 4) if line["sectors"] else 1.0
    return lines


def wasting(report: Report) -> SiteTraffic | None:
    """The operation that fetches most bytes which nobody asked for; None where none does."""
    site = max(report.sites, key=lambda s: 32 * s.sectors - s.bytes, default=None)
    return site if site is not None and 32 * site.sectors > site.bytes and site.kind != "atomic" else None


def _worst(report: Report) -> dict[str, Any] | None:
    """The line that wastes most, and the lanes of one of its requests."""
    site = wasting(report)
    lanes = worst_request(report, site, most=64) if site is not None else None
    if site is None or lanes is None:
        return None
    return {
        "line": site.lineno,
        "text": site.text,
        "wasted_bytes": 32 * site.sectors - site.bytes,
        "tensor": lanes.tensor,
        "addresses": lanes.addresses.tolist(),
        "width": lanes.width,
        "sectors": lanes.sectors,
        "useful": lanes.useful,
    }

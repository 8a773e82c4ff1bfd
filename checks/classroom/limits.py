"""What one submission may use, and how many can be graded at a time."""

import math
import os
from dataclasses import dataclass, fields
from pathlib import Path

__all__ = ["Limits", "processors"]

#: Address space that torch, Triton and the course map before an answer runs: 0.85 GB with all ten labs loaded (CPU build
#: of torch 2.13, measured), and as much again for what a process of the compiler maps.
NEEDED_MB = 2_000


@dataclass(frozen=True)
class Limits:
    """What one submission may use. Times grow with MSDA_PATIENCE, as those of single checks do.

    Attributes:
        seconds: processor time for each of its labs, and how long it may do nothing. Waiting for a processor is neither.
        memory_mb: address space of each of its processes, and memory of all of them together.
        output_mb: what it may write, all its files together.
        processes: how many it may have at a time; Triton's compiler is one or two.
        unpacked_mb, files: how large the Python files of a submission may be.
        archive_mb: how large a zip or tar file may be.
    """

    seconds: float = 120.0
    memory_mb: int = 16_000
    output_mb: int = 64
    processes: int = 64
    unpacked_mb: int = 64
    files: int = 2_000
    archive_mb: int = 256

    def __post_init__(self):
        for field in fields(self):
            value = getattr(self, field.name)
            if not math.isfinite(value) or value <= 0:
                raise ValueError(f"{_option(field.name)} must be a number above 0, got {value:g}.")
        if self.memory_mb < NEEDED_MB:
            raise ValueError(
                f"--memory-mb must be at least {NEEDED_MB}, got {self.memory_mb}: torch and Triton need that before an "
                "answer runs, and a learner would be blamed for it."
            )
        if self.seconds < 1:
            raise ValueError(f"--seconds must be at least 1, got {self.seconds:g}: no lab can be graded in less.")


def _option(field: str) -> str:
    return "--" + field.replace("_", "-")


def processors() -> int:
    """How many processors this process may use: those it is tied to, and no more than its container's quota."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for quota, period in (_quota_v2(), _quota_v1()):
        if quota and period:
            count = min(count, max(1, math.ceil(quota / period)))
    return count


def _quota_v2(root: Path = Path("/sys/fs/cgroup")) -> tuple[float, float]:
    try:
        own = next(
            line.split(":", 2)[2] for line in Path("/proc/self/cgroup").read_text().splitlines() if line[:1] == "0"
        )
        folder = root / own.strip("/")
        while not (folder / "cpu.max").exists() and folder != root and root in folder.parents:
            folder = folder.parent
        quota, period = (folder / "cpu.max").read_text().split()
        return (0.0, 0.0) if quota == "max" else (float(quota), float(period))
    except (OSError, StopIteration, ValueError, IndexError):
        return 0.0, 0.0


def _quota_v1(root: Path = Path("/sys/fs/cgroup/cpu")) -> tuple[float, float]:
    try:
        quota = float((root / "cpu.cfs_quota_us").read_text())
        return (quota, float((root / "cpu.cfs_period_us").read_text())) if quota > 0 else (0.0, 0.0)
    except (OSError, ValueError):
        return 0.0, 0.0

"""What stands between a submission and the machine: bubblewrap where it works, and otherwise what Linux gives everybody.

With bubblewrap a worker, and every submission that it forks, sees the Python installation and the course read-only and
nothing else of the disk: no home, no other submission. It has no network, a temporary folder of its own in memory with a
quota, and a process namespace whose first process is the worker, so that `kill` reaches all that a submission started.
Without it a submission runs as the user who grades it, within limits on time, memory, processes and what it writes.
"""

import functools
import glob
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from checks.classroom.limits import Limits

__all__ = ["SANDBOXES", "choose", "command", "environment", "protection", "sees_gpu"]

SANDBOXES = ("auto", "bwrap", "none")
ROOT = Path(__file__).resolve().parents[2]
#: What a submission's process is told of the environment; everything else stays here, whatever secrets it holds.
PASSED = re.compile(
    r"PATH|LANG|LC_\w+|LD_LIBRARY_PATH|MSDA_DEVICE|MSDA_PATIENCE|CUDA_VISIBLE_DEVICES|TRITON_(?!CACHE)\w+|TZ"
)
#: Parts of the system that Python and the compiler read.
SYSTEM = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/localtime",
)
SYSTEM += ("/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/sys/devices/system/cpu", "/nix")


def choose(wish: str) -> str:
    """The sandbox to use: "bwrap" or "none".

    Raises:
        ValueError: bubblewrap is asked for, and is not installed or not allowed here.
    """
    if wish not in SANDBOXES:
        raise ValueError(f"--sandbox must be one of {', '.join(SANDBOXES)}, got {wish!r}.")
    if wish == "none":
        return "none"
    trouble = _trouble()
    if trouble and wish == "bwrap":
        raise ValueError(f"--sandbox bwrap cannot be had: {trouble}. `--sandbox none` does without.")
    return "none" if trouble else "bwrap"


@functools.cache
def _trouble() -> str:
    """Why bubblewrap cannot be used; "" if it can."""
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed"
    try:
        done = subprocess.run(
            [*command("bwrap", Limits()), sys.executable, "-ISc", ""],
            capture_output=True,
            timeout=60,
            env=environment(),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap does not start: {error}"
    said = (done.stderr.decode(errors="replace").strip().splitlines() or [f"status {done.returncode}"])[-1]
    return f"it is not allowed here ({said})" if done.returncode else ""


def protection(sandbox: str, wish: str = "auto") -> str:
    """One line for whoever grades: what is protected, and what is not; `wish` is what was asked for."""
    if sandbox == "bwrap":
        return "Sandbox: bubblewrap. Read-only view without your files, no network, own processes and temporary folder."
    return (
        f"Sandbox: none ({'as asked' if wish == 'none' else _trouble()}). Limits on time, memory, processes and output hold, but a submission can read "
        "and change what you can, and use the network. Grade only people you trust, or grade in a container."
    )


def command(sandbox: str, limits: Limits) -> list[str]:
    """What stands before the command of a worker."""
    if sandbox == "none":
        return []
    quota = str(limits.output_mb * 1_000_000)
    words = ["bwrap", "--unshare-all", "--as-pid-1", "--new-session", "--cap-drop", "ALL", "--hostname", "sandbox"]
    if _knows("--disable-userns"):
        words += ["--unshare-user", "--disable-userns"]
    for path in SYSTEM:
        if os.path.islink(path):
            words += ["--symlink", os.readlink(path), path]
        elif os.path.exists(path):
            words += ["--ro-bind", path, path]
    words += [
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        "--size",
        quota,
        "--tmpfs",
        "/tmp",
        "--size",
        quota,
        "--tmpfs",
        "/dev/shm",
    ]
    for path in _python():
        words += ["--ro-bind", str(path), str(path)]
    if sees_gpu():
        words += ["--ro-bind", "/sys", "/sys"]
        for device in glob.glob("/dev/nvidia*"):
            words += ["--dev-bind", device, device]
    return [*words, "--chdir", "/tmp", "--"]


@functools.cache
def _knows(option: str) -> bool:
    return option in subprocess.run(["bwrap", "--help"], capture_output=True, text=True).stdout


def _python() -> list[Path]:
    """The folders of this Python, its packages and the course; not the course's notebooks, nor anything beside it."""
    wanted = {Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parents[1]}
    wanted |= {Path(entry) for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")}
    wanted |= {ROOT / name for name in ("checks", "msda_core", "solutions")}
    there = sorted({path for one in wanted for path in (one.absolute(), one.resolve()) if path.exists()})
    covered = [Path(path) for path in SYSTEM if not os.path.islink(path)]
    kept: list[Path] = []
    for path in there:
        if path != Path("/") and not any(path.is_relative_to(one) for one in (*covered, *kept)):
            kept.append(path)
    return kept


def environment(home: str = "/tmp") -> dict[str, str]:
    """The environment of a worker."""
    passed = {key: value for key, value in os.environ.items() if PASSED.fullmatch(key)}
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {
        **passed,
        "PYTHONPATH": path,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUTF8": "1",
        "OMP_NUM_THREADS": "1",  # as many submissions as processors are graded at a time
        "HOME": home,
        "TMPDIR": home,
        "TRITON_CACHE_DIR": os.path.join(home, "triton"),
        "MPLCONFIGDIR": os.path.join(home, "matplotlib"),
        "XDG_CONFIG_HOME": os.path.join(home, "config"),
    }


def sees_gpu() -> bool:
    """Whether answers may run on a GPU: then nothing may be loaded before a process is forked, for CUDA does not survive it."""
    return bool(glob.glob("/dev/nvidia[0-9]*")) and os.environ.get("MSDA_DEVICE", "").strip().lower() != "cpu"

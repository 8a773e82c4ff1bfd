"""A worker's process: imports torch and the course once, then forks a child for each lab of each submission.

A child's memory is a copy, its files are wiped and its processes are killed before the next one begins, so nothing is
shared between submissions but what was loaded before the first. Under bubblewrap this process is the first one of a process
namespace: `kill(-1)` ends whatever a submission started, also what called setsid or forked twice, and nothing in there can
end or trace this process. Without bubblewrap it is a subreaper: orphans become its children, and are looked for and killed.

Started by `checks.classroom.workers`, which speaks with it over a socket.
"""

import base64
import contextlib
import ctypes
import importlib
import json
import os
import pkgutil
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from checks.catalogue import LABS
from checks.classroom import child
from checks.classroom.wire import receive, send

__all__ = ["main", "serve"]

TAIL = 4_000  # bytes of what a child writes to its standard output and error that are kept
RESULT_LIMIT = 8_000_000  # bytes
NOTES = 20_000  # bytes of what is noticed that are kept
CLOCK = 20  # by the clock a lab may take so many times its processor time, on a machine that is busy with others
BEAT = 5.0  # seconds between signs of life to the other side, while a child runs
LOOK = 0.25  # seconds between looks at what a child uses


def preload(labs: list[str]) -> None:
    """Import what every child will need: torch, Triton, the labs' exercises and what notebooks import."""
    from checks.answers import grading  # noqa: F401
    from checks.answers.carry import solution_module
    from checks.core.exercise import lab_exercises
    from msda_core import device, figures

    for lab in labs:
        lab_exercises(lab)
        solution_module(lab)
    if not device.NO_TRITON:
        device.load_triton()
    for name in ("marimo", "matplotlib.pyplot", "msda_core.machine"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for module in pkgutil.iter_modules(figures.__path__):
        if module.name != "tests":
            importlib.import_module(f"msda_core.figures.{module.name}")


def serve(channel: socket.socket, labs: list[str], loaded: bool) -> None:
    """Answer requests until the other side goes."""
    if sys.platform == "linux":
        prctl = ctypes.CDLL(None).prctl
        prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: no child may trace this process
        prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    if loaded:
        preload(labs)
    send(channel, {"threads": len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 1})
    while (request := receive(channel)) is not None:
        for lab in request["labs"]:
            answer = _grade(lab, request, channel)
            send(channel, answer)
            if answer["spoiled"]:
                return


def _grade(lab: str, request: dict[str, Any], channel: socket.socket) -> dict[str, Any]:
    home = Path(tempfile.mkdtemp(prefix="submission-"))
    limits = request["limits"]
    for name, data in request["files"].items():
        path = home / "labs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(data))
    kept = _disk(home)
    answer = _watch(lab, home, home / "labs" / f"{LABS[lab].notebook}.py", limits, channel, kept)
    return {**answer, "lab": lab, "spoiled": not (_end_all() and _wipe(home))}


def _watch(lab: str, home: Path, file: Path, limits: dict, channel: socket.socket, kept: int) -> dict[str, Any]:
    """Fork a child, and see to it until it ends or has used what it may."""
    results, results_in = os.pipe()
    noted, noted_in = os.pipe()
    output, output_in = os.pipe()
    nonce = secrets.token_hex(16)
    started = time.monotonic()
    pid = os.fork()
    if not pid:
        limits = {**limits, "user_processes": _room(limits)}
        child.run(lab, home, file, results_in, noted_in, output_in, nonce, limits)
    for end in (results_in, noted_in, output_in):
        os.close(end)
    said, notes, tail, stopped, status, usage = bytearray(), bytearray(), bytearray(), "", None, None
    looked = beaten = started
    idle, open_ends = 0.0, {results: said, noted: notes, output: tail}
    while status is None:
        ready, _, _ = select.select([channel, *open_ends], [], [], 0.05)
        if channel in ready:  # nothing is sent to us while we work: the other side has gone
            _end_all()
            os._exit(1)
        for end in [one for one in ready if one in open_ends]:
            _drain(end, open_ends)
        now = time.monotonic()
        if now - beaten > BEAT:
            send(channel, {"alive": True})
            beaten = now
        if now - looked > LOOK and not stopped:
            idle += 0.0 if _busy() else now - looked
            looked = now
            stopped = _excess(home, limits, now - started, idle, kept)
            if stopped:
                os.kill(pid, signal.SIGKILL)
        ended, how, rusage = os.wait4(pid, os.WNOHANG)
        if ended:
            status, usage = os.waitstatus_to_exitcode(how), rusage
    left = sum(session != pid for _, session, _ in _descendants().values()) if not stopped else 0
    _end_all()
    for end in list(open_ends):
        _drain(end, open_ends, all_of_it=True)
    for end in (results, noted, output):
        with contextlib.suppress(OSError):
            os.close(end)
    cpu = usage.ru_utime + usage.ru_stime
    if not stopped and status == -signal.SIGKILL and cpu >= limits["seconds"]:
        stopped = _too_long(limits)
    head = f"{nonce}\n".encode()
    genuine = said.startswith(head) and said.count(b"\n") == 2 and said.endswith(b"\n")
    return {
        "status": status,
        "stopped": stopped,
        "result": said[len(head) :].decode(errors="replace") if genuine else None,
        "forged": bool(said) and not genuine,
        "noted": bytes(notes[:NOTES]).decode(errors="replace"),
        "left": left,
        "output": bytes(tail[-TAIL:]).decode(errors="backslashreplace"),
        "seconds": time.monotonic() - started,
        "cpu": cpu,
    }


def _drain(end: int, open_ends: dict[int, bytearray], all_of_it: bool = False) -> None:
    """Take what is in a pipe; of results so much, of output the end."""
    os.set_blocking(end, False)
    kept = open_ends[end]
    for _ in range(64 if not all_of_it else 4096):
        try:
            data = os.read(end, 1 << 16)
        except BlockingIOError:
            return
        if not data:
            del open_ends[end]
            return
        kept += data
        if len(kept) > RESULT_LIMIT:
            del kept[: len(kept) - TAIL]


def _too_long(limits: dict) -> str:
    return f"it was stopped after {limits['seconds']:g} s of processor time."


def _busy() -> bool:
    """Whether a thread of a child, or of what it started, runs or waits for a processor: then time is not its fault."""
    for pid in _descendants():
        with contextlib.suppress(OSError, IndexError):
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/stat", "rb") as file:
                    if file.read().rsplit(b")", 1)[1].split()[0] in b"RD":
                        return True
    return False


def _excess(home: Path, limits: dict, elapsed: float, idle: float, kept: int) -> str:
    """What a child and all that it started use beyond the limits; "" if nothing."""
    if idle > limits["seconds"]:
        return f"it was stopped after {limits['seconds']:g} s in which it did nothing."
    if elapsed > CLOCK * limits["seconds"]:
        return f"it was stopped after {CLOCK * limits['seconds']:g} s by the clock."
    family = _descendants()
    if len(family) > limits["processes"]:
        return f"it had more than {limits['processes']} processes."
    tick, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    if sum(fields[0] for *_, fields in family.values()) / tick > limits["seconds"]:
        return _too_long(limits)
    if sum(fields[1] for *_, fields in family.values()) * page > limits["memory_mb"] * 1_000_000:
        return f"its processes held more than {limits['memory_mb']} MB of memory."
    if _disk(home) - kept > limits["output_mb"] * 1_000_000:
        return f"it wrote more than {limits['output_mb']} MB."
    return ""


def _descendants() -> dict[int, tuple[int, int, tuple[int, int]]]:
    """The living processes below this one: pid → (parent, session, (ticks of processor time, resident pages))."""
    table: dict[int, tuple[int, int, tuple[int, int]]] = {}
    if not os.path.isdir("/proc/self"):
        return table
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rsplit(b")", 1)[1].split()
                if fields[0] not in b"ZX":
                    ticks = sum(int(one) for one in fields[11:15])
                    table[int(name)] = (int(fields[1]), int(fields[3]), (ticks, int(fields[21])))
    ours, grown = {os.getpid()}, True
    while grown:
        more = {pid for pid, (parent, *_) in table.items() if parent in ours} - ours
        ours, grown = ours | more, bool(more)
    return {pid: table[pid] for pid in ours - {os.getpid()} if pid in table}


def _room(limits: dict) -> int:
    """The limit of the user's processes: what there are now, and those that a submission may have."""
    mine = 0
    if os.path.isdir("/proc/self"):
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if name.isdigit() and os.stat(f"/proc/{name}").st_uid == os.getuid():
                    mine += len(os.listdir(f"/proc/{name}/task"))
    return mine + 8 * limits["processes"]  # threads count too, and neighbours start some meanwhile


def _end_all() -> bool:
    """Kill every process that a submission started. Returns whether none is left."""
    for _ in range(100):
        if os.getpid() == 1:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
        else:
            for pid in _descendants():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not _descendants():
            return True
        time.sleep(0.02)
    return False


def _disk(home: Path) -> int:
    """Bytes below a folder, as the disk counts them; looks at a few thousand files."""
    total = 0
    for seen, (here, _, files) in enumerate(os.walk(home)):
        for name in files[:2_000]:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(here, name)).st_blocks * 512
        if seen > 1_000:
            return 1 << 62  # nobody needs so many folders
    return total


def _wipe(home: Path) -> bool:
    """Remove what a submission wrote. Returns whether nothing is left; under bubblewrap all of the temporary folders."""
    folders = [home]
    if os.getpid() == 1:
        folders = [Path(root) / name for root in ("/tmp", "/dev/shm") for name in os.listdir(root)]
    for path in folders:
        with contextlib.suppress(OSError, RecursionError):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        if os.path.lexists(path):
            subprocess.run(["chmod", "-R", "u+rwX", str(path)], capture_output=True)
            subprocess.run(["rm", "-rf", "--", str(path)], capture_output=True)
        if os.path.lexists(path):
            return False
    return True


def main(words: list[str]) -> None:
    """Serve the socket of this file descriptor with these settings, in JSON."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings = json.loads(words[1])
    serve(socket.socket(fileno=int(words[0])), settings["labs"], settings["loaded"])


if __name__ == "__main__":
    main(sys.argv[1:])

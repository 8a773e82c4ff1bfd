"""GPU tests skip themselves where there is no GPU, interpreter tests where there is one, and both are counted."""

import functools
import os
import re
import shutil
import subprocess
import sys

import pytest
import torch

from msda_core import device as active
from msda_core import inputs


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("gpu") and active.ACTIVE.type != "cuda":
            item.add_marker(pytest.mark.skip(reason="not run: needs a CUDA GPU"))


def pytest_terminal_summary(terminalreporter):
    skipped = terminalreporter.stats.get("skipped", [])
    gpu = sum("not run: needs a CUDA GPU" in str(report.longrepr) for report in skipped)
    if gpu:
        terminalreporter.write_line(f"msda_core: {gpu} GPU tests not run (no CUDA GPU here)")


@pytest.fixture
def interpreter():
    if not active.INTERPRETED:
        pytest.skip("not run: needs Triton's interpreter (MSDA_DEVICE=cpu)")


@pytest.fixture
def poisoned():
    """Under deterministic algorithms torch fills fresh memory with NaN: an element nobody writes shows."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(before)


@pytest.fixture(params=["memcheck", "initcheck", "racecheck", "synccheck"])
def sanitize(request):
    """Runs a program, which prints "ran" at its end, under each tool of compute-sanitizer; it must find nothing."""
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if sanitizer is None:
        pytest.skip("not run: compute-sanitizer is not installed")

    def check(program: str) -> None:
        result = subprocess.run(
            [sanitizer, "--tool", request.param, "--error-exitcode", "9", sys.executable, "-c", program],
            capture_output=True, text=True, timeout=280, env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        )  # fmt: skip
        clean = result.returncode == 0 or request.param == "racecheck" and only_tritons_own_sum(result.stdout)
        assert "ran" in result.stdout and clean, result.stdout[-3000:] + result.stderr[-1000:]

    return check


def only_tritons_own_sum(report: str) -> bool:
    """Is every race one of an instruction with itself, inside `tl.sum`?

    Where a sum crosses warps, Triton 3.9 lets all lanes of a warp store the warp's share, the same number at the same
    place; 3.6 lets one.
    """
    races = re.findall(
        r"Race reported between Write access at (\S+) in (\S+)\n.*and Write access at (\S+) in (\S+)", report
    )
    own = all(
        one == other and where == there and where.startswith("standard.py:") for one, where, other, there in races
    )
    return bool(races) and own and report.count("Race reported") == len(races)


@pytest.fixture
def make_call():
    """`inputs.make_call` on the active device."""
    return functools.partial(inputs.make_call, device=active.ACTIVE)


#: Relative error (Frobenius) that rounding explains: float32 sums, and one rounding to the output's dtype.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


@pytest.fixture
def assert_close():
    def check(actual, exact, tolerance=None, what="output"):
        assert actual.shape == exact.shape, f"{what}: {tuple(actual.shape)} instead of {tuple(exact.shape)}"
        error = (actual.double() - exact.to(actual.device)).norm() / exact.norm().clamp_min(1e-30)
        bound = tolerance or TOLERANCE[actual.dtype]
        assert error <= bound, f"{what}: relative error {error:.2e}, allowed {bound:.0e}"  # NaN is never <=

    return check

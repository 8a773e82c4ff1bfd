"""The device is decided once, before Triton is imported; each decision in a process of its own."""

import inspect
import os
import subprocess
import sys

import pytest
import torch

from msda_core import device

WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {names}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name.split(".")[0] in {names} else find(name, *rest)
"""


def python(code: str, **environment: str) -> subprocess.CompletedProcess:
    clean = {k: v for k, v in os.environ.items() if k not in ("MSDA_DEVICE", "TRITON_INTERPRET")}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env={**clean, **environment}
    )


def without(*names: str) -> str:
    return WITHOUT.format(names=set(names))


def test_importing_the_operator_changes_nothing_and_triton_learns_the_choice_in_time():
    done = python(
        "import os, sys; before = dict(os.environ); import msda_core, msda_core.ops, msda_core.nn, msda_core.device\n"
        "print(dict(os.environ) == before, 'triton' in sys.modules)\n"
        "t = msda_core.device.triton; print(dict(os.environ) == before)\n"
        "from msda_core import device; from triton import knobs\n"
        "print(device.ACTIVE, device.INTERPRETED, knobs.runtime.interpret)",
        MSDA_DEVICE="cpu",
    )
    assert done.stdout.split() == ["True", "False", "True", "cpu", "True", "True"], done.stdout + done.stderr


def test_triton_may_have_been_imported_before_to_compile():
    done = python(
        "import triton, triton.language, torch\n"
        "from msda_core.inputs import make_call\n"
        "from msda_core.ops import interpreted, multi_scale_deformable_attention as attend\n"
        "call = make_call()\n"
        "plain = attend(*call.inputs)\n"
        "with interpreted(): kernels = attend(*call.inputs)\n"
        "print(torch.allclose(plain, kernels, atol=1e-5), not torch.equal(plain, kernels))",
        MSDA_DEVICE="cpu",
    )
    assert done.stdout.split() == ["True", "True"], done.stderr


def test_a_program_may_settle_the_choice_for_plain_imports_and_children():
    done = python(
        "from msda_core import device; device.settle(); import triton, os\n"
        "print(triton.knobs.runtime.interpret, os.environ['TRITON_INTERPRET'])",
        MSDA_DEVICE="cpu",
    )
    assert done.stdout.split() == ["True", "1"], done.stderr


def test_a_wrong_wish_is_refused(monkeypatch):
    monkeypatch.setenv("MSDA_DEVICE", "tpu")
    with pytest.raises(ValueError, match="MSDA_DEVICE must be 'cpu' or 'cuda', got 'tpu'."):
        device._choose.__wrapped__()


@pytest.mark.skipif(torch.cuda.is_available(), reason="not run: this machine has a GPU")
def test_wishing_for_a_gpu_does_not_make_one(monkeypatch):
    monkeypatch.setenv("MSDA_DEVICE", "cuda")
    with pytest.raises(ValueError, match="torch finds no CUDA GPU. Is this torch a CPU build?"):
        device._choose.__wrapped__()


@pytest.mark.skipif(device.NO_TRITON is not None, reason=f"not run: {device.NO_TRITON}")
def test_kernels_are_transparent_to_inspect():
    from msda_core.kernels.forward import msda_fwd_kernel

    assert inspect.unwrap(msda_fwd_kernel) is msda_fwd_kernel.fn


def test_without_triton_python_is_graded_and_kernels_can_be_read():
    code = without("triton", "marimo") + (
        "from checks.__main__ import grade_lab, main; from msda_core import device; from solutions import lab04\n"
        "print('status', main(['1', '7', '--solutions'])); print(device.NO_TRITON)\n"
        "reports = grade_lab('04', solutions=True)\n"
        "print({r.state for r in reports}, {r.worst.message == device.NO_TRITON for r in reports})\n"
        "print(lab04.add_kernel.__name__, lab04.add_kernel.fn.__doc__[:3])\n"
        "import torch\n"
        "for use in (device.load_triton, lambda: lab04.add(torch.ones(3), torch.ones(3))):\n"
        "    try: use()\n"
        "    except ModuleNotFoundError as error: print('refused', error)\n"
    )
    done = python(code)
    assert "status 0" in done.stdout, done.stdout + done.stderr
    assert "CPU (no Triton)" in done.stdout and "{'not_run'} {True}" in done.stdout
    assert "add_kernel out" in done.stdout
    assert done.stdout.count("refused Triton is not installed on this") == 2

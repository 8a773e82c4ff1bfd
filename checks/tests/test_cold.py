"""The first verdict of a session: nothing is imported that it does not need."""

import subprocess
import sys

PROGRAM = """
import sys
import torch
from checks.core.grade import grade
from msda_core.device import tl, triton

report = grade("01.bilinear_sample", lambda image, x, y: image.new_ones(image.shape[-1]))
assert report.state == "fail", report.text()

from msda_core import machine
with machine.guard():
    torch.empty(3).fill_(1) + torch.zeros(3)

from checks.kernel.work import Work
Work(["x"]).run(lambda: torch.zeros(3).new_empty(2).fill_(1), (torch.zeros(3),))

from msda_core import reference
call = [torch.ones(1, 6, 1, 2), torch.tensor([[2, 3]]), None, torch.full((1, 1, 1, 1, 1, 2), 0.5), torch.ones(1, 1, 1, 1, 1)]
reference.exact_gradients(*call, torch.ones(1, 1, 2))
print([name for name in ("sympy", "torch._dynamo", "torch._inductor") if name in sys.modules])
"""


def test_a_first_verdict_imports_neither_sympy_nor_dynamo():
    """`torch.unravel_index`, a mode with a `__torch_dispatch__`, and a gradient that is handed to `torch.autograd.grad` would.

    Each costs five seconds of processor time. Lab 10's `register` cannot do without: torch itself imports both for an
    operator of one's own.
    """
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"

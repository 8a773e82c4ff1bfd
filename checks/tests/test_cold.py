"""The first verdict of a session: nothing is imported that it does not need.

Seconds of processor time of a first verdict on the solution, in a process that has imported marimo and matplotlib and judged
what the exercise carries, as a notebook has; on two cores at a load of 1.2 to 2.6, which costs a third over a quiet one:

    05 corner 0.8, msda_fwd_kernel 5.2, msda_forward 5.3, msda_fwd_logits_kernel 3.8
    06 msda_fwd_fast_kernel 6.5, launch_config 2.0, device_time 1.1, predict_time 0.1
    08 msda_bwd_kernel 3.5, msda_backward 2.6, msda_bwd_merged_kernel 4.1, the others below 1
    09 msda_backward_switched 4.3, accumulator_dtype 1.5, narrow_sum 1.4, classify_atomics 1.0, the others below 0.5
    10 MSDAFunction 5.2, MyMSDeformAttn 4.4, register 9.5 at a load of 3.5 (6 of it torch's own import)
    04 softmax_kernel 1.8, 07 grad_attention 0.2, the others there below 1
"""

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

"""Where a launcher is asked, a kernel of the answer's own must have done the work."""

import pytest
import torch
from torch.nn import functional as F

from checks.answers.carry import solution_module
from checks.core.exercise import Failed
from checks.core.grade import grade
from checks.kernel.budget import within_budget
from msda_core import device
from msda_core.device import tl, triton

SOLUTION = None if device.NO_TRITON else solution_module("05", "launched_05")
pytestmark = pytest.mark.skipif(bool(device.NO_TRITON), reason="not run: needs Triton")


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    monkeypatch.setenv("MSDA_PATIENCE", "20")


@triton.jit
def idle_kernel(value_ptr, out_ptr):
    tl.program_id(0)


@triton.jit
def copy_kernel(src_ptr, out_ptr, N, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(src_ptr + offs, mask=offs < N), mask=offs < N)


def in_pytorch(value, shapes, starts, locations, weights):
    """The forward pass on grid_sample, as papers publish it."""
    B, _, M, D = value.shape
    Q, K = locations.shape[1], locations.shape[4]
    if not B * Q:
        return value.new_zeros(B, Q, M * D)
    out = 0
    for level, (H, W) in enumerate(shapes.tolist()):
        first = int(starts[level])
        plane = value[:, first : first + H * W].float().permute(0, 2, 3, 1).reshape(B * M, D, H, W)
        grid = (2 * locations[:, :, :, level] - 1).float().transpose(1, 2).flatten(0, 1)
        taken = F.grid_sample(plane, grid, align_corners=False).reshape(B, M, D, Q, K)
        out = out + torch.einsum("bmdqk,bqmk->bqmd", taken, weights[:, :, :, level].float())
    return out.reshape(B, Q, M * D).to(value.dtype).contiguous()


def beside_an_idle_kernel(*args):
    out = in_pytorch(*args)
    if out.numel():
        idle_kernel[(1,)](args[0].contiguous(), out)
    return out


def copied_by_a_kernel(*args):
    right = in_pytorch(*args)
    out = torch.empty_like(right)
    if out.numel():
        copy_kernel[(triton.cdiv(out.numel(), 64),)](right.contiguous(), out, out.numel(), BLOCK=64)
    return out


def overwritten(*args):
    out = SOLUTION.msda_forward(*args)
    return out.copy_(in_pytorch(*args))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (in_pytorch, "right, but no kernel was launched: PyTorch computed this."),
        (
            beside_an_idle_kernel,
            "right, but what is returned was not written by a kernel: `idle_kernel` ran beside it.",
        ),
        (copied_by_a_kernel, "right, but `copy_kernel` was not given `value`"),
        (overwritten, "right, but what is returned was not written by a kernel: `msda_fwd_kernel` ran beside it."),
    ],
)
def test_right_numbers_are_not_enough(answer, message):
    report = grade("05.msda_forward", answer, diagnose=False, progress=False)
    assert report.state == "fail" and report.score is None
    assert report.worst.name == "written" and report.worst.message.startswith(message), report.text()


def test_moving_numbers_before_and_after_is_allowed():
    def padded(value, shapes, starts, locations, weights):
        D = value.shape[-1]
        wide = F.pad(value.float(), (0, 3))
        out = SOLUTION.msda_forward(wide, shapes, starts, locations.float(), weights.float())
        return out.unflatten(-1, (-1, D + 3))[..., :D].flatten(-2).to(value.dtype)

    report = grade("05.msda_forward", padded, diagnose=False, progress=False)
    assert report.state == "pass", report.text()


def test_what_asks_for_nothing_has_no_score():
    class Counted:
        sectors = 0

    class Ours:
        sectors = 100

    with pytest.raises(Failed, match="asks memory for nothing"):
        within_budget(Counted, Ours, 1.5)

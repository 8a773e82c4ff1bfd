"""Counters of launchers, single requests, and casts as a GPU makes them."""

import numpy as np
import pytest
import torch

from msda_core import machine
from msda_core.device import load_triton
from msda_core.machine.counts.calls import profile_calls, trace_calls, worst_request
from msda_core.machine.run.numbers import to_integer

triton = load_triton()
import triton.language as tl  # noqa: E402


@triton.jit
def strided_copy(x_ptr, out_ptr, N, STEP: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs * STEP, mask=offs < N, other=0.0), mask=offs < N)


@triton.jit
def masked_to_zero(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    one = tl.load(x_ptr, mask=N > 0, other=0.0)
    tl.store(out_ptr + offs, one + tl.load(x_ptr + offs, mask=offs < N, other=0.0))


@triton.jit
def cast_kernel(x_ptr, narrow_ptr, wide_ptr, N: tl.constexpr):
    offs = tl.arange(0, N)
    x = tl.load(x_ptr + offs)
    tl.store(narrow_ptr + offs, x.to(tl.int32))
    tl.store(wide_ptr + offs, x.to(tl.int64))


def launcher(step):
    def run():
        x, out = torch.randn(128 * step), torch.empty(128)
        strided_copy[(2,)](x, out, 128, STEP=step, BLOCK=64, num_warps=1)
        strided_copy[(1,)](x, out, 64, STEP=step, BLOCK=64, num_warps=1)

    return run


def test_every_launch_is_traced_and_counted():
    assert [t.programs for t in trace_calls(launcher(1))] == [2, 1]
    first, second = profile_calls(launcher(8))
    assert first.loads.sectors == 128 and second.loads.sectors == 64


@pytest.mark.parametrize(("step", "sectors", "useful"), [(1, 8, 256), (2, 16, 128), (8, 32, 128)])
def test_a_request_knows_its_lanes(step, sectors, useful):
    (report, _) = profile_calls(launcher(step))
    load = next(s for s in report.sites if s.kind == "load")
    request = worst_request(report, load)
    assert (request.sectors, request.useful, request.tensor) == (sectors, useful, "x_ptr")
    assert request.addresses.shape == (32,) and request.addresses.min() == 0


def test_the_worst_request_is_found():
    """Lanes that the mask turns off ask for nothing."""
    x, out = torch.randn(128), torch.empty(128)
    (report,) = profile_calls(lambda: strided_copy[(1,)](x, out, 37, STEP=1, BLOCK=64, num_warps=1))
    load = next(s for s in report.sites if s.kind == "load")
    request = worst_request(report, load)
    assert request.useful < request.sectors * 32 and (request.addresses < 0).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_casts_to_integers_are_a_gpus(dtype):
    """PTX ISA, cvt: towards zero; what does not fit saturates; NaN is 0, or the least integer where it has 64 bits."""
    x = torch.tensor([float("nan"), float("inf"), float("-inf"), -1.75, 1.75, -0.5, 0.0, 3.0]).to(dtype)
    narrow, wide = torch.zeros(8, dtype=torch.int32), torch.zeros(8, dtype=torch.int64)
    with machine.guard():
        cast_kernel[(1,)](x, narrow, wide, N=8)
    assert narrow.tolist() == [0, 2**31 - 1, -(2**31), -1, 1, 0, 0, 3]
    assert wide.tolist() == [-(2**63), 2**63 - 1, -(2**63), -1, 1, 0, 0, 3]


def test_casts_saturate_at_the_limits():
    got = to_integer(np.array([2.0**31, -(2.0**31), 2.0**31 - 1, np.nan]), np.dtype("int32"))
    assert got.tolist() == [2**31 - 1, -(2**31), 2**31 - 1, -(2**31)]
    assert to_integer(np.array([-3.0, np.nan], np.float32), np.dtype("uint32")).tolist() == [0, 0]


@pytest.mark.parametrize("size", [1, 2])
def test_other_is_kept_also_for_a_single_lane(size):
    out = torch.full((size,), torch.nan)
    with machine.guard():
        masked_to_zero[(1,)](torch.ones(size), out, 0, BLOCK=size)
    assert out.tolist() == [0.0] * size


def test_launches_are_checked_while_they_are_counted():
    """The checks of the guard, also where launches are recorded; each can be turned off."""

    def unwritten():
        x = torch.empty(128)
        strided_copy[(1,)](x, torch.empty(64), 64, STEP=1, BLOCK=64, num_warps=1)

    with pytest.raises(machine.UninitialisedRead, match="x_ptr, which was allocated by torch.empty"):
        profile_calls(unwritten)
    assert len(profile_calls(unwritten, uninitialised=False)) == 1

    def strided():
        strided_copy[(1,)](torch.ones(64, 2)[:, 0], torch.zeros(64), 64, STEP=1, BLOCK=64, num_warps=1)

    with pytest.raises(machine.LaunchError, match="not contiguous"):
        trace_calls(strided)

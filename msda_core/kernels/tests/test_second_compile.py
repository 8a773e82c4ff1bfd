"""Second derivatives and nearest pixels compiled for GPUs that are not here: nothing spilled, reductions as wide as the backward's."""

import pytest

from msda_core import device

pytestmark = pytest.mark.skipif(device.NO_TRITON is not None, reason=f"not run: {device.NO_TRITON}")

if device.NO_TRITON is None:
    from msda_core.kernels import fit, nearest, second
    from msda_core.kernels.tests.test_compile import (
        ALL,
        ATOMICS,
        DTYPES,
        ENCODER,
        D,
        L,
        M,
        assert_adds_with,
        assert_all_in_registers,
    )  # fmt: skip
    from msda_core.machine.compile.lower import lower

TARGETS = (80, 90)


def constants(plan_of, itemsize, Q, D=D, points=None):
    """What a launcher would pass, by name: of a dense call, or of a ragged one with so many points in all."""
    levels, K = (L, 4) if points is None else (points, 1)
    plan = plan_of(4, Q, 8400, M, D, levels, K, itemsize)
    names = ("Q", "S", "M", "D", "L", "K", "BLOCK_Q", "BLOCK_M", "BLOCK_P", "BLOCK_D", "OFFSET")
    values = dict(zip(names, plan.constants))
    return {name: values[name] for name in names[2:]} | plan.options


SECOND = [(dtype, Q, target) for dtype in DTYPES for Q in (300, ENCODER) for target in TARGETS]
NEAREST = [(dtype, points, target) for dtype in DTYPES for points in (None, 12, 14) for target in TARGETS]


@pytest.mark.parametrize("dtype, Q, target", SECOND if ALL else [SECOND[2], SECOND[5]], ids=str)
def test_second_derivatives(dtype, Q, target):
    t, f, i = DTYPES[dtype], "*fp32", "*i64"
    jvp = lower(
        second.msda_jvp_kernel, t, i, i, f, f, t, f, f, t, "i32", "i32", target=target,
        **constants(second._jvp_plan, dtype.itemsize, Q),
    )  # fmt: skip
    assert_all_in_registers(jvp)
    for accumulator, unit in (("*fp32", None), ("*i64", "*fp32")):
        lowering = lower(
            second.msda_second_kernel, t, i, i, f, f, t, t, f, f, accumulator, f, f, unit, "i32", "i32", target=target,
            **constants(second._second_plan, dtype.itemsize, Q),
        )  # fmt: skip
        assert_all_in_registers(lowering)
        assert_adds_with(lowering, ATOMICS[accumulator][target])


@pytest.mark.parametrize("dtype, points, target", NEAREST if ALL else [NEAREST[4], NEAREST[9], NEAREST[13]], ids=str)
def test_nearest(dtype, points, target):
    t, i = DTYPES[dtype], "*i32"
    forward = lower(
        nearest.nearest_fwd_kernel, t, i, i, t, t, t, "i32", "i32", target=target,
        **constants(nearest._forward_plan, dtype.itemsize, 300, points=points),
    )  # fmt: skip
    assert_all_in_registers(forward)
    assert any(".v4.b32" in load for load in forward.loads), forward.loads
    backward = lower(
        nearest.nearest_bwd_kernel, t, i, i, t, t, t, t, t, None, "i32", "i32", target=target,
        **constants(nearest._backward_plan, dtype.itemsize, 300, points=points),
    )  # fmt: skip
    assert_all_in_registers(backward)
    assert_adds_with(backward, ATOMICS[t][target])


def test_fit():
    for report in (None, "*i64"):
        lowering = lower(
            fit.fit_kernel, "*i64", "*i64", "*i32", "*i32", report, "i32", target=90, L=4, BLOCK_L=4, num_warps=1
        )
        assert_all_in_registers(lowering)

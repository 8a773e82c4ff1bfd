"""The fused kernels compiled for GPUs that are not here: what they add with, and what they spill. See LOG.md."""

import pytest

from msda_core import device

pytestmark = pytest.mark.skipif(device.NO_TRITON is not None, reason=f"not run: {device.NO_TRITON}")

if device.NO_TRITON is None:
    from msda_core.kernels import fused
    from msda_core.kernels.tests.test_compile import ATOMICS, DTYPES, assert_adds_with
    from msda_core.kernels.tests.test_merged_compile import BF16, F16, F32, launched, some
    from msda_core.machine.compile.lower import lower


def launched_plain(dtype, target, backward, coords=2):
    """Compile a fused kernel as a decoder launches it, without a policy of its caches."""
    t = DTYPES[dtype]
    plan = fused._plan(backward, 4, 300, 22223, 8, 32, 4, 4, coords, dtype.itemsize)
    names = ("M", "D", "L", "K", "COORDS", "BLOCK_Q", "BLOCK_M", "BLOCK_P", "BLOCK_D", "EVICT", "OFFSET")
    kernel = fused.fused_bwd_kernel if backward else fused.fused_fwd_kernel
    total = "*fp32" if dtype == BF16 and target < 90 else t  # no addition in bfloat16 there
    rest = ("*fp32", t, total, t, t) if backward else (t, "*fp32")
    return lower(
        kernel, t, "*i32", "*i32", "*fp32", t, t, *rest, "i32", "i32",
        target=target, **plan.options, **dict(zip(names, plan.constants[2:])),
    )  # fmt: skip


@pytest.mark.parametrize("target, dtype", some((90, F16)))
def test_plain(target, dtype):
    assert not launched_plain(dtype, target, backward=False).spills
    backward = launched_plain(dtype, target, backward=True)
    assert not backward.spills
    total = F32 if dtype == BF16 and target < 90 else dtype
    assert_adds_with(backward, ATOMICS[DTYPES[total]][target])


@pytest.mark.parametrize("target, dtype", some((90, F16)))
def test_merged(target, dtype):
    """Little more is spilled than by the kernels that are given locations; in a float32 window, which spills anyway, up to 128 bytes."""
    for name in ("forward", "points", "window"):
        raw = launched(name, dtype, target, raw=("*fp32", "*fp32"))
        assert raw.spills <= launched(name, dtype, target).spills + (128 if name == "window" else 48), (
            name,
            raw.spills,
        )

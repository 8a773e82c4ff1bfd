"""The merged kernels compiled for GPUs that are not here: which atomics, on tensor cores, in which layout, and what spilled.

Every run compiles a few; MSDA_COMPILE_ALL=1 compiles all of them for every target, in three minutes.
"""

import re

import pytest
import torch

from msda_core import device

pytestmark = pytest.mark.skipif(device.NO_TRITON is not None, reason=f"not run: {device.NO_TRITON}")

if device.NO_TRITON is None:
    from msda_core.kernels import merged
    from msda_core.kernels.merged.plan import TILE
    from msda_core.kernels.tests.test_compile import (
        ALL,
        ATOMICS,
        DTYPES,
        TARGETS,
        M,
        assert_adds_with,
        assert_all_in_registers,
    )
    from msda_core.machine.compile.lower import lower


def launched(name, dtype, target, accumulator=None, loc=None, L=4, raw=(None, None)):
    """Compile a kernel as `merged_forward` and `merged_backward` launch it; raw: ("*fp32", "*fp32") with reference points."""
    t = DTYPES[dtype]
    loc, accumulator = DTYPES[loc or dtype], accumulator or dtype
    tables, total = ("*i32", "*i32"), DTYPES[accumulator]
    if name == "forward":
        kernel, plan = merged.forward_tile_kernel, merged._forward_plan(2, 22223, 22223, M, L, dtype.itemsize, 7)
        pointers = (t, *tables, loc, loc, t, "*i32", *raw)
    else:
        plans = merged._backward_plans(2, 22223, 22223, M, L, dtype, accumulator, (7, 5, 7), target)
        if name == "window":
            kernel, plan = merged.merge_window_kernel, plans[0]
            pointers = (*tables, loc, loc, t, total, "*i8", "*i32", "*i32", *raw)
        elif name == "remainder":
            kernel, plan = merged.remainder_kernel, plans[1]
            pointers = (*tables, loc, loc, t, total, "*i8", "*i16", "*i32", *raw)
        else:
            kernel, plan = merged.points_32_kernel if dtype == torch.float32 else merged.points_16_kernel, plans[2]
            pointers = (t, *tables, loc, loc, t, total, loc, loc, "*i32", "*i32", "*i32", *raw)
    constants = list(plan.constants)
    if device.INTERPRETED:  # what the interpreter is given instead of PTX, and of four queries at a time
        constants = [True if c is False else 4 if c == TILE[0] * TILE[1] and name == "points" else c for c in constants]
    sizes = ["i32" if c in (22223, 7) and n < 3 else c for n, c in enumerate(constants)]
    return lower(kernel, *pointers, *sizes, target=target, **plan.options)


def some(*cases, dtypes=None):
    """Parameters: those given always, and the rest on request."""
    every = [(target, dtype) for target in TARGETS for dtype in dtypes or DTYPES] if device.NO_TRITON is None else []
    return [pytest.param(*case, id=f"{case[0]}-{str(case[1])[6:]}") for case in every if ALL or case in cases]


F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
#: SM → bytes that a window of float32 sums spills; see LOG.md. Where they are many, nobody gets it unasked.
WIDE_SPILLS = {80: 3500, 89: 3500, 90: 480, 100: 400, 120: 3200}


@pytest.mark.parametrize("target, dtype", some((90, F16), (90, F32), (80, BF16)))
def test_window(target, dtype):
    lowering = launched("window", dtype, target)
    assert_adds_with(lowering, ATOMICS[DTYPES[dtype]][target])
    tensor_cores = {90: r"\bHGMMA\b", 100: r"\bUTCHMMA\b"}.get(target, r"\bHMMA\b")
    assert re.search(tensor_cores, lowering.sass)
    if dtype == F32:
        assert lowering.spills <= WIDE_SPILLS[target], lowering.spills
    else:
        old = tuple(map(int, lowering.triton.split(".")[:2])) < (3, 9)
        assert lowering.spills <= (48 if old and 90 <= target < 110 else 0), lowering.spills
        assert any(".v4.b32" in load for load in lowering.loads), lowering.loads  # four locations in one


@pytest.mark.parametrize("target, dtype", some((90, F16), dtypes=(F16, BF16)))
def test_window_with_a_float32_accumulator(target, dtype):
    lowering = launched("window", dtype, target, accumulator=F32)
    assert_adds_with(lowering, ATOMICS["*fp32"][target])
    assert lowering.spills <= WIDE_SPILLS[target], lowering.spills


@pytest.mark.parametrize("target, dtype", some((90, F16), (120, F32), (89, BF16)))
def test_remainder(target, dtype):
    lowering = launched("remainder", dtype, target)
    assert_all_in_registers(lowering)
    assert_adds_with(lowering, ATOMICS[DTYPES[dtype]][target])


@pytest.mark.parametrize("target, dtype", some((90, F16), (100, F32)))
def test_points(target, dtype):
    lowering = launched("points", dtype, target)
    assert_adds_with(lowering, ATOMICS[DTYPES[dtype]][target])
    assert any(".v4.b32" in load for load in lowering.loads), lowering.loads  # rows of value, 16 bytes a lane
    # The lanes of a row hand each other parameters by shuffles. On older GPUs the additions need an exchange.
    if target >= 90:
        assert "BAR.SYNC" not in lowering.sass
    if dtype == F32:
        assert_all_in_registers(lowering)
        return
    # Three registers of 128, and none under Triton 3.6; for SM 10.0 under 3.7 eight.
    assert lowering.spills <= (32 if target == 100 else 24), lowering.spills
    assert len(re.findall(r"\bHMMA\b", lowering.sass)) == 16  # four levels, four corners
    assert_lanes_hold_elements(lowering)


def assert_lanes_hold_elements(lowering):
    """`dots` needs element i of its blocks in lane i % 32, and the four pairs of an element in that lane."""
    found = re.findall(r"elementwise_inline_asm[^\n]*mma\.sync[^\n]*: (tensor<[^\n]*) loc", lowering.ttgir)
    assert len(found) == 4
    layouts = set(re.findall(r"#\w+(?=>)", " ".join(found)))
    assert len(layouts) == 1
    (definition,) = re.findall(rf"^{layouts.pop()} = (.*)$", lowering.ttgir, re.M)
    assert "sizePerThread = [1, 4], threadsPerWarp = [32, 1]" in definition, definition
    assert re.search(r"warpsPerCTA = \[\d+, 1\]", definition), definition


@pytest.mark.parametrize("target, dtype", some((90, BF16), (80, F32)))
def test_forward(target, dtype):
    lowering = launched("forward", dtype, target)
    assert lowering.spills <= 8, lowering.spills
    assert not lowering.atomics
    assert lowering.registers <= 64  # 32 warps a multiprocessor, or more
    assert any(".v4.b32" in load for load in lowering.loads), lowering.loads


@pytest.mark.parametrize("dtype", [F16, BF16] if ALL else [F16], ids=str)
def test_float32_locations_beside_a_16_bit_value(dtype):
    points = launched("points", dtype, 90, loc=F32, L=2)
    assert points.spills <= 24
    assert any(".b64" in load or "v2.b32" in load for load in points.loads), points.loads  # x and y in one load
    assert_all_in_registers(launched("forward", dtype, 90, loc=F32, L=1))
    window = launched("window", dtype, 90, loc=F32)
    assert window.spills <= 48
    assert window.sass.count("BAR.") <= launched("window", dtype, 90).sass.count("BAR.")  # four locations, no exchange

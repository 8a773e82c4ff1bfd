"""The kernels compiled for GPUs that are not here: which atomics, how wide, and nothing spilled.

Every run compiles for SM 8.0 and 9.0, whose instructions differ; MSDA_COMPILE_ALL=1 compiles every size for every target.
"""

import os
import re
from collections import Counter

import pytest
import torch

from msda_core import device

pytestmark = pytest.mark.skipif(device.NO_TRITON is not None, reason=f"not run: {device.NO_TRITON}")

if device.NO_TRITON is None:
    from msda_core.kernels import tilings
    from msda_core.kernels.backward import backward_config, msda_bwd_kernel
    from msda_core.kernels.config import offset_type
    from msda_core.kernels.forward import forward_config, msda_fwd_kernel
    from msda_core.machine.compile.lower import lower

ALL = os.environ.get("MSDA_COMPILE_ALL") == "1"
TARGETS = (80, 89, 90, 100, 120)
TRIED = TARGETS if ALL else (80, 90)
DTYPES = {torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16"}
DECODER, ENCODER = 300, 22223
M, D, L, K = 8, 32, 4, 4

#: What grad_value is added with, by accumulator and target: the instruction's type, and how many elements it carries.
SCALAR, PAIR, WIDE = "add.f32", "add.noftz.f16x2", "v4.f32"
ATOMICS = {
    "*fp32": {80: SCALAR, 89: SCALAR, 90: WIDE, 100: WIDE, 120: WIDE},
    "*fp16": {80: PAIR, 89: PAIR, 90: "v8.f16", 100: "v8.f16", 120: "v8.f16"},
    "*bf16": {80: "cas", 89: "cas", 90: "v8.bf16", 100: "v8.bf16", 120: "v8.bf16"},
    "*i64": dict.fromkeys(TARGETS, "add.u64"),
}


def compile_forward(dtype, target, Q=DECODER, D=D, K=K):
    config = forward_config(4, Q, M, D, L, K, dtype.itemsize)
    t = DTYPES[dtype]
    return lower(
        msda_fwd_kernel, t, "*i64", "*i64", t, t, t, "i32", "i32", target=target, **config.options,
        M=M, D=D, L=L, K=K, OFFSET=offset_type(22223, Q, M, D, L, K),
        **{name: value for name, value in config._asdict().items() if name.isupper()},
    )  # fmt: skip


def compile_backward(dtype, target, Q=DECODER, D=D, K=K, accumulator=None, M=M, L=L):
    loops = (accumulator or DTYPES[dtype]) == "*bf16" and target < 90
    config = backward_config(4, Q, M, D, L, K, dtype.itemsize, loops)
    t = DTYPES[dtype]
    unit = "*fp32" if accumulator == "*i64" else None
    return lower(
        msda_bwd_kernel, t, "*i64", "*i64", t, t, t, accumulator or t, t, t, unit, "i32", "i32",
        target=target, **config.options,
        M=M, D=D, L=L, K=K, OFFSET=offset_type(22223, Q, M, D, L, K),
        **{name: value for name, value in config._asdict().items() if name.isupper() and name != "UNROLL"},
    )  # fmt: skip


def assert_all_in_registers(lowering):
    assert lowering.spills == 0
    assert not re.search(r"\b(LDL|STL)\b", lowering.sass), "local memory"


def assert_adds_with(lowering, expected):
    found = Counter(lowering.atomics)
    if expected == "cas":  # no instruction for it: a loop of compare-and-swap
        assert found and all("cas" in name for name in found), found
    else:
        assert found and all(name.endswith(expected) and ".relaxed." in name for name in found), found


@pytest.mark.parametrize("target", TRIED)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_forward(dtype, target):
    for Q in (DECODER, ENCODER) if ALL or target == 90 else (DECODER,):  # one more config of the same kernel
        lowering = compile_forward(dtype, target, Q)
        assert_all_in_registers(lowering)
        assert not lowering.atomics
        assert any(".v4.b32" in load for load in lowering.loads), lowering.loads  # rows of value, 16 bytes a lane


@pytest.mark.parametrize("target", TRIED)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_backward(dtype, target):
    for Q in (DECODER, ENCODER) if ALL or target == 90 else (DECODER,):
        lowering = compile_backward(dtype, target, Q)
        assert_all_in_registers(lowering)
        assert_adds_with(lowering, ATOMICS[DTYPES[dtype]][target])


SUMS = [(dtype, accumulator, target) for dtype in DTYPES for accumulator in ("*fp32", "*i64") for target in TARGETS]
SOME_SUMS = [(torch.float16, "*fp32", 90), (torch.bfloat16, "*fp32", 80), (torch.float32, "*i64", 90)]


@pytest.mark.parametrize("dtype, accumulator, target", SUMS if ALL else SOME_SUMS, ids=str)
def test_backward_with_another_accumulator(dtype, accumulator, target):
    lowering = compile_backward(dtype, target, accumulator=accumulator)
    assert_all_in_registers(lowering)
    assert_adds_with(lowering, ATOMICS[accumulator][target])


ODD = [dict(D=3096), dict(D=1025), dict(D=71), dict(D=33), dict(K=13)]
SPILLS = [(dtype, size) for dtype in (torch.float32, torch.float16) for size in ODD]


@pytest.mark.parametrize("dtype, sizes", SPILLS if ALL else [SPILLS[0], SPILLS[4], SPILLS[8]], ids=str)
def test_no_size_spills(dtype, sizes):
    for target in (80, 90) if ALL else (90,):
        assert_all_in_registers(compile_forward(dtype, target, **sizes))
        assert_all_in_registers(compile_backward(dtype, target, **sizes))
        assert_all_in_registers(compile_backward(dtype, target, **sizes, accumulator="*fp32"))  # of an odd D unasked


FEW = [dict(K=1, L=1), dict(K=1, L=1, M=1), dict(K=1, L=1, D=16), dict(D=2), dict(D=30)]
HALVES = [(Q, sizes) for Q in (DECODER, ENCODER) for sizes in FEW]


@pytest.mark.parametrize("Q, sizes", HALVES if ALL else [HALVES[1], HALVES[3], HALVES[9]], ids=str)
def test_no_half_is_added_alone(Q, sizes):
    """PTX has an addition of one 16-bit number. Memory has not: the assembler makes a loop of it."""
    lowering = compile_backward(torch.float16, 90, Q, **sizes)
    assert "CAS" not in lowering.sass and "REDG.E.ADD.F16x" in lowering.sass, lowering.atomics


@pytest.mark.parametrize("target", [80, 90] if ALL else [90])
def test_tilings(target):
    t = "*fp16"
    pointers = (t, "*i64", "*i64", t, t)
    sizes = dict(M=M, D=D, L=L, K=K, target=target)
    for lowering in (
        lower(tilings.msda_fwd_element_kernel, *pointers, t, "i32", "i32", "i32", **sizes, BLOCK=256, num_warps=8),
        lower(tilings.msda_fwd_point_kernel, *pointers, "*fp32", "i32", "i32", "i32", **sizes, BLOCK=128, num_warps=4),
        lower(tilings.msda_fwd_query_kernel, *pointers, t, "i32", "i32", **sizes, BLOCK_Q=16, BLOCK_D=32, num_warps=4),
    ):
        assert_all_in_registers(lowering)

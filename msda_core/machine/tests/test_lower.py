"""Lowering: what is compiled, how its errors read, and how soon the answer comes."""

import importlib
import time

import numpy as np
import pytest
import torch

from msda_core import machine
from msda_core.bench import probes
from msda_core.device import load_triton

triton = load_triton()
import triton.language as tl  # noqa: E402

module = importlib.import_module("msda_core.machine.compile.lower")  # the package has a function of that name
LIMIT = 4
SIZE = tl.constexpr(64)


@triton.jit
def add_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    tl.store(y_ptr + offs, x + 1, mask=offs < n)


@triton.jit
def accumulate_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr, SEM: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(y_ptr + offs, tl.load(x_ptr + offs), sem=SEM)


@triton.jit
def global_kernel(x_ptr):
    offs = tl.arange(0, SIZE)
    tl.store(x_ptr + offs, offs, mask=offs < LIMIT)


@triton.jit
def forever(n):
    return forever(n - 1) + 1


@triton.jit
def recursive_kernel(x_ptr, n):
    tl.store(x_ptr, forever(n))


@triton.jit
def deep_helper(x):
    return x.no_such_method()


@triton.jit
def helper_kernel(x_ptr):
    offs = tl.arange(0, SIZE)
    x = tl.load(x_ptr + offs)
    tl.store(x_ptr + offs, deep_helper(x))


@triton.jit
def if_kernel(x_ptr):
    offs = tl.arange(0, 64)
    x = tl.load(x_ptr + offs)
    if x > 0:
        tl.store(x_ptr + offs, x)


@triton.jit
def stub_kernel(x_ptr):
    tl.static_assert(False, "04.add_kernel")


@triton.jit
def numpy_kernel(x_ptr):
    offs = tl.arange(0, 64)
    tl.store(x_ptr + offs, np.sqrt(2.0))


@triton.jit
def list_kernel(x_ptr):
    for i in [1, 2]:
        tl.store(x_ptr + i, 0.0)


@triton.jit
def uneven_kernel(x_ptr):
    tl.store(x_ptr + tl.arange(0, 48), 1.0)


def line_of(kernel, text):
    lines = open(kernel.fn.__code__.co_filename).read().splitlines()
    start = kernel.fn.__code__.co_firstlineno
    return next(i for i, line in enumerate(lines[start - 1 :], start) if text in line)


def test_alignment_and_raggedness_decide_the_width():
    def loads(x, n):
        return machine.lower(add_kernel, x, "*fp32", n, BLOCK=1024).loads

    assert loads("*fp32", 4096) == ["ld.global.v4.b32"]
    assert loads("*fp32", 4095) == ["ld.global.b32"]
    assert loads("*fp32:4", 4096) == ["ld.global.b32"]
    tensor = torch.zeros(4096)
    assert loads(tensor, 4096) == ["ld.global.v4.b32"]
    assert loads(tensor[1:], 4096) == ["ld.global.b32"]


def test_the_lines_are_the_authors():
    lowering = machine.lower(add_kernel, "*fp32", "*fp32", 4096, BLOCK=1024)
    store = line_of(add_kernel, "tl.store")
    assert [p.places[-1].line for p in lowering.operations] == [line_of(add_kernel, "tl.load"), store]
    assert any("st.global" in text for text in lowering.ptx_of(store))
    assert not any("st.global" in text for text in lowering.ptx_of(store - 1))


@pytest.mark.parametrize(
    "target, dtype, found",
    [
        ("sm_90", "*bf16", "red.global.gpu.relaxed.add.noftz.v4.bf16"),
        ("sm_90", "*fp32", "red.global.gpu.relaxed.add.v4.f32"),
        ("sm_80", "*fp16", "red.global.gpu.relaxed.add.noftz.f16x2"),
        ("sm_80", "*bf16", "cas"),
    ],
)
def test_atomics_by_target(target, dtype, found):
    lowering = machine.lower(accumulate_kernel, dtype, dtype, target=target, BLOCK=512, SEM="relaxed")
    plain = [a.replace("atom.", "red.") for a in lowering.atomics]
    assert len(plain) == 1 and (found in plain[0] if found == "cas" else plain[0] == found)


def test_the_ordered_default_is_in_the_instruction():
    def atomics(order):
        return machine.lower(accumulate_kernel, "*bf16", "*bf16", BLOCK=512, SEM=order).atomics

    assert all("acq_rel" in a for a in atomics("acq_rel")) and all(".relaxed." in a for a in atomics("relaxed"))


def test_machine_code_is_made_on_demand():
    lowering = machine.lower(add_kernel, "*fp32", "*fp32", 4096, BLOCK=1024)
    assert 8 <= lowering.registers <= 64 and lowering.spills == 0
    assert "LDG.E.128" in lowering.sass and "STG.E.128" in lowering.sass


@pytest.mark.parametrize(
    "kernel, args, text, reason",
    [
        (global_kernel, ("*fp32",), "LIMIT", "global variable LIMIT"),
        (recursive_kernel, ("*fp32", "i32"), "forever", "calls itself|recurs"),
        (helper_kernel, ("*fp32",), "", "no_such_method"),
        (if_kernel, ("*fp32",), "if x > 0", "condition|scalar|bool|truth"),
        (stub_kernel, ("*fp32",), "static_assert", "04.add_kernel"),
        (numpy_kernel, ("*fp32",), "np.sqrt", "sqrt is no Triton function"),
        (list_kernel, ("*fp32",), "for i in [1, 2]", "'List' object|iterat|Only"),
        (uneven_kernel, ("*fp32",), "arange", "power of 2"),
    ],
)
def test_the_compilers_reason_at_the_learners_line(kernel, args, text, reason):
    with pytest.raises(machine.CompileError, match=f"(?i){reason}") as caught:
        machine.lower(kernel, *args)
    error = caught.value
    if kernel is helper_kernel:
        assert error.line == "return x.no_such_method()"
    elif kernel is not recursive_kernel:
        assert error.lineno == line_of(kernel, text) and text in error.line
    assert f"line {error.lineno}" in str(error) or not error.lineno
    machine.lower(add_kernel, "*fp32", "*fp32", 4096, BLOCK=1024)  # the compiler is still there


def test_a_target_that_does_not_exist():
    for target in ("sm_42", "gpu", 9, None):
        with pytest.raises(machine.LaunchError, match="There is no target.*sm_90 Hopper"):
            machine.lower(add_kernel, "*fp32", "*fp32", 4096, BLOCK=1024, target=target)
    with pytest.raises(machine.LaunchError, match="no type.*'\\*fp16'"):
        machine.lower(add_kernel, "fp", "*fp32", 4096, BLOCK=1024)


def test_no_compiler_to_be_had(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "_child", None)
    monkeypatch.setattr(module, "_answers", type(module._answers)())
    with pytest.raises(machine.NoCompiler, match="could not be started"):
        module.Worker(str(tmp_path / "nothing"))
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(module.sys, "executable", str(broken))
    monkeypatch.setattr(module.Worker.__init__, "__defaults__", (str(broken),))
    with pytest.raises(machine.NoCompiler, match="could not be started.*Is Triton installed"):
        machine.lower(add_kernel, "*fp32", "*fp32", 4096, BLOCK=1024)


def test_a_compiler_that_dies_is_replaced():
    machine.lower(add_kernel, "*fp32", "*fp32", 4096, BLOCK=1024)
    module._child.process.kill()
    module._child.process.wait()
    assert machine.lower(add_kernel, "*fp32", "*fp32", 4096, BLOCK=2048).loads == ["ld.global.v4.b32"]


def test_an_interrupted_request_leaves_its_answer_to_nobody(monkeypatch):
    def interrupted(self, seconds):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module.Worker, "_next", interrupted)
        machine.lower(add_kernel, "*fp16", "*fp16", 4096, BLOCK=1024)
    assert machine.lower(add_kernel, "*fp32", "*fp32", 8192, BLOCK=512).loads == ["ld.global.v4.b32"]


def test_a_warm_answer_takes_less_than_150_ms():
    case = {c.name: c for c in probes.CASES}["gather_rows_f16"]
    tensors = case.inputs()
    args = (tensors["x"], tensors["index"], tensors["y"])
    machine.lower(probes.probe_gather_rows, *args, N=4, P=8, D=32)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        machine.lower(probes.probe_gather_rows, *args, N=4, P=8, D=32)
        times.append(time.perf_counter() - start)
    assert sorted(times)[2] < 0.150


def test_a_changed_kernel_is_compiled_anew():
    source = "@triton.jit\ndef k(x_ptr, B: tl.constexpr):\n    tl.store(x_ptr + tl.arange(0, B), {})\n"
    import linecache

    def define(value):
        text, name = source.format(value), "<cell 7>"
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        scope = {"triton": triton, "tl": tl}
        exec(compile(text, name, "exec"), scope)
        return scope["k"]

    first = machine.lower(define("1.0"), "*fp32", B=64)
    second = machine.lower(define("tl.arange(0, B) * 2.0"), "*fp32", B=64)
    assert first.ptx != second.ptx and first.operations[0].places[-1].line == 3


def test_a_kernel_without_source_is_refused():
    scope = {"tl": tl}
    exec("def nowhere(x_ptr):\n    tl.store(x_ptr, 1.0)\n", scope)
    if triton.knobs.runtime.interpret:  # the real decorator refuses it at once
        with pytest.raises(machine.Unsupported, match="nowhere has no source"):
            machine.lower(triton.jit(scope["nowhere"]), "*fp32")


def test_a_helper_reached_through_a_module_and_a_constexpr_global_travel_along():
    @triton.jit
    def inner(x_ptr):
        offs = tl.arange(0, SIZE)
        tl.store(x_ptr + offs, probes.probe_read(x_ptr, offs, offs < SIZE))

    assert len(machine.lower(inner, "*fp32").operations) == 2

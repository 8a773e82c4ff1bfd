"""The guard: what each wrong kernel is told, and that the process outlives it."""

import re

import pytest
import torch

from msda_core import machine
from msda_core.device import load_triton

triton = load_triton()
import triton.language as tl  # noqa: E402

LIMIT = 4
SIZE = tl.constexpr(4)


@triton.jit
def copy_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=mask), mask=mask)


@triton.jit
def unmasked_load(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    tl.store(y_ptr + offs, x, mask=offs < n)


@triton.jit
def unmasked_store(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=offs < n, other=0.0))


@triton.jit
def masked_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=offs < n))


@triton.jit
def scalar_mask(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    there = (tl.load(x_ptr) > 0.5) & (tl.load(x_ptr + 1) < 0.5)
    offs = tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, offs.to(tl.float32), mask=there & (offs < n))


@triton.jit
def far_kernel(x_ptr, far, y_ptr):
    tl.store(y_ptr, tl.load(x_ptr + far.to(tl.int64) * 1000))


@triton.jit
def scatter_add(x_ptr, index_ptr, y_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.atomic_add(y_ptr + tl.load(index_ptr + offs), tl.load(x_ptr + offs))


@triton.jit
def read_at(base, offset):
    return tl.load(base + offset)


@triton.jit
def helper_kernel(x_ptr, y_ptr, n):
    tl.store(y_ptr, read_at(x_ptr, n))


@triton.jit
def global_kernel(x_ptr, y_ptr):
    offs = tl.arange(0, 4)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs), mask=offs < LIMIT)


@triton.jit
def constant_kernel(x_ptr, y_ptr):
    offs = tl.arange(0, SIZE)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs))


@triton.jit
def factorial(n):
    if n > 1:
        return n * factorial(n - 1)
    return n


@triton.jit
def recursive_kernel(y_ptr, n):
    tl.store(y_ptr, factorial(n))


@triton.jit
def cast_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs).to(tl.float32) + 1.0)


@triton.jit
def bf16_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    tl.store(y_ptr + offs, x + x)


@triton.jit
def bf16_sum(x_ptr, y_ptr, BLOCK: tl.constexpr):
    tl.store(y_ptr, tl.sum(tl.load(x_ptr + tl.arange(0, BLOCK)), axis=0))


@triton.jit
def undefined_kernel(x_ptr):
    tl.store(x_ptr, nowhere)  # noqa: F821


@triton.jit
def stub_kernel(x_ptr):
    tl.static_assert(False, "03.stub")


@triton.jit
def block_pointer_kernel(x_ptr, y_ptr, n, CHECK: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    desc = tl.make_tensor_descriptor(x_ptr, shape=[n], strides=[1], block_shape=[BLOCK])
    tl.store(y_ptr + offs, desc.load([CHECK]))


@triton.autotune([triton.Config({"BLOCK": 32}, num_warps=2), triton.Config({"BLOCK": 64})], key=["n"])
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def tuned_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(y_ptr + offs, tl.load(x_ptr + offs))
    else:
        tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)


def line_of(kernel, text):
    source = kernel.fn.__code__.co_filename
    lines = open(source).read().splitlines()
    start = kernel.fn.__code__.co_firstlineno
    return next(i for i, line in enumerate(lines[start - 1 :], start) if text in line)


def launch(kernel, grid, *args, **kwargs):
    with machine.guard():
        kernel[grid](*args, **kwargs)


def test_a_sound_kernel_runs_and_writes_its_result():
    x, y = torch.randn(100), torch.full((100,), torch.nan)
    launch(copy_kernel, (4,), x, y, 100, BLOCK=32)
    assert torch.equal(x, y)


@pytest.mark.parametrize("kernel, tensor, kind", [(unmasked_load, "x_ptr", "load"), (unmasked_store, "y_ptr", "store")])
def test_out_of_bounds_names_line_tensor_element_program_and_lanes(kernel, tensor, kind):
    x, y = torch.randn(100), torch.full((100,), torch.nan)
    with pytest.raises(machine.OutOfBounds) as caught:
        launch(kernel, (4,), x, y, 100, BLOCK=32)
    error = caught.value
    text = "tl.load(x_ptr + offs)" if kind == "load" else "tl.store(y_ptr + offs"
    assert error.lineno == line_of(kernel, text) and text in error.line
    assert (error.tensor, error.offset, error.size, error.lanes) == (tensor, 100, 100, 28)
    assert error.program == (3, 0, 0) and error.kind == kind
    for part in (f"line {error.lineno}", tensor, "element 100", "100 elements", "(3, 0, 0)", "28 of 32"):
        assert part in str(error)


def test_nothing_is_written_by_a_store_that_is_refused():
    memory = torch.arange(64, dtype=torch.float32)
    y = memory[:16].clone()
    with pytest.raises(machine.OutOfBounds):
        launch(unmasked_store, (1,), torch.ones(16), y, 16, BLOCK=32)
    assert torch.equal(y, memory[:16])


def test_an_access_into_a_neighbouring_tensor_is_out_of_bounds_of_its_own():
    """The address is computed from x, so it belongs to x, also where other arguments' memory lies there."""
    for far in (-1, 10**9, -(10**9)):
        with pytest.raises(machine.OutOfBounds) as caught:
            launch(far_kernel, (1,), torch.ones(8), far, torch.ones(8))
        assert caught.value.tensor == "x_ptr" and caught.value.offset == far * 1000


def test_a_bad_index_under_an_atomic():
    y = torch.zeros(10)
    with pytest.raises(machine.OutOfBounds, match="updates element -7 of y_ptr, before the 10 elements"):
        launch(scatter_add, (1,), torch.ones(4), torch.tensor([0, 1, -7, 3]), y, BLOCK=4)
    assert not y.any()


def test_the_line_is_the_helpers_and_the_chain_is_kept():
    with pytest.raises(machine.OutOfBounds) as caught:
        launch(helper_kernel, (1,), torch.ones(3), torch.ones(1), 3)
    assert caught.value.line == "return tl.load(base + offset)"
    assert [f.function for f in caught.value.frames] == ["helper_kernel", "read_at"]


def test_a_view_is_bounded_by_its_storage():
    base = torch.arange(10, dtype=torch.float32)
    y = torch.zeros(1)
    launch(helper_kernel, (1,), base[4:6], y, 5)
    assert y.item() == 9
    with pytest.raises(machine.OutOfBounds) as caught:
        launch(helper_kernel, (1,), base[4:6], y, 6)
    assert (caught.value.offset, caught.value.size) == (6, 6)


def test_a_python_global_is_refused_and_a_constexpr_global_is_not():
    x, y = torch.randn(4), torch.zeros(4)
    with pytest.raises(machine.PythonGlobal, match=r"Python global LIMIT \(int\).*LIMIT = tl.constexpr") as caught:
        launch(global_kernel, (1,), x, y)
    assert "mask=offs < LIMIT" in caught.value.line
    launch(constant_kernel, (1,), x, y)
    assert torch.equal(x, y)


def test_recursion_is_refused():
    with pytest.raises(machine.Recursion, match="factorial") as caught:
        launch(recursive_kernel, (1,), torch.zeros(1, dtype=torch.int32), 3)
    assert caught.value.line == "return n * factorial(n - 1)"


@pytest.mark.parametrize("kernel, out", [(bf16_kernel, 8), (bf16_sum, 1)])
def test_bf16_arithmetic_says_to_cast(kernel, out):
    with pytest.raises(machine.BFloat16Arithmetic, match=r"bfloat16.*x\.to\(tl\.float32\)"):
        launch(kernel, (1,), torch.ones(8, dtype=torch.bfloat16), torch.zeros(out, dtype=torch.bfloat16), BLOCK=8)


def test_bf16_casts_round_to_nearest_even():
    x = torch.randn(4096, dtype=torch.float32).to(torch.bfloat16)
    y = torch.zeros(4096, dtype=torch.bfloat16)
    launch(cast_kernel, (1,), x, y, BLOCK=4096)
    assert torch.equal(y, (x.float() + 1.0).to(torch.bfloat16))


def test_bf16_atomics_round_each_addition_to_nearest_even():
    x = torch.full((300,), 1.0, dtype=torch.bfloat16)[:256]
    index = torch.zeros(256, dtype=torch.int64)
    y = torch.zeros(2, dtype=torch.bfloat16)
    launch(scatter_add, (1,), x.contiguous(), index, y, BLOCK=256)
    launch(scatter_add, (1,), x.contiguous(), index, y, BLOCK=256)
    assert y[0].item() == 256  # where bf16 stops counting


def test_an_ordinary_exception_has_the_learners_line():
    with pytest.raises(machine.KernelFailed, match="NameError.*nowhere") as caught:
        launch(undefined_kernel, (1,), torch.zeros(1))
    assert caught.value.line.startswith("tl.store(x_ptr, nowhere)")
    assert isinstance(caught.value.__cause__, NameError)


def test_a_stub_keeps_its_message():
    with pytest.raises(machine.KernelFailed, match="03.stub") as caught:
        launch(stub_kernel, (1,), torch.zeros(1))
    assert isinstance(caught.value.__cause__, AssertionError)


def test_no_grid_bad_grid_missing_and_unknown_arguments():
    x = torch.zeros(4)
    with machine.guard():
        with pytest.raises(machine.LaunchError, match=r"called like a function.*copy_kernel\[grid\]"):
            copy_kernel(x, x, 4, BLOCK=4)
        for grid in (4, (), (1, 1, 1, 1), (-1,)):
            with pytest.raises(machine.LaunchError, match="grid"):
                copy_kernel[grid](x, x, 4, BLOCK=4)
        with pytest.raises(machine.LaunchError, match="missing a required argument: 'BLOCK'"):
            copy_kernel[(1,)](x, x, 4)
        with pytest.raises(machine.LaunchError, match="no parameter BLOK"):
            copy_kernel[(1,)](x, x, 4, BLOK=4, BLOCK=4)
        copy_kernel[(1,)](x, x, 4, BLOCK=4, num_warps=2)


def test_mixed_devices_and_things_that_are_no_tensors():
    x = torch.zeros(4)
    with pytest.raises(machine.LaunchError, match="different devices: x_ptr on cpu, y_ptr on meta"):
        launch(copy_kernel, (1,), x, x.to("meta"), 4, BLOCK=4)
    with pytest.raises(machine.LaunchError, match="y_ptr of copy_kernel must be a tensor.*from_numpy"):
        launch(copy_kernel, (1,), x, x.numpy(), 4, BLOCK=4)


def test_a_numpy_number_is_refused_as_by_the_real_launcher():
    x = torch.zeros(4)
    with pytest.raises(machine.LaunchError, match=r"n of copy_kernel is a numpy int64.*Pass int\(n\)"):
        launch(copy_kernel, (1,), x, x.clone(), x.numpy().astype("int64").sum(), BLOCK=4)


def test_a_strided_view_without_its_strides_is_refused():
    x, y = torch.randn(4, 8), torch.zeros(4, 8)
    with pytest.raises(machine.LaunchError, match=re.escape("x_ptr of copy_kernel is not contiguous: shape (8, 4)")):
        launch(copy_kernel, (1,), x.T, y, 32, BLOCK=32)
    with machine.guard(contiguous=False):
        copy_kernel[(1,)](x.T, y, 32, BLOCK=32)
    assert torch.equal(x, y)


def test_uninitialised_memory_is_reported_until_it_is_written():
    with machine.guard():
        x, y = torch.empty(32), torch.empty(32)
        with pytest.raises(
            machine.UninitialisedRead, match="reads element 0 of x_ptr, which was allocated by torch.empty"
        ):
            copy_kernel[(1,)](x, y, 32, BLOCK=32)
        x.copy_(torch.arange(32.0))
        copy_kernel[(1,)](x, y, 31, BLOCK=32)
        with pytest.raises(machine.UninitialisedRead) as caught:
            copy_kernel[(1,)](y, x, 32, BLOCK=32)
        assert (caught.value.offset, caught.value.lanes, caught.value.tensor) == (31, 1, "x_ptr")
        out = torch.empty_like(x)
        with pytest.raises(machine.UninitialisedRead, match="adds to element 0 of y_ptr"):
            scatter_add[(1,)](torch.ones(4), torch.zeros(4, dtype=torch.int64), out, BLOCK=4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2])
def test_lanes_without_other_are_undefined_floats(dtype):
    x, y = torch.ones(8).to(dtype), torch.zeros(16).to(dtype)
    launch(masked_kernel, (1,), x, y, 8, BLOCK=16)
    assert torch.equal(y[:8].float(), torch.ones(8)) and y[8:].float().isnan().all()
    with machine.guard(undefined=False):
        masked_kernel[(1,)](x, y, 8, BLOCK=16)
    assert not y[8:].float().any()


def test_lanes_without_other_are_undefined_integers():
    x, y = torch.ones(8, dtype=torch.int32), torch.zeros(16, dtype=torch.int32)
    launch(masked_kernel, (1,), x, y, 8, BLOCK=16)
    assert y.tolist() == [1] * 8 + [2**31 - 1] * 8


def test_each_launch_is_reported_before_it_runs():
    launches, x = [], torch.ones(8)
    with machine.guard(launched=launches.append), pytest.raises(machine.OutOfBounds):
        unmasked_load[(1,)](x, torch.zeros(8), 8, BLOCK=16)
    assert [(one.name, one.grid, one.values["n"]) for one in launches] == [("unmasked_load", (1, 1, 1), 8)]


def test_memory_that_torch_recycles_is_not_mistaken_for_uninitialised():
    with machine.guard():
        for _ in range(50):
            torch.empty(1000)
            x = torch.zeros(1000) + 1
            copy_kernel[(1,)](x, torch.empty(1000), 1000, BLOCK=1024)
            del x


def test_autotune_and_heuristics_run_their_first_configuration():
    x = torch.randn(64)
    for n in (64, 50):
        y = torch.zeros(64)
        launch(tuned_kernel, (2,), x, y, n)
        assert torch.equal(y[:n], x[:n]) and not y[n:].any()


def test_a_tensor_descriptor_is_masked_by_its_shape():
    x, y = torch.arange(1.0, 21.0), torch.zeros(16)
    launch(block_pointer_kernel, (1,), x, y, 20, CHECK=8, BLOCK=16)
    assert torch.equal(y, torch.cat([x[8:], torch.zeros(4)]))


def test_outside_the_guard_nothing_has_changed():
    x, y = torch.randn(8), torch.zeros(8)
    if triton.knobs.runtime.interpret:
        copy_kernel[(1,)](x, y, 8, BLOCK=8)
        assert torch.equal(x, y)


def test_protect_guards_every_launch():
    end = machine.protect()
    try:
        with pytest.raises(machine.OutOfBounds):
            unmasked_load[(1,)](torch.zeros(4), torch.zeros(4), 4, BLOCK=8)
    finally:
        end()


def test_a_trace_has_every_access_with_its_place():
    x, y = torch.randn(50), torch.zeros(50)
    trace = machine.trace(copy_kernel, (2,), x, y, 50, BLOCK=32)
    assert [e.kind for e in trace.events] == ["load", "store"] * 2
    assert [e.program for e in trace.events] == [(0, 0, 0)] * 2 + [(1, 0, 0)] * 2
    load = trace.events[2]
    assert load.mask.sum() == 18 and load.bytes == 72 and load.itemsize == 4
    assert trace.element(load)[load.mask].tolist() == list(range(32, 50))
    assert load.lineno == line_of(copy_kernel, "tl.store") and load.tensor == "x_ptr"
    assert trace.tensors["x_ptr"].base % 512 == 0


def test_a_trace_keeps_the_offset_of_a_view():
    x = torch.zeros(40)
    trace = machine.trace(copy_kernel, (1,), x[3:35], torch.zeros(32), 32, BLOCK=32)
    assert trace.tensors["x_ptr"].base % 512 == 12


@pytest.mark.parametrize("first", [0.0, 1.0])
def test_a_scalar_comparison_is_a_mask_of_a_block_too(first):
    """Triton's interpreter gives a comparison its operands' dtype, and would splat it as numbers."""
    y = torch.full((8,), -1.0)
    with machine.guard():
        scalar_mask[(1,)](torch.tensor([first, 0.0]), y, 5, BLOCK=8)
    assert y.tolist() == ([0.0, 1.0, 2.0, 3.0, 4.0] if first else [-1.0] * 5) + [-1.0] * 3


@triton.jit
def first_of_pairs(a, i, b, j):
    keep = (a > b) | ((a == b) & (i < j))
    return tl.where(keep, a, b), tl.where(keep, i, j)


@triton.jit
def last_nonzero(a, b):
    return tl.where(b != 0, b, a)


@triton.jit
def own_functions(x_ptr, top_ptr, at_ptr, run_ptr, N: tl.constexpr):
    offs = tl.arange(0, 4)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + offs)
    top, at = tl.reduce((x, tl.broadcast_to(tl.arange(0, N)[None, :], x.shape)), 1, first_of_pairs)
    tl.store(top_ptr + tl.arange(0, 4), top)
    tl.store(at_ptr + tl.arange(0, 4), at)
    tl.store(run_ptr + offs, tl.associative_scan(x, 1, last_nonzero, reverse=True))


def test_reductions_and_scans_with_a_function_of_ones_own():
    x = torch.randint(-2, 3, (4, 32)).float()
    top, at, run = torch.empty(4), torch.empty(4, dtype=torch.int32), torch.empty(4, 32)
    with machine.guard():
        own_functions[(1,)](x, top, at, run, N=32)
    torch.testing.assert_close(top, x.max(1).values)
    assert at.tolist() == [row.tolist().index(row.max()) for row in x]
    expected = x.clone()
    for i in range(30, -1, -1):
        expected[:, i] = torch.where(x[:, i] != 0, x[:, i], expected[:, i + 1])
    torch.testing.assert_close(run, expected)

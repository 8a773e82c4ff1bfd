"""What the grader tells the author of a kernel, whatever the kernel does; the process outlives it."""

import ast
import gc
import importlib
import inspect
import re
import textwrap
from dataclasses import replace

import pytest
import torch

from checks.answers.notebook import stub_source
from checks.catalogue import LABS
from checks.core import exercise as exercises
from checks.core.exercise import Mistake, find, lab_exercises
from checks.core.grade import _is_stub, grade
from checks.core.places import untagged
from checks.kernel.launches import edited, on_device, with_body
from msda_core import device, machine
from msda_core.device import tl, triton
from solutions import lab04

pytestmark = pytest.mark.skipif(device.NO_TRITON is not None, reason=f"not run: {device.NO_TRITON}")
interpreted = pytest.mark.skipif(
    not device.INTERPRETED, reason="not run: it is about the interpreter, and on a GPU the compiler speaks first"
)

KERNELS = [e for e in lab_exercises("04") if e.guarded]
LOAD_X, STORE = "x = tl.load(x_ptr + offs, mask=mask)", "tl.store(out_ptr + offs, x + y, mask=mask)"
LIMIT_OF_MINE = 64


def wrong(*changes):
    return edited(lab04.add_kernel, *changes)


def report(kernel, name="04.add_kernel", **options):
    return grade(name, kernel, **options)


def message(kernel, name="04.add_kernel"):
    return report(kernel, name).worst.message


# --- the stub ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exercise", KERNELS, ids=lambda e: e.name)
def test_a_stub_is_to_do_for_the_interpreter_and_for_the_compiler(exercise):
    kernel = getattr(lab04, exercise.function)
    source = untagged("".join(inspect.getsourcelines(kernel.fn)[0]))
    stub = edited(kernel, (source, stub_source(exercise.function, lab04)))
    got = grade(exercise.name, stub)
    assert got.state == "todo" and got.mistake is None
    parameters = inspect.signature(kernel.fn).parameters
    arguments = ["*fp32" if name.endswith("_ptr") else 16 for name in parameters if not name.startswith("BLOCK")]
    with pytest.raises(machine.CompileError) as caught:
        machine.lower(stub, *arguments, **{name: 16 for name in parameters if name.startswith("BLOCK")})
    assert _is_stub(caught.value, exercise.name)


def test_another_failed_assertion_is_no_stub():
    assert report(wrong((STORE, 'tl.static_assert(False, "not here")'))).state == "crash"


def test_code_above_the_stubs_line_is_no_stub():
    got = report(wrong((STORE, f'{STORE}\n    tl.static_assert(False, "04.add_kernel")')))
    assert got.state == "crash"
    assert 'the stub\'s line `tl.static_assert(False, "04.add_kernel")` is still there' in got.worst.message


def test_code_above_the_stubs_line_is_no_stub_in_python_either():
    def to_pixels(*sizes):
        """Whatever."""
        print(0.5)
        raise NotImplementedError("01.to_pixels")

    def blank(*sizes):
        """Whatever."""
        raise NotImplementedError("01.to_pixels")

    assert grade("01.to_pixels", blank).state == "todo"
    got = grade("01.to_pixels", to_pixels)
    assert got.state == "crash" and 'line `raise NotImplementedError("01.to_pixels")` is still' in got.worst.message


# --- what a program is for --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exercise", KERNELS, ids=lambda e: e.name)
def test_every_kernel_is_launched_with_blocks_of_more_than_one_size(exercise):
    sizes = {
        name: set() for name in inspect.signature(getattr(lab04, exercise.function).fn).parameters if "BLOCK" in name
    }

    def note(launch):
        for name in sizes:
            sizes[name].add(launch.values[name])

    with machine.guard(launched=note):
        for case in exercise.cases:
            exercise.run(getattr(lab04, exercise.function), case(exercises.Draw(1)))
    assert all(len(known) > 1 for known in sizes.values()), sizes


SCALAR = {
    "add_kernel": """
        for i in range(N):
            tl.store(out_ptr + i, tl.load(x_ptr + i) + tl.load(y_ptr + i))
        """,
    "gather_rows_kernel": """
        for n in range(N):
            row = tl.load(index_ptr + n).to(tl.int64)
            for d in range(D):
                tl.store(out_ptr + n * D + d, tl.load(table_ptr + row * stride_row + d))
        """,
}


@pytest.mark.parametrize("function", SCALAR)
def test_a_kernel_whose_programs_all_do_everything_fails_though_its_numbers_are_right(function):
    got = grade(f"04.{function}", with_body(getattr(lab04, function), SCALAR[function]))
    assert [check.name for check in got.checks if check.status != "pass"] == ["own_share"]
    assert "program 1 stores element 0 of out_ptr, as program 0 did" in got.worst.message
    assert got.mistake.name.startswith("when every program")


# --- the guard --------------------------------------------------------------------------------------------------------


def masks_of(kernel) -> list[tuple[str, str]]:
    """Every access that has a mask, as (its text, its text without the mask)."""
    source = textwrap.dedent("".join(inspect.getsourcelines(kernel.fn)[0]))
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and any(keyword.arg == "mask" for keyword in node.keywords):
            before = ast.get_source_segment(source, node)
            node.keywords = [keyword for keyword in node.keywords if keyword.arg not in ("mask", "other")]
            found.append((before, ast.unparse(node)))
    return found


def each_mask():
    return [
        pytest.param(exercise, change, id=f"{exercise.function}: {change[1]}")
        for exercise in KERNELS
        for change in masks_of(getattr(lab04, exercise.function))
    ]


@pytest.mark.parametrize(("exercise", "change"), each_mask())
def test_each_mask_removed_in_turn_gets_the_guards_sentence(exercise, change):
    got = grade(exercise.name, edited(getattr(lab04, exercise.function), change))
    assert got.state == "fail"
    said = got.worst.message
    assert re.match(rf"line \d+ of {exercise.function}: `", said), said
    assert change[1] in said.replace("'", '"')
    assert re.search(r" (reads|writes) element -?\d+ of \w+_ptr, (past|before) the \d+ elements of ", said), said
    assert re.search(r"; \d+ of \d+ active lanes are outside in program \(\d+, \d+, \d+\)", said), said
    assert got.mistake is not None


def test_a_line_is_counted_from_the_top_of_the_cell():
    kernel = wrong((LOAD_X, "x = tl.load(x_ptr + offs)"))
    lines = inspect.getsourcelines(kernel.fn)[0]
    number = next(i for i, line in enumerate(lines, start=1) if "tl.load(x_ptr" in line)
    assert lines[0].startswith("@triton.jit")
    assert message(kernel).startswith(f"line {number} of add_kernel: `x = tl.load(x_ptr + offs)` reads element ")


def test_a_far_address_does_not_end_the_process():
    said = message(wrong((LOAD_X, "x = tl.load(x_ptr + offs.to(tl.int64) * 1000000000, mask=mask)")))
    assert "reads element 1000000000 of x_ptr" in said


def test_two_ways_past_the_same_tensor_are_told_apart():
    kernels = {mistake.name: mistake.answer for mistake in find("04.bilinear_kernel").mistakes}
    no_x = grade("04.bilinear_kernel", kernels["when the load of x has no mask"])
    no_y = grade("04.bilinear_kernel", kernels["when the load of y has no mask"])
    assert (no_x.mistake.name, no_y.mistake.name) == (
        "when the load of x has no mask",
        "when the load of y has no mask",
    )


# --- what the interpreter lets through --------------------------------------------------------------------------------


@interpreted
@pytest.mark.parametrize(
    "change",
    [
        (LOAD_X, f"for _ in [1, 2]:\n        {LOAD_X}"),
        (LOAD_X, f"for _ in range(2):\n        {LOAD_X}\n        break"),
        (LOAD_X, f"{LOAD_X}\n    numbers = {{'a': 1}}"),
        (LOAD_X, f"try:\n        {LOAD_X}\n    finally:\n        pass"),
    ],
    ids=["a loop over a list", "break", "a dict", "try"],
)
def test_what_only_the_compiler_refuses_fails_with_its_reason_and_the_line(change):
    got = report(wrong(change))
    failing = [check for check in got.checks if check.status != "pass"]
    assert got.state == "fail" and [check.name for check in failing] == ["compiles"]
    said = failing[0].message
    assert re.match(
        r"line \d+ of add_kernel: `.+` runs in the interpreter, but a GPU's compiler refuses it: \w+", said
    ), said


def test_a_right_kernel_compiles_and_says_so():
    got = report(edited(lab04.add_kernel))
    assert got.state == "pass" and got.checks[-1].name == "compiles" and got.checks[-1].status == "pass"


def test_no_compiler_is_not_run_and_no_failure(monkeypatch):
    def nothing():
        raise machine.NoCompiler("Triton's compiler could not be started: it is not there.")

    monkeypatch.setattr(importlib.import_module("msda_core.machine.compile.lower"), "_worker", nothing)
    got = report(wrong((STORE, "tl.store(out_ptr + offs, y + x, mask=mask)")))
    assert got.state == "pass"
    assert [(c.name, c.status) for c in got.checks if c.status != "pass"] == [("compiles", "not_run")]
    assert "could not be started" in got.checks[-1].message


# --- Python where Triton is meant -------------------------------------------------------------------------------------


@interpreted
@pytest.mark.parametrize(
    ("function", "change", "says"),
    [
        ("bilinear_kernel", ("tl.floor(x)", "torch.floor(x)"), "floor is for Python.*tl.floor"),
        ("bilinear_kernel", (".to(tl.int32)", ""), "addresses are whole numbers"),
        ("add_kernel", (LOAD_X, "x = x_ptr[offs]"), "a pointer is not indexed"),
        ("add_kernel", (STORE, "out_ptr[offs] = x + y"), "tl.store"),
        ("row_sum_kernel", ("tl.sum(acc, axis=0)", "sum(acc)"), r"Python's sum knows no blocks: tl\.sum"),
        ("row_sum_kernel", ("tl.sum(acc, axis=0)", "acc"), r"a block of values and one address.*tl\.sum"),
        ("add_kernel", ("tl.arange(0, BLOCK)", "tl.arange(0, N)"), "compiled, and N is not"),
        ("add_kernel", ("BLOCK: tl.constexpr", "BLOCK"), "`: tl.constexpr` missing after BLOCK"),
        ("add_kernel", (LOAD_X, "x = tl.load(x_ptr, offs)"), "the second argument of tl.load is the mask"),
        ("add_kernel", (STORE, f"{STORE}\n    return out_ptr"), "a kernel returns nothing"),
        ("bilinear_kernel", ("acc += ", "if inside:\n                acc += "), "use a mask"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isidentifier() else "",
)
def test_python_where_triton_is_meant_is_explained(function, change, says):
    kernel = edited(getattr(lab04, function), change, torch=torch)
    got = grade(f"04.{function}", kernel, diagnose=False)
    assert got.state in ("fail", "crash")
    assert re.match(rf"line \d+ of {function}: `", got.worst.message) and re.search(says, got.worst.message), got.worst


@pytest.mark.parametrize(
    "change", [(", None] & (", ", None] and ("), (", None] & (", ", None] or (")], ids=["and", "or"]
)
def test_and_between_blocks_is_seen_in_the_text(change):
    got = grade("04.copy2d_kernel", edited(lab04.copy2d_kernel, change))
    assert got.state == "fail" and "`and`" in got.mistake.name


def test_not_of_a_block_is_seen_and_and_between_numbers_is_not():
    assert "`and`" in report(wrong(("offs < N", "not (offs >= N)"))).mistake.name
    scalars = "if N > 0 and BLOCK > 0:\n        " + STORE.replace("x + y", "x - y")
    got = report(wrong((STORE, scalars)))
    assert got.state == "fail" and (got.mistake is None or "`and`" not in got.mistake.name)


def test_a_gap_that_was_written_into_is_named():
    got = grade("04.copy2d_kernel", edited(lab04.copy2d_kernel, ("* stride_oh", "* W")))
    assert "you wrote into the gap after row 0, which must be left alone" in got.worst.message


# --- bad input --------------------------------------------------------------------------------------------------------


@triton.jit
def global_kernel(x_ptr, y_ptr, out_ptr, N, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = (offs < N) & (offs < LIMIT_OF_MINE)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=mask), mask=mask)


@triton.jit
def again(x):
    return again(x) + 1


@triton.jit
def recursive_kernel(x_ptr, y_ptr, out_ptr, N, BLOCK: tl.constexpr):
    tl.store(out_ptr, again(tl.load(x_ptr)))


@triton.jit
def endless_kernel(x_ptr, y_ptr, out_ptr, N, BLOCK: tl.constexpr):
    i = 0
    while i < 1:
        i = i * 1


@triton.jit
def unknown_kernel(x_ptr, y_ptr, out_ptr, N, BLOCK: tl.constexpr):
    tl.store(out_ptr, nowhere)  # noqa: F821


@triton.jit
def inverse_kernel(x_ptr, y_ptr, out_ptr, N, BLOCK: tl.constexpr):
    offs = tl.arange(0, 48)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs))


def test_a_python_global():
    got = report(global_kernel)
    assert got.state == "fail"
    assert re.match(r"line 4 of global_kernel: `.*` uses the Python global LIMIT_OF_MINE \(int\)", got.worst.message)


def test_recursion():
    got = report(recursive_kernel)
    assert got.state == "fail" and "line 3 of again: `return again(x) + 1` calls again" in got.worst.message


@interpreted
def test_an_endless_loop_ends(monkeypatch):
    monkeypatch.setitem(exercises._REGISTRY, "04.add_kernel", replace(find("04.add_kernel"), limit=0.5))
    got = report(endless_kernel)
    assert got.state == "crash" and "stopped after 0.5 s" in got.worst.message
    monkeypatch.undo()
    assert report(edited(lab04.add_kernel)).state == "pass"  # and the interpreter is free again


def test_a_name_that_is_not_there_has_the_learners_line():
    got = report(unknown_kernel)
    assert got.state == "crash"
    assert got.worst.message.startswith("line 3 of unknown_kernel: `tl.store(out_ptr, nowhere)")
    assert "NameError: name 'nowhere' is not defined" in got.worst.message


def test_a_block_that_is_no_power_of_two():
    got = report(inverse_kernel)
    assert got.state == "crash" and "line 3 of inverse_kernel" in got.worst.message


def test_wrong_parameters_are_told_in_one_sentence():
    def changed(x_ptr, y_ptr, out_ptr, N, BLOK: tl.constexpr):
        pass

    got = report(triton.jit(changed))
    assert got.state == "crash" and "BLOCK" in got.worst.message and "BLOK" in got.worst.message


@pytest.mark.parametrize("answer", [None, 3, "add_kernel"])
def test_no_kernel_at_all(answer):
    assert report(answer).state == "crash"


def test_a_plain_function_says_that_jit_is_missing():
    def add_kernel(x_ptr, y_ptr, out_ptr, N, BLOCK):
        pass

    got = report(add_kernel)
    assert got.state == "crash" and "@triton.jit" in got.worst.message


@pytest.fixture
def made_up(monkeypatch):
    """Declares an exercise about a launcher of the learner's own."""
    names = []

    def declare(name, **fields):
        names.append(f"04.{name}")
        exercises.lab_exercises("04")  # the lab's own are declared
        lab = LABS["04"]
        monkeypatch.setitem(LABS, "04", lab._replace(exercises=(*lab.exercises, name)))
        draw = lambda draw: (draw.normal(40),)  # noqa: E731
        draw.__name__, draw.__doc__ = "a_vector", "a vector is doubled"
        return exercises.exercise(
            f"04.{name}", reference=lambda x: 2 * x, cases=[draw], guarded=True, hints=["", "", ""], **fields
        )

    yield declare
    for name in names:
        exercises._REGISTRY.pop(name)


@triton.jit
def double_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, 2 * tl.load(x_ptr + offs, mask=offs < N), mask=offs < N)


@triton.jit
def add_to_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    sofar = tl.load(out_ptr + offs, mask=offs < N)
    tl.store(out_ptr + offs, sofar + 2 * tl.load(x_ptr + offs, mask=offs < N), mask=offs < N)


def launched(x):
    out = torch.empty_like(x)
    double_kernel[(3,)](x, out, x.numel(), BLOCK=16)
    return out


def without_a_grid(x):
    out = torch.empty_like(x)
    double_kernel(x, out, x.numel(), BLOCK=16)
    return out


def on_what_nobody_wrote(x):
    out = torch.empty_like(x)
    add_to_kernel[(3,)](x, out, x.numel(), BLOCK=16)
    return out


def on_two_devices(x):
    out = torch.empty_like(x, device="meta")
    double_kernel[(3,)](x, out, x.numel(), BLOCK=16)
    return out


def on_a_strided_view(x):
    out = torch.empty_like(x)
    double_kernel[(3,)](torch.stack([x, x], 1)[:, 0], out, x.numel(), BLOCK=16)
    return out


def in_bfloat16(x):
    out = torch.empty_like(x, dtype=torch.bfloat16)
    double_kernel[(3,)](x.bfloat16(), out, x.numel(), BLOCK=16)
    return out.float()


def test_a_launcher_of_the_learners_own(made_up):
    made_up("launched")
    assert grade("04.launched", launched).state == "pass"


@pytest.mark.parametrize(
    ("launcher", "state", "says"),
    [
        (without_a_grid, "crash", r"double_kernel was called like a function.*double_kernel\[grid\]"),
        (on_what_nobody_wrote, "fail", r"line 4 of add_to_kernel: `sofar.*reads element 0 of out_ptr.*never written"),
        (on_two_devices, "crash", r"different devices: x_ptr on cpu, out_ptr on meta"),
        (on_a_strided_view, "crash", r"x_ptr of double_kernel is not contiguous"),
        (in_bfloat16, "fail", r"line 4 of double_kernel: `.*bfloat16.*x\.to\(tl\.float32\)"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_bad_launch_or_input_is_one_clear_sentence(made_up, launcher, state, says):
    made_up(launcher.__name__)
    got = grade(f"04.{launcher.__name__}", launcher)
    assert got.state == state and re.search(says, got.worst.message), got.worst.message


# --- wrong kernels told as edits --------------------------------------------------------------------------------------


def test_an_edit_that_no_longer_fits_is_refused():
    with pytest.raises(ValueError, match="add_kernel does not contain 'tl.dot'"):
        edited(lab04.add_kernel, ("tl.dot", "tl.sum"))


def test_zeros_and_the_input_are_rejected():
    for change in ((STORE, STORE.replace("x + y", "0 * x")), (STORE, STORE.replace("x + y", "x")), (STORE, "pass")):
        assert report(Mistake("", wrong(change), "")).state == "fail"


def test_arguments_move_to_the_device_with_their_strides():
    x = torch.arange(24.0).reshape(4, 6)[1:, ::2].T
    moved, (number, again) = on_device([x, (3, x)])
    assert moved.stride() == x.stride() and moved.storage_offset() == x.storage_offset() and number == 3
    assert moved.device.type == again.device.type == device.ACTIVE.type and torch.equal(moved.cpu(), x)


@pytest.mark.gpu
def test_on_a_gpu_a_kernel_is_run_there_too():
    seen = []

    class Spy:
        fn = lab04.add_kernel.fn

        def __call__(self):
            raise AssertionError

        def __getitem__(self, grid):
            def launch(x, *rest, **constants):
                seen.append(x.device.type)
                lab04.add_kernel[grid](x, *rest, **constants)

            return launch

    assert grade("04.add_kernel", Mistake("", Spy(), "")).state == "pass"
    assert {"cpu", "cuda"} <= set(seen)


def test_a_verdict_that_is_remembered_keeps_no_memory():
    """The last check of lab 5 maps gigabytes: an exception's frames, or a patched function that somebody copied, held them."""
    wasteful = next(m for m in find("05.msda_fwd_kernel").mistakes if m.only)
    assert grade("05.msda_fwd_kernel", wasteful, seed=1).state == "fail"
    gc.collect()
    assert not [one for one in gc.get_objects() if type(one) is torch.Tensor and one.untyped_storage().nbytes() > 2**30]

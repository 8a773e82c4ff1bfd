"""Whatever an answer calls the key through, it is noticed; and the grader itself may use the key while an answer runs."""

import functools
import importlib
import sys
import threading
import types

import pytest

from checks.answers.carry import carried, solution_module
from checks.catalogue import LABS
from checks.core import watch
from checks.core.call import call
from checks.core.exercise import find, lab_exercises
from checks.core.grade import grade
from msda_core import device, machine, nn, reference
from solutions import lab01, lab04, lab10

SAYS = "which it is compared with. Write it yourself."
NAMES = [f"{lab}.{name}" for lab, one in LABS.items() for name in one.exercises]


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    monkeypatch.setenv("MSDA_PATIENCE", "20")


def rejected(name, answer):
    report = grade(name, answer, diagnose=False, progress=False)
    return report.state == "fail" and report.worst.message.endswith(SAYS), report.text()


def learners(text, **scope):
    """A function `f` as a learner's notebook holds it: in no file of ours."""
    exec(text, scope)
    return scope["f"]


class Covered:
    """Launches another kernel under its own name."""

    def __init__(self, kernel):
        self._kernel = kernel

    def __getitem__(self, grid):
        return self._kernel[grid]

    def __call__(self, *args, **kwargs):
        return self._kernel(*args, **kwargs)


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_is_no_answer(name):
    ok, text = rejected(name, find(name).reference)
    assert ok, text


@pytest.mark.parametrize("name", NAMES)
def test_calling_the_reference_is_no_answer(name):
    lab, function = name.split(".")
    solution = getattr(importlib.import_module(f"solutions.lab{lab}"), function)
    if hasattr(solution, "fn"):
        ok, text = rejected(name, solution)
        assert ok, text
    if hasattr(solution, "fn") and function != "corner":  # which no one launches: a kernel of ours calls it
        answer = Covered(solution)
    elif function == "MSDAFunction":
        answer = type("Mine", (), {"apply": staticmethod(lambda *args: find(name).reference(*args))})
    else:
        answer = learners("def f(*a, **k): return find(name).reference(*a, **k)", find=find, name=name)
    ok, text = rejected(name, answer)
    assert ok, text


WAYS = {
    "the exercise": "return find('01.bilinear_sample').run(find('01.bilinear_sample').reference, a)",
    "a partial": "return partial(find('01.bilinear_sample').reference, *a)()",
    "map": "return next(map(find('01.bilinear_sample').reference, *([x] for x in a)))",
    "reduce": "return reduce(lambda _, __: find('01.bilinear_sample').reference(*a), [1, 2])",
    "a copy of the solutions": "return solution_module('01', 'a_copy').bilinear_sample(*a)",
    "the machine": "out = []; machine.trace_calls(lambda: out.append(reference.bilinear_sample(*a))); return out[0]",
    "the machine, and no frame": "return machine.trace_calls(partial(reference.bilinear_sample, *a))",
    "the grader's own call": "return call(reference.bilinear_sample, a, watched=False).value",
    "a call inside the call": "call(int, ()); return reference.bilinear_sample(*a)",
    "a thread": """
    out = []
    thread = threading.Thread(target=partial(setattr_of, out, reference.bilinear_sample, a))
    thread.start(); thread.join()
    return out[0]""",
    "a module loaded again": "import importlib; importlib.reload(sys.modules['solutions.lab01']); return sys.modules['solutions.lab01'].bilinear_sample(*a)",
    "a module imported anew": "sys.modules.pop('solutions.lab01'); from solutions import lab01 as anew; import solutions.lab01; return sys.modules['solutions.lab01'].bilinear_sample(*a)",
    "a swallowed stop": """
    try:
        return reference.bilinear_sample(*a)
    except BaseException:
        return a[0][0, 0]""",
}


def setattr_of(out, function, args):
    out.append(function(*args))


@pytest.mark.parametrize("way", WAYS)
def test_every_way_there_is_noticed(way):
    known = dict(sys.modules)
    scope = dict(
        find=find, partial=functools.partial, reduce=functools.reduce, solution_module=solution_module, machine=machine,
        reference=reference, call=call, threading=threading, sys=sys, setattr_of=setattr_of,
    )  # fmt: skip
    try:
        ok, text = rejected("01.bilinear_sample", learners(f"def f(*a):\n    {WAYS[way].strip()}\n", **scope))
    finally:
        sys.modules["solutions.lab01"] = known["solutions.lab01"]
        sys.modules["solutions"].lab01 = known["solutions.lab01"]
    assert ok, text


class Subclass(nn.MSDeformAttn):
    pass


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("01.bilinear_sample", functools.partial(reference.bilinear_sample)),
        ("01.bilinear_sample", functools.cache(lab01.bilinear_sample)),
        ("01.bilinear_sample", types.MethodType(lambda self, *args: None, nn.MSDeformAttn)),
        ("10.MyMSDeformAttn", Subclass),
        ("10.MSDAFunction", lab10.MSDAFunction),
    ],
)
def test_a_cover_of_the_key_is_the_key(name, answer):
    own = isinstance(answer, types.MethodType)
    assert rejected(name, answer)[0] is not own


@pytest.mark.skipif(bool(device.NO_TRITON), reason="not run: needs Triton")
def test_a_kernel_that_calls_one_of_the_key_is_the_key(tmp_path, monkeypatch):
    (tmp_path / "my_kernels.py").write_text(
        "from msda_core.device import triton, tl\nfrom solutions import lab04\n\n\n"
        "@triton.jit\ndef add_kernel(x_ptr, y_ptr, out_ptr, N, BLOCK: tl.constexpr):\n"
        "    lab04.add_kernel(x_ptr, y_ptr, out_ptr, N, BLOCK)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    mine = importlib.import_module("my_kernels").add_kernel
    assert watch.key_of(mine) == "solutions.lab04.add_kernel"
    assert watch.key_of(device.triton.heuristics({})(lab04.add_kernel)) == "solutions.lab04.add_kernel"
    assert watch.key_of(solution_module("04", "a_copy_of_04").add_kernel) == ""


def test_the_grader_may_use_the_key_while_an_answer_runs():
    image = reference.torch.rand(3, 4, 2)
    outcome = call(functools.partial(reference.bilinear_sample, image, 1.2, 0.7), ())
    assert not outcome.reached and outcome.value.shape == (2,)
    outcome = call(lambda: reference.bilinear_sample(image, 1.2, 0.7), ())
    assert outcome.reached == "msda_core.reference.bilinear_sample"


def test_code_carried_forward_is_a_door():
    outcome = call(lambda: carried("01").to_pixels(0.5, 4), ())
    assert not outcome.reached and outcome.value == 1.5


def test_nothing_is_left_behind():
    before = {trap.function: trap.code for trap in watch._TRAPS.values()}
    finders, start = list(sys.meta_path), threading.Thread.start
    call(lambda: reference.bilinear_sample, ())
    assert all(function.__code__ is code for function, code in before.items())
    assert sys.meta_path == finders and threading.Thread.start is start and not watch._WATCHED
    assert reference.bilinear_sample(reference.torch.ones(2, 2, 1), 0.5, 0.5).item() == 1


def test_a_trap_fits_closures_methods_and_keyword_defaults():
    class Base:
        def twice(self, x, *, by=2):
            return by * x

    class Kind(Base):
        def twice(self, x, *, by=2):
            return super().twice(x, by=by) + hidden

    hidden = 1
    function = Kind.twice
    trap = watch._Trap(function)
    function.__code__, own = trap.trap, function.__code__
    try:
        assert Kind().twice(5) == 11 and Kind().twice(5, by=3) == 16
    finally:
        function.__code__ = own


@pytest.mark.parametrize(
    ("module", "key"),
    [
        ("solutions.lab01", True), ("msda_core.ops.api", True), ("msda_core.bench.probes", True),
        ("checks.labs.lab01.exercises", True), ("checks.ship.suite", True), ("checks.kernel.launches", True),
        ("msda_core.machine.run.guard", False), ("msda_core.figures.tiles", False), ("msda_core.device", False),
        ("checks.core.grade", False), ("checks.tests.test_grade", False), ("msda_core.tests.test_nn", False),
        ("checks.catalogue", False), ("learner_lab01", False), ("torch", False), (None, False),
    ],
)  # fmt: skip
def test_what_counts_as_the_key(module, key):
    assert watch.is_key(module) is key


def test_every_truth_of_the_course_is_in_the_key(lab):
    for exercise in lab_exercises(lab):
        assert watch.key_of(exercise.reference), f"{exercise.name} is compared with something that nobody watches"

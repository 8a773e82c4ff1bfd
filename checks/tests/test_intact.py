"""Whatever a call replaces of the grader is put back before anything is judged; its state is its own."""

import builtins
import dataclasses
import itertools
import math
import sys
import threading
import types

import pytest

from checks.core import compare, exercise, grade, intact, report, watch
from checks.core.call import call
from checks.core.exercise import find, lab_exercises
from msda_core import reference

lab_exercises("01")
_EXERCISE = find("01.to_pixels")

#: What an answer replaces → (its name as it is told, how the thing that was there is had).
REPLACED = {
    "a function": ("checks.core.compare.difference", lambda: compare.difference, lambda: setattr(compare, "difference", len)),
    "its code": (
        "checks.core.compare.difference",
        lambda: compare.difference.__code__,
        lambda: setattr(compare.difference, "__code__", (lambda: 0).__code__),
    ),
    "a constant": ("checks.core.compare.ROUNDINGS", lambda: compare.ROUNDINGS, lambda: setattr(compare, "ROUNDINGS", 1e30)),
    "a module": ("checks.core.grade.compare", lambda: grade.compare, lambda: setattr(grade, "compare", types)),
    "a method": ("checks.core.grade._Run._judge", lambda: grade._Run._judge, lambda: setattr(grade._Run, "_judge", len)),
    "a property": ("checks.core.report.Report.worst", lambda: vars(report.Report)["worst"], lambda: setattr(report.Report, "worst", None)),
    "a builtin": ("builtins.abs", lambda: builtins.abs, lambda: setattr(builtins, "abs", lambda x: 0)),
    "a library's function": ("math.isnan", lambda: math.isnan, lambda: setattr(math, "isnan", bool)),
    "the truth": ("msda_core.reference.bilinear_sample", lambda: reference.bilinear_sample, lambda: setattr(reference, "bilinear_sample", len)),
    "what is deleted": ("checks.core.compare.same", lambda: compare.same, lambda: delattr(compare, "same")),
    "an exercise's cases": ("the exercise 01.to_pixels", lambda: _EXERCISE.cases, lambda: object.__setattr__(_EXERCISE, "cases", ())),
    "an exercise": (
        "checks.core.exercise._REGISTRY",
        lambda: find("01.to_pixels"),
        lambda: exercise._REGISTRY.update({"01.to_pixels": dataclasses.replace(_EXERCISE, cases=())}),
    ),
    "the registry": ("checks.core.exercise._REGISTRY", lambda: exercise._REGISTRY, lambda: setattr(exercise, "_REGISTRY", {})),
}  # fmt: skip


@pytest.mark.parametrize("what", REPLACED)
def test_what_a_call_replaces_is_put_back(monkeypatch, what):
    monkeypatch.setattr(intact, "_CHANGED", {})
    name, had, change = REPLACED[what]
    before = had()
    outcome = call(change, ())
    assert outcome.error is None and had() is before
    assert intact.changed() == [name]


def test_state_is_not_put_back(monkeypatch):
    monkeypatch.setattr(intact, "_CHANGED", {})
    monkeypatch.setattr(grade, "_LATEST", {})
    call(lambda: setattr(grade, "_LATEST", {"x": 1}), ())
    assert grade._LATEST == {"x": 1} and not intact.changed()


def test_what_was_replaced_before_the_call_stays(monkeypatch):
    monkeypatch.setattr(compare, "same", len)
    call(int, ())
    assert compare.same is len


def test_an_exercise_holds_no_list_that_could_be_emptied():
    for made in lab_exercises("01"):
        assert all(
            type(getattr(made, name)) is tuple for name in ("cases", "mistakes", "properties", "hints", "carries")
        )


@pytest.mark.parametrize("name", ["door", "lent"])
def test_no_answer_opens_a_door(name):
    space = {"watch": watch, "truth": _EXERCISE.reference}
    text = {"door": "watch.door(lambda: 0)", "lent": "watch.lent(truth).__enter__()"}[name]
    exec(f"def f():\n    return {text}\n", space)
    assert call(space["f"], ()).reached == f"checks.core.watch.{name}"


def test_a_thread_that_a_call_left_is_watched_in_the_next():
    space = {"truth": _EXERCISE.reference}
    exec(
        "import queue, threading\nasked, told = queue.Queue(), queue.Queue()\n"
        "def serve():\n    while (args := asked.get()) is not None: told.put(truth(*args))\n"
        "def start():\n    threading.Thread(target=serve, daemon=True).start()\n"
        "def f(*args):\n    asked.put(args)\n    return told.get(timeout=0.5)\n",
        space,
    )
    call(space["start"], ())
    assert call(space["f"], (0.5, 4)).reached
    space["asked"].put(None)


def test_another_thread_may_change_modules_meanwhile():
    """A kernel is compiled beside its cases, which imports: what is copied is copied in one step."""
    stop = threading.Event()

    def busy():
        for n in itertools.count():
            if stop.is_set():
                return
            for owner in (types, compare, intact.Snapshot):
                setattr(owner, f"_busy_{n % 50}", n)
            for owner in (types, compare, intact.Snapshot):
                delattr(owner, f"_busy_{n % 50}")

    thread = threading.Thread(target=busy)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread.start()
    try:
        for _ in range(60):
            intact.Snapshot._known = (0, [])  # as after an import
            intact.Snapshot().restore()
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(before)

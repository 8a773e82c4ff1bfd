"""Runs an exercise against an answer: five states, and a diagnosis where the answer is wrong.

todo      the stub, untouched
pass      every check that could run here holds
fail      a check does not hold
crash     the answer raised, ran out of time, or cannot be called
not_run   nothing could be checked here, with the reason
"""

import contextlib
import functools
import os
import re
import time
from collections.abc import Callable
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import FunctionType
from typing import Any

from checks.core import compare, watch
from checks.core.call import Outcome, call, chain, neutral
from checks.core.diagnose import FIXED_SEED, Diagnosis, Finding
from checks.core.exercise import Draw, Exercise, Failed, Mistake, NotRun, Property, find, lab_exercises, provided
from checks.core.report import Check, Report
from msda_core import device

__all__ = ["grade", "latest"]

REACHED = "the answer calls {}, which it is compared with. Write it yourself."
_LATEST: dict[str, tuple[Any, Report]] = {}


def grade(
    name: str, answer: Any = None, *, seed: int | None = None, diagnose: bool = True, progress: bool = True
) -> Report:
    """Grade one answer. Never raises because of what the answer does.

    Args:
        name: the exercise, "01.to_pixels".
        answer: the learner's function or kernel, or a lambda without arguments that returns it (so that a name which is
            not there can be told from a name that is wrong). A `Mistake` is graded like any answer, except that it may
            lean on the reference.
        seed: replay the draws of this seed; a fresh one if not given.
        diagnose: compare a wrong answer with the known mistakes.
        progress: show a bar in a notebook when it takes longer than a second.

    Returns:
        A `Report`, which a notebook draws as a panel.

    Raises:
        ValueError: there is no such exercise.
    """
    exercise = find(name)
    answer, missing = _resolve(answer)
    started = time.perf_counter()
    try:
        with neutral():
            report = _graded(exercise, answer, missing, _fresh_seed() if seed is None else seed, diagnose, progress)
    except Exception as error:  # whatever it is, the notebook goes on
        message = (
            f"the grader itself stopped ({type(error).__name__}: {error}). Something in this session stands in its way: "
            "restart the kernel, and grade once more."
        )
        report = Report(exercise, "crash", [Check("judged", "the answer can be judged", "crash", message)])
    report.seconds = time.perf_counter() - started
    _LATEST[name] = (answer, report)
    return report


def _graded(exercise: Exercise, answer: Any, missing: str, seed: int, diagnose: bool, progress: bool) -> Report:
    crash = lambda message: Report(  # noqa: E731
        exercise, "crash", [Check("defined", "the function is there", "crash", message)]
    )
    if missing:
        return crash(missing)
    if type(answer) is not Mistake and not callable(answer) and _attribute(answer, "run") is None:
        return crash(f"`{exercise.function}` is {compare.describe(answer)}, not a function.")
    theirs = watch.key_of(answer) if type(answer) is not Mistake else ""
    if theirs:
        return Report(exercise, "fail", [Check("own", "the answer is your own", "fail", REACHED.format(theirs))])
    if exercise.guarded and device.NO_TRITON:
        return Report(exercise, "not_run", [Check("triton", "kernels can run here", "not_run", device.NO_TRITON)])
    judge_carried = provided("carried")
    if judge_carried is not None:
        judge_carried(exercise)
    return _Run(exercise, answer, seed, progress).report(diagnose)


def _attribute(thing: Any, name: str) -> Any:
    """An attribute, or None, also where asking for it raises."""
    try:
        return getattr(thing, name, None)
    except Exception:
        return None


def latest(name: str, answer: Any) -> Report:
    """The last report on this very answer, or a new one: lets a closing cell count without checking everything twice."""
    resolved, missing = _resolve(answer)
    known = _LATEST.get(name)
    if not missing and known is not None and known[0] is resolved:
        return known[1]
    return grade(name, answer)


def _fresh_seed() -> int:
    return int.from_bytes(os.urandom(3), "big")


def _resolve(answer: Any) -> tuple[Any, str]:
    """Unfold a `lambda: name` from a notebook; a NameError becomes a sentence."""
    code = answer.__code__ if type(answer) is FunctionType else None
    takes_nothing = code is not None and not code.co_argcount and not code.co_flags & (CO_VARARGS | CO_VARKEYWORDS)
    if not takes_nothing or answer.__name__ != "<lambda>":
        return answer, ""
    try:
        return answer(), ""
    except NameError as error:
        lost = getattr(error, "name", None) or str(error)
        return None, (
            f"There is no `{lost}` in this notebook. Was its cell deleted or renamed, or does an error show under it "
            "(a syntax error, or a name that another cell already defines)? "
            "`python -m checks reset` brings the stub back, and keeps a copy of your file."
        )


class _Run:
    """One answer meeting one exercise.

    A mistake of the exercise's own, on the fixed seed, runs until it is told from all others, and only where it has not
    run before (`afresh`: everywhere).
    """

    def __init__(self, exercise: Exercise, answer: Any, seed: int, progress: bool, afresh: bool = False):
        self.exercise, self.seed = exercise, seed
        self.mistake = answer if isinstance(answer, Mistake) else None
        self.watched = self.mistake is None
        self.answer = answer if self.watched else answer.answer
        own = self.mistake and any(answer is one for one in exercise.mistakes)
        self._known = self.mistake if own and seed == FIXED_SEED and not afresh else None
        self.printed = ""
        self.diagnosis = Diagnosis(exercise, self.answer, self._try)
        self._launches: list = []
        self._not_its_work = ""  # what says that no kernel of the answer's wrote what it returned
        self._compilation: Any = None
        self._bar = _Bar(exercise.name, len(exercise.cases) + len(exercise.properties)) if progress else None

    def report(self, diagnose: bool) -> Report:
        exercise, checks = self.exercise, []
        items: list[Any] = [*exercise.cases, *exercise.properties]
        with self._bar or contextlib.nullcontext():
            for item in items:
                check = self._property(item) if isinstance(item, Property) else self._case(item)
                checks.append(check)
                if self._bar:
                    self._bar.step()
                if check.status == "todo":
                    return Report(exercise, "todo", checks[:1])
                if check.fatal or diagnose and self._known and self.diagnosis.settled(self._known):
                    break
            if self._known and not self.diagnosis.failing:  # what its launches compile to, and write, is not remembered
                return _Run(exercise, self._known, self.seed, False, afresh=True).report(diagnose)
            if self._compilation is None and self._launches and not self.diagnosis.failing:
                self._compilation = provided("kernels").Compilation(self._launches)
            if self._compilation is not None and not checks[-1].fatal:
                checks.append(self._compiles())
            if exercise.launches and not self.diagnosis.failing and not checks[-1].fatal:
                status = "fail" if self._not_its_work else "pass"
                checks.append(Check("written", "a kernel of yours writes what is returned", status, self._not_its_work))
            state = _overall(checks)
            found = self.diagnosis.find(state) if diagnose and state in ("fail", "crash") else Finding()
            score = self._score() if state == "pass" else None
        advice = self._unfinished() if state in ("fail", "crash") and self.watched else ""
        return Report(
            exercise,
            state,
            checks,
            mistake=found.mistake,
            lead=found.lead,
            where=found.where,
            differs=found.differs,
            printed=self.printed,
            score=score,
            advice=advice,
        )

    def _unfinished(self) -> str:
        """A word about another answer of this lab that this one calls and that does not pass: mend that first."""
        function = getattr(self.answer, "fn", self.answer)
        scope, lost = getattr(function, "__globals__", {}), []
        for other in lab_exercises(self.exercise.lab):
            helper = scope.get(other.function)
            if other is self.exercise or helper is None or other.function not in _names(function):
                continue
            known = _LATEST.get(other.name)
            report = known[1] if known and known[0] is helper else None
            report = report or grade(other.name, helper, diagnose=False, progress=False)
            if report.state not in ("pass", "not_run"):
                lost.append(f"`{other.function}`")
        return f"It calls your {' and '.join(lost)}, which does not pass yet: mend that first." if lost else ""

    def _compiles(self) -> Check:
        verdict = lambda status, message="": Check("compiles", "a GPU's compiler accepts it", status, message)  # noqa: E731
        try:
            error = self._compilation.result()
        except TimeoutError as late:
            return verdict("not_run", str(late))
        if error is None:
            return verdict("pass")
        found = provided("kernels").finding(error)
        return verdict("fail", found[1]) if found and found[0] == "fail" else verdict("not_run", str(error))

    def _call(self, answer: Any, args: tuple, watched: bool, guarded: bool = True) -> Outcome:
        exercise = self.exercise
        work = None
        if exercise.launches and guarded and answer is self.answer:
            work = provided("kernels").work_of(_argument_names(exercise, len(args)))
        run = lambda *copies: exercise.run(answer, copies)  # noqa: E731
        around = self._around(answer, work) if guarded else contextlib.nullcontext
        outcome = call(
            run if work is None else lambda *copies: work.run(lambda: run(*copies), copies),
            args,
            answer=answer,
            limit=exercise.seconds,
            forbid=exercise.forbid if watched else {},
            autograd=exercise.autograd or not watched,
            around=around,
            watched=watched,
        )
        if work is not None and outcome.error is None:
            self._not_its_work = self._not_its_work or work.missing
        outcome.value = compare.plain(outcome.value)
        return outcome

    def _around(self, answer: Any, work: Any = None) -> Callable[[], contextlib.AbstractContextManager]:
        """What a call runs in: for kernels, the guard; the launches of the answer are noted for the compiler."""
        if not self.exercise.guarded:
            return contextlib.nullcontext
        return lambda: provided("kernels").guarded(self._launches if answer is self.answer else None, work)

    def _case(self, case: Callable) -> Check:
        # A known mistake that is caught already is only observed further, on draws whose outcomes are remembered.
        seeds = (FIXED_SEED, self.seed) if self.watched or not self.diagnosis.failing else (FIXED_SEED,)
        for seed in dict.fromkeys(seeds):
            draw = Draw(seed)
            args = case(draw)
            outcome = self.diagnosis.recall(self._known, case, seed) if self._known else None
            outcome = outcome or self._call(self.answer, args, self.watched)
            seen = self.diagnosis.note(case, draw, outcome, self.mistake)
            if outcome.printed and not self.printed:
                self.printed = outcome.printed
            check = self._judge(case, seed, args, outcome)
            seen.state = check.status
            # A learner's kernel is compiled beside its cases; a known mistake only if nothing else gives it away.
            if self.watched and self._compilation is None and outcome.error is None and self._launches:
                self._compilation = provided("kernels").Compilation(self._launches)
            if check.status == "pass" and self.exercise.guarded and not device.INTERPRETED:
                # Safe and right on paper; now the same on the GPU.
                args = provided("kernels").on_device(args)
                check = self._judge(case, seed, args, self._call(self.answer, args, self.watched, guarded=False))
                seen.state = check.status
            if check.status != "pass":
                return check
        return check

    def _judge(self, case: Callable, seed: int, args: tuple, outcome: Outcome) -> Check:
        exercise = self.exercise
        verdict = lambda status, message="", fatal=False, picture=None: Check(  # noqa: E731
            case.__name__,
            _title(case),
            status,
            message,
            seed if status not in ("pass", "todo") else None,
            fatal,
            picture,
        )
        stopped = _stopped(outcome)
        if stopped:
            return verdict(*stopped, True)
        if outcome.error is not None:
            if isinstance(outcome.error, Failed):  # what the launcher beside the answer found
                return verdict("fail", str(outcome.error), picture=outcome.error.picture)
            return verdict(*self._raised(outcome))
        if outcome.changed:
            names = _argument_names(exercise, len(args))
            changed = " and ".join(f"`{names[i]}`" for i in outcome.changed)
            return verdict("fail", f"the call changed its input {changed}. Work on a copy.")
        truth = exercise.reference(*compare.in_float64(args))
        like = exercise.reference(*args)
        message = compare.difference(outcome.value, truth, like, exercise.axes, exercise.parts)
        if not message:
            return verdict("pass")
        draw = exercise.picture
        return verdict("fail", message, picture=draw and functools.partial(draw, args, outcome.value, truth))

    def _property(self, item) -> Check:
        draw = Draw(self.seed)
        outcome = self._check(self.answer, item, draw, self.watched)
        seen = self.diagnosis.note(item, draw, outcome, self.mistake)
        verdict = lambda status, message="", picture=None: Check(  # noqa: E731
            item.name, item.title, status, message, self.seed, picture=picture
        )
        stopped = _stopped(outcome)
        if stopped:
            check = verdict(*stopped)
        elif isinstance(outcome.error, Failed):
            check = verdict("fail", str(outcome.error), outcome.error.picture)
        elif isinstance(outcome.error, NotRun):
            check = verdict("not_run", str(outcome.error))
        elif outcome.error is not None:
            check = verdict(*self._raised(outcome))
        else:
            check = verdict("pass", outcome.value or "")
        seen.state = check.status
        return check

    def _raised(self, outcome: Outcome) -> tuple[str, str]:
        """State and message of an answer that raised."""
        assert outcome.error is not None
        if _is_stub(outcome.error, self.exercise.name):
            return _unwritten(self.answer, self.exercise.name)
        return provided("kernels").finding(outcome.error) or ("crash", _crash_message(outcome))

    def _check(self, answer: Any, item: Any, draw: Draw, watched: bool) -> Outcome:
        """What an answer does in a property."""
        prepared = () if item.prepare is None else (item.prepare(),)
        return call(
            lambda: item.check(answer, draw, *prepared),
            (),
            answer=answer,
            limit=self.exercise.seconds,
            around=self._around(answer),
            watched=watched,
            autograd=self.exercise.autograd or not watched,
        )

    def _try(self, mistake: Mistake, item: Any, draw: Draw) -> Outcome:
        if isinstance(item, Property):
            return self._check(mistake.answer, item, draw, False)
        return self._call(mistake.answer, item(draw), False)

    def _score(self) -> str | None:
        """The open-ended figure of an answer that passes; None where it has none, or ends badly."""
        score = self.exercise.score
        if score is None:
            return None
        outcome = call(
            lambda: score(self.answer), (), answer=self.answer, limit=2 * self.exercise.seconds, watched=False
        )
        return outcome.value if isinstance(outcome.value, str) else None


def _stopped(outcome: Outcome) -> tuple[str, str] | None:
    """State and message of a call that was ended: it ran out of time, or did what an answer may not."""
    if outcome.timeout is not None:
        return "crash", outcome.ended or f"stopped after {outcome.timeout:g} s. Is there a loop that never ends?"
    if outcome.reached:
        return "fail", REACHED.format(outcome.reached)
    if outcome.forbidden:
        return "fail", f"the answer calls {outcome.forbidden}"
    return None


def _names(function: Any) -> set[str]:
    """The names a function mentions, those of functions inside it included."""
    code = getattr(function, "__code__", None)
    if code is None:
        return set()
    inner = (constant for constant in code.co_consts if hasattr(constant, "co_names"))
    return set(code.co_names).union(*(one.co_names for one in inner))


def _overall(checks: list[Check]) -> str:
    states = [check.status for check in checks]
    for state in ("crash", "fail"):
        if state in states:
            return state
    return "pass" if "pass" in states else "not_run"


def _is_stub(error: BaseException, name: str) -> bool:
    """The stub raises NotImplementedError("01.to_pixels"), or in a kernel tl.static_assert(False, "04.add_kernel")."""
    return any(
        name in str(one) and (isinstance(one, (NotImplementedError, AssertionError)) or "static_assert" in repr(one))
        for one in chain(error)
    )


def _unwritten(answer: Any, name: str) -> tuple[str, str]:
    """The state and message of an answer that ended in its stub: to do, unless there is code beside the stub's line."""
    line = provided("kernels").beside_stub(answer, name)
    if not line:
        return "todo", "Not written yet."
    return "crash", f"there is code here, but the stub's line `{line}` is still there as well: delete it."


def _crash_message(outcome: Outcome) -> str:
    assert outcome.error is not None
    inner = outcome.error.__cause__ or outcome.error
    text = str(inner).strip() or "no message"
    if isinstance(inner, (NotImplementedError, AssertionError)) and re.fullmatch(r"\d\d\.\w+", text):
        return f"it calls `{text.split('.')[1]}`, which is not written yet."
    if text == "'function' object is not subscriptable":
        text += ". A kernel is launched as kernel[grid](…): is `@triton.jit` missing above it?"
    at = f"{outcome.line} raised " if outcome.line else "raised "
    return f"{at}{type(inner).__name__}: {text}"


def _title(case: Callable) -> str:
    doc = (case.__doc__ or case.__name__.replace("_", " ")).strip()
    return doc.splitlines()[0]


def _argument_names(exercise: Exercise, count: int) -> list[str]:
    code = getattr(exercise.reference, "__code__", None)
    names = list(code.co_varnames[: code.co_argcount]) if code else []
    return names if len(names) >= count else [f"argument {i + 1}" for i in range(count)]


class _Bar:
    """A progress bar in a notebook, once the checks have taken a second."""

    def __init__(self, name: str, total: int):
        self._name, self._total, self._done, self._bar, self._open = name, total, 0, None, None
        self._started = time.perf_counter()

    def __enter__(self):
        return self

    def step(self) -> None:
        self._done += 1
        if self._open is None and time.perf_counter() - self._started > 1 and self._done < self._total:
            self._bar = _notebook_bar(self._name, self._total)
            if self._bar is not None:
                self._open = self._bar.__enter__()
                self._open.update(increment=self._done)
        elif self._open is not None:
            self._open.update()

    def __exit__(self, *exc):
        if self._bar is not None:
            self._bar.__exit__(*exc)


def _notebook_bar(name: str, total: int):
    try:
        import marimo
    except ImportError:
        return None
    if not marimo.running_in_notebook():
        return None
    return marimo.status.progress_bar(total=total, title=f"Checking {name}", remove_on_exit=True)

"""Says what is known about a wrong answer: a known mistake as its cause, or else what differs.

A mistake is named as the cause only if it agrees with the answer in every case and property that ran: it fails where the
answer fails, with the same values or the same error at the same kind of place, and passes where the answer passes. Two
mistakes are named together where both at once do. Where none agrees, the verdict says what differs, read off the data,
and at most that one case looks like a mistake which fails nowhere that the answer is right.
"""

import ast
import linecache
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from checks.core import compare, differ
from checks.core.call import Outcome
from checks.core.exercise import Draw, Exercise, Mistake, Property, provided

__all__ = ["FIXED_SEED", "Diagnosis", "Finding", "Seen", "signature"]

FIXED_SEED = 1
PAIRS = 40  # pairs of mistakes that are tried, at most
VALUES = 3  # failing cases whose values are looked at, at most
#: What a mistake does in a check on the fixed seed: the same every time, so it is tried once. Keyed by their ids (a kernel's
#: hash would compile it), and holding both, so that no id is used twice.
#: With the seed, or None where nothing was drawn.
_KNOWN: dict[tuple[int, int, int | None], tuple[Outcome, Mistake, Any]] = {}
_PAIRS: dict[tuple[int, int], tuple[Mistake, Mistake, Mistake]] = {}


@dataclass(frozen=True)
class Finding:
    """What is known about a wrong answer.

    Attributes:
        mistake: the known mistake that agrees with it in all that ran.
        lead: one that explains only part of it, and fails nowhere that the answer is right.
        where: which part, as the beginning of a sentence.
        differs: sentences about how and where the answer differs from the truth.
    """

    mistake: Mistake | None = None
    lead: Mistake | None = None
    where: str = ""
    differs: str = ""


@dataclass
class Seen:
    """What an answer did in one case or property on one seed, and whether that held."""

    item: Any
    seed: int
    outcome: Outcome
    state: str = "pass"

    @property
    def name(self) -> str:
        """The check's name."""
        return self.item.name if self.is_property else self.item.__name__

    @property
    def is_property(self) -> bool:
        """Whether it is no comparison of outputs."""
        return isinstance(self.item, Property)

    @property
    def comparable(self) -> bool:
        """Whether a mistake can have done the same: it ended by itself, without help."""
        return self.outcome.timeout is None and not self.outcome.reached and not self.outcome.forbidden


class Diagnosis:
    """What a run of checks did, kept in order, and compared with what known mistakes do.

    Args:
        exercise: whose mistakes are tried.
        answer: the answer that runs.
        observe: observe(mistake, item, draw) → what a mistake does in one case or property.
    """

    def __init__(self, exercise: Exercise, answer: Any, observe: Callable[[Mistake, Any, Draw], Outcome]):
        self._exercise, self._answer, self._observe = exercise, answer, observe
        self.seen: list[Seen] = []
        self._behaviour: dict = {}  # what mistakes did on this run's own seed, as `_KNOWN` holds what they always do

    @property
    def failing(self) -> list[Seen]:
        """What did not hold, in order."""
        return [one for one in self.seen if one.state in ("fail", "crash")]

    def note(self, item: Any, draw: Draw, outcome: Outcome, mistake: Mistake | None = None) -> Seen:
        """Keep what the answer did; and if it is a known mistake, spare it the next time somebody is compared with it."""
        seen = Seen(item, draw.seed, outcome)
        self.seen.append(seen)
        if mistake is not None:
            self._remember(mistake, item, draw, outcome)
        return seen

    def _remember(self, mistake: Mistake, item: Any, draw: Draw, outcome: Outcome) -> tuple:
        """File what a mistake did: for good, if it will always be that, or else for this run."""
        kept = None if draw.untouched else draw.seed
        entry = (outcome, mistake, item)
        (_KNOWN if kept in (None, FIXED_SEED) else self._behaviour)[id(mistake), id(item), kept] = entry
        return entry

    def find(self, state: str) -> Finding:
        """What is known, once the checks have run.

        Args:
            state: of the answer as a whole; the first check in that state is the one that is shown.
        """
        shown = next((one for one in self.failing if one.state == state), None)
        if shown is None:
            return Finding()
        if not all(one.comparable for one in self.failing):
            return Finding(differs=self._differs(shown))
        slip = provided("kernels").slip(self._answer) if self._exercise.guarded else None
        if slip is not None:
            return Finding(slip)
        mistake = self._cause() or self._two_at_once()
        if mistake:
            return Finding(mistake)
        return Finding(None, *self._lead(shown), self._differs(shown))

    def settled(self, mistake: Mistake | None) -> bool:
        """Whether what this mistake has done so far tells it from every other: what is left to run can add nothing."""
        alone = {one.name for one in self.failing}
        if not alone or mistake is None or mistake.only or any({one.only} == alone for one in self._exercise.mistakes):
            return False
        others = (one for one in self._exercise.mistakes if one is not mistake and not one.only)
        return not any(all(self._agrees(one, True, seen) for seen in self.seen) for one in others)

    # --- recognising ----------------------------------------------------------------------------------------------

    def _cause(self) -> Mistake | None:
        """The mistake that agrees in all that ran: first to the element at which a kernel was stopped, then to the tensor.

        What fails is compared first, cases before properties: it tells mistakes apart soonest. Properties that hold,
        which may take a compiler, are tried last, with the one or two mistakes that are left.
        """
        failing = self.failing
        alone = {one.name for one in failing}
        only = [mistake for mistake in self._exercise.mistakes if {mistake.only} == alone]
        mistakes = only or [mistake for mistake in self._exercise.mistakes if not mistake.only]
        rest = [] if only else [one for one in self.seen if one.state == "pass"]
        order = sorted(failing, key=lambda one: one.is_property) + sorted(rest, key=lambda one: one.is_property)
        for exactly in (True, False):
            if not exactly and not self._telling(failing):
                continue
            for mistake in mistakes:
                if all(self._agrees(mistake, exactly, one) for one in order):
                    return mistake
        return None

    def _two_at_once(self) -> Mistake | None:
        """Two mistakes that change different places of the solution, where both at once agree in all that ran.

        Each of them alone must fail in some check in which the answer fails, and nowhere that the answer is right.
        """
        failing, right = self.failing, [one for one in self.seen if one.state == "pass" and not one.is_property]
        if not failing or self._exercise.guarded and len(self._exercise.mistakes) > PAIRS:
            return None
        part = [
            mistake
            for mistake in self._exercise.mistakes
            if isinstance(getattr(mistake, "change", None), Mapping)
            and not mistake.only
            and all(self._agrees(mistake, True, one) for one in right)
        ]
        tried = 0
        for one, other in combinations(part, 2):
            if one.home != other.home or set(one.change) & set(other.change):
                continue
            tried += 1
            if tried > PAIRS:
                break
            both = _together(one, other)
            held = (
                one for one in self.seen if one.state == "pass" and one.is_property
            )  # these may take a compiler: last
            if both is not None and all(self._agrees(both, True, seen) for seen in (*failing, *right, *held)):
                return both
        return None

    def _lead(self, shown: Seen) -> tuple[Mistake | None, str]:
        """A mistake that explains part of what is wrong, and is right wherever the answer is; and which part, in words.

        The part is all that returned something, where an edge case raised besides; or the case that is shown, and with it
        more than half of what fails: a case that looks alike by chance is no lead.
        """
        right = [one for one in self.seen if one.state == "pass"]
        right.sort(key=lambda one: one.is_property)  # these may take a compiler: last
        returned = [one for one in self.failing if one.outcome.error is None]
        parts = [(returned, "Where it returns a value, your answer is what you get")] if returned else []
        if not self._stopped(shown.outcome):
            parts.append(([shown], "In this one case it looks like what you get"))
        for part, where in parts:
            for mistake in self._exercise.mistakes:
                if mistake.only and mistake.only != shown.name:
                    continue
                if not all(self._agrees(mistake, True, one) for one in (*part, *right)):
                    continue
                if 2 * sum(self._agrees(mistake, True, one) for one in self.failing) > len(self.failing):
                    return mistake, where
        return None, ""

    def _agrees(self, mistake: Mistake, exactly: bool, seen: Seen) -> bool:
        other = self._outcome(mistake, seen)
        outcome = seen.outcome
        if other.timeout is not None or other.reached or (outcome.error is None) != (other.error is None):
            return False
        if outcome.error is not None and other.error is not None:
            return signature(outcome.error, exactly) == signature(other.error, exactly)
        if seen.is_property:  # what it returns is a note, such as a count
            return True
        return outcome.changed == other.changed and compare.same(outcome.value, other.value)

    def recall(self, mistake: Mistake | None, item: Any, seed: int) -> Outcome | None:
        """What a mistake did in a check, if it ran there."""
        for known in (_KNOWN, self._behaviour):
            for kept in (None, seed):
                if (id(mistake), id(item), kept) in known:
                    return known[id(mistake), id(item), kept][0]
        return None

    def _outcome(self, mistake: Mistake, seen: Seen) -> Outcome:
        found = self.recall(mistake, seen.item, seen.seed)
        if found is None:
            draw = Draw(seen.seed)
            found = self._remember(mistake, seen.item, draw, self._observe(mistake, seen.item, draw))[0]
        return found

    def _telling(self, failing: list[Seen]) -> bool:
        """Whether something more is known of a kernel than that it was stopped somewhere near: what stopped it may be anything.

        Values that it returned, or a line without a mask, and that more than once.
        """
        if any(not self._stopped(one.outcome) for one in failing):
            return True
        return len(failing) > 1 and all(
            one.outcome.error and _masked(_inner(one.outcome.error)) is False for one in failing
        )

    @staticmethod
    def _stopped(outcome: Outcome) -> bool:
        return outcome.error is not None and isinstance(getattr(_inner(outcome.error), "tensor", None), str)

    # --- saying what differs --------------------------------------------------------------------------------------

    def _differs(self, shown: Seen) -> str:
        exercise, said = self._exercise, []
        values = [one for one in self.failing if not one.is_property and one.outcome.error is None and one.comparable]
        values = [one for one in values if not one.outcome.changed][:VALUES]
        if shown in values:
            results = {id(one): self._result(one) for one in values}
            args, yours, truth, like = results[id(shown)]
            regions = exercise.regions(*args) if exercise.regions else None
            said.append(differ.place(yours, truth, like, exercise.axes, exercise.parts, regions))
            said.append(differ.relation([one[1:] for one in results.values()], exercise.axes, exercise.parts))
        states: dict[str, bool] = {}
        for one in self.seen:
            states[one.name] = states.get(one.name, True) and one.state == "pass"
        said.append(differ.spread(list(states.items())))
        return " ".join(one for one in said if one)

    def _result(self, seen: Seen) -> tuple:
        args = seen.item(Draw(seen.seed))
        truth = self._exercise.reference(*compare.in_float64(args))
        return args, seen.outcome.value, truth, self._exercise.reference(*args)


def _together(one: Mistake, other: Mistake) -> Mistake | None:
    """Both mistakes at once, as one; None where the two changes do not make a function."""
    key = (id(one), id(other))
    if key not in _PAIRS:
        name = f"{one.name}, and besides {other.name}"
        both = replace(one, name=name, change={**one.change, **other.change}, hint=f"{one.hint} {other.hint}")
        try:
            both.answer  # noqa: B018
        except (SyntaxError, ValueError):
            return None
        _PAIRS[key] = (both, one, other)
    return _PAIRS[key][0]


def _inner(error: BaseException) -> BaseException:
    return error.__cause__ or error


def signature(error: BaseException, exactly: bool) -> Any:
    """What identifies an exception as the same mistake: a failure's key, a guarded access, else its type and what it says.

    Of a guarded access, whether its line has a mask counts too. Exactly: also the element at which the guard stopped the
    kernel, the program and the number of lanes.
    """
    inner: Any = _inner(error)
    key = getattr(inner, "key", None)
    if key is not None:
        return key
    if isinstance(getattr(inner, "tensor", None), str):
        where = (inner.offset, inner.lanes, inner.program) if exactly else ()
        return (type(inner).__name__, inner.tensor, inner.kind, _masked(inner), *where)
    if type(inner).__module__ != "builtins":
        return type(inner).__name__
    # Python and torch raise the same few types for everything: what they say, numbers aside, tells what went wrong.
    return (type(inner).__name__, re.sub(r"0x[0-9a-f]+|\d+", "#", str(inner)))


def _masked(error: Any) -> bool | None:
    """Whether the access that the guard stopped has a mask; None where that cannot be read off its line."""
    filename, number = getattr(error, "filename", ""), getattr(error, "lineno", 0)
    try:
        tree = ast.parse("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError):
        return None
    calls = [one for one in _accesses(tree) if one.lineno <= number <= (one.end_lineno or one.lineno)]
    found = {
        any(keyword.arg == "mask" for keyword in one.keywords) or len(one.args) > (1 if one.func.attr == "load" else 2)  # type: ignore[attr-defined]
        for one in calls
    }
    return found.pop() if len(found) == 1 else None


def _accesses(tree: ast.AST) -> Iterator[ast.Call]:
    for one in ast.walk(tree):
        if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute):
            if one.func.attr in ("load", "store") or one.func.attr.startswith("atomic_"):
                yield one

"""Recognises a wrong answer: which known mistake behaves as it did."""

import re
from collections.abc import Callable
from typing import Any

from checks.core import compare
from checks.core.call import Outcome
from checks.core.exercise import Draw, Exercise, Mistake
from checks.kernel import launches as kernels

__all__ = ["FIXED_SEED", "Diagnosis", "signature"]

FIXED_SEED = 1
#: What a mistake does in a check on the fixed seed: the same every time, so it is tried once. Keyed by their ids (a kernel's
#: hash would compile it), and holding both, so that no id is used twice.
#: With the seed, or None where nothing was drawn.
_KNOWN: dict[tuple[int, int, int | None], tuple[Outcome, Mistake, Any]] = {}


class Diagnosis:
    """What a run of checks did, kept in order, and compared with what known mistakes do.

    Args:
        exercise: whose mistakes are tried.
        answer: the answer that runs.
        observe: observe(mistake, item, draw) → what a mistake does in one case or property.
    """

    def __init__(self, exercise: Exercise, answer: Any, observe: Callable[[Mistake, Any, Draw], Outcome]):
        self._exercise, self._answer, self._observe = exercise, answer, observe
        self.outcomes: list[tuple[Any, int, Outcome]] = []  # in order
        self.failing: list[tuple[Any, int, Outcome]] = []  # those that did not hold
        self._behaviour: dict = {}  # what mistakes did on this run's own seed, as `_KNOWN` holds what they always do

    def note(self, item: Any, draw: Draw, outcome: Outcome, mistake: Mistake | None = None) -> None:
        """Keep what the answer did; and if it is a known mistake, spare it the next time somebody is compared with it."""
        self.outcomes.append((item, draw.seed, outcome))
        if mistake is not None:
            self._remember(mistake, item, draw, outcome)

    def _remember(self, mistake: Mistake, item: Any, draw: Draw, outcome: Outcome) -> tuple:
        """File what a mistake did: for good, if it will always be that, or else for this run."""
        kept = None if draw.untouched else draw.seed
        entry = (outcome, mistake, item)
        (_KNOWN if kept in (None, FIXED_SEED) else self._behaviour)[id(mistake), id(item), kept] = entry
        return entry

    def recognise(self, shown: tuple | None) -> Mistake | None:
        """The known mistake that behaves as this answer did in every case that ran, and not as the reference does.

        First to the element at which a kernel was stopped, then to the tensor; and if no mistake explains everything,
        one that explains the failing check that is shown, or all that returned something wrong, is the best lead. What
        tells mistakes apart soonest is tried first; properties that hold, which may take a compiler, are not.
        """
        usable = lambda o: o.timeout is None and not o.reached and not o.forbidden  # noqa: E731
        failing = [one for one in self.failing if usable(one[2])]
        if not failing:
            return None
        slip = kernels.slip(self._answer) if self._exercise.guarded else None
        if slip is not None:
            return slip
        is_property = lambda one: hasattr(one[0], "check")  # noqa: E731
        known = {id(outcome) for _, _, outcome in failing}
        rest = [one for one in self.outcomes if usable(one[2]) and not is_property(one) and id(one[2]) not in known]
        everything = sorted(failing + rest, key=is_property)
        title = lambda one: one[0].name if is_property(one) else one[0].__name__  # noqa: E731
        # An edge case that raises need not hide what is wrong with all the others.
        returned = [one for one in failing if one[2].error is None and not is_property(one)]
        for picked in (everything, [one for one in failing if one is shown], returned):
            wrong = [one for one in picked if id(one[2]) in known]
            mistakes = [
                mistake for mistake in self._exercise.mistakes if {mistake.only} == {title(one) for one in wrong}
            ]
            if mistakes:  # right in all other checks, as the answer is
                picked = wrong
            else:
                mistakes = [mistake for mistake in self._exercise.mistakes if not mistake.only]
            for exactly in (True, False):
                for mistake in mistakes:
                    if picked and all(self._behaves(mistake, exactly, *one) for one in picked):
                        return mistake
        return None

    def _behaves(self, mistake: Mistake, exactly: bool, item: Any, seed: int, outcome: Outcome) -> bool:
        whose = (id(mistake), id(item))
        found = next(
            (
                known[key]
                for known in (_KNOWN, self._behaviour)
                for key in ((*whose, None), (*whose, seed))
                if key in known
            ),
            None,
        )
        if found is None:
            draw = Draw(seed)
            found = self._remember(mistake, item, draw, self._observe(mistake, item, draw))
        other = found[0]
        if other.timeout is not None or other.reached:
            return False
        if (outcome.error is None) != (other.error is None):
            return False
        if outcome.error is not None:
            return signature(outcome.error, exactly) == signature(other.error, exactly)
        return outcome.changed == other.changed and compare.same(outcome.value, other.value)


def signature(error: BaseException, exactly: bool) -> Any:
    """What identifies an exception as the same mistake: a failure's key, a guarded access, else its type and what it says.

    Exactly: also the element at which the guard stopped the kernel, the program and the number of lanes.
    """
    inner = error.__cause__ or error
    key = getattr(inner, "key", None)
    if key is not None:
        return key
    if isinstance(getattr(inner, "tensor", None), str):
        where = (inner.offset, inner.lanes, inner.program) if exactly else ()
        return (type(inner).__name__, inner.tensor, inner.kind, *where)
    if type(inner).__module__ != "builtins":
        return type(inner).__name__
    # Python and torch raise the same few types for everything: what they say, numbers aside, tells what went wrong.
    return (type(inner).__name__, re.sub(r"0x[0-9a-f]+|\d+", "#", str(inner)))

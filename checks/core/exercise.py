"""What an exercise is: cases, reference, mistakes, hints, and the limits it runs under.

An exercise is declared once, in `checks/labs/labNN/exercises.py`, by calling `exercise(...)`. A *case* is a function that draws the
arguments of one call; its name is the check's name and its docstring says, in the learner's words, what must hold. A
*mistake* is a wrong answer kept beside the right one: the grader compares a failing answer with each of them, and the
tests demand that each is rejected and recognised.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from checks.catalogue import LABS, declarations, lab_number
from checks.core.places import variant
from msda_core import device

__all__ = ["Draw", "Exercise", "Failed", "Mistake", "NotRun", "Property", "exercise", "find", "lab_exercises"]

device.settle()  # the kernels of learners, and the children that grade, import Triton plainly

#: Seconds more for a call on a GPU, where Triton compiles each kernel for each combination of its constants.
COMPILING = 30.0


class Draw:
    """Random numbers for one case: the same seed draws the same case, on every machine."""

    def __init__(self, seed: int):
        self.seed = seed
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Standard normal numbers."""
        return torch.randn(shape, generator=self._generator, dtype=torch.float64).to(dtype)

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0, dtype: torch.dtype = torch.float32) -> Tensor:
        """Numbers in [low, high)."""
        return (low + (high - low) * torch.rand(shape, generator=self._generator, dtype=torch.float64)).to(dtype)

    def number(self, low: float, high: float) -> float:
        """One Python float in [low, high)."""
        return low + (high - low) * torch.rand((), generator=self._generator, dtype=torch.float64).item()

    def integer(self, low: int, high: int) -> int:
        """One Python int in [low, high], both included."""
        return int(torch.randint(low, high + 1, (), generator=self._generator))

    def integers(self, *shape: int, low: int, high: int, dtype: torch.dtype = torch.int64) -> Tensor:
        """Integers from low to high, both included."""
        return torch.randint(low, high + 1, shape, generator=self._generator, dtype=dtype)

    def permutation(self, n: int) -> Tensor:
        """0 to n - 1 in some order, int64."""
        return torch.randperm(n, generator=self._generator)

    @property
    def untouched(self) -> bool:
        """Whether nothing was drawn yet: whatever it was given to does not depend on the seed."""
        return torch.equal(self._generator.get_state(), Draw(self.seed)._generator.get_state())


@dataclass(frozen=True)
class Mistake:
    """A wrong answer, and what to ask the learner who gives it.

    Args:
        name: completes "Your answer is what you get …", as in "when x and y are swapped".
        change: what is different from a right answer: place → text, for the tagged places of the solution (see
            `checks.core.places`); or code of its own, a drop-in for the learner's answer.
        hint: a question or a fact that leads on; never the code.
        only: the property that alone it fails, being right in every other check: an answer is compared with it where that
            property fails and nothing else, and by that property. Where one such mistake is told, tell all of that property.
        home: "module:function", whose places `change` names; the solution's function if not given.
    """

    name: str
    change: Any
    hint: str
    only: str = ""
    home: str = ""

    @cached_property
    def answer(self) -> Any:
        """The wrong answer itself, built when it is first asked for."""
        if not isinstance(self.change, Mapping):
            return self.change
        module, _, function = self.home.partition(":")
        return variant(module, function, self.change)


class Failed(Exception):
    """Raised by a property that does not hold.

    `key` identifies the way it failed, for recognising mistakes; `picture` draws it, when a notebook asks.
    """

    def __init__(self, message: str, key: Any = None, picture: Callable[[], Any] | None = None):
        super().__init__(message)
        self.key = key if key is not None else message
        self.picture = picture


class NotRun(Exception):
    """Raised by a property that cannot be checked here; the message is the reason."""


@dataclass(frozen=True)
class Property:
    """A check that is not a comparison of outputs: traffic, instructions, times.

    Args:
        name: the check's name, an identifier.
        title: what must hold, in the learner's words.
        check: called as check(answer, draw); returns nothing or a note for the learner; raises `Failed` or `NotRun`.
        prepare: called first, where the reference may be used, which no answer may; its result is check's third argument.
    """

    name: str
    title: str
    check: Callable[..., str | None]
    prepare: Callable[[], Any] | None = None


@dataclass(frozen=True)
class Exercise:
    """One function the learner writes. See `exercise` for the fields."""

    name: str
    reference: Callable
    cases: Sequence[Callable[[Draw], tuple]]
    mistakes: Sequence[Mistake] = ()
    properties: Sequence[Property] = ()
    hints: Sequence[str] = ()
    axes: Sequence[str] | Mapping[str, Sequence[str]] = ()
    parts: Sequence[str] = ()
    invoke: Callable | None = None
    forbid: Mapping[str, str] = field(default_factory=dict)
    autograd: bool = True
    limit: float = 3.0
    guarded: bool = False
    launches: bool = False
    carries: Sequence[str] = ()
    stretch: bool = False
    score: Callable[[Any], str] | None = None
    picture: Callable[[tuple, Any, Any], Any] | None = None
    regions: Callable[..., Mapping[str, Tensor]] | None = None

    @property
    def lab(self) -> str:
        """The lab's number, "01"."""
        return self.name.split(".")[0]

    @property
    def function(self) -> str:
        """The name of the function or kernel to write."""
        return self.name.split(".")[1]

    @property
    def seconds(self) -> float:
        """How long one call may take here: where kernels are not interpreted, they are compiled first."""
        return self.limit + (COMPILING if self.guarded and not device.INTERPRETED else 0.0)

    def run(self, answer: Any, args: tuple) -> Any:
        """Call an answer as this exercise calls it."""
        return answer(*args) if self.invoke is None else self.invoke(answer, *args)


_REGISTRY: dict[str, Exercise] = {}
_PARTS: dict[str, Any] = {}


def provide(**parts: Any) -> None:
    """What rooms above the core give it, so that it need not import them.

    Args:
        kernels: the kernel side of the grader: guarded, finding, Compilation, on_device, slip, beside_stub and work_of, as
            `checks.kernel.launches` has them.
        carried: carried(exercise) → None, called before an answer is graded that may call functions of earlier labs.
    """
    _PARTS.update(parts)


def provided(part: str) -> Any:
    """A part by its name; None where its room is not loaded, so that nothing here can need it."""
    return _PARTS.get(part)


def exercise(name: str, **fields: Any) -> Exercise:
    """Declare an exercise.

    Args:
        name: "NN.function", the contract between labs, solutions and checks.
        reference: what correct means; called with the case's arguments in float64.
        cases: functions of a `Draw` that return the arguments of one call.
        mistakes: wrong answers, each rejected and named.
        properties: checks beyond equality of outputs.
        hints: three steps: a question, an idea, a sketch.
        axes: names of the output's axes, for messages ("channel 3"); part → names, where an output has several parts.
        parts: names of the parts of an output that is a tuple.
        invoke: invoke(answer, *args) where the answer is not simply called (a kernel and its launcher).
        forbid: torch functions the answer may not use → why.
        autograd: False switches automatic differentiation off inside the answer, and reports an attempt to use it.
        limit: seconds one call may take, in the interpreter.
        guarded: run under `msda_core.machine.guard`; the answer launches kernels.
        launches: the answer is a launcher: a kernel of its own must be given the inputs and write what it returns.
        carries: earlier exercises whose functions the answer may call, "01.to_pixels".
        stretch: an extra that does not count for the lab.
        score: score(answer) → an open-ended figure, shown once the exercise passes.
        picture: picture(args, yours, truth) draws a wrong result beside the right one, or gives None.
        regions: regions(*args) → parts of the output that behave alike: words that complete "wrong only where …" →
            booleans that broadcast to the output.

    Raises:
        ValueError: the name is taken or not in the catalogue, or hints are not three.
    """
    lab, _, function = name.partition(".")
    home = f"solutions.lab{lab}:{function}"
    fields["mistakes"] = tuple(one if one.home else replace(one, home=home) for one in fields.get("mistakes", ()))
    # Not lists: an answer could empty them.
    fields |= {key: tuple(fields.get(key, ())) for key in ("cases", "properties", "hints", "carries")}
    made = Exercise(name, **fields)
    if made.lab not in LABS or made.function not in LABS[made.lab].exercises:
        raise ValueError(f"exercise {name!r} is not in checks/catalogue.py: give it its place there first.")
    if name in _REGISTRY:
        raise ValueError(f"exercise {name!r} is declared twice.")
    if len(made.hints) != 3:
        raise ValueError(f"exercise {name!r} needs three hints (a question, an idea, a sketch), got {len(made.hints)}.")
    _REGISTRY[name] = made
    return made


def lab_exercises(lab: str) -> list[Exercise]:
    """The exercises of a lab, in the order of the catalogue; [] for a lab that has none yet.

    Raises:
        ValueError: there is no such lab, or the catalogue names an exercise that is not declared.
    """
    lab = lab_number(lab)
    if LABS[lab].exercises:
        importlib.import_module(declarations(lab))
    missing = [name for name in LABS[lab].exercises if f"{lab}.{name}" not in _REGISTRY]
    if missing:
        raise ValueError(f"the catalogue names {lab}.{missing[0]}, which {declarations(lab)} does not declare.")
    return [_REGISTRY[f"{lab}.{name}"] for name in LABS[lab].exercises]


def find(name: str) -> Exercise:
    """The exercise called "NN.function".

    Raises:
        ValueError: there is none; the message lists those of that lab.
    """
    lab, _, function = name.partition(".")
    known = LABS[lab_number(lab)].exercises
    if function not in known:
        listed = ", ".join(f"{lab}.{one}" for one in known)
        raise ValueError(f"there is no exercise {name!r}. Lab {lab} has {listed or 'none yet'}.")
    return next(made for made in lab_exercises(lab) if made.function == function)

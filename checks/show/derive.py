"""Derivations led step by step: the learner types one line, and the line is checked as an identity.

A step shows a small expression and asks for its derivative. The expressions are polynomials of degree two at most in the
variable they are differentiated by, for which a central difference is no approximation. So the truth is a central
difference in exact fractions, and the learner's line is compared with it at several random points: a symbolic check
without a symbolic engine (two polynomials that agree at random points are the same), and nobody has to keep an answer.
"""

import ast
import html
import operator
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from checks.core.panel import STATES, code_html, frame

__all__ = ["BadLine", "Judgement", "Step", "answer", "ask", "evaluate", "find_step", "step"]

POINTS = 8
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


class BadLine(ValueError):
    """A line that cannot be read; the message says why, in the learner's words."""


@dataclass(frozen=True)
class Step:
    """One line of a derivation.

    Args:
        name: "07.slope".
        question: what is asked, in markdown.
        of: the expression to differentiate, in Python.
        by: the variable.
        names: every name the answer may use, beyond those in `of` and `also`.
        also: names for results of earlier steps → their expressions.
        slips: wrong lines one is likely to write → a question that leads on.
        then: what the right line means, in markdown.
    """

    name: str
    question: str
    of: str
    by: str
    then: str
    names: Sequence[str] = ()
    also: Mapping[str, str] = field(default_factory=dict)
    slips: Mapping[str, str] = field(default_factory=dict)

    @property
    def variables(self) -> list[str]:
        """The names an answer may use, in the order in which they appear."""
        free = [n.id for n in ast.walk(ast.parse(self.of, mode="eval")) if isinstance(n, ast.Name)]
        return sorted({*free, *self.names})

    @property
    def offered(self) -> list[str]:
        """The names a learner may use in this step."""
        return [*self.variables, *self.also]

    def truth(self, at: Mapping[str, Fraction], h: Fraction = Fraction(1)) -> Fraction:
        """The derivative at a point: a central difference, exact up to degree two whatever h is."""
        ahead, behind = {**at, self.by: at[self.by] + h}, {**at, self.by: at[self.by] - h}
        return (evaluate(self.of, ahead) - evaluate(self.of, behind)) / (2 * h)

    def points(self) -> list[dict[str, Fraction]]:
        """The points to compare at: the same for every line; the first one has small numbers, to be shown."""
        dice = random.Random(self.name)
        small = {
            name: Fraction(dice.randint(1, 3), 4) if name in ("fx", "fy") else Fraction(dice.randint(1, 9))
            for name in self.variables
        }
        large = [
            {name: Fraction(dice.randint(-999, 999), dice.randint(1, 99)) for name in self.variables}
            for _ in range(POINTS - 1)
        ]
        return [{**at, **{name: evaluate(text, at) for name, text in self.also.items()}} for at in (small, *large)]

    def judge(self, line: str) -> "Judgement":
        """What to say about a line."""
        if not line.strip():
            return Judgement("todo", "Type your line above and press Enter.")
        points = self.points()
        truths = [self.truth(at) for at in points]
        try:
            values = [evaluate(line, at) for at in points]
        except BadLine as error:
            return Judgement("crash", str(error))
        if values == truths:
            return Judgement("pass", "")
        for slip, question in self.slips.items():
            if values == [evaluate(slip, at) for at in points]:
                return Judgement("fail", question)
        shown = next(i for i, (value, truth) in enumerate(zip(values, truths)) if value != truth)
        mentioned = [name for name in self.variables if re.search(rf"\b{name}\b", f"{self.of} {line}")]
        where = ", ".join(f"{name} = {points[shown][name]}" for name in mentioned)
        return Judgement(
            "fail",
            f"At {where} your line gives {values[shown]}, but the quotient ({self.of} at {self.by} + h, minus the same at "
            f"{self.by} - h) / 2h is {truths[shown]}, for every h.",
        )


@dataclass(frozen=True)
class Judgement:
    """State, as in the grader, and a sentence."""

    state: str
    message: str


def evaluate(line: str, at: Mapping[str, Fraction]) -> Fraction:
    """The value of a line of arithmetic, in exact fractions.

    Args:
        line: names, numbers, + - * / ** and brackets; `·`, `×`, `−` and `²` are read as one would.
        at: the value of each name.

    Raises:
        BadLine: it cannot be read; says why.
    """
    text = line.strip().replace("·", "*").replace("×", "*").replace("−", "-").replace("²", "**2")
    if len(text) > 300:
        raise BadLine("The line is too long. A step needs one short line.")
    if "^" in text:
        raise BadLine("A power is written `**` in Python, or as a product.")
    if "=" in text:
        raise BadLine("Write the right-hand side only, without `=`.")
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError:
        raise BadLine(
            "This is no line of arithmetic. Is a bracket not closed, or a `*` missing in a product?"
        ) from None
    try:
        return _value(tree.body, at)
    except ZeroDivisionError:
        raise BadLine("The line divides by something that can be zero.") from None
    except RecursionError:
        raise BadLine("The line is too deep. A step needs one short line.") from None


def _value(node: ast.AST, at: Mapping[str, Fraction]) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float) and abs(node.value) < 1e9:
        return Fraction(str(node.value))  # by its digits: 0.1 is a tenth
    if isinstance(node, ast.Name):
        if node.id not in at:
            raise BadLine(f"There is no `{node.id}` in this step. The names are {', '.join(f'`{n}`' for n in at)}.")
        return at[node.id]
    if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.operand, at))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        power = _value(node.right, at)
        base = _value(node.left, at)
        if power.denominator != 1 or abs(power) > 8 or base.numerator.bit_length() > 1000:
            raise BadLine("Small whole powers only.")
        return base ** int(power)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left, at), _value(node.right, at))
    if isinstance(node, ast.Call):
        raise BadLine("Something is called like a function. Is a `*` missing before a bracket?")
    raise BadLine("Only names, numbers, + - * / ** and brackets are read here.")


_STEPS: dict[str, Step] = {}


def step(name: str, **fields) -> Step:
    """Declare a step; see `Step`.

    Raises:
        ValueError: the name is taken, or a slip is right or cannot be read.
    """
    made = Step(name, **fields)
    if name in _STEPS:
        raise ValueError(f"step {name!r} is declared twice.")
    for slip in made.slips:
        judged = made.judge(slip)
        if judged.state != "fail":
            raise ValueError(
                f"step {name!r}: the slip {slip!r} must be a wrong line, got {judged.state}. {judged.message}"
            )
    _STEPS[name] = made
    return made


def find_step(name: str) -> Step:
    """The step called "NN.name".

    Raises:
        ValueError: there is none.
    """
    from checks.core.exercise import lab_exercises

    lab_exercises(name.split(".")[0])  # declares the lab's steps too
    if name not in _STEPS:
        raise ValueError(f"there is no step {name!r}. Known are {', '.join(_STEPS)}.")
    return _STEPS[name]


def ask(name: str):
    """The question of a step and a field for the answer. Give the field to `answer` in the next cell."""
    import marimo as mo

    made = find_step(name)
    return mo.ui.text(
        label=f"**Derive.** {made.question}", placeholder=f"in {', '.join(made.offered)}", full_width=True
    )


def answer(name: str, typed) -> "Panel":
    """What the check of a step says to the line in its field.

    Args:
        name: the step.
        typed: what `ask` returned.
    """
    made = find_step(name)
    return Panel(made, made.judge(typed.value))


class Panel:
    """A judgement, as a notebook shows it: `data-step` and `data-state` for tests and screen readers."""

    def __init__(self, made: Step, judgement: Judgement):
        self.step, self.judgement = made, judgement

    def _repr_html_(self) -> str:
        import marimo as mo

        glyph, word, _, _ = STATES[self.judgement.state]
        said = code_html(self.judgement.message)
        if self.judgement.state == "pass":
            said = mo.md(self.step.then).text
        return frame(
            self.judgement.state,
            f'data-step="{self.step.name}" data-state="{self.judgement.state}" role="status" aria-live="polite" '
            f'aria-label="{html.escape(self.step.name)}: {word.lower()}"',
            f'<strong style="color:var(--verdict)"><span aria-hidden="true">{glyph}</span> {word}</strong> &nbsp;{said}',
            padding=".4em",
        )

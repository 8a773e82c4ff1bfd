"""Lab 07, The other direction: its exercises, the steps of its derivation, and the mistakes they are there to find."""

import math
import time
from functools import cache
from itertools import product
from math import prod

import torch
from torch import Tensor

from checks.show.derive import step
from checks.core.exercise import Draw, Failed, Mistake, Property, exercise
from msda_core import reference
from msda_core.differences import central_error

NO_GRID_SAMPLE = {"grid_sample": "it does what you are here to write."}
CARRIES = ["01.to_pixels", "01.corner_weights", "01.bilinear_sample"]


# --- the steps of the derivation ------------------------------------------------------------------------------------

SAMPLE = "(1-fx)*(1-fy)*v00 + fx*(1-fy)*v10 + (1-fx)*fy*v01 + fx*fy*v11"
SLOPE = "(1-fy)*(v10-v00) + fy*(v11-v01)"
SIGN = "Of the four pixels, two gain weight as the point moves right and two lose it. Check the sign of each."

step(
    "07.step_attention",
    question="One point with attention weight `A`, two channels with samples `s0` and `s1`. The loss feels channel 0 by "
    "`g0` and channel 1 by `g1`: it changes by `g0*A*s0 + g1*A*s1`. Its derivative by `A` is …",
    of="g0*A*s0 + g1*A*s1",
    by="A",
    slips={
        "A*(g0*s0 + g1*s1)": "`A` is still there. The expression is linear in `A`: what is its slope?",
        "g0*s0": "That is channel 0. `A` weighs every channel.",
        "g1*s1": "That is channel 1. `A` weighs every channel.",
        "s0 + s1": "How much the loss cares about a channel is missing.",
        "g0 + g1": "That is the derivative if every sample is 1. Where are the samples?",
        "(g0*s0 + g1*s1)/2": "The channels are added, not averaged.",
    },
    then=r"So $\;\partial/\partial A = \sum_d g_d\, s_d$: a dot product over the channels, with no $A$ left in it.",
)
step(
    "07.step_weight",
    question="The pixel to the upper *right* of the point has weight `fx*(1-fy)`. Moving the point right changes `fx`. "
    "The derivative of the weight by `fx` is …",
    of="fx*(1-fy)",
    by="fx",
    slips={
        "fx": "That is what the derivative by `1-fy` would be. Which variable moves?",
        "-fx": "That is the derivative by `fy`. Which variable moves?",
        "-(1-fy)": "Does this pixel gain or lose weight as the point comes nearer?",
        "fy": "Something times `fx` has that something as its slope.",
        "fx*(1-fy)": "That is the weight itself.",
        "1": "That holds on the pixel's own row only. What does `fy` do?",
    },
    then=r"The pixel gains, by as much as the point is near its row. The pixel to its left, with weight $(1-f_x)(1-f_y)$, "
    "loses the same amount: the four weights sum to 1, so their four slopes sum to 0.",
)
step(
    "07.step_slope",
    question=f"`v10` is the pixel to the upper right, `v01` the one to the lower left. The sample is `{SAMPLE}`. Its "
    "derivative by `fx` is …",
    of=SAMPLE,
    by="fx",
    slips={
        "(1-fy)*(v10+v00) + fy*(v11-v01)": SIGN,
        "(1-fy)*(-v10-v00) + fy*(v11-v01)": SIGN,
        "(1-fy)*(v10-v00) + fy*(v11+v01)": SIGN,
        "(1-fy)*(v10-v00) + fy*(-v11-v01)": SIGN,
        f"-({SLOPE})": "All four signs are turned round. Which pixels gain as the point moves right?",
        "(1-fx)*(v10-v00) + fx*(v11-v01)": "Right pixels minus left ones, good. Which row counts for how much depends on "
        "where the point is between the *rows*.",
        "(1-fx)*(v01-v00) + fx*(v11-v10)": "That is the slope as the point moves down. Here it moves right.",
        "v10 - v00": "That is the upper row alone. The point may lie between two rows.",
        "v10 - v00 + v11 - v01": "Both rows count in full. How much does each count?",
        "fy*(v10-v00) + (1-fy)*(v11-v01)": "At `fy = 0` the point is on the upper row. Which row does your line read?",
        SAMPLE: "That is the sample itself.",
    },
    then=r"Right minus left, interpolated between the rows. There is no $f_x$ in it: **between two pixels the slope along "
    "$x$ does not change.** Down works the same way, with rows and columns exchanged. From here on `sx` is this slope.",
)
step(
    "07.step_size",
    question="`loc` is the location, from 0 to 1 across an image of `H` rows and `W` columns, and `x0` the pixel to the "
    "left. `fx` is `loc*W - 1/2 - x0`. As long as the point does not leave its cell, the derivative by `loc` is …",
    of="loc*W - 1/2 - x0",
    by="loc",
    names=["H"],
    slips={
        "1": "`loc` runs from 0 to 1 across the whole image. How many pixels is that?",
        "H": "Across, the image measures `W`.",
        "W - 1": "From edge to edge. How many pixels fit?",
        "W - 1/2": "The half pixel is subtracted, and stays where it is while the point moves.",
        "W/2": "That is for coordinates from -1 to 1, as `grid_sample` has them.",
        "1/W": "The other way round: a small step in `loc` is a large one in pixels.",
        "loc*W": "That is where the point is. How fast does it go?",
    },
    then="The **size factor**. The same step in `loc` moves the point further on a finer level, so its gradient is larger "
    "there: by `W` across, and by `H` down.",
)
step(
    "07.step_location",
    question="Everything in a row, for one channel. The loss changes by `g*A` times the sample, and the sample has slope "
    "`sx` (your line above). The derivative of the loss by `loc` is …",
    of=f"g*A*({SAMPLE.replace('fx', '(loc*W - 1/2 - x0)')})",
    by="loc",
    names=["H"],
    also={"sx": SLOPE},
    slips={
        "g*A*sx": "That is per pixel. `loc` is not in pixels.",
        "g*A*H*sx": "Across, the image measures `W`.",
        "g*W*sx": "The sample is multiplied by something before the loss feels it.",
        "A*W*sx": "How much the loss cares is missing.",
        "W*sx": "That is the derivative of the sample. What happens to it before the loss feels it?",
        "g*A*W": "How much the sample itself changes is missing.",
        "g*A*sx/W": "A small step in `loc` is a large one in pixels.",
    },
    then=r"So $\;\partial/\partial \text{loc}_x = W \, A \sum_d g_d\, s_{x,d}$ and "
    r"$\;\partial/\partial \text{loc}_y = H \, A \sum_d g_d\, s_{y,d}$. Unlike the gradient of $A$, both keep their $A$.",
)
step(
    "07.step_value",
    question="Two points of different queries read the same pixel `v`, with corner weights `w1` and `w2` and attention "
    "`A1` and `A2`. The loss changes by `g1*A1*w1*v + g2*A2*w2*v`. Its derivative by `v` is …",
    of="g1*A1*w1*v + g2*A2*w2*v",
    by="v",
    slips={
        "g2*A2*w2": "That is what the second point says. The first one also read this pixel.",
        "g1*A1*w1": "That is what the first point says. The second one also read this pixel.",
        "g1*w1 + g2*w2": "The attention weights are missing: here they belong.",
        "A1*w1 + A2*w2": "How much the loss cares is missing.",
        "g1*A1 + g2*A2": "How much of the pixel each point read is missing.",
        "(g1*A1*w1 + g2*A2*w2)/2": "A pixel that two points read matters to both: nothing is averaged.",
        "(g1*A1*w1 + g2*A2*w2)*v": "`v` is still there. The expression is linear in `v`.",
        "(g1 + g2)*(A1*w1 + A2*w2)": "Each query's own `g` goes with its own weights.",
    },
    then=r"Everybody who read the pixel writes to it, and what they write **adds up**. Reading four pixels became "
    "writing four pixels, with the same weights.",
)


# --- numeric_gradient -----------------------------------------------------------------------------------------------
# Inputs are small multiples of 1/16 and steps are powers of two: every sum is exact, so nothing hides behind rounding.


def _bowl(*counts: int, power: int = 2):
    """A function with a different slope in every element, and a term that ties the first element to the last."""

    def bowl(x: Tensor) -> Tensor:
        flat = x.reshape(-1)
        weights = torch.tensor(counts, dtype=x.dtype)
        return (weights * flat**power).sum() + flat[0] * flat[-1]

    return bowl


def _sixteenths(draw: Draw, *shape: int, dtype=torch.float64) -> Tensor:
    return draw.integers(*shape, low=-20, high=20).to(dtype) / 16


def _counts(draw: Draw, n: int) -> list[int]:
    return [draw.integer(1, 4) for _ in range(n)]


def one_number(draw: Draw):
    """a parabola has its slope between the two sides, not on one of them"""
    return _bowl(draw.integer(1, 4)), _sixteenths(draw, 1), 2.0 ** -draw.integer(3, 5)


def each_in_turn(draw: Draw):
    """every element is moved alone, and put back before the next one moves"""
    return _bowl(*_counts(draw, 4)), _sixteenths(draw, 4), 2.0 ** -draw.integer(3, 5)


def same_shape(draw: Draw):
    """the gradient has the shape of what it is a gradient of"""
    return _bowl(*_counts(draw, 6)), _sixteenths(draw, 2, 3), 2.0 ** -draw.integer(3, 5)


def not_in_order(draw: Draw):
    """x may be a transposed view, whose elements do not lie in order"""
    return _bowl(*_counts(draw, 6)), _sixteenths(draw, 3, 2).T, 2.0 ** -draw.integer(3, 5)


def in_float32(draw: Draw):
    """the gradient has x's dtype"""
    return _bowl(*_counts(draw, 3)), _sixteenths(draw, 3, dtype=torch.float32), 2.0**-4


def across_a_kink(draw: Draw):
    """on a kink the quotient is what it is: it looks to both sides"""
    return (lambda x: (x.abs() + 2 * x.clamp_min(0)).sum()), torch.zeros(2, dtype=torch.float64), 2.0**-4


def a_cubic(draw: Draw):
    """the step is the one that was asked for"""
    return _bowl(*_counts(draw, 2), power=3), _sixteenths(draw, 2), 2.0 ** -draw.integer(1, 2)


def _quotient(fn, x, eps, *, ahead=1.0, behind=1.0, over=None, together=False, keep=False, flat=False):
    """The right answer, and by its options the wrong ones."""
    moved, grad = x.clone(), torch.zeros_like(x)
    for n, index in enumerate(product(*map(range, x.shape))):
        sides = []
        for side in (ahead, -behind):
            there = moved if keep else x.clone()
            if together:
                there += side * eps
            elif flat:
                there.reshape(-1)[n] += side * eps  # into a copy, where the elements do not lie in order
            else:
                there[index] += side * eps
            sides.append(fn(there))
            if keep and side == ahead:
                there[index] -= side * eps
        grad[index] = (sides[0] - sides[1]) / ((over or ahead + behind) * eps)
    return grad


exercise(
    "07.numeric_gradient",
    reference=lambda fn, x, eps: _quotient(fn, x, eps),
    cases=[one_number, in_float32, across_a_kink, a_cubic, same_shape, not_in_order, each_in_turn],
    autograd=False,
    mistakes=[
        Mistake(
            "when only the step ahead is taken",
            lambda fn, x, eps: _quotient(fn, x, eps, behind=0.0),
            "(f(x + eps) - f(x)) / eps leans to one side: on a parabola it is off by eps. What would balance it?",
        ),
        Mistake(
            "when only the step back is taken",
            lambda fn, x, eps: _quotient(fn, x, eps, ahead=0.0),
            "(f(x) - f(x - eps)) / eps leans to one side: on a parabola it is off by eps. What would balance it?",
        ),
        Mistake(
            "when the difference is divided by eps, though the two sides are 2 eps apart",
            lambda fn, x, eps: _quotient(fn, x, eps, over=1.0),
            "How far is x + eps from x - eps?",
        ),
        Mistake(
            "when the difference is not divided",
            lambda fn, x, eps: _quotient(fn, x, eps) * 2 * eps,
            "That is how much fn changes. A slope is change over distance.",
        ),
        Mistake(
            "with the opposite sign",
            lambda fn, x, eps: -_quotient(fn, x, eps),
            "Ahead minus behind.",
        ),
        Mistake(
            "when all elements are moved at once",
            lambda fn, x, eps: _quotient(fn, x, eps, together=True),
            "That is the slope in one direction, along the diagonal. A gradient has one number for each element.",
        ),
        Mistake(
            "when an element that was moved is not put back",
            lambda fn, x, eps: _quotient(fn, x, eps, keep=True),
            "When the second element moves, where should the first one be?",
        ),
        Mistake(
            "when x itself is moved",
            lambda fn, x, eps: _in_place(fn, x, eps),
            "x belongs to the caller, who did not ask for it to change. Move a copy.",
        ),
        Mistake(
            "when fn is given the same point twice",
            lambda fn, x, eps: _quotient(fn, x, eps, ahead=0.0, behind=0.0, over=2.0),
            "The two values are the same everywhere. `ahead, behind = x, x` are two names of one tensor, and what moves one "
            "moves the other: `x.clone()` makes another.",
        ),
        Mistake(
            "when the step grows with the element",
            lambda fn, x, eps: _relative(fn, x, eps),
            "eps is the step, for small elements and for large ones.",
        ),
        Mistake(
            "when the elements are reached through a flattened copy",
            lambda fn, x, eps: _quotient(fn, x, eps, flat=True),
            "`reshape(-1)` of a transposed tensor is a copy: what is written there never reaches the tensor. Index the "
            "tensor itself, or flatten first and give fn the right shape back.",
        ),
        Mistake(
            "when x is taken to lie in order",
            lambda fn, x, eps: _quotient(fn, x.view(-1).view(x.shape), eps),
            "`view` wants elements that lie in order, and those of a transposed tensor do not. `reshape(-1)` takes any "
            "tensor, but of this one it makes a copy: give fn what you moved, in x's shape.",
        ),
        Mistake(
            "when a whole row moves at once",
            lambda fn, x, eps: _row_by_row(fn, x, eps),
            "`x[i]` of a matrix is a row. Walk along every axis: `itertools.product(*map(range, x.shape))` gives every "
            "index.",
        ),
        Mistake(
            "when `/ 2 * eps` is read from left to right",
            lambda fn, x, eps: _quotient(fn, x, eps) * eps * eps,
            "`a / 2 * eps` is (a / 2) · eps. Which brackets are missing?",
        ),
        Mistake(
            "when the two sides are eps apart, and not 2 eps",
            lambda fn, x, eps: _quotient(fn, x, eps / 2),
            "eps is the step to either side, not the distance from one side to the other.",
        ),
        Mistake(
            "when the step is not eps but a fixed one",
            lambda fn, x, eps: _quotient(fn, x, 2.0**-10),
            "The caller says how far to step.",
        ),
        Mistake(
            "when the result is always float64",
            lambda fn, x, eps: _quotient(fn, x, eps).double(),
            "Make the result with `torch.zeros_like(x)`, and it has x's dtype.",
        ),
        Mistake(
            "when the result is always float32",
            lambda fn, x, eps: _quotient(fn, x, eps).float(),
            "float32 is what torch makes of Python numbers. Make the result with `torch.zeros_like(x)`.",
        ),
        Mistake(
            "when the result is flat",
            lambda fn, x, eps: _quotient(fn, x, eps).reshape(-1),
            "The gradient has one number for each element of x, in the same place.",
        ),
    ],
    hints=[
        "You may call fn as often as you like, at any x. What two calls tell you how it changes with one element, without "
        "favouring a side?",
        "For each element: a copy of x with this element moved up by eps, another with it moved down. The difference of the "
        "two values, over the distance between them, goes into the gradient at this element's place.",
        "`ahead = x.clone(); ahead[index] += eps`, and so on. `product(*map(range, x.shape))` gives every index of a "
        "tensor of any shape.",
    ],
)


def _in_place(fn, x, eps):
    grad = _quotient(fn, x, eps)
    x += eps
    return grad


def _row_by_row(fn, x, eps):
    grad = torch.zeros_like(x)
    for i in range(len(x)):
        ahead, behind = x.clone(), x.clone()
        ahead[i] += eps
        behind[i] -= eps
        grad[i] = (fn(ahead) - fn(behind)) / (2 * eps)
    return grad


def _relative(fn, x, eps):
    grad = torch.zeros_like(x)
    for index in product(*map(range, x.shape)):
        h = eps * max(abs(x[index].item()), 0.25)
        grad[index] = _quotient(fn, x, h)[index]
    return grad


# --- choose_eps -----------------------------------------------------------------------------------------------------

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
SMOOTH = (
    (torch.exp, torch.exp, (-0.5, 0.5)),
    (torch.sin, torch.cos, (0.5, 1.0)),
    (torch.reciprocal, lambda x: -1 / x**2, (0.8, 1.5)),
)
ENOUGH = 8.0  # times the smallest error; (machine epsilon)^(1/3) stays below 2.1, its square root passes 8.5 in float32


def smooth_error(dtype: torch.dtype, eps: float) -> float:
    """The relative error of central differences on three smooth functions, in the arithmetic of a dtype."""
    errors = [
        central_error(function, slope, torch.linspace(low, high, 200, dtype=torch.float64).to(dtype), eps)
        for function, slope, (low, high) in SMOOTH
    ]
    return math.sqrt(sum(error**2 for error in errors) / len(errors))


@cache
def _smallest_error(dtype: torch.dtype) -> tuple[float, float]:
    """The smallest error over a sweep of steps, and the step that has it."""
    return min((smooth_error(dtype, 2 ** (-n / 2)), 2 ** (-n / 2)) for n in range(2, 72))


def _close_to_the_best(answer, draw: Draw) -> str:
    steps = {dtype: answer(dtype) for dtype in DTYPES}
    for dtype, eps in steps.items():
        if isinstance(eps, Tensor) and eps.numel() == 1:
            steps[dtype] = eps = eps.item()
        if isinstance(eps, bool) or not isinstance(eps, (int, float)) or not 0 < eps < math.inf:
            raise Failed(f"for {_name(dtype)} yours is {eps!r}, expected a number above 0.", key=("no step", repr(eps)))
    found = {dtype: smooth_error(dtype, eps) / _smallest_error(dtype)[0] for dtype, eps in steps.items()}
    # How it was chosen, for recognising mistakes: one step for all, or which power of the machine's epsilon.
    powers = tuple(round(12 * math.log(steps[dtype]) / math.log(torch.finfo(dtype).eps)) for dtype in DTYPES)
    chosen = "one for all" if len(set(steps.values())) == 1 else powers
    for dtype, times in found.items():
        if times > ENOUGH:
            best, at = _smallest_error(dtype)
            side = "too small: rounding takes over" if steps[dtype] < at else "too large: the curve bends within it"
            raise Failed(
                f"in {_name(dtype)}, eps = {steps[dtype]:.2g} is {side}. The error of the slope is "
                f"{best * times:.1g}; at eps = {at:.1g} it would be {best:.1g}.",
                key=chosen,
            )
    return ", ".join(f"{_name(d)}: {times:.1f} times the smallest error" for d, times in found.items())


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


exercise(
    "07.choose_eps",
    reference=lambda dtype: torch.finfo(dtype).eps ** (1 / 3),
    cases=[],
    autograd=False,
    properties=[
        Property(
            "close_to_the_best",
            "in every dtype, central differences with this step come close to the best they can do",
            _close_to_the_best,
        )
    ],
    mistakes=[
        Mistake(
            "with one step for every dtype",
            lambda dtype: 1e-6,
            "Look at the two curves above: their valleys are not in the same place. What differs between the dtypes?",
        ),
        Mistake(
            "with the square root of the machine's epsilon",
            lambda dtype: torch.finfo(dtype).eps ** 0.5,
            "That is the rule for one-sided differences, whose own error is proportional to eps. To what is that of central "
            "ones proportional?",
        ),
        Mistake(
            "with the machine's epsilon itself",
            lambda dtype: torch.finfo(dtype).eps,
            "At x = 1 that step moves x by its last digit, and the difference of the two values is nothing but rounding.",
        ),
        Mistake(
            "with the fourth root of the machine's epsilon",
            lambda dtype: torch.finfo(dtype).eps ** 0.25,
            "That is the rule for second derivatives. Balance e / eps against eps².",
        ),
        Mistake(
            "with the smallest positive number",
            lambda dtype: torch.finfo(dtype).tiny,
            "Added to 1 that is 1. `torch.finfo` also knows the smallest number that makes a difference to 1.",
        ),
    ],
    hints=[
        "Two errors pull in opposite directions. Which one shrinks with a smaller step, and which one grows?",
        "The values of f are rounded, each by about e = `torch.finfo(dtype).eps`; divided by eps that becomes e / eps. The "
        "curve's own bend adds about eps². The sum is smallest about where the two are equal.",
        "e / eps = eps²: solve for eps.",
    ],
)


# --- the three gradients --------------------------------------------------------------------------------------------


def _pixels_of(draw: Draw, size: int, *shape: int, low: int = 0, high: int | None = None) -> Tensor:
    """Pixel coordinates that stay clear of whole numbers; the cells from `low` to `high`, inside if not given."""
    high = max(size - 2, low) if high is None else high
    return draw.integers(*shape, low=low, high=high).double() + draw.uniform(
        *shape, low=0.1, high=0.9, dtype=torch.float64
    )


def _inputs(draw: Draw, shapes=((3, 5), (2, 4)), B=1, Q=2, M=2, D=3, K=3, beyond=0, dtype=torch.float32):
    """A call and the gradient of its output; points lie inside, or up to `beyond` cells outside, never on a kink."""
    S, L = sum(h * w for h, w in shapes), len(shapes)
    coordinates = []
    for h, w in shapes:
        at = [
            _pixels_of(draw, size, B, Q, M, K, low=-beyond, high=size - 2 + beyond if beyond else None)
            for size in (w, h)
        ]
        coordinates.append(torch.stack([(at[0] + 0.5) / w, (at[1] + 0.5) / h], -1))
    locations = torch.stack(coordinates, 3).to(dtype)
    value = draw.normal(B, S, M, D, dtype=dtype)
    attention = draw.uniform(B, Q, M, L, K, low=0.2, high=1.8, dtype=dtype)
    grad_out = draw.normal(B, Q, M * D, dtype=dtype)
    return value, torch.tensor(shapes), locations, attention, grad_out


def _of_one_sign(value, shapes, locations, attention, grad_out):
    """A call whose sums do not nearly cancel: what is left of a single one would be smaller than its terms' rounding."""
    return value.abs(), shapes, locations, attention, grad_out.abs()


def one_point(draw: Draw):
    """one point between four pixels, on a level that is wider than high"""
    return _of_one_sign(*_inputs(draw, shapes=((2, 6),), Q=1, M=1, K=1))


def several_points(draw: Draw):
    """each point gets its own, whatever the others do"""
    return _inputs(draw, shapes=((3, 5),), M=1, K=3)


def several_levels(draw: Draw):
    """each level has its own pixels and its own size"""
    return _inputs(draw, shapes=((2, 5), (4, 3), (3, 7)), Q=1, K=2)


def several_heads(draw: Draw):
    """a head's gradient comes from its own channels of the output"""
    return _inputs(draw, shapes=((3, 4),), Q=1, M=3, D=2, K=2)


def two_images(draw: Draw):
    """the images of a batch have nothing to do with each other"""
    return _inputs(draw, shapes=((2, 4),), B=2, M=1, K=2)


def across_the_border(draw: Draw):
    """of a point whose cell sticks out of the image, the corners inside still count"""
    value, shapes, locations, attention, grad_out = _inputs(draw, shapes=((3, 5), (2, 4)), M=1, Q=1, K=4)
    for level, (h, w) in enumerate(shapes.tolist()):
        f = draw.uniform(4, low=0.2, high=0.8)
        # Left, right, above, below; in the middle of the other axis.
        x = torch.stack([f[0] - 1, f[1] + w - 1, f[2] + 1, f[3] + 1])
        y = torch.stack([f[1], f[0], f[3] - 1, f[2] + h - 1])
        locations[0, 0, 0, level] = torch.stack([(x + 0.5) / w, (y + 0.5) / h], -1)
    return value, shapes, locations, attention, grad_out


def far_outside(draw: Draw):
    """a point a pixel or more outside reads nothing: its gradient is zero, and it gives none to any pixel"""
    value, shapes, locations, attention, grad_out = _inputs(draw, shapes=((3, 5),), M=1, Q=1, K=4)
    beyond = draw.uniform(4, low=1.2, high=2.5)
    inside = draw.uniform(4, low=0.2, high=0.8)
    x = torch.stack([-beyond[0], 4 + beyond[1], inside[2] + 1, inside[3] + 1])
    y = torch.stack([inside[0], inside[1], -beyond[2], 2 + beyond[3]])
    locations[0, 0, 0, 0] = torch.stack([(x + 0.5) / 5, (y + 0.5) / 3], -1)
    return value, shapes, locations, attention, grad_out


def in_float64(draw: Draw):
    """the gradient has the inputs' dtype"""
    return _of_one_sign(*_inputs(draw, shapes=((3, 5),), Q=1, M=1, K=3, dtype=torch.float64))


def on_pixel_centres(draw: Draw):
    """on a whole number, the slope is that of the cell to the right, or below"""
    H, W = 4, 8  # powers of two: the locations, and the coordinates they become, are exact
    value, shapes, locations, attention, grad_out = _inputs(draw, shapes=((H, W),), Q=1, M=1, K=5)
    across, down = draw.integers(5, low=0, high=W - 1), draw.integers(5, low=0, high=H - 1)
    across[3], down[4] = W - 1, H - 1
    on_both = torch.stack([(across + 0.5) / W, (down + 0.5) / H], -1).to(value.dtype)
    locations[0, 0, 0, 0, 0, 0] = on_both[0, 0]  # on a column, between two rows
    locations[0, 0, 0, 0, 1, 1] = on_both[1, 1]  # on a row, between two columns
    locations[0, 0, 0, 0, 2:] = on_both[2:]
    return value, shapes, locations, attention, grad_out


def one_pixel_outside(draw: Draw):
    """exactly a pixel before the first the sample begins to rise: there too, the slope is the one to the right, or below"""
    H, W = 4, 8
    value, shapes, locations, attention, grad_out = _inputs(draw, shapes=((H, W),), Q=1, M=1, K=4)
    x = torch.tensor([-1.0, draw.integer(1, 5) + draw.number(0.2, 0.8), W, draw.integer(1, 5) + draw.number(0.2, 0.8)])
    y = torch.tensor([draw.integer(0, 2) + draw.number(0.2, 0.8), -1.0, draw.integer(0, 2) + draw.number(0.2, 0.8), H])
    locations[0, 0, 0, 0] = torch.stack([(x + 0.5) / W, (y + 0.5) / H], -1)
    return value, shapes, locations, attention, grad_out


def _collide(draw: Draw, cells):
    """Points of several queries in the given cells (column, row) of one level."""
    value, shapes, locations, attention, grad_out = _inputs(draw, shapes=((3, 7),), Q=len(cells), M=1, K=1)
    for q, (i, j) in enumerate(cells):
        fx, fy = draw.number(0.2, 0.8), draw.number(0.2, 0.8)
        locations[0, q, 0, 0, 0] = torch.tensor([(i + fx + 0.5) / 7, (j + fy + 0.5) / 3])
    return _of_one_sign(value, shapes, locations, attention, grad_out)


def neighbouring_cells(draw: Draw):
    """one point's right-hand pixels are the next point's left-hand ones: both count"""
    i = draw.integer(0, 4)
    return _collide(draw, [(i, 0), (i + 1, 0)])


def the_same_cell(draw: Draw):
    """points of two queries between the same four pixels: both count"""
    cell = (draw.integer(0, 5), draw.integer(0, 1))
    return _collide(draw, [cell, cell])


def _weights(fx, fy):
    return (1 - fx) * (1 - fy), fx * (1 - fy), (1 - fx) * fy, fx * fy


def _across(fx, fy):
    return -(1 - fy), 1 - fy, -fy, fy


def _down(fx, fy):
    return -(1 - fx), -fx, 1 - fx, fx


def _signed(slopes, corner):
    return lambda fx, fy: [-s if i == corner else s for i, s in enumerate(slopes(fx, fy))]


def _floor(x):
    return x.floor()


def _left(x):
    return x.ceil() - 1


def _backward(
    value, spatial_shapes, sampling_locations, attention_weights, grad_out, *,
    weights=_weights, across=_across, down=_down, size=lambda H, W: (W, H), cell=_floor, outside="zero",
    attention=True, gradient=True, into="add", packed=True, half=0.5, minus=0,
    row=lambda H, W: W, column=lambda H, W: 1,
):  # fmt: skip
    """The right answer in one pass over four corners, and by its options the wrong ones.

    Returns:
        grad_value, grad_sampling_locations, grad_attention_weights. `attention` is whether the attention weights take
        part where they should, and in the third gradient whether they do where they should not.
    """
    B, S, M, D = value.shape
    _, Q, _, L, K, _ = sampling_locations.shape
    g = (grad_out if gradient else torch.ones_like(grad_out)).reshape(B, Q, M, 1, D)
    grad_value, grad_locations = torch.zeros_like(value), torch.zeros_like(sampling_locations)
    grad_attention = torch.zeros_like(attention_weights)
    b = torch.arange(B)[:, None, None, None]
    m = torch.arange(M)[None, None, :, None]
    start, writes = 0, []
    for l, (H, W) in enumerate(spatial_shapes.tolist()):
        x = sampling_locations[:, :, :, l, :, 0] * (W - minus) - half
        y = sampling_locations[:, :, :, l, :, 1] * (H - minus) - half
        x0, y0 = cell(x), cell(y)
        fx, fy = x - x0, y - y0
        A = attention_weights[:, :, :, l] if attention else torch.ones_like(x)
        corners = [(x0.long() + i, y0.long() + j) for j in (0, 1) for i in (0, 1)]
        inside = [(i >= 0) & (i < W) & (j >= 0) & (j < H) for i, j in corners]
        whole = inside[0] & inside[1] & inside[2] & inside[3]
        for c, ((i, j), w, sx, sy) in enumerate(zip(corners, weights(fx, fy), across(fx, fy), down(fx, fy))):
            keep = whole if outside == "drop" else inside[c]
            if outside == "border":
                i, j, keep = i.clamp(0, W - 1), j.clamp(0, H - 1), torch.ones_like(keep)
            elif outside == "wrap":
                keep = (i >= -W) & (i < W) & (j >= -H) & (j < H)
                i, j = i % W, j % H
            elif outside == "memory":  # only the ends of the level are checked, not those of the row
                keep = (j * W + i >= 0) & (j * W + i < H * W)
            elif outside == "unchecked":
                keep = torch.ones_like(keep)
            elif outside == "high":  # what is before the first row reads and writes from the end, as Python does
                keep = (i < W) & (j < H)
            at = (start if packed else 0) + j * row(H, W) + i * column(H, W)
            pixel = at if outside == "unchecked" else at % S if outside == "high" else at.clamp(0, S - 1)
            v = value[b, pixel, m] * keep[..., None]
            dot = (v * g).sum(-1)
            grad_attention[:, :, :, l] += w * dot * (1 if attention else attention_weights[:, :, :, l])
            grad_locations[:, :, :, l, :, 0] += A * sx * dot * size(H, W)[0]
            grad_locations[:, :, :, l, :, 1] += A * sy * dot * size(H, W)[1]
            writes.append((c, pixel, keep, (A * w)[..., None] * g))
        start += H * W
    for c in range(4):
        before = grad_value.clone()
        for corner, pixel, keep, amount in writes:
            if corner != c:
                continue
            for at in keep.nonzero().tolist():
                target = (at[0], pixel[tuple(at)], at[2])
                if into == "add":
                    grad_value[target] += amount[tuple(at)]
                elif into == "index":  # every point adds to what was there before any of them did
                    grad_value[target] = before[target] + amount[tuple(at)]
    if into == "assign":
        for b_, q_, k_ in torch.cartesian_prod(torch.arange(B), torch.arange(Q), torch.arange(K)).tolist():
            for _, pixel, keep, amount in writes:
                for m_ in range(M):
                    if keep[b_, q_, m_, k_]:
                        grad_value[b_, pixel[b_, q_, m_, k_], m_] = amount[b_, q_, m_, k_]
    return grad_value, grad_locations, grad_attention


def _truth(which: int):
    """The gradient number `which`, by differentiating the reference in float64."""

    def truth(value, spatial_shapes, sampling_locations, attention_weights, grad_out):
        return reference.exact_gradients(
            value, spatial_shapes, None, sampling_locations, attention_weights, grad_out
        )[which].to(value.dtype)  # fmt: skip

    return truth


def _wrong(which: int, **options):
    return lambda *call: _backward(*call, **options)[which]


def _swapped_shapes(which: int):
    return lambda value, shapes, *rest: _backward(value, shapes.flip(-1), *rest)[which]


def _swapped_points(which: int):
    return lambda value, shapes, locations, *rest: _backward(value, shapes, locations.flip(-1), *rest)[which]


def _heads_last(which: int):
    """grad_out read as if its last axis were (D, M)."""

    def answer(value, shapes, locations, attention, grad_out):
        B, Q, _ = grad_out.shape
        M, D = value.shape[2:]
        mixed = grad_out.reshape(B, Q, D, M).transpose(2, 3).reshape(B, Q, M * D)
        return _backward(value, shapes, locations, attention, mixed)[which]

    return answer


def _regraded(which: int, change):
    """The answer with a changed grad_out, seen as (B, Q, M, D)."""

    def answer(value, shapes, locations, attention, grad_out):
        changed = change(grad_out.reshape(*grad_out.shape[:2], *value.shape[2:])).reshape(grad_out.shape)
        return _backward(value, shapes, locations, attention, changed)[which]

    return answer


def _channels_apart(which: int):
    """The sums of the sample's and of grad_out's channels, multiplied: not the sum of the products."""

    def answer(value, shapes, locations, attention, grad_out):
        M, D = value.shape[2:]
        total = grad_out.reshape(*grad_out.shape[:2], M, D).sum(-1)
        return _backward(value.sum(-1, keepdim=True), shapes, locations, attention, total)[which]

    return answer


def _first_head(which: int):
    def answer(value, *rest):
        return _backward(value[:, :, :1].expand_as(value), *rest)[which]

    return answer


def _first_image(which: int):
    def answer(value, shapes, locations, attention, grad_out):
        return _backward(value[:1].expand_as(value), shapes, locations, attention, grad_out)[which]

    return answer


def _common(which: int) -> list[Mistake]:
    """What can go wrong in any of the three: reading the wrong pixel, or the wrong part of grad_out."""
    return [
        Mistake(
            "when H and W are swapped",
            _swapped_shapes(which),
            "A row of `spatial_shapes` is (H, W). Which of the two does x run along?",
        ),
        Mistake(
            "when x and y of the sampling locations are swapped",
            _swapped_points(which),
            "The last axis of `sampling_locations` is (x, y), while an image is indexed [row, column].",
        ),
        Mistake(
            "when every level starts at the first pixel",
            _wrong(which, packed=False),
            "Level 1 begins where level 0 ends, forwards and backwards.",
        ),
        Mistake(
            "when the half pixel is forgotten",
            _wrong(which, half=0.0),
            "Location 0 is the edge of the first pixel, and pixels are counted at their centres. `to_pixels` of lab 01 "
            "does this.",
        ),
        Mistake(
            "when grad_out is left out, or taken to be one",
            _wrong(which, gradient=False),
            "How much the loss cares about this channel of this query is in `grad_out`.",
        ),
        Mistake(
            "when heads and channels of grad_out are transposed",
            _heads_last(which),
            "The last axis of `grad_out` is that of the output, M*D: all channels of head 0 first, then those of head 1.",
        ),
        Mistake(
            "when every head takes head 0's part of grad_out",
            _regraded(which, lambda g: g[:, :, :1].expand_as(g)),
            "Head m owns the channels m*D to (m + 1)*D of `grad_out`'s last axis.",
        ),
        Mistake(
            "when every query takes the first one's grad_out",
            _regraded(which, lambda g: g[:, :1].expand_as(g)),
            "`grad_out` has a query axis: each query reached its own row of the output.",
        ),
        Mistake(
            "when every image takes the first one's grad_out",
            _regraded(which, lambda g: g[:1].expand_as(g)),
            "`grad_out` has a batch axis too.",
        ),
        Mistake(
            "when pixels outside are taken from the border",
            _wrong(which, outside="border"),
            "A pixel that does not exist is zero whatever the point does: it has no slope, and no gradient goes to it or "
            "to its neighbour.",
        ),
        Mistake(
            "when Python's negative index wraps round to the other side",
            _wrong(which, outside="wrap"),
            "Index -1 is the last row or column, not an error. Check both ends before you read or write.",
        ),
        Mistake(
            "when a point is dropped because one of its corners is outside",
            _wrong(which, outside="drop"),
            "The corners inside still count. Decide for each corner, not for the point.",
        ),
        Mistake(
            "when the end of a row is not checked, so that the next row is taken for a pixel outside",
            _wrong(which, outside="memory"),
            "The pixel after the last one of a row is, in memory, the first one of the next. Check columns and rows "
            "apart.",
        ),
        Mistake(
            "when coordinates are cut off towards zero instead of rounded down",
            _wrong(which, cell=torch.trunc),
            "`int(-0.5)` is 0. Which pixel lies to the left of -0.5?",
        ),
    ]


def _reading(which: int) -> list[Mistake]:
    """What can go wrong in the two that read pixels and make one number of D channels."""
    return [
        Mistake(
            "when every image of the batch reads the first one's pixels",
            _first_image(which),
            "`value` has a batch axis too.",
        ),
        Mistake(
            "when every head reads head 0's pixels",
            _first_head(which),
            "`value` has an axis of heads: each head reads its own.",
        ),
        Mistake(
            "when the channels are summed before they are multiplied",
            _channels_apart(which),
            "Each channel of the sample meets its own number of `grad_out`: multiply first, then sum.",
        ),
    ]


exercise(
    "07.grad_attention",
    reference=_truth(2),
    cases=[
        one_point,
        several_points,
        in_float64,
        far_outside,
        several_heads,
        two_images,
        across_the_border,
        several_levels,
    ],
    axes=["image", "query", "head", "level", "point"],
    autograd=False,
    forbid=NO_GRID_SAMPLE,
    carries=CARRIES,
    mistakes=[
        *_common(2),
        *_reading(2),
        Mistake(
            "when the attention weight is still in it",
            _wrong(2, attention=False),
            "The output is linear in the weight. Is the slope of 3·A equal to 3·A?",
        ),
        Mistake(
            "when it is divided by the attention weight",
            lambda value, shapes, locations, attention, grad_out: (
                _backward(value, shapes, locations, attention, grad_out)[2] / attention
            ),
            "The slope of A·s by A is s: the weight does not occur in it at all.",
        ),
        Mistake(
            "when the channels are averaged instead of added",
            lambda value, *rest: _backward(value, *rest)[2] / value.shape[-1],
            "Each channel adds its share to the loss.",
        ),
        Mistake(
            "when only the first channel counts",
            lambda value, shapes, locations, attention, grad_out: _backward(
                value[..., :1], shapes, locations, attention, grad_out[..., :: value.shape[-1]]
            )[2],
            "The weight multiplies every channel of the sample.",
        ),
        Mistake(
            "when the nearest pixel is taken for the sample",
            _wrong(2, weights=lambda fx, fy: _weights(fx.round(), fy.round())),
            "The sample is the one of the forward pass: four pixels, each by its weight.",
        ),
        Mistake(
            "when the fractions of x and y are swapped",
            _wrong(2, weights=lambda fx, fy: _weights(fy, fx)),
            "Moving right changes x. Which of the four pixels gains weight when you do?",
        ),
        Mistake(
            "when the result is always float32",
            lambda *call: _backward(*call)[2].float(),
            "Make the result with `torch.zeros_like(attention_weights)`.",
        ),
    ],
    hints=[
        "If the weight of one point grows by a little, by how much does each channel of the output grow? And the loss?",
        "The sample at the point, as in the forward pass, is a vector of D channels. `grad_out` holds D numbers for this "
        "query and head. Your first step above says what to do with the two.",
        "`g = grad_out[b, q].reshape(M, D)[m]`; cut the level's image out of `value` as in lab 01, sample it at the point, "
        "and store `(g * sample).sum()`.",
    ],
)


def _two_sided(*call):
    return (_backward(*call)[1] + _backward(*call, cell=_left)[1]) / 2


def _open_border(*call):
    """As if a point exactly a pixel outside, on whichever side, read nothing however it moves."""
    locations, shapes = call[2], call[1]
    x = _pixel_coordinates(locations, shapes)
    return torch.where((x <= -1).any(-1, keepdim=True), 0.0, _backward(*call)[1])


OPEN_BORDER = (
    "`-1 < x` drops the point at -1. It reads nothing there, and does as soon as it moves right. Ask for each corner "
    "whether it is inside."
)
CORNER_NAMES = ("(x0, y0)", "(x0+1, y0)", "(x0, y0+1)", "(x0+1, y0+1)")

exercise(
    "07.grad_locations",
    reference=_truth(1),
    cases=[
        one_point,
        several_points,
        in_float64,
        far_outside,
        several_heads,
        two_images,
        on_pixel_centres,
        one_pixel_outside,
        across_the_border,
        several_levels,
    ],
    axes=["image", "query", "head", "level", "point", "coordinate"],
    autograd=False,
    forbid=NO_GRID_SAMPLE,
    carries=CARRIES,
    mistakes=[
        *_common(1),
        *_reading(1),
        Mistake(
            "when the size factor is forgotten",
            _wrong(1, size=lambda H, W: (1, 1)),
            "That is the slope per pixel. A location runs from 0 to 1: how many pixels does it cross?",
        ),
        Mistake(
            "when the size factors are swapped",
            _wrong(1, size=lambda H, W: (H, W)),
            "Pixels are right, factors are not: x crosses the columns. How many are there?",
        ),
        Mistake(
            "with size - 1 as the factor",
            _wrong(1, size=lambda H, W: (W - 1, H - 1)),
            "Take the slope of location * size - 0.5.",
        ),
        Mistake(
            "with half the size as the factor",
            _wrong(1, size=lambda H, W: (W / 2, H / 2)),
            "Half of it belongs to coordinates from -1 to 1, as `grid_sample` has them. Locations run from 0 to 1.",
        ),
        Mistake(
            "with twice the size as the factor",
            _wrong(1, size=lambda H, W: (2 * W, 2 * H)),
            "From 0 to 1 a location crosses the image once: W pixels.",
        ),
        Mistake(
            "with both sizes in each factor",
            _wrong(1, size=lambda H, W: (H * W, H * W)),
            "Moving along x crosses columns only.",
        ),
        Mistake(
            "with the size squared as the factor",
            _wrong(1, size=lambda H, W: (W * W, H * H)),
            "The size enters once. Is a slope already per location, and scaled again?",
        ),
        Mistake(
            "when the slope is divided by the size",
            _wrong(1, size=lambda H, W: (1 / W, 1 / H)),
            "A small step in location is a large one in pixels.",
        ),
        Mistake(
            "when the attention weight is missing",
            _wrong(1, attention=False),
            "The sample is multiplied by its weight before it reaches the output, and so is its slope.",
        ),
        Mistake(
            "when the slopes along x and y are stored in each other's place",
            lambda *call: _backward(*call)[1].flip(-1),
            "The last axis of the gradient is (x, y), as that of the locations.",
        ),
        Mistake(
            "when the slope along x weighs the rows by fx, and that along y the columns by fy",
            _wrong(1, across=lambda fx, fy: _across(fx, fx), down=lambda fx, fy: _down(fy, fy)),
            "Along x: right minus left, in each row. How much a row counts depends on where the point is between the "
            "*rows*.",
        ),
        Mistake(
            "when only the upper row counts along x, and only the left column along y",
            _wrong(1, across=lambda fx, fy: _across(fx, 0 * fy), down=lambda fx, fy: _down(0 * fx, fy)),
            "The point lies between two rows: each counts by how near it is.",
        ),
        Mistake(
            "when both rows count the same along x, and both columns along y",
            _wrong(1, across=lambda fx, fy: _across(fx, 0 * fy + 0.5), down=lambda fx, fy: _down(0 * fx + 0.5, fy)),
            "The nearer row counts more. How much, is in fy.",
        ),
        Mistake(
            "when the rows are weighed the wrong way round along x, and the columns along y",
            _wrong(1, across=lambda fx, fy: _across(fx, 1 - fy), down=lambda fx, fy: _down(1 - fx, fy)),
            "At fy = 0 the point is on the upper row. Which row does your slope read there?",
        ),
        Mistake(
            "when the slope along x has the opposite sign",
            _wrong(1, across=lambda fx, fy: [-s for s in _across(fx, fy)]),
            "Along x: right minus left.",
        ),
        Mistake(
            "when the slope along y has the opposite sign",
            _wrong(1, down=lambda fx, fy: [-s for s in _down(fx, fy)]),
            "Along y: lower minus upper.",
        ),
        Mistake(
            "when the attention weight is multiplied in twice",
            lambda value, shapes, locations, attention, grad_out: _backward(
                value, shapes, locations, attention**2, grad_out
            )[1],
            "The sample is multiplied by its weight once. Does your g hold it already?",
        ),
        Mistake(
            "when x0 and y0 are the nearest pixel instead of the one to the left and above",
            _wrong(1, cell=torch.round),
            "The cell of x = 2.7 begins at 2. `round` gives 3.",
        ),
        Mistake(
            "when all signs are turned round",
            lambda *call: -_backward(*call)[1],
            "Which pixels gain weight as the point moves right?",
        ),
        Mistake(
            "when only the slope along x is there",
            lambda *call: _backward(*call)[1] * torch.tensor([1, 0]),
            "A point can move down too.",
        ),
        *(
            Mistake(
                f"when the corner {CORNER_NAMES[corner]} has the wrong sign in the slope along {axis}",
                _wrong(1, **{option: _signed(slopes, corner)}),
                f"Does that pixel gain or lose weight as the point moves {direction}?",
            )
            for axis, option, slopes, direction in (("x", "across", _across, "right"), ("y", "down", _down, "down"))
            for corner in range(4)
        ),
        Mistake(
            "when, on a whole number, the slope of the cell to the left and above is taken",
            _wrong(1, cell=_left),
            "On a pixel's centre two cells meet. The kernels, and this course, take the one between floor(x) and "
            "floor(x) + 1.",
        ),
        Mistake(
            "when a point exactly a pixel outside has no slope",
            _open_border,
            OPEN_BORDER,
        ),
        Mistake(
            "when, on a whole number, the slopes of both sides are averaged",
            _two_sided,
            "That is what a central difference says at a kink, and no side of it has that slope. Take the one of the cell "
            "between floor(x) and floor(x) + 1.",
        ),
        Mistake(
            "when, on a whole number, the slope is taken to be zero",
            lambda value, shapes, locations, attention, grad_out: torch.where(
                _pixel_coordinates(locations, shapes) % 1 == 0,
                0.0,
                _backward(value, shapes, locations, attention, grad_out)[1],
            ),
            "A kink has two slopes, and neither is zero. Take the one of the cell between floor(x) and floor(x) + 1.",
        ),
        Mistake(
            "when the channels are averaged instead of added",
            lambda value, *rest: _backward(value, *rest)[1] / value.shape[-1],
            "Each channel adds its share to the loss.",
        ),
        Mistake(
            "when the result is always float32",
            lambda *call: _backward(*call)[1].float(),
            "Make the result with `torch.zeros_like(sampling_locations)`.",
        ),
    ],
    hints=[
        "Your third step gives the slope of one channel's sample. What does the loss make of D such slopes?",
        "Read the four pixels (zero where there is none). Right minus left, between the rows; lower minus upper, between the "
        "columns. Each times `g`, summed over the channels; then the attention weight, and the size factor of its own "
        "axis.",
        "With a small helper `pixel(i, j)` that returns `image[j, i]` or zeros: `along_x = (1 - fy) * (pixel(x0 + 1, y0) - "
        "pixel(x0, y0)) + …`. `floor` picks the right cell by itself, also on a whole number.",
    ],
)


# --- near_kink ------------------------------------------------------------------------------------------------------


def _pixel_coordinates(locations: Tensor, shapes: Tensor, half: float = 0.5) -> Tensor:
    """(B, Q, M, L, K, 2) in pixels."""
    return locations * shapes.flip(-1)[:, None, :] - half


def _near(locations, shapes, tol, *, half=0.5, sides=(-1, 1), last=0, first=-1, join=torch.any, scaled=0, strict=False):
    """The right answer, and by its options the wrong ones."""
    sizes = shapes.flip(-1)[:, None, :]
    x = _pixel_coordinates(locations, shapes, half)
    reach = tol * sizes.double() ** scaled
    near = torch.zeros_like(x, dtype=torch.bool)
    for whole, side in ((x.floor(), 1), (x.ceil(), -1)):
        if side in sides:
            near |= ((x - whole).abs() <= reach) & (whole >= first) & (whole <= sizes + last)
    if strict:
        near &= (x >= first) & (x <= sizes + last)
    return join(near, -1) if callable(join) else near[..., join]


def _around(draw: Draw, offsets, shapes=((3, 7), (5, 4)), whole=None, other=None, axis=None, dtype=torch.float64):
    """Points at whole numbers plus the offsets along one axis, and clear of them along the other."""
    L, K = len(shapes), len(offsets)
    locations = torch.zeros(1, 2, 2, L, K, 2, dtype=torch.float64)
    for l, (h, w) in enumerate(shapes):
        for at in ((q, m, k) for q in range(2) for m in range(2) for k in range(K)):
            q, m, k = at
            picked = draw.integer(0, 1) if axis is None else axis
            for a, size in enumerate((w, h)):
                if a == picked:
                    pixel = (draw.integer(0, size - 1) if whole is None else whole(size, draw)) + offsets[k]
                else:
                    pixel = draw.integer(0, size - 2) + draw.number(0.4, 0.6)
                locations[0, q, m, l, k, a] = (pixel + 0.5) / size
    return locations.to(dtype), torch.tensor(shapes)


def clear_of_them(draw: Draw):
    """halfway between pixels there is no kink; on a pixel there is"""
    return *_around(draw, (0.5, 0.0, 0.47, 0.0)), 0.1


def both_sides(draw: Draw):
    """a kink is near on either side of it"""
    tol = draw.number(0.05, 0.2)
    return *_around(draw, (0.7 * tol, -0.7 * tol, 1.4 * tol, -1.4 * tol)), tol


def either_axis(draw: Draw):
    """a kink along x or along y is enough"""
    axis = draw.integer(0, 1)
    first, shapes = _around(draw, (0.02, 0.5), axis=axis)
    second, _ = _around(draw, (0.02, 0.5), axis=1 - axis)
    return torch.cat([first, second], 4), shapes, 0.06


def in_pixels(draw: Draw):
    """tol counts pixels, on every level alike"""
    return *_around(draw, (0.06, 0.12, 0.2, 0.01), shapes=((2, 9), (24, 16))), draw.number(0.08, 0.1)


def at_the_borders(draw: Draw):
    """the fade to zero begins and ends in kinks too: a pixel before the first, a pixel past the last"""
    ends = lambda size, draw: draw.integer(0, 1) * (size + 1) - 1  # noqa: E731
    return *_around(draw, (0.03, -0.03, 0.3), whole=ends), 0.06


def beyond_the_borders(draw: Draw):
    """further out the sample is zero on both sides: there is nothing to trip over"""
    beyond = lambda size, draw: draw.integer(2, 4) * -1 if draw.integer(0, 1) else size + draw.integer(1, 3)  # noqa: E731
    return *_around(draw, (0.0, 0.03, 0.0), whole=beyond), 0.06


exercise(
    "07.near_kink",
    reference=lambda locations, shapes, tol: _near(locations, shapes, tol),
    cases=[clear_of_them, in_pixels, beyond_the_borders, at_the_borders, either_axis, both_sides],
    axes=["image", "query", "head", "level", "point"],
    autograd=False,
    mistakes=[
        Mistake(
            "when a kink is noticed only after it was passed",
            lambda locations, shapes, tol: _near(locations, shapes, tol, sides=(1,)),
            "x - floor(x) is small just after a whole number. What is it just before one?",
        ),
        Mistake(
            "when a kink is noticed only before it is reached",
            lambda locations, shapes, tol: _near(locations, shapes, tol, sides=(-1,)),
            "ceil(x) - x is small just before a whole number. What is it just after one?",
        ),
        Mistake(
            "when only x is looked at",
            lambda locations, shapes, tol: _near(locations, shapes, tol, join=0),
            "The sample has kinks along y too.",
        ),
        Mistake(
            "when only y is looked at",
            lambda locations, shapes, tol: _near(locations, shapes, tol, join=1),
            "The sample has kinks along x too.",
        ),
        Mistake(
            "when x and y must both be near",
            lambda locations, shapes, tol: _near(locations, shapes, tol, join=torch.all),
            "A point on a column's centre has a kink along x, wherever its y is.",
        ),
        Mistake(
            "when tol is measured in locations instead of pixels",
            lambda locations, shapes, tol: _near(locations, shapes, tol, scaled=1),
            "Compare in pixels: turn the location into a coordinate first, and measure there.",
        ),
        Mistake(
            "when tol is divided by the size",
            lambda locations, shapes, tol: _near(locations, shapes, tol, scaled=-1),
            "That would suit distances between locations. Is yours in pixels already?",
        ),
        Mistake(
            "when the half pixel is forgotten",
            lambda locations, shapes, tol: _near(locations, shapes, tol, half=0.0),
            "Those are the edges between pixels. The slope changes where a point passes a pixel's *centre*.",
        ),
        Mistake(
            "when H and W are swapped",
            lambda locations, shapes, tol: _near(locations, shapes.flip(-1), tol),
            "A row of `shapes` is (H, W); a location is (x, y).",
        ),
        Mistake(
            "when only pixels of the image count",
            lambda locations, shapes, tol: _near(locations, shapes, tol, first=0, last=-1),
            "Where does the fade to zero begin, and where does it end?",
        ),
        Mistake(
            "when the kink a pixel before the first is missing",
            lambda locations, shapes, tol: _near(locations, shapes, tol, first=0),
            "Left of -1 the sample is zero, right of it it rises.",
        ),
        Mistake(
            "when the kink a pixel past the last is missing",
            lambda locations, shapes, tol: _near(locations, shapes, tol, last=-1),
            "The last pixel is at size - 1. Where has it faded?",
        ),
        Mistake(
            "when a point just outside the outermost kinks is not looked at",
            lambda locations, shapes, tol: _near(locations, shapes, tol, strict=True),
            "A step from there crosses the kink as well. It is the whole number that must lie between -1 and the size, "
            "not the point.",
        ),
        Mistake(
            "when one whole number too many counts at either end",
            lambda locations, shapes, tol: _near(locations, shapes, tol, first=-2, last=1),
            "Two pixels outside, the sample is zero on both sides.",
        ),
        Mistake(
            "when whole numbers outside count too",
            lambda locations, shapes, tol: _near(locations, shapes, tol, first=-math.inf, last=math.inf),
            "Three pixels outside the sample is zero, and so is its slope, on both sides.",
        ),
        Mistake(
            "when tol is ignored",
            lambda locations, shapes, tol: _near(locations, shapes, 1e-9),
            "A difference quotient that steps over the kink is spoilt as well, so near is near enough.",
        ),
        Mistake(
            "when True means clear of kinks",
            lambda locations, shapes, tol: ~_near(locations, shapes, tol),
            "The question is whether a kink is near.",
        ),
        Mistake(
            "when every point is called near",
            lambda locations, shapes, tol: torch.ones(locations.shape[:-1], dtype=torch.bool),
            "Is one of the conditions always true? `&` binds more tightly than `|` and than comparisons: bracket each "
            "comparison.",
        ),
        Mistake(
            "when a point's axes are counted",
            lambda locations, shapes, tol: _near(locations, shapes, tol, join=torch.sum),
            "True or False for each point: `.any(-1)`.",
        ),
        Mistake(
            "when x and y are answered apart",
            lambda locations, shapes, tol: _near(locations, shapes, tol, join=slice(None)),
            "One answer for each point.",
        ),
    ],
    hints=[
        "In pixels, where are the kinks? Count them for an image 3 pixels wide: there are five.",
        "How far is a number from the nearest whole number? That nearest one tells you also whether there is a kink: from "
        "one before the first pixel to one past the last.",
        "`x = locations * sizes - 0.5` with sizes shaped so that each level gets its own (W, H); `nearest = x.round()`; "
        "compare the distance with tol; `.any(-1)` joins x and y.",
    ],
)


# --- grad_value ------------------------------------------------------------------------------------------------------

exercise(
    "07.grad_value",
    reference=_truth(0),
    cases=[
        one_point,
        in_float64,
        the_same_cell,
        neighbouring_cells,
        far_outside,
        across_the_border,
        several_heads,
        two_images,
        several_levels,
        several_points,
    ],
    axes=["image", "pixel", "head", "channel"],
    autograd=False,
    forbid=NO_GRID_SAMPLE,
    carries=CARRIES,
    mistakes=[
        *_common(0),
        Mistake(
            "when a pixel keeps only what the last point wrote",
            _wrong(0, into="assign"),
            "Two points share a pixel. Is something set where it should be added to?",
        ),
        Mistake(
            "when `+=` on a list of indices keeps one of several points that name the same pixel",
            _wrong(0, into="index"),
            "`t[indices] += x` reads all, adds, then writes all: of two equal indices one is lost. `index_add_` and "
            "`index_put_(…, accumulate=True)` add every one.",
        ),
        Mistake(
            "when the attention weights are missing",
            _wrong(0, attention=False),
            "A point with a small weight let little of the pixel through. How much comes back?",
        ),
        Mistake(
            "when the rows are taken to be H pixels long",
            _wrong(0, row=lambda H, W: H),
            "A row of an image (H, W) has W pixels. How far is one row from the next?",
        ),
        Mistake(
            "when the pixels are taken to lie column by column",
            _wrong(0, row=lambda H, W: 1, column=lambda H, W: H),
            "Row by row: the pixel to the right is the next one in memory.",
        ),
        Mistake(
            "when only the last row and column are checked, not the first",
            _wrong(0, outside="high"),
            "Column -1 passes `i < W`, and lands on the end of the row before. Check both ends.",
        ),
        Mistake(
            "when no corner is checked before it is written to",
            _wrong(0, outside="unchecked"),
            "A corner outside the image is no pixel, but its number may be another's, or of none. Check row and column first.",
        ),
        Mistake(
            "when it starts from the pixels themselves instead of from zeros",
            lambda value, *rest: value + _backward(value, *rest)[0],
            "A pixel nobody read has no gradient. Start from `torch.zeros_like(value)`.",
        ),
        Mistake(
            "when every head's gradient is added to all heads",
            lambda value, *rest: _backward(value, *rest)[0].sum(2, keepdim=True).expand_as(value).clone(),
            "A head read its own channels only. Which axis of the gradient is missing an index?",
        ),
        Mistake(
            "when the fractions of x and y are swapped",
            _wrong(0, weights=lambda fx, fy: _weights(fy, fx)),
            "The weights are those of the forward pass. Moving right changes x.",
        ),
        Mistake(
            "when each weight goes to the opposite corner",
            _wrong(0, weights=lambda fx, fy: _weights(1 - fx, 1 - fy)),
            "The nearer a pixel, the more it was read, and the more it gets.",
        ),
        Mistake(
            "when everything goes to the nearest pixel",
            _wrong(0, weights=lambda fx, fy: _weights(fx.round(), fy.round())),
            "Four pixels were read, each by its weight.",
        ),
        Mistake(
            "when all four pixels get the same",
            _wrong(0, weights=lambda fx, fy: (torch.ones_like(fx),) * 4),
            "How much of a pixel was read is its corner weight.",
        ),
        Mistake(
            "when the pixel's own value is multiplied in",
            lambda value, *rest: value * _backward(value, *rest)[0],
            "The output is linear in the pixel. Is the slope of 3·v equal to 3·v?",
        ),
        Mistake(
            "when the size factor of the locations is used here too",
            lambda value, shapes, locations, attention, grad_out: _backward(
                value, shapes, locations, attention * shapes.prod(-1)[:, None], grad_out
            )[0],
            "No location moves here: the pixel does.",
        ),
        Mistake(
            "when every image writes into the first",
            lambda value, *rest: torch.cat(
                [_backward(value, *rest)[0].sum(0, keepdim=True), torch.zeros_like(value[1:])]
            ),
            "The gradient has a batch axis too.",
        ),
        Mistake(
            "when the result is always float32",
            lambda *call: _backward(*call)[0].float(),
            "Make the result with `torch.zeros_like(value)`.",
        ),
    ],
    hints=[
        "In the forward pass a point reads four pixels. Which four does it write to here, and how much to each?",
        "Start from zeros shaped like `value`. Go over the points; each *adds* corner weight × attention weight × g to its "
        "corners that lie inside. Who else was there does not matter.",
        "The pixel in column i and row j of a level is row `start + j * W + i` of `value`: "
        "`grad[b, start + j * W + i, m] += weight * attention * g`.",
    ],
)


# --- stretch: all_gradients -----------------------------------------------------------------------------------------


def _all_truths(value, spatial_shapes, sampling_locations, attention_weights, grad_out):
    grads = reference.exact_gradients(value, spatial_shapes, None, sampling_locations, attention_weights, grad_out)
    return tuple(grad.to(value.dtype) for grad in grads)


def crowded(draw: Draw):
    """many points on few pixels, in and around three levels"""
    return _inputs(draw, shapes=((2, 3), (3, 2), (1, 4)), B=2, Q=4, M=3, D=5, K=2, beyond=2)


def _points_per_second(answer) -> str:
    call = _inputs(Draw(0), shapes=((24, 32), (12, 16)), Q=40, M=4, D=16, K=4)
    count = prod(call[3].shape)
    mine = _seconds(lambda: answer(*call))

    def automatic():
        value, shapes, *floats, grad_out = call
        leaves = [t.clone().requires_grad_() for t in (value, *floats)]
        torch.autograd.grad(reference.msda(leaves[0], shapes, None, *leaves[1:]), leaves, grad_out)

    theirs = _seconds(automatic)
    return f"{count / mine:,.0f} points a second; forward and backward by autograd, {count / theirs:,.0f}."


def _seconds(run) -> float:
    """The best of a few runs, within about a second."""
    best, started = math.inf, time.perf_counter()
    while best == math.inf or time.perf_counter() - started < 0.3:
        began = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - began)
    return best


def _all_wrong(**options):
    return lambda *call: _backward(*call, **options)


exercise(
    "07.all_gradients",
    reference=_all_truths,
    cases=[
        one_point,
        in_float64,
        far_outside,
        on_pixel_centres,
        one_pixel_outside,
        several_levels,
        neighbouring_cells,
        crowded,
        the_same_cell,
    ],
    parts=["grad_value", "grad_locations", "grad_attention"],
    autograd=False,
    forbid=NO_GRID_SAMPLE,
    carries=CARRIES,
    stretch=True,
    score=_points_per_second,
    mistakes=[
        Mistake(
            "when the gradients come in the order of the exercises",
            lambda *call: _backward(*call)[::-1],
            "In the order of the arguments: value, locations, attention.",
        ),
        Mistake(
            "when `+=` on a list of indices keeps one of several points that name the same pixel",
            _all_wrong(into="index"),
            "`index_add_` and `index_put_(…, accumulate=True)` add every one.",
        ),
        Mistake(
            "when a pixel keeps only what the last point wrote",
            _all_wrong(into="assign"),
            "Is something set where it should be added to?",
        ),
        Mistake(
            "when pixels outside are taken from the border",
            _all_wrong(outside="border"),
            "Clamping an index keeps the read in bounds; then what was read still has to count as zero.",
        ),
        Mistake(
            "when every level starts at the first pixel",
            _all_wrong(packed=False),
            "Level 1 begins where level 0 ends.",
        ),
        Mistake(
            "when H and W are swapped",
            lambda value, shapes, *rest: _backward(value, shapes.flip(-1), *rest),
            "A row of `spatial_shapes` is (H, W).",
        ),
    ],
    hints=[
        "Your three functions walk over the same points and read the same pixels. What can be kept from one to the next?",
        "Work on all points of a level at once: tensors (B, Q, M, K) of x0, y0, fx, fy. Then loop over the four corners only, "
        "clamp the pixel index so that it can be read, and multiply by whether it was inside.",
        "One product per corner, `(pixel * g).sum(-1)`, serves both grad_attention (times the corner's weight) and "
        "grad_locations (times the weight's slope). grad_value is one `index_add_` per corner.",
    ],
)

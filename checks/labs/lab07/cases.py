"""Lab 07, The other direction: the inputs that tell right from wrong, and the properties that must hold."""

import itertools
import math
import time
from functools import cache
from math import prod

import torch
from torch import Tensor

from checks.core.exercise import Draw, Failed
from msda_core import reference
from msda_core.differences import central_error

NO_GRID_SAMPLE = {"grid_sample": "it does what you are here to write."}
CARRIES = ["01.to_pixels", "01.corner_weights", "01.bilinear_sample"]


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


def _lends_x(answer, draw: Draw) -> None:
    """That whoever else holds x, fn among them, finds it as it was at every call."""
    x = _sixteenths(draw, 3)
    given = x.clone()

    def fn(moved: Tensor) -> Tensor:
        if not torch.equal(x, given):
            raise Failed(
                "while fn runs, the caller's x is not what it was: it was stepped itself, and put back later. Who else holds "
                "it sees that, and in most numbers x + eps - eps is not x. Step a copy.",
                key="steps x",
            )
        return moved.square().sum()

    answer(fn, x, 2.0**-4)


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
    return _inputs(draw, shapes=((2, 5), (4, 3), (3, 7)), Q=1, K=4)


def several_heads(draw: Draw):
    """a head's gradient comes from its own channels of the output"""
    return _inputs(draw, shapes=((3, 4),), Q=4, M=3, D=2, K=2)


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


def _around(draw: Draw, offsets, shapes=((3, 7), (5, 4)), whole=None, other=None, axis=None, dtype=torch.float64):
    """Points at whole numbers plus the offsets along one axis, and clear of them along the other."""
    L, K = len(shapes), len(offsets)
    locations = torch.zeros(2, 1, 3, L, K, 2, dtype=torch.float64)
    for l, (h, w) in enumerate(shapes):
        for b, m, k in itertools.product(range(2), range(3), range(K)):
            picked = draw.integer(0, 1) if axis is None else axis
            for a, size in enumerate((w, h)):
                if a == picked:
                    pixel = (draw.integer(0, size - 1) if whole is None else whole(size, draw)) + offsets[k]
                else:
                    pixel = draw.integer(0, size - 2) + draw.number(0.4, 0.6)
                locations[b, 0, m, l, k, a] = (pixel + 0.5) / size
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

"""Lab 07, The other direction: the wrong answers that are known."""

import math
from itertools import product

import torch

from checks.core.exercise import Mistake
from checks.labs.lab07.truth import _near, _pixel_coordinates, _quotient


def _near_with(
    locations, shapes, tol, *, half=0.5, sides=(-1, 1), last=0, first=-1, join=torch.any, scaled=0, strict=False
):
    """The answer with one of its choices made otherwise."""
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


def _quotient_with(fn, x, eps, *, ahead=1.0, behind=1.0, over=None, together=False, keep=False, flat=False):
    """The answer with one of its choices made otherwise."""
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


def _in_place(fn, x, eps):
    grad = _quotient(fn, x, eps)
    x += eps
    return grad


def _there_and_back(fn, x, eps):
    grad = torch.zeros_like(x)
    for index in product(*map(range, x.shape)):
        x[index] += eps
        ahead = fn(x)
        x[index] -= 2 * eps
        grad[index] = (ahead - fn(x)) / (2 * eps)
        x[index] += eps
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


def _weights(fx, fy):
    return (1 - fx) * (1 - fy), fx * (1 - fy), (1 - fx) * fy, fx * fy


def _across(fx, fy):
    return -(1 - fy), 1 - fy, -fy, fy


def _down(fx, fy):
    return -(1 - fx), -fx, 1 - fx, fx


def _mixed_down(fx, fy):
    """The signs of the rows, with the rows' own weights in place of the columns'."""
    return -(1 - fy), -(1 - fy), fy, fy


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
            elif outside == "inner":  # the first row and column are taken to be outside
                keep = (i > 0) & (i < W) & (j > 0) & (j < H)
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
        start = H * W + (0 if packed == "last" else start)
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


def _mixed_axes(which: int):
    """grad_out read as if all queries of a head lay together."""

    def answer(value, shapes, locations, attention, grad_out):
        B, Q, _ = grad_out.shape
        M, D = value.shape[2:]
        mixed = grad_out.reshape(B, M, Q, D).transpose(1, 2).reshape(B, Q, M * D)
        return _backward(value, shapes, locations, attention, mixed)[which]

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
        Mistake(
            "when column 0 and row 0 are taken to be outside",
            _wrong(which, outside="inner"),
            "The first column and the first row have number 0, and both exist.",
        ),
        Mistake(
            "when a level is taken to begin after the level before it alone",
            _wrong(which, packed="last"),
            "Before level 2 lie the pixels of level 0 and those of level 1.",
        ),
        Mistake(
            "when coordinates are scaled by W - 1 and H - 1",
            _wrong(which, half=0.0, minus=1),
            "Location 1 is the outer edge of the last pixel, not its centre.",
        ),
        Mistake(
            "when grad_out is read as (M, Q)",
            _mixed_axes(which),
            "`grad_out` is (B, Q, M * D): a query's heads follow one another. Is an axis moved by a reshape that should be "
            "moved by a transpose, or by neither?",
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


def _all_wrong(**options):
    return lambda *call: _backward(*call, **options)


def _one_wrong(which: int, change):
    """The three gradients, of which one is changed: change(gradient, *call)."""

    def answer(*call):
        found = list(_backward(*call))
        found[which] = change(found[which], *call)
        return tuple(found)

    return answer


def _per_pixel(_, *call):
    return _backward(*call, size=lambda H, W: (1, 1))[1]


def _without_attention(which: int):
    return lambda _, *call: _backward(*call, attention=False)[which]


def _through_softmax(grad, value, shapes, locations, attention, grad_out):
    a, g = attention.flatten(3), grad.flatten(3)
    return (a * (g - (a * g).sum(-1, keepdim=True))).view_as(attention)


def _pile_up(fn, x, eps):
    grad, ahead, behind = torch.zeros_like(x), x.clone(), x.clone()
    for index in product(*map(range, x.shape)):
        ahead[index] += eps
        behind[index] -= eps
        grad[index] = (fn(ahead) - fn(behind)) / (2 * eps)
    return grad


NUMERIC_GRADIENT: list[Mistake] = [
    Mistake(
        "when only the step ahead is taken",
        lambda fn, x, eps: _quotient_with(fn, x, eps, behind=0.0),
        "(f(x + eps) - f(x)) / eps leans to one side: on a parabola it is off by eps. What would balance it?",
    ),
    Mistake(
        "when only the step back is taken",
        lambda fn, x, eps: _quotient_with(fn, x, eps, ahead=0.0),
        "(f(x) - f(x - eps)) / eps leans to one side: on a parabola it is off by eps. What would balance it?",
    ),
    Mistake(
        "when the difference is divided by eps, though the two sides are 2 eps apart",
        lambda fn, x, eps: _quotient_with(fn, x, eps, over=1.0),
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
        lambda fn, x, eps: _quotient_with(fn, x, eps, together=True),
        "That is the slope in one direction, along the diagonal. A gradient has one number for each element.",
    ),
    Mistake(
        "when an element that was moved is not put back",
        lambda fn, x, eps: _quotient_with(fn, x, eps, keep=True),
        "When the second element moves, where should the first one be?",
    ),
    Mistake(
        "when the two copies are made once, and every step stays in them",
        _pile_up,
        "When the second element moves, where should the first one be? A copy is needed for each element, or a step back.",
    ),
    Mistake(
        "when x itself is moved",
        lambda fn, x, eps: _in_place(fn, x, eps),
        "x belongs to the caller, who did not ask for it to change. Move a copy.",
    ),
    Mistake(
        "when x itself is moved and put back",
        lambda fn, x, eps: _there_and_back(fn, x, eps),
        "x belongs to the caller, and so does what fn makes of it meanwhile. Move a copy.",
    ),
    Mistake(
        "when fn is given the same point twice",
        lambda fn, x, eps: _quotient_with(fn, x, eps, ahead=0.0, behind=0.0, over=2.0),
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
        lambda fn, x, eps: _quotient_with(fn, x, eps, flat=True),
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
]


CHOOSE_EPS: list[Mistake] = [
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
]


GRAD_ATTENTION: list[Mistake] = [
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
        "when the four pixels are added up without their weights",
        _wrong(2, weights=lambda fx, fy: (torch.ones_like(fx),) * 4),
        "The sample is the one of the forward pass: four pixels, each by its weight.",
    ),
    Mistake(
        "when only the last corner is left",
        _wrong(2, weights=lambda fx, fy: (0 * fx, 0 * fx, 0 * fx, fx * fy)),
        "Four corners take part. Is something set where it should be added to?",
    ),
    Mistake(
        "when each weight goes to the opposite corner",
        _wrong(2, weights=lambda fx, fy: _weights(1 - fx, 1 - fy)),
        "The nearer a pixel, the more it is read.",
    ),
    Mistake(
        "when the derivative of a softmax is taken as well",
        lambda *call: _through_softmax(_backward(*call)[2], *call),
        "The weights come in as they are. Whoever made them by a softmax goes on from your gradient.",
    ),
    Mistake(
        "when the mean over the points is taken",
        lambda *call: _backward(*call)[2] / call[3][0, 0, 0].numel(),
        "The output is a sum over the points. Nothing is divided.",
    ),
    Mistake(
        "when the result is always float32",
        lambda *call: _backward(*call)[2].float(),
        "Make the result with `torch.zeros_like(attention_weights)`.",
    ),
]


GRAD_LOCATIONS: list[Mistake] = [
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
        "when the slope along y weighs the rows, and not the columns",
        _wrong(1, down=_mixed_down),
        "Along y: lower minus upper, in each column. How much a column counts depends on where the point is between the "
        "*columns*.",
    ),
    Mistake(
        "when the slope along x is stored for y as well",
        lambda *call: _backward(*call)[1][..., :1].expand_as(call[2]).clone(),
        "A point can move down too.",
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
]


NEAR_KINK: list[Mistake] = [
    Mistake(
        "when a kink is noticed only after it was passed",
        lambda locations, shapes, tol: _near_with(locations, shapes, tol, sides=(1,)),
        "x - floor(x) is small just after a whole number. What is it just before one?",
    ),
    Mistake(
        "when a kink is noticed only before it is reached",
        lambda locations, shapes, tol: _near_with(locations, shapes, tol, sides=(-1,)),
        "ceil(x) - x is small just before a whole number. What is it just after one?",
    ),
    Mistake(
        "when only x is looked at",
        lambda locations, shapes, tol: _near_with(locations, shapes, tol, join=0),
        "The sample has kinks along y too.",
    ),
    Mistake(
        "when only y is looked at",
        lambda locations, shapes, tol: _near_with(locations, shapes, tol, join=1),
        "The sample has kinks along x too.",
    ),
    Mistake(
        "when x and y must both be near",
        lambda locations, shapes, tol: _near_with(locations, shapes, tol, join=torch.all),
        "A point on a column's centre has a kink along x, wherever its y is.",
    ),
    Mistake(
        "when tol is measured in locations instead of pixels",
        lambda locations, shapes, tol: _near_with(locations, shapes, tol, scaled=1),
        "Compare in pixels: turn the location into a coordinate first, and measure there.",
    ),
    Mistake(
        "when tol is divided by the size",
        lambda locations, shapes, tol: _near_with(locations, shapes, tol, scaled=-1),
        "That would suit distances between locations. Is yours in pixels already?",
    ),
    Mistake(
        "when the half pixel is forgotten",
        lambda locations, shapes, tol: _near_with(locations, shapes, tol, half=0.0),
        "Those are the edges between pixels. The slope changes where a point passes a pixel's *centre*.",
    ),
    Mistake(
        "when H and W are swapped",
        lambda locations, shapes, tol: _near(locations, shapes.flip(-1), tol),
        "A row of `shapes` is (H, W); a location is (x, y).",
    ),
    Mistake(
        "when only pixels of the image count",
        lambda locations, shapes, tol: _near_with(locations, shapes, tol, first=0, last=-1),
        "Where does the fade to zero begin, and where does it end?",
    ),
    Mistake(
        "when the kink a pixel before the first is missing",
        lambda locations, shapes, tol: _near_with(locations, shapes, tol, first=0),
        "Left of -1 the sample is zero, right of it it rises.",
    ),
    Mistake(
        "when the kink a pixel past the last is missing",
        lambda locations, shapes, tol: _near_with(locations, shapes, tol, last=-1),
        "The last pixel is at size - 1. Where has it faded?",
    ),
    Mistake(
        "when a point just outside the outermost kinks is not looked at",
        lambda locations, shapes, tol: _near_with(locations, shapes, tol, strict=True),
        "A step from there crosses the kink as well. It is the whole number that must lie between -1 and the size, "
        "not the point.",
    ),
    Mistake(
        "when one whole number too many counts at either end",
        lambda locations, shapes, tol: _near_with(locations, shapes, tol, first=-2, last=1),
        "Two pixels outside, the sample is zero on both sides.",
    ),
    Mistake(
        "when whole numbers outside count too",
        lambda locations, shapes, tol: _near_with(locations, shapes, tol, first=-math.inf, last=math.inf),
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
        lambda locations, shapes, tol: _near_with(locations, shapes, tol, join=torch.sum),
        "True or False for each point: `.any(-1)`.",
    ),
    Mistake(
        "when x and y are answered apart",
        lambda locations, shapes, tol: _near_with(locations, shapes, tol, join=slice(None)),
        "One answer for each point.",
    ),
]


GRAD_VALUE: list[Mistake] = [
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
        "when every head writes into the first",
        lambda value, *rest: torch.cat(
            [_backward(value, *rest)[0].sum(2, keepdim=True), torch.zeros_like(value[:, :, 1:])], 2
        ),
        "Head m read its own part of the pixel. Where does its gradient belong?",
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
        lambda value, *rest: torch.cat([_backward(value, *rest)[0].sum(0, keepdim=True), torch.zeros_like(value[1:])]),
        "The gradient has a batch axis too.",
    ),
    Mistake(
        "when the result is always float32",
        lambda *call: _backward(*call)[0].float(),
        "Make the result with `torch.zeros_like(value)`.",
    ),
]


ALL_GRADIENTS: list[Mistake] = [
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
    Mistake(
        "when locations come before value",
        lambda *call: (lambda v, l, a: (l, v, a))(*_backward(*call)),
        "In the order of the arguments: value, locations, attention.",
    ),
    Mistake(
        "when the half pixel is forgotten",
        _all_wrong(half=0.0),
        "Location 0 is the edge of the first pixel, and pixels are counted at their centres.",
    ),
    Mistake(
        "when x and y of the sampling locations are swapped",
        lambda value, shapes, locations, *rest: (lambda v, l, a: (v, l.flip(-1), a))(
            *_backward(value, shapes, locations.flip(-1), *rest)
        ),
        "The last axis of `sampling_locations` is (x, y), while an image is indexed [row, column].",
    ),
    Mistake(
        "when coordinates are cut off towards zero instead of rounded down",
        _all_wrong(cell=torch.trunc),
        "`.long()` of -0.5 is 0. Which pixel lies to the left of -0.5?",
    ),
    Mistake(
        "when a level is taken to begin after the level before it alone",
        _all_wrong(packed="last"),
        "Before level 2 lie the pixels of level 0 and those of level 1.",
    ),
    Mistake(
        "when the size factor is forgotten in grad_locations",
        _one_wrong(1, _per_pixel),
        "That is the slope per pixel. A location runs from 0 to 1: how many pixels does it cross?",
    ),
    Mistake(
        "when the attention weight is missing in grad_locations",
        _one_wrong(1, _without_attention(1)),
        "The sample is multiplied by its weight before it reaches the output, and so is its slope.",
    ),
    Mistake(
        "when the attention weight is missing in grad_value",
        _one_wrong(0, _without_attention(0)),
        "A point with a small weight let little of the pixel through. How much comes back?",
    ),
    Mistake(
        "when the attention weight is still in grad_attention",
        _one_wrong(2, _without_attention(2)),
        "The output is linear in the weight. Is the slope of 3·A equal to 3·A?",
    ),
    Mistake(
        "when the derivative of a softmax is taken in grad_attention as well",
        _one_wrong(2, _through_softmax),
        "The weights come in as they are. Whoever made them by a softmax goes on from your gradient.",
    ),
]

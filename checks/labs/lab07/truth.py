"""Lab 07, The other direction: what is right."""

from itertools import product

import torch
from torch import Tensor

from msda_core import reference


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


def _truth(which: int):
    """The gradient number `which`, by differentiating the reference in float64."""

    def truth(value, spatial_shapes, sampling_locations, attention_weights, grad_out):
        return reference.exact_gradients(
            value, spatial_shapes, None, sampling_locations, attention_weights, grad_out
        )[which].to(value.dtype)  # fmt: skip

    return truth


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


# --- stretch: all_gradients -----------------------------------------------------------------------------------------


def _all_truths(value, spatial_shapes, sampling_locations, attention_weights, grad_out):
    grads = reference.exact_gradients(value, spatial_shapes, None, sampling_locations, attention_weights, grad_out)
    return tuple(grad.to(value.dtype) for grad in grads)

"""Lab 07, The other direction: what is right."""

from itertools import product

import torch
from torch import Tensor

from msda_core import reference


def _quotient(fn, x, eps):
    """Two-sided difference quotients, element by element."""
    grad = torch.zeros_like(x)
    for index in product(*map(range, x.shape)):
        ahead, behind = x.clone(), x.clone()
        ahead[index] += eps
        behind[index] -= eps
        grad[index] = (fn(ahead) - fn(behind)) / (2 * eps)
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


def _near(locations, shapes, tol):
    """Whether x or y lies within tol of a whole number from -1 to the level's size."""
    sizes = shapes.flip(-1)[:, None, :]
    x = _pixel_coordinates(locations, shapes)
    near = torch.zeros_like(x, dtype=torch.bool)
    for whole in (x.floor(), x.ceil()):
        near |= ((x - whole).abs() <= tol) & (whole >= -1) & (whole <= sizes)
    return near.any(-1)


# --- stretch: all_gradients -----------------------------------------------------------------------------------------


def _all_truths(value, spatial_shapes, sampling_locations, attention_weights, grad_out):
    grads = reference.exact_gradients(value, spatial_shapes, None, sampling_locations, attention_weights, grad_out)
    return tuple(grad.to(value.dtype) for grad in grads)

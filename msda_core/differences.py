"""Central differences, measured: how far off they are, in the arithmetic they are computed in."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["central_error"]


def central_error(
    function: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor], points: Tensor, eps: float
) -> float:
    """The error of (f(x + eps) - f(x - eps)) / (2 eps), computed in the points' dtype.

    Args:
        function, slope: elementwise, and its exact derivative; `slope` is evaluated in float64.
        points: (N,), where to measure; its dtype is the arithmetic under test.
        eps: the step.

    Returns:
        The root mean square of the error over the points, relative to that of the derivative; infinite where the
        quotient is no number.
    """
    step = torch.tensor(eps, dtype=points.dtype)
    if not step > 0:
        return math.inf
    quotient = ((function(points + step) - function(points - step)) / (2 * step)).double()
    truth = slope(points.double())
    error = ((quotient - truth).square().mean() / truth.square().mean()).sqrt().item()
    return error if math.isfinite(error) else math.inf

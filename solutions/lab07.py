"""Lab 07, The other direction: one way to answer it."""

from collections.abc import Callable
from itertools import product
from math import floor

import torch

from solutions import lab01


def numeric_gradient(fn: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, eps: float) -> torch.Tensor:
    """The gradient of a function, found by trying: central differences, one element at a time.

    Args:
        fn: takes a tensor like x and returns one number, a tensor without axes.
        x: where to take the gradient; of any shape, also a transposed view; not to be changed.
        eps: how far to step to either side.

    Returns:
        Shaped and typed like x: (fn(x with this element eps larger) - fn(… eps smaller)) / (2 eps).
    """
    grad = torch.zeros_like(x)
    for index in product(*map(range, x.shape)):
        ahead, behind = x.clone(), x.clone()
        ahead[index] += eps
        behind[index] -= eps
        grad[index] = (fn(ahead) - fn(behind)) / (2 * eps)
    return grad


def choose_eps(dtype: torch.dtype) -> float:
    """A good step for central differences of a smooth function, whose argument and values are of the order of 1.

    Args:
        dtype: what the function computes in: torch.float64, float32, float16 or bfloat16.

    Returns:
        The step.
    """
    return torch.finfo(dtype).eps ** (1 / 3)


def grad_attention(
    value: torch.Tensor,
    spatial_shapes: torch.Tensor,
    sampling_locations: torch.Tensor,
    attention_weights: torch.Tensor,
    grad_out: torch.Tensor,
) -> torch.Tensor:
    """How the loss changes with each attention weight.

    Args:
        value: (B, S, M, D); the pixels of level 0 row by row, then those of level 1, and so on.
        spatial_shapes: (L, 2), the (H, W) of each level.
        sampling_locations: (B, Q, M, L, K, 2), each point's (x, y): 0 and 1 are a level's edges; also outside.
        attention_weights: (B, Q, M, L, K), each point's weight.
        grad_out: (B, Q, M * D), how the loss changes with each number of the output.

    Returns:
        (B, Q, M, L, K), in attention_weights' dtype.
    """
    B, S, M, D = value.shape
    grad = torch.zeros_like(attention_weights)
    starts = [0, *spatial_shapes.prod(-1).cumsum(0).tolist()]
    for b, q, m, l, k in product(*map(range, attention_weights.shape)):
        H, W = spatial_shapes[l].tolist()
        image = value[b, starts[l] : starts[l + 1], m].reshape(H, W, D)
        x, y = sampling_locations[b, q, m, l, k].tolist()
        sample = lab01.bilinear_sample(image, lab01.to_pixels(x, W), lab01.to_pixels(y, H))
        g = grad_out[b, q].reshape(M, D)[m]
        grad[b, q, m, l, k] = (g * sample).sum()
    return grad


def grad_locations(
    value: torch.Tensor,
    spatial_shapes: torch.Tensor,
    sampling_locations: torch.Tensor,
    attention_weights: torch.Tensor,
    grad_out: torch.Tensor,
) -> torch.Tensor:
    """How the loss changes with each sampling location.

    Where a pixel coordinate is a whole number the sample has a kink: take the slope of the cell between floor(x) and
    floor(x) + 1.

    Args:
        value: (B, S, M, D); the pixels of level 0 row by row, then those of level 1, and so on.
        spatial_shapes: (L, 2), the (H, W) of each level.
        sampling_locations: (B, Q, M, L, K, 2), each point's (x, y): 0 and 1 are a level's edges; also outside.
        attention_weights: (B, Q, M, L, K), each point's weight.
        grad_out: (B, Q, M * D), how the loss changes with each number of the output.

    Returns:
        (B, Q, M, L, K, 2), in sampling_locations' dtype.
    """
    B, S, M, D = value.shape
    grad = torch.zeros_like(sampling_locations)
    starts = [0, *spatial_shapes.prod(-1).cumsum(0).tolist()]
    for b, q, m, l, k in product(*map(range, attention_weights.shape)):
        H, W = spatial_shapes[l].tolist()
        image = value[b, starts[l] : starts[l + 1], m].reshape(H, W, D)
        x, y = sampling_locations[b, q, m, l, k].tolist()
        x, y = lab01.to_pixels(x, W), lab01.to_pixels(y, H)
        x0, y0 = floor(x), floor(y)
        fx, fy = x - x0, y - y0
        v00, v10, v01, v11 = (
            image[j, i] if 0 <= i < W and 0 <= j < H else image.new_zeros(D)
            for i, j in ((x0, y0), (x0 + 1, y0), (x0, y0 + 1), (x0 + 1, y0 + 1))
        )
        slope_x = (1 - fy) * (v10 - v00) + fy * (v11 - v01)
        slope_y = (1 - fx) * (v01 - v00) + fx * (v11 - v10)
        g = attention_weights[b, q, m, l, k] * grad_out[b, q].reshape(M, D)[m]
        grad[b, q, m, l, k, 0] = W * (g * slope_x).sum()
        grad[b, q, m, l, k, 1] = H * (g * slope_y).sum()
    return grad


def near_kink(locations: torch.Tensor, shapes: torch.Tensor, tol: float) -> torch.Tensor:
    """Which points lie so near a kink that a step of tol pixels could cross it.

    Args:
        locations: (B, Q, M, L, K, 2), each point's (x, y): 0 and 1 are a level's edges; also outside.
        shapes: (L, 2), the (H, W) of each level.
        tol: pixels.

    Returns:
        (B, Q, M, L, K), bool: True where x or y lies within tol of a whole number of pixels at which the slope can
        change, from -1 (where the sample begins to rise) to the size (where it has faded).
    """
    sizes = shapes.flip(-1)[:, None, :]  # (L, 1, 2), as (W, H)
    x = locations * sizes - 0.5
    nearest = x.round()
    return (((x - nearest).abs() <= tol) & (nearest >= -1) & (nearest <= sizes)).any(-1)


def grad_value(
    value: torch.Tensor,
    spatial_shapes: torch.Tensor,
    sampling_locations: torch.Tensor,
    attention_weights: torch.Tensor,
    grad_out: torch.Tensor,
) -> torch.Tensor:
    """How the loss changes with each pixel.

    Args:
        value: (B, S, M, D); the pixels of level 0 row by row, then those of level 1, and so on.
        spatial_shapes: (L, 2), the (H, W) of each level.
        sampling_locations: (B, Q, M, L, K, 2), each point's (x, y): 0 and 1 are a level's edges; also outside.
        attention_weights: (B, Q, M, L, K), each point's weight.
        grad_out: (B, Q, M * D), how the loss changes with each number of the output.

    Returns:
        (B, S, M, D), in value's dtype.
    """
    B, S, M, D = value.shape
    grad = torch.zeros_like(value)
    starts = [0, *spatial_shapes.prod(-1).cumsum(0).tolist()]
    for b, q, m, l, k in product(*map(range, attention_weights.shape)):
        H, W = spatial_shapes[l].tolist()
        x, y = sampling_locations[b, q, m, l, k].tolist()
        (x0, y0), weights = lab01.corner_weights(lab01.to_pixels(x, W), lab01.to_pixels(y, H))
        g = attention_weights[b, q, m, l, k] * grad_out[b, q].reshape(M, D)[m]
        for (i, j), weight in zip(((x0, y0), (x0 + 1, y0), (x0, y0 + 1), (x0 + 1, y0 + 1)), weights):
            if 0 <= i < W and 0 <= j < H:
                grad[b, starts[l] + j * W + i, m] += weight * g
    return grad


def all_gradients(
    value: torch.Tensor,
    spatial_shapes: torch.Tensor,
    sampling_locations: torch.Tensor,
    attention_weights: torch.Tensor,
    grad_out: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """All three gradients at once, without a loop over points.

    Args:
        value: (B, S, M, D); the pixels of level 0 row by row, then those of level 1, and so on.
        spatial_shapes: (L, 2), the (H, W) of each level.
        sampling_locations: (B, Q, M, L, K, 2), each point's (x, y): 0 and 1 are a level's edges; also outside.
        attention_weights: (B, Q, M, L, K), each point's weight.
        grad_out: (B, Q, M * D), how the loss changes with each number of the output.

    Returns:
        The gradients of value, sampling_locations and attention_weights, each shaped and typed like its own.
    """
    B, S, M, D = value.shape
    Q = grad_out.shape[1]
    sizes = spatial_shapes.flip(-1)[:, None, :]  # (L, 1, 2), as (W, H)
    H, W = spatial_shapes[:, None, 0], spatial_shapes[:, None, 1]
    starts = (spatial_shapes.prod(-1).cumsum(0) - spatial_shapes.prod(-1))[:, None]
    coordinates = sampling_locations * sizes - 0.5
    whole = coordinates.floor()
    (x0, y0), (fx, fy) = whole.long().unbind(-1), (coordinates - whole).unbind(-1)  # (B, Q, M, L, K) each
    g = grad_out.reshape(B, Q, M, 1, 1, D)
    # One row of the table is one pixel of one head: (B * S * M, D).
    table, grad_value = value.reshape(-1, D), value.new_zeros(B * S * M, D)
    image, head = torch.arange(B).reshape(B, 1, 1, 1, 1), torch.arange(M).reshape(M, 1, 1)
    dots = {}
    for j in (0, 1):
        for i in (0, 1):
            inside = (x0 + i >= 0) & (x0 + i < W) & (y0 + j >= 0) & (y0 + j < H)
            pixel = starts + torch.where(inside, (y0 + j) * W + x0 + i, 0)
            row = (image * S + pixel) * M + head
            weight = (fx if i else 1 - fx) * (fy if j else 1 - fy) * inside
            dots[i, j] = (table[row] * g).sum(-1) * inside
            amount = (weight * attention_weights)[..., None] * g
            grad_value.index_add_(0, row.flatten(), amount.reshape(-1, D))
    upper, lower = dots[0, 0] + fx * (dots[1, 0] - dots[0, 0]), dots[0, 1] + fx * (dots[1, 1] - dots[0, 1])
    slope_x = (1 - fy) * (dots[1, 0] - dots[0, 0]) + fy * (dots[1, 1] - dots[0, 1])
    slopes = torch.stack([slope_x, lower - upper], -1)
    return (
        grad_value.reshape(value.shape),
        sizes * attention_weights[..., None] * slopes,
        upper + fy * (lower - upper),
    )

"""`grid_sample` with derivatives of its derivatives, which PyTorch's has not.

Everything here samples images (N, C, H, W) at grids (N, …, 2) of two more dimensions, (x, y) from -1 to 1, bilinearly
between pixel centres and zero outside: `grid_sample(padding_mode="zeros", align_corners=False)`.

    sample           S(image, grid), differentiable twice, in reverse and in forward mode
    sample_backward  its two gradients
    sample_jvp       S(d_image, grid) + dS/dgrid · d_grid, its derivative along a direction
    sample_second    the gradients of <g, sample_jvp> in image and grid: the backward of the backward

With a pixel's four neighbours v_00 … v_11 and (fx, fy) the way past the first of them, in pixels,

    S = v_00 (1-fx)(1-fy) + v_01 fx (1-fy) + v_10 (1-fx) fy + v_11 fx fy

is linear in fx and in fy, so of its second derivatives only the mixed one is not zero: v_00 - v_01 - v_10 + v_11.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.functional import grid_sample

__all__ = ["sample", "sample_backward", "sample_jvp", "sample_second"]


def sample(image: Tensor, grid: Tensor) -> Tensor:
    """Bilinear samples (N, C, …) of images (N, C, H, W) at a grid (N, …, 2) from -1 to 1; zero outside."""
    if _tracked():
        return _Sample.apply(image, grid)
    return grid_sample(image, grid, padding_mode="zeros", align_corners=False)


def sample_backward(g: Tensor, image: Tensor, grid: Tensor, wanted=(True, True)) -> tuple[Any, Any]:
    """The gradients of <g, sample(image, grid)> in image and grid, those that are wanted."""
    return torch.ops.aten.grid_sampler_2d_backward(g, image, grid, 0, 0, False, list(wanted))


def sample_jvp(image: Tensor, grid: Tensor, d_image: Tensor | None, d_grid: Tensor | None) -> Tensor:
    """How samples (N, C, …) move as image moves along d_image and grid along d_grid; None for one that rests."""
    out: Any = 0
    if d_image is not None:
        out = grid_sample(d_image, grid, padding_mode="zeros", align_corners=False)
    if d_grid is not None:
        fx, fy, pixels, inside = _cells(grid, image)
        v_00, v_01, v_10, v_11 = (_gather(image, pixel, mask) for pixel, mask in zip(pixels, inside))
        step_x, step_y = _per_pixel(d_grid, image)
        out = out + step_x * ((v_01 - v_00) * (1 - fy) + (v_11 - v_10) * fy)
        out = out + step_y * ((v_10 - v_00) * (1 - fx) + (v_11 - v_01) * fx)
    return out


def sample_second(
    g: Tensor, image: Tensor, grid: Tensor, d_image: Tensor | None, d_grid: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The gradients of <g, sample_jvp(image, grid, d_image, d_grid)> in image and grid.

    A second derivative is symmetric, so this is also how `sample_backward(g, image, grid)` moves along (d_image, d_grid).
    """
    grad_image, grad_grid = torch.zeros_like(image), torch.zeros_like(grid)
    if d_image is not None:
        grad_grid = grad_grid + sample_backward(g, d_image, grid, (False, True))[1]
    if d_grid is not None:
        fx, fy, pixels, inside = _cells(grid, image)
        step_x, step_y = _per_pixel(d_grid, image)
        v_00, v_01, v_10, v_11 = (_gather(image, pixel, mask) for pixel, mask in zip(pixels, inside))
        mixed = (g * (v_00 - v_01 - v_10 + v_11)).sum(1)
        H, W = image.shape[-2:]
        turned = torch.stack([mixed * step_y[:, 0] * (W / 2), mixed * step_x[:, 0] * (H / 2)], -1)
        grad_grid = grad_grid + turned
        weights = (
            -step_x * (1 - fy) - step_y * (1 - fx), step_x * (1 - fy) - step_y * fx,
            -step_x * fy + step_y * (1 - fx), step_x * fy + step_y * fx,
        )  # fmt: skip
        flat = torch.zeros_like(image).flatten(2)
        for pixel, mask, weight in zip(pixels, inside, weights):
            part = torch.where(mask, g * weight, 0).flatten(2)
            flat = flat.scatter_add(2, pixel.flatten(2).expand_as(part), part)
        grad_image = grad_image + flat.view_as(image)
    return grad_image, grad_grid


def _cells(grid: Tensor, image: Tensor) -> tuple[Tensor, Tensor, list[Tensor], list[Tensor]]:
    """fx, fy (N, 1, …) in [0, 1), and of each of the four pixels its number (N, 1, …) in H*W and whether it exists."""
    H, W = image.shape[-2:]
    x, y = (((grid[:, None, ..., axis] + 1) * size - 1) / 2 for axis, size in enumerate((W, H)))
    x0, y0 = x.floor(), y.floor()
    pixels, inside = [], []
    for j in (y0, y0 + 1):
        for i in (x0, x0 + 1):
            inside.append((i >= 0) & (i < W) & (j >= 0) & (j < H))
            pixels.append(torch.where(inside[-1], j * W + i, 0).long())
    return x - x0, y - y0, pixels, inside


def _gather(image: Tensor, pixel: Tensor, mask: Tensor) -> Tensor:
    N, C = image.shape[:2]
    values = image.flatten(2).gather(2, pixel.flatten(2).expand(N, C, -1))
    return torch.where(mask, values.view(N, C, *pixel.shape[2:]), 0)  # not times the mask: 0 * inf is NaN


def _per_pixel(d_grid: Tensor, image: Tensor) -> tuple[Tensor, Tensor]:
    """A direction in the grid's units, in pixels: two of (N, 1, …)."""
    H, W = image.shape[-2:]
    return d_grid[:, None, ..., 0] * (W / 2), d_grid[:, None, ..., 1] * (H / 2)


def _tracked() -> bool:
    return torch.is_grad_enabled() or forward_ad._current_level >= 0


class _Sample(torch.autograd.Function):
    @staticmethod
    def forward(ctx, image, grid):
        ctx.save_for_backward(image, grid)
        ctx.save_for_forward(image, grid)
        return grid_sample(image, grid, padding_mode="zeros", align_corners=False)

    @staticmethod
    def backward(ctx, g):
        image, grid = ctx.saved_tensors
        if _tracked():  # create_graph=True
            return _SampleBackward.apply(g, image, grid)
        return sample_backward(g, image, grid, ctx.needs_input_grad)

    @staticmethod
    def jvp(ctx, d_image, d_grid):
        return sample_jvp(*ctx.saved_tensors, d_image, d_grid)


class _SampleBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, g, image, grid):
        ctx.save_for_backward(g, image, grid)
        ctx.save_for_forward(g, image, grid)
        return sample_backward(g, image, grid)

    @staticmethod
    def backward(ctx, d_image, d_grid):
        g, image, grid = ctx.saved_tensors
        return _SampleSecond.apply(g, image, grid, d_image, d_grid)

    @staticmethod
    def jvp(ctx, d_g, d_image, d_grid):
        g, image, grid = ctx.saved_tensors
        moved = sample_second(g, image, grid, d_image, d_grid)
        if d_g is None:
            return moved
        return tuple(a + b for a, b in zip(moved, sample_backward(d_g, image, grid)))


class _SampleSecond(torch.autograd.Function):
    @staticmethod
    def forward(ctx, g, image, grid, d_image, d_grid):
        return sample_jvp(image, grid, d_image, d_grid), *sample_second(g, image, grid, d_image, d_grid)

    @staticmethod
    def backward(ctx, *grads):
        raise RuntimeError(
            "multi_scale_deformable_attention is differentiable twice, expected a first or second derivative, got a "
            "third one. Is create_graph=True meant on the second backward?"
        )

"""What correct means: the operator in loops, on `grid_sample`, and as a sum over every pixel.

Three derivations that share no code, held to each other by the tests. All run anywhere and in any dtype; `exact` and
`exact_gradients` run them in float64, and every tolerance in this project is measured against those two.

Source: Deformable DETR (Zhu et al., 2021), Eq. 2 and 3, with the sampling convention of its CUDA operator:
a location (x, y) in [0, 1] is the pixel coordinate (x*W - 0.5, y*H - 0.5), and pixels outside the image are zero.
"""

from collections.abc import Sequence
from math import floor

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from msda_core.shapes import Dims, Levels, Starts, check_dims, check_levels, level_starts, levels_of, starts_of

__all__ = [
    "bilinear_sample",
    "exact",
    "exact_gradients",
    "msda",
    "msda_checked",
    "msda_dense",
    "msda_gradients",
    "msda_loops",
]


def bilinear_sample(image: Tensor, x: float, y: float) -> Tensor:
    """Read a feature map between its pixels; zero outside it.

    Args:
        image: (H, W, D).
        x, y: pixel coordinates; (0, 0) is the centre of the first pixel.

    Returns:
        (D,), in image's dtype.

    Source: Deformable DETR (Zhu et al., 2021), the sampling step of Eq. 2.
    """
    H, W, D = image.shape
    out = image.new_zeros(D)
    if not (-1 < x < W and -1 < y < H):  # also False for NaN
        return out
    x0, y0 = floor(x), floor(y)
    for j, wy in ((y0, y0 + 1 - y), (y0 + 1, y - y0)):
        for i, wx in ((x0, x0 + 1 - x), (x0 + 1, x - x0)):
            if 0 <= j < H and 0 <= i < W:
                out = out + wy * wx * image[j, i]
    return out


def msda_loops(
    value: Tensor,
    spatial_shapes: Levels,
    level_start_index: Starts,
    sampling_locations: Tensor,
    attention_weights: Tensor,
) -> Tensor:
    """Multi-scale deformable attention, one point at a time.

    Args:
        value: (B, S, M, D), the levels' pixels one level after another.
        spatial_shapes: (L, 2), (H, W) of each level.
        level_start_index: (L,), first pixel of each level; None for levels that lie one after another.
        sampling_locations: (B, Q, M, L, K, 2), (x, y) in [0, 1]; outside contributes zero, as do NaN and infinity.
        attention_weights: (B, Q, M, L, K).

    Returns:
        (B, Q, M*D), in value's dtype.

    Raises:
        ValueError: shapes, dtypes or levels do not fit together.
    """
    levels, starts, dims = _checked(value, spatial_shapes, level_start_index, sampling_locations, attention_weights)
    B, S, M, D, Q, L, K = dims
    out = value.new_zeros(B, Q, M, D)
    for b in range(B):
        for q in range(Q):
            for m in range(M):
                for l, ((H, W), start) in enumerate(zip(levels, starts)):
                    image = value[b, start : start + H * W, m].reshape(H, W, D)
                    for k in range(K):
                        x, y = sampling_locations[b, q, m, l, k].tolist()
                        weight = attention_weights[b, q, m, l, k]
                        out[b, q, m] += weight * bilinear_sample(image, x * W - 0.5, y * H - 0.5)
    return out.reshape(B, Q, M * D)


def msda(
    value: Tensor,
    spatial_shapes: Levels,
    level_start_index: Starts,
    sampling_locations: Tensor,
    attention_weights: Tensor,
) -> Tensor:
    """`msda_loops`, vectorised on `torch.nn.functional.grid_sample`; differentiable in the three float tensors.

    16-bit inputs are computed in float32 and rounded once. Arguments, result and errors as in `msda_loops`.
    """
    levels, starts, _ = _checked(value, spatial_shapes, level_start_index, sampling_locations, attention_weights)
    return msda_checked(value, levels, starts, sampling_locations, attention_weights)


def msda_checked(
    value: Tensor,
    levels: Sequence[tuple[int, int]],
    starts: Sequence[int],
    sampling_locations: Tensor,
    attention_weights: Tensor,
) -> Tensor:
    """`msda` for callers that have checked the call: levels as `levels_of` returns them, starts as `check_levels` does."""
    B, _, M, D = value.shape
    _, Q, _, L, K, _ = sampling_locations.shape
    if B == 0 or Q == 0 or M == 0 or D == 0:
        # Nothing to sample, but the result stays attached to its inputs.
        return value.new_zeros(B, Q, M * D) + 0 * (value.sum() + sampling_locations.sum() + attention_weights.sum()).to(
            value.dtype
        )
    compute = torch.promote_types(torch.promote_types(value.dtype, sampling_locations.dtype), torch.float32)
    # grid_sample counts from -1 to 1. A location that is no number, or overflows, reads nothing: it moves outside.
    grids = torch.nan_to_num(2 * sampling_locations.to(compute) - 1, nan=-4.0).clamp(-4.0, 4.0)
    grids = grids.transpose(1, 2).flatten(0, 1).unbind(2)  # L of (B*M, Q, K, 2)
    # One split has a cheaper gradient than L slices.
    packed = list(starts) == level_starts(levels)
    images = value.split([H * W for H, W in levels], 1) if packed else None
    samples = []
    for level, ((H, W), start) in enumerate(zip(levels, starts)):
        image = images[level] if packed else value[:, start : start + H * W]
        image = image.to(compute).flatten(2).transpose(1, 2).reshape(B * M, D, H, W)
        grid = grids[level].contiguous()  # grid_sample takes twice as long with a strided one
        samples.append(grid_sample(image, grid, padding_mode="zeros", align_corners=False))
    weights = attention_weights.to(compute).transpose(1, 2).reshape(B * M, 1, Q, L * K)
    out = (torch.stack(samples, dim=-2).flatten(-2) * weights).sum(-1)  # (B*M, D, Q)
    return out.reshape(B, M * D, Q).transpose(1, 2).contiguous().to(value.dtype)


def msda_gradients(
    value: Tensor,
    spatial_shapes: Levels,
    level_start_index: Starts,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    grad_out: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """The three gradients of `msda`, written out, for callers below autograd (a registered operator's backward).

    Args:
        value … attention_weights: as in `msda_loops`; grad_out: (B, Q, M*D).

    Returns:
        (grad_value, grad_sampling_locations, grad_attention_weights), shaped and typed like the inputs.
    """
    levels, starts, dims = _checked(value, spatial_shapes, level_start_index, sampling_locations, attention_weights)
    B, S, M, D, Q, L, K = dims
    grads = tuple(torch.zeros_like(t) for t in (value, sampling_locations, attention_weights))
    if any(t.numel() == 0 for t in (value, attention_weights)):
        return grads
    compute = torch.promote_types(torch.promote_types(value.dtype, sampling_locations.dtype), torch.float32)
    grids = torch.nan_to_num(2 * sampling_locations.to(compute) - 1, nan=-4.0, posinf=4.0, neginf=-4.0)
    grids = grids.transpose(1, 2).flatten(0, 1)  # (B*M, Q, L, K, 2)
    weights = attention_weights.to(compute).transpose(1, 2).flatten(0, 1)  # (B*M, Q, L, K)
    g = grad_out.to(compute).reshape(B, Q, M, D).permute(0, 2, 3, 1).reshape(B * M, D, Q, 1)
    for level, ((H, W), start) in enumerate(zip(levels, starts)):
        image = value[:, start : start + H * W].to(compute).permute(0, 2, 3, 1).reshape(B * M, D, H, W)
        grid = grids[:, :, level].contiguous()
        sample = grid_sample(image, grid, padding_mode="zeros", align_corners=False)
        grad_image, grad_grid = torch.ops.aten.grid_sampler_2d_backward(
            g * weights[:, None, :, level], image, grid, 0, 0, False, [True, True]
        )
        grads[0][:, start : start + H * W] += grad_image.reshape(B, M, D, H * W).permute(0, 3, 1, 2).to(value.dtype)
        grads[1][:, :, :, level] = (2 * grad_grid).reshape(B, M, Q, K, 2).transpose(1, 2).to(grads[1].dtype)
        grads[2][:, :, :, level] = (sample * g).sum(1).reshape(B, M, Q, K).transpose(1, 2).to(grads[2].dtype)
    return grads


def msda_dense(
    value: Tensor,
    spatial_shapes: Levels,
    level_start_index: Starts,
    sampling_locations: Tensor,
    attention_weights: Tensor,
) -> Tensor:
    """The same operator as a weighted sum over every pixel, with no corner, no floor and no mask.

    Bilinear interpolation is the tent max(0, 1 - |x - i|) in each direction, which is zero at all but two pixels, and a
    pixel outside the image does not take part in the sum. Memory grows with Q*K*S: for small sizes.
    Arguments, result and errors as in `msda_loops`.
    """
    levels, starts, dims = _checked(value, spatial_shapes, level_start_index, sampling_locations, attention_weights)
    B, S, M, D, Q, L, K = dims
    out = value.new_zeros(B, Q, M, D)
    for level, ((H, W), start) in enumerate(zip(levels, starts)):
        image = value[:, start : start + H * W].reshape(B, H, W, M, D)
        location = torch.where(
            sampling_locations[:, :, :, level].isfinite().all(-1, keepdim=True),
            sampling_locations[:, :, :, level],
            -9.0,
        )
        x, y = location[..., 0] * W - 0.5, location[..., 1] * H - 0.5  # (B, Q, M, K)
        tent_x = (1 - (x[..., None] - torch.arange(W).to(x)).abs()).clamp_min(0)  # (B, Q, M, K, W)
        tent_y = (1 - (y[..., None] - torch.arange(H).to(y)).abs()).clamp_min(0)
        out = out + torch.einsum(
            "bqmk,bqmkh,bqmkw,bhwmd->bqmd", attention_weights[:, :, :, level], tent_y, tent_x, image
        )
    return out.reshape(B, Q, M * D)


def exact(value, spatial_shapes, level_start_index, sampling_locations, attention_weights) -> Tensor:
    """The operator in float64, whatever the inputs' dtypes: (B, Q, M*D)."""
    value, sampling_locations, attention_weights = (
        t.detach().double() for t in (value, sampling_locations, attention_weights)
    )
    return msda(value, spatial_shapes, level_start_index, sampling_locations, attention_weights)


def exact_gradients(
    value, spatial_shapes, level_start_index, sampling_locations, attention_weights, grad_out
) -> tuple[Tensor, Tensor, Tensor]:
    """The three gradients in float64, by automatic differentiation of `msda`.

    At a kink (a pixel coordinate that is a whole number) the derivative is the one towards larger coordinates, as the
    kernels compute it: the cell between floor(x) and floor(x) + 1.

    Returns:
        (grad_value, grad_sampling_locations, grad_attention_weights), shaped like the inputs.
    """
    leaves = [t.detach().double().requires_grad_() for t in (value, sampling_locations, attention_weights)]
    out = msda(leaves[0], spatial_shapes, level_start_index, leaves[1], leaves[2])
    return torch.autograd.grad(out, leaves, grad_out.detach().double().reshape(out.shape))


def _checked(
    value: Tensor,
    spatial_shapes: Levels,
    level_start_index: Starts,
    sampling_locations: Tensor,
    attention_weights: Tensor,
) -> tuple[list[tuple[int, int]], list[int], Dims]:
    dims = check_dims(value, spatial_shapes, level_start_index, sampling_locations, attention_weights)
    levels = levels_of(spatial_shapes)
    return levels, check_levels(levels, starts_of(level_start_index), dims.S), dims

"""What correct means: the operator in loops, on `grid_sample`, and as a sum over every pixel.

Three derivations that share no code, held to each other by the tests. All run anywhere and in any dtype; `exact` and
`exact_gradients` run them in float64, and every tolerance in this project is measured against those two.

Source: Deformable DETR (Zhu et al., 2021), Eq. 2 and 3, with the sampling convention of its CUDA operator:
a location (x, y) in [0, 1] is the pixel coordinate (x*W - 0.5, y*H - 0.5), and pixels outside the image are zero.
"""

from collections.abc import Iterator, Sequence
from math import floor
from typing import Any, NamedTuple

import torch
from torch import Tensor

from msda_core.sampling import sample, sample_backward, sample_jvp, sample_second
from msda_core.shapes import Dims, Levels, Starts, check_dims, check_levels, level_starts, levels_of, starts_of

__all__ = [
    "bilinear_sample",
    "exact",
    "exact_gradients",
    "msda",
    "msda_checked",
    "msda_dense",
    "msda_gradients",
    "msda_jvp",
    "msda_loops",
    "msda_second",
    "nearest",
    "nearest_gradients",
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
    compute = _compute_dtype(value, sampling_locations)
    runs = _runs(levels, starts)
    grids = _grids(sampling_locations, compute).split([run.rows for run in runs], 2)
    # One split has a cheaper gradient than L slices.
    packed = [run.start for run in runs] == level_starts([(run.H, run.W) for run in runs])
    images = value.split([run.H * run.W for run in runs], 1) if packed else [value[:, run.pixels] for run in runs]
    samples = []
    for run, image, grid in zip(runs, images, grids):
        image = image.to(compute).flatten(2).transpose(1, 2).reshape(B * M, D, run.H, run.W)
        # grid_sample takes twice as long with a strided grid
        samples.append(sample(image, grid.flatten(2, 3).contiguous()))
    weights = attention_weights.to(compute).transpose(1, 2).reshape(B * M, 1, Q, L * K)
    out = (torch.cat(samples, -1) * weights).sum(-1)  # (B*M, D, Q)
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
    grads = _zeros(value, sampling_locations, attention_weights)
    if any(t.numel() == 0 for t in (value, attention_weights)):
        return grads
    for piece in _pieces(levels, starts, value, sampling_locations, attention_weights, grad_out):
        sampled = sample(piece.image, piece.grid)
        grad_image, grad_grid = sample_backward(piece.g * piece.weights, piece.image, piece.grid)
        piece.store(grads, grad_image, grad_grid, (sampled * piece.g).sum(1))
    return grads


def msda_jvp(
    value: Tensor,
    spatial_shapes: Levels,
    level_start_index: Starts,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    d_value: Tensor | None,
    d_locations: Tensor | None,
    d_weights: Tensor | None,
) -> Tensor:
    """How the output moves as value, locations and weights move along d_value, d_locations and d_weights.

    Args:
        value … attention_weights: as in `msda_loops`; d_…: shaped like them, or None for what rests.

    Returns:
        (B, Q, M*D), in value's dtype.
    """
    levels, starts, dims = _checked(value, spatial_shapes, level_start_index, sampling_locations, attention_weights)
    B, S, M, D, Q, L, K = dims
    if any(t.numel() == 0 for t in (value, attention_weights)):
        return value.new_zeros(B, Q, M * D)
    out: Any = 0
    for piece in _pieces(levels, starts, value, sampling_locations, attention_weights):
        d_image, d_grid, d_attn = piece.directions(d_value, d_locations, d_weights)
        out = out + (sample_jvp(piece.image, piece.grid, d_image, d_grid) * piece.weights).sum(-1)
        if d_attn is not None:
            out = out + (sample(piece.image, piece.grid) * d_attn).sum(-1)
    return out.reshape(B, M * D, Q).transpose(1, 2).contiguous().to(value.dtype)


def msda_second(
    value: Tensor,
    spatial_shapes: Levels,
    level_start_index: Starts,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    grad_out: Tensor,
    d_value: Tensor | None,
    d_locations: Tensor | None,
    d_weights: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of <grad_out, msda_jvp(…)> in value, locations and weights: the backward of the backward.

    A second derivative is symmetric: this is also how the three gradients move along d_value, d_locations and d_weights.

    Args:
        value … grad_out: as in `msda_gradients`; d_…: shaped like value, locations and weights, or None for zero.

    Returns:
        Three tensors, shaped and typed like value, sampling_locations and attention_weights.
    """
    levels, starts, dims = _checked(value, spatial_shapes, level_start_index, sampling_locations, attention_weights)
    grads = _zeros(value, sampling_locations, attention_weights)
    if any(t.numel() == 0 for t in (value, attention_weights)):
        return grads
    for piece in _pieces(levels, starts, value, sampling_locations, attention_weights, grad_out):
        d_image, d_grid, d_attn = piece.directions(d_value, d_locations, d_weights)
        grad_image, grad_grid = sample_second(piece.g * piece.weights, piece.image, piece.grid, d_image, d_grid)
        moved = sample_jvp(piece.image, piece.grid, d_image, d_grid)
        grad_attn = (moved * piece.g).sum(1) if isinstance(moved, Tensor) else torch.zeros_like(piece.weights[:, 0])
        if d_attn is not None:
            more = sample_backward(piece.g * d_attn, piece.image, piece.grid)
            grad_image, grad_grid = grad_image + more[0], grad_grid + more[1]
        piece.store(grads, grad_image, grad_grid, grad_attn)
    return grads


def nearest(
    value: Tensor,
    spatial_shapes: Levels,
    level_start_index: Starts,
    sampling_locations: Tensor,
    attention_weights: Tensor,
) -> Tensor:
    """Attention at the nearest pixel, RT-DETRv2's "discrete" method: as often differentiable as products are.

    A location (x, y) is the pixel (trunc(x*W + 0.5), trunc(y*H + 0.5)), outside the image the nearest one of its edge; one that is
    no number, or infinite, contributes zero. Arguments, result and errors as in `msda_loops`.

    Source: RT-DETRv2 (Lv et al., 2024), `multi_scale_deformable_attention_v2` with method="discrete".
    """
    pixel, place, dims = _nearest_pixels(
        value, spatial_shapes, level_start_index, sampling_locations, attention_weights
    )
    B, S, M, D, Q, L, K = dims
    if S == 0 or L * K == 0:
        return value.new_zeros(B, Q, M * D) + 0 * (value.sum() + attention_weights.sum()).to(value.dtype)
    compute = _compute_dtype(value, sampling_locations)
    rows = value.to(compute).gather(1, pixel.expand(B, -1, M, D)).view(B, Q, L * K, M, D)
    weights = attention_weights.to(compute).flatten(3).transpose(2, 3)[..., None]  # (B, Q, L*K, M, 1)
    out = torch.where(place, rows * weights, 0).sum(2)
    return out.reshape(B, Q, M * D).to(value.dtype)


def nearest_gradients(
    value: Tensor,
    spatial_shapes: Levels,
    level_start_index: Starts,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    grad_out: Tensor,
) -> tuple[Tensor, Tensor]:
    """The gradients of `nearest` in value and attention_weights, written out as in `msda_gradients`."""
    pixel, place, dims = _nearest_pixels(
        value, spatial_shapes, level_start_index, sampling_locations, attention_weights
    )
    B, S, M, D, Q, L, K = dims
    if S == 0 or L * K == 0:
        return _zeros(value, attention_weights)
    compute = _compute_dtype(value, sampling_locations)
    pixel = pixel.expand(B, -1, M, D)
    rows = value.to(compute).gather(1, pixel).view(B, Q, L * K, M, D)
    weights = attention_weights.to(compute).flatten(3).transpose(2, 3)[..., None]
    g = grad_out.to(compute).reshape(B, Q, 1, M, D)
    grad_value = torch.zeros(value.shape, dtype=compute, device=value.device)
    grad_value.scatter_add_(1, pixel, torch.where(place, weights * g, 0).flatten(1, 2))
    grad_weights = torch.where(place, rows * g, 0).sum(-1).transpose(2, 3).contiguous().view(attention_weights.shape)
    return grad_value.to(value.dtype), grad_weights.to(attention_weights.dtype)


def _nearest_pixels(value, spatial_shapes, level_start_index, sampling_locations, attention_weights):
    """Numbers in S (B, Q*L*K, M, 1), which are places (B, Q, L*K, M, 1), and the sizes of the call."""
    levels, starts, dims = _checked(value, spatial_shapes, level_start_index, sampling_locations, attention_weights)
    xy = sampling_locations.to(_compute_dtype(value, sampling_locations))
    size = torch.tensor(levels, device=value.device).flip(-1)[:, None]  # (L, 1, 2), as (W, H)
    place = xy.isfinite().all(-1)
    at = torch.where(place[..., None], xy * size + 0.5, 0.0)
    at = torch.minimum(at.clamp_min(0), size - 1.0).long()  # (B, Q, M, L, K, 2)
    pixel = torch.tensor(starts, device=value.device)[:, None] + at[..., 1] * size[..., 0] + at[..., 0]
    pixel, place = (t.flatten(3).transpose(2, 3)[..., None] for t in (pixel, place))
    return pixel.flatten(1, 2), place, dims


class _Run(NamedTuple):
    """Rows of a level table that follow one another and are the same level: one, or each point's of a ragged call."""

    H: int
    W: int
    start: int
    first: int
    rows: int

    @property
    def pixels(self) -> slice:
        return slice(self.start, self.start + self.H * self.W)

    @property
    def levels(self) -> slice:
        return slice(self.first, self.first + self.rows)


def _runs(levels: Sequence[tuple[int, int]], starts: Sequence[int]) -> list[_Run]:
    runs: list[_Run] = []
    for row, ((H, W), start) in enumerate(zip(levels, starts)):
        if runs and runs[-1][:3] == (H, W, start):
            runs[-1] = runs[-1]._replace(rows=runs[-1].rows + 1)
        else:
            runs.append(_Run(H, W, start, row, 1))
    return runs


def _compute_dtype(value: Tensor, sampling_locations: Tensor) -> torch.dtype:
    return torch.promote_types(torch.promote_types(value.dtype, sampling_locations.dtype), torch.float32)


def _grids(sampling_locations: Tensor, compute: torch.dtype) -> Tensor:
    """(B*M, Q, L, K, 2), from -1 to 1 as grid_sample counts. What is no number, or overflows, moves outside."""
    grids = torch.nan_to_num(2 * sampling_locations.to(compute) - 1, nan=-4.0).clamp(-4.0, 4.0)
    return grids.transpose(1, 2).flatten(0, 1)


def _zeros(*tensors: Tensor) -> Any:
    return tuple(t.new_zeros(t.shape) for t in tensors)


class _Piece(NamedTuple):
    """One run of levels as `grid_sample` wants it: N = B*M images, P points a query.

    Attributes:
        image: (N, D, H, W); grid: (N, Q, P, 2); weights: (N, 1, Q, P); g: (N, D, Q, 1), the gradient of the output, or None.
    """

    run: _Run
    image: Tensor
    grid: Tensor
    weights: Tensor
    g: Any  # a tensor where there is a gradient, else None

    def directions(self, d_value: Tensor | None, d_locations: Tensor | None, d_weights: Tensor | None):
        """Three directions, those of this piece, in the layouts of image, grid and weights."""
        N, D, H, W = self.image.shape
        like: dict[str, Any] = dict(dtype=self.image.dtype)
        if d_value is not None:
            d_value = d_value[:, self.run.pixels].to(**like).permute(0, 2, 3, 1).reshape(N, D, H, W)
        if d_locations is not None:
            d_locations = 2 * d_locations[:, :, :, self.run.levels].to(**like).transpose(1, 2).reshape(self.grid.shape)
        if d_weights is not None:
            d_weights = d_weights[:, :, :, self.run.levels].to(**like).transpose(1, 2).reshape(self.weights.shape)
        return d_value, d_locations, d_weights

    def store(self, grads: tuple[Tensor, ...], grad_image: Tensor, grad_grid: Tensor, grad_weights: Tensor) -> None:
        """Put the piece's gradients where they belong. Levels may overlap, so pixels add up."""
        B, S, M, D = grads[0].shape
        Q = grads[1].shape[1]
        pixels = grad_image.reshape(B, M, D, -1).permute(0, 3, 1, 2)
        grads[0][:, self.run.pixels] += pixels.to(grads[0].dtype)
        for grad, part in ((grads[1], 2 * grad_grid), (grads[2], grad_weights)):
            into = grad[:, :, :, self.run.levels]
            into.copy_(part.reshape(B, M, Q, *into.shape[3:]).transpose(1, 2))


def _pieces(levels, starts, value, sampling_locations, attention_weights, grad_out=None) -> Iterator[_Piece]:
    B, S, M, D = value.shape
    Q = sampling_locations.shape[1]
    compute = _compute_dtype(value, sampling_locations)
    grids = _grids(sampling_locations, compute)
    weights = attention_weights.to(compute).transpose(1, 2).flatten(0, 1)  # (B*M, Q, L, K)
    g = None if grad_out is None else grad_out.to(compute).reshape(B, Q, M, D).permute(0, 2, 3, 1)
    for run in _runs(levels, starts):
        yield _Piece(
            run,
            value[:, run.pixels].to(compute).permute(0, 2, 3, 1).reshape(B * M, D, run.H, run.W),
            grids[:, :, run.levels].flatten(2, 3).contiguous(),
            weights[:, None, :, run.levels].flatten(3),
            None if g is None else g.reshape(B * M, D, Q, 1),
        )


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
    # Of a sum: a gradient that is handed to `torch.autograd.grad` imports SymPy, for six seconds.
    total = (out * grad_out.detach().double().reshape(out.shape)).sum()
    value_grad, loc_grad, attn_grad = torch.autograd.grad(total, leaves)
    return value_grad, loc_grad, attn_grad


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

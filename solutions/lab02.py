"""Lab 02, Tensors are pointers: one way to answer it."""

from math import prod

import torch

from solutions import lab01


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The distance to the next index along each axis, for a tensor that fills memory row by row.

    Args:
        shape: the size of each axis.

    Returns:
        One stride an axis, in elements. Neighbours along the last axis are neighbours in memory.
    """
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def flat_offset(index: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Where in memory an element lies, counted in elements from the one at index (0, 0, ...).

    Args:
        index: where the element is along each axis.
        strides: elements from one index to the next along each axis; may be 0 or negative.

    Returns:
        The offset; negative where the element lies before the one at index (0, 0, ...).
    """
    return sum(i * stride for i, stride in zip(index, strides))


def corner_offsets(level_start: int, W: int, x0: int, y0: int, row_stride: int) -> tuple[int, int, int, int]:
    """Where the four pixels around a point lie in `value`, for the first image, head and channel.

    `value` is a table with one row a pixel. The level's pixels begin at row `level_start`, those
    of its top image row first.

    Args:
        level_start: the table's row that holds the level's pixel (0, 0).
        W: the level's width in pixels.
        x0, y0: the upper left of the four pixels; may lie outside the image.
        row_stride: elements from one row of the table to the next.

    Returns:
        The offsets of (x0, y0), (x0 + 1, y0), (x0, y0 + 1), (x0 + 1, y0 + 1), in elements. The same
        arithmetic holds outside the image; whether a pixel may be read is for the caller to decide.
    """
    first = (level_start + y0 * W + x0) * row_stride
    below = first + W * row_stride
    return first, first + row_stride, below, below + row_stride


def msda_flat(
    memory: torch.Tensor,
    shape: tuple[int, int, int, int],
    strides: tuple[int, int, int, int],
    spatial_shapes: torch.Tensor,
    level_start_index: torch.Tensor,
    sampling_locations: torch.Tensor,
    attention_weights: torch.Tensor,
) -> torch.Tensor:
    """Multi-scale deformable attention, read from memory by offsets computed by hand.

    Args:
        memory: (N,). Elements that belong to no pixel of any level hold NaN.
        shape: B, S, M, D of `value`.
        strides: elements from one image, pixel, head and channel of `value` to the next.
        spatial_shapes: (L, 2), the (H, W) of each level.
        level_start_index: (L,), where in S each level begins; in any order, with or without gaps.
        sampling_locations: (B, Q, M, L, K, 2), each point's (x, y): 0 and 1 are a level's edges; also outside.
        attention_weights: (B, Q, M, L, K), each point's weight.

    Returns:
        (B, Q, M * D), in memory's dtype.
    """
    B, S, M, D = shape
    Q, K = sampling_locations.shape[1], sampling_locations.shape[4]
    levels = list(zip(spatial_shapes.tolist(), level_start_index.tolist()))
    out = memory.new_zeros(B, Q, M, D)
    for b in range(B):
        for m in range(M):
            base = flat_offset((b, 0, m, 0), strides)
            for l, ((H, W), start) in enumerate(levels):
                for q in range(Q):
                    for k in range(K):
                        u, v = sampling_locations[b, q, m, l, k].tolist()
                        (x0, y0), weights = lab01.corner_weights(lab01.to_pixels(u, W), lab01.to_pixels(v, H))
                        offsets = corner_offsets(start, W, x0, y0, strides[1])
                        corners = ((x0, y0), (x0 + 1, y0), (x0, y0 + 1), (x0 + 1, y0 + 1))
                        for (x, y), weight, offset in zip(corners, weights, offsets):
                            if 0 <= x < W and 0 <= y < H:
                                first = base + offset
                                pixel = memory[first : first + D * strides[3] : strides[3]]
                                out[b, q, m] += attention_weights[b, q, m, l, k] * weight * pixel
    return out.reshape(B, Q, M * D)


def first_overflow(B: int, S: int, M: int, D: int) -> tuple[bool, int]:
    """Whether an int32 can hold every element index of a contiguous (B, S, M, D) tensor.

    Args:
        B, S, M, D: the tensor's shape, all at least 1.

    Returns:
        Whether the largest element index is an int32, so at most 2**31 - 1; and the smallest batch
        size for which it is not, with the same S, M and D.
    """
    first = 2**31 // (S * M * D) + 1
    return B < first, first


def msda_gather(
    memory: torch.Tensor,
    shape: tuple[int, int, int, int],
    strides: tuple[int, int, int, int],
    spatial_shapes: torch.Tensor,
    level_start_index: torch.Tensor,
    sampling_locations: torch.Tensor,
    attention_weights: torch.Tensor,
) -> torch.Tensor:
    """`msda_flat` without a loop: all offsets in one tensor, all reads in one indexing.

    Args:
        memory: (N,). Elements that belong to no pixel of any level hold NaN.
        shape: B, S, M, D of `value`.
        strides: elements from one image, pixel, head and channel of `value` to the next.
        spatial_shapes: (L, 2), the (H, W) of each level.
        level_start_index: (L,), where in S each level begins; in any order, with or without gaps.
        sampling_locations: (B, Q, M, L, K, 2), each point's (x, y): 0 and 1 are a level's edges; also outside.
        attention_weights: (B, Q, M, L, K), each point's weight.

    Returns:
        (B, Q, M * D), in memory's dtype.
    """
    B, S, M, D = shape
    sizes = spatial_shapes.flip(-1)  # (L, 2), as (W, H)
    step = torch.tensor([[0, 0], [1, 0], [0, 1], [1, 1]])  # the four corners, as (x, y)
    points = sampling_locations * sizes[:, None] - 0.5
    fractions = (points - points.floor())[..., None, :]
    weights = torch.where(step.bool(), fractions, 1 - fractions).prod(-1)  # (B, Q, M, L, K, 4)
    x, y = (points.floor().long()[..., None, :] + step).unbind(-1)  # the same shape, as all below
    W, H, start = (table[:, None, None] for table in (sizes[:, 0], sizes[:, 1], level_start_index))
    inside = (x >= 0) & (x < W) & (y >= 0) & (y < H)
    base = torch.arange(B)[:, None, None] * strides[0] + torch.arange(M) * strides[2]  # (B, 1, M)
    offsets = base[..., None, None, None] + (start + y * W + x) * strides[1]
    channels = torch.arange(D) * strides[3]
    pixels = memory[torch.where(inside, offsets, 0)[..., None] + channels]  # (B, Q, M, L, K, 4, D)
    pixels = torch.where(inside[..., None], pixels, 0)
    out = (pixels * (weights * attention_weights[..., None])[..., None]).sum((3, 4, 5))
    return out.reshape(B, -1, M * D)

"""Lab 01, Reading between pixels: one way to answer it."""

from math import floor

import torch


def to_pixels(location: float, size: int) -> float:
    """A normalised coordinate in pixels.

    Args:
        location: 0 at one edge of the image, 1 at the other edge.
        size: how many pixels lie between the edges.

    Returns:
        The pixel coordinate: 0 at the centre of the first pixel, size - 1 at the centre of the last.
    """
    return location * size - 0.5


def corner_weights(x: float, y: float) -> tuple[tuple[int, int], tuple[float, float, float, float]]:
    """The pixel to the upper left of a point, and how much each of the four pixels around it weighs.

    Args:
        x, y: pixel coordinates, also negative.

    Returns:
        (x0, y0), the upper left pixel, and the weights of the pixels
        (x0, y0), (x0 + 1, y0), (x0, y0 + 1), (x0 + 1, y0 + 1).
    """
    x0, y0 = floor(x), floor(y)
    fx, fy = x - x0, y - y0
    return (x0, y0), ((1 - fx) * (1 - fy), fx * (1 - fy), (1 - fx) * fy, fx * fy)


def bilinear_sample(image: torch.Tensor, x: float, y: float) -> torch.Tensor:
    """Read an image between its pixels. A pixel outside the image counts as zero.

    Args:
        image: (H, W, D).
        x, y: pixel coordinates, inside or outside.

    Returns:
        (D,), in image's dtype.
    """
    H, W, D = image.shape
    (x0, y0), weights = corner_weights(x, y)
    corners = ((x0, y0), (x0 + 1, y0), (x0, y0 + 1), (x0 + 1, y0 + 1))
    sample = image.new_zeros(D)
    for (i, j), weight in zip(corners, weights):
        if 0 <= i < W and 0 <= j < H:
            sample += weight * image[j, i]
    return sample


def msda_loops(
    value: torch.Tensor, spatial_shapes: torch.Tensor, sampling_locations: torch.Tensor, attention_weights: torch.Tensor
) -> torch.Tensor:
    """Multi-scale deformable attention, one point at a time.

    Args:
        value: (B, S, M, D); the pixels of level 0 row by row, then those of level 1, and so on.
        spatial_shapes: (L, 2), the (H, W) of each level.
        sampling_locations: (B, Q, M, L, K, 2), each point's (x, y): 0 and 1 are a level's edges; also outside.
        attention_weights: (B, Q, M, L, K), each point's weight.

    Returns:
        (B, Q, M * D), in value's dtype.
    """
    B, S, M, D = value.shape
    Q, K = sampling_locations.shape[1], sampling_locations.shape[4]
    out = value.new_zeros(B, Q, M, D)
    for b in range(B):
        for m in range(M):
            start = 0
            for l, (H, W) in enumerate(spatial_shapes.tolist()):
                image = value[b, start : start + H * W, m].reshape(H, W, D)
                start += H * W
                for q in range(Q):
                    for k in range(K):
                        x, y = sampling_locations[b, q, m, l, k].tolist()
                        sample = bilinear_sample(image, to_pixels(x, W), to_pixels(y, H))
                        out[b, q, m] += attention_weights[b, q, m, l, k] * sample
    return out.reshape(B, Q, M * D)


def sample_like_torch(image: torch.Tensor, u: float, v: float, align_corners: bool, padding_mode: str) -> torch.Tensor:
    """Read an image the way `grid_sample` does, in each of its conventions.

    Args:
        image: (H, W, D).
        u, v: across and down, from -1 to 1.
        align_corners: True puts -1 and 1 on the centres of the outermost pixels, False on their outer edges.
        padding_mode: what lies outside: "zeros", "border" (the nearest pixel) or "reflection" (a mirror).

    Returns:
        (D,), in image's dtype.
    """

    def place(t, size):
        x = (t + 1) / 2 * (size - 1) if align_corners else (t + 1) / 2 * size - 0.5
        if padding_mode == "reflection":
            low, span = (0.0, size - 1.0) if align_corners else (-0.5, float(size))
            x = abs(x - low) % (2 * span) if span else 0.0
            x = min(x, 2 * span - x) + low
        return x if padding_mode == "zeros" else min(max(x, 0.0), size - 1.0)

    H, W, D = image.shape
    return bilinear_sample(image, place(u, W), place(v, H))

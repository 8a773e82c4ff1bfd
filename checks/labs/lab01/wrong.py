"""Lab 01, Reading between pixels: the wrong answers that are known."""

from math import floor, trunc

import torch

from checks.core.exercise import Mistake
from checks.labs.lab01.truth import _corners, _grid_sample, _msda
from msda_core import reference


def _added(fx, fy):
    return (2 - fx - fy) / 2, (1 + fx - fy) / 2, (1 - fx + fy) / 2, (fx + fy) / 2


# --- bilinear_sample ------------------------------------------------------------------------------------------------


def _sample(image, x, y, *, down=floor, pixel=None, keep=None):
    """Four corners, with the treatment of a corner outside, and of the whole point, left to the caller."""
    H, W, D = image.shape
    (x0, y0), weights = _corners(x, y, down=down)
    sample = image.new_zeros(D)
    corners = ((x0, y0), (x0 + 1, y0), (x0, y0 + 1), (x0 + 1, y0 + 1))
    if keep is not None and not all(0 <= i < W and 0 <= j < H for i, j in corners):
        return sample
    for (i, j), weight in zip(corners, weights):
        inside = 0 <= i < W and 0 <= j < H
        if inside or pixel is not None:
            sample = sample + weight * (image[j, i] if inside else pixel(image, i, j))
    return sample


def _swapped_bounds(image, x, y):
    W, H, D = image.shape
    (x0, y0), weights = _corners(x, y)
    sample = image.new_zeros(D)
    for (i, j), weight in zip(((x0, y0), (x0 + 1, y0), (x0, y0 + 1), (x0 + 1, y0 + 1)), weights):
        if 0 <= i < W and 0 <= j < H:
            sample = sample + weight * image[j, i]
    return sample


def _without_first(image):
    image = image.clone()
    image[0] = 0
    image[:, 0] = 0
    return image


def _nearest(image, i, j):
    H, W, _ = image.shape
    return image[min(max(j, 0), H - 1), min(max(i, 0), W - 1)]


def _wrapped(image, i, j):
    H, W, D = image.shape
    return image[j, i] if -H <= j < H and -W <= i < W else image.new_zeros(D)


def _rescaled(image, x, y):
    total = reference.bilinear_sample(torch.ones_like(image), x, y)
    return reference.bilinear_sample(image, x, y) / total.clamp_min(1e-9)


def _loops(value, spatial_shapes, sampling_locations, attention_weights, *, step=None, assign=False, restart=True):
    """The five loops, with the ways to lose count of them: how far a level's start moves, and when it goes back to zero."""
    B, S, M, D = value.shape
    Q, K = sampling_locations.shape[1], sampling_locations.shape[4]
    out = value.new_zeros(B, Q, M, D)
    start = 0
    for b in range(B):
        for q in range(Q):
            for m in range(M):
                start = 0 if restart else start
                for level, (H, W) in enumerate(spatial_shapes.tolist()):
                    image = value[b, start : start + H * W, m].reshape(H, W, D)
                    start += H * W if step is None else step(H, W)
                    for k in range(K):
                        x, y = sampling_locations[b, q, m, level, k].tolist()
                        sample = attention_weights[b, q, m, level, k] * reference.bilinear_sample(
                            image, x * W - 0.5, y * H - 0.5
                        )
                        out[b, q, m] = sample if assign else out[b, q, m] + sample
    return out.reshape(B, Q, M * D)


def _without_starts(value, spatial_shapes, sampling_locations, attention_weights):
    out = 0
    for level, shape in enumerate(spatial_shapes):
        out = out + _msda(
            value[:, : int(shape[0] * shape[1])],
            shape[None],
            sampling_locations[:, :, :, level : level + 1],
            attention_weights[:, :, :, level : level + 1],
        )
    return out


def _heads_last(value, spatial_shapes, sampling_locations, attention_weights):
    B, _, M, D = value.shape
    out = _msda(value, spatial_shapes, sampling_locations, attention_weights)
    return out.reshape(B, -1, M, D).transpose(2, 3).reshape(B, -1, M * D)


def _mirror_at_centres(image, u, v, align_corners, padding_mode):
    if align_corners or padding_mode != "reflection":
        return _grid_sample(image, u, v, align_corners, padding_mode)
    H, W, _ = image.shape

    def fold(t, size):
        x = abs((t + 1) / 2 * size - 0.5) % (2 * (size - 1))
        return min(x, 2 * (size - 1) - x)

    return reference.bilinear_sample(image, fold(u, W), fold(v, H))


def _reflected_without_clamp(image, u, v, align_corners, padding_mode):
    if align_corners or padding_mode != "reflection":
        return _grid_sample(image, u, v, align_corners, padding_mode)
    H, W, _ = image.shape

    def fold(t, size):
        x = abs((t + 1) / 2 * size) % (2 * size)
        return min(x, 2 * size - x) - 0.5

    return reference.bilinear_sample(image, fold(u, W), fold(v, H))


TO_PIXELS: list[Mistake] = [
    Mistake(
        "without the half pixel",
        lambda location, size: location * size,
        "At location 0 you stand on the edge of the first pixel. How far is its centre?",
    ),
    Mistake(
        "with size - 1 in place of size",
        lambda location, size: location * (size - 1),
        "That is the other convention (align_corners=True), where 0 and 1 are pixel centres. Here they are edges: "
        "how many pixels fit between the edges?",
    ),
    Mistake(
        "with size - 1 in place of size, shifted by half a pixel",
        lambda location, size: location * (size - 1) - 0.5,
        "The half pixel is there. Now count the pixels between the two edges of the image.",
    ),
    Mistake(
        "when the coordinate is rounded",
        lambda location, size: round(location * size - 0.5),
        "The point may lie between two pixels, and that is what this lab is about. Keep the fraction.",
    ),
    Mistake(
        "when the coordinate is rounded down",
        lambda location, size: floor(location * size),
        "That is the number of the pixel the point lies in. What is its coordinate, with the fraction?",
    ),
    Mistake(
        "when the half pixel has the wrong sign",
        lambda location, size: location * size + 0.5,
        "The edge comes before the centre of the first pixel. Which side of 0 is that?",
    ),
    Mistake(
        "when the half is taken off before multiplying",
        lambda location, size: (location - 0.5) * size,
        "Half a location is half the image. You want half a pixel.",
    ),
    Mistake(
        "when the result is kept inside the image",
        lambda location, size: min(max(location * size - 0.5, 0.0), size - 1.0),
        "A point may lie outside, and the edge itself is half a pixel outside of the first centre. Let it be negative.",
    ),
    Mistake(
        "when locations are clamped to the image",
        lambda location, size: min(max(location, 0.0), 1.0) * size - 0.5,
        "A location outside [0, 1] is allowed: it is a pixel coordinate outside the image.",
    ),
    Mistake(
        "when a negative coordinate becomes 0",
        lambda location, size: max(location * size - 0.5, 0.0),
        "The edge lies half a pixel before the first centre, and further out there is more. What is wrong with -0.5?",
    ),
    Mistake(
        "when a whole pixel is taken off",
        lambda location, size: location * size - 1,
        "How far is it from the edge of a pixel to its centre?",
    ),
    Mistake(
        "when locations are taken to run from -1 to 1",
        lambda location, size: ((location + 1) * size - 1) / 2,
        "That is how `grid_sample` counts. Here one edge is 0 and the other is 1.",
    ),
]


CORNER_WEIGHTS: list[Mistake] = [
    Mistake(
        "when coordinates are cut off towards zero instead of rounded down",
        lambda x, y: _corners(x, y, down=trunc),
        "`int(-0.3)` is 0. Which pixel lies to the left of -0.3?",
    ),
    Mistake(
        "when coordinates are rounded to the nearest pixel",
        lambda x, y: _corners(x, y, down=round),
        "A point at 2.8 lies between pixels 2 and 3. Which of them is the upper left one?",
    ),
    Mistake(
        "when the fractions of x and y are swapped",
        lambda x, y: _corners(x, y, swap=True),
        "Moving right changes x. Which of the four pixels gains weight when you do?",
    ),
    Mistake(
        "when each weight goes to the opposite corner",
        lambda x, y: _corners(x, y, flip=True),
        "The nearer a pixel, the more it weighs. On a pixel's centre, x - x0 is 0: how much should that pixel weigh?",
    ),
    Mistake(
        "when (y0, x0) is returned for (x0, y0)",
        lambda x, y: (_corners(x, y)[0][::-1], _corners(x, y)[1]),
        "The first of the pair counts columns, the second counts rows.",
    ),
    Mistake(
        "when all four pixels weigh the same",
        lambda x, y: (_corners(x, y)[0], (0.25,) * 4),
        "Only in the middle of four pixels do they weigh the same. What changes as the point moves towards one?",
    ),
    Mistake(
        "when nearness along x and along y are added instead of multiplied",
        lambda x, y: (
            _corners(x, y)[0],
            tuple(a * b for a, b in ((0.5, p) for p in _added(x - floor(x), y - floor(y)))),
        ),
        "The four weights are areas: width times height.",
    ),
]


BILINEAR_SAMPLE: list[Mistake] = [
    Mistake(
        "when x counts rows and y counts columns",
        lambda image, x, y: reference.bilinear_sample(image.transpose(0, 1), x, y),
        "Which of x and y walks along a row of the image? An image is indexed [row, column].",
    ),
    Mistake(
        "when pixels outside are read from the border",
        lambda image, x, y: _sample(image, x, y, pixel=_nearest),
        "That is clamping. What is the value of a pixel that does not exist?",
    ),
    Mistake(
        "when Python's negative index wraps round to the other side",
        lambda image, x, y: _sample(image, x, y, pixel=_wrapped),
        "`image[-1]` is the last row, not an error. Check both ends before you read.",
    ),
    Mistake(
        "when a point is dropped because one of its corners is outside",
        lambda image, x, y: _sample(image, x, y, keep="all"),
        "The corners inside still count. Decide for each corner, not for the point.",
    ),
    Mistake(
        "when coordinates are cut off towards zero instead of rounded down",
        lambda image, x, y: _sample(image, x, y, down=trunc),
        "`int(-0.5)` is 0. Use your `corner_weights`, and check it at negative coordinates.",
    ),
    Mistake(
        "when the nearest pixel is read",
        lambda image, x, y: _sample(image, float(floor(x + 0.5)), float(floor(y + 0.5))),
        "That is nearest-neighbour sampling. Four pixels take part, each by its weight.",
    ),
    Mistake(
        "when the weights of the kept corners are scaled up to sum to one",
        lambda image, x, y: _rescaled(image, x, y),
        "A corner outside is zero, and it keeps its weight: near the border the sample fades.",
    ),
    Mistake(
        "when H and W of `image.shape` are swapped",
        _swapped_bounds,
        "`image.shape` is (H, W, D): rows first. Which of them does a column have to be smaller than?",
    ),
    Mistake(
        "when the four pixels are added without their weights",
        lambda image, x, y: 4 * _sample(image, floor(x) + 0.5, floor(y) + 0.5),
        "Each pixel counts by its weight, and the four weights sum to one.",
    ),
    Mistake(
        "when the result is always float32",
        lambda image, x, y: reference.bilinear_sample(image, x, y).float(),
        "Make the result with `image.new_zeros`, and it has image's dtype.",
    ),
    Mistake(
        "when the first row and the first column are left out",
        lambda image, x, y: reference.bilinear_sample(_without_first(image), x, y),
        "Pixel 0 exists. Is 0 inside by your test?",
    ),
    Mistake(
        "when the sum of the four is divided by four",
        lambda image, x, y: reference.bilinear_sample(image, x, y) / 4,
        "The four weights sum to one already.",
    ),
]


MSDA_LOOPS: list[Mistake] = [
    Mistake(
        "when H and W are swapped",
        lambda value, shapes, locations, weights: _msda(value, shapes.flip(-1), locations, weights),
        "A row of `spatial_shapes` is (H, W). Which of the two does x run along?",
    ),
    Mistake(
        "when x and y of the sampling locations are swapped",
        lambda value, shapes, locations, weights: _msda(value, shapes, locations.flip(-1), weights),
        "The last axis of `sampling_locations` is (x, y), while an image is indexed [row, column].",
    ),
    Mistake(
        "when every level is read from the start of `value`",
        _without_starts,
        "Level 1 begins where level 0 ends. Where in S is the first pixel of each level?",
    ),
    Mistake(
        "when the attention weights are left out",
        lambda value, shapes, locations, weights: _msda(value, shapes, locations, torch.ones_like(weights)),
        "Each sample counts by its own weight.",
    ),
    Mistake(
        "when the samples are averaged instead of added",
        lambda value, shapes, locations, weights: _msda(value, shapes, locations, weights) / weights[0, 0, 0].numel(),
        "The weights already say how much each sample counts. The sum is not divided by the number of points.",
    ),
    Mistake(
        "when heads and channels are transposed in the output",
        _heads_last,
        "The output's last axis is M*D: all channels of head 0 first, then those of head 1.",
    ),
    Mistake(
        "when the half pixel is forgotten",
        lambda value, shapes, locations, weights: _msda(
            value, shapes, locations + 0.5 / shapes.flip(-1)[None, None, None, :, None], weights
        ),
        "Your `to_pixels` does this. Is it used for both x and y?",
    ),
    Mistake(
        "when only the last level is kept",
        lambda value, shapes, locations, weights: _msda(
            value, shapes, locations, torch.cat([0 * weights[:, :, :, :-1], weights[:, :, :, -1:]], 3)
        ),
        "Is something set where it should be added to?",
    ),
    Mistake(
        "when every image of the batch reads the first one's pixels",
        lambda value, shapes, locations, weights: _msda(value[:1].expand_as(value), shapes, locations, weights),
        "`value` has a batch axis too.",
    ),
    Mistake(
        "when every head reads the channels of head 0",
        lambda value, shapes, locations, weights: _msda(
            value[:, :, :1].expand_as(value).contiguous(), shapes, locations, weights
        ),
        "`value` is (B, S, M, D): which of its axes is the head, and is it one of your indices?",
    ),
    Mistake(
        "when a sample replaces the sum so far",
        lambda *args: _loops(*args, assign=True),
        "Only the last point is left. Which operator adds to what is already there?",
    ),
    Mistake(
        "when the start of a level moves by its height only",
        lambda *args: _loops(*args, step=lambda H, W: H),
        "How many pixels does a level have?",
    ),
    Mistake(
        "when the start of a level moves by its width only",
        lambda *args: _loops(*args, step=lambda H, W: W),
        "How many pixels does a level have?",
    ),
    Mistake(
        "when the start is not set back to zero for the next query or head",
        lambda *args: _loops(*args, restart=False),
        "After the last level comes level 0 again. In which of your loops does `start = 0` belong?",
    ),
    Mistake(
        "when x is scaled by H and y by W",
        lambda value, shapes, locations, weights: _msda(
            value, shapes, locations * (shapes / shapes.flip(-1))[None, None, None, :, None], weights
        ),
        "x runs along a row. How many pixels does a row have, H or W?",
    ),
    Mistake(
        "when the result is always float32",
        lambda value, shapes, locations, weights: _msda(value, shapes, locations, weights).float(),
        "Make the result with `value.new_zeros`, and it has value's dtype.",
    ),
    Mistake(
        "when the weights are normalised once more",
        lambda value, shapes, locations, weights: _msda(
            value, shapes, locations, weights / weights.sum((-1, -2), keepdim=True)
        ),
        "Whoever made the weights normalised them, or did not want to. Use them as they are.",
    ),
    Mistake(
        "when a level starts after the size of the one before it, and not after all before it",
        lambda value, shapes, locations, weights: reference.msda(
            value, shapes, torch.cat([shapes.new_zeros(1), shapes.prod(-1)[:-1]]), locations, weights
        ),
        "The third level comes after two others. How many pixels lie before it?",
    ),
    Mistake(
        "when the sum is divided by the number of levels",
        lambda value, shapes, locations, weights: _msda(value, shapes, locations, weights) / len(shapes),
        "The weights of all points of all levels say how much each counts. Is anything left to divide by?",
    ),
    Mistake(
        "when the weights pass through a softmax once more",
        lambda value, shapes, locations, weights: _msda(
            value, shapes, locations, weights.flatten(3).softmax(-1).view_as(weights)
        ),
        "`attention_weights` are the result of a softmax. Use them as they are.",
    ),
    Mistake(
        "when the last point of each level is left out",
        lambda value, shapes, locations, weights: _msda(value, shapes, locations[..., :-1, :], weights[..., :-1]),
        "How many points has a level, and how many does your loop go through?",
    ),
]


SAMPLE_LIKE_TORCH: list[Mistake] = [
    Mistake(
        "when align_corners is ignored",
        lambda image, u, v, align_corners, padding_mode: _grid_sample(image, u, v, False, padding_mode),
        "With align_corners, -1 and 1 are the centres of the outermost pixels: how many steps lie between them?",
    ),
    Mistake(
        "when -1 and 1 are always the centres of the outermost pixels",
        lambda image, u, v, align_corners, padding_mode: _grid_sample(image, u, v, True, padding_mode),
        "That is align_corners=True. Without it, -1 and 1 are the edges of the image, half a pixel further out.",
    ),
    Mistake(
        "when the half pixel is missing",
        lambda image, u, v, align_corners, padding_mode: _grid_sample(
            image,
            u if align_corners else u + 1 / image.shape[1],
            v if align_corners else v + 1 / image.shape[0],
            align_corners,
            padding_mode,
        ),
        "Without align_corners, -1 is the edge of the first pixel. Where is its centre?",
    ),
    Mistake(
        "when u and v are swapped",
        lambda image, u, v, align_corners, padding_mode: _grid_sample(image, v, u, align_corners, padding_mode),
        "u goes across, along a row; v goes down.",
    ),
    Mistake(
        "when a point outside is zero as a whole",
        lambda image, u, v, align_corners, padding_mode: (
            image.new_zeros(image.shape[-1])
            if padding_mode == "zeros" and max(abs(u), abs(v)) > 1
            else _grid_sample(image, u, v, align_corners, padding_mode)
        ),
        "The corners inside still count: `bilinear_sample` knows how the border fades.",
    ),
    Mistake(
        "when a reflected point may lie between the mirror and the outermost centre",
        lambda *args: _reflected_without_clamp(*args),
        "Behind the last centre there is no second pixel to mix with. What does border padding do with such a point?",
    ),
    Mistake(
        "when the padding mode is ignored",
        lambda image, u, v, align_corners, padding_mode: _grid_sample(image, u, v, align_corners, "zeros"),
        "Border and reflection move the point back into the image before it is read.",
    ),
    Mistake(
        "when reflection always mirrors at the pixel centres",
        lambda image, u, v, align_corners, padding_mode: _mirror_at_centres(image, u, v, align_corners, padding_mode),
        "Without align_corners the mirror stands at the edge of the image, half a pixel past the last centre.",
    ),
]

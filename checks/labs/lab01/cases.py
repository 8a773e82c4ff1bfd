"""Lab 01, Reading between pixels: the inputs that tell right from wrong, and the properties that must hold."""

import time

import torch
from torch.nn.functional import grid_sample

from checks.core.exercise import Draw

NO_GRID_SAMPLE = {"grid_sample": "it does what you are here to write."}


# --- to_pixels ------------------------------------------------------------------------------------------------------


def left_edge(draw: Draw):
    """location 0 is the outer edge of the first pixel, half a pixel before its centre"""
    return 0.0, draw.integer(3, 9)


def right_edge(draw: Draw):
    """location 1 is the outer edge of the last pixel, half a pixel past its centre"""
    return 1.0, draw.integer(3, 9)


def between_edges(draw: Draw):
    """in between, equal steps of location are equal steps of pixels, and nothing is rounded"""
    return draw.number(0.1, 0.4), draw.integer(5, 40)


def beyond_edges(draw: Draw):
    """locations outside [0, 1] are pixels outside the image"""
    return draw.number(-0.6, -0.2), draw.integer(3, 9)


def on_a_pixel(draw: Draw):
    """on the centre of a pixel, that pixel has all the weight"""
    return float(draw.integer(0, 5)), float(draw.integer(6, 9))


def nearer_to_the_right(draw: Draw):
    """a point further to the right than down: its right neighbour weighs more than its lower one"""
    return draw.integer(0, 5) + draw.number(0.7, 0.9), draw.integer(6, 9) + draw.number(0.1, 0.3)


def left_of_the_image(draw: Draw):
    """outside the image, where coordinates are negative, down still means down"""
    return draw.number(-2.9, -2.6), draw.number(-0.4, -0.1)


def _image(draw: Draw, H=None, W=None, D=None):
    H = draw.integer(3, 6) if H is None else H
    return draw.normal(H, W or H + draw.integer(1, 3), D or draw.integer(2, H - 1)) + 2


def at_a_pixel(draw: Draw):
    """at the centre of a pixel you read that pixel: column x, row y; here in the last column of a wide image"""
    image = _image(draw)
    return image, float(image.shape[1] - 1), float(draw.integer(0, image.shape[0] - 1))


def between_four(draw: Draw):
    """between four pixels each counts by its weight"""
    image = _image(draw)
    return image, draw.number(0.55, 0.9) + draw.integer(0, 1), draw.number(0.1, 0.45) + draw.integer(0, 1)


def half_outside(draw: Draw):
    """a point half a pixel outside keeps half of the border pixel: what is outside is zero"""
    image = _image(draw)
    return image, -0.5, float(draw.integer(1, image.shape[0] - 2))


def nearly_a_pixel_outside(draw: Draw):
    """more than half a pixel outside, what is left fades further"""
    image = _image(draw)
    return image, draw.number(-0.9, -0.6), float(draw.integer(0, image.shape[0] - 1))


def past_the_last(draw: Draw):
    """past the last column and the last row, the same"""
    image = _image(draw)
    return image, image.shape[1] - 1 + draw.number(0.2, 0.8), image.shape[0] - 1 + draw.number(0.2, 0.8)


def far_outside(draw: Draw):
    """a whole pixel outside and further, nothing is left"""
    image = _image(draw)
    return image, draw.number(-3, -1.2), float(draw.integer(0, image.shape[0] - 1))


def whole_numbers(draw: Draw):
    """the result keeps the image's dtype"""
    return _image(draw).double(), draw.number(0.2, 0.8), draw.number(1.2, 1.8)


# --- msda_loops -----------------------------------------------------------------------------------------------------


def _msda_inputs(draw: Draw, shapes=((3, 5), (2, 3)), B=1, Q=2, M=2, D=3, K=3, spread=0.2):
    S, L = sum(h * w for h, w in shapes), len(shapes)
    value = draw.normal(B, S, M, D)
    locations = draw.uniform(B, Q, M, L, K, 2, low=-spread, high=1 + spread)
    weights = draw.uniform(B, Q, M, L, K, low=0.1, high=1.0)
    return value, torch.tensor(shapes), locations, weights / weights.sum((-1, -2), keepdim=True)


def one_level(draw: Draw):
    """one level that is wider than high, one head: a weighted sum of K samples"""
    return _msda_inputs(draw, shapes=((2, 6),), M=1)


def three_levels(draw: Draw):
    """each level has its own pixels and its own size"""
    return _msda_inputs(draw, shapes=((2, 5), (3, 1), (4, 2)), Q=1, M=1, K=2)


def several_heads(draw: Draw):
    """each head reads its own channels, and heads stay together in the output"""
    return _msda_inputs(draw, M=3, D=2, K=4)


def two_images(draw: Draw):
    """each image of the batch reads its own pixels, at its own points"""
    return _msda_inputs(draw, B=2, Q=1)


def weights_that_do_not_sum_to_one(draw: Draw):
    """the weights are used as they are"""
    value, shapes, locations, weights = _msda_inputs(draw)
    return value, shapes, locations, 3 * weights


def double_precision(draw: Draw):
    """the result is in value's dtype"""
    value, shapes, locations, weights = _msda_inputs(draw, Q=1, M=1)
    return value.double(), shapes, locations.double(), weights.double()


def _convention(
    align_corners: bool, padding_mode: str, what: str, near: bool = False, far: bool = False, dtype=torch.float32
):
    def case(draw: Draw):
        sign = 1 if draw.integer(0, 1) else -1
        u = draw.number(1.02, 1.08) if near else draw.number(1.1, 1.9) + 6 * far
        return _image(draw).to(dtype), u * sign, draw.number(-0.9, 0.9), align_corners, padding_mode

    where = "centres" if align_corners else "edges"
    case.__name__ = f"{padding_mode}_{where}{'_near' if near else '_far' if far else ''}"
    case.__doc__ = f"-1 and 1 on {'the outermost centres' if align_corners else 'the edges'}; {'just ' if near else 'far ' if far else ''}outside, {what}"
    return case


def _points_per_second(answer) -> str:
    image, count = Draw(0).normal(16, 24, 8), 200
    started = time.perf_counter()
    for n in range(count):
        answer(image, -1 + 2 * n / count, 0.3, False, "zeros")
    mine = count / (time.perf_counter() - started)
    grid = torch.rand(1, 1, 100 * count, 2)
    started = time.perf_counter()
    grid_sample(image.permute(2, 0, 1)[None], grid, align_corners=False)
    theirs = 100 * count / (time.perf_counter() - started)
    return f"{mine:,.0f} points a second; grid_sample, in one call, {theirs:,.0f}."

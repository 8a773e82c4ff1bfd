"""What lab 02's figures say is what PyTorch says."""

import re

import numpy as np
import pytest
import torch

from msda_core.figures import memory
from msda_core.shapes import level_starts

LEVELS = [(4, 6), (2, 3)]


@pytest.mark.parametrize("name", memory.VIEWS)
def test_a_view_visits_the_offsets_that_hold_its_elements(name):
    picture = memory.views(name)
    visited = re.search(r"offsets ([\d, ]+)\.", picture.description).group(1).split(", ")
    view = memory.VIEWS[name](torch.arange(12).reshape(3, 4))
    stored = torch.empty(0, dtype=view.dtype).set_(view.untyped_storage())
    assert stored[[int(offset) for offset in visited]].tolist() == view.flatten().tolist()
    assert ("copied" in picture.description) == (name == "a.T.contiguous()")
    assert picture.png().startswith(b"\x89PNG")


@pytest.mark.parametrize("b", [0, 1])
@pytest.mark.parametrize("level", [0, 1])
def test_the_lit_offsets_hold_the_four_pixels(b, level):
    B, M, D, m = 2, 3, 5, 1
    S = sum(h * w for h, w in LEVELS)
    value = torch.arange(B * S * M * D).reshape(B, S, M, D)
    (H, W), start = LEVELS[level], level_starts(LEVELS)[level]
    image = value[b, start : start + H * W, m].reshape(H, W, D)
    for y0 in range(H - 1):
        for x0 in range(W - 1):
            _, offsets = memory.memory_strip(LEVELS, B, M, D, b, m, level, x0, y0)
            expected = [image[y0 + dy, x0 + dx, 0].item() for dy in (0, 1) for dx in (0, 1)]
            assert value.flatten()[offsets].tolist() == expected


@pytest.mark.parametrize(("b", "x0", "y0"), [(0, -1, -1), (1, 2, 1), (0, -1, 1), (1, -1, 0)])
def test_a_corner_outside_is_said_to_be_outside(b, x0, y0):
    H, W = LEVELS[1]
    picture, _ = memory.memory_strip(LEVELS, 2, 2, 4, b, 0, 1, x0, y0)
    outside = sum(not (0 <= x < W and 0 <= y < H) for y in (y0, y0 + 1) for x in (x0, x0 + 1))
    assert picture.description.count("is outside") == outside > 0
    assert picture.png()


@pytest.mark.parametrize("layout", memory.LAYOUTS)
@pytest.mark.parametrize(("H", "W", "M", "D", "itemsize"), [(75, 100, 8, 32, 4), (9, 20, 3, 5, 2), (30, 41, 8, 64, 4)])
def test_distances_and_sectors_are_those_of_the_layout(layout, H, W, M, D, itemsize):
    _, distances = memory.corner_distances(layout, H, W, M, D, itemsize)
    order, sizes = memory.LAYOUTS[layout], dict(B=2, S=H * W, M=M, D=D)
    stored = torch.empty([sizes[axis] for axis in order], dtype={2: torch.float16, 4: torch.float32}[itemsize])
    value = stored.permute([order.index(axis) for axis in "BSMD"])
    step_s, step_m, step_d = (stride * itemsize for stride in value.stride()[1:])
    assert distances["channel"] == step_d
    assert distances["right"] == step_s
    assert distances["below"] == W * step_s
    assert distances["head"] == step_m
    first = H // 2 * W + W // 2
    bytes_read = [
        pixel * step_s + d * step_d + byte
        for pixel in (first, first + 1, first + W, first + W + 1)
        for d in range(D)
        for byte in range(itemsize)
    ]
    assert distances["sectors"] == len({address // 32 for address in bytes_read})


@pytest.mark.parametrize("B", [1, 377, 378, 755, 756, 1500])
def test_the_saw_holds_what_an_int32_holds(B):
    image = 22_223 * 8 * 32
    picture, held = memory.index_in_32_bits(B, image)
    assert held == int(np.array(B * image - 1, dtype=np.int64).astype(np.int32))
    assert ("which is right" in picture.description) == (B <= 377)
    assert picture.png()

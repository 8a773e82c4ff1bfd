"""Lab 02, Tensors are pointers: the wrong answers that are known."""

from functools import reduce
from math import floor, prod

import torch

from checks.core.exercise import Mistake
from checks.labs.lab02.truth import _corner_offsets, _dot, _overflow

INT32_MAX = 2**31 - 1


def _overflow_with(B, S, M, D, *, limit=2**31, itemsize=1):
    """The answer with one of its choices made otherwise."""
    first = limit // (S * M * D * itemsize) + 1
    return B < first, first


def _int32(number: int) -> int:
    """What is left of a whole number in 32 bits."""
    return (number + 2**31) % 2**32 - 2**31


def _outside_gets(mark, level_start, W, x0, y0, row_stride):
    """A wrong answer: pixels to the left, to the right and above are marked."""
    pixels = [(x0 + dx, y0 + dy) for dy in (0, 1) for dx in (0, 1)]
    offsets = _corner_offsets(level_start, W, x0, y0, row_stride)
    return tuple(offset if 0 <= x < W and y >= 0 else mark for (x, y), offset in zip(pixels, offsets, strict=True))


def _flat(memory, shape, strides, spatial_shapes, level_start_index, sampling_locations, attention_weights, *,
          width=lambda H, W: W, starts=None, base=None, strided=lambda shape, strides: strides, start_step=None,
          outside="skip", attend=True, half=0.5, flip=False, scale=lambda H, W: (W, H), add=True, mean=False,
          level=lambda H, W: (H, W), down=floor, order=(0, 1, 2, 3), heads_last=False):  # fmt: skip
    """The right answer, and by its options the wrong ones."""
    B, S, M, D = shape
    step_b, step_s, step_m, step_d = strides = strided(shape, strides)
    Q, K = sampling_locations.shape[1], sampling_locations.shape[4]
    levels = spatial_shapes.tolist()
    firsts = level_start_index.tolist() if starts is None else starts(levels)
    out = memory.new_zeros(B, Q, M, D)
    channels = torch.arange(D) * step_d
    for b, q, m, l, k in _every(B, Q, M, len(levels), K):
        H, W = level(*levels[l])
        x, y = sampling_locations[b, q, m, l, k].tolist()[:: -1 if flip else 1]
        x, y = x * scale(H, W)[0] - half, y * scale(H, W)[1] - half
        x0, y0 = down(x), down(y)
        attention = attention_weights[b, q, m, l, k].item() if attend else 1
        at_level = firsts[l] * (step_s if start_step is None else start_step)
        at_level += b * step_b + m * step_m if base is None else base(b, m, strides)
        weights = (x0 + 1 - x) * (y0 + 1 - y), (x - x0) * (y0 + 1 - y), (x0 + 1 - x) * (y - y0), (x - x0) * (y - y0)
        if outside == "drop the point" and not (0 <= x0 < W - 1 and 0 <= y0 < H - 1):
            continue
        for corner, place in enumerate(order):
            i, j, weight = x0 + corner % 2, y0 + corner // 2, weights[place]
            inside = 0 <= i < W and 0 <= j < H
            if outside == "clamp":
                i, j = min(max(i, 0), W - 1), min(max(j, 0), H - 1)
            elif outside == "times zero":
                weight *= inside
            elif outside == "read, then drop":
                memory[at_level + (j * W + i) * step_s + channels]
                if not inside:
                    continue
            elif outside in ("memory[0]", "memory[0] times zero") and not inside:
                out[b, q, m] += attention * weight * memory[channels] * (outside == "memory[0]")
                continue
            elif not _counts_as_inside(outside, i, j, H, W):
                continue
            part = attention * weight * memory[at_level + (j * width(H, W) + i) * step_s + channels]
            out[b, q, m] = out[b, q, m] + part if add else part
    out = out.transpose(2, 3) if heads_last else out
    return out.reshape(B, Q, M * D) / (len(levels) * K if mean else 1)


def _counts_as_inside(test: str, i: int, j: int, H: int, W: int) -> bool:
    """Whether pixel (i, j) passes a test for being inside; those listed are wrong tests."""
    right = 0 <= i < W and 0 <= j < H
    return {
        "read": True,
        "rows": 0 <= j < H,
        "columns": 0 <= i < W,
        "level": 0 <= j * W + i < H * W,
        "one more": 0 <= i <= W and 0 <= j <= H,
        "one less": 0 < i < W and 0 < j < H,
        "far edges": i < W and j < H,
        "other size": 0 <= i < H and 0 <= j < W,
    }.get(test, right)


def _every(*sizes):
    return torch.cartesian_prod(*map(torch.arange, sizes)).tolist()


def _flat_mistake(name: str, hint: str, **options) -> Mistake:
    return Mistake(name, lambda *args: _flat(*args, **options), hint)


def _packed(levels):
    return [sum(h * w for h, w in levels[:l]) for l in range(len(levels))]


FLAT_MISTAKES = [
    _flat_mistake(
        "when H stands in for W",
        "To the pixel below it is one image row. How many pixels is that?",
        width=lambda H, W: H,
    ),
    _flat_mistake(
        "when spatial_shapes is taken for (W, H)",
        "It holds the height first. Which of the two is the length of a row?",
        level=lambda H, W: (W, H),
    ),
    _flat_mistake(
        "when the weights of the second and the third corner change places",
        "Corners and weights come in one order: first along x, then down.",
        order=(0, 2, 1, 3),
    ),
    _flat_mistake(
        "when coordinates are truncated, so that -0.3 becomes 0",
        "Left of the first pixel's centre, the upper left pixel is the one at -1: round down, not toward zero.",
        down=int,
    ),
    _flat_mistake(
        "when the channels of the result come out head by head within each channel",
        "In the result, head 0 comes with all of its channels, then head 1.",
        heads_last=True,
    ),
    _flat_mistake(
        "when heads are forgotten in the offset",
        "Every head reads head 0's channels. Where do head m's begin?",
        base=lambda b, m, strides: b * strides[0],
    ),
    _flat_mistake(
        "when the image of the batch is forgotten in the offset",
        "Every image reads the first one's pixels. How far is it to the next image?",
        base=lambda b, m, strides: m * strides[2],
    ),
    _flat_mistake(
        "when the strides of images and heads change places",
        "The strides come in the order of the axes: image, pixel, head, channel.",
        base=lambda b, m, strides: b * strides[2] + m * strides[0],
    ),
    _flat_mistake(
        "when every level is read from the start of memory",
        "That offset is right within its level. Where does the level itself begin?",
        starts=lambda levels: [0] * len(levels),
    ),
    _flat_mistake(
        "when the starts of the levels are computed instead of read",
        "Levels need not lie one after another: `level_start_index` says where each one is.",
        starts=_packed,
    ),
    _flat_mistake(
        "when the start of a level is added in pixels to an offset in elements",
        "`level_start_index` counts pixels. How many elements is it from one pixel to the next?",
        start_step=1,
    ),
    _flat_mistake(
        "when the strides are computed from the shape instead of read",
        "That holds for a contiguous tensor only. `strides` says how this one lies in memory.",
        strided=lambda shape, strides: tuple(prod(shape[axis + 1 :]) for axis in range(4)),
    ),
    _flat_mistake(
        "when the channels of a pixel are taken to lie side by side",
        "They do if the last stride is 1. A convolution leaves them S elements apart.",
        strided=lambda shape, strides: (*strides[:3], 1),
    ),
    _flat_mistake(
        "when one image is taken to lie S*M*D elements from the next",
        "It does if nothing lies between the images. `strides` says how far it is here.",
        strided=lambda shape, strides: (prod(shape[1:]), *strides[1:]),
    ),
    _flat_mistake(
        "when one head is taken to lie D elements from the next",
        "It does if `value` is contiguous. `strides` says how far it is here.",
        strided=lambda shape, strides: (*strides[:2], shape[3], strides[3]),
    ),
    _flat_mistake(
        "when one pixel is taken to lie M*D elements from the next",
        "It does if `value` is contiguous. `strides` says how far it is here.",
        strided=lambda shape, strides: (strides[0], shape[2] * shape[3], *strides[2:]),
    ),
    _flat_mistake(
        "when a corner outside the image is read all the same",
        "Its offset is a number like any other, and what lies there belongs to somebody else. Decide before you read.",
        outside="read",
    ),
    _flat_mistake(
        "when a corner outside is read and then multiplied by zero",
        "Zero times NaN is NaN. What lies there is not yours to read: decide first, then read.",
        outside="times zero",
    ),
    _flat_mistake(
        "when a corner to the left or right of the image is read all the same",
        "Left of the first pixel of a row, memory holds the last pixel of the row before. Test x as well as y.",
        outside="rows",
    ),
    _flat_mistake(
        "when a corner above or below the image is read all the same",
        "Below the last row, memory holds the next level, or nothing of yours. Test y as well as x.",
        outside="columns",
    ),
    _flat_mistake(
        "when column W and row H count as inside",
        "Pixels count from 0. Which is the last one of a row of W?",
        outside="one more",
    ),
    _flat_mistake(
        "when an offset inside the level counts as a pixel inside the image",
        "One step left of pixel (0, 1) is still inside the level's memory, and not in the image. Test x and y, not the "
        "offset.",
        outside="level",
    ),
    _flat_mistake(
        "when row 0 and column 0 count as outside",
        "Pixels count from 0. Which is the first one of a row?",
        outside="one less",
    ),
    _flat_mistake(
        "when only the right and the lower edge are tested",
        "A point near the left edge has a corner at column -1, and its offset is a number like any other.",
        outside="far edges",
    ),
    _flat_mistake(
        "when x is tested against H and y against W",
        "Which of x and y walks along a row, and how many pixels has a row?",
        outside="other size",
    ),
    _flat_mistake(
        "when a point is left out as soon as one of its corners lies outside",
        "Each corner is inside or outside on its own. Those inside still count.",
        outside="drop the point",
    ),
    _flat_mistake(
        "when a pixel outside is read first, and dropped afterwards",
        "What is read need not even be memory of yours: on a GPU the read itself may end the program. Decide, then read.",
        outside="read, then drop",
    ),
    _flat_mistake(
        "when pixels outside are read from the border",
        "Here a pixel that does not exist is zero.",
        outside="clamp",
    ),
    _flat_mistake(
        "when the attention weights are left out",
        "Each sample counts by its own weight.",
        attend=False,
    ),
    _flat_mistake(
        "when x and y of the sampling locations are swapped",
        "The last axis of `sampling_locations` is (x, y).",
        flip=True,
    ),
    _flat_mistake(
        "when the half pixel is forgotten",
        "Location 0 is the edge of the first pixel, not its centre. `lab01.to_pixels` knows.",
        half=0.0,
    ),
    _flat_mistake(
        "when x is scaled by H and y by W",
        "x runs along a row. How many pixels does a row have?",
        scale=lambda H, W: (H, W),
    ),
    _flat_mistake(
        "when only the last corner of the last point is kept",
        "Is something set where it should be added to?",
        add=False,
    ),
    _flat_mistake(
        "when the samples are averaged instead of added",
        "The weights already say how much each sample counts.",
        mean=True,
    ),
]


CONTIGUOUS_STRIDES: list[Mistake] = [
    Mistake(
        "in column-major order, where the first axis lies closest together",
        lambda shape: tuple(prod(shape[:axis]) for axis in range(len(shape))),
        "That is Fortran's and MATLAB's order. Here a matrix lies in memory row by row: which index changes between "
        "one element and the next?",
    ),
    Mistake(
        "when an axis counts its own size too",
        lambda shape: tuple(prod(shape[axis:]) for axis in range(len(shape))),
        "That is how much room the whole axis takes. How far is it to the next index along it?",
    ),
    Mistake(
        "when only the next axis is counted",
        lambda shape: (*shape[1:], 1),
        "In a (2, 3, 4) tensor, what lies between element [0, 0, 0] and element [1, 0, 0]? More than three elements.",
    ),
    Mistake(
        "when the strides come out from the last axis to the first",
        lambda shape: tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))[::-1],
        "The numbers are right, and their order is that of a loop from the back. Stride i belongs to axis i.",
    ),
    Mistake(
        "in bytes of float32 instead of elements",
        lambda shape: tuple(4 * prod(shape[axis + 1 :]) for axis in range(len(shape))),
        "NumPy counts bytes. PyTorch and Triton count elements, and multiply by the size of one at the very end.",
    ),
    Mistake(
        "when the last axis gets a stride of 0",
        lambda shape: (*(prod(shape[axis + 1 :]) for axis in range(len(shape) - 1)), 0),
        "With stride 0 the next index is the same element again. How far is it to the neighbour?",
    ),
    Mistake(
        "when the sizes to the right are added instead of multiplied",
        lambda shape: (*(sum(shape[axis + 1 :]) for axis in range(len(shape) - 1)), 1),
        "Three rows of four are twelve elements.",
    ),
    Mistake(
        "when the shape itself is returned",
        lambda shape: tuple(shape),
        "The shape says how many there are. The stride says how far it is from one to the next.",
    ),
    Mistake(
        "with a true division, which makes floats",
        lambda shape: tuple(prod(shape) / prod(shape[: axis + 1]) for axis in range(len(shape))),
        "`/` gives a float even where it divides evenly.",
    ),
]


FLAT_OFFSET: list[Mistake] = [
    Mistake(
        "when the strides are taken in reverse",
        lambda index, strides: _dot(index, strides[::-1]),
        "Index i and stride i belong to the same axis.",
    ),
    Mistake(
        "when the last index is added as it is",
        lambda index, strides: _dot(index[:-1], strides) + index[-1],
        "In a contiguous tensor the last stride is 1. Is it in a slice with a step?",
    ),
    Mistake(
        "when only the first axis counts",
        lambda index, strides: index[0] * strides[0],
        "All axes contribute. Does a loop end before it has come to the second, with a `return` inside it?",
    ),
    Mistake(
        "when only the last axis counts",
        lambda index, strides: index[-1] * strides[-1],
        "All axes contribute. Does each turn of a loop forget what the turns before have found?",
    ),
    Mistake(
        "when only the first two axes count",
        lambda index, strides: _dot(index[:2], strides),
        "A matrix has two axes. A tensor may have any number.",
    ),
    Mistake(
        "when steps and strides are added up first, and multiplied then",
        lambda index, strides: sum(index) * sum(strides),
        "Each axis has a stride of its own: multiply axis by axis.",
    ),
    Mistake(
        "when the offset so far is multiplied by each stride",
        lambda index, strides: reduce(lambda offset, pair: offset * pair[1] + pair[0], zip(index, strides), 0),
        "That is how one counts with *sizes*. A stride says already how far a step along its axis goes.",
    ),
    Mistake(
        "when the strides are left out",
        lambda index, strides: sum(index),
        "One step along axis 0 is not one element. How many is it?",
    ),
    Mistake(
        "when indices count from 1",
        lambda index, strides: _dot([i - 1 for i in index], strides),
        "The element at index 0 lies at offset 0.",
    ),
    Mistake(
        "in bytes of float32 instead of elements",
        lambda index, strides: 4 * _dot(index, strides),
        "Strides here are in elements, and so is the offset.",
    ),
    Mistake(
        "when strides are put in order first, largest to smallest",
        lambda index, strides: _dot(index, sorted(strides, reverse=True)),
        "A transposed tensor has its strides in another order, and that order is the whole difference.",
    ),
    Mistake(
        "when a stride of 0 counts as 1",
        lambda index, strides: _dot(index, [stride or 1 for stride in strides]),
        "Stride 0 means that the next index is the same element again.",
    ),
    Mistake(
        "when a negative stride loses its sign",
        lambda index, strides: _dot(index, [abs(stride) for stride in strides]),
        "A negative stride walks backwards.",
    ),
    Mistake(
        "when a negative offset becomes 0",
        lambda index, strides: max(_dot(index, strides), 0),
        "The offset counts from the element at index 0, and memory goes on before it.",
    ),
    Mistake(
        "when a negative offset loses its sign",
        lambda index, strides: abs(_dot(index, strides)),
        "An offset has a direction. Below 0 lies what comes before the element at index 0.",
    ),
    Mistake(
        "when the sum is kept in 32 bits, and wraps",
        lambda index, strides: _int32(_dot(index, strides)),
        "Past 2**31 - 1 a 32-bit integer starts again at -2**31. Python's own integers do not; torch.int32 and "
        "numpy.int32 do.",
    ),
    Mistake(
        "when the sum is kept in float32",
        lambda index, strides: int(torch.tensor(float(_dot(index, strides)), dtype=torch.float32)),
        "A float32 has 24 bits for digits: past 2**24 it cannot tell neighbours apart.",
    ),
]


CORNER_OFFSETS: list[Mistake] = [
    Mistake(
        "when x counts rows and y counts columns",
        lambda level_start, W, x0, y0, row_stride: tuple(
            _corner_offsets(level_start, W, y0, x0, row_stride)[i] for i in (0, 2, 1, 3)
        ),
        "Which of the two moves by a whole image row?",
    ),
    Mistake(
        "when x0 and y0 change places",
        lambda level_start, W, x0, y0, row_stride: _corner_offsets(level_start, W, y0, x0, row_stride),
        "One step along y skips a whole row of the image; one step along x does not.",
    ),
    Mistake(
        "when the start of the level is left out",
        lambda level_start, W, x0, y0, row_stride: _corner_offsets(0, W, x0, y0, row_stride),
        "That is the offset within the level. Other levels lie before it.",
    ),
    Mistake(
        "when the start of the level is added in pixels to an offset in elements",
        lambda level_start, W, x0, y0, row_stride: tuple(
            level_start + offset for offset in _corner_offsets(0, W, x0, y0, row_stride)
        ),
        "`level_start` counts rows of the table. How many elements is a row?",
    ),
    Mistake(
        "when pixels are counted instead of elements",
        lambda level_start, W, x0, y0, row_stride: _corner_offsets(level_start, W, x0, y0, 1),
        "You know which row of the table it is. How many elements does each row before it hold? All heads, all channels.",
    ),
    Mistake(
        "when row_stride is taken for the step from one row of the image to the next",
        lambda level_start, W, x0, y0, row_stride: tuple(
            level_start + (y0 + dy) * row_stride + x0 + dx for dy in (0, 1) for dx in (0, 1)
        ),
        "A row of the *table* is one pixel. A row of the image is W of them.",
    ),
    Mistake(
        "when y is not multiplied by the width",
        lambda level_start, W, x0, y0, row_stride: tuple(
            (level_start + y0 + dy + x0 + dx) * row_stride for dy in (0, 1) for dx in (0, 1)
        ),
        "How many pixels are there between a pixel and the one below it?",
    ),
    Mistake(
        "when the second and the third corner change places",
        lambda *args: tuple(_corner_offsets(*args)[i] for i in (0, 2, 1, 3)),
        "The order is that of `corner_weights`: first along x, then down.",
    ),
    Mistake(
        "when only the first corner is multiplied by row_stride",
        lambda level_start, W, x0, y0, row_stride: tuple(
            (level_start + y0 * W + x0) * row_stride + step for step in (0, 1, W, W + 1)
        ),
        "Is the pixel to the right one element further, or one pixel further?",
    ),
    Mistake(
        "when the pixel to the right is taken to lie one element further",
        lambda *args: tuple(
            offset - dx * (args[4] - 1) for offset, dx in zip(_corner_offsets(*args), (0, 1, 0, 1), strict=True)
        ),
        "One element further is the next channel of the same pixel.",
    ),
    Mistake(
        "when x is added in pixels to an offset in elements",
        lambda level_start, W, x0, y0, row_stride: tuple(
            (level_start + (y0 + dy) * W) * row_stride + x0 + dx for dy in (0, 1) for dx in (0, 1)
        ),
        "From one pixel to the next it is a row of the table. How many elements is that?",
    ),
    Mistake(
        "when only the start of the level is multiplied by row_stride",
        lambda level_start, W, x0, y0, row_stride: tuple(
            level_start * row_stride + (y0 + dy) * W + x0 + dx for dy in (0, 1) for dx in (0, 1)
        ),
        "Start, rows and columns are all counted in pixels. All of them have to become elements.",
    ),
    Mistake(
        "when only the rows above are multiplied by row_stride",
        lambda level_start, W, x0, y0, row_stride: tuple(
            level_start + (y0 + dy) * W * row_stride + x0 + dx for dy in (0, 1) for dx in (0, 1)
        ),
        "Start, rows and columns are all counted in pixels. All of them have to become elements.",
    ),
    Mistake(
        "when the third and the fourth corner change places",
        lambda *args: tuple(_corner_offsets(*args)[i] for i in (0, 1, 3, 2)),
        "Not round the square: first the two of the upper row, then the two of the lower row, left to right.",
    ),
    Mistake(
        "when a pixel outside the image gets the offset -1",
        lambda *args: _outside_gets(-1, *args),
        "Only compute. The caller looks at x and y, and never at the offset, to decide what may be read.",
    ),
    Mistake(
        "when a pixel outside the image gets no offset",
        lambda *args: _outside_gets(None, *args),
        "Only compute. The caller looks at x and y, and never at the offset, to decide what may be read.",
    ),
    Mistake(
        "when a corner outside the image is moved inside",
        lambda level_start, W, x0, y0, row_stride: tuple(
            (level_start + max(y0 + dy, 0) * W + min(max(x0 + dx, 0), W - 1)) * row_stride
            for dy in (0, 1)
            for dx in (0, 1)
        ),
        "Reading the border pixel instead would give border padding. Only compute; the mask comes later.",
    ),
    Mistake(
        "when the offset is kept in 32 bits, and wraps",
        lambda *args: tuple(map(_int32, _corner_offsets(*args))),
        "Past 2**31 - 1 a 32-bit integer starts again at -2**31.",
    ),
]


MSDA_FLAT: list[Mistake] = FLAT_MISTAKES


FIRST_OVERFLOW: list[Mistake] = [
    Mistake(
        "when the number of elements is compared instead of the largest index",
        lambda B, S, M, D: _overflow_with(B, S, M, D, limit=INT32_MAX),
        "The first element has index 0. What is the index of the last of n elements?",
    ),
    Mistake(
        "when the number of elements has to be an int32, and not only the largest index",
        lambda B, S, M, D: (B * S * M * D <= INT32_MAX, _overflow(B, S, M, D)[1]),
        "The first element has index 0. What is the index of the last of n elements?",
    ),
    Mistake(
        "when the last index along each axis is multiplied with the others",
        lambda B, S, M, D: ((B - 1) * (S - 1) * (M - 1) * (D - 1) <= INT32_MAX, _overflow(B, S, M, D)[1]),
        "The last of 2 × 3 elements has index 5, not 1 × 2. Count the elements; the last index is one less.",
    ),
    Mistake(
        "when the first result says whether it overflows",
        lambda B, S, M, D: (not _overflow(B, S, M, D)[0], _overflow(B, S, M, D)[1]),
        "True is to mean that everything fits.",
    ),
    Mistake(
        "when the last batch size that fits is given for the first that does not",
        lambda B, S, M, D: (_overflow(B, S, M, D)[0], 2**31 // (S * M * D)),
        "At that batch size everything still has a number. One more.",
    ),
    Mistake(
        "when the division is rounded up",
        lambda B, S, M, D: (_overflow(B, S, M, D)[0], -(-(2**31) // (S * M * D))),
        "Try a shape where B*S*M*D is exactly 2**31: does the last index fit?",
    ),
    Mistake(
        "when bytes of float32 are counted instead of elements",
        lambda B, S, M, D: _overflow_with(B, S, M, D, itemsize=4),
        "A kernel adds an offset in elements to a pointer; the size of an element comes in afterwards, in 64 bits.",
    ),
    Mistake(
        "when the integer is unsigned",
        lambda B, S, M, D: _overflow_with(B, S, M, D, limit=2**32),
        "An int32 spends one of its bits on the sign.",
    ),
    Mistake(
        "when the index is computed in 32 bits, and wraps before it is compared",
        lambda B, S, M, D: (_int32(B * S * M * D - 1) <= INT32_MAX, _overflow(B, S, M, D)[1]),
        "After it has wrapped, every index fits. Count where nothing can wrap.",
    ),
    Mistake(
        "when a wrapped index is recognised by its sign",
        lambda B, S, M, D: (_int32(B * S * M * D - 1) >= 0, _overflow(B, S, M, D)[1]),
        "Go far enough, and it is positive again.",
    ),
    Mistake(
        "when the first element of the last image is taken for the last element",
        lambda B, S, M, D: ((B - 1) * S * M * D <= INT32_MAX, INT32_MAX // (S * M * D) + 2),
        "The last image has elements too: S*M*D of them.",
    ),
    Mistake(
        "when the two results change places",
        lambda B, S, M, D: _overflow(B, S, M, D)[::-1],
        "First whether it fits, then the batch size.",
    ),
    Mistake(
        "when heads are forgotten",
        lambda B, S, M, D: _overflow(B, S, 1, D),
        "How many elements does one pixel have?",
    ),
    Mistake(
        "when channels are forgotten",
        lambda B, S, M, D: _overflow(B, S, M, 1),
        "How many elements does one pixel have?",
    ),
    Mistake(
        "when the given batch counts into the size of one image",
        lambda B, S, M, D: (_overflow(B, S, M, D)[0], 2**31 // (B * S * M * D) + 1),
        "The second result does not depend on B: it is the batch size at which S, M and D become too many.",
    ),
    Mistake(
        "with a true division, which makes floats",
        lambda B, S, M, D: (_overflow(B, S, M, D)[0], 2**31 / (S * M * D) + 1),
        "A batch holds whole images. `//` rounds down, `/` does not.",
    ),
]


MSDA_GATHER: list[Mistake] = [
    *FLAT_MISTAKES,
    _flat_mistake(
        "when the first number of memory counts in the place of each pixel outside",
        "An offset that can be read makes no zero of what lies there. What has to happen to it after the read?",
        outside="memory[0]",
    ),
    _flat_mistake(
        "when the first number of memory is read in the place of a pixel outside, and multiplied by zero",
        "Zero times NaN is NaN. `torch.where` chooses, and does not multiply.",
        outside="memory[0] times zero",
    ),
    _flat_mistake(
        "when a loop goes over points",
        "The numbers are right. Let an axis of a tensor take the place of each loop: `torch.arange(B)[:, None, None]` is "
        "every b at once.",
    ),
]

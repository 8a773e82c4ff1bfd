"""Lab 02, Tensors are pointers: the inputs that tell right from wrong, and the properties that must hold."""

import numbers
import time

import torch
from torch.overrides import TorchFunctionMode

from checks.core.exercise import Draw, Failed, Property
from checks.labs.lab02.truth import _flat_reference

NO_GRID_SAMPLE = {"grid_sample": "it does what you are here to write."}


def _whole_numbers(arguments) -> Property:
    """Equal numbers are equal whether 3 or 3.0; an address has to be a whole number."""

    def check(answer, draw: Draw) -> None:
        result = answer(*arguments(draw))
        for part in result if isinstance(result, (tuple, list)) else (result,):
            tensor = isinstance(part, torch.Tensor)
            if tensor and part.dtype.is_floating_point or not tensor and not isinstance(part, numbers.Integral):
                raise Failed(
                    f"yours holds {part!r}, a {type(part).__name__}. Memory is counted in whole elements, and a float "
                    "cannot tell large ones apart: stay with whole numbers (`//`, not `/`).",
                    key="not a whole number",
                )

    return Property("whole_numbers", "offsets and strides are whole numbers", check)


# --- contiguous_strides ---------------------------------------------------------------------------------------------


def one_axis(draw: Draw):
    """along a single axis, neighbours are neighbours in memory"""
    return ((draw.integer(3, 9),),)


def rows_and_columns(draw: Draw):
    """in a matrix, the next row lies one whole row further"""
    rows = draw.integer(3, 5)
    return ((rows, rows + draw.integer(2, 4)),)


def the_value_tensor(draw: Draw):
    """(B, S, M, D): one step along an axis skips everything to its right"""
    return ((draw.integer(2, 3), draw.integer(20, 40), draw.integer(4, 8), draw.integer(9, 15)),)


def an_axis_of_one(draw: Draw):
    """an axis of size 1 takes no room"""
    return ((draw.integer(2, 4), 1, draw.integer(5, 7)),)


def six_axes(draw: Draw):
    """(B, Q, M, L, K, 2): any number of axes"""
    return ((2, draw.integer(5, 9), 3, draw.integer(4, 5), draw.integer(6, 7), 2),)


def _index(draw: Draw, shape):
    return tuple(draw.integer(1, size - 1) for size in shape)


def without_gaps(draw: Draw):
    """an element of a contiguous tensor"""
    shape = (draw.integer(2, 3), draw.integer(5, 7), draw.integer(3, 4), draw.integer(8, 11))
    return _index(draw, shape), torch.empty(shape).stride()


def transposed(draw: Draw):
    """an element of a transposed tensor: the same memory, the strides in another order"""
    shape = (draw.integer(3, 4), draw.integer(5, 6), draw.integer(7, 9))
    view = torch.empty(shape).permute(2, 0, 1)
    return _index(draw, view.shape), view.stride()


def every_other_column(draw: Draw):
    """an element of a slice with a step: the last axis may have gaps too"""
    view = torch.empty(draw.integer(4, 6), 14)[:, :: draw.integer(2, 3)]
    return _index(draw, view.shape), view.stride()


def expanded(draw: Draw):
    """an axis that repeats one element has stride 0"""
    view = torch.empty(draw.integer(4, 6), 1, 3).expand(-1, 5, -1)
    return _index(draw, view.shape), view.stride()


def backwards(draw: Draw):
    """an axis that runs backwards has a negative stride"""
    return (draw.integer(1, 3), draw.integer(1, 4)), (draw.integer(7, 9), -1)


def before_the_first(draw: Draw):
    """an axis that runs backwards may lead to before the element at index 0: the offset is negative"""
    return (draw.integer(1, 2), draw.integer(4, 6)), (draw.integer(2, 3), -draw.integer(5, 9))


def beyond_32_bits(draw: Draw):
    """in a large batch offsets pass 2**31, and stay exact"""
    image = 22_223 * 8 * 32
    return (draw.integer(800, 999), draw.integer(0, 22_222), draw.integer(0, 7), draw.integer(1, 31)), (
        image,
        256,
        32,
        1,
    )


def the_first_level(draw: Draw):
    """on the first level, of one channel a pixel: row by row, x along the row"""
    W = draw.integer(7, 11)
    return 0, W, draw.integer(3, W - 2), draw.integer(1, 2), 1


def a_later_level(draw: Draw):
    """a later level begins where its start says, and a row of the table is M*D elements long"""
    W = draw.integer(7, 11)
    return draw.integer(60, 90), W, draw.integer(3, W - 2), draw.integer(1, 2), draw.integer(30, 45)


def off_the_left_edge(draw: Draw):
    """left of the image or above it, the same arithmetic: whether it may be read is decided later"""
    return draw.integer(60, 90), draw.integer(7, 11), -1, draw.integer(-1, 2), draw.integer(13, 20)


def far_into_memory(draw: Draw):
    """far into memory offsets pass 2**31, and stay exact"""
    return draw.integer(9_000_000, 20_000_000), 1_333, draw.integer(600, 900), draw.integer(100, 500), 256


# --- msda_flat ------------------------------------------------------------------------------------------------------

STORED = "BSMD"  # the order of value's axes in memory


def _flat_inputs(draw: Draw, *, B=1, Q=2, M=2, D=3, K=3, shapes=((3, 5), (2, 3)), starts=None, S=None, stored=STORED,
                 spread=0.1):  # fmt: skip
    """One call on flat memory, with NaN wherever no level's pixel lies.

    Memory goes on past the end of `value`, as a GPU's does: a wrong offset reads NaN there, and does not raise.
    """
    sizes = [h * w for h, w in shapes]
    starts = [sum(sizes[:l]) for l in range(len(sizes))] if starts is None else starts
    S = sum(sizes) if S is None else S
    value = torch.full((B, S, M, D), float("nan"))
    for start, size in zip(starts, sizes):
        value[:, start : start + size] = draw.normal(B, size, M, D) + 1
    memory = value.permute([STORED.index(axis) for axis in stored]).contiguous()
    strides = memory.permute([stored.index(axis) for axis in STORED]).stride()
    memory = torch.cat([memory.flatten(), memory.new_full((3 * memory.numel(),), float("nan"))])
    L = len(shapes)
    locations = draw.uniform(B, Q, M, L, K, 2, low=-spread, high=1 + spread)
    weights = draw.uniform(B, Q, M, L, K, low=0.1, high=1.0)
    weights = weights / weights.sum((-1, -2), keepdim=True)
    return memory, (B, S, M, D), strides, torch.tensor(shapes), torch.tensor(starts), locations, weights


def one_level_one_head(draw: Draw):
    """one level that is wider than high, one head: points well inside"""
    return _flat_inputs(draw, M=1, shapes=((3, 7),), spread=-0.25)


def several_heads(draw: Draw):
    """each head's channels lie beside the others', pixel by pixel"""
    return _flat_inputs(draw, M=3, K=2, shapes=((3, 4),), spread=-0.2)


def two_images(draw: Draw):
    """the second image lies after all pixels of the first"""
    return _flat_inputs(draw, B=2, Q=1, shapes=((5, 3),), spread=-0.2)


def two_levels(draw: Draw):
    """the second level begins where the first one ends"""
    return _flat_inputs(draw, shapes=((3, 5), (5, 4)), spread=-0.25)


def across_the_border(draw: Draw):
    """pixels outside a level are zero, whatever lies there in memory"""
    memory, shape, strides, shapes, starts, locations, weights = _flat_inputs(
        draw, Q=4, M=1, K=2, shapes=((4, 6),), starts=[9], S=43, spread=-0.2
    )
    # Each query has one point across an edge: left, right, top, bottom.
    locations[0, :, 0, 0, 0] = torch.tensor([(-0.04, 0.4), (1.03, 0.6), (0.45, -0.05), (0.55, 1.04)])
    return memory, shape, strides, shapes, starts, locations, weights


def levels_with_gaps(draw: Draw):
    """levels lie where `level_start_index` says: here with gaps between them"""
    return _flat_inputs(draw, starts=[7, 30], S=46, spread=0.15)


def coarse_level_first(draw: Draw):
    """levels may lie in any order: here the last one comes first"""
    return _flat_inputs(draw, starts=[14, 5], S=38, spread=0.1)


def heads_outermost(draw: Draw):
    """memory as (B, M, S, D): each head has its pixels to itself"""
    return _flat_inputs(draw, B=2, Q=1, starts=[7, 22], S=34, stored="BMSD", spread=0.1)


def a_piece_of_something_larger(draw: Draw):
    """`value` may be cut out of a larger tensor: then no stride follows from its shape"""
    memory, (B, S, M, D), _, *rest = _flat_inputs(draw, B=2, Q=1, spread=-0.1)
    larger = torch.full((B, S + 2, M + 1, D + 2), float("nan"))
    view = larger[:, :S, :M, :D]
    view.copy_(memory[: B * S * M * D].reshape(B, S, M, D))
    return larger.flatten(), (B, S, M, D), view.stride(), *rest


def to_the_last_byte(draw: Draw):
    """memory ends with the last pixel: what would lie beyond cannot even be read"""
    memory, (B, S, M, D), *rest = _flat_inputs(draw, Q=3, K=2, shapes=((2, 3), (3, 5)), spread=-0.2)
    locations = rest[3]
    locations[0, :, :, 1, 0] = torch.tensor([(0.3, 1.05), (1.02, 0.9), (0.8, 1.1)])[:, None]
    return memory[: S * M * D].clone(), (B, S, M, D), *rest


def channels_outermost(draw: Draw):
    """memory as (B, M, D, S), as a convolution leaves it: the channels of a pixel lie far apart"""
    return _flat_inputs(draw, starts=[7, 22], S=34, stored="BMDS", D=5, spread=0.1)


def in_double_precision(draw: Draw):
    """in float64 the result is float64, and as exact"""
    memory, *sizes, locations, weights = _flat_inputs(draw, K=4, M=3, shapes=((3, 5), (2, 7)), spread=-0.2)
    return memory.double(), *sizes, locations.double(), weights.double()


FLAT_CASES = [
    in_double_precision,
    one_level_one_head,
    several_heads,
    two_images,
    two_levels,
    across_the_border,
    levels_with_gaps,
    coarse_level_first,
    heads_outermost,
    channels_outermost,
    a_piece_of_something_larger,
    to_the_last_byte,
]


def a_detector(draw: Draw):
    """an 800 × 1333 photograph at four scales, S = 22,223, with M = 8 and D = 32: a usual batch fits"""
    return draw.integer(2, 64), 22_223, 8, 32


def the_last_that_fits(draw: Draw):
    """the last batch that fits, and the first that does not"""
    return 377 + draw.integer(0, 1), 22_223, 8, 32


def past_twice_the_range(draw: Draw):
    """a batch so large that a wrapped index is positive again"""
    return draw.integer(770, 1_000), 22_223, 8, 32


def exactly_full(draw: Draw):
    """2**31 elements are numbered from 0 to 2**31 - 1: they just fit"""
    power = draw.integer(12, 15)
    return 2**31 // (2**power * 256), 2**power, 8, 32


def one_image_too_large(draw: Draw):
    """an image can be too large on its own"""
    return draw.integer(1, 3), 2**23 + draw.integer(1, 999), 16, 24


# --- stretch: msda_gather -------------------------------------------------------------------------------------------


def _samples_per_second(answer) -> str:
    def rate(run) -> float:
        """Samples a second, on a call large enough to take a tenth of a second."""
        Q, seconds = 4, 0.0
        while seconds < 0.1 and Q < 10_000:
            Q *= 4
            args = _flat_inputs(Draw(0), Q=Q, M=4, D=16, K=3, shapes=((24, 32), (12, 16), (6, 8)))
            started = time.perf_counter()
            run(*args)
            seconds = time.perf_counter() - started
        return args[-1].numel() / seconds

    return f"{rate(answer):,.0f} samples a second; the same on grid_sample, {rate(_flat_reference):,.0f}."


class _Calls(TorchFunctionMode):
    """Counts the calls of PyTorch's functions."""

    count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def _no_loop(answer, draw: Draw) -> None:
    counts = []
    for more in (1, 3):
        args = _flat_inputs(draw, Q=2 * more, M=more, K=more, B=more)
        with _Calls() as calls:
            answer(*args)
        counts.append(calls.count)
    if counts[1] > counts[0]:
        raise Failed(
            f"one call takes {counts[0]:,} calls of PyTorch's functions, and a larger one of the same levels takes "
            f"{counts[1]:,}. The tensors should grow, and not the number of calls.",
            key="a loop",
        )

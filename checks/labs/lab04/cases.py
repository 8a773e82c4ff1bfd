"""Lab 04, Hello, Triton: the inputs that tell right from wrong, and the properties that must hold."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from checks.core import compare
from checks.core.watch import door
from checks.core.exercise import Draw, Failed, NotRun, Property
from checks.labs.lab04.truth import POINTS_Q

SECTOR = 32  # bytes that are moved at once
LIMIT = 10.0  # seconds one call may take: a loop without an end, not a slow interpreter


def _blocks(n: int, block: int) -> int:
    return -(-n // block)


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _own_share(invoke: Callable, arguments: Callable[[Draw], tuple], mine: str, at_once: int = 1) -> Property:
    """Every program of a launch stores something, no two store the same element, accesses are as wide as a block, and
    what one store writes lies side by side.

    Args:
        invoke, arguments: the launch: blocks that are full.
        mine: what a program's share is, as a question.
        at_once: how many tiles one access may hold side by side, as an axis of its own: the corners of a point.
    """

    def check(kernel, draw: Draw) -> None:
        from msda_core import machine

        storing: dict[int, tuple] = {}
        twice: list[str] = []
        lanes, launches = [0], []
        scattered: list[str] = []

        def see(access):
            lanes[0] = max(lanes[0], access.addresses.size)
            if access.kind != "store" or access.argument is None:
                return
            touched = len(np.unique(access.addresses[access.mask] // SECTOR))
            enough = -(-int(access.mask.sum()) * access.itemsize // SECTOR)
            if touched > 2 * enough and not scattered:
                scattered.append(
                    f"a store of program {_short(access.program)} touches {touched} sectors of {SECTOR} bytes, where {enough} "
                    "would hold what it writes. The result is right, and most of each sector is moved for nothing: let "
                    "neighbouring lanes have neighbouring elements."
                )
            for address in access.addresses[access.mask].tolist():
                first = storing.setdefault(address, access.program)
                if first != access.program and not twice:
                    element = f"element {access.argument.element(address)} of {access.argument.name}"
                    twice.append(f"program {_short(access.program)} stores {element}, as program {_short(first)} did.")

        with machine.guard(observer=see, launched=launches.append):
            invoke(kernel, *arguments(draw))
        if not storing:
            return  # nothing is written at all: other checks say so
        if twice:
            raise Failed(f"{twice[0]} Does every program do the whole work? {mine}", key="overlap")
        idle = set(itertools.product(*map(range, launches[0].grid))) - set(storing.values())
        if idle:
            raise Failed(f"program {_short(min(idle))} stores nothing. {mine}", key="idle")
        if lanes[0] < 2:
            raise Failed(
                "every access is of one element. A program has a block of lanes, and each line works on all of them: one "
                "element per turn of a loop leaves all but one idle.",
                key="one lane",
            )
        sizes = {name: int(launches[0].values[name]) for name in launches[0].constants}
        tile = math.prod(sizes.values())
        if (lanes[0] > tile and lanes[0] != at_once * tile) or (len(sizes) == 1 and lanes[0] not in sizes.values()):
            given = " and ".join(f"{name} is {size}" for name, size in sizes.items())
            raise Failed(f"an access has {lanes[0]} lanes, and {given}.", key="lanes")
        if scattered:
            raise Failed(f"{scattered[0]} {mine}", key="scattered")

    return Property("own_share", "each program does its own share, many lanes at a time", check)


@door  # the guard asks for it in the middle of an answer's kernel
def _short(program: tuple[int, int, int]) -> str:
    """A program's number, without axes the grid does not have."""
    return str(program[0]) if not any(program[1:]) else f"({program[0]}, {program[1]})"


# --- add_kernel -----------------------------------------------------------------------------------------------------

ADD_BLOCK = 32


def _add(kernel, x: Tensor, y: Tensor, block: int = ADD_BLOCK) -> Tensor:
    N, out = x.numel(), torch.empty_like(x)
    kernel[(_blocks(N, block),)](x, y, out, N, BLOCK=block)
    return out


def one_full_block(draw: Draw):
    """one program adds a whole block"""
    return draw.normal(ADD_BLOCK), draw.normal(ADD_BLOCK)


def each_its_own(draw: Draw):
    """each program adds its own block"""
    N = ADD_BLOCK * draw.integer(3, 5)
    return draw.normal(N), draw.normal(N)


def last_block_ragged(draw: Draw):
    """when N is no multiple of BLOCK, the last block is added too, and nothing past N is read or written"""
    N = ADD_BLOCK * draw.integer(2, 3) + draw.integer(1, 30)
    return draw.normal(N), draw.normal(N)


def shorter_than_a_block(draw: Draw):
    """a vector may be shorter than one block"""
    N = draw.integer(2, 7)
    return draw.normal(N), draw.normal(N)


def block_of_another_size(draw: Draw):
    """BLOCK is what the launch says, whatever it is"""
    block = ADD_BLOCK * 2 ** draw.integer(1, 2)
    N = 2 * block - draw.integer(1, 9)
    return draw.normal(N), draw.normal(N), block


# --- copy2d_kernel --------------------------------------------------------------------------------------------------

TILE_H, TILE_W = 4, 8


def _copy2d(kernel, x: Tensor, gap: int, downwards: bool, tile: tuple[int, int] = (TILE_H, TILE_W)) -> Tensor:
    """x copied into memory whose rows have a gap between them, or into memory that runs downwards. All of the memory.

    Raises:
        Failed: something was written into a gap.
    """
    H, W = x.shape
    memory = x.new_full((W, H) if downwards else (H, W + gap), float("nan"))
    out = memory.T if downwards else memory[:, :W]
    grid = (_blocks(H, tile[0]), _blocks(W, tile[1]))
    kernel[grid](x, out, H, W, *x.stride(), *out.stride(), BLOCK_H=tile[0], BLOCK_W=tile[1])
    written = memory[:, W:].isfinite().nonzero()
    if not downwards and len(written):
        raise Failed(
            f"you wrote into the gap after row {int(written[0, 0])}, which must be left alone: the rows of out are "
            f"{W + gap} elements apart, and {W} of them are yours.",
            key=("gap", memory.cpu().numpy().tobytes()),
        )
    return memory.T if downwards else memory


def whole_tiles(draw: Draw):
    """each program copies its own tile"""
    return draw.normal(2 * TILE_H, 3 * TILE_W), 0, False


def ragged_rows(draw: Draw):
    """H need not be a multiple of BLOCK_H"""
    return draw.normal(TILE_H + draw.integer(1, 3), 2 * TILE_W), 0, False


def ragged_columns(draw: Draw):
    """W need not be a multiple of BLOCK_W"""
    return draw.normal(2 * TILE_H, TILE_W + draw.integer(1, 7)), 0, False


def transposed_input(draw: Draw):
    """x may be transposed: its neighbours in a row are then far apart in memory"""
    return draw.normal(11, 6).T, 0, False


def every_other_column(draw: Draw):
    """x may skip: its columns are then two elements apart"""
    return draw.normal(3, 22)[:, ::2], 0, False


def gap_after_each_row(draw: Draw):
    """out may have a gap after each row, and the gap is left alone"""
    return draw.normal(6, 7), draw.integer(2, 5), False


def downwards_output(draw: Draw):
    """out may run downwards: its neighbours in a column are then next to each other"""
    return draw.normal(6, 11), 0, True


def part_of_a_matrix(draw: Draw):
    """x may be a part of a larger matrix: what lies around it is not copied"""
    return draw.normal(12, 21)[:7, : draw.integer(9, 11)], 0, False


def tile_of_another_size(draw: Draw):
    """BLOCK_H and BLOCK_W are what the launch says, whatever they are"""
    return draw.normal(9, 17 + draw.integer(0, 3)), 0, False, (2 * TILE_H, 2 * TILE_W)


# --- gather_rows_kernel ---------------------------------------------------------------------------------------------

ROWS_N = 4
FAR_STRIDE = 2**30 + 7  # elements: row 2 begins past 2^31, row 4 past 2^32


def _gather(kernel, table: Tensor, index: Tensor, block: int = ROWS_N) -> Tensor:
    N, D = index.numel(), table.shape[1]
    out = table.new_empty(N, D)
    kernel[(_blocks(N, block),)](table, index, out, N, D, table.stride(0), BLOCK_N=block, BLOCK_D=_power_of_two(D))
    return out


def _index(draw: Draw, N: int, R: int) -> Tensor:
    """N numbers below R, the last row among them, in no order that another rule gives by accident."""
    index = draw.integers(N, low=0, high=R - 1, dtype=torch.int32)
    index[draw.integer(0, N - 1)] = R - 1
    return index


def whole_blocks(draw: Draw):
    """row n of out is the row of the table that index[n] names"""
    return draw.normal(9, 8), _index(draw, 3 * ROWS_N, 9)


def ragged_index(draw: Draw):
    """N need not be a multiple of BLOCK_N"""
    N = ROWS_N * draw.integer(1, 3) + draw.integer(1, 3)
    return draw.normal(7, 8), _index(draw, N, 7)


def ragged_width(draw: Draw):
    """D need not be a power of two"""
    D = draw.integer(5, 7)
    return draw.normal(6, D), _index(draw, ROWS_N - 1, 6)


def table_with_gaps(draw: Draw):
    """the table's rows may have gaps between them"""
    return draw.normal(6, 11, dtype=torch.float16)[:, :5], _index(draw, 2 * ROWS_N, 6)


def blocks_of_another_size(draw: Draw):
    """BLOCK_N and BLOCK_D are what the launch says, whatever they are"""
    N = 4 * ROWS_N - draw.integer(1, 3)
    return draw.normal(6, draw.integer(11, 13)), _index(draw, N, 6), 2 * ROWS_N


def _far_table(draw: Draw, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """Rows of small whole numbers, 2^30 elements apart. Only the touched pages are really there.

    Raises:
        NotRun: the address space is not to be had.
    """
    size = ((rows - 1) * FAR_STRIDE + columns) * dtype.itemsize
    try:
        storage = torch.UntypedStorage(size)
        table = torch.empty(0, dtype=dtype).set_(storage, 0, (rows, columns), (FAR_STRIDE, 1))
        return table.copy_(draw.integers(rows, columns, low=-100, high=100, dtype=dtype))
    except (RuntimeError, MemoryError) as error:
        raise NotRun(f"needs {size >> 30} GiB of address space, which are not to be had: {error}") from None


def _far_rows(kernel, draw: Draw) -> str:
    """Five rows of bytes: the third lies past 2^31, and the last past 2^32."""
    index = torch.tensor([4, 0, 2, 1, 3, 2], dtype=torch.int32)
    table = _far_table(draw, 5, 6, torch.int8)
    got, expected = _gather(kernel, table, index), table[index.long()]
    if not torch.equal(got, expected):
        n, d = (int(i) for i in (got != expected).nonzero()[0])
        raise Failed(
            f"yours {int(got[n, d])}, expected {int(expected[n, d])} at row {n}, column {d}, "
            f"from table row {int(index[n])} at element {int(index[n]) * FAR_STRIDE:,}.",
            key=("far rows", tuple(got.flatten().tolist())),
        )
    return f"element {4 * FAR_STRIDE:,} was read from the right place."


def _far_sums(kernel, draw: Draw) -> str:
    """Five rows of float16: the third lies past 2^31, and the last past 2^32."""
    x = _far_table(draw, 5, SUM_BLOCK + 5, torch.float16)
    got, expected = _row_sum(kernel, x), x.float().sum(1)
    if not torch.equal(got, expected):
        row = int((got != expected).nonzero()[0])
        raise Failed(
            f"yours {got[row].item():g}, expected {expected[row].item():g} for row {row}, which begins at element "
            f"{row * FAR_STRIDE:,}.",
            key=("far rows", tuple(got.tolist())),
        )
    return f"the row at element {4 * FAR_STRIDE:,} was added up."


def _far_shares(kernel, draw: Draw) -> str:
    """Three rows of float32, of which the last lies past 2^31, in x and in out."""
    N = SUM_BLOCK + 5
    both = _far_table(draw, 3, 4 * SUM_BLOCK, torch.float32)  # out lies in the gaps between the rows of x
    x, out = both[:, :N].div_(50), both[:, 2 * SUM_BLOCK : 2 * SUM_BLOCK + N]
    out.fill_(float("nan"))
    kernel[(3,)](x, out, N, FAR_STRIDE, BLOCK=SUM_BLOCK)
    got, expected = out.contiguous(), x.softmax(1)
    message = compare.difference(got, expected.double(), expected, ["row", "element"])
    if message:
        raise Failed(
            f"{message} Row 2 begins at element {2 * FAR_STRIDE:,}.",
            key=("far rows", tuple(got.nan_to_num(-1).flatten().mul(1e4).round().tolist())),
        )
    return f"the row at element {2 * FAR_STRIDE:,} was read and written."


def _bilinear(kernel, image: Tensor, locations: Tensor, block: int = POINTS_Q) -> Tensor:
    (H, W, D), Q = image.shape, locations.shape[0]
    out = image.new_empty(Q, D)
    kernel[(_blocks(Q, block),)](image, locations, out, Q, H, W, D, BLOCK_Q=block, BLOCK_D=_power_of_two(D))
    return out


def _at(pixels: list[tuple[float, float]], H: int, W: int) -> Tensor:
    """Locations of pixel coordinates (x, y)."""
    return (torch.tensor(pixels) + 0.5) / torch.tensor([W, H])


def pixel_centres(draw: Draw):
    """at the centre of a pixel, the pixel"""
    H, W = 4, 8
    pixels = [(x, y) for y in range(H) for x in range(W)]
    order = draw.permutation(len(pixels))[:POINTS_Q].tolist()
    return draw.normal(H, W, 4), _at([pixels[i] for i in order], H, W)


def between_pixels(draw: Draw):
    """between pixels, the four around the point, each by its weight"""
    H, W = 5, 9
    pixels = [(draw.number(0, W - 1.01), draw.number(0, H - 1.01)) for _ in range(POINTS_Q)]
    return draw.normal(H, W, 4), _at(pixels, H, W)


def across_the_border(draw: Draw):
    """a pixel outside the image counts as zero: near the border and in the corners a sample fades"""
    H, W = 5, 7
    t = lambda: draw.number(0.2, 0.8)  # noqa: E731
    low = lambda: -draw.number(0.2, 0.8)  # noqa: E731
    corners = [(x(), y()) for x in (low, lambda: W - 1 + t()) for y in (low, lambda: H - 1 + t())]
    # One pixel inside along one axis, outside along the other: each side of the image by itself.
    sides = [(t(), low()), (low(), t()), (W - 2 + t(), H - 1 + t()), (W - 1 + t(), H - 2 + t())]
    sides += [(low(), H - 2 + t()), (W - 1 + t(), t()), (W - 2 + t(), low()), (t(), H - 1 + t())]
    return draw.normal(H, W, 4), _at((corners + sides) * 2, H, W)[:POINTS_Q]


def outside(draw: Draw):
    """a point that touches no pixel is zero"""
    H, W = 3, 6
    pixels = [(draw.number(-9, -1.5), 1.3), (2.2, draw.number(3.5, 9)), (draw.number(7, 12), -4.0), (2.0, -1.5)]
    return draw.normal(H, W, 4), _at(pixels * 3, H, W)


def ragged_points_and_channels(draw: Draw):
    """Q need not be a multiple of BLOCK_Q, nor D a power of two"""
    H, W, D = 4, 6, draw.integer(5, 7)
    Q = POINTS_Q + draw.integer(2, 9)
    pixels = [(draw.number(-1, W), draw.number(-1, H)) for _ in range(Q - 1)]
    return draw.normal(H, W, D), _at([*pixels, (W - 0.7, H - 0.8)], H, W)


def points_in_another_block(draw: Draw):
    """BLOCK_Q and BLOCK_D are what the launch says, whatever they are"""
    H, W = 5, 7
    Q = 4 * POINTS_Q - draw.integer(1, 5)
    pixels = [(draw.number(-0.5, W - 0.5), draw.number(-0.5, H - 0.5)) for _ in range(Q)]
    return draw.normal(H, W, draw.integer(9, 13)), _at(pixels, H, W), 2 * POINTS_Q


def _two_blocks_of_points(draw: Draw):
    pixels = [(draw.number(0, 5), draw.number(0, 3)) for _ in range(8)]
    return draw.normal(4, 6, 4), _at(pixels, 4, 6), 4


# --- row_sum_kernel -------------------------------------------------------------------------------------------------

SUM_BLOCK = 16


def _row_sum(kernel, x: Tensor, block: int = SUM_BLOCK) -> Tensor:
    R, N = x.shape
    out = torch.empty(R, device=x.device)
    kernel[(R,)](x, out, N, x.stride(0), BLOCK=block)
    return out


def one_block_a_row(draw: Draw):
    """each program adds up its own row"""
    return (draw.normal(3, SUM_BLOCK),)


def several_blocks_a_row(draw: Draw):
    """a row may be several blocks long"""
    return (draw.normal(2, SUM_BLOCK * draw.integer(3, 5)),)


def odd_length(draw: Draw):
    """a row may have any length: the last block counts, and nothing past the row does"""
    return (draw.uniform(3, SUM_BLOCK * draw.integer(1, 3) + 2 * draw.integer(1, 6) + 1, low=0.5, high=1.5),)


def short_row(draw: Draw):
    """a row may be shorter than one block"""
    return (draw.uniform(2, draw.integer(3, 9), low=0.5, high=1.5),)


def rows_with_gaps(draw: Draw):
    """rows may have gaps between them"""
    return (draw.normal(3, 30)[:, :21],)


def long_float16_row(draw: Draw):
    """a long row of float16 is added up in float32: float16 would lose the small digits"""
    return (draw.uniform(2, 333, low=40.0, high=60.0, dtype=torch.float16),)


def short_blocks_a_row(draw: Draw):
    """BLOCK is what the launch says, whatever it is"""
    return draw.uniform(2, 8 * draw.integer(2, 4) + 3, low=0.5, high=1.5), 8


# --- stretch: softmax_kernel ----------------------------------------------------------------------------------------


def _softmax(kernel, x: Tensor, block: int = SUM_BLOCK) -> Tensor:
    """Into memory whose rows are as far apart as those of x."""
    R, N = x.shape
    out = x.new_empty(R, x.stride(0))[:, :N]
    kernel[(R,)](x, out, N, x.stride(0), BLOCK=block)
    return out


def one_block_to_normalise(draw: Draw):
    """each row of the result is positive and adds up to one"""
    return (draw.normal(3, SUM_BLOCK),)


def several_blocks_to_normalise(draw: Draw):
    """one sum for the whole row, however many blocks it has"""
    return (draw.normal(2, SUM_BLOCK * draw.integer(1, 3) + draw.integer(3, 13)),)


def large_numbers(draw: Draw):
    """exp does not overflow, however large the numbers are, and wherever the largest is"""
    x = draw.uniform(3, 37, low=90.0, high=100.0)
    x[1, SUM_BLOCK:] -= 120
    x[2, :-SUM_BLOCK] -= 120
    return (x,)


def very_negative_numbers(draw: Draw):
    """nor do all of them vanish, however negative they are"""
    return (draw.uniform(2, 21, low=-130.0, high=-120.0),)


def very_negative_whole_blocks(draw: Draw):
    """nor do they where the row fills its blocks, and no lane lies past its end"""
    return (draw.uniform(3, 2 * SUM_BLOCK, low=-130.0, high=-120.0),)


def rows_apart(draw: Draw):
    """rows may have gaps between them, in x and in out"""
    return (draw.normal(3, 30)[:, :21],)


def less_than_a_block_to_normalise(draw: Draw):
    """a row shorter than a block: some lanes never see an element"""
    return (draw.normal(2, SUM_BLOCK - 3),)


def minus_infinity_in_a_row(draw: Draw):
    """-inf is a number like others: its share is 0, also where it comes first"""
    x = draw.normal(2, 2 * SUM_BLOCK + 5)
    x[:, :3] = float("-inf")
    return (x,)


def short_blocks_to_normalise(draw: Draw):
    """BLOCK is what the launch says, whatever it is"""
    return draw.normal(2, 8 * draw.integer(2, 4) + 3), 8


def _reads(kernel) -> str:
    """How often an element is read, on a row of twenty blocks: the machine counts the bytes."""
    from msda_core import machine

    x = Draw(0).normal(1, 20 * SUM_BLOCK)
    trace = machine.trace(kernel, (1,), x, torch.empty_like(x), x.shape[1], x.stride(0), BLOCK=SUM_BLOCK)
    reads = sum(event.bytes for event in trace.where("load")) / (x.numel() * x.element_size())
    return f"each element is read {reads:.2f} times. Three is straightforward; how low can you go?"

"""Lab 04, Hello, Triton: its exercises, and the mistakes they are there to find.

Every kernel is launched as the launcher beside it in the notebook does. A mistake is told as an edit of the solution.
"""

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from checks.core.exercise import Draw, Failed, Mistake, NotRun, Property, exercise
from checks.kernel.launches import edited, with_body
from msda_core import reference
from solutions import lab04 as solution

LIMIT = 10.0  # seconds one call may take: a loop without an end, not a slow interpreter


def _blocks(n: int, block: int) -> int:
    return -(-n // block)


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _own_share(invoke: Callable, arguments: Callable[[Draw], tuple], mine: str) -> Property:
    """Every program of a launch stores something, no two store the same element, and accesses are as wide as a block.

    Args:
        invoke, arguments: the launch: blocks that are full.
        mine: what a program's share is, as a question.
    """

    def check(kernel, draw: Draw) -> None:
        from msda_core import machine

        storing: dict[int, tuple] = {}
        twice: list[str] = []
        lanes, launches = [0], []

        def see(access):
            lanes[0] = max(lanes[0], access.addresses.size)
            if access.kind != "store" or access.argument is None:
                return
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
        if lanes[0] > math.prod(sizes.values()) or (len(sizes) == 1 and lanes[0] not in sizes.values()):
            given = " and ".join(f"{name} is {size}" for name, size in sizes.items())
            raise Failed(f"an access has {lanes[0]} lanes, and {given}.", key="lanes")

    return Property("own_share", "each program does its own share, many lanes at a time", check)


def _short(program: tuple[int, int, int]) -> str:
    """A program's number, without axes the grid does not have."""
    return str(program[0]) if not any(program[1:]) else f"({program[0]}, {program[1]})"


BLOCK_GIVEN = "The launch decides how large a block is, and tells the kernel. Is a size written as a number somewhere?"
WHOLE_WORK = "The grid has as many programs as there is work for, and each of them runs your lines. "
ONE_LANE = (
    "A line works on all lanes of a block together: where is the block in yours? A loop over elements does one after the "
    "other, in one lane."
)
NOTHING_WRITTEN = "A kernel returns nothing. What it computes is in memory only where it was stored: tl.store."


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


def _wrong_add(*changes: tuple[str, str]):
    return edited(solution.add_kernel, *changes)


PID = "tl.program_id(0) * BLOCK"
NO_MASK = (
    "The last program owns lanes that have no element. Which of its accesses do they take part in? "
    "Look at the others too: the guard stops at the first."
)

exercise(
    "04.add_kernel",
    reference=lambda x, y, block=0: x + y,
    cases=[one_full_block, each_its_own, last_block_ragged, shorter_than_a_block, block_of_another_size],
    properties=[
        _own_share(
            _add,
            lambda draw: (draw.normal(3 * ADD_BLOCK), draw.normal(3 * ADD_BLOCK)),
            "Which elements are program 1's?",
        )
    ],
    invoke=_add,
    guarded=True,
    limit=LIMIT,
    axes=["element"],
    mistakes=[
        Mistake(
            "when nothing is written to out",
            _wrong_add(("tl.store(out_ptr + offs, x + y, mask=mask)", "x + y")),
            NOTHING_WRITTEN,
        ),
        Mistake(
            "when BLOCK is taken to be 32",
            _wrong_add(("BLOCK + tl.arange(0, BLOCK)", "32 + tl.arange(0, 32)")),
            BLOCK_GIVEN,
        ),
        Mistake(
            "when the pointer of x counts bytes",
            _wrong_add(("x_ptr + offs", "x_ptr + 4 * offs")),
            "A pointer knows the size of its elements: pointer plus one is the next element, not the next byte.",
        ),
        Mistake(
            "when the pointer of y counts bytes",
            _wrong_add(("y_ptr + offs", "y_ptr + 4 * offs")),
            "A pointer knows the size of its elements: pointer plus one is the next element, not the next byte.",
        ),
        Mistake(
            "when the pointer of out counts bytes",
            _wrong_add(("out_ptr + offs", "out_ptr + 4 * offs")),
            "A pointer knows the size of its elements: pointer plus one is the next element, not the next byte.",
        ),
        Mistake(
            "when the mask leaves out the last element",
            _wrong_add(("offs < N", "offs < N - 1")),
            "The last element has number N - 1, and is below N.",
        ),
        Mistake(
            "when the load of x has no mask",
            _wrong_add(("tl.load(x_ptr + offs, mask=mask)", "tl.load(x_ptr + offs)")),
            NO_MASK,
        ),
        Mistake(
            "when the load of y has no mask",
            _wrong_add(("tl.load(y_ptr + offs, mask=mask)", "tl.load(y_ptr + offs)")),
            NO_MASK,
        ),
        Mistake(
            "when the store has no mask",
            _wrong_add(("x + y, mask=mask)", "x + y)")),
            "Lanes without an element would write past the end of out, over whatever lies there.",
        ),
        Mistake(
            "when the mask lets one element too many through",
            _wrong_add(("offs < N", "offs <= N")),
            "The last element has number N - 1. What does your mask say about number N?",
        ),
        Mistake(
            "when the program id is not multiplied by BLOCK",
            _wrong_add((PID, "tl.program_id(0)")),
            "Program 1 begins where program 0 ends. How many elements lie before it?",
        ),
        Mistake(
            "when every program works on the first block",
            _wrong_add((PID, "0")),
            "All programs run the same code; only the program id differs. How many elements lie before program 1's block?",
        ),
        Mistake(
            "when the last block, which is not full, is left out",
            _wrong_add(("offs < N", "offs < N // BLOCK * BLOCK")),
            "The elements after the last full block count as well. Which lanes of the last program have one?",
        ),
        Mistake(
            "when x and y are multiplied",
            _wrong_add(("x + y", "x * y")),
            "The kernel is to add.",
        ),
        Mistake(
            "when a block is taken to have 32 lanes",
            _wrong_add(("tl.arange(0, BLOCK)", "tl.arange(0, 32)")),
            BLOCK_GIVEN,
        ),
        Mistake(
            "when the first program adds the whole vector, and the others nothing",
            with_body(
                solution.add_kernel,
                """
                if tl.program_id(0) == 0:
                    for start in range(0, N, BLOCK):
                        offs = start + tl.arange(0, BLOCK)
                        x = tl.load(x_ptr + offs, mask=offs < N)
                        tl.store(out_ptr + offs, x + tl.load(y_ptr + offs, mask=offs < N), mask=offs < N)
                """,
            ),
            "All programs can work at the same time, each on a block of its own. Here all but one have nothing to do.",
        ),
        Mistake(
            "when every program adds the whole vector",
            with_body(
                solution.add_kernel,
                """
                for start in range(0, N, BLOCK):
                    offs = start + tl.arange(0, BLOCK)
                    x = tl.load(x_ptr + offs, mask=offs < N)
                    tl.store(out_ptr + offs, x + tl.load(y_ptr + offs, mask=offs < N), mask=offs < N)
                """,
            ),
            WHOLE_WORK + "Who is it, and which elements are its own?",
        ),
        Mistake(
            "when a block is added one element at a time",
            with_body(
                solution.add_kernel,
                """
                start = tl.program_id(0) * BLOCK
                for i in range(start, min(start + BLOCK, N)):
                    tl.store(out_ptr + i, tl.load(x_ptr + i) + tl.load(y_ptr + i))
                """,
            ),
            ONE_LANE,
        ),
    ],
    hints=[
        "You are program number 3, and BLOCK is 32. Which elements are yours? What if there are only 100?",
        "Make a block of element numbers: where your block begins, plus 0, 1, 2, … BLOCK - 1. Pointer plus numbers is a "
        "block of addresses. A block of true and false says which of them exist.",
        "`tl.program_id(0)` is who you are, `tl.arange(0, BLOCK)` are the lanes. `tl.load(addresses, mask=…)`, twice; add; "
        "`tl.store(addresses, values, mask=…)`.",
    ],
)


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


def _copied(x: Tensor, gap: int, downwards: bool, tile: tuple[int, int] = ()) -> Tensor:
    return torch.cat([x, x.new_full((x.shape[0], gap), float("nan"))], 1)


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
    return draw.normal(5, 22)[:, ::2], 0, False


def gap_after_each_row(draw: Draw):
    """out may have a gap after each row, and the gap is left alone"""
    return draw.normal(6, 10), draw.integer(2, 5), False


def downwards_output(draw: Draw):
    """out may run downwards: its neighbours in a column are then next to each other"""
    return draw.normal(6, 11), 0, True


def part_of_a_matrix(draw: Draw):
    """x may be a part of a larger matrix: what lies around it is not copied"""
    return draw.normal(12, 21)[:7, : draw.integer(9, 11)], 0, False


def tile_of_another_size(draw: Draw):
    """BLOCK_H and BLOCK_W are what the launch says, whatever they are"""
    return draw.normal(9, 17 + draw.integer(0, 3)), 0, False, (2 * TILE_H, 2 * TILE_W)


def _wrong_copy2d(*changes: tuple[str, str]):
    return edited(solution.copy2d_kernel, *changes)


LOAD_2D, STORE_2D = "tl.load(x_ptr + offs_x, mask=mask)", "tl.store(out_ptr + offs_out, tile, mask=mask)"
ROWS, COLUMNS = "mask=(offs_h < H)[:, None])", "mask=(offs_w < W)[None, :])"

exercise(
    "04.copy2d_kernel",
    reference=_copied,
    cases=[
        whole_tiles,
        ragged_rows,
        ragged_columns,
        transposed_input,
        every_other_column,
        gap_after_each_row,
        downwards_output,
        part_of_a_matrix,
        tile_of_another_size,
    ],
    properties=[
        _own_share(
            _copy2d,
            lambda draw: (draw.normal(2 * TILE_H, 2 * TILE_W), 0, False),
            "Which rows and which columns are the tile of program (1, 0)?",
        )
    ],
    invoke=_copy2d,
    guarded=True,
    limit=LIMIT,
    axes=["row", "column"],
    mistakes=[
        Mistake(
            "when nothing is written to out",
            _wrong_copy2d((STORE_2D, "tile")),
            NOTHING_WRITTEN,
        ),
        Mistake(
            "when BLOCK_H is taken to be 4 and BLOCK_W to be 8",
            _wrong_copy2d(
                ("* BLOCK_H + tl.arange(0, BLOCK_H)", "* 4 + tl.arange(0, 4)"),
                ("* BLOCK_W + tl.arange(0, BLOCK_W)", "* 8 + tl.arange(0, 8)"),
            ),
            BLOCK_GIVEN,
        ),
        Mistake(
            "when BLOCK_H is taken to be 4",
            _wrong_copy2d(("* BLOCK_H + tl.arange(0, BLOCK_H)", "* 4 + tl.arange(0, 4)")),
            BLOCK_GIVEN,
        ),
        Mistake(
            "when BLOCK_W is taken to be 8",
            _wrong_copy2d(("* BLOCK_W + tl.arange(0, BLOCK_W)", "* 8 + tl.arange(0, 8)")),
            BLOCK_GIVEN,
        ),
        Mistake(
            "when the mask covers no rows",
            _wrong_copy2d(("(offs_h < H)[:, None] & ", "")),
            "Your mask knows the right edge. What about tiles that hang over the bottom edge?",
        ),
        Mistake(
            "when the mask covers no columns",
            _wrong_copy2d((" & (offs_w < W)[None, :]", "")),
            "Your mask knows the bottom edge. Past the right edge lies the next row, and after the last row nothing.",
        ),
        Mistake(
            "when the mask lets one row too many through",
            _wrong_copy2d(("offs_h < H", "offs_h <= H")),
            "The last row has number H - 1. What does your mask say about number H?",
        ),
        Mistake(
            "when the mask lets one column too many through",
            _wrong_copy2d(("offs_w < W", "offs_w <= W")),
            "The last column has number W - 1. What does your mask say about number W?",
        ),
        Mistake(
            "when the mask lets one row and one column too many through",
            _wrong_copy2d(("offs_h < H", "offs_h <= H"), ("offs_w < W", "offs_w <= W")),
            "The last row has number H - 1, the last column W - 1. What does your mask say about H and W?",
        ),
        Mistake(
            "when an element is let through that has a row or a column",
            _wrong_copy2d((":, None] & (", ":, None] | (")),
            "`|` is true where either side is. Which elements of a tile exist: those whose row exists, those whose column "
            "does, or those of which both exist?",
        ),
        Mistake(
            "when rows and columns both come from the same program id",
            _wrong_copy2d(("program_id(1)", "program_id(0)")),
            "The grid has two axes: tiles downwards are counted by one, tiles to the right by the other.",
        ),
        Mistake(
            "when the strides of x and out are ignored",
            _wrong_copy2d(
                (" * stride_xh", " * W"), (" * stride_xw", ""), (" * stride_oh", " * W"), (" * stride_ow", "")
            ),
            "Only a contiguous tensor has W elements from row to row and one from column to column.",
        ),
        Mistake(
            "when the strides of x are ignored",
            _wrong_copy2d((" * stride_xh", " * W"), (" * stride_xw", "")),
            "Only a contiguous tensor has W elements from row to row and one from column to column. x can be any view.",
        ),
        Mistake(
            "when the strides of out are ignored",
            _wrong_copy2d((" * stride_oh", " * W"), (" * stride_ow", "")),
            "Only a contiguous tensor has W elements from row to row and one from column to column. out can be any view.",
        ),
        Mistake(
            "when the load has no mask",
            _wrong_copy2d((LOAD_2D, "tl.load(x_ptr + offs_x)")),
            "A tile can hang over the bottom edge and over the right edge. Neither part exists.",
        ),
        Mistake(
            "when the load masks no rows",
            _wrong_copy2d((LOAD_2D, "tl.load(x_ptr + offs_x, " + COLUMNS)),
            "Your mask knows the right edge. What about tiles that hang over the bottom edge?",
        ),
        Mistake(
            "when the load masks no columns",
            _wrong_copy2d((LOAD_2D, "tl.load(x_ptr + offs_x, " + ROWS)),
            "Your mask knows the bottom edge. Past the right edge lies the next row, and after the last row nothing.",
        ),
        Mistake(
            "when the store has no mask",
            _wrong_copy2d((STORE_2D, "tl.store(out_ptr + offs_out, tile)")),
            "The parts of a tile that hang over an edge must not be written either.",
        ),
        Mistake(
            "when the store masks no rows",
            _wrong_copy2d((STORE_2D, "tl.store(out_ptr + offs_out, tile, " + COLUMNS)),
            "The load is masked both ways. The store needs the same.",
        ),
        Mistake(
            "when the store masks no columns",
            _wrong_copy2d((STORE_2D, "tl.store(out_ptr + offs_out, tile, " + ROWS)),
            "What lies in memory after the last column of a row? The store writes over it.",
        ),
        Mistake(
            "when the strides of x are swapped",
            _wrong_copy2d(
                ("* stride_xh", "* stride_x?"), ("* stride_xw", "* stride_xh"), ("* stride_x?", "* stride_xw")
            ),
            "One step down moves stride_xh elements, one step to the right stride_xw.",
        ),
        Mistake(
            "when the strides of out are swapped",
            _wrong_copy2d(
                ("* stride_oh", "* stride_o?"), ("* stride_ow", "* stride_oh"), ("* stride_o?", "* stride_ow")
            ),
            "One step down moves stride_oh elements, one step to the right stride_ow.",
        ),
        Mistake(
            "when out is written with the strides of x",
            _wrong_copy2d(("* stride_oh", "* stride_xh"), ("* stride_ow", "* stride_xw")),
            "x and out hold the same numbers, but need not lie in memory the same way.",
        ),
        Mistake(
            "when columns of x are taken to be next to each other",
            _wrong_copy2d((" * stride_xw", "")),
            "In a contiguous tensor the column stride is 1. In which tensors is it not?",
        ),
        Mistake(
            "when columns of out are taken to be next to each other",
            _wrong_copy2d((" * stride_ow", "")),
            "In a contiguous tensor the column stride is 1. In which tensors is it not?",
        ),
        Mistake(
            "when W is taken for the row stride of x",
            _wrong_copy2d(("* stride_xh", "* W")),
            "W columns are yours to copy. How far the next row is, only the stride says.",
        ),
        Mistake(
            "when W is taken for the row stride of out",
            _wrong_copy2d(("* stride_oh", "* W")),
            "W columns are yours to copy. How far the next row is, only the stride says.",
        ),
        Mistake(
            "when the two program ids are swapped",
            _wrong_copy2d(
                ("program_id(0)", "program_id(?)"),
                ("program_id(1)", "program_id(0)"),
                ("program_id(?)", "program_id(1)"),
            ),
            "The grid is (tiles downwards, tiles to the right). Which axis counts which?",
        ),
        Mistake(
            "when the row of a tile is not multiplied by BLOCK_H",
            _wrong_copy2d((" * BLOCK_H", "")),
            "Program (1, 0) begins below program (0, 0). How many rows lie above it?",
        ),
        Mistake(
            "when the column of a tile is not multiplied by BLOCK_W",
            _wrong_copy2d((" * BLOCK_W", "")),
            "Program (0, 1) begins to the right of program (0, 0). How many columns lie before it?",
        ),
        Mistake(
            "when the last rows, which fill no tile, are left out",
            _wrong_copy2d(("offs_h < H", "offs_h < H // BLOCK_H * BLOCK_H")),
            "The rows after the last full tile count as well.",
        ),
        Mistake(
            "when the last columns, which fill no tile, are left out",
            _wrong_copy2d(("offs_w < W", "offs_w < W // BLOCK_W * BLOCK_W")),
            "The columns after the last full tile count as well.",
        ),
        Mistake(
            "when H and W are swapped in the mask",
            _wrong_copy2d(("offs_h < H", "offs_h < W"), ("offs_w < W", "offs_w < H")),
            "Row numbers stay below the height, column numbers below the width.",
        ),
        Mistake(
            "when every program copies the whole matrix",
            with_body(
                solution.copy2d_kernel,
                """
                for top in range(0, H, BLOCK_H):
                    for left in range(0, W, BLOCK_W):
                        h = top + tl.arange(0, BLOCK_H)[:, None]
                        w = left + tl.arange(0, BLOCK_W)[None, :]
                        mask = (h < H) & (w < W)
                        x = tl.load(x_ptr + h * stride_xh + w * stride_xw, mask=mask)
                        tl.store(out_ptr + h * stride_oh + w * stride_ow, x, mask=mask)
                """,
            ),
            WHOLE_WORK + "Which tile is its own?",
        ),
        Mistake(
            "when a tile is copied one element at a time",
            with_body(
                solution.copy2d_kernel,
                """
                top, left = tl.program_id(0) * BLOCK_H, tl.program_id(1) * BLOCK_W
                for h in range(top, min(top + BLOCK_H, H)):
                    for w in range(left, min(left + BLOCK_W, W)):
                        x = tl.load(x_ptr + h * stride_xh + w * stride_xw)
                        tl.store(out_ptr + h * stride_oh + w * stride_ow, x)
                """,
            ),
            ONE_LANE,
        ),
    ],
    hints=[
        "Where in memory is the element in row h and column w, if one row down is stride_h elements away and one column "
        "to the right stride_w?",
        "Make row numbers and column numbers as you made element numbers, each from its own program id. Stand one up as a "
        "column and lay the other down as a row: their sum is a whole tile.",
        "`offs[:, None]` has shape (BLOCK_H, 1), `offs[None, :]` (1, BLOCK_W). Masks combine with `&`. Load with the "
        "offsets of x, store with those of out, both under the same mask.",
    ],
)


# --- gather_rows_kernel ---------------------------------------------------------------------------------------------

ROWS_N = 4
FAR_STRIDE = 2**30 + 7  # bytes: row 2 of a table of bytes lies past 2^31


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
    return draw.normal(6, D), _index(draw, 2 * ROWS_N, 6)


def table_with_gaps(draw: Draw):
    """the table's rows may have gaps between them"""
    return draw.normal(6, 11)[:, :5], _index(draw, 2 * ROWS_N, 6)


def blocks_of_another_size(draw: Draw):
    """BLOCK_N and BLOCK_D are what the launch says, whatever they are"""
    N = 4 * ROWS_N - draw.integer(1, 3)
    return draw.normal(6, draw.integer(11, 13)), _index(draw, N, 6), 2 * ROWS_N


def _far_rows(kernel, draw: Draw) -> str:
    """Three rows of bytes, the last more than 2^31 elements after the first. Only the touched pages are really there."""
    D, index = 6, torch.tensor([2, 0, 1, 2, 1], dtype=torch.int32)
    try:
        storage = torch.UntypedStorage(2 * FAR_STRIDE + D)
        table = torch.empty(0, dtype=torch.int8).set_(storage, 0, (3, D), (FAR_STRIDE, 1))
        table.copy_(draw.integers(3, D, low=-100, high=100, dtype=torch.int8))
    except (RuntimeError, MemoryError) as error:
        raise NotRun(f"needs 2 GiB of address space, which is not to be had: {error}") from None
    got, expected = _gather(kernel, table, index), table[index.long()]
    if not torch.equal(got, expected):
        n, d = (int(i) for i in (got != expected).nonzero()[0])
        raise Failed(
            f"yours {int(got[n, d])}, expected {int(expected[n, d])} at row {n}, column {d}, "
            f"from table row {int(index[n])} at element {int(index[n]) * FAR_STRIDE:,}.",
            key=("far rows", tuple(got.flatten().tolist())),
        )
    return f"element {2 * FAR_STRIDE:,} was read from the right place."


def _wrong_gather(*changes: tuple[str, str]):
    return edited(solution.gather_rows_kernel, *changes)


TABLE = "tl.load(table_ptr + row[:, None] * stride_row + offs_d[None, :], mask=mask)"
OUT = "values, mask=mask)"
OUT_ALL = "out_ptr + offs_n[:, None] * D + offs_d[None, :], " + OUT

exercise(
    "04.gather_rows_kernel",
    reference=lambda table, index, block=0: table[index.long()],
    cases=[whole_blocks, ragged_index, ragged_width, table_with_gaps, blocks_of_another_size],
    properties=[
        _own_share(
            _gather, lambda draw: (draw.normal(9, 8), _index(draw, 2 * ROWS_N, 9)), "Which rows of out are program 1's?"
        ),
        Property(
            "far_rows", "a row may lie more than 2^31 elements from the first: 32 bits cannot count so far", _far_rows
        ),
    ],
    invoke=_gather,
    guarded=True,
    limit=LIMIT,
    axes=["row", "column"],
    mistakes=[
        Mistake("when nothing is written to out", _wrong_gather(("tl.store(" + OUT_ALL, "values")), NOTHING_WRITTEN),
        Mistake(
            "when BLOCK_N is taken to be 4",
            _wrong_gather(("* BLOCK_N + tl.arange(0, BLOCK_N)", "* 4 + tl.arange(0, 4)")),
            BLOCK_GIVEN,
        ),
        Mistake(
            "when BLOCK_D is taken to be 8",
            _wrong_gather(("tl.arange(0, BLOCK_D)", "tl.arange(0, 8)")),
            "BLOCK_D is a power of two that holds a whole row, however wide rows are. Is a size written as a number?",
        ),
        Mistake(
            "when BLOCK_N is taken to be 4 and BLOCK_D to be 8",
            _wrong_gather(
                ("* BLOCK_N + tl.arange(0, BLOCK_N)", "* 4 + tl.arange(0, 4)"),
                ("tl.arange(0, BLOCK_D)", "tl.arange(0, 8)"),
            ),
            BLOCK_GIVEN,
        ),
        Mistake(
            "when the load of the index has no mask",
            _wrong_gather(("mask=mask_n, other=0", "")),
            "The last program has lanes for rows that out does not have. Is there an index for them?",
        ),
        Mistake(
            "when the load of the table lets lanes past D through",
            _wrong_gather((TABLE, TABLE.replace(", mask=mask", ""))),
            "BLOCK_D is the next power of two after D. What do the lanes past D read in the last row of the table?",
        ),
        Mistake(
            "when rows past N are looked up at an index that was never read",
            _wrong_gather((", other=0", ""), (TABLE, TABLE.replace("mask=mask", "mask=(offs_d < D)[None, :]"))),
            "Lanes that the mask turned off hold no index: anything may be there. Turn them off in the table as well, or "
            "give them an index with `other`.",
        ),
        Mistake(
            "when the store has no mask",
            _wrong_gather((OUT, "values)")),
            "out ends after row N - 1, and each of its rows after column D - 1.",
        ),
        Mistake(
            "when the store masks no rows",
            _wrong_gather((OUT, "values, mask=(offs_d < D)[None, :])")),
            "The last program owns more rows than out has left.",
        ),
        Mistake(
            "when the store masks no columns",
            _wrong_gather((OUT, "values, mask=mask_n[:, None])")),
            "The rows of out lie one after another: past column D - 1 begins the next row.",
        ),
        Mistake(
            "when the row offset is computed in 32 bits",
            _wrong_gather((".to(tl.int64)", "")),
            "An int32 index times an int32 stride is an int32, and past 2^31 it wraps round to a negative number. Lab 2 "
            "counted when that happens. Widening the product is too late: by then it has wrapped.",
        ),
        Mistake(
            "when the index is not used",
            _wrong_gather(("row[:, None] * stride_row", "offs_n[:, None].to(tl.int64) * stride_row")),
            "Row n of out comes from row index[n] of the table, not from row n.",
        ),
        Mistake(
            "when D is taken for the row stride of the table",
            _wrong_gather(("row[:, None] * stride_row", "row[:, None] * D")),
            "The table's rows are stride_row elements apart, which is more than D where there are gaps.",
        ),
        Mistake(
            "when the rows of out are taken to be as far apart as the table's",
            _wrong_gather(("offs_n[:, None] * D", "offs_n[:, None] * stride_row")),
            "out is a new tensor: its rows lie one after another, D elements each.",
        ),
        Mistake(
            "when the program id is not multiplied by BLOCK_N",
            _wrong_gather(("program_id(0) * BLOCK_N", "program_id(0)")),
            "Program 1 begins where program 0 ends. How many rows lie before it?",
        ),
        Mistake(
            "when the last rows, which fill no block, are left out",
            _wrong_gather(("offs_n < N", "offs_n < N // BLOCK_N * BLOCK_N")),
            "The rows after the last full block count as well.",
        ),
        Mistake(
            "when row and column stride are swapped in the table",
            _wrong_gather(
                (
                    TABLE,
                    TABLE.replace(
                        "row[:, None] * stride_row + offs_d[None, :]", "row[:, None] + offs_d[None, :] * stride_row"
                    ),
                )
            ),
            "One row down is stride_row elements away, one column to the right is one.",
        ),
        Mistake(
            "when every program copies all rows",
            with_body(
                solution.gather_rows_kernel,
                """
                offs_d = tl.arange(0, BLOCK_D)
                for n in range(N):
                    row = tl.load(index_ptr + n).to(tl.int64)
                    x = tl.load(table_ptr + row * stride_row + offs_d, mask=offs_d < D)
                    tl.store(out_ptr + n * D + offs_d, x, mask=offs_d < D)
                """,
            ),
            WHOLE_WORK + "Which rows are its own?",
        ),
        Mistake(
            "when rows are copied one element at a time",
            with_body(
                solution.gather_rows_kernel,
                """
                first = tl.program_id(0) * BLOCK_N
                for n in range(first, min(first + BLOCK_N, N)):
                    row = tl.load(index_ptr + n).to(tl.int64)
                    for d in range(D):
                        tl.store(out_ptr + n * D + d, tl.load(table_ptr + row * stride_row + d))
                """,
            ),
            ONE_LANE,
        ),
    ],
    hints=[
        "A program loads numbers and uses them as addresses. What must be known before the table can be read, and how large "
        "can an address become?",
        "First a block of indices, under its mask. Then a tile: rows of the table by the indices you just read, columns by "
        "`tl.arange(0, BLOCK_D)`. BLOCK_D can be more than D.",
        "`row = tl.load(index_ptr + …, mask=…, other=0)`, widened with `.to(tl.int64)` before it meets a stride. The rest is "
        "`copy2d_kernel` with `row[:, None]` in place of the row number.",
    ],
)


# --- bilinear_kernel ------------------------------------------------------------------------------------------------

POINTS_Q = 16


def _bilinear(kernel, image: Tensor, locations: Tensor, block: int = POINTS_Q) -> Tensor:
    (H, W, D), Q = image.shape, locations.shape[0]
    out = image.new_empty(Q, D)
    kernel[(_blocks(Q, block),)](image, locations, out, Q, H, W, D, BLOCK_Q=block, BLOCK_D=_power_of_two(D))
    return out


def _sampled(image: Tensor, locations: Tensor, block: int = POINTS_Q) -> Tensor:
    (H, W, D), Q = image.shape, locations.shape[0]
    shape = [(H, W)]
    return reference.msda(
        image.reshape(1, H * W, 1, D), shape, None, locations.reshape(1, Q, 1, 1, 1, 2), image.new_ones(1, Q, 1, 1, 1)
    ).reshape(Q, D)


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
    return draw.normal(H, W, 4), _at(pixels * 4, H, W)


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


def _wrong_bilinear(*changes: tuple[str, str]):
    return edited(solution.bilinear_kernel, *changes)


X_LOAD, Y_LOAD = (
    "tl.load(loc_ptr + 2 * offs_q, mask=mask_q, other=0.0)",
    "tl.load(loc_ptr + 2 * offs_q + 1, mask=mask_q, other=0.0)",
)
CORNER, ACC = "mask=inside[:, None] & mask_d[None, :], other=0.0", "acc, mask=mask_q[:, None] & mask_d[None, :])"
ACC_ALL = "out_ptr + offs_q[:, None] * D + offs_d[None, :], " + ACC
OUTSIDE = "A corner outside the image is no pixel: it counts as zero, and there is nothing to read."

exercise(
    "04.bilinear_kernel",
    reference=_sampled,
    cases=[
        pixel_centres,
        between_pixels,
        across_the_border,
        outside,
        ragged_points_and_channels,
        points_in_another_block,
    ],
    properties=[_own_share(_bilinear, _two_blocks_of_points, "Which points are program 1's?")],
    invoke=_bilinear,
    guarded=True,
    limit=LIMIT,
    axes=["point", "channel"],
    mistakes=[
        Mistake("when nothing is written to out", _wrong_bilinear(("tl.store(" + ACC_ALL, "acc")), NOTHING_WRITTEN),
        Mistake(
            "when BLOCK_Q is taken to be 16",
            _wrong_bilinear(
                ("* BLOCK_Q + tl.arange(0, BLOCK_Q)", "* 16 + tl.arange(0, 16)"),
                ("[BLOCK_Q, BLOCK_D]", "[16, BLOCK_D]"),
            ),
            BLOCK_GIVEN,
        ),
        Mistake(
            "when the bounds of x and y are swapped",
            _wrong_bilinear(("(xi < W)", "(xi < H)"), ("(yj < H)", "(yj < W)")),
            "x runs along a row, W pixels long; y down a column of H.",
        ),
        Mistake(
            "when the weights of left and right are swapped",
            _wrong_bilinear(("(fx if i else 1 - fx)", "(1 - fx if i else fx)")),
            "The nearer pixel weighs more. How much does x0 weigh when x is exactly x0?",
        ),
        Mistake(
            "when the weights of top and bottom are swapped",
            _wrong_bilinear(("(fy if j else 1 - fy)", "(1 - fy if j else fy)")),
            "The nearer pixel weighs more. How much does y0 weigh when y is exactly y0?",
        ),
        Mistake(
            "when the load of x has no mask",
            _wrong_bilinear((X_LOAD, "tl.load(loc_ptr + 2 * offs_q)")),
            "The last program has lanes for points that do not exist.",
        ),
        Mistake(
            "when the load of y has no mask",
            _wrong_bilinear((Y_LOAD, "tl.load(loc_ptr + 2 * offs_q + 1)")),
            "The last program has lanes for points that do not exist.",
        ),
        Mistake("when the load of a corner has no mask", _wrong_bilinear((", " + CORNER, "")), OUTSIDE),
        Mistake(
            "when corners past the left edge are read",
            _wrong_bilinear(("(xi >= 0) & ", "")),
            f"{OUTSIDE} What lies in memory before the first pixel of a row?",
        ),
        Mistake(
            "when corners past the right edge are read",
            _wrong_bilinear(("(xi < W) & ", "")),
            f"{OUTSIDE} What lies in memory after the last pixel of a row?",
        ),
        Mistake(
            "when corners above the top edge are read",
            _wrong_bilinear(("(yj >= 0) & ", "")),
            f"{OUTSIDE} Your mask knows three edges of the image.",
        ),
        Mistake(
            "when corners below the bottom edge are read",
            _wrong_bilinear((" & (yj < H)", "")),
            f"{OUTSIDE} Your mask knows three edges of the image.",
        ),
        Mistake(
            "when the load of a corner masks no channels",
            _wrong_bilinear((CORNER, "mask=inside[:, None], other=0.0")),
            "BLOCK_D can be more than D. What do the lanes past D read at the last pixel?",
        ),
        Mistake(
            "when the store has no mask",
            _wrong_bilinear((ACC, "acc)")),
            "out ends after point Q - 1, and each of its rows after channel D - 1.",
        ),
        Mistake(
            "when the store masks no points",
            _wrong_bilinear((ACC, "acc, mask=mask_d[None, :])")),
            "The last program owns more points than there are.",
        ),
        Mistake(
            "when the store masks no channels",
            _wrong_bilinear((ACC, "acc, mask=mask_q[:, None])")),
            "The rows of out lie one after another: past channel D - 1 begins the next point.",
        ),
        Mistake(
            "when a corner outside the image counts as one",
            _wrong_bilinear((CORNER, CORNER.replace("other=0.0", "other=1.0"))),
            "`other` is what a lane holds that the mask turned off. What is the value of a pixel that does not exist?",
        ),
        Mistake(
            "when a corner outside the image counts as whatever was in the register",
            _wrong_bilinear((CORNER, CORNER.replace(", other=0.0", ""))),
            "Without `other`, lanes that the mask turned off are undefined: often zero, and nobody promises it. The guard "
            "fills them with what is not a number.",
        ),
        Mistake(
            "when the half pixel is forgotten",
            _wrong_bilinear((" - 0.5", "")),
            "Location 0 is the edge of the first pixel, and coordinate 0 its centre: your `to_pixels` from lab 1.",
        ),
        Mistake(
            "with W - 1 and H - 1 in place of W and H",
            _wrong_bilinear(
                ("other=0.0) * W - 0.5", "other=0.0) * (W - 1)"), ("other=0.0) * H - 0.5", "other=0.0) * (H - 1)")
            ),
            "That is the other convention (align_corners=True). Here 0 and 1 are edges.",
        ),
        Mistake(
            "when coordinates are cut off instead of rounded down",
            _wrong_bilinear(("tl.floor(x).to(", "x.to("), ("tl.floor(y).to(", "y.to(")),
            "`.to(tl.int32)` cuts off what is behind the point: -0.5 becomes 0. Which pixel is to the left of -0.5?",
        ),
        Mistake(
            "when x and y are swapped",
            _wrong_bilinear(
                ("2 * offs_q,", "2 * offs_q?,"), ("2 * offs_q + 1,", "2 * offs_q,"), ("2 * offs_q?,", "2 * offs_q + 1,")
            ),
            "A location is (x, y): the first number runs along a row.",
        ),
        Mistake(
            "when H and W are swapped",
            _wrong_bilinear(
                ("other=0.0) * W", "other=0.0) * ?"),
                ("other=0.0) * H", "other=0.0) * W"),
                ("other=0.0) * ?", "other=0.0) * H"),
            ),
            "x runs from 0 to the width, y from 0 to the height.",
        ),
        Mistake(
            "when a row of the image is taken to be H pixels long",
            _wrong_bilinear(("(yj * W + xi)", "(yj * H + xi)")),
            "How many pixels lie between a pixel and the one below it?",
        ),
        Mistake(
            "when row and column are swapped in the address",
            _wrong_bilinear(("(yj * W + xi)", "(xi * W + yj)")),
            "A pixel in row j and column i lies after j whole rows and i pixels.",
        ),
        Mistake(
            "when the number of channels is left out of the address",
            _wrong_bilinear(("(yj * W + xi)[:, None] * D", "(yj * W + xi)[:, None]")),
            "The next pixel is D elements away.",
        ),
        Mistake(
            "when all four corners are the upper left one",
            _wrong_bilinear(("xi = x0 + i", "xi = x0 + 0 * i"), ("yj = y0 + j", "yj = y0 + 0 * j")),
            "The four corners are x0 or x0 + 1, in row y0 or y0 + 1.",
        ),
        Mistake(
            "when the weights of near and far corners are swapped",
            _wrong_bilinear(
                ("(fx if i else 1 - fx) * (fy if j else 1 - fy)", "(1 - fx if i else fx) * (1 - fy if j else fy)")
            ),
            "The nearer pixel weighs more. How much does x0 weigh when x is exactly x0?",
        ),
        Mistake(
            "when the weights of x and y are swapped",
            _wrong_bilinear(
                ("(fx if i else 1 - fx) * (fy if j else 1 - fy)", "(fy if i else 1 - fy) * (fx if j else 1 - fx)")
            ),
            "How far along the row the point lies decides between left and right.",
        ),
        Mistake(
            "when the border pixel goes on for ever",
            _wrong_bilinear(
                ("xi = x0 + i", "xi = tl.minimum(tl.maximum(x0 + i, 0), W - 1)"),
                ("yj = y0 + j", "yj = tl.minimum(tl.maximum(y0 + j, 0), H - 1)"),
            ),
            "That is another convention (border padding). Here a pixel outside counts as zero.",
        ),
        Mistake(
            "when the corners are set instead of added up",
            _wrong_bilinear(("acc +=", "acc =")),
            "Four corners take part. Only the last one is left.",
        ),
        Mistake(
            "when the program id is not multiplied by BLOCK_Q",
            _wrong_bilinear(("program_id(0) * BLOCK_Q", "program_id(0)")),
            "Program 1 begins where program 0 ends. How many points lie before it?",
        ),
        Mistake(
            "when the last points, which fill no block, are left out",
            _wrong_bilinear(("offs_q < Q", "offs_q < Q // BLOCK_Q * BLOCK_Q")),
            "The points after the last full block count as well.",
        ),
    ],
    hints=[
        "This is `bilinear_sample` from lab 1 for many points at once. Which of its numbers are one per point, and which "
        "one per point and channel?",
        "Per point, so along BLOCK_Q: x, y, the upper left pixel, the weights, and whether a corner exists. Per point and "
        "channel, so a tile (BLOCK_Q, BLOCK_D): what is loaded, and the sum.",
        "Turn `if 0 <= i < W and 0 <= j < H` into a mask, and `other=0.0` does the rest. `tl.floor(x).to(tl.int32)`; four "
        "masked loads at `image_ptr + (row * W + column)[:, None] * D + channel[None, :]`; `weight[:, None]` scales a tile.",
    ],
)


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


def _sums(x: Tensor, block: int = 0) -> Tensor:
    return x.double().sum(1) if x.dtype == torch.float64 else x.float().sum(1)


def _one_row_after_the_other(answer_in: str) -> str:
    return f"""
        {answer_in}
            acc = 0.0
            for n in range(N):
                acc += tl.load(x_ptr + r * stride_row + n).to(tl.float32)
            tl.store(out_ptr + r, acc)
        """


def _wrong_row_sum(*changes: tuple[str, str]):
    return edited(solution.row_sum_kernel, *changes)


exercise(
    "04.row_sum_kernel",
    reference=_sums,
    cases=[
        one_block_a_row,
        several_blocks_a_row,
        odd_length,
        short_row,
        rows_with_gaps,
        long_float16_row,
        short_blocks_a_row,
    ],
    properties=[
        _own_share(_row_sum, lambda draw: (draw.normal(2, SUM_BLOCK), SUM_BLOCK // 2), "Which row is program 1's?")
    ],
    invoke=_row_sum,
    guarded=True,
    limit=LIMIT,
    axes=["row"],
    mistakes=[
        Mistake(
            "when nothing is written to out",
            _wrong_row_sum(("tl.store(out_ptr + row, tl.sum(acc, axis=0))", "tl.sum(acc, axis=0)")),
            NOTHING_WRITTEN,
        ),
        Mistake(
            "when BLOCK is taken to be 16",
            _wrong_row_sum(
                ("[BLOCK]", "[16]"), ("range(0, N, BLOCK)", "range(0, N, 16)"), ("arange(0, BLOCK)", "arange(0, 16)")
            ),
            BLOCK_GIVEN,
        ),
        Mistake(
            "when every sum is stored in the same place",
            _wrong_row_sum(("out_ptr + row", "out_ptr")),
            "Program r has the sum of row r. Where in out does it belong?",
        ),
        Mistake(
            "when only the first block is added up, in the dtype of x",
            _wrong_row_sum(
                ("range(0, N, BLOCK)", "range(0, BLOCK, BLOCK)"),
                ("tl.zeros([BLOCK], tl.float32)", "tl.zeros([BLOCK], x_ptr.dtype.element_ty)"),
                ("x.to(tl.float32)", "x"),
            ),
            "A row can be longer than a block: the program has to walk along it. And the sum should be kept in float32.",
        ),
        Mistake(
            "when each block replaces the sum so far, in the dtype of x",
            _wrong_row_sum(("acc += x.to(tl.float32)", "acc = x")),
            "Only the last block is left. Is something set where it should be added to? And the sum should be kept in float32.",
        ),
        Mistake(
            "when the load has no mask",
            _wrong_row_sum((", mask=offs < N, other=0.0", "")),
            "Past the end of a row lies the next one, and past the last row nothing.",
        ),
        Mistake(
            "when lanes past the end of a row count as one",
            _wrong_row_sum(("other=0.0", "other=1.0")),
            "`other` is what a lane holds that the mask turned off. Which number changes no sum?",
        ),
        Mistake(
            "when lanes past the end of a row count as whatever was in the register",
            _wrong_row_sum((", other=0.0", "")),
            "Without `other`, lanes that the mask turned off are undefined: often zero, and nobody promises it. The guard "
            "fills them with what is not a number.",
        ),
        Mistake(
            "when the last block, which is not full, is left out",
            _wrong_row_sum(("range(0, N, BLOCK)", "range(0, N // BLOCK * BLOCK, BLOCK)")),
            "Where does your loop end, if N is 37 and BLOCK is 16?",
        ),
        Mistake(
            "when only the first block is added up",
            _wrong_row_sum(("range(0, N, BLOCK)", "range(0, BLOCK, BLOCK)")),
            "A row can be longer than a block: the program has to walk along it.",
        ),
        Mistake(
            "when the block does not move along the row",
            _wrong_row_sum(("start + tl.arange", "0 * start + tl.arange")),
            "The same elements are added again and again. What changes from one turn of the loop to the next?",
        ),
        Mistake(
            "when each block replaces the sum so far",
            _wrong_row_sum(("acc +=", "acc =")),
            "Only the last block is left. Is something set where it should be added to?",
        ),
        Mistake(
            "when every program adds up the first row",
            _wrong_row_sum(("row * stride_row", "0 * stride_row")),
            "Row r begins r strides after the first.",
        ),
        Mistake(
            "when N is taken for the row stride",
            _wrong_row_sum(("row * stride_row", "row * N")),
            "N elements are yours to add. How far the next row is, only the stride says.",
        ),
        Mistake(
            "when the program id is not multiplied by the row stride",
            _wrong_row_sum(("row * stride_row", "row")),
            "Row 1 begins a whole row after row 0.",
        ),
        Mistake(
            "when the sum is kept in the dtype of x",
            _wrong_row_sum(
                ("tl.zeros([BLOCK], tl.float32)", "tl.zeros([BLOCK], x_ptr.dtype.element_ty)"),
                ("x.to(tl.float32)", "x"),
            ),
            "In float16, 16,384 plus 7 is 16,392: numbers are 16 apart up there. Which dtype should the sum have?",
        ),
        Mistake(
            "when the last element of a row is left out",
            _wrong_row_sum(("offs < N", "offs < N - 1")),
            "The last element has number N - 1.",
        ),
        Mistake(
            "when the mean is taken",
            _wrong_row_sum(("tl.sum(acc, axis=0)", "tl.sum(acc, axis=0) / N")),
            "The sum is not divided by anything.",
        ),
        Mistake(
            "when every program adds up all rows",
            with_body(
                solution.row_sum_kernel,
                """
                for row in range(tl.num_programs(0)):
                    acc = tl.zeros([BLOCK], tl.float32)
                    for start in range(0, N, BLOCK):
                        offs = start + tl.arange(0, BLOCK)
                        acc += tl.load(x_ptr + row * stride_row + offs, mask=offs < N, other=0.0).to(tl.float32)
                    tl.store(out_ptr + row, tl.sum(acc, axis=0))
                """,
            ),
            WHOLE_WORK + "Which row is its own?",
        ),
        Mistake(
            "when a row is added up one element at a time",
            with_body(
                solution.row_sum_kernel,
                _one_row_after_the_other("for r in range(tl.program_id(0), tl.program_id(0) + 1):"),
            ),
            ONE_LANE,
        ),
    ],
    hints=[
        "A block has 16 lanes and a row 37 elements. How many turns does a loop need, and which lanes have nothing to add in "
        "the last?",
        "Each lane keeps a sum of its own while the block walks along the row. At the end the lanes are added to each other. "
        "A lane without an element adds the number that changes nothing.",
        "`acc = tl.zeros([BLOCK], tl.float32)`, `for start in range(0, N, BLOCK)`, a masked load with `other=0.0`, "
        "`.to(tl.float32)`, and at the end `tl.sum(acc, axis=0)`: one number, one store.",
    ],
)


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
    """exp does not overflow, however large the numbers are"""
    return (draw.uniform(2, 37, low=90.0, high=100.0),)


def very_negative_numbers(draw: Draw):
    """nor do all of them vanish, however negative they are"""
    return (draw.uniform(2, 21, low=-130.0, high=-120.0),)


def rows_apart(draw: Draw):
    """rows may have gaps between them, in x and in out"""
    return (draw.normal(3, 30)[:, :21],)


def short_blocks_to_normalise(draw: Draw):
    """BLOCK is what the launch says, whatever it is"""
    return draw.normal(2, 8 * draw.integer(2, 4) + 3), 8


def _softmax_by_element(which: str) -> str:
    return f"""
        {which}
            top = float("-inf")
            for n in range(N):
                top = tl.maximum(top, tl.load(x_ptr + r * stride_row + n))
            total = 0.0
            for n in range(N):
                total += tl.exp(tl.load(x_ptr + r * stride_row + n) - top)
            for n in range(N):
                tl.store(out_ptr + r * stride_row + n, tl.exp(tl.load(x_ptr + r * stride_row + n) - top) / total)
        """


def _reads(kernel) -> str:
    """How often an element is read, on a row of twenty blocks: the machine counts the bytes."""
    from msda_core import machine

    x = Draw(0).normal(1, 20 * SUM_BLOCK)
    trace = machine.trace(kernel, (1,), x, torch.empty_like(x), x.shape[1], x.stride(0), BLOCK=SUM_BLOCK)
    reads = sum(event.bytes for event in trace.where("load")) / (x.numel() * x.element_size())
    return f"each element is read {reads:.2f} times. Three is straightforward; how low can you go?"


def _wrong_softmax(*changes: tuple[str, str]):
    return edited(solution.softmax_kernel, *changes)


exercise(
    "04.softmax_kernel",
    reference=lambda x, block=0: x.softmax(1),
    cases=[
        one_block_to_normalise,
        several_blocks_to_normalise,
        large_numbers,
        very_negative_numbers,
        rows_apart,
        short_blocks_to_normalise,
    ],
    properties=[
        _own_share(_softmax, lambda draw: (draw.normal(2, SUM_BLOCK), SUM_BLOCK // 2), "Which row is program 1's?")
    ],
    invoke=_softmax,
    guarded=True,
    limit=LIMIT,
    axes=["row", "element"],
    stretch=True,
    score=_reads,
    mistakes=[
        Mistake(
            "when nothing is written to out",
            _wrong_softmax(
                ("tl.store(out_ptr + start + offs, tl.exp(x - peak) / norm, mask=start + offs < N)", "tl.exp(x - peak)")
            ),
            NOTHING_WRITTEN,
        ),
        Mistake(
            "when BLOCK is taken to be 16",
            _wrong_softmax(("[BLOCK]", "[16]"), ("N, BLOCK)", "N, 16)"), ("arange(0, BLOCK)", "arange(0, 16)")),
            BLOCK_GIVEN,
        ),
        Mistake(
            "when N is taken for the row stride",
            _wrong_softmax(("row * stride_row", "row * N")),
            "N elements are yours. How far the next row is, only the stride says.",
        ),
        Mistake(
            "when N is taken for the row stride of x",
            _wrong_softmax(("x_ptr += row * stride_row", "x_ptr += row * N")),
            "N elements are yours. How far the next row is, only the stride says.",
        ),
        Mistake(
            "when N is taken for the row stride of out",
            _wrong_softmax(("out_ptr += row * stride_row", "out_ptr += row * N")),
            "N elements are yours. How far the next row of out is, the same stride says.",
        ),
        Mistake(
            "when lanes past the end of a row count as whatever was in the register",
            _wrong_softmax((', other=float("-inf")', "")),
            "Without `other`, lanes that the mask turned off are undefined: often zero, and nobody promises it. The guard "
            "fills them with what is not a number.",
        ),
        Mistake(
            "when the lanes keep a largest number each",
            _wrong_softmax(("tl.max(top, axis=0)", "top")),
            "At the end of the first walk every lane knows the largest number it has seen. The row has only one: tl.max.",
        ),
        Mistake(
            "when the lanes keep a sum each",
            _wrong_softmax(("tl.sum(total, axis=0)", "total")),
            "At the end of the second walk every lane has a sum of its own. The row has only one: tl.sum.",
        ),
        Mistake(
            "when the largest number is not subtracted",
            _wrong_softmax(("peak = tl.max(top, axis=0)", "peak = 0.0")),
            "exp(100) is more than float32 holds. Softmax does not change when the same number is taken from all.",
        ),
        Mistake(
            "when lanes past the end of a row count as zero in the maximum",
            _wrong_softmax(
                (
                    'top = tl.maximum(top, tl.load(x_ptr + start + offs, mask=start + offs < N, other=float("-inf")))',
                    "top = tl.maximum(top, tl.load(x_ptr + start + offs, mask=start + offs < N, other=0.0))",
                )
            ),
            "Where all numbers are far below zero, a zero that is not there wins. Which number changes no maximum?",
        ),
        Mistake(
            "when lanes past the end of a row are added up",
            _wrong_softmax(
                (
                    'total += tl.exp(tl.load(x_ptr + start + offs, mask=start + offs < N, other=float("-inf")) - peak)',
                    "total += tl.exp(tl.load(x_ptr + start + offs, mask=start + offs < N, other=0.0) - peak)",
                )
            ),
            "exp(0) is one. Of which number is exp zero?",
        ),
        Mistake(
            "when only the first block is looked at",
            _wrong_softmax(("for start in range(0, N, BLOCK):", "for start in range(0, min(N, BLOCK), BLOCK):")),
            "A row can be longer than a block.",
        ),
        Mistake(
            "when a load has no mask",
            _wrong_softmax(
                ("x = tl.load(x_ptr + start + offs, mask=start + offs < N)", "x = tl.load(x_ptr + start + offs)")
            ),
            "Past the end of a row lies the next one, and past the last row nothing. Each walk along the row needs a mask.",
        ),
        Mistake(
            "when the result is not divided by the sum",
            _wrong_softmax((" / norm", "")),
            "Each row adds up to one.",
        ),
        Mistake(
            "when the store has no mask",
            _wrong_softmax(("/ norm, mask=start + offs < N)", "/ norm)")),
            "Past the end of a row lies the next one, and past the last row nothing.",
        ),
        Mistake(
            "when a row is worked on one element at a time",
            with_body(
                solution.softmax_kernel, _softmax_by_element("for r in range(tl.program_id(0), tl.program_id(0) + 1):")
            ),
            ONE_LANE,
        ),
    ],
    hints=[
        "What has to be known of the whole row before the first number of the result can be written?",
        "Largest number, then the sum of exp(x - largest), then the results: three walks along the row. Two of them can "
        "become one, if the sum so far is corrected whenever a larger number turns up.",
        "Lanes past the end hold -inf: no maximum changes, and exp makes them zero. For two walks keep a running maximum and "
        "a running sum, and scale the sum by exp(old maximum - new maximum).",
    ],
)

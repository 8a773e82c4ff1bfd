"""Lab 04, Hello, Triton: the wrong answers that are known."""

from checks.core.exercise import Mistake

BLOCK_GIVEN = "The launch decides how large a block is, and tells the kernel. Is a size written as a number somewhere?"
WHOLE_WORK = "The grid has as many programs as there is work for, and each of them runs your lines. "
ONE_LANE = (
    "A line works on all lanes of a block together: where is the block in yours? A loop over elements does one after the "
    "other, in one lane."
)
NOTHING_WRITTEN = "A kernel returns nothing. What it computes is in memory only where it was stored: tl.store."
NO_MASK = (
    "The last program owns lanes that have no element. Which of its accesses do they take part in? "
    "Look at the others too: the guard stops at the first."
)
OUTSIDE = "A corner outside the image is no pixel: it counts as zero, and there is nothing to read."


ADD_KERNEL: list[Mistake] = [
    Mistake(
        "when nothing is written to out",
        {"store": "x + y"},
        NOTHING_WRITTEN,
    ),
    Mistake(
        "when BLOCK is taken to be 32",
        {"offs": "offs = tl.program_id(0) * 32 + tl.arange(0, 32)"},
        BLOCK_GIVEN,
    ),
    Mistake(
        "when the lanes of a program lie as far apart as there are programs",
        {"offs": "offs = tl.program_id(0) + tl.num_programs(0) * tl.arange(0, BLOCK)"},
        "Every element is added once, and every lane needs a sector of its own. Which elements should lie side by side in one "
        "access?",
    ),
    Mistake(
        "when the pointer of x counts bytes",
        {"x": "x = tl.load(x_ptr + 4 * offs, mask=mask)"},
        "A pointer knows the size of its elements: pointer plus one is the next element, not the next byte.",
    ),
    Mistake(
        "when the pointer of y counts bytes",
        {"y": "y = tl.load(y_ptr + 4 * offs, mask=mask)"},
        "A pointer knows the size of its elements: pointer plus one is the next element, not the next byte.",
    ),
    Mistake(
        "when the pointer of out counts bytes",
        {"store": "tl.store(out_ptr + 4 * offs, x + y, mask=mask)"},
        "A pointer knows the size of its elements: pointer plus one is the next element, not the next byte.",
    ),
    Mistake(
        "when the mask leaves out the last element",
        {"mask": "mask = offs < N - 1"},
        "The last element has number N - 1, and is below N.",
    ),
    Mistake(
        "when the load of x has no mask",
        {"x": "x = tl.load(x_ptr + offs)"},
        NO_MASK,
    ),
    Mistake(
        "when the load of y has no mask",
        {"y": "y = tl.load(y_ptr + offs)"},
        NO_MASK,
    ),
    Mistake(
        "when the store has no mask",
        {"store": "tl.store(out_ptr + offs, x + y)"},
        "Lanes without an element would write past the end of out, over whatever lies there.",
    ),
    Mistake(
        "when the mask lets one element too many through",
        {"mask": "mask = offs <= N"},
        "The last element has number N - 1. What does your mask say about number N?",
    ),
    Mistake(
        "when the program id is not multiplied by BLOCK",
        {"offs": "offs = tl.program_id(0) + tl.arange(0, BLOCK)"},
        "Program 1 begins where program 0 ends. How many elements lie before it?",
    ),
    Mistake(
        "when every program works on the first block",
        {"offs": "offs = 0 + tl.arange(0, BLOCK)"},
        "All programs run the same code; only the program id differs. How many elements lie before program 1's block?",
    ),
    Mistake(
        "when the last block, which is not full, is left out",
        {"mask": "mask = offs < N // BLOCK * BLOCK"},
        "The elements after the last full block count as well. Which lanes of the last program have one?",
    ),
    Mistake(
        "when x and y are multiplied",
        {"store": "tl.store(out_ptr + offs, x * y, mask=mask)"},
        "The kernel is to add.",
    ),
    Mistake(
        "when a block is taken to have 32 lanes",
        {"offs": "offs = tl.program_id(0) * BLOCK + tl.arange(0, 32)"},
        BLOCK_GIVEN,
    ),
    Mistake(
        "when the first program adds the whole vector, and the others nothing",
        {
            "offs": """
                if tl.program_id(0) == 0:
                    for start in range(0, N, BLOCK):
                        offs = start + tl.arange(0, BLOCK)
                        x = tl.load(x_ptr + offs, mask=offs < N)
                        tl.store(out_ptr + offs, x + tl.load(y_ptr + offs, mask=offs < N), mask=offs < N)
            """,
            "mask": "",
            "x": "",
            "y": "",
            "store": "",
        },
        "All programs can work at the same time, each on a block of its own. Here all but one have nothing to do.",
    ),
    Mistake(
        "when every program adds the whole vector",
        {
            "offs": """
                for start in range(0, N, BLOCK):
                    offs = start + tl.arange(0, BLOCK)
                    x = tl.load(x_ptr + offs, mask=offs < N)
                    tl.store(out_ptr + offs, x + tl.load(y_ptr + offs, mask=offs < N), mask=offs < N)
            """,
            "mask": "",
            "x": "",
            "y": "",
            "store": "",
        },
        WHOLE_WORK + "Who is it, and which elements are its own?",
    ),
    Mistake(
        "when a block is added one element at a time",
        {
            "offs": """
                start = tl.program_id(0) * BLOCK
                for i in range(start, min(start + BLOCK, N)):
                    tl.store(out_ptr + i, tl.load(x_ptr + i) + tl.load(y_ptr + i))
            """,
            "mask": "",
            "x": "",
            "y": "",
            "store": "",
        },
        ONE_LANE,
    ),
    Mistake(
        "when y is subtracted",
        {"store": "tl.store(out_ptr + offs, x - y, mask=mask)"},
        "The kernel is to add.",
    ),
    Mistake(
        "when x is added to itself",
        {"y": "y = tl.load(x_ptr + offs, mask=mask)"},
        "Two tensors come in. From how many does the kernel read?",
    ),
    Mistake(
        "when a program begins one element late",
        {"offs": "offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK) + 1"},
        "Program 0 owns element 0.",
    ),
    Mistake(
        "when the mask looks at the lanes, not at the elements",
        {"mask": "mask = tl.arange(0, BLOCK) < N"},
        "Lane 3 of program 7 has not element 3. Which number must stay below N?",
    ),
    Mistake(
        "when the mask lets the elements of the first block through only",
        {"mask": "mask = offs < BLOCK"},
        "Every element below N has to be added. With which number does your mask compare?",
    ),
]


COPY2D_KERNEL: list[Mistake] = [
    Mistake(
        "when nothing is written to out",
        {"store": "tile"},
        NOTHING_WRITTEN,
    ),
    Mistake(
        "when BLOCK_H is taken to be 4 and BLOCK_W to be 8",
        {
            "offs_h": "offs_h = tl.program_id(0) * 4 + tl.arange(0, 4)",
            "offs_w": "offs_w = tl.program_id(1) * 8 + tl.arange(0, 8)",
        },
        BLOCK_GIVEN,
    ),
    Mistake(
        "when BLOCK_H is taken to be 4",
        {"offs_h": "offs_h = tl.program_id(0) * 4 + tl.arange(0, 4)"},
        BLOCK_GIVEN,
    ),
    Mistake(
        "when BLOCK_W is taken to be 8",
        {"offs_w": "offs_w = tl.program_id(1) * 8 + tl.arange(0, 8)"},
        BLOCK_GIVEN,
    ),
    Mistake(
        "when the mask covers no rows",
        {"mask": "mask = (offs_w < W)[None, :]"},
        "Your mask knows the right edge. What about tiles that hang over the bottom edge?",
    ),
    Mistake(
        "when the mask covers no columns",
        {"mask": "mask = (offs_h < H)[:, None]"},
        "Your mask knows the bottom edge. Past the right edge lies the next row, and after the last row nothing.",
    ),
    Mistake(
        "when the mask lets one row too many through",
        {"mask": "mask = (offs_h <= H)[:, None] & (offs_w < W)[None, :]"},
        "The last row has number H - 1. What does your mask say about number H?",
    ),
    Mistake(
        "when the mask lets one column too many through",
        {"mask": "mask = (offs_h < H)[:, None] & (offs_w <= W)[None, :]"},
        "The last column has number W - 1. What does your mask say about number W?",
    ),
    Mistake(
        "when the mask lets one row and one column too many through",
        {"mask": "mask = (offs_h <= H)[:, None] & (offs_w <= W)[None, :]"},
        "The last row has number H - 1, the last column W - 1. What does your mask say about H and W?",
    ),
    Mistake(
        "when an element is let through that has a row or a column",
        {"mask": "mask = (offs_h < H)[:, None] | (offs_w < W)[None, :]"},
        "`|` is true where either side is. Which elements of a tile exist: those whose row exists, those whose column "
        "does, or those of which both exist?",
    ),
    Mistake(
        "when rows and columns both come from the same program id",
        {"offs_w": "offs_w = tl.program_id(0) * BLOCK_W + tl.arange(0, BLOCK_W)"},
        "The grid has two axes: tiles downwards are counted by one, tiles to the right by the other.",
    ),
    Mistake(
        "when the strides of x and out are ignored",
        {
            "offs_x": "offs_x = offs_h[:, None] * W + offs_w[None, :]",
            "offs_out": "offs_out = offs_h[:, None] * W + offs_w[None, :]",
        },
        "Only a contiguous tensor has W elements from row to row and one from column to column.",
    ),
    Mistake(
        "when the strides of x are ignored",
        {"offs_x": "offs_x = offs_h[:, None] * W + offs_w[None, :]"},
        "Only a contiguous tensor has W elements from row to row and one from column to column. x can be any view.",
    ),
    Mistake(
        "when the strides of out are ignored",
        {"offs_out": "offs_out = offs_h[:, None] * W + offs_w[None, :]"},
        "Only a contiguous tensor has W elements from row to row and one from column to column. out can be any view.",
    ),
    Mistake(
        "when the load has no mask",
        {"tile": "tile = tl.load(x_ptr + offs_x)"},
        "A tile can hang over the bottom edge and over the right edge. Neither part exists.",
    ),
    Mistake(
        "when the load masks no rows",
        {"tile": "tile = tl.load(x_ptr + offs_x, mask=(offs_w < W)[None, :])"},
        "Your mask knows the right edge. What about tiles that hang over the bottom edge?",
    ),
    Mistake(
        "when the load masks no columns",
        {"tile": "tile = tl.load(x_ptr + offs_x, mask=(offs_h < H)[:, None])"},
        "Your mask knows the bottom edge. Past the right edge lies the next row, and after the last row nothing.",
    ),
    Mistake(
        "when the store has no mask",
        {"store": "tl.store(out_ptr + offs_out, tile)"},
        "The parts of a tile that hang over an edge must not be written either.",
    ),
    Mistake(
        "when the store masks no rows",
        {"store": "tl.store(out_ptr + offs_out, tile, mask=(offs_w < W)[None, :])"},
        "The load is masked both ways. The store needs the same.",
    ),
    Mistake(
        "when the store masks no columns",
        {"store": "tl.store(out_ptr + offs_out, tile, mask=(offs_h < H)[:, None])"},
        "What lies in memory after the last column of a row? The store writes over it.",
    ),
    Mistake(
        "when the strides of x are swapped",
        {"offs_x": "offs_x = offs_h[:, None] * stride_xw + offs_w[None, :] * stride_xh"},
        "One step down moves stride_xh elements, one step to the right stride_xw.",
    ),
    Mistake(
        "when the strides of out are swapped",
        {"offs_out": "offs_out = offs_h[:, None] * stride_ow + offs_w[None, :] * stride_oh"},
        "One step down moves stride_oh elements, one step to the right stride_ow.",
    ),
    Mistake(
        "when out is written with the strides of x",
        {"offs_out": "offs_out = offs_h[:, None] * stride_xh + offs_w[None, :] * stride_xw"},
        "x and out hold the same numbers, but need not lie in memory the same way.",
    ),
    Mistake(
        "when columns of x are taken to be next to each other",
        {"offs_x": "offs_x = offs_h[:, None] * stride_xh + offs_w[None, :]"},
        "In a contiguous tensor the column stride is 1. In which tensors is it not?",
    ),
    Mistake(
        "when columns of out are taken to be next to each other",
        {"offs_out": "offs_out = offs_h[:, None] * stride_oh + offs_w[None, :]"},
        "In a contiguous tensor the column stride is 1. In which tensors is it not?",
    ),
    Mistake(
        "when W is taken for the row stride of x",
        {"offs_x": "offs_x = offs_h[:, None] * W + offs_w[None, :] * stride_xw"},
        "W columns are yours to copy. How far the next row is, only the stride says.",
    ),
    Mistake(
        "when W is taken for the row stride of out",
        {"offs_out": "offs_out = offs_h[:, None] * W + offs_w[None, :] * stride_ow"},
        "W columns are yours to copy. How far the next row is, only the stride says.",
    ),
    Mistake(
        "when the two program ids are swapped",
        {
            "offs_h": "offs_h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)",
            "offs_w": "offs_w = tl.program_id(0) * BLOCK_W + tl.arange(0, BLOCK_W)",
        },
        "The grid is (tiles downwards, tiles to the right). Which axis counts which?",
    ),
    Mistake(
        "when the row of a tile is not multiplied by BLOCK_H",
        {"offs_h": "offs_h = tl.program_id(0) + tl.arange(0, BLOCK_H)"},
        "Program (1, 0) begins below program (0, 0). How many rows lie above it?",
    ),
    Mistake(
        "when the column of a tile is not multiplied by BLOCK_W",
        {"offs_w": "offs_w = tl.program_id(1) + tl.arange(0, BLOCK_W)"},
        "Program (0, 1) begins to the right of program (0, 0). How many columns lie before it?",
    ),
    Mistake(
        "when the last rows, which fill no tile, are left out",
        {"mask": "mask = (offs_h < H // BLOCK_H * BLOCK_H)[:, None] & (offs_w < W)[None, :]"},
        "The rows after the last full tile count as well.",
    ),
    Mistake(
        "when the last columns, which fill no tile, are left out",
        {"mask": "mask = (offs_h < H)[:, None] & (offs_w < W // BLOCK_W * BLOCK_W)[None, :]"},
        "The columns after the last full tile count as well.",
    ),
    Mistake(
        "when H and W are swapped in the mask",
        {"mask": "mask = (offs_h < W)[:, None] & (offs_w < H)[None, :]"},
        "Row numbers stay below the height, column numbers below the width.",
    ),
    Mistake(
        "when every program copies the whole matrix",
        {
            "offs_h": """
                for top in range(0, H, BLOCK_H):
                    for left in range(0, W, BLOCK_W):
                        h = top + tl.arange(0, BLOCK_H)[:, None]
                        w = left + tl.arange(0, BLOCK_W)[None, :]
                        mask = (h < H) & (w < W)
                        x = tl.load(x_ptr + h * stride_xh + w * stride_xw, mask=mask)
                        tl.store(out_ptr + h * stride_oh + w * stride_ow, x, mask=mask)
            """,
            "offs_w": "",
            "mask": "",
            "offs_x": "",
            "offs_out": "",
            "tile": "",
            "store": "",
        },
        WHOLE_WORK + "Which tile is its own?",
    ),
    Mistake(
        "when a tile is copied one element at a time",
        {
            "offs_h": """
                top, left = tl.program_id(0) * BLOCK_H, tl.program_id(1) * BLOCK_W
                for h in range(top, min(top + BLOCK_H, H)):
                    for w in range(left, min(left + BLOCK_W, W)):
                        x = tl.load(x_ptr + h * stride_xh + w * stride_xw)
                        tl.store(out_ptr + h * stride_oh + w * stride_ow, x)
            """,
            "offs_w": "",
            "mask": "",
            "offs_x": "",
            "offs_out": "",
            "tile": "",
            "store": "",
        },
        ONE_LANE,
    ),
]


GATHER_ROWS_KERNEL: list[Mistake] = [
    Mistake("when nothing is written to out", {"store": "values"}, NOTHING_WRITTEN),
    Mistake(
        "when BLOCK_N is taken to be 4",
        {"offs_n": "offs_n = tl.program_id(0) * 4 + tl.arange(0, 4)"},
        BLOCK_GIVEN,
    ),
    Mistake(
        "when BLOCK_D is taken to be 8",
        {"offs_d": "offs_d = tl.arange(0, 8)"},
        "BLOCK_D is a power of two that holds a whole row, however wide rows are. Is a size written as a number?",
    ),
    Mistake(
        "when BLOCK_N is taken to be 4 and BLOCK_D to be 8",
        {"offs_n": "offs_n = tl.program_id(0) * 4 + tl.arange(0, 4)", "offs_d": "offs_d = tl.arange(0, 8)"},
        BLOCK_GIVEN,
    ),
    Mistake(
        "when the load of the index has no mask",
        {"row": "row = tl.load(index_ptr + offs_n, ).to(tl.int64)"},
        "The last program has lanes for rows that out does not have. Is there an index for them?",
    ),
    Mistake(
        "when the load of the table lets lanes past D through",
        {"values": "values = tl.load(table_ptr + row[:, None] * stride_row + offs_d[None, :])"},
        "BLOCK_D is the next power of two after D. What do the lanes past D read in the last row of the table?",
    ),
    Mistake(
        "when rows past N are looked up at an index that was never read",
        {
            "row": "row = tl.load(index_ptr + offs_n, mask=mask_n).to(tl.int64)",
            "values": "values = tl.load(table_ptr + row[:, None] * stride_row + offs_d[None, :], mask=(offs_d < D)[None, :])",
        },
        "Lanes that the mask turned off hold no index: anything may be there. Turn them off in the table as well, or "
        "give them an index with `other`.",
    ),
    Mistake(
        "when the store has no mask",
        {"store": "tl.store(out_ptr + offs_n[:, None] * D + offs_d[None, :], values)"},
        "out ends after row N - 1, and each of its rows after column D - 1.",
    ),
    Mistake(
        "when the store masks no rows",
        {"store": "tl.store(out_ptr + offs_n[:, None] * D + offs_d[None, :], values, mask=(offs_d < D)[None, :])"},
        "The last program owns more rows than out has left.",
    ),
    Mistake(
        "when the store masks no columns",
        {"store": "tl.store(out_ptr + offs_n[:, None] * D + offs_d[None, :], values, mask=mask_n[:, None])"},
        "The rows of out lie one after another: past column D - 1 begins the next row.",
    ),
    Mistake(
        "when the row offset is computed in 32 bits without a sign",
        {"row": "row = tl.load(index_ptr + offs_n, mask=mask_n, other=0).to(tl.uint32)"},
        "Without a sign 32 bits count to 2^32. Rows may lie further apart than that, too.",
    ),
    Mistake(
        "when the row offset is computed in 32 bits",
        {"row": "row = tl.load(index_ptr + offs_n, mask=mask_n, other=0)"},
        "An int32 index times an int32 stride is an int32, and past 2^31 it wraps round to a negative number. Lab 2 "
        "counted when that happens. Widening the product is too late: by then it has wrapped.",
    ),
    Mistake(
        "when the index is not used",
        {
            "values": "values = tl.load(table_ptr + offs_n[:, None].to(tl.int64) * stride_row + offs_d[None, :], mask=mask)"
        },
        "Row n of out comes from row index[n] of the table, not from row n.",
    ),
    Mistake(
        "when D is taken for the row stride of the table",
        {"values": "values = tl.load(table_ptr + row[:, None] * D + offs_d[None, :], mask=mask)"},
        "The table's rows are stride_row elements apart, which is more than D where there are gaps.",
    ),
    Mistake(
        "when the rows of out are taken to be as far apart as the table's",
        {"store": "tl.store(out_ptr + offs_n[:, None] * stride_row + offs_d[None, :], values, mask=mask)"},
        "out is a new tensor: its rows lie one after another, D elements each.",
    ),
    Mistake(
        "when the program id is not multiplied by BLOCK_N",
        {"offs_n": "offs_n = tl.program_id(0) + tl.arange(0, BLOCK_N)"},
        "Program 1 begins where program 0 ends. How many rows lie before it?",
    ),
    Mistake(
        "when the last rows, which fill no block, are left out",
        {"mask_n": "mask_n = offs_n < N // BLOCK_N * BLOCK_N"},
        "The rows after the last full block count as well.",
    ),
    Mistake(
        "when row and column stride are swapped in the table",
        {"values": "values = tl.load(table_ptr + row[:, None] + offs_d[None, :] * stride_row, mask=mask)"},
        "One row down is stride_row elements away, one column to the right is one.",
    ),
    Mistake(
        "when every program copies all rows",
        {
            "offs_n": "",
            "mask_n": """
                for n in range(N):
                    row = tl.load(index_ptr + n).to(tl.int64)
                    x = tl.load(table_ptr + row * stride_row + offs_d, mask=offs_d < D)
                    tl.store(out_ptr + n * D + offs_d, x, mask=offs_d < D)
            """,
            "mask": "",
            "row": "",
            "values": "",
            "store": "",
        },
        WHOLE_WORK + "Which rows are its own?",
    ),
    Mistake(
        "when rows are copied one element at a time",
        {
            "offs_n": """
                first = tl.program_id(0) * BLOCK_N
                for n in range(first, min(first + BLOCK_N, N)):
                    row = tl.load(index_ptr + n).to(tl.int64)
                    for d in range(D):
                        tl.store(out_ptr + n * D + d, tl.load(table_ptr + row * stride_row + d))
            """,
            "offs_d": "",
            "mask_n": "",
            "mask": "",
            "row": "",
            "values": "",
            "store": "",
        },
        ONE_LANE,
    ),
    Mistake(
        "when the mask covers no columns",
        {"mask": "mask = mask_n[:, None] & (offs_d >= 0)[None, :]"},
        "BLOCK_D can be more than D. What do the lanes past D read, and where do they write?",
    ),
]


BILINEAR_KERNEL: list[Mistake] = [
    Mistake("when nothing is written to out", {"store": "acc"}, NOTHING_WRITTEN),
    Mistake(
        "when BLOCK_Q is taken to be 16",
        {
            "offs_q": "offs_q = tl.program_id(0) * 16 + tl.arange(0, 16)",
            "acc": "acc = tl.zeros([16, BLOCK_D], tl.float32)",
        },
        BLOCK_GIVEN,
    ),
    Mistake(
        "when the bounds of x and y are swapped",
        {"inside": "inside = mask_q & (xi >= 0) & (xi < H) & (yj >= 0) & (yj < W)"},
        "x runs along a row, W pixels long; y down a column of H.",
    ),
    Mistake(
        "when the weights of left and right are swapped",
        {"weight": "weight = (1 - fx if i else fx) * (fy if j else 1 - fy)"},
        "The nearer pixel weighs more. How much does x0 weigh when x is exactly x0?",
    ),
    Mistake(
        "when the weights of top and bottom are swapped",
        {"weight": "weight = (fx if i else 1 - fx) * (1 - fy if j else fy)"},
        "The nearer pixel weighs more. How much does y0 weigh when y is exactly y0?",
    ),
    Mistake(
        "when the load of x has no mask",
        {"x": "x = tl.load(loc_ptr + 2 * offs_q) * W - 0.5"},
        "The last program has lanes for points that do not exist.",
    ),
    Mistake(
        "when the load of y has no mask",
        {"y": "y = tl.load(loc_ptr + 2 * offs_q + 1) * H - 0.5"},
        "The last program has lanes for points that do not exist.",
    ),
    Mistake("when the load of a corner has no mask", {"acc_2": "acc += weight[:, None] * tl.load(pixel)"}, OUTSIDE),
    Mistake(
        "when corners past the left edge are read",
        {"inside": "inside = mask_q & (xi < W) & (yj >= 0) & (yj < H)"},
        f"{OUTSIDE} What lies in memory before the first pixel of a row?",
    ),
    Mistake(
        "when corners past the right edge are read",
        {"inside": "inside = mask_q & (xi >= 0) & (yj >= 0) & (yj < H)"},
        f"{OUTSIDE} What lies in memory after the last pixel of a row?",
    ),
    Mistake(
        "when corners above the top edge are read",
        {"inside": "inside = mask_q & (xi >= 0) & (xi < W) & (yj < H)"},
        f"{OUTSIDE} Your mask knows three edges of the image.",
    ),
    Mistake(
        "when corners below the bottom edge are read",
        {"inside": "inside = mask_q & (xi >= 0) & (xi < W) & (yj >= 0)"},
        f"{OUTSIDE} Your mask knows three edges of the image.",
    ),
    Mistake(
        "when the load of a corner masks no channels",
        {"acc_2": "acc += weight[:, None] * tl.load(pixel, mask=inside[:, None], other=0.0)"},
        "BLOCK_D can be more than D. What do the lanes past D read at the last pixel?",
    ),
    Mistake(
        "when the store has no mask",
        {"store": "tl.store(out_ptr + offs_q[:, None] * D + offs_d[None, :], acc)"},
        "out ends after point Q - 1, and each of its rows after channel D - 1.",
    ),
    Mistake(
        "when the store masks no points",
        {"store": "tl.store(out_ptr + offs_q[:, None] * D + offs_d[None, :], acc, mask=mask_d[None, :])"},
        "The last program owns more points than there are.",
    ),
    Mistake(
        "when the store masks no channels",
        {"store": "tl.store(out_ptr + offs_q[:, None] * D + offs_d[None, :], acc, mask=mask_q[:, None])"},
        "The rows of out lie one after another: past channel D - 1 begins the next point.",
    ),
    Mistake(
        "when a corner outside the image counts as one",
        {"acc_2": "acc += weight[:, None] * tl.load(pixel, mask=inside[:, None] & mask_d[None, :], other=1.0)"},
        "`other` is what a lane holds that the mask turned off. What is the value of a pixel that does not exist?",
    ),
    Mistake(
        "when a corner outside the image counts as whatever was in the register",
        {"acc_2": "acc += weight[:, None] * tl.load(pixel, mask=inside[:, None] & mask_d[None, :])"},
        "Without `other`, lanes that the mask turned off are undefined: often zero, and nobody promises it. The guard "
        "fills them with what is not a number.",
    ),
    Mistake(
        "when the half pixel is forgotten",
        {
            "x": "x = tl.load(loc_ptr + 2 * offs_q, mask=mask_q, other=0.0) * W",
            "y": "y = tl.load(loc_ptr + 2 * offs_q + 1, mask=mask_q, other=0.0) * H",
        },
        "Location 0 is the edge of the first pixel, and coordinate 0 its centre: your `to_pixels` from lab 1.",
    ),
    Mistake(
        "with W - 1 and H - 1 in place of W and H",
        {
            "x": "x = tl.load(loc_ptr + 2 * offs_q, mask=mask_q, other=0.0) * (W - 1)",
            "y": "y = tl.load(loc_ptr + 2 * offs_q + 1, mask=mask_q, other=0.0) * (H - 1)",
        },
        "That is the other convention (align_corners=True). Here 0 and 1 are edges.",
    ),
    Mistake(
        "when coordinates are cut off instead of rounded down",
        {"x0": "x0 = x.to(tl.int32)", "y0": "y0 = y.to(tl.int32)"},
        "`.to(tl.int32)` cuts off what is behind the point: -0.5 becomes 0. Which pixel is to the left of -0.5?",
    ),
    Mistake(
        "when x and y are swapped",
        {
            "x": "x = tl.load(loc_ptr + 2 * offs_q + 1, mask=mask_q, other=0.0) * W - 0.5",
            "y": "y = tl.load(loc_ptr + 2 * offs_q, mask=mask_q, other=0.0) * H - 0.5",
        },
        "A location is (x, y): the first number runs along a row.",
    ),
    Mistake(
        "when H and W are swapped",
        {
            "x": "x = tl.load(loc_ptr + 2 * offs_q, mask=mask_q, other=0.0) * H - 0.5",
            "y": "y = tl.load(loc_ptr + 2 * offs_q + 1, mask=mask_q, other=0.0) * W - 0.5",
        },
        "x runs from 0 to the width, y from 0 to the height.",
    ),
    Mistake(
        "when a row of the image is taken to be H pixels long",
        {"pixel": "pixel = image_ptr + (yj * H + xi)[:, None] * D + offs_d[None, :]"},
        "How many pixels lie between a pixel and the one below it?",
    ),
    Mistake(
        "when row and column are swapped in the address",
        {"pixel": "pixel = image_ptr + (xi * W + yj)[:, None] * D + offs_d[None, :]"},
        "A pixel in row j and column i lies after j whole rows and i pixels.",
    ),
    Mistake(
        "when the number of channels is left out of the address",
        {"pixel": "pixel = image_ptr + (yj * W + xi)[:, None] + offs_d[None, :]"},
        "The next pixel is D elements away.",
    ),
    Mistake(
        "when all four corners are the upper left one",
        {"xi": "xi = x0 + 0 * i", "yj": "yj = y0 + 0 * j"},
        "The four corners are x0 or x0 + 1, in row y0 or y0 + 1.",
    ),
    Mistake(
        "when the weights of near and far corners are swapped",
        {"weight": "weight = (1 - fx if i else fx) * (1 - fy if j else fy)"},
        "The nearer pixel weighs more. How much does x0 weigh when x is exactly x0?",
    ),
    Mistake(
        "when the weights of x and y are swapped",
        {"weight": "weight = (fy if i else 1 - fy) * (fx if j else 1 - fx)"},
        "How far along the row the point lies decides between left and right.",
    ),
    Mistake(
        "when the border pixel goes on for ever",
        {"xi": "xi = tl.minimum(tl.maximum(x0 + i, 0), W - 1)", "yj": "yj = tl.minimum(tl.maximum(y0 + j, 0), H - 1)"},
        "That is another convention (border padding). Here a pixel outside counts as zero.",
    ),
    Mistake(
        "when the corners are set instead of added up",
        {"acc_2": "acc = weight[:, None] * tl.load(pixel, mask=inside[:, None] & mask_d[None, :], other=0.0)"},
        "Four corners take part. Only the last one is left.",
    ),
    Mistake(
        "when the program id is not multiplied by BLOCK_Q",
        {"offs_q": "offs_q = tl.program_id(0) + tl.arange(0, BLOCK_Q)"},
        "Program 1 begins where program 0 ends. How many points lie before it?",
    ),
    Mistake(
        "when the last points, which fill no block, are left out",
        {"mask_q": "mask_q = offs_q < Q // BLOCK_Q * BLOCK_Q"},
        "The points after the last full block count as well.",
    ),
    Mistake(
        "when column 0 and row 0 are taken to be outside",
        {"inside": "inside = mask_q & (xi > 0) & (xi < W) & (yj > 0) & (yj < H)"},
        "The first column and the first row have number 0, and both exist.",
    ),
    Mistake(
        "when the last column and the last row are taken to be outside",
        {"inside": "inside = mask_q & (xi >= 0) & (xi < W - 1) & (yj >= 0) & (yj < H - 1)"},
        "The last column has number W - 1, the last row H - 1, and both exist.",
    ),
    Mistake(
        "when a point is dropped as soon as one of its four pixels does not exist",
        {"inside": "inside = mask_q & (x0 >= 0) & (x0 < W - 1) & (y0 >= 0) & (y0 < H - 1)"},
        "The other three still count. Test each corner by itself.",
    ),
    Mistake(
        "when a point beyond the outermost centres is dropped",
        {
            "inside": """
                @
                inside = inside & (x >= 0) & (x <= W - 1) & (y >= 0) & (y <= H - 1)
            """
        },
        "Past the centre of the last pixel a point still reads that pixel, with less and less weight. Test each corner by itself.",
    ),
    Mistake(
        "when the weights look along x only",
        {"weight": "weight = fx if i else 1 - fx"},
        "A point lies between two columns and between two rows: each corner's weight has a factor for both.",
    ),
    Mistake(
        "when the weights look along y only",
        {"weight": "weight = fy if j else 1 - fy"},
        "A point lies between two columns and between two rows: each corner's weight has a factor for both.",
    ),
    Mistake(
        "when coordinates are cut off towards zero, and weights are one minus the distance",
        {
            "x0": "x0 = x.to(tl.int32)",
            "y0": "y0 = y.to(tl.int32)",
            "weight": "weight = (1 - tl.abs(x - xi)) * (1 - tl.abs(y - yj))",
        },
        "`.to(tl.int32)` cuts off what is behind the point: -0.5 becomes 0. Which pixel is to the left of -0.5?",
    ),
    Mistake(
        "when coordinates are rounded to the nearest pixel, and weights are one minus the distance",
        {
            "x0": "x0 = tl.floor(x + 0.5).to(tl.int32)",
            "y0": "y0 = tl.floor(y + 0.5).to(tl.int32)",
            "weight": "weight = (1 - tl.abs(x - xi)) * (1 - tl.abs(y - yj))",
        },
        "The cell of x = 2.7 begins at 2. Where does yours begin?",
    ),
]


ROW_SUM_KERNEL: list[Mistake] = [
    Mistake(
        "when nothing is written to out",
        {"store": "tl.sum(acc, axis=0)"},
        NOTHING_WRITTEN,
    ),
    Mistake(
        "when BLOCK is taken to be 16",
        {
            "acc": "acc = tl.zeros([16], tl.float32)",
            "each_start": "for start in range(0, N, 16):",
            "offs": "offs = start + tl.arange(0, 16)",
        },
        BLOCK_GIVEN,
    ),
    Mistake(
        "when every sum is stored in the same place",
        {"store": "tl.store(out_ptr, tl.sum(acc, axis=0))"},
        "Program r has the sum of row r. Where in out does it belong?",
    ),
    Mistake(
        "when only the first block is added up, in the dtype of x",
        {
            "acc": "acc = tl.zeros([BLOCK], x_ptr.dtype.element_ty)",
            "each_start": "for start in range(0, BLOCK, BLOCK):",
            "acc_2": "acc += x",
        },
        "A row can be longer than a block: the program has to walk along it. And the sum should be kept in float32.",
    ),
    Mistake(
        "when each block replaces the sum so far, in the dtype of x",
        {"acc_2": "acc = x"},
        "Only the last block is left. Is something set where it should be added to? And the sum should be kept in float32.",
    ),
    Mistake(
        "when the load has no mask",
        {"x": "x = tl.load(x_ptr + row * stride_row + offs)"},
        "Past the end of a row lies the next one, and past the last row nothing.",
    ),
    Mistake(
        "when lanes past the end of a row count as one",
        {"x": "x = tl.load(x_ptr + row * stride_row + offs, mask=offs < N, other=1.0)"},
        "`other` is what a lane holds that the mask turned off. Which number changes no sum?",
    ),
    Mistake(
        "when lanes past the end of a row count as whatever was in the register",
        {"x": "x = tl.load(x_ptr + row * stride_row + offs, mask=offs < N)"},
        "Without `other`, lanes that the mask turned off are undefined: often zero, and nobody promises it. The guard "
        "fills them with what is not a number.",
    ),
    Mistake(
        "when the last block, which is not full, is left out",
        {"each_start": "for start in range(0, N // BLOCK * BLOCK, BLOCK):"},
        "Where does your loop end, if N is 37 and BLOCK is 16?",
    ),
    Mistake(
        "when only the first block is added up",
        {"each_start": "for start in range(0, BLOCK, BLOCK):"},
        "A row can be longer than a block: the program has to walk along it.",
    ),
    Mistake(
        "when the block does not move along the row",
        {"offs": "offs = 0 * start + tl.arange(0, BLOCK)"},
        "The same elements are added again and again. What changes from one turn of the loop to the next?",
    ),
    Mistake(
        "when each block replaces the sum so far",
        {"acc_2": "acc = x.to(tl.float32)"},
        "Only the last block is left. Is something set where it should be added to?",
    ),
    Mistake(
        "when the row offset is computed in 32 bits",
        {"row": "row = tl.program_id(0)"},
        "A program id is an int32, and so is its product with an int32 stride: past 2^31 it wraps round. Lab 2 counted when "
        "that happens.",
    ),
    Mistake(
        "when every program adds up the first row",
        {"x": "x = tl.load(x_ptr + 0 * stride_row + offs, mask=offs < N, other=0.0)"},
        "Row r begins r strides after the first.",
    ),
    Mistake(
        "when N is taken for the row stride",
        {"x": "x = tl.load(x_ptr + row * N + offs, mask=offs < N, other=0.0)"},
        "N elements are yours to add. How far the next row is, only the stride says.",
    ),
    Mistake(
        "when the program id is not multiplied by the row stride",
        {"x": "x = tl.load(x_ptr + row + offs, mask=offs < N, other=0.0)"},
        "Row 1 begins a whole row after row 0.",
    ),
    Mistake(
        "when the sum is kept in the dtype of x",
        {"acc": "acc = tl.zeros([BLOCK], x_ptr.dtype.element_ty)", "acc_2": "acc += x"},
        "In float16, 16,384 plus 7 is 16,392: numbers are 16 apart up there. Which dtype should the sum have?",
    ),
    Mistake(
        "when the last element of a row is left out",
        {"x": "x = tl.load(x_ptr + row * stride_row + offs, mask=offs < N - 1, other=0.0)"},
        "The last element has number N - 1.",
    ),
    Mistake(
        "when the mean is taken",
        {"store": "tl.store(out_ptr + row, tl.sum(acc, axis=0) / N)"},
        "The sum is not divided by anything.",
    ),
    Mistake(
        "when every program adds up all rows",
        {
            "row": """
                for row in range(tl.num_programs(0)):
                    acc = tl.zeros([BLOCK], tl.float32)
                    for start in range(0, N, BLOCK):
                        offs = start + tl.arange(0, BLOCK)
                        acc += tl.load(x_ptr + row * stride_row + offs, mask=offs < N, other=0.0).to(tl.float32)
                    tl.store(out_ptr + row, tl.sum(acc, axis=0))
            """,
            "acc": "",
            "each_start": "",
            "store": "",
        },
        WHOLE_WORK + "Which row is its own?",
    ),
    Mistake(
        "when a row is added up one element at a time",
        {
            "row": """
                for r in range(tl.program_id(0), tl.program_id(0) + 1):
                    acc = 0.0
                    for n in range(N):
                        acc += tl.load(x_ptr + r * stride_row + n).to(tl.float32)
                    tl.store(out_ptr + r, acc)
            """,
            "acc": "",
            "each_start": "",
            "store": "",
        },
        ONE_LANE,
    ),
    Mistake(
        "when the mask looks at the lanes, not at the elements",
        {"x": "x = tl.load(x_ptr + row * stride_row + offs, mask=tl.arange(0, BLOCK) < N, other=0.0)"},
        "In the second block lane 3 has not element 3. Which number must stay below N?",
    ),
    Mistake(
        "when the sum is kept in float16",
        {"acc": "acc = tl.zeros([BLOCK], tl.float16)", "acc_2": "acc += x.to(tl.float16)"},
        "In float16, 16,384 plus 7 is 16,392: numbers are 16 apart up there. Which dtype should the sum have?",
    ),
    Mistake(
        "when the first element of a row is left out",
        {"each_start": "for start in range(1, N, BLOCK):"},
        "A row begins with element 0.",
    ),
]


SOFTMAX_KERNEL: list[Mistake] = [
    Mistake(
        "when nothing is written to out",
        {"store": "tl.exp(x - peak)"},
        NOTHING_WRITTEN,
    ),
    Mistake(
        "when BLOCK is taken to be 16",
        {
            "offs": "offs = tl.arange(0, 16)",
            "top": 'top = tl.full([16], float("-inf"), tl.float32)',
            "each_start": "for start in range(0, N, 16):",
            "total": "total = tl.zeros([16], tl.float32)",
            "each_start_2": "for start in range(0, N, 16):",
            "each_start_3": "for start in range(0, N, 16):",
        },
        BLOCK_GIVEN,
    ),
    Mistake(
        "when N is taken for the row stride",
        {"x_ptr": "x_ptr += row * N", "out_ptr": "out_ptr += row * N"},
        "N elements are yours. How far the next row is, only the stride says.",
    ),
    Mistake(
        "when N is taken for the row stride of x",
        {"x_ptr": "x_ptr += row * N"},
        "N elements are yours. How far the next row is, only the stride says.",
    ),
    Mistake(
        "when N is taken for the row stride of out",
        {"out_ptr": "out_ptr += row * N"},
        "N elements are yours. How far the next row of out is, the same stride says.",
    ),
    Mistake(
        "when lanes past the end of a row count as whatever was in the register",
        {
            "top_2": "top = tl.maximum(top, tl.load(x_ptr + start + offs, mask=start + offs < N))",
            "total_2": "total += tl.exp(tl.load(x_ptr + start + offs, mask=start + offs < N) - peak)",
        },
        "Without `other`, lanes that the mask turned off are undefined: often zero, and nobody promises it. The guard "
        "fills them with what is not a number.",
    ),
    Mistake(
        "when the lanes keep a largest number each",
        {"peak": "peak = top"},
        "At the end of the first walk every lane knows the largest number it has seen. The row has only one: tl.max.",
    ),
    Mistake(
        "when the lanes keep a sum each",
        {"norm": "norm = total"},
        "At the end of the second walk every lane has a sum of its own. The row has only one: tl.sum.",
    ),
    Mistake(
        "when the largest number is not subtracted",
        {"peak": "peak = 0.0"},
        "exp(100) is more than float32 holds. Softmax does not change when the same number is taken from all.",
    ),
    Mistake(
        "when lanes past the end of a row count as zero in the maximum",
        {"top_2": "top = tl.maximum(top, tl.load(x_ptr + start + offs, mask=start + offs < N, other=0.0))"},
        "Where all numbers are far below zero, a zero that is not there wins. Which number changes no maximum?",
    ),
    Mistake(
        "when lanes past the end of a row are added up",
        {"total_2": "total += tl.exp(tl.load(x_ptr + start + offs, mask=start + offs < N, other=0.0) - peak)"},
        "exp(0) is one. Of which number is exp zero?",
    ),
    Mistake(
        "when only the first block is looked at",
        {
            "each_start": "for start in range(0, min(N, BLOCK), BLOCK):",
            "each_start_2": "for start in range(0, min(N, BLOCK), BLOCK):",
            "each_start_3": "for start in range(0, min(N, BLOCK), BLOCK):",
        },
        "A row can be longer than a block.",
    ),
    Mistake(
        "when a load has no mask",
        {"x": "x = tl.load(x_ptr + start + offs)"},
        "Past the end of a row lies the next one, and past the last row nothing. Each walk along the row needs a mask.",
    ),
    Mistake(
        "when the load for the maximum has no mask",
        {"top_2": "top = tl.maximum(top, tl.load(x_ptr + start + offs))"},
        "Past the end of a row lies the next one, and past the last row nothing. Each walk along the row needs a mask.",
    ),
    Mistake(
        "when the load for the sum has no mask",
        {"total_2": "total += tl.exp(tl.load(x_ptr + start + offs) - peak)"},
        "Past the end of a row lies the next one, and past the last row nothing. Each walk along the row needs a mask.",
    ),
    Mistake(
        "when the result is not divided by the sum",
        {"store": "tl.store(out_ptr + start + offs, tl.exp(x - peak), mask=start + offs < N)"},
        "Each row adds up to one.",
    ),
    Mistake(
        "when the store has no mask",
        {"store": "tl.store(out_ptr + start + offs, tl.exp(x - peak) / norm)"},
        "Past the end of a row lies the next one, and past the last row nothing.",
    ),
    Mistake(
        "when a row is worked on one element at a time",
        {
            "row": """
                for r in range(tl.program_id(0), tl.program_id(0) + 1):
                    top = float("-inf")
                    for n in range(N):
                        top = tl.maximum(top, tl.load(x_ptr + r * stride_row + n))
                    total = 0.0
                    for n in range(N):
                        total += tl.exp(tl.load(x_ptr + r * stride_row + n) - top)
                    for n in range(N):
                        tl.store(out_ptr + r * stride_row + n, tl.exp(tl.load(x_ptr + r * stride_row + n) - top) / total)
            """,
            "x_ptr": "",
            "out_ptr": "",
            "offs": "",
            "top": "",
            "each_start": "",
            "peak": "",
            "total": "",
            "each_start_2": "",
            "norm": "",
            "each_start_3": "",
        },
        ONE_LANE,
    ),
    Mistake(
        "when the largest number of the last block is subtracted, not of the row",
        {"top_2": 'top = tl.load(x_ptr + start + offs, mask=start + offs < N, other=float("-inf"))'},
        "Is something set at every block where the larger of two should be kept?",
    ),
    Mistake(
        "when the maximum begins at zero",
        {"top": "top = tl.zeros([BLOCK], tl.float32)"},
        "Where all numbers are far below zero, a zero that is not there wins. With which number can a maximum begin?",
    ),
    Mistake(
        "when the smallest number is subtracted",
        {"peak": "peak = -tl.max(-top, axis=0)"},
        "exp overflows where what is left is large. Which number of the row leaves nothing above zero?",
    ),
    Mistake(
        "when powers of two are taken in place of exp",
        {
            "total_2": 'total += tl.exp2(tl.load(x_ptr + start + offs, mask=start + offs < N, other=float("-inf")) - peak)',
            "store": "tl.store(out_ptr + start + offs, tl.exp2(x - peak) / norm, mask=start + offs < N)",
        },
        "exp2 is faster, but its argument must be multiplied by log2(e) first.",
    ),
    Mistake(
        "when the row offset is computed in 32 bits",
        {"row": "row = tl.program_id(0)"},
        "A program id is an int32, and so is its product with an int32 stride: past 2^31 it wraps round. Lab 2 counted when "
        "that happens.",
    ),
    Mistake(
        "when a lane that has seen nothing yet takes -inf from -inf",
        {
            "top": """
                top = tl.full([BLOCK], float("-inf"), tl.float32)
                total = tl.zeros([BLOCK], tl.float32)
            """,
            "each_start": """
                for start in range(0, N, BLOCK):
                    now = tl.load(x_ptr + start + offs, mask=start + offs < N, other=float("-inf"))
                    higher = tl.maximum(top, now)
                    total = total * tl.exp(top - higher) + tl.exp(now - higher)
                    top = higher
            """,
            "total": "",
            "each_start_2": "",
            "norm": "norm = tl.sum(total * tl.exp(top - peak), axis=0)",
        },
        "Infinity minus infinity is no number. What has a lane seen that lies past the end of the row, or met only -inf?",
    ),
]

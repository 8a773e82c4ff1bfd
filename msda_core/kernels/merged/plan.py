"""Who does what: work lists of the merged kernels, made once for a pyramid and kept.

Queries are taken to be the pixels of the pyramid, level by level: query q of Q = S is pixel q. Nothing breaks if they
are not, the result is the same for any locations; but neighbouring queries then share no pixels, and nothing is gained.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from msda_core.device import load_triton

triton = load_triton()
tl = triton.language

__all__ = ["KEPT", "SPAN", "TILE", "Lists", "merge_tile", "read_tile", "ready", "tile_row", "work_lists"]

#: Queries (x, y) of one program of the forward and of `points`: 32 neighbours, whose pixels meet in L1.
TILE = (8, 4)

#: Queries of one program of `remainder`.
SPAN = 512


class Lists(NamedTuple):
    """Work lists on a device, int32; a program reads its own row.

    Attributes:
        merges: (n, 9): first query, width and height of the query level; x and y of a tile of it; target level; width and
            height of the tile; slot. One row for each tile of queries and target level that is worth a window.
        tiles: (n, 8): first query, width and height of the query level; x and y of a `TILE` of it; three unused.
        slots: (n, L): for each of `tiles` and each level, the slot of the merge that covers it, or -1 where there is none.
        spans: (n, 3): first query, one past the last, target level. Together they cover what `merges` covers.
    """

    merges: Tensor
    tiles: Tensor
    slots: Tensor
    spans: Tensor


@triton.jit
def read_tile(tiles_ptr, n):
    """What a kernel needs of row n of `Lists.tiles`: first query, width and height of the query level; x and y of the tile."""
    tiles_ptr += n * 8
    start = tl.load(tiles_ptr)
    W = tl.load(tiles_ptr + 1)
    H = tl.load(tiles_ptr + 2)
    return start, W, H, tl.load(tiles_ptr + 3), tl.load(tiles_ptr + 4)


@triton.jit
def tile_row(n, tile_x, tile_y, query_W, query_H, first, m, M: tl.constexpr, TILE_X: tl.constexpr):
    """Row (query, head m) of the tile's query n, moved into the level where there is none, so loads need no mask; is there?"""
    x = tile_x + n % TILE_X
    y = tile_y + n // TILE_X
    q = first + tl.minimum(y, query_H - 1) * query_W + tl.minimum(x, query_W - 1)
    return q * M + m, (x < query_W) & (y < query_H)


def merge_tile(query_width: int, target_width: int) -> tuple[int, int] | None:
    """Width and height of the query tiles that are merged at a target level; None for not at all.

    That is 8×8, 8×4 and 4×4 of its pixels where it is 2, 4 and 8 times as coarse. On a query's own level, and on finer ones, neighbours share too few pixels for a window to pay.
    """
    if 3 * target_width > 2 * query_width:
        return None
    if query_width < 3 * target_width:
        return 16, 16
    return (32, 16) if query_width < 6 * target_width else (32, 32)


#: Pyramids whose lists are kept, about 150 kB each at 800 × 1333.
KEPT = 256

_made: dict[tuple, Lists] = {}
_captured: dict[tuple, Lists] = {}  # a CUDA graph reads them whenever it is replayed: never given up


def _capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def ready(levels: tuple[tuple[int, int], ...], device: torch.device) -> bool:
    """Are the lists made, or can they be now? While a CUDA graph is captured nothing can be copied to its device."""
    key = levels, device
    return key in _made or key in _captured or not _capturing(device)


def work_lists(levels: tuple[tuple[int, int], ...], device: torch.device) -> Lists:
    """The lists for a pyramid, made when they are first asked for.

    Args:
        levels: (H, W) of each; queries are their pixels, in this order.
    """
    key = levels, device
    lists = _captured.get(key) or _made.get(key)
    if lists is None:
        if len(_made) >= KEPT:
            _made.clear()
        lists = _made[key] = _make(levels, device)
    if _capturing(device):
        _captured[key] = lists
    return lists


def _make(levels: tuple[tuple[int, int], ...], device: torch.device) -> Lists:
    merges, tiles, spans, first = [], [], [], 0
    for own, (H, W) in enumerate(levels):
        covers = {}
        for target, (_, target_width) in enumerate(levels):
            tile = merge_tile(W, target_width)
            if tile is None:
                continue
            covers[target] = tile, len(merges)
            merges += [
                [first, W, H, x, y, target, *tile, len(merges) + n]
                for n, (y, x) in enumerate((y, x) for y in range(0, H, tile[1]) for x in range(0, W, tile[0]))
            ]
            spans += [[q, min(q + SPAN, first + H * W), target] for q in range(first, first + H * W, SPAN)]
        corners = [(x, y) for y in range(0, H, TILE[1]) for x in range(0, W, TILE[0])]
        for n, (x, y) in enumerate(corners):
            slots = [-1] * len(levels)
            for target, ((width, height), slot) in covers.items():
                slots[target] = slot + y // height * -(-W // width) + x // width
            # Coarse query levels merge less and add more by themselves: spread them evenly among the others, a little early.
            when = (n + 0.5) / len(corners) * (1.0 if own == 0 else 0.92)
            tiles.append((when, own, n, [first, W, H, x, y, 0, 0, 0], slots))
        first += H * W
    merges.sort(key=lambda row: -row[6] * row[7])  # the longest first, so that none of them ends late and alone
    tiles.sort(key=lambda entry: entry[:3])

    def table(rows: list, width: int) -> Tensor:
        with torch.inference_mode(False):
            return torch.tensor(rows, dtype=torch.int32).reshape(-1, width).to(device)

    return Lists(
        table(merges, 9),
        table([entry[3] for entry in tiles], 8),
        table([entry[4] for entry in tiles], len(levels)),
        table(spans, 3),
    )

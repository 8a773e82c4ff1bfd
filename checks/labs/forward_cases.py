"""Calls of the operator that tell a right forward kernel from a wrong one: labs 5 and 6 are graded on the same.

Each case draws the arguments of one call, for programs that own `BLOCK_Q` queries of one head of one batch item. What can go
wrong is the same in both kernels as well: `told` names it, and each lab says how it looks in its own.
"""

import mmap
from typing import Any

import torch
from torch import Tensor

from checks.core import compare
from checks.core.exercise import Draw, Failed, Mistake, NotRun

NAN, INF = float("nan"), float("inf")
BLOCK_Q = 8
SHAPES = [(5, 9), (3, 6), (2, 3)]


def msda_call(draw: Draw, shapes, B=1, Q=BLOCK_Q, M=1, K=1, D=3, dtype=torch.float32, loc=None, low=0.25, high=0.75):
    """The arguments of one call; levels packed. Locations uniform in [low, high]; weights of both signs."""
    S, L = sum(H * W for H, W in shapes), len(shapes)
    starts = [sum(H * W for H, W in shapes[:l]) for l in range(L)]
    loc = dtype if loc is None else loc
    return (
        draw.normal(B, S, M, D, dtype=dtype),
        torch.tensor(shapes),
        torch.tensor(starts),
        draw.uniform(B, Q, M, L, K, 2, low=low, high=high, dtype=loc),
        draw.normal(B, Q, M, L, K, dtype=loc),
    )


def launch(kernel, value, shapes, starts, loc, attn, block_q: int = BLOCK_Q, **options) -> Tensor:
    """Launch a kernel with the signature of `msda_fwd_kernel`: (B, Q, M*D). Other constants it has come as options."""
    B, S, M, D = value.shape
    _, Q, _, L, K, _ = loc.shape
    out = value.new_empty(B, Q, M * D)
    grid = (-(-Q // block_q), B * M)
    sizes = dict(M=M, D=D, L=L, K=K, BLOCK_Q=block_q, BLOCK_D=1 << (D - 1).bit_length())
    kernel[grid](value, shapes, starts, loc, attn, out, Q, S, **sizes, **options)
    return out


def one_point_on_one_level(draw: Draw):
    """one point on one level: the four pixels around it, each by its weight"""
    return msda_call(draw, [(4, 7)], D=32)


def every_point_of_every_level(draw: Draw):
    """the points of all levels are added up, each by its attention weight"""
    return msda_call(draw, SHAPES, K=4, D=4)


def each_batch_item_and_head(draw: Draw):
    """each program works on its own batch item and head"""
    return msda_call(draw, [(3, 5)], B=3, M=2)


def ragged_queries(draw: Draw):
    """Q need not be a multiple of BLOCK_Q"""
    return msda_call(draw, [(3, 5)], Q=2 * BLOCK_Q + draw.integer(1, 5), K=3)


def thirty_three_channels(draw: Draw):
    """D need not be a power of two: BLOCK_D is then more than D"""
    args = msda_call(draw, [(3, 4)], Q=3, M=2, K=1, D=33)
    args[3][0, -1, :, 0, -1] = torch.tensor([0.8, 0.8])  # reads the last pixel
    return args


def one_channel(draw: Draw):
    """a head may have a single channel, and a level a single row"""
    return msda_call(draw, [(1, 6), (4, 1)], M=2, D=1)


def on_the_edges(draw: Draw):
    """on the edges of a level and across them a sample fades to zero"""
    args = msda_call(draw, [(3, 5), (2, 4)])
    edge = lambda: draw.number(-0.08, 0.08)  # noqa: E731
    places = [(0.0, 0.5), (1.0, 0.4), (0.6, 0.0), (0.3, 1.0), (0.0, 0.0), (1.0, 1.0), (0.0, 1.0), (1.0, 0.0)]
    places += [(edge(), 0.5), (1 + edge(), 0.6), (0.4, edge()), (0.7, 1 + edge())]
    places = torch.tensor([places[n] for n in torch.arange(args[4].numel()).remainder(len(places)).tolist()])
    args[3].copy_(places.reshape(args[3].shape))
    return args


def outside_and_not_a_number(draw: Draw):
    """a location far outside, infinite or not a number adds nothing and spoils nothing"""
    args = msda_call(draw, [(4, 6)], K=3)
    odd = [(-0.7, 0.5), (0.5, 1.9), (NAN, 0.5), (0.5, NAN), (INF, 0.5), (0.5, -INF), (NAN, NAN), (3e30, 0.2)]
    for q, place in enumerate(odd):
        args[3][0, q, 0, 0, q % 3] = torch.tensor(place)
    return args


def levels_with_gaps(draw: Draw):
    """levels begin where level_start_index says: in any order, with gaps between them; int32 as well as int64"""
    value, shapes, _, loc, attn = msda_call(draw, SHAPES, Q=5, M=2)
    starts = torch.tensor([11 + draw.integer(0, 4), 66 + draw.integer(0, 3), draw.integer(0, 4)], dtype=torch.int32)
    return draw.normal(1, 90, 2, 3), shapes.int(), starts, loc, attn


def float16(draw: Draw):
    """float16 is only how numbers are stored: coordinates and sums are computed in float32"""
    return sixteen_bits(draw, torch.float16)


def bfloat16(draw: Draw):
    """bfloat16 as well, and its locations are read as they are"""
    return sixteen_bits(draw, torch.bfloat16)


def sixteen_bits(draw: Draw, dtype: torch.dtype, loc: torch.dtype | None = None):
    """A wide level, where 16 bits do not hold a coordinate; large weights that cancel, so that a 16-bit sum shows."""
    value, shapes, starts, locations, _ = msda_call(draw, [(2, 131)], Q=7, K=4, D=6, dtype=dtype, loc=loc)
    w = draw.uniform(1, 7, 1, 1, 4, low=20.0, high=60.0, dtype=loc or dtype)
    locations[..., 1, :] = locations[..., 0, :]
    w[..., 1] = -w[..., 0]
    w[..., 2:] /= 64
    return value, shapes, starts, locations, w


def float32_locations(draw: Draw):
    """locations and weights may be float32 where value is float16"""
    return sixteen_bits(draw, torch.float16, torch.float32)


def far_batch(kernel, draw: Draw, **options) -> str:
    """A batch whose last item begins more than 2^31 elements after the first. Only the touched pages are really there."""
    B, S, D = 3, 2**28 + 3, 4
    try:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE
        memory = mmap.mmap(-1, 2 * B * S * D, flags=flags)
        value = torch.frombuffer(memory, dtype=torch.float16).reshape(B, S, 1, D)
    except (AttributeError, OSError, TypeError, ValueError, RuntimeError, MemoryError) as error:
        raise NotRun(f"needs 7 GB of address space, which is not to be had: {error}") from None
    pixel = draw.normal(D, dtype=torch.float16)
    value[-1, 0, 0] = pixel
    loc = torch.full((B, 1, 1, 1, 1, 2), 0.5)
    shapes, starts = torch.tensor([[1, 1]], dtype=torch.int32), torch.tensor([0], dtype=torch.int32)
    out = launch(kernel, value, shapes, starts, loc, torch.ones(B, 1, 1, 1, 1), 1, **options)
    truth = torch.zeros(B, 1, D, dtype=torch.float16)
    truth[-1, 0] = pixel
    wrong = compare.difference(out, truth.double(), truth, ["batch item", "query", "channel"])
    if wrong:
        key = ("far batch", *torch.nan_to_num(out[-1, 0]).tolist())
        raise Failed(f"{wrong} That batch item begins at element {(B - 1) * S * D:,}.", key)
    return f"element {(B - 1) * S * D:,} was read from the right place."


NOT_THERE = "The last program has lanes for queries that do not exist. What do they read or write?"
#: Slug → the name of a mistake that either kernel can have, and its hint.
TOLD = {
    "value_dtype": (
        "when the sum is kept in value's dtype",
        "Each addition in float16 rounds. Which dtype should the accumulator have?",
    ),
    "untested_weight": (
        "when the weight is not set to zero where the pixel does not exist",
        "0 times a number that is none is none. What must the weight of a pixel that does not exist be?",
    ),
    "x0_for_x1": ("when x0 is reused for x1", "Which column does the right corner have?"),
    "y0_for_y1": ("when y0 is reused for y1", "Which row does the lower corner have?"),
    "start_twice": (
        "when the level's start is added twice",
        "Your pixel numbers: do they count on the level, or over all levels? Only one of the two still needs the start.",
    ),
    "no_start": ("when the level's start is forgotten", "Level 1 begins after the pixels of level 0."),
    "half_coordinates": (
        "when coordinates are computed in half precision",
        "float16 has 11 bits. How many of them are left for the fraction of pixel 120? Where does the cast belong?",
    ),
    "rounded_coordinates": (
        "when coordinates are rounded to half precision",
        "float16 has 11 bits. How many of them are left for the fraction of pixel 120?",
    ),
    "y_x": ("when x and y are swapped", "A location is (x, y): x comes first in memory, and goes with W."),
    "w_h": ("when H and W are swapped", "spatial_shapes holds (H, W), rows first."),
    "w_for_both": ("when y is scaled by W as well", "A level has two sizes. Which of them does y go with?"),
    "no_half_pixel": (
        "when the half pixel is not subtracted",
        "Location 0 is the outer edge of the first pixel. Where is its centre?",
    ),
    "centre_to_centre": (
        "when pixels are scaled by W - 1 and H - 1",
        "Location 1 is the outer edge of the last pixel, not its centre.",
    ),
    "truncated": ("when coordinates are rounded towards zero", "Which pixel lies left of x = -0.3?"),
    "far_near": (
        "when the nearer pixel weighs less",
        "A point just right of pixel 3 is near to it. Should 3 weigh nearly 1, or nearly 0?",
    ),
    "h_pitch": ("when H is taken for W in the pixel's number", "How many pixels does a row have?"),
    "nearest": (
        "when the nearest pixel is read in place of one outside",
        "A pixel outside the level counts as zero: past the edge a point fades. Yours finds it as bright as ever.",
    ),
    "nan_is_0": (
        "when a coordinate that is not a number is taken for 0",
        "Pixel 0 exists, and nobody asked for it. What should such a point add?",
    ),
    "whole_point": (
        "when a point is dropped as soon as one of its four pixels does not exist",
        "The other three still count.",
    ),
    "early_integer": (
        "when a coordinate becomes an integer before it is tested",
        "On a GPU a NaN cast to an integer is 0, and pixel 0 exists.",
    ),
    "no_attention": ("when the attention weights are forgotten", "Each point counts by its weight."),
    "last_corner": (
        "when every corner replaces the sum so far",
        "Only the last corner is left. Is something set where it should be added to?",
    ),
    "mean": ("when the mean over the points is taken", "The weights weigh already. Nothing is divided."),
    "heads_first": (
        "when queries and heads are swapped in memory",
        "loc, attn and out are (B, Q, M, …): after the query comes the head.",
    ),
    "first_head": (
        "when every program reads the first head of value",
        "A pixel holds M heads, D channels each. Which are this program's?",
    ),
    "first_item": (
        "when every program reads the first batch item of value",
        "A batch item has S pixels. How many lie before this program's?",
    ),
    "rows_of_item_0": (
        "when locations, weights and results of batch item 0 are used for all",
        "A batch item has Q queries. How many lie before this program's?",
    ),
    "head_first_id": (
        "when batch and head are taken from the program id the wrong way round",
        "Program (i, j) has head j % M of batch item j // M.",
    ),
    "heads_apart": (
        "when the heads of a pixel are taken to be far apart",
        "value is (B, S, M, D): all heads of a pixel lie together.",
    ),
    "pixel_pitch_d": (
        "when the next pixel is taken to be D elements away",
        "Between two pixels lie all the heads of the first.",
    ),
    "block_d": (
        "when BLOCK_D is taken for D",
        "BLOCK_D is how many lanes you have. How far apart things lie in memory, D says.",
    ),
    "no_block_q": (
        "when the program id is not multiplied by BLOCK_Q",
        "Program 1 begins where program 0 ends. How many queries lie before it?",
    ),
    "full_blocks": (
        "when the last queries, which fill no block, are left out",
        "The queries after the last full block count as well.",
    ),
    "no_attention_mask": ("when the load of the weights has no mask", NOT_THERE),
    "no_channel_mask": (
        "when value is masked by pixel, but not by channel",
        "BLOCK_D can be more than D. What do the lanes past D read at the last pixel?",
    ),
    "no_other": (
        "when a masked lane of value is not given a number",
        "A masked lane holds whatever happens to be there, and 0 times that need not be 0. What does `other` do?",
    ),
    "no_store_mask": ("when the store has no mask", NOT_THERE),
    "store_any_query": ("when the store masks no queries", NOT_THERE),
    "store_any_channel": (
        "when the store masks no channels",
        "After channel D - 1 of a head comes channel 0 of the next.",
    ),
    "narrow_batch": (
        "when the batch item's place in memory is computed in 32 bits",
        "b times S times M times D: which of these must be wider before they are multiplied?",
    ),
}


def told(**kernels: Any) -> list[Mistake]:
    """The mistakes of `TOLD` for one lab, in their order.

    Args:
        kernels: slug → the wrong kernel.

    Raises:
        ValueError: a kernel is missing, or one has no name here.
    """
    if kernels.keys() != TOLD.keys():
        raise ValueError(f"missing or not known: {', '.join(sorted(kernels.keys() ^ TOLD.keys()))}.")
    only = {"narrow_batch": "far_batch"}
    return [Mistake(name, kernels[slug], hint, only.get(slug, "")) for slug, (name, hint) in TOLD.items()]

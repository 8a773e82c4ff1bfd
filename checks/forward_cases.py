"""Calls of the operator that tell a right forward kernel from a wrong one: labs 5 and 6 are graded on the same.

Each case draws the arguments of one call, for programs that own `BLOCK_Q` queries of one head of one batch item.
"""

import mmap

import torch
from torch import Tensor

from checks import compare
from checks.exercise import Draw, Failed, NotRun

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
    return msda_call(draw, SHAPES, K=4, D=32)


def each_batch_item_and_head(draw: Draw):
    """each program works on its own batch item and head"""
    return msda_call(draw, [(3, 5)], B=3, M=2)


def ragged_queries(draw: Draw):
    """Q need not be a multiple of BLOCK_Q"""
    return msda_call(draw, [(3, 5)], Q=2 * BLOCK_Q + draw.integer(1, 5), K=3)


def thirty_three_channels(draw: Draw):
    """D need not be a power of two: BLOCK_D is then more than D"""
    args = msda_call(draw, [(3, 4)], Q=5, M=2, K=3, D=33)
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

"""Lab 08, Concurrent writes: its exercises, and the mistakes they are there to find.

A mistake is told as an edit of the solution. Sixteen-bit sums are checked on numbers whose sums are exact in any order:
what is compared is then the kernel, not the order in which its programs happened to run.
"""

import torch
from torch import Tensor

from checks.core.call import quote
from checks.core.exercise import Draw, Failed, Mistake, NotRun, Property, exercise
from checks.kernel.launches import edited
from msda_core import reference
from solutions import lab08 as solution

LIMIT = 15.0  # seconds one call may take: a loop without an end, not a slow interpreter
BLOCK = 16
ORDERS = 4  # in which the programs are interleaved, beside one after the other


def _blocks(n: int) -> int:
    return -(-n // BLOCK)


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _safe(kernel, grid, *args, **constants) -> str:
    """Run a kernel with its accesses recorded; nothing that one program stores may be touched by another.

    Atomics do not race, but two of them with a gap in between (read, then exchange) lose updates all the same: so the
    programs are interleaved as well, and must come to what they come to one after the other.

    Raises:
        Failed: two programs, or two lanes of one store, meet at one element; or the result depends on the order.
    """
    from msda_core import machine

    fresh = lambda: [arg.clone() if isinstance(arg, Tensor) else arg for arg in args]  # noqa: E731
    one_by_one, names = fresh(), kernel.arg_names
    trace = machine.trace(kernel, grid, *one_by_one, **constants)
    for race in machine.races(trace):
        what = f"{_place(race.store)} stores to element {race.element} of {race.tensor}"
        key = ("race", race.tensor, race.other.kind, race.within)
        if race.within:
            raise Failed(f"{what} from two lanes of program {race.programs[0][0]} at once: one of them is lost.", key)
        doing = {"load": "reads", "store": "stores to", "atomic": "adds to"}[race.other.kind]
        raise Failed(
            f"{what} in program {race.programs[0][0]}; {_place(race.other)} {doing} the same element in program "
            f"{race.programs[1][0]}. On a GPU the two run in any order, or at once.",
            key,
        )
    for order in range(ORDERS):
        mixed = fresh()
        machine.interleave(kernel, grid, mixed, seed=order, **constants)
        for name, yours, expected in zip(names, mixed, one_by_one):
            if not isinstance(yours, Tensor) or torch.allclose(yours, expected, 1e-3, 1e-3, equal_nan=True):
                continue
            at = int((yours - expected).nan_to_num(torch.inf).abs().argmax())
            raise Failed(
                f"when the programs take turns at every access (order {order}), element {at} of {name} becomes "
                f"{yours.flatten()[at].item():.4g}; when they run one after the other, {expected.flatten()[at].item():.4g}. "
                "Somebody read it, somebody else changed it, and then the first one wrote.",
                key=("order", name),
            )
    return f"{trace.programs} programs, and nothing that one of them stores is touched by another, in any order tried."


def _place(site) -> str:
    frame = site.frames[-1]
    return quote(frame.filename, frame.lineno)


# --- histogram_kernel -----------------------------------------------------------------------------------------------


def _histogram(kernel, index: Tensor, hist: Tensor) -> Tensor:
    out, N = hist.clone(), index.numel()
    kernel[(_blocks(N),)](index, out, N, BLOCK=BLOCK)
    return out


def _counted(index: Tensor, hist: Tensor) -> Tensor:
    return hist + torch.bincount(index.long(), minlength=hist.numel()).to(hist.dtype)


def _bins(draw: Draw, count: int) -> Tensor:
    return draw.integers(count, low=1, high=9, dtype=torch.int32)


def one_of_each(draw: Draw):
    """a block of different indices adds one to each of their counts"""
    return draw.permutation(BLOCK + 3)[:BLOCK].int(), _bins(draw, BLOCK + 3)


def the_same_index_again(draw: Draw):
    """lanes of one block that hold the same index are all counted"""
    return draw.integers(BLOCK, low=2, high=4, dtype=torch.int32), _bins(draw, 7)


def several_blocks(draw: Draw):
    """every program counts its own block"""
    return draw.integers(BLOCK * draw.integer(3, 5), low=0, high=6, dtype=torch.int32), _bins(draw, 7)


def ragged_block(draw: Draw):
    """lanes past N count nothing, not even index 0"""
    N = BLOCK * draw.integer(1, 2) + draw.integer(2, 13)
    return draw.integers(N, low=0, high=4, dtype=torch.int32), _bins(draw, 5)


def _histogram_is_safe(kernel, draw: Draw) -> str:
    index = torch.cat([draw.permutation(BLOCK) for _ in range(3)]).int()  # no duplicates inside a block
    return _safe(kernel, (3,), index, torch.zeros(BLOCK, dtype=torch.int32), index.numel(), BLOCK=BLOCK)


def _wrong_histogram(*changes: tuple[str, str]):
    return edited(solution.histogram_kernel, *changes)


COUNT = 'tl.atomic_add(hist_ptr + index, 1, mask=mask, sem="relaxed")'
NO_RACE = "whatever the order in which programs run, no update is lost"

exercise(
    "08.histogram_kernel",
    reference=_counted,
    cases=[one_of_each, the_same_index_again, several_blocks, ragged_block],
    properties=[Property("no_race", NO_RACE, _histogram_is_safe)],
    invoke=_histogram,
    guarded=True,
    limit=LIMIT,
    axes=["bin"],
    mistakes=[
        Mistake(
            "when every lane reads its count, adds one and writes it back",
            edited(solution.racy_histogram),
            "Between the read and the write somebody else may have read the same count. What is there that reads, adds "
            "and writes in one step?",
        ),
        Mistake(
            "when a block counts its own indices, but reads and writes the counts in two steps",
            _wrong_histogram(
                (
                    COUNT,
                    "same = (index[:, None] == index[None, :]) & mask[None, :]\n"
                    "    count = tl.load(hist_ptr + index, mask=mask, other=0) + tl.sum(same.to(tl.int32), axis=1)\n"
                    "    tl.store(hist_ptr + index, count, mask=mask)",
                )
            ),
            "Inside a block nothing is lost any more. Another program reads and writes the same counts at the same time.",
        ),
        Mistake(
            "when a block counts its own indices, then reads the counts and exchanges them for the new ones",
            _wrong_histogram(
                (
                    COUNT,
                    "same = (index[:, None] == index[None, :]) & mask[None, :]\n"
                    "    count = tl.load(hist_ptr + index, mask=mask, other=0) + tl.sum(same.to(tl.int32), axis=1)\n"
                    "    tl.atomic_xchg(hist_ptr + index, count, mask=mask)",
                )
            ),
            "The exchange is one step, but the read before it is another. Which atomic reads, adds and writes at once?",
        ),
        Mistake(
            "when what was read is added on top of what is there",
            _wrong_histogram(
                (
                    COUNT,
                    "count = tl.load(hist_ptr + index, mask=mask, other=0)\n"
                    "    tl.atomic_add(hist_ptr + index, count + 1, mask=mask)",
                )
            ),
            "The atomic reads for itself. It wants to know only how much to add.",
        ),
        Mistake(
            "when index 0 is taken for a lane without an index",
            _wrong_histogram(("1, mask=mask,", "1, mask=mask & (index > 0),")),
            "0 is an index like the others. Which lanes have none, the mask knows.",
        ),
        Mistake(
            "when one is stored instead of added",
            _wrong_histogram((COUNT, "tl.store(hist_ptr + index, 1, mask=mask)")),
            "What was counted before is gone. Which operation leaves it there and adds to it?",
        ),
        Mistake(
            "when lanes past N are counted too",
            _wrong_histogram(("1, mask=mask,", "1,")),
            "A lane without an index still holds one, the `other` of its load. Does it take part in the addition?",
        ),
        Mistake(
            "when the load of the indices has no mask",
            _wrong_histogram(("tl.load(index_ptr + offs, mask=mask, other=0)", "tl.load(index_ptr + offs)")),
            "The last program has lanes for indices that do not exist.",
        ),
        Mistake(
            "when the mask lets one lane too many through",
            _wrong_histogram(("offs < N", "offs <= N")),
            "The last index has number N - 1.",
        ),
        Mistake(
            "when every program counts the first block",
            _wrong_histogram(("tl.program_id(0) * BLOCK", "0 * BLOCK")),
            "All programs run the same code. What differs between them?",
        ),
        Mistake(
            "when the program id is not multiplied by BLOCK",
            _wrong_histogram(("tl.program_id(0) * BLOCK", "tl.program_id(0)")),
            "Program 1 begins where program 0 ends.",
        ),
        Mistake(
            "when the last block, which is not full, is left out",
            _wrong_histogram(("offs < N", "offs < N // BLOCK * BLOCK")),
            "The indices after the last full block count as well.",
        ),
        Mistake(
            "when the index itself is added",
            _wrong_histogram(("hist_ptr + index, 1,", "hist_ptr + index, index,")),
            "Where to add is the index. How much to add is one.",
        ),
        Mistake(
            "when the lane's own number is counted instead of its index",
            _wrong_histogram(("hist_ptr + index, 1,", "hist_ptr + offs % 5, 1,")),
            "The place to add to is what was loaded.",
        ),
    ],
    hints=[
        "Two lanes hold the same index. Both read 4, both add one, both write 5. What should it be, and which step would "
        "have to be undivided?",
        "Load the indices as any block. Then leave reading, adding and writing to the memory system: one operation, for "
        "every lane that has an index.",
        "`tl.atomic_add(addresses, what, mask=…)` with a block of addresses: `hist_ptr` plus the indices. The mask of the "
        "load is also the mask of the addition.",
    ],
)


# --- merge_then_add_kernel ------------------------------------------------------------------------------------------


def _scatter(kernel, index: Tensor, weight: Tensor, out: Tensor) -> Tensor:
    out, N = out.clone(), index.numel()
    kernel[(_blocks(N),)](index, weight, out, N, BLOCK=BLOCK)
    return out


def _scattered(index: Tensor, weight: Tensor, out: Tensor) -> Tensor:
    return out.index_add(0, index.long(), weight)


def _pairs(draw: Draw, index: Tensor, size: int):
    return index.int(), draw.uniform(index.numel(), low=0.2, high=1.0), draw.uniform(size, low=1.0, high=2.0)


def different_places(draw: Draw):
    """each weight is added at its own place"""
    return _pairs(draw, draw.permutation(BLOCK + 4)[:BLOCK], BLOCK + 4)


def all_at_one_place(draw: Draw):
    """where all lanes meet at one place, the sum of their weights is added"""
    return _pairs(draw, torch.full((BLOCK,), draw.integer(1, 5)), 7)


def some_places_again(draw: Draw):
    """lanes that meet need not be neighbours, and the block need not be sorted"""
    return _pairs(draw, torch.cat([draw.permutation(8), draw.permutation(8)]), 8)


def several_blocks_of_pairs(draw: Draw):
    """every program adds its own block, also to places that another adds to"""
    return _pairs(draw, draw.integers(BLOCK * draw.integer(3, 4), low=0, high=5), 6)


def ragged_pairs(draw: Draw):
    """lanes past N add nothing anywhere"""
    N = BLOCK * draw.integer(1, 2) + draw.integer(2, 13)
    return _pairs(draw, draw.integers(N, low=0, high=5), 6)


def weights_below_zero(draw: Draw):
    """a weight may be below zero"""
    index, weight, out = ragged_pairs(draw)
    return index, -weight, -out  # all of one sign: nothing cancels


def _merged(kernel, draw: Draw) -> str:
    """How many lanes take part in atomics, against how many different places each block has."""
    from msda_core import machine

    index, weight, out = _pairs(draw, draw.integers(2 * BLOCK + 5, low=1, high=6), 8)
    trace = machine.trace(kernel, (3,), index, weight, out, index.numel(), BLOCK=BLOCK)
    lanes = sum(int(event.mask.sum()) for event in trace.where("atomic"))
    places = sum(block.unique().numel() for block in index.split(BLOCK))
    if lanes > places:
        raise Failed(
            f"{lanes} additions for {index.numel()} pairs, where {places} would do: the three blocks have {places} "
            "different places between them.",
            key=("merged", lanes),
        )
    return f"{lanes} additions for {index.numel()} pairs."


def _merge_is_safe(kernel, draw: Draw) -> str:
    index = torch.cat([draw.permutation(BLOCK) for _ in range(3)])
    index, weight, out = _pairs(draw, index, BLOCK)
    return _safe(kernel, (3,), index, weight, out, index.numel(), BLOCK=BLOCK)


def _wrong_merge(*changes: tuple[str, str]):
    return edited(solution.merge_then_add_kernel, *changes)


ADD = 'tl.atomic_add(out_ptr + index, total, mask=mask & (first == lane), sem="relaxed")'
ONE_SPEAKS = "The total is known to every lane that shares a place. How many of them should add it?"

exercise(
    "08.merge_then_add_kernel",
    reference=_scattered,
    cases=[
        different_places,
        all_at_one_place,
        some_places_again,
        several_blocks_of_pairs,
        ragged_pairs,
        weights_below_zero,
    ],
    properties=[
        Property("merged", "a program adds to each place once, however many of its lanes meet there", _merged),
        Property("no_race", NO_RACE, _merge_is_safe),
    ],
    invoke=_scatter,
    guarded=True,
    limit=LIMIT,
    axes=["place"],
    mistakes=[
        Mistake(
            "when every lane adds its own weight",
            _wrong_merge((ADD, "tl.atomic_add(out_ptr + index, weight, mask=mask)")),
            "The result is right, and lanes that share a place queue up there. Add them up before they leave the program.",
        ),
        Mistake(
            "when the merged total is read, added to and written back",
            _wrong_merge(
                (
                    ADD,
                    "mask = mask & (first == lane)\n"
                    "    total += tl.load(out_ptr + index, mask=mask, other=0.0)\n"
                    "    tl.store(out_ptr + index, total, mask=mask)",
                )
            ),
            "Inside the block nobody meets any more. Other programs still do.",
        ),
        Mistake(
            "when the merged total is added to what was read, and exchanged for it",
            _wrong_merge(
                (
                    ADD,
                    "mask = mask & (first == lane)\n"
                    "    total += tl.load(out_ptr + index, mask=mask, other=0.0)\n"
                    "    tl.atomic_xchg(out_ptr + index, total, mask=mask)",
                )
            ),
            "The exchange is one step, but the read before it is another. Which atomic reads, adds and writes at once?",
        ),
        Mistake(
            "when each row of the square sums its own lane's weight, not those of the others",
            _wrong_merge(("weight[None, :]", "weight[:, None]")),
            "Row n of the square is lane n, and its columns are all lanes. Along which axis must the weights lie, and "
            "along which are they summed?",
        ),
        Mistake(
            "when only the group of the first lane adds",
            _wrong_merge(("first == lane", "first == 0")),
            "In each group the first of that group speaks: lane n, if n is the first in its own row.",
        ),
        Mistake(
            "when the lanes past N speak for a group of their own",
            _wrong_merge(("mask=mask & (first == lane)", "mask=first == lane")),
            "They hold no pair, so they add nothing, however they are grouped.",
        ),
        Mistake(
            "when only what is above zero is added",
            _wrong_merge(("mask=mask & (first == lane)", "mask=(first == lane) & (total > 0)")),
            "A weight may be below zero. Which lanes have a pair, the mask knows.",
        ),
        Mistake(
            "when the merged total is stored",
            _wrong_merge((ADD, "tl.store(out_ptr + index, total, mask=mask & (first == lane))")),
            "Other programs, and whoever came before, have put something there already.",
        ),
        Mistake("when every lane adds the total", _wrong_merge((" & (first == lane)", "")), ONE_SPEAKS),
        Mistake(
            "when one lane of each place adds, but only its own weight",
            _wrong_merge(("out_ptr + index, total", "out_ptr + index, weight")),
            "One lane speaks for all that share its place. What does it have to say?",
        ),
        Mistake(
            "when only neighbouring lanes are merged",
            _wrong_merge(
                ("axis=1)\n    tl.atomic", "axis=1)  # noqa\n    tl.atomic"),
                (
                    "same = index[:, None] == index[None, :]",
                    "near = (lane[:, None] // 2) == (lane[None, :] // 2)\n    same = (index[:, None] == index[None, :]) & near",
                ),
            ),
            "The indices are not sorted: lanes that share a place may be far apart.",
        ),
        Mistake(
            "when lanes are counted instead of their weights added",
            _wrong_merge(("tl.where(same, weight[None, :], 0.0)", "tl.where(same, 1.0, 0.0)")),
            "Each lane brings a weight.",
        ),
        Mistake(
            "when lanes past N add as well",
            _wrong_merge(
                ("other=-1", "other=0"), ("mask=mask, other=0.0", "mask=mask, other=1.0"), ("mask=mask & (", "mask=(")
            ),
            "A lane without a pair still holds the `other` of its loads. Give it a weight and an index that do no harm, "
            "and leave it out of the addition.",
        ),
        Mistake(
            "when lanes past N read their index",
            _wrong_merge(("tl.load(index_ptr + offs, mask=mask, other=-1)", "tl.load(index_ptr + offs)")),
            "The last program has lanes for pairs that do not exist.",
        ),
        Mistake(
            "when the whole block is added at the first lane's place",
            _wrong_merge(
                ("same = index[:, None] == index[None, :]", "same = index[:, None] >= -9 + 0 * index[None, :]")
            ),
            "A lane belongs to those that hold the same index. Compare every lane with every other.",
        ),
        Mistake(
            "when the program id is not multiplied by BLOCK",
            _wrong_merge(("tl.program_id(0) * BLOCK", "tl.program_id(0)")),
            "Program 1 begins where program 0 ends.",
        ),
    ],
    hints=[
        "Five lanes of your block share a place. Which of them should add there, how does it know that it is the one, and "
        "how does it know the sum of all five?",
        "Compare every lane with every other: a square of true and false. Each row of it tells a lane who shares its "
        "place, so a sum along the row is the total, and the first true in the row is the one that speaks.",
        "`index[:, None] == index[None, :]` is the square. `tl.sum(tl.where(square, weight[None, :], 0.0), axis=1)` is "
        "each lane's total, `tl.min(tl.where(square, lane[None, :], BLOCK), axis=1)` the first of its group. Mask the "
        "addition with `first == lane`.",
    ],
)


# --- msda_bwd_kernel ------------------------------------------------------------------------------------------------


def _starts(shapes: Tensor, gap: int = 0) -> Tensor:
    """Where each level begins, with `gap` unused pixels before each."""
    sizes = shapes.prod(1) + gap
    return sizes.cumsum(0) - sizes + gap


def _call(draw: Draw, shapes, B=1, Q=1, M=1, D=4, K=1, gap=0, low=-0.1, high=1.1):
    """grad_out, value, shapes, starts, locations, weights of one call: no two locations agree, some are outside."""
    shapes = torch.tensor(shapes)
    S, L = int((shapes.prod(1) + gap).sum()) + gap, len(shapes)
    return (
        draw.normal(B, Q, M * D),
        draw.normal(B, S, M, D),
        shapes,
        _starts(shapes, gap),
        draw.uniform(B, Q, M, L, K, 2, low=low, high=high),
        draw.uniform(B, Q, M, L, K, low=0.3, high=1.0),
    )


def _in_pixels(x: Tensor, shapes: Tensor) -> Tensor:
    """Locations (…, L, K, 2) of points whose coordinates are given in pixels."""
    return (x + 0.5) / shapes.flip(-1)[:, None]


def _gradients(grad_out, value, spatial_shapes, level_start_index, sampling_locations, attention_weights):
    likes = (value, sampling_locations, attention_weights)
    grads = reference.exact_gradients(
        value, spatial_shapes, level_start_index, sampling_locations, attention_weights, grad_out
    )
    return tuple(grad.to(like.dtype) for grad, like in zip(grads, likes))


def _arguments(grad_out, value, spatial_shapes, level_start_index, sampling_locations, attention_weights):
    """What a launch of the kernel is made of: (grid, its arguments, the three gradients, its constants)."""
    B, S, M, D = value.shape
    _, Q, _, L, K, _ = sampling_locations.shape
    grads = (
        value.new_zeros(value.shape),
        sampling_locations.new_empty(sampling_locations.shape),
        attention_weights.new_empty(attention_weights.shape),
    )
    inputs = (grad_out, value, spatial_shapes, level_start_index, sampling_locations, attention_weights)
    constants = dict(M=M, D=D, L=L, K=K, BLOCK_P=_power_of_two(L * K), BLOCK_D=_power_of_two(D), num_warps=2)
    return (B * Q * M,), (*inputs, *grads, Q, S), grads, constants


def _backward(kernel, *inputs) -> tuple[Tensor, Tensor, Tensor]:
    grid, args, grads, constants = _arguments(*inputs)
    kernel[grid](*args, **constants)
    return grads


def one_point(draw: Draw):
    """one point inside: its four pixels get their shares, and it gets the slope of the image"""
    _, _, shapes, starts, _, attention = _call(draw, [(3, 6)])
    grad_out, noise = draw.uniform(1, 1, 4, low=0.5, high=1.5), draw.uniform(3, 6, 4, high=0.3)
    slopes = torch.arange(3.0)[:, None] * 0.8 + torch.arange(6.0) * 0.5  # one number alone must not be nearly zero
    value = (1 + slopes[..., None] + noise).reshape(1, 18, 1, 4)
    point = torch.tensor([draw.number(2.1, 3.9), draw.number(0.1, 0.9)])
    return grad_out, value, shapes, starts, _in_pixels(point.expand(1, 1, 1, 1, 1, 2), shapes), attention


def across_the_border(draw: Draw):
    """a pixel that does not exist gets nothing, and gives nothing"""
    H, W = 3, 5
    grad_out, value, shapes, starts, _, attention = _call(draw, [(H, W)], M=1, D=3, K=9)
    t = draw.number(0.2, 0.8)
    points = [(-t, 1 + t), (W - t, t), (1 + t, -t), (2 + t, H - t), (-t, -t), (W - t, H - t), (-3 + t, 1), (W + t, 2)]
    points = torch.tensor([*points, (1 + t, H + 2.5)])
    return grad_out, value, shapes, starts, _in_pixels(points, shapes)[None, None, None], attention


def points_that_collide(draw: Draw):
    """any number of points, of one program or of several, may share a pixel: it gets all their shares"""
    grad_out, value, shapes, starts, locations, attention = _call(draw, [(3, 5)], Q=2, D=2, K=4)
    points = torch.tensor([2.0, 1.0]) + draw.uniform(*locations.shape, low=0.1, high=0.9)
    return grad_out, value, shapes, starts, _in_pixels(points, shapes), attention


def three_levels(draw: Draw):
    """each level has its own size and its own place, also with unused pixels in between"""
    return _call(draw, [(2, 5), (4, 3), (1, 2)], Q=2, D=1, K=3, gap=2)


def heads_and_images(draw: Draw):
    """each head of each image has its own pixels; channels need not be a power of two"""
    return _call(draw, [(3, 4)], B=2, M=2, D=5)


def on_a_pixel(draw: Draw):
    """exactly on a pixel there are two slopes: the one to the right and below is meant"""
    grad_out, value, shapes, starts, _, attention = _call(draw, [(4, 8)], K=3)
    points = torch.tensor([[3.0, 1.25], [5.5, 2.0], [1.0, 0.0]]) + torch.tensor([draw.integer(0, 1), 0])
    return grad_out, value, shapes, starts, _in_pixels(points, shapes)[None, None, None], attention


def one_pixel_outside(draw: Draw):
    """exactly a pixel before the first the sample begins to rise: there too, the slope is the one to the right, or below"""
    grad_out, value, shapes, starts, _, attention = _call(draw, [(4, 8)], K=4)
    t = draw.integer(0, 2) + draw.number(0.2, 0.8)
    points = torch.tensor([[-1.0, t], [t, -1.0], [8.0, t], [t, 4.0]])
    return grad_out, value, shapes, starts, _in_pixels(points, shapes)[None, None, None], attention


def not_a_number(draw: Draw):
    """a location that is infinite or not a number touches nothing, and its gradients are zero"""
    grad_out, value, shapes, starts, locations, attention = _call(draw, [(3, 4)], K=8, low=0.2, high=0.8)
    for k, bad in enumerate((float("nan"), float("inf"), -float("inf"), 3e30)):
        locations[0, 0, 0, 0, k, draw.integer(0, 1)] = bad
    return grad_out, value, shapes, starts, locations, attention


def in_float16(draw: Draw):
    """sixteen-bit numbers are computed with in float32 and rounded once"""
    grad_out, value, shapes, starts, locations, attention = _call(draw, [(2, 9)], D=40, K=3)
    points = torch.tensor([[0.0, 0.0], [3.0, 0.0], [6.0, 0.0]]) + draw.uniform(*locations.shape, low=0.1, high=0.9)
    value = 40 + 50 * value  # slopes are small differences of large sums, but not of ones that float32 loses
    return grad_out.half(), value.half(), shapes, starts, _in_pixels(points, shapes), attention


def in_bfloat16(draw: Draw):
    """in bfloat16 too, with points that collide"""
    B, Q, M, D, K = 1, 2, 1, 8, 4
    shapes = torch.tensor([(4, 8)])
    halves = lambda *shape: draw.integers(*shape, low=-4, high=4) / 2  # noqa: E731
    points = torch.tensor([3.0, 1.0]) + draw.integers(B, Q, M, 1, K, 2, low=1, high=3) / 4
    inputs = (halves(B, Q, M * D), halves(B, 32, M, D), _in_pixels(points, shapes), torch.full((B, Q, M, 1, K), 0.5))
    grad_out, value, locations, attention = (t.bfloat16() for t in inputs)
    return grad_out, value, shapes, _starts(shapes), locations, attention


def _wide(draw: Draw):
    """A call as models make it, cut down to two programs that collide."""
    return _call(draw, [(6, 11), (3, 6), (2, 3), (1, 2)], Q=2, D=32, K=4, low=0.1, high=0.9)


def _far_images(kernel, draw: Draw) -> str:
    """Two images, the second more than 2^31 elements after the first. Only the touched pages are really there."""
    D, pixels = 4, 15
    S = 2**31 // D + 7  # pixels of an image: 15 that are used, and then none for a long way
    grad_out, near, shapes, starts, locations, attention = _call(draw, [(3, 5)], B=2, D=D, K=2, low=0.2, high=0.8)
    near = near.half()
    layout = (2, pixels, 1, D), (S * D, D, D, 1)
    try:
        storages = [torch.UntypedStorage(2 * (S + pixels) * D) for _ in range(2)]
    except (RuntimeError, MemoryError) as error:
        raise NotRun(f"needs 9 GiB of address space, which are not to be had: {error}") from None
    value, grad_value = (torch.empty(0, dtype=torch.float16).set_(storage, 0, *layout) for storage in storages)
    value.copy_(near)
    grad_value.zero_()
    inputs = (grad_out, near, shapes.int(), starts.int(), locations, attention)
    grid, args, grads, constants = _arguments(*inputs)
    flat = ((S + pixels) * D,), (1,)  # what the kernel takes it for
    args = (grad_out, value.as_strided(*flat), *args[2:6], grad_value.as_strided(*flat), *args[7:9], 1, S)
    kernel[grid](*args, **constants)
    far = (grad_value, *grads[1:])
    for name, one, other in zip(GRADIENTS, far, _backward(kernel, *inputs)):
        if not torch.equal(one.nan_to_num(), other.nan_to_num()):
            raise Failed(f"{name} is not what it is when the same two images lie side by side.", key=("far", name))
    return f"image 1 begins at element {S * D:,}."


def _bwd_is_safe(kernel, draw: Draw) -> str:
    grid, args, _, constants = _arguments(*points_that_collide(draw))
    return _safe(kernel, grid, *args, **constants)


def _relaxed(kernel, draw: Draw) -> str:
    """What the additions compile to: asked of the compiler, for a Hopper GPU."""
    from msda_core import machine

    _, args, _, constants = _arguments(*_wide(draw))
    try:
        found = machine.lower(kernel, *args, target="sm_90", **constants).instructions
    except machine.NoCompiler as error:
        raise NotRun(str(error)) from None
    atomics = list(dict.fromkeys(i.mnemonic for i in found if i.kind == "atomic"))
    for mnemonic in atomics:
        if ".relaxed." not in mnemonic:
            raise Failed(
                f"on a Hopper GPU it becomes `{mnemonic}`. In machine code that is a wait for all earlier "
                "writes before it, and an emptied L1 cache after it. Nobody needs either: grad_value is read when the kernel "
                "has ended.",
                key=("not relaxed", mnemonic),
            )
    return "It becomes " + ", ".join(f"`{m}`" for m in atomics) + "." if atomics else "There is none."


def _coalesced(kernel, draw: Draw) -> str:
    """Sectors of the plain stores, counted by the machine; and that nothing else is an atomic than grad_value."""
    from msda_core import machine

    grid, args, _, constants = _arguments(*_wide(draw))
    try:
        report = machine.profile(kernel, grid, *args, target="sm_90", **constants)
    except machine.NoCompiler as error:
        raise NotRun(str(error)) from None
    for event in report.trace.where("atomic"):
        if event.tensor != "grad_value_ptr":
            raise Failed(
                f"{_place(event.site)} adds to {event.tensor}, whose elements belong to one program "
                "each: a store is enough, and costs less.",
                key=("atomic", event.tensor),
            )
    stores = report.stores
    if stores.sectors > 2 * stores.unique_sectors:
        raise Failed(
            f"the stores touch {stores.sectors} sectors of 32 bytes in {stores.requests} requests, to fill "
            f"{stores.unique_sectors}. At most {2 * stores.unique_sectors} are allowed.",
            key=("stores", stores.sectors, stores.unique_sectors),
        )
    return f"{stores.sectors} sectors are touched to fill {stores.unique_sectors}."


def _wrong_bwd(*changes: tuple[str, str], kernel=solution.msda_bwd_kernel):
    return edited(kernel, *changes)


SHARE = 'tl.atomic_add(grad_value_ptr + offs, share, mask=mask, sem="relaxed")'
STORE_A = "tl.store(grad_attn_ptr + point, grad_a.to(grad_attn_ptr.dtype.element_ty), mask=mask_p)"
STORE_X = "tl.store(grad_loc_ptr + 2 * point, (a * W * grad_x).to(grad_loc_ptr.dtype.element_ty), mask=mask_p)"
STORE_Y = "tl.store(grad_loc_ptr + 2 * point + 1, (a * H * grad_y).to(grad_loc_ptr.dtype.element_ty), mask=mask_p)"
VALUE = "tl.load(value_ptr + offs, mask=mask, other=0.0)"
NEAR = "(x >= -1) & (x < W) & (y >= -1) & (y < H)"
INSIDE = "inside = mask_p & (xi >= 0) & (xi < W) & (yj >= 0) & (yj < H)"


def _atomic(store: str) -> tuple[str, str]:
    return store, store.replace("tl.store", "tl.atomic_add").replace("mask_p)", 'mask_p, sem="relaxed")')


def _one_by_one(*stores: str) -> list[tuple[str, str]]:
    return [
        (store, f"for p in range(L * K):\n        {store.replace('mask=mask_p', 'mask=offs_p == p')}")
        for store in stores
    ]


BWD_MISTAKES = [
    Mistake(
        "when the additions are ordered, as they are unless one says otherwise",
        _wrong_bwd((', sem="relaxed"', "")),
        "Nobody reads grad_value before the kernel has ended. How much of an order do the additions need? Look for `sem`.",
    ),
    Mistake(
        "when each gradient is stored by an instruction of its own",
        _wrong_bwd(*_one_by_one(STORE_A, STORE_X, STORE_Y)),
        "The points of a row lie side by side in memory. Compute a block of them, then store the block.",
    ),
    Mistake(
        "when the shares are stored instead of added",
        _wrong_bwd((SHARE, SHARE.replace("tl.atomic_add", "tl.store").replace(', sem="relaxed"', ""))),
        "Another point may have put its share into the same pixel. What must happen to it?",
    ),
    Mistake(
        "when grad_value is read, added to and written back",
        _wrong_bwd(
            (
                SHARE,
                "old = tl.load(grad_value_ptr + offs, mask=mask, other=0.0).to(tl.float32)\n"
                "            tl.store(grad_value_ptr + offs, (old + share).to(grad_value_ptr.dtype.element_ty), mask=mask)",
            )
        ),
        "It is the racy histogram again: between the read and the write, another point's share is lost.",
    ),
    Mistake(
        "when grad_attn is added to as well, where a store would do",
        _wrong_bwd(_atomic(STORE_A)),
        "How many programs have something to say about one element of grad_attn? And what is in it before they speak?",
    ),
    Mistake(
        "when grad_loc is added to as well, where a store would do",
        _wrong_bwd(_atomic(STORE_X), _atomic(STORE_Y)),
        "How many programs have something to say about one element of grad_loc? And what is in it before they speak?",
    ),
    Mistake(
        "when shares are added without a mask",
        _wrong_bwd((SHARE, SHARE.replace("mask=mask, ", ""))),
        "A pixel outside does not exist, and a lane past D is the next head's channel.",
    ),
    Mistake(
        "when value is read without a mask",
        _wrong_bwd((VALUE, "tl.load(value_ptr + offs)")),
        "A pixel outside does not exist.",
    ),
    Mistake(
        "when points left and right of the image are not masked",
        _wrong_bwd((INSIDE, INSIDE.replace(" & (xi >= 0) & (xi < W)", ""))),
        "Left of the first pixel of a row lies, in memory, the last pixel of the row above.",
    ),
    Mistake(
        "when points above and below the image are not masked",
        _wrong_bwd((INSIDE, INSIDE.replace(" & (yj >= 0) & (yj < H)", ""))),
        "Above the first row lies, in memory, another level, or another image, or nothing at all.",
    ),
    Mistake(
        "when points that are partly outside are left out",
        _wrong_bwd((INSIDE, "inside = mask_p & (x >= 0) & (x < W - 1) & (y >= 0) & (y < H - 1)")),
        "Ask it of each of the four pixels, not of the point.",
    ),
    Mistake(
        "when the gradients of points outside are not written",
        _wrong_bwd(*[(s, s.replace("mask=mask_p", "mask=mask_p & near")) for s in (STORE_A, STORE_X, STORE_Y)]),
        "Their gradients are zero, and a zero has to be written too: nobody has cleared the memory.",
    ),
    Mistake(
        "when x and y of grad_loc are swapped",
        _wrong_bwd(
            ("grad_loc_ptr + 2 * point + 1", "grad_loc_ptr + 2 * point + ?"),
            ("grad_loc_ptr + 2 * point,", "grad_loc_ptr + 2 * point + 1,"),
            ("grad_loc_ptr + 2 * point + ?", "grad_loc_ptr + 2 * point"),
        ),
        "The last axis of the locations is (x, y), and so is that of their gradients.",
    ),
    Mistake(
        "when the slopes along x and y change places, but not the sizes",
        _wrong_bwd(("(a * W * grad_x)", "(a * W * grad_y)"), ("(a * H * grad_y)", "(a * H * grad_x)")),
        "W pixels lie along x, and so does the slope that W belongs to.",
    ),
    Mistake(
        "when the size of the level is left out of grad_loc",
        _wrong_bwd(("(a * W * grad_x)", "(a * grad_x)"), ("(a * H * grad_y)", "(a * grad_y)")),
        "The slope is per pixel. How many pixels does a location move when it moves by one?",
    ),
    Mistake(
        "when H and W are swapped in grad_loc",
        _wrong_bwd(("(a * W * grad_x)", "(a * H * grad_x)"), ("(a * H * grad_y)", "(a * W * grad_y)")),
        "A step of x crosses the width.",
    ),
    Mistake(
        "when grad_loc leaves out the attention weight",
        _wrong_bwd(("(a * W * grad_x)", "(W * grad_x)"), ("(a * H * grad_y)", "(H * grad_y)")),
        "A point that hardly counts can hardly change the result by moving.",
    ),
    Mistake(
        "when the attention weight is part of grad_attn",
        _wrong_bwd(("grad_a += wx * wy * dot", "grad_a += a * wx * wy * dot")),
        "The result is weight times sample. Its slope in the weight is what is left when the weight is taken away.",
    ),
    Mistake(
        "when grad_value leaves out the attention weight",
        _wrong_bwd(("(a * wx * wy)", "(wx * wy)")),
        "A pixel's share is how much it counted in the result: two factors, the corner's and the point's.",
    ),
    Mistake(
        "when grad_value leaves out the corner's weight",
        _wrong_bwd(("(a * wx * wy)[:, None] * g", "(a + 0 * wx)[:, None] * g")),
        "The four pixels do not get the same: nearer ones counted for more.",
    ),
    Mistake(
        "when the slope adds the two sides instead of subtracting one",
        _wrong_bwd(("(wy if i else -wy)", "wy"), ("(wx if j else -wx)", "wx")),
        "When the point moves right, the right pixels weigh more and the left ones less.",
    ),
    Mistake(
        "when the slope along x adds the two sides instead of subtracting one",
        _wrong_bwd(("(wy if i else -wy)", "wy")),
        "When the point moves right, the right pixels weigh more and the left ones less.",
    ),
    Mistake(
        "when the slope along y adds the two sides instead of subtracting one",
        _wrong_bwd(("(wx if j else -wx)", "wx")),
        "When the point moves down, the lower pixels weigh more and the upper ones less.",
    ),
    Mistake(
        "when all four pixels are taken from the left column",
        _wrong_bwd(("xi = x0 + i", "xi = x0")),
        "Two of the four lie at x0, the other two one further right.",
    ),
    Mistake(
        "when grad_value is weighed along x only",
        _wrong_bwd(("(a * wx * wy)", "(a * wx)")),
        "A corner's weight has two factors.",
    ),
    Mistake(
        "when grad_out is left out of the dot product",
        _wrong_bwd(("tl.sum(v * g[None, :], axis=1)", "tl.sum(v, axis=1)")),
        "How the loss depends on the sample is what grad_out says, channel by channel.",
    ),
    Mistake(
        "when the slope has the wrong sign",
        _wrong_bwd(("(wy if i else -wy)", "(-wy if i else wy)"), ("(wx if j else -wx)", "(-wx if j else wx)")),
        "When the point moves right, the right pixels weigh more.",
    ),
    Mistake(
        "when the slope along x is weighed along x, not along y",
        _wrong_bwd(("(wy if i else -wy)", "(wx if i else -wx)"), ("(wx if j else -wx)", "(wy if j else -wy)")),
        "Hold y and move x: which of the two factors of a corner's weight changes, and which stays?",
    ),
    Mistake(
        "when a point on a pixel takes the slope to its left",
        _wrong_bwd(
            ("x0 = tl.floor(x).to(tl.int32)", "x0 = tl.ceil(x).to(tl.int32) - 1"),
            ("y0 = tl.floor(y).to(tl.int32)", "y0 = tl.ceil(y).to(tl.int32) - 1"),
        ),
        "Both are slopes. Everybody's kernels round down, and so take the one to the right.",
    ),
    Mistake(
        "when coordinates are cut off instead of rounded down",
        _wrong_bwd(("tl.floor(x).to(tl.int32)", "x.to(tl.int32)"), ("tl.floor(y).to(tl.int32)", "y.to(tl.int32)")),
        "What is -0.3, rounded down?",
    ),
    Mistake(
        "when a location that is not a number gets a gradient that is none either",
        _wrong_bwd(("    x = tl.where(near, x, -2.0)\n    y = tl.where(near, y, -2.0)\n", "")),
        "Zero times something that is not a number is not a number. Move such a point away before you compute with it.",
    ),
    Mistake(
        "when the half pixel is forgotten",
        _wrong_bwd(("x * W - 0.5", "x * W"), ("y * H - 0.5", "y * H")),
        "Location 0 is the edge of the first pixel, not its centre.",
    ),
    Mistake(
        "when H and W are swapped",
        _wrong_bwd(
            ("2 * (offs_p // K) + 1,", "2 * (offs_p // K) + ?,"),
            ("2 * (offs_p // K),", "2 * (offs_p // K) + 1,"),
            ("2 * (offs_p // K) + ?,", "2 * (offs_p // K),"),
        ),
        "A row of the shapes is (H, W).",
    ),
    Mistake(
        "when every level begins at pixel 0",
        _wrong_bwd(("b * S + start + yj", "b * S + yj")),
        "Level 1 has pixels of its own. The starts say where.",
    ),
    Mistake(
        "when the level is taken from the wrong part of the point's number",
        _wrong_bwd(("offs_p // K", "offs_p % L")),
        "The points of a row are K of level 0, then K of level 1. Which level is point number 4, if K is 3?",
    ),
    Mistake(
        "when all heads share the first one's pixels",
        _wrong_bwd(("(pixel * M + m)", "(pixel * M)")),
        "A pixel holds M heads, one after another.",
    ),
    Mistake(
        "when all images share the first one's pixels",
        _wrong_bwd(("b * S + start", "start")),
        "Image b begins b * S pixels after the first.",
    ),
    Mistake(
        "when the image is found as if every image had one query",
        _wrong_bwd(("b = row // (Q * M)", "b = row // M")),
        "Row number (b * Q + q) * M + m. How many rows does one image have?",
    ),
    Mistake(
        "when the image is found as if a pixel had one head",
        _wrong_bwd(("b = row // (Q * M)", "b = row // Q")),
        "Row number (b * Q + q) * M + m. How many rows does one image have?",
    ),
    Mistake(
        "when the head is what is left of the row by division, not by remainder",
        _wrong_bwd(("m = row % M", "m = row // M")),
        "Row number (b * Q + q) * M + m: the heads are what changes fastest.",
    ),
    Mistake(
        "when the rows of grad_out lie BLOCK_D apart",
        _wrong_bwd(("row * D + offs_d", "row * BLOCK_D + offs_d")),
        "In memory a row has D channels, not as many as the block that holds them.",
    ),
    Mistake(
        "when the rows of points lie BLOCK_P apart",
        _wrong_bwd(("row * (L * K)", "row * BLOCK_P")),
        "In memory a row has L * K points, not as many as the block that holds them.",
    ),
    Mistake(
        "when every row reads the first query's grad_out",
        _wrong_bwd(("grad_out_ptr + row * D", "grad_out_ptr + m * D")),
        "`grad_out` has one row of D channels for each row, and they are counted alike.",
    ),
    Mistake(
        "when the pixels of a head are taken to lie side by side",
        _wrong_bwd(("(pixel * M + m)", "(m * S + pixel)")),
        "value is (B, S, M, D): a pixel holds M heads, one after another.",
    ),
    Mistake(
        "when grad_attn leaves out the corner's weight",
        _wrong_bwd(("grad_a += wx * wy * dot", "grad_a += dot")),
        "What the weight multiplies is the sample: four pixels, each by its own weight.",
    ),
    Mistake(
        "when grad_value has the attention weight twice",
        _wrong_bwd(("(a * wx * wy)", "(a * a * wx * wy)")),
        "Once is enough: does the g you multiply by hold it already?",
    ),
    Mistake(
        "when grad_loc is scaled by size - 1",
        _wrong_bwd(("(a * W * grad_x)", "(a * (W - 1) * grad_x)"), ("(a * H * grad_y)", "(a * (H - 1) * grad_y)")),
        "The coordinate is location times W, minus a half. What is its slope?",
    ),
    Mistake(
        "when grad_loc is twice as large",
        _wrong_bwd(("(a * W * grad_x)", "(2 * a * W * grad_x)"), ("(a * H * grad_y)", "(2 * a * H * grad_y)")),
        "Locations run from 0 to 1, not from -1 to 1.",
    ),
    Mistake(
        "when points less than half a pixel inside, or half a pixel outside, are left out",
        _wrong_bwd((NEAR, "(x >= 0) & (x < W) & (y >= 0) & (y < H)")),
        "At x = -0.3 the pixel at 0 still counts for 0.7. From where on is there none at all?",
    ),
    Mistake(
        "when a point exactly a pixel before the first has no slope",
        _wrong_bwd((NEAR, "(x > -1) & (x < W) & (y > -1) & (y < H)")),
        "At x = -1 pixel 0 weighs nothing yet. A little to the right it does. So what is the slope to the right?",
    ),
    Mistake(
        "when locations that are no number are moved away, but infinite ones are not",
        _wrong_bwd((NEAR, "(x == x) & (y == y)")),
        "Infinity minus its own floor is not a number either, and what is beyond 2^31 has no int32. Let through only what "
        "lies near the image.",
    ),
    Mistake(
        "when the nearest pixel is taken for the one to the left and above",
        _wrong_bwd(
            ("tl.floor(x).to(tl.int32)", "tl.floor(x + 0.5).to(tl.int32)"),
            ("tl.floor(y).to(tl.int32)", "tl.floor(y + 0.5).to(tl.int32)"),
        ),
        "The cell of x = 2.7 begins at 2.",
    ),
    Mistake(
        "when elements are counted in 32 bits",
        _wrong_bwd(("tl.program_id(0).to(tl.int64)", "tl.program_id(0)")),
        "A program id is an int32, and so are its multiples. How many elements lie before image b?",
    ),
    Mistake(
        "when lanes past D are not masked",
        _wrong_bwd(("mask = inside[:, None] & mask_d[None, :]", "mask = inside[:, None] & (offs_d >= 0)[None, :]")),
        "BLOCK_D is the next power of two after D. Whose channels are the lanes in between?",
    ),
    Mistake(
        "when lanes past the last point are stored",
        _wrong_bwd(*[(s, s.replace(", mask=mask_p", "")) for s in (STORE_A, STORE_X, STORE_Y)]),
        "BLOCK_P is the next power of two after L * K. Whose points are the lanes in between?",
    ),
    Mistake(
        "when sixteen-bit numbers are multiplied as they are",
        _wrong_bwd(
            (VALUE + ".to(tl.float32)", VALUE),
            ("mask=mask_d, other=0.0).to(tl.float32)", "mask=mask_d, other=0.0)"),
        ),
        "The product of two sixteen-bit numbers has more digits than sixteen bits hold. Cast what you load.",
    ),
]

BWD_CASES = [
    one_point,
    across_the_border,
    points_that_collide,
    three_levels,
    heads_and_images,
    on_a_pixel,
    one_pixel_outside,
    not_a_number,
    in_float16,
    in_bfloat16,
]
GRADIENTS = {
    "grad_value": ("image", "pixel", "head", "channel"),
    "grad_loc": ("image", "query", "head", "level", "point", "xy"),
    "grad_attn": ("image", "query", "head", "level", "point"),
}
FAR = Property(
    "far_images", "an image may begin more than 2^31 elements after the first: 32 bits cannot count so far", _far_images
)
SAFE = Property("no_race", NO_RACE, _bwd_is_safe)
RELAXED = Property("relaxed", "the additions promise no more order than is needed", _relaxed)
COALESCED = Property("coalesced", "only grad_value needs atomics; the other two are stored side by side", _coalesced)

exercise(
    "08.msda_bwd_kernel",
    reference=_gradients,
    cases=BWD_CASES,
    properties=[FAR, SAFE, RELAXED, COALESCED],
    invoke=_backward,
    guarded=True,
    limit=LIMIT,
    axes=GRADIENTS,
    parts=tuple(GRADIENTS),
    mistakes=BWD_MISTAKES,
    hints=[
        "Of the three gradients, which elements does one program own alone, and which may any program add to? Write down "
        "each gradient as a sum over the four pixels of a point (lab 7 has them).",
        "All three need the same four numbers: the dot product of grad_out with each of the four pixels. Go over the four "
        "corners once; add to a block of grad_attn, of the slope along x and of the slope along y, and scatter the share "
        "of grad_value on the way.",
        "A block of points (BLOCK_P,) with its level's H, W and start loaded per point; a tile (BLOCK_P, BLOCK_D) per "
        "corner: `offs[:, None] * D + offs_d[None, :]`, one mask for the load of value and the addition to grad_value. "
        "`tl.sum(v * g[None, :], axis=1)` is the dot product. Along x a corner's weight changes by plus or minus the y "
        'factor. `tl.atomic_add(…, mask=mask, sem="relaxed")`; everything else is stored once, at the end.',
    ],
)


# --- msda_backward --------------------------------------------------------------------------------------------------


def as_models_call_it(draw: Draw):
    """the three gradients come back in the order of the arguments, like the tensors they belong to"""
    return _call(draw, [(3, 5), (2, 4)], B=2, Q=2, M=2, D=3, K=3)


def grad_out_of_a_sum(draw: Draw):
    """grad_out may be expanded: when a sum is differentiated, all its elements are one"""
    _, *rest = _call(draw, [(3, 5)], Q=3, D=6, K=2)
    return torch.tensor(draw.number(0.5, 2.0)).expand(1, 3, 6), *rest


def value_with_strides(draw: Draw):
    """every other input may have strides of its own"""
    grad_out, value, shapes, starts, locations, attention = _call(draw, [(2, 4), (3, 3)], M=2, D=4, K=2)
    swap = lambda t, i, j: t.transpose(i, j).contiguous().transpose(i, j)  # noqa: E731
    shapes, starts = shapes.flip(-1).flip(-1), torch.stack([starts, starts], 1)[:, 0]
    return grad_out, swap(value, 1, 2), swap(shapes, 0, 1), starts, swap(locations, 2, 4), swap(attention, 2, 4)


def no_query(draw: Draw):
    """without queries there is nothing to add: grad_value is zero, the other two are empty"""
    return _call(draw, [(3, 5)], Q=0, M=2, D=4, K=2)


def many_points(draw: Draw):
    """a row may have any number of points"""
    return _call(draw, [(3, 5), (2, 4)], D=2, K=70)


def many_channels(draw: Draw):
    """a row may have any number of channels"""
    # Apart from many points: a compiler takes half a minute over a tile that is large both ways. Several queries, since of
    # one alone the 260 products may nearly cancel: what is left is then smaller than their rounding.
    return _call(draw, [(3, 5)], Q=6, D=260, K=1)


def sixteen_bits(draw: Draw):
    """float16 value with float32 locations: each gradient in its own dtype"""
    grad_out, value, shapes, starts, locations, attention = in_float16(draw)
    return grad_out, value, shapes.int(), starts.int(), locations.float(), attention.float()


def sixteen_bits_everywhere(draw: Draw):
    """everything in bfloat16, with points that collide"""
    return in_bfloat16(draw)


def _launches(answer, draw: Draw) -> str:
    """That a kernel does the work."""
    from msda_core import machine

    launches = []
    with machine.guard(launched=launches.append):
        answer(*points_that_collide(draw))
    if not launches:
        raise Failed("no kernel was launched. Launch your `msda_bwd_kernel`.", key=("no launch",))
    return f"{launches[0].name} is launched over {launches[0].programs} programs."


def _wrong_launch(*changes: tuple[str, str]):
    return edited(solution.msda_backward, *changes)


ALIKE = "The gradient of a tensor has that tensor's shape and dtype."
POWER = "A block's length is a power of two. There is a function that finds the next one."

exercise(
    "08.msda_backward",
    reference=_gradients,
    cases=[
        as_models_call_it,
        grad_out_of_a_sum,
        value_with_strides,
        no_query,
        many_points,
        many_channels,
        sixteen_bits,
        sixteen_bits_everywhere,
    ],
    properties=[Property("launches", "a kernel does the work", _launches)],
    guarded=True,
    limit=LIMIT,
    axes=GRADIENTS,
    parts=tuple(GRADIENTS),
    mistakes=[
        Mistake(
            "when grad_value begins with whatever is in memory",
            _wrong_launch(("value.new_zeros(value.shape)", "value.new_empty(value.shape)")),
            "Your kernel adds to it. What must be in there before the first addition?",
        ),
        Mistake(
            "when no kernel is launched",
            lambda grad_out, *inputs: reference.msda_gradients(*(t.contiguous() for t in inputs), grad_out),
            "You have the kernel: prepare its arguments and launch it.",
        ),
        Mistake(
            "when grad_out is passed with its strides",
            _wrong_launch(("grad_out.contiguous()", "grad_out")),
            "The kernel gets an address and no strides: it takes for granted that the elements lie one after another.",
        ),
        Mistake(
            "when value is passed with its strides",
            _wrong_launch(("            value.contiguous()", "            value")),
            "The kernel gets an address and no strides: it takes for granted that the elements lie one after another.",
        ),
        Mistake(
            "when the gradients have value's strides",
            _wrong_launch(("value.new_zeros(value.shape)", "torch.zeros_like(value)")),
            "`zeros_like` copies the strides too, and the kernel writes as if there were none.",
        ),
        Mistake(
            "when locations and weights are passed with their strides",
            _wrong_launch(
                ("sampling_locations.contiguous()", "sampling_locations"),
                ("attention_weights.contiguous()", "attention_weights"),
            ),
            "The kernel gets an address and no strides: it takes for granted that the elements lie one after another.",
        ),
        Mistake(
            "when the programs of all but the first image are missing",
            _wrong_launch(("[(B * Q * M,)]", "[(Q * M,)]")),
            "One program owns one row. How many rows are there, over all images?",
        ),
        Mistake(
            "when the programs of all but the first head are missing",
            _wrong_launch(("[(B * Q * M,)]", "[(B * Q,)]")),
            "One program owns one row: one query of one head of one image.",
        ),
        Mistake(
            "when BLOCK_P holds the points of one level only",
            _wrong_launch(("triton.next_power_of_2(L * K)", "triton.next_power_of_2(K)")),
            "A row has points on every level.",
        ),
        Mistake(
            "when BLOCK_P is no power of two",
            _wrong_launch(("triton.next_power_of_2(L * K)", "L * K")),
            POWER,
        ),
        Mistake("when BLOCK_D is no power of two", _wrong_launch(("triton.next_power_of_2(D)", "D")), POWER),
        Mistake(
            "with blocks of a size that some model has",
            _wrong_launch(("triton.next_power_of_2(L * K)", "16"), ("triton.next_power_of_2(D)", "64")),
            "A block must hold all points of a row, and all channels: the next power of two of what this call has.",
        ),
        Mistake(
            "with BLOCK_P of a size that some model has",
            _wrong_launch(("triton.next_power_of_2(L * K)", "16")),
            "A block must hold all points of a row: the next power of two of what this call has.",
        ),
        Mistake(
            "with BLOCK_D of a size that some model has",
            _wrong_launch(("triton.next_power_of_2(D)", "64")),
            "A block must hold all channels: the next power of two of what this call has.",
        ),
        Mistake(
            "when L and K are swapped",
            _wrong_launch(("L=L,", "L=K,"), ("K=K,", "K=L,")),
            "The locations are (B, Q, M, L, K, 2): levels first, then the points on each.",
        ),
        Mistake(
            "when the grid has three axes",
            _wrong_launch(("[(B * Q * M,)]", "[(B, Q, M)]")),
            "Your kernel finds its row in `tl.program_id(0)`. How far does that count with this grid?",
        ),
        Mistake(
            "when the shapes are passed with their strides",
            _wrong_launch(("spatial_shapes.contiguous()", "spatial_shapes")),
            "Small tensors have strides too, and the kernel gets an address only.",
        ),
        Mistake(
            "when the starts are passed with their strides",
            _wrong_launch(("level_start_index.contiguous()", "level_start_index")),
            "Small tensors have strides too, and the kernel gets an address only.",
        ),
        Mistake(
            "when the buffers of grad_loc and grad_attn are handed over in each other's place",
            _wrong_launch(
                ("            grad_loc,\n            grad_attn,\n", "            grad_attn,\n            grad_loc,\n")
            ),
            "The kernel's order is grad_value, grad_loc, grad_attn.",
        ),
        Mistake(
            "when the gradients come back in the opposite order",
            _wrong_launch(("return grad_value, grad_loc, grad_attn", "return grad_attn, grad_loc, grad_value")),
            "The gradients come back in the order of the arguments: value, locations, weights.",
        ),
        Mistake(
            "when nothing comes back if there is no query",
            _wrong_launch(("    with torch", "    if Q == 0:\n        return None\n    with torch")),
            "The caller wants three gradients all the same: nothing was added to the first, and the others have no "
            "elements.",
        ),
        Mistake(
            "when Q and S are swapped",
            _wrong_launch(("            Q,\n            S,\n", "            S,\n            Q,\n")),
            "The kernel asks for the queries first, then for the pixels.",
        ),
        Mistake(
            "when locations and weights come back in the wrong order",
            _wrong_launch(("return grad_value, grad_loc, grad_attn", "return grad_value, grad_attn, grad_loc")),
            "The gradients come back in the order of the arguments.",
        ),
        Mistake(
            "when the gradient of locations has value's dtype",
            _wrong_launch(("sampling_locations.new_empty(", "value.new_empty(")),
            ALIKE,
        ),
        Mistake(
            "when the gradient of weights has value's dtype",
            _wrong_launch(("attention_weights.new_empty(", "value.new_empty(")),
            ALIKE,
        ),
        Mistake(
            "when grad_value is always float32",
            _wrong_launch(("value.new_zeros(value.shape)", "value.new_zeros(value.shape, dtype=torch.float32)")),
            "Summing in float32 may be a good idea, and lab 9 asks when. The result has value's dtype all the same.",
        ),
    ],
    hints=[
        "Which of the three outputs does your kernel add to, and which does it only write? What does each have to hold "
        "before the launch?",
        "Read the sizes off the shapes. Make three outputs like the three inputs they belong to, launch one program a row, "
        "and hand the kernel contiguous inputs.",
        "`value.new_zeros(value.shape)`, `new_empty` for the other two; the grid is `(B * Q * M,)`; `.contiguous()` on "
        "every input; `triton.next_power_of_2` for both blocks. On a machine with several GPUs, Triton launches on the "
        "current one: `with torch.cuda.device_of(value):`.",
    ],
)


# --- stretch: msda_bwd_merged_kernel --------------------------------------------------------------------------------


def neighbours_on_two_levels(draw: Draw):
    """points meet in a pixel only if level, row and column agree"""
    grad_out, value, shapes, starts, _, attention = _call(draw, [(4, 6), (4, 6)], D=2, K=4)
    cells = torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, 2.0], [2.0, 1.0]]) + torch.tensor([draw.integer(0, 2), 0])
    points = cells + draw.uniform(1, 1, 1, 2, 4, 2, low=0.1, high=0.9)
    return grad_out, value, shapes, starts, _in_pixels(points, shapes), attention


def _crowded(draw: Draw):
    """Points as a trained model puts them: near each other, on levels that get smaller and smaller."""
    grad_out, value, shapes, starts, locations, attention = _call(
        draw, [(8, 12), (4, 6), (2, 3), (1, 2)], Q=3, D=4, K=4
    )
    centre = draw.uniform(1, 3, 1, 1, 1, 2, low=0.25, high=0.75)
    spread = 1.5 * (draw.uniform(*locations.shape) - 0.5) / shapes.flip(-1)[:, None]
    return grad_out, value, shapes, starts, centre + spread, attention


def _updates(kernel) -> tuple[float, float, float]:
    """How many pixels a row adds to, on a crowded call: (with this kernel, without merging, different ones)."""
    from msda_core import machine

    grid, args, _, constants = _arguments(*_crowded(Draw(0)))
    trace = machine.trace(kernel, grid, *args, **constants)
    events = [event for event in trace.where("atomic") if event.tensor == "grad_value_ptr"]
    mine = sum(int(event.mask.sum()) for event in events) / constants["D"]
    *_, shapes, _, locations, _ = _crowded(Draw(0))
    plain = different = 0
    for row in (locations * shapes.flip(-1)[:, None] - 0.5).flatten(0, 2):
        pixels = []
        for level, ((H, W), points) in enumerate(zip(shapes.tolist(), row)):
            for x, y in points.floor().int().tolist():
                four = ((i, j) for i in (x, x + 1) for j in (y, y + 1))
                pixels += [(level, i, j) for i, j in four if 0 <= i < W and 0 <= j < H]
        plain, different = plain + len(pixels), different + len(set(pixels))
    rows = grid[0]
    return mine / rows, plain / rows, different / rows


def _fewer(kernel, draw: Draw) -> str:
    mine, plain, different = _updates(kernel)
    if mine >= plain:
        raise Failed(
            f"a row adds to {mine:.1f} pixels, as many as without merging, of which {different:.1f} are different.",
            key=("not merged", mine),
        )
    return f"a row adds to {mine:.1f} pixels instead of {plain:.1f}."


def _score(kernel) -> str:
    mine, plain, different = _updates(kernel)
    return f"{mine:.1f} additions of a pixel a row, {plain:.1f} without merging; no fewer than {different:.1f} will do."


def _wrong_merged(*changes: tuple[str, str]):
    return edited(solution.msda_bwd_merged_kernel, *changes)


exercise(
    "08.msda_bwd_merged_kernel",
    reference=_gradients,
    cases=[*BWD_CASES, neighbours_on_two_levels],
    properties=[
        SAFE,
        Property("fewer", "points of a row that meet in a pixel are merged before the atomics", _fewer),
    ],
    invoke=_backward,
    guarded=True,
    limit=LIMIT,
    axes=GRADIENTS,
    parts=tuple(GRADIENTS),
    stretch=True,
    score=_score,
    mistakes=[
        Mistake(
            "when nothing is merged",
            edited(solution.msda_bwd_kernel),
            "All points of a row have the same grad_out. So what is there to add up before it is multiplied?",
        ),
        Mistake(
            "when every point of a group adds the group's sum",
            _wrong_merged(("(inside & first)", "inside")),
            "One of them speaks for all.",
        ),
        Mistake(
            "when one point of each group speaks only for itself",
            _wrong_merged(
                (
                    "tl.where(same, weight[None, :], 0.0)",
                    "tl.where(same, weight[:, None] / tl.sum(same, axis=1)[:, None], 0.0)",
                )
            ),
            "One of them speaks for all: with the sum of their weights.",
        ),
        Mistake(
            "when points of different levels are merged",
            _wrong_merged(("(start[:, None] == start[None, :]) & ", "")),
            "Two levels have a pixel (2, 1) each.",
        ),
        Mistake(
            "when points that share a column are merged",
            _wrong_merged((" & (y0[:, None] == y0[None, :])", "")),
            "A pixel has a column and a row.",
        ),
        Mistake(
            "when points that share a row are merged",
            _wrong_merged((" & (x0[:, None] == x0[None, :])", "")),
            "A pixel has a column and a row.",
        ),
    ],
    hints=[
        "What does a point add to a pixel? Of its factors, which are the same for all points of a row?",
        "grad_out is the same for the whole row. So points that share a pixel differ in one number each, and one number each "
        "is what has to be merged: a square of points, as in `merge_then_add_kernel`, without any channels.",
        "Points whose upper left pixel is the same share all four. That is one square for the whole kernel. Neighbours that "
        "share only two pixels or one are worth a second look.",
    ],
)

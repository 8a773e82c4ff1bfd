"""Lab 08, Concurrent writes: the inputs that tell right from wrong, and the properties that must hold."""

import torch
from torch import Tensor

from checks.core.call import quote
from checks.core.exercise import Draw, Failed, NotRun, Property

LIMIT = 15.0  # seconds one call may take: a loop without an end, not a slow interpreter
BLOCK = 16
ORDERS = 4  # in which the programs are interleaved, beside one after the other


def _blocks(n: int) -> int:
    return -(-n // BLOCK)


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _safe(kernel, grid, *args, **constants) -> str:
    """Run a kernel with its accesses recorded; nothing that one program stores may be touched by another.

    Two atomics do not race, but with a gap in between (read, then exchange) they lose updates all the same: so the
    programs are interleaved as well, and must come to what they come to one after the other.

    Raises:
        Failed: two programs, or two lanes of one store, meet at one element; or the result depends on the order.
    """
    from msda_core import machine

    fresh = lambda: [arg.clone() if isinstance(arg, Tensor) else arg for arg in args]  # noqa: E731
    one_by_one, names = fresh(), kernel.arg_names
    trace = machine.trace(kernel, grid, *one_by_one, **constants)
    for race in machine.races(trace):
        writes = "updates" if race.store.kind == "atomic" else "stores to"
        what = f"{_place(race.store)} {writes} element {race.element} of {race.tensor}"
        key = ("race", race.tensor, race.store.kind, race.other.kind, race.within)
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


def _bins(draw: Draw, count: int) -> Tensor:
    return draw.integers(count, low=1, high=9, dtype=torch.int32)


def one_of_each(draw: Draw):
    """a block of different indices adds one to each of their counts"""
    return draw.permutation(BLOCK + 3)[:BLOCK].int(), _bins(draw, BLOCK + 3)


def the_same_index_again(draw: Draw):
    """lanes of one block that hold the same index are all counted"""
    return draw.integers(BLOCK - 3, low=2, high=4, dtype=torch.int32), _bins(draw, 7)


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


NO_RACE = "whatever the order in which programs run, no update is lost"


# --- merge_then_add_kernel ------------------------------------------------------------------------------------------


def _scatter(kernel, index: Tensor, weight: Tensor, out: Tensor) -> Tensor:
    out, N = out.clone(), index.numel()
    kernel[(_blocks(N),)](index, weight, out, N, BLOCK=BLOCK)
    return out


def _pairs(draw: Draw, index: Tensor, size: int):
    return index.int(), draw.uniform(index.numel(), low=0.2, high=1.0), draw.uniform(size, low=1.0, high=2.0)


def different_places(draw: Draw):
    """each weight is added at its own place"""
    return _pairs(draw, draw.permutation(BLOCK + 4)[:BLOCK], BLOCK + 4)


def all_at_one_place(draw: Draw):
    """where all lanes meet at one place, the sum of their weights is added"""
    return _pairs(draw, torch.full((BLOCK - 3,), draw.integer(1, 5)), 7)


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


# --- deterministic_sum ----------------------------------------------------------------------------------------------


def a_sum_of_one_place(draw: Draw):
    """all pairs at one place: their sum"""
    N = draw.integer(40, 60)
    return torch.zeros(N, dtype=torch.int64), draw.normal(N), 1


def places_that_come_again(draw: Draw):
    """a place that comes again gets all of its weights"""
    N, size = draw.integer(90, 120), draw.integer(7, 12)
    return draw.integers(N, low=0, high=size - 1), draw.normal(N) + 1, size


def places_that_never_come(draw: Draw):
    """a place that nobody adds to holds zero"""
    N, size = draw.integer(20, 30), draw.integer(60, 90)
    return 2 * draw.integers(N, low=0, high=size // 2 - 1), draw.normal(N) - 1, size


def no_pairs(draw: Draw):
    """no pairs at all: zeros"""
    return torch.zeros(0, dtype=torch.int64), torch.zeros(0), 5


def large_weights(draw: Draw):
    """thousands of large weights at one place: whole numbers have an end as well"""
    N = draw.integer(5_000, 6_000)
    return draw.integers(N, low=0, high=1), 1e6 * (1 + draw.uniform(N)), 3


def equal_weights(draw: Draw):
    """thousands of equal weights at one place: float32 rounds every addition the same way"""
    N = draw.integer(9_000, 10_000)
    return torch.ones(N, dtype=torch.int64), torch.full((N,), draw.number(1.05, 1.2)), 2


def _repeats(answer, draw: Draw) -> str:
    """The same pairs in other orders, with weights whose sum cancels: what floating point sees of the order, it sees here."""
    N, size = 400, 3
    index = draw.integers(N, low=0, high=size - 1)
    weight = draw.normal(N) * 10.0 ** draw.integers(N, low=-3, high=12).float()
    index, weight = torch.cat([index, index]), torch.cat([weight, -weight])
    first = answer(index.clone(), weight.clone(), size)
    for _ in range(6):
        order = draw.permutation(2 * N)
        again = answer(index[order], weight[order], size)
        if not torch.equal(first, again):
            place = int((first != again).nonzero()[0])
            raise Failed(
                f"the same {2 * N} pairs in two orders give {first[place].item():.9g} and {again[place].item():.9g} at place {place}."
            )
    return "six orders, the same bits"


def _own_scale(answer, draw: Draw) -> None:
    """Weights of about 1e12 at one place, and of about 1e-6 at the others, which must not notice."""
    N, size = 60, 4
    index = torch.arange(N) % size
    weight = draw.uniform(N, low=1.0, high=2.0) * torch.where(index == 2, 1e12, 1e-6)
    got = answer(index.clone(), weight.clone(), size)
    exact = torch.zeros(size, dtype=torch.float64).index_add(0, index, weight.double())
    if not isinstance(got, torch.Tensor) or got.shape != exact.shape:
        return  # the cases say so
    off = (got.double() - exact).abs() / exact
    if (off > 2.0**-18).any():
        place = int(off.argmax())
        raise Failed(
            f"place {place} has {got[place].item():.6g}, its own weights sum to {exact[place].item():.6g}. Another place has "
            "weights of 1e12; they are no business of this one."
        )


REPEATS = Property("repeats", "the same bits, in whatever order the pairs come", _repeats)
OWN_SCALE = Property("own_scale", "a place is as exact as its own weights allow, whatever lies elsewhere", _own_scale)


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
    return _call(draw, [(2, 5), (4, 3), (1, 2)], Q=2, D=1, K=4, gap=2)


def heads_and_images(draw: Draw):
    """each head of each image has its own pixels; channels need not be a power of two"""
    return _call(draw, [(3, 4), (1, 2), (2, 3)], B=2, Q=3, M=2, D=5)


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


# --- msda_backward --------------------------------------------------------------------------------------------------


def as_models_call_it(draw: Draw):
    """the three gradients come back in the order of the arguments, like the tensors they belong to"""
    return _call(draw, [(3, 5), (2, 4)], B=2, Q=1, M=3, D=5, K=4)


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

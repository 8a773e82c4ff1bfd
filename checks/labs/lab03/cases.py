"""Lab 03, The machine: the inputs that tell right from wrong, and the properties that must hold."""

import functools

import torch

from checks.core.exercise import Draw, Failed
from checks.labs.lab03.truth import _lru, _traffic_bounds
from msda_core.figures import sectors as traffic


def _base(draw: Draw) -> int:
    """Where a buffer may begin: on a border of 512 bytes."""
    return 512 * draw.integer(3, 4000)


def neighbours(draw: Draw):
    """32 lanes side by side, from the border of a sector on: every byte that comes is used"""
    start, itemsize = _base(draw), 2 ** draw.integer(1, 4)
    return [start + itemsize * lane for lane in range(32)], itemsize


def beginning_in_the_middle(draw: Draw):
    """lanes side by side that begin in the middle of a sector reach into one more"""
    start = _base(draw) + 4 * draw.integer(1, 7)
    return [start + 4 * lane for lane in range(32)], 4


def with_a_stride(draw: Draw):
    """the further the lanes are apart, the more sectors they touch"""
    start, stride = _base(draw), 4 * draw.integer(3, 7)
    return [start + stride * lane for lane in range(32)], 4


def gathered_rows(draw: Draw):
    """what lies between the rows that a warp gathers is not fetched"""
    rows = [_base(draw) + 1024 * i + 96 * draw.integer(0, 5) for i in range(4)]
    return [rows[lane // 8] + 4 * (lane % 8) for lane in range(32)], 4


def one_element_for_all(draw: Draw):
    """when every lane reads the same element, it is fetched once"""
    return [_base(draw) + 8 * draw.integer(0, 40)] * 32, 8


def shuffled_lanes(draw: Draw):
    """which lane reads which element does not matter"""
    start = _base(draw)
    return [start + 2 * int(lane) for lane in draw.permutation(32)], 2


def a_few_lanes(draw: Draw):
    """lanes that are masked off fetch nothing"""
    start, lanes = _base(draw), sorted(draw.permutation(32)[: draw.integer(3, 6)].tolist())
    return [start + 40 * lane for lane in lanes], 4


def across_a_border(draw: Draw):
    """an element across the border of two sectors needs both"""
    start = _base(draw) + 28
    return [start + 96 * lane for lane in range(draw.integer(9, 30))], 8


def across_a_border_beside_another(draw: Draw):
    """an element that begins in one sector and ends in the next has bytes in both"""
    base = 32 * draw.integer(2, 90)
    return [base + 28, base + 40], 8


def longer_than_a_sector(draw: Draw):
    """an element of many bytes touches every sector it reaches over"""
    start = _base(draw) + 16
    return [start + 256 * lane for lane in range(draw.integer(5, 20))], 32 * draw.integer(3, 5)


def nobody(draw: Draw):
    """a request without lanes fetches nothing"""
    return [], 4


# --- efficiency -----------------------------------------------------------------------------------------------------


def every_byte_used(draw: Draw):
    """when every byte that comes is used, it is 1"""
    return ([neighbours(draw) for _ in range(3)],)


def one_in_eight(draw: Draw):
    """one float32 out of every sector is an eighth"""
    start = _base(draw)
    return ([([start + 32 * lane for lane in range(32)], 4)],)


def the_same_sectors_again(draw: Draw):
    """each request is delivered what it asks for, whatever an earlier one got"""
    start = _base(draw)
    return ([([start + 32 * lane + 4 * i for lane in range(32)], 4) for i in range(draw.integer(2, 6))],)


def large_and_small(draw: Draw):
    """a request of many sectors weighs more than one of few"""
    start = _base(draw)
    wasteful = ([start + 160 * lane for lane in range(draw.integer(20, 32))], 2)
    return ([neighbours(draw), wasteful, wasteful, ([start], 4)],)


def one_weight_for_all(draw: Draw):
    """32 lanes that read the same number get one number, not 32"""
    return ([([_base(draw) + 4 * draw.integer(0, 100)] * 32, 4) for _ in range(4)],)


def off_by_some_bytes(draw: Draw):
    """a request that begins in the middle of a sector is delivered one more"""
    return ([beginning_in_the_middle(draw), across_a_border(draw)],)


def with_a_silent_request(draw: Draw):
    """a request without lanes brings nothing and costs nothing"""
    return ([([], 4), with_a_stride(draw), ([], 8)],)


def all_new(draw: Draw):
    """a sector that is read for the first time is never there"""
    return draw.permutation(draw.integer(5, 30)).tolist(), draw.integer(3, 50)


def again_and_again(draw: Draw):
    """as long as everything fits, only first reads miss"""
    sectors = draw.integers(draw.integer(4, 6), low=100, high=10_000).tolist()
    return sectors * 4, 8


def one_too_many(draw: Draw):
    """going round and round over one sector more than fits, every read misses"""
    n = draw.integer(4, 9)
    return list(range(40, 40 + n)) * 3, n - 1


def exactly_full(draw: Draw):
    """going round and round over exactly as many as fit, only the first round misses"""
    n = draw.integer(4, 9)
    return list(range(40, 40 + n)) * 3, n


def a_favourite(draw: Draw):
    """a sector that is used again and again stays, though others come and go"""
    stream = []
    for other in range(10, 10 + draw.integer(8, 14)):
        stream += [7, other]
    return stream, 3


def mixed(draw: Draw):
    """near and far reuse, in any order"""
    near, far = draw.integers(80, low=0, high=6), draw.integers(80, low=0, high=40)
    return torch.where(draw.uniform(80) < 0.6, near, far).tolist(), draw.integer(4, 9)


def a_cache_of_none(draw: Draw):
    """a cache that holds nothing answers nothing"""
    return [3, 3, draw.integer(3, 4), 3], 0


def _problem(
    draw: Draw, tiling: str, Q: int, M: int, P: int, D: int, itemsize: int, block: int = 2, inside: float = 0.8
):
    pixels = draw.integers(Q, M, P, 4, low=0, high=60)
    corners = torch.where(draw.uniform(Q, M, P, 4) < inside, pixels, -1)
    value, locations, weights = ((i << 21) + _base(draw) for i in range(3))  # in pieces of memory that do not meet
    return tiling, corners, D, itemsize, value, locations, weights, block


def per_output_element(draw: Draw):
    """ "output": 32 channels of a head are one warp; each point's number is read by all lanes at once"""
    return _problem(draw, "output", Q=2, M=3, P=2, D=32, itemsize=4)


def per_output_element_ragged(draw: Draw):
    """ "output": with 20 channels, a warp spans two heads, and the last warp is not full"""
    return _problem(draw, "output", Q=3, M=3, P=3, D=20, itemsize=4)


def per_point(draw: Draw):
    """ "point": each lane walks through the channels of its own point"""
    return _problem(draw, "point", Q=2, M=4, P=4, D=8, itemsize=4)


def per_point_ragged(draw: Draw):
    """ "point": the last warp is not full"""
    return _problem(draw, "point", Q=3, M=2, P=7, D=12, itemsize=4)


def per_block(draw: Draw):
    """ "block": two queries of one head; a row of 32 float32 channels is eight lanes' pieces"""
    return _problem(draw, "block", Q=4, M=3, P=4, D=32, itemsize=4)


def per_block_ragged(draw: Draw):
    """ "block": the last block has fewer queries, and a row is 24 float16 channels"""
    return _problem(draw, "block", Q=7, M=2, P=9, D=24, itemsize=2, block=4)


def _far_outside(tiling: str):
    def case(draw: Draw):
        return _problem(draw, tiling, Q=3, M=2, P=6, D=16, itemsize=4, inside=0.04)

    case.__name__ = f"outside_the_image_{tiling}"
    case.__doc__ = f'"{tiling}": lanes outside the image read nothing, and a warp of such lanes issues nothing'
    return case


def _corners(draw: Draw, B, Q, M, P, S, inside=0.8):
    pixels = draw.integers(B, Q, M, P, 4, low=0, high=S - 1)
    return torch.where(draw.uniform(B, Q, M, P, 4) < inside, pixels, -1)


def hardly_touched(draw: Draw):
    """most pixels are read by nobody, and need not be moved"""
    return _corners(draw, 1, 3, 2, 3, S=5000, inside=1.0), 5000, 16, 4


def read_many_times(draw: Draw):
    """a pixel that many queries read has to come once"""
    return _corners(draw, 1, draw.integer(20, 30), 2, 3, S=9), 9, 32, 4


def two_images(draw: Draw):
    """pixel 3 of one image is not pixel 3 of the next"""
    return _corners(draw, 2, 8, 1, 4, S=7), 7, 32, 4


def several_heads(draw: Draw):
    """each head reads its own row of a pixel"""
    return _corners(draw, 1, 6, 5, 2, S=6), 6, 16, 4


def rows_that_share_sectors(draw: Draw):
    """rows of 20 float16 numbers: a sector holds parts of two rows, and counts once"""
    return _corners(draw, 2, 9, 3, 2, S=11), 11, 20, 2


def rows_across_a_border(draw: Draw):
    """rows of 24 bytes: some lie in one sector, some across the border of two"""
    return _corners(draw, 1, 7, 2, 3, S=23), 23, 6, 4


def the_heads_of_one_pixel(draw: Draw):
    """the rows of a pixel's heads lie side by side, 36 bytes each, and share sectors"""
    pixels = 9 * draw.permutation(20)[:8].reshape(1, 2, 1, 1, 4) + draw.integer(0, 7)
    return pixels.expand(1, 2, 3, 1, 4).clone(), 190, 9, 4


def mostly_outside(draw: Draw):
    """corners outside the image are not read, but their weights and locations are"""
    return _corners(draw, 1, 5, 2, 7, S=40, inside=0.1), 40, 8, 4


def _card(draw: Draw) -> traffic.Gpu:
    dram = draw.number(0.5e12, 5e12)
    return traffic.Gpu("a card", 100, dram, dram * draw.number(5, 9), dram * draw.number(15, 30), 50e6)


def _load(draw: Draw, dram, l1, arithmetic):
    """A call that keeps the three busy for about so many microseconds."""
    gpu, vary = _card(draw), lambda: draw.number(0.9, 1.1)
    one, other = gpu.dram * dram * 1e-6 * vary(), gpu.l1 * l1 * 1e-6 * vary()
    return (int(one), int(other)), int(gpu.flops * arithmetic * 1e-6 * vary()), gpu


def read_once(draw: Draw):
    """when little is read twice, DRAM decides"""
    return _load(draw, 9.0, 3.0, 4.0)


def read_often(draw: Draw):
    """when the same bytes are asked for again and again, L1 decides"""
    return _load(draw, 4.0, 12.0, 6.0)


def much_arithmetic(draw: Draw):
    """when there is more to compute than to load, arithmetic decides"""
    return _load(draw, 5.0, 4.0, 20.0)


@functools.cache
def _decoder() -> dict[int, tuple[tuple[int, int], int]]:
    """Bytes of one number → bytes and operations of the decoder's call. Its images share nothing: one is counted."""
    call, image = traffic.DECODER, traffic.DECODER._replace(B=1)
    corners = traffic.corner_pixels(image.locations(), image.shapes)
    counted = {}
    for itemsize in (4, 2):
        once, often = _traffic_bounds(corners, image.S, image.D, itemsize)
        counted[itemsize] = (call.B * once, call.B * often), call.flops
    return counted


def _below_the_clock(answer, draw: Draw, decoder) -> str:
    for itemsize, (bytes, flops) in decoder.items():
        name, measured = min(((n, t[itemsize]) for n, t in traffic.DECODER_TIMES.items()), key=lambda pair: pair[1])
        found = answer(bytes, flops, traffic.GPUS["H200"])
        floor = found[0] if isinstance(found, (tuple, list)) and found else found
        if not isinstance(floor, (int, float)):
            raise Failed("your function did not return (microseconds, bound).", "kind")
        if not floor <= measured:
            raise Failed(
                f"your floor for the decoder's call with {8 * itemsize}-bit numbers is {floor:.3g} µs, but {name} was "
                f"measured at {measured} µs on that GPU. Nothing is faster than a floor: which bytes really have to come "
                "from DRAM?",
                ("above", f"{floor:.4g}"),
            )
        if not floor > measured / 10:
            raise Failed(
                f"your floor for the decoder's call with {8 * itemsize}-bit numbers is {floor:.3g} µs, and the fastest "
                f"measured {measured} µs. The call moves more bytes than that.",
                ("low", f"{floor:.4g}"),
            )
    return ""


# --- stretch: order_queries -----------------------------------------------------------------------------------------

ORDER_SHAPES = ((48, 80), (24, 40))
ORDER_ROWS = 192  # rows of 128 bytes that the cache holds: 24 KB


def _scene(draw: Draw, queries: int = 900):
    """Queries anywhere on the image, and the pixels each of them reads around itself."""
    centres = draw.uniform(queries, 2)
    spread = torch.tensor([[1.5 / w, 1.5 / h] for h, w in ORDER_SHAPES])[:, None]
    locations = centres[:, None, None] + spread * draw.normal(queries, len(ORDER_SHAPES), 4, 2)
    pixels = traffic.corner_pixels(locations, ORDER_SHAPES).flatten(1).tolist()
    return [tuple(centre) for centre in centres.tolist()], [[p for p in row if p >= 0] for row in pixels]


def _hit_rate(order, pixels):
    stream = [p for query in order for p in pixels[query]]
    return _lru(stream, ORDER_ROWS) / len(stream)


def _order(answer, centres) -> list[int]:
    """The answer's order, if it is one."""
    found, count = answer(centres), len(centres)
    if not isinstance(found, (list, tuple)):
        raise Failed(f"your function returned a {type(found).__name__}, expected a list of numbers.", "no list")
    try:
        numbers = [int(i) for i in found]
    except (TypeError, ValueError):
        raise Failed("your list holds something else than numbers of queries.", "no numbers") from None
    if sorted(numbers) != list(range(count)):
        there = len(set(numbers) & set(range(count)))
        raise Failed(
            f"for {count} queries your list has {len(found)} numbers, and {there} of the queries are among them. Each of 0 to "
            f"{count - 1} has to be there once.",
            "not each once",
        )
    return numbers


def _each_once(answer, draw: Draw):
    for count in (1, draw.integer(5, 40)):
        _order(answer, _scene(draw, count)[0])


def _better_than_rows(answer, draw: Draw):
    centres, pixels = _scene(draw)
    mine = _hit_rate(_order(answer, centres), pixels)
    plain = {"row by row": _by_rows_of_the_image(centres), "from left to right": _by_x(centres)}
    for name, order in plain.items():
        rate = _hit_rate(order, pixels)
        if mine < rate + 0.03:
            raise Failed(
                f"in your order {mine:.1%} of the reads hit, and {name} {rate:.1%}. Which queries should follow one "
                "another?",
                round(mine, 4),
            )
    return f"{mine:.1%} of the reads hit."


def _by_x(centres):
    return sorted(range(len(centres)), key=lambda i: centres[i][0])


def _by_rows_of_the_image(centres):
    return sorted(range(len(centres)), key=lambda i: (int(centres[i][1] * ORDER_SHAPES[0][0]), centres[i][0]))


def _score(answer) -> str:
    centres, pixels = _scene(Draw(0))
    mine, given = _hit_rate(answer(centres), pixels), _hit_rate(range(len(centres)), pixels)
    stream = [p for row in pixels for p in row]
    return f"{mine:.2%} of the reads hit; as given {given:.2%}; with a cache that holds everything {1 - len(set(stream)) / len(stream):.2%}."

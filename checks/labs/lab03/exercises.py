"""Lab 03, The machine: its exercises, and the mistakes they are there to find."""

import functools
from collections import OrderedDict, deque
from numbers import Integral

import torch
from torch import Tensor

from checks.core.compare import describe
from checks.core.exercise import Draw, Failed, Mistake, Property, exercise
from msda_core.figures import sectors as traffic

SECTOR = 32


def _base(draw: Draw) -> int:
    """Where a buffer may begin: on a border of 512 bytes."""
    return 512 * draw.integer(3, 4000)


# --- sectors --------------------------------------------------------------------------------------------------------


def _sectors(addresses, itemsize, *, size=SECTOR, reach=None):
    """The right answer, and by its options the wrong ones."""
    reach = itemsize - 1 if reach is None else reach
    return len({s for a in addresses for s in range(a // size, (a + reach) // size + 1)})


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


def longer_than_a_sector(draw: Draw):
    """an element of many bytes touches every sector it reaches over"""
    start = _base(draw) + 16
    return [start + 256 * lane for lane in range(draw.integer(5, 20))], 32 * draw.integer(3, 5)


def nobody(draw: Draw):
    """a request without lanes fetches nothing"""
    return [], 4


def _changes(addresses, itemsize):
    order = [a // SECTOR for a in addresses]
    return sum(one != other for one, other in zip(order, [None, *order]))


exercise(
    "03.sectors",
    reference=_sectors,
    cases=[
        neighbours,
        beginning_in_the_middle,
        with_a_stride,
        gathered_rows,
        one_element_for_all,
        shuffled_lanes,
        a_few_lanes,
        across_a_border,
        longer_than_a_sector,
        nobody,
    ],
    mistakes=[
        Mistake(
            "when all the bytes from the first lane's to the last lane's count",
            lambda addresses, itemsize: (
                (max(addresses) + itemsize - 1) // SECTOR - min(addresses) // SECTOR + 1 if addresses else 0
            ),
            "A warp can gather from four rows that lie far apart. Does anybody ask for what is between them?",
        ),
        Mistake(
            "when the bytes asked for are divided by 32",
            lambda addresses, itemsize: -(-len(addresses) * itemsize // SECTOR),
            "That is right when the bytes lie side by side. Where are they when every lane is 128 bytes from the next?",
        ),
        Mistake(
            "when the distinct bytes asked for are divided by 32",
            lambda addresses, itemsize: -(-len(set(addresses)) * itemsize // SECTOR),
            "Two bytes in different sectors fetch 64 bytes, not 2. Which sector does a byte lie in?",
        ),
        Mistake(
            "when sectors are counted from the first lane's element on",
            lambda addresses, itemsize: _sectors([a - min(addresses) for a in addresses], itemsize) if addresses else 0,
            "The borders of sectors lie at multiples of 32 in memory, wherever the warp begins to read.",
        ),
        Mistake(
            "when only the first byte of each element counts",
            lambda addresses, itemsize: _sectors(addresses, itemsize, reach=0),
            "An element is `itemsize` bytes long. In which sector is its last byte?",
        ),
        Mistake(
            "when only the first and the last byte of each element count",
            lambda addresses, itemsize: len({b // SECTOR for a in addresses for b in (a, a + itemsize - 1)}),
            "An element of 100 bytes may reach over four sectors. You have the outer two.",
        ),
        Mistake(
            "when each element is taken to be one byte longer",
            lambda addresses, itemsize: _sectors(addresses, itemsize, reach=itemsize),
            "An element at byte 0 of 4 bytes has bytes 0, 1, 2 and 3.",
        ),
        Mistake(
            "when elements are counted instead of sectors",
            lambda addresses, itemsize: len(set(addresses)),
            "Eight float32 numbers fit into a sector. How often does it have to be fetched?",
        ),
        Mistake(
            "when every lane fetches sectors of its own",
            lambda addresses, itemsize: sum(_sectors([a], itemsize) for a in addresses),
            "The lanes of a warp ask together: a sector that two of them need comes once.",
        ),
        Mistake(
            "when a sector counts again each time the lanes come back to it",
            _changes,
            "All lanes ask at the same time; their order means nothing. What do you know about a sector already seen?",
        ),
        Mistake(
            "in bytes instead of sectors",
            lambda addresses, itemsize: SECTOR * _sectors(addresses, itemsize),
            "The number of sectors is asked for. Each is 32 bytes.",
        ),
        Mistake(
            "when the last sector of each element is left out",
            lambda addresses, itemsize: len(
                {s for a in addresses for s in range(a // SECTOR, (a + itemsize - 1) // SECTOR)}
            ),
            "`range` stops before its end.",
        ),
        Mistake(
            "when lines of 128 bytes are counted",
            lambda addresses, itemsize: _sectors(addresses, itemsize, size=128),
            "A cache line has 128 bytes, but it is fetched in four sectors, each only if somebody needs it.",
        ),
        Mistake(
            "when addresses are taken for element numbers",
            lambda addresses, itemsize: _sectors([a * itemsize for a in addresses], itemsize),
            "The addresses are in bytes already.",
        ),
    ],
    hints=[
        "Memory is cut into sectors at multiples of 32. In which sector is byte 70? And the four bytes from 70 on?",
        "Collect the sectors of all lanes in something that keeps each only once; then count.",
        "A lane's first byte is `address`, its last `address + itemsize - 1`. Both have a sector, by whole division; an "
        "element also touches every sector between the two.",
    ],
)


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


def _useful(requests):
    return sum(len(set(addresses)) * itemsize for addresses, itemsize in requests)


def _delivered(requests, **options):
    return sum(SECTOR * _sectors(addresses, itemsize, **options) for addresses, itemsize in requests)


def _all_sectors(requests):
    return {s for addresses, n in requests for a in addresses for s in range(a // SECTOR, (a + n - 1) // SECTOR + 1)}


def _efficiency(requests):
    return _useful(requests) / _delivered(requests)


exercise(
    "03.efficiency",
    reference=_efficiency,
    cases=[
        every_byte_used,
        one_in_eight,
        the_same_sectors_again,
        large_and_small,
        one_weight_for_all,
        off_by_some_bytes,
        with_a_silent_request,
    ],
    mistakes=[
        Mistake(
            "when a sector counts once in the whole series",
            lambda requests: _useful(requests) / (SECTOR * len(_all_sectors(requests))),
            "A sector that is asked for by five requests is delivered five times. What is the most your function can return?",
        ),
        Mistake(
            "when sectors and elements both count once in the whole series",
            lambda requests: (
                len({(a, n) for addresses, n in requests for a in addresses})
                * requests[-1][1]
                / (SECTOR * len(_all_sectors(requests)))
            ),
            "Each request is on its own: count its bytes and its sectors, then add up.",
        ),
        Mistake(
            "when an element counts once in the whole series",
            lambda requests: (
                len({b for addresses, n in requests for a in addresses for b in range(a, a + n)}) / _delivered(requests)
            ),
            "A number that two requests ask for is useful to both. Only the lanes of one request share it.",
        ),
        Mistake(
            "when every request counts 32 useful elements",
            lambda requests: sum(32 * n for _, n in requests) / _delivered(requests),
            "Lanes that are masked off ask for nothing, and lanes may ask for the same element.",
        ),
        Mistake(
            "when elements are compared with bytes",
            lambda requests: sum(len(set(a)) for a, _ in requests) / _delivered(requests),
            "How many bytes has an element?",
        ),
        Mistake(
            "with a whole division",
            lambda requests: _useful(requests) // _delivered(requests),
            "A share between 0 and 1 is lost when it is rounded down.",
        ),
        Mistake(
            "when the efficiencies of the requests are averaged",
            lambda requests: (
                sum(_efficiency([one]) for one in requests if one[0]) / sum(bool(one[0]) for one in requests)
            ),
            "A request of 32 sectors and one of a single sector do not move the same number of bytes.",
        ),
        Mistake(
            "when an element that all lanes read counts for every lane",
            lambda requests: sum(len(a) * n for a, n in requests) / _delivered(requests),
            "With 32 lanes on one number this is 4. Can more bytes be useful than were delivered?",
        ),
        Mistake(
            "when delivered is divided by useful",
            lambda requests: _delivered(requests) / _useful(requests),
            "The best there is should be 1, and less should be worse.",
        ),
        Mistake(
            "in percent",
            lambda requests: 100 * _efficiency(requests),
            "A share is between 0 and 1 here.",
        ),
        Mistake(
            "when sectors are compared with bytes",
            lambda requests: _useful(requests) * SECTOR / _delivered(requests),
            "How many bytes is a sector?",
        ),
        Mistake(
            "when every request is delivered whole lines of 128 bytes",
            lambda requests: _useful(requests) / (4 * _delivered(requests, size=128)),
            "Only the sectors of a line that somebody needs are delivered.",
        ),
        Mistake(
            "when all elements are taken to have 4 bytes",
            lambda requests: sum(4 * len(set(a)) for a, _ in requests) / _delivered(requests),
            "Each request says how many bytes one of its elements has.",
        ),
        Mistake(
            "when only the first request counts",
            lambda requests: _efficiency([one for one in requests if one[0]][:1]),
            "Does your function return inside its loop?",
        ),
    ],
    hints=[
        "A warp reads one float32 out of every sector. How many bytes are useful, and how many come?",
        "Two sums over the requests, one of useful bytes and one of delivered bytes; a single division at the end.",
        "Useful bytes of a request: its distinct addresses times `itemsize`. Delivered: 32 times what your `sectors` says.",
    ],
)


# --- lru_hits -------------------------------------------------------------------------------------------------------


def _lru(sector_stream, capacity):
    cache, hits = OrderedDict(), 0
    for sector in sector_stream:
        hits += sector in cache
        cache[sector] = None
        cache.move_to_end(sector)
        if len(cache) > capacity:
            cache.popitem(last=False)
    return hits


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


def _fifo(stream, capacity):
    cache, hits = deque(), 0
    for sector in stream:
        if sector in cache:
            hits += 1
        else:
            cache.append(sector)
            if len(cache) > capacity:
                cache.popleft()
    return hits


def _newest_out(stream, capacity):
    cache, hits = [], 0
    for sector in stream:
        if sector in cache:
            hits += 1
            cache.remove(sector)
        elif len(cache) >= capacity:
            cache[-1:] = []
        if capacity:
            cache.append(sector)
    return hits


def _emptied(stream, capacity):
    cache, hits = set(), 0
    for sector in stream:
        if sector in cache:
            hits += 1
        else:
            if len(cache) >= capacity:
                cache.clear()
            if capacity:
                cache.add(sector)
    return hits


def _filled_once(stream, capacity):
    cache, hits = set(), 0
    for sector in stream:
        hits += sector in cache
        if len(cache) < capacity:
            cache.add(sector)
    return hits


def _direct(stream, capacity):
    cache, hits = {}, 0
    for sector in stream:
        if capacity:
            hits += cache.get(sector % capacity) == sector
            cache[sector % capacity] = sector
    return hits


def _least_often_out(stream, capacity):
    cache, hits = {}, 0
    for sector in stream:
        if sector in cache:
            hits += 1
            cache[sector] += 1
        elif capacity:
            if len(cache) >= capacity:
                cache.pop(min(cache, key=cache.get))
            cache[sector] = 1
    return hits


def _fresh_only(stream, capacity):
    """The cache of `_lru`, but a hit takes the sector out."""
    cache, hits = [], 0
    for sector in stream:
        if sector in cache:
            hits += 1
            cache.remove(sector)
        else:
            cache.append(sector)
            if len(cache) > capacity:
                cache.pop(0)
    return hits


exercise(
    "03.lru_hits",
    reference=_lru,
    cases=[all_new, again_and_again, one_too_many, exactly_full, a_favourite, mixed, a_cache_of_none],
    mistakes=[
        Mistake(
            "when the sector that came first goes first",
            _fifo,
            "A sector that was used just now is no candidate, however long ago it came. What has to happen on a hit?",
        ),
        Mistake(
            "when the newest sector makes room",
            _newest_out,
            "Of the sectors that are there, whose last use is longest ago?",
        ),
        Mistake(
            "when the cache never forgets",
            lambda stream, capacity: len(stream) - len(set(stream)),
            "How many sectors does it hold? What happens when one more comes?",
        ),
        Mistake(
            "when the cache holds one sector more",
            lambda stream, capacity: _lru(stream, capacity + 1),
            "With `capacity` sectors in it, the cache is full: one must go when another comes.",
        ),
        Mistake(
            "when the cache holds one sector less",
            lambda stream, capacity: _lru(stream, max(0, capacity - 1)),
            "Exactly `capacity` sectors fit, and a read that hits needs no room. When does one have to go?",
        ),
        Mistake(
            "when misses are counted",
            lambda stream, capacity: len(stream) - _lru(stream, capacity),
            "A hit is a read that finds its sector already there.",
        ),
        Mistake(
            "when the share of hits is returned",
            lambda stream, capacity: _lru(stream, capacity) / len(stream),
            "The number of hits is asked for, not their share.",
        ),
        Mistake(
            "when the whole cache is emptied once it is full",
            _emptied,
            "Only one sector has to make room.",
        ),
        Mistake(
            "when the cache stays as it is once it is full",
            _filled_once,
            "A sector that was just read always goes into the cache; another one makes room for it.",
        ),
        Mistake(
            "when the sector that was used least often goes",
            _least_often_out,
            "It does not matter how often a sector was used, only how long ago.",
        ),
        Mistake(
            "when a hit takes the sector out of the cache",
            _fresh_only,
            "It moves to the place of the most recent one: taken out, and put in again.",
        ),
        Mistake(
            "when the last `capacity` reads are searched, and not as many different sectors",
            lambda stream, capacity: sum(sector in stream[max(0, i - capacity) : i] for i, sector in enumerate(stream)),
            "A sector that is read five times in a row takes one place.",
        ),
        Mistake(
            "when each sector has one fixed place",
            _direct,
            "Any sector may lie anywhere in this cache. It is full only when `capacity` sectors are in it.",
        ),
    ],
    hints=[
        "The cache holds three sectors: 5, 8, 2, used in this order. Now 5 is read again, and then a new one, 9. Which goes?",
        "Keep the sectors in order of their last use. A read moves its sector to the end, whether it was there or not.",
        "A plain list will do: if the sector is in it, count a hit and take it out; then append it; and if there are more "
        "than `capacity`, drop the first.",
    ],
)


# --- tiling_addresses -----------------------------------------------------------------------------------------------


def _groups(work, size=32, whole=False):
    cut = [work[i : i + size] for i in range(0, len(work), size)]
    return [part for part in cut if len(part) == size] if whole else cut


class _Tilings:
    """The right answer, and by its options the wrong ones."""

    def __init__(self, **wrong):
        self.wrong = wrong

    def __call__(self, tiling, corners, D, itemsize, value_ptr, loc_ptr, attn_ptr, block=2):
        wrong = self.wrong
        tiling = wrong.get("tiling", tiling)
        Q, M, P, _ = corners.shape
        where = torch.where(
            corners >= 0,
            value_ptr + (corners * M + (0 if "no head" in wrong else torch.arange(M)[:, None, None])) * D * itemsize,
            value_ptr if "clamped" in wrong else -1,
        )
        if "unmasked" in wrong:
            where = value_ptr + (corners * M + torch.arange(M)[:, None, None]) * D * itemsize
        if "units" in wrong:
            where = torch.where(corners >= 0, value_ptr + (where - value_ptr) // itemsize, where)
        where = where.reshape(-1, 4).tolist()  # one row per point, numbered (q, m, p)
        unit = 1 if "units" in wrong else itemsize
        planes = Q * M * P if "planes" in wrong else 1
        out = []

        def emit(addresses, width):
            addresses = [a for a in addresses if a is not None]
            if addresses or "silent" in wrong:
                out.append((addresses, width))

        def number(i):
            if "head by head" not in wrong:
                return i
            row, p = divmod(i, P)
            return (row % M * Q + row // M) * P + p

        def parameters(points):
            if "no parameters" in wrong:
                return
            points = [number(i) for i in points]
            weights = [attn_ptr + i * unit for i in points]
            if "weight last" not in wrong:
                emit(weights, itemsize)
            if "x and y at once" in wrong:
                return emit([loc_ptr + 2 * i * unit for i in points], 2 * itemsize)
            step = 1 if planes > 1 or "one apart" in wrong else 2
            for axis in (1, 0) if "y first" in wrong else (0, 1):
                shift = 0 if "no y" in wrong else axis * planes
                emit([loc_ptr + (step * i + shift) * unit for i in points], itemsize)
            if "weight last" in wrong:
                emit(weights, itemsize)

        def values(lanes, corner, width):
            rows = [(where[i][corner], byte) for i, byte in lanes]
            emit([row + byte if row >= 0 or "unmasked" in wrong else None for row, byte in rows], width)

        whole = "ragged" in wrong
        heads_first = [q * M + m for m in range(M) for q in range(Q)]
        rows = heads_first if "heads first" in wrong else range(Q * M)
        apart = 1 if "channels as bytes" in wrong else unit
        if tiling == "output":
            items = [(r, d) for r in rows for d in range(D)]
            warps = [
                part
                for piece in (_groups(items, D) if "row per warp" in wrong else [items])
                for part in _groups(piece, whole=whole)
            ]
            for warp in warps:
                if "parameters first" in wrong:
                    for p in range(P):
                        parameters([r * P + p for r, _ in warp])
                for p in range(P):
                    if "parameters first" not in wrong and (p == 0 or "first point" not in wrong):
                        parameters([r * P + p for r, _ in warp])
                    for corner in range(4):
                        values([(r * P + p, d * apart) for r, d in warp], corner, itemsize)
        elif tiling == "point":
            for warp in _groups([r * P + p for r in rows for p in range(P)], whole=whole):
                parameters(warp)
                if "one channel" in wrong or "whole row" in wrong:
                    for corner in range(4):
                        values([(i, 0) for i in warp], corner, itemsize * (D if "whole row" in wrong else 1))
                elif "channels outside" in wrong:
                    for d in range(D):
                        for corner in range(4):
                            values([(i, d * apart) for i in warp], corner, itemsize)
                else:
                    for corner in range(4):
                        for d in range(D):
                            values([(i, d * apart) for i in warp], corner, itemsize)
        else:
            step = itemsize if "single numbers" in wrong else 16
            width = itemsize if "narrow" in wrong else step
            programs = [
                [(q * M + m) * P + p for q in range(first, min(first + block, Q)) for p in range(P)]
                for first in range(0, Q, block)
                for m in range(M)
            ]
            if "heads together" in wrong:
                programs = _groups(list(range(Q * M * P)), block * P)
            if "heads outside" in wrong:
                count = -(-Q // block)
                programs = [programs[f * M + m] for m in range(M) for f in range(count)]
            if "32 points at a time" in wrong:
                programs = [part for points in programs for part in _groups(points)]
            for points in programs:
                for part in _groups(points):
                    parameters(part)
                pieces = [
                    (i, byte // step if "pieces as bytes" in wrong else byte)
                    for i in points
                    for byte in range(0, D * itemsize, step)
                ]
                order = [(corner, part) for corner in range(4) for part in _groups(pieces, whole=whole)]
                if "corners inside" in wrong:
                    order = [(corner, part) for part in _groups(pieces) for corner in range(4)]
                for corner, part in order:
                    values(part, corner, width)
        return out


_tilings = _Tilings()


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


def _said(address, D, itemsize, pointers, sizes) -> str:
    """An address in words."""
    Q, M, P, _ = sizes
    for name, pointer, each in zip(("value", "the locations", "the weights"), pointers, (0, 2, 1)):
        number, byte = divmod(address - pointer, itemsize)
        inside = 0 <= number < (each * Q * M * P or 1 << 19)
        if -4096 < address - pointer < 0:
            return f"{pointer - address} bytes before {name}"
        if not inside:
            continue
        over = f" + {byte} bytes" if byte else ""
        if name == "value":
            row, channel = divmod(number, D)
            return f"pixel {row // M}, head {row % M}, channel {channel}{over}"
        what = "weight" if each == 1 else "xy"[number % 2]
        row, point = divmod(number // each, P)
        return f"{what} of query {row // M}, head {row % M}, point {point}{over}"
    return f"address {address}, which is nobody's"


def _plain(answer, tiling, corners, D, itemsize, value_ptr, loc_ptr, attn_ptr, block):
    """The requests in words, each lane's bytes and what they are; the lanes' order makes no difference to the machine."""
    found = answer(tiling, corners, D, itemsize, value_ptr, loc_ptr, attn_ptr, block)
    if hasattr(found, "__next__"):
        found = list(found)
    if not isinstance(found, (list, tuple)):
        return found
    plain, pointers = [], (value_ptr, loc_ptr, attn_ptr)
    for i, request in enumerate(found):
        if not isinstance(request, (list, tuple)) or len(request) != 2 or not isinstance(request[0], (list, tuple)):
            raise Failed(
                f"request {i} of yours is {describe(request)}, expected (a list of addresses, bytes that a lane reads).",
                "the form of a request",
            )
        *addresses, width = (
            n.item() if isinstance(n, Tensor) and n.numel() == 1 else n for n in (*request[0], request[1])
        )
        broken = next((n for n in (*addresses, width) if not isinstance(n, Integral)), 0)
        if not isinstance(broken, Integral):
            raise Failed(
                f"request {i} of yours holds {describe(broken)}. Addresses and sizes are whole numbers of bytes.",
                "not a whole number",
            )
        lanes = (_said(address, D, itemsize, pointers, corners.shape) for address in sorted(set(addresses)))
        plain.append([f"{lane} ({width} bytes)" for lane in lanes])
    return plain


def _reference_requests(tiling, corners, D, itemsize, value_ptr, loc_ptr, attn_ptr, block):
    return _plain(_tilings, tiling, corners, D, itemsize, value_ptr, loc_ptr, attn_ptr, block)


exercise(
    "03.tiling_addresses",
    reference=_reference_requests,
    invoke=_plain,
    cases=[
        per_output_element,
        per_output_element_ragged,
        per_point,
        per_point_ragged,
        per_block,
        per_block_ragged,
        *map(_far_outside, ("output", "point", "block")),
    ],
    axes=["request", "lane"],
    mistakes=[
        Mistake(
            "when corners outside the image are read",
            _Tilings(unmasked=True),
            "A corner of -1 does not exist. What would be read at pixel -1?",
        ),
        Mistake(
            "when corners outside the image read the first pixel instead",
            _Tilings(clamped=True),
            "A lane that is masked off does not read anything, not even a pixel that exists.",
        ),
        Mistake(
            "when requests without lanes are issued",
            _Tilings(silent=True),
            "When every lane of a warp is masked off, the request is not issued at all.",
        ),
        Mistake(
            "when weights and locations are left out",
            _Tilings(**{"no parameters": True}),
            "Before a lane can read a pixel it has to know where: a weight, an x and a y are loads too.",
        ),
        Mistake(
            "when every head reads head 0",
            _Tilings(**{"no head": True}),
            "value is (S, M, D): where in a pixel's M rows does head m begin?",
        ),
        Mistake(
            "when element numbers are taken for addresses",
            _Tilings(units=True),
            "Addresses count bytes. How many bytes further is the next number?",
        ),
        Mistake(
            "when all x lie before all y",
            _Tilings(planes=True),
            "The last axis of the locations is (x, y): what lies right behind the x of a point?",
        ),
        Mistake(
            "when y is read where x is",
            _Tilings(**{"no y": True}),
            "x and y are two numbers, side by side.",
        ),
        Mistake(
            "when y is read before x",
            _Tilings(**{"y first": True}),
            "The order is weight, x, y.",
        ),
        Mistake(
            "when the threads left over at the end are dropped",
            _Tilings(ragged=True),
            "The number of threads need not be a multiple of 32. Who computes the rest?",
        ),
        Mistake(
            'when each head begins a new warp in "output"',
            _Tilings(**{"row per warp": True}),
            "Threads are numbered through (query, head, channel) without gaps. With 20 channels, which does thread 25 have?",
        ),
        Mistake(
            'when only the first channel is read in "point"',
            _Tilings(**{"one channel": True}),
            "One thread owns a point, with all its D channels: it has to load each of them.",
        ),
        Mistake(
            'when the four corners are read channel by channel in "point"',
            _Tilings(**{"channels outside": True}),
            "Corner after corner: first every channel of the first corner.",
        ),
        Mistake(
            'when the pieces of "block" are single numbers',
            _Tilings(**{"single numbers": True}),
            "In this tiling a lane loads 16 bytes at once.",
        ),
        Mistake(
            'when a lane of "block" loads one number of its piece',
            _Tilings(narrow=True),
            "A piece has 16 bytes, and a lane loads all of it in one request.",
        ),
        Mistake(
            'when piece k of a row is taken to lie k bytes into it in "block"',
            _Tilings(**{"pieces as bytes": True}),
            "A piece has 16 bytes. How many bytes lie before piece k?",
        ),
        Mistake(
            'when the four corners come piece by piece in "block"',
            _Tilings(**{"corners inside": True}),
            "Corner after corner: first every piece of the first corner, 32 at a time.",
        ),
        Mistake(
            'when "block" finishes 32 points before it loads the weights of the next',
            _Tilings(**{"32 points at a time": True}),
            "First the weights and locations of all points of the program, 32 at a time; then the pieces of all points.",
        ),
        Mistake(
            "when channel d is taken to lie d bytes into its row",
            _Tilings(**{"channels as bytes": True}),
            "How many bytes has a channel?",
        ),
        Mistake(
            'when "point" loads a whole row in one request',
            _Tilings(**{"whole row": True}),
            "Here a lane loads one number at a time: a request for each channel.",
        ),
        Mistake(
            'when "output" loads weight and location of its first point only',
            _Tilings(**{"first point": True}),
            "Every point has its own. Which loop do the three requests belong into?",
        ),
        Mistake(
            'when "output" loads all weights and locations before the first pixel',
            _Tilings(**{"parameters first": True}),
            "Point after point: a point's weight, x and y, its four corners, and only then the next point.",
        ),
        Mistake(
            "when the weight is read after x and y",
            _Tilings(**{"weight last": True}),
            "The order is weight, x, y.",
        ),
        Mistake(
            "when x and y are read in one request",
            _Tilings(**{"x and y at once": True}),
            "It would be a good idea. These three tilings load x and y one after the other.",
        ),
        Mistake(
            "when the x of the next point is taken to lie right behind this one's",
            _Tilings(**{"one apart": True}),
            "Between the two lies a y.",
        ),
        Mistake(
            "when weights and locations are taken to lie head by head",
            _Tilings(**{"head by head": True}),
            "Their axes are (Q, M, P): all heads of a query, then the next query.",
        ),
        Mistake(
            "when work items are numbered head by head",
            _Tilings(**{"heads first": True}),
            "An item is (query, head, …), numbered in this order: all heads of a query, then the next query.",
        ),
        Mistake(
            'when a program of "block" owns neighbouring heads instead of queries',
            _Tilings(**{"heads together": True}),
            "A program owns `block` queries of one and the same head.",
        ),
        Mistake(
            'when "block" goes through all queries of a head first',
            _Tilings(**{"heads outside": True}),
            "Blocks of queries outside, heads inside: the same queries' next head comes next.",
        ),
        *(
            Mistake(
                f'when every tiling is "{one}"',
                _Tilings(tiling=one),
                "`tiling` says which of the three ways to go. Do you compare it with the right word?",
            )
            for one in ("output", "point", "block")
        ),
    ],
    hints=[
        "Take the first warp of each tiling. What does lane 5 own: a channel, a point, or a piece of a row? What does it "
        "load first?",
        "List the work items of a tiling in order, cut the list into groups of 32, and translate a group into requests. "
        "The three tilings differ in what an item is and in the loops around it; two small helpers (parameters of some "
        "points, values of some lanes) serve all of them.",
        "Point (q, m, p) has number `i = (q * M + m) * P + p`: its weight is number i of the weights, its x number 2i of the "
        "locations. Its row of pixel s begins `(s * M + m) * D` numbers into value. Drop lanes whose s is -1, and requests "
        "that are empty.",
    ],
)


# --- traffic_bounds -------------------------------------------------------------------------------------------------


def _bounds(corners: Tensor, S, D, itemsize, *, heads=True, images=True, outside=False):
    """The right answer, and by its options the wrong ones: (sectors once, sectors each time, streamed bytes)."""
    B, Q, M, P, _ = corners.shape
    pixel = corners.clamp_min(0) if outside else corners
    if images:
        pixel = pixel + S * torch.arange(B)[:, None, None, None, None]
    row = pixel * M + (torch.arange(M)[:, None, None] if heads else 0)
    start = (row * D * itemsize)[(corners >= 0) | outside]
    first, last = start // SECTOR, (start + D * itemsize - 1) // SECTOR
    touched = torch.zeros(B * S * M * D * itemsize // SECTOR + 1, dtype=torch.bool)
    for i in range(D * itemsize // SECTOR + 2):
        touched[torch.minimum(first + i, last)] = True
    return int(touched.sum()), int((last - first + 1).sum()), B * Q * M * (3 * P + D) * itemsize


def _traffic_bounds(corners, S, D, itemsize, **options):
    once, each, streams = _bounds(corners, S, D, itemsize, **options)
    return SECTOR * once + streams, SECTOR * each + streams


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


def the_heads_of_one_pixel(draw: Draw):
    """the rows of a pixel's heads lie side by side, 36 bytes each, and share sectors"""
    pixels = 9 * draw.permutation(20)[:8].reshape(1, 2, 1, 1, 4) + draw.integer(0, 7)
    return pixels.expand(1, 2, 3, 1, 4).clone(), 190, 9, 4


def mostly_outside(draw: Draw):
    """corners outside the image are not read, but their weights and locations are"""
    return _corners(draw, 1, 5, 2, 7, S=40, inside=0.1), 40, 8, 4


def _changed(change, **options):
    def answer(corners, S, D, itemsize):
        B, Q, M, P, _ = corners.shape
        once, each, streams = _bounds(corners, S, D, itemsize, **options)
        return change(SECTOR * once, SECTOR * each, streams, B, S, M, D, itemsize, Q, P)

    return answer


exercise(
    "03.traffic_bounds",
    reference=_traffic_bounds,
    cases=[
        hardly_touched,
        read_many_times,
        two_images,
        several_heads,
        rows_that_share_sectors,
        the_heads_of_one_pixel,
        mostly_outside,
    ],
    parts=["compulsory", "requested"],
    mistakes=[
        Mistake(
            "when all of value counts as compulsory",
            _changed(lambda once, each, streams, B, S, M, D, n, Q, P: (B * S * M * D * n + streams, each + streams)),
            "Which sectors does nobody ask for? They can stay in DRAM.",
        ),
        Mistake(
            "when reuse is ignored and every read counts as compulsory",
            _changed(lambda once, each, streams, *_: (each + streams, each + streams)),
            "A pixel that twenty queries read comes from DRAM once, if a cache keeps it. This floor would lie above what is "
            "measured.",
        ),
        Mistake(
            "when a sector counts once in the requested bytes, too",
            _changed(lambda once, each, streams, *_: (once + streams, once + streams)),
            "Requested is what the corners ask for, each time they ask.",
        ),
        Mistake(
            "when the two are swapped",
            _changed(lambda once, each, streams, *_: (each + streams, once + streams)),
            "The compulsory bytes come first; they can never be more than the requested ones.",
        ),
        Mistake(
            "when pixels of different images are taken for the same",
            functools.partial(_traffic_bounds, images=False),
            "Image b begins b * S pixels further. Are two images' pixels ever in the same place?",
        ),
        Mistake(
            "when heads are taken for the same",
            functools.partial(_traffic_bounds, heads=False),
            "A pixel has M rows, one per head. Two heads at one pixel read different bytes.",
        ),
        Mistake(
            "when corners outside the image are read",
            functools.partial(_traffic_bounds, outside=True),
            "-1 means that there is nothing to read.",
        ),
        Mistake(
            "when a row's bytes are counted instead of its sectors",
            lambda corners, S, D, itemsize: _by_bytes(corners, S, D, itemsize),
            "A row that begins in the middle of a sector still fetches all of it, and two rows may share one.",
        ),
        Mistake(
            "when every row begins a sector of its own",
            lambda corners, S, D, itemsize: _own_sectors(corners, S, D, itemsize),
            "Rows follow one another without gaps. Where does row 1 of 40 bytes begin?",
        ),
        Mistake(
            "when a corner at -1 is read like any other pixel",
            lambda corners, S, D, itemsize: _by_hand(corners, S, D, itemsize, there=lambda s: True),
            "-1 means that there is nothing to read.",
        ),
        Mistake(
            "when corners at pixel 0 are left out",
            lambda corners, S, D, itemsize: _by_hand(corners, S, D, itemsize, there=lambda s: s > 0),
            "Pixel 0 exists. Only -1 means that there is nothing to read.",
        ),
        Mistake(
            "when value is taken to lie head by head",
            lambda corners, S, D, itemsize: _by_hand(
                corners, S, D, itemsize, row=lambda b, s, m, M: (b * M + m) * S + s
            ),
            "value is (B, S, M, D): the rows of a pixel's heads lie side by side.",
        ),
        Mistake(
            "when only the sector in which a row begins counts",
            lambda corners, S, D, itemsize: _by_hand(corners, S, D, itemsize, reach=lambda n: 1),
            "A row is D * itemsize bytes long. Where does it end?",
        ),
        Mistake(
            "when a row is taken to be one byte longer",
            lambda corners, S, D, itemsize: _by_hand(corners, S, D, itemsize, reach=lambda n: n + 1),
            "A row of 32 bytes from byte 0 on ends with byte 31.",
        ),
        Mistake(
            "when a pixel that two corners of one point share is requested once",
            lambda corners, S, D, itemsize: _by_hand(corners, S, D, itemsize, each=set),
            "Each corner asks for its row, whoever else has asked.",
        ),
        Mistake(
            "when weights, locations and outputs count in the requested bytes only",
            _changed(lambda once, each, streams, *_: (once, each + streams)),
            "They have to come from DRAM, or go there, as well.",
        ),
        Mistake(
            "when weights, locations and outputs count in the compulsory bytes only",
            _changed(lambda once, each, streams, *_: (once + streams, each)),
            "They are asked for as well.",
        ),
        Mistake(
            "when weights and locations are counted for each corner",
            _changed(
                lambda once, each, streams, B, S, M, D, n, Q, P: (
                    once + streams + 9 * B * Q * M * P * n,
                    each + streams + 9 * B * Q * M * P * n,
                )
            ),
            "A point has one weight and one location, and its four corners follow from them.",
        ),
        Mistake(
            "when weights, locations and outputs are counted in numbers instead of bytes",
            _changed(lambda once, each, streams, B, S, M, D, n, Q, P: (once + streams // n, each + streams // n)),
            "How many bytes has one of these numbers?",
        ),
        Mistake(
            "when weights and locations are counted only where some corner is read",
            lambda corners, S, D, itemsize: _by_hand(corners, S, D, itemsize, all_points=False),
            "A lane has to load a location before it can know that the point lies outside.",
        ),
        Mistake(
            "when the locations are left out",
            _changed(
                lambda once, each, streams, B, S, M, D, n, Q, P: (
                    once + streams - 2 * B * Q * M * P * n,
                    each + streams - 2 * B * Q * M * P * n,
                )
            ),
            "Each point's x and y come from memory, too.",
        ),
        Mistake(
            "when weights, locations and outputs are left out",
            _changed(lambda once, each, streams, *_: (once, each)),
            "The call also reads its weights and locations, and writes its result.",
        ),
        Mistake(
            "when the outputs are left out",
            _changed(
                lambda once, each, streams, B, S, M, D, n, Q, P: (
                    once + streams - B * Q * M * D * n,
                    each + streams - B * Q * M * D * n,
                )
            ),
            "What is written has to go to memory as well: Q rows of M * D numbers per image.",
        ),
        Mistake(
            "when a location is one number, or the weights are left out",
            _changed(
                lambda once, each, streams, B, S, M, D, n, Q, P: (
                    once + streams - B * Q * M * P * n,
                    each + streams - B * Q * M * P * n,
                )
            ),
            "A location is an x and a y, and with the weight a point has three numbers.",
        ),
        Mistake(
            "in sectors instead of bytes",
            _changed(lambda once, each, streams, *_: (once // SECTOR + streams, each // SECTOR + streams)),
            "How many bytes is a sector?",
        ),
    ],
    hints=[
        "Two queries read the same pixel of the same head. How much has to come from DRAM, and how much does the machine "
        "hand to the lanes?",
        "Turn every corner that exists into the first and the last sector of its row. The requested bytes need only the "
        "number of sectors of each row; the compulsory ones need the distinct sectors.",
        "Row of pixel s, head m, image b: `(b * S + s) * M + m`, times D * itemsize bytes. With `torch.arange` shaped to "
        "broadcast over corners this is one expression. `torch.unique` keeps each sector once.",
    ],
)


def _by_bytes(corners, S, D, itemsize):
    B, Q, M, P, _ = corners.shape
    row = ((corners + S * torch.arange(B)[:, None, None, None, None]) * M + torch.arange(M)[:, None, None])[
        corners >= 0
    ]
    streams = B * Q * M * (3 * P + D) * itemsize
    return len(row.unique()) * D * itemsize + streams, len(row) * D * itemsize + streams


def _by_hand(corners, S, D, itemsize, *, there=lambda s: s >= 0, row=lambda b, s, m, M: None, reach=lambda n: n,
             each=list, all_points=True):  # fmt: skip
    """Corner after corner; by its options the wrong ways."""
    B, Q, M, P, _ = corners.shape
    touched, requested, points, length = set(), 0, 0, D * itemsize
    for b, q, m, p in torch.cartesian_prod(*map(torch.arange, (B, Q, M, P))).tolist():
        pixels = each(corners[b, q, m, p].tolist())
        points += all_points or max(pixels) >= 0
        for s in filter(there, pixels):
            place = row(b, s, m, M)
            start = ((b * S + s) * M + m if place is None else place) * length
            sectors = range(start // SECTOR, (start + reach(length) - 1) // SECTOR + 1)
            touched.update(sectors)
            requested += len(sectors)
    streams = (3 * points + B * Q * M * D) * itemsize
    return SECTOR * len(touched) + streams, SECTOR * requested + streams


def _own_sectors(corners, S, D, itemsize):
    return _by_rows(corners, S, -(-D * itemsize // SECTOR) * SECTOR, (D, itemsize))


def _by_rows(corners, S, row_bytes, sizes):
    B, Q, M, P, _ = corners.shape
    D, itemsize = sizes
    row = ((corners + S * torch.arange(B)[:, None, None, None, None]) * M + torch.arange(M)[:, None, None])[
        corners >= 0
    ]
    streams = B * Q * M * (3 * P + D) * itemsize
    return len(row.unique()) * row_bytes + streams, len(row) * row_bytes + streams


# --- roofline -------------------------------------------------------------------------------------------------------


def _times(bytes, flops, gpu):
    return {"DRAM": bytes[0] / gpu.dram, "L1": bytes[1] / gpu.l1, "arithmetic": flops / gpu.flops}


def _slowest(times):
    bound = max(times, key=times.get)
    return 1e6 * times[bound], bound


def _roofline(bytes, flops, gpu):
    return _slowest(_times(bytes, flops, gpu))


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


exercise(
    "03.roofline",
    reference=_roofline,
    cases=[read_once, read_often, much_arithmetic],
    properties=[
        Property(
            "below_the_clock", "the floor of a call that was timed lies below its time", _below_the_clock, _decoder
        )
    ],
    parts=["microseconds", "bound"],
    mistakes=[
        Mistake(
            "when the requested bytes come from DRAM, as if nothing were ever reused",
            lambda bytes, flops, gpu: _slowest({**_times(bytes, flops, gpu), "DRAM": bytes[1] / gpu.dram}),
            "An ideal time that is longer than the measured one is not ideal. Which of the two numbers of bytes must come "
            "from DRAM even if the caches do all they can?",
        ),
        Mistake(
            "when the requested bytes do not matter",
            lambda bytes, flops, gpu: _slowest({**_times(bytes, flops, gpu), "L1": 0.0}),
            "A byte that is read twenty times comes from DRAM once. How often does L1 have to hand it out?",
        ),
        Mistake(
            "when arithmetic is left out",
            lambda bytes, flops, gpu: _slowest(
                {k: v for k, v in _times(bytes, flops, gpu).items() if k != "arithmetic"}
            ),
            "With enough to compute, no bandwidth helps.",
        ),
        Mistake(
            "when the times are added",
            lambda bytes, flops, gpu: (
                1e6 * sum(_times(bytes, flops, gpu).values()),
                _roofline(bytes, flops, gpu)[1],
            ),
            "While one warp computes, another one loads. How long do three things take that run at the same time?",
        ),
        Mistake(
            "when the fastest of the three decides",
            lambda bytes, flops, gpu: (
                1e6 * min(_times(bytes, flops, gpu).values()),
                min(_times(bytes, flops, gpu), key=_times(bytes, flops, gpu).get),
            ),
            "The call is done when the last of the three is done.",
        ),
        Mistake(
            "in seconds",
            lambda bytes, flops, gpu: (_roofline(bytes, flops, gpu)[0] / 1e6, _roofline(bytes, flops, gpu)[1]),
            "The rates are per second, and the time is wanted in microseconds.",
        ),
        Mistake(
            "in milliseconds",
            lambda bytes, flops, gpu: (_roofline(bytes, flops, gpu)[0] / 1e3, _roofline(bytes, flops, gpu)[1]),
            "The time is wanted in microseconds: a millionth of a second.",
        ),
        Mistake(
            "when the bound with the largest amount is named, not the one with the longest time",
            lambda bytes, flops, gpu: (
                _roofline(bytes, flops, gpu)[0],
                max({"DRAM": bytes[0], "L1": bytes[1], "arithmetic": flops}.items(), key=lambda pair: pair[1])[0],
            ),
            "Amounts alone do not compare: a byte of DRAM takes longer than one of L1. Compare times.",
        ),
        Mistake(
            "when the time of DRAM comes on top of L1's",
            lambda bytes, flops, gpu: _slowest(
                {**_times(bytes, flops, gpu), "DRAM": bytes[0] / gpu.dram + bytes[1] / gpu.l1}
            ),
            "While one warp waits for DRAM, L1 answers others.",
        ),
        Mistake(
            "when L1 only hands out what does not come from DRAM",
            lambda bytes, flops, gpu: _slowest({**_times(bytes, flops, gpu), "L1": (bytes[1] - bytes[0]) / gpu.l1}),
            "Whatever comes from DRAM passes through L1 on its way to the lanes.",
        ),
        Mistake(
            "when the two results change places",
            lambda bytes, flops, gpu: _roofline(bytes, flops, gpu)[::-1],
            "First the microseconds, then the name.",
        ),
        Mistake(
            "when the rate is divided by the amount",
            lambda bytes, flops, gpu: _slowest(
                {"DRAM": gpu.dram / bytes[0], "L1": gpu.l1 / bytes[1], "arithmetic": gpu.flops / flops}
            ),
            "Bytes over bytes a second are seconds.",
        ),
    ],
    hints=[
        "How long does DRAM need for its bytes, if everything else took no time? And L1? And the arithmetic?",
        "Three times; all three go on at once. Which decides?",
        "Each time is an amount over a rate. Keep them in a dictionary under the names of the bounds; `max` takes a key.",
    ],
)


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


def _by_tiles(centres):
    return sorted(range(len(centres)), key=lambda i: (int(centres[i][1] * 8), int(centres[i][0] * 8)))


def _score(answer) -> str:
    centres, pixels = _scene(Draw(0))
    mine, given = _hit_rate(answer(centres), pixels), _hit_rate(range(len(centres)), pixels)
    stream = [p for row in pixels for p in row]
    return f"{mine:.2%} of the reads hit; as given {given:.2%}; with a cache that holds everything {1 - len(set(stream)) / len(stream):.2%}."


exercise(
    "03.order_queries",
    reference=lambda centres: list(range(len(centres))),
    cases=[],
    properties=[
        Property("each_once", "every query is in the order, once", _each_once),
        Property("better_than_rows", "clearly more reads hit than row by row or from left to right", _better_than_rows),
    ],
    stretch=True,
    score=_score,
    mistakes=[
        Mistake(
            "when the queries stay as they are",
            lambda centres: list(range(len(centres))),
            "They come in any order. Which of them read the same pixels?",
        ),
        Mistake(
            "when they go row by row",
            _by_rows_of_the_image,
            "By the time the next row comes, is what the last one read still in the cache?",
        ),
        Mistake(
            "when they are sorted by x alone",
            _by_x,
            "Two queries with the same x can be a whole image apart.",
        ),
        Mistake(
            "when each query's place in the order is returned, and not the order",
            lambda centres: [_by_tiles(centres).index(query) for query in range(len(centres))],
            "The first number is that of the query which is computed first.",
        ),
        Mistake(
            "when the sorted centres are returned instead of their numbers",
            lambda centres: sorted(centres),
            "The answer is a list of numbers: which query is computed first, which second …",
        ),
    ],
    hints=[
        "Two queries share pixels when they are near each other, in x and in y. What does row by row get wrong?",
        "Cut the image into tiles and finish one tile before the next begins. How large may a tile be for this cache?",
        "Sort the numbers of the queries by a key that is equal or close for close centres: the tile they lie in, or the "
        "bits of x and y in turns, which makes tiles of every size at once.",
    ],
)

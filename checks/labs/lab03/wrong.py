"""Lab 03, The machine: the wrong answers that are known."""

import functools
from collections import deque

import torch

from checks.core.exercise import Mistake
from checks.labs.lab03.cases import _by_rows_of_the_image, _by_x
from checks.labs.lab03.truth import (
    SECTOR,
    _bounds,
    _delivered,
    _efficiency,
    _lru,
    _roofline,
    _sectors,
    _slowest,
    _times,
    _traffic_bounds,
    _useful,
)


def _sectors_with(addresses, itemsize, *, size=SECTOR, reach=None):
    """The answer with one of its choices made otherwise."""
    reach = itemsize - 1 if reach is None else reach
    return len({s for a in addresses for s in range(a // size, (a + reach) // size + 1)})


def _changes(addresses, itemsize):
    order = [a // SECTOR for a in addresses]
    return sum(one != other for one, other in zip(order, [None, *order]))


def _all_sectors(requests):
    return {s for addresses, n in requests for a in addresses for s in range(a // SECTOR, (a + n - 1) // SECTOR + 1)}


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


def _changed(change, **options):
    def answer(corners, S, D, itemsize):
        B, Q, M, P, _ = corners.shape
        once, each, streams = _bounds(corners, S, D, itemsize, **options)
        return change(SECTOR * once, SECTOR * each, streams, B, S, M, D, itemsize, Q, P)

    return answer


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


def _by_tiles(centres):
    return sorted(range(len(centres)), key=lambda i: (int(centres[i][1] * 8), int(centres[i][0] * 8)))


SECTORS: list[Mistake] = [
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
        lambda addresses, itemsize: _sectors_with(addresses, itemsize, reach=0),
        "An element is `itemsize` bytes long. In which sector is its last byte?",
    ),
    Mistake(
        "when only the first and the last byte of each element count",
        lambda addresses, itemsize: len({b // SECTOR for a in addresses for b in (a, a + itemsize - 1)}),
        "An element of 100 bytes may reach over four sectors. You have the outer two.",
    ),
    Mistake(
        "when each element is taken to be one byte longer",
        lambda addresses, itemsize: _sectors_with(addresses, itemsize, reach=itemsize),
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
        lambda addresses, itemsize: _sectors_with(addresses, itemsize, size=128),
        "A cache line has 128 bytes, but it is fetched in four sectors, each only if somebody needs it.",
    ),
    Mistake(
        "when addresses are taken for element numbers",
        lambda addresses, itemsize: _sectors([a * itemsize for a in addresses], itemsize),
        "The addresses are in bytes already.",
    ),
]


EFFICIENCY: list[Mistake] = [
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
        lambda requests: sum(_efficiency([one]) for one in requests if one[0]) / sum(bool(one[0]) for one in requests),
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
]


LRU_HITS: list[Mistake] = [
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
]


TILING_ADDRESSES: list[Mistake] = [
    Mistake(
        "when corners outside the image are read",
        {"values": "return [value_ptr + (s * M + m) * D * itemsize + byte for s, m, byte in there], width"},
        "A corner of -1 does not exist. What would be read at pixel -1?",
    ),
    Mistake(
        "when corners outside the image read the first pixel instead",
        {
            "values": "return [value_ptr + ((s * M + m) * D * itemsize if s >= 0 else 0) + byte for s, m, byte in there], width"
        },
        "A lane that is masked off does not read anything, not even a pixel that exists.",
    ),
    Mistake(
        "when requests without lanes are issued",
        {"result": "return requests"},
        "When every lane of a warp is masked off, the request is not issued at all.",
    ),
    Mistake(
        "when weights and locations are left out",
        {"loads": "return []"},
        "Before a lane can read a pixel it has to know where: a weight, an x and a y are loads too.",
    ),
    Mistake(
        "when every head reads head 0",
        {"values": "return [value_ptr + s * M * D * itemsize + byte for s, m, byte in there if s >= 0], width"},
        "value is (S, M, D): where in a pixel's M rows does head m begin?",
    ),
    Mistake(
        "when element numbers are taken for addresses",
        {
            "weights": "starts = [[attn_ptr + i for i in index]]",
            "places": "starts += [[loc_ptr + 2 * i + axis for i in index] for axis in (0, 1)]",
            "values": "return [value_ptr + (s * M + m) * D + byte for s, m, byte in there if s >= 0], width",
            "channels": "lanes = [(q, m, p, d) for q, m, d in warp]",
            "channel": "requests.append(values([(q, m, p, d) for q, m, p in warp], corner, itemsize))",
        },
        "Addresses count bytes. How many bytes further is the next number?",
    ),
    Mistake(
        "when all x lie before all y",
        {"places": "starts += [[loc_ptr + (i + axis * Q * M * P) * itemsize for i in index] for axis in (0, 1)]"},
        "The last axis of the locations is (x, y): what lies right behind the x of a point?",
    ),
    Mistake(
        "when y is read where x is",
        {"places": "starts += [[loc_ptr + 2 * i * itemsize for i in index] for axis in (0, 1)]"},
        "x and y are two numbers, side by side.",
    ),
    Mistake(
        "when y is read before x",
        {"places": "starts += [[loc_ptr + (2 * i + axis) * itemsize for i in index] for axis in (1, 0)]"},
        "The order is weight, x, y.",
    ),
    Mistake(
        "when the threads left over at the end are dropped",
        {
            "warps": "return [work[i : i + 32] for i in range(0, len(work) - 31, 32)]",
            "parts": "for lanes in [points[i : i + 32] for i in range(0, len(points), 32)]:",
        },
        "The number of threads need not be a multiple of 32. Who computes the rest?",
    ),
    Mistake(
        'when each head begins a new warp in "output"',
        {
            "elements": "for warp in [part for q in range(Q) for m in range(M) for part in warps([(q, m, d) for d in range(D)])]:"
        },
        "Threads are numbered through (query, head, channel) without gaps. With 20 channels, which does thread 25 have?",
    ),
    Mistake(
        'when only the first channel is read in "point"',
        {
            "each_corner": """
                for corner in range(4):
                    requests.append(values([(q, m, p, 0) for q, m, p in warp], corner, itemsize))
            """
        },
        "One thread owns a point, with all its D channels: it has to load each of them.",
    ),
    Mistake(
        'when the four corners are read channel by channel in "point"',
        {
            "each_corner": """
                for d in range(D):
                    for corner in range(4):
                        requests.append(values([(q, m, p, d * itemsize) for q, m, p in warp], corner, itemsize))
            """
        },
        "Corner after corner: first every channel of the first corner.",
    ),
    Mistake(
        'when the pieces of "block" are single numbers',
        {
            "pieces": "pieces = [(*point, byte) for point in points for byte in range(0, D * itemsize, itemsize)]",
            "rows": "requests += [values(lanes, corner, itemsize) for corner in range(4) for lanes in warps(pieces)]",
        },
        "In this tiling a lane loads 16 bytes at once.",
    ),
    Mistake(
        'when a lane of "block" loads one number of its piece',
        {"rows": "requests += [values(lanes, corner, itemsize) for corner in range(4) for lanes in warps(pieces)]"},
        "A piece has 16 bytes, and a lane loads all of it in one request.",
    ),
    Mistake(
        'when piece k of a row is taken to lie k bytes into it in "block"',
        {"pieces": "pieces = [(*point, piece) for point in points for piece in range(D * itemsize // 16)]"},
        "A piece has 16 bytes. How many bytes lie before piece k?",
    ),
    Mistake(
        'when the four corners come piece by piece in "block"',
        {"rows": "requests += [values(lanes, corner, 16) for lanes in warps(pieces) for corner in range(4)]"},
        "Corner after corner: first every piece of the first corner, 32 at a time.",
    ),
    Mistake(
        'when "block" finishes 32 points before it loads the weights of the next',
        {
            "parts": """
                for lanes in warps(points):
                    requests += parameters(lanes)
                    pieces = [(*point, byte) for point in lanes for byte in range(0, D * itemsize, 16)]
                    requests += [values(part, corner, 16) for corner in range(4) for part in warps(pieces)]
            """,
            "pieces": "",
            "rows": "",
        },
        "First the weights and locations of all points of the program, 32 at a time; then the pieces of all points.",
    ),
    Mistake(
        "when channel d is taken to lie d bytes into its row",
        {
            "channels": "lanes = [(q, m, p, d) for q, m, d in warp]",
            "channel": "requests.append(values([(q, m, p, d) for q, m, p in warp], corner, itemsize))",
        },
        "How many bytes has a channel?",
    ),
    Mistake(
        'when "point" loads a whole row in one request',
        {
            "each_corner": """
                for corner in range(4):
                    requests.append(values([(q, m, p, 0) for q, m, p in warp], corner, itemsize * D))
            """
        },
        "Here a lane loads one number at a time: a request for each channel.",
    ),
    Mistake(
        'when "output" loads weight and location of its first point only',
        {
            "own": """
                if p == 0:
                    requests += parameters([(q, m, p) for q, m, d in warp])
            """
        },
        "Every point has its own. Which loop do the three requests belong into?",
    ),
    Mistake(
        'when "output" loads all weights and locations before the first pixel',
        {
            "each_point": """
                for p in range(P):
                    requests += parameters([(q, m, p) for q, m, d in warp])
                for p in range(P):
            """,
            "own": "",
        },
        "Point after point: a point's weight, x and y, its four corners, and only then the next point.",
    ),
    Mistake(
        "when the weight is read after x and y",
        {"loads": "return [(addresses, itemsize) for addresses in (starts[1], starts[2], starts[0])]"},
        "The order is weight, x, y.",
    ),
    Mistake(
        "when x and y are read in one request",
        {"loads": "return [(starts[0], itemsize), (starts[1], 2 * itemsize)]"},
        "It would be a good idea. These three tilings load x and y one after the other.",
    ),
    Mistake(
        "when the x of the next point is taken to lie right behind this one's",
        {"places": "starts += [[loc_ptr + (i + axis) * itemsize for i in index] for axis in (0, 1)]"},
        "Between the two lies a y.",
    ),
    Mistake(
        "when weights and locations are taken to lie head by head",
        {"index": "index = [(m * Q + q) * P + p for q, m, p in points]"},
        "Their axes are (Q, M, P): all heads of a query, then the next query.",
    ),
    Mistake(
        "when work items are numbered head by head",
        {
            "elements": "for warp in warps([(q, m, d) for m in range(M) for q in range(Q) for d in range(D)]):",
            "points": "for warp in warps([(q, m, p) for m in range(M) for q in range(Q) for p in range(P)]):",
        },
        "An item is (query, head, …), numbered in this order: all heads of a query, then the next query.",
    ),
    Mistake(
        'when a program of "block" owns neighbouring heads instead of queries',
        {
            "blocks": """
                everything = [(q, m, p) for q in range(Q) for m in range(M) for p in range(P)]
                for first in range(0, len(everything), block * P):
                    points = everything[first : first + block * P]
                    for lanes in warps(points):
                        requests += parameters(lanes)
                    pieces = [(*point, byte) for point in points for byte in range(0, D * itemsize, 16)]
                    requests += [values(lanes, corner, 16) for corner in range(4) for lanes in warps(pieces)]
            """
        },
        "A program owns `block` queries of one and the same head.",
    ),
    Mistake(
        'when "block" goes through all queries of a head first',
        {
            "blocks": """
                for m in range(M):
                    for first in range(0, Q, block):
                        points = [(q, m, p) for q in range(first, min(first + block, Q)) for p in range(P)]
                        for lanes in warps(points):
                            requests += parameters(lanes)
                        pieces = [(*point, byte) for point in points for byte in range(0, D * itemsize, 16)]
                        requests += [values(lanes, corner, 16) for corner in range(4) for lanes in warps(pieces)]
            """
        },
        "Blocks of queries outside, heads inside: the same queries' next head comes next.",
    ),
    *(
        Mistake(
            f'when every tiling is "{one}"',
            {"pixel": f'@\ntiling = "{one}"'},
            "`tiling` says which of the three ways to go. Do you compare it with the right word?",
        )
        for one in ("output", "point", "block")
    ),
]


TRAFFIC_BOUNDS: list[Mistake] = [
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
        lambda corners, S, D, itemsize: _by_hand(corners, S, D, itemsize, row=lambda b, s, m, M: (b * M + m) * S + s),
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
]


ROOFLINE: list[Mistake] = [
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
        lambda bytes, flops, gpu: _slowest({k: v for k, v in _times(bytes, flops, gpu).items() if k != "arithmetic"}),
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
]


ORDER_QUERIES: list[Mistake] = [
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
]

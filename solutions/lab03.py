"""Lab 03, The machine: one way to answer it."""

from collections import OrderedDict

import torch


def sectors(addresses: list[int], itemsize: int) -> int:
    """How many sectors of 32 bytes one request of a warp fetches.

    Args:
        addresses: where each lane's element begins, in bytes. Lanes that are masked off are not
            in the list; it may be empty.
        itemsize: bytes of one element. It may lie across a border between sectors.

    Returns:
        The number of distinct sectors with at least one byte of at least one element.
    """
    touched = set()
    for address in addresses:
        touched.update(range(address // 32, (address + itemsize - 1) // 32 + 1))
    return len(touched)


def efficiency(requests: list[tuple[list[int], int]]) -> float:
    """Useful bytes over delivered bytes of a series of requests.

    Args:
        requests: (addresses, itemsize) of each request, as `sectors` takes them; one may have no
            addresses, but not all of them.

    Returns:
        Useful over delivered, both summed over the series. Useful: the bytes that lanes asked for;
        an element that several lanes of one request read counts once. Delivered: 32 bytes for
        every sector of every request.
    """
    useful = sum(len(set(addresses)) * itemsize for addresses, itemsize in requests)
    delivered = sum(32 * sectors(addresses, itemsize) for addresses, itemsize in requests)
    return useful / delivered


def lru_hits(sector_stream: list[int], capacity: int) -> int:
    """How many reads a cache answers that keeps the sectors which were used most recently.

    Args:
        sector_stream: the sectors in the order in which they are read.
        capacity: how many sectors the cache holds, 0 or more; it begins empty.

    Returns:
        The number of reads that find their sector in the cache. When a new sector does not fit,
        the one whose last use is longest ago makes room.
    """
    cache, hits = OrderedDict(), 0
    for sector in sector_stream:
        if sector in cache:
            hits += 1
        cache[sector] = True
        cache.move_to_end(sector)
        if len(cache) > capacity:
            cache.popitem(last=False)
    return hits


def tiling_addresses(
    tiling: str,
    corners: torch.Tensor,
    D: int,
    itemsize: int,
    value_ptr: int,
    loc_ptr: int,
    attn_ptr: int,
    block: int = 2,
) -> list[tuple[list[int], int]]:
    """The loads of one forward call, warp after warp, for one of three ways to share out the work.

    Work items are numbered in the order given here; 32 consecutive ones go to a warp, one a lane.

    "output": an item is (query, head, channel). For each point: the lanes' weights, x and y, three
        requests; then its four corners, one request each, every lane its own channel.
    "point": an item is (query, head, point). First the weights, x and y; then, for each corner and
        each channel, one request.
    "block": a warp owns `block` queries of one head; blocks outside, heads inside. Its points
        (query, point), 32 at a time, load their weights, x and y. Then, for each corner, the pieces
        of 16 bytes (query, point, piece), 32 at a time.

    Args:
        tiling: "output", "point" or "block".
        corners: (Q, M, P, 4) int64, the pixel of each corner; -1 outside the image: nothing is read.
        D: channels per head; D * itemsize is a multiple of 16.
        itemsize: bytes of one number.
        value_ptr: byte address of value, (S, M, D).
        loc_ptr: byte address of the locations, (Q, M, P, 2), (x, y) in the last axis.
        attn_ptr: byte address of the weights, (Q, M, P).
        block: queries of one program of "block"; the last one may have fewer.

    Returns:
        The requests in order, each (byte addresses of the lanes that read, bytes a lane reads).
        A request without lanes is never issued.
    """
    Q, M, P, _ = corners.shape
    pixel = corners.tolist()  # @pixel

    def warps(work):
        return [work[i : i + 32] for i in range(0, len(work), 32)]  # @warps

    def parameters(points):
        index = [(q * M + m) * P + p for q, m, p in points]  # @index
        starts = [[attn_ptr + i * itemsize for i in index]]  # @weights
        starts += [[loc_ptr + (2 * i + axis) * itemsize for i in index] for axis in (0, 1)]  # @places
        return [(addresses, itemsize) for addresses in starts]  # @loads

    def values(lanes, corner, width):
        there = [(pixel[q][m][p][corner], m, byte) for q, m, p, byte in lanes]
        return [value_ptr + (s * M + m) * D * itemsize + byte for s, m, byte in there if s >= 0], width  # @values

    requests = []
    if tiling == "output":
        for warp in warps([(q, m, d) for q in range(Q) for m in range(M) for d in range(D)]):  # @elements
            for p in range(P):  # @each_point
                requests += parameters([(q, m, p) for q, m, d in warp])  # @own
                lanes = [(q, m, p, d * itemsize) for q, m, d in warp]  # @channels
                requests += [values(lanes, corner, itemsize) for corner in range(4)]
    elif tiling == "point":
        for warp in warps([(q, m, p) for q in range(Q) for m in range(M) for p in range(P)]):  # @points
            requests += parameters(warp)
            for corner in range(4):  # @each_corner
                for d in range(D):
                    requests.append(values([(q, m, p, d * itemsize) for q, m, p in warp], corner, itemsize))  # @channel
    else:
        for first in range(0, Q, block):  # @blocks
            for m in range(M):
                points = [(q, m, p) for q in range(first, min(first + block, Q)) for p in range(P)]
                for lanes in warps(points):  # @parts
                    requests += parameters(lanes)
                pieces = [(*point, byte) for point in points for byte in range(0, D * itemsize, 16)]  # @pieces
                requests += [values(lanes, corner, 16) for corner in range(4) for lanes in warps(pieces)]  # @rows
    return [request for request in requests if request[0]]  # @result


def traffic_bounds(corners: torch.Tensor, S: int, D: int, itemsize: int) -> tuple[int, int]:
    """The bytes that a forward call must move at least, and the bytes that it asks for.

    Args:
        corners: (B, Q, M, P, 4) int64, the pixel of each corner, from 0 to S - 1; -1 where
            nothing is read.
        S: pixels of one image. value is (B, S, M, D) and begins on the border of a sector.
        D: channels per head.
        itemsize: bytes of one number.

    Returns:
        (compulsory, requested). Compulsory: each sector of value that some corner touches, once.
        Requested: each sector of each corner's row of D channels, every time it is read. On top of
        either come, once, the bytes of all weights, locations (x and y) and outputs.
    """
    B, Q, M, P, _ = corners.shape
    image = torch.arange(B)[:, None, None, None, None]
    head = torch.arange(M)[:, None, None]
    start = (((image * S + corners) * M + head) * D * itemsize)[corners >= 0]
    first, last = start // 32, (start + D * itemsize - 1) // 32
    touched = first[:, None] + torch.arange((D * itemsize + 30) // 32 + 1)
    touched = touched[touched <= last[:, None]]
    streams = B * Q * M * (3 * P + D) * itemsize
    return 32 * len(touched.unique()) + streams, 32 * len(touched) + streams


def roofline(bytes: tuple[int, int], flops: int, gpu) -> tuple[float, str]:
    """The shortest time a call can take on a GPU, and what keeps it from being shorter.

    Args:
        bytes: (compulsory, requested), as `traffic_bounds` returns them.
        flops: multiplications and additions, each counted as one.
        gpu: has `gpu.dram` and `gpu.l1`, bytes a second from DRAM and from all L1 caches together,
            and `gpu.flops`, operations a second.

    Returns:
        (microseconds, bound). DRAM, L1 and arithmetic work at the same time, and the slowest of
        the three decides; bound names it: "DRAM", "L1" or "arithmetic".
    """
    compulsory, requested = bytes
    times = {"DRAM": compulsory / gpu.dram, "L1": requested / gpu.l1, "arithmetic": flops / gpu.flops}
    bound = max(times, key=times.get)
    return 1e6 * times[bound], bound


def order_queries(centres: list[tuple[float, float]]) -> list[int]:
    """An order of the queries in which a small cache hits often.

    Args:
        centres: each query's own (x, y), from 0 to 1; its points lie around it.

    Returns:
        The numbers of the queries, each once, in the order in which they should be computed.
    """

    def place(query):
        x, y = (int(64 * t) for t in centres[query])
        # Bits of x and y in turns: neighbours in this number are neighbours on the image, at every scale.
        return sum((x >> bit & 1) << 2 * bit | (y >> bit & 1) << 2 * bit + 1 for bit in range(7))

    return sorted(range(len(centres)), key=place)

"""Answers to lab 03."""

from checks.tests.bank import right, wrong

SECTORS = right(
    "03.sectors",
    """
def sectors(addresses, itemsize):
    touched = set()
    for address in addresses:
        touched.update(range(address // 32, (address + itemsize - 1) // 32 + 1))
    return len(touched)
""",
)
right(
    "03.sectors",
    "def sectors(addresses, itemsize):\n    return len({byte // 32 for a in addresses for byte in range(a, a + itemsize)})\n",
    "byte by byte",
)
for what, *change in [
    ("first bytes only", "(address + itemsize - 1) // 32 + 1", "address // 32 + 1"),
    ("one byte too far", "address + itemsize - 1", "address + itemsize"),
    ("no duplicates removed", "touched = set()", "touched = []", "touched.update", "touched.extend"),
    (
        "lines of 128 bytes",
        "address // 32, (address + itemsize - 1) // 32 + 1",
        "address // 128, (address + itemsize - 1) // 128 + 1",
    ),
    ("bytes over 32", "return len(touched)", "return -(-len(set(addresses)) * itemsize // 32)"),
    ("the span", "return len(touched)", "return max(touched) - min(touched) + 1 if touched else 0"),
    ("at least one", "return len(touched)", "return max(1, len(touched))"),
    ("the last sector only", "address // 32, (address", "(address + itemsize - 1) // 32, (address"),
]:
    wrong("03.sectors", what, SECTORS, *change)

EFFICIENCY = right(
    "03.efficiency",
    """
def efficiency(requests):
    useful = delivered = 0
    for addresses, itemsize in requests:
        useful += len(set(addresses)) * itemsize
        delivered += 32 * sectors(addresses, itemsize)
    return useful / delivered
""",
    helpers=SECTORS,
)
for what, *change in [
    ("duplicates count", "len(set(addresses))", "len(addresses)"),
    ("turned round", "useful / delivered", "delivered / useful"),
    (
        "averaged",
        "    useful = delivered = 0\n",
        "    shares = []\n",
        "        useful += len(set(addresses)) * itemsize\n        delivered += 32 * sectors(addresses, itemsize)\n    return useful / delivered",
        "        if addresses:\n            shares.append(len(set(addresses)) * itemsize / 32 / sectors(addresses, itemsize))\n    return sum(shares) / len(shares)",
    ),
    (
        "averaged, empty ones raise",
        "    useful = delivered = 0\n",
        "    shares = []\n",
        "        useful += len(set(addresses)) * itemsize\n        delivered += 32 * sectors(addresses, itemsize)\n    return useful / delivered",
        "        shares.append(len(set(addresses)) * itemsize / 32 / sectors(addresses, itemsize))\n    return sum(shares) / len(shares)",
    ),
    ("elements for bytes", "len(set(addresses)) * itemsize", "len(set(addresses))"),
    ("a percentage", "useful / delivered", "100 * useful / delivered"),
    (
        "sectors counted once over the series",
        "    useful = delivered = 0\n",
        "    useful, seen = 0, set()\n",
        "        delivered += 32 * sectors(addresses, itemsize)\n",
        "        seen |= {b // 32 for a in addresses for b in range(a, a + itemsize)}\n",
        "useful / delivered",
        "useful / (32 * len(seen))",
    ),
    ("sectors of 128", "32 * sectors", "128 * sectors"),
]:
    wrong("03.efficiency", what, EFFICIENCY, *change, helpers=SECTORS)

LRU = right(
    "03.lru_hits",
    """
def lru_hits(sector_stream, capacity):
    cache, hits = [], 0
    for sector in sector_stream:
        if sector in cache:
            hits += 1
            cache.remove(sector)
        elif len(cache) >= capacity:
            if not cache:
                continue
            cache.pop(0)
        cache.append(sector)
    return hits
""",
)
right(
    "03.lru_hits",
    """
def lru_hits(sector_stream, capacity):
    last, hits = {}, 0
    for now, sector in enumerate(sector_stream):
        if sector in last and len({s for s in last if last[s] >= last[sector]}) <= capacity:
            hits += 1
        last[sector] = now
    return hits
""",
    "distances between uses",
)
for what, *change in [
    ("first in, first out", "            cache.remove(sector)\n", "            continue\n"),
    ("evicts one too late", "len(cache) >= capacity", "len(cache) > capacity"),
    ("evicts the newest", "cache.pop(0)", "cache.pop()"),
    ("never forgets", "elif len(cache) >= capacity:", "elif capacity == 0:"),
    ("misses counted", "return hits", "return len(sector_stream) - hits"),
    ("a share", "return hits", "return hits / len(sector_stream)"),
    ("cleared when full", "cache.pop(0)", "cache.clear()"),
    (
        "the first use counts as well",
        "        elif",
        "        elif sector == 0 and sector not in cache:\n            hits += 1\n        elif",
    ),
    ("one place too few", "len(cache) >= capacity", "len(cache) >= capacity - 1"),
]:
    wrong("03.lru_hits", what, LRU, *change)

BOUNDS = right(
    "03.traffic_bounds",
    """
def traffic_bounds(corners, S, D, itemsize):
    B, Q, M, P, _ = corners.shape
    seen, requested = set(), 0
    for b in range(B):
        for m in range(M):
            for pixel in corners[b, :, m].flatten().tolist():
                if pixel < 0:
                    continue
                first = ((b * S + pixel) * M + m) * D * itemsize
                touched = range(first // 32, (first + D * itemsize - 1) // 32 + 1)
                seen.update(touched)
                requested += 32 * len(touched)
    rest = (B * Q * M * P * 3 + B * Q * M * D) * itemsize
    return 32 * len(seen) + rest, requested + rest
""",
)
for what, *change in [
    ("rows times sectors rounded up", "requested += 32 * len(touched)", "requested += 32 * -(-D * itemsize // 32)"),
    (
        "compulsory rows times sectors rounded up",
        "seen.update(touched)",
        "seen.add(first)",
        "32 * len(seen)",
        "32 * -(-D * itemsize // 32) * len(seen)",
    ),
    ("bytes, not sectors", "requested += 32 * len(touched)", "requested += D * itemsize"),
    ("outputs forgotten", " + B * Q * M * D) * itemsize", ") * itemsize"),
    ("y forgotten", "P * 3", "P * 2"),
    ("heads next to each other", "((b * S + pixel) * M + m) * D", "((b * M + m) * S + pixel) * D"),
    ("outside is pixel -1", "                if pixel < 0:\n                    continue\n", ""),
    ("images share pixels", "(b * S + pixel) * M", "pixel * M"),
    ("the whole of value", "32 * len(seen) + rest", "B * S * M * D * itemsize + rest"),
    (
        "the rest forgotten",
        "    return 32 * len(seen) + rest, requested + rest",
        "    return 32 * len(seen), requested",
    ),
    ("sectors for bytes", "32 * len(seen) + rest, requested", "len(seen) + rest, requested"),
    ("exchanged", "return 32 * len(seen) + rest, requested + rest", "return requested + rest, 32 * len(seen) + rest"),
]:
    wrong("03.traffic_bounds", what, BOUNDS, *change)

ROOF = right(
    "03.roofline",
    """
def roofline(bytes, flops, gpu):
    times = {"DRAM": bytes[0] / gpu.dram, "L1": bytes[1] / gpu.l1, "arithmetic": flops / gpu.flops}
    bound = max(times, key=times.get)
    return times[bound] * 1e6, bound
""",
)
for what, *change in [
    ("seconds", " * 1e6", ""),
    ("milliseconds", "* 1e6", "* 1e3"),
    ("the quickest", "max(times", "min(times"),
    ("the sum", "times[bound] * 1e6", "sum(times.values()) * 1e6"),
    ("requested bytes from DRAM", "bytes[0] / gpu.dram", "bytes[1] / gpu.dram"),
    ("exchanged", "bytes[0] / gpu.dram", "bytes[1] / gpu.dram", '"L1": bytes[1]', '"L1": bytes[0]'),
    ("L1 forgotten", '"L1": bytes[1] / gpu.l1, ', ""),
    ("each operation twice", "flops / gpu", "2 * flops / gpu"),
    ("compulsory bytes from L1 too", "bytes[1] / gpu.l1", "bytes[0] / gpu.l1"),
]:
    wrong("03.roofline", what, ROOF, *change)

TILES = right(
    "03.tiling_addresses",
    """
def tiling_addresses(tiling, corners, D, itemsize, value_ptr, loc_ptr, attn_ptr, block=2):
    Q, M, P, _ = corners.shape
    found = []

    def request(addresses, size=itemsize):
        if addresses:
            found.append((addresses, size))

    def pixel(q, m, p, c):
        return int(corners[q, m, p, c])

    def row(q, m, p, c):
        return value_ptr + (pixel(q, m, p, c) * M + m) * D * itemsize

    def parameters(points):
        numbers = [(q * M + m) * P + p for q, m, p in points]
        request([attn_ptr + n * itemsize for n in numbers])
        request([loc_ptr + 2 * n * itemsize for n in numbers])
        request([loc_ptr + (2 * n + 1) * itemsize for n in numbers])

    def warps(items):
        return [items[i : i + 32] for i in range(0, len(items), 32)]

    if tiling == "output":
        for warp in warps([(q, m, d) for q in range(Q) for m in range(M) for d in range(D)]):
            for p in range(P):
                parameters([(q, m, p) for q, m, d in warp])
                for c in range(4):
                    request([row(q, m, p, c) + d * itemsize for q, m, d in warp if pixel(q, m, p, c) >= 0])
    elif tiling == "point":
        for warp in warps([(q, m, p) for q in range(Q) for m in range(M) for p in range(P)]):
            parameters(warp)
            for c in range(4):
                for d in range(D):
                    request([row(q, m, p, c) + d * itemsize for q, m, p in warp if pixel(q, m, p, c) >= 0])
    else:
        pieces = D * itemsize // 16
        for first in range(0, Q, block):
            for m in range(M):
                points = [(q, m, p) for q in range(first, min(first + block, Q)) for p in range(P)]
                for warp in warps(points):
                    parameters(warp)
                for c in range(4):
                    for warp in warps([(*point, piece) for point in points for piece in range(pieces)]):
                        request([row(q, m, p, c) + 16 * i for q, m, p, i in warp if pixel(q, m, p, c) >= 0], 16)
    return found
""",
)
for what, *change in [
    ("masked lanes at row -1", " if pixel(q, m, p, c) >= 0]", "]"),
    (
        "heads outside, blocks inside",
        "        for first in range(0, Q, block):\n            for m in range(M):\n",
        "        for m in range(M):\n            for first in range(0, Q, block):\n",
    ),
    ("the last block too long", "min(first + block, Q)", "first + block"),
    ("empty requests issued", "        if addresses:\n            found", "        if True:\n            found"),
    ("x and y in one request", "        request([loc_ptr + (2 * n + 1) * itemsize for n in numbers])\n", ""),
    ("value as (M, S, D)", "(pixel(q, m, p, c) * M + m) * D", "(m * 1000 + pixel(q, m, p, c)) * D"),
    (
        "pieces of one number",
        "pieces = D * itemsize // 16",
        "pieces = D",
        "+ 16 * i for",
        "+ itemsize * i for",
        ">= 0], 16)",
        ">= 0])",
    ),
]:
    wrong("03.tiling_addresses", what, TILES, *change)

ORDER = right(
    "03.order_queries",
    """
def order_queries(centres):
    def key(q):
        x, y = (min(int(64 * t), 63) for t in centres[q])
        code = 0
        for bit in range(6):
            code |= ((x >> bit) & 1) << (2 * bit) | ((y >> bit) & 1) << (2 * bit + 1)
        return code

    return sorted(range(len(centres)), key=key)
""",
)
for what, *change in [
    ("as they come", "return sorted(range(len(centres)), key=key)", "return list(range(len(centres)))"),
    ("one left out", "key=key)", "key=key)[1:]"),
    (
        "the centres, not their numbers",
        "return sorted(range(len(centres)), key=key)",
        "return [centres[q] for q in sorted(range(len(centres)), key=key)]",
    ),
    ("one twice", "return sorted", "return [0] + sorted"),
]:
    wrong("03.order_queries", what, ORDER, *change)

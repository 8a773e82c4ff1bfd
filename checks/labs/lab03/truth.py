"""Lab 03, The machine: what is right."""

from collections import OrderedDict
from numbers import Integral

import torch
from torch import Tensor

from checks.core.compare import describe
from checks.core.exercise import Failed

SECTOR = 32


# --- sectors --------------------------------------------------------------------------------------------------------


def _sectors(addresses, itemsize, *, size=SECTOR, reach=None):
    """The right answer, and by its options the wrong ones."""
    reach = itemsize - 1 if reach is None else reach
    return len({s for a in addresses for s in range(a // size, (a + reach) // size + 1)})


def _useful(requests):
    return sum(len(set(addresses)) * itemsize for addresses, itemsize in requests)


def _delivered(requests, **options):
    return sum(SECTOR * _sectors(addresses, itemsize, **options) for addresses, itemsize in requests)


def _efficiency(requests):
    return _useful(requests) / _delivered(requests)


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


# --- roofline -------------------------------------------------------------------------------------------------------


def _times(bytes, flops, gpu):
    return {"DRAM": bytes[0] / gpu.dram, "L1": bytes[1] / gpu.l1, "arithmetic": flops / gpu.flops}


def _slowest(times):
    bound = max(times, key=times.get)
    return 1e6 * times[bound], bound


def _roofline(bytes, flops, gpu):
    return _slowest(_times(bytes, flops, gpu))

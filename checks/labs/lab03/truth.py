"""Lab 03, The machine: what is right."""

from collections import OrderedDict
from numbers import Integral

import torch
from torch import Tensor

from checks.core.compare import describe
from checks.core.exercise import Failed

SECTOR = 32


# --- sectors --------------------------------------------------------------------------------------------------------


def _sectors(addresses, itemsize):
    """How many sectors a request touches."""
    return len({s for a in addresses for s in range(a // SECTOR, (a + itemsize - 1) // SECTOR + 1)})


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


def _groups(work, size=32):
    return [work[i : i + size] for i in range(0, len(work), size)]


def _tilings(tiling, corners, D, itemsize, value_ptr, loc_ptr, attn_ptr, block=2):
    """The requests of a tiling, each (addresses of the lanes that read, bytes a lane reads)."""
    Q, M, P, _ = corners.shape
    rows = corners * M + torch.arange(M)[:, None, None]
    where = torch.where(corners >= 0, value_ptr + rows * D * itemsize, -1).reshape(-1, 4).tolist()
    out = []  # points are numbered (q, m, p), rows (q, m)

    def parameters(points):
        out.append(([attn_ptr + i * itemsize for i in points], itemsize))
        for axis in (0, 1):
            out.append(([loc_ptr + (2 * i + axis) * itemsize for i in points], itemsize))

    def values(lanes, corner, width):
        addresses = [where[i][corner] + byte for i, byte in lanes if where[i][corner] >= 0]
        if addresses:
            out.append((addresses, width))

    if tiling == "output":
        for warp in _groups([(row, d) for row in range(Q * M) for d in range(D)]):
            for p in range(P):
                parameters([row * P + p for row, _ in warp])
                for corner in range(4):
                    values([(row * P + p, d * itemsize) for row, d in warp], corner, itemsize)
    elif tiling == "point":
        for warp in _groups(range(Q * M * P)):
            parameters(warp)
            for corner in range(4):
                for d in range(D):
                    values([(i, d * itemsize) for i in warp], corner, itemsize)
    else:
        for first in range(0, Q, block):
            for m in range(M):
                points = [(q * M + m) * P + p for q in range(first, min(first + block, Q)) for p in range(P)]
                for part in _groups(points):
                    parameters(part)
                pieces = [(i, byte) for i in points for byte in range(0, D * itemsize, 16)]
                for corner in range(4):
                    for part in _groups(pieces):
                        values(part, corner, 16)
    return out


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

"""Number formats that numpy does not have, and conversions it does otherwise than a GPU."""

import numpy as np

__all__ = ["bf16_atomic_add", "bits_to_float32", "float32_to_bits", "to_integer"]


def bits_to_float32(bits: np.ndarray) -> np.ndarray:
    """bf16 bit patterns (uint16) as float32: exact."""
    return (np.asarray(bits, np.uint16).astype(np.uint32) << 16).view(np.float32)


def float32_to_bits(x: np.ndarray) -> np.ndarray:
    """float32 as bf16 bit patterns (uint16), rounded to nearest even; NaN stays NaN, overflow becomes infinity."""
    raw = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    rounded = ((raw + 0x7FFF + ((raw >> 16) & 1)) >> 16).astype(np.uint16)
    nan = (raw & 0x7FFFFFFF) > 0x7F800000
    return np.where(nan, ((raw >> 16) | 0x40).astype(np.uint16), rounded)


def to_integer(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Floats as integers the way a GPU casts them: towards zero, NaN to 0, what does not fit to the nearest that does.

    A CPU gives the least integer for all three, which no pixel has; on a GPU a NaN becomes pixel 0, which exists.

    Source: PTX ISA, `cvt`; NaN is the least integer where a side of the cast has 64 bits.
    """
    x, dtype = np.asarray(x), np.dtype(dtype)
    if dtype.kind not in "iu" or dtype.itemsize < 4:
        return x.astype(dtype)
    info, nan = np.iinfo(dtype), np.isnan(x)
    high, low = x >= float(info.max), x <= float(info.min)
    whole = np.where(nan | high | low, 0, x).astype(dtype)
    whole[high], whole[low] = info.max, info.min
    if max(x.itemsize, dtype.itemsize) == 8:
        whole[nan] = info.min if dtype.kind == "i" else 2**63
    return whole


def bf16_atomic_add(native, host, value, mask):
    """Widen, add, round to nearest even, store; lanes that share an address take turns, in lane order."""
    old = np.zeros(host.shape, np.uint16)
    flat_host, flat_mask, flat_value = host.reshape(-1), mask.reshape(-1), np.asarray(value, np.uint16).reshape(-1)
    lanes = np.flatnonzero(flat_mask)
    order = lanes[np.argsort(flat_host[lanes], kind="stable")]
    addresses = flat_host[order]
    starts = np.r_[True, addresses[1:] != addresses[:-1]] if order.size else np.zeros(0, bool)
    turn = np.arange(order.size) - np.maximum.accumulate(np.where(starts, np.arange(order.size), 0))
    for t in range(int(turn.max()) + 1 if order.size else 0):
        who = order[turn == t]
        here, yes = flat_host[who], np.ones(who.size, bool)
        before = native.load(here, yes, np.zeros(who.size, np.uint16), np.dtype(np.uint16))
        after = float32_to_bits(bits_to_float32(before) + bits_to_float32(flat_value[who]))
        native.store(here, after, yes)
        old.reshape(-1)[who] = before
    return old

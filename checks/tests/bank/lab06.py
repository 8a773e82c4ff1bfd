"""Answers to lab 06."""

from checks.tests.bank import right, wrong

CONFIG = right(
    "06.launch_config",
    """
def launch_config(Q, M, D, L, K, dtype):
    up = lambda n: 1 << max(0, n - 1).bit_length()
    block_d = up(D)
    budget = max(block_d, 2048 // dtype.itemsize)
    block_p, block_q, warps = 1, 1, 1
    while 2 * block_p <= up(L * K) and 2 * block_p * block_d <= budget:
        block_p *= 2
    while 2 * block_q <= up(Q) and 2 * block_q * block_p * block_d <= budget and -(-Q // (2 * block_q)) * M >= 528:
        block_q *= 2
    return {"BLOCK_Q": block_q, "BLOCK_P": block_p, "BLOCK_D": block_d, "num_warps": warps}
""",
)
for what, *change in [
    ("points rounded down", "2 * block_p <= up(L * K)", "2 * block_p <= L * K", "2 * block_q <= up(Q)", "block_q <= up(Q)"),
    ("as many queries as fit", " and -(-Q // (2 * block_q)) * M >= 528", ""),
    ("always four warps", "warps = 1, 1, 1", "warps = 1, 1, 4"),
    ("D as it is", "block_d = up(D)", "block_d = D"),
    ("everything in one tile", "while 2 * block_p <= up(L * K) and 2 * block_p * block_d <= budget", "while 2 * block_p <= up(L * K)"),
]:  # fmt: skip
    if what != "points rounded down":
        wrong("06.launch_config", what, CONFIG, *change)
right(
    "06.launch_config",
    CONFIG.replace("2 * block_p <= up(L * K)", "2 * block_p <= L * K"),
    "39 points in pieces of 32",
)

TIME = right(
    "06.predict_time",
    """
def predict_time(load_sectors, store_sectors, reduction_sectors, busiest_line, dram_bytes, warm):
    t = max((load_sectors + store_sectors) / 132 / 1980, reduction_sectors / 48 / 1980, busiest_line * 7 / 1980)
    if not warm:
        t = t + dram_bytes / 4.8e6 + 3
    return t + 1.2
""",
    "DRAM only when cold",
)
for what, *change in [
    ("DRAM twice as fast as it is, and warm as cold", "    if not warm:\n        t = t + dram_bytes / 4.8e6 + 3\n", "    t += dram_bytes / 2.4e5\n"),
    ("in seconds", "return t + 1.2", "return (t + 1.2) * 1e-6"),
    ("stores forgotten, and DRAM", "load_sectors + store_sectors", "load_sectors", "dram_bytes / 4.8e6 + 3", "3"),
    ("a launch takes nothing, and loads go to DRAM", "/ 132 / 1980, red", "/ 132 / 198, red"),
]:  # fmt: skip
    wrong("06.predict_time", what, TIME, *change)

FAST = """
@triton.jit
def msda_fwd_fast_kernel(
    value_ptr, shapes_ptr, starts_ptr, loc_ptr, attn_ptr, out_ptr, Q, S, M: tl.constexpr, D: tl.constexpr,
    L: tl.constexpr, K: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_D: tl.constexpr,
):
    q = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    m = tl.program_id(1) % M
    b = (tl.program_id(1) // M).to(tl.int64)
    d = tl.arange(0, BLOCK_D)
    n = (b * Q + q) * M + m
    acc = tl.zeros((BLOCK_Q, BLOCK_D), tl.float32)
    for first in range(0, L * K, BLOCK_P):
        p = first + tl.arange(0, BLOCK_P)
        there = (q < Q)[:, None] & (p < L * K)[None, :]
        lvl = p // K
        H = tl.load(shapes_ptr + 2 * lvl, mask=p < L * K, other=1)[None, :].to(tl.float32)
        W = tl.load(shapes_ptr + 2 * lvl + 1, mask=p < L * K, other=1)[None, :].to(tl.float32)
        s = tl.load(starts_ptr + lvl, mask=p < L * K, other=0)[None, :]
        at = n[:, None] * (L * K) + p[None, :]
        a = tl.load(attn_ptr + at, mask=there, other=0.0).to(tl.float32)
        both = 2 * at[:, :, None] + tl.arange(0, 2)[None, None, :]
        x, y = tl.split(tl.load(loc_ptr + both, mask=there[:, :, None], other=0.0).to(tl.float32))
        x = x * W - 0.5
        y = y * H - 0.5
        for c in tl.static_range(4):
            i = tl.floor(x) + c % 2
            j = tl.floor(y) + c // 2
            ok = there & (i >= 0) & (i < W) & (j >= 0) & (j < H)
            w = tl.where(ok, a * (1 - tl.abs(x - i)) * (1 - tl.abs(y - j)), 0.0)
            i = tl.where(ok, i, 0.0).to(tl.int32)
            j = tl.where(ok, j, 0.0).to(tl.int32)
            pixel = ((b * S + s + j * W.to(tl.int32) + i) * M + m) * D
            v = tl.load(value_ptr + pixel[:, :, None] + d[None, None, :], mask=ok[:, :, None] & (d < D)[None, None, :], other=0.0)
            acc += tl.sum(w[:, :, None] * v.to(tl.float32), axis=1)
    tl.store(out_ptr + n[:, None] * D + d[None, :], acc.to(out_ptr.dtype.element_ty), mask=(q < Q)[:, None] & (d < D)[None, :])
"""
right("06.msda_fwd_fast_kernel", FAST)
wrong("06.msda_fwd_fast_kernel", "level = p // L", FAST, "lvl = p // K", "lvl = p // L")
wrong("06.msda_fwd_fast_kernel", "the last block of points replaces", FAST, "acc += tl.sum(w", "acc = tl.sum(w")

DEVICE = right(
    "06.device_time",
    """
def device_time(fn, clock):
    def median(numbers):
        return sorted(numbers)[len(numbers) // 2]

    def twenty():
        for _ in range(20):
            fn()

    fn()
    clock.synchronize()
    graph = clock.graph(twenty)
    start = clock.now()
    while clock.now() - start < 30_000:
        graph()
    clock.synchronize()
    warm = [(clock.record(), graph(), clock.record()) for _ in range(99)]
    cold = [(clock.flush(), clock.record(), fn(), clock.record()) for _ in range(99)]
    clock.synchronize()
    return median([c.time - a.time for a, _, c in warm]) / 20, median([c.time - a.time for _, a, _, c in cold])
""",
)
for what, *change in [
    ("one flush, then a graph", "(clock.flush(), clock.record(), fn(), clock.record())", "(clock.flush(), clock.record(), graph(), clock.record())", "for _, a, _, c in cold])", "for _, a, _, c in cold]) / 20"),
    ("the mean", "return sorted(numbers)[len(numbers) // 2]", "return sum(numbers) / len(numbers)"),
    ("never flushed", "clock.flush(), ", "None, "),
]:  # fmt: skip
    wrong("06.device_time", what, DEVICE, *change)
for what, *change in [
    ("all x, then all y", "        both = 2 * at[:, :, None] + tl.arange(0, 2)[None, None, :]\n", "        both = (2 * n * (L * K))[:, None, None] + p[None, :, None] + tl.arange(0, 2)[None, None, :] * (L * K)\n"),
    ("y before x", "x, y = tl.split", "y, x = tl.split"),
    ("points past the last count", "(p < L * K)[None, :]", "(p < first + BLOCK_P)[None, :]"),
    ("level = p % L", "lvl = p // K", "lvl = p % L"),
    ("level of the lane, not of the point", "lvl = p // K", "lvl = tl.arange(0, BLOCK_P) // K"),
    ("H and W exchanged", "shapes_ptr + 2 * lvl,", "shapes_ptr + 2 * lvl + 0 + 1,", "shapes_ptr + 2 * lvl + 1,", "shapes_ptr + 2 * lvl,"),
    ("weights of every head alike", "at = n[:, None] * (L * K)", "at = (b * Q + q)[:, None] * (L * K)"),
]:  # fmt: skip
    wrong("06.msda_fwd_fast_kernel", what, FAST, *change)
for what, *change in [
    ("one query always", "block_p, block_q, warps = 1, 1, 1", "block_p, block_q, warps = 1, 1, 1\n    Q = 1"),
    ("two warps for each multiprocessor", ">= 528", ">= 264"),
]:  # fmt: skip
    wrong("06.launch_config", what, CONFIG, *change)
for what, *change in [
    ("bytes for sectors", "(load_sectors + store_sectors) / 132 / 1980", "(load_sectors + store_sectors) * 32 / 132 / 1980"),
    ("contention forgotten", ", busiest_line * 7 / 1980", ""),
    ("milliseconds", "return t + 1.2", "return (t + 1.2) / 1000"),
]:  # fmt: skip
    wrong("06.predict_time", what, TIME, *change)
for what, *change in [
    ("by the host's clock", "warm = [(clock.record(), graph(), clock.record()) for _ in range(99)]", "warm = [(clock.now(), graph(), clock.synchronize(), clock.now()) for _ in range(99)]", "[c.time - a.time for a, _, c in warm]", "[c - a for a, _, _, c in warm]"),
    ("the flush is timed too", "(clock.flush(), clock.record(), fn(), clock.record())", "(None, clock.record(), (clock.flush(), fn()), clock.record())"),
    ("nobody waits", "for _ in range(99)]\n    clock.synchronize()\n    return", "for _ in range(99)]\n    return"),
    ("cold and warm exchanged", "return median([c.time - a.time for a, _, c in warm]) / 20, median([c.time - a.time for _, a, _, c in cold])", "return median([c.time - a.time for _, a, _, c in cold]), median([c.time - a.time for a, _, c in warm]) / 20"),
    ("the graph's launches not counted", "in warm]) / 20", "in warm])"),
]:  # fmt: skip
    wrong("06.device_time", what, DEVICE, *change)
right("06.device_time", DEVICE.replace("sorted(numbers)[len(numbers) // 2]", "min(numbers)"), "the least")
right("06.launch_config", CONFIG.replace("2048 // dtype.itemsize", "2048"), "as many numbers in 16 bits as in 32")
right("06.device_time", DEVICE.replace("< 30_000", "< 10"), "brought up to speed by what it measures")

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

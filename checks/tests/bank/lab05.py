"""Answers to lab 05."""

from checks.tests.bank import right, wrong

CORNER = right(
    "05.corner",
    """
@triton.jit
def corner(x, y, i: tl.constexpr, j: tl.constexpr, H, W):
    xi = tl.floor(x) + i
    yj = tl.floor(y) + j
    mask = (xi >= 0) & (xi < W) & (yj >= 0) & (yj < H)
    weight = (1 - tl.abs(x - xi)) * (1 - tl.abs(y - yj))
    offset = tl.where(mask, yj, 0).to(tl.int32) * W + tl.where(mask, xi, 0).to(tl.int32)
    return offset, tl.where(mask, weight, 0.0), mask
""",
)
for what, *change in [
    ("truncation", "tl.floor(x) + i", "x.to(tl.int32) + i", "tl.floor(y) + j", "y.to(tl.int32) + j"),
    ("i and j exchanged", "tl.floor(x) + i", "tl.floor(x) + j", "tl.floor(y) + j", "tl.floor(y) + i"),
    ("weight kept outside", "tl.where(mask, weight, 0.0)", "weight"),
    ("0 < i", "(xi >= 0)", "(xi > 0)", "(yj >= 0)", "(yj > 0)"),
    ("rows of H", ".to(tl.int32) * W", ".to(tl.int32) * H"),
    ("H and W exchanged in the mask", "(xi < W)", "(xi < H)", "(yj < H)", "(yj < W)"),
    ("size - 1", "(xi < W)", "(xi < W - 1)", "(yj < H)", "(yj < H - 1)"),
]:
    wrong("05.corner", what, CORNER, *change)

"""Answers to lab 09."""

from checks.tests.bank import given, right, wrong

STAGNATION = right(
    "09.stagnation_point",
    "def stagnation_point(dtype):\n    return round(2 / torch.finfo(dtype).eps)\n",
)
for what, *change in [
    ("one power too few", "2 / torch", "1 / torch"),
    ("one more", "round(2 / torch.finfo(dtype).eps)", "round(2 / torch.finfo(dtype).eps) + 1"),
    ("the largest number", "round(2 / torch.finfo(dtype).eps)", "round(torch.finfo(dtype).max)"),
    (
        "a table",
        "round(2 / torch.finfo(dtype).eps)",
        "{torch.float16: 2048, torch.bfloat16: 256, torch.float32: 2**24, torch.float64: 2**53}[dtype]",
    ),
]:
    wrong("09.stagnation_point", what, STAGNATION, *change)

LOCATION = right(
    "09.location_error",
    """
def location_error(dtype, W):
    true = torch.linspace(0, 1, 10_001, dtype=torch.float64)
    moved = (true.to(dtype).double() - true).abs() * W
    return moved.mean().item(), moved.max().item()
""",
)
for what, *change in [
    ("in locations", " * W", ""),
    ("exchanged", "moved.mean().item(), moved.max().item()", "moved.max().item(), moved.mean().item()"),
    ("signed", ".abs()", ""),
    (
        "pixels rounded, not locations",
        "(true.to(dtype).double() - true).abs() * W",
        "((true * W).to(dtype).double() - true * W).abs()",
    ),
    ("W - 1", "* W", "* (W - 1)"),
    ("the median", "moved.mean()", "moved.median()"),
]:
    wrong("09.location_error", what, LOCATION, *change)

GIVEN = given("09", "compile_backward")
ACCUMULATOR = right(
    "09.accumulator_dtype",
    """
def accumulator_dtype(dtype, capability):
    ptx = compile_backward(lab08.msda_bwd_kernel, dtype, capability).ptx
    return torch.float32 if re.search(r"atom[.a-z0-9_]*[.]global[.a-z0-9_]*[.]cas", ptx) else dtype
""",
    helpers=GIVEN,
)
wrong(
    "09.accumulator_dtype",
    "remembered by dtype",
    ACCUMULATOR,
    "    ptx =",
    "    if dtype in KNOWN:\n        return KNOWN[dtype]\n    ptx =",
    "    return torch.float32 if",
    "    KNOWN[dtype] = torch.float32 if",
    " else dtype",
    " else dtype\n    return KNOWN[dtype]",
    helpers=GIVEN + "\nKNOWN = {}\n",
)
wrong(
    "09.accumulator_dtype",
    "a rule",
    "def accumulator_dtype(dtype, capability):\n    return torch.float32 if dtype == torch.bfloat16 and capability < (9, 0) else dtype\n",
)

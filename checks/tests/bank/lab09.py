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
right(
    "09.stagnation_point",
    """
def stagnation_point(dtype):
    n = 1.0
    while torch.tensor(n + 1, dtype=torch.float64).to(dtype).double() != n:
        n *= 2
    return int(n)
""",
    "by doubling",
)
wrong(
    "09.stagnation_point",
    "counted one by one",
    "def stagnation_point(dtype):\n    n = torch.zeros((), dtype=dtype)\n    while n + 1 != n:\n        n = n + 1\n    return int(n)\n",
)
wrong(
    "09.stagnation_point",
    "added in the dtype itself",
    "def stagnation_point(dtype):\n    n = torch.ones((), dtype=dtype)\n    while n + 1 != n:\n        n = n * 2\n    return int(n)\n",
)
wrong("09.location_error", "true ones in float32", LOCATION, "dtype=torch.float64", "dtype=torch.float32")
wrong("09.location_error", "squared", LOCATION, "moved.mean()", "moved.square().mean().sqrt()")

CLASSIFY = right(
    "09.classify_atomics",
    r"""
def classify_atomics(ptx):
    lines = ptx.splitlines()
    found = ([], [], [])
    for n, line in enumerate(lines):
        hit = re.search(r"\b(red|atom)((?:\.\w+)+)\s+(.*)", line)
        if not hit or "global" not in hit[2]:
            continue
        words = hit[2].split(".")
        kind = re.fullmatch(r"[a-z]+(\d+)(x2)?", words[-1])
        size = int(kind[1]) // 8 * (2 if kind[2] else 1)
        for word in words:
            if re.fullmatch(r"v\d", word):
                size *= int(word[1:])
        rest = lines[n + 1:]
        if "cas" in words:
            branch = next((re.search(r"\bbra\S*\s+(\$\w+)", one) for one in rest if re.search(r"\bbra\b", one)), None)
            back = branch and any(one.strip().startswith(branch[1] + ":") for one in lines[:n])
            found[2 if back else 1].append(size)
            continue
        if hit[1] == "red":
            found[0].append(size)
            continue
        registers = re.findall(r"%\w+", hit[3].split("[")[0])
        read = any(re.search(re.escape(one) + r"\b", other) for one in registers for other in rest)
        found[1 if read or "acq_rel" in words else 0].append(size)
    return found
""",
    helpers="import re\n",
)
for what, *change in [
    ("vectors not multiplied", "size *= int(word[1:])", "pass"),
    ("pairs count once", "(2 if kind[2] else 1)", "1"),
    ("shared memory too", 'if not hit or "global" not in hit[2]:', "if not hit:"),
    ("every cas is a loop", "found[2 if back else 1]", "found[2]"),
    ("every atom returns", 'found[1 if read or "acq_rel" in words else 0]', "found[1]"),
    ("the order is not looked at", 'read or "acq_rel" in words', "read"),
    ("registers by their beginning", 're.search(re.escape(one) + r"\\b", other)', "one in other"),
    ("bits", "int(kind[1]) // 8", "int(kind[1])"),
    ("each size once", "    return found", "    return tuple(sorted(set(one)) for one in found)"),
]:  # fmt: skip
    wrong(
        "09.classify_atomics", what, CLASSIFY, *[one.replace("\\\\b", "\\b") for one in change], helpers="import re\n"
    )

right(
    "09.accumulator_dtype",
    "def accumulator_dtype(dtype, capability):\n"
    '    return torch.float32 if ".cas" in compile_backward(lab08.msda_bwd_kernel, dtype, capability).ptx else dtype\n',
    "the word alone",
    GIVEN,
)
wrong(
    "09.accumulator_dtype",
    "Hopper's listing for all",
    ACCUMULATOR,
    "dtype, capability).ptx",
    "dtype, (9, 0)).ptx",
    helpers=GIVEN,
)
wrong(
    "09.accumulator_dtype",
    "float16 where bfloat16 is slow",
    ACCUMULATOR,
    "return torch.float32 if",
    "return torch.float16 if",
    helpers=GIVEN,
)
wrong(
    "09.accumulator_dtype",
    "the text of the kernel is read",
    ACCUMULATOR,
    "    ptx = compile_backward(lab08.msda_bwd_kernel, dtype, capability).ptx\n",
    "    ptx = lab08.msda_bwd_kernel.src\n",
    helpers=GIVEN,
)

SWITCHED = right(
    "09.msda_backward_switched",
    """
def msda_backward_switched(grad_out, value, spatial_shapes, level_start_index, sampling_locations, attention_weights, capability, fp32_grad_accum=None):
    B, S, M, D = value.shape
    _, Q, _, L, K, _ = sampling_locations.shape
    if fp32_grad_accum is None:
        summed = accumulator_dtype(value.dtype, capability)
    else:
        summed = torch.float32 if fp32_grad_accum else value.dtype
    inputs = [t.contiguous() for t in (grad_out, value, spatial_shapes, level_start_index, sampling_locations, attention_weights)]
    grad_value = torch.zeros(value.shape, dtype=summed, device=value.device)
    grad_loc = torch.empty(sampling_locations.shape, dtype=sampling_locations.dtype, device=value.device)
    grad_attn = torch.empty(attention_weights.shape, dtype=attention_weights.dtype, device=value.device)
    if B * Q * M:
        lab08.msda_bwd_kernel[(B * Q * M,)](
            *inputs, grad_value, grad_loc, grad_attn, Q, S, M=M, D=D, L=L, K=K,
            BLOCK_P=triton.next_power_of_2(L * K), BLOCK_D=triton.next_power_of_2(D),
        )
    return grad_value.to(value.dtype), grad_loc, grad_attn
""",
    helpers=GIVEN + "\n" + ACCUMULATOR,
)
for what, *change in [
    ("False is not heard", "    if fp32_grad_accum is None:\n        summed = accumulator_dtype(value.dtype, capability)\n    else:\n        summed = torch.float32 if fp32_grad_accum else value.dtype\n", "    wide = fp32_grad_accum or accumulator_dtype(value.dtype, capability) == torch.float32\n    summed = torch.float32 if wide else value.dtype\n"),
    ("None is False", "    if fp32_grad_accum is None:\n        summed = accumulator_dtype(value.dtype, capability)\n    else:\n        summed", "    summed"),
    ("not rounded", "return grad_value.to(value.dtype), ", "return grad_value, "),
    ("always float32", "summed = torch.float32 if fp32_grad_accum else value.dtype", "summed = torch.float32"),
    ("all made float32", "t.contiguous() for t in", "t.contiguous().float() if t.is_floating_point() else t for t in"),
    ("the gradient of locations wide as well", "grad_loc = torch.empty(sampling_locations.shape, dtype=sampling_locations.dtype", "grad_loc = torch.empty(sampling_locations.shape, dtype=summed"),
]:  # fmt: skip
    wrong("09.msda_backward_switched", what, SWITCHED, *change, helpers=GIVEN + "\n" + ACCUMULATOR)

NARROW = right(
    "09.narrow_sum",
    """
def narrow_sum(terms):
    total, lost = terms[0], terms[0] - terms[0]
    for term in terms[1:]:
        now = total + term
        part = now - total
        lost = lost + ((total - (now - part)) + (term - part))
        total = now
    return total + lost
""",
    "what each addition lost, added at the end",
)
wrong(
    "09.narrow_sum",
    "one after the other",
    "def narrow_sum(terms):\n    total = terms[0]\n    for term in terms[1:]:\n        total = total + term\n    return total\n",
)
wrong(
    "09.narrow_sum",
    "the smallest first",
    "def narrow_sum(terms):\n    zero = terms[0] - terms[0]\n    terms = sorted(terms, key=lambda t: float(t))\n    total = zero\n    for term in terms:\n        total = total + term\n    return total\n",
)
wrong("09.narrow_sum", "by Python's sum", "def narrow_sum(terms):\n    return sum(terms)\n")
wrong(
    "09.narrow_sum",
    "the first forgotten",
    NARROW,
    "total, lost = terms[0], terms[0] - terms[0]",
    "total = lost = terms[0] - terms[0]",
)
wrong("09.narrow_sum", "what is lost has the wrong sign", NARROW, "return total + lost", "return total - lost")

"""Answers to lab 08."""

from checks.tests.bank import right, wrong

HISTOGRAM = right(
    "08.histogram_kernel",
    """
@triton.jit
def histogram_kernel(index_ptr, hist_ptr, N, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < N
    index = tl.load(index_ptr + offs, mask=mask, other=0)
    tl.atomic_add(hist_ptr + index, 1, mask=mask, sem="relaxed")
""",
)
for what, *change in [
    ("additions not masked", 'index, 1, mask=mask, sem="relaxed"', 'index, 1, sem="relaxed"'),
    (
        "read, add, write",
        'tl.atomic_add(hist_ptr + index, 1, mask=mask, sem="relaxed")',
        "tl.store(hist_ptr + index, tl.load(hist_ptr + index, mask=mask, other=0) + 1, mask=mask)",
    ),
    ("an exchange", "tl.atomic_add", "tl.atomic_xchg"),
    ("program id not multiplied", "tl.program_id(0) * BLOCK", "tl.program_id(0)"),
    ("two at a time", "index, 1, mask", "index, 2, mask"),
]:
    wrong("08.histogram_kernel", what, HISTOGRAM, *change)

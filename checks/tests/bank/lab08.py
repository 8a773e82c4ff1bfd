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

BACKWARD = right(
    "08.msda_bwd_kernel",
    """
@triton.jit
def msda_bwd_kernel(
    grad_out_ptr, value_ptr, shapes_ptr, starts_ptr, loc_ptr, attn_ptr, grad_value_ptr, grad_loc_ptr, grad_attn_ptr, Q, S,
    M: tl.constexpr, D: tl.constexpr, L: tl.constexpr, K: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_D: tl.constexpr,
):
    r = tl.program_id(0).to(tl.int64)
    head = r % M
    image = r // M // Q
    p = tl.arange(0, BLOCK_P)
    d = tl.arange(0, BLOCK_D)
    there = p < L * K
    level = p // K
    h = tl.load(shapes_ptr + level * 2, mask=there, other=1).to(tl.float32)
    w = tl.load(shapes_ptr + level * 2 + 1, mask=there, other=1).to(tl.float32)
    first = tl.load(starts_ptr + level, mask=there, other=0).to(tl.int64)
    where = r * L * K + p
    a = tl.load(attn_ptr + where, mask=there, other=0.0).to(tl.float32)
    x = tl.load(loc_ptr + where * 2, mask=there, other=-9.0).to(tl.float32) * w - 0.5
    y = tl.load(loc_ptr + where * 2 + 1, mask=there, other=-9.0).to(tl.float32) * h - 0.5
    fine = (x >= -1) & (x < w) & (y >= -1) & (y < h) & there
    x = tl.where(fine, x, 0.0)
    y = tl.where(fine, y, 0.0)
    left = tl.floor(x)
    top = tl.floor(y)
    go = tl.load(grad_out_ptr + r * D + d, mask=d < D, other=0.0).to(tl.float32)
    da = tl.zeros((BLOCK_P,), tl.float32)
    dx = tl.zeros((BLOCK_P,), tl.float32)
    dy = tl.zeros((BLOCK_P,), tl.float32)
    for c in tl.static_range(4):
        i = left + c % 2
        j = top + c // 2
        wx = (x - left) if c % 2 else 1 - (x - left)
        wy = (y - top) if c // 2 else 1 - (y - top)
        inside = fine & (i >= 0) & (i < w) & (j >= 0) & (j < h)
        pixel = image * S + first + j.to(tl.int64) * w.to(tl.int64) + i.to(tl.int64)
        at = ((pixel * M + head) * D)[:, None] + d[None, :]
        mask = inside[:, None] & (d < D)[None, :]
        v = tl.load(value_ptr + at, mask=mask, other=0.0).to(tl.float32)
        both = tl.sum(v * go[None, :], axis=1)
        da += both * wx * wy
        dx += both * wy * (1 if c % 2 else -1)
        dy += both * wx * (1 if c // 2 else -1)
        add = (a * wx * wy)[:, None] * go[None, :]
        tl.atomic_add(grad_value_ptr + at, add.to(grad_value_ptr.dtype.element_ty), mask=mask, sem="relaxed")
    tl.store(grad_attn_ptr + where, da.to(grad_attn_ptr.dtype.element_ty), mask=there)
    xy = tl.arange(0, 2)[None, :]
    both = tl.where(xy == 0, (dx * a * w)[:, None], (dy * a * h)[:, None])
    tl.store(grad_loc_ptr + where[:, None] * 2 + xy, both.to(grad_loc_ptr.dtype.element_ty), mask=there[:, None])
""",
)
for what, *change in [
    ("level = p // L", "level = p // K", "level = p // L"),
    ("level = p % L", "level = p // K", "level = p % L"),
    (
        "grad_attn through a softmax",
        "tl.store(grad_attn_ptr + where, da.to",
        "da = a * (da - tl.sum(a * da, axis=0))\n    tl.store(grad_attn_ptr + where, da.to",
    ),
    ("corners of dy mixed", "dy += both * wx * (1 if c // 2 else -1)", "dy += both * wx * (1 if c % 2 else -1)"),
    (
        "starts not accumulated",
        "first = tl.load(starts_ptr + level, mask=there, other=0).to(tl.int64)",
        "first = (h * w).to(tl.int64) * level",
    ),
    (
        "products in 16 bits",
        "mask=mask, other=0.0).to(tl.float32)\n        both",
        "mask=mask, other=0.0)\n        both",
        "v * go[None, :]",
        "(v * go.to(v.dtype)[None, :]).to(tl.float32)",
    ),
    (
        "stores to grad_value",
        'tl.atomic_add(grad_value_ptr + at, add.to(grad_value_ptr.dtype.element_ty), mask=mask, sem="relaxed")',
        "tl.store(grad_value_ptr + at, add.to(grad_value_ptr.dtype.element_ty), mask=mask)",
    ),
    ("grad_loc in pixels", "(dx * a * w)[:, None], (dy * a * h)[:, None]", "(dx * a)[:, None], (dy * a)[:, None]"),
]:
    wrong("08.msda_bwd_kernel", what, BACKWARD, *change)

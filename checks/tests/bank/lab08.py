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
for what, *change in [
    ("head and query exchanged", "head = r % M", "head = r // Q % M"),
    ("32-bit rows", "tl.program_id(0).to(tl.int64)", "tl.program_id(0)", "other=0).to(tl.int64)", "other=0).to(tl.int32)", "j.to(tl.int64) * w.to(tl.int64) + i.to(tl.int64)", "j.to(tl.int32) * w.to(tl.int32) + i.to(tl.int32)"),
    ("additions are not masked by channel", "add.to(grad_value_ptr.dtype.element_ty), mask=mask", "add.to(grad_value_ptr.dtype.element_ty), mask=inside[:, None] & (d >= 0)[None, :]"),
    ("attention forgotten in the locations", "(dx * a * w)[:, None], (dy * a * h)[:, None]", "(dx * w)[:, None], (dy * h)[:, None]"),
    ("sizes of the locations exchanged", "(dx * a * w)[:, None], (dy * a * h)[:, None]", "(dx * a * h)[:, None], (dy * a * w)[:, None]"),
    ("points that are no number", "fine = (x >= -1) & (x < w) & (y >= -1) & (y < h) & there", "fine = there"),
    ("in the default order", ', sem="relaxed")', ")"),
    ("all points stored", "da.to(grad_attn_ptr.dtype.element_ty), mask=there", "da.to(grad_attn_ptr.dtype.element_ty), mask=p < BLOCK_P"),
]:  # fmt: skip
    wrong("08.msda_bwd_kernel", what, BACKWARD, *change)
right("08.histogram_kernel", HISTOGRAM.replace(', sem="relaxed"', ""), "in the default order")
wrong(
    "08.histogram_kernel",
    "counts begin at zero",
    HISTOGRAM,
    "    tl.atomic_add",
    "    tl.store(hist_ptr + index, 0, mask=mask)\n    tl.atomic_add",
)
wrong("08.histogram_kernel", "the index of each lane", HISTOGRAM, "hist_ptr + index, 1", "hist_ptr + offs, index")

MERGE = right(
    "08.merge_then_add_kernel",
    """
@triton.jit
def merge_then_add_kernel(index_ptr, weight_ptr, out_ptr, N, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    offs = tl.program_id(0) * BLOCK + lanes
    mask = offs < N
    index = tl.load(index_ptr + offs, mask=mask, other=-1)
    weight = tl.load(weight_ptr + offs, mask=mask, other=0.0)
    same = index[:, None] == index[None, :]
    total = tl.sum(tl.where(same, weight[None, :], 0.0), axis=1)
    first = tl.min(tl.where(same, lanes[None, :], BLOCK), axis=1)
    tl.atomic_add(out_ptr + index, total, mask=mask & (first == lanes), sem="relaxed")
""",
)
right(
    "08.merge_then_add_kernel", MERGE.replace("other=-1", "other=0"), "lanes past the end share place 0 and add nothing"
)
for what, *change in [
    ("every lane adds the sum", "mask=mask & (first == lanes)", "mask=mask"),
    ("the first adds its own only", "out_ptr + index, total", "out_ptr + index, weight"),
    ("nothing merged", "out_ptr + index, total, mask=mask & (first == lanes)", "out_ptr + index, weight, mask=mask"),
    ("stored", "tl.atomic_add(out_ptr + index, total, mask=mask & (first == lanes), sem=\"relaxed\")", "tl.store(out_ptr + index, total, mask=mask & (first == lanes))"),
    ("neighbours only", "same = index[:, None] == index[None, :]", "same = (index[:, None] == index[None, :]) & (tl.abs(lanes[:, None] - lanes[None, :]) < 2)"),
    ("those before a lane only", "same = index[:, None] == index[None, :]", "same = (index[:, None] == index[None, :]) & (lanes[:, None] <= lanes[None, :])"),
    ("the mean", "out_ptr + index, total", "out_ptr + index, total / tl.sum(same.to(tl.float32), axis=1)"),
]:  # fmt: skip
    wrong("08.merge_then_add_kernel", what, MERGE, *change)

BITS = right(
    "08.deterministic_sum",
    """
def deterministic_sum(index, weight, size):
    order = weight.sort().indices
    order = order[index[order].sort(stable=True).indices]
    out = torch.zeros(size, dtype=torch.float64)
    return out.index_add_(0, index[order], weight[order].double()).float()
""",
    "sorted by place and weight",
)
for what, *change in [
    ("sorted by place only", "    order = weight.sort().indices\n    order = order[index[order].sort(stable=True).indices]\n", "    order = index.sort(stable=True).indices\n"),
    ("float64, as they come", "    order = weight.sort().indices\n    order = order[index[order].sort(stable=True).indices]\n", "    order = slice(None)\n"),
    ("sorted, in float32", "torch.float64", "torch.float32", "weight[order].double()", "weight[order]"),
    ("one unit for all places", "    order = weight.sort().indices\n    order = order[index[order].sort(stable=True).indices]\n    out = torch.zeros(size, dtype=torch.float64)\n    return out.index_add_(0, index[order], weight[order].double()).float()", "    unit = weight.abs().max().double() / 2**30 if len(weight) else torch.tensor(1.0)\n    out = torch.zeros(size, dtype=torch.int64)\n    return (out.index_add_(0, index, (weight.double() / unit).round().long()) * unit).float()"),
    ("a fixed unit", "    order = weight.sort().indices\n    order = order[index[order].sort(stable=True).indices]\n    out = torch.zeros(size, dtype=torch.float64)\n    return out.index_add_(0, index[order], weight[order].double()).float()", "    out = torch.zeros(size, dtype=torch.int64)\n    return (out.index_add_(0, index, (weight.double() * 2**24).round().long()).double() / 2**24).float()"),
    ("places assigned", "return out.index_add_(0, index[order], weight[order].double()).float()", "out[index[order]] += weight[order].double()\n    return out.float()"),
]:  # fmt: skip
    wrong("08.deterministic_sum", what, BITS, *change)

LAUNCHER = right(
    "08.msda_backward",
    """
def msda_backward(grad_out, value, spatial_shapes, level_start_index, sampling_locations, attention_weights):
    B, S, M, D = value.shape
    _, Q, _, L, K, _ = sampling_locations.shape
    inputs = [t.contiguous() for t in (grad_out, value, spatial_shapes, level_start_index, sampling_locations, attention_weights)]
    grad_value = torch.zeros(value.shape, dtype=value.dtype, device=value.device)
    grad_loc = torch.empty(sampling_locations.shape, dtype=sampling_locations.dtype, device=value.device)
    grad_attn = torch.empty(attention_weights.shape, dtype=attention_weights.dtype, device=value.device)
    if B * Q * M:
        msda_bwd_kernel[(B * Q * M,)](
            *inputs, grad_value, grad_loc, grad_attn, Q, S, M=M, D=D, L=L, K=K,
            BLOCK_P=triton.next_power_of_2(L * K), BLOCK_D=triton.next_power_of_2(D),
        )
    return grad_value, grad_loc, grad_attn
""",
    helpers=BACKWARD,
)
for what, *change in [
    ("grad_value uninitialised", "grad_value = torch.zeros(", "grad_value = torch.empty("),
    ("grad_out as it is", "t.contiguous() for t in (grad_out, value,", "t if t is grad_out else t.contiguous() for t in (grad_out, value,"),
    ("value's strides kept", "torch.zeros(value.shape, dtype=value.dtype, device=value.device)", "torch.zeros_like(value)"),
    ("in another order", "return grad_value, grad_loc, grad_attn", "return grad_loc, grad_attn, grad_value"),
    ("one program a query", "(B * Q * M,)", "(B * Q,)"),
    ("all in value's dtype", "dtype=sampling_locations.dtype", "dtype=value.dtype", "dtype=attention_weights.dtype", "dtype=value.dtype"),
    ("blocks of K", "triton.next_power_of_2(L * K)", "triton.next_power_of_2(K)"),
]:  # fmt: skip
    wrong("08.msda_backward", what, LAUNCHER, *change, helpers=BACKWARD)

MERGED = right(
    "08.msda_bwd_merged_kernel",
    BACKWARD.replace("def msda_bwd_kernel", "def msda_bwd_merged_kernel").replace(
        """        add = (a * wx * wy)[:, None] * go[None, :]
        tl.atomic_add(grad_value_ptr + at, add.to(grad_value_ptr.dtype.element_ty), mask=mask, sem="relaxed")
""",
        """        mine = tl.where(inside, pixel, -1 - p)
        same = mine[:, None] == mine[None, :]
        share = tl.where(inside, a * wx * wy, 0.0)
        total = tl.sum(tl.where(same, share[None, :], 0.0), axis=1)
        leads = tl.min(tl.where(same, p[None, :], BLOCK_P), axis=1) == p
        add = total[:, None] * go[None, :]
        tl.atomic_add(grad_value_ptr + at, add.to(grad_value_ptr.dtype.element_ty), mask=mask & leads[:, None], sem="relaxed")
""",
    ),
    "corner by corner",
)
for what, *change in [
    ("every lane adds the sum", "mask=mask & leads[:, None]", "mask=mask"),
    ("the first adds its own only", "add = total[:, None]", "add = share[:, None]"),
    ("nothing merged", "add = total[:, None]", "add = share[:, None]", "mask=mask & leads[:, None]", "mask=mask"),
    ("points of one level, whatever the pixel", "mine = tl.where(inside, pixel, -1 - p)", "mine = tl.where(inside, pixel - first - image * S, -1 - p)"),
]:  # fmt: skip
    wrong("08.msda_bwd_merged_kernel", what, MERGED, *change)

"""The merged kernels and each of their pieces against float64, on the active device: interpreted where there is no GPU."""

import itertools

import numpy as np
import pytest
import torch

from msda_core import device, inputs, reference
from msda_core.ops import eager, interpreted, merging, multi_scale_deformable_attention, tables
from msda_core.ops.eager import merging_wish

pytestmark = [
    pytest.mark.skipif(device.NO_TRITON is not None, reason=f"not run: {device.NO_TRITON}"),
    pytest.mark.usefixtures("poisoned"),
]

if device.NO_TRITON is None:
    from msda_core.device import tl, triton
    from msda_core.kernels import merged
    from msda_core.kernels.backward import msda_backward
    from msda_core.kernels.config import LaunchConfig
    from msda_core.kernels.forward import corners
    from msda_core.kernels.merged import packed, plan, remainder, window

    PTX = not device.INTERPRETED

FLOATS = [torch.float32, torch.float16, torch.bfloat16]
LEVELS = ((4, 36), (2, 18))  # H != W, no multiple of a tile, wider than a window

#: Relative error of grad_value. The interpreter cuts bfloat16 off instead of rounding it, so its errors are twice a GPU's.
VALUE = {torch.float32: 3e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
OTHER = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def encoder_call(make_call, spread=3.0, levels=LEVELS, B=1, M=2, dtype=torch.float32, loc_dtype=None, gap=0, seed=0):
    """Every pixel a query, points around it: a Gaussian of `spread` pixels at every level, or "uniform"."""
    call = make_call(
        B=B, Q=sum(h * w for h, w in levels), M=M, D=32, K=4, levels=levels, dtype=dtype, loc_dtype=loc_dtype, gap=gap,
        seed=seed,
    )  # fmt: skip
    loc = inputs.encoder_locations(call.loc.shape, levels, spread, "cpu", torch.Generator().manual_seed(seed))
    return call._replace(loc=loc.to(call.loc))


def backward(call, levels=LEVELS, **options):
    return merged.merged_backward(
        call.value, call.shapes, call.starts, levels, call.loc, call.attn, call.grad_out, **options
    )


def forward(call, levels=LEVELS):
    return merged.merged_forward(call.value, call.shapes, call.starts, levels, call.loc, call.attn)


def check_gradients(call, grads, assert_close, value=None):
    exact = reference.exact_gradients(*call)
    assert [g.dtype for g in grads] == [call.value.dtype, call.loc.dtype, call.attn.dtype]
    assert_close(grads[0], exact[0], value or VALUE[call.value.dtype], "grad_value")
    other = OTHER[call.loc.dtype] if call.loc.dtype == torch.float32 else OTHER[call.value.dtype]
    assert_close(grads[1], exact[1], other, "grad_locations")
    assert_close(grads[2], exact[2], other, "grad_attention")


@pytest.fixture
def launches(monkeypatch):
    """Every launch of a merged kernel: (name, tensors)."""
    seen, launch = [], merged.launch
    monkeypatch.setattr(merged, "launch", lambda k, p, t: (seen.append((k.fn.__name__, t)), launch(k, p, t))[1])
    return seen


# --------------------------------------------------------------------------------------------------------------- pieces

if device.NO_TRITON is None:
    N = 32

    @triton.jit
    def pack_kernel(x_ptr, y_ptr, pair_ptr, low_ptr, high_ptr, N: tl.constexpr, PTX: tl.constexpr):
        i = tl.arange(0, N)
        T: tl.constexpr = low_ptr.dtype.element_ty
        pair = packed.pack(tl.load(x_ptr + i), tl.load(y_ptr + i), T, PTX)
        low, high = packed.unpack(pair, T, PTX)
        tl.store(pair_ptr + i, pair)
        tl.store(low_ptr + i, low)
        tl.store(high_ptr + i, high)

    @triton.jit
    def split_kernel(x_ptr, y_ptr, out_ptr, N: tl.constexpr, PTX: tl.constexpr):
        i = tl.arange(0, N)
        T: tl.constexpr = out_ptr.dtype.element_ty
        a, b, c, d = packed.split(tl.load(x_ptr + i), tl.load(y_ptr + i), T, PTX)
        tl.store(out_ptr + i, a)
        tl.store(out_ptr + N + i, b)
        tl.store(out_ptr + 2 * N + i, c)
        tl.store(out_ptr + 3 * N + i, d)

    @triton.jit
    def sum_kernel(rows_ptr, columns_ptr, low_ptr, high_ptr, N: tl.constexpr, PTX: tl.constexpr):
        i = tl.arange(0, N)
        rows = ()
        columns = ()
        for k in tl.static_range(4):
            rows = rows + (tl.load(rows_ptr + k * N + i),)
            columns = columns + (tl.load(columns_ptr + k * N + i),)
        low, high = packed.sum_of_products(rows, columns, low_ptr.dtype.element_ty, PTX)
        tl.store(low_ptr + i, low)
        tl.store(high_ptr + i, high)

    @triton.jit
    def dots_kernel(rows_ptr, g_ptr, out_ptr, N: tl.constexpr, T: tl.constexpr, PTX: tl.constexpr):
        i = tl.arange(0, N)
        offs = i[:, None] * 4 + tl.arange(0, 4)[None, :]
        a = tl.load(rows_ptr + offs)
        b = tl.load(rows_ptr + 4 * N + offs)
        c = tl.load(rows_ptr + 8 * N + offs)
        d = tl.load(rows_ptr + 12 * N + offs)
        dot_a, dot_b, dot_c, dot_d = packed.dots(a, b, c, d, tl.load(g_ptr + offs), i // 4, T, PTX)
        tl.store(out_ptr + i, dot_a)
        tl.store(out_ptr + N + i, dot_b)
        tl.store(out_ptr + 2 * N + i, dot_c)
        tl.store(out_ptr + 3 * N + i, dot_d)

    @triton.jit
    def weights_kernel(loc_ptr, attn_ptr, out_ptr, W, H, x, y, N: tl.constexpr, GROUP: tl.constexpr, PTX: tl.constexpr):
        """The weights of four rows of a window at (x, y), [N, 64]."""
        i = tl.arange(0, N)
        mask = i < N
        xs, ys = window.xs_and_ys(window.load_locations(loc_ptr, i * 8, mask))
        attn = window.four(window.load_row(attn_ptr, i * 4, mask, 4))
        columns = ()
        rows = ()
        fxs = ()
        fys = ()
        for k in tl.static_range(4):
            column, row, fx, fy, missed = window.place(xs[k], ys[k], W, H, x, y)
            columns = columns + (column,)
            rows = rows + (row,)
            fxs = fxs + (fx,)
            fys = fys + (fy,)
        T: tl.constexpr = out_ptr.dtype.element_ty
        index = tl.arange(0, 4) + 4 * GROUP
        if T == tl.float32:
            even, odd = window.weights_32(columns, rows, fxs, fys, attn, index)
        else:
            even, odd = window.weights_16(columns, rows, fxs, fys, attn, index, T, PTX)
        tl.store(out_ptr + i[:, None] * 64 + tl.arange(0, 64)[None, :], window.by_query(even, odd))

    @triton.jit
    def window_kernel(loc_ptr, out_ptr, W, H, centre_x, centre_y, N: tl.constexpr):
        i = tl.arange(0, N)
        xs, ys = window.xs_and_ys(window.load_locations(loc_ptr, i * 8, i >= 0))
        x, y, worth = window.place_window(xs, ys, W, H, centre_x, centre_y)
        tl.store(out_ptr, x)
        tl.store(out_ptr + 1, y)
        tl.store(out_ptr + 2, worth)

    @triton.jit
    def corners_kernel(x_ptr, y_ptr, out_ptr, W, H, N: tl.constexpr, UNSIGNED: tl.constexpr):
        i = tl.arange(0, N)
        x = tl.load(x_ptr + i)
        y = tl.load(y_ptr + i)
        if UNSIGNED:
            x0, y0, fx, fy, left, right, top, bottom = remainder.corners_unsigned(x, y, W, H)
        else:
            x0, y0, fx, fy, left, right, top, bottom = corners(x, y, W, H)
        sides = left.to(tl.float32) + 2 * right.to(tl.float32) + 4 * top.to(tl.float32) + 8 * bottom.to(tl.float32)
        any_x = left | right
        any_y = top | bottom
        tl.store(out_ptr + i, sides)
        tl.store(out_ptr + N + i, tl.where(any_x, x0.to(tl.float32) + fx, 0.0))  # what is nowhere may be anything
        tl.store(out_ptr + 2 * N + i, tl.where(any_y, y0.to(tl.float32) + fy, 0.0))


SIXTEEN = [torch.float16, torch.bfloat16]


def close_16(actual, exact, dtype, steps=1.0):
    """Within `steps` roundings of the format (the interpreter cuts bfloat16 off, which is two halves)."""
    eps = torch.finfo(dtype).eps * (1 if dtype == torch.bfloat16 and device.INTERPRETED else 0.5)
    bound = steps * eps * exact.abs() + torch.finfo(dtype).smallest_normal * eps * 2
    assert ((actual.double() - exact).abs() <= bound).all(), (actual.double() - exact).abs().max()


@pytest.mark.parametrize("dtype", SIXTEEN, ids=str)
def test_two_numbers_share_a_word(dtype):
    x, y = torch.randn(2, N, device=device.ACTIVE).unbind()
    pair = torch.empty(N, dtype=torch.int32, device=device.ACTIVE)
    low, high = (torch.empty(N, dtype=dtype, device=device.ACTIVE) for _ in range(2))
    pack_kernel[(1,)](x, y, pair, low, high, N=N, PTX=PTX)
    close_16(low, x.double(), dtype)
    close_16(high, y.double(), dtype)
    assert torch.equal(pair.view(dtype), torch.stack([low, high], 1).flatten())


@pytest.mark.parametrize("dtype", SIXTEEN, ids=str)
def test_two_terms_hold_twice_the_digits(dtype):
    x, y = torch.rand(2, N, device=device.ACTIVE).unbind()
    out = torch.empty(4, N, dtype=dtype, device=device.ACTIVE)
    split_kernel[(1,)](x, y, out, N=N, PTX=PTX)
    eps = torch.finfo(dtype).eps
    for number, lead, rest in ((x, out[0], out[2]), (y, out[1], out[3])):
        close_16(lead, number.double(), dtype)
        found = lead.double() + rest.double()
        assert ((found - number.double()).abs() <= eps**2 * number + 1e-7).all()


@pytest.mark.parametrize("dtype", SIXTEEN, ids=str)
def test_four_products_of_both_halves(dtype):
    rows, columns = (torch.rand(4, N, 2, device=device.ACTIVE).to(dtype) for _ in range(2))
    low, high = (torch.empty(N, dtype=dtype, device=device.ACTIVE) for _ in range(2))
    sum_kernel[(1,)](rows.view(torch.int32), columns.view(torch.int32), low, high, N=N, PTX=PTX)
    exact = (rows.double() * columns.double()).sum(0)
    close_16(low, exact[:, 0], dtype, steps=4)  # the PTX rounds after each of them
    close_16(high, exact[:, 1], dtype, steps=4)


@pytest.mark.parametrize("dtype", SIXTEEN, ids=str)
def test_dots_of_gathered_rows(dtype):
    """Eight rows, four lanes each, against eight rows of grad_out; with PTX a lane finds rows 2j and 2j + 1 of it."""
    rows = torch.randn(4, 8, 32, device=device.ACTIVE).to(dtype)
    g = torch.randn(8, 32, device=device.ACTIVE).to(dtype)
    g[1::2] = g[::2]
    out = torch.empty(4, N, device=device.ACTIVE)
    dots_kernel[(1,)](
        rows.view(torch.int32), g.view(torch.int32), out, N=N, num_warps=1, PTX=PTX,
        T=tl.float16 if dtype == torch.float16 else tl.bfloat16,
    )  # fmt: skip
    row, lane = torch.arange(N) // 4, torch.arange(N) % 4
    against = g.double()[2 * lane if PTX else row]
    exact = (rows.double()[:, row] * against).sum(-1)
    torch.testing.assert_close(out.double(), exact, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_weights_of_a_window_are_bilinear(dtype):
    """A[query, pixel] against the tent functions of bilinear interpolation, four points a query, some of them elsewhere."""
    g = torch.Generator().manual_seed(0)
    W, H, x, y = 23, 19, 4, -1
    loc = torch.rand(N, 4, 2, generator=g) * 1.2 - 0.1
    loc[0, 0] = torch.tensor([float("nan"), 0.5])
    loc[1, 1] = torch.tensor([float("inf"), -1e30])
    attn = torch.rand(N, 4, generator=g)
    loc, attn = loc.to(device.ACTIVE), attn.to(device.ACTIVE)
    found = torch.empty(3, N, 4, 16, dtype=dtype, device=device.ACTIVE)
    for group in range(3):
        weights_kernel[(1,)](loc, attn, found[group], W, H, x, y, N=N, GROUP=group, PTX=PTX, num_warps=1)
    found = found.transpose(0, 1).reshape(N, 12, 16)
    px = (loc[..., 0].double() * W - 0.5).nan_to_num(-9).clamp(-9, 99)
    py = (loc[..., 1].double() * H - 0.5).nan_to_num(-9).clamp(-9, 99)
    tent_x = (1 - (px[..., None] - x - torch.arange(16).to(px)).abs()).clamp_min(0)
    tent_y = (1 - (py[..., None] - y - torch.arange(12).to(py)).abs()).clamp_min(0)
    inside = (
        (px.floor() >= max(x, -1)) & (px.floor() < min(x + 15, W)) & (py.floor() >= y) & (py.floor() < min(y + 11, H))
    )
    exact = torch.einsum("qk,qkh,qkw->qhw", attn.double() * inside, tent_y, tent_x)
    assert 0.2 < inside.double().mean() < 0.8
    error = (found.double() - exact).norm() / exact.norm()
    assert error < {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}[dtype]
    assert (found[exact == 0].abs() < 1e-6).all()


@pytest.mark.parametrize(
    "x, y, expected",
    [
        (10, 9, (3, 4, 1)),  # in the middle: column 7 and row 5 of the window
        (0, 0, (-1, -1, 1)),  # moved into the image, but for a border of one pixel
        (39, 29, (25, 19, 1)),
        (90, 9, (25, 4, 0)),  # outside, so outside the window, which stays in the image
    ],
)
def test_the_window_lies_at_the_mean(x, y, expected):
    W, H = 40, 30
    loc = torch.tensor([(x + 0.7) / W, (y + 0.7) / H]).expand(16, 4, 2).contiguous().to(device.ACTIVE)
    out = torch.empty(3, dtype=torch.int32, device=device.ACTIVE)
    window_kernel[(1,)](loc, out, W, H, 15, 12, N=16)
    assert tuple(out.tolist()) == expected


@pytest.mark.parametrize("scattered", [0, 5, 8, 9, 16])
def test_a_window_is_worth_it_for_half_of_the_points(scattered):
    place = torch.full((16, 4, 2), 64.7)
    place[:scattered, ::2, 0] += 40
    place[:scattered, 1::2, 0] -= 40  # the mean stays
    loc = (place / 128).to(device.ACTIVE)
    out = torch.empty(3, dtype=torch.int32, device=device.ACTIVE)
    window_kernel[(1,)](loc, out, 128, 128, 64, 64, N=16)
    assert int(out[2]) == (scattered <= 8)
    assert int(out[0]) == 57


def test_corners_without_a_sign_are_the_same():
    special = [np.nan, np.inf, -np.inf, 1e30, -1e30, 3e9, -2.5, -2.0, -1.0, -0.5, 0.0, 6.0, 6.5, 7.0, 7.5, 8.0]
    x, y = (torch.tensor(v).float() for v in zip(*itertools.product(special, special)))
    x, y = x.to(device.ACTIVE), y.to(device.ACTIVE)
    W, H = 7, 8
    outs = []
    for unsigned in (False, True):
        outs.append(torch.empty(3, len(x), device=device.ACTIVE))
        corners_kernel[(1,)](x, y, outs[-1], W, H, N=len(x), UNSIGNED=unsigned)
    assert torch.equal(*outs) and 0 < (outs[0][0] == 15).sum() < len(x)


# ----------------------------------------------------------------------------------------------------------- work lists


@pytest.mark.parametrize(
    "levels", [((100, 167), (50, 84), (25, 42), (13, 21)), ((9, 20), (3, 8)), ((3, 8), (9, 20)), ((5, 7),)], ids=str
)
def test_every_query_is_somebodys_once(levels):
    lists = plan.work_lists(levels, torch.device("cpu"))
    queries = sum(h * w for h, w in levels)
    seen = torch.zeros(queries, dtype=torch.int)
    covered = torch.full((len(levels), queries), -1)  # by which merge
    for first, W, H, x, y, target, width, height, slot in lists.merges.tolist():
        rows = torch.arange(y, min(y + height, H))[:, None] * W + torch.arange(x, min(x + width, W))
        assert (covered[target, first + rows] == -1).all()
        covered[target, first + rows] = slot
    assert sorted(lists.merges[:, 8].tolist()) == list(range(len(lists.merges)))
    for (first, W, H, x, y, *_), slots in zip(lists.tiles.tolist(), lists.slots.tolist()):
        rows = torch.arange(y, min(y + plan.TILE[1], H))[:, None] * W + torch.arange(x, min(x + plan.TILE[0], W))
        seen[first + rows] += 1
        assert all((covered[target, first + rows] == slot).all() for target, slot in enumerate(slots))
    assert (seen == 1).all()
    spanned = torch.zeros_like(covered)
    for first, last, target in lists.spans.tolist():
        assert 0 < last - first <= plan.SPAN
        spanned[target, first:last] += 1
    assert torch.equal(spanned, (covered >= 0).long())


def test_lists_are_not_made_while_a_graph_is_captured(monkeypatch):
    """A copy to the device would break the capture; and what a graph reads must outlive it."""
    gpu, levels = torch.device("cuda", 7), ((3, 5),)
    monkeypatch.setattr(plan, "_made", {})
    monkeypatch.setattr(plan, "_captured", {})
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert not plan.ready(levels, gpu) and plan.ready(levels, torch.device("cpu"))
    plan._made[levels, gpu] = plan.work_lists(levels, torch.device("cpu"))
    assert plan.ready(levels, gpu)
    lists = plan.work_lists(levels, gpu)
    for n in range(plan.KEPT + 1):
        plan.work_lists(((1, n + 1),), torch.device("cpu"))
    assert len(plan._made) <= plan.KEPT and plan.work_lists(levels, gpu) is lists


def test_own_and_finer_levels_are_not_merged():
    assert plan.merge_tile(100, 100) is None and plan.merge_tile(100, 67) is None and plan.merge_tile(50, 100) is None
    assert [plan.merge_tile(168, width) for width in (84, 42, 21)] == [(16, 16), (32, 16), (32, 32)]


# -------------------------------------------------------------------------------------------------------- whole kernels


@pytest.mark.parametrize("dtype, loc", [*((d, None) for d in FLOATS), (torch.float16, torch.float32)], ids=str)
def test_forward_and_gradients_are_exact(make_call, assert_close, launches, dtype, loc):
    call = encoder_call(make_call, dtype=dtype, loc_dtype=loc)
    out = forward(call)
    assert out.dtype == dtype
    assert_close(out, reference.exact(*call.inputs))
    check_gradients(call, backward(call), assert_close)
    status = launches[1][1][7]  # of the window kernel: tiles are merged, and a few points are spilled
    assert status.double().mean() > 0.7
    flags = launches[1][1][6][:, 1, :, : 4 * 36]
    assert 0 < sum(((flags >> k) & 1).sum() for k in range(4)) < flags.numel()


def test_three_levels_and_an_odd_number_of_heads(make_call, assert_close):
    """L = 3, as in Mask2Former, and levels that do not get smaller; M = 3 in float32; gaps, which are NaN."""
    levels = ((2, 12), (3, 3), (2, 6))
    call = encoder_call(make_call, levels=levels, M=3, gap=2)
    clean = call._replace(value=call.value.nan_to_num())
    assert_close(forward(call, levels), reference.exact(*clean.inputs))
    grads = backward(call, levels)
    check_gradients(clean, grads, assert_close)
    assert (grads[0][:, :2] == 0).all()


MANY = [((1, 3), (1, 1), (2, 1), (1, 1), (1, 1))]
if device.NO_TRITON is None and not device.INTERPRETED:
    MANY += [((1, 6), (2, 2), (1, 1), (3, 1), (1, 2)), ((1, 3), (1, 1)) * 4]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("levels", MANY, ids=str)
def test_more_levels_than_are_worked_on_together(make_call, assert_close, levels, dtype):
    call = encoder_call(make_call, levels=levels, B=1 if device.INTERPRETED else 2, dtype=dtype)
    assert_close(forward(call, levels), reference.exact(*call.inputs))
    check_gradients(call, backward(call, levels), assert_close)


@pytest.mark.parametrize(
    "value, loc, attn",
    [(torch.float16, torch.float32, torch.float16), (torch.float32, torch.float16, torch.bfloat16)],
    ids=str,
)
def test_each_in_a_dtype_of_its_own(make_call, assert_close, value, loc, attn):
    levels = ((4, 12), (2, 6), (1, 3))
    call = encoder_call(make_call, levels=levels, dtype=value, loc_dtype=loc)
    call = call._replace(attn=call.attn.to(attn))
    assert_close(forward(call, levels), reference.exact(*call.inputs))
    grads, exact = backward(call, levels), reference.exact_gradients(*call)
    assert [g.dtype for g in grads] == [value, loc, attn]
    for grad, truth, name in zip(grads, exact, ("grad_value", "grad_locations", "grad_attention")):
        narrow = VALUE[value] if name == "grad_value" else max(OTHER[value], OTHER[grad.dtype])
        assert_close(grad, truth, narrow, name)


@pytest.mark.parametrize("accumulate", [False, True])
def test_accumulator_switch(make_call, assert_close, accumulate):
    """A float32 sum of 16-bit gradients rounds once, also where neighbours are merged: weights are two 16-bit terms then."""
    call = encoder_call(make_call, dtype=torch.float16)
    grads = backward(call, fp32_grad_accum=accumulate)
    check_gradients(call, grads, assert_close, 3e-4 if accumulate else None)
    if not accumulate:
        error = (grads[0].double() - reference.exact_gradients(*call)[0]).norm() / grads[0].double().norm()
        assert error > 3e-4


def test_scattered_points_are_not_merged(make_call, assert_close, launches):
    """No window holds half of them: all of it is added plainly, and nothing is spilled."""
    levels = ((4, 60), (3, 40))
    call = encoder_call(make_call, "uniform", levels, dtype=torch.float16)
    check_gradients(call, backward(call, levels), assert_close)
    (_, tensors), (_, left), _ = launches
    assert (tensors[7] == 0).all()
    assert (left[6][:, 1, :, : 4 * 60] == 0).all()


def test_every_query_far_from_where_its_pixel_is(make_call, assert_close):
    """Queries that are no pixels at all: the result is the same, whatever is gained."""
    call = encoder_call(make_call, dtype=torch.float16)
    order = torch.randperm(call.loc.shape[1], generator=torch.Generator().manual_seed(1)).to(call.loc.device)
    call = call._replace(loc=call.loc[:, order].contiguous())
    assert_close(forward(call), reference.exact(*call.inputs))
    check_gradients(call, backward(call), assert_close)


@pytest.mark.parametrize("where, bad", [("grad_out", float("nan")), ("grad_out", float("inf")), ("attn", float("inf"))])
def test_what_is_not_finite_stays_where_it_was(make_call, launches, where, bad):
    """A NaN spoils the pixels that its point touches, as in the plain backward, and no others of a window."""
    call = encoder_call(make_call, dtype=torch.float16)
    getattr(call, where).view(1, 4 * 36 + 2 * 18, 2, -1)[0, 47, 1, 5] = bad
    grads, plain = backward(call), msda_backward(*call, config=LaunchConfig(64, 2, 8, 32, 4))
    for ours, theirs in zip(grads, plain):
        assert torch.equal(ours.isnan(), theirs.isnan()) and torch.equal(ours.isinf(), theirs.isinf())
    finite = plain[0].isfinite()
    assert 0 < finite.logical_not().sum() < finite.numel() / 50
    torch.testing.assert_close(grads[0][finite], plain[0][finite], atol=2e-2, rtol=2e-2)
    assert 0 < launches[0][1][7].sum() < launches[0][1][7].numel()  # only that tile is not merged


@pytest.mark.parametrize("bad", [float("nan"), -float("inf"), 3e4])
def test_a_location_that_is_no_place_contributes_nothing(make_call, assert_close, launches, bad):
    call = encoder_call(make_call, dtype=torch.float16)
    call.loc[0, 20, 0, 1, 2, 0] = bad
    call.loc[0, 21, :, 1, :, 1] = bad
    assert_close(forward(call), reference.exact(*call.inputs))
    grads = backward(call)
    assert all(grad.isfinite().all() for grad in grads)
    assert (grads[1][0, 21, :, 1] == 0).all() and (grads[2][0, 21, :, 1] == 0).all()
    check_gradients(call, grads, assert_close)
    assert launches[1][1][7].double().mean() > 0.7  # and does not keep its neighbours from merging


def test_weights_past_what_float16_holds(make_call, assert_close):
    """float32 attention beside a 16-bit value: too large a weight is not cut off, its tile is added plainly."""
    call = encoder_call(make_call, dtype=torch.float16, loc_dtype=torch.float32)
    call.attn[0, 30, 0, 1] = 1e5
    call.grad_out[0, 30] *= 1e-4
    check_gradients(call, backward(call), assert_close)


def test_misaligned_and_non_contiguous_tensors(make_call, assert_close):
    call = encoder_call(make_call, levels=((2, 9), (1, 4)), dtype=torch.float16)

    def shift(tensor):
        storage = torch.empty(tensor.numel() + 1, dtype=tensor.dtype, device=tensor.device)
        return storage[1:].copy_(tensor.flatten()).view(tensor.shape)

    moved = call._replace(
        value=shift(call.value), loc=shift(call.loc), attn=call.attn.transpose(1, 4).contiguous().transpose(1, 4),
        grad_out=shift(call.grad_out), shapes=call.shapes.T.contiguous().T,
    )  # fmt: skip
    levels = ((2, 9), (1, 4))
    assert_close(forward(moved, levels), reference.exact(*call.inputs))
    check_gradients(call, backward(moved, levels), assert_close)


# ----------------------------------------------------------------------------------------------------------- the choice


def fits(call, levels=LEVELS, **options):
    return merged.suits(call.value, call.loc, call.attn, levels, **options)


def test_what_suits(make_call):
    call = encoder_call(make_call, dtype=torch.float16)
    assert fits(call)
    assert not fits(call, None)  # a table that only the device knows
    assert not fits(call, ((9, 20), (3, 9)))  # queries that are not the pixels: a decoder
    assert not fits(call, deterministic=True)
    assert not fits(make_call(B=1, Q=30, M=2, D=64, K=4), ((4, 6), (3, 2)))
    assert not fits(make_call(B=1, Q=30, M=2, D=32, K=2), ((4, 6), (3, 2)))
    assert not fits(make_call(B=0, Q=30, M=2, D=32, K=4), ((4, 6), (3, 2)))
    assert not fits(make_call(B=1, Q=30, M=3, D=32, K=4, dtype=torch.float16), ((4, 6), (3, 2)))  # heads come in pairs
    assert fits(make_call(B=1, Q=30, M=3, D=32, K=4), ((4, 6), (3, 2)))
    assert not fits(make_call(B=1, Q=30, M=2, D=32, K=4, dtype=torch.float64), ((4, 6), (3, 2)))
    assert not fits(make_call(B=1, Q=9, M=2, D=32, K=4, levels=((1, 1),) * 9), ((1, 1),) * 9)


def test_offsets_of_32_bits_must_suffice():
    Q = 100 * 168
    B = 2**31 // (Q * 8 * 32) + 1
    value = torch.empty(1, dtype=torch.float16, device="meta").expand(B, Q, 8, 32)
    loc = torch.empty(1, dtype=torch.float16, device="meta").expand(B, Q, 8, 1, 4, 2)
    if device.INTERPRETED:
        assert not merged.suits(value, loc, loc[..., 0], ((100, 168),))
        assert merged.suits(value[:-1], loc[:-1], loc[:-1, ..., 0], ((100, 168),))


def test_large_calls_are_worthwhile_where_the_gain_was_seen(monkeypatch):
    def call(B, Q, dtype=torch.float16):
        value = torch.empty(1, dtype=dtype).expand(B, Q, 8, 32)
        return value, torch.empty(1).expand(B, Q, 8, 4, 4, 2)

    monkeypatch.setattr(merged, "_capability", lambda device: 90)
    assert merged.worthwhile(*call(2, 22223)) and not merged.worthwhile(*call(1, 1000))
    assert merged.worthwhile(*call(2, 22223, torch.float32))
    monkeypatch.setattr(merged, "_capability", lambda device: 80)
    assert not merged.worthwhile(*call(2, 22223))


@pytest.fixture
def on_kernels():
    if device.INTERPRETED:
        with interpreted():
            yield
    else:
        yield


SMALL = ((1, 6), (1, 3))


def run(call, **options):
    leaves = [t.clone().requires_grad_() for t in (call.value, call.loc, call.attn)]
    out = multi_scale_deformable_attention(leaves[0], call.shapes, call.starts, leaves[1], leaves[2], **options)
    return out.detach(), torch.autograd.grad(out, leaves, call.grad_out)


@pytest.mark.parametrize("wish", [None, True, False])
@pytest.mark.parametrize("large", [False, True])
def test_the_operator_chooses(make_call, assert_close, launches, on_kernels, monkeypatch, wish, large):
    torch.use_deterministic_algorithms(False)
    call = encoder_call(make_call, levels=SMALL, dtype=torch.float16)
    monkeypatch.setattr(merged, "ENOUGH", 1 if large else 2**17)
    monkeypatch.setattr(merged, "_capability", lambda device: 90)
    with merging(wish):
        out, grads = run(call)
    assert merging_wish() is None
    assert_close(out, reference.exact(*call.inputs))
    check_gradients(call, grads, assert_close)
    assert bool(launches) == (large if wish is None else wish)


def test_points_that_are_far_leave_the_next_call_to_the_plain_kernels(make_call, launches, on_kernels, monkeypatch):
    """Nobody waits for the count: it decides the next call of the same sizes, and no call that was asked to merge."""
    torch.use_deterministic_algorithms(False)
    monkeypatch.setattr(merged, "ENOUGH", 1)
    monkeypatch.setattr(merged, "_capability", lambda device: 90)
    monkeypatch.setattr(merged.choice, "_slots", {})
    monkeypatch.setattr(merged.choice, "FORWARD", 0.3)  # of a pyramid, 0.9 would be far
    looked = []
    monkeypatch.setattr(
        merged.choice, "look", lambda *args, look=merged.choice.look: (looked.append(args), look(*args))
    )
    levels = ((1, 20),)
    monkeypatch.setattr(merged.choice, "_calls", {})
    call = make_call(levels, Q=None, D=32, K=4, margin=0.0)
    merged.choice._page()[1][:] = 0
    with torch.no_grad():
        multi_scale_deformable_attention(*call.inputs)
        if not device.INTERPRETED:
            torch.cuda.synchronize()
        far = merged.choice.far(call.loc, levels)
        again = [multi_scale_deformable_attention(*call.inputs) for _ in range(2)]
        assert [name for name, _ in launches] == ["forward_tile_kernel"]
        with merging(True):
            multi_scale_deformable_attention(*call.inputs)
    assert [name for name, _ in launches] == ["forward_tile_kernel"] * 2 and len(looked) == 3
    assert torch.equal(*again)
    own = (torch.arange(20) + 0.5).view(1, 20, 1, 1, 1)
    q, m = torch.arange(256) * 20 // 256, torch.arange(256) % 2
    away = (
        torch.stack([call.loc[..., 0].cpu().double() * 20 - own, call.loc[..., 1].cpu().double() - 0.5]).norm(dim=0) > 6
    )
    assert abs(far - away[0, q, m].double().mean().item()) < 0.002 and far > 0.3


def test_the_operator_hands_over(make_call, assert_close, launches, on_kernels):
    """What the merged kernels are not made for: a deterministic sum, other sizes, an unknown table. Nothing is refused."""
    torch.use_deterministic_algorithms(False)
    call = encoder_call(make_call, levels=SMALL)
    with merging(True):
        first, again = run(call, deterministic=True), run(call, deterministic=True)
        assert all(torch.equal(a, b) for a, b in zip(first[1], again[1]))
        assert [name for name, _ in launches] == ["forward_tile_kernel"] * 2
        launches.clear()
        other = make_call(Q=5, D=8, K=3)
        out, grads = run(other)
        assert_close(out, reference.exact(*other.inputs))
        assert not launches
        tables._known.clear()
        tables._packed.cache_clear()  # as `tables` itself does: what is kept there is known
        _forward = eager.forward(*call.inputs)
        assert_close(_forward, reference.exact(*call.inputs))
        assert not launches


def test_lists_as_tables_and_a_backward_of_its_own(make_call, assert_close, launches, on_kernels):
    """The wish holds for the backward of what ran inside, wherever that backward runs."""
    torch.use_deterministic_algorithms(False)
    call = encoder_call(make_call, levels=SMALL)
    value = call.value.clone().requires_grad_()
    with merging(True):
        out = multi_scale_deformable_attention(value, list(SMALL), None, call.loc, call.attn)
    out.backward(call.grad_out)
    assert_close(value.grad, reference.exact_gradients(*call)[0], VALUE[torch.float32])
    assert [name for name, _ in launches] == [
        "forward_tile_kernel", "merge_window_kernel", "remainder_kernel", "points_32_kernel",
    ]  # fmt: skip


def test_under_compile(make_call, assert_close, launches, on_kernels):
    torch.use_deterministic_algorithms(False)
    call = encoder_call(make_call, levels=SMALL)
    value = call.value.clone().requires_grad_()
    compiled = torch.compile(
        lambda v: multi_scale_deformable_attention(v, call.shapes, call.starts, call.loc, call.attn),
        fullgraph=True, backend="aot_eager",
    )  # fmt: skip
    with merging(True):
        compiled(value).backward(call.grad_out)
    assert_close(value.grad, reference.exact_gradients(*call)[0], VALUE[torch.float32])
    assert len(launches) == 4

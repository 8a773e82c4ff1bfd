"""A number of points of its own for each level: exact against the code of the models that have it."""

import contextlib

import pytest
import torch

from msda_core import device, reference
from msda_core.ops import interpreted, multi_scale_deformable_attention

CPU = torch.device("cpu")
needs_interpreter = pytest.mark.skipif(not device.INTERPRETED, reason="not run: needs Triton's interpreter")
WAYS = [
    pytest.param((CPU, contextlib.nullcontext), id="reference"),
    pytest.param((CPU, interpreted), id="interpreter", marks=needs_interpreter),
    pytest.param((torch.device("cuda"), contextlib.nullcontext), id="gpu", marks=pytest.mark.gpu),
]
METHODS = ["default", "discrete"]
LEVELS = {1: ((5, 3),), 2: ((4, 6), (3, 2)), 3: ((4, 7), (3, 5), (1, 2))}
POINTS = [(3, 6, 3), (4, 4, 4), (1, 13), (2,)]


@pytest.fixture(params=WAYS)
def way(request):
    where, mode = request.param
    with mode():
        yield where


def ragged(make_call, points, **keywords):
    """A call whose locations are (B, Q, M, P, 2) and weights (B, Q, M, P)."""
    call = make_call(levels=LEVELS[len(points)], K=sum(points), **keywords)
    return call._replace(loc=call.loc[:, :, :, 0].contiguous(), attn=call.attn[:, :, :, 0].contiguous())


def train(call, points, method, **options):
    """(out, grad_value, grad_locations or None, grad_weights)."""
    inputs = [t.detach().clone().requires_grad_() for t in (call.value, call.loc, call.attn)]
    out = multi_scale_deformable_attention(
        inputs[0], call.shapes, call.starts, *inputs[1:], points_per_level=points, method=method, **options
    )
    return out.detach(), *torch.autograd.grad(out, inputs, call.grad_out, allow_unused=True)


def exact(call, points, method):
    """The same in float64, level by level, from the dense operator's reference and an index."""
    value, loc, attn = (t.detach().double().requires_grad_() for t in (call.value, call.loc, call.attn))
    out, first = 0, 0
    for (H, W), start, K in zip(call.shapes.tolist(), call.starts.tolist(), points):
        x, a = loc[..., first : first + K, :], attn[..., first : first + K]
        image = value[:, start : start + H * W]
        if method == "default":
            out = out + reference.msda(image, [(H, W)], None, x.unsqueeze(3), a.unsqueeze(3))
        else:
            place = x.isfinite().all(-1)
            size = torch.tensor([W, H], device=x.device)
            at = torch.where(place[..., None], (x * size + 0.5).trunc(), 0)
            at = torch.minimum(at.clamp_min(0), size - 1.0).long()
            pixel = (at[..., 1] * W + at[..., 0]).transpose(2, 3).flatten(1, 2)  # (B, Q*K, M)
            rows = image.gather(1, pixel[..., None].expand(*pixel.shape, image.shape[-1]))
            rows = rows.unflatten(1, (x.shape[1], K)).transpose(2, 3)  # (B, Q, M, K, D)
            out = out + (rows * (a * place)[..., None]).sum(3).flatten(2)
        first += K
    grads = torch.autograd.grad(out, (value, loc, attn), call.grad_out.double(), allow_unused=True)
    return out.detach(), *grads


def check(ours, truth, assert_close, tolerance=None, sums=None):
    for name, grad, exactly in zip(("output", "grad_value", "grad_loc", "grad_attn"), ours, truth):
        if exactly is None:
            assert grad is None or (grad == 0).all()
        else:
            assert_close(grad, exactly, sums if name == "grad_value" else tolerance, name)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("points", POINTS, ids=str)
def test_exact_at_any_split(way, make_call, assert_close, points, method):
    call = ragged(make_call, points, B=2, Q=3, M=2, D=5, device=way)
    check(train(call, points, method), exact(call, points, method), assert_close)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_other_dtypes(way, make_call, assert_close, dtype, method):
    call = ragged(make_call, (3, 6, 3), D=8, dtype=dtype, device=way)
    ours = train(call, (3, 6, 3), method)
    assert all(t.dtype == dtype for t in ours if t is not None)
    sums = {torch.float16: 2e-3, torch.bfloat16: 2e-2}.get(dtype)
    tolerance = {torch.float16: 1e-3, torch.bfloat16: 8e-3}.get(dtype)
    check(ours, exact(call, (3, 6, 3), method), assert_close, tolerance, sums)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("points", [(3, 6, 3), (4, 4, 4), (1, 13)], ids=str)
def test_exact_against_the_code_of_the_models(make_call, points, method):
    """transformers' `multi_scale_deformable_attention_v2`, of RT-DETRv2 and D-FINE: the same float64 numbers up to order."""
    modeling = pytest.importorskip("transformers.models.d_fine.modeling_d_fine")
    call = ragged(make_call, points, B=2, Q=3, M=2, D=5, dtype=torch.float64, device=CPU)
    inputs = [t.requires_grad_() for t in (call.value, call.loc, call.attn)]
    levels = call.shapes.tolist()
    theirs = modeling.multi_scale_deformable_attention_v2(inputs[0], levels, *inputs[1:], list(points), method)
    ours = multi_scale_deformable_attention(
        inputs[0], levels, None, *inputs[1:], points_per_level=list(points), method=method
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=1e-13)
    wanted = inputs if method == "default" else (inputs[0], inputs[2])
    for mine, their in zip(
        torch.autograd.grad(ours, wanted, call.grad_out), torch.autograd.grad(theirs, wanted, call.grad_out)
    ):
        torch.testing.assert_close(mine, their, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_even_points_are_the_dense_operator(way, make_call, assert_close, method):
    call = make_call(B=2, K=4, levels=LEVELS[3], device=way)
    flat = call._replace(loc=call.loc.flatten(3, 4), attn=call.attn.flatten(3, 4))
    dense = train(call, None, method)
    even = train(flat, (4, 4, 4), method)
    for one, other in zip(dense, even):
        if one is not None:
            assert torch.equal(one, other.view(one.shape)) or way.type == "cuda"
            assert_close(other.view(one.shape), one.double(), 1e-6)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1e30, -1e30])
def test_a_location_that_is_no_place(way, make_call, assert_close, bad, method):
    call = ragged(make_call, (1, 13), device=way)
    call.loc[0, 0, 1, 2, 1] = bad
    ours = train(call, (1, 13), method)
    assert all(t.isfinite().all() for t in ours if t is not None)
    if method == "default" or not abs(bad) < float("inf"):
        assert ours[3][0, 0, 1, 2] == 0
    check(ours, exact(call, (1, 13), method), assert_close)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("empty", [dict(B=0), dict(Q=0)], ids=str)
def test_empty_calls_stay_attached(way, make_call, empty, method):
    call = ragged(make_call, (3, 6, 3), **empty, device=way)
    out, *grads = train(call, (3, 6, 3), method)
    assert out.shape == (call.value.shape[0], call.loc.shape[1], 16)
    assert (grads[0] == 0).all() and (grads[2] == 0).all()


@pytest.mark.parametrize("method", METHODS)
def test_gaps_deterministic_and_float32_sums(way, make_call, assert_close, method):
    call = ragged(make_call, (1, 13), gap=3, device=way)
    clean = call._replace(value=call.value.nan_to_num())
    truth = exact(clean, (1, 13), method)
    first, again = (train(clean, (1, 13), method, deterministic=True) for _ in range(2))
    assert torch.equal(first[1], again[1])
    check(first, truth, assert_close)
    check(train(clean, (1, 13), method, fp32_grad_accum=True), truth, assert_close)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("tables", ["lists", "tensors"])
def test_compile_and_vmap(way, make_call, assert_close, tables, method):
    call = ragged(make_call, (3, 6, 3), B=2, device=way)
    shapes, starts = (call.shapes.tolist(), None) if tables == "lists" else (call.shapes, None)

    def attend(value, loc, attn):
        return multi_scale_deformable_attention(
            value, shapes, starts, loc, attn, points_per_level=(3, 6, 3), method=method
        )

    truth = exact(call, (3, 6, 3), method)
    value, loc, attn = (t.detach().clone().requires_grad_() for t in (call.value, call.loc, call.attn))
    out = torch.compile(attend, fullgraph=True, backend="aot_eager")(value, loc, attn)
    grads = torch.autograd.grad(out, (value, loc, attn), call.grad_out, allow_unused=True)
    check((out.detach(), *grads), truth, assert_close)
    one_by_one = torch.vmap(lambda v, p, a: attend(v[None], p[None], a[None])[0])(call.value, call.loc, call.attn)
    assert_close(one_by_one, truth[0])


def test_gradcheck(make_call):
    call = ragged(make_call, (3, 1), Q=2, D=3, dtype=torch.float64, device=CPU)
    inputs = [t.requires_grad_() for t in (call.value, call.loc, call.attn)]
    for method, wanted in (("default", inputs), ("discrete", (inputs[0], inputs[1].detach(), inputs[2]))):
        attend = lambda v, p, a: multi_scale_deformable_attention(  # noqa: E731
            v,
            call.shapes,
            None,
            p,
            a,
            points_per_level=(3, 1),
            method=method,  # noqa: B023
        )
        assert torch.autograd.gradcheck(attend, wanted)


@pytest.mark.parametrize(
    "points, change, match",
    [
        ((3, 6, 2), {}, r"must hold 11 points, the sum of \[3, 6, 2\], got 12. Is points_per_level of another layer"),
        ((6, 6), {}, "one row per level, expected 2, got 3. Does points_per_level have another number of levels"),
        ((3, 9, 0), {}, r"a positive number for each level, got \[3, 9, 0\]. Is there a level that nobody samples"),
        (
            (3, 6, 3),
            dict(loc=lambda c: c.loc.unsqueeze(3)),
            "sum.points_per_level., 2., got .*Are levels and points two axes",
        ),
        (
            (3, 6, 3),
            dict(attn=lambda c: c.attn.unsqueeze(3)),
            "attention_weights must be .*Are levels and points two axes",
        ),
        (None, {}, "Is the .x, y. axis missing, or points_per_level"),
    ],
)
def test_bad_input_is_a_clear_error(way, make_call, points, change, match):
    call = ragged(make_call, (3, 6, 3), device=way)
    call = call._replace(**{name: make(call) for name, make in change.items()})
    for _ in range(2):
        with pytest.raises(ValueError, match=match):
            multi_scale_deformable_attention(*call.inputs, points_per_level=points)


def test_an_unknown_method_is_refused(make_call):
    call = make_call()
    with pytest.raises(ValueError, match="method must be 'default' or 'discrete', got 'nearest'"):
        multi_scale_deformable_attention(*call.inputs, method="nearest")

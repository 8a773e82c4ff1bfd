"""Derivatives past the first, in both modes: the reference by numbers, the kernels by the reference."""

import contextlib

import pytest
import torch
from torch.autograd import forward_ad

from msda_core import device, reference
from msda_core.ops import interpreted, multi_scale_deformable_attention

CPU = torch.device("cpu")
needs_interpreter = pytest.mark.skipif(not device.INTERPRETED, reason="not run: needs Triton's interpreter")

#: Who computes in float32: the kernels in the interpreter, or on the GPU.
KERNELS = [
    pytest.param((CPU, interpreted), id="interpreter", marks=needs_interpreter),
    pytest.param((torch.device("cuda"), contextlib.nullcontext), id="gpu", marks=pytest.mark.gpu),
]
METHODS = ["default", "discrete"]


@pytest.fixture(params=KERNELS)
def kernels(request):
    where, mode = request.param
    with mode():
        yield where


def leaves(call, dtype=None):
    return [t.detach().clone().to(dtype or t.dtype).requires_grad_() for t in (call.value, call.loc, call.attn)]


def operator(call, method="default", **options):
    def attend(value, loc, attn):
        return multi_scale_deformable_attention(value, call.shapes, call.starts, loc, attn, method=method, **options)

    return attend


def directions(call, seed=1):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(t.shape, generator=g).to(t) for t in (call.value, call.loc, call.attn)]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("where", [CPU, pytest.param(torch.device("cuda"), marks=pytest.mark.gpu)], ids=str)
def test_gradgradcheck_in_float64(make_call, where, method):
    call = make_call(Q=2, M=1, D=2, levels=((2, 3), (1, 2)), dtype=torch.float64, device=where)
    attend = operator(call, method)
    inputs = leaves(call)
    assert torch.autograd.gradcheck(attend, inputs, check_forward_ad=method == "default")
    assert torch.autograd.gradgradcheck(attend, inputs, check_fwd_over_rev=method == "default")


@pytest.mark.parametrize("method", METHODS)
def test_registered_operators_pass_gradgradcheck(make_call, method):
    call = make_call(Q=2, M=1, D=2, levels=((3, 4), (1, 2)), dtype=torch.float64, device=CPU)
    op = getattr(torch.ops.msda_core, "forward" if method == "default" else "nearest")
    attend = lambda v, p, a: op(v, call.shapes, call.starts, p, a)  # noqa: E731
    assert torch.autograd.gradcheck(attend, leaves(call))
    assert torch.autograd.gradgradcheck(attend, leaves(call))


def second_derivatives(attend, inputs, directions, outer):
    """Of a loss of the three gradients, by every input."""
    loss = (attend(*inputs) * outer).sin().sum()
    grads = torch.autograd.grad(loss, inputs, create_graph=True, allow_unused=True)
    along = sum((g * d).sum() for g, d in zip(grads, directions) if g is not None)
    return torch.autograd.grad(along, inputs, allow_unused=True)


@pytest.mark.parametrize("deterministic", [False, True], ids=["", "deterministic"])
@pytest.mark.parametrize("size", [dict(B=2, Q=1, M=1, D=5), dict(M=3, Q=1, D=33, K=1, gap=2)], ids=str)
def test_second_derivatives_on_kernels(kernels, make_call, assert_close, size, deterministic):
    call = make_call(**size, device=kernels)
    call = call._replace(value=call.value.nan_to_num())
    along = directions(call)
    ours = second_derivatives(operator(call, deterministic=deterministic), leaves(call), along, call.grad_out)
    exact = second_derivatives(
        operator(call), leaves(call, torch.float64), [d.double() for d in along], call.grad_out.double()
    )
    for grad, truth in zip(ours, exact):
        assert_close(grad, truth, 5e-6)


@pytest.mark.parametrize("method", METHODS)
def test_second_derivatives_in_16_bits(kernels, make_call, assert_close, method):
    call = make_call(dtype=torch.bfloat16, loc_dtype=torch.float32, device=kernels)
    along = directions(call)
    ours = second_derivatives(operator(call, method), leaves(call), along, call.grad_out)
    assert [None if g is None else g.dtype for g in ours] == [
        torch.bfloat16, torch.float32 if method == "default" else None, torch.float32
    ]  # fmt: skip
    exact = second_derivatives(
        operator(call, method), leaves(call, torch.float64), [d.double() for d in along], call.grad_out.double()
    )
    for grad, truth in zip(ours, exact):
        if grad is not None:
            assert_close(grad, truth, 4e-2)  # the output and the first gradients are rounded to bfloat16 on the way


def test_a_gradient_penalty_is_not_silent(kernels, make_call, assert_close):
    """The case that once gave a wrong gradient without a word: nothing that flows in requires a gradient."""
    call = make_call(device=kernels)
    value, loc, attn = leaves(call)
    (g,) = torch.autograd.grad(operator(call)(value, loc, attn).sum(), value, create_graph=True)
    g.pow(2).sum().backward()
    exact = leaves(call, torch.float64)
    (g,) = torch.autograd.grad(operator(call)(*exact).sum(), exact[0], create_graph=True)
    g.pow(2).sum().backward()
    assert_close(loc.grad, exact[1].grad, 5e-6)
    assert_close(attn.grad, exact[2].grad, 5e-6)


@pytest.mark.parametrize("way", ["reference", "registered", "kernels"])
def test_a_third_derivative_is_refused(make_call, way):
    where = CPU if device.INTERPRETED else device.ACTIVE
    mode = interpreted() if way == "kernels" and device.INTERPRETED else contextlib.nullcontext()
    with mode:
        call = make_call(Q=1, M=1, D=2, K=1, levels=((2, 3),), device=where)
        inputs = leaves(call)
        if way == "registered":
            out = torch.ops.msda_core.forward(inputs[0], call.shapes, call.starts, *inputs[1:])
        else:
            out = operator(call)(*inputs)
        grads = torch.autograd.grad(out.pow(2).sum(), inputs, create_graph=True)
        for wanted in inputs:
            again = torch.autograd.grad(sum(g.pow(2).sum() for g in grads), wanted, create_graph=True)
            with pytest.raises(RuntimeError, match="differentiable twice"):
                again[0].pow(2).sum().backward(retain_graph=True)


@pytest.mark.parametrize("method", METHODS)
def test_forward_mode_on_kernels(kernels, make_call, assert_close, method):
    call = make_call(B=2, Q=1, M=1, D=5, device=kernels)
    along = directions(call)
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(t, d) for t, d in zip((call.value, call.loc, call.attn), along)]
        tangent = forward_ad.unpack_dual(operator(call, method)(*duals)).tangent
        one = forward_ad.unpack_dual(operator(call, method)(call.value, call.loc, duals[2])).tangent
    doubles = [t.double() for t in (call.value, call.loc, call.attn)]
    moves = [d.double() for d in along]
    if method == "default":
        exact = reference.msda_jvp(doubles[0], *call.inputs[1:3], *doubles[1:], *moves)
    else:
        exact = reference.nearest(moves[0], *call.inputs[1:3], *doubles[1:])
        exact = exact + reference.nearest(doubles[0], *call.inputs[1:3], doubles[1], moves[2])
    assert_close(tangent, exact)
    assert_close(one, operator(call, method)(doubles[0], doubles[1], moves[2]))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("way", ["reference", "kernels"])
def test_hessians_of_torch_func(make_call, assert_close, way, method):
    if way == "kernels" and not device.INTERPRETED:
        mode, where = contextlib.nullcontext(), device.ACTIVE
    else:
        mode, where = interpreted() if way == "kernels" else contextlib.nullcontext(), CPU
    with mode:
        call = make_call(Q=1, M=1, D=2, K=1, levels=((1, 2),), device=where)

        def loss(value, attn, call=call):
            return (operator(call, method)(value, call.loc, attn) * call.grad_out).sin().sum()

        hessian = torch.func.hessian(loss, argnums=(0, 1))(call.value, call.attn)
        inward = torch.func.jacrev(torch.func.jacfwd(loss, argnums=1), argnums=0)(call.value, call.attn)
    double = call._replace(**{name: getattr(call, name).double() for name in ("value", "loc", "attn", "grad_out")})
    exact = torch.autograd.functional.hessian(
        lambda value, attn: loss(value, attn, double), (double.value, double.attn)
    )
    for row, truths in zip(hessian, exact):
        for block, truth in zip(row, truths):
            assert_close(block, truth, 5e-6)
    assert_close(inward, exact[1][0], 5e-6)


def test_two_derivatives_by_the_locations(make_call, assert_close):
    """The mixed derivative of a cell is the only one of its own; torch.func agrees with autograd about it."""
    call = make_call(Q=1, M=1, D=2, K=2, levels=((3, 4),), dtype=torch.float64, device=CPU)

    def loss(loc):
        return (operator(call)(call.value, loc, call.attn) * call.grad_out).sum()

    hessian = torch.func.hessian(loss)(call.loc)
    assert_close(hessian, torch.autograd.functional.hessian(loss, call.loc))
    own = hessian[0, 0, 0, 0, 0, :, 0, 0, 0, 0, 0]  # of a point in itself
    assert own[0, 0] == 0 and own[1, 1] == 0


# --------------------------------------------------------------------------------------------------- layouts, opcheck


LAYOUTS = {
    "contiguous": lambda t: t,
    "from a convolution": lambda t: t.flatten(2).transpose(1, 2).contiguous().transpose(1, 2).unflatten(2, t.shape[2:]),
    "heads first": lambda t: t.transpose(1, 2).contiguous().transpose(1, 2),
    "expanded": lambda t: t[:1].expand_as(t),
    "strided": lambda t: torch.stack([t, t], -1)[..., 0],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_opcheck_of_every_operator_in_every_layout(make_call, layout):
    """Schema, fake kernels (shapes and strides), and tracing of forward and backward."""
    call = make_call(B=2, D=4, device=CPU)
    value, loc, attn = (LAYOUTS[layout](t) for t in (call.value, call.loc, call.attn))
    along = tuple(LAYOUTS[layout](t) for t in directions(call))
    ops, args = torch.ops.msda_core, (value, call.shapes, call.starts, loc, attn)
    grad_out = LAYOUTS[layout](call.grad_out.unsqueeze(-1)).squeeze(-1)
    fake = ("test_schema", "test_faketensor")
    for name, extra in (
        ("backward", (grad_out,)), ("jvp", along), ("second", (grad_out, *along)), ("nearest_backward", (grad_out,)),
    ):  # fmt: skip
        torch.library.opcheck(getattr(ops, name).default, (*args, *extra), test_utils=fake)
    tracked = [t.detach().requires_grad_() for t in (value, loc, attn)]
    for name in ("forward", "nearest"):
        torch.library.opcheck(getattr(ops, name).default, (tracked[0], call.shapes, call.starts, *tracked[1:]))


@pytest.mark.parametrize("method", METHODS)
def test_compiled_training_of_a_convolution(make_call, assert_close, method):
    """conv → flatten → transpose → unflatten: dense, not contiguous, and its gradient was promised contiguous."""
    call = make_call(B=2, M=2, D=4, levels=((4, 6),), device=CPU)
    torch.manual_seed(0)
    conv = torch.nn.Conv2d(3, 8, 1)
    image = torch.randn(2, 3, 4, 6)

    def step():
        value = conv(image).flatten(2).transpose(1, 2).unflatten(2, (2, 4))
        return (operator(call, method)(value, call.loc, call.attn) * call.grad_out).sum()

    (exact,) = torch.autograd.grad(step(), conv.weight)
    (grad,) = torch.autograd.grad(torch.compile(step, backend="aot_eager", fullgraph=True)(), conv.weight)
    assert_close(grad, exact.double(), 5e-6)

"""From raw output of linear layers: the fused kernels against softmax, addition and operator in float64, on the active device."""

import itertools
import os

import pytest
import torch

from msda_core import device, inputs
from msda_core.device import ACTIVE
from msda_core.ops import deformable_attention, interpreted, merging, tables
from msda_core.ops.raw import _way, composed

pytestmark = pytest.mark.skipif(device.NO_TRITON is not None, reason=f"not run: {device.NO_TRITON}")

if device.NO_TRITON is None:
    from msda_core.kernels import fused, merged
    from msda_core.kernels import raw as raw_kernels

FLOATS = [torch.float32, torch.float16, torch.bfloat16]
#: Relative error: of grad_value, whose sums are in the dtype, and of what is rounded once. The interpreter cuts bfloat16 off.
SUMS = {torch.float32: 3e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
ONCE = {torch.float32: 5e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
PLAIN = ((4, 6), (3, 2))
SMALL = ((1, 9), (1, 5), (1, 3))


def some(*always, of):
    """Parameters: those of every run, and the others where kernels are fast or all is asked for."""
    everything = os.environ.get("MSDA_ALL") or not device.INTERPRETED
    cases = list(itertools.product(*of)) if everything else always
    return [pytest.param(*case, id="-".join(map(str, case))) for case in cases]


@pytest.fixture(autouse=True)
def on_kernels():
    if not device.INTERPRETED:
        yield
        return
    with interpreted():
        yield


@pytest.fixture
def launches(monkeypatch):
    seen = []
    for module in (fused, merged, raw_kernels):
        launch = module.launch
        monkeypatch.setattr(
            module, "launch", lambda k, p, t, launch=launch: (seen.append(k.fn.__name__), launch(k, p, t))
        )
    return seen


def raw(levels=PLAIN, B=2, Q=5, M=2, D=8, K=3, coords=2, dtype=torch.float32, spread=1.5, seed=0, where=ACTIVE):
    """value, levels, None, reference, offsets, logits; and grad_out. Q None: every pixel is a query, near its own center."""
    generator = torch.Generator().manual_seed(seed)
    S, L = sum(h * w for h, w in levels), len(levels)
    if Q is None:
        Q = S
        own = inputs.encoder_locations((B, Q, 1, L, 1, 2), levels, 0.05, "cpu", generator)
        reference = own[:, :, 0, :, 0]
    else:
        reference = torch.rand(B, Q, L, coords, generator=generator)
    if coords == 4:
        reference[..., 2:] = reference[..., 2:] * 0.8 + 0.1
    draw = lambda *size: torch.randn(*size, generator=generator)  # noqa: E731
    value, offsets, logits = draw(B, S, M, D), spread * draw(B, Q, M, L, K, 2), 2 * draw(B, Q, M, L, K)
    grad_out = draw(B, Q, M * D)
    value, offsets, logits, grad_out = (t.to(where, dtype) for t in (value, offsets, logits, grad_out))
    return [value, levels, None, reference.to(where), offsets, logits], grad_out


def differentiated(function, call, grad_out, reference=False, **options):
    """The output, and the gradients of value, offsets, logits (and the reference points)."""
    call = list(call)
    wanted = [0, 3, 4, 5] if reference else [0, 4, 5]
    for n in wanted:
        call[n] = call[n].detach().clone().requires_grad_()
    out = function(*call, **options)
    return out.detach(), torch.autograd.grad(out, [call[n] for n in wanted], grad_out)


def exact(call, grad_out, reference=False):
    """The same in float64, piece by piece, on the CPU."""
    double = [t.double().cpu() if isinstance(t, torch.Tensor) else t for t in call]
    return differentiated(composed, double, grad_out.double().cpu(), reference)


def check(call, grad_out, assert_close, reference=False, **options):
    dtype = call[0].dtype
    out, grads = differentiated(deformable_attention, call, grad_out, reference, **options)
    exact_out, exact_grads = exact(call, grad_out, reference)
    assert out.dtype == dtype
    assert_close(out, exact_out, ONCE[dtype], "out")
    names = ["value", "reference", "offsets", "logits"] if reference else ["value", "offsets", "logits"]
    for name, grad, expected in zip(names, grads, exact_grads):
        assert grad.dtype == (torch.float32 if name == "reference" else dtype)
        if (
            name == "offsets"
        ):  # of points next to a pixel's center, a few are taken on its other side, where the slope is another
            far = (grad.double().cpu() - expected).abs() > ONCE[dtype] * expected.abs().max()
            assert far.double().mean() <= (1e-4 if grad.numel() > 1e5 else 0), f"{int(far.sum())} of {far.numel()}"
            grad = torch.where(far.to(grad.device), 0, grad)
            expected = torch.where(far, 0, expected)
        assert_close(grad, expected, SUMS[dtype] if name == "value" else ONCE[dtype], f"grad_{name}")


@pytest.mark.parametrize("coords, dtype", some((2, torch.float32), (4, torch.float16), of=([2, 4], FLOATS)))
def test_forward_and_gradients_are_exact(assert_close, launches, coords, dtype):
    check(*raw(coords=coords, dtype=dtype), assert_close)
    assert launches == ["fused_fwd_kernel", "fused_bwd_kernel"]


def test_reference_points_learn(assert_close, launches):
    """Their gradient is the offsets', summed before it is rounded; that of a box is left to the pieces."""
    check(*raw(dtype=torch.float16), assert_close, reference=True)
    assert launches == ["fused_fwd_kernel", "fused_bwd_kernel"]
    launches.clear()
    check(*raw(coords=4), assert_close, reference=True)
    assert not launches


@pytest.mark.parametrize("dtype", some((torch.float16,), of=(FLOATS,)))
def test_an_encoder_merges(assert_close, launches, dtype):
    call, grad_out = raw(SMALL, B=1, Q=None, D=32, K=4, dtype=dtype)
    with merging(True):
        check(call, grad_out, assert_close, reference=dtype == torch.float16)
    assert launches[:4] == ["log_sum_kernel", "forward_tile_kernel", "merge_window_kernel", "remainder_kernel"]
    assert launches[4].startswith("points_")


def test_more_levels_than_a_row_of_lanes_holds():
    """Merged, but in pieces: the softmax's gradient wants all levels of a row at once."""
    call, _ = raw(((1, 1),) * 5, B=1, Q=None, D=32, K=4)
    shapes, starts = tables.on_device(call[1], None, call[0])
    with merging(True):
        assert _way(fused.Raw(call[0], shapes, starts, *call[3:])) == (False, call[1])


@pytest.mark.parametrize("bad, merge", some((float("nan"), True), of=([float("nan"), float("inf")], [False, True])))
def test_a_point_that_is_no_place_sees_nothing(assert_close, bad, merge):
    call, grad_out = raw(SMALL, B=1, Q=None, D=32, K=4)
    call[3][0, 1] = bad
    call[3][0, 4, 0, 1] = bad
    with merging(merge):
        out, grads = differentiated(deformable_attention, call, grad_out)
    expected_out, expected = exact(call, grad_out)
    assert_close(out, expected_out, ONCE[torch.float32])
    for grad, other in zip(grads, expected):
        assert_close(grad, other, SUMS[torch.float32])


def test_large_logits_do_not_overflow(assert_close):
    call, grad_out = raw(K=4)
    call[5] = call[5] * 2 + 80
    out, grads = differentiated(deformable_attention, call, grad_out)
    expected_out, expected = exact(call, grad_out)
    assert_close(out, expected_out, 2e-5)
    for grad, other in zip(grads, expected):
        assert_close(grad, other, 1e-4)  # of logits near 80 a float32 holds 8e-6


def test_gradients_have_gradients(launches):
    """As the pieces have them: a graph of the gradient is built through them."""
    call, grad_out = raw(B=1, Q=2, M=1, D=4)
    offsets = call[4].clone().requires_grad_()

    def bend(function):
        out = function(*call[:4], offsets, call[5])
        (first,) = torch.autograd.grad(out, offsets, grad_out, create_graph=True)
        return torch.autograd.grad(first.square().sum(), offsets)[0]

    torch.testing.assert_close(bend(deformable_attention), bend(composed), rtol=1e-4, atol=1e-4)
    assert "fused_fwd_kernel" in launches


def test_what_is_left_to_the_pieces(launches):
    """float64, a deterministic sum, an odd D, rows that fill no tile: nothing is refused."""
    call, grad_out = raw()
    double = [t.double() if isinstance(t, torch.Tensor) else t for t in call]
    assert deformable_attention(*double).dtype == torch.float64
    small, grad_out = raw(((1, 2),), B=1, Q=1, M=1, D=2, K=1)
    differentiated(deformable_attention, small, grad_out, deterministic=True)
    for sizes in (dict(D=7), dict(D=128, K=64), dict(Q=0)):
        other, _ = raw(**{"levels": ((1, 2),), "B": 1, "Q": 1, "M": 1, **sizes})
        assert not fused.suits(fused.Raw(*other))
    torch.testing.assert_close(deformable_attention(*other), composed(*other))
    assert not launches


def test_what_does_not_fit_is_said():
    call, _ = raw()
    call[3] = call[3][:, :, :1]
    with pytest.raises(ValueError, match=r"reference_points must be \(B, Q, L, 2 or 4\)"):
        deformable_attention(*call)
    call[3] = torch.rand(2, 5, 2, 3)
    with pytest.raises(ValueError, match="Do they carry a score"):
        deformable_attention(*call)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("spread", [0.5, 3.0, 40.0])
def test_at_the_size_of_a_detector(assert_close, dtype, spread):
    levels = inputs.pyramid(200, 333)
    call, grad_out = raw(levels, B=1, Q=None, M=8, D=32, K=4, dtype=dtype, spread=spread)
    with merging(True):
        check(call, grad_out, assert_close)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("coords", [2, 4])
def test_a_decoder(assert_close, dtype, coords):
    check(*raw(inputs.pyramid(200, 333), Q=300, M=8, D=32, K=4, coords=coords, dtype=dtype), assert_close)

"""Three derivations that share no code agree, on ragged random cases and at every edge."""

import math

import pytest
import torch
from torch.autograd import gradcheck

from msda_core import reference


def ragged(seed, *, starts=False, spread=0.4, dtype=torch.float64):
    """A random call with H ≠ W, M ≠ K, odd sizes, and points inside, on the edge and outside."""
    g = torch.Generator().manual_seed(seed)
    pick = lambda low, high: int(torch.randint(low, high + 1, (), generator=g))  # noqa: E731
    B, Q, M, D, L, K = pick(1, 2), pick(1, 4), pick(1, 3), pick(1, 5), pick(1, 3), pick(1, 4)
    shapes = [(pick(1, 5), pick(6, 8)) for _ in range(L)]
    sizes = [h * w for h, w in shapes]
    first, gap = [], 0
    total = 0
    for size in sizes:
        gap = pick(1, 3) if starts else 0
        first.append(total + gap)
        total += gap + size
    value = torch.randn(B, total, M, D, generator=g, dtype=dtype)
    locations = torch.rand(B, Q, M, L, K, 2, generator=g, dtype=dtype) * (1 + 2 * spread) - spread
    weights = torch.rand(B, Q, M, L, K, generator=g, dtype=dtype)
    return value, shapes, first if starts else None, locations, weights


@pytest.mark.parametrize("starts", [False, True], ids=["packed", "with gaps"])
@pytest.mark.parametrize("seed", range(8))
def test_three_derivations_agree(seed, starts):
    call = ragged(seed, starts=starts)
    loops = reference.msda_loops(*call)
    torch.testing.assert_close(reference.msda(*call), loops, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(reference.msda_dense(*call), loops, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_gradients_agree_with_the_dense_derivation(seed):
    value, shapes, starts, locations, weights = ragged(seed)
    grad_out = torch.randn_like(reference.msda(value, shapes, starts, locations, weights))
    ours = reference.exact_gradients(value, shapes, starts, locations, weights, grad_out)
    leaves = [t.clone().requires_grad_() for t in (value, locations, weights)]
    dense = reference.msda_dense(leaves[0], shapes, starts, leaves[1], leaves[2])
    for mine, theirs in zip(ours, torch.autograd.grad(dense, leaves, grad_out)):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


def test_gradients_pass_gradcheck():
    value, shapes, _, locations, weights = ragged(11)
    leaves = [t.requires_grad_() for t in (value, locations, weights)]
    assert gradcheck(lambda v, p, a: reference.msda(v, shapes, None, p, a), leaves)


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        (0.0, 0.0, 1.0),
        (1.0, 1.0, 5.0),
        (0.5, 0.0, 1.5),
        (0.0, 0.5, 2.5),
        (-0.5, 0.0, 0.5),
        (2.5, 1.0, 3.0),
        (-1.0, 0.0, 0.0),
        (3.0, 1.0, 0.0),
        (0.0, -1.0, 0.0),
        (math.nan, 0.0, 0.0),
        (math.inf, 0.0, 0.0),
        (0.0, -math.inf, 0.0),
        (1e30, 0.0, 0.0),
    ],
)
def test_samples_one_can_check_by_eye(x, y, expected):
    image = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], dtype=torch.float64)[:, :, None]
    assert reference.bilinear_sample(image, x, y).item() == expected
    locations = torch.tensor([(x + 0.5) / 3, (y + 0.5) / 2], dtype=torch.float64).reshape(1, 1, 1, 1, 1, 2)
    call = (image.reshape(1, 6, 1, 1), [(2, 3)], None, locations, torch.ones(1, 1, 1, 1, 1, dtype=torch.float64))
    for derivation in (reference.msda, reference.msda_loops, reference.msda_dense):
        assert derivation(*call).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e38])
def test_a_location_that_is_no_number_reads_nothing_and_spoils_nothing(bad):
    value, shapes, starts, locations, weights = ragged(3, dtype=torch.float32)
    clean = locations.clone()
    clean[0, 0, 0, 0, 0] = -9
    locations[0, 0, 0, 0, 0, 0] = bad
    out = reference.msda(value, shapes, starts, locations, weights)
    torch.testing.assert_close(out, reference.msda(value, shapes, starts, clean, weights))
    gradients = reference.exact_gradients(value, shapes, starts, locations, weights, torch.ones_like(out))
    assert all(g.isfinite().all() for g in gradients)
    assert (gradients[1][0, 0, 0, 0, 0] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bits_are_computed_in_float32_and_rounded_once(dtype):
    value, shapes, starts, locations, weights = ragged(5, dtype=torch.float32)
    value, weights = value.to(dtype), weights.to(dtype)
    out = reference.msda(value, shapes, starts, locations, weights)
    assert out.dtype == dtype
    truth = reference.exact(value, shapes, starts, locations, weights)
    error = (out.double() - truth).abs()
    assert (error <= torch.finfo(dtype).eps * truth.abs() + 1e-5).all()


@pytest.mark.parametrize("empty", ["B", "Q"])
def test_empty_calls_stay_attached_to_autograd(empty):
    value, shapes, starts, locations, weights = ragged(6)
    cut = (lambda t: t[:0]) if empty == "B" else (lambda t: t[:, :0])
    value = (value[:0] if empty == "B" else value).requires_grad_()
    out = reference.msda(value, shapes, starts, cut(locations), cut(weights))
    assert out.numel() == 0 and out.requires_grad
    out.sum().backward()
    assert (value.grad == 0).all()


def test_swapped_axes_are_told_apart():
    """The inputs can tell right from wrong: swapping x and y, or H and W, changes the result."""
    value, shapes, starts, locations, weights = ragged(7, spread=0.0)
    out = reference.msda(value, shapes, starts, locations, weights)
    assert not torch.allclose(out, reference.msda(value, shapes, starts, locations.flip(-1), weights))
    assert not torch.allclose(out, reference.msda(value, [(w, h) for h, w in shapes], starts, locations, weights))

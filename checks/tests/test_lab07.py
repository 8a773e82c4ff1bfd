"""Lab 07: what its mistakes are built on is right, and answers its mistakes do not cover are judged too."""

import pytest
import torch

from checks.answers.carry import solution_module
from checks.answers.notebook import answer_source
from checks.core.exercise import Draw, find
from checks.core.grade import grade
from checks.labs.lab07.cases import DTYPES
from checks.labs.lab07.truth import _near
from checks.labs.lab07.wrong import _backward
from msda_core import reference
from msda_core.figures import gradients
from solutions import lab07 as solved

CASES = find("07.grad_locations").cases


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_mistakes_are_options_of_a_right_answer(case, seed):
    call = [t.double() if t.dtype.is_floating_point else t for t in case(Draw(seed))]
    truths = reference.exact_gradients(*call[:2], None, *call[2:])
    for mine, truth in zip(_backward(*call), truths):
        torch.testing.assert_close(mine, truth, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("seed", range(20))
def test_points_stand_on_a_kink_only_where_they_are_meant_to(seed):
    for case in CASES:
        _, shapes, locations, *_ = case(Draw(seed))
        on = _near(locations, shapes, 1e-3).any().item()
        assert on == (case.__name__ in ("on_pixel_centres", "one_pixel_outside")), case.__name__


def test_at_a_kink_the_truth_is_the_slope_to_the_right_and_below():
    value = torch.tensor([[0.0, 1.0, 5.0, 2.0]]).reshape(1, 4, 1, 1)
    location = torch.tensor([(1 + 0.5) / 4, 0.5]).reshape(1, 1, 1, 1, 1, 2)
    call = value, torch.tensor([[1, 4]]), location, torch.ones(1, 1, 1, 1, 1), torch.ones(1, 1, 1)
    grad = find("07.grad_locations").reference(*call)
    assert grad.flatten().tolist() == [4 * (5 - 1), -1.0]


def test_autograd_is_no_answer():
    def grad_value(value, spatial_shapes, sampling_locations, attention_weights, grad_out):
        with torch.enable_grad():
            leaf = value.clone().requires_grad_()
            (leaf * 2).sum().backward()
        return leaf.grad

    report = grade("07.grad_value", grad_value)
    assert report.state == "fail"
    assert "automatic differentiation is switched off inside this answer" in report.worst.message


def test_index_add_and_accumulate_are_answers():
    def grad_value(value, spatial_shapes, sampling_locations, attention_weights, grad_out):
        B, S, M, D = value.shape
        start, grad = 0, torch.zeros_like(value)
        for l, (H, W) in enumerate(spatial_shapes.tolist()):
            xy = sampling_locations[:, :, :, l] * torch.tensor([W, H]) - 0.5
            whole = xy.floor()
            f, whole = xy - whole, whole.long()
            for i in (0, 1):
                for j in (0, 1):
                    c, r = whole[..., 0] + i, whole[..., 1] + j
                    w = (f[..., 0] if i else 1 - f[..., 0]) * (f[..., 1] if j else 1 - f[..., 1])
                    ok = (c >= 0) & (c < W) & (r >= 0) & (r < H)
                    b, q, m, k = ok.nonzero(as_tuple=True)
                    amount = (w * attention_weights[:, :, :, l])[b, q, m, k, None] * grad_out.reshape(B, -1, M, D)[
                        b, q, m
                    ]
                    pixel = (start + r * W + c)[b, q, m, k]
                    grad.index_put_((b, pixel, m), amount, accumulate=True)
            start += H * W
        return grad

    assert grade("07.grad_value", grad_value).state == "pass"


@pytest.mark.parametrize(
    ("steps", "state"),
    [
        ({torch.float64: 1e-5, torch.float32: 5e-3, torch.float16: 0.1, torch.bfloat16: 0.2}, "pass"),
        ({torch.float64: 1e-5, torch.float32: 1e-6, torch.float16: 0.1, torch.bfloat16: 0.2}, "fail"),
        ({torch.float64: 1e-3, torch.float32: 5e-3, torch.float16: 0.1, torch.bfloat16: 0.2}, "fail"),
        (dict.fromkeys(DTYPES, 0.0), "fail"),
        (dict.fromkeys(DTYPES, float("nan")), "fail"),
        (dict.fromkeys(DTYPES, None), "fail"),
        (dict.fromkeys(DTYPES, True), "fail"),
    ],
)
def test_any_good_step_is_a_good_step(steps, state):
    report = grade("07.choose_eps", lambda dtype: steps[dtype])
    assert report.state == state, report.text()


def test_one_step_for_all_is_named_whatever_it_is():
    for eps in (1e-3, 1e-5):
        report = grade("07.choose_eps", lambda dtype, eps=eps: eps)
        assert report.mistake is not None and report.mistake.name == "with one step for every dtype"


def test_a_flat_loop_that_indexes_rightly_passes():
    def numeric_gradient(fn, x, eps):
        flat, grads = x.reshape(-1), []
        for n in range(x.numel()):
            step = torch.zeros_like(flat)
            step[n] = eps
            grads.append((fn((flat + step).reshape(x.shape)) - fn((flat - step).reshape(x.shape))) / (2 * eps))
        return torch.stack(grads).reshape(x.shape)

    assert grade("07.numeric_gradient", numeric_gradient).state == "pass"


def test_the_bench_finds_a_wrong_gradient():
    right = dict(what="sampling_locations", dtype=torch.float64, eps=1e-4, on_centres=True)
    _, said = gradients.bench(solved.grad_locations, solved.numeric_gradient, solved.near_kink, **right)
    assert float(said.split("at most ")[1].split(" ")[0]) < 1e-9
    wrong = lambda *call: solved.grad_locations(*call).flip(-1)  # noqa: E731
    _, said = gradients.bench(wrong, solved.numeric_gradient, solved.near_kink, **right)
    assert float(said.split("at most ")[1].split(" ")[0]) > 0.1


#: How a learner gets there: the solution's own loop with one edit → the mistake it must be taken for.
EDITS = [
    ("numeric_gradient", "(2 * eps)", "eps", "divided by eps, though"),
    ("numeric_gradient", "behind[index] -= eps", "pass", None),
    ("grad_attention", "(g * sample).sum()", "attention_weights[b, q, m, l, k] * (g * sample).sum()", "still in it"),
    ("grad_attention", "(g * sample).sum()", "(g * sample).mean()", "averaged"),
    ("grad_attention", "starts[l] : starts[l + 1]", ": H * W", "every level starts at the first pixel"),
    ("grad_attention", "grad_out[b, q].reshape(M, D)[m]", "grad_out[b, q].reshape(D, M)[:, m]", "heads and channels"),
    ("grad_locations", "W * (g", "(g", None),
    ("grad_locations", "(v10 - v00) + fy", "(v10 + v00) + fy", "(x0, y0) has the wrong sign in the slope along x"),
    ("grad_locations", "fx * (v11 - v10)", "fx * (v11 + v10)", "(x0+1, y0) has the wrong sign in the slope along y"),
    ("grad_locations", "attention_weights[b, q, m, l, k] * grad_out", "grad_out", "the attention weight is missing"),
    ("grad_locations", "x0, y0 = floor(x), floor(y)", "x0, y0 = -floor(-x) - 1, -floor(-y) - 1", "to the left and above"),
    ("grad_locations", "x0, y0 = floor(x), floor(y)", "x0, y0 = int(x), int(y)", "cut off towards zero"),
    ("grad_locations", "if 0 <= i < W and 0 <= j < H", "if -W <= i < W and -H <= j < H", "negative index wraps"),
    ("grad_value", "+= weight", "= weight", "only what the last point wrote"),
    ("grad_value", "attention_weights[b, q, m, l, k] * grad_out", "grad_out", "attention weights are missing"),
    ("grad_value", "if 0 <= i < W and 0 <= j < H", "if 0 <= j * W + i < H * W", "the end of a row is not checked"),
    ("near_kink", "(nearest >= -1) & (nearest <= sizes)", "(nearest >= 0) & (nearest < sizes)", "only pixels of the image"),
    ("near_kink", ".any(-1)", ".all(-1)", "x and y must both be near"),
    ("near_kink", "(x - nearest).abs() <= tol", "(x - x.floor()) <= tol", "only after it was passed"),
    ("all_gradients", "grad_value.index_add_(0, row.flatten(), amount.reshape(-1, D))",
     "grad_value[row.flatten()] += amount.reshape(-1, D)", None),  # which point is kept depends on their order
]  # fmt: skip


@pytest.mark.parametrize(("function", "old", "new", "named"), EDITS, ids=lambda part: str(part)[:40])
def test_a_slip_in_the_loop_is_rejected_and_named(function, old, new, named):
    source = answer_source(function, solved)
    assert old in source
    copy = dict(vars(solution_module("07", "solved_lab07_to_edit")))
    exec(source.replace(old, new), copy)
    report = grade(f"07.{function}", copy[function])
    assert report.state == "fail", report.text()
    if named is not None:
        assert report.mistake is not None and named in report.mistake.name, report.text()

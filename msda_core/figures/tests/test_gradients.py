"""Figures of lab 07: the numbers they tell are right."""

import pytest
import torch

from msda_core.differences import central_error
from msda_core.figures import gradients


def test_between_pixels_the_difference_is_the_derivative():
    text = gradients.slope_and_kinks(2.5, 0.0, 0.25).description
    assert "the derivative is 0.500 and the central difference with eps = 0.25 is 0.500" in text
    assert "stays within one cell" in text


def test_on_a_kink_the_difference_is_the_mean_of_both_sides():
    left, right = gradients.sides(2, 0.0)
    assert (left, right) == (pytest.approx(0.3 - 0.9), pytest.approx(0.8 - 0.3))
    text = gradients.slope_and_kinks(2.0, 0.0, 0.25).description
    assert (
        f"the derivative is {right:.3f} and the central difference with eps = 0.25 is {(left + right) / 2:.3f}" in text
    )
    assert "steps over the kinks at [2]" in text


def test_outside_the_sample_is_flat():
    assert "the derivative is 0.000 and the central difference with eps = 0.1 is 0.000" in (
        gradients.slope_and_kinks(6.5, 1.0, 0.1).description
    )


@pytest.mark.parametrize("axis", ["x", "y"])
def test_slopes_of_the_weights_sum_to_zero(axis):
    text = gradients.weight_slopes(0.7, 0.2, axis).description
    slopes = [
        float(word) for word in text.replace(",", " ").rstrip(".").split() if word[0] in "+-" and word[1:2].isdigit()
    ]
    assert len(slopes) == 4 and sum(slopes) == pytest.approx(0)
    assert "(x0+1, y0) +0.80" in text if axis == "x" else "(x0+1, y0) -0.70" in text


def test_the_error_has_its_valley_where_theory_puts_it():
    for name, dtype in gradients.DTYPES.items():
        steps, errors = gradients.sweep("exp(x), a smooth function", name)
        best = steps[errors.index(min(errors))]
        assert 0.1 < best / torch.finfo(dtype).eps ** (1 / 3) < 3


def test_a_sample_has_no_error_but_rounding_until_the_kink():
    steps, errors = gradients.sweep("a sample, as a function of x", "float64", 0.25)
    for eps, error in zip(steps, errors):
        if 1e-4 < eps < 0.2:
            assert error < 1e-11
        if eps > 0.3:
            assert error > 0.1


def test_central_error_of_a_step_that_does_not_move_is_all_of_it():
    points = torch.linspace(1, 2, 11)
    assert central_error(torch.exp, torch.exp, points, 1e-12) == pytest.approx(1)
    assert central_error(torch.exp, torch.exp, points, 0.0) == float("inf")
    assert central_error(torch.exp, torch.exp, points.half(), 1e-9) == float("inf"), "that step is 0 in float16"


@pytest.mark.parametrize(
    ("second", "shared", "left"),
    [((2.6, 1.7), 4, 1.0), ((3.5, 1.2), 2, None), ((4.5, 3.5), 0, None), ((9.0, 9.0), 0, 1.0)],
)
def test_what_two_points_share(second, shared, left):
    text = gradients.shared_pixels((2.3, 1.2), second).description
    assert f"They share {shared} pixels" in text
    if left is not None:
        assert f"with the last one winning it is {left:.2f}" in text

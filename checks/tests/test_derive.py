"""Steps of a derivation: any way of writing the right line is right, a slip gets its question, nothing gets an exception."""

from fractions import Fraction

import pytest

from checks.core.exercise import lab_exercises
from checks.show import derive

lab_exercises("07")  # declares its steps

RIGHT = {
    "07.step_attention": ["g0*s0 + g1*s1", "s1 * g1 + s0*g0", "(2*g0*s0 + 2*g1*s1)/2", "g0·s0 + g1×s1"],
    "07.step_weight": ["1-fy", "-(fy - 1)", "1 − fy", "(1-fy**2)/(1+fy)"],
    "07.step_slope": [
        "(1-fy)*(v10-v00) + fy*(v11-v01)",
        "v10 - v00 + fy*(v11 - v01 - v10 + v00)",
        "-(1-fy)*v00 + (1-fy)*v10 - fy*v01 + fy*v11",
    ],
    "07.step_size": ["W", "W*1.0"],
    "07.step_location": ["g*A*W*sx", "W*A*g*((1-fy)*(v10-v00) + fy*(v11-v01))"],
    "07.step_value": ["g1*A1*w1 + g2*A2*w2"],
}


def every_step():
    return sorted(derive._STEPS.values(), key=lambda step: step.name)


def test_every_step_has_its_right_lines_here():
    assert set(RIGHT) == {step.name for step in every_step()}


@pytest.mark.parametrize(("name", "line"), [(name, line) for name, lines in RIGHT.items() for line in lines])
def test_right_however_it_is_written(name, line):
    assert derive.find_step(name).judge(line).state == "pass"


@pytest.mark.parametrize("step", every_step(), ids=lambda step: step.name)
def test_the_truth_does_not_depend_on_the_step(step):
    """A central difference is exact only up to degree two: an expression beyond that would be judged wrongly."""
    for at in step.points():
        assert step.truth(at, Fraction(1)) == step.truth(at, Fraction(3, 7)) == step.truth(at, Fraction(-50))


@pytest.mark.parametrize("step", every_step(), ids=lambda step: step.name)
def test_slips_are_wrong_and_told_apart(step):
    values = {}
    for slip, question in step.slips.items():
        judged = step.judge(slip)
        assert (judged.state, judged.message) == ("fail", question)
        same = tuple(derive.evaluate(slip, at) for at in step.points())
        assert same not in values, f"{slip} is {values.get(same)}"
        values[same] = slip
    assert len(values) >= 5


def test_a_wrong_line_nobody_thought_of_gets_numbers():
    judged = derive.find_step("07.step_weight").judge("2 - fy")
    assert judged.state == "fail"
    at = derive.find_step("07.step_weight").points()[0]
    assert f"fy = {at['fy']}" in judged.message
    assert f"your line gives {2 - at['fy']}" in judged.message and f"is {1 - at['fy']}, for every h" in judged.message


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("fx (1-fy)", "Is a `*` missing before a bracket?"),
        ("2fx", "This is no line of arithmetic."),
        ("(1-fy", "This is no line of arithmetic."),
        ("dw = 1-fy", "without `=`"),
        ("fx^2", "A power is written `**`"),
        ("1-f", "There is no `f` in this step. The names are `fx`, `fy`."),
        ("1/(fx-fx)", "divides by something that can be zero"),
        ("__import__('os').system('true')", "Is a `*` missing before a bracket?"),
        ("fx.real", "Only names, numbers"),
        ("'a'", "Only names, numbers"),
        ("fx**fy", "Small whole powers only."),
        ("((((9**8)**8)**8)**8)**8", "Small whole powers only."),
        ("1e999", "Only names, numbers"),
        ("fx" + "+fx" * 200, "too long"),
        ("lambda: 1", "Only names, numbers"),
    ],
)
def test_a_line_that_cannot_be_read_says_why(line, said):
    judged = derive.find_step("07.step_weight").judge(line)
    assert judged.state == "crash"
    assert said in judged.message


def test_an_empty_line_is_to_do():
    assert derive.find_step("07.step_weight").judge("  ").state == "todo"


def test_a_step_with_a_right_slip_is_refused():
    with pytest.raises(ValueError, match=r"step '07.x': the slip '2\*a' must be a wrong line, got pass"):
        derive.step("07.x", question="", of="a*a", by="a", then="", slips={"2*a": ""})
    with pytest.raises(ValueError, match="there is no step '07.x'"):
        derive.find_step("07.x")


def test_the_panel_carries_its_state():
    pytest.importorskip("marimo")

    class Typed:
        value = "1-fy"

    html = derive.answer("07.step_weight", Typed)._repr_html_()
    assert 'data-step="07.step_weight" data-state="pass"' in html
    assert "slopes sum to 0" in html
    Typed.value = "<b>fx</b>"
    assert "<b>" not in derive.answer("07.step_weight", Typed)._repr_html_()

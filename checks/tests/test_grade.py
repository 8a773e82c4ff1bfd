"""The grader's contract: whatever the learner's code does, it gets its state and a sentence that helps."""

import sys
import time

import pytest
import torch

from checks.core.exercise import find
from checks.core.grade import grade
from msda_core import reference
from solutions import lab01


def state_and_message(name, answer, **options):
    report = grade(name, answer, **options)
    return report.state, report.worst.message


def test_the_stub_is_to_do_and_scores_nothing():
    def to_pixels(location, size):
        raise NotImplementedError("01.to_pixels")

    report = grade("01.to_pixels", to_pixels)
    assert report.state == "todo"
    assert report.mistake is None and report.score is None
    assert [check.status for check in report.checks] == ["todo"]


def test_a_not_implemented_error_of_the_learners_own_is_a_crash():
    def to_pixels(location, size):
        raise NotImplementedError("later")

    assert grade("01.to_pixels", to_pixels).state == "crash"


def test_a_crash_quotes_the_learners_own_line():
    def to_pixels(location, size):
        half = 0.5
        return location * size / 0 - half

    state, message = state_and_message("01.to_pixels", to_pixels)
    assert state == "crash"
    assert message == (
        "line 3 of to_pixels: `return location * size / 0 - half` raised ZeroDivisionError: float division by zero"
    )


def test_a_crash_in_a_comprehension_is_on_a_line_of_the_function_around_it():
    def to_pixels(location, size):
        half = 0.5
        return sum(location * size / 0 for _ in range(1)) - half

    state, message = state_and_message("01.to_pixels", to_pixels)
    assert state == "crash"
    assert message.startswith("line 3 of to_pixels: `return sum(")


def test_a_crash_inside_a_library_still_quotes_the_learners_line():
    def bilinear_sample(image, x, y):
        return torch.stack([image, image[0]])

    state, message = state_and_message("01.bilinear_sample", bilinear_sample)
    assert state == "crash"
    assert message.startswith(
        "line 2 of bilinear_sample: `return torch.stack([image, image[0]])` raised RuntimeError: "
    )


@pytest.fixture
def short_limit(monkeypatch):
    monkeypatch.delenv("MSDA_PATIENCE", raising=False)
    exercise = find("01.to_pixels")
    object.__setattr__(exercise, "limit", 0.3)
    yield
    object.__setattr__(exercise, "limit", 3.0)


def test_an_endless_loop_is_stopped_at_its_line(short_limit):
    def to_pixels(location, size):
        while True:
            location += 1

    started = time.perf_counter()
    state, message = state_and_message("01.to_pixels", to_pixels)
    assert state == "crash"
    assert message.startswith("stopped after 0.3 s at line ")
    assert "Is there a loop that never ends?" in message
    assert time.perf_counter() - started < 2


def test_a_loop_that_swallows_exceptions_is_stopped_too(short_limit):
    def to_pixels(location, size):
        while True:
            try:
                location += 1
            except Exception:
                pass

    assert state_and_message("01.to_pixels", to_pixels)[1].startswith("stopped after 0.3 s")


def test_a_call_that_cannot_be_interrupted_is_left_behind(short_limit):
    def to_pixels(location, size):
        time.sleep(60)

    started = time.perf_counter()
    state, message = state_and_message("01.to_pixels", to_pixels)
    assert state == "crash" and "time.sleep(60)" in message and "waited for the rest" in message
    assert time.perf_counter() - started < 55


def test_a_megabyte_of_prints_is_cut_and_counted():
    def to_pixels(location, size):
        print("x" * 1_000_000)
        return 0.0

    report = grade("01.to_pixels", to_pixels)
    assert report.state == "fail"
    assert len(report.printed) < 2_200
    assert report.printed.endswith("1,000,001 characters in all; the rest is not shown.")
    assert "1,000,001 characters" in report._repr_html_() and "1,000,001 characters" in report.text()


def test_prints_do_not_reach_the_notebook(capsys):
    def to_pixels(location, size):
        print("hello")
        return location * size - 0.5

    assert grade("01.to_pixels", to_pixels).state == "pass"
    assert capsys.readouterr().out == ""
    assert sys.stdout is not None


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda image, x, y: None, "your function returned None, expected a tensor of shape (2,). Is the return statement missing?"),
        (lambda image, x, y: [1.0, 2.0], "your function returned [1.0, 2.0], expected a tensor of shape (2,)."),
        (lambda image, x, y: torch.sum, "your function returned a builtin_function_or_method, expected a tensor of shape (2,). Are the brackets of a call missing?"),
        (lambda image, x, y: image[0, 0][None], "the shape is (1, 2), expected (2,). The same number of values: a reshape is missing."),
        (lambda image, x, y: image[0, 0].double(), "the dtype is float64, expected float32, the inputs' own."),
        (lambda image, x, y: image[0, 0].to("meta"), "the result is on meta, expected cpu, where the inputs are."),
        (lambda image, x, y: image.numpy()[0, 0], "your function returned a ndarray, expected a tensor of shape (2,)."),
    ],
)  # fmt: skip
def test_results_of_the_wrong_kind(answer, message, monkeypatch):
    monkeypatch.setattr(find("01.bilinear_sample").cases[0].__globals__["_image"], "__defaults__", (3, 5, 2))
    state, got = state_and_message("01.bilinear_sample", answer)
    assert (state, got) == ("fail", message)


def test_changing_an_input_is_reported_by_its_name():
    def bilinear_sample(image, x, y):
        sample = reference_copy(image, x, y)
        image += 1
        return sample

    state, message = state_and_message("01.bilinear_sample", bilinear_sample)
    assert (state, message) == ("fail", "the call changed its input `image`. Work on a copy.")


def reference_copy(image, x, y):
    """A right answer that is not the watched reference."""
    H, W, D = image.shape
    x0, y0 = int(x // 1), int(y // 1)
    out = image.new_zeros(D)
    for j in (y0, y0 + 1):
        for i in (x0, x0 + 1):
            if 0 <= i < W and 0 <= j < H:
                out = out + (1 - abs(x - i)) * (1 - abs(y - j)) * image[j, i]
    return out


@pytest.mark.parametrize(
    "answer",
    [
        lambda image, x, y: reference.bilinear_sample(image, x, y),
        lambda image, x, y: lab01.bilinear_sample(image, x, y),
        lambda image, x, y, f=reference.bilinear_sample: f(image, x, y),
    ],
)
def test_calling_what_it_is_compared_with_is_noticed(answer):
    state, message = state_and_message("01.bilinear_sample", answer)
    assert state == "fail"
    assert message.endswith(".bilinear_sample, which it is compared with. Write it yourself.")
    assert reference.bilinear_sample(torch.ones(2, 2, 1), 0.5, 0.5).item() == 1, "the reference is back in place"


def test_hiding_the_call_of_the_reference_does_not_help():
    def bilinear_sample(image, x, y):
        try:
            return reference.bilinear_sample(image, x, y)
        except BaseException:
            return reference_copy(image, x, y)

    assert grade("01.bilinear_sample", bilinear_sample).state == "fail"


def test_a_forbidden_function_says_why():
    def bilinear_sample(image, x, y):
        grid = torch.tensor([[[[x, y]]]])
        return torch.nn.functional.grid_sample(image.permute(2, 0, 1)[None], grid).flatten()

    state, message = state_and_message("01.bilinear_sample", bilinear_sample)
    assert (state, message) == ("fail", "the answer calls grid_sample: it does what you are here to write.")


def test_fresh_memory_is_poisoned():
    def bilinear_sample(image, x, y):
        return torch.empty(image.shape[-1])

    state, message = state_and_message("01.bilinear_sample", bilinear_sample)
    assert state == "fail"
    assert "yours nan" in message and "was never written" in message


def test_global_settings_of_torch_are_put_back():
    def to_pixels(location, size):
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        return location * size - 0.5

    grade("01.to_pixels", to_pixels)
    assert torch.get_default_dtype() == torch.float32 and torch.is_grad_enabled()


def test_a_name_that_is_not_there_gets_a_sentence():
    report = grade("01.to_pixels", lambda: not_here)  # noqa: F821
    assert report.state == "crash"
    assert report.worst.message.startswith("There is no `not_here` in this notebook. Was its cell deleted or renamed")


@pytest.mark.parametrize("thing", [None, 3, "text", torch.zeros(2)])
def test_something_that_is_no_function_is_a_crash(thing):
    state, message = state_and_message("01.to_pixels", thing)
    assert state == "crash" and message.startswith("`to_pixels` is ") and message.endswith("not a function.")


def test_wrong_number_of_arguments_is_a_crash_with_a_sentence():
    state, message = state_and_message("01.to_pixels", lambda location: location)
    assert state == "crash" and "takes 1 positional argument but 2 were given" in message


@pytest.mark.parametrize("leave", [SystemExit, KeyboardInterrupt, RecursionError, MemoryError])
def test_leaving_by_force_does_not_leave(leave):
    def to_pixels(location, size):
        raise leave

    assert grade("01.to_pixels", to_pixels).state == "crash"


def test_a_failure_shows_a_seed_that_replays_it():
    def right_only_for_even_sizes(location, size):
        return location * size - 0.5 if size % 2 == 0 else location

    for _ in range(20):
        report = grade("01.to_pixels", right_only_for_even_sizes)
        if report.state == "fail":
            break
    again = grade("01.to_pixels", right_only_for_even_sizes, seed=report.worst.seed)
    assert (again.state, again.worst.message) == ("fail", report.worst.message)


def test_seeds_are_fresh_on_every_run():
    seen = []

    def to_pixels(location, size):
        seen.append((location, size))
        return location * size - 0.5

    grade("01.to_pixels", to_pixels)
    first, count = list(seen), len(seen)
    for _ in range(3):
        grade("01.to_pixels", to_pixels)
    assert any(seen[i * count : (i + 1) * count] != first for i in range(1, 4))


def test_an_unknown_exercise_lists_the_known_ones():
    with pytest.raises(
        ValueError, match=r"there is no exercise '01.nothing'. Lab 01 has 01.to_pixels, 01.corner_weights"
    ):
        grade("01.nothing", lambda: None)


def test_a_failing_helper_of_the_same_lab_is_named_first():
    scope = {}
    exec("def to_pixels(location, size):\n    return location * size\n", scope)
    source = "def msda_loops(value, shapes, locations, weights):\n    return value * to_pixels(0.5, 4)\n"
    exec(source, scope)
    report = grade("01.msda_loops", scope["msda_loops"])
    assert report.advice == "It calls your `to_pixels`, which does not pass yet: mend that first."
    assert report.advice in " ".join(report.text().split())
    assert "which does not pass yet: mend that first." in report._repr_html_()
    scope["to_pixels"] = lab01.to_pixels.__class__(lab01.to_pixels.__code__, scope, "to_pixels")
    assert grade("01.msda_loops", scope["msda_loops"]).advice == ""


def test_a_mistake_explains_the_check_that_is_shown():
    def bilinear_sample(image, x, y):
        H, W, D = image.shape
        (x0, y0), weights = lab01_corner_weights(x, y)
        sample = torch.zeros(D)
        for (i, j), weight in zip(((x0, y0), (x0 + 1, y0), (x0, y0 + 1), (x0 + 1, y0 + 1)), weights):
            if i < W and j < H:
                sample = sample + weight * image[j, i]
        return sample

    report = grade("01.bilinear_sample", bilinear_sample, seed=3)
    assert report.worst.name == "half_outside"
    assert report.mistake.name == "when Python's negative index wraps round to the other side"


def lab01_corner_weights(x, y):
    x0, y0 = int(x // 1), int(y // 1)
    fx, fy = x - x0, y - y0
    return (x0, y0), ((1 - fx) * (1 - fy), fx * (1 - fy), (1 - fx) * fy, fx * fy)


def test_an_edge_case_that_raises_does_not_hide_the_mistake():
    def mean(requests):
        return sum(
            len(set(a)) * n / (32 * len({b // 32 for x in a for b in range(x, x + n)})) for a, n in requests
        ) / len(requests)

    report = grade("03.efficiency", mean)
    assert report.state == "crash" and "ZeroDivisionError" in report.worst.message
    assert report.mistake is None  # it is not all that is wrong
    assert report.lead.name == "when the efficiencies of the requests are averaged"
    assert "Where it returns a value, your answer is what you get when the efficiencies" in " ".join(
        report.text().split()
    )


# --- a name is a claim ------------------------------------------------------------------------------------------------


def to_pixels_kept_from_below(location, size):
    return max(location * size - 0.5, 0.0)


def contiguous_strides_of_prefixes(shape):
    strides, step = [], 1
    for size in shape:
        step *= size
        strides.append(step)
    return tuple(reversed(strides))


@pytest.mark.parametrize(
    ("name", "answer", "denied"),
    [
        ("01.to_pixels", to_pixels_kept_from_below, "without the half pixel"),
        ("02.contiguous_strides", contiguous_strides_of_prefixes, "when an axis counts its own size too"),
    ],
)
def test_no_name_that_a_passing_case_denies(name, answer, denied):
    report = grade(name, answer, seed=2)
    assert report.state == "fail"
    assert report.mistake is None or report.mistake.name != denied
    assert report.lead is None or report.lead.name != denied
    assert report.json()["mistake"] is None or report.mistake is not None

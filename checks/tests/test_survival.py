"""The grader outlives its learner: what a session sets, replaces, raises, prints, and what will not stop."""

import itertools
import os
import subprocess
import sys
import time

import pytest
import torch

from checks.core import call as calling
from checks.core.call import call
from checks.core.exercise import find
from checks.core.grade import grade
from checks.tests.bank import answers
from checks.tests.conftest import ALL
from solutions import lab01


def right(location, size):
    return location * size - 0.5


@pytest.fixture
def short_limit(monkeypatch):
    monkeypatch.delenv("MSDA_PATIENCE", raising=False)
    exercise = find("01.to_pixels")
    object.__setattr__(exercise, "limit", 0.3)
    yield
    object.__setattr__(exercise, "limit", 3.0)


@pytest.fixture
def default_device():
    yield torch.set_default_device
    torch.set_default_device("cpu")


@pytest.mark.parametrize("name", ["01.to_pixels", "01.bilinear_sample", "01.msda_loops", "02.msda_flat"])
def test_a_default_device_of_the_session_changes_no_verdict(name, default_device):
    lab, function = name.split(".")
    module = __import__(f"solutions.lab{lab}", fromlist=[function])
    default_device("meta")
    report = grade(name, getattr(module, function))
    assert report.state in ("pass", "fail") and "Traceback" not in report.text()
    assert report.worst.name != "judged", report.worst.message
    assert torch.get_default_device().type == "meta"


def test_a_default_dtype_of_the_session_changes_no_verdict():
    torch.set_default_dtype(torch.float64)
    try:
        assert grade("01.bilinear_sample", bilinear_sample).state == "pass"
        assert torch.get_default_dtype() is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def bilinear_sample(image, x, y):
    H, W, D = image.shape
    x0, y0 = int(x // 1), int(y // 1)
    sample = image.new_zeros(D)
    for j, i in itertools.product((0, 1), (0, 1)):
        weight = (1 - abs(x - x0 - i)) * (1 - abs(y - y0 - j))
        if 0 <= x0 + i < W and 0 <= y0 + j < H:
            sample = sample + weight * image[y0 + j, x0 + i]
    return sample


def test_replaced_functions_of_torch_deceive_nobody(monkeypatch):
    def fails(*args, **kwargs):
        raise RuntimeError("replaced")

    for owner, names in (
        (torch, ("where", "zeros_like", "empty", "isclose")),
        (torch.Tensor, ("__le__", "abs", "double", "sum")),
    ):
        for name in names:
            monkeypatch.setattr(owner, name, fails)
    report = grade("01.bilinear_sample", bilinear_sample)
    wrong = grade("01.bilinear_sample", lambda image, x, y: image.new_zeros(image.shape[-1]))
    assert torch.where is fails
    monkeypatch.undo()
    assert report.state == "pass", report.text()
    assert wrong.state == "fail" and "judged" != wrong.worst.name


def test_an_answer_that_replaces_a_function_of_torch_does_so_for_itself():
    before = torch.floor

    def to_pixels(location, size):
        torch.floor = None
        torch.Tensor.abs = lambda self: torch.zeros_like(self)
        return location * size

    assert grade("01.to_pixels", to_pixels).state == "fail"
    assert torch.floor is before and "abs" not in vars(torch.Tensor)


class Silent(Exception):
    __module__ = "notebook"

    def __str__(self):
        raise RuntimeError("nothing")

    __repr__ = __str__


class Endless(Exception):
    __module__ = "notebook"

    def __str__(self):
        while True:
            pass


class Contents:
    def __repr__(self):
        raise RuntimeError("nothing")

    __str__ = __repr__


def raises(make):
    def to_pixels(location, size):
        raise make()

    return to_pixels


def in_a_circle():
    one, other = ValueError("one"), TypeError("other")
    one.__cause__, other.__cause__ = other, one
    return one


@pytest.mark.parametrize(
    "make",
    [
        Silent,
        lambda: ValueError(Contents()),
        in_a_circle,
        lambda: KeyError(Contents()),
        lambda: ValueError(10**5000),
        lambda: ValueError((Contents(),)),
    ],
    ids=lambda m: m.__name__,
)
def test_any_exception_is_a_crash_with_a_sentence(make):
    report = grade("01.to_pixels", raises(make))
    assert report.state == "crash" and "raised" in report.worst.message
    assert report.text() and report._repr_html_() and report.json()


def test_a_message_that_never_ends_is_stopped(short_limit):
    report = grade("01.to_pixels", raises(Endless))
    assert report.state == "crash" and "stopped after" in report.worst.message


def test_a_loop_that_swallows_everything_is_ended_or_the_verdict_says_so(short_limit):
    stop = []

    def to_pixels(location, size):
        while not stop:
            try:
                while not stop:
                    location += 1
            except BaseException:
                pass

    report = grade("01.to_pixels", to_pixels)
    stop.append(True)
    assert report.state == "crash" and "stopped after" in report.worst.message
    assert "restart the notebook's kernel" in report.worst.message


def test_prints_do_not_matter_where_there_is_a_score():
    def sample_like_torch(image, u, v, align_corners, padding_mode):
        print("u", u)
        return lab01_sample(image, u, v, align_corners, padding_mode)

    lab01_sample = lab01.sample_like_torch.__class__(
        lab01.sample_like_torch.__code__, dict(vars(lab01), reference=None), "sample_like_torch"
    )
    for helper in ("to_pixels", "corner_weights", "bilinear_sample"):
        original = getattr(lab01, helper)
        lab01_sample.__globals__[helper] = original.__class__(original.__code__, lab01_sample.__globals__, helper)
    report = grade("01.sample_like_torch", sample_like_torch)
    assert report.state == "pass" and "points a second" in report.score


def test_time_that_others_take_is_not_the_answers(monkeypatch):
    """A call that has computed little is not ended when its limit has passed on the clock."""
    outcome = call(lambda: time.sleep(0.6), (), limit=0.2)
    assert outcome.timeout is None


def test_a_slow_machine_gets_more_and_is_told(monkeypatch):
    monkeypatch.setattr(calling, "slowness", lambda: 4.0)

    def work(seconds):
        started = time.thread_time()
        while time.thread_time() - started < seconds:
            pass
        return "done"

    assert call(lambda: work(0.5), (), limit=0.2).value == "done"
    outcome = call(lambda: work(30), (), limit=0.1)
    assert "This machine is 4.0 times slower" in outcome.ended and "Is there a loop" not in outcome.ended


def test_what_an_import_takes_is_not_the_answers_time(short_limit, tmp_path, monkeypatch):
    """torch imports SymPy, for seconds, where somebody first calls `torch.unravel_index`."""
    (tmp_path / "heavy_module.py").write_text(
        "import time\nstarted = time.thread_time()\nwhile time.thread_time() - started < 0.8: pass\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def to_pixels(location, size):
        import heavy_module  # noqa: F401

        return location * size - 0.5

    report = grade("01.to_pixels", to_pixels)
    assert report.state == "pass", report.text()


@pytest.fixture
def eight_busy_processes():
    """Others on the machine, which leave an answer a fifth of a core."""
    busy = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(8)]
    yield
    for one in busy:
        one.kill()
        one.wait()


@pytest.mark.parametrize(
    "exercise",
    ["03.lru_hits", "04.row_sum_kernel", *(["01.msda_loops", "02.msda_flat", "07.grad_value"] if ALL else [])],
)
def test_a_busy_machine_fails_nobody(exercise, eight_busy_processes, monkeypatch):
    monkeypatch.delenv("MSDA_PATIENCE", raising=False)
    report = grade(exercise, next(one for one in answers() if one.exercise == exercise and not one.wrong).build())
    assert report.state == "pass", f"at load {os.getloadavg()[0]:.0f}: {report.text()}"

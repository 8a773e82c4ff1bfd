"""An exercise about derivatives: autograd does not answer it, however it is asked."""

import pytest
import torch

from checks.core.exercise import find
from checks.core.grade import grade


@pytest.fixture
def autograd_off():
    exercise = find("01.to_pixels")
    object.__setattr__(exercise, "autograd", False)
    yield
    object.__setattr__(exercise, "autograd", True)


def stretch(x):
    return (x * x).sum()


def by_backward():
    with torch.enable_grad():
        x = torch.ones(2, requires_grad=True)
        stretch(x).backward()


def by_grad():
    x = torch.ones(2)
    x.requires_grad = True
    torch.autograd.grad(stretch(x), x)


def by_forward_mode():
    with torch.autograd.forward_ad.dual_level():
        torch.autograd.forward_ad.make_dual(torch.ones(2), torch.ones(2))


WAYS = {
    "backward, with gradients turned on": (by_backward, "torch.enable_grad"),
    "backward": (lambda: torch.ones(2, requires_grad=True).backward(torch.ones(2)), "backward"),
    "autograd.backward": (lambda: torch.autograd.backward([torch.ones(())]), "backward"),
    "autograd.grad": (by_grad, "torch.autograd.grad"),
    "requires_grad_": (lambda: torch.ones(2).requires_grad_(), "requires_grad_"),
    "set_grad_enabled": (lambda: torch.set_grad_enabled(True), "torch.enable_grad"),
    "func.grad": (lambda: torch.func.grad(stretch)(torch.ones(2)), "torch.func.grad"),
    "func.vjp": (lambda: torch.func.vjp(stretch, torch.ones(2)), "torch.func.grad"),
    "func.jacrev": (lambda: torch.func.jacrev(stretch)(torch.ones(2)), "torch.func.grad"),
    "func.jvp": (lambda: torch.func.jvp(stretch, (torch.ones(2),), (torch.ones(2),)), "torch.func.jvp"),
    "functional.jacobian": (
        lambda: torch.autograd.functional.jacobian(stretch, torch.ones(2)),
        "torch.enable_grad",
    ),
    "forward_ad": (by_forward_mode, "forward_ad"),
    "torch's own derivative": (
        lambda: torch.ops.aten.tanh_backward(torch.ones(2), torch.ones(2)),
        "tanh_backward",
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_differentiating_is_reported(way, autograd_off):
    attempt, named = WAYS[way]

    def to_pixels(location, size):
        attempt()
        return location * size - 0.5

    report = grade("01.to_pixels", to_pixels)
    assert report.state == "fail", report.text()
    assert report.worst.message.startswith("the answer calls ")
    assert named in report.worst.message
    assert "automatic differentiation is switched off" in report.worst.message
    assert torch.is_grad_enabled()


def test_hiding_the_attempt_does_not_help(autograd_off):
    def to_pixels(location, size):
        try:
            by_grad()
        except BaseException:
            pass
        return location * size - 0.5

    assert grade("01.to_pixels", to_pixels).state == "fail"


def test_what_does_not_differentiate_is_welcome(autograd_off):
    def to_pixels(location, size):
        with torch.no_grad(), torch.inference_mode():
            x = torch.tensor(location, dtype=torch.float64).detach()
            torch.ones(2).requires_grad_(False)
        assert not torch.is_grad_enabled()
        return (x * size - 0.5).item()

    assert grade("01.to_pixels", to_pixels).state == "pass"


def test_elsewhere_autograd_may_be_used():
    def to_pixels(location, size):
        assert torch.is_grad_enabled()
        by_backward()
        return location * size - 0.5

    assert grade("01.to_pixels", to_pixels).state == "pass"

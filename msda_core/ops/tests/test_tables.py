"""Tables that live on a GPU, as far as a CPU can show: who is read, who is taken as it is, and what the device is asked."""

import weakref

import pytest
import torch

from msda_core import device
from msda_core.ops import tables

pytestmark = pytest.mark.skipif(
    not device.INTERPRETED or device.NO_TRITON is not None, reason="not run: needs Triton's interpreter"
)

SHAPES, STARTS, S = [[4, 6], [3, 2]], [0, 24], 30


@pytest.fixture
def read(monkeypatch):
    """What the host reads; and a process that has seen nothing yet."""
    seen = []
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    on_host = tables.on_host
    for cache in ("_seen", "_known"):
        monkeypatch.setattr(tables, cache, {})
    monkeypatch.setattr(tables, "on_host", lambda *args: seen.append(args) or on_host(*args))
    return seen


@pytest.fixture
def one_address(monkeypatch, read):
    """Every table lies where the last one lay."""
    monkeypatch.setattr(tables, "_key", lambda shapes, starts, S: (S, len(shapes)))
    return read


@pytest.mark.parametrize("starts", [None, STARTS, torch.tensor(STARTS)], ids=["none", "list", "tensor"])
@pytest.mark.parametrize("points", [None, (3, 1)], ids=["dense", "ragged"])
def test_a_table_is_read_once_and_kept_by_nobody(read, starts, points):
    shapes = torch.tensor(SHAPES)
    rows = SHAPES if points is None else [SHAPES[0]] * 3 + [SHAPES[1]]
    first = STARTS if points is None else [0, 0, 0, 24]
    for _ in range(3):
        found = tables._resident(shapes, starts, S, points)
        assert found[0].tolist() == rows and found[1].tolist() == first
    assert len(read) == 1
    gone = weakref.ref(shapes)
    del shapes, found
    read.clear()
    assert gone() is None


def test_a_table_changed_in_place_is_read_again(read):
    shapes = torch.tensor(SHAPES)
    tables._resident(shapes, None, S, None)
    shapes[1, 1] = 3
    with pytest.raises(ValueError, match="must hold S = 33 pixels"):
        tables._resident(shapes, None, S, None)


def test_another_tensor_at_a_known_address_is_checked_by_the_device(one_address):
    tables._resident(torch.tensor(SHAPES), STARTS, S, None)
    again = torch.tensor([[3, 2], [4, 6]])
    for _ in range(2):
        shapes, starts = tables._resident(again, [0, 6], S, None)
        assert shapes is not again and shapes.tolist() == again.tolist() and starts.tolist() == [0, 6]
    assert len(one_address) == 1


@pytest.mark.parametrize("points", [None, (3, 1)], ids=["dense", "ragged"])
def test_a_bad_table_at_a_known_address_is_zeros_and_an_error_once(one_address, points):
    tables._resident(torch.tensor(SHAPES), None, S, None)
    bad = torch.tensor([[4, 6], [300, 200]])
    shapes, starts = tables._resident(bad, None, S, points)
    assert (shapes == 0).all() and (starts == 0).all()
    good = torch.tensor(SHAPES)
    with pytest.raises(ValueError, match="a level of an earlier call must lie inside the S = 30 pixels.*made anew"):
        tables._resident(good, None, S, points)
    assert (tables._resident(good, None, S, points)[0] > 0).all()
    with pytest.raises(ValueError, match="a level of an earlier call"):  # the same bad tensor again is checked again
        tables._resident(bad, None, S, points)
        tables._resident(bad, None, S, points)


def test_a_table_of_inference_mode_is_checked_every_time(one_address):
    tables._resident(torch.tensor(SHAPES), None, S, None)
    with torch.inference_mode():
        shapes = torch.tensor(SHAPES)
        tables._resident(shapes, None, S, None)
        shapes[1, 0] = 10**6
        assert (tables._resident(shapes, None, S, None)[0] == 0).all()
    with pytest.raises(ValueError, match="a level of an earlier call"):
        tables._resident(shapes, None, S, None)

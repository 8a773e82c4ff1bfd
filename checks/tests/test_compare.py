"""Comparing and describing what a learner returned: whatever it is, none of its own code runs, and nothing is raised."""

import decimal
import fractions

import numpy
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from checks.core import compare
from checks.core.grade import grade


class AgreesWithAll(float):
    def __eq__(self, other):
        return True

    def __sub__(self, other):
        return 0.0

    __rsub__ = __sub__

    def __abs__(self):
        return 0.0

    __hash__ = float.__hash__


class AgreesTensor(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return torch.zeros((), dtype=torch.bool)


class NoLength(list):
    def __len__(self):
        raise RuntimeError("no length")

    def __iter__(self):
        raise RuntimeError("no items")


class Hostile:
    def __getattr__(self, name):
        raise RuntimeError("no attributes")

    @property
    def __class__(self):
        raise RuntimeError("no class")

    def __repr__(self):
        raise RuntimeError("no words")

    __eq__ = __hash__ = __str__ = __len__ = __repr__


def inside_itself():
    loop = []
    loop.append(loop)
    return loop


ODD = {
    "fraction": lambda: fractions.Fraction(1, 3),
    "huge fraction": lambda: fractions.Fraction(10**400, 3),
    "huge integer": lambda: 10**400,
    "integer too long to print": lambda: 10**6000,
    "decimal": lambda: decimal.Decimal("sNaN"),
    "float that agrees": lambda: AgreesWithAll(7),
    "tensor that agrees": lambda: torch.ones(3).as_subclass(AgreesTensor),
    "list without length": lambda: NoLength([1, 5]),
    "list in itself": inside_itself,
    "hostile object": Hostile,
    "list of hostile objects": lambda: [Hostile()],
    "set": lambda: {1, 2},
    "sparse": lambda: torch.ones(3).to_sparse(),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged),
    "meta": lambda: torch.ones(3, device="meta"),
    "fake": lambda: FakeTensorMode().from_tensor(torch.ones(3)),
    "complex": lambda: torch.ones(3, dtype=torch.complex64),
    "numpy array": lambda: numpy.ones(3),
    "generator": lambda: (i for i in range(3)),
    "lambda": lambda: lambda: 1,
    "NotImplemented": lambda: NotImplemented,
    "class": lambda: Hostile,
}
EXPECTED = [0.5, 3, True, "text", None, torch.ones(3) * 2, (1, torch.ones(2)), [1, 2], (1.0, (2.0, 3.0))]


@pytest.mark.parametrize("name", ODD)
def test_anything_is_compared_and_described(name):
    thing = ODD[name]()
    assert 0 < len(compare.describe(thing)) < 200
    for like in EXPECTED:
        message = compare.difference(thing, compare.in_float64(like), like)
        assert message, f"{name} passes for {like!r}"
        assert not compare.same(compare.plain(thing), like)


@pytest.mark.parametrize("name", ODD)
def test_the_grader_survives_whatever_is_returned(name):
    thing = ODD[name]()
    for exercise in ("01.to_pixels", "01.bilinear_sample", "02.contiguous_strides"):
        assert grade(exercise, lambda *args: thing).state in ("fail", "crash")


def test_numbers_of_other_classes_count_by_their_value():
    for half in (
        numpy.float32(0.5),
        numpy.float64(0.5),
        fractions.Fraction(1, 2),
        decimal.Decimal("0.5"),
        torch.tensor(0.5),
    ):
        assert compare.difference(half, 0.5, 0.5) is None
    assert compare.difference(numpy.int64(3), 3, 3) is None
    assert compare.difference(AgreesWithAll(3), 0.5, 0.5) == "yours 3, expected 0.5."
    assert compare.difference(10**400, 3, 3) == "yours an integer of 401 digits, expected 3."
    assert compare.difference(torch.nn.Parameter(torch.ones(2)), torch.ones(2).double(), torch.ones(2)) is None

"""What the cases of every exercise have in common: sizes that cannot be mistaken for each other.

Two sizes that agree hide that one was taken for the other: each rule asks for a case in which they do not.
"""

from dataclasses import dataclass, field
from functools import cache

import pytest
import torch
from torch import Tensor

from checks.answers.carry import solution_module
from checks.core.diagnose import FIXED_SEED
from checks.core.exercise import Draw, Exercise, find, lab_exercises
from checks.tests.conftest import WRITTEN
from msda_core import machine

EXERCISES = [one for lab in WRITTEN for one in lab_exercises(lab) if one.cases]

#: Where a rule does not apply, and why.
ONE_DTYPE = {
    "02.corner_offsets": "whole numbers",
    "04.add_kernel": "the lab says float32: lab 4 is about addresses",
    "04.copy2d_kernel": "the lab says float32: lab 4 is about addresses",
    "04.bilinear_kernel": "the lab says float32: lab 4 is about addresses",
    "04.softmax_kernel": "the lab says float32: lab 4 is about addresses",
    "05.corner": "coordinates are float32 whatever value is",
    "05.msda_fwd_logits_kernel": "the lab says float32",
    "08.merge_then_add_kernel": "the lab says float32",
    "08.deterministic_sum": "the lab says float32",
    "10.MyMSDeformAttn": "a layer of float32 parameters",
}
SQUARE = {"10.MyMSDeformAttn": "a projection of C channels to C"}


@dataclass
class Launched(Exception):
    """Ends a call at its first launch, which it holds."""

    values: dict = field(default_factory=dict)
    constants: tuple = ()
    doc: str = ""


@cache
def _drawn(name: str) -> list[tuple]:
    return [case(Draw(FIXED_SEED)) for case in find(name).cases]


def drawn(exercise: Exercise) -> list[tuple]:
    return _drawn(exercise.name)


def tensors(args) -> list[Tensor]:
    if isinstance(args, Tensor):
        return [args]
    return [one for arg in args for one in tensors(arg)] if isinstance(args, (tuple, list)) else []


def points(args: tuple) -> tuple[int, int, int] | None:
    """(L, K, M) of the locations (B, Q, M, L, K, 2) among the arguments."""
    for one in tensors(args):
        if one.dim() == 6 and one.shape[-1] == 2:
            _, _, M, L, K, _ = one.shape
            return L, K, M
    return None


def different(*sizes: int) -> bool:
    return len(set(sizes)) == len(sizes)


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda e: e.name)
def test_levels_points_and_heads_cannot_be_mistaken_for_each_other(exercise):
    found = [sizes for sizes in map(points, drawn(exercise)) if sizes]
    if not found:
        pytest.skip("no points of several levels")
    assert any(L > 1 and K > 1 and different(L, K, M) for L, K, M in found), f"(L, K, M): {found}"
    assert any(L > 1 and M > 1 and different(L, K, M) for L, K, M in found), f"(L, K, M): {found}"
    assert any(B > 1 for B, *_ in (one.shape for args in drawn(exercise) for one in tensors(args) if one.dim() == 6))


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda e: e.name)
def test_axes_of_a_tensor_differ(exercise):
    """Each tensor with two to four axes comes once with all of them different; of a table (L, 2), a level that is no square."""
    best: dict[tuple[int, int], bool] = {}
    for args in drawn(exercise):
        for n, one in enumerate(tensors(args)):
            whole = not one.dtype.is_floating_point and one.shape[1:] == (2,)
            if whole:
                assert one.shape[0] == 0 or any(H != W for H, W in one.tolist())
            sizes = [size for size in one.shape if size != 1]
            if 2 <= len(sizes) and one.dim() <= 4 and not whole:
                best[n, one.dim()] = best.get((n, one.dim()), False) or different(*sizes)
    if exercise.name in SQUARE:
        assert not all(best.values()), "it is no exception any more"
    else:
        assert all(best.values()), f"(argument, axes) → different sizes once: {best}"


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda e: e.name)
def test_another_dtype_than_float32_is_asked_for(exercise):
    dtypes = {one.dtype for args in drawn(exercise) for one in tensors(args) if one.dtype.is_floating_point}
    if exercise.name in ONE_DTYPE:
        assert len(dtypes) <= 1, "it is no exception any more"
    elif dtypes:
        assert dtypes != {torch.float32}


def solution(exercise: Exercise):
    return getattr(solution_module(exercise.lab), exercise.function)


#: Blocks that hold all there is: a power of two, at least so many.
WHOLE = ("BLOCK_D", "BLOCK_P")
KERNELS = [one for one in EXERCISES if one.guarded and hasattr(solution(one), "fn") and one.function != "corner"]


def launched(exercise: Exercise, args: tuple) -> Launched | None:
    """What the solution would launch in a case; nothing runs."""

    def stop(launch):
        raise Launched(dict(launch.values), tuple(launch.constants))

    try:
        with machine.guard(launched=stop):
            exercise.run(solution(exercise), args)
    except Launched as found:
        return found
    except Exception as error:
        found = error.__cause__ or error.__context__
        if isinstance(found, Launched):
            return found
        raise
    return None


@pytest.mark.parametrize("exercise", KERNELS, ids=lambda e: e.name)
def test_sizes_lie_below_and_above_a_block(exercise):
    ratios: dict[str, list[tuple[int, int]]] = {}
    for args in drawn(exercise):
        found = launched(exercise, args)
        values = found.values if found else {}
        for block in [name for name in values if name.startswith("BLOCK")]:
            of = block.removeprefix("BLOCK").removeprefix("_") or "N"
            size = values["L"] * values["K"] if of == "P" else values[of]
            ratios.setdefault(block, []).append((int(size), int(values[block])))
    for block, pairs in ratios.items():
        assert any(size < width for size, width in pairs), f"{block}: never more than there is: {pairs}"
        if block in WHOLE and all(size <= width for size, width in pairs):
            assert any(size == width for size, width in pairs), f"{block} is never just enough: {pairs}"
        else:
            assert any(size > width for size, width in pairs), f"{block}: one block always holds all: {pairs}"
            assert any(size > width and size % width for size, width in pairs), f"{block}: always full: {pairs}"


def test_exceptions_are_of_exercises_that_there_are():
    assert {*ONE_DTYPE, *SQUARE} <= {one.name for one in EXERCISES}

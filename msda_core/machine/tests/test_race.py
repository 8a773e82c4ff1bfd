"""Races found, and made to happen: the same for the same seed, and gone with the atomic."""

import pytest
import torch

from msda_core import machine
from msda_core.device import load_triton

triton = load_triton()
import triton.language as tl  # noqa: E402


@triton.jit
def racy_histogram(x_ptr, hist_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    bins = tl.load(x_ptr + offs, mask=mask, other=0)
    count = tl.load(hist_ptr + bins, mask=mask, other=0)
    tl.store(hist_ptr + bins, count + 1, mask=mask)


@triton.jit
def histogram(x_ptr, hist_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.atomic_add(hist_ptr + tl.load(x_ptr + offs, mask=mask, other=0), 1, mask=mask)


@triton.jit
def copy_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs))


@triton.jit
def overrun_kernel(x_ptr, y_ptr, n):
    pid = tl.program_id(0)
    tl.store(y_ptr + pid, tl.load(x_ptr + pid + n))


N = 64
X = torch.randint(0, 4, (N,), generator=torch.Generator().manual_seed(0))


def run(kernel, seed, programs=N):
    hist = torch.zeros(4, dtype=torch.int64)
    result = machine.interleave(kernel, (programs,), (X, hist, N), seed=seed, BLOCK=N // programs)
    return hist, result


def test_the_same_seed_loses_the_same_updates_and_another_seed_others():
    first, a = run(racy_histogram, 1)
    again, b = run(racy_histogram, 1)
    other, c = run(racy_histogram, 2)
    assert torch.equal(first, again) and a.timeline == b.timeline and a.lost == b.lost
    assert first.sum() < N and a.timeline != c.timeline
    assert a.lost and not torch.equal(first, torch.bincount(X, minlength=4))


def test_a_lost_update_can_be_read_off_the_timeline():
    hist, result = run(racy_histogram, 1)
    for lost in result.lost:
        read, gone, over = (result.timeline[i] for i in (lost.read, lost.lost, lost.overwrite))
        assert lost.read < lost.lost < lost.overwrite
        assert (read.program, gone.program, over.program) == (lost.winner, lost.loser, lost.winner)
        assert (read.kind, gone.kind, over.kind) == ("load", "store", "store")
        assert over.values == tuple(v + 1 for v in read.values)
    per_element = {}
    for step in result.timeline:
        if step.tensor == "hist_ptr" and step.kind == "store":
            per_element[step.elements[0]] = step.values[0]
    assert [per_element[i] for i in range(4)] == hist.tolist()


@pytest.mark.parametrize("seed", range(4))
def test_the_atomic_loses_nothing(seed):
    hist, result = run(histogram, seed)
    assert torch.equal(hist, torch.bincount(X, minlength=4)) and not result.lost
    atomics = [s for s in result.timeline if s.kind == "atomic"]
    assert len(atomics) == N and all(s.operands == (1,) for s in atomics)


def test_races_name_both_lines():
    trace = machine.trace(racy_histogram, (4,), X, torch.zeros(4, dtype=torch.int64), N, BLOCK=16)
    found = machine.races(trace)
    between = [r for r in found if not r.within]
    assert {r.other.kind for r in between} == {"load", "store"}
    race = next(r for r in between if r.other.kind == "load")
    assert race.store.text.startswith("tl.store(hist_ptr") and race.other.text.startswith("count = tl.load(hist_ptr")
    assert race.tensor == "hist_ptr" and race.count == 4 and race.programs[0] != race.programs[1]
    for part in (f"line {race.store.lineno}", f"line {race.other.lineno}", "hist_ptr[", "loads"):
        assert part in str(race)
    inside = [r for r in found if r.within]
    assert len(inside) == 1 and "two lanes of program" in str(inside[0])


def test_one_program_alone_races_only_within_itself():
    trace = machine.trace(racy_histogram, (1,), X, torch.zeros(4, dtype=torch.int64), N, BLOCK=64)
    lanes, warps = machine.races(trace)
    assert lanes.within and warps.warps and (warps.store.kind, warps.other.kind) == ("store", "load")


@pytest.mark.parametrize("kernel", [histogram, copy_kernel])
def test_sound_kernels_do_not_race(kernel):
    args = (X, torch.zeros(N, dtype=torch.int64), N) if kernel is histogram else (X, torch.zeros_like(X))
    assert machine.races(machine.trace(kernel, (4,), *args, BLOCK=16)) == []


def test_an_error_in_one_program_ends_them_all():
    with pytest.raises(machine.OutOfBounds):
        machine.interleave(overrun_kernel, (8,), (torch.zeros(8), torch.zeros(8), 3), seed=0)
    run(histogram, 0)  # and the next launch is sound


def test_too_many_programs():
    with pytest.raises(machine.LaunchError, match="at most 1024"):
        machine.interleave(copy_kernel, (2000,), (X, X), seed=0, BLOCK=1)

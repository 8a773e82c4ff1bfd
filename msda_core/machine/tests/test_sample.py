"""From some programs to all: which run, and how many sectors the others would add."""

import itertools

import numpy as np
import pytest
import torch

from msda_core import machine
from msda_core.device import load_triton
from msda_core.machine.counts.sample import _unseen
from msda_core.machine.run.sample import _spread

triton = load_triton()
import triton.language as tl  # noqa: E402


@triton.jit
def up_to_the_diagonal(x_ptr, y_ptr, N: tl.constexpr):
    total = tl.zeros((N,), tl.float32)
    for i in range(tl.program_id(0) + 1):
        total += tl.load(x_ptr + i * N + tl.arange(0, N))
    tl.store(y_ptr + tl.program_id(0) * N + tl.arange(0, N), total)


def test_work_that_grows_over_the_grid_comes_out_right():
    """Every seventh of 65 programs, of which each asks for one block more than the one before."""
    report = machine.profile(up_to_the_diagonal, (65,), torch.rand(65 * 128), torch.empty(65 * 128), N=128, every=7)
    assert report.sampled == 10 and report.loads.sectors == pytest.approx(16 * 65 * 66 / 2, rel=0.01)
    assert report.stores.sectors == 16 * 65 and report.written_bytes == 512 * 65


@pytest.mark.parametrize("programs", [1, 2, 7, 132, 1000])
def test_every_program_comes_once(programs):
    assert sorted(_spread(programs)) == list(range(programs))


@pytest.mark.parametrize("sample", [8, 20, 50, 64])
def test_the_first_few_lie_evenly(sample):
    places = np.array(list(itertools.islice(_spread(4096), sample)))
    assert np.diff(np.sort(places)).max() < 2 * 4096 / sample


def growth(sets, room, programs):
    seen, times = np.unique(np.concatenate(sets), return_counts=True)
    return len(seen) + _unseen(times, sets, room, programs)


def tiles(count, size):
    return [np.arange(i * size, (i + 1) * size) for i in range(count)]


def test_tiles_that_nobody_shares_add_up():
    every = tiles(1000, 16)
    assert growth([every[i] for i in itertools.islice(_spread(1000), 20)], 16_000, 1000) == 16_000
    assert growth([every[i] for i in itertools.islice(_spread(1000), 20)], 10**9, 1000) == 16_000


def test_rows_that_many_programs_share_fill_the_tensor_and_no_more():
    rows = tiles(32, 64)
    for sample in (8, 30, 100):
        sets = [rows[i % 1024 // 32] for i in itertools.islice(_spread(1024), sample)]
        assert growth(sets, 32 * 64, 1024) == pytest.approx(32 * 64, rel=0.01)


def test_what_all_programs_read_is_counted_once():
    assert growth([np.arange(100)] * 10, 10_000, 1000) == 100


@pytest.mark.parametrize("each, programs", [(64, 400), (256, 2000)])
def test_rows_looked_up_at_random(each, programs):
    dice = np.random.default_rng(0)
    every = [np.unique(dice.integers(0, 50_000, each)) for _ in range(programs)]
    truth = len(np.unique(np.concatenate(every)))
    assert growth(every[:: programs // 100], 50_000, programs) == pytest.approx(truth, rel=0.02)

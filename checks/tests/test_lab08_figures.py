"""What the figures of lab 08 say is true of the kernels they show."""

import torch

from msda_core import machine, reference
from msda_core.figures import concurrency
from solutions.lab08 import histogram_kernel, racy_histogram


def interleaved(kernel, programs, order):
    index, hist = torch.full((programs,), 2, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    run = machine.interleave(kernel, (programs,), (index, hist, programs), seed=order, BLOCK=1)
    return run, hist[2].item()


def test_lanes_of_a_block_counts_what_is_lost():
    index, hist = (
        torch.tensor([3, 1, 3, 0, 3, 2, 1, 3], dtype=torch.int32),
        torch.tensor([2, 0, 1, 5], dtype=torch.int32),
    )
    truth, after = (hist + torch.bincount(index, minlength=4)).tolist(), hist.clone()
    run = machine.interleave(racy_histogram, (1,), (index, after, 8), BLOCK=8)
    picture, lost = concurrency.lanes_of_a_block(run, hist.tolist(), truth)
    assert lost == sum(truth) - after.sum().item() == 4
    assert "hist[3] is 6 and should be 9" in picture.description


def test_timeline_ends_with_what_memory_holds():
    counts = set()
    for order in range(12):
        run, count = interleaved(racy_histogram, 4, order)
        assert f"{count} in the end" in concurrency.timeline(run, "hist_ptr", 2).description
        again, same = interleaved(racy_histogram, 4, order)
        assert (again.timeline, same) == (run.timeline, count)
        counts.add(count)
    assert len(counts) > 1 and min(counts) < 4


def test_with_an_atomic_nothing_is_lost_in_any_order():
    for order in range(12):
        run, count = interleaved(histogram_kernel, 5, order)
        assert count == 5 and not run.lost
        assert "0 writes lost, 5 in the end" in concurrency.timeline(run, "hist_ptr", 2).description


def test_collisions_are_the_pixels_that_get_a_gradient():
    shapes, generator = [(3, 5), (2, 2)], torch.Generator().manual_seed(0)
    locations = 1.4 * torch.rand(1, 6, 1, 2, 3, 2, generator=generator) - 0.2
    counts = concurrency.collisions(locations[0, :, 0], shapes)
    value, weights = torch.zeros(1, 19, 1, 1), torch.ones(1, 6, 1, 2, 3)
    grads = [
        reference.exact_gradients(
            value, shapes, None, locations[:, q : q + 1], weights[:, q : q + 1], torch.ones(1, 1, 1)
        )
        for q in range(6)
    ]
    touched = sum((g[0].flatten() > 0).long() for g in grads)
    flat = torch.cat([count.flatten() for count in counts])
    assert torch.equal(flat > 0, touched > 0)
    alone = [concurrency.collisions(locations[0, q : q + 1, 0], shapes) for q in range(6)]
    assert torch.equal(flat, sum(torch.cat([c.flatten() for c in one]) for one in alone))


def test_fewer_places_fewer_additions():
    assert [concurrency.merging_square([n % places for n in range(8)])[1] for places in (1, 3, 8)] == [1, 3, 8]


def test_two_numbers_have_one_sum_and_coarse_numbers_err_more():
    terms = 0.1 + torch.rand(100, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert concurrency.sum_in_any_order(terms[:2], torch.float32)[1] == 1
    results = {dtype: concurrency.sum_in_any_order(terms, dtype) for dtype in (torch.float32, torch.bfloat16)}
    assert all(different > 1 for _, different, _ in results.values())
    assert results[torch.bfloat16][2] > 1000 * results[torch.float32][2]

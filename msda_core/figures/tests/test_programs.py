"""The figures about programs say what is so."""

import pytest
import torch

from msda_core import device, machine
from msda_core.figures import programs


@pytest.mark.parametrize(
    ("N", "BLOCK", "program", "idle"), [(27, 8, 3, 5), (27, 8, 0, 0), (32, 8, 3, 0), (6, 16, 0, 10)]
)
def test_idle_lanes(N, BLOCK, program, idle):
    picture, found = programs.lanes_over_vector(N, BLOCK, program)
    assert found == idle and f"{idle} of its {BLOCK} lanes lie past the end" in picture.description
    assert picture.png().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("strides", "program", "lanes", "runs"),
    [((13, 1), (0, 0), 32, 4), ((13, 1), (1, 1), 15, 3), ((16, 1), (0, 1), 20, 4), ((1, 7), (1, 0), 24, 8)],
)
def test_a_tile_in_memory(strides, program, lanes, runs):
    picture, *found = programs.lanes_over_matrix(7, 13, strides, (4, 8), program)
    assert found == [lanes, runs] and f"{lanes} of 32 have an element" in picture.description


def test_a_walk_ends_at_the_sum_of_the_row():
    row = [3, 1, 4, 1, 5, 9, 2, 6, 5]
    sums = [programs.row_walk(row, 4, turn)[1] for turn in range(3)]
    assert sums == [9, 31, 36] and sums[-1] == sum(row)


def test_turned_points_keep_their_centre_and_distance():
    points = programs.turned(8, zoom=2, angle=30, centre=(0.4, 0.6))
    assert torch.allclose(points.mean(0), torch.tensor([0.4, 0.6]), atol=1e-6)
    assert torch.allclose((points[1] - points[0]).norm(), torch.tensor(1 / 16))


@pytest.mark.skipif(device.NO_TRITON is not None, reason=f"not run: {device.NO_TRITON}")
def test_wide_loads_need_a_length_that_is_divisible():
    """What lab 04 lets the learner find out with two menus, here on the solution."""
    from solutions.lab04 import add_kernel

    lowered = {
        (block, N): machine.lower(add_kernel, "*fp32", "*fp32", "*fp32", N, BLOCK=block)
        for block, N in ((32, 65536), (256, 65536), (1024, 65536), (1024, 65533))
    }
    found = {key: programs.load_instructions(one) for key, one in lowered.items()}
    assert found == {(32, 65536): (1, 4), (256, 65536): (1, 8), (1024, 65536): (2, 16), (1024, 65533): (8, 4)}
    listings = programs.listings(lowered[1024, 65536])
    ttgir, ptx, sass = listings.values()
    assert "tt.load" in ttgir and "loc(" not in ttgir and "ttg.blocked" in ttgir
    assert ptx.count("ld.global.v4.b32") == 4 and "LDG.E.128" in sass and sass.rstrip().endswith(";")


@pytest.mark.skipif(device.NO_TRITON is not None, reason=f"not run: {device.NO_TRITON}")
def test_what_a_program_touched():
    from solutions.lab04 import add_kernel

    x = torch.arange(20.0)
    trace = machine.trace(add_kernel, (3,), x, x, torch.zeros(20), 20, BLOCK=8)
    picture = programs.touched(trace, 2, 20)
    assert "load of x_ptr: elements 16 to 19, 4 lanes masked off" in picture.description
    assert "store of out_ptr: elements 16 to 19" in picture.description

"""What lab 03 tells its learner about real hardware holds: the solution's counts are those that Nsight Compute read."""

import pytest
import torch

from msda_core import device
from msda_core.figures import sectors as traffic
from solutions import lab03

pytestmark = pytest.mark.skipif(device.NO_TRITON is not None, reason=f"not run: {device.NO_TRITON}")


@pytest.mark.parametrize(
    ("tiling", "case", "threads_a_row", "tables"),
    [("output", "msda_element_f32", 32, (12, 12)), ("point", "msda_point_f32", 16, (3, 5))],
)
def test_paper_and_silicon_differ_by_the_level_tables(tiling, case, threads_a_row, tables):
    from msda_core.bench import probes

    inputs = probes.msda_inputs(torch.float32, 16)
    corners = traffic.corner_pixels(inputs["loc"][0], probes.PYRAMID)
    requests = lab03.tiling_addresses(tiling, corners, 32, 4, 1 << 20, 1 << 28, 1 << 29)
    warps = corners.shape[:2].numel() * threads_a_row // 32
    counters = traffic.measured()[1][case]["counters"]
    assert counters["load_requests"] == len(requests) + warps * tables[0]
    assert counters["load_sectors"] == sum(lab03.sectors(*one) for one in requests) + warps * tables[1]


@pytest.mark.parametrize("kind", ["load", "store"])
def test_sectors_counts_the_operator_as_the_hardware_did(kind):
    counters = traffic.measured()[1]["msda_forward_f16"]["counters"]
    requests = traffic.issued("msda_forward_f16", kind)
    assert counters[f"{kind}_requests"] == len(requests)
    assert counters[f"{kind}_sectors"] == sum(lab03.sectors(*one) for one in requests)

"""Figures of lab 03: what they say is what there is."""

import re
from math import floor

import pytest
import torch

from msda_core import device
from msda_core.figures import sectors as traffic


def test_corner_pixels_are_the_four_around_each_point():
    shapes = ((3, 5), (2, 7))
    locations = -0.2 + 1.4 * torch.rand(4, 2, 3, 2, generator=torch.Generator().manual_seed(1))
    got = traffic.corner_pixels(locations, shapes)
    assert got.shape == (4, 6, 4) and got.dtype == torch.int64
    outside = 0
    for n in range(4):
        start = 0
        for level, (H, W) in enumerate(shapes):
            for k in range(3):
                x, y = locations[n, level, k].tolist()
                x0, y0 = floor(x * W - 0.5), floor(y * H - 0.5)
                want = [
                    start + j * W + i if 0 <= i < W and 0 <= j < H else -1
                    for i, j in ((x0, y0), (x0 + 1, y0), (x0, y0 + 1), (x0 + 1, y0 + 1))
                ]
                assert got[n, level * 3 + k].tolist() == want
                outside += want.count(-1)
            start += H * W
    assert outside, "no point of this test lies outside"


def test_l1_hands_out_more_than_dram_and_less_than_arithmetic_could_use():
    assert set(traffic.GPUS) >= {"H200", "A100", "RTX 4090"}
    for gpu in traffic.GPUS.values():
        assert gpu.dram < gpu.l1 < 4 * gpu.flops
    # An A100's white paper: 128 bytes a clock and multiprocessor, 108 multiprocessors at 1.41 GHz, 19.4 TB/s.
    assert traffic.GPUS["A100"].l1 == pytest.approx(19.49e12, rel=0.01)


def test_decoder_is_the_call_that_was_timed():
    call = traffic.DECODER
    assert (call.S, call.points) == (22_223, 4 * 300 * 8 * 16)
    assert call.locations().shape == (4, 300, 8, 4, 4, 2)
    assert torch.equal(call.locations(seed=3), call.locations(seed=3))


@pytest.mark.parametrize(
    ("stride", "offset", "itemsize", "sectors"), [(1, 0, 4, 4), (1, 12, 4, 5), (32, 0, 4, 32), (0, 0, 8, 1)]
)
def test_warp_map_says_how_many_sectors(stride, offset, itemsize, sectors):
    picture = traffic.warp_map(stride, offset, itemsize)
    assert f"{sectors} sectors" in picture.description
    assert picture.png().startswith(b"\x89PNG")


def test_warp_reads_counts_every_request():
    said = traffic.warp_reads(32).description
    assert re.findall(r": (\d+) requests, (\d+) sectors", said) == [("32", "128"), ("32", "1024"), ("8", "128")]
    assert re.findall(r": (\d+) requests, (\d+) sectors", traffic.warp_reads(0).description) == [("0", "0")] * 3


@pytest.mark.parametrize(("capacity", "hits"), [(1, 0), (2, 1), (3, 3)])
def test_cache_strip_counts_hits(capacity, hits):
    picture = traffic.cache_strip([1, 2, 1, 3, 2, 1], capacity)
    assert f"{hits} of 6 reads hit" in picture.description
    assert picture.png()


def test_hidden_latency_never_passes_dram():
    gpu = traffic.GPUS["H200"]
    _, few = traffic.hidden_latency(1, 600, gpu)
    _, many = traffic.hidden_latency(64, 300, gpu)
    assert few[0] == pytest.approx(132 * 128 / 600e-9 / gpu.dram) and few[1] == pytest.approx(4 * few[0])
    assert many[1] == 1.0


def test_traffic_and_roofline_are_described_in_numbers():
    counts = {"output": (5, 40, 20), "point": (9, 90, 20), "block": (2, 30, 20)}
    assert "point 90" in traffic.tiling_traffic(counts, 20, 1024).description
    gpu = traffic.GPUS["H200"]
    said = traffic.roofline_plot(gpu, {"float32": ((40_000_000, 80_000_000), 40_000_000, 10.0)}).description
    assert "0.5 a byte from L1, at most 4.8 TFLOP/s from DRAM, measured 4.0 with a warm L2" in said


@pytest.mark.skipif(device.NO_TRITON is not None, reason=f"not run: {device.NO_TRITON}")
@pytest.mark.parametrize("case", ["gather_rows_f16", "stride_3", "copy_f32_misaligned", "copy_f32_ragged"])
def test_requests_of_a_recorded_launch_are_those_of_the_hardware(case):
    counters = traffic.measured()[1][case]["counters"]
    for kind in ("load", "store"):
        requests = traffic.issued(case, kind)
        sectors = sum(len({b // 32 for a in addresses for b in range(a, a + width)}) for addresses, width in requests)
        assert (len(requests), sectors) == (counters[f"{kind}_requests"], counters[f"{kind}_sectors"])

"""Lab 06's figures say what the machine counts, and the race says what was not run."""

import pytest
import torch

from msda_core import device
from msda_core.bench import contest as race
from msda_core.figures import speed

needs_triton = pytest.mark.skipif(bool(device.NO_TRITON), reason="not run: needs Triton")


@pytest.mark.parametrize("way", speed.WAYS)
def test_the_timeline_reports_what_its_way_reports(way):
    picture, got = speed.timeline(way, 60, 30)
    expected = {
        "a loop, nobody waits": 30,  # the dispatch alone
        "a loop, then one wait": (30 + 4 * 60 + 6) / 4,
        "a wait after each launch": 30 + 60 + 6,
        "two events around each launch": 30 + 60,
    }
    assert got == pytest.approx(expected[way]) and "wrong" in picture.description
    assert len(picture.png()) > 1000


def test_fewer_registers_were_slower_in_what_was_recorded():
    for dtype in ("float32", "float16"):
        picture, factor = speed.cuts_under_registers(dtype)
        assert factor > 1.5 and f"{factor:.1f}" in picture.description


def test_recorded_launches_have_counts_and_times():
    rows = speed.recorded()
    assert len(rows) == 2 * len(speed.timed()) >= 20
    for name, counts, time in rows:
        assert len(counts) == 6 and time > 0 and name.endswith("warm" if counts[-1] else "cold")
    assert "H200" in speed.source()


@needs_triton
def test_what_is_requested_adds_up_to_the_report(interpreter):
    from msda_core.figures.tiles import shipped_report
    from msda_core.kernels.forward import msda_forward

    sectors, requests = speed.counted(lambda: msda_forward(*speed.typed_call("float32")))
    report = shipped_report()
    assert sum(sectors.values()) == report.sectors and requests == report.loads.requests + report.stores.requests


@pytest.mark.skipif(device.ACTIVE.type == "cuda", reason="not run: needs a machine without a GPU")
def test_without_a_gpu_the_race_is_not_run(capsys):
    with pytest.raises(RuntimeError, match="CUDA GPU|Triton"):
        race.measure({}, "float16")
    assert race.main([]) == 1 and "Nothing was timed" in capsys.readouterr().out


def test_a_peer_is_a_launcher_or_a_kernel_and_its_cut():
    assert race._load("msda_core.bench.operator:pyramid")(8, 8) == [(1, 1)] * 4
    with pytest.raises(ValueError, match="NAME=MODULE:FUNCTION"):
        race._load("msda_core.bench.operator")


@pytest.mark.gpu
def test_a_simulated_and_a_real_device_have_the_same_interface():
    from msda_core.machine.model.clock import Clock, NotYet

    clock = race.Silicon()
    assert {n for n in dir(race.Silicon) if n[0] != "_"} - {"launching"} <= {n for n in dir(Clock) if n[0] != "_"}
    x = torch.zeros(2**26, device="cuda")
    fn = clock.launching(lambda: x.add_(1.0))
    start = clock.record()
    for _ in range(50):
        fn()
    end = clock.record()
    with pytest.raises(NotYet):
        end.time  # noqa: B018
    clock.synchronize()
    assert 50 * 50 < end.time - start.time < 50 * 5000
    many = clock.graph(fn, 3)
    clock.flush(), many(), clock.synchronize()
    assert x[0].item() == 53.0


@pytest.mark.gpu
def test_the_race_on_a_gpu_has_every_clock():
    rows = race.measure({"msda_core": race.contenders()["msda_core"]}, "float16")
    row = rows["msda_core"]
    assert set(speed.CLOCKS) <= set(row) and 1 < row["device"] < row["cold"] and row["kernels"] < row["eager"] * 1.5

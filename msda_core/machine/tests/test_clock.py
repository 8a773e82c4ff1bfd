"""The rules of the simulated device, one by one."""

import pytest

from msda_core.machine.model import clock
from msda_core.machine.model.clock import FLUSH, REPLAY, Clock


def steady(**changes) -> Clock:
    """Full speed from the start, and no trouble."""
    return Clock(**{"idle_speed": 1.0, "trouble": 0.0, "sync": 10.0, **changes})


def test_a_launch_returns_before_the_device_is_done():
    device = steady()
    fn = device.kernel(warm=300, dispatch=20)
    fn()
    assert device.now() == 20
    device.synchronize()
    assert device.now() == 20 + 300 + 10


def test_the_queue_is_in_order_and_a_short_kernel_waits_for_its_dispatch():
    device = steady(sync=0.0)
    long, short = device.kernel(warm=100, dispatch=10), device.kernel(warm=4, dispatch=10)
    long(), long(), short()
    device.synchronize()
    assert device.now() == 10 + 100 + 100 + 4
    for _ in range(10):
        short()
    device.synchronize()
    assert device.now() == 214 + 10 * 10 + 4


def test_the_first_launch_compiles():
    device = steady()
    fn = device.kernel(warm=1, dispatch=20, compile=5000)
    fn(), fn()
    assert device.now() == 5000 + 2 * 20


def test_an_idle_device_is_slow_and_a_busy_one_comes_up():
    device = Clock(idle_speed=0.5, ramp=1000, cool=1e5, trouble=0, sync=0)
    fn = device.kernel(warm=10, dispatch=0.0)
    took = []
    for pause in [0.0] * 200 + [1e6]:
        device._host += pause
        start, _, end = device.record(), fn(), device.record()
        device.synchronize()
        took.append(end.time - start.time)
    assert took[0] == pytest.approx(2 * 10, rel=0.02) and took[199] == pytest.approx(10, rel=0.001)
    assert all(a >= b - 0.1 for a, b in zip(took[:199], took[1:200])), "hardly ever idle, it comes up"
    assert took[200] == pytest.approx(2 * 10, rel=0.02), "idle for a second, it does"


def test_work_is_conserved_while_the_speed_changes():
    """One kernel of 2000 takes as long as 200 of 10."""
    times = []
    for count in (1, 200):
        device = Clock(idle_speed=0.3, ramp=1500, trouble=0, sync=0)
        fn = device.kernel(warm=2000 / count, dispatch=0)
        for _ in range(count):
            fn()
        device.synchronize()
        times.append(device.now())
    assert times[0] == pytest.approx(times[1]) and times[0] == pytest.approx(1500 + 2000 - 1500 * 0.65)


def test_l2_is_warm_only_right_after_the_same_kernel():
    device = steady(sync=0.0)
    a, b = device.kernel(warm=10, cold=50, dispatch=0), device.kernel(warm=20, cold=20, dispatch=0)
    for launches, time in (((a,), 50), ((a,), 10), ((b, a), 20 + 50), ((device.flush, a), FLUSH + 50), ((a,), 10)):
        began = max(device.now(), device._free)
        for launch in launches:
            launch()
        device.synchronize()
        assert device.now() - began == pytest.approx(time + (5.0 if device.flush in launches else 0.0))


def test_trouble_comes_as_often_as_it_says():
    device = steady(trouble=0.1, delay=100.0, sync=0.0)
    fn = device.kernel(warm=5, dispatch=0)
    for _ in range(3000):
        fn()
    took = [span.end - span.start for span in device.spans if span.who == "device"]
    late = [t for t in took if t > 5.1]
    assert 0.07 < len(late) / len(took) < 0.13 and 54 < min(late) and max(late) < 156


def test_an_event_knows_its_time_once_somebody_waited():
    device = steady()
    fn = device.kernel(warm=200, dispatch=10)
    start = device.record()
    fn()
    end = device.record()
    with pytest.raises(clock.NotYet, match="synchronize"):
        end.time  # noqa: B018
    device.synchronize()
    assert end.time - start.time == 10 + 200, "on an idle device, the first event does not wait for the dispatch"


def test_a_graph_costs_one_dispatch_and_runs_back_to_back():
    device = steady(sync=0.0)
    fn = device.kernel(warm=4, dispatch=30)
    replay = device.graph(fn, copies=20)
    assert device.now() == 0.0
    replay()
    assert device.now() == REPLAY
    device.synchronize()
    assert device.now() == REPLAY + 20 * 4


def test_a_graph_holds_launches_only():
    device = steady()
    for inside in (device.synchronize, device.record, lambda: device.graph(device.flush)):
        with pytest.raises(RuntimeError, match="graph"):
            device.graph(inside)
    with pytest.raises(ValueError, match="launched nothing"):
        device.graph(lambda: None)
    device.synchronize()


def test_a_full_queue_makes_the_host_wait():
    device = steady(sync=0.0)
    fn = device.kernel(warm=100, dispatch=1)
    for _ in range(clock.DEPTH + 100):
        fn()
    assert device.now() > 80 * 100 and device.spans[-2].what == "queue is full"


def test_the_same_seed_gives_the_same_times():
    def run(seed):
        device = Clock(seed)
        fn = device.kernel(warm=50, cold=90)
        for _ in range(500):
            fn()
        device.synchronize()
        return device.now()

    assert run(1) == run(1) != run(2)


def test_a_clock_that_cannot_be_is_refused():
    for bad in ({"idle_speed": 0}, {"trouble": 1}, {"sync": -1}):
        with pytest.raises(ValueError, match="got idle_speed"):
            Clock(**bad)

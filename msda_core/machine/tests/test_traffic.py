"""The accounting: each rule on a case one can count by hand, and what it costs."""

import time

import numpy as np
import pytest
import torch

from msda_core import machine
from msda_core.bench import probes
from msda_core.device import load_triton
from msda_core.machine.counts import traffic

triton = load_triton()
import triton.language as tl  # noqa: E402


@triton.jit
def add_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    tl.store(y_ptr + offs, x + 1, mask=mask)


@triton.jit
def dead_kernel(x_ptr, y_ptr):
    offs = tl.arange(0, 128)
    unused = tl.load(x_ptr + offs)  # noqa: F841
    tl.store(y_ptr + offs, 1.0)


@triton.jit
def two_loads(a_ptr, b_ptr, y_ptr):
    offs = tl.arange(0, 128)
    tl.store(y_ptr + offs, tl.load(a_ptr + offs * 8) + tl.load(b_ptr + offs))


@triton.jit
def chained(index_ptr, x_ptr, y_ptr):
    offs = tl.arange(0, 128)
    tl.store(
        y_ptr + offs,
        tl.load(x_ptr + tl.load(index_ptr + offs)),
        mask=offs < 100,
    )


@triton.jit
def descriptor_kernel(x_ptr, y_ptr, n):
    desc = tl.make_tensor_descriptor(x_ptr, shape=[n, 16], strides=[16, 1], block_shape=[16, 16])
    tile = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    tl.store(y_ptr + tile, desc.load([0, 0]))


@triton.jit
def extremes(x_ptr, y_ptr):
    offs = tl.arange(0, 128)
    tl.atomic_max(y_ptr + offs, tl.load(x_ptr + offs), sem="relaxed")


@triton.jit
def contended(y_ptr, BLOCK: tl.constexpr):
    tl.atomic_add(y_ptr + tl.arange(0, BLOCK) // 4, 1.0, sem="relaxed")


@triton.autotune([triton.Config({"BLOCK": 64}, num_warps=2), triton.Config({"BLOCK": 128}, num_warps=8)], key=["n"])
@triton.jit
def tuned(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)


def requests(*rows):
    """Lists of lanes, None for an inactive one, as addresses and activity of 32 lanes."""
    addresses = np.zeros((len(rows), 32), np.int64)
    active = np.zeros((len(rows), 32), bool)
    for i, row in enumerate(rows):
        for lane, address in enumerate(row):
            if address is not None:
                addresses[i, lane], active[i, lane] = address, True
    return addresses, active


def test_a_request_costs_its_distinct_sectors():
    rows = [range(0, 128, 4)], [range(0, 1024, 32)], [[0] * 32], [[28, 32, None, 60]], [[None, 640]]
    assert [traffic.distinct_sectors(*requests(*r)) for r in rows] == [4, 32, 1, 2, 1]
    assert traffic.distinct_sectors(*requests(range(0, 128, 4), [0] * 32)) == 5


def test_a_reductions_sector_counts_as_often_as_its_most_hit_address():
    def cost(*row):
        sectors, worst = traffic.reduction_sectors(*requests(row))
        return len(sectors), worst

    assert cost(0, 4, 8) == (1, 1)
    assert cost(0, 0, 8) == (2, 2)
    assert cost(0, 0, 4, 4, 32) == (3, 2)
    assert cost(*[64] * 32) == (32, 32)
    assert traffic.reduction_sectors(*requests())[1] == 0


def test_a_compare_and_swap_loop_takes_a_round_for_each_lane_in_a_word():
    words, active = requests([0, 0, 4, 32])
    assert traffic.loop_rounds(words, active) == 2
    assert traffic.loop_sectors(words, active) == (3 + 1, 2)


def test_a_copy_by_formula():
    x, y = torch.zeros(4096), torch.zeros(4096)
    report = machine.profile(add_kernel, (4,), x, y, 4096, BLOCK=1024, num_warps=4)
    assert (report.loads.requests, report.loads.sectors) == (4096 // 4 // 32, 4096 // 8)
    assert (report.stores.requests, report.stores.sectors) == (4096 // 4 // 32, 4096 // 8)
    assert report.unique_bytes == report.written_bytes == report.dram_bytes == 4096 * 4
    assert report.efficiency == 1.0 and report.programs == 4 and report.requested_bytes == 2 * 4096 * 4
    lines = report.by_line
    assert [line.sites[0].kind for line in lines.values()] == ["load", "store"]
    assert [line.text[:2] for line in lines.values()] == ["x ", "tl"]
    assert "ld.global.v4.b32" in str(report)


def test_the_unit_is_the_launch_not_the_programs_order():
    x, y = torch.zeros(4096), torch.zeros(4096)
    both = [machine.profile(add_kernel, (4096 // b,), x, y, 4096, BLOCK=b, num_warps=4) for b in (512, 1024)]
    assert both[0].loads.sectors == both[1].loads.sectors


def test_the_targets_instruction_decides():
    y = torch.zeros(1024, dtype=torch.float16)
    x = torch.ones(1024, dtype=torch.float16)
    new, old = (machine.profile(probes.probe_add, (2,), x, y, 1024, BLOCK=512, target=t) for t in ("sm_90", "sm_80"))
    assert new.lowering.atomics != old.lowering.atomics
    assert old.atomics.requests == 2 * new.atomics.requests  # pairs against fours


def test_a_load_nobody_uses_is_eliminated():
    report = machine.profile(dead_kernel, (1,), torch.zeros(128), torch.zeros(128))
    assert report.loads.requests == 0 and [s.text[:6] for s in report.eliminated] == ["unused"]


def test_two_accesses_on_one_line_are_told_apart():
    report = machine.profile(two_loads, (1,), torch.zeros(1024), torch.zeros(128), torch.zeros(128), num_warps=1)
    by_tensor = {e.tensor: s for s in report.sites for e in report.trace.events if e.site is s.site}
    assert (by_tensor["a_ptr"].sectors, by_tensor["b_ptr"].sectors) == (128, 16)
    index = torch.arange(128).flip(0) * 8
    report = machine.profile(chained, (1,), index, torch.zeros(1024), torch.zeros(128), num_warps=1)
    by_tensor = {e.tensor: s for s in report.sites for e in report.trace.events if e.site is s.site}
    assert (by_tensor["x_ptr"].sectors, by_tensor["y_ptr"].sectors) == (128, 13)
    assert by_tensor["index_ptr"].sectors in (32, 64)  # the layout that the gather wants costs the index a second pass


def test_a_float_maximum_is_two_integer_atomics():
    """The compiler sends the positive lanes through a signed maximum, the negative ones through an unsigned minimum."""
    x = torch.arange(-64.0, 64.0) + 0.5
    y = torch.zeros(128)
    report = machine.profile(extremes, (1,), x, y, num_warps=4)  # one number a lane, in whatever layout
    atomics = {s.site.op: s for s in report.sites if s.kind == "atomic"}
    assert {o: s.bytes for o, s in atomics.items()} == {"max": 256, "umin": 256}
    assert all(s.sectors == 8 for s in atomics.values()) and "min.u32" in atomics["umin"].instruction
    assert torch.equal(y, x.clamp_min(0))


def test_contention_is_measured():
    contention = machine.profile(contended, (5,), torch.zeros(32), BLOCK=128).contention
    assert (contention.lanes, contention.updates, contention.mean, contention.programs) == (4, 20, 20.0, 5)
    assert contention.line == 5 * 4 * 4  # five programs, four sectors, each four times


def test_an_autotuned_kernel_brings_its_warps():
    report = machine.profile(tuned, (2,), torch.zeros(128), torch.zeros(128), 128)
    assert report.num_warps == 2 and report.lowering.num_warps == 2


def test_what_the_copy_engine_moves_is_refused():
    x, y = torch.zeros(16, 16), torch.zeros(16, 16)
    with pytest.raises(machine.Unsupported, match="copy engine"):
        machine.profile(descriptor_kernel, (1,), x, y, 16, target="sm_90")


def test_clusters_are_refused():
    with pytest.raises(machine.Unsupported, match="num_ctas"):
        machine.profile(add_kernel, (1,), torch.zeros(256), torch.zeros(256), 256, BLOCK=256, num_ctas=2)


def test_nothing_launched_costs_nothing():
    report = machine.profile(add_kernel, (0,), torch.zeros(4), torch.zeros(4), 4, BLOCK=16)
    assert report.requests == report.unique_bytes == 0 and report.efficiency == 0


def test_the_cache_model():
    stream = np.array([0, 1, 2, 0, 1, 2])
    assert [traffic.lru_misses(stream, c) for c in (1, 2, 3)] == [6, 6, 3]
    report = machine.profile(add_kernel, (4,), torch.zeros(4096), torch.zeros(4096), 4096, BLOCK=1024)
    assert report.l2_misses(1 << 20) == 512


def test_requests_one_by_one_add_up_to_the_counts():
    report = machine.profile(two_loads, (1,), torch.zeros(1024), torch.zeros(128), torch.zeros(128))
    found = list(machine.issued(report.trace, report.lowering, "load"))
    assert len(found) == report.loads.requests
    assert sum(len({a // 32 for a in r.addresses}) for r in found) == report.loads.sectors


def test_profiling_costs_at_most_three_times_interpreting():
    """Programs of the operator's forward: Triton's own interpreter against trace, lowering (warm) and counts."""
    if not triton.knobs.runtime.interpret:
        pytest.skip("needs TRITON_INTERPRET=1 to time Triton's interpreter")
    from msda_core.bench.calibrate import capture
    from msda_core.kernels import forward

    case = {c.name: c for c in probes.CASES}["msda_forward_f16"]
    _, launch, _ = capture(case, "cpu")
    assert launch.programs == 64 and launch.kernel is forward.msda_fwd_kernel
    run, grid = {**launch.values, **launch.options}, (8,)  # of 64: what one program costs is what is asked

    def took(function):
        start = time.process_time()
        function()
        return time.process_time() - start

    machine.profile(launch.kernel, grid, **run)
    alone = took(lambda: launch.kernel[grid](**run))
    profiled = took(lambda: machine.profile(launch.kernel, grid, **run))
    print(f"interpreting {alone * 1e3:.0f} ms, profiling {profiled * 1e3:.0f} ms")
    assert profiled < 3 * alone


@triton.jit
def alternating(x_ptr, y_ptr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    offs = tl.arange(0, BLOCK)
    acc = tl.zeros([BLOCK], tl.float32)
    for k in tl.static_range(2):
        if pid % 2 == k:
            acc += tl.load(x_ptr + offs * (1 + k))
    tl.store(y_ptr + pid * BLOCK + offs, acc)


@triton.jit
def pruned(x_ptr, y_ptr, first, BLOCK: tl.constexpr, LEFT_OUT: tl.constexpr, WIDE: tl.constexpr):
    pid = tl.program_id(0) + first
    offs = tl.arange(0, BLOCK)
    acc = tl.zeros([BLOCK], tl.float32)
    for k in tl.static_range(4):
        if k != LEFT_OUT:
            if pid == k:
                acc += tl.load(x_ptr + offs * (1 if k == WIDE else 2))
    tl.store(y_ptr + offs, acc)


def test_copies_of_an_unrolled_line_count_for_the_iterations_they_are():
    """As an H200 counted it: 80 requests and 2304 sectors."""
    x, y = torch.zeros(4096), torch.zeros(8, 512)
    report = machine.profile(alternating, (8,), x, y, BLOCK=512)
    assert (report.loads.requests, report.loads.sectors) == (80, 2304)
    one = machine.profile(alternating, (1,), x, y, BLOCK=512)  # the copy of the other iteration never runs
    assert (one.loads.requests, one.loads.sectors) == (4, 64)


def test_a_copy_that_no_program_runs_and_one_that_is_left_out():
    report = machine.profile(pruned, (2,), torch.zeros(4096), torch.zeros(512), 0, BLOCK=512, LEFT_OUT=2, WIDE=0)
    assert (report.loads.requests, report.loads.sectors) == (4 + 16, 64 + 512)
    with pytest.raises(machine.Unsupported, match="became 3 operations that differ.*Write the iterations out"):
        machine.profile(pruned, (1,), torch.zeros(4096), torch.zeros(512), 2, BLOCK=512, LEFT_OUT=1, WIDE=2)


@triton.jit
def in_quarters(x_ptr, y_ptr, N: tl.constexpr):
    for i in tl.static_range(4):
        offs = tl.program_id(0) * 4 * N + i * N + tl.arange(0, N)
        tl.store(y_ptr + offs, tl.load(x_ptr + offs))


def test_bytes_and_distinct_sectors_of_an_unrolled_loop_are_of_all_its_turns():
    report = machine.profile(in_quarters, (2,), torch.rand(1024), torch.empty(1024), N=128)
    assert (report.loads.bytes, report.stores.bytes) == (4096, 4096) == (report.unique_bytes, report.written_bytes)
    assert report.loads.unique_sectors == 128 and report.l2_loads == 128


@triton.jit
def read_twice(x_ptr, y_ptr, N: tl.constexpr):
    offs = tl.arange(0, N)
    total = tl.zeros((N,), tl.float32)
    for _ in range(3):
        total += tl.load(x_ptr + offs, volatile=True)
    tl.store(y_ptr + tl.program_id(0) * N + offs, total)


def test_l1_keeps_what_one_program_has_read_and_no_others():
    report = machine.profile(read_twice, (2,), torch.rand(128), torch.empty(256), N=128)
    assert report.loads.sectors == 2 * 3 * 16 and report.l2_loads == 2 * 16

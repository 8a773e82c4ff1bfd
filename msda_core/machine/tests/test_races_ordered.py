"""What orders two accesses, and what does not: the cases of the detectors that exist, and the patterns people use.

The first sixteen are the kinds of cases that GSan (Triton's sanitizer for global memory) is tested on, written anew: two
programs and a flag. From "tiles that overlap by one" on: the kinds of cases of triton-viz's race detector.
"""

import inspect
import re

import pytest
import torch

from msda_core import machine
from msda_core.device import load_triton

triton = load_triton()
import triton.language as tl  # noqa: E402
from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402

I32 = torch.int32


@triton.jit
def message(x_ptr, flag_ptr, y_ptr, WRITE: tl.constexpr, READ: tl.constexpr, SCOPE: tl.constexpr):
    """Program 0 leaves a value and raises a flag; program 1 waits for the flag and takes the value."""
    if tl.program_id(0) == 0:
        tl.store(x_ptr, 5)
        tl.atomic_xchg(flag_ptr, 1, sem=WRITE, scope=SCOPE)
    else:
        while tl.atomic_add(flag_ptr, 0, sem=READ, scope=SCOPE) == 0:
            pass
        tl.store(y_ptr, tl.load(x_ptr))


@triton.jit
def overwrite(x_ptr, flag_ptr, y_ptr, FIRST: tl.constexpr, SEM: tl.constexpr):
    """Program 0 reads (FIRST = 0) or writes, and counts; program 1 waits for the count and writes."""
    if tl.program_id(0) == 0:
        if FIRST == 0:
            tl.store(y_ptr, tl.load(x_ptr))
        else:
            tl.store(x_ptr, 1)
        tl.atomic_add(flag_ptr, 1, sem=SEM)
    else:
        while tl.atomic_cas(flag_ptr, 1, 1, sem=SEM) != 1:
            pass
        tl.store(x_ptr, 2)


@triton.jit
def volatile_flag(x_ptr, flag_ptr, y_ptr):
    if tl.program_id(0) == 0:
        tl.store(x_ptr, 5)
        tl.atomic_xchg(flag_ptr, 1)
    else:
        while tl.load(flag_ptr, volatile=True) == 0:
            pass
        tl.store(y_ptr, tl.load(x_ptr))


@triton.jit
def locked(x_ptr, lock_ptr, RELEASE: tl.constexpr):
    offs = tl.arange(0, 128)
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    tl.store(x_ptr + offs, tl.load(x_ptr + offs) + 1)
    tl.debug_barrier()
    tl.atomic_xchg(lock_ptr, 0, sem=RELEASE)


@triton.jit
def partial_sums(x_ptr, sum_ptr, lock_ptr, GROUPS: tl.constexpr, BLOCK: tl.constexpr):
    """The pattern of Triton's tutorial 05: rows add to one of a few partial sums under its lock; the first stores."""
    row = tl.program_id(0)
    offs = tl.arange(0, BLOCK)
    part = tl.load(x_ptr + row * BLOCK + offs)
    mine = lock_ptr + row % GROUPS
    while tl.atomic_cas(mine, 0, 1) == 1:
        pass
    if tl.load(mine + GROUPS) == 0:
        tl.atomic_xchg(mine + GROUPS, 1)
    else:
        part += tl.load(sum_ptr + row % GROUPS * BLOCK + offs)
    tl.store(sum_ptr + row % GROUPS * BLOCK + offs, part)
    tl.debug_barrier()
    tl.atomic_xchg(mine, 0)


@triton.jit
def last_block(x_ptr, part_ptr, done_ptr, y_ptr, P: tl.constexpr, SEM: tl.constexpr, SCOPE: tl.constexpr):
    pid = tl.program_id(0)
    tl.store(part_ptr + pid, tl.sum(tl.load(x_ptr + pid * 64 + tl.arange(0, 64)), 0))
    if tl.atomic_add(done_ptr, 1, sem=SEM, scope=SCOPE) == P - 1:
        tl.store(y_ptr, tl.sum(tl.load(part_ptr + tl.arange(0, P)), 0))


@triton.jit
def unread(x_ptr, done_ptr):
    """An atomic that nobody reads acquires nothing."""
    tl.atomic_add(done_ptr, 1)
    tl.store(x_ptr, tl.program_id(0))


@triton.jit
def beside(count_ptr, y_ptr):
    tl.atomic_add(count_ptr, 1)
    tl.store(y_ptr + tl.program_id(0), tl.load(count_ptr))


@triton.jit
def bytes_of_words(word_ptr, byte_ptr, y_ptr):
    if tl.program_id(0) == 0:
        tl.store(word_ptr, 0x01020304)
    else:
        tl.store(y_ptr, tl.load(byte_ptr + 2))


@triton.jit
def bytes_apart(byte_ptr):
    tl.store(byte_ptr + tl.program_id(0), 1)


@triton.jit
def narrow_atomics(x_ptr, half_ptr):
    if tl.program_id(0) == 0:
        tl.atomic_add(x_ptr, 1.0)
    else:
        tl.atomic_add(half_ptr, 1.0)


@triton.jit
def same_value(x_ptr):
    tl.store(x_ptr, 7)


@triton.jit
def reversed_load(x_ptr, y_ptr, BARRIER: tl.constexpr):
    offs = tl.arange(0, 256)
    tl.store(x_ptr + offs, offs * 1.0)
    if BARRIER:
        tl.debug_barrier()
    tl.store(y_ptr + offs, tl.load(x_ptr + 255 - offs))


@triton.jit
def reversed_in_a_loop(x_ptr, n, BARRIER: tl.constexpr):
    offs = tl.arange(0, 256)
    for _ in range(n):
        v = tl.load(x_ptr + 255 - offs)
        if BARRIER:
            tl.debug_barrier()
        tl.store(x_ptr + offs, v + 1)
        if BARRIER:
            tl.debug_barrier()


@triton.jit
def sum_between(x_ptr):
    """The sum over all warps waits for all of them."""
    offs = tl.arange(0, 128)
    v = tl.load(x_ptr + offs)
    tl.store(x_ptr + 127 - offs, v + tl.sum(v, 0))


@triton.jit
def increment(x_ptr):
    offs = tl.arange(0, 128)
    tl.store(x_ptr + offs, tl.load(x_ptr + offs) + 1)


@triton.jit
def meeting_lanes(x_ptr):
    offs = tl.arange(0, 128)
    tl.store(x_ptr + offs // 2, offs)


@triton.jit
def overlapping_tiles(x_ptr, STEP: tl.constexpr):
    pid = tl.program_id(0)
    tl.store(x_ptr + pid * STEP + tl.arange(0, 8), pid)


@triton.jit
def across_turns(x_ptr, STEP: tl.constexpr):
    pid = tl.program_id(0)
    for i in range(2):
        tl.store(x_ptr + pid * STEP + i, pid)


@triton.jit
def turns_by_program(x_ptr):
    pid = tl.program_id(0)
    for i in range(pid + 1):
        tl.store(x_ptr + pid + i, pid)


@triton.jit
def branch(x_ptr, FIRST: tl.constexpr, LAST: tl.constexpr):
    pid = tl.program_id(0)
    if (pid >= FIRST) & (pid <= LAST):
        tl.store(x_ptr, pid)


@triton.jit
def handed_over(x_ptr, flag_ptr, y_ptr, STEP: tl.constexpr):
    """An exchange releases, another acquires; nobody looks at what it found, so it may have come too early."""
    pid = tl.program_id(0)
    tl.store(x_ptr, 42, mask=pid == 0)
    tl.atomic_xchg(flag_ptr + pid * STEP, 1, mask=pid == 0, sem="release")
    tl.atomic_xchg(flag_ptr + pid * STEP, 2, mask=pid == 1, sem="acquire")
    tl.store(y_ptr, tl.load(x_ptr, mask=pid == 1), mask=pid == 1)


@triton.jit
def failed_swap(x_ptr, flag_ptr, y_ptr, EXPECTED: tl.constexpr):
    pid = tl.program_id(0)
    tl.store(x_ptr, 42, mask=pid == 0)
    tl.atomic_cas(flag_ptr, EXPECTED, EXPECTED)
    tl.store(y_ptr, tl.load(x_ptr, mask=pid == 1), mask=pid == 1)


@triton.jit
def winners(count_ptr, x_ptr, LAST: tl.constexpr):
    old = tl.atomic_add(count_ptr, 1, sem="relaxed")
    tl.store(x_ptr, tl.program_id(0), mask=old <= LAST)


@triton.jit
def work_queue(head_ptr, x_ptr):
    tl.store(x_ptr + tl.atomic_add(head_ptr, 1, sem="relaxed"), tl.program_id(0))


@triton.jit
def running_maximum(max_ptr, x_ptr):
    pid = tl.program_id(0)
    found = tl.atomic_max(max_ptr, pid, sem="relaxed")
    tl.store(x_ptr + pid, found, mask=found >= 0)


@triton.jit
def neighbour(x_ptr):
    offs = tl.program_id(0) * 8 + tl.arange(0, 8)
    tl.store(x_ptr + offs, tl.load(x_ptr + offs + 1) + 1)


def flags(**constants):
    return lambda: ((torch.zeros(1, dtype=I32), torch.zeros(1, dtype=I32), torch.zeros(1, dtype=I32)), constants)


@triton.jit
def tile_written(x_ptr, flag_ptr, y_ptr, SEM: tl.constexpr):
    """Program 0 writes a tile through a descriptor it makes; program 1 reads an element of it."""
    if tl.program_id(0) == 0:
        tile = tl.make_tensor_descriptor(x_ptr, [12, 12], [16, 1], [8, 8])
        tile.store([4, 4], tl.full((8, 8), 1, tl.int32))
        tl.atomic_add(flag_ptr, 1, sem=SEM)
    else:
        while tl.atomic_add(flag_ptr, 0, sem=SEM) == 0:
            pass
        tl.store(y_ptr, tl.load(x_ptr + 4 * 16 + 4))


@triton.jit
def tile_read(x, x_ptr, flag_ptr, y_ptr, SEM: tl.constexpr):
    """Program 0 reads a tile through the host's descriptor; program 1 writes an element of it."""
    if tl.program_id(0) == 0:
        offs = tl.arange(0, 8)[:, None] * 8 + tl.arange(0, 8)[None, :]
        tl.store(y_ptr + offs, x.load([4, 4]))
        tl.atomic_add(flag_ptr, 1, sem=SEM)
    else:
        while tl.atomic_add(flag_ptr, 0, sem=SEM) == 0:
            pass
        tl.store(x_ptr + 4 * 16 + 4, 1)


@triton.jit
def rows_gathered(x, rows_ptr, x_ptr, flag_ptr, y_ptr, SEM: tl.constexpr):
    """Program 0 gathers rows through a descriptor; program 1 writes an element of one of them."""
    if tl.program_id(0) == 0:
        offs = tl.arange(0, 8)[:, None] * 8 + tl.arange(0, 8)[None, :]
        tl.store(y_ptr + offs, x.gather(tl.load(rows_ptr + tl.arange(0, 8)), 8))
        tl.atomic_add(flag_ptr, 1, sem=SEM)
    else:
        while tl.atomic_add(flag_ptr, 0, sem=SEM) == 0:
            pass
        tl.store(x_ptr + 5 * 16 + 8, 1)


@triton.jit
def rows_scattered(x, rows_ptr, x_ptr, flag_ptr, y_ptr, SEM: tl.constexpr):
    """Program 0 reads an element; program 1 scatters rows over it through a descriptor."""
    if tl.program_id(0) == 0:
        tl.store(y_ptr, tl.load(x_ptr + 5 * 16 + 8))
        tl.atomic_add(flag_ptr, 1, sem=SEM)
    else:
        while tl.atomic_add(flag_ptr, 0, sem=SEM) == 0:
            pass
        x.scatter(tl.full((8, 8), 1, tl.int32), tl.load(rows_ptr + tl.arange(0, 8)), 8)


def one(*shapes, dtype=torch.float32, **constants):
    return lambda: (tuple(torch.zeros(*s, dtype=dtype) for s in shapes), constants)


def mixed(*dtypes, more=()):
    def make():
        memory = torch.zeros(16, dtype=torch.uint8)
        return (*(memory.view(d) for d in dtypes), *(torch.zeros(4, dtype=d) for d in more)), {}

    return make


def sums(sem="acq_rel", scope="gpu"):
    def make():
        tensors = torch.ones(8, 64), torch.zeros(8), torch.zeros(1, dtype=I32), torch.zeros(1)
        return tensors, {"P": 8, "SEM": sem, "SCOPE": scope}

    return make


def tiles(host=True, rows=False, **constants):
    def make():
        x, flag, y = torch.zeros(16, 16, dtype=I32), torch.zeros(1, dtype=I32), torch.zeros(8, 8, dtype=I32)
        described = [TensorDescriptor.from_tensor(x, [1 if rows else 8, 8])] if host else []
        index = [torch.tensor([5, 7, 9, 10, 1, 3, 11, 13], dtype=I32)] if rows else []
        return (*described, *index, x, flag, y), constants

    return make


WARPS = "warps"
#: what, kernel, programs, arguments -> races as (what the first does, what the other does[, between warps or lanes])
CASES = [
    ("message, release and acquire", message, 2, flags(WRITE="release", READ="acquire", SCOPE="gpu"), []),
    ("message, both acq_rel", message, 2, flags(WRITE="acq_rel", READ="acq_rel", SCOPE="sys"), []),
    ("message, relaxed", message, 2, flags(WRITE="relaxed", READ="relaxed", SCOPE="gpu"), [("store", "load")]),
    ("message, released only", message, 2, flags(WRITE="release", READ="relaxed", SCOPE="gpu"), [("store", "load")]),
    ("message, acquired only", message, 2, flags(WRITE="relaxed", READ="acquire", SCOPE="gpu"), [("store", "load")]),
    ("message, one block's scope", message, 2, flags(WRITE="acq_rel", READ="acq_rel", SCOPE="cta"),
     [("atomic", "atomic"), ("store", "load")]),
    ("write after read, relaxed", overwrite, 2, flags(FIRST=0, SEM="relaxed"), [("store", "load")]),
    ("write after read, ordered", overwrite, 2, flags(FIRST=0, SEM="acq_rel"), []),
    ("write after write, relaxed", overwrite, 2, flags(FIRST=1, SEM="relaxed"), [("store", "store")]),
    ("write after write, ordered", overwrite, 2, flags(FIRST=1, SEM="acq_rel"), []),
    ("a tile written, relaxed", tile_written, 2, tiles(host=False, SEM="relaxed"), [("store", "load")]),
    ("a tile written, ordered", tile_written, 2, tiles(host=False, SEM="acq_rel"), []),
    ("a tile read, relaxed", tile_read, 2, tiles(SEM="relaxed"), [("store", "load")]),
    ("a tile read, ordered", tile_read, 2, tiles(SEM="acq_rel"), []),
    ("rows gathered, relaxed", rows_gathered, 2, tiles(rows=True, SEM="relaxed"), [("store", "load")]),
    ("rows scattered, relaxed", rows_scattered, 2, tiles(rows=True, SEM="relaxed"), [("store", "load")]),
    ("a volatile flag orders nothing", volatile_flag, 2, flags(), [("store", "load")]),
    ("spin lock", locked, 4, lambda: ((torch.zeros(128), torch.zeros(1, dtype=I32)), {"RELEASE": "acq_rel"}), []),
    ("spin lock, release only", locked, 4,
     lambda: ((torch.zeros(128), torch.zeros(1, dtype=I32)), {"RELEASE": "release"}), []),
    ("spin lock, relaxed release", locked, 4,
     lambda: ((torch.zeros(128), torch.zeros(1, dtype=I32)), {"RELEASE": "relaxed"}),
     [("store", "load"), ("store", "store")]),
    ("partial sums under locks (tutorial 05)", partial_sums, 6,
     lambda: ((torch.ones(6, 128), torch.zeros(2, 128), torch.zeros(4, dtype=I32)), {"GROUPS": 2, "BLOCK": 128}), []),
    ("last block, acq_rel", last_block, 8, sums(), []),
    ("last block, relaxed", last_block, 8, sums("relaxed"), [("store", "load")]),
    ("last block, release only", last_block, 8, sums("release"), [("store", "load")]),
    ("last block, one block's scope", last_block, 8, sums(scope="cta"), [("atomic", "atomic"), ("store", "load")]),
    ("an atomic that nobody reads", unread, 3, one((1,), (1,), dtype=I32), [("store", "store")]),
    ("plain load beside atomic adds", beside, 4, one((1,), (4,), dtype=I32), [("atomic", "load")]),
    ("a byte inside a word", bytes_of_words, 2, mixed(I32, torch.int8, more=[torch.int8]), [("store", "load")]),
    ("bytes side by side", bytes_apart, 4, one((4,), dtype=torch.int8), []),
    ("atomics of two sizes", narrow_atomics, 2, mixed(torch.float32, torch.float16), [("atomic", "atomic")]),
    ("the same value twice", same_value, 3, one((1,), dtype=I32), [("store", "store", "benign")]),
    ("reversed load, no barrier", reversed_load, 1, one((256,), (256,), BARRIER=False), [("store", "load", WARPS)]),
    ("reversed load, barrier", reversed_load, 1, one((256,), (256,), BARRIER=True), []),
    ("reversed load, one warp", reversed_load, 1, one((256,), (256,), BARRIER=False, num_warps=1), []),
    ("reversed in a loop", reversed_in_a_loop, 1, lambda: ((torch.zeros(256), 3), {"BARRIER": False}),
     [("store", "load", WARPS)]),
    ("reversed in a loop, barriers", reversed_in_a_loop, 1, lambda: ((torch.zeros(256), 3), {"BARRIER": True}), []),
    ("a sum between", sum_between, 1, one((128,)), []),
    ("read, add, write", increment, 2, one((128,)), [("store", "load"), ("store", "store")]),
    ("in one program", increment, 1, one((128,)), []),
    ("tiles that overlap by one", overlapping_tiles, 3, one((32,), dtype=I32, STEP=7), [("store", "store")]),
    ("tiles that meet", overlapping_tiles, 3, one((32,), dtype=I32, STEP=8), []),
    ("turns of a loop that meet", across_turns, 2, one((8,), dtype=I32, STEP=1), [("store", "store")]),
    ("turns of a loop apart", across_turns, 2, one((8,), dtype=I32, STEP=2), []),
    ("as many turns as the program's number", turns_by_program, 2, one((8,), dtype=I32), []),
    ("as many turns, three programs", turns_by_program, 3, one((8,), dtype=I32), [("store", "store")]),
    ("one program takes the branch", branch, 3, one((1,), dtype=I32, FIRST=0, LAST=0), []),
    ("two programs take the branch", branch, 3, one((1,), dtype=I32, FIRST=1, LAST=2), [("store", "store")]),
    ("handed over, nobody looks", handed_over, 2, flags(STEP=0), [("store", "load")]),
    ("a failed swap orders nothing", failed_swap, 2, flags(EXPECTED=99), [("store", "load")]),
    ("a swap of the same value, unread", failed_swap, 2, flags(EXPECTED=0), [("store", "load")]),
    ("one winner", winners, 4, one((1,), (1,), dtype=I32, LAST=0), []),
    ("two winners", winners, 4, one((1,), (1,), dtype=I32, LAST=1), [("store", "store")]),
    ("a work queue", work_queue, 4, one((1,), (4,), dtype=I32), []),
    ("a running maximum", running_maximum, 4, one((1,), (4,), dtype=I32), []),
    ("in place from a neighbour", neighbour, 3, one((32,), num_warps=1), [("store", "load")]),
    ("two lanes of a store", meeting_lanes, 1, one((64,), dtype=I32), [("store", "store", "lanes")]),
]  # fmt: skip


def kind(race):
    extra = WARPS if race.warps else "lanes" if race.within else "benign" if race.benign else None
    return (race.store.kind, race.other.kind, *([extra] if extra else []))


@pytest.mark.parametrize("kernel, programs, make, expected", [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_races_are_those_that_nothing_orders(kernel, programs, make, expected):
    args, constants = make()
    found = machine.races(machine.trace(kernel, (programs,), *args, **constants))
    if kernel in APART and not _waits(kernel, args, constants, *APART[kernel]):
        expected = [
            *expected,
            ("atomic", "load", WARPS),
        ]  # one warp updates for all, and another may load too late or early
    assert sorted(map(kind, found)) == sorted(expected), [str(r) for r in found]


#: Kernels in which a load of all warps stands beside an update by one of them: the two lines. Triton 3.9 puts a barrier
#: between them, 3.7.1 none.
APART = {
    partial_sums: ("if tl.load(mine + GROUPS)", "tl.atomic_xchg(mine + GROUPS, 1)"),
    beside: ("tl.atomic_add(count_ptr, 1)", "tl.load(count_ptr)"),
}


def _waits(kernel, args, constants, *lines) -> bool:
    """Whether the compiler put a barrier between the accesses of two lines."""
    source, first = inspect.getsourcelines(kernel.fn)
    one, other = (next(first + i for i, line in enumerate(source) if text in line) for text in lines)
    access = r"{} .*?^[^\n.]*\b(?:ld\.global|atom)\b".format
    ptx = machine.lower(kernel, *args, **constants).ptx
    between = re.search(rf"\.loc\s+1 {access(one)}(.*?)\.loc\s+1 {access(other)}", ptx, re.S | re.M)
    return "bar.sync" in between[0]


WITNESSED = ["message, relaxed", "last block, relaxed", "plain load beside atomic adds", "a byte inside a word"]
WITNESSED += ["reversed load, no barrier", "read, add, write", "two lanes of a store", "write after write, relaxed"]


@pytest.mark.parametrize("name", WITNESSED)
def test_a_race_is_replayed_in_an_order_that_shows_it(name):
    _, kernel, programs, make, _ = next(c for c in CASES if c[0] == name)
    args, constants = make()
    trace = machine.trace(kernel, (programs,), *args, **constants)
    after = [a.clone() for a in args]
    for race in machine.races(trace):
        if race.warps and kernel in APART:
            continue
        shown = machine.witness(trace, race)
        assert shown is not None and (shown.difference or shown.lost)
        assert "program (0, 0, 0)" in shown.draw() and (not shown.lost or "is lost" in shown.draw())
    assert all(torch.equal(a, b) for a, b in zip(args, after))  # replays run on copies


def test_a_schedule_is_drawn_with_what_is_lost():
    x = torch.zeros(128)
    trace = machine.trace(increment, (2,), x)
    race = next(r for r in machine.races(trace) if r.other.kind == "load")
    rows = machine.witness(trace, race).draw(race.tensor, race.element).splitlines()
    assert rows[0].split("program") == ["", " (0, 0, 0)                 ", " (1, 0, 0)"]
    assert [r.strip().split(": ", 1)[-1] for r in rows[1:5]] == [
        "load x_ptr[0] 0.0 <- reads",
        "load x_ptr[0] 0.0",
        "store x_ptr[0] 1.0 <- is lost",
        "store x_ptr[0] 1.0 <- writes over it",
    ]
    assert rows[5] == "x_ptr[0] ends as 1; one after the other it is 2"


def test_what_is_benign_has_no_witness():
    trace = machine.trace(same_value, (2,), torch.zeros(1, dtype=I32))
    (race,) = machine.races(trace)
    assert race.benign and machine.witness(trace, race) is None and "same value" in str(race)


def test_the_page_has_a_row_for_each_case():
    from pathlib import Path

    page = (Path(__file__).parents[1] / "RACES.md").read_text()
    for name, _, programs, _, expected in CASES:
        found = "; ".join(f"{a} and {b}" + (f" ({x[0]})" if x else "") for a, b, *x in expected) or "no race"
        assert f"| {name} | {programs} | {found} |" in page

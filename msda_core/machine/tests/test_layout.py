"""Layouts and instructions, against cases small enough to write down."""

import numpy as np
import pytest

from msda_core.machine import Unsupported
from msda_core.machine.compile import ptx
from msda_core.machine.compile import ttgir as layout

ALIASES = {
    "#b1": "#ttg.blocked<{sizePerThread = [4], threadsPerWarp = [32], warpsPerCTA = [2], order = [0]}>",
    "#b2": "#ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [4, 8], warpsPerCTA = [2, 1], order = [1, 0]}>",
    "#lin": "#ttg.linear<{register = [[1, 0], [0, 8]], lane = [[2, 0], [4, 0], [0, 1], [0, 2], [0, 4]], "
    "warp = [[8, 0]], block = []}>",
    "#b3": "#ttg.blocked<{sizePerThread = [1, 1, 2], threadsPerWarp = [1, 16, 2], warpsPerCTA = [1, 1, 1], "
    "order = [2, 1, 0]}>",
    "#mma": "#ttg.nvidia_mma<{versionMajor = 3}>",
}


def parse(name, shape):
    return layout.parse_layout(name, ALIASES, shape)


def test_blocked_by_formula():
    found = parse("#b1", (512,)).elements
    warp, lane, register = np.indices(found.shape)
    assert found.shape == (2, 32, 8)
    assert (found == (register // 4) * 256 + warp * 128 + lane * 4 + register % 4).all()


def test_blocked_in_two_dimensions_by_formula():
    found = parse("#b2", (8, 32)).elements
    warp, lane, register = np.indices(found.shape)
    assert (found == (warp * 4 + lane // 8) * 32 + lane % 8 * 4 + register).all()


def test_every_element_is_held_and_owners_hold_it_once():
    for name, shape in (("#b1", (64,)), ("#b1", (2,)), ("#b2", (2, 8)), ("#b2", (64, 64)), ("#lin", (16, 16))):
        found = parse(name, shape)
        count = np.prod(shape)
        assert set(found.elements.reshape(-1).tolist()) == set(range(count))
        owned = found.elements[found.warps][:, found.lanes]
        assert sorted(owned.reshape(-1).tolist()) == list(range(count)), (name, shape)


def test_a_tile_smaller_than_its_threads_is_replicated():
    found = parse("#b1", (64,))
    assert found.registers == 4 and not found.warps.all() and found.lanes.sum() == 16
    assert (found.elements[0] == found.elements[1]).all()


def test_slices():
    rows = parse("#ttg.slice<{dim = 1, parent = #b2}>", (8,))
    assert rows.elements.shape == (2, 32, 1)
    assert (rows.elements[:, :, 0] == np.array([[w * 4 + l // 8 for l in range(32)] for w in range(2)])).all()
    columns = parse("#ttg.slice<{dim = 0, parent = #b2}>", (32,))
    assert columns.elements.shape == (2, 32, 4) and not columns.warps[1]
    nested = parse("#ttg.slice<{dim = 0, parent = #ttg.slice<{dim = 1, parent = #b3}>}>", (4,))
    assert nested.registers == 2 and set(nested.elements.reshape(-1).tolist()) == {0, 1, 2, 3}


def test_what_tensor_cores_leave_by_formula():
    mma = "#ttg.nvidia_mma<{versionMajor = 2, versionMinor = 0, warpsPerCTA = [2, 2], instrShape = [16, 8]}>"
    found = parse(mma, (64, 32)).elements
    warp, lane, register = np.indices(found.shape)
    row = warp // 2 * 16 + register // 2 % 2 * 8 + lane // 4 + register // 8 * 32
    column = warp % 2 * 8 + lane % 4 * 2 + register % 2 + register // 4 % 2 * 16
    assert found.shape == (4, 32, 16) and (found == row * 32 + column).all()
    wgmma = "#ttg.nvidia_mma<{versionMajor = 3, versionMinor = 0, warpsPerCTA = [4, 2], instrShape = [16, 16, 32]}>"
    found = parse(wgmma, (64, 32)).elements
    warp, lane, register = np.indices(found.shape)
    row = warp % 4 * 16 + register // 2 % 2 * 8 + lane // 4
    assert (found == row * 32 + warp // 4 * 16 + register // 4 * 8 + lane % 4 * 2 + register % 2).all()
    rows = parse(f"#ttg.slice<{{dim = 1, parent = {wgmma}}}>", (64,))
    assert (rows.elements[:, :, 0] == (np.arange(8) % 4 * 16)[:, None] + np.arange(32) // 4).all()


def test_linear_is_the_xor_of_its_bases():
    found = parse("#lin", (16, 16)).elements
    assert found[1, 0, 0] == 8 * 16 and found[0, 1, 0] == 2 * 16 and found[0, 4, 3] == 1 * 16 + 8 + 1


def test_an_unknown_layout_is_refused():
    with pytest.raises(Unsupported, match="nvidia_mma"):
        parse("#mma", (16, 16))


def test_a_copy_engine_is_refused():
    with pytest.raises(Unsupported, match="copy engine"):
        layout.memory_ops("%0 = tt.descriptor_load %d[%c] : !tt.tensordesc<tensor<16xf32>> -> tensor<16xf32, #b>\n")


@pytest.mark.parametrize(
    "mnemonic, width",
    [
        ("ld.global.v4.b32", 16),
        ("ld.global.b8", 1),
        ("st.global.v2.b64", 16),
        ("ld.global.L1::evict_first.L2::cache_hint.v2.b32", 8),
        ("red.global.gpu.relaxed.add.noftz.v8.bf16", 16),
        ("red.global.gpu.relaxed.add.noftz.f16x2", 4),
        ("atom.global.gpu.acq_rel.add.f64", 8),
        ("atom.relaxed.gpu.global.cas.b32", 4),
    ],
)
def test_widths(mnemonic, width):
    assert ptx.width(mnemonic) == width


def test_instructions_carry_their_place():
    text = (
        ".loc\t1 10 3 // a.py:10:3\n@%p1 ld.global.v2.b32 { %r1, %r2 }, [ %rd1 + 0 ];\nld.param.b32 %r3, [p];\n"
        ".loc 1 5 1, function_name $L__info_string0, inlined_at 1 20 7\nst.global.b16 [ %rd2 + 0 ], { %rs1 };\n"
    )
    load, store = ptx.instructions(text)
    assert (load.kind, load.line, load.column, load.bytes, load.inlined) == ("load", 10, 3, 8, None)
    assert (store.kind, store.line, store.bytes, store.inlined) == ("store", 5, 2, (20, 7))
    assert ptx.instructions(ptx.condense(text)) == [load, store]

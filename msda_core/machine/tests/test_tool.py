"""The command and what it is made of: sessions, budgets, differences, scripts that fail."""

import functools
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from msda_core import bench, machine
from msda_core.device import load_triton
from msda_core.machine.compile.ttgir import memory_ops
from msda_core.machine.run.libdevice import apply
from msda_core.machine.tool import cli, compare, data, verify
from msda_core.machine.tool.budgets import breaches

PAGE = Path(machine.__file__).with_name("README.md")
triton = load_triton()
import triton.language as tl  # noqa: E402
from triton.language.extra import libdevice  # noqa: E402
from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402


@triton.jit
def strided(x_ptr, out_ptr, N, STEP: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs * STEP, mask=offs < N), mask=offs < N)


@triton.autotune([triton.Config({"BLOCK": b}, num_warps=w) for b in (64, 128) for w in (1, 2)], key=["N"])
@triton.jit
def tuned(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out_ptr + offs % 7, tl.load(x_ptr + offs, mask=offs < N), mask=offs < N)


@triton.jit
def with_libdevice(x_ptr, out_ptr, N: tl.constexpr):
    offs = tl.arange(0, N)
    x = tl.load(x_ptr + offs)
    tl.store(out_ptr + offs, libdevice.rsqrt(x) + libdevice.pow(x, 2.5) + libdevice.erf(x))


@triton.jit
def with_assembly(x_ptr, N: tl.constexpr):
    offs = tl.arange(0, N)
    x = tl.load(x_ptr + offs)
    x = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(x_ptr + offs, x)


@triton.jit
def with_policy(x_ptr, out_ptr, N: tl.constexpr):
    offs = tl.arange(0, N)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, cache_modifier=".ca", eviction_policy="evict_last"))


@triton.jit
def in_bfloat16(x_ptr, out_ptr, N: tl.constexpr):
    offs = tl.arange(0, N)
    x = tl.load(x_ptr + offs)
    tl.store(out_ptr + offs, tl.where(x > 1, x * x + x, -x))


@triton.jit
def specialised(a_ptr, b_ptr, c_ptr, K, B: tl.constexpr):
    o = tl.arange(0, B)
    acc = tl.zeros((B, B), tl.float32)
    for k in tl.range(0, K, B, warp_specialize=True):
        a = tl.load(a_ptr + o[:, None] * K + k + o[None, :])
        acc = tl.dot(a, tl.load(b_ptr + (k + o)[:, None] * B + o[None, :]), acc)
    tl.store(c_ptr + o[:, None] * B + o[None, :], acc)


@triton.jit
def by_address(table_ptr, out_ptr, N: tl.constexpr):
    offs = tl.arange(0, N)
    x_ptr = tl.load(table_ptr + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    tl.store(out_ptr + tl.program_id(0) * N + offs, tl.load(x_ptr + offs))


@triton.jit
def through_a_descriptor(x, out_ptr, B: tl.constexpr):
    offs = tl.arange(0, B)[:, None] * B + tl.arange(0, B)[None, :]
    tl.store(out_ptr + offs, x.load([0, 0]))


def blocks(values):
    values["x"].block_shape = [values["B"], values["B"]]


hooked = triton.autotune([triton.Config({"B": 16}, pre_hook=blocks)], key=[])(through_a_descriptor)

SCRIPT = """
import sys, torch, triton, triton.language as tl
@triton.jit
def touch(x_ptr, N: tl.constexpr):
    offs = tl.arange(0, N)
    tl.store(x_ptr + offs, tl.load(x_ptr + offs) + 1)
x = torch.zeros(int(sys.argv[1]), device="cuda")
assert x.is_cuda and torch.cuda.is_available()
touch[(1,)](x, N=64)
assert x.sum() == 64
"""


@pytest.fixture
def script(tmp_path):
    def write(end="", name="script.py"):
        path = tmp_path / name
        path.write_text(SCRIPT + end)
        return str(path)

    return write


def profiled(step=1, N=256, **options):
    with machine.session(**options) as session:
        strided[(N // 64,)](torch.rand(N * step), torch.empty(N), N, STEP=step, BLOCK=64, num_warps=1)
    return session


def test_every_config_is_counted_and_the_launch_happens_once():
    x, out = torch.rand(500), torch.zeros(8)
    with machine.session() as session:
        tuned[lambda meta: (triton.cdiv(500, meta["BLOCK"]),)](x, out, 500)
    assert [(p.config["BLOCK"], p.config["num_warps"]) for p in session.launches] == [
        (64, 1),
        (64, 2),
        (128, 1),
        (128, 2),
    ]
    assert [p.best for p in session.launches].count(True) == 1 and all(p.autotuned for p in session.launches)
    assert all(p.report.loads.bytes == 2000 for p in session.launches)
    torch.testing.assert_close(out.sum(), x.sum())


def test_a_launch_gives_its_registers_as_on_a_gpu():
    with machine.session() as session:
        compiled = strided[(4,)](torch.rand(256), torch.empty(256), 256, STEP=1, BLOCK=64, num_warps=1)
    assert compiled.n_regs == session.launches[0].lowering.registers > 0 and compiled.metadata.shared == 0


def test_only_what_was_asked_for_is_counted():
    assert len(profiled(kernel="other").launches) == 0
    assert profiled(kernel="other").seen == {"strided": 1}
    assert len(profiled(launch=1).launches) == 1 and len(profiled(launch=2).launches) == 0


def test_a_budget_names_the_line_that_costs():
    with machine.budget({"strided": {"load_sectors": 32, "registers": 64}}):
        strided[(4,)](torch.rand(256), torch.empty(256), 256, STEP=1, BLOCK=64, num_warps=1)
    with pytest.raises(machine.OverBudget, match=r"load_sectors is 128, above its budget of 32.*Most of it is line"):
        with machine.budget({"strided": {"load_sectors": 32}}):
            strided[(4,)](torch.rand(512), torch.empty(256), 256, STEP=2, BLOCK=64, num_warps=1)
    with pytest.raises(machine.OverBudget, match="never launched"):
        with machine.budget({"gone": {"spills": 0}}):
            pass
    with pytest.raises(machine.LaunchError, match="limits 'sektors'. Known: load_requests"):
        with machine.budget({"strided": {"sektors": 1}}):
            pass


def test_an_efficiency_must_not_fall():
    records = [data.record_of(p) for p in profiled(step=2).launches]
    (sentence,) = breaches({"strided": {"load_efficiency": 0.9}}, records)
    assert "load_efficiency is 0.25, below its budget of 0.9" in sentence


def test_differences_name_what_grew_and_where():
    before, after = (data.document(90, profiled(step).launches) for step in (1, 2))
    found = compare.differences(before, after)
    assert any("load sectors grew from 32 to 128, 4.00 times" in text for text in found)
    assert any(text.startswith("strided: line") and "sectors grew" in text for text in found)
    assert compare.differences(before, before) == []


def test_the_json_has_the_promised_fields(script, tmp_path, capsys):
    out, page = tmp_path / "out.json", tmp_path / "out.html"
    assert cli.main(["run", "--target", "sm_80", "--json", str(out), "--html", str(page), script(), "64"]) == 0
    found = json.loads(out.read_text())
    assert found["version"] == 1 and found["target"] == "sm_80"
    (launch,) = found["launches"]
    assert launch["kernel"] == "touch" and launch["config"] == {"N": 64, "num_warps": 4}
    assert (launch["loads"]["requests"], launch["loads"]["sectors"], launch["stores"]["sectors"]) == (4, 16, 8)
    assert launch["registers"] > 0 and launch["spills"] == 0 and launch["by_line"]["6"]["sectors"] == 24
    assert "touch, launch 1" in capsys.readouterr().out and "<svg" in page.read_text() or launch["worst"] is None


@pytest.mark.parametrize(
    ("arguments", "end", "status", "says"),
    [
        (["--target", "sm_91"], "", 2, "There is no target 'sm_91'. Known: sm_75"),
        (["--kernel", "other"], "", 1, "other was never launched. Launched: touch (1)."),
        ([], "raise ValueError('no luck')", 1, "failed at line 11 of"),
        ([], "raise ValueError('no luck')", 1, "Counted before that: 1 launches."),
        ([], "sys.exit(7)", 7, "ended with status 7"),
        (
            ["--every", "2"],
            "touch[(2,)](x, N=64)\nassert x.sum() == 192",
            1,
            "touch, launch 2, was sampled before that",
        ),
        (
            ["--seconds", "0.00001"],
            "",
            1,
            "touch is too large: after 0 s it was still in program (0, 0, 0)",
        ),
        (["--launch", "9"], "", 1, "There was no launch number 9. Launched: touch (1)."),
        ([], "touch[(1,)](x, N=128)", 1, "reads element 64 of x_ptr, past the 64 elements"),
        (
            [],
            "torch.compile(lambda x: x + 1)(x)",
            1,
            "is compiled by torch.compile, which writes no Triton where there is no GPU",
        ),
        (["--sanitize"], "touch[(1,)](torch.empty(64, device='cuda'), N=64)", 1, "never written"),
    ],
)
def test_what_goes_wrong_is_one_sentence(arguments, end, status, says, script, capsys):
    assert cli.main(["run", *arguments, script(end), "64"]) == status
    assert says in capsys.readouterr().err


def test_a_script_that_is_not_there_or_launches_nothing(tmp_path, capsys):
    assert cli.main(["run", str(tmp_path / "none.py")]) == 2
    (tmp_path / "idle.py").write_text("import torch")
    assert cli.main(["run", str(tmp_path / "idle.py")]) == 0
    err = capsys.readouterr().err
    assert "There is no script" in err and "idle.py launched no Triton kernel" in err


def test_nothing_of_the_pretence_is_left():
    assert torch.empty(1).device.type == "cpu" and not torch.empty(1).is_cuda
    assert torch.cuda.device_count() == 0 or torch.cuda.is_available()


@pytest.mark.parametrize("options", [{"every": 4}, {"seconds": 0.02}])
def test_a_sample_comes_close_and_says_so(options):
    N = 64 * 400
    x, out = torch.rand(N), torch.empty(N)
    report = machine.profile(strided, (400,), x, out, N, STEP=1, BLOCK=64, num_warps=1, **options)
    assert report.sampled is not None and report.sampled < 400 and report.error < 0.02
    assert report.loads.sectors == pytest.approx(N / 8, rel=0.02)
    assert report.unique_bytes == pytest.approx(4 * N, rel=0.02)
    assert "extrapolated from" in str(report)


@pytest.mark.parametrize(
    ("symbol", "exact"),
    [
        ("__nv_rsqrtf", torch.rsqrt), ("__nv_tanhf", torch.tanh), ("__nv_erff", torch.erf), ("__nv_log1pf", torch.log1p),
        ("__nv_expm1f", torch.expm1), ("__nv_fast_expf", torch.exp), ("__nv_lgammaf", torch.lgamma),
        ("__nv_normcdff", torch.special.ndtr), ("__nv_asinhf", torch.asinh), ("__nv_exp2f", torch.exp2),
        ("__nv_cyl_bessel_i0f", torch.special.i0), ("__nv_roundf", torch.round), ("__nv_acoshf", lambda x: torch.acosh(x)),
    ],
)  # fmt: skip
def test_libdevice_agrees_with_torch(symbol, exact):
    x = torch.rand(64) + 1.01
    got = apply(symbol, [x.numpy()], np.dtype(np.float32))
    np.testing.assert_allclose(got, exact(x.double()).numpy(), rtol=2e-6, atol=1e-7)


def test_libdevice_of_integers_and_directed_rounding():
    n = np.array([1, 0, -1, 12], np.int32)
    assert apply("__nv_clz", [n], np.dtype(np.int32)).tolist() == [31, 32, 0, 28]
    assert apply("__nv_popc", [n], np.dtype(np.int32)).tolist() == [1, 0, 32, 2]
    assert apply("__nv_mulhi", [n[:3] * 2**30, n[:3] + 7], np.dtype(np.int32)).tolist() == [2, 0, -2]
    x = np.array([1.5, -1.5], np.float32)
    assert apply("__nv_float2int_rd", [x], np.dtype(np.int32)).tolist() == [1, -2]
    third = [np.float32([1]), np.float32([3])]
    down, up = (apply(f"__nv_fdiv_{r}", third, np.dtype(np.float32))[0] for r in ("rd", "ru"))
    assert float(down) < 1 / 3 < float(up)
    with pytest.raises(machine.Unsupported, match="libdevice.byte_perm"):
        apply("__nv_byte_perm", [n, n, n], np.dtype(np.int32))


def test_a_kernel_with_libdevice_is_counted():
    x, out = torch.rand(64) + 0.5, torch.empty(64)
    report = machine.profile(with_libdevice, (1,), x, out, N=64)
    assert report.loads.sectors >= 8
    torch.testing.assert_close(out, x.rsqrt() + x**2.5 + x.erf())


def test_inline_assembly_and_clusters_are_refused_by_name():
    with pytest.raises(machine.Unsupported, match="line .*inline_asm_elementwise.* runs inline assembly"):
        machine.profile(with_assembly, (1,), torch.rand(64), N=64)
    with machine.session() as session:
        strided[(1,)](torch.rand(64), torch.empty(64), 64, STEP=1, BLOCK=64, num_ctas=2)
    assert "num_ctas=2" in session.launches[0].refused and session.launches[0].report is None


def test_warp_specialisation_is_counted_or_refused_by_name():
    a, b, c = torch.rand(64, 64).half(), torch.rand(64, 64).half(), torch.empty(64, 64)
    run = functools.partial(machine.profile, specialised, (1,), a, b, c, 64, B=64)
    assert run(target="sm_80").loads.bytes == 2 * 64 * 64 * 2  # there the compiler leaves the loop as it is
    with pytest.raises(machine.Unsupported, match="specialised asks for warp specialisation.*sm_90"):
        run(target="sm_90")
    with pytest.raises(machine.Unsupported, match="different code"):
        memory_ops("ttg.warp_specialize(%a) attributes {requestedRegisters = array<i32: 24>}")


def test_a_kernel_may_read_the_addresses_of_its_tensors():
    """As grouped products do: each tensor counts as one of its own, and past its end is out of bounds."""
    x, y = torch.rand(64), torch.rand(128)
    table, out = torch.tensor([x.data_ptr(), y.data_ptr()]), torch.empty(128)
    report = machine.profile(by_address, (2,), table, out, N=64)
    torch.testing.assert_close(out, torch.cat([x, y[:64]]))
    assert report.loads.unique_sectors == 17  # 256 bytes of each, and the addresses
    assert {"memory 1", "memory 2"} <= set(report.trace.tensors)
    with pytest.raises(machine.OutOfBounds, match="element 64 of memory 1, past the 64 elements"):
        machine.profile(by_address, (1,), table, out, N=128)
    with pytest.raises(machine.OutOfBounds, match="not computed from any tensor argument"):
        machine.profile(by_address, (1,), torch.tensor([16, 16]), out, N=64)


def test_what_a_config_does_before_its_launch_is_compiled():
    """Descriptors get their blocks from a hook of the config, and only then compile."""
    x, out = torch.rand(16, 16), torch.empty(16, 16)
    with machine.session("sm_80") as session:
        hooked[(1,)](TensorDescriptor(x, [16, 16], [16, 1], [1, 1]), out)
    assert session.launches[0].report.loads.bytes == 1024 and torch.equal(x, out)
    with machine.session("sm_90") as session:
        hooked[(1,)](TensorDescriptor(x, [16, 16], [16, 1], [1, 1]), out)
    assert "copy engine" in session.launches[0].refused


def test_a_policy_that_the_assembler_refuses_is_said_before_any_count():
    with pytest.raises(machine.CompileError, match=r'cache_modifier=".ca" and eviction_policy="evict_last".*Give one'):
        machine.profile(with_policy, (1,), torch.rand(64), torch.empty(64), N=64)


def test_scripts_may_compute_in_bfloat16():
    x = torch.linspace(-3, 3, 64).bfloat16()
    out = torch.empty_like(x)
    with machine.session() as session:
        in_bfloat16[(1,)](x, out, N=64)
    torch.testing.assert_close(out, torch.where(x > 1, x * x + x, -x))
    assert session.launches[0].report.stores.bytes == 128
    with pytest.raises(machine.BFloat16Arithmetic):
        machine.profile(in_bfloat16, (1,), x, out, N=64)


def test_counters_of_nsight_compute_are_read_and_compared():
    names = list(verify.METRICS)
    head = ",".join(f'"{n}"' for n in ["ID", "Kernel Name", *names])
    ours = [data.record_of(p) for p in profiled().launches]
    value = {n: "0" for n in names}
    for kind, group in (("ld", "loads"), ("st", "stores")):
        for what in ("requests", "sectors"):
            value[f"l1tex__t_{what}_pipe_lsu_mem_global_op_{kind}.sum"] = f"{ours[0][group][what]:,}"
    value["launch__registers_per_thread"] = "99"
    row = ",".join(f'"{v}"' for v in ["0", "strided(float*)", *(value[n] for n in names)])
    theirs = verify.parse(f"printed by the script\n{head}\n,,units\n{row}\n")
    assert theirs[0]["kernel"] == "strided"
    text = verify.table(verify.compared(ours, theirs))
    assert "6 of 7 counts equal" in text and "99 on the GPU" in text and "In all: 6 of 7" in text


def test_verify_says_what_it_does_not_compare():
    (one,) = [data.record_of(p) for p in profiled().launches]
    rows = verify.compared([{**one, "autotuned": True}, one], [])
    assert [r["counts"] for r in rows] == [{}, {}] and "tuner's trials" in rows[0]["why"]
    assert "launch 1: not compared: the GPU launched it less often" in verify.table(rows)


@pytest.mark.parametrize("name", ["verify_h200.json", "verify_h200_foreign.json"])
def test_the_page_says_what_verify_found_on_hardware(name):
    """What `verify` wrote there: for three scripts of ours, and for kernels that nobody here wrote."""
    found = json.loads((Path(bench.__file__).parent / "data" / name).read_text())
    assert found["gpu"] == "NVIDIA H200" and found["triton"]
    rows = found["launches"]
    pairs = [pair for row in rows for pair in row["counts"].values()]
    said = f"{sum(a == b for a, b in pairs)} of {len(pairs)} counts equal, in {sum(bool(r['counts']) for r in rows)} launches"
    assert said in PAGE.read_text().replace("\n", " ")

"""Modules that Inductor writes, launched by its own launchers, and functions that `torch.compile` gives."""

import json
import os
import types

import pytest
import torch

from msda_core import machine
from msda_core.device import load_triton
from msda_core.machine.run import inductor
from msda_core.machine.tool import cli

triton = load_triton()
import triton.language as tl  # noqa: E402

#: What Inductor (torch 2.13, capability 9.0) writes for sums over columns, shortened: same decorator, arguments, launch.
MODULE = '''
import torch
from torch._C import _cuda_getCurrentRawStream as get_raw_stream
from torch._inductor.async_compile import AsyncCompile

empty_strided_cuda = torch._C._dynamo.guards._empty_strided_cuda
async_compile = AsyncCompile()

triton_per_fused_1 = async_compile.triton("triton_per_fused_1", """
import triton
import triton.language as tl
from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.hints import AutotuneHint, DeviceProperties, ReductionHint, TileHint
triton_helpers.set_driver_to_gpu()

@triton_heuristics.persistent_reduction(
    size_hints={"x": 512, "r0_": 64},
    reduction_hint=ReductionHint.OUTER,
    filename=__file__,
    triton_meta={"signature": {"in_ptr0": "*fp32", "out_ptr0": "*fp32", "xnumel": "i32", "r0_numel": "i32", "XBLOCK": "constexpr"}, "device": DeviceProperties(type="cuda", index=0, multi_processor_count=132, cc=90, major=9, regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, warp_size=32), "constants": {}, "configs": [{(0,): [["tt.divisibility", 16]], (1,): [["tt.divisibility", 16]], (3,): [["tt.divisibility", 16]]}]},
    inductor_meta={"grid_type": "Grid1D", "kernel_name": "triton_per_fused_1", "mutated_arg_names": [], "optimize_mem": True, "no_x_dim": None, "num_load": 1, "num_store": 1, "num_reduction": 1, "autotune_local_cache": False, "spill_threshold": 16, "store_cubin": False},
)
@triton.jit
def triton_per_fused_1(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 300
    r0_numel = 64
    R0_BLOCK: tl.constexpr = 64
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    tmp0 = tl.load(in_ptr0 + (xindex + 300*r0_index), xmask, eviction_policy="evict_first", other=0.0)
    tmp1 = tl.broadcast_to(tmp0 * 2.0, [XBLOCK, R0_BLOCK])
    tmp3 = tl.where(xmask, tmp1, float("-inf"))
    tmp4 = triton_helpers.max2(tmp3, 1)[:, None].to(tl.float32)
    tl.store(out_ptr0 + (xindex), tmp4, xmask)
""", device_str="cuda")
async_compile.wait(globals())
del async_compile


def call(args):
    x, = args
    args.clear()
    with torch.cuda._DeviceGuard(0):
        torch.cuda.set_device(0)
        buf0 = empty_strided_cuda((300,), (1,), torch.float32)
        raw_stream0 = get_raw_stream(0)
        triton_per_fused_1.run(x, buf0, 300, 64, stream=raw_stream0)
    return (buf0,)


if __name__ == "__main__":
    x = torch.rand(64, 300, device="cuda")
    torch.testing.assert_close(call([x])[0], (2 * x).max(0).values)
'''  # noqa: E501


@pytest.mark.skipif(not os.environ.get("MSDA_ALL"), reason="runs with MSDA_ALL=1: Inductor takes seconds to import")
def test_inductors_launchers_are_followed(tmp_path):
    (tmp_path / "output_code.py").write_text(MODULE)
    assert cli.main(["run", "--quiet", "--json", str(tmp_path / "a.json"), str(tmp_path / "output_code.py")]) == 0
    launches = json.loads((tmp_path / "a.json").read_text())["launches"]
    assert launches and {one["kernel"] for one in launches} == {"triton_per_fused_1"}
    assert all(one["stores"]["sectors"] == 38 and one["loads"]["bytes"] == 4 * 64 * 300 for one in launches)


@triton.jit
def doubled(x_ptr, y_ptr, xnumel, XBLOCK: tl.constexpr):
    offs = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    tl.store(y_ptr + offs, 2 * tl.load(x_ptr + offs, mask=offs < xnumel), mask=offs < xnumel)


def test_a_launcher_of_inductors_shape_is_an_autotuned_launch():
    """Without Inductor: a launcher with its attributes, routed as its own are."""

    class Grid:
        def from_meta(meta, config):
            return types.SimpleNamespace(eval_slow=lambda known: (-(-known["xnumel"] // config["XBLOCK"]), 1, 1))

    class CachingAutotuner:
        triton_meta = {"signature": {"x_ptr": "*fp32", "y_ptr": "*fp32", "xnumel": "i32", "XBLOCK": "constexpr"}}
        inductor_meta: dict = {}
        fn = doubled
        configs = [triton.Config({"XBLOCK": b}, num_warps=1) for b in (64, 128)]  # noqa: RUF012

        def run(self, *args, stream):
            raise AssertionError("its own launcher compiles for a GPU")

        def precompile(self):
            raise AssertionError("there is nothing to compile it for")

    module = types.SimpleNamespace(CachingAutotuner=CachingAutotuner, GridExpr=Grid)
    inductor._route(machine.run.active.current, module)
    x, y = torch.rand(256), torch.empty(256)
    with machine.session() as session:
        CachingAutotuner().precompile()
        CachingAutotuner().run(x, y, 256, stream=0)
    torch.testing.assert_close(y, 2 * x)
    assert [p.launch.grid for p in session.launches] == [(4, 1, 1), (2, 1, 1)]
    assert [(p.autotuned, p.report.loads.sectors) for p in session.launches] == [(True, 32), (True, 32)]

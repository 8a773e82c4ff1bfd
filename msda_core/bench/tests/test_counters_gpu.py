"""Where kernels are normally compiled: the machine must work beside them, and agree with what really runs."""

import pytest
import torch

from msda_core import machine
from msda_core.bench import probes
from msda_core.bench.calibrate import capture
from msda_core.device import load_triton
from msda_core.machine.compile.lower import lower_launch

triton = load_triton()

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.skipif(triton.knobs.runtime.interpret, reason="needs Triton outside interpreter mode"),
]
CASES = {case.name: case for case in probes.CASES}


def test_a_guarded_launch_on_the_gpu_writes_the_gpus_tensors():
    x, y = torch.randn(1000, device="cuda"), torch.zeros(1000, device="cuda")
    with machine.guard():
        probes.probe_copy[(8,)](x, y, 1000, BLOCK=128)
    assert torch.equal(x, y)
    with machine.guard(), pytest.raises(machine.OutOfBounds):
        probes.probe_stride[(1,)](x, y, 1000, BLOCK=128)
    real = torch.zeros_like(y)
    probes.probe_copy[(8,)](x, real, 1000, BLOCK=128)  # and compiling still works afterwards
    assert torch.equal(x, real)


@pytest.mark.parametrize("name", ["copy_f16_ragged", "helper", "row_sum", "gather_rows_f16", "add_rows_bf16"])
def test_the_lowering_is_what_the_gpu_runs(name):
    _, launch, compiled = capture(CASES[name], "cuda")
    capability = torch.cuda.get_device_capability()
    lowering = lower_launch(launch, capability)
    real = machine.Lowering(
        "", 0, compiled.metadata.num_warps, "", compiled.asm["ttgir"], compiled.asm["ptx"], compiled.metadata.shared
    )
    assert [(i.mnemonic, i.line) for i in lowering.instructions] == [(i.mnemonic, i.line) for i in real.instructions]
    assert [o.encoding for o in lowering.operations] == [o.encoding for o in real.operations]
    assert (lowering.registers, lowering.spills > 0) == (compiled.n_regs, compiled.n_spills > 0)


@pytest.mark.parametrize("name", ["row_sum", "gather_rows_f16", "histogram", "add_rows_bf16"])
def test_the_emulation_computes_what_the_gpu_computes(name):
    emulated = {k: v.cuda() for k, v in CASES[name].inputs().items()}
    with machine.guard(undefined=False):
        CASES[name].run(emulated)
    real, _, _ = capture(CASES[name], "cuda")
    for key, value in real.items():
        # Sums in another order: a bfloat16 one is rounded at every addition, by up to 2^-9 of what it was on the way.
        narrow = value.dtype == torch.bfloat16
        rtol, atol = (0.05, 0.05 * value.double().abs().max().item()) if narrow else (1e-4, 1e-4)
        assert torch.allclose(emulated[key].double(), value.double(), rtol=rtol, atol=atol), key


def test_the_operators_own_launcher_takes_no_short_cut_past_the_guard():
    from msda_core.kernels.forward import msda_forward

    t = {k: v.cuda() for k, v in probes.msda_inputs(torch.float32, 2).items()}
    args = (t["value"], t["shapes"], t["starts"], t["loc"], t["attn"])
    real = msda_forward(*args)  # compiled, and kept for the next call
    seen = []
    with machine.guard(observer=seen.append):
        emulated = msda_forward(*args)
    assert seen and torch.allclose(real, emulated, atol=1e-4)

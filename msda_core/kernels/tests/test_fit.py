"""A table that does not fit is no table: no kernel reads past value with what `fit` makes of it."""

import pytest
import torch

from msda_core import device

pytestmark = pytest.mark.skipif(device.NO_TRITON is not None, reason=f"not run: {device.NO_TRITON}")

if device.NO_TRITON is None:
    from msda_core.kernels import merged
    from msda_core.kernels.backward import msda_backward
    from msda_core.kernels.fit import fit
    from msda_core.kernels.forward import msda_forward
    from msda_core.kernels.nearest import nearest_backward, nearest_forward
    from msda_core.kernels.second import msda_jvp, msda_second
    from msda_core.machine.run.guard import guard

S = 30


def table(shapes, starts, dtype=torch.int64):
    return (torch.tensor(t, dtype=dtype, device=device.ACTIVE) for t in (shapes, starts))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize(
    "shapes, starts, fits",
    [
        ([[4, 6], [3, 2]], [0, 24], True),
        ([[4, 6], [4, 6], [3, 2]], [0, 0, 24], True),  # of a ragged call
        ([[1, 1]], [29], True),
        ([[4, 6], [3, 2]], [0, 25], False),
        ([[4, 6], [3, 2]], [-1, 24], False),
        ([[4, 6], [0, 2]], [0, 24], False),
        ([[4, 6], [-3, -2]], [0, 24], False),
        ([[4, 6], [2**31 - 1, 2**31 - 1]], [0, 24], False),
        ([[4, 6], [3, 2]], [0, 2**31 - 1], False),
    ],
)
def test_fit(shapes, starts, fits, dtype):
    shapes, starts = table(shapes, starts, dtype)
    report = torch.zeros(1, dtype=torch.int64, device=device.ACTIVE)
    fitting = fit(shapes, starts, S, report)
    assert all(t.dtype == torch.int32 for t in fitting)
    assert torch.equal(fitting[0], (shapes * fits).int()) and torch.equal(fitting[1], (starts * fits).int())
    assert report.item() == (0 if fits else S + 1)
    assert torch.equal(fit(shapes, starts, S)[0], fitting[0])  # without a report, as in a CUDA graph


def test_tables_past_32_bits():
    assert (fit(*table([[2**32 + 4, 6]], [0]), S)[0] == 0).all()
    assert (fit(*table([[4, 6]], [2**32]), S)[0] == 0).all()


def test_no_kernel_reads_with_a_table_of_zeros(make_call, interpreter):
    call = make_call(levels=((4, 6), (3, 2)))
    call = call._replace(shapes=torch.zeros_like(call.shapes), starts=torch.zeros_like(call.starts))
    direction = [torch.ones_like(t) for t in (call.value, call.loc, call.attn)]
    with guard():
        results = [
            msda_forward(*call.inputs), *msda_backward(*call), nearest_forward(*call.inputs), *nearest_backward(*call),
            msda_jvp(*call.inputs, *direction), *msda_second(*call, *direction),
        ]  # fmt: skip
    assert all((result == 0).all() for result in results)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_no_merged_kernel_reads_with_a_table_of_zeros(make_call, interpreter, dtype):
    levels = ((6, 8), (3, 4))
    call = make_call(levels=levels, Q=None, M=2, D=32, K=4, spread=1.0, dtype=dtype)
    none = torch.zeros_like(call.shapes), torch.zeros_like(call.starts)
    with guard():
        out = merged.merged_forward(call.value, *none, levels, call.loc, call.attn)
        grads = merged.merged_backward(call.value, *none, levels, call.loc, call.attn, call.grad_out)
    assert all((result == 0).all() for result in (out, *grads))

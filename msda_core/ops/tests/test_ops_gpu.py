"""What only a GPU can show: sizes past 2^31, CUDA graphs, streams, no waiting, the sanitizer."""

import pytest
import torch

from msda_core import reference
from msda_core.ops import multi_scale_deformable_attention

pytestmark = pytest.mark.gpu

PYRAMID = ((100, 167), (50, 84), (25, 42), (13, 21))


def gradients(call, **options):
    leaves = [t.detach().clone().requires_grad_() for t in (call.value, call.loc, call.attn)]
    out = multi_scale_deformable_attention(leaves[0], call.shapes, call.starts, leaves[1], leaves[2], **options)
    return out.detach(), torch.autograd.grad(out, leaves, call.grad_out)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", ["decoder", "encoder"])
def test_at_the_sizes_of_a_detector(make_call, assert_close, size, dtype):
    Q = 300 if size == "decoder" else sum(h * w for h, w in PYRAMID)
    call = make_call(B=1, Q=Q, M=8, D=32, K=4, levels=PYRAMID, dtype=dtype)
    out, grads = gradients(call)
    # x * W rounds at 167 pixels, not at 1: float32 locations are good to 1e-5 of a pixel
    assert_close(out, reference.exact(*call.inputs), 1e-5 if dtype == torch.float32 else None)
    # and beside a pixel's centre the slope jumps: no telling which of its two sides a rounded location means
    pixel = call.loc.double() * call.shapes.flip(-1)[:, None] - 0.5
    grads[1][(pixel - pixel.round()).abs() < 1e-3] = 0
    exact_grads = reference.exact_gradients(*call)
    exact_grads[1][(pixel - pixel.round()).abs() < 1e-3] = 0
    sums = {torch.float32: 3e-5, torch.float16: 6e-3, torch.bfloat16: 4e-2}[dtype]  # 64 roundings a pixel, encoder
    for grad, exact in zip(grads, exact_grads):
        assert_close(grad, exact, sums)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("D", [30, 32, 64, 71, 1025, 2048, 3096])
def test_channel_counts_at_size(make_call, assert_close, D, dtype):
    call = make_call(B=2, Q=50, M=4, D=D, K=4, levels=((20, 31), (10, 16), (5, 8)), dtype=dtype)
    out, grads = gradients(call)
    assert_close(out, reference.exact(*call.inputs))
    for grad, exact in zip(grads, reference.exact_gradients(*call)):
        assert_close(grad, exact, {torch.float32: 5e-6, torch.float16: 3e-3}[dtype])


def test_one_point_of_one_level(make_call, assert_close):
    """The backward's cut takes several queries at once here, so that no half is added alone."""
    call = make_call(B=1, Q=18_000, M=8, D=32, K=1, levels=((100, 134),), dtype=torch.float16)
    out, grads = gradients(call)
    assert_close(out, reference.exact(*call.inputs))
    for grad, exact in zip((grads[0], grads[2]), reference.exact_gradients(*call)[::2]):
        assert_close(grad, exact, 3e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_halves_added_alone(make_call, assert_close, dtype):
    call = make_call(B=2, Q=50, M=4, D=33, K=4, levels=((20, 31), (10, 16), (5, 8)), dtype=dtype)
    exact = reference.exact_gradients(*call)[0]
    tolerance = {torch.float16: 3e-3, torch.bfloat16: 2e-2}[dtype]
    assert_close(gradients(call, fp32_grad_accum=False)[1][0], exact, tolerance)
    assert_close(gradients(call)[1][0], exact, tolerance / 4)


def test_thirteen_points_and_eight_levels(make_call, assert_close):
    call = make_call(B=2, Q=40, M=8, D=32, K=13, levels=((9, 14), (5, 7), (3, 4), (2, 2)) * 2, dtype=torch.float16)
    out, grads = gradients(call)
    assert_close(out, reference.exact(*call.inputs))
    for grad, exact in zip(grads, reference.exact_gradients(*call)):
        assert_close(grad, exact, 4e-3)


def test_more_than_2_31_elements_over_the_batch(make_call, assert_close):
    call = make_call(B=2, Q=4, M=8, D=32, K=4, levels=PYRAMID, dtype=torch.float16)
    B = 2**31 // call.value[0].numel() + 2
    value = torch.zeros(B, *call.value.shape[1:], dtype=torch.float16, device="cuda")
    value[-2:] = call.value
    loc, attn, grad_out = (t[:1].expand(B, *t.shape[1:]).clone() for t in (call.loc, call.attn, call.grad_out))
    loc[-2:], attn[-2:], grad_out[-2:] = call.loc, call.attn, call.grad_out
    assert value.numel() > 2**31
    out, grads = gradients(call._replace(value=value, loc=loc, attn=attn, grad_out=grad_out))
    assert (out[:-2] == 0).all()
    assert_close(out[-2:], reference.exact(*call.inputs))
    for grad, exact in zip(grads, reference.exact_gradients(*call)):
        assert_close(grad[-2:], exact, 2e-3)


def test_more_than_2_31_elements_in_one_batch_item(make_call, assert_close):
    H, W, M, D = 512, 513, 8, 1024
    call = make_call(B=1, Q=3, M=M, D=1, K=4, levels=((H, W),), dtype=torch.float16)
    value = torch.empty(1, H * W, M, D, dtype=torch.float16, device="cuda").normal_()
    assert value.numel() > 2**31
    call.loc[0, 0, :, 0, :2] = torch.tensor([0.999, 0.9995], device="cuda")  # the far end
    grad_out = torch.randn(1, 3, M * D, device="cuda", dtype=torch.float16)
    out, grads = gradients(call._replace(value=value, grad_out=grad_out))
    some = slice(D - 8, D)
    part = call._replace(value=value[..., some], grad_out=grad_out.view(1, 3, M, D)[..., some].reshape(1, 3, -1))
    assert_close(out.view(1, 3, M, D)[..., some].reshape(1, 3, -1), reference.exact(*part.inputs))
    assert_close(grads[0][..., some], reference.exact_gradients(*part)[0], 2e-3)


def test_cuda_graph_of_forward_and_backward(make_call, assert_close):
    call = make_call(B=2, Q=50, M=8, D=32, K=4, levels=((20, 31), (10, 16)))
    leaves = [t.clone().requires_grad_() for t in (call.value, call.loc, call.attn)]

    def step():
        out = multi_scale_deformable_attention(leaves[0], call.shapes, call.starts, leaves[1], leaves[2])
        return out, torch.autograd.grad(out, leaves, call.grad_out)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        out, grads = step()
    other = make_call(B=2, Q=50, M=8, D=32, K=4, levels=((20, 31), (10, 16)), seed=5)
    with torch.no_grad():
        for leaf, new in zip(leaves, (other.value, other.loc, other.attn)):
            leaf.copy_(new)
    graph.replay()
    other = other._replace(grad_out=call.grad_out)
    assert_close(out, reference.exact(*other.inputs))
    for grad, exact in zip(grads, reference.exact_gradients(*other)):
        assert_close(grad, exact, 5e-6)


@pytest.mark.parametrize("starts", ["given", "none"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_known_table_costs_no_waiting(make_call, starts, deterministic):
    call = make_call(B=2, Q=50, M=8, D=32, K=4, levels=((20, 31), (10, 16)))
    value = call.value.clone().requires_grad_()

    def step():
        out = multi_scale_deformable_attention(
            value, call.shapes, call.starts if starts == "given" else None, call.loc, call.attn,
            deterministic=deterministic,
        )  # fmt: skip
        torch.autograd.grad(out, value, call.grad_out)

    step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_runs_on_the_current_stream(make_call, assert_close):
    call = make_call(B=1, Q=50, M=8, D=32, K=4, levels=((20, 31),))
    late = torch.zeros_like(call.value)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        late.copy_(call.value)
        out = multi_scale_deformable_attention(late, *call.inputs[1:])
    stream.synchronize()
    assert_close(out, reference.exact(*call.inputs))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="not run: needs two CUDA GPUs")
def test_on_a_device_that_is_not_the_current_one(make_call, assert_close):
    call = make_call(device=torch.device("cuda", 1))
    assert torch.cuda.current_device() == 0
    out, grads = gradients(call)
    assert out.device.index == 1
    assert_close(out, reference.exact(*call.inputs))
    first = make_call()
    with pytest.raises(ValueError, match="must be on cuda:1 as value is, got cuda:0"):
        multi_scale_deformable_attention(call.value, call.shapes, call.starts, first.loc, call.attn)
    with pytest.raises(ValueError, match="on the CPU or on cuda:1 as value is, got cuda:0"):
        multi_scale_deformable_attention(call.value, first.shapes, first.starts, call.loc, call.attn)


def test_mixed_devices_are_refused(make_call):
    call = make_call()
    with pytest.raises(ValueError, match="attention_weights must be on cuda:0 as value is, got cpu. Was only part"):
        multi_scale_deformable_attention(*call.inputs[:4], call.attn.cpu())


def test_misaligned_tensors(make_call, assert_close):
    """A pointer that is not 16-byte aligned needs another compilation, not a crash."""
    call = make_call(D=32)
    aligned, _ = gradients(call)

    def shift(tensor):
        storage = torch.empty(tensor.numel() + 1, dtype=tensor.dtype, device=tensor.device)
        return storage[1:].copy_(tensor.flatten()).view(tensor.shape)

    moved = call._replace(value=shift(call.value), loc=shift(call.loc), attn=shift(call.attn))
    assert moved.value.data_ptr() % 16
    out, _ = gradients(moved)
    assert_close(out, reference.exact(*call.inputs))
    assert_close(aligned, reference.exact(*call.inputs))


def test_default_compiler(make_call, assert_close):
    """torch.compile with inductor, forward and backward, no graph break."""
    call = make_call(B=2, Q=20, M=8, D=32, K=4, levels=((20, 31), (10, 16)))
    compiled = torch.compile(
        lambda v, p, a: multi_scale_deformable_attention(2 * v, call.shapes, call.starts, p, a).sin(), fullgraph=True
    )
    leaves = [t.clone().requires_grad_() for t in (call.value, call.loc, call.attn)]
    out = compiled(*leaves)
    out.backward(call.grad_out)
    doubled = call._replace(value=2 * call.value)
    exact = reference.exact(*doubled.inputs)
    assert_close(out.detach(), exact.sin())
    slope = (call.grad_out.double() * exact.cos()).to(call.grad_out.dtype)
    assert_close(leaves[0].grad, 2 * reference.exact_gradients(*doubled._replace(grad_out=slope))[0], 5e-6)


def test_wrong_table_on_the_gpu_is_refused(make_call):
    call = make_call()
    with pytest.raises(ValueError, match="must hold S = 33 pixels"):
        wrong = torch.tensor([[4, 6], [3, 3]], device="cuda")
        multi_scale_deformable_attention(call.value, wrong, None, call.loc, call.attn)
    call.shapes[1, 1] = 3  # a known table, changed in place
    with pytest.raises(ValueError, match="must hold S = 33 pixels"):
        multi_scale_deformable_attention(*call.inputs)


SANITIZED = """
import torch
from msda_core.kernels.backward import msda_backward
from msda_core.kernels.forward import msda_forward
from msda_core.kernels import tilings
from msda_core.inputs import make_call
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    for size in (dict(B=2, Q=5, M=3, D=30, K=3), dict(B=1, Q=300, M=8, D=32, K=4, levels=((10, 17), (5, 9), (3, 4), (2, 2))),
                 dict(B=1, Q=2100, M=8, D=32, K=4, levels=((10, 17), (5, 9))), dict(B=1, Q=3, M=2, D=1025, K=2)):
        call = make_call(dtype=dtype, device="cuda", **size)
        msda_forward(*call.inputs)
        msda_backward(*call)
        msda_backward(*call, deterministic=True)
        msda_backward(*call, fp32_grad_accum=True)
        for name in ("element", "point", "query"):
            getattr(tilings, name + "_forward")(*call.inputs)
torch.cuda.synchronize()
print("ran")
"""


def test_sanitizer_finds_nothing(sanitize):
    sanitize(SANITIZED)


def reused(like, old):
    """A copy of `like` at the address and version of a tensor that is gone: until then, no address is given twice."""
    kept = []
    for _ in range(4096):
        kept.append(like.clone())
        if (kept[-1].data_ptr(), kept[-1]._version) == old:
            return kept[-1]
    raise AssertionError("the allocator did not give the address again")


@pytest.mark.parametrize("bad", [[[4, 6], [3000, 2000]], [[4, 6], [-3, 2]], [[2**31 - 1, 2**31 - 1], [3, 2]]], ids=str)
def test_a_bad_table_at_a_known_address_reads_nothing(make_call, bad):
    """As a model leaves it that makes its table anew in every step. Nobody waits, nothing is read, the next call says so."""
    call = make_call()
    starts = call.starts.tolist()
    again, table = torch.tensor(call.shapes.tolist(), device="cuda"), torch.tensor(bad, device="cuda")
    good = again.clone()
    assert multi_scale_deformable_attention(call.value, good, starts, call.loc, call.attn).abs().sum() > 0
    known = good.data_ptr(), good._version
    del good
    rebuilt = reused(again, known)
    out = multi_scale_deformable_attention(call.value, rebuilt, starts, call.loc, call.attn)
    torch.testing.assert_close(out, multi_scale_deformable_attention(call.value, again, starts, call.loc, call.attn))
    del rebuilt
    wrong = reused(table, known)
    torch.cuda.set_sync_debug_mode("error")
    try:
        out, grads = gradients(call._replace(shapes=wrong, starts=starts))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert (out == 0).all() and all((grad == 0).all() for grad in grads)
    another = again.clone()
    with pytest.raises(ValueError, match="a level of an earlier call must lie inside the S = 30 pixels.*made anew"):
        multi_scale_deformable_attention(call.value, another, starts, call.loc, call.attn)
    multi_scale_deformable_attention(call.value, another, starts, call.loc, call.attn)  # said once


def test_a_table_of_inference_mode_and_of_a_graph(make_call, assert_close):
    call = make_call(B=2, Q=50, M=8, D=32, K=4, levels=((20, 31), (10, 16)))
    with torch.inference_mode():
        shapes = call.shapes.clone()
        for _ in range(2):
            assert_close(
                multi_scale_deformable_attention(call.value, shapes, None, call.loc, call.attn),
                reference.exact(*call.inputs),
            )
    fresh = call.shapes.clone()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # a table that nobody has seen: the graph checks it whenever it is replayed
        out = multi_scale_deformable_attention(call.value, fresh, call.starts, call.loc, call.attn)
    graph.replay()
    assert_close(out, reference.exact(*call.inputs))
    fresh[1, 0] = 10**6
    graph.replay()
    assert (out == 0).all()


SANITIZED_TOO = """
import torch
from msda_core.kernels.fit import fit
from msda_core.kernels.nearest import nearest_backward, nearest_forward
from msda_core.kernels.second import msda_jvp, msda_second
from msda_core.inputs import make_call
from msda_core.ops import multi_scale_deformable_attention
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    for size in (dict(B=2, Q=5, M=3, D=30, K=3), dict(B=1, Q=300, M=8, D=32, K=4, levels=((10, 17), (5, 9), (3, 4), (2, 2))),
                 dict(B=1, Q=3, M=2, D=71, K=2)):
        call = make_call(dtype=dtype, device="cuda", **size)
        call.loc[0, 0, 0, 0, 0] = torch.tensor([float("nan"), 3e9])
        direction = [torch.randn_like(t) for t in (call.value, call.loc, call.attn)]
        msda_jvp(*call.inputs, *direction)
        nearest_forward(*call.inputs)
        for deterministic in (False, True):
            msda_second(*call, *direction, deterministic)
            nearest_backward(*call, None, deterministic)
        bad = fit(call.shapes * 1000, call.starts, call.value.shape[1])
        msda_jvp(call.value, *bad, *call.inputs[3:], *direction)
        msda_second(call.value, *bad, *call[3:], *direction)
        nearest_forward(call.value, *bad, *call.inputs[3:])
        nearest_backward(call.value, *bad, *call[3:])
    call = make_call(B=1, Q=40, M=8, D=32, K=12, levels=((9, 14), (5, 7), (3, 4)), dtype=dtype, device="cuda")
    leaves = [call.value.requires_grad_(), call.loc[:, :, :, 0].clone().requires_grad_(), call.attn[:, :, :, 0].clone().requires_grad_()]
    for method in ("default", "discrete"):
        out = multi_scale_deformable_attention(leaves[0], call.shapes, None, *leaves[1:], points_per_level=(3, 6, 3), method=method)
        out.backward(call.grad_out)
torch.cuda.synchronize()
print("ran")
"""


def test_sanitizer_finds_nothing_in_what_ragged_calls_and_second_derivatives_run(sanitize):
    sanitize(SANITIZED_TOO)

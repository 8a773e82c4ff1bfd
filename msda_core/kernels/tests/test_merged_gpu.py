"""The merged kernels on a GPU: every spread of the offsets against float64, PTX against its twins, graphs, the sanitizer."""

import pytest
import torch

from msda_core import device, inputs, reference
from msda_core.ops import merging, multi_scale_deformable_attention

pytestmark = pytest.mark.gpu

if device.NO_TRITON is None:
    from msda_core.device import tl, triton
    from msda_core.kernels import merged
    from msda_core.kernels.backward import msda_backward
    from msda_core.kernels.merged import packed

PYRAMID = ((100, 167), (50, 84), (25, 42), (13, 21))
HALF = ((50, 84), (25, 42), (13, 21))  # three levels, as in Mask2Former
SPREADS = [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, "initial", "uniform"]
FLOATS = [torch.float32, torch.float16, torch.bfloat16]


def encoder_call(make_call, spread=2.0, levels=HALF, B=2, M=8, dtype=torch.float16, loc_dtype=None, seed=0):
    Q = sum(h * w for h, w in levels)
    call = make_call(B=B, Q=Q, M=M, D=32, K=4, levels=levels, dtype=dtype, loc_dtype=loc_dtype, seed=seed)
    generator = torch.Generator(call.loc.device).manual_seed(seed)
    loc = inputs.encoder_locations(call.loc.shape, levels, spread, call.loc.device, generator)
    return call._replace(loc=loc.to(call.loc.dtype))


def both(call, levels=HALF):
    args = (call.value, call.shapes, call.starts, levels, call.loc, call.attn)
    assert merged.suits(call.value, call.loc, call.attn, levels)
    return merged.merged_forward(*args), merged.merged_backward(*args, call.grad_out)


def error(grad, exact):
    return float((grad.double() - exact).norm() / exact.norm())


def check(call, out, grads, assert_close):
    single = torch.float32 in (call.value.dtype, call.loc.dtype)
    assert_close(out, reference.exact(*call.inputs), 1e-5 if call.value.dtype == torch.float32 else None)
    exact = reference.exact_gradients(*call)
    # a float32 sum is of weights of 16 bits and a grad_out of 16; a 16-bit one has fewer roundings than the plain kernel's
    plain, _, _ = msda_backward(*call, fp32_grad_accum=False)
    bound = 1e-5 if call.value.dtype == torch.float32 else error(plain, exact[0]) * 1.05
    assert_close(grads[0], exact[0], bound, "grad_value")
    # beside a pixel's centre the slope jumps: no telling which of its two sides a rounded location means
    pixel = call.loc.double() * call.shapes.flip(-1)[:, None] - 0.5
    kink = (pixel - pixel.round()).abs() < 1e-3
    ours, truth = grads[1].masked_fill(kink, 0), exact[1].masked_fill(kink, 0)
    assert_close(ours, truth, 3e-5 if single else None, "grad_locations")
    assert_close(grads[2], exact[2], 3e-5 if single else None, "grad_attention")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("spread", SPREADS, ids=str)
def test_every_spread_is_exact(make_call, assert_close, spread, dtype):
    call = encoder_call(make_call, spread, dtype=dtype)
    check(call, *both(call), assert_close)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_at_the_size_of_a_detector(make_call, assert_close, dtype):
    call = encoder_call(make_call, 2.0, PYRAMID, B=1, dtype=dtype)
    check(call, *both(call, PYRAMID), assert_close)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_float32_locations_beside_a_16_bit_value(make_call, assert_close, dtype):
    call = encoder_call(make_call, dtype=dtype, loc_dtype=torch.float32)
    check(call, *both(call), assert_close)


@pytest.mark.parametrize(
    "levels", [PYRAMID[2:3], (*PYRAMID[1:], (7, 11), (4, 6)), ((21, 13), (9, 60), (1, 1), (33, 2))]
)
def test_one_level_five_and_odd_ones(make_call, assert_close, levels):
    call = encoder_call(make_call, 3.0, levels, M=2)
    check(call, *both(call, levels), assert_close)


@pytest.mark.parametrize("where", ["grad_out", "attn"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_where_it_was(make_call, where, bad):
    call = encoder_call(make_call)
    getattr(call, where)[1, 1000].view(8, -1)[3, 5] = bad
    _, grads = both(call)
    for ours, theirs in zip(grads, msda_backward(*call, fp32_grad_accum=False)):
        assert torch.equal(ours.isfinite(), theirs.isfinite())
    assert 0 < grads[0].isfinite().logical_not().sum() < 2000


def test_a_location_that_is_no_place(make_call, assert_close):
    call = encoder_call(make_call)
    call.loc[0, 50:60] = float("nan")
    call.loc[1, 70, :, 1, 2] = float("inf")
    out, grads = both(call)
    assert out.isfinite().all() and all(grad.isfinite().all() for grad in grads)
    check(call, out, grads, assert_close)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_float32_accumulator_rounds_once(make_call, dtype):
    call = encoder_call(make_call, dtype=dtype)
    exact = reference.exact_gradients(*call)[0]
    args = (call.value, call.shapes, call.starts, HALF, call.loc, call.attn, call.grad_out)
    rounded = error(exact.to(dtype), exact)
    assert error(merged.merged_backward(*args, fp32_grad_accum=True)[0], exact) < 1.02 * rounded
    assert error(merged.merged_backward(*args, fp32_grad_accum=False)[0], exact) > 1.2 * rounded


# ------------------------------------------------------------------------------------------------- PTX against its twins

if device.NO_TRITON is None:

    @triton.jit
    def pieces_kernel(x_ptr, y_ptr, out_ptr, N: tl.constexpr, T: tl.constexpr, PTX: tl.constexpr):
        i = tl.arange(0, N)
        x = tl.load(x_ptr + i)
        y = tl.load(y_ptr + i)
        pair = packed.pack(x, y, T, PTX)
        low, high = packed.unpack(pair, T, PTX)
        a, b, c, d = packed.split(x, y, T, PTX)
        other = packed.pack(y, x, T, PTX)
        sum_low, sum_high = packed.sum_of_products((pair, other, pair, pair), (other, pair, pair, other), T, PTX)
        tl.store(out_ptr + i, low.to(tl.float32))
        tl.store(out_ptr + N + i, high.to(tl.float32))
        tl.store(out_ptr + 2 * N + i, a.to(tl.float32))
        tl.store(out_ptr + 3 * N + i, b.to(tl.float32))
        tl.store(out_ptr + 4 * N + i, c.to(tl.float32))
        tl.store(out_ptr + 5 * N + i, d.to(tl.float32))
        tl.store(out_ptr + 6 * N + i, sum_low.to(tl.float32))
        tl.store(out_ptr + 7 * N + i, sum_high.to(tl.float32))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_ptx_and_its_twins_agree(dtype):
    N = 1024
    x, y = (torch.randn(2, N, device="cuda") * torch.logspace(-6, 1, N, device="cuda")).unbind()
    T = tl.float16 if dtype == torch.float16 else tl.bfloat16
    found = []
    for ptx in (True, False):
        found.append(torch.empty(8, N, device="cuda"))
        pieces_kernel[(1,)](x, y, found[-1], N=N, T=T, PTX=ptx)
    assert torch.equal(found[0][:6], found[1][:6])
    scale = 3 * x.abs() * y.abs() + x**2 + y**2
    # four roundings against one, each of half a unit in the last place; below the smallest normal number that unit stands still
    unit = torch.finfo(dtype).eps * (scale + torch.finfo(dtype).smallest_normal)
    assert ((found[0][6:] - found[1][6:]).abs() <= 2.5 * unit).all()


# --------------------------------------------------------------------------------------------------------- the operator


def step(call, leaves):
    with merging(True):
        out = multi_scale_deformable_attention(leaves[0], call.shapes, call.starts, leaves[1], leaves[2])
    return out, torch.autograd.grad(out, leaves, call.grad_out)


def leaves_of(call):
    return [t.clone().requires_grad_() for t in (call.value, call.loc, call.attn)]


def test_cuda_graph_of_forward_and_backward(make_call, assert_close):
    call, other = encoder_call(make_call), encoder_call(make_call, 4.0, seed=5)
    leaves = leaves_of(call)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step(call, leaves)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        out, grads = step(call, leaves)
    with torch.no_grad():
        for leaf, new in zip(leaves, (other.value, other.loc, other.attn)):
            leaf.copy_(new)
        call.grad_out.copy_(other.grad_out)
    for _ in range(2):  # the second replay finds flags and lists of the first
        graph.replay()
        torch.cuda.synchronize()
        check(other, out.detach(), grads, assert_close)


def test_lists_that_are_not_there_do_not_break_a_capture(make_call, assert_close):
    """Warmed up without merging: the capture hands over to the plain kernels."""
    call = encoder_call(make_call)
    merged.plan._made.clear()
    out = multi_scale_deformable_attention(*call.inputs)
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream), merging(True):
        out = multi_scale_deformable_attention(*call.inputs)
    graph.replay()
    assert_close(out, reference.exact(*call.inputs))
    assert not merged.plan._made


def test_a_known_table_costs_no_waiting(make_call):
    call = encoder_call(make_call)
    leaves = leaves_of(call)
    step(call, leaves)
    torch.cuda.set_sync_debug_mode("error")
    try:
        step(call, leaves)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_default_compiler(make_call, assert_close):
    call = encoder_call(make_call)
    leaves = leaves_of(call)
    compiled = torch.compile(
        lambda v, p, a: multi_scale_deformable_attention(v, call.shapes, call.starts, p, a), fullgraph=True
    )
    with merging(True):
        out = compiled(*leaves)
        out.backward(call.grad_out)
    check(call, out.detach(), [leaf.grad for leaf in leaves], assert_close)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="not run: needs two CUDA GPUs")
def test_on_a_device_that_is_not_the_current_one(make_call, assert_close):
    call = encoder_call(make_call)
    call = call._replace(**{name: tensor.to("cuda:1") for name, tensor in call._asdict().items()})
    leaves = leaves_of(call)
    out, grads = step(call, leaves)
    check(call, out.detach(), grads, assert_close)


SANITIZED = """
import torch
from msda_core.kernels import merged
import functools
from msda_core import inputs
from msda_core.kernels.tests.test_merged_gpu import both, encoder_call
make_call = functools.partial(inputs.make_call, device="cuda")
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    for levels in (((20, 33), (10, 17), (5, 9)), ((9, 50), (4, 24), (2, 3), (1, 1))):
        for spread in (1.0, 6.0, "uniform"):
            call = encoder_call(make_call, spread, levels, B=2, M=2, dtype=dtype)
            both(call, levels)
            merged.merged_backward(
                call.value, call.shapes, call.starts, levels, call.loc, call.attn, call.grad_out, fp32_grad_accum=True
            )
    call = encoder_call(make_call, 2.0, levels, B=1, M=2, dtype=dtype)
    call.grad_out[0, 77] = float("nan")
    call.loc[0, 30:40] = float("inf")
    both(call, levels)
torch.cuda.synchronize()
print("ran")
"""


def test_sanitizer_finds_nothing(sanitize):
    sanitize(SANITIZED)

"""The kernels against float64, on the active device: compiled on a GPU, interpreted elsewhere."""

import itertools
import math

import pytest
import torch

from msda_core import device, reference
from msda_core.conftest import only_tritons_own_sum

pytestmark = [
    pytest.mark.skipif(device.NO_TRITON is not None, reason=f"not run: {device.NO_TRITON}"),
    pytest.mark.usefixtures("poisoned"),
]

if device.NO_TRITON is None:
    from msda_core.device import tl, triton
    from msda_core.kernels import backward, forward, tilings
    from msda_core.kernels.backward import msda_backward
    from msda_core.kernels.config import MAX_BATCH, LaunchConfig
    from msda_core.kernels.forward import msda_forward

    @triton.jit
    def bound_kernel(x_ptr, out_ptr):
        offs = tl.arange(0, 4)
        x = tl.load(x_ptr + offs)
        tl.store(out_ptr + offs, tl.minimum(tl.maximum(x, -2.0), 2.0))
        tl.store(out_ptr + 4 + offs, tl.clamp(x, -2.0, 2.0))
        tl.store(out_ptr + 8 + offs, tl.minimum(x, 2.0, propagate_nan=tl.PropagateNan.ALL))
        tl.store(out_ptr + 12 + offs, tl.clamp(x, -2.0, 2.0, propagate_nan=tl.PropagateNan.ALL))


FLOATS = [torch.float32, torch.float16, torch.bfloat16]
TENSORS = ("grad_value", "grad_sampling_locations", "grad_attention_weights")

#: B, Q, M, D, K, levels: no two alike, blocks below, on and past their edge, H != W.
SIZES = [
    dict(B=2, Q=3, M=2, D=5, K=3, levels=((4, 6), (3, 2))),
    dict(B=1, Q=1, M=1, D=1, K=1, levels=((5, 3),)),
    dict(B=1, Q=2, M=3, D=33, K=2, levels=((2, 7), (1, 1), (6, 3))),
    dict(B=1, Q=2, M=2, D=32, K=13, levels=((4, 6),)),
    dict(B=3, Q=4, M=1, D=8, K=2, levels=((1, 9), (9, 1))),
    dict(B=1, Q=5, M=3, D=16, K=1, levels=((5, 3),)),
]


def check_gradients(call, grads, assert_close, tolerance=None):
    exact = reference.exact_gradients(*call)
    for name, grad, truth, like in zip(TENSORS, grads, exact, (call.value, call.loc, call.attn)):
        assert grad.dtype == like.dtype
        assert_close(grad, truth, tolerance, name)


#: Every size in one dtype, and every dtype at a size; on a GPU all of both.
CALLS = [(size, dtype) for n, size in enumerate(SIZES) for m, dtype in enumerate(FLOATS)
         if not device.INTERPRETED or n == 0 or n % 3 == m]  # fmt: skip


@pytest.mark.parametrize("size, dtype", CALLS, ids=str)
def test_forward_is_exact(make_call, assert_close, size, dtype):
    call = make_call(**size, dtype=dtype)
    out = msda_forward(*call.inputs)
    assert out.dtype == dtype
    assert_close(out, reference.exact(*call.inputs))


@pytest.mark.parametrize("size, dtype", CALLS, ids=str)
def test_gradients_are_exact(make_call, assert_close, size, dtype):
    call = make_call(**size, dtype=dtype)
    collisions = {torch.float16: 2e-3, torch.bfloat16: 2e-2}.get(dtype)  # sums of several 16-bit roundings
    check_gradients(call, msda_backward(*call), assert_close, collisions)


CONFIGS = [
    dict(BLOCK_Q=1, BLOCK_M=1, BLOCK_P=8, BLOCK_D=8, num_warps=1),
    dict(BLOCK_Q=4, BLOCK_M=1, BLOCK_P=2, BLOCK_D=16, num_warps=2),
    dict(BLOCK_Q=2, BLOCK_M=2, BLOCK_P=1, BLOCK_D=4, num_warps=1, UNROLL=2),
    dict(BLOCK_Q=8, BLOCK_M=4, BLOCK_P=4, BLOCK_D=8, num_warps=4, EVICT="evict_first"),
]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_any_config_gives_the_same_result(make_call, assert_close, config):
    call = make_call(B=1, Q=3, M=3, D=5, K=2, levels=((4, 6), (3, 2)))
    config = LaunchConfig(**config)
    assert_close(msda_forward(*call.inputs, config), reference.exact(*call.inputs))
    check_gradients(call, msda_backward(*call, config=config), assert_close)


def test_tiles_stay_small_enough_for_registers():
    sizes = itertools.product(
        (1, 300, 22223), (1, 3, 30, 32, 64, 71, 128, 1025, 3096), ((1, 1), (4, 4), (4, 13), (8, 64)), (2, 4)
    )
    for Q, D, (L, K), itemsize in sizes:
        for choose in (forward.forward_config, backward.backward_config):
            config = choose(2, Q, 8, D, L, K, itemsize)
            assert config.BLOCK_Q * config.BLOCK_M * config.BLOCK_P * config.BLOCK_D <= 64 * 32 * config.num_warps, (
                config
            )
            assert all(block & (block - 1) == 0 for block in config[:4]), f"tl.arange needs powers of two: {config}"


def test_many_queries_loop_over_points(make_call, assert_close):
    """The encoder's way of cutting, at a size the interpreter can bear."""
    call = make_call(B=1, Q=9, M=2, D=32, K=1)
    for itemsize in (2, 4):
        config = forward.forward_config(2, 22223, 8, 32, 4, 4, itemsize)
        assert config.BLOCK_P == 1
        assert_close(msda_forward(*call.inputs, config), reference.exact(*call.inputs))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_float32_locations_beside_a_16_bit_value(make_call, assert_close, dtype):
    call = make_call(levels=((40, 167), (3, 2)), dtype=dtype, loc_dtype=torch.float32)
    assert_close(msda_forward(*call.inputs), reference.exact(*call.inputs))
    grads = msda_backward(*call)
    assert [g.dtype for g in grads] == [dtype, torch.float32, torch.float32]
    check_gradients(call, grads, assert_close, 2e-2 if dtype == torch.bfloat16 else 2e-3)


def test_starts_are_honoured_and_gaps_never_read(make_call, assert_close):
    call = make_call(gap=3)  # the gaps are NaN
    out = msda_forward(*call.inputs)
    clean = call._replace(value=call.value.nan_to_num())
    assert_close(out, reference.exact(*clean.inputs))
    grads = msda_backward(*call)
    check_gradients(clean, grads, assert_close)
    assert (grads[0][:, :3] == 0).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1e30, -1e30, 3e9])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_location_that_is_no_place_contributes_nothing(make_call, assert_close, bad, axis):
    call = make_call(Q=2)
    call.loc[0, 0, 1, 0, 1, axis] = bad
    out = msda_forward(*call.inputs)
    assert out.isfinite().all()
    assert_close(out, reference.exact(*call.inputs))
    grad_value, grad_loc, grad_attn = grads = msda_backward(*call)
    assert all(grad.isfinite().all() for grad in grads)
    assert (grad_loc[0, 0, 1, 0, 1] == 0).all() and grad_attn[0, 0, 1, 0, 1] == 0
    check_gradients(call, grads, assert_close)


def test_an_infinite_pixel_stays_where_it_is(make_call):
    """A point outside must not touch the border pixel, not even with weight zero: 0 * inf is NaN."""
    call = make_call(Q=1, M=1, K=1, levels=((3, 4),))
    call.value[:, 0] = float("inf")
    call.loc[...] = -0.5
    assert (msda_forward(*call.inputs) == 0).all()
    assert all((grad == 0).all() for grad in msda_backward(*call))


def test_locations_on_the_borders(make_call, assert_close):
    """At -1, -0.5, 0, W - 1, W - 0.5 and W pixels: the last pixel that counts, and the first that does not."""
    H, W = 3, 5
    x = (torch.tensor([-1, -0.5, 0, W - 1, W - 0.5, W]) + 0.5) / W
    y = (torch.tensor([-1, -0.5, 0, H - 1, H - 0.5, H]) + 0.5) / H
    call = make_call(Q=6, M=1, K=6, levels=((H, W),))
    call.loc[0, :, 0, 0, :, 0] = x[:, None]
    call.loc[0, :, 0, 0, :, 1] = y[None, :]
    assert_close(msda_forward(*call.inputs), reference.exact(*call.inputs))
    grad_value, _, grad_attn = msda_backward(*call)
    exact = reference.exact_gradients(*call)
    assert_close(grad_value, exact[0])
    assert_close(grad_attn, exact[2])


@pytest.mark.parametrize("table", [torch.int32, torch.int64], ids=str)
def test_tables_of_either_width(make_call, assert_close, table):
    call = make_call(table=table)
    assert_close(msda_forward(*call.inputs), reference.exact(*call.inputs))


def test_non_contiguous_input(make_call, assert_close):
    call = make_call(B=2, Q=3, M=2, D=6)
    twisted = call._replace(
        value=call.value.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2),
        loc=call.loc.flip(-1).contiguous().flip(-1),
        attn=call.attn.transpose(1, 4).contiguous().transpose(1, 4),
        shapes=call.shapes.T.contiguous().T,
        grad_out=call.grad_out.mT.contiguous().mT,
    )
    assert not any(t.is_contiguous() for t in (twisted.value, twisted.attn, twisted.shapes, twisted.grad_out))
    assert_close(msda_forward(*twisted.inputs), reference.exact(*call.inputs))
    check_gradients(call, msda_backward(*twisted), assert_close)


@pytest.mark.parametrize("empty", [dict(B=0), dict(Q=0), dict(K=0)], ids=str)
def test_empty_calls(make_call, empty):
    call = make_call(**empty)
    assert (msda_forward(*call.inputs) == 0).all()
    for grad, like in zip(msda_backward(*call), (call.value, call.loc, call.attn)):
        assert grad.shape == like.shape and (grad == 0).all()


def test_wide_offsets_give_the_same(make_call, assert_close, monkeypatch):
    """The 64-bit kernels, at a size where 32 bits would do."""
    call = make_call()
    for module in (forward, backward):
        monkeypatch.setattr(module, "offset_type", lambda *sizes: forward.tl.int64)
        monkeypatch.setattr(module, "_plan", module._plan.__wrapped__)  # no plan made before
    assert_close(msda_forward(*call.inputs), reference.exact(*call.inputs))
    check_gradients(call, msda_backward(*call), assert_close)


def test_offsets_widen_where_one_batch_item_overflows():
    from msda_core.kernels.config import offset_type

    S, M, D = 2**31 // (8 * 32), 8, 32
    assert offset_type(S - 1, 300, M, D, 4, 4) == forward.tl.int32
    assert offset_type(S, 300, M, D, 4, 4) == forward.tl.int64
    assert offset_type(100, 2**31 // (2 * 8 * 16), 8, 32, 4, 4) == forward.tl.int64


def test_a_grid_past_the_limits_is_refused():
    config = forward.forward_config(1, 1, 8, 32, 4, 4, 4)
    with pytest.raises(ValueError, match=r"at most \(2\^31 - 1, 65535, 65535\) programs .* Are the heads folded"):
        config.grid(1, 1, 65536 * config.BLOCK_M)
    with pytest.raises(ValueError, match="at most"):
        config.grid(MAX_BATCH + 1, 1, 8)


def test_more_batch_items_than_a_grid_has(make_call, assert_close, monkeypatch):
    for module in (forward, backward):
        monkeypatch.setattr(module, "MAX_BATCH", 2)
    call = make_call(B=5, Q=2, M=1)
    assert_close(msda_forward(*call.inputs), reference.exact(*call.inputs))
    check_gradients(call, msda_backward(*call), assert_close)


def colliding(make_call, dtype=torch.float32):
    """Every point on one pixel, contributions of very different size."""
    call = make_call(Q=16, M=1, D=4, K=4, levels=((1, 1),), dtype=dtype)
    call.loc[...] = 0.5
    return call._replace(grad_out=call.grad_out * torch.logspace(-4, 4, 16).to(call.grad_out)[:, None])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_deterministic_backward_repeats_bitwise_in_any_order(make_call, assert_close, dtype):
    call = colliding(make_call, dtype)
    order = torch.randperm(16, generator=torch.Generator().manual_seed(3)).to(call.loc.device)
    shuffled = call._replace(loc=call.loc[:, order], attn=call.attn[:, order], grad_out=call.grad_out[:, order])
    first = msda_backward(*call, deterministic=True)
    again = msda_backward(*shuffled, deterministic=True)
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1][:, order], again[1]) and torch.equal(first[2][:, order], again[2])
    check_gradients(call, first, assert_close)


@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1e6, 1e30])
def test_deterministic_unit_follows_the_gradient(make_call, assert_close, scale):
    call = make_call()
    call = call._replace(grad_out=call.grad_out * scale)
    assert_close(msda_backward(*call, deterministic=True)[0], reference.exact_gradients(*call)[0])


def test_deterministic_backward_of_zero_and_of_nan(make_call, assert_close):
    call = make_call()
    zero = call._replace(grad_out=torch.zeros_like(call.grad_out))
    assert (msda_backward(*zero, deterministic=True)[0] == 0).all()
    exact = reference.exact_gradients(*call)[0]
    call.grad_out[0, 0, 0] = float("nan")
    grad = msda_backward(*call, deterministic=True)[0]
    assert grad[0, :, 0, 0].isnan().all()
    assert_close(grad[0, :, 1], exact[0, :, 1])
    assert_close(grad[0, :, 0, 1:], exact[0, :, 0, 1:])


@pytest.mark.parametrize("outlier", [1e15, 1e18, 1e30])
def test_deterministic_sum_of_one_channel_bears_the_outlier_of_another(make_call, assert_close, outlier):
    """One gradient past all measure, in channel 3 of head 1 of batch item 0: it costs that channel, and no other."""
    call = make_call(B=2, M=3)
    exact = reference.exact_gradients(*call)[0]
    call.grad_out.view(2, 3, 3, 8)[0, 1, 1, 3] = outlier
    grad = msda_backward(*call, deterministic=True)[0].double()
    spoilt = reference.exact_gradients(*call)[0]
    assert_close(grad[0, :, 1, 3].float(), spoilt[0, :, 1, 3])
    for tensor in (grad, exact):
        tensor[0, :, 1, 3] = 0
    assert_close(grad.float(), exact)


def test_a_deterministic_contribution_is_rounded_no_more_than_is_said(make_call):
    """What `units_per_one` promises: N contributions of c are off by less than N units of c * N / 2^60."""
    call = make_call(Q=16, K=4)
    unit = 1 / backward.units_per_one(call.grad_out, call.attn).double()
    largest = (call.grad_out.unflatten(2, (2, 8)).abs() * call.attn.flatten(3).amax(3)[..., None]).amax(1).double()
    points = 16 * 2 * 4
    assert (unit <= largest * points / 2.0**60).all() and (unit > largest * points / 2.0**64).all()


def test_float32_accumulator_rounds_once(make_call, assert_close):
    """4096 contributions of 1/4096 of the first one: a 16-bit sum does not see the small ones."""
    call = make_call(Q=8, M=1, D=1, K=512, levels=((1, 1),), dtype=torch.float16)
    call.loc[...] = 0.5
    call.attn[...] = 2**-12
    call.attn[:, 0, :, :, 0] = 1.0
    call = call._replace(grad_out=torch.ones_like(call.grad_out))
    exact = reference.exact_gradients(*call)[0]
    config = LaunchConfig(1, 1, 64, 1, 1)
    wide = msda_backward(*call, fp32_grad_accum=True, config=config)[0]
    assert wide.dtype == torch.float16
    assert_close(wide, exact, 5e-4)
    native = msda_backward(*call, fp32_grad_accum=False, config=config)[0]
    assert (native.double() - exact).norm() > 5e-2 * exact.norm()


def test_accumulator_follows_the_hardware(monkeypatch):
    gpu = torch.device("cuda", 0)
    for native in (True, False):
        monkeypatch.setattr(backward, "INTERPRETED", False)
        monkeypatch.setattr(backward, "_adds_bfloat16", lambda device, native=native: native)
        assert backward.accumulator_dtype(torch.float32, gpu, 32) == torch.float32
        assert backward.accumulator_dtype(torch.float16, gpu, 30) == torch.float16
        expected = torch.bfloat16 if native else torch.float32
        assert backward.accumulator_dtype(torch.bfloat16, gpu, 32) == expected
        assert backward.accumulator_dtype(torch.bfloat16, gpu, 32, fp32_grad_accum=False) == torch.bfloat16
        assert backward.accumulator_dtype(torch.float16, gpu, 32, fp32_grad_accum=True) == torch.float32
        assert backward.accumulator_dtype(torch.float16, gpu, 30, contributions=8) == torch.float16
        assert backward.accumulator_dtype(torch.float16, gpu, 30, contributions=9) == torch.float32
        assert backward.accumulator_dtype(torch.float16, gpu, 30, False, contributions=9) == torch.float16
        for dtype in (torch.float32, torch.float16, torch.bfloat16):  # a lone 16-bit addition is a loop
            assert backward.accumulator_dtype(dtype, gpu, 71) == torch.float32


@pytest.mark.parametrize("tiling", ["element", "point", "query"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_tilings_agree(make_call, assert_close, tiling, size):
    call = make_call(**size)
    run = getattr(tilings, f"{tiling}_forward")
    block = {"element": dict(BLOCK=32), "point": dict(BLOCK=16), "query": dict(BLOCK_Q=2)}[tiling]
    assert_close(run(*call.inputs, **block), reference.exact(*call.inputs))
    call.loc[0, 0, 0, 0, 0, 0] = float("nan")
    assert_close(run(*call.inputs, **block), reference.exact(*call.inputs))


@pytest.mark.parametrize("D", [30, 32, 64, 71, 1025, 2048, 3096])
def test_channel_counts_of_public_reports(make_call, assert_close, D):
    call = make_call(Q=1, M=1, D=D, K=1, levels=((3, 4),))
    assert_close(msda_forward(*call.inputs), reference.exact(*call.inputs))
    check_gradients(call, msda_backward(*call), assert_close)


def test_of_a_nan_and_a_number_the_number_wins():
    """As on a GPU, unless asked otherwise; Triton's own interpreter does so only from 3.9 on."""
    x = torch.tensor([math.nan, -math.inf, math.inf, 0.5], device=device.ACTIVE)
    out = torch.zeros(4, 4, device=device.ACTIVE)
    bound_kernel[(1,)](x, out)
    least, most = [-2.0, -2.0, 2.0, 0.5], [math.nan, -math.inf, 2.0, 0.5]
    expected = [least, least, most, [math.nan, -2.0, 2.0, 0.5]]
    assert torch.equal(out.cpu().nan_to_num(7.0, 8.0, 9.0), torch.tensor(expected).nan_to_num(7.0, 8.0, 9.0))


def test_racecheck_excuses_only_a_sums_own_lanes():
    report = "Error: Race reported between Write access at k+0x1 in {}\n====     and Write access at k+{} in {} [9 hazards]\n"
    own = report.format("standard.py:314", "0x1", "standard.py:314")
    assert only_tritons_own_sum(own)
    assert not only_tritons_own_sum(own + report.format("standard.py:314", "0x2", "standard.py:314"))
    assert not only_tritons_own_sum(report.format("backward.py:80", "0x1", "backward.py:80"))
    assert not only_tritons_own_sum(own + "Error: Race reported between Read access at k+0x1 in standard.py:314\n")
    assert not only_tritons_own_sum("")

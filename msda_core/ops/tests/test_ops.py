"""The operator's contract. On the CPU: the reference, and, inside `interpreted()`, the kernels through the same door."""

import contextlib
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

from msda_core import device, reference
from msda_core.ops import interpreted, multi_scale_deformable_attention, tables

CPU = torch.device("cpu")
needs_interpreter = pytest.mark.skipif(not device.INTERPRETED, reason="not run: needs Triton's interpreter")

#: Who computes: the reference on the CPU, the kernels in the interpreter, the kernels on the GPU.
WAYS = [
    pytest.param((CPU, contextlib.nullcontext), id="reference"),
    pytest.param((CPU, interpreted), id="interpreter", marks=needs_interpreter),
    pytest.param((torch.device("cuda"), contextlib.nullcontext), id="gpu", marks=pytest.mark.gpu),
]


@pytest.fixture(params=WAYS)
def way(request):
    where, mode = request.param
    with mode():
        yield where


def leaves(call):
    return [t.detach().clone().requires_grad_() for t in (call.value, call.loc, call.attn)]


def run(call, tables=None, options=(), **keywords):
    """Forward and backward through the public function: (out, three gradients)."""
    value, loc, attn = leaves(call)
    shapes, starts = tables or (call.shapes, call.starts)
    out = multi_scale_deformable_attention(value, shapes, starts, loc, attn, *options, **keywords)
    out.backward(call.grad_out)
    return out.detach(), [value.grad, loc.grad, attn.grad]


def check(call, result, assert_close, tolerance=None):
    out, grads = result
    assert_close(out, reference.exact(*call.inputs), tolerance)
    for grad, exact in zip(grads, reference.exact_gradients(*call)):
        assert_close(grad, exact, tolerance and 4 * tolerance)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_every_dtype(way, make_call, assert_close, dtype):
    call = make_call(B=2, Q=3, M=2, D=5, K=3, dtype=dtype, device=way)
    out, grads = run(call)
    assert out.dtype == dtype and all(grad.dtype == dtype for grad in grads)
    tolerance = {torch.float16: 1e-3, torch.bfloat16: 8e-3}.get(dtype)
    check(call, (out, grads), assert_close, tolerance)


@pytest.mark.parametrize("gap", [0, 2])
@pytest.mark.parametrize("kind", ["lists", "cpu tensors", "int32", "mixed"])
def test_every_kind_of_level_table(way, make_call, assert_close, kind, gap):
    call = make_call(gap=gap, device=way)
    call = call._replace(value=call.value.nan_to_num())
    tables = {
        "lists": (call.shapes.tolist(), call.starts.tolist()),
        "cpu tensors": (call.shapes.cpu(), call.starts.cpu()),
        "int32": (call.shapes.int(), call.starts.int()),
        "mixed": (call.shapes, call.starts.tolist()),
    }[kind]
    check(call, run(call, tables), assert_close)
    if gap == 0:
        check(call, run(call, (tables[0], None)), assert_close)


def test_drop_in_for_mmcv(way, make_call, assert_close):
    """Six positional arguments, the last an im2col_step that does not divide the batch."""
    call = make_call(B=3, device=way)
    check(call, run(call, options=(64,)), assert_close)
    check(call, run(call, options=(2,)), assert_close)


@pytest.mark.parametrize("empty", [dict(B=0), dict(Q=0), dict(B=0, Q=0)], ids=str)
def test_empty_calls_stay_attached(way, make_call, empty):
    call = make_call(**empty, device=way)
    out, grads = run(call)
    assert out.shape == (call.value.shape[0], call.loc.shape[1], 16)
    for grad, like in zip(grads, (call.value, call.loc, call.attn)):
        assert grad.shape == like.shape and (grad == 0).all()


def test_swapped_axes_are_not_the_same(way, make_call):
    """On square maps (x, y) and (y, x), (H, W) and (W, H) look alike; here they must not."""
    call = make_call(device=way)
    out = multi_scale_deformable_attention(*call.inputs)
    assert not torch.allclose(out, multi_scale_deformable_attention(*call.inputs[:3], call.loc.flip(-1), call.attn))
    assert not torch.allclose(out, multi_scale_deformable_attention(call.value, call.shapes.flip(-1), *call.inputs[2:]))


def test_inputs_are_left_alone(way, make_call):
    call = make_call(device=way)
    before = [t.clone() for t in call]
    run(call)
    assert all(torch.equal(a, b) for a, b in zip(before, call))


def test_no_gradient_where_none_is_asked(way, make_call):
    call = make_call(device=way)
    assert not multi_scale_deformable_attention(*call.inputs).requires_grad
    value, loc, attn = leaves(call)
    with torch.no_grad():
        assert not multi_scale_deformable_attention(value, call.shapes, call.starts, loc, attn).requires_grad
    out = multi_scale_deformable_attention(value, call.shapes, call.starts, call.loc, call.attn)
    out.sum().backward()
    assert value.grad is not None and loc.grad is None


def test_under_inference_mode_and_after(way, make_call, assert_close):
    call = make_call(device=way, levels=((7, 3), (2, 5)))  # a table no other test has cached
    shapes = call.shapes.tolist()
    with torch.inference_mode():
        out = multi_scale_deformable_attention(call.value, shapes, None, call.loc, call.attn)
        inside = make_call(device=way)
        multi_scale_deformable_attention(*inside.inputs)
    assert_close(out, reference.exact(*call.inputs))
    check(call, run(call, (shapes, None)), assert_close)


@pytest.mark.parametrize("flag", ["argument", "global"])
def test_deterministic_backward_repeats(way, make_call, assert_close, flag):
    call = make_call(Q=8, K=4, levels=((1, 2),), device=way)
    if flag == "global":
        torch.use_deterministic_algorithms(True)
    try:
        keywords = dict(deterministic=True) if flag == "argument" else {}
        first, again = run(call, **keywords), run(call, **keywords)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(first[1], again[1]))
    check(call, first, assert_close)


def test_float32_accumulator_on_request(way, make_call, assert_close):
    call = make_call(dtype=torch.float16, device=way)
    for wish in (True, False):
        check(call, run(call, fp32_grad_accum=wish), assert_close, 1e-3)


@pytest.mark.parametrize("tables", ["lists", "tensors", "tensor without starts"])
def test_compile_without_a_break(way, make_call, assert_close, tables):
    call = make_call(B=2, device=way)
    shapes, starts = {
        "lists": (call.shapes.tolist(), None),
        "tensors": (call.shapes, call.starts),
        "tensor without starts": (call.shapes, None),
    }[tables]
    compiled = torch.compile(
        lambda value, loc, attn: multi_scale_deformable_attention(value, shapes, starts, loc, attn),
        fullgraph=True,
        backend="aot_eager",
    )
    value, loc, attn = leaves(call)
    out = compiled(value, loc, attn)
    out.backward(call.grad_out)
    check(call, (out.detach(), [value.grad, loc.grad, attn.grad]), assert_close)


def test_compile_with_dynamic_sizes(way, make_call, assert_close):
    compiled = torch.compile(multi_scale_deformable_attention, fullgraph=True, backend="aot_eager", dynamic=True)
    for B, Q in ((2, 3), (3, 5)):
        call = make_call(B=B, Q=Q, device=way)
        assert_close(compiled(*call.inputs), reference.exact(*call.inputs))


def test_export(way, make_call, assert_close):
    class Model(torch.nn.Module):
        def forward(self, value, shapes, starts, loc, attn):
            return multi_scale_deformable_attention(value, shapes, starts, loc, attn)

    call = make_call(B=2, device=way)
    batch = torch.export.Dim("batch", min=1)
    program = torch.export.export(Model(), call.inputs, dynamic_shapes=({0: batch}, None, None, {0: batch}, {0: batch}))
    assert "msda_core.forward" in str(program.graph)
    other = make_call(B=3, device=way, seed=1)
    assert_close(program.module()(*other.inputs), reference.exact(*other.inputs))


def test_a_program_loaded_where_nobody_imported_the_operator_says_what_to_import(make_call, tmp_path):
    """torch names the operator, whose first name is the package: README says which module of it."""

    class Model(torch.nn.Module):
        def forward(self, value, loc, attn):
            return multi_scale_deformable_attention(value, [[4, 6], [3, 2]], None, loc, attn)

    call = make_call(device=CPU)
    args = (call.value, call.loc, call.attn)
    torch.export.save(torch.export.export(Model(), args), tmp_path / "model.pt2")
    done = subprocess.run(
        [sys.executable, "-c", "import torch, sys; torch.export.load(sys.argv[1])", str(tmp_path / "model.pt2")],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode and "torch.ops.msda_core.forward.default" in done.stderr
    assert "import" in done.stderr and "msda_core" in done.stderr
    torch.testing.assert_close(torch.export.load(tmp_path / "model.pt2").module()(*args), Model()(*args))


def test_registration_is_sound(way, make_call):
    call = make_call(device=way)
    value, loc, attn = leaves(call)
    torch.library.opcheck(torch.ops.msda_core.forward.default, (value, call.shapes, call.starts, loc, attn))
    torch.library.opcheck(
        torch.ops.msda_core.backward.default,
        (*call.inputs, call.grad_out),
        test_utils=("test_schema", "test_faketensor"),
    )


def test_vmap_and_its_gradient(way, make_call, assert_close):
    first, second = make_call(device=way), make_call(device=way, seed=1)
    value = torch.stack([first.value, second.value], 1)  # mapped axis in the middle

    def attend(value, loc):
        return multi_scale_deformable_attention(value, first.shapes, first.starts, loc, first.attn)

    out = torch.vmap(attend, in_dims=(1, None))(value, first.loc)
    grad = torch.vmap(
        torch.func.grad(lambda value, loc: (attend(value, loc) * first.grad_out).sum()), in_dims=(1, None)
    )(value, first.loc)
    for n, call in enumerate((first, second._replace(loc=first.loc, attn=first.attn, grad_out=first.grad_out))):
        assert_close(out[n], reference.exact(*call.inputs))
        assert_close(grad[n], reference.exact_gradients(*call)[0])


@pytest.mark.parametrize("where", [CPU, pytest.param(torch.device("cuda"), marks=pytest.mark.gpu)], ids=str)
def test_gradcheck_in_float64(make_call, where):
    for D in (1, 3, 30):
        call = make_call(Q=2, D=D, dtype=torch.float64, device=where)
        value, loc, attn = leaves(call)
        assert torch.autograd.gradcheck(
            lambda v, p, a: multi_scale_deformable_attention(v, call.shapes, call.starts, p, a),  # noqa: B023
            (value, loc, attn),
        )


def test_fake_tensors_need_no_kernel(make_call):
    from torch._subclasses.fake_tensor import FakeTensorMode

    call = make_call(B=2, device=CPU)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        out = multi_scale_deformable_attention(*(mode.from_tensor(t) for t in call.inputs))
    assert out.shape == (2, 3, 16)


def test_meta_tensors_need_no_kernel(make_call):
    call = make_call(B=2, device=CPU)
    value, loc, attn = (t.to("meta") for t in (call.value, call.loc, call.attn))
    assert multi_scale_deformable_attention(value, call.shapes.tolist(), None, loc, attn).shape == (2, 3, 16)


def test_autocast_keeps_a_mixture(way, make_call, assert_close):
    """What modules feed under autocast: a 16-bit value, float32 locations and weights."""
    call = make_call(dtype=torch.bfloat16, loc_dtype=torch.float32, device=way)
    with torch.autocast(way.type, torch.bfloat16):
        out, grads = run(call)
    assert out.dtype == torch.bfloat16
    assert [g.dtype for g in grads] == [torch.bfloat16, torch.float32, torch.float32]
    check(call, (out, grads), assert_close, 8e-3)


# ---------------------------------------------------------------------------------------------------- bad input


def bad(**changes):
    return pytest.param(changes.pop("match"), changes, id="-".join(changes))


BAD = [
    bad(value=lambda c: c.value.flatten(2), match=r"value must be \(B, S, M, D\).*folded into the channels"),
    bad(loc=lambda c: c.loc[..., 0], match=r"sampling_locations must be .*got \(1, 3, 2, 2, 2\). Is the \(x, y\) axis"),
    bad(loc=lambda c: c.loc.transpose(0, 1), match="must have batch 1 as value has, got 3.*query axis first"),
    bad(attn=lambda c: c.attn.flatten(-2), match="Are levels and points still one axis"),
    bad(shapes=lambda c: c.shapes[:1], match="one row per level, expected 2, got 1"),
    bad(starts=lambda c: c.starts[:1], match="one entry per level, expected 2, got 1"),
    bad(shapes=lambda c: c.shapes.float(), match="must hold int32 or int64, got float32"),
    bad(value=lambda c: c.value.long(), match="must be float64, float32, float16 or bfloat16, got int64"),
    bad(value=lambda c: c.value.tolist(), match="value must be a torch.Tensor, got list"),
    bad(value=lambda c: c.value[:, :-1], match=r"must hold S = 30 pixels.*got S = 29. Is a level missing"),
    bad(shapes=lambda c: [[4, 6], [3, 0]], match=r"must be positive, got \(H, W\) = \(3, 0\) at level 1"),
    bad(starts=lambda c: [0, 25], match=r"level 1 of size \(3, 2\) must lie inside the S = 30 pixels"),
    bad(starts=lambda c: [-1, 24], match="must lie inside the S = 30"),
]


@pytest.mark.parametrize("match, changes", BAD)
def test_bad_input_is_a_clear_error(way, make_call, match, changes):
    call = make_call(device=way)
    for _ in range(2):  # also the second time, when the good half of the call is known
        with pytest.raises(ValueError, match=match):
            multi_scale_deformable_attention(*call._replace(**{k: f(call) for k, f in changes.items()}).inputs)


def test_a_bad_table_is_refused_when_tracing_a_list(make_call):
    call = make_call(device=CPU)
    compiled = torch.compile(
        lambda v: multi_scale_deformable_attention(v, [[4, 6], [3, 3]], None, call.loc, call.attn), backend="eager"
    )
    with pytest.raises(ValueError, match="must hold S = 33 pixels"):
        compiled(call.value)
    torch.compiler.reset()  # Dynamo will not compile code again that raised under it, whoever asks


def test_vmap_over_level_tables_is_refused(make_call):
    where, mode = (CPU, interpreted) if device.INTERPRETED else (device.ACTIVE, contextlib.nullcontext)
    call = make_call(device=where)
    with mode(), pytest.raises(ValueError, match="one pyramid per example"):
        torch.vmap(lambda s: multi_scale_deformable_attention(call.value, s, call.starts, call.loc, call.attn))(
            torch.stack([call.shapes, call.shapes])
        )


def test_interpreter_on_request_needs_the_interpreter(monkeypatch):
    monkeypatch.setattr(device, "INTERPRETED", False)
    with pytest.raises(ValueError, match="MSDA_DEVICE=cpu"), interpreted():
        pass


def test_signature_on_every_device_is_one():
    import inspect

    signature = inspect.signature(multi_scale_deformable_attention)
    assert list(signature.parameters) == [
        "value", "spatial_shapes", "level_start_index", "sampling_locations", "attention_weights", "im2col_step",
        "points_per_level", "method", "fp32_grad_accum", "deterministic",
    ]  # fmt: skip
    assert signature.parameters["fp32_grad_accum"].kind is inspect.Parameter.KEYWORD_ONLY


def test_caches_stay_bounded(make_call):
    for n in range(5000):
        tables._remember(seen := tables._checked, ("filler", n))
    assert len(seen) <= 4096


def test_the_cpu_path_costs_no_more_than_grid_sample(make_call):
    """The plain composition, as everybody writes it, against the operator: medians of interleaved runs, within 1.25.

    The bar is 1.1 on a quiet machine (`python -m msda_core.bench --cpu`); a test must bear a busy one.
    """
    from msda_core.bench.operator import cpu_ratio

    assert cpu_ratio(repeats=15) < 1.25


@needs_interpreter
def test_the_interpreter_rounds_and_overflows_as_a_gpu_and_bears_threads(make_call, recwarn):
    """The nearest bfloat16; a float16 past 65504 is infinite, and nothing is said; kernels of several threads take turns."""
    call = make_call(dtype=torch.bfloat16, device=CPU)
    with interpreted():
        out = multi_scale_deformable_attention(*call.inputs)
    wide = multi_scale_deformable_attention(*(t.float() if t.is_floating_point() else t for t in call.inputs))
    assert ((out.float() - wide).abs() <= wide.abs() * 2.0**-8 + 1e-6).all()  # cut off it would be up to 2^-7
    half = make_call(dtype=torch.float16, device=CPU)
    half.value.fill_(60000.0), half.loc.fill_(0.5), half.attn.fill_(1.0)
    with interpreted():
        assert multi_scale_deformable_attention(*half.inputs).isposinf().all()
    assert not [w for w in recwarn if "overflow" in str(w.message)]
    call, found = make_call(device=CPU), []

    def run():
        with interpreted():
            found.append(multi_scale_deformable_attention(*call.inputs))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3 and all(torch.equal(out, found[0]) for out in found)


@pytest.mark.parametrize("mode", ["reference", "kernels"])
def test_level_tables_in_every_form_alike(make_call, mode):
    call = make_call(device=CPU)
    rows, starts = call.shapes.tolist(), call.starts.tolist()
    forms = [
        (call.shapes.numpy(), call.starts.numpy()),
        (list(call.shapes), list(call.starts)),
        ([tuple(row) for row in call.shapes], tuple(call.starts)),
        ([torch.Size(row) for row in rows], starts),
        ([list(row) for row in call.shapes.numpy()], None),
    ]
    with interpreted() if mode == "kernels" and device.INTERPRETED else contextlib.nullcontext():
        expected = multi_scale_deformable_attention(call.value, rows, starts, call.loc, call.attn)
        for shapes, first in forms:
            assert torch.equal(
                multi_scale_deformable_attention(call.value, shapes, first, call.loc, call.attn), expected
            )
        with pytest.raises(ValueError, match="spatial_shapes must hold whole numbers, got 4.5"):
            multi_scale_deformable_attention(call.value, np.array([[4.5, 6], [3, 2]]), None, call.loc, call.attn)
        mutable = [torch.tensor([4, 6]), torch.tensor([3, 2])]
        multi_scale_deformable_attention(call.value, mutable, None, call.loc, call.attn)
        mutable[1].fill_(9)  # the same objects, another table
        with pytest.raises(ValueError, match="value must hold S = 105 pixels"):
            multi_scale_deformable_attention(call.value, mutable, None, call.loc, call.attn)


def test_on_meta_shapes_come_out(make_call):
    call = make_call(device=CPU)
    value, loc, attn = (t.to("meta").requires_grad_() for t in (call.value, call.loc, call.attn))
    out = multi_scale_deformable_attention(value, call.shapes.tolist(), None, loc, attn)
    assert out.device.type == "meta" and out.shape == (1, 3, 16)
    assert torch.autograd.grad(out.sum(), value)[0].shape == value.shape


def test_devices_without_kernels_run_the_reference():
    """MPS and XPU are not here: what is looked at is who is asked. AMD says (9, 0) of itself, and gets no inline PTX."""
    for name in ("forward", "backward"):
        for key in ("MPS", "XPU", "PrivateUse1"):
            assert torch._C._dispatch_has_computed_kernel_for_dispatch_key(f"msda_core::{name}", key)


@needs_interpreter
def test_an_amd_gpu_gets_the_plain_kernels(monkeypatch):
    from msda_core.kernels import launch

    gpu = torch.device("cuda", 0)
    monkeypatch.setattr(torch.version, "hip", "6.2")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(device, "_choose", lambda: (gpu, False))
    device.capability.cache_clear()
    try:
        assert device.capability(gpu) == 0
        monkeypatch.setattr(torch.version, "hip", None)
        device.capability.cache_clear()
        assert device.capability(gpu) == 90
    finally:
        device.capability.cache_clear()
    monkeypatch.setattr(torch.version, "hip", "6.2")
    monkeypatch.setattr(launch, "INTERPRETED", False)
    seen = []

    class Kernel:
        def __getitem__(self, grid):
            return lambda *args, **options: seen.append(options)

    launch.launch(Kernel(), launch.Plan((1, 1, 1), (), num_warps=2, maxnreg=64), (torch.ones(1),))
    assert seen == [{"num_warps": 2}]

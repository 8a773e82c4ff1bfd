"""`multi_scale_deformable_attention`: one function for every device, dtype and mode of PyTorch.

CUDA tensors run the Triton kernels, CPU tensors and float64 the vectorised reference. The operator is registered with
`torch.library` (`msda_core::forward`, `msda_core::backward`: fake kernels, autograd, vmap), and that registration is
what `torch.compile`, `torch.export`, `torch.func` and fake tensors see. Plain eager calls go around the dispatcher,
which costs more host time than the launch does (`kernels/LOG.md`), through an `autograd.Function` with the same two
implementations.
"""

import contextlib
import contextvars
import functools
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable

from msda_core import reference
from msda_core.device import NO_TRITON
from msda_core.shapes import check_dims, check_levels, levels_of

__all__ = ["interpreted", "merging", "multi_scale_deformable_attention"]

Levels = Tensor | Sequence[Sequence[int]]
Starts = Tensor | Sequence[int] | None


def multi_scale_deformable_attention(
    value: Tensor,
    spatial_shapes: Levels,
    level_start_index: Starts,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    im2col_step: int | None = None,
    *,
    fp32_grad_accum: bool | None = None,
    deterministic: bool | None = None,
) -> Tensor:
    """Sum bilinear samples of a feature pyramid, each weighed by an attention weight.

    A drop-in for mmcv's `MultiScaleDeformableAttnFunction.apply`, in its argument order.

    Args:
        value: (B, S, M, D): float64, float32, float16 or bfloat16.
        spatial_shapes: (L, 2), (H, W) of each level; a list, or int32 or int64 on the CPU or on value's device.
        level_start_index: (L,), first pixel of each level in S, likewise; None for levels that lie one after another.
        sampling_locations: (B, Q, M, L, K, 2), (x, y) in [0, 1]. Outside, NaN and infinity contribute zero. May be
            float32 beside a 16-bit value: bfloat16 cannot tell a third of a pixel at W = 167.
        attention_weights: (B, Q, M, L, K), any of the float dtypes.
        im2col_step: ignored; the CUDA operator of Deformable DETR cut the batch by it.
        fp32_grad_accum: sum the gradient of a 16-bit value in float32, then round once. None: only where the GPU
            cannot add the dtype natively (bfloat16 below SM 9.0; either, if D is odd).
        deterministic: a backward that gives the same bits every time, at about twice the memory of a float32 one.
            None: as `torch.use_deterministic_algorithms` says when it runs.

    Returns:
        (B, Q, M*D), in value's dtype. Arithmetic and sums are float32 (float64 for float64). Differentiable once; on
        the CPU as often as `grid_sample` is.

    Raises:
        ValueError: names what was expected, what came, and the likely cause. The values of a level table on the GPU are
            read once per table (address and version), not on every call, and never while a CUDA graph is captured.

    Source: Deformable DETR (Zhu et al., 2021), Eq. 3.
    """
    args = (value, spatial_shapes, level_start_index, sampling_locations, attention_weights)
    if torch.compiler.is_compiling():
        check_dims(*args)
        shapes, starts = _traceable_tables(spatial_shapes, level_start_index, value)
        return torch.ops.msda_core.forward(
            value, shapes, starts, sampling_locations, attention_weights, fp32_grad_accum, deterministic
        )

    _check_once(*args)
    if value.device.type == "cpu" and not _interpreted.get():
        if _plain(value, sampling_locations, attention_weights):
            return reference.msda(*args)
    elif _plain(value, sampling_locations, attention_weights) and value.device.type in ("cpu", "cuda"):
        if _is_double(value, sampling_locations, attention_weights):
            _refuse_deterministic_double(value, deterministic)
            return reference.msda(*args)
        shapes, starts = _tables(spatial_shapes, level_start_index, value)
        tracked = value.requires_grad or sampling_locations.requires_grad or attention_weights.requires_grad
        if (tracked and torch.is_grad_enabled()) or forward_ad._current_level >= 0:
            return _apply(
                value, shapes, starts, sampling_locations, attention_weights, fp32_grad_accum, deterministic, _merging
            )  # fmt: skip
        return _forward(value, shapes, starts, sampling_locations, attention_weights)

    shapes, starts = _traceable_tables(spatial_shapes, level_start_index, value)
    operator = _Transformed.apply if torch._C._are_functorch_transforms_active() else torch.ops.msda_core.forward
    return operator(
        value, shapes, starts, sampling_locations, attention_weights, fp32_grad_accum, deterministic, _merging
    )


_interpreted: contextvars.ContextVar[bool] = contextvars.ContextVar("msda_core.ops.interpreted", default=False)


@contextlib.contextmanager
def interpreted():
    """Inside, CPU tensors run the Triton kernels in Triton's interpreter: slow, exact, and needs no GPU."""
    from msda_core.device import INTERPRETED

    if not INTERPRETED:
        raise ValueError(
            "the interpreter must be chosen before Triton is imported, expected MSDA_DEVICE=cpu in the environment, "
            "got a process that compiles. Is there a GPU on this machine?"
        )
    token = _interpreted.set(True)
    try:
        yield
    finally:
        _interpreted.reset(token)


_merging: bool | None = None


@contextlib.contextmanager
def merging(wish: bool | None):
    """Inside, calls at encoder scale take the merged kernels (True), never do (False), or do by themselves (None).

    A call that they are not made for (`msda_core.kernels.merged.suits`) takes the plain ones in any case: results are the
    same up to rounding. An eager backward does as its forward did; a compiled graph as it is asked when it runs. The switch is
    the process's: autograd has threads of its own.
    """
    global _merging
    before, _merging = _merging, wish
    try:
        yield
    finally:
        _merging = before


# ---------------------------------------------------------------------------------------------------------- eager


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, shapes, starts, sampling_locations, attention_weights, *options):
        ctx.save_for_backward(value, shapes, starts, sampling_locations, attention_weights)
        ctx.options = options
        return _forward(value, shapes, starts, sampling_locations, attention_weights, options[2])

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out):
        grad_value, grad_loc, grad_attn = _backward(*ctx.saved_tensors, grad_out, *ctx.options)
        return grad_value, None, None, grad_loc, grad_attn, None, None, None


#: `_Attention.apply` without the search for functorch's wrappers that Python puts before it, and `_plain` has done.
_apply = super(torch.autograd.Function, _Attention).apply

_PLAIN = frozenset((Tensor, torch.nn.Parameter))


def _plain(value: Tensor, sampling_locations: Tensor, attention_weights: Tensor) -> bool:
    """Nobody stands between this call and the device: no subclass, no fake tensor, no functorch, no dispatch mode."""
    return (
        type(value) in _PLAIN
        and type(sampling_locations) in _PLAIN
        and type(attention_weights) in _PLAIN
        and not torch._C._are_functorch_transforms_active()
        and not torch._C._len_torch_dispatch_stack()
    )


def _is_double(value: Tensor, sampling_locations: Tensor, attention_weights: Tensor) -> bool:
    double = torch.float64
    return value.dtype is double or sampling_locations.dtype is double or attention_weights.dtype is double


def _refuse_deterministic_double(value: Tensor, deterministic: bool | None) -> None:
    if deterministic and value.device.type == "cuda":
        raise ValueError(
            "deterministic=True needs float32 or 16-bit tensors on CUDA, got float64, whose backward is grid_sample's. "
            "Is this gradcheck? It repeats bitwise on the CPU."
        )


class _Kernels:
    """The launchers, imported on first use: the reference path needs no Triton."""

    def __init__(self):
        if NO_TRITON:
            raise ModuleNotFoundError(NO_TRITON, name="triton")
        from msda_core.kernels import merged
        from msda_core.kernels.backward import msda_backward
        from msda_core.kernels.forward import msda_forward

        self.forward, self.backward, self.merged = msda_forward, msda_backward, merged


_kernels = functools.cache(_Kernels)


def _forward(value, shapes, starts, sampling_locations, attention_weights, merged=None):
    """The forward on kernels, merged or plain."""
    levels = _levels_to_merge(value, shapes, starts, sampling_locations, attention_weights, merged)
    if levels:
        return _kernels().merged.merged_forward(value, shapes, starts, levels, sampling_locations, attention_weights)
    return _kernels().forward(value, shapes, starts, sampling_locations, attention_weights)


def _backward(
    value, shapes, starts, sampling_locations, attention_weights, grad_out,
    fp32_grad_accum=None, deterministic=None, merged=None,
):  # fmt: skip
    """The three gradients on kernels, merged or plain."""
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    args = (value, shapes, starts, sampling_locations, attention_weights)
    levels = None if deterministic else _levels_to_merge(*args, merged)
    if levels and grad_out.dtype == value.dtype:
        args = (value, shapes, starts, levels, sampling_locations, attention_weights)
        return _kernels().merged.merged_backward(*args, grad_out, fp32_grad_accum)
    return _kernels().backward(*args, grad_out, fp32_grad_accum, deterministic)


def _levels_to_merge(value, shapes, starts, sampling_locations, attention_weights, wish: bool | None):
    """(H, W) of each level if this call takes the merged kernels, else None. Waits for nothing."""
    merged = _kernels().merged
    wish = _merging if wish is None else wish
    if wish is None:
        wish = merged.worthwhile(value, sampling_locations)
    if not wish:
        return None
    levels = _levels_known.get(_table(shapes, starts, value.shape[1]))
    return levels if merged.suits(value, sampling_locations, attention_weights, levels) else None


# --------------------------------------------------------------------------------------------------------- checks

_checked: dict[tuple, None] = {}
#: Level tables on a device → (H, W) of each level. One that is read again after its memory was reused may be out of date:
#: it decides how queries are grouped, and nothing else.
_levels_known: dict[tuple, tuple[tuple[int, int], ...]] = {}


def _check_once(value, spatial_shapes, level_start_index, sampling_locations, attention_weights) -> None:
    """`check_dims`, once for every combination of shapes, dtypes and devices."""
    try:
        call = (
            value.shape, sampling_locations.shape, attention_weights.shape,
            value.dtype, sampling_locations.dtype, attention_weights.dtype,
            value.device, sampling_locations.device, attention_weights.device,
            _about(spatial_shapes), _about(level_start_index),
        )  # fmt: skip
        if call in _checked:
            return
    except (AttributeError, TypeError):  # not tensors; a symbolic size
        call = None
    check_dims(value, spatial_shapes, level_start_index, sampling_locations, attention_weights)
    for name, table in (("spatial_shapes", spatial_shapes), ("level_start_index", level_start_index)):
        if isinstance(table, Tensor) and table.device.type not in ("cpu", "meta") and table.device != value.device:
            raise ValueError(
                f"{name} must be on the CPU or on {value.device} as value is, got {table.device}. "
                "Was only part of the call moved?"
            )
    if call is not None:
        _remember(_checked, call)


def _about(table):
    if isinstance(table, Tensor):
        return table.shape, table.dtype, table.device
    return None if table is None else len(table)


def _remember(seen: dict, key: tuple, value=None) -> None:
    if len(seen) >= 4096:
        seen.clear()
        _packed.cache_clear()  # its tables are to be known again
    seen[key] = value


# --------------------------------------------------------------------------------------------------- level tables


def _tables(spatial_shapes: Levels, level_start_index: Starts, value: Tensor) -> tuple[Tensor, Tensor]:
    """The level table as two integer tensors on value's device, checked against S."""
    if isinstance(spatial_shapes, Tensor) and spatial_shapes.device.type == "cuda":
        if level_start_index is None:
            pixels = spatial_shapes.prod(1)
            level_start_index = pixels.cumsum(0) - pixels
        elif not isinstance(level_start_index, Tensor) or level_start_index.device.type == "cpu":
            level_start_index = _on_device(_hashable(level_start_index), value.device)
        _check_device_table(spatial_shapes, level_start_index, value.shape[1])
        return spatial_shapes, level_start_index
    starts = None if level_start_index is None else _hashable(level_start_index)
    rows = spatial_shapes.tolist() if isinstance(spatial_shapes, Tensor) else spatial_shapes
    try:
        rows = tuple(map(tuple, rows))
    except TypeError:  # levels_of says what is wrong with it
        rows = tuple(levels_of(rows))
    return _packed(rows, starts, value.shape[1], value.device)


def _check_device_table(shapes: Tensor, starts: Tensor, S: int) -> None:
    """Read a table that lives on the GPU, which waits for the GPU, the first time it is seen."""
    key = _table(shapes, starts, S)
    if key not in _levels_known and not torch.cuda.is_current_stream_capturing():
        levels = levels_of(shapes)
        check_levels(levels, starts.tolist(), S)
        _remember(_levels_known, key, tuple(levels))


def _table(shapes: Tensor, starts: Tensor, S: int) -> tuple:
    return shapes.data_ptr(), _version(shapes), starts.data_ptr(), _version(starts), S, len(shapes)


def _version(tensor: Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def _hashable(starts: Tensor | Sequence[int]) -> tuple[int, ...]:
    return tuple(starts.tolist() if isinstance(starts, Tensor) else map(int, starts))


@functools.lru_cache(maxsize=1024)
def _packed(rows: tuple, starts: tuple | None, S: int, device: torch.device) -> tuple[Tensor, Tensor]:
    levels = tuple(levels_of(rows))
    starts = check_levels(levels, starts, S)
    tables = _on_device(levels, device), _on_device(tuple(starts), device)
    _remember(_levels_known, _table(*tables, S), levels)
    return tables


@functools.lru_cache(maxsize=1024)
def _on_device(table: tuple, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # it is kept, and may be saved for a backward later
        return torch.tensor(table, dtype=torch.int32, device=device)


def _traceable_tables(spatial_shapes: Levels, level_start_index: Starts, value: Tensor) -> tuple[Tensor, Tensor | None]:
    """The level table as tensors a graph can hold. A tensor's values are read when the graph runs, not now."""
    if not isinstance(spatial_shapes, Tensor):
        if level_start_index is None or not isinstance(level_start_index, Tensor):
            level_start_index = check_levels(levels_of(spatial_shapes), level_start_index, value.shape[1])
        spatial_shapes = torch.tensor([list(level) for level in spatial_shapes])
    if level_start_index is not None and not isinstance(level_start_index, Tensor):
        level_start_index = torch.tensor(list(level_start_index))
    return spatial_shapes, level_start_index


# --------------------------------------------------------------------------------------------------- registration

_library = torch.library.Library("msda_core", "DEF")
_ARGS = "Tensor value, Tensor spatial_shapes, Tensor? level_start_index, Tensor sampling_locations, "
_ARGS += "Tensor attention_weights"
_OPTIONS = "bool? fp32_grad_accum=None, bool? deterministic=None, bool? merged=None"
_library.define(f"forward({_ARGS}, {_OPTIONS}) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
_library.define(
    f"backward({_ARGS}, Tensor grad_out, {_OPTIONS}) -> (Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _forward_impl(
    value, spatial_shapes, level_start_index, sampling_locations, attention_weights,
    fp32_grad_accum=None, deterministic=None, merged=None,
):  # fmt: skip
    args = (value, spatial_shapes, level_start_index, sampling_locations, attention_weights)
    if _on_reference(value, sampling_locations, attention_weights):
        return reference.msda(*args)
    shapes, starts = _tables(spatial_shapes, level_start_index, value)
    return _forward(value, shapes, starts, sampling_locations, attention_weights, merged)


def _backward_impl(
    value, spatial_shapes, level_start_index, sampling_locations, attention_weights, grad_out,
    fp32_grad_accum=None, deterministic=None, merged=None,
):  # fmt: skip
    if _on_reference(value, sampling_locations, attention_weights):
        _refuse_deterministic_double(value, deterministic)
        return reference.msda_gradients(
            value, spatial_shapes, level_start_index, sampling_locations, attention_weights, grad_out
        )
    shapes, starts = _tables(spatial_shapes, level_start_index, value)
    args = (value, shapes, starts, sampling_locations, attention_weights, grad_out)
    return _backward(*args, fp32_grad_accum, deterministic, merged)


def _on_reference(value: Tensor, sampling_locations: Tensor, attention_weights: Tensor) -> bool:
    on_cpu = value.device.type == "cpu" and not _interpreted.get()
    return on_cpu or _is_double(value, sampling_locations, attention_weights)


for _key in ("CPU", "CUDA"):
    _library.impl("forward", _forward_impl, _key)
    _library.impl("backward", _backward_impl, _key)


@torch.library.register_fake("msda_core::forward", lib=_library)
def _(value, spatial_shapes, level_start_index, sampling_locations, attention_weights, *options):
    B, _, M, D = value.shape
    return value.new_empty(B, sampling_locations.shape[1], M * D)


@torch.library.register_fake("msda_core::backward", lib=_library)
def _(value, spatial_shapes, level_start_index, sampling_locations, attention_weights, grad_out, *options):
    return tuple(t.new_empty(t.shape) for t in (value, sampling_locations, attention_weights))


def _setup_context(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:5])
    ctx.options = inputs[5:]


def _backward_formula(ctx, grad_out):
    grad_value, grad_loc, grad_attn = torch.ops.msda_core.backward(*ctx.saved_tensors, grad_out, *ctx.options)
    return grad_value, None, None, grad_loc, grad_attn, None, None, None


def _twice(ctx, *grads):
    raise RuntimeError(
        "multi_scale_deformable_attention is differentiable once, expected a first derivative, got a second one. "
        "Is create_graph=True meant? The CPU's reference path in eager mode allows what grid_sample allows."
    )


class _Transformed(torch.autograd.Function):
    """The registered operator under `torch.func`, which wants a Function with a setup_context all the way down."""

    generate_vmap_rule = True
    setup_context = staticmethod(_setup_context)

    @staticmethod
    def forward(*args):
        return torch.ops.msda_core.forward(*args)

    @staticmethod
    def backward(ctx, grad_out):
        grad_value, grad_loc, grad_attn = _TransformedBackward.apply(*ctx.saved_tensors, grad_out, *ctx.options)
        return grad_value, None, None, grad_loc, grad_attn, None, None, None


class _TransformedBackward(torch.autograd.Function):
    generate_vmap_rule = True
    backward = staticmethod(_twice)

    @staticmethod
    def forward(*args):
        return torch.ops.msda_core.backward(*args)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass


torch.library.register_autograd("msda_core::forward", _backward_formula, setup_context=_setup_context, lib=_library)
torch.library.register_autograd("msda_core::backward", _twice, lib=_library)


def _fold(info, in_dims, tensors: Sequence[Tensor]) -> list[Tensor]:
    """vmap's axis becomes part of the batch: (B, …) with an axis of N anywhere → (N*B, …)."""
    folded = []
    for tensor, dim in zip(tensors, in_dims):
        tensor = tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        folded.append(tensor.flatten(0, 1))
    return folded


def _refuse_mapped_tables(in_dims) -> None:
    if in_dims[1] is not None or in_dims[2] is not None:
        raise ValueError(
            "vmap must leave spatial_shapes and level_start_index as they are (in_dims None), got a mapped level "
            "table. Is there one pyramid per example?"
        )


def _vmap_forward(info, in_dims, value, shapes, starts, sampling_locations, attention_weights, *options):
    _refuse_mapped_tables(in_dims)
    value, loc, attn = _fold(info, (in_dims[0], in_dims[3], in_dims[4]), (value, sampling_locations, attention_weights))
    out = torch.ops.msda_core.forward(value, shapes, starts, loc, attn, *options)
    return out.unflatten(0, (info.batch_size, -1)), 0


def _vmap_backward(info, in_dims, value, shapes, starts, sampling_locations, attention_weights, grad_out, *options):
    _refuse_mapped_tables(in_dims)
    value, loc, attn, grad_out = _fold(
        info,
        (in_dims[0], in_dims[3], in_dims[4], in_dims[5]),
        (value, sampling_locations, attention_weights, grad_out),
    )
    grads = torch.ops.msda_core.backward(value, shapes, starts, loc, attn, grad_out, *options)
    return tuple(grad.unflatten(0, (info.batch_size, -1)) for grad in grads), (0, 0, 0)


torch.library.register_vmap("msda_core::forward", _vmap_forward, lib=_library)
torch.library.register_vmap("msda_core::backward", _vmap_backward, lib=_library)

"""The fast path: plain tensors and no active transforms, so that nothing needs PyTorch's dispatcher.

A dispatched call costs more host time than the launch does (`kernels/LOG.md`). `forward` and `backward` choose between the
plain and the merged kernels; the registered operator runs the same two.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from msda_core import device
from msda_core.ops import tables

__all__ = [
    "attend",
    "backward",
    "forward",
    "interpreted",
    "is_deterministic",
    "is_plain",
    "kernels",
    "levels_to_merge",
    "merging",
    "merging_wish",
    "on_reference",
]

_interpreted: contextvars.ContextVar[bool] = contextvars.ContextVar("msda_core.ops.interpreted", default=False)


@contextlib.contextmanager
def interpreted() -> Iterator[None]:
    """Inside, CPU tensors run the Triton kernels in Triton's interpreter: slow, exact, and needs no GPU.

    Raises:
        ValueError: kernels of this process are compiled.
    """
    if not device.INTERPRETED:
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
def merging(wish: bool | None) -> Iterator[None]:
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


def merging_wish() -> bool | None:
    """What `merging` says here: True, False, or None for nothing."""
    return _merging


# ---------------------------------------------------------------------------------------------- which way a call goes

_PLAIN = frozenset((Tensor, torch.nn.Parameter))


def is_plain(value: Tensor, sampling_locations: Tensor, attention_weights: Tensor) -> bool:
    """Plain tensors and no active transforms: no subclass, no fake tensor, no functorch, no dispatch mode."""
    return (
        type(value) in _PLAIN
        and type(sampling_locations) in _PLAIN
        and type(attention_weights) in _PLAIN
        and not torch._C._are_functorch_transforms_active()
        and not torch._C._len_torch_dispatch_stack()
    )


def on_reference(value: Tensor, sampling_locations: Tensor, attention_weights: Tensor) -> bool:
    """Whether the call runs the reference: float64 anywhere, and every device but CUDA (and the CPU in `interpreted`)."""
    double = torch.float64
    if value.dtype is double or sampling_locations.dtype is double or attention_weights.dtype is double:
        return True
    kind = value.device.type
    return kind != "cuda" and not (kind == "cpu" and _interpreted.get())


def refuse_deterministic_double(value: Tensor, deterministic: bool | None) -> None:
    """Raises a ValueError where a deterministic backward is asked of float64 tensors on CUDA."""
    if deterministic and value.device.type == "cuda":
        raise ValueError(
            "deterministic=True needs float32 or 16-bit tensors on CUDA, got float64, whose backward is grid_sample's. "
            "Is this gradcheck? It repeats bitwise on the CPU."
        )


# ------------------------------------------------------------------------------------------------------------ kernels


#: The backward through the registered operator, whose gradients have derivatives; `ops.registry` provides it.
backward_with_derivatives: Callable | None = None


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, shapes, starts, sampling_locations, attention_weights, *options):
        ctx.save_for_backward(value, shapes, starts, sampling_locations, attention_weights)
        ctx.options = options
        return forward(value, shapes, starts, sampling_locations, attention_weights, options[2])

    @staticmethod
    def backward(ctx, grad_out):
        if torch.is_grad_enabled():  # create_graph=True: gradients with derivatives of their own
            return backward_with_derivatives(ctx, grad_out)
        grad_value, grad_loc, grad_attn = backward(*ctx.saved_tensors, grad_out, *ctx.options)
        return grad_value, None, None, grad_loc, grad_attn, None, None, None


#: `_Attention.apply` without the search for functorch's wrappers that Python puts before it, and `is_plain` has done.
#: Arguments: value, shapes, starts, sampling_locations, attention_weights, fp32_grad_accum, deterministic, merged.
attend = super(torch.autograd.Function, _Attention).apply


class _Kernels:
    """The launchers, imported on first use: the reference path needs no Triton."""

    def __init__(self) -> None:
        if device.NO_TRITON:
            raise ModuleNotFoundError(device.NO_TRITON, name="triton")
        from msda_core.kernels import merged
        from msda_core.kernels.backward import msda_backward
        from msda_core.kernels.forward import msda_forward
        from msda_core.kernels.nearest import nearest_backward, nearest_forward
        from msda_core.kernels.second import msda_jvp, msda_second

        self.forward, self.backward, self.merged = msda_forward, msda_backward, merged
        self.jvp, self.second = msda_jvp, msda_second
        self.nearest, self.nearest_backward = nearest_forward, nearest_backward


kernels = functools.cache(_Kernels)


def forward(
    value: Tensor,
    shapes: Tensor,
    starts: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    merged: bool | None = None,
) -> Tensor:
    """The forward on kernels, merged or plain. Arguments as `tables.on_device` returns them: (B, Q, M*D)."""
    levels = levels_to_merge(value, shapes, starts, sampling_locations, attention_weights, merged)
    choice = kernels().merged.choice
    if levels and _unasked(merged) and choice.matters(value):
        stay = choice.far(sampling_locations, levels) <= choice.FORWARD
        choice.look(shapes, sampling_locations, levels)
        levels = levels if stay else None
    if levels:
        return kernels().merged.merged_forward(value, shapes, starts, levels, sampling_locations, attention_weights)
    return kernels().forward(value, shapes, starts, sampling_locations, attention_weights)


def backward(
    value: Tensor,
    shapes: Tensor,
    starts: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    grad_out: Tensor,
    fp32_grad_accum: bool | None = None,
    deterministic: bool | None = None,
    merged: bool | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The three gradients on kernels, merged or plain, shaped and typed like the inputs."""
    deterministic = is_deterministic(deterministic)
    levels = None
    if not deterministic:
        levels = levels_to_merge(value, shapes, starts, sampling_locations, attention_weights, merged)
    choice = kernels().merged.choice
    if (
        levels
        and _unasked(merged)
        and choice.matters(value)
        and choice.far(sampling_locations, levels) > choice.BACKWARD
    ):
        levels = None
    if levels and grad_out.dtype == value.dtype:
        return kernels().merged.merged_backward(
            value, shapes, starts, levels, sampling_locations, attention_weights, grad_out, fp32_grad_accum
        )
    return kernels().backward(
        value, shapes, starts, sampling_locations, attention_weights, grad_out, fp32_grad_accum, deterministic
    )


def _unasked(wish: bool | None) -> bool:
    return wish is None and _merging is None


def is_deterministic(wish: bool | None) -> bool:
    """What `torch.use_deterministic_algorithms` says where nobody said anything."""
    return torch.are_deterministic_algorithms_enabled() if wish is None else wish


def levels_to_merge(
    value: Tensor,
    shapes: Tensor,
    starts: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    wish: bool | None,
) -> tuple[tuple[int, int], ...] | None:
    """(H, W) of each level if the merged kernels can do this call, and are asked to or it is large; else None. Waits for nothing."""
    merged = kernels().merged
    wish = _merging if wish is None else wish
    if wish is None:
        wish = merged.worthwhile(value, sampling_locations)
    if not wish:
        return None
    levels = tables.known_levels(shapes, starts, value.shape[1])
    return levels if merged.suits(value, sampling_locations, attention_weights, levels) else None

"""One line puts the operator into a model of Hugging Face's transformers.

    from msda_core.integrations import transformers as msda

    handle = msda.patch(model)          # Deformable DETR, Grounding DINO, Mask2Former, RT-DETR, RT-DETRv2, D-FINE, …
    train(model)
    print(handle)                       # what was patched, and how often it ran
    msda.unpatch(model)

    with msda.patched(model) as handle: # the same for a while; an operator that was never called is an error
        model(**batch)

transformers writes the operator in three ways, and all are found, in this model only: a module without parameters
(`MultiScaleDeformableAttention`), a function of a modeling file (`multi_scale_deformable_attention`), and one with a number
of points for each level (`multi_scale_deformable_attention_v2`).

*Masks.* The operator knows none: the model zeroes padded values before it, as it did, so nothing has to be turned here. Whoever
replaces a whole attention layer of transformers by `msda_core.nn.MSDeformAttn` must turn its mask: transformers' attention_mask
is True where a pixel is valid, `input_padding_mask` is True where it is padding. Unturned it raises nothing, and the padding is
what is seen.
"""

import contextlib
import functools
import inspect
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from msda_core.ops import multi_scale_deformable_attention as attend
from msda_core.shapes import Levels

__all__ = ["Patch", "patch", "patched", "unpatch"]

_KEY = "_msda_core_patch"


class Patch:
    """What was patched in a model, and how often the operator ran there.

    Attributes:
        places: dotted names of the layers whose operator was replaced.
        calls: forward calls so far; under `torch.compile` and `torch.export`, how often one was traced.
    """

    def __init__(self) -> None:
        self.places: list[str] = []
        self.calls = 0
        self._undo: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"msda_core in {len(self.places)} layers ({', '.join(self.places)}): {self.calls} calls"

    def check(self) -> None:
        """Raises a RuntimeError if the operator was never called."""
        if not self.calls:
            raise RuntimeError(
                f"the patched operator was never called, expected calls from {', '.join(self.places)}. "
                "Did the model run at all, or only a part without these layers?"
            )

    def __deepcopy__(self, memo: dict) -> "Patch":
        return self  # a copy of the model is counted with it

    def _count(self) -> None:
        if torch.compiler.is_compiling():
            _traced(self)
        else:
            self.calls += 1


@torch._dynamo.assume_constant_result
def _traced(handle: Patch) -> int:
    handle.calls += 1
    return 0


def patch(model: nn.Module) -> Patch:
    """Run the operator of `msda_core` wherever this model runs transformers' own.

    Weights, masks and the rest of the model stay as they are; outputs and gradients are stock's up to rounding. Another model
    of the same class is not touched.

    Returns:
        the report; also what `unpatch` returns.

    Raises:
        ValueError: the model is patched already, or has no layer with the operator.
    """
    if hasattr(model, _KEY):
        raise ValueError(f"the model must not be patched yet, got {getattr(model, _KEY)}. Is an unpatch missing?")
    handle = Patch()
    for name, layer in list(model.named_modules()):
        for child, stock in list(layer.named_children()):
            if type(stock).__name__ == "MultiScaleDeformableAttention" and not any(True for _ in stock.parameters()):
                setattr(layer, child, _Module(handle))
                handle._undo.append(functools.partial(setattr, layer, child, stock))
                handle.places.append(f"{name}.{child}".lstrip("."))
        undo = _patch_function(layer, handle)
        if undo is not None:
            handle._undo.append(undo)
            handle.places.append(name or type(layer).__name__)
    if not handle.places:
        raise ValueError(
            "the model must have layers of multi-scale deformable attention as transformers writes them "
            f"(MultiScaleDeformableAttention, multi_scale_deformable_attention, …_v2), got {type(model).__name__} without "
            "any. Is it disabled in its config, or from another library?"
        )
    object.__setattr__(model, _KEY, handle)
    return handle


def unpatch(model: nn.Module) -> Patch:
    """Put transformers' own operator back.

    Returns:
        the report.

    Raises:
        ValueError: the model is not patched.
        RuntimeError: the operator was never called; the model is as it was.
    """
    handle = _remove(model)
    handle.check()
    return handle


@contextlib.contextmanager
def patched(model: nn.Module) -> Iterator[Patch]:
    """`patch` inside, `unpatch` at the end.

    Raises:
        ValueError: as `patch`. RuntimeError: the operator was never called.
    """
    handle = patch(model)
    try:
        yield handle
    except BaseException:
        _remove(model)
        raise
    unpatch(model)


def _remove(model: nn.Module) -> Patch:
    handle = getattr(model, _KEY, None)
    if not isinstance(handle, Patch):
        raise ValueError(
            f"the model must be patched, got {type(model).__name__} as it came. Is it a copy of another one?"
        )
    object.__delattr__(model, _KEY)
    while handle._undo:
        handle._undo.pop()()
    return handle


class _Module(nn.Module):
    """Stands for transformers' module of the operator, in its signature."""

    def __init__(self, handle: Patch) -> None:
        super().__init__()
        self._handle = handle

    def forward(
        self,
        value: Tensor,
        value_spatial_shapes: Tensor,
        value_spatial_shapes_list: list[tuple[int, int]] | None,
        level_start_index: Tensor | None,
        sampling_locations: Tensor,
        attention_weights: Tensor,
        im2col_step: int | None = None,
    ) -> Tensor:
        self._handle._count()
        shapes: Levels = value_spatial_shapes if value_spatial_shapes_list is None else value_spatial_shapes_list
        return attend(value, shapes, None, sampling_locations, attention_weights)


def _function(handle: Patch) -> Callable[..., Tensor]:
    def multi_scale_deformable_attention(
        value: Tensor, value_spatial_shapes: Levels, sampling_locations: Tensor, attention_weights: Tensor
    ) -> Tensor:
        handle._count()
        return attend(value, value_spatial_shapes, None, sampling_locations, attention_weights)

    return multi_scale_deformable_attention


def _function_v2(handle: Patch) -> Callable[..., Tensor]:
    def multi_scale_deformable_attention_v2(
        value: Tensor,
        value_spatial_shapes: Levels,
        sampling_locations: Tensor,
        attention_weights: Tensor,
        num_points_list: Sequence[int],
        method: str = "default",
    ) -> Tensor:
        handle._count()
        L, K = len(num_points_list), num_points_list[0]
        if method == "default" and all(points == K for points in num_points_list):
            sampling_locations = sampling_locations.unflatten(3, (L, K))
            return attend(value, value_spatial_shapes, None, sampling_locations, attention_weights.unflatten(3, (L, K)))
        return attend(
            value, value_spatial_shapes, None, sampling_locations, attention_weights,
            points_per_level=list(num_points_list), method=method,
        )  # fmt: skip

    return multi_scale_deformable_attention_v2


_FUNCTIONS = {
    "multi_scale_deformable_attention": _function,
    "multi_scale_deformable_attention_v2": _function_v2,
}


def _patch_function(layer: nn.Module, handle: Patch) -> Callable[[], None] | None:
    """Replace the function that this layer calls: the attribute it is kept in, or the global name in its own forward."""
    core: Any = getattr(layer, "ms_deformable_attn_core", None)
    if getattr(core, "__name__", "") in _FUNCTIONS:
        setattr(layer, "ms_deformable_attn_core", _FUNCTIONS[core.__name__](handle))  # noqa: B010
        return functools.partial(setattr, layer, "ms_deformable_attn_core", core)
    stock: Any = inspect.unwrap(type(layer).forward)
    code: Any = getattr(stock, "__code__", None)
    names = [name for name in _FUNCTIONS if code is not None and name in code.co_names and name in stock.__globals__]
    if not names or "forward" in vars(layer):
        return None
    # The same code, with another function behind the name: other models of the class keep theirs. Without __name__, or
    # torch.compile would look the name up in transformers' module again.
    scope = {key: found for key, found in stock.__globals__.items() if key != "__name__"}
    scope |= {name: _FUNCTIONS[name](handle) for name in names}
    own = types.FunctionType(code, scope, stock.__name__, stock.__defaults__, stock.__closure__)
    own.__kwdefaults__, own.__module__ = stock.__kwdefaults__, stock.__module__
    layer.forward = types.MethodType(own, layer)  # type: ignore[method-assign]
    return lambda: delattr(layer, "forward")

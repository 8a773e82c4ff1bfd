"""Two results, compared: equal, or a sentence about the first thing that is not.

Truth is the reference in float64. The tolerance is one rounding to the result's own dtype, plus the error of summing in
float32 (float64 for float64 results): 2^-p * |truth| + 32 * 2^-23 * max|truth|. It depends on nothing else.
"""

import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["difference", "same"]

ROUNDINGS = 32  # float32 additions whose errors may pile up one way: more than any case here sums in a row


def difference(
    yours: Any, truth: Any, like: Any, axes: Sequence[str] | Mapping[str, Sequence[str]] = (), parts: Sequence[str] = ()
) -> str | None:
    """What is wrong with a result, or None.

    Args:
        yours: what the learner's function returned; may be anything.
        truth: the reference's result in float64.
        like: the reference's result on the case's own dtypes; gives the kind, shape, dtype and device to expect.
        axes: names of a tensor's axes; of nested lists, outermost first; part → names, where a tuple's tensors differ.
        parts: names of a tuple's parts, counted through nested tuples.
    """
    return _compare(yours, truth, like, axes, list(parts), "")


def same(one: Any, other: Any) -> bool:
    """Whether two results agree to the tolerance. Used to recognise a mistake by its output."""
    try:
        return _compare(one, _double(other), other, (), [], "") is None
    except (TypeError, ValueError, RuntimeError):
        return False


def _compare(yours, truth, like, axes, parts, where) -> str | None:
    if isinstance(like, (tuple, list)):
        # a list is an axis, a tuple is not
        named = isinstance(like, list) and bool(axes) and not isinstance(axes, Mapping)
        if not isinstance(yours, (tuple, list)) or (len(yours) != len(like) and not named):
            return f"{_subject(where)} {describe(yours)}, expected {len(like)} values: {describe(like)}.{_why(yours, where)}"
        lengths = ""
        if len(yours) != len(like):
            lengths = f"yours has {len(yours)} {axes[0]}{'s' * (len(yours) != 1)}, expected {len(like)}"
        lengths += f" at {where}" if lengths and where else ""
        for index, (y, t, k) in enumerate(zip(yours, truth, like)):
            if named:
                label = f"{axes[0]} {index}"
            elif isinstance(k, tuple) or isinstance(k, list) and not axes:
                label = "" if parts else f"[{index}]"
            else:
                label = parts.pop(0) if parts else f"[{index}]"
            message = _compare(
                y, t, k, axes[1:] if named else axes, parts, f"{where}{', ' if named and where else ' '}{label}".strip()
            )
            if message:
                return f"{lengths}. The first difference: {message}" if lengths else message
        common = ", and is right as far as both go" if len(yours) and len(like) else ""
        return f"{lengths}{common}." if lengths else None
    if isinstance(like, Tensor):
        return _compare_tensor(yours, truth, like, axes, where)
    if isinstance(like, bool) and type(yours).__name__ in ("bool", "bool_"):  # numpy's too
        yours = bool(yours)
    if isinstance(like, (bool, str)) or like is None:
        if not isinstance(yours, type(like)) or yours != like:
            return f"{_subject(where)} {describe(yours)}, expected {like!r}.{_why(yours, where)}"
        return None
    if isinstance(like, numbers.Number):
        return _compare_number(yours, truth, like, where)
    if yours != like:
        return f"{_subject(where)} {describe(yours)}, expected {describe(like)}.{_why(yours, where)}"
    return None


def _compare_number(yours, truth, like, where) -> str | None:
    if isinstance(yours, Tensor) and yours.numel() == 1 and yours.device.type != "meta":
        yours = yours.item()
    if isinstance(yours, bool) or not isinstance(yours, numbers.Real):
        return f"{_subject(where)} {describe(yours)}, expected a number.{_why(yours, where)}"
    integral = isinstance(like, int)
    tolerance = 0 if integral else ROUNDINGS * torch.finfo(torch.float32).eps * max(1.0, abs(truth))
    if abs(yours - truth) <= tolerance or yours == truth or (math.isnan(yours) and math.isnan(truth)):
        return None
    mine, expected = _digits(yours, truth)
    at = f" at {where}" if where else ""
    return f"yours {mine}, expected {expected}{at}."


def _compare_tensor(yours, truth, like, axes, where) -> str | None:
    of = f" of {where}" if where else ""
    if not isinstance(yours, Tensor):
        return (
            f"{_subject(where)} {describe(yours)}, expected a tensor of shape {tuple(like.shape)}.{_why(yours, where)}"
        )
    if yours.shape != like.shape:
        return f"the shape{of} is {tuple(yours.shape)}, expected {tuple(like.shape)}.{_shape_hint(yours, like)}"
    if yours.device != like.device:
        return f"the result{of} is on {yours.device}, expected {like.device}, where the inputs are."
    if yours.dtype != like.dtype:
        own = ", the inputs' own" if like.dtype.is_floating_point else ""
        return f"the dtype{of} is {_name(yours.dtype)}, expected {_name(like.dtype)}{own}."
    if like.numel() == 0:
        return None
    mine, expected = yours.detach().double(), truth.detach().double()
    if not like.dtype.is_floating_point:
        tolerance = torch.zeros_like(expected)
    else:
        finite = expected[expected.isfinite()].abs()
        scale = finite.max() if finite.numel() else expected.new_zeros(())
        summing = torch.finfo(torch.float64 if like.dtype == torch.float64 else torch.float32).eps
        tolerance = torch.finfo(like.dtype).eps * expected.abs() + ROUNDINGS * summing * scale
    error = (mine - expected).abs()
    wrong = ~((error <= tolerance) | (mine == expected) | (mine.isnan() & expected.isnan()))
    count = int(wrong.sum())
    if count == 0:
        return None
    error = torch.where(wrong, torch.nan_to_num(error, nan=math.inf, posinf=math.inf), -1.0)
    index = tuple(int(i) for i in torch.unravel_index(error.argmax(), error.shape))
    a, b = _digits(mine[index].item(), expected[index].item())
    if like.dtype == torch.bool:
        a, b = bool(mine[index]), bool(expected[index])
    share = f" ({count} of {like.numel()} values differ)" if like.numel() > 1 else ""
    axes = list(axes.get(where, ()) if isinstance(axes, Mapping) else axes)
    if len(axes) >= len(index):
        at = ", ".join(f"{name} {i}" for name, i in zip(axes[len(axes) - len(index) :], index))
    else:
        at = f"element {list(index)}"
    at = f" at {where + ', ' if where and at else where}{at}" if at or where else ""
    poison = (
        " NaN: it was never written, or computed from something that is NaN." if math.isnan(mine[index].item()) else ""
    )
    return f"yours {a}, expected {b}{at}{share}.{poison}"


def describe(thing: Any) -> str:
    """A value in a few words: "a list of 3", "a float64 tensor of shape (2, 3)", "None"."""
    if isinstance(thing, Tensor):
        return f"a {_name(thing.dtype)} tensor of shape {tuple(thing.shape)}"
    if isinstance(thing, (tuple, list)):
        if len(thing) <= 6 and all(isinstance(item, numbers.Number) for item in thing):
            return str(tuple(thing)) if isinstance(thing, tuple) else str(thing)
        return f"a {type(thing).__name__} of {len(thing)}"
    if thing is None or isinstance(thing, (bool, numbers.Number)):
        return repr(thing)
    if isinstance(thing, torch.dtype):
        return _name(thing)
    text = repr(thing) if isinstance(thing, str) else f"a {type(thing).__name__}"
    return text if len(text) <= 60 else text[:57] + "…"


def _double(tree):
    if isinstance(tree, (tuple, list)):
        return type(tree)(_double(item) for item in tree) if type(tree) in (tuple, list) else tree
    return tree.double() if isinstance(tree, Tensor) and tree.dtype.is_floating_point else tree


def _subject(where: str) -> str:
    return f"{where} is" if where else "your function returned"


def _why(yours, where: str) -> str:
    if yours is None and not where:  # of a part, a return statement has said so
        return " Is the return statement missing?"
    if callable(yours):
        return " Are the brackets of a call missing?"
    return ""


def _shape_hint(yours: Tensor, like: Tensor) -> str:
    if yours.numel() == like.numel() and sorted(yours.shape) == sorted(like.shape):
        return " Two axes are transposed."
    if yours.numel() == like.numel():
        return " The same number of values: a reshape is missing."
    return ""


def _digits(mine: float, expected: float) -> tuple[str, str]:
    """Both numbers with just enough digits to differ."""
    if isinstance(mine, int) and isinstance(expected, int):
        return str(mine), str(expected)
    for digits in (4, 6, 9, 17):
        a, b = f"{mine:.{digits}g}", f"{expected:.{digits}g}"
        if a != b:
            break
    return a, b


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

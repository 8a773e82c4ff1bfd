"""Two results, compared: equal, or a sentence about the first thing that is not.

Truth is the reference in float64. The tolerance is one rounding to the result's own dtype, plus the error of summing in
float32 (float64 for float64 results): 2^-p * |truth| + 32 * 2^-23 * max|truth|. It depends on nothing else.
"""

import decimal
import fractions
import math
import numbers
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["describe", "difference", "in_float64", "plain", "same", "wrong"]

ROUNDINGS = 32  # float32 additions whose errors may pile up one way: more than any case here sums in a row


@dataclass(frozen=True)
class Odd:
    """Stands for a value that no reference returns: what it is, in words, and whether it can be called."""

    text: str
    callable: bool = False


def plain(thing: Any, depth: int = 12) -> Any:
    """The same value in exact types of Python's and of torch's, of whatever class it came.

    A subclass may say that it equals everything, has no length, or raises: none of its methods are called. What has no
    plain counterpart (a sparse tensor, a generator, an object of a class of one's own) becomes an `Odd`.
    """
    kind = type(thing)
    if kind in (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, Odd):
        return thing
    if issubclass(kind, Tensor):
        return _plain_tensor(thing)
    for scalar, exactly in ((int, int.__int__), (float, float.__float__), (str, str.__str__)):
        if issubclass(kind, scalar):
            return exactly(thing)
    if kind in (fractions.Fraction, decimal.Decimal):
        return _as_float(thing)
    numpy = sys.modules.get("numpy")
    if numpy is not None and issubclass(kind, numpy.generic):
        return plain(numpy.generic.item(thing), 0) if depth else Odd(f"a {_kind(thing)}")
    for base in (tuple, list, dict, set, frozenset):
        if issubclass(kind, base):
            if not depth:
                return Odd(f"a {base.__name__} inside many others")
            if base is dict:
                return {_key(key): plain(value, depth - 1) for key, value in dict.items(thing)}
            items = (plain(item, depth - 1) for item in base.__iter__(thing))
            return {_key(item) for item in items} if base in (set, frozenset) else base(items)
    return Odd(f"a {_kind(thing)}", callable(thing))


def _attribute(name: str, thing: Tensor) -> Any:
    """A tensor's attribute, whatever its class says."""
    return getattr(Tensor, name).__get__(thing)


def _plain_tensor(thing: Tensor) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        if torch._C._dispatch_keys(thing).has(
            torch._C.DispatchKey.Python
        ) or torch._C._functorch.is_functorch_wrapped_tensor(thing):
            return Odd(f"a {_kind(thing)}, which is no plain tensor")
        if _attribute("is_nested", thing):
            return Odd("a nested tensor")
        if _attribute("layout", thing) is not torch.strided:
            return Odd("a sparse tensor")
        if _attribute("is_quantized", thing):
            return Odd("a quantized tensor")
        bare = Tensor.detach(Tensor.as_subclass(thing, Tensor))
        return bare if type(bare) is Tensor else Odd(f"a {_kind(thing)}, which is no plain tensor")


def _kind(thing: Any) -> str:
    return str.__str__(type.__dict__["__name__"].__get__(type(thing)))


def _key(thing: Any) -> Any:
    try:
        hash(thing)
    except TypeError:
        return Odd(f"a {_kind(thing)}")
    return thing


def _as_float(number: Any) -> float:
    """A float, infinite where it is too large for one."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf
    except ValueError:  # a signalling NaN
        return math.nan


def in_float64(args: Any) -> Any:
    """The arguments of a case with every floating-point tensor in float64: what the truth is computed from."""
    if isinstance(args, Tensor):
        return args.double() if args.dtype.is_floating_point else args
    if type(args) in (list, tuple):
        return type(args)(in_float64(item) for item in args)
    return args


def difference(
    yours: Any, truth: Any, like: Any, axes: Sequence[str] | Mapping[str, Sequence[str]] = (), parts: Sequence[str] = ()
) -> str | None:
    """What is wrong with a result, or None.

    Args:
        yours: what the learner's function returned, as `plain` gives it.
        truth: the reference's result in float64.
        like: the reference's result on the case's own dtypes; gives the kind, shape, dtype and device to expect.
        axes: names of a tensor's axes; of nested lists, outermost first; part → names, where a tuple's tensors differ.
        parts: names of a tuple's parts, counted through nested tuples.
    """
    try:
        return _compare(plain(yours), truth, like, axes, list(parts), "")
    except Exception as error:  # torch has many ways of saying that two things do not go together
        return f"your function returned {describe(yours)}, which cannot be compared with {describe(like)}: {error}"


def same(one: Any, other: Any) -> bool:
    """Whether two results agree to the tolerance. Used to recognise a mistake by its output."""
    try:
        return _compare(one, in_float64(other), other, (), [], "") is None
    except Exception:
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
    if isinstance(yours, bool) or not isinstance(yours, (int, float)):
        return f"{_subject(where)} {describe(yours)}, expected a number.{_why(yours, where)}"
    integral = isinstance(like, int)
    tolerance = 0 if integral else ROUNDINGS * torch.finfo(torch.float32).eps * max(1.0, abs(truth))
    if yours == truth or (yours != yours and truth != truth):
        return None
    if not (integral and isinstance(yours, int)):
        yours = _as_float(yours)
        if abs(yours - truth) <= tolerance:
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
    missed = wrong(mine, expected, like)
    error = (mine - expected).abs()
    count = int(missed.sum())
    if count == 0:
        return None
    error = torch.where(missed, torch.nan_to_num(error, nan=math.inf, posinf=math.inf), -1.0)
    index = _index(int(error.argmax()), error.shape)
    if like.dtype == torch.bool:
        a, b = str(bool(mine[index])), str(bool(expected[index]))
    else:
        a, b = _digits(mine[index].item(), expected[index].item())
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


def _index(number: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Where the element of this number lies, row by row. (`torch.unravel_index` imports SymPy first, for five seconds.)"""
    index: list[int] = []
    for size in reversed(shape):
        number, at = divmod(number, size)
        index.insert(0, at)
    return tuple(index)


def wrong(yours: Tensor, truth: Tensor, like: Tensor) -> Tensor:
    """Which elements lie outside the tolerance, as booleans: `yours` and `truth` of one shape in float64, dtype of `like`."""
    if not like.dtype.is_floating_point:
        return yours != truth
    finite = truth[truth.isfinite()].abs()
    scale = finite.max() if finite.numel() else truth.new_zeros(())
    summing = torch.finfo(torch.float64 if like.dtype == torch.float64 else torch.float32).eps
    tolerance = torch.finfo(like.dtype).eps * truth.abs() + ROUNDINGS * summing * scale
    return ~(((yours - truth).abs() <= tolerance) | (yours == truth) | (yours.isnan() & truth.isnan()))


def describe(thing: Any) -> str:
    """A value in a few words: "a list of 3", "a float64 tensor of shape (2, 3)", "None"."""
    thing = plain(thing)
    if isinstance(thing, Odd):
        return thing.text
    if isinstance(thing, Tensor):
        return f"a {_name(thing.dtype)} tensor of shape {tuple(thing.shape)}"
    if isinstance(thing, (tuple, list)):
        if len(thing) <= 6 and all(isinstance(item, numbers.Number) for item in thing):
            said = ", ".join(describe(item) for item in thing) + "," * (type(thing) is tuple and len(thing) == 1)
            return f"({said})" if isinstance(thing, tuple) else f"[{said}]"
        return f"a {type(thing).__name__} of {len(thing)}"
    if isinstance(thing, int) and abs(thing) >= 10**30:
        return f"an integer of {int(thing.bit_length() * math.log10(2)) + 1:,} digits"
    if thing is None or isinstance(thing, (bool, numbers.Number)):
        return repr(thing)
    if isinstance(thing, torch.dtype):
        return _name(thing)
    text = repr(thing) if isinstance(thing, str) else f"a {_kind(thing)}"
    return text if len(text) <= 60 else text[:57] + "…"


def _subject(where: str) -> str:
    return f"{where} is" if where else "your function returned"


def _why(yours, where: str) -> str:
    if yours is None and not where:  # of a part, a return statement has said so
        return " Is the return statement missing?"
    if isinstance(yours, Odd) and yours.callable:
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
        return describe(mine), describe(expected)
    for digits in (4, 6, 9, 17):
        a, b = f"{mine:.{digits}g}", f"{expected:.{digits}g}"
        if a != b:
            break
    return a, b


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

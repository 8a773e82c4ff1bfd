"""What differs between a wrong answer and the truth, in words: how the wrong values relate to the right ones, and where.

Each sentence is read off the data and holds for all of it; where nothing simple holds, nothing is said.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from checks.core import compare

__all__ = ["relation", "place", "spread"]

FEW = 4  # indices that are listed one by one
LIKE = 0.02  # how far factors, or differences, that are said to be one may lie apart


@dataclass(frozen=True)
class Leaf:
    """One tensor (or number) of a result: what it is called, both values in float64, and which elements are wrong."""

    label: str
    yours: Tensor
    truth: Tensor
    wrong: Tensor
    axes: Sequence[str]
    slack: float


def _leaves(yours: Any, truth: Any, like: Any, axes: Any, parts: list[str], label: str = "") -> list[Leaf] | None:
    """The parts of a result that can be compared one by one; None where the result is of another kind or shape."""
    if isinstance(like, (tuple, list)):
        if not isinstance(yours, (tuple, list)) or len(yours) != len(like):
            return None
        found: list[Leaf] = []
        for index, (y, t, k) in enumerate(zip(yours, truth, like)):
            name = (
                label or f"part {index}" if isinstance(k, tuple) else (parts.pop(0) if parts else f"{label}[{index}]")
            )
            inner = _leaves(y, t, k, axes, parts, name)
            if inner is None:
                return None
            found += inner
        return found
    if isinstance(like, Tensor):
        if not isinstance(yours, Tensor) or like.is_complex():
            return None
        if (yours.shape, yours.dtype, yours.device) != (like.shape, like.dtype, like.device):
            return None
        mine, right = yours.detach().double().cpu(), truth.detach().double().cpu()
        named = axes.get(label, ()) if isinstance(axes, Mapping) else axes
        slack = 1e-5 + (8 * torch.finfo(like.dtype).eps if like.dtype.is_floating_point else 0)
        return [Leaf(label, mine, right, compare.wrong(mine, right, like.cpu()), list(named), slack)]
    if isinstance(like, (int, float)) and not isinstance(like, bool):
        if isinstance(yours, bool) or not isinstance(yours, (int, float)) or abs(yours) > 2**53 or abs(truth) > 2**53:
            return None
        mine, right = (torch.tensor(float(one), dtype=torch.float64) for one in (yours, truth))
        missed = torch.tensor(compare.difference(yours, truth, like) is not None)
        return [Leaf(label, mine, right, missed, (), 1e-5)]
    return [] if yours == truth else None


def relation(results: Sequence[tuple[Any, Any, Any]], axes: Any = (), parts: Sequence[str] = ()) -> str:
    """How the wrong values of all failing cases relate to the right ones, as a sentence; "" if in no simple way.

    Args:
        results: (yours, truth, like) of each failing case, as `compare.difference` takes them.
        axes, parts: as there.
    """
    pairs, slack, each = [], 0.0, []
    for yours, truth, like in results:
        leaves = _leaves(yours, truth, like, axes, list(parts))
        if not leaves:
            return ""
        for leaf in leaves:
            if leaf.wrong.any():
                pairs.append((leaf.yours[leaf.wrong], leaf.truth[leaf.wrong]))
                slack = max(slack, leaf.slack)
        each.append(leaves)
    if not pairs:
        return ""
    y, t = torch.cat([one for one, _ in pairs]), torch.cat([one for _, one in pairs])
    many = "Each wrong value" if len(y) > 1 else "The wrong value"
    if y.isnan().all():
        return f"{many} is NaN." if len(y) > 1 else ""
    if len(y) < 2 or not (y.isfinite().all() and t.isfinite().all()):
        return ""
    near = lambda a, b: bool(((a - b).abs() <= slack * (1e-3 + b.abs())).all())  # noqa: E731
    if (y == 0).all():
        return "Each wrong value is 0."
    if near(y, -t):
        return "Each wrong value has the right size and the wrong sign."
    distinct = len(t.unique()) >= 2
    # What is said of a factor or a difference must hold of the factor or difference itself, not drown in the tolerance.
    alike = lambda a, b: bool(((a - b).abs() <= LIKE * b.abs()).all())  # noqa: E731
    if distinct and (t != 0).all():
        ratio = (y / t).median()
        if near(y, ratio * t) and alike(y / t - 1, (ratio - 1).expand(len(t))):
            return f"Each wrong value is {_number(ratio)} times what is expected."
    if distinct:
        step = (y - t).median()
        if near(y - step, t) and alike(y - t, step.expand(len(t))):
            return f"Each wrong value is {_number(step.abs())} too {'large' if step > 0 else 'small'}."
    for rounded, how in ((t.floor(), "rounded down"), (t.round(), "rounded"), (t.ceil(), "rounded up")):
        if near(y, rounded):
            return f"Each wrong value is what is expected, {how}."
    if all(
        len(one) >= 3
        and (b != 0).all()
        and near(one, (one / b).median() * b)
        and alike(one / b - 1, ((one / b).median() - 1).expand(len(b)))
        for one, b in pairs
    ):
        return "Within one result, each wrong value is the same multiple of what is expected."
    return _order(each[0])


def _number(value: Tensor) -> str:
    return f"{float(value):.4g}"


def _order(leaves: list[Leaf]) -> str:
    """Whether the values of the shown case are the right ones in other places."""
    leaf = next((one for one in leaves if one.wrong.any()), None)
    if leaf is None or leaf.truth.numel() < 4 or leaf.truth.unique().numel() < 4:
        return ""
    y, t = leaf.yours, leaf.truth
    same = lambda a, b: bool(((a - b).abs() <= leaf.slack * (1e-3 + b.abs())).all())  # noqa: E731
    name = lambda axis: _axis(leaf, axis)  # noqa: E731
    for i in range(t.dim()):
        for j in range(i + 1, t.dim()):
            if same(y.reshape(-1), t.transpose(i, j).reshape(-1)):
                return f"Here the values are the expected ones with the axes of {name(i)} and {name(j)} transposed."
    for axis in range(t.dim()):
        size = t.shape[axis]
        if size > 1 and same(y, t.flip(axis)):
            return f"Here the values are the expected ones in reverse order along the axis of {name(axis)}."
        if size > 2:
            for step, where in ((1, "one place further on"), (-1, "one place too early")):
                a, b = (y.narrow(axis, 1, size - 1), t.narrow(axis, 0, size - 1))
                if step < 0:
                    a, b = y.narrow(axis, 0, size - 1), t.narrow(axis, 1, size - 1)
                if same(a, b):
                    return f"Here the values are the expected ones, {where} along the axis of {name(axis)}."
    if same(y.reshape(-1).sort().values, t.reshape(-1).sort().values):
        return "Here the values are the expected ones in other places."
    return ""


def place(
    yours: Any,
    truth: Any,
    like: Any,
    axes: Any = (),
    parts: Sequence[str] = (),
    regions: Mapping[str, Tensor] | None = None,
) -> str:
    """Where in one result the wrong values lie, as a sentence; "" if everywhere, or in no simple place.

    Args:
        yours, truth, like, axes, parts: as `compare.difference` takes them.
        regions: words that complete "only where …" → booleans that broadcast to the result, a single tensor.
    """
    leaves = _leaves(yours, truth, like, axes, list(parts))
    if not leaves:
        return ""
    wrong = [leaf for leaf in leaves if leaf.wrong.any()]
    said = []
    if wrong and len(leaves) > len(wrong) and all(leaf.label for leaf in leaves):
        names = ", ".join(leaf.label for leaf in wrong)
        right = ", ".join(leaf.label for leaf in leaves if leaf not in wrong)
        said.append(f"Wrong is {names}; right is {right}.")
    if len(wrong) == 1:
        said += [one for one in (_region(wrong[0], regions or {}) or _indices(wrong[0]),) if one]
    return " ".join(said)


def _region(leaf: Leaf, regions: Mapping[str, Tensor]) -> str:
    if leaf.wrong.dim() == 0:
        return ""
    best: tuple[int, str, int, int] | None = None
    for words, mask in regions.items():
        inside = torch.broadcast_to(mask, leaf.wrong.shape)
        size = int(inside.sum())
        if size < leaf.wrong.numel() and not (leaf.wrong & ~inside).any() and (best is None or size < best[0]):
            best = (size, words, int((leaf.wrong & inside).sum()), size)
    if best is None:
        return ""
    _, words, count, size = best
    share = "all of them" if count == size else f"{count} of {size} values"
    return f"It is wrong only where {words} ({share} there), and right everywhere else."


def _indices(leaf: Leaf) -> str:
    """The axis along which the wrong values lie in the fewest places."""
    found = []
    for axis in range(leaf.wrong.dim()):
        size = leaf.wrong.shape[axis]
        others = [other for other in range(leaf.wrong.dim()) if other != axis]
        hit = leaf.wrong.any(dim=others) if others else leaf.wrong
        at = hit.nonzero().flatten().tolist()
        words = _which(at, size, _axis(leaf, axis))
        if 0 < len(at) < size and words:
            found.append((len(at) / size, words))
    return f"It is wrong only at {min(found)[1]}, and right everywhere else." if found else ""


def _which(at: list[int], size: int, axis: str) -> str:
    if size < 2 or not at:
        return ""
    if len(at) == 1:
        return f"{axis} {at[0]} (of {size})"
    if at == list(range(at[0], at[-1] + 1)):
        return f"{axis} {at[0]} to {at[-1]} (of {size})"
    if len(at) <= FEW:
        return f"{axis} {', '.join(map(str, at))} (of {size})"
    if at == list(range(1, size, 2)) or at == list(range(0, size, 2)):
        return f"each {'odd' if at[0] else 'even'} {axis}"
    return ""


def _axis(leaf: Leaf, axis: int) -> str:
    names = leaf.axes
    if len(names) >= leaf.wrong.dim():
        return names[len(names) - leaf.wrong.dim() + axis]
    return "index" if leaf.wrong.dim() == 1 else f"index of axis {axis}"


def spread(states: Sequence[tuple[str, bool]]) -> str:
    """In which checks the answer is right and in which it is wrong: name → whether it holds. "" where there are too few."""
    wrong, right = ([name for name, holds in states if holds is which] for which in (False, True))
    if not right or len(wrong) > FEW:
        return ""
    few = " and ".join((", ".join(wrong[:-1]), wrong[-1])) if len(wrong) > 1 else wrong[0]
    return f"Of {len(states)} checks, only {few} {'do' if len(wrong) > 1 else 'does'} not hold."

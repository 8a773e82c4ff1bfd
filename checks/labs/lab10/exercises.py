"""Lab 10, Ship it: its exercises, and the mistakes they are there to find.

The answers launch the learner's kernels from labs 5 and 8. What an answer is compared with is `msda_core`, which shares
no line with them.
"""

import inspect
import linecache
import sys
from collections.abc import Callable
from itertools import count
from typing import Any

import torch
from torch import Tensor

from checks.core.compare import describe
from checks.core.exercise import Draw, Failed, Mistake, Property, exercise
from checks.kernel.launches import edited
from msda_core import nn, reference
from solutions import lab10 as solution

LIMIT = 60.0  # seconds one call may take: a loop without an end, not a slow interpreter
ARGUMENTS = ("value", "spatial_shapes", "level_start_index", "sampling_locations", "attention_weights")

_serial = count()


def edited_class(kind: type, *changes: tuple[str, str], **names: Any) -> type:
    """A wrong class, told as what is different from a right one, as `edited` tells of a function.

    Raises:
        ValueError: old does not occur: the right class has changed and the mistake has not.
    """
    text = inspect.getsource(kind)
    for old, new in changes:
        if old not in text:
            raise ValueError(f"{kind.__name__} does not contain {old!r}, so it cannot be edited.")
        text = text.replace(old, new)
    filename = f"<{kind.__name__}, wrong, {next(_serial)}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    scope = {**vars(sys.modules[kind.__module__]), **names, "__name__": __name__}
    exec(compile(text, filename, "exec"), scope)
    return scope[kind.__name__]


def _call(draw: Draw, shapes=((3, 5), (2, 4)), *, B=1, Q=2, M=2, D=3, K=3, dtype=torch.float32) -> list[Tensor]:
    """The five arguments of a call that everything about is in order."""
    table = torch.tensor(shapes)
    pixels = table.prod(1)
    return [
        draw.normal(B, int(pixels.sum()), M, D, dtype=dtype),
        table,
        pixels.cumsum(0) - pixels,
        draw.uniform(B, Q, M, len(shapes), K, 2, low=-0.2, high=1.2),
        draw.uniform(B, Q, M, len(shapes), K, dtype=dtype),
    ]


# --- check_inputs ---------------------------------------------------------------------------------------------------


def _lets_in(answer, draw: Draw) -> bool:
    """Whether an ordinary good call passes: tells who refuses this call from who refuses every call."""
    try:
        answer(*_call(draw))
    except Exception:
        return False
    return True


def _lets_in_anything(answer, draw: Draw) -> bool:
    """Whether the coarsest of bad calls pass: tells who forgot this one from who looks at nothing."""
    for at in (0, 3, 4):
        args = _call(draw)
        args[at] = args[at][..., 0, 0]
        try:
            answer(*args)
        except Exception:
            return False
    return True


def _passes(name: str, title: str, make: Callable[[Draw], list[Tensor]]) -> Property:
    def check(answer, draw: Draw) -> None:
        args = make(draw)
        try:
            result = answer(*args)
        except ValueError as error:
            raise Failed(f"a good call is refused: “{error}”", key=("refused", name, _lets_in(answer, draw))) from error
        if result is not None:
            raise Failed("a front door returns nothing; yours returned something.", key=("returns", name))

    return Property(name, title, check)


def _refuses(
    name: str,
    title: str,
    spoil: Callable[[list[Any]], None],
    at_fault: str,
    seen: Callable[[list[Any]], Any],
    *others: tuple[str, Callable[[list[Any]], Any]],
) -> Property:
    """A call with one thing wrong. The message has to begin with the argument at fault and quote what came.

    Args:
        name, title: of the check.
        spoil: changes the arguments of a good call.
        at_fault, seen: the argument that must be named, and what of it must be quoted, taken from the arguments.
        others: further pairs, where two arguments contradict each other and nobody can say which one is wrong.
    """

    def check(answer, draw: Draw) -> str:
        args = _call(draw, B=2, Q=5, M=4, D=6, K=3)
        spoil(args)
        wanted = {argument: str(quoted(args)) for argument, quoted in ((at_fault, seen), *others)}
        try:
            answer(*args)
        except NotImplementedError:
            raise  # the stub
        except ValueError as error:
            said = str(error)
        except Exception as error:
            said = f"{type(error).__name__}, “{error}”" if str(error) else type(error).__name__
            raise Failed(
                f"raised {said}, expected a ValueError.",
                key=("raised", name, type(error).__name__),
            ) from error
        else:
            raise Failed("the call was let through.", key=("let through", name, _lets_in_anything(answer, draw)))
        blamed = next((argument for argument in wanted if said.startswith(argument)), None)
        if blamed is None:
            names = " or ".join(f"`{argument}`" for argument in wanted)
            raise Failed(
                f"the error must begin with {names}, the argument at fault, got “{said}”.",
                key=("blames", name, _lets_in(answer, draw)),
            )
        came = wanted[blamed]
        if came.replace(" ", "") not in said.replace(" ", ""):
            raise Failed(f"the error must say what came, {came}, got “{said}”.", key=("silent", name))
        return f"“{said}”"

    return Property(name, title, check)


def _at(position: int, change: Callable[[Any], Any]):
    def spoil(args: list) -> None:
        args[position] = change(args[position])

    return spoil


def _shape(position: int):
    return lambda args: tuple(args[position].shape)


def _spoil_starts(args: list) -> None:
    args[2] = args[2].clone()
    args[2][1] = -4


def _spoil_level(args: list) -> None:
    args[1] = torch.tensor([[3, 5], [0, 4]])


def _reaching_past(args: list) -> None:
    """Level 1 of a pyramid one row taller."""
    args[1] = args[1] + torch.tensor([[0, 0], [1, 0]])


def _in_halves(args: list) -> None:
    args[0] = args[0].half()
    args[3] = args[3].bfloat16()


def _on_meta(args: list) -> None:
    args[4] = args[4].to("meta")


def _good_strides(draw: Draw) -> list[Tensor]:
    args = _call(draw, M=2, D=4)
    args[0] = args[0].transpose(1, 2).contiguous().transpose(1, 2)
    return args


def _good_tables(draw: Draw) -> list[Tensor]:
    args = _call(draw)
    args[1], args[2] = args[1].int(), args[2].int()
    return args


def _good_gap(draw: Draw) -> list[Tensor]:
    """Starts that leave pixels between two levels, and after the last."""
    args = _call(draw)
    args[0], args[2] = draw.normal(1, 40, 2, 3), torch.tensor([2, 20])
    return args


def _good_numbers(draw: Draw) -> list[Tensor]:
    args = _call(draw)
    args[3][0, 0, 0, 0] = torch.tensor([[float("nan"), 0.5], [float("inf"), 0.5], [-3e9, 0.5]])
    args[0][0, 0, 0, 0], args[4][0, 0, 0, 0, 0] = float("nan"), -7.0
    return args


GOOD = [
    _passes("as_usual", "a call as models make it passes", _call),
    _passes("no_query", "Q may be 0", lambda draw: _call(draw, Q=0)),
    _passes("no_image", "B may be 0", lambda draw: _call(draw, B=0)),
    _passes("float16", "float16 value passes with float32 locations", lambda draw: _call(draw, dtype=torch.float16)),
    _passes("bfloat16", "bfloat16 value passes, too", lambda draw: _call(draw, dtype=torch.bfloat16)),
    _passes("strides", "value may be transposed", _good_strides),
    _passes("int32", "tables may be int32", _good_tables),
    _passes("gaps", "levels need not lie one after another", _good_gap),
    _passes(
        "any_numbers",
        "any numbers pass, also none: locations outside read zeros, and a NaN in value is its owner's",
        _good_numbers,
    ),
]
BAD = [
    _refuses(
        "a_list", "spatial_shapes is a list", _at(1, lambda t: t.tolist()), "spatial_shapes", lambda a: type(a[1]).__name__
    ),
    _refuses("heads_folded", "value has no axis of heads", _at(0, lambda t: t.flatten(2)), "value", _shape(0)),
    _refuses(
        "no_xy", "sampling_locations has no axis of (x, y)", _at(3, lambda t: t[..., 0]), "sampling_locations", _shape(3)
    ),
    _refuses(
        "boxes", "sampling_locations holds boxes", _at(3, lambda t: torch.cat([t, t], -1)), "sampling_locations", _shape(3)
    ),
    _refuses(
        "other_batch", "another batch than value's", _at(3, lambda t: t.repeat(2, 1, 1, 1, 1, 1)), "sampling_locations", _shape(3)
    ),
    _refuses("other_heads", "other heads than value's", _at(3, lambda t: t[:, :, :3]), "sampling_locations", _shape(3)),
    _refuses(
        "weights_folded", "levels and points of the weights are one axis", _at(4, lambda t: t.flatten(3)), "attention_weights", _shape(4)
    ),
    _refuses(
        "weights_short", "fewer weights than points", _at(4, lambda t: t[..., :2]), "attention_weights", _shape(4)
    ),
    _refuses("other_levels", "a pyramid of other levels", _at(1, lambda t: t[:1]), "spatial_shapes", _shape(1), ("level_start_index", _shape(2))),
    _refuses("other_starts", "more starts than levels", _at(2, lambda t: t.repeat(2)), "level_start_index", _shape(2)),
    _refuses("table_of_floats", "spatial_shapes in float32", _at(1, lambda t: t.float()), "spatial_shapes", lambda a: a[1].dtype),
    _refuses("starts_of_floats", "level_start_index in float32", _at(2, lambda t: t.float()), "level_start_index", lambda a: a[2].dtype),
    _refuses("integers", "value in integers", _at(0, lambda t: t.int()), "value", lambda a: a[0].dtype),
    _refuses("doubles", "value in float64, in which your kernels do not compute", _at(0, lambda t: t.double()), "value", lambda a: a[0].dtype),
    _refuses("two_halves", "bfloat16 locations beside a float16 value", _in_halves, "sampling_locations", lambda a: a[3].dtype),
    _refuses("two_devices", "the weights are on another device", _on_meta, "attention_weights", lambda a: a[4].device),
    _refuses("no_height", "a level without rows", _spoil_level, "spatial_shapes", lambda a: tuple(a[1][1].tolist())),
    _refuses("before", "a level that begins before the first pixel", _spoil_starts, "level_start_index", lambda a: -4),
    _refuses(
        "past", "a level that ends past the last pixel", _reaching_past, "spatial_shapes", lambda a: tuple(a[1][1].tolist()),
        ("level_start_index", lambda a: a[2][1].item()), ("value", lambda a: a[0].shape[1]),
    ),
]  # fmt: skip


def _reference_check(*args) -> None:
    return None


def _check(*changes: tuple[str, str]) -> Callable:
    return edited(solution.check_inputs, *changes)


def _refuse_all(*args) -> None:
    raise ValueError("value is not as it should be.")


def _as_python_says(value, spatial_shapes, level_start_index, sampling_locations, attention_weights) -> None:
    B, S, M, D = value.shape
    _, Q, _, L, K, _ = sampling_locations.shape
    assert attention_weights.shape == (B, Q, M, L, K)


exercise(
    "10.check_inputs",
    reference=_reference_check,
    cases=[],
    properties=[*GOOD, *BAD],
    limit=LIMIT,
    mistakes=[
        Mistake(
            "when the last pixel of a level is not looked at",
            _check(("start + H * W > S", "start > S")),
            "A level that begins inside value may still end past it. What does a kernel read there?",
        ),
        Mistake(
            "when levels must fill value",
            _check(("start + H * W > S", "spatial_shapes.prod(-1).sum() != S")),
            "Levels may lie apart: that is what level_start_index is for.",
        ),
        Mistake(
            "when the heads of the locations are not compared with value's",
            _check(("(got[0], got[2]) != (B, M)", "got[0] != B")),
            "With fewer heads in sampling_locations than in value, whose points does the last head read?",
        ),
        Mistake(
            "when the batch of the locations is not compared with value's",
            _check(("(got[0], got[2]) != (B, M)", "got[2] != M")),
            "value has B images. How many do the locations speak of?",
        ),
        Mistake(
            "when locations of four numbers pass",
            _check((" or got[-1] != 2", "")),
            "A location is (x, y). Some models have boxes at hand, (x, y, w, h).",
        ),
        Mistake(
            "when Q = 0 is refused",
            _check(("    if L == 0:", '    if Q == 0:\n        raise ValueError("sampling_locations is empty.")\n    if L == 0:')),
            "A detector may have no query left. The result then has no rows, and that is no error.",
        ),
        Mistake(
            "when B = 0 is refused",
            _check(("    if L == 0:", '    if B == 0:\n        raise ValueError("value is empty.")\n    if L == 0:')),
            "A batch may be empty. The result then has no rows, and that is no error.",
        ),
        Mistake(
            "when empty tensors are refused",
            _check(("    if L == 0:", '    if B == 0 or Q == 0:\n        raise ValueError("value is empty.")\n    if L == 0:')),
            "Nothing to do is no error: the result has no rows.",
        ),
        Mistake(
            "when an empty tensor is asked for its smallest number",
            _check(("    if L == 0:", '    sampling_locations.min()\n    if L == 0:')),
            "There is none without a query. And what the numbers are is not asked: points outside read zeros.",
        ),
        Mistake(
            "when value must be contiguous",
            _check(("    if L == 0:", '    if not value.is_contiguous():\n        raise ValueError("value must be contiguous.")\n    if L == 0:')),
            "Your launchers make contiguous what is not. Is that call wrong, or only slower?",
        ),
        Mistake(
            "when tables must be int64",
            _check(("not in (torch.int32, torch.int64)", "!= torch.int64")),
            "Both int32 and int64 are common, and your kernels read either.",
        ),
        Mistake(
            "when NaN in value is refused",
            _check(("    if L == 0:", '    if not torch.isfinite(value).all():\n        raise ValueError("value must be finite.")\n    if L == 0:')),
            "It takes a pass over the largest tensor to find out, and a training that diverges wants to show it.",
        ),
        Mistake(
            "when a level before the first pixel passes",
            _check(("start < 0", "False")),
            "In Python, -4 counts from the end. What does it do in an address?",
        ),
        Mistake(
            "when empty levels pass",
            _check(("H < 1 or W < 1", "False")),
            "A level without rows has no pixel. Whoever sends one has made a mistake.",
        ),
        Mistake(
            "when a list passes",
            _check(("not isinstance(tensor, torch.Tensor)", "not isinstance(tensor, (torch.Tensor, list))"),
                   ("tensor.device != value.device", "isinstance(tensor, torch.Tensor) and tensor.device != value.device"),
                   ("named[name].dtype not in (torch.int32, torch.int64)", "torch.as_tensor(named[name]).dtype not in (torch.int32, torch.int64)"),
                   ("tuple(named[name].shape) != expected", "tuple(torch.as_tensor(named[name]).shape) != expected"),
                   ("spatial_shapes.tolist()", "torch.as_tensor(spatial_shapes).tolist()")),
            "A kernel takes addresses, and a list has none that it could use.",
        ),
        Mistake(
            "when the error is a TypeError",
            _check(('raise ValueError(f"{name} must be a tensor', 'raise TypeError(f"{name} must be a tensor')),
            "Python would say so of a wrong kind. Here one kind of error is agreed upon: ValueError.",
        ),
        Mistake(
            "when the dtypes of tables are not looked at",
            _check(("not in (torch.int32, torch.int64)", "is None")),
            "A kernel reads integers at the address it is given, whatever is there.",
        ),
        Mistake(
            "when float64 passes",
            _check(("(torch.float32, torch.float16, torch.bfloat16)", "(torch.float64, torch.float32, torch.float16, torch.bfloat16)")),
            "Your kernels compute in float32. Whoever hands over float64 wants more than that.",
        ),
        Mistake(
            "when every float dtype passes for the locations",
            _check(("not in (value.dtype, torch.float32)", "not in (torch.float32, torch.float16, torch.bfloat16)")),
            "Which dtypes do your kernels take beside a float16 value?",
        ),
        Mistake(
            "when locations must have value's dtype",
            _check(("not in (value.dtype, torch.float32)", "!= value.dtype")),
            "Lab 9: a 16-bit location misses its pixel. float32 locations beside a 16-bit value are the better call.",
        ),
        Mistake(
            "when locations outside the image are refused",
            _check(("    if L == 0:", '    if not ((sampling_locations >= 0) & (sampling_locations <= 1)).all():\n        raise ValueError("sampling_locations must lie in [0, 1].")\n    if L == 0:')),
            "Points outside read zeros; every detector has some.",
        ),
        Mistake(
            "when devices are not compared",
            _check(("tensor.device != value.device", "False")),
            "What does a kernel do with an address of another device?",
        ),
        Mistake(
            "when everything is refused",
            _refuse_all,
            "A front door that lets nobody in keeps nobody safe: good calls must pass.",
        ),
        Mistake(
            "when Python's own errors must do",
            _as_python_says,
            "“too many values to unpack” tells nobody which tensor is wrong. Name it, and say what came.",
        ),
        Mistake("when everything passes", lambda *args: None, "Begin with ranks, then sizes, then dtypes, then the table."),
        Mistake(
            "when float16 is refused",
            _check(("(torch.float32, torch.float16, torch.bfloat16)", "(torch.float32,)")),
            "Your kernels take three dtypes.",
        ),
        Mistake(
            "when the smallest location is looked at, which an empty tensor does not have",
            _check(("    if L == 0:", '    if not (sampling_locations.min() >= 0):\n        raise ValueError("sampling_locations must lie in [0, 1].")\n    if L == 0:')),
            "What the numbers are is not asked: points outside read zeros; every detector has some.",
        ),
    ],
    hints=[
        "Which mistakes of a caller would make your kernel read where it must not, or give a wrong number in silence? "
        "And what would you want to read when it happens to you?",
        "Go from what can be read first to what needs it: kinds and devices, dtypes, number of axes, sizes that must agree, "
        "and last the numbers in the level table.",
        "`raise ValueError(f\"{name} must be …, got {tuple(tensor.shape)}. Is …?\")`. Unpack `B, S, M, D = value.shape` only "
        "after its rank is checked. In the table: height and width at least 1, start at least 0, `start + H * W <= S`.",
    ],
)  # fmt: skip


# --- MSDAFunction ---------------------------------------------------------------------------------------------------


def _there_and_back(answer, grad_out: Tensor, value, shapes, starts, locations, attention):
    """The output, and what autograd makes of it."""
    leaves = [t.detach().clone().requires_grad_() for t in (value, locations, attention)]
    try:
        out = answer.apply(leaves[0], shapes, starts, *leaves[1:])
        if not isinstance(out, Tensor):
            raise Failed(
                f"forward returned {describe(out)}, expected a tensor. Is the return missing?", key=("returns",)
            )
        return (out.detach(), *_grads(out, leaves, grad_out))
    except RuntimeError as error:
        if "Function" in str(error):
            error.key = str(error)  # autograd says which gradient it cannot use: that tells mistakes apart
        raise


def _grads(out: Tensor, leaves: list[Tensor], grad_out: Tensor) -> list[Tensor]:
    """Gradients, zero where autograd finds no way from a leaf to the output."""
    grads = torch.autograd.grad(out, leaves, grad_out, allow_unused=True)
    return [torch.zeros_like(leaf) if grad is None else grad for grad, leaf in zip(grads, leaves)]


def _truth(grad_out, value, shapes, starts, locations, attention):
    out = reference.msda(value, shapes, starts, locations, attention)
    return (out, *reference.msda_gradients(value, shapes, starts, locations, attention, grad_out))


def _with_grad(draw: Draw, args: list[Tensor]) -> tuple:
    B, _, M, D = args[0].shape
    return draw.normal(B, args[3].shape[1], M * D, dtype=args[0].dtype), *args


def as_models_call_it(draw: Draw):
    """autograd finds the three gradients, each in its place"""
    return _with_grad(draw, _call(draw))


def two_images(draw: Draw):
    """several images, heads and levels at once"""
    return _with_grad(draw, _call(draw, [(2, 3), (4, 3), (1, 2)], B=2, Q=1, M=2, D=5, K=2))


def a_sum(draw: Draw):
    """grad_out may be one number, expanded: when a sum is differentiated"""
    args = _call(draw, [(3, 4)], Q=2, M=1, D=4, K=3)
    return torch.tensor(draw.number(0.5, 2.0)).expand(1, 2, 4), *args


def no_query(draw: Draw):
    """without queries the result stays attached, and the gradient of value is zero"""
    return _with_grad(draw, _call(draw, Q=0))


def half_value(draw: Draw):
    """float16 value with float32 locations: each gradient in its own dtype"""
    return _with_grad(draw, _call(draw, Q=1, dtype=torch.float16))


def _launches(answer, draw: Draw) -> str:
    """That kernels do the work, forward and backward."""
    from msda_core import machine

    launches = []
    with machine.guard(launched=launches.append):
        _there_and_back(answer, *as_models_call_it(draw))
    names = [launch.name for launch in launches]
    if len(names) < 2:
        raise Failed(
            f"a forward and a backward launch two kernels, yours {names or 'none'}. Call your launchers.",
            key=("launches", len(names)),
        )
    return f"it launches {' and '.join(names)}."


def _notices(answer, draw: Draw) -> None:
    """That a tensor changed between forward and backward is found out."""
    value, shapes, starts, locations, attention = _call(draw, Q=1)
    locations.requires_grad_()
    out = answer.apply(value, shapes, starts, locations, attention)
    value.mul_(2.0)
    try:
        out.sum().backward()
    except RuntimeError as error:
        if "modified by an inplace operation" in str(error):
            return
        raise
    raise Failed("value was doubled after the forward, and the backward went through: its gradients are wrong.")


def _once(answer, draw: Draw) -> None:
    """That a second derivative is refused."""
    value, shapes, starts, locations, attention = _call(draw, Q=1)
    value.requires_grad_(), locations.requires_grad_()
    out = answer.apply(value, shapes, starts, locations, attention)
    try:
        (slope,) = torch.autograd.grad(out.square().sum(), locations, create_graph=True, allow_unused=True)
    except RuntimeError as error:
        error.key = ("first", str(error))
        raise
    if slope is None:
        raise Failed("no gradient of sampling_locations arrives, so there is none to differentiate.", key=("no slope",))
    if not slope.requires_grad:
        raise Failed(
            "the gradient of a gradient is taken for zero, in silence: a penalty on gradients would do nothing.",
            key=("no graph",),
        )
    try:
        slope.square().sum().backward()
    except RuntimeError as error:
        if "once_differentiable" in str(error):
            return
        error.key = ("second", str(error))
        raise
    raise Failed("a second derivative came out, and it is wrong: nobody has written it.", key=("wrong graph",))


def _keeps_little(answer, draw: Draw) -> str:
    """That nothing but the inputs is kept for the backward: the operator's point is the memory it saves."""
    args = _call(draw, Q=1)
    for at in (0, 3, 4):
        args[at].requires_grad_()
    kept = []

    def pack(tensor):
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        answer.apply(*args)
    known = {t.data_ptr() for t in args}
    extra = [tuple(t.shape) for t in kept if t.data_ptr() not in known]
    if extra:
        raise Failed(f"kept for the backward besides the inputs: tensors of shape {extra}.", key=("keeps", len(extra)))
    return f"{len(kept)} tensors are kept, all of them inputs."


def _function(*changes: tuple[str, str]) -> type:
    return edited_class(solution.MSDAFunction, *changes)


SAVED = "*ctx.saved_tensors"
GIVEN = "return grad_value, None, None, grad_loc, grad_attn"

exercise(
    "10.MSDAFunction",
    reference=_truth,
    cases=[as_models_call_it, two_images, a_sum, no_query, half_value],
    properties=[
        Property("launches", "kernels do the work, there and back", _launches),
        Property("notices", "an input changed before the backward is found out, not used", _notices),
        Property("once", "a second derivative is refused, not taken for zero", _once),
        Property("keeps_little", "nothing but the inputs is kept for the backward", _keeps_little),
    ],
    invoke=_there_and_back,
    guarded=True,
    limit=LIMIT,
    parts=("the output", "grad_value", "grad_loc", "grad_attn"),
    carries=("05.msda_forward", "08.msda_backward", "09.msda_backward_switched"),
    mistakes=[
        Mistake(
            "when there are three gradients for five arguments",
            _function((GIVEN, "return grad_value, grad_loc, grad_attn")),
            "PyTorch counts the arguments of forward. What is the gradient of a table of integers?",
        ),
        Mistake(
            "when the gradients of locations and weights change places",
            _function((GIVEN, "return grad_value, None, None, grad_attn, grad_loc")),
            "Gradients come back in the order of forward's arguments.",
        ),
        Mistake(
            "when grad_out is taken for ones",
            _function(("msda_backward(grad_out,", "msda_backward(torch.ones_like(grad_out),")),
            "The output is not the loss. What does grad_out say about the two?",
        ),
        Mistake(
            "when grad_out is multiplied once more",
            _function((GIVEN, "return grad_value * grad_out.mean(), None, None, grad_loc, grad_attn")),
            "Your kernel has multiplied by grad_out already.",
        ),
        Mistake(
            "when tensors are put on ctx as they are",
            _function(
                ("ctx.save_for_backward(value, spatial_shapes, level_start_index, sampling_locations, attention_weights)",
                 "ctx.kept = (value, spatial_shapes, level_start_index, sampling_locations, attention_weights)"),
                (SAVED, "*ctx.kept"),
            ),
            "PyTorch counts the changes of a tensor, and compares only for those that it was asked to save.",
        ),
        Mistake(
            "when copies are kept",
            _function(("ctx.save_for_backward(value,", "ctx.save_for_backward(value.clone(),")),
            "A copy of value cannot be changed by anybody, true. It doubles the memory of the largest tensor.",
        ),
        Mistake(
            "when nothing says that it is differentiable once",
            _function(("    @once_differentiable\n", "")),
            "PyTorch records what a backward does, too. What does it see of a kernel launch?",
        ),
        Mistake(
            "when the gradient of value is forgotten",
            _function((GIVEN, "return None, None, None, grad_loc, grad_attn")),
            "None means that the result does not depend on the argument.",
        ),
        Mistake(
            "when the forward returns nothing",
            _function(("return lab05.msda_forward(", "lab05.msda_forward(")),
            "What the launcher gives has to be handed on.",
        ),
        Mistake(
            "when the gradients of locations and weights stand where the tables are",
            _function((GIVEN, "return grad_value, grad_loc, grad_attn, None, None")),
            "One place for each argument of forward, in its order. The tables are second and third.",
        ),
        Mistake(
            "when the forward is left to torch",
            edited_class(
                solution.MSDAFunction, ("return lab05.msda_forward(", "return reference_msda("), reference_msda=reference.msda
            ),
            "You have the kernel: this is where it is shipped.",
        ),
    ],
    hints=[
        "How many arguments has your forward, without ctx? For which of them is there such a thing as a gradient?",
        "`ctx.save_for_backward` keeps tensors and notices changes; `ctx.saved_tensors` gives them back. The backward calls "
        "your launcher, and hands its three results back in the order of the arguments, None between them.",
        "Two lines each. The backward returns five things: a gradient, None, None, a gradient, a gradient. Above it, under "
        "`@staticmethod`, a decorator of torch.autograd.function says how often it may be differentiated.",
    ],
)  # fmt: skip


# --- MyMSDeformAttn -------------------------------------------------------------------------------------------------

PARAMETERS = [
    f"{layer}.{kind}"
    for layer in ("sampling_offsets", "attention_weights", "value_proj", "output_proj")
    for kind in ("weight", "bias")
]


def _loaded(kind: type, sizes: tuple, parameters: list[Tensor]) -> torch.nn.Module:
    module = kind(*sizes).to(parameters[0].dtype)
    expected = dict(zip(PARAMETERS, parameters))
    mine = {name: tuple(p.shape) for name, p in module.state_dict().items()}
    theirs = {name: tuple(p.shape) for name, p in expected.items()}
    if mine != theirs:
        names = sorted(set(mine.items()) ^ set(theirs.items()))
        raise Failed(
            f"the parameters must be named and shaped as in Deformable DETR; these differ: {names}.",
            key=("state", tuple(names)),
        )
    module.load_state_dict(expected)
    return module.to(parameters[0].device)


def _layer(kind: type, sizes: tuple, parameters: list[Tensor], query, points, pixels, shapes, starts, mask, grad_out):
    """The layer's output, and the gradients of its inputs and parameters, with given parameters."""
    module = _loaded(kind, sizes, parameters)
    leaves = [t.detach().clone().requires_grad_() for t in (query, pixels)]
    out = module(leaves[0], points, leaves[1], shapes, starts, mask)
    grads = _grads(out, [*leaves, *module.parameters()], grad_out)
    return out.detach(), *grads[:2], torch.cat([g.flatten() for g in grads[2:]])


def _their_layer(*args):
    return _layer(nn.MSDeformAttn, *args)


def _layer_call(draw: Draw, shapes, *, B=1, Q=1, M=2, D=2, K=2, box=False, mask=False) -> tuple:
    L, C = len(shapes), M * D
    table = torch.tensor(shapes)
    pixels = table.prod(1)
    S = int(pixels.sum())
    outputs = {"sampling_offsets": 2 * M * L * K, "attention_weights": M * L * K, "value_proj": C, "output_proj": C}
    parameters = []
    for rows in outputs.values():
        parameters += [draw.normal(rows, C) / C**0.5, draw.normal(rows)]
    points = draw.uniform(B, Q, L, 4 if box else 2, low=0.25, high=0.75)
    padding = draw.uniform(B, S) < 0.4 if mask else None
    return (
        (C, L, M, K),
        parameters,
        draw.normal(B, Q, C),
        points,
        draw.normal(B, S, C),
        table,
        pixels.cumsum(0) - pixels,
        padding,
        draw.normal(B, Q, C),
    )


def points_given(draw: Draw):
    """offsets from a point are pixels of their level, whatever its height and width"""
    return _layer_call(draw, [(3, 6), (2, 3)])


def boxes_given(draw: Draw):
    """offsets from a box: K steps are half a box"""
    return _layer_call(draw, [(3, 6), (2, 3)], K=3, box=True)


def padded(draw: Draw):
    """padding counts as zero, after the projection has added its bias"""
    return _layer_call(draw, [(4, 3)], Q=2, K=3, mask=True)


def three_heads(draw: Draw):
    """weights sum to one over all the points of a head, on all its levels"""
    return _layer_call(draw, [(2, 4), (3, 2)], M=3, D=2, K=1)


def two_in_a_batch(draw: Draw):
    """each image has reference points and pixels of its own"""
    return _layer_call(draw, [(3, 2)], B=2, Q=2, M=1, D=3, K=2)


def _slant(numbers: Tensor) -> float:
    """One number for many in their order: tells two wrong layouts apart."""
    return (numbers.detach() * torch.arange(numbers.numel())).sum().item()


def _begins(kind: type, draw: Draw) -> None:
    """That a new layer looks in M directions."""
    sizes = (12, 2, 3, 2)
    module, theirs = kind(*sizes), nn.MSDeformAttn(*sizes)
    for name in (
        "sampling_offsets.weight",
        "attention_weights.weight",
        "attention_weights.bias",
        "sampling_offsets.bias",
    ):
        layer, part = name.split(".")
        mine = getattr(getattr(module, layer, None), part, None)
        expected = getattr(getattr(theirs, layer), part)
        if not isinstance(mine, Tensor) or mine.shape != expected.shape:
            raise Failed(f"{name} must be of shape {tuple(expected.shape)}.", key=("shape", name))
        error = (mine - expected).abs().max().item()
        if not error < 1e-5:
            raise Failed(
                f"{name} of a new layer is off by up to {error:.3g}.",
                key=(
                    "begins",
                    name,
                    (round(error, 3), round(_slant(mine), 2)) if name == "sampling_offsets.bias" else "",
                ),
            )


def _door(kind: type, draw: Draw) -> None:
    """That the layer asks the front door before it launches."""
    sizes, parameters, query, points, pixels, shapes, starts, _, _ = points_given(draw)
    module = _loaded(kind, sizes, parameters)
    from msda_core import machine

    launched = []
    try:
        with machine.guard(launched=launched.append):
            module(query, points, pixels, shapes + torch.tensor([[0, 0], [1, 0]]), starts)
    except ValueError as error:
        if launched:
            raise Failed(
                f"a level reaches past value's last pixel, and {launched[0].name} was launched before anybody looked.",
                key=("door", "late"),
            ) from error
        return
    except Exception as error:
        raise Failed(
            f"a level reaches past value's last pixel, and {type(error).__name__} is raised, not a ValueError of "
            "`check_inputs`.",
            key=("door", type(error).__name__),
        ) from error
    raise Failed("a level reaches past value's last pixel, and nobody objects.", key=("door", ""))


def _module(*changes: tuple[str, str]) -> type:
    return edited_class(solution.MyMSDeformAttn, *changes)


SOFTMAX = "reshape(B, Q, M, L * K).softmax(-1).reshape(B, Q, M, L, K)"
FLIPPED = "input_spatial_shapes.flip(-1)[:, None]"

exercise(
    "10.MyMSDeformAttn",
    reference=_their_layer,
    cases=[points_given, boxes_given, padded, three_heads, two_in_a_batch],
    properties=[
        Property("begins", "a new layer looks in M directions and weighs all points the same", _begins),
        Property("door", "bad inputs meet `check_inputs` before any kernel", _door),
    ],
    invoke=_layer,
    guarded=True,
    limit=LIMIT,
    parts=("the output", "the gradient of query", "the gradient of input_flatten", "the gradient of the parameters"),
    axes={
        "the output": ("image", "query", "channel"),
        "the gradient of query": ("image", "query", "channel"),
        "the gradient of input_flatten": ("image", "pixel", "channel"),
        "the gradient of the parameters": ("number",),
    },
    carries=("05.msda_forward", "08.msda_backward", "09.msda_backward_switched"),
    mistakes=[
        Mistake(
            'when the softmax runs over the heads',
            _module((".softmax(-1)", ".softmax(2)")),
            'A head shares its attention out among its own points. Over which axis do they lie?',
        ),
        Mistake(
            'when each weight goes through a sigmoid',
            _module((".softmax(-1)", ".sigmoid()")),
            'Each is between 0 and 1 then. What is their sum?',
        ),
        Mistake(
            'when the offsets of levels and points change places',
            _module(("reshape(B, Q, M, L, K, 2)", "reshape(B, Q, M, K, L, 2).transpose(3, 4)")),
            "The channels of sampling_offsets lie as (M, L, K, 2), as in Deformable DETR's checkpoints.",
        ),
        Mistake(
            'when the offsets of heads and levels change places',
            _module(("reshape(B, Q, M, L, K, 2)", "reshape(B, Q, L, M, K, 2).transpose(2, 3)")),
            "The channels of sampling_offsets lie as (M, L, K, 2), as in Deformable DETR's checkpoints.",
        ),
        Mistake(
            'when a head takes every M-th channel',
            _module(("value.unflatten(-1, (M, -1))", "value.unflatten(-1, (-1, M)).transpose(-1, -2).contiguous()")),
            'The channels of one head lie together: C is (M, D).',
        ),
        Mistake(
            'when every level has the reference point of the first',
            _module(("reference_points[:, :, None, :, None]", "reference_points[:, :, None, :1, None]")),
            'reference_points has a level axis of its own.',
        ),
        Mistake(
            'when every level has the size of the first',
            _module((FLIPPED, "input_spatial_shapes.flip(-1)[0]")),
            'A pixel of a small level is larger. Which axis of offsets are the levels?',
        ),
        Mistake(
            'when half a pixel is taken off',
            _module((" / " + FLIPPED, " / " + FLIPPED + " - 0.5 / " + FLIPPED)),
            "The half pixel is the kernel's affair: a location runs from 0 to 1.",
        ),
        Mistake(
            'when locations are kept inside the image',
            _module(("        call = (value", "        locations = locations.clamp(0, 1)\n        call = (value")),
            'A point outside reads zero; at the edge it reads the edge.',
        ),
        Mistake(
            'when padding is set to a large negative number',
            _module(("[..., None], 0.0)", "[..., None], -1e9)")),
            'That is for weights before a softmax. These are values, and they are summed.',
        ),
        Mistake(
            'when the size of a box is not used',
            _module(("offsets / K * reference[..., 2:] * 0.5", "offsets / " + FLIPPED)),
            'With a box, K steps are half of its size, not pixels.',
        ),
        Mistake(
            'when width and height of a box are swapped',
            _module(("reference[..., 2:] * 0.5", "reference[..., 2:].flip(-1) * 0.5")),
            'A box is (x, y, w, h). Along which of w and h does x run?',
        ),
        Mistake(
            'when the query is added to the result',
            _module(("return self.output_proj(MSDAFunction.apply(*call))", "return query + self.output_proj(MSDAFunction.apply(*call))")),
            'That is done around this layer, with a norm.',
        ),
        Mistake(
            'when steps begin at zero',
            _module(("torch.arange(1, n_points + 1)", "torch.arange(n_points)")),
            'Point k begins k + 1 pixels away: the first point of every head would lie at the centre.',
        ),
        Mistake(
            'when x is the sine',
            _module(("angle.cos(), angle.sin()", "angle.sin(), angle.cos()")),
            'Head 0 looks along x: which of the two is 1 at angle 0?',
        ),
        Mistake(
            'when the bias is laid out as (L, M, K, 2)',
            _module(("(ring[:, None, None] * steps).expand(n_heads, n_levels, n_points, 2)", "(ring[None, :, None] * steps).expand(n_levels, n_heads, n_points, 2)")),
            'The heads come first.',
        ),
        Mistake(
            "when the softmax runs over the points of each level",
            _module((SOFTMAX, "reshape(B, Q, M, L, K).softmax(-1)")),
            "The weights of a head sum to one over all its points. On how many levels are they?",
        ),
        Mistake(
            "when the weights are not normalised",
            _module((".softmax(-1)", "")),
            "A linear layer may give any numbers. What makes them weights?",
        ),
        Mistake(
            "when offsets are divided by (H, W)",
            _module((FLIPPED, "input_spatial_shapes[:, None]")),
            "An offset is (x, y). Along which of H and W does x run?",
        ),
        Mistake(
            "when offsets are not in pixels",
            _module((" / " + FLIPPED, "")),
            "A reference point runs from 0 to 1 over a level. How long is a pixel on that scale?",
        ),
        Mistake(
            "when a step of a box is a whole box",
            _module(("reference[..., 2:] * 0.5", "reference[..., 2:]")),
            "K steps reach from the centre of a box to its edge.",
        ),
        Mistake(
            "when the offsets of a box are not divided by K",
            _module(("offsets / K * reference", "offsets * reference")),
            "K steps reach from the centre of a box to its edge, not one.",
        ),
        Mistake(
            "when the mask is turned round",
            _module(("input_padding_mask[..., None]", "~input_padding_mask[..., None]")),
            "True is padding here. Which pixels do you set to zero?",
        ),
        Mistake(
            "when padding is masked before the projection",
            _module(
                ("self.value_proj(input_flatten)", "self.value_proj(input_flatten if input_padding_mask is None else input_flatten.masked_fill(input_padding_mask[..., None], 0.0))"),
                ("value = value.masked_fill(input_padding_mask[..., None], 0.0)", "pass"),
            ),
            "A projection has a bias: what becomes of zero?",
        ),
        Mistake(
            "when padding is not masked",
            _module(("value = value.masked_fill(input_padding_mask[..., None], 0.0)", "pass")),
            "input_padding_mask says which pixels are none.",
        ),
        Mistake(
            "when the output is not projected",
            _module(("self.output_proj(MSDAFunction.apply(*call))", "MSDAFunction.apply(*call)")),
            "There is a fourth linear layer. What mixes the heads?",
        ),
        Mistake(
            "when value is not projected",
            _module(("self.value_proj(input_flatten)", "input_flatten")),
            "Each head reads channels of its own: a projection makes them.",
        ),
        Mistake(
            "when the front door is not asked",
            _module(("        check_inputs(*call)\n", "")),
            "A kernel believes what it is told. Who has looked?",
        ),
        Mistake(
            "when a new layer looks at one place",
            _module(("self.sampling_offsets.bias.copy_(bias.reshape(-1))", "self.sampling_offsets.bias.zero_()")),
            "If all points of all heads begin at one place, they get the same gradient, and stay together.",
        ),
        Mistake(
            "when the directions lie on a circle",
            _module(("        ring = ring / ring.abs().amax(-1, keepdim=True)\n", "")),
            "Deformable DETR puts them on a square, so that a diagonal head reaches the corner pixel.",
        ),
        Mistake(
            "when all points of a head begin at the same distance",
            _module(("torch.arange(1, n_points + 1)[:, None]", "torch.ones(n_points, 1)")),
            "Point k begins k + 1 pixels away.",
        ),
        Mistake(
            "when the weights of a new layer are drawn at random",
            _module(
                ("(self.sampling_offsets.weight, self.attention_weights.weight, self.attention_weights.bias)",
                 "(self.attention_weights.bias,)"),
            ),
            "At first the query has no say in where a head looks: which parameters must be zero?",
        ),
    ],
    hints=[
        "What does the layer predict from the query, what does it take from the pixels, and in which of the two do levels "
        "have sizes?",
        "Project the pixels and set the padding to zero; predict offsets and weights from the query; turn offsets into "
        "locations; ask the front door; apply your function; project again.",
        "`offsets` as (B, Q, M, L, K, 2), `weights` by a softmax over L * K. A point: `reference[:, :, None, :, None] + "
        "offsets / (W, H)`. A box: its centre, plus offsets / K times half its size. Locations stay in float32.",
    ],
)  # fmt: skip


# --- stretch: tile_queries ------------------------------------------------------------------------------------------

LEVELS = ((25, 42), (13, 21), (7, 11))
SIZE = 64


def _scene(shapes=LEVELS) -> tuple[Tensor, list[Tensor]]:
    """An encoder's points as `peers` are measured on: each pixel of level 0 looks at itself on every level, 2 pixels off.

    Returns:
        For each level, the flat number of the upper left pixel of every point of every query of level 0, (H0 * W0, 4).
    """
    H, W = shapes[0]
    draw = Draw(10)
    y, x = torch.meshgrid((torch.arange(H) + 0.5) / H, (torch.arange(W) + 0.5) / W, indexing="ij")
    centre = torch.stack([x, y], -1).reshape(H * W, 1, 2)
    corners = []
    for h, w in shapes:
        at = centre * torch.tensor([w, h]) - 0.5 + 2.0 * draw.normal(H * W, 4, 2)
        corners.append(at.floor().long())
    return corners


def additions(order: Tensor, size: int, shapes=LEVELS) -> tuple[int, int]:
    """How many pixels are added to when every run of `size` queries merges first: (merged, not merged)."""
    merged = plain = 0
    for (h, w), corner in zip(shapes, _scene(shapes)):
        group = torch.empty_like(order)
        group[order] = torch.arange(len(order)) // size
        pixels = corner[:, :, None] + torch.tensor([[0, 0], [1, 0], [0, 1], [1, 1]])
        inside = (pixels >= 0).all(-1) & (pixels < torch.tensor([w, h])).all(-1)
        number = (group[:, None, None] * h + pixels[..., 1]) * w + pixels[..., 0]
        plain += int(inside.sum())
        merged += number[inside].unique().numel()
    return merged, plain


def _is_order(answer, H: int, W: int, size: int) -> Tensor:
    order = answer(H, W, size)
    if not isinstance(order, Tensor) or order.dtype != torch.int64 or order.shape != (H * W,):
        raise Failed(f"expected an int64 tensor of shape ({H * W},).", key=("kind",))
    if not torch.equal(order.sort().values, torch.arange(H * W)):
        raise Failed(
            f"of the {H * W} queries of a {H} by {W} level, {H * W - order.unique().numel()} are missing.",
            key=("not all", H, W),
        )
    return order


def _all_there(answer, draw: Draw) -> None:
    for H, W in ((draw.integer(9, 20), draw.integer(9, 20)), (8, 16), (1, 30), (30, 1), (3, 5)):
        for size in (16, 64):
            _is_order(answer, H, W, size)


def _gathers(answer, draw: Draw) -> str:
    H, W = LEVELS[0]
    order = _is_order(answer, H, W, SIZE)
    in_rows = torch.arange(H * W)
    (mine, plain), (rows, _) = additions(order, SIZE), additions(in_rows, SIZE)
    thin = min(rows, additions(in_rows.reshape(H, W).T.flatten(), SIZE)[0])
    said = f"{plain / mine:.2f} times fewer additions; rows or columns of queries give {plain / thin:.2f}."
    if mine >= thin:
        raise Failed(said, key=("thin", mine))
    return said


def _tiling_score(answer) -> str:
    mine, plain = additions(answer(*LEVELS[0], SIZE), SIZE)
    return f"{plain / mine:.3f} times fewer additions. Ours: {_ours():.3f}."


def _ours() -> float:
    merged, plain = additions(solution.tile_queries(*LEVELS[0], SIZE), SIZE)
    return plain / merged


def _tiles(*changes: tuple[str, str]) -> Callable:
    return edited(solution.tile_queries, *changes)


exercise(
    "10.tile_queries",
    reference=solution.tile_queries,
    cases=[],
    properties=[
        Property("all_there", "every query is there, once, on levels of any size", _all_there),
        Property("gathers", "more additions are merged than with rows or columns of queries", _gathers),
    ],
    limit=LIMIT,
    stretch=True,
    score=_tiling_score,
    mistakes=[
        Mistake("when queries stay in rows", lambda H, W, size: torch.arange(H * W), "A run of 64 in a row is 64 pixels wide and one high."),
        Mistake("when queries stand in columns", lambda H, W, size: torch.arange(H * W).reshape(H, W).T.flatten(), "A column is as thin as a row."),
        Mistake(
            "when height and width of the level are swapped",
            _tiles(("torch.arange(H), torch.arange(W)", "torch.arange(W), torch.arange(H)")),
            "y runs to H, x to W.",
        ),
        Mistake(
            "when tiles that the level cuts are left out",
            lambda H, W, size: solution.tile_queries(H - H % 8, W - W % 8, size),
            "Most levels are no multiple of a tile.",
        ),
    ],
    hints=[
        "Which 64 pixels have the smallest border, and why does the border count?",
        "Give every pixel a number by which to sort: first the tile it is in, then its place inside.",
        "`argsort` of tile * size + place. Tiles are 8 by 8 for 64; who beats squares? Think of the points: two pixels to every side.",
    ],
)  # fmt: skip

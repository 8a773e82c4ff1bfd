"""Lab 10, Ship it: the inputs that tell right from wrong, and the properties that must hold."""

import contextlib
import inspect
import itertools
import logging
import os
import types
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from checks.answers.carry import replaced
from checks.core.compare import describe
from checks.core.exercise import Draw, Failed, Property
from checks.labs.lab10.truth import _grads, _loaded
from msda_core import nn
from solutions import lab09
from solutions import lab10 as solution

LIMIT = 60.0  # seconds one call may take: a loop without an end, not a slow interpreter


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


def _with_grad(draw: Draw, args: list[Tensor]) -> tuple:
    B, _, M, D = args[0].shape
    return draw.normal(B, args[3].shape[1], M * D, dtype=args[0].dtype), *args


def as_models_call_it(draw: Draw):
    """autograd finds the three gradients, each in its place"""
    return _with_grad(draw, _call(draw))


def two_images(draw: Draw):
    """several images, heads and levels at once"""
    return _with_grad(draw, _call(draw, B=2, Q=1, M=3, D=5, K=1))


def a_sum(draw: Draw):
    """grad_out may be one number, expanded: when a sum is differentiated"""
    args = _call(draw, [(3, 4)], Q=2, M=1, D=4, K=3)
    return torch.tensor(draw.number(0.5, 2.0)).expand(1, 2, 4), *args


def no_query(draw: Draw):
    """without queries the result stays attached, and the gradient of value is zero"""
    return _with_grad(draw, _call(draw, Q=0))


def half_value(draw: Draw):
    """float16 value with float32 locations: each gradient in its own dtype"""
    return _with_grad(draw, _call(draw, Q=1, M=1, dtype=torch.float16))


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


LAUNCHER = "msda_backward_switched"
#: Names of PyTorch's by which a GPU, or a tensor, says what it is.
ASKED = {"get_device_capability", "get_device_properties", "is_available", "is_cuda", "device", "get_device"}


def _mentions(thing: Any, seen: set[int]) -> set[str]:
    """The names that a function or class mentions, and the functions and classes that it mentions by name."""
    if id(thing) in seen:
        return set()
    seen.add(id(thing))
    if isinstance(thing, type):
        return set().union(*(_mentions(getattr(one, "__func__", one), seen) for one in vars(thing).values()))
    thing = inspect.unwrap(thing) if callable(thing) else thing
    names: set[str] = set()
    waiting = [thing.__code__] if isinstance(thing, types.FunctionType) else []
    while waiting:
        code = waiting.pop()
        names.update(code.co_names)
        waiting += [one for one in code.co_consts if isinstance(one, types.CodeType)]
    inner = (thing.__globals__[name] for name in names if name in thing.__globals__) if names else ()
    return names.union(*(_mentions(one, seen) for one in inner if isinstance(one, (type, types.FunctionType))))


def _asks_the_gpu(answer, draw: Draw) -> str | None:
    """That the capability which lab 9's launcher is given, if it is used, is not typed in."""
    given = []

    def launcher(grad_out, value, shapes, starts, locations, attention, capability, fp32_grad_accum=None):
        given.append(capability)
        return tuple(torch.zeros_like(one) for one in (value, locations, attention))

    with replaced(f"09.{LAUNCHER}", launcher), mock.patch.object(lab09, LAUNCHER, launcher):
        _there_and_back(answer, *_with_grad(draw, _call(draw, Q=1)))
    if given and not ASKED & _mentions(answer, set()):
        raise Failed(
            f"`{LAUNCHER}` is always told that the GPU's capability is {given[0]}, whatever GPU it is: on another one it "
            "sums in the wrong dtype. `torch.cuda.get_device_capability` knows.",
            key=("typed in",),
        )
    return "lab 9's launcher is told what GPU it is." if given else None


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


# --- register -------------------------------------------------------------------------------------------------------

_NAMES = itertools.count()


def _registered(answer):
    """The learner's operator under a name that nobody has used."""
    return answer(f"course_{os.getpid()}_{next(_NAMES)}::msda")


def _by_name(answer, grad_out, value, shapes, starts, locations, attention):
    """The operator's output and its three gradients."""
    leaves = [t.detach().requires_grad_() for t in (value, locations, attention)]
    out = _registered(answer)(leaves[0], shapes, starts, *leaves[1:])
    return (out.detach(), *_grads(out, leaves, grad_out))


def registered_as_called(draw: Draw):
    """called under its name it gives what your kernels give, there and back"""
    args = _call(draw, M=1, D=6)
    return draw.normal(1, 2, 6), *args


def registered_views(draw: Draw):
    """value as a transposed view, as layers make it"""
    args = _call(draw, B=2, Q=1, M=3, D=5, K=1, dtype=torch.float16)
    args[0] = args[0].transpose(1, 2).contiguous().transpose(1, 2)
    return draw.normal(2, 1, 15, dtype=torch.float16), *args


@contextlib.contextmanager
def _quiet(logger: str):
    """torch writes to the error output what it raises as well: a traceback under the learner's cell."""
    log = logging.getLogger(logger)
    was = log.disabled
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = was


def _promise(answer, draw: Draw) -> str:
    """Forward and backward with fake tensors, held against what the kernels return."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    args = registered_views(draw)[1:]
    operator = _registered(answer)
    floats = (0, 3, 4)

    def both(args):
        leaves = [arg.requires_grad_() if n in floats else arg for n, arg in enumerate(args)]
        out = operator(*leaves)
        grads = torch.autograd.grad(out.sum(), [leaves[n] for n in floats], allow_unused=True)
        return dict(zip(("the output", "grad_value", "grad_loc", "grad_attn"), (out, *grads)))

    real = both([arg.clone(memory_format=torch.preserve_format) for arg in args])
    with _quiet("torch._subclasses.fake_tensor"), FakeTensorMode() as mode:
        try:
            fake = both([mode.from_tensor(arg) for arg in args])
        except Exception as error:
            inner = error.__cause__ or error
            said = " ".join(str(inner).split())
            raise Failed(
                f"with tensors that have no numbers, as a compiler traces it, it stops: {said[:200]}",
                key=("fake", type(inner).__name__, "fake impl" in said, f"({getattr(operator, '_qualname', '')})" in said),
            ) from error
        for name, one in real.items():
            other = fake[name]
            if one is None or other is None:
                continue  # the cases say that a gradient is missing
            for what, mine, promised in (
                ("shape", tuple(one.shape), tuple(other.shape)),
                ("dtype", one.dtype, other.dtype),
                ("strides", one.stride(), other.stride()),
            ):
                if mine != promised:
                    raise Failed(
                        f"the fake kernel promises {what} {promised} for {name}, the real one returns {mine}.",
                        key=("promise", name, what),
                    )
    return "shapes, dtypes and strides are as promised, there and back"


def _twice(answer, draw: Draw) -> None:
    """A second derivative, of the sum of outputs: the case that `once_differentiable` lets pass."""
    value, shapes, starts, locations, attention = _call(draw)
    out = _registered(answer)(value, shapes, starts, locations.requires_grad_(), attention)
    try:
        (slope,) = torch.autograd.grad(out.sum(), locations, create_graph=True)
        (out.sum() + slope.square().sum()).backward()
    except (RuntimeError, NotImplementedError):
        return
    raise Failed("a penalty on the gradient is ignored, without a word.", key="twice")


PROMISE = Property("promise", "a compiler is told what comes out, there and back, and it is true", _promise)
TWICE = Property("twice", "a second derivative is refused, also of a plain sum", _twice)


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
        raise Failed(
            f"your function returned {describe(order)}, expected an int64 tensor of shape ({H * W},).",
            key=("kind", str(getattr(order, "dtype", type(order))), H, W, tuple(getattr(order, "shape", ()))),
        )
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

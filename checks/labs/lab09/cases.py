"""Lab 09, The precision switch: the inputs that tell right from wrong, and the properties that must hold."""

import math
import weakref

import torch
from torch import Tensor

from checks.answers.carry import replaced
from checks.core.compare import describe
from checks.core.watch import door
from checks.core.exercise import Draw, Failed
from checks.labs.lab08.cases import heads_and_images, in_bfloat16, points_that_collide, three_levels
from checks.labs.lab09.kernels import crossed_kernel, every_kind_kernel, spellings_kernel
from checks.labs.lab09.truth import _accumulator, _classified, _listing, _stagnation
from solutions import lab09 as solution

LIMIT = 40.0  # seconds one call may take: a compiler that was never asked before, on a busy machine


def in_half(draw: Draw):
    """float16: ten bits after the first"""
    return (torch.float16,)


def in_bfloat(draw: Draw):
    """bfloat16: as many bits as float16, but not for the same purpose"""
    return (torch.bfloat16,)


def in_single(draw: Draw):
    """float32: more than sixteen million, which is too far to count one by one"""
    return (torch.float32,)


def in_double(draw: Draw):
    """float64"""
    return (torch.float64,)


def in_eight_bits(draw: Draw):
    """eight bits, which torch converts but cannot add: almost at once"""
    return ((torch.float8_e5m2, torch.float8_e4m3fn)[draw.integer(0, 1)],)


# --- classify_atomics -----------------------------------------------------------------------------------------------

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
EARLIER, LATER = ((8, 0), (8, 9)), ((9, 0), (10, 0))


def one_number_each(draw: Draw):
    """your kernel in float32 on an earlier GPU"""
    return (_listing(torch.float32, EARLIER[draw.integer(0, 1)]),)


def in_pairs(draw: Draw):
    """in float16 on an earlier GPU, an instruction adds two numbers: f16x2"""
    return (_listing(torch.float16, EARLIER[draw.integer(0, 1)]),)


def in_vectors(draw: Draw):
    """on a later GPU it adds up to sixteen bytes: v4, v8"""
    return (_listing(DTYPES[draw.integer(0, 2)], LATER[draw.integer(0, 1)]),)


def in_loops(draw: Draw):
    """in bfloat16 on an earlier GPU"""
    return (_listing(torch.bfloat16, EARLIER[draw.integer(0, 1)]),)


def out_of_line(draw: Draw):
    """with tensors that do not begin at a multiple of 16 bytes"""
    return (_listing(DTYPES[draw.integer(1, 2)], (9, 0), aligned=False),)


def in_both_spellings(draw: Draw):
    """another kernel, with additions as `red`, and as `atom` whose old value is read, is not read, and whose order counts"""
    from msda_core import machine

    return (
        machine.lower(spellings_kernel, "*fp32", "*fp32", BLOCK=512, num_warps=1, target=LATER[draw.integer(0, 1)]).ptx,
    )


def every_kind(draw: Draw):
    """another kernel, with an addition whose old value is used, a swap that is tried once, and shared memory"""
    from msda_core import machine

    pointers = ("*i32", "*i32", "*fp32", "i32")
    return (machine.lower(every_kind_kernel, *pointers, BLOCK=64, target=EARLIER[draw.integer(0, 1)]).ptx,)


# --- accumulator_dtype ----------------------------------------------------------------------------------------------

CAPABILITIES = ((8, 0), (8, 9), (9, 0), (10, 0))


def single_precision(draw: Draw):
    """float32 has nowhere wider to go"""
    return torch.float32, CAPABILITIES[draw.integer(0, 3)]


def half_on_ampere(draw: Draw):
    """float16 on SM 8.0"""
    return torch.float16, (8, 0)


def half_on_hopper(draw: Draw):
    """float16 on SM 9.0"""
    return torch.float16, (9, 0)


def bfloat_on_ampere(draw: Draw):
    """bfloat16 on SM 8.0"""
    return torch.bfloat16, (8, 0)


def bfloat_on_ada(draw: Draw):
    """bfloat16 on SM 8.9"""
    return torch.bfloat16, (8, 9)


def bfloat_on_hopper(draw: Draw):
    """bfloat16 on SM 9.0"""
    return torch.bfloat16, (9, 0)


def bfloat_on_blackwell(draw: Draw):
    """bfloat16 on SM 10.0"""
    return torch.bfloat16, (10, 0)


#: What the crossed kernel's listings say is the opposite of what any rule about dtypes and GPUs says.
CROSSED = ((torch.float16, (8, 0)), (torch.bfloat16, (8, 9)), (torch.float16, (9, 0)), (torch.float32, (8, 0)))


def _crossed_answers() -> list[torch.dtype]:
    return [
        torch.float32 if _classified(solution.compile_backward(crossed_kernel, *asked).ptx)[2] else asked[0]
        for asked in CROSSED
    ]


def _asks(answer, draw: Draw, wanted: list[torch.dtype]) -> str:
    with replaced("08.msda_bwd_kernel", crossed_kernel, answer):
        said = [answer(*asked) for asked in CROSSED]
    for (dtype, (major, minor)), yours, expected in zip(CROSSED, said, wanted):
        if yours != expected:
            made = "loops" if expected == torch.float32 else "single instructions"
            raise Failed(
                f"With another kernel in the place of lab 8's, whose additions in {describe(dtype)} on SM {major}.{minor} are "
                f"{made}, yours is {describe(yours)}, expected {describe(expected)}. It does not go by the listing.",
                key=("asks", *map(str, said)),
            )
    return "With another kernel in the place of lab 8's, it chooses otherwise."


def _pile(draw: Draw, dtype: torch.dtype):
    """Rows that all add to one pixel: first where the dtype stagnates, then ones."""
    many = draw.integer(4, 6)
    shapes, starts = torch.tensor([[1, 3]]), torch.tensor([0])
    grad_out = torch.ones(1, many + 1, 2)
    grad_out[0, 0] = _stagnation(dtype)
    middle = torch.full((1, many + 1, 1, 1, 1, 2), 0.5)
    tensors = (grad_out, torch.ones(1, 3, 1, 2), middle, torch.ones(1, many + 1, 1, 1, 1))
    grad_out, value, locations, attention = (t.to(dtype) for t in tensors)
    return grad_out, value, shapes, starts, locations, attention


def _as(inputs: tuple, dtype: torch.dtype) -> tuple:
    return tuple(t.to(dtype) if t.dtype.is_floating_point else t for t in inputs)


def in_float32(draw: Draw):
    """float32 is summed as before"""
    return *points_that_collide(draw), CAPABILITIES[draw.integer(0, 3)], None


def levels_and_gaps(draw: Draw):
    """all three gradients in float16, with several levels and unused pixels"""
    return *_as(three_levels(draw), torch.float16), (9, 0), True


def a_pile_in_float32(draw: Draw):
    """told to sum in float32, a small share counts next to a large sum; in bfloat16 as in float16"""
    return *_pile(draw, DTYPES[1 + draw.integer(0, 1)]), (9, 0), True


def a_pile_left_to_the_listing(draw: Draw):
    """told nothing, on a GPU where bfloat16 takes a loop, a small share counts as well"""
    return *_pile(draw, torch.bfloat16), EARLIER[draw.integer(0, 1)], None


def told_to_stay_narrow(draw: Draw):
    """told to sum in bfloat16, it does: these sums are exact in any dtype"""
    return *in_bfloat16(draw), (8, 9), False


def grad_out_expanded(draw: Draw):
    """grad_out may be expanded from one number, value may be transposed, and locations may be float32"""
    grad_out, value, shapes, starts, locations, attention = heads_and_images(draw)
    value = value.half().transpose(1, 3).contiguous().transpose(1, 3)
    return (
        torch.ones((), dtype=torch.float16).expand(grad_out.shape),
        value,
        shapes,
        starts,
        locations,
        attention,
        (8, 0),
        True,
    )


def no_query(draw: Draw):
    """without a query, grad_value is zero, in the dtype of value"""
    grad_out, value, shapes, starts, locations, attention = _as(points_that_collide(draw), torch.bfloat16)
    return grad_out[:, :0], value, shapes, starts, locations[:, :0], attention[:, :0], (8, 0), None


#: (dtype, capability, fp32_grad_accum): every way in which the choice can go wrong.
CALLS = (
    (torch.bfloat16, (8, 0), True),
    (torch.bfloat16, (8, 0), False),
    (torch.float16, (8, 9), False),
    (torch.float16, (8, 0), None),
    (torch.bfloat16, (9, 0), None),
    (torch.bfloat16, (8, 0), None),
)


def _wanted() -> list[torch.dtype]:
    """In what each of `CALLS` should sum; asked of the compiler."""
    return [
        _accumulator(dtype, capability) if override is None else torch.float32 if override else dtype
        for dtype, capability, override in CALLS
    ]


def _launches(answer, inputs: tuple) -> list:
    """The launches of lab 8's kernel that an answer makes."""
    from msda_core import machine

    launches: list = []
    with machine.guard(launched=launches.append):
        answer(*inputs)
    return [one for one in launches if "grad_value_ptr" in one.values]


class _Seen(Exception):
    """Ends an answer's call at its first launch, which it holds."""


def _first_launch(answer, inputs: tuple):
    """What an answer would launch first; nothing runs."""
    from msda_core import machine

    def stop(launch):
        raise _Seen(launch)

    try:
        with machine.guard(launched=stop):
            answer(*inputs)
    except _Seen as seen:
        return seen.args[0]
    raise Failed("nothing was launched.")


def _chooses(answer, draw: Draw, wanted: list[torch.dtype]) -> str:
    wrong = []
    for (dtype, (major, minor), override), expected in zip(CALLS, wanted):
        name = describe(dtype)
        what = f"{name} on SM {major}.{minor}, fp32_grad_accum={override}"
        launches = _launches(answer, (*_pile(draw, dtype), (major, minor), override))
        if len(launches) != 1:
            raise Failed(f"{what}: lab 8's kernel was launched {len(launches)} times, expected once.")
        values = launches[0].values
        for argument in ("value_ptr", "grad_out_ptr", "loc_ptr", "attn_ptr", "grad_loc_ptr", "grad_attn_ptr"):
            if values[argument].dtype != dtype:
                raise Failed(
                    f"{what}: {argument} is {describe(values[argument].dtype)}, expected {name}. Only the sum may be wider: "
                    "the rest is read and written in the dtype it has.",
                    key=("widened", argument),
                )
        if values["grad_value_ptr"].dtype != expected:
            wrong.append((what, values["grad_value_ptr"].dtype, expected, override))
    if wrong:
        what, sums, expected, override = wrong[0]
        because = "it was told to" if override is not None else "its own additions there are "
        because += "" if override is not None else "loops" if expected == torch.float32 else "single instructions"
        raise Failed(
            f"{what}: grad_value is summed in {describe(sums)}, expected {describe(expected)}: {because}.",
            key=("chooses", *((one[0], one[1]) for one in wrong)),
        )
    with replaced("08.msda_bwd_kernel", crossed_kernel, answer):
        sums = _first_launch(answer, (*_pile(draw, torch.float16), (8, 0), None)).values["grad_value_ptr"].dtype
    if sums != torch.float32:
        raise Failed(
            "With another kernel in the place of lab 8's, whose additions in float16 on SM 8.0 are loops, grad_value is summed "
            f"in {describe(sums)}, expected float32. Does it ask accumulator_dtype?",
            key=("does not ask", str(sums)),
        )
    return f"{len(CALLS)} calls, each summed in the dtype that its GPU is good at or that it was told."


def half_on_a_large_level(draw: Draw):
    """float16 on the first level of an ordinary image"""
    return torch.float16, draw.integer(150, 340)


def bfloat_on_a_large_level(draw: Draw):
    """bfloat16 on the same"""
    return torch.bfloat16, draw.integer(150, 340)


def on_a_small_level(draw: Draw):
    """on a small level, the same location is moved by less of a pixel"""
    return DTYPES[draw.integer(1, 2)], draw.integer(9, 21)


def single_on_a_huge_level(draw: Draw):
    """float32 loses something as well"""
    return torch.float32, draw.integer(6_000, 60_000)


def eight_bits(draw: Draw):
    """with eight bits, which torch converts but does not compute with"""
    return torch.float8_e5m2, draw.integer(20, 40)


# --- stretch: narrow_sum --------------------------------------------------------------------------------------------


@door  # its numbers are handed to the answer
class Narrow:
    """A number that every operation rounds to a sixteen-bit dtype, and counts.

    The number itself is kept in `_HELD`, so that only operations lead from one to the next.
    """

    count = 0

    def __add__(self, other: "Narrow") -> "Narrow":
        return _operate(self, other, lambda a, b: a + b)

    def __radd__(self, other) -> "Narrow":
        return _operate(self, other, lambda a, b: a + b)

    def __sub__(self, other: "Narrow") -> "Narrow":
        return _operate(self, other, lambda a, b: a - b)

    def __lt__(self, other: "Narrow") -> bool:
        return _HELD[self][0] < _HELD[other][0]

    def __repr__(self) -> str:
        return f"{_HELD[self][0]:g}"


_HELD: weakref.WeakKeyDictionary[Narrow, tuple[float, torch.dtype]] = weakref.WeakKeyDictionary()


def _held(number: float, dtype: torch.dtype) -> Narrow:
    """A new narrow number."""
    one = Narrow()
    _HELD[one] = (torch.tensor(number, dtype=torch.float32).to(dtype).item(), dtype)
    return one


def _operate(one: Narrow, other: Narrow, operation) -> Narrow:
    if not isinstance(other, Narrow):
        raise TypeError(f"a narrow number goes with narrow numbers only, not with {describe(other)}. terms[0] is one.")
    Narrow.count += 1
    number, dtype = _HELD[one]
    return _held(operation(number, _HELD[other][0]), dtype)


def _narrow(answer, numbers: Tensor) -> Tensor:
    result = answer([_held(number, numbers.dtype) for number in numbers.tolist()])
    if not isinstance(result, Narrow) or result not in _HELD:
        raise TypeError(f"narrow_sum must return a narrow number of its own making, got {describe(result)}.")
    return torch.tensor(_HELD[result][0], dtype=numbers.dtype)


def one_term(draw: Draw):
    """one term is its own sum"""
    return (draw.uniform(1, low=1, high=2, dtype=torch.float16),)


def a_few_terms(draw: Draw):
    """an odd number of small whole numbers: exact in any order"""
    return (draw.integers(2 * draw.integer(2, 5) + 1, low=1, high=9).to(torch.float16),)


def _terms(draw: Draw) -> Tensor:
    return draw.uniform(draw.integer(900, 1000), low=0.05, high=4.0, dtype=torch.bfloat16)


def _units(answer, numbers: Tensor) -> float:
    """The error of an answer's sum, in units of its last place."""
    return _off(_narrow(answer, numbers), numbers)


def _off(total: Tensor, numbers: Tensor) -> float:
    exact = numbers.double().sum().item()
    unit = torch.finfo(numbers.dtype).eps * 2.0 ** math.floor(math.log2(exact))
    return abs(total.double().item() - exact) / unit


def _one_by_one(terms):
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _close(answer, draw: Draw) -> str:
    numbers = _terms(draw)
    units, plain = _units(answer, numbers), _units(_one_by_one, numbers)
    if units > 3:
        raise Failed(
            f"{len(numbers)} terms in bfloat16 are off by {units:.1f} units in the last place of their sum; one after the "
            f"other they are off by {plain:.0f}. Up to 3 pass.",
            key=("off", round(units, 2)),
        )
    return f"{len(numbers)} terms are off by {units:.2f} units in the last place; one after the other, by {plain:.0f}."


def _score(answer) -> str:
    errors, best, operations, terms = [], [], 0, 0
    for seed in range(5):
        numbers, Narrow.count = _terms(Draw(seed)), 0
        errors.append(_units(answer, numbers))
        best.append(_off(numbers.double().sum().to(numbers.dtype), numbers))
        operations, terms = operations + Narrow.count, terms + len(numbers)
    mean, least = sum(errors) / len(errors), sum(best) / len(best)
    return (
        f"{mean:.2f} units in the last place on average (the exact sum, rounded, is off by {least:.2f}), at "
        f"{operations / terms:.2f} operations a term."
    )

"""Lab 09, The precision switch: its exercises, and the mistakes they are there to find.

The listings are not kept: they are what the learner's own kernel of lab 8 compiles to, at the moment they are needed. The
truth about them is read by the machine, not by the solution.
"""

import math
import re
import weakref

import torch
from torch import Tensor

from checks.answers.carry import lab08, replaced
from checks.core.compare import describe
from checks.core.exercise import Draw, Failed, Mistake, Property, exercise
from checks.kernel.launches import edited
from checks.labs.lab08.exercises import GRADIENTS, in_bfloat16, points_that_collide, three_levels
from msda_core import device, reference
from solutions import lab09 as solution

if device.NO_TRITON is None:
    from msda_core.device import tl, triton

    @triton.jit
    def every_kind_kernel(x_ptr, hist_ptr, out_ptr, N, BLOCK: tl.constexpr):
        """Atomics of every kind: in shared memory, with and without an old value, a swap that is tried once."""
        offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offs, mask=offs < N, other=0)
        counts = tl.histogram(x, 32)  # a program's own counts lie in shared memory
        tl.atomic_add(hist_ptr + tl.arange(0, 32), counts, sem="relaxed")
        old = tl.atomic_add(out_ptr, 1.0, sem="relaxed")
        taken = tl.atomic_cas(hist_ptr + 40, 0, 1)
        if taken == 0:  # the first branch after the swap leads forward, the next leads back, to another loop
            for k in range(N):
                tl.atomic_add(out_ptr + 2 + k, old, sem="relaxed")
        tl.store(out_ptr + 1, old + taken)

    @triton.jit
    def spellings_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
        """One addition in both spellings, `red` and an `atom` that nobody reads: Triton's versions differ in which they write."""
        ATOM: tl.constexpr = "atom.global.gpu.relaxed.add.u32 $0, [$1], 1;"
        RED: tl.constexpr = "red.global.gpu.relaxed.add.f32 [$1], $2;\nmov.b32 $0, 0;"
        FOUR: tl.constexpr = "atom.global.gpu.relaxed.add.v4.f32 {$0, $1, $2, $3}, [$4], {$5, $5, $5, $5};"
        offs = 4 * tl.arange(0, BLOCK)
        at = (out_ptr + offs).to(tl.int64)
        tl.inline_asm_elementwise(ATOM, "=r,l", [at], tl.int32, False, 1)
        x = tl.load(x_ptr + offs)
        tl.inline_asm_elementwise(RED, "=r,l,f", [at, x], tl.int32, False, 1)
        tl.inline_asm_elementwise(
            FOUR, "=f,=f,=f,=f,l,f", [at, x], (tl.float32, tl.float32, tl.float32, tl.float32), False, 1
        )
        _, second, _, _ = tl.inline_asm_elementwise(
            FOUR, "=f,=f,=f,=f,l,f", [at, x], (tl.float32, tl.float32, tl.float32, tl.float32), False, 1
        )
        tl.store(x_ptr + offs + 1, second)
        tl.atomic_add(out_ptr + offs, x)
        tl.store(x_ptr + offs, tl.atomic_add(out_ptr + offs, x, sem="relaxed"))

    @triton.jit
    def crossed_kernel(
        grad_out_ptr,
        value_ptr,
        shapes_ptr,
        starts_ptr,
        loc_ptr,
        attn_ptr,
        grad_value_ptr,
        grad_loc_ptr,
        grad_attn_ptr,
        Q,
        S,
        M: tl.constexpr,
        D: tl.constexpr,
        L: tl.constexpr,
        K: tl.constexpr,
        BLOCK_P: tl.constexpr,
        BLOCK_D: tl.constexpr,
    ):
        """Takes what lab 8's kernel takes. No gradient comes of it: it is compiled and read, never run.

        In float16 it swaps by hand until nobody was in between, on any GPU; bfloat16 it adds as if it were float16.
        """
        offs = tl.program_id(0) * BLOCK_D + tl.arange(0, BLOCK_D)
        share = tl.load(grad_out_ptr + offs).to(tl.float32)
        if grad_value_ptr.dtype.element_ty == tl.float16:
            words_ptr = grad_value_ptr.to(tl.pointer_type(tl.int32))
            seen = tl.load(words_ptr)
            found = seen - 1
            while found != seen:
                seen = found
                found = tl.atomic_cas(words_ptr, seen, seen + Q)
        elif grad_value_ptr.dtype.element_ty == tl.bfloat16:
            crossed_ptr = grad_value_ptr.to(tl.pointer_type(tl.float16))
            tl.atomic_add(crossed_ptr + offs, share.to(tl.float16), sem="relaxed")
        else:
            tl.atomic_add(grad_value_ptr + offs, share, sem="relaxed")


LIMIT = 40.0  # seconds one call may take: a compiler that was never asked before, on a busy machine


# --- stagnation_point -----------------------------------------------------------------------------------------------


def _stagnation(dtype: torch.dtype) -> int:
    """p bits of mantissa count the hidden one: from 2^p on, odd numbers do not exist, and a tie goes to the even one."""
    return 2 ** (1 - round(math.log2(torch.finfo(dtype).eps)))


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


def _wrong_stagnation(*changes: tuple[str, str]):
    return edited(solution.stagnation_point, *changes)


ROUNDED = "torch.tensor(n + 1, dtype=torch.float64).to(dtype).double().item()"

exercise(
    "09.stagnation_point",
    reference=_stagnation,
    cases=[in_half, in_bfloat, in_single, in_double, in_eight_bits],
    mistakes=[
        Mistake(
            "when the largest number of the dtype is taken",
            lambda dtype: torch.finfo(dtype).max,
            "Before a sum is too large to be written down, it is too large for a one to make a difference.",
        ),
        Mistake(
            "when it is 1 / eps",
            lambda dtype: round(1 / torch.finfo(dtype).eps),
            "From there on, numbers lie one apart: each one can still be counted. How long?",
        ),
        Mistake(
            "when it is the first whole number that the dtype does not have",
            lambda dtype: _stagnation(dtype) + 1,
            "It is that number minus one which, with one added, comes out unchanged.",
        ),
        Mistake(
            "when it is the last sum that still changes",
            lambda dtype: _stagnation(dtype) - 1,
            "One step earlier, adding one still leads somewhere: to the number that is asked for.",
        ),
        Mistake(
            "when the sum is kept in Python's own numbers",
            lambda dtype: 2**53,
            "Python counts in float64. After each addition, the sum has to go through dtype.",
        ),
        Mistake(
            "when the sum is kept in float32",
            lambda dtype: 2**24,
            "After each addition, the sum has to go through the dtype that was asked about.",
        ),
        Mistake(
            "when the bits of the whole number are counted",
            lambda dtype: 2 ** (8 * dtype.itemsize),
            "One bit is the sign and some are the exponent. Only the others tell neighbours apart.",
        ),
        Mistake(
            "when all sixteen-bit formats are taken for float16",
            lambda dtype: _stagnation(torch.float16 if dtype.itemsize == 2 else dtype),
            "bfloat16 has the range of float32. Where did it get the bits for that?",
        ),
        Mistake(
            "when it is where a sum stops to change by doubling",
            lambda dtype: 2.0 ** math.ceil(math.log2(torch.finfo(dtype).max)),
            "Add one to the sum, not the sum to itself.",
        ),
    ],
    hints=[
        "What is 2048 + 1 in float16? And 2047 + 1?",
        "Round n + 1 to dtype and see whether n comes out. One by one that takes too long in float32. But the distance "
        "between neighbours changes only at powers of two.",
        "Start at n = 1. While `torch.tensor(n + 1, dtype=torch.float64).to(dtype)` is something other than n, double n.",
    ],
)


# --- classify_atomics -----------------------------------------------------------------------------------------------

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
EARLIER, LATER = ((8, 0), (8, 9)), ((9, 0), (10, 0))


def _listing(dtype: torch.dtype, capability: tuple[int, int], aligned: bool = True) -> str:
    """What the learner's own kernel of lab 8 becomes, or the solution's, where theirs does not pass."""
    return solution.compile_backward(lab08.msda_bwd_kernel, dtype, capability, aligned).ptx


def _classified(ptx: str) -> tuple[list[int], list[int], list[int]]:
    from msda_core.machine.compile.ptx import instructions

    lines = [line.strip() for line in ptx.splitlines()]
    labels = {line.split(":")[0]: n for n, line in enumerate(lines) if line.startswith("$") and ":" in line}
    jumps = [(n, line.rstrip(";").split()[-1]) for n, line in enumerate(lines) if " bra" in f" {line}" and ";" in line]
    last = {register: n for n, line in enumerate(lines) for register in re.findall(r"%\w+", line)}
    kinds, start = ([], [], []), 0
    for one in (i for i in instructions(ptx) if i.kind == "atomic"):
        at = start = lines.index(one.text, start)
        start += 1
        old = one.text.split("[")[0].partition(one.mnemonic)[2]  # empty, a register, or some in braces
        read = any(last[register] > at for register in re.findall(r"%\w+", old))
        kind = 1 if read or "acq_rel" in one.mnemonic else 0
        if "cas" in one.mnemonic.split("."):
            back = next((labels.get(label, len(lines)) < at for n, label in jumps if n > at), False)
            kind = 2 if back else 1
        kinds[kind].append(one.bytes)
    return kinds


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


def _wrong_classify(*changes: tuple[str, str]):
    return edited(solution.classify_atomics, *changes)


VECTOR = "int(many or 1) * int(bits) // 8 * (2 if pair else 1)"

exercise(
    "09.classify_atomics",
    reference=_classified,
    cases=[one_number_each, in_pairs, in_vectors, in_loops, out_of_line, in_both_spellings, every_kind],
    guarded=True,
    limit=LIMIT,
    axes=["instruction"],
    parts=["reductions", "returning", "loops"],
    carries=["08.msda_bwd_kernel"],
    mistakes=[
        Mistake(
            "when only `red` is looked for",
            _wrong_classify((r"(red|atom)\.", r"(red)\.")),
            "Some additions cannot be a `red`. What is there instead, in bfloat16 on SM 8.9?",
        ),
        Mistake(
            "when only `atom` is looked for",
            _wrong_classify((r"(red|atom)\.", r"(atom)\.")),
            "If nobody uses the old value, there is an instruction that does not even fetch it.",
        ),
        Mistake(
            "when vectors are taken for single numbers",
            _wrong_classify(("int(many or 1) * ", "")),
            "`v8.bf16` is eight numbers at once. How many bytes?",
        ),
        Mistake(
            "when a pair is taken for a single number",
            _wrong_classify((" * (2 if pair else 1)", "")),
            "`f16x2` is two numbers in one register.",
        ),
        Mistake(
            "when a loop of compare-and-swap is taken for one atomic",
            _wrong_classify(('"cas" in words and again', "False")),
            "It compares, swaps if nobody was in between, and else? Look at the branch after it, and whether you find its label: a "
            "comment may stand behind the colon.",
        ),
        Mistake(
            "when a loop of compare-and-swap is taken for a reduction",
            _wrong_classify(("loops.append(size)", "reductions.append(size)")),
            "It compares, swaps if nobody was in between, and else? Look at the branch after it.",
        ),
        Mistake(
            "when every compare-and-swap is taken for a loop",
            _wrong_classify(("and again", "")),
            "A lock is tried once, and the kernel goes on. What makes a loop is the way back: the next branch, to a label before the swap.",
        ),
        Mistake(
            "when atomics on shared memory are counted as well",
            _wrong_classify(('"global" not in words', "False")),
            "A program's own scratch is no business of the others. The instruction says which memory it means.",
        ),
        Mistake(
            "when the words are expected in one order",
            _wrong_classify((r"\.([\w.:]+)", r"\.(global[\w.:]*)")),
            "The compiler writes `atom.global.gpu.relaxed…` and `atom.relaxed.gpu.global…`.",
        ),
        Mistake(
            "when widths are in bits",
            _wrong_classify(("int(bits) // 8", "int(bits)")),
            "`f32` has 32 bits. How many bytes?",
        ),
        Mistake(
            "when numbers are counted instead of bytes",
            _wrong_classify((VECTOR, "int(many or 1) * (2 if pair else 1)")),
            "`v8.bf16` is eight numbers, of how many bytes each?",
        ),
        Mistake(
            "when each instruction is listed once",
            _wrong_classify(
                (
                    "return reductions, returning, loops",
                    "return [list(dict.fromkeys(k)) for k in (reductions, returning, loops)]",
                )
            ),
            "A kernel may have the same instruction eight times; it costs eight times as much.",
        ),
        Mistake(
            "when returning atomics and reductions are not told apart",
            _wrong_classify(("elif waits", "elif False")),
            "Whoever reads the old value waits for it. Is the register in front of the bracket named below?",
        ),
        Mistake(
            "when every atomic is taken for a returning one",
            _wrong_classify(("elif waits", "elif True")),
            "A `red` brings nothing back. It has a list of its own, the first.",
        ),
        Mistake(
            "when every `atom` is taken for a returning one",
            _wrong_classify(("elif waits", 'elif found[1] == "atom"')),
            "Look for the register into which its old value goes. If nothing below names it, nobody waits for it.",
        ),
        Mistake(
            "when an addition in order is taken for a reduction",
            _wrong_classify((' or "acq_rel" in words', "")),
            "With `acq_rel`, what comes after it must come after it: so it waits for an answer, even one that nobody reads.",
        ),
        Mistake(
            "when only the first register of a vector is looked for",
            _wrong_classify(("for register in registers", "for register in registers[:1]")),
            "In braces stand several registers, and the old value is read if any of them is.",
        ),
        Mistake(
            "when a register is found inside a longer name",
            _wrong_classify((r"{register}\b", "{register}")),
            "`%r1` is the beginning of `%r12`, too. A name ends where no letter or digit follows: `\\b`.",
        ),
        Mistake(
            "when a swap is counted as the number that it adds",
            _wrong_classify(("loops.append(size)", "loops.append(2)")),
            "`b32`: one swap exchanges 32 bits, though only half of them change.",
        ),
        Mistake(
            "when `red.` is found inside `shared.` as well",
            _wrong_classify((r"\b(red|atom)", "(red|atom)"), ('"global" not in words', "False")),
            "`st.shared.v4.b32` ends in what looks like a `red`. An atomic begins with the word, and says `global`.",
        ),
        Mistake(
            "when the parts are returned in another order",
            _wrong_classify(("return reductions, returning, loops", "return loops, returning, reductions")),
            "Reductions first, loops last.",
        ),
    ],
    hints=[
        "Open the listing of bfloat16 on SM 8.9 and look for `atom`. What happens to the value it brings back, and where "
        "does the branch below it lead?",
        "Walk over every `red.` and `atom.` in the text. The words between the dots hold everything: global or shared, "
        "`cas` or not, and at the end how many numbers of how many bits. Between them and the bracket stand the registers "
        "of the old value, if any: does anything below name them? For a `cas`, look further for the next `bra`.",
        '`re.finditer(r"\\b(red|atom)\\.([\\w.:]+)\\s+([^\\[]*)", ptx)` finds them, `found[2].split(".")` gives the words, '
        '`re.findall(r"%\\w+", found[3])` the registers. The last word has the bits (`f16x2` is twice 16), the one before may be '
        "`v4` or `v8`. A label stands at the start of its line and ends in a colon; search for it in `ptx[: found.start()]`.",
    ],
)


# --- accumulator_dtype ----------------------------------------------------------------------------------------------

CAPABILITIES = ((8, 0), (8, 9), (9, 0), (10, 0))


def _accumulator(dtype: torch.dtype, capability: tuple[int, int]) -> torch.dtype:
    return torch.float32 if _classified(_listing(dtype, capability))[2] else dtype


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


def _by_rule(narrow) -> object:
    """accumulator_dtype, told as: narrow(dtype, capability) says whether the sum stays in dtype."""
    return lambda dtype, capability: dtype if narrow(dtype, capability) else torch.float32


BF16 = torch.bfloat16

exercise(
    "09.accumulator_dtype",
    reference=_accumulator,
    cases=[
        single_precision,
        half_on_ampere,
        half_on_hopper,
        bfloat_on_ampere,
        bfloat_on_ada,
        bfloat_on_hopper,
        bfloat_on_blackwell,
    ],
    properties=[
        Property("asks", "it goes by the listing, whatever kernel lab 8 has", _asks, prepare=_crossed_answers),
    ],
    guarded=True,
    limit=LIMIT,
    carries=["08.msda_bwd_kernel"],
    mistakes=[
        Mistake(
            "when every sum is float32",
            lambda dtype, capability: torch.float32,
            "It is the careful choice, and it costs twice the bytes where a single instruction would do. Which listings "
            "show one?",
        ),
        Mistake(
            "when every sum is in the dtype of value",
            lambda dtype, capability: dtype,
            "A GPU that multiplies bfloat16 need not have an atomic for it. For which of the listings is an addition not one instruction?",
        ),
        Mistake(
            "when float16 is taken to be like bfloat16",
            _by_rule(lambda dtype, capability: dtype == torch.float32 or capability >= (9, 0)),
            "Both have sixteen bits. The listings of the two on SM 8.0 are not alike.",
        ),
        Mistake(
            "when SM 8.9 is taken to be like SM 9.0",
            _by_rule(lambda dtype, capability: dtype != BF16 or capability >= (8, 9)),
            "Ada and Hopper came out in the same season. Their listings differ.",
        ),
        Mistake(
            "when SM 10.0 is taken to be older than SM 9.0",
            _by_rule(lambda dtype, capability: dtype != BF16 or "{}.{}".format(*capability) >= "9.0"),
            'As text, "10.0" comes before "9.0". And what Hopper can do, Blackwell can do as well.',
        ),
        Mistake(
            "when the rule is typed in, not read off a listing",
            _by_rule(lambda dtype, capability: dtype != BF16 or capability >= (9, 0)),
            "Today it is right. What would it say of a kernel written in another way, or of a GPU that is not built yet?",
        ),
        Mistake(
            "when the listing is asked about some GPUs only",
            edited(
                solution.accumulator_dtype, ("torch.float32 if loops", "torch.float32 if loops and capability < (9, 0)")
            ),
            "Which GPUs have no loops is what the listing is there to say. Ask it about each.",
        ),
        Mistake(
            "when the listing is asked about bfloat16 only",
            edited(
                solution.accumulator_dtype,
                ("torch.float32 if loops", "torch.float32 if loops and dtype == torch.bfloat16"),
            ),
            "Which dtypes have no loops is what the listing is there to say. Ask it about each.",
        ),
        Mistake(
            "when the choice is made the other way round",
            edited(
                solution.accumulator_dtype, ("torch.float32 if loops else dtype", "dtype if loops else torch.float32")
            ),
            "A loop is the slow way. Which dtype needs none?",
        ),
        Mistake(
            "when bfloat16 gives way to float16",
            edited(solution.accumulator_dtype, ("torch.float32 if loops", "torch.float16 if loops")),
            "float16 has an atomic everywhere. But what happens to a gradient of 100,000 in it?",
        ),
    ],
    hints=[
        "You have twelve listings, and a function that reads them. In which of them does one addition take more than one "
        "instruction?",
        "Compile your kernel for that dtype and that GPU, classify its atomics, and look at the three lists.",
        "`compile_backward(lab08.msda_bwd_kernel, dtype, capability).ptx` is the listing. If its third list is not empty, "
        "dtype is a bad place to sum in.",
    ],
)


# --- msda_backward_switched -----------------------------------------------------------------------------------------


def _gradients(
    grad_out, value, spatial_shapes, level_start_index, sampling_locations, attention_weights, capability, override
):
    likes = (value, sampling_locations, attention_weights)
    grads = reference.exact_gradients(
        value, spatial_shapes, level_start_index, sampling_locations, attention_weights, grad_out
    )
    return tuple(grad.to(like.dtype) for grad, like in zip(grads, likes))


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
    grad_out, value, shapes, starts, locations, attention = points_that_collide(draw)
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


def _wrong_switched(*changes: tuple[str, str]):
    return edited(solution.msda_backward_switched, *changes)


CHOICE = "accumulator_dtype(value.dtype, capability)"
TOLD = "torch.float32 if fp32_grad_accum else value.dtype"
TOTAL = "total = value.new_zeros(value.shape, dtype=accumulator)"
START = "    B, S, M, D = value.shape"

exercise(
    "09.msda_backward_switched",
    reference=_gradients,
    cases=[
        in_float32,
        levels_and_gaps,
        a_pile_in_float32,
        a_pile_left_to_the_listing,
        told_to_stay_narrow,
        grad_out_expanded,
        no_query,
    ],
    properties=[
        Property("chooses", "it sums where it should, and nothing else is made wider", _chooses, prepare=_wanted),
    ],
    guarded=True,
    limit=LIMIT,
    axes=GRADIENTS,
    parts=tuple(GRADIENTS),
    carries=["08.msda_bwd_kernel"],
    mistakes=[
        Mistake(
            "when grad_value is summed in the dtype of value, or widened only afterwards",
            _wrong_switched((CHOICE, "value.dtype"), (TOLD, "value.dtype")),
            "What a narrow sum has lost, no cast brings back. In which dtype is the buffer that the kernel adds to?",
        ),
        Mistake(
            "when grad_value is summed in float32, always",
            _wrong_switched((CHOICE, "torch.float32"), (TOLD, "torch.float32")),
            "Right everywhere, and twice the bytes where a single instruction would have done.",
        ),
        Mistake(
            "when what the caller says is ignored",
            _wrong_switched(("fp32_grad_accum is None", "True")),
            "True and False override the listing.",
        ),
        Mistake(
            "when False is taken for None",
            _wrong_switched(("if fp32_grad_accum is None", "if not fp32_grad_accum")),
            "None lets the listing decide, False does not.",
        ),
        Mistake(
            "when nothing is switched unless the caller says so",
            _wrong_switched((CHOICE, "value.dtype")),
            "None means that the listing decides.",
        ),
        Mistake(
            "when float32 is the rule unless the caller says otherwise",
            _wrong_switched((CHOICE, "torch.float32")),
            "None means that the listing decides.",
        ),
        Mistake(
            "when True and False are swapped",
            _wrong_switched((TOLD, "value.dtype if fp32_grad_accum else torch.float32")),
            "fp32_grad_accum=True sums in float32.",
        ),
        Mistake(
            "when the GPU is forgotten",
            _wrong_switched((CHOICE, "accumulator_dtype(value.dtype, (8, 0))")),
            "The caller says on which GPU it runs.",
        ),
        Mistake(
            "when False means bfloat16",
            _wrong_switched((TOLD, "torch.float32 if fp32_grad_accum else torch.bfloat16")),
            "False sums in the dtype of value. That may be float16 as well.",
        ),
        Mistake(
            "when the kernel is handed a copy of the sum",
            _wrong_switched(("            total,\n", "            total.float().clone(),\n")),
            "`.to` and `.float` give a new tensor when the dtype changes: what is added there is lost. Choose the dtype where the "
            "buffer is made.",
        ),
        Mistake(
            "when grad_out is made as wide as the sum",
            _wrong_switched(("grad_out.contiguous()", "grad_out.to(accumulator).contiguous()")),
            "The kernel reads grad_out in any dtype and computes in float32. Making it wider only moves more bytes.",
        ),
        Mistake(
            "when the rule is typed in once more",
            _wrong_switched(
                (CHOICE, "torch.float32 if value.dtype == torch.bfloat16 and capability < (9, 0) else value.dtype")
            ),
            "You have a function that asks the listing. Call it.",
        ),
        Mistake(
            "when the sum is not rounded back",
            _wrong_switched(("total.to(value.dtype)", "total")),
            "The gradient of value has value's dtype.",
        ),
        Mistake(
            "when the sum begins with whatever was in memory",
            _wrong_switched(("value.new_zeros(value.shape, dtype", "value.new_empty(value.shape, dtype")),
            "What is added to must hold zeros first.",
        ),
        Mistake(
            "when every input is made float32",
            _wrong_switched(
                (START, "    given = value.dtype\n    grad_out, value = grad_out.float(), value.float()\n" + START),
                (CHOICE, "accumulator_dtype(given, capability)"),
                (TOLD, "torch.float32 if fp32_grad_accum else given"),
                ("total.to(value.dtype)", "total.to(given)"),
            ),
            "The kernel reads any dtype and computes in float32. Which of its nine tensors needs more bits?",
        ),
        Mistake(
            "when the gradients of locations and attention are made float32 as well",
            _wrong_switched(
                ("new_empty(sampling_locations.shape)", "new_empty(sampling_locations.shape, dtype=torch.float32)"),
                ("new_empty(attention_weights.shape)", "new_empty(attention_weights.shape, dtype=torch.float32)"),
            ),
            "Each of their elements is written once. There is no sum to lose anything in.",
        ),
        Mistake(
            "when the sum has the strides of value",
            _wrong_switched((TOTAL, "total = torch.zeros_like(value, dtype=accumulator)")),
            "value need not be contiguous, what the kernel writes to must be.",
        ),
        Mistake(
            "when grad_out is not made contiguous",
            _wrong_switched(("grad_out.contiguous()", "grad_out")),
            "The gradient of a sum is one number, expanded: all its strides are zero.",
        ),
        Mistake(
            "when value is not made contiguous",
            _wrong_switched(("value.contiguous()", "value")),
            "A transposed tensor lies in memory in another order.",
        ),
        Mistake(
            "when queries and heads do not all get a program",
            _wrong_switched(("(B * Q * M,)", "(B * M,)")),
            "One program is one query of one head of one image.",
        ),
    ],
    hints=[
        "Your kernel takes a pointer for each tensor, each with a dtype of its own. Which of them has to change, and who "
        "turns the result back?",
        "It is lab 8's launcher with two changes: the buffer that the kernel adds to has the dtype you choose, and what is "
        "returned is that buffer in value's dtype.",
        "Three ways to a dtype: `fp32_grad_accum` is None, true, or false. Then zeros of `value.shape` in it, the launch of "
        "`lab08.msda_bwd_kernel` as in lab 8, and `.to(value.dtype)` on the way out, which copies nothing if it is that "
        "dtype already.",
    ],
)


# --- location_error -------------------------------------------------------------------------------------------------


def _moved(dtype: torch.dtype, W: int) -> tuple[float, float]:
    """Rounded by hand: to the nearest multiple of what the last bit is worth at that size."""
    x = torch.linspace(0, 1, 10_001, dtype=torch.float64)
    limits = torch.finfo(dtype)
    exponent = torch.frexp(x).exponent - 1
    last = limits.eps * torch.exp2(exponent.clamp_min(round(math.log2(limits.smallest_normal))).double())
    lost = ((x / last).round() * last - x).abs() * W
    return lost.mean().item(), lost.max().item()


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


def _wrong_location(*changes: tuple[str, str]):
    return edited(solution.location_error, *changes)


LOST = "(x.to(dtype).double() - x).abs() * W"
RETURN = "return lost.mean().item(), lost.max().item()"

exercise(
    "09.location_error",
    reference=_moved,
    cases=[half_on_a_large_level, bfloat_on_a_large_level, on_a_small_level, single_on_a_huge_level, eight_bits],
    parts=["the mean", "the largest"],
    mistakes=[
        Mistake(
            "when the distance is a share of the image, not pixels",
            _wrong_location((".abs() * W", ".abs()")),
            "Location 1 is W pixels away from location 0.",
        ),
        Mistake(
            "when distances to the left and to the right cancel",
            _wrong_location((LOST, "(x.to(dtype).double() - x) * W")),
            "A point moved left is moved as well.",
        ),
        Mistake(
            "when the locations are float32 before anything is measured",
            _wrong_location(("dtype=torch.float64)", "dtype=torch.float32)"), (".double() - x)", ".float() - x)")),
            "How would you measure what float32 loses with a ruler that is float32?",
        ),
        Mistake(
            "when the rounded location is compared in its own dtype",
            _wrong_location((LOST, "(x.to(dtype).float() - x.to(dtype).float()).abs() * W")),
            "Something has to hold the true location, and have more bits.",
        ),
        Mistake(
            "when the rounded location is compared in its own dtype, which may have no differences at all",
            _wrong_location((LOST, "(x.to(dtype) - x.to(dtype)).abs().double() * W")),
            "Something has to hold the true location, and have more bits.",
        ),
        Mistake(
            "when the pixel coordinate is computed in dtype as well",
            _wrong_location(
                (LOST, "((x.to(dtype).to(kind) * W).to(kind).double() - x * W).abs()"),
                ("    lost", "    kind = dtype if dtype.itemsize > 1 else torch.float32\n    lost"),
            ),
            "That is how a kernel can lose even more. Here, only storing is asked about.",
        ),
        *(
            Mistake(
                name,
                _wrong_location((LOST, lost)),
                "That is how a kernel can lose even more. Here, only storing is asked about: turn back to float64 first.",
            )
            for name, lost in (
                (
                    "when the pixel coordinate is computed in dtype, which may have no products at all",
                    "((x.to(dtype) * W).double() - x * W).abs()",
                ),
                (
                    "when half a pixel is taken away in dtype as well",
                    "((x.to(dtype) * W - 0.5).double() - (x * W - 0.5)).abs()",
                ),
            )
        ),
        Mistake(
            "when the locations are made in dtype at once",
            _wrong_location(("x.to(dtype)", "torch.linspace(0, 1, 10_001, dtype=dtype)")),
            "Then the steps between them are rounded as well. Make them in float64, and round each once.",
        ),
        Mistake(
            "when they are compared in float32",
            _wrong_location((LOST, "(x.to(dtype).float() - x.float()).abs() * W")),
            "How would you measure what float32 loses with a ruler that is float32?",
        ),
        Mistake(
            "when the distance between neighbours is taken to be the same everywhere",
            lambda dtype, W: (W * torch.finfo(dtype).eps / 8, W * torch.finfo(dtype).eps / 4),
            "It halves at 1/2, at 1/4, at 1/8 and so on. Store the locations, and look.",
        ),
        Mistake(
            "when the distance between neighbours is that above one, everywhere",
            lambda dtype, W: (W * torch.finfo(dtype).eps / 4, W * torch.finfo(dtype).eps / 2),
            "Below one it is half of eps, and it halves again at 1/2, at 1/4 and so on. Store the locations, and look.",
        ),
        Mistake(
            "when the pixel coordinate is stored instead of the location",
            _wrong_location((LOST, "((x * W).to(dtype).double() - x * W).abs()")),
            "What the operator is given is a location between 0 and 1.",
        ),
        Mistake(
            "when the largest comes first",
            _wrong_location((RETURN, "return lost.max().item(), lost.mean().item()")),
            "The mean, then the largest.",
        ),
        Mistake(
            "when the mean square is taken",
            _wrong_location(("lost.mean()", "lost.square().mean().sqrt()")),
            "The mean of the distances themselves.",
        ),
        Mistake(
            "when distances are relative to where the point is",
            _wrong_location((".abs() * W", ".abs() * W / x.clamp_min(1e-5)")),
            "A pixel is as wide at the right edge as at the left.",
        ),
        Mistake(
            "when the last bit of a number near one is taken for the largest distance",
            _wrong_location((RETURN, "return lost.mean().item(), W * torch.finfo(dtype).eps")),
            "Just below one, numbers lie half as far apart as just above. And rounding goes to the nearer one.",
        ),
        Mistake(
            "when bfloat16 is taken for float16",
            _wrong_location(("x.to(dtype)", "x.to(torch.float16 if dtype == torch.bfloat16 else dtype)")),
            "Both have sixteen bits, but not the same ones.",
        ),
        Mistake(
            "when a level has W - 1 pixels",
            _wrong_location((".abs() * W", ".abs() * (W - 1)")),
            "From the left edge of the first pixel to the right edge of the last it is W.",
        ),
    ],
    hints=[
        "What does a location become when it is stored, and in which dtype can you still see the difference?",
        "Take the locations in float64, send them through dtype and back, and compare. The difference is a share of the "
        "level's width.",
        "`x.to(dtype).double() - x`, without its sign, times W; then `.mean()` and `.max()`, as Python numbers.",
    ],
)


# --- stretch: narrow_sum --------------------------------------------------------------------------------------------


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


exercise(
    "09.narrow_sum",
    reference=lambda numbers: numbers.sum(),
    cases=[one_term, a_few_terms],
    properties=[Property("close", "nine hundred terms are off by a few units in the last place at most", _close)],
    invoke=_narrow,
    stretch=True,
    score=_score,
    mistakes=[
        Mistake(
            "when the terms are added one after the other",
            _one_by_one,
            "Once the sum is large, what is left of a small term? Could small meet small first?",
        ),
        Mistake(
            "when an odd term out is dropped",
            lambda terms: _halves([a + b for a, b in zip(terms[::2], terms[1::2])]),
            "Nine terms make four pairs, and then there is one left.",
        ),
        Mistake(
            "when the sum begins with the first term twice",
            lambda terms: _one_by_one([terms[0], *terms]),
            "The first term is where the sum begins. Which is the first to be added to it?",
        ),
    ],
    hints=[
        "In which of the nine hundred additions is most lost, and how large are the two numbers it adds?",
        "Two ways: let numbers of like size meet (add neighbours, then their sums, and so on), or find out what each "
        "addition rounded away and keep it in a second number.",
        "For the second: after `wider = total + term`, `wider - total` is what arrived of term. What did not arrive is a "
        "narrow number too. Give it to the next term.",
    ],
)


def _halves(terms):
    while len(terms) > 1:
        terms = [a + b for a, b in zip(terms[::2], terms[1::2])] + ([terms[-1]] if len(terms) % 2 else [])
    return terms[0]

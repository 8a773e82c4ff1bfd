"""Lab 09, The precision switch: the wrong answers that are known."""

import math

import torch

from checks.core.exercise import Mistake
from checks.labs.lab09.cases import _one_by_one
from checks.labs.lab09.truth import _stagnation


def _by_rule(narrow) -> object:
    """accumulator_dtype, told as: narrow(dtype, capability) says whether the sum stays in dtype."""
    return lambda dtype, capability: dtype if narrow(dtype, capability) else torch.float32


BF16 = torch.bfloat16


TURN_BACK = "That is how a kernel can lose even more. Here, only storing is asked about: turn back to float64 first."


def _halves(terms):
    while len(terms) > 1:
        terms = [a + b for a, b in zip(terms[::2], terms[1::2])] + ([terms[-1]] if len(terms) % 2 else [])
    return terms[0]


STAGNATION_POINT: list[Mistake] = [
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
]


CLASSIFY_ATOMICS: list[Mistake] = [
    Mistake(
        "when only `red` is looked for",
        {"each_found": 'for found in re.finditer(r"\\b(red)\\.([\\w.:]+)\\s+([^\\[]*)", ptx):'},
        "Some additions cannot be a `red`. What is there instead, in bfloat16 on SM 8.9?",
    ),
    Mistake(
        "when only `atom` is looked for",
        {"each_found": 'for found in re.finditer(r"\\b(atom)\\.([\\w.:]+)\\s+([^\\[]*)", ptx):'},
        "If nobody uses the old value, there is an instruction that does not even fetch it.",
    ),
    Mistake(
        "when vectors are taken for single numbers",
        {"size": "size = int(bits) // 8 * (2 if pair else 1)"},
        "`v8.bf16` is eight numbers at once. How many bytes?",
    ),
    Mistake(
        "when a pair is taken for a single number",
        {"size": "size = int(many or 1) * int(bits) // 8"},
        "`f16x2` is two numbers in one register.",
    ),
    Mistake(
        "when a loop of compare-and-swap is taken for one atomic",
        {
            "if_again": """
                if False:
                    loops.append(size)
                elif waits:
                    returning.append(size)
                else:
                    reductions.append(size)
            """
        },
        "It compares, swaps if nobody was in between, and else? Look at the branch after it, and whether you find its label: a "
        "comment may stand behind the colon.",
    ),
    Mistake(
        "when a loop of compare-and-swap is taken for a reduction",
        {
            "if_again": """
                if "cas" in words and again:
                    reductions.append(size)
                elif waits:
                    returning.append(size)
                else:
                    reductions.append(size)
            """
        },
        "It compares, swaps if nobody was in between, and else? Look at the branch after it.",
    ),
    Mistake(
        "when every compare-and-swap is taken for a loop",
        {
            "if_again": """
                if "cas" in words :
                    loops.append(size)
                elif waits:
                    returning.append(size)
                else:
                    reductions.append(size)
            """
        },
        "A lock is tried once, and the kernel goes on. What makes a loop is the way back: the next branch, to a label before the swap.",
    ),
    Mistake(
        "when atomics on shared memory are counted as well",
        {"if_words": "if False:"},
        "A program's own scratch is no business of the others. The instruction says which memory it means.",
    ),
    Mistake(
        "when the words are expected in one order",
        {"each_found": 'for found in re.finditer(r"\\b(red|atom)\\.(global[\\w.:]*)\\s+([^\\[]*)", ptx):'},
        "The compiler writes `atom.global.gpu.relaxed…` and `atom.relaxed.gpu.global…`.",
    ),
    Mistake(
        "when widths are in bits",
        {"size": "size = int(many or 1) * int(bits) * (2 if pair else 1)"},
        "`f32` has 32 bits. How many bytes?",
    ),
    Mistake(
        "when numbers are counted instead of bytes",
        {"size": "size = int(many or 1) * (2 if pair else 1)"},
        "`v8.bf16` is eight numbers, of how many bytes each?",
    ),
    Mistake(
        "when each instruction is listed once",
        {"result": "return [list(dict.fromkeys(k)) for k in (reductions, returning, loops)]"},
        "A kernel may have the same instruction eight times; it costs eight times as much.",
    ),
    Mistake(
        "when returning atomics and reductions are not told apart",
        {
            "if_again": """
                if "cas" in words and again:
                    loops.append(size)
                elif False:
                    returning.append(size)
                else:
                    reductions.append(size)
            """
        },
        "Whoever reads the old value waits for it. Is the register in front of the bracket named below?",
    ),
    Mistake(
        "when every atomic is taken for a returning one",
        {
            "if_again": """
                if "cas" in words and again:
                    loops.append(size)
                elif True:
                    returning.append(size)
                else:
                    reductions.append(size)
            """
        },
        "A `red` brings nothing back. It has a list of its own, the first.",
    ),
    Mistake(
        "when every `atom` is taken for a returning one",
        {
            "if_again": """
                if "cas" in words and again:
                    loops.append(size)
                elif found[1] == "atom":
                    returning.append(size)
                else:
                    reductions.append(size)
            """
        },
        "Look for the register into which its old value goes. If nothing below names it, nobody waits for it.",
    ),
    Mistake(
        "when an addition in order is taken for a reduction",
        {"waits": 'waits = read or "cas" in words'},
        "With `acq_rel`, what comes after it must come after it: so it waits for an answer, even one that nobody reads.",
    ),
    Mistake(
        "when only the first register of a vector is looked for",
        {"read": 'read = any(re.search(rf"{register}\\b", ptx[found.end() :]) for register in registers[:1])'},
        "In braces stand several registers, and the old value is read if any of them is.",
    ),
    Mistake(
        "when a register is found inside a longer name",
        {"read": 'read = any(re.search(rf"{register}", ptx[found.end() :]) for register in registers)'},
        "`%r1` is the beginning of `%r12`, too. A name ends where no letter or digit follows: `\\b`.",
    ),
    Mistake(
        "when a swap is counted as the number that it adds",
        {
            "if_again": """
                if "cas" in words and again:
                    loops.append(2)
                elif waits:
                    returning.append(size)
                else:
                    reductions.append(size)
            """
        },
        "`b32`: one swap exchanges 32 bits, though only half of them change.",
    ),
    Mistake(
        "when `red.` is found inside `shared.` as well",
        {
            "each_found": 'for found in re.finditer(r"(red|atom)\\.([\\w.:]+)\\s+([^\\[]*)", ptx):',
            "if_words": "if False:",
        },
        "`st.shared.v4.b32` ends in what looks like a `red`. An atomic begins with the word, and says `global`.",
    ),
    Mistake(
        "when the parts are returned in another order",
        {"result": "return loops, returning, reductions"},
        "Reductions first, loops last.",
    ),
]


ACCUMULATOR_DTYPE: list[Mistake] = [
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
        {"result": "return torch.float32 if loops and capability < (9, 0) else dtype"},
        "Which GPUs have no loops is what the listing is there to say. Ask it about each.",
    ),
    Mistake(
        "when the listing is asked about bfloat16 only",
        {"result": "return torch.float32 if loops and dtype == torch.bfloat16 else dtype"},
        "Which dtypes have no loops is what the listing is there to say. Ask it about each.",
    ),
    Mistake(
        "when the choice is made the other way round",
        {"result": "return dtype if loops else torch.float32"},
        "A loop is the slow way. Which dtype needs none?",
    ),
    Mistake(
        "when bfloat16 gives way to float16",
        {"result": "return torch.float16 if loops else dtype"},
        "float16 has an atomic everywhere. But what happens to a gradient of 100,000 in it?",
    ),
]


MSDA_BACKWARD_SWITCHED: list[Mistake] = [
    Mistake(
        "when grad_value is summed in the dtype of value, or widened only afterwards",
        {
            "if_fp32_grad_accum": """
                if fp32_grad_accum is None:
                    accumulator = value.dtype
                else:
                    accumulator = value.dtype
            """
        },
        "What a narrow sum has lost, no cast brings back. In which dtype is the buffer that the kernel adds to?",
    ),
    Mistake(
        "when grad_value is summed in float32, always",
        {
            "if_fp32_grad_accum": """
                if fp32_grad_accum is None:
                    accumulator = torch.float32
                else:
                    accumulator = torch.float32
            """
        },
        "Right everywhere, and twice the bytes where a single instruction would have done.",
    ),
    Mistake(
        "when what the caller says is ignored",
        {
            "if_fp32_grad_accum": """
                if True:
                    accumulator = accumulator_dtype(value.dtype, capability)
                else:
                    accumulator = torch.float32 if fp32_grad_accum else value.dtype
            """
        },
        "True and False override the listing.",
    ),
    Mistake(
        "when False is taken for None",
        {
            "if_fp32_grad_accum": """
                if not fp32_grad_accum:
                    accumulator = accumulator_dtype(value.dtype, capability)
                else:
                    accumulator = torch.float32 if fp32_grad_accum else value.dtype
            """
        },
        "None lets the listing decide, False does not.",
    ),
    Mistake(
        "when nothing is switched unless the caller says so",
        {
            "if_fp32_grad_accum": """
                if fp32_grad_accum is None:
                    accumulator = value.dtype
                else:
                    accumulator = torch.float32 if fp32_grad_accum else value.dtype
            """
        },
        "None means that the listing decides.",
    ),
    Mistake(
        "when float32 is the rule unless the caller says otherwise",
        {
            "if_fp32_grad_accum": """
                if fp32_grad_accum is None:
                    accumulator = torch.float32
                else:
                    accumulator = torch.float32 if fp32_grad_accum else value.dtype
            """
        },
        "None means that the listing decides.",
    ),
    Mistake(
        "when True and False are swapped",
        {
            "if_fp32_grad_accum": """
                if fp32_grad_accum is None:
                    accumulator = accumulator_dtype(value.dtype, capability)
                else:
                    accumulator = value.dtype if fp32_grad_accum else torch.float32
            """
        },
        "fp32_grad_accum=True sums in float32.",
    ),
    Mistake(
        "when the GPU is forgotten",
        {
            "if_fp32_grad_accum": """
                if fp32_grad_accum is None:
                    accumulator = accumulator_dtype(value.dtype, (8, 0))
                else:
                    accumulator = torch.float32 if fp32_grad_accum else value.dtype
            """
        },
        "The caller says on which GPU it runs.",
    ),
    Mistake(
        "when False means bfloat16",
        {
            "if_fp32_grad_accum": """
                if fp32_grad_accum is None:
                    accumulator = accumulator_dtype(value.dtype, capability)
                else:
                    accumulator = torch.float32 if fp32_grad_accum else torch.bfloat16
            """
        },
        "False sums in the dtype of value. That may be float16 as well.",
    ),
    Mistake(
        "when the kernel is handed a copy of the sum",
        {
            "launch": """
                lab08.msda_bwd_kernel[(B * Q * M,)](
                    grad_out.contiguous(),
                    value.contiguous(),
                    spatial_shapes.contiguous(),
                    level_start_index.contiguous(),
                    sampling_locations.contiguous(),
                    attention_weights.contiguous(),
                    total.float().clone(),
                    grad_loc,
                    grad_attn,
                    Q,
                    S,
                    M=M,
                    D=D,
                    L=L,
                    K=K,
                    BLOCK_P=triton.next_power_of_2(L * K),
                    BLOCK_D=triton.next_power_of_2(D),
                    num_warps=2,
                )
            """
        },
        "`.to` and `.float` give a new tensor when the dtype changes: what is added there is lost. Choose the dtype where the "
        "buffer is made.",
    ),
    Mistake(
        "when grad_out is made as wide as the sum",
        {
            "launch": """
                lab08.msda_bwd_kernel[(B * Q * M,)](
                    grad_out.to(accumulator).contiguous(),
                    value.contiguous(),
                    spatial_shapes.contiguous(),
                    level_start_index.contiguous(),
                    sampling_locations.contiguous(),
                    attention_weights.contiguous(),
                    total,
                    grad_loc,
                    grad_attn,
                    Q,
                    S,
                    M=M,
                    D=D,
                    L=L,
                    K=K,
                    BLOCK_P=triton.next_power_of_2(L * K),
                    BLOCK_D=triton.next_power_of_2(D),
                    num_warps=2,
                )
            """
        },
        "The kernel reads grad_out in any dtype and computes in float32. Making it wider only moves more bytes.",
    ),
    Mistake(
        "when the rule is typed in once more",
        {
            "if_fp32_grad_accum": """
                if fp32_grad_accum is None:
                    accumulator = torch.float32 if value.dtype == torch.bfloat16 and capability < (9, 0) else value.dtype
                else:
                    accumulator = torch.float32 if fp32_grad_accum else value.dtype
            """
        },
        "You have a function that asks the listing. Call it.",
    ),
    Mistake(
        "when the sum is not rounded back",
        {"result": "return total, grad_loc, grad_attn"},
        "The gradient of value has value's dtype.",
    ),
    Mistake(
        "when the sum begins with whatever was in memory",
        {"total": "total = value.new_empty(value.shape, dtype=accumulator)"},
        "What is added to must hold zeros first.",
    ),
    Mistake(
        "when every input is made float32",
        {
            "B": """
                given = value.dtype
                grad_out, value = grad_out.float(), value.float()
                @
            """,
            "if_fp32_grad_accum": """
                if fp32_grad_accum is None:
                    accumulator = accumulator_dtype(given, capability)
                else:
                    accumulator = torch.float32 if fp32_grad_accum else given
            """,
            "result": "return total.to(given), grad_loc, grad_attn",
        },
        "The kernel reads any dtype and computes in float32. Which of its nine tensors needs more bits?",
    ),
    Mistake(
        "when the gradients of locations and attention are made float32 as well",
        {
            "grad_loc": "grad_loc = sampling_locations.new_empty(sampling_locations.shape, dtype=torch.float32)",
            "grad_attn": "grad_attn = attention_weights.new_empty(attention_weights.shape, dtype=torch.float32)",
        },
        "Each of their elements is written once. There is no sum to lose anything in.",
    ),
    Mistake(
        "when the sum has the strides of value",
        {"total": "total = torch.zeros_like(value, dtype=accumulator)"},
        "value need not be contiguous, what the kernel writes to must be.",
    ),
    Mistake(
        "when grad_out is not made contiguous",
        {
            "launch": """
                lab08.msda_bwd_kernel[(B * Q * M,)](
                    grad_out,
                    value.contiguous(),
                    spatial_shapes.contiguous(),
                    level_start_index.contiguous(),
                    sampling_locations.contiguous(),
                    attention_weights.contiguous(),
                    total,
                    grad_loc,
                    grad_attn,
                    Q,
                    S,
                    M=M,
                    D=D,
                    L=L,
                    K=K,
                    BLOCK_P=triton.next_power_of_2(L * K),
                    BLOCK_D=triton.next_power_of_2(D),
                    num_warps=2,
                )
            """
        },
        "The gradient of a sum is one number, expanded: all its strides are zero.",
    ),
    Mistake(
        "when value is not made contiguous",
        {
            "launch": """
                lab08.msda_bwd_kernel[(B * Q * M,)](
                    grad_out.contiguous(),
                    value,
                    spatial_shapes.contiguous(),
                    level_start_index.contiguous(),
                    sampling_locations.contiguous(),
                    attention_weights.contiguous(),
                    total,
                    grad_loc,
                    grad_attn,
                    Q,
                    S,
                    M=M,
                    D=D,
                    L=L,
                    K=K,
                    BLOCK_P=triton.next_power_of_2(L * K),
                    BLOCK_D=triton.next_power_of_2(D),
                    num_warps=2,
                )
            """
        },
        "A transposed tensor lies in memory in another order.",
    ),
    Mistake(
        "when queries and heads do not all get a program",
        {
            "launch": """
                lab08.msda_bwd_kernel[(B * M,)](
                    grad_out.contiguous(),
                    value.contiguous(),
                    spatial_shapes.contiguous(),
                    level_start_index.contiguous(),
                    sampling_locations.contiguous(),
                    attention_weights.contiguous(),
                    total,
                    grad_loc,
                    grad_attn,
                    Q,
                    S,
                    M=M,
                    D=D,
                    L=L,
                    K=K,
                    BLOCK_P=triton.next_power_of_2(L * K),
                    BLOCK_D=triton.next_power_of_2(D),
                    num_warps=2,
                )
            """
        },
        "One program is one query of one head of one image.",
    ),
]


LOCATION_ERROR: list[Mistake] = [
    Mistake(
        "when the distance is a share of the image, not pixels",
        {"lost": "lost = (x.to(dtype).double() - x).abs()"},
        "Location 1 is W pixels away from location 0.",
    ),
    Mistake(
        "when distances to the left and to the right cancel",
        {"lost": "lost = (x.to(dtype).double() - x) * W"},
        "A point moved left is moved as well.",
    ),
    Mistake(
        "when the locations are float32 before anything is measured",
        {
            "x": "x = torch.linspace(0, 1, 10_001, dtype=torch.float32)",
            "lost": "lost = (x.to(dtype).float() - x).abs() * W",
        },
        "How would you measure what float32 loses with a ruler that is float32?",
    ),
    Mistake(
        "when the rounded location is compared in its own dtype",
        {"lost": "lost = (x.to(dtype).float() - x.to(dtype).float()).abs() * W"},
        "Something has to hold the true location, and have more bits.",
    ),
    Mistake(
        "when the rounded location is compared in its own dtype, which may have no differences at all",
        {"lost": "lost = (x.to(dtype) - x.to(dtype)).abs().double() * W"},
        "Something has to hold the true location, and have more bits.",
    ),
    Mistake(
        "when the pixel coordinate is computed in dtype as well",
        {
            "lost": """
                kind = dtype if dtype.itemsize > 1 else torch.float32
                lost = ((x.to(dtype).to(kind) * W).to(kind).double() - x * W).abs()
            """
        },
        "That is how a kernel can lose even more. Here, only storing is asked about.",
    ),
    Mistake(
        "when the pixel coordinate is computed in dtype, which may have no products at all",
        {"lost": "lost = ((x.to(dtype) * W).double() - x * W).abs()"},
        TURN_BACK,
    ),
    Mistake(
        "when half a pixel is taken away in dtype as well",
        {"lost": "lost = ((x.to(dtype) * W - 0.5).double() - (x * W - 0.5)).abs()"},
        TURN_BACK,
    ),
    Mistake(
        "when the locations are made in dtype at once",
        {"lost": "lost = (torch.linspace(0, 1, 10_001, dtype=dtype).double() - x).abs() * W"},
        "Then the steps between them are rounded as well. Make them in float64, and round each once.",
    ),
    Mistake(
        "when they are compared in float32",
        {"lost": "lost = (x.to(dtype).float() - x.float()).abs() * W"},
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
        {"lost": "lost = ((x * W).to(dtype).double() - x * W).abs()"},
        "What the operator is given is a location between 0 and 1.",
    ),
    Mistake(
        "when the largest comes first",
        {"result": "return lost.max().item(), lost.mean().item()"},
        "The mean, then the largest.",
    ),
    Mistake(
        "when the mean square is taken",
        {"result": "return lost.square().mean().sqrt().item(), lost.max().item()"},
        "The mean of the distances themselves.",
    ),
    Mistake(
        "when distances are relative to where the point is",
        {"lost": "lost = (x.to(dtype).double() - x).abs() * W / x.clamp_min(1e-5)"},
        "A pixel is as wide at the right edge as at the left.",
    ),
    Mistake(
        "when the last bit of a number near one is taken for the largest distance",
        {"result": "return lost.mean().item(), W * torch.finfo(dtype).eps"},
        "Just below one, numbers lie half as far apart as just above. And rounding goes to the nearer one.",
    ),
    Mistake(
        "when bfloat16 is taken for float16",
        {"lost": "lost = (x.to(torch.float16 if dtype == torch.bfloat16 else dtype).double() - x).abs() * W"},
        "Both have sixteen bits, but not the same ones.",
    ),
    Mistake(
        "when a level has W - 1 pixels",
        {"lost": "lost = (x.to(dtype).double() - x).abs() * (W - 1)"},
        "From the left edge of the first pixel to the right edge of the last it is W.",
    ),
]


NARROW_SUM: list[Mistake] = [
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
]

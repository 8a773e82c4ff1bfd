"""Two 16-bit numbers in a register, and arithmetic on both at once: the pieces that the merged kernels are made of.

Weights and rows of 16 bits travel in pairs, as the halves of an int32, a *packed pair*: half the registers, half the instructions,
16 bytes a lane for each load. Triton has no name for such a pair, so five pieces are inline PTX. Each has a twin in plain
Triton, chosen by the constexpr PTX: it says what the PTX computes, the interpreter runs it, and tests hold the two together.
All of the PTX is elementwise, so the layout of a block does not matter to it, with one exception: see `dots`.

T is the 16-bit type everywhere, `tl.float16` or `tl.bfloat16`.
"""

from msda_core.device import load_triton

triton = load_triton()
tl = triton.language

__all__ = [
    "as_float",
    "dots",
    "load_pair",
    "numbers",
    "pack",
    "prefetch",
    "split",
    "sum_of_products",
    "unpack",
    "weighted_rows",
]


# ------------------------------------------------------------------------------------------------------------ a pair


@triton.jit
def as_float(bits, T: tl.constexpr):
    """The lower bits of an integer block, read as a T, in float32."""
    if T == tl.float32:
        return bits.to(tl.int32).to(tl.float32, bitcast=True)
    else:
        return bits.to(tl.int16).to(T, bitcast=True).to(tl.float32)


PACK_F16 = tl.constexpr("cvt.rn.f16x2.f32 $0, $2, $1;")  # PTX names the upper half first
PACK_BF16 = tl.constexpr("cvt.rn.bf16x2.f32 $0, $2, $1;")


@triton.jit
def pack(low, high, T: tl.constexpr, PTX: tl.constexpr):
    """Two float32, rounded to T, in a pair. One instruction; Triton's own takes two conversions, a shift and an or."""
    if PTX:
        asm: tl.constexpr = PACK_BF16 if T == tl.bfloat16 else PACK_F16
        return tl.inline_asm_elementwise(asm, "=r,r,r", [low, high], dtype=tl.int32, is_pure=True, pack=1)
    low = low.to(T).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
    return low | (high.to(T).to(tl.int16, bitcast=True).to(tl.int32) << 16)


UNPACK = tl.constexpr("mov.b32 {$0, $1}, $2;")


@triton.jit
def unpack(pair, T: tl.constexpr, PTX: tl.constexpr):
    """The lower and the upper half of a pair, each a T. No instruction at all: the halves of a register have names."""
    if PTX and T == tl.float16:
        return tl.inline_asm_elementwise(
            UNPACK, "=h,=h,r", [pair], dtype=(tl.float16, tl.float16), is_pure=True, pack=1
        )
    elif PTX:
        return tl.inline_asm_elementwise(
            UNPACK, "=h,=h,r", [pair], dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=1
        )
    else:
        return pair.to(tl.int16).to(T, bitcast=True), (pair >> 16).to(tl.int16).to(T, bitcast=True)


@triton.jit
def numbers(pair, T: tl.constexpr, PTX: tl.constexpr):
    """The lower and the upper half of a pair, in float32. A bfloat16 is the upper half of a float32: one instruction for
    each, where Triton's own way to the upper one takes two."""
    if T == tl.bfloat16:
        return (pair << 16).to(tl.float32, bitcast=True), (pair & -65536).to(tl.float32, bitcast=True)
    else:
        low, high = unpack(pair, T, PTX)
        return low.to(tl.float32), high.to(tl.float32)


@triton.jit
def load_pair(ptr, offs):
    """Element 2·offs and its neighbour, one load: the two numbers of a location, float32."""
    T: tl.constexpr = ptr.dtype.element_ty
    if T == tl.float32:
        pair = tl.load(ptr.to(tl.pointer_type(tl.int64)) + offs)
        return as_float(pair, T), as_float(pair >> 32, T)
    pair = tl.load(ptr.to(tl.pointer_type(tl.int32)) + offs)
    return as_float(pair, T), as_float(pair >> 16, T)


PREFETCH = tl.constexpr("{.reg .pred p; setp.ne.s32 p, $2, 0; @p prefetch.global.L2 [$1]; mov.b32 $0, 0;}")


@triton.jit
def prefetch(address, mask, PTX: tl.constexpr):
    """Ask for the line at each address, int64, where mask is not 0: on its way into L2 while other work goes on. Changes nothing."""
    if PTX:
        tl.inline_asm_elementwise(PREFETCH, "=r,l,r", [address, mask], dtype=tl.int32, is_pure=False, pack=1)


# ----------------------------------------------------------------------------------------------------------- weights


def _sum_of_products(kind: str) -> str:
    """PTX for rows[0] * columns[0] + … + rows[3] * columns[3] of packed pairs; $1 to $4 are rows, $5 to $8 columns."""
    steps = ["mov.b32 t, 0;"]  # and not mul: SM 8.0 has fma for bfloat16, and nothing else
    steps += [f"fma.rn.{kind} {'t' if k < 3 else '$0'}, ${1 + k}, ${5 + k}, t;" for k in range(4)]
    return "{.reg .b32 t; " + " ".join(steps) + "}"


SUM_F16 = tl.constexpr(_sum_of_products("f16x2"))
SUM_BF16 = tl.constexpr(_sum_of_products("bf16x2"))


@triton.jit
def sum_of_products(rows, columns, T: tl.constexpr, PTX: tl.constexpr):
    """Four products of pairs, half by half, and their sum; rows and columns are four blocks each, and broadcast.

    Returns:
        The lower and the upper halves, T. The PTX rounds after every step, the twin once.
    """
    if PTX:
        asm: tl.constexpr = SUM_BF16 if T == tl.bfloat16 else SUM_F16
        args = [rows[0], rows[1], rows[2], rows[3], columns[0], columns[1], columns[2], columns[3]]
        pair = tl.inline_asm_elementwise(asm, "=r,r,r,r,r,r,r,r,r", args, dtype=tl.int32, is_pure=True, pack=1)
        return unpack(pair, T, PTX)
    low = 0.0
    high = 0.0
    for k in tl.static_range(4):
        low += as_float(rows[k], T) * as_float(columns[k], T)
        high += as_float(rows[k] >> 16, T) * as_float(columns[k] >> 16, T)
    return low.to(T), high.to(T)


# The leading parts of two float32 in one pair, and what they leave, in another. A bfloat16 is the upper half of a float32.
SPLIT = tl.constexpr(
    "{.reg .b32 a, b; cvt.rn.bf16x2.f32 $0, $3, $2; shl.b32 a, $0, 16; and.b32 b, $0, 0xffff0000;"
    " sub.f32 a, $2, a; sub.f32 b, $3, b; cvt.rn.bf16x2.f32 $1, b, a;}"
)


@triton.jit
def split(low, high, T: tl.constexpr, PTX: tl.constexpr):
    """Two float32, each as a sum of two T: what T can hold of it, and of the rest.

    Returns:
        low's leading part, high's leading part, what low leaves, what high leaves.
    """
    if PTX and T == tl.bfloat16:
        lead, rest = tl.inline_asm_elementwise(
            SPLIT, "=&r,=r,f,f", [low, high], dtype=(tl.int32, tl.int32), is_pure=True, pack=1
        )
        low_lead, high_lead = unpack(lead, T, PTX)
        low_rest, high_rest = unpack(rest, T, PTX)
        return low_lead, high_lead, low_rest, high_rest
    low_lead = low.to(T)
    high_lead = high.to(T)
    return low_lead, high_lead, (low - low_lead.to(tl.float32)).to(T), (high - high_lead.to(tl.float32)).to(T)


@triton.jit
def weighted_rows(weights, rows, acc, PTX: tl.constexpr):
    """acc + weights^T @ rows on the tensor cores: weights [N, P] and rows [N, D] of T, acc [P, D] float32.

    The twin multiplies in float32, since the interpreter's bfloat16 is an integer.
    """
    if PTX:
        return tl.dot(tl.trans(weights), rows, acc)
    return tl.dot(tl.trans(weights.to(tl.float32)), rows.to(tl.float32), acc, input_precision="ieee")


# -------------------------------------------------------------------------------------------------------------- dots


def _dots(kind: str) -> str:
    """PTX for `dots`: one tensor-core product m16n8k16 for each of four gathered blocks."""
    product = f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32"
    text = "{.reg .f32 zero, a, b, c, d; mov.f32 zero, 0f00000000;"
    for block in range(4):
        w = (
            4 + 4 * block
        )  # $0 to $3 are the results, then come four pairs of each block, then those of the other factor
        text += f" {product} {{a, b, c, d}}, {{${w}, ${w + 1}, ${w + 2}, ${w + 3}}}, {{$20, $22}}, {{zero, zero, zero, zero}};"
        text += f" add.f32 ${block}, a, d;"
    return text + "}"


DOTS_F16 = tl.constexpr(_dots("f16"))
DOTS_BF16 = tl.constexpr(_dots("bf16"))
DOTS_REGISTERS = tl.constexpr("=&f,=&f,=&f,=&f," + ",".join(["r"] * 20))


@triton.jit
def dots(a, b, c, d, g, column, T: tl.constexpr, PTX: tl.constexpr):
    """Dot products of gathered rows with a row of grad_out: each lane holds 8 of a row's 32 numbers, 4 lanes a row.

    Args:
        a, b, c, d: [N, 4] pairs. Elements 4r to 4r + 3 hold row r: its numbers 0 to 7, 8 to 15, 16 to 23 and 24 to 31.
        g: [N, 4] pairs of grad_out, likewise.
        column: [N], element // 4: which row.

    Returns:
        Four [N] float32, one for each of a, b, c, d. Without PTX every element of row r has the dot product of row r with
        row r of g. With PTX element 4r + j has that of row r with row (2j or 2j + 1) of g, so what is meant must lie there:
        both rows of a pair (2j, 2j + 1) of g must be the same, see `points.py`.

    How: the registers of a lane that has loaded 16 bytes of a row *are* an operand of the tensor core, nothing is moved. In
    the product of A (16 × 16) and B (16 × 8), lane l of a warp holds in A row l // 4 its first and third register, and row
    l // 4 + 8 its second and fourth. So the 32 numbers of gathered row r are spread over rows r and r + 8 of A, and its dot
    product with grad_out is the sum of two elements of A @ B, if the even columns of B hold the first and third pairs of
    grad_out, and the odd columns the second and fourth. Lane l finds elements (l // 4, 2j) and (l // 4 + 8, 2j + 1), with
    j = l % 4, in its own registers: one addition, no shuffle. 63 of 64 products are thrown away; tensor cores have them to spare.

    This needs element i of a block in lane i % 32, which is what Triton's default layout of one dimension does, and not
    what it promises: a test reads the layout out of the compiled kernel, another compares the two twins on the GPU.
    """
    N: tl.constexpr = a.shape[0]
    if PTX:
        even, odd = tl.split(tl.reshape(g, [N, 2, 2]))  # pairs 0 and 2, pairs 1 and 3
        factor = tl.where((column % 2 == 1)[:, None], odd, even)
        factor = tl.reshape(tl.join(factor, factor), [N, 4])  # each twice: the PTX reads $20 and $22
        asm: tl.constexpr = DOTS_BF16 if T == tl.bfloat16 else DOTS_F16
        found = tl.inline_asm_elementwise(
            asm, DOTS_REGISTERS, [a, b, c, d, factor], dtype=tl.float32, is_pure=True, pack=4
        )
        even, odd = tl.split(tl.reshape(found, [N, 2, 2]))
        dot_a, dot_c = tl.split(even)
        dot_b, dot_d = tl.split(odd)
        return dot_a, dot_b, dot_c, dot_d
    return _row_dot(a, g, T), _row_dot(b, g, T), _row_dot(c, g, T), _row_dot(d, g, T)


@triton.jit
def _row_dot(a, g, T: tl.constexpr):
    N: tl.constexpr = a.shape[0]
    products = as_float(a, T) * as_float(g, T) + as_float(a >> 16, T) * as_float(g >> 16, T)
    found = tl.sum(tl.reshape(products, [N // 4, 16]), 1)
    return tl.reshape(tl.broadcast_to(found[:, None], [N // 4, 4]), [N])

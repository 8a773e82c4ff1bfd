"""Lab 09, The precision switch: one way to answer it."""

import re

import torch

from msda_core import machine
from msda_core.device import triton
from solutions import lab08


def stagnation_point(dtype: torch.dtype) -> int:
    """The first of the sums 0, 1, 2, … that adding one more does not change in dtype.

    Args:
        dtype: any binary floating-point dtype; of an eight-bit one torch knows conversions only.
    """
    n = 1
    while torch.tensor(n + 1, dtype=torch.float64).to(dtype).double().item() != n:
        n *= 2  # beyond a power of two, the numbers lie twice as far apart
    return n


def compile_backward(kernel, dtype: torch.dtype, capability: tuple[int, int], aligned: bool = True):
    """Compile a backward kernel for a GPU that need not be there: 8 heads, 32 channels, 4 levels, 4 points.

    Args:
        kernel: `msda_bwd_kernel` of lab 8.
        dtype: of everything but the shapes: float32, float16 or bfloat16.
        capability: (8, 9) is SM 8.9.
        aligned: False moves every tensor by one element.

    Returns:
        A `machine.Lowering`; its `ptx` is the listing.
    """
    pointer = {torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16"}[dtype]
    if not aligned:
        pointer += f":{dtype.itemsize}"
    pointers = (pointer, pointer, "*i32", "*i32", *[pointer] * 5)
    constants = dict(M=8, D=32, L=4, K=4, BLOCK_P=16, BLOCK_D=32, num_warps=2)
    return machine.lower(kernel, *pointers, "i32", "i32", target=capability, **constants)


def classify_atomics(ptx: str) -> tuple[list[int], list[int], list[int]]:
    """Sort the atomics on global memory by kind, and say how many bytes each of them moves.

    Returns:
        (reductions, returning, loops): the bytes of every instruction, in the order of the text.
        A reduction is a `red`, or an `atom` into registers that nothing below it names, neither a
        `cas` nor in order (`acq_rel`). A loop is an `atom` that compares and swaps (`cas`), if the
        next branch after it leads back to a label before the `cas`; its bytes are those of one swap.
        Any other `atom` is a returning atomic.
    """
    reductions, returning, loops = [], [], []
    for found in re.finditer(r"\b(red|atom)\.([\w.:]+)\s+([^\[]*)", ptx):  # @each_found
        words = found[2].split(".")
        if "global" not in words:  # @if_words
            continue
        many, bits, pair = re.search(r"(?:v(\d+)\.)?[a-z]+(\d+)(x2)?$", found[2]).groups()
        size = int(many or 1) * int(bits) // 8 * (2 if pair else 1)  # @size
        branch = re.search(r"\bbra(?:\.uni)?\s+(\S+);", ptx[found.end() :])
        again = branch is not None and f"\n{branch[1]}:" in ptx[: found.start()]
        registers = re.findall(r"%\w+", found[3])  # of the old value
        read = any(re.search(rf"{register}\b", ptx[found.end() :]) for register in registers)  # @read
        waits = read or "cas" in words or "acq_rel" in words  # @waits
        if "cas" in words and again:  # @if_again
            loops.append(size)
        elif waits:
            returning.append(size)
        else:
            reductions.append(size)
    return reductions, returning, loops  # @result


def accumulator_dtype(dtype: torch.dtype, capability: tuple[int, int]) -> torch.dtype:
    """In which dtype your kernel of lab 8 should sum grad_value on a GPU, going by its own listing.

    Not wider than need be: dtype itself where every addition is a single instruction, and
    float32 where it is not.

    Args:
        dtype: of value: float32, float16 or bfloat16.
        capability: (8, 9) is SM 8.9.
    """
    _, _, loops = classify_atomics(compile_backward(lab08.msda_bwd_kernel, dtype, capability).ptx)
    return torch.float32 if loops else dtype  # @result


def msda_backward_switched(
    grad_out: torch.Tensor,
    value: torch.Tensor,
    spatial_shapes: torch.Tensor,
    level_start_index: torch.Tensor,
    sampling_locations: torch.Tensor,
    attention_weights: torch.Tensor,
    capability: tuple[int, int],
    fp32_grad_accum: bool | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Lab 8's `msda_backward`, with grad_value summed in the dtype that suits the GPU.

    Args:
        grad_out, …, attention_weights: as in lab 8.
        capability: of the GPU, as (8, 9).
        fp32_grad_accum: True: sum in float32; False: sum in value's dtype; None: as
            `accumulator_dtype` says.

    Returns:
        The three gradients, each contiguous, with the shape and dtype of what it is the gradient
        of. A sum in float32 is rounded once, at the end. Nothing else is made wider.
    """
    B, S, M, D = value.shape  # @B
    _, Q, _, L, K, _ = sampling_locations.shape
    if fp32_grad_accum is None:  # @if_fp32_grad_accum
        accumulator = accumulator_dtype(value.dtype, capability)
    else:
        accumulator = torch.float32 if fp32_grad_accum else value.dtype
    total = value.new_zeros(value.shape, dtype=accumulator)  # @total
    grad_loc = sampling_locations.new_empty(sampling_locations.shape)  # @grad_loc
    grad_attn = attention_weights.new_empty(attention_weights.shape)  # @grad_attn
    with torch.cuda.device_of(value):  # Triton launches on the current device
        lab08.msda_bwd_kernel[(B * Q * M,)](  # @launch
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
    return total.to(value.dtype), grad_loc, grad_attn  # @result


def location_error(dtype: torch.dtype, W: int) -> tuple[float, float]:
    """How far a location is moved by being stored in dtype, in pixels of a level that is W wide.

    Over the 10,001 locations `torch.linspace(0, 1, 10_001, dtype=torch.float64)`, which stand
    for the true ones. Whatever is computed afterwards is computed exactly.

    Args:
        dtype: float32, float16, bfloat16, or another floating-point dtype.
        W: pixels.

    Returns:
        The mean distance, and the largest.
    """
    x = torch.linspace(0, 1, 10_001, dtype=torch.float64)  # @x
    lost = (x.to(dtype).double() - x).abs() * W  # @lost
    return lost.mean().item(), lost.max().item()  # @result


def narrow_sum(terms: list):
    """The sum of numbers that every operation rounds to sixteen bits, as exact as you can.

    Args:
        terms: one or more narrow numbers. They know `+`, `-` and `<` among themselves; a sum or
            difference is a narrow number again.

    Returns:
        A narrow number.
    """
    total = terms[0]
    lost = total - total
    for term in terms[1:]:
        term = term + lost
        wider = total + term
        lost = term - (wider - total)  # what the addition rounded away
        total = wider
    return total

"""Lab 09, The precision switch: what is right."""

import math
import re

import torch

from checks.answers.carry import lab08
from msda_core import reference
from solutions import lab09 as solution

# --- stagnation_point -----------------------------------------------------------------------------------------------


def _stagnation(dtype: torch.dtype) -> int:
    """p bits of mantissa count the hidden one: from 2^p on, odd numbers do not exist, and a tie goes to the even one."""
    return 2 ** (1 - round(math.log2(torch.finfo(dtype).eps)))


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


def _accumulator(dtype: torch.dtype, capability: tuple[int, int]) -> torch.dtype:
    return torch.float32 if _classified(_listing(dtype, capability))[2] else dtype


# --- msda_backward_switched -----------------------------------------------------------------------------------------


def _gradients(
    grad_out, value, spatial_shapes, level_start_index, sampling_locations, attention_weights, capability, override
):
    likes = (value, sampling_locations, attention_weights)
    grads = reference.exact_gradients(
        value, spatial_shapes, level_start_index, sampling_locations, attention_weights, grad_out
    )
    return tuple(grad.to(like.dtype) for grad, like in zip(grads, likes))


# --- location_error -------------------------------------------------------------------------------------------------


def _moved(dtype: torch.dtype, W: int) -> tuple[float, float]:
    """Rounded by hand: to the nearest multiple of what the last bit is worth at that size."""
    x = torch.linspace(0, 1, 10_001, dtype=torch.float64)
    limits = torch.finfo(dtype)
    exponent = torch.frexp(x).exponent - 1
    last = limits.eps * torch.exp2(exponent.clamp_min(round(math.log2(limits.smallest_normal))).double())
    lost = ((x / last).round() * last - x).abs() * W
    return lost.mean().item(), lost.max().item()

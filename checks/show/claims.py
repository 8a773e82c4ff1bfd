"""What the labs claim about hardware, software and public reports, and where each claim was read.

A row is a phrase that stands in a lab, and its source. `says` is a phrase of that source, where a test can open it: a file
of this repository, or of a package that is installed. For the others it says what was found there.
"""

from typing import NamedTuple

__all__ = ["CLAIMS", "Claim"]


class Claim(NamedTuple):
    """One claim of a lab.

    Attributes:
        lab: "01"; phrase: stands in its notebook (white space and line breaks do not count).
        source: "repo: PATH", "package: MODULE/FILE", or "read: …" for what lies elsewhere.
        says: a phrase of the source, or what it says.
    """

    lab: str
    phrase: str
    source: str
    says: str


_GUIDE = "read: CUDA C++ Programming Guide, compute capabilities, technical specifications"
_LOG = "repo: msda_core/kernels/LOG.md"
_PTX = "read: PTX ISA"
_PROFILE = "repo: msda_core/bench/data/profile_h200.json"
_COUNTERS = "repo: msda_core/bench/data/counters_h200.json"
_CARDS = "repo: msda_core/machine/model/roofline.py"

CLAIMS = (
    Claim(
        "01", "the 196 patches into which a vision transformer cuts its image",
        "read: model card of google/vit-base-patch16-224-in21k; Dosovitskiy et al. 2021",
        "224 by 224 pixels in patches of 16 by 16: 14 * 14 = 196",
    ),
    Claim(
        "01", "begins with a ring: each head looks in a direction of its own",
        "read: fundamentalvision/Deformable-DETR, models/ops/modules/ms_deform_attn.py, _reset_parameters",
        "bias (cos, sin) over its larger part, times k + 1; weights of offsets zero",
    ),
    Claim(
        "02", "a 64-bit addition is two instructions, a multiplication several",
        "read: machine code of Triton 3.9 for SM 9.0, int32 and int64 side by side",
        "IADD3 and IMAD.X; IMAD, IMAD.WIDE.U32, IMAD, IADD3",
    ),
    Claim(
        "02", "*count of threads to launch* that passed 2³¹ - 1, at a batch of some sixteen",
        "read: swc-17/SparseDrive, pull request 133",
        "num_kernels and the thread index were int32; close to INT_MAX at a batch of 16; invalid configuration argument",
    ),
    Claim("03", "one of an H200's 132 holds up to 2,048 threads", _GUIDE, "64 resident warps, 2048 threads on 9.0"),
    Claim("03", "128 float32 numbers in each clock", _CARDS, 'GPU("H200", 90, 132, 1.98, 4.8e12, 60 * _MB, _flops(67, 989))'),
    Claim("03", "Memory answers in **sectors** of 32 bytes", _COUNTERS, "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"),
    Claim("03", "A sector from DRAM takes several hundred nanoseconds", _CARDS, "an empty kernel (0.7 µs) and one trip to memory"),
    Claim("03", "By what rule a GPU's caches decide, no vendor says", _COUNTERS, "l1tex__t_sectors_pipe_lsu_mem_global_op_ld_lookup_hit.sum"),
    Claim("03", "A copy that stays in it moves", _CARDS, "a copy of 16 MB that stays there"),
    Claim("04", "axes 1 and 2 take **65,535** each", _GUIDE, "x-dimension of a grid 2^31 - 1, y and z 65535, for all listed"),
    Claim("04", "There are 65,536 \" \"in a multiprocessor and at most 255 for a thread", _GUIDE, "64 K registers, 255 a thread"),
    Claim(
        "04", "From SM 10.0 on there are loads of 32 bytes", "read: triton-lang/triton, pull requests 10861 and 11364",
        "256-bit global loads and stores on Blackwell; merged for Gluon in 10861",
    ),
    Claim("04", "newer targets have instructions that older ones lack", _LOG, "*compare and swap*"),
    Claim("05", "`/` gives float32", "package: triton/language/semantic.py", "div or a mod we upcast to `fp32`"),
    Claim("05", "a bfloat16 block times a block of integers", "package: triton/language/semantic.py", "return bf16 only if both operands are of bf16"),
    Claim("06", "ran on an H200 under Nsight Compute, at full size", _PROFILE, '"kernel": "shipped", "us": 67.1'),
    Claim("06", "`point` asks for ten times as many as anybody else", _PROFILE, '"kernel": "point", "us": 202'),
    Claim("06", "65,536 of them for up to 64 warps of 32 lanes (48 warps on many other GPUs)", _GUIDE, "48 on 8.6, 8.7, 8.9, 12.x; 64 on 8.0, 9.0, 10.x"),
    Claim("06", "The shipped one needs 64 registers by itself", _LOG, "64 / 63 / 64 with rows in the warp"),
    Claim("06", "**208** with one of 128, and 273 with one of 64", _LOG, "273 / 215 / 218 / 220 / 227 / **208** / 229"),
    Claim("06", "four constants, which were chosen on four launches", _CARDS, "Four constants that no datasheet gives"),
    Claim(
        "07", "`h_im > -1 && w_im > -1` and skip the point",
        "read: open-mmlab/mmcv, mmcv/ops/csrc/common/cuda/ms_deform_attn_cuda_kernel.cuh",
        "if (h_im > -1 && w_im > -1 && h_im < spatial_h && w_im < spatial_w), in the backward kernels",
    ),
    Claim(
        "08", "of which at least one writes, and which are not both atomic", f"{_PTX}, 8.7.1, Conflict and Data-races",
        "two overlapping operations conflict when at least one is a write; a data race if neither ordered nor morally strong",
    ),
    Claim("08", "that all earlier writes are visible first (acquire and release)", "package: triton/language/semantic.py", "default=ir.MEM_SEMANTIC.ACQUIRE_RELEASE"),
    Claim("08", "A *relaxed* `atom` whose old value nothing reads becomes a `red`", f"{_PTX}, 9.7.15, red", "red has .relaxed and .release, no .acq_rel"),
    Claim("09", "989 against 67 TFLOPS", _CARDS, "_flops(67, 989)"),
    Claim("09", "1,383 µs in place of the 312", _LOG, "took 1,383 µs at decoder scale"),
    Claim("09", "Memory adds numbers of sixteen bits in pairs or wider", _LOG, "ptxas writes a loop of compare-and-swap, on every"),
    Claim(
        "10", "The first release of Deformable DETR itself divided (x, y) offsets by (H, W)",
        "read: fundamentalvision/Deformable-DETR, issue 6 and pull request 7", "a mistake made in this released version",
    ),
    Claim("10", "PyTorch's own comment calls it an approximation", "package: torch/autograd/function.py", "this is only an approximation of requires_grad"),
    Claim("10", "unasked where it was found to pay: an H200's generation", "repo: msda_core/kernels/merged/__init__.py", "value.dtype in _FLOATS and _capability(value.device) == 90"),
    Claim("10", "A tile of 16 × 8 queries", _LOG, "A sample of 32 queries instead of 128"),
    Claim("10", "from 8 pixels on no tile merges at all", _LOG, "| added plainly, their tile is not merged | 0 | 0 | 0 | 3 % | 82 % | all |"),
)  # fmt: skip

"""Small kernels that could break the accounting, and the operator's own: what `calibrate` measures on a GPU.

Each probe isolates one thing that decides requests or sectors: element size, width, layout, replication, masks,
alignment, duplicates. Inputs come from seeded CPU generators, so the same addresses arise on every machine.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from msda_core.device import load_triton
from msda_core.inputs import make_call

triton = load_triton()
import triton.language as tl  # noqa: E402

__all__ = ["CASES", "TIMED", "Case", "msda_inputs"]

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Case:
    """One launch to measure.

    Attributes:
        name: unique; why: what it could break.
        inputs: makes the tensors, on the CPU, from fixed seeds.
        run: launches exactly one kernel on them, wherever they are.
    """

    name: str
    why: str
    inputs: Callable[[], Tensors]
    run: Callable[[Tensors], object]


CASES: list[Case] = []  #: small launches, whose counters are compared one by one
TIMED: list[Case] = []  #: launches that fill a GPU, whose times the roofline is compared with


def _case(name: str, why: str, to: list[Case] = CASES, **inputs):
    """Register a launcher under a name; inputs are callables that make tensors."""

    def add(run):
        to.append(Case(name, why, lambda: {k: make() for k, make in inputs.items()}, run))
        return run

    return add


def _random(*shape, dtype=torch.float32, seed=0):
    def make():
        generator = torch.Generator().manual_seed(seed)
        if dtype in (torch.int8, torch.int32, torch.int64):
            return torch.randint(-100, 100, shape, dtype=dtype, generator=generator)
        return torch.randn(*shape, generator=generator).to(dtype)

    return make


def _indices(count, high, seed=0, dtype=torch.int64):
    return lambda: torch.randint(0, high, (count,), dtype=dtype, generator=torch.Generator().manual_seed(seed))


def _permutation(count, seed=0):
    return lambda: torch.randperm(count, generator=torch.Generator().manual_seed(seed))


def _zeros(*shape, dtype=torch.float32):
    return lambda: torch.zeros(shape, dtype=dtype)


# --- Copies: element sizes, ragged ends, misaligned bases, widths ------------------------------------------------------


@triton.jit
def probe_copy(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=mask), mask=mask)


def _copy(name, why, dtype, n, block=512, warps=4, offset=0, programs=None):
    grid = (programs or triton.cdiv(n, block),)

    @_case(name, why, x=_random(n + offset, dtype=dtype),
           y=_zeros(n + offset, dtype=dtype))  # fmt: skip
    def run(t):
        return probe_copy[grid](t["x"][offset:], t["y"][offset:], n, BLOCK=block, num_warps=warps)


_copy("copy_f32", "contiguous, even", torch.float32, 4096)
_copy("copy_f32_tail", "the mask's edge is a multiple of 4 but not of the block", torch.float32, 4000)
_copy("copy_f32_ragged", "the mask's edge is no multiple of the width", torch.float32, 4001)
_copy("copy_f32_misaligned", "base 4 bytes past a boundary", torch.float32, 4096, offset=1)
_copy("copy_f16", "2-byte elements", torch.float16, 4096)
_copy("copy_f16_ragged", "2-byte elements, ragged", torch.float16, 4003)
_copy("copy_f16_misaligned", "base 2 bytes past a boundary", torch.float16, 4096, offset=1)
_copy("copy_bf16_2_warps", "two warps", torch.bfloat16, 2048, warps=2)
_copy("copy_f64", "8-byte elements", torch.float64, 2048)
_copy("copy_f64_ragged", "8-byte elements, ragged, eight warps", torch.float64, 2001, warps=8)
_copy("copy_i8", "1-byte elements", torch.int8, 8192, block=2048)
_copy("copy_fp8", "1-byte floats", torch.float8_e5m2, 8192, block=2048)
_copy("copy_fp8_ragged", "1-byte floats, ragged", torch.float8_e4m3fn, 8001, block=2048)
_copy("copy_8_warps_small", "a tile smaller than its threads: copies are replicated", torch.float32, 512, 64, warps=8)
_copy("copy_1_warp", "one warp", torch.float32, 1024, 128, warps=1)
_copy(
    "copy_masked_programs",
    "half of the programs and some warps are wholly masked",
    torch.float32,
    1100,
    512,
    programs=6,
)


@triton.jit
def probe_stride(x_ptr, y_ptr, stride, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs * stride, cache_modifier=".cg"))


@_case("stride_3", "strided loads past L1", x=_random(6144), y=_zeros(2048))
def _(t):
    return probe_stride[(4,)](t["x"], t["y"], 3, BLOCK=512, num_warps=4)


@_case("stride_2_f16", "strided, 2-byte elements, eight warps", x=_random(4096, dtype=torch.float16),
       y=_zeros(2048, dtype=torch.float16))  # fmt: skip
def _(t):
    return probe_stride[(2,)](t["x"], t["y"], 2, BLOCK=1024, num_warps=8)


# --- Tiles: transposes, broadcast axes, slices, three dimensions -------------------------------------------------------


@triton.jit
def probe_transpose(x_ptr, y_ptr, rows, columns, R: tl.constexpr, C: tl.constexpr):
    r = tl.program_id(0) * R + tl.arange(0, R)
    c = tl.program_id(1) * C + tl.arange(0, C)
    mask = (r < rows)[:, None] & (c < columns)[None, :]
    x = tl.load(x_ptr + r[:, None] * columns + c[None, :], mask=mask)
    tl.store(y_ptr + c[None, :] * rows + r[:, None], x, mask=mask)


@_case("transpose", "row-major in, column-major out, eight warps", x=_random(64, 96), y=_zeros(96, 64))
def _(t):
    return probe_transpose[(2, 3)](t["x"], t["y"], 64, 96, R=32, C=32, num_warps=8)


@_case("transpose_ragged", "odd sizes in both directions, fp16", x=_random(61, 45, dtype=torch.float16),
       y=_zeros(45, 61, dtype=torch.float16))  # fmt: skip
def _(t):
    return probe_transpose[(2, 3)](t["x"], t["y"], 61, 45, R=32, C=16, num_warps=4)


@triton.jit
def probe_outer(a_ptr, b_ptr, y_ptr, R: tl.constexpr, C: tl.constexpr):
    r = tl.program_id(0) * R + tl.arange(0, R)
    c = tl.arange(0, C)
    a = tl.load(a_ptr + r)[:, None]
    b = tl.load(b_ptr + c)[None, :]
    tl.store(y_ptr + r[:, None] * C + c[None, :], a + b)


@_case("outer", "slice layouts of both axes, two warps", a=_random(64), b=_random(64, seed=1), y=_zeros(64, 64))
def _(t):
    return probe_outer[(4,)](t["a"], t["b"], t["y"], R=16, C=64, num_warps=2)


@_case("outer_8_warps", "slice layouts, eight warps", a=_random(64), b=_random(32, seed=1), y=_zeros(64, 32))
def _(t):
    return probe_outer[(2,)](t["a"], t["b"], t["y"], R=32, C=32, num_warps=8)


@triton.jit
def probe_broadcast(x_ptr, y_ptr, R: tl.constexpr, C: tl.constexpr):
    r = tl.program_id(0) * R + tl.arange(0, R)
    c = tl.arange(0, C)
    ptrs = tl.broadcast_to(x_ptr + r[:, None], [R, C])
    tl.store(y_ptr + r[:, None] * C + c[None, :], tl.load(ptrs))


@_case("broadcast", "every lane of a row loads one element", x=_random(64), y=_zeros(64, 32))
def _(t):
    return probe_broadcast[(2,)](t["x"], t["y"], R=32, C=32, num_warps=4)


@triton.jit
def probe_row_sum(x_ptr, y_ptr, columns, R: tl.constexpr, C: tl.constexpr):
    r = tl.program_id(0) * R + tl.arange(0, R)
    total = tl.zeros([R], tl.float32)
    for start in range(0, columns, C):
        c = start + tl.arange(0, C)
        x = tl.load(x_ptr + r[:, None] * columns + c[None, :], mask=(c < columns)[None, :], other=0.0)
        total += tl.sum(x, axis=1)
    tl.store(y_ptr + r, total)


@_case("row_sum", "a loop, and a store from a slice that many threads hold", x=_random(32, 100), y=_zeros(32))
def _(t):
    return probe_row_sum[(4,)](t["x"], t["y"], 100, R=8, C=32, num_warps=4)


@triton.jit
def probe_gather_rows(x_ptr, index_ptr, y_ptr, N: tl.constexpr, P: tl.constexpr, D: tl.constexpr):
    n = tl.program_id(0) * N + tl.arange(0, N)
    p = tl.arange(0, P)
    d = tl.arange(0, D)
    i = tl.load(index_ptr + n[:, None] * P + p[None, :])
    x = tl.load(x_ptr + i[:, :, None] * D + d[None, None, :], mask=(i % 5 != 0)[:, :, None], other=0.0)
    tl.store(y_ptr + n[:, None] * D + d[None, :], tl.sum(x.to(tl.float32), axis=1))


@_case("gather_rows_f16", "three dimensions, random rows, a mask over rows, two warps",
       x=_random(1000, 32, dtype=torch.float16), index=_indices(16 * 8, 1000), y=_zeros(16, 32))  # fmt: skip
def _(t):
    return probe_gather_rows[(4,)](t["x"], t["index"], t["y"], N=4, P=8, D=32, num_warps=2)


@_case("gather_rows_f32", "three dimensions, 4-byte elements, four warps", x=_random(1000, 16),
       index=_indices(32 * 4, 1000), y=_zeros(32, 16))  # fmt: skip
def _(t):
    return probe_gather_rows[(4,)](t["x"], t["index"], t["y"], N=8, P=4, D=16, num_warps=4)


@triton.jit
def probe_dot(a_ptr, b_ptr, y_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tile = i[:, None] * N + i[None, :]
    y = tl.dot(tl.load(a_ptr + tile), tl.load(b_ptr + tile))
    tl.store(y_ptr + tile, y.to(y_ptr.dtype.element_ty))


@_case("dot", "operands and result of a tensor-core product", a=_random(64, 64, dtype=torch.float16),
       b=_random(64, 64, dtype=torch.float16, seed=1), y=_zeros(64, 64, dtype=torch.float16))  # fmt: skip
def _(t):
    return probe_dot[(1,)](t["a"], t["b"], t["y"], N=64, num_warps=4)


# --- Scalars, helpers, loads the compiler merges or hoists -------------------------------------------------------------


@triton.jit
def probe_scalar(x_ptr, scale_ptr, y_ptr, count_ptr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    offs = pid * BLOCK + tl.arange(0, BLOCK)
    scale = tl.load(scale_ptr + pid)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs) * scale)
    tl.store(scale_ptr + pid, scale + 1.0)
    tl.atomic_add(count_ptr, 1, sem="relaxed")


@_case("scalar", "scalar load, store and atomic beside tiles", x=_random(1024), scale=_random(8), y=_zeros(1024),
       count=_zeros(1, dtype=torch.int32))  # fmt: skip
def _(t):
    return probe_scalar[(8,)](t["x"], t["scale"], t["y"], t["count"], BLOCK=128, num_warps=4)


@triton.jit
def probe_read(base, offs, mask):
    return tl.load(base + offs, mask=mask, other=0.0)


@triton.jit
def probe_helper(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    total = probe_read(x_ptr, offs, mask) + probe_read(x_ptr, offs + 1, mask) + probe_read(x_ptr, offs + 8, mask)
    tl.store(y_ptr + offs, total, mask=mask)


@_case("helper", "one helper, three calls, of different alignment", x=_random(2064), y=_zeros(2048))
def _(t):
    return probe_helper[(4,)](t["x"], t["y"], 2048, BLOCK=512, num_warps=4)


@triton.jit
def probe_repeat(x_ptr, w_ptr, y_ptr, rounds, BLOCK: tl.constexpr, U: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(x_ptr + offs) + tl.load(x_ptr + offs)
    for i in range(rounds):
        total += tl.load(w_ptr + offs) * i
        for u in tl.static_range(U):
            total += tl.load(x_ptr + offs + (i + u) * 256)
    tl.store(y_ptr + offs, total)


@_case("repeat", "the same load twice, one in a loop it does not depend on, an unrolled loop in a loop",
       x=_random(4096), w=_random(512, seed=1), y=_zeros(512))  # fmt: skip
def _(t):
    return probe_repeat[(2,)](t["x"], t["w"], t["y"], 5, BLOCK=256, U=2, num_warps=2)


# --- Scatters and atomics ----------------------------------------------------------------------------------------------


@triton.jit
def probe_scatter(x_ptr, index_ptr, y_ptr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + tl.load(index_ptr + offs), tl.load(x_ptr + offs))


@_case("scatter", "stores at random places", x=_random(2048), index=_permutation(2048), y=_zeros(2048))
def _(t):
    return probe_scatter[(4,)](t["x"], t["index"], t["y"], BLOCK=512, num_warps=4)


@triton.jit
def probe_histogram(index_ptr, count_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    bins = tl.load(index_ptr + offs, mask=mask, other=0)
    tl.atomic_add(count_ptr + bins, 1, mask=mask, sem="relaxed")


@_case("histogram", "reductions with random duplicates", index=_indices(2000, 50, dtype=torch.int32),
       count=_zeros(50, dtype=torch.int32))  # fmt: skip
def _(t):
    return probe_histogram[(4,)](t["index"], t["count"], 2000, BLOCK=512, num_warps=4)


@_case("histogram_i64", "8-byte reductions with duplicates, two warps", index=_indices(512, 9, dtype=torch.int32),
       count=_zeros(9, dtype=torch.int64))  # fmt: skip
def _(t):
    return probe_histogram[(2,)](t["index"], t["count"], 512, BLOCK=256, num_warps=2)


@triton.jit
def probe_add(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    tl.atomic_add(y_ptr + offs, x, mask=mask, sem="relaxed")


def _add(name, why, dtype, n, offset=0, warps=4):
    @_case(name, why, x=_random(n, dtype=dtype), y=_zeros(n + offset, dtype=dtype))
    def run(t):
        return probe_add[(triton.cdiv(n, 512),)](t["x"], t["y"][offset:], n, BLOCK=512, num_warps=warps)


_add("add_f32", "contiguous reductions, v4", torch.float32, 2048)
_add("add_f16", "contiguous reductions, v8", torch.float16, 2048)
_add("add_bf16", "contiguous bf16 reductions, v8", torch.bfloat16, 2048)
_add("add_f16_misaligned", "2-byte reductions one by one: neighbours share a word", torch.float16, 2048, offset=1)
_add("add_f64", "8-byte reductions", torch.float64, 1024, warps=8)
_add("add_f32_ragged", "ragged reductions", torch.float32, 2001)


@triton.jit
def probe_add_rows(x_ptr, index_ptr, y_ptr, N: tl.constexpr, D: tl.constexpr):
    n = tl.program_id(0) * N + tl.arange(0, N)
    d = tl.arange(0, D)
    row = tl.load(index_ptr + n)
    x = tl.load(x_ptr + n[:, None] * D + d[None, :])
    tl.atomic_add(y_ptr + row[:, None] * D + d[None, :], x, sem="relaxed")


def _add_rows(name, why, dtype, warps, rows=24):
    @_case(name, why, x=_random(128, 32, dtype=dtype), index=_indices(128, rows), y=_zeros(rows, 32, dtype=dtype))
    def run(t):
        return probe_add_rows[(4,)](t["x"], t["index"], t["y"], N=32, D=32, num_warps=warps)


_add_rows("add_rows_f16", "vector reductions that meet, v8", torch.float16, 2)
_add_rows("add_rows_f32", "vector reductions that meet, v4", torch.float32, 4)
_add_rows("add_rows_bf16", "vector reductions that meet, bf16, eight warps", torch.bfloat16, 8, rows=3)


@triton.jit
def probe_atomics(index_ptr, y_ptr, old_ptr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    i = tl.load(index_ptr + offs)
    old = tl.atomic_max(y_ptr + i, offs, sem="relaxed")
    tl.store(old_ptr + offs, old)


@_case("atomic_returning", "an atomic whose old value is used, with duplicates", index=_indices(512, 40),
       y=_zeros(40, dtype=torch.int32), old=_zeros(512, dtype=torch.int32))  # fmt: skip
def _(t):
    return probe_atomics[(2,)](t["index"], t["y"], t["old"], BLOCK=256, num_warps=4)


@triton.jit
def probe_cas(y_ptr, old_ptr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    old = tl.atomic_cas(y_ptr + offs // 2, offs * 0, offs, sem="relaxed")
    tl.store(old_ptr + offs, old)


@_case("atomic_cas", "compare and swap, pairs of lanes at one address", y=_zeros(128, dtype=torch.int32),
       old=_zeros(256, dtype=torch.int32))  # fmt: skip
def _(t):
    return probe_cas[(2,)](t["y"], t["old"], BLOCK=128, num_warps=2)


@triton.jit
def probe_exchange(y_ptr, old_ptr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    old = tl.atomic_xchg(y_ptr + offs, offs, mask=offs % 3 != 0)
    tl.store(old_ptr + offs, old, mask=offs % 3 != 0)


@_case("atomic_xchg", "exchange under a mask, with the ordered default", y=_zeros(256, dtype=torch.int32),
       old=_zeros(256, dtype=torch.int32))  # fmt: skip
def _(t):
    return probe_exchange[(2,)](t["y"], t["old"], BLOCK=128, num_warps=4)


# --- The operator -----------------------------------------------------------------------------------------------------

PYRAMID = ((100, 167), (50, 84), (25, 42), (13, 21))


@functools.lru_cache(maxsize=2)
def msda_inputs(dtype: torch.dtype, Q: int, B: int = 1, M: int = 8, D: int = 32, K: int = 4, seed: int = 0) -> Tensors:
    """A decoder call over a four-level pyramid, locations uniform in [-0.05, 1.05]."""
    call = make_call(PYRAMID, B=B, Q=Q, M=M, D=D, K=K, dtype=dtype, margin=0.05, normalised=False, seed=seed)
    return dict(zip(("value", "shapes", "starts", "loc", "attn", "grad"), call))


def msda_touched(t: Tensors) -> int:
    """Sectors of value that a call on `msda_inputs` touches, if a pixel's channels fill whole sectors."""
    B, S, M, D = t["value"].shape
    sizes = t["shapes"].flip(1)  # (L, 2) as (W, H)
    low = torch.floor(t["loc"].float() * sizes[None, None, None, :, None] - 0.5).long()  # (B, Q, M, L, K, 2)
    hit = torch.zeros(B, S, M, dtype=torch.bool)
    b = torch.arange(B)[:, None, None, None, None]
    m = torch.arange(M)[None, None, :, None, None]
    for dx in (0, 1):
        for dy in (0, 1):
            x, y = low[..., 0] + dx, low[..., 1] + dy
            W, H = sizes[:, 0, None], sizes[:, 1, None]
            inside = (x >= 0) & (x < W) & (y >= 0) & (y < H)
            pixel = t["starts"][:, None] + y * W + x
            where = torch.broadcast_tensors(b, pixel, m)
            hit[tuple(i[inside] for i in where)] = True
    return int(hit.sum()) * D * t["value"].element_size() // 32


def _run_tiling(forward, t):
    return forward(t["value"], t["shapes"], t["starts"], t["loc"], t["attn"])


def _operator():
    from msda_core.kernels import backward, forward, tilings

    names = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
    for dtype, short in names.items():

        def run_forward(t):
            return forward.msda_forward(t["value"], t["shapes"], t["starts"], t["loc"], t["attn"])

        def run_backward(t):
            native = t["value"].dtype != torch.float32
            return backward.msda_backward(
                t["value"], t["shapes"], t["starts"], t["loc"], t["attn"], t["grad"],
                fp32_grad_accum=False if native else None,
            )  # fmt: skip

        inputs = functools.partial(msda_inputs, dtype, 16)
        CASES.append(Case(f"msda_forward_{short}", "the operator", inputs, run_forward))
        CASES.append(Case(f"msda_backward_{short}", "its gradients", inputs, run_backward))
    CASES.append(
        Case(
            "msda_backward_deterministic",
            "64-bit integer sums",
            functools.partial(msda_inputs, torch.float32, 8),
            lambda t: backward.msda_backward(
                t["value"], t["shapes"], t["starts"], t["loc"], t["attn"], t["grad"], deterministic=True
            ),
        )
    )
    for way in ("element", "point", "query"):
        run = functools.partial(_run_tiling, getattr(tilings, f"{way}_forward"))
        for dtype in (torch.float32, torch.float16):
            inputs = functools.partial(msda_inputs, dtype, 16)
            CASES.append(Case(f"msda_{way}_{names[dtype]}", "a rival tiling of the forward", inputs, run))
    odd = functools.partial(msda_inputs, torch.float16, 7, 2, 3, 20, 3)
    CASES.append(Case("msda_forward_odd", "nothing is a power of two", odd, run_forward))
    CASES.append(Case("msda_backward_odd", "nothing is a power of two", odd, run_backward))


_operator()


# --- What is timed ----------------------------------------------------------------------------------------------------


@triton.jit
def probe_nothing(x_ptr):
    pass


@_case("time_copy", "streams 32 MB", TIMED, x=_random(1 << 22), y=_zeros(1 << 22))
def _(t):
    return probe_copy[(4096,)](t["x"], t["y"], 1 << 22, BLOCK=1024, num_warps=4)


@_case("time_stride_8", "one useful element in each sector", TIMED, x=_random(1 << 24), y=_zeros(1 << 21))
def _(t):
    return probe_stride[(2048,)](t["x"], t["y"], 8, BLOCK=1024, num_warps=4)


@_case("time_gather", "random 64-byte rows of a 64 MB table", TIMED, x=_random(1 << 20, 32, dtype=torch.float16),
       index=_indices(1 << 17, 1 << 20), y=_zeros(1 << 14, 32))  # fmt: skip
def _(t):
    return probe_gather_rows[(4096,)](t["x"], t["index"], t["y"], N=4, P=8, D=32, num_warps=2)


def _time_add(name, dtype):
    @_case(name, "rows that meet under reductions", TIMED, x=_random(1 << 16, 32, dtype=dtype),
           index=_indices(1 << 16, 20000), y=_zeros(20000, 32, dtype=dtype))  # fmt: skip
    def run(t):
        return probe_add_rows[(2048,)](t["x"], t["index"], t["y"], N=32, D=32, num_warps=4)


_time_add("time_add_rows_f32", torch.float32)
_time_add("time_add_rows_f16", torch.float16)


@_case("time_histogram", "two million counts in 4096 bins", TIMED, index=_indices(1 << 21, 4096, dtype=torch.int32),
       count=_zeros(4096, dtype=torch.int32))  # fmt: skip
def _(t):
    return probe_histogram[(2048,)](t["index"], t["count"], 1 << 21, BLOCK=1024, num_warps=4)


def _time_operator():
    small = {case.name: case for case in CASES}
    for short, dtype in (("f32", torch.float32), ("f16", torch.float16)):
        for way in ("forward", "backward"):
            inputs = functools.partial(msda_inputs, dtype, 300, 2)
            TIMED.append(Case(f"time_msda_{way}_{short}", "decoder", inputs, small[f"msda_{way}_{short}"].run))


_time_operator()

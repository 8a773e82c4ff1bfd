"""Kernels of the kinds people write, none of them the operator's: evidence for the paper GPU beyond `probes`.

`SMALL` launches have their counters compared one by one. `TIMED` launches fill a GPU. A timed name is
`family.configuration`: launches of one family compute the same from the same inputs, so they can be ranked.
"""

import functools

import torch

from msda_core.bench.probes import Case, _case, _indices, _permutation, _random, _zeros, msda_inputs
from msda_core.device import load_triton

triton = load_triton()
import triton.language as tl  # noqa: E402

__all__ = ["SMALL", "TIMED", "family"]

SMALL: list[Case] = []  #: counters are compared
TIMED: list[Case] = []  #: times are compared with the estimate
HALF = torch.float16


def family(case: str) -> str:
    """What a timed case computes: the cases of one family are rivals."""
    return case.partition(".")[0]


# --- Matrix products --------------------------------------------------------------------------------------------------


@triton.jit
def user_matmul(
    a_ptr, b_ptr, c_ptr,
    M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TF32: tl.constexpr,
):  # fmt: skip
    offs_m = tl.program_id(0) * BM + tl.arange(0, BM)
    offs_n = tl.program_id(1) * BN + tl.arange(0, BN)
    offs_k = tl.arange(0, BK)
    acc = tl.zeros([BM, BN], tl.float32)
    for k in range(0, K, BK):
        a = tl.load(
            a_ptr + offs_m[:, None] * K + k + offs_k[None, :],
            mask=(offs_m < M)[:, None] & (k + offs_k < K)[None, :],
            other=0.0,
        )
        b = tl.load(
            b_ptr + (k + offs_k)[:, None] * N + offs_n[None, :],
            mask=(k + offs_k < K)[:, None] & (offs_n < N)[None, :],
            other=0.0,
        )
        acc = tl.dot(a, b, acc, input_precision="tf32" if TF32 else "ieee")
    mask = (offs_m < M)[:, None] & (offs_n < N)[None, :]
    tl.store(c_ptr + offs_m[:, None] * N + offs_n[None, :], acc.to(c_ptr.dtype.element_ty), mask=mask)


@triton.jit
def user_matmul_even(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    offs_m = tl.program_id(0) * BM + tl.arange(0, BM)
    offs_n = tl.program_id(1) * BN + tl.arange(0, BN)
    offs_k = tl.arange(0, BK)
    acc = tl.zeros([BM, BN], tl.float32)
    a_ptrs = a_ptr + offs_m[:, None] * K + offs_k[None, :]
    b_ptrs = b_ptr + offs_k[:, None] * N + offs_n[None, :]
    for _ in range(0, K, BK):
        acc = tl.dot(tl.load(a_ptrs), tl.load(b_ptrs), acc)
        a_ptrs += BK
        b_ptrs += BK * N
    tl.store(c_ptr + offs_m[:, None] * N + offs_n[None, :], acc.to(c_ptr.dtype.element_ty))


def _matmul(name, why, to, shape, tile, warps, stages, dtype=HALF, even=False, out=None):
    (M, N, K), (BM, BN, BK) = shape, tile

    @_case(name, why, to, a=_random(M, K, dtype=dtype), b=_random(K, N, dtype=dtype, seed=1),
           c=_zeros(M, N, dtype=out or dtype))  # fmt: skip
    def run(t):
        grid = (triton.cdiv(M, BM), triton.cdiv(N, BN))
        kernel = user_matmul_even if even else user_matmul
        more = {} if even else {"TF32": dtype == torch.float32}
        return kernel[grid](
            t["a"], t["b"], t["c"], M, N, K, BM=BM, BN=BN, BK=BK, num_warps=warps, num_stages=stages, **more
        )


_matmul("matmul_pipelined", "cp.async, three stages, wgmma", SMALL, (128, 128, 256), (64, 64, 32), 4, 3, even=True)
_matmul("matmul_masked", "cp.async under masks", SMALL, (128, 128, 256), (64, 64, 32), 4, 3)
_matmul("matmul_ragged", "cp.async at ragged edges", SMALL, (100, 88, 72), (64, 64, 32), 4, 3)
_matmul("matmul_odd", "rows at odd addresses", SMALL, (65, 67, 69), (32, 32, 32), 4, 3)
_matmul("matmul_one_stage", "no pipeline", SMALL, (128, 128, 128), (64, 64, 32), 4, 1, even=True)
_matmul("matmul_8_warps", "two warpgroups", SMALL, (128, 256, 128), (128, 128, 64), 8, 3, torch.bfloat16, even=True)
_matmul("matmul_tf32", "tf32", SMALL, (64, 64, 64), (64, 64, 32), 4, 3, torch.float32)
_matmul("matmul_fp8", "fp8 wgmma", SMALL, (128, 128, 256), (64, 64, 64), 4, 3, torch.float8_e4m3fn, True, HALF)
_matmul("matmul_fp8_e5m2", "the other fp8", SMALL, (64, 128, 128), (64, 128, 64), 4, 4, torch.float8_e5m2, True, HALF)
_matmul("matmul_small_tile", "mma.sync below wgmma's size", SMALL, (64, 64, 64), (16, 32, 32), 2, 2, even=True)
SQUARE = (2048, 2048, 2048)
for _tile, _warps, _stages in (
    ((32, 32, 32), 4, 3),
    ((64, 64, 32), 4, 3),
    ((64, 64, 64), 4, 1),
    ((128, 128, 32), 4, 3),
    ((128, 128, 64), 8, 3),
    ((128, 256, 64), 8, 3),
):
    _name = "x".join(map(str, _tile))
    _matmul(
        f"matmul.{_name}_{_warps}w_{_stages}s", "a square product", TIMED, SQUARE, _tile, _warps, _stages, even=True
    )


# --- Attention, normalisation, softmax --------------------------------------------------------------------------------


@triton.jit
def user_attention(
    q_ptr, k_ptr, v_ptr, o_ptr, scale, T, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr
):
    start = tl.program_id(0) * BM
    base = tl.program_id(1) * T * D
    offs_m, offs_n, offs_d = start + tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, D)
    q = tl.load(q_ptr + base + offs_m[:, None] * D + offs_d[None, :], mask=(offs_m < T)[:, None], other=0.0)
    top = tl.full([BM], -1e30, tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    end = T
    if CAUSAL:
        end = tl.minimum(start + BM, T)
    for n in range(0, end, BN):
        inside = n + offs_n < T
        at = base + (n + offs_n)[:, None] * D + offs_d[None, :]
        k = tl.load(k_ptr + at, mask=inside[:, None], other=0.0)
        s = tl.dot(q, tl.trans(k)) * scale
        keep = inside[None, :]
        if CAUSAL:
            keep = keep & (offs_m[:, None] >= (n + offs_n)[None, :])
        s = tl.where(keep, s, -1e30)
        new = tl.maximum(top, tl.max(s, 1))
        p = tl.exp2(s - new[:, None])
        shrink = tl.exp2(top - new)
        total = total * shrink + tl.sum(p, 1)
        v = tl.load(v_ptr + at, mask=inside[:, None], other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None])
        top = new
    tl.store(
        o_ptr + base + offs_m[:, None] * D + offs_d[None, :],
        (acc / total[:, None]).to(o_ptr.dtype.element_ty),
        mask=(offs_m < T)[:, None],
    )


def _attention(name, why, to, heads, T, D, BM, BN, warps, causal, stages=2):
    shape = (heads, T, D)

    @_case(name, why, to, q=_random(*shape, dtype=HALF), k=_random(*shape, dtype=HALF, seed=1),
           v=_random(*shape, dtype=HALF, seed=2), o=_zeros(*shape, dtype=HALF))  # fmt: skip
    def run(t):
        return user_attention[(triton.cdiv(T, BM), heads)](
            t["q"],
            t["k"],
            t["v"],
            t["o"],
            0.18,
            T,
            D=D,
            BM=BM,
            BN=BN,
            CAUSAL=causal,
            num_warps=warps,
            num_stages=stages,
        )


_attention("attention", "two products in a loop", SMALL, 2, 128, 64, 64, 32, 4, False)
_attention("attention_causal_ragged", "a ragged sequence, causal", SMALL, 2, 100, 32, 64, 32, 4, True)
_attention("attention.64x64_4w", "heads of 64", TIMED, 64, 1024, 64, 64, 64, 4, False)
_attention("attention.128x64_4w", "heads of 64", TIMED, 64, 1024, 64, 128, 64, 4, False)
_attention("attention.128x64_8w", "heads of 64", TIMED, 64, 1024, 64, 128, 64, 8, False)
_attention("attention.32x32_4w", "heads of 64", TIMED, 64, 1024, 64, 32, 32, 4, False)


@triton.jit
def user_softmax(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * columns + offs, mask=offs < columns, other=-float("inf"))
    e = tl.exp(x - tl.max(x, 0))
    tl.store(y_ptr + row * columns + offs, e / tl.sum(e, 0), mask=offs < columns)


@triton.jit
def user_softmax_persistent(x_ptr, y_ptr, rows, columns, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=2):
        x = tl.load(x_ptr + row * columns + offs, mask=offs < columns, other=-float("inf"))
        e = tl.exp(x - tl.max(x, 0))
        tl.store(y_ptr + row * columns + offs, e / tl.sum(e, 0), mask=offs < columns)


def _softmax(name, to, rows, columns, warps, programs=0):
    @_case(name, "rows of a softmax", to, x=_random(rows, columns), y=_zeros(rows, columns))
    def run(t):
        block = triton.next_power_of_2(columns)
        if programs:
            return user_softmax_persistent[(programs,)](t["x"], t["y"], rows, columns, BLOCK=block, num_warps=warps)
        return user_softmax[(rows,)](t["x"], t["y"], columns, BLOCK=block, num_warps=warps)


_softmax("softmax_odd", SMALL, 5, 777, 4)
_softmax("softmax_persistent", SMALL, 13, 300, 4, 4)
for _warps in (1, 4, 16):
    _softmax(f"softmax.{_warps}w", TIMED, 8192, 1024, _warps)
_softmax("softmax.persistent_264", TIMED, 8192, 1024, 4, 264)
_softmax("softmax.persistent_1056", TIMED, 8192, 1024, 4, 1056)


@triton.jit
def user_layer_norm(x_ptr, w_ptr, b_ptr, y_ptr, mean_ptr, rstd_ptr, N, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    mean = tl.zeros([BLOCK], tl.float32)
    for start in range(0, N, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        mean += tl.load(x_ptr + row * N + offs, mask=offs < N, other=0.0).to(tl.float32)
    mean = tl.sum(mean, 0) / N
    var = tl.zeros([BLOCK], tl.float32)
    for start in range(0, N, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * N + offs, mask=offs < N, other=0.0).to(tl.float32)
        x = tl.where(offs < N, x - mean, 0.0)
        var += x * x
    rstd = 1 / tl.sqrt(tl.sum(var, 0) / N + eps)
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)
    for start in range(0, N, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * N + offs, mask=offs < N, other=0.0).to(tl.float32)
        w = tl.load(w_ptr + offs, mask=offs < N)
        b = tl.load(b_ptr + offs, mask=offs < N)
        tl.store(y_ptr + row * N + offs, (x - mean) * rstd * w + b, mask=offs < N)


def _layer_norm(name, to, rows, N, block, warps):
    @_case(name, "three passes over a row", to, x=_random(rows, N, dtype=HALF), w=_random(N), b=_random(N, seed=1),
           y=_zeros(rows, N, dtype=HALF), mean=_zeros(rows), rstd=_zeros(rows))  # fmt: skip
    def run(t):
        return user_layer_norm[(rows,)](
            t["x"], t["w"], t["b"], t["y"], t["mean"], t["rstd"], N, 1e-5, BLOCK=block, num_warps=warps
        )


_layer_norm("layer_norm", SMALL, 4, 1000, 256, 4)
for _block, _warps in ((256, 1), (1024, 4), (2048, 4), (2048, 16)):
    _layer_norm(f"layer_norm.{_block}_{_warps}w", TIMED, 4096, 4096, _block, _warps)


@triton.jit
def user_layer_norm_backward(g_ptr, x_ptr, dw_ptr, lock_ptr, rows, GROUPS: tl.constexpr, BLOCK: tl.constexpr):
    """The weight gradient of a row, added to one of GROUPS partial sums under its lock."""
    row = tl.program_id(0)
    offs = tl.arange(0, BLOCK)
    part = tl.load(g_ptr + row * BLOCK + offs) * tl.load(x_ptr + row * BLOCK + offs)
    group = row % GROUPS
    while tl.atomic_cas(lock_ptr + group, 0, 1) == 1:
        pass
    count = tl.load(lock_ptr + GROUPS + group)
    if count == 0:
        tl.atomic_xchg(lock_ptr + GROUPS + group, 1)
    else:
        part += tl.load(dw_ptr + group * BLOCK + offs)
    tl.store(dw_ptr + group * BLOCK + offs, part)
    tl.debug_barrier()
    tl.atomic_xchg(lock_ptr + group, 0)


@_case("locks", "a lock for each partial sum; as many rows as locks, so nobody waits", SMALL, g=_random(4, 256),
       x=_random(4, 256, seed=1), dw=_zeros(4, 256), lock=_zeros(8, dtype=torch.int32))  # fmt: skip
def _(t):
    return user_layer_norm_backward[(4,)](t["g"], t["x"], t["dw"], t["lock"], 4, GROUPS=4, BLOCK=256)


@triton.jit
def user_cross_entropy(x_ptr, label_ptr, loss_ptr, N, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    top, total = -float("inf"), 0.0
    for start in range(0, N, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * N + offs, mask=offs < N, other=-float("inf")).to(tl.float32)
        new = tl.maximum(top, tl.max(x, 0))
        total = total * tl.exp(top - new) + tl.sum(tl.exp(x - new), 0)
        top = new
    label = tl.load(label_ptr + row)
    tl.store(loss_ptr + row, tl.log(total) + top - tl.load(x_ptr + row * N + label).to(tl.float32))


def _cross_entropy(name, to, rows, N, block, warps):
    @_case(name, "an online sum of exponentials", to, x=_random(rows, N, dtype=HALF), label=_indices(rows, N),
           loss=_zeros(rows))  # fmt: skip
    def run(t):
        return user_cross_entropy[(rows,)](t["x"], t["label"], t["loss"], N, BLOCK=block, num_warps=warps)


_cross_entropy("cross_entropy", SMALL, 3, 1001, 256, 4)
for _block, _warps in ((512, 1), (1024, 4), (8192, 8)):
    _cross_entropy(f"cross_entropy.{_block}_{_warps}w", TIMED, 2048, 32000, _block, _warps)


# --- Elementwise, scans, gathers, dequantisation ----------------------------------------------------------------------


@triton.jit
def user_swiglu(a_ptr, b_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(a_ptr + offs, mask=offs < n).to(tl.float32)
    b = tl.load(b_ptr + offs, mask=offs < n).to(tl.float32)
    tl.store(y_ptr + offs, (a * tl.sigmoid(a) * b).to(y_ptr.dtype.element_ty), mask=offs < n)


def _swiglu(name, to, n, block, warps):
    @_case(name, "two streams in, one out", to, a=_random(n, dtype=HALF), b=_random(n, dtype=HALF, seed=1),
           y=_zeros(n, dtype=HALF))  # fmt: skip
    def run(t):
        return user_swiglu[(triton.cdiv(n, block),)](t["a"], t["b"], t["y"], n, BLOCK=block, num_warps=warps)


_swiglu("swiglu", SMALL, 3000, 1024, 4)
for _block, _warps in ((128, 4), (1024, 4), (4096, 8), (1024, 1)):
    _swiglu(f"swiglu.{_block}_{_warps}w", TIMED, 1 << 24, _block, _warps)
    _swiglu(f"swiglu_in_l2.{_block}_{_warps}w", TIMED, 1 << 20, _block, _warps)


@triton.jit
def user_dropout(x_ptr, y_ptr, n, seed, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = tl.rand(seed, offs) > 0.5
    tl.store(y_ptr + offs, tl.where(keep, tl.load(x_ptr + offs, mask=offs < n) * 2, 0.0), mask=offs < n)


def _dropout(name, to, n, block, warps):
    @_case(name, "random numbers: integer arithmetic", to, x=_random(n), y=_zeros(n))
    def run(t):
        return user_dropout[(triton.cdiv(n, block),)](t["x"], t["y"], n, 7, BLOCK=block, num_warps=warps)


_dropout("dropout", SMALL, 1500, 512, 4)
_dropout("dropout.256_4w", TIMED, 1 << 22, 256, 4)
_dropout("dropout.2048_4w", TIMED, 1 << 22, 2048, 4)


@triton.jit
def user_scan(x_ptr, y_ptr, N: tl.constexpr):
    offs = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(y_ptr + offs, tl.cumsum(tl.load(x_ptr + offs), 0))


@_case("scan", "a prefix sum", SMALL, x=_random(4, 512), y=_zeros(4, 512))
def _(t):
    return user_scan[(4,)](t["x"], t["y"], N=512, num_warps=4)


@triton.jit
def user_recurrence(x_ptr, a_ptr, y_ptr, T, D, BLOCK: tl.constexpr):
    """h = a h + x along T: one step after another, BLOCK channels side by side."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    h = tl.zeros([BLOCK], tl.float32)
    a = tl.load(a_ptr + offs, mask=offs < D)
    for t in range(T):
        h = h * a + tl.load(x_ptr + t * D + offs, mask=offs < D)
        tl.store(y_ptr + t * D + offs, h, mask=offs < D)


def _recurrence(name, to, T, D, block, warps):
    @_case(name, "one step after another: latency", to, x=_random(T, D), a=_random(D, seed=1), y=_zeros(T, D))
    def run(t):
        return user_recurrence[(triton.cdiv(D, block),)](t["x"], t["a"], t["y"], T, D, BLOCK=block, num_warps=warps)


_recurrence("recurrence", SMALL, 9, 200, 64, 2)
for _block, _warps in ((32, 1), (128, 4), (128, 1)):
    _recurrence(f"recurrence.{_block}_{_warps}w", TIMED, 512, 8192, _block, _warps)


@triton.jit
def user_rotary(x_ptr, cos_ptr, sin_ptr, y_ptr, D: tl.constexpr):
    row = tl.program_id(0)
    offs = tl.arange(0, D // 2)
    c, s = tl.load(cos_ptr + row * (D // 2) + offs), tl.load(sin_ptr + row * (D // 2) + offs)
    for h in range(4):
        at = x_ptr + (row * 4 + h) * D + offs
        a, b = tl.load(at).to(tl.float32), tl.load(at + D // 2).to(tl.float32)
        out = y_ptr + (row * 4 + h) * D + offs
        tl.store(out, a * c - b * s)
        tl.store(out + D // 2, b * c + a * s)


@_case("rotary", "half rows, an unrolled loop of heads", SMALL, x=_random(6, 4, 128, dtype=HALF), cos=_random(6, 64),
       sin=_random(6, 64, seed=1), y=_zeros(6, 4, 128, dtype=HALF))  # fmt: skip
def _(t):
    return user_rotary[(6,)](t["x"], t["cos"], t["sin"], t["y"], D=128, num_warps=2)


@triton.jit
def user_dequantise(w_ptr, scale_ptr, x_ptr, y_ptr, K, BN: tl.constexpr, BK: tl.constexpr):
    """A row of int8 weights times a vector, for BN rows."""
    offs_n, offs_k = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros([BN, BK], tl.float32)
    for k in range(0, K, BK):
        w = tl.load(w_ptr + offs_n[:, None] * K + k + offs_k[None, :])
        x = tl.load(x_ptr + k + offs_k).to(tl.float32)
        acc += w.to(tl.float32) * x[None, :]
    tl.store(y_ptr + offs_n, tl.sum(acc, 1) * tl.load(scale_ptr + offs_n))


def _dequantise(name, to, N, K, BN, BK, warps):
    @_case(name, "int8 weights times a vector", to, w=_random(N, K, dtype=torch.int8), scale=_random(N),
           x=_random(K, dtype=HALF), y=_zeros(N))  # fmt: skip
    def run(t):
        return user_dequantise[(N // BN,)](
            t["w"], t["scale"], t["x"], t["y"], K, BN=BN, BK=BK, num_warps=warps, num_stages=1
        )


_dequantise("int8_matvec", SMALL, 32, 512, 8, 256, 4)
for _bn, _bk, _warps in ((1, 1024, 4), (4, 1024, 4), (16, 256, 4), (16, 64, 4)):
    _dequantise(f"int8_matvec.{_bn}x{_bk}_{_warps}w", TIMED, 8192, 8192, _bn, _bk, _warps)


@triton.jit
def user_quantise(x_ptr, y_ptr, scale_ptr, N: tl.constexpr):
    row = tl.program_id(0)
    offs = tl.arange(0, N)
    x = tl.load(x_ptr + row * N + offs).to(tl.float32)
    scale = tl.max(tl.abs(x), 0) / 448.0
    tl.store(y_ptr + row * N + offs, (x / scale).to(y_ptr.dtype.element_ty))
    tl.store(scale_ptr + row, scale)


@_case("quantise_fp8", "a scale for each row, fp8 out", SMALL, x=_random(6, 512, dtype=HALF),
       y=_zeros(6, 512, dtype=torch.float8_e4m3fn), scale=_zeros(6))  # fmt: skip
def _(t):
    return user_quantise[(6,)](t["x"], t["y"], t["scale"], N=512, num_warps=4)


@triton.jit
def user_conv1d(x_ptr, w_ptr, y_ptr, T, D, BT: tl.constexpr, BD: tl.constexpr):
    """A causal depthwise convolution over four steps."""
    offs_t = tl.program_id(0) * BT + tl.arange(0, BT)
    offs_d = tl.program_id(1) * BD + tl.arange(0, BD)
    acc = tl.zeros([BT, BD], tl.float32)
    for j in tl.static_range(4):
        t = offs_t - 3 + j
        mask = ((t >= 0) & (t < T))[:, None] & (offs_d < D)[None, :]
        acc += tl.load(x_ptr + t[:, None] * D + offs_d[None, :], mask=mask, other=0.0) * tl.load(
            w_ptr + j * D + offs_d, mask=offs_d < D, other=0.0
        )
    mask = (offs_t < T)[:, None] & (offs_d < D)[None, :]
    tl.store(y_ptr + offs_t[:, None] * D + offs_d[None, :], acc, mask=mask)


def _conv(name, to, T, D, bt, bd, warps):
    @_case(name, "an unrolled loop over four taps", to, x=_random(T, D), w=_random(4, D, seed=1), y=_zeros(T, D))
    def run(t):
        grid = (triton.cdiv(T, bt), triton.cdiv(D, bd))
        return user_conv1d[grid](t["x"], t["w"], t["y"], T, D, BT=bt, BD=bd, num_warps=warps)


_conv("conv1d", SMALL, 50, 96, 16, 32, 4)
for _bt, _bd, _warps in ((1, 128, 1), (16, 64, 4), (64, 32, 4)):
    _conv(f"conv1d.{_bt}x{_bd}_{_warps}w", TIMED, 4096, 1024, _bt, _bd, _warps)


@triton.jit
def user_stencil(x_ptr, y_ptr, H, W, BH: tl.constexpr, BW: tl.constexpr):
    r = tl.program_id(0) * BH + tl.arange(0, BH)[:, None]
    c = tl.program_id(1) * BW + tl.arange(0, BW)[None, :]
    at = x_ptr + r * W + c
    inside = (r < H) & (c < W)
    total = tl.load(at, mask=inside, other=0.0) * -4.0
    total += tl.load(at - W, mask=inside & (r > 0), other=0.0)
    total += tl.load(at + W, mask=inside & (r < H - 1), other=0.0)
    total += tl.load(at - 1, mask=inside & (c > 0), other=0.0)
    total += tl.load(at + 1, mask=inside & (c < W - 1), other=0.0)
    tl.store(y_ptr + r * W + c, total, mask=inside)


def _stencil(name, to, H, W, bh, bw, warps):
    @_case(name, "five neighbours", to, x=_random(H, W), y=_zeros(H, W))
    def run(t):
        grid = (triton.cdiv(H, bh), triton.cdiv(W, bw))
        return user_stencil[grid](t["x"], t["y"], H, W, BH=bh, BW=bw, num_warps=warps)


_stencil("stencil", SMALL, 40, 100, 16, 32, 4)
for _bh, _bw, _warps in ((1, 256, 4), (16, 64, 4), (64, 4, 4)):
    _stencil(f"stencil.{_bh}x{_bw}_{_warps}w", TIMED, 2048, 2048, _bh, _bw, _warps)


@triton.jit
def user_transpose(x_ptr, y_ptr, N, R: tl.constexpr, C: tl.constexpr):
    r = tl.program_id(0) * R + tl.arange(0, R)
    c = tl.program_id(1) * C + tl.arange(0, C)
    x = tl.load(x_ptr + r[:, None] * N + c[None, :])
    tl.store(y_ptr + c[None, :] * N + r[:, None], x)


def _transpose(name, to, N, R, C, warps):
    @_case(name, "rows in, columns out", to, x=_random(N, N), y=_zeros(N, N))
    def run(t):
        return user_transpose[(N // R, N // C)](t["x"], t["y"], N, R=R, C=C, num_warps=warps)


_transpose("transpose_64", SMALL, 128, 64, 32, 4)
for _r, _c, _warps in ((1, 1024, 4), (8, 128, 4), (32, 32, 4), (64, 64, 8)):
    _transpose(f"transpose.{_r}x{_c}_{_warps}w", TIMED, 2048, _r, _c, _warps)


@triton.jit
def user_embedding(index_ptr, table_ptr, y_ptr, D: tl.constexpr, ROWS: tl.constexpr):
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, D)
    row = tl.load(index_ptr + r)
    tl.store(y_ptr + r[:, None] * D + d[None, :], tl.load(table_ptr + row[:, None] * D + d[None, :]))


def _embedding(name, to, count, rows, D, each, warps):
    @_case(name, "rows of a table", to, index=_indices(count, rows), table=_random(rows, D, dtype=torch.bfloat16),
           y=_zeros(count, D, dtype=torch.bfloat16))  # fmt: skip
    def run(t):
        return user_embedding[(count // each,)](t["index"], t["table"], t["y"], D=D, ROWS=each, num_warps=warps)


_embedding("embedding", SMALL, 64, 50, 64, 16, 4)
for _each, _warps in ((1, 1), (1, 4), (8, 4), (64, 4)):
    _embedding(f"embedding.{_each}_{_warps}w", TIMED, 1 << 16, 1 << 15, 256, _each, _warps)


@triton.jit
def user_column_gather(index_ptr, x_ptr, y_ptr, N, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + tl.load(index_ptr + offs)))


def _gather(name, index):
    @_case(f"gather_{name}.1024_4w", "single elements", TIMED, index=index, x=_random(1 << 21), y=_zeros(1 << 21))
    def run(t):
        return user_column_gather[(2048,)](t["index"], t["x"], t["y"], 1 << 21, BLOCK=1024, num_warps=4)


_gather("sorted", lambda: torch.arange(1 << 21))
_gather("random", _permutation(1 << 21))


@triton.jit
def user_descriptors(x_ptr, y_ptr, H, W, R: tl.constexpr, C: tl.constexpr):
    x = tl.make_tensor_descriptor(x_ptr, shape=[H, W], strides=[W, 1], block_shape=[R, C])
    y = tl.make_tensor_descriptor(y_ptr, shape=[H, W], strides=[W, 1], block_shape=[R, C])
    at = [tl.program_id(0) * R, tl.program_id(1) * C]
    y.store(at, x.load(at) * 2)


@_case("tma_copy", "tiles that the copy engine moves", SMALL, x=_random(64, 128), y=_zeros(64, 128))
def _(t):
    triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device=t["x"].device))
    return user_descriptors[(2, 2)](t["x"], t["y"], 64, 128, R=32, C=64, num_warps=4)


# --- Sums over programs -----------------------------------------------------------------------------------------------


@triton.jit
def user_column_sums(x_ptr, y_ptr, rows, D, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros([BLOCK], tl.float32)
    for i in range(ROWS):
        r = tl.program_id(0) * ROWS + i
        acc += tl.load(x_ptr + r * D + d, mask=(d < D) & (r < rows), other=0.0)
    tl.atomic_add(y_ptr + d, acc, mask=d < D, sem="relaxed")


def _column_sums(name, to, rows, D, each, block, warps):
    @_case(name, "partial sums that meet under reductions", to, x=_random(rows, D), y=_zeros(D))
    def run(t):
        grid = (triton.cdiv(rows, each), triton.cdiv(D, block))
        return user_column_sums[grid](t["x"], t["y"], rows, D, ROWS=each, BLOCK=block, num_warps=warps)


_column_sums("column_sums", SMALL, 30, 200, 8, 128, 4)
for _each, _block, _warps in ((4, 256, 4), (32, 256, 4), (256, 256, 4), (32, 1024, 8)):
    _column_sums(f"column_sums.{_each}x{_block}_{_warps}w", TIMED, 8192, 1024, _each, _block, _warps)


@triton.jit
def user_histogram(x_ptr, count_ptr, BINS: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    counts = tl.histogram(tl.load(x_ptr + offs), BINS)
    tl.atomic_add(count_ptr + tl.arange(0, BINS), counts, sem="relaxed")


@triton.jit
def user_histogram_direct(x_ptr, count_ptr, BINS: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(count_ptr + tl.load(x_ptr + offs), 1, sem="relaxed")


def _histogram(name, to, n, bins, block, warps, direct):
    @_case(name, "counts", to, x=_indices(n, bins, dtype=torch.int32), count=_zeros(bins, dtype=torch.int32))
    def run(t):
        kernel = user_histogram_direct if direct else user_histogram
        return kernel[(n // block,)](t["x"], t["count"], BINS=bins, BLOCK=block, num_warps=warps)


_histogram("histogram_shared", SMALL, 2048, 256, 512, 4, False)
_histogram("histogram.shared_1024", TIMED, 1 << 20, 256, 1024, 4, False)
_histogram("histogram.shared_8192", TIMED, 1 << 20, 256, 8192, 8, False)
_histogram("histogram.direct", TIMED, 1 << 20, 256, 1024, 4, True)


@triton.jit
def user_split_k(a_ptr, b_ptr, c_ptr, N, K, EACH, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    offs_m, offs_n, offs_k = tl.arange(0, BM), tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros([BM, BN], tl.float32)
    for k in range(tl.program_id(1) * EACH, tl.program_id(1) * EACH + EACH, BK):
        a = tl.load(a_ptr + offs_m[:, None] * K + k + offs_k[None, :])
        b = tl.load(b_ptr + (k + offs_k)[:, None] * N + offs_n[None, :])
        acc = tl.dot(a, b, acc)
    tl.atomic_add(c_ptr + offs_m[:, None] * N + offs_n[None, :], acc, sem="relaxed")


def _split_k(name, to, N, K, parts, bn, bk, warps):
    @_case(name, "partial products that meet", to, a=_random(64, K, dtype=HALF), b=_random(K, N, dtype=HALF, seed=1),
           c=_zeros(64, N))  # fmt: skip
    def run(t):
        return user_split_k[(N // bn, parts)](
            t["a"], t["b"], t["c"], N, K, K // parts, BM=64, BN=bn, BK=bk, num_warps=warps
        )


_split_k("split_k", SMALL, 128, 256, 4, 64, 32, 4)
for _parts in (1, 8, 32):
    _split_k(f"split_k.{_parts}", TIMED, 4096, 4096, _parts, 64, 64, 4)


@triton.jit
def user_last_block(x_ptr, part_ptr, done_ptr, y_ptr, P: tl.constexpr, BLOCK: tl.constexpr):
    """A sum in one launch: whoever finishes last adds up what all have left."""
    pid = tl.program_id(0)
    tl.store(part_ptr + pid, tl.sum(tl.load(x_ptr + pid * BLOCK + tl.arange(0, BLOCK)), 0))
    if tl.atomic_add(done_ptr, 1, sem="acq_rel") == P - 1:
        tl.store(y_ptr, tl.sum(tl.load(part_ptr + tl.arange(0, P)), 0))


@_case("last_block", "whoever is last adds up", SMALL, x=_random(8, 256), part=_zeros(8),
       done=_zeros(1, dtype=torch.int32), y=_zeros(1))  # fmt: skip
def _(t):
    return user_last_block[(8,)](t["x"], t["part"], t["done"], t["y"], P=8, BLOCK=256)


@triton.jit
def user_alternating(x_ptr, y_ptr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    offs = tl.arange(0, BLOCK)
    acc = tl.zeros([BLOCK], tl.float32)
    for k in tl.static_range(3):
        if pid % 3 == k:
            acc += tl.load(x_ptr + offs * (1 + k))
    tl.store(y_ptr + pid * BLOCK + offs, acc)


@_case("alternating", "copies of one line under different conditions", SMALL, x=_random(2048), y=_zeros(8, 512))
def _(t):
    return user_alternating[(8,)](t["x"], t["y"], BLOCK=512, num_warps=4)


@triton.jit
def user_scatter(index_ptr, x_ptr, y_ptr, D: tl.constexpr, ROWS: tl.constexpr):
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, D)
    at = tl.load(index_ptr + r)[:, None] * D + d[None, :]
    tl.atomic_add(y_ptr + at, tl.load(x_ptr + r[:, None] * D + d[None, :]), sem="relaxed")


@_case("scatter_bf16", "rows added where an index says", SMALL, index=_indices(64, 20),
       x=_random(64, 64, dtype=torch.bfloat16), y=_zeros(20, 64, dtype=torch.bfloat16))  # fmt: skip
def _(t):
    return user_scatter[(4,)](t["index"], t["x"], t["y"], D=64, ROWS=16, num_warps=4)


# --- Arithmetic alone, and the operator's rivals ----------------------------------------------------------------------


@triton.jit
def user_polynomial(x_ptr, y_ptr, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    acc = x
    for _ in range(STEPS):
        acc = acc * x + 0.5
    tl.store(y_ptr + offs, acc)


for _steps, _block, _warps in ((512, 256, 4), (512, 2048, 4), (64, 256, 4)):

    @_case(f"polynomial_{_steps}.{_block}_{_warps}w", "arithmetic", TIMED, x=_random(1 << 20), y=_zeros(1 << 20))
    def _(t, steps=_steps, block=_block, warps=_warps):
        grid = ((1 << 20) // block,)
        return user_polynomial[grid](t["x"], t["y"], STEPS=steps, BLOCK=block, num_warps=warps)


def _operator():
    from msda_core.kernels import forward, tilings

    def run(way):
        function = forward.msda_forward if way == "shipped" else getattr(tilings, f"{way}_forward")
        return lambda t: function(t["value"], t["shapes"], t["starts"], t["loc"], t["attn"])

    for dtype, short in ((torch.float32, "f32"), (torch.float16, "f16")):
        for way in ("element", "query", "shipped", "point"):
            inputs = functools.partial(msda_inputs, dtype, 300, 4)
            TIMED.append(Case(f"msda_decoder_{short}.{way}", "a rival tiling", inputs, run(way)))


_operator()

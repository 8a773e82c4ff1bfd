"""Launches that had no say in the model of time, nor in its form: written after it, and only ever compared with it.

Kernels of other kinds than `workloads` has, two or more configurations each; a name is `family.configuration`.
"""

import torch

from msda_core.bench.probes import Case, _case, _indices, _random, _zeros
from msda_core.device import load_triton

triton = load_triton()
import triton.language as tl  # noqa: E402

__all__ = ["TIMED"]

TIMED: list[Case] = []
HALF = torch.float16


@triton.jit
def user_rms_norm(x_ptr, w_ptr, y_ptr, N, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * N + offs, mask=offs < N, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 0) / N + eps)
    w = tl.load(w_ptr + offs, mask=offs < N, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * N + offs, (x * scale * w).to(y_ptr.dtype.element_ty), mask=offs < N)


for _warps in (1, 4, 16):

    @_case(f"rms_norm.{_warps}w", "one reduction a row", TIMED, x=_random(4096, 4096, dtype=HALF),
           w=_random(4096, dtype=HALF), y=_zeros(4096, 4096, dtype=HALF))  # fmt: skip
    def _(t, warps=_warps):
        return user_rms_norm[(4096,)](t["x"], t["w"], t["y"], 4096, 1e-6, BLOCK=4096, num_warps=warps)


@triton.jit
def user_gelu(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n).to(tl.float32)
    y = 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))
    tl.store(y_ptr + offs, y.to(y_ptr.dtype.element_ty), mask=offs < n)


for _n, _block, _warps in ((22, 128, 4), (22, 1024, 4), (22, 4096, 4), (16, 256, 4), (16, 1024, 4)):

    @_case(f"gelu_{_n}.{_block}_{_warps}w", "arithmetic on every element", TIMED, x=_random(1 << _n, dtype=HALF),
           y=_zeros(1 << _n, dtype=HALF))  # fmt: skip
    def _(t, n=1 << _n, block=_block, warps=_warps):
        return user_gelu[(n // block,)](t["x"], t["y"], n, BLOCK=block, num_warps=warps)


@triton.jit
def user_argmax(x_ptr, y_ptr, N: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    best = tl.full([BLOCK], -float("inf"), tl.float32)
    where = tl.zeros([BLOCK], tl.int32)
    for start in range(0, N, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * N + offs)
        where = tl.where(x > best, offs, where)
        best = tl.maximum(best, x)
    top = tl.argmax(best, 0)
    tl.store(y_ptr + row, tl.sum(tl.where(tl.arange(0, BLOCK) == top, where, 0), 0))


for _block, _warps in ((128, 1), (1024, 4), (8192, 8)):

    @_case(f"argmax.{_block}_{_warps}w", "long rows, few of them", TIMED, x=_random(512, 32768),
           y=_zeros(512, dtype=torch.int32))  # fmt: skip
    def _(t, block=_block, warps=_warps):
        return user_argmax[(512,)](t["x"], t["y"], N=32768, BLOCK=block, num_warps=warps)


@triton.jit
def user_batched(a_ptr, b_ptr, c_ptr, N: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    base = tl.program_id(2) * N * N
    k = tl.arange(0, BK)
    acc = tl.zeros([BM, BN], tl.float32)
    for start in range(0, N, BK):
        a = tl.load(a_ptr + base + m[:, None] * N + (start + k)[None, :])
        b = tl.load(b_ptr + base + (start + k)[:, None] * N + n[None, :])
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + base + m[:, None] * N + n[None, :], acc.to(tl.float16))


for _m, _n, _k, _warps, _stages in ((64, 64, 32, 4, 3), (128, 64, 64, 4, 2), (128, 128, 32, 8, 4), (32, 64, 64, 2, 2)):

    @_case(f"batched.{_m}x{_n}x{_k}_{_warps}w", "many products of 256", TIMED, a=_random(64, 256, 256, dtype=HALF),
           b=_random(64, 256, 256, dtype=HALF, seed=1), c=_zeros(64, 256, 256, dtype=HALF))  # fmt: skip
    def _(t, m=_m, n=_n, k=_k, warps=_warps, stages=_stages):
        options = {"BM": m, "BN": n, "BK": k, "num_warps": warps, "num_stages": stages}
        return user_batched[(256 // m, 256 // n, 64)](t["a"], t["b"], t["c"], N=256, **options)


@triton.jit
def user_persistent(a_ptr, b_ptr, c_ptr, N, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    across = N // BN
    for tile in range(tl.program_id(0), (N // BM) * across, tl.num_programs(0)):
        m = tile // across * BM + tl.arange(0, BM)
        n = tile % across * BN + tl.arange(0, BN)
        acc = tl.zeros([BM, BN], tl.float32)
        for start in range(0, N, BK):
            k = start + tl.arange(0, BK)
            a = tl.load(a_ptr + m[:, None] * N + k[None, :])
            b = tl.load(b_ptr + k[:, None] * N + n[None, :])
            acc = tl.dot(a, b, acc)
        tl.store(c_ptr + m[:, None] * N + n[None, :], acc.to(tl.float16))


for _programs, _m, _n, _k, _warps in ((132, 128, 128, 64, 8), (264, 128, 64, 64, 4), (132, 64, 64, 64, 4)):

    @_case(f"persistent.{_programs}_{_m}x{_n}x{_k}_{_warps}w", "tiles of a product in turn", TIMED,
           a=_random(1536, 1536, dtype=HALF), b=_random(1536, 1536, dtype=HALF, seed=1),
           c=_zeros(1536, 1536, dtype=HALF))  # fmt: skip
    def _(t, programs=_programs, m=_m, n=_n, k=_k, warps=_warps):
        options = {"BM": m, "BN": n, "BK": k, "num_warps": warps, "num_stages": 3}
        return user_persistent[(programs,)](t["a"], t["b"], t["c"], 1536, **options)


@triton.jit
def user_running_sum(x_ptr, y_ptr, N: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, N)
    tl.store(y_ptr + row * N + offs, tl.cumsum(tl.load(x_ptr + row * N + offs), 0))


for _warps in (1, 4, 8):

    @_case(f"running_sum.{_warps}w", "a scan of each row", TIMED, x=_random(4096, 1024), y=_zeros(4096, 1024))
    def _(t, warps=_warps):
        return user_running_sum[(4096,)](t["x"], t["y"], N=1024, num_warps=warps)


@triton.jit
def user_depthwise(x_ptr, w_ptr, y_ptr, H, W, BH: tl.constexpr, BW: tl.constexpr):
    plane = tl.program_id(2)
    r = tl.program_id(1) * BH + tl.arange(0, BH)
    c = tl.program_id(0) * BW + tl.arange(0, BW)
    acc = tl.zeros([BH, BW], tl.float32)
    for dy in tl.static_range(3):
        for dx in tl.static_range(3):
            y, x = r + dy - 1, c + dx - 1
            inside = ((y >= 0) & (y < H))[:, None] & ((x >= 0) & (x < W))[None, :]
            value = tl.load(x_ptr + plane * H * W + y[:, None] * W + x[None, :], mask=inside, other=0.0)
            acc += value * tl.load(w_ptr + plane * 9 + dy * 3 + dx)
    edge = (r < H)[:, None] & (c < W)[None, :]
    tl.store(y_ptr + plane * H * W + r[:, None] * W + c[None, :], acc, mask=edge)


for _h, _w, _warps in ((1, 256, 4), (8, 64, 4), (16, 32, 2)):

    @_case(f"depthwise.{_h}x{_w}_{_warps}w", "nine loads of each element", TIMED, x=_random(32, 256, 256),
           w=_random(32, 9), y=_zeros(32, 256, 256))  # fmt: skip
    def _(t, h=_h, w=_w, warps=_warps):
        grid = (256 // w, 256 // h, 32)
        return user_depthwise[grid](t["x"], t["w"], t["y"], 256, 256, BH=h, BW=w, num_warps=warps)


@triton.jit
def user_pool(x_ptr, y_ptr, W, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    corner = offs // W * 4 * W + offs % W * 2
    mask = offs < n
    top = tl.maximum(tl.load(x_ptr + corner, mask=mask), tl.load(x_ptr + corner + 1, mask=mask))
    low = tl.maximum(tl.load(x_ptr + corner + 2 * W, mask=mask), tl.load(x_ptr + corner + 2 * W + 1, mask=mask))
    tl.store(y_ptr + offs, tl.maximum(top, low), mask=mask)


for _block, _warps in ((128, 4), (1024, 4), (4096, 8)):

    @_case(f"pool.{_block}_{_warps}w", "strided by two", TIMED, x=_random(4096, 1024), y=_zeros(2048, 512))
    def _(t, block=_block, warps=_warps):
        return user_pool[((1 << 20) // block,)](t["x"], t["y"], 512, 1 << 20, BLOCK=block, num_warps=warps)


@triton.jit
def user_segment_sum(index_ptr, x_ptr, y_ptr, D: tl.constexpr, ROWS: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, D)
    where = tl.load(index_ptr + rows)
    x = tl.load(x_ptr + rows[:, None] * D + d[None, :])
    tl.atomic_add(y_ptr + where[:, None] * D + d[None, :], x, sem="relaxed")


for _count, _each, _warps in ((4096, 4, 4), (4096, 32, 4), (64, 4, 4), (64, 32, 4)):

    @_case(f"segment_sum_{_count}.{_each}_{_warps}w", "rows added where an index says", TIMED,
           index=_indices(32768, _count), x=_random(32768, 64), y=_zeros(_count, 64))  # fmt: skip
    def _(t, each=_each, warps=_warps):
        return user_segment_sum[(32768 // each,)](t["index"], t["x"], t["y"], D=64, ROWS=each, num_warps=warps)


@triton.jit
def user_int4_product(w_ptr, x_ptr, y_ptr, K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    acc = tl.zeros([BN], tl.float32)
    for start in range(0, K // 2, BK):
        k = start + tl.arange(0, BK)
        packed = tl.load(w_ptr + n[:, None] * (K // 2) + k[None, :])
        low, high = (packed << 4).to(tl.int8) >> 4, packed >> 4
        acc += tl.sum(low.to(tl.float32) * tl.load(x_ptr + 2 * k)[None, :], 1)
        acc += tl.sum(high.to(tl.float32) * tl.load(x_ptr + 2 * k + 1)[None, :], 1)
    tl.store(y_ptr + n, acc)


for _n, _k, _warps in ((2, 512, 4), (8, 256, 4), (16, 128, 8)):

    @_case(f"int4_product.{_n}x{_k}_{_warps}w", "a matrix of four bits by a vector", TIMED,
           w=_random(8192, 2048, dtype=torch.int8), x=_random(4096), y=_zeros(8192))  # fmt: skip
    def _(t, n=_n, k=_k, warps=_warps):
        return user_int4_product[(8192 // n,)](t["w"], t["x"], t["y"], K=4096, BN=n, BK=k, num_warps=warps)


@triton.jit
def user_decode(q_ptr, k_ptr, v_ptr, o_ptr, T: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr):
    head = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, D)
    q = tl.load(q_ptr + head * D + d).to(tl.float32)
    top, total, acc = -float("inf"), 0.0, tl.zeros([D], tl.float32)
    for start in range(0, T, BLOCK):
        t = start + tl.arange(0, BLOCK)
        keys = tl.load(k_ptr + (head * T + t)[:, None] * D + d[None, :]).to(tl.float32)
        score = tl.sum(keys * q[None, :], 1)
        higher = tl.maximum(top, tl.max(score, 0))
        weight = tl.exp(score - higher)
        values = tl.load(v_ptr + (head * T + t)[:, None] * D + d[None, :]).to(tl.float32)
        shrink = tl.exp(top - higher)
        total = total * shrink + tl.sum(weight, 0)
        acc = acc * shrink + tl.sum(weight[:, None] * values, 0)
        top = higher
    tl.store(o_ptr + head * D + d, (acc / total).to(tl.float16))


for _block, _warps in ((16, 1), (64, 4), (128, 8)):

    @_case(f"decode.{_block}_{_warps}w", "attention of one query to many keys", TIMED, q=_random(512, 64, dtype=HALF),
           k=_random(512, 1024, 64, dtype=HALF, seed=1), v=_random(512, 1024, 64, dtype=HALF, seed=2),
           o=_zeros(512, 64, dtype=HALF))  # fmt: skip
    def _(t, block=_block, warps=_warps):
        options = {"T": 1024, "D": 64, "BLOCK": block, "num_warps": warps}
        return user_decode[(512,)](t["q"], t["k"], t["v"], t["o"], **options)


@triton.jit
def user_distances(a_ptr, b_ptr, y_ptr, N, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros([BM, BN], tl.float32)
    for d in range(D):
        difference = tl.load(a_ptr + d * N + m)[:, None] - tl.load(b_ptr + d * N + n)[None, :]
        acc += difference * difference
    tl.store(y_ptr + m[:, None] * N + n[None, :], tl.sqrt(acc))


for _m, _n, _warps in ((32, 32, 4), (64, 64, 4), (16, 128, 4)):

    @_case(f"distances.{_m}x{_n}_{_warps}w", "all pairs of points", TIMED, a=_random(32, 2048), b=_random(32, 2048, seed=1),
           y=_zeros(2048, 2048))  # fmt: skip
    def _(t, m=_m, n=_n, warps=_warps):
        grid = (2048 // m, 2048 // n)
        return user_distances[grid](t["a"], t["b"], t["y"], 2048, D=32, BM=m, BN=n, num_warps=warps)

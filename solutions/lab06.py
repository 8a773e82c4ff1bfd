"""Lab 06, Make it fast: one way to answer it."""

from statistics import median

import torch

from msda_core.device import tl, triton


@triton.jit
def msda_fwd_fast_kernel(
    value_ptr,
    shapes_ptr,
    starts_ptr,
    loc_ptr,
    attn_ptr,
    out_ptr,
    Q,
    S,
    M: tl.constexpr,
    D: tl.constexpr,
    L: tl.constexpr,
    K: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Lab 5's `msda_fwd_kernel`, with BLOCK_P of a query's L * K points at a time.

    Program (i, j) owns the i-th block of BLOCK_Q queries, of head j % M of batch item j // M, every channel. Arguments are
    those of lab 5; everything is contiguous and computed in float32.

    Args:
        BLOCK_P: a power of two; more than L * K, or less, or no divisor of it.
        BLOCK_D: a power of two, at least D.
    """
    q = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)  # @q
    m = tl.program_id(1) % M  # @m
    b = (tl.program_id(1) // M).to(tl.int64)  # @b
    offs_d = tl.arange(0, BLOCK_D)  # @offs_d
    mask_q = q < Q  # @mask_q
    mask_d = offs_d < D
    row = (b * Q + q) * M + m  # @row
    head_ptr = value_ptr + (b * S * M + m) * D  # @head_ptr
    acc = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)  # @acc
    for p0 in range(0, L * K, BLOCK_P):  # @each_p0
        p = p0 + tl.arange(0, BLOCK_P)  # @p
        mask_p = mask_q[:, None] & (p < L * K)[None, :]  # @mask_p
        point = row[:, None] * (L * K) + p[None, :]
        a = tl.load(attn_ptr + point, mask=mask_p, other=0.0).to(tl.float32)  # @a
        pair = 2 * point[:, :, None] + tl.arange(0, 2)[None, None, :]  # @pair
        x, y = tl.split(tl.load(loc_ptr + pair, mask=mask_p[:, :, None], other=0.0).to(tl.float32))  # @x

        level = tl.minimum(p // K, L - 1)  # @level
        H = tl.load(shapes_ptr + 2 * level).to(tl.int32)[None, :]  # @H
        W = tl.load(shapes_ptr + 2 * level + 1).to(tl.int32)[None, :]  # @W
        start = tl.load(starts_ptr + level).to(tl.int32)[None, :]
        x = x * W - 0.5  # @x_2
        y = y * H - 0.5  # @y
        for j in tl.static_range(2):
            for i in tl.static_range(2):
                xi = tl.floor(x) + i  # @xi
                yj = tl.floor(y) + j  # @yj
                inside = mask_p & (xi >= 0) & (xi < W) & (yj >= 0) & (yj < H)  # @inside
                weight = tl.where(inside, a * (1 - tl.abs(x - xi)) * (1 - tl.abs(y - yj)), 0.0)  # @weight
                pixel = (
                    start + tl.where(inside, yj, 0.0).to(tl.int32) * W + tl.where(inside, xi, 0.0).to(tl.int32)
                )  # @pixel
                v_ptr = head_ptr + pixel[:, :, None] * (M * D) + offs_d[None, None, :]  # @v_ptr
                v = tl.load(v_ptr, mask=inside[:, :, None] & mask_d[None, None, :], other=0.0)  # @v
                acc += tl.sum(weight[:, :, None] * v.to(tl.float32), axis=1)  # @acc_2
    mask_out = mask_q[:, None] & mask_d[None, :]
    tl.store(out_ptr + row[:, None] * D + offs_d[None, :], acc.to(out_ptr.dtype.element_ty), mask=mask_out)  # @store


def launch_config(Q: int, M: int, D: int, L: int, K: int, dtype: torch.dtype) -> dict[str, int]:
    """How to cut a call for `msda_fwd_fast_kernel` on a GPU like the H200: 132 multiprocessors, 32 lanes in a warp.

    Args:
        Q, M, D, L, K: sizes of one batch item; dtype: of value.

    Returns:
        {"BLOCK_Q": …, "BLOCK_P": …, "BLOCK_D": …, "num_warps": …}: powers of two. What counts, the first before the next:
        every channel has a lane, and no block is larger than the power of two that holds all there is; a program's
        numbers fit into its registers; every lane has 16 bytes of each corner to load; and there are four warps for each
        multiprocessor, where there are queries enough.
    """
    tile = 4 * 32 * 16 // dtype.itemsize  # elements: four loads of 16 bytes for each lane of one warp  # @tile
    BLOCK_D = triton.next_power_of_2(D)  # @BLOCK_D
    BLOCK_P = min(triton.next_power_of_2(L * K), max(1, tile // BLOCK_D))  # @BLOCK_P
    BLOCK_Q = min(triton.next_power_of_2(Q), max(1, tile // (BLOCK_D * BLOCK_P)))  # @BLOCK_Q
    while BLOCK_Q > 1 and triton.cdiv(Q, BLOCK_Q) * M < 4 * 132:  # @loop
        BLOCK_Q //= 2
    return dict(
        BLOCK_Q=BLOCK_Q, BLOCK_P=BLOCK_P, BLOCK_D=BLOCK_D, num_warps=min(max(1, BLOCK_D // tile), 16)
    )  # @result


def device_time(fn, clock) -> tuple[float, float]:
    """What one launch takes on the device, at full speed and undisturbed, whatever the host does meanwhile.

    Args:
        fn: launches one kernel.
        clock: a `msda_core.machine.model.clock.Clock`; you may use now, synchronize, record, flush and graph.

    Returns:
        (warm, cold): microseconds with the kernel's data in L2, and with L2 full of something else.
    """
    COPIES, REPEATS = 20, 101
    fn()  # compiles
    many = clock.graph(fn, COPIES)
    begin = clock.now()
    while clock.now() - begin < 20_000:  # long enough for the device to come up to speed
        many()
    warm, cold = [], []
    for _ in range(REPEATS):
        start = clock.record()
        many()
        warm.append((start, clock.record()))
    for _ in range(REPEATS):
        clock.flush()  # takes longer than the host needs to launch fn after it
        start = clock.record()
        fn()
        cold.append((start, clock.record()))
    clock.synchronize()
    warm_time, cold_time = (median(end.time - start.time for start, end in pairs) for pairs in (warm, cold))
    return warm_time / COPIES, cold_time


def predict_time(
    load_sectors: int, store_sectors: int, reduction_sectors: int, busiest_line: int, dram_bytes: int, warm: bool
) -> float:
    """How long a launch takes on an H200, from what the paper GPU counts.

    The H200: 132 multiprocessors at 1.98 GHz; a copy that stays in L2, which holds 60 MB, moves 32 bytes a clock and
    multiprocessor; 4.8 TB/s of DRAM. A launch that does nothing takes about 1 µs.

    Args:
        load_sectors, store_sectors: asked of L1, 32 bytes each; how many go on to L2 is not counted.
        reduction_sectors: of atomics; busiest_line: how many of them fall on the busiest line of 128 bytes, in turn.
        dram_bytes: of sectors touched at all, each once; warm: whether these are in L2 already.

    Returns:
        Microseconds.
    """
    clock = 1980.0  # per microsecond
    from_l2 = warm and dram_bytes <= 60e6  # what does not fit is not there, however often it runs
    dram = 0.0 if from_l2 else 3.0 + dram_bytes / 4.8e6  # a trip to DRAM and back, and the bytes  # @dram
    l2 = (load_sectors + store_sectors) * 32 / (132 * 32 * clock)  # @l2
    reductions = reduction_sectors / (48 * clock)
    contention = busiest_line * 7 / clock
    return 1.2 + max(l2, reductions, contention) + dram  # @result

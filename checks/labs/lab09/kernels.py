"""Lab 09, The precision switch: kernels whose listings tell the kinds of atomics apart."""

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

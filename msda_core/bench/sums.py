"""`python -m msda_core.bench.sums`: how good grad_value is, by how many contributions meet in a pixel, and what it costs.

One head's points fall anywhere on a level of 8 × 8 pixels, so that each pixel gets n contributions on average, and the sums are
made in 16 bits (as the GPU adds them; on a CPU, in Triton's interpreter with bfloat16 emulated, addition by addition), in a
float32 scratch, and in integers. The error is that of grad_value's largest element in float64: max |ours - exact| / max |exact|,
for gradients of either sign and of one sign. On a GPU also what a backward of the presets takes with each accumulator.
"""

import argparse
import contextlib
import json
import statistics

import torch

from msda_core import device, reference
from msda_core.bench.operator import environment, make_inputs
from msda_core.inputs import Call, make_call, pyramid

__all__ = ["errors", "main"]

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
COUNTS = (1, 4, 16, 64, 256, 1024, 4096)
WAYS = {
    "16 bits": dict(fp32_grad_accum=False),
    "float32": dict(fp32_grad_accum=True),
    "integers": dict(deterministic=True),
}
SIDE, K = 8, 4


def _call(contributions: int, dtype: torch.dtype, one_sign: bool, seed: int) -> Call:
    Q = max(1, contributions * SIDE * SIDE // (4 * K))
    call = make_call(
        [(SIDE, SIDE)], B=1, Q=Q, M=1, D=8, K=K, dtype=dtype, loc_dtype=torch.float32, margin=-0.07, device=device.ACTIVE, seed=seed
    )  # fmt: skip
    return call._replace(grad_out=call.grad_out.abs()) if one_sign else call


def errors(dtype: torch.dtype, contributions: int, one_sign: bool, draws: int = 5) -> dict[str, float]:
    """Largest error of grad_value over its largest element, for each way of summing: the median over draws."""
    from msda_core.kernels.backward import msda_backward
    from msda_core.kernels.config import LaunchConfig
    from msda_core.machine.run.guard import guard

    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for seed in range(draws):
        call = _call(contributions, dtype, one_sign, seed)
        exact = reference.exact_gradients(*call)[0]
        for way, options in WAYS.items():
            emulated = device.INTERPRETED and way == "16 bits" and dtype == torch.bfloat16
            config = LaunchConfig(64, 1, K, 8, num_warps=4) if device.INTERPRETED else None
            with guard() if emulated else contextlib.nullcontext():
                grad = msda_backward(*call, **options, config=config)[0]
            found[way].append(((grad.double() - exact).abs().max() / exact.abs().max()).item())
    return {way: statistics.median(values) for way, values in found.items()}


def times() -> dict[str, float]:
    """µs of a backward of the presets, with each accumulator: CUDA-graph replays, zero-fill and cast included."""
    from triton.testing import do_bench_cudagraph

    from msda_core.ops import eager, merging, tables

    result = {}
    for preset in ("decoder", "encoder"):
        for name, dtype in DTYPES.items():
            value, shapes, starts, loc, attn, grad = make_inputs(preset, dtype, pyramid(800, 1333), "cuda")
            known = tables.on_device(shapes, starts, value)
            for merged in (False, True) if preset == "encoder" else (False,):
                for way, options in WAYS.items():
                    if merged and "deterministic" in options:
                        continue

                    def step(value=value, known=known, loc=loc, attn=attn, grad=grad, options=options):
                        eager.backward(value, *known, loc, attn, grad, **options)

                    with merging(merged):
                        took = do_bench_cudagraph(step, rep=40, return_mode="median")
                    result[f"{preset} {name} {'merged' if merged else 'plain'} {way}"] = round(1000 * took, 2)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m msda_core.bench.sums", description=__doc__.splitlines()[0])
    parser.add_argument("--counts", type=int, nargs="+", default=COUNTS, help="contributions to a pixel")
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--json", help="write everything measured there, too")
    args = parser.parse_args()
    rows = []
    for name, dtype in DTYPES.items():
        for signs in ("either", "one"):
            for n in args.counts:
                rows.append(
                    {"dtype": name, "signs": signs, "contributions": n, **errors(dtype, n, signs == "one", args.draws)}
                )
                print(json.dumps(rows[-1]), flush=True)
    result = {"environment": environment() | {"device": device.describe()}, "errors": rows}
    if device.ACTIVE.type == "cuda":
        result["microseconds"] = times()
        print(json.dumps(result["microseconds"], indent=1))
    if args.json:
        with open(args.json, "w") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()

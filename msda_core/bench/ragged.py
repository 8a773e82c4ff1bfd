"""`python -m msda_core.bench.ragged`: ragged points beside the models' own code, and beside the dense operator at even points.

Sizes of D-FINE and RT-DETRv2's decoder: an image of 640 × 640 at strides 8, 16 and 32, 300 queries, M = 8, D = 32. Times are
µs of CUDA-graph replays, inputs warm in L2: the forward, and a forward with its backward (zero-fill included). `models` is
transformers' `multi_scale_deformable_attention_v2`, eager, as the models run it; errors are of the output against float64,
over its largest magnitude.
"""

import argparse
import json
from collections.abc import Callable

import torch
from torch import Tensor

from msda_core import reference
from msda_core.bench.operator import environment
from msda_core.inputs import Call, make_call
from msda_core.ops import multi_scale_deformable_attention

__all__ = ["main", "measure", "ragged_call"]

LEVELS = ((80, 80), (40, 40), (20, 20))
POINTS = ((3, 6, 3), (4, 4, 4), (1, 13, 2))


def ragged_call(points: tuple[int, ...], dtype: torch.dtype, B: int, device: str) -> Call:
    """A decoder's call with so many points on each level: locations (B, Q, M, P, 2), weights (B, Q, M, P)."""
    call = make_call(
        LEVELS, B=B, Q=300, M=8, D=32, K=sum(points), margin=0.0, dtype=dtype, device=device, draw_on=device
    )
    return call._replace(loc=call.loc[:, :, :, 0].contiguous(), attn=call.attn[:, :, :, 0].contiguous())


def operators(
    call: Call, points: tuple[int, ...], method: str
) -> dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]]:
    """Name → function of value, locations and weights."""
    from transformers.models.d_fine.modeling_d_fine import multi_scale_deformable_attention_v2

    levels, even = list(LEVELS), len(set(points)) == 1
    found = {
        "ragged": lambda v, p, a: multi_scale_deformable_attention(
            v, levels, None, p, a, points_per_level=points, method=method
        ),
        "models": lambda v, p, a: multi_scale_deformable_attention_v2(v, levels, p, a, list(points), method),
    }
    if even:
        shape = (len(levels), points[0])
        found["dense"] = lambda v, p, a: multi_scale_deformable_attention(
            v, levels, None, p.unflatten(3, shape), a.unflatten(3, shape), method=method
        )
    return found


def measure(points: tuple[int, ...], method: str, dtype: torch.dtype, B: int) -> dict[str, dict[str, float | str]]:
    """µs and the output's error, of each operator."""
    from triton.testing import do_bench_cudagraph

    call = ragged_call(points, dtype, B, "cuda")
    leaves = [t.detach().clone().requires_grad_() for t in (call.value, call.loc, call.attn)]
    wanted = leaves if method == "default" else [leaves[0], leaves[2]]
    exact = _exact(call, points, method)
    result: dict[str, dict[str, float | str]] = {}
    for name, operator in operators(call, points, method).items():

        def forward(operator=operator):
            with torch.no_grad():
                return operator(*leaves)

        def step(operator=operator):
            torch.autograd.grad(operator(*leaves), wanted, call.grad_out)

        error = ((forward().double() - exact).abs().max() / exact.abs().max()).item()
        try:
            times = [1000 * do_bench_cudagraph(run, rep=40, return_mode="median") for run in (forward, step)]
        except RuntimeError as problem:  # the models' code copies from the host in its discrete method
            result[name] = {"error": error, "not timed": str(problem).split("\n")[0][:80]}
            torch.cuda.synchronize()
            continue
        result[name] = {"forward": round(times[0], 2), "step": round(times[1], 2), "error": error}
    return result


def _exact(call: Call, points: tuple[int, ...], method: str) -> Tensor:
    level_of = [level for level, count in enumerate(points) for _ in range(count)]
    rows, starts = [LEVELS[l] for l in level_of], [call.starts.tolist()[l] for l in level_of]
    run = reference.msda if method == "default" else reference.nearest
    return run(call.value.double(), rows, starts, call.loc.double().unsqueeze(4), call.attn.double().unsqueeze(4))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m msda_core.bench.ragged", description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--json", help="write everything measured there, too")
    args = parser.parse_args()
    rows = []
    for method in ("default", "discrete"):
        for points in POINTS:
            for B in args.batch:
                for name, dtype in (("fp32", torch.float32), ("fp16", torch.float16), ("bf16", torch.bfloat16)):
                    found = measure(points, method, dtype, B)
                    rows.append({"points": points, "method": method, "B": B, "dtype": name, **found})
                    print(json.dumps(rows[-1]), flush=True)
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"environment": environment(), "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()

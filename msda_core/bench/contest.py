r"""The race of lab 6: the same forward call by several kernels, predicted on the paper GPU, and timed where there is a GPU.

    python -m msda_core.bench.contest --json msda_core/bench/data/contest_h200.json \
        --peer "lab 5=solutions.lab05:msda_forward" \
        --peer "lab 6=solutions.lab06:msda_fwd_fast_kernel:launch_config"

The call is a decoder's: B = 2, Q = 300, M = 8, D = 32, L = K = 4 on the pyramid of an 800 x 1333 image. Times are those of
`msda_core.bench`: `device` by CUDA-graph replays, `kernels` by the profiler, `cold` after L2 was flushed, `host` what the
host pays for a launch, `eager` launches back to back, dispatch included.
"""

import argparse
import importlib
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from msda_core.bench import operator as bench
from msda_core.bench import timers
from msda_core.bench.timers import Silicon

__all__ = ["RECORDED", "Silicon", "contenders", "launcher", "many_queries", "measure", "no_gpu", "predict", "recorded"]

B, Q, SAMPLE = 2, 300, 8
DTYPES = {"float32": torch.float32, "float16": torch.float16}
#: The race as an H200 ran it, once it has.
RECORDED = Path(__file__).parent / "data" / "contest_h200.json"

Forward = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def no_gpu() -> str:
    """Why nothing can be timed here; "" where it can."""
    from msda_core import device

    if device.NO_TRITON:
        return device.NO_TRITON
    return "" if device.ACTIVE.type == "cuda" else "needs a CUDA GPU, found none"


def contenders() -> dict[str, Forward]:
    """The three tilings, the shipped kernel, and mmcv's where it is installed."""
    from msda_core.kernels import forward, tilings

    table: dict[str, Forward] = {
        "one lane per output element": tilings.element_forward,
        "one lane per point": tilings.point_forward,
        "one program per block of queries": tilings.query_forward,
        "msda_core": forward.msda_forward,
    }
    try:
        from mmcv.ops.multi_scale_deform_attn import MultiScaleDeformableAttnFunction

        table["mmcv"] = lambda v, sh, st, loc, a: MultiScaleDeformableAttnFunction.apply(v, sh, st, loc, a, 64)
    except ImportError:
        pass
    return table


def launcher(kernel: Any, config: Callable[..., dict[str, int]]) -> Callable:
    """A function of the operator's signature from a kernel and the rule for its launch config, those of lab 6."""

    def forward(value, spatial_shapes, level_start_index, sampling_locations, attention_weights):
        B, S, M, D = value.shape
        _, Q, _, L, K, _ = sampling_locations.shape
        launch_config = config(Q, M, D, L, K, value.dtype)
        out = value.new_empty(B, Q, M * D)
        kernel[(-(-Q // launch_config["BLOCK_Q"]), B * M)](
            value, spatial_shapes, level_start_index, sampling_locations, attention_weights, out, Q, S,
            M=M, D=D, L=L, K=K, **launch_config,
        )  # fmt: skip
        return out

    return forward


def many_queries(config: Callable[..., dict[str, int]]) -> Callable[..., dict[str, int]]:
    """A rule for launch configs that takes a small call for a piece of a large one: it is asked for 3000 queries."""
    return lambda Q, *rest: config(3000, *rest)


def predict(forward: Forward, dtype: str) -> float:
    """Microseconds on an H200 with a warm L2, by the paper GPU: a model, not a measurement.

    A few queries of the call are traced, and their counts scaled to all of it. Kernels that Triton does not make cannot
    be traced.

    Args:
        forward: of the operator's signature, on host tensors; dtype: "float32" or "float16".
    """
    from msda_core.machine.counts.calls import profile_calls
    from msda_core.machine.model.roofline import GPUS, estimate_counts

    inputs = _sample(dtype)
    scale = B * Q / SAMPLE
    total = 0.0
    for report in profile_calls(lambda: forward(*inputs)):
        total += estimate_counts(
            GPUS["H200"],
            compulsory=0,
            sectors=int(scale * (report.loads.sectors + report.stores.sectors)),
            reductions=int(scale * report.atomics.sectors),
            line=report.contention.line,
            warm=True,
        ).seconds
    return total * 1e6


@cache
def _sample(dtype: str) -> tuple[Tensor, ...]:
    levels = bench.pyramid(800, 1333)
    return tuple(bench.make_inputs("decoder", DTYPES[dtype], levels, "cpu", B=1, Q=SAMPLE)[:5])


def measure(table: dict[str, Forward], dtype: str) -> dict[str, dict[str, float]]:
    """Microseconds by contender and clock: device, kernels, cold, host, eager.

    Raises:
        RuntimeError: there is no CUDA GPU.
    """
    if no_gpu():
        raise RuntimeError(f"the race {no_gpu()}.")
    inputs = bench.make_inputs("decoder", DTYPES[dtype], bench.pyramid(800, 1333), "cuda", B=B, Q=Q)[:5]
    flush = torch.empty(2**26, dtype=torch.float32, device="cuda")
    stream = torch.cuda.Stream()
    rows = {}
    for name, forward in table.items():
        stream.wait_stream(torch.cuda.current_stream())
        row = timers.clock(lambda forward=forward: forward(*inputs), stream, flush, "fwd", quick=True)
        rows[name] = {clock.removeprefix("fwd_"): value for clock, value in row.items()}
    return rows


def recorded() -> dict | None:
    """The race that was recorded on an H200: {"environment", "rows": {dtype: {name: {clock: µs}}}}; None if there is none."""
    return json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.exists() else None


def _load(where: str) -> Forward:
    """MODULE:FUNCTION of the operator's signature, or MODULE:KERNEL:CONFIG as in lab 6."""
    module, *names = where.split(":")
    if not 1 <= len(names) <= 2:
        raise ValueError(
            f"--peer must be NAME=MODULE:FUNCTION or NAME=MODULE:KERNEL:CONFIG, got {where!r}. Is the function's name missing?"
        )
    found = [getattr(importlib.import_module(module), name) for name in names]
    return launcher(*found) if len(found) == 2 else found[0]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m msda_core.bench.contest", description=__doc__.split("\n")[0])
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=MODULE:FUNCTION[:CONFIG]")
    parser.add_argument("--json", metavar="PATH", help="write every figure")
    options = parser.parse_args(arguments)
    if no_gpu():
        print(f"python -m msda_core.bench.contest {no_gpu()}. Nothing was timed.")
        return 1
    table = contenders()
    for peer in options.peer:
        name, _, where = peer.partition("=")
        table[name] = _load(where)
    found = {"environment": bench.environment(), "rows": {dtype: measure(table, dtype) for dtype in DTYPES}}
    for dtype, rows in found["rows"].items():
        print(dtype)
        for name, row in rows.items():
            print(f"  {name:34s}" + "".join(f"{clock} {value:8.1f}   " for clock, value in row.items()))
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

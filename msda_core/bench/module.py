"""`python -m msda_core.bench.module`: what lies between a module's linear layers, fused and in pieces.

From value, reference points, offsets and logits, as the linear layers leave them, to the output, and back. `fused` is
`deformable_attention`, `pieces` softmax, addition and our operator, as `nn` did it before, and every other operator that is
installed, or that `--peer NAME=MODULE:FUNCTION` names, stands between the same pieces. µs of kernels by the profiler, fills not
counted, inputs warm in L2; 16-bit rows under autocast, where softmax gives float32, as a training step has them. Errors are of the output and of the gradients of value,
offsets and logits against float64 on the same GPU: the norm of the difference over the norm. (A point beside a pixel's center may be
taken on its other side, where its gradient is another; the largest error says only that there are such points.) Other operators get
locations and weights in value's dtype, as they ask. Rows are written as they come.
"""

import argparse
import json
import math
from collections.abc import Callable

import torch
from torch import Tensor

from msda_core.bench.operator import environment, operators
from msda_core.bench.timers import host, kernels
from msda_core.inputs import encoder_locations, pyramid
from msda_core.ops import deformable_attention, merging
from msda_core.ops.raw import at_least_float32, composed, located

__all__ = ["main", "measure", "raw_call"]

LEVELS = pyramid(800, 1333)
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
#: Name → batch items, queries (None: every pixel), coordinates of a reference point.
CALLS = {"encoder": (2, None, 2), "decoder": (4, 300, 2), "decoder of boxes": (4, 300, 4)}


def raw_call(name: str, dtype: torch.dtype, device: str = "cuda", levels: list[tuple[int, int]] = LEVELS) -> list:
    """value, level table, None, reference points, offsets of two pixels' spread, logits; and a gradient for the output."""
    B, Q, coords = CALLS[name]
    L, S = len(levels), sum(h * w for h, w in levels)
    draw = dict(device=device, generator=torch.Generator(device).manual_seed(0))
    if Q is None:
        Q = S
        reference = encoder_locations((B, Q, 1, L, 1, 2), levels, 0.05, **draw)[:, :, 0, :, 0]
    else:
        reference = torch.rand(B, Q, 1, coords, **draw).expand(B, Q, L, coords)
    value = torch.randn(B, S, 8, 32, **draw).to(dtype)
    offsets = (2 * torch.randn(B, Q, 8, L, 4, 2, **draw)).to(dtype)
    logits = torch.randn(B, Q, 8, L, 4, **draw).to(dtype)
    table = torch.tensor(levels, device=device)
    return [value, table, None, reference.contiguous(), offsets, logits], torch.randn(B, Q, 256, **draw).to(dtype)


def around(operator: Callable) -> Callable:
    """The pieces around any operator of the usual signature; its level starts are made for it."""

    def run(value: Tensor, shapes: Tensor, _: None, reference: Tensor, offsets: Tensor, logits: Tensor) -> Tensor:
        weights = logits.flatten(3).softmax(-1).unflatten(-1, logits.shape[3:])
        pixels = shapes.prod(1)
        locations = located(reference, at_least_float32(offsets), shapes)
        return operator(value, shapes, pixels.cumsum(0) - pixels, locations.to(value.dtype), weights.to(value.dtype))

    return run


def measure(run: Callable, call: list, grad_out: Tensor, exact: list[Tensor] | None) -> dict[str, float | list[float]]:
    """µs of kernels of forward, backward, and a step's host time; largest errors of out and gradients."""
    leaves = [t.detach().clone().requires_grad_() for t in (call[0], call[4], call[5])]
    dtype = call[0].dtype

    def out() -> Tensor:
        with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
            return run(leaves[0], *call[1:4], *leaves[1:])

    def forward() -> None:
        with torch.no_grad():
            out()

    def step() -> None:
        torch.autograd.grad(out(), leaves, grad_out)

    result = out()
    grads = torch.autograd.grad(result, leaves, grad_out.to(result.dtype), retain_graph=True)
    row: dict[str, float | list[float]] = {}
    if exact is not None:
        found = [result.detach(), *grads]
        errors = [((a.double() - b).norm() / b.norm()).item() for a, b in zip(found, exact)]
        if not errors[0] < 0.3:  # bfloat16 locations miss by a third of a pixel
            raise ValueError(f"errors {errors} against float64: not the same operator. Other locations, other weights?")
        row["errors"] = errors
    row["forward"] = kernels(forward)
    row["backward"] = kernels(lambda: torch.autograd.grad(result, leaves, grad_out, retain_graph=True))
    row["host"] = host(step, 20)[0]
    return row


def main(arguments: list[str] | None = None) -> None:
    """Measure and print; `--json FILE` keeps every row as it comes."""
    parser = argparse.ArgumentParser(prog="python -m msda_core.bench.module", description=__doc__.splitlines()[0])
    parser.add_argument("--call", nargs="+", choices=list(CALLS), default=list(CALLS))
    parser.add_argument("--dtype", nargs="+", choices=list(DTYPES), default=list(DTYPES))
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=MODULE:FUNCTION")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args(arguments)
    peers = operators(options.peer, LEVELS, False)
    ours = ("msda_core", "plain", "merged", "reference")
    others = {name: around(operator) for name, operator in peers.items() if name not in ours}
    ways = {"fused": deformable_attention, "pieces": composed, **others}
    rows: list[dict] = []
    for name in options.call:
        for dtype in options.dtype:
            call, grad_out = raw_call(name, DTYPES[dtype])
            double = [t.double() if isinstance(t, Tensor) and t.is_floating_point() else t for t in call]
            wanted = [double[n].requires_grad_() for n in (0, 4, 5)]
            result = composed(*double)
            exact = [result.detach(), *torch.autograd.grad(result, wanted, grad_out.double())]
            del double, wanted, result
            for wish in (None, True) if dtype == "fp32" and name == "encoder" else (None,):
                for way, run in ways.items():
                    try:
                        with merging(wish):
                            row = measure(run, call, grad_out, exact)
                    except Exception as error:  # a peer that cannot do this must not take the others with it
                        row = {"forward": math.nan, "backward": math.nan, "error": str(error).split("\n")[0][:200]}
                    rows.append({"call": name, "dtype": dtype, "way": way, "merging": wish, **row})
                    print(json.dumps(rows[-1]), flush=True)
                    if options.json:
                        with open(options.json, "w") as file:
                            json.dump({"environment": environment(), "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()

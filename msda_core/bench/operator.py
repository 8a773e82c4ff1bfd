"""`python -m msda_core.bench`: the operator beside whatever else is installed, honestly timed.

Every figure says what it counts:

    device    CUDA-graph replays, inputs warm in L2: no dispatch, no launch gaps; the backward with its zero-fill
    kernels   the profiler's kernel times of one eager call, fills and copies of the level table left out: what a kernel
              author compares, and a cross-check of `device`
    cold      one graph replay after 256 MiB have gone through L2
    host      what the CPU pays to enqueue an eager call, without waiting for it
    eager     an eager call, back to back, device and host overlapping as they do
    peak      memory the call adds
    error     largest error against float64, over the largest magnitude, on the first batch item

Inputs as in the decoder of Deformable DETR (300 queries, locations anywhere) and its encoder (every pixel a query,
points around it, `--spread` pixels wide). At encoder scale the operator has two ways, and both are shown: `plain` and
`merged` (`msda_core.kernels.merged`); `msda_core` is the one that it takes unasked. `--peer NAME=MODULE:FUNCTION` adds any function of the operator's signature, a learner's own included.
"""

import argparse
import importlib
import importlib.metadata
import json
import math
import multiprocessing
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from msda_core import reference
from msda_core.bench import timers
from msda_core.inputs import make_call, pyramid
from msda_core.ops import merging, multi_scale_deformable_attention

__all__ = [
    "PRESETS",
    "cpu_ratio",
    "make_inputs",
    "main",
    "measure",
    "plain_grid_sample",
]

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
PRESETS = ("decoder", "encoder")
M, D, K = 8, 32, 4

Operator = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def make_inputs(
    preset: str, dtype: torch.dtype, levels: list[tuple[int, int]], device: str, loc_dtype: torch.dtype | None = None,
    B: int | None = None, Q: int = 300, seed: int = 0, spread: float | str = 2.0,
) -> list[Tensor]:  # fmt: skip
    """The five tensors of a call, and a gradient for its output.

    decoder: B = 4, Q = 300, locations uniform in [0, 1]. encoder: B = 2, Q = S, locations as `inputs.encoder_locations` draws them.
    """
    common = dict(M=M, D=D, K=K, dtype=dtype, loc_dtype=loc_dtype, device=device, draw_on=device, seed=seed)
    if preset == "decoder":
        return list(make_call(levels, B=B or 4, Q=Q, margin=0.0, **common))
    return list(make_call(levels, B=B or 2, Q=None, spread=spread, **common))


# ------------------------------------------------------------------------------------------------- what is compared

#: The operator under the names of the table: as it chooses, and each of its ways at encoder scale.
OURS = ("msda_core", "plain", "merged")


def _one_way(merged: bool) -> Operator:
    def operator(value, shapes, starts, loc, attn):
        with merging(merged):
            return multi_scale_deformable_attention(value, shapes, starts, loc, attn)

    return operator


def operators(peers: list[str], levels: list[tuple[int, int]], compile_reference: bool) -> dict[str, Operator]:
    """Name → function. What is not installed is left out, and the table says so."""
    table: dict[str, Operator] = {"msda_core": multi_scale_deformable_attention}
    table |= {"plain": _one_way(False), "merged": _one_way(True)}
    table["reference"] = lambda v, sh, st, loc, a: reference.msda(v, levels, None, loc, a)
    if compile_reference:
        table["reference, compiled"] = torch.compile(table["reference"])
    try:
        from mmcv.ops.multi_scale_deform_attn import MultiScaleDeformableAttnFunction

        table["mmcv"] = lambda v, sh, st, loc, a: MultiScaleDeformableAttnFunction.apply(v, sh, st, loc, a, 64)
    except ImportError:
        pass
    try:
        from deformops.registry import MSDAMethod, msda

        table["deformops"] = lambda v, sh, st, loc, a: msda(v, sh, st, loc, a, method=MSDAMethod.LINEAR)
    except ImportError:
        pass
    for peer in peers:
        name, _, where = peer.partition("=")
        module, _, function = where.partition(":")
        if not function:
            raise ValueError(f"--peer must be NAME=MODULE:FUNCTION, got {peer!r}. Is the function's name missing?")
        table[name] = getattr(importlib.import_module(module), function)
    return table


def plain_grid_sample(value: Tensor, levels: list[tuple[int, int]], loc: Tensor, attn: Tensor) -> Tensor:
    """The composition everybody falls back to: one grid_sample a level, a stack, a weighted sum. Checks nothing."""
    B, _, heads, channels = value.shape
    Q, L, points = loc.shape[1], loc.shape[3], loc.shape[4]
    grids = 2 * loc - 1
    sampled = []
    for level, image in enumerate(value.split([h * w for h, w in levels], dim=1)):
        h, w = levels[level]
        image = image.flatten(2).transpose(1, 2).reshape(B * heads, channels, h, w)
        grid = grids[:, :, :, level].transpose(1, 2).flatten(0, 1)
        sampled.append(grid_sample(image, grid, mode="bilinear", padding_mode="zeros", align_corners=False))
    weights = attn.transpose(1, 2).reshape(B * heads, 1, Q, L * points)
    out = (torch.stack(sampled, dim=-2).flatten(-2) * weights).sum(-1).view(B, heads * channels, Q)
    return out.transpose(1, 2).contiguous()


def cpu_ratio(repeats: int = 41, backward: bool = True) -> float:
    """CPU time of the operator over the plain composition's, median over pairs of runs of a small decoder call.

    One thread, and that thread's own clock: other programs on the machine hardly matter.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _cpu_ratio(repeats, backward)
    finally:
        torch.set_num_threads(threads)


def _cpu_ratio(repeats: int, backward: bool) -> float:
    levels = pyramid(200, 333)
    value, shapes, starts, loc, attn, grad = make_inputs("decoder", torch.float32, levels, "cpu", B=2, Q=100)
    leaves = [t.requires_grad_(backward) for t in (value, loc, attn)]
    ways = (
        lambda: multi_scale_deformable_attention(value, shapes, starts, loc, attn),
        lambda: plain_grid_sample(value, levels, loc, attn),
    )
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats + 2):
        for way, record in zip(ways, times):
            begin = time.thread_time()
            out = way()
            if backward:
                torch.autograd.grad(out, leaves, grad)
            record.append(time.thread_time() - begin)
    return statistics.median(ours / plain for ours, plain in zip(times[0][2:], times[1][2:]))


# ----------------------------------------------------------------------------------------------------------- one row


def measure(operator: Operator, inputs: list[Tensor], quick: bool = False) -> dict[str, float]:
    """One row of the table: times in µs, peak memory in MiB, errors relative to the largest magnitude."""
    value, shapes, starts, loc, attn, grad = inputs
    leaves = [t.detach().clone().requires_grad_() for t in (value, loc, attn)]
    flush = torch.empty(2**26, dtype=torch.float32, device=value.device)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())

    with torch.cuda.stream(stream):
        torch.cuda.reset_peak_memory_stats()
        floor = torch.cuda.memory_allocated()
        out = operator(leaves[0], shapes, starts, leaves[1], leaves[2])
        grads = torch.autograd.grad(out, leaves, grad.view(out.shape), retain_graph=True)
        torch.cuda.synchronize()
        row = {"peak": (torch.cuda.max_memory_allocated() - floor) / 2**20}
        first = [t[:1].double() for t in (value, loc, attn)]
        exact = reference.exact(first[0], shapes, starts, first[1], first[2])
        exact_grads = reference.exact_gradients(
            first[0], shapes, starts, first[1], first[2], grad[:1].view(1, *out.shape[1:])
        )
        pairs = zip(("out", "value", "loc", "attn"), (out, *grads), (exact, *exact_grads))
        for name, ours, truth in pairs:
            error = (ours[:1].double() - truth).abs()
            if name == "loc":  # where a point lies within rounding of a pixel, its two one-sided slopes are both right
                error = error.flatten().kthvalue(max(1, int(0.999 * error.numel()))).values
            row[f"error_{name}"] = float((error.max() / truth.abs().max()).detach())
        del exact, exact_grads, first

    def forward():
        with torch.no_grad():
            operator(value, shapes, starts, loc, attn)

    def tracked():
        operator(leaves[0], shapes, starts, leaves[1], leaves[2])

    def backward():
        torch.autograd.grad(out, leaves, grad.view(out.shape), retain_graph=True)

    row |= timers.clock(forward, stream, flush, "fwd", quick)
    with torch.cuda.stream(stream):
        row["fwd_host_tracked"] = timers.host(tracked, 50)[0] if row["fwd_host"] < 2000 else math.nan
    row |= timers.clock(backward, stream, flush, "bwd", quick)
    return row


# -------------------------------------------------------------------------------------------------------------- main


def _inputs(preset: str, name: str, levels: list[tuple[int, int]], spread: float | str = 2.0) -> list[Tensor]:
    dtype, _, wide = name.partition("+")
    return make_inputs(preset, DTYPES[dtype], levels, "cuda", torch.float32 if wide else None, spread=spread)


def _spread(text: str) -> float | str:
    try:
        return text if text in ("initial", "uniform") else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"--spread must be pixels, 'initial' or 'uniform', got {text!r}") from None


def _compile_one(job: tuple) -> None:
    name, (preset, dtype), levels, peers = job
    value, shapes, starts, loc, attn, grad = _inputs(preset, dtype, levels)
    leaves = [t.requires_grad_() for t in (value, loc, attn)]
    operator = operators(peers, levels, False)[name]
    for _ in range(2):
        with torch.no_grad():
            operator(value, shapes, starts, loc, attn)
        out = operator(value, shapes, starts, loc, attn)
        torch.autograd.grad(out, leaves, grad.view(out.shape))


def compile_all(jobs: list[tuple]) -> None:
    """Run every case once in as many processes as there are cores, which leaves Triton's cache on disk filled."""
    workers = min(len(jobs), max(1, (os.cpu_count() or 2) // 2))
    if workers < 2:
        return
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        for future in [pool.submit(_compile_one, job) for job in jobs]:
            future.exception()  # what fails here fails again, and is reported, when it is timed


def _command() -> str:
    """The arguments, without the paths of this machine."""
    words = iter(sys.argv[1:])
    return " ".join(word for word in words if word not in ("--json", "--plot") or not next(words, None))


def environment() -> dict[str, str]:
    """What the figures depend on."""
    found = {"python": platform.python_version(), "torch": torch.__version__, "command": _command()}
    for package in ("triton", "mmcv", "deformops"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            pass
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
        found["capability"] = "{}.{}".format(*torch.cuda.get_device_capability())
        found["cuda"] = str(torch.version.cuda)
        try:
            import subprocess

            query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
            found["driver"] = subprocess.run(query, capture_output=True, text=True).stdout.split("\n")[0].strip()
        except OSError:
            pass
    return found


COLUMNS = ("device", "kernels", "cold", "host", "eager")


def table(rows: list[dict]) -> str:
    """The rows as text, a block for each preset and dtype, with the ratio of the best other to ours in brackets."""
    lines = []
    for key in dict.fromkeys((r["preset"], r["dtype"], r.get("spread")) for r in rows):
        block = [r for r in rows if (r["preset"], r["dtype"], r.get("spread")) == key]
        unit = "" if isinstance(key[2], str) else " pixels"
        lines.append(f"{key[0]}, {key[1]}" + (f", spread {key[2]}{unit}" if key[2] else "") + "   (µs)")
        head = [f"{way} {column}" for way in ("fwd", "bwd") for column in COLUMNS]
        lines.append(
            f"  {'':24s}" + "".join(f"{h:>12s}" for h in head) + f"{'peak MiB':>10s}{'err out':>9s}{'err value':>10s}"
        )
        for r in block:
            cells = "".join(f"{r[f'{way}_{c}']:12.1f}" for way in ("fwd", "bwd") for c in COLUMNS)
            lines.append(f"  {r['operator']:24s}{cells}{r['peak']:10.1f}{r['error_out']:9.0e}{r['error_value']:10.0e}")
        ours = {r["operator"]: r for r in block if r["operator"] in OURS}
        others = [r for r in block if r["operator"] not in OURS]
        for name, row in ours.items():
            if others and (name != "plain" or "msda_core" not in ours):
                lines.append(f"  kernels, best other over {name}: {_ratios(row, others)}")
        if {"plain", "merged"} <= set(ours):
            lines.append(f"  kernels, plain over merged: {_ratios(ours['merged'], [ours['plain']])}")
        if "msda_core" in ours:
            tracked = ours["msda_core"]["fwd_host_tracked"]
            lines.append(f"  host time of a forward that autograd tracks: {tracked:.1f}")
        lines.append("")
    return "\n".join(lines)


def _ratios(ours: dict, others: list[dict]) -> str:
    cells = []
    for way in ("fwd", "bwd"):
        best = min(others, key=lambda r: r[f"{way}_kernels"])
        cells.append(f"{way} {best[f'{way}_kernels'] / ours[f'{way}_kernels']:.2f}x of {best['operator']}")
    return ", ".join(cells)


def draw(rows: list[dict], path: str) -> None:
    """Bars of the kernel times, a panel for each preset and direction."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    presets = list(dict.fromkeys(r["preset"] for r in rows))
    figure, axes = plt.subplots(len(presets), 2, figsize=(11, 3.2 * len(presets)), squeeze=False, layout="constrained")
    for line, preset in zip(axes, presets):
        for axis, way in zip(line, ("fwd", "bwd")):
            block = [r for r in rows if r["preset"] == preset]
            several = len({r.get("spread") for r in block}) > 1
            names = [f"{r['operator']} {r['dtype']}" + (f", {r['spread']}" if several else "") for r in block]
            values = [r[f"{way}_kernels"] for r in block]
            bars = axis.barh(names, values, color=["C0" if r["operator"] in OURS else "C7" for r in block])
            axis.bar_label(bars, fmt="%.1f", padding=3)
            axis.set_xscale("log")
            axis.invert_yaxis()
            axis.set_xlabel("µs of kernels, log scale")
            axis.set_title(f"{preset}, {'forward' if way == 'fwd' else 'backward'}")
    figure.savefig(path)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m msda_core.bench", description=__doc__.split("\n")[0])
    parser.add_argument("--preset", nargs="+", choices=PRESETS, default=list(PRESETS))
    parser.add_argument("--resolution", default="800x1333", help="of the image, HxW (default 800x1333)")
    parser.add_argument("--dtypes", nargs="+", choices=[*DTYPES, "fp16+loc32", "bf16+loc32"], default=list(DTYPES))
    parser.add_argument(
        "--spread", nargs="+", type=_spread, default=[2.0], metavar="PIXELS",
        help="of the encoder's offsets, in pixels; also 'initial' (as Deformable DETR starts) and 'uniform' (default 2)",
    )  # fmt: skip
    parser.add_argument("--only", nargs="+", metavar="NAME", help="operators to run, by the names in the table")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=MODULE:FUNCTION")
    parser.add_argument("--compile", action="store_true", help="also the reference under torch.compile (slow to start)")
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--json", metavar="PATH", help="write every figure")
    parser.add_argument("--plot", metavar="PATH", help="draw the kernel times")
    parser.add_argument(
        "--cpu", action="store_true", help="only the CPU path against the plain grid_sample composition"
    )
    options = parser.parse_args(arguments)
    try:
        levels = pyramid(*map(int, options.resolution.lower().split("x")))
    except (TypeError, ValueError):
        parser.error(f"--resolution must be HxW in pixels, such as 800x1333, got {options.resolution!r}")

    if options.cpu:
        report = {"environment": environment(), "cpu_ratio": {}}
        for backward in (False, True):
            ratio = cpu_ratio(backward=backward)
            report["cpu_ratio"]["forward and backward" if backward else "forward"] = ratio
            print(
                f"CPU, {'forward and backward' if backward else 'forward'}: {ratio:.2f}x the plain composition's time"
            )
        if options.json:
            with open(options.json, "w") as file:
                json.dump(report, file, indent=1)
        return 0
    if not torch.cuda.is_available():
        print("python -m msda_core.bench needs a CUDA GPU, found none. Nothing was timed; --cpu times the CPU path.")
        return 1

    found = operators(options.peer, levels, options.compile)
    names = options.only or list(found)
    unknown = [name for name in names if name not in found]
    if unknown:
        parser.error(f"--only must name installed operators, expected some of {list(found)}, got {unknown}")
    missing = [name for name in ("mmcv", "deformops") if name not in found]
    env = environment()
    print("  ".join(f"{k} {v}" for k, v in env.items()) + (f"  not installed: {', '.join(missing)}" if missing else ""))
    cases = [(preset, dtype) for preset in options.preset for dtype in options.dtypes]
    compile_all([(name, case, levels, options.peer) for case in cases for name in names if "compiled" not in name])
    rows = []
    spreads = [(case, s) for case in cases for s in (options.spread if case[0] == "encoder" else [None])]
    for (preset, name), spread in spreads:
        for operator in names:
            if preset == "decoder" and operator in ("plain", "merged"):
                continue  # there is one way
            begin = time.perf_counter()
            try:
                row = measure(found[operator], _inputs(preset, name, levels, spread), options.quick)
            except Exception as error:  # a peer that cannot do this dtype must not take the others with it
                if operator in OURS:
                    raise
                print(f"  {operator}, {preset}, {name}: {type(error).__name__}: {str(error).splitlines()[0][:200]}")
                continue
            rows.append({"preset": preset, "dtype": name, "operator": operator, "spread": spread, **row})
            print(
                f"  {preset} {name} {spread or ''} {operator}: kernels fwd {row['fwd_kernels']:.1f} bwd {row['bwd_kernels']:.1f} µs, "
                f"took {time.perf_counter() - begin:.1f} s",
                flush=True,
            )
            if options.json:
                with open(options.json, "w") as file:
                    json.dump({"environment": env, "resolution": options.resolution, "rows": rows}, file, indent=1)
    print(table(rows))
    if options.plot:
        draw(rows, options.plot)
    return 0

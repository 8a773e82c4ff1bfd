"""A GPU for scripts that ask for one, on a machine that has none.

While a script runs, `device="cuda"`, `.cuda()` and `.to("cuda")` give host tensors that say they are on `cuda:0`;
`torch.cuda.is_available()` is True and its properties are those of the target; Triton's driver answers for the target.
Nothing can be timed: `triton.testing.do_bench` runs its function once and gives the model's estimate of the launches in
it, and the sweeps of `triton.testing.perf_report` are left out; what
`torch.compile` gives refuses to be called, with what to do instead. On a machine with a GPU nothing of this happens.
"""

import contextlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from msda_core.device import load_triton
from msda_core.machine import errors
from msda_core.machine.model.roofline import GPUS, find_gpu
from msda_core.machine.run.standin import StandIn, answering

__all__ = ["gpu_of", "pretending"]

_DEVICE = torch.device("cuda", 0)
_HOST = torch.device("cpu")


def _host(value: Any) -> Any:
    """A device that names a GPU, as the host; everything else as it is."""
    if isinstance(value, torch.device) and value.type == "cuda":
        return _HOST
    if isinstance(value, str) and (value == "cuda" or value.startswith("cuda:")):
        return _HOST
    return value


class _HostTensors(TorchFunctionMode):
    """Tensors asked for on a GPU are made on the host, and say otherwise."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is torch.device:
            return func(*args, **kwargs)
        if func == torch.Tensor.device.__get__:
            return _DEVICE if func(*args).type == "cpu" else func(*args)
        if func == torch.Tensor.is_cuda.__get__:
            return func(*args) or torch.Tensor.device.__get__(args[0]).type == "cpu"
        if func == torch.Tensor.is_cpu.__get__:
            return False
        if func in (torch.Tensor.cuda, torch.Tensor.pin_memory):
            return args[0]
        if func is torch.Tensor.get_device:
            return 0
        if func is torch.Tensor.record_stream:
            return None
        if "device" in kwargs:
            device = kwargs["device"]
            kwargs["device"] = _HOST if isinstance(device, int) else _host(device)
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return func(*(_host(a) for a in args), **kwargs)


class _Timer:
    """Stands for a CUDA event or stream: everything has happened already, in no time."""

    cuda_stream = 0

    def __init__(self, *args: Any, **kwargs: Any):
        pass

    def elapsed_time(self, other: Any) -> float:
        """Nothing is timed."""
        return 0.0

    def query(self) -> bool:
        """It has happened."""
        return True

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        return None

    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        pass

    record = synchronize = wait = wait_event = wait_stream = _nothing


def _nothing() -> Callable[..., None]:
    """A function that does nothing; a new one each time, since torch keeps a register of its functions."""
    return lambda *args, **kwargs: None


def _empty_strided(size, stride, dtype) -> torch.Tensor:
    """What the code that Inductor writes makes its buffers with."""
    return torch.empty_strided(size, stride, dtype=dtype)


def _compile(model: Any = None, **options: Any) -> Any:
    """In place of `torch.compile`: what it returns says, when it is called, that Inductor cannot write Triton here."""
    if model is None:
        return lambda model: _compile(model, **options)

    def refused(*args: Any, **kwargs: Any) -> Any:
        raise errors.Unsupported(
            f"{getattr(model, '__name__', type(model).__name__)} is compiled by torch.compile, which writes no Triton where "
            "there is no GPU. Run the output_code.py that it writes on one (TORCH_COMPILE_DEBUG=1): its kernels are counted."
        )

    return refused


def gpu_of(capability: int):
    """The GPU whose constants stand for a compute capability: the first that has it, else the nearest below."""
    known = sorted(GPUS.values(), key=lambda g: -g.capability)
    same = next((g for g in GPUS.values() if g.capability == capability), None)
    return same or next((g for g in known if g.capability <= capability), find_gpu("H200"))


def _properties(capability: int) -> dict[str, int]:
    gpu = gpu_of(capability)
    optin = {164: 163, 228: 227, 100: 99, 64: 64}.get(gpu.shared // 1024, gpu.shared // 1024 - 1) * 1024
    return {
        "multiprocessor_count": gpu.sms, "max_num_regs": gpu.registers, "max_shared_mem": optin, "warpSize": 32,
        "sm_clock_rate": int(gpu.clock * 1e6), "mem_clock_rate": int(gpu.dram / 1e3 / 1024 * 4), "mem_bus_width": 5120,
    }  # fmt: skip


def _device_properties(capability: int) -> types.SimpleNamespace:
    gpu, given = gpu_of(capability), _properties(capability)
    major, minor = divmod(capability, 10)
    return types.SimpleNamespace(
        name=f"NVIDIA {gpu.name} (paper)", major=major, minor=minor, multi_processor_count=gpu.sms, warp_size=32,
        total_memory=80 << 30, L2_cache_size=gpu.l2, regs_per_multiprocessor=gpu.registers,
        max_threads_per_multi_processor=32 * gpu.warps, shared_memory_per_multiprocessor=gpu.shared,
        shared_memory_per_block=48 * 1024, shared_memory_per_block_optin=given["max_shared_mem"], is_integrated=0,
        gcnArchName="", clock_rate=int(gpu.clock * 1e6),
    )  # fmt: skip


@contextlib.contextmanager
def pretending(capability: int, estimated: Callable[[], float]) -> Iterator[None]:
    """A GPU of this compute capability, for a while; does nothing where there is a real one.

    Args:
        estimated: seconds that the launches so far are estimated to take, for `do_bench`.
    """
    if torch.cuda.is_available():
        yield
        return
    load_triton()
    import triton.testing

    patches: list[tuple[Any, str, Any]] = []

    def patch(owner: Any, **names: Any) -> None:
        for name, value in names.items():
            patches.append((owner, name, getattr(owner, name, _MISSING)))
            setattr(owner, name, value)

    def bench(fn, *args, quantiles=None, return_mode="mean", **kwargs):
        before = estimated()
        fn()
        spent = 1e3 * (estimated() - before)
        if quantiles is not None:
            return [spent] * len(quantiles) if len(quantiles) != 1 else spent
        return [spent] if return_mode == "all" else spent

    def sweep(self, *args, **kwargs):
        print("Left out: a sweep of triton.testing.perf_report. Nothing can be timed here.")
        return [] if kwargs.get("return_df") else None

    properties = _device_properties(capability)
    patch(
        torch.cuda, is_available=lambda: True, device_count=lambda: 1, current_device=lambda: 0, set_device=_nothing(),
        synchronize=_nothing(), empty_cache=_nothing(), get_device_name=lambda device=None: properties.name,
        get_device_capability=lambda device=None: divmod(capability, 10), is_initialized=lambda: True, init=_nothing(),
        get_device_properties=lambda device=None: properties, Event=_Timer, Stream=_Timer, device=_Timer,
        device_of=_Timer, stream=_Timer, current_stream=_Timer, default_stream=_Timer, manual_seed=_nothing(),
        manual_seed_all=_nothing(), is_bf16_supported=lambda *a, **k: capability >= 80, memory_allocated=lambda d=None: 0,
        max_memory_allocated=lambda d=None: 0, reset_peak_memory_stats=_nothing(), ipc_collect=_nothing(),
        is_current_stream_capturing=lambda: False, _exchange_device=lambda index: 0,
        _maybe_exchange_device=lambda index: 0, mem_get_info=lambda d=None: (80 << 30, 80 << 30),
    )  # fmt: skip
    patch(torch.cuda, _DeviceGuard=_Timer)
    patch(torch.version, cuda="12.8")
    patch(torch._C._dynamo.guards, _empty_strided_cuda=_empty_strided)
    patch(torch, set_default_device=_nothing(), compile=_compile)
    patch(torch._C, _cuda_getCurrentRawStream=lambda index=0: 0)
    patch(triton.testing, do_bench=bench, do_bench_cudagraph=bench)
    patch(triton.testing.Mark, run=sweep)
    driver = StandIn(capability, _properties(capability))
    try:
        with answering(driver, instead=True), _HostTensors():
            yield
    finally:
        for owner, name, value in reversed(patches):
            if value is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


_MISSING = object()

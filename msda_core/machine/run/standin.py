"""Triton's driver where there is no GPU: it answers questions about the target, and launches nothing."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from msda_core.device import load_triton

__all__ = ["StandIn", "answering"]


class StandIn:
    """What kernels, launchers and Triton itself ask of a driver, answered for one target.

    Args:
        capability: 90 for sm_90; properties: of the device, by the names that Triton's drivers use.
    """

    def __init__(self, capability: int, properties: dict[str, int]):
        self.capability, self.properties = capability, properties
        self.utils = self

    def get_current_target(self) -> Any:
        """The target, as Triton's `GPUTarget`."""
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)

    def get_active_torch_device(self) -> torch.device:
        """The device on which a script puts its tensors."""
        return torch.device("cuda", 0)

    def get_device_capability(self, device: Any = None) -> tuple[int, int]:
        """Major and minor number."""
        return divmod(self.capability, 10)

    def get_current_device(self) -> int:
        """There is one."""
        return 0

    def set_current_device(self, device: Any) -> None:
        """There is one."""

    def get_current_stream(self, device: Any = None) -> int:
        """The default stream."""
        return 0

    def get_device_properties(self, device: Any = None) -> dict[str, int]:
        """Multiprocessors, registers, shared memory, by the names of Triton's drivers."""
        return dict(self.properties)

    def get_device_interface(self) -> Any:
        """The module that synchronises."""
        return torch.cuda

    def get_benchmarker(self) -> Any:
        """What times kernels."""
        import triton.testing

        return triton.testing.do_bench

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        """Something to clear."""
        return torch.empty(1)

    def clear_cache(self, cache: Any) -> None:
        """There is no cache."""


@contextlib.contextmanager
def answering(driver: StandIn, instead: bool = False) -> Iterator[None]:
    """Put a driver in Triton's hands where it has none (or `instead` of the one it has), for a while."""
    load_triton()
    from triton.runtime.driver import driver as config

    before = config._active
    if before is None and not instead:
        with contextlib.suppress(RuntimeError):
            before = config.active
    if before is not None and not instead:
        yield
        return
    config._active = driver
    try:
        yield
    finally:
        config._active = before

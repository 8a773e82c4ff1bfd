"""Reductions and scans with a function of the kernel's own: whole halves of a block at a time, as the compiler has it.

The interpreter calls the function element by element; 512 elements took half a second.
"""

from typing import Any

import numpy as np

__all__ = ["reduce", "scan"]


def reduce(op: Any, inputs: tuple) -> list:
    """In place of `ReduceOps.generic_reduce`: the halves of the axis are combined until one element is left."""
    axis, data = op.axis, [x.handle.data for x in inputs]
    rank = data[0].ndim
    if axis is None:
        data, axis = [d.reshape(-1) for d in data], 0
    data = [np.moveaxis(d, axis, 0) for d in data]
    while len(data[0]) > 1:
        half = len(data[0]) // 2
        odd = [d[2 * half :] for d in data]
        data = _combine(op, inputs, [d[:half] for d in data], [d[half : 2 * half] for d in data])
        data = [np.concatenate([d, rest]) for d, rest in zip(data, odd)]
    results = []
    for x, d in zip(inputs, data):
        result = d[0]
        if op.keep_dims:
            result = np.expand_dims(result, axis if op.axis is not None else tuple(range(rank)))
        results.append(op.to_tensor(result if np.ndim(result) else result.item(), x.dtype))
    return results


def scan(op: Any, inputs: tuple) -> list:
    """In place of `ScanOps.generic_scan`: each element takes in the one 1, 2, 4, ... before it."""
    data = [np.moveaxis(x.handle.data, op.axis, 0).copy() for x in inputs]
    reach = 1
    while reach < len(data[0]):
        before = [np.concatenate([d[:reach], d[:-reach]]) for d in data]  # as long as the block: a power of two
        data = [np.concatenate([d[:reach], new[reach:]]) for d, new in zip(data, _combine(op, inputs, before, data))]
        reach *= 2
    return [op.to_tensor(np.ascontiguousarray(np.moveaxis(d, 0, op.axis)), x.dtype) for x, d in zip(inputs, data)]


def _combine(op: Any, inputs: tuple, first: list[np.ndarray], second: list[np.ndarray]) -> list[np.ndarray]:
    """The kernel's function on two blocks, each of as many parts as there are inputs."""
    one, two = ([op.to_tensor(d, x.dtype) for d, x in zip(part, inputs)] for part in (first, second))
    result = op.combine_fn.fn(*one, *two)
    parts = result if isinstance(result, tuple) else (result,)
    return [
        np.broadcast_to(r.handle.data if hasattr(r, "handle") else np.asarray(getattr(r, "value", r)), d.shape).astype(
            d.dtype
        )
        for r, d in zip(parts, first)
    ]

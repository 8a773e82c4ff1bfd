"""Lab 08, Concurrent writes: what is right."""

import torch
from torch import Tensor

from msda_core import reference


def _counted(index: Tensor, hist: Tensor) -> Tensor:
    return hist + torch.bincount(index.long(), minlength=hist.numel()).to(hist.dtype)


def _scattered(index: Tensor, weight: Tensor, out: Tensor) -> Tensor:
    return out.index_add(0, index.long(), weight)


def _summed(index: Tensor, weight: Tensor, size: int) -> Tensor:
    return torch.zeros(size, dtype=weight.dtype, device=weight.device).index_add(0, index, weight)


def _gradients(grad_out, value, spatial_shapes, level_start_index, sampling_locations, attention_weights):
    likes = (value, sampling_locations, attention_weights)
    grads = reference.exact_gradients(
        value, spatial_shapes, level_start_index, sampling_locations, attention_weights, grad_out
    )
    return tuple(grad.to(like.dtype) for grad, like in zip(grads, likes))

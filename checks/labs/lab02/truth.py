"""Lab 02, Tensors are pointers: what is right."""

from msda_core import reference

# --- flat_offset ----------------------------------------------------------------------------------------------------


def _dot(index, strides):
    return sum(i * stride for i, stride in zip(index, strides))


# --- corner_offsets -------------------------------------------------------------------------------------------------


def _corner_offsets(level_start, W, x0, y0, row_stride):
    first = (level_start + y0 * W + x0) * row_stride
    return first, first + row_stride, first + W * row_stride, first + (W + 1) * row_stride


def _flat_reference(
    memory, shape, strides, spatial_shapes, level_start_index, sampling_locations, attention_weights
):  # fmt: skip
    value = memory.as_strided(shape, strides)
    return reference.msda(value, spatial_shapes, level_start_index, sampling_locations, attention_weights)


# --- first_overflow -------------------------------------------------------------------------------------------------


def _overflow(B, S, M, D):
    """Whether 32 bits number all elements, and the first batch that is too large."""
    first = 2**31 // (S * M * D) + 1
    return B < first, first

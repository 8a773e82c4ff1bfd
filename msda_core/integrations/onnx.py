"""The operator in ONNX: as standard operators, or as one node of a plugin.

    import msda_core.integrations.onnx as msda        # tells the exporter

    torch.onnx.export(model, args, "model.onnx", dynamo=True)
    torch.onnx.export(model, args, "model.onnx", dynamo=True, custom_translation_table=msda.PLUGIN)

Unasked the exporter writes one GridSample a level, which every runtime of opset 20 has; the levels' sizes are those of the export.
`PLUGIN` writes one node `MultiscaleDeformableAttnPlugin_TRT`, the name and the inputs of TensorRT's plugin: value (B, S, M, D),
shapes (L, 2) and starts (L,) int32, locations (B, Q, M, L, K, 2), weights (B, Q, M, L, K); its output is (B, Q, M, D).

Pass `spatial_shapes` as numbers (a list), or as a buffer of the model: a graph of ONNX cannot be cut by sizes that are read when
it runs. Needs `pip install msda-core[onnx]`. Where PyTorch keeps its table of translations elsewhere one day, `REGISTERED` is
False, and `TRANSLATIONS` goes to `custom_translation_table` as `PLUGIN` does.
"""

from collections.abc import Callable
from typing import Any

from msda_core.ops import registry

__all__ = ["PLUGIN", "REGISTERED", "TRANSLATIONS"]


def _grid_sample(
    value: Any,
    spatial_shapes: Any,
    level_start_index: Any,
    sampling_locations: Any,
    attention_weights: Any,
    fp32_grad_accum: bool | None = None,
    deterministic: bool | None = None,
    merged: bool | None = None,
) -> Any:
    from onnxscript import opset20

    op: Any = opset20
    B, _, M, D = value.shape
    _, Q, _, L, K, _ = sampling_locations.shape
    _static("heads, channels, levels and points", M, D, L, K)

    def ints(*numbers: int) -> Any:
        return op.Constant(value_ints=list(numbers))

    shapes = op.Cast(spatial_shapes, to=7)
    if level_start_index is None:
        pixels = op.ReduceProd(shapes, ints(1), keepdims=0)
        level_start_index = op.CumSum(pixels, op.Constant(value_int=0), exclusive=1)
    starts = op.Cast(level_start_index, to=7)
    two = op.CastLike(op.Constant(value_float=2.0), sampling_locations)
    grid = op.Sub(op.Mul(sampling_locations, two), op.CastLike(op.Constant(value_float=1.0), sampling_locations))
    grid = op.Transpose(op.CastLike(grid, value), perm=[0, 2, 1, 3, 4, 5])  # (B, M, Q, L, K, 2)
    queries = op.Shape(sampling_locations, start=1, end=2)
    samples = []
    for level in range(L):
        size = op.Reshape(op.Gather(shapes, ints(level), axis=0), ints(2))
        first = op.Gather(starts, ints(level), axis=0)
        last = op.Add(first, op.ReduceProd(size, ints(0), keepdims=1))
        image = op.Transpose(op.Slice(value, first, last, ints(1)), perm=[0, 2, 3, 1])  # (B, M, D, H*W)
        image = op.Reshape(image, op.Concat(ints(-1, D), size, axis=0))  # (B*M, D, H, W)
        here = op.Gather(grid, op.Constant(value_int=level), axis=3)  # (B, M, Q, K, 2)
        here = op.Reshape(here, op.Concat(ints(-1), queries, ints(K, 2), axis=0))
        samples.append(op.GridSample(image, here, mode="linear", padding_mode="zeros", align_corners=0))
    sampled = op.Concat(*samples, axis=3)  # (B*M, D, Q, L*K)
    weights = op.Transpose(op.CastLike(attention_weights, value), perm=[0, 2, 1, 3, 4])
    weights = op.Reshape(weights, op.Concat(ints(-1, 1), queries, ints(L * K), axis=0))
    out = op.ReduceSum(op.Mul(sampled, weights), ints(3), keepdims=0)  # (B*M, D, Q)
    out = op.Reshape(out, op.Concat(ints(-1, M * D), queries, axis=0))
    return op.Transpose(out, perm=[0, 2, 1])


def _plugin(
    value: Any,
    spatial_shapes: Any,
    level_start_index: Any,
    sampling_locations: Any,
    attention_weights: Any,
    fp32_grad_accum: bool | None = None,
    deterministic: bool | None = None,
    merged: bool | None = None,
) -> Any:
    from onnxscript import opset20

    op: Any = opset20
    _, _, M, D = value.shape
    _static("heads and channels", M, D)
    if level_start_index is None:
        pixels = op.ReduceProd(op.Cast(spatial_shapes, to=7), op.Constant(value_ints=[1]), keepdims=0)
        level_start_index = op.CumSum(pixels, op.Constant(value_int=0), exclusive=1)
    shapes, starts = op.Cast(spatial_shapes, to=6), op.Cast(level_start_index, to=6)
    out = _plugin_node()(value, shapes, starts, sampling_locations, attention_weights)
    return op.Reshape(out, op.Constant(value_ints=[0, 0, M * D]))


def _plugin_node() -> Any:
    """The plugin as an operator: its types as TensorRT has them."""
    from onnx import defs
    from onnxscript import values

    names = ("value", "spatial_shapes", "level_start_index", "sampling_locations", "attention_weights")
    whole = ("spatial_shapes", "level_start_index")
    schema = defs.OpSchema(
        "MultiscaleDeformableAttnPlugin_TRT", "trt.plugins", 1,
        inputs=[defs.OpSchema.FormalParameter(name, "tensor(int32)" if name in whole else "T") for name in names],
        outputs=[defs.OpSchema.FormalParameter("output", "T")],
        type_constraints=[("T", ["tensor(float)", "tensor(float16)"], "")],
    )  # fmt: skip
    return values.Op(values.Opset("trt.plugins", 1), schema.name, schema)


def _static(what: str, *sizes: Any) -> None:
    if not all(isinstance(size, int) for size in sizes):
        raise ValueError(f"{what} must be fixed in an ONNX graph, got {sizes}. Are they among the dynamic shapes?")


#: For `torch.onnx.export(custom_translation_table=...)`: one GridSample a level, of the standard operators of opset 20.
TRANSLATIONS: dict[Callable, Callable] = {registry.forward.default: _grid_sample}
#: Likewise: one node of TensorRT's plugin.
PLUGIN: dict[Callable, Callable] = {registry.forward.default: _plugin}


def _register() -> bool:
    """Put the translations where PyTorch's own are, which each export reads; a custom table still goes before them."""
    try:
        from torch.onnx._internal.exporter._torchlib._torchlib_registry import onnx_impl
    except ImportError:
        return False
    for target, translation in TRANSLATIONS.items():
        onnx_impl(target, trace_only=True)(translation)
    return True


#: Whether `torch.onnx.export(dynamo=True)` knows the operator without a table.
REGISTERED = _register()

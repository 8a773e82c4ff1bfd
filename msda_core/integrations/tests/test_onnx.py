"""The operator in ONNX: what onnxruntime computes is what eager computes, and the plugin's node has its inputs."""

import numpy as np
import pytest
import torch

onnxruntime = pytest.importorskip("onnxruntime", reason="not run: needs onnxruntime")
pytest.importorskip("onnxscript", reason="not run: needs onnxscript")

from msda_core.inputs import make_call  # noqa: E402
from msda_core.integrations import onnx as integration  # noqa: E402
from msda_core.nn import MSDeformAttn  # noqa: E402
from msda_core.ops import multi_scale_deformable_attention  # noqa: E402

LEVELS = [(4, 6), (3, 2)]


class Attend(torch.nn.Module):
    def forward(self, value, loc, attn):
        return multi_scale_deformable_attention(value, LEVELS, None, loc, attn)


def export(model, args, table=None, **options):
    """The default exporter: it knows the operator since `integrations.onnx` was imported."""
    program = torch.onnx.export(
        model.eval(), args, dynamo=True, custom_translation_table=table, verbose=False, **options
    )
    return program.model_proto


def run(proto, *args):
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {i.name: a.detach().numpy() for i, a in zip(session.get_inputs(), args)})[0]


def test_onnxruntime_computes_what_eager_computes_for_any_batch_and_number_of_queries():
    assert integration.REGISTERED
    torch.manual_seed(0)
    layer = MSDeformAttn(16, 2, 2, 3)
    table = torch.tensor(LEVELS)

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, query, points, value):
            return self.layer(query, points, value, table)

    def inputs(B, Q):
        return torch.randn(B, Q, 16), torch.rand(B, Q, 2, 2), torch.randn(B, 30, 16)

    B, Q = torch.export.Dim("B", min=1), torch.export.Dim("Q", min=1)
    proto = export(Layer(), inputs(2, 5), dynamic_shapes=({0: B, 1: Q}, {0: B, 1: Q}, {0: B}))
    assert [node.op_type for node in proto.graph.node].count("GridSample") == 2
    for sizes in ((2, 5), (3, 7)):
        args = inputs(*sizes)
        args[1][0, 0] = torch.tensor([7.0, -3.0])  # far outside
        np.testing.assert_allclose(run(proto, *args), Layer()(*args).detach().numpy(), rtol=1e-3, atol=1e-5)


def test_the_plugins_node():
    call = make_call(LEVELS, B=2, Q=5, M=2, D=8, K=3)
    proto = export(Attend(), (call.value, call.loc, call.attn), integration.PLUGIN)
    [node] = [node for node in proto.graph.node if node.op_type == "MultiscaleDeformableAttnPlugin_TRT"]
    assert len(node.input) == 5 and node.domain == "trt.plugins"
    kinds = {i.name: i.data_type for i in proto.graph.initializer}
    assert [kinds.get(name) for name in node.input[1:3]] == [6, 6]  # int32

"""The repository for the Hub's loaders: its documented rules, and a load as they do it."""

import ast
import importlib.util
import json
import sys

import pytest
import torch

from msda_core.inputs import make_call
from msda_core.integrations import hub
from msda_core.ops import multi_scale_deformable_attention


@pytest.fixture(scope="module")
def variant(tmp_path_factory):
    return hub.write(tmp_path_factory.mktemp("hub"))


def test_it_imports_nothing_but_itself_torch_and_triton(variant):
    """Rules of kernels 0.17: standard library, torch, and the kernel by relative names. numpy is the interpreter's."""
    allowed = {*sys.stdlib_module_names, "torch", "triton"}
    for file in variant.rglob("*.py"):
        tree = ast.parse(file.read_text())
        inner = {n for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) for n in ast.walk(f)}
        unread = {
            n for i in ast.walk(tree) if isinstance(i, ast.If) and "TYPE_CHECKING" in ast.dump(i.test) for n in i.body
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and not node.level:
                found = {node.module}
            elif isinstance(node, ast.Import) and node not in unread:
                found = {alias.name for alias in node.names}
            else:
                continue
            more = {"numpy"} if node in inner else set()
            assert {name.partition(".")[0] for name in found} <= allowed | more, (file.name, found)


def test_layout_and_metadata(variant):
    assert variant.parts[-2:] == ("build", "torch-universal")
    metadata = json.loads((variant / "metadata.json").read_text())
    assert metadata["name"] == "msda-core" and metadata["python-depends"] == [] and metadata["license"] == "MIT"
    layers = ast.parse((variant / "layers.py").read_text())
    [layer] = [node for node in layers.body if isinstance(node, ast.ClassDef)]
    methods = [node.name for node in layer.body if isinstance(node, ast.FunctionDef)]
    variables = [node.target.id for node in layer.body if isinstance(node, ast.AnnAssign)]
    assert methods == ["forward"] and variables == ["has_backward", "can_torch_compile"]  # a pure layer
    with pytest.raises(ValueError, match="must not exist yet.*another version"):
        hub.write(variant.parent.parent)


def load(name, file):
    spec = importlib.util.spec_from_file_location(name, file)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_loaded_beside_the_package_it_has_operators_of_its_own(variant):
    unique = json.loads((variant / "metadata.json").read_text())["id"]
    kernel = load(unique, variant / "__init__.py")  # as kernels 0.17 does
    old = load("msda_core_old_loader", variant / "msda_core" / "__init__.py")  # as kernels before 0.11 did
    assert old.multi_scale_deformable_attention is kernel.multi_scale_deformable_attention
    assert kernel.multi_scale_deformable_attention is not multi_scale_deformable_attention
    call = make_call()
    expected = multi_scale_deformable_attention(*call.inputs)
    layer = kernel.layers.MultiScaleDeformableAttention()
    levels = [(4, 6), (3, 2)]
    value = call.value.requires_grad_()
    out = layer(value, call.shapes, levels, call.starts, call.loc, call.attn)
    assert torch.equal(out, expected)
    out.sum().backward()
    program = torch.export.export(Whole(layer, levels), (call.value.detach(), call.shapes, call.loc, call.attn))
    assert f"{unique}.forward" in str(program.graph) and "msda_core.forward" not in str(program.graph)


class Whole(torch.nn.Module):
    def __init__(self, layer, levels):
        super().__init__()
        self.layer, self.levels = layer, levels

    def forward(self, value, shapes, loc, attn):
        return self.layer(value, shapes, self.levels, None, loc, attn)

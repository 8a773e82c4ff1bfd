"""Every family of transformers that has the operator, its attention layer with random weights: stock against patched."""

import copy
import importlib
import importlib.util
import os
import pathlib
import re
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from msda_core.integrations import transformers as integration

if importlib.util.find_spec("transformers") is None:
    pytest.skip("not run: needs transformers", allow_module_level=True)

from msda_core.integrations.tests import families  # noqa: E402

LEVELS = [(5, 7), (3, 4), (2, 2)]
S, C, Q = sum(h * w for h, w in LEVELS), 16, 6
LAYER = re.compile(r"^class (\w+Multi[sS]caleDeformableAttention)\(", re.M)


def find_families() -> dict[str, str]:
    """Family → its attention layer: whatever modeling file has the operator, under any of its names."""
    models = pathlib.Path(importlib.util.find_spec("transformers").submodule_search_locations[0]) / "models"
    found = {}
    for file in sorted(models.glob("*/modeling_*.py")):
        text = file.read_text(encoding="utf-8")
        if re.search(r"multi_scale_deformable_attention|class MultiScaleDeformableAttention", text):
            found[file.parent.name] = LAYER.search(text)[1]
    return found


FAMILIES = find_families()


def make(family: str, points=3, method="default") -> nn.Module:
    """The layer in a model of its own; its offsets and weights depend on the query."""
    kind = getattr(importlib.import_module(f"transformers.models.{family}.modeling_{family}"), FAMILIES[family])
    config = SimpleNamespace(
        d_model=C, num_feature_levels=3, decoder_n_levels=3, decoder_attention_heads=2, encoder_attention_heads=2,
        decoder_n_points=points, decoder_method=method, decoder_offset_scale=0.5, disable_custom_kernels=True,
        decoder_cross_attention_heads=2, decoder_self_attention_heads=2, cross_attention_heads=2,
    )  # fmt: skip
    torch.manual_seed(0)
    if family in ("rt_detr_v2", "d_fine", "deimv2"):
        layer = kind(config)
    elif family in ("mask2former", "oneformer"):
        layer = kind(embed_dim=C, num_heads=2, n_levels=3, n_points=points)
    else:
        layer = kind(config, num_heads=2, n_points=points)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    return nn.ModuleDict({"layer": layer})


def step(model: nn.Module, call=None):
    """Output and gradients of a call with boxes, or with points where the family's encoder asks so, and padding."""
    generator = torch.Generator().manual_seed(1)
    layer = model["layer"]
    inside = type(layer).__name__.startswith(("Mask2Former", "OneFormer"))  # an encoder: queries are the pixels
    v2 = type(layer).__name__.startswith(("RTDetrV2", "DFine", "Deimv2"))
    hidden = torch.randn(2, S if inside else Q, C, generator=generator, requires_grad=True)
    value = torch.randn(2, S, C, generator=generator, requires_grad=True)
    boxes = torch.rand(2, hidden.shape[1], 1 if v2 else 3, 2 if inside else 4, generator=generator)
    valid = torch.rand(2, S, generator=generator) > 0.3
    shapes = torch.tensor(LEVELS)
    named = dict(encoder_hidden_states=value, reference_points=boxes, spatial_shapes_list=LEVELS)
    if not type(layer).__name__.startswith("Mask2Former"):
        named["spatial_shapes"] = shapes
    if not type(layer).__name__.startswith(("DFine", "Deimv2")):
        named["level_start_index"] = torch.tensor([0, 35, 47])
    if not type(layer).__name__.startswith(("DFine", "Deimv2")):  # whose masks do not fit their values
        named["attention_mask"] = ~valid if inside else valid  # Mask2Former's is inverted before it gets here
    out = (layer if call is None else call)(hidden, **named)[0]
    leaves = [hidden, value, *model.parameters()]
    grads = torch.autograd.grad(
        (out * torch.linspace(-1, 1, out.numel()).view(out.shape)).sum(), leaves, allow_unused=True
    )
    return out.detach(), grads


def assert_same(one, other):
    torch.testing.assert_close(one[0], other[0], rtol=1e-4, atol=1e-5)
    for mine, stock in zip(one[1], other[1]):
        assert (mine is None) == (stock is None)
        if stock is not None:
            torch.testing.assert_close(mine, stock, rtol=1e-3, atol=1e-4)


def test_all_known_families_are_among_them():
    known = {
        "deformable_detr",
        "grounding_dino",
        "mask2former",
        "oneformer",
        "rt_detr",
        "rt_detr_v2",
        "d_fine",
        "rf_detr",
    }
    assert known <= set(FAMILIES)


@pytest.mark.parametrize(
    "family", families.FAMILIES if os.environ.get("MSDA_ALL") == "1" else ("mask2former", "d_fine")
)
def test_a_whole_model_trains_a_step(family):
    """As `families.py` does it in an environment with the wheel alone; all families with MSDA_ALL=1."""
    families.train(family)


def test_every_family_has_a_whole_model():
    assert set(families.FAMILIES) == set(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_outputs_and_gradients_are_stocks(family):
    model, other = make(family), make(family)
    stock = step(model)
    with integration.patched(model) as handle:
        assert handle.places and handle.calls == 0
        assert_same(step(model), stock)
        assert handle.calls == 1
        assert_same(step(copy.deepcopy(model)), stock)  # a copy is patched, too
        assert handle.calls == 2
        assert torch.equal(step(other)[0], stock[0]) and handle.calls == 2  # another model is left alone
    assert torch.equal(step(model)[0], stock[0]) and handle.calls == 2


@pytest.mark.parametrize("method", ["default", "discrete"])
@pytest.mark.parametrize(
    "family, points", [("d_fine", [3, 6, 3]), ("deimv2", [1, 13, 2]), ("d_fine", [4, 4, 4]), ("rt_detr_v2", 4)]
)
def test_a_number_of_points_for_each_level(family, points, method):
    model = make(family, points, method)
    stock = step(model)
    with integration.patched(model):
        assert_same(step(model), stock)


@pytest.mark.parametrize("family", ["deformable_detr", "mask2former", "d_fine"])
def test_it_says_what_was_patched_and_that_nothing_ran(family):
    model = make(family)
    handle = integration.patch(model)
    assert re.fullmatch(r"msda_core in 1 layers \(layer[.\w]*\): 0 calls", str(handle))
    with pytest.raises(ValueError, match="must not be patched yet.*Is an unpatch missing"):
        integration.patch(model)
    with pytest.raises(RuntimeError, match="was never called, expected calls from layer"):
        integration.unpatch(model)
    with pytest.raises(ValueError, match="the model must be patched"):
        integration.unpatch(model)
    assert "forward" not in vars(model["layer"])


def test_a_model_without_the_operator_is_refused():
    with pytest.raises(ValueError, match="must have layers of multi-scale deformable attention.*got Linear"):
        integration.patch(nn.Linear(2, 2))


def test_an_error_inside_passes_and_the_model_is_as_it_was():
    model = make("rt_detr_v2")
    with pytest.raises(KeyError), integration.patched(model):
        raise KeyError("mine")
    with integration.patched(model):
        step(model)


@pytest.mark.parametrize("family", ["deformable_detr", "oneformer", "rt_detr_v2"])
def test_patched_layers_compile_whole(family):
    model = make(family)
    stock = step(model)
    with integration.patched(model) as handle:
        compiled = torch.compile(model["layer"], backend="aot_eager", fullgraph=True)
        assert_same(step(model, compiled), stock)
        assert handle.calls >= 1


def test_the_mask_of_a_whole_layer_must_be_turned():
    """transformers: True is valid. `nn.MSDeformAttn`: True is padding. Unturned it raises nothing, and is another thing."""
    from msda_core.nn import MSDeformAttn

    layer = make("deformable_detr")["layer"]
    ours = MSDeformAttn(C, 3, 2, 3)
    ours.load_state_dict(layer.state_dict())
    generator = torch.Generator().manual_seed(1)
    hidden, value = torch.randn(2, Q, C, generator=generator), torch.randn(2, S, C, generator=generator)
    boxes, valid = torch.rand(2, Q, 3, 4, generator=generator), torch.rand(2, S, generator=generator) > 0.3
    table = torch.tensor(LEVELS)
    stock = layer(
        hidden, attention_mask=valid, encoder_hidden_states=value, reference_points=boxes, spatial_shapes=table,
        spatial_shapes_list=LEVELS, level_start_index=torch.tensor([0, 35, 47]),
    )[0]  # fmt: skip
    torch.testing.assert_close(ours(hidden, boxes, value, LEVELS, None, ~valid), stock, rtol=1e-4, atol=1e-5)
    wrong = ours(hidden, boxes, value, LEVELS, None, valid)
    assert (wrong - stock).norm() > 0.3 * stock.norm()

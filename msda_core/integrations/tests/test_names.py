"""mmcv's, detrex's and Deformable DETR's names: their arguments, their masks, and their compiled extension."""

import importlib
import sys

import pytest
import torch

from msda_core import reference
from msda_core.inputs import make_call
from msda_core.integrations import deformable_detr, mmcv
from msda_core.nn import MSDeformAttn

LEVELS = ((4, 6), (3, 2))
S = 30


def test_the_function_under_both_names_with_keywords():
    call = make_call(LEVELS)
    named = dict(
        value=call.value, value_spatial_shapes=call.shapes, value_level_start_index=call.starts,
        sampling_locations=call.loc, attention_weights=call.attn, im2col_step=64,
    )  # fmt: skip
    expected = reference.msda(*call.inputs)
    for function in (mmcv.MultiScaleDeformableAttnFunction, deformable_detr.MSDeformAttnFunction):
        assert torch.equal(function.apply(**named), expected)
        assert torch.equal(function.apply(*named.values()), expected)
    for check in (mmcv.multi_scale_deformable_attn_pytorch, deformable_detr.ms_deform_attn_core_pytorch):
        assert torch.equal(check(call.value, call.shapes, call.loc, call.attn), expected)


@pytest.mark.parametrize("batch_first", [True, False])
def test_the_module_is_the_layer_with_a_residual(batch_first):
    torch.manual_seed(0)
    theirs = mmcv.MultiScaleDeformableAttention(
        embed_dims=16, num_heads=2, num_levels=2, num_points=3, im2col_step=64, dropout=0.0, batch_first=batch_first
    )
    ours = MSDeformAttn(16, 2, 2, 3)
    ours.load_state_dict(theirs.state_dict())
    query, value, position = torch.randn(2, 5, 16), torch.randn(2, S, 16), torch.randn(2, 5, 16)
    points, padding = torch.rand(2, 5, 2, 2), torch.rand(2, S) < 0.4
    expected = ours(query + position, points, value, LEVELS, None, padding) + query
    turn = (lambda t: t) if batch_first else (lambda t: t.transpose(0, 1))
    out = theirs(
        turn(query), value=turn(value), query_pos=turn(position), key_padding_mask=padding, reference_points=points,
        spatial_shapes=torch.tensor(LEVELS), level_start_index=torch.tensor([0, 24]), attn_masks=None,
    )  # fmt: skip
    torch.testing.assert_close(turn(out), expected)


def test_the_modules_other_arguments():
    assert mmcv.MultiScaleDeformableAttention(embed_dim=32, img2col_step=64).d_model == 32  # detrex
    with pytest.raises(ValueError, match="value_proj_ratio must be 1.0, got 0.5"):
        mmcv.MultiScaleDeformableAttention(value_proj_ratio=0.5)
    with pytest.raises(ValueError, match="reference_points must be given, got None"):
        mmcv.MultiScaleDeformableAttention(16, 2)(torch.randn(5, 1, 16))


def test_a_tree_that_imports_the_extension_runs_and_trains(monkeypatch):
    monkeypatch.delitem(sys.modules, "MultiScaleDeformableAttention", raising=False)
    deformable_detr.install()
    extension = importlib.import_module("MultiScaleDeformableAttention")
    monkeypatch.setitem(sys.modules, "MultiScaleDeformableAttention", extension)
    call = make_call(LEVELS)

    class TheirFunction(torch.autograd.Function):  # as every descendant of Deformable DETR writes it
        @staticmethod
        def forward(ctx, value, shapes, starts, loc, attn):
            ctx.save_for_backward(value, shapes, starts, loc, attn)
            return extension.ms_deform_attn_forward(value, shapes, starts, loc, attn, 64)

        @staticmethod
        def backward(ctx, grad_out):
            grad_value, grad_loc, grad_attn = extension.ms_deform_attn_backward(*ctx.saved_tensors, grad_out, 64)
            return grad_value, None, None, grad_loc, grad_attn

    leaves = [t.requires_grad_() for t in (call.value, call.loc, call.attn)]
    out = TheirFunction.apply(leaves[0], call.shapes, call.starts, leaves[1], leaves[2])
    grads = torch.autograd.grad(out, leaves, call.grad_out)
    for mine, exact in zip(grads, reference.exact_gradients(*call)):
        torch.testing.assert_close(mine.double(), exact, rtol=1e-4, atol=1e-5)
    filled = [torch.full_like(t, torch.nan) for t in leaves]  # mmcv's form
    assert extension.ms_deform_attn_backward(*(t.detach() for t in call), *filled, im2col_step=64) is None
    assert all(torch.equal(a, b) for a, b in zip(filled, grads))


def test_an_extension_that_was_built_is_not_replaced(monkeypatch):
    monkeypatch.setitem(sys.modules, "MultiScaleDeformableAttention", sys)
    with pytest.raises(ValueError, match="must not be loaded yet.*Was it built after all"):
        deformable_detr.install()

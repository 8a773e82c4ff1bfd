"""A whole model of every family of transformers that has the operator, patched and trained one step: random weights, no download.

    python families.py [FAMILY ...]        in an environment that has the wheel and transformers, and nothing of the course

Each is run as it came and patched, from the same weights and on the same image; loss and gradients agree, then the optimiser steps.
"""

import copy
import importlib
import sys
import time

import torch
from torch import nn


def resnet(kind="ResNetConfig"):
    return getattr(importlib.import_module("transformers"), kind)(
        embedding_size=8, hidden_sizes=[8, 16, 16, 24], depths=[1, 1, 1, 1], layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )  # fmt: skip


def swin(stages=("stage1", "stage2", "stage3", "stage4"), size=32):
    from transformers import SwinConfig

    return SwinConfig(
        image_size=size,
        embed_dim=8,
        depths=[1, 1, 1, 1],
        num_heads=[1, 1, 2, 2],
        window_size=2,
        out_features=list(stages),
    )


def bert():
    from transformers import BertConfig

    return BertConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)


#: What RT-DETR and its descendants have in common.
REAL_TIME = dict(
    d_model=16, encoder_hidden_dim=16, encoder_in_channels=[16, 16, 24], encoder_ffn_dim=16, encoder_attention_heads=2,
    decoder_in_channels=[16, 16, 16], decoder_ffn_dim=16, decoder_layers=2, decoder_attention_heads=2, num_queries=4,
    num_denoising=0, num_labels=3,
)  # fmt: skip
DETR = dict(
    d_model=32, num_queries=3, num_feature_levels=3, encoder_layers=1, decoder_layers=2, encoder_attention_heads=2,
    decoder_attention_heads=2, encoder_n_points=2, decoder_n_points=2, encoder_ffn_dim=16, decoder_ffn_dim=16,
    num_labels=3,
)  # fmt: skip
SEGMENTER = dict(
    feature_size=32, mask_feature_size=32, hidden_dim=32, encoder_feedforward_dim=16, dim_feedforward=16, encoder_layers=1,
    decoder_layers=2, num_attention_heads=2, num_queries=3, num_labels=3,
)  # fmt: skip
VIT = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, image_size=64, patch_size=8)
GROUP = dict(
    d_model=16, num_queries=4, decoder_layers=2, decoder_ffn_dim=16, decoder_self_attention_heads=2,
    decoder_cross_attention_heads=2, decoder_n_points=2, group_detr=1, num_labels=3,
)  # fmt: skip


def image(H=64, W=96):
    return dict(pixel_values=torch.randn(1, 3, H, W))


def words():
    return dict(input_ids=torch.tensor([[1, 5, 9, 2]]), attention_mask=torch.ones(1, 4, dtype=torch.long))


def family(name):
    """(model class, config, inputs) by the names that transformers has for them."""
    import transformers as t

    real_time = REAL_TIME | dict(backbone_config=resnet("RTDetrResNetConfig"))
    if name == "deformable_detr":
        config = t.DeformableDetrConfig(use_timm_backbone=False, backbone_config=resnet(), **DETR)
        mask = torch.ones(1, 64, 96, dtype=torch.long)
        mask[:, :, 70:] = 0  # a padded image: True is valid
        return t.DeformableDetrForObjectDetection, config, image() | dict(pixel_mask=mask)
    if name in ("grounding_dino", "mm_grounding_dino"):
        kind = {"grounding_dino": "GroundingDino", "mm_grounding_dino": "MMGroundingDino"}[name]
        config = getattr(t, kind + "Config")(
            backbone_config=swin(("stage2", "stage3", "stage4"), 64), text_config=bert(), use_timm_backbone=False,
            **DETR | dict(max_text_len=8, two_stage=True),
        )  # fmt: skip
        return getattr(t, kind + "ForObjectDetection"), config, image() | words()
    if name == "mask2former":
        return t.Mask2FormerModel, t.Mask2FormerConfig(backbone_config=swin(), **SEGMENTER), image()
    if name == "oneformer":
        sizes = {
            k: v
            for k, v in SEGMENTER.items()
            if k not in ("feature_size", "mask_feature_size", "encoder_feedforward_dim")
        }
        config = t.OneFormerConfig(
            backbone_config=swin(), conv_dim=32, mask_dim=32, encoder_feedforward_dim=16, is_training=False,
            task_seq_len=4, max_seq_len=4, text_encoder_width=16, text_encoder_num_layers=1, text_encoder_vocab_size=16,
            text_encoder_context_length=4, text_encoder_n_ctx=1, **sizes,
        )  # fmt: skip
        return t.OneFormerModel, config, image() | dict(task_inputs=torch.ones(1, 4))
    if name == "omdet_turbo":
        text = t.CLIPTextConfig(
            vocab_size=64, hidden_size=24, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
            max_position_embeddings=8, projection_dim=24, eos_token_id=2,
        )  # fmt: skip
        config = t.OmDetTurboConfig(
            text_config=text, backbone_config=swin(("stage2", "stage3", "stage4"), 64), use_timm_backbone=False,
            apply_layernorm_after_vision_backbone=False, image_size=64, num_projection_layers=1, encoder_hidden_dim=16,
            decoder_hidden_dim=16, vision_features_channels=[16, 16, 16], text_projection_in_dim=24,
            text_projection_out_dim=24, class_embed_dim=24, task_encoder_hidden_dim=24, encoder_dim_feedforward=16,
            decoder_dim_feedforward=16, encoder_layers=1, decoder_num_layers=2, encoder_attention_heads=2, num_queries=4,
            decoder_num_heads=2, encoder_in_channels=[16, 32, 64], num_labels=2,
        )  # fmt: skip
        texts = dict(
            classes_input_ids=torch.tensor([[1, 5, 2, 0], [1, 7, 9, 2]]), classes_attention_mask=torch.ones(2, 4).long(),
            tasks_input_ids=torch.tensor([[1, 5, 9, 2]]), tasks_attention_mask=torch.ones(1, 4).long(),
            classes_structure=torch.tensor([2]),
        )  # fmt: skip
        return t.OmDetTurboForObjectDetection, config, image(64, 64) | texts
    if name in ("lw_detr", "rf_detr"):
        kind = {"lw_detr": "LwDetr", "rf_detr": "RfDetr"}[name]
        vit = importlib.import_module(f"transformers.models.{name}.configuration_{name}")
        if name == "lw_detr":
            backbone = vit.LwDetrViTConfig(**VIT, out_indices=[1, 2], num_windows=4, window_block_indices=[0])
        else:
            backbone = vit.RfDetrDinov2Config(**VIT, out_indices=[1, 2], num_windows=2)
        sizes = GROUP | (dict(projector_scale_factors=[1.0, 0.5]) if name == "lw_detr" else {})
        config = getattr(t, kind + "Config")(backbone_config=backbone, **sizes)
        return getattr(t, kind + "ForObjectDetection"), config, image(64, 64)
    kinds = {
        "rt_detr": "RTDetr", "rt_detr_v2": "RTDetrV2", "d_fine": "DFine", "deimv2": "Deimv2",
        "pp_doclayout_v2": "PPDocLayoutV2", "pp_doclayout_v3": "PPDocLayoutV3", "pp_doclayout_v4": "PPDocLayoutV4",
    }  # fmt: skip
    kind = kinds[name] + (
        "Model" if name == "pp_doclayout_v2" else "ForObjectDetection"
    )  # whose head sorts by a reading order
    if name == "pp_doclayout_v3":  # one map more, for its masks
        real_time["x4_feat_dim"] = 8
        real_time["backbone_config"].set_output_features_output_indices(["stage1", "stage2", "stage3", "stage4"], None)
    more: dict = {"d_fine": dict(decoder_n_points=[3, 6, 3]), "deimv2": dict(decoder_n_points=[3, 6, 3])}.get(name, {})
    config = getattr(t, kinds[name] + "Config")(**real_time | more)
    return getattr(t, kind), config, image()


def make(name):
    """The model with its sampling stirred, so that offsets and weights depend on the query; and its inputs."""
    torch.manual_seed(0)
    kind, config, inputs = family(name)
    model = kind(config).eval()  # no dropout, or stock and patched would draw other numbers
    with torch.no_grad():
        for where, parameter in model.named_parameters():
            if "sampling_offsets" in where or "attention_weights" in where:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model, inputs


def step(model, inputs):
    """A loss of all that the model returns, and the gradient of every parameter."""
    torch.manual_seed(1)
    model.zero_grad()
    out = [x for x in _tensors(tuple(model(**inputs).values())) if x.requires_grad]
    loss = sum((x.float().clamp(-50, 50) * torch.linspace(-1, 1, x.numel()).view(x.shape)).mean() for x in out)
    loss.backward()
    return loss.detach(), [p.grad.clone() if p.grad is not None else torch.zeros_like(p) for p in model.parameters()]


def _tensors(tree):
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, tuple | list):
        for branch in tree:
            yield from _tensors(branch)


def train(name) -> str:
    """One step of the patched model, whose loss and gradients are stock's; what was patched."""
    from msda_core.integrations import transformers as integration

    model, inputs = make(name)
    loss, grads = step(copy.deepcopy(model), inputs)
    with integration.patched(model) as handle:
        mine, ours = step(model, inputs)
    assert handle.calls == len(handle.places), handle
    torch.testing.assert_close(mine, loss, rtol=1e-4, atol=1e-5)
    usual = torch.stack([g.abs().max() for g in grads if g.any()]).median()
    for where, one, other in zip(dict(model.named_parameters()), ours, grads):
        assert (one - other).abs().max() <= 1e-3 * torch.maximum(other.abs().max(), 0.1 * usual), where
    before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    torch.optim.AdamW(model.parameters(), lr=1e-3).step()
    assert not torch.equal(before, nn.utils.parameters_to_vector(model.parameters()))
    return f"{len(handle.places)} layers, {handle.calls} calls, loss {loss:.4f}, {sum(g.any().item() for g in grads)} gradients"


FAMILIES = (
    "deformable_detr", "grounding_dino", "mm_grounding_dino", "mask2former", "oneformer", "omdet_turbo", "lw_detr", "rf_detr",
    "rt_detr", "rt_detr_v2", "d_fine", "deimv2", "pp_doclayout_v2", "pp_doclayout_v3", "pp_doclayout_v4",
)  # fmt: skip


def main() -> int:
    for absent in ("checks", "solutions", "marimo"):
        assert importlib.util.find_spec(absent) is None, f"{absent} is here: not an environment with the wheel alone"
    failed = 0
    for name in sys.argv[1:] or FAMILIES:
        started = time.process_time()
        try:
            print(f"{name:18}", train(name), f"({time.process_time() - started:.1f} s)", flush=True)
        except Exception as error:  # noqa: BLE001  the next family is run all the same
            failed += 1
            print(f"{name:18}", "FAILED", type(error).__name__, str(error)[:600].replace("\n", " "), flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())

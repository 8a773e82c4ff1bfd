"""The learner's operator in models that other people wrote: put in the stock operator's place, compared, and taken out.

Small configurations, random weights, nothing downloaded. `transformers` is an optional extra: without it these are not run.
"""

import contextlib
import importlib.util
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from checks.core.exercise import NotRun

__all__ = ["MODELS", "Comparison", "bev_layer", "compare_model", "patched", "race"]

#: attend(value, spatial_shapes, level_start_index, sampling_locations, attention_weights) → (B, Q, M * D)
Operator = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Comparison:
    """A model run twice: with its stock operator, and with the learner's in its place.

    Attributes:
        model: its name; calls: how often the learner's operator ran, forward.
        outputs, gradients: the largest difference in any output, or in any parameter's gradient, relative to the largest
            value of that tensor. A gradient that cancels to nothing leaves only rounding behind: no tensor's scale counts
            for less than a tenth of what is usual in its model.
        parameters: how many parameters had a gradient; seconds: with the learner's operator.
    """

    model: str
    calls: int
    outputs: float
    gradients: float
    parameters: int
    seconds: float

    @property
    def equal(self) -> bool:
        """Did the operator run, with outputs within 1e-4 of stock's and gradients within 1e-3?"""
        return self.calls > 0 and self.outputs < 1e-4 and self.gradients < 1e-3

    @property
    def sentence(self) -> str:
        """What was compared, in words."""
        word = "the same" if self.equal else "NOT the same"
        often = "once" if self.calls == 1 else f"{self.calls} times"
        return (
            f"{self.model}: {word} outputs and gradients as stock. Your operator ran {often} in {self.seconds:.1f} s; "
            f"outputs differ by {self.outputs:.0e}, the gradients of {self.parameters} parameters by {self.gradients:.0e}."
        )


def _needs_transformers() -> None:
    if importlib.util.find_spec("transformers") is None:
        raise NotRun(
            "needs transformers, which is optional: `uv run --group wild …`, or `pip install 'transformers>=5'`."
        )


def _backbone():
    from transformers import ResNetConfig

    return ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 16, 24], depths=[1, 1, 1, 1], layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )  # fmt: skip


def _deformable_detr() -> tuple[nn.Module, Callable[[nn.Module], list[Tensor]], str]:
    from transformers import DeformableDetrConfig, DeformableDetrForObjectDetection

    config = DeformableDetrConfig(
        use_timm_backbone=False, backbone_config=_backbone(), d_model=32, num_queries=3, num_feature_levels=3,
        encoder_layers=1, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2, encoder_n_points=2,
        decoder_n_points=2, encoder_ffn_dim=16, decoder_ffn_dim=16, num_labels=3,
    )  # fmt: skip
    model = DeformableDetrForObjectDetection(config)
    pixels = torch.randn(1, 3, 32, 64)
    mask = torch.ones(1, 32, 64, dtype=torch.long)
    mask[:, :, 48:] = 0  # a padded image: True = valid here

    def run(model: nn.Module) -> list[Tensor]:
        out = model(pixel_values=pixels, pixel_mask=mask)
        return [out.logits, out.pred_boxes]

    return model, run, "transformers.models.deformable_detr.modeling_deformable_detr"


def _mask2former() -> tuple[nn.Module, Callable[[nn.Module], list[Tensor]], str]:
    from transformers import Mask2FormerConfig, Mask2FormerModel, SwinConfig

    backbone = SwinConfig(
        image_size=32, embed_dim=8, depths=[1, 1, 1, 1], num_heads=[1, 1, 2, 2], window_size=2,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )  # fmt: skip
    config = Mask2FormerConfig(
        backbone_config=backbone, feature_size=32, mask_feature_size=32, hidden_dim=32, encoder_feedforward_dim=16,
        dim_feedforward=16, encoder_layers=1, decoder_layers=2, num_attention_heads=2, num_queries=3, num_labels=3,
    )  # fmt: skip
    model = Mask2FormerModel(config)  # the head around it wants scipy, for its loss
    pixels = torch.randn(1, 3, 32, 64)

    def run(model: nn.Module) -> list[Tensor]:
        out = model(pixel_values=pixels)
        return [out.transformer_decoder_last_hidden_state, out.pixel_decoder_last_hidden_state]

    return model, run, "transformers.models.mask2former.modeling_mask2former"


def _rt_detr() -> tuple[nn.Module, Callable[[nn.Module], list[Tensor]], str]:
    from transformers import RTDetrConfig, RTDetrForObjectDetection, RTDetrResNetConfig

    backbone = RTDetrResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 16, 24], depths=[1, 1, 1, 1], layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )  # fmt: skip
    config = RTDetrConfig(
        backbone_config=backbone, d_model=16, encoder_hidden_dim=16, encoder_in_channels=[16, 16, 24], encoder_ffn_dim=16,
        encoder_attention_heads=2, decoder_in_channels=[16, 16, 16], decoder_ffn_dim=16, decoder_layers=2,
        decoder_attention_heads=2, decoder_n_points=3, num_queries=4, num_denoising=0, num_labels=3,
    )  # fmt: skip
    model = RTDetrForObjectDetection(config)
    pixels = torch.randn(1, 3, 64, 96)

    def run(model: nn.Module) -> list[Tensor]:
        out = model(pixel_values=pixels)
        return [out.logits, out.pred_boxes]

    return model, run, "transformers.models.rt_detr.modeling_rt_detr"


MODELS = {"Deformable DETR": _deformable_detr, "Mask2Former": _mask2former, "RT-DETR": _rt_detr}


@contextlib.contextmanager
def patched(module: str, attend: Operator) -> Iterator[list[int]]:
    """Inside, a modeling module of transformers calls `attend`; yields a list that grows by one a call.

    transformers has the operator in two forms: a module `MultiScaleDeformableAttention`, and a function
    `multi_scale_deformable_attention` that gets no level starts.
    """
    modeling, calls = importlib.import_module(module), []

    def as_module(self, value, shapes, shapes_list, starts, locations, weights, im2col_step):
        calls.append(1)
        return attend(value, shapes, starts, locations, weights)

    def as_function(value, shapes, locations, weights):
        calls.append(1)
        table = torch.as_tensor(shapes, device=value.device)
        pixels = table.prod(1)
        return attend(value, table, pixels.cumsum(0) - pixels, locations, weights)

    with contextlib.ExitStack() as stack:
        if hasattr(modeling, "MultiScaleDeformableAttention"):
            stack.enter_context(mock.patch.object(modeling.MultiScaleDeformableAttention, "forward", as_module))
        if hasattr(modeling, "multi_scale_deformable_attention"):
            stack.enter_context(mock.patch.object(modeling, "multi_scale_deformable_attention", as_function))
        yield calls


def compare_model(name: str, attend: Operator, seed: int = 0) -> Comparison:
    """Run a model of `MODELS` with its stock operator and with `attend`, forward and backward.

    Raises:
        NotRun: transformers is not installed.
    """
    _needs_transformers()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model, run, module = MODELS[name]()
        model.train(False)
        _stir(model)
    stock_out, stock_grads = _there_and_back(model, run)
    started = time.perf_counter()
    with patched(module, attend) as calls:
        out, grads = _there_and_back(model, run)
    return Comparison(
        name,
        len(calls),
        max(_apart(a, b) for a, b in zip(out, stock_out)),
        _gradients_apart(grads, stock_grads),
        sum(bool(g.abs().sum() > 0) for g in grads),
        time.perf_counter() - started,
    )


def _stir(model: nn.Module) -> None:
    """A new layer's offsets do not depend on its query, and its weights are all alike: nothing to go wrong. Change that."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "sampling_offsets" in name or "attention_weights" in name:
                parameter.add_(0.1 * torch.randn_like(parameter))


def _there_and_back(model: nn.Module, run: Callable) -> tuple[list[Tensor], list[Tensor]]:
    model.zero_grad()
    out = run(model)
    sum((t * torch.linspace(-1, 1, t.numel()).reshape(t.shape)).sum() for t in out).backward()
    grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in model.parameters()]
    return [t.detach() for t in out], [g.detach().clone() for g in grads]


def _apart(one: Tensor, other: Tensor, least: float = 1e-12) -> float:
    return ((one - other).abs().max() / other.abs().max().clamp(min=least)).item()


def _gradients_apart(mine: list[Tensor], stock: list[Tensor]) -> float:
    largest = torch.stack([g.abs().max() for g in stock])
    usual = largest[largest > 0].median().item()
    # Some gradients cancel to nothing (a key's bias, say): what is left of them is rounding, 1e-5 of the usual size.
    return max(_apart(a, b, 0.1 * usual) for a, b in zip(mine, stock))


# ------------------------------------------------------------------------------------------------------- bird's eye


def bev_layer(attend: Operator, Z: int = 4, seed: int = 0) -> tuple[Comparison, Tensor, Tensor]:
    """A BEV layer with Z anchors a pillar, on `attend` and on `msda_core`: a camera looks at a field of 2 by 4 pillars.

    Args:
        attend: the operator.
        Z: how many heights of a pillar are looked at.
        seed: of the layer's weights and of the image's features.

    Returns:
        The comparison, the anchors (Q, Z, 2) in the image, and the places the layer read (Q, M, L, K, 2).
    """
    from msda_core import nn as ours

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layer = ours.MSDeformAttn3D(8, 2, 2, 2 * Z, output_proj=True)
        _stir(layer)
        query, shapes = torch.randn(1, 8, 8), [(6, 10), (3, 5)]
        pixels = torch.randn(1, sum(h * w for h, w in shapes), 8)
    anchors = _project(Z)
    table = torch.tensor(shapes)
    starts = torch.tensor([0, 60])
    places: list[Tensor] = []

    def run(model: nn.Module) -> list[Tensor]:
        return [model(query, anchors[None], pixels, table, starts)]

    stock_out, stock_grads = _there_and_back(layer, run)
    calls = []

    def theirs(value, spatial_shapes, level_start_index, sampling_locations, attention_weights, **options):
        calls.append(1)  # how the layer sums the gradient of value is its own operator's matter
        places.append(sampling_locations.detach()[0])
        return attend(value, spatial_shapes, level_start_index, sampling_locations, attention_weights)

    started = time.perf_counter()
    with mock.patch.object(ours, "multi_scale_deformable_attention", theirs):
        out, grads = _there_and_back(layer, run)
    comparison = Comparison(
        f"BEV layer with {Z} anchors",
        len(calls),
        _apart(out[0], stock_out[0]),
        _gradients_apart(grads, stock_grads),
        sum(bool(g.abs().sum() > 0) for g in grads),
        time.perf_counter() - started,
    )
    return comparison, anchors, places[0]


def _project(Z: int) -> Tensor:
    """Pillars at 2 distances and 4 places across, Z heights from ground to 3 m, seen by a camera 1.6 m above ground."""
    depth, across = torch.meshgrid(torch.tensor([8.0, 14.0]), torch.tensor([-4.0, -1.4, 1.4, 4.0]), indexing="ij")
    height = torch.linspace(0.0, 3.0, Z) - 1.6
    x = 0.5 + 0.75 * across / depth
    y = 0.5 - 1.2 * height / depth[..., None]
    return torch.stack([x[..., None].expand_as(y), y], -1).reshape(8, Z, 2)


# ------------------------------------------------------------------------------------------------------------ a race


@dataclass(frozen=True)
class Lap:
    """One operator's device time in µs, median, and where the number comes from."""

    name: str
    call: str
    microseconds: float | None
    note: str = ""


def race(attend: Operator) -> list[Lap]:
    """Forward and backward of the learner's operator, `msda_core`'s and mmcv's, on this machine's GPU.

    The decoder's and the encoder's calls of `peers`: M=8, D=32, L=K=4, a pyramid of 800 x 1333, float16 and float32.

    Raises:
        NotRun: there is no CUDA GPU.
    """
    from msda_core import device

    if device.ACTIVE.type != "cuda":
        raise NotRun("needs a CUDA GPU, found none. A time measured in the interpreter says nothing about a kernel.")
    from msda_core.bench import timers
    from msda_core.ops import multi_scale_deformable_attention as shipped

    racers: dict[str, Any] = {"yours": attend, "msda_core": shipped}
    laps = []
    try:
        from mmcv.ops import MultiScaleDeformableAttnFunction

        racers["mmcv"] = lambda *args: MultiScaleDeformableAttnFunction.apply(*args, 64)
    except Exception as missing:
        laps.append(Lap("mmcv", "", None, f"not run: {type(missing).__name__}: {missing}"))
    for name, B, Q, encoder in (("decoder", 4, 300, False), ("encoder", 2, 22_223, True)):
        for dtype in (torch.float32, torch.float16):
            args = _call_of(B, Q, encoder, dtype)
            grad_out = torch.randn(B, Q, 256, device="cuda", dtype=dtype)
            for racer, operator in racers.items():
                label = f"{name}, {str(dtype).removeprefix('torch.')}"
                inputs = list(args)
                if racer == "mmcv":
                    inputs[3] = inputs[3].to(dtype)  # it wants one dtype for all
                with torch.no_grad():
                    forward = timers.queued(lambda o=operator, i=inputs: o(*i))
                for at in (0, 3, 4):
                    inputs[at] = inputs[at].detach().requires_grad_()
                out = operator(*inputs)
                leaves = [inputs[at] for at in (0, 3, 4)]
                backward = timers.queued(
                    lambda o=out, v=leaves, g=grad_out: torch.autograd.grad(o, v, g, retain_graph=True)
                )
                laps += [Lap(racer, f"{label}, forward", forward), Lap(racer, f"{label}, backward", backward)]
    return laps


def _call_of(B: int, Q: int, encoder: bool, dtype: torch.dtype) -> tuple:
    shapes = [(100, 167), (50, 84), (25, 42), (13, 21)]
    table = torch.tensor(shapes, device="cuda")
    pixels = table.prod(1)
    torch.manual_seed(0)
    value = torch.randn(B, int(pixels.sum()), 8, 32, device="cuda", dtype=dtype)
    if encoder:
        centres = []
        for H, W in shapes:
            y, x = torch.meshgrid(
                (torch.arange(H, device="cuda") + 0.5) / H, (torch.arange(W, device="cuda") + 0.5) / W, indexing="ij"
            )
            centres.append(torch.stack([x, y], -1).reshape(-1, 2))
        noise = 2.0 * torch.randn(B, Q, 8, 4, 4, 2, device="cuda") / table.flip(-1)[:, None]
        locations = torch.cat(centres)[None, :, None, None, None] + noise
    else:
        locations = torch.rand(B, Q, 8, 4, 4, 2, device="cuda")
    weights = torch.rand(B, Q, 8, 16, device="cuda").softmax(-1).reshape(B, Q, 8, 4, 4).to(dtype)
    return value, table, pixels.cumsum(0) - pixels, locations, weights

"""Lab 10, Ship it: one way to answer it."""

import math

import torch
from torch.autograd.function import once_differentiable

from solutions import lab05, lab08


def check_inputs(
    value: torch.Tensor,
    spatial_shapes: torch.Tensor,
    level_start_index: torch.Tensor,
    sampling_locations: torch.Tensor,
    attention_weights: torch.Tensor,
) -> None:
    """The front door: lets a call through that your kernels can run, and says what is wrong with any other.

    Args:
        value: (B, S, M, D), float32, float16 or bfloat16.
        spatial_shapes: (L, 2), the (H, W) of each level, positive; level_start_index: (L,), each level's first pixel.
            Both int32 or int64; every level lies inside the S pixels.
        sampling_locations: (B, Q, M, L, K, 2); attention_weights: (B, Q, M, L, K); in value's dtype or float32.
            All five are tensors on one device. B or Q may be 0. What the numbers are is not asked.

    Raises:
        ValueError: begins with the name of the argument at fault and says what it must be, what it is, and what may
            have gone wrong: "sampling_locations must be (B, Q, M, L, K, 2), got (2, 100, 8, 4, 4). Is …?"
    """
    named = {
        "value": value,
        "spatial_shapes": spatial_shapes,
        "level_start_index": level_start_index,
        "sampling_locations": sampling_locations,
        "attention_weights": attention_weights,
    }
    for name, tensor in named.items():
        if not isinstance(tensor, torch.Tensor):  # @if_tensor
            raise ValueError(
                f"{name} must be a tensor, got {type(tensor).__name__}. Is it still a list or an array?"
            )  # @refusal
        if tensor.device != value.device:  # @if_tensor_2
            raise ValueError(f"{name} must be on {value.device}, as value is, got {tensor.device}. Was it left behind?")
    for name in ("spatial_shapes", "level_start_index"):
        if named[name].dtype not in (torch.int32, torch.int64):  # @if_named
            raise ValueError(f"{name} must be int32 or int64, got {named[name].dtype}. Was it normalised?")
    if value.dtype not in (torch.float32, torch.float16, torch.bfloat16):  # @if_value
        raise ValueError(f"value must be float32, float16 or bfloat16, got {value.dtype}. Is it an image in integers?")
    for name in ("sampling_locations", "attention_weights"):
        if named[name].dtype not in (value.dtype, torch.float32):  # @if_named_2
            allowed = " or ".join(sorted({str(value.dtype), "torch.float32"}))
            raise ValueError(f"{name} must be {allowed}, got {named[name].dtype}. Is autocast half on?")

    if value.dim() != 4:
        raise ValueError(f"value must be (B, S, M, D), got {tuple(value.shape)}. Are the heads still in the channels?")
    B, S, M, D = value.shape
    got = tuple(sampling_locations.shape)
    if len(got) != 6 or got[-1] != 2:  # @if_got
        raise ValueError(f"sampling_locations must be (B, Q, M, L, K, 2), got {got}. Is the (x, y) axis missing?")
    _, Q, _, L, K, _ = got
    if (got[0], got[2]) != (B, M):  # @if_B
        raise ValueError(
            f"sampling_locations must be ({B}, Q, {M}, L, K, 2), batch and heads as in value {tuple(value.shape)}, "
            f"got {got}. Are two axes swapped?"
        )
    if tuple(attention_weights.shape) != got[:-1]:
        raise ValueError(
            f"attention_weights must be (B, Q, M, L, K) = {got[:-1]}, got {tuple(attention_weights.shape)}. "
            "Are levels and points still one axis?"
        )
    for name, expected in (("spatial_shapes", (L, 2)), ("level_start_index", (L,))):
        if tuple(named[name].shape) != expected:  # @if_expected
            raise ValueError(
                f"{name} must be {expected}, since sampling_locations has {L} levels, got {tuple(named[name].shape)}. "
                "Is it of another pyramid?"
            )
    if L == 0:  # @if_L
        raise ValueError(f"sampling_locations must have a level, got {got}. Is the pyramid empty?")
    for level, ((H, W), start) in enumerate(zip(spatial_shapes.tolist(), level_start_index.tolist())):  # @each_level
        if H < 1 or W < 1:  # @if_H
            raise ValueError(f"spatial_shapes must be positive, got (H, W) = {(H, W)} at level {level}. Is it padding?")
        if start < 0:  # @if_start
            raise ValueError(f"level_start_index must not be negative, got {start} at level {level}.")
        if start + H * W > S:  # @if_S
            raise ValueError(
                f"spatial_shapes must fit into the S = {S} pixels of value, got (H, W) = {(H, W)} at level {level}, which "
                f"begins at pixel {start} and ends at {start + H * W}. Is a level missing from value?"
            )


class MSDAFunction(torch.autograd.Function):
    """Multi-scale deformable attention as one operation of PyTorch: your forward, and your backward.

    It can be differentiated once. Whoever differentiates its gradients gets an error where grad_out has a history.
    """

    @staticmethod
    def forward(ctx, value, spatial_shapes, level_start_index, sampling_locations, attention_weights):
        """`lab05.msda_forward`, and what the backward will need, kept so that PyTorch notices if somebody changes it.

        Args:
            ctx: where the forward leaves things for the backward.
            value, spatial_shapes, level_start_index, sampling_locations, attention_weights: as for `lab05.msda_forward`.

        Returns:
            (B, Q, M * D), in value's dtype.
        """
        ctx.save_for_backward(
            value, spatial_shapes, level_start_index, sampling_locations, attention_weights
        )  # @save_for_backward
        return lab05.msda_forward(
            value, spatial_shapes, level_start_index, sampling_locations, attention_weights
        )  # @result

    @staticmethod  # @backward
    @once_differentiable
    def backward(ctx, grad_out):
        """`lab08.msda_backward`: one gradient for each argument of forward after ctx, None for those that have none.

        Or `lab09.msda_backward_switched`, which wants to know the GPU's capability.

        Args:
            ctx: as the forward left it.
            grad_out: (B, Q, M * D), how the loss changes with each number of the output; any strides.
        """
        grad_value, grad_loc, grad_attn = lab08.msda_backward(grad_out, *ctx.saved_tensors)  # @grad_value
        return grad_value, None, None, grad_loc, grad_attn  # @result_2


class MyMSDeformAttn(torch.nn.Module):
    """Deformable DETR's attention layer, on your operator: `check_inputs`, then `MSDAFunction`.

    Four linear layers, named and shaped as in Deformable DETR, so that its checkpoints load: `sampling_offsets`
    (C to M * L * K * 2), `attention_weights` (C to M * L * K), `value_proj` and `output_proj` (C to C).
    """

    def __init__(self, d_model: int = 256, n_levels: int = 4, n_heads: int = 8, n_points: int = 4):
        """At first every point of a head weighs the same, and head m looks in direction 2 pi m / M.

        The weights of `sampling_offsets` and `attention_weights` are zero, as is the bias of the latter. The bias of the
        former, as (M, L, K, 2), is the direction (cos, sin), divided by the larger of |cos| and |sin|, times k + 1.

        Args:
            d_model: C, channels; n_heads: M; n_levels: L; n_points: K, for each head and level.
        """
        super().__init__()
        self.n_levels, self.n_heads, self.n_points = n_levels, n_heads, n_points
        self.sampling_offsets = torch.nn.Linear(d_model, n_heads * n_levels * n_points * 2)
        self.attention_weights = torch.nn.Linear(d_model, n_heads * n_levels * n_points)
        self.value_proj = torch.nn.Linear(d_model, d_model)
        self.output_proj = torch.nn.Linear(d_model, d_model)
        angle = torch.arange(n_heads) * (2 * math.pi / n_heads)
        ring = torch.stack([angle.cos(), angle.sin()], -1)  # @ring
        ring = ring / ring.abs().amax(-1, keepdim=True)  # @ring_2
        steps = torch.arange(1, n_points + 1)[:, None]  # @steps
        with torch.no_grad():
            for zero in (
                self.sampling_offsets.weight,
                self.attention_weights.weight,
                self.attention_weights.bias,
            ):  # @each_zero
                zero.zero_()
            bias = (ring[:, None, None] * steps).expand(n_heads, n_levels, n_points, 2)  # @bias
            self.sampling_offsets.bias.copy_(bias.reshape(-1))  # @copy

    def forward(
        self,
        query: torch.Tensor,
        reference_points: torch.Tensor,
        input_flatten: torch.Tensor,
        input_spatial_shapes: torch.Tensor,
        input_level_start_index: torch.Tensor,
        input_padding_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Each query looks at K points of each level around its reference point, and takes their weighted sum.

        Args:
            query: (B, Q, C). Predicts the offsets, and the weights, which sum to one over the L * K points of a head.
            reference_points: (B, Q, L, 2), (x, y) from 0 to 1: an offset is in pixels of its level. Or (B, Q, L, 4),
                boxes (x, y, w, h): K steps of offset are half a box.
            input_flatten: (B, S, C), the pixels of all levels.
            input_spatial_shapes: (L, 2), (H, W); input_level_start_index: (L,).
            input_padding_mask: bool (B, S), True where a pixel is padding: it counts as zero, after the projection.

        Returns:
            (B, Q, C).
        """
        B, Q, _ = query.shape
        M, L, K = self.n_heads, self.n_levels, self.n_points
        value = self.value_proj(input_flatten)  # @value
        if input_padding_mask is not None:
            value = value.masked_fill(input_padding_mask[..., None], 0.0)  # @value_2
        value = value.unflatten(-1, (M, -1))  # @value_3
        offsets = self.sampling_offsets(query).reshape(B, Q, M, L, K, 2).float()  # @offsets
        weights = self.attention_weights(query).reshape(B, Q, M, L * K).softmax(-1).reshape(B, Q, M, L, K)  # @weights
        reference = reference_points[:, :, None, :, None].float()  # @reference
        if reference_points.shape[-1] == 2:  # @if_reference_points
            locations = reference + offsets / input_spatial_shapes.flip(-1)[:, None]
        else:
            locations = reference[..., :2] + offsets / K * reference[..., 2:] * 0.5
        call = (value, input_spatial_shapes, input_level_start_index, locations, weights)  # @call
        check_inputs(*call)  # @check_inputs
        return self.output_proj(MSDAFunction.apply(*call))  # @result


def register(name: str) -> torch.library.CustomOpDef:
    """Register your two kernels with PyTorch, so that compilers see one operation where they cannot look inside.

    Args:
        name: "namespace::operator", not taken yet; the gradients may be an operator of their own, f"{name}_backward".

    Returns:
        The operator, made by `torch.library.custom_op`. It is called as `lab05.msda_forward` and differentiated once, by
        `lab08.msda_backward`. Neither changes an input. What it returns has the shape, dtype and strides that its fake
        kernels promise, whatever the strides of its inputs.
    """

    @torch.library.custom_op(name, mutates_args=())
    def forward(
        value: torch.Tensor,
        spatial_shapes: torch.Tensor,
        level_start_index: torch.Tensor,
        sampling_locations: torch.Tensor,
        attention_weights: torch.Tensor,
    ) -> torch.Tensor:
        return lab05.msda_forward(value, spatial_shapes, level_start_index, sampling_locations, attention_weights)

    @forward.register_fake
    def _(value, spatial_shapes, level_start_index, sampling_locations, attention_weights):
        B, _, M, D = value.shape
        return value.new_empty(B, sampling_locations.shape[1], M * D)

    @torch.library.custom_op(f"{name}_backward", mutates_args=())
    def backward(
        grad_out: torch.Tensor,
        value: torch.Tensor,
        spatial_shapes: torch.Tensor,
        level_start_index: torch.Tensor,
        sampling_locations: torch.Tensor,
        attention_weights: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        args = (value, spatial_shapes, level_start_index, sampling_locations, attention_weights)
        return lab08.msda_backward(grad_out, *args)

    @backward.register_fake
    def _(grad_out, value, spatial_shapes, level_start_index, sampling_locations, attention_weights):
        return tuple(like.new_empty(like.shape) for like in (value, sampling_locations, attention_weights))

    def keep(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    def differentiate(ctx, grad_out):
        grad_value, grad_loc, grad_attn = backward(grad_out, *ctx.saved_tensors)
        return grad_value, None, None, grad_loc, grad_attn

    forward.register_autograd(differentiate, setup_context=keep)
    return forward


def tile_queries(H: int, W: int, size: int) -> torch.Tensor:
    """Which queries meet in a program: the pixels of a level, in an order whose runs of `size` make the groups.

    Every pixel of an H x W level is a query (pixel y * W + x is number y * W + x). A program takes `size` of them, and
    what it adds to one pixel of the gradient is merged first. Near queries look at the same pixels.

    Args:
        H, W: the level; size: how many queries a program has, a power of two from 16 to 256.

    Returns:
        (H * W,), int64: every number once. Program i has the elements from i * size on.
    """
    rows = 1 << (size.bit_length() - 1) // 2
    columns = size // rows
    y, x = torch.meshgrid(torch.arange(H), torch.arange(W), indexing="ij")  # @y
    tile = (y // rows) * -(-W // columns) + x // columns
    inside = (y % rows) * columns + x % columns
    return (tile * size + inside).flatten().argsort()

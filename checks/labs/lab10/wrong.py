"""Lab 10, Ship it: the wrong answers that are known."""

import torch

from checks.core.exercise import Mistake
from solutions import lab10 as solution


def _refuse_all(*args) -> None:
    raise ValueError("value is not as it should be.")


def _as_python_says(value, spatial_shapes, level_start_index, sampling_locations, attention_weights) -> None:
    B, S, M, D = value.shape
    _, Q, _, L, K, _ = sampling_locations.shape
    assert attention_weights.shape == (B, Q, M, L, K)


def _said_otherwise(change):
    """The right front door with another way of refusing: change(message) → an exception."""

    def answer(*args) -> None:
        try:
            solution.check_inputs(*args)
        except ValueError as error:
            raise change(str(error)) from None

    return answer


CHECK_INPUTS: list[Mistake] = [
    Mistake(
        "when the last pixel of a level is not looked at",
        {"if_S": "if start > S:"},
        "A level that begins inside value may still end past it. What does a kernel read there?",
    ),
    Mistake(
        "when levels must fill value",
        {"if_S": "if spatial_shapes.prod(-1).sum() != S:"},
        "Levels may lie apart: that is what level_start_index is for.",
    ),
    Mistake(
        "when the heads of the locations are not compared with value's",
        {"if_B": "if got[0] != B:"},
        "With fewer heads in sampling_locations than in value, whose points does the last head read?",
    ),
    Mistake(
        "when the batch of the locations is not compared with value's",
        {"if_B": "if got[2] != M:"},
        "value has B images. How many do the locations speak of?",
    ),
    Mistake(
        "when locations of four numbers pass",
        {"if_got": "if len(got) != 6:"},
        "A location is (x, y). Some models have boxes at hand, (x, y, w, h).",
    ),
    Mistake(
        "when Q = 0 is refused",
        {
            "if_L": """
                if Q == 0:
                    raise ValueError("sampling_locations is empty.")
                @
            """
        },
        "A detector may have no query left. The result then has no rows, and that is no error.",
    ),
    Mistake(
        "when B = 0 is refused",
        {
            "if_L": """
                if B == 0:
                    raise ValueError("value is empty.")
                @
            """
        },
        "A batch may be empty. The result then has no rows, and that is no error.",
    ),
    Mistake(
        "when empty tensors are refused",
        {
            "if_L": """
                if B == 0 or Q == 0:
                    raise ValueError("value is empty.")
                @
            """
        },
        "Nothing to do is no error: the result has no rows.",
    ),
    Mistake(
        "when an empty tensor is asked for its smallest number",
        {
            "if_L": """
                sampling_locations.min()
                @
            """
        },
        "There is none without a query. And what the numbers are is not asked: points outside read zeros.",
    ),
    Mistake(
        "when value must be contiguous",
        {
            "if_L": """
                if not value.is_contiguous():
                    raise ValueError("value must be contiguous.")
                @
            """
        },
        "Your launchers make contiguous what is not. Is that call wrong, or only slower?",
    ),
    Mistake(
        "when tables must be int64",
        {"if_named": "if named[name].dtype != torch.int64:"},
        "Both int32 and int64 are common, and your kernels read either.",
    ),
    Mistake(
        "when NaN in value is refused",
        {
            "if_L": """
                if not torch.isfinite(value).all():
                    raise ValueError("value must be finite.")
                @
            """
        },
        "It takes a pass over the largest tensor to find out, and a training that diverges wants to show it.",
    ),
    Mistake(
        "when a level before the first pixel passes",
        {"if_start": "if False:"},
        "In Python, -4 counts from the end. What does it do in an address?",
    ),
    Mistake(
        "when empty levels pass",
        {"if_H": "if False:"},
        "A level without rows has no pixel. Whoever sends one has made a mistake.",
    ),
    Mistake(
        "when a list passes",
        {
            "if_tensor": "if not isinstance(tensor, (torch.Tensor, list)):",
            "if_tensor_2": "if isinstance(tensor, torch.Tensor) and tensor.device != value.device:",
            "if_named": "if torch.as_tensor(named[name]).dtype not in (torch.int32, torch.int64):",
            "if_expected": "if tuple(torch.as_tensor(named[name]).shape) != expected:",
            "each_level": "for level, ((H, W), start) in enumerate(zip(torch.as_tensor(spatial_shapes).tolist(), level_start_index.tolist())):",
        },
        "A kernel takes addresses, and a list has none that it could use.",
    ),
    Mistake(
        "when the error is a TypeError",
        {
            "refusal": 'raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}. Is it still a list or an array?")'
        },
        "Python would say so of a wrong kind. Here one kind of error is agreed upon: ValueError.",
    ),
    Mistake(
        "when the dtypes of tables are not looked at",
        {"if_named": "if named[name].dtype is None:"},
        "A kernel reads integers at the address it is given, whatever is there.",
    ),
    Mistake(
        "when float64 passes",
        {"if_value": "if value.dtype not in (torch.float64, torch.float32, torch.float16, torch.bfloat16):"},
        "Your kernels compute in float32. Whoever hands over float64 wants more than that.",
    ),
    Mistake(
        "when every float dtype passes for the locations",
        {"if_named_2": "if named[name].dtype not in (torch.float32, torch.float16, torch.bfloat16):"},
        "Which dtypes do your kernels take beside a float16 value?",
    ),
    Mistake(
        "when locations must have value's dtype",
        {"if_named_2": "if named[name].dtype != value.dtype:"},
        "Lab 9: a 16-bit location misses its pixel. float32 locations beside a 16-bit value are the better call.",
    ),
    Mistake(
        "when locations outside the image are refused",
        {
            "if_L": """
                if not ((sampling_locations >= 0) & (sampling_locations <= 1)).all():
                    raise ValueError("sampling_locations must lie in [0, 1].")
                @
            """
        },
        "Points outside read zeros; every detector has some.",
    ),
    Mistake(
        "when devices are not compared",
        {"if_tensor_2": "if False:"},
        "What does a kernel do with an address of another device?",
    ),
    Mistake(
        "when everything is refused",
        _refuse_all,
        "A front door that lets nobody in keeps nobody safe: good calls must pass.",
    ),
    Mistake(
        "when Python's own errors must do",
        _as_python_says,
        "“too many values to unpack” tells nobody which tensor is wrong. Name it, and say what came.",
    ),
    Mistake("when everything passes", lambda *args: None, "Begin with ranks, then sizes, then dtypes, then the table."),
    Mistake(
        "when float16 is refused",
        {"if_value": "if value.dtype not in (torch.float32,):"},
        "Your kernels take three dtypes.",
    ),
    Mistake(
        "when the smallest location is looked at, which an empty tensor does not have",
        {
            "if_L": """
                if not (sampling_locations.min() >= 0):
                    raise ValueError("sampling_locations must lie in [0, 1].")
                @
            """
        },
        "What the numbers are is not asked: points outside read zeros; every detector has some.",
    ),
    Mistake(
        "when every refusal is a TypeError",
        _said_otherwise(TypeError),
        "Whoever calls catches what the docstring says is raised.",
    ),
    Mistake(
        "when every refusal is an AssertionError",
        _said_otherwise(AssertionError),
        "`python -O` runs without assertions, and whoever calls catches what the docstring says is raised.",
    ),
    Mistake(
        "when no message begins with the argument at fault",
        _said_otherwise(lambda said: ValueError(f"Bad input: {said}")),
        "With which word does a message begin, by the docstring?",
    ),
    Mistake(
        "when no message says what came",
        _said_otherwise(lambda said: ValueError(f"{said.split(' ')[0]} is not as it must be.")),
        "Whoever reads the message has not the tensors before them. What did they send?",
    ),
    Mistake(
        "when the message of a level that ends past the last pixel holds no number",
        {"if_S": """
            if start + H * W > S:
                raise ValueError("spatial_shapes must fit into value. Is a level missing?")
        """},
        "Which level is it, how large, and how many pixels has value?",
    ),
    Mistake(
        "when no pixel may lie before a level",
        {
            "each_level": """
                seen = 0
                for (H, W), start in zip(spatial_shapes.tolist(), level_start_index.tolist()):
                    if start != seen:
                        raise ValueError(f"level_start_index must be {seen}, got {start}.")
                    seen += H * W
                @
            """
        },
        "Levels may lie apart: that is what level_start_index is for.",
    ),
]


MSDAFUNCTION: list[Mistake] = [
    Mistake(
        "when there are three gradients for five arguments",
        {"result_2": "return grad_value, grad_loc, grad_attn"},
        "PyTorch counts the arguments of forward. What is the gradient of a table of integers?",
    ),
    Mistake(
        "when the gradients of locations and weights change places",
        {"result_2": "return grad_value, None, None, grad_attn, grad_loc"},
        "Gradients come back in the order of forward's arguments.",
    ),
    Mistake(
        "when every GPU is taken to be of one and the same capability",
        {
            "grad_value": """
                from solutions import lab09
                grad_value, grad_loc, grad_attn = lab09.msda_backward_switched(grad_out, *ctx.saved_tensors, (8, 0))
            """
        },
        "Whose capability is it? The tensors lie on a GPU that can be asked.",
    ),
    Mistake(
        "when grad_out is taken for ones",
        {
            "grad_value": "grad_value, grad_loc, grad_attn = lab08.msda_backward(torch.ones_like(grad_out), *ctx.saved_tensors)"
        },
        "The output is not the loss. What does grad_out say about the two?",
    ),
    Mistake(
        "when grad_out is multiplied once more",
        {"result_2": "return grad_value * grad_out.mean(), None, None, grad_loc, grad_attn"},
        "Your kernel has multiplied by grad_out already.",
    ),
    Mistake(
        "when tensors are put on ctx as they are",
        {
            "save_for_backward": "ctx.kept = (value, spatial_shapes, level_start_index, sampling_locations, attention_weights)",
            "grad_value": "grad_value, grad_loc, grad_attn = lab08.msda_backward(grad_out, *ctx.kept)",
        },
        "PyTorch counts the changes of a tensor, and compares only for those that it was asked to save.",
    ),
    Mistake(
        "when copies are kept",
        {
            "save_for_backward": "ctx.save_for_backward(value.clone(), spatial_shapes, level_start_index, sampling_locations, attention_weights)"
        },
        "A copy of value cannot be changed by anybody, true. It doubles the memory of the largest tensor.",
    ),
    Mistake(
        "when nothing says that it is differentiable once",
        {
            "backward": """
                @staticmethod
                def backward(ctx, grad_out):
            """
        },
        "PyTorch records what a backward does, too. What does it see of a kernel launch?",
    ),
    Mistake(
        "when the gradient of value is forgotten",
        {"result_2": "return None, None, None, grad_loc, grad_attn"},
        "None means that the result does not depend on the argument.",
    ),
    Mistake(
        "when the forward returns nothing",
        {
            "result": "lab05.msda_forward(value, spatial_shapes, level_start_index, sampling_locations, attention_weights)"
        },
        "What the launcher gives has to be handed on.",
    ),
    Mistake(
        "when the gradients of locations and weights stand where the tables are",
        {"result_2": "return grad_value, grad_loc, grad_attn, None, None"},
        "One place for each argument of forward, in its order. The tables are second and third.",
    ),
    Mistake(
        "when the forward is left to torch",
        {
            "result": """
                from msda_core.reference import msda
                return msda(value, spatial_shapes, level_start_index, sampling_locations, attention_weights)
            """
        },
        "You have the kernel: this is where it is shipped.",
    ),
]


MYMSDEFORMATTN: list[Mistake] = [
    Mistake(
        "when the softmax runs over the heads",
        {
            "weights": "weights = self.attention_weights(query).reshape(B, Q, M, L * K).softmax(2).reshape(B, Q, M, L, K)"
        },
        "A head shares its attention out among its own points. Over which axis do they lie?",
    ),
    Mistake(
        "when each weight goes through a sigmoid",
        {"weights": "weights = self.attention_weights(query).reshape(B, Q, M, L * K).sigmoid().reshape(B, Q, M, L, K)"},
        "Each is between 0 and 1 then. What is their sum?",
    ),
    Mistake(
        "when the offsets of levels and points change places",
        {"offsets": "offsets = self.sampling_offsets(query).reshape(B, Q, M, K, L, 2).transpose(3, 4).float()"},
        "The channels of sampling_offsets lie as (M, L, K, 2), as in Deformable DETR's checkpoints.",
    ),
    Mistake(
        "when the offsets of heads and levels change places",
        {"offsets": "offsets = self.sampling_offsets(query).reshape(B, Q, L, M, K, 2).transpose(2, 3).float()"},
        "The channels of sampling_offsets lie as (M, L, K, 2), as in Deformable DETR's checkpoints.",
    ),
    Mistake(
        "when a head takes every M-th channel",
        {"value_3": "value = value.unflatten(-1, (-1, M)).transpose(-1, -2).contiguous()"},
        "The channels of one head lie together: C is (M, D).",
    ),
    Mistake(
        "when every level has the reference point of the first",
        {"reference": "reference = reference_points[:, :, None, :1, None].float()"},
        "reference_points has a level axis of its own.",
    ),
    Mistake(
        "when every level has the size of the first",
        {
            "if_reference_points": """
                if reference_points.shape[-1] == 2:
                    locations = reference + offsets / input_spatial_shapes.flip(-1)[0]
                else:
                    locations = reference[..., :2] + offsets / K * reference[..., 2:] * 0.5
            """
        },
        "A pixel of a small level is larger. Which axis of offsets are the levels?",
    ),
    Mistake(
        "when half a pixel is taken off",
        {
            "if_reference_points": """
                if reference_points.shape[-1] == 2:
                    locations = reference + offsets / input_spatial_shapes.flip(-1)[:, None] - 0.5 / input_spatial_shapes.flip(-1)[:, None]
                else:
                    locations = reference[..., :2] + offsets / K * reference[..., 2:] * 0.5
            """
        },
        "The half pixel is the kernel's affair: a location runs from 0 to 1.",
    ),
    Mistake(
        "when locations are kept inside the image",
        {
            "call": """
                locations = locations.clamp(0, 1)
                @
            """
        },
        "A point outside reads zero; at the edge it reads the edge.",
    ),
    Mistake(
        "when padding is set to a large negative number",
        {"value_2": "value = value.masked_fill(input_padding_mask[..., None], -1e9)"},
        "That is for weights before a softmax. These are values, and they are summed.",
    ),
    Mistake(
        "when the size of a box is not used",
        {
            "if_reference_points": """
                if reference_points.shape[-1] == 2:
                    locations = reference + offsets / input_spatial_shapes.flip(-1)[:, None]
                else:
                    locations = reference[..., :2] + offsets / input_spatial_shapes.flip(-1)[:, None]
            """
        },
        "With a box, K steps are half of its size, not pixels.",
    ),
    Mistake(
        "when width and height of a box are swapped",
        {
            "if_reference_points": """
                if reference_points.shape[-1] == 2:
                    locations = reference + offsets / input_spatial_shapes.flip(-1)[:, None]
                else:
                    locations = reference[..., :2] + offsets / K * reference[..., 2:].flip(-1) * 0.5
            """
        },
        "A box is (x, y, w, h). Along which of w and h does x run?",
    ),
    Mistake(
        "when the query is added to the result",
        {"result": "return query + self.output_proj(MSDAFunction.apply(*call))"},
        "That is done around this layer, with a norm.",
    ),
    Mistake(
        "when steps begin at zero",
        {"steps": "steps = torch.arange(n_points)[:, None]"},
        "Point k begins k + 1 pixels away: the first point of every head would lie at the centre.",
    ),
    Mistake(
        "when x is the sine",
        {"ring": "ring = torch.stack([angle.sin(), angle.cos()], -1)"},
        "Head 0 looks along x: which of the two is 1 at angle 0?",
    ),
    Mistake(
        "when the bias is laid out as (L, M, K, 2)",
        {"bias": "bias = (ring[None, :, None] * steps).expand(n_levels, n_heads, n_points, 2)"},
        "The heads come first.",
    ),
    Mistake(
        "when the softmax runs over the points of each level",
        {"weights": "weights = self.attention_weights(query).reshape(B, Q, M, L, K).softmax(-1)"},
        "The weights of a head sum to one over all its points. On how many levels are they?",
    ),
    Mistake(
        "when the weights are not normalised",
        {"weights": "weights = self.attention_weights(query).reshape(B, Q, M, L * K).reshape(B, Q, M, L, K)"},
        "A linear layer may give any numbers. What makes them weights?",
    ),
    Mistake(
        "when offsets are divided by (H, W)",
        {
            "if_reference_points": """
                if reference_points.shape[-1] == 2:
                    locations = reference + offsets / input_spatial_shapes[:, None]
                else:
                    locations = reference[..., :2] + offsets / K * reference[..., 2:] * 0.5
            """
        },
        "An offset is (x, y). Along which of H and W does x run?",
    ),
    Mistake(
        "when offsets are not in pixels",
        {
            "if_reference_points": """
                if reference_points.shape[-1] == 2:
                    locations = reference + offsets
                else:
                    locations = reference[..., :2] + offsets / K * reference[..., 2:] * 0.5
            """
        },
        "A reference point runs from 0 to 1 over a level. How long is a pixel on that scale?",
    ),
    Mistake(
        "when a step of a box is a whole box",
        {
            "if_reference_points": """
                if reference_points.shape[-1] == 2:
                    locations = reference + offsets / input_spatial_shapes.flip(-1)[:, None]
                else:
                    locations = reference[..., :2] + offsets / K * reference[..., 2:]
            """
        },
        "K steps reach from the centre of a box to its edge.",
    ),
    Mistake(
        "when the offsets of a box are not divided by K",
        {
            "if_reference_points": """
                if reference_points.shape[-1] == 2:
                    locations = reference + offsets / input_spatial_shapes.flip(-1)[:, None]
                else:
                    locations = reference[..., :2] + offsets * reference[..., 2:] * 0.5
            """
        },
        "K steps reach from the centre of a box to its edge, not one.",
    ),
    Mistake(
        "when the mask is turned round",
        {"value_2": "value = value.masked_fill(~input_padding_mask[..., None], 0.0)"},
        "True is padding here. Which pixels do you set to zero?",
    ),
    Mistake(
        "when padding is masked before the projection",
        {
            "value": "value = self.value_proj(input_flatten if input_padding_mask is None else input_flatten.masked_fill(input_padding_mask[..., None], 0.0))",
            "value_2": "pass",
        },
        "A projection has a bias: what becomes of zero?",
    ),
    Mistake(
        "when padding is not masked",
        {"value_2": "pass"},
        "input_padding_mask says which pixels are none.",
    ),
    Mistake(
        "when the output is not projected",
        {"result": "return MSDAFunction.apply(*call)"},
        "There is a fourth linear layer. What mixes the heads?",
    ),
    Mistake(
        "when value is not projected",
        {"value": "value = input_flatten"},
        "Each head reads channels of its own: a projection makes them.",
    ),
    Mistake(
        "when the front door is not asked",
        {"check_inputs": ""},
        "A kernel believes what it is told. Who has looked?",
    ),
    Mistake(
        "when a new layer looks at one place",
        {"copy": "self.sampling_offsets.bias.zero_()"},
        "If all points of all heads begin at one place, they get the same gradient, and stay together.",
    ),
    Mistake(
        "when the directions lie on a circle",
        {"ring_2": ""},
        "Deformable DETR puts them on a square, so that a diagonal head reaches the corner pixel.",
    ),
    Mistake(
        "when all points of a head begin at the same distance",
        {"steps": "steps = torch.ones(n_points, 1)"},
        "Point k begins k + 1 pixels away.",
    ),
    Mistake(
        "when the weights of a new layer are drawn at random",
        {"each_zero": "for zero in (self.attention_weights.bias,):"},
        "At first the query has no say in where a head looks: which parameters must be zero?",
    ),
    Mistake(
        "when the softmax runs over the queries",
        {
            "weights": "weights = self.attention_weights(query).reshape(B, Q, M, L * K).softmax(1).reshape(B, Q, M, L, K)"
        },
        "A query's points share its attention, whoever else asks. Over which axis do they lie?",
    ),
]


TILE_QUERIES: list[Mistake] = [
    Mistake(
        "when queries stay in rows",
        lambda H, W, size: torch.arange(H * W),
        "A run of 64 in a row is 64 pixels wide and one high.",
    ),
    Mistake(
        "when queries stand in columns",
        lambda H, W, size: torch.arange(H * W).reshape(H, W).T.flatten(),
        "A column is as thin as a row.",
    ),
    Mistake(
        "when height and width of the level are swapped",
        {"y": 'y, x = torch.meshgrid(torch.arange(W), torch.arange(H), indexing="ij")'},
        "y runs to H, x to W.",
    ),
    Mistake(
        "when tiles that the level cuts are left out",
        lambda H, W, size: solution.tile_queries(H - H % 8, W - W % 8, size),
        "Most levels are no multiple of a tile.",
    ),
    Mistake(
        "when the numbers are float32",
        lambda H, W, size: solution.tile_queries(H, W, size).float(),
        "Whoever uses the order indexes with it.",
    ),
    Mistake(
        "when each query's place is given, not the query at each place",
        lambda H, W, size: solution.tile_queries(H, W, size).argsort(),
        "Element 0 is the first query of program 0. What is element 0 of yours?",
    ),
    Mistake(
        "when H is taken for W in the query's number",
        lambda H, W, size: (lambda order: order // W * H + order % W)(solution.tile_queries(H, W, size)),
        "Pixel y * W + x has number y * W + x: how many queries are in a row?",
    ),
]


# --- register -------------------------------------------------------------------------------------------------------


def _operator(
    name,
    *,
    fake=True,
    like=torch.Tensor.new_empty,
    order=(0, None, None, 1, 2),
    changes=False,
    seen=True,
    autograd=True,
    folded=True,
    dtype=None,
):
    """The right answer, and by its options the wrong ones."""
    tensor = torch.Tensor

    @torch.library.custom_op(name, mutates_args=())
    def forward(value: tensor, shapes: tensor, starts: tensor, loc: tensor, attn: tensor) -> tensor:
        if changes:
            loc.mul_(0.5)
        return solution.lab05.msda_forward(value, shapes, starts, loc, attn)

    @torch.library.custom_op(f"{name}_backward", mutates_args=())
    def backward(
        grad_out: tensor, value: tensor, shapes: tensor, starts: tensor, loc: tensor, attn: tensor
    ) -> tuple[tensor, tensor, tensor]:
        return solution.lab08.msda_backward(grad_out, value, shapes, starts, loc, attn)

    if fake:

        @forward.register_fake
        def _(value, shapes, starts, loc, attn):
            B, _, M, D = value.shape
            shape = (B, loc.shape[1], M * D) if folded else (B, loc.shape[1], M, D)
            return value.new_empty(shape, dtype=dtype or value.dtype)

    if fake is True:

        @backward.register_fake
        def _(grad_out, value, shapes, starts, loc, attn):
            return tuple(like(one, one.shape) for one in (value, loc, attn))

    def keep(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    def differentiate(ctx, grad_out):
        grads = (backward if seen else solution.lab08.msda_backward)(grad_out, *ctx.saved_tensors)
        return tuple(None if n is None else grads[n] for n in order)

    if autograd:
        forward.register_autograd(differentiate, setup_context=keep)
    return forward


REGISTER = [
    Mistake(
        "when nothing says what comes out",
        lambda name: _operator(name, fake=False),
        "A compiler has tensors without numbers. Who tells it the shape of the output, and of the gradients?",
    ),
    Mistake(
        "when the fake kernel of the gradients keeps the strides of the inputs",
        lambda name: _operator(name, like=lambda one, shape: torch.empty_like(one)),
        "Your backward returns contiguous gradients. What are the strides of `torch.empty_like(value)`, if value is a view?",
    ),
    Mistake(
        "when the fake output still has its heads apart",
        lambda name: _operator(name, folded=False),
        "Your forward returns (B, Q, M * D). What does its fake kernel return?",
    ),
    Mistake(
        "when the gradients come back for the wrong inputs",
        lambda name: _operator(name, order=(0, 1, 2, None, None)),
        "One gradient for each argument of the operator, in their order. Which of the five have none?",
    ),
    Mistake(
        "when the last two gradients change places",
        lambda name: _operator(name, order=(0, None, None, 2, 1)),
        "In which order does `lab08.msda_backward` return its three, and in which order are the arguments?",
    ),
    Mistake(
        "when an input is changed, and nobody is told",
        lambda name: _operator(name, changes=True),
        "`mutates_args=()` is a promise. A compiler may move your operator past whoever reads that input next.",
    ),
    Mistake(
        "when the backward is a call that no compiler can follow",
        lambda name: _operator(name, seen=False),
        "The compiler traces your backward formula, too, with tensors that have no numbers. What happens there to a launch?",
    ),
    Mistake(
        "when no gradient is registered",
        lambda name: _operator(name, autograd=False),
        "An operator of PyTorch's own kind has the derivative that you register, and no other.",
    ),
    Mistake(
        "when the operator of the gradients has no fake kernel",
        lambda name: _operator(name, fake="forward"),
        "A compiler traces the backward as well. Who tells it the shapes of the three gradients?",
    ),
    Mistake(
        "when the fake output is float32 whatever came in",
        lambda name: _operator(name, dtype=torch.float32),
        "Which dtype has the output, and from whom does it get it?",
    ),
]

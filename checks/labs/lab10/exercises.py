"""Lab 10, Ship it: its exercises."""

from checks.core.exercise import Property, exercise
from checks.labs.lab10 import wrong
from checks.labs.lab10.cases import (
    BAD,
    GOOD,
    LIMIT,
    PROMISE,
    TWICE,
    _all_there,
    _asks_the_gpu,
    _begins,
    _by_name,
    _door,
    _gathers,
    _keeps_little,
    _launches,
    _notices,
    _once,
    _there_and_back,
    _tiling_score,
    a_sum,
    as_models_call_it,
    boxes_given,
    half_value,
    no_query,
    padded,
    points_given,
    registered_as_called,
    registered_views,
    three_heads,
    two_images,
    two_in_a_batch,
)
from checks.labs.lab10.truth import _layer, _reference_check, _their_layer, _truth
from solutions import lab10 as solution

exercise(
    "10.check_inputs",
    reference=_reference_check,
    cases=[],
    properties=[*GOOD, *BAD],
    limit=LIMIT,
    mistakes=wrong.CHECK_INPUTS,
    hints=[
        "Which mistakes of a caller would make your kernel read where it must not, or give a wrong number in silence? "
        "And what would you want to read when it happens to you?",
        "Go from what can be read first to what needs it: kinds and devices, dtypes, number of axes, sizes that must agree, "
        "and last the numbers in the level table.",
        "`raise ValueError(f\"{name} must be …, got {tuple(tensor.shape)}. Is …?\")`. Unpack `B, S, M, D = value.shape` only "
        "after its rank is checked. In the table: height and width at least 1, start at least 0, `start + H * W <= S`.",
    ],
)  # fmt: skip


exercise(
    "10.MSDAFunction",
    reference=_truth,
    cases=[as_models_call_it, two_images, a_sum, no_query, half_value],
    properties=[
        Property("launches", "kernels do the work, there and back", _launches),
        Property("notices", "an input changed before the backward is found out, not used", _notices),
        Property("once", "a second derivative is refused, not taken for zero", _once),
        Property("asks_the_gpu", "lab 9's launcher, if you use it, is told which GPU it is", _asks_the_gpu),
        Property("keeps_little", "nothing but the inputs is kept for the backward", _keeps_little),
    ],
    invoke=_there_and_back,
    guarded=True,
    limit=LIMIT,
    parts=("the output", "grad_value", "grad_loc", "grad_attn"),
    carries=("05.msda_forward", "08.msda_backward", "09.msda_backward_switched"),
    mistakes=wrong.MSDAFUNCTION,
    hints=[
        "How many arguments has your forward, without ctx? For which of them is there such a thing as a gradient?",
        "`ctx.save_for_backward` keeps tensors and notices changes; `ctx.saved_tensors` gives them back. The backward calls "
        "your launcher, and hands its three results back in the order of the arguments, None between them.",
        "Two lines each. The backward returns five things: a gradient, None, None, a gradient, a gradient. Above it, under "
        "`@staticmethod`, a decorator of torch.autograd.function says how often it may be differentiated.",
    ],
)  # fmt: skip


exercise(
    "10.MyMSDeformAttn",
    reference=_their_layer,
    cases=[points_given, boxes_given, padded, three_heads, two_in_a_batch],
    properties=[
        Property("begins", "a new layer looks in M directions and weighs all points the same", _begins),
        Property("door", "bad inputs meet `check_inputs` before any kernel", _door),
    ],
    invoke=_layer,
    guarded=True,
    limit=LIMIT,
    parts=("the output", "the gradient of query", "the gradient of input_flatten", "the gradient of the parameters"),
    axes={
        "the output": ("image", "query", "channel"),
        "the gradient of query": ("image", "query", "channel"),
        "the gradient of input_flatten": ("image", "pixel", "channel"),
        "the gradient of the parameters": ("number",),
    },
    carries=("05.msda_forward", "08.msda_backward", "09.msda_backward_switched"),
    mistakes=wrong.MYMSDEFORMATTN,
    hints=[
        "What does the layer predict from the query, what does it take from the pixels, and in which of the two do levels "
        "have sizes?",
        "Project the pixels and set the padding to zero; predict offsets and weights from the query; turn offsets into "
        "locations; ask the front door; apply your function; project again.",
        "`offsets` as (B, Q, M, L, K, 2), `weights` by a softmax over L * K. A point: `reference[:, :, None, :, None] + "
        "offsets / (W, H)`. A box: its centre, plus offsets / K times half its size. Locations stay in float32.",
    ],
)  # fmt: skip


exercise(
    "10.register",
    reference=_truth,
    cases=[registered_as_called, registered_views],
    properties=[PROMISE, TWICE],
    invoke=_by_name,
    guarded=True,
    limit=LIMIT,
    parts=("the output", "grad_value", "grad_loc", "grad_attn"),
    carries=("05.msda_forward", "08.msda_backward", "09.msda_backward_switched"),
    stretch=True,
    mistakes=wrong.REGISTER,
    hints=[
        "How many operators does a compiler have to know that traces a training step: one, or two? And what does it need to know "
        "of each without running it?",
        "Two functions under `torch.library.custom_op`, with types on all arguments and on the result; each has a "
        "`register_fake` that returns `new_empty` of the right shape. The first also has `register_autograd`, whose backward "
        "calls the second.",
        "`setup_context(ctx, inputs, output)` keeps the five inputs with `ctx.save_for_backward`. The backward gets (ctx, grad_out) "
        "and returns five things, as in `MSDAFunction`.",
    ],
)  # fmt: skip


exercise(
    "10.tile_queries",
    reference=solution.tile_queries,
    cases=[],
    properties=[
        Property("all_there", "every query is there, once, on levels of any size", _all_there),
        Property("gathers", "more additions are merged than with rows or columns of queries", _gathers),
    ],
    limit=LIMIT,
    stretch=True,
    score=_tiling_score,
    mistakes=wrong.TILE_QUERIES,
    hints=[
        "Which 64 pixels have the smallest border, and why does the border count?",
        "Give every pixel a number by which to sort: first the tile it is in, then its place inside.",
        "`argsort` of tile * size + place. Tiles are 8 by 8 for 64; who beats squares? Think of the points: two pixels to every side.",
    ],
)  # fmt: skip

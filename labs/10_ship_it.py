import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium", app_title="10 · Ship it")

with app.setup:
    import math

    import marimo as mo
    import torch
    from torch.autograd.function import once_differentiable

    import checks
    from checks.ship import workshop as shipping, models as wild
    from checks.answers.carry import lab05, lab08, lab09
    from msda_core.figures import detector, merging, sampling


@app.cell(hide_code=True)
def _():
    checks.header(
        "10",
        able=[
            "make your two kernels one differentiable operation of PyTorch, and a layer that loads other people's weights",
            "refuse a bad call with a sentence that helps whoever made it",
            "say what your operator can do, what it cannot, and what nobody has tried, and prove the first",
        ],
        minutes=60,
        gpu="with a GPU, the suite runs on it too, training takes seconds, and your kernels race the shipped ones and mmcv's",
    )
    return


@app.cell(hide_code=True)
def _():
    lab05_file = checks.watch("05")
    lab08_file = checks.watch("08")
    lab09_file = checks.watch("09")
    files = (lab05_file, lab08_file, lab09_file)
    return (files,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 1 · The front door

    A kernel believes what it is told. Tell it that a level has one row more than it has, and it reads the next level, or the
    next tensor, and returns numbers. The first release of Deformable DETR itself divided (x, y) offsets by (H, W), and it took a
    reader of the code to notice (issue 6 of its repository).
    """)
    return


@app.cell(hide_code=True)
def _():
    guess_door = checks.predict(
        "Someone calls your kernel with spatial_shapes as (W, H) in the place of (H, W), on square levels and then on others. "
        "What happens without a front door?",
        ["an error, both times", "right results, then wrong ones, without a word", "wrong results, both times"],
    )
    guess_door
    return (guess_door,)


@app.cell(hide_code=True)
def _(guess_door):
    checks.reveal(
        guess_door,
        right="right results, then wrong ones, without a word",
        because={
            "an error, both times": "Who would raise it? H * W is W * H: every level still has as many pixels as before.",
            "right results, then wrong ones, without a word": "On a square level nothing is swapped. On any other, rows are "
            "cut at the wrong place and every number looks plausible. A front door cannot see that one either: which is why "
            "every test in this course has H different from W.",
            "wrong results, both times": "On a square level H and W are one number: a test on squares finds nothing.",
        },
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    What a front door *can* see, it should: kinds, devices, dtypes, ranks, sizes that do not agree, a level that reaches past
    the last pixel. Choose what goes wrong, and read what PyTorch says without one. Would you know what to do?
    """)
    return


@app.cell(hide_code=True)
def _():
    bad_call = mo.ui.dropdown(list(shipping.BAD_CALLS), value=next(iter(shipping.BAD_CALLS)), label="what is wrong")
    bad_call
    return (bad_call,)


@app.cell(hide_code=True)
def _(bad_call):
    mo.md(shipping.what_is_said(bad_call.value, check_inputs))
    return


@app.function
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
    raise NotImplementedError("10.check_inputs")


@app.cell(hide_code=True)
def _():
    checks.grade("10.check_inputs", lambda: check_inputs)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("10.check_inputs")
    return


@app.cell(hide_code=True)
def _(files):
    files
    mo.vstack(
        [
            mo.md(
                "From here on your answers call `lab05.msda_forward` and `lab08.msda_backward`, which you wrote, or "
                "`lab09.msda_backward_switched` in the latter's place. They are read from your notebooks, and read again "
                "whenever you save one."
            ),
            checks.underneath("05.msda_forward", "08.msda_backward", "09.msda_backward_switched"),
        ]
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 2 · One operation

    Autograd has never heard of your kernels. It has to be told two things: what to call on the way there, and what to call on
    the way back. Everything in between, the four corners, the weights, the sum, is one node of its graph.
    """)
    return


@app.cell(hide_code=True)
def _():
    guess_twice = checks.predict(
        "Your backward launches a kernel. Someone adds a penalty on that gradient to the loss and calls `backward()`. If you say "
        "nothing about it, what does the penalty do?",
        ["it raises an error", "it is differentiated as well", "nothing, without a word"],
    )
    guess_twice
    return (guess_twice,)


@app.cell(hide_code=True)
def _(guess_twice):
    checks.reveal(
        guess_twice,
        right="nothing, without a word",
        because={
            "it raises an error": "By itself it would: it has no history to go back through. Added to a loss that has one, nobody "
            "notices. One line makes it an error in most cases; see below.",
            "it is differentiated as well": "Autograd would have to look into your kernel. It sees a tensor that was empty, and is now full.",
            "nothing, without a word": "Autograd records operations of PyTorch, and a launch is none. The gradient has no history, so "
            "nothing flows back: the penalty is there, and does nothing. One line makes it an error in most cases; see below.",
        },
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    The line is `@once_differentiable`. It gives the gradients a history that raises an error, but only where the incoming
    `grad_out` has a history itself (PyTorch's own comment calls it an approximation). After `out.square().sum()` it has one.
    After `out.sum()` it is a plain one, the gradients have no history at all, and the penalty is ignored as before, without a
    word. What always holds: a gradient that came out of a kernel cannot be differentiated, and one has to ask
    `torch.autograd.gradgradcheck` or one's own test, not hope for an error.
    """)
    return


@app.class_definition
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
        raise NotImplementedError("10.MSDAFunction")

    @staticmethod
    def backward(ctx, grad_out):
        """`lab08.msda_backward`: one gradient for each argument of forward after ctx, None for those that have none.

        Or `lab09.msda_backward_switched`, which wants to know the GPU's capability.

        Args:
            ctx: as the forward left it.
            grad_out: (B, Q, M * D), how the loss changes with each number of the output; any strides.
        """
        raise NotImplementedError("10.MSDAFunction")


@app.cell(hide_code=True)
def _(files):
    files
    checks.grade("10.MSDAFunction", lambda: MSDAFunction)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("10.MSDAFunction")
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 3 · The layer

    What a model holds is not the operator but a layer around it: one projection makes the values, two more predict from each
    query where to look and how much each look counts. Below is what a new layer looks like before it has learned anything.
    """)
    return


@app.cell(hide_code=True)
def _():
    new_heads = mo.ui.slider(1, 8, value=8, label="heads", show_value=True)
    new_points = mo.ui.slider(1, 6, value=4, label="points", show_value=True)
    mo.hstack([new_heads, new_points], justify="start")
    return new_heads, new_points


@app.cell(hide_code=True)
def _(new_heads, new_points):
    sampling.ring(new_heads.value, new_points.value)
    return


@app.class_definition
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
        raise NotImplementedError("10.MyMSDeformAttn")

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
        raise NotImplementedError("10.MyMSDeformAttn")


@app.cell(hide_code=True)
def _(files):
    files
    checks.grade("10.MyMSDeformAttn", lambda: MyMSDeformAttn)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("10.MyMSDeformAttn")
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 4 · One operation for compilers, too

    `torch.compile` reads Python and replaces it. Your launcher it cannot read: it ends in a launch. So it breaks the model in
    two there, or gives up (`fullgraph=True`). `torch.library.custom_op` makes the launcher an operator of PyTorch's own kind,
    and then a compiler does not look inside, if you tell it three things:

    - a **fake kernel**: what comes out, its shape, dtype and strides, without computing it. It gets tensors without numbers;
    - the **gradients**: `register_autograd(backward, setup_context=…)`, as in section 2, and the backward has to be an operator
      with a fake kernel as well, since a compiler follows it there;
    - which inputs are changed: none (`mutates_args=()`), and that has to be true.
    """)
    return


@app.cell(hide_code=True)
def _():
    guess_strides = checks.predict(
        "`value` is a transposed view. The real backward returns a contiguous `grad_value`; its fake kernel returns `torch.empty_like(value)`. What is wrong with that?",
        ["nothing: shape and dtype are right", "empty_like keeps the strides of the view", "empty_like is not allowed in a fake kernel"],
    )
    guess_strides
    return (guess_strides,)


@app.cell(hide_code=True)
def _(guess_strides):
    _view = torch.empty(1, 2, 8, 4).transpose(1, 2)
    checks.reveal(
        guess_strides,
        right="empty_like keeps the strides of the view",
        because={
            "nothing: shape and dtype are right": "Compiled code goes on with the strides that were promised, and reads the numbers in the wrong order, or stops with an assertion.",
            "empty_like keeps the strides of the view": f"`torch.empty_like` of a dense tensor copies its strides: {tuple(torch.empty_like(_view).stride())} here, where a contiguous one has {tuple(_view.contiguous().stride())}. `new_empty(shape)` is contiguous.",
            "empty_like is not allowed in a fake kernel": "It is, and often it is right. Here the real kernel does not do the same.",
        },
    )
    return


@app.function
def register(name: str) -> torch.library.CustomOpDef:
    """Register your two kernels with PyTorch, so that compilers see one operation where they cannot look inside.

    Args:
        name: "namespace::operator", not taken yet; the gradients may be an operator of their own, f"{name}_backward".

    Returns:
        The operator, made by `torch.library.custom_op`. It is called as `lab05.msda_forward` and differentiated once, by
        `lab08.msda_backward`. Neither changes an input. What it returns has the shape, dtype and strides that its fake
        kernels promise, whatever the strides of its inputs.
    """
    raise NotImplementedError("10.register")


@app.cell(hide_code=True)
def _(files):
    files
    checks.grade("10.register", lambda: register)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("10.register")
    return


@app.cell(hide_code=True)
def _():
    run_compile = mo.ui.run_button(label="Compile a layer around it (half a minute)")
    run_compile
    return (run_compile,)


@app.cell(hide_code=True)
def _(files, run_compile):
    files
    mo.md(shipping.compiled_in_notebook(register)) if run_compile.value else mo.md("*What PyTorch's own checks and `torch.compile(fullgraph=True)` say shows here.*")
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Is it fit to ship?

    Verdicts ask whether you understood. Whoever installs your operator asks something else: does it hold at 71 channels, at
    3096, with a batch of seven, with no query at all? The suite below runs your notebooks as they are on disk, on inputs that
    have broken other people's operators. It tests what is yours; where something of ours stands in, it says so and stops.
    """)
    return


@app.cell(hide_code=True)
def _():
    run_suite = mo.ui.run_button(label="Run the acceptance suite (about a minute)")
    run_suite
    return (run_suite,)


@app.cell(hide_code=True)
def _(files, run_suite):
    files
    certificate = shipping.accept_in_notebook() if run_suite.value else None
    certificate if certificate is not None else mo.md("*The result shows here: passed, failed, not run and why.*")
    return (certificate,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Take it with you

    An accepted operator can leave: as a package with your kernels, as you wrote them, and the tests they passed. It needs
    torch and Triton and nothing of this course.
    """)
    return


@app.cell(hide_code=True)
def _():
    export_folder = mo.ui.text(value="my_msda_package", label="into the folder")
    run_export = mo.ui.run_button(label="Export")
    mo.hstack([export_folder, run_export], justify="start")
    return export_folder, run_export


@app.cell(hide_code=True)
def _(certificate, export_folder, run_export):
    (
        mo.md(shipping.export_in_notebook(export_folder.value, certificate))
        if run_export.value
        else mo.md("*What was written shows here. Run the suite first.*")
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## In the wild

    Models call the operator in their own ways: Deformable DETR as a module, with padding masks (images of a batch differ in
    size, and a mask says which pixels were only added to make them equal); Mask2Former as a function, for its pixels; RT-DETR
    in a decoder that refines boxes. The models below are real, with small random weights. Yours is put in the place of the
    stock operator, and both must say the same, outputs and gradients.
    """)
    return


@app.cell(hide_code=True)
def _():
    wild_model = mo.ui.dropdown([*wild.MODELS, "BEV layer with Z anchors"], value="Deformable DETR", label="model")
    run_wild = mo.ui.run_button(label="Put my operator in")
    mo.hstack([wild_model, run_wild], justify="start")
    return run_wild, wild_model


@app.cell(hide_code=True)
def _(files, run_wild, wild_model):
    files
    (
        shipping.in_the_wild(wild_model.value, check_inputs, MSDAFunction)
        if run_wild.value
        else mo.md("*Stock beside yours shows here.*")
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    A bird's-eye view asks differently. Its query is a pillar on the ground, with **Z anchors** at Z heights, each projected
    into the camera; point p of a head starts from anchor p % Z. Here is where one layer's points fall.
    """)
    return


@app.cell(hide_code=True)
def _():
    anchor_count = mo.ui.slider(1, 6, value=4, label="anchors of a pillar (Z)", show_value=True)
    anchor_count
    return (anchor_count,)


@app.cell(hide_code=True)
def _(anchor_count):
    shipping.pillars(anchor_count.value)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Train something

    A detector, small enough for this notebook: each scene has four shapes, each shape one query, each query two heads of four
    points. A box is drawn from what the points bring back and nothing else, so they have to find their shape. Every step runs
    your forward and your backward; on a CPU in Triton's interpreter, which is why the scenes are so small.
    """)
    return


@app.cell(hide_code=True)
def _():
    which_scene = mo.ui.slider(1, 20, value=3, label="scene", show_value=True)
    train_seconds = mo.ui.slider(20, 120, step=20, value=60, label="seconds at most", show_value=True)
    run_training = mo.ui.run_button(label="Train")
    mo.hstack([which_scene, train_seconds, run_training], justify="start")
    return run_training, train_seconds, which_scene


@app.cell(hide_code=True)
def _(files, run_training, train_seconds):
    files
    trained = shipping.train_in_notebook(MyMSDeformAttn, train_seconds.value) if run_training.value else None
    (
        mo.md("*The loss shows here.*")
        if trained is None
        else trained.message
        if trained.losses is None
        else mo.vstack([detector.loss_curve(trained.losses, trained.seconds), mo.md(trained.message)])
    )
    return (trained,)


@app.cell(hide_code=True)
def _(trained, which_scene):
    shipping.before_and_after(which_scene.value, trained)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## On silicon

    Which of the three is fastest is not a matter of opinion: yours, the shipped kernels, mmcv's where it is installed, on the
    calls of a decoder and of an encoder.
    """)
    return


@app.cell(hide_code=True)
def _():
    run_race = mo.ui.run_button(label="Race")
    run_race
    return (run_race,)


@app.cell(hide_code=True)
def _(files, run_race):
    files
    shipping.race_in_notebook(check_inputs, MSDAFunction) if run_race.value else mo.md("*The times show here.*")
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Open ground

    What your operator does not do, and what it would take.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md(shipping.open_ground())
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### A first step into it

    Here is the first of these as a puzzle without a kernel. Every pixel of a level is a query, and a program takes 64 of them.
    If it merged what its queries add to the same pixel, how many additions would be left? That depends on *which* 64.
    """)
    return


@app.cell(hide_code=True)
def _():
    group_size = mo.ui.slider(steps=[16, 32, 64, 128, 256], value=64, label="queries of a program", show_value=True)
    group_size
    return (group_size,)


@app.cell(hide_code=True)
def _(group_size):
    shipping.groups_of_rows(group_size.value)
    return


@app.function
def tile_queries(H: int, W: int, size: int) -> torch.Tensor:
    """Which queries meet in a program: the pixels of a level, in an order whose runs of `size` make the groups.

    Every pixel of an H x W level is a query (pixel y * W + x is number y * W + x). A program takes `size` of them, and
    what it adds to one pixel of the gradient is merged first. Near queries look at the same pixels.

    Args:
        H, W: the level; size: how many queries a program has, a power of two from 16 to 256.

    Returns:
        (H * W,), int64: every number once. Program i has the elements from i * size on.
    """
    raise NotImplementedError("10.tile_queries")


@app.cell(hide_code=True)
def _():
    checks.grade("10.tile_queries", lambda: tile_queries)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("10.tile_queries")
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    Your answer counts additions. What does a clock say? `msda_core` merges like this in the backward of an encoder's call, unasked
    where it was found to pay: an H200's generation, 4 points a level and 32 channels a head; in 32 bits only while the points of the
    calls before lay near their queries. A tile of 16 × 8 queries adds up in a window of pixels, and the window is added once
    (`msda_core/kernels/merged`). The forward of that path has nothing to add up; it reads tile by tile, so that neighbours find pixels
    in L1. These are its times beside those of the plain kernels, by how far the points lie from their queries.

    Two things happen as points spread. **Merging** has less to merge: from 8 pixels on no tile merges at all, and what is left
    of the difference is the order of the programs, not merging. And the **plain** backward becomes faster by itself. Additions to
    one address take turns, as in lab 8, and the further points spread, the fewer meet at one pixel at a time; that would explain
    it, but nobody has measured it apart. Points that lie anywhere (*uniform*) are slow in both.
    """)
    return


@app.cell(hide_code=True)
def _():
    merging.crossing()
    return


@app.cell(hide_code=True)
def _(files):
    files
    checks.closing("10", lambda: (check_inputs, MSDAFunction, MyMSDeformAttn, register, tile_queries))
    return


if __name__ == "__main__":
    app.run()

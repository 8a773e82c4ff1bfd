import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium", app_title="07 · The other direction")

with app.setup:
    from collections.abc import Callable
    from itertools import product
    from math import floor

    import marimo as mo
    import torch

    import checks
    from checks.show import derive
    from checks.answers.carry import lab01
    from checks.core.grade import latest
    from msda_core import reference
    from msda_core.figures import gradients


@app.cell(hide_code=True)
def _():
    checks.header(
        "07",
        able=[
            "derive the three gradients of the operator by hand, and write them without autograd",
            "say where the operator has a kink, which slope the kernels take there, and why",
            "test a gradient so that the test means something: which step, in which dtype, at which points",
        ],
        minutes=55,
        gpu="a GPU changes nothing in this lab",
    )
    return


@app.cell(hide_code=True)
def _():
    lab01_file = checks.watch("01")
    return (lab01_file,)


@app.cell(hide_code=True)
def _(lab01_file):
    lab01_file
    mo.vstack(
        [
            mo.md(
                "Your answers may call `lab01.to_pixels`, `lab01.corner_weights` and `lab01.bilinear_sample`, which you wrote "
                "in lab 01. They are read from your notebook, and read again whenever you save it."
            ),
            checks.underneath("01.to_pixels", "01.corner_weights", "01.bilinear_sample"),
        ]
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## What is asked

    Forward, the operator turns inputs into an output. In training somebody then turns the output into one number, the
    **loss**, and wants to know how to make it smaller. They tell us `grad_out`: for each number of the output, how fast
    the loss changes with it. We owe them the same for each of *our* inputs.

    | the input | how the loss changes with it | shape |
    |:---|:---|:---|
    | `attention_weights` | if this sample counted a little more | (B, Q, M, L, K) |
    | `sampling_locations` | if this point moved a little | (B, Q, M, L, K, 2) |
    | `value` | if this pixel were a little brighter | (B, S, M, D) |

    PyTorch's autograd could work it out. A kernel has no autograd: whoever writes the kernel does the calculus. So
    **inside your answers autograd is switched off**, and an attempt to use it is reported.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 1 · A ruler

    Before you write a gradient, make something to measure it with. It needs no calculus: take a step to either side, and
    see how much the function changed.
    """)
    return


@app.cell(hide_code=True)
def _():
    guess_central = checks.predict(
        "The slope of x² at x = 3 is 6. One step ahead, (f(3.1) - f(3)) / 0.1 gives 6.1. What do two sides give, "
        "(f(3.1) - f(2.9)) / 0.2?",
        ["6.1 again", "6.05: half the error", "6: no error at all"],
    )
    guess_central
    return (guess_central,)


@app.cell(hide_code=True)
def _(guess_central):
    checks.reveal(
        guess_central,
        right="6: no error at all",
        because={
            "6.1 again": "The error of a step ahead is +0.1. A step back has -0.1, and the two sides together are their mean.",
            "6.05: half the error": "The two steps are off by +0.1 and -0.1. What is their mean?",
            "6: no error at all": "The two errors cancel. What is left comes from the third derivative, which x² does not have.",
        },
    )
    return


@app.function
def numeric_gradient(fn: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, eps: float) -> torch.Tensor:
    """The gradient of a function, found by trying: central differences, one element at a time.

    Args:
        fn: takes a tensor like x and returns one number, a tensor without axes.
        x: where to take the gradient; of any shape, also a transposed view; not to be changed.
        eps: how far to step to either side.

    Returns:
        Shaped and typed like x: (fn(x with this element eps larger) - fn(… eps smaller)) / (2 eps).
    """
    raise NotImplementedError("07.numeric_gradient")


@app.cell(hide_code=True)
def _():
    checks.grade("07.numeric_gradient", lambda: numeric_gradient)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("07.numeric_gradient")
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 2 · How long a step?

    A ruler has an error too, and so it is worth knowing how large. Two things spoil a difference quotient: the curve
    bends between the two sides, and the two values are rounded before they are subtracted.
    """)
    return


@app.cell(hide_code=True)
def _():
    guess_eps = checks.predict(
        f"You measure the slope of exp in float32, where 1 and the next number are {torch.finfo(torch.float32).eps:.1e} apart. Which "
        "eps gives the smallest error?",
        ["1e-7, the smallest that still moves x", "1e-4", "5e-3"],
    )
    guess_eps
    return (guess_eps,)


@app.cell(hide_code=True)
def _(guess_eps):
    checks.reveal(
        guess_eps,
        right="5e-3",
        because={
            "1e-7, the smallest that still moves x": "Then the two values differ in their last digit only, and that digit is rounded: all of it is error.",
            "1e-4": "The bend would be negligible, but the values differ in their last three digits only. A longer step is better.",
            "5e-3": "Rounding costs about 1e-7 / eps, the bend about eps². At 5e-3 the two are about equal.",
        },
    )
    return


@app.cell(hide_code=True)
def _():
    error_dtypes = mo.ui.multiselect(list(gradients.DTYPES), value=["float64", "float32"], label="computed in")
    error_function = mo.ui.dropdown(list(gradients.FUNCTIONS), value=next(iter(gradients.FUNCTIONS)), label="the slope of")
    kink_distance = mo.ui.slider(0.05, 0.95, step=0.05, value=0.25, label="pixels to the next kink (samples only)", show_value=True)
    mo.hstack([error_dtypes, error_function, kink_distance], justify="start", wrap=True)
    return error_dtypes, error_function, kink_distance


@app.cell(hide_code=True)
def _(error_dtypes, error_function, guess_eps, kink_distance):
    _passed = latest("07.choose_eps", lambda: choose_eps).state == "pass"
    (
        mo.md("*The error over the step shows here after your prediction.*")
        if guess_eps.value is None
        else gradients.error_over_eps(
            {d: gradients.sweep(error_function.value, d, kink_distance.value) for d in error_dtypes.value},
            {d: float(choose_eps(gradients.DTYPES[d])) for d in error_dtypes.value} if _passed else {},
            error_function.value,
        )
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    Add the 16-bit types, then look at a sample instead of exp. A sample does not bend at all, until the step reaches the
    next kink. Keep that in mind; for now, find a rule for functions that are smooth. `torch.finfo(dtype).eps` is how far the
    next number is from 1.
    """)
    return


@app.function
def choose_eps(dtype: torch.dtype) -> float:
    """A good step for central differences of a smooth function, whose argument and values are of the order of 1.

    Args:
        dtype: what the function computes in: torch.float64, float32, float16 or bfloat16.

    Returns:
        The step.
    """
    raise NotImplementedError("07.choose_eps")


@app.cell(hide_code=True)
def _():
    checks.grade("07.choose_eps", lambda: choose_eps)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("07.choose_eps")
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 3 · If a sample counted more

    The first gradient is the easy one. Derive it here: each step shows a small expression and asks for its derivative.
    Write it in Python (`2*a*(b - c)`); it is compared with a difference quotient in exact fractions, so any way of
    writing the right thing is right. The six derivations of this lab do not count in its score: they are there to be
    right before you write code.
    """)
    return


@app.cell(hide_code=True)
def _():
    line_attention = derive.ask("07.step_attention")
    line_attention
    return (line_attention,)


@app.cell(hide_code=True)
def _(line_attention):
    derive.answer("07.step_attention", line_attention)
    return


@app.function
def grad_attention(
    value: torch.Tensor,
    spatial_shapes: torch.Tensor,
    sampling_locations: torch.Tensor,
    attention_weights: torch.Tensor,
    grad_out: torch.Tensor,
) -> torch.Tensor:
    """How the loss changes with each attention weight.

    Args:
        value: (B, S, M, D); the pixels of level 0 row by row, then those of level 1, and so on.
        spatial_shapes: (L, 2), the (H, W) of each level.
        sampling_locations: (B, Q, M, L, K, 2), each point's (x, y): 0 and 1 are a level's edges; also outside.
        attention_weights: (B, Q, M, L, K), each point's weight.
        grad_out: (B, Q, M * D), how the loss changes with each number of the output.

    Returns:
        (B, Q, M, L, K), in attention_weights' dtype.
    """
    raise NotImplementedError("07.grad_attention")


@app.cell(hide_code=True)
def _():
    checks.grade("07.grad_attention", lambda: grad_attention)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("07.grad_attention")
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 4 · If a point moved

    What happens to a sample as its point moves along a row? Move it. Watch the slope below: where does it change, and
    where does it not?
    """)
    return


@app.cell(hide_code=True)
def _():
    walk_x = mo.ui.slider(-1.8, 6.8, step=0.05, value=2.4, label="x", show_value=True)
    walk_y = mo.ui.slider(0.0, 2.0, step=0.05, value=0.3, label="y", show_value=True)
    walk_eps = mo.ui.slider(0.05, 1.0, step=0.05, value=0.2, label="eps", show_value=True)
    mo.hstack([walk_x, walk_y, walk_eps], justify="start")
    return walk_eps, walk_x, walk_y


@app.cell(hide_code=True)
def _(walk_eps, walk_x, walk_y):
    gradients.slope_and_kinks(walk_x.value, walk_y.value, walk_eps.value)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    Straight pieces, joined at whole numbers. So between two pixels there is one slope, and it must be made of the four
    pixels around. Start with the weight of one of them.
    """)
    return


@app.cell(hide_code=True)
def _():
    line_weight = derive.ask("07.step_weight")
    line_weight
    return (line_weight,)


@app.cell(hide_code=True)
def _(line_weight):
    derive.answer("07.step_weight", line_weight)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    Now all four. Two gain what the other two lose; how much, depends on where the point is on the *other* axis.
    """)
    return


@app.cell(hide_code=True)
def _():
    cell_x = mo.ui.slider(0.0, 1.0, step=0.05, value=0.7, label="fx", show_value=True)
    cell_y = mo.ui.slider(0.0, 1.0, step=0.05, value=0.3, label="fy", show_value=True)
    cell_axis = mo.ui.radio(["x", "y"], value="x", label="moving along", inline=True)
    mo.hstack([cell_x, cell_y, cell_axis], justify="start")
    return cell_axis, cell_x, cell_y


@app.cell(hide_code=True)
def _(cell_axis, cell_x, cell_y):
    gradients.weight_slopes(cell_x.value, cell_y.value, cell_axis.value)
    return


@app.cell(hide_code=True)
def _():
    line_slope = derive.ask("07.step_slope")
    line_slope
    return (line_slope,)


@app.cell(hide_code=True)
def _(line_slope):
    derive.answer("07.step_slope", line_slope)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    That is the slope per *pixel*. The input is a location.
    """)
    return


@app.cell(hide_code=True)
def _():
    line_size = derive.ask("07.step_size")
    line_size
    return (line_size,)


@app.cell(hide_code=True)
def _(line_size):
    derive.answer("07.step_size", line_size)
    return


@app.cell(hide_code=True)
def _():
    line_location = derive.ask("07.step_location")
    line_location
    return (line_location,)


@app.cell(hide_code=True)
def _(line_location):
    derive.answer("07.step_location", line_location)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### On the kink itself

    The steps say "as long as the point does not leave its cell". What if it stands on the line between two cells, on a
    pixel's very centre? This is no rare accident: reference points on a regular grid put whole layers of points there
    when training begins.
    """)
    return


@app.cell(hide_code=True)
def _():
    _left, _right = gradients.sides(2, 0.3)
    guess_kink = checks.predict(
        f"In the row above, at y = 0.3, the slope left of x = 2 is {_left:+.2f} and right of it {_right:+.2f}. What does a central "
        "difference say at x = 2, with a small eps?",
        ["the left slope", "the right slope", "their mean", "it depends on eps"],
    )
    guess_kink
    return (guess_kink,)


@app.cell(hide_code=True)
def _(guess_kink):
    _left, _right = gradients.sides(2, 0.3)
    checks.reveal(
        guess_kink,
        right="their mean",
        because={
            "the left slope": "Only half of the interval lies to the left.",
            "the right slope": "Only half of the interval lies to the right.",
            "their mean": f"Half of the way it climbs at {_left:+.2f}, half at {_right:+.2f}: {(_left + _right) / 2:+.2f}, for any eps up to one "
            "pixel. No smaller step will ever change that, and no point of the curve has this slope.",
            "it depends on eps": "Left and right take half of the interval each, however long it is (up to one pixel).",
        },
    )
    return


@app.cell(hide_code=True)
def _():
    kink_at = mo.ui.slider(-1, 6, step=1, value=2, label="x, a whole number", show_value=True)
    kink_eps = mo.ui.slider(0.05, 1.0, step=0.05, value=0.3, label="eps", show_value=True)
    kink_off = mo.ui.slider(-0.5, 0.5, step=0.05, value=0.0, label="moved off it by", show_value=True)
    mo.hstack([kink_at, kink_off, kink_eps], justify="start")
    return kink_at, kink_eps, kink_off


@app.cell(hide_code=True)
def _(guess_kink, kink_at, kink_eps, kink_off):
    (
        mo.md("*The kink shows here after your prediction.*")
        if guess_kink.value is None
        else gradients.slope_and_kinks(kink_at.value + kink_off.value, 0.3, kink_eps.value)
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    At a kink there is no one right slope, only a convention. Kernels compute `floor(x)` and go on from there, which is the
    cell between `floor(x)` and `floor(x) + 1`: **the slope to the right**, and below. That is the convention here, and your
    `floor` will follow it by itself. Not everybody's is the same everywhere: at x or y of exactly -1, where a sample begins to
    rise, the CUDA kernels of mmcv ask for `h_im > -1 && w_im > -1` and skip the point. Its slope is 0 there, to the right it is
    not. Whoever compares the two at such a point finds a difference, and nobody is wrong.
    """)
    return


@app.function
def grad_locations(
    value: torch.Tensor,
    spatial_shapes: torch.Tensor,
    sampling_locations: torch.Tensor,
    attention_weights: torch.Tensor,
    grad_out: torch.Tensor,
) -> torch.Tensor:
    """How the loss changes with each sampling location.

    Where a pixel coordinate is a whole number the sample has a kink: take the slope of the cell between floor(x) and
    floor(x) + 1.

    Args:
        value: (B, S, M, D); the pixels of level 0 row by row, then those of level 1, and so on.
        spatial_shapes: (L, 2), the (H, W) of each level.
        sampling_locations: (B, Q, M, L, K, 2), each point's (x, y): 0 and 1 are a level's edges; also outside.
        attention_weights: (B, Q, M, L, K), each point's weight.
        grad_out: (B, Q, M * D), how the loss changes with each number of the output.

    Returns:
        (B, Q, M, L, K, 2), in sampling_locations' dtype.
    """
    raise NotImplementedError("07.grad_locations")


@app.cell(hide_code=True)
def _():
    checks.grade("07.grad_locations", lambda: grad_locations)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("07.grad_locations")
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 5 · Keep off the kinks

    A test that compares your gradient with a difference quotient at a kink fails, although nothing is wrong. The same
    happens *near* a kink, as soon as a step can cross it. So a test picks its points: it throws away those that are too
    near. Where are the kinks of an image that is `size` pixels wide? Count those at the ends too.
    """)
    return


@app.function
def near_kink(locations: torch.Tensor, shapes: torch.Tensor, tol: float) -> torch.Tensor:
    """Which points lie so near a kink that a step of tol pixels could cross it.

    Args:
        locations: (B, Q, M, L, K, 2), each point's (x, y): 0 and 1 are a level's edges; also outside.
        shapes: (L, 2), the (H, W) of each level.
        tol: pixels.

    Returns:
        (B, Q, M, L, K), bool: True where x or y lies within tol of a whole number of pixels at which the slope can
        change, from -1 (where the sample begins to rise) to the size (where it has faded).
    """
    raise NotImplementedError("07.near_kink")


@app.cell(hide_code=True)
def _():
    checks.grade("07.near_kink", lambda: near_kink)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("07.near_kink")
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 6 · If a pixel were brighter

    The third gradient turns the operator round. Forward, each point *reads* four pixels. Here each point *writes* to
    the four it read. And there is something new: two points may have read the same pixel.
    """)
    return


@app.cell(hide_code=True)
def _():
    line_value = derive.ask("07.step_value")
    line_value
    return (line_value,)


@app.cell(hide_code=True)
def _(line_value):
    derive.answer("07.step_value", line_value)
    return


@app.cell(hide_code=True)
def _():
    guess_lost = checks.predict(
        "Two points between the same four pixels each bring a gradient of 1 in all. If each *sets* its four pixels instead of "
        "adding to them, how much of the 2 is left?",
        ["2", "something between 1 and 2", "1"],
    )
    guess_lost
    return (guess_lost,)


@app.cell(hide_code=True)
def _(guess_lost):
    checks.reveal(
        guess_lost,
        right="1",
        because={
            "2": "That is what adding gives. A pixel that is set twice remembers the second time only.",
            "something between 1 and 2": "So it is when they share some pixels but not all: move the triangle below. Here they share all four.",
            "1": "Every pixel the first point wrote is written again by the second: the first might as well not have been there.",
        },
    )
    return


@app.cell(hide_code=True)
def _():
    second_x = mo.ui.slider(-1.0, 6.0, step=0.1, value=2.6, label="the triangle's x", show_value=True)
    second_y = mo.ui.slider(-1.0, 4.0, step=0.1, value=1.7, label="y", show_value=True)
    mo.hstack([second_x, second_y], justify="start")
    return second_x, second_y


@app.cell(hide_code=True)
def _(guess_lost, second_x, second_y):
    (
        mo.md("*The pixels show here after your prediction.*")
        if guess_lost.value is None
        else gradients.shared_pixels((2.3, 1.2), (second_x.value, second_y.value))
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    In a loop, adding is one character. In a kernel it is the whole difficulty: a thousand programs add to the same pixel
    *at the same time*. That is the next lab.
    """)
    return


@app.function
def grad_value(
    value: torch.Tensor,
    spatial_shapes: torch.Tensor,
    sampling_locations: torch.Tensor,
    attention_weights: torch.Tensor,
    grad_out: torch.Tensor,
) -> torch.Tensor:
    """How the loss changes with each pixel.

    Args:
        value: (B, S, M, D); the pixels of level 0 row by row, then those of level 1, and so on.
        spatial_shapes: (L, 2), the (H, W) of each level.
        sampling_locations: (B, Q, M, L, K, 2), each point's (x, y): 0 and 1 are a level's edges; also outside.
        attention_weights: (B, Q, M, L, K), each point's weight.
        grad_out: (B, Q, M * D), how the loss changes with each number of the output.

    Returns:
        (B, S, M, D), in value's dtype.
    """
    raise NotImplementedError("07.grad_value")


@app.cell(hide_code=True)
def _():
    checks.grade("07.grad_value", lambda: grad_value)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("07.grad_value")
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 7 · The whole bench

    Your ruler against your gradients, on a call with two levels. Look at the locations first: put points on pixel
    centres, lengthen the step, change the dtype. Which disagreements are errors of the gradient, and which of the ruler?
    """)
    return


@app.cell(hide_code=True)
def _():
    bench_what = mo.ui.dropdown(["sampling_locations", "attention_weights", "value"], value="sampling_locations", label="gradient of")
    bench_dtype = mo.ui.radio(["float64", "float32"], value="float64", label="computed in", inline=True)
    bench_step = mo.ui.slider(-9.0, -0.5, step=0.25, value=-4.0, label="log10 of eps", show_value=True)
    bench_on = mo.ui.checkbox(value=True, label="put every fourth point on a pixel's centre")
    mo.hstack([bench_what, bench_dtype, bench_step, bench_on], justify="start", wrap=True)
    return bench_dtype, bench_on, bench_step, bench_what


@app.cell(hide_code=True)
def _(bench_dtype, bench_on, bench_step, bench_what):
    _numeric, _whose_ruler = checks.stand_in("07.numeric_gradient", lambda: numeric_gradient)
    _near, _ = checks.stand_in("07.near_kink", lambda: near_kink)
    _hand, _whose = {
        "sampling_locations": lambda: checks.stand_in("07.grad_locations", lambda: grad_locations),
        "attention_weights": lambda: checks.stand_in("07.grad_attention", lambda: grad_attention),
        "value": lambda: checks.stand_in("07.grad_value", lambda: grad_value),
    }[bench_what.value]()
    _picture, _said = gradients.bench(
        _hand,
        _numeric,
        _near,
        what=bench_what.value,
        dtype=gradients.DTYPES[bench_dtype.value],
        eps=10**bench_step.value,
        on_centres=bench_on.value,
    )
    mo.vstack([_picture, mo.md(f"{_said} Drawn with {_whose} and {_whose_ruler}.")])
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## What it means

    You hold the backward pass, and a way to trust it. Three things to take along:

    - The **size factor** and the **attention weight** are where gradients of this operator go wrong, because a square
      image hides the first and a uniform weight the second. Test with neither.
    - `torch.autograd.gradcheck` is your ruler with more bookkeeping. It fails on kinks as yours does: give it float64, and
      points that `near_kink` lets through.
    - The gradients of attention and locations are *gathered*: each point writes its own place. The gradient of value is
      *scattered*, and places are shared.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Stretch · All three at once, without a loop

    Three functions read the same pixels three times. Do it in one pass, with tensors in place of the loop over points:
    what you write is, line by line, the kernel of the next lab. The score is points a second.
    """)
    return


@app.function
def all_gradients(
    value: torch.Tensor,
    spatial_shapes: torch.Tensor,
    sampling_locations: torch.Tensor,
    attention_weights: torch.Tensor,
    grad_out: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """All three gradients at once, without a loop over points.

    Args:
        value: (B, S, M, D); the pixels of level 0 row by row, then those of level 1, and so on.
        spatial_shapes: (L, 2), the (H, W) of each level.
        sampling_locations: (B, Q, M, L, K, 2), each point's (x, y): 0 and 1 are a level's edges; also outside.
        attention_weights: (B, Q, M, L, K), each point's weight.
        grad_out: (B, Q, M * D), how the loss changes with each number of the output.

    Returns:
        The gradients of value, sampling_locations and attention_weights, each shaped and typed like its own.
    """
    raise NotImplementedError("07.all_gradients")


@app.cell(hide_code=True)
def _():
    checks.grade("07.all_gradients", lambda: all_gradients)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("07.all_gradients")
    return


@app.cell(hide_code=True)
def _():
    checks.closing("07", lambda: (numeric_gradient, choose_eps, grad_attention, grad_locations, near_kink, grad_value, all_gradients))
    return


if __name__ == "__main__":
    app.run()

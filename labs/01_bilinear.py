import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium", app_title="01 · Reading between pixels")

with app.setup:
    from math import floor

    import marimo as mo
    import torch

    import checks
    from msda_core.figures import sampling


@app.cell(hide_code=True)
def _():
    checks.header(
        "01",
        able=[
            "say what deformable attention computes, and why nobody compares every pixel of a fine pyramid with every other",
            "turn a normalised location into a pixel coordinate, and a pixel coordinate into four weights",
            "write the whole operator in five loops that you can check by eye",
        ],
        minutes=40,
        gpu="a GPU changes nothing in this lab",
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Why not look at everything?

    A detector sees a photograph as a **pyramid**: the same picture as several **levels**, each half as wide as the one
    before, and each pixel a list of numbers (**channels**) that a network computed. Now somebody asks it a question,
    "is there something around here?". Whoever asks is a **query**, itself a list of numbers: one for each object that might
    be there, or one for each pixel.

    In ordinary attention every pixel has a **key**. A query is compared with all keys, and takes most from the pixels whose
    keys suit it. That is fine for the 196 patches into which a vision transformer cuts its image. But let every pixel of a
    fine pyramid be a query: twice the width is four times the pixels, and sixteen times the comparisons. **Deformable
    attention** has no keys. Each query looks at a handful of points, and *where* they lie is predicted from the query
    itself, so they can be anywhere, also **between pixels**.
    """)
    return


@app.cell(hide_code=True)
def _():
    image_width = mo.ui.slider(16, 256, step=16, value=128, label="width of the finest level", show_value=True)
    points_per_level = mo.ui.slider(1, 8, value=4, label="points per level K", show_value=True)
    mo.hstack([image_width, points_per_level], justify="start")
    return image_width, points_per_level


@app.cell(hide_code=True)
def _(image_width, points_per_level):
    _picture, _dense, _deformable = sampling.attention_cost(image_width.value, levels=4, points=points_per_level.value)
    mo.vstack(
        [
            _picture,
            mo.md(
                f"At width {image_width.value} a head reads **{_dense:,}** pixels densely and **{_deformable:,}** through points: "
                f"{_dense / _deformable:,.0f} times fewer."
            ),
        ]
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Where the points come from

    From the query, by two linear layers. The first turns it into **offsets**, so many pixels to the right and down for each
    point; the second into one number a point, and a **softmax** makes **attention weights** of these: none is negative, and
    those of a head sum to 1. The offsets start from the query's **reference point**: a pixel's own centre, or a guess where the
    object is. All of this is done several times over, by **heads** with channels, offsets and weights of their own, that can
    look for different things. A new layer has learned nothing yet and begins with a ring: each head looks in a direction of
    its own, and its points stand behind one another, one, two, three … pixels away.
    """)
    return


@app.cell(hide_code=True)
def _():
    ring_heads = mo.ui.slider(1, 8, value=8, label="heads M", show_value=True)
    ring_points = mo.ui.slider(1, 6, value=4, label="points K", show_value=True)
    mo.hstack([ring_heads, ring_points], justify="start")
    return ring_heads, ring_points


@app.cell(hide_code=True)
def _(ring_heads, ring_points):
    sampling.ring(ring_heads.value, ring_points.value)
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## The operator in one line

    The layers around it are ordinary ones; you build them in lab 10. What is special begins after them. A query $q$ has, in
    each head $m$ and on each level $l$, $K$ points with locations $p_{mqlk}$ and weights $A_{mqlk}$. The result is a weighted
    sum of samples:

    $$\text{out}_{qm} = \sum_{l=1}^{L} \sum_{k=1}^{K} A_{mqlk} \; v_{lm}\big(p_{mqlk}\big)$$

    Everything hard about it is in $v_{lm}(p)$: reading a feature map at a point that is not a pixel. You write that
    first, in three small steps, and then the sum.

    | name | shape | what |
    |:---|:---|:---|
    | `value` | (B, S, M, D) | the pixels of all levels, one level after another; S is their number |
    | `spatial_shapes` | (L, 2) | (H, W) of each level |
    | `sampling_locations` | (B, Q, M, L, K, 2) | (x, y): 0 and 1 are the edges of the image; a point may lie outside |
    | `attention_weights` | (B, Q, M, L, K) | one weight a point |
    | the result | (B, Q, M·D) | the heads' channels one after another |

    B batch, Q queries, M heads, L levels, K points per level, D channels per head.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 1 · From locations to pixels

    Locations run from 0 at one edge of the image to 1 at the other, whatever its size: the same point can be read on
    every level. Pixels are counted from 0, **at the centre** of the first pixel.
    """)
    return


@app.cell(hide_code=True)
def _():
    guess_centre = checks.predict(
        "An image is 4 pixels wide. What is the pixel coordinate of location 0.5, the middle of the image?",
        ["2.0", "1.5", "2.5"],
    )
    guess_centre
    return (guess_centre,)


@app.cell(hide_code=True)
def _(guess_centre):
    checks.reveal(
        guess_centre,
        right="1.5",
        because={
            "2.0": "2.0 is the centre of the third pixel: two pixels lie to its left, one to its right.",
            "1.5": "Two pixels lie on either side: the middle is where pixel 1 ends and pixel 2 begins.",
            "2.5": "2.5 is where pixel 2 ends and pixel 3 begins, three quarters of the way.",
        },
    )
    return


@app.function
def to_pixels(location: float, size: int) -> float:
    """A normalised coordinate in pixels.

    Args:
        location: 0 at one edge of the image, 1 at the other edge.
        size: how many pixels lie between the edges.

    Returns:
        The pixel coordinate: 0 at the centre of the first pixel, size - 1 at the centre of the last.
    """
    raise NotImplementedError("01.to_pixels")


@app.cell(hide_code=True)
def _():
    checks.grade("01.to_pixels", lambda: to_pixels)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("01.to_pixels")
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 2 · Four pixels, four weights

    A point between pixels belongs a little to each of the four around it. How much is an **area**: the point cuts the
    square between the four centres into four rectangles, and each pixel weighs as much as the rectangle *opposite* to
    it. In the middle is that square, enlarged. Move the point. What happens when it crosses the border?
    """)
    return


@app.cell(hide_code=True)
def _():
    point_x = mo.ui.slider(-1.0, 6.0, step=0.05, value=2.7, label="x", show_value=True)
    point_y = mo.ui.slider(-1.0, 6.0, step=0.05, value=3.2, label="y", show_value=True)
    mo.hstack([point_x, point_y], justify="start")
    return point_x, point_y


@app.cell(hide_code=True)
def _(point_x, point_y):
    sampling.corner_areas(sampling.eye_patch(), point_x.value, point_y.value)
    return


@app.function
def corner_weights(x: float, y: float) -> tuple[tuple[int, int], tuple[float, float, float, float]]:
    """The pixel to the upper left of a point, and how much each of the four pixels around it weighs.

    Args:
        x, y: pixel coordinates, also negative.

    Returns:
        (x0, y0), the upper left pixel, and the weights of the pixels
        (x0, y0), (x0 + 1, y0), (x0, y0 + 1), (x0 + 1, y0 + 1).
    """
    raise NotImplementedError("01.corner_weights")


@app.cell(hide_code=True)
def _():
    checks.grade("01.corner_weights", lambda: corner_weights)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("01.corner_weights")
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 3 · A sample, and what lies outside

    Multiply, add: that is a sample. The only question left is what to do with a pixel that does not exist. Here it
    counts as **zero**, so a sample does not break off at the border.
    """)
    return


@app.cell(hide_code=True)
def _():
    guess_border = checks.predict(
        "The first pixel of a row has value 1. What is the sample at x = -0.5, on the outer edge of that pixel?",
        ["1.0", "0.5", "0.0"],
    )
    guess_border
    return (guess_border,)


@app.cell(hide_code=True)
def _(guess_border):
    checks.reveal(
        guess_border,
        right="0.5",
        because={
            "1.0": "It would be 1 if the border pixel went on for ever. That is another convention (border padding).",
            "0.5": "Halfway between pixel 0 (value 1) and pixel -1 (not there, so zero).",
            "0.0": "The point is on the edge of pixel 0, but only half a pixel from its centre: it keeps half of it.",
        },
    )
    return


@app.cell(hide_code=True)
def _():
    row_x = mo.ui.slider(-2.0, 6.0, step=0.05, value=2.5, label="x", show_value=True)
    row_x
    return (row_x,)


@app.cell(hide_code=True)
def _(guess_border, row_x):
    (
        mo.md("*The sample along a row shows here after your prediction.*")
        if guess_border.value is None
        else sampling.border_fade([1.0, 0.6, 0.8, 0.3, 0.9], row_x.value)
    )
    return


@app.function
def bilinear_sample(image: torch.Tensor, x: float, y: float) -> torch.Tensor:
    """Read an image between its pixels. A pixel outside the image counts as zero.

    Args:
        image: (H, W, D).
        x, y: pixel coordinates, inside or outside.

    Returns:
        (D,), in image's dtype.
    """
    raise NotImplementedError("01.bilinear_sample")


@app.cell(hide_code=True)
def _():
    checks.grade("01.bilinear_sample", lambda: bilinear_sample)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("01.bilinear_sample")
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## 4 · The operator

    Here is what one query of one head reads: K points on each level. A model predicts them as *offsets in pixels* of the
    level, so the same offset reaches further on a coarser one: this is how the operator sees both a detail and its
    surroundings. Before the operator is called, each offset is divided by the level's size and added to the reference point.
    What the operator gets are **locations**, with 0 and 1 at the edges, as in section 1.
    """)
    return


@app.cell(hide_code=True)
def _():
    query_x = mo.ui.slider(0.0, 1.0, step=0.02, value=0.5, label="query x", show_value=True)
    query_y = mo.ui.slider(0.0, 1.0, step=0.02, value=0.36, label="query y", show_value=True)
    reach = mo.ui.slider(0.5, 6.0, step=0.25, value=2.0, label="offset (pixels)", show_value=True)
    mo.hstack([query_x, query_y, reach], justify="start")
    return query_x, query_y, reach


@app.cell(hide_code=True)
def _(query_x, query_y, reach):
    _images = sampling.pyramid()
    _sizes = torch.tensor([[image.shape[1], image.shape[0]] for image in _images])
    _angles = torch.arange(4) * torch.pi / 2 + 0.4
    _ring = torch.stack([_angles.cos(), _angles.sin()], -1)
    _locations = torch.tensor([query_x.value, query_y.value]) + reach.value * _ring / _sizes[:, None]
    _weights = torch.softmax(torch.tensor([1.6, 0.2, -1.0, 0.9, -0.6, 1.3, 0.4, -2.0, 0.0, -1.4, 1.0, -0.3, 0.7, -0.8, -2.0, 0.3]), 0).reshape(4, 4)
    sampling.points_over_pyramid(_images, (query_x.value, query_y.value), _locations, _weights)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    Now the sum. `value` holds all levels in one axis: the pixels of level 0 row by row, then those of level 1, and so
    on. You have `to_pixels` and `bilinear_sample`; what is left is knowing where each level begins.
    """)
    return


@app.function
def msda_loops(
    value: torch.Tensor, spatial_shapes: torch.Tensor, sampling_locations: torch.Tensor, attention_weights: torch.Tensor
) -> torch.Tensor:
    """Multi-scale deformable attention, one point at a time.

    Args:
        value: (B, S, M, D); the pixels of level 0 row by row, then those of level 1, and so on.
        spatial_shapes: (L, 2), the (H, W) of each level.
        sampling_locations: (B, Q, M, L, K, 2), each point's (x, y): 0 and 1 are a level's edges; also outside.
        attention_weights: (B, Q, M, L, K), each point's weight.

    Returns:
        (B, Q, M * D), in value's dtype.
    """
    raise NotImplementedError("01.msda_loops")


@app.cell(hide_code=True)
def _():
    checks.grade("01.msda_loops", lambda: msda_loops)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("01.msda_loops")
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## What it means

    You have the whole operator, and it is right: everything that follows in this course computes these same numbers.
    It is also slow, and not because of Python alone. Every sample reads four pixels at addresses that nobody can
    foresee. The next lab looks at those addresses.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Stretch · Everybody else's conventions

    `torch.nn.functional.grid_sample` knows two ways to place -1…1 on the pixels and three ideas of what lies outside.
    The operator uses one of the six. Write all six; the score is how many points a second you read.
    """)
    return


@app.function
def sample_like_torch(image: torch.Tensor, u: float, v: float, align_corners: bool, padding_mode: str) -> torch.Tensor:
    """Read an image the way `grid_sample` does, in each of its conventions.

    Args:
        image: (H, W, D).
        u, v: across and down, from -1 to 1.
        align_corners: True puts -1 and 1 on the centres of the outermost pixels, False on their outer edges.
        padding_mode: what lies outside: "zeros", "border" (the nearest pixel) or "reflection" (a mirror).

    Returns:
        (D,), in image's dtype.
    """
    raise NotImplementedError("01.sample_like_torch")


@app.cell(hide_code=True)
def _():
    checks.grade("01.sample_like_torch", lambda: sample_like_torch)
    return


@app.cell(hide_code=True)
def _():
    checks.hints("01.sample_like_torch")
    return


@app.cell(hide_code=True)
def _():
    checks.closing("01", lambda: (to_pixels, corner_weights, bilinear_sample, msda_loops, sample_like_torch))
    return


if __name__ == "__main__":
    app.run()

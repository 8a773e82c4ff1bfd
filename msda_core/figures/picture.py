"""A figure and its description: what a notebook shows, and what a screen reader says."""

import base64
import html
import io
from functools import cache

import matplotlib
import torch
from matplotlib.cbook import get_sample_data
from matplotlib.figure import Figure
from torch import Tensor

__all__ = ["BLUE", "GREEN", "GREY", "ORANGE", "PURPLE", "RED", "YELLOW", "Picture", "new_figure", "photograph"]

# Colours that stay apart for colour-blind readers (Okabe and Ito, 2008). A figure never tells two things by colour alone.
ORANGE, GREEN, BLUE, RED, PURPLE, YELLOW, GREY = (
    "#E69F00",
    "#009E73",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
    "#F0E442",
    "#7A828E",
)


class Picture:
    """A matplotlib figure that carries its own description.

    Args:
        figure: made with `new_figure`; not registered with pyplot, so nothing has to be closed.
        description: what there is to see, in a sentence or two, with its numbers.
    """

    def __init__(self, figure: Figure, description: str):
        self.figure, self.description = figure, description

    def png(self) -> bytes:
        """The figure as a PNG file."""
        buffer = io.BytesIO()
        self.figure.savefig(buffer, format="png", dpi=110)
        return buffer.getvalue()

    def _repr_html_(self) -> str:
        data = base64.b64encode(self.png()).decode()
        alt = html.escape(self.description, quote=True)
        wide = round(110 * self.figure.get_figwidth())
        return (  # on a narrow screen it scrolls, rather than shrink until nobody can read it
            f'<div style="overflow-x:auto;max-width:100%"><img src="data:image/png;base64,{data}" alt="{alt}" '
            f'style="width:100%;max-width:{wide}px;min-width:{min(wide, 620)}px;height:auto;border-radius:6px;display:block"></div>'
        )


def new_figure(width: float = 7.5, height: float = 3.6, **grid) -> tuple[Figure, object]:
    """A figure and its axes, in the labs' common style.

    Args:
        width, height: inches.
        grid: passed to `Figure.subplots`, as nrows, ncols, width_ratios.
    """
    with matplotlib.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
        return figure, figure.subplots(**grid)


@cache
def photograph() -> Tensor:
    """The photograph that matplotlib ships, Rear Admiral Grace Hopper's portrait: (600, 512, 3), values from 0 to 1."""
    from PIL import Image

    with get_sample_data("grace_hopper.jpg") as file, Image.open(file) as image:
        pixels = torch.frombuffer(bytearray(image.convert("RGB").tobytes()), dtype=torch.uint8)
        return pixels.reshape(image.height, image.width, 3).float() / 255

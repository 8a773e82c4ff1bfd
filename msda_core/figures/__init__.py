"""Every matplotlib figure the labs show: one module a subject, each function returns a `Picture` with its description."""

from msda_core.figures.picture import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, YELLOW, Picture, new_figure, photograph

__all__ = ["BLUE", "GREEN", "GREY", "ORANGE", "PURPLE", "RED", "YELLOW", "Picture", "new_figure", "photograph"]

"""The labs, in their order. Imports neither torch nor Triton: whoever lists the course need not load it."""

__all__ = ["LABS"]

#: Lab number → (notebook name without .py, title). The one list of labs.
LABS = {
    "01": ("01_bilinear", "Reading between pixels"),
    "02": ("02_pointers", "Tensors are pointers"),
    "03": ("03_memory", "The machine"),
    "04": ("04_triton", "Hello, Triton"),
    "05": ("05_forward", "The forward kernel"),
    "06": ("06_tiling", "Make it fast"),
    "07": ("07_gradients", "The other direction"),
    "08": ("08_atomics", "Concurrent writes"),
    "09": ("09_precision", "The precision switch"),
    "10": ("10_ship_it", "Ship it"),
}

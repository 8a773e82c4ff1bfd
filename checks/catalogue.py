"""The course as data: its labs and their exercises, in order.

Imports neither torch nor Triton: whoever lists the course need not load it. The README's table, the progress strip, the
command line and `core.exercise` read it; a test holds the declarations and the notebooks to it.
"""

from typing import NamedTuple

__all__ = ["LABS", "Lab", "declarations", "lab_number", "readme_table"]


class Lab(NamedTuple):
    """One lab.

    Attributes:
        notebook: the file's name in `labs/`, without .py.
        title: what the lab is called.
        question: what it answers.
        writes: what the learner writes, in a few words.
        minutes: for someone new to GPUs.
        gpu: what a GPU changes, in a few words.
        exercises: the functions to write, in the order of the notebook.
        stretch: those of them that do not count for the lab.
    """

    notebook: str
    title: str
    question: str
    writes: str
    minutes: int
    gpu: str
    exercises: tuple[str, ...]
    stretch: tuple[str, ...] = ()

    @property
    def needed(self) -> tuple[str, ...]:
        """The exercises that count for the lab."""
        return tuple(name for name in self.exercises if name not in self.stretch)


#: Lab number → lab. The one list of labs.
LABS: dict[str, Lab] = {
    "01": Lab(
        notebook="01_bilinear",
        title="Reading between pixels",
        question="What does the operator compute?",
        writes="the operator in loops",
        minutes=40,
        gpu="changes nothing",
        exercises=("to_pixels", "corner_weights", "bilinear_sample", "msda_loops", "sample_like_torch"),
        stretch=("sample_like_torch",),
    ),
    "02": Lab(
        notebook="02_pointers",
        title="Tensors are pointers",
        question="Where in memory is a pixel?",
        writes="the operator on flat memory",
        minutes=45,
        gpu="changes nothing",
        exercises=(
            "contiguous_strides", "flat_offset", "corner_offsets", "msda_flat", "first_overflow", "msda_gather",
        ),
        stretch=("msda_gather",),
    ),
    "03": Lab(
        notebook="03_memory",
        title="The machine",
        question="What does reading it cost?",
        writes="sectors, a cache, a roofline, three tilings",
        minutes=60,
        gpu="changes nothing",
        exercises=(
            "sectors", "efficiency", "lru_hits", "tiling_addresses", "traffic_bounds", "roofline", "order_queries",
        ),
        stretch=("order_queries",),
    ),
    "04": Lab(
        notebook="04_triton",
        title="Hello, Triton",
        question="How does one program a GPU?",
        writes="five small kernels",
        minutes=60,
        gpu="runs them too",
        exercises=(
            "add_kernel", "copy2d_kernel", "gather_rows_kernel", "bilinear_kernel", "row_sum_kernel", "softmax_kernel",
        ),
        stretch=("softmax_kernel",),
    ),
    "05": Lab(
        notebook="05_forward",
        title="The forward kernel",
        question="Can you write it from the signature?",
        writes="the forward kernel",
        minutes=60,
        gpu="runs it too",
        exercises=("corner", "msda_fwd_kernel", "msda_forward", "msda_fwd_logits_kernel"),
        stretch=("msda_fwd_logits_kernel",),
    ),
    "06": Lab(
        notebook="06_tiling",
        title="Make it fast",
        question="Why is the obvious kernel the slow one, and how do benchmarks lie?",
        writes="a faster kernel, and a way to time it",
        minutes=60,
        gpu="races it",
        exercises=("msda_fwd_fast_kernel", "launch_config", "device_time", "predict_time"),
        stretch=("predict_time",),
    ),
    "07": Lab(
        notebook="07_gradients",
        title="The other direction",
        question="What are its gradients?",
        writes="all three, by hand, and a way to test them",
        minutes=55,
        gpu="changes nothing",
        exercises=(
            "numeric_gradient", "choose_eps", "grad_attention", "grad_locations", "near_kink", "grad_value",
            "all_gradients",
        ),
        stretch=("all_gradients",),
    ),
    "08": Lab(
        notebook="08_atomics",
        title="Concurrent writes",
        question="What if two programs add to one pixel?",
        writes="atomics, and the backward kernel",
        minutes=70,
        gpu="runs it too",
        exercises=(
            "histogram_kernel", "merge_then_add_kernel", "deterministic_sum", "msda_bwd_kernel", "msda_backward", "msda_bwd_merged_kernel",
        ),
        stretch=("msda_bwd_merged_kernel",),
    ),
    "09": Lab(
        notebook="09_precision",
        title="The precision switch",
        question="What do 16 bits cost?",
        writes="the switch, derived from machine code",
        minutes=50,
        gpu="runs it too",
        exercises=(
            "stagnation_point", "classify_atomics", "accumulator_dtype", "msda_backward_switched", "location_error",
            "narrow_sum",
        ),
        stretch=("narrow_sum",),
    ),
    "10": Lab(
        notebook="10_ship_it",
        title="Ship it",
        question="Does it work in a real model?",
        writes="autograd, checks, a module; a trained detector",
        minutes=60,
        gpu="races and trains faster",
        exercises=("check_inputs", "MSDAFunction", "MyMSDeformAttn", "register", "tile_queries"),
        stretch=("register", "tile_queries"),
    ),
}  # fmt: skip


def lab_number(word: str) -> str:
    """The number of a lab as it is typed, "1" or "01" → "01".

    Raises:
        ValueError: there is no such lab.
    """
    lab = word.zfill(2)
    if lab not in LABS:
        raise ValueError(f"there is no lab {word!r}. Labs are {', '.join(LABS)}.")
    return lab


def declarations(lab: str) -> str:
    """The module that declares the exercises of a lab."""
    return f"checks.labs.lab{lab}.exercises"


def readme_table() -> str:
    """The labs as the table of the README."""
    rows = [
        f"| {lab} | {one.title} | {one.question} | {one.writes} | {one.minutes} | {one.gpu} |"
        for lab, one in LABS.items()
    ]
    head = ["| | lab | the question | what you write | minutes | a GPU |", "|---|---|---|---|---|---|"]
    return "\n".join(head + rows) + "\n"

"""The figures of lab 09: what they draw is what the numbers say."""

import math

import pytest
import torch

from msda_core.figures import precision


@pytest.fixture(autouse=True)
def _close():
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


def texts(picture) -> list[str]:
    return [t.get_text() for axes in picture.figure.axes for t in axes.texts]


def test_a_sum_of_ones_stops_where_the_dtype_does():
    stops, errors = precision.sum_errors("ones")
    for n, error in zip(stops, errors["bfloat16"]):
        assert error == pytest.approx(max(0, n - 256) / n)
    for n, error in zip(stops, errors["float16"]):
        assert error == pytest.approx(max(0, n - 2048) / n)
    assert errors["float32"] == [0] * len(stops)


@pytest.mark.parametrize("kind", ["ones", "between 0 and 1", "of either sign"])
def test_the_error_told_is_that_at_the_slider(kind):
    stops, errors = precision.sum_errors(kind)
    picture, at = precision.sums_by_collisions(kind, 512)
    assert at == {name: values[stops.index(512)] for name, values in errors.items()}
    assert all(f"{name} {value:.1e}" in picture.description for name, value in at.items())
    assert at["bfloat16"] > at["float16"] >= at["float32"] or kind == "ones"


def test_one_addition_rounds_to_the_nearest_and_a_tie_to_the_even_one():
    for total, share, after in ((256, 1, 256), (256, 1.5, 258), (128, 0.5, 128), (128, 0.6, 129), (254, 1, 255)):
        _, before, ended = precision.one_addition(total, share, torch.bfloat16)
        assert (before, ended) == (total, after)


def test_one_addition_says_so_when_the_numbers_are_too_dense_to_draw():
    sparse, _, _ = precision.one_addition(128, 1, torch.bfloat16)
    dense, _, _ = precision.one_addition(1, 0.1, torch.float32)
    title = lambda picture: picture.figure.axes[0].get_title(loc="left")  # noqa: E731
    assert "lines are the numbers" in title(sparse) and "more numbers here than can be drawn" in title(dense)


@pytest.mark.parametrize("dtype, bits", [(torch.float16, 10), (torch.bfloat16, 7)])
@pytest.mark.parametrize("W, at", [(8, 0.0), (8, 1.0), (167, 0.8), (336, 0.0), (336, 1.0)])
def test_every_place_of_a_pixel_is_counted(dtype, bits, W, at):
    picture, places = precision.places(dtype, W, at)
    pixel = int(picture.description.rsplit("in pixel ", 1)[1].rstrip("."))
    low, high, expected = pixel / W, (pixel + 1) / W, 0
    exponent = math.floor(math.log2(low))
    while 2.0**exponent < high:  # in each power of two, numbers lie 2^(exponent - bits) apart
        step = 2.0 ** (exponent - bits)
        start, end = max(low, 2.0**exponent), min(high, 2.0 ** (exponent + 1))
        expected += math.ceil(end / step) - math.ceil(start / step)
        exponent += 1
    assert places == expected


def test_the_listing_marks_the_line_and_counts_its_atomics():
    ptx = ["mov.b32 %r1, %r2;"] * 30 + ["red.global.gpu.relaxed.add.f32 [%rd1], %f1;"] * 2
    source = [f"line {n}" for n in range(1, 12)]
    picture = precision.listing(source, 1, {9: ptx}, "a kernel in float32")
    drawn = texts(picture)
    assert "▶line 9" in drawn and " line 4" in drawn and not any("line 10" in t for t in drawn)
    assert sum("red." in t for t in drawn) == 2, "the atomics are scrolled into sight"
    assert "became 32 instructions, of which 2 are atomics" in picture.description
    assert "from the same line, not shown: 18 before" in drawn, "what is left out is said"


def test_evidence_says_in_words_what_its_colours_say():
    rows = {"bfloat16": [([], [], [4, 4]), ([16], [], []), ([], [2], []), ([], [], [])]}
    picture = precision.evidence(rows, ["SM 8.0", "SM 9.0", "SM 1.0", "SM 0.1"])
    drawn = texts(picture)
    assert {"↻ 2 loops of 4 B", "1 reduction of 16 B", "1 returning atomic of 2 B", "none"} <= set(drawn)
    assert "bfloat16 on SM 8.0: 2 loops of 4 B" in picture.description


def test_evidence_shows_every_width():
    picture = precision.evidence({"float16": [([2, 4, 4], [], [])]}, ["SM 8.0"])
    assert any("2 to 4 B" in t for t in texts(picture))


def test_two_sums_tells_the_largest_error_of_each():
    truth = torch.ones(2, 3, 4, dtype=torch.float64)
    off = truth.clone()
    off[1, 2, 3] += 0.25
    picture = precision.two_sums(truth, {"narrow": off, "wide": truth}, torch.tensor([[0, 1, 2], [3, 4, 9]]))
    assert "summed in narrow it is off by up to 2.5e-01" in picture.description
    assert "summed in wide it is off by up to 0.0e+00" in picture.description
    assert "one got 9 additions" in picture.description


def test_moved_points_calls_the_function_it_is_given():
    asked = set()

    def error(dtype, W):
        asked.add((dtype, W))
        return 0.125 * W, 0.25 * W

    picture, at = precision.moved_points(error, 50)
    assert at["bfloat16, stored"] == (6.25, 12.5) and at["float32, stored"] == (6.25, 12.5)
    assert at["bfloat16, stored and computed"][1] > at["float16, stored and computed"][1] > 0
    assert {(torch.bfloat16, 50), (torch.float16, 1333), (torch.float32, 13)} <= asked
    assert "bfloat16, stored 6.2 on average and 12 at most" in picture.description

"""One result, three faces."""

from html.parser import HTMLParser

import numpy as np
import pytest

from checks.core.compare import difference
from checks.core.grade import grade
from checks.core.report import count


class Elements(HTMLParser):
    """Collects start tags, and checks that every element is closed in order."""

    VOID = {"br", "img"}

    def __init__(self, text):
        super().__init__()
        self.tags, self.open = [], []
        self.feed(text)
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def panel(report):
    return Elements(report._repr_html_())


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (lambda location, size: location * size - 0.5, "pass"),
        (lambda location, size: location * size, "fail"),
        (lambda location, size: 1 / 0, "crash"),
        (lambda location: location, "crash"),
    ],
)
def test_the_root_carries_name_state_and_a_label(answer, state):
    report = grade("01.to_pixels", answer)
    tag, attributes = panel(report).tags[0]
    assert (tag, attributes["data-check"], attributes["data-state"]) == ("section", "01.to_pixels", state)
    assert attributes["role"] == "status"
    assert attributes["aria-label"].startswith(f"01.to_pixels: {state}.")


def test_the_mistake_and_its_hint_are_in_the_panel_and_its_label():
    html = grade("01.to_pixels", lambda location, size: location * size)._repr_html_()
    assert "Your answer is what you get <strong>without the half pixel</strong>." in html
    assert "How far is its centre?" in html
    assert "you get without the half pixel." in dict(Elements(html).tags[0][1])["aria-label"]


def test_what_the_learner_writes_cannot_break_the_panel():
    def to_pixels(location, size):
        print("<script>alert(1)</script>")
        raise ValueError("</section><b>`")

    html = grade("01.to_pixels", to_pixels)._repr_html_()
    Elements(html)
    assert "<script>" not in html and "<b>" not in html


def test_not_run_is_counted_and_never_as_passed():
    report = grade("01.to_pixels", lambda location, size: location * size - 0.5)
    report.checks.append(type(report.checks[0])("on_silicon", "it is fast on a GPU", "not_run", "needs a CUDA GPU"))
    assert count([report])["not_run"] == 1
    assert "NOT RUN  01.to_pixels · on_silicon: needs a CUDA GPU" in report.text()
    assert "Needs a CUDA GPU" in report._repr_html_()


def test_numbers_are_shown_with_the_digits_that_differ():
    assert difference(0.50001, 0.5, 0.5) == "yours 0.50001, expected 0.5."
    assert difference(0.5 + 1e-12, 0.5, 0.5) is None


def test_numpys_booleans_are_booleans():
    assert difference(np.True_, True, True) is None
    assert difference(np.False_, True, True) == "your function returned False, expected True."
    assert difference(1, True, True) == "your function returned 1, expected True."


def test_a_part_that_is_a_list_is_named_and_so_is_the_place_in_it():
    like = ([4, 4], [2], [8])
    said = lambda yours: difference(yours, like, like, ["instruction"], ["reductions", "returning", "loops"])  # noqa: E731
    assert said(([4, 4], [2], [8])) is None
    assert said(([4, 4], [2], [4])) == "yours 4, expected 8 at loops, instruction 0."
    assert said(([4], [2], [8])) == "yours has 1 instruction, expected 2 at reductions, and is right as far as both go."


def test_a_name_at_the_start_of_a_sentence_keeps_its_letters():
    html = grade("10.check_inputs", lambda *args: None)._repr_html_()
    assert ">spatial_shapes is a list<" in html
    assert ">Value has no axis of heads<" in html

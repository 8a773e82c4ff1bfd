"""The reading edition, and the glossary it links to."""

import html
import re

import marimo as mo
import pytest

from checks.__main__ import main
from checks.show.glossary import GLOSSARY, anchor, words_of
from checks.show.static import plain
from checks.tests import browser
from checks.tests.conftest import WRITTEN, blank_text


def words(page: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", page))


def test_pages_an_index_and_a_glossary(tmp_path, capsys):
    assert main(["render", str(tmp_path), "--labs", "1", "--solved"]) == 0
    assert {p.name for p in tmp_path.iterdir()} == {"01_bilinear.html", "index.html", "glossary.html"}
    page = (tmp_path / "01_bilinear.html").read_text(encoding="utf-8")
    assert "return location * size - 0.5" in words(page)
    assert page.count("data:image/png;base64") >= 3
    # marimo's own export shows an empty page where its server cannot be reached.
    assert "<script" not in page and "<link" not in page and "<marimo-" not in page
    assert not re.search(r'src="(?!data:)', page)
    assert "glossary.html#bilinear-interpolation" in page
    glossary = (tmp_path / "glossary.html").read_text(encoding="utf-8")
    for term in GLOSSARY:
        assert f'id="{anchor(term)}"' in glossary
    assert re.search(r'id="bilinear-interpolation".*?<a href="01_bilinear.html">01</a>', glossary)
    assert 'href="01_bilinear.html"' in (tmp_path / "index.html").read_text(encoding="utf-8")


@pytest.mark.browser
def test_a_page_shows_in_a_browser_from_its_file(tmp_path):
    assert main(["render", str(tmp_path), "--labs", "2"]) == 0
    with browser.opened((tmp_path / "02_pointers.html").as_uri()) as opened:
        shown = opened.inner_text("body")
        assert opened.evaluate("() => [...document.images].every(i => i.naturalWidth)")
    assert "Tensors are pointers" in shown and "TODO" in shown and "def flat_offset" in shown


@pytest.mark.parametrize(
    ("made", "drawn"),
    [
        (mo.md("a $x_1$ b"), "<msub><mi>x</mi><mn>1</mn></msub>"),
        (mo.ui.slider(1, 5, value=2, label="width"), "width</span></span>: <b>2</b>"),
        (mo.ui.slider(steps=[1, 8, 64], value=8, label="n"), "<b>8</b>"),
        (mo.ui.dropdown(["one", "two"], value="two", label="which"), "<b>one · ▸ two</b>"),
        (mo.ui.radio(["a <b>", "c"], label="choose"), "<li>a &lt;b&gt;</li><li>c</li>"),
        (mo.accordion({"Hint": mo.md("look"), "Later": mo.lazy(lambda: 1)}), "look"),
        (mo.callout(mo.md("mind *this*"), kind="warn"), '<aside class="warn">'),
        (mo.hstack([mo.md("one & two"), mo.md("three")]), "one &amp; two"),
        (mo.as_html({"a": [1, 2]}), "&quot;a&quot;"),
    ],
    ids=lambda value: value[:12] if isinstance(value, str) else "",
)
def test_elements_of_the_notebook_become_plain(made, drawn):
    text = plain(mo.as_html(made).text)
    assert drawn in text and "marimo-" not in text and "Later" not in text


def test_an_element_without_a_plain_form_is_refused():
    with pytest.raises(ValueError, match="<marimo-plotly>, for which"):
        plain("<marimo-plotly></marimo-plotly>")


def test_blank_pages_hold_no_solution(tmp_path):
    assert main(["render", str(tmp_path), "--labs", "1"]) == 0
    page = words((tmp_path / "01_bilinear.html").read_text(encoding="utf-8"))
    assert "return location * size - 0.5" not in page and "01.to_pixels" in page


def test_every_term_is_used_by_some_lab():
    used = set().union(*(words_of(blank_text(lab)) for lab in WRITTEN))
    assert set(GLOSSARY) <= used, f"no lab uses {sorted(set(GLOSSARY) - used)}"


def test_a_lab_that_is_not_there(tmp_path, capsys):
    assert main(["render", str(tmp_path), "--labs", "99"]) == 2
    assert "there is no lab '99'" in capsys.readouterr().err

"""The reading edition, and the glossary it links to."""

import re

from checks.__main__ import main
from checks.glossary import GLOSSARY, anchor, words_of
from checks.tests.conftest import WRITTEN, blank_text


def test_pages_an_index_and_a_glossary(tmp_path, capsys):
    assert main(["render", str(tmp_path), "--labs", "1", "--solved"]) == 0
    assert {p.name for p in tmp_path.iterdir()} == {"01_bilinear.html", "index.html", "glossary.html"}
    page = (tmp_path / "01_bilinear.html").read_text(encoding="utf-8")
    assert "return location * size - 0.5" in page
    assert page.count("data:image/png;base64") >= 3
    assert "glossary.html#bilinear-interpolation" in page
    glossary = (tmp_path / "glossary.html").read_text(encoding="utf-8")
    for term in GLOSSARY:
        assert f'id="{anchor(term)}"' in glossary
    assert re.search(r'id="bilinear-interpolation".*?<a href="01_bilinear.html">01</a>', glossary)
    assert 'href="01_bilinear.html"' in (tmp_path / "index.html").read_text(encoding="utf-8")


def test_blank_pages_hold_no_solution(tmp_path):
    assert main(["render", str(tmp_path), "--labs", "1"]) == 0
    page = (tmp_path / "01_bilinear.html").read_text(encoding="utf-8")
    assert "return location * size - 0.5" not in page and "01.to_pixels" in page


def test_every_term_is_used_by_some_lab():
    used = set().union(*(words_of(blank_text(lab)) for lab in WRITTEN))
    if len(WRITTEN) == 10:
        assert set(GLOSSARY) <= used, f"no lab uses {sorted(set(GLOSSARY) - used)}"
    assert len(used) > 10


def test_a_lab_that_is_not_there(tmp_path, capsys):
    assert main(["render", str(tmp_path), "--labs", "11"]) == 2
    assert "there is no lab '11'" in capsys.readouterr().err

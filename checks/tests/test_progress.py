"""Where the learner stands, computed from their code."""

import json

import pytest

from checks.__main__ import grade_lab
from checks.answers import progress
from checks.tests.conftest import blank_text, solved_text


@pytest.fixture
def labs(tmp_path, monkeypatch):
    monkeypatch.setenv("MSDA_LABS", str(tmp_path))
    (tmp_path / "01_bilinear.py").write_text(blank_text("01"), encoding="utf-8")
    return tmp_path


def test_nothing_is_passed_before_it_is_graded(labs):
    (labs / "01_bilinear.py").write_text(solved_text("01"), encoding="utf-8")
    assert progress.standing("01") == progress.Standing("01", 0, 4)
    grade_lab("01")
    assert progress.standing("01") == progress.Standing("01", 4, 4)
    assert progress.standing("01").word == "done"


def test_changing_an_answer_takes_its_verdict_back_and_a_comment_does_not(labs):
    path = labs / "01_bilinear.py"
    path.write_text(solved_text("01"), encoding="utf-8")
    grade_lab("01")
    path.write_text(
        solved_text("01").replace("return location * size - 0.5", "return location * size"), encoding="utf-8"
    )
    assert progress.standing("01").passed == 3
    path.write_text(
        solved_text("01").replace("    return location * size - 0.5", "    # done\n    return location * size - 0.5"),
        encoding="utf-8",
    )
    assert progress.standing("01").passed == 4


@pytest.mark.parametrize("content", ["", "{", "[1]", json.dumps({"01.to_pixels": 3})])
def test_a_damaged_file_is_as_good_as_none(labs, content):
    (labs / ".progress.json").write_text(content)
    assert progress.standing("01").passed == 0
    (labs / "01_bilinear.py").write_text(solved_text("01"), encoding="utf-8")
    grade_lab("01")
    assert progress.standing("01").passed == 4


def test_the_strip_says_it_in_words(labs):
    strip = progress.strip("01")
    assert 'aria-label="lab 01, Reading between pixels: 0 of 4 exercises passed"' in strip
    assert 'data-lab="01" data-standing="open" aria-current="true"' in strip


def test_a_notebook_that_is_gone_is_open(labs):
    (labs / "01_bilinear.py").unlink()
    assert progress.standing("01").word == "open"

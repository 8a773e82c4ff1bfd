"""python -m checks: the terminal's face."""

import json
import re

import pytest

from checks.__main__ import main
from checks.answers import notebook
from checks.answers.carry import solution_module
from checks.tests.conftest import blank_text, solved_text


@pytest.fixture
def notebook_file(tmp_path):
    def write(text):
        path = tmp_path / "labs" / "01_bilinear.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write


def run(capsys, *words):
    status = main([str(word) for word in words])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_blank_lab_as_json(capsys, notebook_file):
    status, out, _ = run(capsys, 1, "--json", "--file", notebook_file(blank_text("01")))
    document = json.loads(out)
    assert status == 1
    assert document["version"] == 1 and isinstance(document["device"], str)
    (lab,) = document["labs"]
    assert lab["lab"] == "01"
    assert [e["name"] for e in lab["exercises"]][:2] == ["to_pixels", "corner_weights"]
    assert {e["status"] for e in lab["exercises"]} == {"todo"}
    assert {tuple(e) for e in lab["exercises"]} == {("name", "status", "seconds", "mistake", "checks")}
    assert {tuple(c) for e in lab["exercises"] for c in e["checks"]} == {("name", "status", "message")}


def test_solved_lab_as_json(capsys, notebook_file):
    status, out, _ = run(capsys, 1, "--json", "--file", notebook_file(solved_text("01")))
    exercises = json.loads(out)["labs"][0]["exercises"]
    assert status == 0
    assert {e["status"] for e in exercises} == {"pass"}
    assert all(e["seconds"] > 0 and e["mistake"] is None for e in exercises)


def test_the_last_line_counts_every_state(capsys, notebook_file):
    text = solved_text("01").replace("location * size - 0.5", "location * (size - 1)")
    status, out, _ = run(capsys, 1, "--file", notebook_file(text))
    assert status == 1
    assert re.fullmatch(r"\d passed, \d failed, 0 crashed, 0 to do, 0 not run", out.splitlines()[-1])
    assert "FAIL     01.to_pixels · right_edge" in out or "FAIL     01.to_pixels · left_edge" in out
    assert "when size - 1" in out or "with size - 1 in place of size" in out


def test_an_undone_stretch_does_not_fail_the_lab(capsys, notebook_file):
    text = notebook.reset(solved_text("01"), "01", solution_module("01"), "sample_like_torch")
    status, out, _ = run(capsys, 1, "--file", notebook_file(text))
    assert "TODO     01.sample_like_torch" in out and status == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["11"], "there is no lab '11'. Labs are 1 to 10; other commands are doctor, reset, class and render."),
        (["one"], "there is no lab 'one'."),
        (["1", "2", "--file", "x.py"], "--file needs exactly one lab"),
        (["1", "--file", "nowhere.py"], "there is no file nowhere.py."),
        (["reset", "1", "nothing"], "lab 01 has no exercise 'nothing'. It has to_pixels, corner_weights"),
    ],
)
def test_a_wrong_question_gets_an_answer_and_status_2(capsys, words, message):
    status, _, err = run(capsys, *words)
    assert status == 2 and message in err


def test_reset_puts_one_stub_back_and_keeps_a_copy(capsys, notebook_file):
    path = notebook_file(solved_text("01"))
    before = path.read_text(encoding="utf-8")
    status, out, _ = run(capsys, "reset", 1, "to_pixels", "--file", path)
    assert status == 0
    after = path.read_text(encoding="utf-8")
    assert 'raise NotImplementedError("01.to_pixels")' in after
    assert "def msda_loops" in after and 'NotImplementedError("01.msda_loops")' not in after
    copies = list((path.parent.parent / ".backup").glob("*.py"))
    assert [copy.read_text(encoding="utf-8") for copy in copies] == [before]
    assert copies[0].name in out


def test_reset_of_a_whole_lab_gives_the_shipped_notebook(capsys, notebook_file):
    path = notebook_file(solved_text("01"))
    run(capsys, "reset", 1, "--file", path)
    assert path.read_text(encoding="utf-8") == blank_text("01")
    status, out, _ = run(capsys, "reset", 1, "--file", path)
    assert status == 0 and "nothing was changed" in out


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace("def to_pixels(", "def to_pixel("),
        lambda text: text[: text.index("@app.function\ndef to_pixels")] + text[text.index("@app.cell(hide_code=True)\ndef _():\n    checks.grade(\"01.to_pixels\"") :],
        lambda text: text.replace("return location * size - 0.5", "return location * * size"),
        lambda text: text.replace("@app.function\ndef to_pixels", "@app.cell\ndef _():\n    helper = 1\n    def to_pixels"),
    ],
    ids=["renamed", "deleted", "syntax error", "ordinary cell"],
)  # fmt: skip
def test_reset_mends_a_damaged_notebook(capsys, notebook_file, damage):
    damaged = damage(solved_text("01"))
    path = notebook_file(damaged)
    status, out, _ = run(capsys, 1, "--file", path)
    assert status == 1 and ("no function `to_pixels`" in out or "syntax error" in out or "ordinary cell" in out)
    assert run(capsys, "reset", 1, "to_pixels", "--file", path)[0] == 0
    status, out, _ = run(capsys, 1, "--file", path)
    assert "TODO     01.to_pixels" in out and "PASS     01.bilinear_sample" in out, out
    assert "CRASH    01.msda_loops · one_level: it calls `to_pixels`, which is not written yet." in out


def test_doctor_finds_this_installation_sound(capsys):
    status, out, _ = run(capsys, "doctor")
    assert status == 0, out
    assert "torch " in out and "ok       the operator in loops and on grid_sample agree" in out
    assert out.splitlines()[-1] == "All is well."


def test_doctor_says_what_is_broken(capsys, monkeypatch):
    from msda_core import reference

    monkeypatch.setattr(reference, "msda_loops", lambda *args: 1 / 0)
    status, out, _ = run(capsys, "doctor")
    assert status == 1 and "broken   the operator in loops" in out and "ZeroDivisionError" in out


def test_timing_measures_every_exercise(capsys):
    status, out, _ = run(capsys, 1, "--timing")
    assert status == 0
    for name in ("01.to_pixels", "01.msda_loops", "median"):
        assert re.search(rf"^{name} +\d+\.\d+", out, re.M)

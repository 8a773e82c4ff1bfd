"""One verdict everywhere: what a notebook lets a function use, the terminal and the class let it use too."""

import codecs
import subprocess
import sys

import pytest

from checks.answers import notebook, progress
from checks.answers.carry import load_answers
from checks.answers.grading import grade_lab
from checks.tests.conftest import solved_text

RIGHT = "@app.function\ndef to_pixels(location: float, size: int) -> float:"
END = 'if __name__ == "__main__":'


def cell(body: str, takes: str = "", gives: str = "") -> str:
    """An ordinary cell, as marimo writes it to the file."""
    inner = "".join(f"    {line}\n" if line else "\n" for line in body.splitlines())
    return f"@app.cell\ndef _({takes}):\n{inner}    return ({gives})\n\n\n"


def answered(*cells: str, own: bool = False) -> str:
    """Lab 01 solved, with `to_pixels` as these cells have it; `own`: it keeps its own cell, and uses theirs."""
    text = solved_text("01")
    if not own:
        text = text.replace(notebook.function_text(text, "to_pixels"), "")
    return text.replace(END, "".join(cells) + END)


USES = "def to_pixels(location, size):\n    return location * size - HALF\n"
RIGHT_ONES = {
    "a constant in a cell of its own": answered(cell(USES, "HALF", "to_pixels,"), cell("HALF = 0.5", "", "HALF,")),
    "a constant in the same cell": answered(cell("HALF = 0.5\n" + USES, "", "to_pixels,")),
    "a constant that is private to the cell": answered(
        cell("_half = 0.5\n" + USES.replace("HALF", "_half"), "", "to_pixels,"), cell("_half = 7", "", "")
    ),
    "an import": answered(
        cell(USES.replace("HALF", "float(np.float64(0.5))"), "np", "to_pixels,"), cell("import numpy as np", "", "np,")
    ),
    "a helper that uses a constant": answered(
        cell(USES.replace("HALF", "half_of(1)"), "half_of", "to_pixels,"),
        cell("def half_of(x):\n    return x / TWO", "TWO", "half_of,"),
        cell("TWO = 2", "", "TWO,"),
    ),
    "a table that is filled beside a picture": answered(
        cell(USES.replace("HALF", "TABLE[1]"), "TABLE", "to_pixels,"),
        cell(
            "import nothing_like_this\nTABLE = []\nfor _i in range(3):\n    TABLE.append(_i / 2)\nraise SystemExit",
            "",
            "TABLE,",
        ),
    ),
    "a lambda with a name": answered(cell("to_pixels = lambda location, size: location * size - 0.5", "", "to_pixels,")),
    "its own cell, and a constant elsewhere": answered(cell("HALF = 0.5", "", "HALF,"), own=True).replace(
        "return location * size - 0.5", "return location * size - HALF"
    ),
    "a module beside the notebook": answered(cell("from halves import HALF\n" + USES, "", "to_pixels,")),
}  # fmt: skip


def state(path, function="to_pixels"):
    return next(r for r in grade_lab("01", path) if r.exercise.function == function)


@pytest.mark.parametrize("kind", RIGHT_ONES)
def test_what_a_notebook_accepts_the_terminal_accepts(tmp_path, kind):
    path = tmp_path / "01_bilinear.py"
    path.write_text(RIGHT_ONES[kind], encoding="utf-8")
    (tmp_path / "halves.py").write_text("HALF = 0.5\n")
    report = state(path)
    assert report.state == "pass", report.text()
    assert "def to_pixels" in notebook.function_text(RIGHT_ONES[kind], "to_pixels") or "lambda" in kind


@pytest.mark.parametrize("kind", ["a constant in a cell of its own", "a lambda with a name"])
def test_and_progress_knows_it(tmp_path, monkeypatch, kind):
    monkeypatch.setenv("MSDA_LABS", str(tmp_path))
    (tmp_path / "01_bilinear.py").write_text(RIGHT_ONES[kind], encoding="utf-8")
    grade_lab("01")
    assert progress.standing("01").passed == 4


def test_two_modules_of_one_name_are_two(tmp_path):
    for name, half in (("anna", 0.5), ("ben", 0.25)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "halves.py").write_text(f"HALF = {half}\n")
        (folder / "01_bilinear.py").write_text(RIGHT_ONES["a module beside the notebook"], encoding="utf-8")
    assert state(tmp_path / "anna" / "01_bilinear.py").state == "pass"
    assert state(tmp_path / "ben" / "01_bilinear.py").state == "fail"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (answered(cell(USES, "HALF", "to_pixels,")), "HALF"),
        (answered(cell(USES, "HALF", "to_pixels,"), cell("HALF = 1 / 0", "", "HALF,")), "ZeroDivisionError"),
        (answered(cell(USES, "", "to_pixels,"), own=True), "two cells of 01_bilinear.py define `to_pixels`"),
        (answered(cell(USES, "HALF", "to_pixels,"), cell("HALF = to_pixels", "to_pixels", "HALF,")), "no value"),
    ],
    ids=["nowhere", "raises", "twice", "in a circle"],
)
def test_what_a_notebook_rejects_is_said(tmp_path, text, message):
    path = tmp_path / "01_bilinear.py"
    path.write_text(text, encoding="utf-8")
    report = state(path)
    assert report.state == "crash" and message in report.text(), report.text()


def test_cells_that_nobody_needs_do_not_run(tmp_path):
    trace = tmp_path / "ran"
    draws = cell(
        f"open({str(trace)!r}, 'w').close()\nHALF = 0.5\nto_pixels_of_mine = 1\nopen({str(trace)!r}, 'a')", "", "HALF,"
    )
    path = tmp_path / "01_bilinear.py"
    path.write_text(answered(cell(USES, "HALF", "to_pixels,"), draws), encoding="utf-8")
    assert state(path).state == "pass" and not trace.exists()


ENCODED = {
    "a byte order mark": lambda text: codecs.BOM_UTF8 + text.encode(),
    "UTF-16": lambda text: text.encode("utf-16"),
    "UTF-16 without a mark": lambda text: text.encode("utf-16-le"),
    "UTF-32": lambda text: text.encode("utf-32"),
    "carriage returns": lambda text: text.replace("\n", "\r\n").encode(),
    "Latin-1 that says so": lambda text: ("# coding: latin-1\n# Müller\n" + text.replace("×", "x").replace("·", "-")).encode("latin-1", "replace"),
}  # fmt: skip


@pytest.mark.parametrize("kind", ENCODED)
def test_as_any_editor_saves_it(tmp_path, kind):
    path = tmp_path / "01_bilinear.py"
    path.write_bytes(ENCODED[kind](solved_text("01")))
    assert {found.reason for found in load_answers("01", path).values()} == {""}


def test_an_error_in_a_file_of_another_encoding_is_quoted(tmp_path):
    path = tmp_path / "01_bilinear.py"
    path.write_bytes(solved_text("01").replace("return location * size - 0.5", "return location / 0").encode("utf-16"))
    assert "`return location / 0` raised ZeroDivisionError" in state(path).text()


@pytest.mark.parametrize("data", [b"x = 1\0", b"(" * 5000, b"\xff\xfe\xff", b"x = '\xe9'", b""])
def test_what_is_no_notebook_is_said(tmp_path, data):
    path = tmp_path / "01_bilinear.py"
    path.write_bytes(data)
    assert all(found.reason for found in load_answers("01", path).values())


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "01_bilinear.py"
    path.write_bytes(b"old\r\n")
    path.chmod(0o600)
    notebook.write_whole(path, "new\nlines\n")
    assert path.read_bytes() == b"new\r\nlines\r\n" and path.stat().st_mode & 0o777 == 0o600

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("checks.answers.notebook.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        notebook.write_whole(path, "newer\n")
    assert path.read_bytes() == b"new\r\nlines\r\n" and list(tmp_path.iterdir()) == [path]


def test_a_process_killed_while_it_writes_leaves_the_old_file(tmp_path):
    path = tmp_path / "01_bilinear.py"
    path.write_text("old\n")
    code = (
        "import os, pathlib, signal, sys; from checks.answers import notebook; "
        "os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL); "
        "notebook.write_whole(pathlib.Path(sys.argv[1]), 'new')"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)]).returncode == -9
    assert path.read_text() == "old\n"

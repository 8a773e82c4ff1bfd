"""Code that carries itself forward: lab 02 on the learner's lab 01, whatever state that notebook is in."""

import html
import re
import sys

import pytest

from checks.answers import carry, notebook
from checks.answers.carry import Carried, load_answers, underneath
from checks.catalogue import LABS
from checks.core.exercise import lab_exercises
from checks.core.grade import grade
from checks.tests import browser
from checks.tests.conftest import blank_text, solved_text

# Right, and unlike the solution it keeps count of its calls.
COUNTED = """def corner_weights(x: float, y: float):
    corner_weights.calls = getattr(corner_weights, "calls", 0) + 1
    x0, y0 = floor(x), floor(y)
    right, low = x - x0, y - y0
    left, high = 1 - right, 1 - low
    return (x0, y0), (left * high, right * high, left * low, right * low)
"""
TRUNCATED = COUNTED.replace("floor(x), floor(y)", "int(x), int(y)")


def answered(name: str, source: str) -> str:
    """Lab 01 solved, with one answer of one's own."""
    return notebook.replace(solved_text("01"), name, source)


@pytest.fixture
def labs(tmp_path, monkeypatch):
    """A folder of notebooks that stands for the learner's; call it to write one."""
    monkeypatch.setenv("MSDA_LABS", str(tmp_path))
    monkeypatch.setattr(carry, "_CARRIED", {})

    def write(lab: str, text: str):
        path = tmp_path / f"{LABS[lab].notebook}.py"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def words(shown) -> str:
    """What a panel says, without its markup."""
    return " ".join(html.unescape(re.sub("<[^>]+>", "", shown._repr_html_())).split())


def lab02():
    """The answers of the lab 02 notebook in the folder, as its own cells see them."""
    return {name: found.function for name, found in load_answers("02").items()}


# --- when it passes -------------------------------------------------------------------------------------------------


def test_the_learners_function_is_used_when_it_passes(labs):
    path = labs("01", answered("01.corner_weights", COUNTED))
    judged = Carried("01", path).judge("corner_weights")
    assert judged.theirs
    assert judged.function.__code__.co_filename == str(path)
    assert re.fullmatch(r"passes its \d+ checks", judged.reason)
    assert Carried("01", path).corner_weights(0.25, 0.5) == ((0, 0), (0.375, 0.125, 0.375, 0.125))


def test_lab_02_runs_on_it_and_says_so(labs):
    labs("01", answered("01.corner_weights", COUNTED))
    labs("02", solved_text("02"))
    answers = lab02()
    mine = carry.carried("01").judge("corner_weights").function
    before = getattr(mine, "calls", 0)
    report = grade("02.msda_flat", answers["msda_flat"])
    assert report.state == "pass", report.text()
    assert mine.calls > before
    shown = underneath("01.to_pixels", "01.corner_weights")
    assert shown._repr_html_().count('data-whose="learner"') == 2
    assert "corner_weights: yours, from lab 01: it passes its" in words(shown)


def test_it_is_graded_once_until_it_changes(labs):
    path = labs("01", answered("01.corner_weights", COUNTED))
    carried = Carried("01", path)
    assert carried.judge("corner_weights") is carried.judge("corner_weights")


def test_only_setup_and_functions_run(labs, tmp_path):
    trace = tmp_path / "ran"
    cell = f"@app.cell\ndef _():\n    open({str(trace)!r}, 'w').close()\n    return\n\n\nif __name__"
    path = labs("01", solved_text("01").replace("if __name__", cell))
    assert Carried("01", path).judge("to_pixels").theirs
    assert not trace.exists()


# --- when it does not -----------------------------------------------------------------------------------------------


def _unparsable(text: str) -> str:
    """As marimo saves a cell that Python cannot parse."""
    cell = 'app._unparsable_cell(\n    r"""\n    def corner_weights(x, y):\n        return (floor(x),\n    """,\n    name="_"\n)\n\n\n'
    return _without(text).replace("if __name__", cell + "if __name__")


def _without(text: str) -> str:
    blocks = notebook._blocks(text)
    return "".join(block.text for block in blocks if not block.defines("corner_weights"))


def _ordinary(text: str) -> str:
    """As marimo saves a function that uses a name of another cell."""
    inner = "".join(f"    {line}\n" for line in COUNTED.splitlines())
    cell = f"@app.cell\ndef _(half):\n{inner}    return (corner_weights,)\n\n\n".replace("(x: float", "(x: half")
    broken = "@app.cell\ndef _():\n    half = 1 / 0\n    return (half,)\n\n\n"
    return _without(text).replace("if __name__", cell + broken + "if __name__")


BROKEN = {
    "wrong": (
        lambda text: answered("01.corner_weights", TRUNCATED),
        "yours does not pass",
        True,
    ),
    "raises": (
        lambda text: answered("01.corner_weights", "def corner_weights(x, y):\n    return x / 0, y\n"),
        "`return x / 0, y` raised ZeroDivisionError",
        True,
    ),
    "not written": (
        lambda text: notebook.reset(text, "01", carry.solution_module("01"), "corner_weights"),
        "it is not written yet",
        True,
    ),
    "renamed": (
        lambda text: text.replace("def corner_weights(", "def my_weights("),
        "01_bilinear.py has no function `corner_weights`. Was it renamed or deleted?",
        True,
    ),
    "deleted": (_without, "01_bilinear.py has no function `corner_weights`. Was it renamed or deleted?", True),
    "ordinary cell": (
        _ordinary,
        "`corner_weights` in 01_bilinear.py uses names of other cells, and they cannot be",
        True,
    ),
    "unparsable cell": (_unparsable, "the cell of `corner_weights` in 01_bilinear.py has a syntax error", True),
    "no function": (
        lambda text: _without(text).replace("if __name__", "corner_weights = 3\n\n\nif __name__"),
        "`corner_weights` in 01_bilinear.py is no function",
        True,
    ),
    "syntax error": (
        lambda text: text.replace("x0, y0 = floor(x), floor(y)", "x0, y0 = floor(x), floor(y"),
        "01_bilinear.py has a syntax error at line",
        False,
    ),
    "exception at import": (
        lambda text: text.replace("import marimo as mo\n", "import marimo as mo\n    import no_such_module\n"),
        "01_bilinear.py raises ModuleNotFoundError when it loads: No module named 'no_such_module'",
        False,
    ),
    "exception in the file": (
        lambda text: text.replace("app = marimo.App(", "1 / 0\napp = marimo.App("),
        "01_bilinear.py raises ZeroDivisionError when it loads: division by zero",
        False,
    ),
    "exits": (
        lambda text: text.replace("app = marimo.App(", "raise SystemExit('bye')\napp = marimo.App("),
        "01_bilinear.py raises SystemExit when it loads: bye",
        False,
    ),
    "empty": (lambda text: "", "01_bilinear.py has no function `corner_weights`", False),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_the_reference_stands_in_and_the_reason_is_told(labs, kind):
    damage, reason, others_stand = BROKEN[kind]
    text = damage(solved_text("01"))
    assert text != solved_text("01")
    path = labs("01", text)
    carried = Carried("01", path)
    judged = carried.judge("corner_weights")
    assert not judged.theirs
    assert reason in judged.reason
    assert "\n" not in judged.reason and "Errno" not in judged.reason and str(path.parent) not in judged.reason
    assert judged.function(-0.5, 0.25) == ((-1, 0), (0.375, 0.375, 0.125, 0.125))
    assert carried.judge("to_pixels").theirs == others_stand

    labs("02", solved_text("02"))
    report = grade("02.msda_flat", lab02()["msda_flat"])
    assert report.state == "pass", report.text()
    shown = underneath("01.to_pixels", "01.corner_weights")
    assert shown._repr_html_().count('data-whose="reference"') == (1 if others_stand else 2)
    said = words(shown)
    assert "corner_weights: ours stands in." in said
    assert reason.replace("`", "").lower() in said.lower()


def test_the_wrong_value_is_told(labs):
    path = labs("01", answered("01.corner_weights", TRUNCATED))
    assert re.search(r"yours -?\d, expected -\d at x0", Carried("01", path).judge("corner_weights").reason)


def test_a_notebook_that_is_not_there(labs, tmp_path):
    judged = Carried("01", tmp_path / "01_bilinear.py").judge("corner_weights")
    assert not judged.theirs
    assert judged.reason == "there is no file 01_bilinear.py."


def test_a_notebook_that_is_no_text(tmp_path):
    path = tmp_path / "01_bilinear.py"
    path.write_bytes(b"import marimo\n\xff\xfe\x00")
    judged = Carried("01", path).judge("corner_weights")
    assert not judged.theirs
    assert judged.reason == "01_bilinear.py cannot be read: it is no text in UTF-8."


def test_a_notebook_that_never_finishes_loading(labs, monkeypatch):
    monkeypatch.setattr(carry, "IMPORT_LIMIT", 0.5)
    path = labs("01", solved_text("01").replace("app = marimo.App(", "while True:\n    pass\napp = marimo.App("))
    judged = Carried("01", path).judge("corner_weights")
    assert not judged.theirs
    assert judged.reason == "01_bilinear.py does not finish loading within 0.5 s."


def test_a_blank_lab_01_holds_nobody_up(labs):
    labs("01", blank_text("01"))
    labs("02", solved_text("02"))
    assert grade("02.msda_flat", lab02()["msda_flat"]).state == "pass"
    assert words(underneath("01.corner_weights")).endswith("corner_weights: ours stands in. It is not written yet.")


def test_a_function_that_the_exercise_does_not_carry_is_ours(labs):
    """Inside an answer nothing is graded, so an earlier function nobody announced cannot be the learner's."""
    labs("01", solved_text("01"))

    def answer(location, size):
        whose.append(carry.carried("01").bilinear_sample.__module__)
        return location * size - 0.5

    whose = []
    assert grade("01.to_pixels", answer).state == "pass"
    assert set(whose) == {"standing_in_lab01"}


def test_an_unknown_function_is_an_error_that_lists_the_known_ones(labs):
    labs("01", solved_text("01"))
    with pytest.raises(ValueError, match="there is no exercise '01.corner_weight'.*01.corner_weights"):
        _ = carry.carried("01").corner_weight


# --- edits ----------------------------------------------------------------------------------------------------------


def test_an_edit_takes_effect_without_a_restart(labs):
    labs("02", solved_text("02"))
    labs("01", answered("01.corner_weights", TRUNCATED))
    flat, carried = lab02()["msda_flat"], carry.carried("01")
    assert grade("02.msda_flat", flat).state == "pass"
    assert not carried.judge("corner_weights").theirs

    path = labs("01", answered("01.corner_weights", COUNTED))
    assert grade("02.msda_flat", flat).state == "pass"
    mine = carried.corner_weights
    assert carried.judge("corner_weights").theirs and mine.calls > 0
    assert mine.__code__.co_filename == str(path)
    assert 'data-whose="learner"' in underneath("01.corner_weights")._repr_html_()

    labs("01", blank_text("01"))
    assert carried.judge("corner_weights").reason == "it is not written yet."
    path.unlink()
    assert "there is no file 01_bilinear.py." in carried.judge("corner_weights").reason
    labs("01", answered("01.corner_weights", COUNTED))
    assert carried.judge("corner_weights").theirs


def test_an_edit_of_the_same_length_is_noticed(labs):
    path = labs("01", answered("01.corner_weights", COUNTED))
    carried = Carried("01", path)
    assert carried.judge("corner_weights").theirs
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("right * high", "right + high"), encoding="utf-8")
    assert not carried.judge("corner_weights").theirs


def test_the_quoted_line_is_that_of_the_file_as_it_is_now(labs):
    path = labs("01", answered("01.corner_weights", "def corner_weights(x, y):\n    return x / 0\n"))
    carried = Carried("01", path)
    assert "`return x / 0`" in carried.judge("corner_weights").reason
    labs("01", answered("01.corner_weights", "def corner_weights(x, y):\n    unit = 0\n    return y / unit\n"))
    assert "line 3 of corner_weights: `return y / unit`" in carried.judge("corner_weights").reason


@pytest.mark.browser
@pytest.mark.timeout(900)
def test_saving_lab_01_regrades_an_open_lab_02(monkeypatch):
    """Lab 02 is solved in the browser on the reference's shoulders, and stays solved on the learner's own."""
    monkeypatch.setenv("MSDA_PATIENCE", "5")
    texts = {"01": answered("01.corner_weights", TRUNCATED), "02": blank_text("02")}
    with (
        browser.copied_labs(texts) as folder,
        browser.serving(notebook.notebook_path("02", folder)) as address,
        browser.opened(address) as page,
    ):
        shown = page.locator('[data-carried="01.corner_weights"]')
        browser.wait_shown(page, '[data-carried="01.corner_weights"][data-whose="reference"]', timeout=120)
        browser.solve(page, "02")
        assert "yours does not pass" in shown.inner_text().lower()
        notebook.notebook_path("01", folder).write_text(answered("01.corner_weights", COUNTED), encoding="utf-8")
        browser.wait_shown(page, '[data-carried="01.corner_weights"][data-whose="learner"]', timeout=120)
        browser.wait_state(page, "02.msda_flat", "pass", timeout=60)
        assert "yours, from lab 01" in shown.inner_text()


# --- solutions that lean on earlier ones ----------------------------------------------------------------------------


def test_a_copy_of_the_solutions_calls_copies():
    copy = carry.solution_module("02", "copied_lab02")
    assert copy.lab01 is not sys.modules["solutions.lab01"]
    assert carry.solution_module("02").lab01 is sys.modules["solutions.lab01"]
    assert grade("02.msda_flat", copy.msda_flat).state == "pass"


@pytest.mark.parametrize("exercise", [e for e in lab_exercises("02") if e.carries], ids=lambda e: e.name)
def test_the_solution_itself_is_no_answer(exercise):
    """Handing in our own solution, imported, is noticed."""
    module = carry.solution_module("02")
    report = grade(exercise.name, lambda *args: getattr(module, exercise.function)(*args))
    assert report.state == "fail"
    assert "which it is compared with" in report.worst.message

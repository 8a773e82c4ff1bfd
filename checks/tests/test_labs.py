"""Every lab, blank and solved, and every mistake it knows."""

import ast
import importlib
import importlib.util
import inspect
import os
import subprocess
import sys

import pytest
import torch

from checks.__main__ import grade_lab
from checks.answers import notebook
from checks.answers.carry import load_answers, solution_module
from checks.catalogue import LABS
from checks.core import compare
from checks.core.diagnose import FIXED_SEED, signature
from checks.core.exercise import Mistake, lab_exercises
from checks.core.grade import grade
from checks.core.places import text_of
from checks.show.static import cells_of, plain
from checks.tests.commute import commuted
from checks.tests.conftest import ALL, IN_A_BROWSER, WRITTEN, blank_text, solved_text


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """Tests run side by side; what is slow here because of a neighbour is not wrong."""
    monkeypatch.setenv("MSDA_PATIENCE", "5")


def write(folder, lab: str, text: str):
    path = folder / f"{LABS[lab].notebook}.py"
    path.write_text(text, encoding="utf-8")
    return path


def states(lab, path):
    return {report.exercise.function: report.state for report in grade_lab(lab, path)}


def test_blank_everything_is_to_do(lab, tmp_path):
    got = states(lab, write(tmp_path, lab, blank_text(lab)))
    assert got and set(got.values()) == {"todo"}, got


def test_solved_everything_passes(lab, tmp_path, monkeypatch):
    """Also when every commutative operation outside tagged places is turned round: an instructor may edit a solution."""
    name = f"turned_lab{lab}"
    path = tmp_path / f"{name}.py"
    path.write_text(commuted(text_of(f"solutions.lab{lab}")), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    turned = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(turned)
    monkeypatch.setitem(sys.modules, name, turned)
    reports = grade_lab(lab, write(tmp_path, lab, notebook.solve(blank_text(lab), lab, turned)))
    assert all(r.state == "pass" for r in reports), [r.text() for r in reports if r.state != "pass"]


@pytest.mark.parametrize("kind", ["blank", "solved"])
def test_every_cell_renders(lab, kind, tmp_path, monkeypatch):
    """No cell in error, and every hidden cell shows something: a cell that shows nothing exits 0 all the same."""
    if kind == "solved" and lab in IN_A_BROWSER and not ALL:
        pytest.skip("not run: a browser solves this lab; MSDA_ALL=1 renders it solved besides")
    monkeypatch.setenv("MSDA_LABS", str(tmp_path))
    for other in WRITTEN:
        write(tmp_path, other, blank_text(other))
    path = write(tmp_path, lab, blank_text(lab) if kind == "blank" else solved_text(lab))
    pictures = 0
    for cell in cells_of(path):
        if not cell.hidden or "checks.watch(" in cell.code:
            continue
        assert cell.output is not None, f"this cell shows nothing:\n{cell.code}"
        html = plain(cell.output)  # in the reading edition as well
        assert len(html) > 20, f"this cell shows nothing:\n{cell.code}"
        assert "Traceback" not in html, cell.code
        for image in html.split("<img ")[1:]:
            alt = image.split('alt="', 1)[1].split('"', 1)[0]
            assert len(alt) > 20, f"a figure without a description:\n{cell.code}"
            pictures += 1
    assert pictures >= 2, f"lab {lab} shows {pictures} figures"


def _named(body):
    return {node.name: node for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}


def test_stub_and_solution_agree(lab):
    """Same decorators, signature and docstring: the notebook as it is shipped holds exactly the generated stubs."""
    text = (notebook.LABS_DIR / f"{LABS[lab].notebook}.py").read_text(encoding="utf-8")
    ours, theirs = _named(ast.parse(text).body), _named(ast.parse(inspect.getsource(solution_module(lab))).body)
    pairs = []
    for exercise in lab_exercises(lab):
        mine, solution = ours[exercise.function], theirs[exercise.function]
        if isinstance(mine, ast.ClassDef):
            assert ast.get_docstring(mine) == ast.get_docstring(solution)
            assert [ast.dump(base) for base in mine.bases] == [ast.dump(base) for base in solution.bases]
            methods, others = _named(mine.body), _named(solution.body)
            assert list(methods) == list(others)
            pairs += [(methods[name], others[name]) for name in methods]
        else:
            pairs.append((mine, solution))
    for mine, solution in pairs:
        assert ast.dump(mine.args) == ast.dump(solution.args)
        assert ast.unparse(mine.returns) == ast.unparse(solution.returns) if solution.returns else mine.returns is None
        assert ast.get_docstring(mine) == ast.get_docstring(solution)


@pytest.mark.parametrize("kind", ["blank", "solved"])
def test_marimo_would_save_them_as_they_are(kind, tmp_path):
    text = blank_text if kind == "blank" else solved_text
    paths = [write(tmp_path, lab, text(lab)) for lab in WRITTEN]
    before = [path.read_bytes() for path in paths]
    done = subprocess.run(
        [sys.executable, "-m", "marimo", "check", "--strict", "--fix", *map(str, paths)],
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warning" not in (done.stdout + done.stderr).lower(), done.stdout + done.stderr
    assert [path.read_bytes() for path in paths] == before


def test_every_exercise_has_its_place(lab):
    text = blank_text(lab)
    for exercise in lab_exercises(lab):
        assert f'checks.grade("{exercise.name}", lambda: {exercise.function})' in text
        assert f'checks.hints("{exercise.name}")' in text
    assert f'checks.closing("{lab}", lambda: (' in text
    assert text.count("checks.predict(") >= 1


def test_derivations_say_whether_they_count():
    text = " ".join(blank_text("07").split())
    assert text.count("derive.ask(") == 6 and "The six derivations of this lab do not count in its score" in text
    assert not any("step_" in exercise.name for exercise in lab_exercises("07"))


def all_mistakes():
    return [
        pytest.param(exercise, mistake, id=f"{exercise.name}: {mistake.name}")
        for lab in WRITTEN
        for exercise in lab_exercises(lab)
        for mistake in exercise.mistakes
    ]


#: Labs whose answers launch kernels for seconds. Of their mistakes every run tries one in three.
SLOW = ("05", "06", "08", "09", "10")


def tried_mistakes():
    """All of them; of two in three in slow labs it is said that they are not run."""
    mark = pytest.mark.skip(reason="not run: MSDA_ALL=1 tries every mistake of labs 05, 06, 08, 09 and 10")
    slow = [one for one in all_mistakes() if one.values[0].name[:2] in SLOW]
    left = [] if ALL else [one.id for n, one in enumerate(slow) if n % 3]
    return [pytest.param(*one.values, id=one.id, marks=mark if one.id in left else ()) for one in all_mistakes()]


@pytest.mark.parametrize(("exercise", "mistake"), tried_mistakes())
def test_every_mistake_is_rejected_and_named(exercise, mistake):
    report = grade(
        exercise.name, mistake, seed=FIXED_SEED
    )  # every run draws this seed too, so a learner's does no less
    assert report.state in ("fail", "crash"), f"it passes: {report.text()}"
    assert report.mistake is mistake, f"taken for: {report.mistake and report.mistake.name}\n{report.text()}"
    assert mistake.name in " ".join(report.text().split())
    assert report.json()["mistake"] == mistake.name


@pytest.mark.skipif(
    os.environ.get("MSDA_TWICE") != "1", reason="not run: MSDA_TWICE=1 tries every mistake twice (8 minutes)"
)
@pytest.mark.timeout(1200)
def test_every_mistake_does_the_same_twice():
    """What the test above takes for granted, since it compares a mistake with what it has just done."""
    grade_module = importlib.import_module("checks.core.grade")  # `checks.grade` is the function
    for exercise, mistake in (one.values for one in all_mistakes()):
        runs = [grade_module._Run(exercise, mistake, FIXED_SEED, False) for _ in range(2)]
        for run in runs:
            run.report(diagnose=False)
        for one, again in zip(*(run.diagnosis.seen for run in runs), strict=True):
            item, first, second = one.item, one.outcome, again.outcome
            assert (first.error is None) == (second.error is None), (exercise.name, mistake.name, item)
            if first.error is not None:
                same = [signature(one.error, True) for one in (first, second)]
                assert same[0] == same[1], (exercise.name, mistake.name, item)
            else:
                assert compare.same(first.value, second.value), (exercise.name, mistake.name, item)


def test_mistakes_have_names_of_their_own(lab):
    for exercise in lab_exercises(lab):
        names = [mistake.name for mistake in exercise.mistakes]
        assert len(set(names)) == len(names)
        assert len(names) >= 2, f"{exercise.name} knows too few mistakes"
        assert all(mistake.hint.strip() for mistake in exercise.mistakes)


def _like(value, fill):
    """A result of the same kind with every number replaced."""
    if isinstance(value, torch.Tensor):
        return (
            torch.full_like(value, fill)
            if value.dtype.is_floating_point or fill == fill
            else torch.zeros_like(value) - 1
        )
    if isinstance(value, (tuple, list)):
        return type(value)(_like(item, fill) for item in value)
    if isinstance(value, (int, float)):
        return type(value)(fill) if fill == fill else fill
    return value


def plain_exercises():
    return [e for lab in WRITTEN for e in lab_exercises(lab) if e.invoke is None and e.cases and not e.guarded]


@pytest.mark.parametrize("fill", [0.0, 1.0, float("nan")], ids=["zeros", "ones", "nan"])
@pytest.mark.parametrize("exercise", plain_exercises(), ids=lambda e: e.name)
def test_constants_are_rejected(exercise, fill):
    answer = lambda *args: _like(exercise.reference(*args), fill)  # noqa: E731
    assert grade(exercise.name, Mistake("a constant", answer, ""), diagnose=False).state in ("fail", "crash")


@pytest.mark.parametrize("exercise", plain_exercises(), ids=lambda e: e.name)
def test_the_input_returned_is_rejected(exercise):
    assert grade(exercise.name, lambda *args: args[0], diagnose=False).state == "fail"


def test_a_solution_is_found_in_the_notebook_as_a_plain_function(lab, tmp_path):
    found = load_answers(lab, write(tmp_path, lab, solved_text(lab)))
    assert all(not one.reason for one in found.values()), found

"""The catalogue and what it is about: declarations, notebooks, README; and that reading it costs nothing."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from checks import catalogue
from checks.answers import notebook
from checks.catalogue import LABS
from checks.core.exercise import exercise, lab_exercises

ROOT = Path(__file__).parents[2]


def test_the_declarations_are_those_of_the_catalogue(lab):
    module = sys.modules[lab_exercises(lab)[0].__class__.__module__]
    declared = [made for made in module._REGISTRY.values() if made.lab == lab]
    assert [made.function for made in declared] == list(LABS[lab].exercises), "another order, or another exercise"
    assert tuple(made.function for made in declared if made.stretch) == LABS[lab].stretch


def test_the_notebook_asks_for_them_in_this_order(lab):
    text = notebook.notebook_path(lab, notebook.LABS_DIR).read_text(encoding="utf-8")
    assert re.findall(r'checks\.grade\("\d\d\.(\w+)"', text) == list(LABS[lab].exercises)
    assert f"minutes={LABS[lab].minutes}," in text


def test_the_readme_shows_the_same_labs():
    assert catalogue.readme_table() in (ROOT / "README.md").read_text(encoding="utf-8")


def test_no_notebook_solution_or_declaration_is_left_out():
    assert {path.stem for path in (ROOT / "labs").glob("[0-9]*.py")} == {one.notebook for one in LABS.values()}
    for folder, pattern in (("solutions", "lab[0-9]*.py"), ("checks/labs", "lab[0-9]*")):
        assert {path.stem for path in (ROOT / folder).glob(pattern)} == {f"lab{lab}" for lab in LABS}


def test_where_one_stands_is_told_without_torch_or_triton():
    code = (
        "import sys; from checks import catalogue; catalogue.readme_table(); "
        "print([name for name in ('torch', 'triton', 'marimo') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_an_exercise_must_have_its_place():
    with pytest.raises(ValueError, match=r"exercise '01.nothing' is not in checks/catalogue.py: give it its place"):
        exercise("01.nothing", reference=abs, cases=[], hints=("", "", ""))


def test_a_lab_is_known_by_its_number():
    assert catalogue.lab_number("1") == "01"
    with pytest.raises(ValueError, match="there is no lab '99'. Labs are 01, 02, "):
        catalogue.lab_number("99")

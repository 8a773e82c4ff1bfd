"""A lab is added with the files that CONTRIBUTING names, and with no others: here an eleventh, in a copy of the tree."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

ENTRY = """    "11": Lab(
        notebook="11_doubling",
        title="Doubling",
        question="What is twice a number?",
        writes="one product",
        minutes=5,
        gpu="changes nothing",
        exercises=("doubled",),
    ),
}  # fmt: skip"""

FILES = {
    "labs/11_doubling.py": '''import marimo

app = marimo.App(width="medium")

with app.setup:
    import checks


@app.cell(hide_code=True)
def _():
    checks.header("11", able=["double"], minutes=5, gpu="a GPU changes nothing in this lab")
    return


@app.function
def doubled(x: float) -> float:
    """Twice a number.

    Args:
        x: any number.
    """
    raise NotImplementedError("11.doubled")


@app.cell(hide_code=True)
def _():
    checks.grade("11.doubled", lambda: doubled)
    return


@app.cell(hide_code=True)
def _():
    checks.closing("11", lambda: (doubled,))
    return


if __name__ == "__main__":
    app.run()
''',
    "solutions/lab11.py": '''"""Lab 11, Doubling: one way to answer it."""


def doubled(x: float) -> float:
    """Twice a number.

    Args:
        x: any number.
    """
    return 2 * x  # @product
''',
    "checks/labs/lab11/exercises.py": '''"""Lab 11, Doubling: its exercises."""

from checks.core.exercise import Draw, exercise
from checks.labs.lab11 import wrong


def any_number(draw: Draw):
    """any number, also below zero"""
    return (draw.number(-9, -1),)


exercise(
    "11.doubled",
    reference=lambda x: x + x,
    cases=[any_number],
    mistakes=wrong.DOUBLED,
    hints=["What is twice 3?", "Once more the same.", "A product by two."],
)
''',
    "checks/labs/lab11/wrong.py": '''"""Lab 11, Doubling: the wrong answers that are known."""

from checks.core.exercise import Mistake

DOUBLED = [
    Mistake("when the number is squared", {"product": "return x * x"}, "What is twice 3?"),
    Mistake("when its size is doubled", lambda x: 2 * abs(x), "What is twice -3?"),
]
''',
}

RUN = """
from pathlib import Path
from checks.answers import notebook, progress
from checks.answers.carry import load_answers, solution_module
from checks.core.exercise import lab_exercises
from checks.core.grade import grade

path = Path("labs/11_doubling.py")
blank, solution = path.read_text(), solution_module("11")
assert notebook.reset(blank, "11", solution) == blank, "the stub is not the solution's"
solved = notebook.solve(blank, "11", solution)
for text in (blank, solved, solved.replace("return 2 * x", "return x * x")):
    path.write_text(text)
    report = grade("11.doubled", load_answers("11", path)["doubled"].function, progress=False)
    print(report.state, report.mistake.name if report.mistake else "-")
for mistake in lab_exercises("11")[0].mistakes:
    print(grade("11.doubled", mistake, seed=1, progress=False).mistake is mistake)
path.write_text(blank)
print("11" in progress.strip("11"), progress.standing("11").needed)
"""


def test_an_eleventh_lab_takes_the_files_that_contributing_names(tmp_path):
    for folder in ("checks", "labs", "msda_core", "solutions"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    shutil.copy(ROOT / "README.md", tmp_path)
    catalogue = tmp_path / "checks" / "catalogue.py"
    text = catalogue.read_text(encoding="utf-8")
    assert text.count("\n}  # fmt: skip") == 1
    catalogue.write_text(text.replace("}  # fmt: skip", ENTRY), encoding="utf-8")
    row = "| 11 | Doubling | What is twice a number? | one product | 5 | changes nothing |\n"
    readme = (tmp_path / "README.md").read_text(encoding="utf-8")
    last = re.findall(r"^\| \d\d \|.*\n", readme, re.M)[-1]
    (tmp_path / "README.md").write_text(readme.replace(last, last + row), encoding="utf-8")
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content, encoding="utf-8")
    touched = {"checks/catalogue.py", "README.md", *FILES}
    guide = (ROOT / ".github" / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"^\d\. `([^`]+)`", guide, re.M)
    assert len(named) <= 7
    assert {re.sub(r"NN", "11", one).replace("_name", "_doubling") for one in named} >= touched

    # The copy's own modules, whatever is installed.
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path), "HOME": str(tmp_path), "MSDA_PATIENCE": "20"}
    done = subprocess.run(
        [sys.executable, "-c", RUN], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.stdout.split("\n")[:6] == [
        "todo -", "pass -", "fail when the number is squared", "True", "True", "True 1",
    ], done.stdout + done.stderr  # fmt: skip
    tests = ["checks/tests/test_catalogue.py", "checks/tests/test_imports.py"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=", *tests],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr

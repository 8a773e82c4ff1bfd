"""Notebooks with kernels survive what a learner does with them: saved, run, exported, imported, collected."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from checks.answers import notebook
from checks.answers.carry import load_answers, solution_module
from checks.catalogue import LABS
from checks.core.exercise import lab_exercises
from checks.core.grade import grade
from checks.tests import browser
from checks.tests.conftest import ALL, WRITTEN, blank_text, solved_text
from msda_core import device
from msda_core.tests.test_device import without

pytestmark = pytest.mark.skipif(device.NO_TRITON is not None, reason=f"not run: {device.NO_TRITON}")

LAB = "04"
KERNELS = [lab for lab in WRITTEN if any(exercise.guarded for exercise in lab_exercises(lab))]
LIMIT = 240

#: A cell of a learner's own, which works only if every kernel above it is really there.
MINE = """
@app.cell
def _():
    _x = torch.ones(5, device=device.ACTIVE)
    print("sums:", add(_x, _x).tolist(), row_sum(torch.ones(2, 21, device=device.ACTIVE)).tolist())
    return


@app.function
def test_add():
    x = torch.ones(40, device=device.ACTIVE)
    assert torch.equal(add(x, x), 2 * x)


"""
SUMS = "sums: [2.0, 2.0, 2.0, 2.0, 2.0] [21.0, 21.0]"

#: The same notebook where marimo cannot look through a kernel to its source.
OPAQUE = """
import runpy, sys
from msda_core import device
triton = device.load_triton()
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction
for kind in (InterpretedFunction, JITFunction):
    del kind.__wrapped__
device.load_triton = lambda: triton
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def functions_only(text: str) -> str:
    """A notebook's text without its cells: the setup and the functions, kernels and launchers among them."""
    return "".join(block.text for block in notebook._blocks(text) if not block.text.startswith("@app.cell"))


def with_mine(text: str) -> str:
    head, tail = text.split('if __name__ == "__main__":')
    return f'{head.rstrip()}\n\n{MINE}if __name__ == "__main__":{tail}'


def run(*command, cwd: Path) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(notebook.ROOT), "MSDA_LABS": str(cwd)}
    return subprocess.run(
        [sys.executable, *map(str, command)], cwd=cwd, capture_output=True, text=True, timeout=LIMIT, env=environment
    )


@pytest.fixture(scope="module")
def mine(tmp_path_factory) -> Path:
    """The solved lab's kernels and launchers, with a cell and a test of a learner's own."""
    path = tmp_path_factory.mktemp("labs") / f"{LABS[LAB][0]}.py"
    path.write_text(with_mine(functions_only(solved_text(LAB))), encoding="utf-8")
    return path


def test_run_as_a_script(mine):
    done = run(mine, cwd=mine.parent)
    assert done.returncode == 0 and SUMS in done.stdout, done.stdout + done.stderr


def test_without_the_alias_it_would_not(mine):
    """The control: this is what the alias in msda_core.device is for."""
    done = run("-c", OPAQUE, mine, cwd=mine.parent)
    assert done.returncode != 0 and "NameError" in done.stderr and SUMS not in done.stdout


def test_exported_as_a_script_that_runs(mine, tmp_path):
    script = tmp_path / "script.py"
    done = run("-m", "marimo", "export", "script", mine, "-o", script, cwd=mine.parent)
    assert done.returncode == 0, done.stderr
    done = run(script, cwd=mine.parent)
    assert done.returncode == 0 and SUMS in done.stdout, done.stdout + done.stderr


def test_collected_by_pytest(mine):
    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", mine, cwd=mine.parent)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr


def test_imported_by_name(mine):
    spec = importlib.util.spec_from_file_location("a_learners_lab", mine)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    import torch

    assert module.row_sum(torch.ones(3, 18, device=device.ACTIVE)).tolist() == [18.0] * 3
    assert module.add_kernel.__wrapped__ is module.add_kernel.fn


def test_exported_as_html_with_its_verdicts(tmp_path):
    path = tmp_path / f"{LABS[LAB][0]}.py"
    blocks = [block.text for block in notebook._blocks(solved_text(LAB))]
    shown = [text for text in blocks if not text.startswith("@app.cell") or "checks.grade(" in text]
    path.write_text("".join(shown), encoding="utf-8")
    page = tmp_path / "page.html"
    done = run("-m", "marimo", "export", "html", path, "-o", page, "--no-include-code", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    text = page.read_text(encoding="utf-8").replace("\\", "")
    for exercise in lab_exercises(LAB):
        assert re.search(rf'data-check="{re.escape(exercise.name)}" data-state="pass"', text), exercise.name
    assert "NameError" not in text


def saved(path: Path) -> str:
    """The file as marimo writes it: read, and saved again."""
    done = run("-m", "marimo", "check", "--fix", path, cwd=path.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    return path.read_text(encoding="utf-8")


def test_a_kernel_in_an_ordinary_cell_is_saved_as_a_function_and_found(tmp_path):
    """What the editor does to a cell that a learner made: it turns into @app.function, and everything still finds it."""
    source = notebook.answer_source("add_kernel", solution_module(LAB))
    cell = "@app.cell\ndef _():\n" + "".join(f"    {line}\n" if line else "\n" for line in source.splitlines())
    cell += "    return (add_kernel,)\n"
    text = functions_only(solved_text(LAB))
    assert f"@app.function\n{source}" in text
    path = tmp_path / f"{LABS[LAB][0]}.py"
    path.write_text(with_mine(text.replace(f"@app.function\n{source}", cell)), encoding="utf-8")
    assert f"@app.function\n{source}" in saved(path)
    done = run(path, cwd=tmp_path)
    assert SUMS in done.stdout, done.stdout + done.stderr
    assert not load_answers(LAB, path)["add_kernel"].reason


def test_graded_from_its_file(mine):
    answers = load_answers(LAB, mine)
    for exercise in lab_exercises(LAB):
        found = answers[exercise.function]
        assert not found.reason and grade(exercise.name, found.function, diagnose=False).state == "pass"


def test_without_triton_they_open_and_say_what_to_do(tmp_path):
    """The first of them and the last; MSDA_ALL=1 opens all."""
    opened = KERNELS if ALL else [KERNELS[0], KERNELS[-1]]
    paths = {lab: tmp_path / f"{LABS[lab].notebook}.py" for lab in opened}
    for lab, path in paths.items():
        path.write_text(solved_text(lab), encoding="utf-8")
    code = without("triton") + (
        "import runpy, marimo; from msda_core import device\n"
        f"for path in {[str(path) for path in paths.values()]!r}:\n"
        "    outputs, _ = runpy.run_path(path)['app'].run()\n"
        "    html = ''.join(marimo.as_html(one).text for one in outputs if one is not None)\n"
        "    reason = device.NO_TRITON.partition(':')[0]\n"
        "    print(html.count('data-state=\"not_run\"'), 'nothing is graded' in html, reason in html)\n"
    )
    done = run("-c", code, cwd=tmp_path)
    counts = [sum(exercise.guarded for exercise in lab_exercises(lab)) for lab in opened]
    assert done.stdout.splitlines() == [f"{count} True True" for count in counts], done.stdout + done.stderr


def kernel_text(function: str, *changes: tuple[str, str]) -> str:
    text = notebook.answer_source(function, solution_module(LAB))
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text.rstrip("\n")


@pytest.mark.browser
@pytest.mark.timeout(900)
def test_typed_saved_and_graded_in_the_editor(monkeypatch):
    """From stub to a missing mask, to what only the interpreter takes, to right; the file that the editor saved; then all of it."""
    monkeypatch.setenv("MSDA_PATIENCE", "5")
    load = "x = tl.load(x_ptr + offs, mask=mask)"
    with (
        browser.copied_labs({LAB: blank_text(LAB)}) as folder,
        browser.serving(notebook.notebook_path(LAB, folder)) as address,
        browser.opened(address) as page,
    ):
        browser.wait_state(page, "04.add_kernel", "todo", timeout=90)
        cell = browser.cell_of(page, "add_kernel")
        browser.type_answer(page, cell, kernel_text("add_kernel", (load, "x = tl.load(x_ptr + offs)")))
        browser.wait_state(page, "04.add_kernel", "fail", timeout=60)
        said = browser.verdict(page, "04.add_kernel").inner_text()
        assert re.search(
            r"line 10 of add_kernel: x = tl.load\(x_ptr \+ offs\) reads element \d+ of x_ptr", said, re.I
        ), said
        assert "when the load of x has no mask" in said

        browser.type_answer(page, cell, kernel_text("add_kernel", (load, f"for _ in [1]:\n        {load}")))
        page.get_by_text("GPU's compiler refuses it").wait_for(timeout=60_000)
        browser.wait_state(page, "04.add_kernel", "fail", timeout=60)

        right = kernel_text("add_kernel")
        browser.type_answer(page, cell, right)
        browser.wait_state(page, "04.add_kernel", "pass", timeout=60)
        page.get_by_alt_text(re.compile("What program 2 of 3 touched")).wait_for(timeout=60_000)
        path = notebook.notebook_path(LAB, folder)
        page.keyboard.press("Control+s")
        browser.wait_until(lambda: f"@app.function\n{right}" in path.read_text(encoding="utf-8"))
        assert load_answers(LAB, path)["add_kernel"].function is not None
        browser.solve(page, LAB)

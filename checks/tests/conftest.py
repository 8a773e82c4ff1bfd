"""Which labs there are, and copies of them with every exercise reset or solved: a learner's progress breaks no test."""

import os

import pytest

from checks.answers import notebook
from checks.answers.carry import solution_module
from checks.catalogue import LABS
from checks.kernel.doctor import find_chromium
from msda_core import device

#: Everything, also what takes long and is tried in another way besides.
ALL = bool(os.environ.get("MSDA_ALL"))

WRITTEN = [lab for lab in LABS if (notebook.LABS_DIR / f"{LABS[lab].notebook}.py").exists()]


#: Labs that a browser solves cell by cell in every run. The others' solved pages are rendered without one instead.
IN_A_BROWSER = WRITTEN if ALL else [lab for lab in WRITTEN if lab in ("01", "02", "04", "10")]


def pytest_generate_tests(metafunc):
    if "lab" in metafunc.fixturenames:
        metafunc.parametrize("lab", WRITTEN)


def pytest_collection_modifyitems(items):
    for item in items:
        if "browser" in item.keywords and find_chromium() is None:
            item.add_marker(pytest.mark.skip(reason="not run: needs Chromium, found none"))
        if "gpu" in item.keywords and device.ACTIVE.type != "cuda":
            item.add_marker(pytest.mark.skip(reason="not run: needs a CUDA GPU, found none"))


def blank_text(lab: str) -> str:
    """A lab's notebook with every exercise at its stub."""
    text = (notebook.LABS_DIR / f"{LABS[lab].notebook}.py").read_text(encoding="utf-8")
    return notebook.reset(text, lab, solution_module(lab))


def solved_text(lab: str) -> str:
    """A lab's notebook with the solutions in its cells."""
    return notebook.solve(blank_text(lab), lab, solution_module(lab))

"""The learner's operator as a package of its own: their kernels, as they wrote them, and the tests it passed.

The text of each function is taken from their notebooks, with what it calls, from lab to lab; imports follow from what its
names mean. Nothing of the course goes along: an answer that leans on `msda_core`, or that the course stood in for, is not
exported.
"""

import ast
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from checks.answers.carry import Carried, carried, load_answers
from checks.answers.notebook import function_text, notebook_path, read
from checks.core.exercise import find

__all__ = ["ROOTS", "NotYours", "Sources", "collect", "is_exercise", "needs_of", "source_of", "write"]

#: What lab 10 ships; everything else follows from what these call.
ROOTS = ("check_inputs", "MSDAFunction", "MyMSDeformAttn")
OURS = ("msda_core", "checks", "solutions", "marimo", "__main__")


class NotYours(Exception):
    """Something that would have to go along is not the learner's; the message says what, and why."""


@dataclass
class Sources:
    """Lab → the text of its module, and which exercises are in it.

    Attributes:
        names: "05.msda_forward" and so on, helpers without a lab's exercise included.
        modules: "lab05" → Python text.
    """

    names: list[str] = field(default_factory=list)
    modules: dict[str, str] = field(default_factory=dict)


def collect() -> Sources:
    """Read the operator out of the notebooks.

    Raises:
        NotYours: an answer does not pass its checks, or uses what cannot go along.
    """
    sources, open_, done = Sources(), [("10", name) for name in ROOTS], set()
    cells: dict[str, dict[str, str]] = {}
    imports: dict[str, set[str]] = {}
    while open_:
        lab, name = open_.pop(0)
        if (lab, name) in done:
            continue
        done.add((lab, name))
        judged = carried(lab).judge(name) if is_exercise(lab, name) else None
        if judged is not None and not judged.theirs:
            raise NotYours(f"`{name}` of lab {lab} is not yours yet: {judged.reason}")
        source = source_of(lab, name)
        cells.setdefault(lab, {})[name] = source
        sources.names.append(f"{lab}.{name}")
        lines = imports.setdefault(lab, set())
        for needed in needs_of(lab, name, source):
            if isinstance(needed, tuple):
                open_.append(needed)
                if needed[0] != lab:
                    lines.add(f"from . import lab{needed[0]}")
            else:
                lines.add(needed)
    for lab, texts in cells.items():
        order = list(read(notebook_path(lab)).splitlines())
        place = {name: next(i for i, line in enumerate(order) if _defines(line, name)) for name in texts}
        body = "\n\n\n".join(texts[name] for name in sorted(texts, key=place.get))
        head = "\n".join(sorted(imports[lab], key=lambda line: (line.startswith("from ."), line)))
        sources.modules[f"lab{lab}"] = f'"""From lab {lab}."""\n\n{head}\n\n\n{body}\n'
    return sources


def source_of(lab: str, name: str) -> str:
    """A function's or class's text, as the learner wrote it."""
    cell = function_text(read(notebook_path(lab)), name)
    if not cell:
        raise NotYours(f"`{name}` has no cell of its own in lab {lab}.")
    return (cell.split("\n", 1)[1] if cell.startswith("@app.") else cell).rstrip()


def _defines(line: str, name: str) -> bool:
    return line.lstrip().startswith((f"def {name}(", f"class {name}(", f"class {name}:"))


def is_exercise(lab: str, name: str) -> bool:
    """Is there an exercise of this lab and name?"""
    try:
        find(f"{lab}.{name}")
    except ValueError:
        return False
    return True


def needs_of(lab: str, name: str, source: str) -> list[Any]:
    """What a function's text refers to: (lab, function) pairs, and lines that import or define the rest."""
    namespace = _namespace(lab)
    tree, needs = ast.parse(source), []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = namespace.get(node.value.id)
            if isinstance(owner, Carried):
                needs.append((owner._lab, node.attr))
    text = read(notebook_path(lab))
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    own = {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    own |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)} | {name}
    for used in sorted({node.id for node in names} & set(namespace) - own):
        thing = namespace[used]
        home = thing.__name__ if isinstance(thing, ModuleType) else getattr(thing, "__module__", None) or ""
        if isinstance(thing, Carried):
            continue
        if function_text(text, used):
            needs.append((lab, used))
        elif home.split(".")[0] in OURS:
            raise NotYours(f"`{name}` of lab {lab} uses `{used}` of {home}, which is not yours to ship.")
        elif isinstance(thing, ModuleType):
            needs.append(f"import {home}" if used == home else f"import {home} as {used}")
        elif isinstance(thing, (bool, int, float, str, tuple)):
            needs.append(f"{used} = {thing!r}")
        elif home:
            needs.append(f"from {home} import {thing.__name__}" + ("" if thing.__name__ == used else f" as {used}"))
    return needs


def _namespace(lab: str) -> dict[str, Any]:
    """The names that functions of a notebook can see."""
    if f"learner_lab{lab}" not in sys.modules:
        load_answers(lab)
    return vars(sys.modules[f"learner_lab{lab}"])


INIT = '''"""Multi-scale deformable attention, on kernels written by hand.

    from {name} import multi_scale_deformable_attention, MyMSDeformAttn

With a GPU the kernels run on it; without, Triton's interpreter runs them: slow, and good for tests.
"""

import os

import torch

if "TRITON_INTERPRET" not in os.environ and not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it once, when it is first imported
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

from .lab10 import MSDAFunction, MyMSDeformAttn, check_inputs  # noqa: E402

__all__ = ["MSDAFunction", "MyMSDeformAttn", "check_inputs", "multi_scale_deformable_attention"]


def multi_scale_deformable_attention(
    value, spatial_shapes, level_start_index, sampling_locations, attention_weights, im2col_step=None
):
    """Sum bilinear samples of a feature pyramid, each weighed; mmcv's order of arguments.

    Args:
        value: (B, S, M, D); spatial_shapes: (L, 2), (H, W); level_start_index: (L,);
        sampling_locations: (B, Q, M, L, K, 2), (x, y) from 0 to 1; attention_weights: (B, Q, M, L, K).
        im2col_step: ignored.

    Returns:
        (B, Q, M * D), in value's dtype.

    Raises:
        ValueError: says which argument is not as it must be.
    """
    args = (value, spatial_shapes, level_start_index, sampling_locations, attention_weights)
    check_inputs(*args)
    return MSDAFunction.apply(*args)
'''

TEST = '''"""The tests this operator passed before it was shipped."""

import pytest
import torch

import {name}
from {name}.tests import suite

DEVICES = ["cuda"] if torch.cuda.is_available() else ["cpu"]
PASSED = {passed}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", PASSED)
def test_operator(name, device):
    try:
        suite.TESTS[name]({name}, device)
    except suite.NotHere as reason:
        pytest.skip(f"not run: {{reason}}")
'''

PROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{distribution}"
version = "0.1.0"
description = "Multi-scale deformable attention, on Triton kernels written by hand"
readme = "README.md"
requires-python = ">=3.11"
dependencies = [
    "numpy>=1.26",  # of which Triton's interpreter makes its blocks, without declaring it
    "torch>=2.9",
    "triton>=3.6; platform_system == 'Linux'",
    "triton-windows>=3.6; platform_system == 'Windows'",
]

[project.optional-dependencies]
test = ["pytest>=8"]

[tool.hatch.build.targets.wheel]
packages = ["{name}"]
"""

README = """# {distribution}

Multi-scale deformable attention on Triton kernels, exported from the notebooks in which they were written.

```
pip install .[test]
pytest --pyargs {name}
```

{summary}
"""


def write(folder: Path, sources: Sources, *, name: str = "my_msda", passed=(), certificate: dict | None = None) -> Path:
    """Lay the package out in a folder, which is made; what lies there under the same names is replaced.

    Args:
        folder: the project's folder, beside nothing else.
        sources: as `collect` read them.
        name: of the package, a Python identifier.
        passed: names of `checks.ship.suite.TESTS` that go along as its tests.
        certificate: the acceptance suite's result, kept beside them.

    Returns:
        The folder.

    Raises:
        ValueError: the name is no identifier.
    """
    if not name.isidentifier():
        raise ValueError(f"the package's name must be a Python identifier, got {name!r}. Is there a hyphen in it?")
    package, distribution = folder / name, name.replace("_", "-")
    (package / "tests").mkdir(parents=True, exist_ok=True)
    files = {package / "__init__.py": INIT.format(name=name)}
    files |= {package / f"{module}.py": text for module, text in sources.modules.items()}
    summary = "Functions: " + ", ".join(f"`{one}`" for one in sources.names) + "."
    if certificate:
        summary += f"\n\n{certificate['summary']} The whole result is in `{name}/tests/certificate.json`."
        left = [test for test in certificate["tests"] if test["status"] == "not_run"]
        if left:
            summary += "\n\nNot run, and so not known:\n\n" + "\n".join(f"- {t['title']}: {t['message']}" for t in left)
        files[package / "tests" / "certificate.json"] = json.dumps(certificate, indent=1) + "\n"
    files[package / "tests" / "__init__.py"] = ""
    files[package / "tests" / "suite.py"] = (Path(__file__).parents[1] / "ship" / "suite.py").read_text(
        encoding="utf-8"
    )
    files[package / "tests" / "test_operator.py"] = TEST.format(name=name, passed=json.dumps(list(passed), indent=4))
    files[folder / "pyproject.toml"] = PROJECT.format(name=name, distribution=distribution)
    files[folder / "README.md"] = README.format(name=name, distribution=distribution, summary=summary)
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
    return folder

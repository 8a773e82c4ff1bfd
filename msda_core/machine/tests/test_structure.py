"""How the modules of the machine depend on each other."""

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from msda_core import machine

HOME = Path(machine.__file__).parent
PREFIX = "msda_core.machine"


def modules() -> dict[str, ast.Module]:
    found = {}
    for path in sorted(HOME.rglob("*.py")):
        parts = path.relative_to(HOME).with_suffix("").parts
        if "tests" not in parts:
            found[".".join((PREFIX, *parts)).removesuffix(".__init__")] = ast.parse(path.read_text())
    return found


def imported(tree: ast.Module, known: dict[str, ast.Module]) -> set[str]:
    """Names of the modules that a module imports, inside functions too."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            submodules = inner if node.module == "msda_core" else inner & set(known)
            names |= submodules or {node.module or ""}
    return names


def test_the_machine_imports_only_the_device_of_this_package():
    found = modules()
    for name, tree in found.items():
        ours = {i for i in imported(tree, found) if i.startswith("msda_core")}
        foreign = {i for i in ours if not i.startswith((PREFIX, "msda_core.device"))}
        assert not foreign, f"{name} imports {foreign}"


def test_imports_run_one_way():
    found = modules()
    arrows = {name: imported(tree, found) & set(found) - {PREFIX} for name, tree in found.items()}
    while arrows:
        leaves = [name for name, targets in arrows.items() if not targets & set(arrows)]
        assert leaves, f"a cycle among {sorted(arrows)}"
        for name in leaves:
            del arrows[name]


def test_a_class_name_means_one_thing():
    classes = Counter(n.name for t in modules().values() for n in t.body if isinstance(n, ast.ClassDef))
    assert [name for name, times in classes.items() if times > 1] == []


def test_importing_the_machine_loads_nothing():
    program = (
        "import sys, msda_core.machine; print('torch' in sys.modules, 'triton' in sys.modules, 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"] * 3


@pytest.mark.parametrize("name", machine.__all__)
def test_every_public_name_is_reachable(name):
    assert getattr(machine, name) is not None and name in dir(machine)


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'lowr'"):
        machine.lowr  # noqa: B018

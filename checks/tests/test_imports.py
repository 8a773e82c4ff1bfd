"""Imports run one way: from labs to the grader, to the solutions, to the operator and its machine. No cycle anywhere.

Read from the source, those inside functions included. What is loaded by name is no import: the catalogue names the modules
of the labs' declarations, `solution_module` those of the solutions, and the core is given its parts by `provide`.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]

#: Rooms from the top down; those in one line do not know each other. A room imports from lines below its own.
ROOMS = [
    ("labs",),
    ("checks.__main__",),
    ("checks.cli",),
    ("checks.ship", "checks.classroom"),
    ("checks.labs",),
    ("checks.show",),
    ("checks.answers",),
    ("checks.kernel",),
    ("checks.core", "checks"),
    ("checks.catalogue",),
    ("solutions",),
    ("msda_core.figures",),
    ("msda_core.bench",),
    ("msda_core.integrations",),
    ("msda_core.nn",),
    ("msda_core.ops",),
    ("msda_core.kernels",),
    ("msda_core.inputs", "msda_core.reference", "msda_core.differences", "msda_core.machine"),
    ("msda_core.shapes", "msda_core.sampling"),
    ("msda_core.device", "msda_core"),
]
#: Rooms that know less than their line allows.
ONLY = {
    "checks.core": {"checks.catalogue", "msda_core.device"},
    "checks.catalogue": set(),
    "msda_core.kernels": {"msda_core.device", "msda_core.shapes", "msda_core.reference"},
    "msda_core.machine": {"msda_core.device"},
}
LEVEL = {room: level for level, rooms in enumerate(ROOMS) for room in rooms}


def modules() -> dict[str, Path]:
    found = {}
    for package in ("labs", "checks", "solutions", "msda_core"):
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if "tests" not in parts and path.name != "conftest.py":
                found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(name: str, path: Path, known: dict[str, Path]) -> set[str]:
    """The modules of ours that one imports, at the top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            home = (name if path.name == "__init__.py" else name.rpartition(".")[0]).split(".")
            base = ".".join(home[: len(home) - node.level + 1]) if node.level else ""
            base = ".".join(part for part in (base, node.module) if part)
            inner = {f"{base}.{alias.name}" for alias in node.names}
            found |= inner & set(known) or {base}
            found |= {base} if inner - set(known) else set()
    return (found & set(known)) - {name}


def room_of(module: str) -> str:
    package, *rest = module.split(".")
    return package if package in ("labs", "solutions") or not rest else f"{package}.{rest[0]}"


def graph() -> dict[str, set[str]]:
    known = modules()
    return {name: imports(name, path, known) for name, path in known.items()}


def test_every_room_has_its_place():
    missing = {room_of(name) for name in modules()} - set(LEVEL)
    assert not missing, f"say in ROOMS where {sorted(missing)} stands"


def test_imports_run_one_way():
    wrong = [
        f"{name} imports {other}"
        for name, others in graph().items()
        for other in others
        if room_of(name) != room_of(other)
        and (
            LEVEL[room_of(name)] >= LEVEL[room_of(other)]
            or room_of(other) not in ONLY.get(room_of(name), {room_of(other)})
        )
    ]
    assert not wrong, "\n".join(sorted(wrong))


def test_no_module_needs_itself():
    waiting = graph()
    while free := [name for name, others in waiting.items() if not others & set(waiting)]:
        for name in free:
            del waiting[name]
    assert not waiting, f"in a cycle, or above one: {sorted(waiting)}"


def test_what_is_read_here_are_imports():
    folder = ROOT / "checks" / "core"
    assert imports("checks.core.grade", folder / "grade.py", modules()) >= {"checks.core.call", "msda_core.device"}
    assert room_of("msda_core.machine.run.guard") == "msda_core.machine" and room_of("solutions.lab01") == "solutions"
    assert imports("checks.kernel.budget", ROOT / "checks/kernel/budget.py", modules()) >= {"msda_core.figures.tiles"}

"""Tagged places of the solutions, and the wrong answers that are bound to them."""

import ast
from collections.abc import Mapping

import pytest

from checks.core import places
from checks.core.exercise import lab_exercises
from checks.tests.commute import commuted

TEXT = '''
def scale(x, n):
    """Doc."""
    total = 0  # starts here  # @total
    for k in range(n):  # @each_k
        total += x * k  # @add
    return total  # @result


def helper(x):
    return x  # @result
'''


def test_places_are_found_by_function_and_tag():
    assert set(places.places(TEXT)) == {
        "scale", "scale.total", "scale.each_k", "scale.add", "scale.result", "helper", "helper.result",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"add": "total += x"}, 6),
        ({"each_k": "for k in range(n + 1):"}, 2 * (0 + 1 + 2 + 3)),
        ({"each_k": "total = 7"}, 7),
        ({"result": "total = -total\n@"}, -6),
        ({"add": ""}, 0),
        ({"scale": "return 'gone'"}, "gone"),
        ({"helper.result": "return x + 1"}, 6),
    ],
)
def test_a_change_replaces_a_statement_a_head_or_a_body(changes, expected):
    scope: dict = {}
    exec(places.changed(TEXT, changes, "scale"), scope)
    assert scope["scale"](2, 3) == expected


def test_what_cannot_be_changed_is_said():
    with pytest.raises(KeyError, match="no place 'nowhere' in scale; there are scale, scale.total"):
        places.changed(TEXT, {"nowhere": ""}, "scale")
    with pytest.raises(ValueError, match="overlap"):
        places.changed(TEXT, {"each_k": "pass", "add": "pass"}, "scale")
    with pytest.raises(ValueError, match="@total stands twice"):
        places.places(TEXT.replace("# @add", "# @total"))
    with pytest.raises(ValueError, match="no statement begins or ends at the tag @head"):
        places.places(TEXT.replace("def helper(x):", "def helper(  # @head\n    x,\n):"))


def test_a_learner_sees_no_tags():
    assert "@" not in places.untagged(TEXT) and "total = 0  # starts here\n" in places.untagged(TEXT)
    assert len(places.untagged(TEXT).splitlines()) == len(TEXT.splitlines())


def bound(lab: str):
    """Every row that is bound to tagged places, with its module and function."""
    for exercise in lab_exercises(lab):
        for mistake in exercise.mistakes:
            if isinstance(mistake.change, Mapping):
                yield exercise, mistake, *mistake.home.split(":")


def test_every_row_finds_its_places(lab):
    """A row whose place is gone, or that names what its function does not have, is told by its name."""
    for exercise, mistake, module, function in bound(lab):
        try:
            text = places.changed(places.text_of(module), mistake.change, function)
        except (KeyError, ValueError) as error:
            raise AssertionError(f"{exercise.name}, {mistake.name!r}: {error}") from None
        unknown = _unknown_names(text, function)
        assert not unknown, (
            f"{exercise.name}, {mistake.name!r}: {', '.join(sorted(unknown))} is not defined in {function}."
        )


def _unknown_names(text: str, function: str) -> set[str]:
    """Names that a function reads and neither it, its module nor Python defines."""
    import builtins

    tree = ast.parse(text)
    known = set(dir(builtins))
    for node in tree.body:
        known |= (
            {alias.asname or alias.name.split(".")[0] for alias in getattr(node, "names", [])}
            if isinstance(node, (ast.Import, ast.ImportFrom))
            else set()
        )
        known |= {node.name} if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else set()
        known |= {name.id for name in ast.walk(node) if isinstance(node, ast.Assign) and isinstance(name, ast.Name)}
    (top,) = [node for node in tree.body if getattr(node, "name", "") == function]
    read = set()
    for node in ast.walk(top):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else known).add(node.id)
        elif isinstance(node, ast.arg):
            known.add(node.arg)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            known.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            known |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
    return read - known


def test_rows_do_not_care_how_the_rest_is_written(lab, monkeypatch):
    """With every commutative operation outside tagged places turned round, all rows still find theirs."""
    for module in sorted({module for _, _, module, _ in bound(lab)}):
        text = places.text_of(module)
        turned = commuted(text)
        monkeypatch.setattr(places, "text_of", lambda _, turned=turned: turned)
        for exercise, mistake, home, function in bound(lab):
            if home == module:
                compile(places.changed(turned, mistake.change, function), exercise.name, "exec")
        monkeypatch.undo()

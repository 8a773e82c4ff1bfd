"""What a function needs from other cells of its notebook: an import, a constant, a helper.

In a notebook a function sees what every cell defines. Loaded from the file, it sees the setup cell and the functions that
stand alone in theirs. This module finds the statements that define the rest, and runs those: not the whole cells, which
may draw, ask for a widget, or compute for minutes.
"""

import ast
import dis
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

__all__ = ["complete", "defined_twice"]


@dataclass
class _Cell:
    """One ordinary cell: its statements, the names that they bind, those to be had from it, and its own namespace."""

    body: list[ast.stmt]
    binds: set[str]
    wanted: set[str] = field(default_factory=set)
    space: dict[str, Any] | None = None


def complete(tree: ast.Module, namespace: dict[str, Any], names: list[str], path: str) -> dict[str, BaseException]:
    """Add to a loaded notebook's namespace what its functions need from ordinary cells, and functions defined in such.

    Args:
        tree: the notebook, parsed.
        namespace: what its setup cell and its functions defined; added to.
        names: the functions that are looked for.
        path: the file, for tracebacks.

    Returns:
        Name → what was raised while it, or what it needs, was looked for.
    """
    cells = list(_cells(tree))
    home = {name: cell for cell in reversed(cells) for name in cell.binds if not name.startswith("_")}
    alone = {node.name: _needs(_compiled([node], path)) for node in tree.body if _is_definition(node)}
    asked = set(names).union(*alone.values()) & set(home) - set(namespace)
    unseen = set(asked)
    while unseen:  # first what is needed, so that each cell runs once
        name = unseen.pop()
        home[name].wanted.add(name)
        code = _compiled(_statements(home[name]), path)
        unseen |= {n for n in _needs(code) & set(home) - set(namespace) if n not in home[n].wanted}
    errors = {}
    for name in sorted(asked):
        try:
            namespace[name] = _value(name, home, namespace, path)
        except Exception as error:
            errors[name] = error
    for name in set(names) & set(alone):
        for lost in alone[name] & set(errors):
            errors[name] = errors[lost]
    return errors


def defined_twice(tree: ast.Module, name: str) -> bool:
    """Whether two cells of a notebook define a name: then a notebook runs neither."""
    alone = sum(_is_definition(node) and node.name == name and bool(_marks(node)) for node in tree.body)
    return alone + sum(name in cell.binds for cell in _cells(tree)) > 1


def _value(name: str, home: dict[str, _Cell], namespace: dict[str, Any], path: str) -> Any:
    """What a name of an ordinary cell is; runs the statements that define it, and what they need, once."""
    cell = home[name]
    if cell.space is None:
        code = _compiled(_statements(cell), path)
        # Set before what it needs is looked for: a cell that needs itself by way of another finds nothing, and says so.
        cell.space = {key: namespace[key] for key in ("__name__", "__file__", "__builtins__") if key in namespace}
        for need in sorted(_needs(code)):
            if need not in namespace and need in home and home[need] is not cell:
                namespace[need] = _value(need, home, namespace, path)
            if need in namespace:
                cell.space[need] = namespace[need]
        exec(code, cell.space)
    if name not in cell.space:
        raise NameError(f"`{name}` has no value")
    return cell.space[name]


def _statements(cell: _Cell) -> list[ast.stmt]:
    """The statements of a cell that its wanted names depend on, in their order."""
    fixed = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
    values = {name for one in cell.body if not isinstance(one, fixed) for name in _bound(one)}
    changes = [set(_bound(one)) | set(_mutated(one)) & values for one in cell.body]
    needed, taken = set(cell.wanted), set()
    while True:
        more = {i for i, names in enumerate(changes) if i not in taken and names & needed}
        if not more:
            return [one for i, one in enumerate(cell.body) if i in taken]
        taken |= more
        needed |= {name for i in more for name in _needs(_compiled([cell.body[i]], "<cell>"))}


def _cells(tree: ast.Module) -> Iterator[_Cell]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and "app.cell" in _marks(node):
            body = [one for one in node.body if not isinstance(one, ast.Return)]
            yield _Cell(body, {name for one in body for name in _bound(one)})


def _marks(node: ast.stmt) -> list[str]:
    """marimo's decorators: "app.cell" or "app.function"."""
    texts = [ast.unparse(one).split("(")[0] for one in getattr(node, "decorator_list", [])]
    return [text for text in texts if text.startswith("app.")]


def _is_definition(node: ast.stmt) -> bool:
    return isinstance(node, (ast.FunctionDef, ast.ClassDef)) and "app.cell" not in _marks(node)


def _bound(node: ast.AST) -> Iterator[str]:
    """The names that a statement binds."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
        return
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from ((alias.asname or alias.name.split(".")[0]) for alias in node.names)
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    if isinstance(node, (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
        return  # what these bind is theirs
    for child in ast.iter_child_nodes(node):
        yield from _bound(child)


def _mutated(node: ast.stmt) -> Iterator[str]:
    """The names whose value a statement may change in place: `table[0] = 1`, `table.append(1)`."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return
    for one in ast.walk(node):
        called = isinstance(one, ast.Expr) and isinstance(one.value, ast.Call)
        target = one.value.func if called else one
        if not isinstance(target, (ast.Attribute, ast.Subscript)):
            continue
        if called or isinstance(target.ctx, ast.Store):
            while isinstance(target, (ast.Attribute, ast.Subscript)):
                target = target.value
            if isinstance(target, ast.Name):
                yield target.id


def _compiled(body: list[ast.stmt], path: str) -> CodeType:
    return compile(ast.Module(body=body, type_ignores=[]), path, "exec")


def _needs(code: CodeType) -> set[str]:
    """The names that a module's code, and the functions in it, look for outside of it."""
    loads = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_NAME", "LOAD_GLOBAL")}
    stores = {i.argval for i in dis.get_instructions(code) if i.opname == "STORE_NAME"}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            loads |= _needs(constant)
    return loads - stores - {"app"}

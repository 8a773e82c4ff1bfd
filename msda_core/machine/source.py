"""The source of a kernel: where it is, which names it reads, and what the interpreter makes of it."""

import ast
import contextlib
import inspect
import textwrap
import types
import weakref
from typing import Any

from msda_core.device import load_triton

__all__ = ["allowed_in_kernel", "capture_scope", "free_names", "function_source", "rewrite"]

_rewritten: "weakref.WeakKeyDictionary[types.FunctionType, tuple]" = weakref.WeakKeyDictionary()


def function_source(fn: types.FunctionType) -> tuple[str, int]:
    """Source of a function from its `def` on, dedented, and the line its `def` is on in its file.

    Raises:
        OSError: the source is not to be had (a function made by exec).
    """
    lines, start = inspect.getsourcelines(fn)
    skip = next((i for i, line in enumerate(lines) if line.lstrip().startswith(("def ", "async def "))), 0)
    return textwrap.dedent("".join(lines[skip:])), start + skip


def free_names(tree: ast.AST) -> dict[str, ast.Name]:
    """Names a function body reads but nowhere binds, each with its first use."""
    function = next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef))
    bound = {a.arg for n in ast.walk(function) if isinstance(n, ast.arguments) for a in _all_args(n)}
    bound |= {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    bound |= {n.name for n in ast.walk(function) if isinstance(n, ast.FunctionDef) and n is not function}
    free: dict[str, Any] = {}
    for statement in function.body:
        annotations = {
            id(m) for n in ast.walk(statement) if isinstance(n, ast.AnnAssign) for m in ast.walk(n.annotation)
        }
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and id(node) not in annotations:
                if node.id not in bound:
                    free.setdefault(node.id, node)
    return free


def _all_args(a: ast.arguments):
    return [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, [a.vararg, a.kwarg])]


def capture_scope(fn: types.FunctionType) -> dict[str, Any]:
    """The globals and closure variables a function sees, as one new dictionary."""
    scope = dict(fn.__globals__)
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or ()):
        with contextlib.suppress(ValueError):  # a cell not yet filled
            scope[name] = cell.cell_contents
    return scope


def allowed_in_kernel(value) -> bool:
    """Whether the compiler lets a kernel read this global (Triton's own rule)."""
    load_triton()
    import triton.language as tl
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITCallable, KernelInterface

    module = getattr(value, "__module__", None) or ""
    return (
        isinstance(value, (types.ModuleType, JITCallable, KernelInterface, InterpretedFunction, tl.constexpr, tl.dtype))
        or getattr(value, "__triton_builtin__", False)
        or getattr(value, "__triton_aggregate__", False)
        or module.startswith(("triton.language", "triton.experimental"))
        or (isinstance(value, tuple) and hasattr(value, "_fields"))
        or (isinstance(value, type) and issubclass(value, tuple))
    )


def rewrite(fn: types.FunctionType):
    """Code object of the interpreter's version of a function, the names it borrows, and its free names."""
    cached = _rewritten.get(fn)
    if cached is None:
        from triton.runtime import interpreter

        try:
            source, lineno = function_source(fn)
        except (OSError, TypeError, IndentationError):
            cached = (None, (), {})
        else:
            tree = ast.parse(source)
            free = {n: (node.lineno + lineno - 1, node.col_offset) for n, node in free_names(tree).items()}
            before = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef):
                    node.decorator_list = []
                    node.returns = None
                    for arg in _all_args(node.args):
                        arg.annotation = None
                    break
            tree = interpreter.ASTTransformer().visit(tree)
            ast.fix_missing_locations(tree)
            ast.increment_lineno(tree, lineno - 1)
            added = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} - before
            borrowed = tuple(n for n in added if hasattr(interpreter, n))
            module = compile(tree, fn.__code__.co_filename, "exec", dont_inherit=True)
            code = next(c for c in module.co_consts if isinstance(c, types.CodeType))
            cached = (code, borrowed, free)
        _rewritten[fn] = cached
    return cached

"""A notebook as text: its cells, the stub of an exercise, and how to put one answer in another's place.

marimo writes a notebook as a Python file whose cells start at the left margin with `@app.function`, `@app.cell`,
`with app.setup` or `app._unparsable_cell`. Splitting at those lines works on any file a learner may leave behind, also
on one that Python cannot parse.
"""

import ast
import codecs
import contextlib
import inspect
import io
import os
import re
import shutil
import tempfile
import textwrap
import time
import tokenize
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from checks.catalogue import LABS
from checks.core.places import untagged

__all__ = [
    "LABS_DIR",
    "answer_source",
    "backup",
    "decode",
    "function_text",
    "notebook_path",
    "read",
    "reset",
    "solve",
    "stub_source",
    "write_whole",
]

ROOT = Path(__file__).resolve().parents[2]
LABS_DIR = ROOT / "labs"
_CELL = re.compile(r"^(@app\.(function|cell|class_definition)|with app\.setup|app\._unparsable_cell|if __name__ ==)")


def notebook_path(lab: str, folder: Path | None = None) -> Path:
    """Where the notebook of a lab lies: in the folder that `MSDA_LABS` names, in the checkout, or in `labs` here."""
    name = f"{LABS[lab].notebook}.py"
    folder = folder or os.environ.get("MSDA_LABS")
    if folder is not None:
        return Path(folder) / name
    here = LABS_DIR / name
    return here if here.exists() else Path.cwd() / "labs" / name


def decode(data: bytes) -> str:
    """A notebook's bytes as text, as any editor may have saved them.

    Args:
        data: UTF-8, with or without a byte order mark; UTF-16 or UTF-32; or what a coding line says.

    Returns:
        The text, its lines ending in a newline alone.

    Raises:
        UnicodeDecodeError, SyntaxError: it is none of these.
    """
    marks = (
        (codecs.BOM_UTF8, "utf-8-sig"),
        (codecs.BOM_UTF32_LE, "utf-32"),  # begins like UTF-16's, so it is looked for first
        (codecs.BOM_UTF32_BE, "utf-32"),
        (codecs.BOM_UTF16_LE, "utf-16"),
        (codecs.BOM_UTF16_BE, "utf-16"),
    )
    encoding = next((codec for mark, codec in marks if data.startswith(mark)), None)
    if encoding is None and len(data) > 2:  # Latin letters, a zero behind or before each
        zeros = {"utf-16-le": data[1:64:2], "utf-16-be": data[0:64:2]}
        encoding = next((codec for codec, part in zeros.items() if not part.strip(b"\0")), None)
    if encoding is None:
        encoding = tokenize.detect_encoding(io.BytesIO(data).readline)[0]
    text = data.decode(encoding).lstrip("\ufeff")  # a mark before a mark
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read(path: Path) -> str:
    """A notebook's text; see `decode`. Raises OSError where there is no such file."""
    return decode(path.read_bytes())


def write_whole(path: Path, text: str) -> None:
    """Replace a file's text at once: whoever looks, or cuts the power, finds the old one or the new one.

    Lines end as they did in the old file. Raises OSError, and then the old file is untouched.
    """
    old = path.read_bytes() if path.exists() else b""
    line_end = "\r\n" if b"\r\n" in old else "\n"
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}.", suffix=".part", dir=path.parent)
    try:
        with open(handle, "w", encoding="utf-8", newline=line_end) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, name)
        else:
            os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


@dataclass
class _Block:
    """One cell, or the text before the first or after the last."""

    text: str

    def defines(self, function: str) -> bool:
        return bool(
            re.search(rf"^\s*((async\s+)?def|class) {re.escape(function)}\b", self.text, re.M)
        ) and not self.text.startswith("if __name__")

    def grades(self, name: str) -> bool:
        return f'checks.grade("{name}"' in self.text


def _blocks(text: str) -> list[_Block]:
    blocks, current = [], []
    for line in text.splitlines(keepends=True):
        if _CELL.match(line) and current:
            blocks.append(_Block("".join(current)))
            current = []
        current.append(line)
    blocks.append(_Block("".join(current)))
    return blocks


def stub_source(function: str, solution: ModuleType) -> str:
    """The stub of an exercise: the solution's decorators, signature and docstring, and nothing else.

    Of a class, each method's; there only a decorator that says what the first argument is stays.
    """
    source, node = _function(function, solution)
    if isinstance(node, ast.ClassDef):
        return _class_stub(source, node, solution)
    lines = source.splitlines()
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)]) - 1
    docstring = node.body[0]
    head = "\n".join(lines[first : docstring.end_lineno])
    name = f"{solution.__name__.rsplit('.', 1)[-1].removeprefix('lab')[-2:]}.{function}"
    kernel = any("jit" in ast.unparse(d) for d in node.decorator_list)
    body = f'tl.static_assert(False, "{name}")' if kernel else f'raise NotImplementedError("{name}")'
    return f"{head}\n    {body}\n"


def _class_stub(source: str, node: ast.ClassDef, solution: ModuleType) -> str:
    lines, parts = source.splitlines(), []
    name = f"{solution.__name__.rsplit('.', 1)[-1].removeprefix('lab')[-2:]}.{node.name}"
    parts.append("\n".join(lines[node.lineno - 1 : node.body[0].end_lineno]))
    for method in node.body[1:]:
        if not isinstance(method, ast.FunctionDef):
            raise ValueError(f"{solution.__name__}.{node.name} may hold a docstring and methods, for the stub's sake.")
        kept = [f"    @{ast.unparse(d)}\n" for d in method.decorator_list if ast.unparse(d) == "staticmethod"]
        head = "\n".join(lines[method.lineno - 1 : method.body[0].end_lineno])
        parts.append(f'{"".join(kept)}{head}\n        raise NotImplementedError("{name}")')
    return "\n\n".join(parts) + "\n"


def answer_source(function: str, solution: ModuleType) -> str:
    """The solution's own text for one exercise."""
    source, node = _function(function, solution)
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)]) - 1
    return "\n".join(source.splitlines()[first : node.end_lineno]) + "\n"


def _function(function: str, solution: ModuleType) -> tuple[str, ast.FunctionDef | ast.ClassDef]:
    source = untagged(inspect.getsource(solution))
    for node in ast.parse(source).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == function:
            if ast.get_docstring(node) is None:
                raise ValueError(f"{solution.__name__}.{function} needs a docstring: the stub is made from it.")
            return source, node
    raise ValueError(f"{solution.__name__} has no function {function!r}.")


def replace(text: str, name: str, source: str) -> str:
    """Put `source` where a notebook's text defines the exercise `name`; before its checker cell if it is gone."""
    function = name.split(".")[1]
    kind = "class_definition" if re.search(rf"^class {re.escape(function)}\b", source, re.M) else "function"
    cell = f"@app.{kind}\n{source}\n\n"
    blocks = _blocks(text)
    for block in blocks[1:]:
        if block.defines(function):
            block.text = cell
            return "".join(b.text for b in blocks)
    for position, block in enumerate(blocks):
        if block.grades(name) or block.text.startswith("if __name__"):
            blocks.insert(position, _Block(cell))
            return "".join(b.text for b in blocks)
    return text.rstrip("\n") + f"\n\n\n{cell}".rstrip("\n") + "\n"


def function_text(text: str, function: str) -> str:
    """Where a notebook's text defines a function or class: the statement, decorators included; "" if it does not.

    Found at the top level and, as marimo saves what uses another cell's names, inside an ordinary cell; also a lambda
    that is given a name.
    """
    for block in _blocks(text)[1:]:
        if not re.search(rf"\b{re.escape(function)}\b", block.text):
            continue  # parsing is what takes time
        with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            for node in ast.parse(block.text).body:
                inside = node.body if isinstance(node, ast.FunctionDef) and _is_cell(node) else []
                for one in (node, *inside):
                    if function in _named(one):
                        lines = block.text.splitlines(keepends=True)
                        first = min([one.lineno, *(d.lineno for d in getattr(one, "decorator_list", []))]) - 1
                        return textwrap.dedent("".join(lines[first : one.end_lineno]))
    return ""


def _is_cell(node: ast.FunctionDef) -> bool:
    return any(ast.unparse(decorator).split("(")[0] == "app.cell" for decorator in node.decorator_list)


def _named(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    return []


def reset(text: str, lab: str, solution: ModuleType, only: str | None = None) -> str:
    """A notebook's text with its exercises, or one of them, back at their stubs."""
    for function in _chosen(lab, only):
        text = replace(text, f"{lab}.{function}", stub_source(function, solution))
    return text


def solve(text: str, lab: str, solution: ModuleType, only: str | None = None) -> str:
    """A notebook's text with the solutions' answers in their cells."""
    for function in _chosen(lab, only):
        text = replace(text, f"{lab}.{function}", answer_source(function, solution))
    return text


def _chosen(lab: str, only: str | None) -> list[str]:
    exercises = LABS[lab].exercises
    chosen = [function for function in exercises if only is None or function == only]
    if not chosen:
        raise ValueError(f"lab {lab} has no exercise {only!r}. It has {', '.join(exercises)}.")
    return chosen


def backup(path: Path) -> Path:
    """Copy a file beside itself, into `.backup/`, under a name with the time. Returns the copy's path."""
    folder = path.parent.parent / ".backup" if path.parent.name == "labs" else path.parent / ".backup"
    folder.mkdir(parents=True, exist_ok=True)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for attempt in range(1000):
        copy = folder / f"{path.stem}.{stamp}{f'-{attempt}' if attempt else ''}.py"
        if not copy.exists():
            break
    shutil.copy2(path, copy)
    return copy

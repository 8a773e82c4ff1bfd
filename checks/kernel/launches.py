"""The kernel side of the grader: launches under the guard, the compiler's word on them, and wrong kernels to compare with.

The interpreter runs what the compiler refuses, and a GPU does not say what the guard says. So a kernel is run under the
guard on the CPU, compiled for a GPU that need not be there, and, where there is one, run on it as well.
"""

import __future__

import ast
import contextlib
import inspect
import itertools
import linecache
import re
import sys
import textwrap
import threading
import types
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from checks.core import watch
from checks.core.call import quote
from checks.core.exercise import Mistake, provide
from checks.core.places import untagged
from msda_core import device

if TYPE_CHECKING:
    from checks.kernel.work import Work

__all__ = ["Compilation", "edited", "finding", "guarded", "beside_stub", "on_device", "slip", "with_body"]

COMPILE_LIMIT = 30.0  # seconds until a compiler that says nothing counts as none
TARGET = "sm_90"

#: What the compiler says of itself where it should speak of the kernel → what it means.
PLAINLY = {
    r"'\w+' object has no attribute 'func'": "a loop runs over range(…), tl.range(…) or tl.static_range(…), nothing else",
    r"failed to legalize operation 'tt\.return'": "a kernel returns nothing: what it computes is written with tl.store",
    r"[Bb]oolean value of Tensor .* ambiguous": "the lanes of a block cannot branch, each may want another way: use a mask",
}

#: What Python or Triton says of a line that confuses a kernel with Python → what the line looks like, what it means.
CONFUSIONS = [
    (
        r"must be (Tensor|real number), not tensor|type tensor doesn't define",
        r"\b(?:torch|math|np|numpy)\.(\w+)\(",
        "{0} is for Python and its tensors. A kernel computes with what begins with tl, as in tl.{0}.",
    ),
    (
        r"object is not iterable|not subscriptable|unsupported tensor index",
        r"_ptr\[",
        "a pointer is not indexed: tl.load(pointer + k) reads element k.",
    ),
    (
        r"does not support item assignment",
        r"",
        "nothing is assigned by index: tl.store(pointer + k, value) writes element k.",
    ),
    (
        r"object is not iterable",
        r"(?<![\w.])(sum|max|min)\(",
        "Python's {0} knows no blocks: tl.{0}(block, axis=0) takes all lanes together.",
    ),
    (
        r"arange's arguments must be of type tl\.constexpr",
        r"tl\.arange\(\s*[^,]+,\s*(BLOCK\w*)\s*\)",
        "the size of a block must be known when the kernel is compiled. Is `: tl.constexpr` missing after {0} in the "
        "signature?",
    ),
    (
        r"arange's arguments must be of type tl\.constexpr",
        r"tl\.arange\(\s*[^,]+,\s*(.+?)\)",
        "the size of a block must be known when the kernel is compiled, and {0} is not. Take a block of constant size, and a "
        "mask for the lanes that have no element.",
    ),
    (
        r"Mask argument cannot be block type",
        r"",
        "an address and a block: the second argument of tl.load is the mask. Offsets are added to the pointer, "
        "tl.load(pointer + offsets, mask=…).",
    ),
    (
        r"Value argument cannot be block type",
        r"",
        "a block of values and one address. Are offsets to be added to the pointer, or the lanes to each other (tl.sum)?",
    ),
    (
        r"invalid operands of type pointer<\w+> and triton\.language\.(float|fp|bfloat)\w+",
        r"",
        "addresses are whole numbers, and so is what is added to a pointer. Which of these numbers is a float?",
    ),
    (
        r"type 'tensor' has no len",
        r"",
        "a pointer does not know how much lies behind it: sizes are arguments of the kernel.",
    ),
    (
        r"[Bb]oolean value of Tensor .* ambiguous|truth value of an array",
        r"",
        "the lanes of a block cannot branch, each may want another way: use a mask.",
    ),
]

_serial = itertools.count()


def guarded(launches: list | None = None, work: "Work | None" = None) -> contextlib.AbstractContextManager:
    """The machine's guard; appends every launch to `launches` before it runs, and shows it to `work`."""
    from msda_core import machine

    def launched(launch):
        watch.check_launch(launch.kernel)
        if launches is not None:
            launches.append(launch)
        if work is not None:
            work.launched(launch)

    return machine.guard(launched=launched, observer=None if work is None else work.see)


def work_of(names: Sequence[str]) -> "Work":
    """What follows the inputs of one call, by these names, to what it returns."""
    from checks.kernel.work import Work

    return Work(names)


def finding(error: BaseException | None) -> tuple[str, str] | None:
    """What the guard or the compiler found, as a state and a sentence that begins with the learner's line.

    Args:
        error: what the answer raised.

    Returns:
        ("fail", "line 8 of add_kernel: `…` reads element 100 of x_ptr, …"), "crash" where nothing could be launched, or
        None: an exception of the answer's own.
    """
    if device.NO_TRITON:
        return None
    from triton.compiler.errors import CompilationError

    from msda_core import machine

    while error is not None and not isinstance(error, (machine.MachineError, CompilationError)):
        error = error.__cause__
    if error is None:
        return None
    if isinstance(error, machine.KernelFailed):
        return _confusion(error)
    if isinstance(error, (machine.CompileError, CompilationError)):
        return "fail", _refusal(error)
    if not isinstance(error, machine.KernelError):
        return "crash", str(error)
    if not error.lineno:
        return "fail", str(error)
    text = str(error).removeprefix(f"line {error.lineno}: `{error.line}` ")
    return "fail", f"{quote(error.filename, error.lineno)} {text}"


def _confusion(error: BaseException) -> tuple[str, str] | None:
    """An exception of Python's or Triton's own, where it is known what was confused."""
    cause = str(error.__cause__ or "")
    for said, looks, plain in CONFUSIONS:
        line = re.search(looks, error.line or "")
        if line and re.search(said, cause):
            return "crash", f"{quote(error.filename, error.lineno)} does not work: {plain.format(*line.groups())}"
    return None


def _refusal(error: BaseException) -> str:
    """What the compiler refuses, and why: from the machine's compiler, or from the one that feeds a GPU."""
    said = "runs in the interpreter, but a GPU's compiler refuses it"
    if hasattr(error, "reason"):
        where = quote(error.filename, error.lineno) if error.lineno else f"{error.kernel}:"
        return f"{where} {said}: {_plainly(error.reason)}"
    while type(error.__cause__) is type(error):  # a chain of calls, the innermost last
        error = error.__cause__
    lines, number = (error.src or "").splitlines(), getattr(error.node, "lineno", 0)
    where = f"`{lines[number - 1].strip()}`" if 0 < number <= len(lines) else "this kernel"
    return f"{where} {said}: {_plainly(str(error.error_message or error.__cause__ or error))}"


def _plainly(reason: str) -> str:
    return next((plain for pattern, plain in PLAINLY.items() if re.search(pattern, reason)), reason)


def on_device(thing: Any) -> Any:
    """The same arguments on the device that kernels run on, with their strides."""
    if isinstance(thing, Tensor):
        storage = thing.detach().untyped_storage().to(device=device.ACTIVE)
        moved = torch.empty(0, dtype=thing.dtype, device=device.ACTIVE)
        return moved.set_(storage, thing.storage_offset(), thing.size(), thing.stride())
    if type(thing) in (list, tuple):
        return type(thing)(on_device(item) for item in thing)
    return thing


def _lower(launch, tries: int = 3) -> None:
    """Compile a launch for `TARGET`.

    Python 3.11 can raise "AST constructor recursion depth mismatch" when two threads parse at once: then once more.
    """
    from msda_core.machine.compile.lower import lower_launch

    try:
        lower_launch(launch, TARGET)
    except SystemError:
        if tries == 1:
            raise
        _lower(launch, tries - 1)


class Compilation:
    """Compiles launches in the background, while the interpreter goes on with the next check.

    Args:
        launches: as `guarded` collected them; each kernel is compiled once.
    """

    def __init__(self, launches: list):
        kernels = {id(launch.kernel): launch for launch in launches}
        self._launches = list(kernels.values())
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._compile, daemon=True, name="compiling")
        self._thread.start()

    def _compile(self):
        try:
            for launch in self._launches:
                _lower(launch)
        except Exception as error:  # whatever it is, the learner's notebook goes on
            self._error = error

    def result(self) -> BaseException | None:
        """What was raised, once it is done; None where everything compiles.

        Raises:
            TimeoutError: it does not end.
        """
        self._thread.join(COMPILE_LIMIT)
        if self._thread.is_alive():
            raise TimeoutError(f"the compiler gave no answer within {COMPILE_LIMIT:g} s.")
        return self._error


def edited(kernel: Any, *changes: tuple[str, str], **names: Any) -> Any:
    """A wrong kernel, told as what is different from a right one; a launcher as well.

    Args:
        kernel: the right one, a function, under `@triton.jit` or not.
        changes: (old, new) in its text; every occurrence of old is replaced.
        names: what it shall find under a name, in place of what it finds now: `corner=…` for a wrong helper.

    Returns:
        A kernel of the same name. Its source is registered, so that Triton and tracebacks can read it.

    Raises:
        ValueError: old does not occur: the right kernel has changed and the mistake has not.
    """
    function = getattr(kernel, "fn", kernel)
    text = untagged(_text(kernel))
    for old, new in changes:
        if old not in text:
            raise ValueError(f"{function.__name__} does not contain {old!r}, so it cannot be edited.")
        text = text.replace(old, new)
    filename = f"<{function.__name__}, wrong, {next(_serial)}>"
    lines = text.splitlines(keepends=True)
    linecache.cache[filename] = (len(text), None, lines, filename)
    scope = {**function.__globals__, **names, "__name__": "edited"}
    exec(compile(text, filename, "exec", flags=_future(function.__code__), dont_inherit=True), scope)
    return scope[function.__name__]


def _future(code: types.CodeType) -> int:
    return code.co_flags & __future__.annotations.compiler_flag


def with_body(kernel: Any, body: str) -> Any:
    """A wrong kernel of which nothing is left but signature and docstring: the rest is `body`. Else as `edited`."""
    text = untagged(_text(kernel))
    first = ast.parse(text).body[0].body[1].lineno
    rest = "".join(text.splitlines(keepends=True)[first - 1 :])
    return edited(kernel, (rest, textwrap.indent(textwrap.dedent(body).strip("\n"), "    ") + "\n"))


# --- what a kernel's text says ----------------------------------------------------------------------------------------

AND = Mistake(
    "when the lanes of two blocks are joined with `and`, `or` or `not`",
    None,
    "Python's `and` asks one question of a whole block and keeps one of its two sides. Lane by lane it is `&`, `|` and `~`, "
    "with each comparison in parentheses.",
)


def _text(answer: Any) -> str:
    """The source of a function or kernel, dedented; "" where there is none."""
    while not isinstance(answer, types.FunctionType) and hasattr(answer, "fn"):
        answer = answer.fn
    if not isinstance(answer, types.FunctionType):
        return ""
    try:
        return textwrap.dedent("".join(inspect.getsourcelines(answer)[0]))
    except OSError:
        return ""


def _definition(answer: Any) -> ast.FunctionDef | None:
    try:
        body = ast.parse(_text(answer)).body
    except SyntaxError:
        return None
    return body[0] if body and isinstance(body[0], ast.FunctionDef) else None


def beside_stub(answer: Any, name: str) -> str:
    """The stub's last line, where the answer has lines of its own as well; "" where it is the stub and nothing else."""
    node = _definition(answer)
    own = [] if node is None else node.body[1 if ast.get_docstring(node) is not None else 0 :]
    stub = [
        statement
        for statement in own
        if isinstance(statement, (ast.Raise, ast.Expr)) and name in ast.unparse(statement)
    ]
    return ast.unparse(stub[0]).replace("'", '"') if stub and len(own) > 1 else ""


def slip(answer: Any) -> Mistake | None:
    """What a wrong kernel's text shows at once, whatever it computes: Python's `and` between blocks."""
    node = _definition(answer)
    if node is None:
        return None
    blocks: set[str] = set()
    for _ in range(3):  # a loop may use a name above the line that makes it a block
        for statement in ast.walk(node):
            if isinstance(statement, (ast.Assign, ast.AugAssign)) and _is_block(statement.value, blocks):
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                blocks |= {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
    for one in ast.walk(node):
        parts = one.values if isinstance(one, ast.BoolOp) else []
        if isinstance(one, ast.UnaryOp) and isinstance(one.op, ast.Not):
            parts = [one.operand]
        if any(_is_block(part, blocks) for part in parts):
            return AND
    return None


def _is_block(node: ast.AST, blocks: set[str]) -> bool:
    """Whether a value is a block: made of tl.arange or of a block, and not of its lanes taken together."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in ("sum", "max", "min"):
            return False
        if node.func.attr == "arange":
            return True
    if isinstance(node, ast.Name):
        return node.id in blocks
    return any(_is_block(child, blocks) for child in ast.iter_child_nodes(node))


provide(kernels=sys.modules[__name__])

"""Calling a learner's function where it can do no harm.

One call runs in a thread of its own, on copies of its arguments, with a limit of processor time, its prints collected,
fresh memory poisoned, and the doors to the reference watched. Whatever happens comes back as an `Outcome`; nothing is
raised. A thread that cannot be interrupted goes on; the outcome says so.
"""

import contextlib
import ctypes
import faulthandler
import functools
import importlib
import inspect
import io
import linecache
import os
import re
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from checks.core import intact, watch

__all__ = ["Outcome", "call", "chain", "copy_of", "learner_line", "neutral", "quote", "slowness"]

WALL = (
    10  # times its limit that an answer may take on the clock: it may sleep, or wait for a compiler, on a busy machine
)
KILL = 60.0  # seconds past that until a call which lets no other thread run, not even the grader's, ends the process
USUAL = 0.012  # seconds of processor time that `_exercise_python` takes on the machine that limits were set on
IMPORTS = (
    60.0  # seconds of processor time that imports may take besides: torch brings its compiler where it first needs it
)
MESSAGE_LIMIT = 600  # characters of an exception's message that are kept

PRINT_LIMIT = 2_000  # characters of the learner's output that are kept


@dataclass
class Outcome:
    """What came of one call.

    Attributes:
        value: what was returned.
        error: what was raised, if anything was.
        timeout: the limit in seconds, if it ran out.
        ended: then, the sentence that says what ran out, and what may be the reason.
        line: the learner's line where it raised or was stopped, as "line 3 of f: `return x / 0`".
        reached: the function of ours that the answer called, if it did.
        forbidden: the torch function that the exercise forbids, if it was called.
        changed: indices of the arguments that the call modified.
        printed: what it printed, cut to a limit.
        seconds: how long it took.
    """

    value: Any = None
    error: BaseException | None = None
    timeout: float | None = None
    ended: str = ""
    line: str = ""
    reached: str = ""
    forbidden: str = ""
    changed: list[int] = field(default_factory=list)
    printed: str = ""
    seconds: float = 0.0


class _OutOfTime(BaseException):
    """Raised in the learner's thread when its time is up; not an Exception, so `except Exception` lets it through."""


class _Forbidden(watch.Noted):
    """The answer called a torch function that the exercise forbids."""

    notes = []


def call(
    run: Callable[..., Any],
    args: tuple,
    *,
    answer: Any = None,
    limit: float = 3.0,
    forbid: Mapping[str, str] | None = None,
    autograd: bool = True,
    around: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext,
    watched: bool = True,
) -> Outcome:
    """Call run(*args) on copies of args.

    Args:
        run: what to call.
        args: its arguments; tensors inside are copied with their strides.
        answer: the learner's object, to find their file and line; `run` if not given.
        limit: seconds of processor time; raised as far as this machine is slower than the one they were set on.
        forbid: names of torch functions that count as not answering → why.
        autograd: False runs it without gradients, and counts every way of asking for some as forbidden.
        around: a context manager to enter inside the thread.
        watched: report a call of the reference.
    """
    outcome = Outcome()
    limit *= float(os.environ.get("MSDA_PATIENCE", "1"))  # for a machine that is slow, or busy with other things
    answer = run if answer is None else answer
    copies = tuple(copy_of(arg) for arg in args)
    output = _Collected()
    done = threading.Event()

    def body():
        threads.add(threading.get_ident())
        try:
            with around(), torch.set_grad_enabled(autograd), _Poison(forbid or {}, autograd):
                outcome.value = run(*copies)
        except watch.Noted:
            pass
        except _OutOfTime:
            outcome.timeout = limit
        except BaseException as error:
            try:
                outcome.line = learner_line(error, answer)
                outcome.error = _tamed(error)
            except _OutOfTime:
                outcome.timeout = limit
        finally:
            done.set()

    watch.Reached.notes, _Forbidden.notes = [], []
    before = intact.Snapshot() if watched and watch.idle() else None
    default_dtype, had_grad = torch.get_default_dtype(), torch.is_grad_enabled()
    stdout, stderr = sys.stdout, sys.stderr
    thread = threading.Thread(target=body, name="learner", daemon=True)
    started = time.perf_counter()
    try:
        sys.stdout = sys.stderr = output
        watching: contextlib.AbstractContextManager[set[int]] = (
            watch.watching() if watched else contextlib.nullcontext(set())
        )
        with watching as threads:
            with _last_resort(limit):
                thread.start()
                ran = _wait(thread, done, limit)
            if ran is not None:
                outcome.timeout = limit
                outcome.line = _running_line(thread, answer)
                outcome.ended = _sentence(limit, ran, outcome.line, _stop(thread, done))
    finally:
        sys.stdout, sys.stderr = stdout, stderr
        torch.set_default_dtype(default_dtype)
        torch.set_grad_enabled(had_grad)
        _unpatch()
        if before is not None:
            before.restore()
    outcome.seconds = time.perf_counter() - started
    outcome.reached = next(iter(watch.Reached.notes), "")
    outcome.forbidden = next(iter(_Forbidden.notes), "")
    outcome.printed = output.text()
    _forget(outcome.error)
    if outcome.timeout is None:
        outcome.changed = [i for i, (before, after) in enumerate(zip(args, copies)) if not _unchanged(before, after)]
    return outcome


def _forget(error: BaseException | None) -> None:
    """Let go of the frames of a call that raised: outcomes are kept, and some cases take gigabytes of address space."""
    for one in chain(error):
        one.__traceback__ = None
        one.__context__ = None


def chain(error: BaseException | None) -> list[BaseException]:
    """An exception and its causes, outermost first, each once."""
    found: list[BaseException] = []
    while error is not None and not any(error is one for one in found):
        found.append(error)
        error = BaseException.__dict__["__cause__"].__get__(error)
    return found


#: Whose exceptions say what they are without running code of the learner's.
TRUSTED = ("builtins", "checks", "msda_core", "numpy", "solutions", "torch", "triton")
PLAIN = (bool, int, float, complex, str, bytes, type(None), tuple)


def _tamed(error: BaseException) -> BaseException:
    """The exception, if it is one of Python's, torch's or ours with plain contents; or one that says the same.

    Called in the learner's thread, under its limit: a message may be computed by a `__str__` of the learner's.
    """
    errors = chain(error)
    errors[-1].__cause__ = None  # a cycle ends here
    for one in errors:
        home = str(type(one).__module__).partition(".")[0]
        if home not in TRUSTED or home == "builtins" and not all(type(arg) in PLAIN for arg in one.args):
            break
        try:
            str(one)
        except Exception:  # a number of too many digits
            break
    else:
        return error
    base = next((kind for kind in (NotImplementedError, AssertionError) if isinstance(error, kind)), Exception)
    try:
        text = str(error)[:MESSAGE_LIMIT]
    except Exception as inner:
        text = f"(its message cannot be read: `__str__` raised {type(inner).__name__})"
    return type(type(error).__name__, (base,), {"__module__": "builtins"})(text)


# --- time -------------------------------------------------------------------------------------------------------------


def _exercise_python() -> float:
    """Processor seconds of a fixed piece of Python."""
    started, total = time.thread_time(), 0
    for number in range(200_000):
        total += number & 7
    return time.thread_time() - started


@functools.cache
def slowness() -> float:
    """How many times slower than the machine that limits were set on this one is; at least 1. Measured once a session."""
    return max(1.0, min(_exercise_python() for _ in range(3)) / USUAL)


def _ident(thread: threading.Thread) -> int:
    """The id of a thread that was started."""
    return thread.ident or 0


def _processor_time(thread: threading.Thread) -> float | None:
    """Seconds that a thread has computed; None where the system does not say, or the thread is gone."""
    try:
        return time.clock_gettime(time.pthread_getcpuclockid(_ident(thread)))
    except (AttributeError, OSError, TypeError):
        return None


@dataclass
class _Ran:
    """How long a call ran until it was stopped: on the clock, and of that on the processor (None: not known)."""

    clock: float
    processor: float | None


def _wait(thread: threading.Thread, done: threading.Event, limit: float) -> _Ran | None:
    """Wait for a call to end: None, or how long it ran, where a limit ran out first.

    `limit` is of processor time, imports apart; on the clock it may take `WALL` times that. Where the processor's time is not known
    the whole process's is taken.
    """
    started, before = time.perf_counter(), time.process_time()
    allowed, step = limit * slowness(), min(0.05, limit / 4)
    last = spared = 0.0
    while not done.wait(step):
        clock, used = time.perf_counter() - started, _processor_time(thread)
        computed = time.process_time() - before if used is None else used
        if spared < IMPORTS and _imports():
            spared, allowed = spared + computed - last, allowed + computed - last
        last = computed
        if clock < limit:
            continue
        if computed >= allowed:
            # The machine may have become slower since it was measured.
            allowed = max(allowed, spared + limit * _exercise_python() / USUAL)
            used = _processor_time(thread)
            if (time.process_time() - before if used is None else used) >= allowed:
                return _Ran(clock, used)
        if clock >= WALL * allowed:
            return _Ran(clock, used)
    return None


def _imports() -> bool:
    """Whether a module is being imported: a lock of its own lives as long. (Frames of a running thread are not safe to walk.)"""
    return bool(getattr(importlib._bootstrap, "_module_locks", ()))  # type: ignore[attr-defined]


def _sentence(limit: float, ran: _Ran, line: str, stopped: bool) -> str:
    """What ran out, where, and what may be the reason."""
    at = f" at {line}" if line else ""
    slow = slowness() if slowness() > 1.5 else 0.0
    busy = _busy()
    if ran.processor is not None and ran.processor < limit:
        said = f"stopped after {ran.clock:.3g} s{at}: it computed for {ran.processor:.2g} s of them and waited for the rest."
        said += (
            f" This machine is busy ({busy}), which may be all that is wrong: try again."
            if busy
            else (" What does it wait for?")
        )
    elif slow:
        said = (
            f"stopped after {ran.processor or ran.clock:.3g} s{at}. This machine is {slow:.1f} times slower than the limit "
            f"of {limit:g} s was set for, and was given as much more. Does it only need longer, or does a loop never end?"
        )
    else:
        said = f"stopped after {limit:g} s{at}. Is there a loop that never ends?"
    if not stopped and (ran.processor is None or ran.processor >= limit):
        said += (
            " It could not be interrupted and goes on computing in the background: restart the notebook's kernel "
            "(or this program) before you go on."
        )
    return said


def _busy() -> str:
    """ "17 processes for 2 cores", where more than twice as many want to run as can; else ""."""
    try:
        load = os.getloadavg()[0]
    except (AttributeError, OSError):
        return ""
    cores = os.cpu_count() or 1
    return f"{load:.0f} processes for {cores} cores" if load > 2 * cores else ""


@contextlib.contextmanager
def _last_resort(limit: float):
    """End the process where an answer sits in a C call that lets no other thread run: there can be no verdict then.

    The traceback of the answer's line is written to the process's error output first.
    """
    try:
        faulthandler.dump_traceback_later(WALL * limit * slowness() + KILL, exit=True, file=2)
    except (OSError, RuntimeError, ValueError):
        yield
        return
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


# --- a session's settings -----------------------------------------------------------------------------------------------


OWNERS = (torch, torch.Tensor, torch.nn.functional)
_TORCH = {owner: {name: thing for name, thing in vars(owner).items() if callable(thing)} for owner in OWNERS}
_NAMES = set(vars(Tensor))


def _unpatch() -> list[tuple[Any, str, Any]]:
    """Put back every function of torch that was replaced; what had been put in its place is returned."""
    found = []
    for owner, known in _TORCH.items():
        now = vars(owner)
        for name, thing in known.items():
            if now.get(name) is not thing:
                found.append((owner, name, now.get(name)))
                setattr(owner, name, thing)
    for name in [name for name in vars(Tensor) if name not in _NAMES and hasattr(torch._C.TensorBase, name)]:
        found.append((Tensor, name, vars(Tensor)[name]))
        delattr(Tensor, name)
    return found


@contextlib.contextmanager
def neutral():
    """torch as it comes: its own functions, float32, and tensors made on the CPU, whatever the session has set."""
    dtype = torch.get_default_dtype()
    replaced = _unpatch()
    torch.set_default_dtype(torch.float32)
    with torch.device("cpu") if torch.get_default_device().type != "cpu" else contextlib.nullcontext():
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
            for owner, name, thing in replaced:
                setattr(owner, name, thing)


def copy_of(thing: Any) -> Any:
    """A copy that shares no memory: tensors keep their strides and the gaps between their elements."""
    if isinstance(thing, Tensor):
        storage = thing.detach().untyped_storage().clone()
        copy = torch.empty(0, dtype=thing.dtype, device=thing.device)
        copy.set_(storage, thing.storage_offset(), thing.size(), thing.stride())
        return copy.requires_grad_(thing.requires_grad)
    if type(thing) in (list, tuple):
        return type(thing)(copy_of(item) for item in thing)
    if type(thing) is dict:
        return {key: copy_of(item) for key, item in thing.items()}
    return thing


def learner_line(error: BaseException, answer: Any) -> str:
    """The last line of the learner's own code on the way to an exception, quoted; "" if there is none."""
    home = _home(answer)
    # Triton wraps what the kernel raised: the learner's line is in the cause.
    for one in reversed(chain(error)[:2]):
        frames = [(frame, number) for frame, number in traceback.walk_tb(one.__traceback__)]
        for frame, number in reversed(frames):
            if frame.f_code.co_filename == home:
                return _quote(frame.f_code, number)
    return ""


def _running_line(thread: threading.Thread, answer: Any) -> str:
    home, frame = _home(answer), sys._current_frames().get(_ident(thread))
    while frame is not None:
        if frame.f_code.co_filename == home:
            return _quote(frame.f_code, frame.f_lineno)
        frame = frame.f_back
    return ""


def _home(answer: Any) -> str:
    """The file (or notebook cell) a function or kernel was written in."""
    function = answer
    if isinstance(answer, type):  # a class: the file of its first method
        methods = (inspect.unwrap(getattr(method, "__func__", method)) for method in vars(answer).values())
        function = next((method for method in methods if isinstance(method, types.FunctionType)), None)
    while not isinstance(function, types.FunctionType) and hasattr(function, "fn"):
        function = function.fn  # a Triton kernel keeps its function in fn, also under @triton.autotune
    code = getattr(function, "__code__", None)
    return code.co_filename if code is not None else ""


COMPREHENSIONS = ("<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>")  # parts of the function around them


def _quote(code: types.CodeType, number: int) -> str:
    name, first = _definition(code.co_filename, number)
    if name == code.co_name or name and code.co_name in COMPREHENSIONS:
        return quote(code.co_filename, number)
    return _place(code.co_filename, number, code.co_name, code.co_firstlineno)


def quote(filename: str, number: int) -> str:
    """A line of a function as its author counts, from the first line of its cell: "line 3 of f: `return x / 0`"."""
    return _place(filename, number, *_definition(filename, number))


def _place(filename: str, number: int, name: str, first: int) -> str:
    text = linecache.getline(filename, number).strip()
    where = f"line {number - first + 1} of {name}" if name else f"line {number}"
    return f"{where}: `{text}`" if text else where


def _definition(filename: str, number: int) -> tuple[str, int]:
    """Name and first line, its decorators' included, of the function around a line; ("", 1) if there is none.

    In a notebook's file marimo's own decorator stands above the function; in the cell it does not.
    """
    lines = linecache.getlines(filename)
    for first in range(min(number, len(lines)), 0, -1):
        match = re.match(r"\s*(?:async )?def (\w+)\(", lines[first - 1])
        if match:
            while first > 1 and re.match(r"\s*@(?!app\.)", lines[first - 2]):
                first -= 1
            return match[1], first
    return "", 1


def _stop(thread: threading.Thread, done: threading.Event) -> bool:
    """Ask a thread to stop, often: an answer may swallow the first requests. Whether it did; a C call does not."""
    for attempt in range(60):
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(_ident(thread)), ctypes.py_object(_OutOfTime))
        if done.wait(0.05 if attempt < 10 else 0.013):
            return True
    return False


class _Collected(io.TextIOBase):
    """Keeps the first characters written to it, and counts the rest."""

    def __init__(self):
        self._parts, self._kept, self._total = [], 0, 0

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        room = PRINT_LIMIT - self._kept
        if room > 0:
            self._parts.append(text[:room])
            self._kept += len(text[:room])
        self._total += len(text)
        return len(text)

    def text(self) -> str:
        kept = "".join(self._parts)
        return (
            kept
            if self._total <= PRINT_LIMIT
            else f"{kept}\n… {self._total:,} characters in all; the rest is not shown."
        )


#: What a torch function mode sees of every way into automatic differentiation → how a learner calls it. `torch.func` and
#: `torch.autograd.functional` go through these; `__torch_function__` sees them before autograd does anything.
AUTOGRAD = {
    "backward": "backward",
    "grad": "torch.autograd.grad",
    "requires_grad_": "requires_grad_",
    "_set_grad_enabled": "torch.enable_grad (or something that uses it, such as torch.func.grad)",
    "_make_dual": "forward-mode differentiation (torch.func.jvp or torch.autograd.forward_ad)",
}


def _differentiates(name: str, args: tuple) -> bool:
    """Whether a call of torch differentiates, or prepares to; also torch's own derivatives, `grid_sampler_2d_backward`."""
    if name in ("_set_grad_enabled", "requires_grad_"):
        return args[-1] is not False  # torch.no_grad comes this way too
    return name in AUTOGRAD or "_backward" in name


class _Poison(TorchFunctionMode):
    """Fills memory that is allocated without a value, so that an element nobody writes cannot look right.

    It sees every call of torch, so it is also where forbidden ones are found.
    """

    EMPTY = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted"}

    def __init__(self, forbid: Mapping[str, str], autograd: bool = True):
        super().__init__()
        self._forbid, self._autograd = forbid, autograd

    def __torch_function__(self, function, kinds, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        if name in self._forbid:
            raise _Forbidden.noted(f"{name}: {self._forbid[name]}")
        if not self._autograd and _differentiates(name, args):
            raise _Forbidden.noted(
                f"{AUTOGRAD.get(name, name)}: automatic differentiation is switched off inside this answer. "
                "The derivative is what you are here to write."
            )
        result = function(*args, **(kwargs or {}))
        if name in self.EMPTY and isinstance(result, Tensor):
            # Out of sight of the machine's guard, to which this memory is still uninitialised.
            with torch.no_grad(), _disable_current_modes():
                if result.dtype.is_floating_point:
                    result.fill_(float("nan"))
                elif result.dtype != torch.bool:
                    result.fill_(torch.iinfo(result.dtype).max)
        return result


def _unchanged(before: Any, after: Any) -> bool:
    if isinstance(before, Tensor):
        if before.shape != after.shape or before.dtype != after.dtype:
            return False
        a, b = before.detach(), after.detach()
        return bool(((a == b) | (a.isnan() & b.isnan())).all()) if a.dtype.is_floating_point else torch.equal(a, b)
    if type(before) in (list, tuple):
        return len(before) == len(after) and all(_unchanged(b, a) for b, a in zip(before, after))
    if type(before) is dict:
        return before.keys() == after.keys() and all(_unchanged(before[k], after[k]) for k in before)
    return True

"""Running a script or a module as Python would, with its own arguments, under a session."""

import linecache
import os
import runpy
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

from msda_core.machine import errors

__all__ = ["Ending", "run"]


@dataclass(frozen=True)
class Ending:
    """How a script ended.

    Attributes:
        status: 0 if well, what it gave to `sys.exit`, or 1 if it failed.
        sentence: what went wrong and where; "" if nothing.
        trace: the traceback of the script's own frames.
    """

    status: int = 0
    sentence: str = ""
    trace: str = ""


def run(target: str, args: list[str], module: bool = False) -> Ending:
    """Run a script (or, `module`, what `python -m` would) as `__main__`, unedited, with `sys.argv` and `sys.path` its own.

    Raises:
        LaunchError: there is no such script.
    """
    argv, path = sys.argv, list(sys.path)
    if not module and not Path(target).is_file():
        raise errors.LaunchError(f"There is no script {target}.")
    try:
        sys.argv = [target, *args]
        if module:
            sys.path.insert(0, os.getcwd())
            runpy.run_module(target, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(target).resolve().parent))
            runpy.run_path(target, run_name="__main__")
    except SystemExit as end:
        return _ended(target, end.code)
    except KeyboardInterrupt:
        return Ending(130, f"{target} was interrupted.")
    except BaseException as error:
        return _failed(target, error)
    finally:
        sys.argv, sys.path[:] = argv, path
    return Ending()


def _ended(target: str, code: object) -> Ending:
    if code is None or code == 0:
        return Ending()
    return Ending(int(code) if isinstance(code, int) else 1, f"{target} ended with status {code}.")


def _failed(target: str, error: BaseException) -> Ending:
    hidden = (os.path.dirname(runpy.__file__), "<frozen")
    home = str(Path(__file__).resolve().parents[2])
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith((home, *hidden))]
    own = next((f for f in reversed(frames) if os.sep + "site-packages" + os.sep not in f.filename), None)
    said = str(error).strip()
    kind = "" if isinstance(error, errors.MachineError) else type(error).__name__ + (": " if said else "")
    if isinstance(error, SyntaxError):
        where = f" at line {error.lineno} of {error.filename}"
    else:
        where = f" at line {own.lineno} of {os.path.relpath(own.filename)}" if own else ""
        text = linecache.getline(own.filename, own.lineno or 0).strip() if own else ""
        where += f", `{text}`" if text else ""
    sentence = f"{target} failed{where}: {kind}{said}"
    return Ending(1, sentence, "".join(traceback.format_list(frames)) + f"{type(error).__name__}: {said}")

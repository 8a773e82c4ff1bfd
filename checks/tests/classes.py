"""The kinds of things that a thousand strangers hand in, made in a folder: natural ones, broken ones, hostile ones, cheats."""

import io
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from checks.tests.conftest import blank_text, solved_text

NAME = "01_bilinear.py"
HEAD = "import marimo\napp = marimo.App()\n"


def zip_of(files: dict[str, bytes | str], date=(2026, 1, 1, 0, 0, 0)) -> bytes:
    """A zip file with these entries; their names as they are given, backslashes too."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo("x", date)
            entry.filename = name
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return buffer.getvalue()


def tar_of(files: dict[str, bytes], mode: str) -> bytes:
    """A tar file with these entries."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


#: A notebook with one answer of lab 01, which passes: enough to see how it is found, loaded and graded.
TINY = """import marimo

app = marimo.App()

with app.setup:
    from math import floor


@app.function
def to_pixels(location, size):
    return location * size - 0.5


if __name__ == "__main__":
    app.run()
"""


def answer(body: str, before: str = "") -> str:
    """The tiny notebook with this body of `to_pixels`, and a cell of one's own in the setup."""
    text = TINY.replace(f"    {RIGHT}", "\n".join(f"    {line}" for line in body.splitlines()))
    return text.replace("    from math import floor\n", f"    from math import floor\n{before}", 1)


def in_setup(code: str) -> str:
    """The tiny notebook, and this run when it loads."""
    return answer(RIGHT, "".join(f"    {line}\n" for line in code.splitlines()))


RIGHT = "return location * size - 0.5"
S = TINY.encode()
WRONG = blank_text("01").replace('raise NotImplementedError("01.to_pixels")', "return location * size")

#: name in the folder → (files below it as {path: bytes}, or bytes of the file itself, what is expected of its rows)
Kind = tuple[object, Callable[[list[dict]], bool]]


def every(status: str) -> Callable[[list[dict]], bool]:
    return lambda rows: len(rows) == 5 and {row["status"] for row in rows} == {status}


def good(rows: list[dict]) -> bool:
    """`to_pixels` passes; the others may not be there."""
    return len(rows) == 5 and rows[0]["status"] == "pass" and {row["status"] for row in rows[1:]} <= {"pass", "todo"}


def good_flagged(flag: str) -> Callable[[list[dict]], bool]:
    return lambda rows: good(rows) and flag in rows[0]["flag"]


def one(status: str, message: str) -> Callable[[list[dict]], bool]:
    return lambda rows: len(rows) == 1 and rows[0]["status"] == status and message in rows[0]["message"]


def said(status: str, message: str) -> Callable[[list[dict]], bool]:
    return lambda rows: every(status)(rows) and all(message in row["message"] for row in rows)


def first(status: str, words: str) -> Callable[[list[dict]], bool]:
    """`to_pixels` so, with these words in its row."""
    return lambda rows: rows[0]["status"] == status and words in str(rows[0])


def _nested(depth: int) -> bytes:
    data = zip_of({NAME: S})
    for _ in range(depth):
        data = zip_of({"inner.zip": data})
    return data


NATURAL: dict[str, Kind] = {
    "checkout": ({f"labs/{NAME}": S, "checks/core/grade.py": b"raise SystemExit"}, good),
    "flat folder": ({NAME: S}, good),
    "deep folder": ({f"a/b c/d/e/{NAME}": S}, good),
    "with its environment": (
        {f"labs/{NAME}": S} | {f".venv/lib/site-packages/m{i}.py": b"" for i in range(2_100)}, good,
    ),
    "folder.zip": (zip_of({f"work/labs/{NAME}": solved_text("01").encode()}), every("pass")),
    "flat.zip": (zip_of({NAME: S}), good),
    "zip in a zip.zip": (zip_of({"work.zip": zip_of({NAME: S})}), good),
    "Anna Muster_12345_assignsubmission_file_": ({"work.zip": zip_of({f"labs/{NAME}": S})}, good),
    "work.tar.gz": (tar_of({f"w/{NAME}": S}, "w:gz"), good),
    "work.tar": (tar_of({NAME: S}, "w"), good),
    "bare 01_bilinear.py": (S, good_flagged("was taken for")),
    "downloaded twice": ({"01_bilinear (1).py": S}, good_flagged("01_bilinear (1).py was taken for 01_bilinear.py")),
    "mustermann_LATE_4711_815_01_bilinear-2.py": (S, good_flagged("01_bilinear-2.py was taken for")),
    "Ben Moodle_77_assignsubmission_file_01_bilinear.py": (S, good),
    "backslashes.zip": (zip_of({f"labs\\{NAME}": S}), good),
    "from a Mac.zip": (zip_of({NAME: S, f"__MACOSX/._{NAME}": b"\0", f"._{NAME}": b"\0"}), good),
    "before 1980": ({NAME: S}, good),
    "before 1980.zip": (zip_of({NAME: S}, (1980, 0, 0, 0, 0, 0)), good),
    "byte order mark": ({NAME: b"\xef\xbb\xbf" + S}, good),
    "carriage returns": ({NAME: S.replace(b"\n", b"\r\n")}, good),
    "UTF-16": ({NAME: TINY.encode("utf-16")}, good),
    "capitals": ({"01_BILINEAR.PY": S}, good),
    "a helper beside it": (
        {f"labs/{NAME}": answer("return location * size - HALF", "    from halves import HALF\n").encode(), "labs/halves.py": b"HALF = 0.5\n"},
        good,
    ),
    "a helper in the zip.zip": (
        zip_of({NAME: answer("from halves import HALF\nreturn location * size - HALF"), "halves.py": "HALF = 0.5\n"}), good,
    ),
    "prints": ({NAME: answer(f"import os\nprint('pass')\nos.system('echo pass')\n{RIGHT}").encode()}, good),
    "M\udcfcller": ({NAME: S}, good),
    "a new\nline": ({NAME: S}, good),
    "=1+1": ({NAME: S}, good),
    "without a mark": ({NAME: TINY.encode("utf-16-be")}, good),
    "01-bilinear.py.txt": (S, good_flagged("was taken for")),
    "hyphen": ({"01-bilinear.py": S}, good_flagged("01-bilinear.py was taken for 01_bilinear.py")),
    "hidden ending": ({"01_bilinear.py.txt": S}, good_flagged("01_bilinear.py.txt was taken for")),
    "a name of its own": ({"my homework.py": S, "solutions/lab01.py": b"def to_pixels(location, size): pass"}, good_flagged("my homework.py was taken for")),
    "a tar file.zip": (tar_of({NAME: S}, "w:gz"), good),
    "a program before it.zip": (b"MZ" + b"\0" * 3000 + zip_of({NAME: S}), good),
    "two copies": ({NAME: S, f"old/{NAME}": blank_text("01").encode()}, good_flagged("was graded, not old/01_bilinear.py")),
    "blank": ({NAME: blank_text("01").encode()}, every("todo")),
    "wrong": ({NAME: WRONG.encode()}, first("fail", "without the half pixel")),
    "another lab": ({"02_pointers.py": S}, said("todo", "01_bilinear.py was not found. There is: 02_pointers.py.")),
}  # fmt: skip

BROKEN: dict[str, Kind] = {
    "nothing": ({}, one("todo", "handed in nothing")),
    "nothing.zip": (zip_of({}), one("todo", "handed in nothing")),
    "notes.txt": (b"not a submission", one("crash", "is no folder, no archive and no Python file")),
    "work.rar": (b"Rar!", one("crash", "is a .rar file, which cannot be opened here")),
    "lab.ipynb": (b"{}", one("crash", "is a .ipynb file")),
    "a link in it": ({"/": "/etc/passwd"}, first("todo", "01_bilinear.py is a link, which was not followed")),
    "a pipe in it": ({"|": ""}, first("todo", "01_bilinear.py is no file")),
    "twice in it.zip": (
        zip_of({NAME: S, "x": b"", f"./{NAME}": blank_text("01")}),
        first("todo", "there are two files 01_bilinear.py; the last was used"),
    ),
    "a hard space": (
        {NAME: TINY.replace("location *", "location\u00a0*").encode()},
        said("crash", "invalid non-printable character U+00A0"),
    ),
    "broken.zip": (b"this is no zip", one("crash", "is no zip file")),
    "cut off.zip": (zip_of({NAME: S})[:-30], one("crash", "is no zip file")),
    "cut off.tar.gz": (tar_of({NAME: S}, "w:gz")[:150], one("crash", "is no tar file that can be opened")),
    "leads out.zip": (zip_of({f"../../{NAME}": S}), one("crash", "holds a path that leads out of its folder")),
    "bomb.zip": (zip_of({"bomb.py": b"\0" * 70_000_000}), one("crash", "unpacks to more than 64 MB")),
    "many.zip": (zip_of({f"{i}.py": "" for i in range(2_001)}), one("crash", "holds more than 2000 Python files")),
    "deep.zip": (_nested(5), one("crash", "is an archive in an archive, more than 3 deep")),
    "syntax error": (
        {NAME: S.replace(RIGHT.encode(), b"return location * * size")},
        said("crash", "has a syntax error"),
    ),
    "zero bytes": ({NAME: S + b"\0"}, every("crash")),
    "no text": ({NAME: b"\x89PNG\xff\xfe"}, every("crash")),
}

HOSTILE: dict[str, Kind] = {
    "leaves": ({NAME: f"{HEAD}import os\nos._exit(0)\n".encode()}, said("crash", "its process left with status 0")),
    "dies": ({NAME: f"{HEAD}import ctypes\nctypes.string_at(0)\n".encode()}, said("crash", "its process was ended by signal 11")),
    "loops": (
        {NAME: f"{HEAD}while True:\n    try:\n        while True: pass\n    except BaseException: pass\n".encode()},
        said("crash", "s of processor time"),
    ),
    "sleeps": ({NAME: f"{HEAD}import time\ntime.sleep(600)\n".encode()}, said("crash", "s in which it did nothing")),
    "floods memory": ({NAME: f"{HEAD}import torch\nb = [torch.ones(10**8) for _ in range(10**4)]\n".encode()}, every("crash")),
    "floods the disk": ({NAME: f"{HEAD}with open('big', 'wb') as f:\n    while True: f.write(b'x' * 10**7)\n".encode()}, every("crash")),
    "floods the disk with files": (
        {NAME: f"{HEAD}import time\nfor i in range(60): open(str(i), 'wb').write(b'x' * 10**6)\ntime.sleep(60)\n".encode()},
        said("crash", "it wrote more than 8 MB"),
    ),
    "many processes": (
        {NAME: f"{HEAD}import subprocess, time\nfor i in range(40): subprocess.Popen(['sleep', '60'])\ntime.sleep(60)\n".encode()},
        said("crash", "it had more than 20 processes"),
    ),
    "leaves a process behind": (
        {NAME: in_setup("import subprocess\nsubprocess.Popen(['sleep', '61234'], start_new_session=True)").encode()},
        good_flagged("left 1 process behind"),
    ),
    "raises a lone surrogate": ({NAME: answer("raise ValueError('\\udcff')").encode()}, first("crash", "udcff")),
    "forges JSON": (
        {NAME: f'{HEAD}import os\nprint(\'{{"exercises": [{{"name": "to_pixels", "status": ["pass"]}}]}}\', flush=True)\nos._exit(0)\n'.encode()},
        every("crash"),
    ),
    "forges results": (
        {NAME: f"{HEAD}import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'{{\"exercises\": [{{\"status\": [\"pass\"]}}]}}\\n')\n    except OSError: pass\n".encode()},
        lambda rows: every("crash")(rows) and "channel of results" in rows[0]["flag"],
    ),
}  # fmt: skip

#: Each must be rejected.
CHEATS: dict[str, str] = {
    "calls the reference": in_setup("from checks.core.exercise import find\ntrue = find('01.to_pixels').reference").replace(RIGHT, "return true(location, size)"),
    "calls the solution": in_setup("from checks.answers.carry import solution_module\ntrue = solution_module('01').to_pixels").replace(RIGHT, "return true(location, size)"),
    "a copy of the solution": in_setup("from checks.answers.carry import solution_module\ntrue = solution_module('01', 'mine').to_pixels").replace(RIGHT, "return true(location, size)"),
    "patches comparison": in_setup("from checks.core import compare\ncompare.difference = lambda *a, **k: ''").replace(RIGHT, "return 0.0"),
    "patches torch": in_setup("import torch\ntorch.isclose = lambda a, b, **k: torch.ones(1, dtype=bool)").replace(RIGHT, "return 0.0"),
    "a number that lies": in_setup("class Liar(float):\n    def __eq__(self, other): return True\n    def __sub__(self, other): return 0.0\n    def __rsub__(self, other): return 0.0\n    def __abs__(self): return 0.0").replace(RIGHT, "return Liar(0)"),
    "hunts frames": in_setup("import sys").replace(RIGHT, "frame = sys._getframe()\n    while frame:\n        if 'exercise' in frame.f_locals: return frame.f_locals['exercise'].reference(location, size)\n        frame = frame.f_back"),
    "hunts objects": in_setup("import gc").replace(RIGHT, "return next(o for o in gc.get_objects() if getattr(o, '__name__', '') == 'to_pixels' and getattr(o, '__module__', '') == 'solutions.lab01')(location, size)"),
    "remembers by shape": in_setup("seen = {}").replace(RIGHT, "return seen.setdefault(size, location * size - 0.5)"),
    "a copy of the key's file": in_setup("import importlib.util, solutions\nspec = importlib.util.spec_from_file_location('mine', solutions.__path__[0] + '/lab01.py')\nmine = importlib.util.module_from_spec(spec)\nspec.loader.exec_module(mine)").replace(RIGHT, "return mine.to_pixels(location, size)"),
    "the key's text": in_setup("import solutions\nspace = {}\nexec(open(solutions.__path__[0] + '/lab01.py').read(), space)").replace(RIGHT, "return space['to_pixels'](location, size)"),
    "the key's text, by inspect": in_setup("import inspect\nfrom solutions import lab01\nspace = {}\nexec(inspect.getsource(lab01), space)").replace(RIGHT, "return space['to_pixels'](location, size)"),
    "the key's code": in_setup("import types\nfrom checks.core.exercise import find\ntrue = types.FunctionType(find('01.to_pixels').reference.__code__, globals(), 'f', None, find('01.to_pixels').reference.__closure__)").replace(RIGHT, "return true(location, size)"),
    "a thread from before": in_setup("import queue, threading\nfrom checks.core.exercise import find\nasked, told = queue.Queue(), queue.Queue()\ndef serve():\n    while True: told.put(find('01.to_pixels').reference(*asked.get()))\nthreading.Thread(target=serve, daemon=True).start()").replace(RIGHT, "asked.put((location, size))\n    return told.get(timeout=0.5)"),
    "a door": in_setup("from checks.core import watch\nfrom checks.core.exercise import find").replace(RIGHT, "return watch.door(lambda: find('01.to_pixels').reference(location, size))()"),
    "a loan": in_setup("from checks.core import watch\nfrom checks.core.exercise import find").replace(RIGHT, "with watch.lent(find('01.to_pixels').reference): return find('01.to_pixels').reference(location, size)"),
    "hunts traps": in_setup("import gc, types").replace(RIGHT, "t = next(o for o in gc.get_objects() if type(o).__name__ == '_Trap' and o.name == 'solutions.lab01.to_pixels')\n    return types.FunctionType(t.code, t.function.__globals__)(location, size)"),
    "springs a trap": in_setup("import gc").replace(RIGHT, "return next(o for o in gc.get_objects() if type(o).__name__ == '_Trap' and o.name == 'solutions.lab01.to_pixels')((location, size), {})"),
    "patches how results are written": in_setup("import json\nreal = json.dumps\ndef dumps(o, *a, **k):\n    for e in o.get('exercises', ()): e['status'] = 'pass'\n    return real(o, *a, **k)\njson.dumps = dumps").replace(RIGHT, "json.dumps = dumps\n    return 0.0"),
    "patches a class of Python's": in_setup("import json\nreal = json.JSONEncoder.encode\njson.JSONEncoder.encode = lambda self, o: real(self, o).replace('fail', 'pass')").replace(RIGHT, "return 0.0"),
    "patches a builtin": in_setup("import builtins\nbuiltins.abs = lambda x: 0.0").replace(RIGHT, "builtins.abs = lambda x: 0.0\n    return 0.0"),
    "patches a constant": in_setup("from checks.core import compare\ncompare.ROUNDINGS = 1e30").replace(RIGHT, "compare.ROUNDINGS = 1e30\n    return 0.0"),
    "patches a method": in_setup("from checks.core import grade as g\ng._Run._judge = lambda self, case, seed, args, outcome: g.Check('x', 'x', 'pass', '')").replace(RIGHT, "return 0.0"),
    "patches code": in_setup("from checks.core import compare\ncompare.difference.__code__ = (lambda *a, **k: None).__code__").replace(RIGHT, "return 0.0"),
    "another reference": in_setup("from checks.core.exercise import find\nobject.__setattr__(find('01.to_pixels'), 'reference', lambda location, size: 0.0)").replace(RIGHT, "return 0.0"),
    "no cases": in_setup("from checks.core.exercise import find\nobject.__setattr__(find('01.to_pixels'), 'cases', ())").replace(RIGHT, "return 0.0"),
    "another registry": in_setup("import dataclasses\nfrom checks.core import exercise\nexercise._REGISTRY = {n: dataclasses.replace(e, cases=e.cases[:0]) for n, e in exercise._REGISTRY.items()}").replace(RIGHT, "return 0.0"),
}  # fmt: skip

#: These can be had, and the marker is told.
TOLD: dict[str, tuple[str, str]] = {
    "asks another process": (in_setup("import subprocess, sys\nout = subprocess.run([sys.executable, '-c', 'pass'], capture_output=True)"), "it started another program"),
    "forks": (in_setup("import os\nif not os.fork(): os._exit(0)"), "it started another process"),
    "the frames of the grader": (in_setup("import sys\nnames = [list(f.f_locals) for f in sys._current_frames().values()]"), "it looked at the frames of other threads"),
    "by another name": (in_setup("import sys\nlook = getattr(sys, '_get' + 'frame')\nlook(0)"), "it looked at the frames of its caller"),
    "lists objects by another name": (in_setup("import gc\ngetattr(gc, 'get_' + 'objects')()"), "it went through all objects of the process"),
    "puts back what it patched": (in_setup("from checks.core import compare").replace(RIGHT, "setattr(compare, 'diff' + 'erence', lambda *a: None)\n    return location * size - 0.5"), "it replaced checks.core.compare.difference"),
    "looks into its memory": (in_setup("with open('/proc/self/maps') as file: file.read()"), "it looked into /proc"),
    "calls another host": (in_setup("import socket\ntry: socket.create_connection(('127.0.0.1', 9), timeout=0.1)\nexcept OSError: pass"), "it used the network"),
}  # fmt: skip


def put(folder: Path, name: str, what: object) -> None:
    """Make one of the above."""
    path = folder / name
    if isinstance(what, bytes):
        path.write_bytes(what)
        return
    path.mkdir()
    for inner, data in what.items():
        if inner == "/":
            os.symlink(data, path / NAME)
            continue
        if inner == "|":
            os.mkfifo(path / NAME)
            continue
        (path / inner).parent.mkdir(parents=True, exist_ok=True)
        (path / inner).write_bytes(data)
        if "1980" in name:
            os.utime(path / inner, (0, 0))

"""The examples of the machine's page, run as they stand; in this process, and by MSDA_ALL=1 in a shell of their own too."""

import contextlib
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from msda_core import machine
from msda_core.machine.tool import cli

PAGE = (Path(machine.__file__).parent / "README.md").read_text()
FILES = re.findall(r"```(?:python|json) (\S+)\n(.*?)```", PAGE, re.S)
CONSOLES = re.findall(r"```console run\n(.*?)```", PAGE, re.S)
STATUS = " || echo status $?"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    home = tmp_path_factory.mktemp("page")
    for name, text in FILES:
        (home / name).write_text(text)
    return home


def in_a_shell(command: str) -> str:
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(command, shell=True, env=env, capture_output=True, text=True)
    return done.stdout + done.stderr


def in_this_process(command: str) -> str:
    """What a shell would print, with the imports of this process."""
    python, *argv = shlex.split(command.removesuffix(STATUS))
    assert python == "python"
    printed = io.StringIO()
    status: object = 0
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        if argv[:2] == ["-m", "msda_core.machine"]:
            status = cli.main(argv[2:])
        elif argv[:2] == ["-m", "pytest"]:
            status = pytest.main(["--capture=sys", "-p", "no:xdist", "-p", "no:cacheprovider", *argv[2:]])
        else:
            runpy.run_path(*argv, run_name="__main__")
    if command.endswith(STATUS) and status:
        print(f"status {status}", file=printed)
    return printed.getvalue()


SHELLS = [in_this_process, *([in_a_shell] if os.environ.get("MSDA_ALL") else [])]


def test_the_page_has_three_examples():
    assert len(CONSOLES) == 3 and len(FILES) == 4


@pytest.mark.parametrize("run", SHELLS)
@pytest.mark.parametrize("console", CONSOLES, ids=["a budget", "a test", "from Python"])
def test_commands_print_what_the_page_says(console, run, folder, monkeypatch):
    """Each line below a command must be among what it prints."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    for block in re.split(r"^\$ ", console, flags=re.M)[1:]:
        command, *expected = block.strip("\n").split("\n")
        printed = run(command)
        for line in expected:
            assert line in printed, f"{command} printed:\n{printed}"


def test_a_change_that_doubles_the_sectors_of_a_line_fails_the_step_of_ci(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    files = dict(FILES)
    (step,) = re.findall(r"- run: python -m msda_core.machine (.*)", PAGE)
    changed = files["scale.py"].replace("device=x.device", "device=x.device, dtype=x.dtype")
    changed = changed.replace('device="cuda")', 'device="cuda", dtype=torch.float64)')
    (tmp_path / "budget.json").write_text(files["budget.json"])
    for source, status in ((files["scale.py"], 0), (changed, 1)):
        (tmp_path / "scale.py").write_text(source)
        assert cli.main(shlex.split(step)) == status
    assert "load_sectors is 1,024, above its budget of 600. Most of it is line 11" in capsys.readouterr().err

"""The examples of the machine's page, run as they stand."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from msda_core import machine

PAGE = (Path(machine.__file__).parent / "README.md").read_text()
FILES = re.findall(r"```(?:python|json) (\S+)\n(.*?)```", PAGE, re.S)
CONSOLES = re.findall(r"```console run\n(.*?)```", PAGE, re.S)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    home = tmp_path_factory.mktemp("page")
    for name, text in FILES:
        (home / name).write_text(text)
    return home


def test_the_page_has_three_examples():
    assert len(CONSOLES) == 3 and len(FILES) == 4


@pytest.mark.parametrize("console", CONSOLES)
def test_commands_print_what_the_page_says(console, folder):
    """Each line below a command must be among what it prints."""
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for block in re.split(r"^\$ ", console, flags=re.M)[1:]:
        command, *expected = block.strip("\n").split("\n")
        done = subprocess.run(command, shell=True, cwd=folder, env=env, capture_output=True, text=True)
        printed = done.stdout + done.stderr
        for line in expected:
            assert line in printed, f"{command} printed:\n{printed}"

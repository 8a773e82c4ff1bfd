"""One command line for everything: help for each command, errors in one sentence, JSON alone on standard output."""

import json
import os
import subprocess
import sys

import pytest

from checks import cli
from checks.answers import notebook
from checks.classroom import sandbox
from checks.cli import main
from checks.tests.conftest import solved_text

LOUD = (
    "import os, sys, threading\nprint('from Python')\nos.system('echo from a shell')\nos.write(1, b'from C\\n')\n"
    "import atexit; atexit.register(lambda: os.write(1, b'at the end\\n'))\n"
)


def loud_text():
    """Lab 01 solved, printing in every way there is, as it loads and as it answers."""
    setup = "".join(f"    {line}\n" for line in LOUD.splitlines())
    text = solved_text("01").replace("    from math import floor\n", f"    from math import floor\n{setup}", 1)
    return text.replace(
        "    return location * size - 0.5", "    os.write(1, b'x')\n    print('y')\n    return location * size - 0.5"
    )


@pytest.mark.parametrize("command", [[], ["grade"], ["doctor"], ["reset"], ["class"], ["render"]])
def test_every_command_has_its_help(capsys, command):
    assert main([*command, "--help"]) == 0
    assert "usage: python -m checks" in capsys.readouterr().out


def test_help_waits_for_neither_torch_nor_triton():
    code = "import sys; from checks.cli import main; main(['class', '--help']); print([m for m in ('torch', 'triton', 'marimo') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["1", "--file", "."], ". is a folder. Name the notebook in it."),
        (["reset", "1", "--file", "."], ". is a folder. Name the notebook in it."),
        (["1", "--seed", "123456789012345678901234"], "a seed is between 0 and 2**63 - 1"),
        (["1", "--seed", "-1"], "a seed is between 0 and 2**63 - 1"),
        (["1", "--seed", "x"], "a seed is a whole number"),
        (["1", "--solutions", "--file", "x.py"], "not allowed with argument"),
        (["1", "--solutions", "--timing"], "not allowed with argument"),
        (["1", "--timing", "--json"], "--timing goes with neither --json nor --seed"),
        (["1", "--jsonn"], "unrecognized arguments: --jsonn"),
        (["render", "x.txt"], "x.txt is a file. Name a folder for the pages."),
        (["render", "out", "--labs", "99"], "there is no lab"),
        (["reset"], "the following arguments are required: LAB"),
    ],
)
def test_a_wrong_question_is_one_sentence_and_status_2(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.txt").write_text("")
    assert main(words) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.splitlines()) == 1, error


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("MSDA_DEVICE", "gpu", "MSDA_DEVICE must be 'cpu' or 'cuda', got 'gpu'."),
        ("TRITON_INTERPRET", "0", "TRITON_INTERPRET=0 asks for a GPU, but torch finds no CUDA GPU."),
    ],
)
def test_a_device_that_is_not_there_is_one_sentence(variable, value, message):
    environment = {k: v for k, v in os.environ.items() if k not in ("MSDA_DEVICE", "TRITON_INTERPRET")}
    environment |= {variable: value, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-m", "checks", "1"], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.returncode == 2 and message in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


def test_a_full_disk_is_one_sentence(tmp_path, monkeypatch, capsys):
    path = tmp_path / "labs" / "01_bilinear.py"
    path.parent.mkdir()
    path.write_text(solved_text("01"), encoding="utf-8")
    before = path.read_bytes()

    def full(*args):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(notebook.os, "fsync", full)
    assert main(["reset", "1", "--file", str(path)]) == 2
    assert capsys.readouterr().err == f"checks: {path}: No space left on device.\n"
    assert path.read_bytes() == before


def test_json_is_all_there_is_on_standard_output(tmp_path):
    path = tmp_path / "01_bilinear.py"
    path.write_text(loud_text(), encoding="utf-8")
    words = [sys.executable, "-m", "checks", "1", "--json", "--file", str(path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240)
    document = json.loads(done.stdout)
    assert done.returncode == 0, done.stdout
    assert {e["status"] for e in document["labs"][0]["exercises"]} == {"pass"}
    assert "from a shell" in done.stderr and "at the end" in done.stderr


@pytest.mark.skipif(bool(sandbox._trouble()), reason=f"not run: {sandbox._trouble()}")
def test_a_read_only_checkout_and_home(tmp_path):
    """Nothing can be written but the temporary folder; lab 04 launches and compiles kernels."""
    words = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--die-with-parent"]
    words += ["--chdir", str(notebook.ROOT), sys.executable, "-m", "checks", "1", "--solutions", "--json"]
    environment = {k: v for k, v in os.environ.items() if k not in ("TMPDIR", "TRITON_CACHE_DIR")}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=240)
    assert done.returncode == 0, done.stderr
    assert {e["status"] for e in json.loads(done.stdout)["labs"][0]["exercises"]} == {"pass"}


def test_a_home_that_cannot_be_written_gives_triton_another_cache(tmp_path, monkeypatch):
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    monkeypatch.setattr(cli.os, "access", lambda path, mode: False)
    cli._somewhere_to_write()
    assert os.environ["TRITON_CACHE_DIR"].startswith(cli.tempfile.gettempdir())
    monkeypatch.delenv("TRITON_CACHE_DIR")


def test_reset_reads_what_any_editor_saved(tmp_path, capsys):
    path = tmp_path / "labs" / "01_bilinear.py"
    path.parent.mkdir()
    path.write_bytes(solved_text("01").replace("\n", "\r\n").encode("utf-8-sig"))
    assert main(["reset", "1", "to_pixels", "--file", str(path)]) == 0
    assert b'raise NotImplementedError("01.to_pixels")\r\n' in path.read_bytes()

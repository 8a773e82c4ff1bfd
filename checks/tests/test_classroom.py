"""A class of submissions, some of them hostile: each costs its own rows and nothing else."""

import csv
import hashlib
import io
import zipfile
from concurrent.futures import ThreadPoolExecutor

import pytest

from checks.__main__ import main
from checks.classroom import run as classroom
from checks.classroom.run import Limits, Submission, find_submissions, grade_class, grade_submission
from checks.tests.conftest import blank_text, solved_text

NAME = "01_bilinear.py"
HEAD = "import marimo\napp = marimo.App()\n"
HOSTILE = {
    "loops": f"{HEAD}while True: pass\n",
    "floods memory": f"{HEAD}import torch\nblock = [torch.ones(10**8) for _ in range(10**4)]\n",
    "floods the disk": f"{HEAD}import os\nwith open('big', 'wb') as f:\n    while True: f.write(b'x' * 10**7)\n",
    "leaves": f"{HEAD}import os\nos._exit(0)\n",
    "dies": f"{HEAD}import ctypes\nctypes.string_at(0)\n",
    "leaves a process behind": f"{HEAD}import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\nwhile True: pass\n",
}  # fmt: skip


def submit(folder, name, text, zipped=False):
    if zipped:
        with zipfile.ZipFile(folder / f"{name}.zip", "w") as archive:
            archive.writestr(f"work/labs/{NAME}", text)
    else:
        path = folder / name / "labs" / NAME
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")


def fingerprint(folder):
    return {p: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_class_with_hostile_neighbours_loses_nothing(tmp_path, capsys):
    folder = tmp_path / "class"
    folder.mkdir()
    submit(folder, "anna", solved_text("01"))
    submit(folder, "ben", blank_text("01"), zipped=True)
    wrong = solved_text("01").replace("return location * size - 0.5", "return location * size")
    submit(folder, "cora", wrong, zipped=True)
    for name in ("leaves", "dies"):
        submit(folder, name, HOSTILE[name])
    (folder / "broken.zip").write_bytes(b"this is no zip")
    (folder / "notes.txt").write_text("not a submission")
    before = fingerprint(folder)
    out = tmp_path / "marks.csv"
    assert main(["class", str(folder), "--csv", str(out), "--labs", "1"]) == 0
    assert fingerprint(folder) == before, "a submission is only read"
    rows = list(csv.DictReader(out.open(encoding="utf-8")))
    got = {}
    for row in rows:
        got.setdefault(row["submission"], {})[row["exercise"]] = row
    assert set(got) == {"anna", "ben.zip", "cora.zip", "leaves", "dies", "broken.zip"}
    assert {row["status"] for row in got["anna"].values()} == {"pass"}
    assert {row["status"] for row in got["ben.zip"].values()} == {"todo"}
    assert got["cora.zip"]["to_pixels"]["mistake"] == "without the half pixel"
    assert got["cora.zip"]["corner_weights"]["status"] == "pass"
    for name in ("leaves", "dies", "broken.zip"):
        assert {row["status"] for row in got[name].values()} == {"crash"}, got[name]
    assert "no zip file" in got["broken.zip"]["to_pixels"]["message"]
    printed = capsys.readouterr().out
    assert "1 × without the half pixel" in printed and "6 submissions graded" in printed


@pytest.mark.parametrize("name", ["loops", "floods memory", "floods the disk", "leaves a process behind"])
def test_limits_hold(tmp_path, name):
    submit(tmp_path, "hostile", HOSTILE[name])
    (submission,) = find_submissions(tmp_path)
    rows = grade_submission(submission, ["01"], Limits(seconds=6, memory_mb=8000, output_mb=4))
    assert {row["status"] for row in rows} == {"crash"}, rows


def zip_of(**files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (zip_of(**{"../../outside.py": "x = 1"}), "it holds a path that leads out of its folder: '../../outside.py'."),
        (zip_of(**{"bomb.py": b"\0" * 3_000_000}), "it unpacks to more than 1 MB."),
        (zip_of(**{f"{i}.py": "" for i in range(12)}), "it holds 12 files, more than 10."),
        (b"PK", "it is no zip file"),
    ],
    ids=["path", "bomb", "many", "no zip"],
)
def test_zips_that_no_learner_makes(data, message):
    rows = grade_submission(Submission("x", data), ["01"], Limits(unpacked_mb=1, files=10))
    assert all(row["status"] == "crash" and message in row["message"] for row in rows)


def test_any_executor_will_do(monkeypatch):
    monkeypatch.setattr(classroom, "_grade_file", lambda name, lab, *rest: [{"submission": name, "lab": lab}])
    submissions = [Submission(str(i), zip_of(**{NAME: ""})) for i in range(5)]
    with ThreadPoolExecutor(3) as executor:
        rows = grade_class(submissions, ["01"], executor=executor)
    assert [row["submission"] for row in rows] == list("01234")


def test_a_dying_worker_costs_one_submission(monkeypatch):
    def grade(submission, labs, limits):
        if submission.name == "1":
            raise OSError("worker lost")
        return [{"submission": submission.name, "status": "pass"}]

    monkeypatch.setattr(classroom, "grade_submission", grade)
    rows = grade_class([Submission(str(i)) for i in range(3)], ["01"])
    assert [row["status"] for row in rows if row["submission"] != "1"] == ["pass", "pass"]
    assert {row["message"] for row in rows if row["submission"] == "1"} == {"its worker failed: OSError: worker lost"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere", "--csv", "x.csv"], "there is no folder nowhere."),
        ([".", "--csv", "x.csv", "--labs", "99"], "there is no lab '99'."),
    ],
)
def test_a_wrong_question_gets_an_answer(words, message, capsys):
    assert main(["class", *words]) == 2
    assert message in capsys.readouterr().err


def test_marks_are_never_overwritten(tmp_path, capsys):
    out = tmp_path / "marks.csv"
    out.write_text("last year's")
    (tmp_path / "class" / "anna").mkdir(parents=True)
    assert main(["class", str(tmp_path / "class"), "--csv", str(out)]) == 2
    assert "exists already" in capsys.readouterr().err and out.read_text() == "last year's"

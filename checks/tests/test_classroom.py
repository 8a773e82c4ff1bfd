"""A class of a thousand strangers: nothing is lost, nobody is misjudged, and a hostile submission costs its own rows.

The kinds are in `classes`. Those that differ only in how they are wrapped are opened and compared, not graded: what comes
out is the same notebook. The others go through one run of the command.
"""

import csv
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from checks.answers import notebook
from checks.classroom import command, likeness, limits, sandbox, workers
from checks.classroom.archives import Unreadable, members
from checks.classroom.limits import Limits
from checks.classroom.results import FIELDS, Graded, Ledger, expected_of, rows_of_lab
from checks.classroom.submissions import Submission, Work, find_submissions, lab_of, open_submission, readable
from checks.classroom.workers import grade_class, grade_submission
from checks.cli import main
from checks.tests import classes
from checks.tests.classes import NAME, TINY, good, put, zip_of
from checks.tests.light import LIGHT

pytestmark = pytest.mark.skipif(os.name != "posix", reason="not run: a class is graded where processes can be forked")
no_bwrap = pytest.mark.skipif(bool(sandbox._trouble()), reason=f"not run: {sandbox._trouble()}")


#: Natural kinds that are graded; the others are opened, and the notebook that comes out is compared.
UNLIKE = {
    "folder.zip", "a helper beside it", "a helper in the zip.zip", "prints", "M\udcfcller", "a new\nline", "=1+1",
    "byte order mark", "carriage returns", "UTF-16", "without a mark", "blank", "wrong", "another lab",
}  # fmt: skip
WRAPPED = {name: kind for name, kind in classes.NATURAL.items() if name not in UNLIKE}
GRADED = {n: kind for n, kind in (classes.NATURAL | classes.BROKEN | classes.HOSTILE).items() if n not in WRAPPED}
PATIENCE = 3  # other tests run beside these


def test_there_are_at_least_55_kinds():
    assert len(WRAPPED) + len(GRADED) + len(classes.CHEATS) >= 55


@pytest.mark.parametrize("name", WRAPPED)
def test_whatever_it_is_wrapped_in_the_notebook_is_found(tmp_path, name):
    put(tmp_path, name, WRAPPED[name][0])
    (submission,) = find_submissions(tmp_path)
    work = open_submission(submission, Limits())
    assert not work.problem and work.notebooks == {"01": classes.S}
    answer = {
        "left": 0,
        "forged": False,
        "noted": "",
        "result": None,
        "stopped": "x",
        "status": 0,
        "seconds": 0,
        "cpu": 0,
        "output": "",
    }
    rows, _ = rows_of_lab(work, "01", ["a"] * 5, answer)
    passed = [{**row, "status": "pass"} for row in rows]
    assert WRAPPED[name][1](passed), rows


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The whole class, once: its rows by submission, and the files."""
    folder = tmp_path_factory.mktemp("class")
    (folder / "in").mkdir()
    cheats = {name: ({NAME: text.encode()}, None) for name, text in classes.CHEATS.items()}
    cheats |= {name: ({NAME: text.encode()}, None) for name, (text, _) in classes.TOLD.items()}
    for name, (what, _) in (GRADED | cheats).items():
        put(folder / "in", name, what)
    os.symlink(folder, folder / "in" / "a link")
    before = {p: hashlib.sha256(p.read_bytes()).hexdigest() for p in (folder / "in").rglob("*") if p.is_file()}
    words = [
        "class",
        folder / "in",
        "--csv",
        folder / "m.csv",
        "--labs",
        "1",
        "--sandbox",
        "none",
        "--report",
        folder / "r.html",
    ]
    words += [
        "--seconds",
        1,
        "--output-mb",
        8,
        "--processes",
        20,
        "--memory-mb",
        3000,
        "--feedback",
        folder / "f",
        "--workers",
        2,
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MSDA_PATIENCE", str(PATIENCE))
        assert main([str(word) for word in words]) == 0
    assert before == {p: hashlib.sha256(p.read_bytes()).hexdigest() for p in before}, "a submission is only read"
    rows = {}
    for row in csv.DictReader((folder / "m.csv").open(encoding="utf-8")):
        rows.setdefault(row["submission"], []).append(row)
    return folder, rows


def rows_for(rows, name):
    shown = readable(name)
    return rows.get(shown) or rows.get(f"'{shown}") or []


@pytest.mark.parametrize("name", GRADED)
def test_each_row_is_as_it_should_be(run, name):
    rows = rows_for(run[1], name)
    assert GRADED[name][1](rows), rows


def test_nothing_is_ignored_in_silence(run):
    assert "is a link" in run[1]["a link"][0]["message"]
    assert len(run[1]) == len(GRADED) + len(classes.CHEATS) + len(classes.TOLD) + 1


@pytest.mark.parametrize("name", classes.CHEATS)
def test_a_cheat_is_rejected(run, name):
    assert run[1][name][0]["status"] in ("fail", "crash"), run[1][name]


@pytest.mark.parametrize("name", classes.TOLD)
def test_what_can_be_had_is_told(run, name):
    rows = run[1][name]
    assert good(rows) and classes.TOLD[name][1] in rows[0]["flag"], rows


def test_honest_rows_carry_no_doubt(run):
    for name in ("wrong", "blank", "folder.zip", "UTF-16", "a helper beside it"):
        assert not any(row["flag"] for row in run[1][name]), run[1][name]


def test_the_log_says_why(run):
    log = [json.loads(line) for line in (run[0] / "m.csv.log.jsonl").read_text().splitlines()]
    by_name = {entry["submission"]: entry for entry in log}
    assert by_name["dies"]["labs"]["01"]["status"] == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in by_name["dies"]["labs"]["01"]["output"]
    assert by_name["leaves"]["labs"]["01"]["status"] == 0 and by_name["leaves"]["labs"]["01"]["crash"]
    assert by_name["broken.zip"]["problem"].startswith("is no zip file")


def test_no_process_is_left(run):
    assert subprocess.run(["pgrep", "-f", "sleep 61234"], capture_output=True).returncode == 1


def test_a_spreadsheet_does_not_compute_names(run):
    cells = [cell for row in csv.reader((run[0] / "m.csv").open(encoding="utf-8")) for cell in row]
    assert "'=1+1" in cells and not any(cell[:1] in ("=", "+", "@") for cell in cells)


def test_the_report_stands_alone_and_names_nobody_beside_an_example(run):
    page = (run[0] / "r.html").read_text(encoding="utf-8")
    assert "src=" not in page and "href=" not in page and "<script" not in page and "http" not in page
    assert "without the half pixel" in page
    assert "return location * size</pre>" in page
    assert "the course&#x27;s solution" in page, "the solution, handed in, is told"
    assert "&lt;" not in page.split("<style>")[0]


def test_feedback_has_the_verdict_and_no_solution(run):
    text = (run[0] / "f" / "wrong.txt").read_text(encoding="utf-8")
    assert "Your answer is what you get without the half pixel." in text and "Must hold:" in text
    assert "size - 0.5" not in text
    assert "Nothing was graded. Handed in nothing" in (run[0] / "f" / "nothing.txt").read_text(encoding="utf-8")
    assert len(list((run[0] / "f").iterdir())) == len(run[1])


# --- what is asked is looked at before anything is graded -----------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere", "--csv", "x.csv"], "there is no folder nowhere."),
        ([__file__, "--csv", "x.csv"], "is a file. Name the folder"),
        ([".", "--csv", "x.csv", "--labs", "99"], "there is no lab '99'"),
        ([".", "--csv", "nosuch/x.csv", "--labs", "1"], "nosuch/x.csv cannot be written: No such file or directory."),
        ([".", "--csv", ".", "--labs", "1"], "is a folder. Name a file for the rows."),
        ([".", "--csv", "x.csv", "--seconds", "0"], "--seconds must be a number above 0, got 0."),
        ([".", "--csv", "x.csv", "--seconds", "-5"], "--seconds must be a number above 0, got -5."),
        ([".", "--csv", "x.csv", "--seconds", "nan"], "--seconds must be a number above 0, got nan."),
        ([".", "--csv", "x.csv", "--memory-mb", "100"], "--memory-mb must be at least 2000, got 100"),
        ([".", "--csv", "x.csv", "--workers", "0"], "--workers must be at least 1"),
        ([".", "--csv", "x.csv", "--executor", "slurm"], "--executor is `process` or `dask ADDRESS`, got 'slurm'."),
        ([".", "--csv", "x.csv", "--sandbox", "jail"], "--sandbox"),
        ([".", "--csv", "x.csv", "--report", "nosuch/r.html"], "there is no folder"),
        (["."], "--csv"),
    ],
)
def test_a_wrong_question_gets_an_answer(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "anna").mkdir()
    assert main(["class", *words]) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.splitlines()) == 1
    assert not (tmp_path / "x.csv").exists()


def test_marks_are_never_overwritten(tmp_path, capsys):
    out = tmp_path / "marks.csv"
    out.write_text("last year's")
    (tmp_path / "class" / "anna").mkdir(parents=True)
    assert main(["class", str(tmp_path / "class"), "--csv", str(out), "--labs", "1"]) == 2
    assert "exists already" in capsys.readouterr().err and out.read_text() == "last year's"
    assert main(["class", str(tmp_path / "class"), "--csv", str(out), "--labs", "1", "--resume"]) == 2
    assert "cannot be gone on with" in capsys.readouterr().err and out.read_text() == "last year's"


def test_a_sandbox_that_is_not_there_is_said(monkeypatch):
    monkeypatch.setattr(sandbox, "_trouble", lambda: "bubblewrap is not installed")
    with pytest.raises(ValueError, match="--sandbox bwrap cannot be had: bubblewrap is not installed"):
        sandbox.choose("bwrap")
    assert sandbox.choose("auto") == "none" and "not installed" in sandbox.protection("none")


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("01_bilinear.py", "01"), ("01_bilinear (1).py", "01"), ("01_bilinear-2.py", "01"), ("1_bilinear.py", "01"),
        ("anna_12_34_10_ship_it.py", "10"), ("10_ship_it copy.py", "10"), ("01_bilinear_notes.py", None), ("bilinear.py", None),
        ("02_POINTERS.PY", "02"), ("01-bilinear.py", "01"), ("01 bilinear.py", "01"), ("10-ship-it.py", "10"),
        ("01_bilinear.py.txt", "01"), ("01_bilinear.txt", "01"), ("01_bilinear", None), ("101_bilinear.py", None),
    ],
)  # fmt: skip
def test_names_of_notebooks(name, number):
    assert lab_of(name) == number


def test_an_archive_that_claims_too_much_is_not_read(tmp_path):
    path = tmp_path / "large.zip"
    with path.open("wb") as file:
        file.truncate(300_000_000)  # takes no room on the disk
    with pytest.raises(Unreadable, match="is an archive of 300 MB, more than 256"):
        list(members(path, path.name, Limits(), lambda *one: True))
    claims = bytearray(zip_of({NAME: TINY}))
    claims[-10:-6] = b"\xff\xff\xff\x7f"  # the length of its directory
    with pytest.raises(Unreadable, match="too long a directory"):
        list(members(bytes(claims), "x.zip", Limits(), lambda *one: True))


def test_processors_are_those_of_the_container(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "_quota_v2", lambda: (150_000.0, 100_000.0))
    assert limits.processors() == min(2, len(os.sched_getaffinity(0)))
    monkeypatch.setattr(limits, "_quota_v2", lambda: (50_000.0, 100_000.0))
    assert limits.processors() == 1


# --- what comes back is looked at -----------------------------------------------------------------------------------

GOOD = {"name": "a", "status": "pass", "seconds": 0.1, "mistake": None, "words": "w", "code": "", "checks": []}


@pytest.mark.parametrize(
    "change",
    [
        {"status": ["pass"]}, {"status": "great"}, {"seconds": "1"}, {"seconds": float("nan")}, {"seconds": True}, {"name": "b"},
        {"mistake": 3}, {"words": None}, {"checks": [{"status": "pass", "message": 1}]}, {"checks": 3},
    ],
)  # fmt: skip
def test_a_report_of_the_wrong_types_is_none(change):
    answer = {
        "status": 0,
        "stopped": "",
        "forged": False,
        "noted": "",
        "left": 0,
        "seconds": 1.0,
        "cpu": 1.0,
        "output": "",
    }
    result = lambda one: {**answer, "result": json.dumps({"exercises": [one]})}  # noqa: E731
    assert rows_of_lab(Work("x"), "01", ["a"], result(GOOD))[0][0]["status"] == "pass"
    assert rows_of_lab(Work("x"), "01", ["a"], result({**GOOD, **change}))[0][0]["status"] == "crash"
    assert rows_of_lab(Work("x"), "01", ["a", "b"], result(GOOD))[0][0]["status"] == "crash", "one is missing"


# --- nothing is lost --------------------------------------------------------------------------------------------------


def graded(name, labs=("a", "b")):
    values = dict.fromkeys(FIELDS, "")
    return Graded(
        name,
        [{**values, "submission": name, "lab": "01", "exercise": e, "status": "pass", "seconds": 0.5} for e in labs],
    )


@pytest.mark.parametrize("cut", [1, 7, 20, 40])
def test_a_run_cut_off_while_it_writes_is_gone_on_with(tmp_path, cut):
    path = tmp_path / "m.csv"
    ledger = Ledger(path, {"01": ["a", "b"]})
    for name in ("anna", "=ben", "cora"):
        ledger.add(graded(name))
    ledger.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    ledger = Ledger(path, {"01": ["a", "b"]}, resume=True)
    assert ledger.done == {"anna", "=ben"}
    ledger.add(graded("cora"))
    ledger.close()
    assert path.read_bytes() == whole


def test_two_runs_do_not_write_one_file(tmp_path):
    ledger = Ledger(tmp_path / "m.csv", {"01": ["a"]})
    with pytest.raises(ValueError, match="another run writes to"):
        Ledger(tmp_path / "m.csv", {"01": ["a"]}, resume=True)
    ledger.close()


FULL = """
import resource, signal, sys
from pathlib import Path
from checks.classroom.results import FIELDS, Graded, Ledger
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
row = lambda name: {**dict.fromkeys(FIELDS, "x" * 40), "submission": name, "lab": "01", "exercise": "a", "seconds": 0.5}
ledger = Ledger(Path(sys.argv[1]), {"01": ["a"]})
try:
    for i in range(100):
        ledger.add(Graded(str(i), [row(str(i))]))
except OSError as error:
    print(len(ledger.done), error.strerror)
"""


def test_a_full_disk_leaves_whole_rows(tmp_path):
    path = tmp_path / "m.csv"
    done = subprocess.run([sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, timeout=120)
    count = int(done.stdout.split()[0])
    assert 3 < count < 100 and "File too large" in done.stdout
    assert path.read_bytes().endswith(b"\n") and len(path.read_text().splitlines()) == count + 1
    ledger = Ledger(path, {"01": ["a"]}, resume=True)
    assert len(ledger.done) == count
    ledger.close()


def test_a_full_disk_ends_the_run_in_one_sentence(tmp_path, monkeypatch, capsys):
    def full(self, graded):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Ledger, "add", full)
    put(tmp_path, "broken.zip", b"x")
    assert main(["class", str(tmp_path), "--csv", str(tmp_path / "m.csv"), "--labs", "1"]) == 2
    assert (
        "m.csv cannot be written: No space left on device. 0 submissions are in it; --resume" in capsys.readouterr().err
    )


def rows_in(path):
    return path.read_text().count("\n") if path.exists() else 0


def children_of(pid):
    return subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout.split()


def gone(pid):
    """Whether a process has ended; a zombie has, whoever should have asked for its status."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rsplit(b")", 1)[1].split()[0] in b"ZX"
    except OSError:
        return True


def until(condition, what):
    deadline = time.monotonic() + 150
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_killed_or_interrupted_a_run_goes_on(tmp_path):
    """`kill -9` in the middle of the third submission, then Ctrl-C there, then to the end."""
    for name in ("1", "2", "3"):
        put(tmp_path, name, {NAME: f"import time\ntime.sleep({0 if name == '1' else 100})\n".encode()})
    put(tmp_path, "0 broken.zip", b"x")
    out = tmp_path / "m.csv"
    words = ["class", tmp_path, "--csv", out, "--labs", 1, "--workers", 1, "--sandbox", "none", "--seconds", 300]

    def start(*more):
        command = [sys.executable, "-m", "checks.tests.light", *map(str, words), *more]
        # As in a terminal: what a shell starts in the background ignores Ctrl-C, and so would all below it.
        listen = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, **pipes, text=True, preexec_fn=listen)

    def begun(run):
        return [child for nursery in children_of(run.pid) for child in children_of(nursery)]

    first = start()
    until(lambda: rows_in(out) >= 1 + 1 + 5, "the first two submissions")
    until(lambda: begun(first), "the next submission has begun")
    family = [*children_of(first.pid), *begun(first)]
    first.kill()
    first.communicate()
    until(lambda: all(map(gone, family)), "what it started ends with it")

    second = start("--resume")
    until(lambda: begun(second), "the third submission has begun")
    began = time.monotonic()
    second.send_signal(signal.SIGINT)
    printed, said = second.communicate(timeout=60)
    assert time.monotonic() - began < 5 * PATIENCE, "five seconds of a quiet machine"
    assert second.returncode == 130 and "2 of 4 are graded already." in said, said
    assert "Stopped. 2 submissions are in" in said and "--resume goes on" in said, said
    assert "2 submissions graded" in printed

    for name in ("2", "3"):
        (tmp_path / name / NAME).write_text("slow = False\n")
    third = start("--resume")
    assert third.wait(150) == 0, third.communicate()
    rows = list(csv.DictReader(out.open(encoding="utf-8")))
    assert [row["submission"] for row in rows] == ["0 broken.zip", *"1" * 5, *"2" * 5, *"3" * 5]


def test_a_worker_that_is_killed_costs_a_second_try(monkeypatch):
    monkeypatch.setattr(workers, "NURSERY", LIGHT)
    work = Work("anna", {"01": b"import time\ntime.sleep(1)\n"})
    with ThreadPoolExecutor(1) as pool:
        workers.stop()  # no worker that is not light
        workers._STOP.clear()
        future = pool.submit(grade_submission, work, ["01"], Limits(), "none")
        until(lambda: future.done() or any(children_of(one._process.pid) for one in workers._ALIVE), "it is graded")
        next(iter(workers._ALIVE))._process.kill()
        rows = future.result().rows
        workers.stop()
    assert {row["status"] for row in rows} == {"todo"}


def test_a_worker_that_is_silent_is_replaced(monkeypatch):
    """A submission may stop the process that grades it, where no sandbox keeps it from that."""
    monkeypatch.setattr(workers, "NURSERY", LIGHT)
    monkeypatch.setattr(workers, "SILENCE", PATIENCE)
    workers.stop()
    workers._STOP.clear()
    stops = b"import os, signal\nos.kill(os.getppid(), signal.SIGSTOP)\n"
    with pytest.raises(RuntimeError, match="has not been heard of for .* it may be the submission's doing"):
        grade_submission(Work("anna", {"01": stops}), ["01"], Limits(), "none")
    rows = grade_submission(Work("ben", {"01": b""}), ["01"], Limits(), "none").rows
    workers.stop()
    assert {row["status"] for row in rows} == {"todo"}


def test_a_worker_that_keeps_dying_costs_one_row_and_no_neighbour(monkeypatch):
    def grade(work, labs, limits, wish, patience):
        if work.name == "1":
            raise RuntimeError("a worker ended: lost")
        return Graded(work.name, [])

    monkeypatch.setattr(workers, "grade_submission", grade)
    monkeypatch.setattr(workers, "open_submission", lambda one, limits: Work(one.name, {"01": b""}))
    done = {one.name: one for one in grade_class([Submission(str(i)) for i in range(3)], ["01"], workers=2)}
    assert set(done) == set("012") and "its worker failed" in done["1"].rows[0]["message"] and not done["2"].rows


# --- bubblewrap -------------------------------------------------------------------------------------------------------

ESCAPES = {
    "reads the home": "import os, sys; known = f'{sys.prefix}/{sys.base_prefix}/{sys.executable}'.split('/'); found = os.path.exists(HOME) and set(os.listdir(HOME)) - set(known)",
    "reads its neighbours": "import os; found = os.path.exists(NEIGHBOUR)",
    "writes to the course": "import checks, os; found = os.access(os.path.dirname(checks.__file__), os.W_OK)",
    "uses the network": "import socket; found = len(socket.if_nameindex()) > 1",
    "sees other processes": "import os; found = [p for p in os.listdir('/proc') if p.isdigit() and int(p) > 1 and int(p) != os.getpid()]",
    "traces the worker": "found = False\ntry: found = open('/proc/1/mem', 'rb') and True\nexcept OSError: pass",
    "ends the worker": "import os, signal; os.kill(1, signal.SIGKILL); found = False",
    "forks twice and stays": "import subprocess; found = subprocess.Popen('setsid sleep 612345 & setsid sleep 612345 &', shell=True).wait()",
    "leaves a file": "import glob; found = glob.glob('/tmp/left*') + glob.glob('/dev/shm/left*'); open('/tmp/left', 'w'); open('/dev/shm/left', 'w')",
    "leaves it again": "import glob; found = glob.glob('/tmp/left*') + glob.glob('/dev/shm/left*')",
    "fills its disk": "found = False\ntry:\n    for i in range(99): open(f'/tmp/{i}', 'wb').write(b'x' * 10**6)\n    found = True\nexcept OSError: pass",
}  # fmt: skip


@pytest.fixture(scope="module")
def confined(tmp_path_factory):
    """All of them through one worker under bubblewrap: name → rows."""
    neighbour = tmp_path_factory.mktemp("neighbour") / "answer.py"
    neighbour.write_text("x")
    bound = Limits(output_mb=30, seconds=20)
    result = {}
    workers._STOP.clear()
    for name, code in ESCAPES.items():
        body = f"HOME = {os.path.expanduser('~')!r}\nNEIGHBOUR = {str(neighbour)!r}\n{code}\nassert not found, found\n"
        text = classes.in_setup(body)
        result[name] = grade_submission(Work(name, {"01": text.encode()}), ["01"], bound, "bwrap", PATIENCE)
    return result


@no_bwrap
@pytest.mark.parametrize("name", ESCAPES)
def test_bubblewrap_keeps_it_in(confined, name):
    done = confined[name]
    if name == "ends the worker":  # the first process of a namespace cannot be killed from inside
        assert done.log["labs"]["01"]["status"] == 0, done
    assert good(done.rows), done.rows
    assert done.log["sandbox"] == "bwrap"
    assert subprocess.run(["pgrep", "-f", "sleep 612345"], capture_output=True).returncode == 1


# --- other executors --------------------------------------------------------------------------------------------------


@pytest.fixture
def distributed():
    return pytest.importorskip("distributed", reason="not run: needs the dask group")


def test_a_local_cluster(distributed, tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "NURSERY", LIGHT)
    put(tmp_path, "empty", {NAME: b""})
    put(tmp_path, "broken.zip", b"x")
    quiet = dict(processes=False, n_workers=1, threads_per_worker=2, dashboard_address=None)
    with distributed.LocalCluster(**quiet) as cluster:
        words = ["class", str(tmp_path), "--csv", str(tmp_path / "m.csv"), "--labs", "1", "--sandbox", "none"]
        workers.stop()
        assert main([*words, "--executor", "dask", cluster.scheduler_address]) == 0
        workers.stop()
    assert len((tmp_path / "m.csv").read_text().splitlines()) == 1 + 1 + 5


def test_a_scheduler_and_two_workers_one_of_which_dies(distributed, tmp_path):
    where = {"cwd": str(notebook.ROOT), "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    python = lambda *words: subprocess.Popen([sys.executable, "-m", *map(str, words)], **where)  # noqa: E731
    file = tmp_path / "scheduler.json"
    processes = [python("distributed.cli.dask_scheduler", "--port", 0, "--no-dashboard", "--scheduler-file", file)]
    common = ["--scheduler-file", file, "--nthreads", 1, "--no-dashboard", "--death-timeout", 120, "--no-nanny"]
    light = ["--preload", "checks.tests.light"]
    processes += [python("distributed.cli.dask_worker", *common, *light, "--name", i) for i in range(2)]
    try:
        until(file.exists, "the scheduler is there")
        address = json.loads(file.read_text())["address"]
        with distributed.Client(address, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=120)
        for i in range(3):
            put(tmp_path, str(i), {NAME: b"import time\ntime.sleep(1)\n"})
        words = ["class", tmp_path, "--csv", tmp_path / "m.csv", "--labs", 1, "--sandbox", "none", "--dask", address]
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(main, [str(word) for word in words])
            until(lambda: future.done() or children_of(processes[1].pid), "a submission has begun")
            nursery = children_of(processes[1].pid)
            processes[1].kill()  # with a submission in its hands
            assert future.result() == 0
        rows = list(csv.DictReader((tmp_path / "m.csv").open()))
        graded = [row for row in rows if row["lab"]]
        assert {row["status"] for row in graded} == {"todo"} and len(graded) == 15
        until(lambda: nursery and all(map(gone, nursery)), "what a worker started ends with it")
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_no_scheduler_is_said(distributed, tmp_path, capsys, monkeypatch):
    (tmp_path / "anna").mkdir()
    real = distributed.Client
    monkeypatch.setattr(distributed, "Client", lambda address, timeout, **more: real(address, timeout=1, **more))
    words = ["class", str(tmp_path), "--csv", str(tmp_path / "m.csv"), "--labs", "1"]
    assert main([*words, "--executor", "dask", "tcp://127.0.0.1:9"]) == 2
    assert "no Dask scheduler answers at tcp://127.0.0.1:9" in capsys.readouterr().err
    assert not (tmp_path / "m.csv").exists()


# --- what a marker looks at -------------------------------------------------------------------------------------------


def test_the_same_code_under_other_names_is_told():
    one = (
        "def f(image, x, y):\n    total = 0\n"
        + "".join(f"    total += image[{i}] * x + y\n" for i in range(5))
        + "    return total"
    )
    other = one.replace("total", "sum_").replace("image", "img")
    assert likeness.digest(one) == likeness.digest(other) != ""
    assert likeness.digest(one) != likeness.digest(one.replace("x + y", "x - y"))
    assert likeness.digest("def f(x):\n    return x") == "", "too small to tell"
    entry = lambda code: {"labs": {"01": {"verdicts": {k: {"code": code} for k in "ab"}}}}  # noqa: E731
    assert likeness.alike({"anna": entry(one), "ben": entry(other)}) == [(["anna", "ben"], ["01.a", "01.b"])]


def test_the_environment_passes_what_is_needed_and_no_secret(monkeypatch):
    for name, value in (
        ("MSDA_PATIENCE", "3"),
        ("CUDA_VISIBLE_DEVICES", "1"),
        ("SECRET_TOKEN", "x"),
        ("MSDA_DEVICE", "cpu"),
    ):
        monkeypatch.setenv(name, value)
    passed = sandbox.environment()
    assert passed["MSDA_PATIENCE"] == "3" and passed["CUDA_VISIBLE_DEVICES"] == "1" and "SECRET_TOKEN" not in passed
    assert not sandbox.sees_gpu()


def test_expected_exercises_are_the_labs():
    assert expected_of(["01"])["01"][0] == "to_pixels"
    assert command._duration(30) == "30 s" and command._duration(7200) == "2 h 0 min"

"""What was handed in: found in a folder, read once, and reduced to the notebooks and what lies beside them.

A submission is a folder, a zip or tar file, or single Python files as a learning platform names them. Everything in the
folder becomes a submission or is named with the reason why not. Nothing is written, and originals are only read.
"""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from checks.catalogue import LABS
from checks.classroom.archives import ARCHIVES, Unreadable, members
from checks.classroom.limits import Limits

__all__ = ["Submission", "Work", "find_submissions", "open_submission", "readable"]

#: Folders that hold no work of a learner's: environments, caches, what version control and operating systems leave.
SKIPPED = {"site-packages", "node_modules", "__pycache__", "__MACOSX", "venv", "env", "dist-packages"}
FOLDERS_SEEN = 50_000
NESTED = 3  # an archive in an archive in an archive
UNOPENED = (".7z", ".rar", ".xz", ".tar.xz", ".gz", ".zst", ".ipynb")
#: Names that a helper beside a notebook may not take: it would hide what the notebook needs.
TAKEN = {"checks", "msda_core", "solutions", "labs", "marimo", "torch", "triton", "numpy", "matplotlib"}


@dataclass(frozen=True)
class Submission:
    """One learner's work, not opened yet.

    Attributes:
        name: what stands in the rows; printable, and no other's.
        paths: the folder, the archive, or the single files that it is.
        problem: why it cannot be one, if it cannot.
    """

    name: str
    paths: tuple[Path, ...] = ()
    problem: str = ""


@dataclass
class Work:
    """A submission, opened: small enough to travel to a worker that shares no disk.

    Attributes:
        name: the submission's.
        notebooks: lab → the notebook's bytes.
        beside: path relative to the notebooks → a module that lies beside one.
        notes: lab (or "" for all) → what a marker should know.
        problem: why nothing of it can be graded.
        empty: there was nothing in it.
        seen: some names of files that were there, for "not found".
    """

    name: str
    notebooks: dict[str, bytes] = field(default_factory=dict, repr=False)
    beside: dict[str, bytes] = field(default_factory=dict, repr=False)
    notes: dict[str, list[str]] = field(default_factory=dict)
    problem: str = ""
    empty: bool = False
    seen: list[str] = field(default_factory=list)


def readable(name: str) -> str:
    """A file's name as text that can be written anywhere: bytes that are no UTF-8 as \\xfc, control characters as well."""
    text = os.fsencode(name).decode("utf-8", "backslashreplace")
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def find_submissions(folder: Path, without: Sequence[Path] = ()) -> list[Submission]:
    """Everything directly inside a folder, by name; only hidden entries are left out, and our own files.

    Args:
        folder: where the submissions lie.
        without: files that the run itself writes.

    Raises:
        ValueError: the folder is not there, or is empty.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file. Name the folder that holds the submissions.")
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}.")
    found, files, ours = [], {}, {path.absolute() for path in without}
    for path in sorted(folder.iterdir(), key=lambda one: os.fsencode(one.name)):
        name = readable(path.name)
        if (
            path.name.startswith(".")
            or path.name in ("__MACOSX", "Thumbs.db", "desktop.ini")
            or path.absolute() in ours
        ):
            continue
        if path.is_symlink():
            found.append(Submission(name, problem="is a link, which is not followed."))
        elif path.is_dir():
            found.append(Submission(name, (path,)))
        elif path.is_file() and (_is_python(path.name) or lab_of(path.name)):
            files.setdefault(_learner(name), []).append(path)
        elif not path.is_file():
            found.append(Submission(name, problem="is no file and no folder."))
        elif _opens(path.name):
            found.append(Submission(name, (path,)))
        else:
            kind = next((end for end in UNOPENED if path.name.lower().endswith(end)), None)
            why = (
                f"is a {kind} file, which cannot be opened here"
                if kind
                else "is no folder, no archive and no Python file"
            )
            found.append(Submission(name, problem=f"{why}: hand in a folder, a zip file or the notebook itself."))
    found += [Submission(name, tuple(paths)) for name, paths in files.items()]
    if not found:
        raise ValueError(f"{folder} holds no submission: put one folder or one zip file in it for each learner.")
    return _distinct(sorted(found, key=lambda one: one.name))


def _distinct(found: list[Submission]) -> list[Submission]:
    taken, result = set(), []
    for one in found:
        name, count = one.name, 2
        while name in taken:
            name, count = f"{one.name} [{count}]", count + 1
        taken.add(name)
        result.append(Submission(name, one.paths, one.problem))
    return result


def _learner(name: str) -> str:
    """Whose file this is, where a platform writes it into the file's name; else the name."""
    canvas = re.fullmatch(r"(?P<who>[^_]+)_(LATE_)?(?P<user>\d+)_\d+_.+", name)
    moodle = re.fullmatch(r"(?P<who>.+_\d+)_assignsubmission_file_.*", name)
    if canvas:
        return f"{canvas['who']}_{canvas['user']}"
    return moodle["who"] if moodle else name


def _opens(name: str) -> bool:
    return name.lower().endswith(ARCHIVES)


def lab_of(name: str) -> str | None:
    """The lab whose notebook a file's name says it is: "01_bilinear.py", "01-bilinear (1).py", "anna_12_34_01_bilinear-2.py"."""
    for lab, one in LABS.items():
        stem = one.notebook[3:].replace("_", "[_ -]")
        rest = r"([ _.-]*(\(\d+\)|copy|kopie|copie|final|\d+))*"
        if re.fullmatch(rf"(.*[^0-9a-z])?0?{int(lab)}[_ -]{stem}{rest}(\.py|\.py\.txt|\.txt)", name.lower()):
            return lab
    return None


def _is_python(name: str) -> bool:
    """Whether a file's name says that it is Python; some systems hide an ending, and add one of theirs."""
    return name.lower().endswith((".py", ".py.txt"))


def open_submission(submission: Submission, limits: Limits) -> Work:
    """Read a submission. Never raises because of what it holds: what is wrong is the work's `problem`."""
    work = Work(submission.name, problem=submission.problem)
    if work.problem:
        return work
    try:
        files: dict[PurePosixPath, bytes] = {}
        for path, data in _files(submission, limits, work):
            if files.get(path, data) != data:  # an archive may hold a name twice; who unpacks it gets the last
                work.notes.setdefault("", []).append(f"there are two files {path}; the last was used")
            files[path] = data
        _arrange(work, files)
    except Unreadable as error:
        work.problem = str(error)
    except OSError as error:
        work.problem = f"cannot be read: {error.strerror or error}."
    except (RecursionError, MemoryError) as error:
        work.problem = f"cannot be opened: {type(error).__name__}."
    return work


def _files(submission: Submission, limits: Limits, work: Work) -> Iterator[tuple[PurePosixPath, bytes]]:
    """Path → content of every Python file that a learner may have written."""
    count, left = 0, limits.unpacked_mb * 1_000_000
    for path in submission.paths:
        entries = _walk(path, limits, work) if path.is_dir() else _file(path, submission, limits, work)
        for name, data in entries:
            count, left = count + 1, left - len(data)
            if count > limits.files:
                raise Unreadable(f"holds more than {limits.files} Python files.")
            if left < 0:
                raise Unreadable(f"unpacks to more than {limits.unpacked_mb} MB.")
            yield name, data


def _file(path: Path, submission: Submission, limits: Limits, work: Work):
    if _opens(path.name):
        yield from _archive(path, path.name, PurePosixPath(), limits, work, 1)
    else:
        work.seen.append(readable(path.name))
        if path.stat().st_size > limits.unpacked_mb * 1_000_000:
            raise Unreadable(f"is larger than {limits.unpacked_mb} MB.")
        name = path.name
        if submission.name != readable(path.name):  # without what the platform put before it
            name = re.sub(r"^.*?_(LATE_)?\d+_\d+_|^.*_assignsubmission_file_", "", name)
        yield PurePosixPath(readable(name)), path.read_bytes()


def _walk(folder: Path, limits: Limits, work: Work) -> Iterator[tuple[PurePosixPath, bytes]]:
    for seen, (here, folders, files) in enumerate(os.walk(folder)):
        if seen > FOLDERS_SEEN:
            raise Unreadable(f"holds more than {FOLDERS_SEEN:,} folders.")
        folders[:] = sorted(name for name in folders if not _skipped(name) and not (Path(here) / name).is_symlink())
        for name in sorted(files):
            path = Path(here) / name
            inside = PurePosixPath(*(readable(part) for part in path.relative_to(folder).parts))
            if not name.startswith(".") and len(work.seen) < 50:
                work.seen.append(str(inside))
            if path.is_symlink() or not path.is_file():
                kind = "a link, which was not followed" if path.is_symlink() else "no file"
                work.notes.setdefault("", []).append(f"{inside} is {kind}")
                continue
            if _is_python(name) or lab_of(name):
                if path.stat().st_size > limits.unpacked_mb * 1_000_000:
                    raise Unreadable(f"unpacks to more than {limits.unpacked_mb} MB.")
                yield inside, path.read_bytes()
            elif _opens(name):
                yield from _archive(path, name, inside.parent, limits, work, 1)
            elif name.lower().endswith(UNOPENED):
                work.notes.setdefault("", []).append(f"{inside} was not opened")


def _archive(source: Path | bytes, name: str, at: PurePosixPath, limits: Limits, work: Work, depth: int):
    """The Python files of an archive, and of archives in it."""

    def wanted(path: PurePosixPath, is_file: bool) -> bool:
        if any(_skipped(part) for part in path.parts[:-1]) or path.name.startswith("._"):
            return False
        if len(work.seen) < 50 and path.name:
            work.seen.append(str(at / path))
        if not is_file:
            work.notes.setdefault("", []).append(f"{at / path} is a link, which was not followed")
        elif path.name.lower().endswith(UNOPENED) and not _opens(path.name):
            work.notes.setdefault("", []).append(f"{at / path} was not opened")
        return is_file and (_is_python(path.name) or _opens(path.name) or lab_of(path.name) is not None)

    for path, data in members(source, name, limits, wanted):
        if not _opens(path.name):
            yield at / path, data
        elif depth < NESTED:
            yield from _archive(data, path.name, at / path.parent, limits, work, depth + 1)
        else:
            raise Unreadable(f"is an archive in an archive, more than {NESTED} deep.")


def _skipped(folder: str) -> bool:
    return folder in SKIPPED or folder.startswith(".")


def _arrange(work: Work, files: dict[PurePosixPath, bytes]) -> None:
    """Choose each lab's notebook, and the modules beside them."""
    work.empty = not files and not work.seen
    candidates: dict[str, list[PurePosixPath]] = {}
    for path in files:
        lab = lab_of(path.name)
        if lab is not None:
            candidates.setdefault(lab, []).append(path)
    for path, data in files.items():
        lab = None if lab_of(path.name) else _lab_inside(data)
        if lab is not None and not any(lab_of(p.name) == lab for p in files):
            candidates.setdefault(lab, []).append(path)
    for lab, paths in candidates.items():
        name = f"{LABS[lab].notebook}.py"
        # The plain name first, then the shallowest; of copies that a browser numbered, the last.
        best, *others = sorted(
            paths, key=lambda p: (p.name != name, len(p.parts), [-n for n in _numbers(p.stem)], str(p))
        )
        work.notebooks[lab] = files[best]
        if others:
            work.notes.setdefault(lab, []).append(f"{best} was graded, not {', '.join(map(str, others[:3]))}")
        elif best.name != name:
            work.notes.setdefault(lab, []).append(f"{best} was taken for {name}")
        for path, data in files.items():
            _beside(work, best.parent, path, data)


def _lab_inside(data: bytes) -> str | None:
    """The lab of a notebook that has lost its name: the one most of whose functions it defines."""
    if b"marimo.App(" not in data:
        return None
    names = set(re.findall(rb"^(?:async )?(?:def|class) (\w+)", data, re.M))
    found = {lab: sum(name.encode() in names for name in one.exercises) for lab, one in LABS.items()}
    best = max(found, key=lambda lab: found[lab])
    return best if found[best] else None


def _numbers(stem: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", stem)][1:]


def _beside(work: Work, home: PurePosixPath, path: PurePosixPath, data: bytes) -> None:
    """Keep a module that lies beside a notebook, or in a package beside it."""
    if not path.is_relative_to(home):
        return
    inside = path.relative_to(home)
    if not all(part.isidentifier() for part in (*inside.parts[:-1], inside.stem)) or lab_of(path.name):
        return
    if inside.parts[0].removesuffix(".py") in TAKEN:
        return
    name = str(inside)
    if work.beside.setdefault(name, data) != data:
        work.notes.setdefault("", []).append(f"there are several files {name}; one was used for all labs")


def not_found(work: Work, lab: str) -> str:
    """What to say of a lab that was not handed in."""
    there = f" There is: {', '.join(_few(work.seen))}." if work.seen else ""
    return f"{LABS[lab].notebook}.py was not found.{there}"


def _few(names: Sequence[str], most: int = 4) -> list[str]:
    return [*names[:most], *([f"and {len(names) - most} more"] if len(names) > most else [])]

"""Archives as learners and learning platforms make them: what is in a zip or tar file, opened with bounds.

Nothing is unpacked to the disk. Names are made plain (backslashes, drive letters), links and everything that leads out of
the archive are refused, and sizes are counted as they come out, not as the archive says they are.
"""

import io
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from checks.classroom.limits import Limits

__all__ = ["ARCHIVES", "Unreadable", "members"]

#: Endings of what can be opened.
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2")
ENTRIES = 200_000  # a checkout with its virtual environment has some 40,000
INDEX_BYTES = 32_000_000  # of a zip's directory, which is read at once
STREAM_BYTES = 4_000_000_000  # a tar file has to be read through to find what is in it


class Unreadable(ValueError):
    """What was handed in cannot be opened; the message completes "it …"."""


def members(
    source: Path | bytes, name: str, limits: Limits, wanted: Callable[[PurePosixPath, bool], bool]
) -> Iterator[tuple[PurePosixPath, bytes]]:
    """The wanted files of an archive, one after the other.

    Args:
        source: the file, or what is in it (an archive inside an archive).
        name: what it is called, for its ending.
        limits: bounds.
        wanted: called with each path and whether it is a file (or else a link, or worse); True reads it.

    Raises:
        Unreadable: it is no archive, it is broken, or it is larger than the limits allow.
    """
    size = source.stat().st_size if isinstance(source, Path) else len(source)
    if size > limits.archive_mb * 1_000_000:
        raise Unreadable(f"is an archive of {size / 1e6:,.0f} MB, more than {limits.archive_mb}.")
    with source.open("rb") if isinstance(source, Path) else io.BytesIO(source) as file:
        start = file.read(4)
        file.seek(0)
        # By what is in it: some give a tar file the name of a zip file. A zip file may have a program before it.
        if start[:2] == b"PK" or name.lower().endswith(".zip") and start[:2] not in (b"\x1f\x8b", b"BZ"):
            yield from _zip(file, limits, wanted)
        else:
            yield from _tar(file, limits, wanted)


def _zip(file: IO[bytes], limits: Limits, wanted) -> Iterator[tuple[PurePosixPath, bytes]]:
    _check_index(file)
    try:
        archive = zipfile.ZipFile(file)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, struct.error) as error:
        raise Unreadable(f"is no zip file that can be opened: {error}.") from None
    left = limits.unpacked_mb * 1_000_000
    for entry in archive.infolist():
        path = _plain(entry.filename)
        link = (entry.external_attr >> 16) & 0o170000 == 0o120000
        if entry.is_dir() or not wanted(path, not link) or link:
            continue
        if entry.flag_bits & 1:
            raise Unreadable(f"is locked with a password ({path}).")
        try:
            with archive.open(entry) as source:
                data = source.read(left + 1)  # what is there, not what the entry says is there
        except (
            zipfile.BadZipFile,
            OSError,
            RuntimeError,
            NotImplementedError,
            EOFError,
            zlib.error,
            lzma.LZMAError,
        ) as error:
            raise Unreadable(f"holds {str(path)!r}, which cannot be unpacked: {error}.") from None
        left = _left(left, data, limits)
        yield path, data


def _check_index(file: IO[bytes]) -> None:
    """Look at the end of a zip before Python reads its directory: a small file may claim a million entries."""
    file.seek(0, io.SEEK_END)
    size = file.tell()
    file.seek(max(0, size - 66_000))
    tail = file.read()
    at = tail.rfind(b"PK\5\6")
    if at < 0 or len(tail) < at + 22:
        raise Unreadable("is no zip file that can be opened: its end is missing.")
    entries, index = struct.unpack("<HL", tail[at + 10 : at + 16])
    if at >= 20 and tail[at - 20 : at - 16] == b"PK\6\7":
        (where,) = struct.unpack("<Q", tail[at - 12 : at - 4])
        file.seek(min(where, size))
        record = file.read(56)
        if len(record) == 56:
            entries, index = struct.unpack("<QQ", record[32:48])
    if entries > ENTRIES or index > INDEX_BYTES:
        raise Unreadable(f"is a zip file of {entries:,} entries, more than {ENTRIES:,} or too long a directory.")
    file.seek(0)


def _tar(file: IO[bytes], limits: Limits, wanted) -> Iterator[tuple[PurePosixPath, bytes]]:
    left, through = limits.unpacked_mb * 1_000_000, 0
    try:
        with tarfile.open(fileobj=file, mode="r|*") as archive:
            for count, entry in enumerate(archive):
                through += entry.size
                if count > ENTRIES or through > STREAM_BYTES:
                    raise Unreadable(f"is a tar file of more than {ENTRIES:,} entries or {STREAM_BYTES / 1e9:.0f} GB.")
                path = _plain(entry.name)
                if entry.isdir() or not wanted(path, entry.isfile()) or not entry.isfile():
                    continue
                data = archive.extractfile(entry).read(left + 1)
                left = _left(left, data, limits)
                yield path, data
    except (tarfile.TarError, OSError, EOFError, zlib.error, lzma.LZMAError, ValueError, OverflowError) as error:
        if isinstance(error, Unreadable):
            raise
        raise Unreadable(f"is no tar file that can be opened: {error}.") from None


def _left(left: int, data: bytes, limits: Limits) -> int:
    if len(data) > left:
        raise Unreadable(f"unpacks to more than {limits.unpacked_mb} MB.")
    return left - len(data)


def _plain(name: str) -> PurePosixPath:
    """An entry's path as ours are written; refuses one that leads out."""
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
    if ".." in parts:
        raise Unreadable(f"holds a path that leads out of its folder: {name!r}.")
    if parts and len(parts[0]) == 2 and parts[0][1] == ":":
        parts = parts[1:]  # a drive letter
    return PurePosixPath(*parts)

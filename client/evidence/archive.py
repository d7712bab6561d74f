"""The file of an archive: a zip without compression, of which every byte is fixed by the files in it.

So the same files give the same archive on every machine, and nothing can hide in one: a reader writes it
again and compares.
"""

from __future__ import annotations

import re
import struct
import zipfile
from collections.abc import Mapping
from io import BytesIO

from crypto.errors import EvidenceMismatch

MAX_BYTES = 256 << 20
MAX_FILES = 20_000
NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,127}/)?[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
END = struct.Struct("<4s4H2LH")  # of a zip, without a comment
LOCATOR_BYTES = 20  # of a directory with 64-bit sizes, which no archive of this size has
MAX_ENTRY_BYTES = 46 + 257  # of the directory: a name, nothing extra
_WRITTEN = (1980, 1, 1, 0, 0, 0)  # the first moment that a zip can name
# what zipfile raises for bytes that it cannot read: it states no closed list
_ODD = (zipfile.BadZipFile, ValueError, LookupError, ArithmeticError, RuntimeError, OSError, EOFError)


def archive_bytes(files: Mapping[str, bytes]) -> bytes:
    """The files, in order of name."""
    made = BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, date_time=_WRITTEN)
            entry.create_system, entry.external_attr = 3, 0o644 << 16
            archive.writestr(entry, files[name])
    return made.getvalue()


def files_of(data: bytes) -> dict[str, bytes]:
    """Files by name, of bytes that anybody may have written. Raises EvidenceMismatch.

    Nothing is unpacked to disk, and nothing is read that is larger than the archive.
    """
    if len(data) > MAX_BYTES:
        raise EvidenceMismatch(f"archive: expected at most {MAX_BYTES} bytes, got {len(data)}")
    if not zipfile.is_zipfile(BytesIO(data)):
        raise EvidenceMismatch(
            "archive: expected a zip file of `chorale job evidence`, this is none, or only a part of one"
        )
    _check_directory(data)
    try:
        with zipfile.ZipFile(BytesIO(data)) as archive:
            entries = archive.infolist()
            _check_entries(entries, archive_size=len(data))
            files = {entry.filename: archive.read(entry) for entry in entries}
    except _ODD as error:
        raise EvidenceMismatch(f"archive: it was damaged or changed: {error}") from None
    if archive_bytes(files) != data:
        raise EvidenceMismatch(
            "archive: it is not the file that Chorale wrote: another program packed it again, or added bytes "
            "to it; ask for the original"
        )
    return files


def _check_directory(data: bytes) -> None:
    """Before the list of files is read, of which each entry becomes an object: as `archive_bytes` ends it."""
    end, locator = data[-END.size :], data[-END.size - LOCATOR_BYTES :][:4]
    is_whole = len(end) == END.size and end.startswith(b"PK\5\6")
    if locator == b"PK\6\7" or (is_whole and END.unpack(end)[5] > MAX_FILES * MAX_ENTRY_BYTES):
        raise EvidenceMismatch("archive: its list of files is larger than that of any evidence")


def _check_entries(entries: list[zipfile.ZipInfo], *, archive_size: int) -> None:
    if len(entries) > MAX_FILES:
        raise EvidenceMismatch(f"archive: expected at most {MAX_FILES} files, got {len(entries)}")
    names = set[str]()
    for entry in entries:
        if not NAME.fullmatch(entry.filename):
            raise EvidenceMismatch(f"archive: {entry.filename[:80]!r} is no name of a file of evidence")
        # in any case: on many machines those two are one file
        if entry.filename.lower() in names:
            raise EvidenceMismatch(f"archive: {entry.filename} is there twice")
        if entry.compress_type != zipfile.ZIP_STORED:
            raise EvidenceMismatch(f"archive: {entry.filename} is compressed, expected it as it is")
        names.add(entry.filename.lower())
    if (total := sum(entry.file_size for entry in entries)) > archive_size:
        raise EvidenceMismatch(f"archive: its files claim {total} bytes, it has {archive_size}")

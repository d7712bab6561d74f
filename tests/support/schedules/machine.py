"""What a process sees of its machine and a test can bend: its calendar, and the disk of its folder.

Both need something of the machine that runs the tests: a C compiler, and the right to mount a file system.
Where that is missing, `unusable` says so and the test is skipped.
"""

from __future__ import annotations

import functools
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

SOURCE = Path(__file__).with_name("skewed_clock.c")
OFFSET = "TEST_CLOCK_OFFSET"
BALLAST = ".ballast"
PIECE_BYTES = 1 << 16


class Clock:
    """The calendar of a process: right until it is `set` to be so many seconds off."""

    def __init__(self, file: Path) -> None:
        self._file = file
        file.write_bytes(struct.pack("q", 0))

    @property
    def environment(self) -> Mapping[str, str]:
        return {"LD_PRELOAD": str(clock_library()), OFFSET: str(self._file)}

    def set(self, seconds: float) -> None:
        with self._file.open("r+b") as file:  # in place: the process has it mapped
            file.write(struct.pack("q", int(seconds)))


@functools.cache
def clock_library() -> Path:
    """Compiled once in a process of pytest."""
    built = Path(tempfile.mkdtemp(prefix="chorale-clock-")) / "skewed_clock.so"
    command = ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(built), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    return built


@contextmanager
def small_disk(folder: Path, *, size_bytes: int) -> Iterator[None]:
    """A file system of that size in the place of the folder, which goes with the block."""
    folder.mkdir(parents=True, exist_ok=True)
    options = f"size={size_bytes},mode=0700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "chorale-test", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def full(folder: Path) -> Iterator[None]:
    """No byte is free on the folder's disk while the block runs."""
    ballast = folder / BALLAST
    try:
        with ballast.open("wb", buffering=0) as file:
            for piece_bytes in (PIECE_BYTES, 1):
                try:
                    while True:
                        file.write(bytes(piece_bytes))
                except OSError:
                    continue
        yield
    finally:
        ballast.unlink(missing_ok=True)


@functools.cache
def unusable_disk() -> str:
    """Why no disk can be made small here, or nothing."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "a small disk is a mounted tmpfs, which root may make on Linux"
    with tempfile.TemporaryDirectory() as folder:
        try:
            with small_disk(Path(folder), size_bytes=1 << 20):
                return ""
        except (OSError, subprocess.CalledProcessError):
            return "this machine does not let root mount a tmpfs"


@functools.cache
def unusable_clock() -> str:
    """Why no process can be given another calendar here, or nothing."""
    if sys.platform != "linux" or shutil.which("cc") is None:
        return "a skewed clock is a library that is compiled here, by cc on Linux"
    return ""

"""Which files a process flushes to storage, and when: strace, which stops it at these calls alone.

A flush is a call that waits until data is on the storage: what a slow disk makes a round wait for. Lines
that the process writes, to its log or its audit log, lie between its flushes in the order of the trace.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

FLUSHES = ("fsync", "fdatasync", "sync_file_range", "syncfs", "sync", "msync")
LINE_BYTES = 400  # of what is written: enough for the fields of a log record that say which it is
PATIENCE_SECONDS = 30.0
# -D: the traced process is the one that was started, so that a signal reaches it
COMMAND = ("strace", "-D", "-f", "--seccomp-bpf", "-ttt", "-y", "-s", str(LINE_BYTES), "-e", "signal=none")
_CALL = re.compile(r"\d+ +(?P<moment>\d+\.\d+) (?P<name>\w+)\((?:-?\w+<(?P<file>[^>]*)>)?(?P<rest>.*)")
_END = re.compile(r"\d+ +\d+\.\d+ \+\+\+ (exited|killed)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A flush of a file, or a line of JSON that was written to it. moment: Unix seconds."""

    moment: float
    file: Path
    line: str = ""

    @property
    def is_flush(self) -> bool:
        return not self.line


def is_installed() -> bool:
    return shutil.which(COMMAND[0]) is not None


def tracer(trace: Path) -> Sequence[str]:
    """The command that a process is started under; its calls go to that file."""
    return (*COMMAND, "-e", f"trace={','.join(FLUSHES)},write", "-o", str(trace))


def read_trace(trace: Path) -> list[Call]:
    """All calls of a process that was told to end. Raises RuntimeError if it does not."""
    limit = time.monotonic() + PATIENCE_SECONDS
    while True:
        lines = trace.read_text(errors="replace").splitlines()
        if lines and _END.match(lines[-1]):
            return list(_calls(lines))
        if time.monotonic() > limit:
            raise RuntimeError(f"{trace}: the traced process did not end")
        time.sleep(0.05)


def _calls(lines: Iterable[str]) -> Iterator[Call]:
    for line in lines:
        call = _CALL.match(line)
        if call is None:  # such as the end of a call that another thread's came in between
            continue
        moment, file = float(call["moment"]), Path(call["file"] or "")
        if call["name"] in FLUSHES:
            yield Call(moment=moment, file=file)
        elif '"{\\"' in call["rest"]:
            yield Call(moment=moment, file=file, line=call["rest"].replace('\\"', '"'))

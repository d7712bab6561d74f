"""The runs that are finished, one JSON line each: a suite killed at any moment continues where it stood."""

from __future__ import annotations

import json
import lzma
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Self

from research.accuracy.trials import Outcome, Trial


class Book:
    """A file that only grows. A torn last line, of a process killed while it wrote, is cut off."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab+")
        self._outcomes: dict[str, Outcome] = {}
        self._file.seek(0)
        end = 0
        for line in self._file:
            if not line.endswith(b"\n"):
                break
            end += len(line)
            self._add(line)
        self._file.truncate(end)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self._outcomes)

    def outcome(self, trial: Trial) -> Outcome:
        """Raises KeyError for a run that is not finished."""
        return self._outcomes[trial.key]

    def has(self, trial: Trial) -> bool:
        """Whether it is finished."""
        return trial.key in self._outcomes

    def missing(self, trials: Iterable[Trial]) -> list[Trial]:
        """Those without an outcome, in their order."""
        return [trial for trial in trials if not self.has(trial)]

    def write(self, trial: Trial, outcome: Outcome) -> None:
        """On the disk when it returns."""
        self._append([json.dumps({"trial": json.loads(trial.key), **asdict(outcome)}).encode() + b"\n"])

    def packed(self) -> bytes:
        """All its lines, compressed (xz)."""
        self._file.seek(0)
        return lzma.compress(self._file.read(), preset=9)

    def take(self, packed: bytes) -> int:
        """What another book packed, without runs that are finished here; how many those are."""
        lines = lzma.decompress(packed).splitlines(keepends=True)
        new = [line for line in lines if _key(line) not in self._outcomes]
        self._append(new)
        return len(new)

    def _append(self, lines: Sequence[bytes]) -> None:
        self._file.write(b"".join(lines))
        self._file.flush()
        os.fsync(self._file.fileno())
        for line in lines:
            self._add(line)

    def _add(self, line: bytes) -> None:
        fields = json.loads(line)
        del fields["trial"]
        self._outcomes[_key(line)] = Outcome(**fields)


def _key(line: bytes) -> str:
    """Of the trial that a line is about."""
    return json.dumps(json.loads(line)["trial"], sort_keys=True)

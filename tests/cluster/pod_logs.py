"""What the pods' logs say, over all their lives: read from the node's files, which outlive a pod."""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from tests.cluster.page import HUB
from tests.support.processes import Record, wait_until

PATTERN = "*_{pod}_*/*/*.log"  # <namespace>_<pod>_<uid>/<container>/<life>.log
POLL_SECONDS = 0.05


@dataclass(slots=True, kw_only=True)
class PodLogs:
    """Records by member, in order; `lines` of a container that are none are kept beside them."""

    folder: Path
    members: tuple[str, ...]
    records: defaultdict[str, list[Record]] = field(default_factory=lambda: defaultdict(list))
    lines: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    _files: dict[Path, tuple[str, BinaryIO]] = field(default_factory=dict)
    _torn: defaultdict[str, bytes] = field(default_factory=lambda: defaultdict(bytes))
    _ending: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        threading.Thread(target=self._follow, daemon=True).start()

    def close(self) -> None:
        self._ending.set()

    def mark(self, member: str) -> int:
        return len(self.records[member])

    def wait(
        self,
        member: str,
        wanted: Callable[[Record], bool],
        what: str,
        *,
        since: int = 0,
        seconds: float = 90.0,
    ) -> Record:
        """The first record that fits. Raises AssertionError with the end of the log."""
        found: list[Record] = []

        def is_written() -> bool:
            found.extend(each for each in self.records[member][since:] if wanted(each))
            return bool(found)

        wait_until(is_written, f"{member}: {what}", seconds=seconds, detail=lambda: self.tail(member))
        return found[0]

    def tail(self, member: str) -> str:
        return "\n".join(self.lines[member][-30:])

    def _follow(self) -> None:
        while not self._ending.is_set():
            self._find()
            for path, (member, file) in list(self._files.items()):
                # a line of the container is one of the file, or several marked P and a last one marked F
                for line in file:
                    if not line.endswith(b"\n"):
                        file.seek(-len(line), 1)
                        break
                    _, _, mark, rest = line.rstrip(b"\n").split(b" ", 3)
                    self._torn[str(path)] += rest
                    if mark == b"F":
                        self._take(member, self._torn.pop(str(path)).decode(errors="replace"))
            time.sleep(POLL_SECONDS)

    def _find(self) -> None:
        for member in self.members:
            pod = f"{member}-chorale-{'coordinator' if member == HUB else 'silo'}-0"
            for path in sorted(self.folder.glob(PATTERN.format(pod=pod))):
                if path not in self._files:
                    with suppress(FileNotFoundError):
                        self._files[path] = (member, path.open("rb"))

    def _take(self, member: str, line: str) -> None:
        self.lines[member].append(line)
        if line.startswith("{"):
            with suppress(ValueError):
                self.records[member].append(json.loads(line))

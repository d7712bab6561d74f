"""What is wrong with single records of a data set: for the institution's own eyes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from crypto.errors import ConfigError

MAX_LINES = 1_000  # kept of a file in which every cell is wrong, and no two are alike


class Problems:
    """Loaders add to it and go on reading: who asked for the data decides what one bad record means.

    A job without privacy is refused for the first one, a private job counts them, and `chorale silo check`
    lists them. lines: the first MAX_LINES, where problems that are alike share one; count: of all problems.
    notes: how many records of each folder are used and why not the others; nothing is refused for these.
    dropped: records that the settings leave out, by their label; no problem. counted: how often something
    happens that job or settings ask for, by its words. misread, implausible: by column, cells that hold
    something and are missing all the same: no value of the column, and a number beyond its limits.
    """

    def __init__(self) -> None:
        self._first: dict[str, str] = {}  # by what its problems have in common, the first of a line
        self._times: Counter[str] = Counter()  # of those that have a line
        self.count = 0
        self.notes: list[str] = []
        self.dropped: Counter[str] = Counter()
        self.counted: Counter[str] = Counter()
        self.misread: Counter[str] = Counter()
        self.implausible: Counter[str] = Counter()

    def say(self, note: str) -> None:
        self.notes.append(note)

    def add(self, line: str, *, alike: str = "") -> None:
        """line: the file, the place in it, what is expected and what is there. alike: what it has in common
        with others, such as a column and a wrong value; empty: nothing."""
        self.count += 1
        self._keep(alike or line, line, times=1)

    def take(self, other: Problems) -> None:
        """Those of another one, after one's own."""
        self.count += other.count
        self.notes += other.notes
        self.dropped += other.dropped
        self.counted += other.counted
        self.misread += other.misread
        self.implausible += other.implausible
        for alike, line in other._first.items():
            self._keep(alike, line, times=other._times[alike])

    @property
    def lines(self) -> list[str]:
        more = {alike: times - 1 for alike, times in self._times.items()}
        return [
            f"{line}, and {more[alike]} more like it" if more[alike] else line
            for alike, line in self._first.items()
        ]

    @property
    def unlisted(self) -> int:
        """How many are in no line."""
        return self.count - self._times.total()

    def raise_first(self) -> None:
        """Raises ConfigError if there is one."""
        if self.count:
            more = "" if self.count == 1 else " (the first of several: `chorale silo check` lists them all)"
            raise ConfigError(f"{next(iter(self._first.values()))}{more}")

    def _keep(self, alike: str, line: str, *, times: int) -> None:
        if alike not in self._first:
            if len(self._first) == MAX_LINES:
                return
            self._first[alike] = line
        self._times[alike] += times


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """What became of a table's records, each count a part of the one before. The counts stay at the silo.

    readable: whose line or row can be read. eligible: of those that say whose they are, where units do,
    and did not withdraw. withdrawn: those that did.
    labeled: with a label of the job. used: in training or held out.
    """

    found: int
    readable: int
    eligible: int
    labeled: int
    used: int
    withdrawn: int = 0

    def in_words(self) -> str:
        left_out = {
            "cannot be read": self.found - self.readable,
            "do not say whose they are": self.readable - self.eligible - self.withdrawn,
            "are of units that withdrew": self.withdrawn,
            "have no label of the job": self.eligible - self.labeled,
            "are beyond what their unit may have, or in another account": self.labeled - self.used,
        }
        why = "; ".join(f"{count} {reason}" for reason, count in left_out.items() if count)
        counts = (
            f"{self.found} records found, {self.readable} readable, {self.eligible} eligible, "
            f"{self.labeled} labeled, {self.used} used"
        )
        return f"{counts} ({why})" if why else counts

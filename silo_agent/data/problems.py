"""What is wrong with single records of a data set: a line each, for the institution's own eyes."""

from __future__ import annotations

from crypto.errors import ConfigError

MAX_LINES = 1_000  # kept of a file in which every cell is wrong


class Problems:
    """Loaders add to it and go on reading: who asked for the data decides what one bad record means.

    A job without privacy is refused for the first one, a private job counts them, and `chorale silo check`
    lists them. lines: the first MAX_LINES; count: of all.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.count = 0

    def add(self, line: str) -> None:
        """line: the file, the place in it, what is expected and what is there."""
        self.count += 1
        if len(self.lines) < MAX_LINES:
            self.lines.append(line)

    def take(self, other: Problems) -> None:
        """Those of another one, after one's own."""
        self.count += other.count
        self.lines += other.lines[: MAX_LINES - len(self.lines)]

    def raise_first(self) -> None:
        """Raises ConfigError if there is one."""
        if self.count:
            more = "" if self.count == 1 else " (the first of several: `chorale silo check` lists them all)"
            raise ConfigError(f"{self.lines[0]}{more}")

"""What the test says while it runs: a line for each check, command and adaptation, and for long waits."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

SILENCE_SECONDS = 5.0


class Report:
    def __init__(self) -> None:
        self.checks = 0
        self._began = time.monotonic()
        self._adapted: set[str] = set()

    def say(self, text: str) -> None:
        seconds = time.monotonic() - self._began
        sys.stdout.write(f"{seconds:6.1f}  {text}\n")
        sys.stdout.flush()

    def passed(self, what: str) -> None:
        self.checks += 1
        self.say(f"ok {self.checks}  {what}")

    def adapted(self, what: str) -> None:
        """Once for each adaptation, where it is made first."""
        if what not in self._adapted:
            self._adapted.add(what)
            self.say(f"adapted: {what}")

    @contextmanager
    def progress(self, what: str) -> Iterator[None]:
        """Says every few seconds that it is still under way."""
        began, ending = time.monotonic(), threading.Event()

        def tell() -> None:
            while not ending.wait(SILENCE_SECONDS):
                self.say(f"   {what}: {time.monotonic() - began:.0f} s")

        teller = threading.Thread(target=tell, daemon=True)
        teller.start()
        try:
            yield
        finally:
            ending.set()
            teller.join()

"""What a fuzz target is: a parser, what it may refuse with, and how its inputs are changed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from crypto.errors import RemoteProtocolError

CORPUS = Path(__file__).parent / "corpus"

Mutate = Callable[[bytes, random.Random], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """read: parses the bytes, and asserts what must hold of that which parses.

    refuses: all that may leave `read` for bytes that are wrong; anything else is a finding.
    seeds: inputs of the honest kind. mutate: changes an input and keeps its form; None: bytes at random.
    """

    name: str
    read: Callable[[bytes], object]
    seeds: Callable[[], Iterable[bytes]]
    refuses: tuple[type[Exception], ...] = (RemoteProtocolError,)
    mutate: Mutate | None = None
    max_bytes: int = 4096

    def try_on(self, data: bytes) -> bool:
        """Whether the bytes parse. Raises what the parser should not have raised."""
        try:
            self.read(data)
        except self.refuses:
            return False
        return True

    @property
    def inputs(self) -> list[bytes]:
        """The seeds, and what is committed."""
        return [*self.seeds(), *(path.read_bytes() for path in self.corpus)]

    @property
    def corpus(self) -> list[Path]:
        """The committed inputs, each named by the beginning of its SHA-256."""
        return sorted(path for path in (CORPUS / self.name).glob("*") if path.is_file())

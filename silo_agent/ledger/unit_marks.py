"""What an account remembers of the units it was charged for: a keyed hash of each, and nothing else.

The key lies beside the ledger and leaves this machine never, so a copy of the ledger alone tells of no
record. Source: docs/privacy.md "The ledger".
U = units, N = records.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chorale.runtime.files import read_limited, write_atomic
from crypto.errors import ConfigError

KEY_BYTES = 32
MARK_BYTES = 16  # two of 10^9 units are alike with a chance below 2^-68

Marks: TypeAlias = NDArray[np.bytes_]  # of MARK_BYTES each
Mask: TypeAlias = NDArray[np.bool_]

NO_MARKS: Marks = np.empty(0, f"S{MARK_BYTES}")


class UnitKey:
    """HMAC-SHA256 under the silo's own key, cut to MARK_BYTES."""

    def __init__(self, key: bytes) -> None:
        self._of_rows = hmac.new(key, b"chorale/v1/row\0", "sha256")
        self._of_units = hmac.new(key, b"chorale/v1/unit\0", "sha256")

    @classmethod
    def of(cls, path: Path, *, is_new: bool) -> Self:
        """Read, or where the ledger holds no marks yet, made. Raises ConfigError where it is lost."""
        if not path.exists() and is_new:
            write_atomic(path, os.urandom(KEY_BYTES))
        if not path.exists():
            raise ConfigError(
                f"{path}: no such file, and without it no record can be compared with the ledger's accounts: "
                "put it back, or begin in another directory with a new certificate"
            )
        key = read_limited(path, KEY_BYTES)
        if len(key) != KEY_BYTES:
            raise ConfigError(f"{path}: expected {KEY_BYTES} bytes, got {len(key)}")
        return cls(key)

    @property
    def digest(self) -> bytes:
        """What tells this key from another one."""
        return hmac.digest(self._of_units.digest(), b"key", "sha256")

    def rows(self, records: Iterable[bytes]) -> Marks:
        """Shapes: -> (N,). records: each as it is stored."""
        return _marks(self._of_rows, records)

    def units(self, names: Iterable[str]) -> Marks:
        """Shapes: -> (U,). names: as the data say them; one name in two data sets is one unit."""
        return _marks(self._of_units, (name.encode("utf-8", "surrogatepass") for name in names))


def _marks(of: hmac.HMAC, values: Iterable[bytes]) -> Marks:
    digests = []
    for value in values:
        hashed = of.copy()
        hashed.update(value)
        digests.append(hashed.digest()[:MARK_BYTES])
    return np.frombuffer(b"".join(digests), NO_MARKS.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class SideMarks:
    """Units by the side that they were last seen on, each sorted. Shapes: train (U,), held_out (U',)."""

    train: Marks = field(default_factory=lambda: NO_MARKS)
    held_out: Marks = field(default_factory=lambda: NO_MARKS)

    @property
    def all(self) -> Marks:
        return np.union1d(self.train, self.held_out)

    def without(self, others: Marks) -> SideMarks:
        return SideMarks(
            train=np.setdiff1d(self.train, others, assume_unique=True),
            held_out=np.setdiff1d(self.held_out, others, assume_unique=True),
        )


class Admitted:
    """The records that a data set's inputs are charged for; any other one is left out.

    account: its id, by which the hold-out of private jobs is split.
    """

    def __init__(self, account: str, *, key: UnitKey, marks: SideMarks) -> None:
        self.account = account
        self._key = key
        self._by_side = {None: marks.all, False: marks.train, True: marks.held_out}

    def rows(self, records: Iterable[bytes], *, is_held_out: bool | None = None) -> Mask:
        """Which of the records are charged for. Shapes: -> (N,).

        is_held_out: the side that they are on by a test split of the data's own; None: their hash says it.
        """
        return _is_in(self._key.rows(records), self._by_side[is_held_out])

    def units(self, names: Sequence[str | None]) -> list[str | None]:
        """The same names, None in place of those that are not charged for."""
        distinct = [name for name in dict.fromkeys(names) if name is not None]
        is_in = dict(zip(distinct, _is_in(self._key.units(distinct), self._by_side[None]), strict=True))
        return [name if name is not None and is_in[name] else None for name in names]


def _is_in(marks: Marks, known: Marks) -> Mask:
    """known: sorted."""
    if not len(known):
        return np.zeros(len(marks), np.bool_)
    places = np.minimum(np.searchsorted(known, marks), len(known) - 1)
    is_known: Mask = known[places] == marks
    return is_known

"""What an account remembers of the units it was charged for: a keyed hash of each, and nothing else.

The key lies beside the ledger and leaves this machine never, so a copy of the ledger alone tells of no
record. It divides the records of private jobs, too. Source: docs/privacy.md "The ledger".
U = units, N = records.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chorale.runtime.files import read_limited, write_atomic
from crypto import encoding
from crypto.errors import ConfigError

KEY_BYTES = 32
HASHED_BITS = 64  # of what decides on a side
MARK_BYTES = 16  # two of 10^9 units are alike with a chance below 2^-68

Marks: TypeAlias = NDArray[np.bytes_]  # of MARK_BYTES each
Mask: TypeAlias = NDArray[np.bool_]
Splits: TypeAlias = NDArray[np.uint8]  # a `Split` each

NO_MARKS: Marks = np.empty(0, f"S{MARK_BYTES}")


class Split(IntEnum):
    """What a record is for in a job. VALIDATION and TEST are held out: rounds test on the first, the closing
    evaluation alone on the second."""

    TRAIN, VALIDATION, TEST = 0, 1, 2


class UnitKey:
    """HMAC-SHA256 under the silo's own key, cut to MARK_BYTES."""

    def __init__(self, key: bytes) -> None:
        self._of_rows = hmac.new(key, b"chorale/v1/row\0", "sha256")
        self._of_units = hmac.new(key, b"chorale/v1/unit\0", "sha256")
        self._of_sides = hmac.new(key, b"chorale/v1/holdout\0", "sha256")

    @classmethod
    def public(cls, data_set: str) -> Self:
        """Of a data set without a ledger, as in a simulation: everybody can compute its sides."""
        return cls(encoding.digest("public-key", data_set))

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
        return _marks(self._of_units, map(unit_bytes, names))

    def held_out(self, values: Iterable[bytes], fraction: float) -> Mask:
        """Which are kept for evaluation, each by a hash of its own. Shapes: -> (N,). values: records as they
        are stored, or units (`unit_bytes`).

        Position, number and labels of other records do not enter, so one record more, less or changed moves
        no other. Equal ones are on one side, in every data set of the silo.
        """
        is_held_N: Mask = self.splits(values, holdout=fraction, test_share=0.0) != Split.TRAIN
        return is_held_N

    def splits(self, values: Iterable[bytes], *, holdout: float, test_share: float) -> Splits:
        """The same, and which of those held out are for the test. Shapes: -> (N,). test_share: of those held
        out, who are the same whatever it is."""
        held, tested = (int(share * 2**HASHED_BITS) for share in (holdout, holdout * test_share))
        firsts = (each[: HASHED_BITS // 8] for each in _hashes(self._of_sides, values))
        numbers = (int.from_bytes(each, "big") for each in firsts)
        return np.array([(each < held) + (each < tested) for each in numbers], np.uint8)


def unit_bytes(name: str) -> bytes:
    """What is hashed of a unit."""
    return name.encode("utf-8", "surrogatepass")


def _marks(of: hmac.HMAC, values: Iterable[bytes]) -> Marks:
    return np.frombuffer(b"".join(each[:MARK_BYTES] for each in _hashes(of, values)), NO_MARKS.dtype)


def _hashes(of: hmac.HMAC, values: Iterable[bytes]) -> Iterator[bytes]:
    for value in values:
        hashed = of.copy()
        hashed.update(value)
        yield hashed.digest()


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

    key: by which private jobs divide them. marks: those of its account; None: all records. most: records that
    private jobs count on, whatever there are; None: those that there are.
    """

    def __init__(self, key: UnitKey, marks: SideMarks | None, *, most: int | None = None) -> None:
        self.key, self.most = key, most
        self.is_everything = marks is None
        found = marks or SideMarks()
        self._by_side = {None: found.all, False: found.train, True: found.held_out}

    @classmethod
    def everything(cls, data_set: str) -> Self:
        """Without a ledger."""
        return cls(UnitKey.public(data_set), None)

    def rows(self, records: Iterable[bytes], *, is_held_out: bool | None = None) -> Mask:
        """Which of the records are charged for. Shapes: -> (N,).

        is_held_out: as which they would be used; None: either.
        """
        return self._of(self.key.rows(records), is_held_out)

    def on_each_side(self, records: Iterable[bytes]) -> Mask:
        """Whether each may be in training, and whether it may be held out. Shapes: -> (N, 2)."""
        marks = self.key.rows(records)
        return np.stack([self._of(marks, is_held_out) for is_held_out in (False, True)], axis=1)

    def units(self, names: Sequence[str | None]) -> list[str | None]:
        """The same names, None in place of those that are not charged for."""
        distinct = [name for name in dict.fromkeys(names) if name is not None]
        is_in = dict(zip(distinct, self._of(self.key.units(distinct), None), strict=True))
        return [name if name is not None and is_in[name] else None for name in names]

    def _of(self, marks: Marks, side: bool | None) -> Mask:
        known = self._by_side[side]
        if self.is_everything or not len(known):
            return np.full(len(marks), self.is_everything)
        places = np.minimum(np.searchsorted(known, marks), len(known) - 1)
        is_known: Mask = known[places] == marks
        return is_known

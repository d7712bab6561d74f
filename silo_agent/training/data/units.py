"""The unit that is protected: what all rows of one patient, say, have in common.

A silo's private job draws, clips, weighs and splits a unit's rows as one. Which rows are of one unit is the
institution's own setting; no job says it. Without one every row is a unit. Source: docs/privacy.md, "The unit
that is protected".

N = rows, U = units.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from silo_agent.training.data.problems import Problems
from silo_agent.training.data.settings import SettingsFault
from silo_agent.training.unit_marks import Admitted

Indices = NDArray[np.int64]

WEIGHT_STEPS = 1 << 20  # of `Units.weights_N`: sums of so fine weights are exact in float64


@dataclass(frozen=True, kw_only=True)
class Units:
    """Rows that stand unit by unit. Shapes: first (U + 1,): rows first[u] to first[u + 1] are unit u's."""

    first_U1: Indices

    @classmethod
    def of(cls, units_N: Indices | None, rows: int) -> Self:
        """units: the unit of each row, ascending; None: every row is one."""
        if units_N is None:
            return cls(first_U1=np.arange(rows + 1))
        return cls(first_U1=np.append(np.flatnonzero(np.diff(units_N, prepend=-1)), rows))

    def __len__(self) -> int:
        return len(self.first_U1) - 1

    @cached_property
    def sizes_U(self) -> Indices:
        """How many rows each has."""
        return np.asarray(np.diff(self.first_U1))

    def rows_of(self, chosen_U: Indices) -> Indices:
        """The rows of those units, one unit after the other."""
        size_U = self.sizes_U[chosen_U]
        before_U = np.cumsum(size_U) - size_U
        rows_N: Indices = np.arange(int(size_U.sum())) + np.repeat(self.first_U1[chosen_U] - before_U, size_U)
        return rows_N

    def weights_N(self, steps: int) -> NDArray[np.float64]:
        """What each row counts: about 1 / rows of its unit, a multiple of 1 / steps; a unit's add up to 1.

        So a unit adds to a count no more than a row alone would, and what it adds is a multiple of 1 / steps.
        steps: a power of two.
        """
        size_N = np.repeat(self.sizes_U, self.sizes_U)
        place_N = np.arange(len(size_N)) - np.repeat(self.first_U1[:-1], self.sizes_U)
        return np.asarray((steps // size_N + (place_N < steps % size_N)) / steps)


def unit_name(value: object) -> str | None:
    """A unit as data name it; None where a row has none: nothing, or neither a text nor a whole number."""
    return (str(value).strip() or None) if isinstance(value, str | Integral) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Excluded:
    """Units that withdrew, as a file names them: one a line."""

    path: Path
    digest: bytes
    names: frozenset[str]

    @classmethod
    def of(cls, path: Path) -> Self:
        """Raises SettingsFault for a file that cannot be read: nobody's withdrawal is passed over."""
        try:
            content = path.read_bytes()
            lines = content.decode("utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "expected UTF-8"
            raise SettingsFault(f"data.exclude: {path}: {why}") from None
        names = frozenset(line.strip() for line in lines) - {""}
        return cls(path=path, digest=hashlib.sha256(content).digest(), names=names)

    @property
    def is_current(self) -> bool:
        """Whether the file still says the same."""
        try:
            return hashlib.sha256(self.path.read_bytes()).digest() == self.digest
        except OSError:
            return False

    def without(self, names: Sequence[str | None], problems: Problems) -> list[str | None]:
        """The same names, None in place of those that withdrew."""
        if left_out := sum(name in self.names for name in names):
            problems.counted["records of units that withdrew are left out (data.exclude)"] += left_out
        if unknown := len(self.names - {*names}):
            problems.counted[f"lines of {self.path} (data.exclude) are no unit of this data set"] += unknown
        return [None if name in self.names else name for name in names]


def admitted_names(
    units: Sequence[object],
    *,
    column: str,
    place: Callable[[int], str],
    excluded: Excluded | None,
    admitted: Admitted,
    problems: Problems,
) -> list[str | None]:
    """Whose each record is; None where it does not say, which is a problem, and where that one withdrew or
    is not admitted."""
    names = [unit_name(each) for each in units]
    for row in (row for row, name in enumerate(names) if name is None):
        problems.add(f"{place(row)}: expected whose it is ({column}), got nothing")
    if excluded is not None:
        names = excluded.without(names, problems)
    return admitted.units(names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouped:
    """Rows that are kept, unit by unit. Shapes: places, units (N,). names: of the units."""

    places_N: Indices
    units_N: Indices
    names_U: Sequence[str]


def grouped(names: Sequence[str | None], hashes: Sequence[bytes], *, max_rows: int) -> Grouped:
    """Units in the order in which they first appear, each unit's rows by their hash; of those beyond max_rows
    the least hashes stay. A row without a name is left out. What becomes of a row depends on the rows of its
    unit alone."""
    rows: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        if name is not None:
            rows.setdefault(name, []).append(place)
    kept = [sorted(places, key=hashes.__getitem__)[:max_rows] for places in rows.values()]
    return Grouped(
        places_N=np.array([place for places in kept for place in places], np.int64),
        units_N=np.repeat(np.arange(len(kept)), [len(places) for places in kept]),
        names_U=list(rows),
    )

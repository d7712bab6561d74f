"""Which small cells of the hospitals' table 1 a reader knows who has added records to one of its silos.

    python -m research.analysis.padding      # a minute; records of hospitals: --data FOLDER

Of each cell that holds 1 to 9 records, the reader's silo adds 0 to 9 made-up ones to it, in the commonest
parts of the other columns: to this cell alone, or ten to each other cell of its column, too. How many values
are left by all that the reader sees (seen.py), to one who knows what was added?
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.options import Parser, ended
from research.analysis.reconstruction import DATA, hospitals
from research.analysis.seen import LEAST, Cube, Mask, Records

JOB = "table 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Small:
    """A cell of the group by another column. parts: of both, missing the last."""

    column: str
    parts: tuple[int, int]

    def mask(self, cube: Cube, group: str) -> Mask:
        row, part = self.parts
        return np.asarray((cube.axes[group] == row) & (cube.axes[self.column] == part))


def cells_of(cube: Cube, group: str, column: str) -> list[Small]:
    sizes = [int(cube.axes[name].max()) + 1 for name in (group, column)]
    return [Small(column=column, parts=(row, part)) for row, part in np.ndindex(*sizes)]


def small_cells(cube: Cube, group: str) -> list[Small]:
    """Those of 1 to LEAST - 1 records."""
    every = (cell for name in cube.names if name != group for cell in cells_of(cube, group, name))
    return [cell for cell in every if 0 < cube.held_X[cell.mask(cube, group)].sum() < LEAST]


def padded(records: Records, added: Mapping[Small, int]) -> Records:
    """With so many more records of each cell."""
    cube, values = Cube(records), dict[str, Any]()
    for name, value_N in records.values.items():
        commonest = int(np.bincount(cube.axes[name], weights=cube.held_X).argmax())
        more: list[Any] = [value_N]
        for cell, count in added.items():
            part = {records.group: cell.parts[0], cell.column: cell.parts[1]}.get(name, commonest)
            more.append(np.full(count, _value(records.columns[name], part), value_N.dtype))
        values[name] = np.concatenate(more)
    return replace(records, values=values)


def _value(column: Mapping[str, Any], part: int) -> float:
    if "categories" in column:
        return part if part < len(column["categories"]) else -1
    edges = column["edges"]
    return (edges[part] + edges[part + 1]) / 2 if part + 1 < len(edges) else float("nan")


def values_of(records: Records, cell: Small, added: int, others: int) -> int:
    """How many the cell may hold, to one who knows the records that were added to it, and to the others."""
    plain = Cube(records)
    count_of = dict.fromkeys(cells_of(plain, records.group, cell.column), others) | {cell: added}
    whole = Cube(padded(records, count_of))
    seen = replace(whole.seen([JOB]), known_X=whole.held_X - plain.held_X)
    return len(seen.values_of(cell.mask(whole, records.group), is_whole=True))


def main(arguments: Sequence[str] | None = None) -> int:
    """A row for each number of records that are added."""
    parser = Parser("analysis.padding", __doc__, package="research")
    parser.add_argument("--data", type=Path, default=DATA, help="of the hospitals' files")
    records = hospitals(parser.parse_args(arguments).data)
    cells = small_cells(Cube(records), records.group)
    print(f"{len(cells)} cells of 1 to {LEAST - 1}")
    print("| added | known exactly | within ten values | with ten in the others | within ten values |")
    print("|---|---|---|---|---|")
    for added in range(LEAST):
        row = [f"{added}"]
        for others in (0, LEAST):
            found = [values_of(records, cell, added, others) for cell in cells]
            row += [f"{found.count(1)}", f"{sum(each < LEAST for each in found)}"]
        print(f"| {' | '.join(row)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(ended(main))

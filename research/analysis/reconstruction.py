"""What linear programs find in the tables of an analysis, by all that one reader sees.

    python -m research.analysis.reconstruction      # four minutes; records of hospitals: --data FOLDER

The unknowns are the cells of the cube of all columns, missing values included. Published counts are
equations; that a part was merged bounds what it holds; that a chain went on says that a cell of the step
before is small. Of a model the reader has the whole joint table, which standard errors give away; means and
sums of numbers are left out. Each cell that a job counts and does not show is bounded by integer programs,
and drawn sums of two or three of them by linear ones.

The control withholds the cells below t one by one in place of merging, beside their margins.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.options import Parser, ended, whole
from research.analysis.seen import LEAST, Cube, Mask, Records, Seen

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / ".." / "shared" / "data" / "heart_disease"  # next to the checkout; `--data` names another
MOST_OF_SUM, DRAWN = 3, 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounded:
    """Hidden cells. empty, small: known exactly, to hold no record, and 1 to LEAST - 1. narrow: of those that
    may hold some and do not follow from sums and differences of published counts, with fewer than LEAST
    values; least: the fewest."""

    hidden: int
    empty: int
    small: int
    narrow: int
    least: int | None
    sums: int
    narrow_sums: int
    least_of_sums: int | None


def bounded(seen: Seen, *, drawn: int, seed: int = 41) -> Bounded:
    """drawn: sums of two and three hidden cells that share no record."""
    values = [(mask_X, seen.values_of(mask_X, is_whole=True)) for mask_X in seen.hidden]
    narrowed = [len(each) for mask_X, each in values if each != range(1) and not seen.is_fixed(mask_X)]
    free = [mask_X for mask_X, each in values if len(each) > 1]
    of_sums = [len(seen.values_of(mask_X, is_whole=False)) for mask_X in _sums(seen, free, drawn, seed)]
    return Bounded(
        hidden=len(seen.hidden),
        empty=sum(each == range(1) for _, each in values),
        small=sum(len(each) == 1 and 0 < each[0] < LEAST for _, each in values),
        narrow=sum(each < LEAST for each in narrowed),
        least=min(narrowed, default=None),
        sums=len(of_sums),
        narrow_sums=sum(each < LEAST for each in of_sums),
        least_of_sums=min(of_sums, default=None),
    )


def _sums(seen: Seen, free: Sequence[Mask], drawn: int, seed: int) -> Iterator[Mask]:
    rng, left = np.random.default_rng(seed), drawn
    for _ in range(100 * drawn):
        count = int(rng.integers(2, MOST_OF_SUM + 1))
        if left == 0 or len(free) < count:
            return
        chosen = [free[place] for place in rng.choice(len(free), count, replace=False)]
        sum_X = np.logical_or.reduce(chosen)
        if sum_X.sum() == sum(map(np.count_nonzero, chosen)) and not seen.is_fixed(sum_X):
            left -= 1
            yield sum_X


# records


def hospitals(folder: Path) -> Records:
    """Two records lack the ecg. Age stands in place of a time."""
    rows = [
        [float("nan") if text == "?" else float(text) for text in line.split(",")]
        for path in sorted(folder.glob("processed.*.data"))
        for line in path.read_text().split()
    ]
    value_NC = np.array(rows)

    def category(column: int, known: Sequence[float]) -> NDArray[np.int64]:
        found = np.full(len(value_NC), -1)
        for place, each in enumerate(known):
            found[value_NC[:, column] == each] = place
        return found

    return Records(
        name="four hospitals",
        columns={
            "sex": {"categories": ["f", "m"]},
            "age": {"edges": [0, 35, 40, 45, 50, 55, 60, 65, 70, 90]},
            "pain": {"categories": ["typical", "atypical", "other", "none"]},
            "ecg": {"categories": ["normal", "wave", "hypertrophy"]},
            "ill": {"categories": ["no", "yes"]},
        },
        values={
            "sex": category(1, (0, 1)),
            "age": value_NC[:, 0],
            "pain": category(2, (1, 2, 3, 4)),
            "ecg": category(6, (0, 1, 2)),
            "ill": np.where(np.isnan(value_NC[:, 13]), -1, value_NC[:, 13] > 0).astype(np.int64),
        },
        group="sex",
        model={"outcome": "ill", "family": "logistic", "terms": [["age"], ["sex"], ["pain"]]},
        survival={"time": "age", "status": "ill", "group": "sex"},
    )


def tumors() -> Records:
    """None is missing a value. Texture stands in place of a time."""
    from sklearn.datasets import load_breast_cancer

    found = load_breast_cancer()
    return Records(
        name="breast cancer",
        columns={
            "kind": {"categories": ["malignant", "benign"]},
            "radius": {"edges": [5, 10, 11, 12, 13, 14, 15, 17, 19, 30]},
            "texture": {"edges": [0, 14, 16, 18, 20, 22, 25, 45]},
        },
        values={"kind": found.target, "radius": found.data[:, 0], "texture": found.data[:, 1]},
        group="kind",
        model={"outcome": "kind", "family": "logistic", "terms": [["radius"], ["texture"]]},
        survival={"time": "texture", "status": "kind"},
    )


def made(records: int) -> Records:
    """With a rare ward, and few missing values in three columns."""
    rng = np.random.default_rng(records)
    months_N = np.minimum(rng.exponential(20, records), rng.uniform(0, 40, records))
    columns: dict[str, dict[str, Any]] = {
        "sex": {"categories": ["f", "m"]},
        "ward": {"categories": ["a", "b", "rare", "other"]},
        "age": {"edges": [18, 40, 50, 55, 60, 65, 70, 110]},
        "months": {"edges": [0, 3, 6, 12, 18, 24, 60]},
        "state": {"categories": ["alive", "dead"]},
    }
    values: dict[str, Any] = {
        "sex": rng.integers(0, 2, records),
        "ward": rng.choice(4, records, p=[0.5, 0.3, 0.05, 0.15]),
        "age": np.where(rng.random(records) < 0.03, np.nan, rng.normal(58, 9, records)),
        "months": np.where(rng.random(records) < 0.02, np.nan, months_N),
        "state": rng.integers(0, 2, records),
    }
    values["ward"][rng.random(records) < 0.02] = -1
    return Records(
        name=f"{records:,} made up",
        columns=columns,
        values=values,
        group="sex",
        model={"outcome": "state", "family": "logistic", "terms": [["age"], ["sex"], ["ward"]]},
        survival={"time": "months", "status": "state", "group": "sex"},
    )


ALONE = (("table 1",), ("model",), ("survival",))
TOGETHER = ("table 1 without time", "model without time", "survival")


def main(arguments: Sequence[str] | None = None) -> int:
    """A row for each reader of each collection of records."""
    parser = Parser("analysis.reconstruction", __doc__, package="research")
    parser.add_argument("--data", type=Path, default=DATA, help="of the hospitals' files")
    parser.add_argument("--sums", type=whole(0, 100_000), default=DRAWN)
    options = parser.parse_args(arguments)
    print("| records | reader sees | hidden | known: none, 1 to 9 | fewest values (below 10) | of sums |")
    print("|---|---|---|---|---|---|")
    for records in (hospitals(options.data), tumors(), made(300), made(1_000)):
        cube = Cube(records)
        for jobs in (*ALONE, TOGETHER):
            _print(records.name, " + ".join(jobs), bounded(cube.seen(jobs), drawn=options.sums))
        control = cube.seen(("table 1",), is_merged=False)
        _print(records.name, "control: cells below 10 withheld", bounded(control, drawn=options.sums))
    return 0


def _print(name: str, what: str, found: Bounded) -> None:
    cells = (
        f"{found.empty}, {found.small}",
        f"{found.least or ''} ({found.narrow})",
        f"{found.least_of_sums or ''} ({found.narrow_sums} of {found.sums})",
    )
    print(f"| {name} | {what} | {found.hidden} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    sys.exit(ended(main))

"""Methods on the records of four hospitals, against training alone and against pooled records.

What ends is a line in build/bench/heart-disease.jsonl; a run that was killed continues from there.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from datetime import UTC, date, datetime
from pathlib import Path

from bench.options import Parser, whole
from bench.report import figures
from research.heart_disease import words
from research.heart_disease.arms import ARMS, Arm
from research.heart_disease.book import Book
from research.heart_disease.hospitals import DATA, ROOT
from research.heart_disease.runs import RATES, Outcome, most_frequent, run

OUT = ROOT / "build" / "bench" / "heart-disease.jsonl"
PAGE = ROOT / "docs" / "heart-disease.md"
MAX_SEEDS = 50


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is not in the book yet and print the tables."""
    options = _options(arguments)
    if not options.data.is_dir():
        print(json.dumps({"skipped": f"there is no folder {options.data}"}))
        return 0
    seeds = range(1, options.seeds + 1)
    found = {
        words.USUAL: [most_frequent(ARMS[0], seed, options.data) for seed in seeds],
        **measured(Book(options.out), seeds, options.data, workers=options.workers),
    }
    if options.update:
        write_page(found, today=datetime.now(UTC).date())
    if options.json:
        outcomes = {name: list(map(asdict, each)) for name, each in found.items()}
        print(json.dumps({"outcomes": outcomes, "rows": []}))
    else:
        print(words.page(found))
    return 0


def measured(book: Book, seeds: Sequence[int], folder: Path, *, workers: int) -> dict[str, list[Outcome]]:
    """Every arm on every split; what is in the book already is not trained again."""
    missing = [(arm, seed) for seed in seeds for arm in ARMS if book.find(arm, seed, RATES) is None]
    started = time.monotonic()
    for done, (arm, outcome) in enumerate(_outcomes(missing, folder, workers), start=1):
        book.write(outcome, arm, RATES)
        _say(f"[{time.monotonic() - started:5.0f} s] {done}/{len(missing)} {arm.name} seed {outcome.seed}")
    found: dict[str, list[Outcome]] = {}
    for arm in ARMS:
        outcomes = [book.find(arm, seed, RATES) for seed in seeds]
        found[arm.name] = [one for one in outcomes if one is not None]
    return found


def write_page(found: Mapping[str, Sequence[Outcome]], *, today: date, path: Path = PAGE) -> None:
    """Put the tables on the page, with the command, the day and the machine."""
    splits, versions = len(found[words.USUAL]), figures.versions()
    text = (
        f"{words.page(found)}\n\n`python -m research.heart_disease --seeds {splits}`, {today.isoformat()}: "
        f"{figures.machine()}; Python {versions['Python']}, torch {versions['torch']}."
    )
    path.write_text(figures.replaced(path.read_text(), "heart-disease", text, path=path))


def _outcomes(
    missing: Sequence[tuple[Arm, int]], folder: Path, workers: int
) -> Iterator[tuple[Arm, Outcome]]:
    context = multiprocessing.get_context("spawn")  # torch does not survive a fork
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        futures = {pool.submit(run, arm, seed, folder): arm for arm, seed in missing}
        for future in as_completed(futures):
            yield futures[future], future.result()


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("heart_disease", __doc__, package="research")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the four files")
    parser.add_argument("--seeds", type=whole(2, MAX_SEEDS), default=10, help="splits, weights and shuffles")
    parser.add_argument("--workers", type=whole(1, 64), default=2, help="processes of one thread")
    parser.add_argument("--out", type=Path, default=OUT, help="file of the finished runs")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    parser.add_argument("--update", action="store_true", help="put the tables on docs/heart-disease.md")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())

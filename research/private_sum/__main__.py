"""Record-level noise in the sum, at every silo, at one curator, or none: `python -m research.private_sum`.

A run that ends is a line in --out; a killed measurement continues from there with the same command.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.options import Parser, whole
from bench.rows import table as table_of_rows
from crypto.errors import ChoraleError
from research.accuracy.book import Book
from research.accuracy.trials import Split
from research.accuracy.tuning import Choice, chosen
from research.accuracy.work import OutOfRuns, Workers
from research.private_sum import words
from research.private_sum.arms import ARMS, SETTINGS, SHAPES, Setting
from research.private_sum.runs import run
from research.private_sum.words import Line

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data"
OUT = ROOT / "build" / "bench" / "private-sum.jsonl"
MAX_SEEDS = 50


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 2 where the data cannot be used, 3 where runs are left."""
    options = _options(arguments)
    settings = [one for one in SETTINGS if one.data in options.only and (options.data / one.data).is_dir()]
    if not settings:
        print(json.dumps({"skipped": f"none of {', '.join(options.only)} is in {options.data}"}))
        return 0
    try:
        with Book(options.out) as book:
            workers = Workers(
                book,
                processes=options.workers,
                device="cpu",
                path=lambda _: options.data,
                say=_say,
                most=options.most,
                runs=run,
            )
            lines = [_line(one, book, workers, options) for one in settings]
    except OutOfRuns as left:
        _say(f"private_sum: {left}")
        return 3
    except ChoraleError as error:
        _say(f"private_sum: error: {error}")
        return 2
    found = words.rows(lines)
    if options.json:
        by_setting = [line.to_json() for line in lines]
        print(json.dumps({"settings": by_setting, "rows": [row.to_json() for row in found]}))
    else:
        print(f"{words.table(lines)}\n\n{table_of_rows(found)}")
    return 0


def _line(setting: Setting, book: Book, workers: Workers, options: argparse.Namespace) -> Line:
    """Rates by validation samples on seeds of their own, then the comparison. Raises OutOfRuns."""
    accuracy: dict[str, list[float]] = {}
    choices: dict[str, Choice] = {}
    for arm in options.arms:
        tuning = setting.trials(arm, tested=Split.VALIDATION, seeds=setting.tuning_seeds, rates=setting.rates)
        workers.finish(tuning)
        (choices[arm],) = chosen(tuning, book.outcome)
        seeds = range(1, options.seeds + 1)
        final = setting.trials(arm, tested=Split.TEST, seeds=seeds, rates=[choices[arm].rate])
        workers.finish(final)
        accuracy[arm] = [book.outcome(trial).final for trial in final]
    return Line(setting=setting, accuracy=accuracy, choices=choices)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("private_sum", __doc__, package="research")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of mnist, fashion_mnist and cifar10")
    parser.add_argument(
        "--only", nargs="+", choices=list(SHAPES), default=list(SHAPES), help="these data sets"
    )
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS), help="these columns")
    parser.add_argument("--seeds", type=whole(2, MAX_SEEDS), default=5, help="of the comparison")
    parser.add_argument("--workers", type=whole(1, 64), default=2, help="processes of one thread")
    parser.add_argument("--most", type=whole(1, 1_000_000), help="stop after so many new runs")
    parser.add_argument("--out", type=Path, default=OUT, help="file of the finished runs")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())

"""Accuracy of the methods and of their controls, paired by seed: `python -m research.accuracy --suite small`.

A run that ends is a line in build/bench/accuracy/<suite>.jsonl; a killed suite continues from there.
`--update` puts tables, sentences and plots on docs/evidence.md, and the figures behind them into
research/evidence.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.options import Parser, whole
from crypto.errors import ChoraleError
from research.accuracy import evidence
from research.accuracy.arms import ARMS, arms_named
from research.accuracy.book import Book
from research.accuracy.catalog import SUITES
from research.accuracy.federated import classes_sent_by_default
from research.accuracy.plots import draw
from research.accuracy.report import Report, report_of
from research.accuracy.suites import Suite
from research.accuracy.trials import Trial
from research.accuracy.tuning import chosen
from research.accuracy.work import OutOfRuns, Workers

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "build" / "bench" / "accuracy"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 2 where the data cannot be used, 3 where runs are left."""
    options = _options(arguments)
    suite = SUITES[options.suite].with_data_in(options.data)
    for missing in sorted({one.name for one in SUITES[options.suite].settings} - set(suite.names)):
        _say(f"accuracy: {missing} is left out: its data are not in {options.data}")
    try:
        with Book(options.out / f"{suite.name}.jsonl") as book:
            report = measured(suite, book, options)
    except OutOfRuns as left:
        _say(f"accuracy: {left}")
        return 3
    except ChoraleError as error:
        _say(f"accuracy: error: {error}")
        return 2
    draw(report, folder=options.out, prefix=suite.name)
    text = evidence.section(report)
    (options.out / f"{suite.name}.md").write_text(text + "\n")
    if options.update:
        evidence.update(report, root=ROOT)
    print(json.dumps(evidence.printed(report)) if options.json else text)
    return 0


def measured(suite: Suite, book: Book, options: argparse.Namespace) -> Report:
    """Tune, then compare; what is in the book already is not trained again. Raises OutOfRuns."""
    arms, workers = arms_named(options.arms), options.workers or suite.workers
    pool = Workers(
        book,
        processes=workers,
        device=options.device,
        path=lambda trial: suite.path(trial, options.data),
        say=_say,
        most=options.most,
    )
    tuning = suite.tuning(arms)
    pool.finish(tuning)
    choices = chosen(tuning, book.outcome)
    comparison = suite.comparison(arms, {(one.setting, one.arm): one.rate for one in choices})
    pool.finish(comparison)
    return report_of(
        suite,
        choices,
        tuning,
        comparison,
        book.outcome,
        workers=workers,
        rows_by_default=_rows_by_default(suite, comparison, options.data),
    )


def _rows_by_default(suite: Suite, trials: Sequence[Trial], data: Path | None) -> dict[str, float]:
    """By setting, mean over the seeds; what the methods have nothing to do with."""
    cuts = {(trial.setting, trial.seed): trial for trial in trials}
    return {
        setting.name: statistics.mean(
            classes_sent_by_default(cuts[setting.name, seed], suite.path(cuts[setting.name, seed], data))
            for seed in suite.seeds
        )
        for setting in suite.settings
    }


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("accuracy", __doc__)
    parser.add_argument("--suite", choices=sorted(SUITES), default="small", help="what to train")
    parser.add_argument("--data", type=Path, help="folder of the suite's data set; small takes none")
    parser.add_argument("--workers", type=whole(1, 64), help="processes of one thread (default: the suite's)")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), help="default: cpu, auto for paper")
    parser.add_argument("--arms", nargs="+", choices=[one.name for one in ARMS], help="only these methods")
    parser.add_argument("--most", type=whole(1, 1_000_000), help="stop after so many new runs")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the finished runs")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    parser.add_argument("--update", action="store_true", help="commit to it: docs/evidence.md and its plots")
    options = parser.parse_args(arguments)
    suite = SUITES[options.suite]
    if suite.needs_data != (options.data is not None):
        wants = "needs the folder of its data set" if suite.needs_data else "brings its own data"
        parser.error(f"--data: the suite {suite.name} {wants}")
    if not suite.with_data_in(options.data).settings:
        parser.error(f"--data: {options.data} holds no data of the suite {suite.name}")
    options.device = options.device or suite.device
    return options


if __name__ == "__main__":
    sys.exit(main())

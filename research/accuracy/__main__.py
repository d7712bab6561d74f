"""Methods and their controls on the same seeds: `python -m research.accuracy --suite digits`.

The suite paper is that of research/papers: the papers' own jobs, whole on GPUs, in small on a CPU.

A run that ends is a line in OUT/<suite>.jsonl; a killed suite continues from there. With `--update` nothing
is trained: tables and a plot of what has ended go on docs/evidence.md, the figures behind them
and the lines of their runs into research/evidence/, beside what is there; `--committed` begins with those.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.options import Parser, whole
from crypto.errors import ChoraleError
from research.accuracy.book import Book
from research.accuracy.catalog import SUITES
from research.accuracy.federated import classes_sent_by_default
from research.accuracy.page import evidence
from research.accuracy.report import report_of
from research.accuracy.suites import Suite
from research.accuracy.tuning import chosen
from research.accuracy.work import OutOfRuns, Workers
from research.papers import suite as paper

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "build" / "bench" / "accuracy"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 2 where the data cannot be used, 3 where runs are left."""
    options = _options(arguments)
    if options.suite == paper.NAME:
        return _run_papers(options)
    suite = SUITES[options.suite].with_data_in(options.data)
    for missing in sorted(set(SUITES[options.suite].names) - set(suite.names)):
        _say(f"accuracy: {missing} is left out: its data are not in {options.data}")
    try:
        with Book(options.out / f"{suite.name}.jsonl") as book:
            if options.committed or (options.update and (ROOT / evidence.runs_of(suite.name)).exists()):
                taken = book.take((ROOT / evidence.runs_of(suite.name)).read_bytes())
                _say(f"accuracy: {taken} runs taken from {evidence.runs_of(suite.name)}")
            if options.update:
                rows = _rows_by_default(suite, options.data)
                evidence.update(report_of(suite, book, rows_by_default=rows), root=ROOT)
                (ROOT / evidence.runs_of(suite.name)).write_bytes(book.packed())
            else:
                train(suite, book, options)
    except OutOfRuns as left:
        _say(f"accuracy: {left}")
        return 3
    except ChoraleError as error:
        _say(f"accuracy: error: {error}")
        return 2
    return 0


def _run_papers(options: argparse.Namespace) -> int:
    asked = paper.Options(
        out=options.out,
        data=options.data,
        device=options.device,
        workers=options.workers,
        most=options.most,
    )
    try:
        paper.run(asked, _say)
    except OutOfRuns as left:
        _say(f"accuracy: {left}")
        return 3
    except ChoraleError as error:
        _say(f"accuracy: error: {error}")
        return 2
    return 0


def train(suite: Suite, book: Book, options: argparse.Namespace) -> None:
    """The common rates, then the tuning and what it chose, then the other strengths at common rates.

    What is in the book is not trained again. Raises OutOfRuns.
    """
    pool = Workers(
        book,
        processes=options.workers,
        device=options.device,
        path=lambda trial: suite.path(trial, options.data),
        say=_say,
        most=options.most,
    )
    pool.finish(suite.at_common_rates(is_published=True))
    tuning = suite.tuning()
    pool.finish(tuning)
    pool.finish(suite.tuned({(one.setting, one.arm): one.point for one in chosen(tuning, book.outcome)}))
    pool.finish(suite.at_common_rates(is_published=False))


def _rows_by_default(suite: Suite, data: Path | None) -> dict[str, float]:
    """By setting, mean over the seeds; what the methods have nothing to do with."""
    trials = suite.tuned({(name, arm): (1.0, None) for name in suite.names for arm in suite.arms})
    cuts = {(trial.setting, trial.seed): trial for trial in trials}
    return {
        name: statistics.mean(
            classes_sent_by_default(cuts[name, seed], suite.path(cuts[name, seed], data))
            for seed in suite.seeds
        )
        for name in suite.names
        if suite.seeds
    }


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("accuracy", __doc__, package="research")
    parser.add_argument(
        "--suite", choices=sorted((*SUITES, paper.NAME)), default="digits", help="what to train"
    )
    parser.add_argument("--data", type=Path, help="folder of the data sets; digits takes none")
    parser.add_argument("--workers", type=whole(1, 64), default=1, help="processes of one thread")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="cpu", help="default: cpu")
    parser.add_argument("--most", type=whole(1, 1_000_000), help="stop after so many new runs")
    parser.add_argument(
        "--update", action="store_true", help="train nothing; write the page of what has ended"
    )
    parser.add_argument(
        "--committed", action="store_true", help="begin with the runs behind the page, from research/evidence"
    )
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the finished runs")
    options = parser.parse_args(arguments)
    if options.suite == paper.NAME:
        if options.update or options.committed:
            parser.error("--update, --committed: the papers' page is made with the site")
        if (options.device == "cpu") != (options.data is None):
            parser.error(
                "--data: paper needs the folder of its data sets with --device cuda, and none on cpu"
            )
        return options
    if options.committed and not (ROOT / evidence.runs_of(options.suite)).exists():
        parser.error(f"--committed: {evidence.runs_of(options.suite)} is not there: no run is committed yet")
    suite = SUITES[options.suite]
    if suite.needs_data != (options.data is not None):
        wants = "needs the folder of its data set" if suite.needs_data else "brings its own data"
        parser.error(f"--data: the suite {suite.name} {wants}")
    if not suite.with_data_in(options.data).settings:
        parser.error(f"--data: {options.data} holds no data of the suite {suite.name}")
    return options


if __name__ == "__main__":
    sys.exit(main())

"""The jobs of the catalog, run: `python -m research.accuracy --suite paper`.

On a CPU one job of each kind, in small and on made-up images, says whether the catalog can be run. With
`--device cuda --data FOLDER` every job whose data are in the folder runs whole, on one process a GPU. What
has ended is a line of a file, and a killed command goes on from there.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from crypto.errors import ChoraleError, ConfigError
from research.accuracy.book import Book
from research.accuracy.federated import trained
from research.accuracy.trials import Outcome, Trial
from research.accuracy.work import Workers
from research.papers.catalog import cells, kinds
from research.papers.cells import Cell, DataSet, Printed
from research.papers.rehearsal import made_up, small
from silo_agent.training.machine.torch_build import torch_build

NAME, REHEARSAL = "paper", "paper-rehearsal"
SEEDS = (1, 2, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """out: folder of the files. data: of the data sets. workers: processes on a CPU. most: new runs."""

    out: Path
    data: Path | None
    device: str
    workers: int
    most: int | None


def run(options: Options, say: Callable[[str], None]) -> None:
    """Rehearse on a CPU, else train. Raises OutOfRuns where runs are left, ConfigError where a rehearsed job
    fails or no data are there."""
    if options.device == "cpu":
        rehearse(kinds(), options, say)
    else:
        train(options, say)


def rehearse(chosen: Iterable[Cell], options: Options, say: Callable[[str], None]) -> None:
    """Those in small. Raises ConfigError that counts what failed and names the first, OutOfRuns."""
    trials = [small(cell) for cell in chosen]
    with Book(options.out / f"{REHEARSAL}.jsonl") as book:
        pool = Workers(
            book,
            processes=options.workers,
            device="cpu",
            path=lambda _: None,
            say=say,
            most=options.most,
            runs=rehearsed,
        )
        pool.finish(trials)
        failed = {trial.key: book.outcome(trial).failed for trial in trials if book.outcome(trial).failed}
    if failed:
        raise ConfigError(
            f"{len(failed)} of {len(trials)} jobs fail, the first: {next(iter(failed.values()))}"
        )


def rehearsed(trial: Trial, _: Path | None) -> Outcome:
    """Of a trial in small, on the images that are made up for it."""
    started, accuracy, failed = time.process_time(), None, ""
    try:
        accuracy = trained(trial, made_up(trial), device="cpu")
    except ChoraleError as error:
        failed = str(error)
    return Outcome(accuracy=accuracy, failed=failed, seconds=round(time.process_time() - started, 3))


def train(options: Options, say: Callable[[str], None]) -> None:
    """Every job once a seed; whole seeds one after the other. Raises OutOfRuns, ConfigError."""
    gpus = torch_build().gpus
    if not gpus:
        raise ConfigError(f"--device {options.device}: torch sees no GPU here; cpu rehearses the jobs")
    root = options.data or Path()
    sets = {cell.federation.data.key: cell.federation.data for cell in cells()}
    there = {key for key, data in sets.items() if (root / data.place).exists()}
    for key in sorted(sets.keys() - there):
        say(f"accuracy: {sets[key].name} is left out: {root / sets[key].place} is not there")
    if not there:
        raise ConfigError(f"--data: {root} holds no data of the papers")
    trials = distinct(
        cell.trial(seed) for seed in SEEDS for cell in cells() if cell.federation.data.key in there
    )
    with Book(options.out / f"{NAME}.jsonl") as book:
        pool = Workers(
            book,
            processes=1,
            device="cuda",
            path=lambda trial: root / place_of(sets, trial),
            say=say,
            most=options.most,
            gpus=gpus,
        )
        pool.finish(trials)


def place_of(sets: Mapping[str, DataSet], trial: Trial) -> str:
    """Where its data lie in the folder."""
    return sets[trial.data["name"]].place


def distinct(trials: Iterable[Trial]) -> list[Trial]:
    """Each once: tables of one paper share jobs."""
    return list({trial.key: trial for trial in trials}.values())


def ours(cell: Cell, book: Book) -> Printed | None:
    """Mean and standard deviation in percent over the seeds that have ended; None where none has."""
    trials = [cell.trial(seed) for seed in SEEDS]
    found = [100 * book.outcome(trial).final for trial in trials if book.has(trial)]
    if not found:
        return None
    spread = round(statistics.stdev(found), 2) if len(found) > 1 else None
    return Printed(mean=round(statistics.mean(found), 2), deviation=spread)

"""Runs in worker processes of one thread each, written down one by one as they end."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import partial
from multiprocessing.queues import SimpleQueue
from pathlib import Path

from research.accuracy.book import Book
from research.accuracy.federated import run
from research.accuracy.source import here
from research.accuracy.trials import Outcome, Trial

Says = Callable[[str], None]
Runs = Callable[[Trial, Path | None], Outcome]


class OutOfRuns(Exception):
    """As many new runs as were asked for have ended, and more are left."""


class Workers:
    """most: new runs before it stops; None: all that are missing. runs: what trains a trial. gpus: so many,
    one for each process; 0: whatever device says is for all of them."""

    def __init__(
        self,
        book: Book,
        *,
        processes: int,
        device: str,
        path: Callable[[Trial], Path | None],
        say: Says,
        most: int | None = None,
        runs: Runs | None = None,
        gpus: int = 0,
    ) -> None:
        self._book = book
        self._processes = gpus or processes
        self._gpus = gpus
        self._path = path
        self._say = say
        self._left = most
        self._runs: Runs = runs or partial(run, device=device)

    def finish(self, trials: Sequence[Trial]) -> None:
        """Every trial has an outcome in the book when it returns. Raises OutOfRuns."""
        missing = self._book.missing(trials)
        chosen = missing if self._left is None else missing[: self._left]
        done = len(trials) - len(missing)
        measured_by = here()
        for trial, outcome in self._outcomes(chosen):
            self._book.write(trial, replace(outcome, source=measured_by))
            done += 1
            result = outcome.failed or f"{outcome.final:.4f}"
            arm = trial.arm if trial.strength is None else f"{trial.arm} {trial.strength:g}"
            self._say(
                f"{done}/{len(trials)} {trial.tested} {trial.setting} seed {trial.seed} {arm} "
                f"rate {trial.learning_rate:g}: {result} in {outcome.seconds:.1f} s"
            )
        if self._left is not None:
            self._left -= len(chosen)
        if len(chosen) < len(missing):
            raise OutOfRuns(
                f"{len(missing) - len(chosen)} runs are left; the same command continues with them"
            )

    def _outcomes(self, trials: Sequence[Trial]) -> Iterator[tuple[Trial, Outcome]]:
        if not trials:
            return
        if self._processes == 1:
            for trial in trials:
                yield trial, self._runs(trial, self._path(trial))
            return
        context = multiprocessing.get_context("spawn")  # torch does not survive a fork
        numbers = context.SimpleQueue()
        for number in range(self._gpus):
            numbers.put(number)
        begin = partial(_take_gpu, numbers) if self._gpus else None
        pool = ProcessPoolExecutor(self._processes, mp_context=context, initializer=begin)
        try:
            futures = {pool.submit(self._runs, trial, self._path(trial)): trial for trial in trials}
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            pool.shutdown(cancel_futures=True)  # an interrupt waits for no run that has not begun


def _take_gpu(numbers: SimpleQueue[int]) -> None:
    """This process sees one GPU, which no other has; torch looks when it first computes on one."""
    os.environ["CUDA_VISIBLE_DEVICES"] = str(numbers.get())

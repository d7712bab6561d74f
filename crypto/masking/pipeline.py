"""Tasks in threads, their results in order, never more than a few ahead of who takes them."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from typing import Final, Generic, TypeVar

Result = TypeVar("Result")

MAX_WORKERS: Final = 8  # each holds a chunk and its buffers


def workers_for(tasks: int, workers: int | None = None) -> int:
    """As many as asked for, or as the cores that this process may use; no more than there are tasks."""
    if workers is None:
        workers = min(_cores(), MAX_WORKERS)
    return max(1, min(workers, tasks))


def in_order(tasks: Iterable[Callable[[], Result]], *, workers: int) -> Iterator[Result]:
    """The result of each task, in the order of the tasks. One of the workers is the caller's own thread.

    No more than `workers` tasks run or wait beside the one whose result is asked for. What a task raises
    is raised in its turn and ends the rest. Closing the iterator waits for those that run: no task
    outlives it. The threads do, and serve the next one.
    """
    if workers == 1:
        for task in tasks:
            yield task()
        return
    pool, started = _threads(workers - 1), deque[_Started[Result]]()
    try:
        for task in tasks:
            started.append(_Started(task, pool.submit(task)))
            if len(started) > workers:
                yield _first_of(started)
        while started:
            yield _first_of(started)
    finally:
        wait([each.future for each in started if not each.future.cancel()])


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    """Starting threads anew for each vector costs a tenth of masking one million words."""
    return ThreadPoolExecutor(max_workers=count, thread_name_prefix="pipeline")


class _Started(Generic[Result]):
    """A task that a thread of the pool or the caller's runs, whoever comes first."""

    def __init__(self, task: Callable[[], Result], future: Future[Result]) -> None:
        self._task = task
        self.future = future

    def run_here(self) -> None:
        """Nothing if a thread of the pool runs it or did."""
        if not self.future.cancel():
            return
        self.future = Future()
        try:
            self.future.set_result(self._task())
        except Exception as error:
            self.future.set_exception(error)


def _first_of(started: deque[_Started[Result]]) -> Result:
    """The caller works, too, instead of waiting: a thread less to start and to wake."""
    for each in started:
        if started[0].future.done():
            break
        each.run_here()
    return started.popleft().future.result()


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

"""Tasks in threads, their results in order, never more than a few ahead of who takes them."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from typing import Final, TypeVar

Result = TypeVar("Result")

MAX_WORKERS: Final = 8  # each holds a chunk and its buffers


def workers_for(tasks: int, workers: int | None = None) -> int:
    """As many as asked for, or as the cores that this process may use; no more than there are tasks."""
    if workers is None:
        has_affinity = hasattr(os, "sched_getaffinity")  # not on every system
        cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
        workers = min(cores, MAX_WORKERS)
    return max(1, min(workers, tasks))


def in_order(tasks: Iterable[Callable[[], Result]], *, workers: int) -> Iterator[Result]:
    """The result of each task, in the order of the tasks. A single worker is the caller's own thread.

    No more than `workers` tasks run or wait concurrently with the one whose result is asked for. What a task
    raises is raised in its turn and ends the rest. Closing the iterator waits for those that run: no task
    outlives it. The threads do, and serve the next one.
    """
    if workers == 1:
        for task in tasks:
            yield task()
        return
    pool, started = _threads(workers), deque[Future[Result]]()
    try:
        for task in tasks:
            started.append(pool.submit(task))
            if len(started) > workers:
                yield started.popleft().result()
        while started:
            yield started.popleft().result()
    finally:
        wait([future for future in started if not future.cancel()])


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    """Starting threads for each vector costs a tenth of masking one million words."""
    return ThreadPoolExecutor(max_workers=count, thread_name_prefix="pipeline")

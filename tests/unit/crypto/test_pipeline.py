from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from crypto.masking import pipeline
from crypto.masking.pipeline import in_order, workers_for

PATIENCE_SECONDS = 30


def test_results_come_in_the_order_of_the_tasks() -> None:
    """The first waits for the last of those that may run concurrently, and is still the first."""
    later = threading.Event()

    def first() -> int:
        assert later.wait(PATIENCE_SECONDS)
        return 0

    def third() -> int:
        later.set()
        return 2

    assert list(in_order([first, lambda: 1, third, lambda: 3], workers=2)) == [0, 1, 2, 3]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_no_more_tasks_are_taken_than_workers_and_one(workers: int) -> None:
    taken: list[int] = []

    def tasks() -> Iterator[Callable[[], int]]:
        for index in range(10):
            taken.append(index)
            yield partial(int, index)

    results = in_order(tasks(), workers=workers)
    assert taken == []  # nothing runs before a result is asked for
    for index in range(10):
        assert next(results) == index
        most = index + 1 if workers == 1 else index + workers + 1
        assert len(taken) == min(10, most)


def test_one_worker_is_the_caller_itself() -> None:
    assert list(in_order([threading.get_ident] * 2, workers=1)) == [threading.get_ident()] * 2


def test_workers_run_side_by_side() -> None:
    together = threading.Barrier(3)

    def task() -> int:
        together.wait(PATIENCE_SECONDS)
        return threading.get_ident()

    assert len(set(in_order([task] * 3, workers=3))) == 3


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_an_error_is_raised_in_its_turn_and_ends_the_rest(workers: int) -> None:
    ran: list[int] = []

    def task(index: int) -> int:
        ran.append(index)
        if index == 1:
            raise LookupError("the second")
        return index

    results = in_order([partial(task, index) for index in range(100)], workers=workers)
    assert next(results) == 0
    with pytest.raises(LookupError, match="the second"):
        next(results)
    assert next(results, "over") == "over"
    assert len(ran) <= 1 + workers + 1


def test_closing_early_starts_nothing_more_and_waits_for_what_runs() -> None:
    started, begun, ended = threading.Event(), [], []

    def task(index: int) -> None:
        begun.append(index)
        if index:
            started.set()
            time.sleep(0.05)  # closing comes before its end
        ended.append(index)

    results = in_order([partial(task, index) for index in range(100)], workers=2)
    next(results)
    assert started.wait(PATIENCE_SECONDS)
    results.close()  # type: ignore[attr-defined]
    assert sorted(ended) == sorted(begun)
    assert len(begun) <= 3


def test_threads_serve_one_call_after_the_other() -> None:
    calls = [list(in_order([threading.get_ident] * 9, workers=3)) for _ in range(20)]
    assert len({ident for idents in calls for ident in idents}) <= 3


def test_workers_are_the_cores_of_the_process_but_never_more_than_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(5)), raising=False)
    assert workers_for(100) == 5
    assert workers_for(3) == 3
    assert workers_for(0) == 1
    assert workers_for(100, 2) == 2
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(500)), raising=False)
    assert workers_for(1000) == pipeline.MAX_WORKERS
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert workers_for(1000) == 1

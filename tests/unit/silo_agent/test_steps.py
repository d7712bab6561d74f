"""The steps of the global state on disk, and the stop that follows one that is too long."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from chorale.transport.wire import PhaseKey
from crypto.errors import Refusal
from silo_agent.disclosure.ledger.steps import Steps
from tests.unit.silo_agent.reveal_book import Book, refused

OWN = {"model/a": 1.0, "method/control": 2.0}


class StepBook(Book):
    def steps(self, data_set: str = "data", **policy: float) -> Steps:
        return self.ledger.steps(policy=self.policy.model_copy(update=policy), data_set=data_set)

    def note(
        self, steps: Mapping[str, float], *, round: int = 1, phase: str = "train", ratio: float = 3.0
    ) -> list[str]:
        key = PhaseKey(job_digest=self.job.digest, round=round, phase=phase, attempt=1)
        return self.steps(max_step_ratio=ratio).note(key, steps=steps, own=OWN)


@pytest.fixture
def book(tmp_path: Path) -> Iterator[StepBook]:
    opened = StepBook(tmp_path)
    yield opened
    opened.ledger.close()


def test_a_step_that_is_too_long_stops_the_data_set_until_the_job_is_approved_again(book: StepBook) -> None:
    assert book.note({"model/a": 3.0, "method/control": 6.0}) == []
    book.steps().check_runs()
    assert book.note({"model/a": 1.0, "method/control": 6.1}, round=2) == ["method/control"]
    book.reopen()
    job_id = book.job.id
    why = f"the model of job {job_id} moved too far .* silo approve --config <this silo's file> {job_id}"
    refused(Refusal.JOB_NOT_APPROVED, why, lambda: book.steps().check_runs())
    book.steps("other-data").check_runs()
    book.ledger.decisions().approve(book.other_job.digest, by="ann")
    refused(Refusal.JOB_NOT_APPROVED, why, lambda: book.steps().check_runs())
    book.ledger.decisions().approve(book.ledger.job(job_id).job_digest, by="ann")
    book.steps().check_runs()


def test_totals_last_through_a_restart(book: StepBook) -> None:
    """Each step within the ratio of this round; all of them together, not."""
    assert book.note({"model/a": 3.0}) == []
    book.reopen()
    assert book.note({"model/a": 3.0}, round=2) == []
    book.reopen()
    assert book.note({"model/a": 2.0}, round=3, ratio=2.0) == ["model/a"]


def test_a_step_without_one_of_ones_own_is_judged_with_the_next(book: StepBook) -> None:
    unknown = {"model/a": math.nan}
    key = PhaseKey(job_digest=book.job.digest, round=1, phase="train", attempt=1)
    steps = book.steps(max_step_ratio=3.0)
    assert steps.note(key, steps={"model/a": 2.5}, own=unknown) == []
    assert book.note({"model/a": 0.6}, round=2) == ["model/a"]  # 3.1 together, beside 1.0 of its own
    assert book.note({"model/a": 0.4}, round=3) == []  # the control


def test_an_approval_compares_from_there_on(book: StepBook) -> None:
    assert book.note({"model/a": 100.0}) == ["model/a"]
    book.ledger.decisions().approve(book.job.digest, by="ann")
    assert book.note({"model/a": 3.0}, round=2) == []


def test_a_phase_is_added_once(book: StepBook) -> None:
    assert book.note({"model/a": 3.0}) == []
    for _ in range(5):
        assert book.note({"model/a": 300.0}) == []  # told again after a restart
    assert book.note({"model/a": 3.0}, round=2) == []
    assert book.note({"model/a": 300.0}, phase="prototypes") == ["model/a"]


def test_what_has_no_own_length_is_not_compared(book: StepBook) -> None:
    assert book.note({"method/soft_labels": 1e9, "model/a": 1.0}) == []

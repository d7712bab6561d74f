"""Which analyses a data set answers, and over which silos and records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chorale.job import Job
from crypto.errors import Refusal
from silo_agent.disclosure.ledger.ledger import RecoveredCharge
from simulation.engine import unsigned_job
from strategies.analysis.method import COUNTS, FIRST_STATE, KINDS, VALUES
from tests.support.described import AGE, SEX, analysis
from tests.unit.silo_agent.reveal_book import FIVE, FULL, NAMES, Book, refused

FIRST = {"round": 0, "phase": f"{COUNTS}.0"}


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Book]:
    opened = Book(tmp_path)
    yield opened
    opened.ledger.close()


def analysis_in(book: Book, nonce: str = "4") -> Job:
    spec = analysis(AGE, SEX, group="sex", federation="test", silos=list(NAMES), nonce=nonce * 32)
    unsigned = unsigned_job(spec, FIRST_STATE)
    job = Job(spec=unsigned.spec, signed=unsigned.signed, operator="olga")
    book.ledger.record_job(job, is_approved=True)
    return job


def test_values_are_summed_over_the_silos_of_the_counts(book: Book) -> None:
    job = analysis_in(book)
    book.reveal(FIVE, job_digest=job.digest, **FIRST)
    book.reopen()
    for silos in (FULL, FIVE[:4]):
        refused(
            Refusal.OVERLAPPING_COHORT,
            "over other silos",
            lambda silos=silos: book.sign(silos, job_digest=job.digest, round=0, phase=f"{VALUES}.0"),
        )
    book.reveal(FIVE, job_digest=job.digest, round=0, phase=f"{VALUES}.0", attempt=2)


def test_a_second_analysis_is_refused_also_where_the_first_was_only_signed(book: Book) -> None:
    first, second = analysis_in(book), analysis_in(book, "5")
    book.reveals.check_attempt(book.terms(job_digest=second.digest, **FIRST))  # both may begin
    book.sign(FULL, job_digest=first.digest, **FIRST)
    terms = book.terms(job_digest=second.digest, **FIRST)
    refused(Refusal.POLICY, "at most 1", lambda: book.reveals.check_attempt(terms))
    refused(Refusal.POLICY, "at most 1", lambda: book.sign(FULL, job_digest=second.digest, **FIRST))
    book.sign(FULL, job_digest=second.digest, **FIRST, reveals=book.reveals_of("other-data"))


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_columns_of_a_training_are_not_summed_over_nearly_the_silos_of_an_analysis(
    book: Book, kind: str
) -> None:
    """Both count the records of a category: over five silos and over six they differ by one silo's."""
    of_analysis = {"round": 0, "phase": f"{kind}.0", "job_digest": analysis_in(book).digest}
    moments = {"round": 0, "phase": "column-moments.0"}
    book.reveal(FIVE, **of_analysis)
    refused(Refusal.OVERLAPPING_COHORT, "nearly the same", lambda: book.sign(FULL, **moments))
    book.reveal(FIVE, **moments, attempt=2)
    book.reveal(FULL, round=1)  # of a model there may be


def test_an_analysis_is_not_summed_over_nearly_the_silos_of_columns_of_a_training(book: Book) -> None:
    job = analysis_in(book)
    book.reveal(FULL, round=0, phase="column-moments.0")
    refused(
        Refusal.OVERLAPPING_COHORT,
        "nearly the same",
        lambda: book.sign(FIVE, job_digest=job.digest, **FIRST),
    )
    book.reveal(FULL, job_digest=job.digest, **FIRST, attempt=2)


def test_an_analysis_is_recovered_as_often_as_the_ledger_is_put_back(book: Book) -> None:
    """The second time its note was there already, and the recovery ended in a crash."""
    job, later = analysis_in(book), analysis_in(book, "5")

    def recover(*accounts: str) -> None:
        charge = RecoveredCharge(
            job_digest=job.digest, spec=job.spec, policy=book.policy, accounts=accounts, releases=None
        )
        book.ledger.recover([charge])

    recover("data")
    recover("data")
    recover("other-data", "data")
    for data_set in ("data", "other-data"):
        reveals = book.reveals_of(data_set)
        refused(Refusal.POLICY, "at most 1", lambda reveals=reveals: reveals.check_analysis(later.digest))
    book.reveals_of("a third").check_analysis(later.digest)

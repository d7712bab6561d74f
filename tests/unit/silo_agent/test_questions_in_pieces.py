"""A reader who asks a data set in many analyses, each of which is harmless by itself.

By default one is answered; where the policy allows 1,000, those that cut a column alike. Every attack
succeeds where silos do not compare how a column is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from crypto.errors import PolicyRefusal
from silo_agent.disclosure.ledger import analyses
from silo_agent.disclosure.policy.analysis_policy import AnalysisPolicy
from simulation.engine import unsigned_job
from strategies.analysis.counts import COUNTS, PART_COUNTS
from strategies.analysis.method import FIRST_STATE
from strategies.analysis.partition import Partition, Tables
from strategies.base import Array
from tests.support.analysis_records import part_of, published
from tests.support.described import analysis
from tests.unit.silo_agent.reveal_book import FULL, NAMES, Book

LOW, HIGH = 18.0, 110.0
MANY = 1_000


@dataclass(kw_only=True)
class Reader:
    """most: analyses that the policy allows. compares: whether silos compare cuts. asked, told: how many."""

    book: Book
    most: int
    compares: bool
    value_N: Array
    asked: int = 0
    told: int = 0

    def counts(self, *cuts: float) -> Array | None:
        """Between LOW, the cuts and HIGH, as results show them; None where a silo refuses."""
        self.asked += 1
        column = {"name": "age", "edges": [LOW, *cuts, HIGH]}
        spec = analysis(column, federation="test", silos=list(NAMES), nonce=f"{self.asked:032x}")
        job = unsigned_job(spec, FIRST_STATE)
        self.book.ledger.record_job(job, is_approved=True)
        reveals = self.book.reveals_of("data", analyses=AnalysisPolicy(most=self.most))
        of = {"job_digest": job.digest, "round": 0, "phase": f"{COUNTS}.0"}
        try:
            self.book.reveal(FULL, reveals=reveals, **of)
        except PolicyRefusal:
            return None
        self.told += 1
        partition = Partition(parts=len(cuts) + 1, edges=(LOW, *cuts, HIGH))
        tables = Tables(partitions=(partition,), group=None, min_cell=10)
        cells = np.bincount(part_of(partition, self.value_N), minlength=partition.size)
        return published(tables, cells)[f"{PART_COUNTS}0"]


@pytest.fixture(params=[(1, True), (MANY, True), (MANY, False)], ids=["default", "many", "control"])
def reader(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Reader]:
    book = Book(tmp_path)
    value_N = np.random.default_rng(41).normal(58, 9, 500).clip(LOW, HIGH).round(1)
    most, compares = request.param
    if not compares:
        monkeypatch.setattr(analyses, "_cuts", lambda connection, job_digest: {})
    yield Reader(book=book, most=most, compares=compares, value_N=value_N)
    book.ledger.close()


def check(reader: Reader, attack: Callable[[Reader], bool]) -> None:
    """That it succeeds where silos answer all, and that they answer one analysis by default."""
    assert attack(reader) != reader.compares
    if reader.most == 1:
        assert reader.told == 1
    else:
        assert (reader.told == reader.asked) != reader.compares


def test_a_small_cell_is_not_asked_in_two_pieces(reader: Reader) -> None:
    truth = np.count_nonzero((reader.value_N >= 50.0) & (reader.value_N < 50.2))
    assert 0 < truth < 10

    def attack(reader: Reader) -> bool:
        first, second = reader.counts(50.0), reader.counts(50.2)
        return first is not None and second is not None and second[0] - first[0] == truth

    check(reader, attack)


def test_a_quantile_is_not_found_by_bisection(reader: Reader) -> None:
    """It would be a record's value."""
    truth = float(np.sort(reader.value_N)[249])

    def attack(reader: Reader) -> bool:
        low, high = LOW, HIGH
        while high - low > 0.05:
            middle = (low + high) / 2
            found = reader.counts(middle)
            if found is None:
                return False
            low, high = (low, middle) if found[0] >= 250 else (middle, high)
        return low <= truth <= high

    check(reader, attack)


def test_a_thousand_questions_solve_for_no_cell(reader: Reader) -> None:
    """Cells of half a year, by least squares from as many tables of four parts."""
    edges = np.arange(50.0, 60.5, 0.5)
    truth = np.bincount(np.searchsorted(edges, reader.value_N, side="right"), minlength=len(edges) + 1)
    assert 0 < truth.min() < 10
    rng = np.random.default_rng(1)

    def attack(reader: Reader) -> bool:
        rows, counts = [], []
        while reader.asked < MANY:
            cuts = np.sort(rng.choice(edges, 3, replace=False))
            found = reader.counts(*cuts.tolist())
            if found is None or len(found) < 4:
                continue
            part_of_cell = np.searchsorted(cuts, np.append(LOW, edges), side="right")
            rows += [part_of_cell == part for part in range(4)]
            counts += found.tolist()
            if reader.asked % 50 == 0 and np.linalg.matrix_rank(np.array(rows)) == len(truth):
                break
        if np.linalg.matrix_rank(np.array(rows)) < len(truth):
            return False
        solved, *_ = np.linalg.lstsq(np.array(rows, float), np.array(counts, float))
        return bool((solved.round() == truth).all())

    check(reader, attack)

"""After any jobs, crashes, a snapshot and a recovery the ledger holds no less than what has left."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from chorale.job import Job
from chorale.privacy.job_releases import JobReleases
from chorale.privacy.releases import Release, releases_from_json
from chorale.spec.state import state_to_bytes
from chorale.transport.wire import PhaseKey
from cli.silo.recovery import at_most_released
from silo_agent.disclosure.ledger.ledger import RecoveredCharge
from silo_agent.disclosure.ledger.standing import check_not_put_back
from tests.unit.silo_agent.privacy_book import MEMBERS, STATE, Book, private_job

NOISY = {"sums": {"clip_norm": 0.5, "noise_multiplier": 40.0}, "statistics_noise_multiplier": 80.0}
ROUNDS = 3


def phases_of(job: Job) -> list[tuple[int, str]]:
    """Every phase that a job of few rounds comes to, in order."""
    opening = [(0, f"{kind}.0") for kind in job.spec.method.opening]
    rounds = [(each, kind) for each in range(1, ROUNDS + 1) for kind in job.spec.method.round_phases]
    return [*opening, *rounds, *((ROUNDS, f"{kind}.0") for kind in job.spec.method.closing)]


class Lost:
    """The truth: everything that left, by job, whatever became of the ledger."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self.releases: dict[bytes, Counter[Release]] = {}

    def send(self, job: Job, phase: tuple[int, str]) -> None:
        round, name = phase
        key = PhaseKey(job_digest=job.digest, round=round, phase=name, attempt=1)
        self.book.budget.reserve(job, key, STATE, members=MEMBERS).spend()
        sent = self.releases.setdefault(job.digest, Counter())
        sent.update(
            JobReleases(job.spec, STATE, colluders=self.book.policy.colluders(job.spec)).cost(
                key.kind, MEMBERS
            )
        )


def held(book: Book) -> Mapping[bytes, Counter[Release]]:
    """By job, read with plain SQL."""
    found: dict[bytes, Counter[Release]] = {}
    with book.ledger._database.transaction() as connection:
        rows = connection.execute(
            "SELECT job_digest, releases FROM releases JOIN costs ON digest = cost_digest"
            " WHERE status = 'spent'"
        ).fetchall()
    for digest, text in rows:
        found.setdefault(digest, Counter()).update(releases_from_json(text))
    return found


def lived(folder: Path, chance: random.Random) -> tuple[Book, Lost, list[Job], int]:
    """A ledger that was put back, what left, the jobs that may have run, and starts since the snapshot."""
    book = Book(folder, epsilon=8.0)
    lost = Lost(book)
    jobs = [private_job(folder, NOISY, nonce=each, rounds=ROUNDS) for each in range(2)]
    to_come = {job.digest: phases_of(job) for job in jobs}
    last: dict[bytes, tuple[int, str]] = {}
    snapshot, restarts, steps = chance.randrange(8), 0, chance.randrange(8, 16)
    for step in range(steps):
        if step == snapshot:
            book.crash()
            shutil.copy(folder / "ledger.sqlite", folder / "copy")
            restarts = 0
        job = chance.choice(jobs)
        if chance.random() < 0.3 and last:
            book.crash()
            restarts += 1
            for again in jobs:  # a crash may hit each job in the phase that it is in, after its input left
                if again.digest in last and chance.random() < 0.7:
                    lost.send(again, last[again.digest])
        elif to_come[job.digest]:
            last[job.digest] = to_come[job.digest].pop(0)
            lost.send(job, last[job.digest])
    book.ledger.close()
    for path in folder.glob("ledger.sqlite*"):
        path.unlink()
    shutil.copy(folder / "copy", folder / "ledger.sqlite")
    book.crash()
    return book, lost, jobs, restarts


@pytest.mark.parametrize("seed", range(6))
def test_recovery_is_never_below_what_left(tmp_path: Path, seed: int) -> None:
    book, lost, jobs, restarts = lived(tmp_path, random.Random(seed))
    weights = {str(job.spec.initial_state): state_to_bytes(STATE) for job in jobs}
    colluders = book.policy.colluders(jobs[0].spec)
    book.ledger.recover(
        [
            RecoveredCharge(
                job_digest=job.digest,
                spec=job.spec,
                policy=book.policy,
                accounts=("data",),
                releases=at_most_released(job.digest, job.spec, weights, restarts, colluders),
            )
            for job in jobs
        ]
    )
    after = held(book)
    for digest, releases in lost.releases.items():
        assert releases <= after[digest]
    with book.ledger._database.transaction() as connection:
        check_not_put_back(connection)
    assert book.balance.spent > 0.0
    book.ledger.close()


def test_a_plan_of_500_rounds_is_charged_so_that_the_ledger_can_be_read(tmp_path: Path) -> None:
    # it was one text of more bytes than are read, and the agent did not start again
    book, job = Book(tmp_path), private_job(tmp_path, NOISY, rounds=500)
    weights, colluders = {str(job.spec.initial_state): state_to_bytes(STATE)}, book.policy.colluders(job.spec)
    plan = at_most_released(job.digest, job.spec, weights, 0, colluders)
    charge = RecoveredCharge(
        job_digest=job.digest,
        spec=job.spec,
        policy=book.policy,
        accounts=("data",),
        releases=plan,
    )
    book.ledger.recover([charge])
    book.crash()
    assert held(book)[job.digest] == Counter(plan)
    assert book.balance.spent > 5.0
    book.ledger.close()


def test_without_a_recovery_a_snapshot_hides_what_left(tmp_path: Path) -> None:
    # the control of the test above
    hidden = 0
    for seed in range(6):
        folder = tmp_path / str(seed)
        folder.mkdir()
        book, lost, _, _ = lived(folder, random.Random(seed))
        after = held(book)
        hidden += any(
            not releases <= after.get(digest, Counter()) for digest, releases in lost.releases.items()
        )
        book.ledger.close()
    assert hidden == 6

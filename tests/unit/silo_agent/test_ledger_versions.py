"""A ledger that an earlier version wrote: nothing that it holds counts less today."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crypto.errors import ConfigError, PolicyRefusal, Refusal
from crypto.session.reveal import PendingReveal
from silo_agent.ledger.costs import BudgetBalance
from silo_agent.ledger.ledger import REVEALED_EVENT, SPENT_EVENT, Ledger
from silo_agent.ledger.reveals import DIFFERENCED_KINDS
from silo_agent.metrics import phase_label
from tests.support.agents import Hub, make_members
from tests.support.old_files import VERSION_0, restore, schema
from tests.unit.silo_agent.privacy_book import policy
from tests.unit.silo_agent.reveal_book import FIVE, FULL, Book, refused

AUDIT = VERSION_0 / "audit.jsonl"
LAST_FIVE = FULL[1:]


class OldBook(Book):
    """The ledger of version 0, with a job of today added to its own. old: its job with most reveals.
    tuned: the one that revealed personal.0."""

    def __init__(self, folder: Path) -> None:
        self.answers = restore("ledger", folder / "ledger.sqlite")
        super().__init__(folder)
        self.old = bytes.fromhex(self.answers["job"])
        jobs = {phase: job for job, _, phase, *_ in self.answers["recorded"]}
        self.tuned = bytes.fromhex(jobs["personal.0"])

    def limited(self, max_cohort_changes: int) -> dict[str, Any]:
        """Where round 5 of the old job is signed, the next that it left."""
        reveals = self.reveals_of("data", max_cohort_changes=max_cohort_changes)
        return {"reveals": reveals, "job_digest": self.old, "round": 5}


FILTERED = 1.1  # what was told chose the best order afterwards; a filter does not


@pytest.fixture
def book(tmp_path: Path) -> Iterator[OldBook]:
    opened = OldBook(tmp_path)
    yield opened
    opened.ledger.close()


def test_a_file_of_before_takes_the_delta_of_the_first_start(book: OldBook) -> None:
    def open_with(delta: float) -> None:
        book.ledger.budget(policy=policy(delta=delta), data_set="data").open_account()

    open_with(1e-6)
    open_with(1e-6)
    with pytest.raises(ConfigError, match="expected that of account data, 1e-06, .*, got 1e-05"):
        open_with(1e-5)


def figures(balance: BudgetBalance) -> dict[str, Any]:
    jobs = [[job.job_digest.hex(), job.epsilon, job.inputs, job.unnoised] for job in balance.jobs]
    return {"spent": balance.spent, "held": balance.held, "unnoised": balance.unnoised, "jobs": jobs}


def test_a_file_of_before_gets_the_schema_of_a_new_one(book: OldBook, tmp_path: Path) -> None:
    Ledger(tmp_path / "new.sqlite").close()
    assert schema(book.path) == schema(tmp_path / "new.sqlite")
    tables = {"jobs", "phases", "reveals", "signed_sets", "roster_marks", "costs", "releases", "accounts"}
    tables |= {"known_states", "next_states", "sum_checks", "bad_sums"}
    tables |= {"cohort_change_grants", "state_uses", "abandoned_phases"}
    tables |= {"array_steps", "compared_phases", "stopped_data_sets"}
    tables |= {"data_refusals", "data_refusal_grants"}
    tables |= {"listed_certificates", "departures"}
    tables |= {"unit_marks", "unit_keys", "plans", "delta_changes", "contents"}
    tables |= {"own_heads", "ledger_key", "peer_statements", "persons_decisions"}
    assert set(schema(book.path)) == {"version"} | tables
    assert schema(book.path)["version"] == (23,)


def test_jobs_rosters_and_spend_are_as_they_were(tmp_path: Path) -> None:
    answers = restore("ledger", tmp_path / "ledger.sqlite")
    ledger = Ledger(tmp_path / "ledger.sqlite")
    jobs = [
        [job.job_digest.hex(), job.name, job.operator, job.rounds, job.decision, job.offered.isoformat()]
        for job in ledger.jobs()
    ]
    assert jobs == answers["jobs"]
    assert ledger.roster_version == answers["roster_version"]
    for data_set, expected in answers["balances"].items():
        found = figures(ledger.budget(policy=policy(epsilon=6.0), data_set=data_set).balance())
        for job, expected_job in zip(found.pop("jobs"), expected.pop("jobs"), strict=True):
            assert (job[0], *job[2:]) == (expected_job[0], *expected_job[2:])
            assert expected_job[1] <= job[1] <= FILTERED * expected_job[1]
        assert found.pop("unnoised") == expected.pop("unnoised")
        for name, cost in expected.items():
            assert cost <= found[name] <= FILTERED * cost
    ledger.close()


def test_reveals_are_as_they_were(book: OldBook) -> None:
    for job, round, phase, answer, may_have_left, is_revealed, roster in book.answers["recorded"]:
        key = bytes.fromhex(job), round, phase
        recorded = book.reveals.recorded(*key)
        assert (recorded is None) is (answer is None)
        if recorded is not None:
            assert recorded == (PendingReveal.from_bytes(bytes.fromhex(answer)), may_have_left)
        assert book.reveals.is_revealed(*key, silo="silo-0") is is_revealed
        assert book.reveals.bound_roster(*key) == roster


def test_the_audit_log_agrees_still_under_the_names_that_phases_had(book: OldBook) -> None:
    assert book.ledger.check(AUDIT, REVEALED_EVENT) == book.answers["revealed_told"] == 6
    assert book.ledger.check(AUDIT, SPENT_EVENT) == book.answers["spends_told"] == 4
    assert book.ledger.untold(AUDIT, REVEALED_EVENT) == book.answers["untold_reveals"]
    assert book.ledger.untold(AUDIT, SPENT_EVENT) == book.answers["untold_spends"]


def test_every_kind_of_a_signed_set_is_one_of_today(book: OldBook) -> None:
    # a set under a kind that no phase has any more would be compared with none
    with book.ledger._database.transaction() as connection:
        kinds = {row["kind"] for row in connection.execute("SELECT kind FROM signed_sets")}
    assert {phase_label(kind) for kind in kinds} == kinds
    assert len(kinds) == 4


@pytest.mark.parametrize("kind", sorted(DIFFERENCED_KINDS - {"calibrate"}))  # the file has none of these
def test_a_statistic_signed_under_another_name_counts_for_the_jobs_of_today(book: OldBook, kind: str) -> None:
    where = {"phase": f"{kind}.0", "round": 0}
    refused(Refusal.OVERLAPPING_COHORT, "nearly the same", lambda: book.sign(FIVE, **where))
    book.sign(FULL, **where, attempt=2)


def test_the_old_enrollment_is_an_answer_to_one(book: OldBook) -> None:
    assert book.reveals.has_answered(book.old, "enrollment")
    assert not book.reveals.has_answered(book.job.digest, "enrollment")


def test_a_job_has_as_many_changes_of_its_cohort_behind_it_as_it_had(book: OldBook) -> None:
    """Three sets counted, one of a signed set that is erased, and two in attempts at one phase."""
    refused(
        Refusal.OVERLAPPING_COHORT,
        "more than 3 times",
        lambda: book.sign(LAST_FIVE, **book.limited(3)),
    )
    book.sign(LAST_FIVE, **book.limited(4))


def test_signed_sets_keep_their_order(book: OldBook) -> None:
    # the sum just before is round 4's, of two attempts; after round 1's the same silos would be free
    refused(Refusal.OVERLAPPING_COHORT, "more than 3 times", lambda: book.sign(FULL, **book.limited(3)))


def test_a_phase_that_was_revealed_stays_so(book: OldBook) -> None:
    again = book.terms(job_digest=book.old, round=5, attempt=2)
    book.reveals.begin_attempt(again)
    for round, phase in ((0, "presence.0"), (1, "train"), (3, "train")):
        terms = book.terms(job_digest=book.old, round=round, phase=phase, attempt=3)
        refused(
            Refusal.ALREADY_REVEALED, "revealed before", lambda terms=terms: book.reveals.begin_attempt(terms)
        )


def test_a_phase_that_was_revealed_under_another_name_stays_so(book: OldBook) -> None:
    # of the same job, or a coordinator would get a second sum of each of these after an upgrade
    terms = book.terms(job_digest=book.tuned, round=5, phase="fine-tune.0", attempt=2)
    for act in (
        lambda: book.reveals.check_attempt(terms),
        lambda: book.reveals.begin_attempt(terms),
        lambda: book.reveals.check_reveal(terms, FULL),
    ):
        refused(Refusal.ALREADY_REVEALED, "revealed before", act)
    book.sign(FULL, job_digest=book.tuned, round=5, phase="fine-tune.1")


def test_an_answer_pending_under_another_name_is_erased_by_the_next_attempt(book: OldBook) -> None:
    with book.ledger._database.transaction() as connection:
        connection.execute("UPDATE reveals SET status = 'pending' WHERE phase = 'personal.0'")
    assert book.reveals.recorded(book.tuned, 5, "personal.0") is not None
    book.reveals.begin_attempt(book.terms(job_digest=book.tuned, round=5, phase="fine-tune.0", attempt=2))
    assert book.reveals.recorded(book.tuned, 5, "personal.0") is None


def test_a_pending_answer_may_still_leave(book: OldBook) -> None:
    recorded = book.reveals.recorded(book.old, 4, "train")
    assert recorded is not None
    book.reveals.mark_revealed(recorded[0])
    assert book.announced == [recorded[0]]
    assert book.reveals.is_revealed(book.old, 4, "train", silo="silo-0")


def test_a_reservation_of_a_dead_process_is_given_back_and_its_spend_stays(book: OldBook) -> None:
    budget = book.ledger.budget(policy=policy(epsilon=6.0), data_set="data")
    assert budget.release_dead() == 1
    balance = budget.balance()
    expected = book.answers["balances"]["data"]["spent"]
    assert balance.held == balance.spent
    assert expected <= balance.spent <= FILTERED * expected


def test_rosters_go_on_from_the_newest_of_before(book: OldBook) -> None:
    members = make_members(6)
    with pytest.raises(PolicyRefusal, match="version 8 or newer"):
        book.ledger.accept_roster(members.roster(version=7), authority=members.authority, lowest_version=1)
    book.ledger.accept_roster(members.roster(version=9), authority=members.authority, lowest_version=1)
    assert book.ledger.roster_version == 9


def test_decisions_stay(book: OldBook) -> None:
    offered = Hub(book.folder, silos=6, nonce="9" * 32).job
    assert book.ledger.record_job(offered, is_approved=False)[1]
    assert {job.decision for job in book.ledger.jobs()} == {"approved", "offered", "rejected", "suspended"}

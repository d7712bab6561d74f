"""What the ledger remembers, through restarts and with a concurrent writer."""

from __future__ import annotations

import dataclasses
import stat
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from chorale.runtime import audit
from chorale.runtime.audit import AuditLog
from crypto.errors import ConfigError, PolicyRefusal, Refusal
from crypto.session.cohort import CohortRule
from silo_agent.disclosure.ledger import reveals
from silo_agent.disclosure.ledger.audit_trail import REVEALED_EVENT
from silo_agent.disclosure.ledger.decisions import Grants
from silo_agent.disclosure.ledger.ledger import Ledger
from silo_agent.disclosure.ledger.reveals import Decision
from silo_agent.disclosure.ledger.signed_sets import DIFFERENCED_KINDS
from tests.support.agents import Hub, make_members
from tests.support.writers import at_once, outcome_of
from tests.unit.silo_agent.reveal_book import FIVE, FULL, SECRET, Book, make_pending, refused


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Book]:
    opened = Book(tmp_path)
    yield opened
    opened.ledger.close()


# attempts


def test_a_job_that_nobody_approved_gets_no_attempt(book: Book) -> None:
    terms = book.terms(job_digest=bytes(32))
    refused(Refusal.JOB_NOT_APPROVED, "not approved", lambda: book.reveals.begin_attempt(terms))
    book.ledger.decisions().reject(book.job.digest, by="ann", reason="not this one")
    refused(Refusal.JOB_NOT_APPROVED, "not approved", lambda: book.reveals.begin_attempt(book.terms()))


def test_rounds_neither_go_back_nor_pass_the_jobs_number(book: Book) -> None:
    book.reveals.begin_attempt(book.terms(round=3))
    book.reopen()
    refused(Refusal.STAGE, "round 3 was begun", lambda: book.reveals.begin_attempt(book.terms(round=2)))
    refused(Refusal.TERMS, "ends with round 5", lambda: book.reveals.begin_attempt(book.terms(round=6)))
    book.reveals.begin_attempt(book.terms(round=5))


def test_attempts_end_with_the_jobs_number(book: Book) -> None:
    book.reveals.begin_attempt(book.terms(attempt=5))
    refused(
        Refusal.TERMS, "attempt 6 of at most 5", lambda: book.reveals.begin_attempt(book.terms(attempt=6))
    )


def test_a_round_keeps_the_roster_of_its_first_advert(book: Book) -> None:
    book.reveals.begin_attempt(book.terms())
    book.reopen()
    assert book.reveals.bound_roster(book.job.digest, 1, "train") == 7
    later = book.terms(roster_version=8, roster_digest=b"R" * 32, attempt=2)
    refused(Refusal.ROSTER, "roster version 7", lambda: book.reveals.begin_attempt(later))
    other_phase = dataclasses.replace(later, phase="prototypes")
    refused(Refusal.ROSTER, "roster version 7", lambda: book.reveals.begin_attempt(other_phase))
    book.reveals.begin_attempt(dataclasses.replace(later, phase="enrollment.1"))  # outside rounds
    book.reveals.begin_attempt(dataclasses.replace(later, round=2))


def test_a_phase_keeps_the_state_of_its_first_advert(book: Book) -> None:
    book.reveals.begin_attempt(book.terms())
    book.reopen()
    flipped = book.terms(attempt=2, state_digest=b"t" + b"s" * 31)
    refused(Refusal.STATE, "another global state", lambda: book.reveals.begin_attempt(flipped))
    refused(Refusal.STATE, "another global state", lambda: book.reveals.check_attempt(flipped))


def test_a_check_alone_binds_nothing(book: Book) -> None:
    book.reveals.check_attempt(book.terms())
    assert book.reveals.bound_roster(book.job.digest, 1, "train") is None
    book.reveals.begin_attempt(book.terms(state_digest=b"t" * 32))


# the one answer


def test_a_signed_answer_survives_a_restart_pending_then_revealed(book: Book) -> None:
    pending = book.sign(FULL)
    book.reopen()
    assert book.reveals.recorded(book.job.digest, 1, "train") == (pending, False)
    book.reveals.mark_revealed(pending)
    book.reopen()
    assert book.reveals.recorded(book.job.digest, 1, "train") == (pending, True)
    assert book.reveals.recorded(book.job.digest, 2, "train") is None


def test_a_revealed_phase_is_refused_for_good(book: Book) -> None:
    book.reveal(FULL)
    book.reopen()
    again = book.terms(attempt=2)
    refused(Refusal.ALREADY_REVEALED, "revealed before", lambda: book.reveals.begin_attempt(again))
    refused(Refusal.ALREADY_REVEALED, "revealed before", lambda: book.reveals.check_reveal(again, FULL))
    other = make_pending(again, FULL)
    refused(Refusal.ALREADY_REVEALED, "another answer", lambda: book.reveals.write_pending(other))
    refused(Refusal.ALREADY_REVEALED, "no such answer", lambda: book.reveals.mark_revealed(other))


def test_a_pending_answer_is_erased_by_the_next_advert_alone(book: Book) -> None:
    pending = book.sign(FULL)
    other = make_pending(book.terms(), FULL[:5])
    refused(Refusal.ALREADY_REVEALED, "another answer", lambda: book.reveals.write_pending(other))
    book.reveals.write_pending(pending)  # the same once more changes nothing
    book.reveals.begin_attempt(book.terms(attempt=2))
    assert book.reveals.recorded(book.job.digest, 1, "train") is None
    refused(Refusal.ALREADY_REVEALED, "no such answer", lambda: book.reveals.mark_revealed(pending))


def test_an_erased_answer_leaves_no_share_in_the_file(book: Book) -> None:
    book.sign(FULL)
    book.ledger.close()
    assert SECRET in book.path.read_bytes()
    book.open()
    book.reveals.begin_attempt(book.terms(attempt=2))
    book.ledger.close()
    assert SECRET not in book.path.read_bytes()


def test_every_reveal_is_told_once(book: Book) -> None:
    pending = book.reveal(FULL)
    book.reveals.mark_revealed(pending)
    assert book.announced == [pending]


def test_shares_of_old_reveals_are_blanked_and_their_cohorts_stay(book: Book) -> None:
    book.reveal(FULL, phase="class-presence.0", round=0)
    book.now += timedelta(days=31)
    book.sign(FULL)
    assert book.reveals.blank_old_shares() == 1
    assert book.reveals.recorded(book.job.digest, 0, "class-presence.0") is None
    assert book.reveals.recorded(book.job.digest, 1, "train") is not None
    near = {"phase": "class-presence.0", "round": 0, "job_digest": book.other_job.digest}
    refused(Refusal.OVERLAPPING_COHORT, "nearly the same", lambda: book.sign(FULL[:5], **near))


def test_the_file_is_the_owners_alone(book: Book) -> None:
    paths = list(book.folder.glob("ledger.sqlite*"))
    assert paths
    for path in paths:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


# overlapping cohorts


@pytest.mark.parametrize("kind", sorted(DIFFERENCED_KINDS))
@pytest.mark.parametrize("missing", [1, 2, 3])
def test_a_statistic_over_nearly_the_same_silos_is_refused_in_any_job(
    book: Book, kind: str, missing: int
) -> None:
    book.reveal(FULL, phase=f"{kind}.0", round=0)
    book.reopen()
    second = {"phase": f"{kind}.0", "round": 0, "job_digest": book.other_job.digest}
    survivors = FULL[: 6 - missing]
    rule = CohortRule.for_members(6)  # min_cohort 4
    assert missing < rule.min_cohort
    refused(Refusal.OVERLAPPING_COHORT, "nearly the same", lambda: book.sign(survivors, **second))


def test_a_statistic_over_the_same_or_over_other_silos_is_no_overlapping_cohort(book: Book) -> None:
    book.reveal(FULL[:3], phase="class-presence.0", round=0)
    book.reveal(FULL[:3], phase="class-presence.1", round=0)
    far = (FULL[0], *FULL[3:])  # differs by five
    book.reveal(far, phase="class-presence.0", round=0, job_digest=book.other_job.digest)


@pytest.mark.parametrize("kind", sorted(DIFFERENCED_KINDS))
def test_a_statistic_of_a_job_is_taken_over_the_same_silos_alone(book: Book, kind: str) -> None:
    """Far apart in pairs, three sets of one job added up to one silo, bit for bit."""
    book.reveal(FULL[:4], phase=f"{kind}.0", round=0)
    far = (*FULL[:2], *FULL[4:])
    again = {"phase": f"{kind}.1", "round": 0}
    refused(Refusal.OVERLAPPING_COHORT, "of the job over other silos", lambda: book.sign(far, **again))
    book.sign(FULL[:4], phase=f"{kind}.1", round=0, attempt=2)


def test_the_larger_min_cohort_of_the_two_decides(book: Book) -> None:
    strict = dataclasses.replace(CohortRule.for_members(6), min_cohort=6)
    book.reveal(FULL[:5], phase="class-presence.0", round=0, rule=strict)
    other = {"phase": "class-presence.0", "round": 0, "job_digest": book.other_job.digest}
    refused(Refusal.OVERLAPPING_COHORT, "nearly the same", lambda: book.sign((*FULL[:2], FULL[5]), **other))


def test_another_kind_or_data_set_is_no_overlapping_cohort(book: Book) -> None:
    book.reveal(FULL, phase="class-presence.0", round=0)
    book.reveal(FULL[:5], phase="calibrate.0", round=0)
    other = book.reveals_of("other-data")
    book.sign(FULL[:5], reveals=other, phase="class-presence.1", round=0)


def test_a_signed_cohort_counts_even_where_this_silo_never_revealed_it(book: Book) -> None:
    # others may have: the sum needs t shares, not this silo's
    book.sign(FULL, phase="class-presence.0", round=0)
    book.reveals.begin_attempt(book.terms(phase="class-presence.0", round=0, attempt=2))
    other = {"phase": "class-presence.0", "round": 0, "job_digest": book.other_job.digest}
    refused(Refusal.OVERLAPPING_COHORT, "nearly the same", lambda: book.sign(FULL[:5], **other))


def test_attempts_at_one_phase_exclude_each_other_and_only_the_revealed_one_stays(book: Book) -> None:
    book.sign(FULL, phase="class-presence.0", round=0)
    book.reveal(FULL[:5], phase="class-presence.0", round=0, attempt=2)
    book.sign(FULL[:5], phase="class-presence.0", round=0, job_digest=book.other_job.digest)


# openings of a draw


def drawn(book: Book, nonce: str = "4", **fields: Any) -> bytes:
    """Digest of a job whose rounds name four of the six silos."""
    job = Hub(book.folder, silos=6, rounds=5, nonce=nonce * 32, fraction=0.6, **fields).job
    book.ledger.record_job(job, is_approved=True)
    return job.digest


def opening(job: bytes, number: int = 0) -> dict[str, Any]:
    return {"job_digest": job, "round": 0, "phase": f"enrollment.{number}"}


def test_a_third_opening_of_a_draw_is_refused_at_every_step(book: Book) -> None:
    job = drawn(book)
    signed = [book.sign(FULL, **opening(job, number)) for number in range(3)]  # none is revealed yet
    for pending in signed[:2]:
        book.reveals.mark_revealed(pending)
    book.reopen()
    message = "enrollment.2: 2 openings of the job were revealed"
    again = book.terms(**opening(job, 2), attempt=2)
    refused(Refusal.POLICY, message, lambda: book.reveals.mark_revealed(signed[2]))
    refused(Refusal.POLICY, message, lambda: book.reveals.check_attempt(again))
    refused(Refusal.POLICY, message, lambda: book.reveals.begin_attempt(again))
    refused(Refusal.POLICY, message, lambda: book.reveals.check_reveal(again, FULL))
    book.reveals.mark_revealed(signed[0])  # the same answer once more
    book.reveal(FULL, job_digest=job, round=3, phase="enrollment.3")  # fixes no draw
    book.reveal(FULL, **opening(drawn(book, nonce="5")))


def test_openings_of_full_participation_are_not_counted(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reveals, "MAX_UNASKED_OPENINGS", 1)
    for number in range(4):
        book.reveal(FULL, **opening(book.job.digest, number))
    book.reveal(FULL, **opening(drawn(book)))
    refused(Refusal.POLICY, "1 openings of", lambda: book.sign(FULL, **opening(drawn(book, nonce="5"))))
    book.reveal(FULL, **opening(book.job.digest, 4))


def test_openings_of_jobs_that_no_person_approved_are_capped_over_a_data_set(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reveals, "MAX_UNASKED_OPENINGS", 3)
    first, second, third, fourth = (drawn(book, nonce=nonce) for nonce in "789a")
    book.ledger.decisions().approve(fourth, by="Ann")
    for phase in (opening(first), opening(fourth), opening(first, 1), opening(second)):
        book.reveal(FULL, **phase)
        book.reopen()
    message = "3 openings of jobs that no person approved were revealed over this data set"
    refused(Refusal.POLICY, message, lambda: book.sign(FULL, **opening(third)))
    book.sign(FULL, **opening(fourth, 1))  # a person looked at it
    book.sign(FULL, **opening(drawn(book)), reveals=book.reveals_of("other-data"))
    book.ledger.decisions().approve(third, by="Ann")
    book.reveal(FULL, **opening(third))


# changes of the cohort


def test_near_cohorts_of_training_count_each_time_the_cohort_changes(book: Book) -> None:
    book.reveals = book.reveals_of("data", max_cohort_changes=2)
    book.reveal(FULL, round=1)
    book.reveal(FIVE, round=2)  # counts
    book.reveal(FIVE, round=3)  # the same as just before
    book.reveal(FULL, round=4)  # near to the five, counts
    other = FULL[:4] + FULL[5:]
    refused(Refusal.OVERLAPPING_COHORT, "more than 2 times", lambda: book.sign(other, round=5))


def test_a_silo_that_comes_and_goes_uses_up_the_limit(book: Book) -> None:
    """A set stayed free once it was counted: all 40 rounds were revealed, each a difference."""
    job = book.long_job()
    revealed, refusals = [], []
    for round in range(1, 41):
        book.reopen()
        book.reveals = book.reveals_of("data", max_cohort_changes=2)
        try:
            book.reveal(FULL if round % 2 else FIVE, round=round, job_digest=job)
            revealed.append(round)
        except PolicyRefusal as refusal:
            refusals.append(refusal.code)
    # 2 and 3 count; without the even ones each further odd one follows upon its own cohort
    assert revealed == [1, 2, *range(3, 41, 2)]
    assert refusals == [Refusal.OVERLAPPING_COHORT] * 19


def test_a_dropout_that_lasts_counts_once(book: Book) -> None:
    job = book.long_job()
    book.reveals = book.reveals_of("data", max_cohort_changes=1)
    for round in range(1, 40):
        book.reveal(FULL if round < 3 else FIVE, round=round, job_digest=job)
    refused(
        Refusal.OVERLAPPING_COHORT, "more than 1 times", lambda: book.sign(FULL, round=40, job_digest=job)
    )


def test_attempts_at_one_phase_count_once(book: Book) -> None:
    book.reveals = book.reveals_of("data", max_cohort_changes=1)
    book.reveal(FULL, round=1)
    book.sign(FIVE, round=2)  # counts
    book.sign(FULL[:4] + FULL[5:], round=2, attempt=2)  # in its place
    refused(Refusal.OVERLAPPING_COHORT, "more than 1 times", lambda: book.sign(FIVE, round=3))
    book.reveals = book.reveals_of("data", max_cohort_changes=2)
    book.reveal(FIVE, round=4)
    refused(Refusal.OVERLAPPING_COHORT, "more than 2 times", lambda: book.sign(FULL, round=5))


def test_a_sum_follows_upon_every_attempt_that_was_signed_before_it(book: Book) -> None:
    # others may have revealed the first attempt: the next sum then differs from it
    book.reveals = book.reveals_of("data", max_cohort_changes=1)
    book.reveal(FULL, round=1)
    book.sign(FIVE, round=2)  # counts
    book.sign(FULL, round=2, attempt=2)
    refused(Refusal.OVERLAPPING_COHORT, "more than 1 times", lambda: book.sign(FULL, round=3))


def test_of_a_revealed_phase_only_the_revealed_attempt_counts(book: Book) -> None:
    book.reveals = book.reveals_of("data", max_cohort_changes=1)
    book.reveal(FULL, round=1)
    book.sign(FIVE, round=2)
    book.reveal(FULL, round=2, attempt=2)
    book.reveal(FULL, round=3)
    book.reveal(FIVE, round=4)


def test_the_sum_just_before_may_be_of_another_job(book: Book) -> None:
    book.reveals = book.reveals_of("data", max_cohort_changes=2)
    other = {"job_digest": book.other_job.digest}
    book.reveal(FULL, round=1)
    book.reveal(FIVE, round=1, **other)  # counts
    book.reveal(FULL, round=2)  # counts
    refused(Refusal.OVERLAPPING_COHORT, "more than 2 times", lambda: book.sign(FIVE, round=2, **other))


def test_changes_are_counted_over_all_jobs_and_kinds_of_a_data_set(book: Book) -> None:
    """Each job had a limit of its own, and each kind of phase in it: two jobs gave twice the differences."""
    book.reveals = book.reveals_of("data", max_cohort_changes=2)
    other = {"job_digest": book.other_job.digest}
    book.reveal(FULL, round=1)
    book.reveal(FIVE, round=1, phase="evaluate")  # counts, though no evaluation came before
    book.reveal(FULL, round=1, **other)  # counts
    refused(Refusal.OVERLAPPING_COHORT, "more than 2 times", lambda: book.sign(FIVE, round=2, **other))
    refused(Refusal.OVERLAPPING_COHORT, "more than 2 times", lambda: book.sign(FIVE, round=2))
    elsewhere = book.reveals_of("other-data", max_cohort_changes=0)
    book.sign(FIVE, round=3, reveals=elsewhere)


def test_one_dropout_costs_one_change_in_all_kinds_together(book: Book) -> None:
    book.reveals = book.reveals_of("data", max_cohort_changes=1)
    for round in range(1, 6):
        for phase in ("prototypes", "train", "evaluate"):
            book.reveal(FULL if round < 3 else FIVE, round=round, phase=phase)
    other = {"job_digest": book.other_job.digest}
    refused(Refusal.OVERLAPPING_COHORT, "more than 1 times", lambda: book.sign(FULL, round=1, **other))


def grant(book: Book, job: bytes, changes: int, *, account: str = "data") -> None:
    grants = Grants(cohort_changes=changes)
    book.ledger.decisions().approve(job, by="ann", grants=grants, account=account)


def test_what_is_granted_to_a_job_is_used_by_it_alone_and_adds_up(book: Book) -> None:
    book.reveals = book.reveals_of("data", max_cohort_changes=1)
    job, other = book.long_job(), book.other_job.digest
    book.reveal(FULL, round=1, job_digest=job)
    for _ in range(2):
        grant(book, job, 1)
    book.reopen()
    book.reveals = book.reveals_of("data", max_cohort_changes=1)
    book.reveal(FIVE, round=2, job_digest=job)  # granted
    book.reveal(FULL, round=3, job_digest=job)  # granted
    book.reveal(FIVE, round=1, job_digest=other)  # the policy's
    refused(
        Refusal.OVERLAPPING_COHORT, "more than 1 times", lambda: book.sign(FULL, round=2, job_digest=other)
    )
    why = "more than 1 and 2 that were granted times"
    refused(Refusal.OVERLAPPING_COHORT, why, lambda: book.sign(FULL, round=4, job_digest=job))
    grant(book, job, 1, account="other-data")
    refused(Refusal.OVERLAPPING_COHORT, why, lambda: book.sign(FULL, round=4, job_digest=job))


@pytest.mark.parametrize(
    ("grants", "told"),
    [
        (Grants(cohort_changes=3), {"event": "cohort changes granted", "changes": 3}),
        (Grants(data_refusals=3), {"event": "data refusals granted", "refusals": 3}),
    ],
)
def test_a_grant_is_told_to_the_audit_log_once(book: Book, grants: Grants, told: dict[str, Any]) -> None:
    book.ledger.decisions().approve(book.job.digest, by="ann", grants=grants, account="data")
    with closing(AuditLog(book.folder / "audit.jsonl")) as log:
        book.ledger.decisions().tell(log)
        book.ledger.decisions().tell(log)
    [approved, granted] = audit.read_entries(book.folder / "audit.jsonl")
    assert (approved["event"], approved["job"]) == ("job_approved", book.job.digest.hex())
    assert granted.items() >= {**told, "job": book.job.digest.hex()}.items()


@pytest.mark.parametrize("is_private", [True, False])
def test_sums_that_epsilon_covers_count_nowhere(book: Book, is_private: bool) -> None:
    """A covered sum must not stand between two bare ones either, or the second would follow upon it."""
    book.reveals = book.reveals_of("data", max_cohort_changes=0)
    book.reveal(FULL, round=1)
    book.spend(round=2, is_private=is_private)
    if not is_private:
        refused(Refusal.OVERLAPPING_COHORT, "more than 0 times", lambda: book.sign(FIVE, round=2))
        return
    book.reveal(FIVE, round=2)
    book.reveal(FULL, round=3)
    refused(Refusal.OVERLAPPING_COHORT, "more than 0 times", lambda: book.sign(FIVE, round=4))


def test_no_change_is_allowed_where_the_policy_says_zero(book: Book) -> None:
    book.reveals = book.reveals_of("data", max_cohort_changes=0)
    book.reveal(FULL)
    book.reveal(FULL, round=2)
    job = {"job_digest": book.other_job.digest}
    refused(Refusal.OVERLAPPING_COHORT, "more than 0 times", lambda: book.sign(FULL[:5], **job))


def test_a_cohort_below_the_policys_least_is_refused(book: Book) -> None:
    strict = book.reveals_of("data", min_silos=6)
    terms = book.terms()
    strict.begin_attempt(terms)
    refused(Refusal.COHORT_TOO_SMALL, "at least 6", lambda: strict.check_reveal(terms, FULL[:5]))


def test_two_writers_cannot_both_spend_the_last_change(book: Book) -> None:
    """Two agents on one file is forbidden; the transaction holds even so."""
    book.reveal(FULL)
    survivors = {2: FULL[:5], 3: FULL[:4] + FULL[5:]}

    def write(round: int, barrier: threading.Barrier) -> str:
        ledger = Ledger(book.path, clock=book.clock)
        reveals = ledger.reveals(
            policy=book.policy.model_copy(update={"max_cohort_changes": 1}), data_set="data"
        )
        pending = make_pending(book.terms(round=round), survivors[round])
        with closing(ledger):
            barrier.wait()
            return outcome_of(lambda: reveals.write_pending(pending))

    assert at_once(write, [*survivors]) == ["done", "refused"]


# jobs, rosters, audit


def test_a_decision_stays_through_restart_and_repeated_offers(book: Book) -> None:
    third = Hub(book.folder, silos=6, nonce="2" * 32).job
    assert book.ledger.record_job(third, is_approved=False) == (Decision.OFFERED, True)
    book.ledger.decisions().reject(third.digest, by="ann", reason="not this one")
    book.reopen()
    assert book.ledger.record_job(third, is_approved=True) == (Decision.REJECTED, False)
    assert book.ledger.decisions().approve(third.digest, by="ann") == 0
    assert book.ledger.decision(third.digest) is Decision.APPROVED
    assert [job.decision for job in book.ledger.jobs()] == [Decision.APPROVED] * 3


def test_approval_needs_the_id_of_exactly_one_job(book: Book) -> None:
    with pytest.raises(ConfigError, match="none begins with it"):
        book.ledger.job("ffffffffffff0")
    with pytest.raises(ConfigError, match="2 begin with it"):
        book.ledger.job("")


def test_rosters_never_go_back_through_a_restart(book: Book) -> None:
    members = make_members(6)

    def accept(version: int, *, without: Sequence[str] = ()) -> None:
        roster = members.roster(version=version, without=without)
        book.ledger.accept_roster(roster, authority=members.authority, lowest_version=1)

    accept(8)
    book.reopen()
    refused(Refusal.ROSTER, "version 8 or newer", lambda: accept(7))
    refused(Refusal.ROSTER, "two different", lambda: accept(8, without=["silo-5"]))
    accept(9)
    assert book.ledger.roster_version == 9


def test_enrollment_pins_a_lowest_roster_version(book: Book) -> None:
    members = make_members(6)
    roster = members.roster(version=2)

    def accept() -> None:
        book.ledger.accept_roster(roster, authority=members.authority, lowest_version=3)

    refused(Refusal.ROSTER, "version 3 or newer", accept)


def test_check_finds_a_ledger_that_was_put_back_from_a_backup(book: Book) -> None:
    audit_path = book.folder / "audit.jsonl"
    assert book.ledger.audit_trail(audit_path).check(REVEALED_EVENT) == 0
    backup = book.path.read_bytes()
    book.reveal(FULL)
    log = AuditLog(audit_path)
    [untold] = book.ledger.audit_trail(audit_path).untold(REVEALED_EVENT)
    log.append(REVEALED_EVENT, **untold)
    assert book.ledger.audit_trail(audit_path).untold(REVEALED_EVENT) == []
    assert book.ledger.audit_trail(audit_path).check(REVEALED_EVENT) == 1
    book.ledger.close()
    book.path.write_bytes(backup)
    book.open()
    with pytest.raises(ConfigError, match="round 1 train: was the ledger put back from a backup"):
        book.ledger.audit_trail(audit_path).check(REVEALED_EVENT)
    log.close()


def test_a_directory_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="ledger.sqlite: not a directory"):
        Ledger(tmp_path / "file" / "ledger.sqlite")


def test_levels_of_trees_are_summed_over_the_same_silos_alone(book: Book) -> None:
    """Records by input and bin are the same in each tree: two rounds without a silo apart gave its counts."""
    trees: dict[str, Any] = {"strategy": {"preset": "trees"}, "model": {"name": "trees"}, "rounds": 5}
    grown, again = (Hub(book.folder, silos=6, nonce=digit * 32, **trees).job for digit in "45")
    for job in (grown, again):
        book.ledger.record_job(job, is_approved=True)
    assert grown.spec.rule(6).min_cohort == 6
    book.reveal(FULL, round=1, job_digest=grown.digest)
    book.reveal(FULL, round=2, job_digest=grown.digest)
    book.reopen()
    for later in ({"round": 3, "job_digest": grown.digest}, {"round": 1, "job_digest": again.digest}):
        refused(Refusal.OVERLAPPING_COHORT, "nearly the same", lambda of=later: book.sign(FIVE, **of))
    book.reveal(FULL, round=1)  # a training of another method, of which changes are counted
    book.sign(FIVE, round=2)

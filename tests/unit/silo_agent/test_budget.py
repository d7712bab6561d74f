"""The privacy ledger: never below what was really released, and never in the way of what fits."""

from __future__ import annotations

import multiprocessing
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chorale.job import Job
from chorale.privacy.accountant import delta_at, epsilon
from chorale.privacy.job_releases import JobReleases, planned_phases
from chorale.privacy.privacy_filter import filter_epsilon, fits
from chorale.privacy.releases import Release
from chorale.runtime.audit import AuditLog, read_entries
from chorale.transport.wire import PhaseKey
from crypto.errors import ConfigError, PolicyRefusal, Refusal
from silo_agent.disclosure.ledger.accounts import DELTA_EVENT
from silo_agent.disclosure.ledger.audit_trail import SPENT_EVENT, spend_fields
from silo_agent.disclosure.ledger.budget import Budget
from silo_agent.disclosure.ledger.ledger import Ledger
from tests.support.sessions import NOW
from tests.support.writers import at_once, outcome_of
from tests.unit.silo_agent.privacy_book import (
    MEMBERS,
    RECORDS,
    STATE,
    SUMS,
    Book,
    by_hand,
    policy,
    private_job,
    refused,
)


@pytest.fixture
def make_book(tmp_path: Path) -> Iterator[Callable[..., Book]]:
    books: list[Book] = []

    def make(**privacy: Any) -> Book:
        books.append(Book(tmp_path, **privacy))
        return books[-1]

    yield make
    for book in books:
        book.ledger.close()


MakeBook = Callable[..., Book]
GRID = 1e-2  # relative: the ledger's filter asks at fewer points than the one by hand


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return private_job(tmp_path, SUMS)


@pytest.fixture
def open_job(tmp_path: Path) -> Job:
    """Without privacy."""
    return private_job(tmp_path, None, nonce=7)


# one data set


def test_a_new_ledger_has_spent_nothing(make_book: MakeBook) -> None:
    balance = make_book(epsilon=3.0).balance
    assert (balance.spent, balance.held, balance.left, balance.unnoised) == (0.0, 0.0, 3.0, 0)


def test_every_kind_of_phase_costs_something(make_book: MakeBook, job: Job) -> None:
    """Evaluation, counts and enrollment that spend nothing are a known mistake."""
    book = make_book()
    last = 0.0
    for phase in ("enrollment.0", "train", "evaluate.0"):
        book.spend(job, phase=phase)
        assert book.balance.spent > last
        last = book.balance.spent


def test_what_is_reserved_counts_against_the_budget_before_it_is_spent(make_book: MakeBook, job: Job) -> None:
    one = by_hand(list(JobReleases(job.spec, STATE).cost("train", MEMBERS)), 1e-5)
    book = make_book(epsilon=one * (1 + GRID))
    first = book.reserve(job)
    assert (book.balance.spent, book.balance.held) == (0.0, pytest.approx(one, rel=GRID))
    refused("spent or reserved before", lambda: book.reserve(job, round=2))
    first.spend()
    assert book.balance.spent == pytest.approx(one, rel=GRID)
    assert book.balance.spent + book.balance.left == pytest.approx(one * (1 + GRID))
    refused("spent or reserved before", lambda: book.reserve(job, round=2))


def test_the_cost_follows_the_arrays_of_each_state(make_book: MakeBook, job: Job) -> None:
    """What a job releases is worked out once, and a coordinator names the states."""
    budget = make_book().budget
    wider = {name: np.zeros((7, *array.shape), array.dtype) for name, array in STATE.items()}
    for state in (STATE, wider, STATE):
        found = budget._released(job, state).cost("train", MEMBERS)
        assert found == JobReleases(job.spec, state).cost("train", MEMBERS)
    assert JobReleases(job.spec, wider).cost("train", MEMBERS) != found
    kept = [array for _, released in budget._of_jobs.values() for array in released._state.values()]
    assert sum(array.base.nbytes for array in kept if array.base is not None) < 1000  # not the states


def test_the_cost_follows_the_policy_in_force(make_book: MakeBook, job: Job) -> None:
    budget = make_book().budget
    before = budget._released(job, STATE)
    budget._policy = budget._policy.model_copy(update={"assumed_colluders": 2})  # as another thread takes it
    assert budget._released(job, STATE) is not before


def test_a_refusal_tells_the_numbers_and_writes_nothing(make_book: MakeBook, job: Job) -> None:
    book = make_book(epsilon=0.1)
    refused(
        r"round 1 train: expected at most epsilon 0\.1 of account data \(delta 1e-05\), got ([0-9.]+): "
        r"0 spent or reserved before and \1 by itself, which are composed, not added$",
        lambda: book.reserve(job),
    )
    assert book.balance.held == 0.0


def test_planned_charge_is_what_the_ledger_says_after_the_whole_job(
    make_book: MakeBook, tmp_path: Path
) -> None:
    """A person approved 5.985 at the job's own delta, and the ledger charged 7.203 at the policy's."""
    book, total = make_book(delta=1e-6), 0.0
    for nonce in (1, 2):
        job = private_job(tmp_path, SUMS, nonce=nonce, rounds=3)
        planned = book.budget.planned_charge(job, STATE)
        for kind, members, times in planned_phases(job.spec):
            for round in range(1, times + 1):
                book.spend(job, round=round, phase=kind, members=members)
                assert book.budget.planned_charge(job, STATE).epsilon_after is None
        balance, total = book.balance, total + planned.epsilon
        assert (balance.jobs[-1].epsilon, balance.spent) == (planned.epsilon, planned.epsilon_after)
        assert planned.delta == balance.delta == 1e-6
        assert planned.epsilon > 1.05 * JobReleases(job.spec, STATE).epsilon()  # at the delta of the job
    assert balance.spent < 0.95 * total  # jobs are composed, not added


def test_what_is_given_up_before_it_leaves_costs_nothing(make_book: MakeBook, job: Job) -> None:
    book = make_book()
    charge = book.reserve(job)
    charge.release()
    assert book.balance.held == 0.0
    refused("was given up, so it cannot leave", charge.spend, Refusal.STAGE)


def test_what_was_spent_is_never_given_back(make_book: MakeBook, job: Job) -> None:
    book = make_book()
    charge = book.spend(job)
    before = book.balance.spent
    charge.release()
    book.crash()
    assert book.balance.spent == before > 0


def test_sending_one_input_again_is_no_new_spend_and_a_new_input_is(make_book: MakeBook, job: Job) -> None:
    book = make_book()
    charge = book.spend(job)
    once = book.balance.spent
    charge.spend()
    assert (book.balance.spent, len(book.announced)) == (once, 1)
    book.crash()
    book.spend(job)  # the same phase, trained again
    cost = list(JobReleases(job.spec, STATE).cost("train", MEMBERS))
    assert book.balance.spent == pytest.approx(by_hand(cost * 2, 1e-5), rel=GRID)


def test_a_dead_process_leaves_its_spend_and_not_its_reservations(make_book: MakeBook, job: Job) -> None:
    book = make_book()
    book.spend(job)
    spent = book.balance.spent
    book.reserve(job, round=2)
    assert book.crash() == 1
    assert book.balance.held == spent


def test_a_live_process_keeps_its_own_reservations(make_book: MakeBook, job: Job) -> None:
    book = make_book()
    book.reserve(job)
    assert book.budget.release_dead() == 0
    assert book.balance.held > 0


def test_jobs_over_one_data_set_add_up_and_other_data_sets_do_not(
    make_book: MakeBook, tmp_path: Path
) -> None:
    book = make_book()
    first, second = private_job(tmp_path, SUMS), private_job(tmp_path, SUMS, nonce=1)
    book.spend(first)
    alone = book.balance.spent
    book.spend(second)
    book.spend(second, budget=book.of("another"))
    balance = book.balance
    assert balance.spent > alone
    assert [each.epsilon for each in balance.jobs] == pytest.approx([alone, alone])
    other = book.of("another").balance()
    assert (other.spent, other.held) == pytest.approx((alone, alone))
    assert balance.held == balance.spent
    assert [each.id for each in book.ledger.accounts().all()] == ["data", "another"]


def test_a_job_that_is_gone_keeps_its_spend(make_book: MakeBook, job: Job) -> None:
    """An accountant that starts at zero with the next job is a known mistake."""
    book = make_book()
    book.ledger.record_job(job, is_approved=True)
    book.spend(job)
    spent = book.balance.spent
    with book.ledger._database.transaction() as connection:
        connection.execute("DELETE FROM jobs")
    book.crash()
    assert book.balance.spent == spent > 0


def test_another_delta_is_refused_and_values_nothing_that_was_spent_again(
    make_book: MakeBook, job: Job
) -> None:
    # a policy with another delta made all that was ever spent cheaper, or dearer, without a word
    book = make_book(delta=1e-5)
    book.budget.open_account()
    book.spend(job)
    spent = book.balance.spent
    assert spent == pytest.approx(
        by_hand(list(JobReleases(job.spec, STATE).cost("train", MEMBERS)), 1e-5), rel=GRID
    )
    for delta in (1e-9, 1e-4):
        shown = book.of("data", policy(delta=delta)).balance()
        assert (shown.spent, shown.delta) == (spent, 1e-5)
        other = book.of("data", policy(delta=delta))
        sentence = (
            "policy: privacy.delta: expected that of account data, 1e-05, at which all that was spent is "
            f"valued, got {delta:g}: set it back, or change the account's"
        )
        with pytest.raises(ConfigError, match=sentence):
            other.open_account()
        book.reserve(job, round=2, budget=other)
        assert {row["delta"] for row in rows_of(book)} == {1e-5}
    book.of("data", policy(delta=1e-5, epsilon=5.0)).open_account()  # the control: any other change
    book.of("other", policy(delta=1e-9)).open_account()  # an account of its own


def test_an_administrator_values_an_account_at_another_delta_and_the_audit_log_says_so(
    make_book: MakeBook, job: Job
) -> None:
    book = make_book(delta=1e-5)
    book.budget.open_account()
    book.spend(job)
    spent = book.balance.spent
    book.ledger.accounts().change_delta("data", 1e-7, unix_seconds=NOW.timestamp())
    book.crash()
    accounts = book.ledger.accounts()
    assert book.balance.delta == 1e-7
    assert book.balance.spent > 1.1 * spent
    book.of("data", policy(delta=1e-7)).open_account()
    with pytest.raises(ConfigError, match="expected that of account data, 1e-07"):
        book.budget.open_account()
    log = AuditLog(book.folder / "audit.jsonl")
    for _ in range(2):  # told once
        accounts.tell(log)
    log.close()
    entries = [entry for entry in read_entries(book.folder / "audit.jsonl") if entry["event"] == DELTA_EVENT]
    assert [(each["account"], each["delta_before"], each["delta"]) for each in entries] == [
        ("data", 1e-5, 1e-7)
    ]
    for account, delta, words in (("other", 1e-6, "there is none"), ("data", 1e-7, "is 1e-07 already")):
        with pytest.raises(ConfigError, match=words):
            accounts.change_delta(account, delta, unix_seconds=0.0)


def test_the_first_reservation_opens_an_account(make_book: MakeBook, job: Job) -> None:
    book = make_book(delta=1e-6)
    book.reserve(job)
    with pytest.raises(ConfigError, match="expected that of account data, 1e-06, .* got 1e-05"):
        book.of("data", policy(delta=1e-5)).open_account()


def rows_of(book: Book) -> list[sqlite3.Row]:
    with book.ledger._database.transaction() as connection:
        return connection.execute("SELECT * FROM releases").fetchall()


def test_dp_sgd_and_noised_sums_are_composed_into_one_epsilon(make_book: MakeBook, tmp_path: Path) -> None:
    book = make_book()
    trained, summed = private_job(tmp_path, RECORDS), private_job(tmp_path, SUMS, nonce=1)
    every = []
    for one in (trained, summed, trained):
        book.spend(one, round=len(every))
        every += JobReleases(one.spec, STATE).cost("train", MEMBERS)
    assert book.balance.spent == pytest.approx(filter_epsilon(every, 1e-5, sides_are_fixed=False))


def test_a_phase_lets_no_more_inputs_out_than_its_job_has_attempts(
    make_book: MakeBook, tmp_path: Path
) -> None:
    """A coordinator that makes a silo train again and again gets a sample of the noise each time."""
    book, job = make_book(), private_job(tmp_path, SUMS, max_attempts=5)
    for _ in range(5):
        book.spend(job)
        book.crash()
    refused(
        r"at most 5 different inputs, the job's max_attempts, got 6",
        lambda: book.reserve(job),
        Refusal.POLICY,
    )
    book.reserve(job, round=2)


# jobs without privacy


def test_an_input_without_noise_leaves_no_finite_epsilon_and_says_so(
    make_book: MakeBook, job: Job, open_job: Job
) -> None:
    book = make_book()
    book.spend(job)
    spent = book.balance.spent
    book.spend(open_job)
    balance = book.balance
    assert (balance.unnoised, balance.spent) == (1, spent)  # what private jobs spent is bounded still
    assert {each.job_digest: each.unnoised for each in balance.jobs} == {job.digest: 0, open_job.digest: 1}
    assert book.announced[-1].cost_digest is None
    assert book.budget.spent() == (spent, 1)


# the plan


def test_a_job_that_plans_more_than_is_left_is_refused_before_it_begins(
    make_book: MakeBook, tmp_path: Path
) -> None:
    book = make_book(epsilon=5.0)
    short, long = private_job(tmp_path, SUMS, rounds=2), private_job(tmp_path, SUMS, nonce=1, rounds=20)
    book.budget.check_plan(short, STATE)
    refused(
        "its plan: expected at most epsilon 5 .*, got [0-9.]+: 0 spent",
        lambda: book.budget.check_plan(long, STATE),
    )
    book.of("data", policy(epsilon=5.0, partial_jobs="allow")).check_plan(long, STATE)


def test_a_job_that_has_begun_is_not_asked_for_its_plan_again(make_book: MakeBook, tmp_path: Path) -> None:
    book = make_book(epsilon=5.0)
    long = private_job(tmp_path, SUMS, rounds=500)
    book.spend(long, round=0, phase="enrollment.0")
    book.budget.check_plan(long, STATE)


# which plan is bought


def spend_all(book: Book, job: Job, budget: Budget) -> Counter[Release]:
    """Train as often as the budget lets; what left."""
    left: Counter[Release] = Counter()
    while True:
        try:
            book.spend(job, budget=budget)
        except PolicyRefusal:
            return left
        left.update(JobReleases(job.spec, STATE).cost("train", MEMBERS))


def test_a_job_that_was_given_back_is_not_the_first_one_when_it_comes_again(
    make_book: MakeBook, tmp_path: Path
) -> None:
    """The second job was bought as a block, with nearly all of delta. The first one came back, was counted as
    the first one again, and had all of delta once more."""
    quiet = SUMS | {"sums": {"clip_norm": 0.5, "noise_multiplier": 12.0}}
    cheap, dear = private_job(tmp_path, quiet, rounds=1), private_job(tmp_path, SUMS, nonce=1, rounds=3)
    plan, moved = JobReleases(dear.spec, STATE).planned(), {"sides_are_fixed": False}
    most = epsilon(plan, 1e-5, **moved) * 1.05
    book = make_book(epsilon=most)
    book.reserve(cheap).release()
    book.spend(dear)
    left = Counter(JobReleases(dear.spec, STATE).cost("train", MEMBERS)) + spend_all(book, cheap, book.budget)
    delta = 1e-5 - delta_at(plan, most, **moved)
    assert fits(left, most, delta, **moved)
    left.update(JobReleases(cheap.spec, STATE).cost("train", MEMBERS))
    assert not fits(left, most, delta, **moved)
    assert fits(left, most, 1e-5, **moved)  # the control: with all of delta there was room


def test_the_first_plan_is_that_of_the_job_that_touched_an_empty_account_first(
    make_book: MakeBook, tmp_path: Path
) -> None:
    """A second job that goes on while the first one has nothing but a reservation is not the first one."""
    first, second = (private_job(tmp_path, SUMS, nonce=each, rounds=3) for each in range(2))
    planned = epsilon(JobReleases(first.spec, STATE).planned(), 1e-5, sides_are_fixed=False)
    book = make_book(epsilon=1.4 * planned)
    given_back = book.reserve(first)
    book.spend(second)
    given_back.release()
    for round in range(2, 4):
        book.spend(second, round=round)
    assert book.balance.spent > planned  # the filter's figure, not that of the second job's block


def test_another_data_sets_lower_budget_takes_nothing_from_what_the_own_one_paid(
    make_book: MakeBook, tmp_path: Path
) -> None:
    """The account bought its first plan under one policy, and another data set shares it now. The other
    policy's budget is too low for that plan, so the filter there has all of delta: nearly twice delta in
    all."""
    quiet = SUMS | {"sums": {"clip_norm": 0.5, "noise_multiplier": 12.0}}
    dear, cheap = private_job(tmp_path, SUMS, rounds=3), private_job(tmp_path, quiet, nonce=1, rounds=1)
    plan, moved = JobReleases(dear.spec, STATE).planned(), {"sides_are_fixed": False}
    most = epsilon(plan, 1e-5, **moved) * 1.0005
    book = make_book(epsilon=most)
    other = book.ledger.budget(policy=policy(epsilon=0.98 * most), data_set="data", budgets={most})
    book.spend(dear)
    left = Counter(JobReleases(dear.spec, STATE).cost("train", MEMBERS)) + spend_all(book, cheap, other)
    assert fits(left, most, 1e-5 - delta_at(plan, most, **moved), **moved)


# two writers


def test_two_threads_cannot_both_reserve_what_fits_once(make_book: MakeBook, job: Job) -> None:
    one = by_hand(list(JobReleases(job.spec, STATE).cost("train", MEMBERS)), 1e-5)
    book = make_book(epsilon=one * 1.1)

    def reserve(round: int, barrier: threading.Barrier) -> str:
        with closing(Ledger(book.folder / "ledger.sqlite", clock=lambda: NOW)) as ledger:
            own = ledger.budget(policy=book.policy, data_set="data")
            barrier.wait()
            return outcome_of(lambda: book.reserve(job, round=round, budget=own))

    assert at_once(reserve, [1, 2]) == ["done", "refused"]


def _reserve_all(folder: str, rounds: range, most: float, counts: Any) -> None:
    job = private_job(Path(folder), SUMS)
    ledger = Ledger(Path(folder) / "ledger.sqlite", clock=lambda: NOW)
    budget = ledger.budget(policy=policy(epsilon=most), data_set="data")
    reserved = 0
    for round in rounds:
        key = PhaseKey(job_digest=job.digest, round=round, phase="train", attempt=1)
        try:
            budget.reserve(job, key, STATE, members=MEMBERS).spend()
            reserved += 1
        except PolicyRefusal:
            break
    counts.put(reserved)
    ledger.close()


def test_two_processes_together_spend_what_one_could(make_book: MakeBook, job: Job) -> None:
    """Each process signs the job itself: its digest is another one, and its cost the same."""
    cost = list(JobReleases(job.spec, STATE).cost("train", MEMBERS))
    book = make_book(epsilon=9.0)
    most = book.policy.privacy.epsilon
    fitting = next(count for count in range(1, 500) if by_hand(cost * (count + 1), 1e-5) > most)
    context = multiprocessing.get_context("spawn")
    counts: Any = context.Queue()
    halves = (range(1, 500), range(500, 1000))
    workers = [
        context.Process(target=_reserve_all, args=(str(book.folder), rounds, most, counts))
        for rounds in halves
    ]
    for worker in workers:
        worker.start()
    spent = [counts.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join()
    assert sum(spent) == fitting
    assert book.balance.spent == pytest.approx(by_hand(cost * fitting, 1e-5), rel=GRID)


# the audit chain


def test_check_finds_spend_that_a_backup_or_an_editor_took_away(make_book: MakeBook, job: Job) -> None:
    book = make_book()
    path = book.folder / "audit.jsonl"
    book.spend(job)
    book.crash()
    backup = (book.folder / "ledger.sqlite").read_bytes()
    book.spend(job, round=2)
    [first, second] = book.ledger.audit_trail(path).untold(SPENT_EVENT)
    log = AuditLog(path)
    for fields in (first, second):
        log.append(SPENT_EVENT, **fields)
    log.close()
    assert (
        book.ledger.audit_trail(path).check(SPENT_EVENT),
        book.ledger.audit_trail(path).untold(SPENT_EVENT),
    ) == (2, [])
    assert second == spend_fields(book.announced[-1])
    book.ledger.close()
    (book.folder / "ledger.sqlite").write_bytes(backup)
    book.crash()
    with pytest.raises(ConfigError, match="holds 1 spends that the ledger does not.* round 2 train"):
        book.ledger.audit_trail(path).check(SPENT_EVENT)


def test_a_closed_file_that_went_is_missed_where_a_job_is_told_of(make_book: MakeBook, job: Job) -> None:
    book = make_book()
    path = book.folder / "audit.jsonl"
    book.spend(job)
    with closing(AuditLog(path)) as log:
        trail = book.ledger.audit_trail(path)
        assert trail.lacks(job.digest)
        log.append(SPENT_EVENT, **spend_fields(book.announced[-1]))
        closed = log.rotate()
        assert not trail.lacks(job.digest)
        closed.rename(book.folder / "elsewhere")
    assert trail.lacks(job.digest)
    assert not trail.lacks(b"o" * 32)
    assert trail.untold(SPENT_EVENT) == []  # it stands in the file that is elsewhere
    assert len(trail.untold(SPENT_EVENT, is_whole=True)) == 1


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE releases SET status = 'reserved'",
        "UPDATE releases SET data_set = 'other'",
        "UPDATE releases SET cost_digest = NULL",
        "UPDATE releases SET round = 9",
    ],
)
def test_check_finds_a_row_that_was_edited(make_book: MakeBook, job: Job, change: str) -> None:
    book = make_book()
    path = book.folder / "audit.jsonl"
    book.spend(job)
    log = AuditLog(path)
    log.append(SPENT_EVENT, **spend_fields(book.announced[-1]))
    log.close()
    with book.ledger._database.transaction() as connection:
        connection.execute(change)
    with pytest.raises(ConfigError, match="holds 1 spends that the ledger does not"):
        book.ledger.audit_trail(path).check(SPENT_EVENT)


def test_a_release_that_was_edited_is_not_composed(make_book: MakeBook, job: Job) -> None:
    book = make_book()
    book.spend(job)
    with book.ledger._database.transaction() as connection:
        connection.execute("UPDATE costs SET releases = '[]'")
    book.crash()
    with pytest.raises(ConfigError, match="a release was changed after it was written"):
        book.reserve(job, round=2)

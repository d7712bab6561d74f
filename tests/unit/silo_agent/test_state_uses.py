"""One use of a state: what a silo asks before another sum over the same arrays, and whom that may hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chorale.spec.job_spec import JobSpec
from chorale.transport.wire import PhaseKey
from crypto.errors import PolicyRefusal, Refusal
from crypto.session.cohort import CohortRule
from silo_agent.disclosure.ledger.budget import Budget
from silo_agent.disclosure.ledger.state_uses import READS_ALL, READS_HOLDOUT, READS_TRAINING, StateUse
from strategies.base import MODEL, TOTAL
from tests.unit.silo_agent.reveal_book import FIVE, FULL, Book, make_pending, refused

OTHERS = ("silo-0", "silo-6", "silo-7", "silo-8", "silo-9")  # differs from FULL by nine
STATE = {MODEL + "a": np.ones(6, np.float32), TOTAL: np.array(60)}


class UseBook(Book):
    """A ledger whose inputs are made from one model and leave."""

    def budget(self, data_set: str = "data", **policy: Any) -> Budget:
        return self.ledger.budget(policy=self.policy.model_copy(update=policy), data_set=data_set)

    def use(
        self,
        *,
        round: int = 1,
        phase: str = "train",
        job: bytes | None = None,
        state: int = 0,
        is_drawn: bool = False,
        reads: int = READS_ALL,
    ) -> StateUse:
        return StateUse(
            job_digest=job or self.job.digest,
            round=round,
            phase=phase,
            training_digests=(bytes([state]) * 32,),
            min_distance=4,
            members=6,
            is_drawn=is_drawn,
            reads=reads,
        )

    def send(self, use: StateUse, *, data_set: str = "data", **policy: Any) -> None:
        """As an agent does: checked, reserved, and recorded before the first byte leaves."""
        self.reveals_of(data_set, **policy).check_use(use)
        self.budget_spend(use, data_set=data_set, **policy)

    def budget_spend(self, use: StateUse, *, data_set: str = "data", **policy: Any) -> None:
        job = self.job if use.job_digest == self.job.digest else self.other_job
        key = PhaseKey(job_digest=use.job_digest, round=use.round, phase=use.phase, attempt=1)
        budget = self.budget(data_set, **policy)
        budget.reserve(job, key, {}, members=6, use=use).spend()


@pytest.fixture
def book(tmp_path: Path) -> Iterator[UseBook]:
    opened = UseBook(tmp_path)
    opened.reveals = opened.reveals_of("data", max_cohort_changes=1_000)
    yield opened
    opened.ledger.close()


def test_a_state_asked_again_with_one_silo_left_out_is_refused(book: UseBook) -> None:
    """Five rounds over one state, another silo missing in four: every silo's own update came out of it."""
    book.send(book.use())
    book.reveal(FULL)
    reveals = book.reveals_of("data", max_cohort_changes=1_000, max_repeats=9)
    for round, missing in enumerate(FULL[1:5], start=2):
        left = tuple(name for name in FULL if name != missing)
        book.send(book.use(round=round), max_repeats=9)
        with pytest.raises(PolicyRefusal, match="differs by 1 silos, expected none or at least 4") as caught:
            book.sign(left, round=round, reveals=reveals)
        assert caught.value.code is Refusal.OVERLAPPING_COHORT
        book.reveals.settle(book.job.digest, round, "train", FULL)


def test_another_state_may_lose_a_silo(book: UseBook) -> None:
    """The control: the model moved."""
    book.send(book.use())
    book.reveal(FULL)
    book.send(book.use(round=2, state=1))
    book.reveal(FIVE, round=2)


def test_the_same_silos_again_and_quite_other_ones_are_allowed(book: UseBook) -> None:
    book.send(book.use())
    book.reveal(FULL)
    book.send(book.use(phase="evaluate.0", round=5))
    book.reveal(FULL, phase="evaluate.0", round=5)
    other = book.use(job=book.other_job.digest)
    book.send(other)
    book.reveal(OTHERS, job_digest=book.other_job.digest)


def test_sums_over_one_named_set_are_over_the_same_silos(book: UseBook) -> None:
    """Far apart as they are: of three such sets, two sums less the third were one silo's update."""
    book.send(book.use())
    book.reveal(("silo-0", "silo-1", "silo-2", "silo-3"))
    book.send(book.use(round=2))
    far = ("silo-0", "silo-1", "silo-4", "silo-5")
    refused(
        Refusal.OVERLAPPING_COHORT, "differs by 4 of the same named silos", lambda: book.sign(far, round=2)
    )


def test_what_this_silo_revealed_is_u3_whatever_else_was_signed(book: UseBook) -> None:
    """t silos sign an attempt; another is revealed. The first was taken for the phase's U3."""
    book.send(book.use())
    book.sign(FULL)
    book.reveal(FIVE, attempt=2)
    book.reveals.settle(book.job.digest, 1, "train", FULL)
    book.send(book.use(round=2))
    refused(Refusal.OVERLAPPING_COHORT, "differs by 1", lambda: book.sign(FULL, round=2))
    book.sign(FIVE, round=2, attempt=2)


def test_u3_is_compared_again_when_it_is_written(book: UseBook) -> None:
    book.send(book.use())
    book.reveal(FULL)
    book.send(book.use(round=2))
    terms = book.terms(round=2)
    book.reveals.begin_attempt(terms)
    refused(
        Refusal.OVERLAPPING_COHORT,
        "differs by 1",
        lambda: book.reveals.write_pending(make_pending(terms, FIVE)),
    )


def test_nothing_is_summed_while_it_is_unknown_who_was_in_the_sum_before(book: UseBook) -> None:
    book.send(book.use())
    book.sign(FULL)  # others may have revealed it: this silo saw no signature but its own
    book.reopen()
    why = "began in job .* round 1 train, and nothing proves who was in it"
    refused(Refusal.STATE, why, lambda: book.reveals.check_use(book.use(round=2)))
    refused(Refusal.STATE, why, lambda: book.budget_spend(book.use(round=2)))
    book.reveals.settle(book.job.digest, 1, "train", FIVE)
    book.reopen()
    book.send(book.use(round=2))
    refused(Refusal.OVERLAPPING_COHORT, "differs by 1", lambda: book.sign(FULL, round=2))
    book.sign(FIVE, round=2, attempt=2)


def test_what_was_settled_stays(book: UseBook) -> None:
    book.send(book.use())
    book.reveals.settle(book.job.digest, 1, "train", FULL)
    book.reveals.settle(book.job.digest, 1, "train", FIVE)
    book.send(book.use(round=2))
    refused(Refusal.OVERLAPPING_COHORT, "differs by 1", lambda: book.sign(FIVE, round=2))


def test_of_a_phase_that_this_silo_revealed_its_own_row_says_who_was_in_it(book: UseBook) -> None:
    """So nothing is written when t signatures prove it later: that would be one flush more a round."""
    book.send(book.use())
    book.reveal(FULL)
    book.reveals.settle(book.job.digest, 1, "train", FIVE)
    with book.ledger._database.transaction() as connection:
        assert connection.execute("SELECT survivors FROM state_uses").fetchone()[0] is None
    book.send(book.use(round=2))
    refused(Refusal.OVERLAPPING_COHORT, "differs by 1", lambda: book.sign(FIVE, round=2))
    book.sign(FULL, round=2)


def test_attempts_at_one_phase_are_one_use(book: UseBook) -> None:
    for _ in range(3):
        book.send(book.use())
    book.sign(FIVE)
    book.reveal(FULL, attempt=2)
    book.send(book.use(round=2), max_repeats=1)


def test_a_model_is_used_up_after_the_policys_repeats(book: UseBook) -> None:
    for round in (1, 2, 3):
        book.send(book.use(round=round))
        book.reveal(FULL, round=round)
    book.reopen()
    fourth = book.use(round=4)
    refused(Refusal.STATE_USED_UP, r"3 sums .* at most 2 repeats", lambda: book.reveals.check_use(fourth))
    refused(Refusal.STATE_USED_UP, "at most 2 repeats", lambda: book.budget_spend(fourth))
    book.send(book.use(round=4, state=1))


def test_uses_are_counted_over_all_jobs_and_by_data_set(book: UseBook) -> None:
    book.send(book.use(), max_repeats=0)
    book.reveal(FULL)
    other = book.use(job=book.other_job.digest)
    refused(Refusal.STATE_USED_UP, "at most 0 repeats", lambda: book.send(other, max_repeats=0))
    book.send(other, data_set="other-data", max_repeats=0)


def test_a_use_stays_one_though_another_was_recorded_meanwhile(book: UseBook) -> None:
    """Two jobs ask at once: what was checked before training is checked again before anything leaves."""
    first, second = book.use(), book.use(job=book.other_job.digest)
    book.reveals.check_use(first)
    book.reveals.check_use(second)
    book.budget_spend(first)
    refused(Refusal.STATE, "nothing proves", lambda: book.budget_spend(second))
    with book.ledger._database.transaction() as connection:
        spent = connection.execute("SELECT count(*) FROM releases WHERE status = 'spent'").fetchone()[0]
    assert spent == 1  # what was not recorded was not spent


def test_a_phase_reads_one_model(book: UseBook) -> None:
    book.send(book.use())
    refused(Refusal.STATE, "other training arrays", lambda: book.reveals.check_use(book.use(state=1)))


@pytest.mark.parametrize(("first", "second"), [(True, True), (True, False), (False, True)])
def test_drawn_rounds_take_one_sum_of_a_kind(book: UseBook, first: bool, second: bool) -> None:
    """Each silo sees its own sums alone: together they were solved for every silo's update."""
    book.send(book.use(is_drawn=first))
    book.reveal(FULL)
    again = book.use(job=book.other_job.digest, is_drawn=second)
    refused(
        Refusal.STATE, "one sum of a kind .* round 1 train took it", lambda: book.reveals.check_use(again)
    )
    refused(Refusal.STATE, "one sum of a kind", lambda: book.budget_spend(again))
    book.send(book.use(phase="calibrate.0", is_drawn=second))  # another kind sums something else
    book.send(book.use(round=2, state=1, is_drawn=second))
    other = book.use(job=book.other_job.digest, state=2, is_drawn=second)
    book.send(other)
    book.reveals.note_abandoned(book.other_job.digest, 1, "train")
    book.reveal(FULL, phase="calibrate.0")
    book.send(book.use(round=3, state=2, is_drawn=second))  # of the abandoned one there is no sum


@pytest.mark.parametrize("tested", ["evaluate.0", "evaluate-all.0"])
def test_a_silo_whose_drawn_round_tested_a_model_is_in_no_test_of_it_over_all_silos(
    book: UseBook, tested: str
) -> None:
    """Twelve silos, rounds whose sums are revealed and not applied (min_weight: 1): three of them, over four,
    four and three silos, and the closing test over all. Any two are far apart, each silo is in one round
    alone, and the test of all less the three rounds was the hold-out of the twelfth silo."""
    everyone = tuple(f"silo-{place}" for place in range(12))
    rounds = (everyone[:4], everyone[4:8], everyone[8:11])
    assert set(everyone).difference(*rounds) == {"silo-11"}
    reads = READS_HOLDOUT if tested == "evaluate-all.0" else READS_ALL
    drawn = dataclasses.replace(book.use(is_drawn=True), members=4)
    closing = dataclasses.replace(book.use(phase=tested, round=5, reads=reads), members=12)
    book.send(drawn)
    book.reveal(rounds[0], names=everyone[:4])
    refused(Refusal.STATE, "one test of a model", lambda: book.reveals.check_use(closing))
    refused(Refusal.STATE, "one test of a model", lambda: book.budget_spend(closing))
    # the control: a round that tests nothing has no number in common with it, nor has a model that moved
    book.send(dataclasses.replace(closing, training_digests=(b"m" * 32,)))
    other = book.other_job.digest
    book.send(
        dataclasses.replace(drawn, job_digest=other, training_digests=(b"n" * 32,), reads=READS_TRAINING)
    )
    book.reveal(rounds[0], job_digest=other, names=everyone[:4])
    last = dataclasses.replace(closing, job_digest=other, training_digests=(b"n" * 32,), reads=READS_HOLDOUT)
    book.send(last)
    book.reveal(everyone, job_digest=other, phase=tested, round=5, names=everyone)


# abandoning


def test_an_abandoned_phase_is_never_signed_and_never_revealed(book: UseBook) -> None:
    pending = book.sign(FULL)
    book.reveals.abandon(book.job.digest, 1, "train")
    book.reopen()
    why = "was abandoned, and is never revealed"
    refused(Refusal.ALREADY_REVEALED, why, lambda: book.reveals.mark_revealed(pending))
    later = book.terms(attempt=2)
    for act in (
        lambda: book.reveals.check_attempt(later),
        lambda: book.reveals.begin_attempt(later),
        lambda: book.reveals.check_reveal(later, FULL),
    ):
        refused(Refusal.ALREADY_REVEALED, why, act)
    book.reveals.abandon(book.job.digest, 1, "train")  # the same promise again


def test_an_answer_is_not_written_once_its_phase_was_abandoned(book: UseBook) -> None:
    terms = book.terms()
    book.reveals.begin_attempt(terms)
    book.reveals.abandon(book.job.digest, 1, "train")
    refused(
        Refusal.ALREADY_REVEALED, "abandoned", lambda: book.reveals.write_pending(make_pending(terms, FULL))
    )


@pytest.mark.parametrize("phase", ["train", "fine-tune.0"])
def test_a_revealed_phase_is_not_abandoned(book: UseBook, phase: str) -> None:
    book.reveal(FULL, phase=phase)
    for act in (book.reveals.abandon, book.reveals.note_abandoned):
        refused(
            Refusal.ALREADY_REVEALED, "was revealed before", lambda act=act: act(book.job.digest, 1, phase)
        )


def test_a_phase_that_t_silos_abandoned_was_no_use(book: UseBook) -> None:
    for round in (1, 2, 3):
        book.send(book.use(round=round))
        book.sign(FULL, round=round)
        book.reveals.note_abandoned(book.job.digest, round, "train")
    book.reopen()
    book.send(book.use(round=4))
    book.sign(FIVE, round=4)
    refused(Refusal.ALREADY_REVEALED, "abandoned", lambda: book.reveals.check_attempt(book.terms(attempt=2)))


def test_a_test_over_all_silos_leaves_the_training_of_nearly_all_allowed(book: UseBook) -> None:
    """Their sums have no number of a silo in common, so that no difference shows one."""
    book.send(book.use(phase="evaluate-all.0", reads=READS_HOLDOUT))
    book.reveal(FULL, phase="evaluate-all.0")
    book.send(book.use(round=2, is_drawn=True, reads=READS_TRAINING))
    book.reveal(FIVE, round=2)


@pytest.mark.parametrize("reads", [READS_ALL, READS_HOLDOUT])
def test_a_second_test_over_nearly_all_silos_shows_a_hold_out_and_is_refused(
    book: UseBook, reads: int
) -> None:
    """A round that tests, or another job's: the missing silo's correct answers would be the difference."""
    book.send(book.use(phase="evaluate-all.0", reads=READS_HOLDOUT))
    book.reveal(FULL, phase="evaluate-all.0")
    book.send(book.use(round=2, reads=reads))
    refused(Refusal.OVERLAPPING_COHORT, "differs by 1 silos", lambda: book.sign(FIVE, round=2))
    # what a use tells of is kept: the ledger of a restarted agent compares alike
    book.reopen()
    refused(Refusal.OVERLAPPING_COHORT, "differs by 1 silos", lambda: book.sign(FIVE, round=2, attempt=2))


# what counts as a use


def test_a_use_is_made_of_job_and_state(book: UseBook) -> None:
    key = PhaseKey(job_digest=book.job.digest, round=1, phase="train", attempt=1)
    rule = CohortRule.for_members(6)  # min_cohort 4

    def made(kind: str = "train", **changes: Any) -> StateUse | None:
        of = dataclasses.replace(key, phase=kind)
        return StateUse.of(book.job, of, STATE, **{"rule": rule, "assumed_colluders": 1, **changes})

    use = made()
    assert use is not None
    assert (use.min_distance, use.members) == (4, 6)
    assert use.training_digests == (book.job.strategy.use_digest("train", STATE),)
    many = made(assumed_colluders=5)
    assert many is not None
    assert many.min_distance == 7  # two more than may collude
    assert made("evaluate.0") == dataclasses.replace(use, phase="evaluate.0")
    assert made("enrollment.0") is None
    assert use.reads == READS_ALL


def test_what_a_use_tells_of_follows_from_the_job(book: UseBook) -> None:
    """Of hold-outs alone where all silos test between rounds; then no round tells of any."""
    fields = {"rounds": 5, "silos": [f"silo-{place}" for place in range(10)], "fraction": 0.3}
    values = book.job.spec.model_dump() | {**fields, "evaluate_all_every": 2}
    job = dataclasses.replace(book.job, spec=JobSpec.model_validate(values))
    rule = CohortRule.for_members(6)

    def reads(round: int, phase: str) -> int:
        key = PhaseKey(job_digest=job.digest, round=round, phase=phase, attempt=1)
        use = StateUse.of(job, key, STATE, rule=rule, assumed_colluders=1)
        assert use is not None
        return use.reads

    assert {reads(round, "train") for round in (1, 2, 3, 4, 5)} == {READS_TRAINING}
    assert reads(2, "evaluate-all.0") == READS_HOLDOUT
    assert reads(5, "evaluate.0") == READS_ALL

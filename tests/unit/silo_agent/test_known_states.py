"""The states that a silo knows to be computed: never back, one outcome a phase, also after a restart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from chorale.transport.wire import PhaseKey
from crypto.errors import PolicyRefusal, Refusal
from crypto.identity.certificates import SignedBody
from crypto.session.sum_check import SumCheck
from silo_agent.disclosure.ledger.known_states import FIRST, KnownState, KnownStates
from silo_agent.disclosure.ledger.ledger import Ledger
from silo_agent.disclosure.policy.policy import Policy

JOB, OTHER = b"j" * 32, b"o" * 32
TRAIN = PhaseKey(job_digest=JOB, round=1, phase="train", attempt=1)
SIGNED = SignedBody(body=b"this state", signature=b"s" * 64)
CHECK = SumCheck(
    federation="test",
    job_digest=JOB,
    round=1,
    phase="train",
    attempt=1,
    session_digest=b"s" * 32,
    layout_digest=b"l" * 32,
    state_digest=b"p" * 32,
    threshold=3,
    members=3,
    cohort_digest=b"c" * 32,
    name="a",
    sharers=("a", "b", "c"),
    certificates=dict.fromkeys("abc", b"certificate"),
    self_mask_commitments=dict.fromkeys("abc", b"h" * 32),
    sum_key=b"k" * 32,
)


class Book:
    """`known` as the ledger has it; `restart` opens the file again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ledger = Ledger(path)

    @property
    def known(self) -> KnownStates:
        return self._ledger.known_states()

    def keep(self, check: SumCheck) -> None:
        self._ledger.budget(policy=Policy(federation="test"), data_set="data").keep_check(check)

    def restart(self) -> None:
        self.close()
        self._ledger = Ledger(self._path)

    def close(self) -> None:
        self._ledger.close()


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Book]:
    made = Book(tmp_path / "ledger.sqlite")
    yield made
    made.close()


def state(position: tuple[int, int, int], digest: bytes = b"d", seed: bytes = b"") -> KnownState:
    return KnownState(position=position, state_digest=digest * 32, draw_seed=seed)


def test_nothing_is_known_of_a_job_before_its_first_phase(book: Book) -> None:
    book.known.accept(OTHER, state(FIRST))
    assert book.known.newest(JOB) is None


def test_the_newest_state_survives_a_restart(book: Book) -> None:
    book.known.accept(JOB, state(FIRST))
    book.known.accept(JOB, state((1, 0, 0), b"e", seed=b"s" * 32))
    book.restart()
    assert book.known.newest(JOB) == state((1, 0, 0), b"e", seed=b"s" * 32)


@pytest.mark.parametrize(
    "older",
    [
        state(FIRST),
        state((0, 5, 5)),
        state((2, 0, 9)),
        state((2, 1, 0)),
        state((2, 1, 1), b"f"),
        state((2, 1, 1), seed=b"s" * 32),
    ],
    ids=["first", "round", "stage", "number", "other digest", "other seed"],
)
def test_no_state_takes_the_place_of_a_later_one_or_of_one_of_the_same_phase(
    book: Book, older: KnownState
) -> None:
    newest = state((2, 1, 1))
    book.known.accept(JOB, newest)
    book.restart()
    with pytest.raises(PolicyRefusal, match="a later global state is known here") as refused:
        book.known.accept(JOB, older)
    assert refused.value.code is Refusal.STATE
    with pytest.raises(PolicyRefusal, match="a later global state is known here"):
        book.known.sign(replace(TRAIN, round=2), SIGNED, older)
    assert book.known.signed(replace(TRAIN, round=2)) is None
    book.known.accept(JOB, newest)  # the same again is no step
    assert book.known.newest(JOB) == newest


def test_a_phase_has_one_outcome_in_all_its_attempts(book: Book) -> None:
    newest = state((1, 0, 0))
    book.known.sign(TRAIN, SIGNED, newest)
    book.restart()
    assert book.known.signed(TRAIN) == SIGNED
    assert book.known.signed(replace(TRAIN, attempt=2)) == SIGNED
    book.known.sign(TRAIN, SIGNED, newest)  # the same again
    other = SignedBody(body=b"another state", signature=b"s" * 64)
    for key in (TRAIN, replace(TRAIN, attempt=2)):
        with pytest.raises(PolicyRefusal, match="another outcome of this phase was signed") as refused:
            book.known.sign(key, other, state((1, 0, 1)))
        assert refused.value.code is Refusal.STATE
    assert (book.known.signed(TRAIN), book.known.newest(JOB)) == (SIGNED, newest)
    assert book.known.signed(replace(TRAIN, job_digest=OTHER)) is None


def test_a_signed_outcome_is_the_newest_state(book: Book) -> None:
    book.known.accept(JOB, state(FIRST))
    book.known.sign(TRAIN, SIGNED, state((1, 0, 0), b"n"))
    assert book.known.newest(JOB) == state((1, 0, 0), b"n")


def test_what_checks_a_sum_survives_a_restart_and_the_round_after_its_own(book: Book) -> None:
    """It proves who was in an earlier sum over the same model."""
    for job_digest in (JOB, OTHER):
        book.known.accept(job_digest, state(FIRST, b"p"))
    book.keep(CHECK)
    book.keep(replace(CHECK, attempt=2, sum_key=b"2" * 32))
    book.keep(replace(CHECK, job_digest=OTHER))
    book.restart()
    assert book.known.check_of(TRAIN) == CHECK
    second = book.known.check_of(replace(TRAIN, attempt=2))
    assert second is not None
    assert second.sum_key == b"2" * 32
    assert book.known.check_of(replace(TRAIN, round=2)) is None
    book.known.accept(JOB, state(FIRST, b"p"))  # no step
    for round in (1, 2):
        book.known.accept(JOB, state((round, 0, 0)))
        book.restart()
        assert book.known.check_of(TRAIN) == CHECK
    book.known.accept(JOB, state((3, 0, 0)))
    assert book.known.check_of(TRAIN) is None
    assert book.known.check_of(replace(TRAIN, attempt=2)) is None
    assert book.known.check_of(replace(TRAIN, job_digest=OTHER)) is not None


@pytest.mark.parametrize("newest", [state((1, 0, 0), b"n"), None], ids=["another state", "no state"])
def test_no_check_is_kept_of_an_input_over_any_but_the_newest_state(
    book: Book, newest: KnownState | None
) -> None:
    if newest is not None:
        book.known.accept(JOB, state(FIRST, b"p"))
        book.keep(replace(CHECK, attempt=2))  # the control
        book.known.accept(JOB, newest)
    with pytest.raises(PolicyRefusal, match="is not the newest known any more") as refused:
        book.keep(CHECK)
    assert refused.value.code is Refusal.STATE
    assert book.known.check_of(TRAIN) is None


def test_keys_of_sums_are_erased_from_the_file(book: Book, tmp_path: Path) -> None:
    """With them the tags of an old sum can be made to fit another."""
    marked = replace(CHECK, sum_key=bytes(range(32)))
    book.known.accept(JOB, state(FIRST, b"p"))
    book.keep(marked)
    book.known.accept(JOB, state((2, 0, 0)))
    book.restart()
    assert marked.sum_key in _bytes_of(tmp_path)
    book.known.accept(JOB, state((3, 0, 0)))
    book.restart()
    assert marked.sum_key not in _bytes_of(tmp_path)


def test_bad_sums_are_counted_by_phase_and_by_job(book: Book) -> None:
    assert book.known.note_bad_sum(TRAIN) == 1
    book.restart()
    assert book.known.note_bad_sum(replace(TRAIN, attempt=2)) == 1  # of the same phase
    assert book.known.note_bad_sum(replace(TRAIN, job_digest=OTHER)) == 1
    assert book.known.note_bad_sum(replace(TRAIN, round=2)) == 2


def _bytes_of(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.glob("ledger.sqlite*"))

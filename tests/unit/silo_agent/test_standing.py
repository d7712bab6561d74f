"""A ledger that was put back from a snapshot is found by what peers keep of it.

Before, a silo whose whole directory was put back went on: it spent again what it had forgotten, and could
reveal a phase twice. Sessions are the protocol's own, ledgers are on disk.
"""

from __future__ import annotations

import dataclasses
import secrets
import shutil
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from chorale.transport.wire import MAX_MESSAGE_BYTES, MAX_SILOS, PhaseKey, to_silo
from crypto.errors import PolicyRefusal, Refusal, RemoteProtocolError
from crypto.identity.certificates import SignedBody
from crypto.session import bodies
from crypto.session.bodies import sign_statement
from crypto.session.cohort import MAX_ECHOES, neighbors
from crypto.session.messages import Advert, Cohort, Envelopes, LedgerMark, LedgerStatement
from silo_agent.disclosure.ledger.ledger import Ledger
from silo_agent.disclosure.ledger.reveals import Reveals
from silo_agent.disclosure.ledger.standing import settle
from silo_agent.disclosure.policy.policy import Policy
from tests.support import sessions
from tests.support.sessions import NOW, Exchange, Federation

VICTIM = "silo-000"
JOB = b"j" * 32
POLICY = Policy(federation="test", max_cohort_changes=1000)


class Silos:
    """Four silos with ledgers on disk; each round is one session of all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = NOW
        self.federation: Federation = sessions.make_federation(4)
        self.ledgers: dict[str, Ledger] = {}
        for name in self.federation.names:
            self.open(name)
        self.round = 0

    def open(self, name: str) -> Reveals:
        ledger = Ledger(self.folder / name / "ledger.sqlite", clock=self.clock)
        with ledger._database.transaction() as connection:
            connection.execute(
                "INSERT INTO jobs (job_digest, name, operator, rounds, max_attempts, decision,"
                " offered_unix_seconds) VALUES (?, 'job', 'ops', 1000, 9, 'approved', 0.0)"
                " ON CONFLICT DO NOTHING",
                (JOB,),
            )
        self.ledgers[name] = ledger
        return self.reveals(name)

    def clock(self) -> datetime:
        return self.now

    def reveals(self, name: str, data_set: str = "data") -> Reveals:
        return self.ledgers[name].reveals(policy=POLICY, data_set=data_set)

    def session(self) -> Exchange:
        """Of the next round."""
        self.round += 1
        self.now += timedelta(seconds=5)
        ledgers: Any = {name: self.reveals(name) for name in self.federation.names}
        return sessions.make_exchange(self.federation, ledgers=ledgers, round=self.round)

    def put_back(self, name: str, copy: Path | None) -> None:
        """The whole folder as it was; None: an empty one."""
        self.ledgers[name].close()
        shutil.rmtree(self.folder / name)
        if copy is not None:
            shutil.copytree(copy, self.folder / name)
        self.open(name)

    def snapshot(self, name: str) -> Path:
        self.ledgers[name].close()
        copy = self.folder / f"copy-{self.round}-of-{name}"
        shutil.copytree(self.folder / name, copy)
        self.open(name)
        return copy

    def kept(self, by: str, of: str = VICTIM) -> LedgerStatement:
        return self.reveals(by).peer_statements([of])[of]

    def forget(self, name: str) -> None:
        """The silo keeps nothing of others."""
        with self.ledgers[name]._database.transaction() as connection:
            connection.execute("DELETE FROM peer_statements")


@pytest.fixture
def silos(tmp_path: Path) -> Iterator[Silos]:
    made = Silos(tmp_path)
    yield made
    for ledger in made.ledgers.values():
        ledger.close()


def check_refused(silos: Silos) -> None:
    """The victim refuses before it deals a share, on every data set, and after it opened its ledger again."""
    session = silos.session()
    session.advertise()
    with pytest.raises(PolicyRefusal, match="it was put back from a snapshot") as refused:
        session.share()
    assert refused.value.code is Refusal.LEDGER
    assert len(session.answers[VICTIM]) == 1  # its advert
    silos.ledgers[VICTIM].close()
    silos.open(VICTIM)
    other_phase = sessions.make_terms(silos.federation, round=silos.round + 1)
    for data_set in ("data", "another"):
        for step in ("check_attempt", "begin_attempt"):
            with pytest.raises(PolicyRefusal, match="put the newest ledger back, or charge") as again:
                getattr(silos.reveals(VICTIM, data_set), step)(other_phase)
            assert again.value.code is Refusal.LEDGER
    budget = silos.ledgers[VICTIM].budget(policy=POLICY, data_set="another")
    with pytest.raises(PolicyRefusal, match="it was put back") as spending:
        budget.spend(b"i" * 16)
    assert spending.value.code is Refusal.LEDGER


@pytest.mark.parametrize("is_put_back", [True, False])
def test_a_silo_refuses_once_its_ledger_was_put_back(silos: Silos, is_put_back: bool) -> None:
    silos.session().run()
    copy = silos.snapshot(VICTIM)
    silos.session().run()
    if not is_put_back:  # the control: a restart alone
        silos.ledgers[VICTIM].close()
        silos.open(VICTIM)
        silos.session().run()
        return
    silos.put_back(VICTIM, copy)
    check_refused(silos)


@pytest.mark.parametrize("keepers, is_found", [(["silo-002"], True), ([], False)])
def test_one_peer_that_kept_a_later_statement_is_enough(
    silos: Silos, keepers: list[str], is_found: bool
) -> None:
    silos.session().run()
    copy = silos.snapshot(VICTIM)
    silos.session().run()
    silos.put_back(VICTIM, copy)
    for name in silos.federation.names[1:]:
        if name not in keepers:
            silos.forget(name)
    if is_found:
        check_refused(silos)
    else:  # the control, and its sentence: no peer remembers, so nobody notices
        silos.session().run()


def test_a_copy_that_went_on_by_itself_is_found_at_the_same_and_at_higher_sequences(silos: Silos) -> None:
    # a rule on the sequence alone would let this one pass: it is past what peers keep
    silos.session().run()
    copy = silos.snapshot(VICTIM)
    silos.session().run()
    lost = silos.kept("silo-001").sequence
    silos.put_back(VICTIM, copy)
    silos.now -= timedelta(seconds=5)
    for sequence in (lost, lost + 1):
        silos.now = datetime.fromtimestamp(sequence, NOW.tzinfo)
        terms = sessions.make_terms(silos.federation, round=silos.round + 1, attempt=sequence - lost + 1)
        assert silos.reveals(VICTIM).begin_attempt(terms).sequence == sequence
    check_refused(silos)


def test_an_echo_that_the_owner_did_not_make_is_ignored(silos: Silos) -> None:
    silos.session().run()
    real = silos.kept("silo-001")
    liar = silos.federation.silos["silo-002"]
    other_mark = LedgerMark(real.sequence + 1000, secrets.token_bytes(bodies.MARK_BYTES))
    forged = [
        sign_statement(liar, other_mark),
        LedgerStatement(*other_mark, b"\x30\x00"),
        real._replace(sequence=real.sequence + 1000),  # its signature and mark are for another one
    ]
    for name, statement in zip(silos.federation.names[1:], forged, strict=True):
        silos.reveals(name).keep_statements({VICTIM: statement})
    silos.session().run()


def test_a_hostile_coordinator_cannot_make_a_peer_forget(silos: Silos) -> None:
    """It shows the peer the advert of the silo that was put back, and hides the peer's echo from it."""
    silos.session().run()
    copy = silos.snapshot(VICTIM)
    silos.session().run()
    silos.put_back(VICTIM, copy)
    witness, others = "silo-001", ("silo-002", "silo-003")
    for name in others:
        silos.forget(name)
    before = silos.kept(witness)
    session = silos.session()
    adverts = {name: session.silos[name].advertise() for name in session.terms.names}
    shown = Cohort(adverts=tuple(adverts[name] for name in (VICTIM, *others)))
    dealt = session.silos[VICTIM].receive(shown)  # it sees no echo, so it continues
    session.silos[witness].receive(Cohort(adverts=tuple(adverts.values())))
    relayed = sessions.make_exchange(
        session.federation
    )  # honest envelopes, of which one is of another cohort
    relayed.advertise()
    relayed.share()
    envelopes = relayed.coordinator.close_share()[witness]
    swapped = tuple(
        dataclasses.replace(each, dealing=dealt.dealing, envelope=dealt.envelopes[0])
        for each in envelopes.envelopes
    )
    with pytest.raises(RemoteProtocolError, match="signed for another cohort"):
        session.silos[witness].receive(Envelopes(sharers=envelopes.sharers, envelopes=swapped))
    assert silos.kept(witness) == before
    check_refused(silos)


def test_an_older_statement_takes_no_newer_ones_place(silos: Silos) -> None:
    first = silos.session()
    first.run_until("masked")  # all have dealt; then the coordinator runs another session, and this one after
    silos.session().run()
    newer = silos.kept("silo-001")
    first.mask()
    assert silos.kept("silo-001") == newer


@pytest.mark.parametrize("has_new_certificate", [True, False])
@pytest.mark.parametrize("is_empty", [True, False])
def test_ledgers_that_were_put_back_are_found_under_a_new_certificate_too(
    silos: Silos, is_empty: bool, has_new_certificate: bool
) -> None:
    silos.session().run()
    copy = silos.snapshot(VICTIM)
    silos.session().run()
    silos.put_back(VICTIM, None if is_empty else copy)
    if has_new_certificate:
        kept = silos.kept("silo-001")
        renewed = silos.federation.issue(VICTIM)
        is_signed = lambda statement: bodies.is_signed_by(renewed, statement)  # noqa: E731
        if is_empty:  # as docs/protocol.md 6.6 asks of a silo that lost its ledger: it is a new one
            return silos.reveals(VICTIM).check_echoes([kept], is_signed=is_signed)
        with pytest.raises(PolicyRefusal, match="it was put back"):
            silos.reveals(VICTIM).check_echoes([kept], is_signed=is_signed)
    else:
        check_refused(silos)


def test_what_a_statement_says_counts_no_reservations(silos: Silos) -> None:
    def reserve(round: int) -> None:
        with silos.ledgers[VICTIM]._database.transaction() as connection:
            connection.execute(
                "INSERT INTO releases VALUES (?, 'data', ?, ?, 'train', NULL, 1e-5, 'reserved', x'00', 0.0)",
                (secrets.token_bytes(16), JOB, round),
            )

    terms = sessions.make_terms(silos.federation)
    first = silos.reveals(VICTIM).begin_attempt(terms)
    assert first.sequence == int(silos.now.timestamp())
    for _ in range(50):
        reserve(7)
    silos.now += timedelta(seconds=60)
    second = silos.reveals(VICTIM).begin_attempt(dataclasses.replace(terms, round=2))
    assert second.sequence == first.sequence + 60
    third = silos.reveals(VICTIM).begin_attempt(dataclasses.replace(terms, round=2, attempt=2))
    assert third.sequence == second.sequence + 1  # the clock stands, and it rises all the same
    silos.now -= timedelta(hours=1)
    assert (
        silos.reveals(VICTIM).begin_attempt(dataclasses.replace(terms, round=3)).sequence
        == third.sequence + 1
    )


def test_a_mark_covers_the_reservation_of_the_phase(silos: Silos) -> None:
    # else a ledger from which rows were taken could say the same again
    silos.session().run()
    copy = silos.snapshot(VICTIM)
    marks = []
    for reserved in (b"one", b"two", b"two"):
        silos.put_back(VICTIM, copy)
        with silos.ledgers[VICTIM]._database.transaction() as connection:
            connection.execute(
                "INSERT INTO releases VALUES (?, 'data', ?, 9, 'train', NULL, 1e-5, 'reserved', x'00', 0.0)",
                (reserved, JOB),
            )
        marks.append(silos.reveals(VICTIM).begin_attempt(sessions.make_terms(silos.federation, round=9)))
    assert marks[0] != marks[1] == marks[2]


def test_recovery_settles_what_was_lost_and_nothing_later(silos: Silos) -> None:
    silos.session().run()
    copy = silos.snapshot(VICTIM)
    silos.session().run()
    silos.put_back(VICTIM, copy)
    check_refused(silos)
    with silos.ledgers[VICTIM]._database.transaction() as connection:
        a_day_ahead = silos.now + timedelta(days=1)  # a later statement stands above it all the same
        settle(connection, unix_seconds=a_day_ahead.timestamp())
    silos.session().run()
    later = silos.snapshot(VICTIM)
    silos.put_back(VICTIM, copy)  # from before the recovery
    check_refused(silos)
    silos.put_back(VICTIM, later)  # nothing left since
    silos.session().run()
    silos.put_back(VICTIM, later)
    check_refused(silos)


# adverts


def test_an_advert_echoes_its_next_neighbors_and_no_others() -> None:
    names = tuple(f"silo-{place:03}" for place in range(40))
    assert neighbors("silo-030", names) == {*names[31:], *names[:23]}
    assert len(neighbors("silo-000", names)) == MAX_ECHOES
    assert neighbors("silo-1", ("silo-0", "silo-1", "silo-2")) == {"silo-0", "silo-2"}


Change = Callable[[Advert], dict[str, Any]]
FAR = LedgerStatement(1, bytes(32), b"\x30\x00")


@pytest.mark.parametrize(
    "change, expected",
    [
        (lambda advert: {"echoes": (("silo-000", FAR),)}, "echoes silos that are not its neighbors"),
        (lambda advert: {"echoes": (("silo-009", FAR),)}, "echoes silos that are not its neighbors"),
        (lambda advert: {"echoes": advert.echoes[::-1]}, "or out of order"),
        (lambda advert: {"echoes": (advert.echoes[0],) * 2}, "or out of order"),
        (lambda advert: {"statement": FAR._replace(mark=bytes(31))}, "expected 32 bytes, got 31"),
        (lambda advert: {"statement": FAR._replace(sequence=1 << 63)}, "too large a sequence"),
        (lambda advert: {"statement": FAR._replace(signature=bytes(73))}, "no signature of a silo"),
        (lambda advert: {"statement": FAR._replace(signature=b"")}, "no signature of a silo"),
    ],
)
def test_malformed_echoes_are_refused(change: Change, expected: str) -> None:
    federation = sessions.make_federation(4)
    ledger = sessions.MemoryLedger()
    ledger.keep_statements(dict.fromkeys(("silo-001", "silo-003"), FAR))
    terms = sessions.make_terms(federation)
    honest = sessions.make_silo(federation, terms, "silo-000", ledger).advertise()

    def opened(signed: SignedBody) -> Advert:
        return bodies.open_advert(
            signed,
            terms=terms,
            session_digest=terms.digest(),
            roster=federation.roster,
            authority=federation.authority,
            now=NOW,
        ).advert

    advert = opened(honest)  # the control
    assert [peer for peer, _ in advert.echoes] == ["silo-001", "silo-003"]
    changed = dataclasses.replace(advert, **change(advert))
    with pytest.raises(RemoteProtocolError, match=expected):
        opened(bodies.sign(federation.silos["silo-000"], changed))


def test_adverts_of_200_silos_stay_far_below_what_a_message_holds() -> None:
    name, terms = "silo-000", sessions.make_terms(sessions.make_federation(4))
    advert = bodies.read_advert(
        sessions.make_silo(sessions.make_federation(4), terms, name).advertise()
    ).advert
    signature = bytes(bodies.MAX_SIGNATURE_BYTES)
    largest = LedgerStatement(bodies.MAX_SEQUENCE, bytes(bodies.MARK_BYTES), signature)
    echoes = tuple((f"{place:063}", largest) for place in range(MAX_ECHOES))
    full = dataclasses.replace(advert, name=63 * "x", statement=largest, echoes=echoes)
    body = bodies.body_of(full)
    assert len(body) <= bodies.MAX_ADVERT_BYTES
    signed = SignedBody(body=body, signature=signature)
    key = PhaseKey(job_digest=bytes(32), round=1, phase="train", attempt=1)
    message = to_silo(Cohort(adverts=(signed,) * MAX_SILOS), key)
    assert message.ByteSize() < MAX_MESSAGE_BYTES / 2

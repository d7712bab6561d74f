"""The control of a test with a coordinator that deviates, what a refusal is, and attacks played in memory."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from crypto.errors import LocalProtocolError, PolicyRefusal, Refusal, RemoteProtocolError
from crypto.session import bodies
from crypto.session.messages import Shares
from crypto.session.silo_session import EnvelopeComplaint, SiloSession, SiloState
from tests.support.attacks import (
    SPARE,
    Advertises,
    Attack,
    Play,
    Refused,
    Restarted,
    Told,
    Unknown,
    signed_again,
    told_next,
)
from tests.support.sessions import Exchange, make_exchange, make_session, make_silo

VICTIM = "silo-001"


def honest(silos: int = 5, **changes) -> Exchange:
    """The control: the same exchange without the tampering reveals exactly the sum."""
    control = make_session(silos, **changes)
    assert np.array_equal(control.run(), control.expected())
    return make_session(silos, **changes)


def assert_refused(silo: SiloSession, message, match: str, code: Refusal) -> None:
    """Refused by name, and the session is over for good without its secrets."""
    with pytest.raises((RemoteProtocolError, PolicyRefusal), match=match) as caught:
        silo.receive(message)
    assert caught.value.code is code
    assert not isinstance(caught.value, EnvelopeComplaint)  # nobody is accused
    assert silo.state is (SiloState.ENDED if code is Refusal.LEFT_OUT else SiloState.FAILED)
    assert silo._held is None
    with pytest.raises(LocalProtocolError, match="session: it is over"):
        silo.receive(message)


def come_to(exchange: Exchange, stage: str, *, earlier: Play | None = None) -> Play:
    """At `unmask` the last silo is lost."""
    federation, names = exchange.federation, exchange.terms.names
    exchange.run_until(stage, {"masked": [names[-1]]} if stage == "unmask" else {})
    dealt = {name: answers[1] for name, answers in exchange.answers.items() if len(answers) > 1}
    return Play(
        names=names,
        silos=federation.silos | {SPARE: federation.spare},
        session=exchange.coordinator,
        issue=federation.issue,
        told=told_next(exchange.coordinator, stage),
        dealt=dealt,
        earlier=earlier,
    )


def play_in_memory(attack: Attack) -> None:
    """Every step of the script, then that nothing left which an honest exchange would not have seen."""
    exchange, earlier = honest(attack.silos), None
    if attack.replays:
        earlier = come_to(exchange, attack.stage)
        exchange = make_exchange(exchange.federation, ledgers=exchange.ledgers, attempt=2)
    script, answer = attack.script(come_to(exchange, attack.stage, earlier=earlier)), None
    while True:
        try:
            step = script.send(answer)
        except StopIteration:
            break
        answer = None
        match step:
            case Told(name, message):
                answer = exchange.silos[name].receive(message)
            case Refused(name, message, code, reason):
                assert_refused(exchange.silos[name], message, reason, code)
            case Restarted(name):
                exchange.silos[name] = resumed(exchange, name)
            case Advertises(name):
                answer = exchange.silos[name].advertise()
            case Unknown(name):
                assert not exchange.ledgers[name].pending
                assert exchange.silos[name].state is SiloState.READY
    assert not exchange.sent
    assert attack.answers or not any(ledger.revealed for ledger in exchange.ledgers.values())
    assert attack.stage in ("consistency", "unmask") or exchange.nothing_left()


def resumed(exchange: Exchange, name: str) -> SiloSession:
    """The silo after a restart, from its ledger alone."""
    ledger, identity = exchange.ledgers[name], exchange.federation.silos[name]
    key = (exchange.terms.job_digest, exchange.terms.round, exchange.terms.phase)
    row = ledger.revealed.get(key) or ledger.pending.get(key)
    if row is None:
        return make_silo(exchange.federation, exchange.terms, name, ledger)
    row = type(row).from_bytes(row.to_bytes())
    return SiloSession.resume(row, revealed=key in ledger.revealed, identity=identity, ledger=ledger)


def with_first_envelope(exchange: Exchange, dealer: str, shares: Shares, **changes: bytes) -> Shares:
    """The dealer's message with fields of its first envelope changed, signed as if it had meant them."""
    receiver = next(name for name in exchange.terms.names if name != dealer)
    made = bodies.read_envelope(
        shares.envelopes[0],
        cohort_digest=exchange.coordinator.cohort_digest,
        sender=dealer,
        receiver=receiver,
    )
    changed = bodies.body_of(dataclasses.replace(made, **changes))
    silos, session = exchange.federation.silos, exchange.coordinator
    return signed_again(silos, session, dealer, shares, envelopes=(changed, *shares.envelopes[1:]))

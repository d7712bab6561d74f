"""A silo's machine: its table, what it keeps, what it repeats after a restart."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from crypto.errors import LocalProtocolError, PolicyRefusal, Refusal, RemoteProtocolError
from crypto.session.coordinator_session import CoordinatorSession
from crypto.session.messages import Cohort, Envelopes, RecoverRequest, Signatures, Survivors
from crypto.session.reveal import PendingReveal
from crypto.session.silo_session import OVER, TRANSITIONS, SiloSession, SiloState
from tests.support.sessions import NOW, Exchange, make_exchange, make_federation, make_session, make_silo

MESSAGES = {
    Cohort: Cohort(adverts=()),
    Envelopes: Envelopes(sharers=(), envelopes=()),
    Survivors: Survivors(survivors=()),
    Signatures: Signatures(signatures={}),
    RecoverRequest: RecoverRequest(names=()),
}
REACHED = {  # how far a session is driven so that silo-000 is in the state
    SiloState.READY: "advertise",
    SiloState.ADVERTISED: "share",
    SiloState.SHARED: "masked",
    SiloState.MASKED: "consistency",
    SiloState.SIGNED: "unmask",
}
ILLEGAL = [
    pair for pair in itertools.product(SiloState, MESSAGES) if pair not in TRANSITIONS and pair[0] not in OVER
]


def in_state(state: SiloState) -> SiloSession:
    exchange = make_session(3)
    if state is SiloState.REVEALED:
        exchange.run()
    else:
        exchange.run_until(REACHED[state])
    assert exchange.silos["silo-000"].state is state
    return exchange.silos["silo-000"]


@pytest.mark.parametrize("state, kind", ILLEGAL)
def test_illegal_message_fails_the_session_for_good_and_drops_its_secrets(state, kind):
    silo = in_state(state)
    assert silo._held is not None
    match = f"got {kind.__name__} in state {state.value}"
    with pytest.raises(RemoteProtocolError, match=match) as caught:
        silo.receive(MESSAGES[kind])
    assert caught.value.code is Refusal.STAGE
    assert silo.state is SiloState.FAILED
    assert silo._held is None
    for message in MESSAGES.values():
        with pytest.raises(LocalProtocolError, match="it is over, failed"):
            silo.receive(message)
    with pytest.raises(LocalProtocolError, match="cannot advertise in state failed"):
        silo.advertise()


@pytest.mark.parametrize("state, kind", [pair for pair in TRANSITIONS if pair[1] is not RecoverRequest])
def test_empty_message_in_its_own_state_fails_the_session(state, kind):
    silo = in_state(state)
    with pytest.raises(RemoteProtocolError, match=r"U1|left out|expected"):
        silo.receive(MESSAGES[kind])
    assert silo.state in OVER
    assert silo._held is None


@pytest.mark.parametrize("state", [*REACHED, SiloState.REVEALED])
def test_end_drops_the_secrets(state):
    silo = in_state(state)
    silo.end()
    silo.end()
    assert silo.state is SiloState.ENDED
    assert silo._held is None
    with pytest.raises(LocalProtocolError, match="it is over, ended"):
        silo.receive(MESSAGES[Cohort])


def test_end_leaves_a_failed_session_failed():
    silo = in_state(SiloState.READY)
    with pytest.raises(RemoteProtocolError, match="got Cohort in state ready"):
        silo.receive(MESSAGES[Cohort])
    silo.end()
    assert silo.state is SiloState.FAILED


def test_each_state_holds_only_the_secrets_that_later_stages_need():
    exchange = make_session(3)
    silo = exchange.silos["silo-000"]
    exchange.run_until("share")
    secrets = silo._held.secrets
    exchange.share()
    assert silo._held.secrets is secrets
    exchange.mask()
    assert not hasattr(silo._held, "secrets")  # b, r and both private keys
    exchange.consistency()
    assert isinstance(silo._held, PendingReveal)


def test_secrets_stand_in_no_repr():
    exchange = make_session(4)
    silo = exchange.silos["silo-000"]
    planted = []
    exchange.run_until("share")
    secrets = silo._held.secrets
    planted += [secrets.self_mask_seed, secrets.recovery_seed]
    reprs = [repr(silo._held)]
    exchange.share()
    planted += [silo._held.dealt.own_share, *silo._held.dealt.pair_seeds.values()]
    reprs.append(repr(silo._held))
    exchange.mask(drop=["silo-003"])
    planted += [given.recovery_share for given in silo._held.received.values()]
    reprs += [repr(silo._held), repr(exchange.maskers["silo-000"])]
    exchange.consistency()
    reprs += [repr(silo._held), repr(silo)]
    exchange.unmask()
    reprs += [repr(exchange.sent), repr(exchange.plan), repr(exchange.coordinator)]
    for text, secret in itertools.product(reprs, planted):
        assert repr(secret)[2:-1] not in text
        assert secret.hex() not in text


def test_ledger_is_asked_before_anything_leaves():
    exchange = make_session(3)
    ledger, silo = exchange.ledgers["silo-000"], exchange.silos["silo-000"]
    exchange.run_until("unmask")
    assert ledger.log == ["begin_attempt", "check_reveal", "write_pending"]
    exchange.unmask()
    assert ledger.log[3:] == ["mark_revealed"]
    assert silo.state is SiloState.REVEALED


def test_ledger_that_refuses_the_attempt_fails_the_session_before_a_key_is_made():
    exchange = make_session(3)
    exchange.run()
    silo = make_silo(exchange.federation, exchange.terms, "silo-000", exchange.ledgers["silo-000"])
    with pytest.raises(PolicyRefusal, match="revealed before"):
        silo.advertise()
    assert silo.state is SiloState.FAILED
    assert silo._held is None


def test_repeated_signatures_get_the_identical_answer_and_mark_the_ledger_once():
    exchange = make_session(4)
    exchange.run()
    request = exchange.coordinator.unmask_request()
    for name, silo in exchange.silos.items():
        assert silo.receive(request) == exchange.sent[name]
        assert exchange.ledgers[name].log.count("mark_revealed") == 1


@pytest.mark.parametrize("is_revealed", [False, True])
def test_resumed_silo_gives_the_identical_answer_and_recovers_for_lost_silos(is_revealed):
    exchange = make_session(6)
    exchange.run_until("unmask", {"masked": ["silo-003"]})
    request = exchange.coordinator.close_consistency()
    names = exchange.coordinator.survivors
    rows = {name: next(iter(exchange.ledgers[name].pending.values())) for name in names}
    before = {name: exchange.silos[name].receive(request) for name in names}
    recovered = {name: exchange.silos[name].receive(RecoverRequest(names=("silo-003",))) for name in names}
    for name in names:
        if not is_revealed:  # it died after it signed
            exchange.ledgers[name].revealed.clear()
            exchange.ledgers[name].write_pending(rows[name])
        silo = SiloSession.resume(
            PendingReveal.from_bytes(rows[name].to_bytes()),
            revealed=is_revealed,
            identity=exchange.federation.silos[name],
            ledger=exchange.ledgers[name],
        )
        assert silo.receive(request) == before[name]
        assert silo.receive(RecoverRequest(names=("silo-003",))) == recovered[name]
        assert silo.state is SiloState.REVEALED
        assert len(exchange.ledgers[name].revealed) == 1
        exchange.coordinator.on_unmask(name, before[name])
    exchange.close_unmask()
    assert np.array_equal(exchange.revealed(), exchange.expected())


def test_row_of_another_silo_cannot_be_resumed():
    exchange = make_session(3)
    exchange.run_until("unmask")
    row = next(iter(exchange.ledgers["silo-000"].pending.values()))
    with pytest.raises(LocalProtocolError, match="written by silo-000, not by this silo"):
        SiloSession.resume(
            row,
            revealed=False,
            identity=exchange.federation.silos["silo-001"],
            ledger=exchange.ledgers["silo-001"],
        )


def test_pending_row_survives_its_bytes_and_damaged_bytes_are_refused():
    exchange = make_session(4)
    exchange.run_until("unmask", {"masked": ["silo-003"]})
    row = next(iter(exchange.ledgers["silo-000"].pending.values()))
    data = row.to_bytes()
    assert PendingReveal.from_bytes(data) == row
    assert row.lost == ("silo-003",)
    assert set(row.certificates) == set(exchange.terms.names)
    for damaged in (data[:-1], data + b"\0", b"", data.replace(b"pending", b"gnidnep")):
        with pytest.raises(RemoteProtocolError, match=r"pending-reveal|pending reveal"):
            PendingReveal.from_bytes(damaged)


def test_silo_whose_roster_has_expired_does_not_join():
    federation = make_federation(3)
    terms = make_session(3).terms
    late = federation.roster.expires.replace(year=2027)
    with pytest.raises(RemoteProtocolError, match="version 7 expired at") as caught:
        SiloSession(
            terms=terms,
            identity=federation.silos["silo-000"],
            roster=federation.roster,
            authority=federation.authority,
            ledger=make_session(3).ledgers["silo-000"],
            now=late,
        )
    assert caught.value.code is Refusal.ROSTER
    assert late > NOW


def test_session_digest_covers_every_field_of_the_terms():
    federation = make_federation(5)
    terms = make_session(5).terms
    digests = {terms.digest()}
    changes = {
        "federation": "other",
        "job_digest": bytes(32),
        "roster_version": 8,
        "roster_digest": bytes(32),
        "round": 2,
        "phase": "evaluate.0",
        "attempt": 2,
        "names": (*federation.names[:4], "spare"),
        "rule": dataclasses.replace(terms.rule, threshold=5),
        "layout": make_session(6).terms.layout,
        "state_digest": bytes(32),
    }
    assert changes.keys() == {one.name for one in dataclasses.fields(terms)}
    for name, value in changes.items():
        digests.add(dataclasses.replace(terms, **{name: value}).digest())
    digests.add(dataclasses.replace(terms, rule=dataclasses.replace(terms.rule, min_cohort=5)).digest())
    digests.add(dataclasses.replace(terms, rule=dataclasses.replace(terms.rule, members=6)).digest())
    assert len(digests) == len(changes) + 3


def test_randomness_and_keys_are_new_in_every_session():
    federation = make_federation(3)
    seen = set()
    for _ in range(5):
        exchange: Exchange = make_exchange(federation)
        exchange.advertise()
        for silo in exchange.silos.values():
            secrets = silo._held.secrets
            seen |= {secrets.self_mask_seed, secrets.recovery_seed}
            seen |= {secrets.channel_key.public, secrets.mask_key.public}
    assert len(seen) == 5 * 3 * 4
    assert isinstance(exchange.coordinator, CoordinatorSession)

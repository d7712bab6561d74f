"""Any byte of any message changed: the receiver refuses with a protocol error, nothing else escapes."""

from __future__ import annotations

import dataclasses
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from crypto.errors import RemoteProtocolError
from crypto.identity.certificates import SignedBody
from crypto.session.coordinator_session import CoordinatorSession, SessionAborted
from crypto.session.reveal import PendingReveal
from crypto.session.session_record import SessionRecord
from crypto.session.sum_check import SumCheck
from tests.support.sessions import NOW, STAGES, Exchange, make_session
from tests.support.soak import examples

VICTIM = "silo-001"
FUZZ = examples(40)


def mutate(random: Random, message: Any) -> Any:
    """The message with one byte of it changed, cut or added, or one of its names changed."""
    if isinstance(message, bytes):
        return mutate_bytes(random, message)
    if isinstance(message, str):
        return random.choice(["", "silo-000", "spare", message + "x", "\N{SNOWMAN}"])
    if isinstance(message, dict):
        key = random.choice(sorted(message))
        if random.random() < 0.5:
            return {mutate(random, name) if name == key else name: message[name] for name in message}
        return {**message, key: mutate(random, message[key])}
    if isinstance(message, tuple):
        place = random.randrange(len(message))
        return (*message[:place], mutate(random, message[place]), *message[place + 1 :])
    filled = [one.name for one in dataclasses.fields(message) if getattr(message, one.name)]
    name = random.choice(filled)
    return dataclasses.replace(message, **{name: mutate(random, getattr(message, name))})


def mutate_bytes(random: Random, message: bytes) -> bytes:
    place = random.randrange(len(message))
    kind = random.choice(["change", "cut", "add"])
    if kind == "cut":
        return message[:place]
    if kind == "add":
        return message[:place] + random.randbytes(2) + message[place:]
    return message[:place] + bytes([message[place] ^ random.randrange(1, 256)]) + message[place + 1 :]


def to_silo(exchange: Exchange, stage: str) -> Any:
    """What the victim gets next when that stage has been answered."""
    session = exchange.coordinator
    if stage == "share":
        return session.close_advertise()
    if stage == "masked":
        return session.close_share()[VICTIM]
    if stage == "consistency":
        return session.close_masked()
    return session.close_consistency()


@pytest.mark.parametrize("stage", STAGES[1:])
@given(random=st.integers(0, 2**32).map(Random))
@FUZZ
def test_silo_refuses_every_changed_message_of_the_coordinator(stage, random):
    exchange = fuzzed(stage)
    message = to_silo(exchange, stage)
    changed = mutate(random, message)
    if changed == message:
        return
    with pytest.raises(RemoteProtocolError):  # whatever was hit first names itself
        exchange.silos[VICTIM].receive(changed)
    assert exchange.silos[VICTIM]._held is None


def fuzzed(stage: str) -> Exchange:
    exchange = make_session(3)
    exchange.run_until(stage)
    return exchange


TO_COORDINATOR = {
    "advertise": "on_advert",
    "share": "on_shares",
    "consistency": "on_consistency",
    "unmask": "on_unmask",
}


@pytest.mark.parametrize("stage", TO_COORDINATOR)
@given(random=st.integers(0, 2**32).map(Random))
@FUZZ
def test_coordinator_survives_every_changed_message_of_a_silo(stage, random):
    """The sum is exact without it, or the attempt ends: never anything else."""
    exchange = make_session(4)
    exchange.run_until(stage)
    bad = "silo-003"
    method = TO_COORDINATOR[stage]
    honest = getattr(exchange.coordinator, method)

    def receive(sender: str, message: Any) -> None:
        if sender != bad:
            honest(sender, message)
            return
        changed = mutate(random, message)
        try:
            honest(sender, changed)
        except RemoteProtocolError:
            exchange.dropped.add(bad)

    setattr(exchange.coordinator, method, receive)
    remaining = dict.fromkeys(STAGES[STAGES.index(stage) :], ())
    steps = {
        "advertise": exchange.advertise,
        "share": exchange.share,
        "masked": exchange.mask,
        "consistency": exchange.consistency,
        "unmask": exchange.unmask,
    }
    for name in remaining:
        steps[name]()
    assert np.array_equal(exchange.revealed(), exchange.expected())


@given(random=st.integers(0, 2**32).map(Random))
@example(Random(1556675))  # a bound written with a line's end read as the same number
@FUZZ
def test_stored_bytes_that_changed_are_refused_or_read_as_what_they_say(random):
    exchange = stored()
    session, row = exchange.coordinator, next(iter(exchange.ledgers[VICTIM].pending.values()))
    for read, written in (
        (PendingReveal.from_bytes, row.to_bytes()),
        (SumCheck.from_bytes, exchange.checks[VICTIM].to_bytes()),
        (lambda damaged: resume(exchange, damaged), session.snapshot()),
    ):
        damaged = mutate_bytes(random, written)
        try:
            again = read(damaged)
        except RemoteProtocolError:
            continue
        rewritten = again.snapshot() if isinstance(again, CoordinatorSession) else again.to_bytes()
        assert rewritten == damaged  # one value has one encoding


def test_stored_bytes_that_say_the_same_in_another_way_are_refused():
    """float.fromhex takes a blank for a digit's place at the end; names stand in order and once."""
    exchange = stored()
    snapshot = exchange.coordinator.snapshot()
    assert b"0x1.0000000000000p+0" in snapshot
    respelled = snapshot.replace(b"0x1.0000000000000p+0", b"0x1.000000000000p+0 ", 1)
    with pytest.raises(RemoteProtocolError, match="damaged, its bytes are not in the canonical encoding"):
        resume(exchange, respelled)
    row = next(iter(exchange.ledgers[VICTIM].pending.values())).to_bytes()
    swapped = row.replace(b"silo-000", b"tilo-000")  # no longer before silo-001
    with pytest.raises(
        RemoteProtocolError, match="pending reveal: its bytes are not in the canonical encoding"
    ):
        PendingReveal.from_bytes(swapped)
    kept = exchange.checks[VICTIM].to_bytes()
    swapped = kept.replace(b"silo-000", b"tilo-000")
    with pytest.raises(RemoteProtocolError, match="sum check: its bytes are not in the canonical encoding"):
        SumCheck.from_bytes(swapped)


def test_a_stored_signature_of_a_silo_outside_u3_is_damage():
    snapshot = stored().coordinator.snapshot()
    record = SessionRecord.from_bytes(snapshot)
    assert record.to_bytes() == snapshot  # the control
    record.signatures["silo-003"] = record.signatures["silo-000"]
    with pytest.raises(RemoteProtocolError, match="damaged, a signature is not a survivor's"):
        SessionRecord.from_bytes(record.to_bytes())


STORED: list[Exchange] = []


def stored() -> Exchange:
    if not STORED:
        exchange = make_session(4)
        exchange.run_until("unmask", {"masked": ["silo-003"]})
        exchange.coordinator.close_consistency()
        STORED.append(exchange)
    return STORED[0]


def resume(exchange: Exchange, data: bytes) -> CoordinatorSession:
    federation = exchange.federation
    return CoordinatorSession.resume(data, roster=federation.roster, authority=federation.authority, now=NOW)


def test_garbage_for_every_signed_body_is_refused():
    for garbage in (b"", b"\0", b"chorale/v1/advert\0", b"\xff" * 100):
        exchange = make_session(3)
        with pytest.raises(RemoteProtocolError, match="advert"):
            exchange.coordinator.on_advert(VICTIM, SignedBody(body=garbage, signature=garbage))
        with pytest.raises(SessionAborted, match="expected at least 3 silos, got 0"):
            exchange.coordinator.close_advertise()

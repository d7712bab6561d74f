"""The bytes of a session's messages that a plan counts are those of real sessions."""

from __future__ import annotations

from collections import Counter
from statistics import mean
from typing import Any

import pytest

from chorale.transport import wire
from client.planning import RECEIVED_BYTES, SENT_BYTES, message_bytes
from crypto.session import bodies
from crypto.session.messages import NextState, RevealedSum
from tests.support.sessions import Exchange, make_session

KEY = wire.PhaseKey(job_digest=b"j" * 32, round=1, phase="train", attempt=1)
KINDS = ("advert", "shares", "consistency", "unmask_shares", "next_state")


def next_state(session: Exchange, name: str) -> Any:
    said = NextState(
        federation="test",
        session_digest=b"s" * 32,
        cohort_digest=b"c" * 32,
        sender=name,
        survivors=session.coordinator.survivors,
        parent_digest=b"p" * 32,
        sum_digest=b"d" * 32,
        next_digest=b"n" * 32,
        draw_seed=b"",
    )
    return bodies.sign(session.federation.silos[name], said)


@pytest.mark.parametrize("silos", [3, 8, 24])
def test_messages_of_a_session_take_the_planned_bytes(silos: int, monkeypatch: pytest.MonkeyPatch) -> None:
    session, received = make_session(silos), Counter[str]()
    tell = session.tell

    def counted(name: str, message: Any) -> Any:
        received[name] += wire.to_silo(message, KEY).ByteSize()
        return tell(name, message)

    monkeypatch.setattr(session, "tell", counted)
    session.run()
    coordinator = session.coordinator
    revealed = RevealedSum(
        survivors=coordinator.survivors,
        signatures=coordinator.unmask_request(),
        sum_digest=b"d" * 32,
        self_mask_seeds={},
    )
    sent = Counter[str]()  # a silo deals more than those after it, so the plan counts the mean
    for name, answers in session.answers.items():
        values = [*answers, session.sent[name], next_state(session, name)]
        for kind, value in zip(KINDS, values, strict=True):
            sent[name] += wire.to_coordinator(kind, value, KEY).ByteSize()
        received[name] += wire.to_silo(revealed, KEY).ByteSize()
    assert mean(sent.values()) == pytest.approx(message_bytes(SENT_BYTES, silos), rel=0.03)
    assert mean(received.values()) == pytest.approx(message_bytes(RECEIVED_BYTES, silos), rel=0.03)

"""What the messages of 200 silos weigh: no limit of the transport may keep them from passing."""

from __future__ import annotations

import pytest

from chorale.transport import wire
from chorale.transport.wire import MAX_MESSAGE_BYTES, PhaseKey
from coordinator.jobs.deadlines import SILO_BYTES
from crypto.session.messages import RevealedSum, Signatures
from tests.support.sessions import make_exchange, make_federation

SILOS = 5
MOST_SILOS = 200
LONGEST = "-" + "x" * 54  # with `silo-000` a name of 63 letters
KEY = PhaseKey(job_digest=bytes(32), round=10_000, phase="train", attempt=100)


@pytest.fixture
def sizes():
    """Bytes of each message of a session, for each silo besides the one that it goes to or comes from."""
    return {kind: size / (SILOS - 1) for kind, size in message_bytes(SILOS).items()}


def message_bytes(silos: int) -> dict[str, int]:
    """Of what one silo is sent, and of what it answers, where all of them take part."""
    exchange = make_exchange(make_federation(silos, suffix=LONGEST))
    name = exchange.terms.names[0]
    exchange.advertise()
    sent = {"cohort": wire.to_silo(exchange.coordinator.close_advertise(), KEY)}
    cohort = wire.from_coordinator(sent["cohort"])
    for silo in exchange.terms.names:
        shares = exchange.tell(silo, cohort)
        exchange.coordinator.on_shares(silo, shares)
    envelopes = exchange.coordinator.close_share()
    sent["envelopes"] = wire.to_silo(envelopes[name], KEY)
    for silo in exchange.terms.names:
        exchange.mask_one(silo, envelopes[silo])
        exchange.upload(silo)
    sent["survivors"] = wire.to_silo(exchange.coordinator.close_masked(), KEY)
    for silo in exchange.terms.names:
        signed = exchange.tell(silo, wire.from_coordinator(sent["survivors"]))
        exchange.coordinator.on_consistency(silo, signed)
    request = exchange.coordinator.close_consistency()
    assert isinstance(request, Signatures)
    sent["signatures"] = wire.to_silo(request, KEY)
    revealed = RevealedSum(
        survivors=exchange.terms.names,
        signatures=request,
        sum_digest=bytes(32),
        self_mask_seeds=dict.fromkeys(exchange.terms.names, bytes(32)),
    )
    sent["revealed_sum"] = wire.to_silo(revealed, KEY)
    answers = {
        "shares": wire.to_coordinator("shares", shares, KEY),
        "unmask_shares": wire.to_coordinator("unmask_shares", exchange.tell(name, request), KEY),
    }
    return {kind: message.ByteSize() for kind, message in {**sent, **answers}.items()}


def test_a_silo_is_sent_of_every_other_silo_as_much_as_in_a_small_cohort():
    """Else the coordinator sends n^3 bytes. A path grows with the logarithm of n, a signature by chance."""
    four, eight, twelve = message_bytes(4), message_bytes(8), message_bytes(12)
    for kind in four:
        assert twelve[kind] - eight[kind] <= 1.1 * (eight[kind] - four[kind]), kind


def test_no_message_of_200_silos_is_as_large_as_a_message_may_be(sizes):
    assert max(sizes.values()) * MOST_SILOS < MAX_MESSAGE_BYTES / 2, sizes


@pytest.mark.parametrize(
    ("down", "up"), [("cohort", "shares"), ("envelopes", "envelopes"), ("signatures", "unmask_shares")]
)
def test_messages_of_a_stage_are_no_larger_than_its_deadline_allows_for(sizes, down, up):
    """envelopes twice: their answer is the vector, which is no message."""
    assert sizes[down] + sizes[up] <= SILO_BYTES, sizes

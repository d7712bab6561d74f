"""A coordinator that deviates in who is in the sum: every attack is refused by name, and nothing leaves.

Each test first runs the same exchange without the tampering and sees it succeed. What leaves a silo
is its masked vector and its shares; `nothing_left` looks for both. Guarantee G1.
"""

from __future__ import annotations

import pytest

from crypto.errors import PolicyRefusal, Refusal
from crypto.session.silo_session import SiloState
from tests.protocol.malice import VICTIM, assert_refused, honest
from tests.support.sessions import make_exchange, make_session


def test_old_sessions_row_is_gone_once_the_silo_adverts_again():
    """Else the first attempt's shares and the second's could both be had."""
    exchange = honest()
    exchange.run_until("unmask")
    second = make_exchange(exchange.federation, ledgers=exchange.ledgers, attempt=2)
    second.advertise()
    assert not exchange.ledgers[VICTIM].pending
    assert not exchange.sent


@pytest.mark.parametrize("attempt", [1, 2])
def test_round_revealed_before_is_refused_at_the_next_attempt_and_after_restart(attempt):
    honest()
    exchange = make_session()
    exchange.run()
    again = make_exchange(exchange.federation, ledgers=exchange.ledgers, attempt=attempt)
    for name, silo in again.silos.items():
        with pytest.raises(PolicyRefusal, match="this round was revealed before") as caught:
            silo.advertise()
        assert caught.value.code is Refusal.ALREADY_REVEALED
        assert silo.state is SiloState.FAILED
        assert again.ledgers[name].revealed
    assert again.nothing_left() is False  # of the first time, and nothing but that
    assert not again.masked
    assert not again.sent


def test_statistics_phase_is_refused_again_with_one_bit_of_the_state_flipped():
    honest(phase="calibrate.0")
    exchange = make_session(phase="calibrate.0")
    exchange.run()
    again = make_exchange(
        exchange.federation, ledgers=exchange.ledgers, phase="calibrate.0", state_digest=b"r" + b"s" * 31
    )
    with pytest.raises(PolicyRefusal, match="this round was revealed before"):
        again.advertise()
    assert not again.masked


def test_statistics_phase_near_a_revealed_one_is_refused_before_the_silo_signs():
    honest(6, phase="calibrate.0")
    exchange = make_session(6, phase="calibrate.0")
    exchange.run()
    again = make_exchange(exchange.federation, ledgers=exchange.ledgers, phase="calibrate.1")
    again.run_until("consistency", {"masked": ["silo-005"]})
    survivors = again.coordinator.close_masked()
    for name in survivors.survivors:
        match = "too near to a revealed sum"
        assert_refused(again.silos[name], survivors, match, Refusal.OVERLAPPING_COHORT)
        assert not again.ledgers[name].pending
    assert not again.sent


def test_reveal_is_durable_before_the_first_share_leaves():
    exchange = honest()
    exchange.run_until("unmask")
    request = exchange.coordinator.close_consistency()

    def full_disk(pending):
        raise OSError("disk full")

    exchange.ledgers[VICTIM].mark_revealed = full_disk
    with pytest.raises(OSError, match="disk full"):
        exchange.silos[VICTIM].receive(request)
    assert exchange.silos[VICTIM].state is SiloState.FAILED


def test_signature_does_not_leave_before_the_row_is_written():
    exchange = honest()
    exchange.run_until("consistency")

    def full_disk(pending):
        raise OSError("disk full")

    exchange.ledgers[VICTIM].write_pending = full_disk
    with pytest.raises(OSError, match="disk full"):
        exchange.silos[VICTIM].receive(exchange.coordinator.close_masked())
    assert exchange.silos[VICTIM].state is SiloState.FAILED

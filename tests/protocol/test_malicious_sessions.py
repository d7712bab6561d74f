"""A coordinator that deviates inside a session: every attack of the table, in memory.

Each test first runs the same exchange without the tampering and sees it succeed. What leaves a silo is its
masked vector and its shares. Guarantee G1. Over mutual TLS: tests/integration/test_malicious_coordinator.py.
"""

from __future__ import annotations

import numpy as np
import pytest

from crypto.errors import Refusal, RemoteProtocolError
from crypto.fixed_point import ring
from crypto.fixed_point.layout import Layout, Quantity
from crypto.session.cohort import CohortRule
from crypto.session.messages import Survivors
from crypto.session.sum_check import SumCheck
from tests.protocol.malice import VICTIM, assert_refused, come_to, honest, play_in_memory
from tests.support.attacks_on_sets import ATTACKS, SIGNATURES, signatures_shown
from tests.support.sessions import make_session


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)  # a case an attack
def test_silo_refuses_what_a_coordinator_bends(attack):
    play_in_memory(attack)


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_that_t_survivors_did_not_make_prove_no_sum(name):
    exchange = honest(4)
    play = come_to(exchange, "unmask")
    check = SumCheck.from_bytes(exchange.checks[VICTIM].to_bytes())
    reason = SIGNATURES[name][1].format(*play.names)
    with pytest.raises(RemoteProtocolError, match=f"sum: {reason}") as caught:
        check.check_survivors(play.session.survivors, signatures_shown(play, name))
    assert caught.value.code is Refusal.SIGNATURES
    check.check_survivors(play.session.survivors, play.given)  # the control


# over the line the same message again gets the same answer, which is kept


@pytest.mark.parametrize(
    "next_stage, state", [("masked", "shared"), ("consistency", "masked"), ("unmask", "signed")]
)
def test_repeated_message_fails_the_session(next_stage, state):
    exchange = honest()
    exchange.run_until(next_stage)
    message = exchange.last_messages[VICTIM]
    match = f"wrong or repeated message, got {type(message).__name__} in state {state}"
    assert_refused(exchange.silos[VICTIM], message, match, Refusal.STAGE)
    assert not exchange.sent


def test_silo_refuses_survivors_below_a_cohort_that_the_job_raised():
    """Over the line a policy raises it."""
    exchange = honest(5, rule=CohortRule.for_members(5, min_cohort=5))
    exchange.run_until("consistency")
    survivors = Survivors(survivors=exchange.terms.names[:4])  # t alone would allow it
    match = "survivors: expected at least 5 silos, got 4"
    assert_refused(exchange.silos[VICTIM], survivors, match, Refusal.COHORT_TOO_SMALL)
    assert not exchange.sent


# masks that have nothing to do with each other


def test_word_sizes_are_masked_with_unrelated_key_streams():
    """A stream used twice would give the difference of two of a silo's own quantities."""
    honest()
    layout = Layout(
        members=5,
        quantities=tuple(
            Quantity(name=f"w{ring_bits}", shape=(4096 // ring_bits,), bound=1.0, ring_bits=ring_bits)
            for ring_bits in (16, 32, 64)
        ),
    )
    exchange = make_session(layout=layout)
    exchange.run_until("masked")
    masker = exchange.silos[VICTIM].receive(exchange.coordinator.close_share()[VICTIM])
    nothing = ring.Encoded(vectors=ring.zeros(layout), clipped_total=0)
    streams = np.frombuffer(b"".join(masker.stream(nothing)), np.uint8).reshape(3, 512)
    for one, other in [(0, 1), (0, 2), (1, 2)]:
        # 512 equal bytes of 512 if reused; 15 or more of 512 by chance: once in 1e8 runs
        assert np.count_nonzero(streams[one] == streams[other]) < 15


def test_every_session_masks_afresh():
    exchange, again = honest(), make_session()
    exchange.run_until("consistency")
    again.run_until("consistency")
    assert exchange.masked[VICTIM] != again.masked[VICTIM]

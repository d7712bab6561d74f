"""Masks that have nothing to do with each other, and messages repeated, cut short or meant for another.

Each test first runs the same exchange without the tampering and sees it succeed. What leaves a silo
is its masked vector and its shares; `nothing_left` looks for both. Guarantee G1.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from crypto import encoding
from crypto.errors import Refusal
from crypto.fixed_point import ring
from crypto.fixed_point.layout import Layout, Quantity
from tests.protocol.malice import VICTIM, adverts_of, assert_refused, honest, tampered
from tests.support.sessions import make_session

# masks


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
    exchange = honest()
    exchange.run_until("consistency")
    again = make_session()
    again.run_until("consistency")
    assert exchange.masked[VICTIM] != again.masked[VICTIM]


# truncated and repeated messages


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


def test_truncated_messages_are_refused():
    exchange = honest()
    adverts = adverts_of(exchange)
    cut = dataclasses.replace(adverts["silo-000"], body=adverts["silo-000"].body[:-1])
    match = "advert: ends early"
    assert_refused(exchange.silos["silo-002"], tampered(adverts, "silo-000", cut), match, Refusal.MALFORMED)
    exchange = make_session()
    exchange.run_until("masked")
    given = exchange.coordinator.close_share()
    few = dataclasses.replace(given[VICTIM], envelopes=given[VICTIM].envelopes[:-1])
    match = "envelopes: expected 4 to silo-001, got 3"
    assert_refused(exchange.silos[VICTIM], few, match, Refusal.ENVELOPE)
    first, *others = given["silo-002"].envelopes
    cut = dataclasses.replace(first.dealing, signature=first.dealing.signature[:-1])
    short = dataclasses.replace(
        given["silo-002"], envelopes=(dataclasses.replace(first, dealing=cut), *others)
    )
    match = "dealing of silo-000: dealing: the signature is not valid"
    assert_refused(exchange.silos["silo-002"], short, match, Refusal.ENVELOPE)
    assert exchange.nothing_left()


def test_envelopes_of_another_receiver_are_refused():
    exchange = honest()
    exchange.run_until("masked")
    given = exchange.coordinator.close_share()
    swapped = dataclasses.replace(given[VICTIM], envelopes=given["silo-002"].envelopes)
    match = "envelope silo-000 to silo-001: it is not in the dealing that was signed"
    assert_refused(exchange.silos[VICTIM], swapped, match, Refusal.ENVELOPE)
    assert exchange.nothing_left()


def test_body_of_another_purpose_is_no_envelope():
    """A silo's other signatures cannot be passed off: each purpose is part of what was signed."""
    exchange = honest()
    adverts = adverts_of(exchange)
    signed = exchange.federation.silos["silo-000"].sign("complaint", bytes(32), "silo-000", VICTIM)
    cohort = tampered(adverts, "silo-000", signed)
    match = "advert: the bytes belong to another kind of message"
    assert_refused(exchange.silos[VICTIM], cohort, match, Refusal.MALFORMED)
    assert encoding.decode("complaint", signed.body)

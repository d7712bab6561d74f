"""One signature over all that a silo deals: a dealer whose message does not hold is out.

Each test first runs the same exchange without the tampering and sees it succeed. docs/protocol.md 5.3. What a
coordinator makes of the envelopes that it relays stands in tests/support/attacks.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from crypto.errors import Refusal, RemoteProtocolError
from crypto.identity.certificates import SignedBody
from crypto.session import bodies
from crypto.session.messages import Shares
from tests.protocol.malice import VICTIM, honest
from tests.support.attacks import dealing_of, flipped, node_of, signed_again, with_first
from tests.support.sessions import Exchange

DEALER = "silo-000"  # the first whose envelope a receiver looks at


def sign_again(exchange: Exchange, shares: Shares, **changes: object) -> Shares:
    return signed_again(exchange.federation.silos, exchange.coordinator, DEALER, shares, **changes)


def test_a_receiver_takes_whichever_dealing_a_lying_dealer_signed_and_the_sum_is_exact():
    """Two dealings to two receivers give the dealer nothing: every share in them is what it chose anyway."""
    exchange = honest()
    exchange.run_until("masked")
    shares: Shares = exchange.answers[DEALER][1]
    again = sign_again(exchange, shares, envelopes=shares.envelopes)
    assert again.dealing.signature != shares.dealing.signature
    envelopes = exchange.coordinator.close_share()
    envelopes[VICTIM] = with_first(envelopes[VICTIM], dealing=again.dealing)
    for name, each in envelopes.items():
        exchange.mask_one(name, each)
        exchange.upload(name)
    exchange.consistency()
    exchange.unmask()
    assert np.array_equal(exchange.revealed(), exchange.expected())


def in_share(silos: int = 5) -> tuple[Exchange, dict[str, Shares]]:
    """What every silo deals, before the coordinator has any of it."""
    exchange = honest(silos)
    exchange.advertise()
    cohort = exchange.coordinator.close_advertise()
    return exchange, {name: exchange.tell(name, cohort) for name in exchange.terms.names}


SPOILT: dict[str, tuple[Callable[[Exchange, Shares], Shares], str]] = {
    "an envelope that is not in the tree": (
        lambda _, shares: dataclasses.replace(
            shares, envelopes=(flipped(shares.envelopes[0]), *shares.envelopes[1:])
        ),
        "the dealing is not over these envelopes",
    ),
    "envelopes in another order": (
        lambda _, shares: dataclasses.replace(shares, envelopes=shares.envelopes[::-1]),
        "the dealing is not over these envelopes",
    ),
    "another order, signed": (
        lambda exchange, shares: sign_again(exchange, shares, envelopes=shares.envelopes[::-1]),
        "made for another cohort, sender or receiver",
    ),
    "one envelope too few, signed": (
        lambda exchange, shares: sign_again(exchange, shares, envelopes=shares.envelopes[:-1]),
        "expected 4 envelopes, got 3",
    ),
    "two to one receiver, signed": (
        lambda exchange, shares: sign_again(
            exchange, shares, envelopes=(*shares.envelopes, shares.envelopes[0])
        ),
        "expected 4 envelopes, got 5",
    ),
    "nodes in place of envelopes": (
        lambda _, shares: dataclasses.replace(
            shares,
            envelopes=(node_of(shares), node_of(dataclasses.replace(shares, envelopes=shares.envelopes[2:]))),
        ),
        "expected 4 envelopes, got 2",
    ),
    "a node for an envelope, signed": (
        lambda exchange, shares: sign_again(
            exchange, shares, envelopes=(node_of(shares), *shares.envelopes[1:])
        ),
        "the bytes belong to another kind of message",
    ),
    "an own share's hash that was changed": (
        lambda exchange, shares: dataclasses.replace(shares, dealing=with_another_hash(exchange, shares)),
        "the signature is not valid",
    ),
}


def with_another_hash(exchange: Exchange, shares: Shares) -> SignedBody:
    dealing = dealing_of(exchange.federation.silos, exchange.coordinator, DEALER, shares)
    changed = dataclasses.replace(dealing, self_mask_share_hash=bytes(32))
    return dataclasses.replace(shares.dealing, body=bodies.body_of(changed))


@pytest.mark.parametrize("spoil, match", SPOILT.values(), ids=SPOILT)
def test_a_dealing_that_does_not_hold_is_not_taken_and_the_sum_is_exact_without_its_dealer(spoil, match):
    exchange, dealt = in_share()
    with pytest.raises(RemoteProtocolError, match=match) as caught:
        exchange.coordinator.on_shares(DEALER, spoil(exchange, dealt[DEALER]))
    assert caught.value.code is Refusal.ENVELOPE
    assert DEALER not in exchange.coordinator.awaited
    with pytest.raises(RemoteProtocolError, match="it is not in this stage"):
        exchange.coordinator.on_shares(DEALER, dealt[DEALER])
    exchange.dropped.add(DEALER)
    for name in exchange.terms.names[1:]:
        exchange.coordinator.on_shares(name, dealt[name])
    exchange.mask()
    exchange.consistency()
    exchange.unmask()
    assert exchange.coordinator.sharers == exchange.terms.names[1:]
    assert np.array_equal(exchange.revealed(), exchange.expected())


def test_the_first_dealing_of_a_silo_counts_and_a_second_is_refused():
    exchange, dealt = in_share()
    for name, shares in dealt.items():
        exchange.coordinator.on_shares(name, shares)
    again = sign_again(exchange, dealt[DEALER], envelopes=dealt[DEALER].envelopes)
    less = dataclasses.replace(dealt[DEALER], envelopes=dealt[DEALER].envelopes[:-1])
    for second in (again, less):
        with pytest.raises(RemoteProtocolError, match="a second one that differs") as caught:
            exchange.coordinator.on_shares(DEALER, second)
        assert caught.value.code is Refusal.STAGE
    exchange.coordinator.on_shares(DEALER, dealt[DEALER])  # the same again says nothing new
    given = exchange.coordinator.close_share()
    assert {each.envelopes[0].dealing for name, each in given.items() if name != DEALER} == {
        dealt[DEALER].dealing
    }
    exchange.coordinator.on_shares(DEALER, dealt[DEALER])


def test_an_own_share_that_is_not_the_one_it_signed_names_the_dealer():
    """Nobody else holds that share, so the hash in the dealing is all that it is known by."""
    exchange, dealt = in_share()
    false = sign_again(
        exchange, dealt[DEALER], envelopes=dealt[DEALER].envelopes, self_mask_share_hash=bytes(32)
    )
    for name, shares in dealt.items():
        exchange.coordinator.on_shares(name, false if name == DEALER else shares)
    exchange.mask()
    exchange.consistency()
    exchange.unmask()
    assert exchange.coordinator.liars == {DEALER: "gave a share that is not the one it was dealt"}
    assert np.array_equal(exchange.revealed(), exchange.expected())

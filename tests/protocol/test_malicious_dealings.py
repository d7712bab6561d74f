"""One signature over all that a silo deals: what a coordinator or a dealer can bend, and who is accused.

Each test first runs the same exchange without the tampering and sees it succeed. docs/protocol.md 5.3.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from crypto import encoding, envelope_tree
from crypto.errors import Refusal, RemoteProtocolError
from crypto.session import bodies
from crypto.session.messages import Envelopes, RelayedEnvelope, Shares
from crypto.session.silo_session import EnvelopeComplaint
from tests.protocol.malice import VICTIM, assert_refused, honest, relayed, signed_again
from tests.support.sessions import Exchange, make_session

DEALER = "silo-000"  # the first whose envelope a receiver looks at
PLACE = 0  # of the victim's envelope in the dealer's tree: silo-001 is the first of the others


def given_to_victim(exchange: Exchange) -> Envelopes:
    exchange.run_until("masked")
    return exchange.coordinator.close_share()[VICTIM]


def with_first(given: Envelopes, **changes: object) -> Envelopes:
    """The envelope of the dealer, changed; the others as they came."""
    first, *others = given.envelopes
    return dataclasses.replace(given, envelopes=(dataclasses.replace(first, **changes), *others))


# a coordinator that bends what it relays: no silo is accused


BENT: dict[str, Callable[[Exchange, Envelopes], Envelopes]] = {
    "path truncated": lambda _, given: with_first(given, path=given.envelopes[0].path[:-32]),
    "path longer": lambda _, given: with_first(given, path=given.envelopes[0].path + bytes(32)),
    "path empty": lambda _, given: with_first(given, path=b""),
    "path cut within a hash": lambda _, given: with_first(given, path=given.envelopes[0].path[:-1]),
    "path of another dealer": lambda _, given: with_first(given, path=given.envelopes[1].path),
    "path of another receiver": lambda exchange, given: with_first(given, path=at(exchange, 1).path),
    "envelope of another receiver": lambda exchange, given: with_first(
        given, envelope=at(exchange, 1).envelope
    ),
    "envelope and path of another receiver": lambda exchange, given: dataclasses.replace(
        given, envelopes=(at(exchange, 1), *given.envelopes[1:])
    ),
    "envelope changed": lambda _, given: with_first(given, envelope=flipped(given.envelopes[0].envelope)),
    "envelope of another dealer": lambda _, given: with_first(given, envelope=given.envelopes[1].envelope),
    "node as a leaf": lambda exchange, given: with_first(
        given, envelope=node(exchange), path=above(exchange)
    ),
    "node as a leaf, path filled up": lambda exchange, given: with_first(
        given, envelope=node(exchange), path=above(exchange) + bytes(32)
    ),
}


def at(exchange: Exchange, place: int) -> RelayedEnvelope:
    """Of the dealer's envelopes the one at that place in its tree."""
    shares: Shares = exchange.answers[DEALER][1]
    return relayed(shares, place)


def node(exchange: Exchange) -> bytes:
    """The bytes that are hashed to the node above the victim's envelope."""
    first, second, *_ = exchange.answers[DEALER][1].envelopes
    return encoding.encode("envelope-node", envelope_tree.leaf(first), envelope_tree.leaf(second))


def above(exchange: Exchange) -> bytes:
    return at(exchange, PLACE).path[32:]


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize("bend", BENT.values(), ids=BENT)
def test_what_is_not_at_its_place_in_the_signed_tree_is_refused_and_accuses_nobody(bend):
    exchange = honest()
    given = given_to_victim(exchange)
    bent = bend(exchange, given)
    assert bent != given
    silo = exchange.silos[VICTIM]
    with pytest.raises(RemoteProtocolError, match="it is not in the dealing|expected a path of") as caught:
        silo.receive(bent)
    assert not isinstance(caught.value, EnvelopeComplaint)
    assert caught.value.code is Refusal.ENVELOPE
    assert silo._held is None
    assert exchange.nothing_left()


def test_paths_swapped_between_two_dealers_are_refused():
    exchange = honest()
    given = given_to_victim(exchange)
    one, other, *rest = given.envelopes
    swapped = (dataclasses.replace(one, path=other.path), dataclasses.replace(other, path=one.path), *rest)
    match = "envelope silo-000 to silo-001: it is not in the dealing that was signed"
    assert_refused(
        exchange.silos[VICTIM], dataclasses.replace(given, envelopes=swapped), match, Refusal.ENVELOPE
    )
    assert exchange.nothing_left()


@pytest.mark.parametrize("field", ["self_mask_share_hash", "envelopes_root"])
def test_a_dealing_that_was_changed_on_the_way_is_refused_and_accuses_nobody(field):
    exchange = honest()
    given = given_to_victim(exchange)
    shares: Shares = exchange.answers[DEALER][1]
    dealing = dealing_of(exchange, shares)
    changed = dataclasses.replace(dealing, **{field: flipped(getattr(dealing, field))})
    signed = dataclasses.replace(shares.dealing, body=bodies.body_of(changed))
    match = "dealing of silo-000: dealing: the signature is not valid"
    assert_refused(exchange.silos[VICTIM], with_first(given, dealing=signed), match, Refusal.ENVELOPE)


def dealing_of(exchange: Exchange, shares: Shares, dealer: str = DEALER) -> bodies.Dealing:
    return bodies.open_dealing(
        shares.dealing,
        certificate=exchange.federation.silos[dealer].certificate,
        cohort_digest=exchange.coordinator.cohort_digest,
        sender=dealer,
    )


def test_a_dealing_of_another_silo_is_refused():
    exchange = honest()
    given = given_to_victim(exchange)
    bent = with_first(given, dealing=given.envelopes[1].dealing)
    assert_refused(
        exchange.silos[VICTIM], bent, "dealing of silo-000: dealing: the signature", Refusal.ENVELOPE
    )


def test_a_dealing_of_another_session_is_refused():
    exchange, before = honest(), make_session(attempt=2)
    given, replayed = given_to_victim(exchange), given_to_victim(before)
    bent = dataclasses.replace(given, envelopes=(replayed.envelopes[0], *given.envelopes[1:]))
    match = "dealing of silo-000: signed for another cohort or silo"
    assert_refused(exchange.silos[VICTIM], bent, match, Refusal.ENVELOPE)


def test_an_envelope_for_another_in_a_tree_that_its_dealer_signed_is_refused():
    """The dealer is in it with the coordinator: the root is right, what is at the victim's place is not."""
    exchange = honest()
    given = given_to_victim(exchange)
    shares: Shares = exchange.answers[DEALER][1]
    first, second, *others = shares.envelopes
    swapped = signed_again(exchange, DEALER, shares, envelopes=(second, first, *others))
    bent = dataclasses.replace(given, envelopes=(relayed(swapped, PLACE), *given.envelopes[1:]))
    match = "envelope silo-000 to silo-001: made for another cohort, sender or receiver"
    assert_refused(exchange.silos[VICTIM], bent, match, Refusal.ENVELOPE)


def test_a_receiver_takes_whichever_dealing_a_lying_dealer_signed_and_the_sum_is_exact():
    """Two dealings to two receivers give the dealer nothing: every share in them is what it chose anyway."""
    exchange = honest()
    exchange.run_until("masked")
    shares: Shares = exchange.answers[DEALER][1]
    again = signed_again(exchange, DEALER, shares, envelopes=shares.envelopes)
    assert again.dealing.signature != shares.dealing.signature
    envelopes = exchange.coordinator.close_share()
    envelopes[VICTIM] = with_first(envelopes[VICTIM], dealing=again.dealing)
    for name, each in envelopes.items():
        exchange.mask_one(name, each)
        exchange.upload(name)
    exchange.consistency()
    exchange.unmask()
    assert np.array_equal(exchange.revealed(), exchange.expected())


# a dealer whose message does not hold: it is out, and the session goes on


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
        lambda exchange, shares: signed_again(exchange, DEALER, shares, envelopes=shares.envelopes[::-1]),
        "made for another cohort, sender or receiver",
    ),
    "one envelope too few, signed": (
        lambda exchange, shares: signed_again(exchange, DEALER, shares, envelopes=shares.envelopes[:-1]),
        "expected 4 envelopes, got 3",
    ),
    "two to one receiver, signed": (
        lambda exchange, shares: signed_again(
            exchange, DEALER, shares, envelopes=(*shares.envelopes, shares.envelopes[0])
        ),
        "expected 4 envelopes, got 5",
    ),
    "nodes in place of envelopes": (
        lambda _, shares: dataclasses.replace(
            shares,
            envelopes=tuple(
                encoding.encode("envelope-node", envelope_tree.leaf(one), envelope_tree.leaf(other))
                for one, other in zip(shares.envelopes[::2], shares.envelopes[1::2], strict=True)
            ),
        ),
        "expected 4 envelopes, got 2",
    ),
    "a node for an envelope, signed": (
        lambda exchange, shares: signed_again(
            exchange, DEALER, shares, envelopes=(node_of(shares), *shares.envelopes[1:])
        ),
        "the bytes belong to another kind of message",
    ),
    "an own share's hash that was changed": (
        lambda exchange, shares: dataclasses.replace(
            shares,
            dealing=dataclasses.replace(
                shares.dealing,
                body=bodies.body_of(
                    dataclasses.replace(dealing_of(exchange, shares), self_mask_share_hash=bytes(32))
                ),
            ),
        ),
        "the signature is not valid",
    ),
}


def node_of(shares: Shares) -> bytes:
    first, second, *_ = map(envelope_tree.leaf, shares.envelopes)
    return encoding.encode("envelope-node", first, second)


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
    again = signed_again(exchange, DEALER, dealt[DEALER], envelopes=dealt[DEALER].envelopes)
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
    false = signed_again(
        exchange, DEALER, dealt[DEALER], envelopes=dealt[DEALER].envelopes, self_mask_share_hash=bytes(32)
    )
    for name, shares in dealt.items():
        exchange.coordinator.on_shares(name, false if name == DEALER else shares)
    exchange.mask()
    exchange.consistency()
    exchange.unmask()
    assert exchange.coordinator.liars == {DEALER: "gave a share that is not the one it was dealt"}
    assert np.array_equal(exchange.revealed(), exchange.expected())

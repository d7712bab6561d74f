"""The control of a test with a coordinator that deviates, and what a refusal is."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from crypto import envelope_tree
from crypto.errors import LocalProtocolError, PolicyRefusal, Refusal, RemoteProtocolError
from crypto.identity.certificates import SignedBody
from crypto.session import bodies
from crypto.session.messages import Cohort, Envelopes, RelayedEnvelope, Shares
from crypto.session.silo_session import SiloSession, SiloState
from tests.support.sessions import Exchange, make_session

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
    assert silo.state in (SiloState.FAILED, SiloState.ENDED)
    assert silo._held is None
    with pytest.raises(LocalProtocolError, match="session: it is over"):
        silo.receive(message)


def adverts_of(exchange: Exchange) -> dict[str, SignedBody]:
    exchange.advertise()
    cohort = exchange.coordinator.close_advertise()
    return dict(zip(exchange.coordinator.cohort, cohort.adverts, strict=True))


def tampered(adverts: dict[str, SignedBody], name: str, advert: SignedBody) -> Cohort:
    return Cohort(adverts=tuple((adverts | {name: advert}).values()))


def envelopes_among(given: dict[str, Envelopes], receiver: str, group: tuple[str, ...]) -> Envelopes:
    """What a group dealt to one silo, of what was given to all, as if the others had sent nothing."""
    dealers = [name for name in given if name != receiver]
    relayed = zip(dealers, given[receiver].envelopes, strict=True)
    return Envelopes(sharers=group, envelopes=tuple(each for name, each in relayed if name in group))


def relayed(shares: Shares, place: int) -> RelayedEnvelope:
    """What a coordinator that keeps no rule makes of a dealing."""
    tree = envelope_tree.levels([envelope_tree.leaf(each) for each in shares.envelopes])
    path = envelope_tree.paths(tree)[place]
    return RelayedEnvelope(dealing=shares.dealing, envelope=shares.envelopes[place], path=path)


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
    return signed_again(exchange, dealer, shares, envelopes=(changed, *shares.envelopes[1:]))


def signed_again(
    exchange: Exchange, dealer: str, shares: Shares, *, envelopes: tuple[bytes, ...], **changes: object
) -> Shares:
    """Other envelopes, and the dealer's signature over them. changes: of the dealing."""
    identity = exchange.federation.silos[dealer]
    before = bodies.open_dealing(
        shares.dealing,
        certificate=identity.certificate,
        cohort_digest=exchange.coordinator.cohort_digest,
        sender=dealer,
    )
    root = envelope_tree.root(envelope_tree.levels([envelope_tree.leaf(each) for each in envelopes]))
    dealing = dataclasses.replace(before, **{"envelopes_root": root, **changes})
    return Shares(dealing=bodies.sign(identity, dealing), envelopes=envelopes)

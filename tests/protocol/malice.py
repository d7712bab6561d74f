"""The control of a test with a coordinator that deviates, and what a refusal is."""

from __future__ import annotations

import numpy as np
import pytest

from crypto.errors import LocalProtocolError, PolicyRefusal, Refusal, RemoteProtocolError
from crypto.identity.certificates import SignedBody
from crypto.session.messages import Cohort, Envelopes
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


def envelopes_among(exchange: Exchange, receiver: str, group: tuple[str, ...]) -> Envelopes:
    dealings = exchange.coordinator._record.dealings
    relayed = tuple(dealings[peer].relayed[receiver] for peer in group if peer != receiver)
    return Envelopes(sharers=group, envelopes=relayed)

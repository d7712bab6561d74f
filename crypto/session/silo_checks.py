"""Checks that a silo makes before it goes on: its terms, the adverts of U1, the sets U2 and U3.

Source: docs/protocol.md 3, 5.1 to 5.5.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from datetime import datetime

from cryptography import x509

from crypto.errors import ConfigError, PolicyRefusal, Refusal, RemoteProtocolError
from crypto.identity.certificates import Identity, Role
from crypto.identity.roster import Roster
from crypto.session import bodies
from crypto.session.bodies import VerifiedAdvert
from crypto.session.cohort import CohortRule
from crypto.session.dealing import Random
from crypto.session.messages import Cohort, SessionTerms


class LeftOut(RemoteProtocolError):
    """The session goes on without this silo: it neither signs nor answers."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code=Refusal.LEFT_OUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What the silo itself brings to the session."""

    terms: SessionTerms
    session_digest: bytes  # of the terms
    roster: Roster
    authority: x509.Certificate
    now: datetime
    random: Random


def check_terms(setting: Setting, identity: Identity) -> None:
    """Terms that this silo may join: its roster, its name, sizes no smaller than the rule's.

    Source: docs/protocol.md 3.1, 3.2 and 5.1.
    """
    terms, roster, rule = setting.terms, setting.roster, setting.terms.rule
    roster.check_current(setting.now)
    if (roster.federation, roster.version, roster.digest) != (
        terms.federation,
        terms.roster_version,
        terms.roster_digest,
    ):
        raise PolicyRefusal("terms: they name another roster", code=Refusal.ROSTER)
    if not roster.holds(Role.SILO, identity.member.name, identity.fingerprint):
        raise PolicyRefusal("terms: the roster does not hold this silo's certificate", code=Refusal.ROSTER)
    if identity.member.name not in terms.names:
        raise PolicyRefusal("terms: the named set does not hold this silo", code=Refusal.NOT_NAMED)
    if not set(terms.names) <= roster.silo_names:
        raise PolicyRefusal("terms: a named silo is not on the roster", code=Refusal.ROSTER)
    sizes = {rule.members, terms.layout.members, len(terms.names)}
    if len(sizes) != 1 or list(terms.names) != sorted(set(terms.names)):
        raise PolicyRefusal("terms: m is not the size of the sorted named set", code=Refusal.TERMS)
    try:
        CohortRule.for_members(rule.members, threshold=rule.threshold, min_cohort=rule.min_cohort)
    except ConfigError as error:
        raise PolicyRefusal(f"terms: {error}", code=Refusal.TERMS) from None


def open_adverts(message: Cohort, setting: Setting) -> dict[str, VerifiedAdvert]:
    """The adverts of U1 by name, every one verified. Raises RemoteProtocolError(code=ADVERT)."""
    if len(message.adverts) > setting.terms.rule.members:
        raise RemoteProtocolError("cohort: more adverts than named silos", code=Refusal.ADVERT)
    adverts: dict[str, VerifiedAdvert] = {}
    for signed in message.adverts:
        verified = bodies.open_advert(
            signed,
            terms=setting.terms,
            session_digest=setting.session_digest,
            roster=setting.roster,
            authority=setting.authority,
            now=setting.now,
        )
        if verified.advert.name in adverts:
            raise RemoteProtocolError("cohort: a silo adverts twice", code=Refusal.ADVERT)
        adverts[verified.advert.name] = verified
    return adverts


def check_set(
    what: str, names: tuple[str, ...], *, within: Container[str], name: str, rule: CohortRule
) -> None:
    """U2 or U3: sorted, distinct, a subset of the set before it, with this silo, large enough."""
    if list(names) != sorted(set(names)) or any(member not in within for member in names):
        raise RemoteProtocolError(f"{what}: expected a sorted subset of the set before it")
    if name not in names:
        raise LeftOut(f"{what}: this silo is left out")
    check_size(what, len(names), rule)


def check_size(what: str, size: int, rule: CohortRule) -> None:
    if size < rule.min_survivors:
        message = f"{what}: expected at least {rule.min_survivors} silos, got {size}"
        raise RemoteProtocolError(message, code=Refusal.COHORT_TOO_SMALL)

"""What a silo holds in each state of a session, the checks that it makes before it continues, and the steps.

Every state has a type of its own, so a secret that a later stage does not need is not there.
Source: docs/protocol.md 3, 5.1 to 5.6.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias

from crypto.errors import ConfigError, PolicyRefusal, Refusal, RemoteProtocolError
from crypto.identity.certificates import Anchors, Identity, Role, SignedBody
from crypto.identity.roster import Roster
from crypto.masking.masks import Masker, SignedSeed
from crypto.masking.tags import Tagger
from crypto.session import bodies, seeds
from crypto.session.bodies import VerifiedAdvert
from crypto.session.cohort import CohortRule
from crypto.session.dealing import Dealt, OwnSecrets, Random, Received
from crypto.session.messages import (
    Advert,
    Cohort,
    LedgerMark,
    LedgerStatement,
    SessionTerms,
    UnmaskShares,
)
from crypto.session.reveal import PendingReveal
from crypto.session.sum_check import SumCheck


class LeftOut(RemoteProtocolError):
    """The session continues without this silo: it neither signs nor answers."""

    code = Refusal.LEFT_OUT


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionContext:
    """What the silo itself brings to the session."""

    terms: SessionTerms
    session_digest: bytes  # of the terms
    roster: Roster
    authority: Anchors
    now: datetime
    random: Random


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    context: SessionContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Advertised:
    context: SessionContext
    secrets: OwnSecrets
    advert: SignedBody


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    context: SessionContext
    secrets: OwnSecrets
    dealt: Dealt
    adverts: dict[str, VerifiedAdvert]  # of U1
    cohort_digest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Masked:
    context: SessionContext
    own_share: bytes = field(repr=False)
    received: dict[str, Received]  # from each other silo of U2
    pair_seeds: dict[str, bytes] = field(repr=False)  # with each other silo of U2
    adverts: dict[str, VerifiedAdvert]  # of U1
    cohort_digest: bytes
    sharers: tuple[str, ...]  # U2
    sum_check: SumCheck = field(repr=False)


Held: TypeAlias = Ready | Advertised | Shared | Masked | PendingReveal | None


def check_terms(context: SessionContext, identity: Identity) -> None:
    """Terms that this silo may join: its roster, its name, sizes no smaller than the rule's.

    Source: docs/protocol.md 3.1, 3.2 and 5.1.
    """
    terms, roster, rule = context.terms, context.roster, context.terms.rule
    roster.check_current(context.now)
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


def open_adverts(message: Cohort, context: SessionContext) -> dict[str, VerifiedAdvert]:
    """The adverts of U1 by name, every one verified. Raises RemoteProtocolError(code=ADVERT)."""
    if len(message.adverts) > context.terms.rule.members:
        raise RemoteProtocolError("cohort: more adverts than named silos", code=Refusal.ADVERT)
    adverts: dict[str, VerifiedAdvert] = {}
    for signed in message.adverts:
        verified = bodies.open_advert(
            signed,
            terms=context.terms,
            session_digest=context.session_digest,
            roster=context.roster,
            authority=context.authority,
            now=context.now,
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


def advertise(
    context: SessionContext,
    identity: Identity,
    *,
    ledger: LedgerMark,
    echoes: Mapping[str, LedgerStatement],
) -> Advertised:
    """echoes: what is kept of neighbors' ledgers."""
    name = identity.member.name
    secrets = OwnSecrets.fresh(context.random)
    advert = Advert(
        name=name,
        session_digest=context.session_digest,
        certificate=identity.certificate_der,
        channel_key=secrets.channel_key.public,
        mask_key=secrets.mask_key.public,
        self_mask_commitment=seeds.self_mask_commitment(secrets.self_mask_seed, name=name),
        sum_key_commitment=seeds.sum_key_commitment(secrets.sum_key, name=name),
        statement=bodies.sign_statement(identity, ledger),
        echoes=tuple(sorted(echoes.items())),
    )
    return Advertised(context=context, secrets=secrets, advert=bodies.sign(identity, advert))


def make_sum_check(
    held: Shared, received: Mapping[str, Received], *, name: str, sharers: tuple[str, ...]
) -> SumCheck:
    """k, and what U2 committed to. docs/protocol.md 5.9."""
    terms, adverts = held.context.terms, {peer: held.adverts[peer].advert for peer in sharers}
    sum_keys = {peer: given.sum_key for peer, given in received.items()} | {name: held.secrets.sum_key}
    return SumCheck(
        federation=terms.federation,
        job_digest=terms.job_digest,
        round=terms.round,
        phase=terms.phase,
        attempt=terms.attempt,
        session_digest=held.context.session_digest,
        layout_digest=terms.layout.digest,
        state_digest=terms.state_digest,
        threshold=terms.rule.threshold,
        members=terms.rule.members,
        cohort_digest=held.cohort_digest,
        name=name,
        sharers=sharers,
        certificates={peer: advert.certificate for peer, advert in adverts.items()},
        self_mask_commitments={peer: advert.self_mask_commitment for peer, advert in adverts.items()},
        sum_key=seeds.cohort_sum_key(sum_keys, cohort_digest=held.cohort_digest),
    )


def make_masker(masked: Masked, *, name: str, self_mask_seed: bytes) -> Masker:
    """y = x + PRG(b) + sum over greater names of PRG(s) - sum over smaller. docs/protocol.md 5.4."""
    pairs = [SignedSeed(seed=seed, sign=1 if name < peer else -1) for peer, seed in masked.pair_seeds.items()]
    layout, check = masked.context.terms.layout, masked.sum_check
    return Masker(
        layout=layout,
        cohort_digest=masked.cohort_digest,
        seeds=(SignedSeed(seed=self_mask_seed, sign=1), *pairs),
        tagger=None if layout.tagged is None else Tagger(layout=layout, sum_key=check.sum_key, name=name),
    )


def make_pending(held: Masked, *, name: str, survivors: tuple[str, ...]) -> PendingReveal:
    """Never both shares of one silo: b where it survived, r where it was lost. docs/protocol.md 5.6."""
    terms = held.context.terms
    lost = [peer for peer in held.sharers if peer not in survivors]
    self_mask_shares = {peer: held.received[peer].self_mask_share for peer in survivors if peer != name}
    return PendingReveal(
        job_digest=terms.job_digest,
        round=terms.round,
        phase=terms.phase,
        attempt=terms.attempt,
        state_digest=terms.state_digest,
        threshold=terms.rule.threshold,
        min_cohort=terms.rule.min_cohort,
        cohort_digest=held.cohort_digest,
        name=name,
        certificates={peer: verified.advert.certificate for peer, verified in held.adverts.items()},
        sharers=held.sharers,
        survivors=survivors,
        answer=UnmaskShares(
            self_mask_shares={**self_mask_shares, name: held.own_share},
            recovery_shares={peer: held.received[peer].recovery_share for peer in lost},
        ),
        pair_seeds={peer: held.pair_seeds[peer] for peer in lost},
    )

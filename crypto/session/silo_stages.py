"""What a silo holds in each state of a session, and the steps that make it.

Every state has a type of its own, so a secret that a later stage does not need is not there.
Source: docs/protocol.md 5.2 to 5.6.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from crypto.identity.certificates import Identity, SignedBody
from crypto.masking.masks import Masker, SignedSeed
from crypto.session import bodies, seeds
from crypto.session.bodies import VerifiedAdvert
from crypto.session.dealing import Dealt, OwnSecrets, Received
from crypto.session.messages import Advert, UnmaskShares
from crypto.session.reveal import PendingReveal
from crypto.session.silo_checks import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    setting: Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Advertised:
    setting: Setting
    secrets: OwnSecrets
    advert: SignedBody


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    setting: Setting
    secrets: OwnSecrets
    dealt: Dealt
    adverts: dict[str, VerifiedAdvert]  # of U1
    cohort_digest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Masked:
    setting: Setting
    own_share: bytes = field(repr=False)
    received: dict[str, Received]  # from each other silo of U2
    pair_seeds: dict[str, bytes] = field(repr=False)  # with each other silo of U2
    adverts: dict[str, VerifiedAdvert]  # of U1
    cohort_digest: bytes
    sharers: tuple[str, ...]  # U2


Held: TypeAlias = Ready | Advertised | Shared | Masked | PendingReveal | None


def advertise(setting: Setting, identity: Identity) -> Advertised:
    name = identity.member.name
    secrets = OwnSecrets.fresh(setting.random)
    advert = Advert(
        name=name,
        session_digest=setting.session_digest,
        certificate=identity.certificate_der,
        channel_key=secrets.channel_key.public,
        mask_key=secrets.mask_key.public,
        self_mask_commitment=seeds.self_mask_commitment(secrets.self_mask_seed, name=name),
    )
    return Advertised(setting=setting, secrets=secrets, advert=bodies.sign_advert(identity, advert))


def make_masker(masked: Masked, *, name: str, self_mask_seed: bytes) -> Masker:
    """y = x + PRG(b) + sum over greater names of PRG(s) - sum over smaller. docs/protocol.md 5.4."""
    pairs = [SignedSeed(seed=seed, sign=1 if name < peer else -1) for peer, seed in masked.pair_seeds.items()]
    return Masker(
        layout=masked.setting.terms.layout,
        cohort_digest=masked.cohort_digest,
        seeds=(SignedSeed(seed=self_mask_seed, sign=1), *pairs),
    )


def make_pending(held: Masked, *, name: str, survivors: tuple[str, ...]) -> PendingReveal:
    """Never both shares of one silo: b where it survived, r where it was lost. docs/protocol.md 5.6."""
    terms = held.setting.terms
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

"""What one silo deals to the others after ADVERTISE, and what it opens of what they dealt.

Source: docs/protocol.md 5.3 and 5.4.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from crypto import envelope_tree
from crypto.errors import Refusal, RemoteProtocolError
from crypto.identity.certificates import Identity
from crypto.session import bodies, envelope, seeds, shamir
from crypto.session.bodies import VerifiedAdvert
from crypto.session.messages import Dealing, Envelope, RelayedEnvelope, SessionTerms, Shares

Random = Callable[[int], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnSecrets:
    """Fresh in every session: the self-mask seed b(u), the recovery seed r(u), the key pairs, and k_u."""

    self_mask_seed: bytes = field(repr=False)
    recovery_seed: bytes = field(repr=False)
    channel_key: envelope.KeyPair = field(repr=False)
    mask_key: envelope.KeyPair = field(repr=False)
    sum_key: bytes = field(repr=False)

    @classmethod
    def fresh(cls, random: Random) -> OwnSecrets:
        recovery_seed = random(envelope.SEED_BYTES)
        return cls(
            self_mask_seed=random(envelope.SEED_BYTES),
            recovery_seed=recovery_seed,
            channel_key=envelope.KeyPair.from_seed(random(envelope.SEED_BYTES)),
            mask_key=seeds.mask_key_pair(recovery_seed),
            sum_key=random(seeds.SUM_KEY_BYTES),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Dealt:
    """What u keeps of its own dealing: the message, its share of b(u), the pair seeds it chose."""

    shares: Shares
    own_share: bytes = field(repr=False)
    pair_seeds: dict[str, bytes] = field(repr=False)  # by each peer of greater name


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """What one dealer gave: shares of its b and r, its k_u, and s(dealer, receiver) if it has the smaller
    name."""

    self_mask_share: bytes = field(repr=False)
    recovery_share: bytes = field(repr=False)
    sum_key: bytes = field(repr=False)
    pair_seed: bytes | None = field(repr=False)


class EnvelopeMismatch(Exception):
    """The sender signed an envelope that cannot be decrypted or does not match its hashes or its advert."""


def share_points(terms: SessionTerms) -> dict[str, int]:
    """Shamir x of each named silo: 1 + rank among the m names. docs/protocol.md 5.3."""
    return {name: 1 + rank for rank, name in enumerate(terms.names)}


def deal(
    terms: SessionTerms,
    secrets: OwnSecrets,
    adverts: Mapping[str, VerifiedAdvert],
    *,
    cohort_digest: bytes,
    identity: Identity,
    random: Random,
) -> Dealt:
    """One envelope to every other member of U1, and one signature over them and the share that stays."""
    dealer = identity.member.name
    receivers = sorted(adverts)
    points, threshold = share_points(terms), terms.rule.threshold
    xs = [points[name] for name in receivers]
    self_mask_shares, recovery_shares = (
        dict(zip(receivers, shamir.split(secret, threshold=threshold, xs=xs, random=random), strict=True))
        for secret in (secrets.self_mask_seed, secrets.recovery_seed)
    )
    pair_seeds = {
        peer: seeds.pair_seed(secrets.recovery_seed, cohort_digest=cohort_digest, peer=peer)
        for peer in receivers
        if dealer < peer
    }
    made = (
        make_envelope(
            adverts[peer],
            dealer=dealer,
            cohort_digest=cohort_digest,
            self_mask_share=self_mask_shares[peer],
            recovery_share=recovery_shares[peer],
            sum_key=secrets.sum_key,
            pair_seed=pair_seeds.get(peer),
        )
        for peer in receivers
        if peer != dealer
    )
    envelopes = tuple(bodies.body_of(each) for each in made)
    leaves = [envelope_tree.leaf(each) for each in envelopes]
    own_share = self_mask_shares[dealer]
    dealing = Dealing(
        cohort_digest=cohort_digest,
        sender=dealer,
        self_mask_share_hash=seeds.dealt_hash(
            seeds.SELF_MASK_SHARE, own_share, dealer=dealer, receiver=dealer
        ),
        envelopes_root=envelope_tree.root(envelope_tree.levels(leaves)),
    )
    shares = Shares(dealing=bodies.sign(identity, dealing), envelopes=envelopes)
    return Dealt(shares=shares, own_share=own_share, pair_seeds=pair_seeds)


def make_envelope(
    receiver: VerifiedAdvert,
    *,
    dealer: str,
    cohort_digest: bytes,
    self_mask_share: bytes,
    recovery_share: bytes,
    sum_key: bytes,
    pair_seed: bytes | None,
) -> Envelope:
    """Seal shares and k_u under the receiver's channel key and the pair seed, if any, under its mask key."""
    advert = receiver.advert
    names = {"dealer": dealer, "receiver": advert.name}
    seed_hash = sealed_seed = b""
    if pair_seed is not None:
        seed_hash = seeds.dealt_hash(seeds.PAIR_SEED, pair_seed, **names)
        seed_info = seeds.seal_info(seeds.SEALED_PAIR_SEED, cohort_digest, **names)
        sealed_seed = envelope.seal(advert.mask_key, pair_seed, info=seed_info)
    return Envelope(
        cohort_digest=cohort_digest,
        sender=dealer,
        receiver=advert.name,
        self_mask_share_hash=seeds.dealt_hash(seeds.SELF_MASK_SHARE, self_mask_share, **names),
        recovery_share_hash=seeds.dealt_hash(seeds.RECOVERY_SHARE, recovery_share, **names),
        sealed_shares=envelope.seal(
            advert.channel_key,
            self_mask_share + recovery_share + sum_key,
            info=seeds.seal_info(seeds.SEALED_SHARES, cohort_digest, **names),
        ),
        pair_seed_hash=seed_hash,
        sealed_pair_seed=sealed_seed,
    )


def open_dealt(made: Envelope, secrets: OwnSecrets, *, sum_key_commitment: bytes) -> Received:
    """Contents of an envelope addressed to the holder of `secrets`.

    sum_key_commitment: of the dealer's advert. Raises EnvelopeMismatch if a part cannot be decrypted or does
    not match the hash sent with it, or k_u not its commitment.
    """
    names = {"dealer": made.sender, "receiver": made.receiver}
    shares = _unseal(
        secrets.channel_key,
        made.sealed_shares,
        seeds.seal_info(seeds.SEALED_SHARES, made.cohort_digest, **names),
    )
    size = shamir.SHARE_BYTES
    self_mask_share, recovery_share, sum_key = shares[:size], shares[size : 2 * size], shares[2 * size :]
    _match(seeds.dealt_hash(seeds.SELF_MASK_SHARE, self_mask_share, **names), made.self_mask_share_hash)
    _match(seeds.dealt_hash(seeds.RECOVERY_SHARE, recovery_share, **names), made.recovery_share_hash)
    _match(seeds.sum_key_commitment(sum_key, name=made.sender), sum_key_commitment)
    return Received(
        self_mask_share=self_mask_share,
        recovery_share=recovery_share,
        sum_key=sum_key,
        pair_seed=None
        if not made.sealed_pair_seed
        else open_pair_seed(
            made.sealed_pair_seed,
            secrets.mask_key,
            cohort_digest=made.cohort_digest,
            hashed=made.pair_seed_hash,
            **names,
        ),
    )


def open_pair_seed(
    sealed: bytes,
    mask_key: envelope.KeyPair,
    *,
    cohort_digest: bytes,
    dealer: str,
    receiver: str,
    hashed: bytes,
) -> bytes:
    """A pair seed, opened by the receiver or with the receiver's rebuilt mask key. hashed: H(s).

    Raises EnvelopeMismatch.
    """
    names = {"dealer": dealer, "receiver": receiver}
    seed = _unseal(mask_key, sealed, seeds.seal_info(seeds.SEALED_PAIR_SEED, cohort_digest, **names))
    _match(seeds.dealt_hash(seeds.PAIR_SEED, seed, **names), hashed)
    return seed


def open_envelopes(
    relayed: tuple[RelayedEnvelope, ...],
    senders: list[str],
    *,
    adverts: Mapping[str, VerifiedAdvert],
    cohort_digest: bytes,
    receiver: str,
) -> list[Envelope]:
    """Verified envelopes to `receiver`, one from each sender, in that order; still sealed. adverts: of U1."""
    if len(relayed) != len(senders):
        message = f"envelopes: expected {len(senders)} to {receiver}, got {len(relayed)}"
        raise RemoteProtocolError(message, code=Refusal.ENVELOPE)
    cohort = sorted(adverts)
    return [
        bodies.open_envelope(
            each,
            certificate=adverts[sender].certificate,
            cohort=cohort,
            cohort_digest=cohort_digest,
            sender=sender,
            receiver=receiver,
        )
        for each, sender in zip(relayed, senders, strict=True)
    ]


def _unseal(key: envelope.KeyPair, sealed: bytes, info: bytes) -> bytes:
    try:
        return envelope.open_sealed(key, sealed, info=info)
    except RemoteProtocolError:
        raise EnvelopeMismatch from None


def _match(computed: bytes, dealt: bytes) -> None:
    if not hmac.compare_digest(computed, dealt):
        raise EnvelopeMismatch

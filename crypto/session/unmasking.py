"""From the survivors' shares back to the seeds under which their sum is masked.

Every share is checked against the hash its dealer signed, every rebuilt secret against what its
owner signed; who signed something false is named. Source: docs/protocol.md 5.6 and 5.7.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field

from crypto.errors import RemoteProtocolError
from crypto.masking.masks import SignedSeed, UnmaskPlan
from crypto.session import dealing, seeds
from crypto.session.dealing import EnvelopeMismatch
from crypto.session.envelope import KeyPair
from crypto.session.messages import UnmaskShares
from crypto.session.session_record import SessionRecord
from crypto.session.shamir import Recoverer

Pair = tuple[str, str]  # (survivor, lost silo)


@dataclass(slots=True, kw_only=True)
class Rebuilt:
    """Seeds so far. missing: pairs whose seed only the survivor can still give. liars: with reason."""

    self_mask_seeds: dict[str, bytes] = field(default_factory=dict, repr=False)  # b(v), v in U3
    pair_seeds: dict[Pair, bytes] = field(default_factory=dict, repr=False)
    missing: list[Pair] = field(default_factory=list)
    liars: dict[str, str] = field(default_factory=dict)


def check_shares(record: SessionRecord, sender: str, answer: UnmaskShares) -> bool:
    """Whether every share is the one its dealer hashed for the sender.

    Raises RemoteProtocolError if shares are missing or given for anyone else.
    """
    if set(answer.self_mask_shares) != set(record.survivors):
        raise RemoteProtocolError(f"unmask shares of {sender}: expected one of b for each survivor")
    if set(answer.recovery_shares) != set(record.lost):
        raise RemoteProtocolError(f"unmask shares of {sender}: expected one of r for each lost silo")
    own = [
        hmac.compare_digest(
            seeds.dealt_hash(seeds.SELF_MASK_SHARE, share, dealer=dealer, receiver=sender),
            record.dealings[dealer].share_hashes[sender],
        )
        for dealer, share in answer.self_mask_shares.items()
    ]
    recovery = [
        hmac.compare_digest(
            seeds.dealt_hash(seeds.RECOVERY_SHARE, share, dealer=dealer, receiver=sender),
            record.dealings[dealer].share_hashes[sender],
        )
        for dealer, share in answer.recovery_shares.items()
    ]
    return all(own) and all(recovery)


def is_pair_seed(record: SessionRecord, survivor: str, lost: str, seed: bytes) -> bool:
    """Whether this is the seed that the dealer of the pair hashed."""
    dealer, receiver = sorted((survivor, lost))
    hashed = seeds.dealt_hash(seeds.PAIR_SEED, seed, dealer=dealer, receiver=receiver)
    return hmac.compare_digest(hashed, record.dealings[dealer].pair_seed_hashes[receiver])


def rebuild(record: SessionRecord, answers: Mapping[str, UnmaskShares]) -> Rebuilt:
    """Seeds from the checked answers of at least t survivors; Lagrange's coefficients once."""
    threshold = record.terms.rule.threshold
    givers = sorted(answers)[:threshold]
    points = dealing.share_points(record.terms)
    recoverer = Recoverer([points[name] for name in givers], threshold)
    rebuilt = Rebuilt()
    for name in record.survivors:
        seed = _recover(recoverer, [answers[giver].self_mask_shares[name] for giver in givers])
        commitment = record.adverts[name].advert.self_mask_commitment
        if seed is not None and hmac.compare_digest(seeds.self_mask_commitment(seed, name=name), commitment):
            rebuilt.self_mask_seeds[name] = seed
        else:
            rebuilt.liars[name] = "dealt shares of another self-mask seed than it committed to"
    for name in record.lost:
        seed = _recover(recoverer, [answers[giver].recovery_shares[name] for giver in givers])
        _rebuild_pairs(rebuilt, record, name, seed)
    return rebuilt


def unmask_plan(record: SessionRecord, rebuilt: Rebuilt) -> UnmaskPlan:
    """The masks of the survivors with opposite signs; what survivors share with each other cancels."""
    self_masks = [SignedSeed(seed=rebuilt.self_mask_seeds[name], sign=-1) for name in record.survivors]
    pairs = [
        SignedSeed(seed=seed, sign=-1 if survivor < lost else 1)
        for (survivor, lost), seed in sorted(rebuilt.pair_seeds.items())
    ]
    return UnmaskPlan(
        layout=record.terms.layout,
        cohort_digest=record.cohort_digest,
        seeds=(*self_masks, *pairs),
        survivors=record.survivors,
    )


def _rebuild_pairs(rebuilt: Rebuilt, record: SessionRecord, lost: str, seed: bytes | None) -> None:
    mask_key = None if seed is None else seeds.mask_key_pair(seed)
    if seed is None or mask_key is None or mask_key.public != record.adverts[lost].advert.mask_key:
        rebuilt.liars[lost] = "dealt shares of another recovery seed than its mask key comes from"
        rebuilt.missing += [(survivor, lost) for survivor in record.survivors]
        return
    for survivor in record.survivors:
        pair_seed = _pair_seed(record, survivor, lost, recovery_seed=seed, mask_key=mask_key)
        if pair_seed is None:
            rebuilt.liars[min(survivor, lost)] = "dealt a pair seed that is not what it must be"
            rebuilt.missing.append((survivor, lost))
        else:
            rebuilt.pair_seeds[survivor, lost] = pair_seed


def _pair_seed(
    record: SessionRecord, survivor: str, lost: str, *, recovery_seed: bytes, mask_key: KeyPair
) -> bytes | None:
    """s(lost, survivor) derived, or s(survivor, lost) out of the envelope; None if its dealer lied."""
    if lost < survivor:
        derived = seeds.pair_seed(recovery_seed, cohort_digest=record.cohort_digest, peer=survivor)
        return derived if is_pair_seed(record, survivor, lost, derived) else None
    dealt = record.dealings[survivor]
    try:
        return dealing.open_pair_seed(
            dealt.sealed_pair_seeds[lost],
            mask_key,
            cohort_digest=record.cohort_digest,
            dealer=survivor,
            receiver=lost,
            hashed=dealt.pair_seed_hashes[lost],
        )
    except EnvelopeMismatch:
        return None


def _recover(recoverer: Recoverer, shares: list[bytes]) -> bytes | None:
    try:
        return recoverer.recover(shares)
    except RemoteProtocolError:
        return None

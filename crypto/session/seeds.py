"""Secrets of one silo in one session, what is derived from them, and the hashes that commit to them.

r(u) is the only secret behind u's pairwise masks: its mask key and every seed s(u, v) that it
chooses follow from it, so r(u) alone undoes them when u drops. The channel key is never shared.
Source: docs/protocol.md 5.2 and 5.3.
"""

from __future__ import annotations

import hmac

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from crypto import encoding
from crypto.session.envelope import SEED_BYTES, KeyPair


def mask_key_pair(recovery_seed: bytes) -> KeyPair:
    """The key under which others seal their pair seeds for the holder of r(u)."""
    return KeyPair.from_seed(_derive(recovery_seed, encoding.encode("mask-key")))


def pair_seed(recovery_seed: bytes, *, cohort_digest: bytes, peer: str) -> bytes:
    """s(u, peer), chosen by the holder of r(u) for a peer of greater name."""
    return _derive(recovery_seed, encoding.encode("pair-seed", cohort_digest, peer))


def self_mask_commitment(seed: bytes, *, name: str) -> bytes:
    return encoding.digest("self-mask-commitment", name, seed)


def self_mask_share_hash(share: bytes, *, dealer: str, receiver: str) -> bytes:
    return encoding.digest("self-mask-share-hash", dealer, receiver, share)


def recovery_share_hash(share: bytes, *, dealer: str, receiver: str) -> bytes:
    return encoding.digest("recovery-share-hash", dealer, receiver, share)


def pair_seed_hash(seed: bytes, *, dealer: str, receiver: str) -> bytes:
    return encoding.digest("pair-seed-hash", dealer, receiver, seed)


def shares_info(cohort_digest: bytes, *, dealer: str, receiver: str) -> bytes:
    """HPKE info for the shares, sealed under the receiver's channel key."""
    return encoding.encode("sealed-shares", cohort_digest, dealer, receiver)


def pair_seed_info(cohort_digest: bytes, *, dealer: str, receiver: str) -> bytes:
    """HPKE info for a pair seed, sealed under the receiver's mask key."""
    return encoding.encode("sealed-pair-seed", cohort_digest, dealer, receiver)


def is_same(left: bytes, right: bytes) -> bool:
    return hmac.compare_digest(left, right)


def _derive(secret: bytes, info: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=SEED_BYTES, salt=None, info=info).derive(secret)

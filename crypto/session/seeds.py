"""Secrets of one silo in one session, what is derived from them, and the hashes that commit to them.

r(u) is the only secret behind u's pairwise masks: its mask key and every seed s(u, v) that it
chooses follow from it, so r(u) alone undoes them when u drops. The channel key is never shared.
Source: docs/protocol.md 5.2 and 5.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from crypto import encoding
from crypto.session.envelope import SEED_BYTES, KeyPair

SELF_MASK_SHARE: Final = "self-mask-share-hash"
RECOVERY_SHARE: Final = "recovery-share-hash"
PAIR_SEED: Final = "pair-seed-hash"
SEALED_SHARES: Final = "sealed-shares"
SEALED_PAIR_SEED: Final = "sealed-pair-seed"
SUM_KEY_BYTES: Final = 32  # of k_u, and of k


def mask_key_pair(recovery_seed: bytes) -> KeyPair:
    """The key under which others seal their pair seeds for the holder of r(u)."""
    return KeyPair.from_seed(_derive(recovery_seed, encoding.encode("mask-key")))


def pair_seed(recovery_seed: bytes, *, cohort_digest: bytes, peer: str) -> bytes:
    """s(u, peer), chosen by the holder of r(u) for a peer of greater name."""
    return _derive(recovery_seed, encoding.encode("pair-seed", cohort_digest, peer))


def self_mask_commitment(seed: bytes, *, name: str) -> bytes:
    return encoding.digest("self-mask-commitment", name, seed)


def sum_key_commitment(sum_key: bytes, *, name: str) -> bytes:
    """What a silo adverts of its k_u, so that it cannot deal two."""
    return encoding.digest("sum-key", name, sum_key)


def cohort_sum_key(sum_keys: Mapping[str, bytes], *, cohort_digest: bytes) -> bytes:
    """k, from the k_u of all of U2: what every silo of it checks the sum with. docs/protocol.md 5.4."""
    sharers = sorted(sum_keys)
    info = encoding.encode("cohort-sum-key", cohort_digest, sharers)
    return _derive(b"".join(sum_keys[name] for name in sharers), info)


def dealt_hash(purpose: str, secret: bytes, *, dealer: str, receiver: str) -> bytes:
    """What a dealer signs of a share or a pair seed. purpose: which of the three it is."""
    return encoding.digest(purpose, dealer, receiver, secret)


def seal_info(purpose: str, cohort_digest: bytes, *, dealer: str, receiver: str) -> bytes:
    """HPKE info. purpose: shares, under the receiver's channel key, or a pair seed, under its mask key."""
    return encoding.encode(purpose, cohort_digest, dealer, receiver)


def _derive(secret: bytes, info: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=SEED_BYTES, salt=None, info=info).derive(secret)

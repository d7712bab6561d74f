"""Sealing to a silo's fresh key: HPKE with a post-quantum hybrid KEM.

RFC 9180 base mode, KEM MLKEM768-X25519, HKDF-SHA256, AES-256-GCM: what is recorded today stays
sealed if either of the two key agreements holds. Base mode does not say who sealed, so every
envelope is also signed (docs/protocol.md 5.3).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import (
    AEAD,
    KDF,
    KEM,
    MLKEM768X25519PrivateKey,
    MLKEM768X25519PublicKey,
    Suite,
)
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from crypto.errors import LocalProtocolError, Refusal, RemoteProtocolError

SEED_BYTES = 32
PUBLIC_BYTES = 1184 + 32  # ML-KEM-768 encapsulation key, then X25519
OVERHEAD_BYTES = 1088 + 32 + 16  # ML-KEM ciphertext, ephemeral X25519 key, GCM tag

_SUITE = Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
_MLKEM_PUBLIC_BYTES = 1184
_MLKEM_SEED_BYTES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    """A hybrid key pair; everything follows from its 32-byte seed."""

    public: bytes = field(repr=False)
    private: MLKEM768X25519PrivateKey = field(repr=False)

    @classmethod
    def from_seed(cls, seed: bytes) -> KeyPair:
        if len(seed) != SEED_BYTES:
            raise LocalProtocolError(f"key pair: expected a seed of 32 bytes, got {len(seed)}")
        expand = HKDF(
            algorithm=hashes.SHA256(),
            length=_MLKEM_SEED_BYTES + 32,
            salt=None,
            info=b"chorale/v1/key-pair\0",
        )
        material = expand.derive(seed)
        mlkem = MLKEM768PrivateKey.from_seed_bytes(material[:_MLKEM_SEED_BYTES])
        x25519 = X25519PrivateKey.from_private_bytes(material[_MLKEM_SEED_BYTES:])
        public = mlkem.public_key().public_bytes_raw() + x25519.public_key().public_bytes_raw()
        return cls(public=public, private=MLKEM768X25519PrivateKey(mlkem, x25519))


def seal(public: bytes, plaintext: bytes, *, info: bytes) -> bytes:
    """Seal to a public key; `info` binds cohort, purpose, sender and receiver.

    The ephemeral keys are the library's own randomness: sealing twice gives unrelated bytes.
    Raises RemoteProtocolError if the public key is unusable.
    """
    try:
        if len(public) != PUBLIC_BYTES:
            raise ValueError("length")
        mlkem = MLKEM768PublicKey.from_public_bytes(public[:_MLKEM_PUBLIC_BYTES])
        x25519 = X25519PublicKey.from_public_bytes(public[_MLKEM_PUBLIC_BYTES:])
        return _SUITE.encrypt(plaintext, MLKEM768X25519PublicKey(mlkem, x25519), info)
    except ValueError:  # of an X25519 key of low order, too
        message = "public key: expected an ML-KEM-768 and an X25519 key"
        raise RemoteProtocolError(message, code=Refusal.ADVERT) from None


def open_sealed(keypair: KeyPair, ciphertext: bytes, *, info: bytes) -> bytes:
    """The plaintext. Raises RemoteProtocolError(code=ENVELOPE) if key and info do not decrypt it."""
    try:
        return _SUITE.decrypt(ciphertext, keypair.private, info)
    except (InvalidTag, ValueError):
        raise RemoteProtocolError("envelope: it cannot be decrypted", code=Refusal.ENVELOPE) from None

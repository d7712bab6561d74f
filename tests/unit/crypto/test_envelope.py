from __future__ import annotations

import os

import pytest

from crypto.errors import LocalProtocolError, Refusal, RemoteProtocolError
from crypto.session import envelope
from crypto.session.envelope import OVERHEAD_BYTES, PUBLIC_BYTES, KeyPair

SEED = bytes(range(32))


@pytest.fixture(scope="module")
def keypair() -> KeyPair:
    return KeyPair.from_seed(SEED)


def test_a_seed_gives_one_key_pair(keypair: KeyPair) -> None:
    assert len(keypair.public) == PUBLIC_BYTES
    assert KeyPair.from_seed(SEED).public == keypair.public
    other = KeyPair.from_seed(b"\xff" + SEED[1:])
    assert other.public[:1184] != keypair.public[:1184]
    assert other.public[1184:] != keypair.public[1184:]


def test_sealed_bytes_open_with_key_and_info(keypair: KeyPair) -> None:
    sealed = envelope.seal(keypair.public, b"two shares", info=b"a to b")
    assert len(sealed) == OVERHEAD_BYTES + len(b"two shares")
    assert envelope.open_sealed(KeyPair.from_seed(SEED), sealed, info=b"a to b") == b"two shares"


def test_sealing_twice_gives_unrelated_bytes(keypair: KeyPair) -> None:
    first, second = (envelope.seal(keypair.public, bytes(32), info=b"") for _ in range(2))
    assert first[:32] != second[:32]
    assert first[-32:] != second[-32:]


def test_what_does_not_belong_together_does_not_open(keypair: KeyPair) -> None:
    sealed = envelope.seal(keypair.public, b"two shares", info=b"a to b")
    stranger = KeyPair.from_seed(os.urandom(32))
    flipped = bytes([sealed[0] ^ 1]) + sealed[1:]
    attempts = [
        (keypair, sealed, b"a to c"),
        (stranger, sealed, b"a to b"),
        (keypair, flipped, b"a to b"),
        (keypair, sealed[:-1] + bytes([sealed[-1] ^ 1]), b"a to b"),
        (keypair, sealed[:-1], b"a to b"),
        (keypair, sealed + b"\0", b"a to b"),
        (keypair, b"", b"a to b"),
        (keypair, bytes(OVERHEAD_BYTES), b"a to b"),  # an ephemeral X25519 key of low order
    ]
    for receiver, data, info in attempts:
        with pytest.raises(RemoteProtocolError, match="envelope: it cannot be decrypted") as caught:
            envelope.open_sealed(receiver, data, info=info)
        assert caught.value.code is Refusal.ENVELOPE


@pytest.mark.parametrize(
    "public",
    [b"", bytes(PUBLIC_BYTES - 1), bytes(PUBLIC_BYTES + 1), b"\xff" * PUBLIC_BYTES],
    ids=["empty", "short", "long", "coefficients above q"],
)
def test_an_unusable_public_key_is_refused(public: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="expected an ML-KEM-768 and an X25519 key") as caught:
        envelope.seal(public, b"x", info=b"")
    assert caught.value.code is Refusal.ADVERT


def test_an_x25519_key_of_low_order_is_refused_when_sealing(keypair: KeyPair) -> None:
    """Its shared secret would be zero for every sender."""
    with pytest.raises(RemoteProtocolError, match="expected an ML-KEM-768 and an X25519 key"):
        envelope.seal(keypair.public[:1184] + bytes(32), b"x", info=b"")


def test_seeds_have_32_bytes() -> None:
    with pytest.raises(LocalProtocolError, match="a seed of 32 bytes, got 31"):
        KeyPair.from_seed(SEED[:31])


def test_repr_shows_no_key(keypair: KeyPair) -> None:
    assert repr(keypair) == "KeyPair()"

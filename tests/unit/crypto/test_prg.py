from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from crypto import prg
from crypto.prg import BLOCK_BYTES, Keystream

KEY = bytes(range(32))
COHORT = bytes([7]) * 32


def stream(size: int, *, key: bytes = KEY, offset_bytes: int = 0) -> bytes:
    out = np.empty(size, np.uint8)
    Keystream(key, offset_bytes=offset_bytes).fill(out)
    return out.tobytes()


def test_the_stream_is_aes_256_ctr_from_counter_zero() -> None:
    size = 2 * BLOCK_BYTES + 5
    expected = Cipher(algorithms.AES256(KEY), modes.CTR(bytes(16))).encryptor().update(bytes(size))
    assert stream(size) == expected


@pytest.mark.parametrize("offset", [0, 1, 15, 16, 17, 4096, BLOCK_BYTES - 1, BLOCK_BYTES + 3])
def test_a_stream_can_start_anywhere(offset: int) -> None:
    assert stream(100, offset_bytes=offset) == stream(BLOCK_BYTES + 200)[offset : offset + 100]


def test_a_stream_can_go_anywhere_at_any_time() -> None:
    keystream, whole = Keystream(KEY, offset_bytes=5), stream(BLOCK_BYTES + 200)
    out = np.empty(33, np.uint8)
    for offset in (BLOCK_BYTES + 3, 0, 17, 16, BLOCK_BYTES - 1, 4096):
        keystream.seek(offset)
        keystream.fill(out)
        assert out.tobytes() == whole[offset : offset + 33]
        keystream.fill(out)
        assert out.tobytes() == whole[offset + 33 : offset + 66]


def test_the_counter_passes_32_bits() -> None:
    """68 GiB into a stream its blocks are still new ones."""
    far = 16 << 32
    nonce = (1 << 32).to_bytes(16, "big")
    expected = Cipher(algorithms.AES256(KEY), modes.CTR(nonce)).encryptor().update(bytes(64))
    assert stream(64, offset_bytes=far) == expected
    assert stream(64, offset_bytes=far) != stream(64)


def test_pieces_of_any_size_make_one_stream() -> None:
    keystream = Keystream(KEY)
    pieces = [np.empty(size, np.uint8) for size in (1, 7, 16, 1000, 0, 33)]
    for piece in pieces:
        keystream.fill(piece)
    assert b"".join(piece.tobytes() for piece in pieces) == stream(1057)


def test_a_key_belongs_to_seed_cohort_and_word_size() -> None:
    seed = bytes(32)
    expected = HKDF(
        algorithm=hashes.SHA256(), length=32, salt=None, info=b"chorale/v1/prg\0" + COHORT + bytes([32])
    ).derive(seed)
    assert prg.mask_key(seed, cohort_digest=COHORT, ring_bits=32) == expected
    others = {
        prg.mask_key(seed, cohort_digest=COHORT, ring_bits=16),
        prg.mask_key(seed, cohort_digest=COHORT, ring_bits=64),
        prg.mask_key(seed, cohort_digest=bytes(32), ring_bits=32),
        prg.mask_key(bytes([1]) + bytes(31), cohort_digest=COHORT, ring_bits=32),
    }
    assert len(others | {expected}) == 5

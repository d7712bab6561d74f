"""AES-256-CTR as a stream of bytes: fast, seekable, written into buffers that are reused.

Source: docs/protocol.md 5.4.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

KEY_BYTES = 32
BLOCK_BYTES: Final = 1 << 20  # so many that threads seldom wait for one another, docs/performance.md
_CIPHER_BLOCK_BYTES = 16
_ZEROS: Final = memoryview(bytes(BLOCK_BYTES))  # XOR a key stream they are that key stream


def mask_key(seed: bytes, *, cohort_digest: bytes, ring_bits: int) -> bytes:
    """Key of the stream that a seed gives in one cohort for one word size: one key, one vector."""
    info = b"chorale/v1/prg\0" + cohort_digest + ring_bits.to_bytes(1, "big")
    return HKDF(algorithm=hashes.SHA256(), length=KEY_BYTES, salt=None, info=info).derive(seed)


class Keystream:
    """The key stream from an offset on.

    Security: counter 0 is safe because a key is used for one stream only, docs/protocol.md 5.4.
    """

    def __init__(self, key: bytes, *, offset_bytes: int = 0) -> None:
        self._encryptor = Cipher(algorithms.AES256(key), modes.CTR(bytes(_CIPHER_BLOCK_BYTES))).encryptor()
        self.seek(offset_bytes)

    def seek(self, offset_bytes: int) -> None:
        """Continue from that byte of the stream. Far cheaper than another Keystream of the same key."""
        counter, skipped_bytes = divmod(offset_bytes, _CIPHER_BLOCK_BYTES)
        self._encryptor.reset_nonce(counter.to_bytes(_CIPHER_BLOCK_BYTES, "big"))
        self._encryptor.update(bytes(skipped_bytes))

    def fill(self, out: NDArray[np.uint8]) -> None:
        """Write the next bytes over `out`, which must be contiguous."""
        for start in range(0, out.size, BLOCK_BYTES):
            block = out[start : start + BLOCK_BYTES]
            self._encryptor.update_into(_ZEROS[: block.size], block.data)

"""AES-256-CTR for compiled loops: contexts of the OpenSSL that Python's own ssl module is linked with.

A loop outside the interpreter calls EVP_EncryptUpdate by its address, block after block, and waits for no
lock. The bytes are those of `prg.Keystream`, which serves wherever this library cannot be reached.
Source: EVP_EncryptInit(3).
"""

# K = contexts

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from ctypes import PyDLL, c_char_p, c_int, c_void_p
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from crypto.errors import LocalProtocolError

_KEY_BYTES: Final = 32
_CIPHER_BLOCK_BYTES: Final = 16


class Contexts:
    """One key stream a key, each at the same offset. addresses_K: an EVP_CIPHER_CTX each, for one thread."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        """Raises LocalProtocolError for a key of another length, and where OpenSSL has no such cipher."""
        if any(len(key) != _KEY_BYTES for key in keys):  # OpenSSL would read beyond it
            raise LocalProtocolError(f"key streams: expected keys of {_KEY_BYTES} bytes")
        library = _library()
        made: list[int] = []
        weakref.finalize(self, _free, library, made).atexit = False
        cipher, start = _checked(library.EVP_aes_256_ctr()), bytes(_CIPHER_BLOCK_BYTES)
        for key in keys:
            made.append(_checked(library.EVP_CIPHER_CTX_new()))
            _checked(library.EVP_EncryptInit_ex(made[-1], cipher, None, key, start))
        self.addresses_K: NDArray[np.intp] = np.array(made, np.intp)

    def seek(self, offset_bytes: int) -> None:
        """Go on from that byte of every stream."""
        library = _library()
        counter, skipped_bytes = divmod(offset_bytes, _CIPHER_BLOCK_BYTES)
        nonce, zeros = counter.to_bytes(_CIPHER_BLOCK_BYTES, "big"), bytes(skipped_bytes)
        skipped, written = ctypes.create_string_buffer(_CIPHER_BLOCK_BYTES), c_int()
        for address in self.addresses_K.tolist():
            _checked(library.EVP_EncryptInit_ex(address, None, None, None, nonce))
            if zeros:
                _checked(library.EVP_EncryptUpdate(address, skipped, written, zeros, skipped_bytes))


def encrypt_update_address() -> int:
    """Of EVP_EncryptUpdate(context, out, written, data, size). Raises AttributeError or OSError."""
    return _checked(ctypes.cast(_library().EVP_EncryptUpdate, c_void_p).value)


@cache
def _library() -> PyDLL:
    """What the ssl module is linked with: names are looked up in a library and in those that it needs.

    Calls from here keep the interpreter's lock: each takes less time than a turn of it.
    """
    import _ssl  # only where a silo masks long vectors

    library = PyDLL(getattr(_ssl, "__file__", None))  # without a file it is part of the program itself
    library.EVP_aes_256_ctr.restype = c_void_p
    library.EVP_CIPHER_CTX_new.restype = c_void_p
    library.EVP_CIPHER_CTX_free.argtypes = (c_void_p,)
    library.EVP_CIPHER_CTX_free.restype = None
    library.EVP_EncryptInit_ex.argtypes = (c_void_p, c_void_p, c_void_p, c_char_p, c_char_p)
    library.EVP_EncryptUpdate.argtypes = (c_void_p, c_char_p, ctypes.POINTER(c_int), c_char_p, c_int)
    return library


def _free(library: PyDLL, addresses: Sequence[int]) -> None:
    """OpenSSL overwrites the keys that it held."""
    for address in addresses:
        library.EVP_CIPHER_CTX_free(address)


def _checked(answer: int | None) -> int:
    """OpenSSL says 1 or an address where it did what it was asked for."""
    if not answer or answer < 0:
        raise LocalProtocolError("key streams: OpenSSL refused AES-256-CTR")
    return answer

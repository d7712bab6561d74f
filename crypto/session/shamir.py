"""Shamir's secret sharing of 32-byte secrets over the prime 2^256 + 297.

t shares rebuild the secret, t - 1 say nothing about it. x is 1 + a silo's rank among the named set.
Source: docs/protocol.md 5.3; A. Shamir, How to share a secret, CACM 22(11), 1979.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from crypto.errors import LocalProtocolError, RemoteProtocolError

FIELD = (1 << 256) + 297
SECRET_BYTES = 32
SHARE_BYTES = 33
_WIDE_BYTES = 64  # reduced modulo FIELD: within 2^-255 of uniform


def split(secret: bytes, *, threshold: int, xs: Sequence[int], random: Callable[[int], bytes]) -> list[bytes]:
    """One 33-byte share for each x: a random polynomial of degree t - 1 with the secret at 0.

    Raises LocalProtocolError unless the secret has 32 bytes and the xs are distinct and at least t.
    """
    if len(secret) != SECRET_BYTES:
        raise LocalProtocolError(f"shamir: expected a secret of 32 bytes, got {len(secret)}")
    _check_places(xs, threshold)
    wide = [random(_WIDE_BYTES) for _ in range(threshold - 1)]
    coefficients = [int.from_bytes(data, "big") % FIELD for data in wide]
    constant = int.from_bytes(secret, "big")
    return [_evaluate([constant, *coefficients], x).to_bytes(SHARE_BYTES, "big") for x in xs]


class Recoverer:
    """Rebuilds secrets that were all shared at the same xs; Lagrange's coefficients once for all.

    The first t of the xs are used; every share was checked against its hash before it came here.
    """

    def __init__(self, xs: Sequence[int], threshold: int) -> None:
        _check_places(xs, threshold)
        self._shares = len(xs)
        self._weights = _lagrange_at_zero(xs[:threshold])

    def recover(self, shares: Sequence[bytes]) -> bytes:
        """The secret from one share for each x, in their order.

        Raises RemoteProtocolError if a share is no field element or the secret has over 32 bytes.
        """
        if len(shares) != self._shares:
            raise LocalProtocolError(f"shamir: expected {self._shares} shares, got {len(shares)}")
        values = [int.from_bytes(share, "big") for share in shares]
        if any(len(share) != SHARE_BYTES for share in shares) or max(values) >= FIELD:
            raise RemoteProtocolError("shamir: a share is no 33-byte number below the prime")
        used = values[: len(self._weights)]
        secret = sum(weight * value for weight, value in zip(self._weights, used, strict=True)) % FIELD
        if secret >> 256:
            raise RemoteProtocolError("shamir: the shares rebuild no 32-byte secret")
        return secret.to_bytes(SECRET_BYTES, "big")


def _check_places(xs: Sequence[int], threshold: int) -> None:
    if not 1 <= threshold <= len(xs):
        raise LocalProtocolError(f"shamir: expected at least {threshold} places, got {len(xs)}")
    if len(set(xs)) != len(xs) or not all(0 < x < FIELD for x in xs):
        raise LocalProtocolError("shamir: places are distinct numbers from 1 on")


def _evaluate(coefficients: Sequence[int], x: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):
        value = value * x + coefficient  # x is small: reducing once, at the end, takes half the time
    return value % FIELD


def _lagrange_at_zero(xs: Sequence[int]) -> list[int]:
    numerators = [1] * len(xs)
    denominators = [1] * len(xs)
    for i, j in itertools.permutations(range(len(xs)), 2):
        numerators[i] = numerators[i] * xs[j] % FIELD
        denominators[i] = denominators[i] * (xs[j] - xs[i]) % FIELD
    pairs = zip(numerators, denominators, strict=True)
    return [numerator * pow(denominator, -1, FIELD) % FIELD for numerator, denominator in pairs]

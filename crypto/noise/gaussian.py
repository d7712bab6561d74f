"""Gaussian noise in whole numbers, from AES-256-CTR alone: the continuous Gaussian rounded to whole numbers.

For whole x, x + round(N) is round(x + N): adding a rounded Gaussian to whole numbers is post-processing of
adding the Gaussian itself, so every bound that is known of the Gaussian mechanism holds, sampled or not. The
sum of h such noises is the rounding of N + U_2 + ... + U_h, N Gaussian of h times the variance and U_i
uniform, so the same holds for a sum of silos. A table holds a variance of up to 2^16. Above it the noise is

    X = L A + B,    A discrete Gaussian, B rounded Gaussian, L a power of two, both of variance v / (L^2 + 1).

L A plus a continuous Gaussian is a Gaussian of variance v but for a relative 2^-110 of its density (Regev
2009, Claim 3.9), and rounding leaves the whole number L A alone. Proofs: docs/privacy-proofs.md, "The noise".
"""

# B = samples of one block, K = magnitudes 0 and up, N = samples asked for

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from crypto import prg
from crypto.errors import ConfigError, LocalProtocolError
from crypto.noise.table import WEIGHT_BITS, Table, alias_table
from crypto.noise.table_stream import BLOCK_SAMPLES, Integers, Pick, TableStream

MIN_VARIANCE: Final = 64.0  # the sum of h noises is then the rounding of one but for h 2^-800
MAX_VARIANCE: Final = 2.0**44
# of one sample: its tables and what separates L A + N from a Gaussian
SAMPLE_DISTANCE: Final = 2.0**-78

_ONE_TABLE: Final = 1 << 16  # the most variance of a single table; its 3072 entries stay in the L1 cache
_MAX_STEP: Final = 1 << 10  # L; its tables are of deviations up to 2^12 and stay in the L2 cache
_FIXED_BITS: Final = 192  # of the fractions below
_ONE: Final = 1 << _FIXED_BITS
_KEPT: Final = 12  # standard deviations in a table; beyond lie 2^-102
_SUMMED: Final = 16  # that the weights are shares of; beyond lie 2^-183
_TERMS_BITS: Final = 150  # terms of a cell's series below 2^-150 are left out
_ERROR: Final = 2.0**-100  # of fixed point and series together, see _densities and _cells
_KEPT_TABLES: Final = 32  # of up to 1.5 MiB each
_LN_2: Final = 0.6931472  # rounded up
# over the Gaussian's: rounding adds at most 1/12 to each silo's variance, which is 64 at least
_ROUNDED: Final = 1.0 + 1.0 / 700.0
_TAIL_BITS: Final = 48  # of `noise_tail`: 2^-40 over 256 quantities


class GaussianStream:
    """Rounded Gaussian noise: the same sample at the same position, however a vector is cut.

    variance: in squared ring units, MIN_VARIANCE to MAX_VARIANCE. key: 32 fresh bytes of the system's CSPRNG
    for each input, used for nothing else. quantity: its place in the layout. Threads may share a stream.
    """

    def __init__(self, variance: float, key: bytes, *, quantity: int, pick: Pick | None = None) -> None:
        if len(key) != prg.KEY_BYTES:
            raise LocalProtocolError(f"noise: expected a key of {prg.KEY_BYTES} bytes, got {len(key)}")
        tables = gaussian_tables(variance)
        self._step = tables.step
        self._fine = _stream(tables.fine, key, quantity, b"", pick)
        self._coarse = None
        if tables.coarse is not None:
            self._coarse = _stream(tables.coarse, key, quantity, b"coarse ", pick)

    def sample_into(self, start: int, out_N: Integers) -> None:
        """Write the samples of positions start, start + 1, ... into a contiguous int32 or int64 vector.

        Raises LocalProtocolError for another vector or a negative start.
        """
        if out_N.dtype not in (np.int32, np.int64) or out_N.ndim != 1 or not out_N.flags.c_contiguous:
            raise LocalProtocolError("noise: expected a contiguous vector of int32 or int64")
        if start < 0:
            raise LocalProtocolError(f"noise: a position is not negative, got {start}")
        deque(self._blocks(start, out_N.size, lambda first, size: out_N[first : first + size]), maxlen=0)

    def add_into(self, start: int, word_N: NDArray[np.unsignedinteger[Any]]) -> None:
        """Add the samples of positions start, start + 1, ... to ring words, modulo 2^w."""
        signed_N = word_N.view(f"i{word_N.itemsize}")
        buffer_B = np.empty(min(BLOCK_SAMPLES, word_N.size), np.int32)
        for first, sample_B in self._blocks(start, word_N.size, lambda _, size: buffer_B[:size]):
            part_B = signed_N[first : first + sample_B.size]
            np.add(part_B, sample_B, out=part_B, casting="same_kind")

    def _blocks(
        self, start: int, size: int, room: Callable[[int, int], Integers]
    ) -> Iterator[tuple[int, Integers]]:
        fine = self._fine.blocks(start, size, room)
        if self._coarse is None:
            yield from fine
            return
        buffer_B = np.empty(min(BLOCK_SAMPLES, size), np.int32)
        coarse = self._coarse.blocks(start, size, lambda _, count: buffer_B[:count])
        for (first, sample_B), (_, coarse_B) in zip(fine, coarse, strict=True):
            coarse_B *= self._step  # at most 2^26: 12 deviations of 2^12, 2^10 times
            sample_B += coarse_B
            yield first, sample_B


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianTables:
    """X = step A + B. coarse: of A, None where the step is 0. fine: of B.

    total_variation: of one X to the rounded Gaussian, at most SAMPLE_DISTANCE.
    """

    coarse: Table | None
    step: int
    fine: Table

    @property
    def total_variation(self) -> float:
        if self.coarse is None:
            return self.fine.total_variation
        return self.coarse.total_variation + self.fine.total_variation + 2.0**-111


@lru_cache(maxsize=_KEPT_TABLES)
def gaussian_tables(variance: float) -> GaussianTables:
    """The tables of a variance, kept for the next caller.

    Units: variance in squared ring units. Raises ConfigError if it is out of range.
    """
    if not MIN_VARIANCE <= variance <= MAX_VARIANCE:  # false for NaN too
        raise ConfigError(
            f"noise: expected a variance of {MIN_VARIANCE:g} to {MAX_VARIANCE:g} squared units, "
            f"got {variance}"
        )
    if variance <= _ONE_TABLE:
        return GaussianTables(coarse=None, step=0, fine=_table(Fraction(variance), is_rounded=True))
    step = _MAX_STEP
    while 4 * step**2 * (step**2 + 1) > variance:  # the tables' deviation is 2 steps or more
        step //= 2
    part = Fraction(variance) / (step**2 + 1)
    coarse, fine = _table(part, is_rounded=False), _table(part, is_rounded=True)
    return GaussianTables(coarse=coarse, step=step, fine=fine)


def noise_tail(variance_total: float, count: int) -> int:
    """What none of `count` noised numbers exceeds in magnitude by its noise, but for 2^-48 in all.

    variance_total: of the noise in the sum, m times one silo's. In ring units. Square roots and products
    alone: both sides of a layout need the same last bit.
    """
    bits = (2 * count).bit_length() + _TAIL_BITS  # no less than log2(2 count / 2^-48)
    return math.ceil(math.sqrt(2.0 * _LN_2 * bits * _ROUNDED * variance_total))


def wrap_probability(bound_units: float, variance_total: float, count: int, room: float) -> float:
    """No less than the probability that any of `count` noised sums leaves [-room, room].

    bound_units: largest magnitude of a sum without its noise. variance_total: of the noise in the sum,
    m times one silo's. room: 2^(w-1) - 1 in a word of w bits. All in ring units.
    Raises ConfigError for what is not a number in range.
    """
    numbers = (bound_units, variance_total, count, room)
    if not all(math.isfinite(number) and number >= 0 for number in numbers):
        raise ConfigError(
            f"noise: bound, variance, count and room are finite and not negative, got {numbers}"
        )
    beyond = room + 1 - bound_units
    if beyond <= 0:
        return 1.0
    # E[e^(theta X)] is at most e^(theta^2 (v + 1/12) / 2) for each silo (docs/privacy-proofs.md, "The noise")
    return min(1.0, 2.0 * count * math.exp(-(beyond**2) / (2.0 * _ROUNDED * max(variance_total, 1e-300))))


def _stream(table: Table, key: bytes, quantity: int, level: bytes, pick: Pick | None) -> TableStream:
    word_key, more_key = (
        HKDF(
            algorithm=hashes.SHA256(),
            length=prg.KEY_BYTES,
            salt=None,
            info=b"chorale/v1/noise\0" + quantity.to_bytes(4, "big") + level + use,
        ).derive(key)
        for use in (b"words", b"more")
    )
    return TableStream(table, word_key=word_key, more_key=more_key, pick=pick)


def _table(variance: Fraction, *, is_rounded: bool) -> Table:
    """is_rounded: the Gaussian's mass from k - 1/2 to k + 1/2, else P(k) in proportion to its density."""
    deviation = math.sqrt(variance)
    density_K = _densities(variance, math.ceil(_SUMMED * deviation))
    # the masses add up to what the densities do, but for e^(-2 pi^2 64) (Poisson's summation)
    total = 2 * sum(density_K) - density_K[0]
    kept_K = density_K[: math.ceil(_KEPT * deviation) + 1]
    first, *rest = _cells(variance, kept_K) if is_rounded else kept_K
    weights = [
        (first << WEIGHT_BITS) // total,
        *((mass << (WEIGHT_BITS + 1)) // total for mass in rest),
    ]
    return alias_table(weights, error=_ERROR)


def _densities(variance: Fraction, last: int) -> list[int]:
    """exp(-k^2 / 2v) in fixed point, k = 0 to last <= 2^17.

    g(k+1) = g(k) r(k), r(k+1) = r(k) exp(-1/v). The series is off by at most 2^-186, each product is cut by
    at most 2^-192, so r(k) is off by k 2^-185, g(k) by k^2 2^-185, and the sum of all of them by 2^-134.
    """
    ratio, factor = _exponential(1 / (2 * variance)), _exponential(1 / variance)
    density, density_K = _ONE, []
    for _ in range(last + 1):
        density_K.append(density)
        density = density * ratio >> _FIXED_BITS
        ratio = ratio * factor >> _FIXED_BITS
    return density_K


def _exponential(x: Fraction) -> int:
    """exp(-x) in fixed point, 0 < x < 1/32: fewer than 40 terms are not zero."""
    power, term, total, n = math.floor(x * _ONE), _ONE, 0, 0
    while term:
        total += -term if n % 2 else term
        n += 1
        term = (term * power >> _FIXED_BITS) // n
    return total


def _cells(variance: Fraction, density_K: list[int]) -> list[int]:
    """The integrals of exp(-x^2 / 2v) from k - 1/2 to k + 1/2: the sums of g^(2j)(k) / (4^j (2j + 1)!).

    g^(n) = (-1)^n h_n g with Hermite's h_(n+1) = (k h_n - n h_(n-1)) / v. By Cramer's inequality a term is
    below 1.09 / (4 v)^j, so below 2^-150 from where the series ends.
    """
    last = math.ceil(_TERMS_BITS / math.log2(4 * variance))
    numerator, denominator = variance.as_integer_ratio()
    inverse = (denominator << _FIXED_BITS) // numerator
    divisors = [4**j * math.factorial(2 * j + 1) for j in range(last + 1)]
    mass_K = []
    for k, density in enumerate(density_K):
        before, h = 0, _ONE
        mean = h
        for n in range(2 * last):
            before, h = h, (k * h - n * before) * inverse >> _FIXED_BITS
            if n % 2:  # h is h_(n+1) now, and n + 1 is even
                mean += h // divisors[(n + 1) // 2]
        mass_K.append(density * mean >> _FIXED_BITS)
    return mass_K

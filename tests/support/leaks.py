"""A search for what one silo alone may know, in everything that was kept of a run.

A silo's value is looked for in every form in which a mistake would show it: as float32 and float64, as the
fixed-point words of its quantity before they are masked (rounded down and up, in 32 and 64 bits), and in
decimal; the bytes at any offset, plain, in hexadecimal or in base64. So is the sum of all silos but it,
which tells as much to one who knows the sum.

Bytes are compared window by window: 8 bytes for a number that fills them, 16 or 32 for several smaller ones.
A window of several numbers must hold MIN_BITS bits of them, a single number MIN_BITS_ALONE. What chance
finds in a run of tests/integration/test_nothing_per_silo.py, about 2^21 windows for 2^21 searched ones:
2^-21 in masked and sealed bytes; 2^-15 among the 2^12 words of sums, which are of the same size as a silo's;
2^-14 for the 2^6 single numbers of 32 bits, which only the 2^12 windows with an empty upper half can equal.
Decimals are compared as they are read, with MIN_DIGITS digits or more: some ten texts of up to 10 digits,
and 10^4 numbers of 7 to 9 digits over several decades, 2^-12.
Counts are too small for windows: a list of them is searched as a whole, a single one not at all.

A place to which the other silos add nothing but rounding is left out: there the sum is the silo's value,
which no masking changes (docs/threat-model.md). `Search.left_out` says how many places those are.

N = values of one quantity, K = alternatives of a value, L = windows, B = bytes of a window.
"""

from __future__ import annotations

import base64
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from crypto.fixed_point.layout import Quantity
from strategies.base import Array

WINDOWS = (8, 16, 32)
MAX_VALUES = 4  # in a window: their roundings multiply
MIN_BITS, MIN_BITS_ALONE = 48, 32
MIN_DIGITS = 6  # of a decimal number
MIN_LISTED = 4  # counts that are not zero, in a list of them
TABLE_BITS = 22  # of the table that most windows do not pass
MIX = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93], np.uint64)

LIST, DECIMAL = "list", "decimal"
NUMBER = re.compile(rb"-?\d+\.\d+(?:[eE][-+]?\d+)?")
HEXADECIMAL = re.compile(rb"[0-9a-fA-F]{16,}")  # 16: of 8 bytes
BASE64 = re.compile(rb"[A-Za-z0-9+/]{11,}={0,2}")  # 11: of 8 bytes

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Held:
    """One silo's values of one quantity. rest: the sum of what the other silos of the phase added.

    words: where it is no silo's own value but the rest of a sum, its words, rounded up and down.
    """

    owner: str
    phase: str
    quantity: Quantity
    members: int
    values: Array
    rest: Array
    words: NDArray[np.int64] | None = None

    @property
    def is_shared(self) -> NDArray[np.bool_]:
        """By value: whether other silos added more to its sum than rounding. Shapes: -> (N,)."""
        rest_N = np.abs(np.asarray(self.rest, np.float64)).reshape(-1)
        rounding = 0 if self.quantity.is_count else 2 * self.members
        return np.asarray(rest_N * self.quantity.scale(self.members) > rounding)


Source: TypeAlias = tuple[Held, str]  # a value and the form of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """where: name of the kept bytes, and of what was unfolded in them."""

    where: str
    offset: int
    owner: str
    phase: str
    quantity: str
    form: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Windows:
    """Sorted by key. bytes_LB: what must be there; owner_L: place of form and value in the names."""

    keys_L: Words
    bytes_LB: Bytes
    source_L: NDArray[np.int64]
    may_be: NDArray[np.bool_]


class Search:
    """Made once of all values of a run, then used on every folder of kept bytes.

    searched: by value, the forms in which there is enough of it to be found. left_out: by quantity, values
    of one silo to which the others add nothing.
    """

    def __init__(self, values: Iterable[Held]) -> None:
        self.searched: dict[Held, set[str]] = {}
        self.left_out: Counter[str] = Counter()
        self._sources: list[Source] = []
        self._lists: dict[bytes, Source] = {}
        self._decimals: dict[float, Source] = {}
        found: dict[int, list[tuple[Bytes, int]]] = {size: [] for size in WINDOWS}
        for held in values:
            self.searched[held] = set()
            self._add_windows(held, found)
            if held.words is None:
                self._add_text(held)
        self._windows = {size: _sorted(parts, size) for size, parts in found.items() if parts}

    def findings(self, blobs: Iterable[tuple[str, bytes]]) -> list[Finding]:
        """Every place in which one of the values stands. blobs: by name."""
        return [
            Finding(
                where=where,
                offset=offset,
                owner=held.owner,
                phase=held.phase,
                quantity=held.quantity.name,
                form=form,
            )
            for name, blob in blobs
            for where, data in _unfolded(name, blob)
            for offset, (held, form) in (*self._in_windows(data), *self._in_text(data))
        ]

    # what is searched

    def _add_windows(self, held: Held, found: dict[int, list[tuple[Bytes, int]]]) -> None:
        shared_N = held.is_shared
        if held.words is None:
            alone_N = ~shared_N & (np.asarray(held.values).reshape(-1) != 0)
            self.left_out[held.quantity.name] += int(np.count_nonzero(alone_N))
        for form, alternatives_KN in _forms(held):
            self._sources.append((held, form))
            for size in WINDOWS:
                windows_LB = _windows(alternatives_KN, shared_N, size)
                if len(windows_LB):
                    found[size].append((windows_LB, len(self._sources) - 1))
                    self.searched[held].add(form)

    def _add_text(self, held: Held) -> None:
        if held.quantity.is_count:
            for run in _lists(held):
                self._lists[run] = held, LIST
                self.searched[held].add(LIST)
        else:
            for number in _decimals(held):
                self._decimals[number] = held, DECIMAL
                self.searched[held].add(DECIMAL)

    # searching

    def _in_windows(self, data: bytes) -> Iterator[tuple[int, Source]]:
        for size, windows in self._windows.items():
            for shift in range(min(8, len(data) - size + 1)):
                words_L = np.frombuffer(data, "<u8", offset=shift, count=(len(data) - shift) // 8)
                for place, index in _matches(words_L, windows, size):
                    yield shift + 8 * place, self._sources[windows.source_L[index]]

    def _in_text(self, data: bytes) -> Iterator[tuple[int, Source]]:
        for run, source in self._lists.items():
            if (offset := data.find(run)) >= 0:
                yield offset, source
        for match in NUMBER.finditer(data):
            if _digits(match[0]) >= MIN_DIGITS and abs(float(match[0])) in self._decimals:
                yield match.start(), self._decimals[abs(float(match[0]))]


def _finding(where: str, offset: int, source: Source) -> Finding:
    held, form = source
    return Finding(
        where=where,
        offset=offset,
        owner=held.owner,
        phase=held.phase,
        quantity=held.quantity.name,
        form=form,
    )


def words_of(values: Array, quantity: Quantity, members: int) -> NDArray[np.int64]:
    """The fixed-point words of a silo's values, rounded down and up. Shapes: any -> (2, N).

    Written from docs/protocol.md 4, not with crypto.fixed_point.ring.
    """
    if quantity.is_count:
        exact_N = np.asarray(values).reshape(-1).astype(np.int64)
        return np.stack([exact_N, exact_N])
    bound = float(quantity.bound)
    scaled_N = np.clip(np.asarray(values, np.float64).reshape(-1), -bound, bound) * quantity.scale(members)
    return np.stack([np.floor(scaled_N), np.ceil(scaled_N)]).astype(np.int64)


def _forms(held: Held) -> Iterator[tuple[str, Array]]:
    """By name, little-endian values with their alternatives. Shapes: -> (K, N)."""
    if held.words is None:
        yield "float64", np.asarray(held.values).reshape(1, -1).astype("<f8")
        yield "float32", np.asarray(held.values).reshape(1, -1).astype("<f4")
    words_KN = words_of(held.values, held.quantity, held.members) if held.words is None else held.words
    yield "words of 64 bits", words_KN.astype("<i8")
    if np.abs(words_KN).max() < 1 << 31:
        yield "words of 32 bits", words_KN.astype("<i4")


def _lists(held: Held) -> Iterator[bytes]:
    """Counts by class as they would stand in a file, if there is more to them than chance gives."""
    values_N = np.asarray(held.values).reshape(-1)
    if np.count_nonzero(values_N) >= MIN_LISTED and np.ptp(values_N) > 0:
        yield from (values_N.astype(kind).tobytes() for kind in ("<i8", "<i4", "<f8", "<f4"))
        for separator in (",", ", "):
            yield separator.join(str(int(value)) for value in values_N).encode()


def _decimals(held: Held) -> Iterator[float]:
    """The numbers that a decimal in a log or JSON file would be read as."""
    values_N = np.asarray(held.values, np.float64).reshape(-1)
    for value in values_N[held.is_shared].tolist():
        texts = [repr(value), str(np.float32(value))]
        if values_N.size == 1:  # of many rounded numbers some would be met by chance
            texts += [f"{value:.6g}", repr(round(value, 6))]
        yield from (abs(float(text)) for text in texts if _digits(text.encode()) >= MIN_DIGITS)


def _windows(alternatives_KN: Array, shared_N: NDArray[np.bool_], size: int) -> Bytes:
    """Every run of values that fills a window and says enough, in all alternatives, if one is shared."""
    K, N = alternatives_KN.shape
    width = size // alternatives_KN.itemsize
    if width > N:
        return np.zeros((0, size), np.uint8)
    bits = sliding_window_view(_bits(alternatives_KN[0]), width).sum(axis=1)
    is_searched = bits >= (MIN_BITS if N > 1 else MIN_BITS_ALONE)
    starts = np.flatnonzero(is_searched & sliding_window_view(shared_N, width).any(axis=1))
    parts = [
        np.stack([alternatives_KN[k, starts + place] for place, k in enumerate(choice)], axis=1)
        for choice in itertools.product(range(K), repeat=width)
    ]
    windows_LB: Bytes = np.concatenate(parts).view(np.uint8).reshape(-1, size)
    return np.unique(windows_LB, axis=0)


def _bits(values_N: Array) -> NDArray[np.float64]:
    """How much a number says: bits of a whole one, of the mantissa of another up to its last 1."""
    if values_N.dtype.kind == "i":
        return np.asarray(np.log2(np.abs(values_N.astype(np.float64)) + 1))
    mantissa_N = np.ldexp(np.abs(np.frexp(values_N.astype(np.float64))[0]), 53).astype(np.int64)
    lowest_N = np.maximum(mantissa_N & -mantissa_N, 1)
    return np.where(mantissa_N > 0, 53 - np.log2(lowest_N), 0.0)


def _sorted(parts: list[tuple[Bytes, int]], size: int) -> _Windows:
    bytes_LB = np.concatenate([part for part, _ in parts])
    source_L = np.concatenate([np.full(len(part), source) for part, source in parts])
    keys_L = _keys(bytes_LB.view("<u8").reshape(-1, size // 8))
    order_L = np.argsort(keys_L)
    may_be = np.zeros(1 << TABLE_BITS, np.bool_)
    may_be[_hash(keys_L)] = True
    return _Windows(
        keys_L=keys_L[order_L], bytes_LB=bytes_LB[order_L], source_L=source_L[order_L], may_be=may_be
    )


def _keys(words: NDArray[Any]) -> Words:
    """One number for each window: which words stand in which order. Shapes: (L, 1 to 4) -> (L,)."""
    keys_L: Words = words[:, 0] * MIX[0]
    for place in range(1, words.shape[1]):
        keys_L ^= words[:, place] * MIX[place]
    return keys_L


def _hash(keys_L: Words) -> Words:
    return keys_L >> np.uint64(64 - TABLE_BITS)


def _matches(words_L: NDArray[Any], windows: _Windows, size: int) -> Iterator[tuple[int, int]]:
    """Places in the data and the searched windows that stand there."""
    width = size // 8
    if words_L.size < width:
        return
    seen = sliding_window_view(words_L, width)
    keys_L = _keys(seen)
    places = np.flatnonzero(windows.may_be[_hash(keys_L)])
    first = np.searchsorted(windows.keys_L, keys_L[places])
    for place, index in zip(places.tolist(), first.tolist(), strict=True):
        if index < windows.keys_L.size and windows.bytes_LB[index].tobytes() == seen[place].tobytes():
            yield place, index


def _unfolded(name: str, blob: bytes) -> Iterator[tuple[str, bytes]]:
    """The bytes, and what stands in them in hexadecimal or base64."""
    yield name, blob
    in_hexadecimal = [bytes.fromhex(run[: len(run) // 2 * 2].decode()) for run in HEXADECIMAL.findall(blob)]
    in_base64 = [base64.b64decode(_padded(run)) for run in BASE64.findall(blob)]
    for form, parts in (("hexadecimal", in_hexadecimal), ("base64", in_base64)):
        if parts:
            yield f"{name} in {form}", b"\0".join(parts)


def _padded(run: bytes) -> bytes:
    whole = run.rstrip(b"=")
    whole = whole[: len(whole) - (len(whole) % 4 == 1)]
    return whole + b"=" * (-len(whole) % 4)


def _digits(text: bytes) -> int:
    """Digits of a decimal number that say something: 0.0250 has two."""
    mantissa = re.split(rb"[eE]", text)[0].lstrip(b"-").replace(b".", b"")
    return len(mantissa.strip(b"0"))

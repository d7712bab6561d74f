"""One silo's values as words of Z(2^w), encoded piece by piece wherever they are read.

The random numbers of rounding and noise are addressed by a word's place, so a word is the same however
often and in whatever pieces it is read. Source: docs/protocol.md 4.
"""

# N = values of one quantity, B = values of one block

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crypto import prg
from crypto.errors import LocalProtocolError, QuantizationError
from crypto.fixed_point import clipping, compiled, ring
from crypto.fixed_point.compiled import Rounding
from crypto.fixed_point.layout import CLIPPED, Layout, Quantity
from crypto.fixed_point.ring import Encoded, Words
from crypto.noise.gaussian import GaussianStream
from crypto.noise.sensitivity import clipped_sensitivity
from crypto.noise.table_stream import numpy_pick
from crypto.prg import Keystream

BLOCK_VALUES: Final = 1 << 15  # numpy's arrays of a block stay in the L2 cache, docs/performance.md
COMPILED_BLOCK_VALUES: Final = 1 << 17  # as do the rounding bits, the only array of the compiled loop
CHECKED_VALUES: Final = 1 << 18  # least and largest of them, from the L3 cache the second time
MAX_ROUNDINGS: Final = 8  # of a clipped array; each is too long with a probability of about 2^-20 at most
ROUNDING_STEPS: Final = 1 << 16  # that the rounding bits of a value tell, two bytes of the key stream
_ROUNDING_BITS: Final = np.dtype("<u2")
_LARGEST_FLOAT32_SCALE: Final = (
    2.0**64
)  # units, and units times ROUNDING_STEPS, are then ordinary float32 numbers

Reals = NDArray[np.floating[Any]]


class Encoder:
    """Checked values that become words when they are read; several threads may read at once.

    layout: whose words they become. clipped_total: how many values are beyond their bound.
    """

    def __init__(
        self,
        values: Mapping[str, ArrayLike],
        *,
        layout: Layout,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        """Shapes and units: as the quantities declare.

        Contiguous arrays of float32 and float64 are held, not copied: they must not change any more.
        Raises QuantizationError for missing or surplus names, wrong shapes, values that are not finite,
        and counts that are not whole or beyond their bound. Source: docs/protocol.md 4.

        Security: random is the system's CSPRNG. It is asked again for every input: noise that two inputs
        shared would cancel in their difference.
        """
        arrays = _arrays(values, layout)
        is_compiled = sum(quantity.size for quantity in layout.quantities) >= compiled.WORTH_VALUES
        parts = {
            quantity.name: _part(arrays[quantity.name], quantity, layout.members, is_compiled)
            for quantity in layout.quantities
            if quantity.name in arrays
        }
        self.layout = layout
        self.clipped_total = sum(part.clipped for part in parts.values())
        for quantity in layout.quantities:
            if quantity.name == CLIPPED:
                # saturates: it flags a round, it measures nothing
                count = min(self.clipped_total, int(quantity.bound))
                parts[CLIPPED] = _Exact(word_N=np.array([count], ring.WORD_TYPES[quantity.ring_bits]))
        self._rounding_key = random(prg.KEY_BYTES)
        self._places = _places(layout)
        parts |= self._conditional(parts, random)
        noises = _noises(layout, random, is_compiled)
        self._parts = {
            ring_bits: [
                (place, parts[name], noises.get(name)) for name, place in layout.slices(ring_bits).items()
            ]
            for ring_bits in layout.ring_sizes
        }

    def check_layout(self, layout: Layout) -> None:
        """Raises LocalProtocolError unless these are words of that layout."""
        if layout.digest != self.layout.digest:
            raise LocalProtocolError("encoder: the values are of another layout")

    def read(self, ring_bits: int, start: int, out: Words) -> None:
        """Write the words from index `start` of the vector of that word size over `out`.

        A value beyond its bound is clipped; rounding is up with the probability of the fraction, to
        2^-16, so a sum has no bias and never passes what the scale leaves room for. Noise may.
        The tag words are 0 here: they follow from the others (crypto/masking/tags.py).
        """
        out[max(0, self.layout.values_end(ring_bits) - start) :] = 0
        for place, part, stream in self._parts[ring_bits]:
            first, last = max(start, place.start), min(start + out.size, place.stop)
            if first < last:
                rounding = _scratch.keystream(part.rounding_key or self._rounding_key)
                rounding.seek(_ROUNDING_BITS.itemsize * (self._places[ring_bits] + first))
                out_N = out[first - start : last - start]
                part.write(first - place.start, out_N, rounding)
                if stream is not None:
                    stream.add_into(first - place.start, out_N)

    def encode(self) -> Encoded:
        """All words at once."""
        vectors = ring.zeros(self.layout)
        for ring_bits, vector_L in vectors.items():
            self.read(ring_bits, 0, vector_L)
        return Encoded(vectors=vectors, clipped_total=self.clipped_total)

    def _conditional(self, parts: Mapping[str, _Part], random: Callable[[int], bytes]) -> dict[str, _Part]:
        """Parts of clipped arrays, each with rounding bits of its own, drawn until its norm is in bounds.

        Conditional rounding: Kairouz, Liu, Steinke 2021;
        docs/privacy-proofs.md, "Sensitivity after rounding".
        """
        chosen: dict[str, _Part] = {}
        for quantity in self.layout.quantities:
            part = parts[quantity.name]
            if quantity.noise is None or quantity.noise.clip_l2 is None or isinstance(part, _Exact):
                continue
            place = self.layout.slices(quantity.ring_bits)[quantity.name]
            most = clipped_sensitivity(
                quantity.noise.clip_l2, scale=quantity.noise.scale, coordinates=quantity.size
            ).squared_l2
            first_word = self._places[quantity.ring_bits] + place.start
            for _ in range(MAX_ROUNDINGS):
                tried = replace(part, rounding_key=random(prg.KEY_BYTES))
                if _squared_norm(tried, quantity.ring_bits, first_word) <= most:
                    chosen[quantity.name] = tried
                    break
            else:
                raise _odd(quantity, "no rounding of it is within its norm")
        return chosen


def round_into(
    value_B: Reals,
    rounding_bits_B: NDArray[np.uint16],
    out_B: NDArray[np.signedinteger[Any]],
    scale: np.floating[Any],
    most: np.floating[Any],
    steps: np.floating[Any],
    factor: np.floating[Any],
) -> None:
    """Shrink, clip, scale and write floor(x), or one more if the rounding bits are below the fraction.

    The reference of crypto/fixed_point/compiled.py. Exact in the values' own type, as the scale is a power
    of two; only the fraction of a number between -1 and 0 may have no room, and is rounded. No bits are
    below a fraction of nothing, so a whole number stays, and no number passes ceil(x).
    """
    size = value_B.size
    units_B, whole_B = (each.view(value_B.dtype)[:size] for each in (_scratch.units, _scratch.whole))
    is_up_B = _scratch.is_up[:size]
    if factor != 1:
        value_B = np.multiply(value_B, factor, out=units_B)
    if most < np.inf:
        value_B = np.clip(value_B, -most, most, out=units_B)
    np.multiply(value_B, scale, out=units_B)
    np.floor(units_B, out=whole_B)
    units_B -= whole_B
    units_B *= steps
    np.less(rounding_bits_B, units_B, out=is_up_B)
    whole_B += is_up_B
    np.copyto(out_B, whole_B, casting="unsafe")


class _Scratch(threading.local):
    """Buffers of a thread, used again for every block."""

    def __init__(self) -> None:
        self.units = np.empty(BLOCK_VALUES, np.float64)
        self.whole = np.empty(BLOCK_VALUES, np.float64)
        self.is_up = np.empty(BLOCK_VALUES, np.bool_)
        self.rounding_bits = np.empty(COMPILED_BLOCK_VALUES, _ROUNDING_BITS)
        self._last: tuple[bytes, Keystream] | None = None

    def keystream(self, key: bytes) -> Keystream:
        """Of the key, somewhere; the last one is used again."""
        if self._last is None or self._last[0] != key:
            self._last = key, Keystream(key)
        return self._last[1]


_scratch = _Scratch()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Exact:
    """Words as they are."""

    word_N: Words = field(repr=False)
    clipped: int = 0
    rounding_key: bytes | None = field(default=None, repr=False)

    def write(self, first: int, out: Words, rounding: Keystream) -> None:
        out[:] = self.word_N[first : first + out.size]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rounded:
    """Values to round. scale: of the values' own type, like most: the bound, inf if no value is beyond it.

    factor: what every value is multiplied by before, 1 where nothing is clipped as a whole.
    rounding_key: of the quantity's own rounding bits; None where it has those of the input.
    """

    value_N: Reals = field(repr=False)
    scale: np.floating[Any]
    most: np.floating[Any]
    factor: np.floating[Any] = field(repr=False)
    clipped: int
    round_into: Rounding
    rounding_key: bytes | None = field(default=None, repr=False)

    def write(self, first: int, out: Words, rounding: Keystream) -> None:
        steps = self.value_N.dtype.type(ROUNDING_STEPS)
        out_N = out.view(ring.SIGNED_TYPES[8 * out.itemsize])
        of = BLOCK_VALUES if self.round_into is round_into else COMPILED_BLOCK_VALUES
        for block in _blocks(out.size, of=of):
            out_B = out_N[block]
            rounding_bits_B = _scratch.rounding_bits[: out_B.size]
            rounding.fill(rounding_bits_B.view(np.uint8))
            value_B = self.value_N[first + block.start : first + block.start + out_B.size]
            self.round_into(value_B, rounding_bits_B, out_B, self.scale, self.most, steps, self.factor)


_Part = _Exact | _Rounded


def _places(layout: Layout) -> dict[int, int]:
    """By word size, how many words stand before its vector in the upload."""
    places, words = {}, 0
    for ring_bits in layout.ring_sizes:
        places[ring_bits] = words
        words += layout.length(ring_bits)
    return places


def _arrays(values: Mapping[str, ArrayLike], layout: Layout) -> dict[str, NDArray[Any]]:
    expected = {quantity.name for quantity in layout.quantities} - {CLIPPED}
    if values.keys() != expected:
        odd = sorted(values.keys() ^ expected)
        raise QuantizationError(f"values: missing or surplus quantities {', '.join(odd)}")
    arrays = {}
    for quantity in layout.quantities:
        if quantity.name == CLIPPED:
            continue
        try:
            array_N = np.asarray(values[quantity.name])
        except (ValueError, TypeError, OverflowError):
            raise _odd(quantity, "is no array of numbers") from None
        if array_N.dtype.kind not in "biuf":
            raise _odd(quantity, f"holds {array_N.dtype}, expected numbers")
        if array_N.shape != quantity.shape:
            raise _odd(quantity, f"expected shape {quantity.shape}, got {array_N.shape}")
        arrays[quantity.name] = array_N.reshape(-1)
    return arrays


def _part(array_N: NDArray[Any], quantity: Quantity, members: int, is_compiled: bool) -> _Part:
    if quantity.is_count or quantity.is_whole_units:
        return _Exact(word_N=_whole(array_N, quantity, members))
    scale, factor = quantity.scale(members), 1.0
    clip_l2 = None if quantity.noise is None else quantity.noise.clip_l2
    if clip_l2 is not None:
        array_N, factor = clipping.shrunk(_reals(array_N, scale), clip_l2, name=quantity.name)
    if quantity.projection is not None:
        array_N = quantity.projection.project(array_N)
    value_N = _reals(array_N, scale).view()
    value_N.flags.writeable = False
    is_within = clip_l2 is not None and clip_l2 <= quantity.bound
    clipped, kind = 0 if is_within else _clipped(value_N, quantity, factor), value_N.dtype.type
    most = kind(quantity.bound)
    if float(most) > quantity.bound:  # rounded up, where the type does not have the bound itself
        most = np.nextafter(most, kind(0))
    loop = compiled.rounding(value_N.dtype, ring.SIGNED_TYPES[quantity.ring_bits]) if is_compiled else None
    return _Rounded(
        value_N=value_N,
        scale=kind(scale),
        most=most if clipped or clip_l2 else kind(np.inf),
        factor=kind(factor),
        clipped=clipped,
        round_into=loop or round_into,
    )


def _reals(array_N: NDArray[Any], scale: float) -> Reals:
    """The array itself if it is of the type that it is rounded in."""
    kind = np.float32 if array_N.dtype == np.float32 and scale <= _LARGEST_FLOAT32_SCALE else np.float64
    return np.require(array_N, kind, ["C", "A"])


def _squared_norm(part: _Rounded, ring_bits: int, first_word: int) -> int:
    assert part.rounding_key is not None
    rounding = Keystream(part.rounding_key, offset_bytes=_ROUNDING_BITS.itemsize * first_word)
    word_B = np.empty(min(COMPILED_BLOCK_VALUES, part.value_N.size), ring.WORD_TYPES[ring_bits])
    total = 0
    for block in _blocks(part.value_N.size, of=COMPILED_BLOCK_VALUES):
        out_B = word_B[: part.value_N[block].size]
        part.write(block.start, out_B, rounding)
        total += clipping.squared_norm(out_B.view(ring.SIGNED_TYPES[ring_bits]))
    return total


def _noises(layout: Layout, random: Callable[[int], bytes], is_compiled: bool) -> dict[str, GaussianStream]:
    """By name of a quantity with noise. The key is of this input alone, and another than the rounding's."""
    noised = {place: each for place, each in enumerate(layout.quantities) if each.noise is not None}
    if not noised:
        return {}
    key, pick = random(prg.KEY_BYTES), None if is_compiled else numpy_pick
    return {
        each.name: GaussianStream(each.noise.variance, key, quantity=place, pick=pick)
        for place, each in noised.items()
        if each.noise is not None
    }


def _whole(count_N: NDArray[Any], quantity: Quantity, members: int) -> Words:
    """Of counts, and of whole numbers of the noise's units."""
    if quantity.is_whole_units and count_N.dtype.kind == "f":
        raise _odd(quantity, f"holds {count_N.dtype}, expected whole numbers of its units")
    most = math.floor(quantity.scale(members) * quantity.bound)
    word_N = np.empty(count_N.size, ring.WORD_TYPES[quantity.ring_bits])
    for block in _blocks(count_N.size):
        count_B = count_N[block]
        if count_B.dtype.kind == "f" and not (np.isfinite(count_B) & (np.floor(count_B) == count_B)).all():
            raise _odd(quantity, "a count is not a whole number")
        # Python numbers, because the negative of the least int64 is no int64
        if max(int(count_B.max()), -int(count_B.min())) > most:
            what = "a number of units" if quantity.is_whole_units else "a count"
            raise _odd(quantity, f"{what} is beyond its bound {most}")
        word_N[block] = count_B.astype(np.int64).astype(word_N.dtype)
    return word_N


def _clipped(value_N: Reals, quantity: Quantity, factor: float) -> int:
    """How many are beyond the bound, once they are multiplied by the factor."""
    clipped, bound = 0, float(quantity.bound) / factor
    for block in _blocks(value_N.size, of=CHECKED_VALUES):
        value_B = value_N[block]
        least, most = float(value_B.min()), float(value_B.max())  # NaN anywhere makes both NaN
        if not (np.isfinite(least) and np.isfinite(most)):
            raise _odd(quantity, "a value is not finite")
        if least < -bound or bound < most:
            clipped += int(np.count_nonzero(np.abs(value_B, dtype=np.float64) > bound))
    return clipped


def _blocks(size: int, *, of: int = BLOCK_VALUES) -> Iterator[slice]:
    for start in range(0, size, of):
        yield slice(start, start + of)


def _odd(quantity: Quantity, what: str) -> QuantizationError:
    return QuantizationError(f"quantity {quantity.name}: {what}")

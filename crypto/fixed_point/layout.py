"""Quantities of a phase and how they lie in the summed vectors.

Quantities are concatenated in declared order into one vector per word size.
Source: docs/protocol.md 4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from functools import cached_property

from crypto import encoding
from crypto.errors import ConfigError
from crypto.fixed_point.projection import Projection
from crypto.noise.gaussian import wrap_probability
from crypto.noise.sensitivity import MAX_WRAP_PROBABILITY, Noise

RING_BITS = (16, 32, 64)
CLIPPED = "clipped"  # reserved: the encoder itself fills in how many values it clipped
MAX_QUANTITIES = 256
TAG_VERSION = 1  # of what silos compute over the tagged words, docs/protocol.md 5.9
TAG_WORDS = 4  # of 64 bits, at the end of a vector of which something is tagged
TAGGED_ROOM_BITS = 47  # of a tagged 64-bit sum: it lies within +-(2^47 - 1), docs/protocol.md 5.9
MAX_VALUES = 1 << 31  # of one quantity; 8 GiB of 32-bit words
BOUND_RANGE = (1e-30, 1e30)  # within it scale and scaled values are ordinary float64 numbers


class Disclosure(Enum):
    """What the sum of a quantity reveals about a silo's data.

    A private job protects a quantity by it, and a silo's policy refuses by it. No message carries it and no
    digest covers it: coordinator and silo each read it from the method's code. The values are what a person
    reads before a job is approved. Source: docs/privacy.md.
    """

    CONSTANT = "at most how many samples"  # rounded; nothing at all in a private job
    UPDATE = "what training changed"
    FROM_UPDATE = "a number on that change"  # or from the declared number of steps
    STATISTIC = "totals over records"
    CLASS_STATISTIC = "totals by class"  # and everything that is not classified
    TRAINED_CLASS_STATISTIC = "model's answers by class"  # that was just trained
    BIN_STATISTIC = "answers by bin of columns"  # and so of single records in a bin of one
    CELL = "each cell of its tables"  # and values in it
    DIAGNOSTIC = "how many were cut off"  # no private job sums it

    @property
    def is_by_class(self) -> bool:
        return self in (
            Disclosure.CLASS_STATISTIC,
            Disclosure.TRAINED_CLASS_STATISTIC,
            Disclosure.BIN_STATISTIC,
        )


class Side(StrEnum):
    """Which of a silo's records a quantity is about: each record is in training or held out, not both."""

    BOTH = "both"
    TRAIN = "train"
    HOLDOUT = "holdout"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """One named array of a phase.

    bound: largest magnitude of a silo's value, in the quantity's own units.
    ring_bits: of the ring it is summed in. is_count: an exact integer, scale 1.
    sensitivity_l2: change by one record, where the quantity can be noised per record.
    projection: the values are summed as its numbers, of which `bound` is the largest; shape stays theirs.
    is_whole_units: values are whole numbers of 1 / scale, handed over as int64 and encoded as they are.
    noise: what every silo adds to its own; the sum of a noised count is a real number.
    is_tagged: whether silos check its sum, because the next global state is computed from it.
    discloses: not encoded, so not compared either; the default is what policies refuse. at_most: the count
    beside it that it never exceeds at any silo; not encoded either. side: the records that it is about, which
    the accounting reads; not encoded either.
    """

    name: str
    shape: tuple[int, ...] = ()
    bound: float
    ring_bits: int = 64
    is_count: bool = False
    sensitivity_l2: float | None = None
    projection: Projection | None = None
    noise: Noise | None = None
    is_tagged: bool = False
    is_whole_units: bool = False
    discloses: Disclosure = field(default=Disclosure.CLASS_STATISTIC, compare=False)
    at_most: str = field(default="", compare=False)
    side: Side = field(default=Side.BOTH, compare=False)

    def __post_init__(self) -> None:
        if self.ring_bits not in RING_BITS:
            raise ConfigError(f"quantity {self.name}: ring_bits is 16, 32 or 64, got {self.ring_bits}")
        lowest, highest = BOUND_RANGE
        if not lowest <= self.bound <= highest:
            raise ConfigError(f"quantity {self.name}: bound is {lowest:g} to {highest:g}, got {self.bound}")
        if self.is_count and self.bound != int(self.bound):
            raise ConfigError(f"quantity {self.name}: the bound of a count is whole, got {self.bound}")
        if self.name == CLIPPED and not (self.is_count and self.shape == ()):
            raise ConfigError(f"quantity {self.name}: the name is reserved for a single count")
        for values in (math.prod(self.shape), self.size):
            if not 0 < values <= MAX_VALUES:
                raise ConfigError(f"quantity {self.name}: expected 1 to {MAX_VALUES} values, got {values}")
        if self.noise is not None and self.is_count:
            raise ConfigError(f"quantity {self.name}: expected no noise on a count")
        if self.projection is not None and self.is_count:
            raise ConfigError(f"quantity {self.name}: a count is not projected")
        if self.is_whole_units and (self.is_count or self.projection is not None):
            raise ConfigError(f"quantity {self.name}: whole units are neither a count nor projected")
        if self.projection is not None and self.projection.size != math.prod(self.shape):
            raise ConfigError(
                f"quantity {self.name}: expected a projection of {math.prod(self.shape)} values, "
                f"got {self.projection.size}"
            )

    @property
    def is_shared(self) -> bool:
        """Whether all silos of the phase see a sum that the next global state holds in another form alone.

        Gram by itself is not by class; it is never summed without the moment, which is.
        """
        return self.is_tagged and self.discloses.is_by_class

    @property
    def size(self) -> int:
        """Words in the vector."""
        return math.prod(self.shape) if self.projection is None else self.projection.words

    @property
    def room(self) -> int:
        """The largest number that a sum may reach: 2^(ring_bits-1) - 1; 2^47 - 1 of 64 tagged bits."""
        is_narrowed = self.is_tagged and self.ring_bits == 64
        return (1 << (TAGGED_ROOM_BITS if is_narrowed else self.ring_bits - 1)) - 1

    def scale(self, members: int) -> float:
        """Power of two with members * ceil(scale * bound) <= room; 1 for counts.

        Under noise it is the noise's. Both sides compute it from m; no message carries it. Raises
        ConfigError if none fits.
        """
        if self.noise is not None:
            return self.noise.scale
        room = self.room // members
        least = int(self.bound) if self.is_count else 1
        if least > room:
            raise ConfigError(
                f"quantity {self.name}: {self.room.bit_length() + 1} bits do not hold the sum "
                f"of {members} silos"
            )
        if self.is_count:
            return 1.0
        # the largest whole number per silo decides; start above and step down to the exact fit
        exponent = math.floor(math.log2(room) - math.log2(self.bound)) + 1
        while math.ceil(math.ldexp(self.bound, exponent)) > room:
            exponent -= 1
        return math.ldexp(1.0, exponent)

    def wrap_probability(self, members: int) -> float:
        """No less than the chance that any number of the sum of m inputs leaves its room; 0 without noise."""
        if self.noise is None:
            return 0.0
        return wrap_probability(
            members * math.ceil(self.noise.scale * self.bound),
            members * self.noise.variance,
            self.size,
            self.room,
        )


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Ordered quantities of one phase for m members.

    Where one of them is tagged, the vector of 64-bit words ends with the tag words.
    """

    quantities: tuple[Quantity, ...]
    members: int

    def __post_init__(self) -> None:
        names = [quantity.name for quantity in self.quantities]
        if self.members < 1:
            raise ConfigError(f"layout: expected at least one member, got {self.members}")
        if not 0 < len(names) <= MAX_QUANTITIES:
            raise ConfigError(f"layout: expected 1 to {MAX_QUANTITIES} quantities, got {len(names)}")
        if len(set(names)) != len(names):
            raise ConfigError("layout: a quantity is named twice")
        for quantity in self.quantities:
            quantity.scale(self.members)
            if quantity.is_whole_units and quantity.noise is None:
                raise ConfigError(f"quantity {quantity.name}: whole units need noise")
        if self.wrap_probability > MAX_WRAP_PROBABILITY:
            noised = ", ".join(one.name for one in self.quantities if one.noise is not None)
            raise ConfigError(
                f"layout: expected noised sums to leave their words with a probability of at most "
                f"2^{math.log2(MAX_WRAP_PROBABILITY):g}, got {self.wrap_probability:.3g} for {noised}"
            )

    @cached_property
    def wrap_probability(self) -> float:
        """No less than the chance that noise takes any number of the sum out of its word."""
        return sum(quantity.wrap_probability(self.members) for quantity in self.quantities)

    @cached_property
    def ring_sizes(self) -> tuple[int, ...]:
        """Word sizes in use, ascending: the order of the upload stream."""
        sizes = {quantity.ring_bits for quantity in self.quantities}
        return tuple(sorted(sizes | {64} if self.tag_words else sizes))

    @cached_property
    def tag_words(self) -> int:
        """How many words of 64 bits follow the quantities."""
        return TAG_WORDS if any(quantity.is_tagged for quantity in self.quantities) else 0

    def length(self, ring_bits: int) -> int:
        """Words in the vector of that size, tag words included."""
        return self.values_end(ring_bits) + (self.tag_words if ring_bits == 64 else 0)

    def values_end(self, ring_bits: int) -> int:
        """Words of the quantities in the vector of that size; the tag words start there."""
        return sum(quantity.size for quantity in self.quantities if quantity.ring_bits == ring_bits)

    @cached_property
    def total_bytes(self) -> int:
        return sum(self.length(ring_bits) * ring_bits // 8 for ring_bits in self.ring_sizes)

    def slices(self, ring_bits: int) -> dict[str, slice]:
        """Where each quantity of that word size lies in its vector."""
        places, start = {}, 0
        for quantity in self.quantities:
            if quantity.ring_bits == ring_bits:
                places[quantity.name] = slice(start, start + quantity.size)
                start += quantity.size
        return places

    @cached_property
    def tagged(self) -> Layout | None:
        """The tagged quantities alone, and the tag words: what silos fetch of a sum. None where none is."""
        quantities = tuple(quantity for quantity in self.quantities if quantity.is_tagged)
        return Layout(quantities=quantities, members=self.members) if quantities else None

    @cached_property
    def untagged(self) -> Layout | None:
        """The other quantities, which no silo fetches. None where there is none."""
        quantities = tuple(quantity for quantity in self.quantities if not quantity.is_tagged)
        return Layout(quantities=quantities, members=self.members) if quantities else None

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 over m, the version of the tags and the `quantity_fields` of every quantity."""
        rows = [quantity_fields(quantity) for quantity in self.quantities]
        return encoding.digest("layout", self.members, TAG_VERSION, rows)


def quantity_fields(quantity: Quantity) -> list[encoding.Field]:
    """A quantity as the layout's digest covers it; floats in hexadecimal, so exact.

    A quantity without noise ends with its sensitivity, projection and mark; only the noise on whole units
    ends with a 1. What it discloses is not among them.
    """
    projection, noise = quantity.projection, quantity.noise
    fields: list[encoding.Field] = [
        quantity.name,
        list(quantity.shape),
        float(quantity.bound).hex(),
        quantity.ring_bits,
        int(quantity.is_count),
        _hex(quantity.sensitivity_l2),
        [] if projection is None else [projection.seed, projection.size, projection.block],
        int(quantity.is_tagged),
    ]
    if noise is not None:
        terms: list[encoding.Field] = [_hex(noise.variance), _hex(noise.scale), _hex(noise.clip_l2)]
        fields.append([*terms, 1] if quantity.is_whole_units else terms)
    return fields


def read_quantity(reader: encoding.FieldReader) -> Quantity:
    """What `quantity_fields` wrote. Raises ChoraleError, ValueError or OverflowError for anything else."""
    name, sizes = reader.text(), reader.fields()
    shape = tuple(sizes.number() for _ in range(sizes.left))
    bound, ring_bits = reader.text(), reader.number()
    is_count, sensitivity, projected = reader.number(), reader.text(), reader.fields()
    projection = noise = None
    if projected.left:
        projection = Projection(
            seed=projected.data(),
            size=projected.number(),
            block=projected.number(),
        )
        projected.end()
    is_tagged, is_whole_units = reader.number(), False
    if reader.left:
        terms = reader.fields()
        noise = Noise(
            variance=float.fromhex(terms.text()),
            scale=float.fromhex(terms.text()),
            clip_l2=_from_hex(terms.text()),
        )
        is_whole_units = bool(terms.left and terms.number())
        terms.end()
    return Quantity(
        name=name,
        shape=shape,
        bound=float.fromhex(bound),
        ring_bits=ring_bits,
        is_count=bool(is_count),
        sensitivity_l2=_from_hex(sensitivity),
        projection=projection,
        noise=noise,
        is_tagged=bool(is_tagged),
        is_whole_units=is_whole_units,
    )


def _hex(number: float | None) -> str:
    return "" if number is None else float(number).hex()


def _from_hex(text: str) -> float | None:
    return float.fromhex(text) if text else None

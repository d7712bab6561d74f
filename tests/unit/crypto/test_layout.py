from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crypto import encoding
from crypto.errors import ConfigError, RemoteProtocolError
from crypto.fixed_point.layout import (
    CLIPPED,
    MAX_QUANTITIES,
    MAX_VALUES,
    Disclosure,
    Layout,
    Quantity,
    quantity_fields,
    read_quantity,
)
from crypto.fixed_point.projection import Projection
from crypto.noise.sensitivity import Noise

DELTA = Quantity(name="delta", shape=(5,), bound=8.0, ring_bits=32)
WEIGHT = Quantity(name="weight", bound=1.0)
CORRECT = Quantity(name="correct", bound=100, is_count=True)
ROTATION = Projection.of(5, seed=bytes(32))  # 16 words
HALF = Quantity(name="half", shape=(2, 3), bound=1.0, ring_bits=16, sensitivity_l2=0.5)


def layout(*quantities: Quantity, members: int = 10) -> Layout:
    return Layout(quantities=quantities, members=members)


@given(
    st.floats(1e-30, 1e30),
    st.sampled_from([16, 32, 64]),
    st.integers(1, 1000),
)
def test_scale_is_the_largest_power_of_two_that_cannot_overflow(
    bound: float, ring_bits: int, members: int
) -> None:
    scale = Quantity(name="x", bound=bound, ring_bits=ring_bits).scale(members)
    most = 2 ** (ring_bits - 1) - 1
    mantissa, _ = math.frexp(scale)
    assert mantissa == 0.5
    assert members * math.ceil(scale * bound) <= most
    assert members * math.ceil(2 * scale * bound) > most


def test_scale_of_a_count_is_one() -> None:
    assert CORRECT.scale(10) == 1.0
    assert Quantity(name="n", bound=3276, ring_bits=16, is_count=True).scale(10) == 1.0


def test_scale_refuses_what_the_word_does_not_hold() -> None:
    with pytest.raises(ConfigError, match="quantity n: 16 bits do not hold the sum of 10 silos"):
        Quantity(name="n", bound=3277, ring_bits=16, is_count=True).scale(10)
    with pytest.raises(ConfigError, match="quantity x: 16 bits do not hold the sum of 32768 silos"):
        Quantity(name="x", bound=1.0, ring_bits=16).scale(32768)
    assert Quantity(name="x", bound=1.0, ring_bits=16).scale(32767) == 1.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ring_bits": 8}, "ring_bits is 16, 32 or 64, got 8"),
        ({"bound": 0.0}, "bound is 1e-30 to 1e"),
        ({"bound": -1.0}, "bound is 1e-30 to 1e"),
        ({"bound": math.inf}, "bound is 1e-30 to 1e"),
        ({"bound": math.nan}, "bound is 1e-30 to 1e"),
        ({"bound": 1.5, "is_count": True}, "the bound of a count is whole, got 1.5"),
        ({"shape": (0,)}, "expected 1 to 2147483648 values, got 0"),
        ({"shape": (MAX_VALUES, 2)}, "expected 1 to 2147483648 values"),
        ({"projection": ROTATION, "is_count": True}, "a count is not projected"),
        ({"projection": ROTATION, "shape": (6,)}, "expected a projection of 6 values, got 5"),
        ({"name": CLIPPED}, "reserved for a single count"),
        ({"name": CLIPPED, "is_count": True, "shape": (1,)}, "reserved for a single count"),
    ],
)
def test_a_quantity_is_checked(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(DELTA, **change)


def test_quantities_lie_in_declared_order_in_the_vector_of_their_word_size() -> None:
    mixed = layout(WEIGHT, HALF, CORRECT, DELTA)
    assert mixed.ring_sizes == (16, 32, 64)
    assert [mixed.length(ring_bits) for ring_bits in (16, 32, 64)] == [6, 5, 2]
    assert mixed.total_bytes == 6 * 2 + 5 * 4 + 2 * 8
    assert mixed.slices(64) == {"weight": slice(0, 1), "correct": slice(1, 2)}
    assert mixed.slices(16) == {"half": slice(0, 6)}


@pytest.mark.parametrize("ring_bits", [16, 32, 64])
def test_four_tag_words_end_the_upload_where_a_quantity_is_tagged(ring_bits: int) -> None:
    one = replace(DELTA, ring_bits=ring_bits)
    plain, tagged = layout(one), layout(replace(one, is_tagged=True))
    assert plain.ring_sizes == (ring_bits,)
    assert tagged.ring_sizes == tuple(sorted({ring_bits, 64}))
    assert tagged.total_bytes == plain.total_bytes + 32
    assert tagged.length(64) == plain.length(64) + 4
    assert tagged.values_end(64) == plain.length(64)
    assert tagged.slices(64) == plain.slices(64)
    assert plain.tag_words == 0
    assert plain.tagged is None


def test_the_tagged_part_holds_the_tagged_quantities_in_their_order_and_the_tag_words() -> None:
    marked = [replace(each, is_tagged=True) for each in (CORRECT, HALF, DELTA)]
    mixed = layout(WEIGHT, marked[0], replace(DELTA, name="other"), marked[1], marked[2], members=7)
    part = mixed.tagged
    assert part is not None
    assert part == Layout(quantities=tuple(marked), members=7)
    assert part.tagged == part
    assert [part.length(each) for each in part.ring_sizes] == [6, 5, 1 + 4]
    assert part.total_bytes == 6 * 2 + 5 * 4 + 5 * 8
    assert (mixed.length(64), mixed.values_end(64)) == (6, 2)


@given(st.floats(1e-30, 1e30), st.integers(1, 1000))
def test_a_tagged_sum_of_64_bits_stays_within_47(bound: float, members: int) -> None:
    scale = Quantity(name="x", bound=bound, is_tagged=True).scale(members)
    assert members * math.ceil(scale * bound) <= 2**47 - 1
    assert members * math.ceil(2 * scale * bound) > 2**47 - 1
    for ring_bits in (16, 32):
        of_word = Quantity(name="x", bound=bound, ring_bits=ring_bits)
        assert replace(of_word, is_tagged=True).scale(members) == of_word.scale(members)


def test_a_tagged_count_has_room_for_47_bits() -> None:
    most = (2**47 - 1) // 10
    assert replace(CORRECT, bound=most, is_tagged=True).scale(10) == 1.0
    assert replace(CORRECT, bound=most + 1).scale(10) == 1.0
    with pytest.raises(ConfigError, match="quantity correct: 48 bits do not hold the sum of 10 silos"):
        replace(CORRECT, bound=most + 1, is_tagged=True).scale(10)


def test_under_noise_a_tagged_sum_of_64_bits_leaves_47_no_more_often_than_a_word() -> None:
    noise = Noise(variance=2.0**20, scale=2.0**46)
    plain = Quantity(name="x", bound=1.0, noise=noise)
    assert layout(plain, members=1).wrap_probability < 2.0**-100
    assert layout(replace(plain, is_tagged=True), members=1).wrap_probability < 2.0**-100
    with pytest.raises(ConfigError, match="expected noised sums to leave their words"):
        layout(replace(plain, is_tagged=True), members=2)
    assert layout(plain, members=2).wrap_probability < 2.0**-100


@pytest.mark.parametrize("noise", [None, Noise(variance=64.0, scale=1.0)])
@pytest.mark.parametrize("is_tagged", [True, False])
def test_the_mark_survives_its_fields(is_tagged: bool, noise: Noise | None) -> None:
    quantity = replace(DELTA, is_tagged=is_tagged, noise=noise)
    fields = encoding.decode("test", encoding.encode("test", *quantity_fields(quantity)))
    assert read_quantity(encoding.FieldReader(fields, what="quantity")) == quantity


def test_whole_units_survive_their_fields() -> None:
    quantity = replace(DELTA, is_whole_units=True, noise=Noise(variance=64.0, scale=1.0))
    fields = encoding.decode("test", encoding.encode("test", *quantity_fields(quantity)))
    assert read_quantity(encoding.FieldReader(fields, what="quantity")) == quantity
    *rest, terms = quantity_fields(quantity)
    assert isinstance(terms, list)
    surplus = encoding.decode("test", encoding.encode("test", *rest, [*terms, 1]))
    with pytest.raises(RemoteProtocolError, match="quantity: 1 fields too many"):
        read_quantity(encoding.FieldReader(surplus, what="quantity"))


def test_a_projection_with_a_field_more_is_refused() -> None:
    """A record with the former one, how many words are kept, was read as if it had none."""
    fields = quantity_fields(replace(DELTA, projection=ROTATION))
    assert isinstance(fields[6], list)
    surplus = encoding.decode("test", encoding.encode("test", *fields[:6], [*fields[6], 16], *fields[7:]))
    with pytest.raises(RemoteProtocolError, match="1 fields too many"):
        read_quantity(encoding.FieldReader(surplus, what="quantity"))


def test_a_projected_quantity_takes_the_words_of_its_blocks() -> None:
    rotated = replace(DELTA, projection=Projection.of(5, seed=bytes(32)))
    mixed = layout(rotated, replace(DELTA, name="after"))
    assert mixed.slices(32) == {"delta": slice(0, 16), "after": slice(16, 21)}
    assert mixed.total_bytes == 4 * 21


@pytest.mark.parametrize(
    ("quantities", "members", "message"),
    [
        ((), 10, "expected 1 to 256 quantities, got 0"),
        ((DELTA, DELTA), 10, "a quantity is named twice"),
        ((DELTA,), 0, "at least one member, got 0"),
        ((HALF,), 40_000, "16 bits do not hold"),
        (
            tuple(replace(WEIGHT, name=f"w{i}") for i in range(MAX_QUANTITIES + 1)),
            3,
            "256 quantities, got 257",
        ),
    ],
)
def test_a_layout_is_checked(quantities: tuple[Quantity, ...], members: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        layout(*quantities, members=members)


def test_the_digest_binds_every_field_order_and_members() -> None:
    base = layout(DELTA, WEIGHT)
    others = [
        layout(WEIGHT, DELTA),
        layout(DELTA),
        layout(DELTA, WEIGHT, members=9),
        layout(replace(DELTA, name="delta2"), WEIGHT),
        layout(replace(DELTA, shape=(1, 5)), WEIGHT),
        layout(replace(DELTA, bound=8.000000000000002), WEIGHT),
        layout(replace(DELTA, ring_bits=64), WEIGHT),
        layout(replace(DELTA, is_count=True), WEIGHT),
        layout(replace(DELTA, is_tagged=True), WEIGHT),
        layout(DELTA, replace(WEIGHT, is_tagged=True)),
        layout(replace(DELTA, is_tagged=True), replace(WEIGHT, is_tagged=True)),
        layout(replace(DELTA, sensitivity_l2=1.0), WEIGHT),
        layout(replace(DELTA, projection=ROTATION), WEIGHT),
        layout(replace(DELTA, projection=replace(ROTATION, seed=bytes(31) + b"\1")), WEIGHT),
        layout(replace(DELTA, projection=replace(ROTATION, block=32)), WEIGHT),
        layout(replace(DELTA, shape=(6,), projection=replace(ROTATION, size=6)), WEIGHT),
    ]
    assert len({each.digest for each in (base, *others)}) == 1 + len(others)
    assert layout(DELTA, WEIGHT).digest == base.digest
    assert layout(replace(DELTA, bound=8), WEIGHT).digest == base.digest  # 8 and 8.0 are one number


def test_what_a_quantity_discloses_is_no_part_of_the_layout() -> None:
    """It is each side's own reading of the method; unless said otherwise it is what policies refuse."""
    assert DELTA.discloses is Disclosure.CLASS_STATISTIC
    for discloses in Disclosure:
        said = replace(DELTA, discloses=discloses)
        assert layout(said).digest == layout(DELTA).digest
        assert said == DELTA
        assert replace(said, bound=1.0).discloses is discloses

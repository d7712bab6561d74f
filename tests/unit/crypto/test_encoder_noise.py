"""Noise and the clip of a whole array in what a silo sends, and the known mistakes that live there."""

# N = values of one quantity

from __future__ import annotations

import ast
import itertools
import math
import os
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crypto.errors import QuantizationError
from crypto.fixed_point import compiled, encoder, ring
from crypto.fixed_point.clipping import shrunk, squared_norm
from crypto.fixed_point.encoder import BLOCK_VALUES, Encoder
from crypto.fixed_point.layout import Layout, Quantity
from crypto.fixed_point.projection import Projection
from crypto.noise.gaussian import GaussianStream, gaussian_tables
from crypto.noise.sensitivity import Noise, clipped_sensitivity
from tests.unit.crypto.test_encoder import normal, words_of

MEMBERS = 4
CLIP = 0.5
NOISE = Noise(variance=900.0, scale=2.0**12, clip_l2=CLIP)
SOURCES = Path(__file__).resolve().parents[3] / "crypto"


def keys(seed: int) -> Callable[[int], bytes]:
    """Another key at every call, as from the system."""
    counter: Iterator[int] = itertools.count(seed << 32)
    return lambda size: next(counter).to_bytes(size, "little")


def quantity_of(
    shape: tuple[int, ...], *, terms: Noise = NOISE, ring_bits: int = 32, **fields: Any
) -> Quantity:
    return Quantity(name="delta", shape=shape, bound=CLIP, ring_bits=ring_bits, noise=terms, **fields)


def several(seed: int) -> Encoder:
    return Encoder(VALUES, layout=LAYOUT, random=keys(seed))


def single(value_N: Any, *, seed: int = 1, **fields: Any) -> Encoder:
    quantity = quantity_of(np.shape(value_N), **fields)
    return Encoder(
        {"delta": value_N}, layout=Layout(quantities=(quantity,), members=MEMBERS), random=keys(seed)
    )


def signed(encoded: Encoder, ring_bits: int = 32) -> np.ndarray:
    return words_of(encoded, ring_bits).view(ring.SIGNED_TYPES[ring_bits]).astype(np.int64)


def rounded(encoded: Encoder, ring_bits: int = 32) -> np.ndarray:
    """Words before their noise."""
    word_N = signed(encoded, ring_bits)
    for place, _, stream in encoded._parts[ring_bits]:
        if stream is not None:
            noise_N = np.empty(place.stop - place.start, np.int64)
            stream.sample_into(0, noise_N)
            word_N[place] -= noise_N
    return word_N


def squared_limit(encoded: Encoder) -> int:
    quantity = encoded.layout.quantities[0]
    assert quantity.noise is not None
    assert quantity.noise.clip_l2 is not None
    return clipped_sensitivity(
        quantity.noise.clip_l2, scale=quantity.noise.scale, coordinates=quantity.size
    ).squared_l2


LAYOUT = Layout(
    quantities=(
        Quantity(name="delta", shape=(2 * BLOCK_VALUES + 13,), bound=CLIP, ring_bits=32, noise=NOISE),
        Quantity(name="half", shape=(501,), bound=CLIP, ring_bits=16, noise=replace(NOISE, scale=2.0**10)),
        Quantity(name="weight", bound=1.0, ring_bits=64),
        Quantity(name="tested", bound=100.0, ring_bits=64, noise=Noise(variance=80.0, scale=4.0)),
        Quantity(name="sums", shape=(19,), bound=3.0, ring_bits=32, noise=Noise(variance=1e6, scale=8.0)),
        Quantity(
            name="gradient",
            shape=(70,),
            bound=20.0,
            ring_bits=32,
            noise=Noise(variance=2.0**40, scale=2.0**10),
            is_whole_units=True,
        ),
    ),
    members=MEMBERS,
)
VALUES: dict[str, Any] = {
    "delta": normal((2 * BLOCK_VALUES + 13,), seed=1),
    "half": normal((501,), seed=2),
    "weight": 0.25,
    "tested": 37,
    "sums": normal((19,), seed=4, dtype=np.float64),
    "gradient": np.arange(-35, 35) * 585,  # units, up to 20 * 2^10 of them
}

ONE = several(1)
WHOLE = several(1).encode()


class TestClip:
    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @pytest.mark.parametrize("size", [1, 7, 3 * BLOCK_VALUES + 5])
    @pytest.mark.parametrize("norm", [0.01, 0.49, 0.51, 3.0, 1e6, 1e30])
    def test_the_whole_array_is_no_longer_than_the_clip(self, size: int, norm: float, dtype: Any) -> None:
        value_N = np.random.default_rng(size).normal(size=size)
        value_N = (value_N * (norm / np.linalg.norm(value_N))).astype(dtype)
        encoded = single(value_N)
        word_N = rounded(encoded)
        assert squared_norm(word_N) <= squared_limit(encoded)
        expected_N = value_N.astype(np.float64) / max(1.0, norm / CLIP) * NOISE.scale
        assert np.abs(word_N - expected_N).max() <= 1.02 + 1e-5 * NOISE.scale

    def test_the_norm_is_that_of_all_parts_together(self) -> None:
        """Four tensors of the clip norm each are one update of twice the norm."""
        value_N = np.zeros(4000, np.float32)
        value_N[::1000] = CLIP
        decoded_N = rounded(single(value_N)) / NOISE.scale
        assert np.linalg.norm(decoded_N) == pytest.approx(CLIP, rel=1e-3)
        assert decoded_N[::1000] == pytest.approx(np.full(4, CLIP / 2), rel=1e-3)

    def test_what_is_within_the_clip_is_not_shrunk(self) -> None:
        value_N = np.full(16, CLIP / 8, np.float32)
        kept_N, factor = shrunk(value_N, CLIP, name="delta")
        assert kept_N is value_N
        assert factor == 1.0

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @pytest.mark.parametrize("projected", [False, True])
    def test_an_update_of_nothing_but_zeros_stays_that(self, projected: bool, dtype: Any) -> None:
        projection = Projection.of(64, seed=bytes(32)) if projected else None
        encoded = single(np.zeros(64, dtype), projection=projection)
        assert not rounded(encoded).any()

    @pytest.mark.parametrize(
        ("dtype", "large"), [(np.float32, 3e38), (np.float64, 1.7e308), (np.float64, 1e200)]
    )
    @pytest.mark.parametrize("projected", [False, True])
    def test_huge_values_are_clipped_without_overflow(
        self, projected: bool, large: float, dtype: Any
    ) -> None:
        value_N = np.full(64, large, dtype)
        value_N[1::2] *= -1
        projection = Projection.of(64, seed=bytes(range(32))) if projected else None
        encoded = single(value_N, projection=projection)
        decoded_N = ring.decode_quantity(
            rounded(encoded).astype(np.uint32), quantity=encoded.layout.quantities[0], members=MEMBERS
        )
        expected_N = np.tile([CLIP / 8, -CLIP / 8], 32)
        assert decoded_N == pytest.approx(expected_N, abs=2 / NOISE.scale)

    @pytest.mark.parametrize("clip_l2", [1e-29, 1e-20])
    def test_a_tiny_clip_is_kept_to_in_float32(self, clip_l2: float) -> None:
        terms = Noise(variance=64.0, scale=2.0**60, clip_l2=clip_l2)
        kept_N, factor = shrunk(np.array([3.0, 4.0], np.float32), clip_l2, name="delta")
        assert np.linalg.norm(kept_N.astype(np.float64) * np.float32(factor)) == pytest.approx(
            clip_l2, rel=1e-5
        )
        assert (
            np.abs(rounded(single(np.array([3.0, 4.0], np.float32), terms=terms, ring_bits=64), 64)).max()
            <= 1
        )

    @pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
    @pytest.mark.parametrize("place", [0, 1234, 40_000])
    @pytest.mark.parametrize("projected", [False, True])
    def test_one_value_that_is_not_finite_refuses_the_update(
        self, projected: bool, place: int, odd: float
    ) -> None:
        """A norm that is NaN is not above the clip: the rest of the update would go out unclipped."""
        value_N = np.full(40_001, 5.0, np.float32)
        value_N[place] = odd
        projection = Projection.of(value_N.size, seed=bytes(32)) if projected else None
        with pytest.raises(QuantizationError, match="quantity delta: a value is not finite"):
            single(value_N, projection=projection)

    def test_a_rotation_is_no_longer_than_the_clip(self) -> None:
        value_N = normal((5000,), seed=3)
        encoded = single(value_N, projection=Projection.of(value_N.size, seed=bytes(32)))
        assert 0 < squared_norm(rounded(encoded)) <= squared_limit(encoded)
        # near the clip, so it was clipped once and not twice
        assert np.linalg.norm(rounded(encoded)) / NOISE.scale == pytest.approx(CLIP, rel=0.1)

    def test_words_beyond_the_bound_are_clipped_and_the_norm_only_shrinks(self) -> None:
        quantity = replace(quantity_of((100,)), bound=CLIP / 4)
        value_N = np.zeros(100, np.float32)
        value_N[:2] = 40.0, -30.0
        encoded = Encoder(
            {"delta": value_N}, layout=Layout(quantities=(quantity,), members=MEMBERS), random=keys(1)
        )
        assert encoded.clipped_total == 2
        assert rounded(encoded)[:3].tolist() == [CLIP / 4 * NOISE.scale, -CLIP / 4 * NOISE.scale, 0]


class TestConditionalRounding:
    def test_rounding_bits_are_drawn_again_until_the_norm_is_kept(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Halves round up or down: a bound near the mean is passed by half of all roundings."""
        value_N = np.full(1000, 0.5 / NOISE.scale, np.float32)
        limit = 490
        monkeypatch.setattr(encoder, "MAX_ROUNDINGS", 200)
        free = [squared_norm(rounded(single(value_N, seed=seed))) for seed in range(20)]
        assert max(free) > limit
        limited = replace(clipped_sensitivity(CLIP, scale=NOISE.scale, coordinates=1000), squared_l2=limit)
        monkeypatch.setattr(encoder, "clipped_sensitivity", lambda *_, **__: limited)
        kept = [squared_norm(rounded(single(value_N, seed=seed))) for seed in range(20)]
        assert max(kept) <= limit

    def test_an_array_that_keeps_no_norm_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        drawn = []

        def random(size: int) -> bytes:
            drawn.append(size)
            return os.urandom(size)

        limited = replace(clipped_sensitivity(CLIP, scale=NOISE.scale, coordinates=2), squared_l2=10)
        monkeypatch.setattr(encoder, "clipped_sensitivity", lambda *_, **__: limited)
        layout = Layout(quantities=(quantity_of((2,)),), members=MEMBERS)
        with pytest.raises(QuantizationError, match="quantity delta: no rounding of it is within its norm"):
            Encoder({"delta": np.ones(2)}, layout=layout, random=random)
        assert len(drawn) == 1 + encoder.MAX_ROUNDINGS

    def test_rounding_has_no_bias(self) -> None:
        """The mean of 20,000 roundings is 0.25 +- 0.0031; false alarms below 2 * 10^-9 (six deviations)."""
        value_N = np.full(20_000, 10.25 / NOISE.scale)
        terms = replace(NOISE, clip_l2=2.0)
        quantity = replace(quantity_of((20_000,), terms=terms), bound=2.0)
        encoded = Encoder(
            {"delta": value_N}, layout=Layout(quantities=(quantity,), members=MEMBERS), random=keys(5)
        )
        assert rounded(encoded).mean() == pytest.approx(10.25, abs=6 * math.sqrt(3 / 16 / 20_000))

    @pytest.mark.parametrize("size", [3, 8192, 8193])
    @pytest.mark.parametrize("most", [1, 2**15, 2**31 - 1, 2**62])
    def test_squared_norms_are_exact(self, most: int, size: int) -> None:
        whole_N = np.random.default_rng(size).integers(-most, most, size, endpoint=True)
        assert squared_norm(whole_N) == sum(int(whole) ** 2 for whole in whole_N)


class TestNoise:
    def test_the_noise_is_the_streams_of_its_key_and_place(self) -> None:
        """As docs/protocol.md 4.10 has it, under a key that no rounding has."""
        drawn: list[bytes] = []
        source = keys(3)

        def random(size: int) -> bytes:
            drawn.append(source(size))
            return drawn[-1]

        noised = Encoder(VALUES, layout=LAYOUT, random=random)
        assert len(drawn) == len(set(drawn)) == 4  # rounding bits, those of two clipped arrays, noise
        for ring_bits in LAYOUT.ring_sizes:
            before = words_of(noised, ring_bits)
            for place, quantity in enumerate(LAYOUT.quantities):
                if quantity.noise is None or quantity.ring_bits != ring_bits:
                    continue
                sample_N = np.empty(quantity.size, np.int32)
                drawn_noise = GaussianStream(quantity.noise.variance, drawn[-1], quantity=place)
                drawn_noise.sample_into(0, sample_N)
                part = before[LAYOUT.slices(ring_bits)[quantity.name]]
                part -= sample_N.astype(part.dtype)
            for name, place_of in LAYOUT.slices(ring_bits).items():
                quantity = next(each for each in LAYOUT.quantities if each.name == name)
                value_N: Any = np.asarray(VALUES[name], np.float64).reshape(-1)
                if quantity.noise is not None and quantity.noise.clip_l2 is not None:
                    value_N = value_N * min(1.0, float(CLIP / np.linalg.norm(value_N)))
                whole_N = before[place_of].view(ring.SIGNED_TYPES[ring_bits]).astype(np.float64)
                if quantity.is_whole_units:
                    assert whole_N.tolist() == value_N.tolist()
                    continue
                units_N = np.clip(value_N, -quantity.bound, quantity.bound) * quantity.scale(MEMBERS)
                assert np.abs(whole_N - units_N).max() <= 1.001

    @settings(max_examples=40, deadline=None)
    @given(st.data())
    def test_any_piece_is_that_piece_of_the_whole_in_every_attempt(self, data: st.DataObject) -> None:
        """A later attempt that drew other noise would let the coordinator average it out."""
        ring_bits = data.draw(st.sampled_from([16, 32, 64]))
        start = data.draw(st.integers(0, LAYOUT.length(ring_bits)))
        size = data.draw(st.integers(0, LAYOUT.length(ring_bits) - start))
        assert np.array_equal(
            words_of(ONE, ring_bits, start, size), WHOLE.vectors[ring_bits][start : start + size]
        )

    def test_two_inputs_share_no_noise(self) -> None:
        """Of the same values: the difference of their words would otherwise be free of noise."""
        one, other = (Encoder(VALUES, layout=LAYOUT) for _ in range(2))
        sizes = {16: 501, 32: 2 * BLOCK_VALUES + 13}
        for ring_bits, size in sizes.items():
            difference_N = (signed(one, ring_bits) - signed(other, ring_bits))[:size]
            # of twice the variance, and rounding; eight standard deviations of the estimate
            expected = 2 * NOISE.variance
            assert difference_N.var() == pytest.approx(expected, rel=8 * math.sqrt(2 / size) + 1e-3)
        assert not np.array_equal(signed(one), signed(other))

    def test_quantities_of_one_input_share_no_noise(self) -> None:
        quantities = tuple(
            Quantity(name=name, shape=(400,), bound=1.0, ring_bits=32, noise=Noise(variance=1e4, scale=1.0))
            for name in ("first", "second")
        )
        layout = Layout(quantities=quantities, members=MEMBERS)
        word_N = signed(Encoder({"first": np.zeros(400), "second": np.zeros(400)}, layout=layout))
        assert not np.array_equal(word_N[:400], word_N[400:])
        # of independent vectors it is 0 +- 0.05
        assert abs(np.corrcoef(word_N[:400], word_N[400:])[0, 1]) < 0.35

    def test_a_quantity_without_noise_has_none(self) -> None:
        word_N = signed(several(9), 64)
        assert word_N[0] == 0.25 * LAYOUT.quantities[2].scale(MEMBERS)

    @pytest.mark.parametrize("tested", [0, 37, 100])
    def test_a_noised_count_is_not_rounded(self, tested: int) -> None:
        """Its sensitivity is that of whole numbers, at scales of 1 and more."""
        quantity = Quantity(
            name="tested", bound=100.0, ring_bits=64, noise=Noise(variance=100.0, scale=2.0**12)
        )
        layout = Layout(quantities=(quantity,), members=MEMBERS)
        for seed in range(20):
            encoded = Encoder({"tested": tested}, layout=layout, random=keys(seed))
            assert rounded(encoded, 64).tolist() == [tested * 2**12]

    @pytest.mark.parametrize("ring_bits", [16, 32])
    def test_numpy_and_the_compiled_loops_give_the_same_words(
        self, ring_bits: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pytest.importorskip("numba")
        value_N = normal((encoder.COMPILED_BLOCK_VALUES + 77,), seed=8)
        reference = words_of(single(value_N, ring_bits=ring_bits), ring_bits)
        monkeypatch.setattr(compiled, "WORTH_VALUES", 1)
        assert np.array_equal(words_of(single(value_N, ring_bits=ring_bits), ring_bits), reference)

    def test_a_noised_vector_is_read_block_by_block(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Besides the caller's array: neither a clipped copy, nor the words, nor the noise of all of it."""
        monkeypatch.setattr(compiled, "WORTH_VALUES", 1 << 60)
        value_N = np.ones(1 << 21, np.float32)
        out = np.empty(1 << 14, np.uint32)
        words_of(single(np.ones(10, np.float32)), 32)
        gaussian_tables(NOISE.variance)
        tracemalloc.start()
        try:
            encoded = single(value_N)
            for start in range(0, value_N.size, out.size):
                encoded.read(32, start, out)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < value_N.nbytes // 4

    def test_keys_and_factors_show_in_no_repr(self) -> None:
        encoded = single(np.full(3, 7.7))
        key = encoded._parts[32][0][1].rounding_key
        assert key is not None
        assert repr(key) not in repr(encoded._parts)
        assert "factor" not in repr(encoded._parts)


class TestWholeUnits:
    """A step's sum of clipped gradients: the silo rounded each record's, so nothing may be rounded here."""

    QUANTITY = Quantity(
        name="gradient",
        shape=(3,),
        bound=2.5,
        ring_bits=32,
        noise=Noise(variance=2.0**20, scale=2.0**6),
        is_tagged=True,
        is_whole_units=True,
    )
    LAYOUT = Layout(quantities=(QUANTITY,), members=MEMBERS)
    BEYOND = "a number of units is beyond its bound 160$"

    @pytest.mark.parametrize("units", [[160, -160, 7], [0, 0, 0]])
    def test_they_are_encoded_as_they_are_under_noise(self, units: list[int]) -> None:
        encoded = Encoder({"gradient": np.array(units)}, layout=self.LAYOUT, random=keys(2))
        assert rounded(encoded).tolist() == units
        assert signed(encoded).tolist() != units
        assert encoded.clipped_total == 0

    @pytest.mark.parametrize(
        ("gradient", "message"),
        [
            *(
                ([units, 0, 0], "a number of units is beyond its bound 160$")
                for units in (161, -161, 1 << 40, -(1 << 63))
            ),
            # in its own units it would go out as good as zero, under noise for a thousand times more
            (np.ones(3, np.float32), "holds float32, expected whole numbers of its"),
        ],
    )
    def test_what_is_beyond_the_bound_or_not_in_units_is_refused(self, gradient: Any, message: str) -> None:
        """The silo clamps by itself, before the noise; a value that it forgot would leave its word."""
        with pytest.raises(QuantizationError, match=f"gradient: {message}"):
            Encoder({"gradient": np.asarray(gradient)}, layout=self.LAYOUT)

    def test_the_sum_is_decoded_in_the_quantitys_units(self) -> None:
        word_N = np.array([64, -32, 1], np.int32).view(np.uint32)
        decoded_N = ring.decode_quantity(word_N, quantity=self.QUANTITY, members=MEMBERS)
        assert decoded_N.tolist() == [1.0, -0.5, 1 / 64]


class TestSources:
    """What the sampler and its callers may be made of."""

    @pytest.mark.parametrize(
        "name",
        ["fixed_point/encoder.py", "fixed_point/clipping.py", "noise/table_stream.py", "noise/gaussian.py"],
    )
    def test_no_other_generator_makes_noise_or_rounding_bits(self, name: str) -> None:
        tree = ast.parse((SOURCES / name).read_text())
        imported = {
            alias.name.split(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in ([ast.alias(node.module or "")] if isinstance(node, ast.ImportFrom) else node.names)
        }
        attributes = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert not imported & {"random", "secrets", "torch", "scipy"}
        assert not {each for each in attributes if each.startswith(("np.random", "numpy.random"))}

    def test_no_float_is_in_the_sampler(self) -> None:
        """A float's last bits tell what it was added to."""
        tree = ast.parse((SOURCES / "noise/table_stream.py").read_text())
        numbers = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
        assert not [each for each in numbers if isinstance(each, float)]
        assert not [node for node in ast.walk(tree) if isinstance(node, ast.Div)]
        names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert not {each for each in names if "float" in each}

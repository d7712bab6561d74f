"""The cards' examples of masked sums, on the ring's own words of 32 bits with 16 fractional bits.

FedDW card, example 4; FedCSD card, W4. The masks are the cards' (constant, for paper and pencil); the
protocol's are key streams. C = classes.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from crypto.fixed_point import ring
from crypto.fixed_point.encoder import Encoder
from crypto.fixed_point.layout import Layout, Quantity
from crypto.fixed_point.ring import Words

SILOS = 3
# the largest scale that three silos with sums up to this bound leave room for is 2^16
LAYOUT = Layout(
    members=SILOS,
    quantities=(
        Quantity(name="sums", shape=(3, 3), bound=8000.0, ring_bits=32),
        Quantity(name="counts", shape=(3,), bound=8000.0, ring_bits=32, is_count=True),
    ),
)
PLAIN = (
    [87194, 32077, 11800, 24646, 134552, 37410, 0, 0, 0, 2, 3, 0],
    [59601, 2967, 2967, 0, 0, 0, 32896, 22757, 140955, 1, 0, 3],
    [0, 0, 0, 13890, 37756, 13890, 21845, 21845, 21845, 0, 1, 1],
)
MASKS = {(0, 1): 4_000_000_000, (0, 2): 123_456_789, (1, 2): 987_654_321}


def test_the_layout_has_sixteen_fractional_bits() -> None:
    assert LAYOUT.quantities[0].scale(SILOS) == 2.0**16


def test_feddw_example_4_sends_sums_and_decodes_to_the_printed_digits() -> None:
    sent = [_masked(silo) for silo in range(SILOS)]
    assert [int(words[0]) for words in sent] == [4123543983, 1282681218, 3183856186]
    total = {32: np.zeros(12, np.uint32)}
    for words in sent:
        ring.add_into(total, {32: words})
    expected = [146795, 35044, 14767, 38536, 172308, 51300, 54741, 44602, 162800, 3, 4, 4]
    assert total[32].tolist() == expected
    decoded = ring.decode(total, layout=LAYOUT)
    omega_CC = decoded["sums"] / decoded["counts"][:, None]
    printed = [
        [0.74663798, 0.17824300, 0.07510885],
        [0.14700317, 0.65730286, 0.19569397],
        [0.20882034, 0.17014313, 0.62103271],
    ]
    np.testing.assert_allclose(omega_CC, printed, rtol=0, atol=1e-8)
    exact = [
        [0.74664164, 0.17824515, 0.07511322],
        [0.14700153, 0.65730411, 0.19569435],
        [0.20882047, 0.17014599, 0.62103354],
    ]
    assert np.abs(omega_CC - exact).max() == pytest.approx(4.37e-6, abs=1e-8)


def test_fedcsd_w4_encodes_whole_sums_to_the_printed_words() -> None:
    silo_a = {"sums": [[6, 2, -4], [1, 3, 0], [0, 0, 0]], "counts": [2, 1, 0]}
    words = Encoder(silo_a, layout=LAYOUT).encode().vectors[32]
    assert words.tolist() == [393216, 131072, 4294705152, 65536, 196608, 0, 0, 0, 0, 2, 1, 0]
    np.testing.assert_array_equal(
        ring.decode({32: words}, layout=LAYOUT)["sums"], np.asarray(silo_a["sums"], float)
    )


def _masked(silo: int) -> NDArray[np.uint32]:
    """The lower-numbered silo of a pair adds the mask, the higher one takes it away, modulo 2^32."""
    words: Words = np.array(PLAIN[silo], np.uint32)
    for (lower, higher), mask in MASKS.items():
        if silo == lower:
            words = words + np.uint32(mask)
        elif silo == higher:
            words = words - np.uint32(mask)
    return words.astype(np.uint32)

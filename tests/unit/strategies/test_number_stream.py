"""Numbers of the first state: the quantiles, their law, and that only IEEE 754 decides their bits."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest

from strategies import number_stream
from strategies.number_stream import NumberStream, ordered_sum, orthonormal_rows, quantiles
from tests.support.numbers import numbers

COUNT = 1 << 20


def test_quantiles_are_those_of_the_normal_law_to_the_last_bit() -> None:
    inverse = NormalDist().inv_cdf
    exact_Q = np.array([inverse((place + 0.5) / 2**16) * 2**24 for place in range(2**16)])
    assert np.array_equal(quantiles(), np.rint(exact_Q))
    # so far from a half that no error of either could turn the rounding
    assert np.abs(np.abs(exact_Q - np.floor(exact_Q)) - 0.5).min() > 1e-6


def test_normal_numbers_have_the_moments_of_their_law() -> None:
    """Six standard errors each: a false alarm once in 2e8 keys, and the key is fixed."""
    normal_N = numbers(1).normal(COUNT, variance=4.0)
    assert abs(normal_N.mean()) < 6 * 2 / COUNT**0.5
    assert abs(normal_N.var() / 4.0 - 1.0) < 6 * (2 / COUNT) ** 0.5
    assert abs((normal_N**4).mean() / 16.0 - 3.0) < 6 * (96 / COUNT) ** 0.5
    # by sixteenths
    place_N = (NormalDist().cdf(x / 2.0) for x in normal_N[: COUNT >> 4])
    counts = np.bincount([int(16 * place) for place in place_N], minlength=16)
    expected = (COUNT >> 4) / 16
    assert ((counts - expected) ** 2 / expected).sum() < 60  # chi square of 15: above 60 once in 4e6


def test_uniform_numbers_fill_their_bounds() -> None:
    uniform_N = numbers(2).uniform(COUNT, bound=0.25)
    assert 0.2499 < uniform_N.max() < 0.25
    assert -0.25 < uniform_N.min() < -0.2499
    assert abs(uniform_N.var() * 48 - 1.0) < 6 * (0.8 / COUNT) ** 0.5


@pytest.mark.parametrize("kind", ["normal", "uniform"])
def test_numbers_are_the_same_in_one_call_and_in_several(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(stream: NumberStream, count: int) -> bytes:
        made = stream.normal(count) if kind == "normal" else stream.uniform(count, bound=1.0)
        return made.tobytes()

    whole, parts = drawn(numbers(3), 1000), numbers(3)
    assert drawn(parts, 1) + drawn(parts, 600) + drawn(parts, 399) == whole
    assert drawn(numbers(4), 1000) != whole
    monkeypatch.setattr(number_stream, "_BLOCK", 7)
    assert drawn(numbers(3), 1000) == whole


def test_sums_add_one_after_the_other() -> None:
    """1 + 2^-53 is 1, so nothing is left of the small ones; any tree of additions keeps some."""
    values = np.array([1.0, *[2.0**-53] * 1023])
    assert ordered_sum(values) == 1.0
    assert ordered_sum(values[::-1]) > 1.0
    assert ordered_sum(np.stack([values, values]), axis=1).tolist() == [1.0, 1.0]
    assert ordered_sum(np.empty((0, 2))).tolist() == [0.0, 0.0]


def test_a_row_in_the_span_of_those_before_is_drawn_again() -> None:
    class Repeating(NumberStream):
        def normal(self, count: int, *, variance: float = 1.0) -> number_stream.FloatArray:
            return np.array(next(rows))

    rows = iter([[0.0, 0.0], [3.0, 4.0], [-6.0, -8.0 + 1e-11], [1.0, 0.0]])
    unit_RD = orthonormal_rows(2, 2, Repeating(bytes(32)))
    np.testing.assert_allclose(unit_RD, [[0.6, 0.8], [0.8, -0.6]], atol=1e-15)


def test_rows_stay_at_right_angles_where_they_fill_the_space() -> None:
    unit_RD = orthonormal_rows(200, 200, numbers(5))
    assert np.abs(unit_RD @ unit_RD.T - np.eye(200)).max() < 1e-13

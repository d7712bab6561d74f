"""Sums, products and solutions in an order that is written down, on numbers that show the order."""

from __future__ import annotations

import math

import numpy as np
import pytest

from strategies.exact import cholesky, product, solved, total

BIG = 2.0**53  # one more is lost


def random(*shape: int, seed: int = 0) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], 0.0),
        ([3.0], 3.0),
        ([BIG, 1.0, -BIG, 1.0], 2.0),  # (BIG - BIG) + (1 + 1); from the left it is 1
        ([BIG, 1.0, 1.0, -BIG], 1.0),  # (BIG + 1) + (1 - BIG): the first 1 is lost
        ([1.0, BIG, -1.0], BIG),  # (1 - 1) + BIG
        ([1.0, 2.0, BIG, -BIG, -1.0], 2.0),  # ((1 - BIG) + BIG) + (2 - 1): half of five is three
    ],
)
def test_the_back_half_is_added_to_the_front_half(values: list[float], expected: float) -> None:
    number = np.array(values)
    assert float(total(number)) == expected
    assert number.tolist() == values  # untouched


@pytest.mark.parametrize("length", [1, 2, 3, 7, 64, 1001])
def test_total_is_the_sum_over_the_first_axis(length: int) -> None:
    value_N3 = random(length, 3)
    exact_3 = [math.fsum(value_N3[:, column]) for column in range(3)]
    np.testing.assert_allclose(total(value_N3), exact_3, rtol=0, atol=1e-13)


def test_product_adds_in_ascending_order() -> None:
    left, right = np.array([[BIG, 1.0, 1.0, -BIG]]), np.ones((4, 1))
    assert product(left, right).tolist() == [[0.0]]  # both ones are lost, one after the other
    assert product(left[:, [1, 2, 0, 3]], right).tolist() == [[2.0]]
    np.testing.assert_allclose(product(random(5, 7), random(7, 3)), random(5, 7) @ random(7, 3), atol=1e-14)


def test_cholesky_takes_the_largest_pivot_and_of_equal_ones_the_first() -> None:
    root_LL = random(6, 9)
    system_LL = root_LL @ root_LL.T
    lower_LL, order_L = cholesky(system_LL, least_pivot=0.0)
    np.testing.assert_allclose(lower_LL @ lower_LL.T, system_LL[np.ix_(order_L, order_L)], atol=1e-12)
    assert order_L[0] == np.argmax(np.diagonal(system_LL))
    pivots_L = np.diagonal(lower_LL)
    assert (pivots_L[1:] <= pivots_L[:-1]).all()
    assert (np.triu(lower_LL, 1) == 0.0).all()
    _, order_L = cholesky(np.eye(4), least_pivot=0.0)
    assert order_L.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("broken", [np.nan, -1.0, 0.0])
def test_cholesky_ends_where_no_pivot_is_above_the_least(broken: float) -> None:
    lower_LR, order_L = cholesky(np.diag([4.0, broken, 9.0]), least_pivot=0.0)
    if math.isnan(broken):
        assert lower_LR.shape == (3, 0)  # the first that is looked at
    else:
        assert order_L.tolist() == [2, 0, 1]
        assert lower_LR.tolist() == [[3.0, 0.0], [0.0, 2.0], [0.0, 0.0]]
    assert cholesky(np.diag([4.0, 2.0, 9.0]), least_pivot=4.0)[0].shape == (3, 1)


@pytest.mark.parametrize("width", [1, 2, 17, 40])
def test_solution_of_a_definite_system_is_the_one_that_there_is(width: int) -> None:
    root_LL, right_LC = random(width, 2 * width), random(width, 4, seed=1)
    system_LL = root_LL @ root_LL.T
    expected_LC = np.linalg.solve(system_LL, right_LC)
    np.testing.assert_allclose(solved(system_LL, right_LC, least_pivot=1e-12), expected_LC, atol=1e-9)


@pytest.mark.parametrize("rank", [0, 1, 5, 11])
def test_solution_of_a_singular_system_is_the_one_of_least_norm(rank: int) -> None:
    root_RL, right_RC = random(rank, 12), random(rank, 3, seed=1)
    system_LL, right_LC = root_RL.T @ root_RL, root_RL.T @ right_RC
    expected_LC = np.linalg.pinv(root_RL) @ right_RC if rank else np.zeros((12, 3))
    found_LC = solved(system_LL, right_LC, least_pivot=1e-9)
    np.testing.assert_allclose(found_LC, expected_LC, atol=1e-8)


def test_what_is_given_is_not_changed() -> None:
    root_LL, right_LC = random(5, 3), random(5, 2)
    system_LL = root_LL @ root_LL.T
    before = system_LL.copy(), right_LC.copy()
    solved(system_LL, right_LC, least_pivot=1e-9)
    assert np.array_equal(system_LL, before[0])
    assert np.array_equal(right_LC, before[1])

from __future__ import annotations

import hashlib
import math

import pytest

from crypto.errors import ConfigError
from crypto.session.cohort import CohortRule, named_set

SILOS = tuple(f"clinic-{i:02d}" for i in range(20))


def draw(on_roster=frozenset(SILOS), *, seed: bytes = bytes(32), round: int = 1, fraction: float = 0.25):
    return named_set(SILOS, on_roster=on_roster, round=round, fraction=fraction, draw_seed=seed)


@pytest.mark.parametrize(
    ("members", "threshold", "min_cohort", "losses"),
    [(3, 3, 3, 0), (4, 3, 3, 1), (6, 5, 4, 1), (7, 5, 4, 2), (9, 7, 5, 2), (10, 7, 5, 3), (100, 67, 35, 33)],
)
def test_sizes_follow_from_m(members: int, threshold: int, min_cohort: int, losses: int) -> None:
    rule = CohortRule.for_members(members)
    assert (rule.threshold, rule.min_cohort) == (threshold, min_cohort)
    assert members - rule.min_survivors == losses


def test_colluders_can_neither_split_the_answers_nor_isolate_a_silo() -> None:
    for members in range(3, 200):
        rule = CohortRule.for_members(members)
        assert rule.colluders < 2 * rule.threshold - members  # two cohorts of t share an honest silo
        assert rule.min_survivors - rule.colluders >= 2, members
        assert rule.min_survivors <= members, members


def test_a_job_may_raise_the_sizes_and_never_lower_them() -> None:
    raised = CohortRule.for_members(10, threshold=9, min_cohort=10)
    assert (raised.threshold, raised.min_cohort) == (9, 10)
    for given in ({"threshold": 6}, {"threshold": 11}, {"min_cohort": 4}, {"min_cohort": 11}):
        field = next(iter(given))
        with pytest.raises(ConfigError, match=f"{field}: expected . to 10 for 10 silos"):
            CohortRule.for_members(10, **given)


def test_two_silos_are_no_federation() -> None:
    with pytest.raises(ConfigError, match="at least 3 named silos, got 2"):
        CohortRule.for_members(2)
    rule = CohortRule.for_members(3)
    assert rule.threshold == rule.min_cohort == 3


def test_without_fraction_all_on_the_roster_are_named() -> None:
    assert draw(fraction=1.0) == SILOS
    assert draw(frozenset(SILOS[3:]), fraction=1.0) == SILOS[3:]


def test_fraction_names_the_smallest_hashes() -> None:
    def rank(name: str) -> bytes:
        head = b"chorale/v1/named-set\0" + (3).to_bytes(4, "big") + b"b" + (32).to_bytes(4, "big") + bytes(32)
        round = b"i" + (1).to_bytes(8, "big")
        text = b"s" + len(name).to_bytes(4, "big") + name.encode()
        return hashlib.sha256(head + round + text).digest()

    assert draw() == tuple(sorted(sorted(SILOS, key=rank)[:5]))
    assert len(draw(fraction=0.26)) == math.ceil(0.26 * 20)


@pytest.mark.parametrize(("fraction", "named"), [(0.07, 7), (0.29, 29), (0.571, 58), (1, 100)])
def test_fraction_counts_as_it_is_written(fraction: float, named: int) -> None:
    """0.07 * 100 is 7.000000000000001 in floats: one silo more than the operator wrote."""
    silos = tuple(f"clinic-{i}" for i in range(100))
    drawn = named_set(silos, on_roster=set(silos), round=1, fraction=fraction, draw_seed=bytes(32))
    assert len(drawn) == named


def test_the_draw_differs_by_round_and_seed_and_counts_from_the_jobs_silos() -> None:
    assert len({draw(round=r) for r in range(10)}) == 10
    assert draw(seed=bytes([1]) * 32) != draw()
    assert len(draw(frozenset(SILOS[:4]))) == 4  # fewer on the roster than wanted: all of them


def test_the_draw_ignores_the_order_of_the_list() -> None:
    backwards = named_set(
        SILOS[::-1],
        on_roster=frozenset(SILOS),
        round=1,
        fraction=0.25,
        draw_seed=bytes(32),
    )
    assert backwards == draw()

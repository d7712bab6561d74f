"""The expected number of overlapping cohorts, against draws of the very rule that names a round's silos."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest

from chorale.spec.job_spec import JobSpec
from chorale.spec.selection import expected_cohort_changes
from crypto.session.cohort import named_set
from tests.unit.chorale.conftest import MakeSpec


def job(make_spec: MakeSpec, silos: int, **fields: Any) -> JobSpec:
    return make_spec(silos=[f"s{number:02d}" for number in range(silos)], **fields)


def test_full_participation_changes_no_cohort(make_spec: MakeSpec) -> None:
    assert expected_cohort_changes(job(make_spec, 10, rounds=1000)) == 0.0


def test_one_pair_is_counted_as_a_hand_does(make_spec: MakeSpec) -> None:
    # 5 of 6: another set shares 4 of the 5 in 5 of 6 cases; 2 silos differ, below min_cohort 3
    assert expected_cohort_changes(job(make_spec, 6, rounds=2, fraction=0.8)) == pytest.approx(5 / 6)


@pytest.mark.parametrize(
    ("silos", "fraction", "rounds"), [(6, 0.8, 4), (6, 0.8, 40), (12, 0.75, 20), (20, 0.9, 10)]
)
def test_bound_holds_for_cohorts_as_rounds_draw_them(
    make_spec: MakeSpec, silos: int, fraction: float, rounds: int
) -> None:
    """Means over 400 seeds; the bound is on the expectation, and some are tight: within 6 standard deviations
    of the mean. The draws are fixed by their hashes."""
    spec = job(make_spec, silos, rounds=rounds, fraction=fraction)
    counted = [_overlapping_cohorts(spec, draw_seed=seed.to_bytes(32, "big")) for seed in range(400)]
    deviation = statistics.stdev(counted) / math.sqrt(len(counted))
    assert 0 < statistics.mean(counted) <= expected_cohort_changes(spec) + 6 * deviation


def test_every_round_that_names_other_silos_counts(make_spec: MakeSpec) -> None:
    # 6 sets of 5, all near: a round names the set of the round before in 1 of 6 cases
    expected = expected_cohort_changes(job(make_spec, 6, rounds=1000, fraction=0.8))
    assert expected == pytest.approx(999 * 5 / 6)


def _overlapping_cohorts(spec: JobSpec, *, draw_seed: bytes) -> int:
    """As a ledger counts them: a set near an earlier one that is not the one just before."""
    least = spec.rule(spec.named_per_round).min_cohort
    seen: list[frozenset[str]] = []
    counted = 0
    for round in range(1, spec.rounds + 1):
        drawn = frozenset(
            named_set(
                spec.silos,
                on_roster=spec.silos,
                round=round,
                fraction=spec.fraction,
                draw_seed=draw_seed,
            )
        )
        if any(0 < len(drawn ^ other) < least for other in seen) and drawn != seen[-1]:
            counted += 1
        seen.append(drawn)
    return counted

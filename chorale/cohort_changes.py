"""How often the cohorts of a drawn job come near one another: what policies bound by `max_cohort_changes`.

Two cohorts are near if they differ by 1 to min_cohort - 1 silos (symmetric difference): the difference
of their sums shows those few. Source: docs/protocol.md 6.
"""

from __future__ import annotations

from math import comb

from chorale.spec.job_spec import JobSpec


def expected_cohort_changes(spec: JobSpec) -> float:
    """Overlapping cohorts that a job's rounds are expected to count, while nobody drops; an upper bound.

    Round r is near one of the r - 1 before it with at most (r - 1) times the chance of one pair, and is free
    where it names the same silos as the round before. 0 where every round names everybody.
    """
    silos, named = len(spec.silos), spec.named_per_round
    if named == silos:
        return 0.0
    chance = _chance_of_near_pair(silos, named, least=spec.rule(named).min_cohort)
    most = 1.0 - 1.0 / comb(silos, named)  # of one round: that it names others than the round before
    # the round from which on `most` is the smaller bound, so that the sum over rounds has a closed form
    highest = spec.rounds if chance == 0.0 else min(spec.rounds, int(most / chance) + 1)
    return chance * highest * (highest - 1) / 2 + most * (spec.rounds - highest)


def _chance_of_near_pair(silos: int, named: int, *, least: int) -> float:
    """Two uniform sets of `named` silos share `common` of them with hypergeometric probability."""
    near = [common for common in range(named) if 2 * (named - common) < least]
    favorable = sum(comb(named, common) * comb(silos - named, named - common) for common in near)
    return favorable / comb(silos, named)

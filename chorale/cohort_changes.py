"""How often the cohorts of a drawn job are expected to overlap: policies bound it by `max_cohort_changes`.

Two cohorts overlap if they differ by 1 to min_cohort - 1 silos (symmetric difference): the difference
of their sums shows those few. Source: docs/protocol.md 6.
"""

from __future__ import annotations

from math import comb

from chorale.spec.job_spec import JobSpec


def expected_cohort_changes(spec: JobSpec) -> float:
    """Overlapping cohorts that a job's rounds are expected to count while no silo drops out; an upper bound.

    Round r overlaps one of the r - 1 before it with at most (r - 1) times the chance of one pair, and counts
    nothing where it names the same silos as the round before. 0 where every round names all silos.
    """
    silos, named = len(spec.silos), spec.named_per_round
    if named == silos:
        return 0.0
    # two uniform sets of `named` silos share `common` of them with hypergeometric probability
    min_cohort = spec.rule(named).min_cohort
    overlapping = [common for common in range(named) if 2 * (named - common) < min_cohort]
    favorable = sum(comb(named, common) * comb(silos - named, named - common) for common in overlapping)
    pair_chance = favorable / comb(silos, named)
    max_chance = 1.0 - 1.0 / comb(silos, named)  # that a round names others than the round before
    # the round from which on max_chance is the smaller bound, so that the sum over rounds has a closed form
    last = spec.rounds if pair_chance == 0.0 else min(spec.rounds, int(max_chance / pair_chance) + 1)
    return pair_chance * last * (last - 1) / 2 + max_chance * (spec.rounds - last)

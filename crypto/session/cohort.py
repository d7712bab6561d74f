"""Who a round names and how many of them must stay: every side computes it, and it is never sent.

Source: docs/protocol.md 3 (guarantee G1): t, m and min_cohort follow from job and roster alone.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from crypto import encoding
from crypto.errors import ConfigError, LocalProtocolError

SMALLEST_FEDERATION = 3  # below it a sum of two would show each of them the other
# Draws that a coordinator can choose from are fewer: every opening that is revealed takes more than m/3
# honest silos, and a silo reveals two of a job at most.
DRAW_CHOICES = 4
MAX_DRAW_RISK = Fraction(1, 1_000_000)  # that one of a job's draws names too many colluders
MAX_ECHOES = 32  # in an advert: those of 200 silos take at most 2 MB, docs/performance.md


@dataclass(frozen=True, slots=True, kw_only=True)
class CohortRule:
    """Sizes that a session must keep.

    members: size m of the named set. threshold: shares that rebuild a secret (t).
    min_cohort: least number of silos in a revealed sum.
    """

    members: int
    threshold: int
    min_cohort: int

    @classmethod
    def for_members(
        cls, members: int, *, threshold: int | None = None, min_cohort: int | None = None
    ) -> CohortRule:
        """The rule for m named silos; a job's own values may raise it, never lower it.

        Raises ConfigError if m is below 3 or a given value lies outside [default, m].
        """
        if members < SMALLEST_FEDERATION:
            raise ConfigError(f"silos: a round needs at least 3 named silos, got {members}")
        # t: two cohorts of t always share an honest silo
        default_threshold = 2 * members // 3 + 1
        # at least two honest silos stand in every revealed sum
        default_min_cohort = max(SMALLEST_FEDERATION, members // 3 + 2)
        return cls(
            members=members,
            threshold=_raised("threshold", default_threshold, threshold, members),
            min_cohort=_raised("min_cohort", default_min_cohort, min_cohort, members),
        )

    @property
    def min_survivors(self) -> int:
        return max(self.threshold, self.min_cohort)

    @property
    def colluders(self) -> int:
        """Silos that may side with the coordinator without harm to the others: floor(m/3)."""
        return self.members // 3

    @property
    def min_honest(self) -> int:
        """h: the fewest honest silos in a revealed sum. Their noise alone keeps what a job promises."""
        return self.min_survivors - self.colluders


def named_set(
    silos: Sequence[str],
    *,
    on_roster: Container[str],
    round: int,
    fraction: float = 1.0,
    draw_seed: bytes | None = None,
    by_groups: bool = False,
) -> tuple[str, ...]:
    """Names of the round's silos, sorted: all of the job's R silos that stand on the roster, or the ceil(q R)
    smallest hashes of them, or those of the group whose turn it is.

    draw_seed: 32 bytes, of the job; needed where not all R silos are wanted. by_groups: the job's silos are
    drawn once into R / ceil(q R) groups, which divides. Source: docs/protocol.md 3.2.
    """
    present = [name for name in silos if name in on_roster]
    wanted = drawn_count(len(silos), fraction)
    if wanted == len(silos):
        return tuple(sorted(present))
    if draw_seed is None:
        raise LocalProtocolError("named set: a draw needs the job's draw seed")
    if by_groups:
        # of all silos, present or not: one that leaves moves nobody into another group
        ranked = sorted(silos, key=lambda name: encoding.digest("group", draw_seed, name))
        start = wanted * ((round - 1) % (len(silos) // wanted))
        return tuple(sorted(name for name in ranked[start : start + wanted] if name in on_roster))
    ranked = sorted(present, key=lambda name: encoding.digest("named-set", draw_seed, round, name))
    return tuple(sorted(ranked[:wanted]))


def withstands(signers: int, named: int) -> int:
    """Silos that may lie together while a state that so many of the named ones signed is still proved.

    One of the signers is honest, and two such proofs of one phase share an honest one.
    Source: docs/protocol.md 11.8.
    """
    return max(0, min(signers - 1, 2 * signers - named - 1))


def neighbors(name: str, names: Sequence[str]) -> frozenset[str]:
    """The silos whose ledgers the named silo echoes: the next MAX_ECHOES of the named set, from the last on
    to the first. names: sorted. Source: docs/protocol.md 5.11.
    """
    after = bisect_right(names, name)
    return frozenset((*names[after:], *names[:after])[:MAX_ECHOES]) - {name}


def draw_seed(job_digest: bytes, self_mask_seeds: Mapping[str, bytes]) -> bytes:
    """What a job's rounds are drawn by. self_mask_seeds: b of every silo in U3 of the opening enrollment.

    Security: adverts hold the hash of each b, and an honest silo's b is uniform and secret until the opening
    is revealed. So nobody chooses the draw, and nobody knows it before. Source: docs/protocol.md 3.2.
    """
    seeds = [self_mask_seeds[name] for name in sorted(self_mask_seeds)]
    return encoding.digest("draw", job_digest, seeds)


def drawn_count(silos: int, fraction: float) -> int:
    """ceil(q R), with q as it is written: 0.07 of 100 silos are 7, though 0.07 * 100 is a little more."""
    return math.ceil(Fraction(str(fraction)) * silos)


def group_fractions(silos: int) -> list[float]:
    """What divides R silos into groups of equal size, at least two of them, as decimals."""
    sizes = [size for size in range(SMALLEST_FEDERATION, silos // 2 + 1) if silos % size == 0]
    return [fraction_for(size, silos) for size in sizes]


def default_colluders(silos: int) -> int:
    """A: colluding silos among R that are assumed where a policy says nothing: a tenth, at least one."""
    return max(1, silos // 10)


def draw_risk(silos: int, members: int, *, colluders: int, draws: int) -> Fraction:
    """Bound of the chance that a round of the job names more than floor(m/3) of the A colluders.

    The tail of a hypergeometric law (R silos, A of them colluders, m drawn), times the draws, times the
    openings that could be chosen from; at most 1. Source: docs/protocol.md 3.2.
    """
    colluders = min(colluders, silos)
    too_many = range(members // 3 + 1, min(colluders, members) + 1)
    bad = sum(math.comb(colluders, each) * math.comb(silos - colluders, members - each) for each in too_many)
    return min(Fraction(1), Fraction(bad, math.comb(silos, members)) * draws * DRAW_CHOICES)


def smallest_draw(silos: int, *, colluders: int, draws: int, max_risk: Fraction) -> int | None:
    """The smallest m below R whose risk is at most max_risk; None if there is none."""
    for members in range(SMALLEST_FEDERATION, silos):
        if draw_risk(silos, members, colluders=colluders, draws=draws) <= max_risk:
            return members
    return None


def fraction_for(members: int, silos: int) -> float:
    """The decimal of fewest digits, rounded down, that draws m of R silos."""
    cuts = (float(Fraction(members * 10**digits // silos, 10**digits)) for digits in range(1, 10))
    return next(fraction for fraction in cuts if drawn_count(silos, fraction) == members)


def _raised(field: str, default: int, given: int | None, members: int) -> int:
    if given is None:
        return default
    if not default <= given <= members:
        raise ConfigError(f"{field}: expected {default} to {members} for {members} silos, got {given}")
    return given


def expected_overlaps(silos: int, named: int, *, min_cohort: int, rounds: int) -> float:
    """Overlapping cohorts that so many rounds are expected to count while no silo drops out; an upper bound.

    Two cohorts overlap if they differ by 1 to min_cohort - 1 silos (symmetric difference): the difference of
    their sums shows those few. Policies bound their number by `max_cohort_changes`. Round r overlaps one of
    the r - 1 before it with at most (r - 1) times the chance of one pair, and counts nothing where it names
    the same silos as the round before. 0 where every round names all silos. Source: docs/protocol.md 6.
    """
    if named == silos:
        return 0.0
    # two uniform sets of `named` silos share `common` of them with hypergeometric probability
    overlapping = [common for common in range(named) if 2 * (named - common) < min_cohort]
    favorable = sum(
        math.comb(named, common) * math.comb(silos - named, named - common) for common in overlapping
    )
    pair_chance = favorable / math.comb(silos, named)
    max_chance = 1.0 - 1.0 / math.comb(silos, named)  # that a round names others than the round before
    # the round from which on max_chance is the smaller bound, so that the sum has a closed form
    last = rounds if pair_chance == 0.0 else min(rounds, int(max_chance / pair_chance) + 1)
    return pair_chance * last * (last - 1) / 2 + max_chance * (rounds - last)

"""Who a round names and how many of them must stay: every side computes it, and it is never sent.

Source: docs/protocol.md 3 (guarantee G1): t, m and min_cohort follow from job and roster alone.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Container, Sequence
from dataclasses import dataclass
from fractions import Fraction

from crypto.errors import ConfigError

SMALLEST_FEDERATION = 3  # below it a sum of two would show each of them the other


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
    job_digest: bytes,
    roster_digest: bytes,
    round: int,
    fraction: float = 1.0,
) -> tuple[str, ...]:
    """Names of the round's silos, sorted: all of the job's R silos that stand on the roster,
    or the ceil(q R) smallest hashes of them.

    Source: docs/protocol.md 3.2.
    """
    present = [name for name in silos if name in on_roster]
    wanted = drawn_count(len(silos), fraction)
    drawn_by = b"chorale/v1/named-set\0" + job_digest + roster_digest + round.to_bytes(8, "big")
    ranked = sorted(present, key=lambda name: hashlib.sha256(drawn_by + name.encode()).digest())
    return tuple(sorted(ranked[:wanted]))


def drawn_count(silos: int, fraction: float) -> int:
    """ceil(q R), with q as it is written: 0.07 of 100 silos are 7, though 0.07 * 100 is a little more."""
    return math.ceil(Fraction(str(fraction)) * silos)


def _raised(field: str, default: int, given: int | None, members: int) -> int:
    if given is None:
        return default
    if not default <= given <= members:
        raise ConfigError(f"{field}: expected {default} to {members} for {members} silos, got {given}")
    return given

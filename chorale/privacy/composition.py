"""What an account has let out, and whether it stays within a budget: one job's plan, or a filter over all.

The plan of the account's first job was fixed before its data were touched, so it costs what a block costs,
however much of it was released. Everything else was chosen afterwards and goes through the filter. Which of
the two a budget means is decided by that plan alone, so nothing that was released chooses between them.
Proof: docs/privacy.md, "Accounting".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from chorale.privacy.accountant import delta_at, epsilon
from chorale.privacy.privacy_filter import filter_epsilon, fits
from chorale.privacy.releases import Release

_HALVINGS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountReleases:
    """releases: all of the account. jobs: whose they are, by digest. first_plan: of the job that was first to
    touch the data; empty where an earlier release of Chorale kept none.

    sides_are_fixed: no record was ever in training and held out, one after the other.
    """

    delta: float
    sides_are_fixed: bool
    releases: Mapping[Release, int] = field(default_factory=dict)
    jobs: frozenset[bytes] = frozenset()
    first_plan: Mapping[Release, int] = field(default_factory=dict)

    def with_more(
        self, more: Mapping[Release, int], *, job: bytes, plan: Mapping[Release, int]
    ) -> AccountReleases:
        """The account with further releases of a job with this plan."""
        return replace(
            self,
            releases=Counter(self.releases) + Counter(more),
            jobs=self.jobs | {job},
            first_plan=self.first_plan if self.jobs else plan,
        )

    def fits(self, budget: float) -> bool:
        """Whether all of it keeps to a budget that was given before the first release."""
        delta = self.delta
        if self._buys_plan(budget):
            if self._is_within_plan:
                return True
            delta -= delta_at(self.first_plan, budget, sides_are_fixed=self.sides_are_fixed)
        return delta > 0 and self._passes_filter(self.releases, budget, delta)

    def epsilon(self) -> float:
        """The least budget that all of it would have kept to; infinite where there is none."""
        filtered = filter_epsilon(self.releases, self.delta, sides_are_fixed=self.sides_are_fixed)
        if not self.first_plan:
            return filtered
        planned = epsilon(self.first_plan, self.delta, sides_are_fixed=self.sides_are_fixed)
        if self._is_within_plan:
            return min(planned, filtered)
        if self.fits(filtered):
            return filtered
        low = filtered
        high = filter_epsilon(self.first_plan, self.delta, sides_are_fixed=self.sides_are_fixed)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2.0
            low, high = (low, middle) if self.fits(middle) else (middle, high)
        return high

    @property
    def _is_within_plan(self) -> bool:
        return len(self.jobs) == 1 and _holds(self.first_plan, self.releases)

    def _buys_plan(self, budget: float) -> bool:
        """Whether this budget pays the first job's plan as a block: the filter would not let it through."""
        if not self.first_plan or self._passes_filter(self.first_plan, budget, self.delta):
            return False
        return epsilon(self.first_plan, self.delta, sides_are_fixed=self.sides_are_fixed) <= budget

    def _passes_filter(self, releases: Mapping[Release, int], budget: float, delta: float) -> bool:
        return fits(releases, budget, delta, sides_are_fixed=self.sides_are_fixed)


def _holds(plan: Mapping[Release, int], releases: Mapping[Release, int]) -> bool:
    """Whether a plan has as many releases of each kind, and as much of what delta pays for.

    A round that names fewer silos than planned draws less noise and is the same release otherwise.
    """
    planned, made = (kinds_of(counts) for counts in (plan, releases))
    charged = [
        sum(count * getattr(release, name) for release, count in counts.items())
        for name in ("draws", "failure", "distance")
        for counts in (releases, plan)
    ]
    return made <= planned and all(
        spent <= allowed for spent, allowed in zip(charged[::2], charged[1::2], strict=True)
    )


def kinds_of(counts: Mapping[Release, int]) -> Counter[Release]:
    """The same without what a round that names fewer silos has less of."""
    kinds: Counter[Release] = Counter()
    for release, count in counts.items():
        kinds[replace(release, draws=1, failure=0.0)] += count
    return kinds

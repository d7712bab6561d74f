"""What an account has let out, and whether it stays within a budget: one job's plan, or a filter over all.

The plan of the account's first job was fixed before its data were touched, so it costs what a block costs,
however much of it was released. Everything else was chosen afterwards and goes through the filter. Which of
the two a budget means is decided by that plan alone, so nothing that was released chooses between them.
Proof: docs/privacy-proofs.md, "Accounting".
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from chorale.privacy.accountant import delta_at, epsilon
from chorale.privacy.privacy_filter import filter_epsilon, fits
from chorale.privacy.releases import Release

_HALVINGS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstPlan:
    """Of the job that was the first to touch an account: nothing had left then, so nothing chose it.

    sides_are_fixed: of the account, when the plan was written.
    """

    job: bytes
    releases: Mapping[Release, int]
    sides_are_fixed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountReleases:
    """releases: all of the account. jobs: whose they are, by digest. first: stays the same whichever of them
    have something left; None of an account that is empty.

    sides_are_fixed: no record was ever in training and held out, one after the other.
    """

    delta: float
    sides_are_fixed: bool
    releases: Mapping[Release, int] = field(default_factory=dict)
    jobs: frozenset[bytes] = frozenset()
    first: FirstPlan | None = None

    @property
    def emptied(self) -> AccountReleases:
        """The account as if nothing had been charged to it."""
        return AccountReleases(delta=self.delta, sides_are_fixed=self.sides_are_fixed)

    def with_more(
        self, more: Mapping[Release, int], *, job: bytes, plan: Mapping[Release, int]
    ) -> AccountReleases:
        """The account with further releases of a job with this plan."""
        first = FirstPlan(job=job, releases=plan, sides_are_fixed=self.sides_are_fixed)
        return replace(
            self,
            releases=Counter(self.releases) + Counter(more),
            jobs=self.jobs | {job},
            first=self.first if self.jobs else first,
        )

    def fits(self, budget: float) -> bool:
        """Whether all of it keeps to a budget that was given before the first release."""
        delta, plan = self.delta, self.first
        if plan is not None and self._buys(plan, budget):
            # a record may have been on both sides since: then the whole plan is about it
            is_bought = self._block(plan, self.sides_are_fixed) <= budget
            if is_bought and self._is_within(plan):
                return True
            sides_are_fixed = self.sides_are_fixed if is_bought else plan.sides_are_fixed
            delta -= delta_at(plan.releases, budget, sides_are_fixed=sides_are_fixed)
        return delta > 0 and fits(self.releases, budget, delta, sides_are_fixed=self.sides_are_fixed)

    def epsilon(self) -> float:
        """The least budget that all of it would have kept to; infinite where there is none."""
        filtered = filter_epsilon(self.releases, self.delta, sides_are_fixed=self.sides_are_fixed)
        if self.first is None or not self.releases:
            return filtered
        if self._is_within(self.first):
            planned = self._block(self.first, self.sides_are_fixed)
            if planned < filtered and self.fits(planned):
                return planned
        if math.isinf(filtered) or self.fits(filtered):
            return filtered
        # from here on the filter lets the first plan through, so nothing is taken off for it
        low, high = filtered, self._filtered_plan(self.first)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2.0
            low, high = (low, middle) if self.fits(middle) else (middle, high)
        return high

    def _is_within(self, plan: FirstPlan) -> bool:
        return self.jobs <= {plan.job} and _holds(plan.releases, self.releases)

    def _buys(self, plan: FirstPlan, budget: float) -> bool:
        """Whether this budget pays the plan as a block: the filter would not let it through. Decided by what
        was known when it was written."""
        if fits(plan.releases, budget, self.delta, sides_are_fixed=plan.sides_are_fixed):
            return False
        return self._block(plan, plan.sides_are_fixed) <= budget

    def _filtered_plan(self, plan: FirstPlan) -> float:
        return filter_epsilon(plan.releases, self.delta, sides_are_fixed=plan.sides_are_fixed)

    def _block(self, plan: FirstPlan, sides_are_fixed: bool) -> float:
        return epsilon(plan.releases, self.delta, sides_are_fixed=sides_are_fixed)


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

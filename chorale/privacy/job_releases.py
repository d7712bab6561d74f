"""All that a private job releases of a silo: one value, from which plan, budget, approval and report read.

job and state -> noise of a quantity (quantity_noise) -> releases of a phase (here) -> epsilon (accountant).
Source: docs/privacy.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np

from chorale.privacy.accountant import epsilon
from chorale.privacy.batch_cap import CUT_FAILURE
from chorale.privacy.quantity_noise import dp_sgd_steps, privacy_of, protected, sensitivity_of, solved
from chorale.privacy.releases import DpSgd, Gaussian, Release, SampledGaussian
from chorale.spec.job_spec import JobSpec
from chorale.spec.kinds import AnySpec, any_context
from chorale.spec.privacy_spec import MAX_EPSILON, RecordsSpec
from chorale.spec.selection import evaluations
from chorale.spec.state import GlobalState
from crypto.errors import ConfigError
from crypto.fixed_point.layout import Disclosure, Quantity, Side
from crypto.session.cohort import default_colluders, draw_risk
from strategies.base import TOTAL
from strategies.phases.arms import leading_state, with_arms
from strategies.phases.enrollment import ENROLLMENT

ROWS = (2, 5, 10, 20)  # of one person, for which an epsilon is reported

Chosen: TypeAlias = Callable[[Quantity, Release], bool]
# what an update is charged by: steps of DP-SGD, or noise on it as a whole
Bound: TypeAlias = type[DpSgd] | type[Gaussian]


def _is_any(quantity: Quantity, release: Release) -> bool:
    return True


def _is_update(quantity: Quantity, release: Release) -> bool:
    return quantity.discloses is Disclosure.UPDATE


def planned_phases(spec: AnySpec) -> list[tuple[str, int, int]]:
    """Kind, silos named and times of every phase, in order, of a job that loses no attempt.

    Enrollments count as often as `enrollment_every` allows.
    """
    method, everyone, drawn = spec.method, len(spec.silos), spec.named_per_round
    enrollments = 1 + spec.rounds // spec.enrollment_every
    return [
        *((kind, everyone, enrollments if kind == ENROLLMENT else 1) for kind in method.opening),
        *((kind, drawn, spec.rounds) for kind in method.round_phases),
        *((kind, everyone, evaluations(spec)) for kind in method.between),
        *((kind, everyone, 1) for kind in method.closing),
    ]


def planned_rungs(spec: AnySpec) -> list[tuple[str, int, int, int]]:
    """Kind, silos named, times and how many arms of a search train, in order; one arm without a search."""
    round_phases = spec.method.round_phases
    return [
        (kind, silos, rounds, arms)
        for kind, silos, times in planned_phases(spec)
        for rounds, arms in (
            spec.rungs(times) if isinstance(spec, JobSpec) and kind in round_phases else [(times, 1)]
        )
    ]


class JobReleases:
    """Counts planned phases, and not what a crash makes a silo compute again. `fraction` lessens nothing. Of
    a search every arm counts in every round that trains it.

    state: any global state of the job, for its shapes. honest: how many silos' noise is counted on; None:
    h, those that are sure to be in a sum and honest. 1 leaves a silo its own noise alone. colluders: of all
    silos of the job, of which a draw may name more than floor(m/3); None: `default_colluders`.

    An update that DP-SGD made and that is noised as a whole as well costs a record the cheaper of the two:
    each bounds by itself all that leaves of it (docs/privacy-proofs.md, "Records and sums"). One of them is
    charged in all of a job's phases.

    Every method raises ConfigError for a job without privacy, for a quantity that nothing protects, and for
    a multiplier that is null.
    """

    def __init__(
        self,
        spec: AnySpec,
        state: GlobalState,
        *,
        honest: int | None = None,
        colluders: int | None = None,
    ) -> None:
        self.spec = spec
        # shapes alone: arrays of a file would keep its map, and its room on the disk, while this lives
        shapes = {
            name: np.broadcast_to(np.zeros((), each.dtype), each.shape)
            for name, each in leading_state(state).items()
        }
        self._state = {**shapes, TOTAL: np.array(1)}  # enrollment writes it; it decides no sensitivity
        self._honest, self._colluders = honest, colluders
        self._has_like_arms = spec.search is None
        self._found: dict[tuple[str, int, int, Bound], list[tuple[Quantity, Release]]] = {}

    def of_input(self, kind: str, members: int, *, arms: int = 1) -> list[tuple[Quantity, Release]]:
        """What one input to a phase of that kind is charged, each with its quantity as the method declares
        it; DP-SGD's steps belong to the update. members: m, that the round names. arms: of a search, how many
        the phase trains; `planned` checks that it is the same which."""
        return self._charged(kind, members, arms, self._cheaper)

    def cost(self, kind: str, members: int, *, arms: int = 1) -> tuple[Release, ...]:
        """The same without the quantities: to be paid before the silo's data are touched."""
        return tuple(release for _, release in self.of_input(kind, members, arms=arms))

    def planned(self, of: Chosen = _is_any) -> Counter[Release]:
        """All that a silo that is in everything is charged for the plan, and how often. of: which count."""
        return self._planned(of, self._cheaper)

    def epsilon(self, of: Chosen = _is_any) -> float:
        """What the job as planned costs a silo's data set, at the job's delta. of: which releases count."""
        return epsilon(self.planned(of), privacy_of(self.spec).delta)

    def epsilon_of_updates(self) -> float | None:
        """What the planned updates by themselves cost a silo as a whole.

        None without `privacy.sums`: DP-SGD hides records, and no noise hides a silo.
        """
        privacy = privacy_of(self.spec)
        return None if privacy.sums is None else epsilon(self._planned(_is_update, Gaussian), privacy.delta)

    def epsilon_of_steps(self) -> float:
        """What the plan costs a record where DP-SGD alone hides it in the updates, whatever noise they get
        as a whole; of a job without DP-SGD its epsilon."""
        privacy = privacy_of(self.spec)
        bound: Bound = Gaussian if privacy.records is None else DpSgd
        return epsilon(self._planned(_is_any, bound), privacy.delta)

    def epsilon_of_statistics(self) -> float:
        """What the planned statistics by themselves cost a record; they hide no silo."""
        return self.epsilon(lambda quantity, _: quantity.discloses is not Disclosure.UPDATE)

    def epsilon_of_rows(self) -> dict[int, float]:
        """What the plan costs somebody with several records in one silo's data set, by their number (ROWS).

        Infinite above MAX_EPSILON: then nothing is promised. Where a silo's data set has a unit, such as a
        patient, all records of one are one, and none of this counts.
        """
        privacy, found = privacy_of(self.spec), dict.fromkeys(ROWS, math.inf)
        for rows in ROWS:
            costs = list[float]()
            if privacy.records is not None or privacy.sums is None:
                costs.append(epsilon(self._planned(_is_any, DpSgd), privacy.delta, rows=rows))
            if privacy.sums is not None:
                # a silo's update is exchanged for another once, however many records change
                exchanged = Counter[Release]()
                for each, count in self._planned(_is_update, Gaussian).items():
                    exchanged[replace(each, noise_multiplier=rows * each.noise_multiplier)] += count
                statistics = self._planned(lambda *each: not _is_update(*each), Gaussian)
                costs.append(epsilon(statistics + exchanged, privacy.delta, rows=rows))
            cost = min(costs)
            if cost > MAX_EPSILON:
                break  # and more records cost more
            found[rows] = cost
        return found

    def promised_epsilon(self, inputs: Mapping[tuple[str, int], int] | None = None) -> float:
        """Epsilon of the plan, or of what a silo gave so far; infinite above MAX_EPSILON: then nothing is
        promised. inputs: how many of so many releases a silo gave to phases of a kind; None: the plan's."""
        given = self.planned()
        if inputs is not None:
            given = Counter[Release]()
            for (kind, releases), times in inputs.items():
                is_round = kind in self.spec.method.round_phases
                members = self.spec.named_per_round if is_round else len(self.spec.silos)
                arms = releases // max(1, len(self.cost(kind, members)))  # each of them releases as many
                for release in self.cost(kind, members, arms=arms):
                    given[release] += times
        cost = epsilon(given, privacy_of(self.spec).delta)
        return cost if cost <= MAX_EPSILON else math.inf

    @cached_property
    def _cheaper(self) -> Bound:
        """Of the whole plan, then of its updates: it follows from the job and from no data."""
        privacy = privacy_of(self.spec)
        if privacy.sums is None or privacy.records is None:
            return DpSgd if privacy.sums is None else Gaussian
        steps, sums = (
            [epsilon(self._planned(of, bound), privacy.delta) for of in (_is_any, _is_update)]
            for bound in (DpSgd, Gaussian)
        )
        return DpSgd if steps <= sums else Gaussian

    def _planned(self, of: Chosen, bound: Bound) -> Counter[Release]:
        self._check_arms()
        planned: Counter[Release] = Counter()
        for kind, members, times, arms in planned_rungs(self.spec):
            for quantity, release in self._charged(kind, members, arms, bound):
                if of(quantity, release):
                    planned[release] += times
        return +planned  # of 0 rounds nothing

    def _charged(self, kind: str, members: int, arms: int, bound: Bound) -> list[tuple[Quantity, Release]]:
        """bound: of an update with both, which of them is charged."""
        key = kind, members, arms, bound
        if key not in self._found:
            other = Gaussian if bound is DpSgd else DpSgd
            charged = [
                (quantity, release)
                for quantity, release in self._of_sums(kind, members, arms)
                if not (_is_update(quantity, release) and isinstance(release, other))
            ]
            self._found[key] = self._at_risk(charged, members)
        return self._found[key]

    def _check_arms(self) -> None:
        """Which arms are left follows from the data: what they cost must not, or no plan is fixed before."""
        if self._has_like_arms:
            return
        alone = [
            JobReleases(arm, self._state, honest=self._honest, colluders=self._colluders).planned()
            for arm in self.spec.arms
        ]
        for place, releases in enumerate(alone):
            if releases != alone[0]:
                raise ConfigError(
                    "search.values: expected arms that release the same in a private job, arm "
                    f"{place} does not release what the first does"
                )
        self._has_like_arms = True

    def _of_sums(self, kind: str, members: int, arms: int) -> list[tuple[Quantity, Release]]:
        spec, records = self.spec, privacy_of(self.spec).records
        honest, rounds = self._honest or spec.rule(members).min_honest, max(spec.rounds, 1)
        # no seed changes the cost
        state = self._state if spec.search is None else with_arms(self._state, range(arms))
        context = any_context(spec, 1, state, members, public_seed=bytes(32))
        found: list[tuple[Quantity, Release]] = []
        for quantity in spec.method.phase(kind).quantities(context):
            is_trained = quantity.discloses is Disclosure.UPDATE and not quantity.is_whole_units
            if is_trained and records is not None:
                found.append((quantity, self._steps(quantity, records, rounds)))
            if quantity.discloses is Disclosure.DIAGNOSTIC:
                continue
            noise = protected(quantity, spec, members).noise
            if noise is None:
                continue
            moved = sensitivity_of(quantity, noise.scale, noise.clip_l2)
            # Exchanging a silo's data moves the sum twice as far as leaving the silo out. The noise is scaled
            # by the second, the cost is counted by the first: one record's change is an exchange.
            l2 = moved.l2 if noise.clip_l2 is None else 2.0 * moved.l2
            noised_sum = Gaussian(
                noise_multiplier=_rounded_down(math.sqrt(honest * noise.variance) / l2),
                draws=honest * quantity.size,
                failure=moved.failure,
                side=quantity.side,
            )
            if not quantity.is_whole_units:
                found.append((quantity, noised_sum))
                continue
            assert records is not None
            step = SampledGaussian(
                **asdict(noised_sum), sample_rate=records.sample_rate, distance=CUT_FAILURE / rounds
            )
            found.append((quantity, step))
        return found

    def _steps(self, quantity: Quantity, records: RecordsSpec, rounds: int) -> DpSgd:
        assert isinstance(self.spec, JobSpec)
        steps = dp_sgd_steps(self.spec)
        return DpSgd(
            noise_multiplier=solved(records.noise_multiplier, "records.noise_multiplier"),
            sample_rate=records.sample_rate,
            steps=steps,
            draws=steps * math.prod(quantity.shape),
            distance=CUT_FAILURE / rounds,
            side=quantity.side,
        )

    def _at_risk(self, found: list[tuple[Quantity, Release]], members: int) -> list[tuple[Quantity, Release]]:
        """One draw names the silos of all sums of a phase, so each side of the data pays its risk once."""
        silos, sides = len(self.spec.silos), [release.side for _, release in found]
        if members >= silos:
            return found
        colluders = default_colluders(silos) if self._colluders is None else self._colluders
        risk = float(draw_risk(silos, members, colluders=colluders, draws=1))
        for side in (Side.BOTH,) if Side.BOTH in sides else dict.fromkeys(sides):
            quantity, first = found[sides.index(side)]
            found[sides.index(side)] = quantity, replace(first, failure=first.failure + risk)
        return found


def rows_in_words(costs: Mapping[int, float]) -> str:
    """The same as a clause."""
    shown = ("no bound" if math.isinf(cost) else f"{cost:.3g}" for cost in costs.values())
    return f"somebody with {', '.join(map(str, costs))} records in one silo: epsilon {', '.join(shown)}"


def _rounded_down(multiplier: float) -> float:
    """To twelve digits: rounds that name fewer silos come to the same number but for its last bits."""
    return float(f"{multiplier * (1.0 - 1e-11):.12g}")

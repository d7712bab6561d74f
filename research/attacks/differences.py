"""The difference of two sums whose cohorts differ by one silo: that silo's statistic, unless there is noise.

Silos refuse such a pair of calibrations in one job (docs/protocol.md 6); two jobs, or an operator who
adds a silo between two rounds, cause it all the same.
"""

# D = feature width

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.rows import Row
from chorale.privacy.accountant import epsilon
from chorale.privacy.job_releases import JobReleases
from chorale.privacy.quantity_noise import noise_deviations
from chorale.privacy.releases import Gaussian
from chorale.spec.job_spec import JobSpec
from crypto.fixed_point.layout import Layout
from research.attacks import chance
from research.attacks.chance import cosine
from research.attacks.digits import digits, job
from research.attacks.inputs import encoded, phase_layout, silo_values
from research.attacks.sessions import secure_sum
from silo_agent.training.models.starting import initial_state
from strategies.base import TOTAL, Array

SILOS = 5
PER_SILO = 200
MULTIPLIER = 4.0
EXACT = 1e-9  # samples: float64 sums and rounding in 64 bits leave less
NAMES = ("gram", "moment")
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """error: root of the mean square, against the left-out silo's own statistic, in its units (samples).

    rounding: the most that rounding alone may leave in a number. promised: standard deviation that one sum
    is promised to have. expected: of the difference, by the noise of all silos in both sums. numbers: in the
    statistic. epsilon: of the two sums together, for one record of a silo that is in both, at delta.
    """

    error: float
    largest_error: float
    cosine: float
    promised: float
    expected: float
    numbers: int
    epsilon: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferenceAttack:
    """The same pair of sums without noise, the control, and with it."""

    plain: Difference
    noised: Difference

    def rows(self) -> list[Row]:
        least, most = chance.chance_deviation_ratios(self.noised.numbers)
        over = self.noised.error / self.noised.expected
        return [
            Row(
                name="difference of two sums, no noise: largest error in samples (control)",
                target=EXACT,
                value=self.plain.largest_error,
                unit="",
            ),
            Row(
                name="difference of two sums, noise: error / sqrt(2) promised deviations",
                target=1.0,
                value=self.noised.error / (math.sqrt(2.0) * self.noised.promised),
                unit="",
                is_at_most=False,
            ),
            Row(
                name="difference of two sums, noise: error / expected, at least (false alarm 1e-9)",
                target=least,
                value=over,
                unit="",
                is_at_most=False,
            ),
            Row(
                name="difference of two sums, noise: error / expected, at most (false alarm 1e-9)",
                target=most,
                value=over,
                unit="",
            ),
        ]


def measure(*, per_silo: int = PER_SILO, seed: int = 1) -> DifferenceAttack:
    """Gram and moment of silos of digits, summed in real sessions with and without silo 0."""
    privacy = {
        "delta": 1e-5,
        "records": {"clip_norm": 1.0, "noise_multiplier": 1.0, "sample_rate": 0.1},
        "statistics_noise_multiplier": MULTIPLIER,
    }
    return DifferenceAttack(
        plain=_difference(None, per_silo=per_silo, seed=seed),
        noised=_difference(privacy, per_silo=per_silo, seed=seed),
    )


def _difference(privacy: dict[str, Any] | None, *, per_silo: int, seed: int) -> Difference:
    spec = job("spherefed", silos=SILOS, hidden=(), privacy=privacy)
    data = digits()
    order_N = data.shuffled(seed)[: SILOS * per_silo]
    state = {**initial_state(spec), TOTAL: np.array(len(order_N))}
    values = {
        name: silo_values(spec, "calibrate", state, data.silo(part), members=SILOS, place=place)
        for place, (name, part) in enumerate(zip(spec.silos, np.array_split(order_N, SILOS), strict=True))
    }
    layouts = [phase_layout(spec, "calibrate", state, members=members) for members in (SILOS, SILOS - 1)]
    sums = [_sum(values, layout) for layout in layouts]
    got = {name: sums[0][name] - sums[1][name] for name in NAMES}
    own = values[spec.silos[0]]
    errors = np.concatenate([(got[name] - own[name]).ravel() for name in NAMES])
    return Difference(
        error=float(np.sqrt(np.mean(errors**2))),
        largest_error=float(np.abs(errors).max()),
        cosine=cosine(
            np.concatenate([got[name].ravel() for name in NAMES]),
            np.concatenate([own[name].ravel() for name in NAMES]),
        ),
        promised=_promised(spec, layouts),
        expected=_expected(layouts, sizes={name: own[name].size for name in NAMES}),
        numbers=errors.size,
        epsilon=_epsilon(spec, state, layouts),
    )


def _sum(values: Mapping[str, Mapping[str, Array]], layout: Layout) -> Mapping[str, Array]:
    """Of as many silos as the layout has members, the last ones."""
    inputs = {name: encoded(values[name], layout) for name in sorted(values)[-layout.members :]}
    return secure_sum(inputs, layout).sums


def _promised(spec: JobSpec, layouts: list[Layout]) -> float:
    """The least of both sums: the noise of the honest survivors alone."""
    if spec.privacy is None:
        return 0.0
    return min(
        math.sqrt(spec.rule(layout.members).min_honest * quantity.noise.variance) / quantity.noise.scale
        for layout in layouts
        for quantity in layout.quantities
        if quantity.noise is not None
    )


def _expected(layouts: list[Layout], *, sizes: Mapping[str, int]) -> float:
    """Root of the mean variance over all numbers; the variances of both sums add up."""
    by_layout = [noise_deviations(layout.quantities, layout.members) for layout in layouts]
    total = sum(size * by.get(name, 0.0) ** 2 for by in by_layout for name, size in sizes.items())
    return math.sqrt(total / sum(sizes.values()))


def _epsilon(spec: JobSpec, state: Mapping[str, Array], layouts: list[Layout]) -> float | None:
    if spec.privacy is None:
        return None
    both = [
        release
        for layout in layouts
        for release in JobReleases(spec, dict(state)).cost("calibrate", layout.members)
    ]
    assert all(isinstance(release, Gaussian) for release in both)
    return epsilon(both, spec.privacy.delta)

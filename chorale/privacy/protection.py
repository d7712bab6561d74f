"""What a private job promises and costs: which quantity carries how much noise, and what that releases.

Both sides compute it from job, state and m; nobody is told. Every quantity of a private job is the same
whatever the data are, or post-processing of DP-SGD, or it carries noise; what is none of the three is
refused. Source: docs/privacy.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from chorale.privacy.accountant import DpSgd, Release, Skellam
from chorale.spec.job_spec import JobSpec
from chorale.spec.phase_context import phase_context
from chorale.spec.privacy_spec import PrivacySpec
from chorale.spec.state import GlobalState
from crypto.errors import ConfigError
from crypto.fixed_point.layout import CLIPPED, MAX_QUANTITIES, Quantity
from crypto.noise.terms import (
    MAX_DEVIATION,
    MAX_WRAP_PROBABILITY,
    Noise,
    Sensitivity,
    clipped_sensitivity,
    record_sensitivity,
    rotated_bound,
    whole_sensitivity,
)
from strategies.parts.evaluation import LOSS_CLIP
from strategies.parts.update_scale import MEAN_SQUARE

DELTA = "delta"
SOFT_LABELS = "soft_labels"
CONSTANTS = frozenset({"silos", "weight"})  # 1 and the declared p: the same whatever the data are
AFTER_DP_SGD = frozenset(
    {DELTA, MEAN_SQUARE, "update_sq_norm", "normalizer"}
)  # of the update, or of the declared steps

MAX_EXPONENT = 60  # of the scale


@dataclass(frozen=True, slots=True, kw_only=True)
class Protected:
    """A quantity as it is summed, and what its sum releases of a silo; None where that is nothing."""

    quantity: Quantity
    release: Skellam | None = None


def declared_weight(spec: JobSpec, members: int) -> float:
    """p of every silo in a private job: the job's, else 1 / m. Never n / total, which tells a count."""
    return privacy_of(spec).declared_weight(members)


def loss_clip(spec: JobSpec) -> float | None:
    """What each tested sample's loss is clipped to before it is summed; None without privacy."""
    return None if spec.privacy is None else LOSS_CLIP


def dp_sgd_steps(spec: JobSpec) -> int:
    """Steps of DP-SGD in one round, the same at every silo: local_epochs / sample_rate, rounded up.

    Each takes every record with the chance sample_rate and divides the noised sum of clipped gradients
    by training.batch_size, never by a number of records.
    """
    records = privacy_of(spec).records
    if records is None:
        raise ConfigError(f"job {spec.name}: privacy.records: nothing is trained by DP-SGD")
    # 3 epochs at a rate of 0.1 are 30 steps, though 3 / 0.1 may be a little more than 30
    return math.ceil(spec.training.local_epochs / records.sample_rate - 1e-9)


def noised(quantities: Sequence[Quantity], spec: JobSpec, members: int) -> tuple[Quantity, ...]:
    """The quantities with the noise that the job promises; as they are where it promises none.

    `clipped` is not summed under noise. Raises ConfigError for a quantity that nothing protects, for a
    multiplier that is null, and where no scale leaves room for the noise.
    """
    if spec.privacy is None:
        return tuple(quantities)
    return tuple(each.quantity for each in protected(quantities, spec, members))


def noise_deviations(quantities: Sequence[Quantity], members: int) -> dict[str, float]:
    """Standard deviation of the noise in one number of the sum of m silos, by noised quantity, in its units.

    Where silos were lost there is less of it.
    """
    return {
        each.name: math.sqrt(members * each.noise.variance) / each.noise.scale
        for each in quantities
        if each.noise is not None
    }


def releases_of(spec: JobSpec, kind: str, state: GlobalState, members: int) -> tuple[Release, ...]:
    """What one input to a phase of that kind costs a silo, to be paid before its data are touched.

    A sum is released with the noise of at least h silos; that of the others is not counted. Raises
    ConfigError for a job without privacy, whose cost has no bound.
    """
    return tuple(release for _, release in named_releases(spec, kind, state, members))


def named_releases(spec: JobSpec, kind: str, state: GlobalState, members: int) -> list[tuple[str, Release]]:
    """The same, each with the quantity it belongs to; DP-SGD's steps belong to the delta."""
    records = privacy_of(spec).records
    context = phase_context(spec, 1, state, members, public_seed=bytes(32))  # no seed changes the cost
    every = protected(spec.method.phase(kind).quantities(context), spec, members)
    sums: list[tuple[str, Release]] = [
        (each.quantity.name, each.release) for each in every if each.release is not None
    ]
    if kind != "train" or records is None:
        return sums
    multiplier = _solved(records.noise_multiplier, "records.noise_multiplier")
    steps = dp_sgd_steps(spec)
    trained = next(each.quantity for each in every if each.quantity.name == DELTA)
    dp_sgd = DpSgd(
        noise_multiplier=multiplier,
        sample_rate=records.sample_rate,
        steps=steps,
        draws=steps * math.prod(trained.shape),
    )
    return [(DELTA, dp_sgd), *sums]


def protected(quantities: Sequence[Quantity], spec: JobSpec, members: int) -> list[Protected]:
    """Each quantity of a private job but `clipped`, with its noise and its release. Raises ConfigError."""
    return [_protect(each, spec, members) for each in quantities if each.name != CLIPPED]


def privacy_of(spec: JobSpec) -> PrivacySpec:
    """Raises ConfigError for a job without privacy."""
    if spec.privacy is None:
        raise ConfigError(f"job {spec.name}: privacy: the job promises none")
    return spec.privacy


def _protect(quantity: Quantity, spec: JobSpec, members: int) -> Protected:
    privacy = privacy_of(spec)
    if quantity.name in CONSTANTS:
        return Protected(quantity=quantity)
    clip = privacy.update_clip(members)
    if quantity.name == DELTA and privacy.sums is not None and clip is not None:
        multiplier = _solved(privacy.sums.noise_multiplier, "sums.noise_multiplier")
        return _under_clip(quantity, spec, members, multiplier=multiplier, clip_l2=clip)
    if quantity.name in AFTER_DP_SGD and privacy.sums is None:
        return Protected(quantity=quantity)
    is_of_update = quantity.name == SOFT_LABELS and privacy.sums is not None
    if quantity.sensitivity_l2 is None or is_of_update:
        raise ConfigError(
            f"quantity {quantity.name}: a private job cannot sum it, because nothing bounds what one "
            f"{privacy.unit} changes of it"
        )
    multiplier = _solved(privacy.statistics_noise_multiplier, "statistics_noise_multiplier")
    return _by_record(quantity, spec, members, multiplier=multiplier, l2=quantity.sensitivity_l2)


def _under_clip(
    quantity: Quantity, spec: JobSpec, members: int, *, multiplier: float, clip_l2: float
) -> Protected:
    """The whole array of a silo. Exchanging a silo's data moves the sum twice as far as leaving it out;
    the noise is scaled by the second, the cost counted by the first, which one record's change is too.
    The rotation makes words small, which is all that it does for privacy: the norm is clipped before it."""
    block, words = 1 if quantity.projection is None else quantity.projection.block, members * quantity.size
    largest = rotated_bound(clip_l2, block=block, words=words)
    bounded = replace(quantity, bound=min(quantity.bound, largest))

    def sensitivity(scale: float) -> Sensitivity:
        return clipped_sensitivity(clip_l2, scale=scale, coordinates=quantity.size)

    made = _noise(bounded, spec, members, multiplier=multiplier, sensitivity=sensitivity, clip_l2=clip_l2)
    exchanged = sensitivity(made.scale)
    exchanged = replace(exchanged, squared_l2=4 * exchanged.squared_l2)
    return _released(replace(bounded, noise=made), exchanged, spec, members)


def _by_record(quantity: Quantity, spec: JobSpec, members: int, *, multiplier: float, l2: float) -> Protected:
    """A statistic: one record more or less moves it by at most l2. It is no count once it has noise."""

    def sensitivity(scale: float) -> Sensitivity:
        stays_whole = quantity.is_count and scale >= 1.0
        of = whole_sensitivity if stays_whole else record_sensitivity
        return of(l2, scale=scale, coordinates=quantity.size)

    plain = replace(quantity, is_count=False)
    made = _noise(plain, spec, members, multiplier=multiplier, sensitivity=sensitivity)
    return _released(replace(plain, noise=made), sensitivity(made.scale), spec, members)


def _noise(
    quantity: Quantity,
    spec: JobSpec,
    members: int,
    *,
    multiplier: float,
    sensitivity: Callable[[float], Sensitivity],
    clip_l2: float | None = None,
) -> Noise:
    """The finest scale at which one silo's noise stays within MAX_DEVIATION and the sum within its word.

    The noise of h silos together has a standard deviation of multiplier times the sensitivity: those
    that are sure to be in a sum and to be honest, not the m that were named.
    """
    honest = spec.rule(members).min_honest
    for exponent in range(MAX_EXPONENT, -MAX_EXPONENT, -1):
        scale = math.ldexp(1.0, exponent)
        variance = multiplier**2 * sensitivity(scale).squared_l2 / honest
        if variance > MAX_DEVIATION**2:
            continue
        noise = Noise(variance=variance, scale=scale, clip_l2=clip_l2)
        if replace(quantity, noise=noise).wrap_probability(members) <= MAX_WRAP_PROBABILITY / MAX_QUANTITIES:
            return noise
    raise ConfigError(
        f"quantity {quantity.name}: no scale leaves room in {quantity.ring_bits} bits for {quantity.size} "
        f"values under a noise multiplier of {multiplier:g}"
    )


def _released(quantity: Quantity, moved: Sensitivity, spec: JobSpec, members: int) -> Protected:
    assert quantity.noise is not None
    honest = spec.rule(members).min_honest
    release = Skellam(
        l1=moved.l1,
        l2=moved.l2,
        variance=honest * quantity.noise.variance,
        draws=honest * quantity.size,
        failure=moved.failure,
    )
    return Protected(quantity=quantity, release=release)


def _solved(multiplier: float | None, field: str) -> float:
    if multiplier is None:
        raise ConfigError(f"privacy.{field}: it is null, and has to be solved for first")
    return multiplier

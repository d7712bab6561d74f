"""Which quantity of a private job carries how much noise, and what its sum then releases.

Both sides compute it from job, state and m; no message carries it. Every quantity of a private job is the
same whatever the data are, or post-processing of DP-SGD, or it carries noise; every other one is refused.
Which of these a quantity is stands on the quantity (`Quantity.discloses`). Source: docs/privacy.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from chorale.privacy.releases import DpSgd, Release, Skellam
from chorale.spec.job_spec import JobSpec
from chorale.spec.phase_context import phase_context
from chorale.spec.privacy_spec import PrivacySpec
from chorale.spec.state import GlobalState
from crypto.errors import ConfigError
from crypto.fixed_point.layout import MAX_QUANTITIES, Disclosure, Quantity
from crypto.noise.sensitivity import (
    MAX_DEVIATION,
    MAX_WRAP_PROBABILITY,
    Noise,
    Sensitivity,
    clipped_sensitivity,
    record_sensitivity,
    rotated_bound,
    whole_sensitivity,
)

MAX_EXPONENT = 60  # of the scale


def privacy_of(spec: JobSpec) -> PrivacySpec:
    """Raises ConfigError for a job without privacy."""
    if spec.privacy is None:
        raise ConfigError(f"job {spec.name}: privacy: the job promises none")
    return spec.privacy


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

    No diagnostic is summed under noise. Raises ConfigError for a quantity that nothing protects, for a
    multiplier that is null, and where no scale leaves room for the noise.
    """
    if spec.privacy is None:
        return tuple(quantities)
    summed = [quantity for quantity in quantities if quantity.discloses is not Disclosure.DIAGNOSTIC]
    return tuple(_protected(quantity, spec, members) for quantity in summed)


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
    return tuple(release for _, release in releases_by_quantity(spec, kind, state, members))


def releases_by_quantity(
    spec: JobSpec, kind: str, state: GlobalState, members: int, *, honest: int | None = None
) -> list[tuple[Quantity, Release]]:
    """The same, each with its quantity as the method declares it; DP-SGD's steps belong to the update.

    honest: how many silos' noise is counted on; None: h. 1 leaves a silo its own noise alone.
    """
    records, honest = privacy_of(spec).records, honest or spec.rule(members).min_honest
    context = phase_context(spec, 1, state, members, public_seed=bytes(32))  # no seed changes the cost
    found: list[tuple[Quantity, Release]] = []
    for quantity in spec.method.phase(kind).quantities(context):
        if quantity.discloses is Disclosure.UPDATE and records is not None:
            steps = dp_sgd_steps(spec)
            dp_sgd = DpSgd(
                noise_multiplier=_solved(records.noise_multiplier, "records.noise_multiplier"),
                sample_rate=records.sample_rate,
                steps=steps,
                draws=steps * math.prod(quantity.shape),
            )
            found.append((quantity, dp_sgd))
        if quantity.discloses is Disclosure.DIAGNOSTIC:
            continue
        noise = _protected(quantity, spec, members).noise
        if noise is None:
            continue
        moved = _sensitivity(quantity, noise.scale, noise.clip_l2)
        if noise.clip_l2 is not None:
            # Exchanging a silo's data moves the sum twice as far as leaving the silo out. The noise is scaled
            # by the second, the cost is counted by the first: one record's change is an exchange.
            moved = replace(moved, squared_l2=4 * moved.squared_l2)
        noise_of_honest = Skellam(
            l1=moved.l1,
            l2=moved.l2,
            variance=honest * noise.variance,
            draws=honest * quantity.size,
            failure=moved.failure,
        )
        found.append((quantity, noise_of_honest))
    return found


def _protected(quantity: Quantity, spec: JobSpec, members: int) -> Quantity:
    """A quantity of a private job with its noise, or as it is where it needs none. Raises ConfigError."""
    privacy, discloses = privacy_of(spec), quantity.discloses
    if discloses is Disclosure.CONSTANT:
        return quantity
    if discloses in (Disclosure.UPDATE, Disclosure.FROM_UPDATE) and privacy.sums is None:
        return quantity  # post-processing of DP-SGD
    clip_l2 = privacy.update_clip(members)
    if discloses is Disclosure.UPDATE and privacy.sums is not None and clip_l2 is not None:
        multiplier = _solved(privacy.sums.noise_multiplier, "sums.noise_multiplier")
        # the rotation makes words small and does no more for privacy: the norm is clipped before it
        block = 1 if quantity.projection is None else quantity.projection.block
        largest = rotated_bound(clip_l2, block=block, words=members * quantity.size)
        quantity = replace(quantity, bound=min(quantity.bound, largest))
        return _at_finest_scale(quantity, spec, members, multiplier=multiplier, clip_l2=clip_l2)
    # silo-level noise bounds the summed update, and nothing else that follows from the trained model
    is_of_update = discloses in (Disclosure.FROM_UPDATE, Disclosure.TRAINED_CLASS_STATISTIC)
    if quantity.sensitivity_l2 is None or (is_of_update and privacy.sums is not None):
        raise ConfigError(
            f"quantity {quantity.name}: a private job cannot sum it, because nothing bounds what one "
            f"{privacy.unit} changes of it"
        )
    multiplier = _solved(privacy.statistics_noise_multiplier, "statistics_noise_multiplier")
    return _at_finest_scale(quantity, spec, members, multiplier=multiplier, clip_l2=None)


def _at_finest_scale(
    quantity: Quantity, spec: JobSpec, members: int, *, multiplier: float, clip_l2: float | None
) -> Quantity:
    """The finest scale at which one silo's noise stays within MAX_DEVIATION and the sum within its word.

    The noise of h silos together has a standard deviation of multiplier times the sensitivity: those
    that are sure to be in a sum and to be honest, not the m that were named.
    """
    honest = spec.rule(members).min_honest
    plain = replace(quantity, is_count=False)  # it is no count once it has noise
    for exponent in range(MAX_EXPONENT, -MAX_EXPONENT, -1):
        scale = math.ldexp(1.0, exponent)
        variance = multiplier**2 * _sensitivity(quantity, scale, clip_l2).squared_l2 / honest
        if variance > MAX_DEVIATION**2:
            continue
        made = replace(plain, noise=Noise(variance=variance, scale=scale, clip_l2=clip_l2))
        if made.wrap_probability(members) <= MAX_WRAP_PROBABILITY / MAX_QUANTITIES:
            return made
    raise ConfigError(
        f"quantity {quantity.name}: no scale leaves room in {quantity.ring_bits} bits for {quantity.size} "
        f"values under a noise multiplier of {multiplier:g}"
    )


def _sensitivity(quantity: Quantity, scale: float, clip_l2: float | None) -> Sensitivity:
    """How far leaving out one silo's clipped array moves the sum of whole numbers, or else one record.

    quantity: without its noise, so that a count is still one.
    """
    if clip_l2 is not None:
        return clipped_sensitivity(clip_l2, scale=scale, coordinates=quantity.size)
    assert quantity.sensitivity_l2 is not None
    of = whole_sensitivity if quantity.is_count and scale >= 1.0 else record_sensitivity
    return of(quantity.sensitivity_l2, scale=scale, coordinates=quantity.size)


def _solved(multiplier: float | None, field: str) -> float:
    if multiplier is None:
        raise ConfigError(f"privacy.{field}: it is null, and has to be solved for first")
    return multiplier

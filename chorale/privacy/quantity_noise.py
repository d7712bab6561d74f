"""Which quantity of a private job carries how much noise.

Both sides compute it from job, state and m; no message carries it. Every quantity of a private job is the
same whatever the data are, or post-processing of DP-SGD, or it carries noise; every other one is refused.
Which of these a quantity is stands on the quantity (`Quantity.discloses`). Source: docs/privacy.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from chorale.spec.job_spec import JobSpec
from chorale.spec.kinds import AnySpec
from chorale.spec.privacy_spec import PrivacySpec
from crypto.errors import ConfigError
from crypto.fixed_point.layout import Disclosure, Quantity
from crypto.fixed_point.plausible import largest_word
from crypto.noise.gaussian import MAX_VARIANCE, MIN_VARIANCE
from crypto.noise.sensitivity import (
    Noise,
    Sensitivity,
    clipped_sensitivity,
    record_sensitivity,
    rotated_bound,
    whole_sensitivity,
)

MAX_EXPONENT = 60  # of the scale
SMALL_ROUNDING_COST = 1.0 + 2.0**-10  # of the noise; a finer scale saves no more than that
FINE_VARIANCE = 2.0**14  # where nothing is rounded: as fine as one table of noise allows
MAX_ROUNDING_COST = 1.01  # of a step's gradient; above it the job asks for wider words


def privacy_of(spec: AnySpec) -> PrivacySpec:
    """Raises ConfigError for a job without privacy."""
    if spec.privacy is None:
        raise ConfigError(f"job {spec.name}: privacy: the job promises none")
    return spec.privacy


def dp_sgd_steps(spec: JobSpec) -> int:
    """Steps of DP-SGD in one round, the same at every silo: local_steps, or local_epochs / sample_rate,
    rounded up; one where silos share their noise.

    Each takes every record with the chance sample_rate and divides the noised sum of clipped gradients
    by training.batch_size, never by a number of records.
    """
    records = privacy_of(spec).records
    if records is None:
        raise ConfigError(f"job {spec.name}: privacy.records: nothing is trained by DP-SGD")
    if records.noise == "sum":
        return 1
    if spec.training.local_epochs is None:
        assert spec.training.local_steps is not None
        return spec.training.local_steps
    # 3 epochs at a rate of 0.1 are 30 steps, though 3 / 0.1 may be a little more than 30
    return math.ceil(spec.training.local_epochs / records.sample_rate - 1e-9)


def noised(quantities: Sequence[Quantity], spec: AnySpec, members: int) -> tuple[Quantity, ...]:
    """The quantities with the noise that the job promises; as they are where it promises none.

    No diagnostic is summed under noise. Raises ConfigError for a quantity that nothing protects, for a
    multiplier that is null, and where no scale leaves room for the noise.
    """
    if spec.privacy is None:
        return tuple(quantities)
    summed = [quantity for quantity in quantities if quantity.discloses is not Disclosure.DIAGNOSTIC]
    return tuple(protected(quantity, spec, members) for quantity in summed)


def noise_deviations(quantities: Sequence[Quantity], members: int) -> dict[str, float]:
    """Standard deviation of the noise in one number of the sum of m silos, by noised quantity, in its units.

    Where silos were lost there is less of it.
    """
    return {
        each.name: math.sqrt(members * each.noise.variance) / each.noise.scale
        for each in quantities
        if each.noise is not None
    }


def protected(quantity: Quantity, spec: AnySpec, members: int) -> Quantity:
    """A quantity of a private job with its noise, or as it is where it needs none. Raises ConfigError."""
    privacy, discloses = privacy_of(spec), quantity.discloses
    if discloses is Disclosure.CONSTANT:
        return quantity
    if quantity.is_whole_units:
        return _gradient(quantity, spec, members)
    if discloses in (Disclosure.UPDATE, Disclosure.FROM_UPDATE) and privacy.sums is None:
        return quantity  # post-processing of DP-SGD
    clip_l2 = privacy.update_clip(members)
    if discloses is Disclosure.UPDATE and privacy.sums is not None and clip_l2 is not None:
        multiplier = solved(privacy.sums.noise_multiplier, "sums.noise_multiplier")
        # the rotation makes words small and does no more for privacy: the norm is clipped before it
        block = 1 if quantity.projection is None else quantity.projection.block
        largest = rotated_bound(clip_l2, block=block, words=members * quantity.size)
        quantity = replace(quantity, bound=min(quantity.bound, largest))
        return _with_noise(quantity, spec, members, multiplier=multiplier, clip_l2=clip_l2)
    # silo-level noise bounds the summed update, and nothing else that follows from the trained model
    is_of_update = discloses in (Disclosure.FROM_UPDATE, Disclosure.TRAINED_CLASS_STATISTIC)
    if quantity.sensitivity_l2 is None or (is_of_update and privacy.sums is not None):
        raise ConfigError(
            f"quantity {quantity.name}: a private job cannot sum it, because nothing bounds what one "
            f"{privacy.unit} changes of it"
        )
    multiplier = solved(privacy.statistics_noise_multiplier, "statistics_noise_multiplier")
    return _with_noise(quantity, spec, members, multiplier=multiplier, clip_l2=None)


def _gradient(quantity: Quantity, spec: AnySpec, members: int) -> Quantity:
    """The sum of clipped gradients, each rounded to whole units within its sensitivity."""
    records = privacy_of(spec).records
    if records is None or quantity.sensitivity_l2 is None:
        raise ConfigError(f"quantity {quantity.name}: whole units are those of clipped gradients")
    multiplier = solved(records.noise_multiplier, "records.noise_multiplier")
    made = _with_noise(quantity, spec, members, multiplier=multiplier, clip_l2=None)
    assert made.noise is not None
    if _rounding_cost(made, made.noise.scale, None) > MAX_ROUNDING_COST:
        raise ConfigError(
            f"quantity {quantity.name}: rounding {quantity.size} values to {quantity.ring_bits} bits adds "
            f"over {MAX_ROUNDING_COST - 1:.0%} of noise; {_advice(quantity)}"
        )
    return made


def _with_noise(
    quantity: Quantity, spec: AnySpec, members: int, *, multiplier: float, clip_l2: float | None
) -> Quantity:
    """The coarsest scale at which rounding costs next to nothing, else the finest that there is room for.

    The noise of h silos together has a standard deviation of multiplier times the sensitivity: those
    that are sure to be in a sum and to be honest, not the m that were named. A finer scale would hide no
    more, and its noise takes longer to draw.
    """
    honest = spec.rule(members).min_honest
    plain = replace(quantity, is_count=False)  # it is no count once it has noise
    finest: Quantity | None = None
    for exponent in range(-MAX_EXPONENT, MAX_EXPONENT + 1):
        scale = math.ldexp(1.0, exponent)
        variance = multiplier**2 * sensitivity_of(quantity, scale, clip_l2).squared_l2 / honest
        if variance < MIN_VARIANCE:
            continue
        if variance > MAX_VARIANCE:
            break
        made = replace(plain, noise=Noise(variance=variance, scale=scale, clip_l2=clip_l2))
        if largest_word(made, members=members, survivors=members) > made.room:
            break
        finest = made
        if variance >= FINE_VARIANCE and _rounding_cost(quantity, scale, clip_l2) <= SMALL_ROUNDING_COST:
            break
    if finest is None:
        raise ConfigError(
            f"quantity {quantity.name}: no scale leaves room in {quantity.ring_bits} bits for "
            f"{quantity.size} values under a noise multiplier of {multiplier:g}; {_advice(quantity)}"
        )
    return finest


def _advice(quantity: Quantity) -> str:
    return "train fewer parameters" if quantity.ring_bits == 64 else "ask for update_bits: 64"


def _rounding_cost(quantity: Quantity, scale: float, clip_l2: float | None) -> float:
    """How many times longer rounding makes what the noise has to hide. quantity: without its noise."""
    l2 = quantity.sensitivity_l2 if clip_l2 is None else clip_l2
    assert l2 is not None
    return sensitivity_of(quantity, scale, clip_l2).l2 / (scale * l2)


def sensitivity_of(quantity: Quantity, scale: float, clip_l2: float | None) -> Sensitivity:
    """How far leaving out one silo's clipped array moves the sum of whole numbers, or else one record.

    quantity: without its noise, so that a count is still one.
    """
    if clip_l2 is not None:
        return clipped_sensitivity(clip_l2, scale=scale, coordinates=quantity.size)
    assert quantity.sensitivity_l2 is not None
    if quantity.is_whole_units:  # each record is rounded by itself, again until it is short enough
        return clipped_sensitivity(quantity.sensitivity_l2, scale=scale, coordinates=quantity.size)
    if quantity.is_count and scale >= 1.0:
        return whole_sensitivity(quantity.sensitivity_l2, scale=scale)
    return record_sensitivity(quantity.sensitivity_l2, scale=scale, coordinates=quantity.size)


def solved(multiplier: float | None, field: str) -> float:
    if multiplier is None:
        raise ConfigError(f"privacy.{field}: it is null, and has to be solved for first")
    return multiplier

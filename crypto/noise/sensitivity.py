"""How far one input can move a sum of whole numbers, and the noise that a quantity declares for it.

The noise is a rounded Gaussian in ring units: whole numbers, added by every silo before masking
(crypto/noise/gaussian.py).
What is derived here is proved in docs/privacy-proofs.md, "Sensitivity after rounding".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from crypto.errors import ConfigError
from crypto.noise.gaussian import MAX_VARIANCE, MIN_VARIANCE

MAX_WRAP_PROBABILITY = 2.0**-40  # that any number of a sum leaves its word

# Both sides of a layout need the same last bit, so these are numbers and not calls of log()
RECORD_FAILURE = 2.0**-40  # beta of a record's rounding; charged to delta
RECORD_SPREAD = 7.4466  # sqrt(2 ln 2^40) = 7.44659..., rounded up
CLIP_REDRAW = 2.0**-20  # beta of a clipped array: how seldom its rounding is drawn again
CLIP_SPREAD = 5.2656  # sqrt(2 ln 2^20) = 5.26553..., rounded up
ROTATED_BEYOND = 2.0**-41  # that any word of any silo is beyond rotated_bound, and is clipped
_LN_2 = 0.6931472  # rounded up
_ROUNDING_STEP = 1.01 * 2.0**-16  # 16 rounding bits round as if the value were up to this much larger
_ROUNDING_UP = 1.0 + 1e-12  # of float64 arithmetic: a bound is never below what it stands for
_SUM_ROUNDING = 1.0 + 2.0**-20  # float64 sums over all records may differ by more than one record's share


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """variance: of one silo's noise, in ring units squared. scale: ring units per value, a power of two.

    clip_l2: norm to which the silo's whole array is clipped before it is encoded, in the quantity's units;
    None where single records are protected and not the silo. Every field enters the layout's digest.
    """

    variance: float
    scale: float
    clip_l2: float | None = None

    def __post_init__(self) -> None:
        numbers = [self.variance, self.scale, *([] if self.clip_l2 is None else [self.clip_l2])]
        if not all(math.isfinite(number) and number > 0 for number in numbers):
            raise ConfigError(f"noise: expected finite numbers above 0, got {numbers}")
        if math.frexp(self.scale)[0] != 0.5:
            raise ConfigError(f"noise: the scale is a power of two, got {self.scale}")
        if not MIN_VARIANCE <= self.variance <= MAX_VARIANCE:
            raise ConfigError(
                f"noise: expected a standard deviation of {math.sqrt(MIN_VARIANCE):g} to "
                f"{math.sqrt(MAX_VARIANCE):g} units, got {math.sqrt(self.variance):g}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """How far one record, or one silo's clipped array, moves the sum of whole numbers.

    squared_l2: of the difference's norm, in ring units. failure: probability with which this does not hold;
    it is charged to delta.
    """

    squared_l2: int
    failure: float = 0.0

    @property
    def l2(self) -> float:
        return math.sqrt(self.squared_l2)


def whole_sensitivity(l2: float, *, scale: float) -> Sensitivity:
    """Of counts under a scale of 1 or more: they stay whole numbers and nothing is rounded."""
    return Sensitivity(squared_l2=max(1, math.ceil((scale * l2) ** 2)))


def record_sensitivity(l2: float, *, scale: float, coordinates: int) -> Sensitivity:
    """Of values that one record moves by a vector of norm l2, after stochastic rounding.

    With the same rounding bits on both sides, the rounded difference is a stochastic rounding of the scaled
    difference, to the step of the rounding bits. Its norm is always below scale l2 + sqrt(coordinates), and
    below the second bound but for a probability of RECORD_FAILURE (Kairouz, Liu, Steinke 2021, Proposition
    22).
    """
    norm, root = scale * l2 * _SUM_ROUNDING, math.sqrt(coordinates)
    always = (norm + root) ** 2 * _ROUNDING_UP
    norm += _ROUNDING_STEP * root
    mostly = (norm**2 + coordinates / 4.0 + RECORD_SPREAD * (norm + root / 2.0)) * _ROUNDING_UP
    if always <= mostly:
        return Sensitivity(squared_l2=math.ceil(always))
    return Sensitivity(squared_l2=math.ceil(mostly), failure=RECORD_FAILURE)


def clipped_sensitivity(clip_l2: float, *, scale: float, coordinates: int) -> Sensitivity:
    """Of an array that was clipped to a norm and rounded until its squared norm is at most `squared_l2`.

    The encoder draws the rounding bits again while the rounded norm is larger, which happens with a
    probability of about CLIP_REDRAW at most (conditional rounding; Kairouz, Liu, Steinke 2021). So the bound
    always holds, whatever floating point did before: it is checked on whole numbers.
    """
    norm, root = scale * clip_l2, math.sqrt(coordinates)
    always = (norm + root) ** 2
    mostly = norm**2 + coordinates / 4.0 + CLIP_SPREAD * (norm + root / 2.0)
    return Sensitivity(squared_l2=math.ceil(min(always, mostly) * _ROUNDING_UP))


def rotated_bound(clip_l2: float, *, block: int, words: int) -> float:
    """What no word of rotated arrays of that norm exceeds, but for a probability of ROTATED_BEYOND.

    block: rows of the rotation. words: of all silos together. With random signs a word is a sum of `block`
    values of either sign over sqrt(block): P(|x| > a) <= 2 exp(-a^2 block / (2 clip_l2^2)) (Hoeffding).
    At most clip_l2, which no word exceeds at all. The noise covers a clipped word like any other.
    """
    bits = (2 * words).bit_length() + 41  # no less than log2(2 words / ROTATED_BEYOND)
    return clip_l2 * min(1.0, math.sqrt(2.0 * _LN_2 * bits / block))

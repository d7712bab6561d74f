"""Whether a sum of products of whole numbers is rounded at next to no cost in noise.

By job and model alone: a plan says it, and every silo does the same. Source: docs/privacy-proofs.md.
"""

from __future__ import annotations

import math
from typing import Final

from crypto.noise.gaussian import MAX_VARIANCE

DEVIATION: Final = math.sqrt(MAX_VARIANCE)  # of the noise that a silo adds by itself, in units
_MOST_UNITS: Final = 1 << 40  # of a clip: with more, products would be coarser than units
_MOST_ROUNDING: Final = 0.01  # of a clip


def are_worth_it(values: int, *, clip_units: float) -> bool:
    """values: of all weights whose gradients may be products. clip_units: of a clip, DEVIATION over the noise
    multiplier."""
    return clip_units <= _MOST_UNITS and math.sqrt(values) <= _MOST_ROUNDING * clip_units

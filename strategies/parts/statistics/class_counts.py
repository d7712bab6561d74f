"""How many samples of each class are behind a sum of class statistics.

C = classes.
"""

from __future__ import annotations

from crypto.fixed_point.layout import Disclosure, Quantity, Side

MAX_CLASS_SAMPLES = float(1 << 28)  # of one class at one silo; leaves 16 fractional bits to 4 silos


def class_counts(classes: int, *, bound: float = MAX_CLASS_SAMPLES) -> Quantity:
    """The quantity class_counts, (C,). One record moves it by at most 1 in L2."""
    return Quantity(
        name="class_counts",
        shape=(classes,),
        bound=bound,
        is_count=True,
        sensitivity_l2=1.0,
        is_tagged=True,
        discloses=Disclosure.CLASS_STATISTIC,
        side=Side.TRAIN,
    )

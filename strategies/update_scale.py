"""How the silos' updates are laid into 16 bits: rotation and an adaptive bound.

The rotation (crypto/fixed_point/projection.py) makes all words of an update nearly alike, so one number says
how large they are: the root mean square. Every round the silos sum the mean squares of what they put into
`delta`, before anything is clipped. The root of that sum, `method/update_rms`, is at least the root mean
square of each single silo; where all m silos are alike it is sqrt(m) times it. The next round's bound is
HEADROOM times it over the fourth root of m, which is between the two: a silo that holds nearly all data
still fits, and a hundred equal ones do not lose their resolution to it. A round that clipped, because
updates grew faster than that, is followed by one that does not.
Where there is no such number yet, or no usable one, `delta` is summed in 32 bits.
Source: docs/protocol.md 4.7; why these numbers: docs/decisions/0006-compression.md.

Leaks, in addition to what the method leaks, the sum of the squared lengths of p * delta: one number a round.

P = trained parameters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from crypto.errors import ConfigError
from crypto.fixed_point.layout import BOUND_RANGE, Disclosure, Quantity, Side
from crypto.fixed_point.projection import Projection
from strategies.base import METHOD, Array, PhaseContext

MEAN_SQUARE = "delta_mean_square"  # of a silo's `delta`; in update_bits 16 alone
RMS = METHOD + "update_rms"  # () float64: root of the silos' summed mean squares, of the last rounds
ADAPTIVE_WORD: Final = 16
FIRST_WORD: Final = 32  # while nothing is known of the updates' size
# six standard deviations of a nearly normal number, times growth by five from one round to the next where no
# silo's mean square is above 1 / sqrt(m) of the sum
HEADROOM: Final = 32.0
MEMORY: Final = 0.5  # what a round leaves of the figure before: silos that sat one round out come back


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateScale:
    """The statistic that rides in the train phase of jobs with update_bits 16."""

    def quantities(self, context: PhaseContext) -> tuple[Quantity, ...]:
        """The bound is that of an update whose every parameter is update_bound."""
        if not _is_adaptive(context):
            return ()
        return (
            Quantity(
                name=MEAN_SQUARE,
                bound=max(context.update_bound * context.update_bound, BOUND_RANGE[0]),
                is_tagged=True,
                discloses=Disclosure.FROM_UPDATE,
            ),
        )

    def figures(self, context: PhaseContext, sums: Mapping[str, Array]) -> dict[str, float]:
        """update_rms: what the next round's bound is made from."""
        return {"update_rms": _next_rms(context, sums)} if MEAN_SQUARE in sums else {}

    def arrays(self, context: PhaseContext, sums: Mapping[str, Array]) -> dict[str, Array]:
        return {RMS: np.array(_next_rms(context, sums))} if MEAN_SQUARE in sums else {}


def delta_quantity(context: PhaseContext, *, size: int) -> Quantity:
    """Where p * delta is summed. Raises ConfigError for a state that holds no root mean square there.

    Shapes: (P,) of the values. Both sides compute it from job and global state alone.
    """
    bound, ring_bits = context.update_bound, context.update_bits
    is_rotated = ring_bits == ADAPTIVE_WORD
    if context.update_clip is not None:
        # no word is larger than the norm that the whole update is clipped to, rotated or not
        bound = min(bound, context.update_clip)
    elif is_rotated:
        learned = adaptive_bound(context)
        if learned is None:
            ring_bits, is_rotated = FIRST_WORD, False
        else:
            bound = learned
    return Quantity(
        name="delta",
        shape=(size,),
        bound=bound,
        ring_bits=ring_bits,
        projection=Projection.of(size, seed=context.public_seed) if is_rotated else None,
        is_tagged=True,
        discloses=Disclosure.UPDATE,
        side=Side.TRAIN,
    )


def _is_adaptive(context: PhaseContext) -> bool:
    """A clip norm bounds every word, so nothing need be learned of the rounds before."""
    return context.update_bits == ADAPTIVE_WORD and context.update_clip is None


def adaptive_bound(context: PhaseContext) -> float | None:
    """Bound of a rotated word, at most update_bound; None where the state says nothing usable of it.

    Raises ConfigError.
    """
    fourth_root = math.sqrt(math.sqrt(context.members))  # exact to the last bit on every machine
    bound = min(HEADROOM * _rms(context) / fourth_root, context.update_bound)
    return bound if bound >= BOUND_RANGE[0] else None


def with_mean_square(context: PhaseContext, values: Mapping[str, Array]) -> Mapping[str, Array]:
    """A silo's values of a train phase, and what it sums for the next bound; as they are in other words."""
    if not _is_adaptive(context) or "delta" not in values:
        return values
    delta_P = np.asarray(values["delta"]).reshape(-1)
    total = np.einsum("p,p->", delta_P, delta_P, dtype=np.float64)
    return {**values, MEAN_SQUARE: np.asarray(total / max(delta_P.size, 1))}


def _next_rms(context: PhaseContext, sums: Mapping[str, Array]) -> float:
    summed = math.sqrt(max(float(sums[MEAN_SQUARE]), 0.0))  # rounding may end just below zero
    return max(summed, MEMORY * _rms(context))


def _rms(context: PhaseContext) -> float:
    """0 where no round has written it. Security: the state comes from the coordinator."""
    rms = context.state.get(RMS)
    if rms is None:
        return 0.0
    if rms.shape != () or rms.dtype != np.float64:
        raise ConfigError(f"state: {RMS}: expected one float64, got {rms.dtype} of shape {rms.shape}")
    if not (math.isfinite(rms) and rms >= 0.0):
        raise ConfigError(f"state: {RMS}: expected a finite number of at least 0, got {float(rms)}")
    return float(rms)

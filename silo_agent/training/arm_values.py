"""What a silo sends of an arm of a search whose training or test came to no number.

A job of one such model is refused at the silo. An arm must not end the others: it is judged as the worst, and
by itself it moves its model nowhere. Nobody sees which silo it was: the zeros are under the masks.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from chorale.job import ArmOfJob
from chorale.observability.logs import get_logger
from strategies.base import Array, PhaseContext

WEIGHT = "weight"

log = get_logger("silo_agent.training.arm_values")


def numbers_of_arm(values: Mapping[str, Array], arm: ArmOfJob, context: PhaseContext) -> dict[str, Array]:
    """The arm's values, all of them numbers: sums of a test that are none are at their bounds; where the
    training gave one that is none, the arm adds zeros. values: under their plain names, in their shapes."""
    tested = {each.name: each.bound for each in arm.job.strategy.task.round_sums}
    found = {
        name: _at_bound(value, tested[name]) if name in tested else value for name, value in values.items()
    }
    if all(np.isfinite(value).all() for value in found.values()):
        return found
    log.warning("this arm's training came to no numbers: it adds nothing", arm=arm.arm, round=context.round)
    return {
        name: value if name in tested or name == WEIGHT else np.zeros_like(value)
        for name, value in found.items()
    }


def _at_bound(value: Array, bound: float) -> Array:
    is_number = np.isfinite(value)
    return value if is_number.all() else np.where(is_number, value, bound)

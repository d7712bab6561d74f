"""What a silo sends of an arm of a search whose training or test came to no number.

A job of one such model is refused at the silo. An arm must not end the others: it is judged as the worst, and
by itself it moves its model nowhere, but for a private job's noise. Nobody sees which silo it was: the zeros
are under the masks.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from chorale.observability.logs import get_logger
from crypto.errors import QuantizationError
from crypto.fixed_point.layout import CLIPPED, Disclosure
from silo_agent.training.objective import Objective, Work
from strategies.base import Array
from strategies.tasks.base import LOSS_SUM, TESTED
from strategies.update_scale import MEAN_SQUARE

WEIGHT = "weight"
OF_UPDATE = (Disclosure.UPDATE, Disclosure.FROM_UPDATE)

log = get_logger("silo_agent.training.arm_values")


def computed_or_nothing(objective: Objective, work: Work) -> Mapping[str, Array]:
    """The values of one arm of several, all of them numbers. Raises what the objective raises otherwise."""
    if work.spec.privacy is not None:
        return _with_finite_update(objective.compute(work), work)
    try:
        values = objective.compute(work)
    except QuantizationError as error:
        return _nothing(work, why=str(error))
    if all(np.isfinite(value).all() for value in values.values()):
        return values
    return _nothing(work, why="values that are no numbers")


def _with_finite_update(values: Mapping[str, Array], work: Work) -> Mapping[str, Array]:
    """Of a private job: an update that came to no number as zeros.

    Security: that follows from DP-SGD or is clipped as a whole. The test stays as it is: each record's loss
    is bounded there, and whether another value stood in its place could be up to a single record.
    """
    lost = {
        each.name
        for each in work.spec.method.phase(work.phase_kind).quantities(work.context)
        if each.discloses in OF_UPDATE and not np.isfinite(values[each.name]).all()
    }
    return {name: np.zeros_like(value) if name in lost else value for name, value in values.items()}


def _nothing(work: Work, *, why: str) -> Mapping[str, Array]:
    """Zeros, and of the test the largest loss of all that it would have tested."""
    log.warning("this arm of the search adds nothing", rate=work.spec.training.learning_rate, why=why)
    known = {
        WEIGHT: np.array(work.weight),
        TESTED.name: np.array(len(work.data.holdout)),
        LOSS_SUM.name: np.array(LOSS_SUM.bound),
    }
    summed = work.spec.method.phase(work.phase_kind).quantities(work.context)
    further = [each for each in summed if each.name not in (CLIPPED, MEAN_SQUARE)]
    return {
        each.name: known.get(each.name, np.zeros(each.shape, np.int64 if each.is_count else np.float32))
        for each in further
    }

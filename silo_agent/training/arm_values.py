"""The arms of a search at a silo: what it sends of one whose training or test came to no number, and what it
keeps of each between rounds.

A job of one such model is refused at the silo. An arm must not end the others: it is judged as the worst, and
by itself it moves its model nowhere, but for a private job's noise. Nobody sees which silo it was: the zeros
are under the masks.

Local state is one file whatever the arms are, and moves as a whole. Each arm's arrays have its number before
their names, in all rounds: which arm leads changes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from chorale.observability.logs import get_logger
from crypto.errors import QuantizationError
from crypto.fixed_point.layout import CLIPPED, Disclosure
from silo_agent.training.objective import LocalState, Objective, Work
from strategies.base import Array
from strategies.phases.arms import OTHERS
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
        if each.discloses in OF_UPDATE and each.name in values and not np.isfinite(values[each.name]).all()
    }
    if lost:
        work.local.proposed = None
        log.warning("this arm of the search adds no update", rate=work.spec.training.learning_rate)
    return {name: np.zeros_like(value) if name in lost else value for name, value in values.items()}


def local_of_arm(local: LocalState, arm: int) -> LocalState:
    """What the silo keeps of one arm, under the names that a job of it alone has."""
    prefix = f"{OTHERS}{arm}/"
    own = [name for name in local.arrays if name.startswith(prefix)]
    return LocalState({name.removeprefix(prefix): local.arrays[name] for name in own})


def propose_arms(local: LocalState, of_arms: Mapping[int, LocalState]) -> None:
    """What a phase of these arms keeps: of an arm that proposes nothing what it had, of others nothing."""
    if all(own.proposed is None for own in of_arms.values()):
        return
    for arm, own in of_arms.items():
        arrays = own.arrays if own.proposed is None else own.proposed
        local.propose({f"{OTHERS}{arm}/{name}": array for name, array in arrays.items()})


def _nothing(work: Work, *, why: str) -> Mapping[str, Array]:
    """Zeros, and of the test the largest loss of all that it would have tested. What the silo keeps of the
    arm stays as it was, for nothing of this phase is in the arm's sum."""
    work.local.proposed = None
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

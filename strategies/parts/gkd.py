"""FedGKD's regularizer, and its teacher: the mean of the last global models.

Source: FedGKD, Yao et al. 2021 (arXiv 2107.00051), section 4: CE + gamma / 2 KL( p(x; w_bar) || p(x; w) ),
w_bar the mean of the last M global models; M 5 and gamma 0.2 there. Batch normalization's running means and
variances are averaged like the weights.
Sums nothing and leaks nothing: silos have seen every global model that it is made of.

M = models.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from pydantic import Field

from strategies.base import METHOD, MODEL, Array, Arrays, PhaseContext, blocks, options_of
from strategies.parts.csd import TEACHER
from strategies.parts.regularizers import TemperatureOptions
from strategies.recipe import Regularizer, UnderPrivacy

RECENT = METHOD + "recent/"  # prefix of models before the present one: recent/1/ came before it


class RecentOptions(TemperatureOptions):
    """FedGKD's distillation."""

    recent_models: int = Field(
        default=5,
        ge=1,
        le=20,
        description="M of FedGKD: how many global models its teacher is the mean of; the state holds as many",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentTeacher:
    """Keeps method/teacher/<parameter> and the models it is the mean of, but for the present one."""

    def arrays(self, context: PhaseContext, state: Arrays) -> dict[str, Array]:
        """The mean of the round's new model and the M - 1 before it, of as many as there were; rounded to
        float32 once."""
        count, before = options_of(RecentOptions, context.options).recent_models, context.state
        kept: dict[str, Array] = {}
        for name in (*context.trained, *context.buffers):
            places = [f"{RECENT}{place}/{name}" for place in range(1, count)]
            old = [before[MODEL + name], *(before[place] for place in places if place in before)]
            models = [state[MODEL + name], *old][:count]
            kept |= dict(zip(places, models[1:], strict=False))
            kept[TEACHER + name] = _mean(models)
        return kept


def _mean(models: list[Array]) -> Array:
    """Of arrays of one shape, added up in float64 from the newest to the oldest."""
    mean_N = np.empty(models[0].size, np.float32)
    for block in blocks(models[0].size):
        added_B = np.zeros(block.stop - block.start)
        for each in models:
            added_B += each.reshape(-1)[block].astype(np.float64)
        mean_N[block] = added_B / len(models)
    return mean_N.reshape(models[0].shape)


GKD = Regularizer(
    word="gkd",
    needs_classes=True,
    options=RecentOptions,
    keeper=RecentTeacher(),
    reads=(TEACHER,),
    under_privacy=UnderPrivacy(
        why="compares each sample with a mean of global models, which is post-processing of sums paid for "
        "before"
    ),
)

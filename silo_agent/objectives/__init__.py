"""What a silo minimises and what it computes beside, one file a part; a recipe names them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from crypto.errors import ConfigError
from silo_agent.objectives.base import (
    LossFactory,
    RegulariserFactory,
    SampleLoss,
    SampleRegulariser,
    Setting,
    WeightPenalty,
)
from silo_agent.objectives.cross_entropy import CrossEntropy
from strategies.recipe import Loss, Regulariser

LOSSES: Mapping[Loss, LossFactory] = MappingProxyType(
    {
        Loss.CROSS_ENTROPY: lambda _: CrossEntropy(),
    }
)
REGULARISERS: Mapping[Regulariser, RegulariserFactory] = MappingProxyType({})


def loss_for(setting: Setting) -> SampleLoss:
    """The loss that the job's recipe names. Raises ConfigError if this silo has none of that name."""
    name = setting.work.spec.method.recipe.loss
    if name not in LOSSES:
        raise ConfigError(f"strategy: this silo has the losses {', '.join(LOSSES)}, got {name}")
    return LOSSES[name](setting)


def regulariser_for(setting: Setting) -> SampleRegulariser | WeightPenalty | None:
    """The regulariser that the job's recipe names. Raises ConfigError if this silo has none of that name."""
    name = setting.work.spec.method.recipe.regulariser
    if name is Regulariser.NONE:
        return None
    if name not in REGULARISERS:
        known = ", ".join(["none", *REGULARISERS])
        raise ConfigError(f"strategy: this silo has the regularisers {known}, got {name}")
    return REGULARISERS[name](setting)

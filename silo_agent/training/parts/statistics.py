"""Which phases, statistics and teachers the built-in training knows, by the words of a recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

from silo_agent.objective import Work
from silo_agent.training.batches import Tensors
from silo_agent.training.parts.base import Outputs, Setting, WeightPenalty
from silo_agent.training.parts.class_presence import presence
from silo_agent.training.parts.ema_teacher import ema_teacher
from silo_agent.training.parts.ffc import calibrate
from silo_agent.training.parts.logit_prototypes import logit_prototypes
from silo_agent.training.parts.moon import both_models, keep_trained
from silo_agent.training.parts.scaffold import drift_correction
from silo_agent.training.parts.soft_labels import soft_labels
from strategies.base import Array
from strategies.recipe import Regularizer, ServerUpdate, StatisticName

Computes: TypeAlias = Callable[[Setting], Mapping[str, Array]]
ComputesBeside: TypeAlias = Callable[[Setting, Tensors], Mapping[str, Array]]
Corrects: TypeAlias = Callable[[Work], WeightPenalty]
Keeps: TypeAlias = Callable[[Setting], None]
MakesTeacher: TypeAlias = Callable[[Setting, Tensors], Outputs]

# phases beside train and evaluate, by kind
PHASES: Mapping[str, Computes] = MappingProxyType(
    {"class-presence": presence, "prototypes": logit_prototypes, "calibrate": calibrate}
)
# what rides in the train phase; called after training, when setting.received is the trained model
TRAIN_STATISTICS: Mapping[StatisticName, ComputesBeside] = MappingProxyType(
    {StatisticName.SOFT_LABELS: soft_labels}
)
# outputs of a teacher that is not the model received in this round
TEACHERS: Mapping[Regularizer, MakesTeacher] = MappingProxyType(
    {Regularizer.CSD: ema_teacher, Regularizer.MOON: both_models}
)
# what a regularizer keeps of the trained model for the next round
KEEPS: Mapping[Regularizer, Keeps] = MappingProxyType({Regularizer.MOON: keep_trained})
# what a server update adds to the gradient of every local step
CORRECTIONS: Mapping[ServerUpdate, Corrects] = MappingProxyType({ServerUpdate.SCAFFOLD: drift_correction})

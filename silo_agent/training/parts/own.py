"""The words of an own part: how a round trains with it, and which model is the silo's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

import torch

from silo_agent.local_storage.personal_models import PersonalModel
from silo_agent.training.batches import Tensors
from silo_agent.training.evaluation import Figures, evaluate
from silo_agent.training.models.base import CutModel
from silo_agent.training.models.state import model_arrays
from silo_agent.training.parts import evaluation_loss_for
from silo_agent.training.parts.adapted_model import adapted_model, train_for_adaptation
from silo_agent.training.parts.base import Setting
from silo_agent.training.parts.own_head import model_with_own_head, train_head_first, train_own_head
from silo_agent.training.parts.own_model import own_model, train_beside_own_model
from silo_agent.training.parts.personal import accuracy_sums
from strategies.base import Array
from strategies.recipe import Own

Trains: TypeAlias = Callable[[Setting, Tensors, torch.Generator], int]
FindsOwn: TypeAlias = Callable[[Setting, Tensors], CutModel]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnKind:
    """train: the received model, in place, and what is kept beside; how many steps the sums are of.
    model: the silo's own, from the received one before it is trained and the local state."""

    train: Trains
    model: FindsOwn


OWNS: Mapping[Own, OwnKind] = MappingProxyType(
    {
        Own.HEAD: OwnKind(train=train_own_head, model=model_with_own_head),
        Own.HEAD_FIRST: OwnKind(train=train_head_first, model=model_with_own_head),
        Own.MODEL: OwnKind(train=train_beside_own_model, model=own_model),
        Own.ADAPTED: OwnKind(train=train_for_adaptation, model=adapted_model),
    }
)


def tested_own(setting: Setting, of_received: Figures) -> Mapping[str, Array]:
    """Accuracy of the own model on the hold-out, its square and 1; nothing in a method without one.

    At the end the model stays with the institution. of_received: how the global model does.
    """
    work = setting.work
    kind = OWNS.get(work.spec.method.recipe.own)
    if kind is None:
        return {}
    model = kind.model(setting, Tensors.of(work.data.train, setting.device))
    figures = evaluate(
        model,
        Tensors.of(work.data.holdout, setting.device),
        loss=evaluation_loss_for(setting),
        is_cancelled=work.is_cancelled,
    )
    if work.phase_kind == "evaluate":
        work.keep_personal(_kept(setting, model, before=of_received, after=figures))
    return accuracy_sums(figures)


def _kept(setting: Setting, model: CutModel, *, before: Figures, after: Figures) -> PersonalModel:
    spec = setting.work.spec
    return PersonalModel(
        arrays=model_arrays(model),
        tuned=spec.method.recipe.own.value,
        epochs=spec.training.local_epochs,
        learning_rate=spec.learning_rate_at(spec.rounds),
        tested=after.tested,
        correct_before=before.correct,
        correct=after.correct,
    )

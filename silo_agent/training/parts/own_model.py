"""Ditto: a whole model of the silo's own beside the global one, held near it.

Li, Hu, Beirami, Smith, "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021
(arXiv 2012.04221), algorithm 1: the global track is FedAvg; the own model v takes the same number of epochs
on loss(v) + lambda/2 |v - w|^2, where w is the model as it was received. v is local state and starts as the
first w. strategies/parts/own.py says what leaves.
"""

from __future__ import annotations

import copy

import torch

from silo_agent.training.batches import Tensors
from silo_agent.training.local_training import train_locally
from silo_agent.training.models.base import CutModel
from silo_agent.training.parts import loss_for
from silo_agent.training.parts.base import Setting
from silo_agent.training.parts.local_loss import LocalLoss, local_loss
from silo_agent.training.parts.local_model import kept_model, model_to_keep
from silo_agent.training.parts.prox import Prox
from silo_agent.training.parts.teacher import frozen_copy
from strategies.base import METHOD
from strategies.parts.own import OwnModelOptions

OWN_MODEL = METHOD + "own_model/"  # prefix in the local state


def own_model(setting: Setting, samples: Tensors) -> CutModel:
    """v, or before the first applied round the received model. Raises ConfigError."""
    return kept_model(setting, OWN_MODEL) or frozen_copy(setting.received)


def train_beside_own_model(setting: Setting, samples: Tensors, generator: torch.Generator) -> int:
    """The received model by FedAvg, then v. Raises ConfigError, Cancelled."""
    received = copy.deepcopy(setting.received)
    own = own_model(setting, samples)
    for parameter, trained in zip(own.parameters(), received.parameters(), strict=True):
        parameter.requires_grad_(trained.requires_grad)
    near = LocalLoss(
        loss=loss_for(setting),
        weight_penalty=Prox(received, factor=0.5),
        regularizer_weight=setting.options(OwnModelOptions).own_pull,
    )
    steps = _train(setting, setting.received, samples, generator, local_loss(setting, samples))
    _train(setting, own, samples, generator, near)
    setting.work.local.propose(model_to_keep(own, OWN_MODEL))
    return steps


def _train(
    setting: Setting, model: CutModel, samples: Tensors, generator: torch.Generator, loss: LocalLoss
) -> int:
    return train_locally(
        model,
        samples,
        spec=setting.work.spec,
        round=setting.work.round,
        loss=loss,
        generator=generator,
        is_cancelled=setting.work.is_cancelled,
    )

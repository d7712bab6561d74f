"""Ditto: a whole model of the silo's own in addition to the global one, kept near it.

Li, Hu, Beirami, Smith, "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021
(arXiv 2012.04221), algorithm 1: the global track is FedAvg; the own model v takes the same number of epochs
on loss(v) + lambda/2 |v - w|^2, where w is the model as it was received. v is local state and starts as the
first w. strategies/parts/personalization.py says what leaves.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import torch

from silo_agent.training.base.batches import Batches
from silo_agent.training.base.loss import LocalLoss, SampleLoss
from silo_agent.training.base.passes import frozen_copy
from silo_agent.training.base.setting import Setting, kept_model, model_to_keep
from silo_agent.training.loop.local_training import train_received
from silo_agent.training.models.base import FederatedModel
from silo_agent.training.parts.regularizers.prox import Prox
from strategies.base import METHOD
from strategies.parts.personalization import OwnModelOptions

OWN_MODEL = METHOD + "own_model/"  # prefix in the local state


def own_model(setting: Setting, samples: Batches, loss: SampleLoss) -> FederatedModel:
    """v, or before the first applied round the received model. Raises ConfigError."""
    return kept_model(setting, OWN_MODEL) or frozen_copy(setting.received)


def train_beside_own_model(
    setting: Setting, samples: Batches, generator: torch.Generator, loss: LocalLoss
) -> int:
    """The received model by FedAvg, then v. Raises ConfigError, Cancelled."""
    received = copy.deepcopy(setting.received)
    own = own_model(setting, samples, loss.loss)
    for parameter, trained in zip(own.parameters(), received.parameters(), strict=True):
        parameter.requires_grad_(trained.requires_grad)
    near = LocalLoss(
        loss=loss.loss,
        augmentation=loss.augmentation,
        penalties=((setting.options(OwnModelOptions).personal_pull, Prox(received, factor=0.5)),),
    )
    steps = train_received(setting, samples, generator, loss)
    train_received(replace(setting, received=own), samples, generator, near)
    setting.work.local.propose(model_to_keep(own, OWN_MODEL))
    return steps

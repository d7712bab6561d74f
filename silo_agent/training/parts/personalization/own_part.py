"""A part of the model that is the silo's own beside one that all train: FedPer, FedRep, LG-FedAvg, FedBN; or
all of it.

FedPer, Arivazhagan et al. 2019 (arXiv 1912.00818), algorithm 1: body and head are trained together, the body
is summed. FedRep, Collins et al. 2021 (arXiv 2102.07078), algorithm 1: `head_epochs` passes train the head on
the body as it came, then the job's epochs train the body under that head; each has a new optimizer.
LG-FedAvg, Liang et al. 2020 (arXiv 2001.01523), algorithm 1: both are trained together, the head is summed;
the body's running means stay with it. Their paper tests new data by an ensemble of all bodies, which would
have to leave the silos: here each silo has its own body under the common head. FedBN, Li et al. 2021 (arXiv
2102.07623), algorithm 1: all is trained together, and all but batch normalization is summed. Alone: nothing
is summed of the model. FedProto (Tan et al. 2022, arXiv 2105.00243) trains so, and so does a silo without a
federation.
What is the silo's own is local state; before the first applied round it is the part in the global state.
strategies/parts/personalization.py says what leaves.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from silo_agent.training.base.batches import Batches
from silo_agent.training.base.loss import LocalLoss, SampleLoss
from silo_agent.training.base.passes import frozen_copy
from silo_agent.training.base.setting import Setting, kept_model, model_to_keep, own_names
from silo_agent.training.loop.local_training import train_received
from silo_agent.training.models.base import FederatedModel
from strategies.base import METHOD
from strategies.parts.heads import HEAD_PREFIX
from strategies.parts.personalization import HeadFirstOptions

KEPT = METHOD + "own_part/"  # prefix in the local state


def model_with_own_part(setting: Setting, samples: Batches, loss: SampleLoss) -> FederatedModel:
    """The received model with the own part. Raises ConfigError."""
    return kept_model(setting, KEPT) or frozen_copy(setting.received)


def train_with_own_part(
    setting: Setting, samples: Batches, generator: torch.Generator, loss: LocalLoss
) -> int:
    """Own and common part together. Raises ConfigError, Cancelled."""
    _take(setting)
    steps = train_received(setting, samples, generator, loss)
    _keep(setting)
    return steps


def train_head_first(setting: Setting, samples: Batches, generator: torch.Generator, loss: LocalLoss) -> int:
    """FedRep: the head, then the body. Raises ConfigError, Cancelled."""
    _take(setting)
    spec, epochs = setting.work.spec, setting.options(HeadFirstOptions).head_epochs
    training = {"training": spec.training.with_epochs(epochs)}
    work = replace(setting.work, spec=spec.model_copy(update=training))
    _take_gradients(setting.received, has_body=False, has_head=True)
    train_received(replace(setting, work=work), samples, generator, loss)
    _take_gradients(setting.received, has_body=True, has_head=False)
    steps = train_received(setting, samples, generator, loss)
    _keep(setting)
    return steps


def _take(setting: Setting) -> None:
    own = kept_model(setting, KEPT)
    if own is not None:
        setting.received.load_state_dict(own.state_dict())


def _keep(setting: Setting) -> None:
    setting.work.local.propose(model_to_keep(setting.received, KEPT, names=own_names(setting.work)))


def _take_gradients(model: FederatedModel, *, has_body: bool, has_head: bool) -> None:
    for name, parameter in model.named_parameters():
        is_trained = has_head if name.startswith(HEAD_PREFIX) else has_body and model.shares(name)
        parameter.requires_grad_(is_trained)

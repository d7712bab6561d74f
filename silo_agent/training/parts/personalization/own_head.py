"""A head of the silo's own on a body that all train: FedPer and FedRep.

FedPer, Arivazhagan et al. 2019 (arXiv 1912.00818), algorithm 1: both are trained together, the body is
summed. FedRep, Collins et al. 2021 (arXiv 2102.07078), algorithm 1: `head_epochs` passes train the head on
the body as it came, then the job's epochs train the body under that head; each has a new optimizer.
The head is local state; before the first applied round it is the one in the global state.
strategies/parts/personalization.py says what leaves.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from silo_agent.training.base.batches import Batches
from silo_agent.training.base.loss import LocalLoss, SampleLoss
from silo_agent.training.base.passes import frozen_copy
from silo_agent.training.base.setting import Setting, kept_model, model_to_keep
from silo_agent.training.loop.local_training import train_received
from silo_agent.training.models.base import FederatedModel
from strategies.base import METHOD
from strategies.parts.personalization import HeadFirstOptions

OWN_HEAD = METHOD + "own_head/"  # prefix in the local state
HEAD = "head."


def model_with_own_head(setting: Setting, samples: Batches, loss: SampleLoss) -> FederatedModel:
    """The received body under the own head. Raises ConfigError."""
    return kept_model(setting, OWN_HEAD) or frozen_copy(setting.received)


def train_own_head(setting: Setting, samples: Batches, generator: torch.Generator, loss: LocalLoss) -> int:
    """FedPer: head and body together. Raises ConfigError, Cancelled."""
    _take_head(setting)
    _take_gradients(setting.received, has_body=True, has_head=True)
    steps = train_received(setting, samples, generator, loss)
    _keep_head(setting)
    return steps


def train_head_first(setting: Setting, samples: Batches, generator: torch.Generator, loss: LocalLoss) -> int:
    """FedRep: the head, then the body. Raises ConfigError, Cancelled."""
    _take_head(setting)
    spec, epochs = setting.work.spec, setting.options(HeadFirstOptions).head_epochs
    training = {"training": spec.training.with_epochs(epochs)}
    work = replace(setting.work, spec=spec.model_copy(update=training))
    _take_gradients(setting.received, has_body=False, has_head=True)
    train_received(replace(setting, work=work), samples, generator, loss)
    _take_gradients(setting.received, has_body=True, has_head=False)
    steps = train_received(setting, samples, generator, loss)
    _keep_head(setting)
    return steps


def _take_head(setting: Setting) -> None:
    own = kept_model(setting, OWN_HEAD)
    if own is not None:
        setting.received.load_state_dict(own.state_dict())


def _keep_head(setting: Setting) -> None:
    setting.work.local.propose(model_to_keep(setting.received, OWN_HEAD, part=HEAD))


def _take_gradients(model: FederatedModel, *, has_body: bool, has_head: bool) -> None:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(has_head if name.startswith(HEAD) else has_body and model.shares(name))

"""A head of the silo's own on a body that all train: FedPer and FedRep.

FedPer, Arivazhagan et al. 2019 (arXiv 1912.00818), algorithm 1: both are trained together, the body is
summed. FedRep, Collins et al. 2021 (arXiv 2102.07078), algorithm 1: `head_epochs` passes train the head on
the body as it came, then the job's epochs train the body under that head; each has an optimizer that starts
anew.
The head is local state; before the first applied round it is the one in the global state.
strategies/parts/own.py says what leaves.
"""

from __future__ import annotations

import torch

from chorale.spec.job_spec import JobSpec
from silo_agent.training.batches import Tensors
from silo_agent.training.local_training import train_locally
from silo_agent.training.models.base import CutModel
from silo_agent.training.parts.base import Setting
from silo_agent.training.parts.local_loss import local_loss
from silo_agent.training.parts.local_model import kept_model, model_to_keep
from silo_agent.training.parts.teacher import frozen_copy
from strategies.base import METHOD
from strategies.parts.own import HeadFirstOptions

OWN_HEAD = METHOD + "own_head/"  # prefix in the local state
HEAD = "head."


def model_with_own_head(setting: Setting, samples: Tensors) -> CutModel:
    """The received body under the own head. Raises ConfigError."""
    return kept_model(setting, OWN_HEAD) or frozen_copy(setting.received)


def train_own_head(setting: Setting, samples: Tensors, generator: torch.Generator) -> int:
    """FedPer: head and body together. Raises ConfigError, Cancelled."""
    _take_head(setting, samples)
    _take_gradients(setting.received, has_body=True, has_head=True)
    steps = _train(setting, samples, generator, setting.work.spec)
    _keep_head(setting)
    return steps


def train_head_first(setting: Setting, samples: Tensors, generator: torch.Generator) -> int:
    """FedRep: the head, then the body. Raises ConfigError, Cancelled."""
    _take_head(setting, samples)
    spec, epochs = setting.work.spec, setting.options(HeadFirstOptions).head_epochs
    training = spec.training.model_copy(update={"local_epochs": epochs})
    _take_gradients(setting.received, has_body=False, has_head=True)
    _train(setting, samples, generator, spec.model_copy(update={"training": training}))
    _take_gradients(setting.received, has_body=True, has_head=False)
    steps = _train(setting, samples, generator, spec)
    _keep_head(setting)
    return steps


def _train(setting: Setting, samples: Tensors, generator: torch.Generator, spec: JobSpec) -> int:
    return train_locally(
        setting.received,
        samples,
        spec=spec,
        round=setting.work.round,
        loss=local_loss(setting, samples),
        generator=generator,
        is_cancelled=setting.work.is_cancelled,
    )


def _take_head(setting: Setting, samples: Tensors) -> None:
    setting.received.load_state_dict(model_with_own_head(setting, samples).state_dict())


def _keep_head(setting: Setting) -> None:
    setting.work.local.propose(model_to_keep(setting.received, OWN_HEAD, part=HEAD))


def _take_gradients(model: CutModel, *, has_body: bool, has_head: bool) -> None:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(has_head if name.startswith(HEAD) else has_body)

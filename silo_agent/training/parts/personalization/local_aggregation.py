"""FedALA: each silo learns, number by number, how much of the received model's last layers it takes over.

Zhang et al., "FedALA: Adaptive Local Aggregation for Personalized Federated Learning", AAAI 2023 (arXiv
2212.01197), algorithm 1. Of the last p layers, with t what the silo trained last, g what it
received and w the weights,
    own = t + (g - t) w,   w <- clip(w - eta (dL/d own) (g - t), 0, 1),
by batches of a random share s of the training samples; below them own = g. Weights begin as ones. The first
time, epochs follow until the last ten epochs' losses differ by less than 0.1 (standard deviation, from the
authors' code), at most MAX_EPOCHS; later rounds take one. Then the job's epochs train own, and its delta from
the received model is what is summed. Before its first applied round a silo has nothing of its own: own = g.
Batches are of the job's size, the model is in eval mode, and inputs are not augmented. The same weights are
learned for the test before training and for the training: the test is of the model that training begins from.
t and w are local state: the last layers twice. strategies/parts/personalization.py says what leaves.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

from crypto.errors import ConfigError
from silo_agent.training.base.batches import Batch, Batches
from silo_agent.training.base.loss import LocalLoss, SampleLoss
from silo_agent.training.base.passes import frozen_copy, run_model
from silo_agent.training.base.setting import Setting
from silo_agent.training.loop.local_training import train_received
from silo_agent.training.machine.seeding import derive_seed, shuffler
from silo_agent.training.models.base import FederatedModel
from silo_agent.training.objective import Cancelled
from strategies.base import METHOD, Array
from strategies.parts.personalization import LocalAggregationOptions

TRAINED = METHOD + "aggregated/"  # prefix in the local state: the last layers as this silo trained them
WEIGHTS = METHOD + "aggregation_weights/"
MAX_EPOCHS = 100
LOSSES, SPREAD = 10, 0.1  # of the authors' code: num_pre_loss and threshold


def aggregated_model(setting: Setting, samples: Batches, loss: SampleLoss) -> FederatedModel:
    """What this silo's training begins from. Raises ConfigError, Cancelled."""
    model = frozen_copy(setting.received)
    aggregate(setting, model, samples, loss)
    return model


def train_aggregated(setting: Setting, samples: Batches, generator: torch.Generator, loss: LocalLoss) -> int:
    """The job's epochs from the aggregated model. Raises ConfigError, Cancelled."""
    model, own = setting.received, frozen_copy(setting.received)
    last = last_layers(setting)
    weights = aggregate(setting, own, samples, loss.loss)
    model.load_state_dict(own.state_dict())
    steps = train_received(setting, samples, generator, loss)
    trained = dict(model.named_parameters())
    setting.work.local.propose(
        {
            **{TRAINED + name: _array(trained[name]) for name in last},
            **{WEIGHTS + name: _array(weight) for name, weight in weights.items()},
        }
    )
    return steps


def aggregate(
    setting: Setting, model: FederatedModel, samples: Batches, loss: SampleLoss
) -> Mapping[str, Tensor]:
    """Learns the weights and writes the last layers of a copy of the received model.

    Returns the weights; none before this silo's first applied round. Raises ConfigError for local state of
    another model, Cancelled.
    """
    options, parameters = setting.options(LocalAggregationOptions), dict(model.named_parameters())
    last = last_layers(setting)
    trained = _kept(setting, TRAINED, parameters, last)
    if trained is None:
        return {}
    known = _kept(setting, WEIGHTS, parameters, last)
    weights = [torch.ones_like(each) for each in trained] if known is None else known
    own = [parameters[name] for name in last]
    gaps = [each.detach() - before for each, before in zip(own, trained, strict=True)]
    _write(own, trained, gaps, weights)
    generator = shuffler(derive_seed("local-aggregation", setting.work.seed))
    chosen_S = torch.randperm(len(samples), generator=generator)[
        : math.ceil(options.ala_share * len(samples))
    ]
    losses: list[float] = []
    while chosen_S.numel() and not (losses and (known is not None or _has_settled(losses))):
        for batch in samples.at(
            torch.split(chosen_S.to(setting.device), setting.work.spec.training.batch_size)
        ):
            if setting.work.is_cancelled():
                raise Cancelled("training: no longer wanted")
            mean = _loss_of(model, own, batch, loss)
            for weight, each, gap in zip(weights, own, gaps, strict=True):
                assert each.grad is not None
                weight.sub_(options.ala_rate * each.grad * gap).clamp_(0.0, 1.0)
            _write(own, trained, gaps, weights)
        losses.append(mean)
    model.requires_grad_(False)
    return dict(zip(last, weights, strict=True))


def last_layers(setting: Setting) -> list[str]:
    """Names of the trained parameters of the last p layers that have any, in the model's order."""
    trained = set(setting.work.context.trained)
    names = [name for name, _ in setting.received.named_parameters() if name in trained]
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
    chosen = set(layers[-setting.options(LocalAggregationOptions).ala_layers :])
    return [name for name in names if name.rpartition(".")[0] in chosen]


def _loss_of(model: FederatedModel, own: Sequence[Parameter], batch: Batch, loss: SampleLoss) -> float:
    """The batch's mean loss; its gradient is left in the own parameters."""
    for each in own:
        each.requires_grad_(True)
        each.grad = None
    mean = loss.per_sample(run_model(model, batch.inputs), batch.labels_N).mean()
    torch.autograd.backward(mean)
    return float(mean.detach())


@torch.no_grad()
def _write(
    own: Sequence[Tensor], trained: Sequence[Tensor], gaps: Sequence[Tensor], weights: Sequence[Tensor]
) -> None:
    for each, before, gap, weight in zip(own, trained, gaps, weights, strict=True):
        each.copy_(before + gap * weight)


def _has_settled(losses: Sequence[float]) -> bool:
    recent = losses[-LOSSES:]
    is_even = len(losses) > LOSSES and statistics.pstdev(recent) < SPREAD
    return is_even or len(losses) >= MAX_EPOCHS


def _kept(
    setting: Setting, prefix: str, parameters: Mapping[str, Tensor], names: Sequence[str]
) -> list[Tensor] | None:
    """Arrays of the local state for these parameters; None where it has none. Raises ConfigError."""
    arrays = setting.work.local.arrays
    if not any(name.startswith(prefix) for name in arrays):
        return None
    found = []
    for name in names:
        array = arrays.get(prefix + name)
        if array is None or array.shape != tuple(parameters[name].shape):
            raise ConfigError(f"local state: {prefix} is not of this job's model")
        found.append(torch.tensor(array, dtype=torch.float32, device=setting.device))
    return found


def _array(tensor: Tensor) -> Array:
    return np.array(tensor.detach().cpu().numpy())

"""Per-FedAvg: the global model is trained to be good after one step of gradient descent at a silo.

Fallah, Mokhtari, Ozdaglar, "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
Meta-Learning Approach", NeurIPS 2020 (arXiv 2002.07948), algorithm 1, first-order variant (FO): with two
batches, D and D', w' = w - alpha grad f(w, D), and the optimizer's step at w is along grad f(w', D'). The
Hessian in the gradient of f(w - alpha grad f(w)) is left out.
The own model is w - alpha grad f(w) over all of the silo's training samples, in eval mode: it follows from
the received model and the data, so the local state holds nothing. strategies/parts/personalization.py says
what leaves.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import torch
from torch.nn import Parameter

from silo_agent.training.base.batches import Batch, Batches
from silo_agent.training.base.loss import LocalLoss, SampleLoss
from silo_agent.training.base.passes import frozen_copy, run_model
from silo_agent.training.base.setting import Setting
from silo_agent.training.loop.local_training import epochs_of, min_batch, optimizer_of, steps_left
from silo_agent.training.models.base import FederatedModel
from silo_agent.training.objective import Cancelled
from strategies.parts.personalization import AdaptedOptions


def adapted_model(setting: Setting, samples: Batches, loss: SampleLoss) -> FederatedModel:
    """One step from the received model. Raises Cancelled."""
    model = frozen_copy(setting.received)
    for parameter, received in zip(model.parameters(), setting.received.parameters(), strict=True):
        parameter.requires_grad_(received.requires_grad)
    for batch in samples.passes(is_private=False):
        if setting.work.is_cancelled():
            raise Cancelled("training: no longer wanted")
        loss_N = loss.per_sample(run_model(model, batch.inputs), batch.labels_N)
        torch.autograd.backward(loss_N.sum() / len(samples))
    _step(_trained(model), setting.options(AdaptedOptions).inner_rate)
    return model.requires_grad_(False)


def train_for_adaptation(
    setting: Setting, samples: Batches, generator: torch.Generator, loss: LocalLoss
) -> int:
    """The job's local epochs or steps; a step takes one batch of each of two shuffles.

    Raises ConfigError, Cancelled.
    """
    model, spec = setting.received, setting.work.spec
    optimizer = optimizer_of(model, spec, setting.work.round)
    plan = spec.training
    rate, least = setting.options(AdaptedOptions).inner_rate, min_batch(model, len(samples), plan)
    model.train()
    steps = 0
    for epoch in epochs_of(plan):
        before, left = steps, steps_left(plan, taken=steps)
        inner, outer = (
            islice(samples.shuffled(plan.batch_size, generator=generator, least=least), left)
            for _ in range(2)
        )
        batches = samples.at(
            places_N for pair in zip(list(inner), list(outer), strict=True) for places_N in pair
        )
        for inner_batch, outer_batch in zip(batches, batches, strict=True):
            if setting.work.is_cancelled():
                raise Cancelled("training: no longer wanted")
            first = loss.augmented(inner_batch, step=2 * epoch)
            second = loss.augmented(outer_batch, step=2 * epoch + 1)
            write_gradient(model, loss.loss, first, second, rate=rate)
            optimizer.step()
            steps += 1
        if steps_left(plan, taken=steps) == 0 or steps == before:
            break
    return steps


def write_gradient(
    model: FederatedModel,
    loss: SampleLoss,
    inner: Batch,
    outer: Batch,
    *,
    rate: float,
) -> None:
    """The gradient of the outer batch after a step on the inner one; the parameters stay as they were."""
    parameters = _trained(model)
    start = [parameter.detach().clone() for parameter in parameters]
    _backward(model, loss, inner)
    _step(parameters, rate)
    _backward(model, loss, outer)
    with torch.no_grad():
        for parameter, before in zip(parameters, start, strict=True):
            parameter.copy_(before)


def _backward(model: FederatedModel, loss: SampleLoss, batch: Batch) -> None:
    model.zero_grad()
    torch.autograd.backward(loss.per_sample(run_model(model, batch.inputs), batch.labels_N).mean())


@torch.no_grad()
def _step(parameters: Iterable[Parameter], rate: float) -> None:
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.sub_(rate * parameter.grad)


def _trained(model: FederatedModel) -> list[Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]

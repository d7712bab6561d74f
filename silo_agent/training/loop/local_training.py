"""Local training of one round: batches, a new optimizer, the loss that a recipe names.

Source: FedAvg, McMahan et al. 2017 (arXiv 1602.05629), algorithm 1, ClientUpdate.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count, islice
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from chorale.observability.logs import get_logger
from chorale.privacy.quantity_noise import dp_sgd_steps, privacy_of
from chorale.spec.job_spec import JobSpec
from chorale.spec.strategy_spec import TrainingSpec
from crypto.errors import ConfigError, QuantizationError
from silo_agent.training.base.batches import Batch, Batches
from silo_agent.training.base.loss import LocalLoss
from silo_agent.training.base.passes import Outputs, run_model
from silo_agent.training.base.setting import Setting
from silo_agent.training.base.shares import ALONE, BatchShares
from silo_agent.training.dp_sgd.checks import (
    BATCH_NORM,
    Probes,
    check_gradients,
    check_keeps_samples_apart,
    one_thread,
)
from silo_agent.training.loop.sgd import SGD, Optimizer
from silo_agent.training.models.base import FederatedModel
from silo_agent.training.objective import Cancelled
from strategies.phases.step import GRADIENT
from strategies.phases.training import TRAIN

log = get_logger("silo_agent.training.loop.local_training")

if TYPE_CHECKING:
    from silo_agent.training.dp_sgd.micro_batches import MicroBatches


def train_received(setting: Setting, samples: Batches, generator: torch.Generator, loss: LocalLoss) -> int:
    """The job's epochs or steps on the received model, in place; how many steps. Raises ConfigError,
    Cancelled."""
    work = setting.work
    return train_locally(
        setting.received,
        samples,
        spec=work.spec,
        round=work.round,
        loss=loss,
        generator=generator,
        is_cancelled=work.is_cancelled,
        shares=setting.shares,
        is_summed=work.phase_kind == TRAIN,
        constant_work=work.constant_work,
    )


def summed_gradient(
    setting: Setting, loss: LocalLoss, *, is_checked: bool, random: Callable[[int], bytes] = os.urandom
) -> NDArray[np.int64]:
    """This silo's part of one step that all silos take together, in the units of its noise.

    is_checked: this process tried the job's model with probes before. Shapes: -> (P,) in the order of
    context.trained. Raises ConfigError, Cancelled.
    """
    # opacus takes a second to load, and most jobs do not need it
    from silo_agent.training.dp_sgd.records import gradient_sum

    work, records = setting.work, privacy_of(setting.work.spec).records
    assert records is not None
    assert work.layout is not None
    (quantity,) = (each for each in work.layout.quantities if each.name == GRADIENT)
    with _micro_batches(
        setting.received,
        setting.train,
        spec=work.spec,
        loss=loss,
        is_cancelled=work.is_cancelled,
        random=random,
        steps=work.spec.rounds,
        constant_work=work.constant_work,
        is_checked=is_checked,
    ) as batches:
        sum_P = gradient_sum(batches, clip_norm=records.clip_norm, quantity=quantity)
    named = [(name, each) for name, each in setting.received.named_parameters() if each.requires_grad]
    cuts = np.cumsum([each.numel() for _, each in named])[:-1]
    parts = dict(zip((name for name, _ in named), np.split(sum_P, cuts), strict=True))
    return np.concatenate([parts[name] for name in work.context.trained])


def train_locally(
    model: FederatedModel,
    samples: Batches,
    *,
    spec: JobSpec,
    round: int,
    loss: LocalLoss,
    generator: torch.Generator,
    is_cancelled: Callable[[], bool],
    shares: BatchShares = ALONE,
    random: Callable[[int], bytes] = os.urandom,
    is_summed: bool = False,
    constant_work: int | None = None,
) -> int:
    """The job's local epochs or steps, in place; how many steps were taken. Raises ConfigError, Cancelled.

    generator: of the shuffles. shares: of the batches, but for DP-SGD's. random: of DP-SGD, which takes
    nothing from the job. constant_work: for how many records DP-SGD computes. is_summed: what comes of it
    would be refused if it were not finite, so without privacy a loss that is not raises QuantizationError.
    """
    if spec.privacy is not None:
        check_keeps_samples_apart(model)
    if spec.privacy is not None and spec.privacy.records is not None:
        with one_thread():
            return _train_on_records(
                model,
                samples,
                spec=spec,
                round=round,
                loss=loss,
                is_cancelled=is_cancelled,
                random=random,
                constant_work=constant_work,
            )
    optimizer, plan = optimizer_of(model, spec, round), spec.training
    least = min_batch(model, len(samples), plan)
    model.train()
    steps, losses = 0, list[Tensor]()
    for epoch in epochs_of(plan):
        before = steps
        places = samples.shuffled(plan.batch_size, generator=generator, least=least)
        for drawn in samples.at(islice(places, steps_left(plan, taken=steps))):
            if is_cancelled():
                raise Cancelled("training: no longer wanted")
            batch = loss.augmented(drawn, step=epoch)
            optimizer.zero_grad()
            if loss.perturbation is None:
                losses = _add_gradient(model, batch, loss.terms, shares=shares, least=least)
            else:
                (moves,) = loss.comparisons
                _add_gradient(model, batch, moves.terms, shares=shares, least=least)
                with loss.perturbation.moved(model):
                    optimizer.zero_grad()
                    losses = _add_gradient(model, batch, loss.terms, shares=shares, least=least)
            loss.add_penalty_gradient(model)
            optimizer.step()
            steps += 1
        # once an epoch: what is not finite makes the weights so, and all that follows
        is_finite = all(bool(each.isfinite().all()) for each in losses)
        if is_summed and spec.privacy is None and not is_finite:
            why = "look at the task's loss and the data, or lower training.learning_rate"
            raise QuantizationError(f"training: the loss is not finite after {steps} steps; {why}")
        if steps_left(plan, taken=steps) == 0 or steps == before:
            break
    shares.average(model.buffers())
    return steps


def _add_gradient(
    model: FederatedModel,
    batch: Batch,
    terms: Callable[[Outputs, Tensor, Tensor, Tensor], list[tuple[float, Tensor]]],
    *,
    shares: BatchShares,
    least: int,
) -> list[Tensor]:
    """The gradient of the terms' means over the batch, without the means; returns the last part's terms.
    Shapes: -> (N,) each."""
    losses = list[Tensor]()
    for part in shares.parts(batch, least=least):
        found = terms(run_model(model, part.inputs), part.inputs, part.labels_N, part.places_N)
        losses = [each for _, each in found]
        # a comparison may be constant
        roots = [pair for pair in found if pair is found[0] or pair[1].requires_grad]
        gradients = [torch.full_like(each, weight / batch.count) for weight, each in roots]
        torch.autograd.backward([each for _, each in roots], gradients)
    if shares.is_shared(batch, least=least):
        shares.add_up(model.parameters())
    return losses


def _train_on_records(
    model: FederatedModel,
    samples: Batches,
    *,
    spec: JobSpec,
    round: int,
    loss: LocalLoss,
    is_cancelled: Callable[[], bool],
    random: Callable[[int], bytes],
    constant_work: int | None,
) -> int:
    """DP-SGD: the same number of steps at every silo, whatever it holds."""
    from silo_agent.training.dp_sgd.records import NoisedGradients

    records = privacy_of(spec).records
    assert records is not None
    optimizer, steps = optimizer_of(model, spec, round), dp_sgd_steps(spec)
    with _micro_batches(
        model,
        samples,
        spec=spec,
        loss=loss,
        is_cancelled=is_cancelled,
        random=random,
        steps=spec.rounds * steps,
        constant_work=constant_work,
    ) as batches:
        noised = NoisedGradients(batches, records=records, expected_batch=spec.training.batch_size)
        for step in range(steps):
            noised.write(step)
            loss.add_penalty_gradient(model)
            optimizer.step()
        noised.log_dropped()
    return steps


@contextmanager
def _micro_batches(
    model: FederatedModel,
    samples: Batches,
    *,
    spec: JobSpec,
    loss: LocalLoss,
    is_cancelled: Callable[[], bool],
    random: Callable[[int], bytes],
    steps: int,
    constant_work: int | None,
    is_checked: bool = False,
) -> Iterator[MicroBatches]:
    """Of a model whose gradients were tried with probes; steps: of the whole job."""
    from silo_agent.training.dp_sgd.micro_batches import Draws, MicroBatches
    from silo_agent.training.dp_sgd.sample_gradients import SampleGradients

    records = privacy_of(spec).records
    assert records is not None
    product_names = list[str]()
    if not is_checked:
        probes = Probes(
            input_shape=samples.input_shape,
            input_type=spec.input_type,
            target=spec.method.task.target,
            device=samples.device,
        )
        are_products = check_gradients(model, probes, loss=loss)
        if records.noise == "silo" and samples.units_N is None:
            # the mean of a unit's products is none, and shared noise has units too coarse for their sum
            product_names = [name for name, is_product in are_products.items() if is_product]
            by_sample = [name for name in are_products if name not in product_names]
            log.debug("DP-SGD sums products, and the rest sample by sample", by_sample=by_sample)
    model.train()
    with SampleGradients(model, product_names) as gradients:
        yield MicroBatches(
            samples=samples,
            loss=loss,
            gradients=gradients,
            sample_rate=records.sample_rate,
            draws=Draws(random),
            is_cancelled=is_cancelled,
            steps=steps,
            constant_work=constant_work,
        )


def epochs_of(plan: TrainingSpec) -> Iterable[int]:
    """Passes over the data, counted from 0: the job's, or as many as its steps take."""
    return count() if plan.local_epochs is None else range(plan.local_epochs)


def steps_left(plan: TrainingSpec, *, taken: int) -> int | None:
    """None where epochs are counted."""
    return None if plan.local_steps is None else plan.local_steps - taken


def optimizer_of(model: nn.Module, spec: JobSpec, round: int) -> Optimizer:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    plan, rate = spec.training, spec.learning_rate_at(round)
    if plan.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=rate, weight_decay=plan.weight_decay)
    return SGD(parameters, lr=rate, momentum=plan.momentum, weight_decay=plan.weight_decay)


def min_batch(model: nn.Module, samples: int, plan: TrainingSpec) -> int:
    """Batch normalization has no statistics of a single sample, so such a last batch is left out.

    Raises ConfigError where every batch would be.
    """
    if not any(isinstance(layer, BATCH_NORM) for layer in model.modules()):
        return 1
    if plan.batch_size < 2:
        raise ConfigError("training.batch_size: batch normalization needs at least 2 samples, got 1")
    if samples < 2:
        raise ConfigError("data: batch normalization needs at least 2 training samples in each silo")
    return 2

"""The built-in objective: local SGD on the received model, and its test on the hold-out.

Source: FedAvg, McMahan et al. 2017 (arXiv 1602.05629). What leaves is p * (local - global), the
weight p and sums over the hold-out, all of them inside one secure sum.
P = trained parameters, B = values of the float buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import nn

from chorale.job_spec import JobSpec
from crypto.errors import ConfigError, Refusal, RemoteProtocolError
from silo_agent.batches import Tensors
from silo_agent.evaluation import Figures, evaluate
from silo_agent.models import build_model
from silo_agent.models.base import CutModel
from silo_agent.models.state import flat_arrays, flat_values, load_arrays
from silo_agent.objective import Cancelled, Work
from silo_agent.objectives import loss_of
from silo_agent.objectives.base import SampleLoss, run_model
from silo_agent.seeding import seeded, shuffler, training_seed
from strategies.base import MODEL, Array

BATCH_NORM = nn.modules.batchnorm._BatchNorm


class TorchObjective:
    """Trains and tests in this process, on the GPU where there is one.

    device: auto, cpu or cuda. threads: of one training; more than one per silo on a shared
    machine is slower, not faster.
    """

    def __init__(self, *, device: str = "auto", threads: int = 1) -> None:
        self._device = _choose_device(device)
        self._threads = threads

    def compute(self, work: Work) -> Mapping[str, Array]:
        """The quantities of `train` and `evaluate`. Raises ConfigError, RemoteProtocolError, Cancelled.

        Deterministic on a CPU: everything random follows from job seed, silo and round.
        """
        if work.phase_kind not in ("train", "evaluate"):
            raise ConfigError(f"objective: the built-in training has no phase {work.phase_kind}")
        torch.set_num_threads(self._threads)
        seed = training_seed(job_seed=work.spec.seed, silo=work.silo, round=work.round)
        with seeded(seed):
            model = self._received_model(work)
            figures = self._test(model, work)
            if work.phase_kind == "evaluate":
                return figures.quantities()
            self._train(model, work, generator=shuffler(seed))
        return {**_contribution(model, work), **figures.quantities()}

    def _received_model(self, work: Work) -> CutModel:
        model = build_model(work.spec.model, classes=work.spec.classes, input_shape=work.spec.input_shape)
        load_arrays(model, work.state)
        _freeze_all_but(model, work.context.trained)
        return model.to(self._device)

    def _test(self, model: CutModel, work: Work) -> Figures:
        holdout = Tensors.of(work.data.holdout, self._device)
        loss = loss_of(work.spec.strategy.preset)
        return evaluate(model, holdout, loss=loss, is_cancelled=work.is_cancelled)

    def _train(self, model: CutModel, work: Work, *, generator: torch.Generator) -> None:
        train_locally(
            model,
            Tensors.of(work.data.train, self._device),
            spec=work.spec,
            round=work.round,
            loss=loss_of(work.spec.strategy.preset),
            generator=generator,
            is_cancelled=work.is_cancelled,
        )


def train_locally(
    model: CutModel,
    samples: Tensors,
    *,
    spec: JobSpec,
    round: int,
    loss: SampleLoss,
    generator: torch.Generator,
    is_cancelled: Callable[[], bool],
) -> None:
    """The job's local epochs of SGD, in place. Momentum starts anew every round. Raises Cancelled."""
    plan = spec.training
    optimizer = torch.optim.SGD(
        [parameter for parameter in model.parameters() if parameter.requires_grad],
        lr=spec.learning_rate_at(round),
        momentum=plan.momentum,
        weight_decay=plan.weight_decay,
    )
    least = _least_batch(model, len(samples))
    model.train()
    for _ in range(plan.local_epochs):
        for inputs, labels_N in samples.shuffled(plan.batch_size, generator=generator, least=least):
            if is_cancelled():
                raise Cancelled("training: no longer wanted")
            optimizer.zero_grad()
            torch.autograd.backward(loss.per_sample(run_model(model, inputs), labels_N).mean())
            optimizer.step()


def _contribution(model: CutModel, work: Work) -> dict[str, Array]:
    """Shapes: delta (P,) float32, weight () float64, and buffers (B,) float32 if the model has any."""
    context = work.context
    before_P = flat_arrays([work.state[MODEL + name] for name in context.trained])
    values: dict[str, Array] = {
        "delta": np.float32(work.weight) * (flat_values(model, context.trained) - before_P),
        "weight": np.asarray(work.weight, dtype=np.float64),
    }
    if context.buffers:
        values["buffers"] = np.float32(work.weight) * flat_values(model, context.buffers)
    return values


def _least_batch(model: nn.Module, samples: int) -> int:
    """Batch normalisation has no statistics of a single sample, so such a last batch is left out."""
    if not any(isinstance(layer, BATCH_NORM) for layer in model.modules()):
        return 1
    if samples < 2:
        raise ConfigError("data: batch normalisation needs at least 2 training samples in each silo")
    return 2


def _freeze_all_but(model: nn.Module, trained: tuple[str, ...]) -> None:
    parameters = dict(model.named_parameters())
    unknown = [name for name in trained if name not in parameters]
    if unknown:
        raise RemoteProtocolError(
            f"global state: trained parameter {unknown[0]} is not in the job's model", code=Refusal.STATE
        )
    for name, parameter in parameters.items():
        parameter.requires_grad_(name in trained)


def _choose_device(device: str) -> torch.device:
    has_gpu = torch.cuda.is_available()
    if device == "cuda" and not has_gpu:
        raise ConfigError("device: cuda is set but torch finds no GPU; allowed here: auto, cpu")
    return torch.device("cuda" if has_gpu and device != "cpu" else "cpu")

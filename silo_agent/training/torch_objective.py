"""The built-in objective: one phase of a job on this silo's data, with torch.

What leaves is what the phase's quantities name, all of it inside one secure sum.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import nn

from chorale.observability.logs import get_logger
from crypto.errors import ConfigError, Refusal, RemoteProtocolError
from silo_agent.objective import Work
from silo_agent.seeding import seeded, shuffler, training_seed
from silo_agent.training.batches import Tensors
from silo_agent.training.contribution import contribution
from silo_agent.training.dp_sgd.model_check import check_keeps_samples_apart
from silo_agent.training.dp_sgd.place_check import Probes, check_answers, one_thread
from silo_agent.training.evaluation import evaluate
from silo_agent.training.local_training import train_locally
from silo_agent.training.models import build_model
from silo_agent.training.models.base import CutModel
from silo_agent.training.models.state import load_arrays
from silo_agent.training.parts import evaluation_loss_for
from silo_agent.training.parts.base import Setting
from silo_agent.training.parts.kept_pass import KeptPass
from silo_agent.training.parts.local_loss import local_loss
from silo_agent.training.parts.own import OWNS, tested_own
from silo_agent.training.parts.personal import personal
from silo_agent.training.parts.statistics import CORRECTIONS, KEEPS, PHASES, TEACHERS, TRAIN_STATISTICS
from strategies.base import Array
from strategies.parts.evaluation import LOSS_CLIP
from strategies.parts.personal import PERSONAL_KIND

log = get_logger("silo_agent.training.torch_objective")


class TorchObjective:
    """Trains, tests and computes statistics in this process, on the GPU where there is one.

    device: auto, cpu or cuda. threads: of one training; more than one per silo on a shared
    machine is slower, not faster.
    """

    def __init__(self, *, device: str = "auto", threads: int = 1) -> None:
        self._device = _choose_device(device)
        self._threads = threads
        self._kept = KeptPass()
        self._earlier = EarlierPhases()

    def compute(self, work: Work) -> Mapping[str, Array]:
        """The quantities of the phase. Raises ConfigError, RemoteProtocolError, Cancelled.

        Deterministic on a CPU: everything random follows from job seed, silo and round. A private job is
        refused before its data are used if the model does not treat each sample by itself.
        """
        computes = self._phases().get(work.phase_kind)
        if computes is None:
            raise ConfigError(f"objective: the built-in training has no phase {work.phase_kind}")
        torch.set_num_threads(self._threads)
        threads = nullcontext() if work.spec.privacy is None else one_thread()
        with threads, seeded(training_seed(job_seed=work.spec.seed, silo=work.silo, round=work.round)):
            received = self._received_model(work)
            setting = Setting(work=work, received=received, device=self._device, kept=self._kept)
            if work.spec.privacy is not None:
                _check_samples_apart(setting)
            started = time.monotonic()
            values = computes(setting)
            self._earlier.add(work, seconds=time.monotonic() - started)
            return values

    def _phases(self) -> Mapping[str, Callable[[Setting], Mapping[str, Array]]]:
        return {"train": self._train, "evaluate": self._evaluate, PERSONAL_KIND: personal, **PHASES}

    def _received_model(self, work: Work) -> CutModel:
        spec = work.spec
        model = build_model(
            spec.model, classes=spec.classes, input_shape=spec.input_shape, recipe=spec.method.recipe
        )
        load_arrays(model, work.state)
        _freeze_all_but(model, work.context.trained)
        return model.to(self._device)

    def _evaluate(self, setting: Setting) -> Mapping[str, Array]:
        holdout = Tensors.of(setting.work.data.holdout, self._device)
        figures = evaluate(
            setting.received,
            holdout,
            loss=evaluation_loss_for(setting),
            is_cancelled=setting.work.is_cancelled,
            loss_clip=None if setting.work.spec.privacy is None else LOSS_CLIP,
        )
        return {**figures.quantities(), **tested_own(setting, figures)}

    def _train(self, setting: Setting) -> Mapping[str, Array]:
        """Test the received model, train it, then compute what the method sums beside."""
        work, model = setting.work, setting.received
        tested = self._evaluate(setting)
        samples = Tensors.of(work.data.train, self._device)
        started = time.monotonic()
        generator = shuffler(training_seed(job_seed=work.spec.seed, silo=work.silo, round=work.round))
        own = OWNS.get(work.spec.method.recipe.own)
        steps = (own.train if own else _train_shared)(setting, samples, generator)
        keeps = KEEPS.get(work.spec.method.recipe.regularizer)
        if keeps is not None:
            keeps(setting)
        trained = time.monotonic()
        statistics = self._statistics(setting, samples)
        if work.spec.method.recipe.statistic is not None:
            earlier, ended = self._earlier.seconds(work), time.monotonic()
            _log_share(work, statistics=earlier + ended - trained, whole=earlier + ended - started)
        return {**contribution(model, work, steps=steps), **tested, **statistics}

    def _statistics(self, setting: Setting, samples: Tensors) -> Mapping[str, Array]:
        statistic = setting.work.spec.method.recipe.statistic
        compute = None if statistic is None else TRAIN_STATISTICS.get(statistic)
        return {} if compute is None else compute(setting, samples)


def _train_shared(setting: Setting, samples: Tensors, generator: torch.Generator) -> int:
    """The received model, in place, where no part of it is the silo's own."""
    work, recipe = setting.work, setting.work.spec.method.recipe
    teacher, correction = TEACHERS.get(recipe.regularizer), CORRECTIONS.get(recipe.server_update)
    loss = local_loss(setting, samples, teacher=None if teacher is None else teacher(setting, samples))
    return train_locally(
        setting.received,
        samples,
        spec=work.spec,
        round=work.round,
        loss=replace(loss, correction=None if correction is None else correction(work)),
        generator=generator,
        is_cancelled=work.is_cancelled,
    )


def _check_samples_apart(setting: Setting) -> None:
    spec = setting.work.spec
    check_keeps_samples_apart(setting.received)
    probes = Probes(input_shape=spec.input_shape, classes=spec.classes, device=setting.device)
    check_answers(setting.received, probes, loss=evaluation_loss_for(setting))


class EarlierPhases:
    """How long the phases of a round took that ran before its training: the last round's alone."""

    def __init__(self) -> None:
        self._round = ("", 0)
        self._seconds = 0.0

    def add(self, work: Work, *, seconds: float) -> None:
        if self._round != _round_of(work):
            self._round, self._seconds = _round_of(work), 0.0
        self._seconds += seconds

    def seconds(self, work: Work) -> float:
        return self._seconds if self._round == _round_of(work) else 0.0


def _round_of(work: Work) -> tuple[str, int]:
    return f"{work.spec.nonce} {work.silo}", work.round


def _log_share(work: Work, *, statistics: float, whole: float) -> None:
    """Units: seconds, without the test of the received model."""
    share = statistics / max(whole, 1e-9)
    log.info("statistics computed", round=work.round, phase=work.phase_kind, share_of_round=round(share, 4))


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

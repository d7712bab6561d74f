"""A silo's personal model: fine-tuned from the final global model, tested on the silo's own hold-out.

strategies/parts/personal.py names the papers and says what is summed and what that leaks. The optimizer
starts
anew, at one rate for all epochs. Where only the head is tuned the body runs once, in eval mode: its features
are what the head learns from, and neither its weights nor its running means move.

N = samples, D = feature width, C = classes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from chorale.observability.logs import get_logger
from chorale.spec.job_spec import JobSpec, ScheduleSpec
from silo_agent.local_storage.personal_models import PersonalModel
from silo_agent.seeding import shuffler, training_seed
from silo_agent.training.batches import Tensors
from silo_agent.training.evaluation import Figures, evaluate
from silo_agent.training.local_training import train_locally
from silo_agent.training.models.base import CutModel
from silo_agent.training.models.state import model_arrays
from silo_agent.training.parts import evaluation_loss_for, loss_for
from silo_agent.training.parts.base import Setting
from silo_agent.training.parts.ffc import feature_sums
from silo_agent.training.parts.local_loss import LocalLoss, local_loss
from silo_agent.training.parts.statistics import TEACHERS
from silo_agent.training.parts.teacher import outputs_of
from strategies.base import Array
from strategies.parts.ffc import RIDGE, FfcOptions, least_squares
from strategies.parts.personal import ACCURACY, SILOS, SQUARE, PersonalOptions, Tuned

HEAD_PREFIX = "head."

log = get_logger("silo_agent.training.parts")


def personal(setting: Setting) -> Mapping[str, Array]:
    """Fine-tune, keep the model, and tell how good it is: accuracy, its square and 1, or three zeros without
    a hold-out. Raises ConfigError, Cancelled."""
    before = _tested(setting)
    fine_tune(setting)
    _tell_diverged(setting)
    after = _tested(setting)
    options = setting.options(PersonalOptions)
    setting.work.keep_personal(
        PersonalModel(
            arrays=model_arrays(setting.received),
            tuned=options.personal_tunes.value,
            epochs=options.personal_epochs,
            learning_rate=fine_tuning(setting.work.spec).training.learning_rate,
            tested=after.tested,
            correct_before=before.correct,
            correct=after.correct,
        )
    )
    return accuracy_sums(after)


def accuracy_sums(figures: Figures) -> dict[str, Array]:
    """Shapes: all (). Units: shares of the hold-out."""
    accuracy = figures.correct / figures.tested if figures.tested else 0.0
    return {
        ACCURACY: np.asarray(accuracy, dtype=np.float64),
        SQUARE: np.asarray(accuracy**2, dtype=np.float64),
        SILOS: np.asarray(int(figures.tested > 0), dtype=np.int64),
    }


def fine_tune(setting: Setting) -> None:
    """Make the received model the silo's own, in place. Raises ConfigError, Cancelled."""
    model, samples = setting.received, Tensors.of(setting.work.data.train, setting.device)
    options = setting.options(PersonalOptions)
    if options.personal_epochs == 0:
        return
    if options.personal_tunes is Tuned.SOLVED_HEAD:
        model.head.weight.data.copy_(_solved_head(setting))
        return
    _take_gradients(model, options.personal_tunes)
    loss = _loss(setting, samples, has_regularizer=options.personal_regularizer)
    if options.personal_tunes is not Tuned.HEAD:
        _train(setting, samples, loss)
        return
    outputs = outputs_of(model, samples, is_cancelled=setting.work.is_cancelled)
    body, model.body = model.body, nn.Identity()
    try:
        _train(setting, Tensors(features=outputs.features_ND, labels=samples.labels), loss)
    finally:
        model.body = body


def fine_tuning(spec: JobSpec) -> JobSpec:
    """The job with the fine-tuning's epochs and rate in the place of a round's."""
    options = spec.method.options_of(PersonalOptions)
    rate = options.personal_learning_rate or spec.learning_rate_at(spec.rounds)
    training = spec.training.model_copy(
        update={
            "local_epochs": options.personal_epochs,
            "learning_rate": rate,
            "schedule": ScheduleSpec(),
        }
    )
    return spec.model_copy(update={"training": training})


def _loss(setting: Setting, samples: Tensors, *, has_regularizer: bool) -> LocalLoss:
    """The method's own, with the final global model where a round has the received one."""
    if not has_regularizer:
        return LocalLoss(loss=loss_for(setting))
    teacher = TEACHERS.get(setting.work.spec.method.recipe.regularizer)
    return local_loss(setting, samples, teacher=None if teacher is None else teacher(setting, samples))


def _train(setting: Setting, samples: Tensors, loss: LocalLoss) -> None:
    work, following = setting.work, setting.work.round + 1  # shuffles of its own, not the last round's
    train_locally(
        setting.received,
        samples,
        spec=fine_tuning(work.spec),
        round=following,
        loss=loss,
        generator=shuffler(training_seed(job_seed=work.spec.seed, silo=work.silo, round=following)),
        is_cancelled=work.is_cancelled,
    )


def _solved_head(setting: Setting) -> Tensor:
    """The head of least squared error over the silo's own samples, ridge as in FFC. Shapes: -> (C, D)."""
    gram_DD, moment_DC = feature_sums(setting)
    ridge = setting.options(FfcOptions).ridge
    solution_DC = least_squares(gram_DD, moment_DC, ridge=RIDGE if ridge is None else ridge)
    return torch.tensor(solution_DC.T, dtype=torch.float32, device=setting.device)


def _take_gradients(model: CutModel, tuned: Tuned) -> None:
    for name, parameter in model.named_parameters():
        is_head = name.startswith(HEAD_PREFIX)
        parameter.requires_grad_(tuned is Tuned.FULL or is_head == (tuned is Tuned.HEAD))


def _tell_diverged(setting: Setting) -> None:
    """In the silo's own log: to refuse would tell the coordinator about one silo's data."""
    if not all(bool(parameter.isfinite().all()) for parameter in setting.received.parameters()):
        log.warning(
            "personal model is not finite",
            round=setting.work.round,
            lower="personal_learning_rate",
        )


def _tested(setting: Setting) -> Figures:
    holdout = Tensors.of(setting.work.data.holdout, setting.device)
    return evaluate(
        setting.received,
        holdout,
        loss=evaluation_loss_for(setting),
        is_cancelled=setting.work.is_cancelled,
    )

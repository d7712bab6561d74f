"""A silo's personal model: fine-tuned from the final global model, tested on the silo's own hold-out.

strategies/parts/closing/fine_tuning.py names the papers and says what is summed and what that leaks. The
optimizer is a new one, at one rate for all epochs. Where only the head is tuned the body runs once, in eval
mode: its features are what the head learns from, and neither its weights nor its running means move.

N = samples, D = feature width, C = classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import torch
from torch import nn

from chorale.observability.logs import get_logger
from chorale.spec.job_spec import JobSpec
from chorale.spec.strategy_spec import ScheduleSpec
from silo_agent.training.base.batches import Batches, Tensors
from silo_agent.training.base.evaluation import Figures, evaluate
from silo_agent.training.base.loss import LocalLoss, SampleLoss
from silo_agent.training.base.setting import Setting
from silo_agent.training.loop.local_training import train_received
from silo_agent.training.machine.seeding import derive_seed, shuffler
from silo_agent.training.models.state import model_arrays
from silo_agent.training.objective import PersonalModel
from silo_agent.training.parts.closing.ffc import feature_sums
from strategies.base import Array
from strategies.parts.closing.ffc import RIDGE, FfcOptions, least_squares
from strategies.parts.closing.fine_tuning import FINE_TUNE, FineTuningOptions, Scope

HEAD_PREFIX = "head."

log = get_logger("silo_agent.training.parts")


class MakesLoss(Protocol):
    """The method's own loss over some samples."""

    def __call__(
        self, setting: Setting, samples: Batches, *, has_regularizer: bool, is_augmented: bool
    ) -> LocalLoss: ...


def fine_tune(setting: Setting, make_loss: MakesLoss, *, tested_by: SampleLoss) -> Mapping[str, Array]:
    """Make the received model the silo's own, keep it, and say how good it is.

    tested_by: the loss of the tests before and after. Raises ConfigError, Cancelled.
    """
    before = _tested(setting, tested_by)
    tune(setting, make_loss)
    if not all(bool(parameter.isfinite().all()) for parameter in setting.received.parameters()):
        # in the silo's own log: to refuse would tell the coordinator about one silo's data
        log.warning("personal model is not finite", round=setting.work.round, lower="fine_tune_learning_rate")
    after = _tested(setting, tested_by)
    options, score = setting.options(FineTuningOptions), setting.work.spec.method.task.score
    tuned = tuning_spec(setting.work.spec)
    setting.work.keep_personal(
        PersonalModel(
            arrays=model_arrays(setting.received),
            tuned=options.fine_tune_scope.value,
            epochs=tuned.training.passes_over(len(setting.work.data.train)),
            learning_rate=tuned.learning_rate_at(1),
            tested=after.tested,
            score_before=score(before.sums),
            score=score(after.sums),
        )
    )
    return after.personal_quantities(score)


def tune(setting: Setting, make_loss: MakesLoss) -> None:
    """The received model, in place. The final global model is the teacher. Raises ConfigError, Cancelled."""
    model, samples = setting.received, setting.train
    options = setting.options(FineTuningOptions)
    scope = options.fine_tune_scope
    if options.fine_tune_epochs == 0:
        return
    if scope is Scope.SOLVED_HEAD:
        # the head of least squared error over the silo's own samples, ridge as in FFC
        gram_DD, moment_DC = feature_sums(setting)
        ridge = setting.options(FfcOptions).ridge
        solution_DC = least_squares(gram_DD, moment_DC, ridge=RIDGE if ridge is None else ridge)
        model.head.weight.data.copy_(torch.tensor(solution_DC.T, dtype=torch.float32, device=setting.device))
        return
    for name, parameter in model.named_parameters():
        is_head = name.startswith(HEAD_PREFIX)
        is_tuned = scope is Scope.FULL or is_head == (scope is Scope.HEAD)
        parameter.requires_grad_(is_tuned and model.shares(name))
    loss = make_loss(
        setting,
        samples,
        has_regularizer=options.fine_tune_regularizer,
        is_augmented=scope is not Scope.HEAD,  # which learns from features that are computed once
    )
    if scope is not Scope.HEAD:
        _train(setting, samples, loss)
        return
    features_ND = setting.outputs_of(model, samples).features_ND
    body, model.body = model.body, nn.Identity()
    try:
        _train(setting, Tensors(features=features_ND, labels=samples.labels), loss)
    finally:
        model.body = body


def tuning_spec(spec: JobSpec) -> JobSpec:
    """The job with the fine-tuning's epochs and rate in the place of a round's."""
    options = spec.method.options_of(FineTuningOptions)
    epochs = options.fine_tune_epochs
    training = (spec.training if epochs is None else spec.training.with_epochs(epochs)).model_copy(
        update={
            "learning_rate": options.fine_tune_learning_rate or spec.learning_rate_at(spec.rounds),
            "schedule": ScheduleSpec(),
        }
    )
    return spec.model_copy(update={"training": training})


def _train(setting: Setting, samples: Batches, loss: LocalLoss) -> None:
    work = setting.work
    tuned = replace(setting, work=replace(work, spec=tuning_spec(work.spec), round=work.round + 1))
    # shuffles of its own: a simulation seeds the last round alike
    train_received(tuned, samples, shuffler(derive_seed(FINE_TUNE, work.seed)), loss)


def _tested(setting: Setting, loss: SampleLoss) -> Figures:
    return evaluate(
        setting.received,
        setting.holdout,
        loss=loss,
        task=setting.task,
        sums=setting.work.spec.method.task.round_sums,
        is_cancelled=setting.work.is_cancelled,
    )

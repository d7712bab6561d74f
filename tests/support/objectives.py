"""One silo's side of a method in float64, small enough to check by hand: models, settings, local rounds.

N = samples, D = feature width, C = classes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from chorale.spec.job_spec import JobSpec
from chorale.spec.state import buffer_names, trained_names
from chorale_models.model import Sizes
from chorale_models.tasks.classification import Classification
from silo_agent.training.base.batches import Tensors
from silo_agent.training.base.evaluation import Figures, evaluate
from silo_agent.training.base.loss import TaskLoss
from silo_agent.training.base.passes import Outputs, run_model
from silo_agent.training.base.setting import Setting
from silo_agent.training.data.base import Samples, SiloData
from silo_agent.training.local_loss import local_loss
from silo_agent.training.loop.local_training import train_locally
from silo_agent.training.machine.seeding import shuffler, training_seed
from silo_agent.training.models.base import FederatedModel
from silo_agent.training.models.starting import initial_state
from silo_agent.training.objective import Work
from strategies.base import Array, PhaseContext
from strategies.parts.heads import RAW, TRAINED
from strategies.recipe import Features, Head
from strategies.tasks.classification import CLASSIFICATION
from tests.support.settings import job_spec

CPU = torch.device("cpu")


def make_job(strategy: dict[str, Any] | None = None, **fields: Any) -> JobSpec:
    """Four silos and an mlp, ten classes of 8 x 8 images; `training` takes over single fields."""
    training = {"local_epochs": 2, "batch_size": 16, **fields.pop("training", {})}
    values = {"strategy": strategy or {"preset": "fedavg"}, "training": training, "seed": 7}
    return job_spec(**values | fields)


def make_data(features: Any, labels: Any, *, holdout: tuple[Any, Any] | None = None) -> SiloData:
    """holdout: features and labels; the training samples where there is none."""
    tested = (features, labels) if holdout is None else holdout
    train_samples, holdout_samples = (
        Samples(features=np.asarray(x, dtype=np.float32), labels=np.asarray(y, dtype=np.int64))
        for x, y in ((features, labels), tested)
    )
    return SiloData(train=train_samples, holdout=holdout_samples, name="test")


def make_work(
    job: JobSpec,
    data: SiloData,
    *,
    state: dict[str, Array] | None = None,
    kind: str = "train",
    round: int = 1,
    trained: tuple[str, ...] | None = None,
    silo: str = "a",
    weight: float = 0.25,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> Work:
    """Parameters are trained as the method says, unless the test does."""
    arrays = initial_state(job) if state is None else state
    together, buffers = job.method.summed(trained_names(arrays), buffer_names(arrays))
    context = PhaseContext(
        round=round,
        members=4,
        classes=job.classes,
        state=arrays,
        trained=together if trained is None else trained,
        buffers=buffers,
        options=job.method.options,
    )
    return Work(
        spec=job,
        phase_kind=kind,
        round=round,
        silo=silo,
        state=arrays,
        context=context,
        data=data,
        weight=weight,
        seed=training_seed(job_seed=job.seed, silo=silo, round=round),
        is_cancelled=is_cancelled,
    )


def make_model(job: JobSpec, body: nn.Module, *, width: int, head_CD: Any = None) -> FederatedModel:
    """The job's method around a backbone of the test's own, in float64."""
    recipe = job.method.recipe
    model = cut_model(
        body, width=width, classes=job.classes, head=recipe.head, features=recipe.features
    ).double()
    if head_CD is not None:
        with torch.no_grad():
            model.head.weight.copy_(torch.as_tensor(np.asarray(head_CD)))
    model.head.requires_grad_(not recipe.head.is_frozen)
    return model


def cut_model(
    body: nn.Module, *, width: int, classes: int, head: Head = TRAINED, features: Features = RAW
) -> FederatedModel:
    """A method's model around a backbone of the test's own, whose parameters are named body.*."""
    network = nn.Sequential(OrderedDict(last=nn.Linear(width, classes)))
    model = FederatedModel(network, cut="last", head=head, features=features)
    model.body = body
    return model


def task_loss(classes: int = 10) -> TaskLoss:
    """Cross-entropy, as the loss of single samples, of answers of any number of classes."""
    task = Classification(Sizes(classes=classes))
    task.answer = None
    return TaskLoss(task)


def figures_of(model: FederatedModel, samples: Tensors, **fields: Any) -> Figures:
    """By cross-entropy: what classification sums."""
    given = {"loss": task_loss(), "task": task_loss().task, "is_cancelled": lambda: False} | fields
    return evaluate(model, samples, sums=CLASSIFICATION.round_sums, **given)


def summed(correct: int, tested: int) -> Figures:
    """What a silo sums of a classification."""
    return Figures(sums={"correct": np.array(correct), "tested": np.array(tested), "loss_sum": np.array(0.0)})


def make_setting(job: JobSpec, model: FederatedModel, data: SiloData) -> Setting:
    return Setting(work=make_work(job, data, state={}), received=model, device=CPU)


class LocalRound:
    """One round at one silo in float64: the loss is bound to the model as it came, training moves it."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self.model = setting.received
        data = setting.work.data.train
        self._samples = Tensors(
            features=torch.tensor(data.features, dtype=torch.float64), labels=torch.tensor(data.labels)
        )
        self.loss = local_loss(setting, self._samples)

    @property
    def teacher(self) -> Outputs:
        """Of a method with one comparison, whose teacher was asked about all samples."""
        (compared,) = self.loss.comparisons
        assert isinstance(compared.teacher, Outputs)
        return compared.teacher

    def mean_loss(self) -> Tensor:
        """Over all samples at the model as it is now, with the weights' penalty. Shapes: -> ()."""
        places_N = torch.arange(len(self._samples))
        inputs, labels_N = self._samples.features, self._samples.labels
        mean = self.loss.per_sample(run_model(self.model, inputs), inputs, labels_N, places_N).mean()
        penalty = self.loss.penalty(self.model)
        return mean if penalty is None else mean + penalty

    def train(self) -> None:
        """The job's local epochs, in place."""
        work = self._setting.work
        train_locally(
            self.model,
            self._samples,
            spec=work.spec,
            round=work.round,
            loss=self.loss,
            generator=shuffler(3),
            is_cancelled=work.is_cancelled,
        )


def simplex(classes: int, width: int) -> Array:
    """The simplex on the first coordinates: U of Eq. 3 is the first columns of the identity. -> (C, D)"""
    stretch = np.sqrt(classes / (classes - 1))
    centering_CC = np.eye(classes) - 1.0 / classes
    return np.asarray(stretch * (np.eye(width)[:, :classes] @ centering_CC).T)


def gradient_by_differences(function: Any, at: Tensor, *, step: float = 1e-6) -> Tensor:
    """Central differences of a scalar function, coordinate by coordinate. Shapes: like `at`."""
    gradient = torch.zeros_like(at)
    for place in range(at.numel()):
        shift = torch.zeros_like(at).view(-1)
        shift[place] = step
        shift = shift.view_as(at)
        gradient.view(-1)[place] = (function(at + shift) - function(at - shift)) / (2 * step)
    return gradient


def gradient_by_backward(function: Any, at: Tensor) -> Tensor:
    """Shapes: like `at`."""
    leaf = at.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(function(leaf), leaf)
    return gradient

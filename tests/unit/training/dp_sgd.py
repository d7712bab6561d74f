"""What tests of DP-SGD train: samples, models, jobs, and randomness that repeats itself."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from chorale.spec.job_spec import JobSpec
from chorale.spec.privacy_spec import RecordsSpec
from crypto.fixed_point.layout import Quantity
from crypto.noise.sensitivity import Noise
from silo_agent.training.base.batches import Tensors
from silo_agent.training.base.loss import LocalLoss
from silo_agent.training.data.base import SiloData
from silo_agent.training.data.loading import load_data
from silo_agent.training.data.settings import DataSettings
from silo_agent.training.dp_sgd.clipping import Clipped, ClippedSums
from silo_agent.training.dp_sgd.micro_batches import Draws, MicroBatches
from silo_agent.training.dp_sgd.records import NoisedGradients
from silo_agent.training.dp_sgd.sample_gradients import SampleGradients
from silo_agent.training.loop.local_training import train_locally
from silo_agent.training.models.base import FederatedModel
from silo_agent.training.models.registry import build_model
from silo_agent.training.models.starting import initial_state
from silo_agent.training.models.state import load_arrays
from silo_agent.training.objective import Work
from strategies.base import Array
from strategies.parts.csd import CSD
from strategies.parts.statistics.logit_prototypes import PROTOTYPES
from strategies.phases.step import GRADIENT
from tests.support import objectives
from tests.support.objectives import cut_model, task_loss

RARE = 1e-9


RECORDS = {"clip_norm": 1.0, "noise_multiplier": 1.0, "sample_rate": 0.25}
CROSS_ENTROPY = LocalLoss(loss=task_loss())


def fixed_random(seed: int = 0) -> Callable[[int], bytes]:
    """In place of the system's generator: other bytes at each call, the same in every run."""
    blocks = (hashlib.sha256(f"{seed} {count}".encode()).digest() for count in range(1 << 20))
    return lambda size: next(blocks)[:size]


class Quiet(Draws):
    """Every record in every step, and no noise."""

    def __init__(self) -> None:
        super().__init__(fixed_random())

    def records(self, count: int, *, rate: float) -> NDArray[np.int64]:
        return np.arange(count)

    def noise(self, count: int) -> NDArray[np.int64]:
        return np.zeros(count, np.int64)


def make_samples(count: int = 12, shape: tuple[int, ...] = (3,), *, seed: int = 1) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    return Tensors(
        features=torch.randn((count, *shape), generator=generator),
        labels=torch.randint(4, (count,), generator=generator),
    )


def make_model(**fields: Any) -> FederatedModel:
    """A linear layer and a head, small enough for numpy."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        body = nn.Sequential(nn.Linear(3, 5), nn.GroupNorm(1, 5))
        return cut_model(body, width=5, classes=4, **fields).train()


def micro_batches(
    samples: Tensors,
    gradients: SampleGradients,
    *,
    draws: Draws | None = None,
    loss: LocalLoss = CROSS_ENTROPY,
    rate: float = RECORDS["sample_rate"],
    **fields: Any,
) -> MicroBatches:
    return MicroBatches(
        samples=samples,
        loss=loss,
        gradients=gradients,
        sample_rate=rate,
        draws=draws or Quiet(),
        is_cancelled=lambda: False,
        **fields,
    )


def gradient_of(
    model: FederatedModel,
    samples: Tensors,
    *,
    draws: Draws | None = None,
    loss: LocalLoss = CROSS_ENTROPY,
    batch: int = 8,
    **fields: Any,
) -> Tensor:
    """What one step writes into the parameters, laid end to end. Shapes: -> (P,)."""
    with SampleGradients(model) as gradients:
        records = RecordsSpec(**(RECORDS | fields))
        batches = micro_batches(samples, gradients, draws=draws, loss=loss, rate=records.sample_rate)
        step = NoisedGradients(batches, records=records, expected_batch=batch)
        step.write(0)
        return torch.cat([parameter.grad.flatten().clone() for parameter in gradients.parameters])


def clipped_sum(rows: list[Tensor], *, count: int, clip_norm: float, clip_units: float) -> Clipped:
    """Of one micro-batch. Shapes: (N, *shape) of each parameter -> (P,)."""
    shapes, device = [each.shape[1:] for each in rows], rows[0].device
    sums = ClippedSums(shapes, clip_norm=clip_norm, clip_units=clip_units, device=device)
    sums.add(rows, count=count)
    return sums.total()


class Released(NoisedGradients):
    """Keeps what is released as the whole numbers that it is."""

    units_P: NDArray[np.int64]

    def _put(self, sum_P: Tensor, *, unit: float) -> None:
        self.units_P = sum_P.numpy()


def released_units(model: FederatedModel, samples: Tensors, draws: Draws | None = None) -> NDArray[np.int64]:
    """At a clip of 1 and a noise multiplier of 1: DEVIATION units are the clip. Shapes: -> (P,)."""
    with SampleGradients(model) as gradients:
        batches = micro_batches(samples, gradients, draws=draws)
        step = Released(batches, records=RecordsSpec(**RECORDS), expected_batch=64)
        step.write(0)
        return step.units_P


def gradients_one_by_one(model: FederatedModel, samples: Tensors) -> Tensor:
    """By autograd, a sample at a time. Shapes: -> (N, P)."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    rows = []
    for place in range(len(samples)):
        x, y = samples.features[place : place + 1], samples.labels[place : place + 1]
        loss = nn.functional.cross_entropy(model(x), y)
        rows.append(torch.cat([part.flatten() for part in torch.autograd.grad(loss, parameters)]))
    return torch.stack(rows)


def privacy(**records: Any) -> dict[str, Any]:
    return {"records": RECORDS | records, "statistics_noise_multiplier": 1.0}


def make_job(**fields: Any) -> JobSpec:
    training = {"local_epochs": 1, **fields.pop("training", {})}
    model = {"name": "mlp", "norm": "group", "hidden": (32,), "seed": 1}
    return objectives.make_job(**{"model": model, "training": training, "privacy": privacy()} | fields)


def strategy_of(parts: dict[str, Any]) -> dict[str, Any]:
    has_logits = parts.get("statistic") == "logit-prototypes"
    return {"parts": parts, "options": {"logit_clip": 10.0} if has_logits else {}}


def all_digits(job: JobSpec) -> SiloData:
    return load_data(DataSettings.model_validate({"format": "digits", "name": "digits"}), job)


def digits(count: int) -> Tensors:
    return Tensors.of(all_digits(make_job()).train.first(count), torch.device("cpu"))


def make_work(job: JobSpec) -> Work:
    """Sixty digits to train on, twenty held out."""
    whole = all_digits(job)
    data = SiloData(train=whole.train.first(60), holdout=whole.holdout.first(20), name="digits")
    state: dict[str, Array] = dict(initial_state(job))
    if job.method.recipe.regularizer is CSD:
        state[PROTOTYPES] = np.random.default_rng(2).normal(size=(10, 10))
    return objectives.make_work(job, data, state=state)


def model_of(job: JobSpec, work: Work | None = None) -> FederatedModel:
    """As the work received it, or with the job's initial weights, everything trained."""
    model = build_model(job.model, classes=job.classes, input_shape=job.input_shape, recipe=job.method.recipe)
    load_arrays(model, initial_state(job) if work is None else work.state)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(work is None or name in work.context.trained)
    return model.train()


def train_on(job: JobSpec, samples: Tensors, *, model: FederatedModel | None = None, **fields: Any) -> int:
    loss: LocalLoss = fields.pop("loss", CROSS_ENTROPY)
    return train_locally(
        model or model_of(job),
        samples,
        spec=job,
        round=1,
        loss=loss,
        generator=torch.Generator(),
        is_cancelled=fields.pop("is_cancelled", lambda: False),
        **({"random": fixed_random()} | fields),
    )


def quantity_of(values: int, *, batch_size: int, scale: float, clip_norm: float = 1.0) -> Quantity:
    return Quantity(
        name=GRADIENT,
        shape=(values,),
        bound=2.0 * batch_size * clip_norm,
        ring_bits=32,
        is_whole_units=True,
        noise=Noise(variance=64.0, scale=scale),
    )


def step_job(**fields: Any) -> JobSpec:
    records = privacy(noise="sum", sample_rate=1.0)
    return make_job(**{"privacy": records, "steps": 5, "spare_steps": 2} | fields)

"""How far one sample moves what a private job sums: no further than its quantity declares."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from silo_agent.training.base.batches import Tensors  # noqa: E402
from silo_agent.training.base.passes import Outputs  # noqa: E402
from silo_agent.training.data.base import Samples  # noqa: E402
from silo_agent.training.parts.regularizers.csd import logit_sums  # noqa: E402
from silo_agent.training.parts.statistics.logit_prototypes import clipped_rows  # noqa: E402
from silo_agent.training.torch_objective import TorchObjective  # noqa: E402
from strategies.tasks.base import LOSS_CLIP  # noqa: E402
from tests.support.objectives import figures_of, make_data, make_job, make_work  # noqa: E402


@dataclass(frozen=True)
class Told:
    """A loss that is told its value for each sample."""

    losses_N: list[float]

    def per_sample(self, outputs: Outputs, labels_N: Tensor) -> Tensor:
        return torch.tensor(self.losses_N)


class Flat(nn.Module):
    def features(self, inputs: Tensor) -> Tensor:
        return inputs

    def logits(self, features_ND: Tensor) -> Tensor:
        return features_ND


def loss_sum(losses: list[float], clip: float | None) -> float:
    samples = Samples(features=np.zeros((len(losses), 2), np.float32), labels=np.zeros(len(losses), np.int64))
    figures = figures_of(
        Flat(),  # type: ignore[arg-type]
        Tensors.of(samples, torch.device("cpu")),
        loss=Told(losses),
        loss_clip=clip,
    )
    return float(figures.sums["loss_sum"])


@pytest.mark.parametrize("odd", [1e30, math.inf, -math.inf, math.nan, -5.0])
def test_one_sample_moves_the_loss_sum_by_no_more_than_the_clip(odd: float) -> None:
    """One NaN would leave the whole sum without a number, and so without a clip."""
    moved = loss_sum([1.0, 2.0, odd], LOSS_CLIP) - loss_sum([1.0, 2.0], LOSS_CLIP)
    assert 0.0 <= moved <= LOSS_CLIP


def test_without_privacy_losses_are_summed_as_they_are() -> None:
    assert loss_sum([1.0, 100.0], None) == 101.0


def test_the_objective_clips_losses_in_private_jobs_alone() -> None:
    data = make_data(1e4 * np.random.default_rng(1).normal(size=(20, 1, 8, 8)), np.arange(20) % 10)
    privacy = {"sums": {"clip_norm": 1.0, "noise_multiplier": 3.0}, "statistics_noise_multiplier": 3.0}
    bare, private = (
        TorchObjective(device="cpu").compute(make_work(make_job(**fields), data, kind="evaluate"))
        for fields in ({}, {"privacy": privacy})
    )
    assert float(private["loss_sum"]) <= 20 * LOSS_CLIP < float(bare["loss_sum"])


@pytest.mark.parametrize("odd", [[3.0, 4.0], [3e30, 4e30], [math.nan, 1.0], [math.inf, 0.0], [0.0, 0.0]])
def test_one_sample_moves_the_logit_sums_by_no_more_than_the_clip(odd: list[float]) -> None:
    logits_NC = torch.tensor([[1.0, -1.0], odd])
    labels_N = torch.tensor([0, 1])
    sums_CC = logit_sums(clipped_rows(logits_NC, 2.0), labels_N, classes=2)
    assert float(torch.linalg.vector_norm(sums_CC[1])) <= 2.0 * (1 + 1e-12)
    assert sums_CC[0].tolist() == [1.0, -1.0]  # a short row stays as it is


def test_without_a_clip_logits_stay_as_they_are() -> None:
    logits_NC = torch.tensor([[3e30, 4.0]])
    assert clipped_rows(logits_NC, None) is logits_NC

"""In a private job no record's answer or gradient depends on the others: batches of one shape, places tried.

The weights here nearly cancel: what kernels round differently by the shape of a batch becomes another answer.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from chorale.spec.privacy_spec import RecordsSpec
from chorale_models.model import Sizes
from chorale_models.networks.plain import mlp
from crypto.errors import ConfigError
from silo_agent.training.base.batches import Tensors
from silo_agent.training.base.evaluation import Figures
from silo_agent.training.base.loss import LocalLoss
from silo_agent.training.base.passes import outputs_of, run_model
from silo_agent.training.base.setting import Setting
from silo_agent.training.data.base import Samples
from silo_agent.training.dp_sgd.checks import (
    Probes,
    check_answers,
    check_gradients,
    check_keeps_samples_apart,
)
from silo_agent.training.dp_sgd.records import NoisedGradients
from silo_agent.training.dp_sgd.sample_gradients import SampleGradients
from silo_agent.training.models.base import FederatedModel
from silo_agent.training.models.registry import build_model
from silo_agent.training.parts.closing.ffc import calibrate
from silo_agent.training.parts.statistics.soft_labels import probability_sums, soft_labels
from silo_agent.training.torch_objective import TorchObjective, contribution
from strategies.base import Array
from strategies.parts import heads
from strategies.parts.closing.ffc import UNIT_ROUNDING
from strategies.tasks.base import LOSS_CLIP, Target
from tests.support.objectives import cut_model, figures_of, task_loss
from tests.unit.training.dp_sgd import make_job, make_work, micro_batches

CPU = torch.device("cpu")
HUGE = 1e6


def cancelling(outputs: int, inputs: int, *, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Two layers, the second of which is exactly zero of the first: c and -c of equal units. Shapes:
    (inputs, 64), (outputs, inputs)."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(inputs, generator=generator)
    half_KD = torch.rand(inputs // 2, 64, generator=generator)
    weight_OK = torch.rand(outputs, inputs // 2, generator=generator) * HUGE
    return torch.cat([half_KD, half_KD])[order], torch.cat([weight_OK, -weight_OK], dim=1)[:, order]


def rounding_classifier(width: int = 1024) -> FederatedModel:
    """Its decision is the rounding of a sum whose value is zero."""
    model = FederatedModel(
        mlp(Sizes(classes=2, input_shape=(64,)), hidden=(width,)), cut="head", head=heads.TRAINED
    )
    first, second = cancelling(1, width)
    load(model, {"body.1": first, "head": torch.cat([torch.zeros_like(second), second])})
    return model


def rounding_features(hidden: int = 1024, width: int = 130) -> FederatedModel:
    """Its unit features are roundings."""
    backbone = mlp(Sizes(classes=2, input_shape=(64,)), hidden=(hidden, width))
    model = FederatedModel(backbone, cut="head", head=heads.TRAINED_UNBIASED, features=heads.UNIT)
    first, second = cancelling(width, hidden)
    names = [name.removesuffix(".weight") for name, _ in model.body.named_parameters() if "weight" in name]
    load(model, {f"body.{names[0]}": first, f"body.{names[1]}": second})
    return model


def rounding_gradients(hidden: int = 1025, width: int = 130) -> FederatedModel:
    """One unit of an odd layer is idle: the last samples of a small batch round otherwise than the others."""
    backbone = mlp(Sizes(classes=2, input_shape=(64,)), hidden=(hidden, width))
    model = FederatedModel(backbone, cut="head", head=heads.TRAINED)
    first, second = cancelling(width, hidden - 1)
    names = [name.removesuffix(".weight") for name, _ in model.body.named_parameters() if "weight" in name]
    signs = torch.ones(width)
    signs[width // 2 :] = -1.0
    load(
        model,
        {
            f"body.{names[0]}": nn.functional.pad(first, (0, 0, 0, 1)),
            f"body.{names[1]}": nn.functional.pad(second, (0, 1)),
            "head": torch.stack([torch.zeros(width), signs]),
        },
    )
    return model


def load(model: FederatedModel, weights: Mapping[str, Tensor]) -> None:
    layers = dict(model.named_modules())
    with torch.no_grad():
        for name, weight in weights.items():
            layer = layers[name]
            assert isinstance(layer, nn.Linear)
            layer.weight.copy_(weight)
            if layer.bias is not None:
                layer.bias.zero_()


def inputs_of(count: int, seed: int) -> Tensor:
    return torch.rand(count, 64, generator=torch.Generator().manual_seed(seed))


def figures_over(model: FederatedModel, samples: Tensors, count: int) -> Figures:
    first = Tensors(features=samples.features[:count], labels=samples.labels[:count])
    return figures_of(model, first, loss_clip=LOSS_CLIP)


def private_setting(model: FederatedModel, samples: Samples) -> Any:
    """What calibrate looks at of a private job."""
    work = SimpleNamespace(spec=SimpleNamespace(privacy=object()), is_cancelled=lambda: False)
    return SimpleNamespace(
        received=model, device=CPU, work=work, is_private=True, weight_steps=1, train=Tensors.of(samples, CPU)
    )


def calibrated(model: FederatedModel, inputs: Tensor) -> Mapping[str, Array]:
    labels_N = np.arange(len(inputs)) % 2
    return calibrate(private_setting(model, Samples(features=inputs.numpy(), labels=labels_N)))


class TestOneRecordMore:
    @pytest.mark.parametrize("count", [3, 35])
    def test_moves_no_other_record_of_the_holdout(self, count: int) -> None:
        model = rounding_classifier().eval()
        for seed in range(8):
            features = inputs_of(count + 1, seed)
            with torch.no_grad():  # labels that are right in a batch of the smaller size
                labels = (model(features[:count])[:, 1] > 0).long()
            samples = Tensors(features=features, labels=torch.cat([labels, labels[:1]]))
            less, more = (figures_over(model, samples, each) for each in (count, count + 1))
            assert 0 <= int(more.sums["correct"] - less.sums["correct"]) <= 1
            assert abs(float(more.sums["loss_sum"] - less.sums["loss_sum"])) <= LOSS_CLIP

    @pytest.mark.parametrize("count", [3, 35])
    def test_moves_what_ffc_sums_by_its_own_length(self, count: int) -> None:
        model = rounding_features()
        for seed in range(3):
            inputs = inputs_of(count + 1, seed)
            less, more = calibrated(model, inputs[:count]), calibrated(model, inputs)
            for name in ("gram", "moment"):
                assert np.linalg.norm(more[name] - less[name]) <= 1.0 + UNIT_ROUNDING

    @pytest.mark.parametrize("batch_size", [2, 3, 32])
    def test_moves_the_clipped_sum_by_the_clip_whatever_the_batch_size(self, batch_size: int) -> None:
        model = rounding_gradients()
        inputs = inputs_of(61, 3)
        labels = torch.arange(61) % 2

        def summed(start: int) -> Tensor:
            with SampleGradients(model.train()) as gradients:
                samples = Tensors(features=inputs[start:].clone(), labels=labels[start:])
                step = NoisedGradients(
                    micro_batches(samples, gradients, loss=LocalLoss(loss=task_loss())),
                    records=RecordsSpec(clip_norm=1.0, noise_multiplier=1.0, sample_rate=1.0),
                    expected_batch=batch_size,
                )
                step.write(0)
                grads = [parameter.grad for parameter in gradients.parameters]
            return torch.cat([grad.flatten().double() for grad in grads if grad is not None]) * batch_size

        assert float((summed(0) - summed(1)).norm()) <= 1.0 + 1e-6

    def test_every_pass_has_one_shape(self) -> None:
        seen: list[tuple[int, ...]] = []
        model = rounding_classifier()
        model.body.register_forward_pre_hook(lambda _, given: seen.append(tuple(given[0].shape)))
        samples = Tensors(features=inputs_of(35, 1), labels=torch.zeros(35, dtype=torch.int64))
        figures_over(model, samples, 35)
        outputs_of(partial(run_model, model), samples, is_cancelled=lambda: False, is_private=True)
        assert seen == [(32, 64)] * 4

    @pytest.mark.parametrize("batch_size", [1, 2, 500])
    def test_a_micro_batch_is_the_same_whatever_the_job_says(
        self, batch_size: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[tuple[int, int]] = []
        original = SampleGradients.of

        def noted(self: SampleGradients, loss: LocalLoss, inputs: Tensor, *rest: Tensor) -> list[Tensor]:
            seen.append((len(inputs), torch.get_num_threads()))
            return original(self, loss, inputs, *rest)

        monkeypatch.setattr(SampleGradients, "of", noted)
        job = make_job(training={"batch_size": batch_size})
        TorchObjective(device="cpu", threads=2).compute(make_work(job))
        assert set(seen) == {(32, 1)}


class AddsItsPlace(nn.Module):
    def __init__(self, *, size: float = 1.0, only_first: bool = False) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 5)
        self.size, self.only_first = size, only_first

    def forward(self, inputs: Tensor) -> Tensor:
        features_ND = self.layer(inputs.flatten(1))
        places_N1 = torch.arange(len(inputs), dtype=torch.float32)[:, None]
        if self.only_first:
            places_N1 = (places_N1 < 1).float()
        return torch.relu(features_ND + self.size * places_N1)


class Scaled(nn.Module):
    """Looks at the other records."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 5)

    def forward(self, inputs: Tensor) -> Tensor:
        features_ND: Tensor = self.layer(inputs.flatten(1))
        return features_ND / features_ND.abs().max()


def model_with(body: nn.Module) -> FederatedModel:
    return cut_model(body, width=5, classes=10)


def probes() -> Probes:
    return Probes(input_shape=(1, 8, 8), target=Target(is_whole=True, low=0, high=9), device=CPU)


BODIES = [AddsItsPlace(), AddsItsPlace(size=1e-5), AddsItsPlace(only_first=True), Scaled()]


class TestPlaces:
    @pytest.mark.parametrize("body", BODIES)
    def test_a_model_in_which_a_place_shows_is_refused(self, body: nn.Module) -> None:
        with pytest.raises(ConfigError, match="answer to a sample depends on its place in the batch"):
            check_answers(model_with(body), probes(), loss=task_loss())
        with pytest.raises(ConfigError, match="gradient of a sample depends on its place in the batch"):
            check_gradients(model_with(body), probes(), loss=LocalLoss(loss=task_loss()))

    def test_weights_under_which_all_probes_are_silent_do_not_hide_it(self) -> None:
        model = model_with(AddsItsPlace())
        with torch.no_grad():
            for parameter in model.body.parameters():
                parameter.fill_(-1e4 if parameter.dim() == 1 else 0.0)
        with pytest.raises(ConfigError, match="depends on its place"):
            check_answers(model, probes(), loss=task_loss())

    @pytest.mark.parametrize("kind", ["train", "evaluate"])
    def test_no_phase_of_it_uses_data(self, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        work = dataclasses.replace(make_work(make_job()), phase_kind=kind, data=None)  # type: ignore[arg-type]
        monkeypatch.setattr(TorchObjective, "_received_model", lambda *_: model_with(AddsItsPlace()))
        with pytest.raises(ConfigError, match="depends on its place"):
            TorchObjective(device="cpu").compute(work)

    @pytest.mark.parametrize("name", ["mlp", "cnn"])
    def test_models_of_ours_pass_and_stay_as_they_were(self, name: str) -> None:
        job = make_job(model={"name": name, "norm": "group", "seed": 1})
        model = build_model(
            job.model, classes=job.classes, input_shape=job.input_shape, recipe=job.method.recipe
        )
        before = {name: value.clone() for name, value in model.state_dict().items()}
        check_answers(model, probes(), loss=task_loss())
        check_gradients(model, probes(), loss=LocalLoss(loss=task_loss()))
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())

    def test_probes_are_others_each_time(self) -> None:
        assert not torch.equal(probes().inputs, probes().inputs)

    def test_threads_are_as_before_afterwards(self) -> None:
        before = torch.get_num_threads()
        TorchObjective(device="cpu", threads=before).compute(make_work(make_job()))
        assert torch.get_num_threads() == before

    @pytest.mark.parametrize("layer", [nn.Dropout(0.1), nn.Dropout2d(0.1), nn.AlphaDropout(0.1)])
    def test_dropout_is_refused(self, layer: nn.Module) -> None:
        with pytest.raises(ConfigError, match="is a dropout"):
            check_keeps_samples_apart(nn.Sequential(nn.Linear(2, 2), layer))

    def test_dropout_that_is_no_layer_shows_in_the_gradients(self) -> None:
        class Hidden(AddsItsPlace):
            def forward(self, inputs: Tensor) -> Tensor:
                return nn.functional.dropout(self.layer(inputs.flatten(1)), 0.5, self.training)

        with pytest.raises(ConfigError, match="gradient of a sample depends"):
            check_gradients(model_with(Hidden()), probes(), loss=LocalLoss(loss=task_loss()))


class TestOddRecords:
    def test_a_feature_that_is_no_number_counts_as_zero(self) -> None:
        model = cut_model(
            nn.Identity(),
            width=3,
            classes=2,
            head=heads.TRAINED_UNBIASED,
            features=heads.UNIT,
        )
        inputs = torch.tensor([[1.0, 2.0, 2.0], [math.nan, 1.0, 1.0], [math.inf, 1.0, 1.0], [0.0, 3.0, 4.0]])
        found = calibrated(model, inputs)
        alone = calibrated(model, torch.cat([inputs[:1], torch.zeros(2, 3), inputs[3:]]))
        for name, values in found.items():
            np.testing.assert_array_equal(values, alone[name])
            assert np.isfinite(values).all()

    @pytest.mark.parametrize("width, scales", [(64, 40), (4096, 5)])
    def test_a_unit_feature_is_no_longer_than_1(self, width: int, scales: int) -> None:
        model = cut_model(
            nn.Identity(),
            width=width,
            classes=2,
            head=heads.TRAINED_UNBIASED,
            features=heads.UNIT,
        )
        lengths = [
            float(np.linalg.norm(calibrated(model, scale * torch.ones(1, width))["moment"]))
            for scale in np.linspace(0.1, 1.0, scales).tolist()
        ]
        assert max(lengths) <= 1.0 + 1e-12
        assert min(lengths) > 1.0 - 1e-4

    @pytest.mark.parametrize("odd", [math.nan, math.inf])
    def test_an_answer_that_is_no_number_counts_as_zero(self, odd: float) -> None:
        logits_NC, labels_N = torch.tensor([[0.0, 0.0], [odd, 1.0]]), torch.tensor([0, 1])
        sums_CC = probability_sums(
            logits_NC, labels_N, weights_N=torch.ones(len(labels_N)), classes=2, is_private=True
        )
        assert sums_CC.tolist() == [[0.5, 0.5], [0.0, 0.0]]

    def test_soft_labels_of_a_private_job_are_always_finite(self) -> None:
        work = make_work(make_job())
        model = model_with(AddsItsPlace(size=0.0))
        with torch.no_grad():
            model.head.weight.fill_(math.nan)
        samples = Tensors.of(work.data.train, CPU)
        sums = soft_labels(Setting(work=work, received=model, device=CPU), samples)
        assert (np.asarray(sums["soft_labels"]) == 0.0).all()

    @pytest.mark.parametrize("odd", [math.nan, math.inf])
    def test_an_update_that_overflowed_is_zero_under_sums_alone(self, odd: float) -> None:
        sums = {"sums": {"clip_norm": 1.0, "noise_multiplier": 1.0}, "statistics_noise_multiplier": 1.0}
        for privacy, is_hidden in ((sums, True), (None, False)):
            work = make_work(make_job(privacy=privacy))
            model = TorchObjective(device="cpu")._received_model(work)
            with torch.no_grad():
                next(iter(model.parameters())).view(-1)[0] = odd
                model.head.weight.add_(1.0)
            delta_P = np.asarray(contribution(model, work, steps=1)["delta"])
            assert bool((delta_P == 0.0).all()) == is_hidden

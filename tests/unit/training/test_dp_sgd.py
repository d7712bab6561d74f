"""Training by DP-SGD at a silo: who is drawn, a divisor that is no count, every model and part.

Statistical tests draw under a fixed key, so they pass or fail for good. RARE is the probability with which
each would fail for a right sampler under a fresh key.
"""

from __future__ import annotations

import copy
import math
import re
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from crypto.errors import ConfigError
from silo_agent.training.base.batches import Tensors
from silo_agent.training.base.loss import LocalLoss
from silo_agent.training.base.passes import outputs_of, run_model
from silo_agent.training.base.setting import Setting
from silo_agent.training.dp_sgd.micro_batches import Draws
from silo_agent.training.dp_sgd.outer_products import materialized
from silo_agent.training.dp_sgd.sample_gradients import SampleGradients
from silo_agent.training.local_loss import local_loss
from silo_agent.training.models.base import FederatedModel
from silo_agent.training.models.registry import OWN
from silo_agent.training.objective import Cancelled
from silo_agent.training.torch_objective import TorchObjective
from strategies.declared_parts import PARTS
from strategies.parts.heads import FROZEN_ETF, PROJECTED_UNIT
from strategies.presets import FEDAVG, PRESETS
from tests.support.objectives import cut_model, figures_of, task_loss
from tests.support.soak import cases
from tests.unit.training.dp_sgd import (
    RARE,
    RECORDS,
    all_digits,
    digits,
    fixed_random,
    gradient_of,
    gradients_one_by_one,
    make_job,
    make_model,
    make_samples,
    make_work,
    model_of,
    privacy,
    strategy_of,
    train_on,
)


class TestSampling:
    def test_each_record_is_drawn_by_itself_with_the_rate(self) -> None:
        """Binomial counts of steps and of records, and no correlation from step to step."""
        draws, rate, size, steps = Draws(fixed_random(4)), 0.07, 500, 2000
        drawn = np.zeros((steps, size), bool)
        for step in range(steps):
            drawn[step, draws.records(size, rate=rate)] = True
        total = int(drawn.sum())
        assert stats.binomtest(total, drawn.size, rate).pvalue > RARE / 4
        for counts, trials in ((drawn.sum(axis=1), size), (drawn.sum(axis=0), steps)):
            variance = trials * rate * (1 - rate)
            spread = float(((counts - trials * rate) ** 2).sum() / variance)
            # binomials of these sizes are near enough to normal at RARE / 8
            assert min(stats.chi2.cdf(spread, counts.size), stats.chi2.sf(spread, counts.size)) > RARE / 8
        both = int((drawn[1:] & drawn[:-1]).sum())
        assert abs(both - rate**2 * drawn[1:].size) < 7 * math.sqrt(drawn.size) * rate

    def test_rates_of_one_and_of_nearly_nothing(self) -> None:
        draws = Draws(fixed_random())
        assert draws.records(9, rate=1.0).tolist() == list(range(9))
        assert draws.records(1000, rate=1e-18).size == 0
        assert draws.records(0, rate=0.5).size == 0

    def test_gradient_is_divided_by_the_expected_batch_not_by_who_came(self) -> None:
        model, samples = make_model(), make_samples(1)
        twice = Tensors(features=samples.features.repeat(2, 1), labels=samples.labels.repeat(2))
        torch.testing.assert_close(gradient_of(model, twice), 2 * gradient_of(model, samples))
        torch.testing.assert_close(gradient_of(model, samples, batch=2), 4 * gradient_of(model, samples))

    @pytest.mark.parametrize("count", [0, 3, 200])
    def test_steps_are_the_jobs_whatever_a_silo_holds(self, count: int) -> None:
        job = make_job(training={"local_epochs": 3}, privacy=privacy(sample_rate=0.4))
        assert train_on(job, digits(count)) == 8  # 3 / 0.4, rounded up

    def test_training_stops_between_batches(self) -> None:
        with pytest.raises(Cancelled, match="training: no longer wanted"):
            train_on(make_job(), digits(40), is_cancelled=lambda: True)


class Slope:
    """A penalty whose gradient is the same number for every weight of the head."""

    def penalty(self, model: FederatedModel) -> Tensor:
        return model.head.weight.sum()

    def add_gradient(self, model: FederatedModel, *, weight: float) -> None:
        torch.autograd.backward(weight * self.penalty(model))


class TestPenalty:
    def test_gradient_of_the_weights_is_added_exact_after_the_noise(self) -> None:
        """Per sample it would be clipped away; scaled by the batch it would not be 1000."""
        job = make_job(
            training={"local_epochs": 1, "momentum": 0.0, "learning_rate": 0.5},
            privacy=privacy(sample_rate=1.0, clip_norm=1e-3),
        )
        plain, steep = model_of(job), model_of(job)
        train_on(job, digits(30), model=plain)
        loss = LocalLoss(loss=task_loss(), penalties=((1000.0, Slope()),))
        train_on(job, digits(30), model=steep, loss=loss)
        apart = dict(steep.named_parameters())
        for name, parameter in plain.named_parameters():
            expected = -500.0 if name == "head.weight" else 0.0
            torch.testing.assert_close(
                apart[name] - parameter, torch.full_like(parameter, expected), rtol=1e-6, atol=1e-6
            )

    def test_weight_decay_is_post_processing(self) -> None:
        job = make_job(
            training={"local_epochs": 1, "momentum": 0.0, "learning_rate": 0.5, "weight_decay": 0.1},
            privacy=privacy(sample_rate=1.0, noise_multiplier=1e-3, clip_norm=1e-6),
        )
        model = model_of(job)
        before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        train_on(job, digits(30), model=model)
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.detach(), 0.95 * before[name], rtol=1e-6, atol=1e-6)


class Stretched(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.linspace(0.5, 2.0, width))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.factor


class TestModel:
    @pytest.mark.parametrize(
        "of_job", [{"records": RECORDS}, {"sums": {"clip_norm": 1.0, "noise_multiplier": 1.0}}]
    )
    def test_batch_normalization_is_refused_at_the_silo_too(self, of_job: dict[str, Any]) -> None:
        job = make_job(privacy=of_job | {"statistics_noise_multiplier": 1.0})
        body = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8))
        model = cut_model(body, width=8, classes=10)
        with pytest.raises(ConfigError, match="body.2 is a batch normalization, .* needs norm: group"):
            train_on(job, digits(20), model=model)

    def test_a_buffer_is_refused(self) -> None:
        model = make_model()
        model.body.register_buffer("mean", torch.zeros(3))
        with pytest.raises(ConfigError, match="model: body keeps a buffer, mean, which no noise covers"):
            train_on(make_job(), digits(20), model=model)

    @pytest.mark.parametrize("name", cases({name: name for name in OWN}, always=["mlp", "cnn"]))
    def test_every_backbone_trains_with_group_normalization(self, name: str) -> None:
        smallest = {"lenet": 16, "lenet_linear": 16, "alexnet": 63}.get(name, 8)
        size, samples = (smallest, smallest), digits(2)
        model = model_of(make_job(model={"name": name, "norm": "group", "seed": 1}, input_shape=(1, *size)))
        samples = replace(samples, features=nn.functional.interpolate(samples.features, size))
        gradient_P = gradient_of(model, samples, clip_norm=1e3, noise_multiplier=1e-3, batch=2)
        expected_P = gradients_one_by_one(model, samples).sum(dim=0) / 2
        # float32 through twenty layers, another order of adding up
        assert (gradient_P - expected_P).norm() < 1e-3 * expected_P.norm()

    def test_model_is_as_it_was_afterwards(self) -> None:
        model = make_model(features=PROJECTED_UNIT, head=FROZEN_ETF)
        names = dict(model.__dict__)
        gradient_of(model, make_samples())
        assert set(model.__dict__) == set(names)
        assert all(not layer._forward_hooks and not layer._backward_hooks for layer in model.modules())
        assert model.scale is not None
        assert model.scale.requires_grad
        copy.deepcopy(model)(torch.zeros(1, 3)).sum().backward()

    def test_frozen_parameters_take_none(self) -> None:
        model, samples = make_model(), make_samples()
        model.body.requires_grad_(False)
        rows_NP = gradients_one_by_one(model, samples)
        assert rows_NP.shape == (12, 24)
        found_P = gradient_of(model, samples, clip_norm=1e2, noise_multiplier=1e-3)
        torch.testing.assert_close(found_P, rows_NP.sum(dim=0) / 8, rtol=1e-4, atol=1e-6)

    def test_the_scale_of_projected_features_has_a_gradient_by_sample(self) -> None:
        model, samples = make_model(features=PROJECTED_UNIT, head=FROZEN_ETF), make_samples()
        assert model.scale is not None
        rows_NP = gradients_one_by_one(model, samples)
        norm_N = rows_NP.norm(dim=1)
        clip = float(norm_N.median())
        expected_P = (rows_NP * (clip / norm_N).clamp(max=1.0)[:, None]).sum(dim=0) / 8
        torch.testing.assert_close(
            gradient_of(model, samples, clip_norm=clip), expected_P, rtol=1e-4, atol=1e-6
        )

    def test_unit_features_pass_through_a_vectorized_gradient(self) -> None:
        """Of a layer that no hook knows: torch vectorizes no function that states its own gradient."""
        body, samples = nn.Sequential(nn.Linear(3, 5), Stretched(5)), make_samples()
        model = cut_model(body, width=5, classes=4, features=PROJECTED_UNIT, head=FROZEN_ETF).train()
        found_P = gradient_of(model, samples, clip_norm=1e2, noise_multiplier=1e-3)
        expected_P = gradients_one_by_one(model, samples).sum(dim=0) / 8
        torch.testing.assert_close(found_P, expected_P, rtol=1e-4, atol=1e-5)


UNIT = {"head": "frozen-etf", "features": "unit", "loss": "dot-regression"}
UNBIASED = {"head": "trained-unbiased", "regularizer": "soft-labels"}
ALLOWED: list[dict[str, Any]] = [
    {},
    {"server_update": "fedopt"},
    {"server_update": "fedexp"},
    {"server_update": "fednova"},
    {"head": "frozen-orthonormal", "features": "unit", "loss": "sphere-mse"},
    {"head": "frozen-orthonormal", "features": "unit", "loss": "scaled-softmax"},
    {"head": "frozen-etf", "features": "projected-unit"},
    UNIT,
    {"regularizer": "prox"},
    {"regularizer": "moon"},
    {"regularizer": "kd"},
    {"regularizer": "gkd"},
    {"regularizer": "ntd"},
    {"regularizer": "ld"},
    {**UNIT, "regularizer": "fd", "mix": "convex"},
    {**UNBIASED, "statistic": "soft-labels"},
    {"regularizer": "csd", "statistic": "logit-prototypes"},
    {"regularizer": "class-distillation", "statistic": "soft-labels"},
    {**UNBIASED, "second_regularizer": "ntd", "statistic": "soft-labels"},
]
UNCLIPPABLE = ("balanced-softmax", "client-adapted")
REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"loss": "balanced-softmax"},
        "strategy.loss: balanced-softmax weighs every sample by the silo's class",
    ),
    (
        {"head": "frozen-etf", "loss": "client-adapted"},
        "strategy.loss: client-adapted weighs every sample by the silo's class counts",
    ),
    (
        {
            "regularizer": "feature-prototypes",
            "statistic": "feature-prototypes",
            "personalization": "alone",
        },
        "strategy.regularizer: feature-prototypes sums features, which have no bound of their own",
    ),
    (
        {"server_update": "scaffold"},
        "strategy.server_update: scaffold keeps a silo's gradients without noise",
    ),
]


class TestParts:
    @pytest.mark.parametrize(
        "parts", ALLOWED, ids=lambda parts: " ".join(str(part) for part in parts.values())
    )
    def test_one_private_round_moves_the_model(self, parts: dict[str, Any]) -> None:
        job = make_job(strategy=strategy_of(parts))
        work = make_work(job)
        values = dict(TorchObjective(device="cpu").compute(work))
        assert all(np.isfinite(value).all() for value in values.values())
        assert np.count_nonzero(values["delta"]) == values["delta"].size

    @pytest.mark.parametrize(
        "parts", ALLOWED, ids=lambda parts: " ".join(str(part) for part in parts.values())
    )
    def test_no_loss_mixes_samples(self, parts: dict[str, Any]) -> None:
        """Then clipping each one's gradient bounds what one record moves."""
        job = make_job(strategy=strategy_of(parts))
        work = make_work(job)
        setting = Setting(work=work, received=model_of(job, work), device=torch.device("cpu"))
        samples = Tensors.of(work.data.train, torch.device("cpu"))
        loss = local_loss(setting, samples)
        student = model_of(job, work)
        with torch.no_grad():  # away from its teacher, or distances have no gradient
            for parameter in student.parameters():
                if parameter.requires_grad:
                    parameter.add_(0.05 * parameter.abs().mean() * torch.sign(parameter))
        places_N = torch.tensor([4, 9, 17, 30])
        with SampleGradients(student.train()) as gradients:
            batch = gradients.of(loss, samples.features[places_N], samples.labels[places_N], places_N)
            together_NP = torch.cat([materialized(each).flatten(1) for each in batch], dim=1)
            for row, place in enumerate(places_N):
                features, labels = samples.features[place[None]], samples.labels[place[None]]
                alone = gradients.of(loss, features, labels, place[None])
                alone_P = torch.cat([materialized(each).flatten() for each in alone])
                assert alone_P.norm() > 0
                torch.testing.assert_close(together_NP[row], alone_P, rtol=1e-3, atol=1e-5)

    def test_a_teachers_answer_does_not_tell_how_many_samples_there_are(self) -> None:
        model, samples = model_of(make_job()), digits(40)
        whole = outputs_of(partial(run_model, model), samples, is_cancelled=lambda: False, is_private=True)
        for count in (1, 3, 39):
            some = outputs_of(
                partial(run_model, model), digits(count), is_cancelled=lambda: False, is_private=True
            )
            assert some.logits_NC.shape == (count, 10)
            assert torch.equal(some.logits_NC, whole.logits_NC[:count])
            assert torch.equal(some.features_ND, whole.features_ND[:count])

    @pytest.mark.parametrize(("parts", "reason"), REFUSED)
    def test_a_part_that_mixes_samples_is_refused(self, parts: dict[str, Any], reason: str) -> None:
        with pytest.raises(ValueError, match=reason):
            make_job(strategy=strategy_of(parts))

    def test_every_part_of_training_is_tried(self) -> None:
        tried = [*ALLOWED, *(parts for parts, _ in REFUSED)]
        for field in ("loss", "regularizer", "server_update"):
            default = getattr(FEDAVG, field).word
            assert {parts.get(field, default) for parts in tried} == {part.word for part in PARTS[field]}

    @pytest.mark.parametrize("preset", PRESETS)
    def test_every_preset_is_trained_or_refused_for_the_part_that_may_not(self, preset: str) -> None:
        strategy = {"preset": preset, "options": {"logit_clip": 10.0} if preset == "fedcsd" else {}}
        refusals = [
            part.under_privacy.records for part in PRESETS[preset].parts.values() if part.under_privacy
        ]
        assert (PRESETS[preset].loss.word in UNCLIPPABLE) <= any(refusals)
        if any(refusals):
            refusal = re.escape(next(filter(None, refusals)))
            with pytest.raises(ValueError, match=rf"{refusal} \(privacy.records\)"):
                make_job(strategy=strategy)
        else:
            assert make_job(strategy=strategy).privacy is not None


class TestTogether:
    def test_digits_are_learned_under_moderate_noise(self) -> None:
        """epsilon is about 4 at delta 1e-5; chance would be 0.1."""
        job = make_job(
            training={"local_epochs": 12, "batch_size": 96, "learning_rate": 0.5, "momentum": 0.5},
            privacy=privacy(noise_multiplier=1.5, sample_rate=96 / 1437),
        )
        model, data = model_of(job), all_digits(job)
        train_on(job, Tensors.of(data.train, torch.device("cpu")), model=model)
        holdout = Tensors.of(data.holdout, torch.device("cpu"))
        figures = figures_of(model, holdout)
        assert int(figures.sums["correct"]) / figures.tested > 0.75

    def test_same_keys_give_the_same_round(self) -> None:
        """What is random in a round are the two keys and nothing else."""
        job = make_job()
        models = [model_of(job) for _ in range(3)]
        for model, seed in zip(models, (5, 5, 6), strict=True):
            train_on(job, digits(60), model=model, random=fixed_random(seed))
        first, same, other = ([p.detach().numpy() for p in model.parameters()] for model in models)
        assert all(np.array_equal(a, b) for a, b in zip(first, same, strict=True))
        assert not any(np.array_equal(a, b) for a, b in zip(first, other, strict=True))

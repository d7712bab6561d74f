"""FedETF's balanced softmax on a unit projection, and FedGELA's client-adapted logits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from chorale.spec.job_spec import JobSpec
from chorale.spec.plug_in_specs import ModelSpec
from chorale.spec.state import trained_names
from silo_agent.training.base.loss import SampleLoss, TaskLoss
from silo_agent.training.data.base import SiloData
from silo_agent.training.local_loss import evaluation_loss_for, loss_for
from silo_agent.training.models.base import FederatedModel
from silo_agent.training.models.starting import initial_state
from silo_agent.training.models.state import load_arrays
from silo_agent.training.parts.losses.softmax import BalancedSoftmax, ClientAdapted
from silo_agent.training.torch_objective import TorchObjective
from strategies.methods import strategy_for
from strategies.parts.heads import HEAD
from tests.support.objectives import (
    gradient_by_backward,
    gradient_by_differences,
    make_data,
    make_job,
    make_setting,
    make_work,
    task_loss,
)
from tests.support.small_methods import built_model, logits_alone

COUNTS = torch.tensor([30.0, 0.0, 10.0, 60.0], dtype=torch.float64)
LOGITS = torch.tensor([[0.4, -1.0, 2.0, 0.1], [1.5, 3.0, -0.5, 0.0]], dtype=torch.float64)
LABELS = torch.tensor([2, 0])
BOTH = ("fedetf", "fedgela")


def loss_named(preset: str) -> SampleLoss:
    return BalancedSoftmax(COUNTS, balance=1.0) if preset == "fedetf" else ClientAdapted(COUNTS)


def job_of(preset: str, **fields: Any) -> JobSpec:
    return make_job({"preset": preset}, classes=4, input_shape=(6,), **fields)


def lacking_class_one(samples: int = 40, *, holdout_has_it: bool = True) -> SiloData:
    generator = np.random.default_rng(8)
    features, labels = generator.normal(size=(samples, 6)), generator.choice([0, 2, 3], size=samples)
    tested = (generator.normal(size=(12, 6)), np.arange(12) % 4 if holdout_has_it else np.zeros(12))
    return make_data(features, labels, holdout=tested)


def test_balanced_softmax_is_the_softmax_weighted_by_counts() -> None:
    for row, label in ((0, 2), (1, 0)):
        weights = COUNTS.numpy() * np.exp(LOGITS[row].numpy())
        expected = -math.log(weights[label] / weights.sum())
        found = loss_named("fedetf").per_sample(logits_alone(LOGITS), LABELS)[row]
        assert float(found) == pytest.approx(expected, abs=1e-12)


def test_balanced_softmax_raises_the_counts_to_its_exponent() -> None:
    found = BalancedSoftmax(COUNTS, balance=0.5).per_sample(logits_alone(LOGITS), LABELS)[0]
    weights = np.sqrt(COUNTS.numpy()) * np.exp(LOGITS[0].numpy())
    assert float(found) == pytest.approx(-math.log(weights[2] / weights.sum()), abs=1e-12)


def test_client_adapted_logits_are_scaled_by_the_silos_shares() -> None:
    scaled = LOGITS[0].numpy() * 4 * COUNTS.numpy() / 100
    assert scaled[1] == 0
    expected = -math.log(np.exp(scaled[2]) / np.exp(scaled).sum())
    found = loss_named("fedgela").per_sample(logits_alone(LOGITS), LABELS)[0]
    assert float(found) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("preset", BOTH)
def test_even_counts_give_plain_cross_entropy(preset: str) -> None:
    even = torch.full((4,), 25.0, dtype=torch.float64)
    loss = BalancedSoftmax(even, balance=1.0) if preset == "fedetf" else ClientAdapted(even)
    plain = task_loss().per_sample(logits_alone(LOGITS), LABELS)
    torch.testing.assert_close(loss.per_sample(logits_alone(LOGITS), LABELS), plain, rtol=0, atol=1e-12)


@pytest.mark.parametrize("preset", BOTH)
def test_absent_class_takes_no_gradient_and_no_nan(preset: str) -> None:
    def total(logits_NC: Tensor) -> Tensor:
        return loss_named(preset).per_sample(logits_alone(logits_NC), LABELS).sum()

    gradient = gradient_by_backward(total, LOGITS)
    assert torch.isfinite(gradient).all()
    assert (gradient[:, 1] == 0).all()
    assert (gradient[:, [0, 2, 3]] != 0).all()
    torch.testing.assert_close(gradient, gradient_by_differences(total, LOGITS), rtol=0, atol=1e-8)


@pytest.mark.parametrize("preset", BOTH)
def test_counts_are_of_the_silos_own_training_labels(preset: str) -> None:
    data, job = lacking_class_one(), job_of(preset)
    setting = make_setting(job, build_for(job), data)
    loss = loss_for(setting)
    counts = torch.tensor(np.bincount(data.train.labels, minlength=4)).double()
    expected = BalancedSoftmax(counts, balance=1.0) if preset == "fedetf" else ClientAdapted(counts)
    found = loss.per_sample(logits_alone(LOGITS.float()), LABELS)
    torch.testing.assert_close(
        found.double(), expected.per_sample(logits_alone(LOGITS), LABELS), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("preset", BOTH)
def test_silo_is_tested_with_plain_logits(preset: str) -> None:
    """Balanced by its own counts, one held-out sample of an absent class would cost infinity."""
    job = job_of(preset)
    work = make_work(job, lacking_class_one(), kind="evaluate")
    setting = make_setting(job, build_for(job), lacking_class_one())
    assert isinstance(evaluation_loss_for(setting), TaskLoss)
    values = TorchObjective(device="cpu").compute(work)
    model = build_for(job)
    load_arrays(model, work.state)
    holdout = work.data.holdout
    with torch.no_grad():
        logits_NC = model(torch.tensor(holdout.features))
        plain = task_loss().per_sample(logits_alone(logits_NC), torch.tensor(holdout.labels))
    assert float(values["loss_sum"]) == pytest.approx(float(plain.sum()), rel=1e-6)
    assert int(values["correct"]) == int((logits_NC.argmax(dim=1) == torch.tensor(holdout.labels)).sum())


@pytest.mark.parametrize("preset", BOTH)
def test_round_of_a_silo_without_a_class_is_finite_and_learns(preset: str) -> None:
    data = lacking_class_one(holdout_has_it=False)
    job = job_of(preset, training={"local_epochs": 5})
    values = TorchObjective(device="cpu").compute(make_work(job, data))
    assert all(np.isfinite(array).all() for array in values.values())
    assert np.abs(values["delta"]).max() > 0


# ---- the model of FedETF


def build_for(job: JobSpec) -> FederatedModel:
    torch.manual_seed(0)
    return built_model(job)


def test_projection_scale_and_a_square_simplex_stand_before_the_logits() -> None:
    state = initial_state(job_of("fedetf"))
    assert state["model/projection.weight"].shape == (4, 32)
    assert state["model/scale"].tolist() == [1.0]
    assert "model/projection.bias" not in state
    assert "model/head.bias" not in state
    gram_CC = state[HEAD] @ state[HEAD].T
    np.testing.assert_allclose(gram_CC, np.where(np.eye(4) == 1, 1, -1 / 3), atol=1e-6)


def test_logits_are_the_scale_times_the_cosines_of_the_projection() -> None:
    job = job_of("fedetf")
    model = build_for(job)
    load_arrays(model, initial_state(job))
    with torch.no_grad():
        model.scale.fill_(2.5)
        inputs = torch.rand(3, 6)
        features_ND = model.features(inputs)
        projected = features_ND @ model.projection.weight.T
        cosines = projected / projected.norm(dim=1, keepdim=True) @ model.head.weight.T
        assert features_ND.shape == (3, 32)
        torch.testing.assert_close(model(inputs), 2.5 * cosines)
        torch.testing.assert_close(model.embed(features_ND).norm(dim=1), torch.ones(3))


def test_silos_train_projection_and_scale_and_not_the_head() -> None:
    job = job_of("fedetf", training={"local_epochs": 3})
    work = make_work(job, lacking_class_one())
    assert set(work.context.trained) == {name for name in trained_names(work.state) if "head" not in name}
    values = TorchObjective(device="cpu").compute(work)
    start, moved = 0, {}
    for name in work.context.trained:
        size = work.state["model/" + name].size
        moved[name] = float(np.abs(values["delta"][start : start + size]).max())
        start += size
    assert start == values["delta"].size
    assert moved["scale"] > 0
    assert moved["projection.weight"] > 0


@pytest.mark.parametrize("preset", ["fedavg", "fedgela", "feddr_plus"])
def test_other_methods_have_neither_projection_nor_scale(preset: str) -> None:
    names = {name.split("/")[1].split(".")[0] for name in initial_state(job_of(preset))}
    assert names == {"body", "head"}


def test_gradient_through_projection_and_scale_agrees_with_differences() -> None:
    job = job_of("fedetf")
    model = build_for(job).double()
    load = initial_state(job)
    with torch.no_grad():
        model.head.weight.copy_(torch.tensor(load[HEAD]))
    generator = torch.Generator().manual_seed(2)
    features, weight = torch.randn(5, 32, generator=generator).double(), model.projection.weight.detach()
    labels = torch.tensor([0, 2, 3, 3, 0])

    def loss(packed: Tensor) -> Tensor:
        values = {"projection.weight": packed[:-1].view(4, 32), "scale": packed[-1:]}
        logits = torch.func.functional_call(
            _Logits(model), {f"model.{k}": v for k, v in values.items()}, features
        )
        return loss_named("fedetf").per_sample(logits_alone(logits), labels).mean()

    at = torch.cat([weight.flatten(), torch.tensor([1.3], dtype=torch.float64)])
    gradient = gradient_by_backward(loss, at)
    assert gradient[-1].abs() > 1e-3
    torch.testing.assert_close(
        gradient, gradient_by_differences(lambda x: loss(x).detach(), at), rtol=0, atol=1e-8
    )


class _Logits(torch.nn.Module):
    def __init__(self, model: FederatedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, features_ND: Tensor) -> Tensor:
        return self.model.logits(features_ND)


def test_a_model_with_unit_projection_has_a_feature_width_of_its_own() -> None:
    """FedDr+'s simplex needs width >= C - 1; FedETF's stands after the projection and always fits."""
    job = job_of("fedetf", model=ModelSpec(name="mlp", hidden=(2,), seed=1))
    assert initial_state(job)[HEAD].shape == (4, 4)


@pytest.mark.parametrize(("preset", "options"), [("fedetf", {"balance": 1.0}), ("fedgela", {})])
def test_presets_have_the_cards_numbers(preset: str, options: dict[str, float]) -> None:
    assert dict(strategy_for(preset, {}).options) == options
    assert strategy_for(preset, {}).summed(("head.weight",), ()) == ((), ())

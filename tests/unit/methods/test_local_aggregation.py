"""FedALA: a silo begins from a mixture of the received model and its own last one, and learns the mixture."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from crypto.errors import ConfigError
from silo_agent.training.base.batches import Tensors
from silo_agent.training.base.passes import Outputs
from silo_agent.training.base.setting import Setting
from silo_agent.training.data.base import SiloData
from silo_agent.training.models.base import FederatedModel
from silo_agent.training.objective import LocalState, Work
from silo_agent.training.parts.personalization.local_aggregation import (
    TRAINED,
    WEIGHTS,
    aggregate,
    aggregated_model,
)
from silo_agent.training.torch_objective import TorchObjective
from tests.support.objectives import CPU, make_job, make_work, task_loss
from tests.support.simulation import simulate
from tests.support.small_methods import built_model, clustered

CLASSES, WIDTH = 3, 4
MODEL_FIELDS = {"name": "mlp", "hidden": (6,), "seed": 2}
FIELDS: dict[str, Any] = {"classes": CLASSES, "input_shape": (WIDTH,), "model": MODEL_FIELDS, "rounds": 4}


def data_of(place: int, count: int = 24) -> SiloData:
    labels = np.resize(np.arange(CLASSES), count)
    named = (labels + place) % CLASSES
    return clustered(np.random.default_rng(place), labels, apart=2.0, spread=0.5, named=named)


def setting_of(local: dict[str, Any] | None = None, **options: float) -> Setting:
    spec = make_job({"preset": "fedala", "options": options}, training={"batch_size": 24}, **FIELDS)
    work = replace(make_work(spec, data_of(0)), local=LocalState(local or {}))
    model = built_model(spec, work.state)
    return Setting(work=work, received=model, device=CPU)


def head_of(model: FederatedModel) -> dict[str, Tensor]:
    named = model.named_parameters()
    return {name: each.detach().clone() for name, each in named if name.startswith("head.")}


def kept(**weight: float) -> dict[str, np.ndarray[Any, Any]]:
    """A trained head beside the received one, and weights between 0 and 1."""
    draw, head = np.random.default_rng(3), head_of(setting_of().received)
    trained = {TRAINED + name: each.numpy() + draw.normal(size=each.shape) for name, each in head.items()}
    if not weight:
        return {name: array.astype(np.float32) for name, array in trained.items()}
    weights = {WEIGHTS + name: np.full(each.shape, weight["weight"]) for name, each in head.items()}
    return {name: array.astype(np.float32) for name, array in {**trained, **weights}.items()}


class Counted:
    """Cross-entropy that counts its batches."""

    def __init__(self) -> None:
        self.seen = 0

    def per_sample(self, outputs: Outputs, labels_N: Tensor) -> Tensor:
        self.seen += 1
        return cross_entropy(outputs.logits_NC, labels_N, reduction="none")


def test_weights_take_the_step_of_the_papers_equation() -> None:
    """One batch of all samples: w - eta (dL/d own) (g - t) at own = t + (g - t) w, clipped to [0, 1]."""
    local, rate = kept(weight=0.4), 5.0
    setting = setting_of(local, ala_share=1.0, ala_rate=rate)
    received = {name: each.detach().clone() for name, each in setting.received.named_parameters()}
    trained = {name: torch.tensor(local[TRAINED + name]) for name in head_of(setting.received)}
    own = {name: trained[name] + (received[name] - trained[name]) * 0.4 for name in trained}
    leaves = {name: each.clone().requires_grad_() for name, each in own.items()}
    samples = Tensors.of(setting.work.data.train, CPU)
    scores = functional_call(setting.received, {**received, **leaves}, (samples.features,))
    gradients = torch.autograd.grad(cross_entropy(scores, samples.labels), list(leaves.values()))
    expected = {
        name: (0.4 - rate * gradient * (received[name] - trained[name])).clamp(0.0, 1.0)
        for (name, _), gradient in zip(leaves.items(), gradients, strict=True)
    }
    assert any(bool((each == 0.0).any()) or bool((each == 1.0).any()) for each in expected.values())
    model = aggregated_model(setting, samples, task_loss(CLASSES))
    for name, each in model.named_parameters():
        if name not in expected:
            assert torch.equal(each, received[name])  # below the last layers everything is the received one's
            continue
        mixed = trained[name] + (received[name] - trained[name]) * expected[name]
        torch.testing.assert_close(each, mixed, rtol=1e-5, atol=1e-6)


def test_silo_without_a_model_of_its_own_begins_from_the_received_one() -> None:
    setting = setting_of()
    model = aggregated_model(setting, setting.train, task_loss(CLASSES))
    for ours, received in zip(model.parameters(), setting.received.parameters(), strict=True):
        assert torch.equal(ours, received)


def test_first_weights_begin_as_ones_and_learn_until_they_settle() -> None:
    """Later ones take one epoch; of a rate of nothing the first are ones and the model the received one."""
    passes = []
    for local, rate in ((kept(), 1.0), (kept(weight=1.0), 1.0), (kept(), 1e-30)):
        setting, loss = setting_of(local, ala_rate=rate, ala_share=1.0), Counted()
        model = aggregated_model(setting, setting.train, loss)
        passes.append(loss.seen)
    assert passes[1] == 1
    assert 11 <= passes[0] <= 100
    for ours, received in zip(model.parameters(), setting.received.parameters(), strict=True):
        torch.testing.assert_close(ours, received, rtol=1e-5, atol=1e-6)


def test_training_begins_from_the_model_that_was_tested() -> None:
    """Both learn the same weights; the sum is of what moved from the received model."""
    setting = setting_of(kept(weight=0.5))
    tested = head_of(aggregated_model(setting, setting.train, task_loss(CLASSES)))
    again = head_of(aggregated_model(setting, setting.train, task_loss(CLASSES)))
    assert all(torch.equal(tested[name], again[name]) for name in tested)
    spec = setting.work.spec
    slow = spec.model_copy(update={"training": spec.training.model_copy(update={"learning_rate": 1e-30})})
    work: Work = replace(setting.work, spec=slow, seed=setting.work.seed)
    delta_P = TorchObjective(device="cpu").compute(work)["delta"]
    received = head_of(setting.received)
    moved = torch.cat([(tested[name] - received[name]).reshape(-1) for name in sorted(tested)])
    torch.testing.assert_close(torch.tensor(delta_P[-moved.numel() :]), 0.25 * moved)
    assert work.local.proposed is not None
    assert sorted(work.local.proposed) == sorted(
        prefix + name for prefix in (TRAINED, WEIGHTS) for name in ("head.bias", "head.weight")
    )


@pytest.mark.parametrize("layers", [2, 9])
def test_more_layers_are_the_ones_before_the_head_and_at_most_all(layers: int) -> None:
    setting = setting_of(ala_layers=layers)
    work = replace(setting.work)
    TorchObjective(device="cpu").compute(work)
    assert work.local.proposed is not None
    assert {name for name in work.local.proposed if "body" in name} == {
        TRAINED + "body.1.bias",
        TRAINED + "body.1.weight",
    }
    assert {TRAINED + "head.bias", TRAINED + "head.weight"} <= set(work.local.proposed)


def test_local_state_of_another_model_is_refused() -> None:
    setting = setting_of({TRAINED + "head.weight": np.zeros((1, 1), np.float32)})
    with pytest.raises(ConfigError, match="local state: method/aggregated/ is not of this job's model"):
        aggregate(setting, setting.received, setting.train, task_loss(CLASSES))


@pytest.mark.soak
def test_own_models_serve_silos_that_disagree_where_the_global_one_cannot() -> None:
    spec = make_job({"preset": "fedala"}, training={"batch_size": 8}, **{**FIELDS, "rounds": 8})
    *_, last = simulate(spec, [data_of(place, 60) for place in range(4)])
    assert last.figures["personal_accuracy"] > 0.85 > 0.7 > last.figures["accuracy"]

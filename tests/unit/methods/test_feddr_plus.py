"""FedDr+: what holds for every round of it, whatever the data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from silo_agent.training.base.passes import Outputs, run_model
from silo_agent.training.data.base import SiloData
from silo_agent.training.models.starting import initial_state
from silo_agent.training.parts.computed_parts import ComputedRegularizer
from silo_agent.training.parts.regularizers.distillation import FeatureDistillation
from silo_agent.training.torch_objective import TorchObjective
from strategies.methods import strategy_for
from strategies.parts.regularizers import FD
from tests.support.objectives import (
    LocalRound,
    gradient_by_backward,
    gradient_by_differences,
    make_data,
    make_job,
    make_model,
    make_setting,
    make_work,
    simplex,
    task_loss,
)

BETA = 0.9


def double(values: Any) -> Tensor:
    return torch.tensor(np.asarray(values, dtype=np.float64))


def small_data(samples: int = 40, *, classes: tuple[int, ...] = (0, 1, 2)) -> SiloData:
    generator = np.random.default_rng(5)
    return make_data(generator.normal(size=(samples, 6)), generator.choice(classes, size=samples))


def small_round(
    preset: str = "feddr_plus",
    *,
    options: dict[str, float] | None = None,
    head_CD: Any = None,
    data: SiloData | None = None,
    **training: Any,
) -> LocalRound:
    """Six inputs, 5 features after a linear last layer, four classes of which the data has three."""
    strategy = {"preset": preset, "options": options or {}}
    job = make_job(strategy, classes=4, training={"weight_decay": 0.01, **training})
    torch.manual_seed(3)
    body = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))
    model = make_model(job, body, width=5, head_CD=simplex(4, 5) if head_CD is None else head_CD)
    return LocalRound(make_setting(job, model, small_data() if data is None else data))


def weights_P(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for name, p in model.named_parameters() if "body" in name])


def test_first_steps_gradient_is_beta_times_that_of_dot_regression() -> None:
    gradients = []
    for preset in ("feddr_plus", "dot_regression"):
        one = small_round(preset)
        torch.autograd.backward(one.mean_loss())
        gradients.append(
            torch.cat([p.grad.flatten() for p in one.model.body.parameters() if p.grad is not None])
        )
    assert gradients[1].norm() > 0.01
    torch.testing.assert_close(gradients[0], BETA * gradients[1], rtol=0, atol=1e-15)


def test_distillation_alone_never_moves() -> None:
    one = small_round(options={"beta": 0.0}, weight_decay=0.0)
    before = weights_P(one.model)
    one.train()
    torch.testing.assert_close(weights_P(one.model), before, rtol=0, atol=1e-14)


def test_beta_of_one_is_dot_regression_bit_for_bit() -> None:
    rounds = [small_round(options={"beta": 1.0}), small_round("dot_regression"), small_round()]
    start = weights_P(rounds[0].model)
    for one in rounds:
        one.train()
    pure, dot_regression, mixed = (weights_P(one.model) for one in rounds)
    assert torch.equal(pure, dot_regression)
    assert not torch.equal(start, pure)
    assert not torch.equal(mixed, pure)


def test_neither_head_nor_teacher_moves_with_weight_decay_and_momentum() -> None:
    one = small_round(weight_decay=0.1, momentum=0.9)
    teacher, head = one.teacher.features_ND.clone(), one.model.head.weight.clone()
    one.train()
    assert torch.equal(one.teacher.features_ND, teacher)
    assert not one.teacher.features_ND.requires_grad
    assert torch.equal(one.model.head.weight, head)
    assert one.model.head.weight.grad is None


@pytest.mark.parametrize(
    ("preset", "is_touched"), [("feddr_plus", False), ("dot_regression", False), ("fedgela", True)]
)
def test_vector_of_a_class_that_the_silo_lacks_moves_nothing(preset: str, is_touched: bool) -> None:
    """Appendix C: without a push, what the absent classes are is not in the update. FedGELA's logit of an
    absent class is 0, so there the plain cross-entropy below stands for the push."""
    turned_CD = simplex(4, 5)
    turned_CD[3] = [0, 0, 0, 0, 1]
    if preset == "fedgela":
        updates = [_cross_entropy_gradient(head) for head in (simplex(4, 5), turned_CD)]
    else:
        rounds = [small_round(preset), small_round(preset, head_CD=turned_CD)]
        for one in rounds:
            one.train()
        updates = [weights_P(one.model) for one in rounds]
    assert torch.equal(updates[0], updates[1]) is not is_touched


def _cross_entropy_gradient(head_CD: Any) -> Tensor:
    one = small_round("dot_regression", head_CD=head_CD)
    data = small_data()
    outputs = run_model(one.model, double(data.train.features))
    torch.autograd.backward(task_loss().per_sample(outputs, torch.tensor(data.train.labels)).mean())
    return torch.cat([p.grad.flatten() for p in one.model.body.parameters() if p.grad is not None])


def test_loss_of_a_batch_is_the_mean_of_its_samples() -> None:
    once, twice = small_data(), small_data()
    doubled = make_data(np.concatenate([twice.train.features] * 2), np.concatenate([twice.train.labels] * 2))
    losses = []
    for data in (once, doubled):
        one = small_round(data=data)
        with torch.no_grad():
            for parameter in one.model.body.parameters():
                parameter.add_(0.1)
        losses.append(float(one.mean_loss().detach()))
    assert losses[0] == pytest.approx(losses[1], abs=1e-14)


def test_gradient_of_the_whole_loss_agrees_with_differences_in_the_weights() -> None:
    one = small_round()
    last = one.model.body[2].weight
    moved = last.detach() + 0.3 * torch.randn(last.shape, generator=torch.Generator().manual_seed(1)).double()

    def loss(weight: Tensor) -> Tensor:
        body = nn.Sequential(one.model.body[0], one.model.body[1])
        data = small_data().train
        features = body(double(data.features)) @ weight.T + one.model.body[2].bias
        outputs = Outputs(features_ND=features, logits_NC=one.model.logits(features))
        labels, places = torch.tensor(data.labels), torch.arange(len(data))
        return one.loss.per_sample(outputs, features, labels, places).mean()

    difference = gradient_by_differences(lambda weight: loss(weight).detach(), moved)
    torch.testing.assert_close(gradient_by_backward(loss, moved), difference, rtol=0, atol=1e-8)


@pytest.mark.parametrize(("norm", "starts_at_zero"), [("none", True), ("group", True), ("batch", False)])
def test_teacher_is_in_eval_mode_so_batch_statistics_alone_part_it_from_the_student(
    norm: str, starts_at_zero: bool
) -> None:
    job = make_job({"preset": "feddr_plus"}, model={"name": "cnn", "norm": norm, "seed": 1})
    generator = np.random.default_rng(0)
    data = make_data(generator.normal(size=(32, 1, 8, 8)), generator.integers(10, size=32))
    work = make_work(job, data)
    seen: list[float] = []

    class Spy(FeatureDistillation):
        def per_sample(self, student: Outputs, teacher: Outputs, labels_N: Tensor) -> Tensor:
            distances_N = super().per_sample(student, teacher, labels_N)
            seen.append(float(distances_N.max().detach()))
            return distances_N

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "silo_agent.training.local_loss.computed_regularizers",
            lambda _: [ComputedRegularizer(make=lambda _: Spy())],
        )
        TorchObjective(device="cpu").compute(work)
    assert (seen[0] < 1e-10) is starts_at_zero
    assert seen[-1] > 1e-10


def test_teacher_uses_running_statistics_and_leaves_them_alone() -> None:
    job = make_job({"preset": "feddr_plus"}, classes=4)
    body = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5))
    model = make_model(job, body, width=5, head_CD=simplex(4, 5)).train()
    one = LocalRound(make_setting(job, model, small_data()))
    inputs = double(small_data().train.features)
    by_running_statistics = (body[0](inputs) / np.sqrt(1 + body[1].eps)).detach()  # mean 0 and variance 1
    torch.testing.assert_close(one.teacher.features_ND, by_running_statistics, rtol=0, atol=1e-12)
    assert body[1].running_mean.tolist() == [0] * 5
    one.train()
    assert (body[1].running_mean != 0).all()
    torch.testing.assert_close(one.teacher.features_ND, by_running_statistics, rtol=0, atol=1e-12)


def test_round_through_the_objective_sends_the_body_and_no_statistic_of_labels() -> None:
    job = make_job({"preset": "feddr_plus"}, classes=4, input_shape=(6,))
    values = TorchObjective(device="cpu").compute(make_work(job, small_data()))
    assert set(values) == {"delta", "weight", "correct", "tested", "loss_sum"}
    body = [array.size for name, array in initial_state(job).items() if name.startswith("model/body")]
    assert values["delta"].shape == (sum(body),)


def test_distillation_alone_sends_zeros_in_float32_too() -> None:
    """Exact where a batch is the teacher's own pass; other batch sizes may round matrix products apart."""
    job = make_job(
        {"preset": "feddr_plus", "options": {"beta": 0}},
        classes=4,
        input_shape=(6,),
        training={"batch_size": 64},
    )
    values = TorchObjective(device="cpu").compute(make_work(job, small_data()))
    np.testing.assert_allclose(values["delta"], 0, rtol=0, atol=1e-8)


@pytest.mark.parametrize("factor", [1.0, 10.0])
def test_each_round_logs_length_of_features_and_strength_of_distillation(
    caplog: pytest.LogCaptureFixture, factor: float
) -> None:
    """The same beta is another method on another feature scale; the numbers stay in the silo's log."""
    job = make_job({"preset": "feddr_plus"}, classes=4)
    data = small_data()
    scaled = make_data(factor * data.train.features, data.train.labels)
    model = make_model(job, nn.Identity(), width=6, head_CD=simplex(4, 6))
    with caplog.at_level("INFO", logger="chorale.silo_agent.training.parts"):
        LocalRound(make_setting(job, model, scaled))
    (record,) = [record for record in caplog.records if record.getMessage() == "feature scale"]
    features_ND = scaled.train.features.astype(np.float64)
    strength = 2 * 0.1 / 0.9 * np.square(features_ND).mean()
    logged = vars(record)["fields"]
    assert logged["norm"] == pytest.approx(np.linalg.norm(features_ND, axis=1).mean(), abs=1e-4)
    assert logged["rho"] == pytest.approx(strength, abs=1e-4)
    assert strength == pytest.approx(0.2 * factor**2, rel=0.5)


def test_preset_is_the_mix_of_the_card() -> None:
    strategy = strategy_for("feddr_plus", {})
    assert strategy.options["beta"] == 0.9
    assert strategy.recipe.regularizer is FD
    assert strategy.summed(("body.1.weight", "head.weight"), ()) == (("body.1.weight",), ())

"""Prox, KD, NTD, LD and FD: the card's numbers, gradients by differences, a teacher that never learns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import softmax

from silo_agent.training.base.loss import SampleRegularizer, WeightPenalty
from silo_agent.training.base.passes import Outputs, run_model
from silo_agent.training.data.base import SiloData
from silo_agent.training.parts.regularizers.distillation import (
    FeatureDistillation,
    KnowledgeDistillation,
    LogitDistillation,
    NotTrueDistillation,
    softened_divergence,
)
from silo_agent.training.parts.regularizers.prox import Prox, prox
from silo_agent.training.torch_objective import TorchObjective
from strategies.methods import strategy_for
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
from tests.support.small_methods import logits_alone

# example A of the card: raw features before a simplex of 4 classes, label 1
STUDENT = torch.tensor([[1.0, 2.0, -1.0, 0.5]], dtype=torch.float64)
TEACHER = torch.tensor([[0.8, 1.5, -0.5, 0.5]], dtype=torch.float64)
LABEL = torch.tensor([1])
HEAD = torch.tensor(simplex(4, 4))
BY_NAME: dict[str, Callable[[], SampleRegularizer]] = {
    "kd": lambda: KnowledgeDistillation(tau=2.0),
    "ntd": lambda: NotTrueDistillation(tau=2.0),
    "ld": LogitDistillation,
    "fd": FeatureDistillation,
}


def outputs(features_ND: Tensor) -> Outputs:
    return Outputs(features_ND=features_ND, logits_NC=features_ND @ HEAD.T)


def value(regularizer: SampleRegularizer, student_ND: Tensor = STUDENT) -> float:
    return float(regularizer.per_sample(outputs(student_ND), outputs(TEACHER), LABEL))


def test_example_a_logit_distillation() -> None:
    assert value(LogitDistillation()) == pytest.approx(0.1766666667, abs=5e-11)
    # the sum over the classes is bounded by what feature distillation sees: 4/3 |f - f_g|^2
    assert 4 * value(LogitDistillation()) == pytest.approx(0.7066666667, abs=5e-11)
    assert 4 / 3 * 4 * value(FeatureDistillation()) == pytest.approx(0.72, abs=1e-12)


@pytest.mark.parametrize(("tau", "divergence"), [(1.0, 0.0427661123), (3.0, 0.0082717706)])
def test_example_a_knowledge_distillation_has_the_factor_of_tau_squared(
    tau: float, divergence: float
) -> None:
    student, teacher = outputs(STUDENT).logits_NC, outputs(TEACHER).logits_NC
    assert float(softened_divergence(student, teacher, tau=tau)) == pytest.approx(divergence, abs=5e-11)
    assert value(KnowledgeDistillation(tau=tau)) == pytest.approx(tau**2 * divergence, abs=5e-10)


def test_example_a_knowledge_distillation_at_tau_three() -> None:
    assert value(KnowledgeDistillation(tau=3.0)) == pytest.approx(0.0744459353, abs=5e-11)


@pytest.mark.parametrize(("tau", "expected"), [(1.0, 0.0276268003), (3.0, 0.0053834659)])
def test_example_a_not_true_distillation_has_no_factor(tau: float, expected: float) -> None:
    assert value(NotTrueDistillation(tau=tau)) == pytest.approx(expected, abs=5e-11)


def test_divergence_is_of_the_teacher_from_the_student() -> None:
    student, teacher = torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([[0.0, 1.0, 0.0]])
    from_teacher = softmax(teacher, dim=1) * (softmax(teacher, dim=1) / softmax(student, dim=1)).log()
    found = float(softened_divergence(student, teacher, tau=1.0))
    assert found == pytest.approx(float(from_teacher.sum()), abs=1e-6)
    assert abs(found - float(softened_divergence(teacher, student, tau=1.0))) > 0.01


def test_not_true_distillation_is_the_divergence_of_the_other_classes() -> None:
    generator = torch.Generator().manual_seed(6)
    student, teacher = (logits_alone(torch.randn(3, 4, generator=generator)) for _ in range(2))
    found_N = NotTrueDistillation(tau=2.0).per_sample(student, teacher, torch.tensor([0, 3, 1]))
    for sample, others in enumerate(([1, 2, 3], [0, 1, 2], [0, 2, 3])):
        student_1K, teacher_1K = (each.logits_NC[sample, others][None] for each in (student, teacher))
        alone_1 = softened_divergence(student_1K, teacher_1K, tau=2.0)
        torch.testing.assert_close(found_N[sample], alone_1[0])


def test_not_true_distillation_does_not_see_the_labels_logit() -> None:
    def with_logit(at_label: float) -> float:
        logits = torch.tensor([[0.5, at_label, -1.0, 2.0]])
        teacher = Outputs(features_ND=TEACHER, logits_NC=torch.tensor([[1.0, 7.0, 0.0, 0.0]]))
        student = Outputs(features_ND=STUDENT, logits_NC=logits)
        return float(NotTrueDistillation(tau=3.0).per_sample(student, teacher, LABEL))

    assert with_logit(-5.0) == with_logit(50.0) > 0


def test_logit_distillation_leaves_directions_outside_the_classes_span_alone() -> None:
    """Why FedDr+ distils features: the simplex sees C - 1 of the D directions."""
    along = torch.ones(1, 4, dtype=torch.float64)  # every class's logit of it is the same: 0
    assert value(LogitDistillation(), TEACHER + 3 * along) == pytest.approx(0, abs=1e-20)
    assert value(FeatureDistillation(), TEACHER + 3 * along) == pytest.approx(9, abs=1e-12)


@pytest.mark.parametrize("name", BY_NAME)
def test_gradient_agrees_with_differences(name: str) -> None:
    generator = torch.Generator().manual_seed(4)
    student, teacher = (torch.randn(5, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    labels = torch.tensor([0, 1, 2, 3, 1])

    def total(features_ND: Tensor) -> Tensor:
        return BY_NAME[name]().per_sample(outputs(features_ND), outputs(teacher), labels).sum()

    gradient = gradient_by_backward(total, student)
    assert gradient.norm() > 0.01
    torch.testing.assert_close(gradient, gradient_by_differences(total, student), rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", BY_NAME)
def test_student_that_is_the_teacher_costs_nothing_and_is_not_pulled(name: str) -> None:
    def at(features_ND: Tensor) -> Tensor:
        return BY_NAME[name]().per_sample(outputs(features_ND), outputs(TEACHER), LABEL).sum()

    assert float(at(TEACHER)) == pytest.approx(0, abs=1e-15)
    assert float(gradient_by_backward(at, TEACHER).norm()) == pytest.approx(0, abs=1e-15)


@pytest.mark.parametrize("name", BY_NAME)
def test_one_value_a_sample_whatever_the_batch(name: str) -> None:
    generator = torch.Generator().manual_seed(4)
    student, teacher = (outputs(torch.randn(6, 4, generator=generator).double()) for _ in range(2))
    labels_N = torch.tensor([0, 1, 2, 3, 1, 2])
    together = BY_NAME[name]().per_sample(student, teacher, labels_N)
    assert together.shape == (6,)
    chosen = torch.tensor([4, 1])
    apart = BY_NAME[name]().per_sample(student.take(chosen), teacher.take(chosen), labels_N[chosen])
    torch.testing.assert_close(apart, together[chosen])


def two_batches() -> SiloData:
    generator = np.random.default_rng(5)
    return make_data(generator.normal(size=(24, 6)), generator.integers(4, size=24))


def local_round(strategy: dict[str, Any], **training: Any) -> LocalRound:
    job = make_job(strategy, classes=4, training=training)
    torch.manual_seed(3)
    body = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))
    return LocalRound(make_setting(job, make_model(job, body, width=5), two_batches()))


@pytest.mark.parametrize("name", BY_NAME)
def test_teacher_is_the_received_model_and_stays_it(name: str) -> None:
    one = local_round({"parts": {"regularizer": name}})
    before = one.teacher
    received = run_model(one.model, torch.tensor(two_batches().train.features).double())
    torch.testing.assert_close(before.logits_NC, received.logits_NC.detach(), rtol=0, atol=1e-12)
    kept = before.logits_NC.clone()
    one.train()
    assert torch.equal(kept, before.logits_NC)
    assert not before.logits_NC.requires_grad
    assert not before.features_ND.requires_grad


@pytest.mark.parametrize("name", [*BY_NAME, "prox"])
def test_regularizer_keeps_the_model_nearer_to_the_received_one(name: str) -> None:
    distances = []
    for mu in (0.0, 0.3, 3.0):
        one = local_round({"parts": {"regularizer": name}, "options": {"mu": mu}}, learning_rate=0.05)
        start = torch.cat([parameter.detach().flatten() for parameter in one.model.parameters()]).clone()
        one.train()
        end = torch.cat([parameter.detach().flatten() for parameter in one.model.parameters()])
        distances.append(float((end - start).norm()))
    assert distances[0] > distances[1] > distances[2] > 0


# ---- prox


def test_prox_is_half_the_squared_distance_of_the_trained_parameters() -> None:
    job = make_job({"preset": "fedprox", "options": {"mu": 0.4}}, classes=4)
    model = make_model(job, nn.Linear(6, 5), width=5)
    model.head.weight.requires_grad_(False)
    penalty = Prox(model, factor=0.5)
    assert float(penalty.penalty(model).detach()) == 0
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5)
    moved = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert moved == 6 * 5 + 5 + 4
    found = penalty.penalty(model)
    assert float(found.detach()) == pytest.approx(0.5 * moved * 0.25, abs=1e-12)
    torch.autograd.backward(found)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            torch.testing.assert_close(parameter.grad, parameter.detach() - before[name])
        else:
            assert parameter.grad is None


def test_fedprox_gradient_in_a_round_is_that_of_the_loss_plus_mu_times_the_way_back() -> None:
    """Two full-batch steps without momentum, against steps taken by hand."""
    mu, rate = 0.7, 0.2
    plan = {"learning_rate": rate, "momentum": 0.0, "batch_size": 64, "local_epochs": 2}
    one = local_round({"preset": "fedprox", "options": {"mu": mu}}, **plan)
    start = [parameter.detach().clone() for parameter in one.model.parameters()]
    reference = local_round({"preset": "fedavg"}, **plan).model
    samples = torch.tensor(two_batches().train.features).double(), torch.tensor(two_batches().train.labels)
    for _ in range(2):
        reference.zero_grad()
        torch.autograd.backward(task_loss().per_sample(run_model(reference, samples[0]), samples[1]).mean())
        with torch.no_grad():
            for parameter, first in zip(reference.parameters(), start, strict=True):
                assert parameter.grad is not None
                parameter -= rate * (parameter.grad + mu * (parameter - first))
    one.train()
    for found, expected in zip(one.model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("mix", "factor"), [("additive", 0.5), ("convex", 1.0)])
def test_half_stands_in_fedprox_and_not_in_the_convex_mixes(mix: str, factor: float) -> None:
    job = make_job({"parts": {"regularizer": "prox", "mix": mix}}, classes=4)
    model = make_model(job, nn.Linear(6, 5), width=5)
    penalty = prox(make_setting(job, model, two_batches()))
    assert isinstance(penalty, WeightPenalty)
    with torch.no_grad():
        model.head.bias.add_(1.0)
    assert float(penalty.penalty(model).detach()) == pytest.approx(4 * factor, abs=1e-12)


def test_prox_is_no_part_of_the_per_sample_loss() -> None:
    one = local_round({"preset": "fedprox", "options": {"mu": 100.0}})
    samples = torch.tensor(two_batches().train.features).double(), torch.tensor(two_batches().train.labels)
    with torch.no_grad():
        one.model.head.bias.add_(1.0)
    outputs_now = run_model(one.model, samples[0])
    plain_N = task_loss().per_sample(outputs_now, samples[1])
    torch.testing.assert_close(one.loss.per_sample(outputs_now, *samples, torch.arange(24)), plain_N)
    penalty = one.loss.penalty(one.model)
    assert penalty is not None
    assert float(penalty.detach()) == pytest.approx(100 * 0.5 * 4)


def test_fedprox_does_not_hold_a_frozen_head() -> None:
    job = make_job({"parts": {"regularizer": "prox", "head": "frozen-etf"}}, classes=4, input_shape=(6,))
    work = make_work(job, two_batches())
    assert not any(name.startswith("head") for name in work.context.trained)
    assert np.abs(TorchObjective(device="cpu").compute(work)["delta"]).max() > 0


@pytest.mark.parametrize(
    ("preset", "options"), [("fedprox", {"mu": 0.001}), ("fedntd", {"mu": 1.0, "tau": 3.0})]
)
def test_presets_have_the_cards_numbers(preset: str, options: dict[str, float]) -> None:
    assert dict(strategy_for(preset, {}).options) == options


class Constant:
    """What a part of a distribution may come to: nothing that moves."""

    def per_sample(self, student: Outputs, teacher: Outputs, labels_N: Tensor) -> Tensor:
        return torch.ones(len(labels_N), dtype=torch.float64)


def test_constant_comparison_moves_nothing() -> None:
    plain, compared = local_round({"preset": "fedavg"}), local_round({"preset": "fedntd"})
    (comparison,) = compared.loss.comparisons
    compared.loss = replace(compared.loss, comparisons=(replace(comparison, regularizer=Constant()),))
    for each in (plain, compared):
        each.train()
    for found, expected in zip(compared.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(found, expected)

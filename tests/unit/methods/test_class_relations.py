"""FedDW's regularizer: the card's examples 2, 3 and 5, its invariants, its gradient."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from crypto.errors import ConfigError, RemoteProtocolError
from silo_agent.training.base.loss import LocalLoss
from silo_agent.training.base.passes import Outputs
from silo_agent.training.base.setting import Setting
from silo_agent.training.data.base import SiloData
from silo_agent.training.parts.computed_parts import REGULARIZERS
from silo_agent.training.parts.statistics.soft_labels import (
    ClassRelations,
    class_relations,
    relation_gap,
    relations_of,
)
from strategies.base import Array
from strategies.methods import strategy_for, strategy_of
from strategies.parts.heads import FROZEN_RANDOM, TRAINED_UNBIASED
from strategies.parts.statistics.soft_labels import CLASS_RELATIONS, KNOWN_ROWS, SOFT_LABEL_SUMS, SOFT_LABELS
from strategies.presets import FEDAVG
from strategies.recipe import Recipe
from tests.support.objectives import (
    CPU,
    gradient_by_backward,
    gradient_by_differences,
    make_data,
    make_job,
    make_model,
    make_setting,
    make_work,
    task_loss,
)
from tests.support.simulation import simulate

# the card's example 2
W = torch.tensor([[1.0, 0.5], [-0.5, 1.0], [0.25, -1.0]], dtype=torch.float64)
OMEGA = torch.tensor([[0.80, 0.15, 0.05], [0.10, 0.70, 0.20], [0.05, 0.25, 0.70]], dtype=torch.float64)
S = [
    [0.66241179, 0.18978416, 0.14780405],
    [0.20768452, 0.72489019, 0.06742529],
    [0.19484393, 0.08122304, 0.72393303],
]
GRADIENT = [[-0.02161485, -0.01234167], [0.00765097, 0.00801524], [0.01277960, 0.00165291]]
GRADIENT_WITHOUT_ROW_2 = [[-0.02283809, -0.00744872], [0.00855623, 0.00439421], [0.00671209, 0.00028365]]
ALL = torch.tensor([True, True, True])
WITHOUT_ROW_2 = torch.tensor([True, True, False])
# its example 3
FEATURES = torch.tensor([[1.0, 0.0], [0.5, 1.5], [-1.0, 2.0]], dtype=torch.float64)
LABELS = torch.tensor([0, 1, 2])
PRINTED = 6e-9  # half a unit of the card's last digit, and a little


def gap(weight_CD: Tensor, omega_CC: Tensor = OMEGA, known_C: Tensor | None = None) -> Tensor:
    all_C = torch.ones(len(weight_CD), dtype=torch.bool)
    return relation_gap(weight_CD, omega_CC, is_known_C=all_C if known_C is None else known_C)


def gradient(weight_CD: Tensor, omega_CC: Tensor = OMEGA, known_C: Tensor | None = None) -> Tensor:
    return gradient_by_backward(lambda w: gap(w, omega_CC, known_C), weight_CD)


def closed_form(weight_CD: Tensor, omega_CC: Tensor) -> Tensor:
    """The card's section 2.5."""
    relations_CC = relations_of(weight_CD)
    D = 2 * (relations_CC - omega_CC) / omega_CC.numel()
    M = relations_CC * (D - (D * relations_CC).sum(dim=1, keepdim=True))
    return (M + M.T) @ weight_CD


def random_case(seed: int, classes: int = 5, width: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weight_CD = torch.randn(classes, width, generator=generator, dtype=torch.float64)
    omega_CC = torch.softmax(
        2 * torch.randn(classes, classes, generator=generator, dtype=torch.float64), dim=1
    )
    return weight_CD, omega_CC


def loss_of(mu: float) -> LocalLoss:
    penalty = ClassRelations(soft_labels_CC=OMEGA, is_known_C=ALL)
    return LocalLoss(loss=task_loss(), penalties=((mu, penalty),))


def total(loss: LocalLoss, model: Any, features_ND: Tensor) -> Tensor:
    """Batch mean and penalty, as local training adds their gradients."""
    outputs = Outputs(features_ND=features_ND, logits_NC=model.logits(features_ND))
    penalty = loss.penalty(model)
    assert penalty is not None
    return loss.per_sample(outputs, features_ND, LABELS, torch.arange(3)).mean() + penalty


def feddw(**options: Any) -> Any:
    return make_job({"preset": "feddw", "options": options}, classes=3, input_shape=(2,))


def linear(**options: Any) -> Any:
    return make_model(feddw(**options), nn.Identity(), width=2, head_CD=W)


def setting_with(state: dict[str, Array], **options: Any) -> Setting:
    job = feddw(**options)
    work = make_work(job, make_data(FEATURES, LABELS), state=state)
    return Setting(work=work, received=linear(), device=CPU)


def test_relations_are_the_cards() -> None:
    np.testing.assert_allclose(relations_of(W), S, rtol=0, atol=PRINTED)


def test_gap_is_the_cards() -> None:
    """To 1e-11: with a softmax over columns in place of rows it is only 4e-5 away."""
    assert gap(W).item() == pytest.approx(0.012212074968, abs=1e-11)
    assert gap(2 * W).item() == pytest.approx(0.03834712, abs=PRINTED)


def test_gap_without_a_row_keeps_the_divisor() -> None:
    assert gap(W, known_C=WITHOUT_ROW_2).item() == pytest.approx(0.006652272896, abs=1e-11)


@pytest.mark.parametrize("known_C, expected", [(ALL, GRADIENT), (WITHOUT_ROW_2, GRADIENT_WITHOUT_ROW_2)])
def test_gradient_is_the_cards(known_C: Tensor, expected: Any) -> None:
    """With one factor of W W^T detached its first row would be [-0.01100265, -0.00592793]."""
    np.testing.assert_allclose(gradient(W, known_C=known_C), expected, rtol=0, atol=PRINTED)


@pytest.mark.parametrize("seed", range(3))
def test_gradient_agrees_with_closed_form_and_differences(seed: int) -> None:
    weight_CD, omega_CC = random_case(seed)
    by_backward = gradient(weight_CD, omega_CC)
    np.testing.assert_allclose(by_backward, closed_form(weight_CD, omega_CC), rtol=0, atol=1e-14)
    by_differences = gradient_by_differences(lambda w: gap(w, omega_CC), weight_CD)
    np.testing.assert_allclose(by_backward, by_differences, rtol=0, atol=1e-9)


def test_a_row_that_is_not_known_has_no_say() -> None:
    """Neither value nor gradient depends on what stands in it."""
    other = OMEGA.clone()
    other[2] = torch.tensor([1.0, 0.0, 0.0])
    assert gap(W, other, WITHOUT_ROW_2) == gap(W, OMEGA, WITHOUT_ROW_2)
    assert torch.equal(gradient(W, other, WITHOUT_ROW_2), gradient(W, OMEGA, WITHOUT_ROW_2))


@pytest.mark.parametrize("seed", range(3))
def test_gap_is_between_zero_and_two_over_classes(seed: int) -> None:
    weight_CD, omega_CC = random_case(seed)
    relations_CC = relations_of(weight_CD)
    assert bool(((relations_CC > 0) & (relations_CC < 1)).all())
    np.testing.assert_allclose(relations_CC.sum(dim=1), 1.0, atol=1e-12)
    assert 0 <= gap(weight_CD, omega_CC) < 2 / 5


def test_gap_approaches_two_over_classes_for_a_permutation() -> None:
    omega_CC = torch.eye(3, dtype=torch.float64)[[1, 2, 0]]
    assert gap(50**0.5 * torch.eye(3, dtype=torch.float64), omega_CC).item() == pytest.approx(2 / 3, abs=1e-9)


def test_own_relations_are_the_minimum() -> None:
    weight_CD, _ = random_case(0)
    own_CC = relations_of(weight_CD)
    assert gap(weight_CD, own_CC) == 0
    assert not gradient(weight_CD, own_CC).any()


@pytest.mark.parametrize("classes, expected", [(2, 0.25), (3, 0.222222), (10, 0.09), (100, 0.0099)])
def test_a_head_of_zeros_is_not_pushed(classes: int, expected: float) -> None:
    weight_CD, omega_CC = torch.zeros(classes, 4).double(), torch.eye(classes).double()
    assert gap(weight_CD, omega_CC).item() == pytest.approx(expected, abs=5e-7)
    assert not gradient(weight_CD, omega_CC).any()


@pytest.mark.parametrize("classes, square", [(2, 2.944), (10, 5.142), (100, 7.540)])
def test_orthogonal_rows_grow_to_the_soft_labels_confidence(classes: int, square: float) -> None:
    """||w||^2 = ln(p (C - 1) / (1 - p)) where S has p = 0.95 on its diagonal."""
    relations_CC = relations_of(square**0.5 * torch.eye(classes, dtype=torch.float64))
    np.testing.assert_allclose(relations_CC.diagonal(), 0.95, atol=1e-4)


def test_turning_the_feature_space_changes_nothing() -> None:
    weight_CD, omega_CC = random_case(1)
    turn_DD = torch.linalg.qr(random_case(2, 4, 4)[0])[0]
    np.testing.assert_allclose(gap(weight_CD @ turn_DD, omega_CC), gap(weight_CD, omega_CC), atol=1e-14)


def test_renaming_the_classes_changes_nothing() -> None:
    weight_CD, omega_CC = random_case(1)
    order, known_C = torch.tensor([3, 0, 4, 1, 2]), torch.tensor([True, True, False, True, True])
    renamed = gap(weight_CD[order], omega_CC[order][:, order], known_C[order])
    np.testing.assert_allclose(renamed, gap(weight_CD, omega_CC, known_C), atol=1e-14)


@pytest.mark.parametrize("mu, expected", [(0.0, 2.0311852058), (0.1, 2.0324064133), (10.0, 2.1533059555)])
def test_loss_of_a_batch_is_the_cards(mu: float, expected: float) -> None:
    assert total(loss_of(mu), linear(), FEATURES).item() == pytest.approx(expected, abs=6e-11)


def test_one_step_is_the_cards() -> None:
    model, loss = linear(), loss_of(10.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.autograd.backward(total(loss, model, FEATURES))
    expected = [[-0.29754761, 0.16801586], [-0.27147312, 0.43262168], [0.55717790, -0.62737267]]
    np.testing.assert_allclose(model.head.weight.grad, expected, rtol=0, atol=PRINTED)
    optimizer.step()
    stepped = [[1.02975476, 0.48319841], [-0.47285269, 0.95673783], [0.19428221, -0.93726273]]
    np.testing.assert_allclose(model.head.weight.detach(), stepped, rtol=0, atol=PRINTED)


@pytest.mark.parametrize("mu", [0.0, 0.1, 10.0])
def test_features_feel_the_cross_entropy_alone(mu: float) -> None:
    expected = [[-0.13545100, -0.11736674], [0.25, -0.10372308], [-0.21038877, 0.64883594]]
    model, loss = linear(), loss_of(mu)
    np.testing.assert_allclose(
        gradient_by_backward(lambda h: total(loss, model, h), FEATURES), expected, atol=PRINTED
    )


def test_nothing_but_the_head_takes_a_gradient() -> None:
    model = make_model(feddw(), nn.Linear(2, 2), width=2, head_CD=W)
    penalty = ClassRelations(soft_labels_CC=OMEGA, is_known_C=ALL).penalty(model)
    torch.autograd.backward(penalty)
    given = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert [name for name, grad in given.items() if grad is not None] == ["head.weight"]
    assert model.head.bias is None
    assert model.head.weight.numel() == 3 * 2


def test_the_round_before_gives_the_target() -> None:
    state: dict[str, Array] = {
        SOFT_LABELS: OMEGA.numpy(),
        KNOWN_ROWS: np.array([1, 1, 0], dtype=np.uint8),
    }
    part = class_relations(setting_with(state))
    np.testing.assert_allclose(part.soft_labels_CC, OMEGA, atol=1e-7)
    assert part.is_known_C.tolist() == [True, True, False]
    assert part.penalty(linear()).item() == pytest.approx(0.006652272896, abs=1e-8)


def test_before_the_first_sum_there_is_no_penalty() -> None:
    penalty = class_relations(setting_with({})).penalty(linear())
    assert penalty.item() == 0.0
    assert not penalty.requires_grad


@pytest.mark.parametrize(
    "initial, target", [("identity", torch.eye(3)), ("uniform", torch.full((3, 3), 1 / 3))]
)
def test_a_job_may_name_a_target_for_the_first_round(initial: str, target: Tensor) -> None:
    penalty = class_relations(setting_with({}, init_slm=initial)).penalty(linear())
    torch.testing.assert_close(penalty, gap(W, target.double()), check_dtype=False, atol=1e-7, rtol=0)


def test_a_target_of_another_shape_is_refused() -> None:
    state: dict[str, Array] = {SOFT_LABELS: np.zeros((4, 4)), KNOWN_ROWS: np.ones(4, dtype=np.uint8)}
    with pytest.raises(RemoteProtocolError, match=r"soft_labels is \(4, 4\), expected \(3, 3\)"):
        class_relations(setting_with(state))


def test_feddw_finds_its_regularizer_by_name() -> None:
    setting = make_setting(feddw(), linear(), make_data(FEATURES, LABELS))
    assert isinstance(REGULARIZERS[CLASS_RELATIONS].make(setting), ClassRelations)


@pytest.mark.parametrize(
    "recipe, reason",
    [
        (
            replace(FEDAVG, head=TRAINED_UNBIASED, regularizer=CLASS_RELATIONS),
            "init_slm: .* expected identity or uniform, got skip",
        ),
        (replace(FEDAVG, statistic=SOFT_LABEL_SUMS), "needs one of them"),
        (
            replace(FEDAVG, head=FROZEN_RANDOM, regularizer=CLASS_RELATIONS, statistic=SOFT_LABEL_SUMS),
            "needs head trained-unbiased",
        ),
    ],
)
def test_parts_that_do_not_go_together_are_refused(recipe: Recipe, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        strategy_of("custom", recipe, {})


def test_without_the_statistic_the_target_of_every_round_is_the_first() -> None:
    """And no class statistic leaves a silo, presence included."""
    strategy = {"parts": {"head": "trained-unbiased", "regularizer": "soft-labels"}}
    job = make_job({**strategy, "options": {"init_slm": "identity"}}, classes=3, input_shape=(4,), rounds=2)
    assert set(job.quantity_names).isdisjoint({"class_presence", "soft_labels", "class_counts"})
    last = list(simulate(job, three_silos()))[-1].state
    assert SOFT_LABELS not in last
    work = make_work(job, make_data(np.zeros((3, 4)), [0, 1, 2]), state=last)
    target = class_relations(Setting(work=work, received=linear(), device=CPU)).soft_labels_CC
    torch.testing.assert_close(target, torch.eye(3))


def test_weight_below_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match="mu: .* got -1"):
        strategy_for("feddw", {"mu": -1.0})


def models_by_round(strategy: dict[str, Any], *, rounds: int = 2) -> list[dict[str, Array]]:
    job = make_job(strategy, classes=3, input_shape=(4,), rounds=rounds)
    phases = simulate(job, three_silos())
    return [
        {name: array for name, array in phase.state.items() if name.startswith("model/")}
        for phase in phases
        if phase.phase == "train"
    ]


def three_silos() -> list[SiloData]:
    generator = np.random.default_rng(4)
    return [make_data(generator.normal(size=(24, 4)), generator.integers(0, 3, size=24)) for _ in range(3)]


def same(left: dict[str, Array], right: dict[str, Array]) -> bool:
    return all(np.array_equal(left[name], right[name]) for name in left.keys() | right.keys())


def test_without_weight_it_is_fedavg_bit_for_bit_and_the_weight_acts_from_the_second_round() -> None:
    plain = models_by_round({"parts": {"head": "trained-unbiased"}})
    for mu, is_same in ((0.0, [True, True]), (100.0, [True, False])):
        pulled = models_by_round({"preset": "feddw", "options": {"mu": mu}})
        assert [same(*pair) for pair in zip(plain, pulled, strict=True)] == is_same


def test_the_penalty_does_not_depend_on_the_batch() -> None:
    model, loss = linear(), loss_of(10.0)
    whole = total(loss, model, FEATURES) - total(loss_of(0.0), model, FEATURES)
    outputs = Outputs(features_ND=FEATURES[:1], logits_NC=model.logits(FEATURES[:1]))
    one = loss.per_sample(outputs, FEATURES[:1], LABELS[:1], torch.arange(1))
    assert torch.equal(one, task_loss().per_sample(outputs, LABELS[:1]))
    penalty = loss.penalty(model)
    assert penalty is not None
    assert whole.item() == pytest.approx(penalty.item(), abs=1e-12)

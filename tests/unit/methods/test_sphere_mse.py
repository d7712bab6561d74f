"""SphereFed's loss: the card's worked example, its gradient, and what its scale does to a learning rate."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from silo_agent.training.base.passes import Outputs, run_model
from silo_agent.training.models.base import FederatedModel
from silo_agent.training.parts.losses.cosine import SphereMse
from strategies.parts import heads
from strategies.parts.heads import orthonormal_head
from tests.support.numbers import numbers
from tests.support.objectives import cut_model, task_loss


def model_of(weight_CD: Tensor) -> FederatedModel:
    """Features are the inputs themselves."""
    classes, width = weight_CD.shape
    model = cut_model(
        torch.nn.Identity(), width=width, classes=classes, head=heads.FROZEN_ORTHONORMAL, features=heads.UNIT
    )
    model = model.to(weight_CD.dtype)
    with torch.no_grad():
        model.head.weight.copy_(weight_CD)
    return model


def loss_N(features_ND: Tensor, labels_N: Tensor, weight_CD: Tensor) -> Tensor:
    return SphereMse().per_sample(run_model(model_of(weight_CD), features_ND), labels_N)


def random_head(classes: int, width: int) -> Tensor:
    return torch.tensor(orthonormal_head(classes, width, numbers(1)))


def gradient(features_ND: Tensor, labels_N: Tensor, weight_CD: Tensor) -> Tensor:
    features_ND = features_ND.clone().requires_grad_()
    torch.autograd.backward(loss_N(features_ND, labels_N, weight_CD).sum())
    assert features_ND.grad is not None
    return features_ND.grad


def test_loss_and_gradient_are_those_worked_by_hand() -> None:
    weight_CD = torch.eye(2, 3, dtype=torch.float64)
    features_ND = torch.tensor([[2.0, 1.0, 2.0]], dtype=torch.float64)
    labels_N = torch.tensor([0])
    scores_NC = model_of(weight_CD)(features_ND)
    torch.testing.assert_close(scores_NC, torch.tensor([[2 / 3, 1 / 3]], dtype=torch.float64))
    assert loss_N(features_ND, labels_N, weight_CD).item() == pytest.approx(1 / 9, abs=1e-12)
    expected_ND = torch.tensor([[-7.0, 10.0, 2.0]], dtype=torch.float64) / 81
    torch.testing.assert_close(gradient(features_ND, labels_N, weight_CD), expected_ND, atol=1e-12, rtol=0)
    outputs = Outputs(features_ND=features_ND, logits_NC=scores_NC)
    assert task_loss().per_sample(outputs, labels_N).item() == pytest.approx(0.5403055747, abs=5e-11)


def test_gradient_agrees_with_finite_differences() -> None:
    weight_CD, labels_N = random_head(4, 7), torch.tensor([0, 3, 1])
    features_ND = torch.randn(3, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    assert torch.autograd.gradcheck(
        lambda inputs: loss_N(inputs, labels_N, weight_CD), features_ND.requires_grad_()
    )


def test_gradient_stands_at_right_angles_to_the_feature_and_shrinks_with_its_length() -> None:
    weight_CD, labels_N = random_head(4, 7), torch.tensor([2, 0])
    features_ND = torch.randn(2, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    slope_ND = gradient(features_ND, labels_N, weight_CD)
    torch.testing.assert_close((features_ND * slope_ND).sum(dim=1), torch.zeros(2).double())
    torch.testing.assert_close(gradient(5 * features_ND, labels_N, weight_CD), slope_ND / 5)
    torch.testing.assert_close(
        loss_N(5 * features_ND, labels_N, weight_CD), loss_N(features_ND, labels_N, weight_CD)
    )


@pytest.mark.parametrize(("direction", "expected"), [(1.0, 0.0), (-1.0, 4 / 5)])
def test_loss_is_zero_at_the_row_and_four_over_c_opposite_to_it(direction: float, expected: float) -> None:
    weight_CD = random_head(5, 8)
    value = loss_N(direction * weight_CD[:1], torch.tensor([0]), weight_CD).item()
    assert value == pytest.approx(expected, abs=1e-12)


def test_loss_is_one_over_c_where_the_feature_sees_no_row() -> None:
    weight_CD = torch.eye(5, 8, dtype=torch.float64)
    aside_ND = torch.eye(8, dtype=torch.float64)[6:7]
    assert loss_N(aside_ND, torch.tensor([0]), weight_CD).item() == pytest.approx(1 / 5, abs=1e-12)


def test_loss_of_as_many_classes_as_features_is_the_cosine_loss() -> None:
    weight_CD, labels_N = random_head(6, 6), torch.tensor([1, 4])
    features_ND = torch.randn(2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    cosines_N = torch.nn.functional.cosine_similarity(features_ND, weight_CD[labels_N])
    torch.testing.assert_close(loss_N(features_ND, labels_N, weight_CD), (2 - 2 * cosines_N) / 6)


def test_batch_mean_is_the_mean_over_samples_and_classes() -> None:
    weight_CD, labels_N = random_head(4, 7), torch.tensor([0, 1, 2])
    features_ND = torch.randn(3, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    scores_NC = model_of(weight_CD)(features_ND)
    expected = torch.nn.functional.mse_loss(scores_NC, torch.eye(4).double()[labels_N])
    torch.testing.assert_close(loss_N(features_ND, labels_N, weight_CD).mean(), expected)


@pytest.mark.parametrize("classes", [2, 20, 200])
def test_many_classes_make_the_gradient_small_so_learning_rates_must_be_larger(classes: int) -> None:
    """The trap of the 1/C: at most 3/(C ||z||), where cross-entropy's gradient does not shrink with C."""
    weight_CD = random_head(classes, 256)
    features_ND = torch.rand(50, 256, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    labels_N = torch.arange(50) % classes
    slopes_N = gradient(features_ND, labels_N, weight_CD).norm(dim=1) * features_ND.norm(dim=1) * classes
    assert slopes_N.min() > 0.5
    assert slopes_N.max() <= 3.0


def test_a_dead_feature_gives_a_finite_loss_and_gradient() -> None:
    weight_CD = random_head(4, 7)
    dead_ND = torch.zeros(1, 7, dtype=torch.float64)
    assert loss_N(dead_ND, torch.tensor([1]), weight_CD).item() == pytest.approx(1 / 4)
    assert torch.isfinite(gradient(dead_ND, torch.tensor([1]), weight_CD)).all()


def test_features_behind_a_relu_cannot_bring_the_loss_to_zero() -> None:
    """Best non-negative unit features: the mean floor of ||W z - e||^2 is 0.114 for (C, D) = (10, 64)."""
    weight_CD, labels_N = random_head(10, 64), torch.arange(10)
    raw_ND = weight_CD.clamp(min=0).requires_grad_()
    optimizer = torch.optim.Adam([raw_ND], lr=0.01)
    for _ in range(300):
        optimizer.zero_grad()
        torch.autograd.backward(loss_N(raw_ND.relu(), labels_N, weight_CD).sum())
        optimizer.step()
    best_ND = torch.nn.functional.normalize(raw_ND.detach().relu(), dim=1)
    floor = 10 * loss_N(best_ND, labels_N, weight_CD).mean().item()
    cosine = (best_ND * weight_CD).sum(dim=1).mean().item()
    assert floor == pytest.approx(0.114, abs=0.02)
    assert cosine == pytest.approx(0.70, abs=0.04)

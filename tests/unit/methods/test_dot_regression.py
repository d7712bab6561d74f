"""Dot-regression: the card's examples, its gradient, and what ReLU features cannot reach."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from crypto.errors import RemoteProtocolError
from silo_agent.training.base.passes import Outputs, run_model
from silo_agent.training.parts.losses.cosine import DotRegression, dot_regression
from strategies.parts.heads import etf_head
from tests.support.numbers import numbers
from tests.support.objectives import (
    gradient_by_backward,
    gradient_by_differences,
    make_data,
    make_job,
    make_model,
    make_setting,
    simplex,
)

Loss = Callable[[Tensor], Tensor]


def loss_towards(vector: list[float]) -> Loss:
    """L_DR of one feature and its class's vector."""
    unit = torch.tensor(vector, dtype=torch.float64)

    def loss(feature: Tensor) -> Tensor:
        cosine = nn.functional.normalize(feature, dim=0) @ unit
        outputs = Outputs(features_ND=feature[None], logits_NC=cosine.reshape(1, 1))
        return DotRegression().per_sample(outputs, torch.zeros(1, dtype=torch.int64)).squeeze()

    return loss


def loss_of_model(head_CD: object, *, label: int) -> Loss:
    """L_DR through a model of ours whose backbone is the identity."""
    width, classes = np.asarray(head_CD).shape[1], np.asarray(head_CD).shape[0]
    job = make_job({"preset": "dot_regression"}, classes=classes)
    model = make_model(job, nn.Identity(), width=width, head_CD=head_CD)
    labels_N = torch.tensor([label])
    return lambda feature: DotRegression().per_sample(run_model(model, feature[None]), labels_N).squeeze()


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_example_e2_loss_gradient_and_step() -> None:
    loss, feature = loss_towards([1.0, 0.0]), double(3, 4)
    gradient = gradient_by_backward(loss, feature)
    assert float(loss(feature)) == pytest.approx(0.08, abs=1e-12)
    torch.testing.assert_close(gradient, double(-0.0512, 0.0384), rtol=0, atol=1e-12)
    assert float(feature @ gradient) == pytest.approx(0, abs=1e-12)
    moved = feature - gradient
    torch.testing.assert_close(moved, double(3.0512, 3.9616), rtol=0, atol=1e-12)
    assert float(moved[0] / moved.norm()) == pytest.approx(0.6101900153, abs=5e-11)
    assert float(moved.norm()) == pytest.approx(5.0004095832, abs=5e-11)
    # in feature space a step always lengthens the feature, by exactly the gradient's square
    grown = moved.square().sum() - feature.square().sum()
    assert float(grown) == pytest.approx(0.004096, abs=1e-12)
    assert float(gradient.square().sum()) == pytest.approx(0.004096, abs=1e-12)


def test_example_e2_ten_times_the_feature_has_the_same_loss_and_a_tenth_of_the_gradient() -> None:
    loss = loss_towards([1.0, 0.0])
    assert float(loss(double(30, 40))) == pytest.approx(0.08, abs=1e-12)
    gradient = gradient_by_backward(loss, double(30, 40))
    torch.testing.assert_close(gradient, double(-0.00512, 0.00384), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("cosine", "expected"), [(1.0, 0.0), (0.0, 0.5), (-1.0, 2.0)])
def test_loss_at_cosine(cosine: float, expected: float) -> None:
    feature = double(cosine, math.sqrt(1 - cosine**2)) * 3
    assert float(loss_towards([1.0, 0.0])(feature)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_gradient_is_zero_at_both_ends(sign: float) -> None:
    gradient = gradient_by_backward(loss_towards([1.0, 0.0]), double(2 * sign, 0))
    assert float(gradient.norm()) == pytest.approx(0, abs=1e-12)


def test_gradient_times_length_peaks_at_minus_one_half() -> None:
    loss = loss_towards([1.0, 0.0])
    peaks = {}
    for cosine in np.linspace(-0.99, 0.99, 199):
        feature = 5 * double(cosine, math.sqrt(1 - cosine**2))
        peaks[round(float(cosine), 2)] = 5 * float(gradient_by_backward(loss, feature).norm())
    assert max(peaks, key=lambda cosine: peaks[cosine]) == -0.5
    assert peaks[-0.5] == pytest.approx(1.2990381057, abs=5e-11)


@pytest.mark.parametrize(("classes", "expected"), [(2, 2.0), (10, 0.6172839506), (100, 0.5101520253)])
def test_a_feature_on_another_classs_vector_costs(classes: int, expected: float) -> None:
    head_CD = simplex(classes, classes)
    feature = torch.tensor(head_CD[1])
    assert float(loss_of_model(head_CD, label=0)(feature)) == pytest.approx(expected, abs=5e-11)


def test_gradient_is_theorem_c1_by_hand_by_backward_and_by_differences() -> None:
    generator = np.random.default_rng(11)
    head_CD = etf_head(7, 12, numbers(11))
    for label in range(7):
        loss, feature = loss_of_model(head_CD, label=label), torch.tensor(generator.normal(size=12))
        unit, vector = feature / feature.norm(), torch.tensor(head_CD[label])
        cosine = unit @ vector
        by_hand = -(1 - cosine) / feature.norm() * (vector - cosine * unit)
        gradient = gradient_by_backward(loss, feature)
        torch.testing.assert_close(gradient, by_hand, rtol=0, atol=1e-10)
        torch.testing.assert_close(gradient, gradient_by_differences(loss, feature), rtol=0, atol=1e-8)
        assert abs(float(feature @ gradient)) < 1e-10
        expected = (1 - cosine) * (1 - cosine**2).sqrt() / feature.norm()
        assert float(gradient.norm()) == pytest.approx(float(expected), abs=1e-10)


def test_no_other_classs_vector_enters_the_loss() -> None:
    """It pulls and never pushes: what a silo's absent classes are does not matter."""
    head_CD, feature = simplex(4, 5), double(1, -2, 3, 0.5, 1)
    turned_CD = head_CD.copy()
    turned_CD[2] = [0, 0, 0, 0, 1]
    losses = [float(loss_of_model(head, label=0)(feature)) for head in (head_CD, turned_CD)]
    assert losses[0] == losses[1]


def test_prediction_is_the_same_with_raw_and_unit_features() -> None:
    generator = np.random.default_rng(2)
    head_CD = etf_head(9, 16, numbers(2))
    features_ND = torch.tensor(generator.normal(size=(200, 16)) * generator.uniform(0.1, 50, size=(200, 1)))
    job = make_job({"preset": "dot_regression"}, classes=9)
    model = make_model(job, nn.Identity(), width=16, head_CD=head_CD)
    raw_NC = features_ND @ torch.tensor(head_CD).T
    assert torch.equal(model(features_ND).argmax(dim=1), raw_NC.argmax(dim=1))


def test_feature_of_zeros_has_a_finite_loss_and_gradient() -> None:
    loss = loss_of_model(simplex(3, 4), label=1)
    assert float(loss(torch.zeros(4, dtype=torch.float64))) == pytest.approx(0.5)
    assert torch.isfinite(gradient_by_backward(loss, torch.zeros(4, dtype=torch.float64))).all()


def test_features_after_relu_cannot_reach_their_vector() -> None:
    """The largest cosine of a non-negative feature is |max(v, 0)|, near 0.707: the loss stays above 0.03."""
    head_CD = etf_head(10, 512, numbers(0))
    ceilings_C = np.linalg.norm(np.maximum(head_CD, 0), axis=1)
    assert 0.6 < ceilings_C.min() < ceilings_C.max() < 0.8
    assert ceilings_C.mean() == pytest.approx(0.707, abs=0.02)
    loss = loss_of_model(head_CD, label=3)
    best = torch.tensor(np.maximum(head_CD[3], 0))
    assert float(loss(best)) == pytest.approx(0.5 * (1 - ceilings_C[3]) ** 2, abs=1e-12)
    generator = np.random.default_rng(1)
    others = [float(loss(torch.relu(torch.tensor(generator.normal(size=512))))) for _ in range(50)]
    nudged = best + 1e-3 * torch.tensor(generator.uniform(size=512))
    assert min(*others, float(loss(nudged))) > float(loss(best)) > 0.03


def test_head_with_rows_of_another_length_is_refused() -> None:
    job = make_job({"preset": "dot_regression"}, classes=3)
    model = make_model(job, nn.Identity(), width=4, head_CD=2 * simplex(3, 4))
    setting = make_setting(job, model, make_data(np.ones((2, 4)), [0, 1]))
    with pytest.raises(RemoteProtocolError, match="head rows of length 1, got lengths from 2 to 2"):
        dot_regression(setting)

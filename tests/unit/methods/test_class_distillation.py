"""FedDistill+: a silo's outputs for a sample come near what all trained models said of its class.

N = samples, C = classes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from silo_agent.training.base.setting import Setting
from silo_agent.training.data.base import SiloData
from silo_agent.training.parts.statistics.soft_labels import ClassDistillation, class_distillation
from silo_agent.training.torch_objective import TorchObjective
from strategies.base import Array
from strategies.parts.statistics.soft_labels import KNOWN_ROWS, SOFT_LABELS
from tests.support.objectives import CPU, make_job, make_work
from tests.support.simulation import simulate
from tests.support.small_methods import built_model, clustered, logits_alone

OMEGA_CC = np.array([[6, 1, 1], [2, 5, 1], [1, 3, 4]]) / 8  # exact in float32
LABELS_N = np.array([0, 1, 2, 1, 2])
LOGITS_NC = np.random.default_rng(3).normal(size=(5, 3))
FIELDS: dict[str, Any] = {
    "classes": 3,
    "input_shape": (4,),
    "model": {"name": "mlp", "hidden": (5,), "seed": 2},
}


def data_of(place: int) -> SiloData:
    return clustered(np.random.default_rng(place), np.resize([place % 3, (place + 1) % 3], 40))


def known(*classes: int) -> dict[str, Array]:
    """A state in which the rows of these classes were summed."""
    return {SOFT_LABELS: OMEGA_CC, KNOWN_ROWS: np.isin(np.arange(3), classes).astype(np.uint8)}


def part_of(state: dict[str, Array]) -> ClassDistillation:
    work = make_work(make_job({"preset": "feddistill_plus"}, **FIELDS), data_of(0), state=state)
    return class_distillation(Setting(work=work, received=built_model(work.spec), device=CPU))


@pytest.mark.parametrize("classes", [(0, 1, 2), (0, 2), ()])
def test_value_and_gradient_are_the_references(classes: tuple[int, ...]) -> None:
    """-sum_c Omega[y, c] log p[c], and p - Omega[y] for its gradient; nothing where the row is not known."""
    logits_NC = torch.tensor(LOGITS_NC, requires_grad=True)
    outputs = logits_alone(logits_NC)
    found_N = part_of(known(*classes)).per_sample(
        outputs, logits_alone(logits_NC.detach()), torch.tensor(LABELS_N)
    )
    torch.autograd.backward(found_N.sum())
    chances_NC = np.exp(LOGITS_NC) / np.exp(LOGITS_NC).sum(axis=1, keepdims=True)
    is_known_N = np.isin(LABELS_N, classes)
    expected_N = -(OMEGA_CC[LABELS_N] * np.log(chances_NC)).sum(axis=1) * is_known_N
    np.testing.assert_allclose(found_N.detach().numpy(), expected_N, rtol=0, atol=1e-12)
    assert logits_NC.grad is not None
    expected_NC = (chances_NC - OMEGA_CC[LABELS_N]) * is_known_N[:, None]
    np.testing.assert_allclose(logits_NC.grad.numpy(), expected_NC, rtol=0, atol=1e-12)


def test_before_the_first_sum_a_silo_trains_as_fedavg() -> None:
    plain = TorchObjective(device="cpu").compute(make_work(make_job(**FIELDS), data_of(0)))
    job = make_job({"preset": "feddistill_plus"}, **FIELDS)
    first = TorchObjective(device="cpu").compute(make_work(job, data_of(0)))
    np.testing.assert_array_equal(first["delta"], plain["delta"])


def test_rounds_sum_what_feddw_sums_and_feddws_term_goes_with_it() -> None:
    parts = {
        "head": "trained-unbiased",
        "regularizer": "class-distillation",
        "second_regularizer": "soft-labels",
        "statistic": "soft-labels",
    }
    alone = make_job({"preset": "feddistill_plus"}, rounds=2, **FIELDS)
    both = make_job({"parts": parts, "options": {"second_mu": 10.0}}, rounds=2, **FIELDS)
    assert (
        alone.quantity_names == both.quantity_names == make_job({"preset": "feddw"}, **FIELDS).quantity_names
    )
    for job in (alone, both):
        (*_, last) = simulate(job, [data_of(place) for place in range(4)], in_ring=True)
        np.testing.assert_allclose(last.state[SOFT_LABELS].sum(axis=1), 1.0, atol=1e-5)

"""SphereFed's ablations: each cell of its table 3, and its table 9, as a job that trains.

N = samples, C = classes, D = feature width.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from silo_agent.training.base.passes import Outputs
from silo_agent.training.data.base import SiloData
from silo_agent.training.models.registry import job_model
from silo_agent.training.models.state import load_arrays
from silo_agent.training.parts.computed_parts import computed_loss
from strategies.parts.closing.ffc import unpacked
from strategies.parts.heads import HEAD
from tests.support.objectives import make_data, make_job, make_setting
from tests.support.simulation import Simulated, simulate

CLASSES, WIDTH = 3, 8
ALONE = {"head": "frozen-random"}
ORTHONORMAL = {"head": "frozen-orthonormal"}
# loss, the rest of the parts, and whether a rule is passed over
TABLE_3: list[tuple[dict[str, str], bool]] = [
    ({}, False),
    (ALONE, False),
    (ORTHONORMAL, False),
    ({"features": "unit"}, False),
    ({"features": "unit", "loss": "scaled-softmax"}, False),
    ({**ORTHONORMAL, "features": "unit", "loss": "scaled-softmax"}, False),
    ({"loss": "sphere-mse"}, True),
    ({**ALONE, "loss": "sphere-mse"}, True),
    ({**ORTHONORMAL, "loss": "sphere-mse"}, True),
    ({"features": "unit", "loss": "sphere-mse"}, True),
    ({**ORTHONORMAL, "features": "unit", "loss": "sphere-mse"}, False),
]


def silo(seed: int) -> SiloData:
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, CLASSES, 40)
    return make_data(3 * np.eye(CLASSES)[labels] + draw.normal(size=(40, CLASSES)), labels)


def ended(parts: dict[str, str], **fields: Any) -> list[Simulated]:
    job = make_job(
        {"parts": parts},
        classes=CLASSES,
        input_shape=(CLASSES,),
        rounds=2,
        model={"name": "mlp", "hidden": (WIDTH,)},
        **fields,
    )
    return list(simulate(job, [silo(seed) for seed in range(4)]))


@pytest.mark.parametrize(("parts", "is_unusual"), TABLE_3)
def test_every_cell_of_table_3_is_a_job_that_trains(parts: dict[str, str], is_unusual: bool) -> None:
    if is_unusual:
        with pytest.raises(ValueError, match="allow_unusual: true passes over this rule"):
            make_job({"parts": parts})
    steps = ended(parts, allow_unusual=True)
    moved = [
        name for name, array in steps[-1].state.items() if not np.array_equal(array, steps[0].state[name])
    ]
    assert "model/body.1.weight" in moved
    assert all(np.isfinite(array).all() for array in steps[-1].state.values())


@pytest.mark.parametrize("scale", [1.0, 16.0, 40.0])
def test_scaled_softmax_is_cross_entropy_of_scores_times_tau(scale: float) -> None:
    parts = {"features": "unit", "head": "frozen-orthonormal", "loss": "scaled-softmax"}
    job = make_job(
        {"parts": parts, "options": {"score_scale": scale}}, classes=CLASSES, input_shape=(CLASSES,)
    )
    draw = np.random.default_rng(2)
    scores_NC, labels_N = draw.uniform(-1, 1, size=(5, CLASSES)), np.array([0, 1, 2, 0, 1])
    loss = computed_loss(job).train(make_setting(job, job_model(job), silo(0)))
    given_NC = torch.tensor(scores_NC, requires_grad=True)
    found_N = loss.per_sample(Outputs(features_ND=given_NC, logits_NC=given_NC), torch.tensor(labels_N))
    torch.autograd.backward(found_N.sum())
    raised_NC = np.exp(scale * scores_NC)
    shares_NC = raised_NC / raised_NC.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found_N.detach(), -np.log(shares_NC[range(5), labels_N]), rtol=0, atol=1e-9)
    assert given_NC.grad is not None
    expected_NC = scale * (shares_NC - np.eye(CLASSES)[labels_N])
    np.testing.assert_allclose(given_NC.grad, expected_NC, rtol=0, atol=1e-9)


def test_ffc_behind_raw_features_sums_them_at_unit_length_and_answers_as_at_unit_length() -> None:
    """Table 9. Longer features would break the bound of the sum: its trace is the number of samples."""
    job_fields: dict[str, Any] = {"allow_unusual": True}
    *_, trained, calibrated, _ = ended({"head": "frozen-random", "closing": "ffc"}, **job_fields)
    assert calibrated.phase.startswith("calibrate")
    gram_DD = sum(unpacked(values["gram"], WIDTH) for values in calibrated.values)
    moment_DC = sum(values["moment"] for values in calibrated.values)
    assert np.trace(gram_DD) == pytest.approx(4 * 40, abs=1e-4)
    assert not np.array_equal(calibrated.state[HEAD], trained.state[HEAD])
    job = make_job(
        {"parts": {"head": "frozen-random", "closing": "ffc"}},
        classes=CLASSES,
        input_shape=(CLASSES,),
        model={"name": "mlp", "hidden": (WIDTH,)},
        **job_fields,
    )
    model = job_model(job)
    load_arrays(model, calibrated.state)
    inputs = torch.tensor(silo(0).train.features)
    features_ND = model.features(inputs).detach().double().numpy()
    unit_ND = features_ND / np.maximum(np.linalg.norm(features_ND, axis=1, keepdims=True), 1e-12)
    solution_DC = np.linalg.solve(gram_DD + 0.1 * np.eye(WIDTH), moment_DC)
    answers_N = model(inputs).argmax(dim=1).numpy()
    assert np.array_equal(answers_N, (unit_ND @ solution_DC).argmax(axis=1))

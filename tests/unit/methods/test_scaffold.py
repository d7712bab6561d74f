"""SCAFFOLD against its own equations in float64, and what its control variates must add up to.

P = trained parameters.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from crypto.errors import ConfigError, RemoteProtocolError
from silo_agent.training.data.base import SiloData
from silo_agent.training.objective import LocalState, Work
from silo_agent.training.parts.server_updates import OWN_CONTROL, drift_correction, next_control
from silo_agent.training.torch_objective import TorchObjective
from strategies.base import Array
from strategies.parts.server_updates.scaffold import CONTROL, CONTROL_BOUND, CONTROL_DELTA
from tests.support.objectives import make_data, make_job, make_work
from tests.support.simulation import Simulated, simulate
from tests.support.small_methods import built_model, clustered

CLASSES, WIDTH = 3, 4
SILOS = ([0, 1], [1, 2], [0, 2], [0, 1, 2])
FIELDS = {"classes": CLASSES, "input_shape": (WIDTH,), "model": {"name": "mlp", "hidden": (5,), "seed": 2}}


def data_of(place: int) -> SiloData:
    """No two weigh the same."""
    return clustered(np.random.default_rng(place), np.resize(SILOS[place], 40 + 20 * place))


def train_phases(rounds: int, *, momentum: float, takes_part: object = None) -> list[Simulated]:
    job = make_job({"preset": "scaffold"}, rounds=rounds, training={"momentum": momentum}, **FIELDS)
    steps = simulate(job, [data_of(place) for place in range(4)], takes_part=takes_part)  # type: ignore[arg-type]
    return [step for step in steps if step.phase == "train"]


def weights() -> NDArray[np.float64]:
    counts = np.array([len(data_of(place).train) for place in range(4)])
    return counts / counts.sum()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_global_variate_is_the_weighted_mean_of_the_silos(momentum: float) -> None:
    for step in train_phases(3, momentum=momentum):
        own_SP = np.array([kept[OWN_CONTROL] for kept in step.local], np.float64)
        np.testing.assert_allclose(step.state[CONTROL], weights() @ own_SP, atol=1e-6)
        assert np.abs(own_SP).max() > 1e-2


def test_variate_whose_change_was_clipped_moves_by_what_was_summed() -> None:
    """Else c would be another sum than that of the variates which the silos subtract, for good."""
    job = make_job(
        {"preset": "scaffold"}, rounds=2, training={"learning_rate": 1e-7, "momentum": 0.0}, **FIELDS
    )
    steps = simulate(job, [large(data_of(place)) for place in range(4)], in_ring=True)
    for step in (step for step in steps if step.phase == "train"):
        own_SP = np.array([kept[OWN_CONTROL] for kept in step.local], np.float64)
        np.testing.assert_allclose(step.state[CONTROL], weights() @ own_SP, atol=1e-3)
        assert max(np.abs(values[CONTROL_DELTA]).max() for values in step.values) > CONTROL_BOUND


def large(data: SiloData) -> SiloData:
    """Inputs so large that gradients are beyond the bound of what is summed."""
    return make_data(5e3 * data.train.features, data.train.labels)


def test_silos_that_sit_out_keep_their_variates_and_the_mean_still_holds() -> None:
    drawn = {1: [0, 1, 2, 3], 2: [0, 1, 2], 3: [1, 2, 3]}
    first, second, third = train_phases(3, momentum=0.0, takes_part=drawn.__getitem__)
    assert np.array_equal(second.local[3][OWN_CONTROL], first.local[3][OWN_CONTROL])
    assert not np.array_equal(third.local[3][OWN_CONTROL], first.local[3][OWN_CONTROL])
    own_SP = np.array([kept[OWN_CONTROL] for kept in third.local], np.float64)
    np.testing.assert_allclose(third.state[CONTROL], weights() @ own_SP, atol=1e-6)


def test_one_round_of_a_linear_model_by_hand() -> None:
    """Full batches, two steps: y <- y - lr (g(y) - c_i + c), then c_i+ = c_i - c + (x - y) / (K lr)."""
    rate, steps, weight = 0.1, 2, 0.25
    generator = np.random.default_rng(5)
    data = data_of(0)
    job = make_job(
        {"preset": "scaffold"},
        **{**FIELDS, "model": {"name": "mlp", "hidden": (5,), "seed": 2}},
        training={"momentum": 0.0, "learning_rate": rate, "local_epochs": steps, "batch_size": 4096},
    )
    work = make_work(job, data)
    size = sum(work.state["model/" + name].size for name in work.context.trained)
    c_P, own_P = (generator.normal(size=size).astype(np.float32) / 50 for _ in range(2))
    work = with_controls(work, c_P, own_P)

    values = TorchObjective(device="cpu").compute(work)

    x_P = np.concatenate([work.state["model/" + name].ravel() for name in work.context.trained])
    y_P = x_P.astype(np.float64)
    for _ in range(steps):
        y_P = y_P - rate * (gradient(work, y_P) - own_P + c_P)
    after_P = own_P - c_P + (x_P - y_P) / (steps * rate)
    np.testing.assert_allclose(values["delta"], weight * (y_P - x_P), atol=2e-6)
    np.testing.assert_allclose(values[CONTROL_DELTA], weight * (after_P - own_P), atol=2e-5)
    assert work.local.proposed is not None
    np.testing.assert_allclose(work.local.proposed[OWN_CONTROL], after_P, atol=5e-5)


def with_controls(work: Work, c_P: Array, own_P: Array) -> Work:
    state = {**work.state, CONTROL: c_P}
    context = replace(work.context, state=state)
    return replace(work, state=state, context=context, local=LocalState({OWN_CONTROL: own_P}))


def gradient(work: Work, theta_P: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of the mean cross-entropy of relu(x W + b) V + d over all samples, in numpy float64."""
    shapes = {name: work.state["model/" + name].shape for name in work.context.trained}
    cuts = np.cumsum([np.prod(shape) for shape in shapes.values()])[:-1]
    parts = dict(zip(shapes, np.split(theta_P, cuts.astype(int)), strict=True))
    (body_b, body_w, head_b, head_w) = (parts[name].reshape(shapes[name]) for name in sorted(parts))
    x_NF, labels_N = work.data.train.features.astype(np.float64), work.data.train.labels
    hidden_ND = np.maximum(x_NF @ body_w.T + body_b, 0.0)
    scores_NC = hidden_ND @ head_w.T + head_b
    odds_NC = np.exp(scores_NC - scores_NC.max(axis=1, keepdims=True))
    error_NC = odds_NC / odds_NC.sum(axis=1, keepdims=True) - np.eye(CLASSES)[labels_N]
    error_NC /= len(labels_N)
    back_ND = (error_NC @ head_w) * (hidden_ND > 0)
    found = {
        "body.bias": back_ND.sum(axis=0),
        "body.weight": back_ND.T @ x_NF,
        "head.bias": error_NC.sum(axis=0),
        "head.weight": error_NC.T @ hidden_ND,
    }
    return np.concatenate([found[key].ravel() for key in sorted(found)])


def test_without_a_step_the_variate_stays() -> None:
    work = make_work(make_job({"preset": "scaffold"}, **FIELDS), data_of(0))
    own_P = np.full(43, 0.5, np.float32)
    kept = replace(work, local=LocalState({OWN_CONTROL: own_P}))
    assert np.array_equal(next_control(kept, np.zeros(43, np.float32), steps=0.0), own_P)


def test_first_round_is_fedavg() -> None:
    job = make_job(**FIELDS, rounds=1)
    plain = [step for step in simulate(job, [data_of(place) for place in range(4)]) if step.phase == "train"]
    (first,) = train_phases(1, momentum=0.9)
    assert all(np.array_equal(first.state[name], array) for name, array in plain[0].state.items())


def test_variates_take_the_bytes_of_the_update_again() -> None:
    job = make_job({"preset": "scaffold"}, **FIELDS)
    work = make_work(job, data_of(0))
    words = {
        each.name: (each.shape, each.ring_bits) for each in job.method.phase("train").quantities(work.context)
    }
    assert words[CONTROL_DELTA] == words["delta"] == ((43,), 32)


def test_a_round_that_clipped_every_value_says_so_of_all_and_of_no_more() -> None:
    # the share was of the deltas alone, and came to 2
    job = make_job({"preset": "scaffold"}, **FIELDS)
    context = make_work(job, data_of(0)).context
    phase = job.method.phase("train")
    sums = {each.name: np.zeros(each.shape) for each in phase.quantities(context)}
    figures = phase.figures(context, {**sums, "clipped": np.array(2 * 43 * context.members)})
    assert figures["clipped_share"] == 1.0


def test_variates_of_another_model_are_refused() -> None:
    work = make_work(make_job({"preset": "scaffold"}, **FIELDS), data_of(0))
    with pytest.raises(RemoteProtocolError, match="method/control is float32"):
        drift_correction(replace(work, state={**work.state, CONTROL: np.zeros(3, np.float32)}))
    with pytest.raises(ConfigError, match="local state: method/own_control is not of this job's model"):
        drift_correction(replace(work, local=LocalState({OWN_CONTROL: np.zeros(3, np.float32)})))


def test_local_adam_is_refused() -> None:
    with pytest.raises(ValueError, match="scaffold knows the weights of gradients under sgd alone"):
        make_job({"preset": "scaffold"}, training={"optimizer": "adam"})


def test_correction_enters_every_step_as_it_is() -> None:
    work = make_work(make_job({"preset": "scaffold"}, **FIELDS), data_of(0))
    c_P, own_P = np.arange(43, dtype=np.float32), np.ones(43, np.float32)
    penalty = drift_correction(with_controls(work, c_P, own_P))
    model = built_model(work.spec)
    gradients = dict(model.named_parameters())

    def found() -> Array:
        return np.concatenate([gradients[name].grad.numpy().ravel() for name in work.context.trained])  # type: ignore[union-attr]

    torch.autograd.backward(penalty.penalty(model))
    assert np.array_equal(found(), c_P - own_P)
    penalty.add_gradient(model, weight=2.0)  # to what is there
    assert np.array_equal(found(), 3.0 * (c_P - own_P))

"""FedExP, FedOpt and FedNova against numbers worked out by hand, and what each must never do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from chorale.spec.state import state_from_bytes, state_to_bytes
from crypto.errors import ConfigError
from crypto.fixed_point.layout import CLIPPED, Layout
from silo_agent.training.parts.server_updates import normalizer
from silo_agent.training.torch_objective import TorchObjective
from strategies.base import Array, PhaseContext
from strategies.methods import strategy_for
from strategies.parts.server_updates.fedexp import extrapolation
from strategies.parts.server_updates.fedopt import MOMENT, SQUARES
from tests.support.objectives import make_data, make_job, make_work
from tests.support.simulation import simulate
from tests.support.small_methods import make_context

# two silos, p = 0.25 and 0.5; a third, p = 0.25, is not in the sum
WEIGHTS = (0.25, 0.5)
DELTAS = (np.array([1.0, -2.0]), np.array([-1.0, 0.5]))
MEAN = (DELTAS[0] + 2 * DELTAS[1]) / 3  # [-1/3, -1/3]


def context(options: Mapping[str, Any], state: Mapping[str, Array] | None = None) -> PhaseContext:
    model: dict[str, Array] = {"model/w": np.zeros(2, dtype=np.float32)}
    return make_context(model if state is None else state, classes=2, trained=("w",), options=options)


def sums(**changes: Any) -> dict[str, Array]:
    """What the phase is given for WEIGHTS and DELTAS, without the update's own quantities."""
    plain: dict[str, Any] = {
        "delta": sum(p * delta for p, delta in zip(WEIGHTS, DELTAS, strict=True)),
        "weight": sum(WEIGHTS),
        "correct": 1,
        "tested": 2,
        "loss_sum": 1.0,
        CLIPPED: 0,
    }
    return {name: np.asarray(value) for name, value in (plain | changes).items()}


def stepped(
    preset: str, revealed: Mapping[str, Array], *, state: Mapping[str, Array] | None = None, **options: Any
) -> Any:
    strategy = strategy_for(preset, options)
    return strategy.phase("train").next_state(context(strategy.options, state), revealed)


def squared_lengths() -> Array:
    return np.asarray(sum(p * delta @ delta for p, delta in zip(WEIGHTS, DELTAS, strict=True)))


# FedExP


def test_fedexp_stretches_a_mean_that_cancels() -> None:
    """(0.25 * 5 + 0.5 * 1.25) / 0.75 = 2.5 over 2 (2/9 + 0.001)."""
    result = stepped("fedexp", sums(update_sq_norm=squared_lengths()))
    rate = 2.5 / (2 * (2 / 9 + 0.001))
    assert result.figures["server_step"] == pytest.approx(rate, rel=1e-12)
    assert rate == pytest.approx(5.59980090, abs=1e-8)
    np.testing.assert_allclose(result.state["model/w"], rate * MEAN, rtol=1e-6)


def test_fedexp_squares_its_norms_and_never_shrinks_the_step() -> None:
    """Author-side code takes min(1, .) of plain norms (card of FedDr+, 11.21): here 1 is the least."""
    same = np.array([0.3, 0.4])
    result = stepped("fedexp", sums(delta=0.75 * same, update_sq_norm=0.75 * same @ same))
    assert result.figures["server_step"] == 1.0
    np.testing.assert_allclose(result.state["model/w"], same, rtol=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_fedexp_steps_at_least_as_far_as_fedavg(seed: int) -> None:
    generator = np.random.default_rng(seed)
    deltas_KP, p_K = generator.normal(size=(4, 6)), generator.dirichlet(np.ones(4))
    mean_P = p_K @ deltas_KP
    rate = extrapolation(
        mean_of_squares=float(p_K @ (deltas_KP**2).sum(axis=1)),
        square_of_mean=float(mean_P @ mean_P),
        epsilon=1e-3,
    )
    assert rate >= 1.0


def test_fedexp_stays_finite_where_deltas_cancel() -> None:
    result = stepped("fedexp", sums(delta=np.zeros(2), update_sq_norm=1.5))
    assert result.figures["server_step"] == pytest.approx(1000.0)
    assert not result.state["model/w"].any()
    assert extrapolation(mean_of_squares=1.0, square_of_mean=0.0, epsilon=0.0) == 1.0


def test_fedexp_silo_sends_its_weighted_squared_length() -> None:
    values = trained("fedexp")
    delta_P = values["delta"].astype(np.float64) / 0.25
    assert values["update_sq_norm"] == pytest.approx(0.25 * delta_P @ delta_P, rel=1e-5)
    assert values["update_sq_norm"].dtype == np.float64


def test_fedexp_bound_is_reached_only_where_all_is_clipped() -> None:
    quantity = strategy_for("fedexp", {}).phase("train").quantities(context({}))[2]
    assert (quantity.name, quantity.bound) == ("update_sq_norm", 2 * 8.0**2)


# FedOpt


def test_fedopt_default_is_spherefeds_sgd() -> None:
    """lr 1.0 and momentum 0.3: the first step is FedAvg's, the second has 0.3 of it on top."""
    first = stepped("fedopt", sums())
    np.testing.assert_allclose(first.state["model/w"], MEAN, rtol=1e-6)
    second = stepped("fedopt", sums(), state=through_file(first.state))
    np.testing.assert_allclose(second.state[MOMENT], 1.3 * MEAN, rtol=1e-6)
    np.testing.assert_allclose(second.state["model/w"], 2.3 * MEAN, rtol=1e-6)


def test_fedopt_without_memory_is_fedavg() -> None:
    result = stepped("fedopt", sums(), server_momentum=0.0)
    np.testing.assert_array_equal(result.state["model/w"], stepped("fedavg", sums()).state["model/w"])


@pytest.mark.parametrize(
    "kind, second_squares",
    [
        ("adam", lambda v, d: 0.99 * v + 0.01 * d**2),
        ("yogi", lambda v, d: v - 0.01 * d**2 * np.sign(v - d**2)),
    ],
)
def test_fedopt_adaptive_steps_are_reddis(kind: str, second_squares: Any) -> None:
    """m = 0 and v = tau^2 at first, no bias correction; moments carried over in the state."""
    tau = 1e-3
    first = stepped("fedopt", sums(), server_optimizer=kind)
    moment_P = 0.1 * MEAN
    squares_P = second_squares(np.full(2, tau**2), MEAN)
    weights_P = 0.01 * moment_P / (np.sqrt(squares_P) + tau)
    np.testing.assert_allclose(first.state["model/w"], weights_P, rtol=1e-6)
    np.testing.assert_allclose(first.state[SQUARES], squares_P, rtol=1e-6)

    turned = sums(delta=np.array([0.3, -0.06]), weight=0.75)
    second = stepped("fedopt", turned, state=through_file(first.state), server_optimizer=kind)
    moment_P = 0.9 * moment_P + 0.1 * np.array([0.4, -0.08])
    squares_P = second_squares(squares_P, np.array([0.4, -0.08]))
    weights_P = weights_P + 0.01 * moment_P / (np.sqrt(squares_P) + tau)
    np.testing.assert_allclose(second.state["model/w"], weights_P, rtol=1e-5)
    np.testing.assert_allclose(second.state[MOMENT], moment_P, rtol=1e-5)


def test_adam_and_yogi_differ_once_v_is_above_the_square() -> None:
    """Yogi lets v fall by a share of D^2, adam by a share of v."""
    after = {}
    for kind in ("adam", "yogi"):
        first = stepped("fedopt", sums(), server_optimizer=kind)
        after[kind] = stepped("fedopt", sums(delta=np.zeros(2)), state=first.state, server_optimizer=kind)
    squares = {kind: result.state[SQUARES] for kind, result in after.items()}
    first_squares = 1e-6 + 0.01 * (MEAN**2 - 0)
    np.testing.assert_allclose(squares["yogi"], first_squares, rtol=1e-4)
    np.testing.assert_allclose(squares["adam"], 0.99 * first_squares, rtol=1e-4)


@pytest.mark.parametrize("kind, rate", [("sgd", 1.0), ("adam", 0.01), ("yogi", 0.01)])
def test_fedopt_learning_rate_fits_the_optimizer_unless_given(kind: str, rate: float) -> None:
    default = stepped("fedopt", sums(), server_optimizer=kind).state["model/w"]
    given = stepped("fedopt", sums(), server_optimizer=kind, server_learning_rate=rate).state["model/w"]
    halved = stepped("fedopt", sums(), server_optimizer=kind, server_learning_rate=rate / 2).state["model/w"]
    np.testing.assert_array_equal(default, given)
    np.testing.assert_allclose(2 * halved, given, rtol=1e-6)


def test_fedopt_moments_stay_where_a_round_is_not_applied() -> None:
    result = stepped("fedopt", sums(weight=0.0))
    assert (result.state, result.reason) == (None, "no-data")


@pytest.mark.parametrize(
    "option, value, message",
    [
        ("server_optimizer", "lion", "'sgd', 'adam' or 'yogi', got 'lion'"),
        ("server_momentum", 1.0, "less than 1, got 1.0"),
        ("server_tau", 0.0, "expected more than 0, got 0.0"),
        ("tau", 1e-3, "unknown option, fedopt has server_beta1, server_beta2, .*server_tau"),
    ],
)
def test_fedopt_options_are_checked(option: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        strategy_for("fedopt", {option: value})


# FedNova


def nova_sums(steps: tuple[int, int], *, momentum: float = 0.0) -> dict[str, Array]:
    a = [normalizer(steps=each, momentum=momentum) for each in steps]
    return sums(
        delta=sum(p * delta / each for p, delta, each in zip(WEIGHTS, DELTAS, a, strict=True)),
        normalizer=sum(p * each for p, each in zip(WEIGHTS, a, strict=True)),
    )


def test_fednova_normalizes_by_steps_and_goes_as_far_as_the_mean_silo() -> None:
    """a = 2 and 5: effective steps (0.25 * 2 + 0.5 * 5) / 0.75 = 4, direction mean of d/a."""
    result = stepped("fednova", nova_sums((2, 5)))
    assert result.figures["effective_steps"] == pytest.approx(4.0)
    expected = 4.0 * (DELTAS[0] / 2 + 2 * DELTAS[1] / 5) / 3
    np.testing.assert_allclose(result.state["model/w"], expected, rtol=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fednova_with_equal_steps_is_fedavg(momentum: float) -> None:
    result = stepped("fednova", nova_sums((7, 7), momentum=momentum))
    np.testing.assert_allclose(result.state["model/w"], stepped("fedavg", sums()).state["model/w"], rtol=1e-6)


@pytest.mark.parametrize(
    "steps, momentum, expected", [(3, 0.0, 3.0), (2, 0.9, 2.9), (3, 0.5, 4.25), (0, 0.9, 0.0)]
)
def test_normalizer_by_hand(steps: int, momentum: float, expected: float) -> None:
    """Momentum 0.5, three steps: 1.75 + 1.5 + 1."""
    assert normalizer(steps=steps, momentum=momentum) == pytest.approx(expected)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_normalizer_is_what_the_optimizer_adds_up(momentum: float) -> None:
    """Under a gradient of one, the optimizer's own path is minus the rate times a."""
    weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=momentum)
    for _ in range(6):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    assert -weight.item() / 0.1 == pytest.approx(normalizer(steps=6, momentum=momentum), rel=1e-12)


def test_fednova_finds_the_optimum_that_fedavg_misses() -> None:
    """Silos at 0 and 3 with p = 0.5 and quadratic losses; the second takes ten steps to the first's one.

    Its later steps start nearer to 3 and are shorter, which leaves FedNova at 1.466 at this rate."""
    found = {}
    for preset in ("fedavg", "fednova"):
        w = 0.0
        for _ in range(400):
            w += one_round(preset, w)
        found[preset] = w
    assert found["fednova"] == pytest.approx(1.5, abs=0.05)
    assert found["fedavg"] > 2.5


def one_round(preset: str, w: float) -> float:
    rate, centers, steps = 0.01, (0.0, 3.0), (1, 10)
    deltas = [(center - w) * (1 - (1 - rate) ** each) for center, each in zip(centers, steps, strict=True)]
    a = [normalizer(steps=each, momentum=0.0) if preset == "fednova" else 1.0 for each in steps]
    state: dict[str, Array] = {"model/w": np.zeros(1, dtype=np.float32)}
    revealed = sums(
        delta=np.array([sum(0.5 * delta / each for delta, each in zip(deltas, a, strict=True))]),
        weight=1.0,
        normalizer=sum(0.5 * each for each in a),
    )
    return float(stepped(preset, revealed, state=state).state["model/w"][0])


def test_fednova_silo_sends_direction_and_normalizer() -> None:
    """16 samples in batches of 4, two epochs, momentum 0.9: eight steps."""
    plain, normalized = trained("fedavg"), trained("fednova")
    a = normalizer(steps=8, momentum=0.9)
    np.testing.assert_allclose(normalized["delta"] * a, plain["delta"], rtol=1e-5, atol=1e-9)
    assert normalized["normalizer"] == pytest.approx(0.25 * a)
    assert normalized["weight"] == plain["weight"] == 0.25


def test_fednova_needs_sgd_at_the_silos() -> None:
    with pytest.raises(ValueError, match="training.optimizer: fednova knows .* under sgd alone, got adam"):
        make_job({"preset": "fednova"}, training={"optimizer": "adam"})


# all of them


def trained(preset: str) -> dict[str, Array]:
    job = make_job({"preset": preset}, classes=3, input_shape=(4,), training={"batch_size": 4})
    generator = np.random.default_rng(1)
    data = make_data(generator.normal(size=(16, 4)), generator.integers(0, 3, size=16))
    values = dict(TorchObjective(device="cpu").compute(make_work(job, data)))
    quantities = job.method.phase("train").quantities(make_work(job, data).context)
    assert values.keys() == {quantity.name for quantity in quantities} - {CLIPPED}
    return values


@pytest.mark.parametrize("preset", ["fedexp", "fedopt", "fednova"])
def test_rounds_run_and_learn(preset: str) -> None:
    generator = np.random.default_rng(3)
    labels = generator.integers(0, 3, size=90)
    features = np.eye(3)[labels] + 0.3 * generator.normal(size=(90, 3))
    silos = [make_data(features[place::3], labels[place::3]) for place in range(3)]
    job = make_job({"preset": preset}, classes=3, input_shape=(3,), rounds=6)
    accuracies = [phase.figures["accuracy"] for phase in simulate(job, silos) if phase.phase != "enrollment"]
    assert accuracies[-1] >= 0.9 > accuracies[0]


def test_fednova_follows_fedavg_where_silos_are_of_one_size() -> None:
    generator = np.random.default_rng(3)
    silos = [make_data(generator.normal(size=(20, 4)), generator.integers(0, 3, size=20)) for _ in range(3)]
    models = []
    for preset in ("fedavg", "fednova"):
        job = make_job({"preset": preset}, classes=3, input_shape=(4,), rounds=2)
        models.append([*simulate(job, silos)][-1].state)
    for name in models[0]:
        np.testing.assert_allclose(models[1][name], models[0][name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("preset", ["fedexp", "fedopt", "fednova"])
def test_what_is_summed_beside_is_no_class_statistic_and_fits_its_word(preset: str) -> None:
    quantities = strategy_for(preset, {}).phase("train").quantities(context({}))
    assert not any(quantity.discloses.is_by_class for quantity in quantities)
    assert Layout(quantities=quantities, members=10_000).total_bytes > 0


def through_file(state: Mapping[str, Array]) -> dict[str, Array]:
    return state_from_bytes(state_to_bytes(state))

"""The server's step from a summed gradient, beside torch's own optimizers, and what it divides by."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from crypto.errors import ConfigError
from crypto.fixed_point.layout import Disclosure, Side
from strategies.base import MODEL, Array, PhaseContext
from strategies.exact import whole_power
from strategies.parts.server_updates.fedopt import FEDOPT
from strategies.parts.server_updates.mean import WEIGHTED_MEAN
from strategies.phases.step import GRADIENT, StepPhase
from strategies.recipe import ServerUpdate
from strategies.server_optimizer import MOMENT, SQUARES, STEPS, StepOptimizer

SHAPES = {"head.weight": (3, 5), "head.bias": (3,)}
SIZE = 18
BATCH, SURVIVORS, MEMBERS = 8, 3, 4
RATE = 0.25


def phase(update: ServerUpdate = WEIGHTED_MEAN, **fields: Any) -> StepPhase:
    settings = {"kind": "sgd", "momentum": 0.0, "weight_decay": 0.0, "rate": lambda round: RATE / round}
    optimizer = StepOptimizer(batch_size=BATCH, clip_norm=0.5, **(settings | fields))
    return StepPhase(optimizer=optimizer, update=update.rule)


def first() -> dict[str, Array]:
    draw = np.random.default_rng(1)
    return {MODEL + name: draw.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}


def context(state: dict[str, Array], *, round: int = 1, **fields: Any) -> PhaseContext:
    given = {"members": MEMBERS, "classes": 3, "survivors": SURVIVORS} | fields
    return PhaseContext(round=round, state=state, trained=tuple(SHAPES), **given)


def gradients(steps: int) -> list[Array]:
    return list(np.random.default_rng(2).standard_normal((steps, SIZE)) * 10.0)


def taken(of: StepPhase, sums: list[Array], **fields: Any) -> dict[str, Array]:
    state = first()
    for round, gradient_P in enumerate(sums, start=1):
        result = of.next_state(context(state, round=round, **fields), {GRADIENT: gradient_P})
        assert result.state is not None
        state = dict(result.state)
    return state


def flat(state: dict[str, Array]) -> Array:
    return np.concatenate([state[MODEL + name].reshape(-1) for name in SHAPES])


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"momentum": 0.9},
        {"momentum": 0.5, "weight_decay": 0.1},
        {"kind": "adam"},
        {"kind": "adam", "weight_decay": 0.1},
    ],
    ids=str,
)
def test_steps_are_those_of_torch_on_the_mean_gradient(fields: dict[str, Any]) -> None:
    sums = gradients(7)
    state = taken(phase(**fields), sums)
    weight_P = torch.nn.Parameter(torch.from_numpy(flat(first()).astype(np.float64)))
    given = {"lr": RATE, "weight_decay": fields.get("weight_decay", 0.0)}
    if fields.get("kind") == "adam":
        optimizer: torch.optim.Optimizer = torch.optim.Adam([weight_P], **given)
    else:
        optimizer = torch.optim.SGD([weight_P], momentum=fields.get("momentum", 0.0), **given)
    for round, gradient_P in enumerate(sums, start=1):
        optimizer.param_groups[0]["lr"] = RATE / round
        weight_P.grad = torch.from_numpy(gradient_P / (BATCH * SURVIVORS))
        optimizer.step()
    np.testing.assert_allclose(flat(state), weight_P.detach().numpy(), rtol=0, atol=2e-6)
    kept = {MOMENT, SQUARES} if fields.get("kind") == "adam" else {MOMENT} if "momentum" in fields else set()
    assert {name for name in state if name.startswith("method/")} == {STEPS, *kept}
    assert state[STEPS] == 7


def test_the_divisor_is_declared_and_counts_the_survivors_alone() -> None:
    """What a silo sends beside its gradient, or how many records it drew, cannot move it."""
    (gradient_P,) = gradients(1)
    moved = [flat(taken(phase(), [gradient_P], survivors=survivors)) - flat(first()) for survivors in (2, 4)]
    np.testing.assert_allclose(moved[0], -RATE * gradient_P / (BATCH * 2), atol=1e-6)
    np.testing.assert_allclose(moved[0], 2.0 * moved[1], atol=1e-6)


def test_fedopt_takes_the_step_for_its_pseudo_gradient() -> None:
    (gradient_P,) = gradients(1)
    options = {"server_optimizer": "sgd", "server_learning_rate": 0.5, "server_momentum": 0.3}
    state = taken(phase(FEDOPT), [gradient_P], options=options)
    plain = flat(taken(phase(), [gradient_P])) - flat(first())
    np.testing.assert_allclose(flat(state) - flat(first()), 0.5 * plain, atol=1e-6)
    np.testing.assert_allclose(state["method/server_moment"], plain, atol=1e-6)


def test_a_step_of_too_few_silos_is_not_taken() -> None:
    result = phase().next_state(context(first(), min_weight=0.8), {GRADIENT: gradients(1)[0]})
    assert (result.state, result.reason, result.data_share) == (None, "min-weight", 0.75)


def test_the_gradient_is_all_that_is_summed() -> None:
    (gradient,) = phase().quantities(context(first(), update_bits=32))
    assert (gradient.shape, gradient.bound, gradient.sensitivity_l2) == ((SIZE,), 2.0 * BATCH * 0.5, 0.5)
    assert (gradient.is_whole_units, gradient.is_tagged) == (True, True)
    assert (gradient.discloses, gradient.side) == (Disclosure.UPDATE, Side.TRAIN)
    assert phase().quantities(context(first(), update_bits=64))[0].ring_bits == 64


@pytest.mark.parametrize("count", [np.array(-1), np.zeros(2, np.int64), np.array(1.0)], ids=str)
def test_a_count_of_steps_that_no_step_wrote_is_refused(count: Array) -> None:
    state = first() | {STEPS: count}
    with pytest.raises(ConfigError, match="state: method/steps: expected one whole number from 0, got"):
        phase().next_state(context(state), {GRADIENT: gradients(1)[0]})


def test_powers_are_products() -> None:
    """pow() of two C libraries may differ in the last bit, and with it the state's digest."""
    assert [whole_power(0.9, exponent) for exponent in range(4)] == [1.0, 0.9, 0.9 * 0.9, 0.9 * (0.9 * 0.9)]
    assert whole_power(0.999, 100_000) == pytest.approx(0.999**100_000, rel=1e-9)

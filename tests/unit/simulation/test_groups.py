"""Rounds of groups that are drawn once: what sums over them tell, however many there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from crypto.errors import ConfigError
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.training.data.base import SiloData
from silo_agent.training.models.starting import initial_state
from silo_agent.training.torch_objective import TorchObjective
from simulation.engine import Simulation, unsigned_job
from strategies.base import MODEL
from tests.support.objectives import make_data, make_work
from tests.unit.simulation.conftest import spec_of

SILOS, DRAWN, ROUNDS, SAMPLES = 8, 4, 16, 60
SLOW = 1e-5  # a model hardly moves at this rate
FIELDS: Mapping[str, Any] = {
    "classes": 3,
    "input_shape": [4],
    "model": {"name": "mlp", "hidden": [8]},
    "training": {"learning_rate": SLOW, "local_epochs": 1, "batch_size": SAMPLES, "momentum": 0.0},
    "fraction": DRAWN / SILOS,
    "rounds": ROUNDS,
}


def data_of(place: int) -> SiloData:
    """As many samples at each silo, of its own clusters."""
    generator = np.random.default_rng(place)
    labels = np.resize(np.arange(3), SAMPLES)
    return make_data(generator.normal(size=(SAMPLES, 4)) + 2 * np.eye(3, 4)[labels], (labels + place) % 3)


def simulated(**fields: Any) -> tuple[list[tuple[str, ...]], NDArray[Any]]:
    """Who was named in each round but the first, and how it moved the model. Shapes: (rounds, parameters)."""
    spec = spec_of(SILOS, **{**FIELDS, **fields})
    data = {name: data_of(place) for place, name in enumerate(spec.silos)}
    policy = Policy(federation="test", count_granularity=1, assumed_colluders=0)
    simulation = Simulation(spec, data, policy=policy, device="cpu")
    named, moves, before = [], [], None
    for each in simulation.run():
        after = flat(simulation.state)
        named.append(each.silos)
        moves.append(np.zeros_like(after) if before is None else after - before)
        before = after
    return named[1:], np.stack(moves[1:])


def flat(state: Mapping[str, Any]) -> NDArray[Any]:
    return np.concatenate([np.ravel(state[name]) for name in sorted(state) if name.startswith(MODEL)]).astype(
        np.float64
    )


def solved(named: list[tuple[str, ...]], moves_RP: NDArray[Any]) -> NDArray[Any]:
    """Each silo's own update, by least squares over all rounds. Shapes: -> (silos, parameters)."""
    names = sorted({name for each in named for name in each})
    who_RS = np.array([[name in each for name in names] for each in named], np.float64) / DRAWN
    return np.linalg.lstsq(who_RS, moves_RP, rcond=None)[0]


def own_updates() -> NDArray[Any]:
    """The truth, but for one factor: each silo's update of the first model. Shapes: (silos, parameters)."""
    spec = spec_of(SILOS, **{**FIELDS, "fraction": 1.0})
    computed = (
        TorchObjective(device="cpu").compute(make_work(spec, data_of(place))) for place in range(SILOS)
    )
    return np.stack([np.ravel(each["delta"]) for each in computed])


def cosine(one: NDArray[Any], other: NDArray[Any]) -> float:
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


def test_sums_over_many_draws_give_every_silos_update_and_those_over_groups_none() -> None:
    truth_SP = own_updates()
    fresh, by_draw = simulated()
    assert len(set(fresh)) >= SILOS  # the control: as many equations as silos, and more
    found_SP = solved(fresh, by_draw)
    assert min(map(cosine, found_SP, truth_SP)) > 0.99
    fixed, by_group = simulated(draw="groups")
    hidden_SP = solved(fixed, by_group)
    one, other = set(fixed)
    assert not set(one) & set(other)
    names = sorted([*one, *other])
    for group in (one, other):
        members = [names.index(each) for each in group]
        # all of a group have the same: its mean, and nothing of their own
        assert np.ptp(hidden_SP[members], axis=0).max() < 1e-6 * np.abs(hidden_SP).max()
        assert cosine(hidden_SP[members[0]], truth_SP[members].sum(axis=0)) > 0.99
    assert max(map(cosine, hidden_SP, truth_SP)) < 0.95


def test_groups_take_turns_and_each_silo_trains_once_in_a_turn() -> None:
    named, _ = simulated(draw="groups", rounds=5)
    assert named[0] != named[1]
    assert named[0] == named[2]
    assert named[1] == named[3]


def test_a_group_takes_its_turn_while_all_of_it_is_on_the_roster() -> None:
    """Of a smaller one fewer colluders may be borne than the draw's risk was computed for."""
    spec = spec_of(SILOS, **FIELDS, draw="groups")
    job = unsigned_job(spec, initial_state(spec))
    whole = [job.named(spec.silos, round, "train", bytes(32)) for round in (1, 2)]
    gone = whole[0][0]
    there = [name for name in spec.silos if name != gone]
    with pytest.raises(ConfigError, match="round 1: 1 of its group's silos not on the roster, expected none"):
        job.named(there, 1, "train", bytes(32))
    assert job.named(there, 2, "train", bytes(32)) == whole[1]
    assert job.named(there, 0, "enrollment.0", b"") == tuple(there)
    # the control: a new draw has another in its place
    redrawn = unsigned_job(spec_of(SILOS, **FIELDS), initial_state(spec))
    assert len(redrawn.named(there, 1, "train", bytes(32))) == DRAWN


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"fraction": 1.0}, "draw: expected none where a round names all 8 silos, got groups"),
        ({"fraction": 0.75}, "draw: groups of 6 do not divide 8 silos; fractions that do: 0.5$"),
    ],
)
def test_groups_that_cannot_be_are_refused_with_the_fractions_that_can(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        spec_of(SILOS, **{**FIELDS, **fields}, draw="groups")

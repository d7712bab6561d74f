"""A simulated job: who is in a round's sum, what the sum does, what refusals and kept arrays make of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from crypto.errors import ConfigError
from crypto.session.cohort import draw_seed
from silo_agent.training.objective import Work
from simulation.engine import Simulation, unsigned_job
from simulation.results import SimulationFailed
from strategies.base import DRAW_SEED, Array
from strategies.phases.enrollment import draw_seed_in
from tests.support import one_hot
from tests.unit.simulation.conftest import SILOS, Makes, spec_of, votes

STEP = 2.0**-24  # coarser than the fixed point of seven silos within a bound of 8


def model(simulation: Simulation) -> Array:
    return np.asarray(simulation.state["model/votes"], np.float64)


def test_every_silo_counts_once_in_every_round(make: Makes) -> None:
    simulation = make(rounds=2)
    results = list(simulation.run())
    assert [(each.round, each.result, len(each.silos)) for each in results] == [
        (1, "applied", SILOS),
        (2, "applied", SILOS),
    ]
    assert model(simulation) == pytest.approx(np.full(SILOS, 2 / SILOS), abs=1e-7)
    assert simulation.final_accuracy is not None
    assert simulation.final_accuracy.value == sum(range(SILOS)) / (SILOS * one_hot.HOLDOUT)
    assert results[0].accuracy == simulation.final_accuracy


def test_a_round_sums_the_silos_that_the_seed_draws_and_no_other(make: Makes) -> None:
    seeds = {name: name.encode() * 2 for name in spec_of().silos}
    simulation = make(fraction=0.5, rounds=4, simulation={"self_mask_seeds": seeds})
    results = list(simulation.run())
    assert simulation.state[DRAW_SEED].tobytes() == draw_seed(simulation.job.digest, seeds)
    silos = simulation.job.spec.silos
    assert [each.silos for each in results] == [
        simulation.job.named(silos, round, "train", draw_seed_in(simulation.state)) for round in (1, 2, 3, 4)
    ]
    drawn = np.zeros(SILOS)
    for each in results:
        drawn[[int(name.removeprefix("silo-")) for name in each.silos]] += 1 / 4
    assert model(simulation) == pytest.approx(drawn, abs=1e-6)
    assert len({each.silos for each in results}) > 1


def test_the_jobs_seed_decides_the_draws(make: Makes) -> None:
    def drawn(seed: int) -> list[tuple[str, ...]]:
        return [each.silos for each in make(fraction=0.5, rounds=4, seed=seed).run()]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


@pytest.mark.parametrize(
    "fields", [{}, {"fraction": 0.6}, {"update_bits": 16}, {"update_bound": 0.1}], ids=str
)
def test_masks_change_nothing_but_the_rounding(make: Makes, fields: dict[str, Any]) -> None:
    plain, secure = make(**fields), make(**fields, simulation={"is_secure": True})
    rounds = [(each.silos, each.figures["clipped"]) for each in plain.run()]
    assert [(each.silos, each.figures["clipped"]) for each in secure.run()] == rounds
    assert (rounds[0][1] == SILOS) == ("update_bound" in fields)  # p = 1/7 of every silo
    # 3 rounds of 7 silos; words of 16 bits are rounded alike, by the same random bits
    assert np.abs(model(plain) - model(secure)).max() <= 3 * SILOS * STEP
    assert model(plain).max() > 0.1


def test_a_silo_that_refuses_is_in_no_sum(make: Makes) -> None:
    class OneRefuses(one_hot.OneHot):
        def compute(self, work: Work) -> Mapping[str, Array]:
            if work.silo == "silo-2":
                raise ConfigError("data: gone")
            return super().compute(work)

    for is_secure in (False, True):
        simulation = make(rounds=1, simulation={"objective": OneRefuses(), "is_secure": is_secure})
        (result,) = simulation.run()
        assert list(result.left_out) == ["silo-2"]
        assert "data: gone" in result.left_out["silo-2"]
        others = np.ones(SILOS)
        others[2] = 0
        assert model(simulation) == pytest.approx(others / (SILOS - 1), abs=1e-6)


def test_a_value_that_is_no_number_never_reaches_a_sum(make: Makes) -> None:
    simulation = make(rounds=1, simulation={"objective": one_hot.poisoned_objective()})
    assert [each.reason for each in simulation.run()] == ["too-few-silos"]
    assert not model(simulation).any()


def test_a_round_below_min_weight_is_used_up_and_the_next_one_runs(make: Makes) -> None:
    class SmallOnesRefuse(one_hot.OneHot):
        def compute(self, work: Work) -> Mapping[str, Array]:
            if work.round == 1 and work.silo == "silo-0" and work.phase_kind == "train":
                raise ConfigError("data: not now")
            return super().compute(work)

    simulation = make(rounds=2, min_weight=0.95, simulation={"objective": SmallOnesRefuse()})
    results = list(simulation.run())
    assert [(each.result, each.reason) for each in results] == [("used-up", "min-weight"), ("applied", "")]
    assert model(simulation) == pytest.approx(np.full(SILOS, 1 / SILOS), abs=1e-7)


@pytest.mark.parametrize("is_secure", [False, True])
def test_a_silo_that_cancels_the_others_weights_uses_up_the_round(make: Makes, is_secure: bool) -> None:
    class OneLies(one_hot.OneHot):
        def compute(self, work: Work) -> Mapping[str, Array]:
            values = dict(super().compute(work))
            if (work.round, work.silo, work.phase_kind) == (1, "silo-0", "train"):
                values["weight"] = np.array(2.0**-24 - (SILOS - 1) / SILOS)
            return values

    simulation = make(rounds=2, simulation={"objective": OneLies(), "is_secure": is_secure})
    results = list(simulation.run())
    assert [(each.result, each.reason) for each in results] == [("used-up", "min-weight"), ("applied", "")]
    assert model(simulation) == pytest.approx(np.full(SILOS, 1 / SILOS), abs=1e-7)


def test_a_phase_outside_rounds_that_nobody_can_join_ends_the_simulation(make: Makes) -> None:
    class NoSiloTests(one_hot.OneHot):
        def compute(self, work: Work) -> Mapping[str, Array]:
            if work.phase_kind == "evaluate":
                raise ConfigError("data: no hold-out")
            return super().compute(work)

    simulation = make(rounds=1, simulation={"objective": NoSiloTests()})
    with pytest.raises(SimulationFailed, match=r"evaluate: too-few-silos \(silo-0: .*no hold-out"):
        list(simulation.run())


class Keeping(one_hot.OneHot):
    """Counts the applied rounds that a silo was in, in what it keeps."""

    def compute(self, work: Work) -> Mapping[str, Array]:
        if work.phase_kind == "train":
            work.local.propose({"method/rounds": work.local.arrays.get("method/rounds", np.zeros(1)) + 1})
        return super().compute(work)


def test_what_a_silo_keeps_moves_with_applied_rounds_that_it_was_in(make: Makes) -> None:
    simulation = make(fraction=0.5, rounds=5, simulation={"objective": Keeping()})
    were_in = [name for result in simulation.run() for name in result.silos]
    kept = {name: int(file.arrays()["method/rounds"][0]) for name, file in simulation.progress.local.items()}
    assert kept == {name: were_in.count(name) for name in set(were_in)}


def test_what_a_silo_keeps_stays_where_a_round_was_used_up(make: Makes) -> None:
    class OneRefuses(Keeping):
        def compute(self, work: Work) -> Mapping[str, Array]:
            if work.silo == "silo-0" and work.phase_kind == "train":
                raise ConfigError("data: gone")
            return super().compute(work)

    simulation = make(rounds=2, min_weight=0.95, simulation={"objective": OneRefuses()})
    assert [each.reason for each in simulation.run()] == ["min-weight", "min-weight"]
    assert simulation.progress.local == {}


def test_earlier_progress_leads_to_the_same_end(make: Makes) -> None:
    def fresh() -> Simulation:
        return make(fraction=0.6, rounds=4, simulation={"objective": Keeping()})

    whole, stopped = fresh(), fresh()
    expected = [each.silos for each in whole.run()]
    rounds = stopped.run()
    seen = [next(rounds).silos, next(rounds).silos]
    again = fresh()
    again.progress = stopped.progress
    assert seen + [each.silos for each in again.run()] == expected
    assert model(again).tobytes() == model(whole).tobytes()
    kept = [{name: file.arrays() for name, file in each.progress.local.items()} for each in (again, whole)]
    assert kept[0] == kept[1]
    assert again.closing == whole.closing


def test_names_and_data_have_to_fit() -> None:
    spec = spec_of()
    data = {name: one_hot.silo_data(name) for name in spec.silos}
    data["stranger"] = data.pop("silo-3")
    with pytest.raises(ConfigError, match="silo-3 has no data"):
        Simulation(spec, data, state=votes(), objective=one_hot.objective())


def test_a_job_that_was_signed_keeps_its_digest() -> None:
    spec = spec_of()
    job = unsigned_job(spec, votes())
    assert unsigned_job(job.spec, votes()).digest == job.digest
    assert job.spec.nonce == "0" * 32


def test_a_worker_that_dies_is_told_in_a_sentence(make: Makes) -> None:
    simulation = make(simulation={"workers": 2})
    rounds = simulation.run()
    next(rounds)
    simulation._silos._workers[0]._process.kill()  # type: ignore[union-attr]
    with pytest.raises(SimulationFailed, match="a worker process ended with code -9"):
        next(rounds)


def test_simulation_has_more_silos_than_a_federation(make: Makes) -> None:
    """A wire's limit of 200 kept jobs of a thousand silos, a tenth drawn, from being simulated at all."""
    simulation = make(silos=1_000, rounds=1, fraction=0.1)
    (result,) = simulation.run()
    drawn = [int(name.removeprefix("silo-")) for name in result.silos]
    votes_P = np.zeros(1_000)
    votes_P[drawn] = 1 / 100
    assert len(drawn) == 100
    assert simulation.state["model/votes"] == pytest.approx(votes_P, abs=1e-7)

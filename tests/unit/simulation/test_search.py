"""Arms of a search over whole jobs: which ones stay, what the winner is, what becomes of silos and arms that
are lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chorale.spec.model_file import facts_of, read_model
from chorale.spec.state import state_to_bytes
from crypto.errors import ConfigError, QuantizationError
from silo_agent.training.objective import Work
from simulation.engine import Simulation
from simulation.results import SimulationFailed
from strategies.phases.arms import ARMS, OTHERS, state_of
from tests.support.rated import RATE, Rated
from tests.unit.simulation.conftest import SILOS, Makes, spec_of
from tests.unit.simulation.test_folder import run_in
from tests.unit.simulation.test_training import digits, simulation

RATES = (0.1, 0.5, 1.5, 1.0, 3.0)  # in its first round the last but one moves the model to where it is best
SEARCH = {"values": {RATE: list(RATES)}, "rounds": 2}
BEST, SECOND = 1, 3  # after three rounds of 0.5 the model is nearer than after three of 1.0


def searched(make: Makes, *, rounds: int = 6, objective: Rated | None = None, **fields: Any) -> Simulation:
    given = {"objective": objective or Rated(), **fields.pop("simulation", {})}
    training = {"search": SEARCH, "training": {"learning_rate": RATES[0]}}
    return make(rounds=rounds, simulation=given, **training | fields)


def states(simulation: Simulation) -> list[dict[str, Any]]:
    """After each round."""
    return [dict(simulation.state) for _ in simulation.run()]


def test_the_better_half_of_the_arms_stays_after_each_rung(make: Makes) -> None:
    live = [state[ARMS].tolist() for state in states(searched(make))]
    # 5 arms for two rounds, judged by the models after the first; then two, by those after the third
    assert live == [[0, 1, 2, 3, 4], [SECOND, BEST], [SECOND, BEST], [BEST], [BEST], [BEST]]


def test_rounds_say_how_good_each_arm_is_until_one_is_left(make: Makes) -> None:
    results = list(searched(make).run())
    tested = [{name for name in each.figures if name.startswith("loss@")} for each in results]
    assert tested == [{f"loss@{arm}" for arm in range(5)}] * 2 + [{"loss@1", "loss@3"}] * 2 + [set()] * 2
    assert [each.figures["arm"] for each in results] == [0, 0, SECOND, SECOND, BEST, BEST]
    assert results[1].figures["loss@3"] == pytest.approx(0.0, abs=1e-6)
    assert results[1].figures["loss@4"] == pytest.approx(2.0, abs=1e-6)


@pytest.mark.parametrize("is_secure", [False, True], ids=["plain sums", "masked sums"])
def test_the_winner_is_the_job_of_its_values_alone(make: Makes, is_secure: bool) -> None:
    given = {"is_secure": is_secure}
    won = searched(make, simulation=given)
    list(won.run())
    alone = make(
        rounds=6,
        training={"learning_rate": RATES[BEST]},
        simulation={"objective": Rated(), **given},
    )
    list(alone.run())
    close = {"atol": 1e-6} if is_secure else {"atol": 0}  # masked sums are rounded at random
    np.testing.assert_allclose(won.state["model/votes"], alone.state["model/votes"], rtol=0, **close)
    assert not [name for name in won.state if name.startswith(OTHERS)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("preset", ["moon", "scaffold"])
def test_the_winner_of_a_method_that_keeps_arrays_at_the_silo_is_its_job_alone(preset: str) -> None:
    """Bit for bit in plain sums, and so is what each silo keeps."""
    fields: dict[str, Any] = {"rounds": 6, "strategy": {"preset": preset}}
    rates = [0.002, 0.05, 0.004]
    won = simulation(digits(search={"values": {RATE: rates}, "rounds": 2}, training={}, **fields))
    alone = simulation(digits(training={"learning_rate": rates[1]}, **fields))
    list(won.run()), list(alone.run())
    assert won.state[ARMS].tolist() == [1]
    prefix = f"{OTHERS}1/"
    for name, array in alone.state.items():
        assert np.array_equal(won.state[name], array), name
    assert won.progress.local.keys() == alone.progress.local.keys() == set(alone.job.spec.silos)
    for silo, kept in alone.progress.local.items():
        of_winner = {
            name: array
            for name, array in won.progress.local[silo].arrays().items()
            if name.startswith(prefix)
        }
        assert {name.removeprefix(prefix) for name in of_winner} == kept.arrays().keys()
        assert all(np.array_equal(of_winner[prefix + name], array) for name, array in kept.arrays().items())


def test_a_silo_that_is_lost_in_a_round_is_in_no_arms_sum_of_it(make: Makes) -> None:
    class Away(Rated):
        def compute(self, work: Work) -> Any:
            if (work.silo, work.round) == ("silo-3", 1):
                raise ConfigError("its data are away")
            return super().compute(work)

    def votes_after_one_round(objective: Rated) -> list[list[float]]:
        (after, *_) = states(searched(make, objective=objective))
        return [state_of(after, arm, 5)["model/votes"].tolist() for arm in range(5)]

    for votes in votes_after_one_round(Away()):
        assert [place for place, vote in enumerate(votes) if vote == 0.0] == [3]
    for votes in votes_after_one_round(Rated()):  # the control
        assert all(votes)


@pytest.mark.parametrize(
    "silos", [["silo-2"], [f"silo-{place}" for place in range(SILOS)]], ids=["one", "all"]
)
def test_an_arm_that_comes_to_no_number_is_the_worst_and_ends_no_other(make: Makes, silos: list[str]) -> None:
    diverging = Rated(dict.fromkeys(silos, 1.5))  # arms 2 and 4
    live = [state[ARMS].tolist() for state in states(searched(make, objective=diverging))]
    # one that no silo moved falls out at once; of three the best one stays
    first, last = ([0, 1, 2, 3, 4], [BEST]) if len(silos) == 1 else ([0, 1, 3], [SECOND])
    assert (live[0], live[-1]) == (first, last)


def test_an_arm_whose_training_ends_as_the_built_in_one_does_ends_no_other(make: Makes) -> None:
    class Stopping(Rated):
        def compute(self, work: Work) -> Any:
            if work.spec.learning_rate_at(work.round) >= 1.5:
                raise QuantizationError("training: the loss is not finite after 32 steps")
            return super().compute(work)

    live = [state[ARMS].tolist() for state in states(searched(make, objective=Stopping()))]
    assert (live[0], live[-1]) == ([0, 1, 3], [SECOND])
    both = {**SEARCH, "values": {RATE: [1.5, 3.0]}}
    with pytest.raises(SimulationFailed):  # the control: where every arm ends so, the model stays
        list(searched(make, objective=Stopping(), search=both, training={}).run())


@pytest.mark.timeout(300)
def test_the_built_in_training_of_an_arm_that_diverges_ends_no_other() -> None:
    values = {RATE: [0.001, 10.0]}
    trained = simulation(
        digits(
            rounds=4,
            search={"values": values, "rounds": 2},
            model={"name": "mlp", "hidden": [64, 64, 64]},
            training={"weight_decay": 0.5, "local_epochs": 10, "batch_size": 8},
        )
    )
    results = list(trained.run())
    assert [each.result for each in results] == ["applied"] * 4
    assert trained.state[ARMS].tolist() == [0]


def test_a_job_of_one_such_model_is_refused(make: Makes) -> None:
    """The control of the test before."""
    alone = make(
        rounds=2,
        training={"learning_rate": 3.0},
        simulation={"objective": Rated(dict.fromkeys([f"silo-{place}" for place in range(SILOS)], 1.5))},
    )
    with pytest.raises(SimulationFailed):
        list(alone.run())


def test_a_state_of_arms_is_the_same_bytes_wherever_it_is_computed(make: Makes) -> None:
    first, second = (states(searched(make)) for _ in range(2))
    assert [state_to_bytes(each) for each in first] == [state_to_bytes(each) for each in second]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"search": {"values": {"rounds": [1, 2]}}},
            "search.values: expected training.learning_rate, .* got 'rounds'",
        ),
        ({"search": {"values": {RATE: [0.1]}}}, "search.values: expected 2 to 8 arms, got 1"),
        ({"search": {"values": {RATE: [0.1, 0.1]}}}, "expected different arms, got two that are the same"),
        (
            {"search": {"values": {RATE: [0.1, 1, 3], "training.local_epochs": [1, 2, 3]}}},
            "search.values: expected 2 to 8 arms, got 9",
        ),
        (
            {"training": {"learning_rate": 0.7}},
            "learning_rate: expected none beside search, or its first value 0.1",
        ),
        ({"rounds": 4}, "rounds: expected more than 4 with search, which takes 2 times 2 rounds"),
        (
            {"search": {**SEARCH, "metric": "dice", "best": "highest"}},
            "search.metric: expected one of accuracy, loss, got dice",
        ),
        ({"search": {**SEARCH, "metric": "accuracy"}}, "best: a value is required with metric accuracy"),
        (
            {
                "task": {"name": "regression", "options": {"low": 0, "high": 1}},
                "search": {**SEARCH, "metric": "mae", "best": "lowest"},
            },
            "search.metric: expected one of loss, got mae",
        ),
        (
            {
                "strategy": {"preset": "fedcsd"},
                "search": {"values": {"strategy.options.count_weighted": [0, 1]}, "rounds": 2},
            },
            "expected values with which all arms sum the same, arm 1 sums something else",
        ),
        (
            {
                "strategy": {"preset": "spherefed"},
                "search": {"values": {"strategy.options.ridge": [0.1, 1.0]}, "rounds": 2},
            },
            "strategy.options.ridge is read after the rounds alone",
        ),
        (
            {
                "strategy": {"preset": "fedcsd"},
                "search": {"values": {"strategy.options.logit_clip": [1.0, 5.0]}, "rounds": 2},
            },
            "expected values with which all arms sum the same, arm 1 sums something else",
        ),
        ({"keep": {"metric": "loss", "best": "lowest"}}, "keep: not allowed with search"),
        ({"search": {"values": {RATE: [0.1, -1.0]}}}, "search: arm 1: .*learning_rate"),
        ({"stop": {"metric": "loss", "best": "lowest", "rounds": 2}}, "stop: not allowed with search"),
        ({"evaluate_all_every": 2}, "evaluate_all_every: not allowed with search"),
        *(
            (
                {"strategy": {"preset": preset}},
                f"expected a method with one common model, {preset} has models of each silo's own, and arms",
            )
            for preset in ("per_fedavg", "fedper", "fedbn")
        ),
    ],
)
def test_a_search_that_makes_no_sense_is_refused_where_the_job_is_read(
    fields: dict[str, Any], message: str
) -> None:
    job = {
        "rounds": 6,
        "search": SEARCH,
        "training": {"learning_rate": 0.1},
        "model": {"name": "mlp", "hidden": [4]},
    }
    spec_of(**job)  # the control
    with pytest.raises(ConfigError, match=message):
        spec_of(**job | fields)


def test_a_search_costs_no_more_than_the_job_without_it_where_the_job_does_not_say() -> None:
    for rounds, arms in ((10, 5), (20, 5), (50, 8), (12, 2)):
        rates = [0.1 * (1 + arm) for arm in range(arms)]
        spec = spec_of(rounds=rounds, search={"values": {RATE: rates}}, training={})
        assert spec.search is not None
        assert sum(each * live for each, live in spec.search.rounds_by_arms(rounds)) <= 2.2 * rounds
        assert spec.training.learning_rate == rates[0]


def test_a_model_file_describes_the_arm_whose_model_it_is(make: Makes, tmp_path: Path) -> None:
    """Options of a method, such as a temperature, decide what a model answers."""
    options = {"values": {"strategy.options.adapted_tau": [0.2, 0.5]}, "rounds": 2}
    spec = spec_of(
        strategy={"preset": "fedgela"}, search=options, model={"name": "mlp", "hidden": [4]}, rounds=6
    )
    of_arms = [facts_of(spec, job_digest=bytes(32), round=6, arm=arm) for arm in (0, 1)]
    assert [json.loads(each["strategy"])["options"]["adapted_tau"] for each in of_arms] == [0.2, 0.5]
    assert of_arms[1]["search"] == "arm 1 of 2, strategy.options.adapted_tau 0.5"
    for _ in range(2):  # stopped in the middle of the search, and begun again
        run_in(tmp_path, searched(make), rounds=3)
    run_in(tmp_path, searched(make))
    facts = read_model(tmp_path / "model.safetensors")[1]
    assert facts["search"] == f"arm {BEST} of 5, training.learning_rate 0.5"

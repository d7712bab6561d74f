"""A learning curve that is one: over all silos every k rounds, or on a fixed test set; never mixed with the
drawn silos' own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from chorale.job import Job
from chorale.privacy.job_releases import JobReleases, planned_phases
from chorale.transport.wire import PhaseKey
from crypto.errors import ConfigError
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.training.data.base import SiloData
from silo_agent.training.data.loading import load_data, load_partition
from silo_agent.training.data.settings import DataSettings
from simulation.engine import Simulation, unsigned_job
from strategies.base import TOTAL
from strategies.phases.evaluation import EVALUATE_ALL
from tests.support.one_hot import OneHot
from tests.support.scripted import LAST, Scripted
from tests.unit.simulation.conftest import Makes, spec_of, votes

ROUNDS, EVERY, DRAWN = 5, 2, {"fraction": 0.3, "rounds": 5}
DIGITS = {"model": {"name": "mlp", "hidden": [8]}, "classes": 10, "input_shape": [1, 8, 8]}
STATE = {"model/head.weight": np.ones((2, 2), np.float32)}
TESTED = {"tested", "correct", "loss_sum"}


def digits_of(silos: int) -> Iterator[SiloData]:
    settings = {
        "format": "digits",
        "name": "digits",
        "partition": {"kind": "shards", "silos": silos, "index": 0},
    }
    return iter(load_partition(DataSettings.model_validate(settings), spec_of(silos, **DIGITS)))


def on_digits(silos: int = 10, **fields: Any) -> Simulation:
    pytest.importorskip("torch", reason="trains for real: needs the extra silo")
    spec = spec_of(silos, **DIGITS, **fields)
    whole = DataSettings.model_validate({"format": "digits", "name": "digits"})
    return Simulation(
        spec,
        dict(zip(spec.silos, digits_of(silos), strict=True)),
        policy=Policy(federation="test", count_granularity=1),
        device="cpu",
        test_set=load_data(whole, spec).holdout,
    )


@pytest.fixture(scope="module")
def drawn() -> Simulation:
    simulation = on_digits(**DRAWN, evaluate_all_every=EVERY)
    list(simulation.run())
    return simulation


@pytest.fixture(scope="module")
def untested() -> Simulation:
    """The control: the same rounds, which test their models on drawn silos' hold-outs."""
    simulation = on_digits(**DRAWN)
    list(simulation.run())
    return simulation


@pytest.fixture
def make_job() -> Any:
    def make(silos: int = 10, **fields: Any) -> Job:
        return unsigned_job(spec_of(silos, **fields), votes(silos))

    return make


def test_every_k_rounds_the_curve_is_that_of_the_fixed_test_set(
    drawn: Simulation, untested: Simulation
) -> None:
    """2 shards: the three drawn silos hold at most six of ten classes, so their own curve is far from it."""
    rounds = {result.round: result for result in drawn.ended}
    evaluations = drawn.progress.evaluations
    assert list(evaluations) == [2, 4, ROUNDS]  # the last one by the closing evaluation
    for round, figures in evaluations.items():
        assert figures["silos"] == 10
        assert figures["accuracy"] == pytest.approx(rounds[round].figures["test_accuracy"], abs=1e-12)
        assert figures["tested"] == rounds[round].figures["test_tested"]
    assert drawn.final_accuracy is not None
    assert drawn.final_accuracy.value == pytest.approx(rounds[ROUNDS].figures["test_accuracy"], abs=1e-12)
    # the model after round 1 by the silos of round 2, and by all
    of_drawn, of_all = untested.ended[1].figures["accuracy"], untested.ended[0].figures["test_accuracy"]
    assert abs(of_drawn - of_all) > 0.01


def test_a_table_of_results_has_each_arm_of_a_search_while_it_is_left() -> None:
    """The test of round r is of the arms after round r - 1; arms 0 and 1 fall away in round 2."""
    pytest.importorskip("pandas", reason="needs the extra notebook")
    search = {"values": {"training.learning_rate": [0.01, 0.02, 0.5]}, "rounds": 2}
    simulation = on_digits(5, search=search, rounds=3, training={})
    list(simulation.run())
    table = simulation.results()
    tested = [result.figures for result in simulation.ended]
    for name in (f"{figure}@{arm}" for figure in ("accuracy", "loss") for arm in range(3)):
        assert table[name][1] == tested[1][name]
        assert list(table[name].notna()) == [True, False, False]
    assert list(table["arm"].fillna(-1)) == [tested[1]["arm"], tested[2]["arm"], -1]


def test_a_table_of_results_keeps_both_curves_apart(drawn: Simulation, untested: Simulation) -> None:
    pytest.importorskip("pandas", reason="needs the extra notebook")
    by_drawn = untested.results()
    assert list(by_drawn["accuracy"].notna()) == [True] * (ROUNDS - 1) + [False]
    assert list(by_drawn["accuracy_all"].notna()) == [False] * (ROUNDS - 1) + [True]
    assert by_drawn["accuracy"][1] == untested.ended[1].figures["accuracy"]
    table = drawn.results()
    assert "accuracy" not in table
    pytest.importorskip("matplotlib", reason="needs the extra notebook")
    assert [line.get_label() for line in drawn.plot().lines] == ["accuracy_all"]
    assert list(table["accuracy_all"].notna()) == [False, True, False, True, True]
    assert table["accuracy_all"][ROUNDS] == drawn.final_accuracy.value
    assert table["silos_all"][EVERY] == 10
    # the control: where all silos take part the closing evaluation ends one curve
    whole = on_digits(rounds=2)
    list(whole.run())
    assert list(whole.results()["accuracy"].notna()) == [True, True]
    assert not [name for name in whole.results().columns if name.endswith("_all")]


@pytest.mark.parametrize("every", [EVERY, None])
@pytest.mark.parametrize(("silos", "fraction"), [(10, 0.3), (6, 0.5), (6, 1.0)])
def test_no_round_tests_where_all_silos_do_between_rounds(
    make_job: Any, silos: int, fraction: float, every: int | None
) -> None:
    """Or a round that follows one that moved nothing had a test of the same hold-outs by the same model, and
    such rounds together were all silos but one. The control: a job without tests between rounds."""
    job = make_job(silos, fraction=fraction, rounds=ROUNDS, evaluate_all_every=every)
    found, state = set(), {**votes(silos), TOTAL: np.array(1)}
    for round in range(1, ROUNDS + 1):
        key = PhaseKey(job_digest=job.digest, round=round, phase="train", attempt=1)
        layout = job.layout(key, state, job.spec.named_per_round)
        names = {quantity.name for quantity in layout.quantities}
        assert names >= {"delta", "weight"}
        assert names & TESTED in (set(), TESTED)
        found |= {round} if names & TESTED else set()
    assert found == (set() if every else set(range(1, ROUNDS + 1)))


def test_an_objective_that_always_tests_does_so_for_nothing(make: Makes) -> None:
    """One of an institution's own, that knows nothing of such rounds."""
    simulation = make(simulation={"objective": OneHot()}, rounds=3, evaluate_all_every=1)
    assert [(result.result, result.accuracy) for result in simulation.run()] == [("applied", None)] * 3
    assert set(simulation.progress.evaluations) == {1, 2, 3}
    ordinary = make(simulation={"objective": OneHot()}, rounds=3)
    assert all(result.accuracy is not None for result in ordinary.run())


def test_the_best_round_is_that_of_the_tests_over_all_silos(make: Makes) -> None:
    """What rounds say of drawn silos' hold-outs decides nothing: by it the best would be round 2."""
    rule = {"metric": "loss", "best": "lowest"}
    job = {"rounds": 5, "fraction": 0.43, "keep": rule, "evaluate_all_every": 4}
    simulation = make(simulation={"objective": Scripted()}, **job)
    list(simulation.run())
    assert simulation.progress.measured.by_round == {4: {"loss": pytest.approx(LAST)}}
    assert simulation.model[0] == 4
    without = make(simulation={"objective": Scripted()}, **{**job, "evaluate_all_every": None})
    list(without.run())
    assert without.model[0] == 2


def test_evaluations_are_in_the_plan_and_in_its_cost(make_job: Any) -> None:
    job = make_job(rounds=5, fraction=0.3, evaluate_all_every=2)
    assert (EVALUATE_ALL, 10, 2) in planned_phases(job.spec)
    noise = {"clip_norm": 1.0, "sample_rate": 0.1, "noise_multiplier": 2.0}
    privacy = {"delta": 1e-5, "records": noise, "statistics_noise_multiplier": 5.0}
    private = {"model": {"name": "mlp", "norm": "group"}, "privacy": privacy, "rounds": 5}
    few, many = (
        sum(JobReleases(spec_of(10, **private, evaluate_all_every=every), STATE).planned().values())
        for every in (4, 1)
    )
    assert many - few == 3 * len(TESTED)


@pytest.mark.parametrize(
    "round, phase", [(1, "evaluate-all.0"), (2, "evaluate-all.1"), (5, "evaluate-all.0")]
)
def test_a_job_has_no_other_evaluation_between_its_rounds(make_job: Any, round: int, phase: str) -> None:
    """A coordinator that asked for more sums over the hold-outs than the job says would get none."""
    job = make_job(rounds=5, evaluate_all_every=2)
    with pytest.raises(ConfigError, match=r"expected evaluate-all.0 after every 2 rounds but the last"):
        job.check_phase(round, phase)
    job.check_phase(2, "evaluate-all.0")
    with pytest.raises(ConfigError, match="phase: expected one of"):
        make_job(rounds=5).check_phase(2, "evaluate-all.0")


def test_a_job_that_ends_before_its_first_evaluation_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="evaluate_all_every: expected fewer than the job's 3 rounds, got 3"
    ):
        spec_of(rounds=3, evaluate_all_every=3)


def test_a_method_that_calibrates_ends_its_curve_with_the_model_of_the_rounds() -> None:
    """Its closing evaluation tests the calibrated model, which no round led to."""
    simulation = on_digits(
        **DRAWN, evaluate_all_every=EVERY, strategy={"preset": "ccvr"}, allow_silent_statistics=True
    )
    list(simulation.run())
    assert list(simulation.progress.evaluations) == [2, 4]


def test_the_closing_point_has_no_figures_that_the_others_have_not() -> None:
    metrics = {"name": "classification", "metrics": ["calibration"]}
    simulation = on_digits(**DRAWN, evaluate_all_every=EVERY, task=metrics)
    list(simulation.run())
    first, *_, last = simulation.progress.evaluations.values()
    assert set(last) == set(first) < set(simulation.closing["evaluate"]) | {"silos"}


def test_figures_of_own_models_are_of_the_round_before_and_a_table_says_so() -> None:
    """A round's stood in its own row, though the round trained on after it."""
    pytest.importorskip("pandas", reason="needs the extra notebook")
    simulation = on_digits(rounds=2, strategy={"preset": "fedper"})
    first, second = simulation.run()
    own = simulation.results()["personal_accuracy"]
    assert own[1] == second.figures["personal_accuracy"] != first.figures["personal_accuracy"]
    assert own[2] == simulation.closing["evaluate"]["personal_accuracy"]


def test_a_job_whose_silos_share_no_model_has_none_to_test() -> None:
    strategy = {"preset": "local_only"}
    with pytest.raises(ConfigError, match="evaluate_all_every: with personalization .* each silo's own"):
        spec_of(10, **{**DIGITS, "strategy": strategy}, evaluate_all_every=1)
    spec_of(10, **{**DIGITS, "strategy": strategy})


def test_a_job_without_the_word_is_the_file_that_it_was() -> None:
    assert b"evaluate_all_every" not in spec_of().to_yaml()

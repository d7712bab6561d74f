"""Boosted trees against XGBoost: splits, leaves, losses and its file; and sums that no records give."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import xgboost
import yaml
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine

from chorale.spec.job_spec import JobSpec
from chorale.spec.model_file import CalibrationLine
from crypto.errors import ConfigError, PolicyRefusal, Rule
from crypto.fixed_point.layout import Disclosure, Side
from research.analysis.leaves import fits
from research.heart_disease.hospitals import EXAMPLE, splits
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.training.data.base import Samples, SiloData
from silo_agent.training.exporting.xgboost_model import xgboost_json
from silo_agent.training.models.starting import initial_state
from silo_agent.training.models.state import loaded_model, shapes_and_starts
from silo_agent.training.predicting.answers import calibrated
from strategies.base import TOTAL, Array, PhaseContext
from strategies.phases import trees
from strategies.phases.trees import (
    BASE,
    GRADIENTS,
    GROWN,
    HESSIANS,
    MISSING_BELOW,
    MISSING_INPUT,
    MISSING_LEFT,
    RECORDS,
    SPLIT_ON,
    THRESHOLD,
    VALUE,
    TreesOptions,
    after_rounds,
    best_split,
    normal_edges,
)
from tests.support.settings import job_spec
from tests.support.shared_data import shared_folder
from tests.support.simulation import simulate


def trees_job(*, inputs: int, classes: int = 2, rounds: int = 31, **fields: Any) -> JobSpec:
    options = fields.pop("options", {})
    values = {
        "strategy": {"preset": "trees", "options": options},
        "model": {"name": "trees"},
        "training": {"learning_rate": 0.3},
        "classes": classes,
        "input_shape": (inputs,),
        "rounds": rounds,
    }
    return job_spec(**values | fields)


def divided(x_ND: Array, y_N: Array, test_ND: Array, test_N: Array) -> list[SiloData]:
    """Four silos of unlike sizes, of which the first has what is tested."""
    cuts = [len(x_ND) // 10, len(x_ND) // 3, len(x_ND) // 2]
    holdout = Samples(features=test_ND.astype(np.float32), labels=test_N)
    parts = zip(np.split(x_ND, cuts), np.split(y_N, cuts), strict=True)
    return [
        SiloData(
            train=Samples(features=x.astype(np.float32), labels=y),
            holdout=holdout if place == 0 else holdout.take(slice(0)),
            name=str(place),
        )
        for place, (x, y) in enumerate(parts)
    ]


def grown(spec: JobSpec, data: list[SiloData]) -> tuple[dict[str, Array], float]:
    """The state after the rounds, and the loss of the closing evaluation."""
    *_, last = simulate(spec, data)
    return dict(last.state), last.figures["loss"]


def standardized(x_ND: Array) -> Array:
    return ((x_ND - x_ND.mean(axis=0)) / x_ND.std(axis=0)).astype(np.float32)


def with_gaps(x_ND: Array, *, share: float = 0.2) -> Array:
    """Values that are missing, in the model's own form."""
    is_missing_ND = np.random.default_rng(5).random(x_ND.shape) < share
    return np.where(is_missing_ND, np.float32(MISSING_INPUT), x_ND)


def for_xgboost(x_ND: Array) -> Array:
    return np.where(x_ND < MISSING_BELOW, np.float32(np.nan), x_ND)


def binned(x_ND: Array, bins: int) -> Array:
    """The edge at or below each value: XGBoost then has the same splits to choose from."""
    edges_E = np.array([-10.0, *normal_edges(bins)], np.float32)
    found = edges_E[np.searchsorted(edges_E, x_ND, side="right") - 1]
    return np.where(x_ND < MISSING_BELOW, np.float32(np.nan), found)


def histograms(x_ND: Array, gradient_N: Array, hessian_N: Array, bins: int) -> list[Array]:
    """Written once more, with numpy alone. Shapes: (D, B) each."""
    edges_E = np.array(normal_edges(bins), np.float32)
    found = []
    for value_N in (gradient_N, hessian_N, np.ones(len(x_ND))):
        sums_DB = np.zeros((x_ND.shape[1], bins + 1))
        for column in range(x_ND.shape[1]):
            place_N = np.searchsorted(edges_E, x_ND[:, column], side="right")
            place_N[x_ND[:, column] < MISSING_BELOW] = bins
            np.add.at(sums_DB[column], place_N, value_N)
        found.append(sums_DB)
    return found


@pytest.mark.parametrize("method", ["exact", "hist"])
@pytest.mark.parametrize("gaps", [0.0, 0.2])
def test_first_split_and_its_gain_are_those_of_xgboost(method: str, gaps: float) -> None:
    x_ND, y_N = load_breast_cancer(return_X_y=True)
    x_ND = with_gaps(standardized(x_ND), share=gaps)
    chance = 0.5
    sums = histograms(x_ND, chance - y_N, np.full(len(y_N), chance * (1 - chance)), 16)
    split = best_split(*sums, is_allowed_DE=np.ones((30, 15), np.bool_), options=TreesOptions())
    settings = {"objective": "binary:logistic", "base_score": chance, "max_depth": 1, "eta": 1.0}
    table = xgboost.DMatrix(binned(x_ND, 16), y_N)
    booster = xgboost.train({**settings, "tree_method": method}, table, 1)
    root, *leaves = booster.trees_to_dataframe().to_dict("records")
    assert split is not None
    assert root["Feature"] == f"f{split.input}"
    assert root["Gain"] == pytest.approx(split.gain, rel=1e-5)
    edge = normal_edges(16)[split.edge]
    assert root["Split"] <= edge + 1e-6
    assert (binned(x_ND, 16)[:, split.input] < root["Split"]).sum() == (x_ND[:, split.input] < edge).sum() - (
        x_ND[:, split.input] < MISSING_BELOW
    ).sum()
    if gaps:
        assert (root["Missing"] == root["Yes"]) == split.missing_left
    made = [-gradient / (hessian + 1.0) for gradient, hessian in (split.left, split.right)]
    assert [leaf["Gain"] for leaf in leaves] == pytest.approx(made, rel=1e-5)


def test_a_whole_forest_of_a_number_is_that_of_xgboost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A squared error has a hessian of 1, so that XGBoost counts records, too. It does not round leaves."""
    monkeypatch.setattr(trees, "LEAF_BITS", 24)
    x_ND, y_N = load_diabetes(return_X_y=True)
    x_ND, y_N = standardized(x_ND), y_N.astype(np.float32)
    spec = trees_job(
        inputs=10,
        classes=0,
        rounds=16,
        options={"depth": 3, "bins": 16, "min_records": 10},
        task={"name": "regression", "options": {"low": 0.0, "high": 400.0}},
    )
    state, _ = grown(spec, divided(x_ND, y_N, x_ND, y_N))
    assert state[GROWN].tolist() == [5, 0]
    settings = {"objective": "reg:squarederror", "base_score": float(y_N.mean()), "max_depth": 3, "eta": 0.3}
    table = xgboost.DMatrix(binned(x_ND, 16), y_N)
    own = xgboost.train({**settings, "min_child_weight": 10, "tree_method": "exact"}, table, 5)
    assert exported(spec, state).predict(xgboost.DMatrix(x_ND)) == pytest.approx(own.predict(table), rel=1e-4)


@pytest.mark.parametrize(("bits", "is_told"), [(24, True), (trees.LEAF_BITS, False)])
def test_a_leaf_does_not_tell_how_many_records_of_which_class_it_has(
    monkeypatch: pytest.MonkeyPatch, bits: int, is_told: bool
) -> None:
    """Of the first tree, and neither does a node of several leaves beside them."""
    monkeypatch.setattr(trees, "LEAF_BITS", bits)
    x_ND, y_N = load_breast_cancer(return_X_y=True)
    x_ND = standardized(x_ND)
    state, _ = grown(trees_job(inputs=30, rounds=4), divided(x_ND, y_N, x_ND, y_N))
    is_split_M, value_M = state[SPLIT_ON][0, 0] > 0, state[VALUE][0, 0]
    assert not value_M[is_split_M].any()
    fitting = [fits(float(value), float(state[BASE][0])) for value in value_M[value_M != 0]]
    assert len(fitting) == is_split_M.sum() + 1
    assert min(fitting) >= 1
    assert (max(fitting) < 10) == is_told
    assert (min(fitting) > 30) != is_told


CANCER, WINE, DIABETES = "binary:logistic", "multi:softprob", "reg:squarederror"
RECORDS_OF: Mapping[str, Callable[..., Any]] = {
    CANCER: load_breast_cancer,
    WINE: load_wine,
    DIABETES: load_diabetes,
}


def job_of(objective: str, *, inputs: int, **fields: Any) -> JobSpec:
    if objective == DIABETES:
        fields["task"] = {"name": "regression", "options": {"low": 0.0, "high": 400.0}}
    classes = {CANCER: 2, WINE: 3, DIABETES: 0}[objective]
    return trees_job(inputs=inputs, classes=classes, **fields)


def exported(
    spec: JobSpec, state: Mapping[str, Array], line: CalibrationLine | None = None
) -> xgboost.Booster:
    booster = xgboost.Booster()
    booster.load_model(bytearray(xgboost_json(spec, state, line)))
    return booster


@pytest.mark.parametrize("objective", RECORDS_OF)
@pytest.mark.parametrize("rounds", [2, 12])
@pytest.mark.parametrize("slope", [None, 0.6])
def test_xgboost_predicts_the_same_of_the_exported_model(
    objective: str, rounds: int, slope: float | None
) -> None:
    x_ND, y_N = RECORDS_OF[objective](return_X_y=True)
    x_ND = with_gaps(standardized(x_ND))
    spec = job_of(objective, inputs=x_ND.shape[1], rounds=rounds)
    y_N = y_N.astype(np.float32 if objective == DIABETES else np.int64)
    state, _ = grown(spec, divided(x_ND, y_N, x_ND, y_N))
    intercept = -0.4 if objective == CANCER else 0.0  # which two classes have
    line = None if slope is None else CalibrationLine(slope=slope, intercept=intercept)
    booster = exported(spec, state, line)
    assert booster.num_boosted_rounds() == max(1, math.ceil((rounds - 1) / 3))
    model = loaded_model(
        spec, {name: each for name, each in state.items() if name.startswith("model/")}, base_models=None
    )
    with torch.inference_mode():
        outputs = model(torch.from_numpy(x_ND))
    answers = (
        200.0 + 200.0 * outputs[:, 0] if objective == DIABETES else calibrated(outputs, line).softmax(dim=1)
    )
    if objective == CANCER:
        answers = answers[:, 1]
    found = booster.predict(xgboost.DMatrix(for_xgboost(x_ND)))
    assert len(np.unique(found)) >= 2
    np.testing.assert_allclose(found, answers.numpy(), rtol=1e-5, atol=1e-6)


def paired_losses(seed: int, x_ND: Array, y_N: Array) -> tuple[float, float]:
    """Ours over four silos, XGBoost's of all their records, on a third that neither saw."""
    order_N = np.random.default_rng(seed).permutation(len(y_N))
    test_N, train_N = order_N[: len(y_N) // 3], order_N[len(y_N) // 3 :]
    x_ND = (x_ND - x_ND[train_N].mean(axis=0)) / x_ND[train_N].std(axis=0)
    spec = trees_job(inputs=x_ND.shape[1], rounds=61)
    _, loss = grown(spec, divided(x_ND[train_N], y_N[train_N], x_ND[test_N], y_N[test_N]))
    return loss, xgboost_loss((x_ND[train_N], y_N[train_N]), (x_ND[test_N], y_N[test_N]))


def xgboost_loss(train: tuple[Array, Array], test: tuple[Array, Array]) -> float:
    settings = {"objective": "binary:logistic", "max_depth": 3, "eta": 0.3, "nthread": 1}
    booster = xgboost.train({**settings, "tree_method": "hist"}, xgboost.DMatrix(*train), 20)
    chance_N = np.clip(booster.predict(xgboost.DMatrix(test[0])), 1e-7, 1 - 1e-7)
    return float(-np.log(np.where(test[1] == 1, chance_N, 1 - chance_N)).mean())


def assert_alike(pairs: list[tuple[float, float]]) -> None:
    """By chance alone a mean of ten is that far from 0 once in 200 times (t of nine degrees)."""
    apart = np.array([ours - theirs for ours, theirs in pairs])
    assert apart.mean() < 3.25 * apart.std(ddof=1) / math.sqrt(len(apart)), apart


def test_losses_on_ten_splits_are_those_of_xgboost() -> None:
    x_ND, y_N = load_breast_cancer(return_X_y=True)
    pairs = [paired_losses(seed, x_ND, y_N) for seed in range(10)]
    assert_alike(pairs)


def hospital_job() -> JobSpec:
    """That of the example, whose columns then have no value in the place of a missing one."""
    values = yaml.safe_load((EXAMPLE / "job.yaml").read_bytes())
    columns = [{name: each[name] for name in ("name", "mean", "scale")} for each in values["columns"]]
    kept = ("silos", "classes", "input_shape", "label_column")
    fields = {name: values[name] for name in kept}
    return trees_job(inputs=13, rounds=61, **{**fields, "columns": columns})


def test_losses_on_ten_splits_of_four_hospitals_are_those_of_xgboost() -> None:
    folder, pairs = shared_folder("heart_disease"), []
    for seed in range(10):
        plain = hospital_job()
        found = splits(plain, folder, seed=seed)
        data = [each.final for each in found.values()]
        holdout = Samples(
            features=np.concatenate([each.holdout.features for each in data]),
            labels=np.concatenate([each.holdout.labels for each in data]),
        )
        x_ND = np.concatenate([each.train.features for each in data])
        y_N = np.concatenate([each.train.labels for each in data])
        _, loss = grown(plain, data)
        theirs = xgboost_loss((for_xgboost(x_ND), y_N), (for_xgboost(holdout.features), holdout.labels))
        pairs.append((loss, theirs))
    assert_alike(pairs)


def sums_of(spec: JobSpec) -> tuple[PhaseContext, dict[str, Array]]:
    """Of a root over two inputs of four bins and one for missing values, that 100 records give."""
    state = {**initial_state(spec), TOTAL: np.array(100), GROWN: np.zeros(2, np.int64)}
    context = PhaseContext(
        round=2, members=4, classes=2, state=state, trained=(), options=spec.method.options
    )
    count_DB = np.array([[25.0, 25, 25, 25, 0], [40, 30, 20, 0, 10]])
    gradient_DB = count_DB * np.array([[0.4, 0.2, -0.2, -0.4, 0.0], [0.2, -0.1, -0.2, 0.0, -0.1]])
    sums = {RECORDS: count_DB, GRADIENTS: gradient_DB, HESSIANS: 0.25 * count_DB}
    return context, {**{name: each[None, None] for name, each in sums.items()}, "weight": np.array(1.0)}


@pytest.mark.parametrize(
    ("name", "bin", "value"),
    [
        (RECORDS, 0, -25.0),
        (RECORDS, 0, 26.0),
        (GRADIENTS, 0, 26.0),
        (GRADIENTS, 0, 9.0),
        (HESSIANS, 0, -1.0),
        (HESSIANS, 0, 7.0),
        (HESSIANS, 0, 5.0),
        *((name, 0, np.nan) for name in (RECORDS, GRADIENTS, HESSIANS)),
    ],
)
def test_sums_that_no_records_give_grow_nothing(name: str, bin: int, value: float) -> None:
    spec = trees_job(inputs=2, options={"bins": 4})
    context, sums = sums_of(spec)
    phase = spec.method.phase("train")
    applied = phase.next_state(context, sums)
    assert applied.state is not None
    assert applied.state[SPLIT_ON][0, 0, 0] == 1
    assert applied.state[THRESHOLD][0, 0, 0] == 0.0
    bent = {**sums, name: sums[name].copy()}
    bent[name][0, 0, 0, bin] = value
    found = phase.next_state(context, bent)
    assert (found.state, found.reason) == (None, "implausible")


def test_a_level_splits_on_drawn_inputs_alone_and_sends_missing_values_to_the_better_side() -> None:
    """One of two inputs; 16 seeds draw the same one once in 32,768 times."""
    spec = trees_job(inputs=2, options={"bins": 4, "column_share": 0.5})
    context, sums = sums_of(spec)
    sums[GRADIENTS][0, 0, 1] = [6.0, -3.0, -4.0, 0.0, 1.0]
    found = set()
    for seed in range(16):
        state = (
            spec.method.phase("train")
            .next_state(replace(context, public_seed=bytes([seed] * 32)), sums)
            .state
        )
        assert state is not None
        found.add((state[SPLIT_ON][0, 0, 0], state[MISSING_LEFT][0, 0, 0]))
    assert found == {(1, 0), (2, 1)}


def test_no_leaf_is_of_fewer_records_than_the_job_says() -> None:
    context, sums = sums_of(trees_job(inputs=2, options={"bins": 4, "min_records": 51}))
    spec = trees_job(inputs=2, options={"bins": 4, "min_records": 51})
    found = spec.method.phase("train").next_state(context, sums)
    assert found.state is not None
    assert not found.state[SPLIT_ON].any()
    assert found.state[GROWN].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"fraction": 0.5}, "fraction"),
        ({"model": {"name": "mlp"}}, "model.name"),
        ({"model": {"name": "trees", "options": {"trees": 3, "depth": 3}}}, "model.options"),
        ({"classes": 5, "task": {"name": "multi-label"}}, "task"),
        ({"options": {"min_records": 9}}, "min_records"),
        ({"privacy": {"epsilon": 8, "sums": {"clip_norm": 1.0}}}, "trees sums by bin"),
    ],
)
def test_jobs_that_grow_no_trees_are_refused(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        trees_job(inputs=2, **fields)


def test_levels_of_too_many_bins_are_refused() -> None:
    with pytest.raises(ValueError, match=r"has 3289600000 bins in all, at most 16777216"):
        trees_job(inputs=100_000, options={"depth": 8, "bins": 256})


def test_silos_refuse_sums_by_bin_unless_their_policy_allows_class_statistics() -> None:
    spec = trees_job(inputs=2)
    with pytest.raises(PolicyRefusal, match="class_statistics") as refused:
        Policy(federation="test").check_job(spec, operator="ops")
    assert refused.value.rule is Rule.CLASS_STATISTICS
    Policy(federation="test", class_statistics="allow").check_job(spec, operator="ops")


def test_a_leaf_has_as_many_records_as_the_policy_has_for_a_cell() -> None:
    policy = Policy.model_validate(
        {"federation": "test", "class_statistics": "allow", "analyses": {"min_cell": 30}}
    )
    with pytest.raises(PolicyRefusal, match=r"at least 30, got strategy\.options\.min_records 29") as refused:
        policy.check_job(trees_job(inputs=2, options={"min_records": 29}), operator="ops")
    assert refused.value.rule is Rule.MIN_CELL
    policy.check_job(trees_job(inputs=2, options={"min_records": 30}), operator="ops")


def test_sums_by_bin_are_about_training_records() -> None:
    context, _ = sums_of(spec := trees_job(inputs=2))
    summed = spec.method.phase("train").quantities(context)
    assert {each.side for each in summed if each.discloses is Disclosure.BIN_STATISTIC} == {Side.TRAIN}


def test_evidence_knows_the_sizes_of_each_round_by_the_figures_of_those_before() -> None:
    """It has zeros of the last state's shapes alone, and trees may end early."""
    x_ND, y_N = load_breast_cancer(return_X_y=True)
    x_ND = standardized(x_ND)
    spec = trees_job(inputs=30, rounds=9, options={"min_records": 180})
    rounds = [each for each in simulate(spec, divided(x_ND, y_N, x_ND, y_N)) if each.phase == "train"]
    phase, context = spec.method.phase("train"), sums_of(spec)[0]
    zeros = {name: np.zeros_like(each) for name, each in rounds[-1].state.items()} | {TOTAL: np.array(1)}
    for place, each in enumerate(rounds):
        state = after_rounds(zeros, [before.figures["trees"] for before in rounds[:place]])
        sizes = {made.name: made.shape for made in phase.quantities(replace(context, state=state))}
        assert each.values[0][RECORDS].shape == sizes[RECORDS]
    assert [len(each.values[0][RECORDS][0]) for each in rounds] == [1, 1, 2, 4, 1, 2, 1, 2, 4]
    assert after_rounds({TOTAL: zeros[TOTAL]}, [1.0]) == {TOTAL: zeros[TOTAL]}


@pytest.mark.parametrize("grown", [[0, 3], [0, -1], [0, 1 << 40], [31, 0], [-1, 0]])
def test_a_level_that_a_tree_does_not_have_is_refused_before_memory_is_taken(grown: list[int]) -> None:
    context, _ = sums_of(spec := trees_job(inputs=2))
    with pytest.raises(ConfigError, match="expected a tree and a level"):
        spec.method.phase("train").quantities(
            replace(context, state={**context.state, GROWN: np.array(grown)})
        )


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (SPLIT_ON, 4.0, "expected 0, or inputs from 1 to 3"),
        (SPLIT_ON, 0.5, "expected 0, or inputs"),
        (SPLIT_ON, np.nan, "expected 0, or inputs"),
        (THRESHOLD, np.inf, "expected finite numbers"),
    ],
)
def test_an_edited_file_of_a_model_is_refused(name: str, value: float, message: str) -> None:
    spec = trees_job(inputs=3)
    arrays = {key: np.zeros(shape, np.float32) for key, shape in shapes_and_starts(spec)[0].items()}
    loaded_model(spec, arrays, base_models=None)
    arrays[name][0, 0, 0] = value
    with pytest.raises(ConfigError, match=message):
        loaded_model(spec, arrays, base_models=None)

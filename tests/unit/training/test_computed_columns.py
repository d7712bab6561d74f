"""Columns whose mean and scale all silos compute: from csv files to a trained model and its answers."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from chorale.privacy.job_releases import JobReleases
from chorale.spec.job_spec import JobSpec
from chorale.spec.model_file import described_job, facts_of, read_model, with_facts
from chorale.spec.samples.computed_columns import with_computed
from chorale.spec.state import state_parts
from chorale.transport.wire import PhaseKey
from crypto.errors import ConfigError, Refusal
from crypto.fixed_point.layout import Disclosure
from silo_agent.disclosure.policy.policy import Policy
from strategies.base import TOTAL, PhaseContext
from strategies.phases.arms import live_arms, state_of
from strategies.phases.columns import KEPT, MEANS, SCALES, ColumnMomentsPhase
from tests.unit.cli.conftest import Calls, chorale  # noqa: F401

torch = pytest.importorskip("torch", reason="needs the extra silo")

from silo_agent.training.computed_columns import column_sums, standardized  # noqa: E402
from silo_agent.training.data.base import Samples, SiloData  # noqa: E402
from silo_agent.training.data.loading import load_data  # noqa: E402
from silo_agent.training.data.private import FARTHEST  # noqa: E402
from silo_agent.training.data.settings import DataSettings  # noqa: E402
from silo_agent.training.objective import PersonalModel  # noqa: E402
from silo_agent.training.phase_input import DataRefusal, PhaseRequest, phase_values  # noqa: E402
from silo_agent.training.torch_objective import TorchObjective  # noqa: E402
from simulation.engine import Simulation  # noqa: E402
from simulation.results import SimulationFailed  # noqa: E402
from tests.support.objectives import make_job  # noqa: E402

SILOS = {"a": 40, "b": 70, "c": 110}
AGE = {"name": "age", "standardize": "computed", "plausible": (0.0, 120.0)}
FAR = {"name": "far", "standardize": "computed", "plausible": (999_000.0, 1_001_000.0), "unit": "g"}
SEX = {"name": "sex", "categories": ("f", "m")}
COLUMNS = (SEX, AGE, FAR)
ALL_COMPUTED = ({**SEX, "rare": "computed"}, AGE, FAR)
HEADINGS = ("sex", "age", "far", "ill")
PRIVACY = {
    "delta": 1e-5,
    "statistics_noise_multiplier": 2.0,
    "records": {"clip_norm": 1.0, "noise_multiplier": 1.0, "sample_rate": 0.2},
}


def job(**fields: Any) -> JobSpec:
    made = {
        "columns": COLUMNS,
        "label_column": "ill",
        "input_shape": None,
        "model": {"name": "mlp", "hidden": (8,)},
        "classes": 2,
        "silos": tuple(SILOS),
        "rounds": 2,
    }
    return make_job(**{**made, **fields})


def rows_of(silo: str) -> list[tuple[str, ...]]:
    """Some without an age, one whose age nobody has; far from 0 with a spread of 1."""
    rng = np.random.default_rng(list(SILOS).index(silo))
    rows = []
    for number in range(SILOS[silo]):
        age = rng.normal(55, 9)
        cell = "" if number % 7 == 3 else "230" if number == 5 else f"{age:.1f}"
        rows.append(("fm"[number % 2], cell, f"{1e6 + rng.normal():.4f}", str(int(age > 55))))
    return rows


def settings_of(folder: Path, silo: str, **fields: Any) -> DataSettings:
    path = folder / f"{silo}.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([HEADINGS, *rows_of(silo)])
    return DataSettings.model_validate({"name": silo, "format": "csv", "path": path, **fields})


def data_of(folder: Path, spec: JobSpec) -> dict[str, SiloData]:
    return {silo: load_data(settings_of(folder, silo), spec) for silo in SILOS}


def trained_on(data: Mapping[str, SiloData], place: int, granularity: int = 10) -> NDArray[np.float64]:
    """The values that the sums are of: the stated reading of training records, cut to the granularity."""
    kept = [each.train.features[: len(each.train) - len(each.train) % granularity] for each in data.values()]
    return np.concatenate(kept).astype(np.float64)[:, place]


def declared(**numbers: Any) -> tuple[dict[str, Any], ...]:
    """The same columns with numbers that the author states; -1e6 where there is no value."""
    return tuple(
        {key: value for key, value in {**each, "fill": -1e6, **numbers}.items() if key != "standardize"}
        if "standardize" in each
        else each
        for each in COLUMNS
    )


def run(spec: JobSpec, data: Mapping[str, SiloData], **options: Any) -> Simulation:
    simulation = Simulation(spec, data, **options)
    for _ in simulation.run():
        pass
    return simulation


@pytest.mark.parametrize("is_secure", [False, True], ids=["plain sums", "masked sums"])
def test_mean_and_scale_are_those_of_all_silos_training_records(tmp_path: Path, is_secure: bool) -> None:
    simulation = run(job(), data_of(tmp_path, job()), is_secure=is_secure)
    found = with_computed(simulation.job.spec, simulation.state)
    as_stated = data_of(tmp_path, job(columns=declared()))
    for place, column in ((2, found.inputs[1]), (3, found.inputs[2])):
        values = trained_on(as_stated, place)
        values = values[values > -1e5]
        assert column.mean == pytest.approx(values.mean(), rel=1e-6)
        # far: a million with a spread of 1, read as float32 of a range of 2,000
        assert column.scale == pytest.approx(values.std(ddof=1), rel=1e-3)
        assert (column.fill, column.standardize) == (column.mean, None)
    assert abs(found.inputs[2].mean - 1e6) < 0.5 < found.inputs[2].scale < 2.0


def test_the_model_trains_as_with_the_same_numbers_stated(tmp_path: Path) -> None:
    computed = run(job(), data_of(tmp_path, job()))
    spec = with_computed(computed.job.spec, computed.state).model_copy(
        update={"nonce": None, "initial_state": None}
    )
    stated = run(spec, data_of(tmp_path, spec))
    for name, array in stated.state.items():
        if name.startswith("model/"):
            np.testing.assert_allclose(computed.state[name], array, atol=2e-3)
    assert computed.final_accuracy == pytest.approx(stated.final_accuracy, abs=0.03)


def test_the_fetched_model_reads_new_rows_by_what_was_computed(
    tmp_path: Path,
    chorale: Calls,  # noqa: F811
) -> None:
    simulation = run(job(), data_of(tmp_path, job()))
    facts = facts_of(simulation.job.spec, job_digest=simulation.job.digest, round=2)
    file, new, out = (tmp_path / name for name in ("m.safetensors", "new.csv", "out.csv"))
    file.write_bytes(b"".join(with_facts(state_parts(simulation.state), facts)))
    arrays, read = read_model(file)
    column = with_computed(described_job(read, source="file"), arrays).inputs[1]
    shown = chorale("model", "show", file)
    assert (
        f"age: a number from 0 to 120, {column.mean:.9g} subtracted, divided by {column.scale:.9g}"
        in shown.out
    )
    new.write_text(f"sex,age,far\nf,,1000000\nf,{column.mean!r},1000000\n")
    assert chorale("model", "predict", file, new, "--out", out).code == 0
    first, second = list(csv.DictReader(out.read_text().splitlines()))
    assert first["probability_0"] == pytest.approx(second["probability_0"])  # missing is the mean
    folder = tmp_path / "exported"
    exported = chorale("model", "export", file, "--out", folder)
    assert exported.code == 0, exported.err
    columns = json.loads((folder / "preprocessing.json").read_text())["columns"]
    assert columns[1]["mean"] == pytest.approx(column.mean)
    assert columns[1]["standardize"] is None


def test_a_column_with_few_values_ends_the_job(tmp_path: Path) -> None:
    few = {"name": "age", "standardize": "computed", "plausible": (75.0, 120.0)}  # 3 records
    spec = job(columns=(SEX, few))
    with pytest.raises(
        SimulationFailed, match="column-moments: few-values: a column .* fewer than 10 values"
    ):
        run(spec, data_of(tmp_path, spec))


def test_a_private_job_noises_the_sums_and_pays_for_them(tmp_path: Path) -> None:
    spec = job(privacy=PRIVACY, rounds=1)
    simulation = run(spec, data_of(tmp_path, spec))
    releases = JobReleases(simulation.job.spec, simulation.state)
    assert len(releases.of_input("column-moments", 3)) == 3
    without = job(privacy=PRIVACY, rounds=1, columns=declared(mean=0.0))
    assert releases.epsilon() > JobReleases(without, simulation.state).epsilon() + 0.1
    found = with_computed(simulation.job.spec, simulation.state).inputs[1]
    values = trained_on(data_of(tmp_path, job(columns=declared())), 2, granularity=1)
    mean = values[values > -1e5].mean()
    assert 0 < abs(found.mean - mean) < 60  # six deviations of the noise at most


def test_a_personal_models_file_says_how_its_inputs_are_read(tmp_path: Path) -> None:
    spec = job(columns=ALL_COMPUTED, strategy={"preset": "fedper"}, rounds=1)
    data = data_of(tmp_path, spec)
    simulation = run(spec, data)
    kept = list[PersonalModel]()
    key = PhaseKey(job_digest=simulation.job.digest, round=1, phase="evaluate.0", attempt=1)
    phase_values(
        PhaseRequest.of(simulation.job, key, simulation.state, members=3),
        silo="a",
        rules=Policy(federation=spec.federation),
        load_data=lambda: data["a"],
        objective=TorchObjective(),
        is_cancelled=lambda: False,
        seed=1,
        keep_personal=kept.append,
    )
    assert with_computed(spec, kept[0].arrays) == with_computed(spec, simulation.state)


def test_every_arm_of_a_search_has_the_columns(tmp_path: Path) -> None:
    search = {"values": {"training.learning_rate": [0.1, 0.05]}, "rounds": 2}
    spec = job(columns=ALL_COMPUTED, search=search, rounds=3)
    simulation = Simulation(spec, data_of(tmp_path, spec))
    rounds = simulation.run()
    next(rounds)
    live = live_arms(simulation.state, 2)
    assert len(live) == 2
    computed = [name for name in simulation.state if name.endswith(("column_means", "categories_kept"))]
    assert sorted(computed) == [KEPT, MEANS]  # once for all arms
    for arm in live:
        assert with_computed(spec, state_of(simulation.state, arm, 2)).computed_columns == 0
    for _ in rounds:
        pass


def test_a_fixed_test_set_is_read_by_what_was_computed(tmp_path: Path) -> None:
    data = data_of(tmp_path, job())
    held = [each.holdout.first(len(each.holdout) - len(each.holdout) % 10) for each in data.values()]
    test_set = Samples(
        features=np.concatenate([each.features for each in held]),
        labels=np.concatenate([each.labels for each in held]),
    )
    simulation = Simulation(job(), data, test_set=test_set)
    *_, last = simulation.run()
    assert last.figures["test_loss"] == pytest.approx(simulation.closing["evaluate"]["loss"], rel=1e-5)


KIND = {"name": "kind", "categories": ("a", "b", "c", "d"), "rare": "computed"}


def kinds_of(folder: Path, spec: JobSpec) -> dict[str, SiloData]:
    """Of a and b many at each silo, of c four at each, of d nobody."""
    kinds = ["a", "b"] * 30 + ["c"] * 4
    rows = [f"{kind},{number},{number % 2}" for number, kind in enumerate(kinds)]
    path = folder / "kinds.csv"
    path.write_text("\n".join(["kind,age,ill", *rows]) + "\n")
    settings = {silo: {"name": silo, "format": "csv", "path": path} for silo in SILOS}
    return {silo: load_data(DataSettings.model_validate(each), spec) for silo, each in settings.items()}


@pytest.mark.parametrize("is_alone", [True, False])
def test_categories_of_few_records_are_read_as_missing(
    tmp_path: Path,
    chorale: Calls,  # noqa: F811
    is_alone: bool,
) -> None:
    spec = job(columns=(KIND,) if is_alone else (KIND, AGE))
    data = kinds_of(tmp_path, spec)
    simulation = run(spec, data, is_secure=True)
    column = with_computed(simulation.job.spec, simulation.state).inputs[0]
    trained = sum(int(each.train.features[: len(each.train) // 10 * 10, 2].sum()) for each in data.values())
    assert 0 < trained < 10
    assert column.rare == ("c", "d")
    made = standardized(data["a"], simulation.job.spec, simulation.state)
    assert made.train.features[:, 2:4].sum() == 0 < data["a"].train.features[:, 2].sum()
    np.testing.assert_array_equal(made.train.features[:, :2], data["a"].train.features[:, :2])
    facts = facts_of(simulation.job.spec, job_digest=simulation.job.digest, round=2)
    file, new, out = (tmp_path / name for name in ("m.safetensors", "new.csv", "out.csv"))
    file.write_bytes(b"".join(with_facts(state_parts(simulation.state), facts)))
    assert "kind: one of a, b, c, d; c, d read as missing" in chorale("model", "show", file).out
    new.write_text("kind,age\nc,50\n,50\n")
    assert chorale("model", "predict", file, new, "--out", out).code == 0
    first, second = list(csv.DictReader(out.read_text().splitlines()))
    assert first["probability_0"] == second["probability_0"]
    assert first["remarks"] == ""
    exported = chorale("model", "export", file, "--out", tmp_path / "exported")  # runs predict.py on rows
    assert exported.code == 0, exported.err
    facts_there = json.loads((tmp_path / "exported" / "preprocessing.json").read_text())
    assert facts_there["columns"][0]["rare"] == ["c", "d"]


def test_categories_may_be_stated_as_rare(tmp_path: Path) -> None:
    spec = job(columns=({**KIND, "rare": ("b",)}, {"name": "age"}))
    found = kinds_of(tmp_path, spec)["a"].train.features
    assert found[:, 1].sum() == 0 < found[:, 0].sum()
    assert with_computed(spec, {}) is spec


def test_a_private_job_noises_counts_of_categories_by_as_many_columns() -> None:
    spec = job(columns=(KIND, {**KIND, "name": "other"}, AGE), privacy=PRIVACY)
    found = {each.name: each for each in spec.method.phase("column-moments").quantities(context(1))}
    counts = found["category_counts"]
    assert (counts.shape, counts.sensitivity_l2) == ((8,), pytest.approx(2**0.5))
    assert counts.discloses is Disclosure.CLASS_STATISTIC
    assert found["column_sums"].shape == (1,)


@pytest.mark.parametrize("kept", [{}, {KEPT: np.ones(3, np.uint8)}, {KEPT: np.ones(4)}])
def test_kept_categories_of_others_are_checked(kept: Mapping[str, Any]) -> None:
    with pytest.raises(ConfigError, match="method/categories_kept: expected uint8 of shape .*, got"):
        with_computed(job(columns=(KIND,)), kept)


def context(columns: int) -> PhaseContext:
    return PhaseContext(round=0, members=3, classes=2, state={TOTAL: np.array(50)}, trained=())


def scale_of(values: Sequence[float], *, noise: float = 0.0, error: float = 0.0) -> float:
    """By the sums of these values of z. noise: its deviation. error: of the sum of squares."""
    z_N = np.array(values)
    sums = {
        "column_counts": np.array([float(len(z_N))]),
        "column_sums": z_N.sum(keepdims=True),
        "column_squares": (z_N**2).sum(keepdims=True) + error,
    }
    made = replace(context(1), noise={"column_squares": noise} if noise else {}, survivors=3)
    found = ColumnMomentsPhase(columns=1).next_state(made, sums)
    assert found.state is not None
    return float(found.state[SCALES][0])


def test_the_sums_are_bounded_by_twice_what_enrollment_counted() -> None:
    for each in ColumnMomentsPhase(columns=4).quantities(context(4)):
        assert (each.shape, each.bound, each.sensitivity_l2, each.is_tagged) == ((4,), 100.0, 2.0, True)
        assert each.discloses is Disclosure.CLASS_STATISTIC


def test_a_column_of_one_value_and_one_of_noise_have_scale_1() -> None:
    unlike = [0.2, -0.2] * 50  # squares around their mean: 4
    assert scale_of([0.3] * 20) == scale_of([0.3] * 20, error=1e-11) == scale_of(unlike, noise=2.1) == 1.0
    assert scale_of(unlike) == scale_of(unlike, noise=1.9) == pytest.approx(np.sqrt(4 / 99))
    shifted = [0.7, 0.3] * 50  # an error of their sum counts, too
    assert scale_of(shifted, noise=1.0) == 1.0
    assert scale_of(shifted, noise=0.8) == pytest.approx(np.sqrt(4 / 99))


def test_no_scale_is_larger_than_that_of_values_at_both_ends() -> None:
    assert scale_of([0.0] * 10, error=1e4) == scale_of([1.0, -1.0] * 5) == pytest.approx(np.sqrt(10 / 9))


def samples(values: Sequence[float], units: Sequence[int] | None = None) -> Samples:
    units_N = None if units is None else np.array(units)
    rows = {"units_N": units_N, "rows_per_unit": 4}
    return Samples(
        features=np.array([[value] for value in values], np.float32),
        labels=np.zeros(len(values), np.int64),
        **rows,  # type: ignore[arg-type]
    )


ONE = {"columns": (AGE,), "input_shape": None}


def test_a_unit_counts_once_however_many_rows_it_has() -> None:
    of_units = samples([1.0, 1.0, 1.0, -1.0, -3.0], units=[0, 0, 0, 1, 1])
    sums = column_sums(of_units, job(**ONE, privacy=PRIVACY))
    assert sums["column_counts"] == pytest.approx([1.5], abs=1e-5)  # half of the second has a value
    assert sums["column_sums"] == pytest.approx([0.5], abs=1e-5)
    assert sums["column_squares"] == pytest.approx([1.5], abs=1e-5)


def test_one_record_moves_each_sum_by_no_more_than_its_sensitivity() -> None:
    rng, spec = np.random.default_rng(7), job(columns=(AGE, FAR), privacy=PRIVACY)
    features = np.array(rng.choice([-1e6, -3.0, -1.0, 0.2, 1.0, 1e6], (200, 2)), np.float32)
    rows = Samples(features=features, labels=np.zeros(200, np.int64))
    all_of = column_sums(rows, spec)
    for left_out in range(200):
        rest = column_sums(rows.take(np.delete(np.arange(200), left_out)), spec)
        for name, value in rest.items():
            assert np.linalg.norm(all_of[name] - value) <= np.sqrt(2) + 1e-9


def test_data_that_no_table_reader_gave_are_refused() -> None:
    with pytest.raises(ConfigError, match="needs a table that Chorale reads"):
        column_sums(samples([55.0]), job(**ONE))


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        ({}, r"method/column_means: expected float64 of shape \(1,\), got none"),
        ({MEANS: np.zeros(2), SCALES: np.ones(1)}, r"column_means: .* got float64 of shape \(2,\)"),
        ({MEANS: np.zeros(1), SCALES: np.ones(1, np.float32)}, "column_scales: .* got float32"),
        ({MEANS: np.zeros(1), SCALES: np.zeros(1)}, "expected means of -1 to 1, scales above 0"),
        ({MEANS: np.full(1, np.nan), SCALES: np.ones(1)}, "column_means: expected finite numbers"),
        ({MEANS: np.full(1, 1e300), SCALES: np.ones(1)}, "expected means of -1 to 1"),
        ({MEANS: np.zeros(1), SCALES: np.full(1, np.inf)}, "column_scales: expected finite numbers"),
    ],
)
def test_a_state_of_others_is_checked(arrays: Mapping[str, Any], expected: str) -> None:
    data = SiloData(train=samples([0.5]), holdout=samples([0.5]), name="a")
    with pytest.raises(ConfigError, match=expected):
        standardized(data, job(**ONE), arrays)


def test_no_input_is_beyond_the_farthest_of_a_private_job() -> None:
    # a state with a scale of nearly 0 made infinities of what `boxed` had bounded
    data = SiloData(train=samples([0.5, -3.0]), holdout=samples([-1.0]), name="a")
    found = standardized(data, job(**ONE, privacy=PRIVACY), {MEANS: np.zeros(1), SCALES: np.full(1, 5e-324)})
    assert found.train.features.tolist() == [[FARTHEST], [0.0]]
    assert found.holdout.features.tolist() == [[-FARTHEST]]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"columns": ({**AGE, "plausible": None},)}, "plausible: standardize: computed needs the lowest"),
        ({"columns": ({**AGE, "plausible": (1.0, 1.0)},)}, "plausible: standardize: computed needs"),
        ({"columns": ({**AGE, "plausible": (0.0, 5e-324)},)}, "plausible: standardize: computed needs"),
        ({"columns": ({**AGE, "plausible": (-1e308, 1e308)},)}, "plausible: standardize: computed needs"),
        ({"columns": ({**AGE, "mean": 3.0},)}, "mean, scale and fill: not allowed with standardize"),
        ({"columns": ({**SEX, "standardize": "computed"},)}, "standardize: not allowed with categories"),
        ({"rounds": 0}, "not allowed with rounds: 0"),
        ({"columns": ({**AGE, "rare": "computed"},)}, "rare: needs categories that are one-hot"),
        ({"columns": ({**KIND, "encoding": "index"},)}, "rare: needs categories that are one-hot"),
        (
            {"columns": ({**KIND, "rare": ("e",)},)},
            "rare: expected computed or some of .* got 'e'",
        ),
        ({"columns": ({**KIND, "rare": "few"},)}, "rare"),
    ],
)
def test_a_job_that_cannot_compute_a_column_is_refused(fields: Mapping[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        job(**{**ONE, **fields})


@pytest.mark.parametrize("fields", [{"format": "module", "module": "anything:load"}, {"format": "npz"}])
@pytest.mark.parametrize("private", [{}, {"privacy": PRIVACY}], ids=["exact", "private"])
def test_data_that_have_no_columns_are_refused(
    tmp_path: Path, fields: Mapping[str, Any], private: Mapping[str, Any]
) -> None:
    # a silo's arrays within -1 to 1 were taken for values that the columns' ranges made
    arrays = tmp_path / "data.npz"
    np.savez(arrays, x=np.zeros((40, 4), np.float32), y=np.zeros(40, np.int64))
    path = {} if "module" in fields else {"path": arrays}
    own = DataSettings.model_validate({"name": "own", **path, **fields})
    with pytest.raises(ConfigError, match="are read of a csv, a parquet file or a database"):
        load_data(own, job(**private))


def test_a_silo_with_more_records_than_all_that_enrolled_waits(tmp_path: Path) -> None:
    # its counts alone were cut to the bound, so the mean was another one
    data, spec = data_of(tmp_path, job()), job()
    run = Simulation(spec, data)
    key = PhaseKey(job_digest=run.job.digest, round=0, phase="column-moments.0", attempt=1)
    state = {**run.state, TOTAL: np.array(20)}
    with pytest.raises(DataRefusal, match="more samples than enrollment counted") as refused:
        phase_values(
            PhaseRequest.of(run.job, key, state, members=3),
            silo="c",
            rules=Policy(federation=spec.federation),
            load_data=lambda: data["c"],
            objective=TorchObjective(),
            is_cancelled=lambda: False,
            seed=1,
        )
    assert refused.value.code is Refusal.NOT_ENROLLED

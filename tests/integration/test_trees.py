"""Boosted trees grown by real processes: TLS, masks, ledgers, and a model that XGBoost reads."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xgboost
import yaml

from strategies.phases.trees import GROWN, MISSING_LEFT, SPLIT_ON, VALUE
from tests.support.federation import LocalFederation
from tests.support.processes import run_cli

ROUNDS = 5
COLUMNS: list[dict[str, Any]] = [
    {"name": "age", "standardize": "computed", "plausible": [0.0, 120.0]},
    {"name": "weight", "mean": 80.0, "scale": 12.0, "edges": [70.0, 80.5, 90.0]},
    {"name": "sex", "categories": ["f", "m"]},
]
JOB: dict[str, Any] = {
    "rounds": ROUNDS,
    "strategy": {"preset": "trees", "options": {"depth": 2, "bins": 8}},
    "model": {"name": "trees"},
    "columns": COLUMNS,
    "label_column": "ill",
    "input_shape": [4],
}


def write_table(path: Path) -> None:
    """Who is heavy is ill, and of whom no weight is known."""
    rng, rows = np.random.default_rng(3), []
    for _ in range(200):
        weight = round(rng.normal(80, 12), 1)
        is_known = rng.random() > 0.3
        ill = int(weight > 84 or not is_known) if rng.random() > 0.1 else 0
        rows.append((round(rng.normal(60, 8), 1), weight if is_known else "", "fm"[rng.integers(2)], ill))
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("age", "weight", "sex", "ill"), *rows])


@pytest.fixture
def federation(tmp_path: Path) -> LocalFederation:
    table = tmp_path / "table.csv"
    write_table(table)
    data = {"format": "csv", "path": str(table), "name": "shared"}
    return LocalFederation(folder=tmp_path, silos=3, silo={"objective": None, "device": "cpu", "data": data})


def submit(federation: LocalFederation) -> str:
    job = federation.folder / "trees.yaml"
    job.write_text(yaml.safe_dump(federation.job(**JOB)))
    done = federation.cli("job", "submit", job)
    assert done.returncode == 0, done.stderr
    return str(done.stdout.split()[0])


@pytest.mark.timeout(300)
def test_real_silos_grow_trees_that_xgboost_reads(federation: LocalFederation, tmp_path: Path) -> None:
    federation.policy = {"class_statistics": "allow", "initial_state": "computed"}
    with federation:
        federation.start()
        federation.wait_connected()
        job_id = submit(federation)
        assert federation.finish(seconds=60)["status"] == "done"
        report = federation.report(job_id)
        state = federation.fetch(job_id)
        archive = tmp_path / "evidence.zip"
        federation.cli("job", "evidence", job_id, "--out", archive)
    verified = run_cli("evidence", "verify", archive)
    assert verified.returncode == 0, verified.stderr
    phases = [(each["phase"], each["result"]) for each in report["phases"]]
    opening = [("enrollment.0", "applied"), ("column-moments.0", "applied")]
    assert phases == [*opening, *[("train", "applied")] * ROUNDS, ("evaluate.0", "applied")]
    assert state[GROWN].tolist() == [2, 0]
    assert np.count_nonzero(state[VALUE].any(axis=(1, 2))) == 2
    first = state[SPLIT_ON][0, 0, 0]
    assert (first, state[MISSING_LEFT][0, 0, 0]) == (2, 0)  # by weight; those of whom none is known are ill
    fetched, folder, answers = tmp_path / "fetched.safetensors", tmp_path / "exported", tmp_path / "out.csv"
    done = run_cli("model", "export", fetched, "--out", folder)
    assert done.returncode == 0, done.stderr
    assert run_cli("model", "predict", fetched, tmp_path / "table.csv", "--out", answers).returncode == 0
    with answers.open() as file:
        chances = [float(row["probability_1"]) for row in csv.DictReader(file)]
    preprocessing = json.loads((folder / "preprocessing.json").read_text())
    booster = xgboost.Booster()
    booster.load_model(folder / "xgboost.json")
    inputs = inputs_of(tmp_path / "table.csv", preprocessing["columns"])
    np.testing.assert_allclose(booster.predict(xgboost.DMatrix(inputs)), chances, atol=2e-6)


def inputs_of(table: Path, columns: list[dict[str, Any]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """As preprocessing.json says, with NaN where a value is missing."""
    with table.open() as file:
        rows = list(csv.DictReader(file))
    made = [
        [float(row[name]) if row[name] else np.nan for row in rows]
        for name in (each["name"] for each in columns[:2])
    ]
    numbers = [
        (np.array(values) - column["mean"]) / column["scale"]
        for values, column in zip(made, columns, strict=False)
    ]
    sexes = [[float(row["sex"] == text) for row in rows] for text in "fm"]
    return np.array([*numbers, *sexes]).T


def test_silos_refuse_sums_by_bin_by_default(federation: LocalFederation) -> None:
    with federation:
        federation.start()
        federation.wait_connected()
        submit(federation)
        ended = federation.finish()
    assert ended["status"] == "failed"
    assert "(policy: class_statistics)" in ended["reason"]

"""Three silos compute mean and scale of a column together: real processes, TLS, masks."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from chorale.spec.samples.computed_columns import with_computed
from silo_agent.training.data.loading import load_data
from silo_agent.training.data.settings import DataFormat, DataSettings
from tests.support.federation import LocalFederation

COLUMNS = [
    {"name": "age", "standardize": "computed", "plausible": [0.0, 120.0]},
    {"name": "weight", "standardize": "computed", "plausible": [20.0, 300.0]},
]


def test_real_silos_find_the_pooled_mean_and_scale(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    rng = np.random.default_rng(3)
    rows = [(round(rng.normal(60, 8), 1), round(rng.normal(80, 12), 1), number % 2) for number in range(120)]
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([("age", "weight", "ill"), *rows])
    federation = LocalFederation(folder=tmp_path, silos=3)
    federation.policy = {"class_statistics": "allow"}
    federation.silo = {"data": {"format": "csv", "path": str(table), "name": "shared"}}
    with federation:
        federation.start()
        federation.wait_connected()
        job_id = federation.submit(rounds=1, columns=COLUMNS, label_column="ill")
        assert federation.finish()["status"] == "done"
        phases = [phase["phase"] for phase in federation.report(job_id)["phases"]]
        assert phases[:3] == ["enrollment.0", "column-moments.0", "train"]
        state = federation.fetch(job_id)
    spec = federation.job_spec(rounds=1, columns=COLUMNS, label_column="ill")
    found = with_computed(spec, state)
    stated = [{"name": name} for name in ("age", "weight")]
    data = load_data(
        DataSettings(format=DataFormat.CSV, path=table, name="shared"),
        federation.job_spec(rounds=1, columns=stated, label_column="ill"),
    )
    of_a_silo = data.train.features[: len(data.train) - len(data.train) % 10].astype(np.float64)
    pooled = np.concatenate([of_a_silo] * 3)
    for column, values in zip(found.inputs, pooled.T, strict=True):
        assert column.mean == pytest.approx(values.mean(), rel=1e-6)
        assert column.scale == pytest.approx(values.std(ddof=1), rel=1e-6)


def test_silos_refuse_exact_sums_of_columns_by_default(tmp_path: Path) -> None:
    federation = LocalFederation(folder=tmp_path, silos=3)
    with federation:
        federation.start()
        federation.wait_connected()
        federation.submit(rounds=1, columns=COLUMNS, label_column="ill")
        ended = federation.finish()
    assert ended["status"] == "failed"
    assert "(policy: class_statistics)" in ended["reason"]

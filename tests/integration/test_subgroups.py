"""A given model tested by subgroup over real silos, with TLS and masks: figures of pooled records."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chorale.spec.state import state_to_bytes
from silo_agent.training.data.base import Samples
from silo_agent.training.data.loading import load_data
from silo_agent.training.data.settings import DataFormat, DataSettings
from tests.support.federation import LocalFederation, Settings

SILOS = 4
FIELDS: dict[str, Any] = {
    "rounds": 0,
    "model": {"name": "mlp", "hidden": []},
    "task": {"name": "classification", "metrics": ["curves"]},
    "columns": [{"name": "age", "mean": 55.0, "scale": 10.0, "fill": 55.0}],
    "input_shape": [1],
    "label_column": "ill",
    "subgroups": {"name": "sex", "categories": ["f", "x", "m"]},
}
ALLOWED = {"analyses": {"exact": "allow"}, "class_statistics": "allow"}


@dataclass(kw_only=True)
class Wards(LocalFederation):
    """Each silo has a table of its own."""

    def _silo_settings(self, name: str, policy: Path, address: str) -> Settings:
        settings = super()._silo_settings(name, policy, address)
        data = {"format": "csv", "path": str(self.folder / f"{name}.csv"), "name": "ward"}
        return {**settings, "objective": None, "device": "cpu", "data": {**data, "holdout": 0.5}}


def wards(folder: Path, **policy: Any) -> Wards:
    federation = Wards(folder=folder, silos=SILOS, policy=policy)
    for place, name in enumerate(federation.names):
        rng = np.random.default_rng(place)
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["age", "sex", "ill"])
            for _ in range(200):
                age = rng.normal(55, 10)
                sex = rng.choice(["f", "m", "x", ""], p=[0.4, 0.588, 0.008, 0.004])
                writer.writerow([round(age, 1), sex, int(rng.random() < 1 / (1 + np.exp((55 - age) / 6)))])
    return federation


def submitted(federation: Wards, **fields: Any) -> str:
    spec = federation.job_spec(**FIELDS | fields)
    weight_C1, bias_C = np.array([[-0.8], [0.8]], np.float32), np.zeros(2, np.float32)
    state = {"model/head.weight": weight_C1, "model/head.bias": bias_C}
    init = federation.folder / "given.safetensors"
    init.write_bytes(state_to_bytes(state))
    return federation.submit_spec(spec, init)


def pooled(federation: Wards) -> tuple[Any, Any, Any]:
    """Of all hold-outs: age as it is read, what happened, and the declared part of each."""
    found = []
    for name in federation.names:
        settings = DataSettings(
            format=DataFormat.CSV, path=federation.folder / f"{name}.csv", name="ward", holdout=0.5
        )
        held = load_data(settings, federation.job_spec(**FIELDS)).tested
        assert isinstance(held, Samples)
        assert len(held) % 10 == 0  # else the silo takes fewer
        found.append((held.features[:, 0], held.labels, held.subgroups))
    ages, labels, parts = zip(*found, strict=True)
    return np.concatenate(ages), np.concatenate(labels), np.concatenate(parts)


def test_figures_of_subgroups_are_those_of_the_pooled_records(tmp_path: Path) -> None:
    with wards(tmp_path, **ALLOWED) as federation:
        federation.start()
        federation.wait_connected()
        job_id = submitted(federation)
        assert federation.finish()["status"] == "done"
        report = federation.report(job_id)
        again = submitted(federation, name="again", subgroups={"name": "age", "edges": [20, 50, 90]})
        assert (
            federation.hub.wait_for(
                lambda record: record.get("event") == "job ended" and record["job"] == again, seconds=120
            )["status"]
            == "failed"
        )
        assert "analyses.most" in str(federation.report(again)["reason"])
        page = tmp_path / "report"
        assert federation.cli("job", "report", job_id, "--out", page).returncode == 0
        assert "By subgroup" in (page / "report.html").read_text()
    age_N, label_N, part_N = pooled(federation)
    few = {part for part in range(4) if (part_N == part).sum() < 10}
    assert few == {1, 3}  # x and missing values: they join the last category
    tables = report["tables"]
    assert report["subgroups"] == ["f", "x or m or missing"]
    assert report["phases"][-1]["phase"] == "subgroups.0"
    assert report["phases"][-1]["figures"] == {"subgroups": 2.0}
    for place, is_in_N in enumerate((part_N == 0, part_N != 0)):
        answer_N, what_N = age_N[is_in_N] > 0, label_N[is_in_N]
        assert tables["subgroup_records"][place] == [(what_N == 0).sum(), (what_N == 1).sum()]
        assert tables["subgroup_accuracy"][place] == pytest.approx((answer_N == what_N).mean())
        ill_N, well_N = age_N[is_in_N][what_N == 1], age_N[is_in_N][what_N == 0]
        pairs = np.sign(ill_N[:, None] - well_N[None, :])
        area, bound = (tables[f"subgroup_roc_auc{ending}"][place] for ending in ("", "_bound"))
        assert abs(area - (pairs.mean() + 1) / 2) <= bound + 1e-9
    assert not any("confusion" in name for name in tables)


def test_silos_refuse_subgroups_by_default(tmp_path: Path) -> None:
    with wards(tmp_path, class_statistics="allow") as federation:
        federation.start()
        federation.wait_connected()
        submitted(federation)
        ended = federation.finish()
    assert ended["status"] == "failed"
    assert "(policy: analyses.exact)" in ended["reason"]

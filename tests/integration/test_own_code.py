"""A model and a task of an institution's distribution in a real federation, and copies of it that differ."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.support import own_code
from tests.support.federation import LocalFederation
from tests.support.own_code import PINNED
from tests.support.processes import run_cli

pytest.importorskip("torch", reason="trains: needs the extra silo")

NET = {"name": "net", "from": PINNED, "options": {"depth": 2}}
TASK = {"name": "absolute", "from": PINNED, "options": {"near": 2.0}}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return own_code.install(tmp_path_factory.mktemp("own"))


class Hospitals:
    """Three silos with 40 samples of a line each, and the operator; each has a copy of the distribution."""

    def __init__(self, folder: Path, site: Path) -> None:
        self.folder, self.site = folder, site
        rng = np.random.default_rng(5)
        x = rng.normal(size=(40, 4)).astype(np.float32)
        y = np.rint(x @ np.array([2.0, -1.0, 0.5, 0.0])).astype(np.int64)
        np.savez(folder / "line.npz", x=x, y=y)
        self.federation = LocalFederation(
            folder=folder / "federation",
            silos=3,
            policy={"initial_state": "computed", "distributions": [own_code.NAME]},
            silo={"objective": None, "data": {"format": "npz", "path": str(folder / "line.npz")}},
        )

    def start(self) -> None:
        self.federation.start_coordinator()
        for name in self.federation.names:
            self.federation.start_silo(name, env={"PYTHONPATH": on_path(self.site)})
        self.federation.wait_connected()

    def submit(self, **fields: Any) -> Any:
        path = self.folder / "job.yaml"
        values = {"classes": 4, "input_shape": [4], "model": NET, "task": TASK, "rounds": 1, **fields}
        path.write_text(yaml.safe_dump(self.federation.job(**values)))
        operator = self.federation.operator_file()
        extra = {"PYTHONPATH": on_path(self.site)}
        return run_cli("job", "submit", path, "--config", operator, extra_env=extra)


def on_path(site: Path) -> str:
    return os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture
def hospitals(tmp_path: Path, site: Path) -> Iterator[Hospitals]:
    made = Hospitals(tmp_path, site)
    with made.federation:
        yield made


@pytest.mark.gate
def test_a_foreign_model_and_task_train_in_a_federation_that_never_sends_their_code(
    hospitals: Hospitals,
) -> None:
    hospitals.start()
    done = hospitals.submit(rounds=2)
    assert done.returncode == 0, done.stderr
    record = hospitals.federation.finish()
    assert record["status"] == "done"
    report = str(hospitals.federation.report(done.stdout.split()[0]))
    assert "'mae'" in report
    assert "'share_near'" in report


def _changed(site: Path, folder: Path) -> Path:
    copy = folder / "changed"
    shutil.copytree(site, copy)
    (copy / own_code.PACKAGE / "__init__.py").write_text("#")
    return copy


@pytest.mark.gate
def test_each_silo_refuses_its_own_way_before_any_phase(
    hospitals: Hospitals, tmp_path: Path, site: Path
) -> None:
    """One byte changed, another version, and a policy that lists another version."""
    federation = hospitals.federation
    federation.start_coordinator()
    copies = {"silo-0": _changed(site, tmp_path), "silo-1": own_code.install(tmp_path, version="1.3.0")}
    for name in federation.names:
        if name == "silo-2":
            federation.policy = {**federation.policy, "distributions": [f"{own_code.NAME}==1.1.0"]}
        federation.start_silo(name, env={"PYTHONPATH": on_path(copies.get(name, site))})
    federation.wait_connected()
    done = hospitals.submit()
    assert done.returncode == 0, done.stderr
    record = federation.finish()
    assert record["status"] == "failed"
    expected = {
        "silo-0": ("code", f"{PINNED}: expected files of SHA-256"),
        "silo-1": ("code", f"{PINNED}: the version that is installed here is 1.3.0"),
        "silo-2": ("policy", f"or of {own_code.NAME}==1.1.0 (distributions), got code of {PINNED}"),
    }
    for name, (code, sentence) in expected.items():
        refusal = federation.services[name].wait_for(lambda line: line["event"] == "refused")
        assert sentence in refusal["reason"]
        assert refusal["code"] == code
        assert "drawing the first state" not in federation.services[name].log.read_text()
    watched = federation.cli("job", "watch", done.stdout.split()[0])
    named = r"(silo-[01] \(code\)|silo-2 \(policy: distributions\))"
    assert re.search(rf"refused by silos: .*{named}", watched.stderr)


def test_an_operator_without_the_distribution_signs_nothing(hospitals: Hospitals, tmp_path: Path) -> None:
    hospitals.federation.start_coordinator()
    (tmp_path / "empty").mkdir()
    hospitals.site = tmp_path / "empty"
    done = hospitals.submit()
    assert done.returncode == 2
    assert f"{PINNED}: no distribution hospital-models is installed here" in done.stderr
    assert all(line.get("event") != "job submitted" for line in hospitals.federation.hub.records())

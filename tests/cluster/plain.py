"""The cluster's one-hot job once more without Kubernetes: the same silos as processes on loopback."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from chorale.spec.job_spec import JobSpec
from tests.cluster import jobs
from tests.cluster.page import SILOS
from tests.cluster.walk import Walk
from tests.support.federation import LocalFederation
from tests.support.history import read_history


@dataclass(kw_only=True)
class PlainFederation(LocalFederation):
    """tables: the table of each silo."""

    tables: dict[str, Path]

    @property
    def names(self) -> list[str]:
        return list(SILOS)

    def _silo_settings(self, name: str, policy: Path, address: str) -> dict[str, Any]:
        data = {"format": "csv", "path": str(self.tables[name]), "name": f"{name}-data"}
        return {**super()._silo_settings(name, policy, address), "data": data}


def final_digest(walk: Walk) -> str:
    """Of the state that the job ends in."""
    folder = walk.folder / "plain"
    folder.mkdir()
    tables = {silo: walk.volumes[f"{silo}.patients"] / "heart" / "patients.csv" for silo in SILOS}
    with PlainFederation(folder=folder, tables=tables) as federation:
        federation.start()
        spec = jobs.job("whole-numbers") | {"federation": federation.ceremony.federation}
        state = folder / "initial.safetensors"
        state.write_bytes(jobs.initial_state())
        federation.submit_spec(JobSpec.from_yaml(yaml.safe_dump(spec).encode(), source="job"), state)
        assert federation.finish()["status"] == "done", federation.hub.tail()
        return read_history(federation).job.state_digest.hex()

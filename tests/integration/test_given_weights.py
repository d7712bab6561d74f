"""`chorale job submit --init` against silos of the default policy: what operator and institution are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chorale.spec.state import state_digest, state_to_bytes
from silo_agent.training.models.state import initial_state
from tests.support.federation import LocalFederation
from tests.support.processes import run_cli

pytest.importorskip("torch", reason="draws first states: needs the extra silo")

DATA = {"format": "digits", "name": "digits"}


def approved(federation: LocalFederation, job_id: str) -> list[str]:
    """What every silo's command says, the same at all."""
    told = set()
    for name in federation.names:
        federation.services[name].wait_for(
            lambda record: record.get("event") == "job offered" and record["job"] == job_id
        )
        done = run_cli("silo", "approve", "--config", federation.folder / f"{name}.yaml", job_id)
        assert done.returncode == 0, done.stderr
        told.add(done.stdout)
    (lines,) = told
    return lines.splitlines()


def ended(federation: LocalFederation, job_id: str) -> Any:
    record = federation.hub.wait_for(
        lambda record: record.get("event") == "job ended" and record["job"] == job_id, seconds=120
    )
    return record["status"]


def test_given_weights_are_told_and_refused_and_computed_ones_train(tmp_path: Path) -> None:
    with LocalFederation(
        folder=tmp_path,
        silos=3,
        policy={"approval": "manual", "initial_state": "computed"},
        silo={"objective": None, "device": "cpu", "data": DATA},
    ) as federation:
        federation.start()
        federation.wait_connected()
        spec = federation.job_spec(
            rounds=1, model={"name": "mlp", "hidden": [8]}, classes=10, input_shape=[1, 8, 8]
        )
        path, init = tmp_path / "job.yaml", tmp_path / "crafted.safetensors"
        path.write_bytes(spec.to_yaml())
        state = initial_state(spec)
        row_D = np.ones_like(state["model/body.1.weight"][:1])
        crafted = state_to_bytes({**state, "model/body.1.weight": np.repeat(row_D, 8, axis=0)})
        init.write_bytes(crafted)
        digest = state_digest(crafted).hex()

        done = federation.cli("job", "submit", path, "--init", init)
        told = "silos refuse a given initial state unless initial_state in their policy says given or lists"
        assert f"--init: {told} {digest}" in done.stderr
        given = str(done.stdout.split()[0])
        _, warning, no_noise = approved(federation, given)
        assert warning == (
            f"{given}: its starting weights are given, SHA-256 {digest} (it is not the one that follows from "
            "the job): an operator's own starting weights can be built to read single records out of sums; "
            "this silo's policy refuses them (initial_state)"
        )
        assert no_noise.startswith(f"{given}: it has no noise")
        assert ended(federation, given) == "failed"

        done = federation.cli("job", "submit", path)
        assert "--init" not in done.stderr
        computed = str(done.stdout.split()[0])
        _, no_noise = approved(federation, computed)  # and no word about its weights
        assert no_noise.startswith(f"{computed}: it has no noise")
        assert ended(federation, computed) == "done"

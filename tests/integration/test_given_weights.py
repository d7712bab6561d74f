"""`chorale job submit --init` against silos of the default policy: what operator and institution are told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chorale.spec.state import state_digest, state_to_bytes
from silo_agent.training.models.starting import initial_state
from tests.support.federation import LocalFederation
from tests.support.processes import run_cli

pytest.importorskip("torch", reason="draws first states: needs the extra silo")

DATA = {"format": "digits", "name": "digits"}


def at_every_silo(federation: LocalFederation, job_id: str, *command: str, code: int = 0) -> set[str]:
    """What every silo's command says once the job was offered, standard output and errors."""
    outputs = set()
    for name in federation.names:
        federation.services[name].wait_for(
            lambda record: record.get("event") == "job offered" and record["job"] == job_id
        )
        action, *more = command
        done = run_cli("silo", action, "--config", federation.folder / f"{name}.yaml", job_id, *more)
        assert done.returncode == code, done.stderr
        outputs.add(done.stdout + done.stderr)
    return outputs


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
        message = (
            "silos refuse a given initial state unless initial_state in their policy says given or lists"
        )
        assert f"--init: {message} {digest}" in done.stderr
        given = str(done.stdout.split()[0])
        (output,) = at_every_silo(federation, given, "approve", "--yes", code=3)
        assert (
            f"weights     given, sha256:{digest[:12]} (it is not the one that follows from the job)" in output
        )
        assert "[initial_state]" in output
        reason = 'weights are drawn here, by "us"'
        settings = federation.folder / f"{federation.names[0]}.yaml"
        no = run_cli("silo", "reject", "--config", settings, given, "--reason", reason, "--by", "Ann")
        assert no.returncode == 0, no.stderr  # of three silos one ends the job
        watched = federation.cli("job", "watch", given)
        assert f"rejected: {json.dumps(reason)}" in watched.stderr
        assert ended(federation, given) == "failed"

        done = federation.cli("job", "submit", path)
        assert "--init" not in done.stderr
        computed = str(done.stdout.split()[0])
        (output,) = at_every_silo(federation, computed, "approve", "--yes")
        assert "weights     computed from the job, the same as this silo draws" in output
        assert ended(federation, computed) == "done"

"""What `chorale init` writes starts a federation of three silos as it stands, and trains."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from chorale.spec.model_file import read_model
from tests.support.ports import free_ports
from tests.support.processes import wait_until
from tests.support.readme import run, service

pytestmark = [pytest.mark.gate, pytest.mark.timeout(300)]
SILOS = ("north", "east", "south")


def _written(folder: Path, port: int) -> None:
    """Each party's own command, the ceremony, and every file where its settings expect it."""
    hub, heart = f"127.0.0.1:{port}", ["--federation", "heart"]
    named = [part for silo in SILOS for part in ("--silo", silo)]
    run(["init", "federation", *heart, "--coordinator", hub, *named, "--operator", "olga"], folder)
    run(["init", "coordinator", *heart, "--host", "127.0.0.1", "--port", str(port)], folder)
    for silo in SILOS:
        run(["init", "silo", *heart, "--coordinator", hub, "--name", silo], folder)
    members = ["hub", "olga", *SILOS]
    authority = ["--directory", "authority"]
    run(["authority", "sign", *(f"{name}/{name}.csr" for name in members), *authority], folder)
    run(["authority", "roster", *members, *authority, "--out", "hub/roster.json"], folder)
    for name in members:
        shutil.copy(folder / "authority" / "authority.crt", folder / name)


@contextmanager
def _running(folder: Path) -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(service(["coordinator", "run", "--config", "hub/coordinator.yaml"], folder, {}))
        wait_until((folder / "hub" / "state" / "endpoint.json").exists, "the coordinator")
        for silo in SILOS:
            stack.enter_context(service(["silo", "run", "--config", f"{silo}/silo.yaml"], folder, {}))
        yield


def test_written_files_start_a_federation_that_trains(tmp_path: Path) -> None:
    _written(tmp_path, free_ports(1)[0])
    operator = ["--config", "olga/operator.yaml"]
    with _running(tmp_path):
        job = run(["job", "submit", "olga/job.yaml", *operator], tmp_path).split()[0]
        for silo in SILOS:
            approve = ["silo", "approve", "--config", f"{silo}/silo.yaml"]
            wait_until(lambda approve=approve: job in run(approve, tmp_path), "the offer of the job")
            run([*approve, job], tmp_path)
        assert f"{job}  done  5 rounds" in run(["job", "watch", job, *operator], tmp_path)
        for config in (f"{SILOS[0]}/silo.yaml", "olga/operator.yaml", "hub/coordinator.yaml"):
            assert "no problem was found" in run(["doctor", "--config", config], tmp_path)
        run(["job", "fetch", job, *operator, "--out", "model.safetensors"], tmp_path)
    model, _ = read_model(tmp_path / "model.safetensors")
    assert [name for name in model if name.startswith("model/")]

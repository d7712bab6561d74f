"""The commands under "A real federation" in docs/first-federation.md, run as they stand, on loopback.

Only what a reader would change in the copied files is changed here, through the environment: the
coordinator's address, and that the three silos share one machine and one data set.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from chorale.spec.model_file import read_model
from tests.support import readme
from tests.support.processes import REPOSITORY, wait_until
from tests.support.readme import Environment, instead, run, service

pytestmark = pytest.mark.timeout(300)
SILOS = ("clinic-a", "clinic-b", "clinic-c")


def _silo_environment(silo: str, *, port: str) -> Environment:
    return {
        "CHORALE_SILO_NAME": silo,
        "CHORALE_SILO_COORDINATOR": f"127.0.0.1:{port}",
        "CHORALE_SILO_COORDINATOR_NAME": "coordinator.example.org",
        "CHORALE_SILO_METRICS_LISTEN": "127.0.0.1:0",
        "CHORALE_SILO_DIRECTORY": f"{silo}/state",
        "CHORALE_SILO_IDENTITY__CERTIFICATE": f"{silo}/{silo}.crt",
        "CHORALE_SILO_IDENTITY__KEY": f"{silo}/{silo}.key",
        "CHORALE_SILO_DATA__PARTITION__INDEX": str(SILOS.index(silo)),
    }


def _operator_environment(port: str) -> Environment:
    return {
        "CHORALE_OPERATOR_COORDINATOR": f"127.0.0.1:{port}",
        "CHORALE_OPERATOR_COORDINATOR_NAME": "coordinator.example.org",
    }


def test_readme_federation_runs_from_its_first_key_to_its_model(tmp_path: Path) -> None:
    for example in (REPOSITORY / "docs" / "examples").glob("*.yaml"):
        shutil.copy(example, tmp_path)
    commands = readme.commands("first-federation.md", "A real federation")
    with ExitStack() as running:
        _found(commands, tmp_path)
        hub = {"CHORALE_COORDINATOR_LISTEN": "127.0.0.1:0", "CHORALE_COORDINATOR_METRICS_LISTEN": "null"}
        running.enter_context(service(next(commands), tmp_path, hub))
        port = readme.port_of(tmp_path / "hub" / "state")
        silo_run = next(commands)
        for silo in SILOS:
            running.enter_context(service(silo_run, tmp_path, _silo_environment(silo, port=port)))
        _train(commands, tmp_path, port)
    model, _ = read_model(tmp_path / "model.safetensors")
    assert [name for name in model if name.startswith("model/")]
    assert next(commands, None) is None, "a command of the page was not run"


def _found(commands: Iterator[list[str]], folder: Path) -> None:
    """From `authority init` to the roster; what is shown for one silo is done for each."""
    run(next(commands), folder)
    run(next(commands), folder)
    silo_csr = next(commands)
    for silo in SILOS:
        run(instead(silo_csr, "clinic-a", silo), folder)
    for _ in range(3):
        run(next(commands), folder)


def _train(commands: Iterator[list[str]], folder: Path, port: str) -> None:
    """Submit, approve at every silo, watch, fetch."""
    operator = _operator_environment(port)
    job_id = run(next(commands), folder, operator).split()[0]
    approve = instead(next(commands), "ID", job_id)
    for silo in SILOS:
        _approve(approve, folder, _silo_environment(silo, port=port), job_id)
    watched, fetched = (instead(next(commands), "ID", job_id) for _ in range(2))
    assert f"{job_id}  done  5 rounds" in run(watched, folder, operator)
    assert re.search(
        "after round [1-5] of 5", run(fetched, folder, operator)
    )  # the best, by half the hold-outs


def _approve(command: list[str], folder: Path, silo: Environment, job_id: str) -> None:
    """The job waits in the list first, then it is approved."""
    listed = command[: command.index(job_id)]
    wait_until(lambda: job_id in run(listed, folder, silo), "the offer of the job")
    assert "is approved" in run([*command, "--yes"], folder, silo)  # a reader at a terminal is asked

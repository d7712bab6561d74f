"""The commands under "A real federation" in the README, run as they stand, on loopback.

Only what a reader would change in the copied files is changed here, through the environment: the
coordinator's address, and that the three silos share one machine and one data set.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from chorale.state import state_from_file
from tests.support.processes import REPOSITORY, environment, wait_until

pytestmark = pytest.mark.timeout(300)
SILOS = ("clinic-a", "clinic-b", "clinic-c")
Environment = dict[str, str]


def _commands() -> list[list[str]]:
    """Every `$ chorale ...` line of that section, split as a shell would."""
    section = (
        (REPOSITORY / "README.md").read_text().partition("## A real federation")[2].partition("\n## ")[0]
    )
    return [shlex.split(line)[1:] for line in re.findall(r"^\$ (chorale .*)$", section, re.MULTILINE)]


def _as_silo(command: list[str], silo: str) -> list[str]:
    return [part.replace("clinic-a", silo) for part in command]


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
    commands = iter(_commands())
    with ExitStack() as running:
        _found(commands, tmp_path)
        hub = {"CHORALE_COORDINATOR_LISTEN": "127.0.0.1:0", "CHORALE_COORDINATOR_METRICS_LISTEN": "null"}
        running.enter_context(_service(next(commands), tmp_path, hub))
        endpoint = tmp_path / "hub" / "state" / "endpoint.json"
        wait_until(endpoint.exists, "the coordinator")
        port = json.loads(endpoint.read_text())["grpc"].rpartition(":")[2]
        silo_run = next(commands)
        for silo in SILOS:
            running.enter_context(_service(silo_run, tmp_path, _silo_environment(silo, port=port)))
        _train(commands, tmp_path, port)
    model = state_from_file(tmp_path / "model.safetensors")
    assert [name for name in model if name.startswith("model/")]
    assert next(commands, None) is None, "a command of the README was not run"


def _found(commands: Iterator[list[str]], folder: Path) -> None:
    """From `authority init` to the roster; what is shown for one silo is done for each."""
    _run(next(commands), folder)
    _run(next(commands), folder)
    silo_csr = next(commands)
    for silo in SILOS:
        _run(_as_silo(silo_csr, silo), folder)
    for _ in range(3):
        _run(next(commands), folder)


def _train(commands: Iterator[list[str]], folder: Path, port: str) -> None:
    """Submit, approve at every silo, watch, fetch."""
    operator = _operator_environment(port)
    job_id = _run(next(commands), folder, operator).split()[0]
    approve = [job_id if part == "ID" else part for part in next(commands)]
    for silo in SILOS:
        _approve(approve, folder, _silo_environment(silo, port=port), job_id)
    watched, fetched = ([job_id if part == "ID" else part for part in next(commands)] for _ in range(2))
    assert f"{job_id}  done  5 rounds" in _run(watched, folder, operator)
    assert "after 5 of 5 rounds" in _run(fetched, folder, operator)


def _approve(command: list[str], folder: Path, silo: Environment, job_id: str) -> None:
    """The job waits in the list first, then it is approved."""
    listed = command[: command.index(job_id)]
    wait_until(lambda: job_id in _run(listed, folder, silo), "the offer of the job")
    assert "is approved" in _run(command, folder, silo)


def _run(arguments: list[str], folder: Path, more: Environment | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", *arguments],
        cwd=folder,
        env=environment(more or {}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{shlex.join(arguments)}\n{done.stderr}"
    return done.stdout


@contextmanager
def _service(arguments: list[str], folder: Path, more: Environment) -> Iterator[None]:
    log = os.open(folder / "services.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    process = subprocess.Popen(
        [sys.executable, "-m", "cli.main", *arguments],
        cwd=folder,
        env=environment(more),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
    )
    os.close(log)
    try:
        yield
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()

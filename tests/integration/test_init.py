"""What `chorale init` writes starts a federation of three silos as it stands: the page's own commands."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from chorale.spec.model_file import read_model
from tests.support import readme
from tests.support.ports import free_ports
from tests.support.processes import wait_until
from tests.support.readme import instead, run, service

pytestmark = [pytest.mark.gate, pytest.mark.timeout(300)]
SILOS = ("north", "east", "south")


def _written(commands: Iterator[list[str]], folder: Path, port: int) -> None:
    """Each party's own command, the ceremony, and every file where its settings expect it."""
    _run(commands, folder, port)
    _run(commands, folder, port)
    _run(commands, folder, port, SILOS)
    _run(commands, folder, port)
    _run(commands, folder, port)
    for name in ("hub", "olga", *SILOS):
        shutil.copy(folder / "authority" / "authority.crt", folder / name)


def _run(commands: Iterator[list[str]], folder: Path, port: int, silos: tuple[str, ...] = ("north",)) -> None:
    """The next command, for each of the silos where it is shown for one."""
    shown = instead(next(commands), "7443", str(port))
    for silo in silos:
        run(instead(shown, "north", silo), folder)


def test_commands_of_the_readme_start_a_federation_that_trains_and_is_well(tmp_path: Path) -> None:
    commands = readme.commands("first-federation.md", "Your first federation")
    _written(commands, tmp_path, free_ports(1)[0])
    with ExitStack() as running:
        running.enter_context(service(next(commands), tmp_path, {}))
        wait_until((tmp_path / "hub" / "state" / "endpoint.json").exists, "the coordinator")
        silo_run = next(commands)
        for silo in SILOS:
            running.enter_context(service(instead(silo_run, "north", silo), tmp_path, {}))
        job = run(next(commands), tmp_path).split()[0]
        show, approve = next(commands), next(commands)
        for silo in SILOS:
            _approve(instead(show, "north", silo), instead(approve, "north", silo), tmp_path, job)
        assert f"{job}  done  5 rounds" in run(instead(next(commands), "ID", job), tmp_path)
        run(instead(next(commands), "ID", job), tmp_path)
        doctor = next(commands)
        for config in ("north/silo.yaml", "olga/operator.yaml", "hub/coordinator.yaml"):
            assert "no problem was found" in run(instead(doctor, "north/silo.yaml", config), tmp_path)
    model, _ = read_model(tmp_path / "model.safetensors")
    assert [name for name in model if name.startswith("model/")]
    assert next(commands, None) is None, "a command of the page was not run"


def _approve(show: list[str], approve: list[str], folder: Path, job: str) -> None:
    """Once the job was offered; a reader at a terminal is asked."""
    listed = [each for each in approve if each != "ID"]
    wait_until(lambda: job in run(listed, folder), "the offer of the job")
    assert job in run(instead(show, "ID", job), folder)
    run([*instead(approve, "ID", job), "--yes"], folder)

"""Commands of a page, run as they stand; services among them until the test is done with them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.processes import REPOSITORY, Service, run_cli, wait_until

Environment = Mapping[str, str]


def commands(page: str, heading: str) -> Iterator[list[str]]:
    """Every `$ chorale ...` line of a section of docs/, split as a shell would, without its first word."""
    section = (REPOSITORY / "docs" / page).read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    for line in re.findall(r"^\$ (chorale .*)$", section, re.MULTILINE):
        yield shlex.split(line)[1:]


def instead(command: list[str], shown: str, meant: str) -> list[str]:
    """The same command for another silo than the one that it is shown for, or with a job's id."""
    return [part.replace(shown, meant) for part in command]


def run(arguments: list[str], folder: Path, more: Environment | None = None) -> str:
    """One command to its end, in that folder; what it printed."""
    done = run_cli(*arguments, folder=folder, extra_env=more)
    assert done.returncode == 0, f"{shlex.join(arguments)}\n{done.stderr}"
    return done.stdout


@contextmanager
def service(arguments: list[str], folder: Path, more: Environment) -> Iterator[None]:
    """A command that runs until it is told to end, and then ends with 0."""
    name = shlex.join(arguments)
    running = Service(name, arguments, log=folder / "services.log", folder=folder, extra_env=more)
    try:
        yield
        assert running.stop() == 0, running.tail()
    finally:
        running.kill()


def port_of(hub: Path) -> str:
    """The port that a coordinator took, once it has written it into its folder."""
    endpoint = hub / "endpoint.json"
    wait_until(endpoint.exists, "the coordinator")
    return str(json.loads(endpoint.read_text())["grpc"].rpartition(":")[2])

"""Every command by the script that pip installs, in an interpreter of its own: other tests fork theirs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cli.main import COMMANDS
from tests.support.processes import INSTALLED, environment

# by command: what follows it, how it ends, and what it tells or writes
RUNS: dict[str, tuple[str, int, str]] = {
    "demo": ("--dp sums --epsilon nan", 2, "chorale: error: --epsilon: expected more than 0"),
    "simulate": ("job.yaml --out out", 2, "chorale: error: job.yaml: no such file or directory"),
    "authority": ("init --federation f --directory ca", 0, "ca/authority.crt"),
    "silo": ("csr --name a --federation f --out a", 0, "a/a.csr"),
    "coordinator": ("csr --name hub --federation f --host localhost --out hub", 0, "hub/hub.csr"),
    "console": ("--config console.yaml", 2, "chorale: error: console.yaml: no such file or directory"),
    "evidence": ("verify evidence.zip", 2, "chorale: error: evidence.zip: no such file or directory"),
    "doctor": ("--config silo.yaml", 1, "chorale: error: 1 problem found"),
    "init": (
        "federation --federation f --coordinator hub:7443 --silo a --silo b --silo c --out f",
        0,
        "f/operator/operator.yaml",
    ),
    "install": (
        "systemd --config silo.yaml",
        2,
        "chorale: error: silo.yaml: no such file or directory",
    ),
    "operator": ("csr --name you --federation f --out you", 0, "you/you.csr"),
    "job": ("list --config operator.yaml", 2, "chorale: error: operator.yaml: no such file or directory"),
    "analysis": (
        "results 00 --config operator.yaml",
        2,
        "chorale: error: operator.yaml: no such file or directory",
    ),
    "model": (
        "export m.safetensors --out out",
        2,
        "chorale: error: m.safetensors: no such file or directory",
    ),
    "tune": ("job.yaml", 2, "job.yaml"),
    "package": ("code --name models", 2, "does not exist"),
    "schema": ("nothing", 2, "is not one of"),
    "audit": ("verify audit.jsonl", 2, "chorale: error: audit.jsonl: no such file or directory"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_installed_script_runs_the_command(command: str, tmp_path: Path) -> None:
    arguments, code, expected = RUNS[command]
    done = subprocess.run(
        [INSTALLED, command, *arguments.split()],
        cwd=tmp_path,
        env=environment({}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert expected in done.stdout + done.stderr
    assert code or (tmp_path / expected).is_file()

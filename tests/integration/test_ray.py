"""A simulation on a real Ray of two machines gives the numbers of one process, also after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.processes import REPOSITORY, environment, wait_until

pytest.importorskip("torch", reason="trains for real: needs the extra silo")
pytest.importorskip("ray", reason="starts a Ray: needs the extra ray")

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]
ROUNDS, KILLED_ROUNDS = 2, 60


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of two machines with a CPU each."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.ray_cluster"],
        cwd=REPOSITORY,
        env=environment({"RAY_USAGE_STATS_ENABLED": "0"}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    address = process.stdout.readline().strip()
    assert address, "the cluster did not start"
    yield address
    process.stdin.close()
    process.wait(120)
    process.stdout.close()


def job(folder: Path, *, rounds: int) -> Path:
    """What a silo keeps between rounds, and two phases in each."""
    path = folder / "job.yaml"
    fields = {
        "name": "digits",
        "federation": "test",
        "silos": [f"silo-{place:02}" for place in range(20)],
        "rounds": rounds,
        "fraction": 0.4,
        "model": {"name": "mlp", "hidden": [8]},
        "classes": 10,
        "input_shape": [1, 8, 8],
        "strategy": {"preset": "scaffold"},
        "training": {"learning_rate": 0.05, "batch_size": 32},
    }
    path.write_text(yaml.safe_dump(fields))
    return path


def command(job: Path, *options: str) -> list[str]:
    cut = ["--partition", "iid", "--device", "cpu"]
    return [sys.executable, "-m", "cli.main", "simulate", str(job), *cut, *options]


def simulated(job: Path, *options: str) -> tuple[dict[str, Any], str]:
    """The last line, and what was told."""
    done = subprocess.run(
        command(job, *options),
        cwd=REPOSITORY,
        env=environment({}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    last: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return last, done.stderr


def test_two_machines_of_ray_end_with_the_state_of_one_process(cluster: str, tmp_path: Path) -> None:
    small = job(tmp_path, rounds=ROUNDS)
    alone, _ = simulated(small)
    pulled, output = simulated(small, "--parallel", "2")
    assert "; processes: 2 workers on this machine" in output
    on_ray, output = simulated(small, "--engine", "ray", "--address", cluster)
    assert "; ray: 2 workers on 2 machines" in output
    assert on_ray == pulled == alone
    other = job(tmp_path, rounds=ROUNDS + 1)
    assert simulated(other)[0]["state_digest"] != alone["state_digest"]


def test_a_simulation_that_was_killed_on_ray_goes_on_in_processes(cluster: str, tmp_path: Path) -> None:
    long, out = job(tmp_path, rounds=KILLED_ROUNDS), tmp_path / "out"
    process = subprocess.Popen(
        command(long, "--engine", "ray", "--address", cluster, "--out", str(out)),
        cwd=REPOSITORY,
        env=environment({}),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: lines(out) >= 2 or process.poll() is not None, "two rounds", seconds=120)
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    assert 2 <= lines(out) < KILLED_ROUNDS
    ended, output = simulated(long, "--parallel", "2", "--out", str(out))
    assert "continuing after round" in output
    assert ended["state_digest"] == simulated(long)[0]["state_digest"]


def lines(folder: Path) -> int:
    path = folder / "rounds.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0

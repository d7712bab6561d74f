"""`chorale demo --job`: the user's job file in real processes, with the figures of `chorale simulate`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import save_file

from tests.support.processes import INSTALLED, REPOSITORY, environment

pytest.importorskip("torch", reason="trains for real: needs the extra silo")

pytestmark = pytest.mark.timeout(300)
CLOSE = 1e-3  # of a loss: fixed point, and another order of the samples of a whole batch
JOB = {
    "name": "own-job",
    "federation": "heart",
    "silos": ["north", "south", "west"],
    "rounds": 2,
    "classes": 10,
    "input_shape": [1, 8, 8],
    # every step takes all samples, so the silos' secret shuffles change nothing
    "training": {"learning_rate": 0.5, "batch_size": 2000, "momentum": 0.0, "local_epochs": 2},
}
DATA = ["--data", "digits", "--partition", "iid", "--split-seed", "3"]


def chorale(*arguments: str | Path) -> str:
    done = subprocess.run(
        [INSTALLED, *map(str, arguments)],
        cwd=REPOSITORY,
        env=environment({}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def job_file(folder: Path, **fields: Any) -> Path:
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(JOB | fields))
    return path


def start_file(folder: Path) -> Path:
    rng = np.random.default_rng(5)
    arrays = {
        "model/head.weight": rng.normal(0.0, 0.1, (10, 64)).astype(np.float32),
        "model/head.bias": np.zeros(10, np.float32),
    }
    save_file(arrays, folder / "start.safetensors")
    return folder / "start.safetensors"


@pytest.mark.gate
def test_a_demo_of_a_job_file_has_the_figures_of_its_simulation(tmp_path: Path) -> None:
    """The head alone is trained: a model without hidden layers, given to both."""
    job, start, out = job_file(tmp_path, model={"name": "mlp", "hidden": []}), start_file(tmp_path), tmp_path
    chorale("demo", "--job", job, "--init", start, *DATA, "--out", out / "demo")
    told = json.loads((out / "demo" / "report.json").read_text())
    lines = chorale("simulate", job, "--init", start, *DATA, "--device", "cpu").splitlines()
    simulated = [json.loads(line) for line in lines]
    assert told["silo_names"] == JOB["silos"]
    assert told["final_accuracy"] == pytest.approx(simulated[-1]["final_accuracy"], abs=0.01)
    trained = [phase for phase in told["phases"] if phase["phase"] == "train"]
    assert [phase["figures"]["loss"] for phase in trained] == pytest.approx(
        [line["loss"] for line in simulated[:-1]], abs=CLOSE
    )
    losses = [line["loss"] for line in simulated[:-1]]
    assert losses[1] < losses[0] - 0.1, "it did train"

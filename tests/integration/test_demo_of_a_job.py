"""`chorale demo --job`: a job file in real processes, with the figures of its simulation; own code too."""

from __future__ import annotations

import io
import json
import re
import subprocess
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import save_file

from cli.main import run
from tests.support.processes import INSTALLED, REPOSITORY, environment

pytest.importorskip("torch", reason="trains for real: needs the extra silo")

pytestmark = pytest.mark.timeout(300)
CLOSE = 1e-3  # of a loss: fixed point, and another order of the samples of a whole batch
PAGE = REPOSITORY / "docs" / "custom-model.md"
NAMES = ["north", "south", "west"]
JOB = {
    "name": "own-job",
    "federation": "heart",
    "silos": NAMES,
    "rounds": 2,
    "classes": 10,
    "input_shape": [1, 8, 8],
    # every step takes all samples, so the silos' secret shuffles change nothing
    "training": {"learning_rate": 0.5, "batch_size": 2000, "momentum": 0.0, "local_epochs": 2},
}
CUT = ["--data", "digits", "--partition", "iid", "--split-seed", "3"]


def chorale(*arguments: str | Path, code: Path) -> None:
    """A command that ends well. code: folder of the silos' own modules."""
    done = subprocess.run(
        [INSTALLED, *map(str, arguments)],
        cwd=REPOSITORY,
        env=environment({"PYTHONPATH": f"{REPOSITORY}:{code}"}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


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


def own_silos(folder: Path) -> list[str]:
    """Settings files of silos that train with the code of docs/custom-model.md, as --silo options."""
    (folder / "own_model.py").write_text(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0])
    options: list[str] = []
    for index, name in enumerate(NAMES):
        cut = {"kind": "iid", "silos": len(NAMES), "index": index, "seed": 3}
        data = {"format": "digits", "name": "digits", "partition": cut}
        path = folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump({"name": name, "data": data, "objective": "own_model:Softmax"}))
        options += ["--silo", str(path)]
    return options


def simulated(job: Path, start: Path, *options: str) -> list[dict[str, Any]]:
    told = io.StringIO()
    with redirect_stdout(told):
        assert run(["simulate", str(job), "--init", str(start), "--device", "cpu", *options]) == 0
    return [json.loads(line) for line in told.getvalue().splitlines()]


def test_a_simulation_trains_with_the_silos_own_code_also_in_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    job, start = job_file(tmp_path, model={"name": "custom"}), start_file(tmp_path)
    silos = own_silos(tmp_path)
    here = simulated(job, start, *silos)
    in_workers = simulated(job, start, *silos, "--parallel", "2")
    assert here[-1]["closing"]["evaluate"] == in_workers[-1]["closing"]["evaluate"]
    built_in = simulated(job_file(tmp_path, model={"name": "mlp", "hidden": []}), start, *CUT)
    assert here[-1]["final_loss"] == pytest.approx(built_in[-1]["final_loss"], abs=CLOSE), "the same model"


@pytest.mark.gate
@pytest.mark.parametrize("model", ["mlp", "custom"])
def test_a_demo_of_a_job_file_has_the_figures_of_its_simulation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    """The head alone is trained: a model without hidden layers, whose start is given to both."""
    fields = {"name": "custom"} if model == "custom" else {"name": "mlp", "hidden": []}
    job, start = job_file(tmp_path, model=fields), start_file(tmp_path)
    data = own_silos(tmp_path) if model == "custom" else CUT
    chorale("demo", "--job", job, "--init", start, *data, "--out", tmp_path / "demo", code=tmp_path)
    told = json.loads((tmp_path / "demo" / "report.json").read_text())
    monkeypatch.syspath_prepend(tmp_path)
    *rounds, closing = simulated(job, start, *data)
    assert told["silo_names"] == NAMES
    assert told["final_accuracy"] == pytest.approx(closing["final_accuracy"], abs=0.01)
    trained = [phase for phase in told["phases"] if phase["phase"] == "train"]
    losses = [line["loss"] for line in rounds]
    assert [phase["figures"]["loss"] for phase in trained] == pytest.approx(losses, abs=CLOSE)
    assert losses[1] < losses[0] - 0.1, "it did train"

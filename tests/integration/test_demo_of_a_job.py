"""`chorale demo --job`: a job file in real processes, with the figures of its simulation; own code too."""

from __future__ import annotations

import io
import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import save_file

from chorale.spec.model_file import read_model
from cli.main import run
from tests.support import own_code
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


def simulated(job: Path, start: Path | None, *options: str) -> list[dict[str, Any]]:
    output, given = io.StringIO(), [] if start is None else ["--init", str(start)]
    with redirect_stdout(output):
        assert run(["simulate", str(job), *given, "--device", "cpu", *options]) == 0
    return [json.loads(line) for line in output.getvalue().splitlines()]


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
    report = json.loads((tmp_path / "demo" / "report.json").read_text())
    monkeypatch.syspath_prepend(tmp_path)
    *rounds, closing = simulated(job, start, *data)
    assert report["silo_names"] == NAMES
    assert report["final_accuracy"] == pytest.approx(closing["final_accuracy"], abs=0.01)
    trained = [phase for phase in report["phases"] if phase["phase"] == "train"]
    losses = [line["loss"] for line in rounds]
    assert [phase["figures"]["loss"] for phase in trained] == pytest.approx(losses, abs=CLOSE)
    assert losses[1] < losses[0] - 0.1, "it did train"


@pytest.mark.gate
def test_a_fitted_temperature_goes_with_the_model_of_a_demo_and_of_a_simulation(tmp_path: Path) -> None:
    """Cosines of a calibrated head."""
    job = job_file(
        tmp_path,
        model={"name": "mlp", "hidden": [32]},
        strategy={"preset": "spherefed"},
        task={"name": "classification", "metrics": ["temperature"]},
    )
    chorale("demo", "--job", job, *CUT, "--out", tmp_path / "demo", code=tmp_path)
    (closing,) = simulated(job, None, *CUT, "--out", str(tmp_path / "simulated"))[-1:]
    phases = json.loads((tmp_path / "demo" / "report.json").read_text())["phases"]
    of_demo = phases[-1]["figures"]["temperature"]
    of_simulation = closing["closing"]["evaluate"]["temperature"]
    for folder, figure in (("demo", of_demo), ("simulated", of_simulation)):
        facts = read_model(tmp_path / folder / "model.safetensors")[1]
        assert float(facts["temperature"]) == pytest.approx(figure, rel=1e-5)
    # silos hold out other records in each federation: this one's differs by some hundredths
    assert of_demo == pytest.approx(of_simulation, rel=0.5)
    assert 0.01 < of_demo < 1.0


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Path]:
    """An institution's distribution, installed."""
    with own_code.importable(tmp_path / "own") as path:
        yield path


def own_job(folder: Path, **fields: Any) -> tuple[Path, list[str]]:
    """A job whose model and task are the distribution's, and options with data for it."""
    rng = np.random.default_rng(4)
    inputs = rng.normal(size=(120, 4)).astype(np.float32)
    np.savez(folder / "numbers.npz", x=inputs, y=inputs.sum(1).clip(-9, 9))
    data = {"format": "npz", "path": str(folder / "numbers.npz"), "name": "numbers"}
    (folder / "numbers.yaml").write_text(yaml.safe_dump(data))
    named = {"name": "net", "from": own_code.PINNED, "options": {"width": 8}}
    own = {
        "model": named,
        "task": {"name": "absolute", "from": own_code.PINNED},
        "classes": 4,
        "input_shape": [4],
        "training": {"learning_rate": 0.05, "local_epochs": 2},
    }
    job = job_file(folder, **own, **fields)
    return job, ["--data", str(folder / "numbers.yaml"), "--partition", "iid"]


def test_a_simulation_runs_a_model_and_a_task_of_a_distribution_also_in_workers(
    tmp_path: Path, site: Path
) -> None:
    job, data = own_job(tmp_path)
    last_lines = [simulated(job, None, *data, *workers)[-1] for workers in ((), ("--parallel", "2"))]
    assert last_lines[0]["closing"] == last_lines[1]["closing"]
    assert {"mae", "share_near"} <= last_lines[0]["closing"]["evaluate"].keys()


@pytest.mark.gate
def test_a_demo_runs_a_model_and_a_task_of_a_distribution(tmp_path: Path, site: Path) -> None:
    job, data = own_job(tmp_path)
    chorale("demo", "--job", job, *data, "--out", tmp_path / "demo", code=site)
    report = json.loads((tmp_path / "demo" / "report.json").read_text())
    (closing,) = [phase["figures"] for phase in report["phases"] if phase["phase"].startswith("evaluate")]
    assert {"mae", "share_near"} <= closing.keys()


def test_a_search_in_real_processes_ends_in_the_arm_that_learns(tmp_path: Path) -> None:
    """Policies, ledgers and evidence of every silo take all of its phases."""
    rates = [0.003, 0.1, 0.3, 5.0]
    job = job_file(
        tmp_path,
        rounds=6,
        model={"name": "mlp", "hidden": [32]},
        training={"momentum": 0.9},
        search={"values": {"training.learning_rate": rates}, "rounds": 2},
    )
    chorale("demo", "--job", job, *CUT, "--out", tmp_path / "demo", code=tmp_path)
    report = json.loads((tmp_path / "demo" / "report.json").read_text())
    assert re.fullmatch(r"search: arm [12] of 4, training.learning_rate 0.[13] won", report["search"])
    trained = [phase["figures"] for phase in report["phases"] if phase["phase"] == "train"]
    assert [sum(name.startswith("loss@") for name in figures) for figures in trained] == [4, 4, 2, 2, 0, 0]
    assert report["final_accuracy"] > 0.8  # the slowest rate has about 0.2 by then, and the fastest 0.1

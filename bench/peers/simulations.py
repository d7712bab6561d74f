"""A simulation by Chorale's engines beside Flower's, of one FedAvg job: seconds, memory, accuracy.

    python -m bench.peers.simulations --data ../shared/data/fashion_mnist

Each runs as a program of its own with as many workers, in turn; what a program and all that it starts take
is looked at once a second. Flower is installed from PyPI into an environment of its own, in which torch
is ours, so that both train with the same build; README.md in this folder says what is compared.
Exit code 3, or {"skipped": ...} with --json, says that Flower cannot be installed here.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from bench.options import Parser, end_with_sigterm, whole
from bench.parties.process_tree import ProcessTree
from bench.peers.environment import PeerUnavailable, python_with
from chorale.spec.job_spec import JobSpec
from silo_agent.training.data.base import Samples
from silo_agent.training.data.loading import load_partition
from silo_agent.training.data.settings import DataSettings

REQUIREMENT = "flwr[simulation]==1.41.0"
ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "peers" / "flower-simulation"
SIDE = Path(__file__).with_name("simulation_side.py")
NOT_INSTALLABLE = 3  # exit code
METHODS = ("fedavg", "feddr_plus", "fedcsd", "feddw")
TWO_MACHINES = "ray of two machines"
RAYS = ("ray", TWO_MACHINES)
ENGINES = ("processes", *RAYS)
MAX_SECONDS = 7200.0  # of one program
CUT = {"kind": "dirichlet", "alpha": 0.5, "seed": 0, "min_samples": 10}
TRAINING = {"learning_rate": 0.05, "momentum": 0.5, "batch_size": 20, "local_epochs": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One program. seconds: from its start to its end; most_bytes: of all its processes together, each shared
    page once. accuracy: of the model that the last round started from, on the drawn silos' hold-outs."""

    engine: str
    method: str
    seconds: float
    cpu_seconds: float
    most_bytes: int
    accuracy: float
    state_digest: str = ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all, print; the exit code says whether Flower was there."""
    options = _options(arguments)
    end_with_sigterm()
    try:
        python = python_with(REQUIREMENT, folder=FOLDER)
    except PeerUnavailable as why:
        if options.json:
            print(json.dumps({"skipped": str(why)}))
            return 0
        print(f"simulations: skipped: {why}", file=sys.stderr)
        return NOT_INSTALLABLE
    _share_torch(python)
    runs = []
    with tempfile.TemporaryDirectory(prefix="chorale-simulations-") as name:
        folder = Path(name)
        for method in options.methods:
            job = _job(folder, options, method)
            for engine in options.engines:
                runs.append(_chorale(folder, job, options, method, engine))
                _say(runs[-1])
        if "fedavg" in options.methods:
            runs.append(_flower(folder, python, options))
            _say(runs[-1])
    _check(runs)
    if options.json:
        sizes = {"silos": options.silos, "rounds": options.rounds, "workers": options.workers}
        print(json.dumps({"peer": REQUIREMENT, **sizes, "runs": [asdict(run) for run in runs]}))
    else:
        print(table(runs))
    return 0


def table(runs: Sequence[Run]) -> str:
    lines = [f"{'':<12}{'engine':<21}{'seconds':>9}{'CPU s':>9}{'most MB':>9}{'accuracy':>10}  state"]
    for run in runs:
        figures = (
            f"{run.seconds:>9.1f}{run.cpu_seconds:>9.1f}{run.most_bytes / 1e6:>9.0f}{run.accuracy:>10.4f}"
        )
        lines.append(f"{run.method:<12}{run.engine:<21}{figures}  {run.state_digest[:16]}")
    return "\n".join(lines)


def _share_torch(python: Path) -> None:
    """Packages that the environment lacks, torch above all, are found among ours."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True)
    (Path(done.stdout.strip()) / "ours.pth").write_text(sysconfig.get_path("purelib") + "\n")


def _job(folder: Path, options: argparse.Namespace, method: str) -> Path:
    path = folder / f"{method}.yaml"
    fields = {
        "name": "simulated",
        "federation": "bench",
        "silos": [f"silo-{place}" for place in range(1, options.silos + 1)],
        "rounds": options.rounds,
        "fraction": options.fraction,
        "model": {"name": "cnn"},
        "classes": 10,
        "input_shape": [1, 28, 28],
        "strategy": {"preset": method},
        "training": TRAINING,
        "not_after": "2100-01-01T00:00:00Z",
    }
    path.write_text(yaml.safe_dump(fields))
    return path


def _chorale(folder: Path, job: Path, options: argparse.Namespace, method: str, engine: str) -> Run:
    cut = ["--partition", CUT["kind"], "--alpha", CUT["alpha"], "--min-samples", CUT["min_samples"]]
    program = ("bench.peers.two_nodes", -(-options.workers // 2)) if engine == TWO_MACHINES else ("cli.main",)
    command = [
        *(sys.executable, "-m", *program, "simulate", job, "--data", "mnist", "--path", options.data, *cut),
        *("--engine", "ray" if engine in RAYS else engine, "--parallel", options.workers, "--device", "cpu"),
    ]
    lines, spent = _measured([str(each) for each in command], folder)
    *rounds, last = (json.loads(line) for line in lines)
    return Run(
        engine=engine,
        method=method,
        accuracy=rounds[-1]["accuracy"],
        state_digest=last["state_digest"],
        **spent,
    )


def _flower(folder: Path, python: Path, options: argparse.Namespace) -> Run:
    """On the samples of each silo as Chorale cuts them."""
    spec = JobSpec.from_yaml((folder / "fedavg.yaml").read_bytes(), source="fedavg.yaml")
    cut = {**CUT, "silos": options.silos, "index": 0}
    settings = DataSettings.model_validate({"format": "mnist", "path": options.data, "partition": cut})
    for place, data in enumerate(load_partition(settings, spec)):
        assert isinstance(data.train, Samples)
        assert isinstance(data.holdout, Samples)
        np.savez(
            folder / f"{place}.npz",
            features=data.train.features,
            labels=data.train.labels,
            tested=data.holdout.features,
            expected=data.holdout.labels,
        )
    request = {
        "folder": str(folder),
        "silos": options.silos,
        "fraction": options.fraction,
        "rounds": options.rounds,
        "workers": options.workers,
        "rate": TRAINING["learning_rate"],
        "momentum": TRAINING["momentum"],
        "batch": TRAINING["batch_size"],
        "epochs": TRAINING["local_epochs"],
    }
    (folder / "request.json").write_text(json.dumps(request))
    # -P: files next to the script are not for its imports
    lines, spent = _measured([str(python), "-P", str(SIDE), str(folder / "request.json")], folder)
    (accuracies,) = (json.loads(line) for line in lines if line.startswith("["))
    return Run(engine="flower", method="fedavg", accuracy=accuracies[-1], **spent)


def _measured(command: Sequence[str], folder: Path) -> tuple[list[str], dict[str, Any]]:
    """What it printed, and what it took. Raises RuntimeError if it fails."""
    own = {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "FLWR_TELEMETRY_ENABLED": "0"}
    with (folder / "out").open("w+") as out, (folder / "err").open("w+") as err:
        started = time.monotonic()
        program = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **own}, stdout=out, stderr=err)
        with ProcessTree(program.pid) as tree:
            try:
                code = program.wait(MAX_SECONDS)
            except subprocess.TimeoutExpired:  # Flower's may stay after its simulation has crashed
                program.kill()
                code = program.wait()
        seconds = time.monotonic() - started
        out.seek(0)
        err.seek(0)
        if code:
            raise RuntimeError(f"{command[1:4]} ended with {code}:\n{err.read()[-3000:]}")
        spent = {"seconds": seconds, "cpu_seconds": tree.cpu_seconds, "most_bytes": tree.most_bytes}
        return out.read().splitlines(), spent


def _check(runs: Sequence[Run]) -> None:
    """Raises RuntimeError where engines of Chorale end with other states: their times are worth nothing."""
    for method in METHODS:
        digests = {run.state_digest for run in runs if run.method == method and run.engine in ENGINES}
        if len(digests) > 1:
            raise RuntimeError(f"{method}: engines end with other states: {sorted(digests)}")


def _say(run: Run) -> None:
    print(table([run]).splitlines()[-1], file=sys.stderr, flush=True)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("peers.simulations", __doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of (Fashion-)MNIST's files")
    parser.add_argument("--silos", type=whole(3, 10_000), default=1_000)
    parser.add_argument("--fraction", type=float, default=0.1, help="share of the silos that a round draws")
    parser.add_argument("--rounds", type=whole(1, 1_000), default=20)
    parser.add_argument("--workers", type=whole(2, 256), default=2)
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--engines", nargs="+", default=ENGINES, choices=ENGINES)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())

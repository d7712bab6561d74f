"""`make examples`: every folder of docs/examples/own/, run as an institution would run it.

The distribution is built and installed by pip into build/examples/site, `chorale simulate` runs each
of its jobs, and the same model is trained as many rounds on the pooled data of the silos. A line each says
how many lines the author wrote, the figure of the federation, and that of the pooled training.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from chorale.spec.job_spec import JobSpec, phase_context
from chorale.spec.settings_file import check_values
from chorale.spec.state import trained_names
from client.submission import NEVER, read_spec, with_code
from silo_agent.training.data.loading import load_data
from silo_agent.training.data.settings import DataSettings
from silo_agent.training.machine.seeding import training_seed
from silo_agent.training.objective import Work
from strategies.base import MODEL, TOTAL, Array
from strategies.phases.evaluation import EVALUATE
from strategies.phases.training import TRAIN, unflatten
from strategies.tasks.base import DeclaredTask

ROOT = Path(__file__).resolve().parents[1]
OWN = ROOT / "docs" / "examples" / "own"
SITE = ROOT / "build" / "examples" / "site"
PLAIN: Mapping[str, Any] = {"strategy": {"preset": "fedavg"}}
LESS_IS_BETTER = ("mae", "perplexity", "brier")


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One job of a folder.

    share: of the pooled figure, which the folder's expected.yaml says is reached. pooled: fields of the job
    that the pooled training has instead.
    """

    folder: Path
    job: Path

    @property
    def name(self) -> str:
        kind = self.job.stem.removeprefix("job").strip("-")
        return f"{self.folder.name} {kind}".strip()

    @property
    def lines(self) -> int:
        return sum(lines_of_code(path.read_text()) for path in self.folder.glob("*.py"))

    @property
    def share(self) -> float:
        return float(self._expected["share"])

    @property
    def pooled(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._expected.get("pooled", {})
        return found

    @property
    def _expected(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = yaml.safe_load((self.folder / "expected.yaml").read_text())
        return found


def examples(names: tuple[str, ...] = ()) -> Iterator[Example]:
    """In the order of their names; those of these folders alone where any are named."""
    for folder in sorted(path for path in OWN.iterdir() if path.is_dir()):
        if not names or folder.name in names:
            yield from (Example(folder=folder, job=job) for job in sorted(folder.glob("job*.yaml")))


def lines_of_code(source: str) -> int:
    """Without empty lines, comments and docstrings."""
    prose: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef)
            and ast.get_docstring(node) is not None
        ):
            prose.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines = enumerate(source.splitlines(), 1)
    return sum(
        1
        for number, line in lines
        if line.strip() and not line.strip().startswith("#") and number not in prose
    )


def installed(folder: Path, site: Path = SITE) -> None:
    """Build and install the folder's distribution, as `pip install` does for any."""
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--upgrade",
    ]
    subprocess.run([*pip, "--target", str(site), str(folder)], check=True, stdout=subprocess.DEVNULL)


def simulated(example: Example) -> Mapping[str, Any]:
    """The last line of `chorale simulate`."""
    command = [sys.executable, "-m", "cli.main", "simulate", str(example.job)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(SITE)])}
    done = subprocess.run(
        [*command, "--data", str(example.folder / "data.yaml")],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    if done.returncode:
        sys.exit(f"{example.name}: {done.stderr.strip()}")
    document: Mapping[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return document


def pooled(example: Example) -> tuple[float, DeclaredTask]:
    """The main figure of the same model, trained for as many rounds on all the silos' samples together.

    One silo that holds them all: each round its own update becomes the model.
    """
    from silo_agent.training.models.starting import initial_state
    from silo_agent.training.torch_objective import TorchObjective

    read = read_spec(example.job, not_after=NEVER)
    plain = check_values(JobSpec, {**read.model_dump(), **PLAIN, **example.pooled}, source=str(example.job))
    spec = with_code(plain)
    values = {**yaml.safe_load((example.folder / "data.yaml").read_text()), "partition": None}
    data = load_data(check_values(DataSettings, values, source=str(example.folder)), spec)
    state: dict[str, Array] = {**initial_state(spec), TOTAL: np.array(len(data.train))}
    objective = TorchObjective(device="cpu")

    def computed(kind: str, round: int) -> Mapping[str, Array]:
        work = Work(
            spec=spec,
            phase_kind=kind,
            round=round,
            silo=spec.silos[0],
            state=state,
            context=phase_context(spec, round, state, len(spec.silos), public_seed=bytes(32)),
            data=data,
            weight=1.0,
            seed=training_seed(job_seed=spec.seed, silo="pooled", round=round),
            is_cancelled=lambda: False,
        )
        return objective.compute(work)

    for round in range(1, spec.rounds + 1):
        delta_P = computed(TRAIN, round)["delta"]
        names = tuple(MODEL + name for name in trained_names(state))
        moved = unflatten(delta_P, state, names)
        state |= {name: (state[name] + step).astype(np.float32) for name, step in moved.items()}
    task = spec.method.task
    return task.figures(computed(EVALUATE, spec.rounds))[task.main].value, task


def main(names: tuple[str, ...]) -> int:
    """1 where an example reaches less than it states."""
    sys.path.insert(0, str(SITE))
    short = 0
    for example in examples(names):
        installed(example.folder)
        together, task = pooled(example)
        reached = float(simulated(example)["closing"]["evaluate"][task.main])
        share = together / reached if task.main in LESS_IS_BETTER else reached / together
        short += share < example.share
        print(
            f"{example.name:<18} {example.lines:>2} lines  {task.main} {reached:.4f}  pooled {together:.4f}  "
            f"share {share:.3f}, expected {example.share:g}{' NOT REACHED' if share < example.share else ''}",
            flush=True,
        )
    return int(short > 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="folders of docs/examples/own; default: all")
    sys.exit(main(tuple(parser.parse_args().names)))

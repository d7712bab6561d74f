"""One run: a trial's silos from their data, trained by the product's simulation, tested where the trial says.

The class rows of FedDW and FedCSD are sent however few silos hold a class: these figures are about the
methods as their papers have them. A silo's default holds such rows back (docs/methods.md, class statistics).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from crypto.errors import ChoraleError
from research.accuracy.jpegs import decoded
from research.accuracy.trials import Outcome, Split, Trial
from silo_agent.disclosure.policy.policy import DrawnRounds, Policy
from silo_agent.disclosure.policy.privacy_policy import Permission
from silo_agent.training.data.base import SiloData
from silo_agent.training.data.loading import load_data, load_partition
from silo_agent.training.data.partition import split_holdout
from silo_agent.training.data.settings import DataSettings
from silo_agent.training.machine.seeding import derive_seed
from silo_agent.training.machine.settings import MemoryFormat
from simulation.engine import Simulation
from simulation.silos import Compute

JPEGS = "jpegs"  # a format of these experiments alone
VALIDATION_SHARE = 0.2
OPEN_POLICY = Policy(
    federation="bench",
    class_statistics=Permission.ALLOW,
    drawn_rounds=DrawnRounds.WITH_STATISTICS,
    local_state=Permission.ALLOW,
    min_class_holders=1,
    count_granularity=1,
)


def run(trial: Trial, path: Path | None, *, device: str = "cpu") -> Outcome:
    """Train it. What goes wrong in the training, such as numbers that diverge, is in the outcome.

    Raises ConfigError for data that are not there or cannot be cut: another try may find them.
    """
    started, silos = time.process_time(), silos_of(trial, path)
    accuracy: float | None
    try:
        accuracy, failed = trained(trial, silos, device=device), ""
    except ChoraleError as error:
        accuracy, failed = None, str(error)
    return Outcome(accuracy=accuracy, failed=failed, seconds=round(time.process_time() - started, 3))


def trained(trial: Trial, silos: Mapping[str, SiloData], *, device: str) -> float:
    """The trial's figure, of a closing phase, which asks every silo, also where rounds draw some of them.

    Raises ChoraleError where a round is lost or the figure is not there.
    """
    compute = Compute(device=device, memory_format=MemoryFormat.CHANNELS_LAST)
    simulation = Simulation(trial.spec(), silos, policy=OPEN_POLICY, compute=compute)
    for each in simulation.run():
        if each.reason:
            raise ChoraleError(f"round {each.round} was used up: {each.reason}")
    figure = trial.figure
    found = [figures[figure] for figures in simulation.closing.values() if figure in figures]
    if not found:
        raise ChoraleError(f"the closing phases gave no {figure.replace('_', ' ')}")
    return found[-1]


def silos_of(trial: Trial, path: Path | None) -> dict[str, SiloData]:
    """Each silo's samples: those it trains on, and those on which the model is tested.

    A validation trial's silos are given nothing of the hold-out. Raises ConfigError.
    """
    parts = _cut(_data_key(trial), path)
    if trial.tested is Split.VALIDATION:
        parts = tuple(_without_holdout(part, trial.seed, index) for index, part in enumerate(parts))
    return dict(zip(trial.spec().silos, parts, strict=True))


def classes_sent_by_default(trial: Trial, path: Path | None) -> int:
    """Of how many classes enough silos of this cut hold samples for a default policy to send their rows."""
    spec = trial.spec()
    least = spec.min_class_holders(spec.rule(trial.silos))
    held_KC = [
        np.bincount(part.train.labels, minlength=spec.classes) > 0 for part in _cut(_data_key(trial), path)
    ]
    return int(np.count_nonzero(np.sum(held_KC, axis=0) >= least))


def _data_key(trial: Trial) -> str:
    """What a trial's data follow from: alike for all methods and rates."""
    plain = {"preset": "fedavg"}
    job = {**trial.job, "rounds": 1}
    return replace(
        trial, arm="", learning_rate=1.0, strength=None, strategy=plain, job=job, tested=Split.TEST
    ).key


@lru_cache(maxsize=1)  # trials of one cut follow each other
def _cut(key: str, path: Path | None) -> tuple[SiloData, ...]:
    trial = Trial(**json.loads(key))
    if not trial.partition:
        return tuple(_of_own_files(trial, path or Path()))
    with TemporaryDirectory() as folder:
        data = {**trial.data, "path": path, "partition": trial.cut}
        if data["format"] == JPEGS:
            data |= {"format": "npz", "path": decoded(path or Path(), Path(folder))}
        return load_partition(DataSettings.model_validate(data), trial.spec())


def _of_own_files(trial: Trial, folder: Path) -> Iterator[SiloData]:
    """Each silo's own file, in the order in which the trial names them."""
    settings = {name: value for name, value in trial.data.items() if name != "files"}
    for name in trial.data["files"].split(","):
        yield load_data(DataSettings.model_validate({**settings, "path": folder / name}), trial.spec())


def _without_holdout(whole: SiloData, seed: int, index: int) -> SiloData:
    rng = np.random.default_rng(derive_seed("validation", seed, index))
    kept, held = split_holdout(whole.train.labels, fraction=VALIDATION_SHARE, rng=rng)
    return SiloData(train=whole.train.take(kept), holdout=whole.train.take(held), name=whole.name)

"""A cell in small, on images that are made up: two rounds on a CPU say whether the job runs, nothing else.

Network, parts and optimizer are the cell's; classes, silos, samples, rounds and image sizes are few.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from research.accuracy.trials import Trial
from research.papers.cells import Cell
from silo_agent.training.data.base import Samples, SiloData

SILOS, DRAWN, ROUNDS, CLASSES, SAMPLES, BATCH = 3, 4, 2, 4, 8, 8
SIDE, ALEXNET_SIDE = 16, 64
RATE = 1e-3  # made-up images bear no paper's rate
# whatever counts passes or samples, as few as may be
FEW: Mapping[str, Any] = {
    "fine_tune_epochs": 1,
    "head_epochs": 1,
    "virtual_features": 4,
    "virtual_epochs": 1,
}


def small(cell: Cell) -> Trial:
    """The cell's job with everything few that its kind does not depend on."""
    whole = cell.trial(0)
    job = dict(whole.job)
    channels, height, _ = job["input_shape"]
    least = ALEXNET_SIDE if job["model"]["name"] == "alexnet" else SIDE
    side = min(height, least)
    training = {**job["training"], "local_epochs": 1, "batch_size": BATCH}
    if training.get("schedule", {}).get("kind") == "milestones":
        training["schedule"] = {"kind": "milestones", "milestones": [1]}
    is_drawn = job.get("fraction", 1.0) < 1
    if is_drawn:
        job["fraction"] = SILOS / DRAWN
    job |= {
        "classes": CLASSES,
        "input_shape": [channels, side, side],
        "rounds": ROUNDS,
        "training": training,
    }
    options = {name: FEW.get(name, value) for name, value in _options(cell).items()}
    strategy = {**whole.strategy, **({"options": options} if options else {})}
    return replace(whole, silos=DRAWN if is_drawn else SILOS, job=job, strategy=strategy, learning_rate=RATE)


def _options(cell: Cell) -> dict[str, Any]:
    """The cell's own, and what its preset takes that would last."""
    given = dict(cell.method.strategy.get("options", {}))
    if given.get("fine_tune_epochs") == 0:
        return {name: value for name, value in given.items() if name != "fine_tune_epochs"} | {
            "fine_tune_epochs": 0
        }
    taken = cell.spec().method.options
    lasting = {name: taken[name] for name in FEW if taken.get(name) is not None}
    return {**lasting, **given}


def made_up(trial: Trial) -> dict[str, SiloData]:
    """Noise with a mark for each class, by silo; every silo has every class."""
    generator = np.random.default_rng(trial.seed)
    spec = trial.spec()
    return {name: _silo(generator, spec.input_shape, spec.classes) for name in spec.silos}


def _silo(generator: np.random.Generator, shape: tuple[int, ...], classes: int) -> SiloData:
    def samples(count: int) -> Samples:
        labels = np.arange(count, dtype=np.int64) % classes
        features = generator.random((count, *shape), np.float32)
        features[:, 0, 0, :] += labels[:, None]
        return Samples(features=features.astype(np.float32), labels=labels)

    return SiloData(train=samples(SAMPLES), holdout=samples(classes), name="made-up")

"""One run: the product's simulation, or one curator's training, then the accuracy of the model it leaves.

Every arm trains softmax regression from the same weights over the same records. Accuracy is measured here, on
samples that no silo holds, without noise.
"""

# N = samples, C = classes

from __future__ import annotations

import json
import time
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import torch

from chorale.privacy.solve import solve
from chorale.spec.privacy_spec import PrivacySpec
from crypto.errors import ChoraleError
from research.accuracy.trials import Outcome, Split, Trial
from research.private_sum import central
from research.private_sum.arms import CENTRAL, STEPS
from research.private_sum.images import images
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.training.data.base import Samples, SiloData
from silo_agent.training.models.starting import initial_state
from simulation.engine import Simulation
from strategies.base import Arrays

WEIGHT, BIAS = "model/head.weight", "model/head.bias"


def run(trial: Trial, folder: Path | None) -> Outcome:
    """Train and test it. What goes wrong in the training is in the outcome.

    Raises ConfigError without data.
    """
    assert folder is not None
    torch.set_num_threads(1)
    started, found = time.process_time(), images(folder / trial.data["name"])
    silos = found.silos(trial.silos, records=trial.partition["records"], seed=trial.seed)
    tested = found.test if trial.tested is Split.TEST else found.validation
    accuracy: float | None = None
    failed = ""
    try:
        model = _curated(trial, silos) if trial.arm == CENTRAL else _federated(trial, silos)
        accuracy = _right(model, tested)
    except ChoraleError as error:
        failed = str(error)
    return Outcome(accuracy=accuracy, failed=failed, seconds=round(time.process_time() - started, 3))


def _federated(trial: Trial, silos: list[SiloData]) -> Arrays:
    spec = trial.spec()
    spec = spec.model_copy(update={"privacy": _privacy(_job_key(trial))})
    policy = Policy(federation=spec.federation)
    simulation = Simulation(spec, dict(zip(spec.silos, silos, strict=True)), policy=policy, device="cpu")
    for result in simulation.run():
        if result.reason:
            raise ChoraleError(f"round {result.round} was used up: {result.reason}")
    return simulation.state


def _job_key(trial: Trial) -> str:
    """Alike for trials whose jobs need the same noise."""
    return replace(trial, seed=0, learning_rate=1.0, tested=Split.TEST).key


@cache
def _privacy(key: str) -> PrivacySpec | None:
    """With the noise that `job submit` would solve for, which takes seconds."""
    spec = Trial(**json.loads(key)).spec()
    return solve(spec, initial_state(spec)).privacy


def _curated(trial: Trial, silos: list[SiloData]) -> Arrays:
    """All records in one place, which is what the silos may not do."""
    spec = trial.spec()
    assert spec.privacy is not None
    assert spec.privacy.records is not None
    assert spec.privacy.epsilon is not None
    records, start = spec.privacy.records, initial_state(spec)
    pooled = Samples(
        features=np.concatenate([own.train.features for own in silos]),
        labels=np.concatenate([own.train.labels for own in silos]),
    )
    classes, width = start[WEIGHT].shape
    model = torch.nn.Linear(width, classes)
    model.load_state_dict({"weight": torch.from_numpy(start[WEIGHT]), "bias": torch.from_numpy(start[BIAS])})
    multiplier = central.noise_multiplier(
        spec.privacy.epsilon, delta=spec.privacy.delta, sample_rate=records.sample_rate, steps=STEPS
    )
    central.train(
        model,
        pooled,
        rate=trial.learning_rate,
        steps=STEPS,
        sample_rate=records.sample_rate,
        clip_norm=records.clip_norm,
        noise_multiplier=multiplier,
        seed=trial.seed,
    )
    return {WEIGHT: model.weight.detach().numpy(), BIAS: model.bias.detach().numpy()}


def _right(model: Arrays, samples: Samples) -> float:
    """Share of the samples that the model gets right."""
    features_ND = samples.features.reshape(len(samples), -1)
    logits_NC = features_ND @ np.asarray(model[WEIGHT]).T + np.asarray(model[BIAS])
    return float(np.mean(logits_NC.argmax(axis=1) == samples.labels))

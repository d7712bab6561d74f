"""One training: a federation by the product's simulation, or one party with all the records that it has.

Both run the silos' own training with the same rounds, passes and optimizer; alone and pooled there is one
silo, whose update is the whole step. What comes out is a model for each hospital.
"""

# N = records

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from chorale.spec.job_spec import JobSpec, phase_context
from crypto.errors import ChoraleError
from research.heart_disease.arms import ALONE, POOLED
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.disclosure.policy.privacy_policy import Permission
from silo_agent.training.base.passes import run_model
from silo_agent.training.data.base import Samples, SampleSet, SiloData
from silo_agent.training.machine.seeding import training_seed
from silo_agent.training.models.registry import build_model
from silo_agent.training.models.starting import initial_state
from silo_agent.training.models.state import load_arrays
from silo_agent.training.objective import PersonalModel, Work
from silo_agent.training.torch_objective import TorchObjective
from simulation.engine import Simulation
from strategies.base import TOTAL, Array, Arrays

MEMBERS = 3  # of a context that no secure sum comes of
# the example's policy, but for methods that sum by class or keep state: these figures are about accuracy
POLICY = Policy(federation="cardiology", class_statistics=Permission.ALLOW, local_state=Permission.ALLOW)
Models = Mapping[str, Arrays]  # by hospital


def trained(arm: str, spec: JobSpec, data: Mapping[str, SiloData]) -> Models:
    """Raises ChoraleError where the product refuses to continue, such as with numbers that diverged."""
    if arm == ALONE:
        return {name: _by_itself(spec, name, own) for name, own in data.items()}
    if arm == POOLED:
        model = _by_itself(spec, POOLED, _pooled(data))
        return dict.fromkeys(data, model)
    return _federated(spec, data)


def answers(spec: JobSpec, model: Arrays, samples: SampleSet) -> NDArray[np.int64]:
    """The class that the model gives each record. Shapes: -> (N,)."""
    network = build_model(
        spec.model, classes=spec.classes, input_shape=spec.input_shape, recipe=spec.method.recipe
    )
    load_arrays(network, model)
    network.eval()
    with torch.inference_mode():
        logits_NC = run_model(network, torch.from_numpy(samples.features)).logits_NC
    found: NDArray[np.int64] = logits_NC.argmax(dim=1).numpy()
    return found


def _federated(spec: JobSpec, data: Mapping[str, SiloData]) -> Models:
    """The silos' own models where the method makes any, else the global one for each."""
    keeping = _Keeping()
    simulation = Simulation(spec, data, policy=POLICY, objective=keeping, device="cpu")
    for result in simulation.run():
        if result.reason:
            raise ChoraleError(f"round {result.round} was used up: {result.reason}")
    return {name: keeping.models.get(name, simulation.state) for name in data}


class _Keeping:
    """The built-in training; keeps what a silo would write into its folder of personal models."""

    def __init__(self) -> None:
        self.models: dict[str, Arrays] = {}
        self._silo = TorchObjective(device="cpu")

    def compute(self, work: Work) -> Mapping[str, Array]:
        return self._silo.compute(replace(work, keep_personal=partial(self._keep, work.silo)))

    def _keep(self, silo: str, model: PersonalModel) -> None:
        self.models[silo] = model.arrays


def _by_itself(spec: JobSpec, name: str, data: SiloData) -> Arrays:
    """Every round's training of one silo, each from where the one before ended."""
    objective = TorchObjective(device="cpu")
    train = spec.method.phase("train")
    state: Arrays = {**initial_state(spec), TOTAL: np.array(len(data.train))}
    for round in range(1, spec.rounds + 1):
        context = phase_context(spec, round, dict(state), MEMBERS, public_seed=b"")
        work = Work(
            spec=spec,
            phase_kind="train",
            round=round,
            silo=name,
            state=state,
            context=context,
            data=data,
            weight=1.0,
            seed=training_seed(job_seed=spec.seed, silo=name, round=round),
            is_cancelled=lambda: False,
        )
        result = train.next_state(context, objective.compute(work))
        assert result.state is not None
        state = result.state
    return state


def _pooled(data: Mapping[str, SiloData]) -> SiloData:
    """All training records in one place, which is what the hospitals may not do."""
    parts = [own.train for own in data.values()]
    every = Samples(
        features=np.concatenate([part.features for part in parts]),
        labels=np.concatenate([part.labels for part in parts]),
    )
    return SiloData(train=every, holdout=every.first(1), name=POOLED)

"""A job of steps in one process: when it ends, what it trains, and what it does with a step that is lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from chorale.spec.job_spec import JobSpec
from chorale.transport.wire import PhaseKey
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.training.data.base import SiloData
from silo_agent.training.models.starting import initial_state
from silo_agent.training.torch_objective import TorchObjective
from simulation.engine import Simulation, unsigned_job
from simulation.silos import Answer, SilosHere
from simulation.sums import plain_sums
from simulation.trial import Trial
from strategies.phases.step import GRADIENT
from strategies.server_optimizer import STEPS
from tests.support.objectives import make_data, make_job

SILOS = ("a", "b", "c", "d")
_DIGITS = load_digits()
IMAGES, LABELS = (_DIGITS.data / 16.0).reshape(-1, 1, 8, 8), _DIGITS.target
SHARED = {
    "records": {"clip_norm": 1.0, "noise_multiplier": 0.5, "sample_rate": 0.2, "noise": "sum"},
    "statistics_noise_multiplier": 1.0,
}


def data() -> dict[str, SiloData]:
    """350 digits each, and 49 to test."""
    parts = [slice(place, 1400, 4) for place in range(4)]
    tests = [slice(1400 + place, None, 8) for place in range(4)]
    return {
        name: make_data(IMAGES[part], LABELS[part], holdout=(IMAGES[held], LABELS[held]))
        for name, part, held in zip(SILOS, parts, tests, strict=True)
    }


def job(**fields: Any) -> JobSpec:
    training = {"local_epochs": 1, "batch_size": 70, "learning_rate": 1.0, "momentum": 0.5}
    return make_job(privacy=SHARED, silos=SILOS, **{"training": training, "steps": 25} | fields)


def test_steps_learn_and_spare_ones_are_left_over() -> None:
    run = Simulation(job(), data(), device="cpu")
    results = list(run.run())
    assert [result.round for result in results] == list(range(1, 26))  # of 27
    assert {result.result for result in results} == {"applied"}
    assert run.state[STEPS] == 25
    assert run.final_accuracy is not None
    assert run.final_accuracy.value > 0.6  # 0.1 by chance; noise moves it by 0.01


def test_a_lost_step_is_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too few silos take part in round 2."""
    plain = SilosHere.answer

    def lost(self: SilosHere, request: Any, silo: str, *rest: Any, **fields: Any) -> Answer:
        if request.key.round == 2 and request.key.kind == "train":
            return Answer(silo=silo, refused="not-enrolled")
        return plain(self, request, silo, *rest, **fields)

    monkeypatch.setattr(SilosHere, "answer", lost)
    run = Simulation(job(steps=3, spare_steps=2), data(), device="cpu")
    assert [(result.round, result.result) for result in run.run()] == [
        (1, "applied"),
        (2, "used-up"),
        (3, "applied"),
        (4, "applied"),
    ]
    assert run.state[STEPS] == 3


def test_trains_head_leaves_the_given_features_as_they_are() -> None:
    spec = job(steps=2, trains="head")
    state = initial_state(spec)
    run = Simulation(spec, data(), state=state, device="cpu")
    list(run.run())
    moved = {name for name, array in state.items() if not np.array_equal(array, run.state[name])}
    assert moved == {"model/head.weight", "model/head.bias"}


def test_a_trial_runs_one_step_of_a_job_before_it_is_taken() -> None:
    spec = job()
    trial = Trial(
        spec,
        "a",
        data()["a"],
        state=initial_state(spec),
        policy=Policy(federation="test"),
        objective=TorchObjective(device="cpu"),
    )
    assert [each.phase for each in trial.run()] == ["enrollment", "train", "evaluate"]


def test_whole_units_are_summed_in_the_units_of_a_gradient() -> None:
    spec = job()
    state = initial_state(spec)
    layout = unsigned_job(spec, state).layout(
        PhaseKey(job_digest=bytes(32), round=1, phase="train", attempt=1), state, 4
    )
    (gradient,) = layout.quantities
    assert gradient.noise is not None
    whole_P = np.full(gradient.shape, 3, np.int64)
    sums = plain_sums(layout, [Answer(silo=name, values={GRADIENT: whole_P}) for name in SILOS])
    np.testing.assert_array_equal(sums[GRADIENT], whole_P * 4 / gradient.noise.scale)

"""Real training in a simulation: in one process or several, plain or masked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chorale.spec.job_spec import JobSpec
from chorale.spec.state import state_to_bytes
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.training.data.loading import load_partition
from silo_agent.training.data.settings import DataSettings
from simulation.engine import Simulation
from simulation.silos import Compute, built_in
from tests.unit.simulation.conftest import spec_of

pytest.importorskip("torch", reason="trains for real: needs the extra silo")

SILOS = 5
CUT = {"kind": "dirichlet", "alpha": 0.5, "silos": SILOS, "index": 0, "seed": 3}
POLICY = Policy(federation="test", min_class_holders=1)


def digits(**fields: Any) -> JobSpec:
    network = {"model": {"name": "mlp", "hidden": [16]}, "classes": 10, "input_shape": [1, 8, 8]}
    return spec_of(SILOS, **{"rounds": 2, "training": {"learning_rate": 0.1}, **network, **fields})


def simulation(spec: JobSpec, **given: Any) -> Simulation:
    parts = load_partition(DataSettings.model_validate({"format": "digits", "partition": CUT}), spec)
    return Simulation(spec, dict(zip(spec.silos, parts, strict=True)), policy=POLICY, device="cpu", **given)


def end_of(made: Simulation) -> tuple[bytes, list[float | None]]:
    accuracies = [result.accuracy for result in made.run()]
    return state_to_bytes(made.state), [*accuracies, made.final_accuracy]


@pytest.mark.parametrize("preset", ["fedcsd", "scaffold"])
def test_workers_change_no_bit(preset: str) -> None:
    """Two phases a round, and what one of them leaves for the other at a silo; what a silo keeps."""
    spec = digits(strategy={"preset": preset}, fraction=0.8)
    assert end_of(simulation(spec, workers=2)) == end_of(simulation(spec))


@pytest.mark.parametrize("preset", ["fedavg", "feddw", "spherefed"])
def test_masks_change_the_model_by_no_more_than_the_fixed_point(preset: str) -> None:
    spec = digits(strategy={"preset": preset})
    plain, secure = simulation(spec), simulation(spec, is_secure=True)
    (_, unmasked), (_, masked) = end_of(plain), end_of(secure)
    assert masked == unmasked
    for name, array in plain.state.items():
        assert np.abs(secure.state[name].astype(np.float64) - array).max() <= 1e-5, name
    start = simulation(spec).state
    assert max(np.abs(plain.state[name] - start[name]).max() for name in start) > 1e-2  # and it did train


def test_the_same_job_gives_the_same_bits_and_another_seed_others() -> None:
    assert end_of(simulation(digits())) == end_of(simulation(digits()))
    assert end_of(simulation(digits(seed=2)))[0] != end_of(simulation(digits()))[0]


@pytest.mark.parametrize("workers", [1, 2])
def test_rounds_test_on_one_part_of_the_hold_outs_and_the_end_on_the_other(workers: int) -> None:
    """One sum over both would say of the model that a round chose what it was chosen by."""
    made = simulation(spec := digits(test_share=0.25), workers=workers)
    rounds = list(made.run())
    parts = load_partition(DataSettings.model_validate({"format": "digits", "partition": CUT}), spec)
    held, tested = (
        sum(POLICY.rounded(len(each)) for each in side)
        for side in ([part.holdout for part in parts], [part.tested for part in parts])
    )
    assert tested * 2 < held
    assert (rounds[-1].figures["tested"], made.closing["evaluate"]["tested"]) == (held, tested)


def test_workers_take_several_gpus_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """All workers trained on the first one."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    devices = [built_in(Compute(), place=place).device for place in range(3)]  # type: ignore[attr-defined]
    assert [str(device) for device in devices] == ["cuda:0", "cuda:1", "cuda:0"]
    assert str(built_in(Compute(device="cpu"), place=1).device) == "cpu"  # type: ignore[attr-defined]

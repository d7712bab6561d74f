"""Secure aggregation changes nothing: the federation's model is the mean of what its silos computed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from chorale.spec.state import state_from_file, state_to_bytes
from crypto.fixed_point.layout import Quantity
from silo_agent.training.models.starting import initial_state
from tests.support.federation import LocalFederation
from tests.support.recording import RECORD

pytest.importorskip("torch", reason="trains for real: needs the extra silo")

SILOS, ROUNDS, UPDATE_BOUND = 3, 2, 8.0
PARTITION = {"kind": "dirichlet", "alpha": 0.5, "silos": SILOS, "seed": 3}


def test_parameters_equal_the_clear_mean_of_recorded_inputs_within_the_fixed_point_resolution(
    tmp_path: Path,
) -> None:
    """Bound: stochastic rounding moves each silo's value by less than one step of 1/scale, so a
    round's sum by less than m steps, and the mean by m / (scale * sum of p). Training in round 2
    starts from the federation's own state, so the rounds' bounds add up and nothing amplifies them;
    float32 storage of the state adds half an ulp of the largest parameter per round.
    """
    record = tmp_path / "record"
    record.mkdir()
    with _federation(tmp_path, record) as federation:
        federation.start_coordinator()
        for place, name in enumerate(federation.names):
            federation.silo["data"] = {
                "format": "digits",
                "name": name,
                "partition": {**PARTITION, "index": place},
            }
            federation.start_silo(name)
        job_id = _submit(federation, tmp_path)
        assert federation.finish()["status"] == "done"
        fetched = federation.fetch(job_id)
    assert {path.name.split("-")[0] for path in record.glob("*.npz")} == {"train", "evaluate"}
    clear = _clear_state(tmp_path / "initial.safetensors", record)
    assert set(clear) == {name for name in fetched if name.startswith("model/")}
    bound = _bound(clear)
    assert bound < 1e-6  # the claim means something: updates are four orders of magnitude larger
    for name, expected in clear.items():
        assert np.abs(fetched[name].astype(np.float64) - expected).max() <= bound, name
    before = state_from_file(tmp_path / "initial.safetensors")
    assert max(np.abs(clear[name] - before[name]).max() for name in clear) > 1e-2  # and it did train


def _federation(folder: Path, record: Path) -> LocalFederation:
    return LocalFederation(
        folder=folder,
        silos=SILOS,
        silo={"objective": "tests.support.recording:objective"},
        env={RECORD: str(record)},
    )


def _submit(federation: LocalFederation, folder: Path) -> str:
    spec = federation.job_spec(
        rounds=ROUNDS,
        model={"name": "mlp", "hidden": [16]},
        classes=10,
        input_shape=[1, 8, 8],
        update_bound=UPDATE_BOUND,
        training={"learning_rate": 0.05, "local_epochs": 1},
    )
    (folder / "initial.safetensors").write_bytes(state_to_bytes(initial_state(spec)))
    return federation.submit_spec(spec, folder / "initial.safetensors")


def _clear_state(initial: Path, record: Path) -> dict[str, NDArray[np.float64]]:
    """FedAvg in the clear, in float64, from the recorded p * delta and p."""
    state = {name: array.astype(np.float64) for name, array in state_from_file(initial).items()}
    for round in range(1, ROUNDS + 1):
        inputs = [np.load(path) for path in sorted(record.glob(f"train-{round}-*.npz"))]
        assert len(inputs) == SILOS
        weight = sum(float(silo["weight"]) for silo in inputs)
        mean_P = sum(silo["delta"].astype(np.float64) for silo in inputs) / weight
        start = 0
        for name in sorted(state):
            size = state[name].size
            state[name] = state[name] + mean_P[start : start + size].reshape(state[name].shape)
            start += size
        assert start == mean_P.size
    return state


def _bound(state: dict[str, NDArray[np.float64]]) -> float:
    step = 1.0 / Quantity(name="delta", bound=UPDATE_BOUND, ring_bits=32).scale(SILOS)
    largest = max(float(np.abs(array).max()) for array in state.values())
    return ROUNDS * (SILOS * step / 0.99 + float(np.spacing(np.float32(largest))))  # 0.99 <= sum of p <= 1

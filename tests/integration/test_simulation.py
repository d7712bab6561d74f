"""A simulation and a federation of processes lead to the same model; a killed simulation resumes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import yaml

from chorale.results import RoundResult
from chorale.spec.job_spec import JobSpec
from chorale.spec.state import GlobalState, state_from_file, state_to_bytes
from cli.main import run
from coordinator.storage.store import Store
from crypto.fixed_point.layout import Quantity
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.training.data.loading import load_partition
from silo_agent.training.data.settings import DataSettings
from silo_agent.training.models.starting import initial_state
from simulation.engine import Simulation
from tests.support.federation import COORDINATOR, LocalFederation
from tests.support.processes import REPOSITORY, environment, wait_until

pytest.importorskip("torch", reason="trains for real: needs the extra silo")

pytestmark = pytest.mark.timeout(300)
SILOS, DRAWN, ROUNDS, UPDATE_BOUND = 4, 3, 2, 8.0
PARTITION = {"kind": "dirichlet", "alpha": 0.5, "silos": SILOS, "seed": 3, "min_samples": 30}
POLICY = {"max_cohort_changes": 1_000}  # with fraction the drawn silos differ by one or two
GROWTH = 4.0  # most by which training of one round amplifies a difference in the model that it starts from
KILLED_ROUNDS = 30


def test_simulation_and_federation_give_the_same_parameters_for_the_same_seed(tmp_path: Path) -> None:
    """The silos' batches are seeded as a simulation's. Three of four silos a round, drawn by the silos' seeds
    of the opening, which the coordinator keeps. Bound: stochastic rounding moves the mean of a round by less
    than m / (scale * sum of p), and float32 storage by an ulp; the next round starts from there."""
    with LocalFederation(
        folder=tmp_path, silos=SILOS, policy=POLICY, silo={"objective": "tests.support.seeded:objective"}
    ) as federation:
        federation.start_coordinator()
        for place, name in enumerate(federation.names):
            federation.silo["data"] = _data(place)
            federation.start_silo(name)
        federation.wait_connected()
        spec, initial = _spec(federation), tmp_path / "initial.safetensors"
        initial.write_bytes(state_to_bytes(initial_state(spec)))
        job_id = federation.submit_spec(spec, initial)
        assert federation.finish()["status"] == "done"
        ended = federation.hub.records()
        fetched, report = federation.fetch(job_id), federation.report(job_id)
        with closing(Store(tmp_path / COORDINATOR / "coordinator.sqlite")) as store:
            (job,) = store.jobs()
            self_mask_seeds = store.phases(job.digest)[0].self_mask_seeds
    simulated = _simulated(spec, self_mask_seeds)
    results = list(simulated.run())
    assert simulated.job.id == job_id
    trained = [each for each in ended if each["event"] == "phase ended" and each["phase"] == "train"]
    assert [list(result.silos) for result in results] == [each["cohort"] for each in trained]
    assert {len(result.silos) for result in results} == {DRAWN}
    _check_near(simulated.state, fetched, results)
    before = state_from_file(initial)
    assert max(np.abs(fetched[name] - before[name]).max() for name in before) > 1e-2  # it did train
    told = [*(result.accuracy for result in results[1:]), simulated.final_accuracy]
    measured = [figure and figure.value for figure in told]
    assert report["accuracy_by_round"] == pytest.approx(measured, abs=1e-12)


def test_a_killed_simulation_goes_on_and_ends_as_one_that_was_not(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(yaml.safe_dump(_small_job()))
    arguments = ["simulate", str(job), "--device", "cpu", "--out"]
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    process = subprocess.Popen(
        [sys.executable, "-m", "cli.main", *arguments, str(killed)],
        cwd=REPOSITORY,
        env=environment({}),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: len(_lines(killed)) >= 2 or process.poll() is not None, "two rounds")
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    assert 2 <= len(_lines(killed)) < KILLED_ROUNDS
    assert [run([*arguments, str(folder)]) for folder in (killed, whole)] == [0, 0]
    assert (killed / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    mine, its = ([json.loads(line) for line in _lines(folder)] for folder in (killed, whole))
    assert [line["round"] for line in mine] == list(range(1, KILLED_ROUNDS + 1))
    assert [line["accuracy"] for line in mine] == [line["accuracy"] for line in its]


def _data(place: int) -> dict[str, object]:
    return {"format": "digits", "name": "digits", "partition": {**PARTITION, "index": place}}


def _spec(federation: LocalFederation) -> JobSpec:
    return federation.job_spec(
        nonce="5" * 32,
        rounds=ROUNDS,
        fraction=DRAWN / SILOS,
        model={"name": "mlp", "hidden": [16]},
        classes=10,
        input_shape=[1, 8, 8],
        update_bound=UPDATE_BOUND,
        training={"learning_rate": 0.05, "local_epochs": 1},
    )


def _simulated(spec: JobSpec, self_mask_seeds: Mapping[str, bytes] | None) -> Simulation:
    parts = load_partition(DataSettings.model_validate(_data(0)), spec)
    return Simulation(
        spec,
        dict(zip(spec.silos, parts, strict=True)),
        policy=Policy(federation=spec.federation),
        device="cpu",
        self_mask_seeds=self_mask_seeds,
    )


def _check_near(state: GlobalState, expected: GlobalState, results: list[RoundResult]) -> None:
    models = [name for name in expected if name.startswith("model/")]
    step = 1.0 / Quantity(name="delta", bound=UPDATE_BOUND, ring_bits=32).scale(DRAWN)
    largest = max(float(np.abs(expected[name]).max()) for name in models)
    once = DRAWN * step / min(result.data_share for result in results)
    bound = sum((once + float(np.spacing(np.float32(largest)))) * GROWTH**later for later in range(ROUNDS))
    assert bound < 1e-5  # the claim means something: updates are three orders of magnitude larger
    assert set(state) == set(expected)
    for name in models:
        assert np.abs(state[name].astype(np.float64) - expected[name]).max() <= bound, name


def _lines(folder: Path) -> list[str]:
    path = folder / "rounds.jsonl"
    return path.read_text().splitlines() if path.exists() else []


def _small_job() -> dict[str, object]:
    return {
        "name": "digits",
        "federation": "test",
        "silos": ["a", "b", "c"],
        "rounds": KILLED_ROUNDS,
        "model": {"name": "mlp", "hidden": [8]},
        "classes": 10,
        "input_shape": [1, 8, 8],
        "training": {"learning_rate": 0.05, "batch_size": 32},
    }

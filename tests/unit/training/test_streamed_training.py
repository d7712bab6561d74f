"""Training on data that does not fit in memory: the sums of data that does, in bounded memory."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crypto.errors import QuantizationError
from silo_agent.training.data.base import SiloData
from silo_agent.training.data.loading import load_data
from silo_agent.training.data.streamed import Streamed
from silo_agent.training.objective import Cancelled
from silo_agent.training.torch_objective import TorchObjective
from tests.support.objectives import make_job, make_work
from tests.support.scans import SIDE, Scans, given, settings_of

ROOT = Path(__file__).resolve().parents[3]
SHAPE = {"input_shape": (1, SIDE, SIDE), "training": {"local_epochs": 1}}
END_SECONDS = 60.0


@pytest.fixture(autouse=True)
def _scans() -> Iterator[None]:
    given["train"] = Scans(400)
    yield
    given.clear()


def both(job: Any) -> tuple[SiloData, SiloData]:
    """In memory and streamed."""
    memory, streamed = (load_data(settings_of(cache_megabytes=megabytes), job) for megabytes in (64, 1))
    assert isinstance(streamed.train, Streamed)
    return memory, streamed


@pytest.mark.parametrize(
    ("preset", "kind"),
    [
        ("fedavg", "train"),
        ("feddw", "class-presence"),
        ("feddw", "train"),
        ("moon", "train"),
        ("feddr_plus", "train"),
        ("ditto", "train"),
        ("per_fedavg", "train"),
        ("fedrep", "evaluate"),
        ("fedcsd", "prototypes"),
        ("spherefed", "calibrate"),
    ],
)
def test_a_phase_sums_the_same_over_streamed_data(preset: str, kind: str) -> None:
    job = make_job({"preset": preset}, **SHAPE)
    objective = TorchObjective(device="cpu")
    memory, streamed = (
        objective.compute(dataclasses.replace(make_work(job, data, kind=kind), class_rows=np.ones(10, bool)))
        for data in both(job)
    )
    assert set(memory) == set(streamed)
    for name, values in memory.items():  # passes have other batches, which kernels round otherwise
        np.testing.assert_allclose(streamed[name], values, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    "way",
    [
        {"records": {"clip_norm": 1.0, "sample_rate": 0.1, "noise_multiplier": 1.0}},
        {"sums": {"clip_norm": 1.0}},
    ],
)
def test_a_private_job_trains_on_streamed_data(way: dict[str, Any]) -> None:
    privacy = {"epsilon": 8.0, **way}
    job = make_job(**SHAPE, privacy=privacy)
    _, streamed = both(job)
    values = TorchObjective(device="cpu").compute(make_work(job, streamed))
    assert np.isfinite(values["delta"]).all()
    assert values["tested"] == len(streamed.holdout)


def test_cancellation_is_looked_at_between_streamed_batches_and_while_data_is_first_read() -> None:
    job = make_job(**SHAPE)
    asked = iter([False] * 4)
    _, streamed = both(job)
    work = dataclasses.replace(make_work(job, streamed), is_cancelled=lambda: next(asked, True))
    with pytest.raises(Cancelled):
        TorchObjective(device="cpu").compute(work)
    asked = iter([False] * 2)
    with pytest.raises(Cancelled):
        load_data(settings_of(cache_megabytes=1), job, is_cancelled=lambda: next(asked, True))


def test_a_loss_that_is_no_number_is_named_where_it_would_be_sent() -> None:
    job = make_job(**SHAPE)
    too_much = np.full((SIDE, SIDE), 3e38, np.float32)
    given["train"] = Scans(400, bad=dict.fromkeys(range(40), (too_much, 1)))
    memory, _ = both(job)
    with pytest.raises(QuantizationError, match="training: the loss is not finite after [0-9]+ steps"):
        TorchObjective(device="cpu").compute(make_work(job, memory))


@pytest.mark.gate
@pytest.mark.parametrize("workers", [0, 2])
def test_memory_stays_near_the_bound_with_ten_times_as_much_data(workers: int) -> None:
    megabytes = 32
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.scans", "memory", str(megabytes), str(workers)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    taken = (found["after"] - found["before"]) / (megabytes << 20)
    assert taken < 1.5, f"memory beyond torch's own: {taken:.2f} x the bound"


@pytest.mark.gate
def test_processes_that_read_end_with_one_that_was_killed() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-m", "tests.support.scans", "wait"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    with parent, parent.stdout as lines:
        readers = json.loads(lines.readline())
        assert len(readers) == 2
        assert all(is_alive(reader) for reader in readers)
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + END_SECONDS
    while any(is_alive(reader) for reader in readers) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not any(is_alive(reader) for reader in readers)


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    return state != "Z"

"""Personal models on disk: one file a job, whole or absent, and final once its sum was revealed."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from chorale.job import Job
from chorale.spec.model_file import facts_of
from chorale.transport.wire import PhaseKey
from crypto.errors import ConfigError
from silo_agent.local_storage.personal_models import PersonalModels
from silo_agent.training.objective import PersonalModel
from tests.support.agents import Hub

STATE, OTHER = b"s" * 32, b"t" * 32


@pytest.fixture
def job(tmp_path: Path) -> Job:
    (tmp_path / "hub").mkdir()
    return Hub(tmp_path / "hub").job


class Shelf:
    """A silo's personal models, and which phases its ledger shows as revealed."""

    def __init__(self, folder: Path, job: Job) -> None:
        self.folder, self.job = folder, job
        self.revealed: set[str] = set()
        self.models = PersonalModels(folder, is_revealed=lambda key: key.phase in self.revealed)

    def keep(
        self,
        value: float,
        *,
        phase: str = "fine-tune.0",
        state: bytes = STATE,
        job: Job | None = None,
        **facts: Any,
    ) -> None:
        job = job or self.job
        key = PhaseKey(job_digest=job.digest, round=3, phase=phase, attempt=2)
        values = {"tuned": "full", "epochs": 5, "learning_rate": 0.05} | facts
        counts = {"tested": 40, "score_before": 0.75, "score": 0.95} | facts
        model = PersonalModel(arrays={"model/w": np.full(3, value, np.float32)}, **{**values, **counts})
        self.models.keep(model, job=job, key=key, global_model=state)

    @property
    def values(self) -> list[float]:
        (kept,) = self.models.kept()
        return [float(value) for value in safetensors.numpy.load_file(kept.path)["model/w"]]


@pytest.fixture
def shelf(tmp_path: Path, job: Job) -> Shelf:
    return Shelf(tmp_path / "personal", job)


def test_a_kept_model_is_one_private_file_with_its_facts(shelf: Shelf) -> None:
    shelf.keep(1.5)
    kept = shelf.models.find(shelf.job.id)
    assert kept.path == shelf.folder / f"{shelf.job.digest.hex()}.safetensors"
    assert [path.name for path in shelf.folder.iterdir()] == [kept.path.name]
    assert stat.S_IMODE(kept.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(shelf.folder.stat().st_mode) == 0o700
    assert shelf.values == [1.5, 1.5, 1.5]
    described = facts_of(shelf.job.spec, job_digest=shelf.job.digest, round=3)
    assert kept.facts == {
        **described,
        "job": shelf.job.digest.hex(),
        "name": "one-hot",
        "method": "fedavg",
        "round": "3",
        "phase": "fine-tune.0",
        "global_model": STATE.hex(),
        "tuned": "full",
        "epochs": "5",
        "learning_rate": "0.05",
        "tested": "40",
        "accuracy": "0.950000",
        "accuracy_of_global_model": "0.750000",
    }


def test_a_silo_without_a_holdout_has_a_model_and_no_accuracy(shelf: Shelf) -> None:
    shelf.keep(1.0, tested=0, score=0.0, score_before=0.0)
    facts = shelf.models.find(shelf.job.id).facts
    assert (facts["tested"], "accuracy" in facts) == ("0", False)


def test_a_model_beside_which_none_is_shared_is_compared_with_none(shelf: Shelf) -> None:
    shelf.keep(1.0, score_before=None)
    facts = shelf.models.find(shelf.job.id).facts
    assert (facts["accuracy"], "accuracy_of_global_model" in facts) == ("0.950000", False)


def test_a_phase_that_comes_again_replaces_the_model_until_its_sum_was_revealed(shelf: Shelf) -> None:
    shelf.keep(1.0)
    shelf.keep(2.0, phase="fine-tune.1")
    assert shelf.values == [2.0, 2.0, 2.0]
    # a coordinator that asks this silo alone, with a state of its own making, must not exchange the model
    shelf.revealed.add("fine-tune.1")
    shelf.keep(3.0, phase="personal.2", state=OTHER)
    assert shelf.values == [2.0, 2.0, 2.0]
    kept = shelf.models.find(shelf.job.id)
    assert (kept.facts["global_model"], shelf.models.is_confirmed(kept)) == (STATE.hex(), True)


def test_a_model_whose_sum_was_never_revealed_is_not_confirmed(shelf: Shelf) -> None:
    shelf.keep(1.0)
    assert not shelf.models.is_confirmed(shelf.models.find(shelf.job.id))


def test_each_job_has_its_own_and_is_found_by_the_start_of_its_digest(shelf: Shelf, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Hub(tmp_path / "other", rounds=2).job
    assert other.digest[:1] != shelf.job.digest[:1]
    shelf.keep(1.0)
    shelf.keep(2.0, job=other)
    assert {kept.id for kept in shelf.models.kept()} == {shelf.job.id, other.id}
    assert shelf.models.find(other.digest.hex()[:2]).id == other.id
    for wrong, got in (("", 2), ("zz", 0)):
        with pytest.raises(
            ConfigError, match=f"expected one personal model of a job {wrong}, got {got}; there are: "
        ):
            shelf.models.find(wrong)


def test_nothing_is_kept_before_the_first(shelf: Shelf) -> None:
    assert shelf.models.kept() == []
    with pytest.raises(ConfigError, match="got 0; there are: none"):
        shelf.models.find(shelf.job.id)


@pytest.mark.parametrize(
    "spoiled",
    [
        b"",
        b"no safetensors",
        safetensors.numpy.save({"model/w": np.zeros(3, np.float32)}),
        safetensors.numpy.save({"model/w": np.zeros(3, np.float32)}, metadata={"job": "not hex"}),
        safetensors.numpy.save({"w": np.zeros(3, np.float32)}, metadata={"job": "00" * 32, "round": "1"}),
    ],
)
def test_a_file_that_is_no_personal_model_is_named(shelf: Shelf, spoiled: bytes) -> None:
    shelf.folder.mkdir()
    path = shelf.folder / f"{shelf.job.digest.hex()}.safetensors"
    path.write_bytes(spoiled)
    with pytest.raises(ConfigError, match=f"{path}: expected a personal model: "):
        shelf.models.kept()
    with pytest.raises(ConfigError, match="expected a personal model: "):
        shelf.keep(1.0)
    assert path.read_bytes() == spoiled


def test_a_process_killed_while_it_wrote_leaves_the_old_model(shelf: Shelf) -> None:
    """What a kill leaves is a temporary file next to it, which is none of the models and does not stay."""
    shelf.keep(1.0)
    (shelf.folder / f".{shelf.job.digest.hex()}.safetensors.0a0b0c0d.tmp").write_bytes(b"half of")
    assert shelf.values == [1.0, 1.0, 1.0]
    shelf.keep(2.0, phase="fine-tune.1")
    assert shelf.values == [2.0, 2.0, 2.0]
    assert len(list(shelf.folder.iterdir())) == 1

"""Workers that ask for the next silo, and the files that let any of them take any silo."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from chorale.transport.wire import PhaseKey
from crypto.errors import ConfigError
from silo_agent.training.data.base import Samples, SiloData
from silo_agent.training.objective import Work
from simulation.folder import SimulationFolder
from simulation.on_ray import Ray, Welcome, connected, room, same_versions, versions
from simulation.pool import Phase, Pool
from simulation.silos import Answer
from simulation.stored import KeptFile, Scratch, StoredSilo
from strategies.base import Array, Arrays
from tests.support import one_hot
from tests.unit.simulation.conftest import Makes
from tests.unit.simulation.test_folder import Keeping, run_in

KEY = PhaseKey(job_digest=bytes(32), round=1, phase="train", attempt=1)


class Timed:
    """A worker that takes a second of its own clock for each sample."""

    def __init__(self, samples: Mapping[str, int]) -> None:
        self.samples = samples
        self.silos: list[str] = []
        self.free_at = 0

    def ask(self, phase: Phase, silo: str, kept: Arrays) -> None:
        self.silos.append(silo)
        self.free_at += self.samples[silo]

    def answer(self) -> Answer:
        return Answer(silo=self.silos[-1])


class TimedPool(Pool[Timed]):
    def __init__(self, samples: Mapping[str, int], workers: int) -> None:
        super().__init__(samples)
        self._workers = [Timed(samples) for _ in range(workers)]

    def ready(self, busy: Sequence[Timed]) -> list[Timed]:
        return [min(busy, key=lambda worker: worker.free_at)]

    def close(self) -> None: ...

    def train(self, names: Sequence[str]) -> tuple[list[list[str]], float]:
        """Who took which, and the share of the time that workers were at work."""
        seen: list[tuple[int, int]] = []
        answers = self.answers(
            KEY, {}, names, {}, as_words=False, answered=lambda *done_of: seen.append(done_of)
        )
        assert [each.silo for each in answers] == list(names)
        assert seen == [(done, len(names)) for done in range(1, len(names) + 1)]
        busy = [worker.free_at for worker in self._workers]
        return [worker.silos for worker in self._workers], sum(busy) / (len(busy) * max(busy))


def test_a_worker_takes_the_largest_silo_that_is_left() -> None:
    """Silos were dealt out once: a and c to one worker, which did both while the other had nothing to do."""
    samples = {"a": 40, "b": 60, "c": 90, "d": 30, "e": 50}
    taken, balance = TimedPool(samples, 2).train(["a", "b", "c", "d", "e"])
    assert taken == [["c", "a"], ["b", "e", "d"]]
    assert balance == pytest.approx(270 / 280)
    assert TimedPool(samples, 2).train(["a", "c"])[0] == [["c"], ["a"]]  # of a round that draws these two
    assert TimedPool(samples, 4).train(["a", "c"])[0] == [["c"], ["a"], [], []]


class InWhichProcess(Keeping):
    def compute(self, work: Work) -> Mapping[str, Array]:
        values = super().compute(work)
        if work.phase_kind == "train":
            work.local.propose({"method/process": np.array(os.getpid())})
        return values


def test_what_a_silo_keeps_goes_to_whichever_worker_takes_it(make: Makes, tmp_path: Path) -> None:
    simulation = make(
        silos=4, rounds=4, simulation={"objective": InWhichProcess(), "workers": 2, "scratch": tmp_path}
    )
    assert len(list(tmp_path.rglob("data-*"))) == 4
    processes: dict[str, set[int]] = {}
    for result in simulation.run():
        for silo, kept in simulation.progress.local.items():
            assert kept.arrays()["method/rounds"] == result.round
            processes.setdefault(silo, set()).add(int(kept.arrays()["method/process"]))
    assert len(set().union(*processes.values())) == 2
    del simulation, kept
    assert list(tmp_path.iterdir()) == []  # data and kept arrays are of the simulation alone


def test_a_simulation_that_resumes_holds_no_file_open_for_each_silo(make: Makes, tmp_path: Path) -> None:
    """Each silo's kept arrays were mapped at the start: a thousand of them were too many open files."""
    run_in(tmp_path, make(silos=60, rounds=1, simulation={"objective": Keeping()}))
    folder, before = SimulationFolder(tmp_path, identity="one"), open_files()
    with folder.held() as progress:
        assert progress is not None
        assert len(progress.local) == 60
        assert open_files() < before + 10


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_kept_file_lasts_as_long_as_somebody_has_it(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    first, second = (KeptFile.write({"method/x": np.arange(size)}, scratch) for size in (2, 3))
    with pytest.raises(ConfigError, match="local state: method/x: expected one of F32"):
        KeptFile.write({"method/x": np.zeros(2, np.complex64)}, scratch)
    del first
    assert list(scratch.path.iterdir()) == [second.path]
    del scratch
    np.testing.assert_array_equal(second.arrays()["method/x"], [0, 1, 2])
    del second
    assert list(tmp_path.iterdir()) == []


def test_stored_samples_are_the_same_samples(tmp_path: Path) -> None:
    train = Samples(
        features=np.random.default_rng(0).random((5, 2), np.float32),
        labels=np.arange(5),
        strata=np.arange(5) % 2,
        units_N=np.array([0, 0, 1, 2, 2]),
        rows_per_unit=2,
    )
    data = SiloData(train=train, holdout=train.take(slice(0)), name="set")
    stored = StoredSilo.write(data, tmp_path / "a")
    assert stored is not None
    found = stored.open()
    assert found.name == "set"
    for given, got in ((data.train, found.train), (data.holdout, found.holdout)):
        assert isinstance(got, Samples)
        assert isinstance(given, Samples)
        assert got.rows_per_unit == given.rows_per_unit == 2
        for name in ("features", "labels", "strata", "units_N"):
            expected, array = getattr(given, name), getattr(got, name)
            np.testing.assert_array_equal(array, expected)
            assert array.dtype == expected.dtype
    whole = one_hot.silo_data("x")
    assert (
        StoredSilo.write(replace(data, train=replace(train, labels=np.ones(5, bool))), tmp_path / "b") is None
    )
    assert StoredSilo.write(whole, tmp_path / "c") is not None


def test_ray_has_room_for_so_many_workers() -> None:
    assert room({"CPU": 4.0}, Ray()) == 4
    assert room({"CPU": 4.0}, Ray(workers=3)) == 3
    assert room({"CPU": 16.0, "GPU": 2.0}, Ray(gpus=0.4)) == 4  # no share is of two GPUs
    assert room({"CPU": 16.0, "GPU": 4.0}, Ray(gpus=2.0)) == 2
    with pytest.raises(ConfigError, match="at most 4 workers on a Ray with 4 CPUs, 0 GPUs; got 5 of 1 CPU"):
        room({"CPU": 4.0}, Ray(workers=5))
    with pytest.raises(ConfigError, match="at most 0 workers on a Ray with 4 CPUs, 0 GPUs"):
        room({"CPU": 4.0}, Ray(gpus=1.0))


def test_a_worker_with_other_versions_is_refused() -> None:
    mine = Welcome(machine="m1", versions=versions())
    other = Welcome(machine="m2", versions={**versions(), "torch": "2.8.0"})
    assert same_versions([mine, mine]) == 1
    with pytest.raises(ConfigError, match=r"the worker on m2 has torch 2\.8\.0, expected .* as here"):
        same_versions([mine, other])


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:1", r"--address: no Ray answers at 127\.0\.0\.1:1: "),
        ("ray://head:10001", "--address: expected HOST:PORT of a cluster, or auto, got ray://head:10001"),
        ("head", "--address: expected HOST:PORT of a cluster, or auto, got head"),
    ],
)
def test_an_address_where_no_ray_is_ends_in_a_sentence(address: str, said: str) -> None:
    """Ray tried it for ten minutes and more."""
    with pytest.raises(ConfigError, match=said):
        connected(Ray(address=address))

"""Training in two real processes: one result, one line where a process dies, and an end with the agent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from crypto.errors import (
    ChoraleError,
    ConfigError,
    PolicyRefusal,
    QuantizationError,
    Refusal,
    RemoteProtocolError,
)
from silo_agent.objective import WORKER
from silo_agent.settings import SiloSettings
from silo_agent.training.data.loading import load_data
from silo_agent.training.objective import Cancelled, LocalState, Work
from silo_agent.training.processes.exchange import ENDED, raise_error, write_error
from silo_agent.training.processes.group import SharedTraining, _who_ended, check_devices
from silo_agent.training.processes.worker import objective_of_rank
from silo_agent.training.torch_objective import TorchObjective
from tests.support.objectives import make_job, make_work
from tests.support.processes import wait_until
from tests.support.settings import silo_settings

TOLERANCE = 2e-6  # of a float32 delta of 0.1: the order in which gradients are added up


def settings_in(folder: Path, **fields: object) -> SiloSettings:
    cut = {"kind": "shards", "silos": 10, "shards_per_silo": 2}
    data = [
        {"name": name, "format": "digits", "partition": {**cut, "index": place}}
        for place, name in enumerate(("strict", "open"))
    ]
    values = {"name": "a", "directory": folder, "data": data, "device": "cpu", "devices": 2}
    return silo_settings(folder, **values | fields)


def work_of(
    settings: SiloSettings, preset: str = "fedavg", *, data: str = "strict", **fields: object
) -> Work:
    job = make_job({"preset": preset}, data=data, **fields)  # type: ignore[arg-type]
    return make_work(job, load_data(settings.data_set(data), job))


def processes_of(folder: Path) -> list[int]:
    """Launcher and training processes, by their command lines."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:  # ended meanwhile
            continue
        if any(word.startswith(bytes(folder / "processes")) for word in words):
            found.append(int(path.parent.name))
    return found


def shared_training(settings: SiloSettings) -> SharedTraining:
    alone = TorchObjective(device="cpu")
    return SharedTraining(settings, alone, folder=settings.processes_directory, worker=WORKER)


def workers_of(folder: Path) -> list[int]:
    name = b"-m\0" + WORKER.encode() + b"\0"
    return [pid for pid in processes_of(folder) if name in Path(f"/proc/{pid}/cmdline").read_bytes()]


def worker_of(folder: Path, *, rank: int) -> int:
    is_it = f"\0RANK={rank}\0".encode()
    return next(
        pid for pid in workers_of(folder) if is_it in b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
    )


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SharedTraining, SiloSettings]]:
    settings = settings_in(tmp_path_factory.mktemp("agent"))
    training = shared_training(settings)
    yield training, settings
    training.close()
    assert processes_of(settings.directory) == []
    assert list(settings.processes_directory.iterdir()) == []


@pytest.mark.parametrize("preset", ["fedavg", "moon"])
def test_two_processes_lead_to_what_one_does(
    shared: tuple[SharedTraining, SiloSettings], preset: str
) -> None:
    training, settings = shared
    one, two = (replace(work_of(settings, preset), local=LocalState()) for _ in range(2))
    expected, found = TorchObjective(device="cpu").compute(one), training.compute(two)
    assert found.keys() == expected.keys()
    assert np.abs(expected["delta"]).max() > 0.01
    np.testing.assert_allclose(found["delta"], expected["delta"], rtol=0, atol=TOLERANCE)
    for name in ("correct", "tested", "weight"):
        assert np.array_equal(found[name], expected[name])
    assert (one.local.proposed or {}).keys() == (two.local.proposed or {}).keys()
    for name, array in (one.local.proposed or {}).items():
        assert two.local.proposed is not None
        np.testing.assert_allclose(two.local.proposed[name], array, rtol=0, atol=TOLERANCE)
    assert len(workers_of(settings.directory)) == 2


def test_a_job_trains_on_its_own_data_set_whatever_its_nonce(
    shared: tuple[SharedTraining, SiloSettings],
) -> None:
    """Data were kept by the nonce, which the operator writes: a job over one data set, of a wide policy, was
    trained on the records of another."""
    training, settings = shared
    works = [work_of(settings, data=name) for name in ("strict", "open")]
    assert works[0].spec.nonce == works[1].spec.nonce
    strict, own = (TorchObjective(device="cpu").compute(work)["delta"] for work in works)
    assert np.abs(strict - own).max() > 0.01
    training.compute(works[0])
    np.testing.assert_allclose(training.compute(works[1])["delta"], own, rtol=0, atol=TOLERANCE)


def test_no_array_of_a_training_comes_to_the_disk(shared: tuple[SharedTraining, SiloSettings]) -> None:
    """The update before it was masked and the proposed local state stayed in the agent's folder."""
    training, settings = shared
    kept, secret = LocalState(), []
    for _ in range(2):  # the second reads what the first proposed
        work = replace(work_of(settings, "moon"), local=kept)
        secret.append(training.compute(work)["delta"].tobytes())
        kept = LocalState(work.local.proposed or {})
        secret += [array.tobytes() for array in kept.arrays.values()]
        files = [path for path in settings.processes_directory.rglob("*") if path.is_file()]
        assert "settings.json" in {path.name for path in files}
        for path in files:
            assert not any(values in path.read_bytes() for values in secret), path.name
    assert len(secret) > 2


def test_a_dead_process_is_one_line_and_the_next_training_starts_again(
    shared: tuple[SharedTraining, SiloSettings],
) -> None:
    training, settings = shared
    work = work_of(settings)
    first = training.compute(work)
    os.kill(worker_of(settings.directory, rank=1), signal.SIGKILL)
    with pytest.raises(
        ConfigError, match="^devices: the process of device 1 ended with exit code -9 during training$"
    ):
        training.compute(work)
    assert processes_of(settings.directory) == []
    again = training.compute(work)
    assert np.array_equal(again["delta"], first["delta"])


def test_a_process_that_hangs_ends_the_input_with_one_line(tmp_path: Path) -> None:
    """The others waited a year for it. On a slow machine they meet too late, which ends in the same line."""
    settings = settings_in(tmp_path)
    training = SharedTraining(
        settings,
        TorchObjective(device="cpu"),
        folder=settings.processes_directory,
        worker="tests.support.hanging_worker",
    )
    with pytest.raises(
        ConfigError, match="^devices: one process waited 0.05 minutes for another, whose data or device hang$"
    ):
        training.compute(work_of(settings))
    assert processes_of(tmp_path) == []


def test_what_a_process_refuses_the_agent_refuses(shared: tuple[SharedTraining, SiloSettings]) -> None:
    training, settings = shared
    work = work_of(settings, model={"name": "mlp", "hidden": (32,), "seed": 1})
    other = {name: array for name, array in work.state.items() if "head" not in name}
    with pytest.raises(RemoteProtocolError, match="global state: its arrays are not the job's model"):
        training.compute(replace(work, state=other))


def test_a_loss_that_is_not_finite_suspends_a_job_of_several_processes(
    shared: tuple[SharedTraining, SiloSettings],
) -> None:
    """It came back as ConfigError, a refusal after which a silo is asked again (docs/protocol.md 6.7)."""
    training, settings = shared
    work = work_of(settings)
    beyond = {name: np.full_like(array, 3e38) for name, array in work.state.items()}
    for objective in (TorchObjective(device="cpu"), training):
        with pytest.raises(QuantizationError, match="^training: the loss is not finite after"):
            objective.compute(replace(work, state=beyond))


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("a"),
        QuantizationError("b"),
        RemoteProtocolError("c", code=Refusal.STATE),
        PolicyRefusal("d", code=Refusal.BUDGET),
    ],
)
def test_an_error_of_a_process_keeps_its_kind_and_code(error: ChoraleError, tmp_path: Path) -> None:
    write_error(error, 1, tmp_path)
    with pytest.raises(type(error), match=f"^{error}$") as raised:
        raise_error(tmp_path, "otherwise")
    assert getattr(raised.value, "code", None) == getattr(error, "code", None)


def test_work_that_is_no_longer_wanted_ends_the_processes(
    shared: tuple[SharedTraining, SiloSettings],
) -> None:
    training, settings = shared
    work = work_of(settings, training={"local_epochs": 1000})
    with pytest.raises(Cancelled):
        training.compute(replace(work, is_cancelled=lambda: len(workers_of(settings.directory)) == 2))
    assert processes_of(settings.directory) == []


@pytest.mark.gate
def test_processes_end_with_an_agent_that_is_killed(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    lines = (
        "import sys, time",
        "from pathlib import Path",
        "from tests.unit.training.test_processes import *",
        "settings = settings_in(Path(sys.argv[1]))",
        "training = shared_training(settings)",
        "training.compute(work_of(settings))",
        "print('trained', flush=True)",
        "training.compute(work_of(settings, training={'local_epochs': 100_000}))",
    )
    command = [sys.executable, "-c", "\n".join(lines), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == b"trained\n"
        assert len(workers_of(settings.directory)) == 2
        agent.kill()
        wait_until(lambda: processes_of(settings.directory) == [], what="no process is left")


def test_more_devices_than_gpus_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="^devices: 2 are set, torch finds 1 GPUs on this machine$"):
        check_devices(settings_in(tmp_path, device="auto"), gpus=1)


@pytest.mark.parametrize(
    ("device", "expected"),
    [("cuda", ["cuda:0", "cuda:1"]), ("cuda:1", ["cuda:1", "cuda:2"]), ("cpu", ["cpu", "cpu"])],
)
def test_each_process_has_a_gpu_of_its_own(
    device: str, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them computed on the first."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    settings = settings_in(tmp_path, device=device)
    found = [objective_of_rank(settings, rank=rank, processes=2).device for rank in range(2)]
    assert [str(each) for each in found] == expected


def test_a_process_that_nccl_ends_tells_why(tmp_path: Path) -> None:
    (tmp_path / ENDED).write_text('{"rank": 1, "exit_code": -6}')
    said = "the process of device 1 ended with exit code -6 (SIGABRT: another may hang)"
    assert _who_ended(tmp_path) == said


def test_processes_from_a_gpu_on_that_are_too_many_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="^devices: 2 are set from cuda:1 on, torch finds 2 GPUs on this"):
        check_devices(settings_in(tmp_path, device="cuda:1"), gpus=2)

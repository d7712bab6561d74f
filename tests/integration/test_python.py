"""`from chorale import Federation` against real processes: what it gives is what the commands and a
simulation give."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chorale import AsyncFederation, Federation
from chorale.spec.state import state_to_bytes
from chorale.v1.operations_pb2 import JobEvent
from cli.job.commands import ENTRIES
from client.federation import WATCHING, SubmittedJob
from client.operations import Operations
from crypto.errors import ConfigError, PolicyRefusal, RemoteProtocolError
from silo_agent.disclosure.policy.policy import Policy
from simulation.engine import Simulation
from tests.support.federation import LocalFederation
from tests.support.one_hot import OneHot, silo_data
from tests.support.processes import wait_until

pd = pytest.importorskip("pandas", reason="needs the extra notebook")
matplotlib = pytest.importorskip("matplotlib", reason="needs the extra notebook")
matplotlib.use("agg")

ROUNDS = 3
STATE = {"model/votes": np.zeros(4, np.float32)}
# a simulation has no clock and no line in common with a federation, and sums other floats
OF_THE_RUN = ["seconds", "upload_bytes"]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFederation]:
    with LocalFederation(
        folder=tmp_path_factory.mktemp("python"), silos=3, policy={"max_rounds": ROUNDS}
    ) as federation:
        federation.start()
        federation.wait_connected()
        yield federation


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFederation]:
    """No silo is there: its jobs wait."""
    with LocalFederation(folder=tmp_path_factory.mktemp("waiting"), silos=3) as federation:
        federation.start_coordinator()
        yield federation


@pytest.fixture(scope="module")
def init(running: LocalFederation) -> Path:
    path = running.folder / "given.safetensors"
    path.write_bytes(state_to_bytes(STATE))
    return path


@pytest.fixture
def federation(running: LocalFederation) -> Federation:
    return Federation(running.operator_file())


def test_a_job_from_submission_to_its_model(
    running: LocalFederation, federation: Federation, init: Path, tmp_path: Path
) -> None:
    job = federation.submit(running.job(rounds=ROUNDS), init=init)
    assert any("silos refuse a given initial state" in note for note in job.notes)
    assert federation.plan(running.job(rounds=ROUNDS), init=init).rounds == ROUNDS
    watched = list(federation.watch(job))
    assert [(each.round, each.result, each.silos) for each in watched] == [
        (number, "applied", tuple(running.names)) for number in range(1, ROUNDS + 1)
    ]
    table, report = federation.results(job), running.report(job.id)
    assert list(table.index) == [1, 2, 3]
    assert list(table["accuracy"]) == report["accuracy_by_round"]
    assert list(table["loss"])[:-1] == [each.figures["loss"] for each in watched[1:]]
    assert (table["upload_bytes"] > 0).all()
    line = federation.plot(job, "loss").get_lines()[0]
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([1, 2, 3], list(table["loss"]))
    model = federation.fetch(job.id[:8], out=tmp_path / "model.safetensors")
    expected = running.fetch(job.id)
    assert list(model) == ["votes"]
    assert np.array_equal(np.asarray(model["votes"]), expected["model/votes"])
    assert (tmp_path / "model.safetensors").read_bytes() == (
        running.folder / "fetched.safetensors"
    ).read_bytes()


def test_a_simulation_of_the_job_gives_the_same_table(
    running: LocalFederation, federation: Federation, init: Path
) -> None:
    fields = running.job(rounds=ROUNDS)
    job = federation.submit(fields, init=init)
    watched = list(federation.watch(job))
    spec = running.job_spec(**{name: fields[name] for name in ("rounds", "not_after")})
    silos = {name: silo_data(name) for name in running.names}
    policy = Policy(federation=spec.federation, initial_state="given")
    simulation = Simulation(spec, silos, state=STATE, policy=policy, objective=OneHot())
    ran = list(simulation.run())
    assert [type(each) for each in ran] == [type(each) for each in watched]
    theirs, ours = (each.drop(columns=OF_THE_RUN) for each in (federation.results(job), simulation.results()))
    pd.testing.assert_frame_equal(theirs, ours, rtol=1e-4, atol=1e-4)
    assert simulation.plot().get_ylabel() == federation.plot(job).get_ylabel()
    assert list(simulation.fetch()) == list(federation.fetch(job))


def test_results_of_a_job_that_still_runs_are_those_so_far(waiting: LocalFederation, init: Path) -> None:
    """A watch would wait for the job's end."""
    federation = Federation(waiting.operator_file())
    job = federation.submit(waiting.job(rounds=1), init=init)
    assert job.notes[-1] == "not connected now, the job waits for them: silo-0, silo-1, silo-2"
    assert federation.results(job).empty
    with pytest.raises(ConfigError, match="figure accuracy: expected one of none yet"):
        federation.plot(job)
    federation.pause(job)
    assert _status(federation, job) == "paused"
    federation.resume(job)
    assert _status(federation, job) == "running"
    assert [(silo["name"], silo["connected"]) for silo in federation.silos()] == [
        (name, False) for name in waiting.names
    ]
    federation.cancel(job)
    assert _status(federation, job) == "cancelled"
    with pytest.raises(RemoteProtocolError, match="^coordinator refused: "):
        federation.cancel(job)


def _status(federation: Federation, job: SubmittedJob) -> str:
    (found,) = [each["status"] for each in federation.jobs() if each["job"] == job.id]
    return str(found)


def test_every_command_on_jobs_has_its_method_and_its_async_twin() -> None:
    """But `report`, which writes pages."""
    named = {"list": "jobs", "export": "to_mlflow"}
    for command in set(ENTRIES) - {"report"}:
        method = named.get(command, command.replace("-", "_"))
        given = [inspect.signature(getattr(each, method)) for each in (Federation, AsyncFederation)]
        assert given[0].parameters == given[1].parameters, command


async def test_the_async_twin_gives_the_same(running: LocalFederation, init: Path) -> None:
    both: list[Any] = [AsyncFederation(running.operator_file()), Federation(running.operator_file())]
    job = await both[0].submit(running.job(rounds=2), init=init)
    assert [each async for each in both[0].watch(job)] == list(await asyncio.to_thread(both[1].watch, job))
    pd.testing.assert_frame_equal(await both[0].results(job), both[1].results(job))
    assert np.array_equal((await both[0].fetch(job))["votes"], both[1].fetch(job)["votes"])


def _watching() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == WATCHING]


async def test_a_cancelled_watch_closes_its_connection(
    waiting: LocalFederation, init: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread would else wait for the job's end, and hold a call at the coordinator."""
    has_event, watch = threading.Event(), Operations.watch

    def telling(self: Operations, digest: bytes) -> Iterator[JobEvent]:
        for event in watch(self, digest):
            has_event.set()
            yield event

    monkeypatch.setattr(Operations, "watch", telling)
    federation = AsyncFederation(waiting.operator_file())
    job = await federation.submit(waiting.job(rounds=1), init=init)
    async with aclosing(federation.watch(job)) as rounds:
        watching = asyncio.ensure_future(anext(rounds))
        assert await asyncio.to_thread(has_event.wait, 20)
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching
    await asyncio.to_thread(wait_until, lambda: not _watching(), "the end of the thread")
    await federation.cancel(job)


def test_a_job_that_silos_refuse_raises_what_the_command_says(
    running: LocalFederation, federation: Federation, init: Path
) -> None:
    job = federation.submit(running.job(rounds=ROUNDS + 1), init=init)
    with pytest.raises(PolicyRefusal, match="max_rounds") as refused:
        list(federation.watch(job))
    last_line = running.cli("job", "watch", job.id).stderr.splitlines()[-1]
    assert last_line == f"chorale: error: {refused.value}"

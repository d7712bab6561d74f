"""What a coordinator that never stops asking leaves behind at a silo: nothing that grows."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from chorale.v1 import federation_pb2 as pb
from chorale.v1 import records_pb2
from silo_agent.rounds import replies
from tests.support.agents import Agent, Hub, OneHot, changed


@pytest_asyncio.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Agent]:
    hub = Hub(tmp_path, rounds=50)
    yield hub.add("silo-0")
    await hub.close()


async def test_tasks_of_strange_jobs_are_refused_and_forgotten(agent: Agent) -> None:
    task = agent.hub.begin(0, "enrollment.0").task
    for place in range(20):
        strange = changed(task)
        strange.key.job_digest = place.to_bytes(32, "big")
        assert await agent.refusal(task=strange) == "job-invalid"
    assert len(agent.handler._tasks) == 0
    await agent.answer("advert", task=task)


async def test_outcomes_of_strange_jobs_are_not_remembered(agent: Agent) -> None:
    for place in range(20):
        record = records_pb2.PhaseRecord(job_digest=place.to_bytes(32, "big"), phase="enrollment.0")
        agent.tell(outcome=pb.PhaseOutcome(record=record))
    assert len(agent.handler._last_outcome) == 0


async def test_a_phase_that_the_job_cannot_come_to_downloads_no_state(agent: Agent) -> None:
    task = agent.hub.begin(0, "enrollment.0").task
    for phase in ("evaluate.0", "enrollment.5"):
        strange = changed(task, state_digest=bytes(32))
        strange.key.phase = phase
        assert await agent.refusal(task=strange) == "terms"  # and not a state that no silo has


async def test_one_phase_of_a_job_is_prepared_at_a_time(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every state that is downloaded may have gigabytes, and there is one a job."""
    downloads: asyncio.Queue[bytes] = asyncio.Queue()

    async def never_ends(*, digest: bytes, **_: object) -> None:
        downloads.put_nowait(digest)
        await asyncio.Event().wait()

    monkeypatch.setattr(agent.transfers, "download", never_ends)
    hub = agent.hub
    for round in range(1, 20):
        exchange = hub.begin(round, "train")
        agent.tell(task=exchange.task)
        assert await asyncio.wait_for(downloads.get(), 20) == exchange.task.state_digest
    assert [key.round for key in agent.handler.preparing] == [19]
    planted = hub.begin(20, "train", state={"model/votes": np.ones(4, np.float32)})
    assert await agent.refusal(task=planted.task) == "state"  # nobody computed it, so it is not fetched
    assert downloads.empty()


async def test_an_input_under_way_serves_the_next_attempt(agent: Agent) -> None:
    begun, gate = threading.Event(), threading.Event()
    hub = agent.hub
    for name in hub.names[1:]:
        hub.add(name)
    agent.objective = OneHot(gate=lambda work: _until(gate, begun=begun))
    await hub.run(0, "enrollment.0")
    agent.tell(task=hub.begin(1, "train").task)
    assert await asyncio.to_thread(begun.wait, 20)
    agent.tell(task=hub.begin(1, "train", attempt=2).task)
    gate.set()
    assert (await agent.answer("advert")).key.attempt == 2
    assert len(agent.objective.works) == 1


async def test_a_flood_of_refusals_does_not_fill_the_audit_trail(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replies, "MAX_NOTES", 3)
    task = agent.hub.begin(0, "enrollment.0").task
    for _ in range(5):
        assert await agent.refusal(task=changed(task, session_digest=bytes(32))) == "terms"
    assert len((agent.folder / "audit.jsonl").read_bytes().splitlines()) == 3


def _until(gate: threading.Event, *, begun: threading.Event) -> None:
    begun.set()
    assert gate.wait(20)

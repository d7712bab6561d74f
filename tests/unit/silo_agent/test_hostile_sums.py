"""Revealed sums and proofs in an order, at a speed and in numbers that no honest coordinator chooses."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from chorale.transport import wire
from chorale.v1 import federation_pb2 as pb
from crypto.errors import PolicyRefusal
from silo_agent.connection.transfer import Transfer
from silo_agent.metrics import SiloMetrics
from silo_agent.rounds import message_handler
from tests.support.agents import PATIENCE_SECONDS, Agent, Exchange, Hub
from tests.unit.silo_agent.enrolled import MakeHub, enrolled

VICTIM = "silo-1"


@pytest_asyncio.fixture
async def hub(make_hub: MakeHub) -> Hub:
    return await enrolled(make_hub, rounds=20)


def show(agent: Agent, exchange: Exchange) -> None:
    message = wire.to_silo(agent.hub.revealed(exchange), exchange.key)
    agent.tell(revealed_sum=message.revealed_sum)


def cached(agent: Agent) -> set[str]:
    return {path.name for path in (agent.folder / "cache").iterdir()}


async def test_the_check_is_kept_where_the_survivors_come_before_the_upload_began(hub: Hub) -> None:
    """The session drops it then. y(u) left, and the silo could not check the sum of it."""
    exchange = hub.begin(1, "train")
    await hub.until_shared(exchange)
    envelopes = exchange.close_share()
    for name in hub.names:
        hub.agents[name].tell(envelopes=envelopes[name])
        exchange.session.on_masked(name)
    survivors = exchange.close_masked()
    for name in hub.names:
        hub.agents[name].tell(survivors=survivors)
    for name in hub.names:
        signed = await hub.agents[name].answer("consistency")
        exchange.session.on_consistency(name, wire.from_silo(pb.SiloMessage(consistency=signed)))
        _, exchange.vectors[name] = await hub.agents[name].uploaded()
    await hub.unmask(exchange)
    await hub.agree(exchange)


async def test_no_input_leaves_once_a_later_state_is_known(hub: Hub) -> None:
    """A proof that arrives in the middle of a session ends what was computed from the state before."""
    exchange = hub.begin(1, "train")
    await hub.until_shared(exchange)
    hub.prove({**hub.state, "model/votes": hub.state["model/votes"] + 1}, 1, "train")
    later = hub.begin(2, "train")
    agent = hub.agents[VICTIM]
    job = hub.job
    await asyncio.to_thread(agent.handler._chain.accept, later.key, later.task, job, roster=hub.roster)
    for name, envelopes in exchange.close_share().items():
        hub.agents[name].tell(envelopes=envelopes)
        if name != VICTIM:  # the control: the others' leave
            await hub.agents[name].uploaded()
    running = agent.handler._tasks.of(exchange.key)
    assert running is not None
    assert running.upload is not None
    await running.upload
    assert agent.transfers.uploads.empty()
    assert running.session is not None
    assert running.session.is_over


async def test_a_check_is_not_kept_over_a_state_that_is_not_the_newest(hub: Hub) -> None:
    exchange = await hub.until_revealed(1)
    agent = hub.agents[VICTIM]
    check = agent.known.check_of(exchange.key)
    assert check is not None
    agent.budget.keep_check(check)  # the control
    await hub.agree(exchange)
    with pytest.raises(PolicyRefusal, match="is not the newest known any more"):
        agent.budget.keep_check(check)


async def test_a_download_of_a_sum_without_end_does_not_fill_the_cache(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator can draw it out: no state is kept for it, and the tasks that follow are taken up."""
    first = await hub.until_revealed(1)
    agent = hub.agents[VICTIM]
    download, begun = agent.transfers.download, asyncio.Event()

    async def stalled(*, digest: bytes, target: Path, **others: Any) -> None:
        if target.suffix != ".sum":
            return await download(digest=digest, target=target, **others)
        target.with_suffix(".part").write_bytes(b"what came so far")
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(agent.transfers, "download", stalled)
    monkeypatch.setattr(message_handler, "MAX_SUM_SECONDS", 0.0)
    show(agent, first)
    await asyncio.wait_for(begun.wait(), 20)
    await hub.agree(first, without=[VICTIM])
    for round in range(2, 6):
        exchange = await hub.until_revealed(round)
        await hub.agree(exchange, without=[VICTIM])
        # once the sum is behind the newest state, no task waits for it at all
        monkeypatch.setattr(message_handler, "MAX_SUM_SECONDS", None)
    await hub.advertise(hub.begin(6, "train"))
    states = {name for name in cached(agent) if name.endswith(".safetensors")}
    assert states == {f"{hub.put(hub.state).hex()}.safetensors"}
    assert {name for name in cached(agent) if name.endswith(".part")} != set()  # still on its way


async def test_a_task_waits_for_a_sum_for_as_long_as_its_download_moves(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After two minutes the state was fetched besides: both took the line."""
    first = await hub.until_revealed(1)
    agent, looks = hub.agents[VICTIM], 0
    download, begun, ended = agent.transfers.download, asyncio.Event(), asyncio.Event()

    async def slow(*, target: Path, **others: Any) -> None:
        if target.suffix == ".sum":
            begun.set()
            await ended.wait()
        await download(target=target, **others)

    class Moving(type(agent.transfers)):  # type: ignore[misc]
        @property
        def moved_bytes(self) -> int:
            nonlocal looks
            looks += 1
            if looks == 20:
                ended.set()
            return looks

        @moved_bytes.setter
        def moved_bytes(self, value: int) -> None: ...

    monkeypatch.setattr(agent.transfers, "download", slow)
    monkeypatch.setattr(message_handler, "MAX_SUM_SECONDS", 0.01)
    agent.transfers.__class__ = Moving
    show(agent, first)
    await asyncio.wait_for(begun.wait(), PATIENCE_SECONDS)
    await hub.agree(first, without=[VICTIM])
    second = hub.begin(2, "train")
    await agent.answer("next_state", task=second.task)
    await agent.answer("advert")
    assert second.task.state_digest not in agent.transfers.downloaded, "fetched, not computed"


async def test_nothing_is_left_of_sums_that_broke_off(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may have gigabytes, and a coordinator can announce any number of them."""
    exchange = await hub.until_revealed(1)
    agent = hub.agents[VICTIM]
    download = agent.transfers.download

    async def broken(*, target: Path, **_: Any) -> None:
        target.with_suffix(".part").write_bytes(bytes(1000))
        raise PolicyRefusal("the line broke for good")

    before = cached(agent)
    monkeypatch.setattr(agent.transfers, "download", broken)
    for word in range(5):
        exchange.revealed[64][-1] += 1 + word
        show(agent, exchange)
        assert await agent.refusal() == "policy"
        exchange.revealed[64][-1] -= 1 + word
    assert cached(agent) == before
    monkeypatch.setattr(agent.transfers, "download", download)
    await hub.agree(exchange)  # the control


async def test_nothing_is_left_of_a_sum_that_was_on_its_way_when_the_job_ended(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A silo behind a slow line kept what had come of it until the next job."""
    exchange = await hub.until_revealed(1)
    agent, begun = hub.agents[VICTIM], asyncio.Event()

    async def stalled(*, target: Path, **_: Any) -> None:
        target.with_suffix(".part").write_bytes(b"what came so far")
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(agent.transfers, "download", stalled)
    show(agent, exchange)
    await asyncio.wait_for(begun.wait(), PATIENCE_SECONDS)
    summing = agent.handler._summing[exchange.key]
    assert [name for name in cached(agent) if name.endswith(".part")]  # the control
    agent.tell(job_ended=pb.JobEnded(job_digest=exchange.key.job_digest, status="done"))
    await asyncio.wait([summing])
    await asyncio.sleep(0)  # what follows from its end
    assert not [name for name in cached(agent) if name.endswith(".part")]


async def test_false_sums_of_one_phase_are_looked_at_once_and_noted_once(hub: Hub) -> None:
    """Each look is another chance of 2^-66, and each note another line of the audit log."""
    exchange = await hub.until_revealed(1)
    agent = hub.agents[VICTIM]
    true = hub.revealed(exchange)
    for word in range(5):
        exchange.revealed[64][-1] += 1 + word
        show(agent, exchange)
        assert await agent.refusal() == "sum"
    noted = (agent.folder / "audit.jsonl").read_text().count('"sum_refused"')
    assert noted == 1
    assert await agent.refusal(revealed_sum=wire.to_silo(true, exchange.key).revealed_sum) == "sum"
    await agent.restart()
    assert await agent.refusal(revealed_sum=wire.to_silo(true, exchange.key).revealed_sum) == "sum"
    assert agent.is_silent()


async def test_a_download_is_on_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing reads its digest again: after a power loss a silo would compute, and sign, another state."""
    data, target = bytes(range(256)) * 100, tmp_path / "state.safetensors"
    synced: list[tuple[bytes, bool]] = []
    fsync = os.fsync

    def noted(handle: int) -> None:
        fsync(handle)
        synced.append((target.with_suffix(".part").read_bytes(), target.exists()))

    monkeypatch.setattr(os, "fsync", noted)
    carrier = Transfer(Stub(data), metrics=SiloMetrics(), random=lambda: 0.0)  # type: ignore[arg-type]
    digest = hashlib.sha256(data).digest()
    await carrier.download(job_digest=bytes(32), digest=digest, size_bytes=len(data), target=target)
    assert synced == [(data, False)]
    assert target.read_bytes() == data


class Stub:
    """A coordinator that serves these bytes."""

    def __init__(self, data: bytes) -> None:
        self._chunk = pb.Chunk(offset=0, data=data)

    def Download(self, request: pb.DownloadRequest) -> Stub:
        return self

    async def __aiter__(self) -> AsyncIterator[pb.Chunk]:
        yield self._chunk

    def cancel(self) -> None:
        """Nothing is under way."""


async def test_what_a_killed_process_left_of_a_sum_is_not_taken_for_it(hub: Hub) -> None:
    """Its name says what it should hold; after a power loss it may hold anything."""
    exchange = await hub.until_revealed(1)
    agent = hub.agents[VICTIM]
    digest = hub.revealed(exchange).sum_digest
    (agent.folder / "cache" / f"{digest.hex()}.sum").write_bytes(b"torn")
    await agent.restart()
    assert not (agent.folder / "cache" / f"{digest.hex()}.sum").exists()
    await hub.agree(exchange)

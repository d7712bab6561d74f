"""What a silo still gives away when its institution changes its mind in the middle of a session."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from chorale.transport import wire
from chorale.v1 import session_pb2
from tests.support.agents import Exchange, Hub


@pytest_asyncio.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Hub]:
    hub = Hub(tmp_path)
    hub.add_all()
    await hub.run(0, "enrollment.0")
    yield hub
    await hub.close()


async def masked(hub: Hub) -> Exchange:
    exchange = hub.begin(1, "train")
    await hub.advertise(exchange)
    await hub.share(exchange)
    await hub.mask(exchange)
    return exchange


async def test_a_job_rejected_after_the_vector_left_is_not_signed(hub: Hub) -> None:
    exchange = await masked(hub)
    agent = hub.agents["silo-0"]
    agent.ledger.decisions().reject(hub.job.digest, by="ann", reason="not this one")
    survivors = wire.to_silo(exchange.session.close_masked(), exchange.key).survivors
    agent.tell(survivors=survivors)
    assert await agent.refusal() == "job-not-approved"
    hub.agents["silo-1"].tell(survivors=survivors)
    await hub.agents["silo-1"].answer("consistency")


async def test_a_job_rejected_after_the_signature_gets_no_share(hub: Hub) -> None:
    exchange = await masked(hub)
    await hub.consistency(exchange)
    exchange.session.close_consistency()
    agent = hub.agents["silo-0"]
    agent.ledger.decisions().reject(hub.job.digest, by="ann", reason="not this one")
    agent.tell(signatures=wire.to_silo(exchange.session.unmask_request(), exchange.key).signatures)
    assert await agent.refusal() == "job-not-approved"
    await hub.ask_shares(exchange, "silo-1")


@pytest.mark.parametrize("attempt", [0, 1, 2])
async def test_an_attempt_is_signed_once_and_counted_from_one(hub: Hub, attempt: int) -> None:
    """Else repeats of one number would pass the job's max_attempts."""
    first = hub.begin(1, "train")
    await hub.until_signed(first)
    agent = hub.agents["silo-0"]
    agent.tell(session_ended=session_pb2.SessionEnded(key=first.wire_key, reason="too-few-silos"))
    agent.tell(task=hub.begin(1, "train", attempt=attempt).task)
    if attempt == 2:
        await agent.answer("advert")
    else:
        assert await agent.refusal() == ("stage" if attempt else "terms")

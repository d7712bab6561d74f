"""What a silo still gives away when its institution changes its mind in the middle of a session."""

from __future__ import annotations

import pytest
import pytest_asyncio

from chorale.v1 import session_pb2
from tests.support.agents import Hub
from tests.unit.silo_agent.enrolled import MakeHub, enrolled


@pytest_asyncio.fixture
async def hub(make_hub: MakeHub) -> Hub:
    return await enrolled(make_hub)


async def test_a_job_rejected_after_the_vector_left_is_not_signed(hub: Hub) -> None:
    exchange = hub.begin(1, "train")
    await hub.until_masked(exchange)
    agent = hub.agents["silo-0"]
    agent.ledger.decisions().reject(hub.job.digest, by="ann", reason="not this one")
    survivors = exchange.close_masked()
    assert await agent.refusal(survivors=survivors) == "job-not-approved"
    await hub.agents["silo-1"].answer("consistency", survivors=survivors)


async def test_a_job_rejected_after_the_signature_gets_no_share(hub: Hub) -> None:
    exchange = hub.begin(1, "train")
    await hub.until_masked(exchange)
    await hub.consistency(exchange)
    exchange.session.close_consistency()
    agent = hub.agents["silo-0"]
    agent.ledger.decisions().reject(hub.job.digest, by="ann", reason="not this one")
    assert await agent.refusal(signatures=exchange.unmask_request()) == "job-not-approved"
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

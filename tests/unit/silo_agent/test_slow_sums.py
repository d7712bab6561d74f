"""A silo that checks a sum more slowly than enough others computes the next state all the same."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from chorale.transport import wire
from tests.unit.silo_agent.conftest import MakeHub
from tests.unit.silo_agent.enrolled import enrolled


async def test_the_next_task_waits_for_the_sum_that_its_state_follows_from(
    make_hub: MakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it fetches the state, too, and downloads twice what it uploads."""
    hub = await enrolled(make_hub)
    exchange = await hub.until_revealed(1, "train")
    revealed = hub.revealed(exchange)
    slow, others = hub.agents[hub.names[0]], hub.names[1:]
    gate, fetch, fetched = asyncio.Event(), slow.transfers.download, []

    async def download(**asked: Any) -> None:
        if asked["digest"] == revealed.sum_digest:
            await gate.wait()
        if not asked["target"].exists():
            fetched.append(asked["digest"])
            await fetch(**asked)

    monkeypatch.setattr(slow.transfers, "download", download)
    slow.tell(revealed_sum=wire.to_silo(revealed, exchange.key).revealed_sum)
    for name in others:
        await hub.ask_state(exchange, name, revealed)
    hub.state = hub.following(exchange)
    following = hub.begin(2, "train")
    slow.tell(task=following.task)
    for name in others:
        await hub.agents[name].answer("advert", task=following.task)
    assert slow.is_silent()

    gate.set()
    await slow.answer("next_state")
    await slow.answer("advert")
    assert fetched == [revealed.sum_digest]

"""A silo's part of a step is in one revealed sum at most, and each that leaves is paid for.

A step that is summed again after a reveal would show the same batch under two noises, or two batches under
one charge. So a reveal uses its step up, and the next one draws, rounds and noises again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from crypto.fixed_point.encoder import Encoder
from crypto.masking.masks import Masker
from silo_agent.training.objective import Work
from strategies.base import Array
from strategies.phases.step import GRADIENT
from tests.support.agents import Agent, Hub, OneHot
from tests.unit.silo_agent.enrolled import MakeHub, enrolled

PRIVACY = {
    "records": {"clip_norm": 1.0, "noise_multiplier": 10.0, "sample_rate": 0.1, "noise": "sum"},
    "statistics_noise_multiplier": 20.0,
}
Words = list[int]


class Stepping(OneHot):
    def compute(self, work: Work) -> Mapping[str, Array]:
        self.works.append(work)
        assert work.layout is not None
        return {GRADIENT: np.ones(len(work.spec.silos), np.int64)}


@pytest_asyncio.fixture
async def hub(make_hub: MakeHub) -> Hub:
    own = {"privacy": {"shared_noise": "allow"}}

    def each(name: str) -> dict[str, Any]:
        return {"objective": Stepping(), **own}

    return await enrolled(make_hub, privacy=PRIVACY, rounds=5, steps=3, spare_steps=2, each=each)


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[Words]:
    """The words of all gradients that left a silo, before their masks."""
    words, read_by = list[Words](), Masker.stream

    def recorded(masker: Masker, source: Encoder, **options: Any) -> Any:
        words.append(source.encode().vectors[32].tolist())
        return read_by(masker, source, **options)

    monkeypatch.setattr(Masker, "stream", recorded)
    return words


def spent(agent: Agent, round: int) -> int:
    """How many inputs of a training round this silo's ledger charges."""
    with agent.ledger._database.reading() as connection:
        found = "SELECT COUNT(*) FROM releases WHERE round = ? AND phase = 'train' AND status = 'spent'"
        return int(connection.execute(found, (round,)).fetchone()[0])


async def test_a_repeat_after_a_reveal_is_another_step(hub: Hub, left: list[Words]) -> None:
    before, first = hub.state, hub.begin(1, "train")
    await hub.until_signed(first, late=hub.names[:1])
    of_first, left[:] = [*left], []
    second = hub.begin(1, "train", attempt=2)  # the sum of the first one is never revealed
    await hub.until_signed(second)
    assert sorted(left) == sorted(of_first)  # one input: a second would be a second noise
    await hub.unmask(second)
    await hub.agree(second)
    for name in hub.names:
        third = hub.begin(1, "train", attempt=3, state=before)
        assert await hub.agents[name].refusal(task=third.task) == "later-state"
    left.clear()
    await hub.run(2, "train")
    assert not {tuple(words) for words in left} & {tuple(words) for words in of_first}
    for agent in hub.agents.values():
        assert [spent(agent, round) for round in (1, 2)] == [1, 1]
        assert [work.round for work in agent.objective.works] == [1, 2]


async def test_a_step_that_a_crash_loses_is_computed_and_charged_again(hub: Hub, left: list[Words]) -> None:
    """A coordinator that could make a silo draw again for nothing would take batch after batch."""
    exchange = hub.begin(1, "train")
    await hub.until_signed(exchange)
    crashed, *others = hub.agents.values()
    of_first, left[:] = {tuple(words) for words in left}, []
    await crashed.restart()
    again = hub.begin(1, "train", attempt=2)
    await hub.until_signed(again)
    assert len({tuple(words) for words in left} - of_first) == 1  # fresh noise, under a key of its own
    await hub.unmask(again)
    assert spent(crashed, 1) == 2
    assert [spent(agent, 1) for agent in others] == [1, 1, 1]
    assert crashed.budget.balance().spent > others[0].budget.balance().spent


async def test_a_crash_after_the_reveal_gives_no_second_sum(hub: Hub) -> None:
    await hub.until_revealed(1, "train")
    for agent in hub.agents.values():
        await agent.restart()
        assert await agent.refusal(task=hub.begin(1, "train", attempt=2).task) == "already-revealed"
        assert spent(agent, 1) == 1

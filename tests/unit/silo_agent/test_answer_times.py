"""When inputs of private jobs are offered: who times a silo learns multiples of its own seconds.

The clock is the agents' own, and computing an input moves it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crypto.errors import ConfigError
from silo_agent.rounds.inputs import input_cache
from silo_agent.training.objective import Work
from strategies.base import Array
from tests.support.agents import Agent, Hub, OneHot

PRIVACY = {
    "sums": {"clip_norm": 0.5, "noise_multiplier": 8.0},
    "statistics_noise_multiplier": 20.0,
}
TOLD = {"epsilon": 30.0, "partial_jobs": "allow"}
RECORDS = {"few": 128, "many": 4096}
SECONDS = {"few": 0.011, "many": 0.146}  # of CPU time for so many, as silos took it


class Slow(OneHot):
    """Takes as long as it has records."""

    def __init__(self, agent: Callable[[], Agent], *, fails: bool = False) -> None:
        super().__init__()
        self._agent, self._fails = agent, fails

    def compute(self, work: Work) -> Mapping[str, Array]:
        held = len(work.data.train)
        self._agent().seconds += np.interp(held, list(RECORDS.values()), list(SECONDS.values()))
        if self._fails:
            raise ConfigError("no kernel of this machine")
        return super().compute(work)


async def offered(
    folder: Path, *, fails: bool = False, privacy: dict[str, Any] | None, **policy: Any
) -> dict[str, float]:
    """By name, when the silo's answer to the training task left."""
    hub = Hub(folder, **({} if privacy is None else {"privacy": privacy, "update_bound": 1.0}))
    for name in hub.names:
        many = "many" if name == hub.names[0] else "few"
        objective = Slow(lambda name=name: hub.agents[name], fails=fails)
        hub.add(name, objective=objective, samples=RECORDS[many], privacy=TOLD, **policy)
    await hub.run(0, "enrollment.0")
    for agent in hub.agents.values():
        agent.seconds = 0.0
    exchange = hub.begin(1, "train")
    for agent in hub.agents.values():
        await agent.answer("refused" if fails else "advert", task=exchange.task)
    await hub.close()
    return {name: agent.seconds for name, agent in hub.agents.items()}


@pytest.mark.parametrize("fails", [False, True], ids=["offered", "refused"])
async def test_private_answers_leave_at_multiples_whatever_a_silo_holds(tmp_path: Path, fails: bool) -> None:
    """Red before: an answer came 135 ms later where the noise hid 4,096 records and not 128."""
    times = await offered(tmp_path, fails=fails, privacy=PRIVACY)
    assert list(times.values()) == pytest.approx([0.25] * 4)


async def test_answers_that_wait_for_nothing_tell_the_number_of_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the attack works."""
    monkeypatch.setattr(input_cache, "ANSWER_EVERY_SECONDS", 1e-9)
    times = await offered(tmp_path, privacy=PRIVACY)
    assert max(times.values()) - min(times.values()) == pytest.approx(0.135)


async def test_jobs_without_noise_wait_for_nothing(tmp_path: Path) -> None:
    times = await offered(tmp_path, privacy=None)
    assert max(times.values()) == pytest.approx(SECONDS["many"])


async def test_another_attempt_is_answered_at_multiples_of_the_first(tmp_path: Path) -> None:
    """Else attempts at times of a coordinator's choice would measure what is shorter than a multiple."""
    hub = Hub(tmp_path, privacy=PRIVACY, update_bound=1.0)
    for name in hub.names:
        hub.add(name, objective=Slow(lambda name=name: hub.agents[name]), samples=128, privacy=TOLD)
    await hub.run(0, "enrollment.0")
    agent = hub.agents[hub.names[0]]
    agent.seconds = 0.0
    await hub.advertise(hub.begin(1, "train"))
    agent.seconds = 0.6
    await hub.advertise(hub.begin(1, "train", attempt=2))
    assert agent.seconds == pytest.approx(0.75)
    await hub.close()

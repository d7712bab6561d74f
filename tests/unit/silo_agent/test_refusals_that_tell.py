"""Refusals that depend on a silo's data answer a question of the coordinator's choice: one, never two."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import numpy as np
import pytest
import pytest_asyncio

from silo_agent.ledger.reveals import Decision
from silo_agent.objective import Work
from strategies.base import Array
from tests.support.agents import Agent, Hub, OneHot

SECRET = 4.125  # the largest value of a feature at this silo
PLANTED = "model/votes"


class Threshold(OneHot):
    """Diverges where the planted model asks for less than what the data hold."""

    def compute(self, work: Work) -> dict[str, Array]:
        values = dict(super().compute(work))
        if float(work.state[PLANTED][0]) < SECRET:
            values["loss_sum"] = np.array(np.nan)
        return values


@pytest_asyncio.fixture
async def hub(make_hub: Callable[..., Hub]) -> Hub:
    hub = make_hub(rounds=30)
    for name in hub.names:
        hub.add(name, objective=Threshold() if name == "silo-0" else OneHot())
    await hub.run(0, "enrollment.0")
    return hub


def ask(hub: Hub, threshold: float, *, round: int, attempt: int = 1) -> Agent:
    """Ask whether any value is above the threshold."""
    planted = {**hub.state, PLANTED: np.full(4, threshold, np.float32)}
    agent = hub.agents["silo-0"]
    agent.tell(task=hub.begin(round, "train", attempt=attempt, state=planted).task)
    return agent


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_model_that_overflows_on_the_data_is_the_last_that_is_tried(
    hub: Hub, is_restarted: bool
) -> None:
    """Else halving an interval reads a record of one silo, bit by bit."""
    agent = ask(hub, 8.0, round=1)
    await agent.answer("advert")
    agent = ask(hub, 4.0, round=2)
    assert await agent.refusal() == "data"
    if is_restarted:
        await agent.restart()
    computed = len(agent.objective.works)
    for round, threshold in ((2, 4.0), (2, 6.0), (3, 3.0), (3, 6.0)):
        assert await ask(hub, threshold, round=round).refusal() == "data"
    assert len(agent.objective.works) == computed


async def test_questions_asked_at_once_get_one_answer(make_hub: Callable[..., Hub]) -> None:
    gate = threading.Event()
    hub = make_hub(rounds=30)
    for name in hub.names:
        hub.add(name, objective=Threshold(gate=lambda work: _until(gate)))
    await hub.run(0, "enrollment.0")
    agent = ask(hub, 3.0, round=1)
    while not agent.objective.works:
        await asyncio.sleep(0)
    ask(hub, 4.0, round=2)
    ask(hub, 8.0, round=3)
    gate.set()
    await agent.answer("advert")  # to the last, and inputs are computed in turn
    assert agent.is_silent()


async def test_a_total_below_the_silos_count_is_the_last_that_is_tried(make_hub: Callable[..., Hub]) -> None:
    """Else totals that rise by one step of the granularity count the samples of one silo."""
    hub = make_hub()
    hub.add_all()
    await hub.run(0, "enrollment.0")
    true = hub.state
    hub.state = {**true, "method/total": np.array(90, np.int64)}
    agent = hub.agents["silo-0"]
    agent.tell(task=hub.begin(1, "train").task)
    assert await agent.refusal() == "not-enrolled"
    hub.state = {**true, "method/total": np.array(100, np.int64)}
    agent.tell(task=hub.begin(1, "train").task)
    assert await agent.refusal() == "data"


async def test_an_institution_lets_a_suspended_job_go_on(hub: Hub) -> None:
    agent = ask(hub, 4.0, round=1)
    assert await agent.refusal() == "data"
    assert [job.decision for job in agent.ledger.jobs()] == ["suspended"]
    agent.ledger.decide(hub.job.id, Decision.APPROVED)
    await ask(hub, 8.0, round=1).answer("advert")


def _until(gate: threading.Event) -> None:
    assert gate.wait(20)

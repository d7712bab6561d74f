"""Refusals that depend on a silo's data answer a question of who chose the state: one, never two.

The operator chooses the first state; later ones need t silos that sign what they did not compute.
"""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest
import pytest_asyncio

from silo_agent.training.objective import Work
from strategies.base import Array
from tests.support.agents import PATIENCE_SECONDS, Agent, Hub, OneHot
from tests.unit.silo_agent.enrolled import MakeHub, enrolled

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
async def hub(make_hub: MakeHub) -> Hub:
    asked = {"silo-0": Threshold()}
    return await enrolled(make_hub, rounds=30, each=lambda name: {"objective": asked.get(name, OneHot())})


def ask(hub: Hub, threshold: float, *, round: int, attempt: int = 1) -> Agent:
    """Ask whether any value is above the threshold, over a state that t silos sign."""
    planted = {**hub.state, PLANTED: np.full(4, threshold, np.float32)}
    before = (round - 1, "train") if round > 1 else (0, "enrollment.1")
    hub.prove(planted, *before)
    agent = hub.agents["silo-0"]
    agent.tell(task=hub.begin(round, "train", attempt=attempt).task)
    return agent


async def test_a_state_that_nobody_signed_is_asked_about_in_vain(hub: Hub) -> None:
    agent, enrolled = hub.agents["silo-0"], len(hub.agents["silo-0"].objective.works)
    for threshold in (8.0, 4.0):
        planted = {**hub.state, PLANTED: np.full(4, threshold, np.float32)}
        assert await agent.refusal(task=hub.begin(1, "train", state=planted).task) == "state"
    assert len(agent.objective.works) == enrolled
    assert [job.decision for job in agent.ledger.jobs()] == ["approved"]


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


async def test_questions_asked_at_once_get_one_answer(make_hub: MakeHub) -> None:
    gate = threading.Event()
    waiting = {"objective": Threshold(gate=lambda work: _until(gate))}
    hub = await enrolled(make_hub, rounds=30, each=lambda name: waiting)
    agent = ask(hub, 3.0, round=1)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not agent.objective.works:
            await asyncio.sleep(0)
    ask(hub, 4.0, round=2)
    ask(hub, 8.0, round=3)
    gate.set()
    await agent.answer("advert")  # to the last, and inputs are computed in turn
    assert agent.is_silent()


async def test_a_total_below_the_silos_count_is_the_last_that_is_tried(make_hub: MakeHub) -> None:
    """Else totals that rise by one step of the granularity count the samples of one silo."""
    hub = await enrolled(make_hub)
    agent = hub.agents["silo-0"]
    for number, total, code in ((1, 90, "not-enrolled"), (2, 100, "data")):
        hub.prove({**hub.state, "method/total": np.array(total, np.int64)}, 0, f"enrollment.{number}")
        assert await agent.refusal(task=hub.begin(1, "train").task) == code


@pytest.mark.parametrize(
    "total", [np.array([400, 400]), np.array([400]), np.array(np.nan), np.array(np.inf, np.float32)]
)
async def test_a_total_that_is_no_whole_number_is_the_coordinators_fault(
    make_hub: MakeHub, total: Array
) -> None:
    """TypeError, ValueError and OverflowError left: the silo said `internal`. It tells nothing of data."""
    hub = await enrolled(make_hub)
    agent = hub.agents["silo-0"]
    hub.prove({**hub.state, "method/total": total}, 0, "enrollment.1")
    assert await agent.refusal(task=hub.begin(1, "train").task) == "data"
    assert [job.decision for job in agent.ledger.jobs()] == ["approved"]


async def test_an_institution_lets_a_suspended_job_go_on(hub: Hub) -> None:
    agent = ask(hub, 4.0, round=1)
    assert await agent.refusal() == "data"
    assert [job.decision for job in agent.ledger.jobs()] == ["suspended"]
    agent.ledger.decisions().approve(hub.job.digest, by="ann")
    await ask(hub, 8.0, round=2).answer("advert")


def _until(gate: threading.Event) -> None:
    assert gate.wait(20)

"""What jobs need is loaded once a line came about, so that no first round waits for torch."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from chorale.observability import logs
from crypto.errors import SiloStage
from silo_agent.rounds.inputs.input_cache import InputCache
from silo_agent.training.objective import Objective
from tests.support.agents import Agent
from tests.unit.silo_agent.enrolled import MakeHub

PATIENCE_SECONDS = 60.0


class Process:
    """In place of the process of private jobs: it is only ever started."""

    def __init__(self) -> None:
        self.is_warm = False

    def warm_up(self) -> None:
        self.is_warm = True

    def end(self) -> None:
        self.is_warm = False


def inputs_of(agent: Agent, load: Callable[[], Objective]) -> InputCache:
    """Its inputs, whose objective is loaded so."""
    inputs = agent.handler._inputs
    inputs._objective.load = load
    return inputs


def wait_loaded(inputs: InputCache) -> None:
    assert inputs._ahead is not None
    inputs._ahead.result(PATIENCE_SECONDS)


async def test_the_first_poll_begins_to_load_and_the_first_task_finds_it_done(make_hub: MakeHub) -> None:
    """Red before: every job began with seconds of `loading torch` at each silo."""
    hub = make_hub()
    agent, loads = hub.add("silo-0"), list[str]()

    def load() -> Objective:
        loads.append(threading.current_thread().name)
        return agent.objective

    inputs = inputs_of(agent, load)
    for _ in range(2):  # of two heartbeats
        agent.handler.poll()
    wait_loaded(inputs)
    await agent.answer("advert", task=hub.begin(0, "enrollment.0").task)
    assert (loads, agent.stages) == (["training_0"], [])


async def test_a_task_that_comes_meanwhile_says_what_it_waits_for_and_loads_nothing_twice(
    make_hub: MakeHub,
) -> None:
    hub = make_hub()
    agent, loads = hub.add("silo-0"), list[Objective]()
    begun, opened = threading.Event(), threading.Event()
    stages: list[SiloStage | None] = []

    def load() -> Objective:
        loads.append(agent.objective)
        begun.set()
        assert opened.wait(PATIENCE_SECONDS)
        return agent.objective

    def tell(stage: SiloStage | None) -> None:
        stages.append(stage)
        opened.set()

    inputs = inputs_of(agent, load)
    inputs._tell_stage = tell
    agent.handler.poll()
    assert begun.wait(PATIENCE_SECONDS)
    await agent.answer("advert", task=hub.begin(0, "enrollment.0").task)
    assert (loads, stages) == ([agent.objective], [SiloStage.LOADING_TORCH, None])


async def test_what_cannot_be_loaded_is_logged_once_and_said_again_by_the_first_task(
    make_hub: MakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    hub = make_hub()
    agent = hub.add("silo-0")
    logs.configure()

    def load() -> Objective:
        raise ImportError("no module named torch")

    inputs = inputs_of(agent, load)
    for _ in range(2):
        agent.handler.poll()
        wait_loaded(inputs)
    logged = capsys.readouterr().err
    assert logged.count("training not loaded") == logged.count("no module named torch") == 1
    assert await agent.refusal(task=hub.begin(0, "enrollment.0").task) == "internal"
    assert "input failed" in capsys.readouterr().err


@pytest.mark.parametrize("is_required", [False, True])
async def test_the_process_of_private_jobs_is_started_where_the_policy_takes_no_others(
    make_hub: MakeHub, is_required: bool
) -> None:
    agent = make_hub().add("silo-0", privacy={"required": is_required})
    process = Process()
    inputs = inputs_of(agent, lambda: agent.objective)
    inputs._process = process  # type: ignore[assignment]
    agent.handler.poll()
    wait_loaded(inputs)
    assert (process.is_warm, inputs._objective.is_warm) == (is_required, not is_required)

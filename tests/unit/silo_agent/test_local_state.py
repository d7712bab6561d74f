"""Local state moves with applied rounds whose sum holds this silo, as it computed itself or t silos signed,
and with nothing else."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from chorale.runtime.files import write_atomic
from chorale.transport.wire import PhaseKey
from chorale.v1 import federation_pb2 as pb
from crypto.errors import ConfigError
from silo_agent.local_storage.local_state import LocalStates
from silo_agent.training.objective import LocalState, Work
from strategies.base import Array
from tests.support.agents import PATIENCE_SECONDS, Agent, Hub, OneHot
from tests.unit.silo_agent.enrolled import MakeHub, enrolled

JOB = b"j" * 32
MALFORMED = "chorale_silo_refusals_total"
KEPT = "method/kept"


class Counting(OneHot):
    """Keeps how many of its trainings were applied; `seen` is what each training started from.

    weighs: 0 makes a sum that is not applied, for `min-weight`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []
        self.weighs = 1

    def compute(self, work: Work) -> Mapping[str, Array]:
        values = super().compute(work)
        if work.phase_kind == "train":
            self.seen.append(int(work.local.arrays.get(KEPT, np.array(0))))
            work.local.propose({KEPT: np.array(self.seen[-1] + 1)})
            return {**values, "weight": values["weight"] * self.weighs}
        return values


@pytest_asyncio.fixture
async def hub(make_hub: MakeHub) -> Hub:
    return await enrolled(make_hub, enrollment_every=1, each=lambda name: {"objective": Counting()})


def kept(agent: Agent) -> int:
    """What the next training would start from."""
    return int(agent.local.begin(agent.hub.job.digest).arrays.get(KEPT, np.array(0)))


def seen(hub: Hub) -> list[list[int]]:
    return [agent.objective.seen for agent in hub.agents.values() if isinstance(agent.objective, Counting)]


def pending(agent: Agent) -> list[str]:
    """Files of a state that is not taken over yet."""
    return [path.name for path in (agent.folder / "local").glob("*.*.*.safetensors")]


def _agents(hub: Hub) -> list[Any]:
    return list(hub.agents.values())


def all_kept(hub: Hub) -> list[int]:
    return [kept(agent) for agent in hub.agents.values()]


async def test_each_applied_round_starts_from_what_the_one_before_left(hub: Hub) -> None:
    for round in (1, 2, 3):
        await hub.run(round, "train")
    assert seen(hub) == [[0, 1, 2]] * 4
    assert all_kept(hub) == [3] * 4


async def test_phase_that_keeps_nothing_leaves_the_state_and_what_is_pending(hub: Hub) -> None:
    await hub.run(1, "train")
    await hub.run(1, "enrollment.1")
    assert all_kept(hub) == [1] * 4
    exchange = await hub.until_revealed(2)
    await hub.run(2, "enrollment.1")
    assert all_kept(hub) == [1] * 4
    assert all(pending(agent) == [f"{hub.job.digest.hex()}.2.train.1.safetensors"] for agent in _agents(hub))
    agent = hub.agents[hub.names[0]]
    assert await agent.refusal(revealed_sum=hub.shown(exchange)) == "state"  # a later one is known
    assert all_kept(hub) == [1] * 4


async def test_round_that_was_not_applied_leaves_the_state(hub: Hub) -> None:
    for agent in _agents(hub):
        agent.objective.weighs = 0
    before = hub.state
    exchange = await hub.until_revealed(1)
    await hub.agree(exchange)
    hub.tell_outcome(exchange, cohort=hub.names)  # whatever the coordinator says
    assert hub.put(hub.state) == hub.put(before)
    assert all_kept(hub) == [0] * 4
    assert [pending(agent) for agent in _agents(hub)] == [[]] * 4
    for agent in _agents(hub):
        agent.objective.weighs = 1
    await hub.run(2, "train")
    assert all_kept(hub) == [1] * 4


async def test_coordinator_that_says_applied_and_shows_no_sum_moves_nothing(hub: Hub) -> None:
    exchange = hub.begin(1, "train")
    await hub.until_signed(exchange)
    hub.tell_outcome(exchange, cohort=hub.names)
    await hub.unmask(exchange)
    hub.tell_outcome(exchange, cohort=hub.names)
    assert all_kept(hub) == [0] * 4


@pytest.mark.parametrize("fate", ["lost", "late"])
async def test_silo_outside_the_sum_keeps_its_state_whatever_the_coordinator_says(
    hub: Hub, fate: str
) -> None:
    """A late one computes the next state itself, a lost one gets the others' proof."""
    exchange = await hub.until_revealed(1, **{fate: hub.names[:1]})  # type: ignore[arg-type]
    await hub.agree(exchange)
    hub.tell_outcome(exchange, cohort=hub.names)
    assert all_kept(hub) == [0, 1, 1, 1]
    await hub.run(2, "train")
    assert seen(hub) == [[0, 0], [0, 1], [0, 1], [0, 1]]


async def test_silo_that_is_in_the_sum_moves_with_what_the_others_prove(hub: Hub) -> None:
    """It never saw the sum."""
    exchange = await hub.until_revealed(1)
    await hub.agree(exchange, without=hub.names[:1])
    assert all_kept(hub) == [0, 1, 1, 1]
    await hub.run(2, "train")
    assert seen(hub) == [[0, 1]] * 4


async def test_sum_of_an_earlier_round_comes_too_late_for_a_later_input(hub: Hub) -> None:
    first = await hub.until_revealed(1)
    await hub.until_revealed(2)
    await hub.agree(first)
    assert all_kept(hub) == [0] * 4
    await hub.run(3, "train")
    assert all_kept(hub) == [1] * 4


async def test_restart_between_reveal_and_statement_loses_nothing(hub: Hub) -> None:
    exchange = await hub.until_revealed(1)
    agent = hub.agents[hub.names[0]]
    await agent.restart()
    await hub.agree(exchange)
    assert all_kept(hub) == [1] * 4
    await agent.restart()
    await hub.ask_state(exchange, agent.name, hub.revealed(exchange))  # asked again
    assert all_kept(hub) == [1] * 4


async def test_training_after_a_restart_starts_from_the_same_state(hub: Hub) -> None:
    await hub.run(1, "train")
    await hub.advertise(hub.begin(2, "train"))
    agent = hub.agents[hub.names[0]]
    await agent.restart()
    await hub.run(2, "train", attempt=2)
    assert seen(hub) == [[0, 1, 1], [0, 1], [0, 1], [0, 1]]  # the others reuse their input
    assert all_kept(hub) == [2] * 4


async def test_job_that_ended_leaves_no_arrays_and_is_not_served_again(hub: Hub) -> None:
    await hub.run(1, "train")
    await hub.until_revealed(2)
    agent = hub.agents[hub.names[0]]
    agent.tell(job_ended=pb.JobEnded(job_digest=hub.job.digest, status="done"))
    assert list((agent.folder / "local").glob("*safetensors")) == []
    await agent.restart()
    assert await agent.refusal(task=hub.begin(3, "train").task) == "policy"


@pytest.mark.parametrize("is_ended", [True, False])
async def test_job_that_ends_while_its_state_is_written_leaves_no_arrays(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, is_ended: bool
) -> None:
    agent, loop, written = hub.agents[hub.names[0]], asyncio.get_running_loop(), asyncio.Event()

    def end(was_called: threading.Event) -> None:
        if is_ended:
            agent.tell(job_ended=pb.JobEnded(job_digest=hub.job.digest, status="done"))
        was_called.set()

    def write_while_it_ends(path: Path, *parts: Any) -> None:
        was_called = threading.Event()
        loop.call_soon_threadsafe(end, was_called)
        assert was_called.wait(20)
        write_atomic(path, *parts)
        loop.call_soon_threadsafe(written.set)

    monkeypatch.setattr("silo_agent.local_storage.local_state.write_atomic", write_while_it_ends)
    agent.tell(task=hub.begin(1, "train").task)
    await written.wait()
    if not is_ended:
        await agent.answer("advert")
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(list((agent.folder / "local").iterdir())) != (0 if is_ended else 1):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("size", [0, 31, 33, 5_000])
async def test_digest_that_is_none_names_no_file(hub: Hub, size: int) -> None:
    await hub.run(1, "train")
    agent = hub.agents[hub.names[0]]
    agent.tell(job_ended=pb.JobEnded(job_digest=hub.job.digest[:1] * size, status="done"))
    assert agent.metrics.registry.get_sample_value(MALFORMED, {"reason": "malformed"}) == 1
    assert kept(agent) == 1


def test_job_that_kept_nothing_leaves_no_trace_when_it_ends(tmp_path: Path) -> None:
    states = LocalStates(tmp_path / "local")
    states.end(JOB)
    assert states.begin(JOB).arrays == {}
    assert not (tmp_path / "local").exists()


@pytest.mark.parametrize("damage", [b"", b"\x10\0\0\0\0\0\0\0{}", b"\xff" * 40])
def test_file_that_is_no_state_is_refused_and_not_taken_for_a_fresh_start(
    tmp_path: Path, damage: bytes
) -> None:
    states = LocalStates(tmp_path)
    keep(states, 1, 1)
    states.settle(train(1), is_applied=True)
    (tmp_path / f"{JOB.hex()}.safetensors").write_bytes(damage)
    with pytest.raises(ConfigError, match="^local state: "):
        states.begin(JOB)


def test_state_is_for_this_user_alone(tmp_path: Path) -> None:
    states = LocalStates(tmp_path / "local")
    keep(states, 1, 1)
    assert (tmp_path / "local").stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "local").iterdir()] == [0o600]


def test_what_was_taken_over_cannot_be_changed_by_a_phase(tmp_path: Path) -> None:
    local = LocalState({KEPT: np.array(1)})
    with pytest.raises(TypeError):
        local.arrays[KEPT] = np.array(2)  # type: ignore[index]


@pytest.mark.parametrize(("settled", "expected"), [(1, 1), (2, 2), (3, 2)])
def test_a_state_moves_with_the_input_that_was_summed_and_no_later_one(
    settled: int, expected: int, tmp_path: Path
) -> None:
    """An input computed again after a crash is another one, which nobody may have summed or paid for."""
    states, key = (
        LocalStates(tmp_path),
        PhaseKey(job_digest=JOB, round=1, phase="train", attempt=1),
    )
    for attempt in (1, 2):
        local = states.begin(key.job_digest)
        local.propose({KEPT: np.array(attempt)})
        states.hold(replace(key, attempt=attempt), local)
    assert states.settle(replace(key, attempt=settled), is_applied=True)
    assert int(states.begin(key.job_digest).arrays[KEPT]) == expected
    assert len(list(tmp_path.glob("*.safetensors"))) == 1


def test_parts_of_one_method_keep_their_arrays_side_by_side() -> None:
    local = LocalState({"method/gone": np.array(0)})
    local.propose({"method/a": np.array(1)})
    local.propose({"method/b": np.array(2)})
    assert sorted(local.proposed or {}) == ["method/a", "method/b"]


def train(round: int, *, attempt: int = 1) -> PhaseKey:
    return PhaseKey(job_digest=JOB, round=round, phase="train", attempt=attempt)


def keep(states: LocalStates, round: int, value: int) -> None:
    local = states.begin(JOB)
    local.propose({KEPT: np.array(value)})
    states.hold(train(round), local)


class Interleavings(RuleBasedStateMachine):
    """Inputs, outcomes and restarts in any order, against a model of a few lines."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="local-state-"))
        self.pending: tuple[int, int] | None = None
        self.current = 0
        self.made = 0
        self.restart()

    @rule()
    def restart(self) -> None:
        self.states = LocalStates(self.folder)

    @rule(round=st.integers(1, 4))
    def compute(self, round: int) -> None:
        self.made += 1
        keep(self.states, round, self.made)
        self.pending = round, self.made

    @rule(round=st.integers(1, 4), is_applied=st.booleans())
    def settle(self, round: int, is_applied: bool) -> None:
        moved = self.states.settle(train(round), is_applied=is_applied)
        assert moved == (self.pending is not None and self.pending[0] == round and is_applied)
        if self.pending is not None and self.pending[0] == round:
            self.current = self.pending[1] if moved else self.current
            self.pending = None

    @invariant()
    def next_training_starts_from_the_model(self) -> None:
        arrays = self.states.begin(JOB).arrays
        assert int(arrays.get(KEPT, np.array(0))) == self.current

    def teardown(self) -> None:
        for path in self.folder.iterdir():
            path.unlink()
        self.folder.rmdir()


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(max_examples=30, stateful_step_count=15, deadline=None)

"""A job's first state: drawn by every silo itself, and a given one refused unless its policy takes it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chorale.job import Job
from chorale.observability import logs
from chorale.spec.state import state_to_bytes
from crypto.errors import PolicyRefusal, Refusal
from silo_agent.rounds.first_state import FirstStates
from silo_agent.training.models.starting import initial_state
from strategies.base import Arrays
from tests.support.agents import Agent, Hub
from tests.unit.silo_agent.conftest import MakeHub

FIELDS: dict[str, Any] = {
    "model": {"name": "mlp", "hidden": [8]},
    "classes": 2,
    "input_shape": (4,),
}
OPENING = "enrollment.0"


def drawn_job(hub: Hub, **fields: Any) -> Job:
    """A job as `chorale job submit` makes it without --init; its state is the hub's."""
    spec = hub.sign(**{**FIELDS, **fields}).spec
    hub.state = initial_state(spec, base=spec.base())
    hub.job = hub.sign(**{**FIELDS, **fields, "initial_state": hub.put(hub.state).hex()})
    return hub.job


def crafted(state: Arrays) -> Arrays:
    """Every unit of the first layer measures one direction, with rising thresholds: the difference of two
    neighbours in a sum is one record (docs/threat-model.md)."""
    rows, width = state["model/body.1.weight"].shape
    direction = np.ones((1, width), np.float32)
    thresholds = np.linspace(-1, 1, rows, dtype=np.float32)
    weight = np.repeat(direction, rows, axis=0)
    return {**state, "model/body.1.weight": weight, "model/body.1.bias": thresholds}


def given_job(hub: Hub) -> Job:
    """The same job, but its operator chose the weights."""
    drawn_job(hub)
    hub.state = crafted(hub.state)
    hub.job = hub.sign(**FIELDS, initial_state=hub.put(hub.state).hex())
    return hub.job


def downloads(agent: Agent) -> list[bytes]:
    first = bytes.fromhex(agent.hub.job.spec.initial_state or "")
    return [digest for digest in agent.transfers.downloaded if digest == first]


async def test_a_drawn_first_state_is_taken_and_nobody_downloads_it(make_hub: MakeHub) -> None:
    hub = make_hub()
    drawn_job(hub)
    hub.add_all(initial_state="computed")
    assert (await hub.run(0, OPENING))["silos"] == 4
    assert all(downloads(agent) == [] for agent in hub.agents.values())


async def test_a_crafted_first_state_is_refused_by_every_silo(make_hub: MakeHub) -> None:
    """Else one sum over it holds single records."""
    hub = make_hub()
    given_job(hub)
    hub.add_all(initial_state="computed")
    exchange = hub.begin(0, OPENING)
    for agent in hub.agents.values():
        assert await agent.refusal(task=exchange.task) == Refusal.POLICY.value
        assert agent.is_silent()
        assert agent.objective.works == []


@pytest.mark.parametrize("takes", ["given", "listed"])
async def test_a_given_first_state_is_downloaded_where_policy_takes_it(make_hub: MakeHub, takes: str) -> None:
    hub = make_hub()
    digest = given_job(hub).spec.initial_state
    hub.add_all(initial_state="given" if takes == "given" else ["ab" * 32, digest])
    assert (await hub.run(0, OPENING))["silos"] == 4
    assert all(len(downloads(agent)) == 1 for agent in hub.agents.values())


async def test_a_list_takes_no_other_given_state(make_hub: MakeHub) -> None:
    hub = make_hub()
    given_job(hub)
    agent = hub.add("silo-0", initial_state=["ab" * 32])
    assert await agent.refusal(task=hub.begin(0, OPENING).task) == Refusal.POLICY.value


async def test_a_silo_that_comes_late_refuses_a_given_first_state_too(make_hub: MakeHub) -> None:
    hub = make_hub()
    given_job(hub)
    late = hub.add("silo-0", initial_state="computed")
    assert await late.refusal(task=hub.begin(3, "evaluate.0").task) == Refusal.POLICY.value


@pytest.mark.parametrize(
    "array",
    [("method/presence", [30, 30]), ("method/total", 1), ("method/soft_labels", [[1.0, 0.0], [0.0, 1.0]])],
    ids=lambda array: array[0],
)
async def test_a_given_first_state_holds_a_model_alone(make_hub: MakeHub, array: tuple[str, Any]) -> None:
    """Silos decide by the presence in the state which rows leave: in a first one it was somebody's choice,
    as it also is in the model that a larger job left."""
    hub = make_hub()
    given_job(hub)
    name, values = array
    hub.state = {**hub.state, name: np.asarray(values)}
    hub.job = hub.sign(**FIELDS, initial_state=hub.put(hub.state).hex())
    agent = hub.add("silo-0", initial_state="given")
    assert await agent.refusal(task=hub.begin(0, OPENING).task) == Refusal.TERMS.value
    assert agent.objective.works == []


@pytest.mark.parametrize(("round", "phase"), [(1, "train"), (3, "evaluate.0")])
async def test_a_first_state_serves_the_opening_enrollment_alone(
    make_hub: MakeHub, round: int, phase: str
) -> None:
    """A coordinator that left it out went on with what the first state said."""
    hub = make_hub()
    drawn_job(hub)
    agent = hub.add("silo-0", initial_state="computed")
    assert await agent.refusal(task=hub.begin(round, phase).task) == Refusal.TERMS.value
    agent.tell(task=hub.begin(0, OPENING).task)  # the control
    await agent.answer("advert")


async def test_a_drawn_state_of_another_job_is_given(make_hub: MakeHub) -> None:
    """An operator cannot try seeds or nonces in one job and use the weights in another."""
    hub = make_hub()
    drawn_job(hub, nonce="1" * 32)
    hub.job = hub.sign(**FIELDS, initial_state=hub.put(hub.state).hex())
    agent = hub.add("silo-0", initial_state="computed")
    assert await agent.refusal(task=hub.begin(0, OPENING).task) == Refusal.POLICY.value


async def test_the_coordinator_cannot_put_another_state_in_place_of_the_drawn_one(make_hub: MakeHub) -> None:
    hub = make_hub()
    drawn_job(hub)
    agent = hub.add("silo-0", initial_state="computed")
    other = hub.begin(0, OPENING, state=crafted(hub.state))
    assert await agent.refusal(task=other.task) == Refusal.STATE.value


async def test_a_first_state_is_drawn_once_for_all_attempts_and_deleted_with_its_job(
    tmp_path: Path, make_hub: MakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure()
    hub, left = make_hub(), tmp_path / "first" / "left.safetensors"
    job = drawn_job(hub)
    left.parent.mkdir()
    left.write_bytes(b"of an earlier run")
    states = FirstStates(left.parent, data_sets=hub.add("silo-0", initial_state="computed").data_sets)
    assert not left.exists()
    paths = {await states.file(job) for _ in range(3)}
    (path,) = paths
    assert path is not None
    assert path.read_bytes() == state_to_bytes(hub.state)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == job.spec.initial_state
    assert capsys.readouterr().err.count("first state drawn") == 1
    states.forget(job.digest)
    assert list(left.parent.iterdir()) == []
    states.close()


async def test_what_policy_refused_stays_refused_and_a_failed_draw_is_tried_again(
    tmp_path: Path, make_hub: MakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = make_hub()
    good, states = (
        drawn_job(hub),
        FirstStates(tmp_path / "first", data_sets=hub.add("silo-0", initial_state="computed").data_sets),
    )
    bad = given_job(hub)
    for _ in range(2):
        with pytest.raises(PolicyRefusal, match="computed here .*: it is not the one that follows from the"):
            await states.file(bad)
    with monkeypatch.context() as patched:
        patched.setattr("silo_agent.rounds.first_state.initial_state", _disk_full)
        with pytest.raises(OSError, match="no space"):
            await states.file(good)
    assert await states.file(good) is not None
    states.close()


async def test_a_model_larger_than_the_policys_states_is_refused_before_it_is_drawn(
    tmp_path: Path, make_hub: MakeHub
) -> None:
    """65,536 x 65,536 weights: the operator chooses the widths."""
    hub = make_hub()
    job = hub.sign(**{**FIELDS, "model": {"name": "mlp", "hidden": [65_536, 65_536]}})
    states = FirstStates(tmp_path / "first", data_sets=hub.add("silo-0", initial_state="computed").data_sets)
    with pytest.raises(PolicyRefusal, match="model mlp: expected at most 4294967296 bytes, needs 1718"):
        await states.file(job)
    states.close()


def _disk_full(*_: object, **__: object) -> Arrays:
    raise OSError("no space left on device")

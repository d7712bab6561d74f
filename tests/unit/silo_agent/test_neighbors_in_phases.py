"""One private job under every deviation of a coordinator, at two silos that differ by one record.

Each answer is a message of a kind and, where the silo refuses, a code and a rule: both silos say the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chorale.transport import wire
from crypto.errors import ConfigError, Refusal
from silo_agent.training.data.settings import SettingsFault
from silo_agent.training.objective import Work
from strategies.base import Array
from tests.support.agents import PATIENCE_SECONDS, Agent, Hub, OneHot, changed, write_policy
from tests.unit.silo_agent.privacy_book import SUMS

NEIGHBORS = (120, 121)
ROOM = {"epsilon": 30.0, "partial_jobs": "allow"}
Script = Callable[[Hub, Agent], Awaitable[None]]


class Failing(OneHot):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def compute(self, work: Work) -> Mapping[str, Array]:
        raise self._error


async def started(folder: Path, samples: int, *, job: Mapping[str, Any] | None = None, **me: Any) -> Hub:
    folder.mkdir()
    hub = Hub(folder, privacy=SUMS, update_bound=1.0, **(job or {}))
    for name in hub.names:
        own = {"samples": samples, **me} if name == hub.names[0] else {}
        hub.add(name, **{"privacy": ROOM, **own})
    return hub


async def other_terms(hub: Hub, agent: Agent) -> None:
    agent.tell(task=changed(hub.begin(0, "enrollment.0").task, session_digest=bytes(32)))


async def planted_state(hub: Hub, agent: Agent) -> None:
    agent.tell(task=hub.begin(0, "enrollment.0", state={"model/votes": np.ones(4, np.float32)}).task)


async def enrollment(hub: Hub, agent: Agent) -> None:
    agent.tell(task=hub.begin(0, "enrollment.0").task)


async def unknown_job(hub: Hub, agent: Agent) -> None:
    task = hub.begin(0, "enrollment.0").task
    key = wire.key_from_wire(task.key)
    other = wire.key_to_wire(type(key)(job_digest=bytes(32), round=0, phase=key.phase, attempt=1))
    agent.tell(task=changed(task, key=other))


async def training(hub: Hub, agent: Agent) -> None:
    await hub.run(0, "enrollment.0")
    agent.tell(task=hub.begin(1, "train").task)


async def later_state(hub: Hub, agent: Agent) -> None:
    await hub.run(0, "enrollment.0")
    before = hub.state
    await hub.run(1, "train")
    agent.tell(task=hub.begin(1, "train", attempt=2, state=before).task)


async def revealed_before(hub: Hub, agent: Agent) -> None:
    await hub.run(0, "enrollment.0")
    await hub.until_revealed(1, "train")
    agent.tell(task=hub.begin(1, "train", attempt=2).task)


async def left_out_of_enrollment(hub: Hub, agent: Agent) -> None:
    exchange = await hub.until_revealed(0, "enrollment.0", lost=[agent.name])
    await hub.agree(exchange, without=[agent.name])
    hub.tell_outcome(exchange, cohort=exchange.session.survivors)
    agent.tell(task=hub.begin(1, "train").task)


async def earlier_round(hub: Hub, agent: Agent) -> None:
    await hub.run(0, "enrollment.0")
    await agent.answer("advert", task=hub.begin(2, "train").task)
    agent.tell(task=hub.begin(1, "train").task)


async def looser_file(hub: Hub, agent: Agent) -> None:
    open_one = {"federation": "test", "approval": "automatic", "initial_state": "given", "max_repeats": 9}
    write_policy(agent.folder / "policy.yaml", {**open_one, "privacy": ROOM})
    agent.tell(task=hub.begin(0, "enrollment.0").task)


async def one_envelope(hub: Hub, agent: Agent) -> None:
    exchange = hub.begin(0, "enrollment.0")
    await hub.until_shared(exchange)
    envelopes = exchange.close_share()[agent.name]
    del envelopes.envelopes[1:]
    agent.tell(envelopes=envelopes)


# script, what the silo's own is, the answer
DIALOGUES: dict[str, tuple[Script, dict[str, Any], tuple[str, ...]]] = {
    "an input": (training, {}, ("advert",)),
    "policy": (enrollment, {"min_silos": 9}, ("refused", "policy", "min_silos")),
    "budget": (enrollment, {"privacy": {"epsilon": 0.01}}, ("refused", "budget", "")),
    "job-not-approved": (enrollment, {"approval": "manual"}, ("refused", "job-not-approved", "")),
    "terms": (other_terms, {}, ("refused", "terms", "")),
    "state": (planted_state, {}, ("refused", "state", "")),
    "job-invalid": (unknown_job, {}, ("refused", "job-invalid", "")),
    "later-state": (later_state, {}, ("refused", "later-state", "")),
    "already-revealed": (revealed_before, {}, ("refused", "already-revealed", "")),
    "not-enrolled": (left_out_of_enrollment, {}, ("refused", "not-enrolled", "")),
    "stage": (earlier_round, {}, ("refused", "stage", "")),
    "settings": (looser_file, {}, ("refused", "settings", "")),
    "data": (training, {"objective": Failing(ConfigError("no such file"))}, ("refused", "data", "")),
    "configuration": (
        training,
        {"objective": Failing(SettingsFault("labels"))},
        ("refused", "configuration", ""),
    ),
    "internal": (training, {"objective": Failing(MemoryError())}, ("refused", "internal", "")),
    "envelope": (one_envelope, {}, ("refused", "envelope", "")),
}


@pytest.mark.parametrize("name", DIALOGUES)
async def test_neighbors_answer_alike(tmp_path: Path, name: str) -> None:
    script, me, expected = DIALOGUES[name]
    answers = []
    for samples in NEIGHBORS:
        hub = await started(tmp_path / str(samples), samples, **me)
        agent = hub.agents[hub.names[0]]
        await script(hub, agent)
        async with asyncio.timeout(PATIENCE_SECONDS):
            message = await agent.sent.get()
        kind = str(message.WhichOneof("kind"))
        said = (message.refused.code, message.refused.rule) if kind == "refused" else ()
        answers.append((kind, *said))
        await hub.close()
    assert answers == [expected] * 2


def test_each_code_that_a_private_phase_gives_was_tried() -> None:
    """The others follow from rosters, ledgers and peers, before any input is made: `test_neighbors.py`."""
    tried = {name for name in DIALOGUES if name != "an input"}
    before = {"rejected", "ledger", "code", "roster", "not-named", "overlapping-cohort", "state-used-up"}
    in_sessions = {"left-out", "advert", "cohort-too-small", "signatures", "sum", "malformed"}
    assert tried | before | in_sessions == {each.value for each in Refusal}

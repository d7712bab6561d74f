"""States in which all but the model moved: silos take them for the one before (docs/protocol.md 6.10).

FedCSD's prototypes are summed and applied before every training. A coordinator that applied them alone, and
never a training, asked the same silos about the same model under new states as often as it liked, each time
without another silo.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from chorale.job import Job, sign_job
from chorale.spec.job_spec import JobSpec
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.training.data.base import SiloData
from silo_agent.training.data.formats.digits import read_all
from silo_agent.training.models.starting import initial_state
from silo_agent.training.torch_objective import TorchObjective
from strategies.base import MODEL
from strategies.parts.statistics.logit_prototypes import PROTOTYPES
from tests.support.agents import FEDERATION, Agent, Exchange, Hub

SILOS = 4


class TrainedAgent(Agent):
    """Holds a quarter of the digits."""

    def _data(self, job: Job) -> SiloData:
        samples, place = read_all(), self.hub.names.index(self.name)
        mine = np.arange(place, len(samples.labels), SILOS)
        return SiloData(train=samples.take(mine[25:]), holdout=samples.take(mine[:25]), name="data")


class TrainedHub(Hub):
    """Real silos, whose job begins with a real model."""

    def sign(self, **fields: Any) -> Job:
        values = {
            "name": "beside",
            "federation": FEDERATION,
            "nonce": "0" * 32,
            "not_after": self.now + timedelta(days=3),
            "silos": tuple(self.names),
            "rounds": 6,
            "classes": 10,
            "input_shape": (1, 8, 8),
            "model": {"name": "mlp", "hidden": (16,)},
            "training": {"learning_rate": 0.1},
        }
        spec = JobSpec.model_validate(values | fields)
        self.state = initial_state(spec, base=spec.base())
        spec = spec.filled(nonce=spec.nonce, initial_state=self.put(self.state))
        return self.open(sign_job(spec.to_yaml(), self.members.operator))

    def join_all(self) -> None:
        policy = Policy(federation=FEDERATION, approval="automatic", class_statistics="allow")
        for name in self.names:
            agent = TrainedAgent(self, name, policy=policy, objective=TorchObjective(device="cpu"), samples=0)
            self.agents[name] = agent
            agent.meet()


@pytest_asyncio.fixture
async def hub(tmp_path: Path) -> AsyncIterator[TrainedHub]:
    """All silos were in the opening, in the first round and in the test of its model."""
    made = TrainedHub(tmp_path, silos=SILOS, strategy={"preset": "fedcsd"}, evaluate_all_every=1)
    made.join_all()
    for round, phase in [
        (0, "enrollment.0"),
        (0, "class-presence.0"),
        (1, "prototypes"),
        (1, "train"),
        (1, "evaluate-all.0"),
    ]:
        await made.run(round, phase)
    yield made
    await made.close()


async def asked_without(hub: TrainedHub, absent: str, round: int, phase: str) -> Exchange:
    """All others are shown who is in the sum: they sign it next, or refuse."""
    exchange = hub.begin(round, phase)
    await hub.advertise(exchange, without=(absent,))
    await hub.share(exchange)
    await hub.mask(exchange)
    survivors = exchange.close_masked()
    for name in exchange.session.survivors:
        hub.agents[name].tell(survivors=survivors)
    return exchange


@pytest.mark.parametrize("phase", ["evaluate-all.0", "train"])
async def test_a_model_whose_prototypes_moved_is_the_same_model(hub: TrainedHub, phase: str) -> None:
    """The sums of all less those of all but silo-3 were silo-3's hold-out, or its update."""
    if phase == "train":
        await hub.run(2, "prototypes")
        exchange = hub.begin(2, "train")  # revealed, and never applied
        await hub.until_signed(exchange)
        await hub.unmask(exchange)
    before = hub.state
    moved = {**before, PROTOTYPES: before[PROTOTYPES] + 1e-6}
    hub.prove(moved, 3, "prototypes")
    assert all(np.array_equal(before[name], moved[name]) for name in before if name.startswith(MODEL))
    exchange = await asked_without(hub, "silo-3", 3, phase)
    for name in exchange.session.survivors:
        assert await hub.agents[name].refusal() == "overlapping-cohort"


async def test_a_model_that_was_trained_is_tested_without_a_silo_that_is_away(hub: TrainedHub) -> None:
    """The control."""
    await hub.run(2, "prototypes")
    await hub.run(2, "train")
    exchange = await asked_without(hub, "silo-3", 2, "evaluate-all.0")
    for name in exchange.session.survivors:
        await hub.agents[name].answer("consistency")

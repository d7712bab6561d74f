"""A coordinator cannot move the local state of one silo alone; and whose leave such a job needs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from chorale.observability import logs
from chorale.spec.state import state_from_bytes
from crypto.session.statements import Signer
from silo_agent.training.objective import Work
from strategies.base import Array
from tests.support.agents import Hub, OneHot

KEPT = "method/kept"
VICTIM = 2
SIXTEEN_BITS = 1e-3  # of the sum of four accuracies


class OwnAccuracy(OneHot):
    """Own models that get better with every training that was applied, at each silo from elsewhere on."""

    def compute(self, work: Work) -> Mapping[str, Array]:
        trained = int(work.local.arrays.get(KEPT, np.array(0)))
        work.local.propose({KEPT: np.array(trained + 1)})
        own = accuracy(work.spec.silos.index(work.silo), trained)
        return {
            **super().compute(work),
            "personal_accuracy": np.array(own),
            "personal_accuracy_square": np.array(own * own),
            "personal_silos": np.array(1),
        }


def accuracy(place: int, trained: int) -> float:
    return (11 + 3 * place + 2 * trained) / 25


def fedper(folder: Path, **policy: str) -> Hub:
    hub = Hub(folder, silos=4)
    hub.job = hub.sign(strategy={"preset": "fedper"})
    for name in hub.names:
        hub.add(name, objective=OwnAccuracy(), **policy)
    return hub


async def difference(hub: Hub, *, is_shown: bool) -> tuple[float, float]:
    """Of two sums over one cohort. is_shown: the first one, to all silos, which go on from what follows."""
    found = []
    for round in (1, 2):
        exchange = hub.begin(round, "train")
        await hub.until_signed(exchange)
        found.append(await hub.unmask(exchange))
        if is_shown:
            await hub.agree(exchange)
        hub.tell_outcome(exchange, cohort=hub.names)
    before, after = found
    change, square = (
        after[name] - before[name] for name in ("personal_accuracy", "personal_accuracy_square")
    )
    return float(change), float(square)


def kept(hub: Hub) -> list[int]:
    local = [agent.local.begin(hub.job.digest) for agent in hub.agents.values()]
    return [int(each.arrays.get(KEPT, np.array(0))) for each in local]


async def test_a_sum_shown_to_one_silo_gets_no_second_sum_that_tells_it(tmp_path: Path) -> None:
    """Else their difference is what that silo's state changed, hence both of its accuracies."""
    hub = fedper(tmp_path, local_state="allow")
    await hub.run(0, "enrollment.0")
    exchange, before = hub.begin(1, "train"), hub.state
    await hub.until_signed(exchange)
    await hub.unmask(exchange)
    revealed = hub.revealed(exchange)
    unsigned = hub.unsigned(exchange, revealed)
    victim = hub.names[VICTIM]
    statement = await hub.ask_state(exchange, victim, revealed)
    assert kept(hub) == [1 if name == victim else 0 for name in hub.names]

    # over the state before, the victim is not in the sum
    old = hub.begin(2, "train", state=before).task
    for name, agent in hub.agents.items():
        agent.tell(task=old)
        if name == victim:
            assert await agent.refusal() == "state"
        else:
            await agent.answer("advert")
    # over the state after, nobody else is
    own = Signer(
        certificate=hub.members.silos[victim].certificate_der, signature=statement.statement.signature
    )
    hub.add_proof(dataclasses.replace(unsigned, signers={victim: own}))
    after = state_from_bytes(hub.states[unsigned.next_digest])
    new = hub.begin(2, "train", attempt=2, state=after).task
    for name, agent in hub.agents.items():
        agent.tell(task=new)
        if name == victim:
            await agent.answer("advert")
        else:
            assert await agent.refusal() == "signatures"
    assert kept(hub) == [1 if name == victim else 0 for name in hub.names]
    await hub.close()


async def test_two_sums_tell_what_changed_at_all_silos_of_the_first(tmp_path: Path) -> None:
    hub = fedper(tmp_path, local_state="allow")
    await hub.run(0, "enrollment.0")
    found = await difference(hub, is_shown=True)
    both = [(accuracy(place, 0), accuracy(place, 1)) for place in range(4)]
    changes = sum(after - before for before, after in both), sum(b**2 - a**2 for a, b in both)
    assert found == pytest.approx(changes, abs=SIXTEEN_BITS)
    await hub.close()


async def test_two_sums_of_which_no_silo_was_shown_the_first_are_the_same(tmp_path: Path) -> None:
    """And both over one global state; the coordinator says `applied`."""
    hub = fedper(tmp_path, local_state="allow")
    await hub.run(0, "enrollment.0")
    assert await difference(hub, is_shown=False) == pytest.approx((0.0, 0.0), abs=SIXTEEN_BITS)
    await hub.close()


async def test_by_default_the_job_is_refused_at_its_offer_and_touches_no_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure()
    hub = fedper(tmp_path)
    logged = [line for line in capsys.readouterr().err.splitlines() if "message refused" in line]
    assert {(json.loads(line)["kind"], json.loads(line)["code"]) for line in logged} == {("job", "policy")}
    assert {json.loads(line)["reason"] for line in logged} == {
        "policy: expected a method without local state (local_state: refuse), got strategy fedper"
    }
    exchange = hub.begin(0, "enrollment.0")
    for agent in hub.agents.values():
        assert await agent.refusal(task=exchange.task) == "policy"
        assert agent.objective.works == []
    await hub.close()

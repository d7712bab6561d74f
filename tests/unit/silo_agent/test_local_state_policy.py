"""What a coordinator that lies about `applied` learns of one silo's local state, and whose leave it needs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from chorale.observability import logs
from silo_agent.objective import Work
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


async def difference(hub: Hub, *, told: list[str]) -> tuple[float, float]:
    """Of two sums over one cohort and one global state, the first reported as applied to `told` alone."""
    found = []
    for round in (1, 2):
        exchange = hub.begin(round, "train")
        await hub.until_signed(exchange)
        found.append(await hub.unmask(exchange))
        hub.tell_outcome(exchange, cohort=told)
    before, after = found
    change, square = (
        after[name] - before[name] for name in ("personal_accuracy", "personal_accuracy_square")
    )
    return float(change), float(square)


async def test_two_sums_tell_the_change_of_the_one_silo_whose_state_went_on(tmp_path: Path) -> None:
    """And so both accuracies of that silo: the leak that docs/threat-model.md names."""
    hub = fedper(tmp_path, local_state="allow")
    await hub.run(0, "enrollment.0")
    change, square = await difference(hub, told=[hub.names[VICTIM]])
    first, second = accuracy(VICTIM, 0), accuracy(VICTIM, 1)
    assert change == pytest.approx(second - first, abs=SIXTEEN_BITS)
    assert square == pytest.approx(second**2 - first**2, abs=SIXTEEN_BITS)
    solved = (square / change - change) / 2, (square / change + change) / 2
    assert solved == pytest.approx((first, second), abs=0.02)
    await hub.close()


async def test_two_sums_between_which_nobodys_state_went_on_are_the_same(tmp_path: Path) -> None:
    hub = fedper(tmp_path, local_state="allow")
    await hub.run(0, "enrollment.0")
    assert await difference(hub, told=[]) == pytest.approx((0.0, 0.0), abs=SIXTEEN_BITS)
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
        agent.tell(task=exchange.task)
        assert await agent.refusal() == "policy"
        assert agent.objective.works == []
    await hub.close()

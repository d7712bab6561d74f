"""Rows of class statistics leave a silo only where enough silos hold the class, through whole sessions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest

from chorale.observability import logs
from chorale.spec.job_spec import JobSpec
from chorale.transport.wire import PhaseKey
from crypto.session.cohort import CohortRule
from silo_agent.training.objective import Work
from strategies.base import Array
from tests.support.agents import Hub, OneHot
from tests.support.settings import job_spec
from tests.unit.silo_agent.conftest import MakeHub

# silo by silo: class 0 is every silo's, class 1 three silos', class 2 one silo's, class 3 no silo's
HOLDS = np.array([[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0]])


class Rows(OneHot):
    """Every row that a silo sends is the silo's one-hot vector, so the sum names its senders."""

    def compute(self, work: Work) -> Mapping[str, Array]:
        self.works.append(work)
        place = work.spec.silos.index(work.silo)
        if work.phase_kind == "class-presence":
            return {"class_presence": HOLDS[place]}
        assert work.class_rows is not None
        return {"prototypes": np.outer(HOLDS[place] * work.class_rows, np.eye(4)[place])}


@pytest.fixture
def make_hub(make_hub: MakeHub) -> MakeHub:
    return partial(make_hub, strategy={"preset": "fedcsd"}, classes=4)


async def prototypes_of(hub: Hub) -> Array:
    """The sum of the first round's prototypes. Shapes: (C, silos)."""
    await hub.run(0, "enrollment.0")
    await hub.run(0, "class-presence.0")
    return (await hub.run(1, "prototypes"))["prototypes"]


def add_all(hub: Hub, **policy: Any) -> None:
    for name in hub.names:
        hub.add(name, objective=Rows(), class_statistics="allow", **policy)


async def test_presence_counts_the_holders_of_each_class(make_hub: MakeHub) -> None:
    hub = make_hub()
    add_all(hub)
    await hub.run(0, "enrollment.0")
    assert (await hub.run(0, "class-presence.0"))["class_presence"].tolist() == [4, 3, 1, 0]
    assert hub.state["method/presence"].tolist() == [4, 3, 1, 0]
    works = [work for agent in hub.agents.values() for work in agent.objective.works]
    assert [work.class_rows for work in works] == [None] * 4


async def test_the_coordinator_tells_how_many_rows_the_default_policy_sends(make_hub: MakeHub) -> None:
    """From the presence that all silos know: of 4 silos a class needs 4 holders."""
    hub = make_hub()
    add_all(hub)
    await hub.run(0, "enrollment.0")
    sums = await hub.run(0, "class-presence.0")
    key = PhaseKey(job_digest=hub.job.digest, round=0, phase="class-presence.0", attempt=1)
    figures = hub.job.figures("class-presence.0", hub.job.context(key, hub.state, 4), sums)
    assert (figures["classes"], figures["class_rows_by_default"]) == (4, 1)


async def test_by_default_a_row_needs_as_many_holders_as_survive_dropouts_and_colluders(
    make_hub: MakeHub,
) -> None:
    """Of 4 silos 1 may drop and 1 collude: only a class of all 4 leaves at least two honest holders."""
    hub = make_hub()
    add_all(hub)
    sums = await prototypes_of(hub)
    np.testing.assert_allclose(sums, [[1, 1, 1, 1], [0] * 4, [0] * 4, [0] * 4], atol=1e-6)


@pytest.mark.parametrize(
    ("least", "senders"),
    [(3, [[1, 1, 1, 1], [1, 1, 1, 0], [0] * 4, [0] * 4]), (1, HOLDS.T), (5, np.zeros((4, 4)))],
)
async def test_a_policy_sets_its_own_number_of_holders(make_hub: MakeHub, least: int, senders: Any) -> None:
    hub = make_hub()
    add_all(hub, min_class_holders=least)
    np.testing.assert_allclose(await prototypes_of(hub), senders, atol=1e-6)


async def test_each_silo_goes_by_its_own_policy(make_hub: MakeHub) -> None:
    hub = make_hub()
    for name, least in zip(hub.names, [3, 4, 3, 1], strict=True):
        hub.add(name, objective=Rows(), class_statistics="allow", min_class_holders=least)
    sums = await prototypes_of(hub)
    np.testing.assert_allclose(sums, [[1, 1, 1, 1], [1, 0, 1, 0], [0] * 4, [0] * 4], atol=1e-6)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({}, "expected no class statistics (class_statistics: refuse), got quantity class_presence"),
        (
            {"class_statistics": "allow", "allowed_quantities": ["silos", "samples", "class_presence"]},
            "expected silos, samples, class_presence (allowed_quantities), got quantity prototypes",
        ),
    ],
)
async def test_a_job_whose_later_phases_the_policy_refuses_is_refused_at_its_offer(
    make_hub: MakeHub, capsys: pytest.CaptureFixture[str], policy: dict[str, Any], expected: str
) -> None:
    """Enrollment sums nothing that is refused; before, the refusal came when the phase did."""
    logs.configure()
    agent = make_hub().add("silo-0", objective=Rows(), **policy)
    (logged,) = [line for line in capsys.readouterr().err.splitlines() if "message refused" in line]
    assert (json.loads(logged)["kind"], json.loads(logged)["code"]) == ("job", "policy")
    assert json.loads(logged)["reason"] == f"policy: {expected}"
    assert await agent.refusal(task=agent.hub.begin(0, "enrollment.0").task) == "policy"
    assert agent.objective.works == []


async def test_the_same_job_is_joined_where_the_policy_allows_class_statistics(
    make_hub: MakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure()
    agent = make_hub().add("silo-0", objective=Rows(), class_statistics="allow")
    await agent.answer("advert", task=agent.hub.begin(0, "enrollment.0").task)
    assert "refused" not in capsys.readouterr().err


def spec_of(silos: int, **fields: Any) -> JobSpec:
    return job_spec(silos=[f"s-{place}" for place in range(silos)], rounds=1, **fields)


@pytest.mark.parametrize(
    ("silos", "members", "threshold", "least"),
    [(3, 3, None, 3), (4, 4, None, 4), (10, 10, None, 8), (10, 5, None, 9), (10, 10, 9, 6)],
)
def test_holders_that_a_row_needs(silos: int, members: int, threshold: int | None, least: int) -> None:
    """floor(m/3) + 2 + (R - t)."""
    spec = spec_of(silos, threshold=threshold)
    assert spec.min_class_holders(spec.rule(members)) == least


def test_no_job_needs_more_holders_than_it_has_silos() -> None:
    """So none has to be refused for it: a class that all silos hold is always sent."""
    for silos in range(3, 60):
        spec = spec_of(silos)
        needed = [spec.min_class_holders(CohortRule.for_members(members)) for members in range(3, silos + 1)]
        assert 3 <= min(needed) <= max(needed) <= silos, silos

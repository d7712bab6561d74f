"""Rows of class statistics leave a silo only where enough silos hold the class, through whole sessions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from chorale.observability import logs
from chorale.spec.job_spec import JobSpec
from chorale.transport.wire import PhaseKey
from crypto.session.cohort import CohortRule
from crypto.session.coordinator_session import SessionAborted
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
    [(3, [[1, 1, 1, 1], [1, 1, 1, 0], [0] * 4, [0] * 4]), (1, HOLDS.T)],
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


async def left_after_collusion(hub: Hub, *, lost: Sequence[str]) -> Array:
    """What silo-0 and the coordinator see of the others in the first round's sum. Shapes: (C, silos)."""
    await hub.run(0, "enrollment.0")
    await hub.run(0, "class-presence.0")
    exchange = hub.begin(1, "prototypes")
    await hub.until_signed(exchange, lost=lost)
    own_CS = np.outer(HOLDS[0] * (hub.agents["silo-0"].objective.works[-1].class_rows), np.eye(4)[0])
    return np.rint((await hub.unmask(exchange))["prototypes"] - own_CS)


async def test_a_colluder_and_a_dropout_show_one_silos_row_where_three_holders_are_enough(
    make_hub: MakeHub,
) -> None:
    """Class 1 is held by silos 0, 1 and 2: without silo 2 the sum less the colluder's row is silo 1's own."""
    hub = make_hub()
    add_all(hub, min_class_holders=3)
    assert (await left_after_collusion(hub, lost=["silo-2"]))[1].tolist() == [0, 1, 0, 0]


async def test_by_default_they_show_no_row_of_fewer_than_two_honest_silos(make_hub: MakeHub) -> None:
    hub = make_hub()
    add_all(hub)
    left_CS = await left_after_collusion(hub, lost=["silo-2"])
    assert left_CS.tolist() == [[0, 1, 0, 1], [0] * 4, [0] * 4, [0] * 4]


async def test_three_holders_are_enough_where_no_silo_may_drop_out(make_hub: MakeHub) -> None:
    hub = make_hub(threshold=4)
    add_all(hub)
    left_CS = await left_after_collusion(hub, lost=[])
    assert left_CS.tolist() == [[0, 1, 1, 1], [0, 1, 1, 0], [0] * 4, [0] * 4]


async def test_where_no_silo_may_drop_out_there_is_no_sum_without_one(make_hub: MakeHub) -> None:
    hub = make_hub(threshold=4)
    add_all(hub)
    with pytest.raises(SessionAborted, match="expected at least 4 silos, got 3"):
        await left_after_collusion(hub, lost=["silo-2"])


class Scattered(Rows):
    """No class is held by all silos: each lacks its own."""

    def compute(self, work: Work) -> Mapping[str, Array]:
        place = work.spec.silos.index(work.silo)
        if work.phase_kind == "class-presence":
            self.works.append(work)
            return {"class_presence": 1 - np.eye(4, dtype=np.int64)[place]}
        return super().compute(work)


SCATTERED_SENDS_NONE = (
    "policy: expected class rows of at least 1 of 4 classes, got 0: a row is sent where 4 of 4 silos hold "
    "its class (min_class_holders), and without rows fedcsd is another method; strategy.options "
    "missing_prototypes: identity puts public rows in place of missing ones; threshold: 4 needs 3 holders, "
    "and every silo in every sum; allow_silent_statistics: true runs it as it is"
)


async def test_a_job_that_no_row_is_left_of_is_refused_before_its_first_round(
    make_hub: MakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ran to its end as another method, and only its report said by_default: 0."""
    logs.configure()
    hub = make_hub()
    hub.add_all(objective=Scattered(), class_statistics="allow")
    await hub.run(0, "enrollment.0")
    await hub.run(0, "class-presence.0")
    silo = hub.agents["silo-0"]
    refused = await silo.answer("refused", task=hub.begin(1, "prototypes").task)
    assert (refused.code, refused.rule) == ("policy", "min_class_holders")
    assert f'"{SCATTERED_SENDS_NONE}"' in capsys.readouterr().err
    assert [work.phase_kind for work in silo.objective.works] == ["class-presence"] * 4  # no round began
    # it is no answer about this silo's data
    assert silo.ledger.data_refusals(policy=silo.policy, data_set="data").check() == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"allow_silent_statistics": True},
        {"strategy": {"preset": "fedcsd", "options": {"missing_prototypes": "identity"}}},
        {"threshold": 4},
    ],
)
async def test_the_ways_out_that_a_refusal_names_lead_out(make_hub: MakeHub, fields: Any) -> None:
    hub = make_hub(**fields)
    hub.add_all(objective=Scattered(), class_statistics="allow")
    await prototypes_of(hub)


@pytest.mark.parametrize("is_allowed", [True, None])
async def test_a_policy_that_no_class_can_meet_refuses_the_job_at_its_offer(
    make_hub: MakeHub, is_allowed: bool | None
) -> None:
    hub = make_hub(allow_silent_statistics=is_allowed)
    add_all(hub, min_class_holders=5)
    if is_allowed:
        assert not (await prototypes_of(hub)).any()
        return
    task = hub.begin(0, "enrollment.0").task
    refused = await hub.agents["silo-0"].answer("refused", task=task)
    assert (refused.code, refused.rule) == ("policy", "min_class_holders")


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

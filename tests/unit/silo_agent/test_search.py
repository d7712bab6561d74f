"""Attacks on a search: agents under a coordinator that prefers another arm, or asks one arm's model again."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from chorale.transport.wire import PhaseKey
from crypto.errors import PolicyRefusal, Rule
from crypto.session.cohort import CohortRule
from silo_agent.disclosure.ledger.state_uses import StateUse
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.rounds.inputs.own_steps import own_lengths, step_lengths
from silo_agent.training.objective import Work
from strategies.base import Array
from strategies.phases.arms import ARMS, OTHERS, joined, state_of, with_arms
from tests.support.agents import Hub
from tests.support.rated import RATE, Rated
from tests.unit.silo_agent.conftest import MakeHub
from tests.unit.silo_agent.enrolled import enrolled

RATES = (0.1, 0.5, 1.0, 3.0)
KEPT = "method/kept"
SEARCHED: dict[str, Any] = {"rounds": 6, "search": {"values": {RATE: RATES}, "rounds": 2}}


class Keeping(Rated):
    """Keeps how many of its trainings were applied."""

    def compute(self, work: Work) -> Mapping[str, Array]:
        trained = int(work.local.arrays.get(KEPT, np.array(0)))
        if work.phase_kind == "train":
            work.local.propose({KEPT: np.array(trained + 1)})
        return super().compute(work)


async def keeping(make_hub: MakeHub) -> Hub:
    return await enrolled(make_hub, each=lambda name: {"objective": Keeping()}, **SEARCHED)


def kept(hub: Hub, silo: str) -> dict[int, int]:
    """By arm, what a silo's next training of it starts from."""
    arrays = hub.agents[silo].local.begin(hub.job.digest).arrays
    return {int(name.removeprefix(OTHERS).partition("/")[0]): int(array) for name, array in arrays.items()}


async def searched(make_hub: MakeHub, **options: Any) -> Hub:
    """Enrolled, with the first model of all arms."""
    return await enrolled(make_hub, each=lambda name: {"objective": Rated(), **options}, **SEARCHED)


async def test_silos_take_the_arms_that_they_computed_and_no_other_winner(make_hub: MakeHub) -> None:
    hub = await searched(make_hub)
    await hub.run(1, "train")
    before = dict(hub.state)
    await hub.run(2, "train")
    assert hub.state[ARMS].tolist() == [2, 1]
    states = {arm: state_of(hub.state, arm, 4) for arm in (1, 2)}
    preferred = joined(states, [1, 2], rounds=0)  # the other one leads
    kept = joined({arm: state_of(before, arm, 4) for arm in range(4)}, [3, 2], rounds=0)  # a loser stays
    agent = hub.agents["silo-0"]
    for wrong in (preferred, kept, before):
        assert await agent.refusal(task=hub.begin(3, "train", state=wrong).task) == "state"
    await agent.answer("advert", task=hub.begin(3, "train").task)  # the control


async def test_a_silo_that_is_lost_in_a_search_is_in_no_arms_sum(make_hub: MakeHub) -> None:
    hub = await searched(make_hub)
    exchange = hub.begin(1, "train")
    await hub.until_signed(exchange, lost=["silo-3"])
    sums = await hub.unmask(exchange)
    deltas = {name: sums[name] for name in ("delta", "delta@1", "delta@2", "delta@3")}
    for delta_P in deltas.values():
        assert [place for place, value in enumerate(delta_P) if value == 0.0] == [3]


async def test_a_whole_search_under_the_default_policy_stops_no_data_set(make_hub: MakeHub) -> None:
    """Steps of an arm are compared with those of the same arm, also where another one takes the lead."""
    hub = await searched(make_hub)
    for round in range(1, 7):
        await hub.run(round, "train")
    assert hub.state[ARMS].tolist() == [1]
    for agent in hub.agents.values():
        assert len(agent.objective.works) == 2 * 4 + 2 * 2 + 2
        await agent.answer("advert", task=hub.begin(6, "evaluate.0").task)


async def test_a_silo_at_which_an_arm_diverges_goes_on_with_the_others(make_hub: MakeHub) -> None:
    diverging = {"silo-0": 1.0}
    hub = await enrolled(make_hub, each=lambda name: {"objective": Rated(diverging)}, **SEARCHED)
    for round in range(1, 5):
        await hub.run(round, "train")
    assert 2 not in hub.state[ARMS].tolist()  # it has the largest loss of all at one silo
    await hub.agents["silo-0"].answer("advert", task=hub.begin(5, "train").task)


async def test_each_arm_keeps_arrays_of_its_own_and_those_that_fell_away_leave_none(
    make_hub: MakeHub,
) -> None:
    hub = await keeping(make_hub)
    found = []
    for round in range(1, 6):
        await hub.run(round, "train")
        found.append(kept(hub, "silo-1"))
    # two rungs of two rounds; arms that fell away are not written again
    assert found[:2] == [dict.fromkeys(range(4), trained) for trained in (1, 2)]
    assert found[2:] == [{1: 3, 2: 3}, {1: 4, 2: 4}, {1: 5}]


async def test_a_silo_outside_of_the_sum_moves_no_arm_whatever_it_is_told_and_after_a_crash(
    make_hub: MakeHub,
) -> None:
    """Else a coordinator that shows one silo a sum of others takes it to a state that nobody else is in."""
    hub = await keeping(make_hub)
    await hub.run(1, "train")
    exchange = await hub.until_revealed(2, late=["silo-0"])
    await hub.agents["silo-0"].restart()  # between what it proposed and what became of it
    await hub.agree(exchange)
    hub.tell_outcome(exchange, cohort=hub.names)
    assert kept(hub, "silo-0") == dict.fromkeys(range(4), 1)
    assert kept(hub, "silo-1") == dict.fromkeys(range(4), 2)  # the control
    await hub.run(3, "train")
    assert (kept(hub, "silo-0"), kept(hub, "silo-1")) == ({1: 2, 2: 2}, {1: 3, 2: 3})


async def test_an_arm_that_comes_to_no_number_at_a_silo_keeps_what_it_had_there(make_hub: MakeHub) -> None:
    """Zeros are in the sum, so a control variate that moved would not be the one that was summed."""
    hub = await keeping(make_hub)
    await hub.run(1, "train")
    diverging = hub.agents["silo-0"].objective
    assert isinstance(diverging, Keeping)
    diverging.diverges = {"silo-0": 1.0}  # arms 2 and 3
    await hub.run(2, "train")
    assert kept(hub, "silo-0") == {0: 2, 1: 2, 2: 1, 3: 1}
    assert kept(hub, "silo-1") == dict.fromkeys(range(4), 2)


def test_lengths_are_of_each_arm_by_itself(make_hub: MakeHub) -> None:
    hub = make_hub(**SEARCHED)
    job, state = hub.job, {**hub.state, "method/total": np.array(400)}
    key = PhaseKey(job_digest=job.digest, round=1, phase="train", attempt=1)
    values = {
        name + suffix: value
        for suffix, length in (("", 1.0), ("@1", 2.0), ("@2", 3.0), ("@3", 4.0))
        for name, value in {
            "delta": 0.25 * length * np.array([1.0, 0, 0, 0]),
            "weight": np.array(0.25),
            "correct": np.array(1),
            "tested": np.array(2),
            "loss_sum": np.array(0.5),
        }.items()
    }
    own = own_lengths(job, key, job.context(key, state, 4), values)
    assert own == {f"arm/{arm}/model/votes": pytest.approx(1.0 + arm) for arm in range(4)}
    before = with_arms(state, range(4))
    after = {arm: {**state, "model/votes": np.array([arm, 0, 0, 0], np.float32)} for arm in (3, 1)}
    found = step_lengths(job, "train", before, joined(after, [3, 1], rounds=0))
    assert found == {"arm/3/model/votes": 3.0, "arm/1/model/votes": 1.0}


@pytest.mark.parametrize("rate", [1e-9, 11.0], ids=["moves nothing", "moves too far"])
def test_a_policy_refuses_the_rate_of_any_arm(make_hub: MakeHub, rate: float) -> None:
    policy = Policy(federation="test", initial_state="given")
    policy.check_job(make_hub(**SEARCHED).job.spec, operator="ops")  # the control
    values = {RATE: (*RATES[:3], rate)}
    spec = make_hub(**SEARCHED | {"search": {"values": values, "rounds": 2}}).job.spec
    with pytest.raises(PolicyRefusal, match="learning_rate") as caught:
        policy.check_job(spec, operator="ops")
    assert caught.value.rule is Rule.LEARNING_RATE


def test_allowed_quantities_are_those_of_one_arm(make_hub: MakeHub) -> None:
    hub = make_hub(**SEARCHED)
    names = ("silos", "samples", "delta", "weight", "correct", "tested", "loss_sum", "clipped")
    key = PhaseKey(job_digest=hub.job.digest, round=1, phase="train", attempt=1)
    layout = hub.job.layout(key, {**hub.state, "method/total": np.array(400)}, 4)
    assert len(layout.quantities) > 20
    Policy(federation="test", allowed_quantities=names).check_quantities(layout.quantities)
    without = Policy(federation="test", allowed_quantities=tuple(each for each in names if each != "delta"))
    with pytest.raises(PolicyRefusal, match="quantity delta"):
        without.check_quantities([each for each in layout.quantities if each.name == "delta@3"])


def use_of(hub: Hub, state: Any, *, round: int = 2) -> StateUse:
    key = PhaseKey(job_digest=hub.job.digest, round=round, phase="train", attempt=1)
    use = StateUse.of(hub.job, key, state, rule=CohortRule.for_members(4), assumed_colluders=1)
    assert use is not None
    return use


def test_a_phase_is_a_use_of_the_model_of_each_arm(make_hub: MakeHub) -> None:
    search, alone = make_hub(**SEARCHED), make_hub()
    models = {arm: {"model/votes": np.full(4, 1.0 + arm, np.float32)} for arm in range(4)}
    of_search = use_of(search, joined(models, range(4), rounds=1))
    of_jobs = {use_of(alone, model).training_digests for model in models.values()}
    assert {(digest,) for digest in of_search.training_digests} == of_jobs
    # before the first training, and where an arm stayed as another one is, it is one model
    assert len(use_of(search, search.state, round=1).training_digests) == 1


async def test_the_model_of_one_arm_is_asked_again_by_no_other_job(make_hub: MakeHub) -> None:
    hub = await searched(make_hub, max_repeats=0)
    await hub.run(1, "train")
    await hub.run(2, "train")  # over the models of four arms
    agent = hub.agents["silo-0"]
    of_arm_3, of_nobody = (np.full(4, value, np.float32) for value in (3.0 / 4.0, 0.7))
    with sqlite3.connect(agent.folder / "ledger.sqlite") as ledger:
        rows = ledger.execute("SELECT round, count(*) FROM state_uses GROUP BY round").fetchall()
    assert rows == [(1, 1), (2, 4)]
    reveals, search = agent.reveals, hub.job
    hub.job = hub.sign(name="another", initial_state="0" * 64)
    for votes, is_refused in ((of_arm_3, True), (of_nobody, False)):
        use = use_of(hub, {"model/votes": votes}, round=1)
        if is_refused:
            with pytest.raises(PolicyRefusal, match=f"job {search.id} round 2|1 sums were taken"):
                reveals.check_use(use)
        else:
            reveals.check_use(use)  # the control

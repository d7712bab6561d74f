"""What a silo's ledger holds of a private search: every arm of every round that its data were used for."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from chorale.privacy.job_releases import JobReleases
from chorale.privacy.releases import Release
from chorale.transport.wire import PhaseKey
from silo_agent.rounds.inputs.own_steps import own_lengths
from strategies.phases.arms import ARMS, state_of, with_arms
from tests.support.agents import Agent, Hub
from tests.support.rated import RATE, Rated
from tests.unit.silo_agent.conftest import MakeHub
from tests.unit.silo_agent.enrolled import enrolled

SUMS = {"sums": {"clip_norm": 0.5, "noise_multiplier": 4.0}, "statistics_noise_multiplier": 20.0}
SEARCHED: dict[str, Any] = {
    "rounds": 6,
    "search": {"values": {RATE: (0.1, 0.5, 1.0, 3.0)}, "rounds": 2},
    "privacy": SUMS,
}
BOUNDLESS = {"epsilon": 30.0, "partial_jobs": "allow"}
ME = "silo-0"
ARM_SUFFIXES = ("", "@1", "@2", "@3")


async def searched(make_hub: MakeHub, **privacy: Any) -> Hub:
    """Enrolled, with the first model of all arms."""
    policy = {"privacy": BOUNDLESS | privacy}
    return await enrolled(make_hub, each=lambda name: {"objective": Rated(), **policy}, **SEARCHED)


def charged(agent: Agent, hub: Hub) -> Counter[float]:
    """Of the account, by noise multiplier."""
    return by_multiplier(agent.budget.of_job(hub.job.digest)[0].releases)


def by_multiplier(releases: Any) -> Counter[float]:
    found: Counter[float] = Counter()
    for release, count in releases.items():
        found[round(release.noise_multiplier, 1)] += count
    return found


def of_rounds(*arms: int) -> Counter[float]:
    """By hand: an enrollment, and so many arms in each round. An update of each costs that of an exchange of
    half the multiplier; each is tested by three sums."""
    return Counter({2.0: sum(arms), 20.0: 1 + 3 * sum(arms)})


async def test_the_account_after_a_whole_search_holds_what_was_planned(make_hub: MakeHub) -> None:
    hub = await searched(make_hub)
    live = []
    for round in range(1, 7):
        live.append(len(hub.state.get(ARMS, range(4))))
        await hub.run(round, "train")
    await hub.run(6, "evaluate.0")
    assert live == [4, 4, 2, 2, 1, 1]
    expected = of_rounds(*live) + Counter({20.0: 3})
    plan: Counter[Release] = JobReleases(hub.job.spec, hub.state).planned()
    assert by_multiplier(plan) == expected
    for agent in hub.agents.values():
        assert charged(agent, hub) == expected


async def test_a_round_of_several_arms_that_is_computed_again_is_charged_for_all_of_them_again(
    make_hub: MakeHub,
) -> None:
    hub = await searched(make_hub)
    await hub.until_masked(hub.begin(1, "train"))
    await hub.agents[ME].restart()
    await hub.run(1, "train", attempt=2)
    assert charged(hub.agents[ME], hub) == of_rounds(4, 4)
    assert charged(hub.agents["silo-1"], hub) == of_rounds(4)  # the control: it sent the same input again


async def test_a_round_that_still_has_all_arms_after_a_lost_one_is_charged_for_all(
    make_hub: MakeHub,
) -> None:
    """The plan has two arms in the third round; three times four are more than it has of four."""
    hub = await searched(make_hub)
    await hub.run(1, "train")
    lost = hub.begin(2, "train")
    await hub.until_masked(lost)
    await hub.abandon(lost)
    await hub.run(3, "train")
    assert hub.state[ARMS].size == 2
    await hub.run(4, "train")
    assert charged(hub.agents[ME], hub) == of_rounds(4, 4, 4, 2)


async def test_a_state_of_more_arms_than_are_left_is_refused_and_costs_nothing(make_hub: MakeHub) -> None:
    hub = await searched(make_hub)
    await hub.run(1, "train")
    before = dict(hub.state)
    await hub.run(2, "train")
    agent, spent = hub.agents[ME], charged(hub.agents[ME], hub)
    all_again = with_arms(state_of(hub.state, int(hub.state[ARMS][0]), 4), range(4))
    for wrong in (before, all_again):
        assert await agent.refusal(task=hub.begin(3, "train", state=wrong).task) == "state"
    assert agent.budget.of_job(hub.job.digest)[0].releases.total() == spent.total()
    await agent.answer("advert", task=hub.begin(3, "train").task)  # the control
    assert agent.budget.balance().held > agent.budget.balance().spent


async def test_an_input_is_charged_by_the_arms_of_its_state_whatever_the_plan_has(make_hub: MakeHub) -> None:
    hub = await searched(make_hub)
    budget, plain = hub.agents[ME].budget, {**hub.state, "method/total": np.array(400)}
    for round, arms in ((5, 4), (1, 1), (2, 3)):
        key = PhaseKey(job_digest=hub.job.digest, round=round, phase="train", attempt=1)
        budget.reserve(hub.job, key, with_arms(plain, range(arms)), members=4).spend()
    assert charged(hub.agents[ME], hub) == of_rounds(4, 1, 3)


async def test_what_was_given_is_counted_by_the_arms_that_it_was_given_for(make_hub: MakeHub) -> None:
    hub = await searched(make_hub)
    alone, agent = JobReleases(hub.job.spec, hub.state, honest=1), hub.agents[ME]
    for round in range(1, 4):
        await hub.run(round, "train")
    inputs = agent.budget.spent_inputs(hub.job.digest)
    assert inputs == {("enrollment", 1): 1, ("train", 16): 2, ("train", 8): 1}
    of_one = {("enrollment", 1): 1, ("train", 4): 10}
    assert alone.promised_epsilon(inputs) > 0.99 * alone.promised_epsilon(of_one) > 1.0


def test_no_length_of_a_private_step_follows_from_the_data(make_hub: MakeHub) -> None:
    """Without privacy an arm whose update is zeros has none: here that would be up to a silo's own values."""
    hub = make_hub(**SEARCHED)
    state = {**hub.state, "method/total": np.array(400)}
    key = PhaseKey(job_digest=hub.job.digest, round=1, phase="train", attempt=1)
    context = hub.job.context(key, state, 4)
    lengths = [
        own_lengths(
            hub.job,
            key,
            context,
            {"weight" + suffix: np.array(0.25) for suffix in ARM_SUFFIXES}
            | {"delta" + suffix: np.full(4, value) for suffix in ARM_SUFFIXES},
        )
        for value in (0.0, 0.1)
    ]
    assert lengths[0] == lengths[1]
    (longest,) = {round(length, 6) for length in lengths[0].values()}  # every arm has the noise of its own
    assert longest > 0.5

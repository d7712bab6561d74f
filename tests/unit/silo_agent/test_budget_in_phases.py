"""The budget where a phase meets it: reserved before data are touched, spent before a byte leaves."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from chorale.privacy.composition import AccountReleases
from chorale.privacy.job_releases import JobReleases
from chorale.privacy.releases import Release
from chorale.runtime.audit import read_entries
from chorale.transport.wire import PhaseKey, phase_kind
from crypto.masking.masks import Masker, Source
from silo_agent.disclosure.policy.policy import Policy
from strategies.base import TOTAL
from tests.support.agents import PATIENCE_SECONDS, Agent, Exchange, Hub, MemoryTransfers, write_policy
from tests.unit.silo_agent.enrolled import MakeHub, enrolled

SUMS = {"sums": {"clip_norm": 0.5, "noise_multiplier": 4.0}, "statistics_noise_multiplier": 20.0}
DELTA = 1e-5
ME = "silo-0"


@pytest.fixture
def make_hub(make_hub: MakeHub) -> MakeHub:
    return lambda **options: make_hub(**{"privacy": SUMS, "rounds": 3} | options)


def cost(hub: Hub, phase: str) -> list[Release]:
    state = {**hub.state, TOTAL: np.array(400)}
    return list(JobReleases(hub.job.spec, state).cost(phase_kind(phase), len(hub.names)))


def costs(hub: Hub, *phases: str) -> float:
    return epsilon_of(hub, [release for phase in phases for release in cost(hub, phase)])


def epsilon_of(hub: Hub, releases: list[Release]) -> float:
    """Of an account that holds nothing else."""
    empty = AccountReleases(delta=DELTA, sides_are_fixed=False)
    plan = JobReleases(hub.job.spec, hub.state).planned()
    return empty.with_more(Counter(releases), job=hub.job.digest, plan=plan).epsilon()


def spent(agent: Agent) -> float:
    return agent.budget.balance().spent


def held(agent: Agent) -> float:
    return agent.budget.balance().held


async def test_every_phase_of_a_job_is_charged_once(make_hub: MakeHub) -> None:
    """Evaluation, counts and enrollment that spend nothing are a known mistake."""
    hub = make_hub()
    hub.add_all()
    phases = [(0, "enrollment.0"), (1, "train"), (2, "train"), (3, "evaluate.0")]
    for done, (round, phase) in enumerate(phases, start=1):
        await hub.run(round, phase)
        expected = costs(hub, *[name for _, name in phases[:done]])
        assert [spent(agent) for agent in hub.agents.values()] == pytest.approx([expected] * 4)


async def test_after_epsilon_fell_what_was_reserved_keeps_to_both_budgets(make_hub: MakeHub) -> None:
    """It was reserved under the budget that fell since, and left all the same."""
    hub, names = make_hub(), {"federation": "test", "approval": "automatic", "initial_state": "given"}
    one = costs(hub, "enrollment")
    for name, epsilon in {ME: 0.9 * one, "silo-1": 1.1 * one}.items():
        agent = hub.add(name, privacy={"epsilon": 2 * one, "partial_jobs": "allow"})
        exchange = hub.begin(0, "enrollment.0")
        await agent.answer("advert", task=exchange.task)
        privacy = {"epsilon": epsilon, "partial_jobs": "allow"}
        write_policy(agent.folder / "policy.yaml", names | {"privacy": privacy})
        agent.handler.poll()
        assert agent.budget._budgets == {2 * one, epsilon}
    for name in ("silo-2", "silo-3"):
        hub.add(name, privacy={"epsilon": 2 * one, "partial_jobs": "allow"})
    again = hub.begin(0, "enrollment.0", attempt=2)
    await hub.until_shared(again)
    for name, envelopes in again.close_share().items():
        hub.agents[name].tell(envelopes=envelopes)
    assert (await hub.agents[ME].answer("refused")).code == "budget"
    await hub.agents["silo-1"].uploaded()
    assert [spent(hub.agents[name]) for name in (ME, "silo-1")] == [0.0, pytest.approx(one)]


async def test_an_attempt_that_sends_the_same_input_again_is_no_new_spend(make_hub: MakeHub) -> None:
    hub = make_hub()
    hub.add_all()
    first = hub.begin(0, "enrollment.0")
    await hub.until_masked(first)
    assert spent(hub.agents[ME]) == pytest.approx(costs(hub, "enrollment"))
    await hub.run(0, "enrollment.0", attempt=2)
    assert spent(hub.agents[ME]) == pytest.approx(costs(hub, "enrollment"))


async def test_an_input_that_is_made_again_after_a_crash_is_paid_again(make_hub: MakeHub) -> None:
    hub = make_hub()
    hub.add_all()
    first = hub.begin(0, "enrollment.0")
    await hub.until_masked(first)
    await hub.agents[ME].restart()
    await hub.run(0, "enrollment.0", attempt=2)
    assert spent(hub.agents[ME]) == pytest.approx(costs(hub, "enrollment", "enrollment"))
    assert spent(hub.agents["silo-1"]) == pytest.approx(costs(hub, "enrollment"))


async def test_an_input_that_never_left_costs_nothing_once_the_job_goes_on(make_hub: MakeHub) -> None:
    """There is room for one round: the next must not be refused for what the last one gave up."""
    hub = make_hub()
    hub.add_all(privacy={"epsilon": costs(hub, "enrollment", "train") * 1.001, "partial_jobs": "allow"})
    await hub.run(0, "enrollment.0")
    agent, before = hub.agents[ME], costs(hub, "enrollment")
    lost = hub.begin(1, "train")
    await hub.advertise(lost)
    assert (spent(agent), held(agent)) == pytest.approx((before, costs(hub, "enrollment", "train")))
    await hub.advertise(hub.begin(2, "train"))
    assert (spent(agent), held(agent)) == pytest.approx((before, costs(hub, "enrollment", "train")))


async def test_what_does_not_fit_is_refused_before_the_data_are_touched(make_hub: MakeHub) -> None:
    """The coordinator hears one code; the numbers stay in the silo's own trail."""
    hub = make_hub()
    enough_for_one = costs(hub, "enrollment", "train") * 1.001
    hub.add_all()
    agent = hub.agents[ME]
    await agent.close()
    agent.policy = Policy.model_validate(
        {
            "federation": "test",
            "approval": "automatic",
            "initial_state": "given",
            "privacy": {"epsilon": enough_for_one, "partial_jobs": "allow"},
        }
    )
    agent._start()
    agent.meet()
    await hub.run(0, "enrollment.0")
    await hub.run(1, "train")
    trained = len(agent.objective.works)
    task = hub.begin(2, "train").task
    answer = await agent.answer("refused", task=task)
    assert answer.code == "budget"
    assert {field.name for field, _ in answer.ListFields()} == {"code", "key"}  # and no number
    assert len(agent.objective.works) == trained
    assert held(agent) == pytest.approx(costs(hub, "enrollment", "train"))
    entries = [entry for entry in read_entries(agent.folder / "audit.jsonl") if entry["event"] == "refused"]
    assert "expected at most epsilon" in entries[-1]["reason"]


async def test_a_refused_job_loads_no_data(make_hub: MakeHub) -> None:
    hub = make_hub()
    agent = hub.add(ME, privacy={"epsilon": 0.01, "partial_jobs": "allow"})
    touched: list[object] = []
    agent.handler._inputs._load_data = lambda job, _: touched.append(job)  # type: ignore
    assert await agent.refusal(task=hub.begin(0, "enrollment.0").task) == "budget"
    assert touched == []


async def test_a_job_that_plans_too_much_is_refused_at_its_first_phase(make_hub: MakeHub) -> None:
    hub = make_hub()
    agent = hub.add(ME, privacy={"epsilon": costs(hub, "enrollment", "train")})
    assert await agent.refusal(task=hub.begin(0, "enrollment.0").task) == "budget"
    assert (held(agent), agent.objective.works) == (0.0, [])


@pytest.mark.parametrize("first", [(0, "enrollment.0"), (2, "enrollment.0")])
async def test_a_job_that_leaves_too_little_if_all_others_collude_is_refused_at_every_enrollment(
    make_hub: MakeHub, first: tuple[int, str]
) -> None:
    """A coordinator that leaves a silo out of the first enrollment must not pass the bound by a later one."""
    records = {"clip_norm": 1.0, "noise_multiplier": 10.0, "sample_rate": 0.1, "noise": "sum"}
    shared = {"records": records, "statistics_noise_multiplier": 40.0}
    hub = make_hub(privacy=shared, steps=3, spare_steps=2, rounds=5, enrollment_every=1)
    strict = hub.add(ME, privacy={"shared_noise": 0.35})
    if first[0] > 0:
        hub.prove({**hub.state, TOTAL: np.array(400)}, 0, "enrollment.0")
    assert await strict.refusal(task=hub.begin(*first).task) == "policy"
    assert (held(strict), strict.objective.works) == (0.0, [])
    planned = strict.metrics.epsilon_planned.labels(data_set="data")._value.get()
    collude = strict.metrics.epsilon_planned_if_all_others_collude.labels(data_set="data")._value.get()
    assert collude > 1.2 * planned > 0.1


async def test_a_job_without_privacy_is_refused_where_policy_requires_it(make_hub: MakeHub) -> None:
    hub = make_hub(privacy=None)
    agent = hub.add(ME, privacy={"required": True})
    assert await agent.refusal(task=hub.begin(0, "enrollment.0").task) == "policy"


async def test_a_job_without_privacy_is_distinguished_in_the_ledger(make_hub: MakeHub) -> None:
    hub = await enrolled(make_hub, privacy=None)
    balance = hub.agents[ME].budget.balance()
    assert (balance.spent, balance.unnoised, balance.jobs[0].inputs) == (0.0, 1, 1)


# the coordinator's word


@pytest.mark.parametrize(
    "weaker",
    [
        {"sums": {"clip_norm": 0.5, "noise_multiplier": 1.0}, "statistics_noise_multiplier": 20.0},
        {"sums": {"clip_norm": 5.0, "noise_multiplier": 4.0}, "statistics_noise_multiplier": 20.0},
        {"sums": {"clip_norm": 0.5, "noise_multiplier": 4.0}, "statistics_noise_multiplier": 1.0},
        None,
    ],
)
async def test_terms_with_less_noise_than_the_job_promises_are_not_the_silos(
    make_hub: MakeHub, weaker: dict[str, Any] | None
) -> None:
    """The silo computes noise, clip and scale from the signed job; a digest over others is refused."""
    hub = make_hub()
    agent = hub.add(ME)
    hub.prove({**hub.state, TOTAL: np.array(400)}, 0, "enrollment.0")
    honest = hub.job
    hub.job = hub.sign(privacy=weaker)
    forged = hub.begin(1, "train")
    hub.job = honest
    key = PhaseKey(job_digest=honest.digest, round=1, phase="train", attempt=1)
    forged.task.key.CopyFrom(Exchange(key=key, session=forged.session, task=forged.task).wire_key)
    forged.task.proofs.extend(hub.begin(1, "train").task.proofs)
    assert await agent.refusal(task=forged.task) == "terms"
    assert (held(agent), agent.objective.works) == (0.0, [])


# the first byte


class WatchedTransfers(MemoryTransfers):
    """Looks into the ledger, and into the audit trail, when the upload is asked for."""

    agent: Agent

    async def upload(self, key: PhaseKey, masker: Masker, source: Source, *, total_bytes: int) -> None:
        entries = read_entries(self.agent.folder / "audit.jsonl")
        self.seen = (
            self.agent.budget.balance().spent,
            [(entry["round"], entry["phase"]) for entry in entries if entry["event"] == "spent"],
        )
        await super().upload(key, masker, source, total_bytes=total_bytes)


async def test_spend_is_durable_and_told_before_the_first_byte(make_hub: MakeHub) -> None:
    hub = make_hub()
    hub.add_all()
    agent = hub.agents[ME]
    carrier = WatchedTransfers(agent.folder, hub.states)
    carrier.agent = agent
    agent.transfers = agent.handler._sessions._transfers = carrier
    await hub.run(0, "enrollment.0")
    assert carrier.seen == (pytest.approx(costs(hub, "enrollment")), [(0, "enrollment.0")])


@pytest.mark.parametrize("trouble", ["the ledger's disk is full", "the input was given up"])
async def test_nothing_leaves_where_the_spend_cannot_be_written(make_hub: MakeHub, trouble: str) -> None:
    hub = make_hub()
    hub.add_all()
    agent = hub.agents[ME]
    exchange = hub.begin(0, "enrollment.0")
    await hub.advertise(exchange)
    if trouble == "the input was given up":
        agent.handler._inputs.drop_job(hub.job.digest)
        await _until(lambda: held(agent) == 0.0)
    else:

        def full(input_id: bytes) -> None:
            raise OSError("no space left on device")

        agent.budget.spend = full  # type: ignore[method-assign]
    await hub.share(exchange)
    envelopes = exchange.close_share()[ME]
    agent.tell(envelopes=envelopes)
    running = agent.handler._tasks.of(exchange.key)
    assert running is not None
    assert running.upload is not None
    await running.upload
    assert await agent.refusal() == ("stage" if trouble == "the input was given up" else "internal")
    assert agent.is_silent()  # but for that
    assert spent(agent) == 0.0


# any sequence, through the agents themselves


@pytest.mark.parametrize("seed", range(3))
async def test_no_sequence_of_phases_and_restarts_lets_out_more_than_was_spent(
    make_hub: MakeHub, seed: int
) -> None:
    """What left is counted by the carrier, each input once, and composed from scratch."""
    chance = random.Random(seed)
    hub = make_hub(rounds=14, max_attempts=20)
    boundless = {"epsilon": 30.0, "partial_jobs": "allow"}
    hub.add_all(privacy=boundless)
    left: list[Release] = []
    sent: set[tuple[int, int, str]] = set()  # life of the process, round, phase: one input each
    life, round, attempt, phase = 0, 0, 1, "enrollment.0"
    for _ in range(14):
        agent = hub.agents[ME]
        exchange = hub.begin(round, phase, attempt=attempt)
        reach = chance.choice(["advert", "shares", "vector", "all"])
        await _drive(hub, exchange, reach)
        if reach in ("vector", "all") and (life, round, phase) not in sent:
            sent.add((life, round, phase))
            left += cost(hub, phase)
        assert spent(agent) == pytest.approx(epsilon_of(hub, left))
        if reach == "all":
            attempt, round, phase = 1, round + 1, "train"
        else:
            attempt += 1
        if chance.random() < 0.3:
            life += 1
            await agent.restart()
            assert held(hub.agents[ME]) == pytest.approx(epsilon_of(hub, left))
    assert len(sent) >= 3


async def _drive(hub: Hub, exchange: Exchange, reach: str) -> None:
    await hub.advertise(exchange)
    if reach == "advert":
        return
    await hub.share(exchange)
    if reach == "shares":
        return
    await hub.mask(exchange)
    if reach == "vector":
        return
    await hub.consistency(exchange)
    await hub.unmask(exchange)
    await hub.agree(exchange)
    hub.tell_outcome(exchange, cohort=exchange.session.survivors)


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not is_so():
            await asyncio.sleep(0.01)  # the ledger is written in another thread

"""Refusals for what the data are: jobs without noise ask one silo questions, and only so many are answered.

28 jobs with another `high` each read the largest value of a column to the cent, without a mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from chorale.job import Job
from crypto.errors import ConfigError, Refusal
from silo_agent.disclosure.ledger.data_refusals import DataRefusals
from silo_agent.disclosure.ledger.decisions import Grants
from silo_agent.disclosure.ledger.ledger import Ledger
from silo_agent.training.data.base import SiloData
from silo_agent.training.objective import Work
from strategies.base import Array
from tests.support.agents import Agent, Hub, OneHot
from tests.unit.silo_agent.reveal_book import Book, refused

MakeHub = Callable[..., Hub]


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Book]:
    opened = Book(tmp_path)
    yield opened
    opened.ledger.close()


def refusals_of(book: Book, limit: int, *, data_set: str = "data") -> DataRefusals:
    policy = book.policy.model_copy(update={"max_data_refusals": limit})
    return book.ledger.data_refusals(policy=policy, data_set=data_set)


def grant(ledger: Ledger, job: bytes, refusals: int) -> None:
    ledger.decisions().approve(job, by="ann", grants=Grants(data_refusals=refusals), account="data")


def test_one_refusal_beyond_the_policys_closes_the_data_set_to_every_job(book: Book) -> None:
    for count in range(3):
        assert refusals_of(book, 2).check(book.other_job.digest) == count
        assert refusals_of(book, 2).record(bytes([count]) * 32, suspends=True) == count + 1
        book.reopen()
    why = r"3 inputs were refused for its data, more than 2 \(max_data_refusals\)"
    for job in (book.job, book.other_job):
        refused(Refusal.POLICY, why, lambda job=job: refusals_of(book, 2).check(job.digest))
    assert refusals_of(book, 3).check(book.job.digest) == 3
    assert refusals_of(book, 0, data_set="other-data").check(book.job.digest) == 0


def test_what_is_granted_to_a_job_is_used_by_it_alone(book: Book) -> None:
    job, other = book.job.digest, book.other_job.digest
    refusals_of(book, 0).record(bytes(32), suspends=True)
    grant(book.ledger, job, 1)
    book.reopen()
    refusals_of(book, 0).check(job)
    refused(Refusal.POLICY, "max_data_refusals", lambda: refusals_of(book, 0).check(other))
    assert refusals_of(book, 0).record(job, suspends=True) == 1
    refused(Refusal.POLICY, "max_data_refusals", lambda: refusals_of(book, 0).check(job))


class Source:
    """An agent's data, which do not go with the job."""

    def __init__(self, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read = 0
        monkeypatch.setattr(agent, "_data", self._data)

    def _data(self, job: Job) -> SiloData:
        self.read += 1
        raise ConfigError("labels must be at most 1000 (by the job's task), got 98431.27")


async def enrolling(hub: Hub, **policy: Any) -> Agent:
    hub.add_all(**policy)
    return hub.agents["silo-0"]


def ask(agent: Agent) -> Agent:
    agent.tell(task=agent.hub.begin(0, "enrollment.0").task)
    return agent


def counted(agent: Agent) -> int:
    policy = agent.policy.model_copy(update={"max_data_refusals": 1_000})
    return agent.ledger.data_refusals(policy=policy, data_set="data").check()


async def test_questions_about_one_silo_end_with_the_policys_number(
    make_hub: MakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await enrolling(make_hub(), max_data_refusals=1)
    source = Source(agent, monkeypatch)
    for number in (1, 2):
        assert await ask(agent).refusal() == "data"
        assert await ask(agent).refusal() == "data"  # suspended: the same answer, and no data
        assert (source.read, counted(agent)) == (number, number)
        agent.ledger.decisions().approve(agent.hub.job.digest, by="ann")
    for _ in range(2):
        assert await ask(agent).refusal() == "policy"
        await agent.restart()
    assert source.read == 2
    grant(agent.ledger, agent.hub.job.digest, 3)
    assert await ask(agent).refusal() == "data"
    assert source.read == 3


async def test_a_refusal_is_counted_though_the_process_dies_before_it_leaves(
    make_hub: MakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await enrolling(make_hub())
    source = Source(agent, monkeypatch)
    left: list[int] = []
    with monkeypatch.context() as watched:
        watched.setattr(agent.handler._replies, "refuse", lambda key, error: left.append(counted(agent)))
        ask(agent)
        await next(iter(agent.handler._tasks)).preparation  # type: ignore[misc]
    assert left == [1]
    assert [job.decision for job in agent.ledger.jobs()] == ["suspended"]
    await agent.restart()
    assert await ask(agent).refusal() == "data"
    assert (source.read, counted(agent)) == (1, 1)


class Broken(OneHot):
    def compute(self, work: Work) -> Mapping[str, Array]:
        raise RuntimeError("a value of these data")


async def test_a_failure_of_another_kind_counts_once_a_job_and_may_be_tried_again(make_hub: MakeHub) -> None:
    hub = make_hub()
    for name in hub.names:
        hub.add(name, objective=Broken())
    await hub.run(0, "enrollment.0")
    agent = hub.agents["silo-0"]
    for attempt in (1, 2):
        assert await agent.refusal(task=hub.begin(1, "train", attempt=attempt).task) == "internal"
        assert counted(agent) == 1
    assert [job.decision for job in agent.ledger.jobs()] == ["approved"]


async def test_a_failure_in_a_private_job_is_counted_and_beyond_the_number_none_is_computed(
    make_hub: MakeHub,
) -> None:
    """Red before: an operator chose how wide a private job's inputs are, and `internal` said for free, by as
    many jobs as it liked, whether so many records still fit in memory."""
    records = {"clip_norm": 1.0, "noise_multiplier": 10.0, "sample_rate": 0.1}
    hub = make_hub(privacy={"records": records, "statistics_noise_multiplier": 5.0})
    budget = {"epsilon": 30.0}
    for name in hub.names:
        hub.add(name, objective=Broken(), privacy=budget, max_data_refusals=1)
    await hub.run(0, "enrollment.0")
    agent = hub.agents["silo-0"]
    for attempt in (1, 2):  # counts once a job
        assert await agent.refusal(task=hub.begin(1, "train", attempt=attempt).task) == "internal"
    agent.data_sets.of(hub.job.digest).failures.record(bytes(32), suspends=False)  # of another job
    assert counted(agent) == 0  # jobs without noise are not concerned
    assert await agent.refusal(task=hub.begin(1, "train", attempt=3).task) == "policy"
    grant(agent.ledger, hub.job.digest, 2)
    assert await agent.refusal(task=hub.begin(1, "train", attempt=4).task) == "internal"


async def test_refusals_of_a_private_job_are_not_counted(
    make_hub: MakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No record decides them: control of the tests above."""
    records = {"clip_norm": 1.0, "noise_multiplier": 10.0, "sample_rate": 0.1}
    hub = make_hub(privacy={"records": records, "statistics_noise_multiplier": 5.0})
    budget = {"epsilon": 30.0}
    agent = await enrolling(hub, privacy=budget, max_data_refusals=0)
    Source(agent, monkeypatch)
    assert await ask(agent).refusal() == "data"
    assert counted(agent) == 0
    refusals = agent.data_sets.of(hub.job.digest).refusals
    refusals.record(bytes(32), suspends=True)
    refused(Refusal.POLICY, "max_data_refusals", refusals.check)  # of a job without noise
    assert await agent.refusal(task=hub.begin(0, "enrollment.0", attempt=2).task) == "data"

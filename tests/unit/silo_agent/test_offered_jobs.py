"""A silo's book of jobs holds so many and no more, and its places are for jobs that can be served."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chorale.credentials import Credentials
from chorale.job import sign_job
from chorale.spec.job_spec import JobSpec
from crypto.errors import ChoraleError, PolicyRefusal, Refusal
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.rounds.offered_jobs import MAX_JOBS, OfferedJobs
from tests.support.agents import Hub, with_operator
from tests.unit.silo_agent.enrolled import MakeHub


def book_of(hub: Hub) -> OfferedJobs:
    agent = hub.add("silo-0")
    return OfferedJobs(
        silo="silo-0",
        ledger=agent.ledger,
        data_sets=agent.data_sets,
        credentials=Credentials(hub.members.silos["silo-0"], hub.members.authority),
        clock=lambda: hub.now,
    )


def flood(book: OfferedJobs, hub: Hub) -> None:
    for number in range(2 * MAX_JOBS):
        with pytest.raises(ChoraleError):
            book.offer(replace(hub.job.signed, spec_bytes=b"name: %d" % number), hub.roster)


async def test_jobs_that_no_operator_signed_take_no_place_of_others(make_hub: MakeHub) -> None:
    hub = make_hub()
    book = book_of(hub)
    flood(book, hub)
    job = book.offer(hub.job.signed, hub.roster)
    flood(book, hub)
    assert book.approved(job.digest, hub.roster).digest == job.digest


async def test_no_job_that_can_be_served_gives_way_to_another(make_hub: MakeHub) -> None:
    hub = make_hub()
    book = book_of(hub)
    for number in range(MAX_JOBS):
        book.offer(hub.sign(name=f"job-{number}").signed, hub.roster)
    with pytest.raises(PolicyRefusal, match=f"{MAX_JOBS} jobs are open already"):
        book.offer(hub.job.signed, hub.roster)
    book.forget(hub.sign(name="job-0").digest)
    assert book.offer(hub.job.signed, hub.roster).digest == hub.job.digest


async def test_an_approval_is_of_the_operator_who_asked(make_hub: MakeHub) -> None:
    """Every operator reads signed jobs and may sign the same bytes: what a person approved for one was served
    for another, who then had the model and an archive of evidence in the own name."""
    hub = make_hub()
    book, eve = book_of(hub), with_operator(hub.members, "eve")
    roster = eve.roster(version=8, issued=hub.now)
    assert book.offer(hub.job.signed, hub.roster).operator == "ops"
    stolen = sign_job(hub.job.signed.spec_bytes, eve.operator)
    with pytest.raises(PolicyRefusal, match="was offered here as a job of ops, and eve signed it") as refused:
        book.offer(stolen, roster)
    assert refused.value.code is Refusal.JOB_INVALID
    own = sign_job(hub.sign(name="of-eve").signed.spec_bytes, eve.operator)
    assert book.offer(own, roster).operator == "eve"  # the control


async def test_policy_is_asked_once_of_a_job_and_its_operator(
    make_hub: MakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub, asked = make_hub(), list[str]()
    book, check_job = book_of(hub), Policy.check_job

    def counted(policy: Policy, spec: JobSpec, *, operator: str) -> None:
        asked.append(operator)
        check_job(policy, spec, operator=operator)

    monkeypatch.setattr(Policy, "check_job", counted)
    job = book.offer(hub.job.signed, hub.roster)
    book.approved(job.digest, hub.roster)
    assert asked == [job.operator]
    book._served[job.digest] = "another"  # who signed the same bytes, and whom policy may not allow
    book.approved(job.digest, hub.roster)
    assert asked == [job.operator] * 2
    book.forget(job.digest)
    book.offer(hub.job.signed, hub.roster)
    assert asked == [job.operator] * 3

"""What a silo says of its own part in a job, signed with its own key: a file that its institution hands on.

It tells of this job alone: approvals, what left, what that costs, and which policy held. Why the silo refused
something stays here. Source: docs/protocol.md 11.
"""

from __future__ import annotations

from pathlib import Path

from chorale import evidence
from chorale.evidence import AuditExcerpt, Runs, SiloStatement
from chorale.privacy.releases import releases_to_json
from chorale.runtime.software import own_software
from chorale.spec.kinds import any_spec
from crypto.errors import ConfigError
from silo_agent.disclosure.ledger.audit_trail import REVEALED_EVENT, SPENT_EVENT
from silo_agent.disclosure.ledger.decisions import (
    APPROVED_EVENT,
    GRANTED_EVENT,
    REFUSALS_GRANTED_EVENT,
    REJECTED_EVENT,
)
from silo_agent.disclosure.ledger.ledger import Ledger, LedgerJob
from silo_agent.disclosure.policy.policy import read_policy
from silo_agent.rounds.data_sets import name_for
from silo_agent.settings import SiloSettings

AUDITED = (
    REVEALED_EVENT,
    SPENT_EVENT,
    APPROVED_EVENT,
    REJECTED_EVENT,
    GRANTED_EVENT,
    REFUSALS_GRANTED_EVENT,
)


def silo_statement(settings: SiloSettings, ledger: Ledger, job_id: str) -> SiloStatement:
    """job_id: the first digits of the job's digest.

    Raises ConfigError unless it is one job that this silo knows, and where the audit log does not hold;
    PolicyRefusal where this silo has no data set for it.
    """
    job = _job(ledger, job_id)
    assert job.spec_bytes is not None
    spec = any_spec(job.spec_bytes, source=f"job {job.id}")
    data_set = settings.data_set(name_for(spec, [each.name for each in settings.data_sets]))
    policy_digest, policy = read_policy(settings.policy_of(data_set))
    budget = ledger.budget(policy=policy, data_set=data_set.account)
    spent, unnoised = budget.of_job(job.job_digest)
    planned = {} if spent.first is None else spent.first.releases
    return SiloStatement(
        federation=settings.federation,
        job=job.job_digest.hex(),
        made=evidence.now(),
        silo=settings.name,
        operator=job.operator,
        software=Runs.here(own_software()),
        decision=job.decision.value,
        policy=policy_digest.hex(),
        delta=spent.delta,
        sides_are_fixed=spent.sides_are_fixed,
        costs=ledger.costs_of(job.job_digest),
        plan=tuple((releases_to_json([each]), count) for each, count in planned.items()),
        epsilon=None if unnoised else evidence.number(spent.epsilon()),
        audit=_excerpt(ledger, settings.audit_path, job.job_digest),
    )


def _job(ledger: Ledger, job_id: str) -> LedgerJob:
    known = [job for job in ledger.jobs() if job_id and job.job_digest.hex().startswith(job_id.lower())]
    if len(known) != 1:
        what = f"{len(known)} begin" if known else "none begins"
        raise ConfigError(f"job {job_id}: expected the id of one job that was offered here, {what} with it")
    if known[0].spec_bytes is None:
        raise ConfigError(f"job {known[0].id}: a recovery recorded it, without its text")
    return known[0]


def _excerpt(ledger: Ledger, path: Path, job_digest: bytes) -> AuditExcerpt:
    try:
        if ledger.audit_trail(path).lacks(job_digest):
            raise ConfigError(
                "it lacks entries about this job: bring the closed files that tell of it back beside it, or, "
                "after a crash, start the agent once"
            )
        return AuditExcerpt.of(path, job=job_digest, events=AUDITED)
    except ConfigError as error:
        message = str(error)
        raise ConfigError(message if message.startswith(f"{path}: ") else f"{path}: {message}") from None

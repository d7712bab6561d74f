"""A person approves or rejects a job, with open eyes: never one that this silo would refuse all the same."""

from __future__ import annotations

from crypto.errors import ConfigError, PolicyRefusal, Rule
from silo_agent.approval.view import JobView
from silo_agent.disclosure.ledger.decisions import NO_GRANTS, Grants, checked_name, checked_reason
from silo_agent.disclosure.ledger.ledger import Ledger, LedgerJob
from silo_agent.disclosure.ledger.reveals import Decision


def check_would_run(ledger: Ledger, view: JobView, grants: Grants = NO_GRANTS) -> None:
    """Raises ConfigError for a job that is over, and PolicyRefusal that names every rule by which the job
    would be refused although it is approved: then approvals that wait for another person's are taken back.

    grants: those that end what they are for.
    """
    if view.is_over and not view.stops_data:
        raise ConfigError(
            f"job {view.id}: it is over, says the coordinator, so there is nothing to approve; if the "
            "coordinator offers it again, it waits for approval again"
        )
    standing = [
        each for each in view.refusals if not (grants.data_refusals and each.field == Rule.MAX_DATA_REFUSALS)
    ]
    if standing:
        reasons = "; ".join(f"{each.message} [{each.field}]" for each in standing)
        names = ledger.decisions().take_back(view.job_digest)
        taken_back = f"; the approval of {', '.join(names)} is taken back" if names else ""
        refusal = PolicyRefusal(
            f"job {view.id}: this silo would refuse it although it is approved: {reasons}; change the policy "
            f"and restart the agent, or reject the job{taken_back}"
        )
        refusal.add_note(
            "the operator sees only that it waits: if the policy stays as it is, reject it with this reason, "
            f"chorale silo reject {view.id} --reason TEXT"
        )
        raise refusal


def approve(ledger: Ledger, view: JobView, *, by: str, grants: Grants = NO_GRANTS) -> int:
    """One person's approval of a job as it was shown; how many more people it takes.

    Raises as `check_would_run`, and ConfigError for a name that cannot be kept or that approved it already.
    """
    check_would_run(ledger, view, grants)
    return ledger.decisions().approve(
        view.job_digest,
        by=checked_name(by),
        required=view.required_approvals,
        policy=view.policy,
        grants=grants,
        account=None if view.balance is None else view.balance.data_set,
    )


def reject(ledger: Ledger, job: LedgerJob, *, by: str, reason: str) -> None:
    """One person's no; the operator is told the reason. Raises ConfigError for what cannot be told, and for a
    job that `may_be_rejected` does not say so of."""
    if not may_be_rejected(job):
        raise ConfigError(
            f"job {job.id}: it is over, says the coordinator, and not approved here, so nothing is rejected"
        )
    ledger.decisions().reject(job.job_digest, by=checked_name(by), reason=checked_reason(reason))


def may_be_rejected(job: LedgerJob | JobView) -> bool:
    """Whether there is something to say no to. The coordinator alone says that a job is over: an approval can
    be taken back all the same, for it would hold if the job were offered again."""
    return not job.is_over or job.stops_data or job.decision is Decision.APPROVED

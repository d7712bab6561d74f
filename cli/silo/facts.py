"""What the commands of a silo print of its ledger and policy, for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from silo_agent.account_units import account_budgets
from silo_agent.disclosure.policy.in_words import refused
from silo_agent.disclosure.policy.policy import load_policy

if TYPE_CHECKING:
    from pathlib import Path

    from silo_agent.disclosure.ledger.ledger import Ledger, LedgerJob
    from silo_agent.settings import SiloSettings


def job_facts(job: LedgerJob) -> dict[str, Any]:
    """A job that was offered here. is_over, stops_data: as LedgerJob has them."""
    return {
        "job": job.job_digest.hex(),
        "name": job.name,
        "operator": job.operator,
        "rounds": job.rounds,
        "decision": job.decision.value,
        "is_over": job.is_over,
        "stops_data": job.stops_data,
        "offered": job.offered.isoformat(),
    }


def ledger_facts(ledger: Ledger, settings: SiloSettings) -> dict[str, Any]:
    """Every job that was offered, and what each account has spent. Units: epsilon at the account's delta."""
    known = {each.id for each in ledger.accounts().all()}
    others = known - {each.account for each in settings.data_sets}
    return {
        "roster_version": ledger.roster_version,
        "jobs": [job_facts(job) for job in ledger.jobs()],
        "data_sets": {
            each.name: _account(ledger, each.account, settings.policy_of(each), settings)
            for each in settings.data_sets
        },
        "other_accounts": [
            _account(ledger, account, settings.policy, settings) for account in sorted(others)
        ],
    }


def policy_facts(settings: SiloSettings) -> dict[str, Any]:
    """By data set: the policy's file, each field as it is in effect, and what it refuses."""
    found = {}
    for data_set in settings.data_sets:
        path = settings.policy_of(data_set)
        policy = load_policy(path)
        found[data_set.name] = {
            "file": str(path),
            "policy": policy.model_dump(mode="json"),
            "refuses": refused(policy),
        }
    return {"data_sets": found}


def _account(ledger: Ledger, account: str, policy: Path, settings: SiloSettings) -> dict[str, Any]:
    budgets = account_budgets(settings, account)
    balance = ledger.budget(policy=load_policy(policy), data_set=account, budgets=budgets).balance()
    return {
        "account": account,
        "delta": balance.delta,
        "epsilon_budget": balance.budget,
        "epsilon_spent": balance.spent,
        "epsilon_held": balance.held,
        "epsilon_left": balance.left,
        "inputs_without_noise": balance.unnoised,
        "jobs": [
            {
                "job": job.job_digest.hex(),
                "epsilon": None if job.unnoised else job.epsilon,
                "inputs": job.inputs,
            }
            for job in balance.jobs
        ],
    }

"""What the silo's page tells of its ledger and audit log: asked, sent, refused and why, budget."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup

from chorale.runtime.audit import read_entries
from crypto.errors import ConfigError, Refusal
from silo_agent.account_units import account_budgets
from silo_agent.approval.reading import policy_digests
from silo_agent.disclosure.ledger.audit_trail import REVEALED_EVENT
from silo_agent.disclosure.ledger.costs import BudgetBalance
from silo_agent.disclosure.ledger.decisions import Given
from silo_agent.disclosure.ledger.ledger import Ledger, LedgerJob
from silo_agent.disclosure.policy.policy import load_policy
from silo_agent.settings import SiloSettings
from web.shared.phases import with_note
from web.shared.templating import plain

REFUSED_EVENT = "refused"
NEWEST = 100  # entries of each kind on a page


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Of all jobs. waiting: those that wait for approval. given: approvals that wait for another person's.
    sent, refused (of the audit log, the newest first) and budgets: rows of the page's tables."""

    jobs: tuple[LedgerJob, ...]
    waiting: frozenset[bytes]
    given: Mapping[bytes, Given]
    sent: tuple[list[object], ...]
    sent_by_job: Mapping[str, int]
    refused: tuple[list[object], ...]
    budgets: tuple[list[object], ...]


def read_facts(open_ledger: Callable[[], Ledger], settings: SiloSettings) -> Facts:
    """Raises ConfigError for files that cannot be read, and for an audit log whose chain is broken."""
    sent: deque[list[object]] = deque(maxlen=NEWEST)
    refused: deque[list[object]] = deque(maxlen=NEWEST)
    sent_by_job: dict[str, int] = {}
    try:
        for entry in read_entries(settings.audit_path) if settings.audit_path.exists() else ():
            if entry["event"] == REVEALED_EVENT:
                sent.appendleft([*_phase(entry), entry["survivors"]])
                sent_by_job[entry["job"]] = sent_by_job.get(entry["job"], 0) + 1
            elif entry["event"] == REFUSED_EVENT and entry["code"] != Refusal.JOB_NOT_APPROVED:  # it waits
                refused.appendleft([*_phase(entry), [with_note(entry["reason"], entry["code"])]])
    except ConfigError as error:
        raise ConfigError(f"the audit log {settings.audit_path} does not hold: {error}") from None
    with closing(open_ledger()) as ledger:
        decisions = ledger.decisions()
        policies, now = policy_digests(settings), datetime.now(UTC)
        jobs = sorted(ledger.jobs(), key=lambda job: job.offered, reverse=True)
        waiting = frozenset(job.job_digest for job in jobs if job.waits(now))
        budgets = tuple(
            _budget(
                each.name,
                ledger.budget(
                    policy=load_policy(settings.policy_of(each)),
                    data_set=each.account,
                    budgets=account_budgets(settings, each.account),
                ).balance(),
            )
            for each in settings.data_sets
        )
        return Facts(
            jobs=tuple(sorted(jobs, key=lambda job: job.job_digest not in waiting)),
            waiting=waiting,
            given={job.job_digest: decisions.given(job.job_digest, policies=policies) for job in jobs},
            sent=tuple(sent),
            sent_by_job=sent_by_job,
            refused=tuple(refused),
            budgets=budgets,
        )


def _phase(entry: dict[str, Any]) -> list[object]:
    job = Markup("<code>{}</code>").format(plain(entry["job"][:12]))
    return [entry["time"][:19].replace("T", " "), job, entry["round"], entry["phase"]]


def _budget(name: str, balance: BudgetBalance) -> list[object]:
    spent, left = f"{balance.spent:.4g}", f"{balance.left:.4g}"
    unnoised = f"{balance.unnoised} inputs: the data set as a whole has no finite epsilon"
    return [
        name,
        spent,
        left,
        f"{balance.budget:g}",
        f"{balance.delta:g}",
        unnoised if balance.unnoised else "none",
    ]

"""The data sets of a running agent: as they were opened, and the accounts that they are charged to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

from chorale.job import Job
from chorale.observability.logs import get_logger
from chorale.runtime.audit import AuditLog
from chorale.spec.analysis_spec import AnalysisSpec
from crypto.session.reveal import PendingReveal
from silo_agent.account_units import OpenedData, open_accounts
from silo_agent.disclosure.ledger.audit_trail import REVEALED_EVENT, SPENT_EVENT, spend_fields
from silo_agent.disclosure.ledger.budget import Spend
from silo_agent.disclosure.ledger.ledger import Ledger
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.metrics import SiloMetrics
from silo_agent.rounds.data_sets import DataSet, DataSets
from silo_agent.settings import SiloSettings
from silo_agent.training.analysis.table import DescribedTable, load_table
from silo_agent.training.data.base import SiloData
from silo_agent.training.data.loading import load_data
from silo_agent.training.data.settings import DataSettings, rows_beyond_in_words

log = get_logger("silo_agent.rounds.inputs.open_data")


class OpenData:
    """Reads the data of jobs under the settings that the data sets were opened with.

    all: each with the policy that is in force. Made by `open`, closed and opened by `open_again`.
    """

    def __init__(
        self,
        settings: SiloSettings,
        opened: Mapping[str, OpenedData],
        policies: Mapping[str, Policy],
        *,
        ledger: Ledger,
        audit: AuditLog,
        metrics: SiloMetrics,
    ) -> None:
        self._settings, self._opened = settings, opened
        self._ledger, self._audit, self._metrics = ledger, audit, metrics
        charged = self._charged(policies)
        self._budgets = [each.budget for each in charged]
        self.all = DataSets(charged, ledger=ledger)

    @classmethod
    async def open(
        cls,
        settings: SiloSettings,
        policies: Mapping[str, Policy],
        *,
        ledger: Ledger,
        audit: AuditLog,
        metrics: SiloMetrics,
    ) -> OpenData:
        """Compare the records of every data set with its account. Raises ConfigError."""
        opened = await asyncio.to_thread(open_accounts, settings, policies, ledger=ledger, audit=audit)
        return cls(settings, opened, policies, ledger=ledger, audit=audit, metrics=metrics)

    def begin(self) -> None:
        """Before the first line: accounts are open, and what an earlier run reserved and did not spend is
        given back."""
        for each in self._budgets:
            each.open_account()
        self.all.any_reveals.blank_old_shares()
        if given_back := self._budgets[0].release_dead():  # of all data sets
            log.info("reservations given back", inputs=given_back)

    async def open_again(self, settings: SiloSettings) -> None:
        """With other settings, while no phase runs and no input is kept. Raises ConfigError."""
        policies = self.all.policies
        self._opened = await asyncio.to_thread(
            open_accounts, settings, policies, ledger=self._ledger, audit=self._audit
        )
        self._settings = settings
        charged = self._charged(policies)
        for each in charged:
            each.budget.open_account()
        self.all.replace(charged)

    def take(self, name: str, policy: Policy) -> None:
        """Another policy of a data set from now on."""
        self.all.take(name, policy)
        self._metrics.epsilon_budget.labels(data_set=name).set(policy.privacy.epsilon)

    def settings_of(self, job: Job) -> DataSettings:
        """Of the job's data set. Raises ConfigError for data that are closed."""
        name = self.all.of(job.digest).name
        closed = self._opened[name].closed
        if closed is not None:
            again = "it is read again when its settings change, or at the agent's next start"
            raise type(closed)(f"{closed} (when it was opened: {again})")
        return self._settings.data_set(name)

    def records_of(self, settings: DataSettings) -> int | None:
        """How many a data set held when it was last read; None: it was not, without a job."""
        contents = self._ledger.accounts().contents(settings.name)
        return None if contents is None else contents.records

    def note_records(self, settings: DataSettings, count: int) -> None:
        """How many a job found in a data set that no start of the agent reads."""
        if settings.source is not None:
            self._ledger.accounts().note_contents(settings.name, records=count, units=None, columns=None)

    def load(self, job: Job, is_cancelled: Callable[[], bool]) -> SiloData:
        """Raises ConfigError, Cancelled."""
        settings = self.settings_of(job)
        admitted = self._opened[settings.name].admitted
        data = load_data(settings, job.training, admitted=admitted, is_cancelled=is_cancelled)
        self.note_records(settings, data.records)
        if data.rows_beyond:
            log.warning(rows_beyond_in_words(settings, data.rows_beyond), job=job.id)
        return data

    def load_table(self, job: Job, most: int, is_cancelled: Callable[[], bool]) -> DescribedTable:
        """Of an analysis. most: records that private jobs count on. Raises ConfigError, Cancelled."""
        assert isinstance(job.spec, AnalysisSpec)
        settings = self.settings_of(job)
        admitted = self._opened[settings.name].admitted
        table = load_table(settings, job.spec, admitted=admitted, most=most, is_cancelled=is_cancelled)
        self.note_records(settings, table.records)
        if table.rows_beyond:
            log.warning(rows_beyond_in_words(settings, table.rows_beyond), job=job.id)
        return table

    def _charged(self, policies: Mapping[str, Policy]) -> list[DataSet]:
        charged = [
            DataSet.of(
                self._ledger,
                name=name,
                policy=policy,
                account=self._settings.data_set(name).account,
                unit=self._settings.data_set(name).unit,
                units=self._settings.data_set(name).units,
                format=self._settings.data_set(name).format,
                budgets=self._opened[name].budgets,
                tell_reveal=partial(_note_reveal, self._audit),
                tell_spend=partial(_note_spend, self._audit),
            )
            for name, policy in policies.items()
        ]
        for each in charged:
            self._metrics.watch_budget(each.name, each.policy.privacy.epsilon, each.budget.spent)
        return charged


def _note_reveal(audit: AuditLog, pending: PendingReveal) -> None:
    audit.append_unflushed(  # the ledger holds it durably, and enters it again if a power loss takes it
        REVEALED_EVENT,
        job=pending.job_digest,
        round=pending.round,
        phase=pending.phase,
        cohort=pending.cohort_digest,
        survivors=list(pending.survivors),
    )


def _note_spend(audit: AuditLog, spend: Spend) -> None:
    audit.append_unflushed(SPENT_EVENT, **spend_fields(spend))  # as a reveal
